"""Judging draws: sample size and mixing, by ArviZ; the distance to the target; the temperatures of momenta and positions."""

import math
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy import stats

from recipe.errors import RecipeError, did_you_mean

from .draws import Draws


def arviz_module():
    """ArviZ, imported when it is first asked for, without its notice."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"\s*ArviZ is undergoing a major refactor", FutureWarning)
        import arviz

        return arviz


def effective_sample_size(draws: Draws, name: str) -> torch.Tensor:
    """How many independent draws know as much of the bulk of the law: chains draws/tau of the rank-normalised values.

    Returns `(*shape)` of the block, in float64; nan for fewer than 4 draws, and where all values are equal. Draws weigh
    equally; chains that diverged are left out, with a warning. Raises RecipeError for an unknown name, or where no chain
    is left.
    Source: Vehtari, Gelman, Simpson, Carpenter & Buerkner 2021, "Rank-normalization, folding, and localization".

    >>> draws = Draws({"theta": torch.randn(4, 1000, 2, generator=torch.Generator().manual_seed(0))}, info={})
    >>> effective_sample_size(draws, "theta") > 3500
    tensor([True, True])
    """
    values = draws[name][draws._sound("effective_sample_size")]
    return _per_component(values, lambda x: arviz_module().ess(x, method="bulk"))


def autocorrelation_time(draws: Draws, name: str) -> torch.Tensor:
    """The integrated autocorrelation time: tau = 1 + 2 sum_t rho_t = chains draws/ESS of the mean, in draws.

    Steps between draws, `thin` of them, multiply it. Returns, and raises, as `effective_sample_size` does.
    Source: Vehtari et al. 2021; the sum ends where Geyer 1992 ends it.

    >>> steps = torch.randn(2, 4000, generator=torch.Generator().manual_seed(0))
    >>> autocorrelation_time(Draws({"theta": steps.repeat_interleave(5, dim=1)}, info={}), "theta").round()
    tensor(5., dtype=torch.float64)
    """
    values = draws[name][draws._sound("autocorrelation_time")]
    return _per_component(values, lambda x: x.size / arviz_module().ess(x, method="mean"))


def r_hat(draws: Draws, name: str) -> torch.Tensor:
    """The rank-normalised split R-hat, sqrt(var+/W): 1 where halves of chains agree, above 1.01 where they do not yet.

    Returns, and raises, as `effective_sample_size` does; nan also for one chain.
    Source: Vehtari et al. 2021.

    >>> draws = Draws({"theta": torch.randn(4, 1000, generator=torch.Generator().manual_seed(0))}, info={})
    >>> r_hat(draws, "theta") < 1.01
    tensor(True)
    """
    values = draws[name][draws._sound("r_hat")]
    return _per_component(values, lambda x: arviz_module().rhat(x, method="rank"), chains=2)


def _per_component(values: torch.Tensor, statistic: Callable, chains: int = 1) -> torch.Tensor:
    """A statistic of (chains, draws) for every component; nan where it has none, of which ArviZ would log a line each."""
    x = values.to("cpu", torch.float64).flatten(2) if values.dim() > 2 else values.to("cpu", torch.float64)[:, :, None]
    found = torch.full(x.shape[2:], math.nan, dtype=torch.float64)
    for k in range(x.shape[2] if x.shape[0] >= chains and x.shape[1] >= 4 else 0):
        component = x[:, :, k]
        if component.isfinite().all() and component.min() < component.max():
            # ArviZ takes a range below 1e-15 for a constant. R-hat of chains that are stuck apart is inf.
            with np.errstate(divide="ignore"):
                found[k] = float(statistic(((component - component.mean()) / component.std()).numpy()))
    return found.reshape(values.shape[2:])


@dataclass(frozen=True)
class Discrepancy:
    """Estimates of KSD^2: `u`, without bias, and `v` >= 0, with the diagonal; `error` is the standard error of `u` where
    the law is exact and the points are independent (correlated ones have a larger).

    >>> Discrepancy(u=0.01, v=0.04, error=0.02).ksd
    0.2
    """

    u: float
    v: float
    error: float

    @property
    def ksd(self) -> float:
        """The kernel Stein discrepancy of the points as they are, sqrt(v)."""
        return math.sqrt(max(0.0, self.v))


def kernel_stein_discrepancy(
    points: torch.Tensor, scores: torch.Tensor, *, c: float = 1.0, beta: float = -0.5, block: int = 512
) -> Discrepancy:
    """The distance of points to a target of which the score s = grad log density = -grad U/T is known, by the kernel
    k(x, y) = (c^2 + |x - y|^2)^beta, which sees points that drift away.

    KSD^2 = E k_0(x, y), k_0 = s(x).s(y) k + s(x).grad_y k + s(y).grad_x k + div_x grad_y k: the mean over pairs of
    different points is the U-statistic, over all pairs the V-statistic. `points` and `scores` are (n, dim), in units of c
    and 1/c: scale coordinates that are not of order 1. Computed in float64, for `block` points at a time with as many others. Raises RecipeError
    for other shapes, fewer than two points, numbers that are not finite, and kernels other than c > 0, -1 < beta < 0.
    Source: Gorham & Mackey 2017, Proposition 2 and Theorem 8; Liu, Lee & Jordan 2016, Theorem 3.6.

    >>> x = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    >>> exact, wide = (kernel_stein_discrepancy(s*x, -s*x) for s in (1.0, 1.2))
    >>> abs(exact.u) < 3*exact.error, abs(wide.u) < 3*wide.error
    (True, False)
    """
    where = "kernel_stein_discrepancy"
    if not (torch.is_tensor(points) and torch.is_tensor(scores) and points.dim() == 2 and points.shape == scores.shape):
        told = " and ".join(str(tuple(x.shape)) if torch.is_tensor(x) else type(x).__name__ for x in (points, scores))
        raise RecipeError(
            where,
            f"points and scores are both (n, dim), got {told}",
            do="Flatten chains and draws: draws['theta'].reshape(-1, dim).",
        )
    n, dim = points.shape
    if n < 2 or dim < 1:
        raise RecipeError(where, f"there are {n} points of {dim} coordinates", do="Give at least two points.")
    if not (0 < c < math.inf and -1 < beta < 0):
        raise RecipeError(where, f"the kernel has c = {c!r} and beta = {beta!r}", do="Take c > 0 and -1 < beta < 0.")
    if isinstance(block, bool) or not isinstance(block, int) or block < 1:
        raise RecipeError(where, f"block is an integer >= 1, got {block!r}", do="Take 512 if unsure.")
    x, s = (t.detach().to(points.device, torch.float64) for t in (points, scores))
    bad = (~(x.isfinite() & s.isfinite()).all(1)).nonzero()
    if len(bad):
        raise RecipeError(
            where, f"point {int(bad[0])} or its score is not finite", do="Leave out chains that diverged."
        )
    diagonal = pairs = squares = 0.0
    for i, j in ((i, j) for i in range(0, n, block) for j in range(i, n, block)):
        k0 = _stein_kernel(x[i : i + block], x[j : j + block], s[i : i + block], s[j : j + block], c, beta)
        if i == j:
            diagonal += float(k0.diagonal().sum())
            k0.fill_diagonal_(0)
        times = 1 if i == j else 2  # k_0 is symmetric
        pairs += times * float(k0.sum())
        squares += times * float(k0.square_().sum())
    # Under the exact law E k_0(x, .) = 0, and Var u = 2 E k_0^2/(n(n - 1)).
    return Discrepancy(
        u=pairs / (n * (n - 1)), v=(pairs + diagonal) / n**2, error=math.sqrt(2 * squares) / (n * (n - 1))
    )


def _stein_kernel(x, y, s_x, s_y, c, beta):
    """k_0 of every x with every y."""
    squared = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist").square_()
    r = squared + c**2
    k = r**beta
    along = (s_x * x).sum(1)[:, None] - s_x @ y.T - x @ s_y.T + (s_y * y).sum(1)  # (s_x - s_y).(x - y)
    bend = along + x.shape[1] + 2 * (beta - 1) * squared / r
    return k * (s_x @ s_y.T - 2 * beta * bend / r)


@dataclass(frozen=True)
class Temperature:
    """A measured temperature, and the band from `low` to `high` it is expected in.

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


def kinetic_temperature(
    momenta, mass=1.0, *, temperature: float = 1.0, level: float = 0.99
) -> Temperature | dict[str, Temperature]:
    """The temperature of Gaussian momenta: the mean of p^2/m over the d sites, T chi^2_d/d at temperature T.

    `momenta` are of one moment, so that they are independent: `draws["p"][:, -1]` of all chains, say; a tensor, or a dict
    by name, and then each has its own. `mass` is a number, a tensor that broadcasts, or a dict by name. The band holds
    with probability `level`. Raises RecipeError for masses that are not > 0 or do not fit, temperatures < 0, numbers that
    are not finite, and levels outside of (0, 1).
    Source: Leimkuhler & Matthews 2015, "Molecular Dynamics"; Wenzel et al. 2020, appendix on diagnostics.

    >>> kinetic_temperature(torch.tensor([1.0, -2.0, 3.0, 0.0]), mass=2.0).value
    1.75
    >>> p = torch.randn(10_000, generator=torch.Generator().manual_seed(0))
    >>> kinetic_temperature(p).ok, kinetic_temperature(1.1*p).ok
    (True, False)
    """
    where = "kinetic_temperature"
    _check(where, temperature, level)
    if isinstance(momenta, Mapping):
        masses = mass if isinstance(mass, Mapping) else dict.fromkeys(momenta, mass)
        return {
            name: kinetic_temperature(p, m, temperature=temperature, level=level)
            for name, (p, m) in _by_name(where, momenta, masses).items()
        }
    p, m = _numbers(where, momenta), _numbers(where, mass)
    try:
        fits = torch.broadcast_shapes(p.shape, m.shape) == p.shape
    except RuntimeError:
        fits = False
    if not fits or not (m > 0).all():
        raise RecipeError(
            where,
            f"a mass of shape {tuple(m.shape)} for momenta of shape {tuple(p.shape)}"
            if not fits
            else "a mass is not > 0",
            do="Give a positive number, or one per site.",
        )
    d = p.numel()
    low, high = (temperature * float(stats.chi2.ppf(q, d)) / d for q in ((1 - level) / 2, (1 + level) / 2))
    return Temperature(float((p**2 / m.to(p.device)).mean()), low, high, float(temperature))


def configurational_temperature(
    theta, gradient, *, temperature: float = 1.0, level: float = 0.99
) -> Temperature | dict[str, Temperature]:
    """The temperature of positions: the mean of theta.grad U over sites and draws, whose expectation is T, by the virial
    theorem E theta.grad U = d T.

    `theta` and `gradient`, grad U at theta, are (chains, draws, *shape) with at least 4 draws, or dicts by name, and then
    each has its own. An unbiased estimate of grad U serves, if it is not the one that moved theta there. There is no exact
    law: the band is T -+ t s.e., Student's t at `level` with the standard error and the freedom that the effective sample
    size leaves; one of 0.99 holds 0.95 to 0.99 of the time where that is below a few hundred. Raises RecipeError as
    `kinetic_temperature` does, and for other shapes.
    Source: Leimkuhler & Matthews 2015, "Molecular Dynamics"; Wenzel et al. 2020, appendix on diagnostics.

    >>> theta = torch.randn(4, 500, 3, generator=torch.Generator().manual_seed(0))
    >>> configurational_temperature(theta, theta).ok, configurational_temperature(1.1*theta, 1.1*theta).ok
    (True, False)
    """
    where = "configurational_temperature"
    _check(where, temperature, level)
    if isinstance(theta, Mapping):
        return {
            name: configurational_temperature(x, g, temperature=temperature, level=level)
            for name, (x, g) in _by_name(where, theta, gradient).items()
        }
    x, g = _numbers(where, theta), _numbers(where, gradient)
    if x.shape != g.shape or x.dim() < 2 or x.shape[1] < 4:
        raise RecipeError(
            where,
            f"theta has the shape {tuple(x.shape)}, its gradient {tuple(g.shape)}",
            do="Give both as (chains, draws, *shape), with at least 4 draws.",
        )
    each = (x * g.to(x.device)).flatten(2).mean(2) if x.dim() > 2 else x * g.to(x.device)
    value, ess = float(each.mean()), float(_per_component(each, lambda t: arviz_module().ess(t, method="mean")))
    half = 0.0  # where all draws are equal, there is no error
    if not math.isnan(ess):
        ess = max(2.0, min(ess, each.numel()))  # an estimate beyond the draws is mostly its noise
        half = float(stats.t.ppf((1 + level) / 2, ess - 1)) * float(each.std()) / math.sqrt(ess)
    return Temperature(value, temperature - half, temperature + half, float(temperature))


def _check(where, temperature, level) -> None:
    """Refuse temperatures and levels that are none."""
    number = lambda value: isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number(temperature) or not 0 <= temperature < math.inf:
        raise RecipeError(where, f"the temperature is {temperature!r}", do="Take a number >= 0.")
    if not number(level) or not 0 < level < 1:
        raise RecipeError(where, f"the level is {level!r}", do="Take a probability such as 0.99.")


def _by_name(where, first, second) -> dict:
    """Pairs by name, of two dicts with the same names."""
    if not isinstance(second, Mapping):
        raise RecipeError(where, f"one is a dict by name, the other a {type(second).__name__}", do="Give both by name.")
    for name in [*first, *second]:
        if name not in first or name not in second:
            raise RecipeError(
                where, f"'{name}' is given once", do=did_you_mean(name, first if name in second else second)
            )
    return {name: (first[name], second[name]) for name in first}


def _numbers(where, given) -> torch.Tensor:
    """A tensor of finite numbers in float64."""
    try:
        x = torch.as_tensor(given).detach().to(torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RecipeError(
            where, f"these are no numbers ({error})", do="Give tensors, or dicts of them by name."
        ) from error
    if not x.numel() or not x.isfinite().all():
        raise RecipeError(
            where,
            "a number is not finite" if x.numel() else "there are no numbers",
            do="Leave out chains that diverged.",
        )
    return x
