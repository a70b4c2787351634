"""What speaks against the draws of a run: questions in the order in which what they find is to be changed.

Bands are those of chance, at a rate of false alarms `alpha` that all questions of a report share, beside what is small:
`tolerance` standard deviations.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch

from .averages import Agreement, Average, agreements_of, average_of
from .findings import Finding, Report
from .pairs import Again, Slopes
from .statistics import LEAST, sample_size_of_ranks

ALPHA = 0.01  # the rate at which a right run has a finding out of its band, about
TOLERANCE = 0.05  # standard deviations
R_HAT = 1.01  # up to which chains agree, of Vehtari et al. 2021
AT_GLANCE = 2**14, 16  # numbers and coordinates whose mixing is looked at where nobody asked
AT_LENGTH = 2**20, 2**12  # and where somebody did
EVALUATIONS = 100  # draws of each chain at which the gradient is taken
SLOWEST = 0.2  # acceptance at which HMC of the best acceptance, 0.65, is about twice as fast: Beskos et al. 2013

OTHER_ENERGY = "the recipe's H holds more of the target's energy than U"

Answer = list[Finding] | str  # findings, or why it was not asked


@dataclass(frozen=True)
class Subject:
    """A run to be asked: the draws of its chains that are not lost, its account, and the run where it is at hand.

    `evaluations`: draws of each chain at which the gradient may be taken; `numbers`, `coordinates`: of the draws, at
    most, whose mixing is looked at; `alpha`: the share of each question.
    """

    values: Mapping[str, torch.Tensor]
    info: Mapping[str, Any]
    lost: int
    again: Again | None
    evaluations: int
    numbers: int
    coordinates: int
    alpha: float
    tolerance: float
    notes: list[str] = field(default_factory=list)

    @property
    def chains(self) -> int:
        """The number of chains that are not lost."""
        return len(next(iter(self.values.values())))

    @property
    def draws(self) -> int:
        """The draws of each chain."""
        return next(iter(self.values.values())).shape[1]

    @property
    def averages(self) -> Mapping[str, Any]:
        """What the run has left of its momenta and thermostats."""
        return self.info.get("averages") or {}

    @cached_property
    def thinned(self) -> dict[str, tuple[torch.Tensor, list[int]]]:
        """Draws `(chains, draws, coordinates)` spread over the run, and the numbers of the coordinates, by block."""
        thinned = {}
        for name, x in self.values.items():
            x = x.flatten(2) if x.dim() > 2 else x[:, :, None]
            every = -(-x.shape[2] // self.coordinates)
            chosen = list(range(0, x.shape[2], every))
            if every > 1:
                self.notes.append(f"mixing of {x.shape[2] - len(chosen)} of {x.shape[2]} coordinates of {name}")
            room = max(self.numbers, 4 * len(chosen) / self.tolerance**2)
            thin = max(1, min(math.ceil(x.shape[0] * x.shape[1] * len(chosen) / room), x.shape[1] // 32))
            thinned[name] = x[:, ::thin, ::every], chosen
        return thinned

    @cached_property
    def slopes(self) -> Slopes | str:
        """Draws of the target and grad U there, from all over the run; or why there are none."""
        if self.again is None:
            return "the run is not at hand, these draws were loaded, copied or put together"
        if not self.evaluations:
            return "it takes gradients: call report()"
        number = min(self.evaluations, self.draws)
        if number < LEAST:
            return f"of {self.draws} draws"
        spread = torch.arange(number, device="cpu") * self.draws // number
        return self.again.slopes({name: x[:, spread.to(x.device)] for name, x in self.values.items()})

    def coordinate(self, name: str, number: int) -> str:
        """The name of a coordinate of a block."""
        shape = self.values[name].shape[2:]
        index = ", ".join(str(int(i)) for i in np.unravel_index(number, shape)) if shape else ""
        return f"{name}[{index}]" if index else name


def report_of(
    values: Mapping[str, torch.Tensor],
    info: Mapping[str, Any],
    lost: int,
    again: Again | None,
    *,
    alpha: float = ALPHA,
    tolerance: float = TOLERANCE,
    evaluations: int = EVALUATIONS,
) -> Report:
    """What is found in the draws of chains that are not lost, beside so many that are. `Draws.report` says more."""
    names = [name for name in (values if again is None else again.targets) if name in values]
    numbers, coordinates = AT_LENGTH if evaluations else AT_GLANCE
    own = {name: values[name].detach() for name in names}
    share = alpha / len(QUESTIONS)
    subject = Subject(own, info, lost, again, evaluations, numbers, coordinates, share, tolerance)
    findings: list[Finding] = []
    unasked: list[str] = []
    for title, question in QUESTIONS.items():
        answer = question(subject) if subject.chains or question is _lost else "every chain is lost"
        if isinstance(answer, str):
            unasked.append(f"{title}: {answer}")
        else:
            findings += answer
    return Report(tuple(findings), tuple(unasked + subject.notes))


# ---- the questions


def _lost(run: Subject) -> Answer:
    cure = "Take a smaller step size: they left the finite numbers, or a domain."
    return [Finding("lost chains", "", run.lost, None, 0, 0, cure)]


def _standing(run: Subject) -> Answer:
    """The longest time that a chain has stood still at the end, as a share of its draws."""
    n = run.draws - 1
    if n < 1:
        return "there is one draw"
    share = (n - _since(run)) / n
    cure = "The step is lost in rounding, or nothing moves the chain: look at its start, take float64."
    most = run.tolerance
    if "acceptance" in run.info:
        cure = "Take a smaller step size, or start elsewhere."
        most = max(most, _longest_stay(run, n) / n)
    return [Finding("share of the run that a chain stood still", "", share, None, 0, min(most, 1 - 1 / n), cure)]


def _since(run: Subject) -> int:
    """The first draw from which on some chain is where it ends: by bisection, as it is there ever after."""
    low, high = 0, run.draws - 1
    while low < high:
        middle = (low + high) // 2
        same = [(x[:, middle] == x[:, -1]).reshape(run.chains, -1).all(1).cpu() for x in run.values.values()]
        stands = torch.stack(same).all(0)
        low, high = (low, middle) if stands.any() else (middle + 1, high)
    return low


def _longest_stay(run: Subject, n: int) -> float:
    """The most draws that a chain stands still by chance, if each is accepted with the mean acceptance."""
    accepted = sum(run.info["acceptance"]) / len(run.info["acceptance"])
    moved = 1 - (1 - accepted) ** run.info.get("thin", 1)
    if not 0 < moved < 1:
        return 0.0
    return math.log(max(n * moved * run.chains / run.alpha, 1.0)) / -math.log1p(-moved)


def _acceptance(run: Subject) -> Answer:
    shares = run.info.get("acceptance")
    if shares is None:
        return "steps are not accepted or rejected"
    value = sum(shares) / len(shares)
    return [Finding("acceptance", "", value, None, SLOWEST, 1.0, "Take a smaller step size.")]


def _thermostats(run: Subject) -> Answer:
    thermostats = run.averages.get("thermostats") or {}
    cure = "It is still relaxing, and all else with it: take a longer warmup, or a smaller thermostat mass."
    if not thermostats:
        return "none was watched"
    share = run.alpha / len(thermostats)
    return [_agreement(name, Agreement(**numbers), share, cure) for name, numbers in thermostats.items()]


def _r_hats(run: Subject) -> Answer:
    cure = "Take a longer warmup and more steps: chains, or halves of them, are not of one law."
    if run.chains < 2 or run.draws < LEAST:
        return f"of {run.chains} chain(s) of {run.draws} draws"
    findings = []
    for name, (x, chosen) in run.thinned.items():
        share = run.alpha / (2 * len(chosen) * len(run.values))
        all_of_it = [
            _agreement(run.coordinate(name, number), agreement, share, cure)
            for number, agreement in zip(chosen, agreements_of(x))
            if not math.isnan(agreement.within)
        ]
        if all_of_it:
            findings.append(max(all_of_it, key=lambda f: (f.value - 1) / (f.high - 1)))
    return findings or "no coordinate varies"


def _agreement(of: str, agreement: Agreement, alpha: float, cure: str) -> Finding:
    return Finding("R-hat", of, agreement.r_hat, None, 0.0, max(R_HAT, agreement.most(alpha)), cure)


def _sample_size(run: Subject) -> Answer:
    """The least effective sample size; 1/tolerance^2 make the error of a mean so many standard deviations."""
    least = 1 / run.tolerance**2
    if run.draws < LEAST:
        return f"of {run.draws} draws"
    findings = []
    for name, (x, chosen) in run.thinned.items():
        sizes = sample_size_of_ranks(x).flatten()
        varying = (~sizes.isnan()).nonzero().flatten().tolist()
        if varying:
            worst = min(varying, key=lambda k: float(sizes[k]))
            size = float(sizes[worst])
            cure = f"Take {math.ceil(least / max(size, 1))} times as many steps, or chains."
            of = run.coordinate(name, chosen[worst])
            findings.append(Finding("sample size", of, size, None, least, math.inf, cure))
    return findings or "no coordinate varies"


def _kinetic(run: Subject) -> Answer:
    momenta = run.averages.get("kinetic_temperature") or {}
    if not momenta:
        return "no momenta of a Gaussian law were watched"
    findings = []
    for name, numbers in momenta.items():
        average = Average(*(numbers[key] for key in ("value", "error", "freedom")))
        expected = numbers["expected"]
        half = average.half_width(run.alpha / len(momenta)) + 2 * run.tolerance * expected + numbers["kick"]
        cure = "Momenta are too hot: take a smaller step size, or larger batches."
        if average.value < expected:
            cure = "Momenta are too cold: take a smaller step size, and look for what takes their noise."
        band = expected - half, expected + half
        findings.append(Finding("kinetic temperature", name, average.value, average.error, *band, cure))
    return findings


def _configurational(run: Subject) -> Answer:
    """The mean of (theta - E theta) grad U over sites, at some draws: T, by the virial theorem."""
    if isinstance(run.slopes, str):
        return run.slopes
    assert run.again is not None
    if run.again.has_other_energy:
        return OTHER_ENERGY
    expected = run.again.temperature
    findings = []
    for name, (theta, slopes) in run.slopes.items():
        products = (theta - theta.mean((0, 1))) * slopes[0]
        average = average_of(products.flatten(2).mean(2) if products.dim() > 2 else products)
        half = average.half_width(run.alpha / len(run.slopes)) + 2 * run.tolerance * expected
        cure = f"Take a smaller step size, or {'larger batches' if len(slopes) > 1 else 'a longer warmup'}."
        band = expected - half, expected + half
        findings.append(Finding("configurational temperature", name, average.value, average.error, *band, cure))
    return findings


def _heat(run: Subject) -> Answer:
    """By how much the noise of minibatches raises the temperature, less what the recipe takes as supplied."""
    if isinstance(run.slopes, str):
        return run.slopes
    assert run.again is not None
    variance = Average(0.0, 0.0, 1.0)
    if run.again.has_batches:
        parts = [((one - other).square() / 2).flatten(2) for _, (one, other) in run.slopes.values()]
        variance = average_of(torch.cat(parts, 2).mean(2))
    value, above = run.again.heat(variance.value), run.again.heat(variance.value + variance.error)
    if isinstance(value, str) or isinstance(above, str):
        return str(value)
    if not value and not run.again.has_batches:
        return "gradients are of all data"
    error = above - value
    half = 2 * run.tolerance * run.again.temperature + Average(value, error, variance.freedom).half_width(run.alpha)
    cure = (
        "Take larger batches, a smaller step size, control_variate, or a recipe with a thermostat; or supply the noise."
    )
    if value < 0:
        cure = "Give less noise as supplied: minibatches bring less."
    return [Finding("heat of the minibatches", "", value, error, -half, half, cure)]


QUESTIONS: dict[str, Callable[[Subject], Answer]] = {
    "lost chains": _lost,
    "acceptance": _acceptance,
    "chains that stand still": _standing,
    "heat of the minibatches": _heat,
    "thermostats": _thermostats,
    "R-hat": _r_hats,
    "configurational temperature": _configurational,
    "kinetic temperature": _kinetic,
    "sample size": _sample_size,
}
