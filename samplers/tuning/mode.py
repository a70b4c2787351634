"""Whether U has a finite mode: asked where pilot chains do not meet, of energies whose law may have no integral."""

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
        """A distance from the mode along each direction `(n, *shape)` at which U has risen by `rise`, to a factor 2.

        The greater of both sides, `(n,)`. Raises RecipeError where U never rises on a side.
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
        while (beyond := is_beyond(far / 2)).any() and far.min() > 1 / FARTHEST:
            far = torch.where(beyond, far / 2, far)
        return far.reshape(2, -1).amax(0)


def check_mode(energy: EnergyAt, start: torch.Tensor, temperature: float) -> None:
    """Refuse U without a finite mode that L-BFGS finds from a point, or that does not rise around the mode by T/2.

    Of at most 300 sites, the rise is looked for along each, along the way from the start, and along the principal
    directions of the curvature over such a rise.

    >>> check_mode(EnergyAt(lambda x: ((x - 3)**2).sum(1), "tune"), torch.zeros(2), 1.0)
    """
    mode = energy.mode(start)
    sites = mode.numel()
    way = mode - start
    if float(way.norm()) > 0:
        energy.rises(mode, (way / way.norm())[None], temperature / 2)
    if sites > SMALL:
        return
    axes = torch.eye(sites, dtype=mode.dtype, device=mode.device).reshape(sites, *mode.shape)
    distances = energy.rises(mode, axes, temperature / 2)
    moves = axes * distances.reshape(-1, *(1,) * mode.dim())
    slopes = (energy.gradient(mode + moves) - energy.gradient(mode - moves)).reshape(sites, sites) * distances
    principal = torch.linalg.eigh(slopes + slopes.T).eigenvectors
    energy.rises(mode, (distances[:, None] * principal).T.reshape(sites, *mode.shape), temperature / 2)
