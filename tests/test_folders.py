"""Files of others in the folder of a run: left as they are, and named."""

import os
import stat
import threading

import pytest
import torch
from covering import covering, slow

import samplers
from recipe import RecipeError, __version__
from samplers import Checkpoint
from samplers.files import regular, storage
from samplers.files.store import FORMAT, Lock

TEXT = b"of somebody else"


def bowl(theta):
    return (theta**2).sum() / 2


def sampled(folder, energy=bowl, **more):
    how = dict(init=torch.ones(2), chains=2, steps=6, step_size=0.1, progress=False, checkpoint=folder)
    return samplers.sample(samplers.SGNHT, energy, **how | more)


def trained(folder):
    checkpoint = Checkpoint(folder, model=torch.nn.Linear(2, 1))
    epoch = checkpoint.load().get("epoch", 0)
    checkpoint.save(epoch=epoch + 1)
    return checkpoint


KINDS = {
    "text": lambda at: at.write_bytes(TEXT),
    "link": lambda at: at.symlink_to(at.parent.parent / "elsewhere"),
    "loose link": lambda at: at.symlink_to("nowhere"),
    "pipe": os.mkfifo,
    "folder": lambda at: at.mkdir(),
}
NAMES = "lock", "state-0.safetensors", "state-1.safetensors", "theta.draws"
CASES = [
    (run, name, kind)
    for run in (sampled, trained)
    for name in NAMES
    for kind in KINDS
    if run is sampled or name != "theta.draws"
]


def alternate(run, name, kind):
    """Whether a case always runs: every second kind of a name; `trained` has those that `sampled` leaves out."""
    return ([*KINDS].index(kind) + NAMES.index(name) + (run is trained)) % 2 == 0


def in_time(function, *arguments):
    """Call it where a pipe without another end would hang for ever; what it raised."""
    raised = []

    def call():
        try:
            function(*arguments)
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive(), "it hangs"
    return raised[0] if raised else None


@pytest.mark.filterwarnings("ignore:.*is not intact")
@pytest.mark.parametrize("run, name, kind", covering(CASES, [case for case in CASES if alternate(*case)]))
@pytest.mark.parametrize("begun", [False, True])
def test_a_file_of_somebody_else_is_named_and_left_as_it_is(begun, run, name, kind, tmp_path):
    """In a new folder, and in that of a run which goes on."""
    (tmp_path / "elsewhere").write_bytes(TEXT)
    at = tmp_path / "run" / name
    if begun:
        run(at.parent)
        run(at.parent)
        at.unlink(missing_ok=True)
    else:
        at.parent.mkdir()
    KINDS[kind](at)
    before = at.lstat()
    error = in_time(run, at.parent)
    if kind == "text" and name.startswith("state") and begun and run(at.parent):
        return  # a checkpoint that is not intact beside one that is: the run goes on
    assert isinstance(error, RecipeError) and (str(at) in str(error) or name in str(error))
    now = at.lstat()
    assert (now.st_ino, now.st_mode, now.st_size) == (before.st_ino, before.st_mode, before.st_size)
    assert (tmp_path / "elsewhere").read_bytes() == TEXT and not (at.parent / "nowhere").exists()
    assert kind != "text" or at.read_bytes() == TEXT


def test_files_of_other_names_are_nobody_s_business(tmp_path):
    names = ("notes.txt", ".state-0.safetensors.swp", "p.draws", ".state-0.safetensors.keep")
    for name in names:
        (tmp_path / name).write_bytes(TEXT)
    sampled(tmp_path)
    assert all((tmp_path / name).read_bytes() == TEXT for name in names)
    for path in tmp_path.glob("[st]*"):
        path.unlink()
    with pytest.raises(RecipeError, match="p.draws: it is there, but .* no run of such draws has begun"):
        sampled(tmp_path, keep="p")


def test_a_whole_file_of_other_tensors_is_no_checkpoint(tmp_path):
    trained(tmp_path)
    path = tmp_path / "state-1.safetensors"
    storage.write(path, "draws", {"x": torch.ones(2)}, {})
    before = path.read_bytes()
    with pytest.raises(RecipeError, match="state-1.safetensors: it is a file of somebody else"):
        trained(tmp_path)
    assert path.read_bytes() == before


def test_a_run_that_was_ended_before_it_saved_goes_on_in_its_files_and_in_no_others(tmp_path):
    def fails(theta):
        return bowl(theta) if fails.left.pop() else theta.mean(0).sin().nothing

    fails.left = [False, *[True] * 40]
    with pytest.raises((AttributeError, IndexError)):
        sampled(tmp_path, fails, steps=100, backend="torch")
    assert (tmp_path / "theta.draws").exists()
    whole = sampled(None, seed=3)
    assert torch.equal(sampled(tmp_path, seed=3)["theta"], whole["theta"])


def test_draws_of_another_size_are_not_touched(tmp_path):
    sampled(tmp_path)
    path = tmp_path / "theta.draws"
    for raw in (path.read_bytes() + b"more", path.read_bytes()[:-1], b""):
        path.write_bytes(raw)
        with pytest.raises(RecipeError, match="theta.draws: draws 0 to 6 are not those that were written"):
            sampled(tmp_path)
        assert path.read_bytes() == raw


def test_the_folder_itself_may_be_a_link(tmp_path):
    (tmp_path / "large").mkdir()
    (tmp_path / "run").symlink_to("large")
    first = sampled(tmp_path / "run")
    assert torch.equal(sampled(tmp_path / "large")["theta"], first["theta"])


def test_a_file_is_what_it_was_when_it_was_looked_at(tmp_path, monkeypatch):
    """Between the look and the opening somebody puts a link in its place."""
    path, other = tmp_path / "lock", tmp_path / "other"
    other.write_bytes(TEXT)
    look = regular.status_of

    def meanwhile(at, **how):
        status = look(at, **how)
        path.unlink(missing_ok=True)
        path.symlink_to(other)
        return status

    monkeypatch.setattr(regular, "status_of", meanwhile)
    with pytest.raises(RecipeError, match="lock|cannot be written"):
        Lock(tmp_path)
    assert other.read_bytes() == TEXT


def test_a_system_without_these_flags_refuses_links_too(tmp_path, monkeypatch):
    monkeypatch.setattr(regular, "NO_LINK", 0)
    monkeypatch.setattr(regular, "ALONE", 0)
    (tmp_path / "lock").symlink_to("nowhere")
    with pytest.raises(RecipeError, match="lock: it is a symbolic link"):
        sampled(tmp_path)
    assert not (tmp_path / "nowhere").exists()


def test_draws_are_saved_and_loaded_through_links_but_not_through_pipes(tmp_path):
    draws = sampled(None)
    draws.save(tmp_path / "file")
    (tmp_path / "link").symlink_to("file")
    assert torch.equal(samplers.Draws.load(tmp_path / "link")["theta"], draws["theta"])
    os.mkfifo(tmp_path / "pipe")
    assert "a pipe, not a regular file" in str(in_time(samplers.Draws.load, tmp_path / "pipe"))


# ---- other versions


@pytest.mark.parametrize("run", [sampled, trained])
@pytest.mark.parametrize(
    "change, message",
    [
        (lambda account: [account.pop(name) for name in ("format", "version")], "format 1, of sde-recipe before 0.1.0"),
        (lambda account: account.update(format=FORMAT + 1, version="9.9"), f"format {FORMAT + 1}, of sde-recipe 9.9"),
        (lambda account: account.update(format=None), "format None, of sde-recipe .*"),
    ],
)
def test_a_checkpoint_of_another_version_is_refused_by_its_version(change, message, run, tmp_path):
    run(tmp_path)
    run(tmp_path)
    for path in tmp_path.glob("state-*"):
        tensors, account = storage.read(path, "checkpoint")
        change(account)
        storage.write(path, "checkpoint", tensors, account)
    files = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RecipeError, match=f"{message}; this is sde-recipe {__version__}, which reads format {FORMAT}"):
        run(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == files


FORGED = {
    "draws": [None, 3, {}],
    "stretches": [3, {}, [[6]], [[6, 1, 2, 3]], [["6", 1]], [6]],
    "chains": [
        None,
        3,
        {},
        {"moved": 3},
        *({"moved": moved, "diverged": {}, "reason": ""} for moved in (-1, 2**70, 1.5, "6", None)),
        *({"moved": 6, "diverged": lost, "reason": ""} for lost in ({"99": 5}, {"0": 5}, {"x": 1}, [3])),
        {"moved": 6, "diverged": {}, "reason": -1},
    ],
}
RECORDS = {
    "diverged": [{"99": 5}, {"x": 1}, {"0": "5"}, [3], -1],
    "acceptance": ["x", [2.0], [None], 3],
    "steps": [-1, "x", None, 1.5],
    "recipe": [3, "sgld\x1b[2J"],
    "report": ["No fault\x1b[31m"],
    "averages": [[1], {"kinetic_temperature": {"p": {}}}, {"thermostats": {"xi": {"r_hat": "x"}}}],
}


@pytest.mark.parametrize("name, value", [(name, value) for name, values in RECORDS.items() for value in values])
def test_a_forged_record_of_draws_is_refused_and_steers_no_terminal(name, value, tmp_path):
    storage.write(tmp_path / "x", "draws", {"theta": torch.zeros(4, 9)}, {"info": {name: value}})
    with pytest.raises(RecipeError) as refused:
        samplers.Draws.load(tmp_path / "x")
    assert "\x1b" not in str(refused.value)


def test_a_name_with_control_characters_is_refused_and_spelled_out(tmp_path):
    storage.write(tmp_path / "x", "draws", {"\x1b[2J": torch.zeros(4, 9)}, {"info": {}})
    with pytest.raises(RecipeError, match="a name has control characters"):
        samplers.Draws.load(tmp_path / "x")
    assert str(RecipeError("\x1b[2J", "a\u202eb")) == "\\x1b[2J: a\\u202eb."


def parts():
    weights = torch.nn.Parameter(torch.ones(2))
    optimizer = samplers.Optimizer([weights], samplers.SGHMC, lr=0.01, num_data=12)
    svrg = samplers.SVRG([weights], lambda w, x: (w[0] * x).square().mean(), torch.ones(4, 2), every=2)
    predictive, swag = samplers.Predictive(), samplers.SWAG(2)
    for _ in range(3):
        optimizer.zero_grad()
        (weights * torch.ones(1, 2)).square().mean().backward()
        svrg.correct(torch.ones(1, 2))
        optimizer.step()
        predictive.add(torch.zeros(2, 2))
        swag.add(weights.detach())
    return {"optimizer": optimizer, "svrg": svrg, "predictive": predictive, "swag": swag}


FORGED_PARTS = [
    ("predictive", ("draws",), [-1, "x", 1.5]),
    ("predictive", ("weight",), [-1.0, float("nan"), None]),
    ("predictive", ("probabilities",), [3]),
    ("swag", ("count",), [-1, 2**70, "x"]),
    ("swag", ("deviations",), [[], [3, 4]]),
    ("svrg", ("steps",), [-1, "x", None]),
    ("svrg", ("snapshot", "0"), [3, None]),
    ("optimizer", ("param_groups", 0, "step_number"), [-1, "x", None, 1.5]),
    ("optimizer", ("param_groups", 0, "temperature"), [-1, "x", None]),
    ("optimizer", ("param_groups", 0, "lr"), [-1, "x"]),
]


@pytest.mark.parametrize("part, path, values", FORGED_PARTS, ids=lambda x: ".".join(map(str, x)) if x else "")
def test_a_forged_state_of_a_part_is_refused(part, path, values):
    for value in values:
        state = parts()[part].state_dict()
        *above, last = path
        entries = state
        for name in above:
            entries = entries[name]
        entries[last] = value
        with pytest.raises(RecipeError):
            parts()[part].load_state_dict(state)


def test_a_state_of_an_optimizer_without_an_entry_is_refused():
    lost = parts()["optimizer"].state_dict()
    del lost["param_groups"][0]["lr"]
    with pytest.raises(RecipeError, match="has no lr"):
        parts()["optimizer"].load_state_dict(lost)


ENTRIES = [(entry, value) for entry, values in FORGED.items() for value in values]


# every second value of each entry, the one of `reason` among them
@pytest.mark.parametrize("entry, value", [slow(one) if k % 2 else one for k, one in enumerate(ENTRIES)])
def test_a_forged_checkpoint_of_a_run_is_refused(entry, value, tmp_path):
    sampled(tmp_path)
    for path in tmp_path.glob("state-*"):
        tensors, account = storage.read(path, "checkpoint")
        if account["stretches"]:
            storage.write(path, "checkpoint", tensors, account | {entry: value})
    with pytest.raises(RecipeError):
        sampled(tmp_path)


@pytest.mark.parametrize("tensor", ["step_sizes", "chains.alive", "chains.state.theta", "probe.start.its gradient"])
@pytest.mark.parametrize("change", [None, lambda x: x[..., None], lambda x: x[:1].clone()])
def test_a_checkpoint_with_other_tensors_is_refused(tensor, change, tmp_path):
    sampled(tmp_path)
    for path in tmp_path.glob("state-*"):
        tensors, account = storage.read(path, "checkpoint")
        x = tensors.pop(tensor, None)
        if x is not None:
            storage.write(path, "checkpoint", tensors if change is None else tensors | {tensor: change(x)}, account)
    with pytest.raises(RecipeError):
        sampled(tmp_path)


def test_what_is_made_is_a_regular_file(tmp_path):
    sampled(tmp_path)
    assert all(stat.S_ISREG(path.lstat().st_mode) for path in tmp_path.iterdir())


def test_draws_may_be_changed_in_place_and_the_files_keep_theirs(tmp_path):
    first = sampled(tmp_path)["theta"]
    kept = first.clone()
    first.zero_()
    assert torch.equal(sampled(tmp_path)["theta"], kept)


@pytest.mark.parametrize("damage, words", [(lambda at: os.truncate(at, 8), "has 8 bytes"), (os.unlink, "is gone")])
def test_draws_that_somebody_cuts_while_the_run_goes_on_are_named(tmp_path, damage, words):
    """What is beyond the end of a mapped file ends the process where it is touched."""
    calls = []

    def energy(theta):
        calls.append(theta)
        if len(calls) == 40:
            damage(tmp_path / "theta.draws")
        return bowl(theta)

    with pytest.raises(RecipeError, match=rf"theta.draws: it {words}, the run has made it of \d+: somebody has cut"):
        sampled(tmp_path, energy, init=torch.ones(3000), steps=100, chains=1)
