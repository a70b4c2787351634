"""Tests whether exp(-U/T) is the marginal of exp(-H/T) at every T: by Gaussian integrals, else by quadrature."""

import random
from collections.abc import Sequence
from itertools import pairwise
from math import exp, isfinite, log

from sympy import Add, Expr, Rational, Symbol

from ..algebra import at_one_site, integrands, random_value, vanishes
from ..declared import Block, temperature
from ..dynamics import Dynamics
from ..marginal import Gaussian, eliminate_gaussians
from ..symbols import OPAQUE, Total, masked
from .definite import numeric
from .finding import Finding

TEMPERATURES = (0.5, 1.0, 3.0)  # temperatures at which the marginal is tested beside the given one


def auxiliary_blocks(recipe: Dynamics) -> tuple[tuple[Gaussian, ...], list[Block], Expr]:
    """The laws of the auxiliary blocks with Gaussian conditionals, the other auxiliary blocks, and the remaining H."""
    auxiliary = recipe.momenta + recipe.thermostats
    gaussians, rest = eliminate_gaussians(recipe.H, auxiliary)
    others = [b for b in auxiliary if b not in [g.block for g in gaussians]]
    return gaussians, others, rest


def marginal(recipe: Dynamics, at_temperature: float = 1.0) -> Finding:
    """Whether H with the auxiliary blocks integrated out is the energy of the target.

    The answer says so if this holds at the given temperature only.
    """
    gaussians, others, rest = auxiliary_blocks(recipe)
    names = ", ".join(b.name for b in recipe.targets)
    energy = recipe.energy_of_target
    if energy is None:
        question = f"the marginal of {names} is exp(-H) integrated"
        whole = "H couples copies of U" if recipe.has_copies else "H is wholly symbolic"
        return Finding(question, whole if others else f"energy {rest}", "proved", "marginal")
    if recipe.latents:
        names = ", ".join(b.name for b in recipe.targets + recipe.latents)
        question = f"the marginal of {names} is exp(-H) integrated"
        return Finding(question, f"energy {rest}", "open" if others else "proved", "marginal")
    declared = "exp(-U)" if recipe.marginal is None else "as declared"
    surplus = (rest - energy).expand()
    answer, verdict = _surplus(recipe, others, surplus, at_temperature)
    if verdict in ("proved", "checked"):
        elsewhere = next((T for T in TEMPERATURES if _surplus(recipe, others, surplus, T)[1] == "failed"), None)
        if elsewhere is not None:
            answer += f", at temperature {at_temperature:g} alone: multiply logs of masses in H by recipe.temperature"
    return Finding(f"the marginal of {names} is {declared}", answer, verdict, "marginal")


def is_of_one_temperature(finding: Finding) -> bool:
    """Whether an answer holds at the given temperature only."""
    return " alone: " in finding.answer


def _surplus(recipe: Dynamics, others: list[Block], surplus: Expr, at_temperature: float) -> tuple[str, str]:
    """The answer and verdict whether H less the target's energy integrates to a constant over the other blocks."""
    constant = ("the auxiliary blocks integrate to a constant", "proved")
    surplus = surplus.xreplace({temperature: Rational(repr(float(at_temperature)))}).expand()
    coupled = Add(*(t for t in Add.make_args(surplus) if any(t.has(b) for b in recipe.targets)))
    if coupled == 0:
        return constant
    if not others:
        if all(vanishes(surplus.diff(b)) for b in recipe.targets):
            return constant
        power = "" if at_temperature == 1 else f"/{at_temperature:g}"
        return f"exp(-U{power}) is multiplied by exp(-({coupled}){power})", "failed"
    if len(others) > 1 or not _is_by_site(recipe, others[0], surplus):
        return f"not decided: the integral of exp(-({coupled}))", "open"
    spread = _log_integral_spread(surplus / at_temperature, others[0], recipe.targets)
    if spread < 1e-6:
        return f"by quadrature over {others[0]}", "checked"
    names = ", ".join(b.name for b in recipe.targets)
    return f"the integral over the auxiliary blocks varies with {names}: log-spread {spread:.2g}", "failed"


def _is_by_site(recipe: Dynamics, b: Block, surplus: Expr) -> bool:
    """Whether exp(-surplus) is a product over the sites, so that its integral over b factorises by site."""
    if b.is_vector != recipe.target_is_vector or surplus.has(*OPAQUE[1:]):
        return False
    sums = integrands(surplus)
    coupled = any(t.has(*recipe.state) for e in sums.values() for t in e.atoms(Total))
    return max(sums) <= 1 and not coupled


def _one_site(H: Expr) -> Expr:
    """H for one site, with opaque terms replaced by constants."""
    return masked(at_one_site(H), *OPAQUE[1:])[0]


def _typical(s: Symbol, draw: random.Random) -> float:
    """The default of a parameter, or a random value."""
    return getattr(s, "default", None) or random_value(s, draw)


def _log_integral_spread(surplus: Expr, b: Block, targets: tuple[Block, ...]) -> float:
    """The range, over target points, of the log of the integral over b of exp(-surplus), for one site."""
    from numpy import linspace, sinh

    k = _one_site(surplus)
    symbols = sorted(k.free_symbols, key=lambda s: s.name)
    evaluate = numeric(symbols, [k], often=True)
    draw = random.Random(2015)
    fixed = {s: _typical(s, draw) for s in symbols}
    grid = sinh(linspace(-12, 12, 2401)).tolist()
    logs = []
    for _ in range(7):
        at = {**fixed, **{t: random_value(t, draw) for t in targets}}
        energies = [float(evaluate([x if s == b else at[s] for s in symbols])[0]) for x in grid]
        logs.append(_log_integral(energies, grid))
    return max(logs) - min(logs)


def _log_integral(energies: Sequence[float], grid: Sequence[float]) -> float:
    """log of the integral of exp(-energy) by the trapezoidal rule."""
    low = min(energies)
    weights = [exp(low - v) if isfinite(v) else 0.0 for v in energies]
    widths = (right - left for left, right in pairwise(grid))
    return -low + log(sum((w + v) / 2 * d for (w, v), d in zip(pairwise(weights), widths)))
