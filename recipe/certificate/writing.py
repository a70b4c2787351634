"""A recipe written out over a few explicit sites, with numbers for all parameters.

A vector block p becomes the coordinates p_1, ..., p_n, and total(f) the sum f_1 + ... + f_n. An entry of D or Q between
two vector blocks couples equal sites, an entry between a vector and a scalar couples every site to the scalar. An
opaque U becomes a confining energy that couples its coordinates, an opaque function a smooth function of its sign.
"""

import random
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from sympy import (
    Add,
    Derivative,
    Dummy,
    Expr,
    ImmutableMatrix,
    Rational,
    S,
    Symbol,
    cos,
    diag,
    diff,
    eye,
    pi,
    sin,
    tanh,
)
from sympy.core.function import AppliedUndef

from ..bound import Bound
from ..declared import Adapted, Block, temperature
from ..dynamics import Dynamics
from ..ensembles import Outer
from ..fields import operators_of
from ..operators import Applied, Diagonal, is_operator, parts
from ..random_points import random_value
from ..sites import Sites
from ..spheres import Projection, projections_of
from ..symbols import OPAQUE, Partial, Potential, Total
from .explicit import ROUNDING, SEED, Explicit

if TYPE_CHECKING:  # numpy is imported where numbers are asked for
    from numpy import ndarray

TRIES = 100  # draws of parameters that satisfy `requires`


def written_out(
    recipe: Dynamics,
    sites: int = 2,
    *,
    temperature: float = 1.0,
    values: Mapping[str, float] | None = None,
    H: Expr | None = None,
) -> Explicit:
    """The recipe over `sites` sites; parameters have their `values` by name, else defaults, else random values.

    The value of an operator is its least eigenvalue, by which a semidefinite one may be regular. `H`: an energy to use
    instead of the recipe's.
    """
    return _Writer(recipe, sites, temperature, values or {}).recipe_over_sites(recipe.H if H is None else H)


class _Writer(Sites):
    """Writer of a recipe's expressions over explicit sites, with the same numbers in all of them."""

    def __init__(self, recipe: Dynamics, sites: int, at_temperature: float, values: Mapping[str, float]):
        super().__init__(recipe.state, sites)
        self.recipe = recipe
        self.temperature = Rational(repr(float(at_temperature)))
        self.values = values
        self.draw = random.Random(SEED)
        self.numbers: dict = {temperature: self.temperature, **self.required()}
        self.still: dict[Block, tuple[Symbol, ...]] = {}  # coordinates of blocks that do not move
        self.spectra: dict = {}  # eigenvalues and eigenvectors, by operator
        self.matrices: dict[Expr, ImmutableMatrix] = {}  # by formula

    def coordinates_of(self, block: Block) -> tuple[Symbol, ...]:
        """The plain symbols of one block."""
        return tuple(_coordinate(block, k) for k in range(self.number if block.is_vector else 1))

    def required(self) -> dict[Symbol, Expr]:
        """Numbers of the parameters in `requires` that satisfy it, if random ones are found that do."""
        parameters = sorted({s for r in self.recipe.requires for s in r.free_symbols}, key=str)
        numbers: dict[Symbol, Expr] = {}
        for _ in range(TRIES if parameters else 0):
            known = {s: self.values.get(s.name, getattr(s, "default", None)) for s in parameters}
            values = {s: random_value(s, self.draw) if x is None else x for s, x in known.items()}
            numbers = {s: Rational(repr(float(x))) for s, x in values.items()}
            if all(relation.xreplace(numbers) == True for relation in self.recipe.requires):  # noqa: E712
                break
        return {s: x for s, x in numbers.items() if not getattr(s, "is_vector", False)}

    def recipe_over_sites(self, H: Expr) -> Explicit:
        """The Explicit form of the recipe with the energy H."""
        rows = ImmutableMatrix(self.column(list(self.recipe.transport)))
        formulas = self.at(H), self.matrix(self.recipe.D), self.matrix(self.recipe.Q), rows
        still = [s for symbols in self.still.values() for s in symbols]
        numbers = {s: Rational(repr(round(random_value(s, self.draw), 6))) for s in still}
        H, D, Q, transport = (e.xreplace(numbers) for e in formulas)
        blocks = tuple(b for b in self.state for _ in self.of[b])
        return Explicit(self.coordinates, blocks, H, D, Q, transport, float(self.temperature))

    def entry(self, e: Expr, k: int, m: int, of_vectors: bool) -> Expr:
        """The entry of two blocks at sites k and m."""
        if not (of_vectors and is_operator(e)) or e.has(Outer):
            return super().entry(e, k, m, of_vectors)
        return Add(*(self.image(F)[k, m] * self.at(c) for F, c in parts(e)))

    def symbols(self, b: Block) -> tuple[Symbol, ...]:
        """The plain symbols of a block of the state, or of one that is held still."""
        return self.of[b] if b in self.of else self.still.setdefault(b, self.coordinates_of(b))

    def symbol(self, b: Block, site: int) -> Symbol:
        """The plain symbol of a block at a site."""
        return self.symbols(b)[site if b.is_vector else 0]

    def constant(self, s: Symbol, site: int = 0) -> Expr:
        """The number of a parameter, or of a quantity frozen in a step."""
        key = (s, site) if getattr(s, "is_vector", False) else s
        if key not in self.numbers:
            value = self.values.get(s.name, getattr(s, "default", None))
            self.numbers[key] = Rational(repr(float(random_value(s, self.draw) if value is None else value)))
        return self.numbers[key]

    def image(self, F: Expr) -> ImmutableMatrix:
        """A formula of one operator as a matrix, with a random matrix of numbers of its kind for the operator.

        A field is such a matrix times a smooth positive function of its block.
        """
        if F not in self.matrices and projections_of(F):
            self.matrices[F] = self._of_projection(*projections_of(F))
        if F not in self.matrices:
            (M,) = operators_of(F) or {Dummy()}
            if M not in self.spectra:
                kind = getattr(M, "matrix_kind", "definite")
                is_regular = kind == "semidefinite" and self.values.get(M.name, 0.0) > ROUNDING
                self.spectra[M] = _spectrum("definite" if is_regular else kind, self.number, self.draw)
            numbers = {s: self.constant(s) for s in F.atoms(Symbol) - {M}}
            at = getattr(M, "at", None)
            if at is None or F == M:
                rows = image_of(F, M, self.spectra[M], numbers).tolist()
                image = ImmutableMatrix([[Rational(repr(x)) for x in row] for row in rows])
                self.matrices[F] = image if at is None else (1 + tanh(Add(*self.symbols(at))) / 2) * image
            else:
                self.matrices[F] = self._of_field(F.xreplace(numbers), M)
        return self.matrices[F]

    def _of_projection(self, P: Projection) -> ImmutableMatrix:
        """I - u u^T/|u|^2, of which the divergence is that on the surface of the sphere of any radius."""
        u = ImmutableMatrix(self.symbols(P.on))
        return ImmutableMatrix(eye(len(u)) - u * u.T / u.dot(u))

    def _of_field(self, F: Expr, M: Symbol) -> ImmutableMatrix:
        """A formula of a field that is symmetric, by its eigenvalues: those of numbers, times the function."""
        values, vectors = self.spectra[M]
        function = 1 + tanh(Add(*self.symbols(M.at))) / 2
        images = [F.xreplace({M: function * Rational(repr(float(x)))}) for x in values]
        V = ImmutableMatrix([[Rational(repr(float(x))) for x in row] for row in vectors])
        return ImmutableMatrix(V * diag(*images) * V.T)

    def at(self, e: Expr, site: int = 0) -> Expr:
        """The expression at a site."""
        match e:
            case Total():
                of_blocks = e.integrand.free_symbols <= set(self.recipe.state) and not e.integrand.has(*OPAQUE)
                at = _of_blocks if of_blocks else self.at
                return Add(*(at(e.integrand, k) for k in range(self.number)))
            case Potential():
                return self.energy(e)
            case Partial():
                return diff(self.energy(e.U), *(self.symbol(b, site) for b in e.variables))
            case Block() if not isinstance(e, Adapted):
                return self.symbol(e, site)
            case Symbol():
                return self.constant(e, site)
            case Applied():
                row = self.image(e.formula).row(site)
                return Add(*(a * self.at(e.argument, k) for k, a in enumerate(row)))
            case Diagonal():
                return self.image(e.args[0])[site, site]
            case AppliedUndef() | Bound():
                return self.function(e, site)
        if not e.args:
            return e
        whole = e.func(*(self.at(a, site) for a in e.args))
        return whole.doit() if isinstance(e, Derivative) else whole

    def energy(self, U: Potential) -> Expr:
        """A confining energy without symmetry: x^2/2 + cos(2x - phase) per coordinate, with coupled neighbours.

        For an angle, sin x replaces x^2/2, and x is scaled to the period. Energies with other names have other phases.
        """
        phase = Rational(1 + [*dict.fromkeys(V.name for V in self.recipe.potentials), U.name].index(U.name), 3)
        rows = [(b, x) for b in U.blocks for x in self.symbols(b)]
        z = [2 * pi / b.domain.width * x if b.domain.wraps else x for b, x in rows]
        wells = [sin(x) if b.domain.wraps else x**2 / 2 for (b, _), x in zip(rows, z, strict=True)]
        coupling = Add(*(sin(x - y) / 3 for x, y in zip(z, z[1:], strict=False)))
        return Add(*(well + cos(2 * x - phase) for well, x in zip(wells, z, strict=True))) + coupling

    def function(self, f: AppliedUndef | Bound, site: int) -> Expr:
        """A smooth function without symmetry of the sum of the arguments, with the declared sign, or its derivative."""
        x = Dummy(real=True)
        of_network = isinstance(f, Bound)
        is_positive = f.family.is_positive if of_network else f.is_nonnegative
        smooth = 1 + tanh(x) / 2 if is_positive else x / 3 + sin(x)
        argument = Add(*(self.at(a, site) for a in f.args))
        return diff(smooth, x, sum(f.orders) if of_network else 0).xreplace({x: argument})


def spectrum_of(A: "ndarray") -> "tuple[ndarray, ndarray]":
    """The eigenvalues and eigenvectors of a symmetric or skew matrix."""
    from numpy.linalg import eigh

    if abs(A + A.T).max() < abs(A - A.T).max() * 1e-9:
        values, vectors = eigh(1j * A)
        return -1j * values, vectors
    return eigh((A + A.T) / 2)


def image_of(F: Expr, M: Symbol, spectrum: "tuple[ndarray, ndarray]", numbers: Mapping) -> "ndarray":
    """The matrix of a formula of one operator, by the spectrum of the operator."""
    values, vectors = spectrum
    images = [complex(F.xreplace({**numbers, M: S(complex(x))})) for x in values]
    return ((vectors * images) @ vectors.conj().T).real


def _spectrum(kind: str, sites: int, draw: random.Random) -> "tuple[ndarray, ndarray]":
    """The eigenvalues and eigenvectors of a random matrix of a kind; singular for "semidefinite"."""
    from numpy import array

    A = array([[draw.gauss(0, 1) for _ in range(sites)] for _ in range(sites)])
    if kind == "skew":
        return spectrum_of(A - A.T)
    values, vectors = spectrum_of(A + A.T)
    if kind == "symmetric":
        return values, vectors
    values = 0.5 + abs(values)
    values[0] *= kind == "definite"
    return values, vectors


def _coordinate(b: Block, site: int) -> Symbol:
    name = f"{b.name}_{site + 1}" if b.is_vector else b.name
    return Symbol(name, real=True, positive=b.is_positive, nonnegative=b.is_nonnegative)


@lru_cache(maxsize=4096)
def _of_blocks(e: Expr, site: int) -> Expr:
    """An expression of blocks at a site, cached because a recipe is written out over one, two and three sites."""
    return e.xreplace({b: _coordinate(b, site) for b in e.free_symbols})
