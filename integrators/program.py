"""A step as data: the statements that every backend prints, and the Program that holds them."""

from dataclasses import dataclass

from sympy import Expr, Symbol

from recipe import Energy, Recipe
from recipe.errors import RecipeError
from recipe.symbols import OF_THE_STEP, Block, Observed

from .flow import MatrixFunction, Variate
from .scheme import Scheme


class Local(Symbol):
    """A value named inside a step."""

    __slots__ = ("is_vector", "is_constant_in_step")

    class_key = Symbol.class_key

    def __new__(cls, name, is_vector=False, constant=False):
        local = Symbol.__xnew__(cls, name, real=True)
        local.is_vector, local.is_constant_in_step = is_vector, constant
        return local

    def __getnewargs_ex__(self):
        return (self.name, self.is_vector, self.is_constant_in_step), {}

    def _hashable_content(self):
        return (*super()._hashable_content(), self.is_vector, self.is_constant_in_step)


@dataclass(frozen=True)
class Let:
    """name = value."""

    name: Local
    value: Expr
    values = property(lambda self: (self.value,))
    defines = property(lambda self: (self.name,))


@dataclass(frozen=True)
class Set:
    """The block takes its new value."""

    block: Block
    value: Expr
    values = property(lambda self: (self.value,))


@dataclass(frozen=True)
class Adapt:
    """The adapted quantity takes its new value, which may read a gradient taken where the target has been."""

    block: Block
    value: Expr
    values = property(lambda self: (self.value,))


@dataclass(frozen=True)
class Draw:
    """A random number for a block, by the name under which the caller hands it in; `parameter` is its rate or shape."""

    name: Variate
    parameter: Expr | None = None
    values = property(lambda self: () if self.parameter is None else (self.parameter,))


@dataclass(frozen=True)
class Observe:
    """name = a statistic that the caller supplies as a function of the target as it stands."""

    name: Local
    observed: Observed
    values = ()


@dataclass(frozen=True)
class Gradient:
    """grad U (order 1) or its Hessian diagonal (order 2) at the target as it stands.

    `source`: "evaluated" here, "carried" over from the last step, or "given" by the caller.
    """

    names: tuple[tuple[Block, Local], ...]
    source: str = "evaluated"
    order: int = 1
    values = ()


@dataclass(frozen=True)
class Sum:
    """name = the sum of the integrand over the sites of each chain."""

    name: Local
    integrand: Expr
    values = property(lambda self: (self.integrand,))


@dataclass(frozen=True)
class Solve:
    """The entries of matrices that are computed together, one name each."""

    names: tuple[Local, ...]
    entries: tuple[MatrixFunction, ...]
    values = property(lambda self: self.entries[0].system[1:])
    defines = property(lambda self: self.names)


Statement = Let | Set | Adapt | Draw | Observe | Gradient | Sum | Solve


def rewritten(statement: Statement, new: dict) -> Statement:
    """The statement with symbols in its values replaced."""
    match statement:
        case Let(name, value):
            return Let(name, value.xreplace(new))
        case Sum(name, integrand):
            return Sum(name, integrand.xreplace(new))
        case Set(block, value):
            return Set(block, value.xreplace(new))
        case Adapt(block, value):
            return Adapt(block, value.xreplace(new))
        case Draw(name, parameter) if parameter is not None:
            return Draw(name, parameter.xreplace(new))
        case Solve(names, entries):
            return Solve(names, tuple(e.xreplace(new) for e in entries))
    return statement


@dataclass(frozen=True)
class Stage:
    """The statements of one letter, under a title that reads as mathematics."""

    title: str
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Program:
    """A step as data: constants of the step, stages, and what is carried over in the state."""

    recipe: Recipe
    scheme: Scheme
    constants: tuple[Let | Solve, ...]
    stages: tuple[Stage, ...]
    carries_gradient: bool
    energy: Energy | None = None
    scope: str = "chain"

    @property
    def statements(self) -> tuple[Statement, ...]:
        """All statements of all stages, in order."""
        return tuple(s for stage in self.stages for s in stage.statements)

    @property
    def draws(self) -> tuple[Variate, ...]:
        """The random numbers of one step, in order."""
        return tuple(s.name for s in self.statements if isinstance(s, Draw))

    @property
    def observations(self) -> tuple[str, ...]:
        """The names of the statistics that the caller supplies."""
        return tuple(dict.fromkeys(s.observed.name for s in self.statements if isinstance(s, Observe)))

    def reads(self, symbol) -> bool:
        """Whether a statement reads this symbol."""
        return any(symbol in e.free_symbols for s in (*self.constants, *self.statements) for e in s.values)

    @property
    def gradients_per_step(self) -> int:
        """How often grad U is evaluated in one step."""
        return sum(isinstance(s, Gradient) and s.source == "evaluated" and s.order == 1 for s in self.statements)

    @property
    def needs_curvature(self) -> bool:
        """Whether the Hessian diagonal of U is asked for."""
        return any(isinstance(s, Gradient) and s.order == 2 for s in self.statements)

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
            return ", ".join(f"{g} = d{power}U/d{b}{power}" for b, g in names) + f"  ({source})"
        case Sum(name, integrand):
            return f"{name} = total({integrand})"
        case Solve(names, entries):
            return f"{', '.join(map(str, names))} = {entries[0].text}({', '.join(map(str, entries[0].system))})"


def verify(program: Program) -> None:
    """Refuse a Program with an undefined name, a draw of two stages, a block set twice in a flow, or a stale gradient.

    An adaptation may look back at a gradient taken where the target has been.
    """
    where = f"{program.recipe.name}, program"
    known = {*program.recipe.entries, *program.recipe.parameters, *OF_THE_STEP}
    stale: set = set()
    drawn: set = set()

    def read(e, own=()):
        for s in sorted(e.free_symbols, key=str):
            if s in stale and s not in own:
                raise RecipeError(
                    where, f"the gradient {s} is stale: the target has moved since", do="Evaluate it again."
                )
            if s not in (own if isinstance(s, Variate) else known):
                raise RecipeError(where, f"{s} is used before it is defined", do="This Program cannot run.")

    def define(statement, own):
        match statement:
            case Let(name, value) | Sum(name, value):
                read(value, own)
                known.add(name)
            case Solve(names, entries):
                for e in entries[0].system[1:]:
                    read(e, own)
                known.update(names)
            case Set(block, value):
                read(value, own)
                if block in own:
                    raise RecipeError(
                        where, f"the block {block} is set twice in one flow", do="A flow moves a block once."
                    )
                own.add(block)
            case Gradient(names, _, _):
                fresh = {g for _, g in names}
                gradients.update(fresh)
                known.update(fresh)
                stale.difference_update(fresh)
            case Observe(name, _):
                known.add(name)
            case Adapt(_, value):
                read(value, own)
            case Draw(name, parameter):
                if parameter is not None:
                    read(parameter, own)
                if name in drawn:
                    raise RecipeError(where, f"the draw {name} is used twice", do="Every draw serves one flow.")
                drawn.add(name)
                own.add(name)

    gradients: set = set()
    for constant in program.constants:
        define(constant, set())
    for stage in program.stages:
        adapts = any(isinstance(s, Adapt) for s in stage.statements)
        own: set = set(stale) if adapts else set()
        for statement in stage.statements:
            define(statement, own)
        if any(isinstance(s, Set) and s.block in program.recipe.targets for s in stage.statements):
            stale.update(gradients)
