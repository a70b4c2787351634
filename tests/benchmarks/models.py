"""Models as people write them: what `samplers.tune` and its HMC are worth by default, beside the NUTS of NumPyro.

    python tests/benchmarks/models.py --out out/models.json
    python tests/benchmarks/models.py --numpyro PYTHON      # an interpreter that has numpyro, in its own environment

A row has the gradients and the processor's seconds of tuning; the least effective sample sizes of bulk and tails over
all numbers, a second with tuning counted, and of the bulk a thousand gradients of the draws; the worst R-hat, divergent
proposals, and what the report says. NUTS runs four chains with its defaults, each model right after ours. Seconds are
the processor's, of one thread, which other programs do not take; `wall, s` are those of a clock. The compilation of JAX
has its own seconds, and counts in `bulk a second, compiled`. `taskset -c 0` before the command keeps both on one core.

With NumPyro there are `z`, the largest differences of a mean or a mean square from a reference, in standard errors of
both: of so many numbers, `numbers`, it should be near `largest of normals`. The reference are the draws of NUTS, or
`--reference` more of a chain, with another seed and an acceptance of 0.95; for the centred eight schools those of the
non-centred ones. What NUTS has done once stays in `--folder`, and is not done again.
"""

import argparse
import json
import os
import subprocess
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy
import torch
from posteriors import POSTERIORS, Posterior, Values
from scipy.stats import norm

import samplers
from samplers.results.statistics import sample_size_of_mean, sample_size_of_ranks, sample_size_of_tails, split_r_hat

LEAST = 1e-12  # standard deviation of a number that varies
ALIKE = {"eight schools, centred": "eight schools"}  # whose reference has the variables, too
ONE_CORE = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false", "NPROC": "1"}


@dataclass(frozen=True)
class Run:
    """Draws by variable, `(chains, draws, *shape)`, with what they took; `said`: what else is known of them."""

    draws: Values
    tuning: tuple[int, float]  # gradients, seconds
    taken: tuple[int, float]  # by the draws
    said: dict[str, Any] = field(default_factory=dict)

    @property
    def numbers(self) -> torch.Tensor:
        """All numbers that vary, `(chains, draws, numbers)`, in the order of the names."""
        every = [
            self.draws[name].double().flatten(2) if self.draws[name].dim() > 2 else self.draws[name][..., None]
            for name in sorted(self.draws)
        ]
        x = torch.cat([one.double() for one in every], -1)
        return x[..., x.std((0, 1)) > LEAST]

    @property
    def row(self) -> dict[str, Any]:
        """What tuning cost, and what the draws are worth."""
        x = self.numbers
        bulk, tails = (float(f(x).min()) for f in (sample_size_of_ranks, sample_size_of_tails))
        seconds = self.tuning[1] + self.taken[1]
        compiled = seconds + self.said.get("compilation, s", 0.0)
        return {
            "tuning, gradients": self.tuning[0],
            "tuning, s": self.tuning[1],
            "gradients": self.taken[0],
            "s": self.taken[1],
            "bulk": bulk,
            "tails": tails,
            "bulk a second": bulk / seconds,
            "bulk a second, compiled": bulk / compiled,
            "tails a second": tails / seconds,
            "bulk a thousand gradients": 1e3 * bulk / self.taken[0],
            "R-hat": float(split_r_hat(x).max()),
            **self.said,
        }


def of_ours(posterior: Posterior, chains: int, steps: int, seed: int) -> Run:
    """Tunes and runs HMC."""
    tune, sample = samplers.tune, samplers.sample  # imported before the clock starts, as NumPyro is
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", RuntimeWarning)
        clock, began = time.perf_counter(), time.process_time()
        settings = tune("hmc", posterior.model, chains=chains, seed=seed, progress=False)
        middle = time.process_time()
        run = dict(steps=steps, warmup=steps // 5, seed=seed + 1, progress=False)
        draws = sample("hmc", posterior.model, **run, **settings.arguments)
        ended, wall = time.process_time(), time.perf_counter() - clock
    report = draws.report()
    gradients = draws.info["steps"] * settings.arguments["metropolis"].repeat * chains
    said = {
        "chains": chains,
        "wall, s": wall,
        "divergences": sum(draws.info["divergences"]["of_chains"]),
        "verdict": report.verdict,
        "failed": [str(one) for one in report.wrong],
        "warnings": [str(one.message) for one in heard if issubclass(one.category, RuntimeWarning)],
    }
    return Run(dict(draws), (settings.reasons["gradients"], middle - began), (gradients, ended - middle), said)


def of_nuts(python: str, name: str, folder: Path, **options: Any) -> Run:
    """The same of NumPyro's NUTS, by a process of another interpreter; `options` of `numpyro_models.py`."""
    draws = folder / f"{name} {' '.join(f'{key}={value}' for key, value in options.items())}.npz"
    said = draws.with_suffix(".json")
    if not said.exists():
        folder.mkdir(parents=True, exist_ok=True)
        data = folder / "data.npz"
        numpy.savez(data, **{key: x.numpy() for key, x in POSTERIORS[name]().data.items()})
        command = [python, str(Path(__file__).with_name("numpyro_models.py")), name, str(data), str(draws)]
        command += [f"--{key}={value}" for key, value in options.items()]
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | ONE_CORE, check=True)
        said.write_text(done.stdout.splitlines()[-1])
    row = json.loads(said.read_text())
    tuning, taken = (row.pop("tuning, gradients"), row.pop("tuning, s")), (row.pop("gradients"), row.pop("s"))
    return Run({key: torch.tensor(x) for key, x in numpy.load(draws).items()}, tuning, taken, row)


def moments(run: Run) -> tuple[torch.Tensor, torch.Tensor]:
    """The means of every number and of its square, and their standard errors."""
    x = torch.cat([run.numbers, run.numbers.square()], -1)
    return x.mean((0, 1)), x.std((0, 1)) / sample_size_of_mean(x).sqrt()


def differences(run: Run, reference: Run) -> dict[str, float]:
    """The differences of a run from a reference in standard errors of both."""
    names = run.draws.keys() & reference.draws.keys()
    one, other = (Run({name: x.draws[name] for name in names}, x.tuning, x.taken) for x in (run, reference))
    (own, own_error), (mean, error) = moments(one), moments(other)
    z = (own - mean).abs() / (own_error.square() + error.square()).sqrt()
    return {"z": float(z.max()), "numbers": len(z), "largest of normals": float(norm.isf(0.25 / len(z)))}


def compared(name: str, options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """The rows of one model, by sampler."""
    ours = of_ours(POSTERIORS[name](), options.chains, options.steps, options.seed)
    if options.numpyro is None:
        return {"ours": ours.row}
    nuts = of_nuts(options.numpyro, name, options.folder, seed=options.seed)
    rows = {"ours": ours.row, "NUTS": nuts.row}
    alike = ALIKE.get(name, name)
    if options.reference:
        long = dict(seed=options.seed + 1000, target=0.95, number=options.reference)
        reference = of_nuts(options.numpyro, alike, options.folder, **long)
        rows["NUTS"] |= differences(nuts, reference)
    else:
        reference = of_nuts(options.numpyro, alike, options.folder, seed=options.seed)
    rows["ours"] |= differences(ours, reference)
    return rows


COLUMNS = {
    "bulk a second": ".3g",
    "bulk a second, compiled": ".3g",
    "tails a second": ".3g",
    "bulk a thousand gradients": ".3g",
    "tuning, gradients": ".0f",
    "divergences": "d",
    "R-hat": ".3f",
}


def table(rows: dict[str, dict[str, dict[str, Any]]]) -> str:
    """The rows in Markdown: ours, and after a stroke those of NUTS."""
    lines = [["model", *COLUMNS, "largest z"], ["---"] * (len(COLUMNS) + 2)]
    for name, both in rows.items():
        cells = [" / ".join(f"{row[what]:{form}}" for row in both.values()) for what, form in COLUMNS.items()]
        z = "{z:.1f} of {numbers}".format(**both["ours"]) if "z" in both["ours"] else ""
        lines.append([name, *cells, z])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(argv: list[str] | None = None) -> dict[str, dict[str, Any]]:
    """Tunes and runs all of them; returns rows by model and sampler."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chains", type=int, default=64, help="of ours, all in one call of U")
    parser.add_argument("--steps", type=int, default=400, help="of each of our chains")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--numpyro", metavar="PYTHON", help="compare with NUTS of NumPyro, which this interpreter has")
    parser.add_argument("--reference", type=int, default=0, help="draws of a chain of a long reference")
    parser.add_argument("--folder", type=Path, default=Path("out/models"), help="for what NumPyro has drawn")
    parser.add_argument("--only", nargs="+", choices=POSTERIORS, default=[*POSTERIORS], metavar="MODEL")
    parser.add_argument("--out", type=Path, help="file for the rows")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)  # of what Pyro makes by itself
    rows = json.loads(options.out.read_text()) if options.out is not None and options.out.exists() else {}
    for name in options.only:
        rows[name] = compared(name, options)
        for which, row in rows[name].items():
            print(name, which, {key: round(x, 3) if isinstance(x, float) else x for key, x in row.items()}, flush=True)
        if options.out is not None:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(table(rows))
    return rows


if __name__ == "__main__":
    main()
