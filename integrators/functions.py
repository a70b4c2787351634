"""Functions in closed forms that sympy lacks; every backend prints all of them."""

import math

from sympy import Expr, Function, Piecewise, S, Symbol, exp

from recipe.symbols import Total


class phi1(Function):
    """(e^x - 1)/x, and 1 at 0: the response of a linear equation to a constant force."""

    is_real = is_positive = True
    nargs = 1

    @classmethod
    def eval(cls, x: Expr) -> Expr | None:
        """1 at 0, else unevaluated."""
        return S.One if x == 0 else None

    def fdiff(self, argindex: int = 1) -> Expr:
        """d phi1/dx = (e^x - phi1(x))/x."""
        x = self.args[0]
        return (exp(x) - phi1(x)) / x

    @staticmethod
    def value(x: float) -> float:
        """The number phi1(x)."""
        return math.expm1(x) / x if x else 1.0


class braked(Function):
    """y after a time s of dy/ds = -y/sqrt(1 + y^2).

    F(|y|) falls by s, with F(y) = sqrt(1 + y^2) + log(y/(1 + sqrt(1 + y^2))).
    """

    is_real = True

    @classmethod
    def eval(cls, y: Expr, s: Expr) -> Expr | None:
        """y at s = 0, else unevaluated."""
        return y if s == 0 else None


class wrapped(Function):
    """x wrapped around the circle from low to high."""

    is_real = True
    nargs = 3

    def fdiff(self, argindex: int = 1) -> Expr:
        """1 in x."""
        return S.One


class folded(Function):
    """x on the line, folded between low and high: a path reflected at both ends."""

    is_real = True
    nargs = 3

    def fdiff(self, argindex: int = 1) -> Expr:
        """1 or -1 in x."""
        return turned(*self.args)


class turned(Function):
    """-1 if folding x between low and high takes an odd number of reflections, else 1.

    `high` may be infinite.
    """

    is_real = True
    nargs = 3

    def fdiff(self, argindex: int = 1) -> Expr:
        """0 in x, away from the jumps."""
        return S.Zero

    @classmethod
    def eval(cls, x: Expr, low: Expr, high: Expr) -> Expr | None:
        """The sign of x - low if high is infinite, else unevaluated."""
        return Piecewise((S.One, x >= low), (-S.One, True)) if high.is_infinite else None


AT_ENDS = (wrapped, folded, turned)


class MatrixFunction(Function):
    """An entry (part, row, column) of matrices that a step computes together from a `system`."""

    is_real = True
    part = property(lambda self: self.args[0].name)
    row = property(lambda self: int(self.args[1]))
    column = property(lambda self: int(self.args[2]))
    system = property(lambda self: self.args[3:])

    @property
    def siblings(self) -> tuple["MatrixFunction", ...]:
        """All entries of the matrices of the same system."""
        size = range(int(self.system[0]))
        return tuple(
            type(self)(Symbol(part), i, j, *self.system)
            for part in self.parts
            for i in size
            for j in size
            if j <= i or not self.is_triangular
        )


class MatrixOU(MatrixFunction):
    """The solution of dx = (-A x + c) dt + sqrt(2D) dW over a time; the system is the size, the time, A and D.

    Part M is e^{-At}, J is int_0^t e^{-As} ds, L a square root of the covariance.
    """

    parts = "MJL"
    is_triangular = False
    text = "matrix_ou"


class SquareRoot(MatrixFunction):
    """The lower Cholesky factor of a positive semidefinite matrix; the system is the size and the matrix."""

    parts = "L"
    is_triangular = True
    text = "square_root"


class Change(Total):
    """The difference of two values of a chain; of sums over sites the sum of the differences by site, not split.

    >>> from recipe import total, vector
    >>> p, q = vector("p"), vector("q")
    >>> Change(p**2, q**2), Change(total(p), total(q)).integrand
    (total(p**2 - q**2), total(p) - total(q))
    """

    def __new__(cls, after, before):
        return Expr.__new__(cls, after, before)

    @property
    def integrand(self) -> Expr:
        """The difference, by site where there are sites."""
        after, before = self.args
        return after - before


class Unit(Expr):
    """w over its length, sqrt(total(w^2)): the point of the unit sphere in the direction of w, the `integrand`."""

    is_commutative = is_real = True
    integrand = property(lambda self: self.args[0])


class HalfStep(Expr):
    """x + e(x) for a block x, or the solution y of y = x + e(y) if it `is_implicit`, by iteration from x.

    Iterations settle at a change of eps^(3/4) of the largest site. A chain is lost (nan) where they do not settle, or
    where those from x + e(x) do not lead back to x, up to ten times that.
    """

    is_commutative = is_real = True
    block = property(lambda self: self.args[0])
    change = property(lambda self: self.args[1])
    is_implicit = property(lambda self: bool(self.args[2]))
