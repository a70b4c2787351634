"""Calls of a step with random arguments, alike in numpy and in torch, and the error of the resulting state."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from sympy import Expr

from integrators.operators import Field
from integrators.step import Step
from recipe import Recipe
from recipe.domains import NAMED, Domain
from recipe.operators import Operator
from recipe.symbols import Block

from .cases import case_of
from .interpreter import evaluate

STEP_SIZE, TEMPERATURE, NUM_DATA = 0.13, 1.25, 3
Values = dict[str, Any]


# ---- random arguments


def led_into(domain: Domain, x: Any) -> Any:
    """Maps real numbers into a domain.

    >>> led_into(NAMED["positive"], np.array([-1.0, 2.0]))
    array([1.2, 2.2])
    """
    if domain.is_real:
        return x
    if domain.is_discrete:
        return sum(1.0 * (x > 0.3 + 0.4 * k) for k in range(domain.categories - 1))
    if domain.is_compact:
        return domain.inside(1 / (1 + np.exp(-x)))
    return np.abs(x) + (0.2 if domain.name == "positive" else 0.0)


class Arguments(NamedTuple):
    """Arguments of one call: `step(at.state, h, gradient=..., noise=at.noise, **at.parameters)`."""

    state: Values
    noise: Values
    parameters: Values

    @property
    def tensors(self) -> "Arguments":
        """The inputs as torch float64 tensors."""
        return Arguments(*map(tensors, self))


def inputs(
    step: Step,
    chains: int = 4,
    shape: tuple[int, ...] = (3,),
    seed: int = 0,
    sizes: Sequence[int] | None = None,
    *,
    varied: bool = False,
) -> Arguments:
    """A random state and noise inside of their domains, and parameters away from 0 and 1, numpy float64.

    Vector blocks are (chains, *shape), scalar blocks (chains,), or (chains, tensors) where `sizes`, the number of sites
    of each tensor, are given; parameters per site are of `shape`. Parameters are those of the recipe's case; `varied`
    ones are within a quarter of their default, or anywhere in their domain.

    >>> import integrators
    >>> from samplers import SGNHT
    >>> at = inputs(integrators.compile(SGNHT), chains=2)
    >>> at.state["theta"].shape, at.state["xi"].shape, sorted(at.noise)
    ((2, 3), (2,), ['p'])
    """
    random = np.random.default_rng(seed)
    values = case_of(step.recipe).parameters

    def size(block):
        if block.is_vector:
            return chains, *shape
        return (chains, len(sizes)) if sizes else (chains,)

    def parameter(s):
        of_sites = shape if s.per else ()
        if isinstance(s, Operator):
            return _value_of(s, random, shape)
        if not varied:
            return values[s.name] * (random.uniform(0.6, 1.4, of_sites) if of_sites else 1.0)
        around = random.uniform(0.8, 1.25, of_sites)
        value = around * (led_into(NAMED[s.sign], random.normal(0.3, 0.8)) if s.default is None else s.default)
        value = np.minimum(value, 1) if s.sign == "fraction" else value
        return value if of_sites else float(value)

    state = {b.name: led_into(b.domain, random.normal(0.3, 0.8, size(b))) for b in step.recipe.entries}
    noise = {d.name: _drawn_for(d, random, size(d)) for d in step.program.draws}
    parameters = {s.name: parameter(s) for s in step.recipe.parameters}
    parameters |= {"temperature": TEMPERATURE, "num_data": NUM_DATA, "step_number": 7 if shape and not varied else 2}
    return Arguments(state, noise, parameters)


def _value_of(operator, random, shape):
    """A random matrix of the kind of an operator; for an operator of theta, A + B (1 + tanh(w theta)/2)."""
    A = _matrix(operator, random, math.prod(shape))
    if operator.at is None:
        return A
    B = torch.tensor(_matrix(operator, random, math.prod(shape)))
    w = torch.tensor(random.normal(size=math.prod(shape)))

    def slope(theta):
        return (1 - torch.tanh(w @ theta.reshape(-1)) ** 2) / 2

    return Field(
        lambda theta: torch.tensor(A) + B * (1 + torch.tanh(w @ theta.reshape(-1)) / 2),
        divergence=lambda theta: ((B @ w) * slope(theta)).reshape(theta.shape),
    )


def _matrix(operator, random, sites):
    """A random matrix, (sites, sites), of the kind of an operator; a semidefinite one of several sites is singular."""
    A = random.normal(size=(sites, sites))
    if operator.matrix_kind == "skew":
        return A - A.T
    if operator.matrix_kind == "symmetric":
        return A + A.T
    square = A @ A.T / sites
    if operator.matrix_kind == "semidefinite" and sites > 1:
        return square - np.linalg.eigvalsh(square)[0] * np.eye(sites)
    return square + 0.3 * np.eye(sites)


def _drawn_for(draw, random, size):
    """Random numbers of a draw's kind; for a law that depends on the state, an arbitrary function of the parameter."""
    if draw.kind in ("normal", "uniform"):
        return getattr(random, draw.kind)(size=size)
    return lambda parameter: 0.3 + parameter / 2


# ---- functions that a step calls


def gradient(at: Any) -> Any:
    """A nonlinear field that couples all sites of a chain, on arrays, tensors, or dicts of them."""
    if isinstance(at, dict):
        sums = sum(v if v.ndim == 1 else v.reshape(len(v), -1).sum(1) for v in at.values())
        return {name: v**3 / 4 + _per_chain(sums, v) / 3 - 0.2 * k for k, (name, v) in enumerate(at.items())}
    return at**3 / 4 + at / 2 + _per_chain(at.reshape(len(at), -1).sum(1), at) / 5 - 0.4


def _per_chain(x, like):
    """Numbers of each chain, (chains,), in a shape that broadcasts with the sites of a block."""
    return x.reshape(-1, *[1] * (like.ndim - 1))


def value(at: Any) -> Any:
    """A positive number for each chain, on arrays, tensors, or dicts of them."""
    blocks = at.values() if isinstance(at, dict) else [at]
    return 0.7 + sum((v.reshape(len(v), -1) ** 2).sum(1) for v in blocks) / 5


def by_potential(recipe: Recipe, function: Any) -> Any:
    """A function of U, as a dict with a multiple of it for each potential where potentials have names."""
    if function is None or not recipe.is_by_name:
        return function

    def multiple(k):
        return lambda at: _times(k, function(at))

    return {key: multiple(1 / k) for k, key in enumerate(dict.fromkeys(U.key for U in recipe.potentials), 1)}


def _times(k, x):
    return {name: k * v for name, v in x.items()} if isinstance(x, dict) else k * x


def curvature(at: Any) -> Any:
    """A positive field in place of the Hessian's diagonal."""
    return 0.3 + at**2 / 2


def own_step_size(step: Step) -> float:
    """The step size that the case of a recipe fixes, else STEP_SIZE."""
    return case_of(step.recipe).step_size or STEP_SIZE


def asked(step: Step, curvature: Callable = curvature) -> dict[str, Any]:
    """Arguments of a step beside the gradient: the observations of its case, and the curvature where it is read."""
    observed: dict[str, Any] = {"observe": case_of(step.recipe).observe}
    function = by_potential(step.recipe, curvature)
    return observed | ({"curvature": function} if step.program.needs_curvature else {})


@cache
def derivatives(U: Expr, coordinates: tuple[Expr, ...]) -> dict[str, Callable[[Any], Any]]:
    """The value, gradient and curvature of U, functions of arrays or tensors, or of dicts of them by block.

    `coordinates`: blocks, or symbols for the coordinates of one block.

    >>> from recipe import total, vector
    >>> theta = vector("theta")
    >>> derivatives(total(theta**4), (theta,))["gradient"](np.array([[1.0, 2.0]]))
    array([[ 4., 32.]])
    """
    blocks = [c for c in coordinates if isinstance(c, Block)]

    def function(formulas, kinds):
        """The values of formulas of the coordinates, each for every site or, by its kind, for every chain."""

        def values(at):
            by_name = at if isinstance(at, dict) else {blocks[0].name if blocks else "": at}
            arrays = {name: np.asarray(x) for name, x in by_name.items()}
            whole = max(arrays.values(), key=np.ndim) if blocks else arrays[""][:, :1]
            columns = [arrays[b.name] for b in blocks] or [*arrays[""].T]
            known = {c: x if x.ndim == whole.ndim else _per_chain(x, whole) for c, x in zip(coordinates, columns)}
            answers = (np.broadcast_to(evaluate(e, known, whole.shape), whole.shape) for e in formulas)
            results = [x if is_site else x.reshape(len(x), -1)[:, 0] for x, is_site in zip(answers, kinds)]
            return [torch.tensor(x) for x in results] if torch.is_tensor(next(iter(by_name.values()))) else results

        return values

    def derivative(order):
        kinds = [bool(blocks) and c.is_vector for c in coordinates]
        of_all = function([U.diff(c, order) for c in coordinates], kinds)
        if not blocks:
            return lambda at: (torch.stack if torch.is_tensor(at) else np.stack)(of_all(at), 1)
        if len(blocks) == 1:
            return lambda at: of_all(at)[0]
        return lambda at: dict(zip([b.name for b in blocks], of_all(at)))

    whole = function([U], [False])
    return {"value": lambda at: whole(at)[0], "gradient": derivative(1), "curvature": derivative(2)}


# ---- arrays, tensors and devices


def each(function: Callable, values: Mapping[str, Any]) -> Values:
    """Applies a function to the arrays and tensors of a dict; other values are kept."""
    return {k: function(v) if isinstance(v, (np.ndarray, torch.Tensor)) else v for k, v in values.items()}


def tensors(arrays: Mapping[str, Any], dtype: torch.dtype = torch.float64) -> Values:
    """The arrays of a dict as tensors; tensors keep their autograd graph."""
    return each(lambda v: v.to(dtype) if torch.is_tensor(v) else torch.tensor(v, dtype=dtype), arrays)


def device_of(backend: str) -> str:
    """The device of a backend's kernels: "cuda" for Triton where there is a GPU, else "cpu".

    >>> device_of("cpp")
    'cpu'
    """
    return "cuda" if backend == "triton" and torch.cuda.is_available() else "cpu"


def stepped(step: Step, state: Values, h: float, /, **arguments: Any) -> Values:
    """Calls a step on its backend's device, with tensors and functions of the CPU, and returns the state on the CPU.

    >>> import integrators
    >>> from samplers import SGLD
    >>> start, noise = {"theta": torch.ones(1, 2)}, {"theta": torch.zeros(1, 2)}
    >>> stepped(integrators.compile(SGLD), start, 0.1, gradient=lambda theta: theta, noise=noise)["theta"]
    tensor([[0.9000, 0.9000]])
    """
    device = device_of(step.backend)
    if device == "cpu":
        return step(state, h, **arguments)
    return _moved(step(_moved(state, device), h, **_moved(arguments, device)), "cpu")


def _moved(values, device):
    """Moves tensors, dicts of them, and functions to a device; other values are returned unchanged."""
    if isinstance(values, Mapping):
        return {name: _moved(x, device) for name, x in values.items()}
    if callable(values):
        return lambda at: _moved(values(_moved(at, "cpu")), device)
    return values.to(device) if torch.is_tensor(values) else values


# ---- one call


def called(
    step: Step,
    state: Values,
    noise: Any,
    parameters: Values,
    *,
    dtype: torch.dtype = torch.float64,
    gradient: Callable = gradient,
    curvature: Callable = curvature,
    value: Callable = value,
    step_size: float | None = None,
) -> Values:
    """Calls the emitted step on numpy arrays or tensors; `noise` may be a Key."""
    return stepped(
        step,
        tensors(state, dtype),
        step_size or own_step_size(step),
        gradient=by_potential(step.recipe, gradient),
        noise=tensors(noise, dtype) if isinstance(noise, dict) else noise,
        value=by_potential(step.recipe, value) if step.program.needs_value else None,
        **asked(step, curvature),
        **tensors(parameters),
    )


def by_oracle(oracle: Callable, step: Step, state: Values, noise: Any, parameters: Values, **options: Any) -> Values:
    """Calls an oracle of the step on the same inputs; `options` replace gradient, curvature or observations."""
    fields = {"gradient": gradient, "curvature": curvature, "value": value}
    answered = {name: by_potential(step.recipe, options.pop(name, field)) for name, field in fields.items()}
    options = {"observe": case_of(step.recipe).observe, **options}
    return oracle(step, state, own_step_size(step), noise=noise, **answered, **options, **parameters)


def _by_entry(state):
    """A state with a gradient that is a dict by block replaced by an entry `gradient_<block>` for each block."""
    carried = state.get("gradient")
    if not isinstance(carried, dict):
        return state
    blocks = {k: v for k, v in state.items() if k != "gradient"}
    return blocks | {f"gradient_{k}": v for k, v in carried.items()}


def worst(result: Values, expected: Values) -> float:
    """The largest error relative to max(1, |expected|) over the common entries of two states, which share all blocks.

    Raises AssertionError for other blocks or shapes.
    """
    result, expected = _by_entry(result), _by_entry(expected)
    if {k for k in result if "gradient" not in k} != {k for k in expected if "gradient" not in k}:
        raise AssertionError(f"the blocks are {sorted(result)}, not {sorted(expected)}")
    errors = []
    for name in expected.keys() & result.keys():
        value, other = np.asarray(result[name], float), np.asarray(expected[name], float)
        if value.shape != other.shape:
            raise AssertionError(f"the shape of {name} is {value.shape}, not {other.shape}")
        errors.append(largest_error(value, other))
    return math.inf if any(map(math.isnan, errors)) else max(errors)


def largest_error(value: Any, expected: Any) -> float:
    """max |value - expected|/max(1, |expected|)."""
    return float((np.abs(value - expected) / np.maximum(1, np.abs(expected))).max())
