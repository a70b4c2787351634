"""The domains of blocks, as questions that tensors answer entry by entry."""

INSIDE = {
    "positive": lambda x: x > 0,
    "nonnegative": lambda x: x >= 0,
    "fraction": lambda x: (x >= 0) & (x <= 1),
    "binary": lambda x: (x == 0) | (x == 1),
}
