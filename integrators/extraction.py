"""Subexpressions that become names: sums, draws, constants of a step and repeated calls get a statement each.

Stages of a step, derivatives of an energy and sums over its data all extract sums by `Extraction`, each with its own
names and statements.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from itertools import chain, count

from sympy import (
    Add,
    Basic,
    Dummy,
    Expr,
    Function,
    Mul,
    Pow,
    S,
    Symbol,
    cse,
    numbered_symbols,
    preorder_traversal,
    sqrt,
)

from recipe.fields import operators_of
from recipe.operators import Applied, times
from recipe.symbols import OF_THE_STEP, Block, Observed, Parameter, Total, is_site, total

from .functions import Change, MatrixFunction, Unit
from .program import Draw, Let, Local, Observe, Solve, Statement, Sum
from .variates import Drawn, Variate

CALLS = (Function, Pow)
Updates = dict[Block, Expr]


class Extraction:
    """A function of expressions that replaces subexpressions of given kinds by names, innermost first.

    `name(e, extract)` returns the symbol for the subexpression e, and calls `extract` on the arguments of e; each
    different subexpression is named once. `known`: the symbols by subexpression. The number of sites, total(1), is not
    replaced.

    >>> from recipe import total, vector
    >>> from sympy import sin
    >>> p, sums = vector("p"), []
    >>> def name(e, extract):
    ...     sums.append(extract(e.integrand))
    ...     return Symbol(f"sum{len(extract.known) + 1}")
    >>> extract = Extraction(name, Total)
    >>> extract(total(p**2) + total(sin(p*total(p**2))) + total(1))
    sum1 + sum2 + n
    >>> sums
    [p**2, sin(p*sum1)]
    """

    def __init__(self, name: Callable[[Expr, "Extraction"], Expr], *kinds: type[Expr]):
        self.name = name
        self.kinds = kinds
        self.known: dict[Expr, Expr] = {}

    def __call__(self, e: Expr) -> Expr:
        if isinstance(e, self.kinds) and e != total(1):
            if e not in self.known:
                self.known[e] = self.name(e, self)
            return self.known[e]
        if not e.args or not e.has(*self.kinds):
            return e
        return e.func(*map(self, e.args))


# ---- names


class FreshNames:
    """Generator of names that differ from those of the given symbols and from each other."""

    def __init__(self, symbols: Iterable[Symbol]):
        self.names = {s.name for s in symbols}

    def fresh(self, stem: str) -> str:
        """The stem with the first number that makes an unused name."""
        name = next(n for n in (f"{stem}{k}" for k in count(1)) if n not in self.names)
        self.names.add(name)
        return name


def unused(name: str, names: Collection[str]) -> str:
    """The name, with a number appended if the name is taken.

    >>> unused("decay", {"decay", "decay2"})
    'decay3'
    """
    return next(x for x in chain([name], (f"{name}{k}" for k in count(2))) if x not in names)


# ---- statements of a stage


def extracted(updates: Updates, names: FreshNames) -> tuple[list[Statement], Updates]:
    """Statements of totals, draws, observations and matrices, innermost first, and the updates in terms of these."""
    statements: list[Statement] = []
    solutions: dict[MatrixFunction, Local] = {}

    def name(e: Expr, extract: Extraction) -> Expr:
        match e:
            case Change() if not is_site(e.integrand):
                symbol = Local(names.fresh("change"))
                statements.append(Let(symbol, extract(e.integrand)))
            case Unit():
                direction, length = Local(names.fresh("w"), True), Local(names.fresh("sum"))
                statements.append(Let(direction, extract(e.integrand)))
                statements.append(Sum(length, direction**2))
                return direction / sqrt(length)
            case Total():
                inside = extract(e.integrand)
                symbol = Local(names.fresh("sum"))
                statements.append(Sum(symbol, inside))
            case Drawn():
                symbol = e.variate
                statements.append(Draw(symbol, extract(e.parameter)))
            case Observed():
                symbol = Local(names.fresh(e.name), e.is_vector)
                statements.append(Observe(symbol, e))
            case MatrixFunction():
                symbol = solved(e, extract)
        return symbol

    def solved(e: MatrixFunction, extract: Extraction) -> Local:
        if e not in solutions:
            inside = tuple(map(extract, e.system))
            together = {x: Local(names.fresh(f"{x.part}_"), is_site(e)) for x in e.siblings}
            statements.append(Solve((*together.values(),), tuple(x.func(*x.args[:3], *inside) for x in together)))
            solutions.update(together)
        return solutions[e]

    extract = Extraction(name, Total, MatrixFunction, Drawn, Observed, Unit)
    return statements, {b: extract(e) for b, e in updates.items()}


def shared(updates: Updates, names: FreshNames, constants: "Subexpressions") -> tuple[list[Statement], Updates]:
    """Statements of repeated calls of functions and operators, and the updates in terms of these."""
    if not any(e.atoms(*CALLS, Applied) for e in updates.values()):
        return [], updates
    lets, values, updates = _applied_apart(updates, names)
    repeated, reduced = cse(list(updates.values()), symbols=numbered_symbols(cls=Dummy), order="none")
    for s, value in repeated:
        value = value.xreplace(values)
        values[s] = value
        if isinstance(value, Expr) and value.atoms(*CALLS) and not constants.is_constant(value):
            values[s] = Local(names.fresh("x"), is_site(value))
            lets.append(Let(values[s], value))
    return lets, {b: e.xreplace(values) for b, e in zip(updates, reduced)}


def _applied_apart(updates: Updates, names: FreshNames) -> tuple[list[Statement], dict[Symbol, Expr], Updates]:
    """Statements of repeated applications of operators, values of stand-ins for single ones, and the updates."""
    uses = Counter(x for e in updates.values() for x in preorder_traversal(e) if isinstance(x, Applied))
    lets: list[Statement] = []
    values: dict[Symbol, Expr] = {}

    def name(e: Expr, extract: Extraction) -> Symbol:
        value = times(e.formula, extract(e.argument)).xreplace(values)
        if uses[e] > 1:
            local = Local(names.fresh("x"), True)
            lets.append(Let(local, value))
        else:
            local = Local(f"once {len(extract.known)}", True)
            values[local] = value
        return local

    extract = Extraction(name, Applied)
    updates = {b: extract(e) for b, e in updates.items()}
    return lets, values, updates


# ---- constants of a step


class Subexpressions:
    """Costly subexpressions of h and parameters, each named once before the first stage: decay_p, spread_p, kick_p."""

    def __init__(self, scope: str):
        self.scope = scope
        self.statements: list[Let | Solve] = []
        self._names: dict[Expr, Local] = {}
        self._solutions: dict[MatrixFunction, Local] = {}

    def hoist(self, block: Block, update: Expr) -> Expr:
        """The update of a block with its constants replaced by names."""
        update = self.operators_named(block, update)
        return Add(*(self._hoisted(term, f"{_role(block, term)}_{block}") for term in Add.make_args(update)))

    def is_constant(self, e: Expr) -> bool:
        """Whether e depends on h and the parameters alone; n is constant unless totals are per tensor."""
        if any(t.integrand is not S.One or self.scope == "tensor" for t in e.atoms(Total)):
            return False
        if isinstance(e, MatrixFunction) and not e.atoms(Block):
            return True
        return all(
            isinstance(s, Parameter) or s in OF_THE_STEP or getattr(s, "is_constant_in_step", False)
            for s in e.free_symbols
        )

    def _hoisted(self, e: Expr, name: str) -> Expr:
        if isinstance(e, MatrixFunction) and self.is_constant(e):
            return self._entry(e)
        if not isinstance(e, Expr):  # conditions are not hoisted
            return e
        if self.is_constant(e):
            return self._named(e, name)
        if e.is_Mul or e.is_Add:
            constant = [a for a in e.args if self.is_constant(a) and not isinstance(a, MatrixFunction)]
            moving = [self._hoisted(a, name) for a in e.args if a not in constant]
            return e.func(self._named(e.func(*constant), name), *moving)
        return e.func(*(self._hoisted(a, name) for a in e.args)) if e.args else e

    def _named(self, e: Expr, name: str) -> Expr:
        """A name for a costly constant; a cheap one unchanged."""
        if not _costs(e):
            return e
        if e.could_extract_minus_sign():
            return -self._named(-e, name) if _costs(-e) else e
        return self._name(e, name)

    def _name(self, e: Expr, name: str, *, operator: bool = False) -> Local:
        if e not in self._names:
            name = unused(name, {s.name for s in self._names.values()})
            self._names[e] = Local(name, is_site(e), constant=True, operator=operator)
            self.statements.append(Let(self._names[e], e))
        return self._names[e]

    def operators_named(self, block: Block, e: Basic) -> Expr:
        """The update of a block, or a part of an update, with formulas of operators replaced by names."""
        if not e.has(Applied):
            return e
        arguments = [self.operators_named(block, a) for a in e.args]
        if not isinstance(e, Applied):
            return e.func(*arguments)
        formula = e.formula
        if not formula.is_Symbol:  # a formula keeps its factorisation; an operator alone has its own name
            (M,) = operators_of(formula)
            stem = {sqrt(M): f"root_{M}", 1 / M: f"inverse_{M}"}.get(formula, f"{_role(block, e)}_{block}_by_{M}")
            formula = self._name(formula, stem, operator=True)
        return times(formula, arguments[1])

    def _entry(self, e: MatrixFunction) -> Local:
        """The name of an entry of matrices; all entries of a system are computed together."""
        if e not in self._solutions:
            before = sum(isinstance(s, Solve) for s in self.statements)
            stem = f"{before + 1}_" if before else "_"
            names = {x: Local(f"{x.part}{stem}{x.row}{x.column}", is_site(e), constant=True) for x in e.siblings}
            self.statements.append(Solve(tuple(names.values()), e.siblings))
            self._solutions |= names
        return self._solutions[e]


def _role(block: Block, term: Expr) -> str:
    """The role of a term in the update of a block: decay, spread, kick or drift."""
    if block in [f.argument if isinstance(f, Applied) else f for f in Mul.make_args(term)]:
        return "decay"
    if any(isinstance(s, Variate) for s in term.free_symbols):
        return "spread"
    return "kick" if any(isinstance(s, Local) for s in term.free_symbols) else "drift"


def _costs(e: Expr) -> bool:
    """Whether e calls a function or a power, or has one value per site."""
    if e.is_Atom:
        return False
    if any(isinstance(s, Parameter) and s.per for s in e.free_symbols):
        return True
    return any(f.is_Function or f.is_Pow and not f.exp.is_Integer for f in e.atoms(*CALLS))
