"""Metropolised steps: a step of any size is proposed, and taken with a probability that makes exp(-H/T) exact.

A step whose work is W is accepted with the probability min(1, exp(-W/T)), and goes on in its direction s of time; where
it is rejected the chain stays and turns round, s -> -s. This leaves exp(-H/T) invariant at every step size. A step
without curl is then MALA, one with a momentum drawn anew is HMC, one with a partial refreshment guided HMC.
"""

from collections.abc import Mapping
from dataclasses import replace

from sympy import Add, Expr, Piecewise, S, exp

from recipe import Energy, Recipe
from recipe.arguments import integer
from recipe.symbols import Block
from recipe.symbols import temperature as T

from .compiler import check_choices, check_symbolic, word_of
from .flow import Flow
from .lower import lower
from .program import Draw, Let, Local, Program, Set, Stage, Statement, verify
from .scheme import Move, Scheme, Word
from .split import all_letters
from .step import Step
from .variates import Uniform
from .work import ACCEPTED, DIRECTION, WORK, Worked, directed, works

BEGIN, END = "begin", "end"


def metropolised(
    recipe: Recipe,
    scheme: Word | None = None,
    *,
    pieces: Mapping | None = None,
    energy: Energy | None = None,
    repeat: int = 1,
    backend: str = "auto",
) -> Step:
    """A step that is accepted or rejected by its work: exp(-H/T) is exact at every step size.

    `recipe`, `scheme`, `pieces` and `backend` are those of `integrators.compile`; `energy` stands for U where that is
    opaque; `repeat` words, each over h, are one proposal. The state has three more numbers of each chain: "direction",
    1 or -1, which must be drawn evenly at the start; "work", W of the last proposal; "accepted", how many were.

    Raises RecipeError for an opaque U, for adaptations, and for a flow whose reversed path has no density.
    Source: Sivak, Chodera and Crooks (2013); Horowitz (1991), "A generalized guided Monte Carlo algorithm".

    >>> from recipe import Energy, total, vector
    >>> from samplers import UnderdampedLangevin
    >>> theta = vector("theta")
    >>> step = metropolised(UnderdampedLangevin, energy=Energy(theta, U=total(theta**4)/4))
    >>> print(step.program.stages[-1].title)
    accept with the probability min(1, exp(-work/T)), or stay and turn round
    """
    check_choices(recipe, backend)
    if energy is not None:
        check_symbolic(recipe, energy)
        recipe = recipe.bind(U=energy)
    repeat = integer(f"{recipe.name}, metropolised", "repeat", repeat, least=1)
    letters = all_letters(recipe, pieces)
    read = word_of(recipe, scheme, letters)
    both_ways = directed(recipe)
    moves, flows = _path(recipe, read, works(both_ways, read, all_letters(both_ways, pieces)), repeat)
    program = _accepting(lower(both_ways, Scheme(read.text, moves), flows), recipe.state)
    own = {letter: flows[letter] for letter in read.letters}
    return MetropolisedStep(both_ways, read, own, program, backend="torch" if backend == "auto" else backend)


class MetropolisedStep(Step):
    """A Step that is accepted or rejected as a whole."""

    needs_heat = True

    @property
    def exact(self) -> bool:
        """Whether exp(-H/T) is invariant at every step size: it is."""
        return True

    def __str__(self):
        title = f"{self.recipe.name}, {self.scheme}, accepted or rejected by its work: exact at every step size"
        return "\n".join([title, *(f"  {flow}" for flow in self.flows.values())])


def _path(
    recipe: Recipe, word: Scheme, worked: Mapping[str, Worked], repeat: int
) -> tuple[tuple[Move, ...], dict[str, Flow]]:
    """The moves of a proposal and their flows, which sum up the work.

    A palindrome runs as it is in either direction; of another word the reverse follows it, in which the chains move
    whose direction is -1. Jumps stand in every repetition.
    """
    H = recipe.H
    flows = {BEGIN: Flow(BEGIN, {WORK: -H}, (), "work", True, "work = -H")}
    flows[END] = Flow(END, {WORK: WORK + H}, (), "work", True, "work = work + H")
    forward = {letter: _with_work(H, one) for letter, one in worked.items()}
    if word.is_palindrome:
        return ((BEGIN, S.One), *word.moves * repeat, (END, S.One)), flows | forward
    for letter, flow in forward.items():
        flows[letter] = _only(flow, letter, DIRECTION > 0)
        flows[f"{letter} back"] = _only(flow, f"{letter} back", DIRECTION < 0)
    back = tuple((f"{letter} back", share) for letter, share in word.moves[::-1])
    return ((BEGIN, S.One), *word.moves * repeat, *back * repeat, (END, S.One)), flows


def _with_work(H: Expr, worked: Worked) -> Flow:
    """The flow with what it adds to the work, less its own change of H where that is none."""
    flow = replace(worked.flow, rule=f"{worked.flow.rule}, {worked.in_words}")
    if worked.balanced:
        terms = [e for e in Add.make_args(H) if e.has(*flow.updates)]
        own = -Add(*(e.xreplace(flow.updates) - e for e in terms))
    else:
        own = worked.heat
    return replace(flow, updates={**flow.updates, WORK: WORK + own}) if own != 0 else flow


def _only(flow: Flow, letter: str, condition: object) -> Flow:
    """The flow of the chains of which a condition holds."""
    updates = {b: Piecewise((e, condition), (b, True)) for b, e in flow.updates.items()}
    return replace(flow, letter=letter, updates=updates)


def _accepting(program: Program, state: tuple[Block, ...]) -> Program:
    """The program with the state of its beginning kept, and at its end accepted or rejected."""
    before = {b: Local(f"{b}_before", b.is_vector) for b in state}
    first, *others = program.stages
    kept = Stage(first.title, (*(Let(old, b) for b, old in before.items()), *first.statements))
    draw = Uniform(DIRECTION, "accept")
    accepted = Local("is_accepted")
    statements: list[Statement] = [
        Draw(draw),
        Let(accepted, Piecewise((S.One, draw < exp(-WORK / T)), (S.Zero, True))),
        *(Set(b, Piecewise((b, accepted > 0), (old, True))) for b, old in before.items()),
        Set(DIRECTION, Piecewise((DIRECTION, accepted > 0), (-DIRECTION, True))),
        Set(ACCEPTED, ACCEPTED + accepted),
    ]
    title = "accept with the probability min(1, exp(-work/T)), or stay and turn round"
    program = replace(program, stages=(kept, *others, Stage(title, tuple(statements))))
    verify(program)
    return program
