"""Noise is a pure function of (seed, step, draw, chain, site): its layout, its laws, its errors.

The statistical tests have fixed seeds and one level, ALPHA, for each comparison.
"""

import math
import random

import pytest
import torch
from scipy import stats

from integrators import noise
from integrators import philox as rounds
from integrators.noise import KINDS, integers, normal, uniform
from integrators.philox import philox
from recipe.errors import RecipeError

ALPHA = 1e-8
Z = 5.73  # P(|N(0, 1)| > Z) = ALPHA
FLOATS = "Use torch.float32 or torch.float64."
F32, F64 = torch.float32, torch.float64


def same_bits(a, b):
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a, b)


def reference_philox(counter, key):
    """Philox4x32-10 in Python integers."""
    (a, b, c, d), (k0, k1) = counter, key
    for r in range(10):
        high_c, low_c = divmod(0xCD9E8D57 * c, 2**32)
        high_a, low_a = divmod(0xD2511F53 * a, 2**32)
        a = high_c ^ b ^ (k0 + r * 0x9E3779B9) % 2**32
        c = high_a ^ d ^ (k1 + r * 0xBB67AE85) % 2**32
        b, d = low_c, low_a
    return a, b, c, d


def reference_word(seed, step, draw, chain, site, sites=6):
    """The word of a site of a draw of so many sites; of one or two, four or two steps share a block."""
    block, word = divmod(site, 4)
    if sites < 3:
        block, word = 2**48 - sites, site + step % (4 // sites) * sites
        step //= 4 // sites
    counter = block % 2**32, block // 2**32 + draw * 2**16, chain, step % 2**32
    return reference_philox(counter, (seed % 2**32, seed // 2**32 ^ step // 2**32))[word]


def words(*args, **options):
    """The Philox words behind a draw: u = (x + 1/2) 2^-32 is exact in float64."""
    return (uniform(*args, dtype=F64, **options) * 2**32 - 0.5).long()


@pytest.mark.parametrize(
    "counter, key, expected",
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)
def test_philox_gives_the_known_answers_of_random123(counter, key, expected):
    counter, key, expected = ([int(w, 16) for w in text.split()] for text in (counter, key, expected))
    assert [int(word) for word in philox([torch.tensor(c) for c in counter], key)] == expected
    assert list(reference_philox(counter, key)) == expected


@pytest.mark.parametrize("grain", [0, rounds.GRAIN])
def test_philox_equals_integer_arithmetic_on_random_counters_and_keys(grain, monkeypatch):
    """By operations of torch and of numpy."""
    monkeypatch.setattr(rounds, "GRAIN", grain)
    pick = random.Random(0)
    blocks = [[pick.getrandbits(32) for _ in range(6)] for _ in range(200)]
    *counter, k0, k1 = torch.tensor(blocks).T
    expected = [reference_philox(block[:4], block[4:]) for block in blocks]
    assert torch.stack(philox(counter, (k0, k1)), 1).tolist() == [list(block) for block in expected]


def test_philox_broadcasts_its_counter_and_leaves_it_as_it_was():
    counter = torch.arange(3), torch.tensor(5), torch.arange(2).view(2, 1), torch.tensor(7)
    before = [word.clone() for word in counter]
    result = philox(counter, (1, 2))
    assert [tuple(word.shape) for word in result] == [(2, 3)] * 4
    assert [int(word[1, 2]) for word in result] == list(reference_philox((2, 5, 1, 7), (1, 2)))
    assert all(map(torch.equal, counter, before))


@pytest.mark.stated_seed
def test_each_word_is_philox_of_seed_step_draw_chain_and_site():
    pick = random.Random(1)
    for _ in range(30):
        seed, step = pick.getrandbits(64), pick.getrandbits(pick.choice([8, 32, 63]))
        draw, first = pick.getrandbits(16), pick.getrandbits(31)
        expected = [
            [reference_word(seed, step, draw, chain, site) for site in range(6)] for chain in range(first, first + 3)
        ]
        assert words(seed, step, draw, 3, (2, 3), first_chain=first).flatten(1).tolist() == expected


@pytest.mark.stated_seed
def test_the_extreme_arguments_are_words_too():
    seed, step, draw, chain = 2**64 - 1, 2**63 - 1, 2**16 - 1, 2**32 - 1
    word = words(seed, step, draw, 1, (), first_chain=chain)
    assert word.tolist() == [reference_word(seed, step, draw, chain, 0, sites=1)]


def test_each_pair_of_sites_is_the_box_muller_transform_of_its_two_uniforms():
    args = 3, range(5), 2, 4, (10,)
    even, odd = uniform(*args, dtype=F64).unflatten(-1, (5, 2)).unbind(-1)
    pairs = torch.polar((-2 * even.log()).sqrt(), 2 * math.pi * odd)
    torch.testing.assert_close(normal(*args, dtype=F64), torch.view_as_real(pairs).flatten(-2))


def test_only_the_flattened_index_of_a_site_matters():
    flat = normal(3, 4, 5, 2, (30,), dtype=F64)
    assert same_bits(normal(3, 4, 5, 2, (6, 5), dtype=F64).flatten(1), flat)
    assert same_bits(normal(3, 4, 5, 2, (2, 3, 5), dtype=F64).flatten(1), flat)
    for sites in range(3, 30):
        assert same_bits(normal(3, 4, 5, 2, (sites,), dtype=F64), flat[:, :sites].contiguous())
    assert same_bits(normal(3, 4, 5, 2, (), dtype=F64), normal(3, 4, 5, 2, (1,), dtype=F64)[:, 0])


@pytest.mark.stated_seed
@pytest.mark.parametrize("sites", [1, 2])
def test_steps_share_the_blocks_of_draws_of_one_or_two_sites(sites):
    pick = random.Random(2)
    for step in (0, 5, 2**32 - 3, 2**63 - 9):
        seed, draw, chain = pick.getrandbits(64), pick.getrandbits(16), pick.getrandbits(31)
        steps = range(step, step + 7)
        expected = [[reference_word(seed, k, draw, chain, site, sites) for site in range(sites)] for k in steps]
        assert words(seed, steps, draw, 1, (sites,), first_chain=chain)[:, 0].tolist() == expected
        assert words(seed, steps[2], draw, 1, (sites,), first_chain=chain)[0].tolist() == expected[2]
    x = normal(3, range(8), 5, 2, (sites,), dtype=F64)
    u = uniform(3, range(8), 5, 2, (sites,), dtype=F64).transpose(0, 1).reshape(2, 2 * sites, 2, 2)
    pairs = torch.polar((-2 * u[..., 0].log()).sqrt(), 2 * math.pi * u[..., 1])
    torch.testing.assert_close(x.transpose(0, 1).reshape(2, 2 * sites, 2, 2), torch.view_as_real(pairs))


@pytest.mark.parametrize("sites", [1, 2])
def test_many_steps_compute_each_block_that_they_share_once(monkeypatch, sites):
    counters = []

    def counted(counter, key):
        counters.append(torch.broadcast_tensors(*counter)[0].numel())
        return philox(counter, key)

    monkeypatch.setattr(noise, "philox", counted)
    assert noise.normal(7, range(8), 0, 5, (sites,), dtype=F32).shape == (8, 5, sites)
    assert noise.normal(7, range(0), 0, 5, (sites,), dtype=F32).shape == (0, 5, sites)
    assert counters == [8 * sites // 4 * 5, 0]


def test_draws_of_other_numbers_of_sites_share_no_word():
    drawn = [words(3, range(16), 5, 2, (sites,)).flatten().tolist() for sites in (1, 2, 40)]
    assert len({word for row in drawn for word in row}) == sum(map(len, drawn))


def test_a_draw_is_contiguous_and_has_the_axes_steps_chains_shape():
    for shape in [(), (0,), (5,), (2, 0, 3), (2, 3)]:
        for draw in (*KINDS.values(), integers):
            options = {"high": 9} if draw is integers else {"dtype": F32}
            for step, axes in [(3, ()), (range(3), (3,)), (range(3, 3), (0,))]:
                for chains in (0, 1, 2):
                    drawn = draw(1, step, 0, chains, shape, **options)
                    assert drawn.shape == (*axes, chains, *shape) and drawn.is_contiguous()


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(), (3,), (31,), (257,)])
@pytest.mark.parametrize("steps", [range(7), range(9, 1, -3), range(2**32 - 2, 2**32 + 2)])
def test_a_range_of_steps_equals_single_steps_bit_for_bit(kind, dtype, shape, steps):
    draw = KINDS[kind]
    together = draw(11, steps, 2, 5, shape, dtype=dtype)
    assert same_bits(together, torch.stack([draw(11, step, 2, 5, shape, dtype=dtype) for step in steps]))


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("kind", KINDS)
def test_some_of_the_chains_equal_the_slice_of_all_bit_for_bit(kind, dtype):
    draw = KINDS[kind]
    for shape in [(), (3,), (31,), (4099,)]:
        every = draw(11, 6, 2, 9, shape, dtype=dtype)
        for first, last in [(0, 1), (0, 9), (2, 3), (5, 9)]:
            some = draw(11, 6, 2, last - first, shape, dtype=dtype, first_chain=first)
            assert same_bits(some, every[first:last])


def test_integers_are_the_high_part_of_word_times_high():
    for high in (1, 2, 1000, 2**31):
        drawn = integers(5, range(3), 2**16 - 2, 2, (50,), high=high, first_chain=1)
        assert drawn.dtype == torch.int64
        assert same_bits(drawn, words(5, range(3), 2**16 - 2, 2, (50,), first_chain=1) * high // 2**32)
        assert 0 <= drawn.min() and drawn.max() < high


def test_another_seed_step_draw_or_chain_gives_other_words():
    base = dict(seed=0, step=0, draw=0, first_chain=0)
    others = [
        *(dict(base, seed=seed) for seed in (1, 2**31, 2**32, 2**63)),
        *(dict(base, step=step) for step in (1, 2**31, 2**32 + 1, 2**33, 2**62)),
        *(dict(base, draw=draw) for draw in (1, 2**15, 2**16 - 2, 2**16 - 1)),
        *(dict(base, first_chain=chain) for chain in (1, 2**31, 2**32 - 1)),
    ]
    drawn = [tuple(words(chains=1, shape=(64,), **case).flatten().tolist()) for case in (base, *others)]
    assert len({word for row in drawn for word in row}) == 64 * len(drawn)


def kolmogorov_distance(sample, cdf):
    p = cdf(sample.flatten().double().sort().values)
    rank = torch.arange(len(p) + 1) / len(p)
    return max((rank[1:] - p).max(), (p - rank[:-1]).max())


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("kind, cdf", [("normal", torch.special.ndtr), ("uniform", lambda u: u)])
def test_the_distribution_is_within_the_kolmogorov_smirnov_bound(kind, cdf, dtype):
    sample = KINDS[kind](2024, range(8), 0, 32, (256,), dtype=dtype)
    # Dvoretzky-Kiefer-Wolfowitz-Massart: P(distance > bound) <= ALPHA at every sample size.
    assert kolmogorov_distance(sample, cdf) < math.sqrt(math.log(2 / ALPHA) / (2 * sample.numel()))


def uncorrelated(x, y):
    """Neither two standard normal samples nor their squares correlate, at level ALPHA each."""
    pairs = (x, y), ((x**2 - 1) / math.sqrt(2), (y**2 - 1) / math.sqrt(2))
    return all(abs((a * b).mean()) < Z / math.sqrt(a.numel()) for a, b in pairs)


@pytest.mark.parametrize("axis", [0, 1, 2], ids=["steps", "chains", "sites"])
def test_neighbours_are_uncorrelated(axis):
    x = normal(9, range(32), 0, 32, (64,), dtype=F64)
    for lag in (1, 2, 3, 4):
        overlap = x.shape[axis] - lag
        assert uncorrelated(x.narrow(axis, 0, overlap), x.narrow(axis, lag, overlap))


def test_float32_agrees_with_float64():
    args = 13, range(2), 0, 64, (1024,)
    error = (normal(*args, dtype=F32).double() - normal(*args, dtype=F64)).abs()
    even = uniform(*args, dtype=F64)[..., 0::2].repeat_interleave(2, -1)
    # r = sqrt(-2 ln u) turns an error of 2^-25 in u into 2^-25 / r: 2^-17.5 at u = 1 - 2^-16, 2^-12 at most.
    assert error[even < 1 - 2**-16].max() < 1e-5
    assert error.max() < 3e-4
    assert (uniform(*args, dtype=F32).double() - uniform(*args, dtype=F64)).abs().max() <= 2**-24


@pytest.mark.parametrize("dtype", [F32, F64])
@pytest.mark.parametrize("word", [0, 2**32 - 1])
def test_the_least_and_the_largest_word_give_open_uniforms_and_finite_normals(monkeypatch, word, dtype):
    monkeypatch.setattr(noise, "philox", lambda counter, key: (torch.full((1, 1, 1), word),) * 4)
    u = uniform(0, 0, 0, 1, (4,), dtype=dtype)
    assert (0 < u).all() and (u < 1).all()
    assert normal(0, 0, 0, 1, (4,), dtype=dtype).isfinite().all()


@pytest.mark.stated_seed
@pytest.mark.parametrize("device", ["cpu"] + ["cuda"] * torch.cuda.is_available())
def test_every_device_draws_the_reference_words(device):
    steps, chains = range(2**32 - 1, 2**32 + 1), 2
    expected = [
        [[reference_word(13, step, 3, chain, site) for site in range(6)] for chain in range(chains)] for step in steps
    ]
    assert words(13, steps, 3, chains, (6,), device=device).tolist() == expected
    on_cpu = normal(13, steps, 3, chains, (6,), dtype=F64)
    torch.testing.assert_close(normal(13, steps, 3, chains, (6,), dtype=F64, device=device).cpu(), on_cpu)


def test_the_global_generator_is_neither_read_nor_moved():
    def drawn():
        args = 1, 0, 0, 2, (5,)
        return normal(*args, dtype=F32), uniform(*args, dtype=F32), integers(*args, high=9)

    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = drawn()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    assert all(map(same_bits, first, drawn()))


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(seed=None), "noise, seed: no seed is given. Give a seed: the global generator is never used."),
        (dict(seed=1.0), f"noise, seed: 1.0 is not an int in [0, {2**64})."),
        (dict(seed=-1), f"noise, seed: -1 is not an int in [0, {2**64})."),
        (dict(seed=2**64), f"noise, seed: {2**64} is not an int in [0, {2**64})."),
        (dict(step=-1), f"noise, step: -1 is not an int in [0, {2**63})."),
        (dict(step=None), f"noise, step: None is not an int in [0, {2**63})."),
        (dict(step=2**63), f"noise, step: {2**63} is not an int in [0, {2**63})."),
        (dict(step=range(-2, 3)), f"noise, step: -2 is not an int in [0, {2**63})."),
        (dict(step=range(3, -2, -1)), f"noise, step: -1 is not an int in [0, {2**63})."),
        (dict(draw=2**16), "noise, draw: 65536 is not an int in [0, 65536)."),
        (dict(draw=-1), "noise, draw: -1 is not an int in [0, 65536)."),
        (dict(chains=-1), f"noise, chains: -1 is not an int in [0, {2**32 + 1})."),
        (dict(first_chain=2**32), f"noise, first_chain: {2**32} is not an int in [0, {2**32})."),
        (dict(dtype=torch.float16), "noise, dtype: torch.float16 is not supported. " + FLOATS),
        (dict(dtype=torch.int64), "noise, dtype: torch.int64 is not supported. " + FLOATS),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_argument_is_named(kind, wrong, message):
    with pytest.raises(RecipeError) as raised:
        KINDS[kind](**dict(dict(seed=0, step=0, draw=0, chains=1, shape=(2,), dtype=F32), **wrong))
    assert str(raised.value) == message


@pytest.mark.parametrize("high", [0, 2**31 + 1, 2.0, None])
def test_integers_need_a_high_that_fits(high):
    with pytest.raises(RecipeError) as raised:
        integers(0, 0, 0, 1, (2,), high=high)
    assert str(raised.value) == f"noise, high: {high!r} is not an int in [1, {2**31 + 1})."


# ---- numbers whose law depends on the state


@pytest.mark.parametrize(
    "kind, parameter",
    [
        *(("gamma", a) for a in (0.05, 0.7, 1.0, 3.5, 400.0)),
        *(("poisson", r) for r in (0.02, 2.5, 9.99, 10.0, 33.0, 2e6)),
    ],
)
def test_numbers_of_the_state_have_their_law(kind, parameter):
    """The distribution function at each number drawn, within the bound of Dvoretzky, Kiefer and Wolfowitz."""
    x = noise.STATE_DEPENDENT[kind](5, 1, 0, 200, (100,), dtype=F64)(parameter).flatten().sort().values
    at, index = x.unique(return_inverse=True)
    up_to = torch.bincount(index).cumsum(0) / len(x)
    law = {"gamma": stats.gamma, "poisson": stats.poisson}[kind](parameter)
    bound = math.sqrt(math.log(2 / ALPHA) / (2 * len(x)))
    assert float((up_to - torch.as_tensor(law.cdf(at.numpy()))).abs().max()) < bound


@pytest.mark.parametrize("kind, parameters", [("gamma", (0.3, 2.0, 50.0)), ("poisson", (0.4, 12.0, 900.0))])
def test_numbers_of_the_state_are_a_function_of_step_chain_and_site(kind, parameters):
    """Whatever is drawn beside them, and at steps whose torch generators had one seed of 32 bits."""
    parameter = torch.tensor(parameters, dtype=F64)
    draw = noise.STATE_DEPENDENT[kind]
    whole = draw(3, 118935, 0, 4, (3,), dtype=F64)(parameter)
    assert torch.equal(whole[2:], draw(3, 118935, 0, 2, (3,), dtype=F64, first_chain=2)(parameter))
    assert torch.equal(whole[:, 1], draw(3, 118935, 0, 4, (3,), dtype=F64)(parameter[1])[:, 1])
    others = [draw(3, 179149, 0, 4, (3,), dtype=F64), draw(4, 118935, 0, 4, (3,), dtype=F64)]
    assert all(not torch.equal(whole, other(parameter)) for other in others)


def test_numbers_of_no_law_are_nan_and_end():
    bad = torch.tensor([float("nan"), float("inf"), -1.0], dtype=F64)
    for draw in noise.STATE_DEPENDENT.values():
        assert draw(3, 0, 0, 1, (3,), dtype=F64)(bad).isnan().all()
