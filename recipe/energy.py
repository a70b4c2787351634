"""Symbolic energies of the target, compiled together with a recipe."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain

from sympy import Expr, Symbol, diff

from .algebra import readers
from .arguments import as_tuple
from .calculus import derivative
from .data_totals import DataTotal, Datum
from .declared import Block
from .errors import RecipeError, did_you_mean
from .formulas import formula
from .logs import bounded, logs_apart, without_overflow
from .symbols import is_site, masked


@dataclass(frozen=True)
class Energy:
    """U = -log density, on the sum scale, as an expression of the target's coordinates in their order.

    `coordinates`: plain sympy symbols, or one vector block whose sites U sums with `total`.
    `data`: the columns of the data that U sums with `data_total`, in the order of a run's tensors.
    Raises RecipeError for an expression that is not an energy of the coordinates and data.

    >>> from sympy import symbols
    >>> x, y = symbols("x y", real=True)
    >>> Energy((x, y), U=(x**2 + x*y + y**2)/2).gradient
    (x + y/2, x/2 + y)
    """

    coordinates: Symbol | tuple[Symbol, ...]
    U: Expr
    data: Datum | tuple[Datum, ...] = ()

    def __post_init__(self) -> None:
        coordinates = self.coordinates
        settle = partial(object.__setattr__, self)
        settle("coordinates", as_tuple(coordinates))
        settle("U", formula(self.U, "Energy, U"))
        settle("data", as_tuple(self.data))
        if not self.coordinates or not all(isinstance(c, Symbol) for c in self.coordinates):
            do = 'Write x, y = sympy.symbols("x y", real=True) and Energy((x, y), U=...).'
            raise RecipeError("Energy", f"the coordinates are sympy symbols, got {coordinates!r}", do=do)
        for where, what, do in chain(self._faults_of_columns(), self._faults_of_U()):
            raise RecipeError(where, what, do=do)

    def _faults_of_columns(self) -> Iterator[tuple[str, str, str]]:
        """Coordinates and columns that are not data, or that bear one name: where, what, what to do."""
        where = "Energy, data"
        if len(set(self.coordinates)) < len(self.coordinates):
            yield "Energy", f"a coordinate occurs twice in {self.coordinates}", "Name each once."
        if self.is_sitewise and len(self.coordinates) > 1:
            do = "Give one vector block, or one symbol per coordinate."
            yield "Energy", "a vector block cannot stand beside other coordinates", do
        if not all(isinstance(d, Datum) for d in self.data) or len(set(self.data)) < len(self.data):
            do = 'Write data=(x, y) with y = datum("y").'
            yield where, f"its columns are data, each once, got {self.data}", do
        names = [s.name for s in (*self.coordinates, *self.data)]
        if self.data and len(set(names)) < len(names):
            yield where, f"two of {', '.join(names)} bear one name", "Name each coordinate and column by itself."
        for d in sorted(self.U.atoms(Datum) - set(self.data), key=str):
            yield where, f"'{d}' is not among its columns", f"Pass data=(..., {d}), in the order of the tensors."
        if any(d.is_vector for d in self.data) and not self.is_sitewise:
            yield where, "a value per site needs a vector block among the coordinates", 'Write theta = vector("theta").'

    def _faults_of_U(self) -> Iterator[tuple[str, str, str]]:
        """Parts of U that are no terms of the coordinates and sums over the data: where, what, what to do."""
        outside, sums = masked(self.U, DataTotal)
        if outside.has(Datum):
            yield "Energy", f"{outside} reads data outside of data_total()", "Sum what is read of a row over the rows."
        if any(diff(outside, d).has(*sums) for d in sums):
            yield "Energy", "U is not a sum over the data: a minibatch cannot estimate it", "Add the terms of the rows."
        if self.data and not sums:
            yield "Energy, data", "U reads no data", "Sum over the rows with data_total()."
        for s in self.U.free_symbols - {*self.coordinates, *self.data}:
            yield "Energy", f"'{s}' in U is not a coordinate", did_you_mean(s.name, [c.name for c in self.coordinates])
        if is_site(self.U):
            yield "Energy", f"U = {self.U} has one value per site, not one per chain", "Wrap it in total()."

    @property
    def is_sitewise(self) -> bool:
        """Whether the energy is written for one vector block of any length."""
        return any(isinstance(c, Block) and c.is_vector for c in self.coordinates)

    @property
    def value(self) -> Expr:
        """U in the form that is evaluated, without the overflow of log(1 + exp(z))."""
        return without_overflow(self.U)

    @property
    def gradient(self) -> tuple[Expr, ...]:
        """dU/dx for each coordinate, in their order."""
        return _derivatives(self.U, self.coordinates, 1)

    @property
    def curvature(self) -> tuple[Expr, ...]:
        """d2U/dx2 for each coordinate: the Hessian diagonal."""
        return _derivatives(self.U, self.coordinates, 2)

    def on(self, blocks: tuple[Expr, ...]) -> Expr:
        """U as an expression of a recipe's target blocks, one per coordinate; raises RecipeError for another number.

        >>> from recipe import scalar
        >>> from sympy import Symbol
        >>> x = Symbol("x", real=True)
        >>> Energy(x, U=x**2).on((scalar("q"),))
        q**2
        """
        if len(blocks) != len(self.coordinates):
            what = f"it has {len(self.coordinates)} coordinates for {len(blocks)} target blocks"
            raise RecipeError("Energy", what, do="Give one coordinate for each block.")
        return self.U.xreplace(dict(zip(self.coordinates, blocks)))


@lru_cache(maxsize=64)
def _derivatives(U: Expr, coordinates: tuple[Symbol, ...], order: int) -> tuple[Expr, ...]:
    parts = readers(logs_apart(U), coordinates)
    return tuple(bounded(derivative(part, c) if order == 1 else diff(part, c, order)) for c, part in parts.items())
