"""Search for surfaces that no chain crosses: a D of full rank elsewhere vanishes there along the normal.

Random segments meet such a surface where the least eigenvalue of D is 0. A point of a surface is part of a wall if
Feller's integral of exp(H/T)/D_nn diverges along the normal n from both sides, and Q does not carry chains across.
"""

import numpy as np
from sympy import Symbol

from .ends import lowest
from .explicit import SEED, Explicit, draws_inside

MOST = 8  # most coordinates for a search
SEGMENTS, GRID = 12, 400
POINTS = 3  # least number of points of a surface; all must be walls
TINY = 1e-10  # least eigenvalue that counts as 0, relative to its median at random states
NEAR = 1e-4  # distance from the surface at which its normal is taken


def wall(explicit: Explicit) -> dict[Symbol, float] | None:
    """A point of a surface that no chain crosses, by coordinate; None if none is found."""
    looked_at = 1 < explicit.size <= MOST and bool(explicit.D.free_symbols)
    if not looked_at or any(b.domain.wraps or b.domain.is_discrete for b in explicit.blocks):
        return None
    fields = _Fields(explicit)
    states = np.array(draws_inside(explicit.blocks, 2 * SEGMENTS, SEED))
    usual = float(np.median(fields.least(states.T)))
    if not fields.least(states.T).min() > TINY * usual:
        return None
    points = [c for a, b in zip(states[::2], states[1::2], strict=True) for c in _zeros(fields, a, b, usual)]
    if len(points) < POINTS or not all(fields.is_wall(c) for c in points):
        return None
    return dict(zip(explicit.coordinates, map(float, points[0]), strict=True))


def _zeros(fields: "_Fields", a: np.ndarray, b: np.ndarray, usual: float) -> list[np.ndarray]:
    """The points between a and b, (size,), at which the least eigenvalue of D is 0 relative to `usual`."""

    def least(t: np.ndarray) -> np.ndarray:
        return fields.least(a[:, None] + (b - a)[:, None] * t)

    t = np.linspace(0.0, 1.0, GRID)
    values = least(t)
    is_dip = (values[1:-1] <= values[:-2]) & (values[1:-1] < values[2:]) & (values[1:-1] < 0.1 * usual)
    dips = 1 + np.flatnonzero(is_dip)
    points = lowest(least, t[dips - 1], t[dips + 1], steps=60)  # beside the zero, where the drift may have a pole
    return [a + (b - a) * at for at in points[least(points) < TINY * usual]]


class _Fields:
    """H, D and the drift of Q, as functions of states z (size, N)."""

    def __init__(self, explicit: Explicit):
        self.size = explicit.size
        self.temperature = explicit.temperature
        self.H, self.D, self.curl = map(explicit.function, ([explicit.H], explicit.D, explicit.curl))

    def least(self, z: np.ndarray) -> np.ndarray:
        """The least eigenvalue of D at each state, `(N,)`."""
        D = self.D(z).T.reshape(-1, self.size, self.size)
        return np.linalg.eigvalsh(np.nan_to_num(D, nan=1.0, posinf=1e300))[:, 0]

    def normal(self, c: np.ndarray) -> np.ndarray:
        """The normal of the surface at c: the direction in which the root of the least eigenvalue grows fastest."""
        beside = c + NEAR * np.ones(self.size) / np.sqrt(self.size)
        shifts = NEAR * 1e-2 * np.eye(self.size)
        rise = [self.least(np.stack([beside + s, beside - s], axis=1)) for s in shifts]
        slope = np.array([np.sqrt(max(up, 0.0)) - np.sqrt(max(down, 0.0)) for up, down in rise])
        return slope / max(float(np.linalg.norm(slope)), 1e-300)

    def is_wall(self, c: np.ndarray) -> bool:
        """Whether no chain crosses the surface at c."""
        n = self.normal(c)
        at = c[:, None]
        curl = self.curl(at)[:, 0]
        if not abs(curl @ n) <= 1e-2 * np.linalg.norm(curl):
            return False
        return all(self.diverges(at + side * n[:, None] * np.array([1e-3, 1e-2]), n) for side in (1.0, -1.0))

    def diverges(self, z: np.ndarray, n: np.ndarray) -> bool:
        """Whether exp(H/T)/D_nn grows towards the surface as 1/distance or faster, by two points z, (size, 2)."""
        D = np.einsum("i,ijk,j->k", n, self.D(z).reshape(self.size, self.size, 2), n)
        with np.errstate(all="ignore"):
            L = self.H(z)[0] / self.temperature - np.log(D)
        return bool(L[0] - L[1] > 0.95 * np.log(10))
