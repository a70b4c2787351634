"""Potentials by torch functions of one chain: derivatives by autograd, and a trial call that checks the function."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch.func import grad, jvp, vmap
from torch.utils._pytree import tree_leaves, tree_map

from recipe.errors import RecipeError, first_line, in_short, of_the_caller, warn

from .data import Data
from .foreign import Foreign
from .layers import of_an_energy
from .layout import Layout
from .potential import Jet, Orders, differentiated
from .slopes import slopes_near
from .tape import Tapes
from .vectorised import OF_STATES, PASSED_ON, Vectorised, axes, explained, is_fine_in_turn, of_chain

ENERGY = "sample, energy"  # where of a RecipeError
SHAPES = "Give init, or the reference, the shapes that it takes, by the same names; or mend it."
ALIKE = 0.1  # relative difference of slopes by the gradient and by differences


class Traced:
    """The potential by a torch function `function(z, *batch)` of one chain; a call returns U of one chain.

    `in_turn`: whether chains are evaluated one after another, where torch cannot vectorise the function. The Hessian
    diagonal costs one gradient per coordinate.

    >>> Traced(lambda z: (z**3).sum()).jet(torch.ones(2, 3), orders={0, 1, 2}).curvature
    tensor([[6., 6., 6.],
            [6., 6., 6.]])
    """

    def __init__(self, function: Callable, *, in_turn: bool = False, reads_data: bool = True) -> None:
        self.function = function
        self.reads_data = reads_data
        self.of_all = Vectorised(function, in_turn=in_turn)
        self.tapes = {per_chain: Tapes(function) for per_chain in (False, True)}

    def __call__(self, z: Any, *batch: Any) -> torch.Tensor:
        """U of one chain."""
        return self.function(z, *batch)

    @property
    def in_turn(self) -> bool:
        """Whether chains are evaluated one after another."""
        return self.of_all.in_turn

    def like(self, function: Callable, *, reads_data: bool = True) -> "Traced":
        """The potential by another function, with the same `in_turn`."""
        return Traced(function, in_turn=self.in_turn, reads_data=reads_data)

    def within(self, layout: Layout) -> "Traced":
        """The potential as a function of z, where the layout maps z to theta."""
        if layout.shapes is None and layout.coordinates is None:
            return self
        return self.like(layout.energy(self.function), reads_data=self.reads_data)

    def jet(self, z: Any, *batch: Any, orders: Orders, per_chain: bool = False, faults: list[str] | None = None) -> Jet:
        """The derivatives of the given orders, of all chains."""
        batch = batch if self.reads_data else ()
        if 2 in orders:
            diagonal = Vectorised(partial(_diagonal, self.function), in_turn=self.in_turn)
            curvature = diagonal(z, *batch, per_chain=per_chain, faults=faults)
            rest = orders - {2}
            low = self.jet(z, *batch, orders=rest, per_chain=per_chain, faults=faults) if rest else Jet()
            return Jet(low.value, low.slope, curvature)
        if 1 not in orders:
            return Jet(self.of_all(z, *batch, per_chain=per_chain, faults=faults))
        slope = partial(self._slope, per_chain=per_chain)
        of_all = partial(self.of_all, per_chain=per_chain, faults=faults)
        called = partial(slope, of_all, partial(self.of_all.of_one, faults=faults))
        if self.in_turn and len(tree_leaves(z)[0]) > 1:
            return Jet(*called(z, *batch))
        recorded = partial(slope, partial(self._of_all, per_chain), self.function)
        return Jet(*self.tapes[per_chain](called, recorded, z, *batch))

    def _of_all(self, per_chain: bool, z: Any, *batch: Any) -> torch.Tensor:
        """U of all chains by vmap alone."""
        return vmap(self.function, in_dims=axes(batch, per_chain))(z, *batch)

    def _slope(self, of_all: Callable, of_one: Callable, z: Any, *batch: Any, per_chain: bool) -> tuple[Any, Any]:
        """The value and the slope, by the function of all chains, or by that of one where there is a single one."""
        if len(tree_leaves(z)[0]) > 1:
            jet = differentiated(lambda at: of_all(at, *batch), z)
            return jet.value, jet.slope
        # a single chain, without vmap and without an axis of chains in the graph
        batch = tuple(of_chain(part, 0) for part in batch) if per_chain else batch
        alone = differentiated(lambda at: of_one(at, *batch), of_chain(z, 0))
        value, slope = (tree_map(lambda x: x.unsqueeze(0), part) for part in (alone.value, alone.slope))
        return value, slope

    @property
    def by_tape(self) -> str:
        """Whether slopes are played from a tape, or why not, in words; empty if no form of call was frequent."""
        tapes = self.tapes.values()
        refused = next((f"no tape of U: {one.refusal}" for one in tapes if one.refusal), "")
        return refused or ("U is played from a tape" if any(one.are_played for one in tapes) else "")

    def gradient(self, per_chain: bool, *, has_data: bool) -> Callable:
        """The gradient of all chains by torch.func, as a function for torch.compile."""
        return vmap(grad(self.function), in_dims=axes((None,) if has_data else (), per_chain))


def _diagonal(function: Callable, theta: torch.Tensor, *batch: Any) -> torch.Tensor:

    def slope(flat: torch.Tensor) -> torch.Tensor:
        return grad(lambda sites: function(sites.reshape(theta.shape), *batch))(flat)

    def second(direction: torch.Tensor) -> torch.Tensor:
        return (jvp(slope, (theta.reshape(-1),), (direction,))[1] * direction).sum()

    basis = torch.eye(theta.numel(), dtype=theta.dtype, device=theta.device)
    return vmap(second)(basis).reshape(theta.shape)


def compiled_gradient(functional: Callable, gradient: Callable, where: str) -> Callable:
    """A gradient of all chains that torch compiles at the first call; `gradient`, with a warning, where torch cannot.

    `functional`: the same gradient as a function for torch.compile.
    """
    compiled = torch.compile(functional, dynamic=False)
    chosen: list[Callable] = []

    def first(theta: Any, *batch: Any) -> Any:
        plain = gradient(theta, *batch)
        try:
            reason = None if agree(compiled(theta, *batch), plain) else "its numbers differ"
        except Exception as error:  # raised by the compiler, or for the lack of one
            reason = in_short(error)
        if reason:
            warn(f"{where}: torch.compile of the gradient failed, it runs uncompiled: {reason}")
        chosen.append(gradient if reason else compiled)
        return plain

    def fastest(theta: Any, *batch: Any) -> Any:
        if not chosen:
            return first(theta, *batch)
        try:
            return chosen[0](theta, *batch)
        except OF_STATES:  # raised by the energy at some states
            return gradient(theta, *batch)

    return fastest


def agree(compiled: Any, plain: Any) -> bool:
    """Whether results of compiled code equal those of plain code up to rounding.

    >>> agree({"theta": torch.ones(2)}, {"theta": torch.ones(2) + 1e-6})
    True
    """
    if isinstance(plain, Mapping):
        return all(agree(compiled[k], x) for k, x in plain.items())
    return torch.allclose(compiled, plain, rtol=1e-3, atol=1e-3 * float(plain.abs().max()), equal_nan=True)


def tried(energy: Any, theta: Any, layout: Layout, data: Data | None, *, of_many: bool = True) -> Traced | Foreign:
    """The potential of an energy of theta, after a trial call at one chain's target, `(*shape)` or a dict by block.

    `of_many`: whether the potential is for many chains; where torch cannot vectorise the energy, a warning is given and
    chains are evaluated in turn. Raises RecipeError for an energy that fails, returns no single number, or does not
    depend differentiably on the target.
    """
    if isinstance(energy, Foreign) and energy.has_value is None:
        return energy.tried(theta, layout, data)
    if isinstance(energy, (Traced, Foreign)):
        return energy
    _check_callable(energy, data)
    at: Any = tree_map(lambda x: x.detach().clone().requires_grad_(), theta)
    batch = () if data is None else (data.first(),)
    point = layout.seen(at)
    what = f"it fails at theta of shape {_shapes(point)}"
    what += f" and a batch of shape {_shapes(batch[0])}" if batch else ""
    refusal = of_the_caller(ENERGY, what, SHAPES, PASSED_ON)
    with torch.enable_grad(), refusal, explained(ENERGY), of_an_energy(ENERGY), _unchanged(at, *batch):
        value = _call(energy, point, batch)
    _check_value(value)
    return Traced(energy, in_turn=of_many and not _vectorises(layout.energy(energy), at, batch))


def _shapes(x: Any) -> Any:
    """The shape of a tensor, or those of tensors in a dict or a tuple."""
    return tree_map(lambda part: tuple(part.shape), x)


@contextmanager
def _unchanged(*arguments: Any) -> Iterator[None]:
    """Refuses an energy that writes into theta, the state of the chains, or into the data."""
    tensors = [x for x in tree_leaves(arguments) if not x.is_inference()]
    versions = [x._version for x in tensors]
    yield
    if any(x._version != version for x, version in zip(tensors, versions)):
        what = "it changes its arguments in place, and with them the chains or the data"
        raise RecipeError(ENERGY, what, do="Write x = x * 2 for x *= 2, or work on x.clone().")


def _check_callable(energy: Any, data: Data | None) -> None:
    if not callable(energy):
        what = f"it is a recipe.Energy or a callable of theta, got {energy!r}"
        raise RecipeError(ENERGY, what, do="Text is never evaluated: pass a torch function.")
    if torch.is_inference_mode_enabled():
        what = "torch.inference_mode() forbids gradients"
        raise RecipeError(ENERGY, what, do="Sample outside of it, or use no_grad().")
    num_data = getattr(energy, "num_data", None)
    if data is not None and num_data is not None and num_data != data.rows:
        what = f"the posterior has num_data = {num_data}, but data= has {data.rows} rows"
        raise RecipeError(ENERGY, what, do="Pass num_data=len(X).")


def _call(energy: Callable, theta: Any, batch: tuple) -> Any:
    try:
        return energy(theta, *batch)
    except TypeError as error:
        trace = error.__traceback__
        if trace is None or trace.tb_next is not None:  # raised inside of the energy, not by the call
            _check_not_stacked(theta, error)
            raise
        what = f"calling it with {1 + len(batch)} argument(s) failed: {error}"
        do = "It is a function of theta, or of (theta, batch) where data= is given."
        raise RecipeError(ENERGY, what, do=do) from error
    except (RuntimeError, ValueError, IndexError) as error:
        _check_not_stacked(theta, error)
        raise


def _check_not_stacked(theta: Any, error: Exception) -> None:
    """Refuse a failed energy at tensors by name with equal rows: perhaps the stacked points of several models."""
    shapes = [tuple(x.shape) for x in theta.values()] if isinstance(theta, Mapping) else []
    rows = {shape[0] if shape else 0 for shape in shapes}
    if isinstance(error, RecipeError) or len(shapes) < 2 or len(rows) > 1 or max(map(len, shapes)) < 2:
        return
    number = rows.pop()
    what = f"it fails at the start ({type(error).__name__}: {error}), whose tensors all begin with {number} rows"
    do = f"Were they stacked, of {number} models, pass chains={number} and per_chain=True, or a list of the models."
    raise RecipeError(ENERGY, what, do=do) from error


def _check_value(value: Any) -> None:
    if not torch.is_tensor(value) or value.dim() != 0:
        got = f"shape {tuple(value.shape)}" if torch.is_tensor(value) else type(value).__name__
        what = f"it must return one number (a 0-dim tensor) for one chain, got {got}"
        raise RecipeError(ENERGY, what, do="Sum over data and coordinates: U is on the sum scale.")
    if value.is_complex():
        raise RecipeError(ENERGY, f"it returns a complex number, {value.dtype}", do="Return value.real.")
    if not value.requires_grad:
        what = "its value does not depend on theta through differentiable operations"
        raise RecipeError(ENERGY, what, do="Avoid .item(), .detach() and numpy inside the energy.")


def _vectorises(function: Callable, theta: Any, batch: tuple) -> bool:
    """Whether torch can vectorise a function; refused where the gradient of one chain is wrong as well."""
    chains = tree_map(lambda x: x[None], theta)
    with explained(ENERGY):
        try:
            vmap(function, in_dims=axes(batch, per_chain=False))(chains, *batch)
        except RuntimeError as error:
            near = slopes_near(function, theta, batch, directions=3)
            if not is_fine_in_turn(error) or not all(slopes.agree(ALIKE) for slopes in near):
                raise  # as where theta[0].item() is a factor: the gradient misses its share of the slope
            warn(
                f"{ENERGY}: torch cannot vectorise it over chains ({first_line(error)}), they run one after "
                "another. With torch.where for branches on values, and no .item(), they run together."
            )
            return False
    return True
