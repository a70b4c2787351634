"""`make check FILES=...`: the tests that are nearest to files that were changed, nearest first, for a minute.

Near a module are its own doctests, the tests that import it or a public name of it, and, of a stock sampler, all cases
of its name, the slow ones last; of a module that no test imports, the tests of those that import it. Without files:
what git finds changed. What is further away, and what a minute has no time for, is left to `make test`.
"""

import ast
import re
import subprocess
import sys
import time
from functools import cache

import pytest
from imported import MODULES, ROOT, arrows, module_of, named_by, parsed

from samplers.stock import _FILES

MINUTE = 50.0  # less what it usually takes to collect
TESTS = sorted((ROOT / "tests").glob("test_*.py"))
OF_ALL = re.compile(r"\b(CASES|catalogue|STOCK)\b")


@cache
def seen_by(test):
    """The modules that a test file imports, or reads a public name of, and the files of tests that it imports."""
    own, modules = {}, set()
    for node in ast.walk(parsed(test)):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {named_by(node.module, alias.name) for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            own[node.value.id, node.attr] = named_by(node.value.id, node.attr)
    return modules | set(own.values())


def near(module):
    """The test files that see a module, those that see the fewest others first; else those of what imports it."""
    reached, ring = {module}, {module}
    while ring:
        tests = [test for test in TESTS if ring & seen_by(test)]
        if tests:
            return sorted(tests, key=lambda test: len(seen_by(test)))
        ring = {m for m, targets in arrows().items() if targets & ring} - reached
        reached |= ring
    return []


def files_near(path):
    """The files near a file, itself included where pytest collects it, and the names of its stock samplers."""
    names = []
    if path in TESTS:
        return [path], names
    if path in MODULES.values():
        module = module_of(path)
        if module.startswith("samplers.stock."):
            names = [name for name, (file, _) in _FILES.items() if file == path.stem]
        return [path, *near(module), ROOT / "tests" / "test_house.py"], names
    word = re.compile(rf"\b{re.escape(path.stem)}\b")  # a script or a text, which tests know by its name
    return [test for test in TESTS if word.search(test.read_text())], names


def changed():
    """What git finds changed, with what it does not know yet."""
    commands = ["git diff --name-only HEAD", "git ls-files --others --exclude-standard"]
    return [line for c in commands for line in subprocess.check_output(c.split(), cwd=ROOT, text=True).splitlines()]


class Nearest:
    """Keeps the tests that are near, in their order; none begins when a minute is over."""

    def __init__(self, files, names):
        self.files, self.names = files, names
        self.end, self.left = 0.0, 0

    def rank(self, item):
        of_name = any(re.search(rf"[\[-]{re.escape(name)}[\] -]", item.nodeid) for name in self.names)
        if item.get_closest_marker("slow"):
            return len(self.files) if of_name else None
        return -1 if of_name else self.files.get(item.path)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        kept = [item for item in items if self.rank(item) is not None]
        config.hook.pytest_deselected(items=[item for item in items if self.rank(item) is None])
        items[:] = sorted(kept, key=self.rank)
        self.end = time.monotonic() + MINUTE

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item):
        if time.monotonic() > self.end:
            self.left += 1
            return True

    def pytest_terminal_summary(self, terminalreporter):
        if self.left:
            left = f"{self.left} tests that are near had no time"
            terminalreporter.write_line(f"{left}; `make test` and `make slow` have them")


def main(given):
    files, names = {}, []
    for path in given or changed():
        more, of_path = files_near((ROOT / path).resolve())
        names += of_path
        for file in more:
            files.setdefault(file, len(files))
    over_all = [test for test in TESTS if names and OF_ALL.search(test.read_text())]
    collected = dict.fromkeys([ROOT / "tests" / "test_stock.py", *over_all, *files] if names else files)
    if not collected:
        print("no test is near what was changed")
        return 0
    return pytest.main([*map(str, collected), "-m", "slow or not slow"], plugins=[Nearest(files, names)])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
