"""Speed, as ratios from one interleaved run: what a user calls, kernels alone, torch, and other libraries.

    python tests/benchmarks/bench.py --out out/bench.json

Every round runs every contender once, so that a busy machine slows all alike. One thread is timed by the processor's
time, two by the clock; chains by the processor's time, since jax takes what threads it likes. Beside a figure stands
what it takes at least, where that is known: its bytes at the speed of a copy, its noise in the cache, its gradient
alone. Peers that cannot be used are named and left out. A picture of all tables lies beside the numbers.
"""

import argparse
import importlib.metadata
import json
import platform
import time
import warnings
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import torch
from speed import parameters, picture, regression, trajectories
from speed.timing import MISSING, PEERS, Subject

from integrators.kernels import native

OURS = (*parameters.SAMPLERS, *trajectories.RECIPES)


def subjects(options: argparse.Namespace) -> Iterator[Subject]:
    """All that is timed, one after another: contenders are made when their turn comes."""
    cpu = time.process_time
    random = torch.Generator().manual_seed(0)
    number = options.parameters
    ends = torch.randint(1, number, (160,), generator=random).unique().tolist()
    sizes = [b - a for a, b in zip([0, *ends], [*ends, number])]
    small = [int(n) for n in torch.randint(10, 500, (160,), generator=random)]
    rounds = options.rounds
    for threads, clock in ((1, cpu), (2, time.perf_counter)):
        torch.set_num_threads(threads)
        title = f"one step, {number:,} parameters in {len(sizes)} tensors, {threads} thread(s), per parameter"
        yield Subject(title, parameters.parameters(sizes, threads == 1), "normal_", clock, rounds)
    torch.set_num_threads(1)
    title = "one step, 160 tensors of 10 to 500 parameters, 1 thread, per step"
    yield Subject(title, parameters.small(small), "sghmc", cpu, 20 * rounds)
    title = "one iteration of a 784-400-400-10 network, batch 100, 1 thread, per iteration"
    loops = parameters.training(3 if options.quick else 50)
    yield Subject(title, loops, "torch.optim.SGD(momentum)", cpu, 2 * rounds)
    for title, contenders in (*trajectories.chains(options.quick), *regression.regression(options.quick)):
        yield Subject(f"{title}, per chain and step", contenders, "sgld", cpu, rounds)
    title = "logistic regression as a torch function, one run of 300,000 steps, compilation included, per step"
    yield Subject(title, regression.long(options.quick), "sgld", cpu, 2)


def machine() -> dict:
    """Where and with what it was timed."""
    model = next((part for part in native.processor().split("; ") if part.startswith("model name")), platform.machine())
    return {
        "date": str(date.today()),
        "processor": model.partition(": ")[2] or model,
        "compiler": getattr(native.compiler(), "version", "none"),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", *PEERS) if name not in MISSING},
        "left out": MISSING,
    }


def main(argv=None):
    """Run all benchmarks, print their tables, and write them as JSON and as a picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--only", default="", help="subjects whose titles have this in them")
    parser.add_argument("--quick", action="store_true", help="small sizes: whether all of it runs")
    options = parser.parse_args(argv)
    if options.quick:
        options.parameters, options.rounds = 100_000, 2
    warnings.simplefilter("ignore", FutureWarning)  # of peers
    for name, reason in MISSING.items():
        print(f"left out: {name}, {reason}")
    began = time.monotonic()
    tables = {}
    for subject in subjects(options):
        if options.only in subject.title:
            print(f"\n{subject.measure()}", flush=True)
            tables[subject.title] = subject.rows
    seconds = round(time.monotonic() - began)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({**machine(), "seconds": seconds, "tables": tables}, indent=1))
    picture.draw(tables, OURS, options.out.with_suffix(".png"))
    print(f"\n{seconds} s; {options.out}, {options.out.with_suffix('.png')}")


if __name__ == "__main__":
    main()
