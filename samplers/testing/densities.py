"""The law exp(-H/T) as points and weights: a grid that finds its own range, scale and fineness.

One site of every vector block. Blocks between which H is a sum are independent, and have grids of their own. A grid is
Gauss-Legendre in t, with x = c + s sinh(t) for a real block, x = e^t for a positive one, in panels between the kinks of
Max, Abs and Piecewise; a binary block has the points 0 and 1.
"""

import math
from collections.abc import Callable, Mapping
from itertools import combinations, product

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
    state,
    *,
    temperature: float = 1.0,
    values: Mapping | None = None,
    energy: Energy | Expr | None = None,
    integrands=(),
    nodes: int | None = None,
    degree: int = 6,
) -> tuple[dict[Block, np.ndarray], np.ndarray]:
    """Points by block and weights of the density exp(-H/T) of one site: E f = sum of weights f(points).

    Points and weights are of shape (N,), the weights sum to 1; moments up to `degree` are accurate to 1e-10, in units of
    E|z|^k. `values`: numbers by name for parameters and adapted quantities; their default where left out. `energy`: U, of
    the target blocks; x^4/4 + x^2/2 - 2x/5 of each, if left out. `integrands`: formulas whose means are to be as accurate
    as 1e-9 of E|f|, at whose kinks the panels are split too. `nodes` of a panel; as many as it takes, if left out. Raises RecipeError where a value is
    missing, exp(-H) or a moment has no finite integral, or more than three blocks are coupled.

    >>> from recipe import vector, positive, potential, total
    >>> theta, p, m = vector("theta"), vector("p"), positive("m")
    >>> points, weights = density(potential(theta) + total(p**2)/m/2, (theta, p), values={"m": 1.7}, temperature=0.5)
    >>> round(float(weights @ points[p]**2), 10)
    0.85
    """
    number = one_site(temperature=temperature, values=values, energy=energy)
    H, integrands = number(H), [number(e) for e in integrands]
    laws = [_law(e, blocks, temperature, [H, *integrands], nodes, degree) for e, blocks in separate(H, tuple(state))]
    points, weights, size = {}, np.ones(1), np.ones(1)
    for law, w, sizes in laws:
        points = {b: np.repeat(x, len(w)) for b, x in points.items()} | {
            b: np.tile(x, len(weights)) for b, x in law.items()
        }
        weights, size = np.multiply.outer(weights, w).ravel(), np.maximum.outer(size, sizes).ravel()
        kept = weights * size**degree > LEAST
        points, weights, size = {b: x[kept] for b, x in points.items()}, weights[kept], size[kept]
    return {b: points[b] for b in state}, weights / weights.sum()


def one_site(
    *, temperature: float = 1.0, values: Mapping | None = None, energy: Energy | Expr | None = None
) -> Callable:
    """The function that takes a formula to its value at one site: a sympy expression of the blocks alone.

    `temperature`, `values`, `energy`: as for `density`.

    >>> from recipe import vector, positive, potential, grad, total
    >>> theta, p, m = vector("theta"), vector("p"), positive("m", default=1.7)
    >>> one_site()(total(p**2)/m - grad(potential(theta)))
    10*p**2/17 - theta**3 - theta + 2/5
    """
    values = {getattr(s, "name", s): v for s, v in (values or {}).items()}

    def at(s):
        value = temperature if s == T else values.get(s.name, getattr(s, "default", None))
        if value is None:
            raise RecipeError("density", f"'{s}' has no value", do=f"Give values={{{s.name!r}: ...}}.")
        return formula(value, f"density, values[{s.name!r}]")

    def number(e):
        e = formula(e, "density")
        for U in {p.U for p in e.atoms(Partial)} | e.atoms(Potential):
            given = test_energy(U.blocks) if energy is None else energy
            V = given.on(U.blocks) if isinstance(given, Energy) else formula(given, "density, energy")
            e = e.xreplace({g: diff(V, *g.variables) for g in e.atoms(Partial)} | {U: V}).doit()
        e = at_one_site(e)
        if e.has(AppliedUndef):
            raise RecipeError(
                "density", f"{next(iter(e.atoms(AppliedUndef)))} is opaque", do="Give it, by recipe.bind."
            )
        named = [s for s in e.free_symbols if not isinstance(s, Block) or s.name in values or hasattr(s, "start")]
        return e.xreplace({s: at(s) for s in named})

    return number


def test_energy(blocks) -> Expr:
    """x^4/4 + x^2/2 - 2x/5, summed over the blocks: neither even nor quadratic.

    >>> from recipe import vector
    >>> test_energy([vector("theta")])
    theta**4/4 + theta**2/2 - 2*theta/5
    """
    return Add(*(b**4 / 4 + b**2 / 2 - Rational(2, 5) * b for b in blocks))


test_energy.__test__ = False  # it is no test of pytest's


# ---- what is independent of what


def separate(H: Expr, state) -> list[tuple[Expr, tuple[Block, ...]]]:
    """H as a sum over groups of blocks: (energy, blocks) for each; a term is expanded only where that takes it apart.

    >>> from recipe import scalar
    >>> x, y, u = scalar("x"), scalar("y"), scalar("u")
    >>> separate((y - x)**2 + (y + u)**2 - 2*u*y, (x, u, y))
    [(y**2 + (-x + y)**2, (x, y)), (u**2, (u,))]
    """
    for s in H.free_symbols - set(state):
        raise RecipeError("density, H", f"'{s}' is not a block of the state", do=f"Add {s} to the state.")
    apart = lambda e: Add.make_args(expand(e, power_exp=False, power_base=False, log=False))
    groups = [{b} for b in state]
    for term in apart(H):
        touched = [g for g in groups if g & term.free_symbols]
        groups = [g for g in groups if g not in touched] + ([set().union(*touched)] if touched else [])
    whole = [t for t in Add.make_args(H) if any(t.free_symbols <= g for g in groups)]
    terms = [*whole, *apart(H - Add(*whole))]
    groups = sorted((tuple(b for b in state if b in g) for g in groups), key=lambda g: state.index(g[0]))
    return [(Add(*(t for t in terms if t.free_symbols & set(g))), g) for g in groups]


# ---- the law of one group


def _law(H, blocks, temperature, formulas, nodes, degree):
    """Points by block, weights, and how large each point is, in units of the law's width."""
    moving, latent = [b for b in blocks if b.domain != "binary"], [b for b in blocks if b.domain == "binary"]
    if len(moving) > 3:
        raise RecipeError(
            "density, H",
            f"it couples {len(moving)} blocks: {', '.join(map(str, moving))}",
            do="At most three can be integrated over.",
        )
    function = lambdify([[*moving, *latent]], H / formula(temperature, "density, temperature"), "numpy")
    choices = np.array(list(product([0.0, 1.0], repeat=len(latent)))).T

    def energy(*z):
        """H/T by point and choice of the binary blocks; infinite where it is no number."""
        z = [np.expand_dims(x, -1) for x in np.broadcast_arrays(*z)]
        with np.errstate(all="ignore"):
            e = np.broadcast_to(function([*z, *choices]), np.broadcast_shapes(*(x.shape for x in z), choices.shape[1:]))
        return np.where(np.isnan(e), np.inf, e)

    if not moving:
        w = np.exp(-energy(np.zeros(())).ravel() + energy(np.zeros(())).min())
        return dict(zip(latent, choices)), w / w.sum(), np.ones(len(w))
    means = _integrands(formulas[1:], moving, latent)
    charts, ranges = _ranges(lambda *z: energy(*z).min(-1), moving, degree)
    edges = [
        sorted({low, high} | {t for k in _kinks(formulas, b) for t in [chart.inverse(k)] if low < t < high})
        for b, chart, (low, high) in zip(moving, charts, ranges)
    ]
    before = None
    for n in [nodes] if nodes else NODES:
        axes = [_panels(e, n) for e in edges]
        if math.prod(len(t) for t, _ in axes) * choices.shape[1] > POINTS:
            break
        t = [x.ravel() for x in np.meshgrid(*(t for t, _ in axes), indexing="ij")]
        z = [chart.point(x) for chart, x in zip(charts, t)]
        log = sum(
            np.log(w)[tuple(slice(None) if j == i else None for j in range(len(axes)))] for i, (_, w) in enumerate(axes)
        ).ravel() + sum(c.log_slope(x) for c, x in zip(charts, t))
        e = energy(*z) - log[:, None]
        w = np.exp(e.min() - e)
        w /= w.sum()
        units = [chart.units(x) for chart, x in zip(charts, z)]
        values = [(u**k, w.sum(1), 1e-11) for u in units for k in range(1, degree + 1)] + [
            (f(*z), w, 1e-9) for f in means
        ]
        now, scales = np.array([[(u * w).sum(), tolerance * (abs(u) * w).sum()] for u, w, tolerance in values]).T
        if nodes or before is not None and np.all(abs(now - before) <= scales):
            points = {b: np.repeat(x, choices.shape[1]) for b, x in zip(moving, z)}
            points |= {b: np.tile(c, len(z[0])) for b, c in zip(latent, choices)}
            return points, w.ravel(), np.repeat(1 + np.max(np.abs(units), 0), choices.shape[1])
        before = now
    raise RecipeError(
        "density",
        f"a grid of {POINTS:,} points does not resolve exp(-H) over {', '.join(map(str, blocks))}",
        do="Give values= at which its scales are closer.",
    )


def _integrands(formulas, moving, latent):
    """Functions of the blocks of a group, by point and choice of the binary ones; all other blocks are at 0.7."""

    def at(e):
        e = e.xreplace({b: Float(0.7) for b in e.free_symbols - {*moving, *latent}})
        f = lambdify([[*moving, *latent]], e, "numpy")
        choices = np.array(list(product([0.0, 1.0], repeat=len(latent)))).T
        return lambda *z: np.broadcast_to(f([*(x[:, None] for x in z), *choices]), (len(z[0]), choices.shape[-1]))

    return [at(e) for e in formulas if e.free_symbols & {*moving, *latent}]


def _panels(edges, nodes):
    """Gauss-Legendre points and weights of all panels."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    edges = np.concatenate(
        [np.linspace(a, b, math.ceil((b - a) / PANEL), endpoint=False) for a, b in zip(edges, edges[1:])] + [edges[-1:]]
    )
    low, high = edges[:-1, None], edges[1:, None]
    return ((low + high) / 2 + (high - low) / 2 * x).ravel(), ((high - low) / 2 * w).ravel()


class _Chart:
    """x as a function of t: c + s sinh(t) on the line, e^t on the half line, logistic between 0 and 1."""

    def __init__(self, domain, centre=0.0, scale=1.0):
        self.line, self.bounded = domain == "real", domain == "fraction"
        self.centre, self.scale = centre if self.line else 0.0, scale

    def point(self, t):
        if self.line:
            return self.centre + self.scale * np.sinh(t)
        return expit(t) if self.bounded else np.exp(t)

    def inverse(self, x):
        with np.errstate(all="ignore"):
            if self.line:
                return np.arcsinh((x - self.centre) / self.scale)
            return logit(x) if self.bounded else np.log(x)

    def log_slope(self, t):
        if self.line:
            return np.log(self.scale * np.cosh(t))
        return log_expit(t) + log_expit(-t) if self.bounded else t

    def units(self, x):
        return (x - self.centre) / self.scale


def _ranges(energy, blocks, degree):
    """For each block its chart, and the range of t outside of which neither mass nor moments are left."""
    charts, depth = [_Chart(b.domain) for b in blocks], -math.log(LEAST)

    def matters(level, t, chart):
        level = level - chart.log_slope(t)
        tilted = level - degree * np.log(1 + abs(chart.point(t)))
        return (level <= level.min() + depth) | (tilted <= tilted.min() + depth)

    ranges = _narrowed(energy, charts, [WINDOW[b.domain] for b in blocks], matters)
    for b, r in zip(blocks, ranges):
        if r[0] == WINDOW[b.domain][0] or r[1] == WINDOW[b.domain][1]:
            raise RecipeError(
                "density, H",
                f"exp(-H) |{b}|^{degree} has no finite integral",
                do=f"Give {b} a confining energy, or take a smaller degree=.",
            )
    measure = lambda t, chart: chart.log_slope(t) * (not chart.line)  # in t on a half line, where H may fall to -oo
    bulk = _narrowed(
        energy,
        charts,
        ranges,
        lambda level, t, chart: level - measure(t, chart) <= (level - measure(t, chart)).min() + 2,
    )
    ends = [chart.point(np.array(r)) for chart, r in zip(charts, bulk)]
    scaled = [_Chart(b.domain, x.mean(), np.ptp(x) / 4) for b, x in zip(blocks, ends)]
    return scaled, [
        tuple(new.inverse(old.point(np.array(r)))) if new.line else r for new, old, r in zip(scaled, charts, ranges)
    ]


def _narrowed(energy, charts, ranges, inside):
    """The ranges of t, one for each chart, to which `inside(energy along t, t, chart)` confines them."""
    for _ in range(40):
        axes, found = [np.linspace(*r, FINENESS[len(charts)]) for r in ranges], []
        for i, (t, chart) in enumerate(zip(axes, charts)):
            level = _profile(energy, charts, axes, i)
            if not np.isfinite(level).any():
                raise RecipeError(
                    "density, H", "exp(-H) vanishes, or is no number, everywhere", do="Look at its signs."
                )
            seen = np.flatnonzero(inside(level, t, chart))
            found.append((t[max(seen[0] - 1, 0)], t[min(seen[-1] + 1, len(t) - 1)]))
        settled = all(np.ptp(new) > 0.8 * np.ptp(old) for new, old in zip(found, ranges))
        ranges = found
        if settled:
            return ranges
    return ranges


def _profile(energy, charts, axes, i):
    """The energy along axis i, minimised over the other blocks: on the grid, then around its best point."""
    others = [j for j in range(len(axes)) if j != i]
    at = lambda t: energy(*(chart.point(x) for chart, x in zip(charts, t)))
    if not others:
        return at(axes)
    level = np.moveaxis(at(np.meshgrid(*axes, indexing="ij")), i, 0)
    where = np.unravel_index(level.reshape(len(axes[i]), -1).argmin(1), level.shape[1:])
    best = level.reshape(len(axes[i]), -1).min(1)
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
        middle, width = [m + w * o[k] for m, w, o in zip(middle, width, offsets)], [w / 3 for w in width]
    return best


# ---- kinks


def _kinks(formulas, block):
    """Where a formula of this block alone changes form: the roots of the arguments of Max, Min, Abs, Piecewise."""
    edges = set()
    for e in formulas:
        edges |= {a - b for f in e.atoms(Max, Min) for a, b in combinations(f.args, 2)}
        edges |= {f.args[0] for f in e.atoms(Abs, sign, Heaviside)} | {c.lhs - c.rhs for c in e.atoms(Relational)}
    found = set()
    for edge in edges:
        if edge.free_symbols == {block}:
            found |= _roots(edge, block)
    return sorted(found)


def _roots(edge, block):
    """The points where a formula of one block changes its sign, by bisection."""
    chart = _Chart(block.domain)
    f = lambdify([block], edge, "numpy")
    t = np.linspace(*WINDOW[block.domain], 8000)  # an even number, so that 0 is not among them
    with np.errstate(all="ignore"):
        signs = np.sign(np.broadcast_to(f(chart.point(t)), t.shape))
    changes = np.flatnonzero(signs[1:] * signs[:-1] < 0)
    found = [brentq(lambda s: float(f(chart.point(s))), t[k], t[k + 1], xtol=1e-14) for k in changes]
    found += [t[k] for k in range(1, len(t) - 1) if signs[k] == 0 and signs[k - 1] * signs[k + 1] < 0]
    return {float(chart.point(x)) for x in found}
