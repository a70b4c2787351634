"""Printer of a symbolic energy and its derivatives as torch functions of the target, for all chains at once."""

from collections.abc import Sequence

from sympy import Expr, Symbol, cse, numbered_symbols

from recipe import Energy
from recipe.symbols import Block, Total, is_site

from ..extraction import Extraction
from ..program import Local, Program
from .torch_data import data_derivative_source
from .torch_expressions import TAKEN, Writer, free_name


def energy_sources(program: Program, writer: Writer) -> list[str]:
    """The texts of a symbolic energy's gradient, and its Hessian diagonal and value if read, as functions of theta."""
    energy = program.energy
    if energy is None:
        return []
    source = data_derivative_source if energy.data else _derivative_source
    parts = [source(program, energy, writer, "gradient", energy.gradient, "grad U")]
    if program.needs_curvature:
        parts.append(source(program, energy, writer, "curvature", energy.curvature, "The Hessian diagonal"))
    if program.needs_value:
        parts.append(value_source(program, writer))
    return parts


def value_source(program: Program, writer: Writer) -> str:
    """The text of `value`: a symbolic energy of all chains, or of one chain if the energy reads data."""
    energy = program.energy
    assert energy is not None
    source = data_derivative_source if energy.data else _derivative_source
    return source(program, energy, writer, "value", (energy.value,), "The value")


def _derivative_source(program, energy, writer_of_step, function, derivatives, what):
    names = _names(energy)
    writer = Writer(program)
    writer.names = {c.name: name for c, name in names.items() if isinstance(c, Block)}
    writer.like = "theta"
    energy_in_words = energy.U if energy.is_sitewise else energy.U.xreplace({c: Symbol(n) for c, n in names.items()})
    locals_ = {c: Local(name) for c, name in names.items() if not isinstance(c, Block)}
    lines = [f'"""{what} of U = {energy_in_words}."""', _unpacked(program, energy, list(names.values()))]
    derivatives = _without_totals([d.xreplace(locals_) for d in derivatives], writer, lines)
    derivatives = _without_repetitions(derivatives, names.values(), writer, lines)
    first = next(iter(names.values()))
    if function == "value":
        lines.append(f"return {_of_chains(derivatives[0], first, writer)}")
    else:
        level = "site" if energy.is_sitewise else None
        values = [_tensor(d, level, first, writer) for d in derivatives]
        lines.append(f"return {_result(program, energy, values)}")
    writer_of_step.used |= writer.used
    return "\n".join([f"def {function}(theta):", *(f"    {line}" for line in lines)])


def _names(energy: Energy) -> dict[Symbol, str]:
    """The name of each coordinate in the text: its own if all are valid in Python."""
    plain = all(c.name.isidentifier() and c.name.isascii() for c in energy.coordinates)
    names: dict[Symbol, str] = {}
    for i, c in enumerate(energy.coordinates):
        names[c] = free_name(c.name if plain else f"x{i}", TAKEN, ["theta"], names.values())
    return names


def _unpacked(program, energy, names):
    """The line that unpacks the target into coordinates."""
    targets = program.recipe.targets
    if len(targets) > 1:
        values = ", ".join(f'theta["{b.name}"]' for b in targets)
        return f"{', '.join(names)} = {values}"
    if energy.is_sitewise or not program.recipe.target_is_vector:
        return f"{names[0]} = theta"
    return f"{', '.join(names)}{',' if len(names) == 1 else ''} = theta.unbind(-1)"


def _without_totals(derivatives: Sequence[Expr], writer: Writer, lines: list[str]) -> list[Expr]:
    """The derivatives in terms of totals; appends lines that compute these to `lines`."""

    def name(total: Expr, extract: Extraction) -> Symbol:
        inside = extract(total.integrand)
        own = Local(f"sum{len(extract.known) + 1}")
        writer.used.add("total")
        lines.append(f"{writer.name(own)} = total({writer.text(inside)})")
        return own

    derivatives = list(map(Extraction(name, Total), derivatives))
    if any(d.has(Total) for d in derivatives):
        lines.append("n = theta[0].numel()")
    return derivatives


def _without_repetitions(derivatives, names, writer, lines):
    """The derivatives in terms of shared subexpressions; appends lines that compute these to `lines`."""
    fresh = numbered_symbols("u", cls=Symbol, exclude={Symbol(name) for name in names})
    shared, derivatives = cse(derivatives, symbols=fresh, order="none")
    known: dict[Symbol, Local] = {}
    for s, value in shared:
        value = value.xreplace(known)
        known[s] = Local(s.name, is_site(value), constant=writer.level(value) == "number")
        lines.append(f"{s.name} = {writer.text(value)}")
    return [d.xreplace(known) for d in derivatives]


def _tensor(e, level, like, writer):
    """The text of a value, as a tensor even if it is a number."""
    text = writer.text(e, level)
    return f"torch.full_like({like}, {text})" if writer.level(e) == "number" else text


def _of_chains(e, like, writer):
    """The text of a value with one number per chain."""
    if writer.level(e) != "number":
        return writer.text(e)
    return f"torch.full({like}.shape[:1], {writer.text(e)}, dtype={like}.dtype, device={like}.device)"


def _result(program, energy, values):
    """The text of the result in the target's form: a tensor, or a dict by block."""
    targets = program.recipe.targets
    if not energy.is_sitewise and program.recipe.target_is_vector:
        return f"torch.stack([{', '.join(values)}], -1)"
    if len(targets) == 1:
        return values[0]
    return "{" + ", ".join(f'"{b.name}": {value}' for b, value in zip(targets, values)) + "}"
