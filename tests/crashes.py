"""kill -9 at random moments of sampling runs: every run goes on from its folder and ends with the draws of one that was left alone.

    python tests/crashes.py --kills 200
"""

import argparse
import multiprocessing
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import torch
from sympy import exp, log

import samplers
from recipe import Energy, data_total, datum, total, vector
from samplers.schedules import Polynomial

theta = vector("theta")
x, y = datum("x", per=theta), datum("y")
z = total(x * theta)
LOGISTIC = Energy(theta, U=data_total(log(1 + exp(z)) - y * z) + total(theta**2) / 2, data=(x, y))


def by_hand(theta, batch):
    z = batch[0] @ theta
    return 3 * (torch.nn.functional.softplus(z) - batch[1] * z).sum() + (theta**2).sum() / 2


def data():
    random = torch.Generator().manual_seed(0)
    return torch.randn(30, 4, generator=random), (torch.rand(30, generator=random) < 0.5).float()


RUNS = {
    "torch": dict(recipe=samplers.SGNHT, energy=by_hand, steps=600, warmup=100, thin=3, keep="xi", batch_size=10, backend="torch"),
    "carried": dict(recipe=samplers.UnderdampedLangevin, energy=by_hand, steps=700, batch_size=10, schedule=Polynomial(0.02, 10, 0.3)),
    "kernel": dict(recipe=samplers.SGNHT, energy=LOGISTIC, steps=150_000, warmup=100, thin=50, batch_size=10, backend="cpp"),
}


def sampled(name, folder=None):
    """The draws of a run, in a folder or without one."""
    how = dict(RUNS[name])
    where = {} if folder is None else dict(checkpoint=folder, checkpoint_every=0.02)
    return samplers.sample(how.pop("recipe"), how.pop("energy"), init=torch.zeros(4), chains=3, data=data(), progress=False, step_size=0.02,
                           **how | where)


def _child(name, folder):
    torch.set_num_threads(1)
    sampled(name, folder)
    os._exit(0)


def killed(name, folder, seconds, context) -> bool:
    """Run in a process of its own, killed after some seconds; whether it was still going."""
    process = context.Process(target=_child, args=(name, str(folder)))
    process.start()
    process.join(seconds)
    going = process.is_alive()
    if going:
        os.kill(process.pid, signal.SIGKILL)
    process.join()
    code = process.exitcode
    process.close()
    if not going and code:
        raise AssertionError(f"{name}: it ended with {code}")
    return going


def crash(names, kills: int, seed: int, folder: Path, say=lambda *_: None) -> dict:
    """Kill runs until so many have died; what happened, by name. Raises AssertionError for draws that differ."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "samplers", "samplers.sampling", "scipy.stats", __name__ if __name__ != "__main__" else "torch"])
    chance, found = random.Random(seed), {}
    for name in names:
        torch.set_num_threads(1)
        whole, died, ended = sampled(name), 0, 0
        for k in range(2):  # the first starts the server that others are forked from
            began = time.monotonic()
            killed(name, folder / f"{name}-alone-{k}", 600, context)
        length = time.monotonic() - began
        while died < kills:
            at, starts = folder / f"{name}-{ended}", 0
            while killed(name, at, chance.uniform(0.3, 1.1) * length, context):
                starts += 1
                died += 1
            ended += 1
            again = sampled(name, at)
            for block in whole:
                if not torch.equal(whole[block], again[block]):
                    raise AssertionError(f"{name}: the draws of {block} differ after {starts} kills")
            say(f"{name}: {died} killed, {ended} runs ended with the draws of an uninterrupted one")
        found[name] = (died, ended)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        crash(RUNS, -(-options.kills // len(RUNS)), options.seed, Path(folder), print)


if __name__ == "__main__":
    main()
