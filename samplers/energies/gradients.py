"""From an energy to the gradient of many chains at once: full data, minibatches, parameters by name."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.func import grad, jvp, vmap

from recipe.errors import RecipeError, warn

from .data import Data
from .layers import of_an_energy
from .layout import Layout
from .over_chains import OF_STATES, InTurn, OfChains, OverChains, explained, is_fine_in_turn, of_chain
from .slopes import slopes_near
from .with_gradient import ArrayEnergy

ENERGY = "sample, energy"  # where a refusal says it is
ALIKE = 0.1  # relative difference of a gradient and of differences


def vectorised(
    function: Callable,
    data: Data | None,
    *,
    order: int = 1,
    with_value: bool = False,
    complaints: list[str] | None = None,
) -> Callable:
    """The value (order 0), gradient (1) or Hessian diagonal (2) of a function of one chain's target, for many.

    The function takes theta, `(chains, *shape)` or a dict of such by block, and with `data` a batch, one per chain of
    minibatches. The Hessian diagonal costs one gradient per coordinate. `with_value`: a gradient comes in a pair with
    the value of every chain, `(chains,)`. `complaints`: as for OverChains.

    >>> vectorised(lambda theta: (theta**2).sum(), None)(torch.ones(2, 3))
    tensor([[2., 2., 2.],
            [2., 2., 2.]])
    """

    def one(theta, *batch):
        value = function(theta, *batch)
        return torch.cat([x.reshape(-1) for x in value.values()]) if isinstance(value, Mapping) else value

    def diagonal(theta, *batch):
        def slope(flat):
            return grad(lambda sites: one(sites.reshape(theta.shape), *batch))(flat)

        def second(direction):
            return (jvp(slope, (theta.reshape(-1),), (direction,))[1] * direction).sum()

        basis = torch.eye(theta.numel(), dtype=theta.dtype, device=theta.device)
        return vmap(second)(basis).reshape(theta.shape)

    axes = _axes(data)
    of_one: Callable | None = None
    of_chains: Callable
    if isinstance(function, OfChains):
        per_chain = data is not None and data.batch_size is not None
        of_chains = function.asked(per_chain=per_chain, complaints=complaints, is_valued=with_value or order == 0)
    else:
        over = OverChains(diagonal if order == 2 else one, axes, complaints, in_turn=isinstance(function, InTurn))
        of_chains, of_one = over, over.of_one
    if order != 1:
        return of_chains

    def gradient(theta, *batch):
        blocks = theta if isinstance(theta, Mapping) else {"": theta}
        alone = of_one is not None and all(x.shape[0] == 1 for x in blocks.values())
        if alone:  # without the cost of vectorising, and of an axis of chains in the graph
            at = {name: x.select(0, 0).detach().requires_grad_() for name, x in blocks.items()}
            batch = batch if axes[-1] is None else tuple(of_chain(b, 0) for b in batch)
        else:
            at = {name: x.detach().requires_grad_() for name, x in blocks.items()}
        leaves = list(at.values())
        with torch.enable_grad():
            U = (of_one if of_one and alone else of_chains)(at if blocks is theta else leaves[0], *batch)
            total = U if alone else U.sum()
        if U.is_meta:
            raise RecipeError("sample, energy", "its value is on the device 'meta', no number", do="Compute a number.")
        slopes = torch.autograd.grad(total, leaves, materialize_grads=True)
        if alone:
            slopes = tuple(slope.unsqueeze(0) for slope in slopes)
        slope = dict(zip(at, slopes)) if blocks is theta else slopes[0]
        if not with_value:
            return slope
        U = U.detach()
        return slope, U.unsqueeze(0) if alone else U

    return gradient


def _axes(data: Data | None) -> tuple:
    """The axis of chains in theta, and in a batch, which is the same for all chains where it is all data."""
    return (0,) if data is None else (0, None if data.batch_size is None else 0)


def functional_gradient(function: Callable, data: Data | None) -> Callable:
    """The gradient of `vectorised` by torch.func, in the form that torch.compile takes."""
    return vmap(grad(function), in_dims=_axes(data))


def compiled_gradient(functional: Callable, gradient: Callable, where: str) -> Callable:
    """A gradient of many chains compiled by torch at its first call; `gradient`, with a warning, where torch cannot.

    `functional` is the same, in a form that torch.compile takes.
    """
    compiled = torch.compile(functional, dynamic=False)
    chosen: list[Callable] = []

    def first(theta, *batch):
        plain = gradient(theta, *batch)
        try:
            reason = None if agree(compiled(theta, *batch), plain) else "its numbers differ"
        except Exception as error:  # of a compiler that is missing, or cannot do what the energy does
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if reason:
            warn(f"{where}: torch.compile of the gradient failed, it runs uncompiled: {reason}")
        chosen.append(gradient if reason else compiled)
        return plain

    def fastest(theta, *batch):
        if not chosen:
            return first(theta, *batch)
        try:
            return chosen[0](theta, *batch)
        except OF_STATES:  # what the energy raises at some states
            return gradient(theta, *batch)

    return fastest


def agree(compiled: Any, plain: Any) -> bool:
    """Whether what a compiler has made has the numbers of what it was made of, up to rounding.

    >>> agree({"theta": torch.ones(2)}, {"theta": torch.ones(2) + 1e-6})
    True
    """
    if isinstance(plain, Mapping):
        return all(agree(compiled[k], x) for k, x in plain.items())
    return torch.allclose(compiled, plain, rtol=1e-3, atol=1e-3 * float(plain.abs().max()), equal_nan=True)


def emitted(derivative: Callable, data: Data) -> Callable:
    """A derivative of a symbolic energy on data, emitted for one chain, as `vectorised` gives it."""

    def of_one(theta, batch):
        return derivative(theta, batch, data.rows)

    return vmap(of_one, in_dims=_axes(data))


def check_energy(energy: Callable, theta: Any, layout: Layout, data: Data | None, *, of_many: bool = True) -> Callable:
    """Refuse an energy that fails, returns no single number, or does not depend differentiably on the target.

    `theta`: the target of one chain, a tensor `(*shape)` or a dict of such by block. `of_many`: whether it is to be
    asked for many chains; where torch cannot vectorise it, which is warned of, an InTurn comes back, else the energy.
    """
    if isinstance(energy, ArrayEnergy):
        return energy.bound(theta, layout, data)
    if isinstance(energy, (InTurn, OfChains)):
        return energy
    _check_callable(energy, data)
    at: Any = {k: _leaf(x) for k, x in theta.items()} if isinstance(theta, Mapping) else _leaf(theta)
    batch = () if data is None else (data.first(),)
    with torch.enable_grad(), explained(ENERGY), of_an_energy(ENERGY), _unchanged(at, *batch):
        value = _call(energy, layout.seen(at), batch)
    _check_value(value)
    return InTurn(energy) if of_many and not _vectorises(layout.energy(energy), at, batch) else energy


@contextmanager
def _unchanged(*arguments: Any) -> Iterator[None]:
    """Refuse an energy that writes into theta, which are the chains themselves, or into the data."""
    tensors = [x for argument in arguments for x in _tensors(argument) if not x.is_inference()]
    versions = [x._version for x in tensors]
    yield
    if any(x._version != version for x, version in zip(tensors, versions)):
        raise RecipeError(
            ENERGY,
            "it changes its arguments in place, and with them the chains or the data",
            do="Write x = x * 2 for x *= 2, or work on x.clone().",
        )


def _tensors(argument: Any) -> list[torch.Tensor]:
    if isinstance(argument, Mapping):
        return list(argument.values())
    return [argument] if torch.is_tensor(argument) else list(argument)


def _leaf(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone().requires_grad_()


def _check_callable(energy: Callable, data: Data | None) -> None:
    if not callable(energy):
        raise RecipeError(
            ENERGY,
            f"it is a recipe.Energy or a callable of theta, got {energy!r}",
            do="Text is never evaluated: pass a torch function.",
        )
    if torch.is_inference_mode_enabled():
        raise RecipeError(
            ENERGY, "torch.inference_mode() forbids gradients", do="Sample outside of it, or use no_grad()."
        )
    num_data = getattr(energy, "num_data", None)
    if data is not None and num_data is not None and num_data != data.rows:
        raise RecipeError(
            ENERGY,
            f"the posterior has num_data = {num_data}, but data= has {data.rows} rows",
            do="Pass num_data=len(X).",
        )


def _call(energy: Callable, theta: Any, batch: tuple) -> Any:
    try:
        return energy(theta, *batch)
    except TypeError as error:
        trace = error.__traceback__
        if trace is None or trace.tb_next is not None:  # raised inside of the energy, not by calling it
            _check_not_stacked(theta, error)
            raise
        raise RecipeError(
            ENERGY,
            f"calling it with {1 + len(batch)} argument(s) failed: {error}",
            do="It is a function of theta, or of (theta, batch) where data= is given.",
        ) from error
    except (RuntimeError, ValueError, IndexError) as error:
        _check_not_stacked(theta, error)
        raise


def _check_not_stacked(theta: Any, error: Exception) -> None:
    """Refuse tensors by name of several models, which were taken for one point, where the energy fails at it."""
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
        raise RecipeError(
            ENERGY,
            f"it must return one number (a 0-dim tensor) for one chain, got {got}",
            do="Sum over data and coordinates: U is on the sum scale.",
        )
    if value.is_complex():
        raise RecipeError(ENERGY, f"it returns a complex number, {value.dtype}", do="Return value.real.")
    if not value.requires_grad:
        raise RecipeError(
            ENERGY,
            "its value does not depend on theta through differentiable operations",
            do="Avoid .item(), .detach() and numpy inside the energy.",
        )


def _vectorises(function: Callable, theta: Any, batch: tuple) -> bool:
    """Whether torch can vectorise it, over one chain too; refused where what it cannot makes a wrong gradient."""
    chains = {k: x[None] for k, x in theta.items()} if isinstance(theta, Mapping) else theta[None]
    with explained(ENERGY):
        try:
            vmap(function, in_dims=(0, *(None for _ in batch)))(chains, *batch)
        except RuntimeError as error:
            near = slopes_near(function, theta, batch, directions=3)
            if not is_fine_in_turn(error) or not all(slopes.agree(ALIKE) for slopes in near):
                raise  # one with theta[0].item() as a factor has another slope than its gradient
            warn(
                f"{ENERGY}: torch cannot vectorise it over chains ({str(error).splitlines()[0]}), they run one after "
                "another. With torch.where for branches on values, and no .item(), they run together."
            )
            return False
    return True
