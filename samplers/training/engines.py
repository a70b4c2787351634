"""Engines, which move the tensors of a parameter group by one step: torch text, or a compiled kernel."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from integrators.kernels.addresses import Alike, starts
from integrators.kernels.sweep import Sweep
from integrators.kernels.walk import walk
from integrators.noise import Key
from integrators.optimizer_form import of_the_loss
from integrators.processes import Spread
from integrators.step import Step
from integrators.transfers import is_near

from .shards import cut
from .tensors import by_chain, end_to_end, flat, gradient_of_U, put_back


class TextEngine:
    """The step of a group as torch text, on its parameters laid end to end, `(chains, sites)`.

    `states`: for every parameter the blocks of the recipe's state by name, scalar blocks with the first. Of sharded
    parameters and states these are the parts on this rank, and `step.spread` says which.
    """

    def __init__(
        self,
        step: Step,
        params: Sequence[torch.Tensor],
        states: Sequence[Mapping[str, torch.Tensor]],
        *,
        chains: int = 1,
    ):
        recipe = step.recipe
        self.chains = chains
        self.step = step
        self.params = params
        self.target = recipe.targets[0].name
        others = [b for b in recipe.entries if b not in recipe.targets]
        self.vectors = {b.name: [state[b.name] for state in states] for b in others if b.is_vector}
        self.scalars = {b.name: states[0][b.name] for b in others if not b.is_vector}
        self.starts = starts(params)
        sizes = [(p.numel(), k) for k, p in enumerate(params) if p.numel() and is_near(p)]
        self.shortest = min(sizes)[1] if sizes else None
        self.as_parameters = Alike(params)
        self.as_gradients = Alike([p.detach() for p in params])

    def sees_infinities(self, group: Mapping[str, Any]) -> bool:
        """Whether the shortest gradient is not finite, as after a loss that is not finite.

        False on a GPU, where looking would wait for the device.
        """
        return self.shortest is not None and not math.isfinite(float(group["params"][self.shortest].grad.sum()))

    def finds(self, group: Mapping[str, Any]) -> bool:
        """Whether this engine finds the gradients itself, and all tensors are as at the step before."""
        return False

    def takes(self, gradients: Sequence[Any]) -> bool:
        """Whether the gradients are there, and lie in memory as the parameters do."""
        return self.as_gradients(gradients)

    def fits(self, group: Mapping[str, Any]) -> bool:
        """Whether the group has the same tensors, at the same addresses."""
        return starts(group["params"]) == self.starts

    def fits_closely(self, group: Mapping[str, Any]) -> bool:
        """Whether the group's tensors also have the same shapes, strides and types, as `takes` implies as a rule."""
        return self.fits(group) and self.as_parameters(group["params"])

    def move(
        self,
        h: float,
        gradients: Sequence[torch.Tensor],
        key: Key,
        observe: Mapping[str, torch.Tensor],
        value: torch.Tensor | None = None,
        /,
        *,
        num_data: int,
        weight_decay: float,
        **parameters: Any,
    ) -> None:
        """Makes one step of size h from the gradients of the mean loss and the noise of a key.

        `value`: U of each chain, `(chains,)`, where formulas read it.
        """
        state = {self.target: end_to_end(self.params, self.chains)}
        state |= {b: end_to_end(tensors, self.chains) for b, tensors in self.vectors.items()} | self.scalars
        gradient = gradient_of_U(self.params, gradients, num_data, weight_decay, self.chains)
        new = self.step.function(
            state,
            h,
            **self.step.arguments(gradient, self.step.drawn(key, state), value=value, observe=as_functions(observe)),
            **self.step.spelled(parameters | {"num_data": num_data}),
        )
        put_back(new[self.target], self.params)
        for b, tensors in self.vectors.items():
            put_back(new[b], tensors)
        for b, number in self.scalars.items():
            number.copy_(new[b])


class KernelEngine(TextEngine):
    """The step of a group as a compiled kernel, in place on its tensors.

    `prior`: whether there is weight decay; `clock`: the count of steps on the device, if it is kept there. Raises the
    errors of `Sweep` where there is no kernel.
    """

    def __init__(
        self,
        step: Step,
        params: Sequence[torch.Tensor],
        states: Sequence[Mapping[str, torch.Tensor]],
        *,
        prior: bool,
        backend: str,
        chains: int = 1,
        clock: torch.Tensor | None = None,
    ):
        super().__init__(step, params, states, chains=chains)
        self.prior = prior
        self.clock = clock
        program = of_the_loss(step.program, prior=prior)
        vectors = {self.target: params} | self.vectors
        pieces = [] if step.spread is None else _pieces(step.spread, params)
        self.whole = len(pieces) in (0, len(params))  # otherwise a piece begins at a byte of its parameter
        self.parameter_of = [k for k, _, _ in pieces]
        self.bytes_before = np.array([i * params[k].element_size() for k, i, _ in pieces], np.int64)
        state: dict[str, Any] = {b: [by_chain(t, chains) for t in tensors] for b, tensors in vectors.items()}
        if not self.whole:
            state = {b: [flat(tensors[k])[None, i : i + n] for k, i, n in pieces] for b, tensors in vectors.items()}
        state |= self.scalars
        self.sweep = Sweep(program, state, backend, step.spread).bind(state)
        if clock is not None:
            self.sweep.follow(clock)
        own = {start for start, p in zip(starts(params), params) if p.numel()}
        self.written_before_read = own if self.sweep.has_passes else set()
        self.walk = walk(params) if step.spread is None else None

    def finds(self, group: Mapping[str, Any]) -> bool:
        """Whether all tensors are as at the step before; the same pass over the tensors finds the gradients."""
        if self.walk is None or bool(group["weight_decay"]) != self.prior or not self.walk(group["params"]):
            return False
        return not self.written_before_read or self.written_before_read.isdisjoint(self.walk.gradients.tolist())

    def fits(self, group: Mapping[str, Any]) -> bool:
        """Whether the group has the same tensors, at the same addresses, and still has, or has not, weight decay."""
        return super().fits(group) and bool(group["weight_decay"]) == self.prior

    def move(
        self,
        h: float,
        gradients: Sequence[torch.Tensor],
        key: Key,
        observe: Mapping[str, torch.Tensor],
        value: torch.Tensor | None = None,
        /,
        *,
        num_data: int,
        weight_decay: float,
        **parameters: Any,
    ) -> None:
        """Makes one step of size h from the gradients of the mean loss, given or found by `finds`, and the noise."""
        parameters["num_data"] = num_data
        if self.prior:
            parameters["prior_precision"] = num_data * weight_decay
        addresses = self.as_gradients.addresses(gradients)
        if not self.written_before_read.isdisjoint(addresses):  # a gradient that is its parameter
            gradients = [g.clone() for g in gradients]
            addresses = self.as_gradients.addresses(gradients)
        at: Sequence[int] | np.ndarray = addresses if addresses or self.walk is None else self.walk.gradients
        if not self.whole:
            at = np.array(addresses, np.int64)[self.parameter_of] + self.bytes_before
        self.sweep.step(h, key if self.clock is None else replace(key, step=0), at, observe, value, **parameters)
        if self.clock is not None:
            self.clock.add_(1)


def _pieces(spread: Spread, params: Sequence[torch.Tensor]) -> list[tuple[int, int, int]]:
    """For each run of sites: the number of its parameter, the offset in that parameter's part, and its length."""
    return [
        (k, piece.start, spread.runs[piece.run].sites) for k, some in enumerate(cut(spread, params)) for piece in some
    ]


def as_functions(observe: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """Observations as constant functions of theta."""
    return {name: lambda theta, value=value: value for name, value in observe.items()}
