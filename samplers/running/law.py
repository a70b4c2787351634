"""The law of a run's draws: the certificate of each stage, at its parameters, temperatures and frozen blocks."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import sympy
import torch

from integrators.adapting import Adapting, adapting
from integrators.linear_law import has_normal_noise, is_affine, linear_chain
from integrators.metropolis import MetropolisedStep
from integrators.operators import Operator
from recipe import Certificate, Energy, Recipe
from recipe.algebra import entries
from recipe.arguments import is_number
from recipe.certificate.case import Case
from recipe.certificate.integrals import normalisable_energy
from recipe.certificate.motion import rank_of_run
from recipe.certificate.reach import way_by_form
from recipe.declared import Block
from recipe.errors import RecipeError, warn
from recipe.results import VERDICTS
from recipe.symbols import Total

from ..results.findings import told_apart
from ..target.layout import by_block, position_of
from ..target.target import Target
from .plan import Plan, Stage

DESCENT = "none: at temperature 0 chains descend to a mode"
ADVICE = {
    "boundary": "No step size mends this: let D vanish at the end, reflect there, or sample a map of it to the reals.",
    "explosion": "No step size mends this: let D grow slower.",
    "normalisable": "U is -log density: mend its sign if a log-density was handed in, or add a prior.",
}


def check_law(plan: Plan, energy: Any, parameters: Mapping[str, Any], sites: int, where: str) -> str:
    """The law that a plan claims for its draws, stage by stage, in the words of the certificate.

    Certificates are taken at the parameters and the number of sites of the run, the extremes of the temperature, and
    the frozen blocks. Phases without draws are left out, phases at temperature 0 claim no law; while an operator
    adapts, the claim is for the dynamics with the operator frozen. Raises RecipeError where a finding fails; warns once
    where the law is invariant but chains need not reach the law.
    """
    symbolic = energy if isinstance(energy, Energy) and not energy.data else None
    values = {name: value for name, x in parameters.items() if (value := _number(x)) is not None}
    promises: dict[str, None] = {}
    doubts: dict[str, None] = {}
    for number, stage in enumerate(plan.stages):
        if not stage.phase.keep:
            continue
        place = where if len(plan.stages) == 1 else f"{where}, phase {number}"
        temperatures = {T for T in stage.probes()[1] if T > 0}
        certificates = [
            _certificate(stage.step.declared, symbolic, T, stage.step.frozen, tuple({**values, **end}.items()), sites)
            for T in sorted({min(temperatures), max(temperatures)} if temperatures else ())
            for end in stage.extremes()
        ]
        for certificate in certificates:
            if certificate.failures:
                finding, still = certificate.failures[0], ", ".join(stage.step.frozen)
                advice = ADVICE.get(finding.topic, "See recipe.check().")
                if still:
                    advice = f"Let {still} move, or freeze it in a Phase at temperature 0 or with keep=False."
                raise RecipeError(place, f"the recipe has not the law it claims: {finding.in_words}", do=advice)
            doubts |= dict.fromkeys(certificate.doubts)
        promises |= dict.fromkeys(_promises(stage, certificates, adapting(parameters)))
    if doubts:
        warn(f"{where}: {'; '.join(doubts)}")
    return "; then ".join(promises)


def check_reach(plan: Plan, law: str, target: Target, parameters: Mapping, start: Mapping, where: str) -> str:
    """The law of a run, weaker if noise does not reach every block under the run's own U, operators and sites.

    Asked where momenta, or the target, lack noise of their own, the form of the drift does not answer it, and U is one
    function without data.
    """
    stage = (plan.kept_stages or plan.stages[-1:])[0]
    recipe = stage.step.declared
    temperature = max(stage.probes()[1])
    is_asked = not (recipe.has_several_potentials or recipe.fields or stage.step.frozen) and temperature > 0
    movers = [recipe.state.index(b) for b in recipe.momenta or recipe.targets]
    is_asked &= not all(recipe.D[i, i].is_positive for i in movers)
    is_asked &= "exact" in law and target.data is None and (target.whole is not None or bool(recipe.operators))
    if not is_asked or way_by_form(recipe):
        return law
    like = start[recipe.targets[0].name]
    identity = torch.eye(like[0].numel(), dtype=torch.float64)
    constant = {n: M for n, M in parameters.items() if isinstance(M, Operator) and not isinstance(M, Adapting)}
    matrices = {name: (M @ identity.to(M.tensors[0])).T.double().cpu().numpy() for name, M in constant.items()}
    values = {name: x for name, value in parameters.items() if (x := _number(value)) is not None}

    def gradient(at: Mapping[Block, np.ndarray]) -> dict[Block, np.ndarray]:
        if target.whole is None:
            return {}
        blocks = {b.name: torch.tensor(at[b], device=like.device) for b in recipe.targets}
        shaped = {name: x.reshape(len(x), *start[name].shape[1:]) for name, x in blocks.items()}
        slopes = by_block(recipe, target.at(position_of(recipe, shaped)).slope)
        return {b: slopes[b.name].detach().reshape(at[b].shape).cpu().numpy() for b in recipe.targets}

    case = Case(recipe, temperature, (), values)
    try:
        known = rank_of_run(case, like[0].numel(), gradient, matrices)
    except (TypeError, ValueError, RuntimeError, IndexError):  # U takes no float64, say
        return law
    if known is None or known[0] == known[1]:
        return law
    reached = f"under the energy and the operators of the run it reaches {known[0]} of {known[1]} directions"
    warn(f"{where}: the noise reaches every block? {reached}: invariant, but not ergodic")
    return law.replace("exact", "invariant; not ergodic", 1)


@lru_cache(maxsize=128)
def _certificate(
    recipe: Recipe, energy: Energy | None, temperature: float, freeze: tuple[str, ...], values: tuple, sites: int
) -> Certificate:
    """The certificate of a recipe, with U bound to the energy where the energy is symbolic."""
    settings: dict[str, Any] = {"temperature": temperature, "freeze": freeze, "sites": sites, **dict(values)}
    if energy is not None and recipe.potential is not None and energy.is_sitewise == recipe.target_is_vector:
        return recipe.bind(U=energy).check(**settings)
    opaque = recipe.check(**settings)
    if energy is None or recipe.potential is None or recipe.maps:  # of a map the volume is in H, not in U
        return opaque
    target = normalisable_energy(energy, recipe.targets[0].domain, temperature=temperature)
    return Certificate(recipe.name, (target, *opaque.findings))


def _number(x: Any) -> float | None:
    """A parameter as a number, the worst case: of one value per site that nearest to 0, of an operator its least one.

    None for an operator that adapts or is a function.
    """
    if isinstance(x, Operator) and not isinstance(x, Adapting):
        eigenvalues = x.eigenvalues()
        return None if eigenvalues.is_complex() else float(eigenvalues.min().clamp(min=0))
    if is_number(x):
        return float(x)
    if torch.is_tensor(x) and x.numel():
        flat = x.detach().flatten()
        return float(flat[flat.abs().argmin()])
    return None


def _promises(stage: Stage, certificates: list[Certificate], operators: Mapping[str, Adapting]) -> list[str]:
    """The weakest claims of a stage in order: given the adapting operators frozen, then without them."""
    claims = [certificate["claim"] for certificate in certificates]
    promise = max(claims, key=lambda f: VERDICTS.index(f.verdict)).answer if claims else DESCENT
    end = stage.first + stage.steps
    ends = sorted({min(M.last or end, end) for M in operators.values()})
    promises = []
    for last in ends:
        if last > stage.first:
            moving = sorted(name for name, M in operators.items() if (M.last or end) >= last)
            frozen = f"given frozen {', '.join(moving)}"
            is_exact = promise.startswith("exact")
            promises.append(promise.replace("exact", frozen, 1) if is_exact else f"{promise}, {frozen}")
    return promises if ends and ends[-1] == end else [*promises, promise]


def check_stability(plan: Plan, energy: Any, parameters: Mapping, where: str) -> None:
    """Refuse a first step size at which the step is unstable: its linear map has a spectral radius above 1.

    The check is made only where U is symbolic and quadratic, the step affine and every parameter a number.
    """
    step = plan.step
    if not isinstance(energy, Energy) or energy.data or isinstance(step, MetropolisedStep):
        return
    step_size = plan.stages[0].step_size(0)
    if step.frozen or any(torch.is_tensor(v) for v in parameters.values()):
        return
    if not (is_affine(step.recipe) and has_normal_noise(step)):
        return
    hessian = _constant_hessian(energy)
    if hessian is None:
        return
    matrix = [[float(e) for e in row] for row in hessian.tolist()]
    chain = linear_chain(step, step_size, matrix, temperature=plan.temperature(0), **parameters)
    damped = hessian.is_positive_definite and bool(entries(step.recipe.D))
    if chain.spectral_radius >= (1 - 1e-12 if damped else 1 + 1e-9):
        radius, _ = told_apart(chain.spectral_radius, 1.0)
        what = f"the step is unstable at step_size = {step_size:g}: its spectral radius is {radius}"
        raise RecipeError(where, what, do="Take a smaller step size.")


def _constant_hessian(energy: Energy) -> sympy.Matrix | None:
    """The Hessian of a quadratic U; None where the Hessian is not constant."""
    rows: list[list[sympy.Expr]] = []
    for slope in energy.gradient:
        rows.append([sympy.diff(slope, c) if c in slope.free_symbols else sympy.S.Zero for c in energy.coordinates])
        if any(e.free_symbols or e.atoms(Total) for e in rows[-1]):
            return None
    return sympy.Matrix(rows)
