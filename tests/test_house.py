"""The house stands as its plan says: names are found, imports go one way, what is public is said and typed."""

import ast
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest
import stock_lines
from imported import MODULES, PACKAGES, ROOT, SOURCES, arrows, module_of, parsed

import integrators
import recipe
import samplers
import samplers.testing

PAGES = [*ROOT.glob("*.md"), *(ROOT / "examples" / "guide").glob("*.md")]


# ---- public names


def stub_imports(package):
    """What each import statement of a package's stub names: (modules of the package, or names of one of its files)."""
    stub = Path(package.__file__).with_suffix(".pyi")
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            yield node.module, [alias.name for alias in node.names]


def groups_of_names():
    """Lists of public names, written `package:name`. One import brings a whole list, so that each needs one process."""
    for package in (recipe, integrators):
        yield [f"{package.__name__}:{name}" for name in package.__all__]
    for package in (samplers, samplers.testing):
        for module, names in stub_imports(package):
            if module:
                yield [f"{package.__name__}:{name}" for name in names]
            else:
                yield from ([f"{package.__name__}:{name}:{inner}" for inner in public(package, name)] for name in names)


def public(package, module):
    return import_module(f"{package.__name__}.{module}").__all__


FRESH = """
import importlib, json, os, sys, types
import numpy, sympy, torch

assert not {"recipe", "integrators", "samplers"} & set(sys.modules)


def fetch(path):
    package, *names = path.split(":")
    value = importlib.import_module(package)
    for name in names:
        value = getattr(value, name)
    if names and isinstance(value, types.ModuleType):
        raise TypeError("a module, where the name of something in it is asked for")


def fails_in_a_new_process(paths):
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    try:
        for path in paths:
            fetch(path)
        os._exit(0)
    except BaseException as error:
        print(f"{path}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


failures = []
for package, groups in json.loads(sys.argv[1]).items():
    failures += [fails_in_a_new_process(paths) for paths in groups]
    if package != "samplers":
        importlib.import_module(package)
sys.exit(any(failures))
"""


def fresh(*arguments):
    return subprocess.run([sys.executable, "-c", *arguments], cwd=ROOT, capture_output=True, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("apart", [False, True], ids=["together", "apart"])
def test_every_public_name_is_found_by_a_fresh_interpreter(apart):
    """All names of a package in one process, and those of each import in a process of their own.

    A process is forked from an interpreter that has imported other people's packages, and the packages below.
    """
    groups = {package: [] for package in PACKAGES}
    for paths in groups_of_names():
        groups[re.match(r"\w+", paths[0])[0]].append(paths)
    assert [f"samplers:checkpoints:{name}" for name in ("Folder", "Checkpoint", "read")] in groups["samplers"]
    groups = groups if apart else {package: [sum(paths, [])] for package, paths in groups.items()}
    # a name is itself whatever was imported before; the last two are none, to see that it tells
    groups["samplers"] += [["samplers.running.sampling", "samplers:sample"], ["samplers:stock"]]
    groups["samplers"].append(["samplers:checkpoints:raed"])
    result = fresh(FRESH, json.dumps(groups))
    assert result.returncode == 1
    assert [line.split(": ")[:2] for line in result.stderr.splitlines()] == [
        ["samplers:stock", "TypeError"],
        ["samplers:checkpoints:raed", "AttributeError"],
    ]


def test_a_file_that_takes_the_place_of_a_package_is_named(tmp_path):
    (tmp_path / "samplers.py").write_text("x = 1")
    code = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; import recipe"
    assert "samplers.py takes the place of our package samplers, which lies in" in fresh(code).stderr


@pytest.mark.parametrize("other, imported", [("recipe", "integrators"), ("integrators", "recipe")])
def test_a_package_that_another_distribution_has_written_over_is_named(tmp_path, other, imported):
    for package in ("recipe", "integrators", "samplers"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / other / "__init__.py").write_text("x = 1")
    said = fresh(f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import {imported}").stderr
    assert f"another distribution has written over {tmp_path / other}" in said


def test_tables_and_stubs_follow_from_the_files_of_stock_samplers():
    for place in stock_lines.places():
        there = place.path.read_text().splitlines()
        missing = [line for line in place.lines if line not in there]
        assert place.written.splitlines() == there, f"`make stock` writes {place.path}, as the lines {missing}"


def test_dir_and_star_have_the_public_names():
    for package in (samplers, samplers.testing):
        names = {name for _, names in stub_imports(package) for name in names}
        assert set(dir(package)) == set(package.__all__) == names
        namespace = {}
        exec(f"from {package.__name__} import *", namespace)
        assert names <= set(namespace)


# ---- rooms

# The rooms, and whom each may import besides `recipe` and itself; integrators are open to samplers.
ROOMS = {
    "samplers.stock": set(),
    "samplers.files": set(),
    "samplers.target": {"integrators"},
    "samplers.results": {"integrators", "samplers.files", "samplers.target.layout"},
    "samplers.running": {"integrators", "samplers.target", "samplers.files", "samplers.results", "samplers.stock"},
    "samplers.annealing": {"integrators", "samplers.target", "samplers.results", "samplers.stock"},
    "samplers.training": {"integrators", "samplers.target", "samplers.files", "samplers.results", "samplers.stock"},
    "samplers.tuning": {"integrators", "samplers.target", "samplers.results", "samplers.running", "samplers.stock"},
}
NEVER = {"integrators.kernels": "integrators.step", "integrators.backends": "integrators.step"}


def test_the_packages_are_listed_for_the_wheel():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert set(listed) == {module_of(path) for path in SOURCES if path.name == "__init__.py"}


def test_the_version_stands_once_and_the_papers_around_it_agree():
    assert samplers.__version__ == integrators.__version__ == recipe.__version__
    assert f"\nversion: {recipe.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {recipe.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_no_files_import_each_other_in_a_circle():
    TopologicalSorter(arrows()).prepare()  # else CycleError, which names the files


def test_packages_are_imported_one_way():
    for module, targets in arrows().items():
        level = PACKAGES.index(module.split(".")[0])
        assert all(PACKAGES.index(target.split(".")[0]) <= level for target in targets), module


def within(module, room):
    return module == room or module.startswith(f"{room}.")


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_what_is_below_it(room):
    below = {room, "recipe", *ROOMS[room]}
    for module, targets in arrows().items():
        if within(module, room):
            above = [target for target in targets if not any(within(target, known) for known in below)]
            assert not above, f"{module} imports {above}"


@pytest.mark.parametrize("room", NEVER)
def test_kernels_and_printers_take_a_program_never_a_step(room):
    assert not [m for m, targets in arrows().items() if within(m, room) and NEVER[room] in targets]


def test_addresses_of_tensors_are_taken_in_one_place():
    """It asks what a tensor is before it hands its memory to compiled code."""
    takers = [str(path.relative_to(ROOT)) for path in SOURCES if re.search(r"data_ptr|_storage\(", path.read_text())]
    assert takers == ["integrators/kernels/addresses.py"]


# ---- docstrings and annotations


def has_decorator(node, name):
    return any(isinstance(decorator, ast.Name) and decorator.id == name for decorator in node.decorator_list)


def public_definitions(tree, prefix="", in_class=False):
    """(name, node, whether it is a method) of every public class, function and method; overloads belong to the last."""
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
            continue
        if not has_decorator(node, "overload"):
            yield prefix + node.name, node, in_class
        if isinstance(node, ast.ClassDef):
            yield from public_definitions(node, f"{prefix}{node.name}.", in_class=True)


def is_annotated(function, is_method):
    arguments = function.args
    names = [*arguments.posonlyargs, *arguments.args]
    if is_method and not has_decorator(function, "staticmethod"):
        names = names[1:]
    names += [*arguments.kwonlyargs, *filter(None, [arguments.vararg, arguments.kwarg])]
    return function.returns is not None and all(name.annotation is not None for name in names)


# Emitted steps begin with these texts, in their style.
@cache
def ours():
    return {module_of(path): parsed(path) for path in SOURCES if not path.name.endswith("_prelude.py")}


def test_everything_public_has_a_docstring():
    missing = [module for module, tree in ours().items() if not ast.get_docstring(tree)]
    for module, tree in ours().items():
        missing += [f"{module}: {name}" for name, node, _ in public_definitions(tree) if not ast.get_docstring(node)]
    assert not missing, "\n".join(missing)


def test_every_public_function_is_annotated():
    missing = []
    for module, tree in ours().items():
        for name, node, is_method in public_definitions(tree):
            if isinstance(node, ast.FunctionDef) and not is_annotated(node, is_method):
                missing.append(f"{module}: {name}")
    assert not missing, "\n".join(missing)


def bound_names(tree):
    """What a module calls its variables, attributes and parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, (ast.Name, ast.Attribute)) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def test_names_are_nouns():
    vague = {"own", "told", "found", "given", "made"}
    faults = {
        module: names
        for module, tree in ours().items()
        if (names := vague.intersection(name.strip("_") for name in bound_names(tree)))
    }
    assert not faults


def resolves(path):
    """Whether a dotted name leads to a module or to something in it."""
    module, *names = path.split(".")
    value = import_module(module)
    for k, name in enumerate(names):
        if not hasattr(value, name) and ".".join([module, *names[: k + 1]]) in MODULES:
            import_module(".".join([module, *names[: k + 1]]))
        if not hasattr(value, name):
            return False
        value = getattr(value, name)
    return True


def test_lines_of_prose_end_at_120_columns():
    """Those of tables and of what is to be run apart, which cannot be broken."""
    prose = {page.name: re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M) for page in PAGES}
    lines = [(name, line) for name, text in prose.items() for line in text.splitlines()]
    assert not [(name, line) for name, line in lines if len(line) > 120 and not line.startswith("|")]


def test_lines_of_templates_end_at_120_columns():
    templates = [*(ROOT / "integrators" / "backends" / "templates").iterdir()]
    assert len(templates) > 20
    assert not [(path.name, line) for path in templates for line in path.read_text().splitlines() if len(line) > 120]


def test_dotted_names_in_docstrings_and_pages_lead_to_something():
    texts = [page.read_text() for page in PAGES]
    for tree in ours().values():
        documented = [node for node in ast.walk(tree) if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))]
        texts += [ast.get_docstring(node) or "" for node in documented]
    names = {name for text in texts for name in re.findall(r"`((?:recipe|integrators|samplers)(?:\.\w+)+)", text)}
    names -= {f"recipe.{name}" for name in dir(recipe.Recipe)}  # of a recipe that is called so
    assert len(names) > 20
    assert not [name for name in sorted(names) if not resolves(name)]


def test_classes_have_names_of_their_own():
    """But a symbol and its value; a normal number and the law; rows and reports of draws and of checks; and stages."""
    twice = {"Diagonal", "Finding", "Normal", "Operator", "Potential", "Report", "Stage"}
    classes = [node.name for tree in ours().values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    public = Counter(name for name in classes if not name.startswith("_"))
    assert {name for name, count in public.items() if count > 1} == twice


def test_files_that_pages_name_are_there():
    names = {name for page in PAGES for name in re.findall(r"`([\w./-]+\.(?:py|pyi|hpp|in|md))`", page.read_text())}
    files = [f"/{path.relative_to(ROOT)}" for path in ROOT.rglob("*") if not {".venv", "out"} & set(path.parts)]
    assert len(names) > 50
    assert not [name for name in sorted(names) if not any(file.endswith(f"/{name}") for file in files)]
