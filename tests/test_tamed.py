"""Tamed Langevin steps: a drift that moves no coordinate by more than 1, with its work, from starts however far."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import integrators
from recipe import Recipe, numerical, positive, potential, vector
from samplers import MALA, sample
from samplers.testing.layers import LAYERS
from samplers.testing.subject import subject_of

theta = vector("theta")
C = positive("C", default=0.7, per=theta)
TAMED = Recipe(
    name="tamed",
    state=theta,
    H=potential(theta),
    D={theta: C},
    pieces={"G": numerical(theta, "tamed")},
    scheme="G",
    metropolis=True,
)


def quartic(x):
    return (x**4).sum() / 4


def test_a_step_and_its_work_are_those_by_hand():
    h, T, D = 0.3, 0.8, 0.7
    z, noise = np.array([[1.0, -3.0], [40.0, 0.1]]), np.array([[0.3, -1.2], [2.0, 0.5]])

    def mean(x):
        return x - h * D * x**3 / (1 + h * D * abs(x) ** 3)

    def log_density(x, to):
        return -((to - mean(x)) ** 2).sum(1) / (4 * h * T * D)

    after = mean(z) + (2 * h * T * D) ** 0.5 * noise
    work = ((after**4 - z**4) / 4).sum(1) + T * (log_density(z, after) - log_density(after, z))
    step = integrators.metropolised(TAMED, accept=False)
    state = {"theta": z, "direction": np.ones(2), "work": np.zeros(2), "accepted": np.zeros(2)}
    state = {name: torch.tensor(x, dtype=torch.float64) for name, x in state.items()}
    (name,) = step.draws
    own = step(
        state,
        h,
        gradient=lambda x: x**3,
        value=lambda x: (x**4).sum(1) / 4,
        noise={name: torch.tensor(noise)},
        temperature=T,
    )
    np.testing.assert_allclose(own["theta"], after, rtol=1e-12)
    np.testing.assert_allclose(own["work"], work, rtol=1e-10)


def test_its_sde_and_its_work_are_right_and_it_is_of_order_1():
    subject = subject_of(TAMED)
    assert all(result.ok for layer in ("work", "one-step defect") for result in LAYERS[layer](subject))
    assert integrators.compile(TAMED).order == 1 and TAMED.check(temperature=0.7).exact


def test_it_comes_in_from_far_where_mala_stands_still():
    start = torch.full((2,), 100.0, dtype=torch.float64)
    run = dict(init=start, chains=8, steps=400, step_size=0.2, backend="torch", progress=False)
    draws = sample(replace(TAMED, D={theta: 1}), quartic, **run)
    assert (draws["theta"][:, -1].abs() < 10).all()
    with pytest.warns(RuntimeWarning, match="have accepted none of 400 steps"):
        sample(MALA, quartic, **run)
