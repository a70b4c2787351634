"""Learning coefficients: the quadrature, the formulas and the data that the estimates are measured against."""

import math

import numpy as np
import pytest
import torch
from covering import slow
from scipy.special import k0e, k1e

pytestmark = pytest.mark.usefixtures("papers")


@pytest.mark.parametrize("gamma", [0.1, 1.0, 30.0])
@pytest.mark.parametrize("t", [10.0, 1e3, 1e5])
def test_the_crossing_has_the_law_of_bessel_functions(t, gamma):
    """Z = e^a K_0(a) sqrt(pi/t), a = gamma^2/(4 t): lambda_n = -d log Z/d log t = 1/2 - a (K_1(a)/K_0(a) - 1)."""
    import coefficients as example

    a = gamma**2 / (4 * t)
    assert example.of_monomial(1, 0.0, t, gamma) == pytest.approx(0.5 - a * (k1e(a) / k0e(a) - 1), rel=1e-6)


@pytest.mark.parametrize("shape", [slow(((3, 2, 3),)), (2, 1, 2), (4, 2, 2)])
def test_the_mean_of_a_linear_network_is_that_over_drawn_factors(shape):
    """A ~ N(0, 1) by a generator, weighted by the integral over B; to 1 %, five standard errors or more."""
    import coefficients as example

    inputs, hidden, outputs = shape
    A = np.random.default_rng(0).normal(size=(100_000, hidden, inputs))
    squares = np.linalg.eigvalsh(A @ A.swapaxes(1, 2))
    drawn = example.mean_gain(squares, np.zeros(len(A)), outputs, 10.0, 1.0)
    assert example.of_product(*shape, 10.0, 1.0) == pytest.approx(drawn, rel=0.01)


@pytest.mark.parametrize("shape", [(3, 2, 3), (4, 1, 2), (2, 1, 5), slow(((5, 2, 2),)), (2, 1, 2), slow(((2, 2, 3),))])
def test_the_coefficients_of_linear_networks_are_the_limits_of_quadrature(shape):
    """lambda_n = lambda - (m - 1)/(log n beta + c) + ...: two n beta tell lambda, and m by its slope."""
    import coefficients as example

    coefficient, multiplicity = example.aoyagi(*shape, 0)
    near, far = (example.of_product(*shape, t, 1.0) for t in (1e6, 1e12))
    assert far == pytest.approx(coefficient - (multiplicity - 1) / (math.log(1e12) + 0.5), abs=0.01)
    assert (far - near > 0.02) == (multiplicity == 2)


def test_the_coefficients_of_linear_networks_at_their_full_rank_are_those_of_regular_models():
    """r (M + N - r)/2, half the dimension of matrices of rank r, and M N/2 where no width is missing."""
    import coefficients as example

    for inputs, outputs, rank in ((4, 3, 2), (3, 3, 1), (5, 2, 2)):
        assert example.aoyagi(inputs, rank, outputs, rank) == (rank * (inputs + outputs - rank) / 2, 1)
        assert example.aoyagi(inputs, inputs + outputs, outputs, 0) == (inputs * outputs / 2, 1)
    assert example.aoyagi(4, 2, 3, 1) == example.aoyagi(3, 2, 4, 1) == (4.0, 1)


def test_the_loss_of_the_data_is_that_of_the_moments():
    """L_n(w) - L_n(w*) = |M(w) - M(w*)|^2/2 at any w, as residuals are orthogonal to the inputs."""
    import coefficients as example

    of = example.MODELS["rank one"]
    X, Y = of.data(500)
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(len(of.centre), generator=generator, dtype=torch.float64)

    def loss(w):
        return (Y - torch.stack(of.M(list(w))).reshape(3, 4) @ X).square().sum(0).mean() / 2

    excess = loss(w) - loss(torch.tensor(of.centre, dtype=torch.float64))
    assert float(of.gain(500, w)) == pytest.approx(example.tempered(500) * float(excess), rel=1e-9)
    assert float((Y - torch.tensor(of.M(of.centre)).reshape(3, 4).double() @ X).square().mean()) == pytest.approx(1)


@pytest.fixture
def reduced(study):
    """A study of the size of the page."""
    from study import Scale

    study.scale = Scale.REDUCED
    return study


@pytest.mark.slow
def test_chains_have_the_mean_of_the_quadrature(reduced):
    """Within four standard errors, of .01 at most."""
    import coefficients as example

    result = example.estimate(reduced, "cross", steps=8000)
    exact = example.of_monomial(1, 0.0, example.tempered(example.N), 1.0)
    assert abs(result["value"] - exact) < 4 * result["error"] < 0.04


@pytest.mark.slow
def test_minibatches_heat_a_regular_model_as_its_closed_form_says(reduced):
    """Var w = (1 + h t^2/(2 B))/(k (1 - h k/2)), k = t + gamma; five standard errors, and 1 % for X'X of a batch."""
    import coefficients as example

    result = example.estimate(reduced, "regular", "sgld", step=0.1, batch=50, steps=20_000)
    t = example.tempered(example.N)
    h, k = 0.01 / t, t + 1
    law = 2 * t * (1 + h * t**2 / 100) / (k * (1 - h * k / 2))
    assert law > 2.2 and abs(result["value"] - law) < 5 * result["error"] + 0.01 * law < 0.1
