"""Predictions of many draws: streams against all draws at once, scores against tables, loops and scikit-learn."""

import math
import sys
import weakref

import matplotlib
import numpy as np
import pytest
import scipy.special
import scipy.stats
import sklearn.metrics
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.errors import RecipeError
from samplers.predictive import (Predictive, PredictiveMoments, accuracy, brier, expected_calibration_error,
                                 negative_log_likelihood, reliability, roc, roc_auc)

matplotlib.use("Agg")
F64 = torch.float64
CLOSE = {"rtol": 1e-12, "atol": 1e-12}
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()


def normal(*shape, seed=0, scale=1.0, dtype=F64):
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)).to(dtype)


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def labelled(data=500, classes=4, seed=0):
    """Probabilities of all confidences, and labels that follow them only in part."""
    p = normal(data, classes, seed=seed, scale=2.0).softmax(-1)
    return p, normal(data, classes, seed=seed + 1).add(2 * p).argmax(-1)


def stream(kind, values, weights, order, cuts, **settings):
    """The values of the draws, in another order and in chunks; a chunk of one comes without an axis of draws."""
    running = kind()
    for chunk in np.split(np.array(order), cuts):
        if len(chunk) == 1:
            running.add(values[chunk[0]], weight=float(weights[chunk[0]]),
                        **{name: x[chunk[0]] for name, x in settings.items()})
        elif len(chunk):
            running.add(values[chunk], weight=weights[chunk], **{name: x[chunk] for name, x in settings.items()})
    return running


chunkings = st.integers(1, 12).flatmap(lambda n: st.tuples(
    st.permutations(range(n)), st.lists(st.integers(0, n), max_size=5).map(sorted)))


@pytest.mark.parametrize("device", DEVICES)
@given(chunkings, st.integers(0, 99), st.booleans())
@settings(deadline=None, max_examples=40)
def test_a_stream_in_any_order_and_chunks_is_the_mean_over_all_draws(device, chunking, seed, weighted):
    order, cuts = chunking
    logits = normal(len(order), 5, 3, seed=seed, scale=5.0)
    weights = uniform(len(order), seed=seed) + 0.01 if weighted else torch.ones(len(order))
    predictive = stream(Predictive, logits.to(device), weights, order, cuts)
    p = scipy.special.softmax(logits.numpy(), -1)
    mean = np.average(p, 0, weights=weights)
    total = scipy.stats.entropy(mean, axis=-1)
    expected = np.average(scipy.stats.entropy(p, axis=-1), 0, weights=weights)
    assert predictive.draws == len(order) and predictive.probabilities.device.type == device
    for got, wanted in [(predictive.probabilities, mean), (predictive.entropy, total),
                        (predictive.expected_entropy, expected), (predictive.mutual_information, total - expected)]:
        assert got.dtype == F64
        np.testing.assert_allclose(got.cpu(), wanted, **CLOSE)


@given(chunkings, st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_moments_in_any_order_and_chunks_are_those_of_the_mixture_of_all_draws(chunking, seed):
    order, cuts = chunking
    f, noise = normal(len(order), 4, 2, seed=seed), uniform(len(order), 4, 2, seed=seed)
    weights = uniform(len(order), seed=seed + 1) + 0.01
    moments = stream(PredictiveMoments, f, weights, order, cuts, noise_variance=noise)
    average = lambda x: np.average(x.numpy(), 0, weights=weights)
    mean = average(f)
    np.testing.assert_allclose(moments.mean, mean, **CLOSE)
    np.testing.assert_allclose(moments.variance, average(f**2 + noise) - mean**2, **CLOSE)  # E[y^2] - E[y]^2
    np.testing.assert_allclose(moments.expected_variance, average(noise), **CLOSE)
    np.testing.assert_allclose(moments.variance_of_mean, average(f**2) - mean**2, **CLOSE)


def test_a_variance_survives_a_mean_far_from_0_and_is_never_negative():
    f, moments, equal = normal(100, 3, 1), PredictiveMoments(), PredictiveMoments()
    for chunk in (f + 2.0**40).split(7):  # exact shifts up to rounding of 2^-12
        moments.add(chunk)
        equal.add(torch.full((3, 1), 0.1))
    torch.testing.assert_close(moments.variance, f.var(0, correction=0), rtol=1e-3, atol=0)
    assert not equal.variance.any()


@pytest.mark.parametrize("add", [lambda s, x, **k: s.add(x, **k),
                                 lambda s, x, **k: s.add_probabilities(x.softmax(-1), **k)])
def test_a_weight_of_3_is_three_draws_and_only_ratios_of_weights_count(add):
    logits, (weighted, repeated, scaled) = normal(2, 5, 3), (Predictive() for _ in range(3))
    add(weighted, logits, weight=[1, 3])
    add(repeated, logits[[0, 1, 1, 1]])
    add(scaled, logits, weight=torch.tensor([1e-9, 3e-9], dtype=F64))
    for other in (repeated, scaled):
        torch.testing.assert_close(weighted.probabilities, other.probabilities, **CLOSE)
        torch.testing.assert_close(weighted.expected_entropy, other.expected_entropy, **CLOSE)
    assert (weighted.draws, repeated.draws) == (2, 4)


def test_weights_broadcast_from_draws_to_chains_as_in_numpy():
    logits, h = normal(4, 6, 5, 3), torch.linspace(1, 2, 6, dtype=F64)
    of_draws, of_both, of_chains = Predictive(), Predictive(), Predictive()
    of_draws.add(logits, weight=h)
    of_both.add(logits, weight=h.expand(4, 6))
    of_chains.add(logits, weight=h[:4, None])
    torch.testing.assert_close(of_draws.probabilities, of_both.probabilities, **CLOSE)
    expected = torch.einsum("k,ckdj->dj", h, logits.softmax(-1)) / (4 * h.sum())
    torch.testing.assert_close(of_draws.probabilities, expected, **CLOSE)
    expected = torch.einsum("c,ckdj->dj", h[:4], logits.softmax(-1)) / (6 * h[:4].sum())
    torch.testing.assert_close(of_chains.probabilities, expected, **CLOSE)


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("scale", [0.0, 1e-9, 1.0, 100.0])
def test_entropies_keep_their_bounds(classes, scale):
    predictive = Predictive()
    predictive.add(normal(50, 40, classes, scale=scale))
    total, expected, information = predictive.entropy, predictive.expected_entropy, predictive.mutual_information
    assert (expected >= 0).all() and (information >= 0).all()
    assert (expected <= total + 1e-14).all() and (total <= math.log(classes) + 1e-14).all()
    torch.testing.assert_close(expected + information, total, **CLOSE)
    torch.testing.assert_close(predictive.probabilities.sum(-1), torch.ones(40, dtype=F64), **CLOSE)


def test_draws_that_agree_have_no_mutual_information_to_the_last_bit():
    predictive, logits = Predictive(), normal(5, 3, scale=4.0)
    for weight in (1.0, 0.3, 7.0):
        predictive.add(logits, weight=weight)
    assert torch.equal(predictive.probabilities, logits.softmax(-1)) and not predictive.mutual_information.any()


def test_sure_draws_that_disagree_have_the_mutual_information_log_classes():
    predictive = Predictive()
    predictive.add_probabilities(torch.eye(7)[:, None])  # seven draws of one datum
    assert predictive.expected_entropy.item() == 0
    assert predictive.entropy.item() == pytest.approx(math.log(7)) == predictive.mutual_information.item()


def test_rounding_makes_no_probability_above_1_and_no_entropy_below_0():
    for draws in range(2, 100):
        predictive = Predictive()
        predictive.add_probabilities(torch.tensor([1.0, 0.0]).expand(draws, 1, 2))
        predictive.add_probabilities([[1.00005, 0.0]])
        assert predictive.probabilities.max() <= 1 and predictive.expected_entropy.item() == 0
        assert 0 <= predictive.entropy.item() < 1e-14


@pytest.mark.parametrize("big", [torch.tensor(3e38), torch.tensor(1.7e308, dtype=F64), torch.tensor(6e4).half()])
def test_huge_logits_are_sure_and_do_not_overflow(big):
    predictive = Predictive()
    predictive.add(torch.stack([torch.stack([big, -big, -big]), torch.stack([big, big, -big])]))
    assert predictive.probabilities.tolist() == [[1, 0, 0], [0.5, 0.5, 0]]
    assert predictive.entropy.tolist() == predictive.expected_entropy.tolist() == [0, math.log(2)]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_sums_are_in_float64_whatever_the_dtype(dtype):
    logits, (short, long) = normal(300, 4, 3, dtype=dtype), (Predictive(), Predictive())
    for row in logits:
        short.add(row)
    long.add(logits.double())
    torch.testing.assert_close(short.probabilities, long.probabilities, **CLOSE)
    short.add_probabilities(logits[0].softmax(-1))  # its rounding is no reason to refuse it
    moments = PredictiveMoments()
    moments.add(logits)
    torch.testing.assert_close(moments.mean, logits.double().mean(0), **CLOSE)


def test_lists_and_arrays_are_taken_in_float64():
    predictive, moments = Predictive(), PredictiveMoments()
    predictive.add_probabilities([[0.1, 0.9]], weight=0.1)
    moments.add(np.array([[0.1]]), noise_variance=0.1)
    assert predictive.probabilities.tolist() == [[0.1, 0.9]] and predictive.state_dict()["weight"] == 0.1
    assert (moments.mean.item(), moments.variance.item()) == (0.1, 0.1)


def test_no_draw_is_kept_and_no_gradient_followed():
    predictive, logits = Predictive(), normal(5, 3).requires_grad_()
    predictive.add(logits)
    gone = weakref.ref(logits)
    del logits
    assert gone() is None and not predictive.probabilities.requires_grad
    with torch.inference_mode():
        predictive.add(normal(5, 3))
    predictive.add(normal(5, 3))
    assert predictive.draws == 3


def test_results_share_no_memory_with_the_stream():
    predictive = Predictive()
    predictive.add(normal(5, 3))
    kept = predictive.state_dict()
    for x in (predictive.probabilities, predictive.expected_entropy, *list(predictive.state_dict().values())[2:]):
        x.zero_()
    assert all(torch.equal(predictive.state_dict()[name], kept[name]) for name in Predictive._names)


@pytest.mark.parametrize("kind", [Predictive, PredictiveMoments])
@pytest.mark.parametrize("before", [0, 1, 4])
def test_a_saved_stream_goes_on_bit_for_bit(tmp_path, kind, before):
    values, weights = normal(9, 5, 3), uniform(9) + 0.1
    whole, first, second = kind(), kind(), kind()
    second.add(normal(2, 2))  # forgotten
    for k in range(9):
        if k == before:
            torch.save(first.state_dict(), tmp_path / "state")
            second.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
        for running in (whole, first if k < before else second):
            running.add(values[k], weight=weights[k])
    ours, theirs = whole.state_dict(), second.state_dict()
    assert ours.keys() == theirs.keys() and second.draws == 9
    assert all(torch.equal(torch.as_tensor(ours[name]), torch.as_tensor(theirs[name])) for name in ours)


def test_a_loaded_state_is_a_copy():
    predictive, other = Predictive(), Predictive()
    predictive.add(normal(5, 3))
    state = predictive.state_dict()
    other.load_state_dict(state)
    state["probabilities"].zero_()
    assert torch.equal(other.probabilities, predictive.probabilities)


def test_the_state_of_something_else_is_refused():
    with pytest.raises(RecipeError, match=r"Predictive, load_state_dict: the state has the entries \['draws', 'expec"):
        Predictive().load_state_dict(PredictiveMoments().state_dict())


@pytest.mark.parametrize("kind, name", [
    *[(Predictive, name) for name in ("probabilities", "entropy", "expected_entropy", "mutual_information")],
    *[(PredictiveMoments, name) for name in ("mean", "variance", "expected_variance", "variance_of_mean")]])
def test_no_draws_predict_nothing(kind, name):
    with pytest.raises(RecipeError, match=f"{kind.__name__}: there are no draws yet. Call add first"):
        getattr(kind(), name)


BAD = [
    ({"logits": torch.zeros(4, 3)}, r"the draw has the shape \(4, 3\), those before it \(2, 3\)"),
    ({"logits": torch.zeros(7, 2, 4)}, r"the draw has the shape \(2, 4\), those before it \(2, 3\)"),
    ({"logits": torch.zeros(3)}, r"the logits have the shape \(3,\)\. Pass \(data, classes\)"),
    ({"logits": torch.zeros(0, 2, 3)}, r"the logits have the shape \(0, 2, 3\)"),
    ({"logits": torch.zeros(2, 1)}, r"the logits \(2, 1\) are of one class"),
    ({"logits": torch.zeros(2, 3, dtype=torch.int64)}, r"the logits are torch.int64"),
    ({"logits": torch.zeros(2, 3, dtype=torch.complex64)}, r"the logits are torch.complex64"),
    ({"logits": "hot"}, r"the logits are no numbers"),
    ({"logits": None}, r"the logits are no numbers"),
    ({"logits": torch.tensor([[0.0, math.nan, 0.0]] * 2)}, "the logits are not finite. Leave out chains that diverged"),
    ({"logits": torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -math.inf]])}, "the logits are not finite"),
    *[({"weight": w}, "a weight is not a number > 0") for w in (0, -1.0, math.nan, math.inf, torch.tensor(0.0))],
    ({"logits": torch.zeros(2, 2, 3), "weight": [1.0, 0.0]}, "a weight is not a number > 0"),
    ({"logits": torch.zeros(2, 2, 3), "weight": [1.0] * 3}, r"the weights have the shape \(3,\), the draws \(2,\)"),
    ({"weight": [1.0, 1.0]}, r"the weights have the shape \(2,\), the draws \(\)"),
    ({"weight": "heavy"}, "the weights are no numbers"),
]


@pytest.mark.parametrize("bad, told", BAD)
def test_a_bad_draw_is_refused_and_leaves_the_stream_as_it_was(bad, told):
    predictive = Predictive()
    predictive.add(normal(2, 3))
    kept = predictive.probabilities
    with pytest.raises(RecipeError, match=f"Predictive, add: {told}"):
        predictive.add(**{"logits": torch.zeros(2, 3), **bad})
    assert predictive.draws == 1 and predictive.state_dict()["weight"] == 1
    assert torch.equal(predictive.probabilities, kept)


@pytest.mark.parametrize("p", [[[0.5, 0.6]], [[1.5, -0.5]], [[0.5, 0.499]], [[0.0, 0.0]]])
@pytest.mark.parametrize("take", [Predictive().add_probabilities, lambda p: accuracy(p, [0])])
def test_what_is_no_distribution_is_refused(p, take):
    with pytest.raises(RecipeError, match="the probabilities of a datum are below 0 or do not sum to 1"):
        take(p)


@pytest.mark.parametrize("bad, told", [
    ({"predictions": torch.zeros(4, 1)}, r"the draw has the shape \(4, 1\), those before it \(2, 1\)"),
    ({"predictions": torch.zeros(2)}, r"the predictions have the shape \(2,\)\. Pass \(data, outputs\)"),
    ({"predictions": torch.tensor([[0.0], [math.inf]])}, "the predictions are not finite"),
    ({"noise_variance": -0.1}, "a noise variance is not a number >= 0"),
    ({"noise_variance": [[0.1], [math.nan]]}, "a noise variance is not a number >= 0"),
    ({"noise_variance": math.inf}, "a noise variance is not a number >= 0"),
    ({"noise_variance": torch.ones(3, 1)}, r"the noise variances have the shape \(3, 1\), the predictions \(2, 1\)"),
    ({"weight": 0.0}, "a weight is not a number > 0"),
])
def test_a_bad_prediction_is_refused_and_leaves_the_moments_as_they_were(bad, told):
    moments = PredictiveMoments()
    moments.add(normal(2, 1), noise_variance=1.0)
    kept = moments.variance
    with pytest.raises(RecipeError, match=f"PredictiveMoments, add: {told}"):
        moments.add(**{"predictions": torch.zeros(2, 1), **bad})
    assert moments.draws == 1 and torch.equal(moments.variance, kept)


def test_the_repr_tells_draws_and_shape():
    predictive = Predictive()
    assert repr(predictive) == "Predictive of 0 draws"
    predictive.add(torch.zeros(5, 4, 3))
    assert repr(predictive) == "Predictive of 5 draws for 4 x 3"


@pytest.mark.parametrize("score, p, labels, value", [
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
])
def test_scores_of_a_table(score, p, labels, value):
    assert score(torch.tensor(p, dtype=F64), torch.tensor(labels)) == pytest.approx(value, rel=1e-14, abs=1e-15)


def test_scores_are_those_of_scikit_learn():
    p, y = labelled()
    assert 0.3 < accuracy(p, y) < 0.9
    assert accuracy(p, y) == pytest.approx(sklearn.metrics.accuracy_score(y, p.argmax(-1)), rel=1e-14)
    assert negative_log_likelihood(p, y) == pytest.approx(sklearn.metrics.log_loss(y, p.numpy()), rel=1e-12)
    expected = sklearn.metrics.brier_score_loss(y, p.numpy(), scale_by_half=False)
    assert brier(p, y) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("bins", [1, 2, 10, 15, 100])
def test_calibration_is_that_of_a_loop_over_data_and_bins(bins):
    p, y = labelled()
    members = [[] for _ in range(bins)]
    for row, label in zip(p.tolist(), y.tolist()):
        confidence = max(row)
        members[next(m for m in range(bins) if m / bins < confidence <= (m + 1) / bins)].append(
            (confidence, row.index(confidence) == label))
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
    assert expected_calibration_error(overconfident, labels[0], bins) > 0.08


def test_scores_do_not_depend_on_the_order_of_data():
    p, y = labelled()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(3))
    for score in (accuracy, negative_log_likelihood, brier, expected_calibration_error):
        assert score(p[order], y[order]) == pytest.approx(score(p, y), rel=1e-12)


@pytest.mark.parametrize("score", [accuracy, negative_log_likelihood, brier, expected_calibration_error, reliability])
@pytest.mark.parametrize("labels, told", [
    ([0, 1], r"the probabilities have the shape \(3, 2\), the labels \(2,\)"),
    ([[0], [1], [1]], r"the probabilities have the shape \(3, 2\), the labels \(3, 1\)"),
    ([0, 1, 2], "the labels go from 0 to 2, for 2 classes"),
    ([0, 1, -1], "the labels go from -1 to 1, for 2 classes"),
    ([0.0, 1.0, 1.0], "the labels are torch.float64"),
    ([True, False, True], "the labels are torch.bool"),
    (["cat", "dog", "dog"], "the labels are no numbers"),
])
def test_labels_that_do_not_fit_are_refused(score, labels, told):
    with pytest.raises(RecipeError, match=f"{score.__name__}: {told}"):
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
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    diagram = reliability(*labelled())
    with pytest.raises(RecipeError, match="Reliability, plot: matplotlib cannot be imported .* pip install matplotlib"):
        diagram.plot()


def scores_with_ties(seed=0):
    whole = lambda x: (4 * x).round() / 4
    return whole(normal(300, seed=seed)), whole(normal(200, seed=seed + 1) + 0.7)


@pytest.mark.parametrize("scores", [(normal(300), normal(200, seed=1) + 0.7), scores_with_ties(),
                                    (torch.zeros(3), torch.zeros(5)), (torch.zeros(1), torch.ones(1))])
def test_the_curve_and_its_area_are_those_of_scikit_learn(scores):
    labels, both = np.repeat([0, 1], [len(x) for x in scores]), torch.cat(scores).numpy()
    assert roc_auc(*scores) == pytest.approx(sklearn.metrics.roc_auc_score(labels, both), rel=1e-14)
    false, true, _ = sklearn.metrics.roc_curve(labels, both, drop_intermediate=False)
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
@pytest.mark.parametrize("inside, outside, told", [
    ([], [1.0], r"the scores inside have the shape \(0,\)"),
    ([1.0], [[1.0]], r"the scores outside have the shape \(1, 1\)"),
    (1.0, [1.0], r"the scores inside have the shape \(\)"),
    ([1.0], [0.0, math.nan], "a score outside is nan"),
    ([1.0], ["high"], "the scores are no numbers"),
])
def test_scores_that_cannot_be_ranked_are_refused(area, inside, outside, told):
    with pytest.raises(RecipeError, match=f"{area.__name__}: {told}"):
        area(inside, outside)


@pytest.mark.parametrize("device", DEVICES)
def test_scores_take_labels_from_another_device(device):
    p, y = labelled()
    assert expected_calibration_error(p.to(device), y) == pytest.approx(expected_calibration_error(p, y), rel=1e-12)
    assert negative_log_likelihood(p.to(device), y) == pytest.approx(negative_log_likelihood(p, y), rel=1e-12)
    assert roc_auc(p[:, 0].to(device), p[:, 1]) == roc_auc(p[:, 0], p[:, 1])
