"""Ensembles: particles that read one another, and outer products of vectors as entries of D.

The state of a chain holds N particles, each with the target's sites. Sums over particles are sums of blocks, and the
law to prove is the product of exp(-U) over the particles.
"""

from sympy import Expr, S

from .arguments import integer
from .calculus import derivative
from .declared import Block, vector
from .errors import RecipeError
from .formulas import formula
from .symbols import Crossing, Partial, Total, Written, is_site, masked, total


class Outer(Written):
    """The matrix v v^T over the sites of a chain, of an expression v with one value per site, for D."""

    text_form = "outer({})"
    is_nonnegative = True  # as of an operator, the sign of the eigenvalues
    is_operator = True

    def __new__(cls, v):
        return Expr.__new__(cls, v)

    @property
    def vector(self) -> Expr:
        """The expression v."""
        return self.args[0]

    def applied(self, e: Expr) -> Expr:
        """The product v total(v e) with an expression of one value per site."""
        return self.vector * total(self.vector * e)

    def at_one_site(self) -> Expr:
        """The entry of the matrix for a chain with a single site."""
        return self.vector**2

    def divergence(self, s: Block) -> Expr:
        """sum_j d(v_i v_j)/ds_j at each site i: v total(dv/ds) plus the derivative of v along v."""
        v = self.vector
        inner, sums = masked(v, Total)
        along = derivative(inner, s) * v
        for name, whole in sums.items():
            along += derivative(inner, name) * total(whole.diff(s) * v)
        return along.xreplace(sums) + v * total(derivative(v, s))

    def _eval_derivative(self, s):
        """0: what a derivative adds to Gamma is in the divergence."""
        return S.Zero

    def _latex(self, printer):
        v = printer._print(self.vector)
        v = v if self.vector.is_Symbol else rf"\left({v}\right)"
        return rf"{v} {v}^\top"


def outer(v: Expr) -> Expr:
    """The matrix v v^T over the sites of a chain, an entry of D in the row of a vector block.

    Nonnegative numbers times such matrices add up, as in the covariance of an ensemble; Gamma has their divergence, and
    the noise of each is v times one normal number per chain. `v`: an expression with one value per site, of blocks,
    parameters and sums over sites. Raises RecipeError for anything else, as for the gradient of U.

    >>> from recipe import Recipe, potential
    >>> theta = vector("theta")
    >>> Recipe(name="along", state=theta, H=potential(theta), D={theta: 1 + outer(theta)}).drift[0]
    theta*n - theta*total(theta*grad(U)) + theta - grad(U)
    """
    v = formula(v, "outer")
    if v == 0:  # of a particle with itself
        return S.Zero
    if not is_site(v):
        raise RecipeError("outer", f"{v} has no value per site", do="Pass a vector, such as theta - mean.")
    if v.has(Crossing, Partial, Outer):
        do = "Pass a formula of blocks, parameters and sums over sites."
        raise RecipeError("outer", f"the divergence of the outer product of {v} is not known", do=do)
    return Outer(v)


def particles(theta: Block, number: int) -> tuple[Block, ...]:
    """The particles of an ensemble: vectors theta_1, ..., theta_N of the kind of theta, which stands for one of them.

    They are the state and the target of a recipe, with the energies `copies(*ensemble)`. Raises RecipeError unless
    `theta` is a vector and `number` at least 2.

    >>> from recipe import copies
    >>> ensemble = particles(vector("theta"), 3)
    >>> ensemble, sum(copies(*ensemble))
    ((theta_1, theta_2, theta_3), U(theta_1) + U(theta_2) + U(theta_3))
    """
    if not isinstance(theta, Block) or not theta.is_vector:
        raise RecipeError("particles", f"they are vectors, got {theta!r}", do='Pass theta = vector("theta").')
    integer("particles", "number", number, least=2)
    return tuple(vector(f"{theta}_{k}", domain=theta.domain) for k in range(1, number + 1))
