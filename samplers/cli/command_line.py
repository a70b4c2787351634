"""The program: parses the options, runs one command and prints its answer."""

import argparse
import io
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from importlib import metadata
from typing import Any, NoReturn

from recipe.arguments import check_known
from recipe.errors import RecipeError, did_you_mean
from recipe.results import plain

from ..stock import catalogue
from ..target.targets import TARGETS
from .commands import STEP_SIZE, Output, audit, check, emit, list_recipes, sample, show

Defaults = Mapping[str, tuple[Any, str]]  # by option: its default and its meaning

NUMBERS: Defaults = {
    "chains": (64, "independent chains"),
    "steps": (10_000, "steps after the warmup"),
    "warmup": (1000, "steps before the first draw"),
    "thin": (10, "keep every thin-th step"),
    "step-size": (STEP_SIZE, "h, in units of time"),
    "seed": (0, "of all noise"),
    "temperature": (1.0, "T"),
}
AUDIT: Defaults = {
    "step-size": (0.1, "the largest step size; h/2 and h/4 follow"),
    "time": (10.0, "of a run, steps times h"),
    "chains": (32768, "independent chains"),
    "seed": (0, "of all noise"),
    "alpha": (1e-4, "the rate of false alarms"),
}
CODES = "Exit codes: 0 done; 1 a check failed or a law is wrong; 2 wrong use, or no verdict; 130 Ctrl-C."
OF_RECIPES = ("show", "check", "emit", "sample")  # commands whose NAME is a stock sampler
SHELLS = {"bash": "", "zsh": "autoload -U compinit bashcompinit && compinit && bashcompinit\n"}
SCRIPT = """\
_recipe() {{
    local words= word="${{COMP_WORDS[COMP_CWORD]}}"
    case "$COMP_CWORD,${{COMP_WORDS[1]}}" in
        1,*) words='{commands}';;
{options}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$word") $(compgen -f -- "$word"))
}}
complete -F _recipe recipe"""


def run(argv: list[str] | None = None) -> int:
    """Runs one command, prints its answer and returns the exit code."""
    try:
        options = _options(sys.argv[1:] if argv is None else argv)
        command, as_json = options.pop("run"), options.pop("json")
        with redirect_stdout(sys.stderr), warnings.catch_warnings():  # stdout is for the answer alone
            warnings.showwarning = lambda message, *_, **__: _say(message)
            answer = command(**options)
    except (RecipeError, OSError) as error:
        _say(error)
        return 2
    return _print(answer, as_json)


def _options(argv: list[str]) -> dict[str, Any]:
    """The options of a command line. Raises RecipeError for a command or an option that does not exist."""
    parser, commands = _parsers()
    name = next((word for word in argv if not word.startswith("-")), "list")
    check_known(name, "there is no such command", [name], commands)
    options, unknown = parser.parse_known_args(argv)
    if unknown:
        where = f"recipe {name}"
        raise RecipeError(where, f"{unknown[0]} is not known here", do=did_you_mean(unknown[0], commands[name].words))
    return vars(options)


def _print(answer: Output, as_json: bool) -> int:
    """Prints an answer and returns its exit code, or 2 where stdout cannot be written, except for a closed pipe."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # of a terminal without unicode
    try:
        print(json.dumps(plain(answer.data), indent=2) if as_json else answer.text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it exits
        if not isinstance(error, BrokenPipeError):
            _say(error)
            return 2
    return answer.code


def _say(message: object) -> None:
    print("recipe:", *str(message).split(), file=sys.stderr)


# ---- the options


class _Parser(argparse.ArgumentParser):
    """A parser that raises RecipeError."""

    def error(self, message: str) -> NoReturn:
        raise RecipeError("usage", message, do=f"See {self.prog} --help.")

    @property
    def words(self) -> list[str]:
        """The options."""
        return [word for action in self._actions for word in action.option_strings]


Options = dict[str, dict[str, Any]]  # by flags, or the name of a position: arguments of argparse


def _numbers(table: Defaults) -> Options:
    return {
        f"--{name}": {"type": type(default), "default": default, "help": f"{meaning}, default {default}"}
        for name, (default, meaning) in table.items()
    }


RECIPE: Options = {"name": {"metavar": "NAME|FILE[:NAME]", "help": "a stock sampler, or a Python file of your own"}}
SCHEME: Options = {"--scheme": {"metavar": "WORD", "help": 'a splitting word such as "B A O A B"'}}
WORK: Options = {
    "--work": {"action": "store_true", "help": "the work of each flow, by which metropolis=True accepts a step"}
}
FILES: Options = {
    "-o --out": {"metavar": "FILE", "help": "the file to write, else stdout"},
    "--force": {"action": "store_true", "help": "overwrite any file"},
}
PROGRESS: Options = {
    "--progress": {"action": argparse.BooleanOptionalAction, "help": "a progress bar, by default in a terminal"}
}
RUN: Options = {
    "--energy": {"metavar": "NAME|FILE:NAME", "help": f"an Energy, a torch function, or {', '.join(TARGETS)}"},
    "--init": {"metavar": "X,Y", "help": "the start of every chain; --init=-1,0 for negative numbers"},
    **_numbers(NUMBERS),
    "--metropolis": {"action": argparse.BooleanOptionalAction, "help": "accept or reject every step by its work"},
    "--tune": {"action": "store_true", "help": "let pilot runs find the step size, scales and starts of exact chains"},
    "--backend": {"metavar": "NAME", "help": "auto, torch, cpp or triton"},
    "--set": {"action": "append", "dest": "parameters", "metavar": "NAME=VALUE", "help": "a parameter"},
    "--out": {"metavar": "FILE", "help": "the safetensors file to write"},
    "--plot": {"metavar": "FILE", "help": "a picture of traces, marginals and autocorrelations to write"},
    "--checkpoint": {"metavar": "FOLDER", "help": "where the run is kept; the same command goes on from there"},
}
BLACK_BOX: Options = {
    "name": {
        "metavar": "FILE:FUNCTION",
        "help": "run(potential, init, *, steps, step_size, temperature, seed) -> theta",
    },
    **_numbers(AUDIT),
    "--exact": {"action": "store_true", "help": "judge the claim of no bias at any step size: at h, 2h, 4h"},
    "--limit": {"type": float, "metavar": "SECONDS", "help": "end with what there is after these, default 900"},
}


def _parsers() -> tuple[_Parser, dict[str, _Parser]]:
    """The parser of a command line, and those of the commands by name."""
    parser = _Parser(
        prog="recipe", description="Stochastic-gradient samplers, from three formulas to code.", epilog=CODES
    )
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (run, options) in COMMANDS.items():
        sub = commands.add_parser(name, help=run.__doc__, description=run.__doc__, argument_default=argparse.SUPPRESS)
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", default=False, help="plain JSON on stdout")
        for flags, keywords in options.items():
            sub.add_argument(*flags.split(), **keywords)
        if options.keys() >= PROGRESS.keys():
            sub.set_defaults(progress=sys.stderr.isatty())
    commands.choices["sample"].set_defaults(step_size=None)  # tells one that is given from the default
    return parser, commands.choices


def completion(shell: str) -> Output:
    """The completion of commands, options and samplers: eval "$(recipe completion bash)" in ~/.bashrc."""
    _, commands = _parsers()
    words = {name: [*sub.words, *(catalogue if name in OF_RECIPES else ())] for name, sub in commands.items()}
    text = SHELLS[shell] + SCRIPT.format(
        commands=" ".join(commands),
        options="\n".join(f"        *,{name}) words='{' '.join(values)}';;" for name, values in words.items()),
    )
    return Output({"script": text}, text)


def _version():
    try:
        return metadata.version("sde-recipe")
    except metadata.PackageNotFoundError:
        return "not installed"


COMMANDS: dict[str, tuple[Callable[..., Output], Options]] = {
    "list": (list_recipes, {}),
    "show": (show, RECIPE | WORK),
    "check": (check, RECIPE | SCHEME),
    "emit": (emit, RECIPE | SCHEME | FILES),
    "sample": (sample, RECIPE | SCHEME | RUN | PROGRESS),
    "audit": (audit, BLACK_BOX | PROGRESS),
    "completion": (completion, {"shell": {"choices": SHELLS, "help": "the shell of the user"}}),
}
