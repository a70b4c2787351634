"""Kernels of many steps on a GPU: chains on a symbolic energy of few sites, moved in one launch."""

import torch

from ..backends.loading import load
from ..noise import steps_of_block
from . import gpu
from .addresses import addresses, plain
from .trajectory import Trajectory

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

    def _compile(self, target):
        self.real = gpu.real_of(self.where, target.dtype)
        gpu.check_launches(self.where, target.device)
        from ..backends.triton_unrolled import unrolled_kernels

        source = unrolled_kernels(self.program, self.sites)
        self.columns = [plain("data", t) for t in self.data]
        where = addresses("data", self.columns) or [0]
        self.where_columns = gpu.sent(torch.tensor(where, dtype=torch.int64, device="cpu"), target.device)
        self.kernels = load(source, f"<sde-recipe {self.program.recipe.name} {self.program.scheme} triton chains>")

    def _launch(self, steps, first_step, table, stride, drawn, kept, thin, first_kept):
        device = self.numbers.device
        places = torch.full((sum(map(len, self.rows.values())),), -1, dtype=torch.int64, device="cpu")
        places[kept] = torch.arange(len(kept), device="cpu")
        memory = drawn, gpu.sent(places, device), gpu.sent(table, device), self.died
        numbers = self.gradient_step, steps, thin, first_kept, len(kept), stride
        self._start("run", first_step, *memory, *numbers, VARIES=bool(stride))

    def _take_gradient(self):
        self._start("gradient", self.gradient_step)

    def _start(self, name, step, *arguments, **constants):
        rows = len(self.columns[0]) if self.columns else 0
        batch = self.batch_size or rows
        of_chains = self.numbers, self.where_columns, self.chains, self.first_chain, step, gpu.signed(self.seed)
        lanes = LANES[self.chains > MANY]
        constants |= {"DRAWN": self.batch_size is not None, "FEW": batch if steps_of_block(batch) > 1 else 0}
        constants |= {"R": self.real, "LANES": lanes, "enable_fp_fusion": True, "num_warps": lanes // WARP}
        programs = (-(-self.chains // lanes),)
        with gpu.on(self.numbers.device):
            gpu.Launch(name, self.kernels[name], programs, (*of_chains, rows, batch, *arguments), constants)()
