"""Formulas of a few explicit coordinates for numerical questions: on lines, at random states, in the law's bulk."""

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from sympy import Add, Expr, ImmutableMatrix, Integer, Rational, Symbol

from ..algebra import entries
from ..arrays import of_arrays
from ..calculus import derivative
from ..declared import Block
from ..domains import Domain
from ..logs import log_of

if TYPE_CHECKING:  # numpy is imported where numbers are asked for
    from numpy import ndarray
    from numpy.random import Generator

SEED = 2015
ROUNDING = 1e-12  # least eigenvalue above which a matrix is regular
MANY = 16  # most values of discrete coordinates
BULK = 20.0  # height of H/T above its least value up to which states count as bulk of the law
LINES = 400  # number of states of the bulk through which a sheaf of lines goes
STATES, FEW, ROUNDS = 2000, 20, 8  # number of states in the search for the bulk, of the best ones, and of its rounds


@dataclass(frozen=True)
class Explicit:
    """Coordinates z with their blocks, and H, D, Q and transport at a temperature as expressions of z alone."""

    coordinates: tuple[Symbol, ...]
    blocks: tuple[Block, ...]
    H: Expr
    D: ImmutableMatrix
    Q: ImmutableMatrix
    transport: ImmutableMatrix
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
        (state,) = draws_inside(self.blocks, 1)
        numbers = {z: Rational(repr(round(x, 6))) for z, x in zip(self.coordinates, state, strict=True)}
        return self.H.xreplace({z: x for z, x in numbers.items() if z not in kept})

    def by_category(self) -> "list[Explicit]":
        """The continuous coordinates alone, at all values of the discrete ones, or at MANY random values."""
        kept = [i for i, b in enumerate(self.blocks) if not b.domain.is_discrete]
        discrete = [(z, b.domain.categories) for z, b in zip(self.coordinates, self.blocks) if b.domain.is_discrete]
        if not discrete:
            return [self]
        draw = random.Random(SEED)
        values: Iterable = product(*(range(categories) for _, categories in discrete))
        if prod(categories for _, categories in discrete) > MANY:
            values = [[draw.randrange(categories) for _, categories in discrete] for _ in range(MANY)]
        return [self._at(kept, {z: Integer(k) for (z, _), k in zip(discrete, point)}) for point in values]

    def _at(self, kept: list[int], values: Mapping[Symbol, Expr]) -> "Explicit":
        """The coordinates of some numbers, at values of all others."""
        D, Q = (matrix.extract(kept, kept).xreplace(values) for matrix in (self.D, self.Q))
        coordinates, blocks = (tuple(items[i] for i in kept) for items in (self.coordinates, self.blocks))
        transport = self.transport.extract(kept, [0]).xreplace(values)
        return Explicit(coordinates, blocks, self.H.xreplace(values), D, Q, transport, self.temperature)

    @cached_property
    def curl(self) -> ImmutableMatrix:
        """-Q grad H + T rowdiv(Q) and the transport: the drift beside that of D."""
        gradient = ImmutableMatrix([derivative(self.H, z) for z in self.coordinates])
        slopes: list[list[Expr]] = [[] for _ in self.coordinates]
        for (i, j), e in entries(self.Q).items():
            slopes[i].append(derivative(e, self.coordinates[j]))
        divergence = ImmutableMatrix([Add(*summands) for summands in slopes])
        return self.temperature * divergence - self.Q * gradient + self.transport

    @cached_property
    def bulk(self) -> "ndarray":
        """Random states of the bulk of the law, (size, N), at every distance from its middle.

        States of many scales move by differences of the best of them (Storn & Price 1997, Differential Evolution).
        """
        import numpy as np

        draw = np.random.default_rng(SEED)
        energy = self.function([self.H / self.temperature])
        moves = np.array([not b.domain.is_discrete for b in self.blocks])[:, None]
        states = self.anywhere
        for _ in range(ROUNDS):
            H = np.nan_to_num(energy(states)[0], nan=np.inf)
            low = np.partition(H, FEW)[FEW]
            best = states[:, H <= low + BULK][:, : STATES // 2]
            a, b, c = best[:, draw.integers(best.shape[1], size=(3, STATES - best.shape[1]))].swapaxes(0, 1)
            proposals = np.where(moves, a + draw.uniform(0, 1.5, a.shape[1]) * (b - c), a)
            states = np.concatenate([best, np.where(self.contains(proposals), proposals, a)], axis=1)
        return best[:, draw.permutation(best.shape[1])]

    @cached_property
    def anywhere(self) -> "ndarray":
        """Random states of all scales, `(size, STATES)`."""
        import numpy as np

        draw = np.random.default_rng(SEED)
        scales = 10.0 ** draw.uniform(-2, 3, STATES)
        return np.array([_spread(b, scales, draw) for b in self.blocks])

    def contains(self, z: "ndarray") -> "ndarray":
        """Whether states z, (size, N), lie inside of the domains, `(N,)`; once around for an angle."""
        return sum((x < low) | (x > high) for x, (low, high) in zip(z, self.ends, strict=True)) == 0

    @cached_property
    def ends(self) -> list[tuple[float, float]]:
        """The ends of the domains of the coordinates."""
        return [(float(b.domain.low), float(b.domain.high)) for b in self.blocks]

    def least_eigenvalues(self, z: "ndarray") -> "ndarray":
        """The least eigenvalue of D at states z, (size, N), `(N,)`."""
        import numpy as np

        D = self.D_at(z).T.reshape(-1, self.size, self.size)
        return np.linalg.eigvalsh(np.nan_to_num(D, nan=1.0, posinf=1e300))[:, 0]

    @cached_property
    def D_at(self) -> Callable:
        """The entries of D, row by row, at states z, (size, N)."""
        return self.function(self.D)

    def function(self, formulas: Sequence[Expr]) -> Callable:
        """Formulas of the coordinates as a function of states (size, N) to values (len(formulas), N)."""
        import numpy as np

        compiled = _compiled(self.coordinates, tuple(formulas))

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

    def sheaves(self) -> "Iterator[Line]":
        """Lines along each coordinate through states of the bulk and random ones, all of a coordinate at once."""
        import numpy as np

        states = np.concatenate([np.array(draws_inside(self.blocks, FEW)).T, self.bulk[:, :LINES]], axis=1)
        for i, b in enumerate(self.blocks):
            if not b.domain.is_discrete:
                yield Line(self, i, list(states[:, :, None]))


@dataclass(frozen=True)
class Line:
    """A line along coordinate number i through a state, or a sheaf of parallel ones through many, (N, 1) each."""

    explicit: Explicit
    i: int
    state: list[Any]

    @property
    def is_sheaf(self) -> bool:
        """Whether there are many lines; values of each stand in a row."""
        return not isinstance(self.state[0], float)

    @property
    def within(self) -> Any:
        """The place of the state on the line; of many, of the first."""
        return self.state[self.i][0] if self.is_sheaf else self.state[self.i]

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
            values = np.empty(np.broadcast(*at).shape)
            values[...] = _compiled(self.explicit.coordinates, e)(at)
            return values

    def H(self, x: Any) -> "ndarray":
        """H/T at points x of the line."""
        return self.on(self.explicit.H, x) / self.explicit.temperature

    def D(self, x: Any) -> "ndarray":
        """D_ii at points x of the line."""
        return self.on(self.explicit.D[self.i, self.i], x)

    def log_D(self, x: Any) -> "ndarray":
        """log |D_ii| at points x of the line, where D_ii itself may overflow."""
        return self.on(log_of(self.explicit.D[self.i, self.i]), x)

    def drift(self, x: Any) -> "ndarray":
        """The drift of the coordinate from Q at points x of the line."""
        return self.on(self.explicit.curl[self.i], x)


@lru_cache(maxsize=256)
def _compiled(coordinates: tuple[Symbol, ...], formulas: Expr | tuple[Expr, ...]) -> Callable:
    """A formula or several as a function of arrays; sites and questions of a certificate share formulas."""
    return of_arrays([coordinates], formulas, cse=True)


def draw_inside(block: Block, draw: random.Random) -> float:
    """A random value inside of the domain of a block, away from its ends."""
    value = draw.gauss(0, 1)
    domain = block.domain
    if domain.is_discrete:
        return float(int(draw.random() * domain.categories))
    if domain.is_compact:
        return domain.inside(0.2 + 0.6 * draw.random())
    return value if domain.is_endless else 0.3 + abs(value)


def _spread(block: Block, scales: "ndarray", draw: "Generator") -> "ndarray":
    """Random values of a block at scales, `(N,)`: everywhere in a compact domain."""
    domain = block.domain
    if domain.is_discrete:
        return draw.integers(domain.categories, size=len(scales)).astype(float)
    if domain.is_compact:
        return domain.inside(draw.random(len(scales)))
    values = scales * draw.normal(size=len(scales))
    return values if domain.is_endless else abs(values)


def draws_inside(blocks: tuple[Block, ...], number: int) -> list[list[float]]:
    """A list of random states inside of the domains of blocks."""
    draw = random.Random(SEED)
    return [[draw_inside(b, draw) for b in blocks] for _ in range(number)]
