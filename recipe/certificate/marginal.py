"""Tests whether exp(-U/T) is the marginal of exp(-H/T) at every T: by Gaussian integrals, else by quadrature."""

import random

from sympy import Add, Expr, Rational

from ..algebra import at_one_site, integrands, random_value, vanishes
from ..arrays import of_arrays
from ..declared import Block, temperature
from ..dynamics import Dynamics
from ..marginal import Gaussian, eliminate_gaussians
from ..symbols import OPAQUE, Total, masked

TEMPERATURES = (0.5, 1.0, 3.0)  # temperatures at which the marginal is tested beside the given one


def auxiliary_blocks(recipe: Dynamics) -> tuple[tuple[Gaussian, ...], list[Block], Expr]:
    """The laws of the auxiliary blocks with Gaussian conditionals, the other auxiliary blocks, and the remaining H."""
    auxiliary = recipe.momenta + recipe.thermostats
    gaussians, rest = eliminate_gaussians(recipe.H, auxiliary)
    others = [b for b in auxiliary if b not in [g.block for g in gaussians]]
    return gaussians, others, rest


def marginal(recipe: Dynamics, at_temperature: float = 1.0) -> tuple[str, str, str]:
    """Whether H with the auxiliary blocks integrated out is the energy of the target: question, answer, verdict.

    The answer says so if this holds at the given temperature only.
    """
    gaussians, others, rest = auxiliary_blocks(recipe)
    names = ", ".join(b.name for b in recipe.targets)
    energy = recipe.energy_of_target
    if energy is None:
        whole = "H couples copies of U" if recipe.has_copies else "H is wholly symbolic"
        return f"the marginal of {names} is exp(-H) integrated", whole if others else f"energy {rest}", "proved"
    if recipe.latents:
        names = ", ".join(b.name for b in recipe.targets + recipe.latents)
        question = f"the marginal of {names} is exp(-H) integrated"
        return question, f"energy {rest}", "open" if others else "proved"
    declared = "exp(-U)" if recipe.marginal is None else "as declared"
    surplus = (rest - energy).expand()
    answer, verdict = _surplus(recipe, others, surplus, at_temperature)
    if verdict in ("proved", "checked"):
        elsewhere = next((T for T in TEMPERATURES if _surplus(recipe, others, surplus, T)[1] == "failed"), None)
        if elsewhere is not None:
            answer += f", at temperature {at_temperature:g} alone: multiply logs of masses in H by recipe.temperature"
    return f"the marginal of {names} is {declared}", answer, verdict


def is_of_one_temperature(answer: str) -> bool:
    """Whether an answer of `marginal` holds at the given temperature only."""
    return " alone: " in answer


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


def _log_integral_spread(surplus: Expr, b: Block, targets: tuple[Block, ...]) -> float:
    """The range, over target points, of the log of the integral over b of exp(-surplus), for one site."""
    import numpy as np

    energy, _ = masked(at_one_site(surplus), *OPAQUE[1:])  # opaque terms are constants
    symbols = sorted(energy.free_symbols, key=lambda s: s.name)
    function = of_arrays([symbols], energy, cse=True)
    draw = random.Random(2015)
    fixed = {s: getattr(s, "default", None) or random_value(s, draw) for s in symbols}
    x = np.sinh(np.linspace(-12, 12, 2401))
    logs = []
    for _ in range(7):
        at = {**fixed, **{t: random_value(t, draw) for t in targets}, b: x}
        with np.errstate(all="ignore"):
            values = np.nan_to_num(function([at[s] for s in symbols]), nan=np.inf)
        weights = np.exp(values.min() - values)
        logs.append(float(np.log(((weights[1:] + weights[:-1]) / 2 * np.diff(x)).sum()) - values.min()))
    return max(logs) - min(logs)
