"""Running a sampler: many chains, symbolic or torch energies, minibatches, progress, diverging chains."""

import inspect
import itertools
import math
import numbers
import os
import time
import warnings
from collections.abc import Callable, Mapping, Sequence

import sympy
import torch

import integrators
from integrators import linear_law
from integrators.start import per_tensor
from recipe import Energy, Recipe
from recipe.errors import RecipeError, did_you_mean
from recipe.symbols import Total

from ..energies.data import Data
from ..energies.gradients import (
    WORTH_COMPILING,
    check_energy,
    compiled_gradient,
    emitted,
    functional_gradient,
    vectorised,
)
from ..files import storage
from ..results.draws import Draws
from .chains import Chains, Diverged, number_of, target_of
from .phases import Phase, names_of
from .recording import InFolder, InMemory, until_interrupted
from .start import given_state
from .watching import Progress

PROBES = 10_000  # how many values of a schedule are looked at before the first step


def sample(
    recipe: Recipe,
    energy: Energy | Callable | None = None,
    *,
    init=None,
    chains: int = 4,
    steps: int = 1000,
    warmup: int = 0,
    thin: int = 1,
    step_size: float,
    seed: int = 0,
    temperature: float | Callable[[int], float] = 1.0,
    scheme=None,
    pieces=None,
    backend: str = "auto",
    device=None,
    data=None,
    batch_size: int | None = None,
    schedule: Callable[[int], float] | None = None,
    phases: Sequence[Phase] | None = None,
    freeze=(),
    observe: Mapping[str, Callable] | None = None,
    scope: str = "chain",
    keep=None,
    progress: bool = True,
    first_chain: int = 0,
    checkpoint: str | os.PathLike | None = None,
    checkpoint_every: float = 60.0,
    watch: Callable | None = None,
    **parameters,
) -> Draws:
    """Draw from exp(-U/T) with a recipe: `warmup` steps, then `steps` steps of which every `thin`-th is kept.

    `energy`: a symbolic Energy, or a torch function U(theta), or U~(theta, batch) with `data` (an unbiased estimate on
    the sum scale), for one chain; none where H is wholly symbolic. `init`: a point `(*shape)`, a point per chain
    `(chains, *shape)` with at least two axes, a dict by block or by parameter name, or an nn.Module. Auxiliary blocks
    start from their stationary law where H is quadratic in them, else at 0 (1 on a positive domain). `schedule(k)` is
    the step size of step k, counted from the start of the warmup, and `temperature` may be such a function too. `phases`
    stand for warmup and steps where the settings change; `freeze` names blocks and adapted quantities that stay as they
    are. `observe`: the statistics that the recipe asks for, by name, as functions of theta or (theta, batch) of one chain.
    `backend`: "torch"; "cpp", compiled kernels on the CPU; "triton", on a GPU; "auto" compiles where a run is long, and there
    is a compiler, and in runs of 100,000 steps the gradient of a torch energy by torch.compile; their draws agree up to
    rounding. With the scope "tensor" the totals and scalar blocks are per tensor of the target. `keep`: names of other blocks
    and adapted quantities to return beside the target. Minibatches are uniform with replacement and independent per chain.
    The noise of chain i is that of the number `first_chain` + i. `checkpoint`: a folder in which the draws and, every
    `checkpoint_every` seconds, the state are kept: the same call goes on from there, to the same draws bit for bit, and Ctrl-C
    ends a run with the draws so far. `watch`: called with a dict of scalars about once a second.
    A chain that leaves the finite numbers, or the domain of a block, is frozen and flagged in `draws.diverged`. Raises
    RecipeError for wrong input before the first step.

    >>> from samplers import SGLD
    >>> draws = sample(SGLD, lambda theta: (theta**2).sum()/2, init=torch.zeros(3), steps=50, step_size=0.1, progress=False)
    >>> draws["theta"].shape
    torch.Size([4, 50, 3])
    """
    where = f"{recipe.name}, sample" if isinstance(recipe, Recipe) else "sample"
    _check_record(where, checkpoint, checkpoint_every, watch)
    _check_counts(where, chains=chains, steps=steps, warmup=warmup, thin=thin, seed=seed)
    symbolic = isinstance(energy, Energy)
    plan = _plan(phases, warmup, steps, thin, where)
    total = sum(phase.steps for phase in plan)
    freeze = names_of(freeze, f"{where}, freeze")
    still = [(*freeze, *phase.freeze) for phase in plan]
    steps_of = {
        names: integrators.compile(
            recipe,
            scheme,
            pieces=pieces,
            energy=energy if symbolic else None,
            backend=backend,
            scope=scope,
            freeze=names,
        )
        for names in dict.fromkeys(still)
    }
    compiled = [steps_of[names] for names in still]
    step = compiled[0]
    for name in step.parameters:
        if name in inspect.signature(sample).parameters:
            raise RecipeError(where, f"the parameter '{name}' bears the name of an argument of sample", do="Rename it.")
    if schedule is not None and not callable(schedule):
        raise RecipeError(
            where, f"schedule is a function of the step number, got {schedule!r}", do="Pass lambda k: ..."
        )
    for name in parameters:
        if name not in step.parameters:
            raise RecipeError(
                where,
                f"'{name}' is not a parameter",
                do=did_you_mean(name, [*step.parameters, *inspect.signature(sample).parameters]),
            )
    step.check(step_size, temperature=1.0 if callable(temperature) else temperature, **parameters)
    settings = _settings(plan, step_size, schedule, temperature, where)
    probed = []
    for phase, (h_of, T_of) in zip(plan, settings):
        some = range(0, phase.steps, 1 + phase.steps // PROBES)
        sizes, temperatures = (
            _probed(f, some, what, where) for f, what in ((h_of, "step size"), (T_of, "temperature"))
        )
        probed += [*sizes, *temperatures]
        for h, T in itertools.product({min(sizes), max(sizes)}, {min(temperatures), max(temperatures)}):
            step.check(h, temperature=T, **parameters)
            step.check_budget(h, T, **parameters)
    for finding in step.recipe.check().findings:
        if finding.verdict == "failed":
            raise RecipeError(
                where,
                f"the recipe has not the law it claims: {finding.question}? {finding.answer}",
                do="See recipe.check().",
            )
    if (energy is None) != (recipe.potential is None):
        raise RecipeError(
            where,
            "the recipe's U is opaque, but no energy is given"
            if energy is None
            else "the recipe's H is wholly symbolic, it takes no energy",
            do="Pass a recipe.Energy or a torch function of theta." if energy is None else "Drop it.",
        )
    state, layout = given_state(step, energy, init, chains=chains, device=device, parameters=parameters)
    kept_blocks = _kept(recipe, keep)
    target = target_of(recipe, state)
    one = next(iter(target.values())) if isinstance(target, dict) else target
    batches = None if data is None else Data(data, batch_size, like=one)
    if batch_size is not None and data is None:
        raise RecipeError(where, "batch_size without data", do="Pass data=(X, y).")
    if symbolic and bool(energy.data) != (data is not None):
        columns = ", ".join(map(str, energy.data))
        raise RecipeError(
            where,
            f"the energy has the columns {columns}" if columns else "the energy reads no data",
            do=f"Pass data=({columns})." if columns else "Drop data=, or sum over rows with recipe.data_total().",
        )
    gradient = curvature = None
    if symbolic and energy.data:
        batches.columns(energy, one)
        derivatives = {
            name: emitted(s.namespace[name], batches)
            for s in compiled
            for name in ("gradient", "curvature")
            if name in s.namespace
        }
        gradient, curvature = derivatives["gradient"], derivatives.get("curvature")
    elif symbolic:
        _check_stability(step, energy, settings[0][0](0), settings[0][1](0), parameters)
    elif energy is not None:
        one_chain = {k: v[0] for k, v in target.items()} if isinstance(target, dict) else target[0]
        check_energy(energy, one_chain, layout, batches)
        gradient = vectorised(energy, layout, batches)
        if backend != "torch" and total >= WORTH_COMPILING:
            gradient = compiled_gradient(functional_gradient(energy, layout, batches), gradient, where)
        if any(step.program.needs_curvature for step in compiled):
            curvature = vectorised(energy, layout, batches, order=2)
    run = Chains(
        step,
        state,
        layout,
        gradient,
        curvature,
        _observers(compiled, observe, layout, batches, where),
        batches,
        seed,
        first_chain,
        parameters,
    )
    run.check_first_gradient(where)
    run.warn_of_sign(where)
    probe = run.probe() if checkpoint is not None else []
    run.complete_state(energy, settings[0][1](0))
    run.choose_backend(backend, list(steps_of.values()), total)

    number = sum(phase.steps for phase in plan if phase.keep) // thin
    like = {b: run.state[b] for b in kept_blocks}
    if checkpoint is None:
        record = InMemory(like, number)
    else:
        record = InFolder(
            checkpoint,
            like,
            number,
            checkpoint_every,
            _fingerprint(
                step,
                energy,
                data=batches,
                plan=plan,
                frozen=still,
                thin=thin,
                seed=seed,
                start=state,
                keep=kept_blocks,
                first_chain=first_chain,
                backend=run.backend,
                parameters=parameters,
                settings=torch.tensor(probed, dtype=torch.float64),
            ),
            probe,
        )
    started = time.monotonic()

    def result():
        values = {}
        for b, x in record.draws().items():
            values |= layout.by_name(x) if layout.shapes and b == recipe.targets[0].name else {b: x}
        info = dict(
            recipe=recipe.name,
            scheme=str(step.scheme),
            step_size=step_size,
            steps=steps,
            warmup=warmup,
            thin=thin,
            seed=seed,
            temperature=temperature if isinstance(temperature, (int, float)) else repr(temperature),
            batch_size=batch_size,
            seconds=round(time.monotonic() - started, 3),
            parameters={k: float(v) if isinstance(v, (int, float)) else v.tolist() for k, v in parameters.items()},
            diverged=run.diverged,
            backend=run.backend,
        )
        info |= {} if phases is None else dict(phases=list(map(repr, plan)))
        info |= {} if run.moved == total else dict(stopped_after=run.moved)
        varying = schedule is not None or any(phase.step_size is not None for phase in plan)
        return Draws(values, info=info, step_sizes=record.step_sizes if varying else None)

    begins = [0, *itertools.accumulate(phase.steps for phase in plan[:-1])]
    heat = lambda k: next(
        T_of(k - first) for first, (_, T_of) in zip(reversed(begins), reversed(settings)) if k >= first
    )
    first_block = lambda: record.values[kept_blocks[0]][:, : len(record.step_sizes)]
    shown = Progress(total, recipe.name, progress, watch, run, heat, first_block)
    with record, until_interrupted() as interrupted, shown:
        record.resume(run)
        shown.update(run.moved)
        try:
            for moved, sizes, kept in _moves(run, plan, compiled, settings, where, thin=thin, keep=kept_blocks):
                record.take(sizes, kept)
                shown.update(moved)
                if interrupted():
                    warnings.warn(f"{where}: stopped after {run.moved} of {total} steps", RuntimeWarning, stacklevel=2)
                    break
                record.save(run)
        except Diverged as error:
            error.draws = result() if record.step_sizes else None
            raise
        record.save(run, now=True)
        return result()


def _moves(run, plan, compiled, settings, where, *, thin, keep):
    """Move through the phases, from where the chains are: (steps made, step sizes kept, values kept by block) as they come."""
    begun = seen = 0
    for phase, step, (h_of, T_of) in zip(plan, compiled, settings):
        done = min(max(run.moved - begun, 0), phase.steps)
        after = lambda setting, done=done: lambda k: setting(done + k)
        left, run.step = phase.steps - done, step
        every = dict(thin=thin, first=-(seen + done + 1) % thin) if phase.keep else dict(thin=left + 1, first=left)
        for moved, sizes, kept in run.moves(left, after(h_of), after(T_of), where, keep=keep, **every) if left else ():
            run.moved += moved
            yield moved, sizes, kept
        begun += phase.steps
        seen += phase.steps * phase.keep


def _fingerprint(step, energy, *, data, plan, **more) -> dict:
    """What must be the same for a run to go on: plain data, and tensors by their digest; functions are known by their values."""

    def told(x):
        if torch.is_tensor(x):
            return storage.digest(x)
        if isinstance(x, Mapping):
            return {str(k): told(v) for k, v in x.items()}
        if isinstance(x, (list, tuple)):
            return list(map(told, x))
        return x if isinstance(x, (int, float, str, type(None))) else "a function" if callable(x) else str(x)

    return told(
        dict(
            recipe=str(step.recipe),
            scheme=str(step.scheme),
            energy=energy,
            torch=torch.__version__,
            phases=[(phase.steps, phase.keep) for phase in plan],
            data=None if data is None else [*data.tensors],
            batch_size=data and data.batch_size,
            **more,
        )
    )


def _settings(plan, step_size, schedule, temperature, where) -> list[tuple[Callable, Callable]]:
    """Step size and temperature of each phase, as functions of the step number within it."""
    settings, first = [], 0
    for phase in plan:
        own = (
            [(phase.step_size, 0), (schedule, first), (step_size, first)],
            [(phase.temperature, 0), (temperature, first)],
        )
        settings.append(tuple(_function(*next(x for x in given if x[0] is not None)) for given in own))
        first += phase.steps
    return settings


def _function(value, first):
    """A setting as a function of the steps since the start of the phase, where it may count those of the run."""
    return (lambda k: value(first + k)) if callable(value) else lambda k: value


def _probed(setting, steps, what, where):
    """The numbers that a schedule gives, checked."""
    return [number_of(setting, k, what, where) for k in steps]


def _plan(phases, warmup, steps, thin, where) -> list[Phase]:
    """The phases of a run: those given, or the warmup and the steps."""
    if phases is None:
        return [Phase(warmup, keep=False), Phase(steps)] if warmup else [Phase(steps)]
    if warmup or steps != 1000:
        raise RecipeError(where, "phases stand for warmup and steps", do="Give one or the other.")
    if not isinstance(phases, (list, tuple)) or not phases or not all(isinstance(phase, Phase) for phase in phases):
        raise RecipeError(
            where, f"phases are a list of Phase, got {phases!r}", do="Write [Phase(steps=..., ...), ...]."
        )
    if sum(phase.steps for phase in phases if phase.keep) < thin:
        raise RecipeError(where, f"thin = {thin} keeps nothing of the phases", do="Choose a smaller thin.")
    return list(phases)


def _observers(steps, observe, layout, data, where):
    """The observations of all chains at once, by name."""
    if observe is not None and not isinstance(observe, Mapping):
        raise RecipeError(
            f"{where}, observe", f"it is a dict of functions by name, got {observe!r}", do='Write {"name": f}.'
        )
    step, asked = steps[0], {name: None for step in steps for name in step.observations}
    for name in asked:
        if not callable((observe or {}).get(name)):
            raise RecipeError(
                where,
                f"the recipe asks for the observation '{name}'",
                do=f"Pass observe={{{name!r}: a function of theta{', batch' * (data is not None)}}}.",
            )
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
                raise RecipeError(
                    f"{where}, observe[{observed.name!r}]",
                    told,
                    do=f"It is a function of theta{', batch' * (data is not None)} of one chain, to a tensor.",
                ) from error
            wanted = theta.shape if observed.is_vector else theta.shape[:1]
            if not torch.is_tensor(value) or value.shape != wanted:
                got = (
                    f"has the shape {tuple(value.shape[1:])}"
                    if torch.is_tensor(value)
                    else f"is a {type(value).__name__}"
                )
                raise RecipeError(
                    where,
                    f"the observation '{observed.name}' {got} for one chain, not a tensor of shape {tuple(wanted[1:])}",
                    do="Sum over the batch, not over the chains.",
                )
            if not value.isfinite().all():
                raise RecipeError(
                    where, f"the observation '{observed.name}' is not finite", do="Look at what it divides by."
                )
            return value if observed.is_vector or step.program.scope == "chain" else per_tensor(value, layout.sizes)

        return of_all_chains

    return {s.name: checked(s) for s in step.recipe.observations if s.name in asked}


def _check_counts(where, *, chains, steps, warmup, thin, seed):
    for name, value, least in (("chains", chains, 1), ("steps", steps, 1), ("warmup", warmup, 0), ("thin", thin, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise RecipeError(where, f"{name} is an integer >= {least}, got {value!r}", do=f"Pass {name}=...")
    if thin > steps:
        raise RecipeError(where, f"thin = {thin} keeps nothing of {steps} steps", do="Choose thin <= steps.")
    if seed is None or isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise RecipeError(
            where,
            f"the seed is an integer >= 0, got {seed!r}",
            do="Give one: noise is a function of it, and the global generator is never used.",
        )


def _check_record(where, checkpoint, every, watch):
    if checkpoint is not None and (not isinstance(checkpoint, (str, os.PathLike)) or not str(checkpoint)):
        raise RecipeError(where, f"checkpoint is the name of a folder, got {checkpoint!r}", do='Pass checkpoint="run".')
    if not isinstance(every, numbers.Real) or isinstance(every, bool) or not 0 <= every < math.inf:
        raise RecipeError(where, f"checkpoint_every is a number of seconds, got {every!r}", do="Pass a number >= 0.")
    if watch is not None and not callable(watch):
        raise RecipeError(
            where, f"watch is a function of a dict of scalars, got {watch!r}", do="Pass watch=print, say."
        )


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
    if not linear_law.is_affine(recipe) or step.frozen or any(torch.is_tensor(v) for v in parameters.values()):
        return
    hessian = (
        sympy.hessian(energy.U, energy.coordinates) if not energy.is_sitewise else sympy.Matrix([energy.curvature])
    )
    if hessian.free_symbols or hessian.atoms(Total):
        return
    chain = linear_law.linear_chain(
        step, step_size, [[float(e) for e in row] for row in hessian.tolist()], temperature=temperature, **parameters
    )
    damped = hessian.is_positive_definite and any(recipe.D)
    if chain.spectral_radius >= (1 - 1e-12 if damped else 1 + 1e-9):
        raise RecipeError(
            f"{recipe.name}, sample",
            f"the step is unstable at step_size = {step_size:g}: its spectral radius is {chain.spectral_radius:.4g}",
            do="Take a smaller step size.",
        )
