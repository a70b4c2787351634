"""Edges: places where U jumps from values that draws have to infinity, as where a density ends in a step."""

from collections.abc import Mapping

import torch

from integrators.streams import RAY
from recipe import Recipe

from ..target.layout import position_of
from ..target.potential import VALUE, Blocks
from .inputs import Inputs

PLACES = 16  # draws from which rays are cast, at most
LENGTHS = (0.25, 1.0, 4.0)  # of rays, in standard deviations of the draws
HALVINGS = 100  # of a ray: what is left of it is below the rounding of numbers, or 1e-30 of it at an edge at 0
FIRST = 64  # the number of the key of rays: those of checks at the start are before it


def height_of_edge(recipe: Recipe, inputs: Inputs, places: Blocks, draws: Blocks, temperature: float) -> float | None:
    """The least rise of U/T above that of draws at which U becomes infinite, or no number, on rays from `places`.

    It is low at the edge of a set outside of which the density is 0, and of the order of the greatest number where U
    overflows. None where U is finite on all rays; errors of the energy count as that. `places` and `draws`: of z.
    """
    try:
        with torch.no_grad():
            return _height(recipe, inputs, places, draws, temperature)
    except Exception:  # raised by the caller's function
        return None


def _height(recipe: Recipe, inputs: Inputs, places: Blocks, draws: Blocks, temperature: float) -> float | None:
    def value(at: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return inputs.target.eager.at(position_of(recipe, at), None, VALUE).value.double()

    inside = {name: x[:PLACES].repeat(len(LENGTHS), *(1 for _ in x.shape[1:])) for name, x in places.items()}
    outside = {}
    for i, (name, x) in enumerate(inside.items()):
        rays = inputs.key(FIRST + i).normals(RAY, x) * draws[name].std(0)
        lengths = torch.tensor(LENGTHS, dtype=x.dtype, device=x.device).repeat_interleave(len(x) // len(LENGTHS))
        outside[name] = x + lengths.reshape(-1, *(1 for _ in x.shape[1:])) * rays
    U = value(outside)
    crossing = (U.isnan() | U.isposinf()) & value(inside).isfinite()
    if not crossing.any():
        return None
    inside, outside = ({name: x[crossing] for name, x in at.items()} for at in (inside, outside))
    for _ in range(HALVINGS):
        middle = {name: (x + outside[name]) / 2 for name, x in inside.items()}
        is_inside = value(middle).isfinite()
        inside = _chosen(is_inside, middle, inside)
        outside = _chosen(is_inside, outside, middle)
    return float((value(inside) - value(draws).median()).min()) / temperature


def _chosen(condition: torch.Tensor, one: Blocks, other: Blocks) -> Blocks:
    """The points of one set where the condition holds, else those of the other."""
    return {
        name: torch.where(condition.reshape(-1, *(1 for _ in x.shape[1:])), x, other[name]) for name, x in one.items()
    }
