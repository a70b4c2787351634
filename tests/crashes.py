"""kill -9 at random moments of runs and training loops: each goes on from its folder and ends as one left alone.

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
from samplers.running.schedules import Polynomial

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
    "torch": dict(
        recipe=samplers.SGNHT, energy=by_hand, steps=300, warmup=50, thin=3, keep="xi", batch_size=10, backend="torch"
    ),
    "carried": dict(
        recipe=samplers.UnderdampedLangevin,
        energy=by_hand,
        steps=350,
        batch_size=10,
        step_size=Polynomial(0.02, 10, 0.3),
    ),
    "kernel": dict(
        recipe=samplers.SGNHT, energy=LOGISTIC, steps=75_000, warmup=100, thin=50, batch_size=10, backend="cpp"
    ),
}


def trained(folder=None, steps=200):
    """A training loop with all that has a state: the weights and predictions it ends with."""
    torch.manual_seed(0)
    X, y = data()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Tanh(), torch.nn.Linear(8, 2))
    weights = list(
        model.parameters()
    )  # dropout on purpose: of a list the optimizer does not know it, and does not warn
    optimizer = samplers.Optimizer(weights, samplers.ATMC, lr=0.05, momentum=0.9, num_data=30, weight_decay=0.01)
    parts = dict(
        model=model,
        optimizer=optimizer,
        schedule=torch.optim.lr_scheduler.StepLR(optimizer, 100),
        batches=samplers.Minibatches((X, y.long()), 10, seed=1),
        predictive=samplers.Predictive(),
    )
    checkpoint = samplers.Checkpoint(folder, every=0.02, **parts) if folder else None
    step = checkpoint.load().get("step", 0) if folder else 0
    while step < steps:
        for x, labels in parts["batches"]:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), labels).backward()
            optimizer.step()
            parts["schedule"].step()
            parts["predictive"].add(model(X).detach())
            step += 1
            if folder:
                checkpoint.save(step=step, now=step == steps)
            if step == steps:
                break
    return dict(model.named_parameters()) | {"probabilities": parts["predictive"].probabilities}


def ended(name, folder=None):
    """What a run ends with, in a folder or without one: its draws, or the weights of a training loop."""
    if name == "loop":
        return trained(folder)
    how = dict(RUNS[name])
    where = {} if folder is None else dict(checkpoint=samplers.checkpoints.Folder(folder, every=0.02))
    return samplers.sample(
        how.pop("recipe"),
        how.pop("energy"),
        init=torch.zeros(4),
        chains=3,
        data=data(),
        progress=False,
        **dict(step_size=0.02) | how | where,
    )


def _child(name, folder):
    torch.set_num_threads(1)
    ended(name, folder)
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
    context.set_forkserver_preload(
        [
            "torch._dynamo",
            "samplers",
            "samplers.running.sampling",
            "samplers.training.optimizer",
            "samplers.results.predictive",
            "scipy.special",
            __name__ if __name__ != "__main__" else "torch",
        ]
    )
    killed(names[0], folder / "first", 600, context)  # starts the server that others are forked from
    chance, result = random.Random(seed), {}
    for name in names:
        torch.set_num_threads(1)
        whole, died, runs = ended(name), 0, 0
        began = time.monotonic()
        killed(name, folder / f"{name}-alone", 600, context)
        length = time.monotonic() - began
        while died < kills:
            at, starts = folder / f"{name}-{runs}", 0
            while killed(
                name, at, chance.uniform(0.3, 1.1 + starts / 10) * length, context
            ):  # on a busy machine it may take longer
                starts += 1
                died += 1
            runs += 1
            again = ended(name, at)
            for block in whole:
                if not torch.equal(whole[block], again[block]):
                    raise AssertionError(f"{name}: {block} differs after {starts} kills")
            say(f"{name}: {died} killed, {runs} runs ended as an uninterrupted one")
        result[name] = (died, runs)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        crash([*RUNS, "loop"], -(-options.kills // (len(RUNS) + 1)), options.seed, Path(folder), print)


if __name__ == "__main__":
    main()
