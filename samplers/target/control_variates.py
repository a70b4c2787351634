"""Control variates, which lower the variance of minibatch gradients, and the mode as their center."""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import grad
from torch.utils._pytree import tree_leaves, tree_map

from recipe.arguments import integer
from recipe.errors import RecipeError, warn

from .data import Data
from .foreign import Foreign, check_has_value, with_gradient
from .layout import Layout
from .means import check_mean, chunks
from .traced import Traced, tried

FALL = 0.01  # of U to its minimum: the most that a mode may lack
SLOPE = 1.0  # length of the gradient: the most at a mode in float32
MEAN = "num_data times the mean over the batch, plus the prior"

Point = torch.Tensor | dict[str, torch.Tensor]  # one chain's target


@dataclass(frozen=True, eq=False)
class ControlVariate:
    """An energy U~(theta, batch) with a control variate, as made by `control_variate`.

    `center`: the point c; `full`: the gradient of U at c; `num_data`: the number of data.

    >>> energy = lambda theta, x: 3 * ((x - theta)**2).mean() / 2
    >>> corrected = ControlVariate(energy, torch.tensor(0.0), torch.tensor(-9.0), 3)
    >>> corrected(torch.tensor(1.0), torch.tensor([3.0]))
    tensor(6.)
    """

    energy: Callable
    center: Point
    full: Point
    num_data: int

    def __call__(self, theta: Any, batch: Any) -> torch.Tensor:
        """U~(theta; B) + <grad U(c) - grad U~(c; B), theta - c>."""
        of_center, of_theta = (tree_map(lambda x: tuple(x.shape), point) for point in (self.center, theta))
        if of_center != of_theta:
            what = f"it has the shape {of_center}, theta {of_theta}"
            raise RecipeError("control_variate, center", what, do="Give one chain's target, as `init` does.")
        of_batch = _slope(self.energy, self.center, batch)
        corrections = tree_map(
            lambda c, x, g, slope: ((g - slope) * (x - c)).sum(), self.center, theta, self.full, of_batch
        )
        return self.energy(theta, batch) + sum(tree_leaves(corrections))


def control_variate(energy: Callable[..., Any], center: Any, data: Any, *, chunk: int = 4096) -> ControlVariate:
    """The energy U~(theta, batch) with a control variate at `center`, for `samplers.sample` with the same data.

    The energy is U~(theta; B) + <grad U(c) - grad U~(c; B), theta - c>. Its gradient g~(theta) - g~(c) + g(c) is
    unbiased, and has no variance at theta = c: take the mode, as from `find_mode`. A gradient costs two of U~. A
    sampler's budget `B` or `V` for the noise of plain minibatches is too large here.

    `energy`: U~(theta, batch) on the sum scale, as from `posterior`. `center`: one chain's target, a tensor `(*shape)`,
    a dict of tensors by name or an nn.Module. `data`: a tensor or a tuple of tensors; grad U(c) is summed over all rows
    once, `chunk` rows at a time. Raises RecipeError for energies and data that `sample` refuses, for an energy that is
    not affine in a mean over the batch, and for a gradient at the center that is not finite.

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
    chunk = integer(f"{where}, chunk", "chunk", chunk, least=1)
    _, rows = _tried(where, energy, at, data, chunk)
    assert rows is not None
    _check_scale(where, energy, at, rows, chunk)
    full = tree_map(torch.zeros_like, at)
    for share, batch in chunks(rows.batch, rows.rows, chunk):
        tree_map(lambda total, g: total.add_(share * g), full, _slope(energy, at, batch))
    if not _is_finite(full):
        raise RecipeError(f"{where}, center", "the gradient is not finite there", do="Choose another center.")
    return ControlVariate(energy, at, full, rows.rows)


def find_mode(
    energy: Callable[..., Any] | None,
    init: Any,
    data: Any = None,
    *,
    gradient: Callable[..., Any] | None = None,
    steps: int = 500,
    chunk: int = 4096,
) -> Any:
    """A point where U is least, by L-BFGS with full gradients from `init`: a tensor, or a dict of tensors by name.

    `energy`, `init` and `data` are as for `control_variate`, or an energy U(theta) without data; `gradient` is as for
    `sample`, and energy and gradient are then functions of numpy arrays. The descent stops at a local minimum, where U
    changes by less than 1e-9, and warns if `steps` iterations do not suffice. A descent in float32 is continued in
    float64 where the energy takes float64; else a warning tells of a gradient longer than 1, or a further fall of U of
    more than 0.01. Raises RecipeError where the result is not finite.

    Source: Liu & Nocedal 1989; Nocedal 1980.

    >>> find_mode(lambda theta: ((theta - 3)**2).sum(), torch.zeros(2))
    tensor([3., 3.])
    """
    where = "find_mode"
    start = _point(f"{where}, init", init)
    steps = integer(f"{where}, steps", "steps", steps, least=1)
    chunk = integer(f"{where}, chunk", "chunk", chunk, least=1)
    energy, rows = _tried(where, with_gradient(energy, gradient, where), start, data, chunk, of_many=False)
    check_has_value(energy, where, "the mode is where the value of U is least")
    if rows is not None and rows.rows > chunk:
        _check_scale(where, energy, start, rows, chunk)
    descent = Descent(energy, rows, chunk)
    mode, iterations = descent.lead(start, steps)
    if not descent.value.isfinite() or not _is_finite(mode):
        raise RecipeError(where, "it ended at numbers that are not finite", do="Start elsewhere, or mend the energy.")
    if iterations < steps:
        mode, extra = descent.refined(mode, steps - iterations)
        iterations += extra
    fall = descent.fall
    if iterations >= steps and (fall > FALL or not descent.is_refined):
        warn(
            f"{where}: U still falls after {steps} iterations. Take more steps; or take the point as a center, which "
            "need not be the mode."
        )
    elif fall > FALL or (descent.slope > SLOPE and not descent.is_refined):
        dtype = str(tree_leaves(mode)[0].dtype).removeprefix("torch.")
        warn(
            f"{where}: the gradient is still {descent.slope:.2g} long, and U would fall by about {fall:.2g}, which its "
            f"rounding in {dtype} hides. Start in float64, with an energy of float64; or take the point as a center."
        )
    return mode


class Descent:
    """L-BFGS on U of all data; `value`: U at the last point; `slope`: the length of its gradient g there.

    `fall`: g H^-1 g/2, the fall of U to the minimum of its quadratic model.
    """

    def __init__(self, energy: Callable, rows: Data | None, chunk: int) -> None:
        self.energy = energy
        self.rows = rows
        self.chunk = chunk
        self.value = torch.zeros(())
        self.slope = 0.0
        self.fall = 0.0
        self.is_refined = False

    def lead(self, start: Point, steps: int) -> tuple[Point, int]:
        """The point after at most `steps` iterations from `start`, and the number of iterations."""
        at = tree_map(lambda x: x.clone().requires_grad_(), start)
        leaves = tree_leaves(at)
        optimizer = torch.optim.LBFGS(
            leaves, max_iter=steps, max_eval=10 * steps, history_size=20, line_search_fn="strong_wolfe"
        )

        def closure() -> Any:
            optimizer.zero_grad()
            value = self._evaluate(at)
            # torch's line search would not end
            if not value > -torch.inf or not _is_finite(at):
                raise FloatingPointError
            return value

        try:
            with torch.enable_grad():
                optimizer.step(closure)
                self.value = closure()  # step returns that of the start
        except FloatingPointError:
            self.value = torch.tensor(torch.nan)
        state = optimizer.state[leaves[0]]
        g = torch.cat([x.grad.reshape(-1) for x in leaves if x.grad is not None])
        self.slope = float(g.norm())
        self.fall = float(g @ _newton(g, state)) / 2
        return tree_map(torch.Tensor.detach, at), state["n_iter"]

    def refined(self, mode: Point, steps: int) -> tuple[Point, int]:
        """The mode after further iterations in float64, in its dtype, and their number; unchanged after a failure."""
        if all(x.dtype == torch.float64 for x in tree_leaves(mode)):
            return mode, 0
        rough = self.value, self.slope, self.fall
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings of the energy about float64
                finer, iterations = self.lead(tree_map(torch.Tensor.double, mode), steps)
            point = tree_map(lambda x, like: x.to(like.dtype), finer, mode)
            self.is_refined = bool(self.value.isfinite()) and _is_finite(point)
        except Exception:  # raised by an energy with tensors of float32
            self.is_refined = False
        if self.is_refined:
            return point, iterations
        self.value, self.slope, self.fall = rough
        return mode, 0

    def _evaluate(self, at: Point) -> torch.Tensor:
        """U of all data; its gradient is accumulated in `grad` of the tensors."""
        dtype = tree_leaves(at)[0].dtype
        batches = [(1.0,)] if self.rows is None else chunks(self.rows.batch, self.rows.rows, self.chunk)
        parts = []
        for share, *batch in batches:
            parts.append(share * self.energy(at, *_of_type(batch, dtype)))
            parts[-1].backward()
        return sum((part.detach() for part in parts), torch.zeros(()))


def _newton(g: torch.Tensor, state: Mapping[str, Any]) -> torch.Tensor:
    """H^-1 g by the stored pairs of L-BFGS, steps and changes of the gradient. Nocedal 1980."""
    pairs = list(zip(state.get("old_dirs") or [], state.get("old_stps") or [], strict=True))
    if not pairs:
        return g
    shares = []
    for change, step in reversed(pairs):
        shares.append(step @ g / (change @ step))
        g = g - shares[-1] * change
    change, step = pairs[-1]
    g = g * (change @ step) / (change @ change)
    for (change, step), share in zip(pairs, reversed(shares)):
        g = g + (share - change @ g / (change @ step)) * step
    return g


def _of_type(batch: Any, dtype: torch.dtype) -> Any:
    """The batch with floating tensors in float64, where `dtype` is float64; else unchanged."""
    if dtype != torch.float64:
        return batch
    return tree_map(lambda x: x.double() if x.is_floating_point() else x, batch)


def _slope(energy: Callable, at: Point, batch: Any) -> Point:
    return grad(lambda point: energy(point, batch))(at)


def _is_finite(point: Point) -> bool:
    return all(bool(x.isfinite().all()) for x in tree_leaves(point))


def _point(where: str, init: Any) -> Point:
    """A detached copy of the target in `init`; refused unless finite and real."""
    point = dict(init.named_parameters()) if isinstance(init, torch.nn.Module) else init
    for x in point.values() if isinstance(point, Mapping) else [point]:
        if not torch.is_tensor(x) or not x.is_floating_point() or not x.isfinite().all():
            what = "it is no tensor of finite real numbers, or a dict of such"
            raise RecipeError(where, what, do="Pass one chain's target.")
    if not len(tree_leaves(point)):
        raise RecipeError(where, "there are no tensors in it", do="Pass one chain's target.")
    return tree_map(lambda x: x.detach().clone(), dict(point) if isinstance(point, Mapping) else point)


def _tried(
    where: str, energy: Any, at: Point, data: Any, chunk: int, *, of_many: bool = True
) -> tuple[Traced | Foreign, Data | None]:
    """The potential of an energy after the trial call that `sample` makes, and the data, `chunk` rows a batch."""
    try:
        rows = None if data is None else Data(data, None, like=tree_leaves(at)[0])
        if rows is not None:
            rows.batch_size = min(chunk, rows.rows)
        return tried(energy, at, Layout(), rows, of_many=of_many), rows
    except RecipeError as error:
        raise RecipeError(error.where.replace("sample", where, 1), error.what, do=error.do) from error.__cause__


def _check_scale(where: str, energy: Callable, at: Point, rows: Data, chunk: int) -> None:
    check_mean(f"{where}, energy", lambda batch: energy(at, batch), rows.batch, rows.rows, chunk, wanted=MEAN)
