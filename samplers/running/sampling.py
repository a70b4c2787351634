"""`sample`: from a recipe and an energy to draws."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import integrators
from integrators import operator_checks
from integrators.adapting import adapting
from integrators.forms import parameters_like
from integrators.step import Step
from integrators.streams import RUN
from recipe import Energy, Recipe
from recipe.arguments import check_known, check_names, integer
from recipe.errors import RecipeError

from ..results.bar import check_progress
from ..results.draws import Draws
from ..stock import recipe_of
from ..target.coordinates import Coordinates
from ..target.datasets import read
from ..target.layout import Layout, position_of
from ..target.target import check_energy_is_asked_for, data_of, energy_of, target_of
from .adaptation import Adaptation, place, restart
from .chains import Chains
from .choice import choose, with_compiled_gradient
from .drive import Kernel, Stop
from .energy_checks import check_at_start, flag_risen
from .fingerprint import fingerprint
from .gauges import Gauges
from .inputs import Inputs
from .law import check_law, check_reach, check_stability
from .parallel_tempering import Ladder, Swaps, ladder_of, side_by_side
from .phases import STEPS, Phase, phases_of
from .plan import Plan, Value, plan_of, step_of
from .points import start_of
from .probe import Probe
from .recording import Folder, InFolder, InMemory, folder_of
from .repeated import PairedRun
from .run import Run
from .start import given_state, whole_state
from .weighing import check_weights, read_by_weights

SEED = "Give one: noise is a function of it, and the global generator is never used."


@dataclass(frozen=True)
class Metropolis:
    """Steps that are accepted or rejected by their work, for `sample(metropolis=...)`; see `integrators.metropolised`.

    The draws are exact at any step size; `draws.info["acceptance"]` is the share of its steps that each chain accepted
    in the last phase. `repeat`: the words of h each that are one proposal; None for 1, or for what `tune` chooses.
    Words of one h may take a direction back to its start with every proposal: `schedules.Jittered` varies h.
    `minibatches`: whether proposals are by gradients of minibatches of `batch_size` rows, accepted by U of all data,
    once a proposal: a kick by any force has a reverse, the kick on the same batch. Source: Zhang, Cooper and De Sa
    (2020), "AMAGOLD: amortized Metropolis adjustment for efficient stochastic gradient MCMC".

    >>> Metropolis(repeat=8)
    Metropolis(repeat=8, minibatches=False)
    """

    repeat: int | None = None
    minibatches: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.minibatches, bool):
            what = f"minibatches is True or False, got {self.minibatches!r}"
            raise RecipeError("Metropolis", what, do="Pass minibatches=True.")
        if self.repeat is not None:
            object.__setattr__(self, "repeat", integer("Metropolis", "repeat", self.repeat, least=1))


def sample(
    recipe: Recipe | str,
    energy: Energy | Callable[..., Any] | Mapping[str, Callable[..., Any]] | None = None,
    *,
    init: Any = None,
    chains: int | range = 4,
    steps: int = STEPS,
    warmup: int = 0,
    thin: int = 1,
    step_size: Value | Literal["auto"],
    seed: int = 0,
    temperature: Value | Sequence[float] | Ladder = 1.0,
    data: Any = None,
    batch_size: int | None = None,
    metropolis: bool | Metropolis | None = None,
    keep: Any = None,
    progress: bool | Callable[..., Any] = True,
    checkpoint: str | os.PathLike[str] | Folder | None = None,
    # other arguments
    gradient: Callable[..., Any] | None = None,
    observe: Mapping[str, Callable[..., Any]] | None = None,
    coordinates: Coordinates | None = None,
    phases: Sequence[Phase] | None = None,
    scheme: Any = None,
    scope: str = "chain",
    backend: str = "auto",
    **parameters: Any,
) -> Draws:
    """Draw from exp(-U/T) with a recipe: `warmup` steps, then `steps` steps of which every `thin`-th is kept.

    `recipe.check()` runs at the parameters and temperatures of the run; `draws.info["law"]` is the claim. A chain whose
    state is not finite, or outside the domain of a block, stays at its last state and is flagged in `draws.diverged`.
    Noise is a pure function of the seed, the step, the chain and the site. Raises RecipeError for wrong input, and for
    a refuted claim, before the first step.

    * `recipe`: a Recipe, or the name of a stock one.
    * `energy`: U of one chain: an Energy, a torch function of theta, or with `data` of (theta, batch), on the sum
      scale; a `samplers.model`; a dict by name for several potentials; None where H is wholly symbolic.
    * `init`: a point `(*shape)`, or one per chain, `(chains, *shape)`; a dict by block or by parameter name, an
      nn.Module, a torch Distribution, a list with one of these for each chain; or a `Start`, with settings of its own.
    * `chains`: their number, or the range of their numbers, on which their noise depends.
    * `step_size`: h, the time of one word of the scheme; a function of the step number, counted from the start of the
      warmup; or "auto": `samplers.tune` chooses it with the parameters and the start, see `draws.info["tuned"]`.
    * `seed`: an integer in [0, 2^64); runs of one seed and number of chains have the same noise, to be repeatable.
    * `temperature`: T, or a function of the step number; or rising numbers, or a `Ladder`, for chains side by side that
      exchange their states, of which the draws are those of the first.
    * `data`: a tensor, or a tuple of tensors, of one row per datum; torch's Dataset or DataLoader, read once.
    * `batch_size`: rows of a minibatch, drawn with replacement for each chain; None for all data.
    * `metropolis`: whether steps are accepted or rejected by their work, or a `Metropolis`; None for the recipe's own.
    * `keep`: names of other blocks and adapted quantities to return beside the target, and what weights read.
    * `progress`: whether to show a bar; or a function, called with a dict of scalars about once a second.
    * `checkpoint`: a folder, or a `samplers.checkpoints.Folder`, from which the same call continues bit for bit.
    * `parameters`: of the recipe, by name: numbers, tensors of one value per site, operators.

    Other arguments.

    * `gradient`: the gradient of U, or the pair (U, gradient), by a function of numpy arrays, as `energy` then is too.
    * `observe`: the recipe's statistics by name, functions of theta, or of (theta, batch), of one chain.
    * `coordinates`: a map theta = f(z) of `samplers.coordinates`: the recipe moves z; `init` and draws are of theta.
    * `phases`: a list of `Phase`, in place of warmup and steps, where settings change or blocks are frozen.
    * `scheme`: the splitting word, as in `integrators.compile`.
    * `scope`: "chain", or "tensor", where totals and scalar blocks are per tensor of the target.
    * `backend`: "torch"; "cpp" or "triton", compiled kernels; "auto" chooses, see `draws.info["backend_reason"]`.

    >>> import torch
    >>> from samplers import SGLD
    >>> bowl = lambda theta: (theta**2).sum()/2
    >>> draws = sample(SGLD, bowl, init=torch.zeros(3), steps=50, step_size=0.1, progress=False)
    >>> draws["theta"].shape
    torch.Size([4, 50, 3])
    """
    # Longer than 60 lines: arguments and their meaning; the body is a run from start to end.
    recipe = recipe_of(recipe, "sample")
    where = f"{recipe.name}, sample"
    number, first_chain = _chains(chains, where)
    steps, warmup, thin = _counts(where, steps=steps, warmup=warmup, thin=thin)
    seed = integer(where, "the seed", seed, least=0, most=2**64 - 1, do=SEED)
    folder = folder_of(checkpoint)
    check_progress(progress, where)
    ladder = ladder_of(temperature)
    first: Any = temperature if ladder is None else ladder.temperatures[0]
    data, batch_size = read(data, batch_size)
    of_theta, energy, coordinates = energy_of(recipe, energy, gradient, coordinates, scope, data is not None, where)
    proposal = proposal_of(recipe, metropolis, where)
    like_this = _compiled(energy, proposal, scheme, scope, backend, where)
    phases_of_run = phases_of(phases, warmup=warmup, steps=steps, thin=thin, where=where)
    plan = plan_of(phases_of_run, partial(like_this, recipe), thin, where, step_size=step_size, temperature=first)
    parameters = operator_checks.read(plan.step.declared, parameters)
    restart(plan, parameters, where, side_by_side=ladder is not None)
    _check_plan(plan, step_size, first, parameters, where)
    check_energy_is_asked_for(recipe, energy, where)
    plans = [plan] if ladder is None else ladder.plans(plan, batch_size, first_chain + number, where)
    check_weights(recipe, plan, ladder is not None, where)

    start, layout = given_state(
        plan.step,
        energy,
        start_of(init),
        chains=number,
        parameters=parameters,
        coordinates=coordinates,
        seed=seed,
        first_chain=first_chain,
    )
    sites = start[recipe.targets[0].name][0].numel()
    law, *_ = [check_law(p, of_theta if recipe.maps else energy, parameters, sites, where) for p in plans]
    check_stability(plan, energy, parameters, where)
    operator_checks.check_fields(recipe, parameters, start)
    kept = _kept(plan.step.recipe, keep)
    target = target_of(
        energy,
        plan.steps,
        position_of(recipe, start),
        _of_temperature(layout, plans, where),
        data_of(energy, data, batch_size, position_of(recipe, start), where),
        observe,
        where=where,
        accepts_by_all=proposal is not None and proposal.minibatches,
    )
    law = check_reach(plan, law, target, parameters, start, where)
    place(parameters, start[recipe.targets[0].name], where)
    like = next(iter(start.values()))
    inputs = Inputs(target, seed, first_chain, parameters_like(recipe, parameters, like))
    rounding = check_at_start(plan.step, inputs, start, plan.temperature(0), where, compares=ladder is not None)

    gauges = Gauges(plan, like, inputs.constants)
    blocks = list(dict.fromkeys([*kept, *gauges.blocks]))
    kernel: Kernel
    stops: list[Stop] = []
    if ladder is None:
        all_chains = Chains(recipe, whole_state(plan.step, start, inputs, plan.temperature(0)), where)
        kernel, reason, inputs = choose(plan, all_chains.state, inputs, blocks, backend, where)
    else:
        inputs = with_compiled_gradient(plan, inputs, backend, where)
        all_chains, kernel, reason = side_by_side(ladder, plans, start, inputs, blocks, backend, where)
        stops = [Swaps(ladder, inputs)]
    all_chains.adapting = adapting(inputs.parameters)
    if all_chains.adapting:
        kernel = Adaptation(kernel, plan, inputs, blocks, where)
    kept_blocks = {name: all_chains.state[name] for name in kept}
    if folder is None:
        record = InMemory(kept_blocks, plan.draws, gauges)
    else:
        settings, probe = fingerprint(plan, inputs, start, kept, kernel.backend, ladder), Probe(recipe, inputs, start)
        record = InFolder(folder, kept_blocks, plan.draws, gauges, settings=settings, probe=probe)
    metadata = {"step_size": step_size, "temperature": first, "phases": phases, "law": law, "backend_reason": reason}
    metadata |= {"rounding": rounding, "centred": getattr(of_theta, "centred", {})}
    with_work = _compiled(energy, Metropolis(), scheme, scope, backend, where) if scope == "chain" else None
    rerun = partial(
        PairedRun,
        plan,
        recipe=recipe,
        compiled=like_this,
        stepped=None if with_work is None else partial(with_work, recipe),
        backend=backend,
        where=where,
        shown=progress is True,
    )
    draws = Run(plan, inputs, all_chains, kernel, stops, record, metadata, rerun).go(progress)
    flag_risen(draws, recipe, inputs, start, all_chains, record, plan)
    return draws


def _chains(chains: int | range, where: str) -> tuple[int, int]:
    if not isinstance(chains, range):
        return _counts(where, chains=chains)[0], 0
    if not len(chains) or chains.step != 1 or chains.start < 0:
        raise RecipeError(where, f"the numbers of the chains are {chains!r}", do="Pass range(4, 8), say.")
    return len(chains), chains.start


def _counts(where: str, **counts: Any) -> list[int]:
    return [
        integer(where, name, integer(where, name, value, least=int(name != "warmup")), most=RUN.stop)
        for name, value in counts.items()
    ]


def proposal_of(recipe: Recipe, metropolis: Any, where: str) -> Metropolis | None:
    """How steps are accepted or rejected, by the recipe's default where `metropolis` is None; None for plain steps."""
    if isinstance(metropolis, Metropolis):
        return metropolis
    if metropolis is None:
        metropolis = recipe.metropolis
    if not isinstance(metropolis, bool):
        what = f"metropolis is True or False, or Metropolis(repeat=...), got {metropolis!r}"
        raise RecipeError(where, what, do="Pass metropolis=True.")
    return Metropolis() if metropolis else None


def _compiled(
    energy: Any, proposal: Metropolis | None, scheme: Any, scope: str, backend: str, where: str
) -> Callable[..., Step]:
    """The function that compiles the step of a recipe with the choices of the run."""
    symbolic = energy if isinstance(energy, Energy) else None
    choices = partial(step_of, scheme=scheme, energy=symbolic, backend=backend)
    if proposal is None:
        return partial(choices, integrators.compile, scope=scope)
    if scope != "chain":
        what = f"a chain is accepted as a whole, not per {scope}"
        raise RecipeError(where, what, do="Leave scope out, or pass metropolis=False.")
    return partial(choices, integrators.metropolised, repeat=proposal.repeat or 1)


def _check_plan(plan: Plan, step_size: Any, temperature: Any, parameters: Mapping, where: str) -> None:
    """Refuse parameters that the recipe does not have, and settings that the step refuses."""
    if step_size == "auto":
        raise RecipeError(where, "the step size is a number here", do="Call samplers.sample, or samplers.tune.")
    step = plan.step
    for stage in plan.stages:
        check_names(f"{where}, phase", stage.parameters, stage.step.parameters)
        in_H = sorted({s.name for s in step.declared.H.free_symbols} & {*stage.parameters})
        if stage.phase.keep and in_H:
            what = f"H reads {in_H[0]}, and the law would be another one while draws are kept"
            raise RecipeError(f"{where}, phase", what, do="Give the phase keep=False, or the value to the run.")
    check_names(where, parameters, step.parameters, inspect.signature(sample).parameters, " of sample")
    integer(where, "the number of steps", plan.length, most=RUN.stop)
    h = plan.stages[0].step_size(0) if callable(step_size) else step_size
    step.check(h, temperature=1.0 if callable(temperature) else temperature, **parameters)
    plan.check(parameters)


def _of_temperature(layout: Layout, plans: Sequence[Plan], where: str) -> Layout:
    """The layout with the temperature of the run, the factor of the volume; refused for several temperatures."""
    if layout.coordinates is None or not layout.coordinates.adds_volume:
        return layout
    temperatures = {T for plan in plans for stage in plan.stages for T in stage.temperatures()}
    if len(temperatures) > 1:
        what = "the coordinates are not linear, their volume counts by the temperature, and that changes"
        raise RecipeError(where, what, do="Sample at one temperature.")
    return replace(layout, temperature=temperatures.pop())


def _kept(recipe: Recipe, keep: Any) -> list[str]:
    """The names of the kept blocks: the targets, then those of `keep`."""
    entries = keep if isinstance(keep, (list, tuple, set)) else (keep,)
    names = [] if keep is None else list(entries)
    check_known(f"{recipe.name}, keep", "there is no block '{}'", names, [b.name for b in recipe.entries])
    return list(dict.fromkeys([*(b.name for b in recipe.targets), *names, *read_by_weights(recipe)]))
