"""Constants of a step: subexpressions of h and the parameters, computed before the first stage."""

from itertools import count

from sympy import Add, Basic, Expr, Function, Mul, Pow, S, sqrt

from recipe.operators import Applied, operators_of, times
from recipe.symbols import OF_THE_STEP, Block, Parameter, Total, is_site

from .functions import MatrixFunction
from .program import Let, Local, Solve
from .variates import Variate

CALLS = (Function, Pow)


class Constants:
    """Costly subexpressions of h and parameters, each named once: decay_p, spread_p, kick_p, drift_theta."""

    def __init__(self, scope: str):
        self.scope = scope
        self._statements: list[Let | Solve] = []
        self._names: dict[Expr, Local] = {}
        self._systems: dict[tuple, dict[MatrixFunction, Local]] = {}

    @property
    def statements(self) -> tuple[Let | Solve, ...]:
        """The statements of the named constants, each after the constants that it reads."""
        return tuple(self._statements)

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
        if e not in self._names:
            self._name(e, name)
        return self._names[e]

    def _name(self, e: Expr, name: str, *, operator: bool = False) -> None:
        """Give a constant a name of its own, and a statement."""
        taken = {s.name for s in self._names.values()}
        numbered = (f"{name}{k}" if k > 1 else name for k in count(1))
        unique = next(n for n in numbered if n not in taken)
        self._names[e] = Local(unique, is_site(e), constant=True, operator=operator)
        self._statements.append(Let(self._names[e], e))

    def operators_named(self, block: Block, e: Basic) -> Expr:
        """The update of a block, or a part of an update, with formulas of operators replaced by names."""
        if not e.has(Applied):
            return e
        arguments = [self.operators_named(block, a) for a in e.args]
        if not isinstance(e, Applied):
            return e.func(*arguments)
        return times(self._operator(e.formula, f"{_role(block, e)}_{block}"), arguments[1])

    def _operator(self, F: Expr, name: str) -> Expr:
        """The name of a formula of an operator, which keeps its factorisation; an operator alone has its own name."""
        if F.is_Symbol:
            return F
        if F not in self._names:
            (M,) = operators_of(F)
            stem = {sqrt(M): f"root_{M}", 1 / M: f"inverse_{M}"}.get(F, f"{name}_by_{M}")
            self._name(F, stem, operator=True)
        return self._names[F]

    def _entry(self, e: MatrixFunction) -> Local:
        """The name of an entry of matrices; all entries of a system are computed together."""
        key = type(e), e.system
        if key not in self._systems:
            run = f"{len(self._systems) + 1}" if self._systems else ""
            names = {x: Local(f"{x.part}{run}_{x.row}{x.column}", is_site(e), constant=True) for x in e.siblings}
            self._systems[key] = names
            self._statements.append(Solve(tuple(names.values()), e.siblings))
        return self._systems[key][e]


def _role(block: Block, term: Expr) -> str:
    """The role of a term in the update of a block: decay, spread, kick or drift."""
    factors = [f.argument if isinstance(f, Applied) else f for f in Mul.make_args(term)]
    if block in factors:
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
