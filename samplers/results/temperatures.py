"""The temperatures of momenta and of positions, each with its expected band."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from recipe.arguments import check_known, number
from recipe.errors import RecipeError

from .averages import average_of
from .statistics import LEAST, flattened, moments
from .tensor_checks import FINITE, expanded, tensor_of

KINETIC = "kinetic_temperature"
CONFIGURATIONAL = "configurational_temperature"


@dataclass(frozen=True)
class Temperature:
    """A measured temperature, and its expected band from `low` to `high`.

    >>> Temperature(value=1.2, low=0.9, high=1.1, expected=1.0).ok
    False
    """

    value: float
    low: float
    high: float
    expected: float

    @property
    def ok(self) -> bool:
        """Whether the value is inside the band."""
        return self.low <= self.value <= self.high


def kinetic_temperature(momenta: Any, mass: Any = 1.0, *, temperature: float = 1.0, level: float = 0.99) -> Any:
    """The temperature of Gaussian momenta: the mean of p^2/m over the d sites, T chi^2_d/d at temperature T.

    `momenta` are of one moment, so that they are independent: `draws["p"][:, -1]` of all chains, say; a tensor, or a
    dict by name, for a dict of a `Temperature` each. `mass` is a number, a tensor that broadcasts, or a dict by name.
    The band holds with probability `level`. Raises RecipeError for masses that are not > 0 or do not fit, temperatures
    < 0, numbers that are not finite, and levels outside of (0, 1).

    Source: Leimkuhler & Matthews 2015, "Molecular Dynamics"; Wenzel et al. 2020, appendix on diagnostics.

    >>> kinetic_temperature(torch.tensor([1.0, -2.0, 3.0, 0.0]), mass=2.0).value
    1.75
    >>> p = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    >>> kinetic_temperature(p).ok, kinetic_temperature(1.1*p).ok
    (True, False)
    """
    if isinstance(momenta, Mapping) and not isinstance(mass, Mapping):
        mass = dict.fromkeys(momenta, mass)
    return _of_each(KINETIC, _kinetic, momenta, mass, temperature, level)


def _kinetic(momenta: Any, mass: Any, temperature: float, level: float) -> Temperature:
    p = _numbers(KINETIC, momenta)
    m = expanded(KINETIC, "masses", _numbers(KINETIC, mass).to(p.device), p.shape, "site")
    if not (m > 0).all():
        raise RecipeError(KINETIC, "a mass is not > 0", do="Give a positive number, or one per site.")
    return temperature_of(float((p**2 / m).mean()), p.numel(), temperature, level)


def temperature_of(mean: float, sites: int, temperature: float, level: float = 0.99) -> Temperature:
    """The kinetic temperature that is the mean of p^2/m over so many sites, with the band of T chi^2_d/d."""
    from scipy.special import gammaincinv  # scipy is slow to import

    ends = (2 * float(gammaincinv(sites / 2, q)) for q in ((1 - level) / 2, (1 + level) / 2))  # of chi^2_d
    low, high = (temperature * end / sites for end in ends)
    return Temperature(mean, low, high, float(temperature))


def configurational_temperature(theta: Any, gradient: Any, *, temperature: float = 1.0, level: float = 0.99) -> Any:
    """The temperature of positions: the mean of theta.grad U over sites and draws.

    Its expectation is T, by the virial theorem E theta.grad U = d T. `theta` and `gradient`, grad U at theta, are
    (chains, draws, *shape) with at least 4 draws, or dicts by name, and then each has its own. An unbiased estimate of
    grad U serves, if it is not the one that moved theta there.

    There is no exact law: the band is T -+ t s.e., Student's t at `level` with the standard error and the freedom that
    the effective sample size leaves; one of 0.99 holds 0.95 to 0.99 of the time where that is below a few hundred.
    Raises RecipeError as `kinetic_temperature` does, and for other shapes.

    Source: Leimkuhler & Matthews 2015, "Molecular Dynamics"; Wenzel et al. 2020, appendix on diagnostics.

    >>> theta = torch.randn(4, 500, 3, generator=torch.Generator().manual_seed(0))
    >>> configurational_temperature(theta, theta).ok, configurational_temperature(1.1*theta, 1.1*theta).ok
    (True, False)
    """
    return _of_each(CONFIGURATIONAL, _configurational, theta, gradient, temperature, level)


def _configurational(theta: Any, gradient: Any, temperature: float, level: float) -> Temperature:
    x = _numbers(CONFIGURATIONAL, theta)
    g = _numbers(CONFIGURATIONAL, gradient)
    if x.shape != g.shape or x.dim() < 2 or x.shape[1] < LEAST:
        what = f"theta has the shape {tuple(x.shape)}, its gradient {tuple(g.shape)}"
        do = f"Give both as (chains, draws, *shape), with at least {LEAST} draws."
        raise RecipeError(CONFIGURATIONAL, what, do=do)
    average = average_of(flattened(x * g.to(x.device)).mean(2))
    half = average.half_width(1 - level)
    return Temperature(average.value, temperature - half, temperature + half, float(temperature))


def on_sphere(u: torch.Tensor, gradient: torch.Tensor, T: float, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Numbers `(chains, draws)` whose mean is the configurational temperature of points u of the unit sphere, near T.

    E a.grad U = T E div a on the surface, here of the tangent part a of m + D u with m = E u and D = E u^2 - 1/n, of
    which div a = -(n - 1) m.u - n u.D u. Both are of the other half of the chains, so that chance in the draws of a
    law without them is not taken for them. `weights`: of mean 1.
    """
    x, g = (flattened(values).to("cpu", torch.float64) for values in (u, gradient))
    n, axis = x.shape[2], 0 if len(x) > 1 else 1
    w = torch.ones(x.shape[:2], dtype=torch.float64) if weights is None else weights.to(x)
    halves = list(zip(*(values.tensor_split(2, axis) for values in (x, g, w))))
    works, rates = [], []
    for (points, slope, _), (other, _, weight) in zip(halves, reversed(halves)):
        m, _ = moments(other, weight / weight.mean())
        D = moments(other.square(), weight / weight.mean())[0] - 1 / n
        field = m + D * points
        works.append((field * slope).sum(2) - (field * points).sum(2) * (points * slope).sum(2))
        rates.append(-(n - 1) * (points * m).sum(2) - n * (D * points.square()).sum(2))
    work, rate = torch.cat(works, axis), torch.cat(rates, axis)
    return T + (work - T * rate) / (w * rate).mean()


def _of_each(where: str, measured: Callable[..., Temperature], first: Any, second: Any, T: Any, level: Any) -> Any:
    """The temperature of two tensors, or of those of two dicts with the same names by name."""
    number(where, "temperature", T, least=0)
    number(where, "level", level, above=0, below=1)
    if not isinstance(first, Mapping):
        return measured(first, second, T, level)
    if not isinstance(second, Mapping):
        raise RecipeError(where, f"one is a dict by name, the other a {type(second).__name__}", do="Give both by name.")
    check_known(where, "'{}' is given once", first, second)
    check_known(where, "'{}' is given once", second, first)
    return {name: measured(x, second[name], T, level) for name, x in first.items()}


def _numbers(where: str, values: Any) -> torch.Tensor:
    """A tensor of finite numbers in float64."""
    x = tensor_of(where, "these", values, do="Give tensors, or dicts of them by name.").to(torch.float64)
    if not x.numel():
        raise RecipeError(where, "there are not numbers", do=FINITE)
    if not x.isfinite().all():
        raise RecipeError(where, "a number is not finite", do=FINITE)
    return x
