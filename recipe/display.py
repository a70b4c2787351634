"""A recipe as mathematics: plain text and typeset equations for terminals, LaTeX for papers."""

from collections.abc import Iterator

from sympy import Expr, ImmutableMatrix, S, sqrt
from sympy.printing.latex import LatexPrinter
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.pretty.pretty import PrettyPrinter
from sympy.printing.pretty.pretty_symbology import pretty_symbol, pretty_use_unicode
from sympy.printing.pretty.stringpict import prettyForm

from .algebra import entries
from .declared import Block, Parameter, step_size
from .dynamics import Dynamics
from .involutions import Involution
from .swaps import Swap
from .symbols import Total

WIDE = 120  # columns


def equations(recipe: Dynamics) -> list[tuple[str, str]]:
    """The rows of the SDE as texts (left side, right side)."""
    texts = []
    for block, drift, square, sources in _rows(recipe):
        terms = [] if drift == 0 else [f"({drift}) dt" if drift.is_Add else f"{drift} dt"]
        terms += [f"{f'sqrt({square})' if square else f'sqrt(2D)[{block}, {b}]'} dW_{b}" for b in sources]
        texts.append((f"d{block}", " + ".join(terms) or "0"))
    return texts


def _rows(recipe: Dynamics) -> Iterator[tuple[Block, Expr, Expr | None, list[Block]]]:
    """Block, drift, square of the amplitude of a noise of its own alone, and sources of noise, of each row."""
    for i, block in enumerate(recipe.state):
        sources = [b for j, b in enumerate(recipe.state) if recipe.D[i, j] != 0]
        yield block, recipe.drift[i], 2 * recipe.D[i, i] if sources == [block] else None, sources


def _upper(matrix: ImmutableMatrix, state: tuple[Block, ...]) -> Iterator[tuple[Block, Block, Expr]]:
    """The non-zero entries of a matrix over blocks on and above its diagonal: row, column, entry."""
    return ((state[i], state[j], e) for (i, j), e in entries(matrix).items() if i <= j)


def as_text(recipe: Dynamics) -> str:
    """Blocks, H, D, Q, Gamma, the SDE, adaptations, jumps, words, parameters and their conversions as text."""
    title = f"{recipe.name}   {recipe.source}" if recipe.source else recipe.name
    rows = [*recipe.doc.strip().splitlines(), *_blocks(recipe), *_formulas(recipe), *_motions(recipe)]
    if recipe.metropolis:
        clause = f"; a word may leave out {', '.join(recipe.accepted)}" if recipe.accepted else ""
        rows.append(f"accept  or reject each step by its work, as samplers.sample does unless metropolis=False{clause}")
    rows += [*map(_parameter, recipe.parameters), *_conversions(recipe), f"claim   {recipe.claim}"]
    return "\n".join([title, *(f"  {row}" for row in rows)])


def _blocks(recipe: Dynamics) -> Iterator[str]:
    kinds = ["vector" if b.is_vector else "scalar" for b in recipe.state]
    kinds = [kind if b.domain.is_real else f"{kind}, {b.domain}" for b, kind in zip(recipe.state, kinds)]
    yield "state   " + ", ".join(f"{b} ({kind})" for b, kind in zip(recipe.state, kinds))
    yield "target  " + ", ".join(b.name for b in recipe.targets)
    for z, change in recipe.maps.items():
        energy = f", and U({z}) is U({change.theta})" if recipe.potentials else ""
        yield f"map     {change}; energies, starts and draws are of {change.theta}{energy}"


def _formulas(recipe: Dynamics) -> Iterator[str]:
    """Lines of H, the matrices, Gamma and the rows of the SDE."""
    yield f"H       {recipe.H}"
    if recipe.weights is not None:
        yield f"weights {recipe.weights}"
    for label, matrix in (("D", recipe.D), ("Q", recipe.Q), ("supplied", recipe.supplied)):
        for a, b, e in _upper(matrix, recipe.state):
            yield f"{f'{label}[{a}, {b}]':15} {e}"
    for label, column in (("Gamma", recipe.gamma), ("transport", recipe.transport)):
        for b, e in zip(recipe.state, column):
            if e != 0:
                yield f"{f'{label}[{b}]':15} {e}"
    for left, right in equations(recipe):
        yield f"{left:7} = {right}"


def _motions(recipe: Dynamics) -> Iterator[str]:
    """Lines of adaptations, jumps, letters and words."""
    order = recipe.order.replace("_", " ")
    for a in recipe.adapted:
        yield f"{a.name:7} <- {recipe.adapt.get(a, a)}   ({order}; at first {a.start})"
    for letter, jump in recipe.jumps.items():
        ratio = f"   (with the probability min(1, {jump.ratio(recipe.H)}))" if isinstance(jump, Swap) else ""
        yield f"jump {letter}  {jump}{ratio}"
    for letter, piece in recipe.pieces.items():
        yield f"letter {letter} = {piece}"
    for name, word in {"recommended": recipe.scheme, **recipe.schemes}.items():
        if word:
            yield f"word    {word}   ({name})"


def _parameter(s: Parameter) -> str:
    per = f" per {s.per}" if s.per else ""
    default = "" if s.default is None else f", default {s.default:g}"
    return f"{s.name:7} {s.range_in_words}{per}{default}" + (f": {s.doc}" if s.doc else "")


def _conversions(recipe: Dynamics) -> Iterator[str]:
    """Lines of conversions from a paper's parameters, and of required relations between parameters."""
    for key, values in recipe.conversions.items():
        names = {s: "step_size" if s == step_size else s for s in values}
        yield f"from {key}:  " + ", ".join(f"{names[s]} = {e}" for s, e in values.items())
    if recipe.requires:
        yield f"needs   {', '.join(map(str, recipe.requires))}"


class _Latex(LatexPrinter):
    """LaTeX in which a power of a sum over sites is told from the sum of a power."""

    def parenthesize(self, item, level, **rules):
        text = super().parenthesize(item, level, **rules)
        is_sum = isinstance(item, Total) and item.integrand is not S.One
        return self._add_parens(text) if is_sum and level > PRECEDENCE["Mul"] else text


def latex(expression: Expr) -> str:
    r"""LaTeX of an expression of a recipe.

    >>> from recipe import total, vector
    >>> p = vector("p")
    >>> print(latex(total(p)**2), latex(total(p**2)))
    \left(\textstyle\sum p\right)^{2} \textstyle\sum p^{2}
    """
    return _Latex().doprint(expression)


def as_latex(recipe: Dynamics) -> str:
    """H, D, Q, Gamma, the SDE, swaps and involutions as a LaTeX aligned environment."""
    rows = [rf"H &= {latex(recipe.H)}"]
    for label, matrix in (("D", recipe.D), ("Q", recipe.Q)):
        for a, b, entry in _upper(matrix, recipe.state):
            rows.append(rf"{label}_{{{latex(a)} {latex(b)}}} &= {latex(entry)}")
    rows += [rf"\Gamma_{{{latex(b)}}} &= {latex(g)}" for b, g in zip(recipe.state, recipe.gamma) if g != 0]
    for b, drift, square, sources in _rows(recipe):
        spreads = [latex(sqrt(square)) if square else rf"(\sqrt{{2D}})_{{{latex(b)} {latex(c)}}}" for c in sources]
        noise = [rf" + {spread}\,dW_{{{latex(c)}}}" for spread, c in zip(spreads, sources)]
        rows.append(rf"d{latex(b)} &= \left({latex(drift)}\right) dt{''.join(noise)}")
    rows += [_latex_swap(recipe, jump) for jump in recipe.swaps]
    rows += [_latex_involution(jump) for jump in recipe.involutions]
    return "\\begin{aligned}\n" + " \\\\\n".join(rows) + "\n\\end{aligned}"


def _latex_swap(recipe: Dynamics, swap: Swap) -> str:
    left, right = (", ".join(map(latex, blocks)) for blocks in (swap.places, swap.places.values()))
    tried = "" if swap.rate is None else rf" \text{{ at the rate }} {latex(swap.rate)}"
    probability = rf"\min\left(1, {latex(swap.ratio(recipe.H))}\right)"
    return rf"\left({left}\right) &\leftarrow \left({right}\right) \text{{ with probability }} {probability}{tried}"


def _latex_involution(jump: Involution) -> str:
    left, right = (", ".join(map(latex, side)) for side in zip(*jump.images))
    return rf"\left({left}\right) &\leftarrow \left({right}\right) \text{{ at the rate }} {latex(jump.rate)}"


class _Typesetter(PrettyPrinter):
    """The printer of formulas of several lines: sums over sites, and the energy, by their usual signs."""

    def factor(self, e):
        """A formula, a sum in brackets."""
        form = self._print(e)
        return prettyForm(*form.parens()) if e.is_Add else form

    def _print_Total(self, e):
        if e.integrand is S.One:
            return prettyForm("n")
        return prettyForm(*self.factor(e.integrand).left("Σ "), binding=prettyForm.MUL)

    def _print_Potential(self, e):
        return prettyForm(f"{e.symbol}({', '.join(pretty_symbol(b.name) for b in e.blocks)})")

    def _print_Partial(self, e):
        return prettyForm(str(e).replace(f"grad({e.U.symbol})", f"∇{e.U.symbol}"))

    def _print_Divergence(self, e):  # of an operator; sympy has one of vectors
        return prettyForm(str(e))


def typeset(recipe: Dynamics) -> str:
    """H and the rows of the SDE as equations of several lines; on one line what would be wider than 120 columns.

    >>> from recipe import Recipe, potential, vector
    >>> theta = vector("theta")
    >>> print(typeset(Recipe(name="langevin", state=theta, H=potential(theta), D={theta: 1})))
    H  = U(θ)
    dθ = -∇U dt + √2 dW_θ
    """
    before = pretty_use_unicode(True)  # sympy asks whether stdout is a terminal that has it
    try:
        return _typeset(recipe, _Typesetter({"wrap_line": False}))
    finally:
        pretty_use_unicode(before)


def _typeset(recipe: Dynamics, printer: _Typesetter) -> str:
    rows = {"H": printer._print(recipe.H)}
    rows |= {f"d{pretty_symbol(b.name)}": _typeset_row(printer, b, *rest) for b, *rest in _rows(recipe)}
    texts = [str(recipe.H), *(right for _, right in equations(recipe))]
    width = max(map(len, rows))
    forms = [
        prettyForm(*(right if right.width() < WIDE else prettyForm(text)).left(f"{left:{width}} = "))
        for (left, right), text in zip(rows.items(), texts)
    ]
    lines: list[str] = []
    for before, form in zip([prettyForm(""), *forms], forms):
        lines += [""] * (min(before.height(), form.height()) > 1)
        lines += [line.rstrip() for line in str(form).splitlines()]
    return "\n".join(lines)


def _typeset_row(
    printer: _Typesetter, block: Block, drift: Expr, square: Expr | None, sources: list[Block]
) -> prettyForm:
    """The right side of the equation of a block."""
    terms = [] if drift == 0 else [prettyForm(*printer.factor(drift).right(" dt"))]
    row, *names = (pretty_symbol(b.name) for b in (block, *sources))
    for name in names:
        spread = printer._print(sqrt(square)) if square else prettyForm(f"√(2D)[{row}, {name}]")
        terms.append(prettyForm(*spread.right(f" dW_{name}")))
    form = terms[0] if terms else prettyForm("0")
    for term in terms[1:]:
        form = prettyForm(*form.right(" + ", term))
    return form
