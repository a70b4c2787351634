"""Running a sampler: many chains, symbolic or torch energies, minibatches, progress, diverging chains."""

import inspect
import itertools
import math
import numbers
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import sympy
import torch
from tqdm import tqdm

import integrators
from integrators import accuracy, noise
from integrators.step import Step
from recipe import Energy, Recipe
from recipe.errors import RecipeError, did_you_mean
from recipe.symbols import Total

from .draws import Draws
from .gradients import (WORTH_COMPILING, Data, check_energy, compiled_gradient, emitted, explained, functional_gradient,
                        vectorised)
from .launches import launches, pays, sweep, trajectory
from .phases import Phase, names_of
from .start import INSIDE, complete_state, given_state, spread

PROBES = 10_000  # how many values of a schedule are looked at before the first step
NOISE_AT_ONCE = 2**20  # normals that are drawn together, for as many steps as they serve


def sample(recipe: Recipe, energy: Energy | Callable | None = None, *, init=None, chains: int = 4, steps: int = 1000,
           warmup: int = 0, thin: int = 1, step_size: float, seed: int = 0,
           temperature: float | Callable[[int], float] = 1.0, scheme=None, pieces=None, backend: str = "auto",
           device=None, data=None, batch_size: int | None = None, schedule: Callable[[int], float] | None = None,
           phases: Sequence[Phase] | None = None, freeze=(), observe: Mapping[str, Callable] | None = None,
           scope: str = "chain", keep=None, progress: bool = True, **parameters) -> Draws:
    """Draw from exp(-U/T) with a recipe: `warmup` steps, then `steps` steps of which every `thin`-th is kept.

    `energy`: a symbolic Energy, or a torch function U(theta), or U~(theta, batch) with `data` (an unbiased estimate on
    the sum scale), for one chain; none where H is wholly symbolic. `init`: a point `(*shape)`, a point per chain
    `(chains, *shape)` with at least two axes, a dict by block or by parameter name, or an nn.Module. Auxiliary blocks
    start from their stationary law where H is quadratic in them, else at 0 (1 on a positive domain). `schedule(k)` is
    the step size of step k, counted from the start of the warmup, and `temperature` may be such a function too. `phases`
    stand for warmup and steps where the settings change; `freeze` names blocks and adapted quantities that stay as they
    are. `observe`: the statistics that the recipe asks for, by name, as functions of theta or (theta, batch) of one chain.
    `backend`: "torch"; "cpp", compiled kernels on the CPU; "triton", on a GPU; "auto" compiles where a run is long, and there
    is a compiler, and in runs of 100,000 steps the gradient of a torch energy by torch.compile; their draws agree up to rounding. With the scope "tensor" the totals and scalar blocks are per tensor of the
    target. `keep`: names of other blocks and adapted quantities to return beside the target. Minibatches are uniform with
    replacement and independent per chain.
    A chain that leaves the finite numbers, or the domain of a block, is frozen and flagged in `draws.diverged`. Raises
    RecipeError for wrong input before the first step.

    >>> from samplers import SGLD
    >>> draws = sample(SGLD, lambda theta: (theta**2).sum()/2, init=torch.zeros(3), steps=50, step_size=0.1, progress=False)
    >>> draws["theta"].shape
    torch.Size([4, 50, 3])
    """
    where = f"{recipe.name}, sample" if isinstance(recipe, Recipe) else "sample"
    _check_counts(where, chains=chains, steps=steps, warmup=warmup, thin=thin, seed=seed)
    symbolic = isinstance(energy, Energy)
    plan = _plan(phases, warmup, steps, thin, where)
    freeze = names_of(freeze, f"{where}, freeze")
    still = [(*freeze, *phase.freeze) for phase in plan]
    steps_of = {names: integrators.compile(recipe, scheme, pieces=pieces, energy=energy if symbolic else None,
                                           backend=backend, scope=scope, freeze=names) for names in dict.fromkeys(still)}
    compiled = [steps_of[names] for names in still]
    step = compiled[0]
    for name in step.parameters:
        if name in inspect.signature(sample).parameters:
            raise RecipeError(where, f"the parameter '{name}' bears the name of an argument of sample", do="Rename it.")
    if schedule is not None and not callable(schedule):
        raise RecipeError(where, f"schedule is a function of the step number, got {schedule!r}", do="Pass lambda k: ...")
    for name in parameters:
        if name not in step.parameters:
            raise RecipeError(where, f"'{name}' is not a parameter",
                              do=did_you_mean(name, [*step.parameters, *inspect.signature(sample).parameters]))
    step.check(step_size, temperature=1.0 if callable(temperature) else temperature, **parameters)
    settings = _settings(plan, step_size, schedule, temperature, where)
    for phase, (h_of, T_of) in zip(plan, settings):
        some = range(0, phase.steps, 1 + phase.steps // PROBES)
        sizes, temperatures = (_probed(f, some, what, where) for f, what in ((h_of, "step size"), (T_of, "temperature")))
        for h, T in itertools.product({min(sizes), max(sizes)}, {min(temperatures), max(temperatures)}):
            step.check(h, temperature=T, **parameters)
            step.check_budget(h, T, **parameters)
    for finding in step.recipe.check().findings:
        if finding.verdict == "failed":
            raise RecipeError(where, f"the recipe has not the law it claims: {finding.question}? {finding.answer}",
                              do="See recipe.check().")
    if (energy is None) != (recipe.potential is None):
        raise RecipeError(where, "the recipe's U is opaque, but no energy is given" if energy is None else
                          "the recipe's H is wholly symbolic, it takes no energy",
                          do="Pass a recipe.Energy or a torch function of theta." if energy is None else "Drop it.")
    state, layout = given_state(step, energy, init, chains=chains, device=device, parameters=parameters)
    kept_blocks = _kept(recipe, keep)
    target = _target(recipe, state)
    one = next(iter(target.values())) if isinstance(target, dict) else target
    batches = None if data is None else Data(data, batch_size, like=one)
    if batch_size is not None and data is None:
        raise RecipeError(where, "batch_size without data", do="Pass data=(X, y).")
    if symbolic and bool(energy.data) != (data is not None):
        columns = ", ".join(map(str, energy.data))
        raise RecipeError(where, f"the energy has the columns {columns}" if columns else "the energy reads no data",
                          do=f"Pass data=({columns})." if columns else "Drop data=, or sum over rows with recipe.data_total().")
    gradient = curvature = None
    if symbolic and energy.data:
        batches.columns(energy, one)
        derivatives = {name: emitted(s.namespace[name], batches) for s in compiled for name in ("gradient", "curvature")
                       if name in s.namespace}
        gradient, curvature = derivatives["gradient"], derivatives.get("curvature")
    elif symbolic:
        _check_stability(step, energy, settings[0][0](0), settings[0][1](0), parameters)
    elif energy is not None:
        one_chain = {k: v[0] for k, v in target.items()} if isinstance(target, dict) else target[0]
        check_energy(energy, one_chain, layout, batches)
        gradient = vectorised(energy, layout, batches)
        if backend != "torch" and sum(phase.steps for phase in plan) >= WORTH_COMPILING:
            gradient = compiled_gradient(functional_gradient(energy, layout, batches), gradient, where)
        if any(step.program.needs_curvature for step in compiled):
            curvature = vectorised(energy, layout, batches, order=2)
    run = _Run(step, state, layout, gradient, curvature, _observers(compiled, observe, layout, batches, where), batches, seed,
               parameters)
    run.check_first_gradient(where)
    run.warn_of_sign(where)
    run.complete_state(energy, settings[0][1](0))
    run.choose_backend(backend, steps_of.values(), sum(phase.steps for phase in plan))

    number = sum(phase.steps for phase in plan if phase.keep) // thin
    draws_of = {b: torch.empty((chains, number, *run.state[b].shape[1:]), dtype=run.state[b].dtype,
                               device=run.state[b].device) for b in kept_blocks}
    started, seen, step_sizes = time.monotonic(), 0, []
    with tqdm(total=sum(phase.steps for phase in plan), disable=not progress, unit="step", desc=recipe.name) as bar:
        for phase, run.step, (h_of, T_of) in zip(plan, compiled, settings):
            every = dict(thin=thin, first=-(seen + 1) % thin) if phase.keep else dict(thin=phase.steps + 1, first=phase.steps)
            for moved, sizes, kept in run.moves(phase.steps, h_of, T_of, where, keep=kept_blocks, **every):
                for b, x in kept.items():
                    draws_of[b][:, len(step_sizes):len(step_sizes) + len(sizes)] = x
                step_sizes += sizes
                bar.update(moved)
            seen += phase.steps * phase.keep
    values = {}
    for b, x in draws_of.items():
        values |= layout.by_name(x) if layout.shapes and b == recipe.targets[0].name else {b: x}
    info = dict(recipe=recipe.name, scheme=str(step.scheme), step_size=step_size, steps=steps, warmup=warmup, thin=thin,
                seed=seed, temperature=temperature if isinstance(temperature, (int, float)) else repr(temperature),
                batch_size=batch_size, seconds=round(time.monotonic() - started, 3),
                parameters={k: float(v) if isinstance(v, (int, float)) else v.tolist() for k, v in parameters.items()},
                diverged=run.diverged, backend=run.backend)
    info |= {} if phases is None else dict(phases=list(map(repr, plan)))
    varying = schedule is not None or any(phase.step_size is not None for phase in plan)
    return Draws(values, info=info, step_sizes=step_sizes if varying else None)


def _settings(plan, step_size, schedule, temperature, where) -> list[tuple[Callable, Callable]]:
    """Step size and temperature of each phase, as functions of the step number within it."""
    settings, first = [], 0
    for phase in plan:
        own = [(phase.step_size, 0), (schedule, first), (step_size, first)], [(phase.temperature, 0), (temperature, first)]
        settings.append(tuple(_function(*next(x for x in given if x[0] is not None)) for given in own))
        first += phase.steps
    return settings


def _function(value, first):
    """A setting as a function of the steps since the start of the phase, where it may count those of the run."""
    return (lambda k: value(first + k)) if callable(value) else lambda k: value


def _probed(setting, steps, what, where):
    """The numbers that a schedule gives, checked."""
    return [_number(setting, k, what, where) for k in steps]


def _number(setting, k, what, where):
    """The step size or temperature at step k."""
    try:
        value = setting(k)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise RecipeError(where, f"the schedule of the {what} fails at step {k}: {error}",
                          do="It is a function of k.") from error
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (real and math.isfinite(value) and (value > 0 or value == 0 and what == "temperature")):
        raise RecipeError(where, f"the schedule gives the {what} {value!r} at step {k}",
                          do=f"Return a number {'>= 0' if what == 'temperature' else '> 0'}.")
    return float(value)


def _plan(phases, warmup, steps, thin, where) -> list[Phase]:
    """The phases of a run: those given, or the warmup and the steps."""
    if phases is None:
        return [Phase(warmup, keep=False), Phase(steps)] if warmup else [Phase(steps)]
    if warmup or steps != 1000:
        raise RecipeError(where, "phases stand for warmup and steps", do="Give one or the other.")
    if not isinstance(phases, (list, tuple)) or not phases or not all(isinstance(phase, Phase) for phase in phases):
        raise RecipeError(where, f"phases are a list of Phase, got {phases!r}", do="Write [Phase(steps=..., ...), ...].")
    if sum(phase.steps for phase in phases if phase.keep) < thin:
        raise RecipeError(where, f"thin = {thin} keeps nothing of the phases", do="Choose a smaller thin.")
    return list(phases)


def _observers(steps, observe, layout, data, where):
    """The observations of all chains at once, by name."""
    if observe is not None and not isinstance(observe, Mapping):
        raise RecipeError(f"{where}, observe", f"it is a dict of functions by name, got {observe!r}",
                          do='Write {"name": f}.')
    step, asked = steps[0], {name: None for step in steps for name in step.observations}
    for name in asked:
        if not callable((observe or {}).get(name)):
            raise RecipeError(where, f"the recipe asks for the observation '{name}'",
                              do=f"Pass observe={{{name!r}: a function of theta{', batch' * (data is not None)}}}.")
    for name in observe or {}:
        known = [s.name for s in step.recipe.observations]
        if name not in known:
            raise RecipeError(where, f"there is no observation '{name}'", do=did_you_mean(name, known))
    def checked(observed):
        function = vectorised(observe[observed.name], layout, data, order=0)

        def of_all_chains(theta, *batch):
            try:
                value = function(theta, *batch)
            except Exception as error:  # of the caller's own function
                told = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                raise RecipeError(f"{where}, observe[{observed.name!r}]", told, do="It is a function of theta"
                                  f"{', batch' * (data is not None)} of one chain, to a tensor.") from error
            wanted = theta.shape if observed.is_vector else theta.shape[:1]
            if not torch.is_tensor(value) or value.shape != wanted:
                got = f"has the shape {tuple(value.shape[1:])}" if torch.is_tensor(value) else f"is a {type(value).__name__}"
                raise RecipeError(where, f"the observation '{observed.name}' {got} for one chain, not a tensor of shape "
                                  f"{tuple(wanted[1:])}", do="Sum over the batch, not over the chains.")
            if not value.isfinite().all():
                raise RecipeError(where, f"the observation '{observed.name}' is not finite", do="Look at what it divides by.")
            return value if observed.is_vector or step.program.scope == "chain" else spread(value, layout)

        return of_all_chains

    return {s.name: checked(s) for s in step.recipe.observations if s.name in asked}


class _Run:
    """The chains as they go: state, noise drawn for blocks of steps, gradients, frozen chains."""

    def __init__(self, step: Step, state, layout, gradient, curvature, observe, data, seed, parameters):
        self.step, self.state, self.layout, self.data, self.seed = step, state, layout, data, seed
        self.chains, self.steps_done, self.step_size = len(next(iter(state.values()))), 0, math.nan
        num_data = getattr(data, "rows", 1)
        self.parameters = {"num_data": num_data, **parameters}
        self.alive = torch.ones(self.chains, dtype=torch.bool, device=next(iter(state.values())).device)
        self.diverged: dict[int, int] = {}
        self.bounded = [b for b in step.recipe.entries if b.domain in INSIDE]
        self._rows, self._evaluation, self._first, self._latest = [], 0, [], []
        on = lambda rows: [] if data is None else [data.batch(rows)]
        self.gradient = None if gradient is None else lambda theta: gradient(theta, *on(self._next_rows()))
        self.curvature = None if curvature is None else lambda theta: curvature(theta, *on(self._latest))
        self.observe = {name: lambda theta, f=f: f(theta, *on(self._first)) for name, f in observe.items()}

    def _batches(self, rows, carried=False):
        """Take the batches of a step: a carried gradient, the first of the step, has seen the latest one."""
        self._rows, self._evaluation = rows, 0
        self._first = self._latest if carried else rows[0] if rows else None
        self._latest = self._first

    def _next_rows(self):
        """The rows of the next gradient."""
        if self.data is not None:
            self._latest = self._rows[self._evaluation]
            self._evaluation += 1
        return self._latest

    def check_first_gradient(self, where):
        """Refuse a start at which the gradient is not finite."""
        for name, x in self._first_gradient(_target(self.step.recipe, self.state)).items():
            bad = (~x.reshape(self.chains, -1).isfinite().all(1)).nonzero()
            if len(bad):
                raise RecipeError(where, f"the gradient by {name} is not finite at the start of chain {int(bad[0])}",
                                  do="Start elsewhere, or mend the energy there.")

    def warn_of_sign(self, where):
        """Warn of an energy that falls without bound along every ray: a log-density handed in as an energy."""
        at = _target(self.step.recipe, self.state)
        at = at if isinstance(at, dict) else {self.step.recipe.targets[0].name: at}
        ray = {b: noise.normal(self.seed, 2**40 + i, noise.INITIAL, self.chains, tuple(x.shape[1:]), dtype=x.dtype,
                               device=x.device) for i, (b, x) in enumerate(at.items())}
        slopes = []
        for r in (100.0, -100.0, 1000.0, -1000.0):
            far = {b: x + r * ray[b] for b, x in at.items()}
            g = self._first_gradient(far if len(far) > 1 else next(iter(far.values())))
            slopes += [sum((r * ray[b] * g[b]).reshape(self.chains, -1).sum(1) for b in g)] if g else []
        if slopes and bool((torch.stack(slopes) < -0.5).all()):
            warnings.warn(f"{where}: the energy falls without bound away from the start. U is -log density: was a "
                          "log-density handed in with the wrong sign?", RuntimeWarning, stacklevel=3)

    def _first_gradient(self, theta) -> dict:
        """The gradient by block on the first batch of every chain; empty where the step asks for none."""
        gradient = self.gradient or (self.step.namespace.get("gradient") if self.step.program.energy else None)
        if gradient is None:
            return {}
        self._batches(self._draw_rows(range(1), 1)(0))
        with torch.no_grad(), explained("sample, energy"):
            g = gradient(theta)
        return g if isinstance(g, dict) else {self.step.recipe.targets[0].name: g}

    @torch.no_grad()
    def complete_state(self, energy, temperature):
        """Let the blocks that the caller has not given start from their law."""
        self._batches(self._draw_rows(range(1), 1)(0))
        self.state = complete_state(self.step, self.state, self.layout, seed=self.seed, temperature=temperature,
                                    gradient=self.gradient, observe=self.observe, energy=energy, arguments=self.parameters)

    def _draw_rows(self, steps, evaluations):
        if self.data is None:
            return lambda i: []
        rows = [self.data.rows_for(self.seed, steps, e, self.chains) for e in range(evaluations)]
        return lambda i: [r if r is None else r[i] for r in rows]

    def _draw_noise(self, steps):
        drawn, target = {}, self.state[self.step.recipe.targets[0].name]
        scalar = (len(self.layout.shapes),) if self.step.program.scope == "tensor" else ()
        for number, draw in enumerate(self.step.program.draws):
            kind = (noise.KINDS | noise.STATE_DEPENDENT)[draw.kind]
            shape = tuple(target.shape[1:]) if draw.is_vector else scalar
            drawn[draw.name] = kind(self.seed, steps, number, self.chains, shape, dtype=target.dtype, device=target.device)
        return drawn

    def choose_backend(self, backend, steps, count):
        """Run kernels where all these steps have one, and the run is long enough or they are asked for."""
        self.inlined = self.gradient is None or self.step.program.energy is not None  # the energy is symbolic
        kernel = trajectory if self.inlined and backend != "triton" else sweep
        wanted = backend in ("cpp", "triton") or backend == "auto" and pays(count, self.state, self.inlined)
        for self.step in steps if wanted else ():
            wanted = wanted and kernel(backend, self) is not None
        self.backend = "torch" if not wanted else "triton" if backend == "triton" else "cpp"

    def moves(self, count, step_size, temperature, where, *, thin, first, keep):
        """Advance by `count` steps, yielding (steps made, step sizes kept, values kept by block) as they come."""
        of = lambda setting, what: lambda k: _number(setting, k, what, where)
        step_size, temperature = of(step_size, "step size"), of(temperature, "temperature")
        if self.backend == "cpp" and self.inlined:
            yield from launches(self, trajectory("cpp", self), count, step_size, temperature, where, thin=thin, first=first, keep=keep)
            return
        for i, _ in enumerate(self.steps(count, step_size, temperature, where)):
            kept = i >= first and (i - first) % thin == 0
            yield 1, [self.step_size] * kept, {b: self.state[b][:, None] for b in keep} if kept else {}

    @torch.no_grad()
    def steps(self, count, step_size, temperature, where):
        """Advance by `count` steps at step sizes and temperatures by their number among these, yielding after each."""
        function, program, layout = self.step.function, self.step.program, self.layout
        evaluations = max(program.gradients_per_step, len(program.observations) > 0)
        per_step = [self.chains * self.state[self.step.recipe.targets[0].name][0].numel()] * len(program.draws)
        rows = self.chains * (self.data.batch_size or 0) * (evaluations + 1) if self.data else 0
        size = max(1, min(count, NOISE_AT_ONCE // max(1, rows, sum(per_step))))
        start, self.steps_done = self.steps_done, self.steps_done + count
        for first in range(start, start + count, size):
            numbers = range(first, min(first + size, start + count))
            extra = program.carries_gradient and "gradient" not in self.state
            swept = self.backend != "torch"  # the noise is drawn inside
            drawn, rows = {} if swept else self._draw_noise(numbers), self._draw_rows(numbers, evaluations + extra)
            for i, k in enumerate(numbers):
                self._batches(rows(i), program.carries_gradient and "gradient" in self.state)
                h, T = step_size(k - start), temperature(k - start)
                self.step_size = h
                if swept:
                    self._accept(self.step.swept(self.state, h, gradient=self.gradient, noise=noise.Key(self.seed, k),
                                                 curvature=self.curvature, observe=self.observe, temperature=T, step_number=k,
                                                 **self.parameters), k, where)
                    yield k
                    continue
                given = self.step.arguments(self.gradient, {n: x[i] for n, x in drawn.items()}, self.curvature, self.observe,
                                            layout.sizes)
                given |= self.step.spelled({"temperature": T, "step_number": k, **self.parameters})
                self._accept(function(self.state, h, **given), k, where)
                yield k

    def _accept(self, new, k, where):
        """Take the new state, except in chains that have left the finite numbers: these stay where they were."""
        everything = sum(new[b.name].sum() for b in self.step.recipe.entries)
        sound = not self.bounded and not self.diverged and math.isfinite(everything)
        lost = [] if sound else (self.alive & ~self._is_fine(new)).nonzero().flatten().tolist()
        if lost:
            self._freeze({chain: k for chain in lost}, {name: x[lost[0]] for name, x in new.items() if name != "gradient"}, where)
        if self.diverged:
            new = _merge(self.alive, new, self.state)
        self.state = new

    def _is_fine(self, new):
        """The chains whose numbers are finite and inside of their domains."""
        fine = sum(new[b.name].reshape(self.chains, -1).sum(1) for b in self.step.recipe.entries).isfinite()
        for b in self.bounded:
            fine &= INSIDE[b.domain](new[b.name]).reshape(self.chains, -1).all(1)
        return fine

    def _freeze(self, lost, new, where):
        """Flag chains that have diverged, by the step at which they did; `new` is where the first of them would be."""
        block = next((b.name for b in reversed(self.step.recipe.entries) if not new[b.name].isfinite().all()), None)
        outside = next((b for b in reversed(self.bounded) if (~INSIDE[b.domain](new[b.name]) & new[b.name].isfinite()).any()), None)
        why = f"{outside} has left its domain, {outside.domain}" if outside else f"{block} is not finite"
        do = f"Look at the update of {outside}." if outside in self.step.recipe.adapted else "Take a smaller step size."
        self.diverged |= lost
        self.alive[list(lost)] = False
        first, *others = lost
        told = f"chain {first}" if not others else f"chains {', '.join(map(str, [first, *others[:7]]))}"
        told += f" and {len(others) - 7} others" if len(others) > 7 else ""
        if not self.alive.any():
            raise RecipeError(where, f"every chain has diverged, the last at step {max(lost.values())}: {why}", do=do)
        warnings.warn(f"{where}: {told} diverged at step {lost[first]}, {why}. Frozen at the last finite "
                      f"state: {do[0].lower()}{do[1:]}", RuntimeWarning, stacklevel=6)

    def lose(self, kernel, settings, first, where):
        """Flag the chains that a launch has lost; the step of the first of them is made once more, to see where it led."""
        died = kernel.died[:self.chains]
        lost = (self.alive & (died >= 0)).nonzero().flatten().tolist()
        if not lost:
            return
        lost = {chain: int(died[chain]) for chain in sorted(lost, key=lambda chain: int(died[chain]))}
        chain, k = next(iter(lost.items()))
        at = {name: kernel.block(name)[chain:chain + 1] for name in kernel.rows}
        drawn = self.step.drawn(noise.Key(self.seed, k, chain), at)
        h, T = settings[k - first]
        rows = self._draw_rows(range(k, k + 1), self.step.program.gradients_per_step + 1)(0)
        self._batches([r if r is None else r[chain:chain + 1] for r in rows])
        new = self.step.function(at, h, **self.step.arguments(self.gradient, drawn, self.curvature),
                                 **self.step.spelled({"temperature": T, "step_number": k, **self.parameters}))
        self._freeze(lost, {name: x[0] for name, x in new.items() if name != "gradient"}, where)


def _merge(alive, new, old):
    merged = {}
    for name, x in new.items():
        if isinstance(x, dict):
            merged[name] = _merge(alive, x, old.get(name, x))
        else:
            merged[name] = torch.where(alive.reshape(-1, *(1,) * (x.dim() - 1)), x, old.get(name, x))
    return merged


def _target(recipe, state):
    """The target of all chains: a tensor, or a dict by block for explicit coordinates."""
    if len(recipe.targets) == 1:
        return state[recipe.targets[0].name]
    return {b.name: state[b.name] for b in recipe.targets}


def _check_counts(where, *, chains, steps, warmup, thin, seed):
    for name, value, least in (("chains", chains, 1), ("steps", steps, 1), ("warmup", warmup, 0), ("thin", thin, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise RecipeError(where, f"{name} is an integer >= {least}, got {value!r}", do=f"Pass {name}=...")
    if thin > steps:
        raise RecipeError(where, f"thin = {thin} keeps nothing of {steps} steps", do="Choose thin <= steps.")
    if seed is None or isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise RecipeError(where, f"the seed is an integer >= 0, got {seed!r}",
                          do="Give one: noise is a function of it, and the global generator is never used.")


def _kept(recipe, keep):
    names = list(keep) if isinstance(keep, (list, tuple, set)) else [keep] if keep is not None else []
    known = [b.name for b in recipe.entries]
    for name in names:
        if name not in known:
            raise RecipeError(f"{recipe.name}, keep", f"there is no block '{name}'", do=did_you_mean(name, known))
    return list(dict.fromkeys([b.name for b in recipe.targets] + names))


def _check_stability(step, energy, step_size, temperature, parameters):
    """Refuse a step size at which the step is unstable, where U is quadratic and the step affine."""
    recipe = step.recipe
    if not accuracy.is_affine(recipe) or step.frozen or any(torch.is_tensor(v) for v in parameters.values()):
        return
    hessian = sympy.hessian(energy.U, energy.coordinates) if not energy.is_sitewise else sympy.Matrix([energy.curvature])
    if hessian.free_symbols or hessian.atoms(Total):
        return
    chain = accuracy.linear_chain(step, step_size, [[float(e) for e in row] for row in hessian.tolist()],
                                  temperature=temperature, **parameters)
    damped = hessian.is_positive_definite and any(recipe.D)
    if chain.spectral_radius >= (1 - 1e-12 if damped else 1 + 1e-9):
        raise RecipeError(f"{recipe.name}, sample", f"the step is unstable at step_size = {step_size:g}: its spectral "
                          f"radius is {chain.spectral_radius:.4g}", do="Take a smaller step size.")
