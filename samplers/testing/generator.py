"""The generator of an SDE against its law, by quadrature or by exact draws: E[L phi] = 0 for every phi.

L phi = f . grad phi + T D : hess phi is the generator of dz = f dt + sqrt(2TD) dW. From a start at exp(-H/T), E[L phi]
is d/dt E[phi(z_t)], 0 for every phi if that law is invariant.
"""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
from sympy import Expr, ImmutableMatrix, Mul, S, Symbol, diff

from recipe.algebra import at_one_site, entries
from recipe.arrays import of_arrays, whole_power
from recipe.symbols import Block

from .densities import closed, density, separate
from .features import features as usual_features

BOUND = 1e-4  # right drifts are below 1e-9, wrong ones above 2e-2
STANDARD_ERRORS = 7.5  # of a mean of draws, exceeded by a right one once in 1e13 times


def generator_at_one_site(
    drift: Sequence[Expr],
    D: ImmutableMatrix,
    H: Expr,
    state: Sequence[Block],
    *,
    energy: Any = None,
    values: Mapping | None = None,
    temperature: float = 1.0,
) -> "Generator":
    """The generator of dz = f dt + sqrt(2TD) dW, f at the temperature T, under exp(-H/T) of one site.

    Means are by quadrature: 0 to rounding where that law is invariant. Other arguments and errors are those of
    `density`.

    >>> from recipe import vector, positive, potential, total, grad
    >>> theta, p, C = vector("theta"), vector("p"), positive("C", default=0.7)
    >>> U = potential(theta)
    >>> H, D = U + total(p**2)/2, ImmutableMatrix([[0, 0], [0, C]])
    >>> wrong = generator_at_one_site([p, -grad(U)], D, H, (theta, p)).defects(degree=2)
    >>> {str(phi): round(x, 3) + 0.0 for phi, x in wrong.items()}
    {'theta': 0.0, 'p': 0.0, 'theta**2': 0.0, 'p*theta': 0.0, 'p**2': 0.449}
    """
    options: dict[str, Any] = {"energy": energy, "values": values, "temperature": temperature}
    number = closed(**options)
    rows, D = [at_one_site(number(e)) for e in drift], D.applyfunc(lambda e: at_one_site(number(e)))
    points, weights = density(H, state, integrands=[*rows, *D], **options)
    return Generator(state, rows, D, points, weights, H=at_one_site(number(H)), temperature=temperature)


class Generator:
    """E[L phi] under a law that is given by points and weights.

    `drift`, `D` and `H`: expressions of the coordinates `state` and numbers; `jumps`: new values by coordinate, each
    with its rate times T, which add rate (phi(F(z)) - phi(z)) to L phi. `drawn`: whether points are independent
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
        jumps: Sequence[tuple[Mapping[Symbol, Expr], Expr]] = (),
        temperature: float = 1.0,
        drawn: bool = False,
    ):
        self.state = tuple(state)
        self.H = H
        self.weights = weights
        self.drawn = drawn
        self.points = [points[b] for b in self.state]
        self._known = cache(self._at)
        T = float(temperature)
        self.jumps = [(images, self._at(rate) / T) for images, rate in jumps]
        self.drift = [(b, self._at(e)) for b, e in zip(self.state, drift) if e != 0]
        # by block without noise of its own: the blocks in its drift, which turn where it is reflected
        self.turned = {
            b: [c for c in self.state if c != b and drift[i].has(c)] for i, b in enumerate(self.state) if D[i, i] == 0
        }
        self.noise = [(self.state[i], self.state[j], T * self._at(e)) for (i, j), e in entries(D).items()]

    def _at(self, e):
        """The values of a formula at the points."""
        powers = e.as_powers_dict()
        if all(b in self.state and k.is_Integer and k > 0 for b, k in powers.items()):
            factors = (whole_power(x, int(powers[b])) for b, x in zip(self.state, self.points) if b in powers)
            return math.prod(factors, start=np.ones_like(self.weights))
        return np.broadcast_to(of_arrays([self.state], e)(self.points), self.weights.shape)

    def _derivative(self, phi, *by):
        """The values of a derivative of phi at the points; None where it is 0 everywhere."""
        factor, rest = diff(phi, *by).as_coeff_Mul()
        return float(factor) * self._known(rest) if factor else None

    def _mean(self, phi):
        """E[L phi], of draws the part beyond STANDARD_ERRORS, and the sum of the E| | of its terms."""
        nothing = np.zeros_like(self.weights)
        slopes = ((f, self._derivative(phi, b)) for b, f in self.drift)
        curvatures = ((D, self._derivative(phi, a, b)) for a, b, D in self.noise)
        first = sum((f * d for f, d in slopes if d is not None), nothing)
        second = sum((D * d for D, d in curvatures if d is not None), nothing)
        second = sum((rate * self._at(phi.xreplace(images) - phi) for images, rate in self.jumps), second)
        rate = float(self.weights @ (first + second))
        if self.drawn:
            chance = STANDARD_ERRORS * (first + second).std() / len(first) ** 0.5
            rate = math.copysign(max(abs(rate) - chance, 0), rate)
        return rate, float(self.weights @ abs(first) + self.weights @ abs(second))

    def defects(self, degree: int = 4, features: Sequence[Expr] | None = None) -> dict[Expr, float]:
        """E[L phi] over the sum of the E| | of its terms, by monomial of the features."""
        blocks = [b for b in self.state if not b.domain.is_discrete]
        chosen = features or usual_features(blocks, [b for b in blocks if b.domain.reflects], self.turned)
        of_blocks = [phi for phi in chosen if phi not in self.state or phi in blocks]
        defects = {}
        for phi in (Mul(*c) for d in range(1, degree + 1) for c in combinations_with_replacement(of_blocks, d)):
            rate, scale = self._mean(phi)
            defects[phi] = rate / scale if scale else 0.0
        return defects

    def heating(self) -> dict[tuple[Block, ...], float]:
        """E[L phi] for each independent summand phi of H, by the blocks of phi."""
        return {blocks: self._mean(phi)[0] for phi, blocks in separate(self.H, self.state)}
