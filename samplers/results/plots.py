"""A picture of draws: traces, marginal densities and autocorrelations."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from recipe.arguments import integer
from recipe.errors import RecipeError

from . import statistics
from .tensor_checks import package

WHERE = "draws, plot"
POINTS = 2000  # of a line
SOUND, DIVERGED = 32, 8  # chains that are drawn, at most
ROWS = 50
LAGS = 40, 1000  # of the autocorrelation, at least and at most

Lines = Mapping[int, int | None]  # the drawn chains, sound ones first, with the step at which a chain diverged


def plot(values: Any, names: Sequence[str], title: str, max_components: int) -> Any:
    """A matplotlib Figure of the blocks `names` of `Draws`; `Draws.plot` says more.

    The numbers of lost and of drawn chains are added to the title; a caption says of how many coordinates some are
    drawn.
    """
    figure_class = package(WHERE, "matplotlib.figure").Figure
    max_components = integer(WHERE, "max_components", max_components, least=1, do="Take 4.")
    chains, draws, diverged, weights = values.chains, values.draws, values.diverged, values.weights
    number = sum(min(math.prod(values[name].shape[2:]), max_components) for name in names)
    if not (chains and draws and 0 < number <= ROWS):
        reason = f"{chains} chains x {draws} draws of {number} components"
        reason += f", more than {ROWS}" if number > ROWS else ""
        raise RecipeError(WHERE, reason, do="Name some blocks that have draws in var_names.")
    sound = [chain for chain in range(chains) if chain not in diverged]
    lines = dict.fromkeys(sound[:SOUND]) | dict(islice(diverged.items(), DIVERGED))
    figure = figure_class(figsize=(12, 2.2 * number + 0.6), layout="constrained")
    rows = figure.subplots(number, 3, squeeze=False, width_ratios=(2, 1, 1))
    remaining = iter(rows)
    for name in names:
        _draw(remaining, name, values[name], sound, lines, max_components, weights)
    for axes, label in zip(rows[-1], ("draw", "value", "lag, in draws")):
        axes.set_xlabel(label)
    for axes, label in zip(rows[0, 1:], ("density", "autocorrelation")):
        axes.set_title(label)
    if diverged:
        first = rows[0, 0]
        first.legend(handles=first.lines[len(sound[:SOUND]) :], loc="upper right", fontsize="small")
    title += f", {len(diverged)} diverged" if diverged else ""
    of_all = sum(math.prod(values[name].shape[2:]) for name in names)
    if number < of_all:
        figure.supxlabel(f"{number} of {of_all} coordinates")
    title += f"; {len(lines)} chains are drawn" if len(lines) < chains else ""
    figure.suptitle(title)
    return figure


def _draw(
    rows: Iterator[np.ndarray],
    name: str,
    block: torch.Tensor,
    sound: list[int],
    lines: Lines,
    max_components: int,
    weights: torch.Tensor | None,
) -> None:
    """Draw the first components of a block, one in each of the next rows."""
    shape = block.shape[2:]
    # Few components may be drawn of many: the others are never converted.
    block = statistics.flattened(block)[:, :, :max_components]
    tau = statistics.autocorrelation_time(block[sound])
    w = None if weights is None else weights[sound]
    numbers = {
        "ESS {:.0f}": statistics.sample_size_of_ranks(block[sound], w),
        "R-hat {:.3f}": statistics.split_r_hat(block[sound]),
    }
    values = block[list(lines)].cpu().double().numpy()
    for k, label in enumerate(statistics.labels(name, shape, range(block.shape[2]))):
        trace, density, correlation = next(rows)
        words = ", ".join(form.format(x[k]) for form, x in numbers.items() if not x[k].isnan())
        trace.set(ylabel=label, title=f"{label}: {words}" if words else label)
        _trace(trace, values[:, :, k], lines)
        of_sound = values[: min(len(sound), SOUND), :, k]
        _density(density, of_sound, None if w is None else w.numpy())
        _autocorrelation(correlation, of_sound, float(tau[k]))


def _trace(axes: Any, chains: np.ndarray, lines: Lines) -> None:
    stride = math.ceil(chains.shape[1] / POINTS)
    at = np.arange(0, chains.shape[1], stride)
    alone = {"marker": "."} if len(at) < 50 else {}  # a line of one point is invisible
    sound = [chain for chain, step in lines.items() if step is None]
    for chain, x in zip(sound, chains):
        axes.plot(at, x[::stride], linewidth=0.6, alpha=0.8, label=f"chain {chain}", **alone)
    limits = axes.get_ylim()
    for chain, x in zip(list(lines)[len(sound) :], chains[len(sound) :]):
        label = f"chain {chain}, diverged at step {lines[chain]}"
        axes.plot(at, x[::stride], linewidth=1, linestyle="--", label=label, **alone)
    if sound:
        axes.set_ylim(*limits)  # a diverged chain may be anywhere


def _density(axes: Any, chains: np.ndarray, weights: np.ndarray | None) -> None:
    for number, x in enumerate(chains):
        w = None if weights is None else weights[number][np.isfinite(x)]
        x = x[np.isfinite(x)]
        if len(x) and x.min() == x.max():
            axes.plot(x[[0, 0]], [0, 1], color=f"C{number % 10}", linewidth=1, transform=axes.get_xaxis_transform())
        elif len(x):
            at, density = statistics.density(x - x[0], w)  # far from 0 its bins would have no width
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
        if np.isfinite(x).all():  # nan for a constant
            covariances = statistics.autocovariances(torch.from_numpy(x)[None])[0, : lags + 1]
            axes.plot(covariances / covariances[0], color=f"C{number % 10}", linewidth=1)
    axes.set_xlim(0, max(lags, 1))
