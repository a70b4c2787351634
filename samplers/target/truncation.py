"""Priors of one number within a constraint: their mass there, and draws."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from scipy.special import ndtri_exp
from torch.distributions import Cauchy, Laplace, Normal, VonMises
from torch.distributions.constraints import Constraint

from recipe.errors import RecipeError

from .independent import of_each

BOUNDS = ("lower_bound", "upper_bound")
LAWS = (Normal, Cauchy, Laplace)  # whose tail probabilities are known
NAMES = "Normal, Cauchy or Laplace"


@dataclass(frozen=True)
class Truncated:
    """A Normal, Cauchy or Laplace law within an interval, of each number; `low` or `high` is None without that end.

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

        With S(d) = P(X > m + d) about the centre m: between two ends at one side of m, log S(d_1) plus the log of
        1 - S(d_2)/S(d_1); with m between, the log of what lies within or of 1 less both tails. No difference cancels.
        """
        if self.low is None:
            return self._log_survival(self.law.loc - self.high)
        if self.high is None:
            return self._log_survival(self.low - self.law.loc)
        scale = self.law.scale
        _, near, far = self._nearest()
        if isinstance(self.law, Cauchy):
            unit = torch.maximum(scale, far).detach()  # of lengths: products of these stay finite
            s, width = scale / unit, (self.high - self.low) / unit
            return (torch.atan2(width * s, s.square() + near / unit * (far / unit)) / math.pi).log()
        width = (self.high - self.low) / scale
        inner = torch.where(near < 0, -near, far / 2)  # distances at both sides of m
        tails = (self._log_survival(inner).exp() + self._log_survival(far).exp()).clamp(max=0.5)
        within = (self._core(inner / scale) + self._core(far / scale)).log()
        at_one_side = self._log_survival(near) + torch.log(-torch.expm1(self._log_ratio(near, far, width)))
        return torch.where(near < 0, torch.where(tails < 0.5, torch.log1p(-tails), within), at_one_side)

    @torch.no_grad()
    def draw(self) -> torch.Tensor:
        """A draw by torch's generator, strictly inside: S(d) is uniform between those of the ends."""
        low, high = (None if end is None else end.double() for end in (self.low, self.high))
        law = type(self.law)(self.law.loc.double(), self.law.scale.double())
        return self._inside(Truncated(law, low, high)._draw().to(self.law.loc))

    def _draw(self) -> torch.Tensor:
        m = self.law.loc
        mirrored, near, far = self._nearest()
        u = torch.rand(near.shape, dtype=torch.float64, device=near.device)
        log_near, log_far = self._log_survival(near), self._log_survival(far)
        d = self._inverse_survival(torch.logaddexp(log_near + (-u).log1p(), log_far + u.log()))
        from_centre = torch.where(mirrored, m - d, m + d)
        from_end = torch.where(
            mirrored, _or(self.high, math.inf, m) - (d - near), _or(self.low, -math.inf, m) + d - near
        )
        return torch.where(near < 0, from_centre, from_end)  # whichever is nearer, for the rounding of the sum

    def _inside(self, value: torch.Tensor) -> torch.Tensor:
        """The value, or where it has rounded to an end the next number inside."""
        if self.low is not None:
            value = value.maximum(_next(self.low, 1))
        return value if self.high is None else value.minimum(_next(self.high, -1))

    def _nearest(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Where the interval is mirrored about the centre, and its ends from there, d_1 + d_2 >= 0."""
        m = self.law.loc
        low, high = _or(self.low, -math.inf, m) - m, _or(self.high, math.inf, m) - m
        mirrored = low + high < 0
        return mirrored, torch.where(mirrored, -high, low), torch.where(mirrored, -low, high)

    def _log_survival(self, d: torch.Tensor) -> torch.Tensor:
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

    def _inverse_survival(self, log_tail: torch.Tensor) -> torch.Tensor:
        """The d of a log S(d), in float64."""
        scale = self.law.scale
        if isinstance(self.law, Cauchy):
            return scale / torch.tan(math.pi * log_tail.exp())
        if isinstance(self.law, Normal):
            return -scale * torch.as_tensor(ndtri_exp(log_tail.cpu().numpy())).to(scale)
        above = -(log_tail + math.log(2))
        return scale * torch.where(above > 0, above, (-2 * torch.expm1(log_tail)).log())

    def _core(self, x: torch.Tensor) -> torch.Tensor:
        """P(0 < (X - m)/s < x) of a Normal or Laplace law."""
        return torch.erf(x / 2**0.5) / 2 if isinstance(self.law, Normal) else -torch.expm1(-x) / 2

    def _log_ratio(self, near: torch.Tensor, far: torch.Tensor, width: torch.Tensor) -> torch.Tensor:
        """log S(d_2)/S(d_1) of a Normal or Laplace law, d_1 >= 0; of a short interval by the slope in its middle."""
        if isinstance(self.law, Laplace):
            return -width
        x = (near / self.law.scale).clamp(min=0) + width / 2
        slope = (2 / math.pi) ** 0.5 / torch.special.erfcx(x / 2**0.5)
        short = width < torch.finfo(width.dtype).eps ** (1 / 3)  # where the rounding of the difference is more
        return torch.where(short, -width * slope, self._log_survival(far) - self._log_survival(near))


def truncated(law: Any, constraint: Constraint) -> Truncated | None:
    """The law within a constraint; None for other laws, subclasses among them, and where this is no interval."""
    law, base = of_each(law), of_each(constraint)
    bounds = [getattr(base, bound, None) for bound in BOUNDS]
    if type(law) not in LAWS or bounds == [None, None]:
        return None
    return Truncated(law, *(_end(bound, law.loc) for bound in bounds))


def check_ends(constraint: Constraint, shape: torch.Size, where: str) -> None:
    """Refuses an interval whose ends are not in order, not finite, or of other numbers than those of the shape."""
    base = of_each(constraint)
    bounds = [getattr(base, bound) for bound in BOUNDS if hasattr(base, bound)]
    ends = [torch.as_tensor(bound, dtype=torch.float64) for bound in bounds]
    for end in ends:
        if len(end.shape) > len(shape) or any(a not in (1, b) for a, b in zip(end.shape[::-1], shape[::-1])):
            what = f"an end of its constraint has the shape {tuple(end.shape)}, and the variable {tuple(shape)}"
            raise RecipeError(where, what, do="Give the ends as numbers, or one for each number of the variable.")
    if not all(end.isfinite().all() for end in ends):
        what = f"its constraint {base} has an infinite end"
        do = "Write constraints.greater_than or less_than, in variables of their own where others have two ends."
        raise RecipeError(where, what, do=do)
    if len(ends) == 2 and not bool((ends[0] < ends[1]).all()):
        what = f"its constraint {base} has no number between its ends"
        raise RecipeError(where, what, do="Give the lower end first.")


def is_of_one_law(law: Any) -> bool:
    """Whether the numbers along the last axis are independent and of one Normal, Cauchy or Laplace law.

    >>> is_of_one_law(Normal(torch.zeros(3), 1.0)), is_of_one_law(Normal(torch.arange(3.0), 1.0))
    (True, False)
    """
    law = of_each(law)
    if type(law) not in LAWS or not law.batch_shape:
        return False
    return all(bool((x == x[..., :1]).all()) for x in (law.loc, law.scale))


def cuts_nothing(constraint: Constraint, law: Any) -> bool:
    """Whether the constraint has the ends of the support of the law, or of one turn of an angle.

    >>> cuts_nothing(torch.distributions.constraints.interval(0.0, 2 * math.pi), VonMises(0.0, 1.0))
    True
    """
    law = of_each(law)
    base, support = of_each(constraint), of_each(law.support)
    ends, whole = ([getattr(of, bound, None) for bound in BOUNDS] for of in (base, support))
    if isinstance(law, VonMises):
        low, high = ends
        turn = None if low is None or high is None else torch.as_tensor(high - low)
        return turn is not None and bool(((turn - 2 * math.pi).abs() < 1e-5).all())
    if ends == [None, None]:
        return type(base) is type(support)
    return all((a is None) == (b is None) and (a is None or _is_equal(a, b)) for a, b in zip(ends, whole))


def wrapped(angle: torch.Tensor, constraint: Constraint | None) -> torch.Tensor:
    """The angle by full turns at or above the lower end of a constraint with one."""
    low = getattr(of_each(constraint), BOUNDS[0], None)
    return angle if low is None else low + (angle - low).remainder(2 * math.pi)


def _is_equal(a: Any, b: Any) -> bool:
    b = torch.as_tensor(b)
    return bool((torch.as_tensor(a, dtype=b.dtype) == b).all())


def _end(bound: Any, like: torch.Tensor) -> torch.Tensor | None:
    """The end as numbers of this dtype, without a number read or copied from the host in a tape or a graph."""
    if bound is None:
        return None
    return bound.to(like) if torch.is_tensor(bound) else torch.full_like(like, bound)


def _or(end: torch.Tensor | None, infinite: float, like: torch.Tensor) -> torch.Tensor:
    return torch.full_like(like, infinite) if end is None else end.expand_as(like)


def _next(end: torch.Tensor, way: int) -> torch.Tensor:
    """The number next to an end, upwards or downwards; next to 0 the least that is normal."""
    beyond = end.nextafter(torch.full_like(end, way * math.inf))
    return torch.where(end == 0, way * torch.finfo(end.dtype).tiny, beyond)
