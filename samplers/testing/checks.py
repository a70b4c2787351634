"""The check of a recipe and a word by all layers."""

from collections.abc import Mapping, Sequence
from typing import Any

from integrators.step import Step
from recipe import Energy, Recipe, RecipeError
from recipe.arguments import check_known
from recipe.errors import warn

from .check_results import Inapplicable, LeftOut, Report, Result, timed
from .layers import LAYERS
from .subject import is_open, subject_of

OPEN = "a function is opaque: give it by recipe.bind()"
MOVES = "an operator is a function of the state, which a single site does not show"
ROUND = "a block lies on a sphere, whose coordinates a single site does not show"
DISCRETE = "the target is of categories, over which no layer integrates"
ACCEPTED = Inapplicable("the word leaves out a part of the drift, and only its accepted steps have the law")
PROPOSED = Inapplicable("a jump is a proposal, and only its accepted steps have the law")
OF_ACCEPTED = ("symbolic", "generator", "work")
OF_FIELDS = ("symbolic", "differential")  # layers that know such operators and spheres


def check(
    recipe: Recipe | Step | str,
    scheme: Any = None,
    *,
    pieces: Mapping[Any, Any] | None = None,
    energy: Energy | Mapping[str, Energy] | None = None,
    layers: str | Sequence[str] | None = None,
    **values: float,
) -> Report:
    """Checks a recipe and a word by all layers: the formulas, the emitted text, the law in one step and in many.

    A Step stands for the recipe, word, pieces and backend that it was compiled from. `values`: of parameters, by
    default away from 1. `energy`: an Energy of one coordinate or, where the target has several, of all of them, in
    place of a quartic, a double well and a banana; or a dict of them by the names of potentials. `layers`: names of
    some of LAYERS. Layers that had to be left out, as all but the formulas of an opaque recipe, are in `left_out` of
    the report, and warned of once; so are, in `doubts`, laws that are invariant and need not be reached.

    >>> from samplers import SGLD
    >>> check(SGLD, layers=["symbolic", "differential"]).ok
    True
    """
    report = _checked(recipe, scheme, pieces=pieces, energy=energy, layers=layers, values=values)
    _warn(report)
    return report


def _warn(report):
    """Warns the caller of `check` or `assert_stationary` of layers left out, and of laws that need not be reached."""
    if report.left_out:
        warn(report.warning, LeftOut)
    if report.doubts:
        warn(f"{report.name}: {'; '.join(report.doubts)}")


def _checked(recipe, scheme, *, layers, **options):
    names = _names(layers)
    subject = subject_of(recipe, scheme, **options)
    results: list[Result] = []
    reasons: dict[str, str] = {}  # of layers that were not run
    for name in names:
        reason: str | None = None
        if is_open(subject.recipe) and name != "symbolic":
            reason = OPEN
        elif name not in (OF_FIELDS[:1] if subject.recipe.metrics else OF_FIELDS) and subject.recipe.fields:
            reason = MOVES
        elif subject.recipe.spheres and name not in OF_FIELDS:
            reason = ROUND
        elif name != "symbolic" and any(b.domain.is_discrete for b in subject.recipe.targets):
            reason = DISCRETE
        elif subject.leaves_out and name not in OF_ACCEPTED:
            reason = ACCEPTED
        elif subject.recipe.proposals and name not in OF_ACCEPTED:
            reason = PROPOSED
        else:
            of_layer, reason = timed(LAYERS[name](subject))
            results += of_layer
        reasons |= {name: reason} if reason else {}
    left_out = tuple((name, why) for name, why in reasons.items() if not isinstance(why, Inapplicable))
    inapplicable = tuple((name, why) for name, why in reasons.items() if isinstance(why, Inapplicable))
    doubts = tuple(subject.certificate.doubts) if "symbolic" in names else ()
    return Report(subject.recipe.name, tuple(results), left_out, inapplicable, doubts)


def _names(layers):
    """The names of the chosen layers; RecipeError for an unknown one."""
    layers = [layers] if isinstance(layers, str) else list(LAYERS if layers is None else layers)
    if not layers:
        raise RecipeError("check, layers", "none is named", do=f"Choose of {', '.join(LAYERS)}, or leave it out.")
    check_known("check, layers", "there is no layer '{}'", layers, LAYERS)
    return layers


def assert_stationary(
    recipe: Recipe | Step | str,
    energy: Energy | Mapping[str, Energy] | None = None,
    *,
    scheme: Any = None,
    pieces: Mapping[Any, Any] | None = None,
    layers: str | Sequence[str] | None = None,
    **values: float,
) -> Report:
    """Returns the report of `check`; raises AssertionError, with the violated equations, if a check fails.

    >>> from samplers import SGLD
    >>> assert_stationary(SGLD, layers=["symbolic"]).left_out
    ()
    """
    report = _checked(recipe, scheme, pieces=pieces, energy=energy, layers=layers, values=values)
    if report.failures:
        failed = f"{len(report.failures)} of {len(report.rows)} checks of {report.name} failed"
        raise AssertionError("\n".join([f"{failed}:", *map(str, report.failures)]))
    _warn(report)
    return report
