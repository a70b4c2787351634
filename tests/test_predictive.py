"""Predictions of many draws: streams against all draws at once."""

import math
import weakref

import numpy as np
import pytest
import scipy.special
import scipy.stats
import torch
from devices import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.errors import RecipeError
from samplers.results.predictive import Predictive, PredictiveMoments
from samplers.scores import accuracy

F64 = torch.float64
CLOSE = {"rtol": 1e-12, "atol": 1e-12}


def normal(*shape, seed=0, scale=1.0, dtype=F64):
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)).to(dtype)


def uniform(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


def stream(kind, values, weights, order, cuts, **settings):
    """The values of the draws, in another order and in chunks; a chunk of one comes without an axis of draws."""
    running = kind()
    for chunk in np.split(np.array(order), cuts):
        if len(chunk) == 1:
            running.add(
                values[chunk[0]], weight=float(weights[chunk[0]]), **{name: x[chunk[0]] for name, x in settings.items()}
            )
        elif len(chunk):
            running.add(values[chunk], weight=weights[chunk], **{name: x[chunk] for name, x in settings.items()})
    return running


chunkings = st.integers(1, 12).flatmap(
    lambda n: st.tuples(st.permutations(range(n)), st.lists(st.integers(0, n), max_size=5).map(sorted))
)


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
    for got, wanted in [
        (predictive.probabilities, mean),
        (predictive.entropy, total),
        (predictive.expected_entropy, expected),
        (predictive.mutual_information, total - expected),
    ]:
        assert got.dtype == F64
        np.testing.assert_allclose(got.cpu(), wanted, **CLOSE)


@given(chunkings, st.integers(0, 99))
@settings(deadline=None, max_examples=40)
def test_moments_in_any_order_and_chunks_are_those_of_the_mixture_of_all_draws(chunking, seed):
    order, cuts = chunking
    f, noise = normal(len(order), 4, 2, seed=seed), uniform(len(order), 4, 2, seed=seed)
    weights = uniform(len(order), seed=seed + 1) + 0.01
    moments = stream(PredictiveMoments, f, weights, order, cuts, noise_variance=noise)

    def average(x):
        return np.average(x.numpy(), 0, weights=weights)

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


@pytest.mark.parametrize(
    "add", [lambda s, x, **k: s.add(x, **k), lambda s, x, **k: s.add_probabilities(x.softmax(-1), **k)]
)
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


@pytest.mark.parametrize(
    "kind, name",
    [
        *[(Predictive, name) for name in ("probabilities", "entropy", "expected_entropy", "mutual_information")],
        *[(PredictiveMoments, name) for name in ("mean", "variance", "expected_variance", "variance_of_mean")],
    ],
)
def test_no_draws_predict_nothing(kind, name):
    with pytest.raises(RecipeError, match=f"{kind.__name__}: there are no draws yet. Call add first"):
        getattr(kind(), name)


BAD = [
    ({"logits": torch.zeros(4, 3)}, r"the draw has the shape \(4, 3\), those before it \(2, 3\)"),
    ({"logits": torch.zeros(7, 2, 4)}, r"the draw has the shape \(2, 4\), those before it \(2, 3\)"),
    ({"logits": torch.zeros(3)}, r"the logits have the shape \(3,\)\. Pass \(data, classes\)"),
    ({"logits": torch.zeros(0, 2, 3)}, r"the logits have the shape \(0, 2, 3\)"),
    ({"logits": torch.zeros(2, 1)}, r"the logits \(2, 1\) are of one class"),
    (
        {"logits": torch.zeros(9, 1)},
        ".* The outputs of a regression are for PredictiveMoments, or stack them over draws",
    ),
    ({"logits": torch.zeros(2, 3, dtype=torch.int64)}, r"the logits are torch.int64"),
    ({"logits": torch.zeros(2, 3, dtype=torch.complex64)}, r"the logits are torch.complex64"),
    ({"logits": "hot"}, r"the logits are not numbers"),
    ({"logits": None}, r"the logits are not numbers"),
    ({"logits": torch.tensor([[0.0, math.nan, 0.0]] * 2)}, "the logits are not finite. Leave out chains that diverged"),
    ({"logits": torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, -math.inf]])}, "the logits are not finite"),
    *[({"weight": w}, "a weight is not a number > 0") for w in (0, -1.0, math.nan, math.inf, torch.tensor(0.0))],
    ({"logits": torch.zeros(2, 2, 3), "weight": [1.0, 0.0]}, "a weight is not a number > 0"),
    ({"logits": torch.zeros(2, 2, 3), "weight": [1.0] * 3}, r"the weights have the shape \(3,\), the draws \(2,\)"),
    ({"weight": [1.0, 1.0]}, r"the weights have the shape \(2,\), the draws \(\)"),
    ({"weight": "heavy"}, "the weights are not numbers"),
]


@pytest.mark.parametrize("bad, message", BAD)
def test_a_bad_draw_is_refused_and_leaves_the_stream_as_it_was(bad, message):
    predictive = Predictive()
    predictive.add(normal(2, 3))
    kept = predictive.probabilities
    with pytest.raises(RecipeError, match=f"Predictive, add: {message}"):
        predictive.add(**{"logits": torch.zeros(2, 3), **bad})
    assert predictive.draws == 1 and predictive.state_dict()["weight"] == 1
    assert torch.equal(predictive.probabilities, kept)


@pytest.mark.parametrize("p", [[[0.5, 0.6]], [[1.5, -0.5]], [[0.5, 0.499]], [[0.0, 0.0]]])
@pytest.mark.parametrize("take", [Predictive().add_probabilities, lambda p: accuracy(p, [0])])
def test_what_is_no_distribution_is_refused(p, take):
    with pytest.raises(RecipeError, match="the probabilities of a datum are below 0 or do not sum to 1"):
        take(p)


@pytest.mark.parametrize(
    "bad, message",
    [
        ({"predictions": torch.zeros(4, 1)}, r"the draw has the shape \(4, 1\), those before it \(2, 1\)"),
        ({"predictions": torch.zeros(2)}, r"the predictions have the shape \(2,\)\. Pass \(data, outputs\)"),
        ({"predictions": torch.tensor([[0.0], [math.inf]])}, "the predictions are not finite"),
        ({"noise_variance": -0.1}, "a noise variance is not a number >= 0"),
        ({"noise_variance": [[0.1], [math.nan]]}, "a noise variance is not a number >= 0"),
        ({"noise_variance": math.inf}, "a noise variance is not a number >= 0"),
        (
            {"noise_variance": torch.ones(3, 1)},
            r"the noise variances have the shape \(3, 1\), the predictions \(2, 1\)",
        ),
        ({"weight": 0.0}, "a weight is not a number > 0"),
    ],
)
def test_a_bad_prediction_is_refused_and_leaves_the_moments_as_they_were(bad, message):
    moments = PredictiveMoments()
    moments.add(normal(2, 1), noise_variance=1.0)
    kept = moments.variance
    with pytest.raises(RecipeError, match=f"PredictiveMoments, add: {message}"):
        moments.add(**{"predictions": torch.zeros(2, 1), **bad})
    assert moments.draws == 1 and torch.equal(moments.variance, kept)


def test_the_repr_tells_draws_and_shape():
    predictive = Predictive()
    assert repr(predictive) == "Predictive of 0 draws"
    predictive.add(torch.zeros(5, 4, 3))
    assert repr(predictive) == "Predictive of 5 draws for 4 x 3"
