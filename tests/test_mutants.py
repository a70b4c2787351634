"""Mutants of any recipe and word, and the layers that kill them."""

import json
import re
from dataclasses import replace
from functools import cache

import pytest
from covering import slow
from mutation import DETERMINISTIC, altered, mutants, wrong_recipes, wrong_texts
from scorecard import alarms, is_equivalent, main
from unsound import KINDS, sound_recipes, unsound_recipes

from samplers import SGNHT, UnderdampedLangevin
from samplers.testing.cases import CASES
from samplers.testing.layers import LAYERS
from samplers.testing.subject import subject_of


@pytest.mark.parametrize(
    "name",
    [
        "sgld",
        "underdamped-langevin",
        *map(slow, ("hmc-randomised", "sgld-sa-gibbs", "psgld-gamma", "sgrld", "sgnht", "santa")),
    ],
)
def test_every_mutant_is_killed_or_computes_the_same_numbers(name):
    """By a deterministic layer, nine times in ten at least."""
    killers = [(mutant.killed_by()[0], mutant) for mutant in mutants(subject_of(CASES[name].recipe))]
    assert len(killers) > 10
    alive = [mutant for layer, mutant in killers if layer is None]
    assert not [mutant.mistake for mutant in alive if not is_equivalent(mutant)]
    assert sum(layer in DETERMINISTIC for layer, _ in killers) >= 0.9 * (len(killers) - len(alive))


@cache
def mutants_of_langevin():
    return list(mutants(replace(subject_of(UnderdampedLangevin), chains=4000)))


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer != "work"])
def test_every_layer_kills_by_itself(layer):
    """More than a third of the mutants of Langevin dynamics; the layers of its formulas all of those of its SDE.

    The layer of the work is of another step, whose mutants are in `test_work.py`.
    """
    everything = mutants_of_langevin()
    of_the_sde = [mutant for mutant in everything if mutant.subject.wrong is not None]
    killed = [mutant for mutant in everything if mutant.killing_time(layer) is not None]
    if layer in ("symbolic", "generator"):
        assert killed == of_the_sde
    else:
        share = f"{layer} kills {len(killed)} of {len(everything)} mutants"
        assert len(killed) > len(everything) / 3, f"{share}: a layer has to kill a third"


def test_mistakes_in_the_sde_are_those_that_people_make():
    mistakes = [mistake for mistake, _ in wrong_recipes(SGNHT)]
    assert {
        "Gamma[xi] dropped",
        "Gamma[xi] not scaled by T",
        "Q[p, xi] of the wrong sign in the drift of p",
        "the drift D grad H of p doubled",
        "noise sqrt(4 D) for sqrt(2 D)",
    } <= set(mistakes)
    assert "the thermostat xi without the mass" in [mistake for mistake, _ in wrong_recipes(CASES["atmc"].recipe)]


@pytest.mark.slow
def test_a_mistake_in_the_sde_leaves_the_text_what_its_formulas_say():
    """So that the differential layer is silent, and the formulas and the law are not."""
    for mutant in mutants(subject_of(SGNHT)):
        if mutant.subject.wrong is not None:
            assert all(r.ok for r in LAYERS["differential"](mutant.subject)), mutant.mistake
            assert mutant.killed_by()[0] in ("symbolic", "generator"), mutant.mistake


def test_a_mistake_in_the_text_changes_one_line():
    step = subject_of(UnderdampedLangevin).live
    changes = list(wrong_texts(step))
    for mistake, change in changes:
        pairs = zip(step.source.split("\n"), altered(step, change).source.split("\n"), strict=True)
        assert sum(old != new for old, new in pairs) == 1, mistake
    kinds = {re.match("[^:]*", mistake)[0] for mistake, _ in changes}
    assert {"e^+ for e^-", "a whole step for half a step", "noise shared by the chains", "a motion left out"} <= kinds


def test_right_samplers_pass_however_they_are_seeded():
    for seed in range(1, 9):
        assert all(ok for _, ok, _ in alarms(seed, ("sgld", "hmc-randomised", "sgnht", "psgld")))


@pytest.mark.slow
def test_the_scorecard_is_a_table_and_data(tmp_path, capsys):
    main(["--out", str(tmp_path), "--runs", "4", "--processes", "1", "sgld"])
    text = (tmp_path / "scorecard.md").read_text()
    assert text in capsys.readouterr().out
    assert "100.00% of the others are killed" in text and "| sgld | 22 | 21 |" in text
    assert "| properness | 1 | 1 | 1 | 0 |" in text and "| reach | 3 | 3 | 3 | 0 |" in text
    data = json.loads((tmp_path / "scorecard.json").read_text())
    assert (
        len(data["mutants"]) == 22
        and data["refusals"] == {"right recipes": 3, "refused": []}
        and data["alarms"]["false alarms"] == 0
    )


# ---- recipes without the law that they promise


@cache
def unsound_of(name):
    return tuple(unsound_recipes(CASES[name].recipe))


@pytest.mark.parametrize(
    "name",
    ["sgld", "sgrld-cir", *map(slow, ("hmc-randomised", "sgld-sa-gibbs", "sgrld-dense", "sgnht", "psgld-gamma"))],
)
def test_every_unsound_recipe_is_seen_by_the_certificate(name):
    """And the right one, and right ones made of it in the same ways, by none of its questions."""
    recipe = CASES[name].recipe
    assert recipe.check().exact
    for one in sound_recipes(recipe):
        assert one.certificate.exact and not one.is_seen, one.mistake
    for one in unsound_of(name):
        assert one.killing_time("symbolic") is not None, f"{one.kind}: {one.mistake}"
        assert one.killing_time("generator") is None


def test_the_kinds_of_unsound_recipes_fail_by_the_questions_that_are_for_them():
    """And not before: a law of temperature 1 is right there, and what is held still is right while it moves."""
    topics = {"properness": "normalisable", "boundary": "boundary", "reach": "reached", "temperature": "marginal"}
    topics |= {"frozen blocks": "stationary", "jump": "smooth", "tail": "normalisable"}
    seen = set()
    for one in (*unsound_of("hmc-randomised"), *unsound_of("sgld")):
        certificate = one.certificate
        if certificate is None:  # refused when it is declared
            assert one.kind in ("properness", "curl")
            seen.add(one.kind)
            continue
        if one.kind == "range":
            assert certificate["claim"].answer.endswith(" on the range of the map theta = tanh(z)")
            seen.add(one.kind)
            continue
        assert certificate[topics[one.kind]].verdict in ("failed", "warning"), one.mistake
        if one.kind == "temperature":
            assert one.certificate_at(1.0)["marginal"].verdict == "proved"
        if one.kind in ("properness", "boundary", "reach"):
            assert one.declare().residual() == 0
        seen.add(one.kind)
    assert seen == set(KINDS)


def test_a_jump_of_a_binary_block_moves_nothing_else():
    """So that without noise the rest is not reached."""
    (one,) = [one for one in unsound_of("sgld-sa-gibbs") if one.mistake == "no noise"]
    assert one.certificate["reached"].verdict == "failed"
