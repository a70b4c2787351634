"""The order of tuning: scales and damping from pilot draws, then the step size and the words of a proposal."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from sympy import lambdify

from ..results.statistics import split_r_hat
from ..running.sampling import Metropolis
from .gradient_noise import Kick, budget_of, greatest_step
from .mode import EnergyAt, check_mode
from .pilot import Pilot, Trial, acceptance, in_words, jittered, trial
from .problem import Problem
from .roles_of_parameters import damping_of, inverse_mass, scale_of
from .step_sizes import coarse, corrected, step_size_of_bias, where_it_falls
from .strays import have_weight

FEWEST_WORDS, MOST_WORDS = 60, 240  # words in a window
FACTORS = (1.0, 0.5, 2**0.5, 0.5**0.5)  # of the step size, in the parts of a window
SLOPES = 16  # draws of a chain in a window, at most, whose gradients are taken
MET, APART = 1.2, 1.5  # R-hat of the draws of a window, up to which chains have met, and above which they have not
FALLS = 0.95  # of R-hat from one window to the next, as long as chains come nearer to each other
PATIENCE = 2  # windows in which the R-hat of chains apart need not fall
LANGEVIN = 0.574  # the acceptance of chains without momenta. Roberts & Rosenthal (1998)
DAMPED = 0.9  # the acceptance of proposals whose momenta go on, and turn round at a rejection
PROPOSED = 0.9  # that of proposals with new momenta, above the 0.65 of Beskos et al. (2013): tails hold chains back
OFF = 0.15  # of the acceptance that is asked, at which a trial is made again
SHORT_PROPOSAL, LONG_PROPOSAL = 3, 32  # words of a proposal in the windows, where momenta are drawn anew before each
SHARE = 0.7  # of a quarter period, at which the first proposal is tried
CLEARLY = 1.1  # ratio of the efficiencies of trials, above which chance is not the reason
LENGTHS: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
LAST = 10  # proposals of the chosen size, after which a run goes on


class Tuner:
    """Chooses parameters and step size for the chains of a pilot: `chosen` by name, with `reasons`.

    `problem`: the energy in the coordinates of the pilot; `held`: parameters that are kept; `budget`: gradients, after
    which no window or trial begins; `scaled`: whether each site gets a scale; `is_proper`: whether exp(-U/T) is known
    to have an integral.
    """

    def __init__(
        self,
        problem: Problem,
        pilot: Pilot,
        held: Mapping[str, Any],
        budget: int,
        where: str,
        *,
        scaled: bool = True,
        is_proper: bool = True,
    ) -> None:
        scale = scale_of(pilot.recipe) if scaled else None
        damping = damping_of(pilot.recipe)
        self.problem = problem
        self.pilot = pilot
        self.where = where
        self.budget = budget
        self.is_proper = is_proper
        self.start = pilot.theta[0]
        self.energy = EnergyAt(problem.value(problem.rows), where)
        self.reasons: dict[str, Any] = {}
        self.chosen: dict[str, Any] = {}
        self.has_momenta = bool(pilot.recipe.momenta)
        self.words = SHORT_PROPOSAL if self.has_momenta and damping is None else 1  # of a proposal in the windows
        self.root_temperature = float(pilot.fixed["temperature"]) ** 0.5
        self.scale = scale if scale is not None and scale.parameter.name not in held else None
        self.damping = damping if damping is not None and damping.parameter.name not in held else None
        if scale is None and scaled:
            self.reasons["scale"] = "none: the recipe has no parameter that is a unit of each site"
        self.later = pilot.theta[:, None]
        self.units = self._units()
        self._rescale()
        self.frequency = self._damp(float((self.units * self._roots_of_masses()).square().max()))
        self.axis = torch.zeros(pilot.theta[0].numel(), dtype=torch.float64)
        self.r_hat = math.inf
        self.lengths = LENGTHS
        self.trials: list[Trial] = []
        self.best: Trial
        self.guess = coarse(pilot, self._wanted, where)
        self._lengthen()

    def settle(self) -> None:
        """Sets scales, damping and the step size in windows, until chains have met, or come no nearer to each other.

        Raises RecipeError where chains are apart, and U that need not be proper has no finite mode.
        """
        words, least, stale = FEWEST_WORDS, math.inf, 0
        while True:
            self.window(words)
            falls = self.r_hat < FALLS * least
            stale = 0 if falls or words < MOST_WORDS else stale + 1  # R-hat of a few draws from one start is low
            least = min(least, self.r_hat)
            if self.r_hat < MET and 2 * words > MOST_WORDS:
                break
            if words >= MOST_WORDS or self.pilot.is_late:
                if self.r_hat > APART and not self.is_proper:
                    check_mode(self.energy, self.start, self.root_temperature**2)
                    self.is_proper = True
                if stale > PATIENCE * (self.r_hat > APART) or self.is_spent:
                    break
            words = min(2 * words, MOST_WORDS)
        self.explain()

    def window(self, words: int) -> None:
        """Runs so many words at several step sizes, and sets scales, damping and the next step size."""
        units = self.units
        sizes = [self.guess * factor for factor in FACTORS]
        run = self.pilot.run(sizes, max(2, words // (self.words * len(sizes))), self.words)
        draws, work = self._of_weight(run[self.pilot.recipe.targets[0].name], run["work"])
        self.r_hat = float(split_r_hat(draws).nan_to_num(nan=1.0).max())
        self.pilot.bar.tell(f"windows: R-hat of {words} words {self.r_hat:.3g}")
        self.later = draws if self.r_hat < MET else draws[:, draws.shape[1] // 2 :]
        self.units = self._units()
        self._rescale()
        weights = self._roots_of_masses()
        variance, axis = _widest(self.later.flatten(0, 1) * weights)
        self.axis = axis * weights.expand(draws.shape[2:]).flatten().to(axis)
        self.frequency = self._damp(variance)
        rates = acceptance(self.pilot.by_size(work, len(sizes))).tolist()
        rising = sorted(range(len(sizes)), key=sizes.__getitem__)
        sizes, rates = [sizes[k] for k in rising], [rates[k] for k in rising]
        self.guess = where_it_falls(sizes, rates, self._wanted) or sizes[0]
        if (self.units / units).log().abs().max() > math.log(2):  # the step size was of other units
            self.guess = coarse(self.pilot, self._wanted, self.where)
        self._lengthen()

    def _lengthen(self) -> None:
        """Sets the words of a proposal in the windows to a quarter period, where momenta are drawn anew."""
        if self.words > 1:
            self.words = int(min(LONG_PROPOSAL, max(SHORT_PROPOSAL, self._longest(1) / self.guess)))

    def _of_weight(self, draws: torch.Tensor, work: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The draws and works of the chains that are where exp(-U/T) has weight, from whose states the others go on."""
        late = thinned(draws[:, draws.shape[1] // 2 :])
        U = self.energy.at(late.flatten(0, 1)).unflatten(0, late.shape[:2])
        kept = have_weight(late.flatten(2), U.to(torch.float64) / self.root_temperature**2)
        self.pilot.leave(kept)
        return draws[kept], work[kept]

    @property
    def is_spent(self) -> bool:
        """Whether the gradients of the budget, or the seconds of the pilot, are spent."""
        return self.pilot.spent.gradients >= self.budget or self.pilot.is_late

    def begin(self, repeat: int | None, *axes: torch.Tensor) -> None:
        """Tries the given number of words of a proposal, or those of somewhat less than a quarter period.

        `axes`: directions outside of the pilot's coordinates, `(sites,)`, whose sample size counts beside the slowest
        direction's.
        """
        slowest = self.axis.to(torch.float64)
        if self.pilot.coordinates is not None:
            slowest = torch.linalg.solve(self.pilot.coordinates.matrix.T.to(torch.float64), slowest)
        self.directions = torch.stack([slowest, *axes])
        likely = 1.0 if self.words == 1 else min(LONG_PROPOSAL, SHARE * self._longest(1) / self.guess)
        if repeat is not None or not self.has_momenta:
            self.lengths = (repeat or 1,)
        self._try(min(self.lengths, key=lambda length: abs(length - likely)))

    def race(self) -> None:
        """Tries more words of a proposal than at the beginning, or else fewer, as long as they are better.

        `best` is then the trial of most effective draws a gradient.
        """
        first = self.lengths.index(self.trials[0].repeat)
        for way in (self.lengths[first + 1 :], self.lengths[:first][::-1]):
            for length in way if self.best is self.trials[0] else ():
                if self.is_spent:
                    return
                self._try(length)
                if self.trials[-1] is not self.best:
                    break

    def _try(self, length: int) -> None:
        """A trial of so many words, at the step size of the one before, corrected by the acceptance there."""
        for _ in range(2):
            h = min(self.guess, self._longest(length))
            one = trial(self.pilot, h, length, self.directions)
            if h == self.guess:
                self.guess = corrected(h, one.acceptance, self._wanted)
            if abs(one.acceptance - self._wanted) < OFF or h < self.guess:
                break
        if not self.trials or one.efficiency > CLEARLY * self.best.efficiency:
            self.best = one
        self.trials.append(one)
        self.pilot.bar.tell(f"trials: {in_words(self.trials)}")

    def choose(self, repeat: int | None) -> None:
        """Chooses step size and words of the best trial, for exact chains; `repeat`: the number of words, if fixed."""
        if not self.trials:
            self.begin(repeat)
        self.race()
        best = self.best
        varied = " on average" if best.repeat > 1 else ""
        accepted = f"{best.step_size:.3g}{varied}: {100 * best.acceptance:.0f} % of the proposals are accepted"
        aim = f"where {100 * self._wanted:.0f} % are asked"
        if best.step_size == self._longest(best.repeat):
            aim = "of a quarter period of the slowest direction: longer ones come back"
        self.reasons["step_size"] = f"{accepted}, {aim}"
        if self.has_momenta:
            proposal = f"words of h are a proposal, {best.repeat * best.step_size:.3g} of time"
            self.reasons["repeat"] = f"{best.repeat}: {proposal}; {in_words(self.trials)}"
        self.chosen = {"step_size": jittered(best.step_size, best.repeat), "metropolis": Metropolis(best.repeat)}

    def unadjusted(self, bias: float, order: int) -> None:
        """Chooses the step size of unadjusted chains of a scheme of this order, for variances off by a share `bias`."""
        h, self.reasons["step_size"] = step_size_of_bias(self.pilot, self.guess, bias, order, self.where)
        self.chosen = {"step_size": h}

    def minibatches(self, kick: Kick, V: torch.Tensor, bias: float, held: Mapping[str, Any]) -> None:
        """Limits the step size for gradients of the variances V, and chooses the budget for their noise."""
        parameters = self.pilot.parameters
        limit = greatest_step(kick, V, self.root_temperature**2, bias, parameters)
        low, high = (float(x) for x in V.aminmax())
        source = f"the variances of minibatch gradients at pilot draws, {low:.2g} to {high:.2g}"
        if limit < self.chosen["step_size"]:
            self.chosen["step_size"] = limit
            self.reasons["step_size"] = f"{limit:.3g}: the most that the noise of minibatches allows, by {source}"
        if kick.budget is not None and kick.budget.name in held:
            parameters[kick.budget.name] = held[kick.budget.name]
        elif kick.budget is not None:
            name = kick.budget.name
            parameters[name] = budget_of(kick, V, self.chosen["step_size"], parameters)
            self.reasons[name] = f"{float(torch.as_tensor(parameters[name]).mean()):.3g} on average: {source}"

    def spread(self, chains: int) -> None:
        """Moves the chains of the pilot, and copies of these up to so many chains until copies are apart.

        A chain that the chosen step size holds where it is takes the state of another one.
        """
        theta = self.pilot.theta
        is_copied = chains > len(theta)
        if self.is_spent and not is_copied:
            return
        h, repeat, words = self.guess, self.words, float(MOST_WORDS)
        if self.trials:
            h, repeat = self.best.step_size, self.best.repeat
            words = 2 / max(self.best.efficiency, 2 / MOST_WORDS)  # of two effective draws: copies correlate by e^-4
        steps = LAST
        if is_copied:
            self.pilot.theta = theta[torch.arange(chains, device=theta.device) % len(theta)]
            steps = LAST if self.is_spent else max(LAST, math.ceil(words / repeat))
        self.pilot.run([jittered(h, repeat)], steps, repeat)

    @property
    def _wanted(self) -> float:
        if not self.has_momenta:
            return LANGEVIN
        return DAMPED if self.words == 1 else PROPOSED

    def _longest(self, repeat: int) -> float:
        """The step size of a proposal over a quarter period of the slowest direction, where momenta are drawn anew.

        After half a period a chain is at -theta, where the squares of theta have not changed. inf for other chains.
        """
        if self.words == 1 or not self.frequency:
            return math.inf
        return math.pi / (2 * self.frequency * repeat)

    def _units(self) -> torch.Tensor:
        """The units of sites, sqrt(T) times the root of the range of draws over that of gradients, between quartiles.

        A unit is the standard deviation of a Gaussian wherever its draws are, before chains have found their law, too.
        Source: Seyboldt, Carlson & Carpenter 2026, "Preconditioning Hamiltonian Monte Carlo by minimizing Fisher
        divergence", with ranges in place of standard deviations.
        """
        points = thinned(self.later).flatten(0, 1)
        self.pilot.spent.gradients += len(points)
        ordered = [x.nan_to_num().sort(0).values for x in (points, self.energy.gradient(points))]
        wide, steep = (x[3 * len(x) // 4] - x[len(x) // 4] for x in ordered)
        units = self.root_temperature * (wide / steep).sqrt()
        return torch.where(units.isfinite() & (units > 0), units, 1.0)

    def _rescale(self) -> None:
        """Sets the scale from the units of the sites at the temperature T."""
        if self.scale is not None:
            self.pilot.parameters[self.scale.parameter.name] = self.scale.values(self.units / self.root_temperature)

    def _roots_of_masses(self) -> torch.Tensor:
        """The roots of the masses of the sites, 1 where there are none; sites times these have the mass 1."""
        one = torch.ones((), dtype=self.pilot.theta.dtype, device=self.pilot.theta.device)
        mass = inverse_mass(self.pilot.recipe, self.pilot.recipe.momenta[0]) if self.has_momenta else None
        if mass is None:
            return one
        symbols = sorted(mass.free_symbols, key=str)
        values = [one * self.pilot.parameters.get(s.name, getattr(s, "default", None) or 1.0) for s in symbols]
        return (one * lambdify(symbols, mass, modules=[torch])(*values)).rsqrt()

    def _damp(self, variance: float) -> float | None:
        """The frequency of a direction of this variance, of sites times roots of masses; None without momenta.

        Sets the damping to this frequency.
        """
        if not self.has_momenta:
            return None
        frequency = self.root_temperature / math.sqrt(variance)
        value = None if self.damping is None else self.damping.value(frequency, self.pilot.parameters)
        if self.damping is not None and value is not None:
            self.pilot.parameters[self.damping.parameter.name] = value
        return frequency

    def explain(self) -> None:
        """Sets the reasons of scales and damping."""
        draws, parameters = len(self.later.flatten(0, 1)), self.pilot.parameters
        if self.scale is not None:
            name = self.scale.parameter.name
            low, high = parameters[name].aminmax()
            power = {-2: "one over the variance", 2: "the variance", -1: "one over the sd", 1: "the sd"}
            of_what = f"{power[self.scale.power]} of each site, by {draws} pilot draws and gradients there"
            self.reasons[name] = f"{low:.2g} to {high:.2g}: {of_what}"
        if self.damping is not None and self.damping.parameter.name in parameters:
            name = self.damping.parameter.name
            self.reasons[name] = (
                f"{parameters[name]:.3g}: the momenta forget at the frequency of the widest direction, "
                f"{self.frequency:.3g} per unit of time"
            )


def thinned(draws: torch.Tensor) -> torch.Tensor:
    """At most `SLOPES` draws of each chain, at equal distances."""
    return draws[:, :: math.ceil(draws.shape[1] / SLOPES)]


def _widest(points: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The greatest variance of points `(n, *shape)` along any direction, and the direction, `(sites,)`."""
    flat = points.flatten(1).to(torch.float64)
    flat = flat - flat.mean(0)
    few = flat.shape[0] < flat.shape[1]
    levels, axes = torch.linalg.eigh((flat @ flat.T if few else flat.T @ flat) / len(flat))
    axis = flat.T @ axes[:, -1] if few else axes[:, -1]
    return float(levels[-1]), axis / axis.norm()
