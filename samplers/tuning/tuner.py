"""The order of tuning: scales and damping from pilot draws, then the step size and the words of a proposal."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from sympy import lambdify

from ..running.sampling import Metropolis
from .gradient_noise import Kick, budget_of, greatest_step
from .laplace import Laplace
from .pilot import Pilot, Trial, in_words, trial
from .problem import Problem
from .roles_of_parameters import damping_of, inverse_mass, scale_of
from .step_sizes import coarse, fine, step_size_of_bias

WINDOWS = 2  # runs whose variances set the scales
SHORTEST, LONGEST = 60, 400  # words in a window
TIMES = 20  # relaxation times of the slowest direction in a window
LANGEVIN = 0.574  # the acceptance of chains without momenta. Roberts & Rosenthal (1998)
DAMPED = 0.9  # the acceptance of proposals whose momenta go on, and turn round at a rejection
PROPOSED = 0.8  # the acceptance of proposals whose momenta are drawn anew. Beskos et al. (2013), rounded up
UNDAMPED = 8  # words of a proposal in the windows, where momenta are drawn anew before each
LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
WORSE = 0.8  # share of the best efficiency, below which a trial counts as worse
PATIENCE = 2  # worse trials, after which longer proposals are not tried


class Tuner:
    """Chooses parameters and step size for the chains of a pilot: `chosen` by name, with `reasons`.

    `problem`: the energy in the coordinates of the pilot; `near`: the Laplace approximation there; `held`:
    parameters that are kept; `scaled`: whether each site gets a scale; `guess`: a first step size.
    """

    def __init__(
        self,
        problem: Problem,
        pilot: Pilot,
        near: Laplace,
        held: Mapping[str, Any],
        where: str,
        *,
        scaled: bool = True,
        guess: float | None = None,
    ) -> None:
        scale = scale_of(pilot.recipe) if scaled else None
        damping = damping_of(pilot.recipe)
        self.problem = problem
        self.pilot = pilot
        self.where = where
        self.reasons: dict[str, str] = {}
        self.chosen: dict[str, Any] = {}
        self.has_momenta = bool(pilot.recipe.momenta)
        self.words = UNDAMPED if self.has_momenta and damping is None else 1  # of a proposal in the windows
        self.root_temperature = float(pilot.fixed["temperature"]) ** 0.5
        self.scale = scale if scale is not None and scale.parameter.name not in held else None
        self.damping = damping if damping is not None and damping.parameter.name not in held else None
        if scale is None and scaled:
            self.reasons["scale"] = "none: the recipe has no parameter that is a unit of each site"
        self._rescale(near.sds())
        self.frequency = self._damp(near.widest(self._roots_of_masses()))
        self.axis = torch.zeros(near.mode.numel(), dtype=torch.float64)
        self.later = pilot.theta[:, None]
        self.trials: list[Trial] = []
        self.guess = coarse(pilot, self._wanted, where) if guess is None else guess

    def settle(self, windows: int = WINDOWS) -> None:
        """Sets scales and damping from the variances of draws, in windows that follow each other."""
        target = self.pilot.recipe.targets[0].name
        for _ in range(windows):
            draws = self.pilot.run([self.guess], self._window() // self.words, self.words)[target]
            self.later = draws[:, draws.shape[1] // 2 :]
            flat = self.later.flatten(0, 1)
            self._rescale(flat.std(0))
            weights = self._roots_of_masses()
            variance, axis = _widest(flat * weights)
            self.axis = axis * weights.expand(flat.shape[1:]).flatten().to(axis)
            self.frequency = self._damp(variance)
            self.guess = fine(self.pilot, self.guess, self._wanted, self.words)
        self._explain(len(self.later.flatten(0, 1)))

    def race(self, repeat: int | None, *axes: torch.Tensor, least: float = 0.0) -> None:
        """Tries numbers of words of a proposal, or the given one; `best` is then the most efficient trial.

        `axes`: directions outside of the pilot's coordinates, `(sites,)`, whose sample size counts beside the slowest
        direction's. Trials end where no length can reach the efficiency `least`, which grows at most with length.
        """
        slowest = self.axis.to(torch.float64)
        if self.pilot.coordinates is not None:
            slowest = torch.linalg.solve(self.pilot.coordinates.matrix.T.to(torch.float64), slowest)
        lengths: Sequence[int] = LENGTHS if self.has_momenta else (1,)
        for length in lengths if repeat is None else (repeat,):
            self.guess = fine(self.pilot, self.guess, self._wanted, length)
            h = min(self.guess, self._longest(length))
            self.trials.append(trial(self.pilot, h, length, torch.stack([slowest, *axes])))
            worse = all(t.efficiency < WORSE * self.best.efficiency for t in self.trials[-PATIENCE:])
            if worse or self.trials[-1].efficiency * LENGTHS[-1] / length < least:
                break

    @property
    def best(self) -> Trial:
        """The trial with the most effective draws a gradient."""
        return max(self.trials, key=lambda t: t.efficiency)

    def choose(self, repeat: int | None) -> None:
        """Chooses step size and words of the best trial, for exact chains; `repeat`: the number of words, if fixed."""
        if not self.trials:
            self.race(repeat)
        best = self.best
        accepted = f"{best.step_size:.3g}: {100 * best.acceptance:.0f} % of the proposals are accepted"
        asked = f"where {100 * self._wanted:.0f} % are asked"
        if best.step_size == self._longest(best.repeat):
            asked = "of a quarter period of the slowest direction: longer ones come back"
        self.reasons["step_size"] = f"{accepted}, {asked}"
        if self.has_momenta:
            proposal = f"words of h are a proposal, {best.repeat * best.step_size:.3g} of time"
            self.reasons["repeat"] = f"{best.repeat}: {proposal}; {in_words(self.trials)}"
        self.chosen = {"step_size": best.step_size, "metropolis": Metropolis(best.repeat)}

    def unadjusted(self, bias: float, order: int) -> None:
        """Chooses the step size of unadjusted chains of a scheme of this order, for variances off by a share `bias`."""
        h, self.reasons["step_size"] = step_size_of_bias(self.pilot, self.guess, bias, order, self.where)
        self.chosen = {"step_size": h}

    def minibatches(self, kick: Kick, V: torch.Tensor, bias: float, held: Mapping[str, Any]) -> None:
        """Limits the step size for gradients of the variances V, and chooses the budget for their noise."""
        parameters = self.pilot.parameters
        most = greatest_step(kick, V, self.root_temperature**2, bias, parameters)
        low, high = (float(x) for x in V.aminmax())
        seen = f"the variances of minibatch gradients at pilot draws, {low:.2g} to {high:.2g}"
        if most < self.chosen["step_size"]:
            self.chosen["step_size"] = most
            self.reasons["step_size"] = f"{most:.3g}: the most that the noise of minibatches allows, by {seen}"
        if kick.budget is not None and kick.budget.name in held:
            parameters[kick.budget.name] = held[kick.budget.name]
        elif kick.budget is not None:
            name = kick.budget.name
            parameters[name] = budget_of(kick, V, self.chosen["step_size"], parameters)
            self.reasons[name] = f"{float(torch.as_tensor(parameters[name]).mean()):.3g} on average: {seen}"

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

    def _window(self) -> int:
        if self.frequency is None:
            return LONGEST
        return int(min(LONGEST, max(SHORTEST, TIMES / (self.frequency * self.guess))))

    def _rescale(self, units: torch.Tensor) -> None:
        """Sets the scale from standard deviations of the sites at the temperature T."""
        if self.scale is not None:
            self.pilot.parameters[self.scale.parameter.name] = self.scale.values(units / self.root_temperature)

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

    def _explain(self, draws: int) -> None:
        parameters = self.pilot.parameters
        if self.scale is not None:
            name = self.scale.parameter.name
            low, high = parameters[name].aminmax()
            power = {-2: "one over the variance", 2: "the variance", -1: "one over the sd", 1: "the sd"}
            of_what = f"{power[self.scale.power]} of each site in {draws} pilot draws"
            self.reasons[name] = f"{low:.2g} to {high:.2g}: {of_what}"
        if self.damping is not None and self.damping.parameter.name in parameters:
            name = self.damping.parameter.name
            self.reasons[name] = (
                f"{parameters[name]:.3g}: the momenta forget at the frequency of the widest direction, "
                f"{self.frequency:.3g} per unit of time"
            )


def _widest(points: torch.Tensor) -> tuple[float, torch.Tensor]:
    """The greatest variance of points `(n, *shape)` along any direction, and the direction, `(sites,)`."""
    flat = points.flatten(1).to(torch.float64)
    flat = flat - flat.mean(0)
    few = flat.shape[0] < flat.shape[1]
    levels, axes = torch.linalg.eigh((flat @ flat.T if few else flat.T @ flat) / len(flat))
    axis = flat.T @ axes[:, -1] if few else axes[:, -1]
    return float(levels[-1]), axis / axis.norm()
