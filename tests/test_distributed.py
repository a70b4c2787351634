"""Two ranks: the draws of one process bit for bit, the weights of one process to rounding."""

import json
import shutil

import pytest
import ranks
import torch
from forked import on_ranks

from recipe import RecipeError
from samplers.files import storage

pytestmark = pytest.mark.stated_seed  # of processes, which no shift reaches


def launched(folder, processes):
    """What each of so many ranks has found."""
    on_ranks(processes, ranks.main, folder)
    return [storage.read(folder / f"rank-{r}.safetensors", "found") for r in range(processes)]


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    return launched(tmp_path_factory.mktemp("two"), 2)


@pytest.mark.parametrize("name", ranks.RUNS)
def test_chains_on_two_ranks_are_those_of_one_process_bit_for_bit(name, outcome):
    whole = ranks.drawn(name)
    for values, account in outcome:
        assert account["account"]["ranks"] == "2"
        assert all(torch.equal(values[f"{name}.{block}"], x) for block, x in whole.items())


def test_lost_chains_bear_the_numbers_they_have_in_one_process(outcome):
    whole = ranks.drawn("lost").diverged
    assert whole and [account["account"]["diverged"] for _, account in outcome] == [str(whole)] * 2


def test_acceptance_swaps_and_averages_are_those_of_all_chains(outcome):
    info = ranks.drawn("accepted").info
    (_, first), (_, second) = outcome
    for account in (first["account"], second["account"]):
        assert json.loads(account["acceptance"]) == info["acceptance"] and len(info["acceptance"]) == 5
        assert json.loads(account["swaps"]) == pytest.approx(info["swaps"])
        assert json.loads(account["divergences"]) == info["divergences"]
        assert json.loads(account["e_bfmi"]) == pytest.approx(info["e_bfmi"]) and len(info["e_bfmi"]) == 5
        kinetic = json.loads(account["averages"])["kinetic_temperature"]["p"]
        assert kinetic["value"] == pytest.approx(info["averages"]["kinetic_temperature"]["p"]["value"])


def test_shared_gradients_make_the_weights_of_one_process_on_every_rank(outcome):
    (one, _), (other, _) = outcome
    assert torch.equal(one["weights"], other["weights"])
    assert (one["weights"] - ranks.trained(0, 1)).abs().max() < 1e-12


def test_a_shared_loop_goes_on_from_what_rank_0_has_saved(outcome):
    assert all(torch.equal(values["weights in two parts"], values["weights"]) for values, _ in outcome)


def test_a_run_in_folders_goes_on_on_the_same_ranks(outcome):
    for values, _ in outcome:
        assert torch.equal(values["kept"], values["torch.theta"]) and torch.equal(values["kept"], values["kept again"])


def test_members_of_an_ensemble_over_the_ranks_are_those_of_one_process(outcome):
    whole = ranks.ensemble_of(3).detach()
    assert all((values["members"] - whole).abs().max() < 1e-12 for values, _ in outcome)
    assert all(torch.equal(values["members in two parts"], values["members"]) for values, _ in outcome)


def test_errors_reach_every_rank(outcome):
    (_, first), (_, second) = outcome
    assert all("1 chains for 2 ranks" in account["account"]["few"] for account in (first, second))
    assert "step size is a positive number" in first["account"]["one fails"]
    assert "rank 0 failed" in second["account"]["one fails"] and "step size" in second["account"]["one fails"]


def test_the_folder_of_a_rank_that_is_missing_is_named(tmp_path):
    (tmp_path / "rank-0-of-2").mkdir()
    with pytest.raises(RecipeError, match="rank-0-of-1 is missing or of another number of ranks"):
        ranks.drawn("torch", checkpoint=tmp_path)


def test_a_rank_that_is_killed_is_caught_up_with(tmp_path, outcome):
    """One rank's folder is some steps behind: a start of all goes on from where each was."""
    values, _ = outcome[0]
    ranks.drawn("torch", checkpoint=tmp_path)
    shutil.rmtree(tmp_path / "rank-0-of-1")
    (tmp_path / "rank-0-of-1").mkdir()
    assert torch.equal(ranks.drawn("torch", checkpoint=tmp_path)["theta"], values["torch.theta"])
