"""README and guide say what is so: code runs, commands work, the table is the catalogue, links lead on."""

import ast
import inspect
import json
import re
import shlex
import warnings
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace

import pytest
from covering import covering
from imported import SOURCES, parsed
from shown import agree, run

import integrators
import samplers
from recipe import Recipe
from recipe.results import VERDICTS
from samplers import SGHMC
from samplers.cli import main
from samplers.results import report
from samplers.results.accuracy import SOURCES as ERRORS
from samplers.results.findings import R_HAT
from samplers.results.geometry import DIVERGENT
from samplers.testing import LAYERS, LeftOut, assert_stationary
from samplers.testing.subject import is_open

ROOT = Path(__file__).parent.parent
README, GUIDE = ROOT / "README.md", ROOT / "examples" / "guide"
GUIDES = sorted(GUIDE.glob("*.md"))
TUNED = {GUIDE / f"{name}.md" for name in ("choosing", "models", "report", "tuning")}
SECONDS = """bias checking coefficients data declaring domains judging loops models operators report sampling start
targets tempering training tuning words""".split()
SLOW = {GUIDE / f"{name}.md" for name in SECONDS}  # pages whose blocks run for seconds
PAGES = [README, *GUIDES, ROOT / "CONTRIBUTING.md"]


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.S | re.M)


def commands(pages, first):
    """The lines of console blocks that call a program."""
    lines = [line for page in pages for block in blocks(page, "console") for line in block.splitlines()]
    return [line for line in lines if line.startswith(f"{first} ")]


@pytest.mark.stated_seed
def test_blocks_of_the_readme_print_what_it_shows(tmp_path, monkeypatch):
    """`python tests/shown.py README.md` writes the outputs anew."""
    monkeypatch.chdir(tmp_path)
    _, outputs = run(README)
    assert len(outputs) == 2 and all(agree(*each) for each in outputs), outputs


@pytest.mark.parametrize(
    "printed, same",
    [
        ("sd 0.98 +- 0.02, ok", True),
        ("sd  0.98 +- 0.02, ok", True),
        ("sd 2.1 +- 0.02, ok", False),
        ("sd 1, bad", False),
        ("sd [1] 0.98 +- 0.02, ok", False),
    ],
)
def test_an_output_that_is_shown_is_compared_by_its_words_and_the_size_of_its_numbers(printed, same):
    assert agree("sd 1.01 +- 0.03, ok", printed) == same


def test_the_worst_coordinate_of_an_output_that_is_shown_may_be_another_one():
    assert agree("R-hat of theta[0] 1.004", "R-hat of theta[12] 1.005")
    assert not agree("R-hat of theta[0] 1.004", "R-hat of p[0] 1.004")
    assert not agree("Matrix([[0]])", "Matrix([[7]])")


OF_PYTHON = [page for page in GUIDES if blocks(page, "python")]


@pytest.mark.stated_seed
@pytest.mark.filterwarnings("ignore:.*the formulas read U itself")
@pytest.mark.parametrize("page", covering(sorted(set(OF_PYTHON) - TUNED), but=SLOW - TUNED), ids=lambda page: page.stem)
def test_python_blocks_of_the_guide_run_one_after_the_other(page, tmp_path, monkeypatch):
    """And the steps of what is declared there are those of its formulas."""
    monkeypatch.chdir(tmp_path)
    namespace, outputs = run(page)
    assert all(agree(*each) for each in outputs)
    for recipe in own_recipes(namespace):
        assert_declared(recipe, "differential")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*left out|.*the formulas read U itself")
@pytest.mark.parametrize("page", ["declaring", "domains", "networks", "operators", "targets"])
def test_every_recipe_of_the_guide_passes_every_layer(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipes = own_recipes(run(GUIDE / f"{page}.md")[0])
    assert len(recipes) >= 2
    for recipe in recipes:
        assert_declared(recipe, [*LAYERS])


def own_recipes(namespace):
    """The recipes of a session."""
    return list({id(x): x for x in namespace.values() if isinstance(x, Recipe)}.values())


def assert_declared(recipe, layers):
    """`assert_stationary`; layers are left out for open functions, operators that move, spheres and categories."""
    hidden = is_open(recipe) or recipe.fields or recipe.spheres or any(b.domain.is_discrete for b in recipe.targets)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if hidden else "error", LeftOut)
        assert_stationary(recipe, layers=layers)


@pytest.mark.parametrize("page", covering(sorted(TUNED), but=SLOW & TUNED), ids=lambda page: page.stem)
def test_blocks_of_pages_that_tune_run_with_settings_that_are_not_tuned(page, tmp_path, monkeypatch):
    """And with few pairs of chains; how they are called is checked against the signature."""
    tune, accuracy = inspect.signature(samplers.tune), samplers.Draws.accuracy

    def untuned(*args, **given):
        asked = tune.bind(*args, **given).arguments
        arguments = {"step_size": 0.05, "metropolis": True} | {k: asked[k] for k in asked.keys() & {"init"}}
        return SimpleNamespace(arguments=arguments, reasons={"step_size": "as it stands"})

    monkeypatch.setattr(samplers, "tune", untuned)
    monkeypatch.setattr("samplers.tuning.automatic.tune", untuned)
    few = {"chains": 8, "steps": 40}
    monkeypatch.setattr(samplers.Draws, "accuracy", lambda draws, **given: accuracy(draws, **given | few))
    monkeypatch.chdir(tmp_path)
    run(page)


def test_the_emitted_code_shown_is_the_code_emitted():
    (shown,) = blocks(GUIDE / "steps.md", "python emitted")
    assert shown in integrators.compile(SGHMC, "B A O A B").source


COMMANDS = commands([README, *GUIDES], "recipe")


@pytest.mark.parametrize("command", covering(COMMANDS, [c for c in COMMANDS if "--tune" not in c]))
def test_commands_exit_with_success(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) in (0, None)


def test_the_rows_of_the_guide_to_choosing_are_the_means_of_those_measured():
    rows = json.loads((ROOT / "tests" / "benchmarks" / "results" / "2026-11-22-choosing.json").read_text())
    runs = {}
    for row in rows:
        runs.setdefault((row["problem"], row["sampler"], row["multiple"]), []).append(row)
    lines = []
    for (problem, sampler, multiple), seeds in runs.items():
        bias = 100 * fmean(abs(row["bias"]) for row in seeds)
        error, ess, seconds = (fmean(row[what] for row in seeds) for what in ("error", "ess", "seconds"))
        cells = f"{bias:.1f} % +- {100 * error:.1f} | {ess:.3g} | {seconds:.3f}"
        lines.append(f"| {problem} | `{sampler}` | {multiple:g} | {cells} |")
    assert len(lines) > 15 and "\n".join(lines) in (GUIDE / "choosing.md").read_text()


def test_the_messages_that_a_page_explains_are_those_of_the_code():
    texts = {x.value for tree in map(parsed, SOURCES) for x in ast.walk(tree) if isinstance(x, ast.Constant)}
    texts = [text for text in texts if isinstance(text, str)]
    for cell in re.findall(r"^\| (`.*?) \|", (GUIDE / "messages.md").read_text(), re.M):
        for words in re.findall("`(.+?)`", cell):
            assert any(words.strip() in text for text in texts), words


def test_the_glossary_has_the_words_and_the_limits_of_the_code():
    rows = dict(re.findall(r"^\| (.+?) \| (.+) \|$", (GUIDE / "glossary.md").read_text(), re.M))
    assert {*VERDICTS, *report.QUESTIONS, *ERRORS.values()} <= {*rows}
    limits = {"acceptance": report.SLOWEST, "E-BFMI": report.LEAST_FRACTION, "divergent proposals": DIVERGENT}
    limits |= {"R-hat": R_HAT, "sample size": 1 / report.TOLERANCE**2, "Pareto index": report.HEAVY}
    assert not [word for word, limit in limits.items() if f" {limit:.6g}" not in rows[word]]


def test_every_page_of_the_guide_is_in_the_contents_of_the_site():
    build = parsed(ROOT / "examples" / "website" / "build.py")
    named = {x.value for x in ast.walk(build) if isinstance(x, ast.Constant) and isinstance(x.value, str)}
    named = {word for text in named for word in text.split()}
    assert {page.stem for page in GUIDES} - named - {"start", "stock"} == set()


def test_every_make_target_named_exists():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    named = [name for page in PAGES for name in re.findall(r"(?:^|`)make (\w+)(?:`|$|\s+#)", page.read_text(), re.M)]
    assert len(named) > 5 and set(named) <= set(targets)


def test_every_file_named_exists():
    for page in PAGES:
        text = page.read_text()
        links = [page.parent / link.split("#")[0] for link in re.findall(r"\]\((\S+?)\)", text)]
        files = re.findall(r"(?<![\w/])((?:examples|recipe|integrators|samplers|tests|\.ci)/[\w./]*\w)", text)
        for path in [*links, *(ROOT / file for file in files)]:
            assert path.exists(), f"{page.name} names {path}"


def test_the_readme_is_read_in_ten_minutes():
    assert len(README.read_text().splitlines()) <= 125
