"""The scorecard of the checks: which layer kills which mutant, and how often a right sampler fails.

python tests/scorecard.py --out out/scorecard
"""

import argparse
import json
import statistics
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import torch
from mutation import DETERMINISTIC, Mutant, mutants
from scipy.stats import kstest, norm
from unsound import Unsound, sound_recipes, unsound_recipes

from samplers.results.bar import Bar
from samplers.testing.cases import CASES
from samplers.testing.layers import LAYERS, non_gaussian, stationary_start
from samplers.testing.random_calls import called, inputs, worst
from samplers.testing.subject import subject_of

STOCHASTIC = (stationary_start, non_gaussian)
EQUIVALENT = "it computes the same numbers"


@dataclass(frozen=True)
class Row:
    """A mutant with the seconds in which each layer killed it, None if not; `reason`: why it survived all layers."""

    sampler: str
    kind: str
    mistake: str
    seconds: dict[str, float | None]
    reason: str | None = None

    @property
    def killed(self):
        """Whether a layer killed the mutant."""
        return self.killed_by(self.seconds)

    def killed_by(self, layers):
        """Whether one of the given layers killed the mutant."""
        return any(self.seconds[layer] is not None for layer in layers)

    def to_dict(self):
        """The row as plain data."""
        row: dict[str, Any] = {"sampler": self.sampler, "kind": self.kind, "mistake": self.mistake}
        row["killed"] = self.seconds
        return row if self.reason is None else {**row, "reason": self.reason}


def judged(name):
    """The rows of all mutants of a stock sampler."""
    torch.set_num_threads(1)
    recipe = CASES[name].recipe
    wrong: list[Mutant | Unsound] = [*mutants(replace(subject_of(recipe), chains=4000)), *unsound_recipes(recipe)]
    return [_judged(name, mutant) for mutant in wrong]


def refused(name):
    """The sampler and the changes that leave it right, and that the certificate refuses, with the number of all."""
    torch.set_num_threads(1)
    right = list(sound_recipes(CASES[name].recipe))
    return [f"{name}: {one.mistake}" for one in right if one.is_seen], len(right)


def _judged(name, mutant):
    row = Row(name, mutant.kind, mutant.mistake, {layer: mutant.killing_time(layer) for layer in LAYERS})
    if row.killed:
        return row
    equivalent = isinstance(mutant, Mutant) and is_equivalent(mutant)
    return replace(row, reason=EQUIVALENT if equivalent else "unknown")


def is_equivalent(mutant):
    """Whether the mutant and the right step compute the same numbers on random inputs."""
    right, wrong = mutant.subject.right.live, mutant.subject.live
    shapes: tuple[tuple[int, ...], ...] = ((), (3,)) if right.recipe.target_is_vector else ((),)
    return all(
        worst(called(wrong, *at), called(right, *at)) <= 1e-14
        for at in (inputs(right, 64, shape, seed=seed) for shape in shapes for seed in range(3))
    )


def alarms(seed, names):
    """Value, verdict and name of each stochastic statistic of a right sampler, reseeded, at a tenth of the chains."""
    torch.set_num_threads(1)
    one = replace(subject_of(CASES[names[seed % len(names)]].recipe), seed=seed, chains=2000)
    return [(r.value, r.ok, f"{r.layer}: {r.statistic}") for layer in STOCHASTIC for r in layer(one)]


def scorecard(names=None, runs=1000, processes=2):
    """The parts of the scorecard: rows of mutants, false alarms of right samplers, and refusals of right recipes."""
    names = tuple(names or CASES)
    with get_context("spawn").Pool(processes) if processes > 1 else ThreadPool(1) as pool:
        bar = Bar("mutants", len(names), unit="sampler", of=pool.imap_unordered(judged, names))
        rows = [row for of_one in bar for row in of_one]
        lawful = tuple(name for name in names if not subject_of(CASES[name].recipe).out_of_reach)
        reseeded = pool.imap_unordered(partial(alarms, names=lawful), range(runs), chunksize=8)
        statistics_of_all = [r for of_one in Bar("reseeded runs", runs, unit="run", of=reseeded) for r in of_one]
        of_right, numbers = zip(*pool.imap_unordered(refused, names), strict=True)
    refusals = {"right recipes": sum(numbers), "refused": [change for own in of_right for change in own]}
    return rows, _counts(runs, statistics_of_all), refusals


def _counts(runs, results):
    """Counts of false alarms by statistic, and a test of whether the correlations' p-values are uniform."""
    failed = Counter(name for _, ok, name in results if not ok)
    # the non-Gaussian layer repeats the noise of the stationary start
    scores = [value for value, _, name in results if "correlation" in name and "stationary" in name]
    p_values = [2 * norm.sf(score) for score in scores]
    return {
        "runs": runs,
        "comparisons": len(results),
        "false alarms": sum(failed.values()),
        "p-values": len(p_values),
        "uniform with p": float(kstest(p_values, "uniform").pvalue),
        "failed": dict(failed),
    }


def summary(rows, counts, refusals):
    """The scorecard as markdown."""
    survivors = [row for row in rows if not row.killed]
    equivalent = sum(row.reason == EQUIVALENT for row in survivors)
    wrong = len(rows) - equivalent
    killed = len(rows) - len(survivors)
    by_formulas_and_figures = sum(row.killed_by(DETERMINISTIC) for row in rows)
    lines = [
        "# Scorecard",
        "",
        f"- {len(rows)} mutants, {equivalent} of which compute the same numbers as the right step",
        f"- {killed / wrong:.2%} of the others are killed, "
        f"{by_formulas_and_figures / wrong:.2%} by the deterministic layers",
        f"- median time to kill {_median_time(rows):.3f} s",
        f"- {counts['false alarms']} false alarms in {counts['runs']} reseeded runs of the stochastic layers "
        f"({counts['comparisons']} comparisons); {counts['p-values']} p-values, "
        f"uniform with p = {counts['uniform with p']:.2g}",
        f"- {len(refusals['refused'])} of {refusals['right recipes']} right recipes refused by the certificate",
        "",
        *_table(rows, "sampler"),
        "",
        *_table(rows, "kind"),
        "",
        "Survivors:",
        "",
        *(f"- {row.sampler}: {row.mistake} ({row.reason})" for row in survivors),
        *(f"- refused, and right: {change}" for change in refusals["refused"]),
        "",
    ]
    return "\n".join(lines)


def _median_time(rows):
    """The median over mutants of the seconds of the first layer that kills."""
    return statistics.median(
        next(seconds for seconds in row.seconds.values() if seconds is not None) for row in rows if row.killed
    )


def _table(rows, by):
    """Yields lines of a table by sampler, or by kind: numbers of mutants, of killed ones, and of kills by layer."""
    yield f"| {by} | mutants | killed | " + " | ".join(LAYERS) + " |"
    yield "|---" * (3 + len(LAYERS)) + "|"
    for name in dict.fromkeys(getattr(row, by) for row in rows):
        own = [row for row in rows if getattr(row, by) == name]
        counts = [len(own), sum(row.killed for row in own)]
        counts += [sum(row.killed_by([layer]) for row in own) for layer in LAYERS]
        yield f"| {name} | {' | '.join(map(str, counts))} |"


def main(argv=None):
    """Writes scorecard.md and scorecard.json into a folder, and prints scorecard.md."""
    parser = argparse.ArgumentParser(description="The scorecard of the checks: which layer kills which mutant.")
    parser.add_argument("--out", type=Path, default=Path("out/scorecard"), help="folder")
    parser.add_argument("--runs", type=int, default=1000, help="reseeded runs of the stochastic layers")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("samplers", nargs="*", help="names of stock samplers, else all")
    options = parser.parse_args(argv)
    rows, counts, refusals = scorecard(options.samplers, options.runs, options.processes)
    text = summary(rows, counts, refusals)
    options.out.mkdir(parents=True, exist_ok=True)
    parts = {"mutants": [row.to_dict() for row in rows], "alarms": counts, "refusals": refusals}
    (options.out / "scorecard.json").write_text(json.dumps(parts, indent=1))
    (options.out / "scorecard.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
