"""Tuning of a start, scales, friction and a step size, from the mode and from short pilot runs."""
