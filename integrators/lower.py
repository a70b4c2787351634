"""From flows and a scheme to a Program: a short list of statements that every backend prints.

What depends on h and the parameters alone is computed once, before the first stage; a gradient is evaluated only
when the target has moved since the last one; blocks of one flow move simultaneously.
"""

from collections.abc import Mapping

from sympy import Add, Dummy, Expr, Function, Mul, Pow, S, cse, numbered_symbols
from sympy.core.function import AppliedUndef

from recipe import Energy, Recipe, symbols
from recipe.errors import RecipeError
from recipe.symbols import Block, Parameter, Partial, Potential, is_site, step_size as h, temperature

from .flow import Flow, MatrixFunction, Normal
from .program import Draw, Gradient, Let, Local, Program, Set, Solve, Stage, Total, verify
from .scheme import Scheme

_CALLS = (Function, Pow)


def lower(recipe: Recipe, scheme: Scheme, flows: Mapping[str, Flow], *, reuse_gradient: bool = True,
          energy: Energy | None = None, given_gradient: bool = False) -> Program:
    """The Program of a scheme's flows.

    With `reuse_gradient` a gradient serves until the target moves, across steps too; without, each piece that reads
    grad U evaluates a fresh one. `given_gradient` starts from the caller's gradient (the optimizer form). Raises
    RecipeError where a formula asks for more of U than its gradient and Hessian diagonal.
    """
    entry = "given" if given_gradient else None
    program, current = _assemble(recipe, scheme, flows, reuse_gradient, energy, entry)
    if reuse_gradient and entry is None and current and _reads_before_moving(scheme, flows, recipe):
        program, _ = _assemble(recipe, scheme, flows, reuse_gradient, energy, "carried")
    verify(program)
    return program


def optimizer_form(recipe: Recipe, scheme: Scheme, flows: Mapping[str, Flow], energy=None) -> Program:
    """The cyclic rotation of the word that starts right after its one gradient, as a training loop needs it.

    Raises RecipeError if the word needs more than one gradient per step.
    """
    for k in range(len(scheme.moves)):
        rotated = scheme.rotated(k).merged([letter for letter, flow in flows.items() if flow.exact])
        if not flows[rotated.moves[0][0]].reads_gradient:
            continue
        program = lower(recipe, rotated, flows, energy=energy, given_gradient=True)
        if program.gradients_per_step == 0 and not program.needs_curvature:
            return program
    raise RecipeError(f"{recipe.name}, optimizer form", f"the word {scheme} needs more than one gradient per step",
                      do="Choose a word with one, such as 'B A O A B' or 'F A'.")


def _reads_before_moving(scheme, flows, recipe):
    for letter, _ in scheme.moves:
        if flows[letter].reads_gradient:
            return True
        if any(b in recipe.targets for b in flows[letter].updates):
            return False
    return False


def _assemble(recipe, scheme, flows, reuse, energy, entry):
    constants, names = _Constants(), _Names(recipe)
    gradient = {b: Local("g" if len(recipe.targets) == 1 else f"g_{b}", b.is_vector) for b in recipe.targets}
    curvature = {b: Local("c" if len(recipe.targets) == 1 else f"c_{b}", b.is_vector) for b in recipe.targets}
    normals = _normals(scheme, flows)
    stages, fresh = [], set()
    if entry:
        stages.append(Stage("gradient", (Gradient(tuple(gradient.items()), entry),)))
        fresh = {1}
    for k, (letter, fraction) in enumerate(scheme.moves):
        flow, statements = flows[letter], []
        updates = {b: e.xreplace(normals[k]) for b, e in flow.over(fraction).items()}
        statements += [Draw(normals[k][d]) for d in flow.draws]
        for order, values in ((1, gradient), (2, curvature)):
            known = {Partial(recipe.potential, *[b] * order): g for b, g in values.items()} if recipe.potential else {}
            if any(e.has(*known) for e in updates.values() if known):
                if order not in fresh or not (reuse or entry and k == 0):
                    statements.append(Gradient(tuple(values.items()), order=order))
                    fresh.add(order)
                updates = {b: e.xreplace(known) for b, e in updates.items()}
        _refuse_more_of_U(recipe, letter, updates)
        updates = {b: constants.hoist_terms(b, e) for b, e in updates.items()}
        lets, updates = _totals_and_shared(updates, names)
        statements += lets + _simultaneous(updates, names)
        if any(b in recipe.targets for b in updates):
            fresh.clear()
        share = "h" if fraction == 1 else f"{fraction}*h" if fraction.is_Float else str(fraction * h)
        stages.append(Stage(f"{letter} over {share}: {flow.equation}  [{flow.rule}]", tuple(statements)))
    return Program(recipe, scheme, constants.statements, tuple(stages), entry == "carried", energy), 1 in fresh


def _normals(scheme, flows):
    """For each move, the flow's normals renamed: "p" if the step draws one for p, else "p1", "p2", ..."""
    blocks = [d.block for letter, _ in scheme.moves for d in flows[letter].draws]
    number = lambda b, k, gap="": b.name + (f"{gap}{k}" if blocks.count(b) > 1 else "")
    plain = [number(b, k + 1) for b in dict.fromkeys(blocks) for k in range(blocks.count(b))]
    gap = "" if len(set(plain)) == len(plain) else "_"
    seen, renamed = {}, []
    for letter, _ in scheme.moves:
        own = {}
        for d in flows[letter].draws:
            seen[d.block] = seen.get(d.block, 0) + 1
            own[d] = Normal(d.block, number(d.block, seen[d.block], gap))
        renamed.append(own)
    return renamed


def _refuse_more_of_U(recipe, letter, updates):
    for block, e in updates.items():
        where = f"{recipe.name}, lower, piece {letter!r}"
        if frozen := e.atoms(AppliedUndef):
            f = next(iter(frozen)).func.__name__
            raise RecipeError(where, f"the function {f!r} is still opaque", do=f"Give it: recipe.bind({f}=...).")
        if e.has(Partial):
            raise RecipeError(where, f"the motion of {block} asks for {next(iter(e.atoms(Partial)))}",
                              do="Pass a symbolic energy: recipe.bind(U=Energy(...)).")
        if e.has(Potential):
            raise RecipeError(where, f"the motion of {block} asks for the value of U, not only its gradient",
                              do="Pass a symbolic energy: recipe.bind(U=Energy(...)).")


class _Constants:
    """Subexpressions of h and parameters that cost something, named once: decay_p, spread_p, kick_p, drift_theta."""

    def __init__(self):
        self.known: dict[Expr, Local] = {}
        self.solved: dict[tuple, dict[MatrixFunction, Local]] = {}
        self.order: list = []

    @property
    def statements(self):
        return tuple(self.order)

    def hoist_terms(self, block, expression):
        terms = []
        for term in Add.make_args(expression):
            names = {type(s) for s in term.free_symbols}
            role = "spread" if Normal in names else "kick" if Local in names else "drift"
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

    @staticmethod
    def is_constant(e):
        return all(isinstance(s, Parameter) or s in (h, temperature) or getattr(s, "is_constant_in_step", False)
                   for s in e.free_symbols) and not any(t.integrand is not S.One for t in e.atoms(symbols.Total)) \
            or isinstance(e, MatrixFunction) and not e.atoms(Block)

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
        self.taken = {s.name for s in recipe.state + recipe.parameters}

    def fresh(self, stem):
        name = next(n for n in (f"{stem}{k}" for k in range(1, 9999)) if n not in self.taken)
        self.taken.add(name)
        return name


def _totals_and_shared(updates, names):
    """Totals and repeated subexpressions of one flow as statements of their own, innermost first."""
    lets, known = [], {}

    def settle(e):
        if isinstance(e, symbols.Total) and e.integrand is not S.One:
            if e not in known:
                inside = settle(e.integrand)
                known[e] = Local(names.fresh("sum"))
                lets.append(Total(known[e], inside))
            return known[e]
        if isinstance(e, MatrixFunction):
            key = (type(e), e.system)
            if key not in known:
                inside = tuple(map(settle, e.system))
                known[key] = {x: Local(names.fresh(f"{x.part}_"), is_site(e)) for x in e.siblings}
                lets.append(Solve(tuple(known[key].values()), tuple(x.func(*x.args[:3], *inside) for x in e.siblings)))
            return known[key][e]
        return e.func(*map(settle, e.args)) if e.args and e.has(symbols.Total, MatrixFunction) else e

    updates = {b: settle(e) for b, e in updates.items()}
    if any(e.atoms(*_CALLS) for e in updates.values()):
        shared, reduced = cse(list(updates.values()), symbols=numbered_symbols(cls=Dummy), order="none")
        swap = {}
        for s, value in shared:
            value = value.xreplace(swap)
            if isinstance(value, Expr) and value.atoms(*_CALLS) and not _Constants.is_constant(value):
                swap[s] = Local(names.fresh("x"), is_site(value))
                lets.append(Let(swap[s], value))
            else:
                swap[s] = value
        updates = {b: e.xreplace(swap) for b, e in zip(updates, reduced)}
    return lets, updates


def _simultaneous(updates, names):
    """Set statements such that every update reads the old values of the blocks that move with it."""
    statements, waiting, late = [], dict(updates), []
    while waiting:
        free = next((b for b in waiting if not any(e.has(b) for c, e in waiting.items() if c != b)), None)
        if free is None:
            free = next(iter(waiting))
            new = Local(names.fresh(f"{free}_new"), free.is_vector)
            statements.append(Let(new, waiting.pop(free)))
            late.append(Set(free, new))
        else:
            statements.append(Set(free, waiting.pop(free)))
    return statements + late
