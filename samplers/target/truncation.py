"""The mass that a prior has within a constraint."""

import math
from typing import Any

import torch
from torch.distributions import Cauchy, Distribution, Independent, Laplace, Normal
from torch.distributions.constraints import Constraint, independent

TRUNCATED = "Normal, Cauchy or Laplace"  # laws whose mass is known


def log_mass(law: Distribution, constraint: Constraint) -> torch.Tensor | None:
    """log P(lower < X < upper) of every number X of a Normal, Cauchy or Laplace law; None for other laws or shapes.

    With S(d) = P(X > m + d) about the centre m, and d_1 + d_2 >= 0, else both mirrored, log(S(d_1) - S(d_2)) is
    log S(d_1) + log(1 - S(d_2)/S(d_1)), which cancels in neither tail.

    >>> log_mass(Normal(torch.zeros(2), 1.0), torch.distributions.constraints.positive)
    tensor([-0.6931, -0.6931])
    """
    while isinstance(law, Independent):
        law = law.base_dist
    while isinstance(constraint, independent):
        constraint = constraint.base_constraint
    bounds = [getattr(constraint, bound, None) for bound in ("lower_bound", "upper_bound")]
    if not isinstance(law, Normal | Cauchy | Laplace) or bounds == [None, None]:
        return None
    low, high = (None if _is_infinite(bound) else torch.as_tensor(bound).to(law.loc) - law.loc for bound in bounds)
    if low is None:
        return torch.zeros_like(law.loc) if high is None else _log_tail(law, -high)
    if high is None:
        return _log_tail(law, low)
    mirrored = low + high < 0
    near, far = torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)
    log_near = _log_tail(law, near)
    return log_near + torch.log(-torch.expm1(_log_tail(law, far) - log_near))


def _is_infinite(bound: Any) -> bool:
    return bound is None or bool(torch.as_tensor(bound).isinf().all())


def _log_tail(law: Any, away: torch.Tensor) -> torch.Tensor:
    """log P(X > m + away) of a law that is symmetric about m."""
    if isinstance(law, Cauchy):
        return torch.atan2(law.scale, away).log() - math.log(math.pi)
    d = torch.where(away < 0, -away, away) / law.scale  # whose slope at 0 is that of the tail above
    above = -d - math.log(2)
    if isinstance(law, Normal):
        d = d / 2**0.5
        above = (torch.special.erfcx(d) / 2).log() - d.square()
    return torch.where(away < 0, torch.log1p(-above.exp()), above)
