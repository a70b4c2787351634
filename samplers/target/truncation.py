"""Priors of one number within a constraint: their mass there, and draws."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from scipy.special import ndtri_exp
from torch.distributions import Cauchy, Independent, Laplace, Normal
from torch.distributions.constraints import Constraint, independent

KNOWN = "Normal, Cauchy or Laplace"  # laws whose tails are


@dataclass(frozen=True)
class Truncated:
    """A Normal, Cauchy or Laplace law within an interval, of each number; `low`, `high`: None without an end.

    >>> positive = truncated(Normal(torch.zeros(2), 1.0), torch.distributions.constraints.positive)
    >>> positive.log_mass()
    tensor([-0.6931, -0.6931])
    >>> bool((positive.draw() > 0).all())
    True
    """

    law: Any
    low: torch.Tensor | None
    high: torch.Tensor | None

    def log_mass(self) -> torch.Tensor:
        """log P(low < X < high) of every number X.

        With S(d) = P(X > m + d) about the centre m, and d_1 + d_2 >= 0, else both mirrored, log(S(d_1) - S(d_2)) is
        log S(d_1) + log(1 - S(d_2)/S(d_1)), which cancels in neither tail.
        """
        if self.low is None:
            return torch.zeros_like(self.law.loc) if self.high is None else self._log_tail(self.law.loc - self.high)
        if self.high is None:
            return self._log_tail(self.low - self.law.loc)
        _, near, far = self._nearest()
        log_near = self._log_tail(near)
        return log_near + torch.log(-torch.expm1(self._log_tail(far) - log_near))

    def draw(self) -> torch.Tensor:
        """A draw by torch's generator: S(d) is uniform between those of the ends."""
        if self.low is None and self.high is None:
            return self.law.sample()
        mirrored, near, far = self._nearest()
        u = torch.rand(near.shape, dtype=torch.float64, device=near.device)
        log_near, log_far = (self._log_tail(d).double() for d in (near, far))
        away = self._where_tail_is(torch.logaddexp(log_near + (-u).log1p(), log_far + u.log())) - near.double()
        away = away.clamp(min=torch.finfo(near.dtype).tiny).to(near)
        return torch.where(mirrored, _or(self.high, math.inf, near) - away, _or(self.low, -math.inf, near) + away)

    def _nearest(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Where the interval is mirrored about the centre, and its ends from there, d_1 + d_2 >= 0."""
        m = self.law.loc
        low, high = _or(self.low, -math.inf, m) - m, _or(self.high, math.inf, m) - m
        mirrored = low + high < 0
        return mirrored, torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)

    def _log_tail(self, d: torch.Tensor) -> torch.Tensor:
        """log S(d)."""
        scale = self.law.scale
        if isinstance(self.law, Cauchy):
            return torch.atan2(scale, d).log() - math.log(math.pi)
        size = torch.where(d < 0, -d, d) / scale  # whose slope at 0 is that of the tail above
        above = -size - math.log(2)
        if isinstance(self.law, Normal):
            size = size / 2**0.5
            above = (torch.special.erfcx(size) / 2).log() - size.square()
        return torch.where(d < 0, torch.log1p(-above.exp()), above)

    def _where_tail_is(self, log_tail: torch.Tensor) -> torch.Tensor:
        """The d of a log S(d)."""
        scale = self.law.scale.double()
        if isinstance(self.law, Cauchy):
            return scale / torch.tan(math.pi * log_tail.exp())
        if isinstance(self.law, Normal):
            return -scale * torch.as_tensor(ndtri_exp(log_tail.cpu().numpy())).to(scale)
        above = -(log_tail + math.log(2))
        return scale * torch.where(above > 0, above, (-2 * torch.expm1(log_tail)).log())


def truncated(law: Any, constraint: Constraint) -> Truncated | None:
    """The law within a constraint; None for other laws, subclasses among them, and where this is no interval."""
    while isinstance(law, Independent):
        law = law.base_dist
    while isinstance(constraint, independent):
        constraint = constraint.base_constraint
    bounds = [getattr(constraint, bound, None) for bound in ("lower_bound", "upper_bound")]
    if type(law) not in (Normal, Cauchy, Laplace) or bounds == [None, None]:
        return None
    return Truncated(law, *(None if _is_infinite(bound) else torch.as_tensor(bound).to(law.loc) for bound in bounds))


def _is_infinite(bound: Any) -> bool:
    return bound is None or bool(torch.as_tensor(bound).isinf().all())


def _or(end: torch.Tensor | None, infinite: float, like: torch.Tensor) -> torch.Tensor:
    return torch.full_like(like, infinite) if end is None else end.expand_as(like)
