"""The experiments of the five papers whose samplers come with the library, beside the numbers that they print.

    python examples/papers/run.py --data FOLDER                       # all of them: hours, and it goes on where it was
    python examples/papers/run.py --data FOLDER psgld-a9a --quick     # one of them, to see that it works
    python examples/papers/run.py --data FOLDER --jobs 2              # two at a time; of one experiment, two results

Step sizes and the like are the paper's where it prints them, else chosen on validation data that is a part of the
training data; no test set is looked at before the end. The table says what a paper claims, what it prints, what came
out with the spread over seeds, the verdict that `verdicts` gives of it, and why. The tables of all experiments that
have been run are in table.md of --out, the pictures beside the results.
"""

import argparse
import signal
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import atmc_batchnorm
import atmc_cifar
import atmc_cycles
import atmc_order
import atmc_thermostats
import coefficients
import costs
import isgd_baselines
import isgd_cifar
import isgd_gaussian
import isgd_lenet
import isgd_momentum
import isgd_uci
import psgld_a9a
import psgld_australian
import psgld_cnn
import psgld_gamma
import psgld_gaussian
import psgld_mnist
import santa_batches
import santa_double_well
import santa_mnist
import santa_music
import santa_wide
import spike_augmented
import spike_classification
import spike_networks
import spike_regression
import spike_stability
import temperatures
import torch
from study import Experiment, Scale, Study, check_data, table

from recipe.arguments import integer
from recipe.errors import RecipeError, did_you_mean

MODULES = (
    psgld_gaussian,
    psgld_gamma,
    psgld_australian,
    psgld_a9a,
    psgld_mnist,
    psgld_cnn,
    spike_regression,
    spike_classification,
    spike_networks,
    spike_augmented,
    spike_stability,
    isgd_gaussian,
    isgd_momentum,
    isgd_uci,
    isgd_lenet,
    isgd_baselines,
    isgd_cifar,
    santa_double_well,
    santa_mnist,
    santa_wide,
    santa_music,
    santa_batches,
    atmc_thermostats,
    atmc_order,
    atmc_cycles,
    atmc_cifar,
    atmc_batchnorm,
    temperatures,
    costs,
    coefficients,
)
TABLE = "table.md"
EXPERIMENTS: dict[str, Experiment] = {module.EXPERIMENT.name: module.EXPERIMENT for module in MODULES}


def selected(names: list[str]) -> list[Experiment]:
    """The experiments of these names, by default all."""
    for name in names:
        if name not in EXPERIMENTS:
            raise RecipeError(name, "there is no such experiment", do=did_you_mean(name, EXPERIMENTS, most=3))
    return [EXPERIMENTS[name] for name in names or EXPERIMENTS]


def outcome(name: str, data: Path | None, out: Path, scale: Scale, jobs: int = 1) -> str:
    """The table of an experiment, which is written beside its results; so many of them are computed at a time."""
    experiment = EXPERIMENTS[name]
    print(f"{name}: {experiment.paper}", flush=True)
    with processes(jobs) as pool:
        study = Study(out / name, data, scale, log=lambda line: print(f"{name} {line}", flush=True), pool=pool)
        claims = experiment.claims(study)
        if scale is Scale.QUICK:
            claims = [replace(claim, reduced="next to nothing is computed") for claim in claims]
        text = table(experiment, claims, study.seconds)
    study.write(TABLE, text)
    return text


def outcomes(names: list[str], jobs: int, *where: Any) -> Iterator[str]:
    """The tables of experiments, as they come: so many at a time, or so many results of one where there are fewer."""
    abreast = min(jobs, len(names))
    with processes(abreast, max_tasks_per_child=1) as pool:
        if pool is None:
            yield from (outcome(name, *where, jobs) for name in names)
            return
        for future in as_completed([pool.submit(outcome, name, *where, jobs // abreast) for name in names]):
            yield future.result()


@contextmanager
def processes(number: int, **options: Any) -> Iterator[ProcessPoolExecutor | None]:
    """So many processes beside this one; none for one. What has not begun does not where the block is left early."""
    if number == 1:
        yield None
        return
    with ProcessPoolExecutor(number, get_context("spawn"), begin, **options) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def begin() -> None:
    """A process of a pool ends without a word at Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    set_torch()


def set_torch() -> None:
    """One thread, as experiments side by side use the cores better; subnormal numbers are 0.

    The second moments of Adam become subnormal where a pixel is never on, and its steps then take twice as long.
    """
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def run(names: list[str], data: Path | None, out: Path, scale: Scale, jobs: int = 1) -> str:
    """The tables of experiments; all that are known are one file. None begins where data of any cannot be read."""
    experiments = selected(names)
    check_data(experiments, data, scale)
    texts = []
    for text in outcomes([experiment.name for experiment in experiments], jobs, data, out, scale):
        texts.append(text)
        known = [path for name in EXPERIMENTS if (path := out / name / scale.value / TABLE).is_file()]
        (out / TABLE).write_text("\n".join(path.read_text() for path in known))
    return "\n".join(texts)


def main(argv: list[str] | None = None) -> int:
    """Run the experiments; the exit code is 2 for wrong use."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXPERIMENTS)}; by default all")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("out/papers"), help="folder of results, pictures and table")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="experiments or results at a time, default 1")
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", action="store_true", help="next to nothing of each, whose verdicts mean nothing")
    sizes.add_argument("--full", action="store_true", help="all that the papers have; some want a GPU")
    options = parser.parse_args(argv)
    scale = Scale.QUICK if options.quick else Scale.FULL if options.full else Scale.REDUCED
    try:
        integer("--jobs", "jobs", options.jobs, least=1, what=f"got {options.jobs}", do="Pass a number of processes.")
        print(run(options.names, options.data, options.out, scale, options.jobs))
    except (RecipeError, OSError) as error:
        print(f"papers: {error}", file=sys.stderr)
        return 2
    except (KeyboardInterrupt, BrokenProcessPool):
        print(f"papers: interrupted; the same command goes on from the results in {options.out}", file=sys.stderr)
        return 130
    return 0


def interrupt(number: int, frame: Any) -> None:
    """Ctrl-C ends a result unfinished; the handler of samplers.sample would end its run early, and that be kept."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGINT, interrupt)
    set_torch()
    sys.exit(main())
