"""The coordinates of a recipe's blocks over a number of sites, each a scalar block."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sympy import Add, Expr, ImmutableMatrix, S

from recipe import Recipe
from recipe.algebra import at_one_site
from recipe.symbols import Block, Total, masked, scalar

SEVERAL = 3  # sites of a recipe whose sites are coupled


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
        self.of = {b: self._coordinates_of(b) for b in self.state}

    def _coordinates_of(self, block):
        if self.number == 1 or not block.is_vector:
            return (block,)
        stem = f"{block.name}_"
        while any(b.name.startswith(stem) for b in self.state):
            stem += "_"
        return tuple(scalar(f"{stem}{k}", domain=block.domain) for k in range(1, self.number + 1))

    @property
    def coordinates(self) -> tuple[Block, ...]:
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

    def matrix(self, entries: ImmutableMatrix) -> ImmutableMatrix:
        """A matrix over blocks as a matrix over coordinates; entries of vector blocks at different sites are 0."""
        rows = [(i, k, b) for i, b in enumerate(self.state) for k in range(len(self.of[b]))]

        def entry(row, column):
            (i, k, a), (j, m, b) = rows[row], rows[column]
            apart = a.is_vector and b.is_vector and k != m
            return S.Zero if apart else self.at(entries[i, j], max(k, m))

        return ImmutableMatrix(len(rows), len(rows), entry)

    def arrays(self, points: Mapping[Block, Any]) -> dict[Block, np.ndarray]:
        """Points by coordinate as arrays by block, (N, sites), of scalar blocks (N,)."""
        stacked = {b: np.stack([np.asarray(points[z], float) for z in self.of[b]], -1) for b in self.state}
        return {b: x if b.is_vector else x[:, 0] for b, x in stacked.items()}


def sites_of(recipe: Recipe) -> int:
    """The number of sites that a check of a recipe needs: several where D, Q or H has a mean field, else 1.

    The value of U is a sum over sites.

    >>> from samplers import SGNHT
    >>> sites_of(SGNHT)
    1
    """
    sums = {U: Total(Add(*U.blocks)) for U in recipe.potentials if any(b.is_vector for b in U.blocks)}
    H, *others = (e.xreplace(sums) for e in (recipe.H, *recipe.D, *recipe.Q))
    return SEVERAL if any(map(_fields, others)) or _couples_sites(H) else 1


def _fields(e):
    """The totals of a formula that depend on blocks, unlike n."""
    return {t for t in e.atoms(Total) if any(isinstance(s, Block) for s in t.integrand.free_symbols)}


def _couples_sites(H):
    """Whether H, given the scalar blocks, is anything but a sum over sites."""
    outside, totals = masked(H, Total)
    fields = [d for d, t in totals.items() if _fields(t)]
    nested = any(_fields(t.integrand) for t in totals.values())
    return nested or any(outside.diff(d).has(*fields) for d in fields)
