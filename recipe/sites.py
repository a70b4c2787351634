"""Recipes written out over a number of sites: a vector block p is p_1, ..., p_n, and total(f) is f_1 + ... + f_n."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sympy import Add, Expr, ImmutableMatrix, S, Symbol

from .algebra import at_one_site, entries
from .declared import Block, scalar
from .ensembles import Outer
from .involutions import Involution
from .operators import parts
from .symbols import Total

if TYPE_CHECKING:  # numpy is imported where numbers are asked for
    from numpy import ndarray


class Sites:
    """The coordinates of blocks over a number of sites; at one site, the blocks themselves.

    >>> from recipe import vector, total
    >>> theta = vector("theta")
    >>> sites = Sites((theta,), 3)
    >>> sites.coordinates, sites.at(theta * total(theta**2), 1)
    ((theta_1, theta_2, theta_3), theta_2*(theta_1**2 + theta_2**2 + theta_3**2))
    """

    def __init__(self, state: Sequence[Block], number: int = 1):
        self.state = tuple(state)
        self.number = number
        self.of = {b: self.coordinates_of(b) for b in self.state}

    def coordinates_of(self, block: Block) -> tuple[Symbol, ...]:
        """The coordinates of one block: scalar blocks of names that no other block has."""
        if self.number == 1 or not block.is_vector:
            return (block,)
        stem = f"{block.name}_"
        while any(b.name.startswith(stem) for b in self.state):
            stem += "_"
        return tuple(scalar(f"{stem}{k}", domain=block.domain) for k in range(1, self.number + 1))

    @property
    def coordinates(self) -> tuple[Any, ...]:
        """All coordinates, block by block."""
        return tuple(z for b in self.state for z in self.of[b])

    def at(self, e: Expr, site: int = 0) -> Expr:
        """A formula at a site, of coordinates alone; every total is a sum over the sites."""
        if self.number == 1:
            return at_one_site(e)
        match e:
            case Total():
                return Add(*(self.at(e.integrand, k) for k in range(self.number)))
            case Block() if e in self.of:
                return self.of[e][site if e.is_vector else 0]
        return e.func(*(self.at(a, site) for a in e.args)) if e.args else e

    def column(self, rows: Sequence[Expr]) -> list[Expr]:
        """Formulas by block, such as the drift, as formulas by coordinate."""
        return [self.at(e, k) for b, e in zip(self.state, rows, strict=True) for k in range(len(self.of[b]))]

    def matrix(self, matrix: ImmutableMatrix) -> ImmutableMatrix:
        """A matrix over blocks as a matrix over coordinates."""
        known = entries(matrix)
        rows = [(i, k, b.is_vector) for i, b in enumerate(self.state) for k in range(len(self.of[b]))]
        size = len(rows)
        pairs = ((known.get((i, j), S.Zero), k, m, a and b) for i, k, a in rows for j, m, b in rows)
        return ImmutableMatrix(size, size, [e and self.entry(e, k, m, v) for e, k, m, v in pairs])

    def entry(self, e: Expr, k: int, m: int, of_vectors: bool) -> Expr:
        """The entry of two blocks at sites k and m: of two vectors 0 unless the sites are equal, or v_k v_m."""
        if of_vectors and e.has(Outer):
            return Add(*(self._of_outer(F, k, m) * self.at(c, k) for F, c in parts(e)))
        return S.Zero if of_vectors and k != m else self.at(e, max(k, m))

    def _of_outer(self, F: Expr, k: int, m: int) -> Expr:
        """The entry at sites k and m of an outer product, or of the identity."""
        return self.at(F.vector, k) * self.at(F.vector, m) if isinstance(F, Outer) else S(int(k == m))

    def jumps(self, jump: Involution) -> list[tuple[dict[Symbol, Expr], Expr]]:
        """An involution as jumps of coordinates, each with its new values and its rate: one by site, or one of all."""
        every = range(self.number)
        groups = [[k] for k in every] if jump.is_by_site else [[*every]]
        places = [[(b, k, z) for b in jump.blocks for k, z in enumerate(self.of[b]) if k in sites] for sites in groups]
        images = dict(jump.images)
        return [
            ({z: self.at(images[b], k) for b, k, z in coordinates}, self.at(jump.rate, sites[0]))
            for sites, coordinates in zip(groups, places)
        ]

    def arrays(self, points: Mapping[Block, Any]) -> "dict[Block, ndarray]":
        """Points by coordinate as arrays by block, (N, sites), of scalar blocks (N,)."""
        from numpy import asarray, stack

        stacked = {b: stack([asarray(points[z], float) for z in self.of[b]], -1) for b in self.state}
        return {b: x if b.is_vector else x[:, 0] for b, x in stacked.items()}
