"""A run that goes on from its folder ends with the draws of one that was never interrupted, bit for bit."""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from functools import cache
from io import StringIO
from itertools import product

import pytest
import torch
from covering import covering, slow
from crashes import LOGISTIC, RUNS, by_hand, crash, data
from test_several_potentials import RESPA
from tqdm import tqdm
from tqdm.std import TqdmDefaultWriteLock

import samplers
from recipe import RecipeError, numerical, vector
from samplers.checkpoints import Folder
from samplers.files import storage
from samplers.results.bar import Bar
from samplers.running.chains import Diverged
from samplers.target.targets import TARGETS
from samplers.testing.cases import CASES as STOCK
from samplers.training import checkpoint as checkpoints


@pytest.mark.stated_seed
@pytest.mark.slow
def test_runs_that_are_killed_at_random_moments_end_with_the_same_draws(tmp_path):
    """Of each kind twice; `make crashtest` kills as many as one likes."""
    assert sum(died for died, _ in crash([*RUNS, "loop"], 2, seed=1, folder=tmp_path).values()) >= 8


class Stop(Exception):
    pass


def stopped_after(monkeypatch, saves, run):
    """The run, broken off right after it has written so many checkpoints."""
    write = storage.write

    def counted(path, kind, *more):
        write(path, kind, *more)
        if kind == "checkpoint":
            counted.left -= 1
            if not counted.left:
                raise Stop

    counted.left = saves
    monkeypatch.setattr(storage, "write", counted)
    with pytest.raises(Stop):
        run()
    monkeypatch.setattr(storage, "write", write)


BANANA = dict(energy=TARGETS["banana"], init=torch.zeros(2))
LANGEVIN = samplers.UnderdampedLangevin
ON_DATA = dict(energy=by_hand, init=torch.zeros(4), data=data(), batch_size=7)
LADDER = samplers.Ladder(1, 2, 4, swap_every=4)
CASES = {
    "kernel": BANANA | dict(recipe=samplers.SGNHT, steps=200, thin=7, keep="xi", backend="cpp"),
    "kernel, data": ON_DATA | dict(recipe=LANGEVIN, energy=LOGISTIC, steps=100, backend="cpp"),
    "sweep": ON_DATA | dict(recipe=samplers.PSGLD, steps=50, step_size=1e-3, backend="cpp"),
    "torch": ON_DATA | dict(recipe=LANGEVIN, steps=50, backend="torch"),
    "temperatures": BANANA
    | dict(recipe=samplers.SGNHT, steps=60, thin=7, keep="xi", temperature=LADDER, metropolis=True, backend="cpp"),
    "several potentials": dict(
        recipe=RESPA,
        energy={"fast": lambda z: 4 * (z**2).sum(), "slow": lambda z: (z**4).sum() / 4},
        init=torch.zeros(2),
        steps=16,
        step_size=0.5,
        metropolis=True,
    ),
    "explicit": BANANA
    | dict(recipe=STOCK["sgrld-dense"].recipe, init={"x": torch.zeros(()), "y": torch.zeros(())}, steps=40),
    "phases": ON_DATA
    | dict(
        recipe=samplers.SANTA,
        thin=3,
        phases=[
            samplers.Phase(20, keep=False, temperature=lambda k: 2 / (1 + k)),
            samplers.Phase(25, step_size=0.005),
            samplers.Phase(12, temperature=0.0, freeze="xi"),
        ],
    ),
}
CASES["temperatures in torch"] = CASES["temperatures"] | dict(backend="torch")
CASES["accepted"] = BANANA | dict(recipe=samplers.GHMC, warmup=10, steps=50, step_size=0.4, metropolis=True)
CASES["accepted, by a function"] = CASES["accepted"] | dict(energy=lambda t: (t**4).sum() / 4)


def drawn(name, **more):
    how = dict(chains=3, step_size=0.01, progress=False) | CASES[name] | more
    return samplers.sample(how.pop("recipe"), how.pop("energy"), **how)


@cache
def undisturbed(name):
    return drawn(name)


# by a kernel and by torch, of several potentials, at temperatures, in phases; at the first checkpoint and at later
BROKEN_OFF = [("kernel", 6), ("kernel, data", 1), ("torch", 2), ("several potentials", 3)]
BROKEN_OFF += [(name, 1) for name in ("temperatures in torch", "phases", "accepted, by a function")]
TOLD = ("acceptance", "averages", "report")  # of all steps, those before the break too


@pytest.mark.parametrize("name, saves", covering(product(CASES, [1, 2, 3, 6]), BROKEN_OFF))
def test_a_run_goes_on_bit_for_bit_wherever_it_was_broken_off(name, saves, tmp_path, monkeypatch):
    monkeypatch.setattr("samplers.running.launches.SECONDS", 0.0)  # launches stay short
    stopped_after(monkeypatch, saves, lambda: drawn(name, checkpoint=Folder(tmp_path / "run", every=0.0)))
    whole, resumed = undisturbed(name), drawn(name, checkpoint=tmp_path / "run")
    assert list(whole) == list(resumed) and all(torch.equal(whole[b], resumed[b]) for b in whole)
    assert [whole.info.get(key) for key in TOLD] == [resumed.info.get(key) for key in TOLD]
    assert whole.step_sizes is resumed.step_sizes is None or torch.equal(whole.step_sizes, resumed.step_sizes)


def test_a_run_that_has_ended_gives_its_draws_again_without_a_step(tmp_path):
    first = drawn("torch", checkpoint=tmp_path)
    began = (tmp_path / "theta.draws").read_bytes()
    again = drawn(
        "torch", checkpoint=tmp_path, progress=lambda scalars: pytest.fail("it moved") if scalars["step"] < 50 else None
    )
    assert torch.equal(first["theta"], again["theta"]) and (tmp_path / "theta.draws").read_bytes() == began


def test_lost_chains_stay_lost_and_are_told_of(tmp_path, monkeypatch):
    how = dict(init=torch.zeros(2), chains=64, step_size=0.05, steps=150, seed=3, progress=False, backend="torch")
    with pytest.warns(RuntimeWarning, match="diverged"):
        whole = samplers.sample(samplers.SGLD, TARGETS["banana"], **how)
        stopped_after(
            monkeypatch,
            100,
            lambda: samplers.sample(samplers.SGLD, TARGETS["banana"], checkpoint=Folder(tmp_path, every=0.0), **how),
        )
    with pytest.warns(RuntimeWarning, match="diverged"):
        resumed = samplers.sample(samplers.SGLD, TARGETS["banana"], checkpoint=tmp_path, **how)
    assert whole.diverged == resumed.diverged != {} and torch.equal(whole["theta"], resumed["theta"])


# ---- broken files


def two_checkpoints(tmp_path, monkeypatch):
    stopped_after(monkeypatch, 6, lambda: drawn("torch", checkpoint=Folder(tmp_path, every=0.0)))
    files = sorted(tmp_path.glob("state-*.safetensors"), key=lambda f: storage.read(f, "checkpoint")[1]["generation"])
    assert len(files) == 2
    return files


@pytest.mark.parametrize("harm", [slow("cut"), "flip", slow("empty"), "gone"])
def test_a_broken_checkpoint_is_named_and_the_one_before_it_taken(harm, tmp_path, monkeypatch):
    old, new = two_checkpoints(tmp_path, monkeypatch)
    raw = bytearray(new.read_bytes())
    raw[-3] ^= 1
    {
        "cut": lambda: new.write_bytes(raw[:200]),
        "flip": lambda: new.write_bytes(raw),
        "empty": lambda: new.write_bytes(b""),
        "gone": new.unlink,
    }[harm]()
    if harm == "gone":
        resumed = drawn("torch", checkpoint=tmp_path)
    else:
        with pytest.warns(
            RuntimeWarning, match=f"{new.name} is not intact: the run goes on from the one before it, .*{old.name}"
        ):
            resumed = drawn("torch", checkpoint=tmp_path)
    assert torch.equal(resumed["theta"], drawn("torch")["theta"])


def test_without_an_intact_checkpoint_the_run_is_refused(tmp_path, monkeypatch):
    for file in two_checkpoints(tmp_path, monkeypatch):
        file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(RecipeError, match="no checkpoint is intact"):
        drawn("torch", checkpoint=tmp_path)


@pytest.mark.parametrize(
    "harm", [lambda f: f.unlink(), lambda f: f.write_bytes(b"\1" * 100)], ids=["gone", "overwritten"]
)
def test_draws_that_were_changed_are_noticed(harm, tmp_path, monkeypatch):
    two_checkpoints(tmp_path, monkeypatch)
    harm(tmp_path / "theta.draws")
    with pytest.raises(RecipeError, match="theta.draws: draws 0 to 1 are not those that were written"):
        drawn("torch", checkpoint=tmp_path)


# ---- another run, another writer, no room


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(seed=4), "seed = 0, this one has 4"),
        slow((dict(steps=51), r"phases\[0\].steps = 50, this one has 51")),
        (dict(step_size=0.02), r"settings\[0\].step_size = 0.01, this one has 0.02"),
        slow((dict(batch_size=8), "batch_size = 7")),
        slow((dict(temperature=2.0), r"settings\[0\].temperature = 1.0, this one has 2.0")),
        (dict(data=(data()[0] + 1, data()[1])), r"it holds a run of data\[0\] with other numbers"),
        slow((dict(init=torch.ones(4)), "it holds a run of start.theta with other numbers")),
        slow((dict(thin=2), "thin")),
        slow((dict(keep="p"), "keep")),
        (dict(scheme="A B O B A"), "scheme"),
        (dict(gamma=2.0), "parameters.gamma = .*, this one has 2.0"),
        (dict(chains=range(3, 6)), "first_chain"),
    ],
)
def test_the_folder_of_another_run_is_refused(change, message, tmp_path):
    drawn("torch", checkpoint=tmp_path)
    how = dict(CASES["torch"]) | dict(chains=3, step_size=0.01, progress=False, checkpoint=tmp_path) | change
    with pytest.raises(RecipeError, match=message):
        samplers.sample(how.pop("recipe"), how.pop("energy"), **how)


def bowl(scale):
    return lambda t: scale * (t**2).sum() / 2


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(energy=bowl(3.0)), "another energy"),
        (dict(step_size=(lambda c: lambda k: 0.1 * c)(0.5)), "settings"),
        (dict(temperature=lambda k: 2.0), "settings"),
        (dict(steps=1000, phases=[samplers.Phase(20, freeze="V")]), "frozen"),
        (dict(energy=bowl(1.0)), None),
    ],
)
def test_functions_are_known_by_their_values_and_not_by_their_names(change, message, tmp_path):
    how = dict(
        energy=bowl(1.0),
        init=torch.ones(3),
        steps=20,
        chains=2,
        step_size=(lambda c: lambda k: 0.1 * c)(1.0),
        temperature=lambda k: 1.0,
        progress=False,
        checkpoint=tmp_path,
    )
    first = samplers.sample(samplers.PSGLD, **how)
    if message is None:
        assert torch.equal(samplers.sample(samplers.PSGLD, **how | change)["theta"], first["theta"])
        return
    with pytest.raises(RecipeError, match=message):
        samplers.sample(samplers.PSGLD, **how | change)


# ---- the same energy


def resumed(folder, energy, then, *, recipe=samplers.UnderdampedLangevin, **more):
    """Draws of a run with one energy, and those of the same call with another, which goes on from its end."""
    how = dict(chains=6, steps=60, step_size=0.1, progress=False, init=torch.zeros(3)) | more
    folder = folder or more["checkpoint"]
    first = samplers.sample(recipe, energy, checkpoint=folder, **how)
    how |= then if isinstance(then, dict) else {}
    again = samplers.sample(recipe, energy if isinstance(then, dict) else then, checkpoint=folder, **how)
    return first, again


def far_off(t):
    """As the bowl where it is wide of 1 from the start, but at no place that it starts at."""
    return (t**2).sum() / 2 + torch.relu(t.norm() - 1) ** 3


def narrow(t):
    return 5e5 * ((t - 1) ** 2).sum()


OTHERS = {
    "1.0005 U": (bowl(1.0), bowl(1.0005), {}),
    "1.0005 U at a start at the mode of a narrow one": (
        narrow,
        lambda t: 1.0005 * narrow(t),
        dict(init=torch.ones(3), step_size=1e-4),
    ),
    "small": (bowl(1e-4), bowl(1e-6), {}),
    "far from the start": (bowl(1.0), far_off, {}),
    "in one chain of many": (
        bowl(1.0),
        lambda t: (t**2).sum() / 2 + torch.relu(t[0] - 7) ** 2,
        dict(init=torch.cat([torch.zeros(40, 3), torch.tensor([[9.0, 0, 0]])]), chains=41, steps=3, step_size=0.01),
    ),
    "of large numbers": (bowl(1e20), bowl(1.001e20), dict(step_size=1e-11)),
    "in float64": (bowl(1.0), bowl(1 + 1e-8), dict(init=torch.zeros(3, dtype=torch.float64))),
    "nowhere finite": (bowl(1.0), lambda t: torch.where(t.norm() > 1e-4, torch.nan, 1.0) * (t**2).sum() / 2, {}),
    "of the constant of another loop": (
        lambda t: sum((t[k] - 1) ** 2 for k in range(3)),
        lambda t: sum((t[k] - 1) ** 2 for k in range(2)),
        {},
    ),
}


@pytest.mark.parametrize("name", covering(OTHERS, [*OTHERS][:5]))
def test_another_energy_is_refused(name, tmp_path):
    one, other, how = OTHERS[name]
    with pytest.raises(RecipeError, match="another energy|gradient by theta is not finite"):
        resumed(tmp_path, one, other, **how)


def network(parts, dtype):
    """The energy of a small network, whose sum over the data is made in some parts."""
    x = torch.randn(200, 5, generator=torch.Generator().manual_seed(0)).to(dtype)

    def energy(t):
        w, v = t[:40].reshape(5, 8), t[40:48]
        misfits = [(torch.relu(some @ w) @ v - some.sin().sum(1)).square().sum() for some in x.split(200 // parts)]
        return sum(misfits) + (t**2).sum()

    return energy


@pytest.mark.parametrize(
    "dtype, scale",
    covering(product([torch.float32, torch.float64], [0.0, 1.0]), [(torch.float32, 0.0)]),
)
def test_rounding_is_no_other_energy(scale, dtype, tmp_path):
    """The sum in other parts, and other threads, also from where the gradient vanishes but for rounding."""
    start = scale * torch.randn(48, generator=torch.Generator().manual_seed(1)).to(dtype)
    how = dict(init=start, chains=5, step_size=1e-4, backend="torch")
    first, again = resumed(tmp_path / "parts", network(1, dtype), network(5, dtype), **how)
    assert torch.equal(first["theta"], again["theta"])
    kept = dict(recipe=samplers.SGLD, energy=network(1, dtype), steps=9, progress=False, checkpoint=tmp_path / "run")
    first = samplers.sample(**kept, **how)
    torch.set_num_threads(4)
    try:
        assert torch.equal(samplers.sample(**kept, **how)["theta"], first["theta"])
    finally:
        torch.set_num_threads(1)


def kinked(side):
    """A bowl with a kink at the corner, whose gradient there is that of one side or the other."""

    def energy(t):
        x = t.sum() - 1.5
        return (t**2).sum() / 2 + 3 * torch.where(side(x), x, -x)

    return energy


def test_a_kink_to_whose_other_side_rounding_leads_is_no_other_energy(tmp_path):
    how = dict(init=torch.full((3,), 0.5), chains=1, recipe=samplers.SGLD, steps=1, step_size=1e-20)
    first, again = resumed(tmp_path, kinked(lambda x: x > 0), kinked(lambda x: x >= 0), **how)
    assert torch.equal(first["theta"], again["theta"])


@pytest.mark.parametrize(
    "then, message",
    [
        (lambda t: 1.5 + 0 * t, "another observation 'score_variance'"),
        (lambda t: 1.0 + 1e-2 * torch.relu(t.abs() - 0.3), "another observation 'score_variance'"),
        (torch.ones_like, None),
    ],
)
def test_observations_are_those_of_the_run(then, message, tmp_path):
    how = dict(
        recipe=samplers.SGFS, observe={"score_variance": lambda t, x: 1.0 + 0 * t}, backend="torch", batch_size=4
    )
    how |= dict(data=torch.ones(9), step_size=0.02, b=1.0)
    energy = lambda t, x: (t**2).sum() / 2 + 0 * x.sum()  # noqa: E731
    if message is None:
        resumed(tmp_path, energy, dict(observe={"score_variance": lambda t, x: then(t)}), **how)
        return
    with pytest.raises(RecipeError, match=message):
        resumed(tmp_path, energy, dict(observe={"score_variance": lambda t, x: then(t)}), **how)


@pytest.mark.parametrize(
    "then, message",
    [
        (dict(scope="chain"), "scope = tensor, this one has chain"),
        (dict(init={"b": torch.ones(2), "a": torch.ones(2, 2)}), "tensors"),
        (dict(step_size=lambda k: 0.2 if k == 17 else 0.1), "settings"),
        (dict(steps=60, warmup=1), "phases"),
    ],
)
def test_a_run_of_other_arguments_is_refused(then, message, tmp_path):
    init = {"a": torch.ones(2, 2), "b": torch.ones(2)}
    how = dict(recipe=samplers.SGNHT, init=init, scope="tensor", scheme="G A'", step_size=lambda k: 0.1)
    with pytest.raises(RecipeError, match=message):
        resumed(tmp_path, lambda t: (t["a"] ** 2).sum() + (t["b"] ** 2).sum(), then, **how)


def test_a_run_of_other_pieces_is_refused(tmp_path):
    how = dict(init=torch.zeros(2), steps=5, step_size=0.1, scheme="G A'", progress=False, checkpoint=tmp_path)
    samplers.sample(samplers.SGNHT, bowl(1.0), **how)
    with pytest.raises(RecipeError, match="letter G"):
        samplers.sample(replace(samplers.SGNHT, pieces={"G": numerical(vector("p"), "heun")}), bowl(1.0), **how)


@pytest.mark.parametrize(
    "more, steps, warmup",
    [
        (dict(phases=[samplers.Phase(20, keep=False), samplers.Phase(25), samplers.Phase(12, keep=False)]), 37, 20),
        (dict(phases=[samplers.Phase(7), samplers.Phase(5)]), 12, 0),
        (dict(steps=30, warmup=4), 30, 4),
    ],
)
def test_the_account_has_the_steps_of_the_run(more, steps, warmup):
    draws = samplers.sample(samplers.SGLD, bowl(1.0), init=torch.zeros(2), step_size=0.1, progress=False, **more)
    assert (draws.info["steps"], draws.info["warmup"]) == (steps, warmup)


@pytest.mark.parametrize(
    "more, message",
    [
        (dict(checkpoint=3), "name of a folder"),
        (dict(checkpoint=""), "name of a folder"),
        (dict(progress=3), "function of a dict"),
    ],
)
def test_what_is_no_folder_and_no_function_is_refused(more, message):
    with pytest.raises(RecipeError, match=message):
        drawn("torch", **more)


@pytest.mark.parametrize("every", [-1, float("nan"), None])
def test_what_is_no_time_is_refused(every):
    with pytest.raises(RecipeError, match="number of seconds"):
        Folder("run", every=every)


def test_a_second_writer_is_refused(tmp_path):
    seen = []

    def second(scalars):
        with pytest.raises(RecipeError, match="another run writes there"):
            drawn("torch", checkpoint=tmp_path)
        seen.append(scalars)

    drawn("torch", checkpoint=tmp_path, progress=second)
    assert seen


def test_a_full_disk_is_noticed_before_the_first_step(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(RecipeError, match=r"no room for 2400 bytes of draws \(No space left"):
        drawn("torch", checkpoint=tmp_path)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RecipeError, match="cannot be written"):
        drawn("torch", checkpoint=tmp_path / "file")


def test_nothing_in_a_checkpoint_is_executed(tmp_path):
    drawn("torch", checkpoint=tmp_path)
    for file in tmp_path.glob("state-*"):
        values, account = storage.read(file, "checkpoint")
        assert json.loads(json.dumps(account)) == account and all(torch.is_tensor(v) for v in values.values())


# ---- the ends of a run


def interrupt_when(step):
    def watch(scalars):
        if scalars["step"] >= step and not watch.done:
            watch.done = True
            os.kill(os.getpid(), signal.SIGINT)

    watch.done = False
    return watch


@pytest.mark.parametrize("name", ["torch", "kernel"])
def test_ctrl_c_ends_a_run_with_the_draws_so_far_and_it_can_go_on(name, tmp_path, monkeypatch):
    monkeypatch.setattr("samplers.results.bar.EVERY", 0.0)
    monkeypatch.setattr("samplers.running.launches.SECONDS", 0.0)
    with pytest.warns(RuntimeWarning, match="stopped after"):
        part = drawn(name, checkpoint=tmp_path, progress=interrupt_when(30))
    whole = drawn(name)
    assert 0 < part.draws < whole.draws and part.info["stopped_after"] >= 30
    assert torch.equal(part["theta"], whole["theta"][:, : part.draws])
    assert torch.equal(drawn(name, checkpoint=tmp_path)["theta"], whole["theta"])
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_ends_at_once(monkeypatch):
    monkeypatch.setattr("samplers.results.bar.EVERY", 0.0)

    def twice(scalars):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        drawn("torch", progress=twice)


def test_a_run_in_another_thread_leaves_signals_alone():
    result = []
    thread = threading.Thread(target=lambda: result.append(drawn("torch")))
    thread.start()
    thread.join()
    assert torch.equal(result[0]["theta"], drawn("torch")["theta"])


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_when_every_chain_is_lost_the_draws_before_are_not(backend):
    with pytest.raises(Diverged, match="every chain has diverged.*smaller step size") as error:
        samplers.sample(
            samplers.SGLD,
            TARGETS["banana"],
            init=torch.zeros(2),
            chains=8,
            steps=3000,
            step_size=0.5,
            backend=backend,
            progress=False,
        )
    assert error.value.draws.draws >= 1 and error.value.draws["theta"].isfinite().all()


# ---- watching


def test_a_run_holds_no_semaphore_that_a_kill_would_leave(monkeypatch):
    def fails():
        pytest.fail("a semaphore of the system")

    monkeypatch.setattr(multiprocessing, "RLock", fails)
    monkeypatch.delattr(tqdm, "_lock", raising=False)
    monkeypatch.delattr(TqdmDefaultWriteLock, "mp_lock", raising=False)
    assert drawn("torch", progress=True).draws == 50


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_in_a_log_is_a_line_every_ten_seconds(monkeypatch, terminal):
    """Of 1000 steps in 100 seconds, with the words of that moment; on a terminal one line is written over and over.

    A line of a log is whole, whatever the width of a terminal is.
    """
    now, stream = 0.0, StringIO()
    monkeypatch.setattr("tqdm.std.time", lambda: now)
    stream.isatty, stream.fileno = lambda: terminal, lambda: 2
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((30, 20)))
    monkeypatch.setenv("COLUMNS", "30")  # which tqdm 4.66 reads
    monkeypatch.setenv("LINES", "20")
    monkeypatch.setattr(sys, "stderr", stream)
    with Bar("sghmc", 1000) as bar:
        for k in range(1000):
            now += 0.1
            bar.tell(f"at {k}")
            bar.update()
    written = stream.getvalue()
    if terminal:
        assert written.count("\n") == 1 and written.count("\r") > 500
    else:
        lines = written.strip().split("\n")
        assert "\r" not in written and len(lines) in (11, 12)
        assert "0%" in lines[0] and "at 500" in lines[5] and "1000/1000" in lines[-1]


def test_a_watch_is_told_of_steps_and_temperatures(monkeypatch):
    monkeypatch.setattr("samplers.results.bar.EVERY", 0.0)
    seen = []
    samplers.sample(
        samplers.UnderdampedLangevin,
        lambda t: (t**2).sum() / 2,
        init=torch.zeros(400),
        chains=25,
        steps=40,
        step_size=0.1,
        m=3.0,
        temperature=2.0,
        progress=seen.append,
    )
    assert [s["step"] for s in seen] == list(range(41)) and all(s["lost"] == 0 for s in seen)
    last = seen[-1]
    assert last["kinetic_temperature.p.low"] < 2 < last["kinetic_temperature.p.high"]
    assert abs(last["kinetic_temperature.p"] - 2) < 7.5 * 2 * (2 / 10_000) ** 0.5  # of 10,000 momenta: alpha 6e-14


def test_a_watch_is_told_of_the_configurational_temperature_and_of_effective_draws(monkeypatch):
    """Of 200 chains of 50 sites on a unit normal: theta^2 has the mean T, within 7.5 standard errors, alpha 6e-14."""
    monkeypatch.setattr("samplers.results.bar.EVERY", 0.0)
    monkeypatch.setattr("samplers.running.watching.OFTEN", 0.0)
    seen = []
    start = torch.randn(200, 50, generator=torch.Generator().manual_seed(0)) * 2**0.5
    samplers.sample(
        samplers.UnderdampedLangevin,
        lambda t: (t**2).sum() / 2,
        init=start,
        chains=200,
        steps=120,
        step_size=0.5,
        temperature=2.0,
        progress=seen.append,
    )
    last = seen[-1]
    name = "configurational_temperature.theta"
    assert abs(last[name] - 2) < 7.5 * 2 * (2 / 10_000) ** 0.5 and last[f"{name}.low"] < 2 < last[f"{name}.high"]
    assert 200 < last["ess"] < 200 * 121 and "ess" not in seen[50]


def test_a_kept_draw_is_written_where_the_system_can_lose_nothing(tmp_path, monkeypatch):
    """The map of the draws is flushed before the checkpoint that counts them."""
    order = []
    import numpy

    flush, write = numpy.memmap.flush, storage.write
    monkeypatch.setattr(numpy.memmap, "flush", lambda self: (order.append("flush"), flush(self)))
    monkeypatch.setattr(checkpoints.storage, "write", lambda *given: (order.append("write"), write(*given)))
    drawn("torch", checkpoint=tmp_path)
    assert order[-2:] == ["flush", "write"]
