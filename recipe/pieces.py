"""Pieces of the dynamics, which the letters of a splitting word stand for.

Every row of the SDE has parts. `force(p)`: the drift terms that read the target alone, `kick(p)` the force terms with
grad(U), `spring(p)` the force terms without; `friction(p)`: the other drift terms; `noise(p)`. A block alone is its
whole row. With several potentials `kick("fast")` is the kick of every row by the potential "fast".
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Expr, S

from .declared import Block, valid_name
from .errors import RecipeError, of_known_arguments
from .formulas import formula
from .laws import Law

PARTS = ("kick", "spring", "friction", "noise")
FORCE = PARTS[:2]
METHODS = (
    "euler",
    "heun",
    "randomised midpoint",
    "stochastic runge-kutta",
    "tamed",
    "reflected",
    "exponential",
    "barker",
    "generalised leapfrog",
)


Part = tuple[str, Block | str]  # a part of a block's row, or "kick" and a potential's name for all rows


@dataclass(frozen=True)
class Piece:
    """Parts of rows that move together, with everything else frozen; `method`: the name of a numerical flow.

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
            what = "one piece has one numerical method"
            raise RecipeError(f"piece {self} + {other}", what, do="Use two letters, or numerical(a + b, method).")
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
    """The terms with `whole` in place of `parts`, if all parts are present."""
    if not all(part in terms for part in parts):
        return terms
    first, *others = parts
    return [whole if term == first else term for term in terms if term not in others]


def piece(spec: Any) -> Piece:
    """The Piece of a Piece, a block (its whole row) or a tuple of both.

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
    do = 'Write for example {"O": friction(p) + noise(p), "C": xi}, or (x, y) for several blocks.'
    raise RecipeError("pieces", f"a piece is made of blocks, force, friction and noise, got {spec!r}", do=do)


def lettered(pieces: Mapping, where: str) -> dict[str, Piece]:
    """The pieces by letter; a letter is a word of letters and digits, with primes at its end.

    Raises RecipeError for invalid letters and pieces.
    """
    if not isinstance(pieces, Mapping):
        advice = 'Write {"O": friction(p) + noise(p)}.'
        raise RecipeError(where, f"pieces are a dict by letter, got {pieces!r}", do=advice)
    for letter in pieces:
        if not isinstance(letter, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*'*", letter):
            raise RecipeError(where, f"{letter!r} is no name of a piece", do="Use a letter such as O, R or A'.")
    return {letter: piece(spec) for letter, spec in pieces.items()}


def letters_of(names: Collection[str], where: str) -> tuple[str, ...]:
    """The letters of a collection, sorted; raises RecipeError for anything else.

    >>> letters_of({"K"}, "accepted")
    ('K',)
    """
    if isinstance(names, str) or not isinstance(names, Collection) or not all(isinstance(x, str) for x in names):
        raise RecipeError(where, f"it is a collection of letters, got {names!r}", do='Write {"K"}.')
    return tuple(sorted(names))


def force(block: Block) -> Piece:
    """The drift terms of a block that read the target alone: its kick and its spring.

    Raises RecipeError if the argument is not a block.
    """
    return _piece_of("force", block, FORCE)


def kick(block: Block | str) -> Piece:
    """The drift terms of a block that read grad(U) and the target alone; by a name, the terms of that potential.

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
    """The given parts of a block's row, by default the part `name`."""
    if not isinstance(block, Block):
        raise RecipeError(f"{name}({block})", "its argument is a block", do=f"Write {name}(p).")
    return Piece(tuple((part, block) for part in parts or (name,)))


def numerical(spec: Any, method: str) -> Piece:
    """A piece solved by a numerical flow.

    `spec`: a piece, a block or a tuple of both; `method`: "euler" (Euler-Maruyama), "tamed" (Euler, with a drift that
    moves no coordinate by more than 1), "reflected" (Euler, then the absolute value), "exponential" (one block, exact
    for a linear drift, with the rate frozen at its initial value), "barker" (one block, noise whose sign the drift
    tilts), "generalised leapfrog" (a position and a momentum of any H, implicit), or a method of weak order 2 for noise
    independent of the moving blocks: "heun" (two gradients, if the piece has the force), "randomised midpoint" (two)
    and "stochastic runge-kutta" (three). Raises RecipeError for another method.

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
    """Redraws of a block, or of several together, from the conditional law under exp(-H/T).

    `rate`: per unit of time, None for a redraw in every step. `law`: the declared law under exp(-H) of one block.
    `persistence`: the share c of its distance from the mean that a normal block keeps. `proposed`: a law that may read
    the block, of which draws are accepted or rejected.
    """

    blocks: tuple[Block, ...]
    rate: Expr | None = None
    law: Law | None = None
    persistence: Expr = S.Zero
    proposed: Law | None = None

    @property
    def redrawn(self) -> tuple[Block, ...]:
        """The blocks that the jump redraws."""
        return self.blocks

    @property
    def formulas(self) -> tuple[Expr, ...]:
        """The formulas of the rate, the laws and the persistence."""
        of_laws = (e for law in (self.law, self.proposed) if law for e in law.arguments)
        return (*(() if self.rate is None else (self.rate,)), *of_laws, self.persistence)

    def replaced(self, of: Callable[[Expr], Expr]) -> "Jump":
        """The jump with a function applied to its formulas."""
        law, proposed = (law and type(law)(*map(of, law.arguments)) for law in (self.law, self.proposed))
        return Jump(self.blocks, None if self.rate is None else of(self.rate), law, of(self.persistence), proposed)

    def __str__(self) -> str:
        names = ", ".join(map(str, self.blocks))
        arguments = [names if len(self.blocks) == 1 else f"({names})"]
        arguments += [str(law) for law in (self.law, self.proposed) if law]
        if self.rate is not None:
            arguments.append(f"rate={self.rate}")
        if self.persistence != 0:
            arguments.append(f"persistence={self.persistence}")
        return f"{'gibbs' if self.law else 'propose' if self.proposed else 'refresh'}({', '.join(arguments)})"


@of_known_arguments("refresh", "It takes a block, a rate, and a persistence to refresh it in part.")
def refresh(block: Block | tuple[Block, ...], rate: Expr | float | None = None, persistence: Expr | float = 0) -> Jump:
    """A jump: a block drawn from its conditional law, read off H: normal if H is quadratic, Bernoulli if binary.

    Of a tuple of blocks, in which H is quadratic, all are drawn together from their joint normal law. With a `rate` nu
    per unit of time, a chain jumps with the probability 1 - e^{-nu h} in a step, else in every step. With a
    `persistence` c from 0 to 1 a block of the law N(m, v) keeps a part: p <- m + c (p - m) + sqrt((1 - c^2) v) N.
    Raises RecipeError if the argument is neither a block nor a tuple of different blocks.
    Source: Horowitz (1991), "A generalized guided Monte Carlo algorithm".

    >>> from recipe import vector, positive
    >>> print(refresh(vector("p"), rate=positive("nu")))
    refresh(p, rate=nu)
    """
    blocks = block if isinstance(block, tuple) else (block,)
    if not blocks or not all(isinstance(b, Block) for b in blocks) or len({*blocks}) < len(blocks):
        do = "Write refresh(p), or refresh((p, q)) of different blocks."
        raise RecipeError(f"refresh({block})", "its argument is a block, or a tuple of blocks", do=do)
    blocks = tuple(sorted(blocks, key=lambda b: not b.is_vector))  # vectors are integrated out first: scalars sum them
    kept = formula(persistence, f"refresh({block}), persistence")
    return Jump(blocks, None if rate is None else formula(rate, f"refresh({block}), rate"), persistence=kept)


@of_known_arguments("gibbs")
def gibbs(block: Block, law: Law, rate: Expr | float | None = None) -> Jump:
    """A jump: a block drawn from a law; the recipe proves that the law is the conditional of exp(-H).

    `law`: `laws.Normal`, `Gamma`, `InverseGamma`, `Beta`, `Bernoulli` or `Categorical`, of formulas of the other
    blocks; at temperature T draws are from the density to the power 1/T. `rate`: as in `refresh`. Raises RecipeError if
    the arguments are not a block and a law; the Recipe raises for a law that is not the conditional.

    >>> from recipe import laws, scalar, total, vector
    >>> theta, tau = vector("theta"), scalar("tau", domain="positive")
    >>> print(gibbs(tau, laws.Gamma(1 + total(1)/2, 1 + total(theta**2)/2)))
    gibbs(tau, Gamma(n/2 + 1, total(theta**2)/2 + 1))
    """
    if not isinstance(block, Block) or not isinstance(law, Law):
        what = f"it is of a block and a law, got {law!r}"
        raise RecipeError(f"gibbs({block})", what, do="Write gibbs(tau, laws.Gamma(shape, rate)).")
    return Jump((block,), None if rate is None else formula(rate, f"gibbs({block}), rate"), law)


@of_known_arguments("propose")
def propose(block: Block, law: Law) -> Jump:
    """A jump to a value drawn from a law that may read the block itself, accepted or rejected: Metropolis-Hastings.

    A step from z to z' is accepted with the probability min(1, exp(-W/T)), where W has H(z') - H(z) and
    T log q(z -> z') - T log q(z' -> z), with q the density of the law, a product over the sites, which may read grad(U)
    and all sites of z. `law`: as in `gibbs`, at the temperature of the run as it stands, with `step_size` and
    `temperature` as symbols. Steps of such a recipe are accepted or rejected, and none is made otherwise. Raises
    RecipeError if the arguments are not a block and a law; the Recipe raises for a law with the wrong support.

    Source: Hastings (1970), "Monte Carlo sampling methods using Markov chains and their applications".

    >>> from recipe import laws, vector
    >>> theta = vector("theta")
    >>> print(propose(theta, laws.Normal(theta, 4)))
    propose(theta, N(theta, 4))
    """
    if not isinstance(block, Block) or not isinstance(law, Law):
        what = f"it is of a block and a law, got {law!r}"
        raise RecipeError(f"propose({block})", what, do="Write propose(theta, laws.Normal(theta, 1)).")
    return Jump((block,), proposed=law)
