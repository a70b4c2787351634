"""The scorecard of the checks: which layer kills which mutant, and how often a right sampler fails.

python -m samplers.testing.scorecard --out out/scorecard
"""

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
from scipy.stats import kstest, norm
from tqdm import tqdm

from .arguments import called, inputs, worst
from .cases import CASES
from .layers import LAYERS, non_gaussian, stationary_start
from .mutation import DETERMINISTIC, Mutant, mutants
from .subject import subject_of

STOCHASTIC = (stationary_start, non_gaussian)


def judged(name: str) -> list[dict]:
    """Every mutant of a stock sampler: the seconds each layer took to kill it, None where it did not."""
    torch.set_num_threads(1)
    rows = []
    for mutant in mutants(replace(subject_of(CASES[name].recipe), chains=4000)):
        row = {
            "sampler": name,
            "mistake": mutant.mistake,
            "killed": {layer: mutant.killing_time(layer) for layer in LAYERS},
        }
        if not any(row["killed"].values()):
            row["reason"] = "it computes the same numbers" if is_equivalent(mutant) else "unknown"
        rows.append(row)
    return rows


def is_equivalent(mutant: Mutant) -> bool:
    """Whether the mutant and the right step compute the same numbers on random inputs."""
    right, wrong = replace(mutant.subject, wrong=None, alter=lambda step: step).live, mutant.subject.live
    shapes = ((), (3,)) if right.recipe.target_is_vector else ((),)
    return all(
        worst(called(wrong, *given), called(right, *given)) <= 1e-14
        for given in (inputs(right, 64, shape, seed=seed) for shape in shapes for seed in range(3))
    )


def alarms(seed: int, names: tuple[str, ...]) -> list[tuple[float, bool, str]]:
    """Statistics of the stochastic layers of one right sampler, reseeded, at a tenth of the chains: value, verdict, name."""
    torch.set_num_threads(1)
    one = replace(subject_of(CASES[names[seed % len(names)]].recipe), seed=seed, chains=2000)
    return [(r.value, r.ok, f"{r.layer}: {r.statistic}") for layer in STOCHASTIC for r in layer(one)]


def scorecard(names=None, runs: int = 1000, processes: int = 2) -> Iterator[tuple[str, object]]:
    """The parts of the scorecard, as they come: ("mutants", rows), then ("alarms", counts)."""
    names = tuple(names or CASES)
    with get_context("spawn").Pool(processes) as pool:
        found = tqdm(pool.imap_unordered(judged, names), total=len(names), desc="mutants", unit="sampler")
        yield "mutants", [row for rows in found for row in rows]
        lawful = tuple(n for n in names if not subject_of(CASES[n].recipe).out_of_reach)
        found = tqdm(
            pool.imap_unordered(partial(alarms, names=lawful), range(runs), chunksize=8),
            total=runs,
            desc="reseeded runs",
        )
        results = [r for scores in found for r in scores]
    failed = Counter(statistic for _, ok, statistic in results if not ok)
    # the non-Gaussian layer has the noise of the stationary start again
    scores = [2 * norm.sf(value) for value, _, name in results if "correlation" in name and "stationary" in name]
    yield (
        "alarms",
        {
            "runs": runs,
            "comparisons": len(results),
            "false alarms": sum(failed.values()),
            "p-values": len(scores),
            "uniform with p": float(kstest(scores, "uniform").pvalue),
            "failed": dict(failed),
        },
    )


def summary(rows: list[dict], counts: dict) -> str:
    """The scorecard as markdown."""
    alive = [r for r in rows if not any(r["killed"].values())]
    live = [r for r in alive if r["reason"] == "unknown"]
    meant = len(rows) - len(alive) + len(live)
    first = [next(v for v in r["killed"].values() if v is not None) for r in rows if r not in alive]
    exact = sum(any(r["killed"][layer] is not None for layer in DETERMINISTIC) for r in rows)
    table = ["| sampler | mutants | killed | " + " | ".join(LAYERS) + " |", "|---" * (3 + len(LAYERS)) + "|"]
    for name in dict.fromkeys(r["sampler"] for r in rows):
        own = [r for r in rows if r["sampler"] == name]
        per_layer = [sum(r["killed"][layer] is not None for r in own) for layer in LAYERS]
        table.append(
            f"| {name} | {len(own)} | {sum(any(r['killed'].values()) for r in own)} | {' | '.join(map(str, per_layer))} |"
        )
    return "\n".join(
        [
            "# Scorecard",
            "",
            f"- {len(rows)} mutants, {len(alive) - len(live)} of which compute the same numbers as the right step",
            f"- {(meant - len(live)) / meant:.2%} of the others are killed, {exact / meant:.2%} by the deterministic layers",
            f"- median time to kill {statistics.median(first):.3f} s",
            f"- {counts['false alarms']} false alarms in {counts['runs']} reseeded runs of the stochastic layers "
            f"({counts['comparisons']} comparisons); {counts['p-values']} p-values, uniform with p = {counts['uniform with p']:.2g}",
            "",
            *table,
            "",
            "Survivors:",
            "",
            *(f"- {r['sampler']}: {r['mistake']} ({r['reason']})" for r in alive),
            "",
        ]
    )


def main(argv=None) -> None:
    """Write scorecard.md and scorecard.json into a folder, and print the former."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/scorecard"), help="folder")
    parser.add_argument("--runs", type=int, default=1000, help="reseeded runs of the stochastic layers")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("samplers", nargs="*", help="names of stock samplers, else all")
    options = parser.parse_args(argv)
    parts = dict(scorecard(options.samplers, options.runs, options.processes))
    text = summary(parts["mutants"], parts["alarms"])
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "scorecard.json").write_text(json.dumps(parts, indent=1))
    (options.out / "scorecard.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
