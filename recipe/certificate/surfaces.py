"""Search for surfaces that no chain crosses, where a D of full rank elsewhere vanishes or H is infinite, and for poles.

Lines through the bulk of the law meet such a surface where the least eigenvalue of D is 0, or |H| has a peak without
end. A point of a surface is part of a wall if Feller's integral of exp(H/T)/D_nn diverges along the normal n from both
sides, or H itself where no noise acts along n, and Q does not carry chains across. A pole, which may be a single point,
is met by a search downhill.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from sympy import Symbol

from .ends import lowest, may_make_infinite
from .explicit import SEED, Explicit

MOST = 8  # most coordinates for a search
SEGMENTS, GRID = 12, 400
REACH = 3.0  # half the length of a line that is cut to the bulk, as sinh of it, in units of the bulk's spread
POINTS = 3  # least number of points of a surface; all must be walls
TINY = 1e-10  # least eigenvalue that counts as 0, relative to its median in the bulk
NEAR = 1e-4  # distance from the surface at which its normal is taken
DISTANCES = np.array([1e-3, 1e-2, 1e-1])  # distances at which the growth towards it is taken
STARTS, TRIES, HALVINGS = 64, 12, 32  # of the search for poles: of each start, and of the lengths of its steps
DEEPEST = 8  # number of its ends that are looked at
ROUND = 256  # number of directions around a point
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
        return f"a surface through {at}, where {reason(self.is_of_noise)}"


def reason(is_of_noise: bool) -> str:
    """The reason for a wall, in words."""
    return "D vanishes" if is_of_noise else "H is infinite"


def wall(explicit: Explicit) -> Wall | None:
    """A surface that no chain crosses; None if none is found."""
    may_vanish, may_be_infinite = bool(explicit.D.free_symbols), bool(may_make_infinite(explicit.H))
    if not (1 < explicit.size <= MOST and (may_vanish or may_be_infinite)):
        return None
    if any(b.domain.is_discrete for b in explicit.blocks):
        return None
    fields = _Fields(explicit)
    segments = fields.segments()
    searches: list[tuple[bool, Callable, list[Point]]] = []
    least = explicit.least_eigenvalues(explicit.bulk)
    usual = float(np.median(least))
    if may_vanish and np.quantile(least, 0.1) > TINY * usual:
        zeros = [c for a, b in segments for c in _zeros(fields, a, b, usual)]
        searches.append((True, fields.root, zeros))
    if may_be_infinite:
        searches.append((False, fields.energy, [c for a, b in segments for c in _peaks(fields.energy, a, b)]))
    for is_of_noise, field, points in searches:
        if len(points) >= POINTS and all(fields.is_wall(c, field) for c in points):
            return Wall(dict(zip(explicit.coordinates, map(float, points[0][0]), strict=True)), is_of_noise)
    return None


def pole(explicit: Explicit) -> dict[Symbol, float] | None:
    """A point towards which exp(-H/T) grows so fast that its integral is infinite.

    Across a set of codimension k that passes through the point, it grows as 1/distance^k or faster.
    """
    if explicit.size > MOST or not may_make_infinite(explicit.H) or any(b.domain.is_discrete for b in explicit.blocks):
        return None
    fields = _Fields(explicit)
    for c in fields.lowest().T:
        if fields.is_pole(c):
            return dict(zip(explicit.coordinates, (round(float(x), 9) + 0.0 for x in c), strict=True))
    return None


def _zeros(fields: "_Fields", a: np.ndarray, b: np.ndarray, usual: float) -> list[Point]:
    """The points between a and b, (size,), at which the least eigenvalue of D is 0 relative to `usual`."""

    def least(t: np.ndarray) -> np.ndarray:
        return fields.explicit.least_eigenvalues(a[:, None] + (b - a)[:, None] * t)

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
        self.explicit = explicit
        self.size = explicit.size
        self.H, self.D, self.curl = map(explicit.function, ([explicit.H], explicit.D, explicit.curl))
        self.spread = float(np.linalg.norm(explicit.bulk.std(axis=1)))
        self.unit = min(1.0, self.spread)  # of distances from a surface
        self.draw = np.random.default_rng(SEED)

    def segments(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The ends of lines through pairs of states, where they leave the bulk."""
        states = self.explicit.bulk.T
        top = self.energy(states.T).max()
        scan = self.spread * np.sinh(np.linspace(-REACH, REACH, GRID))
        ends = []
        for a, b in zip(states[:SEGMENTS], states[-SEGMENTS:], strict=True):
            distance = np.linalg.norm(b - a)
            line = a[:, None] + (b - a)[:, None] / distance * np.union1d(scan, [0.0, distance])
            inside = line[:, self.energy(line) <= top]
            ends.append((inside[:, 0], inside[:, -1]))
        return ends

    def root(self, z: np.ndarray) -> np.ndarray:
        """The root of the least eigenvalue of D at each state, `(N,)`."""
        return np.sqrt(np.maximum(self.explicit.least_eigenvalues(z), 0.0))

    def energy(self, z: np.ndarray) -> np.ndarray:
        """H/T at each state, `(N,)`; infinite outside of the domains, and where H is no number."""
        H = np.nan_to_num(self.H(z)[0] / self.explicit.temperature, nan=np.inf, neginf=-1e300)
        return np.where(self.explicit.contains(z), H, np.inf)

    def lowest(self) -> np.ndarray:
        """The deepest ends, (size, DEEPEST), of a search downhill from states of the bulk, by steps that shrink."""
        z = self.explicit.bulk[:, :STARTS]
        steps = np.full(z.shape[1], self.spread)
        H = self.energy(z)
        for _ in range(4 * HALVINGS):
            u = self.draw.normal(size=(self.size, TRIES, len(H)))
            moved = z[:, None] + steps * u / np.linalg.norm(u, axis=0)
            there = self.energy(moved.reshape(self.size, -1)).reshape(TRIES, -1)
            best = there.argmin(0), np.arange(len(H))
            is_lower = there[best] < H
            z, H = np.where(is_lower, moved[:, *best], z), np.where(is_lower, there[best], H)
            steps = np.where(is_lower, steps, steps / 2)
        return z[:, np.argsort(H)[:DEEPEST]]

    def is_pole(self, c: np.ndarray) -> bool:
        """Whether the mass of shells around a point, in the space across its set, does not shrink with their radius."""
        far, near = 1e-2 * self.unit, 1e-4 * self.unit
        u = self.draw.normal(size=(self.size, ROUND))
        u /= np.linalg.norm(u, axis=0)
        beside = c[:, None] + near * u
        if not self.explicit.contains(c[:, None] + far * u).all():
            return False  # an end of a domain
        shifts = 1e-3 * near * np.eye(self.size)
        with np.errstate(invalid="ignore"):
            pairs = [(self.energy(beside + e[:, None]), self.energy(beside - e[:, None])) for e in shifts]
            slopes = np.nan_to_num([there - here for there, here in pairs])
        slopes /= np.maximum(np.linalg.norm(slopes, axis=0), 1e-300)
        across, sizes, _ = np.linalg.svd(slopes, full_matrices=False)
        across = across[:, sizes > 0.1 * sizes[0]]
        v = self.draw.normal(size=(across.shape[1], ROUND))
        v = across @ (v / np.linalg.norm(v, axis=0))
        outer, inner = (np.logaddexp.reduce(-self.energy(c[:, None] + r * v)) for r in (far, near))
        return bool(inner - outer > (across.shape[1] - 0.02) * np.log(far / near))

    def normal(self, point: Point, field: Callable) -> np.ndarray:
        """The normal of the surface at a point: the direction in which a field grows fastest beside it."""
        c, across = point
        beside = (c + NEAR * self.unit * across / np.linalg.norm(across))[:, None]
        shifts = NEAR * self.unit * 1e-2 * np.eye(self.size)
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
        return all(self.diverges(at + side * n[:, None] * DISTANCES * self.unit, n) for side in (1.0, -1.0))

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
