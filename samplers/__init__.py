"""Stock samplers, and running a sampler: `sample`, `posterior`, `Draws`."""

from importlib import import_module

from . import stock
from .stock import *
from .stock import CATALOGUE as catalogue

_LAZY = {"sample": "sampling", "posterior": "gradients", "score_variance": "gradients", "Draws": "draws", "Phase": "phases",
         "Optimizer": "optimizer", "Minibatches": "minibatches", "Checkpoint": "checkpoints", "Predictive": "predictive",
         "PredictiveMoments": "predictive", "SWAG": "swag", "control_variate": "control_variates", "find_mode": "control_variates",
         "SVRG": "control_variates",
         "schedules": None, "scores": None, "distributed": None, "diagnostics": None}  # these import torch, or are seldom wanted

__all__ = [*stock.__all__, "catalogue", *_LAZY]


def __getattr__(name):
    if name in _LAZY and _LAZY[name] is None:
        return import_module(f".{name}", __name__)
    if name in _LAZY:
        return getattr(import_module(f".{_LAZY[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
