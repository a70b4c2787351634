"""Printer of a Program as readable torch source.

A vector block is `(chains, *shape)`, a scalar block `(chains,)`; parameters are Python floats, or tensors of the
target's shape if declared `per` site. This module does not import torch: the text does.
"""

import textwrap
from collections.abc import Sequence

from sympy import Symbol

from recipe import symbols
from recipe.fields import fields_of
from recipe.symbols import Potential, num_data, step_number

from ..flow import Flow
from ..program import DERIVATIVES, Adapt, Draw, Gradient, Let, Local, Observe, Program, Set, Solve, Sum, symbols_read
from .torch_energy import derivative_source, energy_sources
from .torch_expressions import PRELUDE, ExpressionWriter, WriterOverSteps, dict_text, fills, marked_names, moves
from .torch_optimizer import optimizer_source


def module_source(program: Program, *, title: str, sites: int | None = None) -> str:
    """The module of a step: imports and prelude, the derivatives of a symbolic energy, and the function `step`.

    `sites`: the number of sites of a chain, if its tensors hold only some of them.
    """
    writer = ExpressionWriter(program, sites)
    parts = [*energy_sources(program, writer), step_source(program, writer)]
    return _module(title, writer, parts)


def value_module(program: Program) -> str:
    """The module with a symbolic energy's U as the function `value` of the target."""
    writer = ExpressionWriter(program)
    return _module("U, the energy.", writer, [derivative_source(program, writer, 0)])


def standalone_source(program: Program, rotated: Program | None, start: Program, flows: Sequence[Flow]) -> str:
    """The text of one file: the derivation as docstring, the step, and an Optimizer class if the word allows one.

    `rotated`: the optimizer form, or None; `start`: the Program of the initial values.
    """
    recipe = program.recipe
    writer = ExpressionWriter(program)
    title = "\n".join([str(recipe), "", f"One step of {program.scheme}:", *(f"  {flow}" for flow in flows), ""])
    parts = [*energy_sources(program, writer), step_source(program, writer)]
    if rotated and len(recipe.targets) == 1 and recipe.targets[0].domain.is_real:
        writers = [ExpressionWriter(rotated), ExpressionWriter(start)]
        parts.append(step_source(rotated, writers[0], "advance"))
        if start.statements:
            parts.append(step_source(start, writers[1], "begin"))
        parts.append(optimizer_source(rotated, start, writers[0]))
        writer.used |= writers[0].used | writers[1].used
    return _module(title, writer, parts)


def _module(title, writer, parts):
    used = [PRELUDE[name] for name in PRELUDE if name in writer.used]
    docstring = '"""' + title.replace("\\", "/").replace('"', "'") + '"""'
    imports = f"{docstring}\n\nimport math\n\nimport torch"
    return "\n\n\n".join([imports, *(part.strip("\n") for part in [*used, *parts])]) + "\n"


def step_source(program: Program, writer: ExpressionWriter, name: str = "step") -> str:
    """The function `step(state, h, *, gradient, noise, ...)` of a Program."""
    recipe = program.recipe
    blocks = ", ".join(writer.names[b.name] for b in recipe.entries)
    values = ", ".join(f'state["{b.name}"]' for b in recipe.entries)
    body = [f'"""One step of {recipe.name} by the word {program.scheme}.', "", *_shapes(program), '"""']
    body.append(f"{blocks} = {values}")
    if any(e.has(symbols.total(1)) for s in (*program.constants, *program.statements) for e in s.values):
        sites = f"{writer.like}[0].numel()" if writer.sites is None else writer.sites
        if writer.by_tensor:
            sites = f"torch.tensor(sizes, dtype={writer.like}.dtype, device={writer.like}.device)"
        body.append(f"n = {sites}")
    body += _operators(recipe, writer)
    body += _constants(program, writer)
    stale: set[Symbol] = set()
    for stage in program.stages:
        body += _fields_anew(program, stage, writer, stale)
        if stage.title != "gradient":
            body.append(f"# {stage.title}")
        for statement in stage.statements:
            body += _statement(statement, writer, program)
    body.append(f"return {_result(program, writer)}")
    return "\n".join([_signature(program, writer, name), *(f"    {line}".rstrip() for line in body)])


def _operators(recipe, writer):
    """Lines of the operators; an operator that is a function of a block is evaluated at the start of the step."""
    constant = [writer.names[M.name] for M in recipe.operators if M not in recipe.fields]
    moving = [(writer.names[M.name], writer.names[M.at.name]) for M in recipe.fields]
    lines = [f"{name} = {writer.call('operator', name)}" for name in constant]
    return lines + [f"{name} = {writer.call('field', name, at)}" for name, at in moving]


def _fields_anew(program, stage, writer, stale):
    """Lines that evaluate anew what a stage reads of fields and formulas of them; `stale`: those of earlier states."""
    formulas = {s.name: s for s in program.constants if isinstance(s, Let) and fields_of(s.value)}
    read = symbols_read(stage.statements) & stale
    fields = {M for name in read for M in fields_of(formulas[name].value if name in formulas else name)} & stale
    names = {M: (writer.names[M.name], writer.names[M.at.name]) for M in program.recipe.fields if M in fields}
    lines = [f"{name} = {name}.at({at})" for name, at in names.values()]
    lines += [line for name, s in formulas.items() if name in read for line in _statement(s, writer, program)]
    stale -= read | fields
    blocks = {s.block for s in stage.statements if isinstance(s, Set)}
    late = {M for M in program.recipe.fields if M.at in blocks}
    stale |= late | {name for name, s in formulas.items() if fields_of(s.value) & late}
    return lines


def _result(program, writer):
    entries = {b.name: writer.names[b.name] for b in program.recipe.entries}
    return dict_text(entries | {DERIVATIVES[k]: _carried_derivative(program, k, writer) for k in program.carries})


def _signature(program, writer, name):
    arguments = _derivative_arguments(program) + ["noise"]
    if program.observations:
        arguments.append("observe")
    if writer.by_tensor:
        arguments.append("sizes")
    arguments.append("temperature=1.0")
    arguments += [f"{s.name}={default}" for s, default in ((num_data, 1), (step_number, 0)) if program.reads(s)]
    arguments += parameter_arguments(program, writer)
    line = f"def {name}(state, h, *, {', '.join(arguments)}):"
    return "\n".join(textwrap.wrap(line, 118, subsequent_indent=" " * (len(name) + 5), break_long_words=False))


def _derivative_arguments(program):
    """The arguments for functions of derivatives; a symbolic energy's functions are emitted beside the step."""
    is_emitted = program.energy and not program.energy.data
    functions = [DERIVATIVES[order] for order in sorted(program.derivatives, key=[1, 2, 0].index)]
    unused = [] if "gradient" in functions else ["gradient=None"]
    return [*unused, *(f"{function}={function}" if is_emitted else function for function in functions)]


def parameter_arguments(program: Program, writer: ExpressionWriter) -> list[str]:
    """The parameters of a recipe as arguments of a function."""
    arguments = []
    for s in program.recipe.parameters:
        name = writer.names[s.name]
        arguments.append(name if s.default is None else f"{name}={s.default!r}")
    return arguments


def _constants(program, writer):
    """Lines that compute the constants of h and the parameters, per-site values first in float64."""
    like = writer.like
    names = writer.names
    inside = symbols_read(program.statements)
    read = inside | symbols_read(program.constants)
    per_site = [s for s in program.recipe.parameters if s.per and s in read]
    lines = [
        f"{names[s.name]} = torch.as_tensor({names[s.name]}, dtype=torch.float64, device={like}.device)"
        for s in per_site
    ]
    for constant in program.constants:
        lines += _statement(constant, writer, program)
    cast = [names[s.name] for s in per_site if s in inside]
    cast += [writer.name(n) for c in program.constants for n in c.defines if n.is_vector]
    return lines + [f"{name} = {name}.to({like}.dtype)" for name in cast]


def constants_source(program: Program, wanted: Sequence[Symbol], *, over_steps: bool = False) -> str:
    """The text of `constants(h, like, ...)`: the constants of a kernel, numbers or tensors per site, in float64.

    `over_steps`: h, temperature and the step's number are tensors of many steps, with axes of length 1 for the sites.
    Parameters have their `marked_names`.
    """
    writer = WriterOverSteps(program) if over_steps else ExpressionWriter(program)
    writer.names = marked_names(program)
    writer.like = "like"
    arguments = ["temperature=1.0", "num_data=1", "step_number=0", *parameter_arguments(program, writer)]
    lines = ["n = like[0].numel()", *_constants(program, writer)]
    texts = {s: writer.name(s) if isinstance(s, Local) else writer.names.get(s.name, s.name) for s in wanted}
    # symbols beside those of the recipe
    arguments += [s.name for s in wanted if not isinstance(s, Local) and s.name not in writer.names]
    lines.append(f"return [{', '.join(texts.values())}]")
    function = "\n".join([f"def constants(h, like, *, {', '.join(arguments)}):", *(f"    {line}" for line in lines)])
    return _module(f"{program.recipe.name}: the constants of a step.", writer, [function])


KINDS_OF_NOISE = {
    "normal": "standard normal",
    "uniform": "uniform",
    "poisson": "Poisson, a function of the rate",
    "gamma": "Gamma, a function of the shape",
}


def _shapes(program):
    lines = [f"{b}: {_shape(b, program.scope)}" for b in program.recipe.entries]
    if program.draws:
        lines.append(f"noise: {', '.join(_noise(program))}")
    at = _point(program.recipe.targets)
    lines += _gradients(program, at)
    if program.observations:
        lines.append(f"observe: {', '.join(program.observations)}, functions of {at}")
    if program.needs_curvature:
        lines.append(f"curvature({at}) -> the Hessian diagonal of U, {_form(program, at)}")
    if program.needs_value:
        lines += _values(program, at)
    return [*lines, "h: the step size, in units of time; U is on the sum scale"]


def _gradients(program, at):
    sources = _sources(program, 1)
    if "given" in sources:
        return [f"gradient: grad U at the state, {_form(program, at)}"]
    if program.recipe.has_several_potentials:
        return [f"gradient{_call(program, U)} -> grad {U.symbol}, in its shape" for U in program.recipe.potentials]
    return [f"gradient({at}) -> grad U, {_form(program, at)}"] if sources else []


def _values(program, at):
    if program.recipe.has_several_potentials:
        return [f"value{_call(program, U)} -> {U.symbol}, (chains,)" for U in program.recipe.potentials]
    return ["value: U at the state, (chains,)" if "given" in _sources(program, 0) else f"value({at}) -> U, (chains,)"]


def _sources(program, order):
    return {s.source for s in program.statements if isinstance(s, Gradient) and s.order == order}


def _form(program, at):
    return f"of the shape of {at}" if len(program.recipe.targets) == 1 else "a dict of the same blocks"


def _call(program, U):
    return f"{key_of(program, U)}({_point(U.blocks)})"


def _point(blocks):
    """The description of the argument of a function of the blocks."""
    return blocks[0].name if len(blocks) == 1 else "dict of " + ", ".join(b.name for b in blocks)


def _shape(s, scope):
    if scope == "tensor":
        return "(chains, sites)" if s.is_vector else "(chains, tensors)"
    return "(chains, *shape)" if s.is_vector else "(chains,)"


def _noise(program):
    """Descriptions of the random numbers of a step with their shapes, by kind."""
    for kind, in_words in KINDS_OF_NOISE.items():
        draws = [f"{d.name} {_shape(d, program.scope)}" for d in program.draws if d.kind == kind]
        if draws:
            yield f"{', '.join(draws)}, {in_words}"


def _statement(statement, writer, program):
    match statement:
        case Let(name, value) if name.is_operator:
            return [f"{writer.name(name)} = {writer.operator(value)}"]
        case Let(name, value):
            return [f"{writer.name(name)} = {_in_dtype(name, value, writer.text(value, _level(name)), writer)}"]
        case Set(Local() as derivative, value):
            return [f"{writer.name(derivative)} = {writer.text(value, _level(derivative))}"]
        case Set(block, value) | Adapt(block, value):
            return [f"{writer.names[block.name]} = {_whole(value, block, writer)}"]
        case Sum(name, integrand):
            inside = writer.text(integrand, "site")
            if not fills(integrand):
                inside = f"torch.broadcast_to({inside}, {writer.like}.shape)"
            return [f"{writer.name(name)} = {writer.call('total', inside)}"]
        case Observe(name, observed):
            return [f'{writer.name(name)} = observe["{observed.name}"]({writer.names[program.recipe.targets[0].name]})']
        case Draw(name, parameter) if parameter is not None:
            return [f'{writer.text(name)} = noise["{name.name}"]({writer.text(parameter, _level(name))})']
        case Solve(names, entries):
            size, *arguments = entries[0].system
            texts = [str(size), *(writer.text(a, _level(names[0])) for a in arguments)]
            return [f"{', '.join(map(writer.name, names))} = {writer.call(entries[0].text, *texts)}"]
        case Gradient():
            return _derivative(statement, writer, program)
    return []


def _in_dtype(s, value, text, writer):
    """The text of a value, in the dtype of the state where it is of numbers that may have another."""
    wide = writer.program.in_float64
    if s in wide or not value.free_symbols & wide:
        return text
    like = writer.like or writer.names[writer.program.recipe.targets[0].name]
    return f"({text}).to({like}.dtype)"


def _level(s):
    return "site" if s.is_vector else None


def _carried_derivative(program, order, writer):
    names = program.carried_of(order)
    if program.is_whole(names):
        return writer.name(names[0][1])
    return dict_text({program.places[g]: writer.name(g) for _, g in names})


def _derivative(statement, writer, program):
    function = carried = DERIVATIVES[statement.order]
    targets = statement.blocks or program.recipe.targets
    at = writer.names[targets[0].name]
    if len(targets) > 1:
        at = dict_text({b.name: writer.names[b.name] for b in targets})
    if statement.potential is None:
        notation = {0: "U", 1: "g", 2: "c"}[statement.order]
        name = writer.name(Local(notation, statement.order > 0 and targets[0].is_vector))
        state = f'state["{carried}"]'
    else:
        function += key_of(program, statement.potential)
        (_, g), *rest = statement.names
        name = writer.name(Local(f"slopes_{statement.potential.key}") if rest else g)
        places = {b.name: f'state["{carried}"]["{program.places[x]}"]' for b, x in statement.names}
        state = dict_text(places) if rest else next(iter(places.values()))
    value = {
        "evaluated": f"{function}({at})",
        "given": function,
        "carried": f'{state} if "{carried}" in state else {function}({at})',
    }[statement.source]
    lines = [f"{name} = {value}"]
    if len(statement.names) > 1:
        lines += [f'{writer.name(g)} = {name}["{b.name}"]' for b, g in statement.names]
    return lines


def key_of(program: Program, U: Potential) -> str:
    """The text of the index of a potential's function in a dict by name; empty for a single function."""
    return f'["{U.key}"]' if program.recipe.is_by_name else ""


def _whole(value, block, writer):
    """The text of a block's new value, expanded to the block's shape if the formula has another."""
    level = writer.level(value)
    name = writer.names[block.name]
    if level == "number":
        return f"torch.full_like({name}, {writer.text(value)})"
    text = _in_dtype(block, value, writer.text(value, _level(block)), writer)
    natural = moves(value) and (level == "site") == block.is_vector
    return text if natural else f"torch.broadcast_to({text}, {name}.shape)"
