"""Which part of the dynamics a letter of a splitting word takes: data that a recipe may carry.

Every row of the SDE has parts. `force(p)`: the drift terms that read the target alone, `kick(p)` those of them with
grad(U) and `spring(p)` those without; `friction(p)`: the other drift terms; `noise(p)`. A block alone is its whole row.
Of several potentials `kick("fast")` is the kick of every row by the one of this name.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Expr

from .errors import RecipeError
from .laws import Law
from .symbols import Block, formula, valid_name

PARTS = ("kick", "spring", "friction", "noise")
FORCE = PARTS[:2]
METHODS = ("euler", "heun", "randomised midpoint", "stochastic runge-kutta", "reflected", "exponential")


Part = tuple[str, Block | str]  # a part of the row of a block; of a kick also the name of a potential, of every row


@dataclass(frozen=True)
class Piece:
    """Parts of rows that move together, everything else frozen; `method` names a numerical sub-flow.

    >>> from recipe import vector
    >>> p = vector("p")
    >>> print(friction(p) + noise(p))
    friction(p) + noise(p)
    """

    parts: tuple[Part, ...]
    method: str | None = None

    def __add__(self, other: Any) -> "Piece":
        other = piece(other)
        if self.method and other.method and self.method != other.method:
            raise RecipeError(
                f"piece {self} + {other}",
                "one piece has one numerical method",
                do="Use two letters, or numerical(a + b, method).",
            )
        return Piece(tuple(dict.fromkeys(self.parts + other.parts)), self.method or other.method)

    __radd__ = __add__

    def __str__(self) -> str:
        terms = [f"{part}({block})" if isinstance(block, Block) else f'{part}("{block}")' for part, block in self.parts]
        for block in dict.fromkeys(b for _, b in self.parts if isinstance(b, Block)):
            terms = _joined(terms, [f"{part}({block})" for part in FORCE], f"force({block})")
            terms = _joined(terms, [f"{part}({block})" for part in ("force", "friction", "noise")], block.name)
        text = " + ".join(terms)
        return f"numerical({text}, {self.method!r})" if self.method else text


def _joined(terms: list[str], parts: list[str], whole: str) -> list[str]:
    """The terms with the whole in place of its parts, where these are all there."""
    if not all(part in terms for part in parts):
        return terms
    first, *others = parts
    return [whole if term == first else term for term in terms if term not in others]


def piece(spec: Any) -> Piece:
    """The Piece meant by a Piece, a block (its whole row) or a tuple of these.

    Raises RecipeError for anything else.

    >>> from recipe import vector
    >>> print(piece((vector("x"), vector("y"))))
    x + y
    """
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
    """The pieces by letter; a letter is a word of letters and digits, with primes at its end.

    Raises RecipeError for other letters, and for pieces that are none.
    """
    if not isinstance(pieces, Mapping):
        advice = 'Write {"O": friction(p) + noise(p)}.'
        raise RecipeError(where, f"pieces are a dict by letter, got {pieces!r}", do=advice)
    for letter in pieces:
        if not isinstance(letter, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*'*", letter):
            raise RecipeError(where, f"{letter!r} is no name of a piece", do="Use a letter such as O, R or A'.")
    return {letter: piece(spec) for letter, spec in pieces.items()}


def force(block: Block) -> Piece:
    """The drift terms of a block that read the target alone: its kick and its spring.

    Raises RecipeError, as its likes do, where the argument is no block.
    """
    return _piece_of("force", block, FORCE)


def kick(block: Block | str) -> Piece:
    """The drift terms of a block that read the target alone, and grad(U); or by a name all that read that potential's.

    >>> print(kick("fast"))
    kick("fast")
    """
    if isinstance(block, str):
        return Piece((("kick", valid_name(block, "potential")),))
    return _piece_of("kick", block)


def spring(block: Block) -> Piece:
    """The drift terms of a block that read the target alone, but not grad(U): a symbolic prior's force."""
    return _piece_of("spring", block)


def friction(block: Block) -> Piece:
    """The drift terms of a block that read an auxiliary block, such as -gamma*p or -xi*p."""
    return _piece_of("friction", block)


def noise(block: Block) -> Piece:
    """The Brownian noise of a block."""
    return _piece_of("noise", block)


def _piece_of(name: str, block: Block, parts: tuple[str, ...] = ()) -> Piece:
    """The parts of a row, by default the one of this name."""
    if not isinstance(block, Block):
        raise RecipeError(f"{name}({block})", "its argument is a block", do=f"Write {name}(p).")
    return Piece(tuple((part, block) for part in parts or (name,)))


def numerical(spec: Any, method: str) -> Piece:
    """A piece solved by a numerical sub-flow.

    `spec` is a piece, a block or a tuple of these; `method` is "euler" (Euler-Maruyama), "reflected" (Euler, then the
    absolute value), "exponential" (exact for a linear drift, of one block, whose rate stands still at its first value),
    or one of weak order 2 for noise that does not depend on what moves: "heun" (two gradients where the force is in
    it), "randomised midpoint" (two) and "stochastic runge-kutta" (three). Raises RecipeError for another one.

    >>> from recipe import vector
    >>> print(numerical(vector("theta"), "heun"))
    numerical(theta, 'heun')
    """
    if method not in METHODS:
        raise RecipeError(f"numerical({spec}, {method!r})", "unknown method", do=f"Use one of {', '.join(METHODS)}.")
    return Piece(piece(spec).parts, method)


def euler(*blocks: Block) -> Piece:
    """The whole rows of the blocks by one explicit Euler-Maruyama step.

    >>> from recipe import vector
    >>> print(euler(vector("p")))
    numerical(p, 'euler')
    """
    return numerical(blocks, "euler")


@dataclass(frozen=True)
class Jump:
    """Redraws of a block from its law exp(-H/T) given all else.

    `rate` is per unit of time, None stands for a redraw in every step. `law`: that of exp(-H), where it is given.
    """

    block: Block
    rate: Expr | None = None
    law: Law | None = None

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Those that it moves."""
        return (self.block,)

    @property
    def redrawn(self) -> tuple[Block, ...]:
        """Those that are drawn anew."""
        return (self.block,)

    @property
    def formulas(self) -> tuple[Expr, ...]:
        """Those of its rate and its law."""
        return (*(() if self.rate is None else (self.rate,)), *(self.law.arguments if self.law else ()))

    def __str__(self) -> str:
        arguments = [str(self.block)] if self.law is None else [str(self.block), str(self.law)]
        if self.rate is not None:
            arguments.append(f"rate={self.rate}")
        return f"{'gibbs' if self.law else 'refresh'}({', '.join(arguments)})"


def refresh(block: Block, rate: Expr | float | None = None) -> Jump:
    """A jump: a block drawn from its law given all else, read off H: normal where H is quadratic, Bernoulli if binary.

    With a `rate` nu per unit of time, a chain jumps with the probability 1 - e^{-nu h} in a step, else in every step.
    Raises RecipeError where its argument is no block.

    >>> from recipe import vector, positive
    >>> print(refresh(vector("p"), rate=positive("nu")))
    refresh(p, rate=nu)
    """
    if not isinstance(block, Block):
        raise RecipeError(f"refresh({block})", "its argument is a block", do="Write refresh(p).")
    return Jump(block, None if rate is None else formula(rate, f"refresh({block}), rate"))


def gibbs(block: Block, law: Law, rate: Expr | float | None = None) -> Jump:
    """A jump: a block drawn from a law, which the recipe proves to be that of exp(-H) given all else.

    `law`: `laws.Normal`, `Gamma`, `InverseGamma`, `Beta`, `Bernoulli` or `Categorical`, of formulas of the other
    blocks; at a temperature its density to the power 1/T is drawn from. `rate` as of `refresh`. Raises RecipeError for
    what is no block or no law, and the recipe for a law that is another one.

    >>> from recipe import laws, scalar, total, vector
    >>> theta, tau = vector("theta"), scalar("tau", domain="positive")
    >>> print(gibbs(tau, laws.Gamma(1 + total(1)/2, 1 + total(theta**2)/2)))
    gibbs(tau, Gamma(n/2 + 1, total(theta**2)/2 + 1))
    """
    if not isinstance(block, Block) or not isinstance(law, Law):
        what = f"it is of a block and a law, got {law!r}"
        raise RecipeError(f"gibbs({block})", what, do="Write gibbs(tau, laws.Gamma(shape, rate)).")
    return Jump(block, None if rate is None else formula(rate, f"gibbs({block}), rate"), law)
