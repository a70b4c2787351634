"""Is a sampler right? Checks of recipes, of the steps compiled from them, and of samplers that others wrote.

`check(recipe, scheme)` runs the layers of checks, `audit(run)` judges a black box, `diagnose(state, H, drift, D)` says what
is wrong with an SDE; `recipes()`, `schemes()`, `energies()` and `states()` are Hypothesis strategies, PROPERTIES what holds
for all of them.
"""

from importlib import import_module

_LAZY = {
    "check": "layers",
    "LAYERS": "layers",
    "assert_stationary": "layers",
    "Report": "results",
    "Result": "results",
    "audit": "audits",
    "Audit": "audits",
    "diagnose": "diagnosis",
    "Diagnosis": "diagnosis",
    "density": "densities",
    "mutants": "mutation",
    "Mutant": "mutation",
    "PROPERTIES": "properties",
    "residual_is_zero": "properties",
    **dict.fromkeys(("recipes", "schemes", "energies", "targets", "states", "steps"), "strategies"),
}

__all__ = list(_LAZY)


def __getattr__(name):
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
