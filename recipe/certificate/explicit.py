"""Recipes written out over a few explicit sites, with numbers for all parameters, for numerical questions.

A vector block p becomes the coordinates p_1, ..., p_n, and total(f) the sum f_1 + ... + f_n. An entry of D or Q between
two vector blocks couples equal sites, an entry between a vector and a scalar couples every site to the scalar. An
opaque U becomes a confining energy that couples its coordinates, an opaque function a smooth function of its sign.
"""

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from sympy import Add, Derivative, Dummy, Expr, ImmutableMatrix, Mul, Rational, S, Symbol, cos, diff, pi, sin, tanh
from sympy.core.function import AppliedUndef

from ..algebra import entries
from ..arrays import of_arrays
from ..bound import Bound
from ..calculus import derivative
from ..declared import Adapted, Block, temperature
from ..domains import Domain
from ..dynamics import Dynamics
from ..operators import Applied, fields_of, is_operator, operators_of, parts
from ..random_points import random_value
from ..sites import Sites
from ..symbols import OPAQUE, Partial, Potential, Total

if TYPE_CHECKING:  # numpy is imported where numbers are asked for
    from numpy import ndarray
    from numpy.random import Generator

SEED = 2015
ROUNDING = 1e-12  # least eigenvalue above which a matrix is regular
TRIES = 100  # draws of parameters that satisfy `requires`
BULK = 20.0  # height of H/T above its least value up to which states count as bulk of the law
STATES, FEW, ROUNDS = 2000, 20, 8  # number of states in the search for the bulk, of the best ones, and of its rounds


@dataclass(frozen=True)
class Explicit:
    """Coordinates z with their blocks, and H, D and Q at a temperature as expressions of z alone."""

    coordinates: tuple[Symbol, ...]
    blocks: tuple[Block, ...]
    H: Expr
    D: ImmutableMatrix
    Q: ImmutableMatrix
    temperature: float

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return len(self.coordinates)

    @property
    def domains(self) -> dict[Symbol, Domain]:
        """The domain of each coordinate."""
        return {z: b.domain for z, b in zip(self.coordinates, self.blocks, strict=True)}

    def with_numbers_but(self, kept: Collection[Symbol]) -> Expr:
        """H with random numbers for all coordinates that are not in `kept`."""
        (state,) = draws_inside(self.blocks, 1, SEED)
        numbers = {z: Rational(repr(round(x, 6))) for z, x in zip(self.coordinates, state, strict=True)}
        return self.H.xreplace({z: x for z, x in numbers.items() if z not in kept})

    @cached_property
    def curl(self) -> ImmutableMatrix:
        """-Q grad H + T rowdiv(Q): the drift from Q."""
        gradient = ImmutableMatrix([derivative(self.H, z) for z in self.coordinates])
        slopes: list[list[Expr]] = [[] for _ in self.coordinates]
        for (i, j), e in entries(self.Q).items():
            slopes[i].append(derivative(e, self.coordinates[j]))
        divergence = ImmutableMatrix([Add(*own) for own in slopes])
        return self.temperature * divergence - self.Q * gradient

    @cached_property
    def bulk(self) -> "ndarray":
        """Random states of the bulk of the law, (size, N), at every distance from its middle.

        States of many scales move by differences of the best of them (Storn & Price 1997, Differential Evolution).
        """
        import numpy as np

        draw = np.random.default_rng(SEED)
        energy = self.function([self.H / self.temperature])
        moves = np.array([not b.domain.is_discrete for b in self.blocks])[:, None]
        scales = 10.0 ** draw.uniform(-2, 3, STATES)
        states = np.array([_spread(b, scales, draw) for b in self.blocks])
        for _ in range(ROUNDS):
            H = np.nan_to_num(energy(states)[0], nan=np.inf)
            low = np.partition(H, FEW)[FEW]
            best = states[:, H <= low + BULK][:, : STATES // 2]
            a, b, c = best[:, draw.integers(best.shape[1], size=(3, STATES - best.shape[1]))].swapaxes(0, 1)
            moved = np.where(moves, a + draw.uniform(0, 1.5, a.shape[1]) * (b - c), a)
            states = np.concatenate([best, np.where(self.contains(moved), moved, a)], axis=1)
        return best[:, draw.permutation(best.shape[1])]

    def contains(self, z: "ndarray") -> "ndarray":
        """Whether states z, (size, N), lie inside of the domains, `(N,)`; once around for an angle."""
        ends = [(float(b.domain.low), float(b.domain.high)) for b in self.blocks]
        return sum((x < low) | (x > high) for x, (low, high) in zip(z, ends, strict=True)) == 0

    def least_eigenvalues(self, z: "ndarray") -> "ndarray":
        """The least eigenvalue of D at states z, (size, N), `(N,)`."""
        import numpy as np

        D = self._D(z).T.reshape(-1, self.size, self.size)
        return np.linalg.eigvalsh(np.nan_to_num(D, nan=1.0, posinf=1e300))[:, 0]

    @cached_property
    def _D(self) -> Callable:
        return self.function(self.D)

    def function(self, formulas: Sequence[Expr]) -> Callable:
        """Formulas of the coordinates as a function of states (size, N) to values (len(formulas), N)."""
        import numpy as np

        compiled = of_arrays([self.coordinates], list(formulas), cse=True)

        def values(z: "ndarray") -> "ndarray":
            numbers = np.empty((len(formulas), *z.shape[1:]))
            with np.errstate(all="ignore"):
                for row, x in zip(numbers, compiled(z), strict=True):
                    row[...] = x
            return numbers

        return values

    def lines(self, number: int, along: Collection[Symbol] | None = None) -> "Iterator[Line]":
        """Lines through a number of random states, along each coordinate or each of those in `along`."""
        draw = random.Random(SEED)
        for i, (z, b) in enumerate(zip(self.coordinates, self.blocks, strict=True)):
            if not b.domain.is_discrete and (along is None or z in along):
                yield from [Line(self, i, [draw_inside(b, draw) for b in self.blocks]) for _ in range(number)]


@dataclass(frozen=True)
class Line:
    """A line along coordinate number i through a state."""

    explicit: Explicit
    i: int
    state: list[float]

    @property
    def z(self) -> Symbol:
        """The coordinate."""
        return self.explicit.coordinates[self.i]

    @property
    def block(self) -> Block:
        """The block of the coordinate."""
        return self.explicit.blocks[self.i]

    def on(self, e: Expr, x: Any) -> "ndarray":
        """The values of a formula of all coordinates at points x of the line."""
        import numpy as np

        with np.errstate(all="ignore"):
            at = [np.asarray(x, dtype=float) if k == self.i else v for k, v in enumerate(self.state)]
            values = np.empty(np.shape(x))
            values[...] = _compiled(self.explicit.coordinates, e)(at)
            return values

    def H(self, x: Any) -> "ndarray":
        """H/T at points x of the line."""
        return self.on(self.explicit.H, x) / self.explicit.temperature

    def D(self, x: Any) -> "ndarray":
        """D_ii at points x of the line."""
        return self.on(self.explicit.D[self.i, self.i], x)

    def drift(self, x: Any) -> "ndarray":
        """The drift of the coordinate from Q at points x of the line."""
        return self.on(self.explicit.curl[self.i], x)


@lru_cache(maxsize=256)
def _compiled(coordinates: tuple[Symbol, ...], e: Expr) -> Callable:
    return of_arrays([coordinates], e, cse=True)


def draw_inside(block: Block, draw: random.Random) -> float:
    """A random value inside of the domain of a block, away from its ends."""
    value = draw.gauss(0, 1)
    domain = block.domain
    if domain.is_discrete:
        return float(int(draw.random() * domain.categories))
    if domain.is_compact:
        return domain.inside(0.2 + 0.6 * draw.random())
    return value if domain.is_real else 0.3 + abs(value)


def _spread(block: Block, scales: "ndarray", draw: "Generator") -> "ndarray":
    """Random values of a block at scales, `(N,)`: everywhere in a compact domain."""
    domain = block.domain
    if domain.is_discrete:
        return draw.integers(domain.categories, size=len(scales)).astype(float)
    if domain.is_compact:
        return domain.inside(draw.random(len(scales)))
    values = scales * draw.normal(size=len(scales))
    return values if domain.is_real else abs(values)


def draws_inside(blocks: tuple[Block, ...], number: int, seed: int) -> list[list[float]]:
    """A list of random states inside of the domains of blocks."""
    draw = random.Random(seed)
    return [[draw_inside(b, draw) for b in blocks] for _ in range(number)]


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
        formulas = self.at(H), self.matrix(self.recipe.D), self.matrix(self.recipe.Q)
        still = [s for symbols in self.still.values() for s in symbols]
        numbers = {s: Rational(repr(round(random_value(s, self.draw), 6))) for s in still}
        H, D, Q = (e.xreplace(numbers) for e in formulas)
        blocks = tuple(b for b in self.state for _ in self.of[b])
        return Explicit(self.coordinates, blocks, H, D, Q, float(self.temperature))

    def entry(self, e: Expr, k: int, m: int, of_vectors: bool) -> Expr:
        """The entry of two blocks at sites k and m."""
        if not (of_vectors and is_operator(e)):
            return super().entry(e, k, m, of_vectors)
        return Add(*(self.field(F) * self.image(F)[k, m] * self.at(c) for F, c in parts(e)))

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
        """A formula of one operator as a matrix of numbers, with a random matrix of its kind for the operator."""
        if F not in self.matrices:
            (M,) = operators_of(F) or {Dummy()}
            if M not in self.spectra:
                kind = getattr(M, "matrix_kind", "definite")
                is_regular = kind == "semidefinite" and self.values.get(M.name, 0.0) > ROUNDING
                self.spectra[M] = _spectrum("definite" if is_regular else kind, self.number, self.draw)
            numbers = {s: self.constant(s) for s in F.free_symbols - {M}}
            rows = image_of(F, M, self.spectra[M], numbers).tolist()
            self.matrices[F] = ImmutableMatrix([[Rational(repr(x)) for x in row] for row in rows])
        return self.matrices[F]

    def field(self, F: Expr) -> Expr:
        """A smooth positive factor that reads the block of a field; 1 for constant operators."""
        blocks = [M.at for M in fields_of(F) if M.at is not None]
        return Mul(*(1 + tanh(Add(*self.symbols(b))) / 2 for b in blocks))

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
