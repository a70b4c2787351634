"""The generator of an SDE against its law, by quadrature or by exact draws: E[L phi] = 0 for every phi.

L phi = f . grad phi + T D : hess phi is the generator of dz = f dt + sqrt(2TD) dW. From a start at exp(-H/T), E[L phi]
is d/dt E[phi(z_t)], 0 for every phi if that law is invariant.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from sympy import Expr, ImmutableMatrix, Mul, S, diff

from recipe import Energy
from recipe.arrays import of_arrays, whole_power
from recipe.reading import drift_of, matrix_of
from recipe.symbols import Block

from .densities import density, one_site, separate
from .features import features as usual_features

BOUND = 1e-4  # right drifts are below 1e-9, wrong ones above 2e-2
STANDARD_ERRORS = 7.5  # of a mean of draws, exceeded by a right one once in 1e13 times


def generator_defects(
    drift: Mapping | Sequence,
    D: Any,
    H: Expr,
    state: Sequence[Block],
    *,
    energy: Energy | Expr | None = None,
    values: Mapping | None = None,
    temperature: float = 1.0,
    degree: int = 4,
    features: Sequence[Expr] | None = None,
) -> dict[Expr, float]:
    """E[L phi] for every monomial phi of the blocks up to a degree, over E|f . grad phi| + E|T D : hess phi|.

    Means are under exp(-H/T) of one site, by quadrature: 0 to rounding where that law is invariant. `drift`: at the
    temperature T, a dict or a column; `D`: as for a Recipe; other arguments are those of `density`. Binary blocks are
    not in phi. `features`: the functions whose monomials are phi, by default those of `samplers.testing.features`.
    Raises RecipeError where `density` does.

    >>> from recipe import vector, positive, potential, total, grad
    >>> theta, p, C = vector("theta"), vector("p"), positive("C", default=0.7)
    >>> U = potential(theta)
    >>> wrong = generator_defects({theta: p, p: -grad(U)}, {p: C}, U + total(p**2)/2, (theta, p), degree=2)
    >>> {str(phi): round(x, 3) + 0.0 for phi, x in wrong.items()}
    {'theta': 0.0, 'p': 0.0, 'theta**2': 0.0, 'p*theta': 0.0, 'p**2': 0.449}
    """
    generator = generator_at_one_site(drift, D, H, state, energy=energy, values=values, temperature=temperature)
    return generator.defects(degree, features)


def generator_at_one_site(
    drift: Mapping | Sequence,
    D: Any,
    H: Expr,
    state: Sequence[Block],
    *,
    energy: Energy | Expr | None = None,
    values: Mapping | None = None,
    temperature: float = 1.0,
) -> "Generator":
    """The generator under exp(-H/T) of one site; the arguments are those of `generator_defects`."""
    number = one_site(temperature=temperature, values=values, energy=energy)
    rows = [number(e) for e in drift_of(drift, tuple(state), "diagnose")]
    D = matrix_of(D, tuple(state), +1, "generator, D").applyfunc(number)
    points, weights = density(H, state, temperature=temperature, values=values, energy=energy, integrands=[*rows, *D])
    return Generator(state, rows, D, points, weights, H=number(H), temperature=temperature)


class Generator:
    """E[L phi] under a law that is given by points and weights.

    `drift`, `D` and `H`: expressions of the coordinates `state` and numbers. `drawn`: whether points are independent
    draws, of which a mean within STANDARD_ERRORS counts as 0.
    """

    def __init__(
        self,
        state: Sequence[Block],
        drift: Sequence[Expr],
        D: ImmutableMatrix,
        points: Mapping[Block, np.ndarray],
        weights: np.ndarray,
        *,
        H: Expr = S.Zero,
        temperature: float = 1.0,
        drawn: bool = False,
    ):
        self.state = tuple(state)
        self.H = H
        self.weights = weights
        self.drawn = drawn
        self.points = [points[b] for b in self.state]
        self.drift = [(b, self.at(e)) for b, e in zip(self.state, drift) if e != 0]
        # by block without noise of its own: the blocks in its drift, which turn where it is reflected
        self.turned = {
            b: [c for c in self.state if c != b and drift[i].has(c)] for i, b in enumerate(self.state) if D[i, i] == 0
        }
        pairs = [(i, j) for i, _ in enumerate(self.state) for j, _ in enumerate(self.state) if D[i, j] != 0]
        self.noise = [(self.state[i], self.state[j], float(temperature) * self.at(D[i, j])) for i, j in pairs]

    def at(self, e: Expr) -> np.ndarray:
        """The values of a formula at the points."""
        powers = e.as_powers_dict()
        if all(b in self.state and k.is_Integer and k > 0 for b, k in powers.items()):
            factors = (whole_power(x, int(powers[b])) for b, x in zip(self.state, self.points) if b in powers)
            return math.prod(factors, start=np.ones_like(self.weights))
        return np.broadcast_to(of_arrays([self.state], e)(self.points), self.weights.shape)

    def mean(self, derivative: Callable[..., Any]) -> tuple[float, float]:
        """E[L phi], and E|f . grad phi| + E|T D : hess phi|, from derivative(a, ...), the derivatives of phi by blocks.

        A derivative that is 0 everywhere may be None.
        """
        nothing = np.zeros_like(self.weights)
        slopes = ((f, derivative(b)) for b, f in self.drift)
        curvatures = ((D, derivative(a, b)) for a, b, D in self.noise)
        first = sum((f * d for f, d in slopes if d is not None), nothing)
        second = sum((D * d for D, d in curvatures if d is not None), nothing)
        rate, scale = self.weights @ (first + second), self.weights @ abs(first) + self.weights @ abs(second)
        return self._beyond_chance(float(rate), first + second), float(scale)

    def _beyond_chance(self, rate, terms):
        """The part of a mean beyond STANDARD_ERRORS where points are draws, else the mean."""
        if not self.drawn:
            return rate
        return math.copysign(max(abs(rate) - STANDARD_ERRORS * terms.std() / len(terms) ** 0.5, 0), rate)

    def defects(self, degree: int = 4, features: Sequence[Expr] | None = None) -> dict[Expr, float]:
        """E[L phi] over E|f . grad phi| + E|T D : hess phi|, by monomial of the features."""
        blocks = [b for b in self.state if not b.domain.is_discrete]
        chosen = features or usual_features(blocks, [b for b in blocks if b.domain.reflects], self.turned)
        of_blocks = [phi for phi in chosen if phi not in self.state or phi in blocks]
        values = cache(self.at)
        defects = {}

        def derivative(phi, *by):
            if not phi.is_polynomial(*blocks):
                slope = diff(phi, *by)
                return None if slope == 0 else values(slope)
            factor, rest = S.One, phi
            for b in by:
                power = rest.as_powers_dict().get(b, 0)
                factor, rest = factor * power, rest / b
            return float(factor) * values(rest) if factor else None

        for phi in (Mul(*c) for d in range(1, degree + 1) for c in combinations_with_replacement(of_blocks, d)):
            rate, scale = self.mean(partial(derivative, phi))
            defects[phi] = rate / scale if scale else 0.0
        return defects

    def heating(self) -> dict[tuple[Block, ...], float]:
        """E[L phi] for each independent summand phi of H, by the blocks of phi."""

        def derivative(phi, *by):
            slope = diff(phi, *by)
            return None if slope == 0 else self.at(slope)

        return {blocks: self.mean(partial(derivative, phi))[0] for phi, blocks in separate(self.H, self.state)}
