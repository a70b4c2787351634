"""SWAG: the moments it keeps, the law it samples, what it refuses. Nothing is statistical: the normals are known."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from integrators import noise
from integrators.streams import SWAG_DIAGONAL, SWAG_LOW_RANK
from recipe.errors import RecipeError
from samplers.results.swag import SWAG

F64 = torch.float64


def trajectory(draws=30, shape=(3,), dtype=F64, seed=0, offset=0.0):
    steps = torch.randn(draws, *shape, generator=torch.Generator().manual_seed(seed), dtype=F64)
    return (offset + steps.cumsum(0)).to(dtype)


def deviations(draws, rank):
    """Dev by its definition, (coordinates, K): each draw less the mean of the draws up to it."""
    flat = draws.double().reshape(len(draws), -1)
    means = flat.cumsum(0) / torch.arange(1, len(flat) + 1)[:, None]
    return (flat - means)[-rank:].T


@given(st.integers(2, 40), st.sampled_from([(), (1,), (3,), (2, 2), (0,)]), st.integers(2, 50), st.integers(0, 99))
@settings(deadline=None, max_examples=50)
def test_mean_and_variance_are_the_plain_moments_of_all_draws(draws, shape, rank, seed):
    x = trajectory(draws, shape, seed=seed)
    swag = SWAG.of(x, rank)
    assert swag.count == draws
    torch.testing.assert_close(swag.mean, x.mean(0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(swag.variance, ((x - x.mean(0)) ** 2).mean(0), rtol=1e-12, atol=1e-12)


def test_the_variance_survives_a_mean_far_from_0_and_is_never_negative():
    x = trajectory(100)
    far = SWAG.of(x + 2.0**40).variance  # exact shifts up to rounding of 2^-12
    torch.testing.assert_close(far, x.var(0, correction=0), rtol=1e-3, atol=0)
    assert (SWAG.of(torch.full((100, 3), 0.1, dtype=F64)).variance >= 0).all()


@pytest.mark.parametrize("draws, rank", [(2, 2), (2, 20), (7, 20), (30, 2), (30, 20)])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
def test_samples_are_the_formula_in_their_normals(draws, rank, shape):
    x, sites = trajectory(draws, shape), math.prod(shape)
    dev = deviations(x, rank)
    z1 = noise.normal(5, 0, SWAG_DIAGONAL, 50, (sites,), dtype=F64)
    z2 = noise.normal(5, 0, SWAG_LOW_RANK, 50, (dev.shape[1],), dtype=F64)
    flat = x.reshape(draws, sites)
    sd, K = flat.std(0, correction=0), min(rank, draws)
    expected = flat.mean(0) + sd * z1 / math.sqrt(2) + z2 @ dev.T / math.sqrt(2 * (K - 1))
    got = SWAG.of(x, rank).sample(50, seed=5)
    torch.testing.assert_close(got, expected.reshape(50, *shape), rtol=1e-11, atol=1e-11)


def test_the_covariance_is_half_the_diagonal_plus_half_the_low_rank(monkeypatch):
    """Samples are affine in their normals: with unit vectors for these, they are the columns of a square root."""
    x, rank = trajectory(), 5
    sites, swag = 3, SWAG.of(x, rank)
    basis = torch.eye(sites + rank, dtype=F64)
    monkeypatch.setattr(
        noise, "normal", lambda seed, step, draw, *_, **__: basis.split([sites, rank], 1)[draw == SWAG_LOW_RANK]
    )
    root = swag.sample(sites + rank, seed=0) - swag.mean
    dev = deviations(x, rank)
    expected = torch.diag(x.var(0, correction=0)) / 2 + dev @ dev.T / (2 * (rank - 1))
    torch.testing.assert_close(root.T @ root, expected, rtol=1e-11, atol=1e-11)


def test_equal_seeds_give_equal_samples_and_the_global_generator_is_not_touched():
    swag, before = SWAG.of(trajectory()), torch.get_rng_state()
    assert torch.equal(swag.sample(4, seed=1), swag.sample(4, seed=1))
    assert not torch.equal(swag.sample(4, seed=1), swag.sample(4, seed=2))
    torch.testing.assert_close(swag.sample(4, seed=1), swag.sample(9, seed=1)[:4], rtol=1e-14, atol=1e-14)
    assert torch.equal(torch.get_rng_state(), before)


def test_named_draws_are_one_vector_laid_out_by_name():
    x = trajectory(shape=(7,))
    swag = SWAG(rank=4)
    for i, row in enumerate(x):
        parts = {"weight": row[:6].reshape(2, 3), "bias": row[6]}
        swag.add(parts if i % 2 == 0 else dict(reversed(parts.items())))
    whole = SWAG.of(x, 4)
    for of in (lambda s: s.mean, lambda s: s.variance, lambda s: s.sample(5, 0)):
        named, flat = of(swag), of(whole)
        assert list(named) == ["weight", "bias"] and named["weight"].shape == (*flat.shape[:-1], 2, 3)
        assert torch.equal(torch.cat([named["weight"].flatten(-2), named["bias"][..., None]], -1), flat)


def test_sums_are_in_float64_and_results_in_the_dtype_of_the_draws():
    x = trajectory(1000, dtype=torch.float32, offset=1e4)
    swag = SWAG.of(x)
    assert {t.dtype for t in (swag.mean, swag.variance, swag.sample(2, 0))} == {torch.float32}
    torch.testing.assert_close(swag.mean, x.double().mean(0).float(), rtol=2e-7, atol=0)  # a rounding
    torch.testing.assert_close(swag.variance, x.double().var(0, correction=0).float(), rtol=1e-6, atol=0)
    mixed = SWAG()
    for row in x:
        mixed.add({"a": row[0], "b": row[1:].double()})
    assert {name: t.dtype for name, t in mixed.sample(2, 0).items()} == {"a": torch.float32, "b": F64}


def test_the_fit_shares_no_memory_with_draws_or_results():
    x = trajectory()
    swag, kept = SWAG.of(x), x.mean(0)
    x += 1
    swag.mean.add_(1)
    swag.variance.zero_()
    torch.testing.assert_close(swag.mean, kept, rtol=1e-12, atol=1e-12)
    assert (swag.variance > 0).all()


def test_parameters_of_a_module_can_be_added():
    model, swag = torch.nn.Linear(2, 1), SWAG()
    for _ in range(2):
        swag.add(dict(model.named_parameters()))
    sampled = {name: x[0] for name, x in swag.sample(1, 0).items()}
    at = torch.ones(3, 2)
    torch.testing.assert_close(torch.func.functional_call(model, sampled, at), model(at).detach())  # equal draws


@pytest.mark.parametrize("read", [lambda s: s.mean, lambda s: s.variance, lambda s: s.sample(3, 0)])
@pytest.mark.parametrize("draws", [0, 1])
def test_fewer_than_two_draws_are_no_fit(read, draws):
    with pytest.raises(RecipeError, match=rf"SWAG, \w+: {draws} of at least 2 draws\. Add more draws"):
        read(SWAG.of(torch.ones(draws, 3)))


@pytest.mark.parametrize(
    "theta, message",
    [
        (torch.zeros(4), r"the draw is \(4,\) float32 on cpu, the draws before it \(3,\) float32 on cpu"),
        (torch.zeros(1, 3), r"the draw is \(1, 3\)"),
        (torch.zeros(3, dtype=F64), r"the draw is \(3,\) float64"),
        ({"theta": torch.zeros(3)}, r"the draw is \{'theta': '\(3,\) float32 on cpu'\}"),
        (torch.tensor([0.0, math.nan, 0.0]), "draw 2 is not finite"),
        (torch.tensor([0.0, math.inf, 0.0]), "draw 2 is not finite"),
        (torch.zeros(3, dtype=torch.int64), "a draw is a tensor of real numbers"),
        (torch.zeros(3, dtype=torch.complex64), "a draw is a tensor of real numbers"),
        ([0.0, 0.0, 0.0], "a draw is a tensor of real numbers"),
        ({}, "a draw is a tensor of real numbers"),
    ],
)
def test_a_draw_unlike_the_others_is_refused_and_leaves_the_fit_as_it_was(theta, message):
    swag = SWAG.of(torch.tensor([[0.0, 1.0, 2.0], [2.0, 1.0, 0.0]]))
    before = swag.sample(3, 0)
    with pytest.raises(RecipeError, match=f"SWAG, add: {message}"):
        swag.add(theta)
    assert swag.count == 2 and torch.equal(swag.sample(3, 0), before)


def test_a_first_draw_that_is_refused_does_not_decide_the_shape():
    swag = SWAG()
    with pytest.raises(RecipeError, match="draw 0 is not finite"):
        swag.add(torch.tensor([math.nan]))
    swag.add(torch.zeros(2))
    assert swag.count == 1


@pytest.mark.parametrize("named", [False, True])
def test_a_fit_that_was_saved_goes_on_bit_for_bit(tmp_path, named):
    x = trajectory(20, (2, 3), torch.float32)
    draws = [{"w": draw[0], "b": draw[1].double()} for draw in x] if named else list(x)
    whole, first, second = SWAG(rank=4), SWAG(rank=4), SWAG(rank=4)
    for draw in draws:
        whole.add(draw)
    for draw in draws[:12]:
        first.add(draw)
    torch.save(first.state_dict(), tmp_path / "swag.pt")
    second.load_state_dict(torch.load(tmp_path / "swag.pt", weights_only=True))
    for draw in draws[12:]:
        second.add(draw)
    torch.testing.assert_close(second.sample(3, seed=0), whole.sample(3, seed=0), rtol=0, atol=0)


def test_a_state_of_another_rank_or_of_something_else_is_refused():
    with pytest.raises(RecipeError, match="the state is of rank 3, this of rank 2"):
        SWAG(rank=2).load_state_dict(SWAG(rank=3).state_dict())
    with pytest.raises(RecipeError, match=r"the state has the entries \['draws'\]"):
        SWAG(rank=2).load_state_dict({"draws": 0})


@pytest.mark.parametrize("rank", [0, 1, -3, 2.0, True, None])
def test_a_rank_below_two_is_refused(rank):
    with pytest.raises(RecipeError, match="SWAG: rank is an integer >= 2, got"):
        SWAG(rank)


@pytest.mark.parametrize("number, seed", [(-1, 0), (2.0, 0), (2, None), (2, -1), (2, 0.5)])
def test_a_number_or_seed_that_is_no_natural_number_is_refused(number, seed):
    with pytest.raises(RecipeError):
        SWAG.of(trajectory()).sample(number, seed)


@pytest.mark.parametrize("draws", [torch.tensor(1.0), [1.0, 2.0], None])
def test_draws_without_an_axis_are_refused(draws):
    with pytest.raises(RecipeError, match="SWAG, of: there is no axis of draws"):
        SWAG.of(draws)
