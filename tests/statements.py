"""An oracle of the emitted step: the statements of its Program in their order, in numpy float64."""

from collections.abc import Mapping
from functools import partial

from integrators.program import DERIVATIVES, Adapt, Draw, Gradient, Let, Local, Observe, Set, Solve, Sum
from recipe.symbols import Total
from samplers.testing.interpreter import Chain, matrix_of


def interpret(step, state, h, *, sizes=None, **arguments):
    """Makes one step by the statements of its Program, in their order."""
    program = step.program
    chain = Chain(step.recipe, state, h, arguments, sizes)
    for statement in (*program.constants, *program.statements):
        if isinstance(statement, Gradient):
            asked = _derivatives(chain, statement, state)
            chain.at |= {name: asked[block] for block, name in statement.names}
        else:
            _perform(chain, statement)
    carried = {DERIVATIVES[order]: _carried(chain, program, order) for order in program.carries}
    return chain.state() | carried


def _carried(chain, program, order):
    """A derivative of U that the step hands to the next: an array, or one for each block."""
    names = program.carried_of(order)
    if program.is_whole(names):
        return chain.lower(names[0][1])
    return {program.places[name]: chain.lower(name) for _, name in names}


def _perform(chain, statement):
    """Executes a statement other than Gradient."""
    match statement:
        case Let(Local(is_operator=True) as name, value):
            chain.at[name] = matrix_of(value, chain.value)
        case Let(name, value) | Set(name, value) | Adapt(name, value):
            chain.at[name] = chain.value(value)
        case Sum(name, integrand):
            chain.at[name] = chain.value(Total(integrand))
        case Draw(name, None):
            chain.at[name] = chain.lift(chain.arguments["noise"][name.name], name)
        case Draw(name, parameter):
            chain.at[name] = chain.arguments["noise"][name.name](chain.value(parameter))
        case Observe(name, observed):
            chain.at[name] = chain.observed(observed)
        case Solve(names, entries):
            chain.at |= {name: chain.value(entry) for name, entry in zip(names, entries)}


def _derivatives(chain, statement, state):
    """The derivative that a statement asks for: carried from the step before, given as an array, or computed from U."""
    name = DERIVATIVES[statement.order]
    answer = chain.arguments.get(name)
    U = statement.potential
    if U is not None and isinstance(answer, Mapping):
        answer = answer[U.key]
    if statement.source == "carried" and name in state:
        answer = partial(_as_it_is, _taken_over(chain, statement, state[name]))
    elif statement.source == "given":
        answer = partial(_as_it_is, answer)
    if statement.order:
        return chain.ask(answer, statement.blocks)
    ((block, _),) = statement.names
    return {block: chain.energy(answer, statement.blocks)}


def _taken_over(chain, statement, carried):
    """The carried derivative of one potential, in the form of its function's values."""
    if statement.potential is None:
        return carried
    own = {b.name: carried[chain.recipe.place(statement.potential, b)] for b, _ in statement.names}
    return own if len(own) > 1 else next(iter(own.values()))


def _as_it_is(value, _):
    return value
