"""The classifier of digits.py, trained with the one file that `recipe emit NAME -o FILE` writes, which needs torch alone.

The file is emitted into --out, imported by its path, and its Optimizer put into the loop of digits.py: the draws are from the
same exp(-U), with other noise.
"""

import argparse
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from digits import DECAY, HEAD, TRAIN, Scores, data, line, loader, logits_of, network, verdict
from samplers import Predictive
from samplers.cli import main as recipe_command

SETTINGS = {"sghmc": {"lr": 0.03, "momentum": 0.9}, "atmc": {"lr": 0.03, "momentum": 0.9}, "psgld-same-step": {"lr": 2e-3}}


def emitted(name, folder):
    """The module that `recipe emit` writes."""
    path = folder/f"{name.replace('-', '_')}.py"
    if recipe_command(["emit", name, "-o", str(path)]):
        sys.exit(2)
    spec = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def train(model, optimizer, batches, images, epochs):
    """The probabilities of `images` by the last weights, and by the average of the draws: one per epoch of the second half."""
    predictive = Predictive()
    for epoch in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        if epoch >= epochs/2:
            predictive.add(logits_of(model, images))
    return logits_of(model, images).double().softmax(-1), predictive.probabilities


def main(argv=None) -> dict:
    """Run the example; returns the Scores of the sampler, by "last" and "average"."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sampler", choices=SETTINGS, default="sghmc", help="default sghmc")
    parser.add_argument("--epochs", type=int, default=400, help="default 400")
    parser.add_argument("--seed", type=int, default=0, help="of start, order and noise, default 0")
    parser.add_argument("--out", type=Path, default=Path("out/digits_emitted"), help="folder for the emitted file")
    parser.add_argument("--quick", action="store_true", help="60 epochs: seconds")
    options = parser.parse_args(argv)
    if options.epochs < 2:
        parser.error("argument --epochs: at least 2")
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)                          # the tensors are small: threads would wait for each other
    started = time.monotonic()

    train_set, (test, labels), permuted = data()
    model = network(options.seed)
    optimizer = emitted(options.sampler, options.out).Optimizer(model.parameters(), num_data=TRAIN, weight_decay=DECAY,
                                                                seed=options.seed, **SETTINGS[options.sampler])
    last, average = train(model, optimizer, loader(train_set, options.seed), torch.cat([test, permuted]),
                          60 if options.quick else options.epochs)
    found = {"last": Scores.of(last, labels), "average": Scores.of(average, labels)}
    print(HEAD, *(line(options.sampler, "1", kind, scores) for kind, scores in found.items()), "",
          verdict({options.sampler: found}), f"{time.monotonic() - started:.0f} s in all", sep="\n")
    return found


if __name__ == "__main__":
    main()
