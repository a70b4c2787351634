"""The commands of the command line, each a function from its options to an Output."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import integrators
from integrators.relaxation import relaxation_steps
from recipe import Energy, Recipe
from recipe.arguments import check_known
from recipe.errors import RecipeError
from recipe.results import aligned

from ..files import regular
from ..stock import catalogue
from .lookup import blaming, file_and_name, find_energy, find_function, find_recipe

MOMENTUM = 0.9  # at which relaxation is shown
PICTURES = (".png", ".pdf", ".svg")
STEP_SIZE = 1e-2  # by default


@dataclass(frozen=True)
class Output:
    """The answer of a command as data, results among them, and as text, and the exit code."""

    data: Any
    text: str
    code: int = 0


# ---- the commands


def list_recipes() -> Output:
    """The stock samplers: name, paper, claim and recommended word."""
    rows: list[dict[str, Any]] = [
        {"name": name, "source": R.source, "claim": R.claim, "scheme": str(R.scheme or "")}
        for name, R in catalogue.items()
    ]
    table = [("name", "paper", "claim", "scheme"), *(tuple(row.values()) for row in rows)]
    return Output(rows, "\n".join(aligned(table)))


def show(name: str, work: bool = False) -> Output:
    """A recipe as mathematics, its certificate, its flows and the text of its step."""
    recipe = find_recipe(name)
    if work:
        return _show_work(recipe)
    certificate = recipe.check()
    data: dict[str, Any] = {
        "recipe": recipe.name,
        "source": recipe.source,
        "claim": recipe.claim,
        "text": str(recipe),
        "latex": recipe.latex(),
        "certificate": certificate,
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
    data["relaxation"], relaxation = _relaxation(recipe)
    return Output(data, "\n\n".join([str(recipe), recipe.typeset(), str(certificate), *relaxation, *texts]))


def _relaxation(recipe: Recipe) -> tuple[dict[str, dict[str, float]], list[str]]:
    """The relaxation times of auxiliary blocks in steps, at h = 1 and the defaults, and by a momentum of SGD."""
    steps = {"steps at h = 1": relaxation_steps(recipe, 1.0, {})}
    settings = {s.name for e in recipe.learning_rate().values() for s in e.free_symbols}
    if "momentum" in settings:
        converted = recipe.convert(lr=MOMENTUM, momentum=MOMENTUM)
        steps[f"steps at momentum {MOMENTUM}"] = relaxation_steps(recipe, converted.pop("step_size"), converted)
    lines = [f"  {what}: {', '.join(f'{b} {k:.3g}' for b, k in row.items())}" for what, row in steps.items() if row]
    return steps, ["\n".join(["relaxation, by linearisation:", *lines])] if lines else []


def _show_work(recipe: Recipe) -> Output:
    """The answer with a recipe and the work of the flows of its accept-reject step, or the reason why there is none."""
    data: dict[str, Any] = {"recipe": recipe.name, "text": str(recipe)}
    try:
        step = integrators.metropolised(recipe)
    except RecipeError as error:  # such as adaptations that run
        return Output(data | {"work": None, "missing": str(error)}, f"{recipe}\n\nno work: {error}")
    formulas = step.work_formulas
    title, *flows = str(step).splitlines()
    lines = [f"{flow}\n     work = {formula}" for flow, formula in zip(flows, formulas.values(), strict=True)]
    notes = "  z is the state before a flow, z' the one after it, x_left the block x of z"
    return Output(
        data | {"scheme": str(step.scheme), "H": str(recipe.H), "work": formulas},
        "\n".join([f"{recipe}\n", title, *lines, notes]),
    )


def check(name: str, scheme: str | None = None) -> Output:
    """The certificate of a recipe, and the checks of its step: the emitted text, its law in one step and in many."""
    recipe = find_recipe(name)
    certificate = recipe.check()
    from ..testing.check_results import LeftOut
    from ..testing.checks import check as check_layers  # imports torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftOut)  # the report says it in the same words
        report = check_layers(recipe, scheme)
    ok = False if False in (certificate.ok, report.ok) else certificate.ok and report.ok
    data = {**certificate.to_dict(), "ok": ok, "report": report}
    return Output(data, f"{certificate}\n\n{report}", code=1 if ok is False else 0)


def emit(name: str, scheme: str | None = None, out: str | None = None, force: bool = False) -> Output:
    """The step of a recipe as one file that imports only math and torch."""
    step = integrators.compile(find_recipe(name), scheme)
    data: dict[str, Any] = {"recipe": step.recipe.name, "scheme": str(step.scheme), "order": step.order}
    source = step.standalone()
    if out is None:
        return Output(data | {"source": source}, source.rstrip())
    with regular.refused(out, do="Choose another folder."):
        path = Path(out)
        if path.exists() and not (path.is_file() and (force or _is_emitted(path.read_text("utf-8", "replace")))):
            advice = "Choose another name, or pass --force to replace a file."
            raise RecipeError(out, "it exists, and is not a file that we emitted", do=advice)
        regular.replace(path, source.encode())
    return Output(data | {"file": out}, f"{step.recipe.name}, {step.scheme}: {out}")


def _is_emitted(source: str) -> bool:
    return source.startswith('"""') and "\nOne step of " in source and "\ndef step(state, h, *," in source


def sample(
    name: str,
    energy: str | None = None,
    init: str | None = None,
    parameters: Sequence[str] = (),
    out: str | None = None,
    plot: str | None = None,
    tune: bool = False,
    step_size: float | None = None,
    **options: Any,
) -> Output:
    """Draws from an energy by a recipe, with their summary and the report of their checks."""
    recipe = find_recipe(name)
    U = None if energy is None else find_energy(energy)
    _check_outputs(out, plot)
    from ..target.target import check_energy_is_asked_for  # imports torch

    check_energy_is_asked_for(recipe, U, name, "Pass --energy gaussian, another test energy, or FILE.py:FUNCTION.")
    if init is not None:
        options["init"] = _point(recipe, init)
    elif U is not None and (U.is_sitewise if isinstance(U, Energy) else not hasattr(U, "starts")):
        raise RecipeError(f"--energy {energy}", "its number of coordinates is not known", do="Pass --init, e.g. 0,0.")
    options |= _parameters(recipe, parameters)
    options["step_size"] = STEP_SIZE if step_size is None else step_size
    if tune:
        if step_size is not None:
            what = "--tune chooses the step size"
            raise RecipeError(f"--step-size {step_size}", what, do="Leave out one of the two.")
        options |= {"step_size": "auto", "metropolis": options.get("metropolis") is not False}
    from ..tuning import automatic  # imports torch

    with blaming(energy and file_and_name(energy)[0]):
        draws = automatic.sample(recipe, U, **options)
    if out is not None:
        draws.save(out)
    if plot is not None:
        draws.plot().savefig(plot)
    table, report = draws.summary(), draws.report()
    text = [str(automatic.Settings({}, recipe.name, draws.info["tuned"]))] if tune else []
    text += [repr(draws), table.text(), str(report)]
    text += [] if draws.diverged else ["diverged: none"]
    rows = [{"name": index} | row for index, row in table.to_dict("index").items()]
    files = {name: file for name, file in (("file", out), ("plot", plot)) if file is not None}
    info = draws.info | {"report": report.verdict}
    return Output({"summary": rows, "info": info, "report": report, **files}, "\n\n".join(text))


def _check_outputs(out: str | None, plot: str | None) -> None:
    """Refuses files that cannot be written, before anything is drawn."""
    for option, file in (("--out", out), ("--plot", plot)):
        if file is not None and not Path(file).absolute().parent.is_dir():
            raise RecipeError(f"{option} {file}", "there is no such folder", do="Make it first.")
    if out is not None and Path(out).is_file() and not _is_of_draws(Path(out)):
        raise RecipeError(f"--out {out}", "it exists, and is not a file of draws", do="Choose another name.")
    if out is not None:
        from ..files import storage  # imports torch

        storage.check_suffix(f"--out {out}", Path(out))
    if plot is not None and Path(plot).suffix not in PICTURES:
        raise RecipeError(f"--plot {plot}", "its name is not that of a picture", do=f"End it in {', '.join(PICTURES)}.")
    if plot is not None:
        from ..results.tensor_checks import package  # imports torch

        package(f"--plot {plot}", "matplotlib.figure")


def _is_of_draws(path: Path) -> bool:
    """Whether a file begins like a file of `Draws.save`: eight bytes of length, and a header."""
    with open(path, "rb") as file:
        return b'{"__metadata__":{"draws":' in file.read(64)


def audit(name: str, **options: Any) -> Output:
    """The law of a sampler that others wrote, run as a black box; exit code 1 for a wrong law, 2 without a verdict."""
    run = find_function(name)
    from ..testing.audits import audit as audited  # imports torch

    with blaming(file_and_name(name)[0]):
        result = audited(run, **options)
    return Output(result, str(result), {True: 0, False: 1, None: 2}[result.ok])


# ---- values of the options


def _point(recipe: Recipe, text: str) -> Any:
    """The start of one chain, its numbers in the order of the coordinates."""
    import torch

    point = torch.tensor([_number(part, f"--init {text}") for part in text.split(",")], device="cpu")
    if recipe.targets[0].is_vector:
        return point
    if len(point) != len(recipe.targets):
        what = f"the target has {len(recipe.targets)} coordinates"
        raise RecipeError(f"--init {text}", what, do="Give one number for each.")
    return {b.name: x for b, x in zip(recipe.targets, point)}


def _parameters(recipe: Recipe, settings: Sequence[str]) -> dict[str, float]:
    names = [s.name for s in recipe.parameters]
    values = {}
    for setting in settings:
        name, _, value = setting.partition("=")
        check_known(f"--set {setting}", f"{recipe.name} has no parameter {{!r}}", [name], names)
        values[name] = _number(value, f"--set {setting}")
    return values


def _number(text: str, where: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise RecipeError(where, f"{text!r} is not a number", do="Write it as 0.1 or 1e-3.") from error
