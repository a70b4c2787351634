"""Arguments for calls of a step, alike in numpy and in torch, and the error of the resulting state."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from integrators.operators import Field
from integrators.step import Step
from recipe.domains import NAMED, Domain
from recipe.operators import Operator

from .cases import case_of
from .devices import stepped

STEP_SIZE, TEMPERATURE, NUM_DATA = 0.13, 1.25, 3
Values = dict[str, Any]


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


class Inputs(NamedTuple):
    """Arguments of one call: `step(at.state, h, gradient=..., noise=at.noise, **at.parameters)`."""

    state: Values
    noise: Values
    parameters: Values

    def each(self, change: Callable[[str, Any], Any]) -> "Inputs":
        """Inputs with every array replaced by change(name, array)."""
        return Inputs(*({k: change(k, v) if _is_array(v) else v for k, v in part.items()} for part in self))

    @property
    def tensors(self) -> "Inputs":
        """The inputs as torch float64 tensors."""
        return Inputs(*map(tensors, self))


def inputs(
    step: Step, chains: int, shape: tuple[int, ...], seed: int = 0, sizes: Sequence[int] | None = None
) -> Inputs:
    """A random state and noise, and the parameters of the recipe's case, all away from 0 and 1, numpy float64.

    Vector blocks are (chains, *shape), scalar blocks (chains,), or (chains, tensors) where `sizes`, the number of sites
    of each tensor, are given; parameters per site are of `shape`.

    >>> import integrators
    >>> from samplers import SGNHT
    >>> at = inputs(integrators.compile(SGNHT), chains=2, shape=(3,))
    >>> at.state["theta"].shape, at.state["xi"].shape, sorted(at.noise)
    ((2, 3), (2,), ['p'])
    """
    random = np.random.default_rng(seed)
    values = case_of(step.recipe).parameters
    state, noise = _state_and_noise(step, random, chains, shape, sizes)
    parameters = {
        s.name: value_of(s, random, shape)
        if isinstance(s, Operator)
        else values[s.name] * (random.uniform(0.6, 1.4, shape) if s.per and shape else 1.0)
        for s in step.recipe.parameters
    }
    step_number = 7 if shape else 2
    return Inputs(state, noise, parameters | _of_the_step(step_number))


def varied_inputs(step: Step, chains: int = 4, shape: tuple[int, ...] = (3,), seed: int = 0) -> Inputs:
    """`inputs` with parameters that vary with the seed: within a quarter of the default, or anywhere in the domain.

    >>> import integrators
    >>> from samplers import SGNHT
    >>> one, other = (varied_inputs(integrators.compile(SGNHT), seed=seed).parameters["A"] for seed in (1, 2))
    >>> one != other and one > 0
    True
    """
    random = np.random.default_rng(seed)
    state, noise = _state_and_noise(step, random, chains, shape)

    def parameter(s):
        if isinstance(s, Operator):
            return value_of(s, random, shape)
        around = random.uniform(0.8, 1.25, shape if s.per else ())
        value = led_into(NAMED[s.sign], random.normal(0.3, 0.8)) if s.default is None else s.default
        value = np.minimum(value * around, 1) if s.sign == "fraction" else value * around
        return value if s.per and shape else float(value)

    parameters = {s.name: parameter(s) for s in step.recipe.parameters}
    return Inputs(state, noise, parameters | _of_the_step(step_number=2))


def _state_and_noise(step, random, chains, shape, sizes=None):
    """Random arrays for every block, inside the domain, and for every draw."""

    def size(block):
        if block.is_vector:
            return chains, *shape
        return (chains, len(sizes)) if sizes else (chains,)

    state = {b.name: led_into(b.domain, random.normal(0.3, 0.8, size(b))) for b in step.recipe.entries}
    return state, {d.name: drawn_for(d, random, size(d)) for d in step.program.draws}


def value_of(operator: Operator, random: np.random.Generator, shape: tuple[int, ...]) -> Any:
    """A random matrix of the kind of an operator; for an operator of theta, A + B (1 + tanh(w theta)/2)."""
    A = matrix(operator, random, math.prod(shape))
    if operator.at is None:
        return A
    B = matrix(operator, random, math.prod(shape))
    w = torch.tensor(random.normal(size=math.prod(shape)))

    def slope(theta: torch.Tensor) -> torch.Tensor:
        return (1 - torch.tanh(w @ theta.reshape(-1)) ** 2) / 2

    return Field(
        lambda theta: torch.tensor(A) + torch.tensor(B) * (1 + torch.tanh(w @ theta.reshape(-1)) / 2),
        divergence=lambda theta: ((torch.tensor(B) @ w) * slope(theta)).reshape(theta.shape),
    )


def matrix(operator: Operator, random: np.random.Generator, sites: int) -> np.ndarray:
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


def _of_the_step(step_number):
    return {"temperature": TEMPERATURE, "num_data": NUM_DATA, "step_number": step_number}


def drawn_for(draw: Any, random: np.random.Generator, size: tuple[int, ...]) -> np.ndarray | Callable:
    """Random numbers of a draw's kind; for a law that depends on the state, an arbitrary function of the parameter."""
    match draw.kind:
        case "normal":
            return random.normal(size=size)
        case "uniform":
            return random.uniform(size=size)
    return lambda parameter: 0.3 + parameter / 2


# ---- functions that a step calls


def gradient(at: Any) -> Any:
    """A nonlinear field that couples all sites of a chain, on arrays, tensors, or dicts of them."""
    if isinstance(at, dict):
        sum_of_all = sum(at.values())
        return {name: v**3 / 4 + sum_of_all / 3 - 0.2 * k for k, (name, v) in enumerate(at.items())}
    mean = at.reshape(len(at), -1).sum(1).reshape(-1, *[1] * (at.ndim - 1))
    return at**3 / 4 + at / 2 + mean / 5 - 0.4


def curvature(at: Any) -> Any:
    """A positive field in place of the Hessian's diagonal."""
    return 0.3 + at**2 / 2


def own_step_size(step: Step) -> float:
    """The step size that the case of a recipe fixes, else STEP_SIZE."""
    return case_of(step.recipe).step_size or STEP_SIZE


def asked(step: Step, curvature: Callable = curvature) -> dict[str, Any]:
    """Arguments of a step beside the gradient: the observations of its case, and the curvature where it is read."""
    answered: dict[str, Any] = {"observe": case_of(step.recipe).observe}
    if step.program.needs_curvature:
        answered["curvature"] = curvature
    return answered


# ---- arrays and tensors


def _is_array(value):
    return isinstance(value, (np.ndarray, torch.Tensor))


def each(function: Callable, values: Mapping[str, Any]) -> Values:
    """Applies a function to the arrays and tensors of a dict; other values are kept."""
    return {k: function(v) if _is_array(v) else v for k, v in values.items()}


def tensors(arrays: Mapping[str, Any], dtype: torch.dtype = torch.float64) -> Values:
    """The arrays of a dict as tensors; tensors keep their autograd graph."""
    return each(lambda v: v.to(dtype) if torch.is_tensor(v) else torch.tensor(v, dtype=dtype), arrays)


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
    value: Callable | None = None,
    step_size: float | None = None,
) -> Values:
    """Calls the emitted step on numpy arrays or tensors; `noise` may be a Key."""
    return stepped(
        step,
        tensors(state, dtype),
        step_size or own_step_size(step),
        gradient=gradient,
        noise=tensors(noise, dtype) if isinstance(noise, dict) else noise,
        value=value if step.program.needs_value else None,
        **asked(step, curvature),
        **tensors(parameters),
    )


def by_oracle(oracle: Callable, step: Step, state: Values, noise: Any, parameters: Values, **options: Any) -> Values:
    """Calls an oracle of the step on the same inputs; `options` replace gradient, curvature or observations."""
    answered = {"gradient": gradient, "curvature": curvature, "observe": case_of(step.recipe).observe}
    return oracle(step, state, own_step_size(step), noise=noise, **{**answered, **options}, **parameters)


def flat(state: Values) -> Values:
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
    result, expected = flat(result), flat(expected)
    if {k for k in result if "gradient" not in k} != {k for k in expected if "gradient" not in k}:
        raise AssertionError(f"the blocks are {sorted(result)}, not {sorted(expected)}")
    errors = []
    for name in expected.keys() & result.keys():
        value, other = np.asarray(result[name], float), np.asarray(expected[name], float)
        if value.shape != other.shape:
            raise AssertionError(f"the shape of {name} is {value.shape}, not {other.shape}")
        errors.append(largest_error(value, other))
    return math.inf if any(map(math.isnan, errors)) else max(errors)


def largest_error(value: np.ndarray, expected: np.ndarray) -> float:
    """max |value - expected|/max(1, |expected|)."""
    return float((np.abs(value - expected) / np.maximum(1, np.abs(expected))).max())
