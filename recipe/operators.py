"""Linear operators on vectors: matrices over the sites of a chain, in D and Q, and applied to blocks in H.

A symbol M stands for a matrix given when a chain runs. In D and Q a formula F(M) is a matrix over the sites; M(e) is
the product of M and an expression e with one value per site, M.inverse(e) the product with the inverse. Formulas of one
operator commute, and are evaluated on its eigenvalues; formulas of two operators do not commute, and act one after the
other. Sums over sites use the adjoint, total(f M(e)) = total(e M^T(f)): for the gradient of H, and to show that a skew
operator does no work.
"""

from functools import lru_cache

from sympy import Add, Dummy, Expr, Mul, Piecewise, S, Symbol, diff, expand, expand_log, log
from sympy.printing.precedence import PRECEDENCE

from .calculus import derivative, expanded
from .declared import Block, Parameter
from .domains import NAMED
from .ensembles import Outer
from .errors import RecipeError
from .fields import SlopeOfRow, SlopeOfTotal, fields_of, is_skew, operators_of, skew_operators, transposed
from .formulas import formula
from .spheres import product, projections_of
from .symbols import Crossing, Partial, SiteDummy, Total, is_site, masked, total

# Sign of the eigenvalues (imaginary for a skew operator), and the kind in words, by kind.
KINDS = {
    "definite": ("positive", "symmetric and positive definite"),
    "semidefinite": ("nonnegative", "symmetric and positive semidefinite"),
    "symmetric": ("real", "symmetric"),
    "skew": ("real", "skew"),
}
FORMS = 64  # number of equal forms of a sum over sites that are compared


class Operator(Parameter):
    """Symbol of a matrix over the sites, of a `kind`: a constant, or a function of the block `at`, called a field."""

    __slots__ = ("matrix_kind", "at")
    fields = (*Parameter.fields, "matrix_kind", "at")
    what = "operator"
    matrix_kind: str
    at: Block | None
    is_operator = True

    def __new__(cls, name, kind="definite", doc="", at=None):
        """A symbol with the sign of the eigenvalues as its assumption."""
        sign = KINDS[kind][0]
        return cls._of(name, NAMED[sign].signs, sign, None, doc, None, kind, at)

    def __getnewargs_ex__(self):
        return (self.name, self.matrix_kind, self.doc, self.at), {}

    @property
    def free_symbols(self) -> set:
        """The operator itself, and the block that a field is a function of."""
        return {self} if self.at is None else {self, self.at}

    @property
    def range_in_words(self) -> str:
        """The kind of the operator in words."""
        return f"{self.matrix_kind} operator"

    def __call__(self, e: Expr) -> Expr:
        """The product of the operator and an expression with one value per site."""
        return times(self, formula(e, f"{self}(...)"))

    def inverse(self, e: Expr) -> Expr:
        """The product of the inverse of the operator and an expression with one value per site."""
        return times(1 / self, formula(e, f"{self}.inverse(...)"))


def logdet(M: Expr) -> Expr:
    """log det F(M) of a formula of a definite operator: the sum over sites of the diagonal of log F(M).

    A metric G that is a function of theta has temperature*logdet(G)/2 in H, so that the integral of
    exp(-p.G^-1 p/(2 T)) over p takes nothing off exp(-U/T). Raises RecipeError for what is no definite operator.

    >>> from recipe import vector
    >>> G = operator("G", at=vector("theta"))
    >>> logdet(G), logdet(1/G)
    (total(diagonal(log(G))), -total(diagonal(log(G))))
    """
    F = formula(M, "logdet")
    if not (is_operator(F) and F.is_positive):
        raise RecipeError("logdet", f"{F} is no definite operator", do='Declare G = operator("G", at=theta).')
    return total(Diagonal(expand_log(log(F))))


def operator(name: str, *, kind: str = "definite", at: Block | None = None, doc: str = "") -> Operator:
    """A matrix M over the sites of a chain, given as `sample(..., M=matrix)`: dense, or of a structure.

    `kind`: "definite", symmetric with eigenvalues above 0; "semidefinite", from 0 on; "symmetric"; or "skew". In D and
    Q write `{theta: M}` or `{theta: 1/M}`, in H `total(p*M.inverse(p))/2`; a skew operator belongs on the diagonal of
    Q. Values are of `integrators.operators`. `at`: a vector block of which M is a function, given as
    `M=Field(matrix, divergence)`; in the row of that block it is the only entry, with its divergence in Gamma, which is
    not needed elsewhere: in the row of a momentum, or in H, where a metric is applied to one and has its `logdet`.
    Raises RecipeError for an unknown kind, and if `at` is not a vector block.

    >>> from recipe import total, vector
    >>> p, M = vector("p"), operator("M")
    >>> (total(p*M.inverse(p))/2).diff(p), M(2*p + 1)
    ((1/M)(p), M(1) + 2*M(p))
    """
    if kind not in KINDS:
        raise RecipeError(f"operator {name!r}", f"unknown kind {kind!r}", do=f"Use one of {', '.join(KINDS)}.")
    if at is not None and not (isinstance(at, Block) and at.is_vector):
        raise RecipeError(f"operator {name!r}", f"it is at a vector of the state, got {at!r}", do="Pass at=theta.")
    return Operator(name, kind, doc, at)


def is_operator(e: Expr) -> bool:
    """Whether a formula is a matrix over the sites, made of operators."""
    return bool(operators_of(e)) and not is_site(e)


def parts(F: Expr) -> list[tuple[Expr, Expr]]:
    """The terms of a sum as (formula of operators or 1, coefficient free of operators).

    >>> from recipe import positive
    >>> M, a = operator("M"), positive("a")
    >>> parts(1/(1 + M) + 2*a*M)
    [(1/(M + 1), 1), (M, 2*a)]
    """
    split = []
    for term in Add.make_args(F):
        inside = [f for f in Mul.make_args(term) if operators_of(f)]
        outside = [f for f in Mul.make_args(term) if not operators_of(f)]
        split.append((Mul(*inside), Mul(*outside)))
    return split


def _by_site(product: Expr) -> tuple[Expr, Expr]:
    factors = Mul.make_args(product)
    return Mul(*filter(is_site, factors)), Mul(*(f for f in factors if not is_site(f)))


def times(F: Expr, e: Expr) -> Expr:
    """The product F e of a number or a formula of operators F and an expression with one value per site.

    >>> from recipe import vector
    >>> p, M = vector("p"), operator("M")
    >>> times(3, p), times(1/M, M(p))
    (3*p, p)
    """
    F = S(F)
    if operators_of(F) and is_site(F) and F.is_Add:
        return Add(*(times(term, e) for term in F.args))
    if projections_of(F):
        return Add(*(product(term, e) if projections_of(term) else times(term, e) for term in Add.make_args(F)))
    return Applied(F, e) if is_operator(F) else F * e


class Applied(Crossing):
    """F(M) e for a formula F of one operator and an expression e: linear in both, with factors by chain outside."""

    def __new__(cls, F, e):
        (inside, outside), *rest = parts(F)
        if rest or outside is not S.One:
            return Add(*(k * times(part, e) for part, k in parts(F)))
        if isinstance(F, Outer):
            return expand(F.applied(e))
        e = expand(e)
        if e.is_Add:
            return Add(*(cls(F, term) for term in e.args))
        e, constant = _by_site(e)
        if constant is not S.One:
            return S.Zero if constant is S.Zero else constant * cls(F, e)
        if isinstance(e, Applied) and operators_of(e.formula) == operators_of(F):
            return times(F * e.formula, e.argument)
        return Expr.__new__(cls, F, e)

    @property
    def formula(self) -> Expr:
        """The formula of the operator."""
        return self.args[0]

    @property
    def argument(self) -> Expr:
        """The expression that the operator is applied to."""
        return self.args[1]

    def at_one_site(self) -> Expr:
        """The product for a chain with a single site."""
        return _of_one_site(self.formula) * self.argument

    def _eval_derivative(self, s):
        if getattr(s, "is_vector", False):
            slope = Slope(self.formula, self.argument, s)
            return slope + SlopeOfRow(self.formula, self.argument) if _is_at(self.formula, s) else slope
        return times(diff(self.formula, s), self.argument) + times(self.formula, diff(self.argument, s))

    def pulled_back(self, weight: Expr, s: Symbol) -> Expr:
        """d total(weight F(e))/ds at the site of s, at fixed weight: d total(F^T(weight) e)/ds, and through a field."""
        held = SiteDummy("weight", real=True)
        slope = Total(held * self.argument).diff(s).xreplace({held: times(transposed(self.formula), weight)})
        if not _is_at(self.formula, s):
            return slope
        if _is_at(weight, s) or _is_at(self.argument, s):
            return super().pulled_back(weight, s)
        return slope + SlopeOfTotal(Total(weight * self), s)

    def summed(self, integrand: Expr) -> Expr:
        """The simplest integrand with an equal sum, or 0."""
        integrand = expand(integrand)
        return integrand if integrand.is_Add else _simplest(integrand)

    def _sympystr(self, printer):
        F = printer._print(self.formula)
        return f"{F if self.formula.is_Symbol else f'({F})'}({printer._print(self.argument)})"

    def _latex(self, printer):
        F, e = printer._print(self.formula), printer._print(self.argument)
        if self.formula.is_Pow and self.formula.exp == -1:
            F = f"{printer.parenthesize(self.formula.base, PRECEDENCE['Pow'])}^{{-1}}"
        elif not self.formula.is_Symbol:
            F = rf"\left({F}\right)"
        if not self.argument.is_Symbol:
            e = rf"\left({e}\right)"
        return f"{F} {e}"


class Diagonal(Crossing):
    """The diagonal of a formula of an operator, one value per site; 0 for a skew operator."""

    text_form, latex_form = "diagonal({})", r"\mathrm{{diag}}\left({}\right)"

    def __new__(cls, F):
        (inside, outside), *rest = parts(F)
        if rest or outside is not S.One:
            return Add(*(k * (cls(part) if operators_of(part) else part) for part, k in parts(F)))
        return S.Zero if is_skew(F) else Expr.__new__(cls, F)

    def pulled_back(self, weight: Expr, s: Symbol) -> Expr:
        """d total(weight F_ii)/ds at the site of s, at fixed weight: of a field, for a weight per chain."""
        if not _is_at(self, s):
            return S.Zero
        return super().pulled_back(weight, s) if is_site(weight) else weight * SlopeOfTotal(Total(self), s)

    def _eval_is_positive(self):
        return True if self.args[0].is_positive else None

    def _eval_is_nonnegative(self):
        return True if self.args[0].is_nonnegative else None

    def _eval_is_nonzero(self):
        return self._eval_is_positive()

    def _eval_derivative(self, s):
        return S.Zero if s not in self.free_symbols else Diagonal(diff(self.args[0], s))

    def at_one_site(self) -> Expr:
        """The entry of the matrix for a chain with a single site."""
        return _of_one_site(self.args[0])


class Slope(Crossing):
    """sum_k F_ik de_k/ds_i, the derivative of F(e) at site i by the value of s there.

    If e at a site reads that site only, the sum is F_ii de_i/ds_i; its total over sites is 0 for skew F and gradient e.
    """

    text_form = "diagonal(({}) d({})/d{})"

    def __new__(cls, F, e, s):
        if s not in e.free_symbols:
            return S.Zero
        if not any(x.has(s) for x in e.atoms(Total, Crossing, Partial)):
            return diff(e, s) * Diagonal(F)
        return Expr.__new__(cls, F, e, s)

    def at_one_site(self) -> Expr:
        """The derivative for a chain with a single site."""
        F, e, s = self.args
        return _of_one_site(F) * diff(e, s)

    def summed(self, integrand: Expr) -> Expr:
        """0 for a skew operator applied to a gradient, whose derivative is symmetric; else the integrand."""
        F, e, s = self.args
        return S.Zero if integrand == self and is_skew(F) and _is_gradient(e, s) else integrand


def _is_at(e: Expr, s: Symbol) -> bool:
    """Whether an expression reads a field at a block."""
    return any(M.at == s for M in fields_of(e))


def _is_gradient(e: Expr, s: Symbol) -> bool:
    """Whether an expression is known to be a gradient by s: dU/ds, or a symmetric matrix times s."""
    if isinstance(e, Partial):
        return e.variables == (s,)
    return isinstance(e, Applied) and e.argument == s and transposed(e.formula) == e.formula


def _of_one_site(F: Expr) -> Expr:
    """A formula of operators for a chain with a single site, where a skew matrix is 0."""
    return F.xreplace(dict.fromkeys(skew_operators(F), S.Zero))


@lru_cache(maxsize=4096)
def _simplest(integrand: Expr) -> Expr:
    """The integrand with the fewest operators among equal sums, total(f F(e)) = total(e F^T(f)); 0 if antisymmetric."""
    signs = {integrand: S.One}
    forms = [integrand]
    for form in forms:
        for factor in _applied_factors(form):
            other = factor.argument * times(transposed(factor.formula), form / factor)
            other, constant = _by_site(other)
            sign = constant * signs[form]
            if other not in signs and len(forms) < FORMS:
                signs[other] = sign
                forms.append(other)
            elif signs.get(other, sign) != sign:
                return S.Zero
    best = min(forms, key=lambda form: (_length(form), str(form)))
    return signs[best] * best


def _applied_factors(product: Expr) -> list["Applied"]:
    """The factors of a product, and bases of its powers, that apply an operator with a known transpose."""
    bases = [f.base if f.is_Pow and f.exp.is_Integer and f.exp > 0 else f for f in Mul.make_args(product)]
    known = [f for f in bases if isinstance(f, Applied)]
    return [f for f in known if all(isinstance(s, Operator) for s in operators_of(f.formula))]


def _length(e: Expr) -> int:
    """The number of applied operators in an expression, nested ones included."""
    return isinstance(e, Applied) + sum(map(_length, e.args))


def coefficient(e: Expr, block: Symbol) -> tuple[Expr, Expr] | None:
    """(a, c) with e = a(block) + c, for a number or formula of one operator a, both free of the block; or None.

    >>> from recipe import vector
    >>> p, theta, M = vector("p"), vector("theta"), operator("M")
    >>> coefficient(2*p - M(p) + theta, p)
    (2 - M, theta)
    """
    e = expanded(e)
    names = {x: Dummy() for x in e.atoms(Applied) if x.argument == block}
    if any(x.has(block) for x in e.atoms(Total, Partial, Crossing) - names.keys()):
        return None
    plain = e.xreplace(names)
    moving = (block, *names.values())
    slopes = [derivative(plain, x) for x in moving]
    chosen = any(choice.has(*moving) for choice in plain.atoms(Piecewise))  # of slope 0, and not constant
    if chosen or any(k.has(*moving) or names and is_site(k) for k in slopes):
        return None
    c = plain.xreplace(dict.fromkeys(moving, S.Zero))
    a = slopes[0] + Add(*(k * x.formula for k, x in zip(slopes[1:], names)))
    return (a, c) if len(operators_of(a)) <= 1 else None


def bare(e: Expr) -> set[Symbol]:
    """The operators in an expression that are not applied to anything."""
    return operators_of(masked(e, Crossing)[0])
