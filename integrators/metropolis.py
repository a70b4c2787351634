"""Metropolised steps: proposals accepted or rejected so that exp(-H/T) is exact at every step size.

A step with work W is accepted with the probability min(1, exp(-W/T)), and the chain keeps its direction s of time; at a
rejection the chain stays and reverses its direction, s -> -s. The law exp(-H/T) is invariant at every step size. A step
without curl is then MALA, a step with a momentum drawn anew HMC, a step with a partial refreshment guided HMC.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from sympy import And, Expr, Piecewise, S, Symbol, exp

from recipe import Energy, Recipe
from recipe.arguments import integer
from recipe.errors import RecipeError
from recipe.fields import fields_of
from recipe.pieces import Piece, lettered
from recipe.representative import representative
from recipe.scheme import Move, Scheme, Word, all_letters
from recipe.symbols import Adapted, Block, Potential, Total, masked
from recipe.symbols import temperature as T

from .compiler import block_names, check_choices, default_words, with_energy, word_of
from .derivatives import Derivative
from .direction import ACCEPTED, DIRECTION, WORK, directed, remembered
from .domain_bounds import COMPARED, bounds
from .extraction import unused
from .flow import Flow
from .lower import lower
from .passes import is_by_site, subject
from .program import Draw, Let, Local, Program, Set, Stage, Statement, Sum, rewritten, verify
from .step import Step
from .variates import Uniform
from .work import Worked, change, works

BEGIN, END = "begin", "end"
COLDNESS = Local("coldness", constant=True)  # 1/T
ENDLESS = 1e30  # the work that replaces larger, infinite and undefined work
LARGEST = 3e38  # the largest number of float32


def metropolised(
    recipe: Recipe,
    scheme: Word | None = None,
    *,
    pieces: Mapping[Any, Any] | None = None,
    energy: Energy | None = None,
    repeat: int = 1,
    backend: str = "auto",
    freeze: Block | str | Iterable[Block | str] = (),
    accept: bool = True,
) -> "MetropolisedStep":
    """A step that is accepted or rejected by its work: exp(-H/T) is exact at every step size.

    `recipe`, `scheme`, `pieces`, `energy`, `backend` and `freeze` are as in `integrators.compile`; the step reads
    `value(theta)`, U of every chain, beside its gradient, or dicts of both by potential; U may be float64 in a state of
    float32, unless a formula by site reads it. A proposal is `repeat` words, each over h; flows without work that leave
    the target alone, such as a refreshment, stand once at either end of the proposal, over `repeat` h. The state has
    three more numbers per chain: "direction", 1 or -1 with probability 1/2 at the start; "work", W of the last
    proposal; "accepted", the number of accepted proposals. Without `accept` every proposal is taken, and its work
    recorded.

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
    frozen = block_names(freeze, recipe)
    if energy is not None:
        recipe = with_energy(recipe, energy)
    repeat = integer(f"{recipe.name}, metropolised", "repeat", repeat, least=1)
    is_chosen = scheme is not None or recipe.scheme is not None
    word = word_of(recipe, scheme, all_letters(recipe, pieces)) if is_chosen else None
    declared = {**recipe.pieces, **lettered(pieces or {}, f"{recipe.name}, pieces")}
    step = _proposal(representative(recipe), word, tuple(declared.items()), energy, repeat, frozen, accept)
    return replace(
        step,
        flows=dict(step.flows),
        work_formulas=dict(step.work_formulas),
        backend="torch" if backend == "auto" else backend,
        pieces=dict(pieces or {}),
        plain=recipe,
    )


@lru_cache(maxsize=64)
def _proposal(
    recipe: Recipe,
    scheme: Scheme | None,
    pieces: tuple[tuple[str, Piece], ...],
    energy: Energy | None,
    repeat: int,
    frozen: tuple[str, ...],
    accept: bool,
) -> "MetropolisedStep":
    """The step in torch, remembered, since backends and checks compile the same recipe."""
    both_ways = directed(recipe, frozen)
    word, worked = _with_a_work(recipe, both_ways, scheme, dict(pieces), frozen)
    path = _path(recipe, _formula_of_H(recipe, energy), word, worked, repeat)
    remembering = replace(both_ways, adapt={**both_ways.adapt, **{x: x for x in path.memory}}, claim=recipe.claim)
    opaque = energy if recipe.potential else None
    program = lower(remembering, Scheme(word.text, path.moves), path.flows, energy=opaque, value=True)
    program = replace(program, recipe=both_ways, stages=_with_locals(program.stages, path.memory))
    program = replace(program, in_float64=_subtracted(program))
    moving = [b for b in recipe.state if b.name not in frozen]
    if accept:
        program = _accepting(program, path, moving)
    moves = {letter: worked[letter] for letter in word.letters}
    flows = {x: replace(move.flow, rule=f"{move.flow.rule}, {move.in_words}") for x, move in moves.items()}
    formulas = {letter: move.formula for letter, move in moves.items()}
    return MetropolisedStep(
        both_ways,
        word,
        flows,
        program,
        frozen=frozen,
        plain=recipe,
        accepts=accept,
        work_formulas=formulas,
        repeat=repeat,
    )


def _formula_of_H(recipe: Recipe, energy: Energy | None) -> Expr:
    """H, with an energy by site in place of U: the change of U is then a sum of changes by site."""
    if energy is None or energy.data or not energy.is_sitewise or recipe.has_several_potentials:
        return recipe.H
    return recipe.H.xreplace({recipe.potential: energy.value.xreplace({energy.coordinates[0]: recipe.targets[0]})})


def _with_a_work(
    recipe: Recipe, both_ways: Recipe, scheme: Scheme | None, pieces: Mapping[str, Piece], frozen: tuple[str, ...]
) -> tuple[Scheme, dict[str, Worked]]:
    """The word with its works: of the default words the first that has them, else of the first the error."""
    letters = all_letters(recipe, pieces)
    words = [scheme] if scheme else dict.fromkeys(default_words(recipe, letters))
    faults = []
    for word in (word_of(recipe, one, letters) for one in words):
        try:
            return word, works(both_ways, word, all_letters(both_ways, pieces), frozen)
        except RecipeError as fault:
            faults.append(fault)
    raise faults[0]


@dataclass(frozen=True)
class MetropolisedStep(Step):
    """A Step that records its work, and with `accepts` is accepted or rejected as a whole.

    `plain`: the recipe without direction and work. `work_formulas`: the work of each flow by its letter, with z the
    state before the flow, z' the state after the flow, x_left the block x of z, and x_tilt its drift over T D in z.
    `repeat`: the number of words in a proposal.
    """

    plain: Recipe | None = None
    accepts: bool = True
    work_formulas: dict[str, str] = field(default_factory=dict)
    repeat: int = 1

    needs_heat = True

    @property
    def declared(self) -> Recipe:
        """The declared recipe, without direction and work; the step samples its law."""
        return self.plain or self.recipe

    @property
    def exact(self) -> bool:
        """Whether exp(-H/T) is invariant at every step size: true if the step is accepted or rejected."""
        return self.accepts

    def __str__(self):
        how = "accepted or rejected by its work: exact at every step size" if self.accepts else "with its work"
        words = f"; a proposal is {self.repeat} words of h each" if self.repeat > 1 else ""
        title = f"{self.recipe.name}, {self.scheme}, {how}{words}"
        return "\n".join([title, *(f"  {flow}" for flow in self.flows.values())])


@dataclass(frozen=True)
class Path:
    """The moves and flows of a step; the moves from `begin` to `end` are the proposal.

    `memory`: quantities that hold a value from before a flow, or from before the proposal, for formulas after it.
    """

    moves: tuple[Move, ...]
    flows: dict[str, Flow]
    memory: tuple[Adapted, ...]


def _path(recipe: Recipe, H: Expr, word: Scheme, worked: Mapping[str, Worked], repeat: int) -> Path:
    """The path of a step, with flows that sum up the work of the proposal.

    A palindrome is the proposal in either direction of time; any other word is followed by its reverse, and a chain
    moves in the word at direction 1, in the reverse at direction -1.
    """
    targets = {*recipe.targets}
    standing_alone = {x for x, move in worked.items() if move.balanced and not targets & {*move.flow.updates}}
    kept = [k for k, (letter, _) in enumerate(word.moves) if letter not in standing_alone]
    first, last = (kept[0], kept[-1] + 1) if kept else (0, 0)
    # a letter at an end may also stand inside, with work; hence the names of their own
    before, after = (
        tuple((f"{letter} alone", share * repeat) for letter, share in moves)
        for moves in (word.moves[:first], word.moves[last:])
    )
    inside = word.moves[first:last]
    flows = {f"{letter} alone": worked[letter].flow for letter, _ in (*word.moves[:first], *word.moves[last:])}
    old = _before(recipe, H, {b for letter, _ in inside for b in worked[letter].flow.updates})
    begun = {WORK: S.Zero} | {kept: x for x, kept in old.items()}
    flows[BEGIN] = Flow(BEGIN, begun, (), "work", True, "work = 0")
    flows[END] = Flow(END, {WORK: WORK + change(H, {}, old)}, (), "work", True, "work = work + H - H before")
    for letter in dict.fromkeys(letter for letter, _ in inside):
        flows |= _with_work(H, worked[letter])
    forward = _with_returns(inside, flows)
    memory = (*old.values(), *dict.fromkeys(kept for letter, _ in inside for kept in worked[letter].memory))
    if Scheme(word.text, inside).is_palindrome:
        moves = forward * repeat
    else:
        back = {letter: _only(flow, f"{letter} back", DIRECTION < 0, memory) for letter, flow in flows.items()}
        flows |= {letter: _only(flows[letter], letter, DIRECTION > 0, memory) for letter, _ in forward}
        backward = _with_returns(inside[::-1], flows)
        flows |= {f"{letter} back": back[letter] for letter, _ in backward}
        moves = forward * repeat + tuple((f"{letter} back", share) for letter, share in backward) * repeat
    return Path((*before, (BEGIN, S.One), *moves, (END, S.One), *after), flows, memory)


def _before(recipe: Recipe, H: Expr, moving: Collection[Block]) -> dict[Expr, Adapted]:
    """The quantities that keep what H reads of moved blocks from before the proposal: blocks, energies, metrics."""
    outside, _ = masked(H, Potential)
    kept: dict[Expr, Adapted] = {b: remembered(b, "before") for b in recipe.state if b in moving and outside.has(b)}
    for U in recipe.potentials:
        if H.has(U) and {*U.blocks} & {*moving}:
            (name,) = Derivative(0, U).names(recipe).values()
            kept[U] = remembered(name, "value_before")
    of_metrics = sorted((e for e in H.atoms(Total) if any(M.at in moving for M in fields_of(e))), key=str)
    return kept | {e: Adapted(f"metric{k}__before", False, "real", S.Zero) for k, e in enumerate(of_metrics, 1)}


def _with_work(H: Expr, worked: Worked) -> dict[str, Flow]:
    """The flow with its term of the work, and the flow that adds the work of the way back if there is one.

    The term is minus the change of H for a balanced flow, else its heat.
    """
    flow = worked.flow
    term = -change(H, flow.updates, {}) if worked.balanced and not flow.swaps else worked.heat
    updates = flow.updates | worked.memory
    if term != 0:
        updates[WORK] = WORK + term
    flows = {flow.letter: replace(flow, updates=updates, swaps={})}
    if worked.returned != 0:
        letter = _return(flow.letter)
        flows[letter] = Flow(letter, {WORK: WORK + worked.returned}, (), "work", True, "work of the way back")
    return flows


def _return(letter: str) -> str:
    return f"{letter} returned"


def _with_returns(moves: tuple[Move, ...], flows: Mapping[str, Flow]) -> tuple[Move, ...]:
    """The moves, each followed by the work of its way back if there is one."""
    whole: list[Move] = []
    for letter, share in moves:
        whole.append((letter, share))
        if _return(letter) in flows:
            whole.append((_return(letter), share))
    return tuple(whole)


def _only(flow: Flow, letter: str, condition: object, memory: Collection[Adapted]) -> Flow:
    """The flow for the chains that meet a condition; quantities of the memory are updated for all chains."""
    if flow.turns:
        do = "Write a palindrome, O L O say."
        raise RecipeError(f"work of {flow.letter!r}", f"{flow.rule} has no direction in a word that is none", do=do)
    updates = {b: e if b in memory else Piecewise((e, condition), (b, True)) for b, e in flow.updates.items()}
    return replace(flow, letter=letter, updates=updates)


def _with_locals(stages: Sequence[Stage], memory: Collection[Adapted]) -> tuple[Stage, ...]:
    """The stages with each update of the memory as a new local variable."""
    latest: dict[Adapted, Local] = {}
    changed: list[Stage] = []
    names: set[str] = set()
    for stage in stages:
        statements: list[Statement] = []
        for statement in stage.statements:
            statement = rewritten(statement, latest)
            if isinstance(statement, Set) and statement.block in memory:
                block = statement.block
                latest[block] = Local(unused(block.name.replace("__", "_"), names), block.is_vector)
                names.add(latest[block].name)
                statement = Let(latest[block], statement.value)
            statements.append(statement)
        changed.append(Stage(stage.title, tuple(statements)))
    return tuple(changed)


def _subtracted(program: Program) -> frozenset[Symbol]:
    """The values of U and their copies, if no formula by site reads them: numbers of a chain that are subtracted."""
    values: set[Symbol] = {U for _, U in program.derivatives.get(0, ())}
    for s in (s for s in program.statements if isinstance(s, Let)):
        pieces = [x for x, _ in s.value.args] if isinstance(s.value, Piecewise) else [s.value]
        if values.issuperset(pieces):
            values.add(s.name)
    set_or_summed = (s for s in program.statements if isinstance(s, Let | Set | Sum))
    by_site = [e for s in set_or_summed if isinstance(s, Sum) or is_by_site(subject(s)) for e in s.values]
    return frozenset(() if any(e.free_symbols & values for e in by_site) else values)


def _accepting(program: Program, path: Path, moving: Collection[Block]) -> Program:
    """The program with a copy of the state before the proposal, and acceptance or rejection after it."""
    letters = [letter for letter, _ in path.moves]
    first, last = letters.index(BEGIN), letters.index(END)
    lengths = [len(path.flows[letter].in_turn) for letter in letters]
    offset = len(program.stages) - sum(lengths)  # the stage of carried derivatives
    stages = list(program.stages)
    changed = {b for letter, _ in path.moves[first:last] for b in path.flows[letter].updates}
    subjects: list[Block | Local] = [b for b in moving if b in changed]
    subjects += [g for _, g in program.carried]
    begin, end = offset + sum(lengths[:first]), offset + sum(lengths[:last])
    kept = stages[begin]
    before = {s.value: s.name for s in kept.statements if isinstance(s, Let)}
    new: dict[Symbol, Local] = {}
    for s in (s for s in subjects if s not in before):
        name = unused(f"{s}_before", {old.name for old in (before | new).values()})
        new[s] = Local(name, bool(s.is_vector))
    keeping = tuple(Let(old, s) for s, old in new.items())
    stages[begin] = Stage(kept.title, (*keeping, *kept.statements))
    names = {d.name for d in program.draws}
    stages.insert(end + 1, _acceptance({s: (before | new)[s] for s in subjects}, names))
    program = replace(program, stages=tuple(stages), constants=(*program.constants, Let(COLDNESS, 1 / T)))
    verify(program)
    return program


def _acceptance(before: Mapping[Block | Local, Local], names: Collection[str]) -> Stage:
    """The stage that accepts or rejects a proposal; `before`: copies of the old values; `names`: those of draws."""
    draw = Uniform(DIRECTION, unused("accept", names))
    accepted = Local("is_accepted")
    inside, compared = _inside([b for b in before if isinstance(b, Block)])
    statements: list[Statement] = [
        # NaN compares as False; without the lower bound a chain at U = -inf would stay there
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
    """Conditions that blocks are in their domains, and the statements that the conditions read."""
    conditions: list[Expr] = []
    statements: list[Statement] = []
    for b in blocks:
        local = Local(f"{b}_there", bool(b.is_vector))  # a local may lie outside the domain
        ends = [COMPARED[sign](local, end) for sign, end in bounds(b)]
        if not ends:
            continue
        statements.append(Let(local, b))
        if b.is_vector:
            outside = Local(f"outside_{b}")
            statements.append(Sum(outside, Piecewise((S.Zero, And(*ends)), (S.One, True))))
            ends = [outside < 1]
        conditions += ends
    return conditions, statements
