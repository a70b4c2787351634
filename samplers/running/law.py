"""The law of a run's draws: the certificate of each stage, at its parameters, temperatures and frozen blocks."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch

from integrators.adapting import Adapting, adapting
from recipe import Certificate, Energy, Recipe
from recipe.arguments import is_number
from recipe.certificate import Finding
from recipe.certificate.certify import normalisable_energy
from recipe.errors import RecipeError, warn
from recipe.results import VERDICTS

from .plan import Plan, Stage

DESCENT = "none: at temperature 0 chains descend to a mode"
ADVICE = {
    "boundary": "No step size mends this: let D vanish at the end, reflect there, or sample a map of it to the reals.",
    "explosion": "No step size mends this: let D grow slower.",
    "normalisable": "U is -log density: mend its sign if a log-density was handed in, or add a prior.",
}


def check_law(plan: Plan, energy: Any, parameters: Mapping[str, Any], where: str) -> str:
    """The law that a plan claims for its draws, stage by stage, in the words of the certificate.

    Certificates are taken at the parameters of the run, the extremes of the temperature, and the frozen blocks. Phases
    without draws are left out, phases at temperature 0 claim no law; while an operator adapts, the claim is for the
    dynamics with the operator frozen. Raises RecipeError where a finding fails; warns once where the law is invariant
    but chains need not reach the law.
    """
    symbolic = energy if isinstance(energy, Energy) and not energy.data else None
    values = {name: value for name, x in parameters.items() if (value := _number(x)) is not None}
    promises: dict[str, None] = {}
    doubts: dict[str, None] = {}
    for number, stage in enumerate(plan.stages):
        if not stage.phase.keep:
            continue
        place = where if len(plan.stages) == 1 else f"{where}, phase {number}"
        certificates = _certificates(stage, symbolic, values)
        for certificate in certificates:
            if certificate.failures:
                raise _refusal(place, stage, certificate.failures[0])
            doubts |= dict.fromkeys(certificate.doubts)
        promises |= dict.fromkeys(_promises(stage, _promise(certificates), adapting(parameters)))
    if doubts:
        warn(f"{where}: {'; '.join(doubts)}")
    return "; then ".join(promises)


def _certificates(stage: Stage, energy: Energy | None, values: Mapping[str, float]) -> list[Certificate]:
    """The certificates of a stage at its least and largest temperature > 0; none where all are 0."""
    temperatures = {T for T in stage.probes()[1] if T > 0}
    return [
        _certificate(stage.step.declared, energy, T, stage.step.frozen, tuple(values.items()))
        for T in sorted({min(temperatures), max(temperatures)} if temperatures else ())
    ]


@lru_cache(maxsize=128)
def _certificate(
    recipe: Recipe, energy: Energy | None, temperature: float, freeze: tuple[str, ...], values: tuple
) -> Certificate:
    """The certificate of a recipe, with U bound to the energy where the energy is symbolic."""
    if energy is None or recipe.potential is None:
        return recipe.check(temperature=temperature, freeze=freeze, **dict(values))
    if energy.is_sitewise == recipe.target_is_vector:
        return recipe.bind(U=energy).check(temperature=temperature, freeze=freeze, **dict(values))
    opaque = recipe.check(temperature=temperature, freeze=freeze, **dict(values))
    if recipe.maps:  # the volume is in H, not in U
        return opaque
    target = normalisable_energy(energy, recipe.targets[0].domain, temperature=temperature)
    return Certificate(recipe.name, (target, *opaque.findings))


def _number(x: Any) -> float | None:
    """A parameter as a number: of one value per site the value nearest to 0, the worst case; None of an operator."""
    if is_number(x):
        return float(x)
    if torch.is_tensor(x) and x.numel():
        flat = x.detach().flatten()
        return float(flat[flat.abs().argmin()])
    return None


def _refusal(where: str, stage: Stage, finding: Finding) -> RecipeError:
    frozen = stage.step.frozen
    what = f"the recipe has not the law it claims: {finding.in_words}"
    if frozen:
        advice = f"Let {', '.join(frozen)} move, or freeze it in a Phase at temperature 0 or with keep=False."
    else:
        advice = ADVICE.get(finding.topic, "See recipe.check().")
    return RecipeError(where, what, do=advice)


def _promise(certificates: list[Certificate]) -> str:
    """The weakest claim among the certificates of a stage."""
    claims = [certificate["claim"] for certificate in certificates]
    return max(claims, key=lambda f: VERDICTS.index(f.verdict)).answer if claims else DESCENT


def _promises(stage: Stage, promise: str, operators: Mapping[str, Adapting]) -> list[str]:
    """The claims of a stage in order: given the adapting operators frozen, then without them."""
    end = stage.first + stage.steps
    ends = sorted({min(M.last or end, end) for M in operators.values()})
    moving = [sorted(name for name, M in operators.items() if (M.last or end) >= last) for last in ends]
    promises = [_given(promise, names) for last, names in zip(ends, moving, strict=True) if last > stage.first]
    return promises if ends and ends[-1] == end else [*promises, promise]


def _given(promise: str, names: Sequence[str]) -> str:
    """The claim for the dynamics in which the named operators are frozen."""
    frozen = f"given frozen {', '.join(names)}"
    return promise.replace("exact", frozen, 1) if promise.startswith("exact") else f"{promise}, {frozen}"
