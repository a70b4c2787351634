"""What a constraint leaves of a prior: its mass, its exact draws, and the law of the variables before it."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch.distributions import Cauchy, HalfNormal, Independent, Laplace, Normal, biject_to, constraints
from torch.func import vmap

from samplers import HMC, model, sample
from samplers.coordinates import ordered
from samplers.target.truncation import truncated
from samplers.target.variables import Variable

F64 = torch.float64


def of(*values):
    return torch.tensor(values, dtype=F64)


ZERO, ONE = of(0.0)[0], of(1.0)[0]
OF_SCIPY = {Normal: scipy.stats.norm, Cauchy: scipy.stats.cauchy, Laplace: scipy.stats.laplace}


@pytest.mark.parametrize("law", OF_SCIPY)
@pytest.mark.parametrize("m", [-30.0, -1.0, 0.7, 30.0])
def test_the_mass_of_a_prior_within_a_constraint_is_that_of_scipy_in_both_tails(law, m):
    prior, own = law(of(m), of(1.5)), OF_SCIPY[law](m, 1.5)
    assert float(truncated(prior, constraints.greater_than(2.0)).log_mass()) == pytest.approx(own.logsf(2), rel=1e-12)
    assert float(truncated(prior, constraints.less_than(-1.0)).log_mass()) == pytest.approx(own.logcdf(-1), rel=1e-12)
    between = own.cdf(5) - own.cdf(2) if m > 2 else own.sf(2) - own.sf(5)
    assert float(truncated(prior, constraints.interval(2.0, 5.0)).log_mass()) == pytest.approx(
        math.log(between), rel=1e-12
    )


@pytest.mark.parametrize("law", OF_SCIPY)
@pytest.mark.parametrize("m", [-9.0, 0.4, 9.0])
def test_draws_within_a_constraint_have_the_tail_of_scipy(law, m, monkeypatch):
    u = np.linspace(0.001, 0.999, 101)
    monkeypatch.setattr(torch, "rand", lambda *shape, **how: torch.from_numpy(u))
    prior, own = law(of(m).expand(101), of(1.5)), OF_SCIPY[law](m, 1.5)
    above, below, between = (
        truncated(prior, constraint).draw().numpy()
        for constraint in (constraints.greater_than(2.0), constraints.less_than(-1.0), constraints.interval(2.0, 5.0))
    )
    np.testing.assert_allclose(own.logsf(above), own.logsf(2) + np.log1p(-u), rtol=1e-9)
    np.testing.assert_allclose(own.logcdf(below), own.logcdf(-1) + np.log1p(-u), rtol=1e-9)
    tail = own.cdf if m > 2 else own.sf  # the one that is small there
    share = (tail(between) - tail(2)) / (tail(5) - tail(2))
    np.testing.assert_allclose(np.sort(share), u, rtol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, F64], ids=str)
@pytest.mark.parametrize("law", OF_SCIPY)
def test_a_draw_within_a_constraint_that_is_seldom_met_is_inside(law, dtype):
    prior = law(torch.tensor([-1e3, -30.0, 5.0], dtype=dtype), torch.tensor(0.1, dtype=dtype))
    for constraint in (constraints.positive, constraints.interval(torch.zeros(3), torch.tensor([1.0, 2.0, 3.0]))):
        values = torch.stack([truncated(prior, constraint).draw() for _ in range(50)])
        assert values.dtype == dtype and constraint.check(values).all()
        assert biject_to(constraint).inv(values).isfinite().all()


@pytest.mark.parametrize("law", OF_SCIPY)
def test_a_short_interval_has_the_mass_of_its_density_by_its_length(law):
    """The rest is a share of the length by the scale, 1e-5 at most here."""
    for dtype, rounding in ((torch.float32, 3e-6), (F64, 3e-7)):
        low, high = torch.tensor([-0.5, 0.5, 2.0], dtype=dtype), torch.tensor([0.5, 1.0, 3.0], dtype=dtype)
        scale = torch.tensor([[1e5], [1e7], [1e9]], dtype=dtype)
        prior = law(torch.zeros_like(low), scale.requires_grad_())
        mass = truncated(prior, constraints.interval(low, high)).log_mass()
        torch.testing.assert_close(mass, prior.log_prob((low + high) / 2) + (high - low).log(), rtol=rounding, atol=0)
        (slope,) = torch.autograd.grad(mass.sum(), scale)
        torch.testing.assert_close(slope * scale, torch.full_like(scale, -3), rtol=2e-3, atol=0)


@pytest.mark.parametrize("law", OF_SCIPY)
def test_the_ends_of_an_interval_are_numbers_of_the_dtype_of_its_prior(law):
    of_thirds = truncated(law(of(40.0), of(1.0)), constraints.greater_than(40 + 1 / 3))
    assert float(of_thirds.low) == 40 + 1 / 3
    assert float(of_thirds.log_mass()) == pytest.approx(OF_SCIPY[law](40.0, 1.0).logsf(40 + 1 / 3), rel=1e-12)


@pytest.mark.parametrize("law", OF_SCIPY)
def test_a_draw_that_rounds_to_an_end_is_the_next_number_inside(law):
    prior = law(torch.zeros(200, requires_grad=True), 1.0)
    for low, high in ((1e4, 2e4), (0.5, 0.5 + 2**-23), (-2e4, -1e4)):
        for constraint in (constraints.interval(low, high), constraints.greater_than(low), constraints.less_than(high)):
            values = truncated(prior, constraint).draw()
            assert not values.requires_grad
            assert (values > getattr(constraint, "lower_bound", -math.inf)).all()
            assert (values < getattr(constraint, "upper_bound", math.inf)).all()


@pytest.mark.parametrize("law", OF_SCIPY)
def test_far_ends_leave_the_draws_of_a_law(law):
    torch.manual_seed(0)
    values = truncated(law(torch.zeros(200, dtype=F64), ONE), constraints.interval(-1e17, 1e17)).draw()
    assert 0.3 < values.abs().median() < 2 and len(values.unique()) == 200


def test_the_mass_far_in_the_tail_of_a_narrow_cauchy_law_has_its_slope():
    m, s = torch.tensor(-1e6).requires_grad_(), torch.tensor(1e-5).requires_grad_()
    mass = truncated(Cauchy(m, s), constraints.unit_interval).log_mass()
    slopes = torch.autograd.grad(mass, (m, s))
    torch.testing.assert_close(torch.stack(slopes), torch.tensor([2e-6, 1e5]), rtol=1e-4, atol=0)  # of s/(pi m^2)


def test_a_model_within_constraints_is_played_from_a_tape():
    priors = {"s": HalfNormal(ONE), "x": Normal(ZERO, ONE), "y": lambda v: Normal(v["x"], v["s"])}
    cuts = {"x": constraints.positive, "y": constraints.interval(-1.0, of(2.0)[0])}
    energy = model(priors, lambda v: Normal(v["y"], ONE).log_prob(of(0.5)), constraints=cuts)
    draws = sample(HMC, energy, steps=60, step_size=0.1, progress=False)
    assert draws.info["backend_reason"].endswith("U is played from a tape")


def test_an_interval_without_an_upper_end_is_that_above_its_lower_end():
    cuts = [constraints.positive, constraints.interval(0.0, math.inf)]
    one, other = (model({"x": Normal(ZERO, ONE)}, lambda v: v["x"], constraints={"x": cut}) for cut in cuts)
    half = float(Normal(ZERO, ONE).log_prob(ONE)) + math.log(2)
    assert [float(each.log_prior({"x": ONE})) for each in (one, other)] == pytest.approx([half, half], rel=1e-14)


def test_a_variable_with_a_constraint_is_none_that_may_be_non_centred():
    priors = {"m": Normal(ZERO, ONE), "x": lambda v: Normal(v["m"], ONE), "y": lambda v: Normal(v["m"], ONE)}
    assert model(priors, lambda v: v["x"], constraints={"x": constraints.positive}).centred == {"y": 1.0}


@pytest.mark.parametrize("law", OF_SCIPY)
def test_the_slope_of_the_mass_is_finite_far_out(law):
    m = of(-200.0, 0.0, 200.0).requires_grad_()  # 0 is an end
    for constraint in (constraints.positive, constraints.less_than(0.0), constraints.interval(-1.0, 2.0)):
        (slope,) = torch.autograd.grad(truncated(law(m, ONE), constraint).log_mass().sum(), m)
        assert slope.isfinite().all()
        assert slope[1] != 0


@pytest.mark.parametrize("law", OF_SCIPY)
@pytest.mark.parametrize("constraint", [constraints.positive, constraints.interval(-1.0, 0.5)], ids=str)
def test_a_constraint_leaves_the_variables_before_with_their_prior(law, constraint):
    """The integral of p(m) p(x | m) over the x within the constraint is p(m)."""
    priors = {"m": Normal(ZERO, ONE), "x": lambda v: law(v["m"], ONE)}
    energy = model(priors, lambda v: 0 * v["m"], constraints={"x": constraint})
    z, weight = (torch.from_numpy(each) for each in np.polynomial.legendre.leggauss(400))
    z, weight, map = 9 * z, 9 * weight, biject_to(constraint)

    def density(m, z):
        x = map(z)
        return (energy.log_prior({"m": m, "x": x}) + map.log_abs_det_jacobian(z, x)).exp()

    m = of(-2.0, 0.0, 1.5)
    integral = vmap(lambda m: vmap(lambda z: density(m, z))(z) @ weight)(m)
    torch.testing.assert_close(integral.log(), Normal(ZERO, ONE).log_prob(m), atol=1e-3, rtol=0)


class Scripted(Normal):
    """A law whose draws are these, one after the other."""

    def __init__(self, *values):
        super().__init__(torch.zeros(len(values[0])), 1.0)
        self.values = iter(values)

    def sample(self, shape=()):
        return torch.tensor(next(self.values))


@pytest.mark.parametrize(
    "law, constraint, drawn",
    [
        (lambda *values: Scripted(*values), constraints.positive, [3.0, 2.0]),  # neither folded nor drawn as a whole
        (lambda *values: Independent(Scripted(*values), 1), constraints.positive, [7.0, 8.0]),
        (lambda *values: Scripted(*values), ordered, [-1.0, 2.0]),
        (lambda *values: Scripted(*values), constraints.less_than(0.0), [-1.0, -5.0]),
    ],
)
def test_a_prior_within_a_constraint_is_drawn_until_each_independent_part_is_inside(law, constraint, drawn):
    values = [-1.0, 2.0], [3.0, -5.0], [-4.0, -6.0], [7.0, 8.0]
    assert Variable("x", law(*values), constraint).draw({}, exact=True).tolist() == drawn
