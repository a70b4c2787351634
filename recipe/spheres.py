"""Vectors on the unit sphere: the projection on the tangent space, and derivatives along the surface.

A block u of the domain "sphere" has total(u**2) = 1. Its rows and columns in D and Q are multiples of the projection
P = I - u u^T, which keep it there. With n sites, P has the divergence -(n - 1) u on the surface.
"""

from typing import Any

from sympy import Dummy, Expr, S

from .algebra import vanishes
from .declared import Block, Declared
from .errors import RecipeError
from .formulas import formula
from .symbols import OPAQUE, Total, total


class Projection(Declared):
    """The symbol of the matrix P = I - u u^T of a block u `on` the unit sphere; P(e) is its product with e."""

    __slots__ = ("on",)
    fields = ("on",)
    what = "projection"
    is_operator = True
    matrix_kind = "semidefinite"
    on: Block

    def __new__(cls, u):
        return cls._of(f"P_{u}", {"nonnegative": True}, u)

    def __getnewargs_ex__(self):
        return (self.on,), {}

    @property
    def free_symbols(self) -> set:
        """The projection, and its block."""
        return {self, self.on}

    def __call__(self, e: Expr) -> Expr:
        """The product P e = e - u total(u e) with an expression with one value per site."""
        e = formula(e, f"{self}(...)")
        return e - self.on * total(self.on * e)

    def _eval_power(self, power):
        return self if power.is_positive else None  # the projection is its own square and root

    @property
    def divergence(self) -> Expr:
        """sum_j dP_ij/du_j on the surface, -(n - 1) u."""
        return -self.on * (total(1) - 1)

    def _sympystr(self, printer):
        return f"project({printer._print(self.on)})"

    def _latex(self, printer):
        return rf"P_{{{printer._print(self.on)}}}"


def project(u: Block) -> Projection:
    """The projection P = I - u u^T on the tangent space of the unit sphere at u.

    In the rows and columns of u in D and Q stand its multiples; `project(u)(e)` is e - u total(u e). Raises RecipeError
    unless u is a vector of the domain "sphere".

    >>> from recipe import potential, vector
    >>> theta, u = vector("theta"), vector("u", domain="sphere")
    >>> project(u)(potential(theta).diff(theta)), project(u)(u)
    (-u*total(u*grad(U)) + grad(U), 0)
    """
    if not (isinstance(u, Block) and u.domain.is_sphere):
        raise RecipeError(f"project({u})", "it is of no sphere", do='Declare u = vector("u", domain="sphere").')
    return Projection(u)


def projections_of(e: Expr) -> set[Any]:
    """The projections in an expression."""
    return {s for s in e.free_symbols if isinstance(s, Projection)}


def product(F: Expr, e: Expr) -> Expr:
    """The product of a multiple c P of one projection with an expression, c P e."""
    (P,) = projections_of(F)
    return F / P * P(e)


def is_multiple(F: Expr) -> bool:
    """Whether an entry of D or Q is c P, with a number c per chain that no vector moves."""
    (P, *others) = projections_of(F)
    c = F / P
    vectors = {s for s in c.free_symbols if isinstance(s, Block) and s.is_vector}
    return not others and not c.has(P) and not vectors


def along_surface(f: Expr, slope: Expr, u: Block) -> Expr:
    """The derivative of f by u at its own site, along the surface, from the plain one: `slope` less u times the radial.

    Summed over sites it is the divergence on the sphere of a tangent field f, tr(P df/du).
    """
    if u not in f.free_symbols:
        return slope
    hidden = [x for x in f.atoms(*OPAQUE) if not isinstance(x, Total) and u in x.free_symbols]
    if hidden:
        raise RecipeError(f"d({f})/d{u}", f"the slope of {hidden[0]} is not known", do="Write it in closed form.")
    length = Dummy("length", positive=True)
    return slope - u * f.xreplace({u: length * u}).diff(length).xreplace({length: S.One})


def refuse_normal(f: Expr, u: Block) -> None:
    """Refuse a field f at u that is not tangent, with the component that leads off the sphere."""
    normal = total(u * f)
    if vanishes(normal) is None:
        do = f"Project it: project({u})(...)."
        raise RecipeError(f"drift of {u}", f"it leads off the sphere: total({u}*drift) is {normal}", do=do)
