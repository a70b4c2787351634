"""Many steps of all chains in one call of a compiled kernel, for symbolic energies."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from integrators.kernels.trajectory import TRAJECTORIES, Trajectory
from integrators.passes import Unsupported
from integrators.program import DERIVATIVES
from integrators.step import Step
from recipe.symbols import num_data

from .chains import Chains, Diverged
from .drive import Moves
from .inputs import Inputs
from .plan import Stage
from .stepwise import StepCall

FIRST = 64  # steps of the first launch
MOST = 100_000  # steps of a launch
SECONDS = 0.2  # of a launch


class Launches:
    """Moves chains by launches of a kernel, many steps each; lost chains are found after each launch.

    `inputs`: those of steps beside the state; `keep`: the names of the blocks whose values are handed on, where the
    kernel has them; `backend`: the language of the kernels, "cpp" say.
    """

    def __init__(self, inputs: Inputs, keep: Sequence[str], backend: str = "cpp") -> None:
        self.inputs = inputs
        self.keep = keep
        self.kept: list[str] = []
        self.backend = backend
        self.kernels: dict[int, Trajectory] = {}  # by the identity of their steps
        self.size = FIRST
        self._landed: tuple[Step, dict[str, Any]] | None = None  # the step of the last launch, and the state after it

    def advance(self, chains: Chains, stage: Stage, done: int, end: int) -> Moves:
        """Make the steps of one launch, from step `done` of a stage on."""
        is_compiled = self.backend == "cpp" or id(stage.step) in self.kernels  # Triton compiles in the first launch
        kernel = self._kernel_at(stage.step, chains.state)
        kernel.died[: len(chains)][~chains.alive] = 0  # lost under another kernel
        steps = min(self.size, end - done)
        began = time.perf_counter()
        settings = stage.settings(range(done, done + steps))
        check_settings(stage.step, settings, self.inputs.parameters)
        skipped = min(stage.until_kept(done), steps)
        first = stage.first + done
        self.kept = [name for name in self.keep if name in kernel.rows]
        draws = kernel.run(first, settings, thin=stage.thin, first_kept=skipped, keep=self.kept)
        error = self._lose(chains, stage.step, kernel, settings, first)
        chains.land(kernel.state_now(), steps)
        self._landed = stage.step, chains.state
        passed = max(time.perf_counter() - began, 1e-6)
        if is_compiled:
            self.size = max(1, min(2 * self.size, int(self.size * SECONDS / passed), MOST))
        return Moves(steps, settings[skipped :: stage.thin, 0].tolist(), self._kept(kernel, draws), error)

    def _kernel_at(self, step: Step, state: dict[str, Any]) -> Trajectory:
        """The kernel of a step, placed at `state`; compiled at the first call."""
        kernel = self.kernels.get(id(step))
        if kernel is None:
            kernel = self.kernels[id(step)] = kernel_of(step, state, self.inputs, self.backend)
        elif self._landed is None or self._landed[0] is not step or self._landed[1] is not state:
            kernel.place(state)
        return kernel

    def _kept(self, kernel: Trajectory, draws: torch.Tensor) -> dict[str, torch.Tensor]:
        """The draws `(draws, numbers, chains)` of a launch by block, `(chains, draws, *shape)`."""
        kept: dict[str, torch.Tensor] = {}
        at = 0
        for name in self.kept:
            end = at + len(kernel.rows[name])
            shape = kernel.state[name].shape[1:]
            kept[name] = draws[:, at:end].permute(2, 0, 1).reshape(kernel.chains, len(draws), *shape)
            at = end
        return kept

    def _lose(
        self, chains: Chains, step: Step, kernel: Trajectory, settings: np.ndarray, first: int
    ) -> Diverged | None:
        """Flag the chains lost in a launch; the first repeats its step in torch, for the reason of its loss."""
        died = kernel.died[: len(chains)].tolist()
        lost = {chain: number for chain, number in enumerate(died) if number >= 0 and chains.alive[chain]}
        if not lost:
            return None
        lost = dict(sorted(lost.items(), key=lambda one: one[1]))
        chain, number = next(iter(lost.items()))
        at = {name: kernel.block(name)[chain : chain + 1] for name in kernel.rows}
        inputs = self.inputs.of_chain(chain)
        h, T = settings[number - first].tolist()
        call = StepCall(step, inputs.evaluations(number, 1).functions(), inputs)
        new = call(at, number, step.drawn(inputs.key(number), at), h, T)
        return chains.lose(lost, {name: x[0] for name, x in new.items() if name not in DERIVATIVES.values()})


def check_settings(step: Step, settings: np.ndarray, parameters: Mapping[str, Any]) -> None:
    """Refuse step sizes and temperatures, `(steps, 2)`, whose least or largest values the step refuses."""
    parameters = {name: value for name, value in parameters.items() if name != num_data.name}
    for h, temperature in (settings.min(0).tolist(), settings.max(0).tolist()):
        step.check(h, temperature=temperature, **parameters)


def kernel_of(step: Step, state: dict[str, Any], inputs: Inputs, backend: str) -> Trajectory:
    """The kernel of many steps, placed at `state`; raises RecipeError where the step has no kernel."""
    kernel = TRAJECTORIES.get(backend)
    if kernel is None:
        raise Unsupported(
            f"{step.recipe.name}, {backend}", "there are no kernels of many steps", do="Take backend='auto'."
        )
    data = inputs.target.data
    columns, batch_size = ((), None) if data is None else (data.tensors, data.batch_size)
    return kernel(step.program, state, inputs.seed, inputs.constants, inputs.first_chain, columns, batch_size)
