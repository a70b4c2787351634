"""Stock samplers by name, wherever a recipe is asked for; near misses are named."""

import pytest
import torch

import samplers
from recipe import RecipeError
from samplers.stock import recipe_of
from samplers.testing import assert_stationary, check

QUICK = {"init": torch.zeros(2), "progress": False, "steps": 3}


def bowl(theta):
    return (theta**2).sum() / 2


def refused_by(call):
    """The recipe that refuses a call; a name that is none is refused as ever."""
    with pytest.raises(RecipeError) as refusal:
        call()
    if "no stock sampler" in str(refusal.value):
        raise refusal.value
    return refusal.value.where.partition(",")[0]


CALLS = {
    "sample": lambda name: samplers.sample(name, bowl, step_size=0.1, **QUICK).info["recipe"],
    "distributed": lambda name: samplers.distributed.sample(name, bowl, step_size=0.1, **QUICK).info["recipe"],
    "auto": lambda name: refused_by(lambda: samplers.sample(name, bowl, step_size="auto", observe={}, **QUICK)),
    "tune": lambda name: refused_by(lambda: samplers.tune(name, bowl, init=torch.zeros(2), bias=2.0)),
    "Optimizer": lambda name: (
        samplers.Optimizer([torch.zeros(2, requires_grad=True)], name, num_data=5, lr=0.1).recipe.name
    ),
    "check": lambda name: check(name, layers=["symbolic"]).name,
    "assert_stationary": lambda name: assert_stationary(name, layers=["symbolic"]).name,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_name_stands_for_a_stock_sampler(call):
    assert CALLS[call]("SGLD") == "sgld"
    with pytest.raises(RecipeError, match="no stock sampler 'sglld'. Did you mean 'sgld' or"):
        CALLS[call]("sglld")


@pytest.mark.parametrize(
    "text", ["sghmc-adaptive", "AdaptiveSGHMC", "adaptivesghmc", "SGHMC_ADAPTIVE", " sghmc-adaptive "]
)
def test_names_are_those_of_recipes_and_of_objects_in_any_case(text):
    assert recipe_of(text, "test") is samplers.AdaptiveSGHMC


def test_every_stock_sampler_is_found_by_both_of_its_names():
    for name, (_, attribute) in samplers.stock._FILES.items():
        assert recipe_of(name, "test") is recipe_of(attribute, "test") is samplers.catalogue[name]


def test_what_is_neither_a_recipe_nor_a_name_is_refused():
    with pytest.raises(RecipeError, match="sample: expected a Recipe, got type"):
        samplers.sample(torch.optim.SGD, bowl, step_size=0.1, **QUICK)
