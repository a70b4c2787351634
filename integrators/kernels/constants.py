"""Constants of kernels, computed from step size, temperature, parameters and step number; dtypes of kernels."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np
import torch
from sympy import Symbol

from recipe import Recipe
from recipe.errors import RecipeError
from recipe.symbols import step_number

from ..backends.loading import load
from ..backends.torch import constants_source
from ..backends.torch_expressions import marked_names
from ..passes import is_by_site
from ..program import Program, Solve
from . import gpu

NUMBER_TYPES = {torch.float32: "float", torch.float64: "double"}


def check_numbers(recipe: Recipe, backend: str, dtype: torch.dtype, device: torch.device) -> None:
    """Refuse a state with a dtype or device that kernels do not run on."""
    devices = gpu.devices_of_triton() if backend == "triton" else ["cpu"]
    if device.type not in devices or dtype not in NUMBER_TYPES:
        do = f"Kernels run on float32 and float64 on {', '.join(devices)}: convert it, or use backend='torch'."
        raise RecipeError(f"{recipe.name}, {backend}", f"the state is {dtype} on {device}", do=do)


def is_one_number(value: torch.Tensor) -> bool:
    """Whether a value per site is one number expanded over the sites."""
    return value.numel() > 0 and not any(value.stride())


class Constants:
    """Values of the symbols `wanted`, in float64, as functions of step size, temperature, step and parameters.

    `shape`: shape of the sites of one chain, and of values per site. `changes`: whether the values depend on the number
    of the step.
    """

    def __init__(self, program: Program, wanted: Sequence[Symbol], shape: Sequence[int]):
        self.program = program
        self.where = program.recipe.name
        self.wanted = wanted
        self.shape = tuple(shape)
        self.names = marked_names(program)
        like = torch.empty((1,) * (1 + bool(shape)), dtype=torch.float64, device="cpu")
        self.like = like.expand(1, *shape) if shape else like
        self.function = self._function(over_steps=False)
        self.changes = program.reads(step_number)

    def _function(self, *, over_steps: bool) -> Callable[..., list]:
        source = constants_source(self.program, self.wanted, over_steps=over_steps)
        kind = "constants of many steps" if over_steps else "constants"
        return load(source, f"<sde-recipe {self.where} {kind}>")["constants"]

    @cached_property
    def function_over_steps(self) -> Callable[..., list] | None:
        """The function for many steps at once; None if a constant is a Solve, computed step by step."""
        if any(isinstance(constant, Solve) for constant in self.program.constants):
            return None
        return self._function(over_steps=True)

    def __call__(self, h: float, temperature: float, number: int, parameters: Mapping) -> list[float | torch.Tensor]:
        """The values in the order of `wanted`: numbers, and tensors of `shape` for values per site."""
        spelled = {self.names.get(name, name): v for name, v in parameters.items()}
        values = self.function(h, self.like, temperature=temperature, step_number=number, **spelled)
        return [self._spread(s, v) if is_by_site(s) else float(v) for s, v in zip(self.wanted, values)]

    def row(self, h: float, temperature: float, number: int, parameters: Mapping) -> torch.Tensor:
        """The values of one step in one float64 tensor, values per site expanded over the sites."""
        values = self(h, temperature, number, parameters) or [0.0]
        return torch.cat([torch.as_tensor(v, dtype=torch.float64, device="cpu").reshape(-1) for v in values])

    def rows(self, settings: np.ndarray, numbers: Sequence[int], parameters: Mapping) -> torch.Tensor:
        """The values of many steps, one row each, for pairs (step size, temperature) and numbers of steps."""
        together = self.function_over_steps if len(settings) > 1 else None
        if together is not None:
            rows = self._rows_by(together, settings, numbers, parameters)
            if rows.isfinite().all():
                return rows  # else single steps raise the error
        return torch.stack([self.row(h, T, k, parameters) for (h, T), k in zip(settings.tolist(), numbers)])

    def _rows_by(self, together, settings, numbers, parameters):
        steps = len(settings)
        first, heat = settings[0].tolist()
        rows = self.row(first, heat, numbers[0], parameters).repeat(steps, 1)  # checks shapes
        units = tuple(1 for _ in self.shape)
        of_steps = torch.as_tensor(np.column_stack([settings, numbers]), dtype=torch.float64, device="cpu")
        h, temperature, number = of_steps.T.reshape(3, steps, *units)
        host = {name: v.cpu() if isinstance(v, torch.Tensor) else v for name, v in parameters.items()}
        spelled = {self.names.get(name, name): v for name, v in host.items()}
        values = together(h, self.like, temperature=temperature, step_number=number, **spelled)
        at = 0
        for s, value in zip(self.wanted, values):
            shape = (steps, *(self.shape if is_by_site(s) else units))
            column = torch.as_tensor(value, dtype=torch.float64, device="cpu").expand(shape).reshape(steps, -1)
            rows[:, at : at + column.shape[1]] = column
            at += column.shape[1]
        return rows

    def _spread(self, s, value):
        device = value.device if isinstance(value, torch.Tensor) else "cpu"
        value = torch.as_tensor(value, dtype=torch.float64, device=device)
        try:
            return value.expand(self.shape)
        except RuntimeError as error:
            what = f"its shape is {tuple(value.shape)} for sites of shape {self.shape}"
            raise RecipeError(f"{self.where}, {s}", what, do="Give a number, or one value per site.") from error
