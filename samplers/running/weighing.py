"""The weights of a run's draws, computed from its kept states."""

import math
from collections.abc import Mapping

import torch

from integrators.measured import measured
from recipe import Recipe
from recipe.declared import temperature as T
from recipe.errors import RecipeError, warn
from recipe.symbols import Adapted, Potential

from ..target.layout import position_of
from ..target.potential import VALUE
from .chains import Chains
from .inputs import Inputs
from .plan import Plan

NUMBERS = 2**20  # of states that are weighed at once
WITHOUT = "Or take replace(recipe, weights=None), of another law."


def read_by_weights(recipe: Recipe) -> list[str]:
    """The names of the entries of the state that the weights read."""
    return [] if recipe.weights is None else [b.name for b in recipe.entries if recipe.weights.has(b)]


def check_weights(recipe: Recipe, plan: Plan, exchanges: bool, where: str) -> None:
    """Refuse a run whose draws have no one weight by the recipe's formula."""
    if recipe.weights is None:
        return
    of_phases = {name for stage in plan.kept_stages for name in stage.parameters}
    names = sorted(of_phases & {s.name for s in recipe.weights.free_symbols})
    cold = any(min(stage.probes()[1]) == 0 for stage in plan.kept_stages)
    faults = {
        "a draw has one weight, not one per tensor": plan.step.program.scope != "chain",
        "at temperature 0 there is no law": cold,
        "they read the temperature, which changes": recipe.weights.has(T) and math.isnan(plan.kept_temperature),
        f"they read {', '.join(names)}, of which a phase has its own": bool(names),
        "they read adapted quantities, and states are exchanged": exchanges and recipe.weights.has(Adapted),
    }
    for what, is_fault in faults.items():
        if is_fault:
            raise RecipeError(f"{where}, weights", what, do=f"Keep the draws of a phase of one law. {WITHOUT}")


@torch.no_grad()
def log_weights(
    chains: Chains, draws: Mapping[str, torch.Tensor], inputs: Inputs, temperature: float
) -> torch.Tensor | None:
    """The logarithm of the weight of each draw, `(chains, draws)` in float64; None where draws weigh equally.

    `draws`: the kept states of the chains by block, `(chains, draws, *shape)`. A weight that is no number counts as 0,
    with a warning where the chain is not lost.
    """
    recipe = chains.recipe
    if recipe.weights is None:
        return None
    names = dict.fromkeys([*(b.name for b in recipe.targets), *read_by_weights(recipe)])
    like = draws[recipe.targets[0].name]
    count, number = like.shape[:2]
    size = max(1, NUMBERS // max(1, like[:, :1].numel()))
    logs = torch.empty(count, number, dtype=torch.float64, device="cpu")
    settings = {"temperature": temperature, **inputs.constants}
    for k in range(0, number, size):
        part = {name: draws[name][:, k : k + size].to(chains.alive.device) for name in names}
        state = {name: x.flatten(0, 1) for name, x in part.items()}
        U = state[recipe.targets[0].name].new_zeros(len(state[recipe.targets[0].name]))
        if recipe.weights.has(Potential):
            U = inputs.target.at(position_of(recipe, state), orders=VALUE).value
        weighed = measured(recipe, recipe.log_weights, state, U, settings)
        logs[:, k : k + size] = weighed.double().cpu().expand(len(U)).reshape(count, -1)
    bad = logs.isnan() | (logs == torch.inf)
    faults = int(bad[chains.alive.cpu()].sum())
    if faults:
        warn(f"{chains.where}, weights: {faults} of {logs.numel()} are no numbers, and count as 0")
    return logs.masked_fill(bad, -torch.inf)
