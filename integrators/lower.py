"""From flows and a scheme to a Program: a short list of statements that every backend prints.

What depends on h and the parameters alone is computed once, before the first stage; a gradient is evaluated only
when the target has moved since the last one; blocks of one flow move simultaneously.
"""

from collections.abc import Mapping
from dataclasses import replace

from sympy import Add, Dummy, Expr, Function, Mul, Pow, S, Symbol, cse, numbered_symbols
from sympy.core.function import AppliedUndef

from recipe import Energy, Recipe, symbols
from recipe.errors import RecipeError
from recipe.symbols import OF_THE_STEP, Block, Observed, Parameter, Partial, Potential, is_site, num_data
from recipe.symbols import step_size as h

from .extraction import Extraction
from .flow import Drawn, Flow, MatrixFunction, Variate
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

_CALLS = (Function, Pow)


def lower(
    recipe: Recipe,
    scheme: Scheme,
    flows: Mapping[str, Flow],
    *,
    reuse_gradient: bool = True,
    energy: Energy | None = None,
    given_gradient: bool = False,
    adapt: Mapping | None = None,
    scope: str = "chain",
) -> Program:
    """The Program of a scheme's flows, with the updates of adapted quantities where the recipe's order puts them.

    With `reuse_gradient` a gradient serves until the target moves, across steps too; without, each piece that reads
    grad U evaluates a fresh one. `given_gradient` starts from the caller's gradient (the optimizer form). Raises
    RecipeError where a formula asks for more of U than its gradient and Hessian diagonal.
    """
    entry = "given" if given_gradient else None
    assembled = lambda entry: _Assembly(recipe, scheme, flows, reuse_gradient, energy, adapt or {}, scope).program(
        entry
    )
    program, current = assembled(entry)
    if reuse_gradient and entry is None and current and _reads_before_moving(scheme, flows, recipe):
        program, _ = assembled("carried")
    verify(program)
    return program


def optimizer_form(recipe: Recipe, scheme: Scheme, flows: Mapping[str, Flow], adapt=None, scope="chain") -> Program:
    """The cyclic rotation of the word that starts right after its one gradient, as a training loop needs it.

    Raises RecipeError if the word needs more than one gradient per step.
    """
    for k in range(len(scheme.moves)):
        rotated = scheme.rotated(k).merged([letter for letter, flow in flows.items() if flow.exact])
        if not flows[rotated.moves[0][0]].reads_gradient:
            continue
        program = lower(recipe, rotated, flows, given_gradient=True, adapt=adapt, scope=scope)
        if program.gradients_per_step == 0 and not program.needs_curvature:
            return program
    raise RecipeError(
        f"{recipe.name}, optimizer form",
        f"the word {scheme} needs more than one gradient per step",
        do="Choose a word with one, such as 'B A O A B' or 'F A'.",
    )


def of_the_loss(program: Program, *, prior: bool) -> Program:
    """The optimizer form that is given the gradient of a mean loss: grad U = num_data g, plus prior_precision theta with a prior."""
    ((theta, g),) = next(s.names for s in program.statements if isinstance(s, Gradient))
    slope = num_data * g
    lets = ()
    if prior:
        if any(s.name == "prior_precision" for s in program.recipe.symbols):
            raise RecipeError(
                f"{program.recipe.name}, weight_decay", "the recipe has a prior_precision of its own", do="Use that."
            )
        slope, lets = (
            Local("slope", True),
            (Let(Local("slope", True), num_data * g + Symbol("prior_precision", real=True) * theta),),
        )
    first, *others = program.stages
    moved = tuple(
        Stage(s.title, tuple(x if isinstance(x, Gradient) else rewritten(x, {g: slope}) for x in s.statements))
        for s in others
    )
    return replace(program, stages=(Stage(first.title, (*first.statements, *lets)), *moved))


def _reads_before_moving(scheme, flows, recipe):
    for letter, _ in scheme.moves:
        if flows[letter].reads_gradient:
            return True
        if any(b in recipe.targets for b in flows[letter].updates):
            return False
    return False


class _Assembly:
    """The stages of a word, one after the other, with what is known of U's derivatives at each."""

    def __init__(self, recipe, scheme, flows, reuse, energy, adapt, scope):
        self.recipe, self.scheme, self.flows, self.reuse = recipe, scheme, flows, reuse
        self.energy, self.adapt, self.scope = energy, adapt, scope
        self.constants, self.names, self.fresh, self.stages = _Constants(scope), _Names(recipe), set(), []
        several = len(recipe.targets) > 1
        self.locals = {
            order: {b: Local(f"{stem}_{b}" if several else stem, b.is_vector) for b in recipe.targets}
            for order, stem in ((1, "g"), (2, "c"))
        }
        self.first_gradient = None

    def program(self, entry) -> tuple[Program, bool]:
        """The Program, and whether its gradient is still that of the target at the end."""
        recipe, normals = self.recipe, _draws(self.scheme, self.flows)
        if entry:
            self.stages.append(Stage("gradient", (Gradient(tuple(self.locals[1].items()), entry),)))
            self.fresh, self.first_gradient = {1}, (0, 0)
        early = recipe.order == "same_step"
        for k, (letter, fraction) in enumerate(self.scheme.moves):
            flow, again = self.flows[letter], not (self.reuse or entry and k == 0)
            if early and (flow.reads_gradient or k == len(self.scheme.moves) - 1):
                self.adapt_now()
                early = again = False
            updates = {b: e.xreplace(normals[k]) for b, e in flow.over(fraction).items()}
            statements, updates = self.with_derivatives(updates, letter, again)
            updates = {b: self.constants.hoist_terms(b, e) for b, e in updates.items()}
            lets, updates = _settled(updates, self.names, self.constants)
            drawn = [s.name for s in lets if isinstance(s, Draw)]
            statements += [Draw(d) for d in map(normals[k].get, flow.draws) if d not in drawn]
            self.stages.append(
                Stage(
                    f"{letter} over {_share(fraction)}: {flow.equation}  [{flow.rule}]",
                    tuple(statements + lets + _simultaneous(updates, self.names)),
                )
            )
            if any(b in recipe.targets for b in updates):
                self.fresh.clear()
        current = 1 in self.fresh
        if recipe.order != "same_step":
            self.adapt_now()
        return Program(
            recipe,
            self.scheme,
            self.constants.statements,
            tuple(self.stages),
            entry == "carried",
            self.energy,
            self.scope,
        ), current

    def with_derivatives(self, updates, letter, again):
        """Statements that evaluate the derivatives of U that updates ask for, and the updates in terms of these."""
        statements = []
        for order, values in self.locals.items():
            known = self.partials(order)
            if any(e.has(*known) for e in updates.values() if known):
                if order not in self.fresh or again:
                    statements.append(Gradient(tuple(values.items()), order=order))
                    self.fresh.add(order)
                    if order == 1 and self.first_gradient is None:
                        self.first_gradient = len(self.stages), len(statements) - 1
                updates = {b: e.xreplace(known) for b, e in updates.items()}
        _refuse_more_of_U(self.recipe, letter, updates)
        return statements, updates

    def partials(self, order):
        U = self.recipe.potential
        return {Partial(U, *[b] * order): g for b, g in self.locals[order].items()} if U else {}

    def adapt_now(self):
        """The stage that updates the adapted quantities, from the first gradient of the step."""
        if not self.adapt:
            return
        updates = dict(self.adapt)
        if self.first_gradient and self.recipe.order != "same_step":
            updates = {a: e.xreplace(self.partials(1)) for a, e in updates.items()}
            gradients = [
                s for stage in self.stages for s in stage.statements if isinstance(s, Gradient) and s.order == 1
            ]
            if len(gradients) > 1:
                updates = self.remembering_the_first(updates)
        statements, updates = self.with_derivatives(updates, "adapt", again=False)
        lets, updates = _settled(updates, self.names, self.constants)
        told = ", ".join(f"{a} <- {e}" for a, e in self.adapt.items())
        title = "adapt: " + (told if len(told) < 200 else ", ".join(a.name for a in self.adapt))
        self.stages.append(Stage(title, tuple(statements + lets + _simultaneous(updates, self.names, Adapt))))

    def remembering_the_first(self, updates):
        """The updates in terms of a copy of the first gradient, which the step overwrites later."""
        stage, place = self.first_gradient
        copies = {g: Local(self.names.fresh(f"first_{g}"), g.is_vector) for g in self.locals[1].values()}
        statements = list(self.stages[stage].statements)
        statements[place + 1 : place + 1] = [Let(copy, g) for g, copy in copies.items()]
        self.stages[stage] = Stage(self.stages[stage].title, tuple(statements))
        return {a: e.xreplace(copies) for a, e in updates.items()}


def _share(fraction):
    return "h" if fraction == 1 else f"{fraction}*h" if fraction.is_Float else str(fraction * h)


def _draws(scheme, flows):
    """For each move, the flow's variates renamed: "p" if the step draws one for p, else "p1", "p2", ..."""
    blocks = [d.block for letter, _ in scheme.moves for d in flows[letter].draws]
    number = lambda b, k, gap="": b.name + (f"{gap}{k}" if blocks.count(b) > 1 else "")
    plain = [number(b, k + 1) for b in dict.fromkeys(blocks) for k in range(blocks.count(b))]
    gap = "" if len(set(plain)) == len(plain) else "_"
    seen, renamed = {}, []
    for letter, _ in scheme.moves:
        own = {}
        for d in flows[letter].draws:
            seen[d.block] = seen.get(d.block, 0) + 1
            own[d] = type(d)(d.block, number(d.block, seen[d.block], gap), d.is_vector)
        renamed.append(own)
    return renamed


def _refuse_more_of_U(recipe, letter, updates):
    for block, e in updates.items():
        where = f"{recipe.name}, lower, piece {letter!r}"
        if opaque := e.atoms(AppliedUndef):
            f = min(a.func.__name__ for a in opaque)
            raise RecipeError(where, f"the function {f!r} is still opaque", do=f"Give it: recipe.bind({f}=...).")
        if e.has(Partial):
            raise RecipeError(
                where,
                f"the motion of {block} asks for {min(map(str, e.atoms(Partial)))}",
                do="Pass a symbolic energy: recipe.bind(U=Energy(...)).",
            )
        if e.has(Potential):
            raise RecipeError(
                where,
                f"the motion of {block} asks for the value of U, not only its gradient",
                do="Pass a symbolic energy: recipe.bind(U=Energy(...)).",
            )


class _Constants:
    """Subexpressions of h and parameters that cost something, named once: decay_p, spread_p, kick_p, drift_theta."""

    def __init__(self, scope):
        self.scope = scope
        self.known: dict[Expr, Local] = {}
        self.solved: dict[tuple, dict[MatrixFunction, Local]] = {}
        self.order: list = []

    @property
    def statements(self):
        return tuple(self.order)

    def hoist_terms(self, block, expression):
        terms = []
        for term in Add.make_args(expression):
            kinds = term.free_symbols
            role = (
                "spread"
                if any(isinstance(s, Variate) for s in kinds)
                else ("kick" if any(isinstance(s, Local) for s in kinds) else "drift")
            )
            role = "decay" if block in Mul.make_args(term) else role
            terms.append(self.hoist(term, f"{role}_{block}"))
        return Add(*terms)

    def hoist(self, e, name):
        if isinstance(e, MatrixFunction) and self.is_constant(e):
            return self._entry(e)
        if not isinstance(e, Expr):  # a condition stays where it is
            return e
        if self.is_constant(e):
            return self._named(e, name) if self._costs(e) else e
        if e.is_Mul or e.is_Add:
            still = [a for a in e.args if self.is_constant(a) and not isinstance(a, MatrixFunction)]
            moving = [self.hoist(a, name) for a in e.args if a not in still]
            part = e.func(*still)
            return e.func(self._named(part, name) if self._costs(part) else part, *moving)
        return e.func(*(self.hoist(a, name) for a in e.args)) if e.args else e

    def is_constant(self, e):
        """Whether e depends on the step and the parameters alone; n counts as such where there is one of it."""
        totals = any(t.integrand is not S.One or self.scope == "tensor" for t in e.atoms(symbols.Total))
        symbols_are = all(
            isinstance(s, Parameter) or s in OF_THE_STEP or getattr(s, "is_constant_in_step", False)
            for s in e.free_symbols
        )
        return not totals and (symbols_are or isinstance(e, MatrixFunction) and not e.atoms(Block))

    @staticmethod
    def _costs(e):
        if e.is_Atom:
            return False
        tensors = any(isinstance(s, Parameter) and s.per for s in e.free_symbols)
        return tensors or any(f.is_Function or f.is_Pow and not f.exp.is_Integer for f in e.atoms(*_CALLS))

    def _named(self, e, name):
        if e.could_extract_minus_sign():
            return -self._named(-e, name) if self._costs(-e) else e
        if e not in self.known:
            taken = {s.name for s in self.known.values()}
            unique = next(n for n in (name, *(f"{name}{k}" for k in range(2, 999))) if n not in taken)
            self.known[e] = Local(unique, is_site(e), constant=True)
            self.order.append(Let(self.known[e], e))
        return self.known[e]

    def _entry(self, e):
        key = (type(e), e.system)
        if key not in self.solved:
            run = f"{len(self.solved) + 1}" if self.solved else ""
            name = lambda x: f"{x.part}{run}_{x.row}{x.column}"
            self.solved[key] = {x: Local(name(x), is_site(e), constant=True) for x in e.siblings}
            self.order.append(Solve(tuple(self.solved[key].values()), e.siblings))
        return self.solved[key][e]


class _Names:
    """Fresh names for the values of a step."""

    def __init__(self, recipe):
        self.taken = {s.name for s in recipe.entries + recipe.parameters}

    def fresh(self, stem):
        name = next(n for n in (f"{stem}{k}" for k in range(1, 9999)) if n not in self.taken)
        self.taken.add(name)
        return name


def _settled(updates, names, constants):
    """Totals, draws, observations and repeated subexpressions of one flow as statements of their own, innermost first."""
    lets: list[Statement] = []
    systems: dict[tuple, dict[MatrixFunction, Local]] = {}

    def name(e, extract):
        match e:
            case symbols.Total():
                inside = extract(e.integrand)
                lets.append(Sum(Local(names.fresh("sum")), inside))
                return lets[-1].name
            case Drawn():
                lets.append(Draw(e.variate, extract(e.parameter)))
                return e.variate
            case Observed():
                lets.append(Observe(Local(names.fresh(e.name), e.is_vector), e))
                return lets[-1].name
            case MatrixFunction():
                key = type(e), e.system
                if key not in systems:
                    inside = tuple(map(extract, e.system))
                    systems[key] = {x: Local(names.fresh(f"{x.part}_"), is_site(e)) for x in e.siblings}
                    entries = tuple(x.func(*x.args[:3], *inside) for x in e.siblings)
                    lets.append(Solve(tuple(systems[key].values()), entries))
                return systems[key][e]

    extract = Extraction(name, symbols.Total, MatrixFunction, Drawn, Observed)
    updates = {b: extract(e) for b, e in updates.items()}
    if any(e.atoms(*_CALLS) for e in updates.values()):
        shared, reduced = cse(list(updates.values()), symbols=numbered_symbols(cls=Dummy), order="none")
        swap = {}
        for s, value in shared:
            value = value.xreplace(swap)
            if isinstance(value, Expr) and value.atoms(*_CALLS) and not constants.is_constant(value):
                swap[s] = Local(names.fresh("x"), is_site(value))
                lets.append(Let(swap[s], value))
            else:
                swap[s] = value
        updates = {b: e.xreplace(swap) for b, e in zip(updates, reduced)}
    return lets, updates


def _simultaneous(updates, names, kind=Set):
    """Set statements such that every update reads the old values of the blocks that move with it."""
    statements, waiting, late = [], dict(updates), []
    while waiting:
        free = next((b for b in waiting if not any(e.has(b) for c, e in waiting.items() if c != b)), None)
        if free is None:
            free = next(iter(waiting))
            new = Local(names.fresh(f"{free}_new"), free.is_vector)
            statements.append(Let(new, waiting.pop(free)))
            late.append(kind(free, new))
        else:
            statements.append(kind(free, waiting.pop(free)))
    return statements + late
