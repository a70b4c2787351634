"""Search for surfaces that no chain crosses, where a D of full rank elsewhere vanishes or H is infinite, and for poles.

Lines through the bulk of the law meet such a surface where the least eigenvalue of D is 0, or |H| has a peak without
end. A point of a surface is part of a wall if Feller's integral of exp(H/T)/D_nn diverges along the normal n from both
sides, or H itself where no noise acts along n, and Q does not carry chains across. A pole, which may be a single point,
is met by a search downhill.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations

import numpy as np
from sympy import Expr, Rational, Symbol, default_sort_key, expand_mul

from ..algebra import entries, factors, vanishes
from ..declared import Block
from .bertrand import converges
from .ends import lowest, may_make_infinite
from .explicit import SEED, Explicit

MOST = 8  # most coordinates for a search
SEGMENTS, GRID = 12, 400
SCAN = (1 - np.cos(np.linspace(0.0, np.pi, GRID))) / 2  # points of a line from 0 to 1, finer towards its ends
REACH = 3.0  # half the length of a line that is cut to the bulk, as sinh of it, in units of the bulk's spread
BESIDE = 0.02  # distance of the sides of a surface that lines may join
CROWD, CORNERS = 12, 24  # numbers of states that are joined by lines: of any, and of those that are far apart
POINTS = 3  # least number of points of a surface; all must be walls
TINY = 1e-10  # least eigenvalue that counts as 0, relative to its median in the bulk
SLANT = 0.03  # greatest angle by which a normal by differences is off
NEAR = 1e-4  # distance from the surface at which its normal is taken
DISTANCES = np.array([1e-3, 1e-2, 1e-1])  # distances at which the growth of 1/D towards it is taken
OF_ENERGY = 0.1  # factor of the distances for the growth of H, whose normal need not be as accurate
STARTS, TRIES, HALVINGS = 64, 12, 32  # of the search for poles: of each start, and of the lengths of its steps
DEEPEST = 8  # number of its ends that are looked at
RAYS = 3  # number of rays from a pole along which the order of H is taken
ROUND = 256  # number of directions around a point
Point = tuple[np.ndarray, np.ndarray]  # a point of a surface, (size,), and the direction of the segment that met it
Met = tuple[np.ndarray, np.ndarray]  # points that lines meet, (size, N), line after line, and the number of the line


@dataclass(frozen=True)
class Lines:
    """Lines from points a by a way b - a, both (size, number)."""

    start: np.ndarray
    way: np.ndarray

    def __call__(self, t: np.ndarray, k: np.ndarray) -> np.ndarray:
        """The points at t, from 0 to 1, of the lines of number k, (size, N)."""
        return self.start[:, k] + self.way[:, k] * t

    def scanned(self, depth: Callable) -> np.ndarray:
        """The values of a function of t and k at all points of SCAN, (number, GRID)."""
        number = self.way.shape[1]
        return depth(np.tile(SCAN, number), np.repeat(np.arange(number), GRID)).reshape(number, GRID)


@dataclass(frozen=True)
class Wall:
    """A point of a surface that no chain crosses, by coordinate, and the reason: its noise, its energy, or its curl."""

    at: dict[Symbol, float]
    of: str  # "D", "H" or "Q"

    @property
    def in_words(self) -> str:
        """The point and the reason."""
        at = ", ".join(f"{z} = {x:.2g}" for z, x in self.at.items())
        return f"a surface through {at}, where {REASONS[self.of]}"


REASONS = {"D": "D vanishes", "H": "H is infinite", "Q": "nothing moves a chain across"}


def wall(explicit: Explicit, jumping: Collection[Block] = ()) -> Wall | None:
    """A surface that no chain crosses; None if none is found. `jumping`: blocks that jumps carry across."""
    if not 1 < explicit.size <= MOST or any(b.domain.is_discrete for b in explicit.blocks):
        return None
    may_vanish, may_be_infinite = bool(explicit.D.free_symbols), bool(may_make_infinite(explicit.H))
    still = _still_factors(explicit)
    if not (may_vanish or may_be_infinite or still):
        return None
    fields = _Fields(explicit, jumping)
    least = explicit.least_eigenvalues(explicit.bulk)
    usual = float(np.median(least))
    searches: list[tuple[str, Callable, Callable, Callable]] = []
    if may_vanish and np.quantile(least, 0.1) > TINY * usual:
        searches.append(("D", fields.root, partial(_zeros, fields, usual), fields.is_wall))
    if may_be_infinite:
        searches.append(("H", fields.energy, partial(_peaks, fields.energy), fields.is_wall))
    speeds = [_values(explicit, factor) for factor in still]
    searches += [("Q", speed, partial(_roots, speed), fields.is_still) for speed in speeds]
    return next(filter(None, (fields.closed(*search) for search in searches)), None)


def meeting(explicit: Explicit, jumping: Collection[Block] = ()) -> str:
    """The line x = y of two coordinates that no chain crosses, in words; empty if there is none.

    D along x - y vanishes there as (x - y)^2 or faster, so that exp(H)/D of a finite H has no finite integral up to it.
    """
    if may_make_infinite(explicit.H):
        return ""
    for (i, x), (j, y) in combinations(enumerate(explicit.coordinates), 2):
        D = explicit.D[i, i] + explicit.D[j, j] - 2 * explicit.D[i, j]
        still = (D, D.diff(x), D.diff(y), explicit.curl[i] - explicit.curl[j])
        jumps = {explicit.blocks[i], explicit.blocks[j]} & {*jumping}
        if not jumps and {x, y} <= D.free_symbols and all(vanishes(e.xreplace({y: x})) for e in still):
            return f"{x} = {y}, where {REASONS['D']}"
    return ""


def _still_factors(explicit: Explicit) -> list[Expr]:
    """The factors of Q in the rows without noise: where one vanishes, the motion across may vanish."""
    still = {i for i in range(explicit.size) if not any(explicit.D.row(i))}
    couplings = {e for (i, _), e in entries(explicit.Q).items() if i in still and e.free_symbols}
    varying = {x for e in couplings for x in factors(e) if x.free_symbols and not x.is_nonzero}
    return sorted(varying, key=default_sort_key)


def _values(explicit: Explicit, e: Expr) -> Callable:
    """A formula as a function of states, (size, N) to (N,)."""
    function = explicit.function([e])
    return lambda z: function(z)[0]


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


def _zeros(fields: "_Fields", usual: float, lines: Lines) -> Met:
    """The points of lines at which the least eigenvalue of D is 0 relative to `usual`."""

    def least(t: np.ndarray, k: np.ndarray) -> np.ndarray:
        return fields.explicit.least_eigenvalues(lines(t, k))

    at, k = _dips(lines, least, below=0.1 * usual)
    is_zero = least(at, k) < TINY * usual
    return lines(at[is_zero], k[is_zero]), k[is_zero]


def _roots(value: Callable, lines: Lines) -> Met:
    """The points of lines at which a function changes its sign."""
    signs = np.sign(lines.scanned(lambda t, k: value(lines(t, k))))
    k, before = np.nonzero(signs[:, :-1] * signs[:, 1:] < 0)
    at = lowest(lambda t: abs(value(lines(t, np.resize(k, t.shape)))), SCAN[before], SCAN[before + 1])
    return lines(at, k), k


def _peaks(field: Callable, lines: Lines) -> Met:
    """The points of lines at which a field grows without end."""
    at, k = _dips(lines, lambda t, k: -field(lines(t, k)))
    top, near, far = (np.minimum(field(lines(at + d, k)), field(lines(at - d, k))) for d in (0.0, 1e-5, 1e-3))
    with np.errstate(all="ignore"):
        is_infinite = top - near > np.maximum(near - far, 1e-3)
    return lines(at[is_infinite], k[is_infinite]), k[is_infinite]


def _dips(lines: Lines, depth: Callable, below: float = np.inf) -> tuple[np.ndarray, np.ndarray]:
    """Lower ends t of the dips of a function of t and k, beside a zero, where the drift may have a pole; their k."""
    values = np.nan_to_num(lines.scanned(depth), nan=np.inf)
    inner = values[:, 1:-1]
    k, before = np.nonzero((inner <= values[:, :-2]) & (inner < values[:, 2:]) & (inner < below))
    return lowest(lambda t: depth(t, np.resize(k, t.shape)), SCAN[before], SCAN[before + 2], steps=12), k


class _Fields:
    """H, D and the drift of Q, as functions of states z (size, N)."""

    def __init__(self, explicit: Explicit, jumping: Collection[Block] = ()):
        self.explicit = explicit
        self.jumps = np.array([b in jumping for b in explicit.blocks])
        self.size = explicit.size
        self.D = explicit.D_at
        self.H, self.curl = map(explicit.function, ([explicit.H], explicit.curl))
        self.spread = float(np.linalg.norm(explicit.bulk.std(axis=1)))
        self.unit = min(1.0, self.spread)  # of distances from a surface
        self.draw = np.random.default_rng(SEED)

    def closed(self, of: str, field: Callable, met: Callable, is_wall: Callable) -> Wall | None:
        """The wall at the points of a field that lines meet; None if chains cross it at a point, or go around.

        `met`: the points of lines; `is_wall`: of a point and a field, whether chains stay on their side.
        """
        points = [(c, self.segments.way[:, k]) for c, k in zip(*(array.T for array in met(self.segments)), strict=True)]
        if len(points) < POINTS or not all(is_wall(c, field) for c in points):
            return None
        sides = [
            (c - shift, c + shift) for c, shift in ((p[0], BESIDE * self.unit * self.normal(p, field)) for p in points)
        ]
        if self.are_joined(sides[:: max(1, len(sides) // POINTS)], met):
            return None
        return Wall(dict(zip(self.explicit.coordinates, map(float, points[0][0]), strict=True)), of)

    def are_joined(self, sides: list[tuple[np.ndarray, np.ndarray]], met: Callable) -> bool:
        """Whether both sides of a surface are joined at one of its points by lines on which nothing is met."""
        states = np.stack([*(z for pair in sides for z in pair), *self.crowd], axis=1)
        group = np.arange(states.shape[1])
        for i in range(len(group)):
            ends = i + np.flatnonzero(group[i:] != group[i])
            start = np.repeat(states[:, i : i + 1], len(ends), axis=1)
            _, met_by = met(Lines(start, states[:, ends] - start))
            for j in np.delete(ends, np.unique(met_by)):
                group[group == group[j]] = group[i]
            if any(group[2 * k] == group[2 * k + 1] for k in range(len(sides))):
                return True
        return False

    @cached_property
    def crowd(self) -> np.ndarray:
        """States of the bulk, (N, size): any, and those that are farthest from the ones before, in its corners."""
        states = self.explicit.bulk.T
        scaled = states / np.maximum(states.std(axis=0), 1e-300)
        chosen = list(range(min(CROWD, len(states))))
        distance = np.min([np.linalg.norm(scaled - scaled[k], axis=1) for k in chosen], axis=0)
        for _ in range(CORNERS):
            chosen.append(int(distance.argmax()))
            distance = np.minimum(distance, np.linalg.norm(scaled - scaled[chosen[-1]], axis=1))
        return states[chosen]

    @cached_property
    def segments(self) -> Lines:
        """Lines through pairs of states, to where they leave the bulk."""
        states = self.explicit.bulk.T
        top = self.energy(states.T).max()
        pairs = zip(states[:SEGMENTS], states[-SEGMENTS:], strict=True)
        scan = self.spread * np.sinh(np.linspace(-REACH, REACH, GRID))
        ends = []
        for a, b in ((a, b) for a, b in pairs if (a != b).any()):
            distance = np.linalg.norm(b - a)
            line = a[:, None] + (b - a)[:, None] / distance * np.union1d(scan, [0.0, distance])
            inside = line[:, self.energy(line) <= top]
            ends.append(inside[:, [0, -1]])
        low, high = np.stack(ends, axis=-1).swapaxes(0, 1)
        return Lines(low, high - low)

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
            proposals = z[:, None] + steps * u / np.linalg.norm(u, axis=0)
            energies = self.energy(proposals.reshape(self.size, -1)).reshape(TRIES, -1)
            best = energies.argmin(0), np.arange(len(H))
            is_lower = energies[best] < H
            z, H = np.where(is_lower, proposals[:, *best], z), np.where(is_lower, energies[best], H)
            steps = np.where(is_lower, steps, steps / 2)
        return z[:, np.argsort(H)[:DEEPEST]]

    def is_pole(self, c: np.ndarray) -> bool:
        """Whether the mass of shells around a point, in the space across its set, does not shrink with their radius."""
        far, near = 1e-2 * self.unit, 1e-4 * self.unit
        u = self.draw.normal(size=(self.size, ROUND))
        u /= np.linalg.norm(u, axis=0)
        shell = c[:, None] + near * u
        if not self.explicit.contains(c[:, None] + far * u).all():
            return False  # an end of a domain
        shifts = 1e-3 * near * np.eye(self.size)
        with np.errstate(invalid="ignore"):
            pairs = [(self.energy(shell + e[:, None]), self.energy(shell - e[:, None])) for e in shifts]
            slopes = np.nan_to_num([above - below for above, below in pairs])
        slopes /= np.maximum(np.linalg.norm(slopes, axis=0), 1e-300)
        across, sizes, _ = np.linalg.svd(slopes, full_matrices=False)
        across = across[:, sizes > 0.1 * sizes[0]]
        known = {self.integrates(c, u[:, k], across.shape[1]) for k in range(RAYS)}
        if len(known) == 1 and None not in known:
            return known == {False}
        v = self.draw.normal(size=(across.shape[1], ROUND))
        v = across @ (v / np.linalg.norm(v, axis=0))
        outer, inner = (np.logaddexp.reduce(-self.energy(c[:, None] + r * v)) for r in (far, near))
        return bool(inner - outer > (across.shape[1] - 0.02) * np.log(far / near))

    def integrates(self, c: np.ndarray, u: np.ndarray, codimension: int) -> bool | None:
        """Whether exp(-H/T) is integrable across a set of a codimension through a point, by its order along a ray u.

        The point is taken where H is infinite to nine decimals; None if it is not, or the order is not known.
        """
        at = np.round(c, 9) + 0.0
        if abs(self.H(at[:, None])[0, 0]) < np.inf:
            return None
        z = Symbol("z", positive=True)
        pairs = zip(self.explicit.coordinates, at, np.round(u, 3), strict=True)
        ray = {x: Rational(repr(float(a))) + Rational(repr(float(b))) / z for x, a, b in pairs}
        K = expand_mul(self.explicit.H.xreplace(ray) / Rational(repr(float(self.explicit.temperature))))
        return converges(K, z, codimension + 1)

    def normal(self, point: Point, field: Callable) -> np.ndarray:
        """The normal of the surface at a point: the direction in which a field grows fastest beside it.

        Where the field is the root of the least eigenvalue of D, the kernel of D has it.
        """
        c, across = point
        place = (c + NEAR * self.unit * across / np.linalg.norm(across))[:, None]
        shifts = NEAR * self.unit * 1e-2 * np.eye(self.size)
        slope = field(place + shifts) - field(place - shifts)
        slope[abs(slope) < 1e-2 * abs(slope).max()] = 0.0  # of what else the field reads
        n = slope / max(float(np.linalg.norm(slope)), 1e-300)
        return self.along_kernel(c[:, None], n) if field == self.root else n

    def is_wall(self, point: Point, field: Callable) -> bool:
        """Whether no chain crosses the surface at a point."""
        n = self.normal(point, field)
        at = point[0][:, None]
        curl = self.curl(at)[:, 0]
        if n[self.jumps].any() or not abs(curl @ n) <= 1e-2 * np.linalg.norm(curl):
            return False
        distances = self.unit * DISTANCES * (1.0 if field == self.root else OF_ENERGY)
        return all(self.diverges(at + side * n[:, None] * distances, n) for side in (1.0, -1.0))

    def along_kernel(self, at: np.ndarray, n: np.ndarray) -> np.ndarray:
        """The part of a normal in the kernel of D at a point, of length 1; the normal itself where these differ.

        A normal by differences is off by a small angle. A wall has D n = 0.
        """
        values, vectors = np.linalg.eigh(self.D(at).reshape(self.size, self.size))
        kernel = vectors[:, values < TINY * values[-1]]
        part = kernel @ (kernel.T @ n)
        length = float(np.linalg.norm(part))
        return part / length if length > np.cos(SLANT) else n

    def is_still(self, point: Point, field: Callable) -> bool:
        """Whether neither noise nor curl moves a chain across the surface at a point."""
        n = self.normal(point, field)
        at = point[0][:, None]
        curl, D = self.curl(at)[:, 0], self.D(at).reshape(self.size, self.size)
        is_moved = abs(curl @ n) > TINY * np.linalg.norm(curl) or n @ D @ n > TINY * abs(D).max()
        return not (n[self.jumps].any() or is_moved)

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
