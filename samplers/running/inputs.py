"""What the steps of a run read beside the state: the energy on its batches, noise under a seed, parameters."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch

from integrators import noise
from integrators.program import Program
from integrators.step import Step

from ..energies.derivatives import Derivatives
from ..energies.layout import Layout

NOISE_AT_ONCE = 2**20  # normals that are drawn together, for as many steps as they serve

Rows = torch.Tensor | None  # of the batch of each chain, `(chains, batch_size)`; None for all data


class Evaluations:
    """The derivatives of an energy in one step, whose gradients see one batch after another.

    `rows_of`: the rows of the batch of evaluation 0, 1, ...; `carried`: those of the gradient that the step takes over
    from the last one, if it does. The curvature is on the batch of the latest gradient, observations are on the step's
    first.
    """

    def __init__(self, derivatives: Derivatives, rows_of: Callable[[int], Rows], carried: Rows = None) -> None:
        self.derivatives = derivatives
        self.rows_of = rows_of
        self.first = rows_of(0) if carried is None else carried
        self.latest = self.first
        self.evaluated = 0
        self.known: tuple[Any, torch.Tensor] | None = None  # where U was last evaluated with its gradient, and U there

    def functions(self) -> dict[str, Any]:
        """Gradient, curvature, value and observations, as a step takes them; None where it has its own."""
        derivatives = self.derivatives
        return {
            "gradient": None if derivatives.gradient is None else partial(self._on_next, derivatives.gradient),
            "value": None if derivatives.value is None else self._value,
            "curvature": None if derivatives.curvature is None else partial(self._on_latest, derivatives.curvature),
            "observe": {name: partial(self._on_first, f) for name, f in derivatives.observations.items()},
        }

    def eager(self, theta: Any) -> Any:
        """The gradient on the first batch, by torch without a compiler."""
        assert self.derivatives.eager is not None
        return self.derivatives.eager(theta, *self.derivatives.batch(self.first))

    def _on_next(self, gradient: Callable, theta: Any) -> Any:
        self.latest = self.rows_of(self.evaluated)
        self.evaluated += 1
        batch = self.derivatives.batch(self.latest)
        if self.derivatives.together is None:
            return gradient(theta, *batch)
        slope, U = self.derivatives.together(theta, *batch)
        self.known = theta, U
        return slope

    def _value(self, theta: Any) -> Any:
        if self.known is not None and _is_same(self.known[0], theta):
            return self.known[1]
        assert self.derivatives.value is not None
        return self.derivatives.value(theta, *self.derivatives.batch(self.latest))

    def _on_latest(self, curvature: Callable, theta: Any) -> Any:
        return curvature(theta, *self.derivatives.batch(self.latest))

    def _on_first(self, observation: Callable, theta: Any) -> Any:
        return observation(theta, *self.derivatives.batch(self.first))


def _is_same(one: Any, other: Any) -> bool:
    """Whether two targets are the same tensors, which a step does not change in place."""
    if isinstance(one, Mapping):
        return all(x is other[name] for name, x in one.items())
    return one is other


@dataclass(frozen=True)
class OfStep:
    """What step `number` of a run reads: `noise` by name, none where a kernel draws it, and `rows_of` evaluations."""

    number: int
    noise: dict[str, Any]
    rows_of: Callable[[int], Rows]


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

    def key(self, number: int) -> noise.Key:
        """The noise of a step, to be drawn where it is used."""
        return noise.Key(self.seed, number, self.first_chain)

    def of_chain(self, chain: int) -> "Inputs":
        """What one chain reads, as if it were the only one."""
        return replace(self, first_chain=self.first_chain + chain)

    def evaluations(self, number: int, chains: int, chosen: torch.Tensor | None = None) -> Evaluations:
        """The derivatives on the batches of one step, which takes no gradient over; of the `chosen` chains."""
        rows_of = self._rows(range(number, number + 1), chains)(0)
        if chosen is None:
            return Evaluations(self.derivatives, rows_of)

        def of_chosen(evaluation: int) -> Rows:
            rows = rows_of(evaluation)
            return None if rows is None else rows[chosen]

        return Evaluations(self.derivatives, of_chosen)

    def of_steps(self, step: Step, numbers: range, target: torch.Tensor, *, keyed: bool) -> Iterator[OfStep]:
        """What each of these steps reads, drawn for as many at once as have room.

        `target`: a block `(chains, *shape)` of it; if `keyed`, the noise is left to the kernel.
        """
        size = _steps_at_once(step.program, target, self.derivatives)
        for first in range(numbers.start, numbers.stop, size):
            block = range(first, min(first + size, numbers.stop))
            drawn = {} if keyed else self._noise(step.program, block, target)
            rows = self._rows(block, len(target))
            for i, number in enumerate(block):
                yield OfStep(number, {name: values[i] for name, values in drawn.items()}, rows(i))

    def _noise(self, program: Program, steps: range, target: torch.Tensor) -> dict[str, Any]:
        """The random numbers of each draw by its name, for each of these steps."""
        shape = tuple(target.shape[1:])
        scalar = (len(self.layout.shapes),) if program.scope == "tensor" and self.layout.shapes else ()
        kinds = noise.KINDS | noise.STATE_DEPENDENT
        return {
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

    def _rows(self, steps: range, chains: int) -> Callable[[int], Callable[[int], Rows]]:
        """The rows of the batches of these steps, by the index of the step among them and by the evaluation in it."""
        data = self.derivatives.data
        if data is None or data.batch_size is None:
            return lambda i: lambda evaluation: None

        @cache
        def of_evaluation(evaluation):
            return data.rows_for(self.seed, steps, evaluation, chains, self.first_chain)

        return lambda i: lambda evaluation: of_evaluation(evaluation)[i]


def _steps_at_once(program: Program, target: torch.Tensor, derivatives: Derivatives) -> int:
    """The number of steps for whose noise, and for whose rows, there is room."""
    evaluations = max(program.gradients_per_step, 1 if program.observations else 0) + 1
    batch_size = 0 if derivatives.data is None else derivatives.data.batch_size or 0
    rows = len(target) * batch_size * evaluations
    drawn = len(target) * target[0].numel() * len(program.draws)
    return max(1, NOISE_AT_ONCE // max(1, rows, drawn))
