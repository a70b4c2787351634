"""Lowering of flows and a scheme to a Program: a short list of statements that every backend prints.

Constants of h and the parameters are computed once, before the first stage; a gradient is evaluated only when the
target has moved since the last one; blocks of one flow move simultaneously.
"""

from collections.abc import Iterable, Mapping, Sequence

from sympy import Expr, Piecewise, S, Symbol
from sympy.core.function import AppliedUndef

from recipe import Energy, Recipe
from recipe.errors import RecipeError
from recipe.operators import bare
from recipe.scheme import Scheme
from recipe.symbols import Adapted, Block, Partial, Potential, is_site
from recipe.symbols import step_size as h

from .derivatives import Composition, Derivative
from .extraction import FreshNames, Subexpressions, Updates, extracted, shared
from .flow import Flow
from .functions import HalfStep
from .predicted import Visit, visited
from .program import Adapt, Draw, Gradient, Let, Local, Program, Set, Stage, Statement, symbols_read, verify
from .variates import Variate

CARRIED = (0, 1)  # the orders of U's derivatives that a state may carry
TITLE = 200  # length in characters up to which formulas stand in a title


def lower(
    recipe: Recipe,
    scheme: Scheme,
    flows: Mapping[str, Flow],
    *,
    reuse_gradient: bool = True,
    energy: Energy | None = None,
    given_gradient: bool = False,
    adapt: Mapping[Adapted, Expr] | None = None,
    scope: str = "chain",
    value: bool = False,
) -> Program:
    """The Program of a scheme's flows, with the updates of adapted quantities placed by the recipe's order.

    With `reuse_gradient` a gradient serves until the target moves, across steps too; without, each piece that reads
    grad U evaluates a fresh gradient. `given_gradient` starts from the caller's gradient (the optimizer form). With
    `value` formulas may read U itself, which the caller gives beside the gradient. Raises RecipeError for a formula
    that asks for more of U than its gradient and Hessian diagonal.
    """
    moves = [(flow, share) for letter, share in scheme.moves for flow in flows[letter].in_turn]
    word = Composition(recipe, scheme, moves, adapt or {}, reuse_gradient)
    if given_gradient:
        entry = {d: "given" for order in ((1, 0) if value else (1,)) for d in word.derivatives(order)}
    elif reuse_gradient:
        kept = [d for order in CARRIED for d in word.derivatives(order)]
        at_end = _Assembly(word, {}, scope, value).fresh if word.has_swaps else {d for d in kept if word.leaves(d)}
        entry = {d: "carried" for d in kept if d in at_end and word.reads(d, 0)}
    else:
        entry = {}
    program = _Assembly(word, entry, scope, value).program(energy)
    verify(program)
    return program


class _Assembly:
    """The stages of a word, built one after the other, with the derivatives of U known at each.

    `entry`: the derivatives of U at the start of the step, "given" or "carried". `fresh`: the derivatives known at the
    present target; `ahead`: the gradients that are read after a swap, before the target moves.
    """

    def __init__(self, word: Composition, entry: Mapping[Derivative, str], scope: str, reads_value: bool):
        self.word = word
        self.recipe = word.recipe
        self.entry = entry
        self.reads_value = reads_value
        self.constants = Subexpressions(scope)
        self.names_of = {d: d.names(self.recipe) for order in (1, 2, 0) for d in word.derivatives(order)}
        of_derivatives = [g for names in self.names_of.values() for g in names.values()]
        self.names = FreshNames([*self.recipe.entries, *self.recipe.parameters, *of_derivatives])
        self.stages: list[Stage] = []
        self.fresh: set[Derivative] = {*entry}
        self.ahead: set[Derivative] = set()
        if entry:
            self.stages.append(Stage("gradient", tuple(self._gradient(d, source) for d, source in entry.items())))
        for k, ((flow, share), draws) in enumerate(zip(word.moves, word.named_draws())):
            anew = not (word.reuses or k == 0 and entry)
            if word.adapts_first and k == word.first_read:
                self._adapt()
                anew = False
            if flow.swaps and word.follows:
                self.ahead = {d for d in word.derivatives(1) if word.reads(d, k + 1)}
            self._move(flow, share, draws, anew)
        if not word.adapts_first:
            self._adapt()

    def program(self, energy: Energy | None) -> Program:
        carried = [d for d, source in self.entry.items() if source == "carried"]
        stages = tuple(self.stages)
        if self.word.has_swaps:
            stages = _without_unread(stages, {g for d in carried for g in self.names_of[d].values()})
        orders = tuple(dict.fromkeys(d.order for d in carried))
        constants = tuple(self.constants.statements)
        return Program(self.recipe, self.word.scheme, constants, stages, orders, energy, self.constants.scope)

    # ---- moves

    def _move(self, flow: Flow, share: Expr, draws: Mapping[Variate, Variate], anew: bool) -> None:
        """Append the stage of one letter; with `anew` derivatives are evaluated afresh."""
        updates = {b: e.xreplace(draws) for b, e in flow.over(share).items()}
        over = h if share == 1 else f"{share}*h" if share.is_Float else share * h
        title = f"{flow.letter} over {over}: {flow.equation}  [{flow.rule}]"
        drawn = [Draw(draws[d]) for d in flow.draws]
        points, updates = visited(updates, self.names.fresh)
        if points:
            self._move_by_way_of(points, updates, flow.letter, title, drawn, anew)
            return
        statements, updates = self._with_derivatives(updates, flow.letter, anew)
        if flow.swaps:
            self._swap(flow.swaps, updates, title, statements, drawn)
        else:
            self._append(title, statements, drawn, updates)

    def _append(self, title: str, statements: list[Statement], drawn: Sequence[Draw], updates: Updates) -> None:
        lets: list[Statement] = []
        if not any(isinstance(e, HalfStep) for e in updates.values()):  # a formula of its own block, at other values
            updates = {b: self.constants.hoist(b, e) for b, e in updates.items()}
            lets, updates = self._settled(updates)
        in_lets = [s.name for s in lets if isinstance(s, Draw)]
        statements += [d for d in drawn if d.name not in in_lets]
        statements += [*lets, *_simultaneous(updates, self.names, Set)]
        self.stages.append(Stage(title, tuple(statements)))
        self.fresh = {d for d in self.fresh if not any(b in updates for b in d.blocks(self.recipe))}

    def _swap(
        self,
        places: Mapping[Block, Block],
        updates: Updates,
        title: str,
        statements: list[Statement],
        drawn: Sequence[Draw],
    ) -> None:
        """Append the stage of a swap, which also exchanges the derivatives known of both energies."""
        other = {d: d.exchanged(places) for d in self.names_of}
        near = self.fresh | self.ahead  # gradients beside U cost less, and are taken before the swap
        early = [d for d in self.names_of if d in self.ahead - self.fresh and other[d] != d and other[d] in near]
        self.fresh |= {*early}
        first = next(iter(places))
        (_, accepted), _ = updates[first].args
        swapped = Local(self.names.fresh("swapped"))
        whether = self.constants.hoist(first, Piecewise((S.One, accepted), (S.Zero, True)))
        lets, settled = self._settled({first: whether})
        known = {d for d in self.names_of if self.word.follows and other[d] != d and {d, other[d]} <= self.fresh}
        exchanged: dict[Block | Local, Block | Local] = {**places}
        for d in (d for d in self.names_of if d in known):
            exchanged |= {g: self.names_of[other[d]][places.get(b, b)] for b, g in self.names_of[d].items()}
        values = {b: Piecewise((new, swapped > 0), (b, True)) for b, new in exchanged.items()}
        before = [*map(self._gradient, early), *statements, *drawn, *lets, Let(swapped, settled[first])]
        self.stages.append(Stage(title, (*before, *_simultaneous(values, self.names, Set))))
        self.fresh = {d for d in self.fresh if d in known or not {*d.blocks(self.recipe)} & {*places}}

    def _move_by_way_of(
        self, points: list[Visit], updates: Updates, letter: str, title: str, drawn: Sequence[Draw], anew: bool
    ) -> None:
        """Append the stages of a flow that takes derivatives of U at intermediate points.

        The first stage copies the initial values that later stages read: target, derivatives, random numbers.
        """
        statements: list[Statement] = []
        formulas: list[Updates] = []
        for formula in (*(visit.point for visit in points), updates):
            gradients, formula = self._with_derivatives(formula, letter, anew and not statements)
            statements += gradients
            formulas.append(formula)
        changing = {b for visit in points for b in visit.point} | {d.name for d in drawn}
        changing |= {g for names in self.names_of.values() for g in names.values()}
        read = set().union(*(e.free_symbols for formula in formulas for e in formula.values()))
        kept: dict[Symbol, Local] = {}
        for x in sorted(read & changing, key=str):
            stem = f"noise_{x.name}_" if isinstance(x, Variate) else f"{x.name}_start"
            kept[x] = Local(self.names.fresh(stem), is_site(x))
        statements += [*drawn, *(Let(name, x) for x, name in kept.items())]
        *of_points, of_move = [{b: e.xreplace(kept) for b, e in formula.items()} for formula in formulas]
        for number, (visit, point) in enumerate(zip(points, of_points), 1):
            self._append(f"{letter}, point {number}", statements, (), point)
            statements = self._derivatives_at(visit)
        self._append(title, statements, (), of_move)

    # ---- derivatives of U

    def _gradient(self, d: Derivative, source: str = "evaluated") -> Gradient:
        potential = d.U if self.recipe.has_several_potentials else None
        return Gradient(tuple(self.names_of[d].items()), source, d.order, potential)

    def _partials(self, d: Derivative) -> dict[Partial, Local]:
        """The names of a derivative in place of its terms in formulas."""
        if d.U is None:
            return {}
        return {Partial(d.U, *[b] * d.order) if d.order else d.U: g for b, g in self.names_of[d].items()}

    def _with_derivatives(self, updates: Updates, letter: str, anew: bool) -> tuple[list[Statement], Updates]:
        """Statements that evaluate the derivatives of U in the updates, and the updates in terms of their names."""
        statements: list[Statement] = []
        for d in self.names_of:
            if d.order == 0:  # the last order: remaining derivatives have no name
                _refuse_more_of_U(self.recipe, letter, updates, self.reads_value)
            known = self._partials(d)
            if not known or not any(e.has(*known) for e in updates.values()):
                continue
            if d not in self.fresh or anew:
                statements.append(self._gradient(d))
                self.fresh.add(d)
            updates = {b: e.xreplace(known) for b, e in updates.items()}
        return statements, updates

    def _derivatives_at(self, visit: Visit) -> list[Statement]:
        """Statements that take the derivatives of U of a visit at the present target, and name their values."""
        statements: list[Statement] = []
        for d in self.names_of:
            known = self._partials(d)
            partials = {name: known[value] for value, name in visit.values.items() if value in known}
            if partials:
                statements += [self._gradient(d), *(Let(name, g) for name, g in partials.items())]
        return statements

    def _settled(self, updates: Updates) -> tuple[list[Statement], Updates]:
        lets, updates = extracted(updates, self.names)
        repeated, updates = shared(updates, self.names, self.constants)
        return [*lets, *repeated], updates

    # ---- adaptations

    def _adapt(self) -> None:
        """Append the stage that updates the adapted quantities; lagged ones read the first gradient of the step."""
        updates: Updates = dict(self.word.adapt)
        if not updates:
            return
        if not self.word.adapts_first:
            updates = self._at_first_gradients(updates)
        statements, updates = self._with_derivatives(updates, "adapt", anew=False)
        updates = {a: self.constants.operators_named(a, e) for a, e in updates.items()}
        lets, updates = self._settled(updates)
        formulas = ", ".join(f"{a} <- {e}" for a, e in self.word.adapt.items())
        title = formulas if len(formulas) < TITLE else ", ".join(a.name for a in self.word.adapt)
        statements += [*lets, *_simultaneous(updates, self.names, Adapt)]
        self.stages.append(Stage(f"adapt: {title}", tuple(statements)))

    def _at_first_gradients(self, updates: Updates) -> Updates:
        """The updates in terms of the first gradient of each potential, or of its copy if the step takes another."""
        for d, source in self.entry.items():
            if d.order == 0 and source == "given":  # the caller gives U at the point of its gradient
                updates = {a: e.xreplace(self._partials(d)) for a, e in updates.items()}
        places_of = {d: self._places(d) for d in self.word.derivatives(1)}
        first = [(places[0], d) for d, places in places_of.items() if places]
        for (k, after), d in sorted(first, reverse=True, key=lambda item: item[0]):
            updates = {a: e.xreplace(self._partials(d)) for a, e in updates.items()}
            if len(places_of[d]) == 1:
                continue
            copies = {g: Local(self.names.fresh(f"first_{g}"), g.is_vector) for g in self.names_of[d].values()}
            lets = [Let(copy, g) for g, copy in copies.items()]
            stage = self.stages[k]
            statements = (*stage.statements[: after + 1], *lets, *stage.statements[after + 1 :])
            self.stages[k] = Stage(stage.title, statements)
            updates = {a: e.xreplace(copies) for a, e in updates.items()}
        return updates

    def _places(self, d: Derivative) -> list[tuple[int, int]]:
        """The stage and the place in it of every statement that takes a derivative."""
        names = tuple(self.names_of[d].items())
        return [
            (k, place)
            for k, stage in enumerate(self.stages)
            for place, s in enumerate(stage.statements)
            if isinstance(s, Gradient) and s.names == names
        ]


def _without_unread(stages: tuple[Stage, ...], carried: Iterable[Local]) -> tuple[Stage, ...]:
    """The stages without unread values of derivatives; the next step reads those in `carried`."""
    read: set[Symbol] = {*carried}
    kept: list[Stage] = []
    for stage in reversed(stages):
        statements: list[Statement] = []
        for statement in reversed(stage.statements):
            match statement:
                case Set(Local() as name) | Let(name):
                    if name not in read:
                        continue
                    read.discard(name)
                case Gradient():
                    read.difference_update(statement.defines)
            read |= symbols_read([statement])
            statements.insert(0, statement)
        kept.insert(0, Stage(stage.title, tuple(statements)))
    return tuple(kept)


def _refuse_more_of_U(recipe: Recipe, letter: str, updates: Updates, value: bool) -> None:
    where = f"{recipe.name}, lower, piece {letter!r}"
    for block, e in updates.items():
        for M in sorted(bare(e), key=str):
            what = f"the motion of {block} takes the operator {M} for a number"
            raise RecipeError(where, what, do="Cut it finer, or give the operator and its factor as one operator.")
        if opaque := e.atoms(AppliedUndef):
            f = min(a.func.__name__ for a in opaque)
            raise RecipeError(where, f"the function {f!r} is still opaque", do=f"Give it: recipe.bind({f}=...).")
        request = min(map(str, e.atoms(Partial)), default=None)
        if request is None and e.has(Potential) and not value:
            request = "the value of U, not only its gradient"
        if request is not None:
            what = f"the motion of {block} asks for {request}"
            raise RecipeError(where, what, do="Pass a symbolic energy: recipe.bind(U=Energy(...)).")


def _simultaneous(updates: Updates, names: FreshNames, kind: type[Set] | type[Adapt]) -> list[Statement]:
    """Set statements of a simultaneous move: every update reads the old values of all moving blocks."""
    statements: list[Statement] = []
    ends: list[Statement] = []
    waiting = dict(updates)
    readers: dict[Block, set[Block]] = {b: set() for b in updates}
    for c, e in updates.items():
        for b in e.atoms(Symbol) & readers.keys() - {c}:
            readers[b].add(c)
    while waiting:
        block = next((b for b in waiting if not readers[b] & waiting.keys()), None)
        if block is not None:
            statements.append(kind(block, waiting.pop(block)))
            continue
        block = next(iter(waiting))
        new = Local(names.fresh(f"{block}_new"), block.is_vector)
        statements.append(Let(new, waiting.pop(block)))
        ends.append(kind(block, new))
    return statements + ends
