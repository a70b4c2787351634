"""Several steps in one graph of the step in torch and its energy: by torch.compile, or a CUDA graph on a GPU."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from integrators import noise
from integrators.kernels import gpu
from integrators.transfers import is_near
from recipe.errors import in_short, warn

from ..target.traced import agree
from .chains import Chains
from .drive import Kernel, Moves
from .inputs import Inputs, OfStep
from .plan import Plan, Stage
from .stepwise import AHEAD, StepCall, Stepwise, in_order

AT_ONCE = 8  # steps of a graph: the compilation time grows with their number
STEPS_OF_GRAPHS = 300_000  # steps that are worth torch.compile, which takes a minute
SIZE = 2_000  # numbers of a block: from here on a kernel of one step is faster than steps in torch
SIZE_ON_GPU = 2**18  # the same on a GPU, where launches dominate small steps

Several = Callable[..., tuple[dict[str, Any], dict[str, torch.Tensor], torch.Tensor]]


class Graphs:
    """Moves chains by a compiled graph of several steps; lost chains are found after each graph.

    `inputs`: those of the steps, with a gradient that torch can compile; `keep`: the names of the blocks whose values
    are handed on; `least`: the steps of a stage that is worth the compilation; `stepwise`: the kernel of steps beside
    CUDA graphs on a GPU, None for graphs of torch.compile. Graphs begin at multiples of `AT_ONCE`. Where there is no
    graph, or a chain is lost, chains move step by step.
    """

    backend = "torch"

    def __init__(
        self, inputs: Inputs, keep: Sequence[str], least: int, where: str, stepwise: Kernel | None = None
    ) -> None:
        self.inputs = inputs
        self.keep = keep
        self.least = least
        self.on_gpu = stepwise is not None
        self.stepwise: Kernel = stepwise or Stepwise(inputs, keep)
        self.where = where
        self.stage: Stage | None = None
        self.first = 0
        self.graph: Several | None = None
        self._coming: Iterator[tuple[tuple, bool]] = iter(())
        self._place: tuple[Stage, int, int] | None = None  # the stage, the next step, and the end of queued graphs

    def _candidates(self, function: Several, steps: int) -> Iterator[Several]:
        """Yields graphs of a function of several steps, first the fastest; errors are raised at the first call.

        `steps`: the length of the stage. On a GPU torch.compile fuses the launches of a long one before the capture.
        """
        if not self.on_gpu:
            yield torch.compile(function, dynamic=False, fullgraph=True)
            return
        fixed = [x for x in tree_leaves(self.inputs.target.batch(None)) if torch.is_tensor(x)]
        if steps >= STEPS_OF_GRAPHS:
            # whatever torch's settings are, it makes no graph of its own
            fused = torch.compile(function, dynamic=False, fullgraph=True, options={"triton.cudagraphs": False})
            yield gpu.Graph(fused, fixed)
        yield gpu.Graph(function, fixed)

    def _give_up(self, reason: str) -> None:
        """Move chains step by step from here on, as there is no graph; on a GPU with a warning."""
        if self.on_gpu:
            warn(f"{self.where}: no CUDA graph has several steps, they are made one by one: {reason}")
        else:
            self.stepwise = Stepwise(self.inputs.compiled(self.where), self.keep)

    def advance(self, chains: Chains, stage: Stage, done: int, end: int) -> Moves:
        """Make the steps of a graph where a graph begins and ends before `end`, else steps of `stepwise`."""
        if stage is not self.stage:
            self._begin(chains, stage, done)
        if self.first <= done and done + AT_ONCE <= end:
            moves = self._by_graph(chains, stage, done, end)
            if moves is not None:
                return moves
            self.first = stage.steps
        return self.stepwise.advance(chains, stage, done, min(end, self.first) if done < self.first else end)

    def _begin(self, chains: Chains, stage: Stage, done: int) -> None:
        """Begin a stage: its graphs start from step `first` on, the length of the stage where there are none."""
        self.stage = stage
        self.graph = None
        self.first = stage.steps
        if fits(stage, self.inputs, chains.state, self.least):
            self.first = -(-done // AT_ONCE) * AT_ONCE
            if stage.step.program.carries_gradient and "gradient" not in chains.state:
                self.first += AT_ONCE

    def _by_graph(self, chains: Chains, stage: Stage, done: int, end: int) -> Moves | None:
        """The moves of one graph; None where a chain is lost, or the graph cannot be compiled.

        On a GPU further graphs are queued, as steps are by `Stepwise`.
        """
        if chains.diverged:
            return None
        if self._place != (stage, done, end):
            self._coming = in_order(self._graphs(chains.state, stage, range(done, end)), AHEAD // AT_ONCE)
        (state, rows, kept), is_fine = next(self._coming, ((None, None, None), False))
        if not is_fine:
            self._coming = iter(())
            return None
        self._place = stage, done + AT_ONCE, end
        chains.land(state, AT_ONCE, rows=rows)
        skipped = stage.until_kept(done)
        thinned = slice(skipped, None, stage.thin)
        sizes = [stage.step_size(0)] * len(range(skipped, AT_ONCE, stage.thin))
        return Moves(AT_ONCE, sizes, {name: x[:, thinned] for name, x in kept.items()} if sizes else {})

    def _graphs(self, state: dict[str, Any], stage: Stage, steps: range) -> Iterator[tuple[tuple, torch.Tensor]]:
        """Yields (state, rows of its gradient, kept states) of each graph, and whether it is finite; none without one.

        The graph is made where the stage has none.
        """
        numbers = range(stage.first + steps.start, stage.first + steps.stop)
        target = state[stage.step.recipe.targets[0].name]
        coming = self.inputs.of_steps(stage.step, numbers, target, keyed=False)
        for _ in range(len(steps) // AT_ONCE):
            of_steps = list(islice(coming, AT_ONCE))
            arguments = _read(of_steps)
            with torch.no_grad():
                if self.graph is None and not self._make(stage, state, arguments):
                    return
                assert self.graph is not None
                state, kept, is_finite = self.graph(state, *arguments)
            yield (state, of_steps[-1].rows(0), kept), is_finite.reshape(1)

    def _make(self, stage: Stage, state: dict[str, Any], arguments: tuple) -> bool:
        """Make the graph of a stage; whether there is one to trust."""
        function = self._several(stage)
        reason = ""
        for graph in self._candidates(function, stage.steps):
            reason = _fault(graph, function, state, arguments)
            if not reason:
                self.graph = graph
                return True
        self._give_up(reason)
        return False

    def _several(self, stage: Stage) -> Several:
        """The steps of a graph as a function of the state, and the noise and the batch of each step."""
        functional = self.inputs.target.functional
        assert functional is not None
        function = stage.step.function
        h = stage.step_size(0)
        T = stage.temperature(0)
        fixed = StepCall(stage.step, {"gradient": None}, self.inputs).fixed
        keep = list(self.keep)
        entries = [b.name for b in stage.step.recipe.entries]

        def several(state: dict, drawn: dict, batches: list) -> tuple[dict, dict, torch.Tensor]:
            states = []
            for i in range(AT_ONCE):
                call = {**fixed, "gradient": lambda theta, i=i: functional(theta, *batches[i])}
                call["noise"] = {name: x[i] for name, x in drawn.items()}
                state = function(state, h, temperature=T, **call)
                states.append(state)
            total = torch.stack([s[name].sum() for s in states for name in entries]).sum()
            return state, {name: torch.stack([s[name] for s in states], 1) for name in keep}, total.isfinite().to(total)

        several.__code__ = several.__code__.replace()  # dynamo counts the compilations of each code
        return several


def fits(stage: Stage, inputs: Inputs, state: Mapping[str, Any], least: int) -> bool:
    """Whether a stage has `least` steps or more, and its steps are functions of state, noise and batch alone."""
    step, program = stage.step, stage.step.program
    if stage.steps < least or callable(stage.step_size.value) or callable(stage.temperature.value):
        return False
    if program.gradients_per_step != 1 or list(program.derivatives) != [1] or inputs.target.functional is None:
        return False
    if program.observations or program.networks or program.scope != "chain":
        return False
    if StepCall(step, {"gradient": None}, inputs).numbered:
        return False
    has_noise = all(draw.kind in noise.KINDS for draw in program.draws)
    return has_noise and all(b.domain.is_real and _is_small(state[b.name]) for b in step.recipe.entries)


def _is_small(x: torch.Tensor) -> bool:
    """Whether a block is so small that a graph of several steps is faster than single steps."""
    if gpu.has_graphs(x.device):
        return x.numel() < SIZE_ON_GPU
    return is_near(x) and x.numel() < SIZE


def is_unrolled(plan: Plan, inputs: Inputs, state: Mapping[str, Any], least: int) -> bool:
    """Whether some stage of a run gets a graph of several steps."""
    if plan.has_parameters or any(step.program.has_operators for step in plan.steps):
        return False
    return any(fits(stage, inputs, state, least) for stage in plan.stages)


def _read(of_steps: Sequence[OfStep]) -> tuple[dict[str, torch.Tensor], list[tuple]]:
    """The noise of the steps by name, stacked, and the batch of each step."""
    drawn = {name: torch.stack([s.noise[name] for s in of_steps]) for name in of_steps[0].noise}
    return drawn, [s.data(0) for s in of_steps]


def _fault(compiled: Several, function: Several, state: dict, arguments: tuple) -> str:
    """The reason why the steps have no graph; "" where it agrees with the steps in torch, from two states in turn.

    A graph that captured nothing repeats its first result.
    """
    try:
        for _ in range(2):
            compiled_state, _, _ = compiled(state, *arguments)
            state, _, is_finite = function(state, *arguments)
            if is_finite and not agree(compiled_state, state):
                return "its numbers differ"
        return ""
    except Exception as error:  # raised by the compiler, or for the lack of one
        return in_short(error)
