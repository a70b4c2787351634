"""What kernels take of a step size, a temperature, parameters and a step number; and the numbers they compute with."""

from collections.abc import Mapping, Sequence

import torch
from sympy import Symbol

from recipe.errors import RecipeError
from recipe.symbols import step_number

from ..backends.loading import load
from ..backends.torch import constants_source
from ..backends.torch_expressions import marked_names
from ..passes import is_by_site
from ..program import Program

NUMBER_TYPES = {torch.float32: "float", torch.float64: "double"}


def check_numbers(where: str, dtype: torch.dtype, device: torch.device, devices: Sequence[str]) -> None:
    """Refuse a state of another type, or in another place, than kernels run on."""
    if device.type not in devices or dtype not in NUMBER_TYPES:
        raise RecipeError(
            where,
            f"the state is {dtype} on {device}",
            do=f"Kernels run on float32 and float64 on {', '.join(devices)}: convert it, or use backend='torch'.",
        )


def is_one_number(value: torch.Tensor) -> bool:
    """Whether a value per site is one number, spread over the sites."""
    return value.numel() > 0 and not any(value.stride())


class Constants:
    """The values of the symbols `wanted`, in float64: functions of step size, temperature, step and parameters.

    `shape` is that of the sites of one chain; a value per site comes as a tensor of this shape. `changes`: whether they
    depend on the number of the step.
    """

    def __init__(self, program: Program, wanted: Sequence[Symbol], shape: Sequence[int]):
        self.wanted, self.shape, self.where = wanted, tuple(shape), program.recipe.name
        self.names = marked_names(program)
        like = torch.empty((1,) * (1 + bool(shape)), dtype=torch.float64, device="cpu")
        self.like = like.expand(1, *shape) if shape else like
        source = constants_source(program, wanted)
        self.function = load(source, f"<sde-recipe {program.recipe.name} constants>")["constants"]
        self.changes = program.reads(step_number)

    def __call__(self, h: float, temperature: float, number: int, parameters: Mapping) -> list[float | torch.Tensor]:
        """The values in the order of `wanted`, those per site as tensors of their shape."""
        spelled = {self.names.get(name, name): v for name, v in parameters.items()}
        values = self.function(h, self.like, temperature=temperature, step_number=number, **spelled)
        return [self._spread(s, v) if is_by_site(s) else float(v) for s, v in zip(self.wanted, values)]

    def _spread(self, s, value):
        device = value.device if isinstance(value, torch.Tensor) else "cpu"
        value = torch.as_tensor(value, dtype=torch.float64, device=device)
        try:
            return value.expand(self.shape)
        except RuntimeError as error:
            raise RecipeError(
                f"{self.where}, {s}",
                f"its shape is {tuple(value.shape)} for sites of shape {self.shape}",
                do="Give a number, or one value per site.",
            ) from error
