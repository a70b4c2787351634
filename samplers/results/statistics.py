"""Statistics of chains, one for every component of `(chains, draws, *shape)`: sample sizes, times, R-hat.

Draws may have weights w of mean 1, `(chains, draws)`: a mean m = mean(w x) has the error of the mean of w (x - m), and
its sample size is that of as many independent draws, of the variance mean(w (x - m)^2).

Source: Vehtari, Gelman, Simpson, Carpenter & Buerkner 2021, "Rank-normalization, folding, and localization"; sums of
autocorrelations end where Geyer 1992, "Practical Markov chain Monte Carlo", ends them.
"""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np
import torch

LEAST = 4  # draws that a statistic needs
TAILS = (0.05, 0.95)
BINS = 512  # of a density
TAIL = 50  # weights that tell a tail
AT_ONCE = 2**19  # numbers whose statistics are computed together


def sample_size_of_ranks(values: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """The effective sample size of the rank-normalised values, ESS of the bulk: `(*shape)` in float64."""
    if weights is not None:
        return _per_component(values, lambda x: _sample_size_by(weights, _normal_scores(x, weights)))
    return _per_component(values, lambda x: _sample_size(_normal_scores(_halves(x))))


def sample_size_of_moves(values: torch.Tensor) -> torch.Tensor:
    """The effective sample size of the rank-normalised values z of chains that are short beside their memory.

        rho_t = 1 - E[(z_{s+t} - z_s)^2] / (2 V),    rho_{m+t} = rho_m rho_m^{t/m}  for t > 0,

    with V of all chains together, which are to have their law, and m half of the draws: `(*shape)` in float64.
    """
    return _per_component(values, lambda x: _sample_size_of_moves(_normal_scores(x)))


def sample_size_of_mean(values: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """The effective sample size of the mean: `(*shape)` in float64."""
    return _per_component(values, lambda x: _sample_size_by(weights, x))


def sample_size_within(values: torch.Tensor) -> torch.Tensor:
    """As `sample_size_of_ranks`, by the autocorrelation inside of the halves alone, whether or not they agree."""
    return _per_component(values, lambda x: _sample_size(_normal_scores(_halves(x)), between=False))


def sample_size_of_tails(values: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """The smaller effective sample size of the two indicators x <= q, of the 5 % and the 95 % quantile q."""

    def statistic(x: torch.Tensor) -> torch.Tensor:
        quantiles = torch.from_numpy(_quantiles(x.flatten(1).numpy(), TAILS, weights))
        sizes = (_sample_size_by(weights, (x <= q[:, None, None]).double()) for q in quantiles)
        return torch.fmin(*sizes)  # nan: constant

    return _per_component(values, statistic)


def moments(values: torch.Tensor, weights: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean and the standard deviation of all draws: `(*shape)` in float64."""
    x = values.to("cpu", torch.float64)
    if weights is None:
        return x.mean((0, 1)), x.std((0, 1))
    w = weights.reshape(*weights.shape, *(1,) * (x.dim() - 2))
    mean = (w * x).mean((0, 1))
    return mean, (w * (x - mean).square()).mean((0, 1)).sqrt()


def sample_sizes_of_moments(
    values: torch.Tensor, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The effective sample sizes of the mean and of the variance, that is of x and of (x - E[x])^2."""
    x = values.to("cpu", torch.float64)
    x = x - moments(x, weights)[0]
    return sample_size_of_mean(x, weights), sample_size_of_mean(x.square(), weights)


def errors_of_moments(
    values: torch.Tensor, sizes: tuple[torch.Tensor, torch.Tensor], weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The standard errors of the mean, s/sqrt(ESS), and of s, sqrt(Var[y]/ESS)/(2 s) of y = (x - E[x])^2."""
    x = values.to("cpu", torch.float64)
    mean, s = moments(x, weights)
    y = (x - mean).square()
    return s / sizes[0].sqrt(), moments(y, weights)[1] / sizes[1].sqrt() / (2 * s)


def density(values: np.ndarray, weights: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Points and a density there: numbers counted in bins, smoothed by a Gaussian of Silverman's width.

    Source: Silverman 1986, "Density Estimation", eq. (3.31): 0.9 min(sd, interquartile range/1.34) number^(-1/5).
    """
    w = np.ones(len(values)) if weights is None else weights
    lower, upper = np.quantile(values, [0.25, 0.75])
    if weights is not None:
        lower, upper = _quantiles(values[None], (0.25, 0.75), torch.from_numpy(w))[:, 0]
    spread = np.average((values - np.average(values, weights=w)) ** 2, weights=w) ** 0.5
    scales = [s for s in (spread, (upper - lower) / 1.34) if s > 0]
    width = 0.9 * min(scales) * (w.sum() ** 2 / (w**2).sum()) ** -0.2
    counts, edges = np.histogram(values, BINS, range=(values.min() - 3 * width, values.max() + 3 * width), weights=w)
    size = edges[1] - edges[0]
    kernel = np.exp(-((np.arange(1 - BINS, BINS) * size / width) ** 2) / 2)
    return (edges[:-1] + edges[1:]) / 2, np.convolve(counts, kernel / kernel.sum(), "valid") / (w.sum() * size)


def pareto_index(logs: np.ndarray) -> float:
    """The index k of the generalised Pareto law of the largest weights, by their logarithms; inf of fewer than five.

    Sources: Zhang & Stephens 2009, "A new and efficient estimation method for the generalized Pareto distribution";
    Vehtari et al. 2024, "Pareto smoothed importance sampling", for the number of the largest and the prior of k.
    """
    x = np.exp(np.sort(logs - logs.max()))
    cut = x[-_largest(len(x)) - 1]
    y = x[x > max(cut, np.finfo(float).tiny)] - cut
    number = len(y)
    if number < 5:
        return math.inf
    size = 30 + int(math.sqrt(number))
    b = (1 - np.sqrt(size / (np.arange(size) + 0.5))) / (3 * y[int(number / 4 + 0.5) - 1]) + 1 / y[-1]
    k = np.log1p(-b[:, None] * y).mean(1)
    heights = number * (np.log(-b / k) - k)
    b = np.average(b, weights=np.exp(heights - heights.max()))
    return float((number * np.log1p(-b * y).mean() + 5) / (number + 10))


def tail_of_weights(logs: np.ndarray) -> float:
    """The Pareto index of the largest weights, by their logarithms; 0 where they are few, or the largest hardly differ.

    From 0.5 on the variance of the weights is infinite, from 0.7 on means by them are not to be relied on.
    """
    finite = logs[np.isfinite(logs)]
    if len(finite) < TAIL or float(np.ptp(np.sort(finite)[-_largest(len(finite)) :])) < 1e-3:
        return 0.0
    return pareto_index(finite)


def _largest(number: int) -> int:
    """How many of so many weights make their tail."""
    return math.ceil(min(number / 5, 3 * math.sqrt(number)))


def labels(name: str, shape: Sequence[int], numbers: Iterable[int] | None = None) -> list[str]:
    """The names of components of a block, by their `numbers` in its order, or of all.

    >>> labels("theta", (2, 2), [1, 2]), labels("xi", ())
    (['theta[0, 1]', 'theta[1, 0]'], ['xi'])
    """
    if not len(shape):
        return [name]
    indices = np.ndindex(*shape) if numbers is None else zip(*np.unravel_index(np.fromiter(numbers, int), tuple(shape)))
    return [f"{name}[{', '.join(str(int(i)) for i in index)}]" for index in indices]


def flattened(x: torch.Tensor) -> torch.Tensor:
    """Values `(chains, draws, *shape)` as `(chains, draws, components)`."""
    return x.flatten(2) if x.dim() > 2 else x[:, :, None]


def highest_density(
    values: torch.Tensor, mass: float, weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The ends of the shortest interval with this share of all draws, each `(*shape)` in float64."""
    x = flattened(values.detach().to("cpu", torch.float64)).flatten(0, 1).T.contiguous()
    if weights is not None:
        number = x.shape[1]
        shares = (np.arange(number) + 0.5) / number  # as many draws of equal weight, at the quantiles
        x = torch.from_numpy(_quantiles(x.numpy(), shares, weights).T.copy())
    x = torch.from_numpy(np.sort(x.numpy(), axis=1))
    inside = int(mass * x.shape[1])
    first = (x[:, inside:] - x[:, : x.shape[1] - inside]).argmin(1, keepdim=True)
    low, high = (x.gather(1, at).reshape(values.shape[2:]) for at in (first, first + inside))
    return low, high


def autocorrelation_time(values: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """The integrated autocorrelation time, chains draws/ESS of the mean, in draws: `(*shape)` in float64."""
    return values.shape[0] * values.shape[1] / sample_size_of_mean(values, weights)


def split_r_hat(values: torch.Tensor) -> torch.Tensor:
    """The rank-normalised split R-hat: `(*shape)` in float64; nan for one chain."""

    def statistic(x: torch.Tensor) -> torch.Tensor:
        x = _halves(x)
        median = torch.from_numpy(np.median(x.flatten(1).numpy(), axis=1))
        folded = (x - median[:, None, None]).abs()
        return torch.maximum(_r_hat(_normal_scores(x)), _r_hat(_normal_scores(folded)))

    return _per_component(values, statistic, chains=2)


# ---- of components `(components, chains, draws)`


def _halves(x: torch.Tensor) -> torch.Tensor:
    """Chains cut in two, `(components, 2 chains, draws // 2)`."""
    half = x.shape[2] // 2
    return torch.cat([x[:, :, :half], x[:, :, -half:]], 1)


def _sample_size_by(weights: torch.Tensor | None, x: torch.Tensor) -> torch.Tensor:
    """The effective sample size of the mean of values, by weights of mean 1, `(chains, draws)`: `(components,)`."""
    if weights is None:
        return _sample_size(_halves(x))
    off = x - (weights * x).mean((1, 2), keepdim=True)
    pull = weights * off
    return (weights * off.square()).mean((1, 2)) / pull.var((1, 2)) * _sample_size(_halves(pull))


def _quantiles(x: np.ndarray, shares: Sequence[float] | np.ndarray, weights: torch.Tensor | None) -> np.ndarray:
    """The values up to which there is this share of all draws `(components, number)`: `(shares, components)`."""
    if weights is None:
        return np.quantile(x, shares, axis=1, method="lower")
    order = np.argsort(x, axis=1)
    upto = weights.flatten().numpy()[order].cumsum(1)
    at = [np.searchsorted(row, np.asarray(shares) * row[-1]) for row in upto]
    return np.take_along_axis(np.take_along_axis(x, order, 1), np.minimum(at, x.shape[1] - 1), 1).T


def _normal_scores(x: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """The normal quantiles of the ranks over all chains, Phi^-1((rank - 3/8)/(number + 1/4)); ties share a rank.

    The rank is the weight of the lesser draws, and a half, and half of its own weight.
    """
    values = x.flatten(1)
    order = torch.from_numpy(np.argsort(values.numpy(), axis=1))  # several times as fast as torch's
    ordered = values.gather(1, order)
    number = ordered.shape[1]
    rank = torch.arange(1, number + 1, dtype=torch.float64, device=x.device)
    is_new = torch.ones_like(ordered, dtype=torch.bool)
    is_new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    if weights is not None:
        w = weights.flatten()[order]
        upto = w.cumsum(1)
        below = (upto - w).where(is_new, 0.0).cummax(1).values
        above = upto.where(is_new.roll(-1, 1), math.inf).flip(1).cummin(1).values.flip(1)
        rank = (below + above + 1) / 2
    elif not is_new.all():
        place = rank.expand_as(ordered)
        first = place.where(is_new, 0.0).cummax(1).values
        last = place.where(is_new.roll(-1, 1), number).flip(1).cummin(1).values.flip(1)
        rank = (first + last) / 2
    scores = torch.special.ndtri((rank - 3 / 8) / (number + 1 / 4))
    return torch.empty_like(ordered).scatter_(1, order, scores.expand_as(ordered)).reshape(x.shape)


def autocovariances(x: torch.Tensor) -> torch.Tensor:
    """C_k = sum_t (x_t - m)(x_{t+k} - m)/draws of `(..., draws)` around the mean m of each chain, over k."""
    draws = x.shape[-1]
    spectrum = torch.fft.rfft(x - x.mean(-1, keepdim=True), n=2 * draws)
    return torch.fft.irfft((spectrum * spectrum.conj()).real, n=2 * draws)[..., :draws] / draws


def _sample_size(x: torch.Tensor, *, between: bool = True) -> torch.Tensor:
    """chains draws/tau of the autocorrelation rho_t: `(components,)`.

    rho_t = 1 - (W - C_t)/V, where C_t is the mean autocovariance of the chains, W their variance, and V that of all
    values, or of the chains alone where not `between`.
    """
    chains, draws = x.shape[1:]
    covariance = autocovariances(x).mean(1)
    variance = covariance[:, 0]
    if between and chains > 1:
        variance = variance + x.mean(2).var(1)
    rho = 1 - (covariance[:, :1] * draws / (draws - 1) - covariance) / variance[:, None]
    return _effective(chains * draws, _time(rho[:, : 2 * max((draws - 3) // 2, 0) + 2])[0])


def _sample_size_of_moves(x: torch.Tensor) -> torch.Tensor:
    """chains draws/tau of the autocorrelation of short chains, which goes on as an exponential: `(components,)`."""
    chains, draws = x.shape[1:]
    half = 2 * (draws // 4)
    moves = [(x[:, :, t:] - x[:, :, :-t]).square().mean((1, 2)) for t in range(1, half + 2)]
    rho = 1 - torch.stack([torch.zeros_like(moves[0]), *moves], 1) / (2 * x.flatten(1).var(1, keepdim=True))
    tau, last = _time(rho)
    last = last.where(last > 3 / math.sqrt(chains * draws), 0.0)  # what chance makes of independent draws
    rate = last ** (1 / half)
    return _effective(chains * draws, tau + last * (1 + rate) / (1 - rate))


def _time(rho: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """tau = -1 + 2 sum_t rho_t, over pairs of rho that are positive and fall, and what is left of rho at their end.

    `rho`: `(components, lags)`, an even number of them; what is left is 0 where a pair is not positive.
    """
    pairs = rho.unflatten(1, (-1, 2)).clone()
    pairs[:, 0, 0] = 1.0
    sums = pairs.sum(2)
    ended = torch.cat([sums[:, :-1] <= 0, torch.ones_like(sums[:, :1], dtype=torch.bool)], 1).to(torch.int8)
    end = ended.argmax(1, keepdim=True)
    before = torch.arange(sums.shape[1], device=rho.device) < end
    total = (sums.cummin(1).values * before).sum(1)
    even, at_end = (x.gather(1, end)[:, 0] for x in (pairs[:, :, 0], sums))
    kept = (even > 0) | (at_end >= 0)
    return -1 + 2 * total + even * kept, even.where(at_end > 0, 0.0).clamp(min=0.0)


def _effective(number: int, tau: torch.Tensor) -> torch.Tensor:
    """number/tau, which is number log10(number) at most."""
    return number / tau.clamp(min=1 / math.log10(number))


def _r_hat(x: torch.Tensor) -> torch.Tensor:
    """sqrt((B/W + n - 1)/n) of n draws: B is n times the variance of the chains' means, W their mean variance."""
    draws = x.shape[2]
    return ((draws * x.mean(2).var(1) / x.var(2).mean(1) + draws - 1) / draws).sqrt()


def _per_component(
    values: torch.Tensor, statistic: Callable[[torch.Tensor], torch.Tensor], chains: int = 1
) -> torch.Tensor:
    """A statistic of `(components, chains, draws)` for all components that have one; nan for the others."""
    x = flattened(values.detach().to("cpu", torch.float64))
    result = torch.full(x.shape[2:], math.nan, dtype=torch.float64, device="cpu")
    if len(x) >= chains and x.shape[1] >= LEAST:
        size = max(1, AT_ONCE // (x.shape[0] * x.shape[1]))
        for components in torch.arange(x.shape[2], device="cpu").split(size):
            part = x[:, :, components].permute(2, 0, 1).contiguous()
            low, high = part.flatten(1).aminmax(dim=1)
            varies = low.isfinite() & high.isfinite() & (low < high)
            if varies.any():
                part = part if varies.all() else part[varies]
                sd, mean = torch.std_mean(part, (1, 2), keepdim=True)
                result[components[varies]] = statistic((part - mean) / sd)
    return result.reshape(values.shape[2:])
