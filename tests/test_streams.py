"""No two uses of noise share a number: every counter that small runs ask Philox for lies in the part of its use alone.

Who asks is read off the stack, so that a use is told by what draws it, not by where its counters are.
"""

import sys
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.distributions import Laplace, Normal
from torch.nn.functional import mse_loss

import samplers
from integrators import noise, streams
from integrators.streams import seed_of
from samplers import SGHMC, SGLD, SGNHT, SWAG, Ensemble, Minibatches, Optimizer, UnderdampedLangevin
from samplers.tuning.pilot import Pilot

pytestmark = pytest.mark.stated_seed  # whose counters are read back with their keys

SEED = 2**40 + 5
SEEDS = {seed % 2**32: seed for seed in (0, *(seed_of(SEED, k) for k in range(9)))}  # 0: evidence tries its energies
SITES = 3
DATA = torch.linspace(-1, 1, 12).view(12, 1)
ASKING = {  # by file and function, the draw that is asked for
    ("inputs.py", "_noise"): "STEP",
    ("step.py", "drawn"): "STEP",
    ("stepwise.py", "__call__"): "STEP",  # numbers whose law depends on the state
    ("data.py", "rows_for"): "BATCH",
    ("initial_state.py", "complete_state"): "START",
    ("start.py", "given_state"): "SPREAD",
    ("points.py", "_drawn"): "POINT",
    ("energy_checks.py", "falls"): "RAY",
    ("parallel_tempering.py", "_exchange"): "EXCHANGE",
    ("bridges.py", "move"): "JITTER",
    ("references.py", "start"): "REFERENCE",
    ("ensemble.py", "__init__"): "NETWORK",
    ("minibatches.py", "order"): "ORDER",
    ("swag.py", "sample"): "SWAG_",
    ("observed.py", "predicted"): "PREDICTED",
    ("model.py", "prior"): "PREDICTED",
}
FOR = {("repeated.py", "pairs"): "PAIR", ("repeated.py", "slopes"): "SLOPE", ("backward_work.py", "_moved"): "STRETCH"}

DRAWS = ("STEP", "BATCH", "SWAG_DIAGONAL", "SWAG_LOW_RANK", *{*ASKING.values()} - {"STEP", "BATCH", "SWAG_"})
STEPS = ("RUN", "PAIR", "STRETCH", "SLOPE")


def part(name):
    """The numbers of a use, as a range."""
    numbers = getattr(streams, name)
    return numbers if isinstance(numbers, range) else range(numbers, numbers + 1)


def bowl(theta):
    return (theta**2).sum() / 2


def of_rows(theta, rows):
    return (theta**2).sum() / 2 + 3 * ((rows - theta) ** 2).sum() / 2


def sampled(recipe=SGLD, energy=bowl, **more):
    how = dict(init=torch.zeros(SITES), chains=2, steps=8, step_size=0.1, seed=SEED, backend="torch", progress=False)
    return samplers.sample(recipe, energy, **how | more)


def judged(**more):
    draws = sampled(steps=60, chains=4, **more)
    draws.accuracy(chains=4, steps=20, progress=False)
    draws.report()


def drawn_in_a_step():
    sampled("sgrld-cir", None, init=torch.ones(SITES), step_size=0.01)


def annealed(energy=bowl, law=None):
    law = law or Normal(torch.zeros(SITES), 1.0)
    samplers.evidence(UnderdampedLangevin, energy, reference=law, chains=64, moves=1, bridges=2, seed=SEED)


def annealed_by_part():
    law = {"a": Laplace(torch.zeros(2), 1.0), "b": Normal(torch.zeros(SITES), 1.0)}
    annealed(lambda at: bowl(at["a"]) + bowl(at["b"]), law)


def trained():
    ensemble = Ensemble(lambda: torch.nn.Linear(1, 4), members=2, seed=SEED)
    groups = [{"params": [p]} for p in ensemble.parameters()]
    optimizer = Optimizer(groups, SGNHT, lr=0.01, num_data=12, seed=SEED, backend="torch")
    for x in Minibatches(DATA, 4, seed=SEED, members=2):
        optimizer.zero_grad()
        ensemble.loss(mse_loss, x, x.expand(-1, -1, 4)).backward()
        optimizer.step()


def predicted():
    one = samplers.model({"mu": Normal(0.0, 1.0)}, {"y": (lambda v: Normal(v["mu"], 1.0), torch.zeros(2))})
    one.predictive(one.prior(2, seed=SEED), seed=SEED)


def fitted():
    SWAG.of(torch.randn(5, SITES, generator=torch.Generator().manual_seed(0))).sample(3, seed=SEED)


def piloted():
    pilot = Pilot(SGLD, bowl, {"temperature": 1.0, "backend": "torch"}, SEED, torch.zeros(2, SITES))
    for _ in range(2):
        pilot.run([0.1], 4)


RUNS = {
    "batches and a law": lambda: sampled(energy=of_rows, data=DATA, batch_size=5, init=Normal(torch.zeros(SITES), 1.0)),
    "spread": lambda: sampled(SGHMC, init=samplers.Start(torch.zeros(SITES), spread=0.5)),
    "temperatures": lambda: sampled(
        UnderdampedLangevin, temperature=samplers.Ladder(1, 2, 4, swap_every=2), metropolis=True
    ),
    "variates": drawn_in_a_step,
    "pairs": lambda: judged(energy=of_rows, data=DATA, batch_size=5),
    "stretches": judged,
    "annealing": annealed,
    "annealing by part": annealed_by_part,
    "training": trained,
    "SWAG": fitted,
    "predictive": predicted,
    "pilots": piloted,
}


def use_on_the_stack():
    """Which draw is asked for, and for whose steps."""
    frame, draw, steps = sys._getframe(2), "", "RUN"
    while frame is not None:
        at = Path(frame.f_code.co_filename).name, frame.f_code.co_name
        draw = draw or ASKING.get(at, "")
        steps = FOR.get(at, steps)
        frame = frame.f_back
    return draw, steps


@pytest.fixture
def asked(monkeypatch):
    """The counters and keys that Philox is asked for, `(numbers, 6)`, by use and by call."""
    calls = defaultdict(list)
    philox = noise.philox

    def recorded(counter, key):
        words = [w.reshape(-1) for w in torch.broadcast_tensors(*counter, *map(torch.as_tensor, key))]
        calls[use_on_the_stack()].append(torch.stack(words, 1).numpy().astype(np.int64))
        return philox(counter, key)

    monkeypatch.setattr(noise, "philox", recorded)
    return calls


def places(words):
    """The draw of each counter, and the first of its steps."""
    c0, c1, _, c3, k0, k1 = words.T
    seeds = np.array([SEEDS[low] >> 32 for low in k0.tolist()])
    block = c0 | (c1 & 0xFFFF) << 32
    shared = np.select([block == 2**48 - 1, block == 2**48 - 2], [4, 2], 1)
    return c1 >> 16, (c3 | (k1 ^ seeds) << 32) * shared


def faults(calls):
    """Uses whose counters are outside of their parts, and pairs of uses that share some."""
    wrong = []
    counters = {}
    for (draw, steps), words in calls.items():
        words = np.unique(np.concatenate(words), axis=0)
        draws, numbers = places(words)
        names = [name for name in DRAWS if name == draw or draw.endswith("_") and name.startswith(draw)]
        within = np.isin(draws, [k for name in names for k in part(name)])
        if draw in ("STEP", "BATCH"):
            within &= (numbers >= part(steps).start) & (numbers < part(steps).stop)
        if not within.all():
            wrong.append((draw, steps))
        counters[draw, steps] = set(map(bytes, np.ascontiguousarray(words)))
    return wrong + [(a, b) for a, b in combinations(counters, 2) if counters[a] & counters[b]]


def test_the_parts_are_disjoint():
    names = {name for name in vars(streams) if name.isupper()}
    assert names == {*DRAWS, *STEPS, "RUNG", "GROUP"}  # each of them is drawn from below
    for uses, end in ((DRAWS, 2**16), (STEPS, 2**63)):
        parts = sorted(sorted((part(name)[0], part(name)[-1])) for name in uses)
        assert all(last < first for (_, last), (first, _) in zip(parts, parts[1:]))
        assert parts[0][0] == 0 and parts[-1][1] < end
    assert all(part(name).start % 4 == 0 for name in STEPS)  # steps that share a block are of one part


def test_no_counter_is_used_twice(asked):
    for run in RUNS.values():
        run()
    assert not faults(asked)
    seen = {name for draw, steps in asked for name in (draw, steps)}
    assert seen == {*ASKING.values(), *STEPS}
    draws = {int(draw) for words in asked["SWAG_", "RUN"] for draw in places(words)[0]}
    assert draws == {streams.SWAG_DIAGONAL, streams.SWAG_LOW_RANK}


@pytest.mark.parametrize("name", ["temperatures", "annealing", "training", "pilots"])
def test_no_chain_has_the_numbers_of_another(asked, name):
    """Rungs, pilots beside the chains that they are of, groups and members: each counter is asked for once."""
    RUNS[name]()
    words = np.concatenate(asked["STEP", "RUN"])
    words = words[words[:, 1] & 0xFFFF == 0]  # a block of one number is asked for in each step that shares it
    assert len(np.unique(words, axis=0)) == len(words)


@pytest.mark.parametrize(
    "module, name, overlap, run",
    [
        ("samplers.running.energy_checks", "RAY", streams.START, "spread"),
        ("samplers.running.repeated", "PAIR", streams.RUN, "stretches"),
        ("samplers.running.backward_work", "STRETCH", streams.PAIR, "stretches"),
        ("samplers.running.repeated", "SLOPE", streams.RUN, "pairs"),
    ],
)
def test_parts_that_overlap_are_seen(asked, monkeypatch, module, name, overlap, run):
    monkeypatch.setattr(f"{module}.{name}", overlap)
    RUNS[run]()
    assert faults(asked)
