"""An audit from its settings to its verdict, and its result."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch

from recipe.results import Findings, Row

from ...results.bar import Bar
from ..check_results import Report
from .experiment import VERDICTS, Cell, Experiment, OutOfTime
from .judgement import judge, judge_as_exact, of_responses
from .known_laws import LAWS
from .measurements import RUNS, first_look, measured, measured_as_exact
from .response import Unseen, responses

HEADER = f"  {'target':12}{'dim':>4}{'T':>6}{'h':>9}{'time':>8}{'E theta^2':>11}{'exact':>9}{'z':>8}{'worst z':>9}  of"
ROW = (
    "  {target:12}{dim:4}{temperature:6g}{step_size:9.4g}{time:8g}{E theta^2:11.4f}{exact:9.4f}{z:8.1f}"
    "{worst z:9.1f}  {worst}"
)


@dataclass(frozen=True, repr=False)
class Audit(Findings):
    """The result of an audit: the verdict, one of VERDICTS, and findings with figures.

    `report` has the comparisons that decide `ok`; `cells` the runs; `threshold` the standard errors beyond which a
    comparison counts, so that a right sampler fails with probability `alpha` at most.
    """

    name: str
    verdict: str
    findings: tuple[str, ...]
    report: Report
    cells: tuple[Cell, ...]
    threshold: float
    alpha: float
    seconds: float

    @property
    def title(self) -> str:
        """The name of the sampler with the verdict."""
        return f"audit of {self.name}: {self.verdict}"

    @property
    def rows(self) -> tuple[Row, ...]:
        """The comparisons in words."""
        return self.report.rows

    @property
    def notes(self) -> tuple[str, ...]:
        """The findings with figures."""
        return self.findings

    @property
    def ok(self) -> bool | None:
        """Whether the law is right, or its bias vanishes with the step size; None where that is not resolved."""
        return VERDICTS[self.verdict].ok

    def __str__(self) -> str:
        lines = [self.title, *(f"  {text}" for text in self.findings)]
        if self.cells:
            lines += ["", HEADER, *(ROW.format(**c.to_dict()) for c in self.cells)]
        rate = f"{1 / self.alpha:,.0f}. {self.seconds:.0f} s."
        return "\n".join(
            [*lines, "", f"  |z| > {self.threshold:.2f} counts: a right sampler fails one audit in {rate}"]
        )


def audit(
    run: Callable[..., Any],
    *,
    step_size: float = 0.1,
    time: float = 10.0,
    chains: int = 32768,
    temperatures: tuple[float, float] = (0.5, 1.5),
    alpha: float = 1e-4,
    seed: int = 0,
    limit: float | None = 900.0,
    exact: bool = False,
    progress: bool = True,
) -> Audit:
    """Compares the draws of a black box with exp(-U/T), at the step sizes h, h/2 and h/4, and extrapolates to h = 0.

    `run(potential, init, *, steps, step_size, temperature, seed)` returns theta (chains, dim) after the steps, or all
    draws (chains, steps, dim), of torch or numpy; `potential(theta)` is U by chain, (chains, dim) -> (chains,), in
    torch; `init` (chains, dim). Three quarters of the chains start from exact draws and are compared; the others
    start at half the width, and the time of a run is doubled until both groups agree. Where torch or numpy draws the
    noise, the law on the normal target is also had from the response of theta to each number, without errors of
    sampling. `exact`: the claim of a Metropolis sampler, that theta keeps the law from exact draws on, at every step
    size; it is judged at h, 2h and 4h. `alpha`: the rate of false alarms. Torch's and numpy's global generators are
    seeded for the run, and restored. `progress` on stderr. After `limit` seconds the audit ends unfinished. Raises
    RecipeError for a function of another form.

    >>> def langevin(potential, init, *, steps, step_size, temperature, seed):
    ...     generator, theta = torch.Generator().manual_seed(seed), init
    ...     for _ in range(steps):
    ...         theta = theta.detach().requires_grad_()
    ...         (force,) = torch.autograd.grad(potential(theta).sum(), theta)
    ...         noise = torch.randn(theta.shape, generator=generator)
    ...         theta = theta - step_size*force + (2*step_size*temperature)**0.5*noise
    ...     return theta
    >>> audit(langevin, time=4, chains=2000, alpha=1e-9, progress=False).verdict
    'vanishing bias'
    """
    name = getattr(run, "__name__", type(run).__name__)
    experiment = Experiment(run, name, step_size, time, chains, temperatures, alpha, seed, limit, exact)
    cells = len(LAWS) * 2 * 3
    runs = 4 + (cells * RUNS if exact else cells + 2)  # at least
    numpy_state = np.random.get_state()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # chains by dim is small: threads cost more than they give
    try:
        with torch.random.fork_rng(devices=[]), Bar(name, runs, shown=progress, unit="run") as experiment.bar:
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)
            _perform(experiment)
    finally:
        torch.set_num_threads(threads)
        np.random.set_state(numpy_state)
    return Audit(
        name,
        experiment.verdict,
        tuple(experiment.findings),
        Report(name, tuple(experiment.results)),
        tuple(experiment.cells),
        experiment.threshold,
        alpha,
        round(perf_counter() - experiment.started, 1),
    )


def _perform(experiment):
    """Runs the audit to its verdict, or until time runs out."""
    try:
        halves = first_look(experiment)
        if halves is None or experiment.verdicts:
            return
        if experiment.exact:
            biases = measured_as_exact(experiment)
            if biases is not None:
                judge_as_exact(experiment, biases)
            return
        of_noise = []
        try:
            of_noise = of_responses(experiment, responses(experiment))
        except Unseen as reason:
            experiment.unseen = str(reason)
        biases = measured(experiment)
        if biases is not None:
            judge(experiment, biases, of_noise, halves)
    except OutOfTime as ended:
        experiment.verdicts.clear()
        experiment.conclude("not finished", str(ended))
