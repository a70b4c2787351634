"""`sample`: from a recipe and an energy to draws."""

import inspect
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch

import integrators
from integrators import operator_checks
from integrators.adapting import adapting
from integrators.forms import parameters_like
from integrators.requirements import check_one_potential
from integrators.streams import RUN
from recipe import Energy, Recipe
from recipe.arguments import integer, number
from recipe.errors import RecipeError, did_you_mean

from ..results.draws import Draws
from ..stock import named
from ..target.coordinates import moved_by, of_z
from ..target.foreign import with_gradient
from ..target.layout import Layout, position_of
from ..target.reading import read
from ..target.several import of_potentials
from ..target.target import check_energy_is_asked_for, data_of, target_of, tried_at
from .adapting import Adaptation, place, restart
from .chains import Chains
from .choice import STEPS_OF_GRAPHS, choose, steps_worth_a_graph
from .divergence import Remaking
from .drive import Kernel, Stop
from .exchange import Swaps, check_exchange, ladder_of, side_by_side
from .fingerprint import fingerprint
from .gauges import Gauges
from .heights import Heights, are_worth_a_look
from .inputs import Inputs
from .law import check_law
from .phases import Phase, names_of, phases_of
from .plan import Plan, Settings, Value, plan_of, step_of
from .probe import Probe
from .recording import InFolder, InMemory
from .run import Run
from .stability import check_stability
from .start import given_state, whole_state
from .trial import Trial

SEED = "Give one: noise is a function of it, and the global generator is never used."


def sample(
    recipe: Recipe | str,
    energy: Energy | Callable | None = None,
    *,
    # target
    gradient: Callable | None = None,
    data: Any = None,
    batch_size: int | None = None,
    observe: Mapping[str, Callable] | None = None,
    # start
    init: Any = None,
    per_chain: bool | None = None,
    spread: float = 0.0,
    chains: int = 4,
    device: torch.device | str | None = None,
    # length
    steps: int = 1000,
    warmup: int = 0,
    thin: int = 1,
    step_size: float | Literal["auto"],
    schedule: Callable[[int], float] | None = None,
    phases: Sequence[Phase] | None = None,
    freeze: Any = (),
    # noise
    seed: int = 0,
    first_chain: int = 0,
    temperature: Value = 1.0,
    temperatures: Sequence[float] | None = None,
    swap_every: int | None = None,
    # execution
    scheme: Any = None,
    pieces: Mapping | None = None,
    metropolis: bool | None = None,
    repeat: int = 1,
    scope: str = "chain",
    coordinates: Any = None,
    backend: str = "auto",
    # records
    keep: Any = None,
    progress: bool = True,
    watch: Callable | None = None,
    checkpoint: str | os.PathLike | None = None,
    checkpoint_every: float = 60.0,
    **parameters: Any,
) -> Draws:
    """Draw from exp(-U/T) with a recipe: `warmup` steps, then `steps` steps of which every `thin`-th is kept.

    `recipe.check()` runs at the parameters, temperatures and frozen blocks of the run, with the energy where the
    energy is symbolic; `draws.info["law"]` is the claim. A chain whose state is not finite, or outside the domain of a
    block, stays at its last state and is flagged in `draws.diverged`. Raises RecipeError for wrong input, and for a
    refuted claim, before the first step.

    Target. `recipe`, or the name of a stock one; its `parameters` by name are numbers, or tensors of one value per
    site; operators are matrices, or adapt in the warmup as the operators of `integrators.adapting`. `energy` of one
    chain: a symbolic Energy, a torch function U(theta), or with `data` U~(theta, batch), an unbiased estimate on the
    sum scale, or a `samplers.model`, with its own start and coordinates; None where H is wholly symbolic, a dict by
    name for several potentials. `gradient(theta)`, or `gradient(theta, batch)`: the caller's own derivative of the
    energy; both are functions of numpy arrays then, of one chain or of all, found out by a trial call. `gradient`
    returns the gradient, or the pair (value, gradient), and `energy` may be left out; a gradient is compared with U
    where U is known. `data`: a tensor, or a tuple of tensors, of one row per datum, or torch's Dataset or DataLoader,
    read into memory once, a loader with its batch size but not its order; a batch has `batch_size` rows, uniform with
    replacement and independent per chain, or all rows. `observe`: the statistics of the recipe, by name, as functions
    of theta or (theta, batch) of one chain.

    Start. `init`: a point `(*shape)`, a point per chain `(chains, *shape)` with at least two axes, a dict by block or
    by parameter name, an nn.Module, or a list of these, one for each chain. `per_chain`: whether its tensors have an
    axis of chains, as those of torch.func.stack_module_state; required where parameters all have `chains` rows. A torch
    Distribution, such as the prior, stands for one draw per chain. `spread`: the standard deviation of normal noise
    added to each site of the target, independent for each chain. Auxiliary blocks start from their stationary law where
    H is quadratic in them, else at 0 (1 on a positive domain). `device`: the device of the chains; that of `init` if
    left out. Draws are in the host's memory.

    Length. `step_size`: h, the time of one word of the scheme, or "auto": `samplers.tune` then chooses the step size,
    parameters that are not given, `repeat` and the start, and looks for the mode from `init`; `draws.info["tuned"]` has
    the reasons. `schedule(k)` replaces the step size at step k, counted from the start of the warmup. `phases` replace
    warmup and steps where the settings change. `freeze` names blocks and adapted quantities that do not move.

    Noise. Noise is a pure function of the seed, the step, the chain and the site; chain i has the number
    `first_chain` + i. `temperature`: T, a number or a function of the step number. `temperatures`: rising numbers, each
    with `chains` chains; every `swap_every` steps, 10 if left out, neighbours attempt to exchange their states, and the
    law of each is invariant. The draws are of the first temperature; `draws.info["swaps"]` has the rate of success of
    each pair of neighbours.

    Execution. `scheme` and `pieces` are those of `integrators.compile`. With `metropolis` every step is accepted or
    rejected by its work, and the draws are exact at any step size: see `integrators.metropolised`; the default is True
    for MALA, HMC and GHMC. Then `repeat` words of h each are one step, and `draws.info["acceptance"]` is the share of
    its steps that each chain accepted in the last phase. With the scope "tensor" totals and scalar blocks are per
    tensor of the target. `coordinates`: a map theta = f(z) of `samplers.coordinates`: the recipe moves z, at the energy
    U(f(z)) - T log|det df/dz|; parameters and auxiliary blocks are of z; `init`, draws and observations are of theta.
    `backend`: "torch"; "cpp", compiled kernels on the CPU; "triton", on a GPU; "auto" compiles long runs where there is
    a compiler or Triton, and from 300,000 steps on uses torch.compile for a torch energy's gradient, or for eight small
    steps at once; the draws of backends agree up to rounding.

    Records. `keep`: names of other blocks and adapted quantities to return beside the target. `progress` shows a bar;
    `watch` is called with a dict of scalars about once a second. `checkpoint`: a folder for the draws and, every
    `checkpoint_every` seconds, the state: the same call continues from the folder, to the same draws bit for bit, and
    Ctrl-C ends a run with the draws so far. Calls with other settings or another energy are refused: torch functions
    are compared at the start and at the saved states, at the cost of five gradients a checkpoint.

    >>> from samplers import SGLD
    >>> bowl = lambda theta: (theta**2).sum()/2
    >>> draws = sample(SGLD, bowl, init=torch.zeros(3), steps=50, step_size=0.1, progress=False)
    >>> draws["theta"].shape
    torch.Size([4, 50, 3])
    """
    # Longer than 60 lines: arguments and their meaning; the body is a run from start to end.
    recipe = named(recipe, "sample")
    where = f"{recipe.name}, sample" if isinstance(recipe, Recipe) else "sample"
    chains, steps, warmup, thin = _counts(where, chains=chains, steps=steps, warmup=warmup, thin=thin)
    seed = integer(where, "the seed", seed, least=0, most=2**64 - 1, do=SEED)
    first_chain = integer(where, "first_chain", first_chain, least=0)
    _check_records(where, checkpoint, checkpoint_every, watch)
    data, batch_size = read(data, batch_size)
    energy = of_potentials(recipe, with_gradient(energy, gradient, where), where, has_data=data is not None)
    ladder = ladder_of(temperatures, swap_every, where)
    first = temperature if ladder is None else ladder.temperatures[0]
    settings = Settings(_number(step_size, where), schedule, first, names_of(freeze, f"{where}, freeze"), where)
    of_theta = energy
    coordinates, energy = moved_by(coordinates, recipe, energy, scope, f"{where}, coordinates")
    symbolic = energy if isinstance(energy, Energy) else None
    metropolis = is_accepted(recipe, metropolis, where)
    repeat = _proposal(where, metropolis, repeat, scope)
    choices = dict(scheme=scheme, pieces=pieces, energy=symbolic, backend=backend)
    like_this = partial(
        step_of,
        integrators.metropolised if metropolis else integrators.compile,
        **choices,
        **({"repeat": repeat} if metropolis else {"scope": scope}),
    )
    compiled = partial(like_this, recipe)
    plan = plan_of(phases_of(phases, warmup=warmup, steps=steps, thin=thin, where=where), settings, compiled, thin)
    parameters = operator_checks.read(plan.step.declared, parameters)
    restart(plan, parameters, where, side_by_side=ladder is not None)
    _check_plan(plan, settings, parameters)
    check_energy_is_asked_for(recipe, energy, where)
    if ladder is not None:
        check_one_potential(recipe, f"{where}, temperatures")
        check_exchange(ladder, plan, temperature, batch_size, first_chain + chains, where)
    of_law = of_theta if recipe.maps else energy  # a mapped recipe has the map in H
    law, *_ = [check_law(p, of_law, parameters, where) for p in ([plan] if ladder is None else ladder.plans(plan))]
    check_stability(plan, energy, parameters, where)

    start, layout = given_state(
        plan.step,
        energy,
        of_z(recipe, init),
        chains=chains,
        device=device,
        parameters=parameters,
        coordinates=coordinates,
        per_chain=per_chain,
        spread=spread,
        seed=seed,
        first_chain=first_chain,
    )
    operator_checks.check_fields(recipe, parameters, start)
    layout = _of_temperature(layout, plan, ladder, where)
    kept = _kept(plan.step.recipe, keep)
    position = position_of(recipe, start)
    rows = data_of(energy, data, batch_size, position, where)
    energy = tried_at(energy, position, layout, rows)
    place(parameters, start[recipe.targets[0].name], where)
    like = next(iter(start.values()))
    fast = backend != "torch" and plan.length >= steps_worth_a_graph(like.device)
    sampled_by = partial(target_of, energy, position=position, layout=layout, data=rows, observe=observe, where=where)
    target = sampled_by(steps=plan.steps, compiled=fast)
    inputs = Inputs(target, seed, first_chain, parameters_like(recipe, parameters, like))
    Trial(plan.step, inputs, start, where, plan.temperature(0)).check()

    gauges = Gauges(plan, like, inputs.constants)
    looked_at = list(dict.fromkeys([*kept, *gauges.blocks]))
    kernel: Kernel
    stops: list[Stop] = []
    if ladder is None:
        moved = Chains(recipe, whole_state(plan.step, start, energy, inputs, plan.temperature(0)), where)
        kernel, reason, inputs = choose(plan, moved.state, inputs, looked_at, backend, where)
    else:
        inputs = inputs.compiled(where) if plan.length >= STEPS_OF_GRAPHS else inputs
        moved, kernel, reason = side_by_side(ladder, plan, start, energy, inputs, looked_at, backend, where)
        stops = [Swaps(ladder, inputs)]
    moved.adapting = adapting(inputs.parameters)
    if moved.adapting:
        kernel = Adaptation(kernel, plan, inputs, looked_at, where)
    kept_blocks = {name: moved.state[name] for name in kept}
    if checkpoint is None:
        record = InMemory(kept_blocks, plan.draws, gauges)
    else:
        same = fingerprint(plan, inputs, energy, start, kept, kernel.backend, ladder)
        probe = Probe(recipe, inputs, start)
        every = checkpoint_every
        record = InFolder(checkpoint, kept_blocks, plan.draws, gauges, every=every, settings=same, probe=probe)
    asked = {"step_size": step_size, "temperature": first, "phases": phases, "law": law, "backend_reason": reason}
    with_work = partial(step_of, integrators.metropolised, recipe, **choices) if scope == "chain" else None
    remaking = Remaking(with_work, sampled_by, backend, f"there is no work of one {scope}")
    run = Run(plan, inputs, moved, kernel, stops, record, asked, like_this, remaking)
    draws = run.go(progress=progress, watch=watch)
    if energy is None or not are_worth_a_look(plan, moved, start, symbolic is not None):
        return draws
    return Heights(recipe, inputs, start, where).flag(draws, moved, record, plan)


def _number(step_size: Any, where: str) -> Any:
    """The step size; "auto" is refused."""
    if step_size == "auto":
        raise RecipeError(where, "the step size is a number here", do="Call samplers.sample, or samplers.tune.")
    return step_size


def _counts(where: str, **counts: Any) -> list[int]:
    """The numbers of chains and steps, as ints."""
    values = [integer(where, name, value, least=int(name != "warmup")) for name, value in counts.items()]
    for name, value in zip(counts, values, strict=True):
        integer(where, name, value, most=RUN.stop)
    return values


def _check_records(where: str, checkpoint: Any, every: Any, watch: Any) -> None:
    if checkpoint is not None and (not isinstance(checkpoint, (str, os.PathLike)) or not str(checkpoint)):
        raise RecipeError(where, f"checkpoint is the name of a folder, got {checkpoint!r}", do='Pass checkpoint="run".')
    number(
        where,
        "checkpoint_every",
        every,
        least=0,
        kinds=numbers.Real,
        what=f"checkpoint_every is a number of seconds, got {every!r}",
        do="Pass a number >= 0.",
    )
    if watch is not None and not callable(watch):
        raise RecipeError(
            where, f"watch is a function of a dict of scalars, got {watch!r}", do="Pass watch=print, say."
        )


def is_accepted(recipe: Recipe, metropolis: Any, where: str) -> bool:
    """Whether steps are accepted or rejected: the recipe's default where `metropolis` is None."""
    if metropolis is None:
        return getattr(recipe, "metropolis", False)  # other types than Recipe are refused later
    if not isinstance(metropolis, bool):
        raise RecipeError(where, f"metropolis is True or False, got {metropolis!r}", do="Pass metropolis=True.")
    return metropolis


def _proposal(where: str, metropolis: bool, repeat: Any, scope: str) -> int:
    """The number of words in a proposal; more than 1 is refused without metropolis."""
    repeat = integer(where, "repeat", repeat, least=1)
    if repeat > 1 and not metropolis:
        what = f"repeat = {repeat} words are one proposal, and nothing is proposed"
        raise RecipeError(where, what, do="Pass metropolis=True, or more steps.")
    if metropolis and scope != "chain":
        raise RecipeError(
            where, f"a chain is accepted as a whole, not per {scope}", do="Leave scope out, or pass metropolis=False."
        )
    return repeat


def _check_plan(plan: Plan, settings: Settings, parameters: Mapping) -> None:
    """Refuse parameters that the recipe does not have, and settings that the step refuses."""
    step = plan.step
    where = settings.where
    arguments = inspect.signature(sample).parameters
    for name in step.parameters:
        if name in arguments:
            raise RecipeError(where, f"the parameter '{name}' bears the name of an argument of sample", do="Rename it.")
    for name in parameters:
        if name not in step.parameters:
            raise RecipeError(
                where, f"'{name}' is not a parameter", do=did_you_mean(name, [*step.parameters, *arguments])
            )
    integer(where, "the number of steps", plan.length, most=RUN.stop)
    temperature = 1.0 if callable(settings.temperature) else settings.temperature
    step.check(settings.step_size, temperature=temperature, **parameters)
    plan.check(parameters)


def _of_temperature(layout: Layout, plan: Plan, ladder: Any, where: str) -> Layout:
    """The layout with the temperature of the run, the factor of the volume; refused for several temperatures."""
    if layout.coordinates is None or not layout.coordinates.adds_volume:
        return layout
    temperatures = {T for stage in plan.stages for T in stage.temperatures()}
    if len(temperatures) > 1 or ladder is not None:
        what = "the coordinates are not linear, their volume counts by the temperature, and that changes"
        raise RecipeError(where, what, do="Sample at one temperature.")
    return replace(layout, temperature=temperatures.pop())


def _kept(recipe: Recipe, keep: Any) -> list[str]:
    """The names of the kept blocks: the targets, then those of `keep`."""
    several = keep if isinstance(keep, (list, tuple, set)) else (keep,)
    names = [] if keep is None else list(several)
    known = [b.name for b in recipe.entries]
    for name in names:
        if name not in known:
            raise RecipeError(f"{recipe.name}, keep", f"there is no block '{name}'", do=did_you_mean(name, known))
    return list(dict.fromkeys([b.name for b in recipe.targets] + names))
