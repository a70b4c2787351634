"""What the steps of a run read beside the state: the energy on its batches, noise under a seed, parameters."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from integrators import noise
from integrators.program import Program
from integrators.step import Step

from ..energies.derivatives import Derivatives, each
from ..energies.layout import Layout
from ..energies.several import Unbatched

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
        self.source = inputs.derivatives.data
        self.are_whole = self.source is None or self.source.batch_size is None
        self.whole = inputs.derivatives.batch(None)
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
    """The derivatives of an energy in one step after another, whose gradients see one batch after another.

    The curvature is on the batch of the latest gradient, observations are on the step's first.
    """

    def __init__(self, derivatives: Derivatives) -> None:
        self.derivatives = derivatives

    def begin(self, of_step: "OfStep", carried: Rows = None) -> "Evaluations":
        """Go on to a step; `carried`: the rows of the gradient that it takes over from the last one, if it does."""
        self.of_step = of_step
        self.carried = carried
        self.evaluated = 0
        # the functions of gradient and value that were asked last, where they were, and U there
        self.known: deque[tuple[Callable, Any, torch.Tensor]] = deque(maxlen=self.derivatives.potentials)
        return self

    @property
    def first(self) -> Rows:
        """The rows of the step's first gradient."""
        return self.of_step.rows(0) if self.carried is None else self.carried

    @property
    def latest(self) -> Rows:
        """The rows of its latest."""
        return self.of_step.rows(self.evaluated - 1) if self.evaluated else self.first

    def functions(self) -> dict[str, Any]:
        """Gradient, curvature, value and observations, as a step takes them; None where it has its own."""
        derivatives = self.derivatives
        return {
            "gradient": each(derivatives.gradient, self._gradient, derivatives.together),
            "value": each(derivatives.value, self._value, derivatives.together),
            "curvature": None if derivatives.curvature is None else partial(self._on_latest, derivatives.curvature),
            "observe": {name: partial(self._on_first, f) for name, f in derivatives.observations.items()},
        }

    def eager(self, theta: Any) -> Any:
        """The gradient on the first batch, by torch without a compiler."""
        assert self.derivatives.eager is not None
        return self.derivatives.eager(theta, *self.derivatives.batch(self.first))

    def _gradient(self, gradient: Callable, together: Callable | None) -> Callable:
        """The gradient on the next batch; with U in a pair, where that is asked for too, U is kept."""

        def on_next(theta: Any) -> Any:
            batch: tuple = ()
            if not isinstance(gradient, Unbatched):
                batch = self.of_step.data(self.evaluated)
                self.evaluated += 1
            if together is None:
                return gradient(theta, *batch)
            slope, U = together(theta, *batch)
            self.known.append((together, theta, U))
            return slope

        return on_next

    def _value(self, value: Callable, together: Callable | None) -> Callable:
        """U, which is known where its gradient has been taken."""

        def of(theta: Any) -> Any:
            for function, at, U in self.known:
                if function is together and _is_same(at, theta):
                    return U
            return value(theta, *self.derivatives.batch(self.latest))

        return of

    def _on_latest(self, curvature: Callable, theta: Any) -> Any:
        return curvature(theta, *self.derivatives.batch(self.latest))

    def _on_first(self, observation: Callable, theta: Any) -> Any:
        return observation(theta, *self.derivatives.batch(self.first))


def _is_same(one: Any, other: Any) -> bool:
    """Whether two targets are the same tensors, which a step does not change in place."""
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

    derivatives: Derivatives
    layout: Layout
    seed: int
    first_chain: int
    parameters: Mapping[str, Any]

    @property
    def constants(self) -> dict[str, Any]:
        """The parameters, and `num_data`, by which the energies of minibatches are scaled."""
        data = self.derivatives.data
        return {"num_data": 1 if data is None else data.rows, **self.parameters}

    def compiled(self, where: str) -> "Inputs":
        """The same with a gradient that torch compiles, where a run is worth it."""
        return replace(self, derivatives=self.derivatives.compiled(where))

    def key(self, number: int) -> noise.Key:
        """The noise of a step, to be drawn where it is used."""
        return noise.Key(self.seed, number, self.first_chain)

    def of_chain(self, chain: int) -> "Inputs":
        """What one chain reads, as if it were the only one."""
        return replace(self, first_chain=self.first_chain + chain)

    def evaluations(self, number: int, chains: int, chosen: torch.Tensor | None = None) -> Evaluations:
        """The derivatives on the batches of one step, which takes no gradient over; of the `chosen` chains."""
        batches = Batches(self, range(number, number + 1), chains, chosen)
        return Evaluations(self.derivatives).begin(OfStep(number, {}, batches, 0))

    def of_steps(self, step: Step, numbers: range, target: torch.Tensor, *, keyed: bool) -> Iterator[OfStep]:
        """What each of these steps reads, drawn for as many at once as have room.

        `target`: a block `(chains, *shape)` of it; if `keyed`, the noise is left to the kernel.
        """
        size = _steps_at_once(step.program, target, self.derivatives)
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


def _steps_at_once(program: Program, target: torch.Tensor, derivatives: Derivatives) -> int:
    """The number of steps for whose noise, and for whose rows, there is room."""
    evaluations = max(program.gradients_per_step, 1 if program.observations else 0) + 1
    batch_size = 0 if derivatives.data is None else derivatives.data.batch_size or 0
    rows = len(target) * batch_size * evaluations
    drawn = len(target) * target[0].numel() * len(program.draws)
    return max(1, NOISE_AT_ONCE // max(1, rows, drawn))
