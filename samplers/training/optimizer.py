"""Any recipe as a torch.optim.Optimizer: posterior samples from an ordinary training loop."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.optim.optimizer as torch_optimizers

from integrators import noise, operators, streams
from integrators.transfers import Arrivals
from recipe import Recipe
from recipe.arguments import check_known, check_names, integer, number
from recipe.errors import RecipeError
from recipe.results import html_table

from ..results.findings import Report
from ..results.report import ALPHA, TOLERANCE
from ..results.temperatures import Temperature
from ..stock import recipe_of
from ..target.target import check_unweighted
from . import rates
from .blocks import check_same, hold_places, take_precise, take_up
from .clipping import Clipping
from .group import CHECKED, Group
from .loop_report import report_of_loop
from .monitors import Monitors
from .rates import SETTINGS, Rates, in_words
from .refusals import (
    BOOKKEPT,
    check_order,
    check_some,
    torch_explained,
    warn_of_law,
    warn_of_layers,
    without_frozen,
)
from .sampler import Sampler, compiled
from .stacked import chains_of
from .tensors import check_parameters, values_of


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
    noise is a function of (seed, chain, group, step, site): `chain` tells runs of one seed apart, and of two optimizers
    that step in turn under one seed and chain the second is refused. `backend`: "torch",
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
        num_data: int | None = None,
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
        check_order(params, recipe)
        warn_of_layers("Optimizer", params)
        recipe = recipe_of(recipe, "Optimizer")
        where = f"{recipe.name}, Optimizer"
        check_unweighted(recipe, where, "a training loop keeps none")
        if not isinstance(capturable, bool) or (capturable and backend not in ("auto", "triton")):
            what = f"capturable = {capturable!r}, backend = {backend!r}"
            raise RecipeError(where, what, do="Pass True or False; a graph has Triton kernels alone.")
        backend = "triton" if capturable else backend
        self.how = {"scheme": scheme, "pieces": pieces, "backend": backend}  # for integrators.compile
        step = compiled(where, recipe, freeze, self.how)
        warn_of_law(where, step, capturable)
        key = noise.Key(seed, 0, chain)  # raises RecipeError for an invalid seed or chain
        chain = integer(where, "chain", key.first_chain, most=streams.GROUP - 1)
        self.sampler = Sampler(where, step, key.seed, chain, backend, capturable)
        self.held: list[torch.Tensor] = []  # parameters that were frozen when they were given
        check_names(where, (), step.parameters, [*inspect.signature(type(self).__init__).parameters, *BOOKKEPT])
        check_names(where, parameters, step.parameters, SETTINGS)
        self._begin()
        settings = {
            "lr": lr,
            "momentum": momentum,
            "step_size": step_size,
            "num_data": num_data,
            "temperature": temperature,
            "weight_decay": weight_decay,
        }
        of_recipe = {name: parameters.get(name) for name in step.parameters}
        with torch_explained(where):
            super().__init__(params, settings | of_recipe | {"step_number": 0})

    @property
    def recipe(self) -> Recipe:
        """The recipe that moves the parameters."""
        return self.sampler.recipe

    def freeze(self, *names: str) -> None:
        """Freezes blocks and adapted quantities by name from the next step on, as after a burn-in; no names free all.

        Raises RecipeError for the name of anything else.

        >>> from samplers import AdaptiveSGHMC
        >>> optimizer = Optimizer(torch.nn.Linear(3, 1).parameters(), AdaptiveSGHMC, step_size=1e-3, num_data=500)
        >>> optimizer.freeze("V", "gbar", "tau")
        """
        sampler = self.sampler
        self.sampler = replace(sampler, step=compiled(sampler.where, sampler.recipe, names, self.how))
        self._take_time()
        self._groups.clear()
        for group in self.param_groups:
            group["sampler"] = self.sampler.identity(group["params"])

    def _begin(self) -> None:
        """Resets what a copy does not share: groups with their kernels, and monitors."""
        self._groups: dict[int, Group] = {}
        self._monitors = Monitors(self.sampler.recipe, Clipping(self.sampler.where, Arrivals()))

    def _group(self, index: int) -> Group:
        """The group of this number in motion."""
        if index not in self._groups:
            self._groups[index] = Group(self.sampler, index, self.param_groups[index], self.state, self._monitors)
        return self._groups[index]

    @property
    def _in_motion(self) -> list[Group]:
        return [self._group(index) for index in range(len(self.param_groups))]

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group of parameters with settings of its own; parameters that require no gradient are left out.

        Raises RecipeError, and adds no group, for unknown or invalid settings, for parameters that cannot be moved,
        and where all are frozen.
        """
        where = self.sampler.where
        with torch_explained(where):
            super().add_param_group(param_group)
        group = self.param_groups[-1]
        frozen = without_frozen(group)
        try:
            check_some(where, group["params"])
            group["sampler"] = self.sampler.identity(group["params"])
            check_parameters(where, group["params"])
            known = {*SETTINGS, *self.sampler.step.parameters, *BOOKKEPT}
            check_known(where, "'{}' is not a setting of a group", group, known)
            last = self.sampler.chain + chains_of(group["params"])[-1]
            if last >= streams.GROUP:
                what = f"its last chain would have the number {last}, and a group has {streams.GROUP}"
                raise RecipeError(where, what, do="Take a smaller chain, or another seed.")
            self.settings(group)
        except RecipeError:
            self.param_groups.pop()
            raise
        self.held += frozen
        if "_monitors" in vars(self):  # steps with the new group are first ones
            self._monitors.clipping.looks = 0

    def settings(self, group: Mapping[str, Any]) -> Rates:
        """Step size, temperature and parameters of a group, given or converted from lr and momentum, and checked."""
        return rates.setting(self.sampler.step, self.sampler.where, group)

    def step(
        self, closure: Callable[[], Any] | None = None, *, observe: Mapping[str, torch.Tensor] | None = None
    ) -> Any:
        """Makes one step, and returns the loss of `closure`, a function that recomputes the loss and its gradient.

        `observe`: the statistics that the recipe asks for, by name. A recipe whose formulas read U itself needs a
        closure, from whose loss U = num_data loss + num_data weight_decay theta^2/2 is computed; the closure of an
        ensemble returns the loss of each member. A parameter whose gradient is None stays for this step, as in torch.
        Raises RecipeError, before the group moves, where a group has no gradient, for sparse ones, and for missing
        observations and losses. Gradients, weights and states that are not finite are refused at every 50th step, and
        on the CPU also where the shortest gradient of a group is not finite, as after a loss that is not; nothing moves
        then. Checks on a GPU, which is not waited for, raise some steps later.
        """
        if torch.autograd._profiler_enabled() or any(_hooks(self)):
            return _seen_by_hooks(self, closure, observe)
        return self._step(closure, observe)

    step.hooked = True  # type: ignore[attr-defined]  # for torch, whose own hooks would cost as much as all else here

    @torch.no_grad()
    def _step(self, closure: Callable[[], Any] | None, observe: Mapping[str, torch.Tensor] | None) -> Any:
        """Makes one step, without torch's hooks."""
        loss = None
        if not (closure is None or callable(closure)):
            what = f"the closure is a {type(closure).__name__}"
            raise RecipeError(f"{self.sampler.where}, step", what, do="Call loss.backward() first, then step().")
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        where = f"{self.sampler.where}, step"
        observe = observe or {}
        for name in self.sampler.step.observations:
            if not torch.is_tensor(observe.get(name)):
                do = f"Pass observe={{{name!r}: tensor}}."
                raise RecipeError(where, f"the observation '{name}' is missing", do=do)
        values: Sequence[torch.Tensor | None] = len(self.param_groups) * [None]
        if self.sampler.step.program.needs_value:
            values = values_of(where, self.param_groups, loss)
        for index, (group, value) in enumerate(zip(self.param_groups, values)):
            if group["params"] and group["lr"] != 0:
                freed = sum(p.requires_grad for p in self.held) if group["step_number"] % CHECKED == 0 else 0
                if freed:
                    what = f"{freed} parameter(s) that were frozen when they were given require a gradient by now"
                    raise RecipeError(where, what, do="Give them to add_param_group().")
                self._group(index).step(observe, value)
            elif not group["step_number"]:
                hold_places(self.sampler.recipe, group, self.state)
        self._monitors.clipping.end_step()
        return loss

    def _take_time(self) -> None:
        """Sets the step numbers of groups from the counts on their devices, which replays of graphs increase."""
        for group in self._groups.values():
            if group.clock is not None:
                group.group["step_number"] = int(group.clock)

    def kinetic_temperatures(self) -> dict[str, Temperature]:
        """The present mean of p^2/m, with its 99 % band, for each tensor and block of Gaussian momenta.

        Keys are the name of the tensor, as given by `named_parameters()`, or its group and number, and the block:
        "0.1, p"; of an ensemble for each member, "0.1, p, member 2".
        """
        return {key: t for group in self._in_motion for key, t in group.kinetic_temperatures().items()}

    def report(self, *, alpha: float = ALPHA, tolerance: float = TOLERANCE) -> Report:
        """Checks of this loop as a sampler, over the later half of its steps; `print` the report, or log `scalars()`.

        For each group, and each member of an Ensemble, in the order in which faults are to be mended: gradients that
        were clipped; num_data, where a `Minibatches` of other data is read beside the loop; gradients g that turn round
        from step to step, E[(g - g')^2]/E[g^2 + g'^2], which is (h omega)^2/2 in stiff directions; the temperature
        that the noise of minibatches adds, h V_g/(2 D) less the noise supplied, from gradients one step apart;
        thermostats that still relax (R-hat over quarters of that half); the relaxation time of momenta; the
        configurational temperature, the mean of (theta - E theta) grad U over sites, which is far below T where weights
        have not moved as far as the law is wide, and the kinetic one of momenta that forget, the mean of p^2/m, each
        over T. Some 1000 sites are looked at since the optimizer was made, copied or loaded, at every tenth step up to
        2000, every twentieth up to 4000, and so on.
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
        where = f"{self.sampler.where}, report"
        number(where, "alpha", alpha, above=0, below=1)
        number(where, "tolerance", tolerance, above=0)
        self._monitors.arrivals.wait()
        chains = [chain for group in self._in_motion for chain in group.chains()]
        constant = self._monitors.clipping.constant
        return report_of_loop(self.sampler.recipe, chains, constant=constant, alpha=alpha, tolerance=tolerance)

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
        is_numbered = len(self.param_groups) > 1
        return {
            f"{name} of group {group.index}" if is_numbered else name: steps
            for group in self._in_motion
            for name, steps in group.relaxation_steps().items()
        }

    def __repr__(self) -> str:
        lines = [line for group in self._in_motion for line in group.in_words()]
        return "\n".join([self._title, *lines, *self._relaxation])

    def _repr_html_(self) -> str:
        rows = [[line.split(": ", 1)[1] for line in group.in_words()] for group in self._in_motion]
        return html_table(self._title, ("group", "set", "in use"), rows, self._relaxation)

    @property
    def _title(self) -> str:
        return f"Optimizer of {self.sampler.recipe.name} by the word {self.sampler.step.program.scheme}"

    @property
    def _relaxation(self) -> list[str]:
        steps = self.relaxation_steps()
        return [f"Relaxation in steps: {in_words(steps)}"] if steps else []

    def state_dict(self) -> dict[str, Any]:
        """The state, with the recipe, seed and word of each group; `torch.load(weights_only=True)` reads the file."""
        self._take_time()
        state = super().state_dict()
        return state | {"param_groups": _each_value(operators.taken_apart, state["param_groups"])}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state, and with it lr and the other settings of its groups, as torch's optimizers do.

        Raises RecipeError, and keeps the present state, for a state of another sampler, seed, number of data or
        parameters.
        """
        where = f"{self.sampler.where}, load_state_dict"
        if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= state_dict.keys():
            what = f"a dict with state and param_groups, got {type(state_dict).__name__}"
            raise RecipeError(where, what, do="Pass what state_dict() gave.")
        state_dict = state_dict | {"param_groups": _each_value(operators.put_together, state_dict["param_groups"])}
        for index, (group, state) in enumerate(zip(self.param_groups, state_dict["param_groups"])):
            check_same(where, group, state, index)
        before = {"state": self.state, "param_groups": self.param_groups}
        super().load_state_dict({name: state_dict[name] for name in ("state", "param_groups")})
        try:
            for index, (group, saved) in enumerate(zip(self.param_groups, state_dict["param_groups"])):
                take_precise(where, group["params"], saved["params"], self.state, state_dict["state"])
                integer(where, "step_number", group["step_number"], least=0, most=2**63 - 1)
                self.settings(group)
                take_up(where, self.sampler.recipe, group, self.state, index)
        except RecipeError:
            self.__setstate__(before)
            raise
        self.freeze(*(name for group in self.param_groups[:1] for name in group["sampler"]["frozen"]))

    def check_state(self) -> None:
        """Refuses weights that are not finite, and a state that `load_state_dict` would refuse, by RecipeError."""
        for group in self._in_motion:
            group.check_finite(())
            take_up(self.sampler.where, self.sampler.recipe, group.group, self.state, group.index)
        self._monitors.arrivals.wait()

    def __getstate__(self) -> dict[str, Any]:
        self._take_time()
        return super().__getstate__() | {name: getattr(self, name) for name in ("sampler", "how", "held")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        monitors = self.__dict__.get("_monitors")
        super().__setstate__(state)
        self._begin()
        if monitors is not None:  # a state is loaded: what the first steps have shown of clipping holds on
            self._monitors = Monitors(self.sampler.recipe, monitors.clipping)


def _each_value(change: Callable[[Any], Any], groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The parameter groups with `change` applied to each value."""
    return [{name: change(value) for name, value in group.items()} for group in groups]


def _hooks(optimizer: torch.optim.Optimizer) -> tuple[Mapping, ...]:
    """Torch's hooks before and after the step of an optimizer, its own and the global ones."""
    before, after = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
    return before, after, torch_optimizers._global_optimizer_pre_hooks, torch_optimizers._global_optimizer_post_hooks


@torch.optim.Optimizer.profile_hook_step
def _seen_by_hooks(optimizer: Optimizer, closure: Any = None, observe: Any = None) -> Any:
    """Makes a step that profilers record, with all hooks, which may change its arguments."""
    return optimizer._step(closure, observe)
