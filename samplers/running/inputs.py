"""The inputs of a run's steps beside the state: the energy on its batches, noise under a seed, parameters."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from integrators import noise
from integrators.program import Program
from integrators.step import Step
from integrators.transfers import is_near

from ..target.data import Data
from ..target.layout import Layout
from ..target.potential import CURVATURE, SLOPE, VALUE, Jet, Orders, Potential
from ..target.target import Target

NOISE_AT_ONCE = 2**20  # normals drawn in one call, for several steps
GATHERED_AT_ONCE = 2**16  # numbers of batches gathered in one call, few enough for the cache
GATHERED_ON_GPU = 2**22  # the same on a GPU, where launches take longer

Rows = torch.Tensor | None  # of the batch of each chain, `(chains, batch_size)`; None for all data


class Batches:
    """The batches of `steps` for `chains` chains, by the index of the step and the number of the evaluation in it.

    Rows are drawn for all steps at once; batches are gathered for several steps at once. `chosen`: the indices of the
    chains whose batches are returned; all chains if None.
    """

    def __init__(self, inputs: "Inputs", steps: range, chains: int, chosen: torch.Tensor | None = None) -> None:
        self.inputs = inputs
        self.steps = steps
        self.chains = chains
        self.chosen = chosen
        self.whole = None if inputs.target.is_minibatched else inputs.target.batch(None)
        self._drawn: dict[int, tuple[torch.Tensor, ...]] = {}
        self._gathered: dict[int, tuple[int, list]] = {}  # the first step, and the batches from there on

    def rows(self, i: int, evaluation: int) -> Rows:
        """The rows of a batch, `(chains, batch_size)`; None for all data."""
        return None if self.whole is not None else self._rows(evaluation)[i]

    def data(self, i: int, evaluation: int) -> tuple:
        """The batch as the tuple of the energy's last argument; empty without data."""
        source = self.inputs.target.data
        if self.whole is not None or source is None:
            return self.whole or ()
        first, batches = self._gathered.get(evaluation, (0, []))
        if not first <= i < first + len(batches):
            rows = self._rows(evaluation)[i:]
            capacity = GATHERED_AT_ONCE if is_near(rows[0]) else GATHERED_ON_GPU
            size = max(1, capacity // max(1, rows[0].numel() * source.width))
            first, batches = i, source.batches(torch.stack(rows[:size]))
            self._gathered[evaluation] = first, batches
        return (batches[i - first],)

    def _rows(self, evaluation: int) -> tuple[torch.Tensor, ...]:
        if evaluation not in self._drawn:
            source, inputs = self.inputs.target.data, self.inputs
            assert source is not None
            integers = inputs.functions["integers"]
            rows = source.rows_for(inputs.seed, self.steps, evaluation, self.chains, inputs.first_chain, integers)
            assert rows is not None
            self._drawn[evaluation] = (rows if self.chosen is None else rows[:, self.chosen]).unbind()
        return self._drawn[evaluation]


class Evaluations:
    """Gradient, value, curvature and observations of a target for one step, each a mean over the batches of `sources`.

    Each gradient is on the next batch; the value and the curvature are on the batch of the latest gradient, or the
    value on all data where proposals are accepted by it; observations are on the batch of the first.
    `first_gradient`: position and value of the step's first gradient.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.of_gradient = SLOPE if target.accepts_by_all else target.orders & {0, 1} | {1}
        self.first_gradient: tuple[Any, Any] | None = None

    def begin(self, *sources: "OfStep", carried: Sequence[Rows] | None = None) -> "Evaluations":
        """Begin a step that reads `sources`; `carried`: the rows of the gradient taken over from the last step."""
        self.sources = sources
        self.first = [source.rows(0) for source in sources] if carried is None else list(carried)
        self.latest = self.first
        self.evaluated = 0
        self.first_gradient = None
        # potential, position and U of the latest gradients
        self.known: deque[tuple[Potential, Any, torch.Tensor]] = deque(maxlen=self.target.potentials)
        return self

    def functions(self) -> dict[str, Any]:
        """Gradient, curvature, value and observations as arguments of a step; None for those inlined in the step."""
        target = self.target
        parts = {} if target.is_inlined else target.parts

        def of_each(function: Callable) -> Any:
            functions = {key: partial(function, part) for key, part in parts.items()}
            return functions if target.is_by_name else functions.get("U")

        return {
            "gradient": of_each(self._gradient),
            "value": of_each(self._value) if 0 in target.orders else None,
            "curvature": self._curvature if parts and 2 in target.orders else None,
            "observe": {name: partial(self._observation, f) for name, f in target.observations.items()},
        }

    def _gradient(self, part: Potential, theta: Any) -> Any:
        """The gradient on the next batch; stores U of the same evaluation where steps need U."""
        batches = [()]
        if part.reads_data:
            batches = [source.data(self.evaluated) for source in self.sources]
            self.latest = [source.rows(self.evaluated) for source in self.sources]
            self.evaluated += 1
        jet = self._jet(part, theta, batches, self.of_gradient)
        if jet.value is not None:
            self.known.append((part, theta, jet.value))
        if self.first_gradient is None:
            self.first_gradient = theta, jet.slope
        return jet.slope

    def _value(self, part: Potential, theta: Any) -> Any:
        """U on all data, or on the latest batch, stored where its gradient has been taken at the same tensors."""
        if self.target.accepts_by_all:
            return self.target.jet(part, theta, self.target.batch(None), orders=VALUE, per_chain=False).value
        for function, at, U in self.known:
            pairs = zip(tree_leaves(theta), tree_leaves(at))
            if function is part and all(x is y for x, y in pairs):  # steps change no tensor in place
                return U
        return self._on_latest(part, theta, VALUE).value

    def _on_latest(self, part: Potential, theta: Any, orders: Orders) -> Jet:
        return self._jet(part, theta, [self.target.batch(rows) for rows in self.latest], orders)

    def _curvature(self, theta: Any) -> Any:
        assert self.target.whole is not None
        return self._on_latest(self.target.whole, theta, CURVATURE).curvature

    def _jet(self, part: Potential, theta: Any, batches: Sequence[tuple], orders: Orders) -> Jet:
        """The mean of the jets on several batches, derivative by derivative."""
        per_chain = self.target.is_minibatched
        jets = [self.target.jet(part, theta, batch, orders=orders, per_chain=per_chain) for batch in batches]
        if len(jets) == 1:
            return jets[0]
        return Jet(*(_average([getattr(jet, f.name) for jet in jets]) for f in fields(Jet)))

    def _observation(self, observation: Callable, theta: Any) -> Any:
        return _average([observation(theta, *self.target.batch(rows)) for rows in self.first])


def _average(values: Sequence[Any]) -> Any:
    if values[0] is None or len(values) == 1:
        return values[0]
    return tree_map(lambda *parts: sum(parts) / len(parts), *values)


@dataclass(slots=True)
class OfStep:
    """Inputs of step `number`: `noise` by name, empty where a kernel draws noise, and batches at `index`."""

    number: int
    noise: dict[str, Any]
    batches: Batches
    index: int

    def rows(self, evaluation: int) -> Rows:
        """The rows of the batch of evaluation 0, 1, ..., `(chains, batch_size)`."""
        return self.batches.rows(self.index, evaluation)

    def data(self, evaluation: int) -> tuple:
        """The batch of an evaluation, as the tuple of the energy's last argument; empty without data."""
        return self.batches.data(self.index, evaluation)


@dataclass(frozen=True)
class Inputs:
    """The inputs of a run's steps beside the state: a pure function of the seed, the step and the chain.

    `parameters`: the recipe's by name, numbers or tensors of one value per site; `first_chain`: the number of chain 0;
    `functions`: those that draw noise and rows, by the kind of their numbers.
    """

    target: Target
    seed: int
    first_chain: int
    parameters: Mapping[str, Any]
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=noise.FUNCTIONS.copy)

    @property
    def layout(self) -> Layout:
        """The layout by which energies see the target."""
        return self.target.layout

    @property
    def constants(self) -> dict[str, Any]:
        """The parameters by name, with `num_data`, the number of rows of the data."""
        data = self.target.data
        return {"num_data": 1 if data is None else data.rows, **self.parameters}

    def compiled(self, where: str) -> "Inputs":
        """These inputs with a gradient that torch compiles; `where` begins messages."""
        return replace(self, target=self.target.compile(where))

    def key(self, number: int) -> noise.Key:
        """The key from which a kernel draws the noise of step `number`."""
        return noise.Key(self.seed, number, self.first_chain)

    def of_chain(self, chain: int) -> "Inputs":
        """The inputs of one chain as a run of its own."""
        return replace(self, first_chain=self.first_chain + chain)

    def rows(self, number: int, chains: int, evaluation: int = 0) -> Rows:
        """The rows of the batches of an evaluation in step `number`, `(chains, batch_size)`; None for all data."""
        if not self.target.is_minibatched:
            return None
        return Batches(self, range(number, number + 1), chains).rows(0, evaluation)

    def evaluations(self, number: int, chains: int, chosen: torch.Tensor | None = None) -> Evaluations:
        """The evaluations of step `number` without a carried gradient, for the `chosen` chains or all."""
        batches = Batches(self, range(number, number + 1), chains, chosen)
        return Evaluations(self.target).begin(OfStep(number, {}, batches, 0))

    def of_steps(self, step: Step, numbers: range, target: torch.Tensor, *, keyed: bool) -> Iterator[OfStep]:
        """Yields the inputs of each step in `numbers`; noise and rows are drawn for several steps at once.

        `target`: a block of the target, `(chains, *shape)`; if `keyed`, a kernel draws the noise.
        """
        size = _steps_at_once(step.program, target, self.target.data)
        for first in range(numbers.start, numbers.stop, size):
            block = range(first, min(first + size, numbers.stop))
            drawn = {} if keyed else self._noise(step.program, block, target)
            batches = Batches(self, block, len(target))
            for i, number in enumerate(block):
                yield OfStep(number, {name: values[i] for name, values in drawn.items()}, batches, i)

    def _noise(self, program: Program, steps: range, target: torch.Tensor) -> dict[str, Sequence[Any]]:
        """The random numbers by the name of the draw, one entry for each step."""
        shape = tuple(target.shape[1:])
        scalar = (len(self.layout.shapes),) if program.scope == "tensor" and self.layout.shapes else ()
        drawn: dict[str, Any] = {
            draw.name: self.functions[draw.kind](
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
    """The number of steps whose noise and rows are drawn at once, at least 1."""
    evaluations = max(program.gradients_per_step, 1 if program.observations else 0) + 1
    batch_size = 0 if data is None else data.batch_size or 0
    rows = len(target) * batch_size * evaluations
    drawn = len(target) * target[0].numel() * len(program.draws)
    return max(1, NOISE_AT_ONCE // max(1, rows, drawn))
