"""The networks of the papers, started as torch does."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import (
    SELU,
    AdaptiveAvgPool2d,
    BatchNorm2d,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    Module,
    Parameter,
    ReLU,
    Sequential,
)
from torch.nn.functional import avg_pool2d, conv2d, linear, pad, relu, selu


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


def layers_of(network: Module) -> list[dict[str, list[Parameter]]]:
    """A parameter group for each layer."""
    layers = (list(layer.parameters(recurse=False)) for layer in network.modules())
    return [{"params": parameters} for parameters in layers if parameters]


# ---- residual networks of Heek & Kalchbrenner (2019)


class Normed(Module):
    """A convolution of 3 x 3, or with kernel 0 a linear layer, of weights scale direction/|direction| by filter.

    The prior is exp(-(d/2)(|direction|^2 - 1)^2) of each direction, d numbers, and exp(-|x|/5) of the scales, and of
    the biases, of a layer. With batch normalisation a filter is normalised before its scale and bias.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        scale: float = 1.0,
        batch_norm: bool = False,
    ) -> None:
        super().__init__()
        self.stride = stride
        shape = (outputs, inputs, kernel, kernel) if kernel else (outputs, inputs)
        direction = torch.randn(shape)
        self.direction = Parameter(direction / norms(direction))
        self.scale = Parameter(torch.full((outputs,), scale))
        self.bias = Parameter(torch.zeros(outputs))
        self.batch_norm = BatchNorm2d(outputs, affine=False) if batch_norm else None

    def forward(self, x: Tensor) -> Tensor:
        """With a border of zeros."""
        unit = self.direction / norms(self.direction)
        if self.batch_norm is not None:
            filtered = self.batch_norm(conv2d(x, unit, stride=self.stride, padding=1))
            return filtered * self.scale[:, None, None] + self.bias[:, None, None]
        weight = unit * self.scale.reshape(-1, *[1] * (unit.dim() - 1))
        if unit.dim() == 2:
            return linear(x, weight, self.bias)
        return conv2d(x, weight, self.bias, stride=self.stride, padding=1)

    def energy(self) -> Tensor:
        """-log of the prior, but for a constant."""
        size = self.direction[0].numel()
        lengths = self.direction.flatten(1).square().sum(1)
        return size / 2 * (lengths - 1).square().sum() + (length(self.scale) + length(self.bias)) / 5


def norms(direction: Tensor) -> Tensor:
    """|direction| of each filter, of a shape that divides them."""
    return direction.flatten(1).norm(dim=1).reshape(-1, *[1] * (direction.dim() - 1))


def length(x: Tensor) -> Tensor:
    """|x|, with a gradient of 0 at 0."""
    return (x.square().sum() + 1e-12).sqrt()


class Block(Module):
    """x + second(act(first(act(x)))); where it halves the image, x is pooled and its new channels are 0."""

    def __init__(self, first: Module, second: Module, activation: Callable[[Tensor], Tensor], widens: int) -> None:
        super().__init__()
        self.first, self.second = first, second
        self.activation, self.widens = activation, widens

    def forward(self, x: Tensor) -> Tensor:
        """Of images `(rows, channels, side, side)`."""
        around = pad(avg_pool2d(x, 2), (0, 0, 0, 0, 0, self.widens)) if self.widens else x
        return around + self.second(self.activation(self.first(self.activation(x))))


def residual(*, depth: int, filters: int, batch_norm: bool, seed: int, plus: bool | None = None) -> Sequential:
    """For 32 x 32 colours, of depth 6n + 2: ResNet with batch normalisation and ReLU, or the ResNet++ without.

    ResNet++ has SELU and normed weights, and the last scale of each of its branches begins at 0.1; `plus` asks for it
    with batch normalisation, too, by default it is where there is none.
    """
    torch.manual_seed(seed)
    plus = not batch_norm if plus is None else plus

    def convolution(inputs: int, outputs: int, stride: int = 1, scale: float = 1.0) -> Module:
        if plus:
            return Normed(inputs, outputs, stride=stride, scale=scale, batch_norm=batch_norm)
        return Sequential(Conv2d(inputs, outputs, 3, stride, 1, bias=False), BatchNorm2d(outputs))

    layers: list[Module] = [convolution(3, filters)]
    width = filters
    for stage in range(3):
        for block in range((depth - 2) // 6):
            halves = stage > 0 and block == 0
            wider = 2 * width if halves else width
            first, second = convolution(width, wider, 2 if halves else 1), convolution(wider, wider, scale=0.1)
            layers.append(Block(first, second, selu if plus else relu, wider - width))
            width = wider
    head = Normed(width, 10, kernel=0) if plus else Linear(width, 10)
    return Sequential(*layers, SELU() if plus else ReLU(), AdaptiveAvgPool2d(1), Flatten(), head)


def prior(network: Module) -> Tensor:
    """-log of the prior of all layers that have one."""
    return torch.stack([m.energy() for m in network.modules() if isinstance(m, Normed)]).sum()
