"""What a step is called with, alike in numpy and in torch, and the error of its answer."""

import math

import numpy as np
import torch

from .cases import case_of

h, TEMPERATURE = 0.13, 1.25
IN_DOMAIN = {
    "real": lambda x: x,
    "positive": lambda x: 0.2 + np.abs(x),
    "nonnegative": np.abs,
    "binary": lambda x: 1.0 * (x > 0.3),
    "fraction": lambda x: 1 / (1 + np.exp(-x)),
}


def gradient(at):
    """A nonlinear field that couples all sites of a chain, on arrays, tensors, or dicts of them."""
    if isinstance(at, dict):
        sum_of_all = sum(at.values())
        return {name: v**3 / 4 + sum_of_all / 3 - 0.2 * k for k, (name, v) in enumerate(at.items())}
    mean = at.reshape(len(at), -1).sum(1).reshape(-1, *[1] * (at.ndim - 1))
    return at**3 / 4 + at / 2 + mean / 5 - 0.4


def curvature(at):
    return 0.3 + at**2 / 2


def own_step_size(step):
    return case_of(step.recipe).step_size or h


def drawn_for(draw, random, size):
    """Random numbers of a draw's kind; where its law depends on the state, an arbitrary function of the parameter."""
    match draw.kind:
        case "normal":
            return random.normal(size=size)
        case "uniform":
            return random.uniform(size=size)
    return lambda parameter: 0.3 + parameter / 2


def inputs(step, chains, shape, seed=0, sizes=None):
    """A state, a noise and parameters, all away from 0 and 1, as numpy arrays; per-site parameters have the shape."""
    random, values = np.random.default_rng(seed), case_of(step.recipe).parameters
    size = lambda block: (chains, *shape) if block.is_vector else (chains, len(sizes)) if sizes else (chains,)
    state = {block.name: IN_DOMAIN[block.domain](random.normal(0.3, 0.8, size(block))) for block in step.recipe.entries}
    drawn = {draw.name: drawn_for(draw, random, size(draw)) for draw in step.program.draws}
    given = {
        q.name: values[q.name] * (random.uniform(0.6, 1.4, shape) if q.per and shape else 1.0)
        for q in step.recipe.parameters
    }
    return state, drawn, {**given, "temperature": TEMPERATURE, "num_data": 3, "step_number": 7 if shape else 2}


def each(function, values):
    """The arrays or tensors of a dict changed, all else as it is."""
    return {k: function(v) if isinstance(v, (np.ndarray, torch.Tensor)) else v for k, v in values.items()}


def tensors(arrays, dtype=torch.float64):
    return each(lambda v: torch.tensor(v, dtype=dtype), arrays)


def asked(step):
    """What a step asks the caller for beside the gradient."""
    return {"observe": case_of(step.recipe).observe} | (
        {"curvature": curvature} if step.program.needs_curvature else {}
    )


def called(step, state, drawn, parameters, dtype=torch.float64, gradient=gradient, step_size=None):
    """The emitted step on numpy inputs; `drawn` may be a Key."""
    noise = tensors(drawn, dtype) if isinstance(drawn, dict) else drawn
    return step(
        tensors(state, dtype),
        step_size or own_step_size(step),
        gradient=gradient,
        noise=noise,
        **asked(step),
        **tensors(parameters),
    )


def by_oracle(oracle, step, state, drawn, parameters, **more):
    """An oracle on the same inputs."""
    given = {"gradient": gradient, "curvature": curvature, "observe": case_of(step.recipe).observe}
    return oracle(step, state, own_step_size(step), noise=drawn, **{**given, **more}, **parameters)


def flat(state):
    """A state whose gradient, if it is a dict by block, is laid out."""
    carried = state.get("gradient")
    blocks = {k: v for k, v in state.items() if k != "gradient"}
    return blocks | {f"gradient_{k}": v for k, v in carried.items()} if isinstance(carried, dict) else state


def worst(result, expected):
    """The largest error relative to max(1, |expected|) over what two states have in common, all blocks at least."""
    result, expected = flat(result), flat(expected)
    assert {k for k in result if "gradient" not in k} == {k for k in expected if "gradient" not in k}
    errors = []
    for name in expected.keys() & result.keys():
        value, other = np.asarray(result[name], float), np.asarray(expected[name], float)
        assert value.shape == other.shape, name
        errors.append(float((np.abs(value - other) / np.maximum(1, np.abs(other))).max()))
    return math.inf if any(map(math.isnan, errors)) else max(errors)
