"""One step of all chains at a time, in torch or by a kernel of one step, for energies that are torch functions."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from integrators.kernels.single import Pool
from integrators.step import Step
from integrators.transfers import Arrivals, is_near
from recipe.symbols import step_number

from .chains import Chains
from .drive import Moves
from .inputs import Evaluations, Inputs, Rows
from .plan import Stage

AHEAD = 16  # steps queued on a device before their verdict is known, at most
BYTES_AHEAD = 2**28  # bytes of the targets of these steps, at most


@dataclass
class _Pending:
    """A step whose verdict may be unknown: the state `new`, the `rows` of its gradient, and its step size `h`.

    `state`: `new` with the old state of chains lost earlier; `is_fine`: whether the step loses no chain, None if not
    known yet.
    """

    new: dict[str, Any]
    rows: Rows
    h: float
    state: dict[str, Any] = field(default_factory=dict)
    is_fine: bool | None = None

    def judge(self, verdict: list[float]) -> None:
        """Set `is_fine` from the verdict of `Chains.verdict`."""
        self.is_fine = all(verdict)


class Stepwise:
    """Moves chains one step at a time, by the step in torch, or by a kernel of one step, "cpp" or "triton".

    `inputs`: those of the steps; `keep`: the names of the blocks whose values are handed on; `ahead`: the number of
    steps that may be queued on a device before their verdict is known.
    """

    def __init__(self, inputs: Inputs, keep: Sequence[str], backend: str = "torch", ahead: int = AHEAD) -> None:
        self.inputs = inputs
        self.keep = keep
        self.backend = backend
        self.ahead = ahead
        self.evaluations = Evaluations(inputs.target)
        self._coming: Iterator[_Pending] = iter(())
        self._place: tuple[Stage, int, int] | None = None  # the stage, the next step, and the end of queued steps

    def advance(self, chains: Chains, stage: Stage, done: int, end: int) -> Moves:
        """Make step `done` of a stage.

        On a GPU further steps are queued as if no chain were lost, and handed on when their verdict is known; after a
        loss the queued steps are made again.
        """
        near = is_near(chains.alive)
        end = stage.steps if near else end
        if self._place != (stage, done, end):
            self._coming = self._pending(chains, stage, done, end)
        pending = next(self._coming)
        chains.advance(pending.new, rows=pending.rows, is_fine=pending.is_fine)
        self._place = None if pending.is_fine is False else (stage, done + 1, end)
        if stage.until_kept(done):
            return Moves(1)
        kept = {name: chains.state[name][:, None] for name in self.keep if torch.is_tensor(chains.state.get(name))}
        return Moves(1, [pending.h], kept)

    def _pending(self, chains: Chains, stage: Stage, done: int, end: int) -> Iterator["_Pending"]:
        """Yields the steps from `done` on in order; a queued step is yielded once its verdict is known."""
        target = chains.state[chains.recipe.targets[0].name]
        ahead = 0 if is_near(target) else min(self.ahead, BYTES_AHEAD // max(1, target.numel() * target.element_size()))
        arrivals = Arrivals()
        coming: deque[_Pending] = deque()
        numbers = range(stage.first + done, stage.first + end)
        evaluations = self.evaluations
        call = StepCall(stage.step, evaluations.functions(), self.inputs, self.backend)
        carries = stage.step.program.carries_gradient
        for of_step in self.inputs.of_steps(stage.step, numbers, target, keyed=self.backend != "torch"):
            state, rows = (coming[-1].state, coming[-1].rows) if coming else (chains.state, chains.rows)
            evaluations.begin(of_step, carried=[rows] if carries and rows is not None else None)
            k = of_step.number - stage.first
            h = stage.step_size(k)
            new = call(state, of_step.number, of_step.noise, h, stage.temperature(k), stage.values(k))
            pending = _Pending(new, evaluations.latest[0] if "gradient" in new else None, h)
            if not ahead:
                yield pending
                continue
            pending.state = chains.merged(pending.new, state)
            arrivals.send(chains.verdict(pending.new), pending.judge)
            coming.append(pending)
            if len(coming) > ahead:
                arrivals.wait()
            arrivals.look()
            while coming and coming[0].is_fine is not None:
                yield coming.popleft()
        arrivals.wait()
        yield from coming


class StepCall:
    """A step with all arguments fixed but the state, its number, the noise, the step size and the temperature.

    `functions`: gradient, curvature, value and observations; `backend`: "torch", or that of a kernel of one step.
    """

    def __init__(self, step: Step, functions: dict[str, Any], inputs: Inputs, backend: str = "torch") -> None:
        self.step = step
        self.inputs = inputs
        self.by_kernel = backend != "torch"
        if self.by_kernel:
            self.fixed = {**functions, **inputs.constants, "pool": Pool(1, keep_constants=True)}
        else:
            arguments = step.arguments(noise={}, sizes=inputs.layout.sizes, **functions)
            self.fixed = {**arguments, **step.spelled(inputs.constants)}
        self.numbered = self.by_kernel or step.program.reads(step_number)

    @torch.no_grad()
    def __call__(
        self,
        state: dict[str, Any],
        number: int,
        noise: Mapping,
        h: float,
        T: float,
        parameters: Mapping[str, float] = MappingProxyType({}),
    ) -> dict[str, Any]:
        """The state after step `number`, with lost chains moved as well; `parameters`: those of the step alone."""
        varying: dict[str, Any] = {"temperature": T, **self.step.spelled(parameters)}
        if self.numbered:
            varying[step_number.name] = number
        if self.by_kernel:
            return self.step.by_kernel(state, h, noise=self.inputs.key(number), **self.fixed, **varying)
        return self.step.function(state, h, **(self.fixed | varying | {"noise": noise}))
