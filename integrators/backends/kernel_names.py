"""Names in kernels: one for every symbol of a Program, distinct from names of the languages and of the fixed text.

A name ends in an underscore. No keyword, macro or function of a header, or name of the fixed text does, so that the
user's name of a block never collides with one. Further names of a symbol append an ending: `theta_from`, `theta_s0`;
endings have no underscore, so that names of different symbols differ.
"""

from collections.abc import Callable

from sympy import Symbol

from ..passes import is_by_site
from ..variates import Variate

# Endings of names; the fixed text has no names with these endings.
ENDING = r"(s\d+|r\d+|from|to|per|noise|place|sum)"


class Names:
    """Names in a kernel for the symbols of a Program.

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
        """The name of a scalar, or the stem of the names of a vector's sites."""
        if s not in self._stems:
            stem = f"n_{s.name}_" if isinstance(s, Variate) else f"{s.name}_"
            while stem in self._stems.values():
                stem += "_"
            self._stems[s] = stem
        return self._stems[s]

    def at(self, site: int) -> Callable[[Symbol], str]:
        """The function from symbols to their names at a site, for unrolled sites; l is the lane of the chain."""

        def name(s: Symbol) -> str:
            if isinstance(s, Variate):
                return f"{self.stem(s)}[{site if s.is_vector else 0}][l]"
            return f"{self.stem(s)}s{site}" if is_by_site(s) else self.stem(s)

        return name
