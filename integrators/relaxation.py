"""Relaxation times of auxiliary blocks and adapted quantities, by linearisation about their law.

At a fixed target, without a force, momenta with kinetic energy K have the law exp(-K/tau), where tau = <p K'> for every
K, and thermostats are at their means. With the generator L = f d/dp + T D d^2/dp^2 the two follow

    d tau/dt = <L (p K')>,   d xi/dt = <f_xi>.

The derivatives by tau and xi at the law form a matrix: the relaxation time of a thermostat is one over the slowest
decay rate of this matrix. The relaxation time of momenta is <p^2>/-<p f>, with the rate of redraws added to the
friction; an adapted quantity decays per step by the derivative of its update by itself.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Expr, Float, S, Symbol, lambdify
from sympy.core.function import AppliedUndef

from recipe import Recipe
from recipe.calculus import derivative
from recipe.marginal import eliminate_gaussians
from recipe.pieces import Jump
from recipe.symbols import Block, Partial, Total, masked, step_size
from recipe.symbols import temperature as T

SITES = 1e6  # number of sites of a chain, for totals
POINTS = 4001  # points of the grid of momenta
STEEPEST = 40.0  # K/T at the ends of the grid
SMALL = 1e-4  # relative change of tau and of a thermostat, for derivatives


def relaxation_steps(
    recipe: Recipe,
    h: float,
    parameters: Mapping[str, Any],
    *,
    temperature: float = 1.0,
    frozen: Collection[str] = (),
) -> dict[str, float]:
    """Relaxation times of momenta, thermostats and adapted quantities, in steps of size h, by name.

    `parameters`: numbers by name, where they differ from the defaults, and values of adapted quantities. Left out are
    `frozen` blocks and blocks whose relaxation depends on further values; inf is no relaxation, 0 a redraw every step.

    >>> from samplers import SGNHT, PSGLD
    >>> {name: round(k, 1) for name, k in relaxation_steps(SGNHT, 0.1, {"A": 2.0, "mu": 10.0}).items()}
    {'p': 5.0, 'xi': 197.5}
    >>> relaxation_steps(PSGLD, 0.1, {"alpha": 0.9})["V"].__round__(1)
    9.5
    """
    known = {s.name: s.default for s in recipe.parameters if s.default is not None} | dict(parameters)
    numbers = {s: float(known[s.name]) for s in recipe.symbols if s.name in known}
    numbers |= {T: float(temperature), step_size: float(h)}
    steps: dict[str, float] = {}
    for p in recipe.momenta if temperature > 0 else ():
        momenta = None if p.name in frozen or not p.is_vector else _momenta(recipe, numbers, p)
        if momenta is None:
            continue
        steps[p.name] = momenta.time() / h
        for xi in recipe.thermostats:
            time = None if xi.name in frozen else momenta.time_with(xi)
            if time is not None:
                steps[xi.name] = max(time / h, steps.get(xi.name, 0.0))
    for a, update in recipe.adapt.items():
        share = _number(update.diff(a), numbers)
        if a.name not in frozen and share is not None and 0 <= share < 1:
            steps[a.name] = -1 / math.log(share) if share > 0 else 0.0
    return steps


def _at(e: Expr, numbers: Mapping[Any, float]) -> Expr:
    return e.xreplace({s: Float(x) for s, x in numbers.items()})


def _free(e: Expr, numbers: Mapping[Any, float]) -> Expr:
    """An expression without force, at the numbers."""
    return _at(e.xreplace({x: S.Zero for x in e.atoms(Partial)}), numbers)


def _number(e: Expr, numbers: Mapping[Any, float]) -> float | None:
    """An expression without force as a number; None if it depends on further values."""
    e = _free(e, numbers)
    return float(e) if e.is_number and e.is_real and e.is_finite else None


def _momenta(recipe: Recipe, numbers: Mapping[Symbol, float], p: Block) -> "_Momenta | None":
    """The momenta of a block; None if formulas depend on more than this block and the thermostats."""
    if any(e.has(*recipe.targets) for e in (*recipe.D, *recipe.Q)):
        return None  # with a metric, relaxation differs from point to point
    means: dict[Symbol, float] = {}  # of the Gaussian thermostats, each given the others
    for law in reversed(eliminate_gaussians(recipe.H, recipe.thermostats)[0]):
        mean = _number(law.mean, {**numbers, **means})
        if mean is not None:
            means[law.block] = mean
    row = recipe.state.index(p)
    still = dict.fromkeys(recipe.targets, S.Zero)  # for forces written as formulas, which vanish at 0
    slope = _free(derivative(recipe.H, p), numbers)
    drift = _free(recipe.tempered_drift[row], numbers).xreplace(still)
    noise = _free(recipe.D[row, row], numbers)
    if slope.free_symbols != {p} or not (drift.free_symbols | noise.free_symbols) <= {p, *means}:
        return None
    if any(e.atoms(Total) for e in (slope, drift, noise)) or drift.has(AppliedUndef):
        return None
    return _Momenta(recipe, numbers, p, slope, drift, noise, means)


@dataclass
class _Momenta:
    """The momenta of one site on a grid, and averages over their law exp(-K/tau)."""

    recipe: Recipe
    numbers: Mapping[Symbol, float]
    p: Block
    slope: Expr
    drift: Expr
    noise: Expr
    means: Mapping[Symbol, float]

    def __post_init__(self) -> None:
        import numpy as np

        self.temperature = self.numbers[T]
        of_p = lambdify(self.p, self.slope, "numpy")
        far = 1.0
        while not 0.5 * far * float(of_p(far)) > STEEPEST * self.temperature and far < 1e30:
            far *= 2
        while 0.25 * far * float(of_p(far / 2)) > STEEPEST * self.temperature and far > 1e-30:
            far /= 2
        self.grid = np.linspace(-far, far, POINTS)
        slopes = np.broadcast_to(of_p(self.grid), self.grid.shape)
        K = np.concatenate([[0.0], np.cumsum((slopes[1:] + slopes[:-1]) / 2 * np.diff(self.grid))])
        self.K = K - K.min()

    def average(self, e: Expr, tau: float, at: Mapping[Symbol, float]) -> float:
        """The mean of an expression of p; totals are means over the sites times their number."""
        import numpy as np

        outside, totals = masked(e, Total)
        values = {d: SITES * self.average(x.args[0], tau, at) for d, x in totals.items()}
        weights = np.exp(-self.K / tau)
        inside = lambdify(self.p, _at(outside, {**values, **at}), "numpy")(self.grid)
        return float((weights * inside).sum() / weights.sum())

    def time(self) -> float:
        jumps = [j for j in self.recipe.jumps.values() if isinstance(j, Jump) and self.p in j.redrawn]
        kept = [_number(j.persistence, self.numbers) or 0.0 for j in jumps]
        if any(j.rate is None and c == 0 for j, c in zip(jumps, kept)):
            return 0.0
        tau = self.temperature
        friction = -self.average(self.p * self.drift, tau, self.means) / self.average(self.p**2, tau, self.means)
        for jump, c in zip(jumps, kept):
            if jump.rate is None:
                friction -= math.log(c) / self.numbers[step_size]
            else:
                friction += (1 - c) * (_number(jump.rate, self.numbers) or 0.0)
        return 1 / friction if friction > 0 else math.inf

    def time_with(self, xi: Block) -> float | None:
        """The relaxation time of a thermostat together with the temperature of these momenta; None if unknown."""
        from numpy.linalg import eigvals

        drift = _free(self.recipe.tempered_drift[self.recipe.state.index(xi)], self.numbers)
        if xi not in self.means or not drift.free_symbols <= {self.p, *self.means}:
            return None
        tau = self.temperature
        first = (self.p * self.slope).diff(self.p)
        energy = self.drift * first + tau * self.noise * first.diff(self.p)
        steps = (SMALL * tau, 0.0), (0.0, SMALL * max(abs(self.means[xi]), 1e-3))
        matrix = [[self._slope(e, xi, *step) for step in steps] for e in (energy, drift)]
        slowest = min(-float(rate.real) for rate in eigvals(matrix))
        return 1 / slowest if slowest > 1e-12 else math.inf

    def _slope(self, e: Expr, xi: Block, heat: float, shift: float) -> float:
        """The derivative of a mean by tau or by a thermostat, by central differences."""
        higher, lower = (
            self.average(e, self.temperature + sign * heat, {**self.means, xi: self.means[xi] + sign * shift})
            for sign in (1, -1)
        )
        return (higher - lower) / (2 * (heat + shift))
