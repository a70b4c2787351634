"""Many steps of many chains whose energy is symbolic: `samplers.sample`, the kernel alone, and other libraries."""

import numpy
import torch
from sympy import symbols

import integrators
import samplers
from integrators.kernels.trajectory import Trajectory
from recipe import Energy
from samplers.target.targets import TARGETS

from .timing import MISSING, Contender

STEP_SIZE = 0.01
RECIPES = ("sgld", "underdamped-langevin", "sgnht")
X = symbols("x0:10", real=True)
GAUSSIAN = Energy(X, U=sum(v**2 / 2 for v in X) + sum(a * b for a, b in zip(X, X[1:])) / 4)
ENERGIES = {"banana": TARGETS["banana"], "gaussian 10": GAUSSIAN}
IN_JAX = {
    "banana": lambda t: t[0] ** 2 / 2 + 5 * (t[1] - t[0] ** 2) ** 2,
    "gaussian 10": lambda t: (t**2).sum() / 2 + (t[1:] * t[:-1]).sum() / 4,
}


def trajectory(name, energy, chains, steps, h, sites, **data):
    """The kernel alone."""
    recipe = samplers.catalogue[name]
    step = integrators.compile(recipe, energy=energy)
    state = {b.name: torch.zeros((chains, sites) if b.is_vector else (chains,)) for b in recipe.entries}
    run = Trajectory(step.program, state, 0, **data)
    settings = numpy.tile((h, 1.0), (steps, 1))
    return lambda k: run.run(k * steps, settings, thin=steps, first_kept=steps - 1, keep=["theta"])


def sampled(name, energy, chains, steps, h, init, **data):
    """What a user calls."""
    run = dict(init=init, chains=chains, steps=steps, thin=steps, step_size=h, progress=False, **data)
    return lambda k: samplers.sample(samplers.catalogue[name], energy, seed=k, **run)


def scanned(step, theta, steps):
    """`step(theta, key)` many times, in jax."""
    import jax

    @jax.jit
    def run(theta, key):
        return jax.lax.scan(lambda at, key: (step(at, key), None), theta, jax.random.split(key, steps))[0]

    return lambda k: run(theta, jax.random.PRNGKey(k)).block_until_ready()


def of_jax(U, dim, chains, steps):
    """SGLD as a scan over steps of vectorised chains."""
    import jax
    import jax.numpy as jnp

    gradient, h = jax.vmap(jax.grad(U)), STEP_SIZE

    def step(theta, key):
        return theta - h * gradient(theta) + (2 * h) ** 0.5 * jax.random.normal(key, theta.shape)

    return scanned(step, jnp.zeros((chains, dim)), steps)


def of_blackjax(U, dim, chains, steps):
    """SGLD of blackjax, scanned over steps of vectorised chains."""
    import blackjax
    import jax
    import jax.numpy as jnp

    kernel = blackjax.sgld(lambda theta, _: -jax.grad(U)(theta))

    def step(theta, key):
        keys = jax.random.split(key, chains)
        return jax.vmap(lambda key, at: kernel.step(key, at, None, STEP_SIZE))(keys, theta)

    return scanned(step, jnp.zeros((chains, dim)), steps)


def chains(quick):
    """Titles and contenders, by the chain and step; those of ours that take less time do more of them."""
    work = 200_000 if quick else 20_000_000
    for target, energy in ENERGIES.items():
        dim = len(energy.coordinates)
        for many in (4096, 64):
            steps = work // many
            found = {}
            for name in RECIPES:
                found[name] = Contender(
                    sampled(name, energy, many, 3 * steps, STEP_SIZE, torch.zeros(dim)), 3 * steps * many
                )
                alone = trajectory(name, energy, many, steps, STEP_SIZE, dim)
                found[f"{name} kernel"] = Contender(alone, steps * many)
            few = max(1, steps // 5)
            for peer, make in (("jax", of_jax), ("blackjax", of_blackjax)):
                if peer not in MISSING:
                    found[f"{peer} scan"] = Contender(make(IN_JAX[target], dim, many, few), few * many)
            yield f"{target}, {many} chains", found
