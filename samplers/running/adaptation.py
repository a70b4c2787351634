"""Adapting operators of a run: their start, the steps from which they learn, and their refusals."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from integrators.adapting import Adapting, adapting
from recipe.errors import RecipeError

from .chains import Chains
from .drive import Kernel, Moves
from .inputs import Inputs
from .plan import Plan, Stage
from .stepwise import Stepwise

Pair = tuple[torch.Tensor, torch.Tensor | None]  # positions and the gradients there, `(chains, *shape)`


def restart(plan: Plan, parameters: Mapping[str, Any], where: str, *, side_by_side: bool) -> None:
    """Restart the adapting operators; adaptation without an `until` of its own ends with the warmup.

    Raises RecipeError where the run has several temperatures, no adapting steps, or no states or gradients to adapt to.
    """
    for name, M in adapting(parameters).items():
        place = f"{where}, operator {name}"
        M.restart(plan.warmup)
        if side_by_side:
            raise RecipeError(place, "it adapts to one temperature", do="Drop temperatures=, or give a matrix.")
        if not M.last:
            raise RecipeError(place, "it adapts in the warmup, and there is none", do="Pass warmup=..., or until=...")
        if not M.after < M.last <= plan.length:
            what = f"it adapts from step {M.after} to step {M.last} of {plan.length}"
            raise RecipeError(place, what, do="Choose after < until, within the run.")
        _check_source(plan, M, place)


def _check_source(plan: Plan, M: Adapting, where: str) -> None:
    """Refuse steps without the one target, or the gradients of U, from which the operator M is estimated."""
    recipe, program = plan.step.recipe, plan.step.program
    if len(recipe.targets) > 1:
        what = f"it adapts to one target, and there are {', '.join(b.name for b in recipe.targets)}"
        raise RecipeError(where, what, do="Give a matrix.")
    if not M.needs_gradient:
        return
    if recipe.maps:
        raise RecipeError(where, "gradients are those of theta, and the recipe moves z", do="Adapt a Covariance.")
    if recipe.has_several_potentials or not program.gradients_per_step:
        what = "it is made of gradients of U, and a step takes none, or those of parts of it"
        raise RecipeError(where, what, do="Adapt a Covariance, or give a matrix.")


def place(parameters: Mapping[str, Any], target: torch.Tensor, where: str) -> None:
    """Give each adapting operator the shape and the device of the target, `(chains, *shape)`.

    Raises RecipeError for an operator that would see no more states than the target has sites.
    """
    for name, M in adapting(parameters).items():
        sites = target[0].numel()
        states = len(target) * ((M.last or 0) - M.after)
        if states <= sites:
            what = f"it would be made of {states} states, {len(target)} of each step, and has {sites} rows"
            raise RecipeError(f"{where}, operator {name}", what, do="Adapt longer, or to more chains.")
        M.place(target)


class Adaptation:
    """A kernel that makes one step at a time while operators adapt, and shows each state to the operators.

    An operator that needs gradients sees the state and the gradient that the step carries, else the position and value
    of the step's first gradient. Lost chains are left out. `kernel` makes the steps after the last adaptation. Raises
    RecipeError where the step refuses a new matrix.
    """

    backend = "torch"

    def __init__(self, kernel: Kernel, plan: Plan, inputs: Inputs, keep: Sequence[str], where: str) -> None:
        self.kernel = kernel
        self.plan = plan
        self.where = where
        self.parameters = inputs.parameters
        self.operators = adapting(inputs.parameters)
        self.last = max(M.last or 0 for M in self.operators.values())
        self.needs_gradient = any(M.needs_gradient for M in self.operators.values())
        if self.needs_gradient:  # gradients must pass through Evaluations
            inputs = replace(inputs, target=replace(inputs.target, is_inlined=False))
        self.stepwise = Stepwise(inputs, keep, ahead=0)

    def advance(self, chains: Chains, stage: Stage, done: int, end: int) -> Moves:
        """Make one step and show its state to the operators; after the last adaptation, steps of `kernel`."""
        if stage.first + done >= self.last:
            return self.kernel.advance(chains, stage, done, end)
        moves = self.stepwise.advance(chains, stage, done, end)
        self._show(chains)
        return moves

    def _show(self, chains: Chains) -> None:
        theta, gradient = self._seen(chains)
        sound = chains.alive if chains.diverged else slice(None)
        pair = theta[sound], None if gradient is None else gradient[sound]
        try:
            if any([M.observe(*pair) for M in self.operators.values()]):
                self.plan.check(self.parameters)
        except RecipeError as error:
            what = f"after step {chains.steps}: {error.where}: {error.what}"
            raise RecipeError(self.where, what, do=error.do) from error

    def _seen(self, chains: Chains) -> Pair:
        """Positions and gradients of all chains, `(chains, *shape)`; None for gradients that no operator needs."""
        theta = chains.state[chains.recipe.targets[0].name]
        if not self.needs_gradient:
            return theta, None
        if "gradient" in chains.state:
            return theta, chains.state["gradient"]
        first = self.stepwise.evaluations.first_gradient
        assert first is not None
        return first
