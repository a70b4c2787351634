"""An energy made ready for a run: what its steps ask of it, for all chains at once."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from integrators.metropolis import MetropolisedStep
from integrators.step import Step
from integrators.streams import BATCH
from recipe import Energy, Recipe
from recipe.arguments import integer
from recipe.errors import RecipeError
from recipe.swaps import Swap

from .data import Data
from .gradients import check_energy, compiled_gradient, emitted, functional_gradient, vectorised
from .layout import Layout, Target
from .observations import observations_of
from .over_chains import InTurn, OfChains
from .several import Energies, Unbatched
from .with_gradient import ArrayEnergy

WORTH_COMPILING = 300_000  # steps of a run

Several = Callable | Mapping[str, Callable] | None  # a function of U, or of every potential by its name


@dataclass(frozen=True)
class Derivatives:
    """Functions of the target of all chains, `(chains, *shape)` or a dict by block, and with data of a batch.

    `gradient` and `curvature`, the Hessian diagonal, return theta's shape, `value` U of every chain, `together` the
    gradient and the value in a pair; they are None where the steps hold the derivatives of a symbolic energy, or ask
    for none. Of several potentials `gradient`, `value` and `together` are dicts by name. `eager` is the gradient of
    a torch energy before a compiler has seen it, `functional` the same in the form that torch.compile takes, where a
    run is worth it. `observations` return one value per chain, or per chain and site. `complaints`: what the energy has
    raised at some states, where it is nan. `potentials`: how many H has.
    """

    gradient: Several = None
    curvature: Callable | None = None
    value: Several = None
    together: Several = None
    eager: Callable | None = None
    functional: Callable | None = None
    observations: Mapping[str, Callable] = field(default_factory=dict)
    data: Data | None = None
    complaints: list[str] = field(default_factory=list)
    potentials: int = 1

    def batch(self, rows: torch.Tensor | None) -> tuple:
        """The last argument of these functions: the batch of these rows, `(chains, batch_size)`; none without data."""
        return () if self.data is None else (self.data.batch(rows),)

    def compiled(self, where: str) -> "Derivatives":
        """The same with a gradient that torch compiles at its first call, where a run is worth it."""
        if self.functional is None or self.eager is None:
            return self
        return replace(self, gradient=compiled_gradient(self.functional, self.eager, where), functional=None)


def check_energy_is_asked_for(recipe: Recipe, energy: Any, where: str) -> None:
    """Refuse an opaque U without an energy, and an energy where H is wholly symbolic."""
    if energy is None and recipe.potential is not None:
        raise RecipeError(
            where,
            "the recipe's U is opaque, but no energy is given",
            do="Pass a recipe.Energy or a torch function of theta.",
        )
    if energy is not None and recipe.potential is None:
        raise RecipeError(where, "the recipe's H is wholly symbolic, it takes no energy", do="Drop it.")


def data_of(energy: Any, data: Any, batch_size: int | None, target: Target, where: str) -> Data | None:
    """The data of a run in the form that its energy takes; refused where the two do not fit together."""
    like = next(iter(target.values())) if isinstance(target, dict) else target
    rows = None if data is None else Data(data, batch_size, like=like)
    if rows is None and batch_size is not None:
        raise RecipeError(where, "batch_size without data", do="Pass data=(X, y).")
    if not isinstance(energy, Energy):
        return rows
    columns = ", ".join(map(str, energy.data))
    if columns and rows is None:
        raise RecipeError(where, f"the energy has the columns {columns}", do=f"Pass data=({columns}).")
    if rows is not None and not columns:
        raise RecipeError(
            where, "the energy reads no data", do="Drop data=, or sum over rows with recipe.data_total()."
        )
    return None if rows is None else rows.columns(energy, like)


def derivatives_of(
    energy: Energy | Callable | None,
    steps: Sequence[Step],
    target: Target,
    layout: Layout,
    data: Data | None,
    observe: Mapping[str, Callable] | None,
    *,
    compiled: bool,
    where: str,
) -> Derivatives:
    """What these steps ask of an energy, and of the caller's functions `observe` by name.

    `target`: where the chains start, for a trial call of a torch energy; `compiled`: whether torch may compile it.
    Raises RecipeError for an energy that cannot be differentiated for many chains.
    """
    needs_value = any(step.program.needs_value for step in steps)
    if data is not None and data.batch_size is not None:
        gradients = max(step.program.gradients_per_step for step in steps)
        integer(where, "the number of gradients of a step on minibatches", gradients, most=len(BATCH) - 1)
        if needs_value:
            _meet_estimates(steps, where)
    gradient: Several = None
    curvature: Callable | None = None
    value: Several = None
    together: Several = None
    eager: Callable | None = None
    functional: Callable | None = None
    complaints: list[str] = []
    if isinstance(energy, Energy):
        if data is not None:
            gradient, curvature, value = _emitted(steps, data)
    elif energy is not None:
        one_chain = {k: x[0] for k, x in target.items()} if isinstance(target, dict) else target[0]
        energy = check_energy(energy, one_chain, layout, data)
        _check_asked(energy, steps, where)
        of_chains = partial(vectorised, layout.energy(energy), data, complaints=complaints)
        gradient = eager = of_chains()
        asked: Callable[..., Several] = of_chains
        if steps[0].recipe.has_several_potentials:
            asked = partial(_by_potential, energy, layout, data, complaints)
            gradient = asked()
            compiled = False
        if needs_value:
            value = asked(order=0)
            together = asked(with_value=True)
        elif compiled and not isinstance(energy, (InTurn, OfChains)):
            functional = functional_gradient(layout.energy(energy), data)
        if any(step.program.needs_curvature for step in steps):
            curvature = of_chains(order=2)
    observations = observations_of(steps, observe, layout, data, where)
    potentials = max(1, len(steps[0].recipe.potentials))
    return Derivatives(
        gradient, curvature, value, together, eager, functional, observations, data, complaints, potentials
    )


def _by_potential(energy: Any, layout: Layout, data: Data | None, complaints: list[str], **asked: Any) -> Several:
    """What is `asked` of every potential, by name; the one function of a U that is taken at several blocks."""
    in_turn = isinstance(energy, InTurn)
    energies: Energies = energy.energy if in_turn else energy
    functions: dict[str, Callable] = {}
    for key, function in energies.functions.items():
        own = function.function if isinstance(function, Unbatched) else function
        rows = None if isinstance(function, Unbatched) else data
        of_chains = vectorised(layout.energy(InTurn(own) if in_turn else own), rows, complaints=complaints, **asked)
        functions[key] = Unbatched(of_chains) if isinstance(function, Unbatched) else of_chains
    return functions if energies.recipe.is_by_name else functions["U"]


def each(function: Several, changed: Callable[..., Callable], *others: Any) -> Any:
    """A function, or that of every potential by its name, as `changed` makes it; None where there is none.

    `others`: further ones of the same form, or None, which `changed` takes beside it.
    """
    if function is None or callable(function):
        return function and changed(function, *others)
    return {key: changed(own, *(other and other[key] for other in others)) for key, own in function.items()}


def _meet_estimates(steps: Sequence[Step], where: str) -> None:
    """Refuse acceptance by U of a minibatch, and say of formulas that read it that their law is another one."""
    if any(isinstance(step, MetropolisedStep) for step in steps):
        what = "a step is accepted by the value of U, of which a minibatch has an estimate alone"
        raise RecipeError(where, what, do="Leave batch_size out, or pass metropolis=False.")
    swaps = [str(jump) for jump in steps[0].declared.jumps.values() if isinstance(jump, Swap)]
    if swaps:
        what = f"{swaps[0]} is accepted by the value of U, of which a minibatch has an estimate alone"
        raise RecipeError(where, what, do="Leave batch_size out, or the swap.")
    warnings.warn(
        f"{where}: the formulas read U itself, of which a minibatch has an estimate: the law is not exp(-H). "
        "Leave batch_size out for one that is.",
        RuntimeWarning,
        stacklevel=5,
    )


def bound(energy: Any, target: Target, layout: Layout, data: Data | None) -> Any:
    """An energy that brings its gradient, tried where the chains start; any other as it is."""
    if not isinstance(energy, ArrayEnergy):
        return energy
    return energy.bound({k: x[0] for k, x in target.items()} if isinstance(target, dict) else target[0], layout, data)


def _check_asked(energy: Any, steps: Sequence[Step], where: str) -> None:
    """Refuse an energy that brings its gradient, and less than the steps ask for."""
    if not isinstance(energy, OfChains):
        return
    if any(step.program.needs_value for step in steps):
        energy.check_value(where, "a step reads values of U")
    if any(step.program.needs_curvature for step in steps):
        what = "a step asks for second derivatives of U, and gradient= brings the first ones"
        raise RecipeError(where, what, do="Pass the energy as a torch function, or symbolic.")


def _emitted(steps: Sequence[Step], data: Data) -> Iterator[Callable | None]:
    """The gradient, curvature and value of a symbolic energy on data, from the text of the steps, for all chains."""
    for name in ("gradient", "curvature", "value"):
        function = next((step.namespace[name] for step in steps if name in step.namespace), None)
        yield None if function is None else emitted(function, data)
