"""Any recipe as a torch.optim.Optimizer: posterior samples from an ordinary training loop."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.optim.optimizer as torch_optimizers

import integrators
from integrators import noise, operator_checks, operators, streams
from integrators.auxiliary import masses
from integrators.kernels import gpu
from integrators.kernels.choice import BY_DEVICE, kernel_or_none
from integrators.optimizer_form import optimizer_form
from integrators.processes import Spread
from integrators.relaxation import relaxation_steps
from integrators.step import Step
from integrators.transfers import Arrivals
from recipe import Recipe
from recipe.arguments import integer, number
from recipe.errors import RecipeError, did_you_mean, warn

from ..results.findings import Report
from ..results.report import ALPHA, TOLERANCE
from ..results.temperatures import Temperature, kinetic_temperature
from ..stock import named
from .blocks import begin, hold_places, take_up
from .clipping import ClippingWatch
from .engines import KernelEngine, TextEngine
from .gauges import Gauges, temperatures_over_ranks
from .precision import OnCopies, copies_of
from .rates import SETTINGS, Rates, Setting
from .report import report_of_loop
from .shards import as_part, check_agreement, is_sharded, local, local_gradient, spread_of, with_gradients
from .stacked import count, labels, members_of
from .tensors import (
    by_chain,
    check_gradients,
    check_gradients_apart,
    check_parameters,
    observations_like,
    precise,
    usable_gradients,
)
from .values import values_of

BOOKKEPT = ("params", "step_number", "sampler", "initial_lr", "param_names")  # entries of a group beside its settings
CHECKED = 50  # steps from one look at the gradients' numbers to the next


class Optimizer(torch.optim.Optimizer):
    """A recipe in a training loop: after `loss.backward()`, `step()` moves the parameters by one step of the sampler.

    The loss is the mean over the data, U = num_data loss, and the law is exp(-U/temperature). `lr` and `momentum` are
    those of torch.optim.SGD on that loss, by the recipe's conversion "lr, momentum" (momentum is 0.9 if left out): at
    temperature 0 the words of SGHMC and UnderdampedLangevin are SGD. A recipe without that conversion takes the step
    size lr/num_data, or sqrt(lr/num_data) if it has momenta, and VSGD takes lr for its step size. `step_size`, in units
    of time, stands for both; schedulers need `lr`. `weight_decay` w adds num_data w theta^2/2 to U, the prior N(0,
    1/(num_data w)); leave it at 0 where the loss holds the prior. All of these, and the recipe's `parameters`, may
    differ by parameter group, which has thermostats and adaptations of its own.

    Weights in bfloat16 or float16 are moved as copies in float32, which are in the state, with momenta in float32:
    noise and steps below the last digit of a weight add up in the copy, and each weight is its copy, rounded to
    nearest. The copies have the law; their gradients are taken at the weights, at most half a last digit away.

    `params`, `scheme`, `pieces` and `freeze` are as for torch's optimizers and integrators.compile. Parameters that
    require no gradient, such as the base of a LoRA, do not move. `recipe`: a Recipe, or the name of a stock one. The
    noise is a function of (seed, chain, group, step, site): `chain` tells runs of one seed apart. `backend`: "torch",
    "cpp", "triton", or "auto", a kernel where there is one. Each member of an `Ensemble` is a chain of its own, from
    `chain` on. DTensors, as of torch.distributed.fsdp.fully_shard, move as the whole tensors would, up to rounding;
    ranks step, and ask for temperatures and reports, together.

    With `capturable` steps may be captured in a CUDA graph; the device counts steps, so that each replay has noise of
    its own. Settings are fixed at the capture, gradients keep their memory, and are checked only in steps outside of
    graphs; no GPU has run this yet. The state holds tensors by name for every parameter, scalar blocks with the first
    parameter of their group. Raises RecipeError for parameters, settings or gradients that allow no step.

    >>> from samplers import SGHMC
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = Optimizer(model.parameters(), SGHMC, lr=0.1, momentum=0.9, num_data=500)
    >>> model(torch.ones(20, 3)).square().mean().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params: Iterable[Any],
        recipe: Recipe | str,
        *,
        num_data: int,
        lr: float | None = None,
        momentum: float | None = None,
        step_size: float | None = None,
        temperature: float = 1.0,
        weight_decay: float = 0.0,
        seed: int = 0,
        chain: int = 0,
        scheme: Any = None,
        pieces: Mapping[str, Any] | None = None,
        freeze: Any = (),
        backend: str = "auto",
        capturable: bool = False,
        **parameters: float,
    ):
        _check_order(params, recipe)
        recipe = named(recipe, "Optimizer")
        self.where = f"{recipe.name}, Optimizer" if isinstance(recipe, Recipe) else "Optimizer"
        self.recipe = recipe
        self.capturable = _capturable(self.where, capturable, backend)
        self.backend = "triton" if capturable else backend
        self.word = scheme
        self.pieces = pieces
        self.held: list[torch.Tensor] = []  # parameters that were frozen when they were given
        self._compile(freeze)
        if self.recipe.metropolis:
            warn(
                f"{self.where}: steps that are made to be accepted or rejected, as by samplers.sample, are all taken "
                "here; how far that is off grows with the step size and the noise of gradients. Of a training loop are "
                "'sgld', 'sghmc' and 'underdamped-langevin'."
            )
        self._meet_values()
        key = noise.Key(seed, 0, chain)  # raises RecipeError for an invalid seed or chain
        self.seed = key.seed
        self.chain = integer(self.where, "chain", key.first_chain, most=streams.GROUP - 1)
        self._check_names(parameters)
        self._begin()
        own = {
            "lr": lr,
            "momentum": momentum,
            "step_size": step_size,
            "num_data": num_data,
            "temperature": temperature,
            "weight_decay": weight_decay,
        }
        of_recipe = {name: parameters.get(name) for name in self.rotated.parameters}
        super().__init__(params, own | of_recipe | {"step_number": 0})

    def _compile(self, freeze: Any) -> None:
        """Compiles the step that leaves the blocks and adapted quantities of these names unchanged."""
        step = integrators.compile(self.recipe, self.word, pieces=self.pieces, freeze=freeze, backend=self.backend)
        _check_target(self.where, self.recipe)
        adapt = {a: update for a, update in self.recipe.adapt.items() if a.name not in step.frozen}
        self.program = optimizer_form(self.recipe, step.scheme, step.flows, adapt, value=True)
        self.rotated = Step(self.recipe, self.program.scheme, step.flows, self.program, frozen=step.frozen)

    def _meet_values(self) -> None:
        """Warns about formulas that read U itself, which a batch only estimates; refuses these with `capturable`."""
        if not self.program.needs_value:
            return
        if self.capturable:
            what = "capturable = True, and its formulas read U itself, which a graph does not take from a closure"
            raise RecipeError(self.where, what, do="Step without a graph.")
        warn(
            f"{self.where}: the formulas read U itself, of which the loss of a minibatch is an estimate: the law is "
            "not exp(-H). Return the loss of all data from the closure of step() for one that is."
        )

    def freeze(self, *names: str) -> None:
        """Freezes blocks and adapted quantities by name from the next step on, as after a burn-in; no names free all.

        Raises RecipeError for the name of anything else.

        >>> from samplers import AdaptiveSGHMC
        >>> optimizer = Optimizer(torch.nn.Linear(3, 1).parameters(), AdaptiveSGHMC, step_size=1e-3, num_data=500)
        >>> optimizer.freeze("V", "gbar", "tau")
        """
        self._compile(names)
        self._begin_with_step()
        for group in self.param_groups:
            group["sampler"] = self._identity(group["params"])

    def _begin_with_step(self) -> None:
        """Resets the rates and engines, which belong to the step."""
        self._rates = Rates(self.rotated, self.where)
        self._names = (*SETTINGS, *self.rotated.parameters)  # by name, in every group
        self._engines: dict[int, TextEngine | OnCopies] = {}
        self._in_use: dict[int, tuple[tuple, Setting]] = {}  # by group: values, their Setting

    def _begin(self) -> None:
        """Resets everything that a copy does not share: rates, engines, clocks, spreads and monitors."""
        self._begin_with_step()
        self._clocks: dict[int, torch.Tensor] = {}  # by group: the count of steps on its device
        self._spreads: dict[int, Spread | None] = {}  # by group: the sites on this rank; None for all
        self._arrivals = Arrivals()  # of gradients' sizes
        self._clipping = ClippingWatch(self.where, self._arrivals)
        self._gauges = Gauges(self.recipe, self._arrivals)

    def _check_names(self, parameters: Mapping[str, Any]) -> None:
        """Refuses a recipe whose parameters bear the names of arguments, and parameters of other recipes."""
        for name in self.rotated.parameters:
            if name in inspect.signature(Optimizer.__init__).parameters or name in BOOKKEPT:
                raise RecipeError(self.where, f"the parameter '{name}' bears the name of an argument", do="Rename it.")
        for name in parameters:
            if name not in self.rotated.parameters:
                known = [*self.rotated.parameters, *SETTINGS]
                raise RecipeError(self.where, f"'{name}' is not a parameter", do=did_you_mean(name, known))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters with settings of its own; parameters that require no gradient are left out.

        Raises RecipeError, and adds no group, for unknown or invalid settings, for parameters that cannot be moved,
        and where all are frozen.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        held = _without_frozen(group)
        group["sampler"] = self._identity(group["params"])
        try:
            check_parameters(self.where, group["params"])
            known = {*self._names, *BOOKKEPT}
            for name in group:
                if name not in known:
                    raise RecipeError(self.where, f"'{name}' is not a setting of a group", do=did_you_mean(name, known))
            self.settings(group)
        except RecipeError:
            self.param_groups.pop()
            raise
        self.held += held

    def _state_here(self, group: Mapping[str, Any]) -> dict[str, torch.Tensor]:
        """The state of a group by block; of a vector block, the part at the first parameter with sites on this rank."""
        state: dict[str, torch.Tensor] = {}
        for p in reversed(group["params"] if group["step_number"] else []):
            state |= {name: x for name, x in _parts([self.state.get(p, {})])[0].items() if x.numel()}
        return state

    def settings(self, group: Mapping[str, Any], *, budget: bool = True) -> Setting:
        """Step size, temperature and parameters of a group, given or converted from lr and momentum, by `Rates`."""
        return self._rates.setting(group, budget=budget)

    def step(
        self, closure: Callable[[], Any] | None = None, *, observe: Mapping[str, torch.Tensor] | None = None
    ) -> Any:
        """Makes one step, and returns the loss of `closure`, a function that recomputes the loss and its gradient.

        `observe`: the statistics that the recipe asks for, by name. A recipe whose formulas read U itself needs a
        closure, from whose loss U = num_data loss + num_data weight_decay theta^2/2 is computed; the closure of an
        ensemble returns the loss of each member. Raises RecipeError, before the group moves, for gradients that are
        missing or sparse, and for missing observations and losses. Gradients that are not finite are refused at every
        50th step, and on the CPU also where the shortest gradient of a group is not finite, as after a loss that is
        not; weights and state are then those of the step before. Checks on a GPU, which is not waited for, raise some
        steps later.
        """
        if torch.autograd._profiler_enabled() or any(_hooks(self)):
            return _seen_by_hooks(self, closure, observe)
        return self._step(closure, observe)

    step.hooked = True  # type: ignore[attr-defined]  # for torch, whose own hooks would cost as much as all else here

    @torch.no_grad()
    def _step(self, closure: Callable[[], Any] | None, observe: Mapping[str, torch.Tensor] | None) -> Any:
        """Makes one step, without torch's hooks."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        observe = observe or {}
        for name in self.rotated.observations:
            if not torch.is_tensor(observe.get(name)):
                raise RecipeError(
                    f"{self.where}, step",
                    f"the observation '{name}' is missing",
                    do=f"Pass observe={{{name!r}: tensor}}.",
                )
        values: list[torch.Tensor | None] = [None] * len(self.param_groups)
        if self.program.needs_value:
            values = values_of(f"{self.where}, step", self.param_groups, loss)
        for index, group in enumerate(self.param_groups):
            if group["params"] and group["lr"] != 0:
                self._move(index, group, observe, values[index])
                group["step_number"] += 1
            elif not group["step_number"]:
                hold_places(self.recipe, group, self.state)
        return loss

    def _move(
        self, index: int, group: dict[str, Any], observe: Mapping[str, torch.Tensor], value: torch.Tensor | None
    ) -> None:
        engine = self._engines.get(index)
        whole, group = group, self._part(group)
        if observe:
            observe = observations_like(f"{self.where}, step", self.recipe, observe, group["params"])
        gradients: list[torch.Tensor] = []  # none where the engine finds them
        looks = self._looks_on(group["step_number"])
        if looks or engine is None or not engine.finds(group) or engine.sees_infinities(group):
            engine, gradients = self._looked_at(engine, index, group, whole, observe)
        setting = self._setting(index, group)
        engine.move(
            setting.step_size,
            gradients,
            noise.Key(self.seed, group["step_number"], self._chain(index)),
            observe,
            value,
            temperature=setting.temperature,
            num_data=group["num_data"],
            weight_decay=group["weight_decay"],
            step_number=group["step_number"],
            **setting.parameters,
        )

    def _looks_on(self, step: int) -> bool:
        """Whether a check or a monitor reads the gradients of a step, or a CUDA graph captures it."""
        if gpu.is_capturing():
            return True
        self._arrivals.look()
        return step % CHECKED == 0 or self._clipping.looks_on or self._gauges.looks_on(step)

    def _looked_at(
        self,
        engine: TextEngine | OnCopies | None,
        index: int,
        group: dict[str, Any],
        whole: dict[str, Any],
        observe: Mapping[str, torch.Tensor],
    ) -> tuple[TextEngine | OnCopies, list[torch.Tensor]]:
        """The engine of a step and its gradients, checked and shown to the monitors.

        `group` holds the parts on this rank of the parameters of `whole`.
        """
        gradients = [p.grad for p in group["params"]]
        captured = gpu.is_capturing()
        if captured:
            self._check_captured(engine, group, gradients)
        to_be_checked = group["step_number"] % CHECKED == 0
        if to_be_checked:
            self._check_held()
        taken = engine is not None and engine.takes(gradients)
        if not taken:
            gradients = usable_gradients(self.where, whole["params"], index)
            if group is not whole:
                group = with_gradients(group, gradients)
        if engine is None or to_be_checked or not taken or not engine.fits(group):
            if engine is None or not engine.fits_closely(group):
                check_gradients_apart(f"{self.where}, step", group["params"], gradients)
                engine = self._engines[index] = self._engine(index, whole, gradients, observe)
        if not captured:
            spread = self._spreads[index]
            self._clipping.see(gradients, spread)
            if to_be_checked or engine.sees_infinities(group):
                check_gradients(self.where, group, gradients, index, self._arrivals)
            states = [self.state[p] for p in whole["params"]]
            self._gauges.see(index, whole, gradients, states, self._setting(index, group), spread)
        return engine, gradients

    def _check_captured(
        self, engine: TextEngine | OnCopies | None, group: dict[str, Any], gradients: list[torch.Tensor | None]
    ) -> None:
        """Refuses a captured step that replays of the graph would not repeat rightly."""
        where = f"{self.where}, step"
        if not self.capturable:
            raise RecipeError(where, "replays of a graph would repeat its noise", do="Pass capturable=True.")
        if engine is None or not (engine.takes(gradients) and engine.fits(group)):
            raise RecipeError(where, "a graph cannot begin a state", do="Make some steps first, on the same tensors.")

    def _clock(self, index: int, group: dict[str, Any]) -> torch.Tensor | None:
        """The count of a group's steps on its device, an int64 tensor `(1,)`; None unless `capturable`."""
        if self.capturable and index not in self._clocks:
            device = group["params"][0].device
            self._clocks[index] = torch.tensor([group["step_number"]], dtype=torch.int64, device=device)
        return self._clocks.get(index)

    def _take_time(self) -> None:
        """Sets the step numbers of groups from the counts on their devices, which replays of graphs increase."""
        for index, clock in self._clocks.items():
            self.param_groups[index]["step_number"] = int(clock)

    def _check_held(self) -> None:
        """Refuses parameters that were frozen when they were given, and now require a gradient."""
        number = sum(p.requires_grad for p in self.held)
        if number:
            what = f"{number} parameter(s) that were frozen when they were given require a gradient by now"
            raise RecipeError(f"{self.where}, step", what, do="Give them to add_param_group().")

    def _chain(self, index: int) -> int:
        """The number of a group's first chain in the noise."""
        members = members_of(self.param_groups[index]["params"]) or range(1)
        return self.chain + index * streams.GROUP + members.start

    def _setting(self, index: int, group: Mapping[str, Any]) -> Setting:
        """The setting of a group, computed anew when its values change; `_engine` has checked the budget."""
        values = tuple(group[name] for name in self._names)
        in_use = self._in_use.get(index)
        if in_use is None or in_use[0] != values:
            in_use = self._in_use[index] = values, self.settings(group, budget=False)
        return in_use[1]

    def _engine(
        self, index: int, group: dict[str, Any], gradients: list[torch.Tensor], observe: Mapping[str, torch.Tensor]
    ) -> TextEngine | OnCopies:
        """Makes the engine of a group, and starts its state where there is none."""
        params = group["params"]
        setting = self.settings(group)
        check_parameters(self.where, params)
        sites = sum(p.numel() for p in params) // count(params)
        operator_checks.check_place(self.recipe, setting.parameters, params[0].detach().new_zeros(()).expand(1, sites))
        spread = self._spread(index, group)
        step = self.rotated if spread is None else replace(self.rotated, spread=spread)
        begun = group["step_number"] and all(self.state.get(p) for p in params)
        weights = copies_of(params, self.state)
        if not begun:
            begin(
                step,
                group,
                self.state,
                [g.to(w.dtype) for g, w in zip(gradients, weights)],
                setting,
                seed=self.seed,
                chain=self._chain(index),
                observe=observe,
                weights=weights,
            )
        states = _parts([self.state[p] for p in params])
        parts = [local(w) for w in weights]
        chains = count(params)
        backend = BY_DEVICE.get(params[0].device.type, "torch") if self.backend == "auto" else self.backend

        def kernel() -> KernelEngine:
            prior = bool(group["weight_decay"])
            clock = self._clock(index, group)
            return KernelEngine(step, parts, states, prior=prior, backend=backend, chains=chains, clock=clock)

        compiled = None if backend == "torch" else kernel_or_none(self.backend, kernel)
        engine = compiled or TextEngine(step, parts, states, chains=chains)
        return engine if weights is params else OnCopies([local(p) for p in params], parts, engine)

    def _part(self, group: dict[str, Any]) -> dict[str, Any]:
        """A group with the parts on this rank of its parameters and their gradients."""
        params = group["params"]
        if not params or not is_sharded(params[0]):
            return group
        return with_gradients({**group, "params": list(map(local, params))}, list(map(local_gradient, params)))

    def _spread(self, index: int, group: Mapping[str, Any]) -> Spread | None:
        """The sites on this rank of a sharded group, else None; all ranks make the first call together.

        Raises RecipeError where settings differ between ranks, and for steps that sharded parameters do not support.
        """
        if index not in self._spreads:
            spread = spread_of(self.where, group["params"])
            if spread is not None:
                _check_spread(self.where, self.rotated, group, self.capturable)
                settings = {name: group[name] for name in (*SETTINGS, "step_number")} | group["sampler"]
                settings["parameters"] = {name: group[name] for name in self.rotated.parameters}
                check_agreement(f"{self.where}, group {index}", spread, settings)
            self._spreads[index] = spread
        return self._spreads[index]

    def kinetic_temperatures(self) -> dict[str, Temperature]:
        """The present mean of p^2/m, with its 99 % band, for each tensor and block of Gaussian momenta.

        Keys are the name of the tensor, as given by `named_parameters()`, or its group and number, and the block:
        "0.1, p"; of an ensemble for each member, "0.1, p, member 2".
        """
        temperatures: dict[str, Temperature] = {}
        for index, group in enumerate(self.param_groups):
            setting = self.settings(group, budget=False)
            names = group.get("param_names") or [f"{index}.{k}" for k in range(len(group["params"]))]
            moved = group["params"] if group["step_number"] else []
            begun = {name: p for name, p in zip(names, moved) if self.state.get(p) and p.numel()}
            if not begun:
                continue
            for block, mass in masses(self.recipe, setting.parameters).items():
                temperatures |= self._temperatures(index, group, block, mass, begun, setting.temperature)
        return temperatures

    def _temperatures(
        self, index: int, group: dict[str, Any], block: str, mass: Any, begun: Mapping[str, Any], expected: float
    ) -> dict[str, Temperature]:
        """The kinetic temperatures of a block of momenta of a group, for the tensors that have `begun`, by name."""
        momenta = [self.state[p][block] for p in begun.values()]
        spread = self._spread(index, group)
        if spread is not None:
            values = temperatures_over_ranks(momenta, mass, expected, spread)
            return {f"{name}, {block}": value for name, value in zip(begun, values)}
        temperatures: dict[str, Temperature] = {}
        for (name, p), of_chains in zip(begun.items(), momenta):
            for label, own in zip(labels(index, [p]), by_chain(of_chains, count([p]))):
                member = label.removeprefix(f"group {index}")
                temperatures[f"{name}, {block}{member}"] = kinetic_temperature(own, mass, temperature=expected)
        return temperatures

    def report(self, *, alpha: float = ALPHA, tolerance: float = TOLERANCE) -> Report:
        """Checks of this loop as a sampler, over the later half of its steps; `print` the report, or log `scalars()`.

        For each group, and each member of an Ensemble, in the order in which faults are to be mended: the temperature
        that the noise of minibatches adds, h V_g/(2 D) less the noise supplied, from gradients one step apart;
        thermostats that still relax (R-hat over quarters of that half); the configurational temperature, the mean of
        theta grad U over sites, and the kinetic one, the mean of p^2/m, each over T. Steps are looked at since the
        optimizer was made, copied or loaded: every tenth up to 2000, every twentieth up to 4000, and so on.
        `alpha` and `tolerance` are as for `Draws.report`. Steps at temperature 0, and steps that a CUDA graph replays,
        are left out. Raises RecipeError for alpha outside of (0, 1) and a tolerance that is not > 0.

        >>> from samplers import SGHMC
        >>> weights = torch.nn.Parameter(torch.zeros(50))
        >>> optimizer = Optimizer([weights], SGHMC, lr=0.1, momentum=0.9, num_data=1000)
        >>> for _ in range(2000):
        ...     weights.grad = weights.detach() / 50                    # of the mean loss: a standard deviation of 0.2
        ...     optimizer.step()
        >>> optimizer.report().ok
        True
        """
        where = f"{self.where}, report"
        number(where, "alpha", alpha, above=0, below=1)
        number(where, "tolerance", tolerance, above=0)
        self._arrivals.wait()
        chains = {
            label: (self._gauges.late(label, self._spread(index, group)), self.settings(group, budget=False))
            for index, group in enumerate(self.param_groups)
            for label in labels(index, group["params"])
        }
        return report_of_loop(self.recipe, chains, alpha=alpha, tolerance=tolerance)

    def relaxation_steps(self) -> dict[str, float]:
        """The relaxation times of momenta, thermostats and adapted quantities, in steps, by linearisation.

        Keys are names of blocks, with several groups "block of group k". Averages over fewer steps reflect where a
        thermostat started; the time of momenta is about 1/(1 - momentum). inf stands for no relaxation; quantities that
        depend on the weights are left out.

        >>> from samplers import SGNHT
        >>> optimizer = Optimizer(torch.nn.Linear(3, 1).parameters(), SGNHT, lr=0.1, momentum=0.9, num_data=500)
        >>> {name: round(steps) for name, steps in optimizer.relaxation_steps().items()}
        {'p': 9, 'xi': 90}
        """
        relaxation: dict[str, float] = {}
        for index, group in enumerate(self.param_groups):
            setting = self.settings(group, budget=False)
            if not setting.step_size:  # schedules may give 0
                continue
            state = self._state_here(group)
            adapted = {a.name: float(state[a.name].mean()) for a in self.recipe.adapted if a.name in state}
            steps = relaxation_steps(
                self.recipe,
                setting.step_size,
                {"num_data": group["num_data"], **adapted, **_numbers(setting.parameters)},
                temperature=setting.temperature,
                frozen=self.rotated.frozen,
            )
            several = len(self.param_groups) > 1
            relaxation |= {f"{name} of group {index}" if several else name: k for name, k in steps.items()}
        return relaxation

    def __repr__(self) -> str:
        lines = [f"Optimizer of {self.recipe.name} by the word {self.program.scheme}"]
        for index, group in enumerate(self.param_groups):
            setting = self._setting(index, group)
            settings = {name: group[name] for name in SETTINGS if group[name] is not None}
            in_use = {"step_size": setting.step_size, **setting.parameters}
            numbers = sum(p.numel() for p in group["params"])
            lines.append(f"group {index}: {numbers} numbers, after {group['step_number']} steps")
            lines += [f"  {what}: {_in_words(values)}" for what, values in (("set", settings), ("in use", in_use))]
        steps = self.relaxation_steps()
        return "\n".join(lines) + (f"\nRelaxation in steps: {_in_words(steps)}" if steps else "")

    def state_dict(self) -> dict[str, Any]:
        """The state, with the recipe, seed and word of each group; `torch.load(weights_only=True)` reads the file."""
        self._take_time()
        state = super().state_dict()
        return state | {"param_groups": _each_value(operators.taken_apart, state["param_groups"])}

    def _identity(self, params: Sequence[torch.Tensor]) -> dict[str, Any]:
        """The identity of a group's state: recipe, scheme, seed, chain, frozen blocks and members."""
        members = members_of(params)
        return {
            "recipe": self.recipe.name,
            "scheme": str(self.program.scheme),
            "seed": self.seed,
            "chain": self.chain,
            "frozen": list(self.rotated.frozen),
            **({"members": [members.start, members.stop]} if members else {}),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state, and with it lr and the other settings of its groups, as torch's optimizers do.

        Raises RecipeError, and keeps the present state, for a state of another sampler, seed, number of data or
        parameters.
        """
        where = f"{self.where}, load_state_dict"
        state_dict = state_dict | {"param_groups": _each_value(operators.put_together, state_dict["param_groups"])}
        for index, (group, state) in enumerate(zip(self.param_groups, state_dict["param_groups"])):
            mine, other = (_without_frozen_blocks(g.get("sampler", {})) for g in (group, state))
            if other != mine:
                raise RecipeError(where, f"it is the state of {other or None}, this is {mine}", do="Make the same one.")
            number = state.get("num_data")
            if number != group["num_data"]:
                what = f"group {index} is of {number} data, here of {group['num_data']}: another posterior"
                raise RecipeError(where, what, do="Pass the num_data of that run.")
        before = {"state": self.state, "param_groups": self.param_groups}
        super().load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})
        try:
            self._take_precise(state_dict)
            for index, group in enumerate(self.param_groups):
                take_up(where, self.recipe, group, self.state, index)
        except RecipeError:
            self.__setstate__(before)
            raise
        self.freeze(*(name for group in self.param_groups[:1] for name in group["sampler"]["frozen"]))

    def _take_precise(self, state_dict: dict[str, Any]) -> None:
        """Loads the state of half-precision weights unrounded, where torch would round to the type of the weights."""
        for group, saved in zip(self.param_groups, state_dict["param_groups"]):
            for p, name in zip(group["params"], saved["params"]):
                if precise(p.dtype) != p.dtype:
                    of_weight = state_dict["state"].get(name, {}).items()
                    tensors = {k: x.to(p.device, copy=True) for k, x in of_weight if torch.is_tensor(x)}
                    whole = {k: as_part(self.where, x, p) for k, x in tensors.items() if x.shape == p.shape}
                    self.state[p].update(tensors | whole)

    def __getstate__(self) -> dict[str, Any]:
        self._take_time()
        own = (
            "where",
            "recipe",
            "backend",
            "capturable",
            "seed",
            "chain",
            "program",
            "rotated",
            "word",
            "pieces",
            "held",
        )
        return super().__getstate__() | {name: getattr(self, name) for name in own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        watch = self.__dict__.get("_clipping")
        super().__setstate__(state)
        self._begin()
        if watch is not None:
            self._clipping = watch
            self._arrivals = watch.arrivals
            self._gauges = Gauges(self.recipe, self._arrivals)


def _each_value(change: Callable[[Any], Any], groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The parameter groups with `change` applied to each value."""
    return [{name: change(value) for name, value in group.items()} for group in groups]


def _in_words(values: Mapping[str, Any]) -> str:
    """Text of numbers by name; tensors by their shape, operators by their structure."""
    return ", ".join(f"{name} {_in_word(x)}" for name, x in values.items())


def _in_word(x: Any) -> str:
    if isinstance(x, operators.Operator):
        return repr(x)
    return f"of shape {tuple(x.shape)}" if torch.is_tensor(x) and x.dim() else f"{float(x):.3g}"


def _hooks(optimizer: torch.optim.Optimizer) -> tuple[Mapping, ...]:
    """Torch's hooks before and after the step of an optimizer, its own and the global ones."""
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    return before, after, torch_optimizers._global_optimizer_pre_hooks, torch_optimizers._global_optimizer_post_hooks


@torch.optim.Optimizer.profile_hook_step
def _seen_by_hooks(optimizer: Optimizer, closure: Any = None, observe: Any = None) -> Any:
    """Makes a step that profilers record, with all hooks, which may change its arguments."""
    return optimizer._step(closure, observe)


def _check_order(params: object, recipe: object) -> None:
    """Refuses a recipe, or a network, in the place of the parameters."""
    if isinstance(params, torch.nn.Module) and not isinstance(params, torch.nn.ParameterList):
        what = f"a {type(params).__name__} is given in the place of its parameters"
        raise RecipeError("Optimizer", what, do="Pass network.parameters(), or network.named_parameters().")
    if isinstance(params, (str, Recipe)) and not isinstance(recipe, (str, Recipe)):
        what = "the recipe is given first, in the place of the parameters"
        do = 'Write Optimizer(network.parameters(), "sghmc", ...), as torch does.'
        raise RecipeError("Optimizer", what, do=do)


def _capturable(where: str, capturable: object, backend: str) -> bool:
    if not isinstance(capturable, bool) or (capturable and backend not in ("auto", "triton")):
        what = f"capturable = {capturable!r}, backend = {backend!r}"
        raise RecipeError(where, what, do="Pass True or False; a graph has Triton kernels alone.")
    return capturable


def _parts(states: Sequence[Mapping[str, torch.Tensor]]) -> list[dict[str, torch.Tensor]]:
    """The parts of states on this rank, by name."""
    return [{name: local(x) for name, x in state.items()} for state in states]


def _check_spread(where: str, step: Step, group: Mapping[str, Any], capturable: bool) -> None:
    """Refuses steps and settings that sharded parameters do not support."""
    fault = ""
    if step.program.needs_value:
        fault = "its formulas read U itself, and each rank has the loss of its own data"
    if capturable:
        fault = "capturable = True: a graph would have to hold messages between ranks"
    if step.program.has_operators:
        fault = "an operator reads all sites of a chain"
    for name in step.parameters:
        if torch.is_tensor(group[name]) and group[name].numel() > 1 and not fault:
            fault = f"{name} has a value per site"
    for name, kind in step.draws.items():
        if kind in noise.STATE_DEPENDENT:
            fault = f"the law of the {kind} number {name} depends on the state, and it is no function of the site"
    if fault:
        raise RecipeError(f"{where}, sharded parameters", fault, do="Leave the parameters of this group whole.")


def _numbers(parameters: Mapping[str, Any]) -> dict[str, float]:
    """Parameters as numbers, without operators; those with one value per site by their mean."""
    numbers = {name: x for name, x in parameters.items() if not isinstance(x, operators.Operator)}
    return {name: float(torch.as_tensor(x, dtype=torch.float64).mean()) for name, x in numbers.items()}


def _without_frozen_blocks(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of a state apart from its frozen blocks, as a state to be loaded must have it."""
    return {name: value for name, value in identity.items() if name != "frozen"}


def _without_frozen(group: dict[str, Any]) -> list[torch.Tensor]:
    """Removes and returns the frozen parameters of a group, unless all are frozen."""
    moving = [p.requires_grad for p in group["params"]]
    if not any(moving):
        return []
    held = [p for p, moves in zip(group["params"], moving) if not moves]
    for key in ("params", "param_names"):
        if key in group:
            group[key] = [x for x, moves in zip(group[key], moving, strict=True) if moves]
    return held


def _check_target(where: str, recipe: Recipe) -> None:
    """Refuses a recipe whose target cannot be weights."""
    if len(recipe.targets) > 1 and all(b.is_vector for b in recipe.targets):
        names = ", ".join(b.name for b in recipe.targets)
        what = f"the target is the blocks {names}, and a loop moves one set of weights"
        raise RecipeError(where, what, do="Take a recipe of one, with an Ensemble for chains, or samplers.sample.")
    if len(recipe.targets) > 1 or not recipe.target_is_vector:
        raise RecipeError(where, "the target is made of explicit coordinates", do="Take a recipe of one vector block.")
    target = recipe.targets[0]
    if not target.domain.is_real:
        raise RecipeError(where, f"{target} is {target.domain}, weights are not", do="Take another recipe.")
