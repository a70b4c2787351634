"""Extraction of subexpressions: a total, a draw or an observation becomes a name inside a formula.

Stages of a step, derivatives of an energy and sums over its data all extract sums here, each with its own names and
statements.
"""

from collections.abc import Callable

from sympy import Expr, Symbol

from recipe.symbols import total


class Extraction:
    """A function of expressions that replaces subexpressions of given kinds by names, innermost first.

    `name(e, extract)` returns the symbol for the subexpression e, and calls `extract` on the arguments of e; each
    different subexpression is named once. `known`: the symbols by subexpression. The number of sites, total(1), is not
    replaced.

    >>> from recipe import total, vector
    >>> from recipe.symbols import Total
    >>> from sympy import sin
    >>> p, sums = vector("p"), []
    >>> def name(e, extract):
    ...     sums.append(extract(e.integrand))
    ...     return Symbol(f"sum{len(extract.known) + 1}")
    >>> extract = Extraction(name, Total)
    >>> extract(total(p**2) + total(sin(p*total(p**2))) + total(1))
    sum1 + sum2 + n
    >>> sums
    [p**2, sin(p*sum1)]
    """

    def __init__(self, name: Callable[[Expr, "Extraction"], Symbol], *kinds: type[Expr]):
        self.name = name
        self.kinds = kinds
        self.known: dict[Expr, Symbol] = {}

    def __call__(self, e: Expr) -> Expr:
        """The expression in terms of names."""
        if isinstance(e, self.kinds) and e != total(1):
            if e not in self.known:
                self.known[e] = self.name(e, self)
            return self.known[e]
        if not e.args or not e.has(*self.kinds):
            return e
        return e.func(*map(self, e.args))
