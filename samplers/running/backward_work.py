"""The KL divergence between the law of a run and exp(-H/T), from the work of its steps backwards in time.

Let rho be the stationary law of a step, pi = exp(-H/T), and W the work of a stretch of n steps of its time reversal,
the direction -1. From E[exp(-W/T) | z] = pi(z')P(z' -> z)/pi(z), summed over the paths, for stretches that forget,

    rho(z)/pi(z) = E[exp(-W/T) | z] = exp(-E[W|z]/T + Var[W|z]/(2 T^2) - ...),
    KL(rho || pi) + KL(pi || rho) = (E_rho - E_pi) log(rho/pi),

and both divergences are half of that, to leading order. The second cumulant comes from two stretches of each start,
as (W - W')^2/2. Without the second cumulant, and with equal laws in both directions, the divergence is
(E_pi W - E_rho W)/(2T), as in the source.

Source: Sivak, Chodera and Crooks (2013), "Using nonequilibrium fluctuation theorems to understand and correct errors in
equilibrium and nonequilibrium simulations of discrete Langevin dynamics"; Crooks (1999), for the first line.
"""

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from integrators.direction import ACCEPTED, DIRECTION, WORK
from integrators.step import Step
from integrators.streams import STRETCH
from recipe.errors import RecipeError

from ..results.bar import Bar
from ..results.kl_divergence import KLDivergence
from ..target.potential import Blocks
from .chains import Chains
from .choice import kernel_for
from .drive import drive
from .inputs import Inputs
from .phases import Phase
from .plan import Plan, Setting, Stage

GOOD = 0.8  # acceptance of the chains of exp(-H/T), below which the step size is halved
HALVINGS = 8  # at most
SETTLED = 2.0  # standard errors by which twice the steps may change the estimate


class Stretches:
    """Chains in the law of the step and chains in exp(-H/T), whose states start stretches; `bar` counts the steps.

    `stage`, `inputs`, `backend`: those of the run; `stepped(freeze=, accept=)` compiles its step again, with the work,
    plain and Metropolised (`exact_step`). Raises RecipeError for a step without a work.
    """

    def __init__(
        self, stepped: Callable, stage: Stage, inputs: Inputs, backend: str, where: str, start: Blocks, bar: Bar
    ) -> None:
        still = stage.step.frozen
        self.plain = stepped(freeze=still, accept=False)
        self.exact_step = stepped(freeze=still)
        parameters = {name: x for name, x in inputs.parameters.items() if name in self.plain.parameters}
        self.inputs = replace(inputs, target=inputs.target.of_steps([self.plain], where), parameters=parameters)
        self.backend = backend
        self.where = where
        self.run_h = self.h = stage.step_size(0)
        self.temperature = stage.temperature(0)
        like = next(iter(start.values()))
        zero = like.new_zeros(len(like))
        turns = 1 - 2 * (torch.arange(len(like), device=like.device) % 2).to(like.dtype)
        blocks = {WORK.name: zero, ACCEPTED.name: zero}
        self.bar = bar
        self.number = STRETCH[0]
        self.of_run = start | blocks | {DIRECTION.name: torch.ones_like(zero)}
        self.exact = start | blocks | {DIRECTION.name: turns}  # half of them in each direction
        self.alive = torch.ones(len(like), dtype=torch.bool, device=like.device)

    def settle(self, steps: int, limit: int) -> KLDivergence:
        """The estimate of stretches that agree with those of half the steps, and whose second half adds nothing."""
        before = None
        while True:
            self._move_exact(steps)
            self.of_run = self._move(self.plain, self.of_run, self.run_h, steps)
            logs, variance = self._logs(steps)
            value, error = _mean(logs.sum(0))
            added, added_error = _mean(logs[1])
            late = abs(added) > SETTLED * added_error
            settled = before is not None and not late and _agree((value, error), before)
            if settled or 2 * steps > limit:
                alive = int(self.alive.sum())
                return KLDivergence(value, error, alive, steps, variance, len(self.alive) - alive, settled)
            before = value, error
            steps *= 2

    def _move_exact(self, steps: int) -> None:
        """Move the chains of exp(-H/T) for the time of 2 `steps` steps, at a step size halved until accepted."""
        for _ in range(HALVINGS):
            number = math.ceil(2 * steps * self.run_h / self.h)
            self.exact |= {ACCEPTED.name: torch.zeros_like(self.exact[ACCEPTED.name])}
            self.exact = self._move(self.exact_step, self.exact, self.h, number)
            if float(self.exact[ACCEPTED.name].mean()) >= GOOD * number:
                return
            self.h /= 2
        raise RecipeError(self.where, f"no step size down to {self.h:.2g} is accepted", do="Look at H.")

    def _move(self, step: Step, state: Blocks, h: float, steps: int) -> Blocks:
        chains, _ = self._moved(step, state, h, steps)
        self.number += steps
        self.alive &= chains.alive
        return _blocks(chains)

    def _moved(self, step: Step, state: Blocks, h: float, steps: int) -> tuple[Chains, torch.Tensor]:
        """Chains after `steps` steps, and their work over T in each half of the steps, `(2, chains)`."""
        chains = Chains(step.recipe, dict(state), self.where)
        size = Setting("step size", h, 0, self.where)
        temperature = Setting("temperature", self.temperature, 0, self.where)
        stage = Stage(Phase(steps), step, size, temperature, self.number, 0, 1)
        plan = Plan((stage,), False)
        kernel, _ = kernel_for(plan, chains.state, self.inputs, (WORK.name,), self.backend)
        halves = torch.zeros(2, len(chains), dtype=torch.float64, device=chains.alive.device)
        done = 0
        self.bar.total += steps
        for moves in drive(plan, chains, kernel):
            works = moves.kept[WORK.name].to(torch.float64) / self.temperature
            half = max(steps // 2 - done, 0)
            halves += torch.stack([works[:, :half].sum(1), works[:, half:].sum(1)])
            done += moves.steps
            self.bar.update(moves.steps)
        return chains, halves

    def _logs(self, steps: int) -> tuple[torch.Tensor, float]:
        """Terms of (E_rho - E_pi) log(rho/pi)/2 by each half of the stretches, `(2, starts)`; the variance of W/T."""
        works = []
        for start in (self.of_run, self.exact):
            twice = {name: torch.cat([x, x]) for name, x in start.items()}
            twice[DIRECTION.name] = torch.full_like(twice[DIRECTION.name], -1)
            chains, halves = self._moved(self.plain, twice, self.run_h, steps)
            self.alive &= chains.alive.reshape(2, -1).all(0)
            works.append(halves.cumsum(0).unflatten(1, (2, -1)))
        self.number += steps
        if int(self.alive.sum()) < 2:
            raise RecipeError(self.where, "chains of the step are lost", do="Take a smaller step size.")
        one, other = torch.stack(works)[..., self.alive].unbind(2)  # (laws, halves, starts)
        spread = (one - other).square() / 2
        logs = (-(one + other) / 2 + spread / 2).diff(dim=0)[0] / -2
        return torch.stack([logs[0], logs[1] - logs[0]]), float(spread[1, 1].mean())


def _mean(x: torch.Tensor) -> tuple[float, float]:
    return float(x.mean()), float(x.std()) / len(x) ** 0.5


def _agree(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return abs(one[0] - other[0]) <= SETTLED * math.hypot(one[1], other[1])


def _blocks(chains: Chains) -> Blocks:
    return {b.name: chains.state[b.name] for b in chains.recipe.entries}
