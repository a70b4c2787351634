"""The Laplace approximation: the mode of U, and the normal law by the curvature over a rise of U by T/2."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch

from recipe.errors import RecipeError

from ..target.control_variates import find_mode
from ..target.potential import differentiated

SMALL = 300  # sites, at most, of a dense curvature
AT_ONCE = 4096  # points at which U is evaluated together; fewer of many sites
FARTHEST = 2.0**60  # the greatest distance at which a rise of U is looked for
ROUNDS = (10, 100, 2000)  # iterations of L-BFGS
AWAY = 1e9  # size of a point over 1 plus that of the start, beyond which there is no mode
BISECTIONS = 8
FLATTEST = 1e-6  # the least curvature along a direction, in units of the curvature along the coordinates

NO_MODE = "Give U a finite minimum, with a prior, say; or give the step size and the parameters yourself."


@dataclass(frozen=True)
class EnergyAt:
    """U as a differentiable function of points `(n, *shape)`, with values `(n,)`; `where` begins error messages."""

    value: Callable[[torch.Tensor], torch.Tensor]
    where: str

    def at(self, points: torch.Tensor) -> torch.Tensor:
        """U of the points, `(n,)`, some at a time; infinite where U is not a number."""
        size = max(1, AT_ONCE // max(1, points[0].numel() // SMALL))
        with torch.no_grad():
            U = torch.cat([self.value(part) for part in points.split(size)])
        return torch.where(U.isnan(), torch.inf, U)

    def gradient(self, points: torch.Tensor) -> torch.Tensor:
        """grad U of the points, `(n, *shape)`."""
        return torch.cat([differentiated(self.value, part).slope for part in points.split(AT_ONCE)])

    def mode(self, start: torch.Tensor) -> torch.Tensor:
        """The mode, the minimum of U, by L-BFGS from a point. Raises RecipeError where U has no finite minimum."""
        mode = start
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "find_mode: ", RuntimeWarning)
            for iterations in ROUNDS:
                try:
                    mode = find_mode(lambda theta: self.value(theta[None])[0], mode, steps=iterations)
                except RecipeError as error:
                    what = f"U has no finite mode that L-BFGS finds from the start ({error.what})"
                    raise RecipeError(self.where, what, do=NO_MODE) from error
                if float(mode.abs().max()) > AWAY * (1 + float(start.abs().max())):
                    what = f"U falls on its way to infinity: L-BFGS is at {float(mode.abs().max()):.1e}, no finite mode"
                    raise RecipeError(self.where, what, do=NO_MODE)
        return mode

    def rises(self, mode: torch.Tensor, directions: torch.Tensor, rise: float) -> torch.Tensor:
        """The distance from the mode along each direction `(n, *shape)` at which U has risen by `rise`, `(n,)`.

        Returns the mean of both sides, to a few per cent. Raises RecipeError where U never rises on a side.
        """
        both = torch.cat([directions, -directions])
        shape = (-1, *(1,) * mode.dim())
        least = self.at(mode[None])[0]

        def is_beyond(distance: torch.Tensor) -> torch.Tensor:
            return self.at(mode + distance.reshape(shape) * both) - least >= rise

        far = torch.ones(len(both), dtype=mode.dtype, device=mode.device)
        while not (beyond := is_beyond(far)).all():
            far = torch.where(beyond, far, 2 * far)
            if far.max() > FARTHEST:
                what = "U does not rise on a side of the point where L-BFGS ends: it has no finite mode there"
                raise RecipeError(self.where, what, do=NO_MODE)
        near = far / 2
        while (beyond := is_beyond(near)).any() and near.min() > 1 / FARTHEST:
            far = torch.where(beyond, near, far)
            near = torch.where(beyond, near / 2, near)
        for _ in range(BISECTIONS):
            middle = (near * far).sqrt()
            beyond = is_beyond(middle)
            far = torch.where(beyond, middle, far)
            near = torch.where(beyond, near, middle)
        return far.reshape(2, -1).mean(0)

    def curvature(self, mode: torch.Tensor, distances: torch.Tensor) -> torch.Tensor:
        """The second derivatives of U, `(sites, sites)`, in units of `distances`, by differences over these."""
        sites = distances.numel()
        moves = torch.diag(distances).reshape(sites, *mode.shape)
        slopes = self.gradient(mode + moves) - self.gradient(mode - moves)
        scaled = slopes.reshape(sites, sites) / 2 * distances
        return (scaled + scaled.T) / 2


@dataclass(frozen=True)
class Laplace:
    """The mode, U there, and a normal law around the mode, of covariance root root^T.

    `root`: `(sites, sites)`, or `(sites,)`, standard deviations.
    """

    mode: torch.Tensor
    value: float
    root: torch.Tensor

    def sds(self) -> torch.Tensor:
        """The standard deviation of each site, of the shape of the mode."""
        sds = self.root if self.root.dim() == 1 else self.root.square().sum(1).sqrt()
        return sds.reshape(self.mode.shape)

    def widest(self, weights: torch.Tensor) -> float:
        """The greatest variance along any direction, of sites multiplied by `weights`."""
        w = weights.expand(self.mode.shape).flatten()
        if self.root.dim() == 1:
            return float((w * self.root).square().max())
        return float(torch.linalg.matrix_norm(w[:, None] * self.root, 2) ** 2)

    def draws(self, chains: int, seed: int) -> torch.Tensor:
        """Draws of the normal law, `(chains, *shape)`."""
        generator = torch.Generator().manual_seed(seed)
        z = torch.randn(chains, self.mode.numel(), generator=generator, dtype=self.mode.dtype).to(self.mode)
        moves = z * self.root if self.root.dim() == 1 else z @ self.root.T
        return self.mode + moves.reshape(chains, *self.mode.shape)


def laplace_approximation(energy: EnergyAt, start: torch.Tensor, temperature: float) -> Laplace:
    """The mode that L-BFGS finds from a point, and the normal law there, by the curvature over a rise of U by T/2.

    With more than 300 sites the curvature is diagonal. Raises RecipeError where U has no finite mode.

    >>> bowl = EnergyAt(lambda x: ((x - 3)**2 / torch.tensor([8.0, 2.0])).sum(1), "tune")
    >>> near = laplace_approximation(bowl, torch.zeros(2), 1.0)
    >>> near.mode.round(decimals=1), near.sds().round(decimals=1)
    (tensor([3., 3.]), tensor([2., 1.]))
    """
    mode = energy.mode(start)
    sites = mode.numel()
    if sites <= AT_ONCE:
        axes = torch.eye(sites, dtype=mode.dtype, device=mode.device).reshape(sites, *mode.shape)
        distances = energy.rises(mode, axes, temperature / 2)
    else:  # one distance for all
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, mode.shape, generator=generator).to(mode) * 2 - 1
        distances = energy.rises(mode, signs[None], temperature * sites / 2).expand(sites)
    way = mode - start
    if float(way.norm()) > 0:
        energy.rises(mode, (way / way.norm())[None], temperature / 2)
    value = float(energy.at(mode[None])[0])
    if sites > SMALL:
        return Laplace(mode, value, distances)
    levels, axes = torch.linalg.eigh(energy.curvature(mode, distances) / temperature)
    principal = (distances[:, None] * axes).T.reshape(sites, *mode.shape)
    widths = energy.rises(mode, principal, temperature / 2)
    curved = levels > FLATTEST
    widths = torch.where(curved, levels.clamp(min=FLATTEST).rsqrt().minimum(2 * widths), widths)
    return Laplace(mode, value, distances[:, None] * axes * widths)
