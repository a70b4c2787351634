"""A black box under an audit: its runs, checked, counted and timed, and the comparisons made of them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist
from time import perf_counter
from typing import Any

import numpy as np
import torch

from recipe.arguments import integer, is_number, number
from recipe.errors import RecipeError

from ...running.interrupts import ended_by_interrupt
from ..results import Result
from .laws import LAWS, Law

FORM = "run(potential, init, *, steps, step_size, temperature, seed) -> theta"
WHERE = "audit"
FAR = 1e4  # standard deviations from the mean, from which on a finite chain counts as diverged
VERDICTS: dict[str, bool | None] = {  # in this order: the first that applies is the verdict
    "not finished": None,
    "diverges": False,
    "does not move": False,
    "seed ignored": False,
    "noise shared across chains": False,
    "noise reused": False,
    "start not forgotten": False,
    "noise shared across coordinates": False,
    "temperature used wrongly": False,
    "not exact": False,
    "bias does not vanish": False,
    "bias, limit unresolved": None,
    "vanishing bias": True,
    "unbiased": True,
}


@dataclass(frozen=True)
class Cell:
    """A run for a target, temperature and step size, with the bias and standard error of each statistic.

    `square` is E theta^2, averaged over the coordinates, and `exact` its value under exp(-U/T).
    """

    law: Law = field(repr=False)
    temperature: float
    step_size: float
    time: float
    bias: np.ndarray = field(repr=False)
    error: np.ndarray = field(repr=False)

    @property
    def z(self) -> np.ndarray:
        """The biases in standard errors."""
        return self.bias / self.error

    @property
    def square(self) -> float:
        """E theta^2 of the draws."""
        return self.exact * (1 + self.bias[-2])

    @property
    def exact(self) -> float:
        """E theta^2 under exp(-U/T)."""
        return self.law.square(self.temperature)

    def to_dict(self) -> dict[str, Any]:
        """The cell as plain data."""
        worst = int(abs(self.z).argmax())
        return {
            "target": self.law.name,
            "dim": self.law.dim,
            "temperature": self.temperature,
            "step_size": self.step_size,
            "time": self.time,
            "E theta^2": self.square,
            "exact": self.exact,
            "z": float(self.z[-2]),
            "worst": self.law.labels[worst],
            "worst z": float(self.z[worst]),
        }


class OutOfTime(Exception):
    """The time limit of an audit has passed."""


class Experiment:
    """Runs of a black box at h, h/2 and h/4 and two temperatures, with findings, and verdicts of failed comparisons.

    `time`, of a run, grows until the start is forgotten; `bar` counts the runs. Raises RecipeError for settings that
    are out of their range, or a function of another form.
    """

    bar: Any

    def __init__(
        self,
        run: Callable,
        name: str,
        *,
        step_size: float,
        time: float,
        chains: int,
        temperatures: tuple[float, float],
        alpha: float,
        seed: int,
        limit: float | None,
        exact: bool,
    ):
        _check_function(run)
        number(WHERE, "step_size", step_size, above=0, do="Pass step_size=0.1.")
        what = f"time is a number >= step_size, got {time!r}"
        number(WHERE, "time", time, above=0, least=step_size, what=what, do="Pass time=10.0.")
        integer(WHERE, "chains", chains, least=400, do="Pass chains=32768.")
        _check_temperatures(temperatures)
        what = f"alpha is a probability, got {alpha!r}"
        number(WHERE, "alpha", alpha, above=0, below=1, what=what, do="Pass alpha=1e-4.")
        if limit is not None:
            what = f"the limit is a number of seconds > 0, got {limit!r}"
            number(WHERE, "limit", limit, above=0, what=what, do="Pass limit=600.")
        integer(WHERE, "the seed", seed, least=0, do="Pass seed=0.")
        self.function, self.name = run, name
        self.exact = exact
        self.step_sizes = [step_size * 2**i for i in ((2, 1, 0) if exact else (0, -1, -2))]
        self.time, self.chains, self.temperatures = time, chains, temperatures
        self.alpha, self.limit = alpha, limit
        self.generator = torch.Generator().manual_seed(seed)
        self.started, self.runs = perf_counter(), 0
        self.cells: list[Cell] = []
        self.results: list[Result] = []
        self.findings: list[str] = []
        self.verdicts: set[str] = set()

    @property
    def compared(self) -> int:
        """The number of chains that start from exact draws."""
        return self.chains * 3 // 4

    @property
    def threshold(self) -> float:
        """The standard errors beyond which a statistic counts; all statistics together have half of alpha.

        The statistics are those of each target and temperature, and the pooled ones, at three step sizes and in the
        limit; the mean of each coordinate for two seeds; the correlation of coordinates; the exponent of T.
        """
        return self._bound(4 * (sum(len(law.labels) for law in LAWS) * 2 + 3) + LAWS[0].dim + 2)

    @property
    def likeness(self) -> float:
        """The standard errors beyond which a correlation of chains counts; all lags have half of alpha together."""
        return self._bound(LAWS[0].dim * self.chains // 2)

    def _bound(self, comparisons):
        return NormalDist().inv_cdf(1 - self.alpha / 4 / comparisons)

    # ---- runs

    def seed(self) -> int:
        """A new seed."""
        return int(torch.randint(2**31 - 1, (), generator=self.generator))

    def draw(self, law: Law, T: float) -> torch.Tensor:
        """Exact draws, (chains, dim)."""
        return law.draw(self.chains, T, self.generator)

    def run(
        self, law: Law, init: torch.Tensor, T: float, h: float, *, seed: int | None = None, time: float | None = None
    ) -> torch.Tensor:
        """The last draws of chains from `init`, (chains, dim); by default with a new seed, for the time of a run.

        Raises OutOfTime after the first run that ends beyond the limit, and RecipeError where the function returns
        anything but theta, (chains, dim) or (chains, steps, dim).
        """
        seed = self.seed() if seed is None else seed
        steps = max(1, round((time or self.time) / h))
        self.bar.set_postfix_str(f"{law.name}, T = {T:g}, {steps} steps of {h:g}")
        with ended_by_interrupt():  # samplers.sample would return its draws so far
            theta = self.function(law.potential, init.clone(), steps=steps, step_size=h, temperature=T, seed=seed)
        self.runs += 1
        self.bar.total = max(self.bar.total, self.runs)
        self.bar.update()
        theta = self._checked(theta, init)
        passed = perf_counter() - self.started
        if self.limit is not None and passed > self.limit:
            raise OutOfTime(
                f"{self.runs} runs of {self.bar.total} or more took {passed:.0f} s, the limit is {self.limit:g} s; "
                f"the last was {steps} steps on the {law.name}: pass fewer chains, or a higher limit"
            )
        return theta

    def _checked(self, theta, init):
        """The last draws (chains, dim), on the CPU."""
        where = f"{self.name}, audit"
        theta = torch.as_tensor(theta) if isinstance(theta, np.ndarray) else theta
        if not torch.is_tensor(theta):
            raise RecipeError(
                where, f"it returned {type(theta).__name__}, not a tensor", do="Return theta, (chains, dim)."
            )
        theta = theta[:, -1] if theta.dim() == 3 and theta.shape[1] else theta
        if theta.shape != init.shape:
            raise RecipeError(
                where,
                f"it returned the shape {tuple(theta.shape)} for init {tuple(init.shape)}",
                do="Return theta, (chains, dim), or all draws, (chains, steps, dim).",
            )
        if not theta.is_floating_point():
            raise RecipeError(where, f"it returned {theta.dtype}", do="Return real numbers.")
        return theta.detach().cpu()

    # ---- comparisons

    @property
    def verdict(self) -> str:
        """The first of VERDICTS that applies."""
        return next((verdict for verdict in VERDICTS if verdict in self.verdicts), "unbiased")

    def conclude(self, verdict: str, text: str) -> None:
        """Adds a verdict, and a finding with its reason."""
        self.verdicts.add(verdict)
        self.findings.append(f"{verdict}: {text}")

    def keeps(
        self,
        layer: str,
        statistic: str,
        value: float,
        bound: float,
        equation: str,
        verdict: str,
        text: str,
        subject: str = "",
    ) -> bool:
        """Records whether a statistic keeps its bound, and returns that; if not, adds the verdict and the finding."""
        result = Result(layer, statistic, float(value), float(bound), equation, subject)
        self.results.append(result)
        if not result.ok:
            self.conclude(verdict, text)
        return result.ok

    def stays(self, law: Law, T: float, h: float, theta: torch.Tensor) -> bool:
        """Whether every chain stays finite; if not, searches for a stable step size, which the finding names."""
        share = _lost(law, T, theta)
        if not share:
            return True
        init = self.draw(law, T)
        smaller = (h / 2**i for i in range(1, 4))
        stable = next((h for h in smaller if not _lost(law, T, self.run(law, init, T, h))), None)
        advice = "and so at h/2, h/4 and h/8"
        if stable is not None:
            advice = f"all stay finite for {self.time:g} units of time at {stable:g}: pass a step_size of that, or less"
        return self.keeps(
            "stability",
            "chains that leave the finite numbers",
            share,
            0.0,
            "theta stays finite",
            "diverges",
            f"on the {law.name}, T = {T:g}, h = {h:g}, {share:.2%} of the chains leave the finite numbers; {advice}",
        )


def _lost(law, T, theta):
    """The share of chains that are not finite, or beyond FAR standard deviations."""
    mean, sd, *_ = law.moments(T)
    return 1 - float((abs(theta.double().numpy() - mean) < FAR * sd).all(1).mean())


def _check_temperatures(temperatures):
    """Refuses anything but a pair of different temperatures."""
    pair = isinstance(temperatures, (tuple, list)) and len(temperatures) == 2
    if not (pair and all(is_number(T) and T > 0 for T in temperatures) and temperatures[0] != temperatures[1]):
        what = f"temperatures are two numbers > 0, got {temperatures!r}"
        raise RecipeError(WHERE, what, do="Pass temperatures=(0.5, 1.5).")


def _check_function(run):
    """Refuses anything but a function of the form that an audit calls."""
    if not callable(run):
        raise RecipeError(WHERE, f"{run!r} is not a function", do=f"Pass {FORM}.")
    try:
        inspect.signature(run).bind(None, None, steps=1, step_size=0.1, temperature=1.0, seed=0)
    except TypeError as error:
        raise RecipeError(WHERE, f"the function cannot be called: {error}", do=f"Write {FORM}.") from error
    except ValueError:  # a builtin without a signature
        pass
