"""Derivatives of U at predicted points, for flows with several gradients per step.

    At(grad(U), theta, y)        is grad U at theta = y

A flow with such a term is lowered to several stages: each moves the target to a point and takes a gradient there.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sympy import Expr, Tuple

from recipe.symbols import Block, Partial, Potential, is_site, masked

from .extraction import Extraction
from .program import Local


class At(Expr):
    """U or a derivative of U with blocks of the target at other values; unchanged if the values are the blocks."""

    is_commutative = True
    is_real = True

    def __new__(cls, value: Expr, blocks: Tuple, point: Tuple) -> Expr:
        """The term for a value at a point, or the value itself if the point is the blocks."""
        return value if blocks == point else Expr.__new__(cls, value, blocks, point)

    @property
    def value(self) -> Expr:
        """The function evaluated at the point: U or a derivative."""
        return self.args[0]

    @property
    def point(self) -> dict[Block, Expr]:
        """The values of the blocks, by block."""
        return dict(zip(self.args[1], self.args[2]))

    def _xreplace(self, rule: Mapping) -> tuple[Any, bool]:
        """Replace within the point only, because the blocks are bound, or replace the whole term."""
        if self in rule:
            return rule[self], True
        value, blocks, point = self.args
        image, changed = point._xreplace(rule)
        return (At(value, blocks, image), True) if changed else (self, False)

    def _sympystr(self, printer: Any) -> str:
        where = ", ".join(f"{b}={printer._print(x)}" for b, x in self.point.items())
        return f"({printer._print(self.value)} at {where})"


def at(formula: Expr, point: Mapping[Block, Expr]) -> Expr:
    """A formula with blocks replaced by other values, and with U and its derivatives evaluated at this point.

    >>> from recipe import grad, positive, potential, vector
    >>> theta, a = vector("theta"), positive("a")
    >>> at(theta + grad(potential(theta)), {theta: a*theta})
    a*theta + (grad(U) at theta=a*theta)
    """
    outside, of_U = masked(formula, Partial, Potential)
    values = {}
    for dummy, value in of_U.items():
        U = value.U if isinstance(value, Partial) else value
        blocks = [b for b in U.blocks if b in point]
        values[dummy] = At(value, Tuple(*blocks), Tuple(*(point[b] for b in blocks)))
    return outside.xreplace(dict(point)).xreplace(values)


@dataclass(frozen=True)
class Visit:
    """A point of the target, and the names of the values of U and its derivatives at the point."""

    point: dict[Block, Expr]
    values: dict[Expr, Local] = field(default_factory=dict)


def visited(updates: Mapping[Block, Expr], fresh: Callable[[str], str]) -> tuple[list[Visit], dict[Block, Expr]]:
    """The points at which formulas evaluate U, in order of dependence, and the formulas in terms of names.

    `fresh`: function from a stem to an unused name.
    """
    visits: list[Visit] = []

    def name(e: Expr, extract: Extraction) -> Local:
        point = {b: extract(x) for b, x in e.point.items()}
        visit = next((v for v in visits if v.point == point), None)
        if visit is None:
            visit = Visit(point)
            visits.append(visit)
        local = visit.values.get(e.value)
        if local is None:
            local = visit.values[e.value] = Local(fresh("there"), is_site(e.value))
        return local

    extract = Extraction(name, At)
    return visits, {b: extract(e) for b, e in updates.items()}
