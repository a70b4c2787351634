"""What imports what in our packages, read off their text."""

import ast
from functools import cache
from pathlib import Path

from samplers.stock import _FILES

ROOT = Path(__file__).parent.parent
PACKAGES = ("recipe", "integrators", "samplers")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


OF_SAMPLER = {name: file for file, name in _FILES.values()}
MODULES = {module_of(path): path for path in SOURCES}


@cache
def parsed(path):
    return ast.parse(path.read_text())


def imported_names(path):
    """(module, name) of every import of a file, wherever in it it stands; the name is None of `import module`."""
    module = module_of(path)
    package = module if path.name.startswith("__init__") else module.rpartition(".")[0]
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, None) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            yield from ((".".join([*above, *filter(None, [node.module])]), alias.name) for alias in node.names)


def imports(path):
    """The modules that a file imports."""
    for module, name in imported_names(path):
        inner = f"{module}.{name}"
        yield inner if inner in MODULES else module


@cache
def arrows():
    """The imports of every module, with those that a package makes when a name of its stub is asked for."""
    edges = {}
    for module, path in MODULES.items():
        files = [file for file in (path, path.with_suffix(".pyi")) if file.exists()]
        edges[module] = {name for file in files for name in imports(file) if name in MODULES} - {module}
    return edges


@cache
def names_of(package):
    """The public names of a package, and the module that each comes from."""
    path = MODULES[package]
    stub = path.with_suffix(".pyi")
    return {name: module for module, name in imported_names(stub if stub.exists() else path)}


def named_by(module, name):
    """The module that `from module import name` leads to."""
    if f"{module}.{name}" in MODULES:
        return f"{module}.{name}"
    path = MODULES.get(module)
    found = names_of(module).get(name, module) if path and path.name == "__init__.py" else module
    return f"samplers.stock.{OF_SAMPLER[name]}" if found == "samplers.stock" and name in OF_SAMPLER else found
