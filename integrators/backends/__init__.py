"""Printers of a Program: torch source, C++ and Triton."""
