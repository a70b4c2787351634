"""Stock samplers, and running a sampler: `sample`, `posterior`, `Draws`."""

from importlib import import_module

from . import stock
from .stock import *
from .stock import CATALOGUE as catalogue

_LAZY = {
    "sample": "running.sampling",
    "Phase": "running.phases",
    "posterior": "energies.posterior",
    "score_variance": "energies.posterior",
    "control_variate": "energies.control_variates",
    "find_mode": "energies.control_variates",
    "Optimizer": "training.optimizer",
    "Minibatches": "training.minibatches",
    "Checkpoint": "training.checkpoint",
    "SVRG": "training.svrg",
    "Draws": "results.draws",
    "Predictive": "results.predictive",
    "PredictiveMoments": "results.predictive",
    "SWAG": "results.swag",
}  # these import torch
_MODULES = ("checkpoints", "diagnostics", "distributed", "schedules", "scores", "testing")

__all__ = [*stock.__all__, "catalogue", *_LAZY, *_MODULES]


def __dir__():
    return sorted([*globals(), *_LAZY, *_MODULES])


def __getattr__(name):
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _LAZY:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
