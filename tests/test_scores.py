"""Scores of predictions are those of scikit-learn and of plain loops, and wrong input is named."""

import math
import sys

import numpy as np
import pytest
import torch
from devices import DEVICES

from recipe.errors import RecipeError
from samplers.scores import (
    accuracy,
    brier,
    expected_calibration_error,
    negative_log_likelihood,
    reliability,
    roc,
    roc_auc,
)

F64 = torch.float64


def normal(*shape, seed=0, scale=1.0, dtype=F64):
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)).to(dtype)


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def labelled(data=500, classes=4, seed=0):
    """Probabilities of all confidences, and labels that follow them only in part."""
    p = normal(data, classes, seed=seed, scale=2.0).softmax(-1)
    return p, normal(data, classes, seed=seed + 1).add(2 * p).argmax(-1)


@pytest.mark.parametrize(
    "score, p, labels, value",
    [
        (accuracy, [[0.5, 0.5]], [0], 1.0),  # the first of equals
        (accuracy, [[0.5, 0.5]], [1], 0.0),
        (negative_log_likelihood, [[0.25, 0.75], [1.0, 0.0]], [0, 0], math.log(2)),
        (negative_log_likelihood, [[1.0, 0.0]], [1], -math.log(sys.float_info.min)),
        (brier, [[0.2, 0.3, 0.5]], [1], 0.04 + 0.49 + 0.25),
        (brier, [[1.0, 0.0]], [0], 0.0),
        (brier, [[1.0, 0.0]], [1], 2.0),
        (expected_calibration_error, [[0.7, 0.3], [0.7, 0.3]], [0, 1], 0.2),
        (expected_calibration_error, [[1.0, 0.0], [0.0, 1.0]], [0, 1], 0.0),
        (expected_calibration_error, [[1.0, 0.0], [0.6, 0.4]], [1, 0], 0.7),  # 1/2 of 1, and 1/2 of 0.4
    ],
)
def test_scores_of_a_table(score, p, labels, value):
    assert score(torch.tensor(p, dtype=F64), torch.tensor(labels)) == pytest.approx(value, rel=1e-14, abs=1e-15)


def test_scores_are_those_of_scikit_learn():
    from sklearn import metrics

    p, y = labelled()
    assert 0.3 < accuracy(p, y) < 0.9
    assert accuracy(p, y) == pytest.approx(metrics.accuracy_score(y, p.argmax(-1)), rel=1e-14)
    assert negative_log_likelihood(p, y) == pytest.approx(metrics.log_loss(y, p.numpy()), rel=1e-12)
    expected = metrics.brier_score_loss(y, p.numpy(), scale_by_half=False)
    assert brier(p, y) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bins", [1, 2, 10, 15, 100])
def test_calibration_is_that_of_a_loop_over_data_and_bins(bins):
    p, y = labelled()
    members = [[] for _ in range(bins)]
    for row, label in zip(p.tolist(), y.tolist()):
        confidence = max(row)
        members[next(m for m in range(bins) if m / bins < confidence <= (m + 1) / bins)].append(
            (confidence, row.index(confidence) == label)
        )
    diagram = reliability(p, y, bins)
    assert diagram.count.tolist() == [len(inside) for inside in members]
    for m, inside in enumerate(members):
        for got, values in zip((diagram.confidence[m], diagram.accuracy[m]), zip(*inside)):
            assert got == pytest.approx(sum(values) / len(inside), rel=1e-12)
        assert inside or diagram.confidence[m].isnan() and diagram.accuracy[m].isnan()
    expected = sum(abs(sum(c for c, _ in inside) - sum(hit for _, hit in inside)) for inside in members) / len(p)
    assert expected_calibration_error(p, y, bins) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bins", range(1, 41))
def test_an_edge_belongs_to_the_bin_below_it(bins):
    edges = [m / bins for m in range(1, bins + 1) if m / bins >= 0.5]
    for edge in edges:
        above = math.nextafter(edge, 2)
        at = reliability([[edge, 1 - edge]], [0], bins).count
        assert at.tolist().index(1) == round(edge * bins) - 1
        if above < 1:
            assert reliability([[above, 1 - above]], [0], bins).count.tolist().index(1) == round(edge * bins)


def test_the_calibration_error_of_calibrated_predictions_is_its_known_small_bias():
    """Given its confidences, the hits of a bin less their mean are nearly normal, of variance sum c(1 - c)."""
    data, bins, runs = 4000, 15, 100
    confidence = 0.5 + 0.5 * uniform(data)
    p = torch.stack([confidence, 1 - confidence], -1)
    labels = (uniform(runs, data, seed=1) > confidence).long()
    bin = (confidence * bins).ceil()
    variances = [(confidence * (1 - confidence))[bin == m].sum() for m in range(1, bins + 1)]
    expected = sum(math.sqrt(2 * v / math.pi) for v in variances) / data
    errors = torch.tensor([expected_calibration_error(p, y, bins) for y in labels], dtype=F64)
    assert expected < 0.02
    assert abs(errors.mean() - expected) < 4 * errors.std() / math.sqrt(runs)
    overconfident = torch.stack([(confidence + 0.1).clamp(max=1), (0.9 - confidence).clamp(min=0)], -1)
    gap = float((overconfident[:, 0] - confidence).mean())
    error = math.sqrt(float((confidence * (1 - confidence)).mean()) / data)
    assert expected_calibration_error(overconfident, labels[0], bins) > gap - 5 * error > 0.05


def test_scores_do_not_depend_on_the_order_of_data():
    p, y = labelled()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(3))
    for score in (accuracy, negative_log_likelihood, brier, expected_calibration_error):
        assert score(p[order], y[order]) == pytest.approx(score(p, y), rel=1e-12)


@pytest.mark.parametrize("score", [accuracy, negative_log_likelihood, brier, expected_calibration_error, reliability])
@pytest.mark.parametrize(
    "labels, message",
    [
        ([0, 1], r"the probabilities have the shape \(3, 2\), the labels \(2,\)"),
        ([[0], [1], [1]], r"the probabilities have the shape \(3, 2\), the labels \(3, 1\)"),
        ([0, 1, 2], "the labels go from 0 to 2, for 2 classes"),
        ([0, 1, -1], "the labels go from -1 to 1, for 2 classes"),
        ([0.0, 1.0, 1.0], "the labels are torch.float64"),
        ([True, False, True], "the labels are torch.bool"),
        (["cat", "dog", "dog"], "the labels are not numbers"),
    ],
)
def test_labels_that_do_not_fit_are_refused(score, labels, message):
    with pytest.raises(RecipeError, match=f"{score.__name__}: {message}"):
        score(torch.full((3, 2), 0.5), labels)


def test_predictions_of_several_draws_have_no_score():
    with pytest.raises(RecipeError, match=r"accuracy: the probabilities have the shape \(4, 3, 2\)"):
        accuracy(torch.full((4, 3, 2), 0.5), [0, 0, 0, 0])


@pytest.mark.parametrize("bins", [0, -1, 2.0, True, None])
@pytest.mark.parametrize("score", [expected_calibration_error, reliability])
def test_bins_that_are_no_positive_integer_are_refused(score, bins):
    with pytest.raises(RecipeError, match=f"{score.__name__}: bins is an integer >= 1, got"):
        score(*labelled(), bins)


def test_the_plot_has_a_bar_of_the_accuracy_per_bin_that_is_not_empty():
    from matplotlib import pyplot

    diagram = reliability(*labelled(), bins=10)
    full = diagram.count > 0
    assert not full.all()
    figure, given = pyplot.subplots()
    own = diagram.plot()
    assert diagram.plot(given) is given and own is not given
    for axes in (given, own):
        assert [bar.get_height() for bar in axes.patches] == diagram.accuracy[full].tolist()
        np.testing.assert_allclose([bar.get_x() for bar in axes.patches], full.nonzero()[:, 0] / 10, atol=1e-12)
        np.testing.assert_allclose([bar.get_width() for bar in axes.patches], 0.1)
    pyplot.close(figure)
    pyplot.close(own.figure)


def test_without_matplotlib_a_plot_is_refused_and_numbers_are_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    diagram = reliability(*labelled())
    with pytest.raises(RecipeError, match="Reliability, plot: matplotlib cannot be imported .* pip install matplotlib"):
        diagram.plot()


def scores_with_ties(seed=0):
    def whole(x):
        return (4 * x).round() / 4

    return whole(normal(300, seed=seed)), whole(normal(200, seed=seed + 1) + 0.7)


@pytest.mark.parametrize(
    "scores",
    [
        (normal(300), normal(200, seed=1) + 0.7),
        scores_with_ties(),
        (torch.zeros(3), torch.zeros(5)),
        (torch.zeros(1), torch.ones(1)),
    ],
)
def test_the_curve_and_its_area_are_those_of_scikit_learn(scores):
    from sklearn import metrics

    labels, both = np.repeat([0, 1], [len(x) for x in scores]), torch.cat(scores).numpy()
    assert roc_auc(*scores) == pytest.approx(metrics.roc_auc_score(labels, both), rel=1e-14)
    false, true, _ = metrics.roc_curve(labels, both, drop_intermediate=False)
    np.testing.assert_allclose(torch.stack(roc(*scores)), [false, true], rtol=1e-14)


def test_the_area_is_the_chance_of_a_higher_score_outside_with_half_of_the_ties():
    inside, outside = scores_with_ties()
    sign = (outside[:, None] - inside).sign()
    assert (sign == 0).any()
    assert roc_auc(inside, outside) == pytest.approx((sign.mean().item() + 1) / 2, rel=1e-14)
    assert roc_auc(inside, outside) == pytest.approx(1 - roc_auc(outside, inside), rel=1e-14)
    assert roc_auc(inside, outside) == roc_auc(inside.exp(), outside.exp())
    assert roc_auc(inside, outside) == pytest.approx(torch.trapezoid(*reversed(roc(inside, outside))).item(), rel=1e-14)


def test_infinite_scores_have_their_place():
    assert roc_auc([-math.inf, 0.0], [0.0, math.inf]) == 0.875
    assert [x.tolist() for x in roc([-math.inf], [math.inf])] == [[0, 0, 1], [0, 1, 1]]


@pytest.mark.parametrize("area", [roc, roc_auc])
@pytest.mark.parametrize(
    "inside, outside, message",
    [
        ([], [1.0], r"the scores inside have the shape \(0,\)"),
        ([1.0], [[1.0]], r"the scores outside have the shape \(1, 1\)"),
        (1.0, [1.0], r"the scores inside have the shape \(\)"),
        ([1.0], [0.0, math.nan], "a score outside is nan"),
        ([1.0], ["high"], "the scores are not numbers"),
    ],
)
def test_scores_that_cannot_be_ranked_are_refused(area, inside, outside, message):
    with pytest.raises(RecipeError, match=f"{area.__name__}: {message}"):
        area(inside, outside)


@pytest.mark.parametrize("device", DEVICES)
def test_scores_take_labels_from_another_device(device):
    p, y = labelled()
    assert expected_calibration_error(p.to(device), y) == pytest.approx(expected_calibration_error(p, y), rel=1e-12)
    assert negative_log_likelihood(p.to(device), y) == pytest.approx(negative_log_likelihood(p, y), rel=1e-12)
    assert roc_auc(p[:, 0].to(device), p[:, 1]) == roc_auc(p[:, 0], p[:, 1])
