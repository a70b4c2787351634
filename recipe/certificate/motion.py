"""Motions of a run: its own energy, operators and number of sites in the question whether noise reaches every block.

A certificate has a U without symmetry and random operators. A run may have fewer motions: under U = |theta|^2/2 chains
of equal springs stay in a plane, and a singular matrix of friction leaves directions without noise.
"""

import math
from collections.abc import Callable, Mapping

import numpy as np
from sympy import Dummy, Expr

from ..algebra import entries
from ..arrays import of_arrays
from ..declared import Adapted, Block, temperature
from ..derive import row_divergence, times_gradient
from ..dynamics import Dynamics
from ..fields import operators_of
from ..operators import Applied, times
from ..symbols import OPAQUE, Partial, SiteDummy, Total, masked
from .case import Case
from .reach import INTERVALS, rank_of, without_kinks
from .writing import image_of, spectrum_of

MOST = 400  # most coordinates of a chain
MOST_INTERVALS = 27  # most intervals of constant controls
LENGTHS = (0.5, 1.5)
INSIDE = (Total, Applied, Partial)
Arrays = dict[Block, np.ndarray]  # (N, sites) of a vector, (N, 1) of a scalar


def rank_of_run(
    case: Case, sites: int, gradient: Callable[[Arrays], Arrays], matrices: Mapping[str, np.ndarray]
) -> tuple[int, int] | None:
    """The rank of the motions of a run, and the rank that it has if noise reaches every block; None if not known.

    `gradient`: of U by block; `matrices`: of operators by name. Few controls in many coordinates give as many motions.
    """
    motion = _Motion(case, sites, gradient, matrices)
    if not motion.width or motion.size > MOST or motion.is_opaque:
        return None
    intervals = min(math.ceil(INTERVALS * motion.size / motion.width), MOST_INTERVALS)
    number, missed = rank_of(motion.velocity, motion.blocks, intervals, motion.width, lengths=LENGTHS)
    full = min(motion.size - len(case.recipe.spheres), intervals * motion.width)
    return (number, full) if number == full or len(missed) and number >= 0 else None


class _Motion:
    """The velocity -Q grad H + T rowdiv(Q) + D w of a state, for controls w of the blocks with noise or redraws."""

    def __init__(self, case: Case, sites: int, gradient: Callable, matrices: Mapping[str, np.ndarray]):
        recipe = case.recipe
        self.state = tuple(b for b in recipe.state if not b.domain.is_discrete)
        self.sites = {b: sites if b.is_vector else 1 for b in self.state}
        self.blocks = tuple(b for b in self.state for _ in range(self.sites[b]))
        self.size = len(self.blocks)
        self.gradient = gradient
        self.spectra = {name: spectrum_of(matrix) for name, matrix in matrices.items()}
        self.numbers = {temperature: case.temperature, **{s: _number(s, case) for s in recipe.symbols}}
        noisy = {recipe.state[j] for _, j in entries(recipe.D)}
        kind = {b: SiteDummy if b.is_vector else Dummy for b in self.state}
        self.controls = {b: kind[b](f"w_{b}", real=True) for b in self.state if b in noisy | case.redrawn}
        self.width = sum(self.sites[b] for b in self.controls)
        self.rows = {b: without_kinks(e) for b, e in _velocity(recipe, self.controls, case.redrawn).items()}
        self.compiled: dict[Expr, tuple] = {}

    @property
    def is_opaque(self) -> bool:
        """Whether a formula reads more than grad U, known operators and sums."""
        partials = {d for e in self.rows.values() for d in e.atoms(Partial)}
        opaque = {x for e in self.rows.values() for x in e.atoms(*OPAQUE)} - partials
        known = all(isinstance(x, INSIDE) for x in opaque if not any(x in d.args for d in partials))
        operators = {M.name for e in self.rows.values() for M in operators_of(e)}
        return not known or any(len(d.variables) > 1 for d in partials) or not operators <= self.spectra.keys()

    def velocity(self, z: np.ndarray, w: np.ndarray) -> np.ndarray:
        """The velocity (size, N) at states z (size, N) under controls w (width, N)."""
        at = {**self._blocks(z, self.state), **{self.controls[b]: x for b, x in self._blocks(w, self.controls).items()}}
        slopes = self.gradient({b: at[b] for b in self.state})
        rows = [self.value(e, at, slopes) for e in self.rows.values()]
        return np.concatenate([np.broadcast_to(x, (z.shape[1], n)).T for x, n in zip(rows, self.sites.values())])

    def _blocks(self, z: np.ndarray, blocks: Mapping | tuple) -> Arrays:
        ends = np.cumsum([self.sites[b] for b in blocks])[:-1]
        return {b: x.T for b, x in zip(blocks, np.split(z, ends), strict=True)}

    def value(self, e: Expr, at: Mapping, slopes: Arrays) -> np.ndarray:
        """The value of a formula, (N, sites) or (N, 1)."""
        if e not in self.compiled:
            outside, inside = masked(e, *INSIDE)
            symbols = [*outside.free_symbols]
            self.compiled[e] = symbols, inside, of_arrays([symbols], outside)
        symbols, inside, function = self.compiled[e]
        known = {**self.numbers, **at, **{name: self.inner(x, at, slopes) for name, x in inside.items()}}
        return np.asarray(function([known[s] for s in symbols]), dtype=float)

    def inner(self, e: Expr, at: Mapping, slopes: Arrays) -> np.ndarray:
        """The value of a sum over sites, of an applied operator or of a slope of U."""
        if isinstance(e, Partial):
            return slopes[e.variables[0]]
        inside = self.value(e.integrand if isinstance(e, Total) else e.argument, at, slopes)
        shape = (len(next(iter(at.values()))), next((n for b, n in self.sites.items() if b.is_vector), 1))
        inside = np.broadcast_to(inside, shape)
        if isinstance(e, Total):
            return inside.sum(1, keepdims=True)
        (M,) = operators_of(e.formula)
        return inside @ image_of(e.formula, M, self.spectra[M.name], self.numbers).T


def _velocity(recipe: Dynamics, controls: Mapping[Block, Dummy], redrawn: set[Block]) -> dict[Block, Expr]:
    """The formulas of the velocity by block."""
    rows = temperature * row_divergence(recipe.Q, recipe.state) - times_gradient(recipe.Q, recipe.H, recipe.state)
    velocity = dict(zip(recipe.state, rows, strict=True))
    for (i, j), e in entries(recipe.D).items():
        velocity[recipe.state[i]] += times(e, controls[recipe.state[j]])
    for b in redrawn & controls.keys():
        velocity[b] += controls[b]
    return {b: e for b, e in velocity.items() if not b.domain.is_discrete}


def _number(s: Expr, case: Case) -> float:
    value = case.values.get(s.name, getattr(s, "default", None))
    return 1.0 if value is None or isinstance(s, Adapted) else float(value)
