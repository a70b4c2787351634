"""The command `recipe`: list, show, check, emit, sample and audit.

Answers go to stdout, messages to stderr; the exit code is 0, 1 for a failed check, 2 for wrong use. A FILE is Python
code of the user's own and is run as such; nothing else on the command line is evaluated.
"""

import argparse
import json
import os
import secrets
import sys
import traceback
import warnings
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from importlib.util import module_from_spec, spec_from_file_location
from math import isfinite
from pathlib import Path

import integrators
from recipe import Energy, Recipe
from recipe.errors import RecipeError, did_you_mean

from .energies.targets import TARGETS
from .stock import catalogue


@dataclass(frozen=True)
class Answer:
    """What a command found: plain data, the same as text, and the exit code."""

    data: list | dict
    text: str
    code: int = 0


# ---- the commands


def list_recipes() -> Answer:
    """The stock samplers: name, paper, claim and recommended word."""
    rows = [
        {"name": name, "source": R.source, "claim": R.claim, "scheme": str(R.scheme or "")}
        for name, R in catalogue.items()
    ]
    table = [("name", "paper", "claim", "scheme"), *(tuple(row.values()) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table)]
    return Answer(rows, "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in table))


def show(name: str) -> Answer:
    """A recipe as mathematics, its certificate, its flows and the text of its step."""
    recipe = find_recipe(name)
    certificate = recipe.check()
    data = {
        "recipe": recipe.name,
        "source": recipe.source,
        "claim": recipe.claim,
        "text": str(recipe),
        "latex": recipe.latex(),
        "certificate": certificate.to_dict(),
    }
    try:
        step = integrators.compile(recipe)
        data["step"] = {
            "scheme": str(step.scheme),
            "order": step.order,
            "exact": step.exact,
            "flows": list(map(str, step.flows.values())),
            "source": step.source,
        }
        texts = [str(step), step.source.rstrip()]
    except RecipeError as error:  # such as an opaque function, which needs recipe.bind
        data |= {"step": None, "missing": str(error)}
        texts = [f"no step: {error}"]
    return Answer(data, "\n\n".join([str(recipe), str(certificate), *texts]))


def check(name: str, scheme: str | None = None) -> Answer:
    """The certificate of a recipe, and the checks of its step: the emitted text, its law in one step and in many."""
    recipe = find_recipe(name)
    certificate = recipe.check()
    from .testing.checks import check as check_layers  # imports torch

    report = check_layers(recipe, scheme)
    ok = certificate.ok and report.ok
    data = {**certificate.to_dict(), "ok": ok, "report": report.to_dict()}
    return Answer(data, f"{certificate}\n\n{report}", code=0 if ok else 1)


def emit(name: str, scheme: str | None = None, out: str | None = None, force: bool = False) -> Answer:
    """The step of a recipe as one file that imports only math and torch."""
    step = integrators.compile(find_recipe(name), scheme)
    data, source = {"recipe": step.recipe.name, "scheme": str(step.scheme), "order": step.order}, step.standalone()
    if out is None:
        return Answer(data | {"source": source}, source.rstrip())
    _write(Path(out), source, force)
    return Answer(data | {"file": out}, f"{step.recipe.name}, {step.scheme}: {out}")


def sample(
    name: str,
    energy: str | None = None,
    init: str | None = None,
    parameters=(),
    out: str | None = None,
    plot: str | None = None,
    **options,
) -> Answer:
    """Draw from an energy with a recipe; the summary of the draws."""
    recipe, U = find_recipe(name), None if energy is None else find_energy(energy)
    for option, file in (("--out", out), ("--plot", plot)):
        if file is not None and not Path(file).absolute().parent.is_dir():
            raise RecipeError(f"{option} {file}", "there is no such folder", do="Make it first.")
    if plot is not None and Path(plot).suffix not in PICTURES:
        raise RecipeError(f"--plot {plot}", "it is no picture by its name", do=f"End it in {', '.join(PICTURES)}.")
    if init is not None:
        options["init"] = _point(recipe, init)
    elif U is not None and (not isinstance(U, Energy) or U.is_sitewise):
        raise RecipeError(f"--energy {energy}", "its number of coordinates is not known", do="Pass --init, e.g. 0,0.")
    options |= _parameters(recipe, parameters)
    from .running import sampling  # imports torch

    with _blaming(energy and _file_and_name(energy)[0]):
        draws = sampling.sample(recipe, U, **options)
    if out is not None:
        draws.save(out)
    if plot is not None:
        draws.plot().savefig(plot)
    table = draws.summary()
    rows = [
        {"name": index} | {key: x if isfinite(x) else None for key, x in row.items()}  # JSON has no nan
        for index, row in table.to_dict("index").items()
    ]
    data = {"summary": rows, "info": draws.info}
    text = [repr(draws), table.to_string(float_format="{:.4g}".format), *(() if draws.diverged else ["diverged: none"])]
    files = {"file": out, "plot": plot}
    return Answer(data | {name: file for name, file in files.items() if file}, "\n\n".join(text))


def audit(name: str, **options) -> Answer:
    """The law of a sampler that others wrote, run as a black box; exit code 1 for a law that is wrong as h -> 0."""
    run = find_function(name)
    from .testing.audits import audit as audited  # imports torch

    with _blaming(_file_and_name(name)[0]):
        found = audited(run, **options)
    return Answer(found.to_dict(), str(found), code=0 if found.ok else 2 if found.verdict == "not finished" else 1)


# ---- what the arguments stand for


def find_recipe(text: str) -> Recipe:
    """The recipe of NAME, FILE or FILE:NAME.

    >>> find_recipe("sghmc")
    Recipe('sghmc', state=(theta, p))
    """
    file, name = _file_and_name(text)
    if file is None:
        return _pick(text, name.lower(), catalogue, "stock sampler")
    found = {variable: x for variable, x in _run(file).items() if isinstance(x, Recipe)}
    named = {variable: R for variable, R in found.items() if R.name == name}
    if name is None:
        found = {variable: R for variable, R in found.items() if R not in catalogue.values()}
    elif named and name not in found:
        found, name = named, None
    return _pick(text, name, found, "Recipe")


def find_energy(text: str):
    """The energy of NAME, FILE or FILE:NAME: an Energy, or a torch function, which needs its NAME.

    >>> find_energy("double-well").U
    2*(x**2 - 1)**2
    """
    file, name = _file_and_name(text)
    if file is None:
        return _pick(text, name.lower(), TARGETS, "test energy")
    fits = lambda variable, x: isinstance(x, Energy) or variable == name and callable(x)
    return _pick(text, name, {variable: x for variable, x in _run(file).items() if fits(variable, x)}, "Energy")


def find_function(text: str):
    """The function of FILE:FUNCTION."""
    file, name = _file_and_name(text)
    if file is None:
        raise RecipeError(text, "it is not a function of a Python file", do="Write FILE.py:FUNCTION.")
    found = {variable: x for variable, x in _run(file).items() if callable(x)}
    return _pick(text, name, found, "function")


def _file_and_name(text):
    """The file and the name of FILE:NAME, None for the one that is not there; a FILE ends in .py."""
    head, _, tail = text.rpartition(":")
    if text.endswith(".py"):
        return str(Path(text).absolute()), None
    return (str(Path(head).absolute()), tail) if head.endswith(".py") else (None, text)


def _pick(text, name, found, kind):
    """The object of this name, or without a name the only one."""
    if name is None and len({id(x) for x in found.values()}) == 1:
        return next(iter(found.values()))
    if name not in found:
        what = f"it does not define one {kind}, write FILE:NAME" if name is None else f"there is no {kind} of this name"
        raise RecipeError(text, what, do=did_you_mean(name or "", found))
    return found[name]


@cache
def _run(file):
    """The names that a Python file of the user's own defines."""
    if not Path(file).is_file():
        raise RecipeError(file, "there is no such file", do="Check the path.")
    spec = spec_from_file_location(f"recipe_file_{Path(file).stem}", file)
    module = sys.modules[spec.name] = module_from_spec(spec)
    sys.path.append(str(Path(file).parent))
    with _blaming(file):
        spec.loader.exec_module(module)
    return vars(module)


@contextmanager
def _blaming(file):
    """Turn what a line of the user's file raises into a RecipeError that names the line."""
    try:
        yield
    except (Exception, SystemExit) as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        if not lines and not isinstance(error, SyntaxError):
            raise
        line = lines[-1] if lines else error.lineno or 1
        raise RecipeError(f"{file}, line {line}", f"{type(error).__name__}: {error}".rstrip(".")) from error


def _point(recipe, text):
    """The start of one chain, its numbers in the order of the coordinates."""
    import torch

    point = torch.tensor([_number(part, f"--init {text}") for part in text.split(",")])
    if recipe.targets[0].is_vector:
        return point
    if len(point) != len(recipe.targets):
        raise RecipeError(
            f"--init {text}", f"the target has {len(recipe.targets)} coordinates", do="Give one number for each."
        )
    return {b.name: x for b, x in zip(recipe.targets, point)}


def _parameters(recipe, settings):
    """Values by name from texts NAME=VALUE."""
    names, values = [s.name for s in recipe.parameters], {}
    for setting in settings:
        name, _, value = setting.partition("=")
        if name not in names:
            raise RecipeError(
                f"--set {setting}", f"{recipe.name} has no parameter {name!r}", do=did_you_mean(name, names)
            )
        values[name] = _number(value, f"--set {setting}")
    return values


def _number(text, where):
    try:
        return float(text)
    except ValueError as error:
        raise RecipeError(where, f"{text!r} is not a number", do="Write it as 0.1 or 1e-3.") from error


# ---- to files and to the terminal


def _write(path, source, force):
    """Write a file whole or not at all, over nothing but a file that we emitted."""
    try:
        if path.exists() and not (path.is_file() and (force or _is_emitted(path.read_text("utf-8", "replace")))):
            raise RecipeError(
                str(path),
                "it exists, and is not a file that we emitted",
                do="Choose another name, or pass --force to replace a file.",
            )
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            temporary.write_text(source, "utf-8")
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise RecipeError(str(path), f"it cannot be written ({error.strerror})", do="Choose another folder.") from error


def _is_emitted(source):
    return source.startswith('"""') and "\nOne step of " in source and "\ndef step(state, h, *," in source


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        raise RecipeError("usage", message, do=f"See {self.prog} --help.")


NUMBERS = {
    "chains": (64, "independent chains"),
    "steps": (10_000, "steps after the warmup"),
    "warmup": (1000, "steps before the first draw"),
    "thin": (10, "keep every thin-th step"),
    "step-size": (1e-2, "h, in units of time"),
    "seed": (0, "of all noise"),
    "temperature": (1.0, "T"),
}

PICTURES = (".png", ".pdf", ".svg")
AUDIT = {
    "step-size": (0.1, "the largest step size; h/2 and h/4 follow"),
    "time": (10.0, "of a run, steps times h"),
    "chains": (32768, "independent chains"),
    "seed": (0, "of all noise"),
    "alpha": (1e-4, "the rate of false alarms"),
}


def _version():
    try:
        return metadata.version("sde-recipe")
    except metadata.PackageNotFoundError:
        return "not installed"


def _parser():
    parser = _Parser(prog="recipe", description="Stochastic-gradient samplers, from three formulas to code.")
    parser.add_argument("--version", action="version", version=_version())
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name, run):
        sub = commands.add_parser(name, help=run.__doc__, description=run.__doc__, argument_default=argparse.SUPPRESS)
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", default=False, help="plain JSON on stdout")
        if run is audit:
            sub.add_argument(
                "name",
                metavar="FILE:FUNCTION",
                help="run(potential, init, *, steps, step_size, temperature, seed) -> theta",
            )
        elif run is not list_recipes:
            sub.add_argument("name", metavar="NAME|FILE[:NAME]", help="a stock sampler, or a Python file of your own")
        if run in (check, emit, sample):
            sub.add_argument("--scheme", metavar="WORD", help='a splitting word such as "B A O A B"')
        return sub

    def numbers(sub, table):
        for name, (default, meaning) in table.items():
            sub.add_argument(f"--{name}", type=type(default), default=default, help=f"{meaning}, default {default}")

    command("list", list_recipes)
    command("show", show)
    command("check", check)
    sub = command("emit", emit)
    sub.add_argument("-o", "--out", metavar="FILE", help="the file to write, else stdout")
    sub.add_argument("--force", action="store_true", help="overwrite any file")
    sub = command("sample", sample)
    sub.add_argument("--energy", metavar="NAME|FILE:NAME", help=f"an Energy, a torch function, or {', '.join(TARGETS)}")
    sub.add_argument("--init", metavar="X,Y", help="the start of every chain; --init=-1,0 for negative numbers")
    numbers(sub, NUMBERS)
    sub.add_argument("--backend", metavar="NAME", help="auto, torch, cpp or triton")
    sub.add_argument("--set", action="append", dest="parameters", metavar="NAME=VALUE", help="a parameter")
    sub.add_argument("--out", metavar="FILE", help="the safetensors file to write")
    sub.add_argument("--plot", metavar="FILE", help="a picture of traces, marginals and autocorrelations to write")
    sub.add_argument(
        "--checkpoint", metavar="FOLDER", help="where the run is kept; the same command goes on from there"
    )
    sub.add_argument("--no-progress", action="store_false", dest="progress", help="no progress bar")
    sub = command("audit", audit)
    numbers(sub, AUDIT)
    sub.add_argument("--limit", type=float, metavar="SECONDS", help="end with what there is after these, default 900")
    sub.add_argument("--no-progress", action="store_false", dest="progress", help="no progress bar")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command, print its answer and return the exit code."""
    try:
        options = vars(_parser().parse_args(argv))
        run, as_json = options.pop("run"), options.pop("json")
        with redirect_stdout(sys.stderr), warnings.catch_warnings():  # stdout is for the answer alone
            warnings.showwarning = lambda message, *_: _say(message)
            answer = run(**options)
    except (RecipeError, OSError) as error:
        return _say(error, code=2)
    except KeyboardInterrupt:
        return 130
    try:
        print(json.dumps(answer.data, indent=2) if as_json else answer.text, flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more when it exits
        return answer.code if isinstance(error, BrokenPipeError) else _say(error, code=2)
    return answer.code


def _say(message, code=0):
    print("recipe:", *str(message).split(), file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
