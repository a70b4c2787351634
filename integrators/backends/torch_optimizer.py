"""Printer of a torch.optim.Optimizer around the step that starts right after a gradient."""

import textwrap
from collections.abc import Iterable, Mapping

from sympy import Expr, S, Symbol

from recipe import Recipe, symbols
from recipe.marginal import eliminate_gaussians
from recipe.symbols import Block, num_data, step_number

from ..program import Local, Program
from .template import filled, template
from .torch_expressions import Writer, free_name

OPTIMIZER = template("optimizer.py.in")
SETTINGS = template("settings.py.in")

Formulas = Mapping[Symbol, Expr]  # of the step size and of parameters in lr and momentum


def optimizer_source(program: Program, start: Program, writer: Writer) -> str:
    """The text of a torch.optim.Optimizer around `advance`, the rotation of the word that starts after the gradient.

    `start`: the Program of the initial values of adapted quantities.
    """
    recipe = program.recipe
    of_rate = recipe.learning_rate(program.scheme.moves)
    rate = _rate(of_rate)
    parameters = [writer.names[s.name] for s in recipe.parameters]
    groups = ["step_size", *rate, "num_data", "weight_decay", "temperature", *parameters]
    observes = bool(program.observations or start.observations)
    starts, later = _starts(program, writer)
    if recipe.adapted:
        later.insert(0, _beginning(start, writer))
    optimizer = filled(
        OPTIMIZER,
        name=recipe.name,
        rate=" and ".join(rate),
        seen="\n    step takes observe: functions of theta (1, sites), by name." if observes else "",
        signature=_wrapped(f"    def __init__({', '.join(_arguments(recipe, writer, rate))}):"),
        settings=_wrapped(f"        super().__init__(params, dict({', '.join(f'{a}={a}' for a in groups)}))"),
        observe=", observe=None" if observes else "",
        starts=starts,
        begin="".join(f"\n{' ' * 16}{line}" for line in later),
        target=recipe.targets[0].name,
        moving=_place_of_moving(recipe),
        draws=", ".join(_draw(d, writer) for d in program.draws),
        passed=_passed(program, writer),
    )
    return f"{_settings_source(recipe, writer, rate, of_rate)}\n\n\n{optimizer}\n"


def _rate(formulas: Formulas) -> list[str]:
    """The names of the arguments for the learning rate: lr and momentum, as far as they apply."""
    has_momentum = any(s.name == "momentum" for e in formulas.values() for s in e.free_symbols)
    return ["lr", "momentum"] if has_momentum else ["lr"]


def _arguments(recipe, writer, rate):
    """The arguments of the constructor, arguments without a default first."""
    required = [writer.names[s.name] for s in recipe.parameters if s.default is None]
    of_rate = ["lr=None", "momentum=0.9"][: len(rate)]
    of_run = ["num_data=1", "weight_decay=0.0", "temperature=1.0", "seed=0"]
    others = [f"{writer.names[s.name]}={s.default!r}" for s in recipe.parameters if s.default is not None]
    return ["self", "params", "*", "step_size=None", *required, *of_rate, *of_run, *others]


def _draw(d, writer):
    """The text of an item in the dict of random numbers."""
    like = "theta" if d.is_vector else _like_a_number(writer)
    return f'"{d.name}": draw("{d.kind}", {like})'


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
    """Lines that set the adapted quantities to their initial values."""
    target = start.recipe.targets[0].name
    call = f'begin({{**kept, "{target}": theta}}, h, gradient=gradient, noise={{}}{_passed(start, writer)})'
    return f'kept.update({call})\n{" " * 16}kept.pop("{target}")'


def _wrapped(line):
    """A call broken into lines that are indented to its first bracket."""
    indent = " " * (line.index("(", line.index("__init__")) + 1)
    return "\n".join(textwrap.wrap(line, 118, subsequent_indent=indent, break_long_words=False))


def _settings_source(recipe: Recipe, writer: Writer, rate: list[str], of_rate: Formulas) -> str:
    """The text of the function that reads a group's step size and parameters, given or derived from lr and momentum."""
    names = {s: writer.names[s.name] for s in recipe.parameters}
    formulas = _texts_of_rate(of_rate, writer, rate)
    h = formulas.pop(symbols.step_size)
    values = {names[s]: text for s, text in formulas.items()}
    defaults = {names[s]: s.default for s in formulas}
    in_words = " and ".join(rate)
    return filled(
        SETTINGS,
        rate=in_words,
        parameters=_items((name, _of_group(name)) for name in names.values()),
        checks="".join(
            f"\n    {line}" for line in [*_check_of_values(defaults, in_words), *_check_of_momentum(rate, of_rate)]
        ),
        h=h,
        values=f"{{**parameters, {_items(values.items())}}}" if values else "parameters",
    )


def _texts_of_rate(of_rate: Formulas, writer: Writer, rate: list[str]) -> dict:
    """The texts of the step size and of parameters as functions of lr and momentum."""
    numbers = {name: Local(name, constant=True) for name in (*rate, "num_data")}
    for name, local in numbers.items():
        writer.rename(local, name)
    return {s: writer.text(e.xreplace({x: numbers[x.name] for x in e.free_symbols})) for s, e in of_rate.items()}


def _of_group(name):
    return f'group["{name}"]'


def _items(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f'"{name}": {value}' for name, value in pairs)


def _check_of_values(defaults, rate):
    """Lines that refuse parameters given together with an lr or momentum that determines them."""
    if not defaults:
        return []
    differs = " or ".join(f"{_of_group(name)} != {default!r}" for name, default in defaults.items())
    names = ", ".join(defaults)
    follow = "follow" if len(defaults) > 1 else "follows"
    message = f"{names} {follow} from {rate}: give step_size and {names}, or neither"
    return [f"if {differs}:", f'    raise ValueError("{message}")']


def _check_of_momentum(rate, of_rate):
    if "momentum" not in rate:
        return []
    lines = [
        'momentum = group["momentum"]',
        "if not 0 <= momentum < 1:",
        '    raise ValueError("momentum is a number from 0 to 1")',
    ]
    infinite = [s.name for s, e in of_rate.items() if _is_infinite_without_momentum(e)]
    if infinite:
        message = f"momentum = 0 stands for an infinite {infinite[0]}: no step has that limit"
        lines += ["if momentum == 0:", f'    raise ValueError("{message}")']
    return lines


def _is_infinite_without_momentum(e: Expr) -> bool:
    limit = e.xreplace({s: S.Zero for s in e.free_symbols if s.name == "momentum"})
    return limit.has(S.Infinity, S.ComplexInfinity)


def _like_a_number(writer):
    """The text of a tensor with the shape of a scalar block."""
    return "theta[:, :len(sizes)]" if writer.by_tensor else "theta[:, 0]"


def _starts(program, writer):
    """Items of the initial dict of blocks, and lines for values that follow from adapted quantities.

    The items are initial values of auxiliary blocks, and placeholders of adapted quantities.
    """
    recipe = program.recipe
    means = {g.block: g.mean for g in eliminate_gaussians(recipe.H, recipe.momenta + recipe.thermostats)[0]}
    known = {s: Local(f'parameters["{writer.names[s.name]}"]', constant=True) for s in recipe.parameters}
    known[num_data] = Local('group["num_data"]', constant=True)
    begun = {a: Local(f'kept["{a.name}"]', a.is_vector) for a in recipe.adapted}
    items: list[str] = []
    later: list[str] = []
    for b in recipe.entries:
        if b in recipe.targets:
            continue
        start = means.get(b, b.domain.start)
        if not _is_known_at_start(start, begun):
            start = S.Zero
        if start.free_symbols & begun.keys():
            later.append(f'kept["{b.name}"] = {writer.text(start.xreplace(known | begun))}')
            start = S.Zero
        items.append(_item_at_start(b, start.xreplace(known), writer))
    return [*items, '"step_number": 0,', f'"{_place_of_moving(recipe)}": moving,'], later


def _place_of_moving(recipe: Recipe) -> str:
    """The key, beside the names of blocks, of the indices of moving tensors."""
    return free_name("moving", [b.name for b in recipe.entries])


def _is_known_at_start(e: Expr, begun: dict) -> bool:
    """Whether an expression reads no total, no parameter per site, and no block without an initial value."""
    waits = (getattr(s, "per", None) or isinstance(s, Block) and s not in begun for s in e.free_symbols)
    return not (e.has(symbols.Total) or any(waits))


def _item_at_start(block, value, writer):
    text = writer.text(value)
    if writer.level(value) == "site":
        return f'"{block.name}": {text},'
    like = "theta" if block.is_vector else _like_a_number(writer)
    return f'"{block.name}": torch.full_like({like}, {text}),'
