"""A recipe as mathematics: plain text for terminals, LaTeX for papers."""

from sympy import latex, sqrt


def equations(recipe) -> list[tuple[str, str]]:
    """The SDE row by row: (left side, right side) as text."""
    rows = []
    for i, block in enumerate(recipe.state):
        drift, noisy = recipe.drift[i], [j for j, e in enumerate(recipe.D[i, :]) if e != 0]
        parts = [f"{_bracket(drift)} dt"] if drift != 0 else []
        if noisy == [i]:
            parts.append(f"sqrt({2 * recipe.D[i, i]}) dW_{block}")
        else:
            parts += [f"sqrt(2D)[{block}, {recipe.state[j]}] dW_{recipe.state[j]}" for j in noisy]
        rows.append((f"d{block}", " + ".join(parts) or "0"))
    return rows


def _bracket(expression):
    return f"({expression})" if expression.is_Add else str(expression)


def entries(matrix, state) -> list[tuple[str, str]]:
    """The non-zero entries of a matrix over blocks, upper triangle, with readable labels."""
    return [
        (f"[{a}, {b}]", str(matrix[i, j]))
        for i, a in enumerate(state)
        for j, b in enumerate(state)
        if j >= i and matrix[i, j] != 0
    ]


def as_text(recipe) -> str:
    """Blocks, H, D, Q, Gamma, the SDE, adaptations, jumps, words, parameters and what a paper calls them, as text."""
    kind = lambda b: "vector" if b.is_vector else "scalar"
    domain = lambda b: "" if b.domain == "real" else f", {b.domain}"
    lines = [f"{recipe.name}" + (f"   {recipe.source}" if recipe.source else "")]
    lines += [f"  {line}" for line in recipe.doc.strip().splitlines()]
    lines += [
        "  state   " + ", ".join(f"{b} ({kind(b)}{domain(b)})" for b in recipe.state),
        "  target  " + ", ".join(b.name for b in recipe.targets),
        f"  H       {recipe.H}",
    ]
    for label, matrix in (("D", recipe.D), ("Q", recipe.Q), ("supplied", recipe.supplied)):
        lines += [f"  {label + where:15} {value}" for where, value in entries(matrix, recipe.state)]
    lines += [f"  {f'Gamma[{b}]':15} {g}" for b, g in zip(recipe.state, recipe.gamma) if g != 0]
    lines += [f"  {left:7} = {right}" for left, right in equations(recipe)]
    lines += [
        f"  {a.name:7} <- {recipe.adapt.get(a, a)}   ({recipe.order.replace('_', ' ')}; at first {a.start})"
        for a in recipe.adapted
    ]
    lines += [f"  jump {letter}  {jump}" for letter, jump in recipe.jumps.items()]
    lines += [f"  letter {letter} = {piece}" for letter, piece in recipe.pieces.items()]
    words = {"recommended": recipe.scheme, **recipe.schemes}
    lines += [f"  word    {word}   ({name})" for name, word in words.items() if word]
    lines += [
        f"  {s.name:7} {s.sign}{f' per {s.per}' if s.per else ''}"
        f"{'' if s.default is None else f', default {s.default:g}'}{f': {s.doc}' if s.doc else ''}"
        for s in recipe.parameters
    ]
    lines += [
        f"  from {key}:  " + ", ".join(f"{'step_size' if s.name == 'h' else s} = {e}" for s, e in values.items())
        for key, values in recipe.conversions.items()
    ]
    lines += [f"  needs   {', '.join(map(str, recipe.requires))}"] if recipe.requires else []
    return "\n".join([*lines, f"  claim   {recipe.claim}"])


def as_latex(recipe) -> str:
    """H, D, Q, Gamma and the SDE as a LaTeX align environment."""
    rows = [rf"H &= {latex(recipe.H)}"]
    for label, matrix in (("D", recipe.D), ("Q", recipe.Q)):
        rows += [
            rf"{label}_{{{latex(a)} {latex(b)}}} &= {latex(matrix[i, j])}"
            for i, a in enumerate(recipe.state)
            for j, b in enumerate(recipe.state)
            if j >= i and matrix[i, j] != 0
        ]
    rows += [rf"\Gamma_{{{latex(b)}}} &= {latex(g)}" for b, g in zip(recipe.state, recipe.gamma) if g != 0]
    for i, b in enumerate(recipe.state):
        noisy = [c for j, c in enumerate(recipe.state) if recipe.D[i, j] != 0]
        noise = "".join(rf" + (\sqrt{{2D}})_{{{latex(b)} {latex(c)}}}\,dW_{{{latex(c)}}}" for c in noisy)
        if noisy == [b]:
            noise = rf" + {latex(sqrt(2 * recipe.D[i, i]))}\,dW_{{{latex(b)}}}"
        rows.append(rf"d{latex(b)} &= \left({latex(recipe.drift[i])}\right) dt{noise}")
    return "\\begin{aligned}\n" + " \\\\\n".join(rows) + "\n\\end{aligned}"
