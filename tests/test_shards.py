"""Parameters that are sharded over 2 and 4 ranks move as those of one process do, and are saved for any number."""

import re
from functools import cache

import pytest
import shards
import torch
from forked import on_ranks

from samplers.files import storage

pytestmark = pytest.mark.stated_seed  # of processes, which no shift reaches

ROUNDING = 1e-9  # of weights of size 1 in float64, over 100 steps at most; 1e-6 is promised


def launched(folder, ranks, what="quick"):
    """What each of so many ranks has found, and said."""
    on_ranks(ranks, shards.main, folder, what)
    return [storage.read(folder / f"{what}-{ranks}-{r}.safetensors", "found") for r in range(ranks)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("shards")


@pytest.fixture(scope="module")
def two(folder):
    for name in shards.LOOPS:  # what is compiled here no rank compiles
        alone(name)
    return launched(folder, 2)


@pytest.fixture(scope="module")
def four(folder, two):
    """They go on from what the two have saved."""
    return launched(folder, 4)


@cache
def alone(name, **how):
    params = [torch.nn.Parameter(w) for w in shards.weights()]
    return params, shards.walked(name, params, **how)


def assert_same(outcome, name, expected):
    for found, _ in outcome:
        assert (found[name] - expected).abs().max() < ROUNDING


@pytest.mark.parametrize("name", [name for name in shards.LOOPS if name != "santa"])
def test_two_ranks_move_as_one(name, two):
    assert_same(two, name, shards.whole(alone(name)[0]))


def test_sums_of_a_step_in_torch_text_are_over_all_ranks(two):
    assert_same(two, "santa when saved", shards.whole(alone("santa", steps=shards.SAVED)[0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows", "copies", "columns of rows"])
def test_four_ranks_move_as_one_however_tensors_lie(name, four):
    """Some ranks have nothing of the smallest tensors; columns of rows lie over a mesh of two axes."""
    assert_same(four, name, shards.whole(alone("sgnht")[0]))


@pytest.mark.parametrize("name", ["columns", "copies"])
def test_columns_have_the_numbers_of_their_sites_and_copies_are_counted_once(name, two):
    assert_same(two, name, shards.whole(alone("sgnht")[0]))


def test_weights_of_half_precision_are_moved_as_copies_on_every_rank(two):
    half = [torch.nn.Parameter(w.bfloat16()) for w in shards.weights()]
    optimizer = shards.made("sghmc", half)
    for _ in range(20):
        for p in half:
            p.grad = p.detach().clone()
        optimizer.step()
    assert_same(two, "half", shards.whole(half))


def test_ranks_talk_only_where_the_recipe_has_totals_and_then_once_for_each(two):
    for _, account in two:
        said = account["said"]
        assert [said[f"messages, {name}"] for name in ("sghmc", "sgld", "msgnht", "psgld")] == ["[]"] * 4
        assert said["messages, sgnht"] == str([1] * 2 * 9)  # xi moves before O and after it


def test_temperatures_and_the_report_are_of_all_ranks(two):
    _, optimizer = alone("sgnht")
    temperatures = [t.value for t in optimizer.kinetic_temperatures().values()]
    assert_same(two, "temperatures", torch.tensor(temperatures, dtype=torch.float64))
    (late,) = optimizer._monitors.of(0).late(1)
    for name, series in late.items():
        if name != "noise":
            assert_same(two, f"late {name}", series)
    for _, account in two:
        assert account["said"]["report"] == str(optimizer.report().ok)
        assert "Relaxation in steps" in account["said"]["print"]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_a_network_goes_on_on_no_ranks_from_what_two_have_saved(folder, two):
    here = shards.loaded(shards.network(), 0, 1, folder / "saved")
    assert_same(two, "goes on", here)
    net = shards.network()
    shards.trained(net, "psgld", steps=24)
    assert (shards.whole(net.parameters()) - here).abs().max() < ROUNDING


@pytest.mark.slow
def test_a_network_goes_on_on_four_ranks_from_what_two_have_saved(four):
    net = shards.network()
    shards.trained(net, "psgld", steps=24)
    assert_same(four, "goes on", shards.whole(net.parameters()))


def test_gradients_that_ddp_accumulates_make_the_weights_of_one_process(two):
    net = shards.network()
    shards.accumulated(net)
    assert_same(two, "accumulated", shards.whole(net.parameters()))


@pytest.mark.parametrize(
    "what, message",
    {
        "lr": "ranks differ in lr: here lr = ",
        "seed": "ranks differ in seed: here seed = ",
        "recipe": "ranks differ in momentum, recipe, scheme, parameters: here momentum = ",
        "partial": "it is a sum over ranks that is pending, Partial. Redistribute it",
        "value": "contour, Optimizer, sharded parameters: its formulas read U itself, and each rank has",
        "mixed": "parameter 4 is no DTensor, the first on .* Give the parameters of each mesh a group of their own",
    }.items(),
)
def test_what_no_sharded_loop_can_be_made_with_is_refused_on_every_rank(what, message, two):
    for _, account in two:
        assert re.search(message, account["said"][what]), account["said"][what]


def test_a_checkpoint_of_one_process_says_what_saves_sharded_parameters(two):
    assert "torch.distributed.checkpoint" in two[0][1]["said"]["checkpoint"]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_fully_sharded_networks_move_as_one_over_100_steps(ranks, tmp_path):
    outcome = launched(tmp_path, ranks, "long")
    for name in shards.NETWORKS:
        net = shards.network()
        shards.trained(net, name)
        assert_same(outcome, name, shards.whole(net.parameters()))


@pytest.mark.slow
def test_ranks_that_are_killed_under_torchrun_go_on_from_the_last_checkpoint(tmp_path):
    """Bit for bit; that other ranks go on from what two have saved is asked above."""
    import shard_kills

    died, at = shard_kills.compared(tmp_path, kills=2, steps=120, seed=1)
    assert died == 2 and at == sorted(set(at))
