"""Splitting of the SDE into pieces: every term of the drift and every noise belongs to exactly one letter."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from sympy import Add, Expr, ImmutableMatrix, S

from recipe import Recipe
from recipe.algebra import entries
from recipe.arguments import check_known
from recipe.errors import RecipeError
from recipe.fields import SlopeOfTotal
from recipe.pieces import Piece
from recipe.scheme import Scheme
from recipe.symbols import Block, Partial, temperature

Entries = dict[tuple[Block, Block], Expr]  # entries of a matrix over blocks
Part = tuple[str, Block]  # "kick", "kick by fast", "spring", "friction" or "noise" of the row of a block


@dataclass(frozen=True)
class Subsystem:
    """The SDE of one letter: dz_b = drift_b dt + noise of covariance rate 2 (T D - supplied), all else frozen.

    `turning`: the momenta that change sign when a block is reflected.
    """

    letter: str
    drift: dict[Block, Expr]
    diffusion: Entries
    supplied: Entries
    method: str | None = None
    turning: Mapping[Block, tuple[Block, ...]] = field(default_factory=dict)

    @property
    def moving(self) -> tuple[Block, ...]:
        """The blocks that this piece moves."""
        noisy = [a for a, b in self.diffusion if a == b]
        return tuple(dict.fromkeys([*self.drift, *noisy]))

    def matrix(self, entries: Entries) -> ImmutableMatrix:
        """Entries by pairs of blocks as a matrix in the order of `moving`."""
        n = len(self.moving)
        return ImmutableMatrix(n, n, [entries.get((a, b), S.Zero) for a in self.moving for b in self.moving])

    def restricted(self, blocks: Collection[Block]) -> "Subsystem":
        """The SDE of some of the blocks."""

        def kept(entries: Entries) -> Entries:
            return {(a, b): e for (a, b), e in entries.items() if a in blocks and b in blocks}

        drift = {b: f for b, f in self.drift.items() if b in blocks}
        return Subsystem(self.letter, drift, kept(self.diffusion), kept(self.supplied), self.method, self.turning)

    @property
    def injected(self) -> Entries:
        """T D - supplied: half the covariance rate of the noise drawn by the step."""
        return {key: temperature * e - self.supplied.get(key, S.Zero) for key, e in self.diffusion.items()}

    def __str__(self):
        return ", ".join(f"d{b} = {' + '.join(self._terms(b))}" for b in self.moving)

    def _terms(self, b: Block) -> list[str]:
        terms = []
        if b in self.drift:
            f = self.drift[b]
            terms.append(f"({_text(f)}) dt" if f.is_Add else f"{_text(f)} dt")
        for (a, c), e in self.injected.items():
            if a == b:
                terms.append(f"sqrt({2 * e}) dW_{c}" if b == c else f"[...] dW_{c}")
        return terms


@lru_cache(maxsize=256)
def _text(e: Expr) -> str:
    """The text of an expression, cached: printing many terms is slow, and every word tried prints again."""
    return str(e)


def split(
    recipe: Recipe,
    scheme: Scheme,
    letters: Mapping[str, Piece],
    freeze: Collection[str] = (),
    left_out: Collection[str] = (),
) -> dict[str, Subsystem]:
    """The subsystem of each letter of a scheme, except jumps; blocks named in `freeze` do not move.

    `left_out`: letters of drift that are not in the scheme, because its steps are accepted. Raises RecipeError for a
    term in no piece or in two pieces, for a jump missing in the scheme, and for noise, or a whole row, left out.
    """
    for letter, jump in recipe.jumps.items():
        if letter not in scheme.letters and not any(b.name in freeze for b in jump.blocks):
            what = f"the word {scheme.text!r} leaves out the jump {letter!r}, {jump}"
            do = f"Add its letter to the word, as in scheme='{scheme.text} {letter}'."
            raise RecipeError(f"{recipe.name}, split", what, do=do)
    terms = _terms(recipe, freeze)
    pieces = {x: _parts(recipe, x, letters[x], terms) for x in scheme.letters if x not in recipe.jumps}
    check_known(f"{recipe.name}, accepted", "no piece is named {!r}", left_out, letters)
    omissions = {letter: _parts(recipe, letter, letters[letter], terms) for letter in left_out}
    letter_of = _letters_of_parts(recipe, pieces | omissions, terms)
    _refuse_unmoved(recipe, scheme, letter_of, omissions)
    for (part, block), term in terms.items():
        if (part, block) not in letter_of:
            kick, _, potential = part.partition(" by ")
            written = f'kick("{potential}")' if potential and " and " not in potential else f"{kick}({block})"
            if any(block in g.variables for g in term.atoms(Partial)):  # grad U moves the block that it reads
                written = f'numerical({block}, "exponential")'
            what = f"no piece takes {_in_words(part, block, term)} in {scheme.text!r}"
            do = f'Add it to a piece, e.g. pieces={{"X": {written}}}, or use another word.'
            if any((part, block) in _parts(recipe, x, letters[x], terms) for x in recipe.accepted if x in letters):
                do = "Only samplers.sample makes its steps: with metropolis=True, and a step size of your own."
            raise RecipeError(f"{recipe.name}, split", what, do=do)
    still = [b for b in recipe.state if b.name in freeze]
    return {x: _subsystem(recipe, x, parts, letters[x].method, terms, still) for x, parts in pieces.items()}


def _terms(recipe: Recipe, freeze: Collection[str]) -> dict[Part, Expr]:
    """The nonzero parts of all rows but those of frozen blocks: the drift at temperature T, D_bb for the noise."""
    auxiliary = {*recipe.momenta, *recipe.thermostats}
    summands: defaultdict[Part, list[Expr]] = defaultdict(list)
    for i, block in enumerate(recipe.state):
        if block.name in freeze:
            continue
        for term in Add.make_args(recipe.tempered_drift[i]):
            projected = block.domain.is_sphere and term.has(*recipe.targets)  # a force, though it reads the block
            summands[_part(term, auxiliary - {block} if projected else auxiliary), block].append(term)
        summands["noise", block].append(recipe.D[i, i])
    sums = {part: Add(*terms) for part, terms in summands.items()}
    return {part: e for part, e in sums.items() if e != 0}


def _part(term: Expr, auxiliary: Collection[Block]) -> str:
    """The part of a row that a term of the drift belongs to."""
    if term.free_symbols & auxiliary and not term.has(SlopeOfTotal):
        return "friction"
    names = {p.U.name for p in term.atoms(Partial)}
    return _kick(*names) if names else "spring"


def _kick(*names: str) -> str:
    """The name of the part that reads the gradients of given potentials: "kick by fast", or "kick" for U alone."""
    return f"kick by {' and '.join(sorted(names))}" if any(names) else "kick"


def _parts(recipe: Recipe, letter: str, piece: Piece, terms: Mapping[Part, Expr]) -> list[Part]:
    """The parts of the rows that a piece takes; raises RecipeError for a block or a potential that there is not."""
    names = sorted({U.name for U in recipe.potentials} - {""})
    for _, subject in piece.parts:
        if isinstance(subject, Block) and subject not in recipe.state:
            what = f"piece {letter!r} names {subject}, which is not in the state"
            do = f"The state is {', '.join(b.name for b in recipe.state)}."
            raise RecipeError(f"{recipe.name}, split", what, do=do)
        if not isinstance(subject, Block) and subject not in names:
            what = f'{piece} names "{subject}", and no potential of H has this name'
            raise RecipeError(f"{recipe.name}, split", what, do=f"There are: {', '.join(names) or 'none'}.")
    return list(dict.fromkeys(part for pattern in piece.parts for part in terms if _takes(pattern, part)))


def _takes(pattern: tuple[str, Block | str], part: Part) -> bool:
    """Whether a part of a piece has a part of a row: the kick of a block those by all potentials."""
    kind, subject = pattern
    if isinstance(subject, Block):
        return part[1] == subject and part[0].partition(" by ")[0] == kind
    return part[0] == _kick(subject)


def _letters_of_parts(recipe: Recipe, pieces: Mapping[str, list[Part]], terms: Mapping[Part, Expr]) -> dict[Part, str]:
    """The letter of each part of the SDE; raises RecipeError for a term that two letters take."""
    letter_of: dict[Part, str] = {}
    for letter, parts in pieces.items():
        for part in parts:
            if part in letter_of:
                what = f"pieces {letter_of[part]!r} and {letter!r} both take {_in_words(*part, terms[part])}"
                raise RecipeError(f"{recipe.name}, split", what, do="Each term belongs to one piece.")
            letter_of[part] = letter
    return letter_of


def _refuse_unmoved(recipe: Recipe, scheme: Scheme, letters: dict[Part, str], rest: Mapping[str, list[Part]]) -> None:
    """Refuse to leave out noise, or all that moves a block: chains would keep the law, and not reach it."""
    moving = {block for (_, block), letter in letters.items() if letter not in rest}
    moving |= {b for jump in recipe.jumps.values() for b in jump.blocks}
    for part, block in (x for parts in rest.values() for x in parts):
        if part == "noise" or block not in moving:
            what = "leaves out the noise of" if part == "noise" else "moves nothing of"
            do = "Acceptance makes up for a part of the drift: add a letter."
            raise RecipeError(f"{recipe.name}, split", f"the word {scheme.text!r} {what} {block}", do=do)


def _in_words(part: str, block: Block, term: Expr) -> str:
    return f"the noise of {block}" if part == "noise" else f'"{term}" in the drift of {block}'


def _subsystem(
    recipe: Recipe,
    letter: str,
    parts: list[Part],
    method: str | None,
    terms: Mapping[Part, Expr],
    still: Collection[Block],
) -> Subsystem:
    drift: dict[Block, Expr] = {}
    for part, block in parts:
        if part != "noise":
            drift[block] = drift.get(block, S.Zero) + terms[part, block]
    noisy = [block for part, block in parts if part == "noise"]
    diffusion: Entries = {}
    supplied: Entries = {}
    for i, j in entries(recipe.D):
        a, b = recipe.state[i], recipe.state[j]
        if a not in noisy:
            continue
        if b not in noisy:
            what = f"the noises of {a} and {b} are correlated, but piece {letter!r} takes only that of {a}"
            raise RecipeError(f"{recipe.name}, split", what, do="Put both noises into one piece.")
        diffusion[a, b] = recipe.D[i, j]
        supplied[a, b] = recipe.supplied[i, j]
    turning = {b: momenta for b, momenta in recipe.turned.items() if b in drift and not set(still) & set(momenta)}
    return Subsystem(letter, drift, diffusion, supplied, method, turning)
