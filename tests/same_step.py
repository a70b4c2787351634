"""A step made in four ways: emitted text, kernel, statements of the Program, flow by flow; accepted ones in two."""

import numpy as np
import torch
from statements import interpret

import integrators
from integrators.noise import Key
from samplers.testing.interpreter import flow_by_flow


def state_of(recipe, chains=3, sites=2):
    generator = torch.Generator().manual_seed(5)
    shapes = {b.name: (chains, sites) if b.is_vector else (chains,) for b in recipe.state}
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def noise_of(step, state, seed=7):
    generator = torch.Generator().manual_seed(seed)
    draw = {"normal": torch.randn, "uniform": torch.rand}

    def shape(d):
        whole = state[d.block.name].shape
        return whole if d.is_vector else whole[:1]

    return {d.name: draw[d.kind](shape(d), generator=generator, dtype=torch.float64) for d in step.program.draws}


def all_ways_agree(recipe, slopes, word=None, *, in_numpy=None, reuse_gradient=True, value=None, seeds=(1, 2)):
    """Over two steps; `slopes` are those of tensors, `in_numpy` of arrays where they are others, `value` that of U."""
    step = integrators.compile(recipe, word, reuse_gradient=reuse_gradient)
    kernel = integrators.compile(recipe, word, reuse_gradient=reuse_gradient, backend="cpp")
    text = native = state = state_of(recipe)
    one = other = {name: x.numpy() for name, x in state.items()}
    for seed in seeds:
        noise = noise_of(step, state, seed)
        numbers = {name: x.numpy() for name, x in noise.items()}
        text = step(text, 0.1, gradient=slopes, noise=noise, value=value)
        native = kernel(native, 0.1, gradient=slopes, noise=noise, value=value)
        one = interpret(step, one, 0.1, gradient=in_numpy or slopes, noise=numbers, value=value)
        other = flow_by_flow(step, other, 0.1, gradient=in_numpy or slopes, noise=numbers, value=value)
    for b in recipe.state:
        for result in (native[b.name].numpy(), one[b.name], other[b.name]):
            assert np.allclose(text[b.name].numpy(), result, rtol=1e-12, atol=1e-12)


def accepted_ways_agree(recipe, state, h, *, word=None, energy=None, steps=5, kernel="cpp", rtol=1e-10, **given):
    """Over some steps that are accepted or rejected by their work, in torch and as a kernel."""
    ends = []
    for backend in ("torch", kernel):
        step, end = integrators.metropolised(recipe, word, energy=energy, backend=backend), state
        for k in range(steps):
            end = step(end, h, noise=Key(3, k), **given)
        ends.append(end)
    for name, x in ends[0].items():
        torch.testing.assert_close(ends[1][name], x, rtol=rtol, atol=rtol)
    assert ends[0]["accepted"].sum() > 0
