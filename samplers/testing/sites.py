"""The number of sites over which a check of a recipe looks at it."""

from sympy import Add

from recipe import Recipe
from recipe.declared import Block
from recipe.symbols import Total, masked

SEVERAL = 3  # sites of a recipe whose sites are coupled


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
