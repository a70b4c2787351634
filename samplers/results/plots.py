"""A picture of draws: traces, marginal densities and autocorrelations."""

import itertools
import math

import numpy as np

from recipe.errors import RecipeError

from .diagnostics import arviz_module, autocorrelation_time, effective_sample_size, r_hat
from .draws import Draws

POINTS = 2000  # of a line
SOUND, DIVERGED = 32, 8  # chains that are drawn, at most
ROWS = 50
LAGS = 40, 1000  # of the autocorrelation, at least and at most


def plot(draws: Draws, var_names: str | list[str] | None = None, max_components: int = 4):
    """A matplotlib Figure of draws, a row for each of the first `max_components` components of every name.

    Columns: the trace of the chains, thinned to 2000 points a line; the marginal density of each; its autocorrelation,
    sum_t (x_t - m)(x_{t+k} - m)/sum_t (x_t - m)^2 over lags k in draws, with the band +-1.96/sqrt(draws) of white noise.
    Titles have the effective sample size and R-hat of all chains that did not diverge; of these the first 32 are drawn.
    Chains that diverged, the first 8, are dashed in the trace, whose limits are those of the others, and elsewhere left
    out. No window is opened: see `Figure.savefig`. Raises RecipeError without matplotlib, for an unknown name, and where
    there are no rows, or more than 50.

    >>> import torch
    >>> figure = plot(Draws({"theta": torch.randn(4, 50, 2)}, info={}))
    >>> [axes.get_title() for axes in figure.axes if axes.get_ylabel()]       # doctest: +ELLIPSIS
    ['theta[0]: ESS ..., R-hat ...', 'theta[1]: ESS ..., R-hat ...']
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RecipeError(
            "draws, plot", f"matplotlib cannot be imported ({error})", do="Install it: pip install matplotlib."
        ) from error
    if isinstance(max_components, bool) or not isinstance(max_components, int) or max_components < 1:
        raise RecipeError("draws, plot", f"max_components is an integer >= 1, got {max_components!r}", do="Take 4.")
    names = list(draws) if var_names is None else [var_names] if isinstance(var_names, str) else list(var_names)
    shapes = {name: tuple(draws[name].shape[2:]) for name in names}
    number = sum(min(math.prod(shape), max_components) for shape in shapes.values())
    if not (draws.chains and draws.draws and 0 < number <= ROWS):
        raise RecipeError(
            "draws, plot",
            f"{draws.chains} chains x {draws.draws} draws of {number} components"
            + f", more than {ROWS}" * (number > ROWS),
            do="Name some blocks that have draws in var_names.",
        )
    sound = [chain for chain in range(draws.chains) if chain not in draws.diverged]
    shown, lost = sound[:SOUND], list(itertools.islice(draws.diverged, DIVERGED))
    figure = Figure(figsize=(12, 2.2 * number + 0.6), layout="constrained")
    rows = iter(figure.subplots(number, 3, squeeze=False, width_ratios=(2, 1, 1)))
    for name, shape in shapes.items():
        # Few components may be shown of many: the rest is never converted.
        values = draws[name].flatten(2)[:, :, :max_components] if shape else draws[name][:, :, None]
        judged = Draws({name: values[sound] if sound else values[:1, :1]}, info={})  # one draw has no ESS
        tau, ess, r = (f(judged, name) for f in (autocorrelation_time, effective_sample_size, r_hat))
        values = values[shown + lost].cpu().double().numpy()
        for k, index in enumerate(itertools.islice(np.ndindex(shape), max_components)):
            label = name + (f"[{', '.join(map(str, index))}]" if shape else "")
            told = [
                f"{what} {x:{form}}" for what, x, form in (("ESS", ess[k], ".0f"), ("R-hat", r[k], ".3f")) if x == x
            ]
            trace, density, correlation = next(rows)
            trace.set(ylabel=label, title=label + ": " * bool(told) + ", ".join(told))
            _trace(trace, values[:, :, k], shown, {chain: draws.diverged[chain] for chain in lost})
            _density(density, values[: len(shown), :, k])
            _autocorrelation(correlation, values[: len(shown), :, k], float(tau[k]))
    for axes, told in zip((trace, density, correlation), ("draw", "value", "lag, in draws")):
        axes.set_xlabel(told)
    for axes, told in zip(figure.axes[1:3], ("density", "autocorrelation")):
        axes.set_title(told)
    if lost:
        first = figure.axes[0]
        first.legend(handles=first.lines[len(shown) :], loc="upper right", fontsize="small")
    figure.suptitle(_title(draws, len(shown), len(lost)))
    return figure


def _trace(axes, chains, shown, diverged):
    stride = math.ceil(chains.shape[1] / POINTS)
    at = np.arange(0, chains.shape[1], stride)
    alone = {"marker": "."} if len(at) < 50 else {}  # a line of one point is none
    for chain, x in zip(shown, chains):
        axes.plot(at, x[::stride], linewidth=0.6, alpha=0.8, label=f"chain {chain}", **alone)
    low, high = axes.get_ylim()
    for (chain, step), x in zip(diverged.items(), chains[len(shown) :]):
        axes.plot(
            at, x[::stride], linewidth=1, linestyle="--", label=f"chain {chain}, diverged at step {step}", **alone
        )
    if shown:
        axes.set_ylim(low, high)  # a diverged chain may be anywhere


def _density(axes, chains):
    for number, x in enumerate(chains):
        x = x[np.isfinite(x)]
        if len(x) and x.min() == x.max():
            axes.plot(x[[0, 0]], [0, 1], color=f"C{number % 10}", linewidth=1, transform=axes.get_xaxis_transform())
        elif len(x):
            at, density = arviz_module().kde(x - x[0])  # far from 0 its bins would have no width
            axes.plot(x[0] + at, density, color=f"C{number % 10}", linewidth=1)
    axes.set_ylim(bottom=0)
    axes.set_yticks([])


def _autocorrelation(axes, chains, tau):
    draws = chains.shape[1]
    least, most = LAGS
    lags = min(draws - 1, most, max(least, math.ceil(6 * tau) if tau == tau else 0))
    band = 1.96 / math.sqrt(draws)
    axes.axhspan(-band, band, color="0.85")
    for number, x in enumerate(chains):
        if np.isfinite(x).all():  # of a constant it is nan
            axes.plot(arviz_module().autocorr(x)[: lags + 1], color=f"C{number % 10}", linewidth=1)
    axes.set_xlim(0, max(lags, 1))


def _title(draws, shown, lost):
    run = ", ".join(str(draws.info[key]) for key in ("recipe", "scheme") if key in draws.info) or "draws"
    told = f"{run}: {draws.chains} chains x {draws.draws} draws"
    told += f", {len(draws.diverged)} diverged" if draws.diverged else ""
    return told + (f"; {shown + lost} chains are drawn" if shown + lost < draws.chains else "")
