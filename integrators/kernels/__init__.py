"""Kernels: programs compiled and launched, over many steps or over lists of tensors."""
