"""The target of a run: potentials at the positions of all chains, on data, with the caller's observations."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from integrators.initial_state import per_tensor
from integrators.metropolis import MetropolisedStep
from integrators.step import Step
from integrators.streams import BATCH
from recipe import Energy, Recipe
from recipe.arguments import check_known, integer
from recipe.errors import RecipeError, in_short

from .coordinates import Coordinates, moved_by
from .data import Data, has_minibatches
from .foreign import Foreign, check_has_value, with_gradient
from .layout import Layout
from .potential import SLOPE, Jet, Orders, Position, Potential
from .several import Energies, of_potentials
from .symbolic import Symbolic, energy_step
from .traced import ENERGY, Traced, compiled_gradient, tried
from .vectorised import Vectorised, explained, of_chain


@dataclass(frozen=True)
class Target:
    """U of all chains and its derivatives, on `data`, with `observations` per chain, or per chain and site.

    `layout`: the map and the names by which energies see the target; `whole`: U, the sum of the potentials, None where
    H is wholly symbolic; `parts`: the potentials by key, and `is_by_name` whether steps take a dict of them;
    `potentials`: the number of terms U in H, counted once for each block; `orders`: the derivatives that steps need;
    `is_inlined`: whether the texts of the steps contain the derivatives; `compiled`: the gradient by torch.compile;
    `faults`: errors that an energy raised, where U is nan. `energy` and `observe`: those of the caller, tried.
    `accepts_by_all`: whether proposals by gradients of minibatches are accepted by U of all data.

    >>> target = target_of(None, [], torch.zeros(1, 2), Layout(), None)
    >>> target.at(torch.zeros(1, 2))
    Jet(value=None, slope=None, curvature=None)
    """

    layout: Layout
    whole: Potential | None = None
    parts: Mapping[str, Potential] = field(default_factory=dict)
    is_by_name: bool = False
    potentials: int = 1
    data: Data | None = None
    observations: Mapping[str, Callable] = field(default_factory=dict)
    orders: Orders = SLOPE
    is_inlined: bool = False
    compiled: Callable | None = None
    faults: list[str] = field(default_factory=list)
    energy: Any = None
    observe: Mapping[str, Callable] | None = None
    accepts_by_all: bool = False

    @property
    def is_symbolic(self) -> bool:
        """Whether U has a formula, or H is wholly symbolic."""
        return self.whole is None or isinstance(self.whole, Symbolic)

    @property
    def is_minibatched(self) -> bool:
        """Whether gradients are on minibatches."""
        return has_minibatches(self.data)

    def batch(self, rows: torch.Tensor | None) -> tuple:
        """The batch of `rows`, `(chains, batch_size)` or None for all, as a tuple of one; empty without data."""
        return () if self.data is None else (self.data.batch(rows),)

    def at(self, z: Position, rows: torch.Tensor | None = None, orders: Orders = SLOPE) -> Jet:
        """The jet of U of all chains at `z`, on the batches of `rows`, `(chains, batch_size)`, or on all data."""
        if self.whole is None:
            return Jet()
        with explained(ENERGY):
            return self.jet(self.whole, z, self.batch(rows), orders=orders, per_chain=rows is not None)

    def jet(self, part: Potential, z: Any, batch: tuple, *, orders: Orders, per_chain: bool) -> Jet:
        """The jet of a potential on a batch; the slope by compiled code where there is any."""
        if self.compiled is not None and orders == SLOPE and per_chain == self.is_minibatched:
            return Jet(slope=self.compiled(z, *batch))
        return part.jet(z, *batch, orders=orders, per_chain=per_chain, faults=self.faults)

    @property
    def by_tape(self) -> str:
        """Whether gradients of U are played from tapes, or why not, in words; empty where calls were few."""
        reasons = [part.by_tape for part in self.parts.values() if isinstance(part, Traced)]
        return next((one for one in sorted(reasons, reverse=True) if one), "")

    @property
    def functional(self) -> Callable | None:
        """The gradient as a function for torch.compile; None where torch cannot, or steps need more than it."""
        alone = self.parts.get("U") is self.whole and self.compiled is None and 0 not in self.orders
        if not alone or not isinstance(self.whole, Traced) or self.whole.in_turn:
            return None
        return self.whole.gradient(self.is_minibatched, has_data=self.data is not None)

    @property
    def eager(self) -> "Target":
        """The target without compiled code."""
        return replace(self, compiled=None)

    def of_steps(self, steps: Sequence[Step], where: str) -> "Target":
        """The same target for other steps."""
        arguments = self.energy, steps, None, self.layout, self.data, self.observe
        return target_of(*arguments, where=where, accepts_by_all=self.accepts_by_all)

    def compile(self, where: str) -> "Target":
        """The target with a gradient that torch compiles at the first call; unchanged if `functional` is None."""
        functional = self.functional
        if functional is None:
            return self

        def gradient(z: Any, *batch: Any) -> Any:
            assert self.whole is not None
            return self.jet(self.whole, z, batch, orders=SLOPE, per_chain=self.is_minibatched).slope

        return replace(self, compiled=compiled_gradient(functional, gradient, where))


def target_of(
    energy: Any,
    steps: Sequence[Step],
    position: Any,
    layout: Layout,
    data: Data | None,
    observe: Mapping[str, Callable] | None = None,
    *,
    where: str = "sample",
    accepts_by_all: bool = False,
) -> Target:
    """The target of `steps`: an energy, with the caller's observations `observe` by name.

    `position`: the target at the start, `(chains, *shape)`, for a trial call; None where the energy has been tried.
    Raises RecipeError for an energy that cannot be differentiated for many chains, or lacks values or derivatives that
    the steps need.
    """
    needs_value = any(step.program.needs_value for step in steps)
    needs_curvature = any(step.program.needs_curvature for step in steps)
    orders = SLOPE | ({0} if needs_value else set()) | ({2} if needs_curvature else set())
    if has_minibatches(data):
        gradients = max((step.program.gradients_per_step for step in steps), default=0)
        integer(where, "the number of gradients of a step on minibatches", gradients, most=len(BATCH) - 1)
        if accepts_by_all:
            _refuse_other_rows(steps, where)
        elif needs_value:
            _meet_estimates(steps, where)
    elif accepts_by_all:
        do = "Pass data=(X, y), batch_size=50, or leave minibatches out."
        raise RecipeError(where, "Metropolis(minibatches=True) without batch_size", do=do)
    observations = observations_of(steps, observe, layout, data, where) if steps else {}
    of_caller: dict[str, Any] = {"energy": energy, "observe": observe, "accepts_by_all": accepts_by_all}
    target = Target(layout, data=data, observations=observations, orders=orders, **of_caller)
    if energy is None:
        return replace(target, is_inlined=True)
    if isinstance(energy, Energy):
        if steps and steps[0].program.energy is None:  # U is bound in the formulas, and none of their texts has it
            steps = [energy_step(energy, steps[0].declared.targets), *steps]
        whole = Symbolic(steps, None if data is None else data.rows)
        return replace(target, whole=whole, parts={"U": whole}, is_inlined=data is None)
    traced = energy if position is None else tried(energy, of_chain(position, 0), layout, data)
    if needs_value:
        check_has_value(traced, where, "a step reads values of U")
    if needs_curvature and isinstance(traced, Foreign):
        what = "a step asks for second derivatives of U, and gradient= brings the first ones"
        raise RecipeError(where, what, do="Pass the energy as a torch function, or symbolic.")
    of_z = traced.within(layout)
    target = replace(target, energy=traced, whole=of_z, parts={"U": of_z})
    if isinstance(traced, Traced) and isinstance(traced.function, Energies):
        return replace(target, **_by_potential(traced, traced.function, layout))
    return target


def energy_of(
    recipe: Recipe, energy: Any, gradient: Callable | None, coordinates: Any, scope: str, has_data: bool, where: str
) -> tuple[Any, Any, Coordinates | None]:
    """The energy of theta, the energy that chains are moved by, and the coordinates of a run.

    A symbolic energy of z = f^-1(theta) has another formula; others see z through the layout. Raises RecipeError for
    energies that do not fit the recipe's potentials, the gradient or the coordinates.
    """
    of_theta = of_potentials(recipe, with_gradient(energy, gradient, where), where, has_data=has_data)
    coordinates, of_z = moved_by(coordinates, recipe, of_theta, scope, f"{where}, coordinates")
    return of_theta, of_z, coordinates


GIVE = "Pass a recipe.Energy or a torch function of theta."


def check_energy_is_asked_for(recipe: Recipe, energy: Any, where: str, give: str = GIVE) -> None:
    """Refuse an opaque U without an energy, with the advice `give`, and an energy where H is wholly symbolic."""
    if energy is None and recipe.potential is not None:
        what = "the recipe's U is opaque, but no energy is given"
        raise RecipeError(where, what, do=give)
    if energy is not None and recipe.potential is None:
        raise RecipeError(where, "the recipe's H is wholly symbolic, it takes no energy", do="Drop it.")


def check_unweighted(recipe: Any, where: str, what: str) -> None:
    """Refuse a recipe whose draws have weights, for what would take them as equal."""
    if isinstance(recipe, Recipe) and recipe.weights is not None:
        do = "Take a recipe without weights, or samplers.sample, whose draws have them."
        raise RecipeError(where, f"draws of {recipe.name} have weights, and {what}", do=do)


def data_of(energy: Any, data: Any, batch_size: int | None, position: Position, where: str) -> Data | None:
    """The data of a run, as columns for a symbolic energy; refused where data and energy do not match."""
    like = tree_leaves(position)[0]
    rows = None if data is None else Data(data, batch_size, like=like)
    if rows is None and batch_size is not None:
        raise RecipeError(where, "batch_size without data", do="Pass data=(X, y).")
    if not isinstance(energy, Energy):
        return rows
    columns = ", ".join(map(str, energy.data))
    if columns and rows is None:
        raise RecipeError(where, f"the energy has the columns {columns}", do=f"Pass data=({columns}).")
    if rows is not None and not columns:
        what = "the energy reads no data"
        raise RecipeError(where, what, do="Drop data=, or sum over rows with recipe.data_total().")
    return None if rows is None else rows.columns(energy, like)


def _by_potential(whole: Traced, energies: Energies, layout: Layout) -> dict[str, Any]:
    """The fields of a target with several potentials: each by key, vectorised or in turn like their sum."""
    functions = energies.functions.items()
    parts = {key: whole.like(layout.energy(f), reads_data=key in energies.of_data) for key, f in functions}
    return {"parts": parts, "is_by_name": energies.recipe.is_by_name, "potentials": len(energies.recipe.potentials)}


def _refuse_other_rows(steps: Sequence[Step], where: str) -> None:
    """Refuse accepted steps that read more of a minibatch than the gradient that a rejected chain takes back."""
    for step in steps:
        reads = step.declared.swaps or (["the curvature of U"] if step.program.needs_curvature else [])
        if reads:
            what = f"{reads[0]} on a minibatch, beside its gradient, is not what a rejected chain goes back to"
            raise RecipeError(where, what, do="Leave batch_size out.")


def _meet_estimates(steps: Sequence[Step], where: str) -> None:
    """Refuse acceptance by U of a minibatch; warn of formulas that read U, whose law is then not exp(-H)."""
    if any(isinstance(step, MetropolisedStep) for step in steps):
        what = "a step is accepted by the value of U, of which a minibatch has an estimate alone"
        do = "Leave batch_size out, or pass metropolis=False, or Metropolis(minibatches=True), which asks all data."
        raise RecipeError(where, what, do=do)
    swaps = steps[0].declared.swaps
    if swaps:
        what = f"{swaps[0]} is accepted by the value of U, of which a minibatch has an estimate alone"
        raise RecipeError(where, what, do="Leave batch_size out, or the swap.")
    warnings.warn(
        f"{where}: the formulas read U itself, of which a minibatch has an estimate: the law is not exp(-H). "
        "Leave batch_size out for one that is.",
        RuntimeWarning,
        stacklevel=5,
    )


# ---- the observations of a recipe: statistics of theta, or of a batch


def observations_of(
    steps: Sequence[Step], observe: Mapping[str, Callable] | None, layout: Layout, data: Data | None, where: str
) -> dict[str, Callable]:
    """The observations that `steps` need, by name, as functions of theta, `(chains, *shape)`, and of a batch.

    `observe`: the caller's functions of one chain. Every value is checked: finite, one per site of theta for a vector,
    one per chain for a scalar. Raises RecipeError where a function is missing or unknown.
    """
    if observe is not None and not isinstance(observe, Mapping):
        what = f"it is a dict of functions by name, got {observe!r}"
        raise RecipeError(f"{where}, observe", what, do='Write {"name": f}.')
    functions = observe or {}
    arguments = "theta" if data is None else "theta, batch"
    names = dict.fromkeys(name for step in steps for name in step.observations)
    for name in names:
        if not callable(functions.get(name)):
            what = f"the recipe asks for the observation '{name}'"
            raise RecipeError(where, what, do=f"Pass observe={{{name!r}: a function of {arguments}}}.")
    recipe = steps[0].recipe
    check_known(where, "there is no observation '{}'", functions, [observed.name for observed in recipe.observations])
    by_tensor = steps[0].program.scope == "tensor"
    return {
        observed.name: _checked(observed, functions[observed.name], layout, data, by_tensor, where)
        for observed in recipe.observations
        if observed.name in names
    }


def _checked(
    observed: Any, function: Callable, layout: Layout, data: Data | None, by_tensor: bool, where: str
) -> Callable:
    """The observation of all chains by a function of one chain, with a check of each value."""
    of_chains = Vectorised(layout.of_target(lambda *arguments: _flat(function(*arguments))))
    per_chain = has_minibatches(data)
    arguments = "theta" if data is None else "theta, batch"

    def observation(theta: torch.Tensor, *batch: Any) -> torch.Tensor:
        try:
            value = of_chains(theta, *batch, per_chain=per_chain)
        except Exception as error:  # raised by the caller's function
            what = in_short(error)
            do = f"It is a function of {arguments} of one chain, to a tensor."
            raise RecipeError(f"{where}, observe[{observed.name!r}]", what, do=do) from error
        _check_value(value, observed.name, theta.shape if observed.is_vector else theta.shape[:1], where)
        value = value.to(theta.dtype)
        return per_tensor(value, layout.sizes) if by_tensor and not observed.is_vector else value

    return observation


def _flat(value: Any) -> Any:
    return torch.cat([x.reshape(-1) for x in value.values()]) if isinstance(value, Mapping) else value


def _check_value(value: Any, name: str, shape: torch.Size, where: str) -> None:
    """Refuse a value that is not a finite tensor of this shape, chains first."""
    if not torch.is_tensor(value) or value.shape != shape:
        is_tensor = torch.is_tensor(value)
        got = f"has the shape {tuple(value.shape[1:])}" if is_tensor else f"is a {type(value).__name__}"
        what = f"the observation '{name}' {got} for one chain, not a tensor of shape {tuple(shape[1:])}"
        raise RecipeError(where, what, do="Sum over the batch, not over the chains.")
    if not value.isfinite().all():
        raise RecipeError(where, f"the observation '{name}' is not finite", do="Look at what it divides by.")
