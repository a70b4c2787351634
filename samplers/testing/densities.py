"""The law exp(-H/T) as points and weights: a grid that finds its own range, scale and fineness.

One site of every vector block. Blocks between which H is a sum are independent, and have grids of their own. A grid is
Gauss-Legendre in t, with x = c + s sinh(t) for a real block, x = e^t for a positive one, in panels between the kinks of
Max, Abs and Piecewise; a binary block has the points 0 and 1.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, product
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, log_expit, logit
from sympy import Abs, Add, Expr, Float, Heaviside, Max, Min, Rational, diff, expand, lambdify, sign
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational

from recipe import Energy, RecipeError
from recipe.algebra import at_one_site
from recipe.symbols import Block, Partial, Potential, formula
from recipe.symbols import temperature as T

LEAST = 1e-17  # what is left out, of the mass and of the moments
WINDOW = {"real": (-45.0, 45.0), "positive": (-400.0, 45.0), "nonnegative": (-400.0, 45.0), "fraction": (-400.0, 400.0)}
FINENESS = {1: 2001, 2: 301, 3: 61}  # of the grid on which the range is looked for, by the number of coupled blocks
PANEL = 12.0  # the greatest length of a panel, in t
NODES = (12, 16, 20, 26, 32, 40, 50, 64, 80, 100, 130, 160, 200, 250, 320, 400)
POINTS = 3_000_000


def density(
    H: Expr,
    state: Sequence[Block],
    *,
    temperature: float = 1.0,
    values: Mapping | None = None,
    energy: Energy | Expr | None = None,
    integrands: Sequence[Expr] = (),
    nodes: int | None = None,
    degree: int = 6,
) -> tuple[dict[Block, np.ndarray], np.ndarray]:
    """Points by block and weights of the density exp(-H/T) of one site: E f = sum of weights f(points).

    Points and weights are of shape (N,), the weights sum to 1; moments up to `degree` are accurate to 1e-10, in units
    of E|z|^k. `values`: numbers by name for parameters and adapted quantities; their default where left out.
    `energy`: U, of the target blocks; x^4/4 + x^2/2 - 2x/5 of each, if left out. `integrands`: formulas whose means
    are to be as accurate as 1e-9 of E|f|, at whose kinks the panels are split too. `nodes` of a panel; as many as it
    takes, if left out. Raises RecipeError where a value is missing, exp(-H) or a moment has no finite integral, or
    more than three blocks are coupled.

    >>> from recipe import vector, positive, potential, total
    >>> theta, p, m = vector("theta"), vector("p"), positive("m")
    >>> points, weights = density(potential(theta) + total(p**2)/m/2, (theta, p), values={"m": 1.7}, temperature=0.5)
    >>> round(float(weights @ points[p]**2), 10)
    0.85
    """
    number = one_site(temperature=temperature, values=values, energy=energy)
    H, integrands = number(H), [number(e) for e in integrands]
    laws = [_law(e, blocks, temperature, [H, *integrands], nodes, degree) for e, blocks in separate(H, state)]
    points: dict[Block, np.ndarray] = {}
    weights = size = np.ones(1)
    for axes, w, sizes in laws:
        points = {b: np.repeat(x, len(w)) for b, x in points.items()}
        points |= {b: np.tile(x, len(weights)) for b, x in axes.items()}
        weights, size = np.multiply.outer(weights, w).ravel(), np.maximum.outer(size, sizes).ravel()
        kept = weights * size**degree > LEAST
        points, weights, size = {b: x[kept] for b, x in points.items()}, weights[kept], size[kept]
    return {b: points[b] for b in state}, weights / weights.sum()


def one_site(
    *, temperature: float = 1.0, values: Mapping | None = None, energy: Energy | Expr | None = None
) -> Callable[[Any], Expr]:
    """The function that takes a formula to its value at one site: a sympy expression of the blocks alone.

    `temperature`, `values`, `energy`: as for `density`.

    >>> from recipe import vector, positive, potential, grad, total
    >>> theta, p, m = vector("theta"), vector("p"), positive("m", default=1.7)
    >>> one_site()(total(p**2)/m - grad(potential(theta)))
    10*p**2/17 - theta**3 - theta + 2/5
    """
    values = {getattr(s, "name", s): v for s, v in (values or {}).items()}

    def value_of(s):
        value = temperature if s == T else values.get(s.name, getattr(s, "default", None))
        if value is None:
            raise RecipeError("density", f"'{s}' has no value", do=f"Give values={{{s.name!r}: ...}}.")
        return formula(value, f"density, values[{s.name!r}]")

    def number(e):
        e = at_one_site(_with_energy(formula(e, "density"), energy))
        if e.has(AppliedUndef):
            opaque = next(iter(e.atoms(AppliedUndef)))
            raise RecipeError("density", f"{opaque} is opaque", do="Give it, by recipe.bind.")
        named = [s for s in e.free_symbols if not isinstance(s, Block) or s.name in values or hasattr(s, "start")]
        return e.xreplace({s: value_of(s) for s in named})

    return number


def _with_energy(e, energy):
    """A formula with U and its derivatives given."""
    for U in {p.U for p in e.atoms(Partial)} | e.atoms(Potential):
        V = usual_energy(U.blocks) if energy is None else energy
        V = V.on(U.blocks) if isinstance(V, Energy) else formula(V, "density, energy")
        e = e.xreplace({g: diff(V, *g.variables) for g in e.atoms(Partial)} | {U: V}).doit()
    return e


def usual_energy(blocks: Sequence[Block]) -> Expr:
    """x^4/4 + x^2/2 - 2x/5, summed over the blocks: neither even nor quadratic.

    >>> from recipe import vector
    >>> usual_energy([vector("theta")])
    theta**4/4 + theta**2/2 - 2*theta/5
    """
    return Add(*(b**4 / 4 + b**2 / 2 - Rational(2, 5) * b for b in blocks))


# ---- what is independent of what


def separate(H: Expr, state: Sequence[Block]) -> list[tuple[Expr, tuple[Block, ...]]]:
    """H as a sum over groups of blocks: (energy, blocks) for each; a term is expanded only where that takes it apart.

    >>> from recipe import scalar
    >>> x, y, u = scalar("x"), scalar("y"), scalar("u")
    >>> separate((y - x)**2 + (y + u)**2 - 2*u*y, (x, u, y))
    [(y**2 + (-x + y)**2, (x, y)), (u**2, (u,))]
    """
    for s in H.free_symbols - set(state):
        raise RecipeError("density, H", f"'{s}' is not a block of the state", do=f"Add {s} to the state.")
    groups = _coupled(_terms(H), state)
    whole = [t for t in Add.make_args(H) if any(t.free_symbols <= set(g) for g in groups)]
    terms = [*whole, *_terms(H - Add(*whole))]
    return [(Add(*(t for t in terms if t.free_symbols & set(g))), g) for g in groups]


def _terms(e):
    return Add.make_args(expand(e, power_exp=False, power_base=False, log=False))


def _coupled(terms, state):
    """The blocks in groups, in the order of the state: those that a term has in common are together."""
    groups: list[set] = [{b} for b in state]
    for term in terms:
        touched = [g for g in groups if g & term.free_symbols]
        if touched:
            groups = [g for g in groups if g not in touched] + [set().union(*touched)]
    in_order = [tuple(b for b in state if b in g) for g in groups]
    return sorted(in_order, key=lambda g: state.index(g[0]))


# ---- the law of one group


class _Group:
    """The blocks of a group: those that move, integrated over, and the binary ones, summed over."""

    def __init__(self, blocks):
        self.moving = [b for b in blocks if b.domain != "binary"]
        self.latent = [b for b in blocks if b.domain == "binary"]
        self.choices = np.array(list(product([0.0, 1.0], repeat=len(self.latent)))).T

    def function(self, e):
        """A formula as a function of the moving blocks: by point and, on the last axis, choice of the binary ones."""
        f = lambdify([[*self.moving, *self.latent]], e, "numpy")

        def at(*z):
            points = [np.expand_dims(x, -1) for x in np.broadcast_arrays(*z)]
            shape = np.broadcast_shapes(*(x.shape for x in points), self.choices.shape[1:])
            return np.broadcast_to(f([*points, *self.choices]), shape)

        return at

    def energy(self, e):
        """An energy as such a function; infinite where it is no number."""
        f = self.function(e)

        def at(*z):
            with np.errstate(all="ignore"):
                values = f(*z)
            return np.where(np.isnan(values), np.inf, values)

        return at

    def integrands(self, formulas):
        """Formulas that read a block of the group, as such functions; all other blocks are at 0.7."""
        own = {*self.moving, *self.latent}
        read = [e for e in formulas if e.free_symbols & own]
        return [self.function(e.xreplace({b: Float(0.7) for b in e.free_symbols - own})) for e in read]


class _Grid:
    """Points z of the moving blocks, weights by point and choice of the binary ones, and z in units of the law."""

    def __init__(self, group, energy, charts, axes):
        t = [x.ravel() for x in np.meshgrid(*(t for t, _ in axes), indexing="ij")]
        self.group = group
        self.z = [chart.point(x) for chart, x in zip(charts, t)]
        self.units = [chart.units(x) for chart, x in zip(charts, self.z)]
        log_weights = np.zeros(())
        for _, w in axes:
            log_weights = np.add.outer(log_weights, np.log(w))
        log_measure = log_weights.ravel() + sum(chart.log_slope(x) for chart, x in zip(charts, t))
        e = energy(*self.z) - log_measure[:, None]
        weights = np.exp(e.min() - e)
        self.weights = weights / weights.sum()

    def statistics(self, degree, integrands):
        """The moments and the means of the integrands, and how far they may be off."""
        by_point = self.weights.sum(1)
        means = [(u**k, by_point, 1e-11) for u in self.units for k in range(1, degree + 1)]
        means += [(f(*self.z), self.weights, 1e-9) for f in integrands]
        return np.array([[(x * w).sum(), tolerance * (abs(x) * w).sum()] for x, w, tolerance in means]).T

    def law(self):
        """Points by block, weights, and how large each point is, in units of the law's width."""
        choices = self.group.choices
        points = {b: np.repeat(x, choices.shape[1]) for b, x in zip(self.group.moving, self.z)}
        points |= {b: np.tile(c, len(self.z[0])) for b, c in zip(self.group.latent, choices)}
        sizes = np.repeat(1 + np.max(np.abs(self.units), 0), choices.shape[1])
        return points, self.weights.ravel(), sizes


def _law(H, blocks, temperature, formulas, nodes, degree):
    """Points by block, weights, and how large each point is, in units of the law's width."""
    group = _Group(blocks)
    moving = group.moving
    if len(moving) > 3:
        raise RecipeError(
            "density, H",
            f"it couples {len(moving)} blocks: {', '.join(map(str, moving))}",
            do="At most three can be integrated over.",
        )
    energy = group.energy(H / formula(temperature, "density, temperature"))
    if not moving:
        e = energy(np.zeros(()))
        w = np.exp(e.min() - e)
        return dict(zip(group.latent, group.choices)), w / w.sum(), np.ones(len(w))
    integrands = group.integrands(formulas[1:])
    charts, ranges = _ranges(lambda *z: energy(*z).min(-1), moving, degree)
    edges = [_edges(formulas, b, chart, *ends) for b, chart, ends in zip(moving, charts, ranges)]
    before = None
    for n in [nodes] if nodes else NODES:
        axes = [_panels(e, n) for e in edges]
        if math.prod(len(t) for t, _ in axes) * group.choices.shape[1] > POINTS:
            break
        grid = _Grid(group, energy, charts, axes)
        if nodes:
            return grid.law()
        now, tolerances = grid.statistics(degree, integrands)
        if before is not None and np.all(abs(now - before) <= tolerances):
            return grid.law()
        before = now
    raise RecipeError(
        "density",
        f"a grid of {POINTS:,} points does not resolve exp(-H) over {', '.join(map(str, blocks))}",
        do="Give values= at which its scales are closer.",
    )


def _edges(formulas, block, chart, low, high):
    """The ends of the panels of t: those of the range, and the kinks inside."""
    kinks = [chart.inverse(k) for k in _kinks(formulas, block)]
    return sorted({low, high} | {t for t in kinks if low < t < high})


def _panels(edges, nodes):
    """Gauss-Legendre points and weights of all panels."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    parts = [np.linspace(a, b, math.ceil((b - a) / PANEL), endpoint=False) for a, b in zip(edges, edges[1:])]
    ends = np.concatenate([*parts, edges[-1:]])
    low, high = ends[:-1, None], ends[1:, None]
    return ((low + high) / 2 + (high - low) / 2 * x).ravel(), ((high - low) / 2 * w).ravel()


class _Chart:
    """x as a function of t: c + s sinh(t) on the line, e^t on the half line, logistic between 0 and 1."""

    def __init__(self, domain, centre=0.0, scale=1.0):
        self.on_line, self.bounded = domain == "real", domain == "fraction"
        self.centre, self.scale = centre if self.on_line else 0.0, scale

    def point(self, t):
        """x at t."""
        if self.on_line:
            return self.centre + self.scale * np.sinh(t)
        return expit(t) if self.bounded else np.exp(t)

    def inverse(self, x):
        """t at x."""
        with np.errstate(all="ignore"):
            if self.on_line:
                return np.arcsinh((x - self.centre) / self.scale)
            return logit(x) if self.bounded else np.log(x)

    def log_slope(self, t):
        """log dx/dt."""
        if self.on_line:
            return np.log(self.scale * np.cosh(t))
        return log_expit(t) + log_expit(-t) if self.bounded else t

    def units(self, x):
        """x in units of the scale, from the centre."""
        return (x - self.centre) / self.scale


def _ranges(energy, blocks, degree):
    """For each block its chart, and the range of t outside of which neither mass nor moments are left."""
    depth = -math.log(LEAST)

    def matters(level, t, chart):
        level = level - chart.log_slope(t)
        tilted = level - degree * np.log(1 + abs(chart.point(t)))
        return (level <= level.min() + depth) | (tilted <= tilted.min() + depth)

    def is_bulk(level, t, chart):
        if not chart.on_line:  # in t on a half line, where H may fall to -oo
            level = level - chart.log_slope(t)
        return level <= level.min() + 2

    charts, windows = [_Chart(b.domain) for b in blocks], [WINDOW[b.domain] for b in blocks]
    ranges = _narrowed(energy, charts, windows, matters)
    for b, (low, high), window in zip(blocks, ranges, windows):
        if low == window[0] or high == window[1]:
            raise RecipeError(
                "density, H",
                f"exp(-H) |{b}|^{degree} has no finite integral",
                do=f"Give {b} a confining energy, or take a smaller degree=.",
            )
    bulk = _narrowed(energy, charts, ranges, is_bulk)
    ends = [chart.point(np.array(r)) for chart, r in zip(charts, bulk)]
    scaled = [_Chart(b.domain, x.mean(), np.ptp(x) / 4) for b, x in zip(blocks, ends)]
    rescaled = [
        tuple(new.inverse(old.point(np.array(r)))) if new.on_line else r for new, old, r in zip(scaled, charts, ranges)
    ]
    return scaled, rescaled


def _narrowed(energy, charts, ranges, inside):
    """The ranges of t, one for each chart, to which `inside(energy along t, t, chart)` confines them."""
    for _ in range(40):
        axes = [np.linspace(low, high, FINENESS[len(charts)]) for low, high in ranges]
        narrowed = []
        for i, (t, chart) in enumerate(zip(axes, charts)):
            level = _profile(energy, charts, axes, i)
            if not np.isfinite(level).any():
                raise RecipeError(
                    "density, H", "exp(-H) vanishes, or is no number, everywhere", do="Look at its signs."
                )
            kept = np.flatnonzero(inside(level, t, chart))
            narrowed.append((t[max(kept[0] - 1, 0)], t[min(kept[-1] + 1, len(t) - 1)]))
        settled = all(np.ptp(new) > 0.8 * np.ptp(old) for new, old in zip(narrowed, ranges))
        ranges = narrowed
        if settled:
            break
    return ranges


def _profile(energy, charts, axes, i):
    """The energy along axis i, minimised over the other blocks: on the grid, then around its best point."""
    others = [j for j in range(len(axes)) if j != i]

    def at(t):
        return energy(*(chart.point(x) for chart, x in zip(charts, t)))

    if not others:
        return at(axes)
    level = np.moveaxis(at(np.meshgrid(*axes, indexing="ij")), i, 0)
    flat = level.reshape(len(axes[i]), -1)
    best, where = flat.min(1), np.unravel_index(flat.argmin(1), level.shape[1:])
    middle = [axes[j][k] for j, k in zip(others, where)]
    width = [axes[j][1] - axes[j][0] for j in others]
    offsets = [o.ravel() for o in np.meshgrid(*[np.linspace(-1, 1, 9)] * len(others), indexing="ij")]
    for _ in range(14):
        t = [axes[i][:, None]] * len(axes)
        for j, m, w, o in zip(others, middle, width, offsets):
            t[j] = m[:, None] + w * o
        level = at(np.broadcast_arrays(*t))
        k = level.argmin(1)
        best = np.minimum(best, level.min(1))
        middle = [m + w * o[k] for m, w, o in zip(middle, width, offsets)]
        width = [w / 3 for w in width]
    return best


# ---- kinks


def _kinks(formulas, block):
    """Where a formula of this block alone changes form: the roots of the arguments of Max, Min, Abs, Piecewise."""
    edges = set()
    for e in formulas:
        edges |= {a - b for f in e.atoms(Max, Min) for a, b in combinations(f.args, 2)}
        edges |= {f.args[0] for f in e.atoms(Abs, sign, Heaviside)}
        edges |= {c.lhs - c.rhs for c in e.atoms(Relational)}
    own = [edge for edge in edges if edge.free_symbols == {block}]
    return sorted({root for edge in own for root in _roots(edge, block)})


def _roots(edge, block):
    """The points where a formula of one block changes its sign, by bisection."""
    chart = _Chart(block.domain)
    f = lambdify([block], edge, "numpy")
    low, high = WINDOW[block.domain]
    t = np.linspace(low, high, 8000)  # an even number, so that 0 is not among them
    with np.errstate(all="ignore"):
        signs = np.sign(np.broadcast_to(f(chart.point(t)), t.shape))

    def height(s):
        return float(f(chart.point(s)))

    changes = np.flatnonzero(signs[1:] * signs[:-1] < 0)
    crossings = [brentq(height, t[k], t[k + 1], xtol=1e-14) for k in changes]
    zeros = [t[k] for k in range(1, len(t) - 1) if signs[k] == 0 and signs[k - 1] * signs[k + 1] < 0]
    return {float(chart.point(x)) for x in crossings + zeros}
