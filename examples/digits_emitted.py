"""The classifier of digits.py, trained with the one file that `recipe emit NAME -o FILE` writes.

That file needs torch alone. It is emitted into --out, imported by its path, and its Optimizer put into the loop of
digits.py: the draws are from the same exp(-U), with other noise.
"""

import sys
import time
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import torch
from digits import DECAY, HEAD, TRAIN, Method, Scores, command_line, data, line, train, verdict

from samplers.cli import main as recipe_command

SETTINGS = {
    "sghmc": {"lr": 0.03, "momentum": 0.9},
    "atmc": {"lr": 0.03, "momentum": 0.9},
    "psgld-same-step": {"lr": 2e-3},
}


def emitted(name: str, folder: Path) -> ModuleType:
    """The module that `recipe emit` writes."""
    path = folder / f"{name.replace('-', '_')}.py"
    if recipe_command(["emit", name, "-o", str(path)]):
        sys.exit(2)
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(argv: list[str] | None = None) -> dict[str, Scores]:
    """Run the example; returns the Scores of the sampler, by "last" and "average"."""
    parser = command_line(__doc__, "out/digits_emitted")
    parser.add_argument("--sampler", choices=SETTINGS, default="sghmc", help="default sghmc")
    options = parser.parse_args(argv)
    if options.epochs < 2:
        parser.error("argument --epochs: at least 2")
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    started = time.monotonic()

    train_set, (test, labels), permuted = data()
    Optimizer = emitted(options.sampler, options.out).Optimizer
    optimizer = partial(Optimizer, num_data=TRAIN, weight_decay=DECAY, **SETTINGS[options.sampler])
    last, average = train(Method(optimizer), train_set, torch.cat([test, permuted]), options.epochs, options.seed)
    results = {"last": Scores.of(last, labels), "average": Scores.of(average, labels)}
    print(HEAD)
    for kind, scores in results.items():
        print(line(options.sampler, "1", kind, scores))
    print(f"\n{verdict({options.sampler: results})}\n{time.monotonic() - started:.0f} s in all")
    return results


if __name__ == "__main__":
    main()
