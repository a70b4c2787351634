"""`tune`: from a recipe and an energy to the settings of a run."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import integrators
from integrators.requirements import check_one_vector
from recipe import Energy, Recipe
from recipe.arguments import integer, number
from recipe.errors import RecipeError, warn
from recipe.results import aligned, html_table

from ..results.bar import Bar
from ..results.geometry import advice_of
from ..running.points import Start, start_of
from ..running.sampling import Metropolis, proposal_of
from ..running.start import given_state
from ..stock import recipe_of
from ..target.foreign import check_has_value
from ..target.model import Model
from ..target.potential import differentiated
from ..target.rows import check_rows
from ..target.target import check_energy_is_asked_for, check_unweighted, data_of, energy_of
from ..target.traced import tried
from .gradient_noise import Kick, gradient_noise, kick_of, without
from .mode import EnergyAt
from .pilot import Pilot, taken_over
from .preconditioning import preconditioned
from .problem import Problem
from .tuner import APART, MET, Tuner

PILOTS = 32  # chains of pilot runs, whatever a run has: more cost gradients, and choose little better

OURSELVES = "Give the step size and the parameters yourself."
NUMBERS = {
    "chains": " of the pilot: a run has its own number",
    "gradients": " of all chains of the pilot",
    "seconds": " of a clock, the last run of the pilot with them",
    "r_hat": f" in the last long window of the pilot, asked to come below {MET}; above {APART} there is a warning",
    "ratio_of_scales": ", the greatest scale over the least",
}


@dataclass(frozen=True)
class Settings:
    """Arguments of `samplers.sample` that `tune` chose, with a reason for each, printed by `print`.

    `arguments` are for `sample(recipe, energy, **settings.arguments)`; `reasons` are by name of the argument, chosen or
    not, with the numbers of tuning.

    >>> print(Settings({"step_size": 0.5}, "sgld", {"step_size": "0.5: 57 % are accepted"}))
    sgld, tuned
      step_size  0.5: 57 % are accepted
    """

    arguments: Mapping[str, Any]
    recipe: str
    reasons: Mapping[str, Any]

    def __str__(self) -> str:
        return "\n".join([f"{self.recipe}, tuned", *(f"  {line}" for line in aligned(self._rows))])

    def __repr__(self) -> str:
        return f"<{self.recipe}, tuned: {', '.join(self.arguments)}>"

    def _repr_html_(self) -> str:
        return html_table(f"{self.recipe}, tuned", ("argument", "choice and reason"), self._rows)

    @property
    def _rows(self) -> list[tuple[str, str]]:
        return [(name, str(reason) + NUMBERS.get(name, "")) for name, reason in self.reasons.items()]


@dataclass(frozen=True)
class TunedStart(Start):
    """The start that `tune` chose, with the arguments that it `chosen` beside, and the reasons, which a run takes over.

    >>> TunedStart(None, chosen={"step_size": 0.5}, reasons={"step_size": "0.5: 57 %"}).reasons_for({"step_size": 0.1})
    {}
    """

    chosen: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    reasons: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    def reasons_for(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The reasons, if the arguments of a run are those that were chosen; else nothing."""
        return dict(self.reasons) if all(arguments.get(name) is x for name, x in self.chosen.items()) else {}


def tune(
    recipe: Recipe | str,
    energy: Energy | Callable[..., Any] | None = None,
    *,
    gradient: Callable[..., Any] | None = None,
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
    budget: int = 200_000,
    seconds: float | None = None,
    progress: bool = True,
    **parameters: Any,
) -> Settings:
    """The settings of a run, chosen by short pilot runs: `sample(recipe, energy, **tune(...).arguments)`.

    Pilot runs of 32 chains start at `init`, at 32 starts over all where there are more, a model's at draws of its
    priors, and are Metropolised, so that their law is exp(-U/T) at every step size. Windows of them follow each other
    until chains have met, as by R-hat; no mode is asked for, and U may be unbounded, as that of scales that may be 0
    is. A chain in a mode of a far greater U, whose weight is below e^-20 by what the chains tell of volumes, goes on
    from another one's state. They choose:

    * the scale of each site, for a recipe with a parameter of scales (a mass, a preconditioner), by the ranges of
      draws and of gradients there; or, of 2 to 200 sites, coordinates in which the shrunk covariance of draws is the
      identity, with every mass or preconditioner 1. These are tried where the condition number of the covariance, in
      units of the scales, is above 3, and taken unless effective draws a gradient are fewer by a factor above 1.4. No
      coordinates are chosen where the parameter of scales is given;
    * the friction of the momenta, or the rate at which these are drawn anew: the frequency of the widest direction;
    * the step size, and with momenta `Metropolis(repeat)`, the words of a proposal: for an acceptance of 57 % without
      momenta, with momenta for the most effective draws a gradient of the worst statistic; the step sizes of proposals
      of several words vary, `schedules.Jittered`;
    * with `metropolis=False`, the step size at which the variances of a Gaussian are off by a share `bias`, by the work
      of steps over a stretch of sixteen, whose mean over T is twice the divergence of the law of the chain;
    * with `batch_size`, the budget of gradient noise, for a recipe with one, by the variance of minibatch gradients at
      pilot draws, and a step size at which this noise is at most half of the recipe's noise, or a share `bias` without
      a budget or a thermostat. The pilot runs on all data;
    * the start: the last states of pilot chains; more than 32 chains begin at copies, and make proposals until the
      copies are apart.

    For several potentials, whose energies come by name, h is the time of a whole word, with all its short kicks. No
    dense coordinates are chosen for several potentials, nor for a `mapped` recipe, whose scales are of z. With
    `batch_size` pilot chains start at the mode that L-BFGS finds from `init`.

    `budget`: gradients of all pilot chains together, about, after which no new window or trial begins, and copies make
    ten proposals alone; `seconds`: the same of a clock, by which settings are no longer those of the arguments alone;
    `progress`: whether a bar on stderr shows how many gradients are spent, and what they have told. The reasons have
    numbers, too: the `chains` and `gradients` of the pilot, the `seconds` where these are given, the worst `r_hat` of
    the last long window, and the `ratio_of_scales`, the greatest over the least; chains that have not met give a
    RuntimeWarning with these. Given parameters, and the `repeat` of a given `Metropolis`, are kept. The other arguments
    are those of `samplers.sample`; the same arguments give the same settings. Raises RecipeError like `sample`, for a
    target with ends or of explicit coordinates, for a recipe whose steps have no work, and where chains have not met
    and U, no model's, has no finite mode. Ctrl-C ends tuning with KeyboardInterrupt.

    Sources: Roberts & Rosenthal 1998; Beskos et al. 2013 (acceptance); Mackenzie 1989 (step sizes that vary); Seyboldt,
    Carlson & Carpenter 2026 (scales); Geyer 1992 (sample size); Chen et al. 2010 (covariance); Sivak, Chodera & Crooks
    2013 (work).

    >>> from samplers import HMC, sample
    >>> bowl = lambda theta: (theta**2/torch.tensor([1.0, 1e4])).sum()/2
    >>> settings = tune(HMC, bowl, init=torch.zeros(2), metropolis=Metropolis(repeat=3))
    >>> draws = sample(HMC, bowl, steps=100, progress=False, **settings.arguments)
    >>> (settings.arguments["m"].sqrt() * torch.tensor([1.0, 100.0])).round()
    tensor([1., 1.])
    """
    # Most lines read arguments.
    began = time.monotonic()
    recipe = recipe_of(recipe, "tune")
    where = f"{recipe.name}, tune"
    check_unweighted(recipe, where, "what is tuned is the law of equal ones")
    chains = integer(where, "chains", chains, least=1)
    seed = integer(where, "the seed", seed, least=0)
    temperature = number(where, "temperature", temperature, above=0)
    proposal = proposal_of(recipe, metropolis, where)
    repeat = 1 if proposal is None else proposal.repeat
    kick = _kick(recipe, batch_size, proposal is not None, where)
    _, energy, coordinates = energy_of(recipe, energy, gradient, coordinates, "chain", data is not None, where)
    if not isinstance(progress, bool):
        raise RecipeError(where, f"progress is True or False, got {progress!r}", do="Pass progress=False, say.")
    bias = number(where, "bias", bias, above=0, below=1)
    budget = integer(where, "budget", budget, least=1)
    end = math.inf if seconds is None else began + number(where, "seconds", seconds, above=0)
    step = integrators.compile(recipe, scheme, energy=energy if isinstance(energy, Energy) else None)
    check_energy_is_asked_for(recipe, energy, where)
    blocks, modeless = "whose scales and modes are apart", "where U may be least without a mode"
    check_one_vector(recipe, where, several=blocks, ends=modeless, do=OURSELVES)
    for s in recipe.operators:
        raise RecipeError(where, f"steps are not found for what the operator {s} makes of U", do=OURSELVES)
    step.check(1.0, temperature=temperature, **parameters)
    of_model = isinstance(energy, Model)
    centred = energy.centred if isinstance(energy, Model) else {}
    start, layout = given_state(
        step,
        energy,
        start_of(init),
        chains=PILOTS if of_model and start_of(init).point is None else chains,
        parameters=parameters,
        coordinates=coordinates,
        seed=seed,
    )
    z = start[recipe.targets[0].name]
    rows = data_of(energy, data, None, z, where)
    if not isinstance(energy, Energy):
        energy = tried(energy, z[0], layout, rows)
        check_has_value(energy, where, "the mode of U, and steps that are accepted, are found by its value")
    of_target = replace(recipe, maps={})  # which the layout has
    problem = Problem(of_target, energy, replace(layout, temperature=temperature), rows, scheme)
    fixed = dict(data=data, temperature=temperature, scheme=scheme)
    check_rows(problem.target(rows), z, where)
    at = EnergyAt(problem.value(rows), where)
    z = z if kick is None else at.mode(z[0])[None]
    z = _finite(at.value, z, where)
    starts = z[torch.arange(PILOTS) * max(len(z), PILOTS) // PILOTS % len(z)]  # of more, some of all parts
    with Bar(where, budget, shown=progress, unit=" gradients") as bar:
        pilot = Pilot(of_target, problem.of_target(), fixed, seed, starts, without(kick, parameters), bar=bar, end=end)
        tuner = preconditioned(problem, pilot, parameters, repeat, budget, of_model, where)
        if tuner.r_hat > APART:
            _warn_of_spike(tuner, centred, where)
        if proposal is not None:
            tuner.choose(repeat)
        else:
            tuner.unadjusted(bias, step.order)
        tuner.spread(chains)
        if kick is not None:
            batches = data_of(energy, data, batch_size, z, where)
            assert batches is not None
            noisy = tuner.problem.value(batches)
            tuner.minibatches(kick, gradient_noise(noisy, tuner.pilot.theta, batches, seed, where), bias, parameters)

    states = tuner.problem.layout.seen(tuner.pilot.theta[:chains])
    states = states if isinstance(states, dict) else {recipe.targets[0].name: states.clone()}
    chosen: dict[str, Any] = {**fixed, **tuner.pilot.parameters, **tuner.chosen, "batch_size": batch_size}
    if tuner.problem.layout.coordinates is not None and not recipe.maps:
        chosen["coordinates"] = tuner.problem.layout.coordinates
    clock = {} if seconds is None else {"seconds": round(time.monotonic() - began, 1)}
    reasons = _account(tuner) | clock
    begin = TunedStart(states, per_chain=None if of_model else True, chosen=dict(chosen), reasons=reasons)
    return Settings(chosen | {"chains": chains, "init": begin}, recipe.name, reasons)


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


def _finite(value: Callable, starts: torch.Tensor, where: str) -> torch.Tensor:
    """The starts `(chains, *shape)`, where a chain whose U or slope is not finite takes the start of another one."""
    jet = differentiated(value, starts)
    finite = jet.value.isfinite() & jet.slope.flatten(1).isfinite().all(1)
    if not finite.any():
        what = f"U or its slope is not finite at the start of each of {len(starts)} chains"
        raise RecipeError(where, what, do="Give another init, or start in float64.")
    return taken_over(starts, finite)


def _account(tuner: Tuner) -> dict[str, Any]:
    """The choices with their reasons, and the numbers of tuning."""
    low, high = (float(x) for x in tuner.units.aminmax())
    spent = tuner.pilot.spent
    copies = f"; {spent.states} times a chain took another one's state, as its own had no weight" * bool(spent.states)
    return {
        "init": f"the last states of pilot runs of {PILOTS} chains{copies}",
        **tuner.reasons,
        "chains": PILOTS,
        "gradients": spent.gradients,
        "r_hat": round(tuner.r_hat, 4),
        "ratio_of_scales": float(f"{high / low:.3g}"),
    }


def _warn_of_spike(tuner: Tuner, centred: Mapping[str, float], where: str) -> None:
    numbers = _account(tuner)
    warn(
        f"{where}: the {numbers['chains']} pilot chains have not met after {numbers['gradients']} gradients, their "
        f"R-hat is {numbers['r_hat']:.3g}, their scales are in a ratio of {numbers['ratio_of_scales']:.2g}, and the "
        f"settings may be those of a spike or of a mode. {advice_of(centred)} Or give a greater budget, or start "
        "elsewhere."
    )
