"""Lowering of flows and a scheme to a Program: a short list of statements that every backend prints.

Constants of h and the parameters are computed once, before the first stage; a gradient is evaluated only when the
target has moved since the last one; blocks of one flow move simultaneously.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from sympy import Dummy, Expr, Piecewise, S, Symbol, cse, numbered_symbols, preorder_traversal
from sympy.core.function import AppliedUndef

from recipe import Energy, Recipe
from recipe.errors import RecipeError
from recipe.operators import Applied, bare, times
from recipe.symbols import Adapted, Block, Observed, Partial, Potential, Total, is_site, num_data
from recipe.symbols import step_size as h

from .extraction import Extraction
from .flow import Flow, reads_U
from .functions import MatrixFunction
from .hoisting import CALLS, Constants
from .predicted import Visit, visited
from .program import (
    Adapt,
    Draw,
    Gradient,
    Let,
    Local,
    Observe,
    Program,
    Set,
    Solve,
    Stage,
    Statement,
    Sum,
    rewritten,
    verify,
)
from .scheme import Scheme
from .variates import Drawn, Variate

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

    def assembled(entry: Mapping[Derivative, str]) -> _Assembly:
        return _Assembly(recipe, scheme, flows, reuse_gradient, energy, adapt or {}, scope, value, entry)

    if given_gradient:
        orders = (1, 0) if value else (1,)
        given = {Derivative(order, U): "given" for order in orders for U in _potentials(recipe)}
        program = assembled(given).program
    else:
        derivatives = [Derivative(order, U) for order in CARRIED for U in _potentials(recipe)]
        if any(flow.swaps for flow in flows.values()):
            left = assembled({}).fresh
        else:
            left = {d for d in derivatives if _is_left(d, scheme, flows, recipe, adapt or {})}
        kept = [d for d in derivatives if reuse_gradient and d in left]
        carried = [d for d in kept if _is_read_from(0, d, scheme, flows, recipe, follows=not adapt)]
        program = assembled(dict.fromkeys(carried, "carried")).program
    verify(program)
    return program


def optimizer_form(
    recipe: Recipe,
    scheme: Scheme,
    flows: Mapping[str, Flow],
    adapt: Mapping[Adapted, Expr] | None = None,
    scope: str = "chain",
    *,
    value: bool = False,
) -> Program:
    """The Program of a training loop: the cyclic rotation of the word that starts right after its one gradient.

    `value`: whether the loop hands in U beside its gradient, for formulas that read U. Raises RecipeError if the word
    needs more than one gradient per step, or gradients of several potentials.
    """
    if recipe.has_several_potentials:
        names = ", ".join(U.symbol for U in recipe.potentials)
        what = f"H has {names}, and a training loop hands in the gradient of one loss, at one point of a step"
        do = "Declare one potential for the sum of the losses, or give samplers.sample an energy for each."
        raise RecipeError(f"{recipe.name}, optimizer form", what, do=do)
    reads_value = reads_U((adapt or {}).values(), 0) or any(flow.reads(0) for flow in flows.values())
    if reads_value and not value:
        what = "its formulas read U itself, and here there are gradients alone"
        raise RecipeError(f"{recipe.name}, optimizer form", what, do="Use samplers.Optimizer, or samplers.sample.")
    semigroups = [letter for letter, flow in flows.items() if flow.exact]
    for k in range(len(scheme.moves)):
        rotated = scheme.rotated(k).merged(semigroups)
        first, _ = rotated.moves[0]
        if not (flows[first].reads_gradient or flows[first].reads(0)):
            continue
        program = lower(recipe, rotated, flows, given_gradient=True, adapt=adapt, scope=scope, value=reads_value)
        if program.evaluates_nothing:
            return program
    raise RecipeError(
        f"{recipe.name}, optimizer form",
        f"the word {scheme} needs more than one gradient per step",
        do="Choose a word with one, such as 'B A O A B' or 'F A'.",
    )


def of_the_loss(program: Program, *, prior: bool) -> Program:
    """The optimizer form in terms of the gradient g of a mean loss: grad U = num_data g.

    With a `prior` of precision prior_precision, grad U = num_data g + prior_precision theta. Raises RecipeError if the
    recipe already has a prior_precision.
    """
    ((theta, g),) = next(s.names for s in program.statements if isinstance(s, Gradient))
    slope = num_data * g
    lets: tuple[Let, ...] = ()
    if prior:
        if any(s.name == "prior_precision" for s in program.recipe.symbols):
            raise RecipeError(
                f"{program.recipe.name}, weight_decay", "the recipe has a prior_precision of its own", do="Use that."
            )
        name = Local("slope", True)
        lets = (Let(name, slope + Symbol("prior_precision", real=True) * theta),)
        slope = name
    first, *others = program.stages
    stages = [Stage(first.title, (*first.statements, *lets))]
    for stage in others:
        statements = [s if isinstance(s, Gradient) else rewritten(s, {g: slope}) for s in stage.statements]
        stages.append(Stage(stage.title, tuple(statements)))
    return replace(program, stages=tuple(stages))


class Derivative(NamedTuple):
    """A derivative of U: its order, 0 for U itself, and the potential, None where a recipe has none."""

    order: int
    U: Potential | None

    def blocks(self, recipe: Recipe) -> tuple[Block, ...]:
        """The blocks that the derivative is a function of."""
        return self.U.blocks if self.U else recipe.targets

    def exchanged(self, places: Mapping[Block, Block]) -> "Derivative":
        """The derivative that takes the place of this derivative in a swap of blocks."""
        return Derivative(self.order, self.U and self.U.xreplace(places))


def _potentials(recipe: Recipe) -> tuple[Potential | None, ...]:
    return recipe.potentials or (None,)


def _is_read_from(
    k: int, d: Derivative, scheme: Scheme, flows: Mapping[str, Flow], recipe: Recipe, *, follows: bool
) -> bool:
    """Whether move k or a later one, cyclically, reads a derivative of U before the target moves.

    `follows`: whether derivatives follow swaps, so that a swap does not count as a move of the target.
    """
    for letter, _ in (*scheme.moves[k:], *scheme.moves[:k]):
        if flows[letter].reads(*d):
            return True
        moves = any(b in d.blocks(recipe) for b in flows[letter].updates)
        if moves and not (follows and flows[letter].swaps):
            return False
    return False


def _is_left(
    d: Derivative, scheme: Scheme, flows: Mapping[str, Flow], recipe: Recipe, adapt: Mapping[Adapted, Expr]
) -> bool:
    """Whether a step that starts without derivatives of U ends with this one known at its last target."""
    word = [flows[letter] for letter, _ in scheme.moves]
    moves = [k for k, flow in enumerate(word) if any(b in d.blocks(recipe) for b in flow.updates)]
    rest = max(moves, default=-1) + 1  # from this move on the target stays
    if any(flow.reads(*d) for flow in word[rest:]):
        return True
    if not reads_U(adapt.values(), *d):
        return False
    if recipe.order == "same_step":
        return _first_read(scheme, flows) >= rest
    return d.order != 1 or not any(flow.reads(*d) for flow in word)  # else adaptations read the first one of the step


Updates = dict[Block, Expr]


class _Assembly:
    """The stages of a word, built one after the other, with the derivatives of U known at each.

    `entry`: the derivatives of U at the start of the step, "given" or "carried". `fresh`: the derivatives known at the
    present target. `first_gradients`: stage and place of the first gradient of each potential.
    """

    def __init__(
        self,
        recipe: Recipe,
        scheme: Scheme,
        flows: Mapping[str, Flow],
        reuse_gradient: bool,
        energy: Energy | None,
        adapt: Mapping[Adapted, Expr],
        scope: str,
        value: bool,
        entry: Mapping[Derivative, str],
    ):
        self.recipe = recipe
        self.adapt = adapt
        self.reads_value = value
        self.follows = reuse_gradient and not adapt  # derivatives follow swaps
        self.constants = Constants(scope)
        self.derivatives = {Derivative(k, U): _names(recipe, k, U) for k in (1, 2, 0) for U in _potentials(recipe)}
        of_derivatives = [g for values in self.derivatives.values() for g in values.values()]
        self.names = _Names([*recipe.entries, *recipe.parameters, *of_derivatives])
        self.stages: list[Stage] = []
        self.fresh: set[Derivative] = set()
        self.ahead: set[Derivative] = set()  # the gradients that are read after a swap, before the target moves
        self.first_gradients: dict[Potential | None, tuple[int, int]] = {}
        self.given = {d for d, source in entry.items() if source == "given"}
        self._enter(entry)
        self._make_moves(scheme, flows, reuse_gradient)
        self.program = self._finished(scheme, flows, entry, energy)

    def _enter(self, entry: Mapping[Derivative, str]) -> None:
        """Append the stage of the derivatives known at the start of the step."""
        if entry:
            self.stages.append(Stage("gradient", tuple(self._gradient(d, entry[d]) for d in entry)))
            self.fresh |= entry.keys()
        for place, (order, U) in enumerate(entry):
            if order == 1:
                self.first_gradients[U] = (0, place)

    def _make_moves(self, scheme: Scheme, flows: Mapping[str, Flow], reuse_gradient: bool) -> None:
        """Append the stages of all letters and of the adaptations."""
        draws = _named_draws(scheme, flows)
        adapts_before = _first_read(scheme, flows) if self.recipe.order == "same_step" else None
        for k, (letter, fraction) in enumerate(scheme.moves):
            anew = not reuse_gradient and not (k == 0 and self.first_gradients)
            if k == adapts_before:
                self._adapt_now()
                anew = False
            if flows[letter].swaps and self.follows:
                self.ahead = self._read_after(k, scheme, flows)
            self._move(flows[letter], fraction, draws[k], anew)
        if self.recipe.order != "same_step":
            self._adapt_now()

    def _finished(
        self, scheme: Scheme, flows: Mapping[str, Flow], entry: Mapping[Derivative, str], energy: Energy | None
    ) -> Program:
        """The Program of the stages."""
        carried = [d for d, source in entry.items() if source == "carried"]
        stages = tuple(self.stages)
        if any(flow.swaps for flow in flows.values()):
            stages = _without_unread(stages, {g for d in carried for g in self.derivatives[d].values()})
        orders = tuple(dict.fromkeys(order for order, _ in carried))
        return Program(self.recipe, scheme, self.constants.statements, stages, orders, energy, self.constants.scope)

    def _move(self, flow: Flow, fraction: Expr, draws: Mapping[Variate, Variate], anew: bool) -> None:
        """Append the stage of one letter; with `anew` derivatives are evaluated afresh."""
        updates = {b: e.xreplace(draws) for b, e in flow.over(fraction).items()}
        title = f"{flow.letter} over {_share(fraction)}: {flow.equation}  [{flow.rule}]"
        drawn = [draws[d] for d in flow.draws]
        points, updates = visited(updates, self.names.fresh)
        if points:
            self._move_by_way_of(points, updates, title, drawn, anew)
            return
        statements, updates = self._with_derivatives(updates, flow.letter, anew)
        if flow.swaps:
            self._swap(flow.swaps, updates, title, [*self._ahead_of(flow.swaps), *statements], drawn)
        else:
            self._append(title, statements, drawn, updates)

    def _read_after(self, k: int, scheme: Scheme, flows: Mapping[str, Flow]) -> set[Derivative]:
        """The gradients that are read after move k and before the target moves."""
        gradients = (d for d in self.derivatives if d.order == 1)
        return {d for d in gradients if _is_read_from(k + 1, d, scheme, flows, self.recipe, follows=True)}

    def _ahead_of(self, places: Mapping[Block, Block]) -> list[Statement]:
        """Statements that take, before a swap, the gradients read after the swap: gradients beside U cost less."""
        near = self.fresh | self.ahead
        taken = [d for d in self.derivatives if d in self.ahead - self.fresh and d.exchanged(places) in near]
        taken = [d for d in taken if d.exchanged(places) != d]
        self.fresh |= {*taken}
        return [self._gradient(d) for d in taken]

    def _swap(
        self,
        places: Mapping[Block, Block],
        updates: Updates,
        title: str,
        statements: list[Statement],
        drawn: Iterable[Variate],
    ) -> None:
        """Append the stage of a swap, which also exchanges the derivatives known of both energies."""
        first = next(iter(places))
        (_, accepted), _ = updates[first].args
        swapped = Local(self.names.fresh("swapped"))
        whether = self.constants.hoist(first, Piecewise((S.One, accepted), (S.Zero, True)))
        lets, settled = self._settled({first: whether})
        exchanged: dict[Block | Local, Block | Local] = {**places}
        known: set[Derivative] = set()
        for d in self.derivatives:
            other = d.exchanged(places)
            if self.follows and other != d and {d, other} <= self.fresh:
                known.add(d)
                new = self.derivatives[other]
                exchanged |= {g: new[places.get(b, b)] for b, g in self.derivatives[d].items()}
        moved = {b: Piecewise((other, swapped > 0), (b, True)) for b, other in exchanged.items()}
        statements += [*(Draw(d) for d in drawn), *lets, Let(swapped, settled[first])]
        self.stages.append(Stage(title, (*statements, *_simultaneous(moved, self.names, Set))))
        self.fresh = {d for d in self.fresh if d in known or not {*d.blocks(self.recipe)} & {*places}}

    def _append(self, title: str, statements: list[Statement], drawn: Iterable[Variate], updates: Updates) -> None:
        """Append a stage of statements, draws and updates."""
        updates = {b: self.constants.hoist(b, e) for b, e in updates.items()}
        lets, updates = self._settled(updates)
        in_lets = [s.name for s in lets if isinstance(s, Draw)]
        statements += [Draw(d) for d in drawn if d not in in_lets]
        statements += [*lets, *_simultaneous(updates, self.names, Set)]
        self.stages.append(Stage(title, tuple(statements)))
        self.fresh = {d for d in self.fresh if not any(b in updates for b in d.blocks(self.recipe))}

    def _gradient(self, d: Derivative, source: str = "evaluated") -> Gradient:
        """The statement that takes a derivative."""
        order, U = d
        return Gradient(
            tuple(self.derivatives[d].items()), source, order, U if self.recipe.has_several_potentials else None
        )

    def _move_by_way_of(
        self, points: list[Visit], updates: Updates, title: str, drawn: Iterable[Variate], anew: bool
    ) -> None:
        """Append the stages of a flow that takes derivatives of U at intermediate points.

        The first stage copies the initial values that later stages read: target, derivatives, random numbers.
        """
        letter = title.partition(" ")[0]
        statements: list[Statement] = []
        formulas: list[Updates] = []
        for own in (*(visit.point for visit in points), updates):
            taken, own = self._with_derivatives(own, letter, anew and not statements)
            statements += taken
            formulas.append(own)
        read = set().union(*(e.free_symbols for own in formulas for e in own.values()))
        kept = self._kept(read, {b for visit in points for b in visit.point} | {*drawn})
        statements += [*(Draw(d) for d in drawn), *(Let(name, x) for x, name in kept.items())]
        for number, (visit, own) in enumerate(zip(points, formulas), 1):
            place = f"{letter}, point {number}"
            self._append(place, statements, (), {b: e.xreplace(kept) for b, e in own.items()})
            statements = self._derivatives_at(visit)
        self._append(title, statements, (), {b: e.xreplace(kept) for b, e in formulas[-1].items()})

    def _kept(self, read: set[Symbol], changing: set[Symbol]) -> dict[Symbol, Local]:
        """Names of copies for the symbols in `read` that are in `changing` or are derivatives of U."""
        derivatives = {g for values in self.derivatives.values() for g in values.values()}
        names: dict[Symbol, Local] = {}
        for x in sorted(read & (derivatives | changing), key=str):
            stem = f"noise_{x.name}_" if isinstance(x, Variate) else f"{x.name}_start"
            names[x] = Local(self.names.fresh(stem), is_site(x))
        return names

    def _derivatives_at(self, visit: Visit) -> list[Statement]:
        """Statements that take the derivatives of U of a visit at the present target, and name their values."""
        statements: list[Statement] = []
        for d in self.derivatives:
            order, U = d
            known = self._partials(d)
            asked = {name: known[value] for value, name in visit.values.items() if value in known}
            if not asked:
                continue
            if order == 1 and U not in self.first_gradients:
                self.first_gradients[U] = len(self.stages), len(statements)
            statements.append(self._gradient(d))
            statements += [Let(name, g) for name, g in asked.items()]
        return statements

    def _adapt_now(self) -> None:
        """Append the stage that updates the adapted quantities, from the first gradient of the step."""
        if not self.adapt:
            return
        updates: Updates = dict(self.adapt)
        if self.recipe.order != "same_step":  # the caller gives U at the point of its gradient
            given = {e: g for d in self.given if d.order == 0 for e, g in self._partials(d).items()}
            updates = {a: e.xreplace(given) for a, e in updates.items()}
        first = self.first_gradients if self.recipe.order != "same_step" else {}
        for U, place in sorted(first.items(), key=lambda item: item[1], reverse=True):
            updates = {a: e.xreplace(self._partials(Derivative(1, U))) for a, e in updates.items()}
            if self._gradients(U) > 1:
                updates = self._remembering(U, place, updates)
        statements, updates = self._with_derivatives(updates, "adapt", anew=False)
        updates = {a: self.constants.operators_named(a, e) for a, e in updates.items()}
        lets, updates = self._settled(updates)
        formulas = ", ".join(f"{a} <- {e}" for a, e in self.adapt.items())
        title = formulas if len(formulas) < TITLE else ", ".join(a.name for a in self.adapt)
        statements += [*lets, *_simultaneous(updates, self.names, Adapt)]
        self.stages.append(Stage(f"adapt: {title}", tuple(statements)))

    def _gradients(self, U: Potential | None) -> int:
        """The number of evaluations of the gradient of a potential."""
        names = tuple(self.derivatives[Derivative(1, U)].items())
        return sum(isinstance(s, Gradient) and s.names == names for stage in self.stages for s in stage.statements)

    def _remembering(self, U: Potential | None, place: tuple[int, int], updates: Updates) -> Updates:
        """The updates in terms of a copy of the gradient at a place, because the step overwrites the gradient later."""
        k, after = place
        slopes = self.derivatives[Derivative(1, U)].values()
        copies = {g: Local(self.names.fresh(f"first_{g}"), g.is_vector) for g in slopes}
        before = self.stages[k].statements
        lets = [Let(copy, g) for g, copy in copies.items()]
        self.stages[k] = Stage(self.stages[k].title, (*before[: after + 1], *lets, *before[after + 1 :]))
        return {a: e.xreplace(copies) for a, e in updates.items()}

    def _with_derivatives(self, updates: Updates, letter: str, anew: bool) -> tuple[list[Statement], Updates]:
        """Statements that evaluate the derivatives of U in the updates, and the updates in terms of their names."""
        statements: list[Statement] = []
        for d in self.derivatives:
            order, U = d
            if order == 0:  # the last order: remaining derivatives have no name
                _refuse_more_of_U(self.recipe, letter, updates, self.reads_value)
            known = self._partials(d)
            if not known or not any(e.has(*known) for e in updates.values()):
                continue
            if d not in self.fresh or anew:
                if order == 1 and U not in self.first_gradients:
                    self.first_gradients[U] = len(self.stages), len(statements)
                statements.append(self._gradient(d))
                self.fresh.add(d)
            updates = {b: e.xreplace(known) for b, e in updates.items()}
        return statements, updates

    def _partials(self, d: Derivative) -> dict[Partial, Local]:
        order, U = d
        if U is None:
            return {}
        return {Partial(U, *[b] * order) if order else U: g for b, g in self.derivatives[d].items()}

    def _settled(self, updates: Updates) -> tuple[list[Statement], Updates]:
        """Statements of totals, draws, observations and repeated subexpressions, and the updates in terms of these."""
        lets, updates = _extracted(updates, self.names)
        if not any(e.atoms(*CALLS, Applied) for e in updates.values()):
            return lets, updates
        shared, updates = _shared(updates, self.names, self.constants)
        return [*lets, *shared], updates


def _without_unread(stages: tuple[Stage, ...], left: Iterable[Local]) -> tuple[Stage, ...]:
    """The stages without unread values of derivatives; the next step reads those in `left`."""
    read: set[Symbol] = {*left}
    kept: list[Stage] = []
    for stage in reversed(stages):
        statements: list[Statement] = []
        for statement in reversed(stage.statements):
            match statement:
                case Set(Local() as name) | Let(name):
                    if name not in read:
                        continue
                    read.discard(name)
                case Gradient(names):
                    read -= {g for _, g in names}
            read |= {s for e in statement.values for s in e.free_symbols}
            statements.insert(0, statement)
        kept.insert(0, Stage(stage.title, tuple(statements)))
    return tuple(kept)


def _share(fraction: Expr) -> str:
    if fraction == 1:
        return "h"
    return f"{fraction}*h" if fraction.is_Float else str(fraction * h)


def _names(recipe: Recipe, order: int, U: Potential | None) -> dict[Block, Local]:
    """Names for the derivatives of U by block; for U itself (order 0) one name, at the first block."""
    blocks = Derivative(order, U).blocks(recipe)
    stem = {0: "U", 1: "g", 2: "c"}[order]
    if order == 0:
        blocks = blocks[:1]
    if U is not None and recipe.has_several_potentials:
        return {b: Local(f"{stem}_{recipe.place(U, b)}", bool(order) and b.is_vector) for b in blocks}
    alone = len(blocks) == 1
    return {b: Local(stem if alone else f"{stem}_{b}", bool(order) and b.is_vector) for b in blocks}


def _first_read(scheme: Scheme, flows: Mapping[str, Flow]) -> int:
    """The index of the first move that reads grad U, else of the last move."""
    reading = [k for k, (letter, _) in enumerate(scheme.moves) if flows[letter].reads_gradient]
    return min([*reading, len(scheme.moves) - 1])


def _named_draws(scheme: Scheme, flows: Mapping[str, Flow]) -> list[dict[Variate, Variate]]:
    """For each move, the flow's variates renamed: "p" if the step draws one for p, else "p1", "p2", ..."""
    draws = [flows[letter].draws for letter, _ in scheme.moves]
    total = Counter(d.block for own in draws for d in own)
    gap = _gap(total)
    seen: Counter[Block] = Counter()
    renamed = []
    for own in draws:
        names = {}
        for d in own:
            seen[d.block] += 1
            number = f"{gap}{seen[d.block]}" if total[d.block] > 1 else ""
            names[d] = type(d)(d.block, f"{d.block}{number}", d.is_vector)
        renamed.append(names)
    return renamed


def _gap(total: Counter) -> str:
    """A separator between block and number in the names of draws that makes the names unique."""
    gap = ""
    while True:
        names = [f"{b}{gap}{k + 1}" if total[b] > 1 else b.name for b in total for k in range(total[b])]
        if len(set(names)) == len(names):
            return gap
        gap += "_"


def _refuse_more_of_U(recipe: Recipe, letter: str, updates: Updates, value: bool) -> None:
    where = f"{recipe.name}, lower, piece {letter!r}"
    for block, e in updates.items():
        for M in sorted(bare(e), key=str):
            what = f"the motion of {block} takes the operator {M} for a number"
            raise RecipeError(where, what, do="Cut it finer, or use the word 'Euler'.")
        if opaque := e.atoms(AppliedUndef):
            f = min(a.func.__name__ for a in opaque)
            raise RecipeError(where, f"the function {f!r} is still opaque", do=f"Give it: recipe.bind({f}=...).")
        asked = min(map(str, e.atoms(Partial)), default=None)
        if asked is None and e.has(Potential) and not value:
            asked = "the value of U, not only its gradient"
        if asked is not None:
            what = f"the motion of {block} asks for {asked}"
            raise RecipeError(where, what, do="Pass a symbolic energy: recipe.bind(U=Energy(...)).")


class _Names:
    """Generator of names that differ from those of the given symbols and from each other."""

    def __init__(self, symbols: Iterable[Symbol]):
        self.taken = {s.name for s in symbols}

    def fresh(self, stem: str) -> str:
        """The stem with the first number that makes an unused name."""
        name = next(n for n in (f"{stem}{k}" for k in count(1)) if n not in self.taken)
        self.taken.add(name)
        return name


def _extracted(updates: Updates, names: _Names) -> tuple[list[Statement], Updates]:
    """Statements of totals, draws, observations and matrices, innermost first, and the updates in terms of these."""
    statements: list[Statement] = []
    systems: dict[tuple, dict[MatrixFunction, Local]] = {}

    def name(e: Expr, extract: Extraction) -> Symbol:
        match e:
            case Total():
                inside = extract(e.integrand)
                own = Local(names.fresh("sum"))
                statements.append(Sum(own, inside))
            case Drawn():
                own = e.variate
                statements.append(Draw(own, extract(e.parameter)))
            case Observed():
                own = Local(names.fresh(e.name), e.is_vector)
                statements.append(Observe(own, e))
            case MatrixFunction():
                own = solved(e, extract)
        return own

    def solved(e: MatrixFunction, extract: Extraction) -> Local:
        key = type(e), e.system
        if key not in systems:
            inside = tuple(map(extract, e.system))
            systems[key] = {x: Local(names.fresh(f"{x.part}_"), is_site(e)) for x in e.siblings}
            entries = tuple(x.func(*x.args[:3], *inside) for x in e.siblings)
            statements.append(Solve(tuple(systems[key].values()), entries))
        return systems[key][e]

    extract = Extraction(name, Total, MatrixFunction, Drawn, Observed)
    updates = {b: extract(e) for b, e in updates.items()}
    return statements, updates


def _shared(updates: Updates, names: _Names, constants: Constants) -> tuple[list[Statement], Updates]:
    """Statements of repeated calls of functions and operators, and the updates in terms of these."""
    lets, swap, updates = _applied_apart(updates, names)
    repeated, reduced = cse(list(updates.values()), symbols=numbered_symbols(cls=Dummy), order="none")
    for s, value in repeated:
        value = value.xreplace(swap)
        swap[s] = value
        if isinstance(value, Expr) and value.atoms(*CALLS) and not constants.is_constant(value):
            own = Local(names.fresh("x"), is_site(value))
            swap[s] = own
            lets.append(Let(own, value))
    return lets, {b: e.xreplace(swap) for b, e in zip(updates, reduced)}


def _applied_apart(updates: Updates, names: _Names) -> tuple[list[Statement], dict[Symbol, Expr], Updates]:
    """Statements of repeated applications of operators, stand-ins for single ones, and the updates in both."""
    apart: dict[Expr, Local] = {}
    if not any(e.has(Applied) for e in updates.values()):
        return [], {}, updates
    uses = Counter(x for e in updates.values() for x in preorder_traversal(e) if isinstance(x, Applied))

    def name(e: Expr, extract: Extraction) -> Symbol:
        inside = times(e.formula, extract(e.argument))
        apart[e] = Local(names.fresh("x") if uses[e] > 1 else f"once {len(apart)}", True)
        inner[apart[e]] = inside
        return apart[e]

    inner: dict[Symbol, Expr] = {}
    extract = Extraction(name, Applied)
    updates = {b: extract(e) for b, e in updates.items()}
    once = {apart[e]: inner[apart[e]] for e in apart if uses[e] == 1}
    whole = {s: _restored(e, once) for s, e in inner.items()}
    lets: list[Statement] = [Let(s, whole[s]) for e, s in apart.items() if uses[e] > 1]
    return lets, {s: whole[s] for s in once}, updates


def _restored(e: Expr, once: Mapping[Symbol, Expr]) -> Expr:
    """The expression with all stand-ins, also nested ones, replaced by their values."""
    while e.free_symbols & once.keys():
        e = e.xreplace(dict(once))
    return e


def _simultaneous(updates: Updates, names: _Names, kind: type[Set] | type[Adapt]) -> list[Statement]:
    """Set statements of a simultaneous move: every update reads the old values of all moving blocks."""
    statements: list[Statement] = []
    late: list[Statement] = []
    waiting = dict(updates)
    readers: dict[Block, set[Block]] = {b: set() for b in updates}
    for c, e in updates.items():
        for b in e.atoms(Symbol) & readers.keys() - {c}:
            readers[b].add(c)
    while waiting:
        free = next((b for b in waiting if not readers[b] & waiting.keys()), None)
        if free is not None:
            statements.append(kind(free, waiting.pop(free)))
            continue
        block = next(iter(waiting))
        new = Local(names.fresh(f"{block}_new"), block.is_vector)
        statements.append(Let(new, waiting.pop(block)))
        late.append(kind(block, new))
    return statements + late
