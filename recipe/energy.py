"""A symbolic energy of the target, to be compiled together with a recipe."""

from dataclasses import dataclass

from sympy import Expr, Symbol, diff

from .errors import RecipeError, did_you_mean
from .symbols import Block, formula, is_site


@dataclass(frozen=True)
class Energy:
    """U = -log density, on the sum scale, as an expression of the target's coordinates in their order.

    `coordinates` are plain sympy symbols, or one vector block whose sites U sums with `total`.

    >>> from sympy import symbols
    >>> x, y = symbols("x y", real=True)
    >>> Energy((x, y), U=(x**2 + x*y + y**2)/2).gradient
    (x + y/2, x/2 + y)
    """

    coordinates: tuple[Symbol, ...]
    U: Expr

    def __post_init__(self):
        given = self.coordinates
        coordinates = (given,) if isinstance(given, Symbol) else tuple(given) if isinstance(given, (tuple, list)) else ()
        object.__setattr__(self, "coordinates", coordinates)
        object.__setattr__(self, "U", formula(self.U, "Energy, U"))
        if not self.coordinates or not all(isinstance(c, Symbol) for c in self.coordinates):
            raise RecipeError("Energy", f"the coordinates are sympy symbols, got {given!r}",
                              do='Write x, y = sympy.symbols("x y", real=True) and Energy((x, y), U=...).')
        if len(set(self.coordinates)) < len(self.coordinates):
            raise RecipeError("Energy", f"a coordinate occurs twice in {self.coordinates}", do="Name each once.")
        if self.is_sitewise and len(self.coordinates) > 1:
            raise RecipeError("Energy", "a vector block cannot stand beside other coordinates",
                              do="Give one vector block, or one symbol per coordinate.")
        for s in self.U.free_symbols - set(self.coordinates):
            raise RecipeError("Energy", f"'{s}' in U is not a coordinate",
                              do=did_you_mean(s.name, [c.name for c in self.coordinates]))
        if is_site(self.U):
            raise RecipeError("Energy", f"U = {self.U} has one value per site, not one per chain",
                              do="Wrap it in total().")

    @property
    def is_sitewise(self) -> bool:
        """Whether the energy is written for one vector block of any length."""
        return any(isinstance(c, Block) and c.is_vector for c in self.coordinates)

    @property
    def gradient(self) -> tuple[Expr, ...]:
        """dU/dx for each coordinate, in their order."""
        return tuple(diff(self.U, c) for c in self.coordinates)

    @property
    def curvature(self) -> tuple[Expr, ...]:
        """d2U/dx2 for each coordinate: the Hessian diagonal."""
        return tuple(diff(self.U, c, 2) for c in self.coordinates)

    def on(self, blocks: tuple[Block, ...]) -> Expr:
        """U as an expression of a recipe's target blocks."""
        if len(blocks) != len(self.coordinates):
            raise RecipeError("Energy", f"it has {len(self.coordinates)} coordinates for {len(blocks)} target blocks",
                              do="Give one coordinate for each block.")
        return self.U.xreplace(dict(zip(self.coordinates, blocks)))
