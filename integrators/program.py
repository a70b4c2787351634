"""Program: a step as a list of statements, printed by every backend."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from sympy import Expr, Symbol

from recipe import Energy, Recipe
from recipe.bound import Bound
from recipe.errors import RecipeError
from recipe.scheme import Scheme
from recipe.symbols import OF_THE_STEP, Block, Crossing, Observed, Potential, Total

from .functions import MatrixFunction
from .variates import Variate


class Local(Symbol):
    """A value named inside a step; `is_operator`: whether the value is a formula of an operator."""

    __slots__ = ("is_vector", "is_constant_in_step", "is_operator")

    class_key = Symbol.class_key

    def __new__(cls, name: str, is_vector: bool = False, constant: bool = False, operator: bool = False) -> "Local":
        """A value per site or per chain; `constant`: whether the value depends on h and the parameters alone."""
        local = Symbol.__xnew__(cls, name, real=True)
        local.is_vector, local.is_constant_in_step, local.is_operator = is_vector, constant, operator
        return local

    def __getnewargs_ex__(self):
        return (self.name, self.is_vector, self.is_constant_in_step, self.is_operator), {}

    def _hashable_content(self):
        return (*super()._hashable_content(), self.is_vector, self.is_constant_in_step, self.is_operator)


@dataclass(frozen=True)
class Let:
    """name = value."""

    name: Local
    value: Expr
    values = property(lambda self: (self.value,))
    defines = property(lambda self: (self.name,))


@dataclass(frozen=True)
class Set:
    """A block, or a carried derivative, takes its new value."""

    block: Block | Local
    value: Expr
    values = property(lambda self: (self.value,))
    defines = ()


@dataclass(frozen=True)
class Adapt:
    """An adapted quantity takes its new value; the formula may read a gradient at an earlier target."""

    block: Block
    value: Expr
    values = property(lambda self: (self.value,))
    defines = ()


@dataclass(frozen=True)
class Draw:
    """A random number for a block, by the caller's name for it; `parameter`: the rate or shape of its law."""

    name: Variate
    parameter: Expr | None = None
    values = property(lambda self: () if self.parameter is None else (self.parameter,))
    defines = ()


@dataclass(frozen=True)
class Observe:
    """name = a statistic of the present target, supplied by the caller as a function."""

    name: Local
    observed: Observed
    values = ()
    defines = property(lambda self: (self.name,))


@dataclass(frozen=True)
class Gradient:
    """U (order 0), grad U (order 1) or its Hessian diagonal (order 2) at the present target.

    `source`: "evaluated" here, "carried" over from the last step, or "given" by the caller. U has one name, paired with
    the first block of the target. `potential`: U, if the recipe has several.
    """

    names: tuple[tuple[Block, Local], ...]
    source: str = "evaluated"
    order: int = 1
    potential: Potential | None = None
    values = ()
    defines = property(lambda self: tuple(g for _, g in self.names))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that the potential is a function of; empty for the whole target."""
        return () if self.potential is None else self.potential.blocks


@dataclass(frozen=True)
class Sum:
    """name = the sum of the integrand over the sites of each chain."""

    name: Local
    integrand: Expr
    values = property(lambda self: (self.integrand,))
    defines = property(lambda self: (self.name,))


@dataclass(frozen=True)
class Solve:
    """Entries of matrices that are computed together, each with a name."""

    names: tuple[Local, ...]
    entries: tuple[MatrixFunction, ...]
    values = property(lambda self: self.entries[0].system[1:])
    defines = property(lambda self: self.names)


DERIVATIVES = {0: "value", 1: "gradient", 2: "curvature"}  # the names of the caller's functions, by order

Statement = Let | Set | Adapt | Draw | Observe | Gradient | Sum | Solve


def symbols_read(statements: Iterable[Statement]) -> set[Symbol]:
    """The symbols that statements read."""
    return {x for s in statements for e in s.values for x in e.free_symbols}


def rewritten(statement: Statement, new: dict) -> Statement:
    """The statement with symbols in its values replaced."""
    match statement:
        case Let() | Set() | Adapt():
            return replace(statement, value=statement.value.xreplace(new))
        case Sum():
            return replace(statement, integrand=statement.integrand.xreplace(new))
        case Draw(parameter=Expr() as parameter):
            return replace(statement, parameter=parameter.xreplace(new))
        case Solve():
            return replace(statement, entries=tuple(e.xreplace(new) for e in statement.entries))
    return statement


@dataclass(frozen=True)
class Stage:
    """The statements of one letter, under a title that reads as mathematics."""

    title: str
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Program:
    """A step as data: constants of the step, stages, and the orders of U's derivatives that the state carries over.

    `in_float64`: values of U, and copies of them, that may be float64 in a state of float32, for their differences.
    """

    recipe: Recipe
    scheme: Scheme
    constants: tuple[Let | Solve, ...]
    stages: tuple[Stage, ...]
    carries: tuple[int, ...] = ()
    energy: Energy | None = None
    scope: str = "chain"
    in_float64: frozenset[Symbol] = frozenset()

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        """All statements of all stages, in order."""
        return tuple(s for stage in self.stages for s in stage.statements)

    @cached_property
    def formulas(self) -> tuple[Expr, ...]:
        """The formulas of all constants and statements."""
        return tuple(e for s in (*self.constants, *self.statements) for e in s.values)

    @cached_property
    def draws(self) -> tuple[Variate, ...]:
        """The random numbers of one step, in order."""
        return tuple(s.name for s in self.statements if isinstance(s, Draw))

    @cached_property
    def observations(self) -> tuple[str, ...]:
        """The names of the statistics that the caller supplies."""
        return tuple(dict.fromkeys(s.observed.name for s in self.statements if isinstance(s, Observe)))

    def reads(self, symbol: Symbol) -> bool:
        """Whether a statement reads this symbol."""
        return any(symbol in e.free_symbols for e in self.formulas)

    def calls(self, *functions: type) -> bool:
        """Whether a formula of a stage calls one of the functions."""
        return any(e.has(*functions) for s in self.statements for e in s.values)

    @cached_property
    def has_operators(self) -> bool:
        """Whether a statement applies an operator."""
        return any(e.has(Crossing) for e in self.formulas)

    @cached_property
    def networks(self) -> tuple[type[Bound], ...]:
        """The functions of networks, and their derivatives, that formulas of the step call."""
        return tuple(sorted({type(f) for e in self.formulas for f in e.atoms(Bound)}, key=lambda f: f.__name__))

    @cached_property
    def sums_over_sites(self) -> bool:
        """Whether a statement is a sum over sites, or reads their number."""
        return any(isinstance(s, Sum) for s in self.statements) or any(e.has(Total) for e in self.formulas)

    # ---- derivatives of U

    @cached_property
    def gradients(self) -> tuple[Gradient, ...]:
        """The statements that take U or its derivatives, in order."""
        return tuple(s for s in self.statements if isinstance(s, Gradient))

    @cached_property
    def gradients_per_step(self) -> int:
        """The number of evaluations of grad U in one step."""
        return sum(s.source == "evaluated" and s.order == 1 for s in self.gradients)

    @cached_property
    def derivatives(self) -> dict[int, tuple[tuple[Block, Local], ...]]:
        """The blocks and names of U's derivatives in the step, by order: 0 is U, 1 grad U, 2 its Hessian diagonal."""
        by_order: dict[int, dict[Local, Block]] = {}
        for s in self.gradients:
            by_order.setdefault(s.order, {}).update({g: b for b, g in s.names})
        return {order: tuple((b, g) for g, b in names.items()) for order, names in sorted(by_order.items())}

    @cached_property
    def reset_orders(self) -> frozenset[int]:
        """The orders of the derivatives of U that a Set statement overwrites, as at a rejected step."""
        reset = {s.block for s in self.statements if isinstance(s, Set)}
        return frozenset(order for order, names in self.derivatives.items() if any(g in reset for _, g in names))

    @property
    def carried(self) -> tuple[tuple[Block, Local], ...]:
        """The derivatives of U that the state carries over, as pairs of block and name."""
        return tuple(pair for order in self.carries for pair in self.carried_of(order))

    def carried_of(self, order: int) -> tuple[tuple[Block, Local], ...]:
        """The derivatives of one order that the state carries over, as pairs of block and name."""
        return tuple(pair for s in self.gradients if s.source == "carried" and s.order == order for pair in s.names)

    def is_whole(self, names: tuple[tuple[Block, Local], ...]) -> bool:
        """Whether the names are of one block and one potential, so that the derivative is a tensor, not a dict."""
        return len(names) == 1 and not self.recipe.has_several_potentials

    @cached_property
    def places(self) -> dict[Local, str]:
        """The key of each derivative in a dict of carried derivatives: the block's name, or the potential's place."""
        names = [(s.potential, b, g) for s in self.gradients for b, g in s.names]
        return {g: b.name if U is None else self.recipe.place(U, b) for U, b, g in names}

    @property
    def carries_gradient(self) -> bool:
        """Whether the state carries grad U over to the next step."""
        return 1 in self.carries

    @property
    def needs_value(self) -> bool:
        """Whether the step reads U itself."""
        return 0 in self.derivatives

    @property
    def needs_curvature(self) -> bool:
        """Whether the step reads the Hessian diagonal of U."""
        return 2 in self.derivatives

    def __str__(self):
        lines = [f"{self.recipe.name}, {self.scheme}"]
        lines += [f"  {_line(s)}" for s in self.constants]
        for stage in self.stages:
            lines += [f"  # {stage.title}", *(f"  {_line(s)}" for s in stage.statements)]
        return "\n".join(lines)


def _line(statement):
    match statement:
        case Let(name, value):
            return f"{name} = {value}"
        case Set(block, value) | Adapt(block, value):
            return f"{block} <- {value}"
        case Draw(name, None):
            return f"{name} ~ {'N(0, 1)' if name.kind == 'normal' else name.kind}"
        case Draw(name, parameter):
            return f"{name} ~ {name.kind}({parameter})"
        case Observe(name, observed):
            return f"{name} = observe({observed})"
        case Gradient(names, source, order):
            power = "" if order == 1 else "2"
            U = statement.potential.symbol if statement.potential else "U"
            formulas = {b: f"d{power}{U}/d{b}{power}" if order else U for b, _ in names}
            return ", ".join(f"{g} = {formulas[b]}" for b, g in names) + f"  ({source})"
        case Sum(name, integrand):
            return f"{name} = total({integrand})"
        case Solve(names, entries):
            return f"{', '.join(map(str, names))} = {entries[0].text}({', '.join(map(str, entries[0].system))})"


def verify(program: Program) -> None:
    """Refuse a Program with an undefined name, a draw of two stages, a block set twice in a flow, or a stale gradient.

    An adaptation may read a gradient taken at an earlier target. Raises RecipeError.
    """
    where = f"{program.recipe.name}, program"
    known: set[Symbol] = {*program.recipe.entries, *program.recipe.parameters, *OF_THE_STEP}
    blocks_of: dict[Symbol, tuple[Block, ...]] = {}  # the blocks that each derivative of U depends on
    stale: set[Symbol] = set()  # derivatives whose target has moved since
    drawn: set[Symbol] = set()
    for stage in (Stage("constants", program.constants), *program.stages):
        looks_back = any(isinstance(s, Adapt) for s in stage.statements)
        set_here: set[Symbol] = set()
        for statement in stage.statements:
            _check_reads(where, statement, known, set() if looks_back else stale)
            known.update(statement.defines)
            match statement:
                case Gradient():
                    stale.difference_update(statement.defines)
                    blocks_of |= dict.fromkeys(statement.defines, statement.blocks or program.recipe.targets)
                case Set(block) if block in set_here:
                    raise RecipeError(where, f"the block {block} is set twice in one flow", do="A flow moves it once.")
                case Set(block):
                    set_here.add(block)
                case Draw(name) if name in drawn:
                    raise RecipeError(where, f"the draw {name} is used twice", do="Every draw serves one flow.")
                case Draw(name):
                    drawn.add(name)
                    known.add(name)
        known -= drawn  # a random number serves its stage only
        stale |= {g for g, blocks in blocks_of.items() if set_here & {*blocks}}
        stale -= set_here


def _check_reads(where: str, statement: Statement, known: set[Symbol], stale: set[Symbol]) -> None:
    for s in sorted(symbols_read([statement]), key=str):
        if s in stale:
            what = f"the gradient {s} is stale: the target has moved since"
            raise RecipeError(where, what, do="Evaluate it again.")
        if s not in known:
            raise RecipeError(where, f"{s} is used before it is defined", do="This Program cannot run.")
