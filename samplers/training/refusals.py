"""What an Optimizer refuses or warns of when it is made: its arguments, its recipe, and frozen parameters."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import getgeneratorlocals
from types import GeneratorType
from typing import Any

import torch

from integrators.step import Step
from recipe import Recipe
from recipe.errors import RecipeError, first_line, warn

from ..target.layers import is_random

BOOKKEPT = ("params", "step_number", "sampler", "initial_lr", "param_names")  # entries of a group beside its settings


def check_order(params: object, recipe: object) -> None:
    """Refuses a recipe, or a network, in the place of the parameters."""
    if isinstance(params, torch.nn.Module) and not isinstance(params, torch.nn.ParameterList):
        what = f"a {type(params).__name__} is given in the place of its parameters"
        raise RecipeError("Optimizer", what, do="Pass network.parameters(), or network.named_parameters().")
    if isinstance(params, (str, Recipe)) and not isinstance(recipe, (str, Recipe)):
        what = "the recipe is given first, in the place of the parameters"
        do = 'Write Optimizer(network.parameters(), "sghmc", ...), as torch does.'
        raise RecipeError("Optimizer", what, do=do)


PARAMETERS = "Pass network.parameters(), a list of weights, or of dicts with weights under 'params'."


@contextmanager
def torch_explained(where: str) -> Iterator[None]:
    """Turns what torch refuses of parameters and of groups into a RecipeError."""
    try:
        yield
    except RecipeError:
        raise
    except KeyError as error:
        raise RecipeError(where, f"a group of parameters has no {error}", do=PARAMETERS) from error
    except (TypeError, ValueError) as error:
        raise RecipeError(where, first_line(error), do=PARAMETERS) from error


def check_some(where: str, params: Sequence[torch.Tensor]) -> None:
    """Refuses a group without parameters."""
    if not params:
        raise RecipeError(where, "a group has no parameters", do=PARAMETERS)


def warn_of_layers(where: str, params: Any) -> None:
    """Warns of layers that draw random numbers, as dropout does, where `params` are those of `network.parameters()`."""
    groups = [group.get("params") for group in params if isinstance(group, dict)] if isinstance(params, list) else []
    for argument in (params, *groups):
        network = getgeneratorlocals(argument).get("self") if isinstance(argument, GeneratorType) else None
        layers = network.named_modules() if isinstance(network, torch.nn.Module) else ()
        name, layer = next(((name, layer) for name, layer in layers if layer.training and is_random(layer)), ("", None))
        if layer is not None:
            warn(
                f"{where}: '{name}', a {type(layer).__name__}, is random in training mode: its noise heats the weights "
                "as that of minibatches does, and the mean loss over it is another one. Call eval() on it, or give it "
                "the rate 0."
            )


def warn_of_law(where: str, step: Step, capturable: bool) -> None:
    """Warns of formulas that read U itself, which `capturable` refuses, and of steps made to be rejected."""
    if step.program.needs_value:
        if capturable:
            what = "capturable = True, and its formulas read U itself, which a graph does not take from a closure"
            raise RecipeError(where, what, do="Step without a graph.")
        warn(
            f"{where}: the formulas read U itself, of which the loss of a minibatch is an estimate: the law is not "
            "exp(-H). Return the loss of all data from the closure of step() for one that is."
        )
    if step.recipe.metropolis:
        warn(
            f"{where}: steps that are made to be accepted or rejected, as by samplers.sample, are all taken here; how "
            "far that is off grows with the step size and the noise of gradients. Of a training loop are 'sgld', "
            "'sghmc' and 'underdamped-langevin'."
        )


def without_frozen(group: dict[str, Any]) -> list[torch.Tensor]:
    """Removes and returns the frozen parameters of a group, unless all are frozen."""
    moving = [p.requires_grad for p in group["params"]]
    if not any(moving):
        return []
    frozen = [p for p, moves in zip(group["params"], moving) if not moves]
    for key in ("params", "param_names"):
        if key in group:
            group[key] = [x for x, moves in zip(group[key], moving, strict=True) if moves]
    return frozen
