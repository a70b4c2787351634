"""Printing a Program as torch source that a person would have written by hand.

A vector block is `(chains, *shape)`, a scalar block `(chains,)`; parameters are Python floats, or tensors of the
target's shape where they are declared `per` site. Nothing here imports torch: the text does.
"""

import textwrap

from sympy import Symbol, cse, numbered_symbols

from recipe import symbols
from recipe.symbols import Block, is_site, num_data, step_number

from ..extraction import Extraction
from ..flow import Variate
from ..program import Adapt, Draw, Gradient, Let, Local, Observe, Program, Set, Solve, Sum
from .torch_data import data_derivative_source
from .torch_expressions import PRELUDE, TAKEN, Writer
from .torch_optimizer import optimizer_source


def module_source(program: Program, *, title: str) -> str:
    """The whole text of a step: what it needs, the derivatives of a symbolic energy, and the step."""
    writer = Writer(program)
    parts = [*energy_sources(program, writer), step_source(program, writer)]
    return _module(title, writer, parts)


def standalone_source(program: Program, rotated: Program | None, start: Program | None, flows) -> str:
    """One file with the derivation as its docstring, the step, and an Optimizer class where the word allows one.

    `rotated` is the optimizer form, `start` gives the adapted quantities their first values.
    """
    recipe, writer = program.recipe, Writer(program)
    title = "\n".join([str(recipe), "", f"One step of {program.scheme}:", *(f"  {flow}" for flow in flows), ""])
    parts = [*energy_sources(program, writer), step_source(program, writer)]
    if rotated and len(recipe.targets) == 1 and recipe.target.domain == "real":
        writers = [Writer(rotated), Writer(start)]
        parts += [step_source(rotated, writers[0], "advance")]
        parts += [step_source(start, writers[1], "begin")] * bool(recipe.adapted)
        parts += [optimizer_source(rotated, start, writers[0])]
        writer.used |= writers[0].used | writers[1].used
    return _module(title, writer, parts)


def _module(title, writer, parts):
    used = [PRELUDE[name] for name in PRELUDE if name in writer.used]
    docstring = '"""' + title.replace("\\", "/").replace('"', "'") + '"""'
    imports = f"{docstring}\n\nimport math\n\nimport torch"
    return "\n\n\n".join([imports, *(part.strip("\n") for part in [*used, *parts])]) + "\n"


def step_source(program: Program, writer: Writer, name: str = "step") -> str:
    """The function `step(state, h, *, gradient, noise, ...)` of a Program."""
    recipe, names = program.recipe, writer.names
    body = [f'"""One step of {recipe.name} by the word {program.scheme}.', "", *_shapes(program), '"""']
    body.append(
        ", ".join(names[b.name] for b in recipe.entries)
        + " = "
        + ", ".join(f'state["{b.name}"]' for b in recipe.entries)
    )
    if any(e.has(symbols.total(1)) for e in _expressions(program)):
        body.append(
            f"n = torch.tensor(sizes, dtype={writer.like}.dtype, device={writer.like}.device)"
            if writer.by_tensor
            else f"n = {writer.like}[0].numel()"
        )
    body += _constants(program, writer)
    for stage in program.stages:
        body += [f"# {stage.title}"] if stage.title != "gradient" else []
        body += [line for statement in stage.statements for line in _print(statement, writer, recipe)]
    result = ", ".join(f'"{b.name}": {names[b.name]}' for b in recipe.entries)
    carried = f', "gradient": {writer.name(Local("g"))}' if program.carries_gradient else ""
    body.append(f"return {{{result}{carried}}}")
    return "\n".join([_signature(program, writer, name), *(f"    {line}".rstrip() for line in body)])


def _signature(program, writer, name):
    inlined = lambda function: f"{function}={function}" if program.energy and not program.energy.data else function
    reads = any(isinstance(s, Gradient) for s in program.statements)
    arguments = [inlined("gradient") if reads else "gradient=None"]
    arguments += [inlined("curvature")] if program.needs_curvature else []
    arguments += (
        ["noise"] + ["observe"] * bool(program.observations) + ["sizes"] * writer.by_tensor + ["temperature=1.0"]
    )
    arguments += [f"{s.name}={default}" for s, default in ((num_data, 1), (step_number, 0)) if program.reads(s)]
    arguments += [
        writer.names[s.name] + ("" if s.default is None else f"={s.default!r}") for s in program.recipe.parameters
    ]
    return "\n".join(
        textwrap.wrap(
            f"def {name}(state, h, *, {', '.join(arguments)}):",
            118,
            subsequent_indent=" " * (len(name) + 5),
            break_long_words=False,
        )
    )


def _constants(program, writer):
    """Lines that compute what depends on h and the parameters alone, per-site values in float64 first."""
    like, inside = writer.like, set().union(*(e.free_symbols for s in program.statements for e in s.values))
    per_site = [
        s for s in program.recipe.parameters if s.per and any(s in e.free_symbols for e in _expressions(program))
    ]
    lines = [
        f"{writer.names[s.name]} = torch.as_tensor({writer.names[s.name]}, dtype=torch.float64, device={like}.device)"
        for s in per_site
    ]
    for constant in program.constants:
        lines += _print(constant, writer, program.recipe)
    cast = [writer.names[s.name] for s in per_site if s in inside]
    cast += [writer.name(n) for c in program.constants for n in c.defines if n.is_vector]
    return lines + [f"{name} = {name}.to({like}.dtype)" for name in cast]


def constants_source(program: Program, wanted) -> str:
    """The function `constants(h, like, ...)` of the symbols that a kernel asks for: numbers, or tensors per site, in float64."""
    writer, recipe = Writer(program), program.recipe
    writer.like = "like"
    arguments = ["temperature=1.0", "num_data=1", "step_number=0"]
    arguments += [writer.names[s.name] + ("" if s.default is None else f"={s.default!r}") for s in recipe.parameters]
    lines = ["n = like[0].numel()", *_constants(program, writer)]
    named = {s: writer.name(s) if isinstance(s, Local) else writer.names.get(s.name, s.name) for s in wanted}
    arguments += [
        s.name for s in wanted if not isinstance(s, Local) and s.name not in writer.names
    ]  # of the caller's own
    lines.append(f"return [{', '.join(named.values())}]")
    body = "\n".join(f"    {line}" for line in lines)
    return _module(
        f"{recipe.name}: the constants of a step.",
        writer,
        [f"def constants(h, like, *, {', '.join(arguments)}):\n{body}"],
    )


def _expressions(program):
    return [e for s in (*program.constants, *program.statements) for e in s.values]


def _shapes(program):
    """Lines that tell the shapes of a step's arguments."""
    recipe, shape = program.recipe, lambda b: "(chains, *shape)" if b.is_vector else "(chains,)"
    if program.scope == "tensor":
        shape = lambda b: "(chains, sites)" if b.is_vector else "(chains, tensors)"
    lines = [f"{b}: {shape(b)}" for b in recipe.entries]
    if program.draws:
        kinds = {
            "normal": "standard normal",
            "uniform": "uniform",
            "poisson": "Poisson, a function of the rate",
            "gamma": "Gamma, a function of the shape",
        }
        lines.append(
            "noise: "
            + ", ".join(
                ", ".join(f"{d.name} {shape(d)}" for d in program.draws if d.kind == kind) + f", {told}"
                for kind, told in kinds.items()
                if any(d.kind == kind for d in program.draws)
            )
        )
    reads = [s for s in program.statements if isinstance(s, Gradient)]
    one = len(recipe.targets) == 1
    at = recipe.targets[0].name if one else "dict of " + ", ".join(b.name for b in recipe.targets)
    kind = f"of the shape of {at}" if one else "a dict of the same blocks"
    if any(s.source == "given" for s in reads):
        lines.append(f"gradient: grad U at the state, {kind}")
    elif reads:
        lines.append(f"gradient({at}) -> grad U, {kind}")
    lines += [f"observe: {', '.join(program.observations)}, functions of {at}"] if program.observations else []
    if program.needs_curvature:
        lines.append(f"curvature({at}) -> the Hessian diagonal of U, {kind}")
    return [*lines, "h: the step size, in units of time; U is on the sum scale"]


def _print(statement, writer, recipe):
    text, several = writer.text, len(recipe.targets) > 1
    match statement:
        case Let(name, value):
            return [f"{writer.name(name)} = {text(value, 'site' if name.is_vector else None)}"]
        case Set(block, value) | Adapt(block, value):
            return [f"{writer.names[block.name]} = {_whole(value, block, writer)}"]
        case Sum(name, integrand):
            inside = text(integrand, "site")
            if not _moves(integrand):
                inside = f"torch.broadcast_to({inside}, {writer.like}.shape)"
            return [f"{writer.name(name)} = {writer.call('total', inside)}"]
        case Observe(name, observed):
            at = writer.names[recipe.targets[0].name]
            return [f'{writer.name(name)} = observe["{observed.name}"]({at})']
        case Draw(name, parameter) if parameter is not None:
            value = text(parameter, "site" if name.is_vector else None)
            return [f'{writer.text(name)} = noise["{name.name}"]({value})']
        case Solve(names, entries):
            writer.used.add(entries[0].text)
            size, *arguments = entries[0].system
            level = "site" if names[0].is_vector else None
            return [
                f"{', '.join(map(writer.name, names))} = {entries[0].text}({size}, "
                f"{', '.join(text(a, level) for a in arguments)})"
            ]
        case Gradient(names, source, order):
            function, name = ("gradient", "g") if order == 1 else ("curvature", "c")
            name = writer.name(Local(name))
            at = writer.names[recipe.targets[0].name]
            if several:
                at = "{" + ", ".join(f'"{b.name}": {writer.names[b.name]}' for b in recipe.targets) + "}"
            value = {
                "evaluated": f"{function}({at})",
                "given": f"{function}",
                "carried": f'state["{function}"] if "{function}" in state else {function}({at})',
            }[source]
            return [f"{name} = {value}"] + [f'{writer.name(g)} = {name}["{b.name}"]' for b, g in names if several]
        case Draw():
            return []


def _whole(value, block, writer):
    """The text of a block's new value, in the block's own shape where the formula alone would not have it."""
    level, name = writer.level(value), writer.names[block.name]
    if level == "number":
        return f"torch.full_like({name}, {writer.text(value)})"
    text = writer.text(value, "site" if block.is_vector else None)
    natural = _moves(value) and (level == "site") == block.is_vector
    return text if natural else f"torch.broadcast_to({text}, {name}.shape)"


def _moves(e):
    """Whether an expression has a value per chain, and not only per site."""
    return any(
        isinstance(s, (Block, Variate)) or isinstance(s, Local) and not s.is_constant_in_step for s in e.free_symbols
    )


def energy_sources(program: Program, writer: Writer) -> list[str]:
    """The gradient of a symbolic energy, and its Hessian diagonal where it is asked for, as functions of the target."""
    if not program.energy:
        return []
    source = data_derivative_source if program.energy.data else _derivative_source
    parts = [source(program, writer, "gradient", program.energy.gradient, "grad U")]
    if program.needs_curvature:
        parts.append(source(program, writer, "curvature", program.energy.curvature, "The Hessian diagonal"))
    return parts


def _derivative_source(program, writer, function, slopes, what):
    energy, targets = program.energy, program.recipe.targets
    local = Writer(program)
    plain = all(c.name.isidentifier() and c.name.isascii() for c in energy.coordinates)
    named = {c: (c.name if plain else f"x{i}") for i, c in enumerate(energy.coordinates)}
    named = {c: name + "_" * (name in TAKEN or name == "theta") for c, name in named.items()}
    local.names = {c.name: name for c, name in named.items() if isinstance(c, Block)}
    local.like = "theta"
    explicit, vector = not program.recipe.target_is_vector, not energy.is_sitewise and program.recipe.target_is_vector
    unpack = "theta"
    if len(targets) > 1:
        unpack = ", ".join(f'theta["{b.name}"]' for b in targets)
    elif vector:
        unpack = "theta.unbind(-1)"
    comma = "," if len(named) == 1 and vector else ""
    told = (
        str(energy.U) if energy.is_sitewise else str(energy.U.xreplace({c: Symbol(name) for c, name in named.items()}))
    )
    lines = [
        f"def {function}(theta):",
        f'    """{what} of U = {told}."""',
        f"    {', '.join(named.values())}{comma} = {unpack}",
    ]

    def name(total, extract):
        inside = extract(total.integrand)
        own = Local(f"sum{len(extract.known) + 1}")
        local.used.add("total")
        lines.append(f"    {own.name} = total({local.text(inside)})")
        return own

    values = {c: Local(name) for c, name in named.items() if not isinstance(c, Block)}
    extract = Extraction(name, symbols.Total)
    slopes = [extract(g.xreplace(values)) for g in slopes]
    if any(s.has(symbols.Total) for s in slopes):
        lines.append("    n = theta[0].numel()")
    taken = {Symbol(name) for name in named.values()}
    shared, slopes = cse(slopes, symbols=numbered_symbols("u", cls=Symbol, exclude=taken), order="none")
    known: dict = {}
    for s, value in shared:
        value = value.xreplace(known)
        known[s] = Local(s.name, is_site(value), constant=local.level(value) == "number")
        lines.append(f"    {s.name} = {local.text(value)}")
    first, texts = next(iter(named.values())), []
    for s in (s.xreplace(known) for s in slopes):
        number = local.level(s) == "number"
        text = local.text(s, "site" if energy.is_sitewise else None)
        texts.append(f"torch.full_like({first}, {text})" if number else text)
    if energy.is_sitewise or explicit and len(targets) == 1:
        result = texts[0]
    elif explicit:
        result = "{" + ", ".join(f'"{b.name}": {t}' for b, t in zip(targets, texts)) + "}"
    else:
        result = f"torch.stack([{', '.join(texts)}], -1)"
    writer.used |= local.used
    return "\n".join([*lines, f"    return {result}"])
