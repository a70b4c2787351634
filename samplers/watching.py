"""A run as one sees it: a progress bar with rate, time left and temperatures, and scalars for a callback."""

import time
from collections.abc import Callable

import torch
from sympy import lambdify
from tqdm import tqdm

from recipe.marginal import eliminate_gaussians
from recipe.symbols import Block

from .chains import Chains

EVERY = 1.0  # seconds between two looks


class Progress:
    """The progress bar of a run of `total` steps; `watch`, if given, is called with a dict of scalars about once a second.

    step, steps_per_second, lost chains, and for each block of momenta its kinetic temperature, the mean of p^2/m over all
    chains, with the band `low` to `high` that holds 99 % of the time at the run's temperature.
    """

    def __init__(self, total: int, name: str, shown: bool, watch: Callable | None, chains: Chains, temperature: Callable):
        self.total, self.watch, self.chains, self.temperature = total, watch, chains, temperature
        self.bar = tqdm(total=total, disable=not shown, unit="step", desc=name)
        self.looks = shown and not self.bar.disable or watch is not None
        self.momenta = _precisions(chains) if self.looks else {}
        self.last, self.done, self.since = time.monotonic(), 0, 0

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
        scalars = {"step": self.done, "steps_per_second": (self.done - self.since) / max(now - self.last, 1e-9), "lost": len(self.chains.diverged)}
        scalars |= self.temperatures()
        self.last, self.since = now, self.done
        kinetic = [f"{v:.3g}" for k, v in scalars.items() if k.startswith("kinetic") and not k.endswith(("low", "high"))]
        self.bar.set_postfix_str(f"T_kin {', '.join(kinetic)}" if kinetic else "")
        if self.watch is not None:
            self.watch(scalars)

    def temperatures(self) -> dict[str, float]:
        """The kinetic temperature of each block of momenta, with its band."""
        from .diagnostics import kinetic_temperature  # imports scipy.stats

        found, T = {}, float(self.temperature(max(self.done - 1, 0)))
        for name, mass in self.momenta.items():
            p = self.chains.state_now()[name][self.chains.alive]
            if p.numel():
                t = kinetic_temperature(p, mass, temperature=T)
                found |= {f"kinetic_temperature.{name}": t.value, f"kinetic_temperature.{name}.low": t.low, f"kinetic_temperature.{name}.high": t.high}
        return found


def _precisions(chains) -> dict[str, float | torch.Tensor]:
    """The masses of the momenta that are N(0, mass T) whatever the other blocks are."""
    recipe, found = chains.step.recipe, {}
    for law in eliminate_gaussians(recipe.H, recipe.momenta)[0]:
        given = sorted(law.precision.free_symbols, key=str)
        if law.mean != 0 or any(isinstance(s, Block) for s in given) or law.block.name in chains.step.frozen:
            continue
        values = [chains.parameters.get(s.name, getattr(s, "default", None)) for s in given]
        if None not in [v if not torch.is_tensor(v) else 0 for v in values]:
            found[law.block.name] = 1 / lambdify(given, law.precision, "math")(*values) if given else 1 / float(law.precision)
    return found
