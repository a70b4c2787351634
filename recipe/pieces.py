"""Which part of the dynamics a letter of a splitting word takes: data that a recipe may carry.

Every row of the SDE has parts. `force(p)`: the drift terms that read the target alone, `kick(p)` those of them with
grad(U) and `spring(p)` those without; `friction(p)`: the other drift terms; `noise(p)`. A block alone is its whole row.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sympy import Expr

from .errors import RecipeError
from .symbols import Block, formula

PARTS = ("kick", "spring", "friction", "noise")
FORCE = PARTS[:2]
METHODS = ("euler", "heun", "reflected")


@dataclass(frozen=True)
class Piece:
    """Parts of rows that move together, everything else frozen; `method` names a numerical sub-flow.

    >>> from recipe import vector
    >>> p = vector("p")
    >>> print(friction(p) + noise(p))
    friction(p) + noise(p)
    """

    parts: tuple[tuple[str, Block], ...]
    method: str | None = None

    def __add__(self, other):
        other = piece(other)
        methods = {self.method, other.method} - {None}
        if len(methods) > 1:
            raise RecipeError(
                f"piece {self} + {other}",
                "one piece has one numerical method",
                do="Use two letters, or numerical(a + b, method).",
            )
        return Piece(tuple(dict.fromkeys(self.parts + other.parts)), methods.pop() if methods else None)

    __radd__ = __add__

    def __str__(self):
        rows = [f"{part}({block})" for part, block in self.parts]
        for block in dict.fromkeys(b for _, b in self.parts):
            for whole, parts in ((f"force({block})", FORCE), (block.name, ("force", *PARTS[2:]))):
                row = [f"{part}({block})" for part in parts]
                if all(r in rows for r in row):
                    rows = [whole if r == row[0] else r for r in rows if r not in row[1:]]
        text = " + ".join(rows)
        return f"numerical({text}, {self.method!r})" if self.method else text


def piece(spec) -> Piece:
    """The Piece meant by a Piece, a block (its whole row) or a tuple of these."""
    match spec:
        case Piece():
            return spec
        case Block():
            return Piece(tuple((part, spec) for part in PARTS))
        case (first, *rest):
            return sum(map(piece, rest), piece(first))
    raise RecipeError(
        "pieces",
        f"a piece is made of blocks, force, friction and noise, got {spec!r}",
        do='Write for example {"O": friction(p) + noise(p), "C": xi}, or (x, y) for several blocks.',
    )


def lettered(pieces: Mapping, where: str) -> dict[str, Piece]:
    """The pieces by letter; a letter is a word of letters and digits, with primes at its end."""
    if not isinstance(pieces, Mapping):
        raise RecipeError(
            where, f"pieces are a dict by letter, got {pieces!r}", do='Write {"O": friction(p) + noise(p)}.'
        )
    for letter in pieces:
        if not isinstance(letter, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*'*", letter):
            raise RecipeError(where, f"{letter!r} is no name of a piece", do="Use a letter such as O, R or A'.")
    return {letter: piece(spec) for letter, spec in pieces.items()}


def _part(name, doc, parts=()):
    def take(block: Block) -> Piece:
        if not isinstance(block, Block):
            raise RecipeError(f"{name}({block})", "its argument is a block", do=f"Write {name}(p).")
        return Piece(tuple((part, block) for part in parts or (name,)))

    take.__name__ = take.__qualname__ = name
    take.__doc__ = doc
    return take


force = _part("force", "The drift terms of a block that read the target alone: its kick and its spring.", FORCE)
kick = _part("kick", "The drift terms of a block that read the target alone, and grad(U).")
spring = _part(
    "spring", "The drift terms of a block that read the target alone, but not grad(U): a symbolic prior's force."
)
friction = _part("friction", "The drift terms of a block that read an auxiliary block, such as -gamma*p or -xi*p.")
noise = _part("noise", "The Brownian noise of a block.")


def numerical(spec, method: str) -> Piece:
    """A piece solved by a numerical sub-flow: "euler", "reflected" (Euler, then the absolute value), or "heun" (order 2).

    >>> from recipe import vector
    >>> print(numerical(vector("theta"), "heun"))
    numerical(theta, 'heun')
    """
    if method not in METHODS:
        raise RecipeError(f"numerical({spec}, {method!r})", "unknown method", do=f"Use one of {', '.join(METHODS)}.")
    return Piece(piece(spec).parts, method)


def euler(*blocks: Block) -> Piece:
    """The whole rows of the blocks by one explicit Euler-Maruyama step."""
    return numerical(blocks, "euler")


@dataclass(frozen=True)
class Jump:
    """Redraws of a block from its law exp(-H/T) given all else: at a `rate` per unit of time, or at every turn (None)."""

    block: Block
    rate: Expr | None = None

    def __str__(self):
        return f"refresh({self.block}{'' if self.rate is None else f', rate={self.rate}'})"


def refresh(block: Block, rate=None) -> Jump:
    """A jump: momenta refreshed, or a binary block drawn by Gibbs; with a rate nu, in a chain with probability 1 - e^{-nu h}.

    >>> from recipe import vector, positive
    >>> print(refresh(vector("p"), rate=positive("nu")))
    refresh(p, rate=nu)
    """
    if not isinstance(block, Block):
        raise RecipeError(f"refresh({block})", "its argument is a block", do="Write refresh(p).")
    return Jump(block, None if rate is None else formula(rate, f"refresh({block}), rate"))
