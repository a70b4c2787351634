"""The report of a run: questions to its draws, in the order in which faults are to be mended.

Bands are those of chance, at a rate of false alarms `alpha` shared by all questions, widened by what is small:
`tolerance` standard deviations.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from .averages import Agreement, Average, agreements_of, average_of
from .findings import LATER, Finding, Report, banded, r_hat_finding
from .functional import Functional
from .geometry import (
    LEAST_FRACTION,
    advice_of,
    divergences_of,
    is_cut_off,
    last_stay,
    least_fraction,
    longest_stay,
    past_edge_of,
    place_of,
)
from .statistics import LEAST, flattened, labels, moments, sample_size_of_ranks, tail_of_weights
from .temperatures import on_sphere

RARE = 1e-3  # share of proposals up to which divergent ones leave the verdict open: steps from far tails overshoot
ALPHA = 0.01  # the rate at which a right run has a finding out of its band, about
TOLERANCE = 0.05  # standard deviations
AT_GLANCE = 2**14, 16  # numbers and coordinates whose mixing is looked at where nobody asked
AT_LENGTH = 2**20, 2**12  # and where somebody did
EVALUATIONS = 100  # draws of each chain at which the gradient is taken, at least
SPENT = 0.05  # of the run's evaluations of the gradient
FOLDED = 16  # draws of each chain at which it is taken at once
ROWS = (
    "A minibatch with each row twice has another U: it is right only as a sum times num_data/batch_size. Write "
    "num_data/len(batch) times the sum over the batch, which tells, or take samplers.posterior."
)
CUT_OFF = (
    "it is not T, as the density does not vanish at its edge; a samplers.model with constraints has no edge to meet"
)
HEAVY = 0.7  # Pareto index of weights from which on means by them are not relied on: Vehtari et al. 2024
FASTEST = 0.99  # acceptance above which a larger step moves further for the same work
OWN_MODES, MOVING = 1.2, 10.0  # R-hat of chains in modes of their own, and effective draws of half a chain there
SLOWEST = 0.2  # acceptance at which HMC of the best acceptance, 0.65, is about twice as fast: Beskos et al. 2013

Answer = list[Finding] | str  # findings, or the reason why there are none


@dataclass(frozen=True)
class TargetDraws:
    """The draws of the target of the chains that are not lost, `info` of the run, and the number of lost chains.

    `rerun`: the run, a `samplers.running.repeated.PairedRun`, or None. `evaluations`: draws of each chain at which the
    gradient may be taken, None for a share of the run; `alpha`: the rate of false alarms of all questions together.
    `of`: the function whose mixing is asked, None for that of the coordinates; `numbers`: those of the chains.
    """

    values: Mapping[str, torch.Tensor]
    info: Mapping[str, Any]
    lost: int
    rerun: Any
    alpha: float
    tolerance: float
    evaluations: int | None
    of: Functional | None = None
    numbers: Sequence[int] = ()
    weights: torch.Tensor | None = None  # of mean 1, `(chains, draws)`; None where all are equal
    notes: list[str] = field(default_factory=list)

    @property
    def alpha_of_one(self) -> float:
        """The rate of false alarms of one question."""
        return self.alpha / len(QUESTIONS)

    @property
    def size(self) -> tuple[int, int]:
        """The number of chains that are not lost, and of their draws."""
        chains, draws = next(iter(self.values.values())).shape[:2]
        return chains, draws

    @cached_property
    def thinned(self) -> dict[str, tuple[torch.Tensor, list[str], torch.Tensor | None]]:
        """Draws `(chains, draws, coordinates)` all over the run, names of the coordinates, and weights, by block.

        Those of the function `of`, where there is one.
        """
        numbers, coordinates = AT_GLANCE if self.evaluations == 0 else AT_LENGTH
        thinned = {}
        for name, x in (self.values if self.of is None else self.of.along(self.values)).items():
            sites = flattened(x)
            if not sites.shape[2]:
                continue
            every = max(1, -(-sites.shape[2] // coordinates))
            chosen = labels(name, x.shape[2:], range(0, sites.shape[2], every))
            if every > 1:
                later = f": {LATER}" if coordinates < min(sites.shape[2], AT_LENGTH[1]) else ""
                unseen = sites.shape[2] - len(chosen)
                self.notes.append(f"mixing of {unseen} of {sites.shape[2]} coordinates of {name}{later}")
            room = max(numbers, 4 * len(chosen) / self.tolerance**2)
            thin = max(1, min(math.ceil(x.shape[0] * x.shape[1] * len(chosen) / room), x.shape[1] // 32))
            thinned[name] = sites[:, ::thin, ::every], chosen, self.weighing(range(0, x.shape[1], thin))
        return thinned

    def weighing(self, draws: Any) -> torch.Tensor | None:
        """The weights of some draws, of mean 1 among them; None where all are equal."""
        if self.weights is None:
            return None
        w = self.weights[:, draws]
        return w / w.mean()

    @cached_property
    def slopes(self) -> Any:
        """Draws of the target, grad U there and weights, as by `PairedRun.slopes`; as text, the reason for none."""
        if self.rerun is None:
            return "the run is not at hand, these draws were loaded, copied or put together"
        chains, draws = self.size
        if self.evaluations == 0 and draws >= LEAST:
            return f"it takes gradients: {LATER}"
        number = min(self.affordable if self.evaluations is None else self.evaluations, draws)
        if number < LEAST:
            return f"of {draws} draws"
        fold = max(k for k in range(1, FOLDED + 1) if number // k >= LEAST)
        number -= number % fold
        spread = torch.arange(number, device="cpu") * draws // number
        subset = {name: x[:, spread.to(x.device)] for name, x in self.values.items()}
        folded = self.rerun.slopes({name: x.unflatten(1, (fold, -1)).flatten(0, 1) for name, x in subset.items()})
        if isinstance(folded, str):
            return folded
        parts = [
            (name, [x.reshape(chains, number, *x.shape[2:]) for x in (at, *of)]) for name, (at, of) in folded.items()
        ]
        return {name: (at, of, self.weighing(spread)) for name, (at, *of) in parts if at.numel()}

    @property
    def rewriting(self) -> str:
        """Advice on the coordinates of a model."""
        return advice_of(self.info.get("centred", {}))

    @property
    def affordable(self) -> int:
        """The draws of each chain whose gradients are a share of the run's, of no more numbers than mixing takes."""
        numbers = sum(x[:, 0].numel() for x in self.values.values())
        share = SPENT * self.info.get("steps", 0) / (2 if self.rerun.has_batches else 1)
        return max(EVALUATIONS, int(min(share, AT_LENGTH[0] / numbers)))


def report_of(run: TargetDraws) -> Report:
    """The findings of all questions, and the reasons why some were not asked. `Draws.report` says more."""
    if not (run.size[1] or run.lost):
        return Report((), ("there are no draws",))
    findings: list[Finding] = []
    unasked: list[str] = []
    for title, question in QUESTIONS.items():
        answer = question(run) if run.size[0] or question is _lost else "every chain is lost"
        if isinstance(answer, str):
            unasked.append(f"{title}: {answer}")
        else:
            findings += answer
    return Report(tuple(findings), tuple(unasked + run.notes))


# ---- the questions


def _lost(run: TargetDraws) -> Answer:
    """Lost chains, and chains with two draws of another one bit for bit, unless all are whole numbers."""
    cure = "Take a smaller step size: they left the finite numbers, or a domain."
    findings = [Finding("lost chains", "", run.lost, None, 0, 0, cure)]
    chains, draws = run.size
    if chains > 1 and draws > 1:
        at = [[x[:, k].reshape(chains, -1).cpu() for x in run.values.values()] for k in (draws // 2, -1)]
        middle, last = (torch.cat(tensors, 1) for tensors in at)
        states = torch.cat([middle, last], 1)[(middle != last).any(1)]  # of chains that move
        are_categories = not (states % 1).any()
        copies = 0 if are_categories else len(states) - len(states.unique(dim=0))
        cure = "Give each run a seed, or a range of chains, of its own: copies tell nothing new."
        findings += [Finding("chains that copy another", "", copies, None, 0, 0, cure)] if copies else []
    return findings


def _acceptance(run: TargetDraws) -> Answer:
    shares = run.info.get("acceptance")
    if shares is None:
        return "steps are not accepted or rejected"
    findings = [Finding("acceptance", "", sum(shares) / len(shares), None, SLOWEST, 1.0, "Take a smaller step size.")]
    if "rounding" in run.info:
        cure = "Take a constant from the energy, sum it in float64, or start in float64: U is rounded."
        findings.append(
            Finding("rounding error of U at the start, of T", "", run.info["rounding"], None, 0, run.tolerance, cure)
        )
    return findings + _geometry(run)


def _geometry(run: TargetDraws) -> list[Finding]:
    """Proposals whose work is beyond a bound, and where they begin; the least E-BFMI of the chains, if U is known."""
    findings = []
    if "divergences" in run.info:
        number, at = divergences_of(run.info, run.numbers)
        where = f"Half of them begin {place_of(run.values, at)}. " if at else ""
        cure = f"{where}Take a smaller step size. {run.rewriting}"
        past = past_edge_of(run.info, run.numbers)
        if past:
            run.notes.append(f"divergence of {past} proposals: they went past an edge, where U is infinite")
        rare = RARE * run.info["divergences"]["proposals"] if number else 0.0
        findings.append(Finding("divergent proposals", "", number, None, 0, rare, cure, known=not number))
    if "e_bfmi" in run.info:
        fraction, chain = least_fraction(run.info, run.numbers)
        cure = f"Momenta cover little of the spread of U in chain {chain}. {run.rewriting}"
        findings.append(Finding("E-BFMI", "", fraction, None, LEAST_FRACTION, math.inf, cure))
    return findings


def _standing(run: TargetDraws) -> Answer:
    """The longest time that a chain has stood still, as a share of its draws; at the end, without acceptance."""
    n = run.size[1] - 1
    if n < 1:
        return "there is one draw"
    question = "share of the run that a chain stood still"
    if "acceptance" not in run.info:
        share = last_stay(run.values) / n
        cure = "The step is lost in rounding, or nothing moves the chain: look at its start, take float64."
        return [Finding(question, "", share, None, 0, min(run.tolerance, 1 - 1 / n), cure)]
    stay, chain, last = longest_stay(run.values)
    bound = min(max(run.tolerance, _longest_stay(run, n) / n), 1 - 1 / n)
    where = f"Chain {run.numbers[chain]} did until draw {last}, {place_of(run.values, [(chain, last)])}. "
    cure = f"{where}Take a smaller step size, or start elsewhere. {run.rewriting}"
    return [Finding(question, "", stay / n, None, 0, bound, cure)]


def _longest_stay(run: TargetDraws, n: int) -> float:
    """The most draws that a chain stands still by chance, where each is accepted with the mean acceptance."""
    accepted = sum(run.info["acceptance"]) / len(run.info["acceptance"])
    probability = 1 - (1 - accepted) ** run.info.get("thin", 1)
    if not 0 < probability < 1:
        return 0.0
    return math.log(max(n * probability * run.size[0] / run.alpha_of_one, 1.0)) / -math.log1p(-probability)


def _heat(run: TargetDraws) -> Answer:
    """The temperature that the noise of minibatches adds, less what the recipe takes as supplied."""
    if run.rerun is None:
        return str(run.slopes)
    of_all_data = "steps are accepted by U of all data" if run.info.get("batch_size") else "gradients are of all data"
    if not (run.rerun.has_batches or any(run.rerun.recipe.supplied.values())):
        return of_all_data
    heat = run.rerun.heat(Average(0.0, 0.0, 1.0))  # what is supplied, below 0
    if isinstance(heat, str):
        return heat
    if not heat.value and not run.rerun.has_batches:
        return of_all_data
    if run.weights is not None and run.rerun.has_batches:
        return "it is measured without the weights of draws"
    if isinstance(run.slopes, str):
        return run.slopes
    if run.rerun.has_batches:
        parts = [flattened((one - other).square() / 2) for _, (one, other), _ in run.slopes.values()]
        heat = run.rerun.heat(average_of(torch.cat(parts, 2).mean(2)))
    cure = (
        "Take larger batches, a smaller step size, control_variate, or a recipe with a thermostat; or supply the noise."
    )
    if heat.value < 0:
        cure = "Give less noise as supplied: minibatches bring less."
    T = run.rerun.plan.kept_temperature
    findings = [banded("heat of the minibatches", "", heat, 0.0, 2 * run.tolerance * T, run.alpha_of_one, cure, T)]
    if run.rerun.has_batches and run.rerun.counts_rows():
        findings.append(Finding("U that counts the rows of a minibatch", "", 1, None, 0, 1, ROWS, known=False))
    return findings


def _thermostats(run: TargetDraws) -> Answer:
    thermostats = _averages(run, "thermostats")
    if not thermostats:
        return "none was watched"
    cure = "It is still relaxing, and all else with it: take a longer warmup, or a smaller thermostat mass."
    alpha = run.alpha_of_one / len(thermostats)
    return [r_hat_finding(name, Agreement(**numbers), alpha, cure) for name, numbers in thermostats.items()]


def _r_hats(run: TargetDraws) -> Answer:
    chains, draws = run.size
    if chains < 2 or draws < LEAST:
        return f"of {chains} chain(s) of {draws} draws"
    cure = "Take a longer warmup and more steps: chains, or halves of them, are not of one law."
    accepted = run.info.get("acceptance") or [0.0]
    if sum(accepted) / len(accepted) > FASTEST:
        cure = 'Take a larger step size, or step_size="auto": nearly all steps are accepted, and chains do not meet.'
    modes = (
        "Take a Ladder of temperatures, or put components that may change places in order: each chain moves well, but "
        "in a mode of its own."
    )
    findings = []
    for x, names, _ in run.thinned.values():  # of the law that the chains have, without weights
        alpha = run.alpha_of_one / (2 * len(names) * len(run.thinned))
        of_block = [
            r_hat_finding(name, agreement, alpha, modes if is_in_modes(agreement) else cure)
            for name, agreement in zip(names, agreements_of(x))
            if not math.isnan(agreement.within)
        ]
        if of_block:
            findings.append(max(of_block, key=lambda f: (f.ok is False, f.value)))
    return findings or "no coordinate varies"


def is_in_modes(agreement: Agreement) -> bool:
    """Whether chains are apart, and each of them moves well where it is: a longer run does not bring them together."""
    return agreement.r_hat > OWN_MODES and agreement.within > MOVING * agreement.halves


def _configurational(run: TargetDraws) -> Answer:
    """The mean of (theta - E theta) grad U over sites, at some draws: T, by the virial theorem, or of its like."""
    if run.rerun is not None and run.rerun.recipe.has_other_energy:
        return "the recipe's H holds more of the target's energy than U"
    if is_cut_off(run.info):
        return CUT_OFF
    if isinstance(run.slopes, str):
        return run.slopes
    T = run.rerun.plan.kept_temperature
    findings = []
    for name, (theta, slopes, weights) in run.slopes.items():
        if any(b.name == name for b in run.rerun.recipe.spheres):
            average = average_of(on_sphere(theta, slopes[0], T, weights), weights)
        else:
            mean = theta.mean((0, 1)) if weights is None else moments(theta, weights)[0].to(theta)
            average = average_of(flattened((theta - mean) * slopes[0]).mean(2), weights)
        cure = f"Take a smaller step size, {'larger batches, ' if len(slopes) > 1 else ''}or a longer warmup."
        alpha = run.alpha_of_one / len(run.slopes)
        slack = 2 * run.tolerance * T
        findings.append(banded("configurational temperature", name, average, T, slack, alpha, cure, T))
    return findings


def _kinetic(run: TargetDraws) -> Answer:
    momenta = _averages(run, "kinetic_temperature")
    if momenta and run.weights is not None:
        return "it was recorded without the weights of draws"
    if not momenta:
        return "no momenta of a Gaussian law were watched"
    findings = []
    for name, numbers in momenta.items():
        average = Average(numbers["value"], numbers["error"], numbers["freedom"])
        T = numbers["expected"]
        cure = "Momenta are too hot: take a smaller step size, larger batches, or a longer warmup."
        if average.value < T:
            cure = "Momenta are too cold: take a smaller step size, and look for what takes their noise."
        slack = 2 * run.tolerance * T + numbers["kick"]
        alpha = run.alpha_of_one / len(momenta)
        findings.append(banded("kinetic temperature", name, average, T, slack, alpha, cure, T))
    return findings


def _averages(run: TargetDraws, kind: str) -> Mapping[str, Any]:
    """The averages of momenta or thermostats that the run has recorded, by block."""
    return (run.info.get("averages") or {}).get(kind) or {}


def _sample_size(run: TargetDraws) -> Answer:
    """The least effective sample size; 1/tolerance^2 make the error of a mean so many standard deviations."""
    least = 1 / run.tolerance**2
    chains, draws = run.size
    if draws < LEAST:
        cure = f"Take more steps: {draws} draws of a chain do not tell how it mixes."
        return [Finding("sample size", "", chains * draws, None, least, math.inf, cure, known=False)]
    findings = []
    if run.weights is not None:
        tail = tail_of_weights(run.weights.log().flatten().numpy())
        cure = "Few draws have most of the weight: take weights that vary less, of a law nearer to that of the target."
        findings.append(Finding("Pareto index of the weights", "", tail, None, -math.inf, HEAVY, cure))
    for x, names, weights in run.thinned.values():
        sizes = sample_size_of_ranks(x, weights).nan_to_num(math.inf).tolist()
        size, name = min(zip(sizes, names), key=lambda pair: pair[0], default=(math.inf, ""))
        if size < math.inf:
            cure = f"Take {math.ceil(least / max(size, 1))} times as many steps, or chains."
            findings.append(Finding("sample size", name, size, None, least, math.inf, cure))
    return findings or "no coordinate varies"


QUESTIONS: dict[str, Callable[[TargetDraws], Answer]] = {
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
