"""`tune`: from a recipe and an energy to the settings of a run."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

import integrators
from integrators.requirements import check_one_vector
from recipe import Energy, Recipe
from recipe.arguments import integer, number
from recipe.errors import RecipeError
from recipe.results import aligned, html_table

from ..running.points import Start, start_of
from ..running.sampling import Metropolis, proposal_of
from ..running.start import given_state
from ..stock import named
from ..target.foreign import check_value
from ..target.model import Model
from ..target.target import check_energy_is_asked_for, data_of, energy_of
from ..target.traced import tried
from .gradient_noise import Kick, gradient_noise, kick_of, without
from .laplace import EnergyAt, Laplace, laplace_approximation
from .pilot import Pilot
from .preconditioning import preconditioned
from .problem import Problem
from .tuner import Tuner

LEAST_CHAINS = 32  # of pilot runs

OURSELVES = "Give the step size and the parameters yourself."


@dataclass(frozen=True)
class Settings:
    """Arguments of `samplers.sample` that `tune` chose, with a reason for each, printed by `print`.

    `arguments` are for `sample(recipe, energy, **settings.arguments)`; `reasons` are by name of the argument, chosen or
    not.

    >>> print(Settings({"step_size": 0.5}, "sgld", {"step_size": "0.5: 57 % are accepted"}))
    sgld, tuned
      step_size  0.5: 57 % are accepted
    """

    arguments: Mapping[str, Any]
    recipe: str
    reasons: Mapping[str, str]

    def __str__(self) -> str:
        return "\n".join([f"{self.recipe}, tuned", *(f"  {line}" for line in aligned(self.reasons.items()))])

    def __repr__(self) -> str:
        return f"<{self.recipe}, tuned: {', '.join(self.arguments)}>"

    def _repr_html_(self) -> str:
        return html_table(f"{self.recipe}, tuned", ("argument", "choice and reason"), self.reasons.items())


def tune(
    recipe: Recipe | str,
    energy: Energy | Callable | None = None,
    *,
    gradient: Callable | None = None,
    data: Any = None,
    batch_size: int | None = None,
    init: Any = None,
    chains: int = 4,
    seed: int = 0,
    temperature: float = 1.0,
    scheme: Any = None,
    coordinates: Any = None,
    metropolis: bool | Metropolis | None = True,
    bias: float = 0.02,
    **parameters: Any,
) -> Settings:
    """The settings of a run, chosen by short pilot runs: `sample(recipe, energy, **tune(...).arguments)`.

    From a finite mode of U, by L-BFGS from `init`, pilot runs of 32 chains or more start in the normal law of the
    curvature there. Pilot runs are Metropolised, so that their law is exp(-U/T) at every step size. They choose:

    * the scale of each site, for a recipe with a parameter of scales (a mass, a preconditioner), by the variances of
      draws; or, of 2 to 200 sites, coordinates in which the shrunk covariance of draws is the identity, with every mass
      or preconditioner 1, if these give a quarter more effective draws a gradient. No coordinates are chosen where the
      parameter of scales is given;
    * the friction of the momenta, or the rate at which these are drawn anew: the frequency of the widest direction;
    * the step size, and with momenta `Metropolis(repeat)`, the words of a proposal: for an acceptance of 57 % without
      momenta, with momenta for the most effective draws a gradient of the worst statistic;
    * with `metropolis=False`, the step size at which the variances of a Gaussian are off by a share `bias`, by the work
      of steps over a stretch of sixteen, whose mean over T is twice the divergence of the law of the chain;
    * with `batch_size`, the budget of gradient noise, for a recipe with one, by the variance of minibatch gradients at
      pilot draws, and a step size at which this noise is at most half of the recipe's noise, or a share `bias` without
      a budget or a thermostat. The pilot runs on all data;
    * the start: the last states of pilot chains.

    For several potentials, whose energies come by name, the mode and the curvature are of their sum, and h is the time
    of a whole word, with all its short kicks. No dense coordinates are chosen for several potentials, nor for a
    `mapped` recipe, whose scales and mode are of z.

    Given parameters, and the `repeat` of a given `Metropolis`, are kept. The other arguments are those of
    `samplers.sample`; the same arguments give the same settings. Raises RecipeError like `sample`, and for an energy
    without a finite mode, a target with ends or of explicit coordinates, and a recipe whose steps have no work. Ctrl-C
    ends tuning with KeyboardInterrupt.

    Sources: Roberts & Rosenthal 1998; Beskos et al. 2013 (acceptance); Geyer 1992 (sample size); Chen et al. 2010
    (covariance); Sivak, Chodera & Crooks 2013 (work).

    >>> from samplers import HMC, sample
    >>> bowl = lambda theta: (theta**2/torch.tensor([1.0, 1e4])).sum()/2
    >>> settings = tune(HMC, bowl, init=torch.zeros(2), metropolis=Metropolis(repeat=3))
    >>> draws = sample(HMC, bowl, steps=100, progress=False, **settings.arguments)
    >>> (settings.arguments["m"].sqrt() * torch.tensor([1.0, 100.0])).round()
    tensor([1., 1.])
    """
    # Most lines read arguments.
    recipe = named(recipe, "tune")
    where = f"{recipe.name}, tune" if isinstance(recipe, Recipe) else "tune"
    chains = integer(where, "chains", chains, least=1)
    seed = integer(where, "the seed", seed, least=0)
    temperature = number(where, "temperature", temperature, above=0)
    proposal = proposal_of(recipe, metropolis, where)
    repeat = 1 if proposal is None else proposal.repeat
    kick = _kick(recipe, batch_size, proposal is not None, where)
    _, energy, coordinates = energy_of(recipe, energy, gradient, coordinates, "chain", data is not None, where)
    bias = number(where, "bias", bias, above=0, below=1)
    step = integrators.compile(recipe, scheme, energy=energy if isinstance(energy, Energy) else None)
    check_energy_is_asked_for(recipe, energy, where)
    apart, modeless = "whose scales and modes are apart", "where U may be least without a mode"
    check_one_vector(recipe, where, several=apart, ends=modeless, do=OURSELVES)
    for s in recipe.operators:
        raise RecipeError(where, f"steps are not found for what the operator {s} makes of U", do=OURSELVES)
    step.check(1.0, temperature=temperature, **parameters)
    start, layout = given_state(
        step,
        energy,
        start_of(init),
        chains=chains,
        parameters=parameters,
        coordinates=coordinates,
        seed=seed,
    )
    of_model = isinstance(energy, Model)
    z = start[recipe.targets[0].name]
    rows = data_of(energy, data, None, z, where)
    if not isinstance(energy, Energy):
        energy = tried(energy, z[0], layout, rows)
        check_value(energy, where, "the mode of U, and steps that are accepted, are found by its value")
    of_target = replace(recipe, maps={})  # which the layout has
    problem = Problem(of_target, energy, replace(layout, temperature=temperature), rows, scheme)
    near = laplace_approximation(EnergyAt(problem.value(rows), where), z[0], temperature)

    fixed = dict(data=data, temperature=temperature, scheme=scheme)
    starts = near.draws(max(chains, LEAST_CHAINS), seed)
    pilot = Pilot(of_target, problem.of_target(), fixed, seed, starts, without(kick, parameters))
    tuner = preconditioned(problem, pilot, near, parameters, repeat, where)
    if proposal is not None:
        tuner.choose(repeat)
    else:
        tuner.unadjusted(bias, step.order)
    if kick is not None:
        batches = data_of(energy, data, batch_size, z, where)
        assert batches is not None
        noisy = tuner.problem.value(batches)
        tuner.minibatches(kick, gradient_noise(noisy, tuner.pilot.theta, batches, seed, where), bias, parameters)

    of_chains = None if of_model else layout.shapes is None
    begin = Start(_start(tuner, chains, layout.seen(near.mode), of_model), per_chain=of_chains)
    chosen: dict[str, Any] = dict(batch_size=batch_size, chains=chains, init=begin)
    if tuner.problem.layout.coordinates is not None and not recipe.maps:
        chosen["coordinates"] = tuner.problem.layout.coordinates
    arguments = {**fixed, **tuner.pilot.parameters, **tuner.chosen, **chosen}
    return Settings(arguments, recipe.name, _account(near, layout.shapes is None or of_model, tuner))


def _kick(recipe: Recipe, batch_size: int | None, metropolis: bool, where: str) -> Kick | None:
    """The kick by minibatch gradients; RecipeError where their noise has no known effect, or steps are accepted."""
    if batch_size is None:
        return None
    if metropolis:
        what = "a step is accepted by the value of U, of which a minibatch has an estimate alone"
        raise RecipeError(where, what, do="Leave batch_size out, or pass metropolis=False.")
    kick = kick_of(recipe)
    if kick is None:
        what = "what the noise of minibatches does is not known: the gradient does not enter beside a constant noise"
        raise RecipeError(where, what, do=f"Tune without batch_size. {OURSELVES}")
    return kick


def _start(tuner: Tuner, chains: int, mode: Any, of_model: bool) -> dict[str, torch.Tensor]:
    """The start of the run's chains: states of the pilot, or for named tensors, which have one start, the mode."""
    states = tuner.problem.layout.seen(tuner.pilot.theta[:chains])
    if isinstance(mode, dict):
        return states if of_model else mode
    return {tuner.pilot.recipe.targets[0].name: states.clone()}


def _account(near: Laplace, has_states: bool, tuner: Tuner) -> dict[str, str]:
    pilot = tuner.pilot
    start = "the last states of pilot chains" if has_states else "the mode: let a warm-up forget it"
    sites = near.mode.numel()
    return {
        "mode": f"U = {near.value:.6g}, by L-BFGS; the pilot began in the normal law of its curvature",
        "init": start,
        **tuner.reasons,
        "cost": f"{pilot.runs} pilot runs of {len(pilot.theta)} chains of {sites} sites, {pilot.words} words each",
    }
