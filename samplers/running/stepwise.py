"""One step of all chains at a time, in torch or by a kernel of one step, for energies that are torch functions."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

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

Queued = TypeVar("Queued")


@dataclass
class _Pending:
    """A step whose verdict may be unknown: the state `new`, the `rows` of its gradient, and its step size `h`."""

    new: dict[str, Any]
    rows: Rows
    h: float


def in_order(coming: Iterable[tuple[Queued, torch.Tensor]], ahead: int) -> Iterator[tuple[Queued, bool]]:
    """Yields what is queued on a device, with its verdict, once that has come: whether all its numbers hold.

    At most `ahead` are queued beyond the one that is waited for; numbers that are near are read at once.
    """
    arrivals = Arrivals()
    queue: deque[Queued] = deque()
    verdicts: deque[bool] = deque()
    for one, verdict in coming:
        queue.append(one)
        arrivals.send(verdict, lambda numbers: verdicts.append(all(numbers)))
        arrivals.wait(ahead)
        arrivals.look()
        while verdicts:
            yield queue.popleft(), verdicts.popleft()
    arrivals.wait()
    yield from zip(queue, verdicts)


class Stepwise:
    """Moves chains one step at a time, by the step in torch, or by a kernel of one step, in "cpp" say.

    `inputs`: those of the steps; `keep`: the names of the blocks whose values are handed on; `ahead`: the number of
    steps that may be queued on a device before their verdict is known.
    """

    def __init__(self, inputs: Inputs, keep: Sequence[str], backend: str = "torch", ahead: int = AHEAD) -> None:
        self.inputs = inputs
        self.keep = keep
        self.backend = backend
        self.ahead = ahead
        self.evaluations = Evaluations(inputs.target)
        self._coming: Iterator[tuple[_Pending, bool | None]] = iter(())
        self._place: tuple[Stage, int, int] | None = None  # the stage, the next step, and the end of queued steps

    def advance(self, chains: Chains, stage: Stage, done: int, end: int) -> Moves:
        """Make step `done` of a stage.

        On a GPU further steps are queued as if no chain were lost, and handed on when their verdict is known; after a
        loss the queued steps are made again.
        """
        near = is_near(chains.alive)
        end = stage.steps if near else end
        if self._place != (stage, done, end):
            self._coming = self._judged(chains, stage, done, end)
        pending, is_fine = next(self._coming)
        chains.advance(pending.new, rows=pending.rows, is_fine=is_fine)
        self._place = None if is_fine is False else (stage, done + 1, end)
        if stage.until_kept(done):
            return Moves(1)
        kept = {name: chains.state[name][:, None] for name in self.keep if torch.is_tensor(chains.state.get(name))}
        return Moves(1, [pending.h], kept)

    def _judged(self, chains: Chains, stage: Stage, done: int, end: int) -> Iterator[tuple[_Pending, bool | None]]:
        """The steps from `done` on, and whether each loses no chain, None if that is not known."""
        target = chains.state[chains.recipe.targets[0].name]
        ahead = 0 if is_near(target) else min(self.ahead, BYTES_AHEAD // max(1, target.numel() * target.element_size()))
        steps = self._steps(chains, stage, done, end, ahead)
        if not ahead:
            return ((pending, None) for pending in steps)
        return in_order(((pending, chains.verdict(pending.new)) for pending in steps), ahead)

    def _steps(self, chains: Chains, stage: Stage, done: int, end: int, ahead: int) -> Iterator[_Pending]:
        """Yields the steps from `done` on; each that is made ahead as if the one before lost no chain."""
        target = chains.state[chains.recipe.targets[0].name]
        numbers = range(stage.first + done, stage.first + end)
        evaluations = self.evaluations
        call = StepCall(stage.step, evaluations.functions(), self.inputs, self.backend)
        carries = stage.step.program.carries_gradient
        state, rows = chains.state, chains.rows
        for of_step in self.inputs.of_steps(stage.step, numbers, target, keyed=self.backend != "torch"):
            evaluations.begin(of_step, carried=[rows] if carries and rows is not None else None)
            k = of_step.number - stage.first
            h = stage.step_size(k)
            new = call(state, of_step.number, of_step.noise, h, stage.temperature(k), stage.values(k))
            rows = evaluations.latest[0] if "gradient" in new else None
            yield _Pending(new, rows, h)
            state = chains.merged(new, state) if ahead else chains.state
            rows = rows if ahead else chains.rows


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
