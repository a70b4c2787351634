"""The law of every result: the value of ok, rows, plain data, and a table that escapes names."""

import json
import math
from html import escape

import pytest
import torch
from sympy import ImmutableMatrix, S, Symbol
from torch.distributions import HalfNormal, Normal, constraints

import integrators
from recipe import Recovery
from recipe.certificate import Certificate, Finding
from recipe.results import VERDICTS
from samplers import SGNHT, Draws, Optimizer, Settings, model
from samplers.results import findings
from samplers.results.accuracy import Accuracy, Figure
from samplers.testing import Audit, Diagnosis, Report, Result

SCRIPT = "<script>alert(1)</script>"
NAME, CURL = Symbol(SCRIPT), ImmutableMatrix([[0, -1], [1, 0]])
STATE = Symbol("p"), NAME


def certificate(verdict):
    return Certificate(SCRIPT, (Finding("D < 0", "no", "proved"), Finding("claim", SCRIPT, verdict, "claim")))


def comparison(value):
    return Result("layer", SCRIPT, value, 1.0, f"{SCRIPT} <= 1", subject="a & b")


def report_of_run(value, unasked=(SCRIPT,)):
    return findings.Report((findings.Finding("R-hat", SCRIPT, value, None, 0.0, math.inf, SCRIPT),), unasked)


def report(value, *left_out):
    return Report(SCRIPT, (comparison(value),), left_out, doubts=(SCRIPT,))


def audit(verdict, value):
    return Audit(SCRIPT, verdict, (SCRIPT,), report(value), (), 3.0, 1e-4, 1.0)


def accuracy(bias, error, r_hat=1.0):
    figure = Figure(SCRIPT, "mean", 0.0, 1.0, 0.1, step=bias, step_error=error)
    return Accuracy((figure,), None, {"step": SCRIPT}, r_hat)


RESULTS = {
    "certificate": (True, certificate("checked")),
    "certificate with a warning": (None, certificate("warning")),
    "open certificate": (None, certificate("open")),
    "failed certificate": (False, certificate("failed")),
    "recovery": (True, Recovery(STATE, CURL, S.Zero, "ansatz")),
    "open recovery": (None, Recovery(STATE, None, S.Zero, "not found")),
    "failed recovery": (False, Recovery(STATE, None, NAME, "not stationary")),
    "diagnosis": (True, Diagnosis(STATE, CURL, S.Zero, (comparison(0.5),), notes=(SCRIPT,))),
    "failed diagnosis": (False, Diagnosis(STATE, None, NAME, (comparison(math.nan),), (NAME, 3.0), {STATE: math.inf})),
    "report of checks": (True, report(0.5)),
    "report with a gap": (None, report(0.5, ("work", SCRIPT))),
    "failed report of checks": (False, report(math.inf, ("work", SCRIPT))),
    "audit": (True, audit("vanishing bias", 0.5)),
    "open audit": (None, audit("not finished", 0.5)),
    "failed audit": (False, audit("diverges", 3.0)),
    "report of a run": (True, report_of_run(1.0)),
    "report of nothing": (None, findings.Report((), (SCRIPT,))),
    "failed report of a run": (False, report_of_run(math.nan)),
    "accuracy": (True, accuracy(0.05, 0.01)),
    "accuracy with a bias": (False, accuracy(0.2, 0.01)),
    "accuracy with a bias unseen": (None, accuracy(0.05, 0.2)),
    "accuracy of chains apart": (None, accuracy(0.2, 0.01, r_hat=2.0)),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_ok_or_not_or_open_and_its_rows_are_text_data_and_a_table(name):
    ok, result = RESULTS[name]
    data, html = json.loads(json.dumps(result.to_dict(), allow_nan=False)), result._repr_html_()
    assert result.ok is ok and data["ok"] is ok and len(data["rows"]) == len(result.rows)
    for row, entry in zip(result.rows, data["rows"]):
        assert row.verdict in VERDICTS and row.question and row.answer
        assert all(entry[name] == getattr(row, name) for name in ("question", "answer", "verdict", "cure"))
    assert html.count("<tr>") == len(result.rows) + 1 and html.count("<td>") == 4 * len(result.rows)
    assert "<script>" not in html and ("&lt;script&gt;" in html) == (SCRIPT in str(result))


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_by_itself_is_one_line(name):
    _, result = RESULTS[name]
    assert repr(result) == f"<{result.title}>"


def test_recipes_steps_draws_and_settings_are_tables_in_a_notebook():
    draws = Draws({"theta": torch.zeros(2, 5, 3)}, info={"recipe": SCRIPT})
    settings = Settings({"step_size": 0.5}, SCRIPT, {"step_size": SCRIPT})
    weights = {"params": torch.nn.Linear(3, 2).parameters()}
    optimizer = Optimizer([weights, {"params": [torch.nn.Parameter(torch.ones(4))]}], SGNHT, lr=0.1, num_data=9)
    priors = {SCRIPT: HalfNormal(2.0), "x": lambda v: Normal(0.0, v[SCRIPT])}
    own = model(priors, lambda v: v["x"], constraints={SCRIPT: constraints.interval(0, 3)})
    things = SGNHT, integrators.compile(SGNHT), draws, settings, optimizer, own
    shown = [thing._repr_html_() for thing in things]
    assert all(html.startswith("<table><caption>") and SCRIPT not in html for html in shown)
    recipe, step, _, _, of_loop, of_model = shown
    assert of_loop.count("<tr>") == 1 + 2 and "<td>8 numbers, after 0 steps</td>" in of_loop
    assert "Relaxation in steps: p of group 0 9" in of_loop
    assert "<td>HalfNormal()</td><td>Interval(" in of_model and "<td>given variables before it</td>" in of_model
    assert "<td>thermostat mass</td>" in recipe and f"<pre>{escape(SGNHT.typeset())}</pre>" in recipe
    assert step.count("<tr>") == 1 + 3 and "Ornstein-Uhlenbeck" in step
    assert repr(settings) == f"<{SCRIPT}, tuned: step_size>"
