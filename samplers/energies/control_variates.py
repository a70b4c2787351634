"""Minibatch gradients of less variance: control variates at a fixed point, and at a snapshot of a training loop (SVRG)."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import contextmanager

import torch
from torch.func import grad

from recipe.errors import RecipeError

from .data import Data
from .gradients import check_energy
from .layout import Layout

PROBED = 64  # rows on which a loss is seen to be a mean


# ---- at a fixed point


def control_variate(energy: Callable, center, data, *, chunk: int = 4096) -> Callable:
    """The energy U~(theta, batch) with a control variate at `center`, for `samplers.sample` with the same data.

    U~(theta; B) + <grad U(c) - grad U~(c; B), theta - c>, whose gradient g~(theta) - g~(c) + g(c) is as unbiased as that
    of U~, and has no variance at theta = c: take the mode, as from `find_mode`. The gradient costs two of U~. A budget for
    the noise of plain minibatches, `B` or `V` of a sampler, is too large for it.

    `energy`: U~(theta, batch) on the sum scale, as from `posterior`. `center`: one chain's target, a tensor `(*shape)`, a
    dict of tensors by name or an nn.Module. `data`: a tensor or a tuple of tensors, of which grad U(c) is summed once,
    `chunk` rows at a time. Raises RecipeError for what `sample` refuses, for an energy that is no mean over the batch
    times a constant, plus a constant, and for a gradient at the center that is not finite.
    Sources: Baker, Fearnhead, Fox & Nemeth 2019 (SGLD-CV); Dubey et al. 2016.

    >>> from samplers import posterior
    >>> x = torch.tensor([1.0, 2.0, 6.0])
    >>> energy = posterior(lambda theta, x: (x - theta)**2/2, lambda theta: 0*theta, num_data=3)
    >>> better = control_variate(energy, torch.tensor(3.0), x)
    >>> [float(grad(better)(torch.tensor(4.0), batch)) for batch in (x[:1], x[1:])]        # 3 (theta - mean x), both
    [3.0, 3.0]
    """
    where = "control_variate"
    at = _point(f"{where}, center", center)
    data = _checked(where, energy, at, data, chunk)
    _check_scale(where, energy, at, data, chunk)
    slope = grad(lambda point, batch: energy(_as_given(point), batch))
    full = {name: torch.zeros_like(x) for name, x in at.items()}
    for share, batch in _chunks(data.batch, data.rows, chunk):
        for name, g in slope(at, batch).items():
            full[name] += share * g
    if not all(g.isfinite().all() for g in full.values()):
        raise RecipeError(f"{where}, center", "the gradient is not finite there", do="Choose another center.")

    def corrected(theta, batch):
        point = dict(theta) if isinstance(theta, Mapping) else {None: theta}
        kinds = [{name: tuple(x.shape) for name, x in tensors.items()} for tensors in (at, point)]
        if kinds[0] != kinds[1]:
            raise RecipeError(
                f"{where}, center",
                f"it has the shape {_told(kinds[0])}, theta {_told(kinds[1])}",
                do="Give one chain's target, as `init` does.",
            )
        here = slope(at, batch)
        return energy(theta, batch) + sum(
            ((full[name] - here[name]) * (point[name] - x)).sum() for name, x in at.items()
        )

    corrected.num_data = data.rows
    return corrected


def find_mode(energy: Callable, init, data=None, *, steps: int = 500, chunk: int = 4096):
    """A point where U is least, by L-BFGS with full gradients from `init`: a tensor, or a dict of tensors by name.

    `energy`, `init` and `data` are as for `control_variate`, or an energy U(theta) without data. It stops where U moves by
    less than 1e-9, at a local minimum, and warns if it has not within `steps` iterations. Raises RecipeError where it
    ends at numbers that are not finite. Source: Liu & Nocedal 1989.

    >>> find_mode(lambda theta: ((theta - 3)**2).sum(), torch.zeros(2))
    tensor([3., 3.])
    """
    where = "find_mode"
    at = _point(f"{where}, init", init)
    _check_int(f"{where}, steps", steps, 1)
    data = _checked(where, energy, at, data, chunk)
    if data is not None and data.rows > chunk:
        _check_scale(where, energy, at, data, chunk)
    at = {name: x.clone().requires_grad_() for name, x in at.items()}
    optimizer = torch.optim.LBFGS(
        at.values(), max_iter=steps, max_eval=10 * steps, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure():
        optimizer.zero_grad()
        parts = []
        for share, *batch in [(1.0,)] if data is None else _chunks(data.batch, data.rows, chunk):
            parts.append(share * energy(_as_given(at), *batch))
            parts[-1].backward()
        return sum(part.detach() for part in parts)

    with torch.enable_grad():
        optimizer.step(closure)
        value = closure()  # step returns that of the start
    found = {name: x.detach() for name, x in at.items()}
    if not value.isfinite() or not all(x.isfinite().all() for x in found.values()):
        raise RecipeError(where, "it ended at numbers that are not finite", do="Start elsewhere, or mend the energy.")
    if optimizer.state[next(iter(at.values()))]["n_iter"] >= steps:
        warnings.warn(
            f"{where}: U still falls after {steps} iterations. Take more steps; or take the point as a center, which need not "
            "be the mode.",
            RuntimeWarning,
            stacklevel=2,
        )
    return _as_given(found)


# ---- at a snapshot


# ---- what both share


def _point(where, given) -> dict:
    """A point as tensors by name, copied; the name of a lone tensor is None."""
    given = dict(given.named_parameters()) if isinstance(given, torch.nn.Module) else given
    tensors = dict(given) if isinstance(given, Mapping) else {None: given}
    for x in tensors.values():
        if not torch.is_tensor(x) or not x.is_floating_point() or not x.isfinite().all():
            raise RecipeError(
                where, "it is no tensor of finite real numbers, or a dict of such", do="Pass one chain's target."
            )
    if not tensors:
        raise RecipeError(where, "there are no tensors in it", do="Pass one chain's target.")
    return {name: x.detach().clone() for name, x in tensors.items()}


def _as_given(point):
    return point[None] if None in point else point


def _told(shapes):
    return shapes.get(None, shapes)


def _checked(where, energy, point, data, chunk) -> Data | None:
    """The data, and an energy that `sample` could take with them."""
    _check_int(f"{where}, chunk", chunk, 1)
    with _named(where):
        if data is not None:
            data = Data(data, None, like=next(iter(point.values())))
            data.batch_size = min(chunk, data.rows)
        check_energy(energy, _as_given(point), Layout(), data)
    return data


@contextmanager
def _named(where):
    """Speak in the name of this function where `sample` would refuse the same."""
    try:
        yield
    except RecipeError as error:
        raise RecipeError(error.where.replace("sample", where, 1), error.what, do=error.do) from error.__cause__


def _chunks(take, rows, size):
    """All data, some rows at a time, each with its share of them."""
    for some in torch.arange(rows).split(size):
        yield len(some) / rows, take(some)


def _check_scale(where, energy, at, data, chunk):
    value = lambda batch: energy(_as_given(at), batch)
    _check_mean(
        f"{where}, energy",
        value,
        data.batch,
        data.rows,
        chunk,
        "num_data times the mean over the batch, plus the prior",
    )


def _check_mean(where, value, take, rows, size, wanted):
    """Refuse what is not affine in the mean over the batch: on two halves of some rows it must average to the whole."""
    some = torch.arange(min(rows, size, PROBED))
    if len(some) < 2:
        return
    whole, *halves = [(len(part) / len(some), float(value(take(part)))) for part in (some, *some.tensor_split(2))]
    apart = abs(whole[1] - sum(share * half for share, half in halves))
    if apart > 0.01 * max(abs(whole[1]), *(abs(half) for _, half in halves)):
        told = (
            f"on {len(some)} rows it is {whole[1]:.6g}, on the halves of them {halves[0][1]:.6g} and {halves[1][1]:.6g}"
        )
        raise RecipeError(where, told, do=f"Return {wanted}, nothing that couples rows or is random.")


def _check_int(where, value, least):
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RecipeError(where, f"got {value!r}", do=f"Choose an integer >= {least}.")
