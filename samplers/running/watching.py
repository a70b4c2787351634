"""The progress of a run: a bar with rate, time left and temperatures, and scalars for a callback."""

import sys
import time
from typing import Any

import torch

from integrators.auxiliary import masses

from ..results.bar import Bar, Scalars, Shown, Ticker
from ..target.layout import by_block
from .chains import Chains
from .inputs import Inputs
from .plan import Plan
from .recording import InMemory

OFTEN = 10.0  # seconds between two effective sample sizes
SHOWN = 4  # components of the target whose effective sample size is computed
LOOKED_AT = 2000  # draws of a chain in an effective sample size, at most


class Progress:
    """The progress bar of a run, if `progress` is True, or a function called with scalars about once a second.

    The scalars: step, steps_per_second, lost chains; for each block of momenta its present kinetic temperature, the
    mean of p^2/m over all chains, with the band `low` to `high` that contains 99 % of values at the run's temperature;
    where steps carry the gradient the configurational temperature, the mean of theta dU/dtheta, with a band of 2.6
    standard errors over chains about the run's temperature; every ten seconds `ess`, the least effective sample size
    of the target's first components.
    """

    def __init__(self, plan: Plan, chains: Chains, record: InMemory, *, inputs: Inputs, progress: Shown) -> None:
        self.plan = plan
        self.chains = chains
        self.record = record
        self.layout = inputs.layout
        self.bar = Bar(chains.recipe.name, plan.length, shown=progress is True)
        self.ticker = Ticker(self.bar, progress, _in_words)
        self.masses = masses(plan.step.recipe, inputs.constants, plan.step.frozen) if self.ticker.is_on else {}
        self.done = 0
        self.done_then = 0
        self.counted = time.monotonic()
        self.ess: Scalars = {}

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: Any) -> None:
        self.bar.close()

    def update(self, steps: int) -> None:
        """Advance the bar by `steps` steps; compute scalars about once a second."""
        self.bar.update(steps)
        self.done += steps
        self.ticker.update(self.scalars, at_end=self.done >= self.plan.length)

    def end(self, verdict: str) -> None:
        """Close the bar, and print the verdict of the run's report."""
        shown = not self.bar.disable
        self.bar.close()
        if shown:
            print(verdict, file=sys.stderr)

    def scalars(self, seconds: float) -> Scalars:
        """The scalars at present, `seconds` after the last ones."""
        temperature = self.plan.temperature(max(self.done - 1, 0))
        scalars: Scalars = {
            "step": self.done,
            "steps_per_second": (self.done - self.done_then) / max(seconds, 1e-9),
            "lost": len(self.chains.diverged),
        }
        scalars |= self.accepted()
        if self.chains.recipe.weights is None:  # states alone do not tell those of weighted draws
            scalars |= self.kinetic(temperature)
            scalars |= self.configurational(temperature)
            scalars |= self.effective()
        self.done_then = self.done
        return scalars

    def kinetic(self, temperature: float) -> Scalars:
        """The kinetic temperature of each block of momenta with its band, as scalars."""
        scalars: Scalars = {}
        if not self.chains.alive.any():
            return scalars
        for name, mass in self.masses.items():
            from ..results.temperatures import kinetic_temperature  # imports scipy

            p = self.chains.state[name][self.chains.alive]
            t: Any = kinetic_temperature(p, mass, temperature=temperature)
            scalars |= _banded(f"kinetic_temperature.{name}", t.value, t.low, t.high)
        return scalars

    def configurational(self, temperature: float) -> Scalars:
        """The configurational temperature of each block of the target with its band; empty where H has more than U."""
        scalars: Scalars = {}
        state = self.chains.state
        alive = self.chains.alive
        number = int(alive.sum())
        gradient = state.get("gradient")
        recipe = self.chains.recipe
        is_flat = not any(b.domain.is_discrete or b.domain.is_sphere for b in recipe.targets)
        if gradient is None or number < 4 or recipe.has_other_energy or recipe.has_several_potentials or not is_flat:
            return scalars
        for name, g in by_block(recipe, gradient).items():
            of_chain = (state[name] * g)[alive].reshape(number, -1).mean(1)
            error = 2.6 * float(of_chain.std()) / number**0.5
            low, high = temperature - error, temperature + error
            scalars |= _banded(f"configurational_temperature.{name}", float(of_chain.mean()), low, high)
        return scalars

    def accepted(self) -> Scalars:
        """The acceptance in this stage, the mean over chains; empty without proposals."""
        acceptance = self.chains.acceptance(self.plan.since_stage(self.done))
        return {} if acceptance is None else {"acceptance": float(acceptance.mean())}

    def effective(self) -> Scalars:
        """The least effective sample size of the first components, computed every `OFTEN` seconds."""
        now = time.monotonic()
        if now - self.counted >= OFTEN:
            self.counted = now
            values = self.record.so_far(self.chains.recipe.targets[0].name)
            if values.shape[1] >= 100:
                draws = values[self.chains.alive.to(values.device), :: -(-values.shape[1] // LOOKED_AT)]
                self.ess = _least_effective(self.layout.theta(draws))
        return self.ess


def _least_effective(values: torch.Tensor) -> Scalars:
    """The least effective sample size of the first components of draws `(chains, draws, *shape)`."""
    if not len(values):
        return {}
    from ..results.statistics import sample_size_of_ranks

    components = values.flatten(2)[..., :SHOWN] if values.dim() > 2 else values
    return {"ess": float(sample_size_of_ranks(components).min())}


def _in_words(scalars: Scalars) -> str:
    """The temperatures of the momenta, the acceptance, and the effective sample size, as text for the bar."""
    kinetic = [
        f"{value:.3g}"
        for name, value in scalars.items()
        if name.startswith("kinetic") and not name.endswith(("low", "high"))
    ]
    words = [f"T_kin now {', '.join(kinetic)}"] if kinetic else []
    if "acceptance" in scalars:
        words.append(f"accepted {scalars['acceptance']:.2f}")
    if "ess" in scalars:
        words.append(f"ESS {scalars['ess']:.0f}")
    return ", ".join(words)


def _banded(name: str, value: float, low: float, high: float) -> Scalars:
    return {name: value, f"{name}.low": low, f"{name}.high": high}
