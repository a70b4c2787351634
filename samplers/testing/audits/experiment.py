"""A black box under an audit: its runs, checked, counted and timed, and the comparisons made of them."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch

from recipe.arguments import integer, is_number, number
from recipe.errors import RecipeError

from ...running.interrupts import ended_by_interrupt
from ..check_results import Result
from .known_laws import LAWS, KnownLaw

FORM = "run(potential, init, *, steps, step_size, temperature, seed) -> theta"
WHERE = "audit"
FAR = 1e4  # standard deviations from the mean, from which on a finite chain counts as diverged


class Meaning(NamedTuple):
    """Whether a sampler of this verdict is right, the check that it comes from, and the equation that is violated."""

    ok: bool | None
    check: str = ""
    equation: str = ""


VERDICTS = {  # in this order: the first that applies is the verdict
    "not finished": Meaning(None),
    "diverges": Meaning(False, "stability", "theta stays finite"),
    "does not move": Meaning(False, "movement", "theta_n != theta_0"),
    "seed ignored": Meaning(False, "seed", "draws depend on the seed"),
    "noise shared across chains": Meaning(False, "chains", "chains are independent"),
    "noise reused": Meaning(False, "noise", "corr(theta_n, theta_2n) = corr(theta_0, theta_n)"),
    "start not forgotten": Meaning(False, "start", "the law is stationary, and forgets its start"),
    "noise shared across coordinates": Meaning(False, "coordinates", "coordinates are independent"),
    "temperature used wrongly": Meaning(False, "temperature", "theta . grad U / dim = T"),
    "not exact": Meaning(False, "exactness", "E phi(theta_n) = E phi at every h"),
    "bias does not vanish": Meaning(False, "limit", "E phi(theta_n) -> E phi as h -> 0"),
    "bias, limit unresolved": Meaning(None),
    "vanishing bias": Meaning(True),
    "unbiased": Meaning(True),
}


@dataclass(frozen=True)
class Cell:
    """A run for a target, temperature and step size, with the bias and standard error of each statistic.

    `square` is E theta^2, averaged over the coordinates, and `exact` its value under exp(-U/T).
    """

    law: KnownLaw = field(repr=False)
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


@dataclass(eq=False)
class Experiment:
    """Runs of a black box at three step sizes and two temperatures, with findings, and verdicts of failed comparisons.

    `time`, of a run, grows until the start is forgotten; `bar` counts the runs; `unseen` is the reason why the response
    to noise is not known. Raises RecipeError for settings that are out of their range, or a function of another form.
    """

    function: Callable
    name: str
    step_size: float
    time: float
    chains: int
    temperatures: tuple[float, float]
    alpha: float
    seed: int
    limit: float | None
    exact: bool
    bar: Any = None
    runs: int = 0
    cells: list[Cell] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)
    verdicts: set[str] = field(default_factory=set)
    unseen: str = ""

    def __post_init__(self) -> None:
        _check_function(self.function)
        number(WHERE, "step_size", self.step_size, above=0, do="Pass step_size=0.1.")
        what = f"time is a number >= step_size, got {self.time!r}"
        number(WHERE, "time", self.time, above=0, least=self.step_size, what=what, do="Pass time=10.0.")
        integer(WHERE, "chains", self.chains, least=400, do="Pass chains=32768.")
        _check_temperatures(self.temperatures)
        what = f"alpha is a probability, got {self.alpha!r}"
        number(WHERE, "alpha", self.alpha, above=0, below=1, what=what, do="Pass alpha=1e-4.")
        if self.limit is not None:
            what = f"the limit is a number of seconds > 0, got {self.limit!r}"
            number(WHERE, "limit", self.limit, above=0, what=what, do="Pass limit=600.")
        integer(WHERE, "the seed", self.seed, least=0, do="Pass seed=0.")
        self.step_sizes = [self.step_size * 2**i for i in ((2, 1, 0) if self.exact else (0, -1, -2))]
        self.generator = torch.Generator().manual_seed(self.seed)
        self.started = perf_counter()

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

    def new_seed(self) -> int:
        """A new seed."""
        return int(torch.randint(2**31 - 1, (), generator=self.generator))

    def draw(self, law: KnownLaw, T: float) -> torch.Tensor:
        """Exact draws, (chains, dim)."""
        return law.draw(self.chains, T, self.generator)

    def run(
        self,
        law: KnownLaw,
        init: torch.Tensor,
        T: float,
        h: float,
        *,
        seed: int | None = None,
        time: float | None = None,
    ) -> torch.Tensor:
        """The last draws of chains from `init`, (chains, dim); by default with a new seed, for the time of a run.

        Raises OutOfTime after the first run that ends beyond the limit, and RecipeError where the function returns
        anything but theta, (chains, dim) or (chains, steps, dim).
        """
        seed = self.new_seed() if seed is None else seed
        steps = max(1, round((time or self.time) / h))
        self.bar.set_postfix_str(f"{law.name}, T = {T:g}, {steps} steps of {h:g}")
        with ended_by_interrupt():  # samplers.sample would return its draws so far
            theta = self.function(law.potential, init.clone(), steps=steps, step_size=h, temperature=T, seed=seed)
        self.runs += 1
        self.bar.total = max(self.bar.total, self.runs)
        self.bar.update()
        theta = _checked(theta, init, f"{self.name}, audit")
        passed = perf_counter() - self.started
        if self.limit is not None and passed > self.limit:
            raise OutOfTime(
                f"{self.runs} runs of {self.bar.total} or more took {passed:.0f} s, the limit is {self.limit:g} s; "
                f"the last was {steps} steps on the {law.name}: pass fewer chains, or a higher limit"
            )
        return theta

    # ---- comparisons

    @property
    def verdict(self) -> str:
        """The first of VERDICTS that applies."""
        return next((verdict for verdict in VERDICTS if verdict in self.verdicts), "unbiased")

    def conclude(self, verdict: str, text: str) -> None:
        """Adds a verdict, and a finding with its reason."""
        self.verdicts.add(verdict)
        self.findings.append(f"{verdict}: {text}")

    def record(
        self, verdict: str, statistic: str, value: float, bound: float, subject: str = "", least: bool = False
    ) -> bool:
        """Records the comparison of a statistic with its bound, of the check of a verdict; returns whether it keeps."""
        meaning = VERDICTS[verdict]
        result = Result(meaning.check, statistic, float(value), float(bound), meaning.equation, subject, least)
        self.results.append(result)
        return result.ok

    def keeps(self, verdict: str, statistic: str, value: float, bound: float, text: str, subject: str = "") -> bool:
        """Records whether a statistic keeps its bound, and returns that; if not, adds the verdict and the finding."""
        kept = self.record(verdict, statistic, value, bound, subject)
        if not kept:
            self.conclude(verdict, text)
        return kept

    def stays(self, law: KnownLaw, T: float, h: float, theta: torch.Tensor) -> bool:
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
        where = f"on the {law.name}, T = {T:g}, h = {h:g}"
        text = f"{where}, {share:.2%} of the chains leave the finite numbers; {advice}"
        return self.keeps("diverges", "chains that leave the finite numbers", share, 0.0, text)


def _checked(theta, init, where):
    """The last draws (chains, dim), on the CPU."""
    theta = torch.as_tensor(theta) if isinstance(theta, np.ndarray) else theta
    if not torch.is_tensor(theta):
        what = f"it returned {type(theta).__name__}, not a tensor"
        raise RecipeError(where, what, do="Return theta, (chains, dim).")
    theta = theta[:, -1] if theta.dim() == 3 and theta.shape[1] else theta
    if theta.shape != init.shape:
        what = f"it returned the shape {tuple(theta.shape)} for init {tuple(init.shape)}"
        raise RecipeError(where, what, do="Return theta, (chains, dim), or all draws, (chains, steps, dim).")
    if not theta.is_floating_point():
        raise RecipeError(where, f"it returned {theta.dtype}", do="Return real numbers.")
    with torch.inference_mode(False):
        return theta.detach().cpu().clone()  # of draws in inference mode no gradient could be taken


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
