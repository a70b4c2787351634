"""What the steps of a run read beside the state: the energy on its batches, noise under a seed, parameters."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, partial
from typing import Any

import torch

from integrators import noise
from integrators.program import Program
from integrators.step import Step

from ..energies.data import Data
from ..energies.layout import Layout
from ..energies.potential import CURVATURE, VALUE, Jet, Orders, Potential
from ..energies.target import Target

NOISE_AT_ONCE = 2**20  # normals that are drawn together, for as many steps as they serve
GATHERED_AT_ONCE = 2**16  # numbers of batches that are gathered together, for as many steps: they stay in the cache

Rows = torch.Tensor | None  # of the batch of each chain, `(chains, batch_size)`; None for all data


class Batches:
    """The batches of some steps of so many chains, by the index of the step among them and by the evaluation in it.

    Rows are drawn for all of these steps at once, and what they hold is gathered for as many as have room. `chosen`:
    the chains that are asked for; all of them if left out.
    """

    def __init__(self, inputs: "Inputs", steps: range, chains: int, chosen: torch.Tensor | None = None) -> None:
        self.inputs = inputs
        self.steps = steps
        self.chains = chains
        self.chosen = chosen
        self.source = inputs.target.data
        self.are_whole = self.source is None or self.source.batch_size is None
        self.whole = inputs.target.batch(None)
        self._rows = cache(self._drawn)
        self._gathered: dict[int, tuple[int, list]] = {}  # the first step, and the batches from there on

    def rows(self, i: int, evaluation: int) -> Rows:
        """The rows of a batch, `(chains, batch_size)`."""
        return None if self.are_whole else self._rows(evaluation)[i]

    def data(self, i: int, evaluation: int) -> tuple:
        """A batch as the last argument of the energy; none without data."""
        if self.are_whole:
            return self.whole
        first, batches = self._gathered.get(evaluation, (0, []))
        if not first <= i < first + len(batches):
            first, batches = i, self._gather(self._rows(evaluation)[i:])
            self._gathered[evaluation] = first, batches
        return (batches[i - first],)

    def _drawn(self, evaluation: int) -> tuple[torch.Tensor, ...]:
        """The rows of each step."""
        assert self.source is not None
        rows = self.source.rows_for(self.inputs.seed, self.steps, evaluation, self.chains, self.inputs.first_chain)
        assert rows is not None
        return (rows if self.chosen is None else rows[:, self.chosen]).unbind()

    def _gather(self, rows: tuple[torch.Tensor, ...]) -> list:
        """The batches of as many of these steps as have room."""
        assert self.source is not None
        size = max(1, GATHERED_AT_ONCE // max(1, rows[0].numel() * self.source.width))
        return self.source.batches(torch.stack(rows[:size]))


class Evaluations:
    """The functions that a step asks of a target, on one batch after another, or each as the mean over several batches.

    Gradients go from batch to batch, the value and the curvature are on the batch of the latest gradient, observations
    on that of the first. `first_gradient`: where the step took its first gradient, and what it was there.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.of_gradient = target.orders & {0, 1} | {1}
        self.first_gradient: tuple[Any, Any] | None = None

    def begin(self, *sources: "OfStep", carried: Sequence[Rows] | None = None) -> "Evaluations":
        """Go on to a step that reads these batches; `carried`: the rows of the gradient that the step takes over."""
        self.sources = sources
        self.first = [source.rows(0) for source in sources] if carried is None else list(carried)
        self.latest = self.first
        self.evaluated = 0
        self.first_gradient = None
        # the potentials whose gradients were asked for last, where, and U there
        self.known: deque[tuple[Potential, Any, torch.Tensor]] = deque(maxlen=self.target.potentials)
        return self

    def functions(self) -> dict[str, Any]:
        """Gradient, curvature, value and observations, as a step takes them; None where it has its own."""
        target = self.target
        own = {} if target.is_inlined else target.parts

        def of_each(function: Callable) -> Any:
            functions = {key: partial(function, part) for key, part in own.items()}
            return functions if target.is_by_name else functions.get("U")

        return {
            "gradient": of_each(self._gradient),
            "value": of_each(self._value) if 0 in target.orders else None,
            "curvature": self._curvature if own and 2 in target.orders else None,
            "observe": {name: partial(self._observation, f) for name, f in target.observations.items()},
        }

    def _gradient(self, part: Potential, theta: Any) -> Any:
        """The gradient on the next batch, kept with U where that is asked for too."""
        batches = [()]
        if part.reads_data:
            batches = [source.data(self.evaluated) for source in self.sources]
            self.latest = [source.rows(self.evaluated) for source in self.sources]
            self.evaluated += 1
        jet = _mean([self._jet(part, theta, batch, self.of_gradient) for batch in batches])
        if jet.value is not None:
            self.known.append((part, theta, jet.value))
        if self.first_gradient is None:
            self.first_gradient = theta, jet.slope
        return jet.slope

    def _value(self, part: Potential, theta: Any) -> Any:
        """U, which is known where its gradient has been taken."""
        for function, at, U in self.known:
            if function is part and _is_same(at, theta):
                return U
        return self._on_latest(part, theta, VALUE).value

    def _curvature(self, theta: Any) -> Any:
        assert self.target.whole is not None
        return self._on_latest(self.target.whole, theta, CURVATURE).curvature

    def _on_latest(self, part: Potential, theta: Any, orders: Orders) -> Jet:
        return _mean([self._jet(part, theta, self.target.batch(rows), orders) for rows in self.latest])

    def _jet(self, part: Potential, theta: Any, batch: tuple, orders: Orders) -> Jet:
        return self.target.jet(part, theta, batch, orders=orders, per_chain=self.target.is_minibatched)

    def _observation(self, observation: Callable, theta: Any) -> Any:
        return _average([observation(theta, *self.target.batch(rows)) for rows in self.first])


def _mean(jets: Sequence[Jet]) -> Jet:
    """The mean of some jets."""
    if len(jets) == 1:
        return jets[0]
    return Jet(*(_average([getattr(jet, f.name) for jet in jets]) for f in fields(Jet)))


def _average(values: Sequence[Any]) -> Any:
    """The mean of tensors, or of tensors by name; None where there are none."""
    if values[0] is None or len(values) == 1:
        return values[0]
    if isinstance(values[0], Mapping):
        return {name: _average([value[name] for value in values]) for name in values[0]}
    return sum(values) / len(values)


def _is_same(one: Any, other: Any) -> bool:
    """Whether two positions are the same tensors, which a step does not change in place."""
    if isinstance(one, Mapping):
        return all(x is other[name] for name, x in one.items())
    return one is other


@dataclass(slots=True)
class OfStep:
    """What step `number` of a run reads: `noise` by name, none where a kernel draws it, and one of the `batches`."""

    number: int
    noise: dict[str, Any]
    batches: Batches
    index: int

    def rows(self, evaluation: int) -> Rows:
        """The rows of the batch of evaluation 0, 1, ..."""
        return self.batches.rows(self.index, evaluation)

    def data(self, evaluation: int) -> tuple:
        """That batch, as the last argument of the energy; none without data."""
        return self.batches.data(self.index, evaluation)


@dataclass(frozen=True)
class Inputs:
    """What the steps of a run read beside the state: a pure function of the seed, the step and the chain.

    `parameters`: those of the recipe by name, numbers or tensors of one value per site; chains count from
    `first_chain`.
    """

    target: Target
    seed: int
    first_chain: int
    parameters: Mapping[str, Any]

    @property
    def layout(self) -> Layout:
        """How energies see the target."""
        return self.target.layout

    @property
    def constants(self) -> dict[str, Any]:
        """The parameters, and `num_data`, by which the energies of minibatches are scaled."""
        data = self.target.data
        return {"num_data": 1 if data is None else data.rows, **self.parameters}

    def compiled(self, where: str) -> "Inputs":
        """The same with a gradient that torch compiles, where a run is worth it."""
        return replace(self, target=self.target.compile(where))

    def key(self, number: int) -> noise.Key:
        """The noise of a step, to be drawn where it is used."""
        return noise.Key(self.seed, number, self.first_chain)

    def of_chain(self, chain: int) -> "Inputs":
        """What one chain reads, as if it were the only one."""
        return replace(self, first_chain=self.first_chain + chain)

    def evaluations(self, number: int, chains: int, chosen: torch.Tensor | None = None) -> Evaluations:
        """The derivatives on the batches of one step, which takes no gradient over; of the `chosen` chains."""
        batches = Batches(self, range(number, number + 1), chains, chosen)
        return Evaluations(self.target).begin(OfStep(number, {}, batches, 0))

    def of_steps(self, step: Step, numbers: range, target: torch.Tensor, *, keyed: bool) -> Iterator[OfStep]:
        """What each of these steps reads, drawn for as many at once as have room.

        `target`: a block `(chains, *shape)` of it; if `keyed`, the noise is left to the kernel.
        """
        size = _steps_at_once(step.program, target, self.target.data)
        for first in range(numbers.start, numbers.stop, size):
            block = range(first, min(first + size, numbers.stop))
            drawn = {} if keyed else self._noise(step.program, block, target)
            batches = Batches(self, block, len(target))
            for i, number in enumerate(block):
                yield OfStep(number, {name: values[i] for name, values in drawn.items()}, batches, i)

    def _noise(self, program: Program, steps: range, target: torch.Tensor) -> dict[str, Sequence[Any]]:
        """The random numbers of each draw by its name, for each of these steps."""
        shape = tuple(target.shape[1:])
        scalar = (len(self.layout.shapes),) if program.scope == "tensor" and self.layout.shapes else ()
        kinds = noise.KINDS | noise.STATE_DEPENDENT
        drawn: dict[str, Any] = {
            draw.name: kinds[draw.kind](
                self.seed,
                steps,
                number,
                len(target),
                shape if draw.is_vector else scalar,
                dtype=target.dtype,
                device=target.device,
                first_chain=self.first_chain,
            )
            for number, draw in enumerate(program.draws)
        }
        return {name: values.unbind() if torch.is_tensor(values) else values for name, values in drawn.items()}


def _steps_at_once(program: Program, target: torch.Tensor, data: Data | None) -> int:
    """The number of steps for whose noise, and for whose rows, there is room."""
    evaluations = max(program.gradients_per_step, 1 if program.observations else 0) + 1
    batch_size = 0 if data is None else data.batch_size or 0
    rows = len(target) * batch_size * evaluations
    drawn = len(target) * target[0].numel() * len(program.draws)
    return max(1, NOISE_AT_ONCE // max(1, rows, drawn))
