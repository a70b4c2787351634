"""The networks of the papers, started as torch does."""

import torch
from torch.nn import Conv2d, Dropout, Flatten, Linear, MaxPool2d, ReLU, Sequential


def perceptron(inputs: int, hidden: int, classes: int = 10, *, seed: int) -> Sequential:
    """Two layers of ReLUs: inputs-hidden-hidden-classes."""
    torch.manual_seed(seed)
    layers = Linear(inputs, hidden), ReLU(), Linear(hidden, hidden), ReLU(), Linear(hidden, classes)
    return Sequential(Flatten(), *layers)


def convolutional(*, channels: tuple[int, int], hidden: int, padding: int = 0, seed: int) -> Sequential:
    """For images of 28 x 28: two convolutions of 5 x 5, ReLU, pooled by 2, then two hidden layers and 10 classes."""
    torch.manual_seed(seed)
    first, second = channels
    side = ((28 + 2 * padding - 4) // 2 + 2 * padding - 4) // 2
    features = Conv2d(1, first, 5, padding=padding), ReLU(), MaxPool2d(2)
    more = Conv2d(first, second, 5, padding=padding), ReLU(), MaxPool2d(2), Flatten()
    head = Linear(second * side**2, hidden), ReLU(), Linear(hidden, hidden), ReLU(), Linear(hidden, 10)
    return Sequential(*features, *more, *head)


def lenet(*, seed: int, dropout: float = 0.0) -> Sequential:
    """LeNet-5 with ReLU and max-pooling: 6 and 16 maps of 5 x 5, the first padded, then 120-84-10; 61,706 weights."""
    torch.manual_seed(seed)
    maps = Conv2d(1, 6, 5, padding=2), ReLU(), MaxPool2d(2), Conv2d(6, 16, 5), ReLU(), MaxPool2d(2), Flatten()
    hidden = Linear(400, 120), ReLU(), Dropout(dropout), Linear(120, 84), ReLU(), Dropout(dropout)
    return Sequential(*maps, *hidden, Linear(84, 10))
