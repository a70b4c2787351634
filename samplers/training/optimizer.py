"""Any recipe as a torch.optim.Optimizer: posterior samples from an ordinary training loop."""

import inspect
import math
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property

import torch
from sympy import Symbol, lambdify

import integrators
from integrators import noise
from integrators.auxiliary import masses
from integrators.kernels.choice import made
from integrators.kernels.sweep import Sweep
from integrators.lower import of_the_loss, optimizer_form
from integrators.start import complete_state
from integrators.step import Step
from recipe import Recipe
from recipe.errors import RecipeError, did_you_mean
from recipe.symbols import step_size

from ..energies.layout import Layout

BOOKKEPT = ("params", "step_number", "initial_lr", "param_names")  # entries of a group that are no settings
OWN = ("lr", "momentum", "step_size", "num_data", "temperature", "weight_decay")
CHECKED = 50  # steps from one look at the gradients' numbers to the next
GROUPS = 2**20  # chains count in the noise from here on for the next parameter group


class Optimizer(torch.optim.Optimizer):
    """A recipe in a training loop: after `loss.backward()`, `step()` moves the parameters as one step of the sampler.

    The loss is the mean over the data, U = num_data loss, and the law is exp(-U/temperature). `lr` and `momentum` are those of
    torch.optim.SGD on that loss, by the recipe's conversion "lr, momentum": SGHMC with the scheme "paper" is SGD at temperature 0,
    the recommended words are of higher order in lr. A recipe without that conversion takes the step size lr/num_data, or
    sqrt(lr/num_data) if it has momenta. `step_size`, in units of time, stands for both; schedulers need `lr`. `weight_decay` w adds
    num_data w theta^2/2 to U, the prior N(0, 1/(num_data w)); leave it at 0 where the loss holds the prior. All of these, and the
    recipe's `parameters`, may differ by parameter group, which has thermostats and adaptations of its own.

    The noise is a function of (seed, chain, group, step, site): `chain` tells runs of one seed apart. `backend`: "torch", "cpp",
    "triton", or "auto", a kernel where there is one. The state is a tensor by name for every parameter, scalar blocks are with the
    first of their group. Raises RecipeError for parameters, settings or gradients that no step can be made with.

    >>> from samplers import SGHMC
    >>> model = torch.nn.Linear(3, 1)
    >>> optimizer = Optimizer(model.parameters(), SGHMC, lr=0.1, momentum=0.9, num_data=500)
    >>> model(torch.ones(20, 3)).square().mean().backward()
    >>> optimizer.step()
    """

    def __init__(
        self,
        params,
        recipe: Recipe,
        *,
        num_data: int,
        lr: float | None = None,
        momentum: float | None = None,
        step_size: float | None = None,
        temperature: float = 1.0,
        weight_decay: float = 0.0,
        seed: int = 0,
        chain: int = 0,
        scheme=None,
        pieces=None,
        backend: str = "auto",
        **parameters,
    ):
        self.where = f"{recipe.name}, Optimizer" if isinstance(recipe, Recipe) else "Optimizer"
        step = integrators.compile(recipe, scheme, pieces=pieces, backend=backend)
        if len(recipe.targets) > 1 or not recipe.target_is_vector:
            raise RecipeError(
                self.where, "the target is made of explicit coordinates", do="Take a recipe of one vector block."
            )
        if recipe.targets[0].domain != "real":
            raise RecipeError(
                self.where, f"{recipe.target} is {recipe.target.domain}, weights are not", do="Take another recipe."
            )
        self.recipe, self.backend, self.seed, self.chain = recipe, backend, seed, chain
        noise.Key(seed, 0, chain)  # refuses what is none
        self.program = optimizer_form(recipe, step.scheme, step.flows, recipe.adapt)
        self.rotated = Step(recipe, self.program.scheme, step.flows, self.program)
        for name in self.rotated.parameters:
            if name in inspect.signature(Optimizer).parameters:
                raise RecipeError(self.where, f"the parameter '{name}' bears the name of an argument", do="Rename it.")
        for name in parameters:
            if name not in self.rotated.parameters:
                raise RecipeError(
                    self.where, f"'{name}' is not a parameter", do=did_you_mean(name, [*self.rotated.parameters, *OWN])
                )
        self._engines: dict[int, _Engine] = {}
        self._clipping = _Clipping(self.where)
        own = dict(
            lr=lr,
            momentum=momentum,
            step_size=step_size,
            num_data=num_data,
            temperature=temperature,
            weight_decay=weight_decay,
        )
        super().__init__(
            params, own | {name: parameters.get(name) for name in self.rotated.parameters} | {"step_number": 0}
        )

    def add_param_group(self, param_group: dict) -> None:
        """Add parameters with settings of their own."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            _check_tensors(self.where, group["params"])
            known = {*OWN, *self.rotated.parameters, *BOOKKEPT}
            for name in group:
                if name not in known:
                    raise RecipeError(self.where, f"'{name}' is not a setting of a group", do=did_you_mean(name, known))
            self.settings(group)
        except RecipeError:
            self.param_groups.pop()
            raise

    def settings(self, group: Mapping, *, budget: bool = True) -> tuple[float, float, dict[str, float]]:
        """Step size, temperature and parameters of a group, from lr and momentum or as they are given.

        `budget`: whether to check that the noise which the gradient supplies is not more than there may be.
        """
        num_data, lr, momentum, where = group["num_data"], group["lr"], group["momentum"], self.where
        if isinstance(num_data, bool) or not isinstance(num_data, int) or num_data < 1:
            raise RecipeError(
                where,
                f"num_data is the number of data, a positive integer, got {num_data!r}",
                do="A mean loss must be scaled up to the whole data: pass num_data=len(dataset).",
            )
        if (lr is None) == (group["step_size"] is None) or lr is None and momentum is not None:
            raise RecipeError(
                where,
                f"lr = {lr!r}, momentum = {momentum!r}, step_size = {group['step_size']!r}",
                do="Give lr, and momentum if you like, or step_size.",
            )
        _check_number(where, "weight_decay", group["weight_decay"])
        for name, value in (("lr", lr), ("momentum", momentum)):
            if value is not None:
                _check_number(where, name, value)
        if momentum is not None and momentum >= 1:
            raise RecipeError(where, f"momentum = {momentum!r}", do="Give a number below 1.")
        given = {name: group[name] for name in self.rotated.parameters if group.get(name) is not None}
        if lr == 0:  # as a schedule may have it: the weights stand still
            return 0.0, group["temperature"], given
        h, converted = (group["step_size"], {}) if lr is None else self._converted(lr, momentum, num_data)
        for name in converted.keys() & given.keys():
            raise RecipeError(
                where,
                f"{name} is given, and follows from lr and momentum too",
                do=f"Drop it, or give step_size and {name}.",
            )
        parameters = converted | given
        self.rotated.check(h, temperature=group["temperature"], **parameters)
        if budget:
            self.rotated.check_budget(h, group["temperature"], **parameters)
        return h, group["temperature"], parameters

    def _converted(self, lr, momentum, num_data):
        """The step size and parameters that lr and momentum stand for."""
        if momentum is not None and "lr, momentum" not in self.recipe.conversions:
            raise RecipeError(
                self.where,
                "the recipe has no conversion of a momentum",
                do="Drop momentum (in a schedule: cycle_momentum=False), and give its parameters.",
            )
        given = dict(lr=lr, momentum=0.9 if momentum is None else momentum, num_data=num_data)
        try:
            found = {name: float(f(**given)) for name, f in self._conversion.items()}
        except (ValueError, ZeroDivisionError):  # outside of its range: told there
            found = self.recipe.convert(**given)
        return found.pop("step_size"), found

    @cached_property
    def _conversion(self):
        """What lr and momentum stand for, as functions of floats: sympy is too slow for every step."""
        names, formulas = ("lr", "momentum", "num_data"), self.recipe.learning_rate
        order = [
            next((s for s in set().union(*(e.free_symbols for e in formulas.values())) if s.name == name), Symbol(name))
            for name in names
        ]
        return {"step_size" if s == step_size else s.name: lambdify(order, e, "math") for s, e in formulas.items()}

    @torch.no_grad()
    def step(self, closure: Callable | None = None, *, observe: Mapping[str, torch.Tensor] | None = None):
        """One step; `closure` computes the loss and its gradient anew, `observe` has the statistics a recipe asks for, by name."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for name in self.rotated.observations:
            if not torch.is_tensor((observe or {}).get(name)):
                raise RecipeError(
                    f"{self.where}, step",
                    f"the observation '{name}' is missing",
                    do=f"Pass observe={{{name!r}: tensor}}.",
                )
        for index, group in enumerate(self.param_groups):
            if group["params"] and group["lr"] != 0:
                self._move(index, group, observe or {})
                group["step_number"] += 1
        return loss

    def _move(self, index, group, observe):
        params, engine = group["params"], self._engines.get(index)
        slopes = [p.grad for p in params]
        if engine is None or not engine.takes(slopes):
            slopes = [_usable(self.where, p, f"parameter {k} of group {index}") for k, p in enumerate(params)]
        if engine is None or not engine.fits(group):
            engine = self._engines[index] = self._engine(index, group, slopes, observe)
        self._clipping.see(slopes)
        if group["step_number"] % CHECKED == 0:
            _check_finite(self.where, group, slopes, index)
        setting = tuple(group[name] for name in engine.read)
        if setting != engine.setting:
            engine.setting, engine.values = (
                setting,
                self.settings(group, budget=False),
            )  # a schedule comes here at every step
        h, temperature, parameters = engine.values
        key = noise.Key(self.seed, group["step_number"], self.chain + index * GROUPS)
        engine.move(
            h,
            slopes,
            key,
            observe,
            temperature=temperature,
            num_data=group["num_data"],
            weight_decay=group["weight_decay"],
            step_number=group["step_number"],
            **parameters,
        )

    def _engine(self, index, group, slopes, observe):
        """What moves a group, its state begun where there is none."""
        params, (_, temperature, parameters) = group["params"], self.settings(group)
        _check_tensors(self.where, params)
        if not all(self.state.get(p) for p in params):
            self._start(index, group, slopes, temperature, parameters, observe)
        device = params[0].device.type
        backend = {"cpu": "cpp", "cuda": "triton"}.get(device, "torch") if self.backend == "auto" else self.backend
        kernel = None if backend == "torch" else made(self.backend, lambda: _Kernel(self, group, backend))
        return kernel or _Engine(self, group)

    def _start(self, index, group, slopes, temperature, parameters, observe):
        """Auxiliary blocks from their stationary law, adapted quantities from the first gradient."""
        theta, gradient = _joined(group["params"]), _gradient(group, slopes)
        layout = Layout({str(k): tuple(p.shape) for k, p in enumerate(group["params"])})
        whole = complete_state(
            self.rotated,
            {self.recipe.target.name: theta},
            layout,
            seed=self.seed,
            temperature=temperature,
            gradient=lambda theta: gradient,
            observe=_functions(observe),
            energy=None,
            arguments=parameters | {"num_data": group["num_data"]},
            first_chain=self.chain + index * GROUPS,
        )
        for b in self.recipe.entries:
            if b in self.recipe.targets:
                continue
            if not b.is_vector:
                self.state[group["params"][0]][b.name] = whole[b.name]
                continue
            for p, part in zip(group["params"], whole[b.name][0].split([p.numel() for p in group["params"]])):
                like = torch.empty_like(p)
                _flat(like).copy_(part)
                self.state[p][b.name] = like

    def kinetic_temperatures(self) -> dict:
        """A `diagnostics.Temperature` for each tensor and block of Gaussian momenta, the mean of p^2/m with its 99 % band, of this moment.

        By the name of the tensor, where it was given with `named_parameters()`, or its group and number, and the block: "0.1, p".
        """
        from ..results.temperatures import kinetic_temperature  # imports scipy.stats

        found = {}
        for index, group in enumerate(self.param_groups):
            _, temperature, parameters = self.settings(group, budget=False)
            for block, mass in masses(self.rotated, parameters).items():
                for k, p in enumerate(group["params"]):
                    if self.state.get(p) and p.numel():
                        name = group.get("param_names", {k: f"{index}.{k}"})[k]
                        found[f"{name}, {block}"] = kinetic_temperature(
                            self.state[p][block], mass, temperature=temperature
                        )
        return found

    def state_dict(self) -> dict:
        """The state, and what it is the state of."""
        return super().state_dict() | {
            "sampler": {
                "recipe": self.recipe.name,
                "scheme": str(self.program.scheme),
                "seed": self.seed,
                "chain": self.chain,
            }
        }

    def load_state_dict(self, state_dict: dict) -> None:
        """Take up a state; refused if it is another sampler's or seed's."""
        mine, other = self.state_dict()["sampler"], state_dict.get("sampler")
        if other != mine:
            raise RecipeError(
                f"{self.where}, load_state_dict", f"it is the state of {other}, this is {mine}", do="Make the same one."
            )
        before = {"state": self.state, "param_groups": self.param_groups}
        super().load_state_dict({name: value for name, value in state_dict.items() if name != "sampler"})
        try:
            for index, group in enumerate(self.param_groups):
                self._take_up(index, group)
        except RecipeError:
            self.__setstate__(before)
            raise

    def _take_up(self, index, group):
        """Check the state of a group, and lay it in memory as its parameters are."""
        for k, p in enumerate(group["params"]) if group["step_number"] else ():
            for b in self.recipe.entries:
                if b in self.recipe.targets or not b.is_vector and k:
                    continue
                value, shape = self.state[p].get(b.name), tuple(p.shape) if b.is_vector else (1,)
                got = (
                    "missing"
                    if value is None
                    else f"a {type(value).__name__}"
                    if not torch.is_tensor(value)
                    else f"{tuple(value.shape)}, {value.dtype}"
                    if (tuple(value.shape), value.dtype) != (shape, p.dtype)
                    else ""
                    if bool(value.isfinite().all())
                    else "not finite"
                )
                if got:
                    raise RecipeError(
                        f"{self.where}, load_state_dict",
                        f"{b} of parameter {k} of group {index} is {got}, not {shape} of finite {p.dtype}",
                        do="Load the state that state_dict() gave for these parameters.",
                    )
                if b.is_vector and value.stride() != p.stride():
                    self.state[p][b.name] = torch.empty_like(p).copy_(value)

    def __getstate__(self) -> dict:
        own = ("where", "recipe", "backend", "seed", "chain", "program", "rotated")
        return super().__getstate__() | {name: getattr(self, name) for name in own}

    def __setstate__(self, state: dict) -> None:
        super().__setstate__(state)
        self._engines, self._clipping = {}, self.__dict__.get("_clipping") or _Clipping(self.where)


class _Engine:
    """The step of a group as torch text, on its parameters laid end to end."""

    def __init__(self, optimizer: Optimizer, group):
        self.step, self.recipe, self.params = optimizer.rotated, optimizer.recipe, group["params"]
        self.read = [name for name in group if name not in BOOKKEPT]
        self.setting, self.values, self.states = None, None, [optimizer.state[p] for p in self.params]
        self.vectors = [b.name for b in self.recipe.entries if b.is_vector and b not in self.recipe.targets]
        self.scalars = [b.name for b in self.recipe.entries if not b.is_vector]
        self.addresses, self.strides = [p.data_ptr() for p in self.params], [p.stride() for p in self.params]

    def takes(self, slopes) -> bool:
        """Whether the gradients lie in memory as the parameters do."""
        try:
            return [g.stride() for g in slopes] == self.strides
        except (AttributeError, RuntimeError):  # none, or sparse
            return False

    def fits(self, group) -> bool:
        """Whether it is still these tensors that move."""
        return [p.data_ptr() for p in group["params"]] == self.addresses

    def move(self, h, slopes, key, observe, *, num_data, weight_decay, **parameters):
        """One step."""
        theta = self.recipe.target.name
        state = {theta: _joined(self.params)} | {b: _joined([s[b] for s in self.states]) for b in self.vectors}
        state |= {b: self.states[0][b] for b in self.scalars}
        gradient = _gradient({"params": self.params, "num_data": num_data, "weight_decay": weight_decay}, slopes)
        new = self.step.function(
            state,
            h,
            **self.step.arguments(gradient, self.step.drawn(key, state), None, _functions(observe)),
            **self.step.spelled(parameters | {"num_data": num_data}),
        )
        for name in (theta, *self.vectors):
            parts = new[name][0].split([p.numel() for p in self.params])
            for t, part in zip(self.params if name == theta else [s[name] for s in self.states], parts):
                _flat(t).copy_(part)
        for name in self.scalars:
            self.states[0][name].copy_(new[name])


class _Kernel(_Engine):
    """The step of a group as a compiled kernel, on its tensors where they are."""

    def __init__(self, optimizer: Optimizer, group, backend):
        super().__init__(optimizer, group)
        self.decays = bool(group["weight_decay"])
        program = of_the_loss(optimizer.program, prior=self.decays)
        theta = self.recipe.target.name
        state = {theta: [_flat(p)[None] for p in self.params]}
        state |= {b: [_flat(s[b])[None] for s in self.states] for b in self.vectors} | {
            b: self.states[0][b] for b in self.scalars
        }
        self.sweep = Sweep(program, state, backend).bind(state)

    def fits(self, group) -> bool:
        return super().fits(group) and bool(group["weight_decay"]) == self.decays

    def move(self, h, slopes, key, observe, *, weight_decay, **parameters):
        decay = {"prior_precision": parameters["num_data"] * weight_decay} if self.decays else {}
        self.sweep.step(h, key, slopes, observe, **parameters, **decay)


def _functions(observe):
    """Observations as functions of theta, which they have been taken at."""
    return {name: lambda theta, value=value: value for name, value in observe.items()}


def _flat(t):
    """The numbers of a dense tensor in the order of its memory, as one axis."""
    return t.detach().view(-1) if t.is_contiguous() else t.detach().as_strided((t.numel(),), (1,))


def _joined(tensors):
    """The tensors as one chain of sites."""
    return torch.cat([_flat(t) for t in tensors])[None]


def _gradient(group, slopes):
    """The gradient of U for one chain of sites."""
    gradient = _joined(slopes).mul_(group["num_data"])
    if group["weight_decay"]:
        gradient.add_(_joined(group["params"]), alpha=group["num_data"] * group["weight_decay"])
    return gradient


def _usable(where, p, what):
    """The gradient of a parameter, in its memory order."""
    g = p.grad
    if g is None:
        raise RecipeError(
            f"{where}, step",
            f"{what} has no gradient",
            do="Call loss.backward() first, and leave out what the loss does not use.",
        )
    if g.layout is not torch.strided:
        raise RecipeError(f"{where}, step", f"the gradient of {what} is sparse", do="Use sparse=False.")
    return g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)


def _check_finite(where, group, slopes, index):
    """Refuse gradients that are not finite, before anything moves."""
    if not math.isfinite(sum(float(g.sum()) for g in slopes)):
        for k, (p, g) in enumerate(zip(group["params"], slopes)):
            if not bool(g.isfinite().all()):
                told = f"the gradient of parameter {k} of group {index} is not finite at step {group['step_number']}"
                weights = "and so are its weights: go back to a checkpoint and " if not bool(p.isfinite().all()) else ""
                raise RecipeError(
                    f"{where}, step", told, do=f"{weights}look at the loss, or take a smaller lr.".capitalize()
                )


def _check_number(where, name, value):
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < math.inf:
        raise RecipeError(where, f"{name} = {value!r}", do="Give a number >= 0.")


def _check_tensors(where, params):
    """Refuse parameters that cannot be moved."""
    for k, p in enumerate(params):
        told = (
            "requires no gradient"
            if not p.requires_grad
            else f"is {p.dtype}"
            if p.dtype not in (torch.float32, torch.float64)
            else f"is {p.dtype} on {p.device}, the first {params[0].dtype} on {params[0].device}"
            if (p.dtype, p.device) != (params[0].dtype, params[0].device)
            else "has holes in its memory"
            if not _is_dense(p)
            else "is not finite"
            if not bool(p.isfinite().all())
            else ""
        )
        if told:
            raise RecipeError(
                where,
                f"parameter {k} {told}",
                do="Pass float32 or float64 weights of one device that the loss depends on; "
                "mixed precision keeps float32 weights and computes under torch.autocast.",
            )
    spans = sorted((p.data_ptr(), p.data_ptr() + p.numel() * p.element_size()) for p in params if p.numel())
    if any(a[1] > b[0] for a, b in zip(spans, spans[1:])):
        raise RecipeError(where, "two parameters share memory", do="Pass each tensor once.")


def _is_dense(t):
    """Whether its numbers fill a stretch of memory."""
    size = 1
    for stride, n in sorted((s, n) for s, n in zip(t.stride(), t.shape) if n != 1):
        if stride != size:
            return False
        size *= n
    return True


class _Clipping:
    """Looks for gradients of one norm, or of one largest entry, in the first steps: clipping changes the law that is sampled."""

    LOOKS, ALIKE = 24, 4

    def __init__(self, where):
        self.where, self.seen = where, []

    def see(self, slopes):
        """Look at the gradients of a step: a norm that stays while the largest entry does not, or the other way round."""
        if len(self.seen) >= self.LOOKS:
            return
        top = max((float(g.abs().max()) for g in slopes if g.numel()), default=0.0)
        self.seen.append((math.hypot(*(float(g.norm()) for g in slopes)), top))
        same = lambda i, k: sum(
            abs(x[i] - self.seen[-1][i]) <= 1e-5 * x[i] and abs(x[k] - self.seen[-1][k]) > 1e-3 * x[k]
            for x in self.seen
        )
        if top and max(same(0, 1), same(1, 0)) == self.ALIKE - 1:
            warnings.warn(
                f"{self.where}: gradients of one norm, or of one largest entry, as if they were clipped. A step that depends on "
                "the gradient's size needs a correction: the law is not the posterior's. Clip the loss, or take a smaller lr.",
                RuntimeWarning,
                stacklevel=6,
            )
            self.seen += [(0.0, 0.0)] * self.LOOKS  # told once
