import io
import json
import os
import pydoc
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import sympy
import torch
from covering import covering, slow

import integrators
import samplers
from samplers import SGHMC, SGLD, catalogue
from samplers.cli import INTRODUCTION, main
from samplers.cli.command_line import NUMBERS, _parsers
from samplers.cli.lookup import find_energy, find_recipe
from samplers.results.draws import Draws
from samplers.target.targets import TARGETS
from samplers.testing.layers import LAYERS

COMMAND = Path(sys.executable).with_name("recipe")
BUFFERED = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
SHORT = ["--steps", "40", "--warmup", "5", "--thin", "2", "--chains", "3", "--step-size", "0.1", "--no-progress"]

MINE = """
import torch
from sympy import symbols
from recipe import Energy, Recipe, function, positive, potential, scalar, total, vector
from samplers import SGLD, SGRLD

print("a line that the file prints")
theta, p, x, y = vector("theta"), vector("p"), scalar("x"), scalar("y")
U, gamma = potential(theta), positive("gamma", default=1.0)
Mine = Recipe(name="mine", state=(theta, p), target=theta, H=U + total(p**2)/2, D={p: gamma}, Q={(theta, p): -1})
Biased = Recipe(name="biased", state=(theta, p), target=theta, H=U + total(p**2*(1 + theta**2))/2, D={p: gamma},
                Q={(theta, p): -1})
Bound = SGRLD.bind(inverse_metric=lambda theta: 1/(1 + theta**2))
Opaque = Recipe(name="opaque", state=(theta,), H=U, D={theta: function("G", theta, sign="positive")})
Planar = Recipe(name="planar", state=(x, y), target=(x, y), H=potential(x, y), D={x: 1, y: 1})
Quartic = Recipe(name="quartic", state=(theta,), target=theta, H=total(theta**4)/4, D={theta: 1})
a, b = symbols("a b", real=True)
bowl = Energy((a, b), U=a**2 + b**2/2)
any_number = Energy(theta, U=total(theta**2)/2)

def well(theta):
    return (theta**2).sum()

def broken(theta):
    theta = theta*2
    return (theta @ torch.ones(7)).sum()
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return str(path)


@pytest.fixture
def run(capsys):
    def run(*argv):
        code = main(list(argv))
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def answer(run):
    """The data of a command that works."""

    def answer(*argv):
        code, out, _ = run(*argv, "--json")
        assert code == 0
        return plain_json(out)

    return answer


@pytest.fixture
def refusal(run):
    """The one line of a command that is refused."""

    def refusal(*argv):
        code, out, error = run(*argv)
        assert (code, out) == (2, "")
        *printed, message = error.splitlines()
        assert printed in ([], ["a line that the file prints"])
        return message

    return refusal


def plain_json(text):
    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


# ---- list, show, check


def test_list_tells_name_paper_claim_and_word_of_every_stock_sampler(run, answer):
    rows = answer("list")
    assert rows == [
        {"name": R.name, "source": R.source, "claim": R.claim, "scheme": str(R.scheme or "")}
        for R in catalogue.values()
    ]
    head, *lines = run("list")[1].splitlines()
    assert head.split() == ["name", "paper", "claim", "scheme"]
    assert all(
        line.startswith(row["name"]) and line.endswith(row["scheme"]) and row["source"] in line
        for line, row in zip(lines, rows, strict=True)
    )


# Euler's step, a metric of the state, a jump, a thermostat
SHOWN = {"sgld", "sgrld", "hmc-randomised", "sgnht"}


@pytest.mark.parametrize("name", covering(catalogue, SHOWN))
def test_show_is_the_recipe_its_certificate_its_flows_and_its_step(run, answer, name):
    code, out, _ = run("show", name)
    data, R = answer("show", name), catalogue[name]
    assert code == 0 and out.startswith(f"{R}\n\n{R.typeset()}\n\n{R.check()}\n\n")
    assert data["text"] == str(R) and data["latex"] == R.latex() and data["certificate"] == R.check().to_dict()
    if data["step"]:
        step = integrators.compile(R)
        assert out.endswith(f"\n\n{step}\n\n{step.source}") and data["step"]["source"] == step.source
        assert data["step"]["flows"] == [str(flow) for flow in step.flows.values()]


def test_show_leaves_out_the_step_of_an_open_recipe_and_says_what_binds_it(run, answer, mine):
    out = run("show", "sgrld")[1]
    assert "recipe.bind(inverse_metric=...)" in out.splitlines()[-1] and "def step" not in out
    assert answer("show", "sgrld")["step"] is None
    assert "def step" in run("show", f"{mine}:Bound")[1]


def test_show_work_is_that_of_every_flow_of_the_accepted_step_or_why_there_is_none(run, answer):
    out = run("show", "ghmc", "--work")[1]
    step = integrators.metropolised(catalogue["ghmc"])
    assert out.startswith(f"{catalogue['ghmc']}\n\n") and all(f"  {flow}\n" in out for flow in step.flows.values())
    assert answer("show", "ghmc", "--work")["work"] == {"O": "0", "B": "H(z') - H(z)", "A": "H(z') - H(z)"}
    of_mala = answer("show", "mala", "--work")["work"]["Euler"]
    assert of_mala.startswith("H(z') - H(z) - T*total(N[theta]**2)/2 + [total((G*t*grad(U) - theta + theta_left)**2/G)")
    refused = answer("show", "psgld", "--work")
    assert refused["work"] is None and "its steps adapt V to the path" in refused["missing"]
    assert run("show", "sghmc-relativistic", "--work")[1].splitlines()[-1].startswith("no work: sghmc-relativistic")


def test_check_prints_the_certificate_and_the_layers_and_its_exit_code_is_the_verdict(run, answer, mine):
    code, out, _ = run("check", "sghmc", "--scheme", "A F A")
    assert code == 0 and out.startswith(f"{SGHMC.check()}\n\nchecks of sghmc: ok\n") and "[A F A, double well]" in out
    data = answer("check", "sghmc")
    assert data["ok"] and data["findings"] == SGHMC.check().to_dict()["findings"]
    assert {r["layer"] for r in data["report"]["results"]} == set(LAYERS)
    code, out, _ = run("check", f"{mine}:Biased")
    assert code == 1 and "failed   the marginal of theta is exp(-U)" in out
    assert not plain_json(run("check", f"{mine}:Biased", "--json")[1])["ok"]


def test_of_an_open_recipe_the_formulas_are_checked(run, mine):
    code, out, _ = run("check", "sgrld")
    assert code == 0 and "one-step defect" in out  # a stock recipe has a metric to be tested with
    code, out, _ = run("check", f"{mine}:Opaque")
    assert code == 0 and "checked  symbolic" in out and "checked  differential" not in out


# ---- emit


def test_emit_prints_the_standalone_file(run, answer):
    standalone = integrators.compile(SGHMC, "Lie(A,F)").standalone()
    assert run("emit", "sghmc", "--scheme", "Lie(A,F)")[1] == standalone
    assert answer("emit", "sghmc", "--scheme", "Lie(A,F)")["source"] == standalone


def test_emit_replaces_its_own_file_and_no_other(run, refusal, tmp_path):
    path = tmp_path / "sampler.py"
    run("emit", "sghmc", "-o", str(path))
    assert run("emit", "sgld", "-o", str(path))[0] == 0 and path.read_text() == integrators.compile(SGLD).standalone()
    path.write_text("x = 1\n")
    assert "not a file that we emitted" in refusal("emit", "sgld", "-o", str(path))
    assert path.read_text() == "x = 1\n"
    assert run("emit", "sgld", "-o", str(path), "--force")[0] == 0 and path.read_text() != "x = 1\n"
    assert "not a file that we emitted" in refusal("emit", "sgld", "-o", str(tmp_path), "--force")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(run, refusal, tmp_path, monkeypatch):
    path = tmp_path / "sampler.py"
    run("emit", "sgld", "-o", str(path))
    old = path.read_text()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert refusal("emit", "sghmc", "-o", str(path)) == (
        f"recipe: {path}: cannot be written (No space left on device). Choose another folder."
    )
    assert path.read_text() == old and list(tmp_path.iterdir()) == [path]


# ---- what NAME, FILE and FILE:NAME mean


@pytest.mark.parametrize("name", catalogue)
def test_a_stock_sampler_has_its_name_in_any_case(name):
    assert find_recipe(name) is find_recipe(name.upper()) is catalogue[name]


def test_a_file_is_asked_by_variable_or_by_recipe_name(mine):
    assert find_recipe(f"{mine}:Mine") is find_recipe(f"{mine}:mine")
    assert find_recipe(f"{mine}:SGLD") is SGLD
    assert find_energy(f"{mine}:well")(torch.ones(3)) == 3


def test_a_file_with_one_recipe_of_its_own_needs_no_name(tmp_path):
    path = tmp_path / "one.py"
    path.write_text("from samplers import SGLD, SGRLD\nR = S = SGRLD.bind(inverse_metric=lambda theta: 1)\n")
    assert find_recipe(str(path)) is find_recipe(f"{path}:S")


def test_a_file_with_several_recipes_lists_them(refusal, mine):
    assert refusal("check", mine) == (
        f"recipe: {mine}: it does not define one Recipe, write FILE:NAME. "
        "Known here: Biased, Bound, Mine, Opaque, Planar, Quartic."
    )


def test_several_recipes_of_one_name_are_told_apart_by_variable(refusal, tmp_path):
    path = tmp_path / "twins.py"
    path.write_text(
        "from dataclasses import replace\nfrom samplers import SGLD\n"
        "A, B = replace(SGLD, name='twin'), replace(SGLD, name='twin', scheme=None)\n"
    )
    assert "Known here: A, B." in refusal("check", f"{path}:twin")
    assert find_recipe(f"{path}:B").scheme is None


def test_a_file_may_import_its_neighbours_and_is_run_once(run, tmp_path):
    (tmp_path / "neighbour_of_mine.py").write_text("from samplers import SGLD\n")
    path = tmp_path / "mine.py"
    path.write_text(
        "from neighbour_of_mine import SGLD\nfrom samplers.target.targets import TARGETS\n"
        "U = TARGETS['gaussian']\nprint('once')\n"
    )
    code, _, error = run("sample", f"{path}:SGLD", "--energy", f"{path}:U", *SHORT)
    assert code == 0 and error.count("once") == 1


def test_what_a_file_prints_is_not_in_the_answer(run, mine):
    code, out, error = run("check", f"{mine}:Mine", "--json")
    assert plain_json(out)["ok"] and error == "a line that the file prints\n"


@pytest.mark.parametrize(
    "code, line, message",
    [
        (b"x = 1\nx/0\n", 2, "ZeroDivisionError: division by zero"),
        (b"def f():\n    raise KeyError('a')\nf()\n", 2, "KeyError: 'a'"),
        (b"x = 1\ndef f(:\n", 2, "SyntaxError: invalid syntax"),
        (b"import sys\nsys.exit(0)\n", 2, "SystemExit: 0"),
        (b"from recipe import vector\nvector('lambda')\n", 2, "RecipeError: block 'lambda': this is a keyword"),
        (b"import no_such_module\n", 1, "ModuleNotFoundError: No module named 'no_such_module'"),
        (b"x = '\xff'\n", 1, "SyntaxError: (unicode error)"),
        (b"x = 1\0\n", 1, "SyntaxError: source code string cannot contain null bytes"),
        (b"raise BaseException('odd')\n", 1, "BaseException: odd"),
        (b"class Odd(BaseException): pass\nraise Odd\n", 2, "Odd"),
        (b"x = [0]*10**15\n", 1, "MemoryError"),
        (b"-" * 100_000 + b"1\n", None, "MemoryError"),
    ],
)
def test_an_exception_of_a_file_is_one_line_that_names_its_line(refusal, tmp_path, code, line, message):
    path = tmp_path / "wrong.py"
    path.write_bytes(code)
    at = f"{path}, line {line}" if line else path
    assert refusal("check", str(path)).startswith(f"recipe: {at}: {message}")


@pytest.mark.parametrize(
    "option, message",
    [
        ("--chains=1000000000000", "the states of all chains, 1000000000000 x 1 numbers, take 3,725 GiB, and cpu has"),
        ("--chains=100000000000000000000", "chains is an integer <= 2199023255552"),
        ("--steps=1000000000000", "the draws of theta, 64 x 100000000000 x 1 numbers, take 23,842 GiB"),
        ("--steps=100000000000000000000", "steps is an integer <= 2199023255552"),
        ("--warmup=100000000000000000000", "warmup is an integer <= 2199023255552"),
    ],
)
def test_numbers_beyond_any_memory_are_refused(refusal, option, message):
    assert message in refusal("sample", "sgld", "--energy", "double-well", "--init=0", option)


# ---- sample


def test_sample_is_samplers_sample_with_the_arguments_of_the_command_line(run, answer, tmp_path):
    path = tmp_path / "draws.safetensors"
    argv = "sample sghmc --energy banana --init=-1,0.5 --seed 7 --temperature 0.5 --set C=2 --set B=1e-1".split()
    argv += ["--scheme", "O B A B", "--out", str(path), *SHORT]
    data = answer(*argv)
    settings = dict(steps=40, warmup=5, thin=2, chains=3, step_size=0.1, seed=7, temperature=0.5, scheme="O B A B")
    start = torch.tensor([-1.0, 0.5])
    expected = samplers.sample(SGHMC, TARGETS["banana"], init=start, C=2.0, B=0.1, progress=False, **settings)
    draws = Draws.load(path)
    assert torch.equal(draws["theta"], expected["theta"])
    assert data["info"] == draws.info and data["file"] == str(path)
    table = expected.summary()
    assert data["summary"] == [{"name": name, **row} for name, row in table.to_dict("index").items()]
    out = run(*argv)[1]
    assert out.startswith(repr(draws)) and out.endswith("diverged: none\n")
    assert all(f"{name} " in out for name in [*table.index, *table.columns[:-1]])


def test_the_backend_may_be_named(answer):
    result = [
        answer("sample", "sgld", "--energy", "banana", "--step-size", "0.01", "--steps", "20", "--backend", backend)
        for backend in ("torch", "cpp")
    ]
    assert [run["info"]["backend"] for run in result] == ["torch", "cpp"]
    assert all(abs(a["mean"] - b["mean"]) < 1e-4 for a, b in zip(*(run["summary"] for run in result)))


def test_the_start_is_at_zero_unless_it_is_given(answer):
    first = answer("sample", "sgld", "--energy", "funnel", *SHORT)
    assert first["summary"] == answer("sample", "sgld", "--energy", "funnel", "--init", "0,0", *SHORT)["summary"]
    assert first["summary"] != answer("sample", "sgld", "--energy", "funnel", "--init", "1,0", *SHORT)["summary"]


@pytest.mark.parametrize(
    "recipe, energy, init, names",
    [
        ("Mine", "bowl", None, ["theta[0]", "theta[1]"]),
        ("Mine", "well", "1,2,3", ["theta[0]", "theta[1]", "theta[2]"]),
        ("Mine", "any_number", "1,2,3", ["theta[0]", "theta[1]", "theta[2]"]),
        ("Planar", "bowl", None, ["x", "y"]),
        ("Planar", "bowl", "1,2", ["x", "y"]),
        ("Quartic", None, "0,0", ["theta[0]", "theta[1]"]),
    ],
)
def test_recipes_and_energies_of_a_file_are_sampled(answer, mine, recipe, energy, init, names):
    argv = ["sample", f"{mine}:{recipe}", *SHORT]
    argv += ["--energy", f"{mine}:{energy}"] if energy else []
    argv += ["--init", init] if init else []
    assert [row["name"] for row in answer(*argv)["summary"]] == names


def test_a_model_of_a_file_has_a_start_of_its_own(answer, tmp_path):
    path = tmp_path / "scales.py"
    path.write_text(
        "from torch.distributions import HalfNormal\n"
        "from samplers import model\n"
        "scales = model({'s': HalfNormal(1.0)}, lambda v: -v['s'])\n"
    )
    summary = answer("sample", "sgld", "--energy", f"{path}:scales", *SHORT)["summary"]
    assert [row["name"] for row in summary] == ["s"] and summary[0]["mean"] > 0


def test_a_picture_without_matplotlib_is_refused_before_the_run(run, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr("samplers.tuning.automatic.sample", lambda *_, **__: pytest.fail("it ran"))
    code, _, error = run("sample", "sgld", "--energy", "gaussian", "--plot", str(tmp_path / "draws.png"))
    assert code == 2 and "matplotlib cannot be imported" in error


@pytest.mark.slow
def test_a_run_tunes_itself_and_begins_with_its_settings(run, answer, brief):
    argv = "sample sgld --energy gaussian --tune --steps 40 --warmup 5 --no-progress".split()
    expected = samplers.tune(SGLD, TARGETS["gaussian"], init=torch.zeros(2), chains=64)
    info = answer(*argv)["info"]
    assert info["tuned"] == expected.reasons and info["step_size"] == expected.arguments["step_size"]
    assert run(*argv)[1].startswith(str(expected))


def test_a_step_size_beside_tune_is_refused(run):
    code, _, err = run("sample", "sgld", "--energy", "double-well", "--tune", "--step-size", "0.1", "--no-progress")
    assert code == 2 and "--step-size 0.1: --tune chooses the step size. Leave out one of the two." in err


def test_steps_are_accepted_or_rejected_where_it_is_asked_and_of_hmc_unless_it_is_denied(answer):
    argv = ["--energy", "double-well", *SHORT]
    for asked in (["sgld", "--metropolis"], ["hmc"]):
        assert len(answer("sample", *asked, *argv)["info"]["acceptance"]) == 3
    assert "acceptance" not in answer("sample", "hmc", *argv, "--no-metropolis")["info"]


def test_the_only_function_of_a_file_is_its_energy(answer, refusal, tmp_path):
    path = tmp_path / "en.py"
    path.write_text("from math import sqrt\n\ndef U(theta):\n    return (theta**2).sum() / sqrt(4)\n")
    argv = ("sample", "sgld", "--energy", str(path), "--init", "0,0", *SHORT)
    assert len(answer(*argv)["summary"]) == 2
    path = tmp_path / "two.py"
    path.write_text("def U(theta):\n    return theta.sum()\n\ndef V(theta):\n    return U(theta)\n")
    said = refusal("sample", "sgld", "--energy", str(path), "--init", "0,0", *SHORT)
    assert "it does not define one Energy, write FILE:NAME. Known here: U, V." in said


def test_a_run_has_one_count_of_diagnostics_in_json(answer):
    data = answer("sample", "hmc", "--energy", "double-well", *SHORT)
    assert data["info"]["report"] == data["report"]["verdict"]


def test_an_exception_of_an_energy_names_its_line(refusal, mine):
    line = MINE[: MINE.index("torch.ones(7)")].count("\n") + 1
    message = refusal("sample", f"{mine}:Mine", "--energy", f"{mine}:broken", "--init", "0,0", *SHORT)
    assert message.startswith(f"recipe: {mine}, line {line}: RuntimeError: ") and "Give init" in message


@pytest.mark.filterwarnings("always::RuntimeWarning")
def test_diverged_chains_are_named(run):
    # Euler on x^4 at this step size loses each of 64 chains with a chance near 1/2.
    argv = "sample sgld --energy quartic --chains 64 --steps 20 --warmup 0 --thin 1 --step-size 0.42 --no-progress"
    argv = argv.split()
    _, out, error = run(*argv)
    diverged = plain_json(run(*argv, "--json")[1])["info"]["diverged"]
    assert 8 < len(diverged) < 64
    named = ", ".join(f"chain {chain} at step {step}" for chain, step in list(diverged.items())[:8])
    assert f"{named}, and {len(diverged) - 8} others" in out
    assert "diverged: none" not in out
    lost, left_out = error.splitlines()
    assert f"leaves out {len(diverged)} of 64 chains" in left_out
    assert lost.startswith(f"recipe: sgld, sample: {len(diverged)} of 64 chains are lost")


def test_what_is_not_a_number_is_null_in_json(answer):
    data = answer("sample", "sgld", "--energy", "quartic", *SHORT, "--chains", "1")
    assert data["summary"][0]["r_hat"] is None


@pytest.mark.parametrize(
    "argv, message",
    [
        ("shw sgld", "shw: there is no such command. Did you mean 'show'?"),
        ("show sgld --wrok", "recipe show: --wrok is not known here. Did you mean '--work'?"),
        ("--json", "usage: the following arguments are required: COMMAND"),
        ("show", "usage: the following arguments are required: NAME"),
        ("show sghmcc", "sghmcc: there is no stock sampler of this name. Did you mean 'sghmc'?"),
        ("show nothing.py", "nothing.py: there is no such file"),
        ("show MINE:Min", "MINE:Min: there is no Recipe of this name. Did you mean 'Mine'?"),
        ("show MINE:bowl", "MINE:bowl: there is no Recipe of this name"),
        ("show MINE:", "MINE:: there is no Recipe of this name"),
        ("emit sghmc --scheme BAOAX", "scheme 'BAOAX': no piece is named 'X'"),
        ("emit sgrld", "Give it: recipe.bind(inverse_metric=...)"),
        ("emit sghmc -o no/such/folder.py", "no/such/folder.py: cannot be written (No such file or directory)"),
        ("sample sgld", "the recipe's U is opaque, but no energy is given"),
        ("sample sgld", "Pass --energy gaussian, another test energy, or FILE.py:FUNCTION."),
        ("sample sgld --energy gausian", "gausian: there is no test energy of this name. Did you mean 'gaussian'?"),
        ("sample sgld --energy MINE", "it does not define one Energy, write FILE:NAME. Known here: any_number, bowl."),
        ("sample sgld --energy MINE:Mine", "MINE:Mine: there is no Energy of this name"),
        ("sample sgld --energy MINE:well", "--energy MINE:well: its number of coordinates is not known. Pass --init"),
        ("sample sgld --energy MINE:any_number", "its number of coordinates is not known. Pass --init"),
        ("sample sgld --energy gaussian --init 0,a", "--init 0,a: 'a' is not a number"),
        ("sample sgld --energy gaussian --init nan,0", "it is not finite"),
        ("sample MINE:Planar --energy gaussian --init 1", "--init 1: the target has 2 coordinates"),
        ("sample sghmc --energy gaussian --set c=1", "--set c=1: sghmc has no parameter 'c'"),
        ("sample MINE:Mine --energy gaussian --set gama=1", "mine has no parameter 'gama'. Did you mean 'gamma'?"),
        ("sample sghmc --energy gaussian --set seed=1", "sghmc has no parameter 'seed'"),
        ("sample sghmc --energy gaussian --set C", "--set C: '' is not a number"),
        ("sample sghmc --energy gaussian --set C=2*3", "--set C=2*3: '2*3' is not a number"),
        ("sample sghmc --energy gaussian --set C=-1", "'C' must be positive, got -1"),
        ("sample sghmc --energy gaussian --set C=inf", "'C' is not finite"),
        ("sample sgld --energy gaussian --steps 1.5", "usage: argument --steps: invalid int value: '1.5'. See recipe"),
        ("sample sgld --energy gaussian --steps -1", "steps is an integer >= 1, got -1"),
        ("sample sgld --energy gaussian --step-size 0", "the step size is a positive number, got 0.0"),
        ("sample sgld --energy gaussian --temperature -1", "the temperature is a number >= 0, got -1.0"),
        ("sample sgld --energy gaussian --out MINE", "--out MINE: it exists, and is not a file of draws"),
        ("sample sgld --energy gaussian --out draws.npz", "--out draws.npz: draws are written as safetensors, not npz"),
        ("sample sgld --energy gaussian --out no/such/draws", "--out no/such/draws: there is no such folder"),
    ],
)
def test_wrong_use_gets_one_line_that_says_what_to_do(refusal, mine, argv, message):
    said = refusal(*argv.replace("MINE", mine).split(), *(["--no-progress"] if argv.startswith("sample") else []))
    assert said.startswith("recipe: ") and message.replace("MINE", mine) in said


@pytest.mark.parametrize(
    "argv",
    [
        ["show", "__import__('os').mkdir('hacked')"],
        ["emit", "sghmc", "--scheme", "__import__('os').mkdir('hacked')"],
        ["sample", "sgld", "--energy", "__import__('os').mkdir('hacked')"],
        ["sample", "sgld", "--energy", "gaussian", "--init", "__import__('os').mkdir('hacked')"],
        ["sample", "sghmc", "--energy", "gaussian", "--set", "C=__import__('os').mkdir('hacked')"],
    ],
)
def test_nothing_on_the_command_line_is_evaluated(refusal, tmp_path, monkeypatch, argv):
    monkeypatch.chdir(tmp_path)
    refusal(*argv)
    assert not list(tmp_path.iterdir())


# ---- the process


@pytest.mark.parametrize("imported", ["sympy", slow("integrators.compiler"), slow("torch")])
def test_ctrl_c_while_modules_are_imported_ends_quietly(imported):
    code = f"""
import signal
import sys

class Pressing:
    def find_spec(self, name, path, target=None):
        if name == "{imported}":
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Pressing())
from samplers.cli import INTRODUCTION, main
sys.exit(main(["sample", "sgld", "--energy", "banana", "--steps", "1", "--no-progress"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_reader_that_leaves_early_is_no_error():
    process = subprocess.Popen([COMMAND, "show", "sgld"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=BUFFERED)
    process.stdout.close()
    assert process.stderr.read() == b"" and process.wait() == 0
    process.stderr.close()


def test_an_answer_that_cannot_be_written_is_an_error():
    with open(os.devnull) as read_only:
        done = subprocess.run(
            [COMMAND, "show", "sgld"], stdout=read_only, stderr=subprocess.PIPE, text=True, env=BUFFERED
        )
    assert (done.returncode, done.stderr) == (2, "recipe: [Errno 9] Bad file descriptor\n")


def test_alone_it_says_what_it_can_do_before_anything_is_imported():
    code = "import sys; from samplers.cli import main; main([]); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == INTRODUCTION and {"torch", "sympy", "numpy"}.isdisjoint(done.stderr.split())


def test_the_examples_of_the_introduction_are_commands():
    _, commands = _parsers()
    examples = re.findall(r"^  recipe (\w+)", INTRODUCTION, flags=re.M)
    assert len(examples) == 3 and set(examples) <= set(commands)


@pytest.mark.parametrize(
    "words, completed",
    [
        ("s", {"show", "sample"}),
        ("show sghmc-", {name for name in catalogue if name.startswith("sghmc-")}),
        ("sample --ch", {"--chains", "--checkpoint"}),
    ],
)
def test_a_shell_completes_commands_samplers_and_options(run, tmp_path, words, completed):
    _, script, _ = run("completion", "bash")
    ask = f"COMP_WORDS=(recipe {words}); COMP_CWORD={len(words.split())}; _recipe; echo ${{COMPREPLY[@]}}"
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert set(done.stdout.split()) == completed
    assert run("completion", "zsh")[1].endswith(script)


@pytest.mark.parametrize("encoding, drift", [("utf8", "⎜- ─── - ∇U⎟ dt + √2⋅√C dW_p"), ("ascii", "- ??? - ?U? dt")])
def test_equations_are_typeset_and_harm_no_terminal_without_unicode(encoding, drift, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding))
    assert main(["show", "sghmc"]) == 0
    sys.stdout.flush()
    assert drift in written.getvalue().decode(encoding)


def test_help_on_a_stock_sampler_is_its_own():
    text = pydoc.render_doc(SGHMC)
    assert SGHMC.doc.splitlines()[0] in text and SGHMC.source in text
    assert pydoc.render_doc(type(SGHMC)).startswith("Python Library Documentation: class Recipe")


def test_version_and_help_are_told(capsys):
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    assert capsys.readouterr().out == f"{metadata.version('sde-recipe')}\n"
    with pytest.raises(SystemExit, match="0"):
        main(["sample", "--help"])
    out = " ".join(capsys.readouterr().out.split())
    assert "Exit codes: 0 done; 1 a check failed" in " ".join(_parsers()[0].format_help().split())
    assert all(
        f"--{name} " in out and f"{meaning}, default {default}" in out for name, (default, meaning) in NUMBERS.items()
    )


# ---- the test energies


def density(energy, *points):
    """exp(-U) at the points, not normalised."""
    return np.exp(-sympy.lambdify(energy.coordinates, energy.U, "numpy")(*points))


def test_the_gaussian_has_standard_deviations_1_and_2_and_correlation_half():
    E = TARGETS["gaussian"]
    assert sympy.hessian(E.U, E.coordinates).inv() == sympy.Matrix([[1, 1], [1, 4]])


@pytest.mark.parametrize("name, marginal", [("banana", lambda x: -(x**2) / 2), ("funnel", lambda x: -(x**2) / 18)])
def test_banana_and_funnel_have_a_gaussian_first_coordinate(name, marginal):
    y = np.linspace(-60, 60, 400_001)
    constants = [np.log(density(TARGETS[name], x, y).sum()) - marginal(x) for x in (-1.5, 0.0, 2.0, 4.0)]
    assert np.ptp(constants) < 1e-9


def test_double_well_and_student_are_what_they_say():
    well, x = TARGETS["double-well"].U, TARGETS["double-well"].coordinates[0]
    assert [well.subs(x, at) for at in (-1, 0, 1)] == [0, 2, 0]
    grid = np.sinh(np.linspace(-12, 12, 100_001))
    weights = density(TARGETS["student"], grid) * np.gradient(grid)
    assert abs((grid**2 * weights).sum() / weights.sum() - 5 / 3) < 1e-6
