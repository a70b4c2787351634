"""The audit of a sampler that others wrote: a black box, run on targets whose law is known."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import hypot, log2
from statistics import NormalDist
from time import perf_counter

import numpy as np
import torch
from tqdm import tqdm

from .biases import correlation, likeness, limits, order
from .black_box import BlackBox, OutOfTime, check_settings
from .laws import LAWS, Law
from .results import Report, Result

VERDICTS = {  # in this order: the first that applies is the verdict
    "not finished": False,
    "diverges": False,
    "does not move": False,
    "seed ignored": False,
    "noise shared across chains": False,
    "noise reused": False,
    "start not forgotten": False,
    "noise shared across coordinates": False,
    "temperature used wrongly": False,
    "bias does not vanish": False,
    "bias, limit unresolved": False,
    "vanishing bias": True,
    "unbiased": True,
}
FORGOTTEN = 4.0  # standard errors between the chains from two starts
DOUBLINGS = 5  # of the time, until the start is forgotten
RESOLVED = 0.6  # an order that may be higher: the bias may vanish
SEEN = 1.28  # standard errors above the threshold: seen nine times in ten
RUNS = 4 + len(LAWS) * 2 * 3  # the first look, and the sweep; more where the start is not forgotten
FAR = 1e4  # standard deviations: a chain out there has diverged, though its numbers are finite yet


@dataclass(frozen=True)
class Cell:
    """One run: a target, a temperature, a step size; bias and standard error of each statistic, relative to its exact value.

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
        return self.exact * (1 + self.bias[-2])

    @property
    def exact(self) -> float:
        return self.law.square(self.temperature)

    def to_dict(self) -> dict:
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


@dataclass(frozen=True)
class Audit:
    """What an audit found: the verdict, one of VERDICTS; `ok`, whether the law is right as h -> 0; findings with figures.

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
    def ok(self) -> bool:
        """Whether the law is right, or its bias vanishes with the step size."""
        return VERDICTS[self.verdict]

    def to_dict(self) -> dict:
        """The audit as plain data."""
        return {
            "name": self.name,
            "verdict": self.verdict,
            "ok": self.ok,
            "findings": list(self.findings),
            "alpha": self.alpha,
            "threshold": self.threshold,
            "seconds": self.seconds,
            "cells": [c.to_dict() for c in self.cells],
            "report": self.report.to_dict(),
        }

    def __str__(self):
        lines = [f"audit of {self.name}: {self.verdict}", *(f"  {text}" for text in self.findings)]
        if self.cells:
            lines += [
                "",
                f"  {'target':12}{'dim':>4}{'T':>6}{'h':>9}{'E theta^2':>11}{'exact':>9}{'z':>8}{'worst z':>9}  of",
            ]
        lines += [
            "  {target:12}{dim:4}{temperature:6g}{step_size:9.4g}{time:8g}{E theta^2:11.4f}{exact:9.4f}{z:8.1f}"
            "{worst z:9.1f}  {worst}".format(**c.to_dict())
            for c in self.cells
        ]
        return "\n".join(
            [
                *lines,
                "",
                f"  |z| > {self.threshold:.2f} counts: a right sampler fails one audit in "
                f"{1 / self.alpha:,.0f}. {self.seconds:.0f} s.",
            ]
        )


def audit(
    run: Callable,
    *,
    step_size: float = 0.1,
    time: float = 10.0,
    chains: int = 32768,
    temperatures: tuple[float, float] = (0.5, 1.5),
    alpha: float = 1e-4,
    seed: int = 0,
    limit: float | None = 900.0,
    progress: bool = True,
) -> Audit:
    """Compare the draws of a black box with exp(-U/T), at the step sizes h, h/2 and h/4, and extrapolate to h = 0.

    `run(potential, init, *, steps, step_size, temperature, seed)` returns theta (chains, dim) after the steps, or all
    draws (chains, steps, dim), of torch or numpy; `potential(theta)` is U by chain, (chains, dim) -> (chains,), in
    torch; `init` (chains, dim). Three quarters of the chains start from exact draws and are compared; the others
    start at half the width, and the time of a run is doubled until they agree with the rest. `alpha`: the rate of
    false alarms. Torch's and numpy's global generators are seeded for the run, and restored. `progress` on stderr.
    Raises RecipeError for a function that is not of this form. After `limit` seconds the audit ends with what there
    is.

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
    started, name = perf_counter(), getattr(run, "__name__", type(run).__name__)
    check_settings(run, step_size, time, chains, temperatures, alpha, seed, limit)
    numpy_state, threads = np.random.get_state(), torch.get_num_threads()
    torch.set_num_threads(1)  # chains by dim is small: threads cost more than they give
    try:
        with torch.random.fork_rng(devices=[]), tqdm(total=RUNS, disable=not progress, unit="run", desc=name) as bar:
            torch.manual_seed(seed)
            np.random.seed(seed % 2**32)
            found = _Audit(BlackBox(run, name, bar, limit), step_size, time, chains, temperatures, alpha, seed)
            found.run()
    finally:
        torch.set_num_threads(threads)
        np.random.set_state(numpy_state)
    verdict = next((v for v in VERDICTS if v in found.verdicts), "unbiased")
    return Audit(
        name,
        verdict,
        tuple(found.findings),
        Report(name, tuple(found.results)),
        tuple(found.cells),
        found.threshold,
        alpha,
        round(perf_counter() - started, 1),
    )


class _Audit:
    """An audit as it goes: verdicts that apply, findings, results, cells."""

    def __init__(self, box, step_size, time, chains, temperatures, alpha, seed):
        self.box, self.time, self.chains, self.temperatures = box, time, chains, temperatures
        self.step_sizes = [step_size / 2**i for i in range(3)]
        self.generator = torch.Generator().manual_seed(seed)
        self.verdicts, self.findings, self.results, self.cells = set(), [], [], []
        # half of alpha: each statistic of each target and temperature, and each pooled one, at three step sizes and in the
        # limit; each mean of two seeds; the coordinates; the exponent of T. The other half: each distance of two chains
        comparisons = 4 * (sum(len(law.labels) for law in LAWS) * 2 + 3) + LAWS[0].dim + 2
        distances = LAWS[0].dim * chains // 2
        self.threshold, self.likeness = (NormalDist().inv_cdf(1 - alpha / 4 / n) for n in (comparisons, distances))

    def _seed(self):
        return int(torch.randint(2**31 - 1, (), generator=self.generator))

    def _check(self, layer, statistic, value, bound, equation, verdict, text, subject=""):
        """Keep a result; if it fails, the verdict applies, and the text is a finding."""
        result = Result(layer, statistic, float(value), float(bound), equation, subject)
        self.results.append(result)
        if not result.ok:
            self.verdicts.add(verdict)
            self.findings.append(f"{verdict}: {text}")
        return result.ok

    def run(self):
        """All of it; what there is, where time runs out."""
        try:
            self.first_look()
            if not self.verdicts:
                self.sweep()
        except OutOfTime as ended:
            self.verdicts = {"not finished"}
            self.findings.append(f"not finished: {ended}")

    # ---- the first look

    def first_look(self):
        """Two seeds, and twice the time: does it move, and is the noise new for every seed, chain and step?"""
        law, T, h = LAWS[0], self.temperatures[0], self.step_sizes[0]
        init, (one, two) = law.draw(self.chains, T, self.generator), (self._seed(), self._seed())
        at = lambda seed, time=self.time: self.box(law, init, time=time, step_size=h, temperature=T, seed=seed)
        theta, other = at(one), at(two)
        if not (self._stays(law, T, h, theta) and self._stays(law, T, h, other)):
            return
        x, y, sd = theta.double().numpy(), other.double().numpy(), law.moments(T)[1]
        moved = ~((theta == init) & (other == init)).all(1)
        still = 1 - float(moved.double().mean())
        if not self._check(
            "movement",
            "chains that end where they started",
            still,
            0.9,
            "theta_n != theta_0",
            "does not move",
            f"{still:.0%} of the chains end where they started, for two seeds",
        ):
            return
        if still > 0.01:
            self.findings.append(
                f"{still:.0%} of the chains have not moved in time {self.time:g}: a smaller step size would see more"
            )
        same, width = float((theta == other).all(1)[moved].double().mean()), float((x.std(0) / sd).mean())
        if not self._check(
            "seed",
            "chains that are the same for two seeds",
            same,
            0.01,
            "draws depend on the seed",
            "seed ignored",
            f"{same:.0%} of the chains are the same for two seeds"
            + "; and all are at one point: there is no noise" * (width < 0.1),
        ):
            return
        if not torch.equal(theta, at(one)):
            self.findings.append("not reproducible: one seed gave two different runs")
        offset = abs(x.mean(0) - y.mean(0)) / np.maximum(np.sqrt((x.var(0) + y.var(0)) / len(x)), 1e-12 * sd)
        self._check(
            "chains",
            "distance of the means for two seeds, in standard errors",
            offset.max(),
            self.threshold,
            "chains are independent",
            "noise shared across chains",
            f"the means over {len(x)} chains for two "
            f"seeds are {offset.max():.2g} standard errors apart, and the chains {width:.2g} of the exact width",
        )
        lag, r, score = likeness(x)
        self._check(
            "chains",
            f"correlation of chains {lag} apart, in standard errors",
            score,
            self.likeness,
            "chains are independent",
            "noise shared across chains",
            f"chains that are {lag} apart have the correlation {r:.2f}",
        )
        self.halves = correlation(init.numpy(), x), correlation(x, at(one, 2 * self.time).double().numpy())

    def _stays(self, law, T, h, theta):
        """Whether every chain stays finite; else the largest step size that is stable is looked for."""
        share = _lost(law, T, theta)
        if not share:
            return True
        init = law.draw(self.chains, T, self.generator)
        again = lambda h: self.box(law, init, time=self.time, step_size=h, temperature=T, seed=self._seed())
        stable = next((h / 2**i for i in range(1, 4) if not _lost(law, T, again(h / 2**i))), None)
        advice = (
            "and so at h/2, h/4 and h/8"
            if stable is None
            else (f"all stay finite for {self.time:g} units of time at {stable:g}: pass a step_size of that, or less")
        )
        return self._check(
            "stability",
            "chains that leave the finite numbers",
            share,
            0.0,
            "theta stays finite",
            "diverges",
            f"on the {law.name}, T = {T:g}, h = {h:g}, {share:.2%} of the chains leave the finite numbers; {advice}",
        )

    # ---- the sweep

    def sweep(self):
        """Every target, temperature and step size, until nothing changes with time; then the limits."""
        settings, before = (
            [(law, T, h) for law in LAWS for T in self.temperatures for h in self.step_sizes],
            len(self.results),
        )
        for _ in range(5):
            self.cells, self.results, began = [], self.results[:before], self.time
            if not all(self._measure(*setting) for setting in settings):
                return
            series = _series(self.cells)
            wrong, biased = self._biases(series)
            if (wrong or biased) and self.time > began:  # biases at different times do not compare
                change = np.inf
                continue
            change = self._change() if wrong or biased else 0.0
            if change is None:
                return
            if change <= FORGOTTEN:
                return self._judge(series, wrong, biased)
        self._check(
            "start",
            "change with time, in standard errors",
            change,
            FORGOTTEN,
            "the law is stationary",
            "start not forgotten",
            f"at time {self.time:g} the law still changes, by {change:.1f} standard errors: pass "
            "a longer time, unless it has no stationary law",
        )

    def _measure(self, law, T, h):
        """Add a cell, or the finding why there is none; the time it took to forget the start is kept for the next."""
        where, compared = f"{law.name}, T = {T:g}, h = {h:g}", self.chains * 3 // 4
        for doubling in range(DOUBLINGS + 1):
            self.time *= 2 if doubling else 1
            init = law.draw(self.chains, T, self.generator)
            mean = torch.tensor(law.moments(T)[0]).to(init)
            init[compared:] = mean + (init[compared:] - mean) / 2
            theta = self.box(law, init, time=self.time, step_size=h, temperature=T, seed=self._seed())
            if not self._stays(law, T, h, theta):
                return None
            a, b = law.statistics(theta[:compared], T), law.statistics(theta[compared:], T)
            # a law that is too narrow must not look precise: at least the spread of exact draws
            ideal = law.statistics(init[:compared], T).std(0)
            error, error_b = (np.maximum(s.std(0), ideal) / len(s) ** 0.5 for s in (a, b))
            apart = abs(a.mean(0) - b.mean(0)) / np.hypot(error, error_b)
            if apart.max() < FORGOTTEN:
                break
        worst = law.labels[int(apart.argmax())]
        if not self._check(
            "start",
            f"distance of two starts by the {worst}, in standard errors",
            apart.max(),
            FORGOTTEN,
            "the law forgets its start",
            "start not forgotten",
            f"after {self.time:g} units of time, {self.time / h:.0f} steps, chains from exact draws and from "
            f"half their width are {apart.max():.1f} standard errors apart in the {worst} ({where}); pass a "
            "longer time; or it is not ergodic: no friction, no noise, a part that never moves",
            where,
        ):
            return None
        self.cells.append(Cell(law, T, h, self.time, a.mean(0) - law.exact(T), error))
        return self.cells[-1]

    def _change(self):
        """How far biases are from those at four times the time: momenta and the like may start far from their law.

        At h, and where a bias is surest at h/4 too: some forget more slowly there.
        """
        surest = max(self.cells, key=lambda cell: (cell.step_size == self.step_sizes[-1], float(abs(cell.z).max())))
        change, self.time, pooled = 0.0, 4 * self.time, []
        for cell in [*(cell for cell in self.cells if cell.step_size == self.step_sizes[0]), surest]:
            later = self._measure(cell.law, cell.temperature, cell.step_size)
            if later is None:
                return None
            self.cells.pop()
            moved, error = later.bias - cell.bias, np.hypot(later.error, cell.error)
            pooled.append((moved[-1] / error[-1] ** 2, 1 / error[-1] ** 2))  # the temperature, of all targets together
            change = max(
                change,
                float((abs(moved) / error).max()),
                abs(sum(m for m, _ in pooled)) / sum(w for _, w in pooled) ** 0.5,
            )
            if change > FORGOTTEN:
                return change
        self.time /= 4
        return change

    def _biases(self, series):
        """The biases that do not vanish, as scores and texts; and of all biases the most certain one."""
        wrong, biased, surest = [], None, self.threshold
        for subject, labels, bias, error in series:
            limit, limit_error, scores = limits(bias, error)
            for k, label in enumerate(labels):
                told = (
                    f"{label}, {subject}: {', '.join(f'{b:+.3f}' for b in bias[:, k])} at h, h/2, h/4; limit "
                    f"{limit[k]:+.3f} +- {limit_error[k]:.3f}"
                )
                wrong += [(scores[k], told)] if scores[k] > self.threshold else []
                if (z := abs(bias[:, k] / error[:, k]).max()) > surest:
                    biased, surest = (bias[:, k], error[:, k], told), z
            k = int(scores.argmax())
            self.results.append(
                Result(
                    "limit",
                    f"bias of the {labels[k]} that is left as h -> 0, in standard errors",
                    scores[k],
                    self.threshold,
                    "E phi(theta_n) -> E phi as h -> 0",
                    subject,
                )
            )
        return wrong, biased

    def _judge(self, series, wrong, biased):
        """What is wrong with the limits; else the order of the bias, if there is one."""
        self.results.append(Result("stability", "chains that leave the finite numbers", 0.0, 0.0, "theta stays finite"))
        self._coordinates()
        self._exponent(series)
        if wrong:
            self._reuse()
            self.verdicts.add("bias does not vanish")
            pooled = [told for _, told in wrong if "all targets" in told]
            single = [found for found in wrong if found[1] not in pooled]
            told = pooled[:2] + ([max(single)[1]] if single else [])
            self.findings += [f"bias does not vanish: {text}" for text in told]
            return
        if biased:
            p, low, high = order(*biased[:2])
            highest = order(*biased[:2], width=self.threshold)[2]
            verdict = (
                "vanishing bias"
                if high > RESOLVED
                else "bias, limit unresolved"
                if highest > RESOLVED
                else "bias does not vanish"
            )
            self.verdicts.add(verdict)
            self.findings.append(
                f"{verdict}: of apparent order h^{p:.1f} (95 %: {low:.1f} to {high:.1f}); {biased[2]}"
                + "; pass more chains" * (verdict == "bias, limit unresolved")
            )
            if verdict == "bias does not vanish":
                self.results.append(
                    Result(
                        "limit",
                        "order of the surest bias in h, at most",
                        highest,
                        RESOLVED,
                        "E phi(theta_n) -> E phi as h -> 0",
                        least=True,
                    )
                )
                return
        *_, error = series[-1]
        seen = (self.threshold + SEEN) * np.array([error[0, 0], 2 * hypot(1.5 * error[2, 0], error[1, 0])])
        seen = np.where(seen < 1, seen / np.maximum(1 - seen, 1e-9), np.inf)  # the errors grow with the temperature
        self.findings.append(
            "resolution: nine times in ten an audit of this size finds a temperature {:.1%} off at h, or "
            "{:.1%} off as h -> 0".format(*seen)
        )

    def _reuse(self):
        """Does a run of twice the time end where one of the time did? A sampler of exact draws may, and is right."""
        before, after = self.halves
        self._check(
            "noise",
            "correlation over the second half of a run, less that over the first",
            after - before,
            0.5,
            "corr(theta_n, theta_2n) = corr(theta_0, theta_n)",
            "noise reused",
            f"theta has the correlation "
            f"{after:.2f} over the second half of a run, {before:.2f} over the first: is the noise of every step "
            "that of the first?",
        )

    def _coordinates(self):
        """Coordinates of a separable target are independent at every step size."""
        cells = [cell for cell in self.cells if cell.law.separable and cell.step_size == self.step_sizes[-1]]
        chosen = [[k for k, label in enumerate(cell.law.labels) if label.startswith("correlation")] for cell in cells]
        r = min(abs(cell.bias[k]).min() for cell, k in zip(cells, chosen))
        error = max(cell.error[k].max() for cell, k in zip(cells, chosen))
        r = r if r <= 1 + self.threshold * error else 0.0  # taken about the exact means: beyond 1 these are off
        self._check(
            "coordinates",
            "correlation of neighbours on separable targets",
            r,
            max(0.1, self.threshold * error),
            "coordinates are independent",
            "noise shared across coordinates",
            f"neighbouring coordinates of separable targets have a correlation of at least {r:.2f}, exactly 0",
        )

    def _exponent(self, series):
        """The temperature of the draws is a power of the one asked for: the first."""
        (t, u), errors = np.transpose([[x.item() for x in limits(b, e)[:2]] for *_, b, e in series[-3:-1]])
        (t, u), asked = np.maximum(1e-9, [1 + t, 1 + u]), self.temperatures
        octaves = log2(asked[1] / asked[0])
        power, error = 1 + log2(u / t) / octaves, hypot(errors[0] / t, errors[1] / u) * 1.443 / abs(octaves)
        meanings = {0: "it is ignored", 2: "it is used as a standard deviation"}
        meaning = next(
            (text for p, text in meanings.items() if abs(power - p) < max(0.2, 4 * error)), "it is used wrongly"
        )
        self._check(
            "temperature",
            "exponent of T in the temperature of the draws, less 1",
            abs(power - 1),
            max(0.4, self.threshold * error),
            "theta . grad U / dim = T",
            "temperature used wrongly",
            f"asked for T = {asked[0]:g} and {asked[1]:g}, as h -> 0 the draws have {asked[0] * t:.3f} and "
            f"{asked[1] * u:.3f}, T^{power:.2f}: {meaning}",
        )


def _lost(law, T, theta):
    """The share of the chains that are not finite, or far out."""
    mean, sd, *_ = law.moments(T)
    return 1 - float((abs(theta.double().numpy() - mean) < FAR * sd).all(1).mean())


def _series(cells):
    """Biases over the step sizes, (3, statistics), by target and temperature; then the temperature, pooled, as the last."""
    settings = dict.fromkeys((cell.law.name, cell.temperature) for cell in cells)
    series, pooled = [], {}
    for name, T in settings:
        group = [cell for cell in cells if (cell.law.name, cell.temperature) == (name, T)]
        bias, error = np.stack([c.bias for c in group]), np.stack([c.error for c in group])
        series.append((f"{name}, T = {T:g}", group[0].law.labels, bias, error))
        for key in (f"T = {T:g}", "every T"):
            pooled.setdefault(key, []).append((bias[:, -1:], error[:, -1:]))
    for key in sorted(pooled, key="every T".__eq__):
        weights = [1 / (error**2).mean() for _, error in pooled[key]]  # the same at every step size, as the limit needs
        bias = sum(w * b for w, (b, _) in zip(weights, pooled[key])) / sum(weights)
        error = np.sqrt(sum((w * e) ** 2 for w, (_, e) in zip(weights, pooled[key]))) / sum(weights)
        series.append((f"all targets, {key}", ["temperature"], bias, error))
    return series
