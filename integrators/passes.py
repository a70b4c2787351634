"""Loop plan of a Program for kernels over tensors: segments between the caller's gradients, passes over the sites.

A pass is one loop over all sites, and ends where a later statement needs one of its sums. Values per chain are computed
between passes. A gradient supplied by the caller ends a segment. Every writer of kernels prints the same plan.
"""

from dataclasses import dataclass, replace
from functools import cached_property

from sympy import Expr, Symbol

from recipe import symbols
from recipe.errors import RecipeError
from recipe.symbols import Block

from .program import Adapt, Gradient, Let, Local, Observe, Program, Set, Solve, Sum, symbols_read
from .variates import Variate


class Unsupported(RecipeError):
    """Raised for a Program with a statement or function that a backend cannot print."""


Assignment = Let | Set | Adapt | Sum
Passes = list[tuple[list[Assignment], list[Assignment]]]  # statements by site and by chain, one pair for each pass


def is_by_site(s: Symbol) -> bool:
    """Whether a symbol has one value per site."""
    return bool(getattr(s, "is_vector", False))


def subject(statement: Assignment) -> Symbol:
    """The symbol that a statement sets."""
    return statement.name if isinstance(statement, (Let, Sum)) else statement.block


@dataclass(frozen=True)
class Loop:
    """Statements of a pass, for every site or for every chain, with their loads and stores.

    `values`: right-hand sides of the statements; a loop over sites has subexpressions with one value per chain named in
    `once`. `loads` and `stores`: symbols by site in a loop over sites, by chain in a loop over chains; `numbers`:
    symbols by chain that a loop over sites reads. `sums` are taken in the loop over sites and end in the loop over
    chains. `written`: the blocks that the step has set before.
    """

    statements: tuple[Assignment, ...] = ()
    values: tuple[Expr, ...] = ()
    once: tuple[tuple[Symbol, Expr], ...] = ()
    loads: tuple[Symbol, ...] = ()
    stores: tuple[Symbol, ...] = ()
    numbers: tuple[Symbol, ...] = ()
    constants: tuple[Symbol, ...] = ()
    draws: tuple[Variate, ...] = ()
    sums: tuple[Local, ...] = ()
    written: frozenset[Symbol] = frozenset()

    def __bool__(self):
        return bool(self.statements or self.sums)

    @property
    def fresh(self) -> tuple[Symbol, ...]:
        """The blocks that are set without being loaded."""
        return tuple(s for s in self.stores if isinstance(s, Block) and s not in self.loads)

    @property
    def counts_sites(self) -> bool:
        """Whether a statement reads the number of sites."""
        return any(e.has(symbols.total(1)) for s in self.statements for e in s.values)

    def side(self, s: Symbol) -> str:
        """The buffer that a symbol is read from: "in" before the step has written it, else "out"."""
        return "in" if isinstance(s, Block) and s not in self.written else "out"


@dataclass(frozen=True)
class Pass:
    """Statements by site with their sums, then statements by chain."""

    sites: Loop
    chain: Loop


@dataclass(frozen=True)
class Segment:
    """The passes after a gradient or observation of the caller; `written`: the blocks set before."""

    before: Gradient | Observe | None
    passes: tuple[Pass, ...]
    written: frozenset[Symbol]

    @property
    def open_sums(self) -> tuple[Local, ...]:
        """The sums over sites that the next segment ends."""
        return () if not self.passes or self.passes[-1].chain else self.passes[-1].sites.sums

    @property
    def counts_sites(self) -> bool:
        """Whether a statement reads the number of sites."""
        return any(p.sites.counts_sites or p.chain.counts_sites for p in self.passes)


@dataclass(frozen=True)
class LoopPlan:
    """Arguments of a Program's kernels (arrays by site, numbers by chain, constants), and their segments."""

    program: Program
    segments: tuple[Segment, ...]
    arrays: tuple[Symbol, ...]
    numbers: tuple[Symbol, ...]
    constants: tuple[Symbol, ...]

    def cut_at_sums(self) -> "LoopPlan":
        """The plan with segments cut wherever sums over sites end, as needed for sums over several processes.

        >>> from integrators import compile
        >>> from samplers import SGNHT
        >>> cut = plan(compile(SGNHT, "Euler").program).cut_at_sums()
        >>> [segment.open_sums for segment in cut.segments]
        [(sum1,), ()]
        """
        segments = []
        for segment in self.segments:
            before = segment.before
            passes = list[Pass]()
            for p in segment.passes:
                if not p.sites.sums:
                    passes.append(p)
                    continue
                segments.append(Segment(before, (*passes, Pass(p.sites, Loop())), segment.written))
                before = None
                passes = [Pass(Loop(), p.chain)]
            segments.append(Segment(before, tuple(passes), segment.written))
        return replace(self, segments=tuple(segments))

    @cached_property
    def written(self) -> frozenset[Symbol]:
        """The blocks that a step sets."""
        return self._written_from[0]

    def written_from(self, segment: Segment) -> frozenset[Symbol]:
        """The blocks that a step sets in a segment, or in a later one."""
        return self._written_from[next(k for k, s in enumerate(self.segments) if s is segment)]

    @cached_property
    def _written_from(self):
        stored = [[s for p in segment.passes for s in (*p.sites.stores, *p.chain.stores)] for segment in self.segments]
        return [frozenset(s for row in stored[k:] for s in row if isinstance(s, Block)) for k in range(len(stored))]

    @cached_property
    def most_sums(self) -> int:
        """The largest number of sums in a pass."""
        return max((len(p.sites.sums) for segment in self.segments for p in segment.passes), default=0)


def plan(program: Program) -> LoopPlan:
    """The plan of a Program; raises Unsupported for statements without a form in kernels.

    >>> from integrators import compile
    >>> from samplers import SGNHT
    >>> segment = plan(compile(SGNHT, "Euler").program).segments[0]
    >>> segment.before.source, len(segment.passes)
    ('evaluated', 1)
    >>> sites, chain = segment.passes[0].sites, segment.passes[0].chain
    >>> sites.loads, sites.stores, sites.sums, chain.stores
    ((theta, p, g), (theta, p), (sum1,), (xi,))
    """
    if program.scope != "chain":
        raise _unsupported(program, f"there is none in the scope {program.scope!r}")
    check_statements(program)
    planner = _Planner(program)
    segments = tuple(planner.segment(before, passes) for before, passes in _cut(program))
    return LoopPlan(program, segments, planner.arrays, planner.numbers, planner.constants)


def _unsupported(program: Program, what: str) -> Unsupported:
    return Unsupported(f"{program.recipe.name}, kernel", what, do="Use backend='torch'.")


class _Planner:
    """Builder of a plan, loop by loop; `written`: the blocks set so far."""

    def __init__(self, program: Program):
        defined = [s.name for s in program.statements if isinstance(s, (Let, Sum))]
        known = list(dict.fromkeys([*program.recipe.entries, *supplied(program), *defined]))
        self.program = program
        self.arrays = tuple(s for s in known if is_by_site(s))
        self.numbers = tuple(s for s in known if not is_by_site(s))
        self.constants = tuple(inputs(program))
        self.written: frozenset[Symbol] = frozenset()

    def segment(self, before: Gradient | Observe | None, passes: Passes) -> Segment:
        """The segment of statements by site and by chain, one pair for each pass."""
        written = self.written
        loops = []
        for sites, chain in passes:
            over_sites = self._over_sites(sites)
            loops.append(Pass(over_sites, self._over_chains(chain, over_sites.sums)))
        return Segment(before, tuple(loops), written)

    def _over_sites(self, statements):
        symbols: dict[Expr, Symbol] = {}
        return self._loop(
            statements,
            values=tuple(hoisted(s.values[0], symbols) for s in statements),
            once=tuple((name, e) for e, name in symbols.items()),
            loads=tuple(s for s in self.arrays if _is_read_first(s, statements)),
            stores=self._left_by(statements),
            numbers=tuple(s for s in self.numbers if s in symbols_read(statements)),
            sums=tuple(s.name for s in statements if isinstance(s, Sum)),
        )

    def _left_by(self, statements):
        """The symbols by site set in a loop that are blocks, or are read outside the loop."""
        inside = {id(s) for s in statements}
        read_elsewhere = symbols_read(s for s in self.program.statements if id(s) not in inside)
        by_site = dict.fromkeys(s for s in map(subject, statements) if is_by_site(s))
        return tuple(s for s in by_site if isinstance(s, Block) or s in read_elsewhere)

    def _over_chains(self, statements, sums):
        return self._loop(
            statements,
            values=tuple(s.value for s in statements),
            loads=tuple(s for s in self.numbers if s not in sums and _is_read_first(s, statements)),
            stores=tuple(dict.fromkeys(map(subject, statements))),
            sums=sums,
        )

    def _loop(self, statements, *, stores, **parts):
        read = symbols_read(statements)
        loop = Loop(
            tuple(statements),
            stores=stores,
            constants=tuple(s for s in self.constants if s in read),
            draws=tuple(d for d in self.program.draws if d in read),
            written=self.written,
            **parts,
        )
        self.written |= {s for s in stores if isinstance(s, Block)}
        return loop


def check_statements(program: Program) -> None:
    """Refuse operators, and random numbers whose law depends on the state."""
    if program.has_operators:
        raise _unsupported(program, "a site reads others by an operator")
    for d in program.draws:
        if d.kind not in ("normal", "uniform"):
            raise _unsupported(program, f"the law of the {d.kind} number of {d.name} depends on the state")


def supplied(program: Program) -> list[Symbol]:
    """The derivatives and statistics that the caller supplies."""
    return [name for s in program.statements if isinstance(s, Gradient | Observe) for name in s.defines]


def inputs(program: Program) -> list[Symbol]:
    """The symbols of numbers that Python computes once per step: constants, parameters, T, h."""
    defined = {name for s in program.statements for name in s.defines}
    numbers = (s for s in symbols_read(program.statements) - defined if not isinstance(s, (Variate, Block)))
    return sorted(numbers, key=lambda s: s.name)


def _is_read_first(s, statements):
    for statement in statements:
        if any(s in e.free_symbols for e in statement.values):
            return True
        if subject(statement) == s:
            return False
    return False


def hoisted(e: Expr, symbols: dict) -> Expr:
    """The expression with subexpressions of one value per chain named in `symbols`, a dict of Symbols by expression."""
    if not isinstance(e, Expr) or e.is_Atom or not e.free_symbols:
        return e
    if not any(map(is_by_site, e.free_symbols)):
        return symbols.setdefault(e, Symbol(f"once{len(symbols)}"))
    if e.is_Mul or e.is_Add:
        of_chain = [x for x in e.args if not any(map(is_by_site, x.free_symbols))]
        of_site = [x for x in e.args if x not in of_chain]
        return e.func(hoisted(e.func(*of_chain), symbols), *(hoisted(x, symbols) for x in of_site))
    return e.func(*(hoisted(x, symbols) for x in e.args))


def _cut(program: Program) -> list[tuple[Gradient | Observe | None, Passes]]:
    """The statements of a program by segment and pass."""
    cuts: list[tuple[Gradient | Observe | None, Passes]] = []
    for statement in program.statements:
        match statement:
            case Gradient() | Observe():
                cuts.append((statement, [([], [])]))
            case Let() | Set() | Adapt() | Sum():
                cuts = cuts or [(None, [([], [])])]
                _place(statement, cuts[-1][1])
            case Solve():
                raise _unsupported(program, "there is no form of solve")
    return cuts or [(None, [([], [])])]


def _place(statement: Assignment, passes: Passes) -> None:
    """Put a statement into the last pass, or into a new pass if it is by site and reads that pass's end."""
    sites, chain = passes[-1]
    if not (isinstance(statement, Sum) or is_by_site(subject(statement))):
        chain.append(statement)
    elif {*map(subject, chain), *(s.name for s in sites if isinstance(s, Sum))} & symbols_read([statement]):
        passes.append(([statement], []))
    else:
        sites.append(statement)
