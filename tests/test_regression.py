"""Predictions of draws, the scores of a regression, comparisons of two predictives, and what ArviZ reads."""

import math
import subprocess
import sys
import warnings

import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal

import samplers
from recipe.errors import RecipeError
from samplers import Draws
from samplers.scores import (
    brier,
    coverage,
    crps,
    log_predictive_density,
    negative_log_likelihood,
    paired,
    rmse,
)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


F = normal(2, 5, 6, 1)  # chains, draws, data, outputs
Y = normal(6, 1, seed=1)
NOISE = normal(6, 1, seed=2).square() + 0.1


def mixtures():
    f = F.reshape(10, 6).T
    return MixtureSameFamily(Categorical(torch.ones(6, 10)), Normal(f, NOISE.sqrt().expand(6, 10)))


def test_the_log_predictive_density_is_that_of_the_mixture():
    torch.testing.assert_close(log_predictive_density(F, Y, noise_variance=NOISE), mixtures().log_prob(Y[:, 0]))
    both = log_predictive_density(torch.cat([F, F], -1), torch.cat([Y, Y], -1), noise_variance=1.0)
    single = (-((F - Y) ** 2) - math.log(2 * math.pi)).reshape(10, 6)  # the square of one density, given a draw
    torch.testing.assert_close(both, single.logsumexp(0) - math.log(10))


def test_the_crps_is_the_integral_of_its_definition():
    t = torch.linspace(-15, 15, 60_001, dtype=torch.float64)
    below = mixtures().cdf(t[:, None].expand(-1, 6))
    expected = torch.trapezoid((below - (t[:, None] >= Y[:, 0]).double()).square(), t, dim=0)
    torch.testing.assert_close(crps(F, Y, noise_variance=NOISE), expected, atol=1e-3, rtol=0)
    points = torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64).reshape(3, 1, 1)
    assert float(crps(points, torch.tensor([[1.0]]))) == pytest.approx(4 / 3 - (1 + 4 + 3) / 9)


def test_the_crps_does_not_depend_on_how_pairs_are_cut(monkeypatch):
    whole = crps(F, Y, noise_variance=NOISE)
    monkeypatch.setattr("samplers.scores.AT_ONCE", 100)
    torch.testing.assert_close(crps(F, Y, noise_variance=NOISE), whole)


def test_the_rmse_is_of_the_mean_and_the_coverage_of_right_predictions_is_the_level():
    assert rmse(F, Y) == pytest.approx(float((F.mean((0, 1)) - Y).square().mean().sqrt()))
    f = normal(1, 20_000, 1)
    y = f[0] + 0.5 * normal(20_000, 1, seed=3)
    for level in (0.5, 0.9):
        assert coverage(f, y, noise_variance=0.25, level=level) == pytest.approx(level, abs=0.02)
    assert coverage(f, y, noise_variance=0.0025) < 0.5
    assert coverage(torch.zeros(3, 2, 1), torch.tensor([[0.0], [1.0]])) == 0.5


@pytest.mark.parametrize(
    "call, words",
    [
        (lambda: rmse(F, Y[:5]), "the targets"),
        (lambda: crps(F, Y[:, 0]), "the targets"),
        (lambda: log_predictive_density(F, Y, noise_variance=0.0), "not > 0"),
        (lambda: log_predictive_density(F, Y, noise_variance=torch.ones(7)), "noise variances have the shape"),
        (lambda: crps(F, Y, noise_variance=-1.0), ">= 0"),
        (lambda: coverage(F, Y, level=1.0), "level"),
        (lambda: rmse(F * math.nan, Y), "not finite"),
        (lambda: paired([1.0, 2.0], [1.0]), "one number per datum"),
        (lambda: paired([1.0], [1.0]), "one number per datum"),
        (lambda: paired([1.0, math.nan], [1.0, 1.0]), "not finite"),
    ],
)
def test_what_does_not_fit_is_refused(call, words):
    with pytest.raises(RecipeError, match=words):
        call()


def test_two_predictives_are_compared_in_pairs():
    hard = 10 * normal(400).abs()  # what both find hard
    better = paired(hard + 0.1 + 0.2 * normal(400, seed=4), hard)
    assert better.value == pytest.approx(0.1, abs=0.05) and better.error == pytest.approx(0.01, rel=0.15)
    assert better.in_errors > 5 and paired(hard, hard).in_errors == 0
    p, labels = normal(30, 3).softmax(-1), torch.arange(30) % 3
    for score in (negative_log_likelihood, brier):
        assert float(score(p, labels, each=True).mean()) == pytest.approx(score(p, labels))


# ---- predictions


X = normal(25, 3).float()


def test_a_prediction_is_the_model_at_each_draw_whatever_the_batches():
    draws = Draws({"theta": normal(2, 7, 3).float()}, info={})
    expected = torch.einsum("cds,ns->cdn", draws["theta"], X)
    for batch_size in (None, 1, 10):
        says = draws.predict(lambda theta, x: x @ theta, X, batch_size=batch_size)
        torch.testing.assert_close(says, expected)
    torch.testing.assert_close(draws.predict(lambda t, x: x @ t, X, thin=3), expected[:, ::3])
    pairs = draws.predict(lambda t, xy: xy[0] @ t - xy[1], (X, torch.ones(25)), batch_size=4)
    torch.testing.assert_close(pairs, expected - 1)


def test_a_module_predicts_with_the_draws_as_its_parameters_and_is_left_as_it_was():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 2))
    before = {name: p.clone() for name, p in model.named_parameters()}

    def energy(w, x):
        h = x @ w["0.weight"].T + w["0.bias"]
        return (h @ w["2.weight"].T + w["2.bias"]).square().sum() + sum(p.square().sum() for p in w.values())

    draws = samplers.sample(samplers.SGLD, energy, data=X, init=model, steps=6, step_size=1e-3, progress=False)
    says = draws.predict(model, X, batch_size=10)
    assert says.shape == (4, 6, 25, 2) and model.training
    h = X @ draws["0.weight"][1, 5].T + draws["0.bias"][1, 5]
    torch.testing.assert_close(says[1, 5], h @ draws["2.weight"][1, 5].T + draws["2.bias"][1, 5])
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    predictive = samplers.Predictive()
    predictive.add(says)
    assert predictive.draws == 24
    with pytest.raises(RecipeError, match="the module has the parameters"):
        draws.predict(model[0], X)


SERVED = """
import sys, torch, samplers
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
says = samplers.Draws.load(sys.argv[1]).predict(model, torch.eye(3))
samplers.Draws({"says": says}, info={}).save(sys.argv[2])
"""


def in_this_process(draws, says):
    """`SERVED` here, with a network of other weights."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["", draws, says])
        exec(compile(SERVED, "served", "exec"), {})


def in_another_process(*files):
    subprocess.run([sys.executable, "-c", SERVED, *files], check=True)


@pytest.mark.parametrize("serve", [in_this_process, pytest.param(in_another_process, marks=pytest.mark.slow)])
def test_saved_draws_with_their_momenta_predict_new_data_by_the_code_of_the_network(serve, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    def energy(w):
        return torch.func.functional_call(model, w, (torch.ones(2, 3),)).square().sum()

    draws = samplers.sample("sghmc", energy, init=model, steps=4, step_size=0.01, keep="p", progress=False)
    files = str(tmp_path / "draws"), str(tmp_path / "says")
    draws.save(files[0])
    serve(*files)
    assert torch.equal(Draws.load(files[1])["says"], draws.predict(model, torch.eye(3)))
    assert draws.info["targets"] == [name for name, _ in model.named_parameters()]
    assert Draws.load(files[0])["p"].shape == (4, 4, 21)


@pytest.mark.parametrize(
    "model, rows, settings, words",
    [
        (lambda t, x: x.sum(), X, {}, "one prediction per row"),
        (lambda t, x: 3.0, X, {}, "one prediction per row"),
        (lambda t: t, X, {}, "called with theta and rows: TypeError: .*takes 1 positional.*f.theta, rows."),
        (lambda t, x: x @ torch.ones(9), X, {}, "the model fails.*RuntimeError"),
        (3, X, {}, "the model is 3"),
        (lambda t, x: x, X.tolist(), {}, "X is a list"),
        (lambda t, x: x, (X, X[:3]), {}, "rows"),
        (lambda t, x: x, X[:0], {}, "rows"),
        (lambda t, x: x, X, {"batch_size": 0}, "batch_size"),
        (lambda t, x: x, X, {"thin": 0}, "thin"),
    ],
)
def test_predictions_that_cannot_be_made_are_refused(model, rows, settings, words):
    with pytest.raises(RecipeError, match=words):
        Draws({"theta": torch.zeros(2, 3, 3)}, info={}).predict(model, rows, **settings)


def test_arviz_reads_the_log_likelihood():
    """Of N(theta, 1) under a flat prior each datum is N(mean of the others, 1 + 1/(n - 1)), given those."""
    y = normal(50)
    draws = Draws({"theta": y.mean() + normal(4, 1000, seed=5) / 50**0.5}, info={})
    log_likelihood = draws.predict(lambda theta, y: Normal(theta, 1.0).log_prob(y), y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import arviz

        loo = arviz.loo(draws.to_arviz(log_likelihood=log_likelihood))
    others = (y.sum() - y) / 49
    exact = float(Normal(others, math.sqrt(1 + 1 / 49)).log_prob(y).sum())
    elpd = loo.elpd if hasattr(loo, "elpd") else loo.elpd_loo  # from ArviZ 1.0 on, and before
    assert elpd == pytest.approx(exact, abs=0.1)
    assert list(draws.to_arviz(log_likelihood={"a": log_likelihood}).log_likelihood) == ["a"]
    with pytest.raises(RecipeError, match="log p of each datum"):
        draws.to_arviz(log_likelihood=log_likelihood[:, :5])
    with pytest.raises(RecipeError, match="log likelihood of y is a function. Give its values: draws.predict"):
        draws.to_arviz(log_likelihood=lambda theta: Normal(theta, 1.0).log_prob(y))


# ---- datasets and loaders


class Squares(torch.utils.data.Dataset):
    """Items of two numbers; not the same at each reading where it is `random`."""

    def __init__(self, random=False):
        self.random = random

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if not 0 <= i < 12:
            raise IndexError(i)
        return torch.tensor([float(i)]), torch.rand(()) if self.random else torch.tensor(float(i) ** 2)


TENSORS = (torch.arange(12.0)[:, None], torch.arange(12.0) ** 2)
LOADER = torch.utils.data.DataLoader


def line(theta, batch):
    x, y = batch
    return 12 * ((x[:, 0] * theta[0] - y) ** 2).mean() / 200 + theta.square().sum() / 2


def drawn(data, **settings):
    how = {"init": torch.zeros(2), "steps": 20, "step_size": 0.05, "progress": False} | settings
    return samplers.sample(samplers.SGLD, line, data=data, **how)["theta"]


@pytest.mark.filterwarnings("error")
def test_a_dataset_and_a_loader_give_the_draws_of_their_tensors():
    expected = drawn(TENSORS, batch_size=4)
    assert torch.equal(drawn(Squares(), batch_size=4), expected)
    assert torch.equal(drawn(torch.utils.data.TensorDataset(*TENSORS), batch_size=4), expected)
    assert torch.equal(drawn(LOADER(Squares(), batch_size=4)), expected)
    assert torch.equal(drawn(LOADER(Squares(), batch_size=3), batch_size=4), expected)
    assert torch.equal(drawn(Squares()), drawn(TENSORS))
    with pytest.warns(RuntimeWarning, match="not resumable"):
        assert torch.equal(drawn(LOADER(Squares(), batch_size=4, shuffle=True)), expected)


class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter([torch.ones(1)])


@pytest.mark.parametrize(
    "data, words",
    [
        (Stream(), "no rows by number"),
        (LOADER(Stream()), "no rows by number"),
        (Squares(random=True), "each time it is read"),
        (LOADER(Squares(), sampler=torch.utils.data.SubsetRandomSampler([1, 2])), "chooses among the rows"),
        (LOADER(Squares(), sampler=torch.utils.data.WeightedRandomSampler([1.0] * 12, 12)), "chooses among the rows"),
        (torch.utils.data.Subset(Squares(), []), "no rows"),
        (LOADER(Squares(), collate_fn=lambda items: {"x": items}), "dicts"),
    ],
)
def test_data_that_cannot_be_read_are_refused(data, words):
    with pytest.raises(RecipeError, match=words):
        drawn(data, batch_size=4)


@pytest.mark.parametrize(
    "values, words",
    [
        ("abc", "are not numbers"),
        ([[1], [1, 2]], "are not numbers"),
        (torch.zeros(2, 9, 3, dtype=torch.complex64), "torch.complex64"),
        (torch.full((2, 9, 3), math.nan), "nan in chain 0"),
    ],
)
def test_a_log_likelihood_of_no_numbers_is_refused(values, words):
    draws = Draws({"theta": torch.zeros(2, 9)}, info={})
    with pytest.raises(RecipeError, match=words):
        draws.to_arviz(log_likelihood=values)
