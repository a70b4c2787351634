"""Interleaved timing: contenders in rounds, ratios within a round, limits, and the libraries that are there."""

import importlib
import statistics
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

PEERS = ("posteriors", "jax", "blackjax", "sgmcmcjax")


def _reason(name):
    """Why a peer cannot be used; None where it can."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module("sgmcmcjax.samplers" if name == "sgmcmcjax" else name)
    except ImportError as error:
        return "not installed" if isinstance(error, ModuleNotFoundError) else f"fails: {error}".split(" (")[0]
    return None


MISSING = {name: reason for name in PEERS if (reason := _reason(name))}


@dataclass(frozen=True)
class Contender:
    """What is timed: `run(round)` does `units` of work; `limit(medians)` is what a unit takes at least, in ns."""

    run: Callable
    units: float
    limit: Callable | None = None


@dataclass(frozen=True)
class Subject:
    """Contenders side by side; ratios are to `base`."""

    title: str
    contenders: dict[str, Contender]
    base: str
    clock: Callable
    rounds: int
    rows: list = field(default_factory=list)

    def measure(self):
        """Time all; rows of medians in ns, of ratios to the base of the same round with their spread, and of limits."""
        seen = interleaved(self.contenders, self.rounds, self.clock)
        medians = {name: statistics.median(times) for name, times in seen.items()}
        for name, times in seen.items():
            ratios = sorted(t / b for t, b in zip(times, seen[self.base]))
            limit = self.contenders[name].limit
            self.rows.append(
                {
                    "name": name,
                    "ns": medians[name],
                    "ratio": statistics.median(ratios),
                    "from": ratios[len(ratios) // 10],
                    "to": ratios[-1 - len(ratios) // 10],
                    "limit": None if limit is None else limit(medians),
                }
            )
        return self

    def __str__(self):
        lines = [self.title, f"  {'':28}{'ns':>10}{'limit':>10}{'ratio to ' + self.base:>28}"]
        for r in self.rows:
            limit = f"{r['limit']:10.3g}" if r["limit"] else " " * 10
            spread = f"({r['from']:.3f} to {r['to']:.3f})"
            lines.append(f"  {r['name']:28}{r['ns']:10.3g}{limit}{r['ratio']:14.3f}  {spread}")
        return "\n".join(lines)


def interleaved(contenders: dict[str, Contender], rounds: int, clock) -> dict[str, list[float]]:
    """Nanoseconds per unit of every contender, round by round; the first round warms up."""
    seen = {name: [] for name in contenders}
    for k in range(rounds + 1):
        for name, contender in contenders.items():
            began = clock()
            contender.run(k)
            if k:
                seen[name].append((clock() - began) / contender.units * 1e9)
    return seen
