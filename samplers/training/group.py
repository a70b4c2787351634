"""A parameter group in motion: the kernel that is bound to its tensors, and the look at the gradients of a step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from typing import Any
from weakref import WeakValueDictionary

import torch

from integrators import noise, operator_checks, operators, streams
from integrators.kernels import gpu
from integrators.kernels.addresses import comparison, starts
from integrators.kernels.fallback import BY_DEVICE, kernel_or_none
from integrators.relaxation import relaxation_steps
from integrators.step import Step
from integrators.transfers import is_near
from recipe.errors import RecipeError, warn

from ..results.temperatures import Temperature, temperature_of
from . import rates
from .blocks import States, begin
from .kernels import Compiled, Copies, Named, Tensors, Text, as_functions, copies_of
from .loop_report import ADDED, LoopChain
from .monitored_sites import MonitoredSites
from .monitors import HEATING, Look, Monitors, masses_of
from .rates import SETTINGS, Rates, in_words
from .sampler import Sampler
from .shards import Shards, is_sharded, local, shards_of, with_local_gradient
from .stacked import chains_of, count, labels
from .tensors import (
    by_chain,
    check_finite,
    check_gradients_apart,
    check_parameters,
    gradient_of_U,
    observations_like,
    unreached,
    usable_gradients,
)

STEPPED: WeakValueDictionary = WeakValueDictionary()  # by seed and chain, the group that made the latest step
CHECKED = 50  # steps from one look for numbers that are not finite to the next


class Binding:
    """The kernel of a group with its tensors as they were when it was made, their copies in float32, and some sites."""

    def __init__(self, params: Sequence[torch.Tensor], kernel: Text, copies: Copies | None, sites: MonitoredSites):
        self.kernel = kernel
        self.copies = copies
        self.sites = sites
        self.starts = starts(params)
        self.as_params = comparison(params)
        self.as_gradients = comparison([p.detach() for p in params])
        near = [(p.numel(), k) for k, p in enumerate(params) if p.numel() and is_near(p)]
        self.shortest = min(near)[1] if near else None  # a look at a gradient on a GPU would wait for the device

    def gradients(self, params: Sequence[torch.Tensor]) -> Any:
        """The addresses of finite gradients, where the kernel finds all tensors as they were at the step before."""
        gradients = self.kernel.gradients(params)
        k = self.shortest
        return None if gradients is None or k is not None and not _is_finite(params[k].grad) else gradients

    def are_finite(self, gradients: Sequence[Any]) -> bool:
        """Whether the sum of the shortest gradient is finite, which it is not after a loss that is not."""
        return self.shortest is None or _is_finite(gradients[self.shortest])


class Group:
    """A parameter group in motion.

    `group`: torch's dict of its parameters and settings; `index`: its number; `states`: torch's, by parameter.
    """

    def __init__(self, sampler: Sampler, index: int, group: dict[str, Any], states: States, monitors: Monitors):
        self.sampler = sampler
        self.index = index
        self.group = group
        self.states = states
        self.monitor = monitors.of(index)
        self.clipping = monitors.clipping
        self._binding: Binding | None = None  # from the first step on
        self.clock: torch.Tensor | None = None  # the count of steps on the device, if `capturable`
        self._settings = itemgetter(*SETTINGS, *sampler.step.parameters)
        self._in_use: tuple[tuple, Rates] | None = None  # values of the settings, and their Rates
        self._warned_of_skipped = False
        self._shared = 0  # steps in a row whose noise another optimizer has just drawn

    @property
    def chain(self) -> int:
        """The number of the first chain in the noise."""
        chains = chains_of(self.group["params"])
        return self.sampler.chain + self.index * streams.GROUP + chains.start

    @property
    def setting(self) -> Rates:
        """Step size, temperature and parameters in use, computed anew when settings change."""
        values = self._settings(self.group)
        if self._in_use is None or self._in_use[0] != values:
            self._in_use = values, rates.setting(self.sampler.step, self.sampler.where, self.group, budget=False)
        return self._in_use[1]

    @cached_property
    def shards(self) -> Shards | None:
        """The sites on this rank of sharded parameters, else None; all ranks make the first call together.

        Raises RecipeError where settings differ between ranks, and for steps that sharded parameters do not support.
        """
        params, step, where = self.group["params"], self.sampler.step, self.sampler.where
        if not params or not is_sharded(params[0]):
            return None
        self._check_sharding()
        settings = {name: self.group[name] for name in (*SETTINGS, "step_number")} | self.group["sampler"]
        settings["parameters"] = {name: self.group[name] for name in step.parameters}
        return shards_of(f"{where}, group {self.index}", params, settings)

    def step(self, observe: Mapping[str, torch.Tensor], value: torch.Tensor | None) -> None:
        """Moves the parameters by one step; `value`: U of each chain, where formulas read it."""
        group, sampler = self.group, self.sampler
        number = group["step_number"]
        params = group["params"]
        if is_sharded(params[0]):
            params = list(map(with_local_gradient, params))
        if observe:
            observe = observations_like(f"{sampler.where}, step", sampler.step.recipe, observe, params)
        binding = self._binding
        if binding is not None and binding.kernel.prior != bool(group["weight_decay"]):
            binding = None
        checked = gpu.is_capturing() or number % CHECKED == 0 or self.clipping.looks_on
        gradients = None if checked or binding is None else binding.gradients(params)
        skipped: Sequence[int] = ()  # numbers of the parameters that stay: without a gradient, as in torch
        if binding is None or gradients is None:
            binding, gradients, skipped = self._checked_gradients(binding, params, observe)
        if self.monitor.looks_on(number) and not gpu.is_capturing():
            chosen = [gradients[k] if isinstance(gradients, list) else params[k].grad for k in binding.sites.chosen]
            self.monitor.see(Look(group, self.setting, binding.sites, chosen, skipped))
        if binding.copies is not None:
            gradients = binding.copies.precise(gradients)
        setting = self.setting
        originals = self._originals(params, skipped) if skipped else []
        binding.kernel.move(
            setting.step_size,
            noise.Key(sampler.seed, number, self.chain),
            gradients,
            observe,
            value,
            temperature=setting.temperature,
            num_data=group["num_data"],
            weight_decay=group["weight_decay"],
            step_number=number,
            **setting.parameters,
        )
        for tensor, original in originals:
            tensor.copy_(original)
        if binding.copies is not None:
            binding.copies.round()
        group["step_number"] += 1

    def _originals(
        self, params: Sequence[torch.Tensor], skipped: Sequence[int]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The tensors of the parameters of these numbers, weights and states, with copies.

        Raises RecipeError for a recipe whose scalars are of all parameters, skipped ones too.
        """
        where = f"{self.sampler.where}, step"
        what = f"of group {self.index} the loss has not reached parameter {', '.join(map(str, skipped))}"
        scalars = [b.name for b in self.sampler.recipe.entries if not b.is_vector]
        if scalars:
            do = "Leave out what the loss does not use, or take a recipe with a value per parameter, such as msgnht."
            raise RecipeError(where, f"{what}, and {scalars[0]} is one value of all parameters", do=do)
        if not self._warned_of_skipped:
            self._warned_of_skipped = True
            warn(
                f"{where}: {what}, which stays as it is, as in torch, in each step without a gradient: the law is that "
                "of the others given it."
            )
        weights = [params[k] for k in skipped]
        states = [t for p in weights for t in self.states[p].values()]
        return [(t, t.clone()) for t in (*weights, *states)]

    def _checked_gradients(
        self, binding: Binding | None, params: Sequence[torch.Tensor], observe: Mapping[str, torch.Tensor]
    ) -> tuple[Binding, Sequence[torch.Tensor], Sequence[int]]:
        """The gradients of a step, checked, and the numbers of the parameters that it skips.

        Tensors that are not those of the binding, as it knows them, get a new one.
        """
        sampler, group = self.sampler, self.group
        number = group["step_number"]
        self._check_noise(number)
        captured = gpu.is_capturing()
        checked = number % CHECKED == 0
        gradients: Any = [p.grad for p in params]
        alike = binding is not None and binding.as_gradients(gradients)
        in_place = binding is not None and starts(params) == binding.starts
        if captured and not (sampler.capturable and alike and in_place):
            where = f"{sampler.where}, step"
            if not sampler.capturable:  # a captured step that replays would not repeat rightly
                raise RecipeError(where, "replays of a graph would repeat its noise", do="Pass capturable=True.")
            raise RecipeError(where, "a graph cannot begin a state", do="Make some steps first, on the same tensors.")
        skipped = [] if alike else unreached(group["params"])
        if not alike:
            gradients = usable_gradients(sampler.where, group["params"], self.index, skipped)
        if binding is None or not in_place or (checked or not alike) and not binding.as_params(params):
            check_gradients_apart(f"{sampler.where}, step", params, gradients)
            binding = self._binding = self._bound(params, gradients, observe)
        if not captured:
            if checked or not binding.are_finite(gradients):
                self.check_finite(gradients)
            if checked or self.clipping.looks_on:
                self.clipping.measure(gradients, self.shards)
        return binding, gradients, skipped

    def _check_noise(self, number: int) -> None:
        """Refuses the second of two optimizers whose steps alternate under one seed and chain, with the same noise."""
        key = self.sampler.seed, self.chain
        other = STEPPED.get(key, self)
        STEPPED[key] = self
        shares = other.states is not self.states and other.group["step_number"] == number + 1
        self._shared = self._shared + 1 if shares else 0
        if self._shared > 1:
            what = f"another Optimizer makes its steps in turn with this one, with the noise of seed {key[0]} too"
            free = self.sampler.chain + 1 + chains_of(self.group["params"])[-1]
            do = f"Pass chain={free} to one of them, or give its parameters as a group of the other."
            raise RecipeError(f"{self.sampler.where}, step", what, do=do)

    def check_finite(self, gradients: Sequence[torch.Tensor]) -> None:
        """Refuses gradients, weights and states that are not finite: on a GPU when their sizes have arrived."""
        params = self.group["params"]
        states = [self.states.get(p, {}) for p in params]
        tensors = {"the gradient of parameter": gradients, "parameter": params}
        for name in states[0] if states else ():  # scalar blocks are with the first parameter alone
            tensors[f"{name} of parameter"] = [state[name] for state in states if name in state]
        where, number = f"{self.sampler.where}, step", self.group["step_number"]

        def refuse(tensor: str, lost: bool) -> None:
            advice = "The weights are lost: go back to a checkpoint. " if lost else ""
            cause = ADDED if self.monitor.sums_up else ""
            do = f"{advice}{cause}Look at the loss, or take a smaller lr."
            raise RecipeError(where, f"{tensor} is not finite at step {number}", do=do)

        check_finite(tensors, labels(self.index, params), self.monitor.arrivals, refuse)

    def _bound(
        self, params: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor], observe: Mapping[str, torch.Tensor]
    ) -> Binding:
        """The kernel for these tensors, after the state is started where there is none."""
        sampler, group = self.sampler, self.group
        step, whole, chains = sampler.step, group["params"], count(group["params"])
        setting = rates.setting(step, sampler.where, group)
        check_parameters(sampler.where, whole)
        sites = sum(p.numel() for p in whole) // chains
        place = whole[0].detach().new_zeros(()).expand(1, sites)
        operator_checks.check_place(step.recipe, setting.parameters, place)
        if self.shards is not None:
            step = replace(step, spread=self.shards.spread)
        begun = group["step_number"] and all(self.states.get(p) for p in whole)
        weights = copies_of(whole, self.states)
        if not begun:
            slopes = [g.to(w.dtype) for g, w in zip(gradients, weights)]
            slope = gradient_of_U(weights, slopes, group["num_data"], group["weight_decay"], chains)
            begin(
                step,
                whole,
                weights,
                self.states,
                lambda theta: slope,
                seed=sampler.seed,
                temperature=setting.temperature,
                observe=as_functions(observe),
                parameters=setting.parameters | {"num_data": group["num_data"]},
                first_chain=self.chain,
            )
        targets = params if weights is whole else list(map(local, weights))
        states = [{name: local(x) for name, x in self.states[p].items()} for p in whole]
        halves = () if weights is whole else params
        kernel = self._kernel(step, targets, states, chains, halves)
        copies = Copies(params, targets, by_kernel=bool(kernel.halves)) if halves else None
        return Binding(params, kernel, copies, MonitoredSites.of(whole, kernel, self.shards))

    def _kernel(self, step: Step, params: Tensors, states: Sequence[Named], chains: int, halves: Tensors) -> Text:
        sampler = self.sampler
        if sampler.capturable and self.clock is None:
            self.clock = torch.tensor([self.group["step_number"]], dtype=torch.int64, device=params[0].device)
        prior = bool(self.group["weight_decay"])
        backend = sampler.backend
        if backend == "auto":
            backend = BY_DEVICE.get(params[0].device.type, "torch")

        def compiled() -> Compiled:
            return Compiled(step, params, states, chains, prior, backend, self.shards, self.clock, halves)

        kernel = None if backend == "torch" else kernel_or_none(sampler.backend, compiled)
        return kernel or Text(step, params, states, chains, prior)

    def _check_sharding(self) -> None:
        """Refuses steps and settings that sharded parameters do not support."""
        step = self.sampler.step
        where = f"{self.sampler.where}, sharded parameters"
        values = {name: self.group[name] for name in step.parameters}
        faults = {
            f"the law of the {kind} number {name} depends on the state, and it is no function of the site": True
            for name, kind in step.draws.items()
            if kind in noise.STATE_DEPENDENT
        }
        faults |= {
            "an operator reads all sites of a chain": step.program.has_operators,
            "capturable = True: a graph would have to hold messages between ranks": self.sampler.capturable,
            "its formulas read U itself, and each rank has the loss of its own data": step.program.needs_value,
        }
        faults |= {f"{name} has a value per site": torch.is_tensor(x) and x.numel() > 1 for name, x in values.items()}
        for fault in (fault for fault, holds in faults.items() if holds):
            raise RecipeError(where, fault, do="Leave the parameters of this group whole.")

    def kinetic_temperatures(self) -> dict[str, Temperature]:
        """The kinetic temperature of each tensor, block of Gaussian momenta and chain, by their names."""
        params = self.group["params"] if self.group["step_number"] else []
        names = self.group.get("param_names") or [f"{self.index}.{k}" for k in range(len(params))]
        members = [label.removeprefix(f"group {self.index}") for label in labels(self.index, params)]
        temperatures = {}
        for block, mass in masses_of(self.sampler.step.recipe, self.setting).items() if params else ():
            momenta = [by_chain(self.states[p][block], len(members)).double() for p in params]
            squares = torch.stack([p.square().sum(1) for p in momenta])
            squares = squares if self.shards is None else self.shards.add(squares)
            for name, p, of_tensor in zip(names, params, (squares / mass).tolist()):
                sites = p.numel() // len(members)
                for member, square in zip(members, of_tensor if sites else ()):
                    temperature = temperature_of(square / sites, sites, self.setting.temperature)
                    temperatures[f"{name}, {block}{member}"] = temperature
        return temperatures

    def chains(self) -> list[LoopChain]:
        """Monitored numbers of each chain, with its setting and its relaxation."""
        params, monitor = self.group["params"], self.monitor
        of_chains = monitor.late(count(params), self.shards)
        heatings = [] if all(HEATING in series for series in of_chains) else monitor.heatings()
        no_heat = next((heating for heating in heatings if isinstance(heating, str)), "")
        relaxation = self.relaxation_steps()
        return [
            LoopChain(
                of=label,
                series=series,
                no_heat=no_heat,
                relaxation=relaxation,
                num_data=self.group["num_data"],
                minibatches=monitor.minibatches,
                added=monitor.sums_up,
                drawn=monitor.has_random_numbers,
            )
            for label, series in zip(labels(self.index, params), of_chains)
        ]

    def in_words(self) -> list[str]:
        """Lines of text about the group: its settings as given, and what is in use."""
        settings = {name: self.group[name] for name in SETTINGS if self.group[name] is not None}
        in_use = {"step_size": self.setting.step_size, **self.setting.parameters}
        numbers = sum(p.numel() for p in self.group["params"])
        return [
            f"group {self.index}: {numbers} numbers, after {self.group['step_number']} steps",
            f"  set: {in_words(settings)}",
            f"  in use: {in_words(in_use)}",
        ]

    def relaxation_steps(self) -> dict[str, float]:
        """The relaxation times of the blocks in steps, by name; none at a step size of 0, as of a schedule."""
        setting, step, states = self.setting, self.sampler.step, self.states
        if not setting.step_size:
            return {}
        numbers: dict[str, Any] = {"num_data": self.group["num_data"]}
        for a in step.recipe.adapted if self.group["step_number"] else ():
            parts = (local(states[p][a.name]) for p in self.group["params"] if a.name in states[p])
            value = next((x for x in parts if x.numel()), None)  # of the first tensor with sites on this rank
            numbers |= {} if value is None else {a.name: value}
        numbers |= {name: x for name, x in setting.parameters.items() if not isinstance(x, operators.Operator)}
        means = {name: float(torch.as_tensor(x, dtype=torch.float64).mean()) for name, x in numbers.items()}
        temperature = setting.temperature
        return relaxation_steps(step.recipe, setting.step_size, means, temperature=temperature, frozen=step.frozen)


def _is_finite(gradient: Any) -> bool:
    return math.isfinite(float(gradient.sum()))
