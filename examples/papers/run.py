"""The experiments of the five papers whose samplers come with the library, beside the numbers that they print.

    python examples/papers/run.py --data FOLDER                       # all of them: hours, and it goes on where it was
    python examples/papers/run.py --data FOLDER psgld-a9a --quick     # one of them, to see that it works

Step sizes and the like are the paper's where it prints them, else chosen on validation data that is a part of the
training data; no test set is looked at before the end. The table says what a paper claims, what it prints, what came
out with the spread over seeds, whether that is the same, and why where it is not. It is written to --out with the
pictures.
"""

import argparse
import sys
from pathlib import Path

import atmc_cycles
import atmc_order
import atmc_thermostats
import psgld_gaussian
import torch
from study import Experiment, Scale, Study, table

from recipe.errors import RecipeError, did_you_mean

EXPERIMENTS: dict[str, Experiment] = {
    room.EXPERIMENT.name: room.EXPERIMENT for room in (psgld_gaussian, atmc_thermostats, atmc_order, atmc_cycles)
}


def selected(names: list[str]) -> list[Experiment]:
    """The experiments of these names, by default all."""
    for name in names:
        if name not in EXPERIMENTS:
            raise RecipeError(name, "there is no such experiment", do=did_you_mean(name, EXPERIMENTS, most=3))
    return [EXPERIMENTS[name] for name in names or EXPERIMENTS]


def run(names: list[str], data: Path | None, out: Path, scale: Scale) -> str:
    """The table of the experiments, which are refused before the first where data are missing."""
    experiments = selected(names)
    for experiment in experiments:
        experiment.check_data(data)
    rows = []
    for experiment in experiments:
        print(f"{experiment.name}: {experiment.paper}", flush=True)
        study = Study(out / experiment.name, data, scale, log=lambda line: print(line, flush=True))
        rows.append((experiment, experiment.claims(study), study.seconds))
        text = table(rows)
        (out / "table.md").write_text(text)
    return text


def main(argv: list[str] | None = None) -> int:
    """Run the experiments; the exit code is 2 for wrong use."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(EXPERIMENTS)}; by default all")
    parser.add_argument("--data", type=Path, help="folder of the data sets")
    parser.add_argument("--out", type=Path, default=Path("out/papers"), help="folder of results, pictures and table")
    parser.add_argument("--quick", action="store_true", help="next to nothing of each, to see that it works")
    parser.add_argument("--full", action="store_true", help="all that the papers have; some want a GPU")
    options = parser.parse_args(argv)
    scale = Scale.QUICK if options.quick else Scale.FULL if options.full else Scale.REDUCED
    torch.set_num_threads(1)  # two runs of different experiments side by side use two cores better
    try:
        print(run(options.names, options.data, options.out, scale))
    except (RecipeError, OSError) as error:
        print("papers:", *str(error).split(), file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # the results so far are kept
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
