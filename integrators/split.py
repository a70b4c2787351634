"""Cutting the SDE into pieces: every term of the drift and every noise goes to exactly one letter."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from sympy import Add, Expr, ImmutableMatrix, S

from recipe import Recipe, force, friction, noise
from recipe.errors import RecipeError
from recipe.pieces import Piece, lettered, numerical, piece
from recipe.symbols import Block, Partial, temperature

from .scheme import EULER, Scheme


@dataclass(frozen=True)
class Subsystem:
    """The SDE of one letter: dz_b = drift_b dt + noise of covariance rate 2 (T D - supplied), all else frozen."""

    letter: str
    drift: dict[Block, Expr]
    diffusion: dict[tuple[Block, Block], Expr]
    supplied: dict[tuple[Block, Block], Expr]
    method: str | None = None

    @property
    def moving(self) -> tuple[Block, ...]:
        """The blocks that this piece moves."""
        noisy = [a for a, b in self.diffusion if a == b]
        return tuple(dict.fromkeys([*self.drift, *noisy]))

    def matrix(self, entries: dict[tuple[Block, Block], Expr]) -> ImmutableMatrix:
        """Entries by pairs of blocks as a matrix in the order of `moving`."""
        n = len(self.moving)
        return ImmutableMatrix(n, n, [entries.get((a, b), S.Zero) for a in self.moving for b in self.moving])

    def restricted(self, blocks) -> "Subsystem":
        """The same SDE for some of its blocks."""
        keep = lambda entries: {(a, b): e for (a, b), e in entries.items() if a in blocks and b in blocks}
        return Subsystem(
            self.letter,
            {b: f for b, f in self.drift.items() if b in blocks},
            keep(self.diffusion),
            keep(self.supplied),
            self.method,
        )

    def __str__(self):
        rows = []
        for b in self.moving:
            terms = (
                [f"({self.drift[b]}) dt" if self.drift[b].is_Add else f"{self.drift[b]} dt"] if b in self.drift else []
            )
            terms += [
                f"sqrt({2 * e}) dW_{c}" if b == c else f"[...] dW_{c}" for (a, c), e in self.injected.items() if a == b
            ]
            rows.append(f"d{b} = {' + '.join(terms)}")
        return ", ".join(rows)

    @property
    def injected(self) -> dict[tuple[Block, Block], Expr]:
        """T D - supplied: half the covariance rate of the noise that the step itself draws."""
        return {key: temperature * e - self.supplied.get(key, S.Zero) for key, e in self.diffusion.items()}


def default_letters(recipe: Recipe) -> dict[str, Piece]:
    """A position drift, B kick, O the rest of the momentum's equation, C thermostats; A' = A with C, F = B with O."""
    letters = {EULER: numerical(recipe.state, "euler"), "A": piece(recipe.targets)}
    if recipe.momenta:
        letters["B"] = piece(tuple(map(force, recipe.momenta)))
        letters["O"] = piece(tuple(friction(p) + noise(p) for p in recipe.momenta))
        letters["F"] = letters["B"] + letters["O"]
    if recipe.thermostats:
        letters["C"] = piece(recipe.thermostats)
        letters["A'"] = letters["A"] + letters["C"]
    return letters


def all_letters(recipe: Recipe, pieces: Mapping | None = None) -> dict[str, Piece]:
    """The default letters, overridden by the recipe's own, overridden by the caller's."""
    return {**default_letters(recipe), **recipe.pieces, **lettered(pieces or {}, f"{recipe.name}, pieces")}


def split(recipe: Recipe, scheme: Scheme, letters: Mapping[str, Piece], freeze=()) -> dict[str, Subsystem]:
    """The subsystem of each letter of a scheme that names a piece, the blocks in `freeze` held still.

    Raises RecipeError for a term that no piece or two pieces take, and for a jump that is left out.
    """
    content = _content(recipe, freeze)
    taken: dict[tuple[str, Block], str] = {}
    words = [letter for letter in scheme.letters if letter not in recipe.jumps]
    for letter, jump in recipe.jumps.items():
        if letter not in scheme.letters and jump.block.name not in freeze:
            raise RecipeError(
                f"{recipe.name}, split",
                f"the word {scheme.text!r} leaves out the jump {letter!r}, {jump}",
                do="Add its letter to the word.",
            )
    for letter in words:
        for key in letters[letter].parts:
            if key[1] not in recipe.state:
                raise RecipeError(
                    f"{recipe.name}, split",
                    f"piece {letter!r} names {key[1]}, which is not in the state",
                    do=f"The state is {', '.join(b.name for b in recipe.state)}.",
                )
            if key in taken and content[key] != 0:
                raise RecipeError(
                    f"{recipe.name}, split",
                    f"pieces {taken[key]!r} and {letter!r} both take {_words(key, content[key])}",
                    do="Each term belongs to one piece.",
                )
            taken[key] = letter
    for key, term in content.items():
        if key not in taken and term != 0:
            raise RecipeError(
                f"{recipe.name}, split",
                f"no piece takes {_words(key, term)} in {scheme.text!r}",
                do=f'Add it to a piece, e.g. pieces={{"X": {key[0]}({key[1]})}}, or use another word.',
            )
    return {letter: _subsystem(recipe, letter, letters[letter], content) for letter in words}


def _content(recipe, freeze):
    """(part, block) -> the drift terms, or the noise's D_bb, at the temperature's symbol; 0 for frozen blocks."""
    content, auxiliary = defaultdict(lambda: S.Zero), set(recipe.momenta + recipe.thermostats)
    moving = [(i, block) for i, block in enumerate(recipe.state) if block.name not in freeze]
    for i, block in moving:
        terms = Add.make_args(recipe.tempered_drift[i])
        for term in terms:
            part = "friction" if term.free_symbols & auxiliary else "kick" if term.has(Partial) else "spring"
            content[part, block] += term
        content["noise", block] = recipe.D[i, i]
    return content


def _words(key, term):
    part, block = key
    return f"the noise of {block}" if part == "noise" else f'"{term}" in the drift of {block}'


def _subsystem(recipe, letter, piece, content):
    drift = {}
    for part, block in piece.parts:
        if part != "noise" and content[part, block] != 0:
            drift[block] = drift.get(block, S.Zero) + content[part, block]
    noisy = [b for part, b in piece.parts if part == "noise" and content[part, b] != 0]
    diffusion, supplied = {}, {}
    for i, a in enumerate(recipe.state):
        for j, b in enumerate(recipe.state):
            if a in noisy and recipe.D[i, j] != 0:
                if b not in noisy:
                    raise RecipeError(
                        f"{recipe.name}, split",
                        f"the noises of {a} and {b} are correlated, but piece {letter!r} takes only that of {a}",
                        do="Put both noises into one piece.",
                    )
                diffusion[a, b], supplied[a, b] = recipe.D[i, j], recipe.supplied[i, j]
    return Subsystem(letter, drift, diffusion, supplied, piece.method)
