"""Tests whether exp(-H/T) has a finite integral: in charts with exponential tails, H must grow in every direction.

In coordinates y a real coordinate is x = sinh y, a positive coordinate x = e^y, a bounded coordinate
x = low + (high - low)/(1 + e^-y), and the energy is K(y) = H(x(y))/T - log |dx/dy|: a tail |x|^-a becomes
e^{-(a-1)|y|}, so that exp(-H/T) is integrable iff the least K on spheres |y| = r grows in proportion to r. Valleys of
K, such as p = r of (p - r)^4, are followed outwards from sphere to sphere. The width of a valley counts too: of every
valley in two coordinates, and in more coordinates of valleys along an axis, as of a common scale. A quadratic form of
real coordinates is integrable iff its least eigenvalue is positive; a positive one, less a log and what is bounded, is.
A coordinate of a point of the unit sphere is bounded by -1 and 1. Of one coordinate in logs the orders are exact;
a K that grows no faster than a log of the radius in more of them is not decided.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from sympy import (
    Abs,
    Add,
    Expr,
    Function,
    Max,
    Min,
    Mul,
    Pow,
    Rational,
    S,
    Symbol,
    exp,
    log,
    sring,
)

from ..arrays import of_arrays
from ..calculus import is_short
from ..declared import signs_of
from ..derive import terms
from ..domains import Domain
from ..logs import logs_apart
from .bertrand import BOUNDED, is_finite

FLAT = 1e-3  # slope of K against the radius below which K is taken not to grow
SLIGHT = 0.06  # slope below which K may grow as a log of the radius alone
IN_DOUBT = 2.5  # power b of a K that grows as b log r below which it is not decided whether exp(-K) is integrable
RADII = tuple(2.0 * 1.25**k for k in range(18))  # to 89: x to 1e38
MOST = 12  # most coupled coordinates for a search
STARTS = 6  # new random directions on every sphere, for each coordinate
TURNS = 60  # turns of every direction on a sphere, for each coordinate but the first
MOST_TURNS = 100
MANY = 8  # number of coordinates above which every second sphere is used, and only the best directions are moved
BEST = 24  # number of the best directions
NOISE = 0.05  # tolerated rounding errors of K, in units of the radius
Directions = tuple[np.ndarray, np.ndarray, np.ndarray]  # unit vectors (N, size), K there, and its rounding errors
ON_SPHERE = Domain("of a sphere", -S.One, S.One)
WIDTHS = np.log(10) * np.linspace(-60, 0, 241)  # logs of the angles at which a valley may end


def point(domain: Domain, y: np.ndarray) -> np.ndarray:
    """The coordinate x of the domain at y."""
    if domain.is_real:
        return np.sinh(y)
    return domain.inside(1 / (1 + np.exp(-y))) if domain.is_compact else np.exp(y)


def log_slope(domain: Domain, y: np.ndarray) -> np.ndarray:
    """log |dx/dy| at y."""
    if domain.is_real:
        return np.logaddexp(y, -y) - np.log(2)
    if domain.is_compact:
        return np.log(float(domain.width)) - np.logaddexp(0, y) - np.logaddexp(0, -y)
    return y


@dataclass(frozen=True)
class Growth:
    """Growth of the least K from sphere to sphere: the last slope, and the valley of the last sphere in x."""

    slope: float
    at: dict[Symbol, float]
    open: str = "H is too steep for numbers"  # the reason, if undecided

    @property
    def is_undecided(self) -> bool:
        """Whether the numerical search could not decide."""
        return self.slope != self.slope

    @property
    def is_integrable(self) -> bool:
        """Whether K grows in every direction."""
        return self.slope > FLAT


def growth(H: Expr, domains: dict[Symbol, Domain], temperature: float = 1.0) -> Growth:
    """The least growth of an energy H of explicit coordinates; `domains`: domains by coordinate.

    The result is undecided if a group of coupled coordinates is undecided, unless H does not grow over another group.

    >>> from sympy import symbols, log
    >>> x, y, line = *symbols("x y", real=True), Domain("real")
    >>> growth(2*log(1 + x**2), {x: line}).is_integrable, growth(log(1 + x**2)/4, {x: line}).is_integrable
    (True, False)
    >>> growth((x - y)**4/4, {x: line, y: line}).is_integrable
    False
    """
    domains = {z: ON_SPHERE if domain.is_sphere else domain for z, domain in domains.items()}
    different = _unlike(uncoupled(H, domains), domains)
    groups = [_growth(energy, {z: domains[z] for z in zs}, temperature) for energy, zs in different]
    undecided = [g for g in groups if g.is_undecided]
    least = min((g for g in groups if not g.is_undecided), key=lambda g: g.slope, default=None)
    if least is None or (least.is_integrable and undecided):
        return undecided[0]
    return least


def _unlike(groups: list[tuple[Expr, list[Symbol]]], domains: dict[Symbol, Domain]) -> list[tuple[Expr, list[Symbol]]]:
    """The groups without duplicates up to the names of their coordinates, such as further sites."""
    names: dict[tuple, list[Symbol]] = {}
    different: dict[tuple, tuple[Expr, list[Symbol]]] = {}
    for H, zs in groups:
        kind = tuple((domains[z], *signs_of(z)) for z in zs)
        first = names.setdefault(kind, zs)
        different.setdefault((kind, H.xreplace(dict(zip(zs, first, strict=True)))), (H, zs))
    return list(different.values())


def _growth(H: Expr, domains: dict[Symbol, Domain], temperature: float) -> Growth:
    """The least growth of H over one group of coupled coordinates: by its form, or followed along its valleys."""
    form, rest = _quadratic_form(H, domains)
    endless = [k for k, d in enumerate(domains.values()) if not d.is_compact]
    values, vectors = np.linalg.eigh(form[np.ix_(endless, endless)])
    if (values > 1e-12 * abs(values).max(initial=0.0)).all() and all(map(_falls_slowly, rest)):
        return Growth(np.inf, {})
    if rest or not all(d.is_real for d in domains.values()):
        return _by_orders(H, domains, temperature) or _Valley(H, domains, temperature).growth()
    return Growth(0.0, {z: RADII[-1] * float(x) for z, x in zip(domains, vectors[:, 0], strict=True)})


def _by_orders(H: Expr, domains: dict[Symbol, Domain], temperature: float) -> Growth | None:
    """The growth along a single coordinate between two ends, by leading orders; None where these are not known."""
    ((z, domain), *others) = domains.items()
    if others or domain.wraps or domain == ON_SPHERE:
        return None
    K = H / Rational(repr(float(temperature)))
    known = {end: is_finite(K, z, domain, at_high=end > 0) for end in (RADII[-1], -RADII[-1])}
    flat = next((end for end, finite in known.items() if finite is False), None)
    if flat is not None:
        return Growth(0.0, {z: float(point(domain, np.array(flat)))})
    return Growth(np.inf, {}) if all(known.values()) else None


def _quadratic_form(H: Expr, domains: dict[Symbol, Domain]) -> tuple[np.ndarray, list[Expr]]:
    """The matrix of the quadratic terms of H, `(size, size)`, and the terms that are no polynomial of degree 2."""
    form = np.zeros((len(domains), len(domains)))
    polynomials: list[Expr] = []
    rest: list[Expr] = []
    for t in Add.make_args(H):
        (polynomials if t.is_polynomial(*domains) and is_short(t) else rest).append(t)
    polynomial = Add(*polynomials)
    polynomial = sring(polynomial.evalf() if polynomial.has(Function) else polynomial, *domains)[1]  # sparse
    for powers, c in polynomial.terms():
        coefficient = polynomial.ring.domain.to_sympy(c)
        if sum(powers) > 2 or coefficient.free_symbols:
            rest.append(coefficient * Mul(*(z**power for z, power in zip(domains, powers, strict=True))))
        elif sum(powers) == 2:
            i, j = (k for k, power in enumerate(powers) for _ in range(power))
            form[i, j] += float(coefficient) / 2
            form[j, i] += float(coefficient) / 2
    return form, rest


def _falls_slowly(term: Expr) -> bool:
    """Whether a term is above -C - c log(1 + |x|) everywhere, by its form: beside a square it moves no tail.

    >>> from sympy import exp, sin, symbols
    >>> x, y = symbols("x y", real=True)
    >>> [_falls_slowly(e) for e in (-2*sin(x*y), x**4, -log(2 + exp(-x**2)*abs(y)), log(x**2), -x**4)]
    [True, True, True, False, False]
    """
    c, rest = term.as_coeff_Mul()
    if c.is_negative and isinstance(rest, log):
        return _rises_slowly(rest.args[0])
    bounded = (f.is_number or isinstance(f, BOUNDED) and f.args[0].is_extended_real for f in Mul.make_args(rest))
    return bool(term.is_extended_nonnegative) or all(bounded)


def _rises_slowly(e: Expr) -> bool:
    """Whether |e| is below C (1 + |x|)^k everywhere, by its form."""
    match e:
        case Add() | Mul() | Abs() | Max() | Min():
            return all(map(_rises_slowly, e.args))
        case Pow() if e.exp.is_Rational and e.exp.is_negative:
            least, rest = e.base.as_coeff_Add()
            return bool(least.is_positive and rest.is_nonnegative)
        case Pow():
            return bool(e.exp.is_Rational) and _rises_slowly(e.base)
        case exp():
            return bool(e.args[0].is_nonpositive)
    is_bounded = e.is_finite if e.is_number else isinstance(e, BOUNDED) and e.args[0].is_extended_real
    return e.is_Symbol or bool(is_bounded)


def uncoupled(H: Expr, coordinates: Iterable[Symbol]) -> list[tuple[Expr, list[Symbol]]]:
    """The terms of H by groups of coordinates that no term couples."""
    groups: list[tuple[set, list]] = [({z}, []) for z in coordinates]
    for term in Add.make_args(terms(logs_apart(H))):
        touched = [g for g in groups if g[0] & term.free_symbols]
        if touched:
            groups = [g for g in groups if g not in touched]
            groups.append((set().union(*(g[0] for g in touched)), [term, *(t for g in touched for t in g[1])]))
    return [(Add(*summands), [z for z in coordinates if z in zs]) for zs, summands in groups]


@dataclass
class _Valley:
    """The least K on growing spheres, for one group of coupled coordinates."""

    H: Expr
    domains: dict[Symbol, Domain]
    temperature: float

    @cached_property
    def rows(self) -> dict[Domain, list[int]]:
        """The numbers of the coordinates by domain."""
        return {d: [k for k, domain in enumerate(self.domains.values()) if domain == d] for d in self.domains.values()}

    @cached_property
    def terms(self) -> Callable:
        """The terms of H as functions of the coordinates."""
        return of_arrays([list(self.domains)], list(Add.make_args(self.H)), cse=True)

    def growth(self) -> Growth:
        """The growth along the valleys, followed outwards from sphere to sphere."""
        draw = np.random.default_rng(2015)
        size = len(self.domains)
        if size > MOST:
            return Growth(float("nan"), {}, f"{size} coupled coordinates are too many to search")
        kept = np.empty((0, size))
        spheres: list[tuple[float, np.ndarray, np.ndarray]] = []
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
            if not np.isfinite(K[best]) and K[best] > 0:  # K overflows in every direction
                return Growth(np.inf, {})
            if np.isnan(K[best]) or noise[best] > NOISE * r:
                break
            spheres.append((r, u, K))
        if len(spheres) < 4:
            return Growth(float("nan"), {})
        before, _ = self.heaviest(*spheres[-4])
        after, place = self.heaviest(*spheres[-1])
        slope = (after - before) / (spheres[-1][0] - spheres[-4][0])
        if FLAT < slope < SLIGHT and len(spheres) >= 7:
            at = np.array([spheres[k][0] for k in (-7, -4, -1)])
            heights = np.array([self.heaviest(*spheres[-7])[0], before, after])
            steady, power, _ = np.linalg.solve(np.stack([at, np.log(at), np.ones(3)], axis=1), heights)
            if steady < FLAT and power < IN_DOUBT:
                return Growth(float("nan"), {}, "exp(-H) falls nearly as slowly as 1/(r log r)")
        x = self.x_of(place[None])[0]
        return Growth(float(slope), dict(zip(self.domains, map(float, x[:, 0]), strict=True)))

    def heaviest(self, r: float, u: np.ndarray, K: np.ndarray) -> tuple[float, np.ndarray]:
        """The least K less the log of a valley's width on a sphere, and where; u: directions, K: values of K there."""
        _, different = np.unique(np.round(u, 12), axis=0, return_index=True)
        widest = (u.shape[1] - 1) * np.log(2 * r)
        least, place = np.inf, r * u[np.argmin(K)]
        for i in different[np.argsort(K[different])]:
            if not K[i] - widest < least:
                break
            height = K[i] - self.log_width(u[i], r, K[i])
            if height < least:
                least, place = height, r * u[i]
        return float(least), place

    def x_of(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The coordinates x (size, N) of points y (N, size), and log |dx/dy| of each point."""
        columns = y.T
        x, slopes = np.empty(columns.shape), np.zeros(len(y))
        for domain, rows in self.rows.items():
            x[rows] = point(domain, columns[rows])
            slopes += log_slope(domain, columns[rows]).sum(0)
        return x, slopes

    def K(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """K at points y (N, size), and estimates of its rounding errors."""
        with np.errstate(all="ignore"):
            x, jacobian = self.x_of(y)
            formulas = self.terms(x)
            terms = np.empty((len(formulas), len(y)))
            for row, e in zip(terms, formulas, strict=True):
                row[...] = e
            return terms.sum(0) / self.temperature - jacobian, 2.3e-16 * abs(terms).sum(0) / self.temperature

    def descend(self, u: np.ndarray, r: float, draw: np.random.Generator) -> Directions:
        """Directions moved to lower K on the sphere by random turns, with shorter turns after failures."""
        K, noise = self.K(r * u)
        K = np.where(np.isnan(K), np.inf, K)
        size = u.shape[1]
        if size == 1:
            return u, K, noise
        turn = np.full(len(u), 0.3)
        for _ in range(min(TURNS * (size - 1), MOST_TURNS)):
            tangent = draw.normal(size=u.shape)
            tangent -= (tangent * u).sum(1, keepdims=True) * u
            tangent *= turn[:, None] / (np.linalg.norm(tangent, axis=1, keepdims=True) + 1e-300)
            both = np.vstack([u + tangent, u - tangent])
            both /= np.linalg.norm(both, axis=1, keepdims=True)
            tried = [(x[: len(u)], x[len(u) :]) for x in (both, *self.K(r * both))]
            helped = np.zeros(len(u), dtype=bool)
            for v, at_v, errors in zip(*tried, strict=True):
                better = (at_v < K) & ~helped
                u, K, noise = _replaced(better, (v, at_v, errors), (u, K, noise))
                helped |= better
            turn = np.clip(np.where(helped, turn * 1.6, turn * 0.5), 1e-15, 0.5)
        straight = np.where(abs(u) < 1e-6, 0.0, u)
        straight /= np.linalg.norm(straight, axis=1, keepdims=True)
        at_straight, errors = self.K(r * straight)
        return _replaced(at_straight <= K, (straight, at_straight, errors), (u, K, noise))

    def log_width(self, u: np.ndarray, r: float, low: float) -> float:
        """The log of the volume, on the sphere, of a valley around r u; 0 if unknown."""
        if not np.isfinite(low):
            return 0.0
        if len(u) == 2:
            across = np.array([-u[1], u[0]])
            return float(np.log(r) + np.logaddexp(self.log_end(u, across, r, low), self.log_end(u, -across, r, low)))
        if len(u) > 2 and np.count_nonzero(u) == 1:
            return self.log_ellipsoid(u, r, low)
        return 0.0

    def log_end(self, u: np.ndarray, across: np.ndarray, r: float, low: float) -> float:
        """The log of the angle, from u towards `across`, at which K has risen by 1; at most 0."""

        def risen(log_angle: np.ndarray) -> np.ndarray:
            angle = np.exp(np.atleast_1d(log_angle))
            return self.K(r * (np.outer(np.cos(angle), u) + np.outer(np.sin(angle), across)))[0] > low + 1

        is_out = risen(WIDTHS)
        if not is_out.any():
            return 0.0
        high = WIDTHS[is_out.argmax()]
        least = WIDTHS[max(is_out.argmax() - 1, 0)]
        for _ in range(6):
            points = np.linspace(least, high, 33)
            first = int(risen(points[1:]).argmax())  # K has risen at the last point
            least, high = points[first], points[first + 1]
        return float(high)

    def log_ellipsoid(self, u: np.ndarray, r: float, low: float) -> float:
        """The log of the volume of a valley along an axis u, by the curvatures of K across.

        Directions without measurable upward curvature of K count as wide.
        """
        across = [e for e, at in zip(np.eye(len(u)), u, strict=True) if at == 0]
        widths = [r * np.exp(max(self.log_end(u, e, r, low), self.log_end(u, -e, r, low))) for e in across]
        steps = 0.3 * np.array(widths)[:, None] * np.array(across)
        number = len(across)

        def rise(*parts: np.ndarray) -> float:
            return float(self.K((r * u + sum(parts))[None])[0][0]) - low

        form = np.empty((number, number))
        for i, a in enumerate(steps):
            form[i, i] = rise(a) + rise(-a)
            for j, b in enumerate(steps[:i]):
                form[i, j] = form[j, i] = (rise(a, b) - rise(a, -b) - rise(-a, b) + rise(-a, -b)) / 4
        if not np.isfinite(form).all():
            return 0.0
        curvatures = np.linalg.eigvalsh(form)
        if curvatures[0] < 1e-3:
            return 0.0
        return float(np.sum(np.log(0.3 * np.array(widths))) - np.sum(np.log(curvatures)) / 2)


def _replaced(better: np.ndarray, new: Directions, old: Directions) -> Directions:
    """The new directions, with K and its rounding errors, where they are better, else the old ones."""
    return np.where(better[:, None], new[0], old[0]), np.where(better, new[1], old[1]), np.where(better, new[2], old[2])
