"""Approximate flows, used only where a recipe asks for one by `numerical(piece, "name")`."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from sympy import Abs, Dummy, Expr, Piecewise, Rational, S, exp, expand, sqrt, sympify

from recipe.errors import RecipeError
from recipe.spheres import project
from recipe.symbols import Block, Crossing, Partial, Total, masked, temperature, total
from recipe.symbols import duration as t

from .flow_rules import Solution, brownian, ornstein_uhlenbeck
from .functions import HalfStep
from .predicted import at
from .split import Subsystem
from .variates import Normal, Time, Uniform, Variate


def euler(piece: Subsystem) -> Solution:
    """x' = x + t f(x) + sqrt(2 t D(x)) N  (Euler-Maruyama); of u on a sphere, with d P in D and P f its drift along it,

        u' ~ u/sqrt(1 + (n + 2) T d t) + t P f + sqrt(2 T d t) P N

    Scaled to the sphere, this has the means of Brownian motion up to t^2, whose drift -(n - 1) T d u the scaling makes.
    """
    on_spheres = [b for b in piece.moving if b.domain.is_sphere]
    along = {u: expand(project(u)(piece.drift.get(u, S.Zero))) for u in on_spheres}
    updates, draws = brownian(piece, {**piece.drift, **along})
    for u in on_spheres:
        spread = temperature * piece.diffusion.get((u, u), S.Zero) / project(u) * t
        updates[u] += u / sqrt(1 + (total(1) + 2) * spread) - u
    return updates, draws


def reflected(piece: Subsystem) -> Solution:
    """x' = |x + t f(x) + sqrt(2 t D(x)) N| for positive blocks; folded at both ends of a box."""
    if not all(b.domain.ends for b in piece.moving):
        what = "it moves a block that may be negative, and has no ends"
        do = 'Declare it with domain="positive", or the ends (a, b) of a box, or use "euler".'
        raise RecipeError(f"numerical(..., 'reflected') for {piece.letter!r}", what, do=do)
    return brownian(piece, piece.drift)


def tamed(piece: Subsystem) -> Solution:
    """x' = x + t f(x)/(1 + t |f(x)|) + sqrt(2 t D(x)) N, by coordinate: no drift moves it by more than 1.

    Source: Brosse, Durmus, Moulines and Sabanis (2019), "The tamed unadjusted Langevin algorithm", by coordinate.
    """
    return brownian(piece, {b: f / (1 + t * Abs(f)) for b, f in piece.drift.items()})


def heun(piece: Subsystem) -> Solution:
    """y = x + t f(x) + w,  x' = x + t (f(x) + f(y))/2 + w, with additive noise w.

    Source: Kloeden and Platen (1992), "Numerical solution of stochastic differential equations", section 15.1.
    """
    _refuse_multiplicative(piece, "heun")
    predicted, draws = brownian(piece, piece.drift)
    mean = {b: (f + at(f, predicted)) / 2 for b, f in piece.drift.items()}
    updates, _ = brownian(piece, mean)
    return updates, draws


def randomised_midpoint(piece: Subsystem) -> Solution:
    """y = x + a t f(x) + w(a t),  x' = x + t f(y) + w(t), with a uniform time a per chain and one noise path w.

    Source: He, Balasubramanian and Erdogdu (2020), "On the ergodicity, bias and asymptotic normality of randomized
    midpoint sampling method", section 1.
    """
    _refuse_multiplicative(piece, "randomised midpoint")
    noise, draws = _noise(piece)
    later, more = _noise(piece, "later")
    first = piece.moving[0]
    a = Time(first, f"time of {first}", is_vector=False)
    until = {b: sqrt(a) * w for b, w in noise.items()}
    middle = {b: b + a * t * piece.drift.get(b, 0) + until[b] for b in piece.moving}
    slopes = {b: at(piece.drift.get(b, S.Zero), middle) for b in piece.moving}
    updates = {b: b + t * slopes[b] + until[b] + sqrt(1 - a) * later[b] for b in piece.moving}
    return updates, (*draws, *more, a)


def stochastic_runge_kutta(piece: Subsystem) -> Solution:
    """x' = x + t (f(y) + f(z))/2 + w, with additive noise w and an independent v of the same law:

        y = x + (1/2 + 1/sqrt 6) w + v/sqrt 12,   z = x + t f(x) + (1/2 - 1/sqrt 6) w + v/sqrt 12

    Source: Li, Wu, Mackey and Erdogdu (2019), "Stochastic Runge-Kutta accelerates Langevin Monte Carlo and beyond",
    section 3, after Milstein and Tretyakov (2004), "Stochastic numerics for mathematical physics".
    """
    _refuse_multiplicative(piece, "stochastic runge-kutta")
    w, draws = _noise(piece)
    v, more = _noise(piece, "beside")
    drift = {b: piece.drift.get(b, S.Zero) for b in piece.moving}
    third = sqrt(Rational(1, 6))
    y = {b: b + (S.Half + third) * w[b] + v[b] / sqrt(12) for b in drift}
    z = {b: b + t * f + (S.Half - third) * w[b] + v[b] / sqrt(12) for b, f in drift.items()}
    updates = {b: b + t * (at(f, y) + at(f, z)) / 2 + w[b] for b, f in drift.items()}
    return updates, (*draws, *more)


def _noise(piece: Subsystem, stem: str = "") -> tuple[dict[Block, Expr], tuple[Variate, ...]]:
    """sqrt(2 t (T D - supplied)) N for each moving block; a stem names variates independent of the blocks' own."""
    updates, draws = brownian(piece, {})
    copies = {d: Normal(d.block, f"{stem} {d.name}", d.is_vector) for d in draws} if stem else {}
    return {b: (e - b).xreplace(copies) for b, e in updates.items()}, tuple(copies.get(d, d) for d in draws)


def _refuse_multiplicative(piece: Subsystem, name: str) -> None:
    """Refuse noise that depends on moving blocks, and supplied noise with gradients at several points."""
    where = f"numerical(..., {name!r}) for {piece.letter!r}"
    if any(e.has(*piece.moving) for e in piece.diffusion.values()):
        raise RecipeError(where, "its noise depends on the blocks it moves", do="Use 'euler', or another split.")
    takes_more = any(p.U.has(*piece.moving) for f in piece.drift.values() for p in f.atoms(Partial))
    if takes_more and any(piece.supplied.values()):
        what = "its gradients are of several points, and the noise that they supply is that of one"
        raise RecipeError(where, what, do="Use 'euler', or leave out `supplied`.")


def exponential(piece: Subsystem) -> Solution:
    """dx = (c - a(x) x) dt + s dW:  the Ornstein-Uhlenbeck flow at the rate a(x) of the initial x, with grad U in c."""
    where = f"numerical(..., 'exponential') for {piece.letter!r}"
    if len(piece.moving) != 1:
        raise RecipeError(where, "it moves several blocks", do="Give every block a piece of its own.")
    (x,) = piece.moving
    whole = piece.drift.get(x, S.Zero)
    slopes = {g: Dummy(real=True) for g in whole.atoms(Partial) if g.has(x)}
    if slopes:
        _refuse_multiplicative(piece, "exponential")
    drift = whole.xreplace(slopes)
    hidden = any(e.has(x) for e in drift.atoms(Total, Crossing))
    c = S.NaN if hidden else drift.subs(x, 0)
    if c.has(S.NaN, S.ComplexInfinity):
        what = f"{whole} is not c - a({x}) {x}, with c and a finite"
        raise RecipeError(where, what, do="Use 'euler'.")
    rate = expand((c - drift) / x)
    a = Dummy("a", real=True)
    solution = ornstein_uhlenbeck(replace(piece, drift={x: c - a * x}))
    if solution is None:
        raise RecipeError(where, "its noise depends on the block it moves", do="Use 'euler', or another split.")
    updates, draws = solution
    return {x: updates[x].xreplace({a: rate}).xreplace({s: g for g, s in slopes.items()})}, draws


def barker(piece: Subsystem) -> Solution:
    """x' = x + z or x - z, z = sqrt(2 t D) N, the first with the probability 1/(1 + exp(-f(x) z/(T D))).

    Source: Livingstone and Zanella (2022), "The Barker proposal: combining robustness and efficiency in gradient-based
    MCMC", algorithm 1.
    """
    where = f"numerical(..., 'barker') for {piece.letter!r}"
    x, *others = piece.moving
    D = piece.diffusion.get((x, x), S.Zero)
    if others or x.domain.wraps:
        raise RecipeError(where, "it moves several blocks, or an angle", do="Give every block a piece of its own.")
    if D.has(x, Crossing) or not D.is_positive or any(piece.supplied.values()):
        what = f"its noise {D} may vanish, depends on {x}, or is supplied in part"
        raise RecipeError(where, what, do="Use 'euler', or a positive D of what stays.")
    updates, (normal,) = brownian(piece, {})
    z, turn = updates[x] - x, Uniform(x, f"sign of {x}")
    forward = turn < 1 / (1 + exp(-piece.drift.get(x, S.Zero) * z / (temperature * D)))
    return {x: x + Piecewise((z, forward), (-z, True))}, (normal, turn)


def generalised_leapfrog(piece: Subsystem) -> tuple[dict[Block, Expr], ...]:
    """Half steps of dx = f(x, p) dt, dp = g(x, p) dt in turn, each at the present value of the other block:

        p = p_0 + (t/2) g(x_0, p),  x = x_0 + (t/2) f(x_0, p),  x_1 = x + (t/2) f(x_1, p),  p_1 = p + (t/2) g(x_1, p)

    The second undoes the third and the first the fourth when t changes its sign: the flow is reversible, and keeps the
    volume where f = dH/dp and g = -dH/dx. Source: Girolami and Calderhead (2011), "Riemann manifold Langevin and
    Hamiltonian Monte Carlo methods", eqs. (16)-(18); Leimkuhler and Reich (2004), section 4.2.
    """
    where = f"numerical(..., 'generalised leapfrog') for {piece.letter!r}"
    moving = sorted(piece.drift, key=lambda b: piece.drift[b].has(Partial))  # the momentum feels the force
    if len(moving) != 2 or piece.diffusion or not all(b.is_vector and b.domain.is_real for b in moving):
        what = f"it moves a position and a momentum without noise, got {piece}"
        raise RecipeError(where, what, do="Let the friction and the noise be another piece: O, friction(p) + noise(p).")
    x, p = moving
    for b, f in piece.drift.items():
        if masked(f, Crossing)[0].atoms(Total) - {total(1)}:
            raise RecipeError(where, f"the drift of {b} reads a sum over sites, {f}", do="Cut it finer.")
    half = {b: expand(t / 2 * f) for b, f in piece.drift.items()}
    turns = ((p, True), (x, False), (x, True), (p, False))
    return tuple({b: HalfStep(b, half[b], sympify(is_implicit))} for b, is_implicit in turns)


class Method(NamedTuple):
    """A numerical flow, its weak order, and whether the flow evaluates the drift at predicted points.

    `in_turn`: whether the flow is several updates, one after the other.
    """

    advance: Callable[[Subsystem], Any]
    order: int
    predicts: bool = False
    in_turn: bool = False


METHODS: dict[str, Method] = {
    "euler": Method(euler, order=1),
    "heun": Method(heun, order=2, predicts=True),
    "randomised midpoint": Method(randomised_midpoint, order=2, predicts=True),
    "stochastic runge-kutta": Method(stochastic_runge_kutta, order=2, predicts=True),
    "tamed": Method(tamed, order=1),
    "reflected": Method(reflected, order=1),
    "exponential": Method(exponential, order=1),
    "barker": Method(barker, order=1),
    "generalised leapfrog": Method(generalised_leapfrog, order=2, in_turn=True),
}
