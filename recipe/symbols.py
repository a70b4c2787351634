"""Formulas of the language: totals, potentials, their derivatives, and opaque functions of declared symbols.

A formula is written for one coordinate, a *site*. A vector block has one value per site, a scalar block one
value per chain, and `total` is the sum over the sites of one chain.
Derivatives follow the joint calculus of all sites: d total(f(p))/dp = f'(p).
"""

from functools import lru_cache

from sympy import Add, Derivative, Dummy, Expr, Function, Mul, S, Symbol, diff
from sympy.core.function import AppliedUndef
from sympy.core.symbol import Str

from .bound import Bound
from .calculus import derivative
from .declared import (  # noqa: F401 (these words of the language are imported from here, too)
    OF_THE_STEP,
    RESERVED,
    Adapted,
    Block,
    DomainName,
    Observed,
    Parameter,
    duration,
    is_fraction,
    is_like,
    num_data,
    scalar,
    signs_named,
    signs_of,
    step_number,
    step_size,
    temperature,
    valid_name,
    vector,
)
from .errors import RecipeError
from .formulas import formula


def is_site(expression: Expr) -> bool:
    """Whether an expression has one value per site (else one per chain, or a plain number).

    >>> p = vector("p")
    >>> is_site(p**2), is_site(total(p**2))
    (True, False)
    """
    match expression:
        case Total() | Potential():
            return False
        case Crossing():
            return True
        case Partial():
            return any(map(is_site, expression.variables))
        case Symbol():
            return getattr(expression, "is_vector", False)
        case _:
            is_matrix = getattr(expression, "is_operator", False)
            return not is_matrix and any(is_site(a) for a in expression.args)


class Written(Expr):
    """A real expression whose text and LaTeX are forms, with {} in the place of each argument."""

    is_commutative = True
    is_real = True
    text_form = ""
    latex_form = ""

    def _sympystr(self, printer):
        return self.text_form.format(*map(printer._print, self.args))

    def _latex(self, printer):
        return self.latex_form.format(*map(printer._print, self.args)) or printer._print_Basic(self)


class Crossing(Written):
    """An expression per site that reads other sites of the chain, such as an operator applied to a vector."""

    def pulled_back(self, weight: Expr, s: Symbol) -> Expr:
        """The derivative of total(weight * self) by the value of s at a site, at fixed weight."""
        raise RecipeError(f"d total({self})/d{s}", "it is not known", do="Write it with operators and sums alone.")

    def summed(self, integrand: Expr) -> Expr:
        """The simplest integrand with the same sum over sites as `integrand`, which has this expression as a factor."""
        return integrand

    def at_one_site(self) -> Expr:
        """The expression for a chain with a single site."""
        return self


class Total(Expr):
    """The sum of a site-level expression over the sites of one chain, split into terms, chain-level factors outside.

    `expand` also expands integrands, so that an expanded expression has a canonical form. Of u^2 on the sphere it is 1.
    """

    def __new__(cls, integrand):
        if integrand.is_Add:
            return Add(*(cls(term) for term in integrand.args))
        factors = Mul.make_args(integrand)
        outside = Mul(*(f for f in factors if not is_site(f)))
        inside = Mul(*(f for f in factors if is_site(f)))
        if outside is S.Zero:
            return S.Zero
        if outside is not S.One:
            return outside * cls(inside)
        if inside.is_Pow and inside.exp == 2 and isinstance(inside.base, Block) and inside.base.domain.is_sphere:
            return S.One
        crossing = next((f for f in (f.as_base_exp()[0] for f in factors) if isinstance(f, Crossing)), None)
        simplest = inside if crossing is None else crossing.summed(inside)
        return Expr.__new__(cls, inside) if simplest == inside else cls(simplest)

    is_commutative = True

    @property
    def integrand(self) -> Expr:
        """The summand of a site."""
        return self.args[0]

    def _eval_is_real(self):
        return self.integrand.is_real

    def _eval_is_positive(self):
        return True if self.integrand.is_positive else None

    def _eval_is_nonnegative(self):
        return True if self.integrand.is_nonnegative else None

    def _eval_is_integer(self):
        return True if self.integrand is S.One else None

    def _eval_derivative(self, s):
        if not (isinstance(s, Block) and s.is_vector):
            return Total(derivative(self.integrand, s))
        if any(s in p.U.blocks and is_site(p) for p in self.integrand.atoms(Partial)):
            do = "Only the Hessian diagonal is available: keep grad(U) outside of total()."
            raise RecipeError(f"d {self}/d{s}", "this derivative needs the full Hessian of U", do=do)
        inner, outer = masked(self.integrand, Total, Potential, Partial, Crossing)
        through = []
        for d, chain in outer.items():
            weight = derivative(inner, d).xreplace(outer)
            crosses = isinstance(chain, Crossing)
            through.append(chain.pulled_back(weight, s) if crosses else Total(weight) * diff(chain, s))
        return derivative(inner, s).xreplace(outer) + Add(*through)

    def _sympystr(self, printer):
        return "n" if self.integrand is S.One else f"total({printer._print(self.integrand)})"

    def _latex(self, printer):
        return "n" if self.integrand is S.One else r"\textstyle\sum " + printer._print(self.integrand)


def total(integrand: Expr | float) -> Expr:
    """The sum over the sites of one chain; `total(1)` is the number of sites n.

    d total(f(p))/dp = f'(p). Raises RecipeError for text, and for anything else but a real formula.

    >>> p, xi = vector("p"), scalar("xi")
    >>> total(xi*p**2 + 1)
    xi*total(p**2) + n
    >>> total(p**2).diff(p)
    2*p
    """
    return Total(formula(integrand, "total"))


COPY = Str("copy")  # argument that marks a potential as a copy


class Potential(Expr):
    """An opaque energy of blocks of the target.

    Potentials with the same name are the same function, possibly of different blocks; the potential without name is U.
    """

    is_commutative = True
    is_real = True

    def __new__(cls, *arguments):
        return Expr.__new__(cls, *arguments)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that the potential is a function of."""
        return tuple(b for b in self.args if isinstance(b, Block))

    @property
    def name(self) -> str:
        """The name, empty for U."""
        return next((s.name for s in self.args if isinstance(s, Str)), "")

    @property
    def is_copy(self) -> bool:
        """Whether the potential is one of the `copies` of an energy."""
        return COPY in self.args

    @property
    def key(self) -> str:
        """The key of the potential in dicts of a run: its name, or U."""
        return self.name or "U"

    @property
    def symbol(self) -> str:
        """The symbol in formulas: U, or U_fast."""
        return f"U_{self.name}" if self.name else "U"

    def _eval_derivative(self, s):
        return Partial(self, s) if s in self.blocks else S.Zero

    def _sympystr(self, printer):
        return f"{self.symbol}({', '.join(b.name for b in self.blocks)})"

    def _latex(self, printer):
        return rf"{self._latex_symbol()}({', '.join(printer._print(b) for b in self.blocks)})"

    def _latex_symbol(self):
        return "U" if not self.name else r"U_{\mathrm{" + self.name.replace("_", r"\_") + "}}"


class Partial(Expr):
    """A partial derivative of the potential by its blocks, own-site for vector blocks: grad U, the Hessian diagonal."""

    is_commutative = True
    is_real = True

    def __new__(cls, U, *variables):
        if not isinstance(U, Potential):
            return diff(U, *variables)
        return Expr.__new__(cls, U, *sorted(variables, key=lambda b: b.name))

    @property
    def U(self) -> Potential:
        """The differentiated potential."""
        return self.args[0]

    @property
    def variables(self) -> tuple[Block, ...]:
        """The blocks of differentiation, repeated for higher orders."""
        return self.args[1:]

    def _eval_derivative(self, s):
        return Partial(self.U, *self.variables, s) if s in self.U.blocks else S.Zero

    def _sympystr(self, printer):
        names = [b.name for b in self.variables]
        if len(names) == 1:
            symbol = self.U.symbol
            is_single = len(self.U.blocks) == 1 and not self.U.is_copy
            return f"grad({symbol})" if is_single else f"grad({symbol}, {names[0]})"
        return f"hessian({self.U.symbol}, {', '.join(names)})"

    def _latex(self, printer):
        bottom = " ".join(rf"\partial {printer._print(b)}" for b in self.variables)
        order = len(self.variables)
        U = self.U._latex_symbol()
        top = rf"\partial {U}" if order == 1 else rf"\partial^{order} {U}"
        return rf"\frac{{{top}}}{{{bottom}}}"


def potential(*blocks: Block, name: str = "") -> Potential:
    """The energy U = -log p(data, theta) of the target, on the sum scale, left opaque.

    `blocks`: the target, one vector block, or scalar blocks for explicit coordinates; `name`: for one of several
    energies, which a run takes by name. Raises RecipeError for anything else.

    >>> theta = vector("theta")
    >>> potential(theta).diff(theta), potential(theta, name="fast")
    (grad(U), U_fast(theta))
    """
    if not blocks or not all(isinstance(b, Block) for b in blocks):
        what = f"its arguments are the target's blocks, got {blocks}"
        raise RecipeError("potential", what, do="Write potential(theta), or potential(x, y) for explicit coordinates.")
    return Potential(*blocks, Str(valid_name(name, "potential"))) if name else Potential(*blocks)


def copies(*blocks: Block, name: str = "") -> tuple[Potential, ...]:
    """One energy U, left opaque, at each of several blocks of the target: replicas, or coupled chains.

    A run takes U once, as a function of one block. Raises RecipeError unless `blocks` are two blocks or more, all
    vectors or all scalars.

    >>> x, y = vector("x"), vector("y")
    >>> [U.diff(x) for U in copies(x, y)]
    [grad(U, x), 0]
    """
    kinds = {b.is_vector for b in blocks if isinstance(b, Block)}
    if len(set(blocks)) < max(2, len(blocks)) or len(kinds) > 1:
        what = f"its arguments are two blocks or more of one kind, got {blocks}"
        raise RecipeError("copies", what, do="Write copies(x, y) of vectors.")
    arguments = [potential(b).args for b in blocks]
    return tuple(Potential(*args, Str(valid_name(name, "potential") if name else ""), COPY) for args in arguments)


def grad(U: Potential, block: Block | None = None) -> Partial:
    """The gradient dU/dtheta of the potential by its only block, or by the given block.

    Raises RecipeError if U is not a potential, has several blocks and none is given, or does not depend on the block.

    >>> grad(potential(vector("theta")))
    grad(U)
    """
    if not isinstance(U, Potential):
        raise RecipeError("grad", f"got {U}, not a potential", do="Write U = potential(theta) and grad(U).")
    if block is None and len(U.blocks) > 1:
        raise RecipeError("grad", f"{U} has several blocks", do="Name one: grad(U, x).")
    if block is not None and block not in U.blocks:
        names = ", ".join(map(str, U.blocks))
        raise RecipeError("grad", f"{U} does not depend on {block}", do=f"Name one of {names}.")
    return Partial(U, block if block is not None else U.blocks[0])


def function(name: str, *blocks: Block, sign: str = "real") -> AppliedUndef:
    """An opaque function of blocks, applied site by site, given later by `recipe.bind(G=...)`.

    `sign`: "real", "positive" or "nonnegative". Raises RecipeError unless the arguments are blocks.

    >>> theta = vector("theta")
    >>> function("G", theta).diff(theta)
    Derivative(G(theta), theta)
    """
    valid_name(name, "function")
    if not blocks or not all(isinstance(b, Block) for b in blocks):
        advice = f"Write function({name!r}, theta)"
        if blocks and all(isinstance(b, Expr) for b in blocks):
            read = sorted({s.name for b in blocks for s in b.free_symbols | b.atoms(Block)}, reverse=True)
            args = ", ".join(read) or "theta"
            advice = f"Write function({name!r}, {args}), and bind({name}=lambda {args}: ...) a formula that reads more"
        raise RecipeError(f"function {name!r}", f"its arguments are blocks, got {blocks}", do=f"{advice}.")
    return Function(name, **signs_named(sign, f"function {name!r}"))(*blocks)


def adapted(name: str, *, like: Block | None = None, start: Expr | float = 0, domain: DomainName = "real") -> Adapted:
    """A quantity frozen inside a step: one value per site of the block `like`, or one per chain.

    `start`: the initial value, an expression of parameters and of grad(U), the first gradient; `domain`: as in
    `vector`. Raises RecipeError if `like` is not a block.

    >>> from recipe import vector
    >>> theta = vector("theta")
    >>> adapted("V", like=theta, start=grad(potential(theta))**2, domain="nonnegative").start
    grad(U)**2
    """
    return Adapted(name, is_like(like, f"adapted {name!r}"), domain, formula(start, f"adapted {name!r}, start"))


class SiteDummy(Dummy):
    """A dummy with one value per site."""

    __slots__ = ()
    class_key = Dummy.class_key
    is_vector = True


def masked(expression: Expr, *kinds: type) -> tuple[Expr, dict[Dummy, Expr]]:
    """The expression with its outermost subexpressions of given kinds replaced by dummies, and these by dummy.

    >>> p = vector("p")
    >>> outside, back = masked(2*total(p**2) + 1, Total)
    >>> outside.has(Total), outside.xreplace(back)
    (False, 2*total(p**2) + 1)
    """
    dummies: dict[Expr, Dummy] = {}

    def visit(e: Expr) -> Expr:
        if isinstance(e, kinds):
            if e not in dummies:
                kind, name, signs = _looks(e)
                dummies[e] = kind(name, **signs)
            return dummies[e]
        if not e.args or not e.has(*kinds):
            return e
        return e.func(*map(visit, e.args))

    outside = visit(expression)
    return outside, {dummy: e for e, dummy in dummies.items()}


@lru_cache(maxsize=4096)
def _looks(e: Expr) -> tuple[type[Dummy], str, dict[str, bool]]:
    """The class of dummy, the text and the signs of an expression, cached because sympy is slow to find them."""
    return SiteDummy if is_site(e) else Dummy, str(e), signs_of(e)


OPAQUE = (Total, Potential, Partial, Derivative, AppliedUndef, Bound, Crossing)
