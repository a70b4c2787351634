"""Printing the derivatives of an energy that sums over data, as a function of one chain and one batch."""

import re

from sympy import Mul

from recipe import symbols
from recipe.data import Datum
from recipe.symbols import Block

from ..data_sums import OfRow, reads_rows, taken_apart
from ..program import Local, Program
from .torch_expressions import TAKEN, Writer

OURS = re.compile(r"(row_)?(total|sum)\d*")  # names of sums


def data_derivative_source(program: Program, writer_of_step: Writer, function: str, derivatives, what: str) -> str:
    """The text of `function(theta, data, num_data)`, for the target of one chain; to be vectorised over chains.

    `data` are the columns of a batch, `(rows,)` or `(rows, sites)`; the sums over its rows are scaled to num_data.
    """
    energy, recipe, writer = program.energy, program.recipe, Writer(program)
    writer.names = {c.name: "theta" for c in energy.coordinates if isinstance(c, Block)} | {"num_data": "num_data"}
    columns = {d: (Local if d.is_vector else OfRow)(f"column {i}", d.is_vector) for i, d in enumerate(energy.data)}
    places = {c: c if isinstance(c, Block) else Local(f"coordinate {i}") for i, c in enumerate(energy.coordinates)}
    taken = {*TAKEN, "theta", "data", "rows"}
    for s, local in (columns | {c: local for c, local in places.items() if not isinstance(c, Block)}).items():
        name = s.name if s.name.isidentifier() and s.name.isascii() else f"x{len(taken)}"
        while name in taken or OURS.fullmatch(name):
            name += "_"
        taken.add(name)
        writer.rename(local, name)
    given = [writer.name(c) for c in columns.values()]
    sums = taken_apart([e.xreplace(places) for e in derivatives])
    text = lambda e, level=None: writer.text(e.xreplace(columns), level)
    lines = [
        f"def {function}(theta, data, num_data):",
        f'    """{what} of U = {energy.U}: of one chain, on one batch."""',
        f"    {', '.join(given)}{',' * (len(given) == 1)} = data",
        f"    rows = len({given[0]})",
    ]
    if energy.is_sitewise:
        lines += ["    n = theta.numel()"] * any(e.has(symbols.total(1)) for e in derivatives)
    else:
        at = (
            ", ".join(f'theta["{b.name}"]' for b in recipe.targets) + ","
            if not recipe.target_is_vector
            else "theta.unbind()"
        )
        lines.append(f"    {', '.join(map(writer.name, places.values()))}, = {at}")
    writer.like = "theta"
    lines += [f"    {writer.name(t.name)} = ({text(t.integrand, 'site')}).sum()" for t in sums.chain]
    writer.like = "theta[None]"
    lines += [f"    {writer.name(t.name)} = {_row_total(t.integrand, text)}" for t in sums.row]
    lines += [f"    {writer.name(s.name)} = {_row_sum(s, text)}" for s in sums.rows]
    writer.like = "theta"
    like = "theta" if energy.is_sitewise else writer.name(next(iter(places.values())))
    results = [
        f"torch.full_like({like}, {text(e)})"
        if writer.level(e) == "number"
        else text(e, "site" if energy.is_sitewise else None)
        for e in sums.derivatives
    ]
    if energy.is_sitewise:
        result = f"({results[0]}).expand(theta.shape)"
    elif recipe.target_is_vector:
        result = f"torch.stack([{', '.join(results)}])"
    else:
        result = "{" + ", ".join(f'"{b.name}": {e}' for b, e in zip(recipe.targets, results)) + "}"
    writer_of_step.used |= writer.used
    return "\n".join([*lines, f"    return {result}"])


def _row_total(integrand, text):
    """The sum over the sites of every row."""
    column = next((f for f in Mul.make_args(integrand) if isinstance(f, Datum) and f.is_vector), None)
    if column is not None and not reads_rows(integrand / column):
        return (
            f"{text(column)} @ {_closed(text(integrand / column))}"
            if integrand != column
            else f"{text(column)}.sum(-1)"
        )
    return f"({text(integrand, 'site')}).sum(-1)"


def _closed(text):
    return text if text.isidentifier() else f"({text})"


def _row_sum(s, text):
    """The sum over rows of a weight times a factor."""
    by_row, factor = reads_rows(s.weight), s.factor
    weight = _closed(text(s.weight))
    if factor == 1:
        return f"{weight}.sum()" if by_row else f"rows*{weight}"
    if not reads_rows(factor):
        return f"{weight}.sum()*{_closed(text(factor))}" if by_row else f"rows*{weight}*{_closed(text(factor))}"
    inside = _closed(text(factor, "site"))
    return f"{weight} @ {inside}" if by_row else f"{weight}*{inside}.sum(0)"
