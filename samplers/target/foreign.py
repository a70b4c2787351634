"""Potentials by a gradient in functions of numpy arrays: from numpy, JAX, Stan, PyMC or other libraries."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from itertools import count
from typing import Any, ClassVar

import numpy as np
import torch
from torch.autograd.function import once_differentiable
from torch.utils._pytree import tree_leaves, tree_map

from recipe import Energy
from recipe.errors import RecipeError, warn

from .data import Data, has_minibatches
from .layout import Layout
from .model import Model
from .potential import Jet, Orders, differentiated
from .slopes import Slopes, curl_near, slopes_near
from .vectorised import OF_STATES, note

WHERE = "sample, gradient"
SHAPES = "It takes theta of one chain, or of all, and returns the gradient, or the pair (value, gradient)."
WITH_BATCH = (
    "With data the batch is its second argument, (rows, ...), or (chains, rows, ...) of all chains on minibatches."
)
BESIDE = 1e-3  # relative distance from the start of the trial points
ROUNDED = 1e-4  # relative difference of numbers that are equal up to rounding
SHARES = {8: 1e-3, 4: 1e-2}  # relative difference of equal slopes, by the bytes of a number
FACTOR = 0.01  # relative difference of a ratio of slopes and a factor that explains the ratio

Leaves = list[np.ndarray]  # theta, `(*shape)` or `(chains, *shape)`: one array, or one for each name


def with_gradient(energy: Any, gradient: Callable | None, where: str) -> Any:
    """The energy and its gradient as `Foreign`; the energy unchanged where `gradient` is None.

    >>> with_gradient(None, lambda theta: theta, "doctest").value is None
    True
    """
    if gradient is None:
        return energy
    if isinstance(energy, (Energy, Model)):
        what = f"the energy is a {type(energy).__name__}, whose gradient is derived"
        raise RecipeError(f"{where}, gradient", what, do="Leave gradient out.")
    if not callable(gradient) or not (energy is None or callable(energy)):
        name, function = ("energy", energy) if callable(gradient) else ("gradient", gradient)
        what = f"beside gradient= it is a function of numpy arrays, got {function!r}"
        raise RecipeError(f"{where}, {name}", what, do="Pass a function of theta, or of (theta, batch) with data=.")
    return Foreign(gradient, energy)


@dataclass(frozen=True)
class Answer:
    """U of some chains, `(chains,)`, or None; slopes in the shapes of theta; `bytes` of a number: 4 or 8."""

    value: np.ndarray | None
    slopes: Leaves
    bytes: int = 8

    def agrees(self, other: "Answer") -> bool:
        """Whether value and slopes of two answers are equal up to rounding."""
        values = [[] if answer.value is None else [answer.value] for answer in (self, other)]
        pairs = zip([*self.slopes, *values[0]], [*other.slopes, *values[1]], strict=True)
        return all(_are_alike(a, b) for a, b in pairs)


@dataclass(frozen=True, eq=False)
class Foreign:
    """The potential by functions of numpy arrays, which torch cannot trace; a call returns U of one chain.

    `gradient`: to the gradient or a pair (U, gradient); `value`: to U, or None. Trial calls find the rest: `names` of
    the tensors of theta, None for one tensor; `takes_all`: whether the functions take all chains at once; `of_each`:
    whether batches then have an axis of chains; `has_value`: whether U is known, None before the trial. `layouts` map z
    to theta, the innermost first.

    >>> Foreign(lambda theta: (theta @ theta, 2 * theta))(torch.tensor([3.0, 4.0]))
    tensor(25.)
    """

    gradient: Callable
    value: Callable | None = None
    names: tuple[str, ...] | None = None
    takes_all: bool = False
    of_each: bool = False
    has_value: bool | None = None
    layouts: tuple[Layout, ...] = ()
    reads_data: ClassVar = True

    def __call__(self, z: Any, *batch: Any) -> torch.Tensor:
        """U of one chain."""
        return self._of_all()(tree_map(lambda x: x[None], z), *batch)[0]

    def within(self, layout: Layout) -> "Foreign":
        """The potential as a function of z, where the layout maps z to theta."""
        return replace(self, layouts=(*self.layouts, layout))

    def jet(self, z: Any, *batch: Any, orders: Orders, per_chain: bool = False, faults: list[str] | None = None) -> Jet:
        """The value and the slope of all chains."""
        of_all = self._of_all(per_chain=per_chain, faults=faults, is_valued=0 in orders)
        return differentiated(lambda at: of_all(at, *batch), z) if 1 in orders else Jet(of_all(z, *batch))

    def _of_all(
        self, *, per_chain: bool = False, faults: list[str] | None = None, is_valued: bool = True
    ) -> Callable[..., torch.Tensor]:
        """U of all chains as a function of z and a batch, with first derivatives; nan where U is unknown or not asked.

        `is_valued`: whether the value is needed beside the slope.
        """

        def of_theta(theta: Any, *batch: Any) -> torch.Tensor:
            arrays = tree_map(_read_only, batch)

            def answer(leaves: Leaves, is_sloped: bool) -> Answer:
                return self.answer(leaves, arrays, per_chain=per_chain, faults=faults, needs=(is_valued, is_sloped))

            return _Slope.apply(answer, *tree_leaves(theta))

        return reduce(lambda U, layout: layout.energy(U), self.layouts, of_theta)

    def tried(self, theta: Any, layout: Layout, data: Data | None) -> "Foreign":
        """The potential after trial calls at and near one chain's target `theta`, on the first batch.

        Raises RecipeError for functions that fail, wrong shapes and types, random numbers, and a gradient that is not
        the derivative of U, or of no function where U is not given.
        """
        with torch.no_grad():
            point = layout.seen(theta)
        names = tuple(point) if isinstance(point, Mapping) else None
        leaves = [_array(x) for x in tree_leaves(point)]
        batch = () if data is None else (data.first(),)
        of_each = has_minibatches(data)
        energy, answer = _form(replace(self, names=names, of_each=of_each), leaves, batch)
        is_single = answer.bytes < 8
        if is_single and leaves[0].itemsize == 8:
            warn(
                f"{WHERE}: its numbers are of single precision, and theta is float64. Start in float32, or compute in "
                'float64: jax.config.update("jax_enable_x64", True), say.'
            )
        if energy.has_value:
            eps = float(np.finfo(np.float32).eps) if is_single else 0.0
            near = slopes_near(energy, point, batch, directions=1, eps=eps)
            _check_slopes([slopes for slopes in near if slopes.is_finite], SHARES[answer.bytes], data)
        else:
            _check_symmetry(energy, leaves, tree_map(_read_only, batch), answer.bytes)
        return energy

    def answer(
        self,
        leaves: Leaves,
        batch: tuple,
        *,
        per_chain: bool = False,
        faults: list[str] | None = None,
        needs: tuple[bool, bool] = (True, True),
    ) -> Answer:
        """U and its slopes, `needs`: whether each is needed; nan for a chain whose error is added to `faults`."""
        at_once = self.takes_all and (self.of_each or not per_chain)

        def of(chains: range) -> Answer:
            at = [x[chains.start : chains.stop] for x in leaves]
            if len(chains) > 1 and not at_once:
                return _joined([of(range(i, i + 1)) for i in chains])
            try:
                return self._called(at, self._batch(batch, chains, per_chain), needs)
            except OF_STATES as error:
                if faults is None or isinstance(error, RecipeError):
                    raise
                if len(chains) == 1:
                    note(faults, error)
                    return Answer(np.full(1, np.nan), [np.full_like(x, np.nan) for x in at])
            return _joined([of(range(i, i + 1)) for i in chains])

        return of(range(len(leaves[0])))

    def _called(self, leaves: Leaves, batch: tuple, needs: tuple[bool, bool]) -> Answer:
        """The answer of one call of the functions, at one chain or, if `takes_all`, several."""
        is_valued, is_sloped = needs
        value_of = self.value
        value: Any = None
        slopes: Leaves = []
        width = 8
        if is_sloped or value_of is None:
            out = self.gradient(self._theta(leaves), *batch)
            value, out = out if self._is_pair(out, leaves) else (None, out)
            value = value if value_of is None else None  # a given energy takes precedence
            slopes, width = self._slopes(out, leaves)
        if is_valued and value is None and value_of is not None:
            value = value_of(self._theta(leaves), *batch)
        if value is None:
            return Answer(None, slopes, width)
        numbers = _numbers(value, (len(leaves[0]),) if self.takes_all else (), "the value")
        return Answer(numbers.reshape(-1).astype(float), slopes, min(width, _bytes(value)))

    def _is_pair(self, out: Any, leaves: Leaves) -> bool:
        """Whether `out` is a pair (value, gradient); a list of two may be the gradient by two sites."""
        if not isinstance(out, (tuple, list)) or len(out) != 2:
            return False
        shape = leaves[0].shape if self.takes_all else leaves[0].shape[1:]
        return isinstance(out, tuple) or isinstance(out[1], Mapping) or np.shape(out[1]) == shape

    def _batch(self, batch: tuple, chains: range, per_chain: bool) -> tuple:
        """The batch of `chains` as the functions take it; `per_chain`: whether `batch` has an axis of chains."""
        if not (self.takes_all and self.of_each):
            return tree_map(lambda x: x[chains.start], batch) if per_chain else batch
        if per_chain:
            return tree_map(lambda x: x[chains.start : chains.stop], batch)
        return tree_map(lambda x: np.broadcast_to(x, (len(chains), *x.shape)), batch)

    def _theta(self, leaves: Leaves) -> Any:
        """A copy of theta in the form that the functions take; functions may change the copy."""
        parts = [(x if self.takes_all else x[0]).copy() for x in leaves]
        return parts[0] if self.names is None else dict(zip(self.names, parts))

    def _slopes(self, out: Any, leaves: Leaves) -> tuple[Leaves, int]:
        """The gradient, `(chains, *shape)` by tensor, and the bytes of its numbers."""
        if self.names is not None and not (isinstance(out, Mapping) and set(out) == set(self.names)):
            kind = sorted(map(str, out)) if isinstance(out, Mapping) else f"a {type(out).__name__}"
            raise RecipeError(WHERE, f"theta is a dict of {', '.join(self.names)}, and it returns {kind}", do=SHAPES)
        parts = [out] if self.names is None else [out[name] for name in self.names]
        shapes = [x.shape if self.takes_all else x.shape[1:] for x in leaves]
        slopes = [_numbers(g, shape, "the gradient") for g, shape in zip(parts, shapes)]
        of_chains = [g.astype(x.dtype).reshape(x.shape) for g, x in zip(slopes, leaves)]
        return of_chains, min(map(_bytes, parts))


def check_has_value(potential: Any, where: str, what: str) -> None:
    """Refuse a potential without a value; `what` begins the message: the reason why U is needed."""
    if isinstance(potential, Foreign) and not potential.has_value:
        advice = "Pass the energy too, sample(recipe, U, gradient=g), or return (value, gradient)."
        raise RecipeError(where, f"{what}, and gradient= brings none", do=advice)


class _Slope(torch.autograd.Function):
    """U of all chains for autograd, with the slopes of an answer as derivatives."""

    @staticmethod
    def forward(ctx: Any, answer: Callable, *theta: torch.Tensor) -> torch.Tensor:
        like = theta[0]
        reply = answer([_array(x) for x in theta], any(ctx.needs_input_grad))
        ctx.slopes = [torch.from_numpy(g).to(like.device) for g in reply.slopes]
        value = np.full(len(like), np.nan) if reply.value is None else reply.value
        return torch.from_numpy(value).to(like)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_value: torch.Tensor) -> tuple:
        (U,) = of_value
        return None, *(U.reshape(-1, *(1,) * (g.dim() - 1)) * g for g in ctx.slopes)


def _form(one: Foreign, leaves: Leaves, batch: tuple) -> tuple[Foreign, Answer]:
    """The potential with `takes_all` as found by calls at and near the start, and its answer there."""
    points = list(_beside(leaves))
    arrays = tree_map(_read_only, batch)
    answers: dict[bool, Answer] = {}
    log: dict[str, Exception] = {}
    for takes_all in (False, True):
        try:
            answers[takes_all] = replace(one, takes_all=takes_all).answer(points, arrays)
        except Exception as error:  # raised by the caller's functions
            shapes = [x.shape if takes_all else x.shape[1:] for x in points]
            of = f"of shape {shapes[0]}" if one.names is None else dict(zip(one.names, shapes))
            what = error.what if isinstance(error, RecipeError) else f"{type(error).__name__}: {error}"
            log[f"with theta {of}, {what}"] = error
    if not answers:
        what = f"it fails for one chain and for all: {'; '.join(log)}"
        raise RecipeError(WHERE, what, do=f"{SHAPES} {WITH_BATCH}" if batch else SHAPES) from next(iter(log.values()))
    if len(answers) == 2 and not answers[True].agrees(answers[False]):
        del answers[True]
    takes_all, answer = answers.popitem()
    energy = replace(one, takes_all=takes_all, has_value=answer.value is not None)
    if not energy.answer(points, arrays).agrees(answer):
        what = "it returns other numbers each time it is called"
        raise RecipeError(WHERE, what, do="Leave random numbers out; data= and batch_size= make minibatches.")
    return energy, answer


def _beside(leaves: Leaves) -> Iterator[np.ndarray]:
    """Points at and near the start; their number differs from the length of every axis of theta."""
    lengths = {n for x in leaves for n in x.shape}
    number = next(n for n in count(2) if n not in lengths)
    generator = np.random.default_rng(0)
    for x in leaves:
        z = generator.standard_normal((number, *x.shape))
        z[0] = 0
        yield (x + BESIDE * (1 + np.abs(x)) * z).astype(x.dtype)


def _check_slopes(near: list[Slopes], share: float, data: Data | None) -> None:
    """Refuse a gradient that differs from differences of U; the message names the factor, if constant."""
    wrong = [slopes for slopes in near if not slopes.agree(share)]
    if not wrong or 2 * len(wrong) < len(near):
        return
    ratios = [slopes.ratio for slopes in wrong]
    ratio = sorted(ratios)[len(ratios) // 2]
    if not all(abs(r - ratio) <= FACTOR * abs(ratio) for r in ratios):
        one, other = wrong[0].by_gradient, wrong[0].middle
        what = f"its slope is {one:.6g} along a direction in which differences of U say {other:.6g}"
        raise RecipeError(WHERE, what, do="Return the derivative of U by theta.")
    what = f"it is {ratio:.6g} times the derivative of U"
    for factor, reason, advice in _factors(data):
        if abs(ratio - factor) <= FACTOR * abs(factor):
            raise RecipeError(WHERE, f"{what}: {reason}", do=advice)
    raise RecipeError(WHERE, what, do="U and its gradient are on one scale, the sum over data.")


def _check_symmetry(energy: Foreign, leaves: Leaves, batch: tuple, width: int) -> None:
    """Refuse a gradient whose Jacobian is not symmetric: it is the gradient of no function."""
    ends = np.cumsum([x.size for x in leaves])

    def gradient(points: np.ndarray) -> np.ndarray:
        parts = zip(np.split(points, ends[:-1], axis=1), leaves)
        slopes = energy.answer([z.reshape(-1, *x.shape).astype(x.dtype) for z, x in parts], batch).slopes
        return np.concatenate([g.reshape(len(points), -1) for g in slopes], axis=1).astype(float)

    eps = float(np.finfo(np.float32 if min(width, leaves[0].itemsize) < 8 else np.float64).eps)
    theta = np.concatenate([x.reshape(-1) for x in leaves]).astype(float)
    slopes = curl_near(gradient, theta, share=SHARES[width], eps=eps)
    if slopes is not None:
        what = "it is the gradient of no U: v J w = {:.6g} and w J v = {:.6g}, where J is its Jacobian".format(*slopes)
        raise RecipeError(WHERE, what, do="Return the derivative of U by theta: its Jacobian is symmetric.")


def _factors(data: Data | None) -> Iterator[tuple[float, str, str]]:
    """Yields known ratios of a gradient to the derivative of U, each with its reason and advice."""
    yield -1.0, "the gradient of the log density", "U is -log density: return minus that."
    for rows in set() if data is None else {data.rows, data.batch_size or data.rows}:
        for sign, of in ((1, ""), (-1, " of the log density")):
            mean = f"a mean{of} over {rows} data, where U is a sum"
            total = f"a sum{of} over {rows} data, where U is a mean"
            yield sign / rows, mean, f"Return {sign * rows} times that."
            yield sign * rows, total, "U is on the sum scale: num_data times the mean."


def _joined(answers: list[Answer]) -> Answer:
    values = [answer.value for answer in answers if answer.value is not None]
    value = np.concatenate(values) if len(values) == len(answers) else None
    slopes = [np.concatenate(parts) for parts in zip(*(answer.slopes for answer in answers))]
    return Answer(value, slopes, min(answer.bytes for answer in answers))


def _array(x: torch.Tensor) -> np.ndarray:
    return x.detach().cpu().numpy()


def _read_only(x: torch.Tensor) -> np.ndarray:
    view = _array(x).view()
    view.flags.writeable = False
    return view


def _numbers(x: Any, shape: tuple[int, ...], what: str) -> np.ndarray:
    """The result x of a function as an array; refused unless real numbers of this shape."""
    array = np.array(x)
    kinds = "f" if what == "the gradient" else "fiu"
    if array.dtype.kind not in kinds and array.dtype.name != "bfloat16":
        raise RecipeError(WHERE, f"{what} is {array.dtype} numbers", do="Return real floating numbers.")
    if array.shape != shape:
        raise RecipeError(WHERE, f"{what} has the shape {array.shape}, not {shape}", do=SHAPES)
    return array


def _bytes(x: Any) -> int:
    """The precision of x: 4 for floats of less than 8 bytes, else 8."""
    dtype = np.asarray(x).dtype
    return 4 if dtype.kind == "f" and dtype.itemsize < 8 else 8


def _are_alike(a: np.ndarray, b: np.ndarray) -> bool:
    finite = np.abs(b[np.isfinite(b)])
    return np.allclose(a, b, rtol=ROUNDED, atol=ROUNDED * float(finite.max(initial=0.0)), equal_nan=True)
