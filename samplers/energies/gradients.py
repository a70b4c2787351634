"""From an energy to the gradient of many chains at once: full data, minibatches, parameters by name."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager

import torch
from torch.func import grad, jvp, vmap

from recipe.errors import RecipeError

from .data import Data
from .layout import Layout

WORTH_COMPILING = 100_000  # steps of a run


def vectorised(energy: Callable, layout: Layout, data: Data | None, *, order: int = 1) -> Callable:
    """The value (order 0), gradient (1) or Hessian diagonal (2) of an energy of one chain, for `(chains, *shape)`.

    Batches are per chain. The Hessian diagonal costs one gradient per coordinate.
    """

    def one(theta, *batch):
        value = energy(layout.by_name(theta), *batch)
        return torch.cat([x.reshape(-1) for x in value.values()]) if isinstance(value, Mapping) else value

    def diagonal(theta, *batch):
        slope = grad(lambda flat: one(flat.reshape(theta.shape), *batch))
        basis = torch.eye(theta.numel(), dtype=theta.dtype, device=theta.device)
        column = lambda e: (jvp(slope, (theta.reshape(-1),), (e,))[1] * e).sum()
        return vmap(column)(basis).reshape(theta.shape)

    axes = _axes(data)
    if order != 1:
        return vmap(diagonal if order else one, in_dims=axes)

    def gradient(theta, *batch):
        blocks = theta if isinstance(theta, Mapping) else {"": theta}
        at = {name: x.detach().requires_grad_() for name, x in blocks.items()}
        given = at if isinstance(theta, Mapping) else at[""]
        with torch.enable_grad():
            if len(next(iter(at.values()))) > 1:
                U = vmap(one, in_dims=axes)(given, *batch).sum()
            else:  # the same without the cost of vectorising
                first = lambda x: {k: v[0] for k, v in x.items()} if isinstance(x, Mapping) else x[0]
                U = one(
                    first(given),
                    *(b if axes[1] is None else b[0] if torch.is_tensor(b) else tuple(t[0] for t in b) for b in batch),
                )
        slopes = dict(zip(at, torch.autograd.grad(U, list(at.values()), materialize_grads=True)))
        return slopes if isinstance(theta, Mapping) else slopes[""]

    return gradient


def _axes(data: Data | None) -> tuple:
    """The axis of chains in theta, and in a batch, which is the same for all chains where it is all data."""
    return (0,) if data is None else (0, None if data.batch_size is None else 0)


def functional_gradient(energy: Callable, layout: Layout, data: Data | None) -> Callable:
    """The gradient of `vectorised` by torch.func, in the form that torch.compile takes."""
    one = lambda theta, *batch: energy(layout.by_name(theta), *batch)
    return vmap(grad(one), in_dims=_axes(data))


def compiled_gradient(functional: Callable, gradient: Callable, where: str) -> Callable:
    """A gradient of many chains compiled by torch at its first call; `gradient`, with a warning, where torch cannot.

    `functional` is the same, in a form that torch.compile takes.
    """
    compiled, chosen = torch.compile(functional, dynamic=False), []

    def choose(theta, *batch):
        plain = gradient(theta, *batch)
        try:
            told = "its numbers differ" if not _agree(compiled(theta, *batch), plain) else None
        except Exception as error:  # of a compiler that is missing, or cannot do what the energy does
            told = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        if told:
            warnings.warn(
                f"{where}: torch.compile of the gradient failed, it runs uncompiled: {told}",
                RuntimeWarning,
                stacklevel=2,
            )
        chosen.append(gradient if told else compiled)
        return plain

    return lambda theta, *batch: (chosen[0] if chosen else choose)(theta, *batch)


def _agree(found, expected):
    if isinstance(expected, Mapping):
        return all(_agree(found[k], x) for k, x in expected.items())
    return torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()), equal_nan=True)


def emitted(derivative: Callable, data: Data) -> Callable:
    """A derivative of a symbolic energy on data, emitted for one chain, as `vectorised` gives it."""
    of_one = lambda theta, batch: derivative(theta, batch, data.rows)
    return vmap(of_one, in_dims=_axes(data))


@contextmanager
def explained(where: str):
    """Turn what torch says of an energy that cannot be differentiated or vectorised into advice."""
    try:
        yield
    except RuntimeError as error:
        told = str(error).splitlines()[0]
        if not any(word in told for word in ("vmap: ", "numpy()", "in-place")):
            raise
        raise RecipeError(
            where,
            f"it cannot be differentiated for many chains at once ({told})",
            do="Avoid .item(), numpy, random numbers and in-place changes inside the energy, and write "
            "branches on values with torch.where.",
        ) from error


def check_energy(energy: Callable, theta, layout: Layout, data: Data | None) -> None:
    """Refuse an energy that fails, returns no single number, or does not depend differentiably on the target.

    `theta`: the target of one chain, a tensor or a dict by block.
    """
    where = "sample, energy"
    if not callable(energy):
        raise RecipeError(
            where,
            f"it is a recipe.Energy or a callable of theta, got {energy!r}",
            do="Text is never evaluated: pass a torch function.",
        )
    if torch.is_inference_mode_enabled():
        raise RecipeError(
            where, "torch.inference_mode() forbids gradients", do="Sample outside of it, or use no_grad()."
        )
    if data is not None and getattr(energy, "num_data", data.rows) != data.rows:
        raise RecipeError(
            where,
            f"the posterior has num_data = {energy.num_data}, but data= has {data.rows} rows",
            do="Pass num_data=len(X).",
        )
    ask = lambda t: t.detach().clone().requires_grad_()
    theta = {k: ask(t) for k, t in theta.items()} if isinstance(theta, Mapping) else ask(theta)
    arguments = () if data is None else (data.first(),)
    with torch.enable_grad(), explained(where):
        try:
            value = energy(layout.by_name(theta), *arguments)
        except TypeError as error:
            if error.__traceback__.tb_next is not None:  # raised inside of the energy, not by calling it
                raise
            raise RecipeError(
                where,
                f"calling it with {1 + len(arguments)} argument(s) failed: {error}",
                do="It is a function of theta, or of (theta, batch) where data= is given.",
            ) from error
    if not torch.is_tensor(value) or value.dim() != 0:
        got = f"shape {tuple(value.shape)}" if torch.is_tensor(value) else type(value).__name__
        raise RecipeError(
            where,
            f"it must return one number (a 0-dim tensor) for one chain, got {got}",
            do="Sum over data and coordinates: U is on the sum scale.",
        )
    if not value.requires_grad:
        raise RecipeError(
            where,
            "its value does not depend on theta through differentiable operations",
            do="Avoid .item(), .detach() and numpy inside the energy.",
        )
    with explained(where):  # a single chain would run without being vectorised
        alone = {k: v[None] for k, v in theta.items()} if isinstance(theta, Mapping) else theta[None]
        vmap(lambda t, *b: energy(layout.by_name(t), *b), in_dims=(0, *(None for _ in arguments)))(alone, *arguments)
