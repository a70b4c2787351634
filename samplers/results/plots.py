"""A picture of draws: traces, marginal densities and autocorrelations."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from recipe.arguments import integer
from recipe.errors import RecipeError

from . import statistics

WHERE = "draws, plot"
POINTS = 2000  # of a line
SOUND, DIVERGED = 32, 8  # chains that are drawn, at most
ROWS = 50
LAGS = 40, 1000  # of the autocorrelation, at least and at most


@dataclass(frozen=True)
class Shown:
    """The chains that are drawn: sound ones by number, and diverged ones by number with the step they left at."""

    sound: list[int]
    diverged: dict[int, int]

    @property
    def chains(self) -> list[int]:
        """The numbers of all, sound ones first."""
        return [*self.sound, *self.diverged]


@dataclass(frozen=True, eq=False)
class Component:
    """A row of the picture: one component, its values `(chains that are drawn, draws)`, and its statistics."""

    label: str
    values: np.ndarray
    tau: float
    ess: float
    r_hat: float

    @property
    def title(self) -> str:
        """The label, with the statistics there are."""
        statistics = [f"ESS {self.ess:.0f}"] if self.ess == self.ess else []
        statistics += [f"R-hat {self.r_hat:.3f}"] if self.r_hat == self.r_hat else []
        return f"{self.label}: {', '.join(statistics)}" if statistics else self.label


def plot(
    values: Mapping[str, torch.Tensor],
    names: Sequence[str],
    *,
    title: str,
    diverged: Mapping[int, int],
    max_components: int,
) -> Any:
    """A matplotlib Figure of the blocks `names` of `(chains, draws, *shape)`; see `Draws.plot`.

    `diverged` is {chain: step}; the title goes on with how many chains are lost and drawn.

    >>> figure = plot({"theta": torch.randn(4, 50, 2)}, ["theta"], title="sgld", diverged={}, max_components=4)
    >>> [axes.get_title() for axes in figure.axes if axes.get_ylabel()]       # doctest: +ELLIPSIS
    ['theta[0]: ESS ..., R-hat ...', 'theta[1]: ESS ..., R-hat ...']
    """
    figure_class = _figure_class()
    max_components = integer(WHERE, "max_components", max_components, least=1, do="Take 4.")
    chains, draws = next(iter(values.values())).shape[:2]
    number = sum(min(math.prod(values[name].shape[2:]), max_components) for name in names)
    _check_rows(chains, draws, number)
    sound = [chain for chain in range(chains) if chain not in diverged]
    shown = Shown(sound[:SOUND], dict(itertools.islice(diverged.items(), DIVERGED)))
    figure = figure_class(figsize=(12, 2.2 * number + 0.6), layout="constrained")
    rows = figure.subplots(number, 3, squeeze=False, width_ratios=(2, 1, 1))
    components = (c for name in names for c in _components(name, values[name], sound, shown, max_components))
    for axes, component in zip(rows, components, strict=True):
        _row(axes, component, shown)
    for axes, label in zip(rows[-1], ("draw", "value", "lag, in draws")):
        axes.set_xlabel(label)
    for axes, label in zip(rows[0, 1:], ("density", "autocorrelation")):
        axes.set_title(label)
    if shown.diverged:
        first = rows[0, 0]
        first.legend(handles=first.lines[len(shown.sound) :], loc="upper right", fontsize="small")
    figure.suptitle(_title(title, chains, len(diverged), len(shown.chains)))
    return figure


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise RecipeError(
            WHERE, f"matplotlib cannot be imported ({error})", do="Install it: pip install matplotlib."
        ) from error
    return Figure


def _check_rows(chains: int, draws: int, number: int) -> None:
    if chains and draws and 0 < number <= ROWS:
        return
    reason = f"{chains} chains x {draws} draws of {number} components"
    if number > ROWS:
        reason += f", more than {ROWS}"
    raise RecipeError(WHERE, reason, do="Name some blocks that have draws in var_names.")


def _components(
    name: str, block: torch.Tensor, sound: list[int], shown: Shown, max_components: int
) -> Iterator[Component]:
    shape = tuple(block.shape[2:])
    # Few components may be shown of many: the rest is never converted.
    block = block.flatten(2)[:, :, :max_components] if shape else block[:, :, None]
    judged = block[sound]
    tau = statistics.autocorrelation_time(judged)
    ess = statistics.sample_size_of_ranks(judged)
    r_hat = statistics.split_r_hat(judged)
    values = block[shown.chains].cpu().double().numpy()
    for k, label in enumerate(itertools.islice(statistics.labels(name, shape), max_components)):
        yield Component(label, values[:, :, k], float(tau[k]), float(ess[k]), float(r_hat[k]))


def _row(axes: np.ndarray, component: Component, shown: Shown) -> None:
    trace, density, correlation = axes
    sound = component.values[: len(shown.sound)]
    trace.set(ylabel=component.label, title=component.title)
    _trace(trace, component.values, shown)
    _density(density, sound)
    _autocorrelation(correlation, sound, component.tau)


def _trace(axes: Any, chains: np.ndarray, shown: Shown) -> None:
    stride = math.ceil(chains.shape[1] / POINTS)
    at = np.arange(0, chains.shape[1], stride)
    alone = {"marker": "."} if len(at) < 50 else {}  # a line of one point is none
    for chain, x in zip(shown.sound, chains):
        axes.plot(at, x[::stride], linewidth=0.6, alpha=0.8, label=f"chain {chain}", **alone)
    low, high = axes.get_ylim()
    for (chain, step), x in zip(shown.diverged.items(), chains[len(shown.sound) :]):
        label = f"chain {chain}, diverged at step {step}"
        axes.plot(at, x[::stride], linewidth=1, linestyle="--", label=label, **alone)
    if shown.sound:
        axes.set_ylim(low, high)  # a diverged chain may be anywhere


def _density(axes: Any, chains: np.ndarray) -> None:
    for number, x in enumerate(chains):
        x = x[np.isfinite(x)]
        if len(x) and x.min() == x.max():
            axes.plot(x[[0, 0]], [0, 1], color=f"C{number % 10}", linewidth=1, transform=axes.get_xaxis_transform())
        elif len(x):
            at, density = statistics.density(x - x[0])  # far from 0 its bins would have no width
            axes.plot(x[0] + at, density, color=f"C{number % 10}", linewidth=1)
    axes.set_ylim(bottom=0)
    axes.set_yticks([])


def _autocorrelation(axes: Any, chains: np.ndarray, tau: float) -> None:
    draws = chains.shape[1]
    least, most = LAGS
    lags = least if math.isnan(tau) else min(most, max(least, math.ceil(6 * tau)))
    lags = min(draws - 1, lags)
    band = 1.96 / math.sqrt(draws)
    axes.axhspan(-band, band, color="0.85")
    for number, x in enumerate(chains):
        if np.isfinite(x).all():  # of a constant it is nan
            covariances = statistics.autocovariances(torch.from_numpy(x)[None])[0, : lags + 1]
            axes.plot(covariances / covariances[0], color=f"C{number % 10}", linewidth=1)
    axes.set_xlim(0, max(lags, 1))


def _title(title: str, chains: int, lost: int, shown: int) -> str:
    if lost:
        title += f", {lost} diverged"
    if shown < chains:
        title += f"; {shown} chains are drawn"
    return title
