"""The README says what is so: its code runs, its commands work, its table is the catalogue."""

import re
import shlex
from pathlib import Path

import pytest

import integrators
from samplers import SGHMC, catalogue
from samplers.cli import main

README = Path(__file__).parent.parent / "README.md"
TEXT = README.read_text()
COMMANDS = [
    line
    for block in re.findall(r"```console\n(.*?)```", TEXT, re.S)
    for line in block.splitlines()
    if line.startswith("recipe ")
]


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", TEXT, re.S)


def test_python_blocks_run_one_after_the_other(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for block in blocks("python"):
        exec(compile(block, str(README), "exec"), namespace)
    assert "certificate of nose-hoover-langevin: ok" in capsys.readouterr().out
    assert namespace["fit"].count == namespace["draws"]["theta"].shape[:2].numel() == 4 * 400


def test_the_emitted_code_shown_is_the_code_emitted():
    (shown,) = blocks("python emitted")
    assert shown in integrators.compile(SGHMC, "B A O A B").source


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exit_with_success(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) in (0, None)


def test_the_table_of_stock_samplers_is_the_catalogue():
    rows = re.findall(r"^\| `(\S+)` \| (.*?) \| (.*?) \| (.*?) \|$", TEXT, re.M)
    assert rows == [(r.name, r.source, r.claim, r.scheme) for r in catalogue.values()]


def test_every_make_target_named_exists():
    targets = re.findall(r"^(\w+):", (README.parent / "Makefile").read_text(), re.M)
    assert set(re.findall(r"^make (\w+)", TEXT, re.M)) <= set(targets)
