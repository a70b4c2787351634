"""A run as one sees it: a progress bar with rate, time left and temperatures, and scalars for a callback."""

import time
from collections.abc import Callable

from tqdm import tqdm

from integrators.auxiliary import masses

from .chains import Chains

EVERY, OFTEN = 1.0, 10.0  # seconds between two looks, and between two effective sample sizes
SHOWN = 4  # components of the target whose effective sample size is looked at


class Progress:
    """The progress bar of a run of `total` steps; `watch`, if given, is called with a dict of scalars about once a second.

    step, steps_per_second, lost chains; for each block of momenta its kinetic temperature, the mean of p^2/m over all chains, with
    the band `low` to `high` that holds 99 % of the time at the run's temperature; where a step carries its gradient the
    configurational temperature, the mean of theta dU/dtheta, with 2.6 standard errors over chains about the run's; every ten
    seconds `ess`, the least effective sample size of the target's first components.
    """

    def __init__(
        self,
        total: int,
        name: str,
        shown: bool,
        watch: Callable | None,
        chains: Chains,
        temperature: Callable,
        kept: Callable,
    ):
        self.total, self.watch, self.chains, self.temperature, self.kept = total, watch, chains, temperature, kept
        self.bar = tqdm(total=total, disable=not shown, unit="step", desc=name)
        self.looks = shown and not self.bar.disable or watch is not None
        self.momenta = masses(chains.step.recipe, chains.parameters, chains.step.frozen) if self.looks else {}
        self.last, self.done, self.since = time.monotonic(), 0, 0
        self.counted, self.ess = time.monotonic(), {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.bar.close()

    def update(self, steps: int) -> None:
        """Go on by some steps."""
        self.bar.update(steps)
        self.done += steps
        if not self.looks or (time.monotonic() - self.last < EVERY and self.done < self.total):
            return
        now = time.monotonic()
        scalars = {
            "step": self.done,
            "steps_per_second": (self.done - self.since) / max(now - self.last, 1e-9),
            "lost": len(self.chains.diverged),
        }
        state, T = self.chains.state_now(), float(self.temperature(max(self.done - 1, 0)))
        scalars |= self.kinetic(state, T) | self.configurational(state, T) | self.effective(now)
        self.last, self.since = now, self.done
        kinetic = [
            f"{v:.3g}" for k, v in scalars.items() if k.startswith("kinetic") and not k.endswith(("low", "high"))
        ]
        told = [f"T_kin {', '.join(kinetic)}"] if kinetic else []
        told += [f"ESS {scalars['ess']:.0f}"] if "ess" in scalars else []
        self.bar.set_postfix_str(", ".join(told))
        if self.watch is not None:
            self.watch(scalars)

    def kinetic(self, state, T: float) -> dict[str, float]:
        """The kinetic temperature of each block of momenta, with its band."""
        found = {}
        for name, mass in self.momenta.items() if bool(self.chains.alive.any()) else ():
            from ..results.temperatures import kinetic_temperature  # imports scipy.stats

            t = kinetic_temperature(state[name][self.chains.alive], mass, temperature=T)
            found |= _banded(f"kinetic_temperature.{name}", t.value, t.low, t.high)
        return found

    def configurational(self, state, T: float) -> dict[str, float]:
        """The configurational temperature of each block of the target, with its band."""
        gradient, alive, found = state.get("gradient"), self.chains.alive, {}
        n = int(alive.sum())
        if gradient is None or n < 4:
            return found
        for name, g in (
            gradient if isinstance(gradient, dict) else {self.chains.step.recipe.targets[0].name: gradient}
        ).items():
            of_chain = (state[name] * g)[alive].reshape(n, -1).mean(1)
            error = 2.6 * float(of_chain.std()) / n**0.5
            found |= _banded(f"configurational_temperature.{name}", float(of_chain.mean()), T - error, T + error)
        return found

    def effective(self, now) -> dict[str, float]:
        """The least effective sample size of a few components, of at most 2000 of the draws of each chain."""
        if now - self.counted >= OFTEN:
            self.counted, values = now, self.kept()
            if values.shape[1] >= 100:
                from ..results.mixing import effective_sample_size  # imports arviz
                from ..results.draws import Draws

                every = -(-values.shape[1] // 2000)
                some = (
                    values[self.chains.alive.to(values.device)].flatten(2)[:, ::every, :SHOWN]
                    if values.dim() > 2
                    else values[:, ::every]
                )
                self.ess = (
                    {"ess": float(effective_sample_size(Draws({"theta": some}, info={}), "theta").min())}
                    if len(some)
                    else {}
                )
        return self.ess


def _banded(name, value, low, high):
    return {name: value, f"{name}.low": low, f"{name}.high": high}
