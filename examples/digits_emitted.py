"""The classifier of digits.py, trained with the one file that `recipe emit NAME -o FILE` writes.

That file needs torch alone. It is emitted into --out, imported by its path, and its Optimizer put into the loop of
digits.py, of one run: the draws are from the same exp(-U), with other noise.
"""

import sys
import time
from functools import partial
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import torch
from digits import DECAY, HEAD, QUICK, TRAIN, Method, Row, Scores, command_line, data, train

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


def main(argv: list[str] | None = None) -> list[Row]:
    """Run the example; returns the rows of the sampler, of its last weights and of the average."""
    parser = command_line(__doc__, "out/digits_emitted")
    parser.add_argument("--sampler", choices=SETTINGS, default="sghmc", help="default sghmc")
    options = parser.parse_args(argv)
    epochs = QUICK if options.quick else options.epochs
    if epochs < 2:
        parser.error("argument --epochs: at least 2")
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    started = time.monotonic()

    train_set, _, (test, labels), permuted = data()
    Optimizer = emitted(options.sampler, options.out).Optimizer
    settings = SETTINGS[options.sampler]
    lr = settings["lr"]
    method = Method(partial(Optimizer, num_data=TRAIN, weight_decay=DECAY, **settings), (lr,))
    kinds = zip(("last", "average"), train(method, lr, train_set, torch.cat([test, permuted]), epochs, options.seed))
    rows = [Row(options.sampler, "1", kind, lr, [Scores.of(of_run, labels) for of_run in p]) for kind, p in kinds]
    print(HEAD, *rows, f"{time.monotonic() - started:.0f} s in all", sep="\n")
    return rows


if __name__ == "__main__":
    main()
