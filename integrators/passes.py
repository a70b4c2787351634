"""A Program cut for kernels that go over tensors: segments between what the caller supplies, passes over the sites.

A pass is one loop over all sites; it ends where a total of what it computes is needed. What has one value per chain is
computed between passes. A gradient is the caller's: it ends a segment.
"""

from dataclasses import dataclass, field
from functools import cached_property

from sympy import Expr, Symbol

from recipe.errors import RecipeError
from recipe.symbols import Block

from .flow import Variate
from .program import Adapt, Draw, Gradient, Let, Observe, Program, Set, Sum


class Unsupported(RecipeError):
    """A Program has a statement or function that a backend cannot print."""


def is_by_site(s) -> bool:
    """Whether a symbol has one value per site."""
    return bool(getattr(s, "is_vector", False))


def subject(statement) -> Symbol:
    """What a statement gives a value to."""
    return statement.name if isinstance(statement, (Let, Sum)) else statement.block


@dataclass
class Pass:
    """Statements by site, with totals of them, then statements by chain."""

    sites: list = field(default_factory=list)
    chain: list = field(default_factory=list)

    @property
    def totals(self) -> list[Sum]:
        """The totals that the pass takes."""
        return [s for s in self.sites if isinstance(s, Sum)]

    def reads(self, statements) -> set:
        """The symbols that some of its statements read."""
        return set().union(set(), *(e.free_symbols for s in statements for e in s.values))


@dataclass(frozen=True)
class Segment:
    """The passes after a gradient or observation that the caller supplies; `written` are the blocks set before."""

    before: Gradient | Observe | None
    passes: tuple[Pass, ...]
    written: frozenset = frozenset()

    @property
    def sets(self) -> frozenset:
        """The blocks that are set here."""
        return frozenset(subject(s) for p in self.passes for s in (*p.sites, *p.chain) if isinstance(s, (Set, Adapt)))


@dataclass(frozen=True)
class Layout:
    """What kernels of a Program are given: arrays by site, numbers by chain, constants; and its segments."""

    program: Program
    segments: tuple[Segment, ...]
    arrays: tuple[Symbol, ...]
    numbers: tuple[Symbol, ...]
    constants: tuple[Symbol, ...]

    @property
    def written(self) -> frozenset:
        """The blocks that a step sets."""
        return self.segments[-1].written | self.segments[-1].sets

    @cached_property
    def totals(self) -> int:
        """The most totals that a pass takes."""
        return max((len(p.totals) for s in self.segments for p in s.passes), default=0)

    def is_supplied(self, s) -> bool:
        """Whether a value is a derivative or a statistic of the caller's."""
        names = [
            [g for _, g in b.names] if isinstance(b, Gradient) else [b.name]
            for b in (x.before for x in self.segments)
            if b
        ]
        return any(s in some for some in names)

    def outlives(self, local, p) -> bool:
        """Whether a value is read outside of its pass."""
        inside = {id(s) for s in p.sites}
        return any(local in e.free_symbols for s in self.program.statements if id(s) not in inside for e in s.values)


def layout(program: Program) -> Layout:
    """The layout of a Program. Raises Unsupported for what no kernel can do."""
    where = f"{program.recipe.name}, kernel"
    if program.scope != "chain":
        raise Unsupported(where, f"there is none in the scope {program.scope!r}", do="Use backend='torch'.")
    check_draws(program)
    defined = [s.name for s in program.statements if isinstance(s, (Let, Sum))]
    known = list(dict.fromkeys([*program.recipe.entries, *supplied(program), *defined]))
    arrays = tuple(filter(is_by_site, known))
    return Layout(
        program, _segments(program, where), arrays, tuple(s for s in known if s not in arrays), tuple(inputs(program))
    )


def check_draws(program: Program) -> None:
    """Refuse random numbers whose law depends on the state."""
    for d in program.draws:
        if d.kind not in ("normal", "uniform"):
            raise Unsupported(
                f"{program.recipe.name}, kernel",
                f"the law of the {d.kind} number of {d.name} depends on the state",
                do="Use backend='torch'.",
            )


def supplied(program: Program) -> list[Symbol]:
    """The derivatives and statistics that the caller supplies."""
    return [
        x
        for s in program.statements
        if isinstance(s, (Gradient, Observe))
        for x in ([g for _, g in s.names] if isinstance(s, Gradient) else [s.name])
    ]


def inputs(program: Program) -> list[Symbol]:
    """The symbols that stand for numbers which Python computes once a step: constants, parameters, T, h."""
    defined = {n for s in program.statements for n in getattr(s, "defines", ())} | {*supplied(program)}
    defined |= {s.name for s in program.statements if isinstance(s, Sum)}
    read = set().union(*(e.free_symbols for s in program.statements for e in s.values), set())
    return sorted((s for s in read - defined if not isinstance(s, (Variate, Block))), key=lambda s: s.name)


def is_read_first(s, statements) -> bool:
    """Whether a symbol is read before a statement sets it."""
    for statement in statements:
        if any(s in e.free_symbols for e in statement.values):
            return True
        if subject(statement) == s:
            return False
    return False


def hoisted(e: Expr, once: dict) -> Expr:
    """The expression with what has one value per chain named in `once`, a dict from expressions to symbols."""
    if not isinstance(e, Expr) or e.is_Atom or not e.free_symbols:
        return e
    if not any(map(is_by_site, e.free_symbols)):
        return once.setdefault(e, Symbol(f"once{len(once)}"))
    if e.is_Mul or e.is_Add:
        still = [x for x in e.args if not any(map(is_by_site, x.free_symbols))]
        return e.func(hoisted(e.func(*still), once), *(hoisted(x, once) for x in e.args if x not in still))
    return e.func(*(hoisted(x, once) for x in e.args))


def _segments(program, where):
    segments, before, passes, written = [], None, [Pass()], frozenset()
    for statement in program.statements:
        match statement:
            case Gradient() | Observe():
                if before is not None or any(p.sites or p.chain for p in passes):
                    segments.append(Segment(before, tuple(passes), written))
                    written |= segments[-1].sets
                before, passes = statement, [Pass()]
            case Draw():
                pass
            case Let() | Set() | Adapt() | Sum():
                _place(statement, passes)
            case _:
                raise Unsupported(
                    where, f"there is no form of {type(statement).__name__.lower()}", do="Use backend='torch'."
                )
    return (*segments, Segment(before, tuple(passes), written))


def _place(statement, passes):
    """Put a statement into the last pass; into a new one if it goes over the sites and reads what that pass ends with."""
    last = passes[-1]
    if not (isinstance(statement, Sum) or is_by_site(subject(statement))):
        last.chain.append(statement)
        return
    if {*map(subject, last.chain), *(t.name for t in last.totals)} & last.reads([statement]):
        passes.append(last := Pass())
    last.sites.append(statement)
