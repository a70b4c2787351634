"""What a rank does in tests/test_distributed.py: runs under torchrun, and writes what it has found into a folder."""

import json
import sys
import warnings
from pathlib import Path

import torch

import samplers
from recipe import RecipeError
from samplers import distributed
from samplers.files import storage
from samplers.target.targets import TARGETS

BANANA, LADDER = TARGETS["banana"], samplers.Ladder(1, 2)
POINTS = torch.linspace(-1, 1, 14).reshape(7, 2)
RUNS = {
    "kernel": dict(
        recipe=samplers.SGNHT, energy=BANANA, init=POINTS, chains=7, steps=60, thin=2, keep="xi", backend="cpp"
    ),
    "torch": dict(
        recipe=samplers.UnderdampedLangevin,
        energy=lambda t, batch: ((batch - t.sum(0)) ** 2).sum() / 2,
        init=torch.zeros(3, 2),
        chains=6,
        data=torch.linspace(-1, 1, 80).reshape(40, 2),
        batch_size=4,
    ),
    "accepted": dict(
        recipe=samplers.HMC, energy=TARGETS["gaussian"], chains=5, metropolis=True, temperature=LADDER, step_size=1.2
    ),
    "lost": dict(recipe=samplers.SGLD, energy=BANANA, chains=64, steps=100, step_size=0.05, seed=3, backend="torch"),
}


def drawn(name, **more):
    how = dict(init=torch.zeros(2), steps=40, step_size=0.02, progress=False) | RUNS[name] | more
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return distributed.sample(how.pop("recipe"), how.pop("energy"), **how)


def trained(rank, ranks, steps=15, folder=None):
    """A regression on batches that the ranks divide between them, which goes on from the checkpoint in a folder."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    X = torch.randn(96, 5, dtype=torch.float64)
    optimizer = samplers.Optimizer(model.parameters(), samplers.SGNHT, lr=0.05, momentum=0.9, num_data=96)
    checkpoint = folder and samplers.Checkpoint(folder, model=model, optimizer=optimizer)
    for k in range(checkpoint.load().get("steps", 0) if folder else 0, steps):
        rows = torch.arange(k * 16, k * 16 + 16) % 96
        mine = rows[rank * 16 // ranks : (rank + 1) * 16 // ranks]
        optimizer.zero_grad()
        (model(X[mine]) - X[mine].sum(1, keepdim=True)).square().mean().backward()
        distributed.share_gradients(model.parameters())
        optimizer.step()
        if folder:
            checkpoint.save(steps=k + 1)
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def ensemble_of(members, epochs=3, folder=None):
    """The logits of an ensemble that has been trained on batches of its own, from the checkpoint in a folder."""
    X = torch.randn(48, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ensemble = samplers.Ensemble(lambda: torch.nn.Linear(5, 2).double(), members, seed=2)
    optimizer = samplers.Optimizer(ensemble.parameters(), samplers.SGNHT, lr=0.05, momentum=0.9, num_data=48)
    batches = samplers.Minibatches(X, 8, members=members)
    checkpoint = folder and samplers.Checkpoint(
        folder, every_rank=True, model=ensemble, optimizer=optimizer, batches=batches
    )
    for _ in range(checkpoint.load().get("epoch", 0) if folder else 0, epochs):
        for x in batches:
            optimizer.zero_grad()
            ensemble.loss(lambda f, x: (f - x[:, :2]).square().mean(), x, x).backward()
            optimizer.step()
        if folder:
            checkpoint.save(epoch=batches.epoch)
    return ensemble(X)


def main(folder):
    rank, ranks = distributed.begin()
    torch.set_num_threads(1)
    runs = {name: drawn(name) for name in RUNS}
    result = {f"{name}.{block}": x for name, draws in runs.items() for block, x in draws.items()}
    account = {"ranks": ranks, "diverged": runs["lost"].diverged}
    info = runs["accepted"].info
    account |= {name: json.dumps(info[name]) for name in ("acceptance", "swaps", "averages", "divergences", "e_bfmi")}
    result["weights"] = trained(rank, ranks)
    result["members"] = distributed.gather(ensemble_of(distributed.share(3)))
    for epochs in (1, 3):
        again = ensemble_of(distributed.share(3), epochs, folder / "ensemble")
        result["members in two parts"] = distributed.gather(again)
    for steps in (6, 15):
        result["weights in two parts"] = trained(rank, ranks, steps, folder / "loop")
    kept = folder / "run"
    first = drawn("torch", checkpoint=kept)
    again = drawn("torch", checkpoint=kept)
    result |= {"kept": first["theta"], "kept again": again["theta"]}
    for what, run in (
        ("few", lambda: drawn("torch", chains=1)),
        ("one fails", lambda: drawn("torch", step_size=0.02 if rank else -1.0)),
    ):
        try:
            run()
            account[what] = "went well"
        except RecipeError as error:
            account[what] = str(error)
    storage.write(
        folder / f"rank-{rank}.safetensors", "found", result, {"account": {k: str(v) for k, v in account.items()}}
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
