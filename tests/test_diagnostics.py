import math
import sys
import time

import numpy as np
import pytest
import torch
from covering import slow
from error_budget import Z
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch.func import grad, jacrev
from torch.utils._python_dispatch import TorchDispatchMode

from recipe.errors import RecipeError
from samplers.diagnostics import (
    Temperature,
    autocorrelation_time,
    configurational_temperature,
    effective_sample_size,
    kernel_stein_discrepancy,
    kinetic_temperature,
    r_hat,
)
from samplers.results.draws import Draws
from samplers.results.statistics import density, pareto_index, sample_size_of_moves, sample_size_of_ranks

plot = Draws.plot


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def autoregression(phi, chains, draws, *shape, seed=0):
    """x_t = phi x_{t-1} + sqrt(1 - phi^2) z_t, of which the law is N(0, 1) and tau = (1 + phi)/(1 - phi)."""
    from scipy.signal import lfilter  # slow to import, at every collection

    z = math.sqrt(1 - phi**2) * normal(chains, draws + 200, *shape, seed=seed).numpy()
    return torch.tensor(lfilter([1], [1, -phi], z, axis=1)[:, 200:].copy())


def of(values, **info):
    return Draws({"theta": values}, info=info)


# Sample size and mixing


@pytest.mark.parametrize(
    "phi, number, sd", [(-0.4, 20_000, 0.021), (0, 20_000, 0.012), (0.5, 20_000, 0.021), (0.9, 100_000, 0.023)]
)
def test_the_sample_size_and_the_time_of_an_autoregression_are_the_known_ones(phi, number, sd):
    """Within Z of the relative sd of either, as measured over some 100 runs."""
    draws, tau = of(autoregression(phi, 4, number, 2)), (1 + phi) / (1 - phi)
    np.testing.assert_allclose(effective_sample_size(draws, "theta"), [4 * number / tau] * 2, rtol=Z * sd)
    np.testing.assert_allclose(autocorrelation_time(draws, "theta"), [tau] * 2, rtol=Z * sd)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9, 0.98])
def test_moves_tell_the_sample_size_of_chains_that_are_shorter_than_their_memory(phi):
    """64 chains of 16 draws, with tau up to 99: by their autocorrelation alone these would be 128 draws and more."""
    draws = autoregression(phi, 64, 16, 200)
    number = 64 * 16 * (1 - phi) / (1 + phi)
    assert abs(sample_size_of_moves(draws).median() / number - 1) < 0.25  # a few sd of the median, and a bias of .1
    assert sample_size_of_ranks(draws).median() > 128


def test_chains_that_stand_still_are_no_draws_by_their_moves():
    assert sample_size_of_moves(normal(64, 1, 3).expand(64, 16, 3)).tolist() == [0, 0, 0]


def test_the_sample_size_is_that_of_ranks_and_the_time_that_of_the_values():
    phi, y = 0.9, autoregression(0.9, 4, 100_000)
    rho = np.expm1(phi ** np.arange(500)) / math.expm1(1)  # of exp(y), where y has phi^k
    draws = of(y.exp())
    np.testing.assert_allclose(autocorrelation_time(draws, "theta"), 2 * rho.sum() - 1, rtol=0.023 * Z)
    np.testing.assert_allclose(effective_sample_size(draws, "theta"), effective_sample_size(of(y), "theta"))


def test_they_are_those_of_the_summary_for_every_component_and_the_summary_is_that_of_arviz():
    draws = of(autoregression(0.5, 4, 300, 3, 2) + 5)
    summary = draws.summary()
    for name, result in (("ess_bulk", effective_sample_size(draws, "theta")), ("r_hat", r_hat(draws, "theta"))):
        assert result.shape == (3, 2) and result.dtype == torch.float64
        np.testing.assert_array_equal(result.flatten(), summary[name])
    import arviz  # ArviZ before 1.0 needs matplotlib

    theirs = arviz.summary(draws.to_arviz(), kind="all", round_to="none")
    assert list(theirs.index) == list(summary.index)
    if not arviz.__version__.startswith("0."):  # from 1.0 on its tails and intervals are others
        theirs = theirs[["mean", "sd", "mcse_mean", "mcse_sd", "ess_bulk", "r_hat"]]
    np.testing.assert_allclose(summary["r_hat"], theirs["r_hat"], rtol=1e-4)  # rounding decides on ties at the median
    others = theirs.columns.drop("r_hat")
    np.testing.assert_allclose(summary[others], theirs[others], rtol=1e-9)


@pytest.mark.parametrize("k", [0.1, 0.7])
def test_the_pareto_index_is_that_of_the_law_of_the_weights(k):
    """A quantile of the law for each weight; the largest 3 sqrt(n), with a prior of ten at 1/2."""
    u = (np.arange(40_000) + 0.5) / 40_000
    assert pareto_index(np.log(stats.genpareto.ppf(u, k))) == pytest.approx((600 * k + 5) / 610, abs=0.02)
    assert pareto_index(np.zeros(30)) == math.inf


def test_a_density_has_mass_1_and_the_bias_of_its_width():
    """Of quantiles of N(0, 1): N(0, 1 + width^2) with the width 0.9 n^(-1/5)."""
    x = stats.norm.ppf((np.arange(10_000) + 0.5) / 10_000)
    at, p = density(x)
    assert p.sum() * (at[1] - at[0]) == pytest.approx(1, abs=1e-3)
    np.testing.assert_allclose(p, stats.norm.pdf(at, scale=math.hypot(1, 0.9 * 10_000**-0.2)), atol=1e-3)


@pytest.mark.parametrize("change", [lambda x: x, lambda x: x.float(), lambda x: 1e-20 * x, lambda x: -3 * x + 1e4])
def test_they_do_not_see_units_and_origin(change):
    x = autoregression(0.7, 4, 500)
    for statistic in (effective_sample_size, autocorrelation_time, r_hat):
        np.testing.assert_allclose(statistic(of(change(x)), "theta"), statistic(of(x), "theta"), rtol=1e-4)


@pytest.mark.filterwarnings("error")
def test_r_hat_is_near_1_for_chains_of_one_law_and_above_for_chains_elsewhere_wider_or_stuck():
    x = normal(4, 1000)
    ones = torch.ones(4, 1, dtype=torch.float64)
    first = torch.eye(4, 1, dtype=torch.float64)
    assert abs(r_hat(of(x), "theta") - 1) < 0.01
    assert r_hat(of(x + 2 * first), "theta") > 1.1
    assert r_hat(of(x * (ones + 4 * first)), "theta") > 1.1
    assert r_hat(of(x + torch.linspace(0, 3, 1000)), "theta") > 1.1
    assert r_hat(of(x[:, :1].repeat(1, 1000)), "theta") > 1.1


@pytest.mark.parametrize(
    "values",
    [
        torch.ones(4, 100),
        normal(4, 3),
        torch.full((4, 100), math.nan),
        normal(4, 0),
        normal(4, 10).index_fill(1, torch.tensor(3), math.inf),
    ],
)
def test_where_there_is_no_statistic_it_is_nan_in_silence(values, capfd):
    for statistic in (effective_sample_size, autocorrelation_time, r_hat):
        assert statistic(of(values), "theta").isnan()
    assert capfd.readouterr().err == ""


def test_one_component_without_a_statistic_leaves_the_others_theirs():
    x = normal(4, 100, 3)
    result = effective_sample_size(of(torch.stack([x[:, :, 0], 0 * x[:, :, 1], x[:, :, 2]], 2)), "theta")
    assert result.isnan().tolist() == [False, True, False]
    assert result[2] == effective_sample_size(of(x), "theta")[2]


def test_one_chain_has_a_sample_size_but_no_r_hat(capfd):
    draws = of(normal(1, 20_000))
    assert 16_000 < effective_sample_size(draws, "theta") < 24_000  # eight standard errors each way
    assert r_hat(draws, "theta").isnan()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("statistic", [effective_sample_size, autocorrelation_time, r_hat])
def test_chains_that_diverged_are_left_out_with_a_warning(statistic):
    x = normal(4, 60)
    frozen = x.clone()
    frozen[1] = math.nan
    with pytest.warns(RuntimeWarning, match=f"{statistic.__name__} leaves out 1 of 4 chains") as warned:
        result = statistic(of(frozen, diverged={1: 7}), "theta")
    assert warned[0].filename == __file__
    assert result == statistic(of(x[[0, 2, 3]]), "theta")
    with pytest.raises(RecipeError, match="every chain has diverged"):
        statistic(of(x[:1], diverged={0: 1}), "theta")
    with pytest.raises(RecipeError, match="Did you mean 'theta'?"):
        statistic(of(x), "teta")


# The kernel Stein discrepancy


def direct(points, scores, c, beta):
    """The matrix of k_0, by autograd of k."""

    def kernel(x, y):
        return (c**2 + (x - y).square().sum()) ** beta

    def k0(x, y, s, t):
        return (
            s @ t * kernel(x, y)
            + s @ grad(kernel, 1)(x, y)
            + t @ grad(kernel, 0)(x, y)
            + jacrev(grad(kernel, 1), 0)(x, y).trace()
        )

    def over(f):
        return torch.vmap(torch.vmap(f, (None, 0, None, 0)), (0, None, 0, None))

    return over(k0)(points, points, scores, scores)


@given(
    n=st.integers(2, 9),
    dim=st.integers(1, 4),
    c=st.floats(0.2, 5),
    beta=st.floats(-0.95, -0.05),
    block=st.integers(1, 10),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_both_statistics_are_the_means_of_k_0_by_autograd(n, dim, c, beta, block, seed):
    points, scores = normal(2, n, dim, seed=seed)
    k0 = direct(points, scores, c, beta)
    others = k0[~torch.eye(n, dtype=torch.bool)]
    result = kernel_stein_discrepancy(points, scores, c=c, beta=beta, block=block)
    size = float(k0.abs().mean())
    assert abs(result.u - float(others.mean())) < 1e-12 * size
    assert abs(result.v - float(k0.mean())) < 1e-12 * size
    assert abs(result.error - math.sqrt(2 * float(others.square().sum())) / (n * (n - 1))) < 1e-12 * size
    assert result.v > 0 and result.ksd == math.sqrt(result.v)


def test_it_does_not_see_origin_axes_order_precision_or_blocks():
    x, s = normal(2, 100, 3)
    s = s - x
    turned = torch.linalg.qr(normal(3, 3)).Q
    once = kernel_stein_discrepancy(x, s)
    for other in [
        kernel_stein_discrepancy(x + 1e6, s),
        kernel_stein_discrepancy(x @ turned, s @ turned),
        kernel_stein_discrepancy(x.flip(0), s.flip(0)),
        kernel_stein_discrepancy(x.float(), s.float()),
        kernel_stein_discrepancy(x, s, block=7),
    ]:
        np.testing.assert_allclose([other.u, other.v, other.error], [once.u, once.v, once.error], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(
    "what, change",
    [
        ("shift", lambda x: x + 0.3),
        ("narrow", lambda x: 0.7 * x),
        ("a mode lost", lambda x: x.abs()),
        ("wide", lambda x: 1.3 * x),
    ],
)
def test_under_another_law_u_is_many_standard_errors(what, change):
    x = change(normal(1000, 2))
    result = kernel_stein_discrepancy(x, -x)
    assert result.u > 6 * result.error
    assert abs(result.v - result.u) < 0.01


def test_scores_are_those_of_the_temperature():
    x = math.sqrt(2) * normal(1000, 2)
    right, wrong = (kernel_stein_discrepancy(x, -x / T) for T in (2, 1))
    assert abs(right.u) < 4 * right.error and wrong.u > 6 * wrong.error


def test_no_tensor_is_larger_than_a_block_of_pairs_or_the_points():
    class Sizes(TorchDispatchMode):
        largest = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            out = function(*args, **(kwargs or {}))
            if torch.is_tensor(out):
                self.largest = max(self.largest, out.numel())
            return out

    x = normal(1000, 2)
    with Sizes() as sizes:
        kernel_stein_discrepancy(x, -x, block=50)
    assert sizes.largest == max(50**2, 1000 * 2)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((normal(4, 10, 2), normal(4, 10, 2)), r"both \(n, dim\), got \(4, 10, 2\) and .*Flatten chains and draws"),
        ((normal(10, 2), normal(10, 3)), r"got \(10, 2\) and \(10, 3\)"),
        ((normal(10), normal(10)), r"got \(10,\) and \(10,\)"),
        ((normal(10, 2), np.ones((10, 2))), r"got \(10, 2\) and ndarray"),
        ((normal(1, 2), normal(1, 2)), "1 points of 2 coordinates. Give at least two"),
        ((normal(5, 0), normal(5, 0)), "5 points of 0 coordinates"),
        ((normal(3, 2), normal(3, 2).index_fill(0, torch.tensor(1), math.nan)), "point 1 or its score is not finite"),
        ((normal(3, 2), normal(3, 2), {"c": 0.0}), "c is a number > 0, got 0.0"),
        ((normal(3, 2), normal(3, 2), {"beta": -1.0}), "beta is a number > -1 and < 0, got -1.0"),
        ((normal(3, 2), normal(3, 2), {"beta": 0.0}), "and < 0, got 0.0"),
        ((normal(3, 2), normal(3, 2), {"block": 0}), "block is an integer >= 1, got 0"),
    ],
)
def test_points_without_a_discrepancy_are_refused(arguments, message):
    *arguments, more = arguments if isinstance(arguments[-1], dict) else (*arguments, {})
    with pytest.raises(RecipeError, match=f"kernel_stein_discrepancy: .*{message}"):
        kernel_stein_discrepancy(*arguments, **more)


# Temperatures


@pytest.mark.parametrize("d, T, level", [(1, 1.0, 0.99), (7, 0.5, 0.9), (10**6, 2.0, 0.99)])
def test_the_band_has_its_probability_under_chi_square(d, T, level):
    result = kinetic_temperature(torch.ones(d), temperature=T, level=level)
    np.testing.assert_allclose(stats.chi2.cdf(result.low * d / T, d), (1 - level) / 2, rtol=1e-6)
    np.testing.assert_allclose(stats.chi2.sf(result.high * d / T, d), (1 - level) / 2, rtol=1e-6)
    assert result.expected == T


def test_the_band_is_left_by_another_mass_temperature_or_law():
    p = math.sqrt(2.0) * normal(4, 1000)
    assert kinetic_temperature(p, 2.0).ok and kinetic_temperature(p, torch.full((1000,), 2.0)).ok
    assert kinetic_temperature(p, temperature=2.0).ok and kinetic_temperature(0 * p, temperature=0.0).ok
    for wrong in [
        kinetic_temperature(p),
        kinetic_temperature(p, 1.8),
        kinetic_temperature(p, 2.2),
        kinetic_temperature(p, 2.0, temperature=0.9),
        kinetic_temperature(p, 2.0, temperature=0.0),
    ]:
        assert not wrong.ok


def test_each_tensor_has_its_own_temperature():
    p = {"weight": normal(30, 20), "bias": 2 * normal(300)}
    assert {name: t.ok for name, t in kinetic_temperature(p).items()} == {"weight": True, "bias": False}
    assert all(t.ok for t in kinetic_temperature(p, {"weight": 1.0, "bias": 4.0}).values())
    theta = {"weight": normal(4, 300, 3), "bias": 2 * normal(4, 300, seed=1)}
    result = configurational_temperature(theta, theta)
    assert {name: t.ok for name, t in result.items()} == {"weight": True, "bias": False}
    assert result["bias"] == configurational_temperature(theta["bias"], theta["bias"])


def quartic(T, *shape, seed=0):
    """Exact draws of exp(-theta^4/4T), and their gradients."""
    random = np.random.default_rng(seed)
    theta = torch.tensor((4 * T * random.gamma(0.25, size=shape)) ** 0.25 * random.choice([-1, 1], shape))
    return theta, theta**3


def test_exact_positions_of_any_law_fall_into_the_band_at_the_stated_rate():
    hits = sum(
        configurational_temperature(*quartic(1.25, 4, 100, 2, seed=seed), temperature=1.25).ok for seed in range(300)
    )
    assert hits > 288


def test_the_band_of_correlated_positions_is_wider_and_holds():
    result = []
    for seed in range(200):
        theta = autoregression(0.9, 4, 500, 2, seed=seed)
        result.append(configurational_temperature(theta, theta))
    assert sum(t.ok for t in result) > 186
    free = configurational_temperature(normal(4, 500, 2), normal(4, 500, 2))
    assert np.mean([t.high - t.low for t in result]) > 2 * (free.high - free.low)


@pytest.mark.parametrize("T", [0.8, 1.25])
def test_positions_at_another_temperature_leave_the_band(T):
    result = configurational_temperature(*quartic(T, 4, 2000, 3))
    assert not result.ok and abs(result.value - T) < 0.05 and result.expected == 1


def test_a_gradient_with_independent_noise_serves():
    theta = normal(4, 1000, 2)
    noisy = configurational_temperature(theta, theta + 3 * normal(4, 1000, 2, seed=1))
    exact = configurational_temperature(theta, theta)
    assert noisy.ok and noisy.high - noisy.low > 1.5 * (exact.high - exact.low)


def test_positions_that_never_move_have_no_band():
    assert configurational_temperature(torch.ones(2, 9), torch.ones(2, 9)) == Temperature(1.0, 1.0, 1.0, 1.0)
    assert not configurational_temperature(torch.zeros(2, 9), torch.zeros(2, 9)).ok


@pytest.mark.parametrize(
    "call, message",
    [
        (
            lambda: kinetic_temperature(normal(3), temperature=-1.0),
            "kinetic_temperature: temperature is a number >= 0, got -1.0",
        ),
        (lambda: kinetic_temperature(normal(3), temperature=math.nan), "temperature is a number >= 0, got nan"),
        (lambda: kinetic_temperature(normal(3), level=1.0), "level is a number > 0 and < 1, got 1.0"),
        (lambda: kinetic_temperature(normal(3), level=None), "got None"),
        (lambda: kinetic_temperature(normal(3), 0.0), "a mass is not > 0"),
        (
            lambda: kinetic_temperature(normal(3), normal(2).square()),
            r"the masses have the shape \(2,\), the sites \(3,\)",
        ),
        (
            lambda: kinetic_temperature(normal(3), torch.ones(2, 3)),
            r"the masses have the shape \(2, 3\), the sites \(3,\)",
        ),
        (lambda: kinetic_temperature(normal(3) / 0), "a number is not finite. Leave out chains that diverged"),
        (lambda: kinetic_temperature(normal(0)), "there are not numbers"),
        (lambda: kinetic_temperature("p"), "these are not numbers"),
        (
            lambda: kinetic_temperature({"p": normal(3)}, {"q": 1.0}),
            "'p' is given once. Did you mean|'p' is given once. Known",
        ),
        (lambda: configurational_temperature(normal(2, 9), normal(2, 8)), r"shape \(2, 9\), its gradient \(2, 8\)"),
        (lambda: configurational_temperature(normal(9), normal(9)), r"Give both as \(chains, draws, \*shape\)"),
        (lambda: configurational_temperature(normal(9, 3), normal(9, 3)), "with at least 4 draws"),
        (
            lambda: configurational_temperature({"w": normal(2, 9)}, normal(2, 9)),
            "the other a Tensor. Give both by name",
        ),
        (
            lambda: configurational_temperature({"w": normal(2, 9)}, {"w": normal(2, 9), "v": normal(2, 9)}),
            "'v' is given once",
        ),
    ],
)
def test_what_has_no_temperature_is_refused(call, message):
    with pytest.raises(RecipeError, match=message):
        call()


# Plots


def columns(figure):
    """The axes of traces, densities and autocorrelations, row by row."""
    return np.array(figure.axes).reshape(-1, 3).T


def test_there_is_a_row_per_component_with_a_line_per_chain():
    x = normal(3, 200, 2, 3)
    figure = plot(Draws({"theta": x, "bias": x[:, :, 0, 0]}, info={"recipe": "sghmc", "scheme": "B A O A B"}))
    traces, densities, correlations = columns(figure)
    labels = ["theta[0, 0]", "theta[0, 1]", "theta[0, 2]", "theta[1, 0]", "bias"]
    assert [axes.get_ylabel() for axes in traces] == labels
    assert [axes.get_title().split(":")[0] for axes in traces] == labels
    assert all(len(axes.lines) == 3 for axes in figure.axes)
    assert [line.get_label() for line in traces[0].lines] == ["chain 0", "chain 1", "chain 2"]
    assert figure.get_suptitle() == "sghmc, B A O A B: 3 chains x 200 draws"
    assert (densities[0].get_title(), correlations[0].get_title()) == ("density", "autocorrelation")
    for row, values in zip(traces, x.flatten(2)[:, :, :4].permute(2, 0, 1)):
        for line, chain in zip(row.lines, values):
            assert np.array_equal(line.get_ydata(), chain) and np.array_equal(line.get_xdata(), np.arange(200))


def test_titles_tell_sample_size_and_r_hat():
    draws = of(autoregression(0.5, 4, 500, 2))
    ess, r = effective_sample_size(draws, "theta"), r_hat(draws, "theta")
    assert [axes.get_title() for axes in columns(plot(draws))[0]] == [
        f"theta[{k}]: ESS {ess[k]:.0f}, R-hat {r[k]:.3f}" for k in range(2)
    ]


def test_names_and_components_are_chosen():
    draws = Draws({"theta": normal(2, 50, 9), "xi": normal(2, 50)}, info={})

    def rows(*given):
        return [axes.get_ylabel() for axes in columns(plot(draws, *given))[0]]

    assert rows("xi") == ["xi"] and rows(["xi", "theta"], 1) == ["xi", "theta[0]"]
    assert rows() == ["theta[0]", "theta[1]", "theta[2]", "theta[3]", "xi"]
    assert len(rows("theta", 7)) == 7
    with pytest.raises(RecipeError, match="Did you mean 'theta'?"):
        plot(draws, "teta")


def test_long_traces_are_thinned_and_still_reach_the_end():
    x = normal(2, 10_001)
    (trace,), *_ = columns(plot(of(x)))
    for line, chain in zip(trace.lines, x):
        at = line.get_xdata()
        assert 1000 < len(at) <= 2000 and at[0] == 0 and at[-1] > 9990
        assert np.array_equal(line.get_ydata(), chain[at])


def test_densities_are_normalised_and_those_of_the_chains():
    x = torch.stack([normal(5000), 3 + 2 * normal(5000, seed=1)])
    _, (density,), _ = columns(plot(of(x)))
    for line, law in zip(density.lines, (stats.norm(0, 1), stats.norm(3, 2))):
        assert abs(np.trapezoid(line.get_ydata(), line.get_xdata()) - 1) < 0.02
        np.testing.assert_allclose(line.get_ydata(), law.pdf(line.get_xdata()), atol=0.05)


def test_autocorrelations_are_the_known_ones_beside_the_band_of_white_noise():
    phi, draws = 0.9, 40_000
    _, _, (axes,) = columns(plot(of(autoregression(phi, 2, draws))))
    for line in axes.lines:
        lags = line.get_xdata()
        assert len(lags) > 6 * (1 + phi) / (1 - phi) * 0.9
        np.testing.assert_allclose(line.get_ydata(), phi**lags, atol=0.07)
    assert axes.lines[0].get_ydata()[0] == 1
    band = axes.patches[0].get_extents().transformed(axes.transData.inverted())
    np.testing.assert_allclose([band.y0, band.y1], [-1.96 / math.sqrt(draws), 1.96 / math.sqrt(draws)])


def test_diverged_chains_are_dashed_labelled_and_do_not_set_the_limits():
    x = normal(4, 100)
    x[1, 50:] = 1e30
    x[3, 20:] = math.nan
    figure = plot(of(x, diverged={1: 50, 3: 20}))
    (trace,), (density,), (correlation,) = columns(figure)
    assert [(line.get_label(), line.get_linestyle()) for line in trace.lines] == [
        ("chain 0", "-"),
        ("chain 2", "-"),
        ("chain 1, diverged at step 50", "--"),
        ("chain 3, diverged at step 20", "--"),
    ]
    assert [text.get_text() for text in trace.get_legend().get_texts()] == [
        "chain 1, diverged at step 50",
        "chain 3, diverged at step 20",
    ]
    assert np.array_equal(trace.lines[2].get_ydata(), x[1])
    assert max(map(abs, trace.get_ylim())) < 6
    assert len(density.lines) == len(correlation.lines) == 2
    assert trace.get_title() == columns(plot(of(x[[0, 2]])))[0][0].get_title()
    assert figure.get_suptitle() == "draws: 4 chains x 100 draws, 2 diverged"


def test_a_run_that_is_lost_is_still_drawn():
    (trace,), (density,), _ = columns(plot(of(normal(2, 50), diverged={0: 3, 1: 4})))
    assert [line.get_linestyle() for line in trace.lines] == ["--", "--"]
    assert trace.get_title() == "theta" and not density.lines


def test_of_many_coordinates_some_are_drawn_and_a_caption_says_so():
    draws = Draws({"w": torch.randn(4, 50, 2, 4), "b": torch.randn(4, 50, 3)}, info={})
    assert draws.plot().get_supxlabel() == "7 of 11 coordinates"
    some = Draws({"w": draws["w"].flatten(2)[..., :5]}, info={})
    assert some.plot(max_components=5).get_supxlabel() == ""


def test_of_many_chains_some_are_drawn_and_the_title_says_so():
    x = normal(50, 20)
    figure = plot(of(x, diverged={chain: 5 for chain in range(10)}))
    (trace,), (density,), _ = columns(figure)
    assert len(trace.lines) == 40 and len(density.lines) == 32
    assert figure.get_suptitle() == "draws: 50 chains x 20 draws, 10 diverged; 40 chains are drawn"
    assert plot(of(normal(50, 20))).get_suptitle() == "draws: 50 chains x 20 draws; 32 chains are drawn"
    assert f"ESS {effective_sample_size(of(x[10:]), 'theta'):.0f}" in trace.get_title()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "values",
    [
        normal(1, 1),
        *map(slow, [normal(1, 2), normal(3, 1), normal(2, 3), normal(1, 100)]),
        slow(normal(4, 30).bfloat16()),
        torch.ones(2, 20),
        normal(2, 40) > 0,
        slow(torch.arange(80).reshape(2, 40)),
        torch.full((2, 20), math.nan),
        slow(normal(2, 20, 1, 1)),
        normal(2, 20).index_fill(1, torch.tensor(3), math.inf),
        slow(torch.tensor([[1.0, 1 + 2**-52] * 9], dtype=torch.float64)),
    ],
)
def test_short_constant_and_odd_runs_are_drawn(values, tmp_path, capfd):
    figure = plot(of(values))
    figure.savefig(tmp_path / "run.png")
    assert len(figure.axes) == 3 and all(len(axes.lines) == len(values) for axes in columns(figure)[0])
    assert capfd.readouterr().err == ""


def test_a_single_draw_is_a_visible_point_and_a_constant_a_line_at_its_place():
    assert columns(plot(of(normal(1, 1))))[0][0].lines[0].get_marker() == "."
    density = columns(plot(of(torch.full((1, 20), 7.0))))[1][0]
    assert density.lines[0].get_xdata().tolist() == [7, 7] and density.get_xlim()[0] < 7 < density.get_xlim()[1]


def test_the_picture_shows_the_draws_and_leaves_no_window(tmp_path):
    from matplotlib import pyplot
    from matplotlib.image import imread

    pixels = []
    for seed in (0, 0, 1):
        plot(of(normal(4, 300, 2, seed=seed))).savefig(tmp_path / "run.png")
        pixels.append(imread(tmp_path / "run.png")[:, :, :3])
    assert pixels[0].shape == (500, 1200, 3) and 0.02 < (pixels[0].min(2) < 0.9).mean() < 0.6
    assert np.array_equal(pixels[0], pixels[1]) and not np.array_equal(pixels[0], pixels[2])
    assert pyplot.get_fignums() == []


@pytest.mark.slow
def test_a_picture_of_a_usual_run_is_quick(tmp_path):
    plot(of(normal(1, 5)))  # imports
    x = autoregression(0.95, 4, 10_000, 4)
    start = time.process_time()
    plot(of(x)).savefig(tmp_path / "run.png")
    assert time.process_time() - start < 2


def test_without_matplotlib_the_advice_is_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(RecipeError, match=r"draws, plot: matplotlib cannot be imported \(.*\). Install it"):
        plot(of(normal(2, 9)))


@pytest.mark.needs("matplotlib")
@pytest.mark.parametrize(
    "values, more, message",
    [
        (normal(2, 9, 0), {}, "2 chains x 9 draws of 0 components. Name some blocks"),
        (normal(2, 0, 3), {}, "2 chains x 0 draws of 3 components"),
        (normal(2, 9), {"var_names": []}, "of 0 components"),
        (normal(2, 9, 60), {"max_components": 60}, "of 60 components, more than 50"),
        (normal(2, 9), {"max_components": 0}, "max_components is an integer >= 1, got 0"),
    ],
)
def test_a_picture_without_rows_or_with_too_many_is_refused(values, more, message):
    with pytest.raises(RecipeError, match=f"draws, plot: .*{message}"):
        plot(of(values), **more)
