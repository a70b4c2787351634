"""The oracle of the joint calculus: a recipe written out over n explicit sites, in plain sympy.

A vector block p becomes the coordinates p_1, ..., p_n, total(f) the sum f_1 + ... + f_n, potential(theta) an opaque
U(theta_1, ..., theta_n). D and Q become matrices over all coordinates: an entry of two vector blocks couples equal
sites only, an entry of a vector and a scalar block couples every site to the scalar. Gamma, the drift and the
Fokker-Planck residual are then the textbook formulas. Nothing here uses recipe.derive, recipe.algebra or d(total)/dz.
"""

import random
from functools import cached_property

from sympy import Add, Derivative, Function, Matrix, Rational, Symbol, diff, exp, expand
from sympy.core.function import AppliedUndef

from recipe.symbols import Block, Parameter, Partial, Potential, Total


def symbol(s, site):
    """The plain symbol of a block or parameter: one for each site if it has a value per site."""
    name = f"{s.name}_{site}" if s.is_vector else s.name
    return Symbol(name, real=True, positive=s.is_positive, nonnegative=s.is_nonnegative)


def at_site(expression, site, n):
    """The expression as site number `site` of n sees it, in plain symbols (`site` is None for one value per chain)."""

    def again(e):
        return at_site(e, site, n)

    match expression:
        case Total():
            return Add(*(at_site(expression.integrand, k, n) for k in range(1, n + 1)))
        case Potential():
            return Function("U", real=True)(*(z for b in expression.blocks for z in coordinates(b, n)))
        case Partial():
            return diff(again(expression.U), *(symbol(b, site) for b in expression.variables))
        case Block() | Parameter():
            return symbol(expression, site)
    return expression.func(*map(again, expression.args)) if expression.args else expression


def sites(block, n):
    """The numbers of a block's sites."""
    return range(1, n + 1) if block.is_vector else [None]


def coordinates(block, n):
    """The plain symbols of one block."""
    return [symbol(block, site) for site in sites(block, n)]


class Expanded:
    """A recipe over n explicit sites: coordinates z, energy H, joint D and Q, and what follows from them."""

    def __init__(self, recipe, n):
        self.n, self.rows = n, [(i, b, site) for i, b in enumerate(recipe.state) for site in sites(b, n)]
        self.z = [symbol(b, site) for _, b, site in self.rows]
        self.H = at_site(recipe.H, None, n)
        self.D, self.Q = self.joint(recipe.D), self.joint(recipe.Q)

    def joint(self, matrix):
        """The matrix over coordinates of a matrix over blocks."""

        def entry(row, column):
            (i, a, k), (j, b, l) = self.rows[row], self.rows[column]
            if a.is_vector and b.is_vector and k != l:
                return 0
            return at_site(matrix[i, j], k or l, self.n)

        return Matrix(len(self.z), len(self.z), entry)

    def column(self, blocks):
        """The column over coordinates of a column over blocks."""
        return Matrix([at_site(blocks[i], site, self.n) for i, _, site in self.rows])

    @cached_property
    def gamma(self):
        """Gamma_i = sum_j d(D+Q)_ij/dz_j."""
        A = self.D + self.Q
        return Matrix([sum(diff(A[i, j], z) for j, z in enumerate(self.z)) for i in range(len(self.z))])

    @cached_property
    def drift(self):
        """-(D+Q) grad H + Gamma."""
        return self.gamma - (self.D + self.Q) * Matrix([diff(self.H, z) for z in self.z])

    def residual(self, drift):
        """The Fokker-Planck operator on rho = exp(-H): (-div(drift rho) + sum d_i d_j (D_ij rho)) / rho."""
        rho = exp(-self.H)
        flow = sum(-diff(f * rho, z) for f, z in zip(drift, self.z))
        spread = sum(
            diff(self.D[i, j] * rho, x, y)
            for i, x in enumerate(self.z)
            for j, y in enumerate(self.z)
            if self.D[i, j] != 0
        )
        return expand((flow + spread) / rho, power_exp=False)


def is_zero(expression, points=6) -> bool:
    """Whether a plain expression is 0, opaque functions and their derivatives being independent numbers."""
    expression = expand(expression, power_exp=False)
    draw = random.Random(7)
    for _ in range(points):
        value = expression
        for kind in (Derivative, AppliedUndef, Symbol):
            for atom in sorted(value.atoms(kind), key=str):
                number = Rational(draw.randint(1, 40), 16)
                sign = 1 if atom.is_nonnegative else draw.choice([-1, 1])
                value = value.xreplace({atom: sign * number})
        if abs(value.evalf(30, maxn=200)) > 1e-20:
            return False
    return True
