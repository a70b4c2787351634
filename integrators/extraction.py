"""Subexpressions that are computed on their own: a total, a draw, an observation becomes a name inside a formula.

This is the one place where sums leave a formula: the stages of a step, the derivatives of an energy and the sums over
its data differ only in the name that they give, and in the statement that they write for it.
"""

from collections.abc import Callable

from sympy import Expr, Symbol

from recipe.symbols import total


class Extraction:
    """A function of expressions that replaces subexpressions of some kinds by names, innermost first.

    `name(e, extract)` gives the symbol that stands for the subexpression e; it is asked once for each different one,
    and calls `extract` on what is inside e. `known` has those that are named. The number of sites, total(1), stays as
    it is.

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
