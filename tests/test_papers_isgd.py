"""The experiments with i-SGD: the laws that they show, in small runs; seeds are fixed, and no data are needed."""

import math
import shutil

import numpy as np
import pytest
import torch
from covering import slow

pytestmark = pytest.mark.usefixtures("papers")


# ---- where the posterior is known


@pytest.mark.parametrize("name, injected", [("VSGD", 0.0), slow(("SGLD", 2.0))])
def test_the_variances_are_those_of_linear_steps(study, monkeypatch, name, injected):
    """(injected + h V)/(2 - h) for k = 1, within 7 %: four standard errors."""
    import isgd_gaussian

    monkeypatch.setattr(isgd_gaussian, "COVARIANCES", torch.tensor([4.0, 16.0], dtype=torch.float64))
    result = isgd_gaussian.gaussian(study, name, h=0.1, chains=200, steps=400)
    assert result["ratios"] == pytest.approx([(injected + 0.1 * V) / 1.9 for V in (4, 16)], rel=0.07)


def test_isgd_finds_half_the_trace_of_the_noise_and_says_what_it_clips(study, monkeypatch):
    import isgd_gaussian

    monkeypatch.setattr(isgd_gaussian, "COVARIANCES", torch.full((20,), 4.0, dtype=torch.float64))
    result = isgd_gaussian.gaussian(study, "i-SGD", h=None, chains=100, steps=300)
    assert result["lambda"][0] == pytest.approx(20 * (4 + 1) / 2, rel=0.25)  # the harmonic mean, of a second moment
    assert 0 <= result["clipped"] < 0.01


def test_the_energy_of_a_batch_is_an_unbiased_estimate():
    from isgd_gaussian import logistic

    X, y = torch.randn(6, 2, dtype=torch.float64), torch.tensor([0.0, 1, 1, 0, 1, 0], dtype=torch.float64)
    theta = torch.tensor([0.3, -1.0], dtype=torch.float64)
    energy = logistic((X, y))
    each = torch.stack([energy(theta, (X[k : k + 1], y[k : k + 1])) for k in range(6)])
    assert float(each.mean()) == pytest.approx(float(energy(theta, (X, y))))
    p = (X @ theta).sigmoid()
    by_hand = -(y * p.log() + (1 - y) * (1 - p).log()).sum() + theta.square().sum() / 200
    assert float(energy(theta, (X, y))) == pytest.approx(float(by_hand))


# ---- UCI


@pytest.fixture
def boston(tmp_path, study):
    """A line with noise under the name of a set, in the format of its file."""
    random = np.random.RandomState(0)
    X = random.randn(60, 3) * [1, 100, 0] + [0, 5, 7]
    y = 3 * X[:, 0] + 20 + 0.5 * random.randn(60)
    orders = np.stack([random.permutation(60) for _ in range(3)])
    (tmp_path / "uci-regression").mkdir()
    path = tmp_path / "uci-regression" / "boston.npz"
    np.savez(path, X=X, y=y, train_idx=orders[:, :50], test_idx=orders[:, 50:])
    study.data = tmp_path
    return study


def test_every_split_has_its_own_rows_and_scale(boston):
    import isgd_splits

    data = isgd_splits.splits_of(boston, "boston", 2)
    ensemble = isgd_splits.ensemble_of(data)
    with torch.no_grad():
        for p in ensemble.parameters():
            p.zero_()
    outputs = isgd_splits.predicted(ensemble, data)
    assert outputs.shape == (2, 10)
    for k in range(2):
        assert outputs[k].tolist() == pytest.approx([float(data.y[data.train[k]].mean())] * 10)
    x, y = next(isgd_splits.batches_of(data, seed=0))
    assert x.shape == (2, 50, 3) and y.mean(1).abs().max() < 1e-6  # all rows of training, standardised
    held_back = data.held_back()
    assert held_back.train.shape == (2, 42) and held_back.test.shape == (2, 8)
    assert set(held_back.test[0].tolist()) < set(data.train[0].tolist())


def test_the_two_definitions_of_mnll_and_a_split_that_failed(boston):
    import isgd_uci

    data = isgd_uci.splits_of(boston, "boston", 2)
    y = data.y[data.test]
    outputs = torch.stack([y - 1, y + 1])
    outputs[0, 1, 0] = math.inf
    noise = (2.0 / data.scale[1] ** 2).float()
    result = isgd_uci.scores(outputs, data, noise)
    assert result["failed"] == 1 and result["rmse"] == [pytest.approx(0, abs=1e-9)]
    assert result["mnll"] == [pytest.approx(math.log(2 * math.pi * 2) / 2 + 1 / 4)]
    assert result["mnll of outputs"] == [pytest.approx(math.log(2 * math.pi) / 2)]


@pytest.mark.slow
def test_all_methods_run_and_the_samplers_keep_what_the_baseline_has_learned(boston, monkeypatch):
    import isgd_splits
    import isgd_uci

    monkeypatch.setattr(isgd_splits, "BATCH", 8)  # all rows at once would be without noise
    size = dict(splits=2, adam=60, draws=3, every=4)
    for method in isgd_uci.METHODS:
        lr = 0.01 if method in ("SGHMC", "SGHMC T", "SWAG") else 0.0
        result = isgd_uci.run(boston, "boston", method, lr=lr, **size)
        assert result["failed"] == 0 and len(result["rmse"]) == 2
        if method not in ("SGLD", "drop"):
            assert max(result["rmse"]) < 1.5


def test_a_run_that_diverges_has_failed_in_every_split(boston, monkeypatch):
    """After a step the weights are beyond what a network in float32 multiplies."""
    import isgd_splits
    import isgd_uci

    monkeypatch.setattr(isgd_splits, "BATCH", 8)  # all rows at once would be without noise
    result = isgd_uci.run(boston, "boston", "SGHMC", splits=2, adam=60, draws=3, every=4, lr=1e30)
    assert result["failed"] == 2 and not result["rmse"]


# ---- LeNet-5


@pytest.fixture
def digits_for_letters(study, images, tmp_path):
    """Images, and the same ones under the name of letters."""
    from datasets import IDX_FILES

    study.data = tmp_path
    shutil.copytree(images, tmp_path / "mnist")
    (tmp_path / "notmnist").mkdir()
    (test_images,) = images.glob(f"{IDX_FILES[2]}*")
    shutil.copy(test_images, tmp_path / "notmnist")
    return study


@pytest.mark.parametrize("method", ["baseline", slow("SGHMC T"), "SWAG", "drop"])
def test_letters_that_are_digits_are_as_uncertain_and_cannot_be_told(digits_for_letters, method):
    import isgd_lenet

    result = isgd_lenet.run(digits_for_letters, method, seed=0, steps=4, draws=2, every=3, lr=0.01)
    assert result["H0"] == pytest.approx(result["H1"], rel=0.05 if method == "drop" else 1e-6)
    error = math.sqrt((40 + 40 + 1) / (12 * 40 * 40))  # of an AUROC of 40 and 40 images that are alike
    assert result["auroc"] == pytest.approx(0.5, abs=4 * error if method == "drop" else 1e-9)
    assert result["draws"] == (1 if method == "baseline" else 2)


def test_a_run_of_lenet_that_diverges_is_not_a_number(digits_for_letters):
    """After a step the weights are beyond what a network in float32 multiplies."""
    import isgd_lenet

    result = isgd_lenet.run(digits_for_letters, "SGHMC", seed=0, steps=4, draws=2, every=3, lr=1e30)
    assert result["draws"] == 0 and math.isnan(result["nll"])


def test_the_third_baseline_leaves_the_second_where_its_lr_falls(digits_for_letters):
    """Stages of one run: half of the steps, all, half as many again; a lower lr from the start differs before."""
    import isgd_baselines

    constant, cooled = (isgd_baselines.adam(digits_for_letters, 0, 4, cooled) for cooled in (False, True))
    assert constant["steps"] == cooled["steps"] == [2, 4, 6]
    (*before, longer), (*same, lower) = constant["scores"], cooled["scores"]
    assert before == same and longer != lower


def test_the_lowest_baseline_is_below_each_other_or_it_is_said_which_one_is_near(papers):
    import isgd_baselines

    def results(*nll):
        return [{"nll": value, "auroc": 0.9, "H1": 0.5} for value in nll]

    table = dict.fromkeys(("baseline", "baseline L", "i-SGD"), results(0.10, 0.11, 0.12))
    table |= {"baseline R": results(0.06, 0.07, 0.08), "baseline S": results(0.05, 0.10, 0.15)}
    lowest, *_ = isgd_baselines.claims_of(table)
    assert lowest.verdict.value == "not decided here" and lowest.why.endswith("over seeds of baseline S")
    lowest, *_ = isgd_baselines.claims_of(table | {"baseline S": table["baseline"]})
    assert lowest.verdict.value == "reproduced" and not lowest.why


def test_each_draw_of_swag_has_its_own_running_averages_of_all_images(pixels, monkeypatch):
    import isgd_cifar

    seen = []

    def update(batches, network):
        seen.append((len(torch.cat(batches)), float(next(network.parameters()).detach().sum())))

    monkeypatch.setattr(isgd_cifar, "update_bn", update)
    size = {"epochs": 1, "size": (8, 2), "draws": 3, "apart": 1, "rows": None, "full": False}
    isgd_cifar.run(pixels, "SWAG", seed=0, decay=0.0, lr=0.01, **size)
    assert [rows for rows, _ in seen] == [48] * 3 and len({own for _, own in seen}) == 3


@pytest.mark.parametrize(("nll", "verdict"), [(1.72, "not decided here"), (1.68, "reproduced")])
def test_averages_that_are_less_certain_need_not_be_better(papers, nll, verdict):
    """Their entropy is above that of the baseline in both; whether they are better is the NLL's, which is told."""
    import isgd_cifar

    def results(nll, entropy):
        return [{"nll": nll + k / 1000, "H0": entropy, "accuracy": 0.34} for k in range(3)]

    table = dict.fromkeys(("i-SGD", "SGHMC"), results(nll, 1.85)) | dict.fromkeys(
        ("baseline", "VSGD"), results(1.70, 1.79)
    )
    better, *_, uncertain = isgd_cifar.claims_of(table)
    assert (better.verdict.value, uncertain.verdict.value) == (verdict, "reproduced")
    assert f"1.701 theirs is {nll + 0.001:.3f}" in uncertain.why


def test_columns_that_are_not_printed_stand_behind_a_semicolon(papers):
    import isgd_lenet

    results = [{"accuracy": 0.99, "nll": 0.05, "auroc": 0.9}, {"accuracy": 0.97, "nll": 0.07, "auroc": 0.9}]
    row = isgd_lenet.row("R", results, (98.4, 0.1), {"nll": "NLL", "auroc": "AUROC"})
    assert row.cells[:3] == (
        "R: accuracy, NLL; AUROC",
        "98.40 %, 0.100",
        "98.00 +- 1.41 %, 0.060 +- 0.014; 0.900 +- 0.000",
    )
    assert row.found and not isgd_lenet.row("R", results, (98.6, 0.1), {"nll": "NLL"}).found


def test_a_layer_is_a_group_of_its_own_within_blocks_too(papers):
    from networks import layers_of, lenet, residual

    assert [len(group["params"]) for group in layers_of(lenet(seed=0))] == [2] * 5
    network = residual(depth=8, filters=2, batch_norm=True, seed=0)
    groups = layers_of(network)
    assert len(groups) == 2 * 7 + 1  # convolutions and their normalisations; the head
    assert sum(p.numel() for group in groups for p in group["params"]) == sum(p.numel() for p in network.parameters())


def test_lenet_has_its_61706_weights(papers):
    from networks import lenet

    assert sum(p.numel() for p in lenet(seed=0).parameters()) == 61706


@pytest.mark.parametrize("first", ["positions", "momenta"])
def test_the_temperature_of_noisy_sgd_with_momentum_is_that_of_its_steps(papers, first):
    """20,000 chains have a standard error of 1 %; momenta that move first have 1.0, and positions 2.0."""
    import isgd_momentum as example

    eta, k, Sigma = 0.1, 5.0, 10.0
    rng = np.random.default_rng(1)
    theta, r = np.zeros((2, 20_000))
    for _ in range(300):
        last = r
        r = r - eta**2 * Sigma * r - eta * k * theta + eta * (2 * Sigma) ** 0.5 * rng.standard_normal(r.shape)
        theta = theta + eta * (last if first == "positions" else r)
    assert k * theta.var() == pytest.approx(example.temperature(eta, k, Sigma, first=first), rel=0.05)


def test_the_update_of_theorem_2_is_hotter_by_the_curvature_at_every_learning_rate(papers):
    """B/(B - k), and no law from k = B on; the SDE that it stands for has the law."""
    import isgd_momentum as example

    for k in (1.0, 5.0, 9.0):
        assert example.temperature(1e-3, k, 10.0) == pytest.approx(10 / (10 - k), rel=1e-4)
    assert example.temperature(1e-3, 10.5, 10.0) == np.inf
    assert example.theorem().check().exact
