"""Kernels of many steps on a GPU: chains on a symbolic energy of few sites, moved in one launch."""

from typing import Any

import torch

from ..backends.loading import load
from ..noise import steps_of_block
from . import gpu
from .addresses import addresses, plain
from .trajectory import Moving, Trajectory

LANES = (32, 128)  # chains of a program: one warp, or four warps for more than MANY chains
MANY = 2**17  # number of chains that fill a GPU
WARP = 32


class TrajectoryOnGPU(Trajectory):
    """A `Trajectory` by a Triton kernel on the device of its state, with the same numbers up to rounding.

    The state stays in registers for all steps of a launch. Raises RecipeError if the Program has no such kernel, or
    Triton is not installed.
    """

    backend = "triton"
    width = 1

    @staticmethod
    def devices() -> list[str]:
        """The device types of the kernels."""
        return gpu.devices_of_triton()

    def compile(self, target: torch.Tensor) -> None:
        """Compile the kernel for the dtype of the target."""
        self.real = gpu.real_of(self.where, target.dtype)
        from ..backends.triton_unrolled import unrolled_kernels

        source = unrolled_kernels(self.program, self.sites)
        self.columns = [plain("data", t) for t in self.data]
        where = addresses("data", self.columns) or [0]
        self.where_columns = gpu.sent(torch.tensor(where, dtype=torch.int64, device="cpu"), target.device)
        self.kernels = load(source, f"<sde-recipe {self.program.recipe.name} {self.program.scheme} triton chains>")

    def launch(self, drawn: torch.Tensor, moving: Moving) -> None:
        """Move the chains, and write the kept states into `drawn`."""
        device = self.numbers.device
        places = torch.full((sum(map(len, self.rows.values())),), -1, dtype=torch.int64, device="cpu")
        places[moving.kept] = torch.arange(len(moving.kept), device="cpu")
        memory = drawn, gpu.sent(places, device), gpu.sent(moving.table, device), self.died
        numbers = self.gradient_step, moving.steps, moving.thin, moving.first_kept, len(moving.kept), moving.stride
        self._launch("run", moving.first_step, *memory, *numbers, VARIES=bool(moving.stride))

    def take_gradient(self) -> None:
        """Compute the derivatives of U that the first step carries, at the present state."""
        self._launch("gradient", self.gradient_step)

    def _launch(self, name: str, step: int, *arguments: Any, **constants: Any) -> None:
        rows = len(self.columns[0]) if self.columns else 0
        batch = self.batch_size or rows
        of_chains = self.numbers, self.where_columns, self.chains, self.first_chain, step, gpu.signed(self.seed)
        lanes = LANES[self.chains > MANY]
        constants |= {"DRAWN": self.batch_size is not None, "FEW": batch if steps_of_block(batch) > 1 else 0}
        constants |= {"R": self.real, "LANES": lanes, "enable_fp_fusion": True, "num_warps": lanes // WARP}
        programs = (-(-self.chains // lanes),)
        with gpu.on(self.numbers.device):
            gpu.Launch(name, self.kernels[name], programs, (*of_chains, rows, batch, *arguments), constants)()
