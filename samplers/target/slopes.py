"""Comparisons of a gradient with differences of the value, and of its Jacobian with the transposed one."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from .potential import differentiated
from .vectorised import OF_STATES

DISTANCES = (0.0, 0.1, 1.0)  # of the compared points from the start, relative
WIDTHS = (1e-1, 1e-2, 1e-3)  # of the differences
ROUNDINGS = 30  # roundings in one value of U
STEADY = 0.1  # relative change, from width to width, of a difference that is no kink's

Leaves = list[torch.Tensor]  # of one chain's theta


@dataclass(frozen=True)
class Slopes:
    """The slope of U along a direction, by its gradient and by central differences of some widths.

    `roundings`: the rounding error of each difference.
    """

    by_gradient: float
    by_differences: tuple[float, ...]
    roundings: tuple[float, ...]

    def agree(self, share: float) -> bool:
        """Whether the slope by the gradient equals one by differences, up to `share` of both and to rounding.

        >>> Slopes(1.0, (1.3, 1.003), (0.0, 0.0)).agree(0.01)
        True
        """
        pairs = zip(self.by_differences, self.roundings)
        return any(
            abs(difference - self.by_gradient) <= share * (abs(self.by_gradient) + abs(difference)) + rounding
            for difference, rounding in pairs
        )

    @property
    def middle(self) -> float:
        """The slope by differences of the middle width."""
        return self.by_differences[len(WIDTHS) // 2]

    @property
    def ratio(self) -> float:
        """The slope by the gradient over the slope by differences; inf where the latter is 0."""
        return self.by_gradient / self.middle if self.middle else torch.inf

    @property
    def is_finite(self) -> bool:
        """Whether all slopes are finite."""
        return bool(torch.tensor((self.by_gradient, *self.by_differences)).isfinite().all())


def slopes_near(energy: Callable, theta: Any, batch: tuple, *, directions: int, eps: float = 0.0) -> Iterator[Slopes]:
    """Yields slopes of an energy of one chain, at theta and near; points where the energy raises are left out.

    `directions`: the number per point; `eps`: the relative rounding of U, if coarser than that of its dtype.
    """
    leaves, form = tree_flatten(theta)
    generator = torch.Generator("cpu").manual_seed(0)

    def random() -> Leaves:
        return [torch.randn(x.shape, generator=generator).to(x.detach()) for x in leaves]

    def of(point: Leaves) -> torch.Tensor:
        return energy(tree_unflatten(point, form), *batch)

    for distance in DISTANCES:
        at = [(x + distance * (1 + x.abs()) * move).detach() for x, move in zip(leaves, random())]
        for direction in [random() for _ in range(directions)]:
            try:
                yield _slopes(of, at, direction, eps)
            except OF_STATES:
                continue


def _slopes(of: Callable, at: Leaves, direction: Leaves, eps: float) -> Slopes:
    jet = differentiated(of, at)
    slope = float(sum((g * way).sum() for g, way in zip(jet.slope, direction)))
    sensitivity = float(sum((g * x).abs().sum() for g, x in zip(jet.slope, at)))
    rounding = max(eps, torch.finfo(jet.value.dtype).eps) * (ROUNDINGS * float(jet.value.abs()) + sensitivity)
    differences = []
    with torch.no_grad():
        for width in WIDTHS:
            higher, lower = (of([x + sign * width * way for x, way in zip(at, direction)]) for sign in (1, -1))
            differences.append(float(higher - lower) / (2 * width))
    return Slopes(slope, tuple(differences), tuple(rounding / width for width in WIDTHS))


def curl_near(gradient: Callable, theta: np.ndarray, *, share: float, eps: float) -> tuple[float, float] | None:
    """The two slopes v J w and w J v of a gradient that is none, since its Jacobian J is not symmetric; else None.

    `gradient`: of points `(N, size)`; `theta`: a point `(size,)`; `share`: the relative difference of equal slopes;
    `eps`: the relative rounding of the gradient. Slopes are central differences of two widths along random v and w. A
    kink, as of |theta|, gives other differences at each width, which are left out.

    >>> turned = np.array([[1.0, 2.0], [0.0, 1.0]])
    >>> curl_near(lambda z: z @ turned, np.zeros(2), share=1e-3, eps=1e-16) is None
    False
    >>> curl_near(lambda z: z @ (turned + turned.T), np.zeros(2), share=1e-3, eps=1e-16) is None
    True
    """
    draw = np.random.default_rng(0)
    curls: list[tuple[float, float] | None] = []
    for distance in DISTANCES:
        v, w = draw.standard_normal((2, theta.size))
        at = theta + distance * (1 + abs(theta)) * draw.standard_normal(theta.size)
        widths = np.array(WIDTHS[1:])
        moves = [sign * width * x for width in widths for x in (v, w) for sign in (1, -1)]
        try:
            g = gradient(at + np.array(moves)).reshape(len(widths), 2, 2, -1)
        except OF_STATES:
            continue
        if not np.isfinite(g).all():
            continue
        of_v, of_w = ((g[:, i, 0] - g[:, i, 1]) / (2 * widths[:, None]) for i in (0, 1))
        one, other = of_w @ v, of_v @ w
        rounding = ROUNDINGS * eps * (abs(g).max((1, 2)) @ (abs(v) + abs(w))) / widths
        curl = one - other
        is_curl = (abs(curl) > share * (abs(one) + abs(other)) + rounding).all()
        is_curl &= abs(curl[1] - curl[0]) <= STEADY * abs(curl[1])
        curls.append((float(one[1]), float(other[1])) if is_curl else None)
    witnesses = [c for c in curls if c is not None]
    return witnesses[0] if witnesses and 2 * len(witnesses) > len(curls) else None
