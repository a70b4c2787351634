"""From an energy to the gradient of many chains at once: full data, minibatches, parameters by name."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.func import grad, jvp, vmap

from recipe.errors import RecipeError, warn

from .data import Data
from .layout import Layout

ENERGY = "sample, energy"  # where a refusal says it is


def vectorised(
    energy: Callable, layout: Layout, data: Data | None, *, order: int = 1, with_value: bool = False
) -> Callable:
    """The value (order 0), gradient (1) or Hessian diagonal (2) of an energy of one chain, for many chains.

    The function takes theta, `(chains, *shape)` or a dict of such by block, and with `data` a batch, one per chain of
    minibatches. The Hessian diagonal costs one gradient per coordinate. `with_value`: a gradient comes in a pair with
    the value of every chain, `(chains,)`.

    >>> vectorised(lambda theta: (theta**2).sum(), Layout(), None)(torch.ones(2, 3))
    tensor([[2., 2., 2.],
            [2., 2., 2.]])
    """

    def one(theta, *batch):
        value = energy(layout.by_name(theta), *batch)
        return torch.cat([x.reshape(-1) for x in value.values()]) if isinstance(value, Mapping) else value

    def diagonal(theta, *batch):
        def slope(flat):
            return grad(lambda sites: one(sites.reshape(theta.shape), *batch))(flat)

        def second(direction):
            return (jvp(slope, (theta.reshape(-1),), (direction,))[1] * direction).sum()

        basis = torch.eye(theta.numel(), dtype=theta.dtype, device=theta.device)
        return vmap(second)(basis).reshape(theta.shape)

    axes = _axes(data)
    if order != 1:
        return vmap(diagonal if order else one, in_dims=axes)

    def of_chains(theta, *batch):
        """U of every chain."""
        chains = len(next(iter(theta.values())) if isinstance(theta, Mapping) else theta)
        if chains > 1:
            return vmap(one, in_dims=axes)(theta, *batch)
        # the same without the cost of vectorising
        alone = batch if axes[-1] is None else [_first(b) for b in batch]
        return one(_first(theta), *alone)[None]

    def gradient(theta, *batch):
        by_block = isinstance(theta, Mapping)
        blocks = theta if by_block else {"": theta}
        at = {name: x.detach().requires_grad_() for name, x in blocks.items()}
        with torch.enable_grad():
            U = of_chains(at if by_block else at[""], *batch)
            total = U.sum()
        if U.is_meta:
            raise RecipeError("sample, energy", "its value is on the device 'meta', no number", do="Compute a number.")
        slopes = torch.autograd.grad(total, list(at.values()), materialize_grads=True)
        slope = dict(zip(at, slopes)) if by_block else slopes[0]
        return (slope, U.detach()) if with_value else slope

    return gradient


def _first(x: Any) -> Any:
    """What the first chain has of a tensor, or of several."""
    if isinstance(x, Mapping):
        return {name: part[0] for name, part in x.items()}
    return x[0] if torch.is_tensor(x) else tuple(part[0] for part in x)


def _axes(data: Data | None) -> tuple:
    """The axis of chains in theta, and in a batch, which is the same for all chains where it is all data."""
    return (0,) if data is None else (0, None if data.batch_size is None else 0)


def functional_gradient(energy: Callable, layout: Layout, data: Data | None) -> Callable:
    """The gradient of `vectorised` by torch.func, in the form that torch.compile takes."""

    def one(theta, *batch):
        return energy(layout.by_name(theta), *batch)

    return vmap(grad(one), in_dims=_axes(data))


def compiled_gradient(functional: Callable, gradient: Callable, where: str) -> Callable:
    """A gradient of many chains compiled by torch at its first call; `gradient`, with a warning, where torch cannot.

    `functional` is the same, in a form that torch.compile takes.
    """
    compiled = torch.compile(functional, dynamic=False)
    chosen: list[Callable] = []

    def first(theta, *batch):
        plain = gradient(theta, *batch)
        try:
            reason = None if _agree(compiled(theta, *batch), plain) else "its numbers differ"
        except Exception as error:  # of a compiler that is missing, or cannot do what the energy does
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if reason:
            warn(f"{where}: torch.compile of the gradient failed, it runs uncompiled: {reason}")
        chosen.append(gradient if reason else compiled)
        return plain

    def fastest(theta, *batch):
        return chosen[0](theta, *batch) if chosen else first(theta, *batch)

    return fastest


def _agree(compiled: Any, plain: Any) -> bool:
    if isinstance(plain, Mapping):
        return all(_agree(compiled[k], x) for k, x in plain.items())
    return torch.allclose(compiled, plain, rtol=1e-3, atol=1e-3 * float(plain.abs().max()), equal_nan=True)


def emitted(derivative: Callable, data: Data) -> Callable:
    """A derivative of a symbolic energy on data, emitted for one chain, as `vectorised` gives it."""

    def of_one(theta, batch):
        return derivative(theta, batch, data.rows)

    return vmap(of_one, in_dims=_axes(data))


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn what torch says of an energy that cannot be differentiated or vectorised into advice."""
    try:
        yield
    except RuntimeError as error:
        message = str(error).splitlines()[0]
        if not any(word in message for word in ("vmap", "functorch", "numpy()", "in-place")):
            raise
        raise RecipeError(
            where,
            f"it cannot be differentiated for many chains at once ({message})",
            do="Avoid .item(), numpy, random numbers and in-place changes inside the energy, and write "
            "branches on values with torch.where.",
        ) from error


def check_energy(energy: Callable, theta: Any, layout: Layout, data: Data | None) -> None:
    """Refuse an energy that fails, returns no single number, or does not depend differentiably on the target.

    `theta`: the target of one chain, a tensor `(*shape)` or a dict of such by block.
    """
    _check_callable(energy, data)
    at: Any = {k: _leaf(x) for k, x in theta.items()} if isinstance(theta, Mapping) else _leaf(theta)
    batch = () if data is None else (data.first(),)
    with torch.enable_grad(), explained(ENERGY), _unchanged(at, *batch):
        value = _call(energy, layout.by_name(at), batch)
    _check_value(value)
    _check_vectorises(energy, at, layout, batch)


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
            raise
        raise RecipeError(
            ENERGY,
            f"calling it with {1 + len(batch)} argument(s) failed: {error}",
            do="It is a function of theta, or of (theta, batch) where data= is given.",
        ) from error


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


def _check_vectorises(energy: Callable, theta: Any, layout: Layout, batch: tuple) -> None:
    """Vectorise it over one chain too, which would run without being vectorised."""

    def one(at, *rows):
        return energy(layout.by_name(at), *rows)

    chains = {k: x[None] for k, x in theta.items()} if isinstance(theta, Mapping) else theta[None]
    with explained(ENERGY):
        vmap(one, in_dims=(0, *(None for _ in batch)))(chains, *batch)
