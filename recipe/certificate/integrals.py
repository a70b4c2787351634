"""Integrals of exp(-H/T): whether it has a finite integral, and exp(-U/T) as its marginal at every T.

Blocks in which H is quadratic are integrated by formulas; other integrals are finite by their tails, and known by
quadrature.
"""

import random
from typing import TYPE_CHECKING

from sympy import Add, Expr, Piecewise, Rational, S, Symbol, exp, log

from ..algebra import at_one_site, integrands, vanishes
from ..arrays import of_arrays
from ..calculus import derivative, expanded
from ..declared import Block, temperature
from ..domains import NAMED, Domain
from ..dynamics import Dynamics
from ..energy import Energy
from ..fields import couples, reads
from ..laws import energy_of_site
from ..marginal import Gaussian, eliminate_gaussians
from ..random_points import random_value
from ..results import VERDICTS, Finding
from ..symbols import OPAQUE, Potential, Total, masked, total
from . import ends, surfaces, tails
from .case import STATES, Answer, Case, couples_sites
from .definite import least_value
from .explicit import Explicit

if TYPE_CHECKING:  # numpy is imported where numbers are asked for
    from numpy import ndarray

SHOWN = 4  # coordinates of a direction that are written out
TEMPERATURES = (0.5, 1.0, 3.0)  # temperatures at which the marginal is tested beside the given one


def normalisable(case: Case) -> Answer:
    """Whether exp(-H/T) has a finite integral over all blocks in which H is symbolic, with and without weights."""
    unweighted = _normalisable(case)
    if case.weighted is case or unweighted[2] not in ("proved", "checked"):
        return unweighted
    question, answer, verdict = _normalisable(case.weighted)
    weighted = question.replace("exp(-H)", "exp(-H) times the weights"), answer, verdict
    return max(unweighted, weighted, key=lambda answer: VERDICTS.index(answer[2]))


def _normalisable(case: Case) -> Answer:
    recipe = case.recipe
    gaussians, blocks, rest = case.auxiliary
    jumps = recipe.jumps.values()
    drawn = {b: j.law for j in jumps if j.law is not None for b in j.blocks if b in recipe.latents}
    drawn = {b: law for b, law in drawn.items() if not b.domain.is_discrete}
    if recipe.potential is None:
        # Gaussians are integrated first: exp(-H) may be arbitrarily high where a Gaussian is equally narrow.
        of_target, rest = eliminate_gaussians(rest, recipe.targets, signed=True)
        gaussians += of_target
        known = {g.block for g in gaussians}
        blocks = [b for b in dict.fromkeys([*blocks, *recipe.targets, *drawn]) if b not in known]
        blocks = [b for b in blocks if not b.domain.is_discrete]
        drawn = {}
    weighs_U = recipe.has_copies or recipe.marginal is not None or recipe.weights is not None
    weighs_U &= recipe.potential is not None and not _is_sum_of_energies(recipe, rest)
    if weighs_U:
        blocks = [*dict.fromkeys([*blocks, *recipe.targets])]
    integrated = {*blocks, *drawn, *(g.block for g in gaussians)}
    spheres = [b for b in blocks if b.domain.is_sphere]
    blocks = [b for b in blocks if b not in spheres]
    names = ", ".join(b.name for b in recipe.state if b in integrated)
    question = f"exp(-H) is normalisable in {names or 'no auxiliary block'}"
    if not names:
        return question, "nothing to integrate", "proved"
    laws = [f"{g.block} ~ N({g.mean}, {1 / g.precision})" for g in gaussians]
    laws += [f"{b} ~ {law}" for b, law in drawn.items()]
    precisions = [g.precision.is_positive for g in gaussians]
    signed = all([*precisions, *(getattr(law, name).is_positive for law in drawn.values() for name in law.positive)])
    laws += [f"{b} on a sphere, of finite area" for b in spheres]
    signed &= not rest.has(*spheres)
    tails_of = [f"{b} by its tails" for b in blocks]
    of_sites = f", of {case.sites} sites" if blocks and couples_sites(recipe) else ""
    proper = ", ".join(laws + tails_of) + of_sites, "proved" if signed and not blocks else "checked"
    answer, verdict = _flat_gaussian(gaussians) or _improper(case, rest, blocks) or _pole(case) or proper
    if weighs_U:
        answer += ", for a U that grows as a square"
        verdict = "open" if verdict == "failed" and not _falls_with_U(rest) else verdict
    return question, answer, verdict


def _is_sum_of_energies(recipe: Dynamics, H: Expr) -> bool:
    """Whether the targets are in H as a sum of opaque energies alone, times positive factors."""
    weights = {U: H.coeff(U) for U in H.atoms(Potential)}
    rest = expanded(H - Add(*(w * U for U, w in weights.items())))
    return all(w.is_positive and not w.has(*recipe.state) for w in weights.values()) and not rest.has(*recipe.targets)


def _falls_with_U(H: Expr) -> bool:
    """Whether an opaque energy has a negative factor in H: exp(-H) grows where it grows."""
    return any(H.coeff(U).is_negative for U in H.atoms(Potential))


def _flat_gaussian(gaussians: tuple[Gaussian, ...]) -> tuple[str, str] | None:
    """The state at which the precision of a Gaussian block is not positive, and the verdict; None if there is none."""
    for g in gaussians:
        if not g.precision.is_positive:
            value, where = least_value(g.precision.xreplace({temperature: S.One}), points=STATES)
            if value <= 0:
                return f"precision {value:.3g} of {g.block} at {where}", "failed"
    return None


def _improper(case: Case, rest: Expr, blocks: list[Block]) -> tuple[str, str] | None:
    """The reason why the integral of exp(-rest/T) over some blocks is not finite, and the verdict; None if finite."""
    if not blocks:
        return None
    whole = case.over(case.sites, rest)
    flat = next(filter(None, (_flat_over(part, blocks) for part in whole.by_category())), None)
    if flat or case.sites_of_run == case.sites or not all(b.is_vector for b in blocks):
        return flat
    n = case.sites_of_run  # on the diagonal of n equal sites K is n times that of H/n at one site
    return _flat_over(case.over(1, rest.xreplace({e: n * e for e in rest.atoms(Total)}) / n), blocks)


def _flat_over(explicit: Explicit, blocks: list[Block]) -> tuple[str, str] | None:
    """As `_flat_tail`, over the coordinates of some blocks."""
    domains = {z: b.domain for z, b in zip(explicit.coordinates, explicit.blocks, strict=True) if b in blocks}
    return _flat_tail(explicit.with_numbers_but(domains), domains, explicit.temperature)


def _pole(case: Case) -> tuple[str, str] | None:
    """The point towards which exp(-H/T) grows as fast as no integral allows, and the verdict; None if none is met."""
    point = next(filter(None, map(surfaces.pole, case.explicit.by_category())), None)
    if point is None:
        return None
    at = ", ".join(f"{z} = {x:.2g}" for z, x in list(point.items())[:SHOWN])
    return f"exp(-H) has no finite integral: it grows too fast towards {at}", "failed"


def _flat_tail(H: Expr, domains: dict[Symbol, Domain], at_temperature: float) -> tuple[str, str] | None:
    """The reason why the integral of exp(-H/T) over coordinates is not finite, and the verdict; None if finite."""
    growth = tails.growth(H, domains, at_temperature)
    if growth.is_integrable:
        return None
    if growth.is_undecided:
        return f"not decided: {growth.open}", "open"
    where = ", ".join(f"{z} = {x:.2g}" for z, x in list(growth.at.items())[:SHOWN])
    where += ", ..." if len(growth.at) > SHOWN else ""
    at = "" if at_temperature == 1 else f" at temperature {at_temperature:g}"
    return f"exp(-H) has no finite integral{at}: its mass does not fall towards {where}", "failed"


def normalisable_energy(energy: Energy, domain: Domain = NAMED["real"], *, temperature: float = 1.0) -> Finding:
    """Whether exp(-U/T) has a finite integral, for an energy of explicit coordinates in the same domain.

    >>> from sympy import symbols
    >>> x, y = symbols("x y", real=True)
    >>> normalisable_energy(Energy((x, y), U=(x - y)**2)).verdict
    'failed'
    """
    question = f"exp(-U) is normalisable in {', '.join(map(str, energy.coordinates))}"
    if domain.is_sphere and ends.may_make_infinite(energy.U):
        answer = "not decided: U may be infinite on the sphere", "open"
    elif domain.is_sphere:
        answer = "U is finite on the sphere, which has a finite area", "proved"
    else:
        failure = _flat_tail(energy.U, dict.fromkeys(energy.coordinates, domain), temperature)
        answer = failure or ("by its tails", "checked")
    return Finding(question, *answer, "normalisable")


def marginal(case: Case) -> Answer:
    """Whether H with the auxiliary blocks integrated out is the energy of the target.

    The answer says so if this holds at the given temperature only.
    """
    if case.weighted is case:
        return _marginal(case, is_declared=case.recipe.marginal is not None)
    question, answer, verdict = _marginal(case.weighted, is_declared=True)
    question = question.replace("marginal", "weighted marginal").replace("exp(-H)", "exp(-H) times the weights,")
    return question, answer, verdict


def _marginal(case: Case, *, is_declared: bool) -> Answer:
    """The answer for a case without weights; `is_declared`: whether the recipe says what the target's law is."""
    recipe, at_temperature = case.recipe, case.temperature
    gaussians, blocks, rest = case.auxiliary
    names = ", ".join(b.name for b in recipe.targets)
    energy = recipe.energy_of_target
    if energy is None:
        whole = "H couples copies of U" if recipe.has_copies else "H is wholly symbolic"
        return f"the marginal of {names} is exp(-H) integrated", whole if blocks else f"energy {rest}", "proved"
    surplus = expanded(rest - energy)
    declared = "exp(-U)" if recipe.marginal is None else "as declared"
    if is_declared:
        surplus = _summed(surplus, recipe)
    if couples(surplus, recipe.targets, recipe.latents):
        jumping = ", ".join(map(str, recipe.latents))
        if is_declared:
            return f"the marginal of {names} is {declared}", f"not decided: the sum over {jumping}", "open"
        question = f"the marginal of {names}, {jumping} is exp(-H) integrated"
        return question, f"energy {rest}", "open" if blocks else "proved"
    at_every_temperature = _constant(recipe, surplus)
    answer, verdict = at_every_temperature or _surplus(recipe, blocks, surplus, at_temperature)
    if verdict in ("proved", "checked") and not at_every_temperature:
        elsewhere = next((T for T in TEMPERATURES if _surplus(recipe, blocks, surplus, T)[1] == "failed"), None)
        if elsewhere is not None:
            answer += f", at temperature {at_temperature:g} alone: multiply logs of masses in H by recipe.temperature"
    return f"the marginal of {names} is {declared}", answer, verdict


def is_of_one_temperature(answer: str) -> bool:
    """Whether an answer of `marginal` holds at the given temperature only."""
    return " alone: " in answer


def _surplus(recipe: Dynamics, blocks: list[Block], surplus: Expr, at_temperature: float) -> tuple[str, str]:
    """The answer and verdict whether H less the target's energy integrates to a constant over the other blocks."""
    surplus = expanded(surplus.xreplace({temperature: Rational(repr(float(at_temperature)))}))
    constant = _constant(recipe, surplus)
    if constant:
        return constant
    coupled = Add(*(t for t in Add.make_args(surplus) if any(reads(t, b) for b in recipe.targets)))
    if not any(reads(coupled, b) for b in blocks):
        power = "" if at_temperature == 1 else f"/{at_temperature:g}"
        return f"exp(-U{power}) is multiplied by exp(-({coupled}){power})", "failed"
    if len(blocks) > 1 or blocks[0].domain.is_sphere or not _is_by_site(recipe, blocks[0], surplus):
        return f"not decided: the integral of exp(-({coupled}))", "open"
    spread, error = _log_integral_spread(surplus / at_temperature, blocks[0], recipe.targets)
    if spread < 1e-6:
        return f"by quadrature over {blocks[0]}", "checked"
    if spread < 10 * error:
        return f"not decided: the quadrature over {blocks[0]} is not accurate", "open"
    names = ", ".join(b.name for b in recipe.targets)
    return f"the integral over the auxiliary blocks varies with {names}: log-spread {spread:.2g}", "failed"


def _summed(surplus: Expr, recipe: Dynamics) -> Expr:
    """The surplus with categories that target terms read summed over, where it is a sum over their sites."""
    for b in (b for b in recipe.latents if b.domain.is_discrete and couples(surplus, recipe.targets, (b,))):
        energy = energy_of_site(surplus, b)
        if energy is None or surplus.has(Piecewise):
            continue
        weight = exp(expanded(-energy / temperature))  # of which a log of 0 makes 0
        summed = -temperature * log(Add(*(weight.xreplace({b: S(k)}) for k in range(b.domain.categories))))
        if summed.has(S.NaN, S.ComplexInfinity, S.Infinity, S.NegativeInfinity):
            continue
        rest = Add(*(t for t in Add.make_args(surplus) if not reads(t, b)))
        surplus = rest + (total(summed) if b.is_vector else summed)
    return surplus


def _constant(recipe: Dynamics, surplus: Expr) -> tuple[str, str] | None:
    """The answer and verdict for an H that differs from the target's energy by what reads no target; None if one is."""
    grades = {vanishes(derivative(surplus, b)) for b in recipe.targets}
    if None in grades:
        return None
    at = " at random states" if "numeric" in grades else ""
    return f"the auxiliary blocks integrate to a constant{at}", "checked" if at else "proved"


def _is_by_site(recipe: Dynamics, b: Block, surplus: Expr) -> bool:
    """Whether exp(-surplus) is a product over the sites, so that its integral over b factorises by site."""
    if b.is_vector != recipe.target_is_vector or surplus.has(*OPAQUE[1:]):
        return False
    sums = integrands(surplus)
    coupled = any(t.has(*recipe.state) for e in sums.values() for t in e.atoms(Total))
    return max(sums) <= 1 and not coupled


def _log_integral_spread(surplus: Expr, b: Block, targets: tuple[Block, ...]) -> tuple[float, float]:
    """The range, over target points, of the log of the integral over b of exp(-surplus), for one site, and its error.

    The trapezoidal rule of each half line in log x converges for heavy tails and kinks at 0. The error is the largest
    difference to the rule of every other point.
    """
    import numpy as np

    energy, _ = masked(at_one_site(surplus), *OPAQUE[1:])  # opaque terms are constants
    symbols = sorted(energy.free_symbols, key=lambda s: s.name)
    function = of_arrays([symbols], energy, cse=True)
    draw = random.Random(2015)
    fixed = {s: getattr(s, "default", None) or random_value(s, draw) for s in symbols}
    y = np.linspace(-40, 40, 16001)
    halves = [np.exp(y), -np.exp(y)] if b.domain.is_real else [tails.point(b.domain, y)]
    slope = y if b.domain.is_real else tails.log_slope(b.domain, y)
    logs: list[tuple[float, float]] = []
    for _ in range(7):
        at = {**fixed, **{t: random_value(t, draw) for t in targets}}
        with np.errstate(all="ignore"):
            values = [np.broadcast_to(function([{**at, b: x}[s] for s in symbols]), x.shape) - slope for x in halves]
        falls = -np.nan_to_num(np.array(values), nan=np.inf)
        logs.append((_log_sum(falls), _log_sum(falls[:, ::2]) + np.log(2)))
    fine, coarse = np.array(logs).T
    return float(np.ptp(fine)), float(abs(fine - coarse).max())


def _log_sum(logs: "ndarray") -> float:
    from numpy import logaddexp

    return float(logaddexp.reduce(logs, axis=None))
