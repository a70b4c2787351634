"""Names in kernels: one for every symbol of a Program, apart from those of the languages and of the fixed text.

A name ends in an underscore. No keyword, no macro or function of a header, and no name of the fixed text does, so that
what a user calls a block is never one of them. Names of places that belong to a symbol have an ending behind it:
`theta_from`, `theta_s0`; as these have no underscore of their own, no two symbols meet in one.
"""

from collections.abc import Callable

from sympy import Symbol

from ..passes import is_by_site
from ..variates import Variate

# What may follow a name; the fixed text has no such names.
ENDING = r"(s\d+|r\d+|from|to|per|noise|place|sum)"


class Names:
    """A name in a kernel for every symbol of a Program.

    >>> from recipe import scalar, vector
    >>> from integrators.program import Local
    >>> names = Names()
    >>> names.stem(vector("theta")), names.stem(scalar("double")), names.stem(scalar("M_PI"))
    ('theta_', 'double_', 'M_PI_')
    >>> names.stem(scalar("g")), names.stem(Local("g"))
    ('g_', 'g__')
    """

    def __init__(self) -> None:
        self._stems: dict[Symbol, str] = {}

    def stem(self, s: Symbol) -> str:
        """The name of a scalar, or what the names of a vector's sites begin with."""
        if s not in self._stems:
            stem = f"n_{s.name}_" if isinstance(s, Variate) else f"{s.name}_"
            while stem in self._stems.values():
                stem += "_"
            self._stems[s] = stem
        return self._stems[s]

    def at(self, site: int) -> Callable[[Symbol], str]:
        """The names at a site where each site has its own, as a function of the symbol; l is the lane of the chain."""

        def name(s: Symbol) -> str:
            if isinstance(s, Variate):
                return f"{self.stem(s)}[{site if s.is_vector else 0}][l]"
            return f"{self.stem(s)}s{site}" if is_by_site(s) else self.stem(s)

        return name
