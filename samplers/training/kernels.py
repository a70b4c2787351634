"""Kernels of a parameter group: its step as torch text or compiled, and copies in float32 of half-precision weights."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from integrators.kernels.addresses import starts
from integrators.kernels.sweep import Sweep
from integrators.kernels.walk import walk
from integrators.noise import Key
from integrators.optimizer_form import of_the_loss
from integrators.step import Step
from integrators.transfers import is_near

from .shards import Shards
from .tensors import by_chain, end_to_end, gradient_of_U, precise, put_back

COPY = "copy in float32"  # key in the state of a weight; no block bears this name
Tensors = Sequence[torch.Tensor]
Named = Mapping[str, torch.Tensor]


class Text:
    """The step of a group as torch text, on its parameters laid end to end, `(chains, sites)`.

    `states`: for every parameter the blocks of the recipe's state by name, scalar blocks with the first. Of sharded
    parameters and states these are the parts on this rank, and `step.spread` says which.
    """

    halves: Tensors = ()  # weights in half precision that a step rounds by itself

    def __init__(self, step: Step, params: Tensors, states: Sequence[Named], chains: int, prior: bool):
        recipe = step.recipe
        self.step = step
        self.params = params
        self.chains = chains
        self.prior = prior  # whether there is weight decay
        self.target = recipe.targets[0].name
        auxiliary = [b for b in recipe.entries if b not in recipe.targets]
        self.vectors = {b.name: [state[b.name] for state in states] for b in auxiliary if b.is_vector}
        self.scalars = {b.name: states[0][b.name] for b in auxiliary if not b.is_vector}

    def gradients(self, params: Tensors) -> np.ndarray | None:
        """The addresses of the gradients, if all tensors are as at the step before; None where this is not known."""
        return None

    def move(self, h: float, key: Key, gradients: Any, observe: Named, value: Any, /, **settings: Any) -> None:
        """Makes one step of size h from the gradients of the mean loss, or their addresses, and the noise of a key.

        `value`: U of each chain, `(chains,)`, where formulas read it; `settings`: num_data, weight_decay, temperature,
        the number of the step, and the recipe's parameters.
        """
        weight_decay = settings.pop("weight_decay")
        state = {self.target: end_to_end(self.params, self.chains)}
        state |= {b: end_to_end(tensors, self.chains) for b, tensors in self.vectors.items()} | self.scalars
        gradient = gradient_of_U(self.params, gradients, settings["num_data"], weight_decay, self.chains)
        new = self.step.function(
            state,
            h,
            **self.step.arguments(gradient, self.step.drawn(key, state), value=value, observe=as_functions(observe)),
            **self.step.spelled(settings),
        )
        put_back(new[self.target], self.params)
        for b, tensors in self.vectors.items():
            put_back(new[b], tensors)
        for b, number in self.scalars.items():
            number.copy_(new[b])


class Compiled(Text):
    """The step of a group as a compiled kernel, in place on its tensors.

    `clock`: the count of steps on the device, if it is kept there; `halves`: the weights of which `params` are copies.
    Triton rounds those in the same pass, from gradients in their precision. Raises the errors of `Sweep` where there is
    no kernel.
    """

    def __init__(
        self,
        step: Step,
        params: Tensors,
        states: Sequence[Named],
        chains: int,
        prior: bool,
        backend: str,
        shards: Shards | None,
        clock: torch.Tensor | None,
        halves: Tensors,
    ):
        super().__init__(step, params, states, chains, prior)
        self.clock = clock
        pieces = [] if shards is None else shards.pieces()
        self.parameter_of = None  # where a piece begins at a byte of its parameter, the number of that
        if len(pieces) not in (0, len(params)):
            self.parameter_of = [k for k, _, _ in pieces]
            self.bytes_before = np.array([i * params[k].element_size() for k, i, _ in pieces], np.int64)
        vectors = {self.target: params} | self.vectors
        state: dict[str, Any] = {b: [by_chain(t, chains) for t in tensors] for b, tensors in vectors.items()}
        if self.parameter_of is not None:
            state = {b: [rows[k][:, i : i + n] for k, i, n in pieces] for b, rows in state.items()}
        state |= self.scalars
        self.halves = halves if backend == "triton" and shards is None else ()
        rounded = [by_chain(p, chains) for p in self.halves]
        self.sweep = Sweep(of_the_loss(step.program, prior=prior), state, backend, step.spread, rounded).bind(state)
        if clock is not None:
            self.sweep.follow(clock)
        params = self.halves or params  # what gradients are like
        self.written = {start for start, p in zip(starts(params), params) if p.numel()}
        self.addresses = b""  # addresses of gradients that are no parameter
        self.walk = walk(params) if shards is None else None

    def gradients(self, params: Tensors) -> np.ndarray | None:
        """The addresses of the gradients, by the same pass over the tensors that looks for changes."""
        if self.walk is None or not self.walk(params):
            return None
        addresses = self.walk.gradients
        if addresses.tobytes() != self.addresses:
            if not self.written.isdisjoint(addresses.tolist()):
                return None
            self.addresses = addresses.tobytes()
        return addresses

    def move(self, h: float, key: Key, gradients: Any, observe: Named, value: Any, /, **settings: Any) -> None:
        """Makes one step like `Text.move`."""
        weight_decay = settings.pop("weight_decay")
        if self.prior:
            settings["prior_precision"] = settings["num_data"] * weight_decay
        at: Sequence[int] | np.ndarray
        if isinstance(gradients, np.ndarray):
            at = gradients
        else:
            at = starts(gradients)
            if not self.written.isdisjoint(at):  # a gradient that is a parameter
                gradients = [g.clone() for g in gradients]
                at = starts(gradients)
        if self.parameter_of is not None:
            at = np.array(at, np.int64)[self.parameter_of] + self.bytes_before
        self.sweep.step(h, key if self.clock is None else replace(key, step=0), at, observe, value, **settings)
        if self.clock is not None:
            self.clock.add_(1)


def as_functions(observe: Named) -> dict[str, Any]:
    """Observations as constant functions of theta."""
    return {name: lambda theta, value=value: value for name, value in observe.items()}


def copies_of(weights: Tensors, states: Mapping[torch.Tensor, dict[str, Any]]) -> Tensors:
    """The tensors that steps move: the weights, or for half precision their float32 copies, made in their states."""
    if precise(weights[0].dtype) == weights[0].dtype:
        return weights
    for p in weights:
        copy = torch.empty_like(p, dtype=torch.float32, requires_grad=False)
        states[p][COPY] = copy.copy_(states[p].get(COPY, p))
    return [states[p][COPY] for p in weights]


class Copies:
    """Copies in float32 of half-precision weights: steps move the copies, which are rounded to nearest into weights.

    Noise and steps below the weights' last digit add up in the copies. Weights that other code has written are copied
    anew; on a GPU, which is not waited for, writes are noticed by the tensor's version counter, which writes through
    `.data` bypass. `by_kernel`: whether the step reads gradients in half precision and rounds the copies.
    """

    def __init__(self, weights: Tensors, copies: Tensors, by_kernel: bool):
        self.weights = list(weights)
        self.copies = list(copies)
        self.by_kernel = by_kernel
        self.gradients = [] if by_kernel else [torch.empty_like(x) for x in copies]
        self.versions: list[int] = []

    def precise(self, gradients: Any) -> Any:
        """The gradients as the step reads them, after weights that others wrote since the last step are copied anew."""
        if is_near(self.weights[0]) or self.versions != [p._version for p in self.weights]:
            for p, x in zip(self.weights, self.copies):
                if not torch.equal(x.to(p.dtype), p):
                    x.copy_(p)
        if self.by_kernel:
            return gradients
        torch._foreach_copy_(self.gradients, list(gradients))
        return self.gradients

    def round(self) -> None:
        """Rounds the copies into the weights."""
        if not self.by_kernel:
            torch._foreach_copy_(self.weights, self.copies)
        self.versions = [p._version for p in self.weights]
