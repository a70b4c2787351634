"""Auxiliary blocks and adapted quantities: the flows that start them, and the law of momenta."""

from collections.abc import Mapping

import torch
from sympy import S, lambdify, sqrt

from recipe import Recipe
from recipe.marginal import eliminate_gaussians
from recipe.symbols import Block
from recipe.symbols import temperature as T

from .flow import Flow, Normal
from .scheme import Scheme


def adaptation_word(recipe: Recipe) -> tuple[Scheme, dict[str, Flow]]:
    """A word whose flows give the adapted quantities their first values."""
    flows = {a.name: Flow(a.name, {a: a.start}, (), "start", True, f"{a} <- {a.start}") for a in recipe.adapted}
    return Scheme("start", tuple((name, S.One) for name in flows)), flows


def stationary_word(recipe: Recipe) -> tuple[Scheme, dict[str, Flow]]:
    """A word whose flows draw each auxiliary block in which H is quadratic from its law given the target: N(mean, T/a)."""
    laws, _ = eliminate_gaussians(recipe.H, recipe.momenta + recipe.thermostats)
    flows = {
        law.block.name: Flow(
            law.block.name,
            {law.block: law.mean + sqrt(T / law.precision) * Normal(law.block)},
            (Normal(law.block),),
            "stationary law",
            True,
            f"{law.block} ~ N({law.mean}, T/({law.precision}))",
        )
        for law in reversed(laws)
    }
    return Scheme("stationary start", tuple((name, S.One) for name in flows)), flows


def masses(step, parameters: Mapping) -> dict[str, float | torch.Tensor]:
    """The masses of the momenta that are N(0, mass T) whatever the other blocks are."""
    recipe, found = step.recipe, {}
    for law in eliminate_gaussians(recipe.H, recipe.momenta)[0]:
        given = sorted(law.precision.free_symbols, key=str)
        if law.mean != 0 or any(isinstance(s, Block) for s in given) or law.block.name in step.frozen:
            continue
        values = [parameters.get(s.name, getattr(s, "default", None)) for s in given]
        if None not in [v if not torch.is_tensor(v) else 0 for v in values]:
            found[law.block.name] = (
                1 / lambdify(given, law.precision, "math")(*values) if given else 1 / float(law.precision)
            )
    return found
