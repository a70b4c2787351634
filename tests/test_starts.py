"""Where chains start: a point or a point per chain, by block, by name, by module, as a list, a law, or spread out."""

import copy

import numpy as np
import pytest
import torch
from error_budget import CLAIMS
from torch.distributions import HalfNormal, Normal

import samplers
from integrators import noise, streams
from recipe import RecipeError
from samplers import SGLD, SGNHT
from samplers.distributed import _part
from samplers.running.points import Starting, points_of
from samplers.target.torch_state import seeded

F64 = torch.float64
TINY = {"steps": 1, "step_size": 1e-30, "progress": False}  # chains stay where they start


def by_name(theta):
    return sum((x**2).sum() for x in theta.values()) / 2


def bowl(theta):
    return (theta**2).sum() / 2


def begun(energy, **settings):
    """Where each chain starts, by name."""
    own = {name: settings.pop(name) for name in ("spread", "per_chain") if name in settings}
    draws = samplers.sample(SGLD, energy, init=samplers.Start(settings.pop("init"), **own), **TINY | settings)
    return {name: torch.where(x.abs() < 1e-9, 0.0, x)[:, 0] for name, x in draws.items()}


def linear(seed):
    torch.manual_seed(seed)
    return torch.nn.Linear(3, 4)


def test_tensors_by_name_with_a_row_per_chain_are_asked_about():
    w = torch.arange(12.0).reshape(4, 3)
    with pytest.raises(RecipeError, match="'w' have as many rows as there are chains, 4.*per_chain=True"):
        begun(by_name, init={"w": w})
    assert torch.equal(begun(by_name, init={"w": w}, per_chain=True)["w"], w)
    assert torch.equal(begun(by_name, init={"w": w}, per_chain=False)["w"], w.expand(4, 4, 3))


def test_points_of_fewer_chains_say_how_many_there_are():
    with pytest.raises(
        RecipeError, match=r"of each of 4 chains.*Pass chains=3, shape \(4, ...\), or Start\(..., per_chain=False"
    ):
        begun(by_name, init={"w": torch.ones(3, 2)}, per_chain=True)


def test_tensors_that_cannot_be_of_all_chains_are_one_point():
    init = {"w": torch.ones(4, 3), "c": torch.zeros(2)}
    assert begun(by_name, init=init)["w"].shape == (4, 4, 3)
    assert begun(by_name, init={"w": torch.ones(4)})["w"].shape == (4, 4)


def test_a_module_is_one_point_unless_it_is_said():
    model = linear(0)
    assert begun(by_name, init=model)["weight"].shape == (4, 4, 3)
    assert begun(by_name, init=dict(model.named_parameters()))["weight"].shape == (4, 4, 3)
    stacked = begun(by_name, init=model, per_chain=True)
    assert torch.equal(stacked["weight"], model.weight)
    assert torch.equal(stacked["bias"], model.bias)


@pytest.mark.parametrize("form", ["modules", "state_dicts"])
def test_an_ensemble_starts_each_chain_at_a_member(form):
    models = [linear(seed) for seed in range(3)]
    starts = begun(by_name, init=models if form == "modules" else [m.state_dict() for m in models], chains=3)
    for name, x in starts.items():
        assert torch.equal(x, torch.stack([m.state_dict()[name] for m in models]))


def test_a_list_of_tensors_is_of_chains_and_one_of_numbers_is_a_point():
    starts = begun(bowl, init=[torch.zeros(2), torch.ones(2)], chains=2)["theta"]
    assert starts.tolist() == [[0.0, 0.0], [1.0, 1.0]]
    assert begun(bowl, init=[0.0, 1.0], chains=2)["theta"].tolist() == [[0.0, 1.0], [0.0, 1.0]]


def test_a_tensor_of_a_block_is_what_per_chain_says():
    x = torch.arange(8.0).reshape(4, 2)
    assert begun(bowl, init=x)["theta"].shape == begun(bowl, init=x, per_chain=True)["theta"].shape == (4, 2)
    assert begun(bowl, init=x, per_chain=False)["theta"].shape == (4, 4, 2)
    assert begun(lambda theta: theta**2 / 2, init=torch.arange(4.0), per_chain=True)["theta"].shape == (4,)


def test_a_scalar_block_beside_a_target_per_chain_may_be_one_number():
    init = {"theta": torch.zeros(4, 2), "xi": torch.tensor(2.0)}
    draws = samplers.sample(SGNHT, bowl, init=samplers.Start(init, per_chain=True), keep="xi", **TINY)
    assert torch.allclose(draws["xi"], torch.tensor(2.0))


def test_starts_are_drawn_from_a_law_by_seed_and_chain():
    prior = Normal(torch.zeros(3), 2.0)
    state = torch.get_rng_state()
    starts = begun(bowl, init=prior, chains=5, seed=3)["theta"]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(begun(bowl, init=prior, chains=5, seed=3)["theta"], starts)
    assert torch.equal(begun(bowl, init=prior, chains=range(3, 5), seed=3)["theta"], starts[3:])
    assert not torch.equal(begun(bowl, init=prior, chains=5, seed=4)["theta"], starts)
    assert len(starts.flatten().unique()) == 15
    many = begun(bowl, init=Normal(torch.zeros(1), 2.0), chains=400, seed=3)["theta"]
    assert len(many.unique()) == 400


def alike(numbers):
    """Two indices of one number."""
    _, index, counts = numbers.unique(return_inverse=True, return_counts=True)
    return (index == counts.argmax()).nonzero()[:2].flatten().tolist()


def of_chain(chain):
    points, _ = points_of(SGLD, Normal(torch.zeros(3), 1.0), Starting(1, "", first_chain=chain))
    return points["theta"]


def of_member(member):
    return samplers.Ensemble(lambda: torch.nn.Linear(3, 1), members=range(member, member + 1)).network.weight.detach()


def test_no_chain_and_no_member_starts_as_another_of_500000():
    """At chains and members that one word of 32 bits would start alike, of which 29 pairs at least are expected."""
    first, second = alike(noise.uniform(0, 0, streams.POINT, 500_000, (), dtype=F64))
    assert not torch.equal(of_chain(first), of_chain(second))
    first, second = alike(noise.integers(0, 0, streams.NETWORK, 500_000, (), high=2**31))
    assert not torch.equal(of_member(first), of_member(second))
    model = samplers.model({"mu": Normal(0.0, 1.0)}, lambda theta: -(theta["mu"] ** 2))
    assert model.starts(1, 5) != model.starts(1, 5 + 2**32)


def test_all_bits_of_a_seed_set_the_mersenne_twister():
    for seed in (0, 7, 2**62 + 5):
        with seeded(seed):
            drawn = torch.rand(1000)
        words = np.random.RandomState([seed % 2**32, seed >> 32]).randint(0, 2**32, 1000, dtype=np.uint32)
        assert np.array_equal(drawn, words % 2**24 / 2**24)


def test_laws_by_name_stand_beside_tensors():
    init = {"w": Normal(torch.zeros(2), 1.0), "tau": HalfNormal(1.0), "c": torch.ones(4)}
    starts = begun(by_name, init=init)
    assert starts["w"].shape == (4, 2)
    assert starts["tau"].shape == (4,)
    assert (starts["tau"] > 0).all()
    assert len(starts["tau"].unique()) == 4
    assert torch.equal(starts["c"], torch.ones(4, 4))


def test_starts_are_spread_out_by_seed_and_chain():
    model = linear(0)
    starts = begun(by_name, init=model, spread=0.5, chains=400)
    sd = (starts["weight"] - model.weight.detach()).std()
    score = float(sd / 0.5 - 1) * (2 * starts["weight"].numel()) ** 0.5
    assert not CLAIMS["starts and relaxation"].failures({"sd": score})
    some = begun(by_name, init=model, spread=0.5, chains=range(7, 8))
    assert torch.equal(some["weight"][0], starts["weight"][7])


def test_tuning_takes_a_point_of_each_chain_for_what_it_is():
    init = torch.zeros(4, 2, dtype=F64)
    draws = samplers.sample(SGLD, bowl, init=init, step_size="auto", metropolis=True, steps=3, progress=False)
    assert draws["theta"].shape == (4, 3, 2)


@pytest.mark.slow
def test_settings_of_named_tensors_are_taken_whatever_their_shapes():
    settings = samplers.tune(SGLD, by_name, init=samplers.Start({"w": torch.zeros(4, 2)}, per_chain=False))
    draws = samplers.sample(SGLD, by_name, steps=2, progress=False, **settings.arguments)
    assert draws["w"].shape == (4, 2, 4, 2)


@pytest.mark.parametrize("per_chain", [None, True, False])
@pytest.mark.parametrize(
    "init",
    [
        {"w": torch.randn(4, 3)},
        {"w": torch.randn(4, 3), "c": torch.zeros(4)},
        torch.randn(4, 3),
        {"theta": torch.randn(4, 3)},
        [torch.randn(3) for _ in range(4)],
        Normal(torch.zeros(3), 1.0),
        {"w": torch.randn(2, 3), "c": torch.zeros(2)},
    ],
    ids=["name", "names", "tensor", "block", "list", "law", "rows as on a rank"],
)
def test_ranks_start_their_chains_where_one_process_does(init, per_chain):
    def points(init, per_chain, chains, first):
        try:
            return points_of(SGLD, init, Starting(chains, "", None, per_chain, 0, first))[0]
        except RecipeError:
            return None

    def of_rank(mine):
        try:
            part = _part(SGLD, samplers.Start(init, per_chain=per_chain), 4, mine, "")
        except RecipeError:
            return None
        return points(part.point, part.per_chain, 2, mine.start)

    whole = points(init, per_chain, 4, 0)
    halves = [of_rank(slice(0, 2)), of_rank(slice(2, 4))]
    if whole is None:
        assert None in halves
    else:
        assert all(torch.equal(torch.cat([half[name] for half in halves]), x) for name, x in whole.items())


@pytest.mark.parametrize(
    "settings, words",
    [
        ({"init": [linear(0), linear(1)]}, "list of 2 starts, and there are 4 chains.*chains=2"),
        (
            {"init": [linear(0), torch.nn.Linear(2, 4)], "chains": 2},
            "start of chain 1 has the tensors.*that of chain 0",
        ),
        ({"init": [torch.zeros(2), torch.tensor([0.0, torch.nan])], "chains": 2}, r"init\[1\].*not finite"),
        ({"init": [torch.zeros(2)] * 4, "per_chain": False}, "one for each chain"),
        ({"init": torch.zeros(3, 2), "per_chain": True}, "each of 4 chains is asked for.*shape .3, 2."),
        ({"init": {"w": torch.zeros(())}, "per_chain": True}, "each of 4 chains"),
        ({"init": torch.zeros(2), "per_chain": "yes"}, "per_chain is True or False"),
        ({"init": torch.zeros(2), "spread": -1.0}, "spread is a number >= 0"),
        ({"init": [copy.deepcopy(linear(0)).requires_grad_(False)] * 4}, "requires_grad=False"),
        ({"init": Normal(0.0, 1.0).expand([2]), "spread": float("nan")}, "spread"),
    ],
)
def test_wrong_starts_are_refused(settings, words):
    with pytest.raises(RecipeError, match=words):
        begun(by_name, **settings)


def test_models_that_are_stacked_for_other_chains_are_recognised_where_the_energy_fails():
    network = linear(0)
    stacked, _ = torch.func.stack_module_state([linear(seed) for seed in range(3)])

    def energy(theta):
        return torch.func.functional_call(network, theta, torch.ones(5, 3)).square().sum()

    with pytest.raises(RecipeError, match="fails at the start.*all begin with 3 rows.*chains=3 and per_chain=True"):
        begun(energy, init=stacked)
    assert begun(energy, init=stacked, per_chain=True, chains=3)["weight"].shape[0] == 3
