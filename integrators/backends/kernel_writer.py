"""What writers of kernels share: one name for every symbol of a Program, formulas in a dialect, refusals.

A name ends in an underscore. No keyword, macro or function of a header, or name of the fixed text does, so that the
user's name of a block never collides with one. Further names of a symbol append an ending: `theta_from`, `theta_s0`;
endings have no underscore, so that names of different symbols differ.
"""

from sympy import Expr, Symbol

from recipe import Energy

from ..passes import Unsupported
from ..program import Program
from ..variates import Variate
from .kernel_expressions import Dialect

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

    dialect: Dialect

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

    def name(self, s: Symbol) -> str:
        """The text of a symbol in a formula."""
        return self.stem(s)

    def write(self, e: Expr) -> str:
        """The text of a formula."""
        return self.dialect.text(e, self.name)


class Writer(Names):
    """Writer of a Program's kernels in a dialect; `draws`: the number of each random number."""

    def __init__(self, program: Program):
        super().__init__()
        self.program = program
        self.title = f"{program.recipe.name}: {program.scheme}"
        self.draws = {d: number for number, d in enumerate(program.draws)}

    def let(self, name: str, text: str) -> str:
        """A line that declares a name with a value."""
        return self.dialect.declaration.format(name, text)

    def put(self, name: str, text: str) -> str:
        """A line that assigns a value to a name."""
        return self.dialect.assignment.format(name, text)

    def refusal(self, what: str, do: str = "Use backend='torch'.") -> Unsupported:
        """The error for a Program without a form in the language."""
        return Unsupported(f"{self.program.recipe.name}, {self.dialect.backend}", what, do=do)

    def no_form(self, statement: object) -> Unsupported:
        """The error for a statement without a form in the language."""
        return self.refusal(f"there is no {self.dialect.name} form of {type(statement).__name__.lower()}")

    @property
    def energy(self) -> Energy:
        """The symbolic energy of the Program; raises Unsupported if the caller supplies the gradient."""
        if self.program.energy is None:
            raise self.refusal("the energy is not symbolic", "Pass a recipe.Energy.")
        return self.program.energy
