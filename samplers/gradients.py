"""From an energy to the gradient of many chains at once: full data, minibatches, parameters by name."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.func import grad, jvp, vmap

from integrators import noise
from recipe import Energy
from recipe.errors import RecipeError

WORTH_COMPILING = 100_000  # steps of a run


def posterior(negative_log_likelihood: Callable, negative_log_prior: Callable, *,
              num_data: int | None = None) -> Callable:
    """The energy U~(theta, batch) = num_data * mean likelihood term + prior term, an unbiased estimate of U.

    `negative_log_likelihood(theta, batch)` returns the mean over the batch or one value per example; only it is
    scaled, never the prior. Raises RecipeError without a number of data.

    >>> energy = posterior(lambda theta, x: (x - theta)**2/2, lambda theta: theta**2/200, num_data=10)
    >>> energy(torch.tensor(0.0), torch.tensor([1.0, 3.0]))
    tensor(25.)
    """
    if isinstance(num_data, bool) or not isinstance(num_data, int) or num_data < 1:
        raise RecipeError("posterior", f"num_data is the number of data, a positive integer, got {num_data!r}",
                          do="A mean likelihood must be scaled up to the whole data: pass num_data=len(X).")

    def energy(theta, batch):
        terms = negative_log_likelihood(theta, batch)
        if terms.dim() > 1:
            raise RecipeError("posterior", f"the likelihood has the shape {tuple(terms.shape)}",
                              do="Return the mean over the batch, or one value per example.")
        return num_data * terms.mean() + negative_log_prior(theta)

    energy.num_data = num_data
    return energy


def score_variance(negative_log_likelihood: Callable) -> Callable:
    """The observation (theta, batch) -> variance over the batch of the gradients of single terms, of theta's shape.

    `negative_log_likelihood(theta, batch)` is what `posterior` takes.

    >>> observed = score_variance(lambda theta, x: (x - theta)**2/2)
    >>> observed(torch.tensor(0.0), torch.tensor([1.0, 3.0]))
    tensor(2.)
    """
    def of_one(theta, row):
        batch = tuple(x[None] for x in row) if isinstance(row, tuple) else row[None]
        return negative_log_likelihood(theta, batch).mean()

    def observed(theta, batch):
        scores = vmap(grad(of_one), in_dims=(None, 0))(theta, batch)
        return {k: g.var(0) for k, g in scores.items()} if isinstance(scores, Mapping) else scores.var(0)

    return observed


@dataclass(frozen=True)
class Layout:
    """How the target tensor of a chain is seen by the energy: as it is, or as tensors by name laid end to end."""

    shapes: dict[str, tuple[int, ...]] | None = None

    @property
    def sizes(self) -> list[int]:
        """The number of sites of each tensor."""
        return [torch.Size(shape).numel() for shape in (self.shapes or {}).values()]

    def by_name(self, theta: torch.Tensor):
        """The target `(*leading, sites)` as a dict of named tensors; unchanged where the target is one tensor."""
        if self.shapes is None:
            return theta
        return {name: part.reshape((*theta.shape[:-1], *shape))
                for (name, shape), part in zip(self.shapes.items(), theta.split(self.sizes, -1))}


class Data:
    """Tensors that share their first axis, and minibatches of them: uniform with replacement, independent per chain.

    The rows of a batch are a pure function of (seed, step, evaluation, chain).
    """

    def __init__(self, tensors, batch_size: int | None, *, like: torch.Tensor):
        self.alone = not isinstance(tensors, (tuple, list))
        given = (tensors,) if self.alone else tensors
        try:
            self.tensors = tuple(t if torch.is_tensor(t) else torch.as_tensor(t) for t in given)
        except (TypeError, ValueError, RuntimeError) as error:
            raise RecipeError("sample, data", f"a {type(given[0]).__name__} is no tensor ({error})",
                              do="Pass a tensor or a tuple of tensors.") from error
        if not self.tensors or any(t.dim() == 0 for t in self.tensors):
            raise RecipeError("sample, data", "there is no axis of rows", do="Pass at least one tensor with one row per datum.")
        self.batch_size, self.rows = batch_size, len(self.tensors[0])
        for i, t in enumerate(self.tensors):
            if len(t) != self.rows or not self.rows:
                raise RecipeError("sample, data", f"tensor {i} has {len(t)} rows, tensor 0 has {self.rows}",
                                  do="Every tensor has one row per datum, and at least one.")
            if t.is_floating_point() and t.dtype != like.dtype:
                raise RecipeError("sample, data", f"tensor {i} is {t.dtype}, but the parameters are {like.dtype}",
                                  do=f"Convert one: X.to({like.dtype}).")
            if t.device != like.device:
                raise RecipeError("sample, data", f"tensor {i} is on {t.device}, but the parameters are on {like.device}",
                                  do=f"Move it: X.to({str(like.device)!r}).")
        whole = isinstance(batch_size, int) and not isinstance(batch_size, bool)
        if batch_size is not None and not (whole and 1 <= batch_size <= self.rows):
            raise RecipeError("sample, batch_size", f"got {batch_size!r} for {self.rows} data",
                              do=f"Choose 1 to {self.rows}, or None for all data.")

    def columns(self, energy: Energy, theta) -> None:
        """Take the tensors for the columns of a symbolic energy, as numbers of theta's type."""
        where = "sample, data"
        if len(self.tensors) != len(energy.data):
            raise RecipeError(where, f"{len(self.tensors)} tensors for the columns ({', '.join(map(str, energy.data))}) of the energy",
                              do="Pass one tensor for each, in this order.")
        for d, t in zip(energy.data, self.tensors):
            wanted = (self.rows, *theta.shape[1:]) if d.is_vector else (self.rows,)
            if tuple(t.shape) != wanted:
                raise RecipeError(where, f"the column {d} has the shape {tuple(t.shape)}, not {wanted}",
                                  do=f"It has one number per row{' and site' * d.is_vector}.")
        self.tensors, self.alone = tuple(t.to(theta.dtype).contiguous() for t in self.tensors), False

    def rows_for(self, seed: int, steps: range, evaluation: int, chains: int, first_chain: int = 0) -> torch.Tensor | None:
        """The rows of the batch of every chain for one evaluation in each step: (steps, chains, batch_size)."""
        if self.batch_size is None:
            return None
        return noise.integers(seed, steps, noise.BATCH - evaluation, chains, (self.batch_size,), high=self.rows,
                              device=self.tensors[0].device, first_chain=first_chain)

    def batch(self, rows: torch.Tensor | None):
        """The data of these rows, `(chains, batch_size, ...)`, or all data."""
        if rows is None:
            return self.whole
        picked = tuple(t[rows] for t in self.tensors)
        return picked[0] if self.alone else picked

    @property
    def whole(self):
        """All data, in the form that the energy takes."""
        return self.tensors[0] if self.alone else self.tensors

    def first(self):
        """A batch of one chain, for a trial call of the energy."""
        size = self.batch_size or self.rows
        head = tuple(t[:size] for t in self.tensors)
        return head[0] if self.alone else head


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
                U = one(first(given), *(b if axes[1] is None else b[0] if torch.is_tensor(b) else tuple(t[0] for t in b) for b in batch))
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
            warnings.warn(f"{where}: torch.compile of the gradient failed, it runs uncompiled: {told}", RuntimeWarning, stacklevel=2)
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
        raise RecipeError(where, f"it cannot be differentiated for many chains at once ({told})",
                          do="Avoid .item(), numpy, random numbers and in-place changes inside the energy, and write "
                             "branches on values with torch.where.") from error


def check_energy(energy: Callable, theta, layout: Layout, data: Data | None) -> None:
    """Refuse an energy that fails, returns no single number, or does not depend differentiably on the target.

    `theta`: the target of one chain, a tensor or a dict by block.
    """
    where = "sample, energy"
    if not callable(energy):
        raise RecipeError(where, f"it is a recipe.Energy or a callable of theta, got {energy!r}",
                          do="Text is never evaluated: pass a torch function.")
    if torch.is_inference_mode_enabled():
        raise RecipeError(where, "torch.inference_mode() forbids gradients", do="Sample outside of it, or use no_grad().")
    if data is not None and getattr(energy, "num_data", data.rows) != data.rows:
        raise RecipeError(where, f"the posterior has num_data = {energy.num_data}, but data= has {data.rows} rows",
                          do="Pass num_data=len(X).")
    ask = lambda t: t.detach().clone().requires_grad_()
    theta = {k: ask(t) for k, t in theta.items()} if isinstance(theta, Mapping) else ask(theta)
    arguments = () if data is None else (data.first(),)
    with torch.enable_grad(), explained(where):
        try:
            value = energy(layout.by_name(theta), *arguments)
        except TypeError as error:
            if error.__traceback__.tb_next is not None:  # raised inside of the energy, not by calling it
                raise
            raise RecipeError(where, f"calling it with {1 + len(arguments)} argument(s) failed: {error}",
                              do="It is a function of theta, or of (theta, batch) where data= is given.") from error
    if not torch.is_tensor(value) or value.dim() != 0:
        got = f"shape {tuple(value.shape)}" if torch.is_tensor(value) else type(value).__name__
        raise RecipeError(where, f"it must return one number (a 0-dim tensor) for one chain, got {got}",
                          do="Sum over data and coordinates: U is on the sum scale.")
    if not value.requires_grad:
        raise RecipeError(where, "its value does not depend on theta through differentiable operations",
                          do="Avoid .item(), .detach() and numpy inside the energy.")
    with explained(where):  # a single chain would run without being vectorised
        alone = {k: v[None] for k, v in theta.items()} if isinstance(theta, Mapping) else theta[None]
        vmap(lambda t, *b: energy(layout.by_name(t), *b), in_dims=(0, *(None for _ in arguments)))(alone, *arguments)
