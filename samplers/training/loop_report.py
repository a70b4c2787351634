"""The report of a training loop as a sampler: findings in the order in which faults are to be mended."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from recipe import Recipe

from ..results.averages import Agreement, Average, agreements_of, average_of
from ..results.findings import Finding, Report, banded, r_hat_finding
from ..results.statistics import LEAST
from .minibatches import BatchSource
from .monitors import EVERY, HEATING, NOISE, SQUARES, SUPPLIED

SEGMENTS = 2  # stretches of the later half of a loop, each cut in two for a thermostat's R-hat
FAR = 10.0  # over T: numbers beyond are seldom of noise
MEMORY = 0.25  # of the later half of a loop: the longest relaxation time of momenta that averages over it
STIFF = 1.2  # (h omega)^2/2 of the stiffest directions, or h k where there are no momenta; 2 is the limit of stability
HEAT = (
    "Is the loss a mean over the batch, without dropout? Take larger batches or a smaller lr, SVRG, or a recipe with a "
    "thermostat; or supply the noise. Batches without replacement heat what is slower than an epoch less than this."
)
RELAXING = "It is still relaxing: train on, or take a smaller thermostat mass."
FORGETTING = "Momenta forget in more steps than averages are over: train on, or take more friction, a smaller momentum."
TURNING = "Gradients turn round from step to step, as at the limit of stability: take a smaller lr."
STILL = "Weights have not moved as far as the law is wide, so that draws hardly differ: train on"
SPREAD = "Weights are not of the law yet, or the step is too large: train on, or take a smaller lr."
HOT = "Momenta are too hot: take a smaller lr or larger batches, or train on."
COLD = "Momenta are too cold: take a smaller lr, or look for what takes their noise, such as clipping."
DATA = (
    "Pass num_data=len(dataset): the minibatches of this loop are of so many data. Where a datum has several tokens, "
    "let the loss be their sum, averaged over the data; of a mean over tokens num_data is the number of tokens."
)
SCALE = (
    "Is the gradient that of the mean loss of num_data data? A forgotten zero_grad, a loss that is a sum, or a step at "
    "its limit of stability heats so. "
)
ADDED = "Gradients look added up from step to step: call optimizer.zero_grad() before loss.backward(). "
CLIPPED = "Do not clip gradients: clip the loss, or take a smaller lr."
BOUNDED = f"{CLIPPED} Where nothing is clipped, a loss of bounded slope, such as L1, has such gradients."
WEIGHTS = "R-hat and sample size of weights: compare the predictions of several chains, as of an Ensemble's members"


@dataclass(frozen=True)
class LoopChain:
    """A chain of a loop: series of numbers by name, over the later half of the steps of the loop.

    `no_heat`: why the heat of its minibatches is unknown; `relaxation`: times of blocks in steps; `minibatches`:
    those that are read beside the loop, if any; `added`: whether gradients were added up from step to step;
    `drawn`: whether torch's random numbers were, as by dropout.
    """

    of: str
    series: Mapping[str, torch.Tensor]
    no_heat: str
    relaxation: Mapping[str, float]
    num_data: int
    minibatches: BatchSource | None
    added: bool
    drawn: bool


def report_of_loop(recipe: Recipe, chains: list[LoopChain], *, constant: str, alpha: float, tolerance: float) -> Report:
    """The report of `Optimizer.report`; `constant`: the size that gradients keep, as clipped ones do, or ""."""
    short = [chain.of for chain in chains if len(next(iter(chain.series.values()), ())) < 2 * LEAST * SEGMENTS]
    unasked = [WEIGHTS]
    if short:
        rest = f", and {len(short) - 1} more" if len(short) > 1 else ""
        unasked.append(f"{short[0]}{rest}: it takes {4 * LEAST * SEGMENTS * EVERY} steps at a temperature > 0")
    share = alpha / max(1, 5 * len(chains))
    answers = [_answers(recipe, chain, share, tolerance) if chain.of not in short else _data(chain) for chain in chains]
    ranked = sorted((answer for of_chain in answers for answer in of_chain), key=lambda answer: answer[0])
    clipped = {
        "norm": Finding("clipped gradients", "", 1, None, 0, 0, CLIPPED),
        "largest entry": Finding("clipped gradients", "", 1, None, 0, 1, BOUNDED, known=False),
    }
    findings = [clipped[constant]] if constant else []
    findings += [answer for _, answer in ranked if isinstance(answer, Finding)]
    return Report(tuple(findings), (*unasked, *(answer for _, answer in ranked if isinstance(answer, str))))


Answers = Iterator[tuple[int, Finding | str]]  # in the order of repair


def _data(chain: LoopChain) -> Answers:
    if chain.minibatches is None:
        yield (
            0,
            f"num_data of {chain.of}: no samplers.Minibatches, which know the number of data, were read by the loop",
        )
    else:
        n = chain.minibatches.num_data
        yield 0, Finding("num_data", chain.of, chain.num_data, None, n, n, DATA)


def _answers(recipe: Recipe, chain: LoopChain, alpha: float, tolerance: float) -> Answers:
    """The findings on a chain with their ranks; as text, questions that were not asked."""
    yield from _data(chain)
    of, series = chain.of, chain.series
    smaller = False  # whether a finding asks for a smaller lr
    if NOISE in series and series[SQUARES].all():
        turn = average_of((series[NOISE] / series[SQUARES])[None])
        high = STIFF + turn.half_width(alpha)
        turning = Finding("turn of the gradient", of, turn.value, None, 0.0, high, TURNING, high <= 2)
        smaller = not turning.ok
        yield 1, turning
    heat = _heat(chain, alpha, tolerance)
    smaller |= isinstance(heat, Finding) and not heat.ok
    yield 2, heat
    for b in recipe.thermostats:
        yield 3, _relaxing(series[b.name], f"{b.name}, {of}", alpha)
    later = float(series["step"][-1] - series["step"][0]) + EVERY
    lasting = []  # momenta that an average over the later half is too short for
    for b in recipe.momenta:
        steps = chain.relaxation.get(b.name, math.inf)
        if steps < math.inf:
            memory = "relaxation time over steps averaged"
            forgetting = Finding(memory, f"{b.name}, {of}", steps / later, None, 0.0, MEMORY, FORGETTING)
            lasting += [] if forgetting.ok else [b.name]
            yield 4, forgetting
    slack = 2 * tolerance
    for name in series:
        kind, _, block = name.partition(".")
        if kind == "kinetic" and block in lasting and float(series[name].median()) <= FAR:
            yield 6, f"kinetic temperature of {block}, {of}: momenta may have not forgotten that of the start"
        elif kind == "kinetic":
            kick = float(series[f"kick.{block}"].mean())
            cure = HOT if float(series[name].mean()) > 1 else COLD
            momenta = _temperature("kinetic", chain, block, slack + kick, alpha, cure)
            smaller |= not momenta.ok
            yield 6, momenta
    if "configurational" in series:
        still = f"{STILL}." if smaller else f"{STILL}, or take a larger lr."
        cure = still if float(series["configurational"].mean()) < 1 else SPREAD
        yield 5, _temperature("configurational", chain, "", slack, alpha, cure)


def _temperature(kind: str, chain: LoopChain, block: str, slack: float, alpha: float, cure: str) -> Finding:
    """The finding on a temperature; one that is mostly far beyond T is too hot, however wide its band."""
    series = chain.series[f"{kind}.{block}" if block else kind]
    over_T = average_of(series[None])
    if not block:  # weights are taken from their own mean, and forget half as fast as their squares
        slack += 2 / (over_T.freedom + 1)
    question, of = f"{kind} temperature over T", f"{block}, {chain.of}" if block else chain.of
    cure = _cure(chain, over_T, cure)
    if float(series.median()) > FAR:
        return Finding(question, of, over_T.value, over_T.error, 0.0, FAR, cure)
    return banded(question, of, over_T, 1.0, slack, alpha, cure)


def _heat(chain: LoopChain, alpha: float, tolerance: float) -> Finding | str:
    """The finding on the temperature that the noise of minibatches adds, over T; as text, why it is unknown."""
    if HEATING not in chain.series:
        reason = chain.no_heat if NOISE in chain.series else "no two steps followed each other"
        return f"heat of the minibatches of {chain.of}: {reason}"
    over_T = average_of(chain.series[HEATING][None])
    if chain.minibatches is not None and chain.minibatches.whole and not chain.drawn:
        over_T = Average(-float(chain.series[SUPPLIED].mean()), 0.0, 1.0)
        if not over_T.value:
            return f"heat of the minibatches of {chain.of}: each batch is all of the data"
    cure = _cure(chain, over_T, HEAT if over_T.value > 0 else "Give less noise as supplied: minibatches bring less.")
    return banded("heat of the minibatches over T", chain.of, over_T, 0.0, 2 * tolerance, alpha, cure)


def _cure(chain: LoopChain, over_T: Average, cure: str) -> str:
    """The cure of a temperature, after the mistakes that are seen, or that make a number far beyond T."""
    return ADDED + cure if chain.added else SCALE + cure if abs(over_T.value) > FAR else cure


def _relaxing(series: torch.Tensor, of: str, alpha: float) -> Finding:
    length = len(series) // SEGMENTS
    (agreement,) = agreements_of(series[-SEGMENTS * length :].reshape(SEGMENTS, length)[:, :, None])
    if math.isnan(agreement.r_hat):
        agreement = Agreement(math.inf, 1.0, 2 * SEGMENTS)
    return r_hat_finding(of, agreement, alpha, RELAXING)
