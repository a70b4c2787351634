"""Folders of runs that have been harmed at random: the run goes on to the same end, or it is refused; never wrong."""

import os
import random
import shutil
import warnings
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
import torch
from covering import slow

import integrators
import samplers
from recipe import RecipeError
from samplers.files import storage

pytestmark = pytest.mark.filterwarnings("ignore:.*a Dropout, is random in training mode:RuntimeWarning")  # on purpose


class Stop(Exception):
    pass


def energy(theta, batch):
    return 4 * ((batch - theta) ** 2).sum() + theta.cosh().sum()


def sampled(folder=None, every=60.0):
    """Draws of a run with minibatches, a carried gradient and phases."""
    where = {} if folder is None else dict(checkpoint=samplers.checkpoints.Folder(folder, every=every))
    phases = [samplers.Phase(5, keep=False), samplers.Phase(9, temperature=lambda k: 1 / (1 + k)), samplers.Phase(6)]
    data = torch.linspace(-1, 1, 12).reshape(6, 2)
    how = dict(init=torch.ones(2), chains=2, data=data, batch_size=3, phases=phases, step_size=0.05, keep="xi")
    return dict(samplers.sample(samplers.SGNHT, energy, backend="torch", progress=False, **how, **where))


def trained(folder=None, every=60.0):
    """The weights and the predictions of a training loop."""
    torch.manual_seed(0)
    X = torch.linspace(-1, 1, 24).reshape(12, 2)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout(0.2), torch.nn.Linear(3, 1))
    optimizer = samplers.Optimizer(model.parameters(), samplers.SGHMC, lr=0.01, num_data=12)
    parts = dict(model=model, optimizer=optimizer, batches=samplers.Minibatches((X,), 5, seed=1))
    checkpoint = samplers.Checkpoint(folder, every=every, **parts) if folder else None
    step = checkpoint.load().get("step", 0) if folder else 0
    while step < 15:
        for (x,) in parts["batches"]:
            optimizer.zero_grad()
            (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
            optimizer.step()
            step += 1
            if folder:
                checkpoint.save(step=step, now=step == 15)
            if step == 15:
                break
    return dict(model.named_parameters())


def interrupted(run, folder, saves):
    """The folder of a run that was broken off after so many checkpoints."""
    write = storage.write
    left = [saves]

    def counted(*arguments):
        write(*arguments)
        left[0] -= 1
        if not left[0]:
            raise Stop

    storage.write = counted
    try:
        run(folder, every=0.0)
    except Stop:
        pass
    finally:
        storage.write = write
    return folder


# ---- harm


def flipped(raw, chance, most):
    raw = bytearray(raw)
    for _ in range(chance.randint(1, 8)):
        raw[chance.randrange(min(most, len(raw)))] ^= 1 << chance.randrange(8)
    return raw


def overwritten(raw, chance, filling):
    begin = chance.randrange(len(raw))
    end = min(len(raw), begin + chance.randint(1, 400))
    return raw[:begin] + filling(end - begin) + raw[end:]


CONTENTS = {
    "bits": lambda raw, chance: flipped(raw, chance, len(raw)),
    "bits of the header": lambda raw, chance: flipped(raw, chance, 3000),
    "cut": lambda raw, chance: raw[: chance.randrange(len(raw))],
    "zeros": lambda raw, chance: overwritten(raw, chance, bytes),
    "noise": lambda raw, chance: overwritten(raw, chance, chance.randbytes),
    "gap": lambda raw, chance: overwritten(raw, chance, lambda size: b""),
    "longer": lambda raw, chance: raw + chance.randbytes(chance.randint(1, 100)),
    "empty": lambda raw, chance: b"",
    "all noise": lambda raw, chance: chance.randbytes(len(raw)),
}


def exchange(one: Path, other: Path):
    one.rename(one.with_name("between"))
    other.rename(one)
    one.with_name("between").rename(other)


def linked(path: Path, target: Path):
    path.rename(target)
    path.symlink_to(target)


def replaced(path: Path, make):
    path.unlink()
    make(path)


def harm(folder: Path, earlier: Path, chance: random.Random) -> str:
    """Harm one file of the folder; what was done. `earlier`: the folder as it was some checkpoints before."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.is_symlink())
    if not files:
        return "nothing is left"
    path, other = chance.choice(files), chance.choice(files)
    places = {
        "gone": path.unlink,
        "exchanged": lambda: exchange(path, other) if path != other else None,
        "another's": lambda: path.write_bytes(other.read_bytes()),
        "earlier": lambda: shutil.copy(earlier / path.name, path) if (earlier / path.name).exists() else None,
        "link": lambda: linked(path, folder.parent / "target"),
        "pipe": lambda: replaced(path, os.mkfifo),
        "folder": lambda: replaced(path, os.mkdir),
        "moved": lambda: path.rename(folder / "moved"),
    }
    what = chance.choice([*CONTENTS, *CONTENTS, *places])
    if what in places:
        places[what]()
    elif raw := path.read_bytes():
        path.write_bytes(CONTENTS[what](raw, chance))
    return f"{what}: {path.name}"


def outcome(run, whole, folder: Path, done: list[str]) -> str:
    """Whether a run in a harmed folder goes on to the same end, or is refused."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = run(folder)
    except RecipeError:
        return "refused"
    assert result.keys() == whole.keys() and all(torch.equal(result[b], whole[b]) for b in whole), done
    return "equal"


def corruptions(run, number: int, seed: int, folder: Path) -> Counter:
    """How many of so many harmed folders of a run went on to the same end, and how many were refused."""
    whole = run()
    later = [interrupted(run, folder / f"saves-{saves}", saves) for saves in (1, 2, 4, 8, 13)]
    chance = random.Random(seed)
    counts: Counter = Counter()
    for k in range(number):
        place = chance.randrange(len(later))
        at = folder / f"harmed-{k}" / "run"
        shutil.copytree(later[place], at)
        earlier = later[chance.randrange(place + 1)]
        done = [harm(at, earlier, chance) for _ in range(chance.choice([1, 1, 1, 2, 3]))]
        counts[outcome(run, whole, at, done)] += 1
        shutil.rmtree(at.parent)
    return counts


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Nothing here asks what a disk has kept when the power fails, and all runs are of one recipe."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(integrators, "compile", cache(integrators.compile))


@pytest.mark.parametrize("number", [12, slow(20)])
@pytest.mark.parametrize("run", [sampled, trained])
def test_a_harmed_folder_ends_as_a_whole_one_or_is_refused(run, number, tmp_path):
    counts = corruptions(run, number, 1, tmp_path)
    assert counts["equal"] >= 3 and counts["refused"] >= 3


@pytest.mark.slow
@pytest.mark.parametrize("run", [sampled, trained])
def test_two_thousand_harmed_folders_end_as_whole_ones_or_are_refused(run, tmp_path):
    counts = corruptions(run, 1000, 2, tmp_path)
    print(f"{run.__name__}: {dict(counts)}")
    assert counts["equal"] + counts["refused"] == 1000 and min(counts.values()) >= 100
