"""Search for surfaces that no chain crosses, where a D of full rank elsewhere vanishes or H is infinite, and for poles.

Random segments meet such a surface where the least eigenvalue of D is 0, or |H| has a peak without end. A point of a
surface is part of a wall if Feller's integral of exp(H/T)/D_nn diverges along the normal n from both sides, or H itself
where no noise acts along n, and Q does not carry chains across.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from sympy import Symbol

from .ends import lowest, may_make_infinite
from .explicit import SEED, Explicit, draws_inside

MOST = 8  # most coordinates for a search
SEGMENTS, GRID = 12, 400
POINTS = 3  # least number of points of a surface; all must be walls
TINY = 1e-10  # least eigenvalue that counts as 0, relative to its median at random states
NEAR = 1e-4  # distance from the surface at which its normal is taken
DISTANCES = np.array([1e-3, 1e-2, 1e-1])  # distances at which the growth towards it is taken
Point = tuple[np.ndarray, np.ndarray]  # a point of a surface, (size,), and the direction of the segment that met it


@dataclass(frozen=True)
class Wall:
    """A point of a surface that no chain crosses, by coordinate, and the reason: its noise, or its energy."""

    at: dict[Symbol, float]
    is_of_noise: bool

    @property
    def in_words(self) -> str:
        """The point and the reason."""
        at = ", ".join(f"{z} = {x:.2g}" for z, x in self.at.items())
        return f"a surface through {at}, where {'D vanishes' if self.is_of_noise else 'H is infinite'}"


def wall(explicit: Explicit) -> Wall | None:
    """A surface that no chain crosses; None if none is found."""
    may_vanish, may_be_infinite = bool(explicit.D.free_symbols), bool(may_make_infinite(explicit.H))
    if not (1 < explicit.size <= MOST and (may_vanish or may_be_infinite)):
        return None
    if any(b.domain.is_discrete for b in explicit.blocks):
        return None
    fields = _Fields(explicit)
    states = np.array(draws_inside(explicit.blocks, 2 * SEGMENTS, SEED))
    states[::2] *= [1.0 if b.domain.is_compact else 1 / 3 for b in explicit.blocks]  # from the middle outwards
    segments = [*zip(states[::2], states[1::2], strict=True)]
    searches: list[tuple[bool, Callable, list[Point]]] = []
    usual = float(np.median(fields.least(states.T)))
    if may_vanish and fields.least(states.T).min() > TINY * usual:
        zeros = [c for a, b in segments for c in _zeros(fields, a, b, usual)]
        searches.append((True, fields.root, zeros))
    if may_be_infinite:
        searches.append((False, fields.energy, [c for a, b in segments for c in _peaks(fields.energy, a, b)]))
    for is_of_noise, field, points in searches:
        if len(points) >= POINTS and all(fields.is_wall(c, field) for c in points):
            return Wall(dict(zip(explicit.coordinates, map(float, points[0][0]), strict=True)), is_of_noise)
    return None


def pole(explicit: Explicit) -> dict[Symbol, float] | None:
    """A point of a surface towards which exp(-H/T) grows as 1/distance or faster: its integral is infinite."""
    if explicit.size > MOST or not may_make_infinite(explicit.H) or any(b.domain.is_discrete for b in explicit.blocks):
        return None
    fields = _Fields(explicit)
    states = np.array(draws_inside(explicit.blocks, 2 * SEGMENTS, SEED))

    def falling(z: np.ndarray) -> np.ndarray:
        return -fields.energy(z)

    for a, b in zip(states[::2], states[1::2], strict=True):
        for point in _peaks(falling, a, b):
            n = fields.normal(point, falling)
            near, far = (falling(point[0][:, None] + n[:, None] * d)[0] for d in DISTANCES[:2])
            if near - far > 0.95 * np.log(10):
                return dict(zip(explicit.coordinates, map(float, point[0]), strict=True))
    return None


def _zeros(fields: "_Fields", a: np.ndarray, b: np.ndarray, usual: float) -> list[Point]:
    """The points between a and b, (size,), at which the least eigenvalue of D is 0 relative to `usual`."""

    def least(t: np.ndarray) -> np.ndarray:
        return fields.least(a[:, None] + (b - a)[:, None] * t)

    points = _dips(least, below=0.1 * usual)
    return [(a + (b - a) * at, b - a) for at in points[least(points) < TINY * usual]]


def _peaks(field: Callable, a: np.ndarray, b: np.ndarray) -> list[Point]:
    """The points between a and b, (size,), at which a field grows without end."""

    def energy(t: np.ndarray) -> np.ndarray:
        return field(a[:, None] + (b - a)[:, None] * t)

    points = _dips(lambda t: -energy(t))
    at, near, far = (np.minimum(energy(points + d), energy(points - d)) for d in (0.0, 1e-5, 1e-3))
    with np.errstate(all="ignore"):
        is_infinite = at - near > np.maximum(near - far, 1e-3)
    return [(a + (b - a) * at, b - a) for at in points[is_infinite]]


def _dips(depth: Callable, below: float = np.inf) -> np.ndarray:
    """Lower ends of the dips of a function on [0, 1]: beside a zero, where the drift may have a pole."""
    t = np.linspace(0.0, 1.0, GRID)
    values = np.nan_to_num(depth(t), nan=np.inf)
    is_dip = (values[1:-1] <= values[:-2]) & (values[1:-1] < values[2:]) & (values[1:-1] < below)
    dips = 1 + np.flatnonzero(is_dip)
    return lowest(depth, t[dips - 1], t[dips + 1], steps=12)


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

    def root(self, z: np.ndarray) -> np.ndarray:
        """The root of the least eigenvalue of D at each state, `(N,)`."""
        return np.sqrt(np.maximum(self.least(z), 0.0))

    def energy(self, z: np.ndarray) -> np.ndarray:
        """H/T at each state, `(N,)`."""
        return self.H(z)[0] / self.temperature

    def normal(self, point: Point, field: Callable) -> np.ndarray:
        """The normal of the surface at a point: the direction in which a field grows fastest beside it."""
        c, across = point
        beside = (c + NEAR * across / np.linalg.norm(across))[:, None]
        shifts = NEAR * 1e-2 * np.eye(self.size)
        slope = field(beside + shifts) - field(beside - shifts)
        slope[abs(slope) < 1e-2 * abs(slope).max()] = 0.0  # of what else the field reads
        return slope / max(float(np.linalg.norm(slope)), 1e-300)

    def is_wall(self, point: Point, field: Callable) -> bool:
        """Whether no chain crosses the surface at a point."""
        n = self.normal(point, field)
        at = point[0][:, None]
        curl = self.curl(at)[:, 0]
        if not abs(curl @ n) <= 1e-2 * np.linalg.norm(curl):
            return False
        return all(self.diverges(at + side * n[:, None] * DISTANCES, n) for side in (1.0, -1.0))

    def diverges(self, z: np.ndarray, n: np.ndarray) -> bool:
        """Whether exp(H/T)/D_nn grows towards the surface as 1/distance or faster, by points z, (size, 3).

        Where D_nn = 0, motion at a finite energy crosses unless H grows without end.
        """
        D = np.einsum("i,ijk,j->k", n, self.D(z).reshape(self.size, self.size, -1), n)
        H = self.energy(z)
        with np.errstate(all="ignore"):
            if (abs(D) < TINY * (H[0] - H[1])).all():
                return bool(H[0] - H[1] > 0.5 * (H[1] - H[2]) > 0)
            L = H - np.log(D)
        return bool(L[0] - L[1] > 0.95 * np.log(10))
