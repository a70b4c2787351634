"""Operators that are functions of theta, called fields: their divergence and their slopes, in Gamma and in grad H."""

from collections.abc import Collection
from typing import Any

from sympy import Add, Expr, Mul, S, Symbol, diff, expand

from .declared import Block
from .ensembles import Outer
from .errors import RecipeError
from .spheres import projections_of
from .symbols import Crossing, Partial, Total


def operators_of(e: Expr) -> set[Any]:
    """The operators that an expression reads, outer products among them."""
    return {s for s in e.free_symbols if getattr(s, "is_operator", False)} | e.atoms(Outer)


def fields_of(e: Expr) -> set[Any]:
    """The fields in an expression: operators that are functions of a block."""
    return {s for s in operators_of(e) if getattr(s, "at", None) is not None}


def outer_products(e: Expr) -> list[Outer]:
    """The outer products in an expression, in a fixed order."""
    return sorted(e.atoms(Outer), key=str)


def reads(e: Expr, b: Block) -> bool:
    """Whether an expression reads a block, itself or through a field at this block."""
    return e.has(b) or any(M.at == b for M in fields_of(e))


def couples(e: Expr, first: Collection[Block], second: Collection[Block]) -> bool:
    """Whether a term of a sum reads one of the `first` blocks and one of the `second`."""
    terms = Add.make_args(e)
    return any(any(reads(t, b) for b in first) and any(reads(t, b) for b in second) for t in terms)


def divergence(entry: Expr, s: Symbol) -> Expr:
    """The row divergence, by a block s, of an entry of D or Q that is linear in fields, projections, outer products."""
    fields = sorted((M for M in fields_of(entry) if M.at == s), key=str)
    slopes = [diff(entry, M) * Divergence(M) for M in fields]
    slopes += [diff(entry, P) * P.divergence for P in projections_of(entry) if P.on == s]
    return Add(*slopes, *(expand(entry).coeff(x) * x.divergence(s) for x in outer_products(entry)))


def transposed(F: Expr) -> Expr:
    """The transpose of a formula of operators: skew operators change their sign."""
    return F.xreplace({s: -s for s in skew_operators(F)})


def is_skew(F: Expr) -> bool:
    """Whether a formula of an operator is a skew matrix."""
    return transposed(F) == -F


def skew_operators(F: Expr) -> set[Symbol]:
    """The skew operators in a formula."""
    return {s for s in operators_of(F) if getattr(s, "matrix_kind", "") == "skew"}


class Divergence(Crossing):
    """sum_j dM_ij/dtheta_j at each site i, for an operator M that is a function of theta."""

    text_form, latex_form = "divergence({})", r"\nabla\!\cdot {}"

    def __new__(cls, M):
        return Expr.__new__(cls, M)

    def _eval_derivative(self, s):
        return SlopeOfDivergence(*self.args) if s in self.free_symbols else S.Zero


class SlopeOfDivergence(Crossing):
    """The derivative of the divergence at site i by the block at site i; its total is 0 for a skew operator."""

    text_form = "diagonal(d divergence({}))"

    def summed(self, integrand: Expr) -> Expr:
        """0 for a skew operator, else the integrand."""
        return S.Zero if integrand == self and is_skew(self.args[0]) else integrand


class SlopeOfRow(Crossing):
    """sum_k dF_ik/dtheta_i e_k at site i; its total over sites is the total of e times the divergence of F^T."""

    text_form = "diagonal((d {})({}))"

    def summed(self, integrand: Expr) -> Expr:
        """e times the divergence of the transpose."""
        M, e = self.args
        sign = -1 if is_skew(M) else 1
        return sign * e * Divergence(M) if integrand == self else integrand


class SlopeOfTotal(Crossing):
    """The derivative of a total at each site of theta through its field, at fixed values of all else.

    Of total(w F(e)), with w and e free of fields, it is sum_ij w_i dF_ij/dtheta_k e_j at site k; of the trace of F it
    is tr(F'(G) dG/dtheta_k).
    """

    text_form, latex_form = "slope({}, {})", r"\partial_{{{1}}} {0}"

    def __new__(cls, whole: Expr, s: Block) -> Expr:
        if whole.is_Add:
            return Add(*(cls(term, s) for term in whole.args))
        sums = [f for f in Mul.make_args(whole) if isinstance(f, Total)]
        if not any(M.at == s for f in sums for M in fields_of(f)):
            return S.Zero
        (factor,) = sums
        return whole / factor * Expr.__new__(cls, factor, s)

    @property
    def form(self) -> tuple[Expr, Expr, Expr] | None:
        """(w, F, e) of total(w F(e)); None of a trace."""
        factors = Mul.make_args(self.args[0].integrand)
        crossing = next(f for f in (x.as_base_exp()[0] for x in factors) if isinstance(f, Crossing))
        return (self.args[0].integrand / crossing, *crossing.args) if len(crossing.args) > 1 else None

    def _eval_derivative(self, s):
        whole, at = self.args
        if not getattr(s, "is_vector", False):
            return SlopeOfTotal(diff(whole, s), at)
        if self.form is None and s != at:
            return S.Zero
        w, F, e = self.form or (S.Zero,) * 3
        if s == at or any(x.has(s) for part in (w, e) for x in part.atoms(Total, Crossing, Partial)):
            raise RecipeError(f"d {self}/d{s}", "it is not known", do="Let a field act on a momentum in H.")
        return diff(w, s) * SlopeOfRow(F, e) + diff(e, s) * SlopeOfRow(transposed(F), w)
