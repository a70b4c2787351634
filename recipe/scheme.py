"""Splitting words: the letters of a recipe, their order in a step, and their shares of the step."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sympy import Expr, Rational, S, SympifyError, sympify

from .arguments import check_known
from .declared import Block
from .dynamics import Dynamics
from .errors import RecipeError
from .pieces import Piece, force, friction, lettered, noise, numerical, piece

EULER = "Euler"
LONGEST = 10_000  # longest word with repetitions, in characters

Move = tuple[str, Expr]


@dataclass(frozen=True)
class Scheme:
    """A sequence of (letter, fraction of h), applied left to right; each letter's fractions add up to 1."""

    text: str
    moves: tuple[Move, ...]

    @property
    def letters(self) -> tuple[str, ...]:
        """The letters in the order of their first use."""
        return tuple(dict.fromkeys(letter for letter, _ in self.moves))

    @property
    def is_palindrome(self) -> bool:
        """Whether the sequence reads the same backwards."""
        return self.moves == self.moves[::-1]

    @property
    def mirrored(self) -> str:
        """The letters there and back, a word that reads the same backwards.

        >>> scheme("A B O", "ABO").mirrored
        'A B O B A'
        """
        letters = [letter for letter, _ in self.moves]
        return " ".join([*letters, *letters[-2::-1]])

    def rotated(self, k: int) -> "Scheme":
        """The cyclic rotation that begins at move k."""
        return Scheme(self.text, self.moves[k:] + self.moves[:k])

    def merged(self, letters: Collection[str]) -> "Scheme":
        """The moves with neighbours of one letter joined, for the given letters (flows that are semigroups).

        >>> scheme("A B A", "AB").rotated(2).merged("A").moves
        (('A', 1), ('B', 1))
        """
        moves: list[Move] = []
        for letter, fraction in self.moves:
            if moves and moves[-1][0] == letter and letter in letters:
                fraction += moves.pop()[1]
            moves.append((letter, fraction))
        return Scheme(self.text, tuple(moves))

    def __str__(self):
        return self.text


Word = str | Scheme | Iterable[tuple[str, Expr | float]]


def scheme(word: Word, letters: Collection[str]) -> Scheme:
    """The Scheme of a word such as "B A O A B", "Euler", "Lie(A,B)", "Strang(A,B)" or a list of (letter, fraction).

    `letters`: the known pieces. In a word n occurrences of a letter get 1/n of the step each; spaces are optional
    between single letters; "S (B A B)*8 S" repeats B A B 8 times, for multiple time steps. Raises RecipeError for an
    unknown letter, or fractions that do not add up to 1.

    >>> scheme("BAOAB", "ABO").moves
    (('B', 1/2), ('A', 1/2), ('O', 1), ('A', 1/2), ('B', 1/2))
    >>> scheme("Strang(A, B)", "AB").moves
    (('A', 1/2), ('B', 1), ('A', 1/2))
    >>> scheme("S (A B)*2 S", "ABS").moves
    (('S', 1/2), ('A', 1/2), ('B', 1/2), ('A', 1/2), ('B', 1/2), ('S', 1/2))
    """
    if isinstance(word, Scheme):
        return word
    if isinstance(word, str):
        sequence = _spelled(word, letters)
        if not sequence:
            raise RecipeError("scheme", "the word is empty", do='Write letters such as "B A O A B", or "Euler".')
        shares = tuple((letter, Rational(1, sequence.count(letter))) for letter in sequence)
        read = Scheme(" ".join(word.split()), shares)
    else:
        read = _in_fractions(word)
    check_known(f"scheme {read.text!r}", "no piece is named {!r}", read.letters, letters)
    return read


def once_each(text: str, letters: Iterable[str]) -> Scheme:
    """The word with every letter once, each over the whole step."""
    return Scheme(text, tuple((letter, S.One) for letter in letters))


def _spelled(word: str, letters: Collection[str]) -> list[str]:
    stripped = word.strip()
    if "*" in stripped:
        return _spelled(_repeated(stripped), letters)
    if "(" in stripped:
        return _composed(word)
    if stripped == EULER or stripped in letters:
        return [stripped]
    parts = stripped.split()
    return parts if len(parts) > 1 else re.findall(".'*", stripped)


def _repeated(word: str) -> str:
    """The word with every group (...)*k written k times, innermost first."""
    group = re.compile(r"\(([^()]*)\)\s*\*\s*(\d+)")
    rest = word
    while match := group.search(rest):
        inside = match[1].strip()
        times = int(match[2])
        if not inside or not 1 <= times or times * len(inside) > LONGEST:
            what = f"{match[0]} stands for {times} times {inside!r}"
            raise RecipeError(f"scheme {word!r}", what, do=f"Repeat letters once or more, up to {LONGEST} characters.")
        rest = f"{rest[: match.start()]} {' '.join([inside] * times)} {rest[match.end() :]}"
    if "*" in rest:
        what = "a * stands beside no group, or without a number"
        raise RecipeError(f"scheme {word!r}", what, do='Write "S (B A B)*8 S".')
    return rest


def _composed(word: str) -> list[str]:
    """The letters of Lie(A,B), A B, or of Strang(A,B), A B A."""
    name, _, inside = word.strip().partition("(")
    parts = [part.strip() for part in inside.removesuffix(")").split(",")]
    if name not in ("Lie", "Strang") or not inside.endswith(")") or len(parts) < 2 or not all(parts):
        do = 'Write "Lie(A,B)", "Strang(A,B)", "Euler", or letters such as "B A O A B".'
        raise RecipeError(f"scheme {word!r}", "not a word that can be read", do=do)
    return parts if name == "Lie" else parts + parts[-2::-1]


def _in_fractions(pairs: Iterable) -> Scheme:
    do = 'Write [("A", 0.5), ("B", 1), ("A", 0.5)].'
    try:
        moves = tuple((letter, sympify(fraction, strict=True)) for letter, fraction in pairs)
    except (SympifyError, TypeError, ValueError) as error:
        what = "not a word and not a list of (letter, fraction)"
        raise RecipeError(f"scheme {pairs!r}", what, do=do.replace("Write ", 'Write "B A O A B" or ')) from error
    if not moves:
        raise RecipeError("scheme", "the list of moves is empty", do=do)
    read = Scheme(" ".join(f"{letter}({fraction})" for letter, fraction in moves), moves)
    for letter in read.letters:
        share = sum((fraction for name, fraction in moves if name == letter), S.Zero)
        if not abs(float(share) - 1) < 1e-12:
            what = f"the fractions of {letter!r} add up to {share}, not 1"
            raise RecipeError(f"scheme {read.text}", what, do="Every piece must run for the whole step.")
    return read


def default_letters(recipe: Dynamics) -> dict[str, Piece]:
    """A position drift, B kick, O the rest of the momentum's equation, C thermostats; A' = A with C, F = B with O.

    Where H has a metric, L is A with B by a generalised leapfrog. If blocks of O or of C couple, each block also has a
    letter of its own: O1, O2, C1, C2.
    """
    letters = {EULER: numerical(recipe.state, "euler"), "A": piece(recipe.targets)}
    if recipe.momenta:
        frictions = {p: friction(p) + noise(p) for p in recipe.momenta}
        letters["B"] = piece(tuple(map(force, recipe.momenta)))
        letters["O"] = piece(tuple(frictions.values()))
        letters["F"] = letters["B"] + letters["O"]
        letters |= _each(recipe, "O", frictions)
        if recipe.metrics:
            letters["L"] = numerical((letters["A"], letters["B"]), "generalised leapfrog")
    if recipe.thermostats:
        letters["C"] = piece(recipe.thermostats)
        letters["A'"] = letters["A"] + letters["C"]
        letters |= _each(recipe, "C", {xi: piece(xi) for xi in recipe.thermostats})
    return letters


def _each(recipe: Dynamics, letter: str, pieces: Mapping[Block, Piece]) -> dict[str, Piece]:
    """The pieces of single blocks by numbered letters, if the drift of a block reads another of the blocks."""
    if len(pieces) < 2:
        return {}
    drifts = {b: recipe.drift[recipe.state.index(b)] for b in pieces}
    if not any(e.has(other) for b, e in drifts.items() for other in pieces if other != b):
        return {}
    return {f"{letter}{k}": piece for k, piece in enumerate(pieces.values(), 1)}


def all_letters(recipe: Dynamics, pieces: Mapping[str, object] | None = None) -> dict[str, Piece]:
    """Pieces by letter: the default letters, overridden by the recipe's, overridden by the caller's."""
    return {**default_letters(recipe), **recipe.pieces, **lettered(pieces or {}, f"{recipe.name}, pieces")}
