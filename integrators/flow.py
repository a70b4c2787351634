"""Solving a piece: a Flow gives the new value of each moving block as a formula in the time t.

The closed forms are the functions in the table RULES of `flow_rules.py`, tried in order.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from sympy import Expr
from sympy.utilities.iterables import connected_components

from recipe.errors import RecipeError
from recipe.fields import SlopeOfTotal, fields_of
from recipe.symbols import Block, Partial, Potential, masked, step_size
from recipe.symbols import duration as t

from . import boundaries
from .flow_rules import ROUND_RULES, RULES, Solution, shift
from .numerical_flows import METHODS
from .split import Subsystem
from .variates import Variate


@dataclass(frozen=True)
class Flow:
    """Solution of one piece: updates of the moving blocks, the variates in the updates, and the rule that gave them.

    `exact`: whether the updates have the law of the piece's SDE at time t. `even`: whether the flow has order 2 or is
    exact, so that palindromes keep order 2. `swaps`: for exchanged blocks, the block whose value each one takes.
    `turns`: updates made one after the other, in place of `updates` at once. `keeps_law`: whether the updates, exact or
    not, are reversible for a law for which the piece's SDE is.
    """

    letter: str
    updates: dict[Block, Expr]
    draws: tuple[Variate, ...]
    rule: str
    exact: bool
    equation: str
    even: bool = True
    swaps: Mapping[Block, Block] = field(default_factory=dict)
    turns: tuple[dict[Block, Expr], ...] = ()
    keeps_law: bool = False

    @property
    def in_turn(self) -> tuple["Flow", ...]:
        """The flow as flows that each move at once, one after the other."""
        rules = [f"{self.rule}, {k} of {len(self.turns)}" for k, _ in enumerate(self.turns, 1)]
        flows = (replace(self, updates=turn, rule=rule, turns=()) for turn, rule in zip(self.turns, rules))
        return tuple(flows) or (self,)

    def over(self, fraction: Expr) -> dict[Block, Expr]:
        """The updates over a fraction of the step."""
        return {b: e.xreplace({t: fraction * step_size}) for b, e in self.updates.items()}

    @property
    def reads_gradient(self) -> bool:
        """Whether the flow reads grad U."""
        return any(e.has(Partial) for e in self.updates.values())

    def reads(self, order: int, U: Potential | None = None) -> bool:
        """Whether the flow reads U itself (order 0), its gradient (1) or Hessian diagonal (2), of one U or of any."""
        return reads_U(self.updates.values(), order, U)

    def __str__(self):
        return f"{self.letter}: {self.equation}  [{self.rule}{'' if self.exact else ', not exact'}]"


def reads_U(formulas: Iterable[Expr], order: int, U: Potential | None = None) -> bool:
    """Whether a formula reads U itself (order 0), its gradient (1) or Hessian diagonal (2), of one U or of any."""
    if order:
        return any(len(x.variables) == order and U in (None, x.U) for e in formulas for x in e.atoms(Partial))
    return any(masked(e, Partial)[0].has(U or Potential) for e in formulas)


def solve(piece: Subsystem, name: str = "") -> Flow:
    """The flow of a piece by the first rule that fits each group of coupled blocks, or by the piece's own method.

    `name`: name of the recipe, for messages. Raises RecipeError where no closed form is known and no method is named:
    there is no silent fall-back.

    >>> from recipe import vector
    >>> p = vector("p")
    >>> print(solve(Subsystem("O", drift={p: -3*p}, diffusion={}, supplied={})))
    O: dp = -3*p dt  [Ornstein-Uhlenbeck]
    """
    refuse_moving_fields(piece, name)
    flow = on_the_line(piece, name)
    flow = replace(flow, updates=boundaries.kept_inside(flow.updates, piece))
    reflected = boundaries.reflected(piece)
    if not reflected:
        return flow
    exact = flow.exact and all(boundaries.is_exact(b, piece) for b in reflected)
    if not exact and piece.method not in boundaries.FOLDED:
        what = f"no closed form is known that is reflected at the ends of {reflected[0]}: {piece}"
        do = f"Ask for numerical({reflected[0]}, 'reflected'), or use the word 'Euler'."
        raise RecipeError(f"{name}, piece {piece.letter!r}", what, do=do)
    rule = flow.rule if piece.method == "reflected" else f"{flow.rule}, reflected"
    return replace(flow, rule=rule, exact=exact, even=exact)


def refuse_moving_fields(piece: Subsystem, name: str, *, accepted: bool = False) -> None:
    """Refuse operators at a moving block, except in a leapfrog, and, unless `accepted`, in Euler's step of D and Q."""
    formulas = (*piece.drift.values(), *piece.diffusion.values())
    moving = [M for f in formulas for M in fields_of(f) if M.at in piece.moving]
    slopes = [M for f in formulas for x in f.atoms(SlopeOfTotal) for M in fields_of(x)]
    if piece.method == "generalised leapfrog" or not (slopes or moving and (accepted or piece.method != "euler")):
        return
    M = (slopes or moving)[0]
    what = f"the operator {M} is a function of {M.at}, and its flows are not known"
    do = "Use the word 'Euler', without acceptance."
    if slopes:
        do = 'Use the letter L, numerical((theta, force(p)), "generalised leapfrog"): "O L O", say.'
    raise RecipeError(name, what, do=do)


def on_the_line(piece: Subsystem, name: str = "") -> Flow:
    """The flow of a piece without the ends of its domains."""
    return _by_method(piece, piece.method) if piece.method else _by_rules(piece, name)


def _by_rules(piece: Subsystem, name: str) -> Flow:
    """The flow by the first rule that fits each group of coupled blocks."""
    updates: dict[Block, Expr] = {}
    draws: tuple[Variate, ...] = ()
    rules = []
    for group in _groups(piece):
        part = piece.restricted(group)
        rule, solution = next(_solutions(part), ("", None))
        if solution is None:
            what = f"no closed form is known for piece {piece.letter!r}: {part}"
            do = f"{_finer(part)}, ask for numerical(piece, 'heun'), or use the word 'Euler'."
            raise RecipeError(f"{name}, solve", what, do=do)
        updates |= solution[0]
        draws += solution[1]
        rules.append(rule)
    exact = "round noise" not in rules
    rule = ", ".join(dict.fromkeys(rules)) or "nothing moves"
    return Flow(piece.letter, updates, draws, rule, exact, str(piece), keeps_law=True)


def _solutions(piece: Subsystem) -> Iterator[tuple[str, Solution]]:
    """The rules that fit a piece, in their order, each with its solution."""
    on_sphere = any(b.domain.is_sphere for b in piece.moving)
    for rule, closed_form in (ROUND_RULES if on_sphere else RULES).items():
        solution = closed_form(piece)
        if solution is not None:
            yield rule, solution


def _finer(piece: Subsystem) -> str:
    """Advice on cutting a piece: by block, or noise from drift, if the parts have closed forms."""
    by_block = [piece.restricted([b]) for b in piece.moving]
    if len(by_block) > 1 and all(map(_is_solvable, by_block)):
        stem = piece.letter.rstrip("'")
        letters = ", ".join(f'"{stem}{k}": {b}' for k, b in enumerate(piece.moving, 1))
        return f"Give each block a letter, pieces={{{letters}}}"
    drifts, noises = replace(piece, diffusion={}, supplied={}), replace(piece, drift={})
    if piece.drift and piece.diffusion and _is_solvable(drifts):
        cut = " + ".join(f"noise({b})" for b in noises.moving)
        return f"Give the noise a letter of its own, {cut}"
    return "Cut it finer"


def _is_solvable(piece: Subsystem) -> bool:
    return next(_solutions(piece), None) is not None


def _by_method(piece: Subsystem, name: str) -> Flow:
    method = METHODS[name]
    if method.in_turn:
        turns = method.advance(piece)
        updates = {b: e for turn in turns for b, e in turn.items()}
        return Flow(piece.letter, updates, (), name, False, str(piece), even=method.order >= 2, turns=turns)
    on_sphere = [b for b in piece.moving if b.domain.is_sphere]
    if on_sphere and name != "euler":
        what = f"it leads {on_sphere[0]} off its sphere"
        do = "Use 'euler', or the letters B and O."
        raise RecipeError(f"numerical(..., {name!r}) for {piece.letter!r}", what, do=do)
    updates, draws = method.advance(piece)
    exact = shift(piece) is not None and not on_sphere
    return Flow(piece.letter, updates, draws, name, exact, str(piece), even=exact or method.order >= 2)


def _groups(piece: Subsystem) -> list[list[Block]]:
    """The moving blocks, grouped by coupling: a drift that reads another moving block, or shared noise."""
    pairs = [(a, b) for a, f in piece.drift.items() for b in piece.moving if f.has(b)]
    groups = connected_components(([*piece.moving], [*pairs, *piece.diffusion]))
    in_order = [[b for b in piece.moving if b in group] for group in groups]
    return sorted(in_order, key=lambda group: piece.moving.index(group[0]))
