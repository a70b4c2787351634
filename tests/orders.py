"""The order of a one-step defect."""

import math

import numpy as np

from samplers.testing.one_step import moments, transition
from samplers.testing.quadrature import grid


def coupled(rules, coupling, temperature):
    """The tensor product of rules, times exp(-coupling/T), a function of their coordinates."""
    points, weights = grid(rules)
    if coupling:
        weights = weights * np.exp(-coupling(*points) / temperature)
    return points, weights / weights.sum()


def defect(step, law, h, gradient, *, coupling=None, degree=4, temperature=1.0, **options):
    """The one-step defect from a law with a coupling energy of its coordinates."""
    points, weights = coupled([law[b.name] for b in step.recipe.state], coupling, temperature)
    before, after, weights = transition(step, points, weights, h, gradient, temperature=temperature, **options)
    return moments(after, weights, degree) - moments(before, weights, degree)


def slopes(step, law, gradient, hs=(0.2, 0.1, 0.05, 0.025), at=None, **options):
    """The slopes of the norm of the defect between neighbouring step sizes.

    `at`: the function from a step size to arguments of `defect` that change with it.
    """

    def norm(h):
        arguments = {"h": h, **options, **(at(h) if at else {})}
        return np.linalg.norm(defect(step, law, gradient=gradient, **arguments))

    norms = [norm(h) for h in hs]
    if not min(norms) > 1e-11:
        raise AssertionError(f"the defect {norms} is lost in rounding: the slope says nothing")
    return [math.log(a / b) / math.log(g / f) for a, b, g, f in zip(norms, norms[1:], hs, hs[1:])]
