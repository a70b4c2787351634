"""compile(recipe, scheme) -> Step: split the SDE by the letters of a word, solve each piece, lower to a Program."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from sympy import Dummy

from recipe import Energy, Recipe
from recipe.arguments import check_known
from recipe.declaration import check_recipe
from recipe.errors import RecipeError
from recipe.pieces import Piece
from recipe.refusal import refuse_other_period
from recipe.representative import representative
from recipe.scheme import EULER, Scheme, Word, all_letters
from recipe.scheme import scheme as read_scheme
from recipe.symbols import Block, Partial, Potential, masked

from .flow import Flow, solve
from .jump import solve_jump
from .lower import lower
from .program import Program
from .split import split
from .step import Step

BACKENDS = ("auto", "torch", "cpp", "triton")
SCOPES = ("chain", "tensor")


def compile(
    recipe: Recipe,
    scheme: Word | None = None,
    *,
    pieces: Mapping[Any, Any] | None = None,
    energy: Energy | None = None,
    backend: str = "auto",
    dtype: object = None,
    reuse_gradient: bool = True,
    scope: str = "chain",
    freeze: Block | str | Iterable[Block | str] = (),
) -> Step:
    """Cut a recipe into pieces, solve each over h, and compose them by a splitting word.

    `scheme`: a word such as "B A O A B", "Euler", "Lie(A,B)", "Strang(A,B)", a list of (letter, fraction), or the name
    of one of the recipe's `schemes`; None takes the recipe's own word. `pieces`: letters of the caller's own, see
    `recipe.pieces`. `energy`: a symbolic Energy whose gradient is emitted with the step. `backend`: "torch", which is
    "auto", or kernels compiled at the first call: "cpp" on the CPU, "triton" on a GPU. `dtype`: the only one of a
    state, if given. With `reuse_gradient` a gradient serves until the target moves, across steps too. `scope`:
    "chain", or "tensor", where totals and scalar blocks are per tensor of the target. `freeze`: blocks and adapted
    quantities, or their names, that stay as they are.

    Raises RecipeError for a word that does not fit the recipe, or a piece without a closed form.
    Source: Leimkuhler and Matthews (2013), "Rational construction of stochastic numerical methods for molecular
    sampling".

    >>> from samplers import UnderdampedLangevin
    >>> compile(UnderdampedLangevin, "B A O A B").order
    2
    """
    check_choices(recipe, backend, scope)
    if scope == "tensor":
        _check_tensors(recipe, energy)
    frozen = block_names(freeze, recipe)
    letters = all_letters(recipe, pieces)
    word = word_of(recipe, scheme, letters)
    if energy is not None:
        recipe = with_energy(recipe, energy)
    U = energy if recipe.potential else None
    flows, program = _lowered(representative(recipe), word, tuple(letters.items()), frozen, reuse_gradient, U, scope)
    backend = "torch" if backend == "auto" else backend
    return Step(recipe, word, dict(flows), program, dtype, backend, frozen, dict(pieces or {}))


@lru_cache(maxsize=128)
def _lowered(
    recipe: Recipe,
    word: Scheme,
    letters: tuple[tuple[str, Piece], ...],
    frozen: tuple[str, ...],
    reuse_gradient: bool,
    energy: Energy | None,
    scope: str,
) -> tuple[dict[str, Flow], Program]:
    """The flows of a word and their program, remembered, since runs and checks compile the same recipe."""
    flows = solve_all(recipe, word, dict(letters), frozen)
    _check_directions(recipe, word, flows)
    adapt = recipe.updates_except(frozen)
    program = lower(
        recipe, word, flows, reuse_gradient=reuse_gradient, energy=energy, adapt=adapt, scope=scope, value=True
    )
    return flows, program


def default_words(recipe: Recipe, letters: Mapping[str, Piece]) -> Iterator[str]:
    """B A O A B (with thermostats B A' O A' B) if solvable, then letters of single blocks, then Euler."""
    if recipe.metrics and recipe.momenta:
        yield "O L O" if recipe.D.is_zero_matrix is False else "L"
        return
    if not recipe.momenta or recipe.jumps or recipe.fields:
        yield EULER
        return
    frictions, thermostats = _letters_of_blocks("O", letters), _letters_of_blocks("C", letters)
    first = "B A' O A' B" if recipe.thermostats else "B A O A B"
    by_block = ["B", "A", *thermostats, *frictions, *frictions[-2::-1], *thermostats[::-1], "A", "B"]
    yield from (word for word in (first, " ".join(by_block)) if _is_solvable(recipe, word, letters))
    yield EULER


def _letters_of_blocks(letter: str, letters: Mapping[str, Piece]) -> list[str]:
    """The letters of single blocks, such as C1 and C2, or else the letter itself if the recipe has it."""
    return [x for x in letters if re.fullmatch(rf"{letter}\d+", x)] or [x for x in letters if x == letter]


def _is_solvable(recipe: Recipe, word: str, letters: Mapping[str, Piece]) -> bool:
    try:
        solve_all(recipe, read_scheme(word, letters), letters)
    except RecipeError:
        return False
    return True


def solve_all(
    recipe: Recipe, word: Scheme, letters: Mapping[str, Piece], frozen: Collection[str] = ()
) -> dict[str, Flow]:
    """The flow of every letter of a word, and of every jump; `frozen` blocks do not move."""
    flows = {letter: solve(piece, recipe.name) for letter, piece in split(recipe, word, letters, frozen).items()}
    for letter, jump in recipe.jumps.items():
        if jump in recipe.proposals and letter in word.letters:
            what = f"{jump} is a proposal, which leaves no law without its acceptance"
            raise RecipeError(f"{recipe.name}, compile", what, do="Use integrators.metropolised, or metropolis=True.")
        flows[letter] = solve_jump(recipe, letter, jump, frozen)
    return flows


def word_of(recipe: Recipe, scheme: Word | None, letters: Mapping[str, Piece]) -> Scheme:
    """The word as a Scheme: the recipe's default for None, or the recipe's scheme of that name."""
    if scheme is None:
        scheme = recipe.scheme or next(default_words(recipe, letters))
    elif isinstance(scheme, str):
        scheme = recipe.schemes.get(scheme, scheme)
    return read_scheme(scheme, [*letters, *recipe.jumps])


def block_names(freeze: Block | str | Iterable[Block | str], recipe: Recipe) -> tuple[str, ...]:
    """The names of blocks given as blocks or as names; raises RecipeError for names unknown to the recipe."""
    blocks = (freeze,) if isinstance(freeze, (str, Block)) else freeze
    names = tuple(map(str, blocks))
    check_known(f"{recipe.name}, freeze", "there is no block '{}'", names, [b.name for b in recipe.entries])
    return names


def check_symbolic(recipe: Recipe, energy: object) -> None:
    """Refuse objects other than symbolic energies, energies that the recipe has no use for, and other periods."""
    where = f"{recipe.name}, energy"
    if not isinstance(energy, Energy):
        what = f"compile takes a symbolic Energy, got {type(energy).__name__}"
        do = "Hand a torch function to samplers.sample, or its gradient to the step."
        raise RecipeError(where, what, do=do)
    if recipe.potential is None:
        raise RecipeError(where, "the recipe's H is wholly symbolic: it needs no energy", do="Drop energy=.")
    if recipe.has_several_potentials:
        what = f"H has the energies {', '.join(map(str, recipe.potentials))}, and this is one"
        raise RecipeError(where, what, do="Give it to samplers.sample, or bind it: recipe.bind(U=...).")
    if len(recipe.targets) > 1 and recipe.targets[0].is_vector:
        what = f"the target has {', '.join(map(str, recipe.targets))}, of which {recipe.targets[0]} is a vector"
        raise RecipeError(where, what, do="Bind it: recipe.bind(U=...), or pass a torch function.")
    domains = [b.domain for b in recipe.targets]
    if recipe.target_is_vector:
        domains = domains * len(energy.coordinates)
    for coordinate, domain in zip(energy.coordinates, domains):
        if domain.wraps:
            refuse_other_period(where, energy.U, coordinate, domain)


def with_energy(recipe: Recipe, energy: Energy) -> Recipe:
    """The recipe with U bound to the energy, if the pieces need more of U than a gradient function gives."""
    check_symbolic(recipe, energy)
    return _with_energy(recipe, energy)


@lru_cache(maxsize=128)
def _with_energy(recipe: Recipe, energy: Energy) -> Recipe:
    if recipe.target_is_vector and not energy.is_sitewise:
        return recipe
    values = energy.on(recipe.targets)
    mixes = any(len(set(p.variables)) > 1 for f in recipe.drift for p in f.atoms(Partial))
    reads_U = any(masked(f, Partial)[0].has(Potential) for f in recipe.drift)
    return recipe.bind(U=values) if mixes or reads_U else recipe


# ---- checks of compile's arguments


def check_choices(recipe: Recipe, backend: str, scope: str = "chain") -> None:
    """Refuse objects other than recipes, and unknown names of backends and scopes."""
    check_recipe("compile", recipe)
    check_known(f"{recipe.name}, backend {backend!r}", "no such backend", [backend], BACKENDS)
    check_known(f"{recipe.name}, scope {scope!r}", "no such scope", [scope], SCOPES)


def _check_tensors(recipe: Recipe, energy: Energy | None) -> None:
    """Refuse recipes without a form per tensor: one-tensor targets, operators with scalar blocks, a scalar times U.

    With one value per tensor of a scalar that multiplies U, the force would not be a gradient.
    """
    where = f"{recipe.name}, scope 'tensor'"
    if energy is not None or not recipe.target_is_vector:
        raise RecipeError(where, "the target is one tensor", do="Use scope='chain'.")
    if recipe.operators and not all(b.is_vector for b in recipe.state):
        what = "an operator is one for all tensors, and scalar blocks would be one for each"
        raise RecipeError(where, what, do="Use scope='chain'.")
    if recipe.potential is None:
        return
    U = Dummy()
    scale = recipe.H.xreplace({recipe.potential: U}).diff(U)
    shared = sorted((s for s in scale.free_symbols if isinstance(s, Block) and not s.is_vector), key=str)
    if shared:
        what = f"H has U times {scale}, and there would be one {shared[0]} for every tensor, but U is one for all"
        raise RecipeError(where, what, do="Use scope='chain'.")


def _check_directions(recipe: Recipe, word: Scheme, flows: Mapping[str, Flow]) -> None:
    for letter, fraction in word.moves:
        if fraction < 0 and flows[letter].draws:
            what = f"piece {letter!r} has noise and cannot run backwards, for {fraction} of the step"
            raise RecipeError(f"{recipe.name}, scheme {word}", what, do="Give pieces with noise positive fractions.")
