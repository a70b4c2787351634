"""Gaussian conditionals of auxiliary blocks under exp(-H/T), and the marginal of the target.

A block b in which H is quadratic, H = H_0 + total(c b + a b^2/2), has the conditional law N(-c/a, T/a); the marginal
of the other blocks has the energy H_0 + total(T log(a)/2 - c^2/(2a)).
"""

from dataclasses import dataclass

from sympy import Expr, S, expand_log, log

from .calculus import derivative, expanded, in_lowest_terms
from .declared import Block, temperature
from .operators import Diagonal, coefficient, is_operator, times
from .symbols import total


@dataclass(frozen=True)
class Gaussian:
    """Law N(mean, T/precision), at every site, of an auxiliary block given the blocks eliminated after it."""

    block: Block
    mean: Expr
    precision: Expr


def eliminate_gaussians(
    H: Expr, blocks: tuple[Block, ...], *, signed: bool = False
) -> tuple[tuple[Gaussian, ...], Expr]:
    """The laws of the blocks in which H is quadratic, integrated out one after the other, and the remaining H.

    `signed`: whether to leave out blocks with a precision not known to be positive.

    >>> from recipe import vector, positive, potential
    >>> theta, p, m = vector("theta"), vector("p"), positive("m")
    >>> eliminate_gaussians(potential(theta) + total(p**2/m)/2, (p,))[1]
    -T*log(m)*n/2 + U(theta)
    """
    gaussians: list[Gaussian] = []
    waiting = [b for b in blocks if b.domain.is_real]
    while (law := _first_gaussian(H, waiting, signed)) is not None:
        b, a, c = law
        waiting.remove(b)
        mean = in_lowest_terms(times(1 / a, -c))
        gaussians.append(Gaussian(b, mean, a))
        if is_operator(a):
            rest = temperature * Diagonal(expand_log(log(a))) / 2 + c * mean / 2
        else:
            rest = temperature * log(a) / 2 - c**2 / (2 * a)
        H = expanded(H.xreplace({b: S.Zero}) + (total(rest) if b.is_vector else rest))
    return tuple(gaussians), H


def _first_gaussian(H: Expr, blocks: list[Block], signed: bool) -> tuple[Block, Expr, Expr] | None:
    """(b, a, c) for the first block b in which H is quadratic, dH/db = a b + c, or None."""
    for b in blocks:
        a, c = map(in_lowest_terms, coefficient(derivative(H, b), b) or (S.Zero, S.Zero))
        if a != 0 and (a.is_positive or not signed):
            return b, a, c
    return None
