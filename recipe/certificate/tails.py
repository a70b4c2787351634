"""Has exp(-H/T) a finite integral? In coordinates in which tails are exponential, H must grow in every direction.

These are the y of `charts`: a real coordinate is x = sinh y, a positive one x = e^y. In y the energy is
K(y) = H(x(y))/T - log |dx/dy|: a tail |x|^-a becomes e^{-(a-1)|y|}, so that exp(-H/T) is integrable where the least K
on spheres |y| = r grows in proportion to r, and is not where it does not. Valleys of K, such as p = r of (p - r)^4, are
followed outwards from sphere to sphere; along a valley of two coordinates its width counts too. A quadratic form of
real coordinates is integrable where its least eigenvalue is positive.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from sympy import Add, Expr, Poly, Symbol, expand

from ..arrays import of_arrays
from ..domains import Domain
from . import charts

FLAT = 1e-3  # of K against the radius: what grows less is not told from what does not grow
RADII = tuple(2.0 * 1.25**k for k in range(18))  # to 89: x to 1e38
MOST = 12  # coupled coordinates whose valleys are followed
STARTS = 6  # directions that are tried anew on every sphere, for each coordinate
TURNS = 60  # of every direction on a sphere, for each coordinate but the first
MOST_TURNS = 100
MANY = 8  # coordinates, above which every second sphere is looked at, and the best directions alone are moved
BEST = 24  # of these
NOISE = 0.05  # rounding errors of K that are borne, in units of the radius


@dataclass(frozen=True)
class Growth:
    """How the least K grows from sphere to sphere: its last slope, and where in x the last sphere's valley is."""

    slope: float
    at: dict[Symbol, float]
    open: str = "H is too steep for numbers"  # why it is undecided, where it is

    @property
    def is_undecided(self) -> bool:
        """Whether numbers do not tell."""
        return self.slope != self.slope

    @property
    def is_integrable(self) -> bool:
        """Whether K grows in every direction."""
        return self.slope > FLAT


def growth(H: Expr, domains: dict[Symbol, Domain], temperature: float = 1.0) -> Growth:
    """The least growth of the energy H of explicit coordinates, whose `domains` are given by symbol.

    It is undecided where that of a group of coupled ones is, unless that of another does not grow.

    >>> from sympy import symbols, log
    >>> x, y, line = *symbols("x y", real=True), Domain("real")
    >>> growth(2*log(1 + x**2), {x: line}).is_integrable, growth(log(1 + x**2)/4, {x: line}).is_integrable
    (True, False)
    >>> growth((x - y)**4/4, {x: line, y: line}).is_integrable
    False
    """
    groups = [_growth(energy, {z: domains[z] for z in zs}, temperature) for energy, zs in apart(H, domains)]
    undecided = [g for g in groups if g.is_undecided]
    least = min((g for g in groups if not g.is_undecided), key=lambda g: g.slope, default=None)
    if least is None or (least.is_integrable and undecided):
        return undecided[0]
    return least


def _growth(H: Expr, domains: dict[Symbol, Domain], temperature: float) -> Growth:
    """The least growth over one group of coupled coordinates."""
    form = _quadratic_form(H, domains)
    if form is None:
        return _Valley(H, domains, temperature).growth()
    values, vectors = np.linalg.eigh(form)
    slope = np.inf if values[0] > 1e-12 * abs(values).max() else 0.0
    return Growth(slope, {z: RADII[-1] * float(x) for z, x in zip(domains, vectors[:, 0], strict=True)})


def _quadratic_form(H: Expr, domains: dict[Symbol, Domain]) -> np.ndarray | None:
    """The matrix of a quadratic polynomial of real coordinates, `(size, size)`; None where H is no such polynomial."""
    if not all(d.is_real for d in domains.values()) or not H.is_polynomial(*domains):
        return None
    matrix = np.zeros((len(domains), len(domains)))
    for powers, coefficient in Poly(H, *domains).terms():
        at = [i for i, power in enumerate(powers) for _ in range(power)]
        if len(at) > 2 or not coefficient.is_number:
            return None
        if len(at) == 2:
            matrix[at[0], at[1]] += float(coefficient) / 2
            matrix[at[1], at[0]] += float(coefficient) / 2
    return matrix


def apart(H: Expr, coordinates: Iterable[Symbol]) -> list[tuple[Expr, list[Symbol]]]:
    """H as a sum over groups of coordinates that no term couples."""
    groups: list[tuple[set, list]] = [({z}, []) for z in coordinates]
    for term in Add.make_args(expand(H, power_exp=False, power_base=False, log=False)):
        touched = [g for g in groups if g[0] & term.free_symbols]
        if not touched:
            continue
        groups = [g for g in groups if g not in touched]
        groups.append((set().union(*(g[0] for g in touched)), [term, *(t for g in touched for t in g[1])]))
    return [(Add(*terms), [z for z in coordinates if z in zs]) for zs, terms in groups]


class _Valley:
    """The least K on growing spheres, for one group of coupled coordinates."""

    def __init__(self, H: Expr, domains: dict[Symbol, Domain], temperature: float):
        self.coordinates = list(domains)
        self.domains = domains
        self.temperature = temperature
        terms = Add.make_args(H)
        self.terms: Callable = of_arrays([self.coordinates], list(terms), cse=True)

    def growth(self) -> Growth:
        """Follow the valleys outwards."""
        draw, size = np.random.default_rng(2015), len(self.coordinates)
        if size > MOST:
            return Growth(float("nan"), {}, f"{size} coupled coordinates are too many to search")
        kept = np.empty((0, size))
        heights: list[float] = []
        places: list[np.ndarray] = []
        radii = RADII if size <= MANY else RADII[1::2]
        for r in radii:
            fresh = draw.normal(size=(STARTS * size if size > 1 else 0, size))
            axes = np.vstack([np.eye(size), np.ones(size)])
            u = np.vstack([kept, axes, -axes, fresh])
            u /= np.linalg.norm(u, axis=1, keepdims=True)
            if size > MANY:
                u = u[np.argsort(np.nan_to_num(self.K(r * u)[0], nan=np.inf))[:BEST]]
            u, K, noise = self.descend(u, r, draw)
            order = np.argsort(K)[: 4 + 2 * size]
            kept = u[order]
            best = order[0]
            if not np.isfinite(K[best]) and K[best] > 0:  # higher than numbers reach in every direction
                return Growth(np.inf, {})
            if np.isnan(K[best]) or noise[best] > NOISE * r:
                break
            heights.append(K[best] - self.log_width(u[best], r, K[best]))
            places.append(r * u[best])
        if len(heights) < 4:
            return Growth(float("nan"), {})
        last = len(heights) - 1
        slope = (heights[last] - heights[last - 3]) / (radii[last] - radii[last - 3])
        x = self.x_of(places[-1][None])[0]
        return Growth(float(slope), dict(zip(self.coordinates, map(float, x[:, 0]), strict=True)))

    def x_of(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The coordinates x (size, N) of points y (N, size), and log |dx/dy| of each point."""
        x, jacobian = [], np.zeros(len(y))
        for z, v in zip(self.coordinates, y.T, strict=True):
            x.append(charts.point(self.domains[z], v))
            jacobian += charts.log_slope(self.domains[z], v)
        return np.array(x), jacobian

    def K(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """K at points y (N, size), and the size of its rounding errors."""
        with np.errstate(all="ignore"):
            x, jacobian = self.x_of(y)
            terms = np.array([np.broadcast_to(np.asarray(t, dtype=float), len(y)) for t in self.terms(x)])
            values = terms.sum(0) / self.temperature
            return values - jacobian, 2.3e-16 * abs(terms).sum(0) / self.temperature

    def descend(self, u: np.ndarray, r: float, draw: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Directions moved to where K is less on the sphere: random turns, shorter where none helps."""
        K, noise = self.K(r * u)
        K = np.where(np.isnan(K), np.inf, K)
        size = u.shape[1]
        if size == 1:
            return u, K, noise
        turn = np.full(len(u), 0.3)
        for _ in range(min(TURNS * (size - 1), MOST_TURNS)):
            tangent = draw.normal(size=u.shape)
            tangent -= (tangent * u).sum(1, keepdims=True) * u
            tangent /= np.linalg.norm(tangent, axis=1, keepdims=True) + 1e-300
            helped = np.zeros(len(u), dtype=bool)
            for sign in (1.0, -1.0):
                v = u + sign * turn[:, None] * tangent
                v /= np.linalg.norm(v, axis=1, keepdims=True)
                tried, errors = self.K(r * v)
                better = (tried < K) & ~helped
                u, K, noise = (
                    np.where(better[:, None], v, u),
                    np.where(better, tried, K),
                    np.where(better, errors, noise),
                )
                helped |= better
            turn = np.where(helped, turn * 1.6, turn * 0.5)
            turn = np.clip(turn, 1e-15, 0.5)
        return u, K, noise

    def log_width(self, u: np.ndarray, r: float, low: float) -> float:
        """The log of the width, along the circle, of a valley of two coordinates: where K has risen by 1."""
        if len(u) != 2:
            return 0.0
        across = np.array([-u[1], u[0]])
        widths = []
        for sign in (1.0, -1.0):
            angle = 10.0 ** np.linspace(-15, 0, 121)
            at = np.outer(np.cos(angle), u) + sign * np.outer(np.sin(angle), across)
            risen = self.K(r * at)[0] > low + 1
            widths.append(angle[risen.argmax()] if risen.any() else 1.0)
        return float(np.log(r * sum(widths)))
