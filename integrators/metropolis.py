"""Metropolised steps: a step of any size is proposed, and taken with a probability that makes exp(-H/T) exact.

A step whose work is W is accepted with the probability min(1, exp(-W/T)), and goes on in its direction s of time; where
it is rejected the chain stays and turns round, s -> -s. This leaves exp(-H/T) invariant at every step size. A step
without curl is then MALA, one with a momentum drawn anew is HMC, one with a partial refreshment guided HMC.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count

from sympy import Add, And, Expr, Ge, Gt, Le, Piecewise, S, exp

from recipe import Energy, Recipe
from recipe.arguments import integer
from recipe.symbols import Adapted, Block
from recipe.symbols import temperature as T

from .compiler import block_names, check_choices, check_fields, with_energy, word_of
from .domains import bounds
from .flow import Flow
from .lower import lower
from .program import Draw, Let, Local, Program, Set, Stage, Statement, Sum, rewritten, verify
from .scheme import Move, Scheme, Word
from .split import all_letters
from .step import Step
from .variates import Uniform
from .work import ACCEPTED, DIRECTION, WORK, Worked, directed, works

BEGIN, END = "begin", "end"
COLDNESS = Local("coldness", constant=True)  # 1/T
COMPARED = {">": Gt, ">=": Ge, "<=": Le}
ENDLESS = 1e30  # the work of a step that leads nowhere
LARGEST = 3e38  # of the numbers of float32


def metropolised(
    recipe: Recipe,
    scheme: Word | None = None,
    *,
    pieces: Mapping | None = None,
    energy: Energy | None = None,
    repeat: int = 1,
    backend: str = "auto",
    freeze: Block | str | Iterable[Block | str] = (),
    accept: bool = True,
) -> "MetropolisedStep":
    """A step that is accepted or rejected by its work: exp(-H/T) is exact at every step size.

    `recipe`, `scheme`, `pieces`, `energy`, `backend` and `freeze` are those of `integrators.compile`; the step reads
    `value(theta)`, U of every chain, beside its gradient, of several potentials a dict of such by name. `repeat` words,
    each over h, are one proposal; flows without work at the ends of the word that leave the target alone, a refreshment
    say, stand once, before and after it, over `repeat` h. The state has three more numbers of each chain: "direction",
    1 or -1, which must be drawn evenly at the start; "work", W of the last proposal; "accepted", how many were. Without
    `accept` every proposal is taken, as a plain step is, and its work is what there is to know.

    Raises RecipeError for adaptations that are running, and for a flow whose reversed path has no density.
    Source: Sivak, Chodera and Crooks (2013); Horowitz (1991), "A generalized guided Monte Carlo algorithm".

    >>> from recipe import Energy, total, vector
    >>> from samplers import UnderdampedLangevin
    >>> theta = vector("theta")
    >>> step = metropolised(UnderdampedLangevin, energy=Energy(theta, U=total(theta**4)/4))
    >>> print(step.program.stages[-1].title)
    accept with the probability min(1, exp(-work/T)), or stay and turn round
    """
    check_choices(recipe, backend)
    check_fields(recipe, None)
    frozen = block_names(freeze, recipe)
    if energy is not None:
        recipe = with_energy(recipe, energy)
    repeat = integer(f"{recipe.name}, metropolised", "repeat", repeat, least=1)
    word = word_of(recipe, scheme, all_letters(recipe, pieces))
    both_ways = directed(recipe, frozen)
    worked = works(both_ways, word, all_letters(both_ways, pieces), frozen)
    path = _path(recipe, word, worked, repeat)
    remembering = replace(both_ways, adapt={**both_ways.adapt, **{x: x for x in path.memory}}, claim=recipe.claim)
    opaque = energy if recipe.potential else None
    program = lower(remembering, Scheme(word.text, path.moves), path.flows, energy=opaque, value=True)
    program = replace(program, recipe=both_ways, stages=_with_locals(program.stages, path.memory))
    moving = [b for b in recipe.state if b.name not in frozen]
    if accept:
        program = _accepting(program, path, moving)
    own = {letter: _labelled(worked[letter]) for letter in word.letters}
    formulas = {letter: worked[letter].formula for letter in word.letters}
    backend = "torch" if backend == "auto" else backend
    return MetropolisedStep(
        both_ways, word, own, program, None, backend, frozen, dict(pieces or {}), recipe, accept, formulas, repeat
    )


@dataclass(frozen=True)
class MetropolisedStep(Step):
    """A Step that knows its work, and is accepted or rejected as a whole where it `accepts`.

    `plain` is the recipe without direction and work. `work_formulas`: the work of each flow by its letter, where z is
    the state before the flow, z' the one after it, and x_left the block x of z. `repeat`: the words of a proposal.
    """

    plain: Recipe | None = None
    accepts: bool = True
    work_formulas: dict[str, str] = field(default_factory=dict)
    repeat: int = 1

    needs_heat = True

    @property
    def declared(self) -> Recipe:
        """The recipe whose law the step has, as it was declared."""
        return self.plain or self.recipe

    @property
    def exact(self) -> bool:
        """Whether exp(-H/T) is invariant at every step size: it is where the step is accepted or rejected."""
        return self.accepts

    def __str__(self):
        how = "accepted or rejected by its work: exact at every step size" if self.accepts else "with its work"
        words = f"; a proposal is {self.repeat} words of h each" if self.repeat > 1 else ""
        title = f"{self.recipe.name}, {self.scheme}, {how}{words}"
        return "\n".join([title, *(f"  {flow}" for flow in self.flows.values())])


@dataclass(frozen=True)
class Path:
    """The moves of a step, of which those from `begin` to `end` are the proposal, with all flows.

    `memory`: what keeps the blocks whose value before a flow is read after it.
    """

    moves: tuple[Move, ...]
    flows: dict[str, Flow]
    memory: tuple[Adapted, ...]

    @property
    def proposal(self) -> tuple[int, int]:
        """The places of its first and its last move."""
        letters = [letter for letter, _ in self.moves]
        return letters.index(BEGIN), letters.index(END)


def _path(recipe: Recipe, word: Scheme, worked: Mapping[str, Worked], repeat: int) -> Path:
    """The path of a step, whose flows sum up the work of the proposal.

    A palindrome is proposed as it is in either direction; of another word the reverse follows it, in which the chains
    move whose direction is -1.
    """
    H = recipe.H
    first, last = _outside(recipe, word, worked)
    before = tuple((_alone(letter), share * repeat) for letter, share in word.moves[:first])
    after = tuple((_alone(letter), share * repeat) for letter, share in word.moves[last:])
    inside = word.moves[first:last]

    # a letter may stand inside too, where it reads the work
    flows = {_alone(letter): worked[letter].flow for letter, _ in (*word.moves[:first], *word.moves[last:])}
    flows[BEGIN] = Flow(BEGIN, {WORK: -H}, (), "work", True, "work = -H")
    flows[END] = Flow(END, {WORK: WORK + H}, (), "work", True, "work = work + H")
    for letter in dict.fromkeys(letter for letter, _ in inside):
        flows |= _with_work(H, worked[letter])
    forward = _with_returns(inside, flows)
    memory = tuple(dict.fromkeys(kept for letter, _ in inside for kept in worked[letter].left.values()))
    if Scheme(word.text, inside).is_palindrome:
        moves = forward * repeat
    else:
        back = {letter: _only(flow, f"{letter} back", DIRECTION < 0, memory) for letter, flow in flows.items()}
        flows |= {letter: _only(flows[letter], letter, DIRECTION > 0, memory) for letter, _ in forward}
        backward = _with_returns(inside[::-1], flows)
        flows |= {f"{letter} back": back[letter] for letter, _ in backward}
        moves = forward * repeat + tuple((f"{letter} back", share) for letter, share in backward) * repeat
    return Path((*before, (BEGIN, S.One), *moves, (END, S.One), *after), flows, memory)


def _outside(recipe: Recipe, word: Scheme, worked: Mapping[str, Worked]) -> tuple[int, int]:
    """Where the moves begin and end that are not at an end of the word without work and without the target."""

    def stands_alone(letter: str) -> bool:
        return worked[letter].balanced and not any(b in recipe.targets for b in worked[letter].flow.updates)

    inside = [k for k, (letter, _) in enumerate(word.moves) if not stands_alone(letter)]
    return (inside[0], inside[-1] + 1) if inside else (0, 0)


def _with_work(H: Expr, worked: Worked) -> dict[str, Flow]:
    """The flow with what it adds to the work, less its own change of H where that is none; and what follows it."""
    flow = worked.flow
    if worked.balanced and not flow.swaps:
        terms = [e for e in Add.make_args(H) if e.has(*flow.updates)]
        own = -Add(*(e.xreplace(flow.updates) - e for e in terms))
    else:
        own = worked.heat
    updates = flow.updates | {kept: b for b, kept in worked.left.items()}
    if own != 0:
        updates[WORK] = WORK + own
    flows = {flow.letter: replace(flow, updates=updates, swaps={})}
    if worked.returned != 0:
        letter = _return(flow.letter)
        flows[letter] = Flow(letter, {WORK: WORK + worked.returned}, (), "work", True, "work of the way back")
    return flows


def _labelled(worked: Worked) -> Flow:
    """The flow, whose rule says what its work is."""
    return replace(worked.flow, rule=f"{worked.flow.rule}, {worked.in_words}")


def _alone(letter: str) -> str:
    return f"{letter} alone"


def _return(letter: str) -> str:
    return f"{letter} returned"


def _with_returns(moves: tuple[Move, ...], flows: Mapping[str, Flow]) -> tuple[Move, ...]:
    """The moves, each followed by the work of its way back where it has one."""
    whole: list[Move] = []
    for letter, share in moves:
        whole.append((letter, share))
        if _return(letter) in flows:
            whole.append((_return(letter), share))
    return tuple(whole)


def _only(flow: Flow, letter: str, condition: object, memory: Collection[Adapted]) -> Flow:
    """The flow of the chains of which a condition holds; what goes to memory is kept of all."""
    updates = {b: e if b in memory else Piecewise((e, condition), (b, True)) for b, e in flow.updates.items()}
    return replace(flow, letter=letter, updates=updates)


def _with_locals(stages: Sequence[Stage], memory: Collection[Adapted]) -> tuple[Stage, ...]:
    """The stages with a value of the step's own for every time that something is kept."""
    latest: dict[Adapted, Local] = {}
    count = 0

    def settled(statement: Statement) -> Statement:
        nonlocal count
        statement = rewritten(statement, latest)
        if not (isinstance(statement, Set) and statement.block in memory):
            return statement
        count += 1
        latest[statement.block] = Local(f"{statement.block}{count}", statement.block.is_vector)
        return Let(latest[statement.block], statement.value)

    return tuple(Stage(stage.title, tuple(map(settled, stage.statements))) for stage in stages)


def _accepting(program: Program, path: Path, moving: Collection[Block]) -> Program:
    """The program with the state at the beginning of the proposal kept, and at its end accepted or rejected."""
    begin, end = path.proposal
    others = len(program.stages) - len(path.moves)  # the derivatives that the step takes over
    stages = list(program.stages)
    changed = {b for letter, _ in path.moves[begin:end] for b in path.flows[letter].updates}
    subjects: list[Block | Local] = [b for b in moving if b in changed]
    subjects += [g for _, g in program.carried]
    before = {s: Local(f"{s}_before", bool(s.is_vector)) for s in subjects}
    kept = stages[begin + others]
    keeping = tuple(Let(old, s) for s, old in before.items())
    stages[begin + others] = Stage(kept.title, (*keeping, *kept.statements))
    taken = {d.name for d in program.draws}
    stages.insert(end + others + 1, _acceptance(before, taken))
    program = replace(program, stages=tuple(stages), constants=(*program.constants, Let(COLDNESS, 1 / T)))
    verify(program)
    return program


def _fresh(name: str, taken: Collection[str]) -> str:
    """The name, with a number where it is taken."""
    return next(x for x in chain([name], (f"{name}{k}" for k in count(2))) if x not in taken)


def _acceptance(before: Mapping[Block | Local, Local], taken: Collection[str]) -> Stage:
    """The stage that accepts or rejects what has been proposed; `before`: what was there; `taken`: names of draws."""
    draw = Uniform(DIRECTION, _fresh("accept", taken))
    accepted = Local("is_accepted")
    inside, compared = _inside([b for b in before if isinstance(b, Block)])
    statements: list[Statement] = [
        # NaN compares as False, and from U = -inf no step would lead on
        Set(WORK, Piecewise((WORK, And(WORK < ENDLESS, WORK > -LARGEST)), (ENDLESS, True))),
        Draw(draw),
        *compared,
        Let(accepted, Piecewise((S.One, And(draw < exp(-WORK * COLDNESS), *inside)), (S.Zero, True))),
        *(Set(s, Piecewise((s, accepted > 0), (old, True))) for s, old in before.items()),
        Set(DIRECTION, Piecewise((DIRECTION, accepted > 0), (-DIRECTION, True))),
        Set(ACCEPTED, ACCEPTED + accepted),
    ]
    return Stage("accept with the probability min(1, exp(-work/T)), or stay and turn round", tuple(statements))


def _inside(blocks: Iterable[Block]) -> tuple[list[Expr], list[Statement]]:
    """The conditions that blocks are in their domains, with the statements that these read."""
    conditions: list[Expr] = []
    statements: list[Statement] = []
    for b in blocks:
        there = Local(f"{b}_there", bool(b.is_vector))  # unlike the block it may be anywhere
        ends = [COMPARED[sign](there, end) for sign, end in bounds(b)]
        if not ends:
            continue
        statements.append(Let(there, b))
        if b.is_vector:
            outside = Local(f"outside_{b}")
            statements.append(Sum(outside, Piecewise((S.Zero, And(*ends)), (S.One, True))))
            ends = [outside < 1]
        conditions += ends
    return conditions, statements
