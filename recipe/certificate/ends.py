"""Feller's test along each coordinate: whether a chain reaches an end of its domain, infinity, or a wall inside.

With all else frozen, the point x = b is not reached iff the integral of the scale density exp(H/T)/D up to b diverges
(Feller 1952). In a coordinate y with b at infinity, x = b + e^-y or x = sinh y, the log of the integrand is
L(y) = H/T - log D + log |dx/dy|: the integral converges if L falls in proportion to y at large y.
A coordinate without noise of its own, moved by Q, reaches b if H is finite there.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from sympy import Abs, Add, Expr, Function, Max, Min, Pow, Symbol, atan, cos, cosh, exp, log, sin, sinh, tanh

from ..algebra import at_one_site
from ..algebra import entries as nonzero
from ..arrays import of_arrays
from ..declared import Block
from ..domains import Domain
from ..dynamics import Dynamics
from ..marginal import eliminate_gaussians
from ..operators import fields_of
from ..symbols import OPAQUE
from . import tails
from .explicit import Explicit, Line

FALLS = -1e-3  # slope of L below which L is taken to fall
STATES = 4  # number of states of the other coordinates
NEAR, FAR = 8.0, 24.0  # values of y between which the slope of L is taken: x is b + e^-24 at the nearest
LOOKS = 20  # number of dips that are searched
FINITE = (exp, sin, cos, sinh, cosh, tanh, atan, Abs, Max, Min)  # functions finite at finite arguments
NOTHING = 600.0  # rise of H/T above which exp(-H/T) is numerically 0
GRID = 4001  # points of a coordinate scanned for walls, in x = sinh y to 1e5


@dataclass(frozen=True)
class End:
    """An end of a coordinate that a chain reaches, or a wall that no chain passes."""

    coordinate: str
    block: Block
    at: float
    turns_back: bool = False  # whether D vanishes there, so that no mass leaves


def reached_ends(explicit: Explicit) -> list[End]:
    """The finite ends of domains that a chain reaches at one or more states of the other coordinates."""
    return [
        own.end(at, own.has_noise and own.noise_at(at, inside) == 0)
        for own in _slices(explicit)
        for at, inside in own.domain.ends
        if own.is_reached(at, inside)
    ]


def explosions(explicit: Explicit) -> list[End]:
    """The infinities that a chain reaches in finite time along a coordinate with noise of its own."""
    noisy = [own for own in _slices(explicit) if not own.domain.wraps and own.has_noise]
    infinities = [(own, at) for own in noisy for at in (math.inf, -math.inf) if at in (own.domain.low, own.domain.high)]
    return [own.end(at) for own, at in infinities if own.explodes(at)]


def walls(explicit: Explicit) -> list[End]:
    """Points inside of a domain that no chain reaches from either side, at any state of the other coordinates.

    A circle has walls if there are two: a chain goes around a single one.
    """
    infinite = _may_make_infinite(explicit.H)
    D = explicit.D.diagonal()
    varying = [z for z, own in zip(explicit.coordinates, D, strict=True) if z in own.free_symbols | infinite]
    slices = _slices(explicit, varying) if varying else ()
    times = Counter(own.end(at) for own in slices if own.has_noise for at in own.walls())
    closed = [end for end, number in times.items() if number == STATES]
    of_coordinate = Counter(end.coordinate for end in closed)
    return [end for end in closed if not end.block.domain.wraps or of_coordinate[end.coordinate] > 1]


def is_integrable(recipe: Dynamics) -> bool:
    """Whether D and Q have finite means under exp(-H) by their form: then chains do not explode.

    Such entries are constants, or polynomials of blocks that are Gaussian whatever the other blocks are. Source:
    Stannat 1999, (Nonsymmetric) Dirichlet operators on L1, Proposition 1.10.
    """
    gaussians, _ = eliminate_gaussians(recipe.H, recipe.momenta + recipe.thermostats)
    free = [g.block for g in gaussians if not (g.mean.free_symbols | g.precision.free_symbols) & set(recipe.state)]
    for e in map(at_one_site, {*nonzero(recipe.D).values(), *nonzero(recipe.Q).values()}):
        moving = [b for b in recipe.state if e.has(b)]
        if (
            fields_of(e)
            or any(b not in free for b in moving)
            or e.has(*OPAQUE[1:])
            or (moving and not e.is_polynomial(*moving))
        ):
            return False
    return True


def entry_without_mean(explicit: Explicit) -> str:
    """The name of an entry of D or Q without a finite mean under exp(-H/T), by its tails; "" if there is none.

    Such an entry may carry a chain to infinity in finite time. Entries of D that read their own coordinate only are
    left to Feller's test along the coordinate, which is sharper.
    """
    z, domains = explicit.coordinates, explicit.domains
    moving = {x: domain for x, domain in domains.items() if not domain.is_discrete}
    H = explicit.with_numbers_but(moving)
    D = {(i, j): e for (i, j), e in nonzero(explicit.D).items() if i < j or i == j and e.free_symbols - {z[i]}}
    Q = {(i, j): e for (i, j), e in nonzero(explicit.Q).items() if i < j}
    entries = {f"{letter}[{z[i]}, {z[j]}]": e for letter, own in (("D", D), ("Q", Q)) for (i, j), e in own.items()}
    entries = {name: e for name, e in entries.items() if e.free_symbols & moving.keys()}
    if not entries or _has_mean(H, entries.values(), moving, explicit.temperature):
        return ""
    return next((name for name, e in entries.items() if not _has_mean(H, [e], moving, explicit.temperature)), "")


def _has_mean(H: Expr, entries: Iterable[Expr], domains: dict[Symbol, Domain], temperature: float) -> bool:
    """Whether the sum of the absolute values of entries has a finite mean under exp(-H/T), or is undecided."""
    tail = tails.growth(H - temperature * log(1 + Add(*map(Abs, entries))), domains, temperature)
    return tail.is_integrable or tail.is_undecided


def _may_make_infinite(H: Expr) -> set[Symbol]:
    """The symbols in logarithms, poles or other functions of H that may be infinite at finite arguments."""
    poles = [e.base for e in H.atoms(Pow) if e.exp.is_nonnegative is not True]
    others = [e for e in H.atoms(Function) if not isinstance(e, FINITE)]
    return set().union(*(e.free_symbols for e in (*poles, *others)))


def _slices(explicit: Explicit, along: Collection[Symbol] | None = None) -> Iterator["Slice"]:
    """Slices along all coordinates, or along those in `along`, through a few random states."""
    drift = explicit.curl()
    for lines in explicit.lines(STATES, along):
        i = lines[0].i
        formulas = (explicit.H, explicit.D[i, i], drift[i])
        functions = [of_arrays([explicit.coordinates], e, cse=True) for e in formulas]
        yield from (Slice(line, *(partial(line.on, f) for f in functions)) for line in lines)


@dataclass
class Slice:
    """H, D_ii and the drift from Q on a line along coordinate i."""

    line: Line
    H: Callable
    D: Callable
    drift: Callable

    @property
    def domain(self) -> Domain:
        """The domain of the coordinate."""
        return self.line.block.domain

    @property
    def middle(self) -> float:
        """The coordinate at the state that the line passes through."""
        return self.line.state[self.line.i]

    def end(self, at: float, turns_back: bool = False) -> End:
        """An end at a point of the line."""
        return End(str(self.line.z), self.line.block, at, turns_back)

    @property
    def has_noise(self) -> bool:
        """Whether the coordinate has noise of its own."""
        values = self.D(self.middle + np.linspace(0.0, 0.2, 7))
        return bool((np.nan_to_num(values) > 0).any())

    def noise_at(self, at: float, inside: float) -> float:
        """The limit of D_ii at a point from one side; 0 if D_ii vanishes there."""
        near = self.D(at + inside * np.exp([-18.0, -27.0]))
        return float(near[1]) if near[1] > 0.5 * near[0] else 0.0

    def is_reached(self, at: float, inside: float) -> bool:
        """Whether a chain reaches a point from one side."""
        if self.has_noise:
            return self.slope(at, inside) < FALLS
        moved = self.drift(at + inside * np.exp([-10.0]))[0]
        H = self.H(at + inside * np.exp([-10.0, -20.0]))
        return bool(moved != 0 and np.isfinite(H).all() and H[1] - H[0] < 0.1)

    def slope(self, at: float, inside: float) -> float:
        """The slope of L towards a point, in y of x = at + inside e^-y."""
        y = np.array([NEAR, FAR]) if at == 0 else np.array([NEAR / 2, FAR / 2])
        L = self.log_scale(at + inside * np.exp(-y)) - y
        if np.isnan(L).any():
            return math.nan
        return float((L[1] - L[0]) / (y[1] - y[0])) if np.isfinite(L).all() else float(L[1])

    def log_scale(self, x: np.ndarray) -> np.ndarray:
        """H/T - log D."""
        with np.errstate(all="ignore"):
            return self.H(x) / self.line.explicit.temperature - np.log(self.D(x))

    def explodes(self, at: float) -> bool:
        """Whether L falls towards infinity, within the range of floats."""
        y = np.arange(4.0, 90.0, 2.0)
        x = math.copysign(1.0, at) * np.sinh(y)
        with np.errstate(all="ignore"):
            L = self.log_scale(x) + y
            known = np.isfinite(L) & (self.D(x) > 0)
        last = L[: int(known.argmin())] if not known.all() else L
        if len(last) < 2:
            return bool(L[0] == -np.inf)
        return bool((last[-1] - last[-2]) / 2.0 < FALLS)

    def walls(self) -> set[float]:
        """The points inside of the domain that no chain reaches from either side, rounded and distinct.

        Candidates are points where D has a dip, or |H| a peak.
        """
        x = _scanned(self.domain)
        points = []
        for depth in (lambda at: np.log(abs(self.D(at))), lambda at: -abs(self.H(at))):
            with np.errstate(all="ignore"):
                values = np.nan_to_num(depth(x), nan=-1e300)
                dips = 1 + np.flatnonzero((values[1:-1] <= values[:-2]) & (values[1:-1] < values[2:]))
                deepest, nearest = (dips[np.argsort(by[dips])[:LOOKS]] for by in (values, abs(x)))
                dips = np.union1d(deepest, nearest)
                points += [round(float(at), 9) for at in lowest(depth, x[dips - 1], x[dips + 1])]
        return {round(at, 5) + 0.0 for at in points if self.domain.contains(at) and self.is_wall(at)}

    def is_wall(self, at: float) -> bool:
        """Whether no chain reaches a point from either side, and Q does not carry a chain across.

        A point beside which exp(-H/T) is numerically 0 is not a wall, because nothing is cut off.
        """
        beside = (1.0, -1.0)
        H = self.H([self.middle, *(at + side * np.exp(-NEAR) for side in beside)]) / self.line.explicit.temperature
        if (H[1:] - H[0] > NOTHING).any():
            return False
        if not all(self.slope(at, side) >= FALLS for side in beside):
            return False
        crossing = self.drift([at + side * 1e-9 for side in beside])
        return not (abs(np.nan_to_num(crossing)) > 1e-6).any()


def _scanned(domain: Domain) -> np.ndarray:
    """The points of a coordinate scanned for walls; shifted on a circle, to scan across its joined ends."""
    if not domain.is_compact:
        return np.sinh(np.linspace(-12.0, 12.0, GRID))
    return domain.inside(np.linspace(0.0, 1.0, GRID) + (0.1234 if domain.wraps else 0.0))


def lowest(depth: Callable, low: np.ndarray, high: np.ndarray, steps: int = 80) -> np.ndarray:
    """Lower ends of short intervals around the minima of a function with one dip in each interval."""
    for _ in range(steps):
        a, b = low + (high - low) / 3, high - (high - low) / 3
        is_left = np.nan_to_num(depth(a), nan=-1e300) < np.nan_to_num(depth(b), nan=-1e300)
        low, high = np.where(is_left, low, a), np.where(is_left, b, high)
    return low
