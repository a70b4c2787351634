"""Statistics of chains by ArviZ, one for every component of `(chains, draws, *shape)`."""

import math
import warnings
from collections.abc import Callable
from types import ModuleType

import numpy as np
import torch

LEAST = 4  # draws that a statistic needs


def arviz_module() -> ModuleType:
    """ArviZ, imported when it is first asked for, without its notice."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing a major refactor", FutureWarning)
        import arviz

        return arviz


def sample_size_of_ranks(values: torch.Tensor) -> torch.Tensor:
    """The effective sample size of the rank-normalised values, ESS of the bulk: `(*shape)` in float64."""
    return _per_component(values, lambda x: arviz_module().ess(x, method="bulk"))


def sample_size_of_mean(values: torch.Tensor) -> torch.Tensor:
    """The effective sample size of the mean: `(*shape)` in float64."""
    return _per_component(values, lambda x: arviz_module().ess(x, method="mean"))


def autocorrelation_time(values: torch.Tensor) -> torch.Tensor:
    """The integrated autocorrelation time, chains draws/ESS of the mean, in draws: `(*shape)` in float64."""
    return _per_component(values, lambda x: x.size / arviz_module().ess(x, method="mean"))


def split_r_hat(values: torch.Tensor) -> torch.Tensor:
    """The rank-normalised split R-hat: `(*shape)` in float64; nan for one chain."""
    return _per_component(values, lambda x: arviz_module().rhat(x, method="rank"), chains=2)


def _per_component(values: torch.Tensor, statistic: Callable, chains: int = 1) -> torch.Tensor:
    """A statistic of (chains, draws) for every component; nan where it has none, as ArviZ would log a line of each."""
    x = values.to("cpu", torch.float64)
    x = x.flatten(2) if x.dim() > 2 else x[:, :, None]
    result = torch.full(x.shape[2:], math.nan, dtype=torch.float64, device="cpu")
    if len(x) >= chains and x.shape[1] >= LEAST:
        for k, component in enumerate(x.unbind(2)):
            if component.isfinite().all() and component.min() < component.max():
                # ArviZ takes a range below 1e-15 for a constant. R-hat of chains that are stuck apart is inf.
                with np.errstate(divide="ignore"):
                    result[k] = float(statistic(((component - component.mean()) / component.std()).numpy()))
    return result.reshape(values.shape[2:])
