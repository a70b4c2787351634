"""The one-step invariance defect, for any step of one to three blocks on one site.

z is drawn from exp(-H/T), the step's normals w from N(0, 1), both as tensor grids of a quadrature: the defect of a
monomial phi is E[phi(step(z, w))] - E[phi(z)]. Its norm falls as h^3 for a palindrome of exact flows, as h^2 for a
consistent step, and only as h where the SDE or a flow is wrong.
"""

import math
from dataclasses import replace

import numpy as np
import torch


def planted(step, *changes):
    """The step with its emitted text changed: (old, new), or (old, new, number of occurrences); old must be there."""
    source = step.source
    for old, new, *count in changes:
        assert old in source, f"{old!r} is not in\n{source}"
        source = source.replace(old, new, *count)
    mutant = replace(step)
    mutant.__dict__["source"] = source
    return mutant


def boltzmann(energy, temperature, low, high, nodes=44, kinks=()):
    """Gauss-Legendre points and weights of the density exp(-energy/temperature) on an interval, split at kinks."""
    points, weights = [], []
    ends = [low, *sorted(k for k in kinks if low < k < high), high]
    for left, right in zip(ends, ends[1:]):
        x, w = np.polynomial.legendre.leggauss(nodes)
        points.append((left + right) / 2 + (right - left) / 2 * x)
        weights.append((right - left) / 2 * w * np.exp(-energy(points[-1]) / temperature))
    points, weights = np.concatenate(points), np.concatenate(weights)
    return points, weights / weights.sum()


def gaussian(mean, variance, nodes=12):
    """Gauss-Hermite points and weights of a normal law."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    return mean + math.sqrt(variance) * x, w / w.sum()


def thermostat(mean, variance, kink, nodes=14):
    """The points and weights of a normal law whose integrand has a kink."""
    sd = math.sqrt(variance)
    return boltzmann(lambda x: (x - mean)**2 / 2, variance, mean - 8.5 * sd, mean + 8.5 * sd, 2 * nodes, [kink])


def grid(axes):
    """The points and weights of a tensor product, one flat array for each axis."""
    points = np.meshgrid(*(x for x, _ in axes), indexing="ij")
    weights = np.ones(())
    for _, w in axes:
        weights = np.multiply.outer(weights, w)
    return [x.ravel() for x in points], weights.ravel()


def defect(step, law, h, gradient, *, draw_nodes=9, degree=4, **parameters):
    """E[phi(step(z, w))] - E[phi(z)] for all monomials phi up to a degree; `law`: block name -> (points, weights)."""
    blocks = {block.name: block for block in step.recipe.state}
    normals = [gaussian(0, 1, draw_nodes) for _ in step.draws]
    points, weights = grid([*(law[name] for name in blocks), *normals])
    shaped = lambda x, block: torch.tensor(x)[:, None] if block.is_vector else torch.tensor(x)
    state = {name: shaped(x, block) for (name, block), x in zip(blocks.items(), points)}
    noise = {name: shaped(x, step.draw_blocks[name]) for name, x in zip(step.draws, points[len(blocks):])}
    out = step(state, h, gradient=gradient, noise=noise, **parameters)
    after, before = (moments([part[name] for name in blocks], weights, degree) for part in (out, state))
    change = after - before
    total_degree = sum(np.indices(change.shape))
    return change[(0 < total_degree) & (total_degree <= degree)]


def moments(values, weights, degree):
    """The table of E[x^i y^j ...] for exponents from 0 to a degree each."""
    powers = [np.multiply.accumulate([np.ones(len(weights)), *[v.reshape(-1).numpy()] * degree]) for v in values]
    letters = "ijk"[:len(powers)]
    return np.einsum(f"{','.join(f'{a}n' for a in letters)},n->{letters}", *powers, weights, optimize=True)


def slopes(step, law, gradient, hs=(0.2, 0.1, 0.05, 0.025), **options):
    """The slopes of the norm of the defect between neighbouring step sizes."""
    norms = [np.linalg.norm(defect(step, law, h, gradient, **options)) for h in hs]
    assert min(norms) > 1e-11, f"the defect {norms} is lost in rounding: the slope says nothing"
    return [math.log(a / b) / math.log(g / f) for a, b, g, f in zip(norms, norms[1:], hs, hs[1:])]
