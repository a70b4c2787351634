"""Packages that a user may lack: a test, an example or a file that cannot import one is skipped, with its name.

`conftest.py` makes this a plugin, for the examples of docstrings too. A test whose own processes import one is marked,
`@pytest.mark.needs("jax")`.
"""

from importlib.util import find_spec

import pytest

ABSENT = [name for name in ("arviz", "jax", "matplotlib", "pyro", "sklearn", "triton") if find_spec(name) is None]


def pytest_runtest_setup(item):
    for mark in item.iter_markers("needs"):
        for name in set(mark.args) & set(ABSENT):
            pytest.skip(f"{name} is not installed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return skipped((yield), item, call)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    return skipped(report, collector, getattr(report, "call", None))  # files that --lf leaves out have none


def skipped(report, node, call):
    """The report, of a skip where one of these packages could not be imported."""
    name = call and call.excinfo and missed(call.excinfo.value)
    if name:
        report.outcome, report.longrepr = "skipped", (str(node.path), 0, f"Skipped: {name} is not installed")
    return report


def missed(error):
    """The package whose absence an error comes from, or one of the errors of a docstring's examples."""
    if isinstance(error, ImportError) and error.name and error.name.partition(".")[0] in ABSENT:
        return error.name.partition(".")[0]
    inner = [getattr(error, "__cause__", None), *getattr(error, "failures", ()), *getattr(error, "exc_info", ())[1:2]]
    return next(filter(None, map(missed, filter(None, inner))), None)
