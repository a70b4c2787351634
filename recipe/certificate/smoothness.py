"""Search for jumps of H, D and Q inside of the domain: the flux at a jump is in no formula.

Each function is evaluated along every coordinate through a few random states, on a grid that is fine near 0, and a
network along lines through its arguments. Intervals with large differences are halved; a function jumps if the
difference stays. Kinks, as of Abs and Max, and poles at which exp(-H) vanishes, are no jumps.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from sympy import Abs, Add, Derivative, Expr, Max, Min, Mul, Pow, atan, cos, cosh, erf, exp, log, sin, sinh, tanh
from sympy.core.function import AppliedUndef

from ..algebra import entries
from ..bound import Bound
from ..domains import NAMED, Domain
from ..ensembles import Outer
from ..symbols import Crossing, Partial, Potential, Total
from .explicit import SEED, Explicit, draws_inside
from .tails import point

GRID, STATES = 1501, 2  # points of a line, and lines per coordinate
POINTS = 200  # states at which H is looked at
LINES = 6  # lines through the arguments of a network
ROUNDED = 1e-3  # largest relative rounding error of a network of float32
LOOKS = 12  # number of intervals that are searched
ROUNDS, CUTS = 12, 16  # rounds of a search, and the parts that each cuts an interval into
SMOOTH = (exp, sin, cos, sinh, cosh, tanh, atan, erf)


def is_smooth(e: Expr) -> bool:
    """Whether a formula is smooth by its form: made of smooth functions, and roots and logs of positive terms.

    >>> from sympy import exp, symbols, tanh
    >>> x = symbols("x", real=True)
    >>> is_smooth(tanh(x) + 1/(1 + x**2)), is_smooth(tanh(1/x))
    (True, False)
    """
    if e.is_Atom or isinstance(e, (Potential, Partial)):
        return True
    if isinstance(e, Crossing):
        return all(map(is_smooth, e.args))
    match e:
        case Pow():
            whole = e.exp.is_Integer and e.exp.is_nonnegative
            smooth = whole or e.base.is_positive or (e.exp.is_Integer and e.base.is_nonzero)
        case log():
            smooth = e.args[0].is_positive
        case AppliedUndef() | Abs() | Max() | Min():
            smooth = True
        case _:
            smooth = isinstance(e, (Add, Mul, Total, Derivative, Outer, *SMOOTH))
    return bool(smooth) and all(map(is_smooth, e.args))


def jump_of_network(f: type[Bound]) -> str:
    """The first jump of a network along lines through its arguments, in words; empty if there is none."""
    draw = np.random.default_rng(SEED)
    for start, direction in draw.normal(size=(LINES, 2, f.family.arity)):

        def along(t: np.ndarray, start: np.ndarray = start, direction: np.ndarray = direction) -> np.ndarray:
            return f.on_arrays(*(a + b * t for a, b in zip(start, direction, strict=True)))

        for place, low, high in jumps_beyond_rounding(along):
            at = ", ".join(f"{value:.3g}" for value in start + direction * place)
            return f"{f.family.name} jumps from {low:.3g} to {high:.3g} at {at}"
    return ""


def jumps_beyond_rounding(function: Callable) -> Iterator[tuple[float, float, float]]:
    """The jumps of a function of one number, (place, value below, value above), beyond rounding errors of float32.

    >>> [[round(x, 3) for x in jump] for jump in jumps_beyond_rounding(lambda t: np.tanh(t) + (t > 1))]
    [[1.0, 0.762, 1.762]]
    """
    x = point(NAMED["real"], np.linspace(-9.0, 9.0, GRID) + 1e-4)
    for place, (low, high) in _jumps_of(function, x, is_energy=True):
        if abs(high - low) > ROUNDED * max(abs(low), abs(high)):
            yield place, low, high


def undefined(explicit: Explicit) -> str:
    """The first of random states at which H is no real number, as a log of a negative one, in words; empty if none."""
    z = np.array(draws_inside(explicit.blocks, POINTS)).T
    z *= np.array([[1.0, 5.0][b.domain.is_real] for b in explicit.blocks])[:, None]
    lost = np.isnan(explicit.function([explicit.H])(z)[0])
    if not lost.any():
        return ""
    at = ", ".join(f"{x} = {value:.3g}" for x, value in zip(explicit.coordinates, z[:, lost.argmax()], strict=True))
    return f"H is no real number at {at}"


def jump(explicit: Explicit) -> str:
    """The first jump of H or of an entry of D or Q, in words; empty if there is none."""
    z = explicit.coordinates
    formulas = [("H", explicit.H)]
    for label, matrix in (("D", explicit.D), ("Q", explicit.Q)):
        formulas += [(f"{label}[{z[i]}, {z[j]}]", e) for (i, j), e in entries(matrix).items() if i <= j]
    for label, e in formulas:
        if is_smooth(e):
            continue
        for line in explicit.lines(STATES, e.free_symbols):
            for place, (low, high) in _jumps_of(
                partial(line.on, e), _grid(line.block.domain), is_energy=e is explicit.H
            ):
                return f"{label} jumps from {low:.3g} to {high:.3g} at {line.z} = {place:.3g}"
    return ""


def _grid(domain: Domain) -> np.ndarray:
    """Points of a domain, fine near 0 and near its ends; shifted, so that simple numbers lie between two points."""
    if domain.wraps:  # once around, across the joined ends
        return domain.inside(np.linspace(0.0, 1.0, GRID) + 0.1234)
    return point(domain, np.linspace(-9.0, 9.0, GRID) + 1e-4)


def _jumps_of(function: Callable, x: np.ndarray, *, is_energy: bool) -> Iterator[tuple[float, tuple[float, float]]]:
    """The jumps of a function on a line, as (place, values at both sides): differences that stay as intervals narrow.

    An energy may be infinite at a point, which no chain reaches; D and Q may not.
    """
    values = function(x)
    with np.errstate(invalid="ignore"):
        change = abs(np.diff(values))
    change[~np.isfinite(change)] = 0.0
    if not change.any():
        return
    scale = np.median(abs(values[np.isfinite(values)])) + 1e-300
    neighbours = np.convolve(change, [1.0, 0.0, 1.0], "same")
    for k in np.argsort(-change / (neighbours + 1e-9 * scale))[:LOOKS]:
        if change[k] == 0:
            return
        low, high = _narrowed(function, x[k], x[k + 1])
        sides = float(function(low)), float(function(high))
        rest = abs(sides[1] - sides[0])
        largest = max(map(abs, sides))
        is_pole = largest > 1e6 * (scale + change[k]) and not is_energy
        is_jump = rest > 0.1 * change[k] and 1e-6 * largest < rest and largest < 1e3 * (scale + change[k])
        if is_pole or is_jump:
            place = (low + high) / 2
            yield (0.0 if abs(place) < 1e-12 else float(place)), sides


def _narrowed(function: Callable, low: float, high: float) -> tuple[float, float]:
    """The interval after repeated cuts towards the largest change of the function."""
    for _ in range(ROUNDS):
        x = np.unique(np.linspace(low, high, CUTS + 1))
        values = function(x)
        if len(x) < 3 or not np.isfinite(values).all():
            break
        k = abs(np.diff(values)).argmax()
        low, high = x[k], x[k + 1]
    return float(low), float(high)
