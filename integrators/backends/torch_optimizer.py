"""Printer of a torch.optim.Optimizer around the step that starts right after a gradient."""

import textwrap
from collections.abc import Mapping

from sympy import Expr, S, Symbol

from recipe import Recipe, symbols
from recipe.symbols import num_data, step_number

from ..program import Local, Program
from .template import filled, template
from .torch_expressions import ExpressionWriter, dict_text, free_name

OPTIMIZER = template("optimizer.py.in")
SETTINGS = template("settings.py.in")


def optimizer_source(program: Program, start: Program, writer: ExpressionWriter) -> str:
    """The text of a torch.optim.Optimizer around `advance`, the rotation of the word that starts after the gradient.

    `start`: the Program `begin` of the initial values of auxiliary blocks and adapted quantities.
    """
    recipe = program.recipe
    of_rate = recipe.learning_rate(program.scheme)
    has_momentum = any(s.name == "momentum" for e in of_rate.values() for s in e.free_symbols)
    rate = ["lr", "momentum"] if has_momentum else ["lr"]
    parameters = [writer.names[s.name] for s in recipe.parameters]
    groups = ["step_size", *rate, "num_data", "weight_decay", "temperature", *parameters]
    moving = free_name("moving", [b.name for b in recipe.entries])  # a key beside the names of blocks
    auxiliary = [b for b in recipe.entries if b not in recipe.targets]
    starts = [f'"{b.name}": torch.full_like({_like(b, writer)}, {b.domain.start}),' for b in auxiliary]
    observes = bool(program.observations or start.observations)
    optimizer = filled(
        OPTIMIZER,
        name=recipe.name,
        rate=" and ".join(rate),
        seen="\n    step takes observe: functions of theta (1, sites), by name." if observes else "",
        signature=_wrapped(f"    def __init__({', '.join(_arguments(recipe, writer, rate))}):"),
        settings=_wrapped(f"        super().__init__(params, dict({', '.join(f'{a}={a}' for a in groups)}))"),
        observe=", observe=None" if observes else "",
        starts=[*starts, '"step_number": 0,', f'"{moving}": moving,'],
        begin=f"\n{' ' * 16}{_beginning(start, writer)}" if start.statements else "",
        target=recipe.targets[0].name,
        moving=moving,
        draws=_draws(program, writer),
        passed=_passed(program, writer),
    )
    return f"{_settings_source(recipe, writer, rate, of_rate)}\n\n\n{optimizer}\n"


def _arguments(recipe, writer, rate):
    """The arguments of the constructor, arguments without a default first."""
    required = [writer.names[s.name] for s in recipe.parameters if s.default is None]
    of_rate = ["lr=None", "momentum=0.9"][: len(rate)]
    of_run = ["num_data=1", "weight_decay=0.0", "temperature=1.0", "seed=0"]
    optional = [f"{writer.names[s.name]}={s.default!r}" for s in recipe.parameters if s.default is not None]
    return ["self", "params", "*", "step_size=None", *required, *of_rate, *of_run, *optional]


def _like(s, writer):
    """The text of a tensor with the shape of a block or a random number."""
    if s.is_vector:
        return "theta"
    return "theta[:, :len(sizes)]" if writer.by_tensor else "theta[:, 0]"


def _draws(program, writer):
    return ", ".join(f'"{d.name}": draw("{d.kind}", {_like(d, writer)})' for d in program.draws)


def _passed(program, writer):
    """The arguments after the noise in a call of `advance` or `begin`."""
    arguments = ['temperature=group["temperature"]']
    if program.reads(num_data):
        arguments.append('num_data=group["num_data"]')
    if program.reads(step_number):
        arguments.append('step_number=kept["step_number"]')
    if writer.by_tensor:
        arguments.append("sizes=sizes")
    if program.observations:
        arguments.append("observe=observe")
    if program.recipe.parameters:
        arguments.append("**parameters")
    return "".join(f", {a}" for a in arguments)


def _beginning(start, writer):
    """Lines that set the state to its initial values."""
    target = start.recipe.targets[0].name
    arguments = f"h, gradient=gradient, noise={{{_draws(start, writer)}}}{_passed(start, writer)}"
    return f'kept.update(begin({{**kept, "{target}": theta}}, {arguments}))\n{" " * 16}kept.pop("{target}")'


def _wrapped(line):
    """A call broken into lines that are indented to its first bracket."""
    indent = " " * (line.index("(", line.index("__init__")) + 1)
    return "\n".join(textwrap.wrap(line, 118, subsequent_indent=indent, break_long_words=False))


def _settings_source(recipe: Recipe, writer: ExpressionWriter, rate: list[str], of_rate: Mapping[Symbol, Expr]) -> str:
    """The text of the function that reads a group's step size and parameters, given or derived from lr and momentum."""
    numbers = {name: Local(name, constant=True) for name in (*rate, "num_data")}
    for name, local in numbers.items():
        writer.rename(local, name)
    formulas = {s: writer.text(e.xreplace({x: numbers[x.name] for x in e.free_symbols})) for s, e in of_rate.items()}
    h = formulas.pop(symbols.step_size)
    values = {writer.names[s.name]: text for s, text in formulas.items()}
    in_words = " and ".join(rate)
    checks = _check_of_values({writer.names[s.name]: s.default for s in formulas}, in_words)
    if "momentum" in rate:
        infinite = [s.name for s, e in of_rate.items() if _is_infinite_without_momentum(e)]
        reason = f"; 0 stands for an infinite {infinite[0]}, and no step has that limit" if infinite else ""
        checks += [
            'momentum = group["momentum"]',
            f"if not 0 {'<' if infinite else '<='} momentum < 1:",
            f'    raise ValueError("momentum is a number from 0 to 1{reason}")',
        ]
    return filled(
        SETTINGS,
        rate=in_words,
        parameters=dict_text({writer.names[s.name]: f'group["{writer.names[s.name]}"]' for s in recipe.parameters}),
        checks="".join(f"\n    {line}" for line in checks),
        h=h,
        values=f"parameters | {dict_text(values)}" if values else "parameters",
    )


def _check_of_values(defaults, rate):
    """Lines that refuse parameters given together with an lr or momentum that determines them."""
    if not defaults:
        return []
    differs = " or ".join(f'group["{name}"] != {default!r}' for name, default in defaults.items())
    names = ", ".join(defaults)
    follow = "follow" if len(defaults) > 1 else "follows"
    message = f"{names} {follow} from {rate}: give step_size and {names}, or neither"
    return [f"if {differs}:", f'    raise ValueError("{message}")']


def _is_infinite_without_momentum(e: Expr) -> bool:
    limit = e.xreplace({s: S.Zero for s in e.free_symbols if s.name == "momentum"})
    return limit.has(S.Infinity, S.ComplexInfinity)
