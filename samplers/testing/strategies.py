"""Hypothesis strategies for recipes, words, energies and states. Only this module needs Hypothesis."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from sympy import ImmutableMatrix, Integer, Rational, S, cos, diff, exp, sin, sqrt, tanh
from sympy.utilities.iterables import connected_components

import integrators
from integrators.flow import solve
from integrators.split import split
from integrators.step import Step
from recipe import (
    Energy,
    Recipe,
    RecipeError,
    adapted,
    force,
    fraction,
    friction,
    grad,
    noise,
    numerical,
    positive,
    potential,
    real,
    refresh,
    scalar,
    total,
    vector,
)
from recipe.algebra import entries
from recipe.arguments import as_tuple, check_known
from recipe.declaration import check_recipe
from recipe.marginal import eliminate_gaussians
from recipe.pieces import METHODS, lettered, piece
from recipe.scheme import EULER, Scheme
from recipe.symbols import Block

from .random_calls import Arguments, inputs

KINDS = ("sites", "explicit", "linear", "thermostatted")
ENERGY_KINDS = ("gaussian", "quartic", "coupled")

theta, p, r, zeta = vector("theta"), vector("p"), vector("r"), vector("zeta")
xi, eta = scalar("xi"), scalar("eta")
COORDINATES = tuple(map(scalar, ("x", "y", "z", "w")))
n = total(1)


# ---- formulas


numbers = st.sampled_from([Rational(k, 4) for k in (-6, -3, -1, 1, 2, 5)])
sizes = st.sampled_from([0.55, 0.8, 1.3, 1.7])


def _formulas(atoms):
    """Small polynomials and bounded functions f(u + k v) of some atoms."""
    arguments = st.sampled_from(list(atoms))
    shapes = st.sampled_from([lambda u: u, sin, tanh, lambda u: exp(-(u**2)), lambda u: u**2])
    return st.builds(lambda f, u, k, v: f(u + k * v), shapes, arguments, numbers, arguments)


def _gram(size, entries, diagonal=(1, Rational(3, 2), Rational(3, 4), 2)):
    """Matrices D, (size, size): L L^T or L^T L with L lower triangular, its diagonal away from 0; 1 + f^2 of size 1."""
    if size == 1:
        return entries.map(lambda f: ImmutableMatrix([[1 + f**2]]))
    count = size * (size - 1) // 2
    below = st.lists(st.just(S.Zero) | entries if size > 2 else entries, min_size=count, max_size=count)
    lower = st.builds(lambda rest, on: _triangular(size, rest, on), below, st.permutations(diagonal))
    return st.builds(lambda L, upper: L.T * L if upper else L * L.T, lower, st.booleans())


def _triangular(size, rest, on):
    """The lower triangular matrix of entries `rest` below the diagonal, row by row, and `on` the diagonal."""

    def entry(i, j):
        if i == j:
            return on[i]
        return rest[i * (i - 1) // 2 + j] if j < i else 0

    return ImmutableMatrix(size, size, entry)


def _curl(draw, pairs, entries):
    """Entries of Q above the diagonal, by pair of blocks; 0 is left out."""
    return {pair: e for pair in pairs if (e := draw(entries)) != 0}


# ---- energies


def energies(
    coordinates: Block | Sequence[Block] = theta, kinds: str | Sequence[str] = ENERGY_KINDS
) -> st.SearchStrategy[Energy]:
    """Normalisable energies U = sum_i [k_i x_i^2/2 + q_i x_i^4/4 + b_i x_i] + g(sum_i x_i/n).

    `coordinates`: a vector block, whose sites are exchangeable, or a recipe's `targets`.

    >>> from hypothesis import Phase, find, settings
    >>> unshrunk = settings(phases=[Phase.generate], derandomize=True)
    >>> find(energies(kinds=["gaussian"]), lambda energy: True, settings=unshrunk).curvature[0].is_positive
    True
    """
    blocks = as_tuple(coordinates)
    if not blocks or not all(isinstance(x, Block) for x in blocks):
        raise RecipeError("energies", f"coordinates are blocks, got {coordinates!r}", do="Pass a recipe's targets.")
    kinds = (kinds,) if isinstance(kinds, str) else tuple(kinds)
    check_known("energies, kinds", "there is no kind {!r}", kinds, ENERGY_KINDS)
    over, size = (total, n) if blocks[0].is_vector else (lambda e: e, Integer(len(blocks)))
    positives = st.sampled_from([Rational(1, 2), S.One, Rational(7, 4)])

    @st.composite
    def energy(draw):
        kind = draw(st.sampled_from(kinds))
        U = S.Zero
        for x in blocks:
            U += over(draw(positives) * x**2 / 2 + draw(numbers) * x / 2)
            if kind == "quartic":
                U += over(draw(positives) * x**4 / 4)
        if kind == "coupled":
            mean = sum(map(over, blocks)) / size
            U += draw(positives) * draw(st.sampled_from([size * mean**2 / 2, cos(mean)]))
        return Energy(blocks, U=U)

    return energy()


# ---- recipes


def recipes(*kinds: str, noise: bool = True, adapt: bool = False, jumps: bool = False) -> st.SearchStrategy[Recipe]:
    """Valid recipes (H, D, Q) of 1 to 4 blocks: H = U + auxiliary energies, D = L L^T, Q skew.

    `kinds`: "sites", vectors with shared scalars and any entries; "explicit", scalar coordinates; "linear", constant
    D and Q under quadratic energies; "thermostatted", Langevin dynamics of Nose-Hoover thermostats; the last two have
    closed forms. Without `noise` D is 0; `adapt` and `jumps` add an adapted quantity and a refreshed block where
    possible.

    >>> from hypothesis import Phase, find, settings
    >>> unshrunk = settings(phases=[Phase.generate], derandomize=True)
    >>> find(recipes("explicit"), lambda R: len(R.state) == 2, settings=unshrunk).residual()
    0
    """
    check_known("recipes, kinds", "there is no kind {!r}", kinds, KINDS)
    return _recipes(kinds or KINDS, noise, adapt, jumps)


@st.composite
def _recipes(draw, kinds, noise, adapt, jumps):
    kind = draw(st.sampled_from(kinds))
    a, b = positive("a", default=draw(sizes)), real("b", default=draw(sizes) - 1)
    m = positive("m", default=draw(sizes), per=None if kind == "explicit" else theta)
    target = COORDINATES[0] if kind == "explicit" else theta
    V, term = _adapted(target)
    build = {"sites": _of_sites, "explicit": _explicit, "linear": _linear, "thermostatted": _thermostatted}[kind]
    state, H, D, Q, targets = build(draw, a, b, m, (V,) if adapt else ())
    changes: dict[str, Any] = {}
    if adapt:
        beta = fraction("beta", default=0.9)
        changes |= {"adapt": {V: beta * V + (1 - beta) * term}, "order": draw(st.sampled_from(["lagged", "same_step"]))}
    if jumps and (gaussian := [x for x in state if x not in targets and eliminate_gaussians(H, (x,))[0]]):
        rate = draw(st.sampled_from([None, positive("rate", default=draw(sizes))]))
        changes |= {"jumps": {"J": refresh(draw(st.sampled_from(gaussian)), rate=rate)}}
    return Recipe(
        name=kind,
        state=state,
        target=targets if len(targets) > 1 else targets[0],
        H=H,
        Q=Q,
        D=D if noise else {},
        **changes,
    )


def _adapted(target):
    """An adapted quantity like a target, and the formula that it averages."""
    if not target.is_vector:
        return adapted("V", domain="nonnegative", start=1), exp(-(target**2))
    term = grad(potential(target)) ** 2
    return adapted("V", like=target, domain="nonnegative", start=term), term


def _confining(draw, x, over, centre, a, m):
    """A confining energy of an auxiliary block, which does not change the marginal law of the other blocks."""
    y = x - draw(st.sampled_from([0, centre]))
    wells = [y**2 / 2, y**2 / (2 * m), y**2 / 2 + a * y**4 / 4, sqrt(1 + y**2), y**2 / 2 + cos(y) / 2]
    return over(draw(st.sampled_from(wells)))


def _by_pair(blocks, matrix):
    """The entries of a matrix by pair of blocks."""
    return {(x, y): matrix[i, j] for i, x in enumerate(blocks) for j, y in enumerate(blocks)}


def _of_sites(draw, a, b, m, averages):
    vectors = (theta, p, r)[: draw(st.integers(1, 3))]
    scalars = (xi, eta)[: draw(st.integers(0, min(2, 4 - len(vectors))))]
    H = potential(theta)
    for x in vectors[1:]:
        H += _confining(draw, x, total, tanh(theta), a, m)
    for x in scalars:
        H += _confining(draw, x, lambda e: n * e, total(tanh(theta)) / n, a, a)
    means = [total(x**2) / n for x in vectors] + [total(theta * vectors[-1]) / n]
    sites, chain = _formulas([*vectors, *scalars, *means, m, *averages]), _formulas([*scalars, *means, a])
    entries = st.just(S.Zero) | sites if len(vectors + scalars) > 2 else sites
    D = _by_pair(vectors, draw(_gram(len(vectors), sites)))
    if scalars:
        D |= _by_pair(scalars, draw(_gram(len(scalars), chain)))
    Q = _curl(draw, [(x, y) for i, x in enumerate(vectors) for y in vectors[i + 1 :] + scalars], entries)
    if len(scalars) == 2:
        Q |= _curl(draw, [scalars], chain)
    return vectors + scalars, H, D, Q, (theta,)


def _explicit(draw, a, b, m, averages):
    size = draw(st.sampled_from([1, 2, 2, 3, 3, 4]))
    state = COORDINATES[:size]
    targets = state[: draw(st.integers((size + 1) // 2, size))]
    H = potential(*targets)
    for x in state[len(targets) :]:
        H += _confining(draw, x, lambda e: e, sin(targets[0]), a, m)
    entries = _formulas([*state, a, b, *averages])
    elements = st.just(S.Zero) | entries if size > 2 else entries
    pairs = [(state[i], state[j]) for i in range(size) for j in range(i + 1, size)]
    return state, H, draw(_gram(size, elements)), _curl(draw, pairs, elements), targets


def _linear(draw, a, b, m, averages):
    state = (theta, p, r)[: draw(st.sampled_from([1, 2, 2, 3, 3]))]
    moving = state if len(state) == 1 or draw(st.integers(0, 4)) == 0 else state[1:]  # the others follow without noise
    constants = st.sampled_from([S.Zero, Rational(1, 2), b, -Rational(3, 4)])
    D = _by_pair(moving, draw(_gram(len(moving), constants, (1, Rational(3, 2), a, 1 / a))))
    H = potential(theta)
    for x in state[1:]:
        H += total((x - draw(st.sampled_from([S.Zero, b]))) ** 2 * draw(st.sampled_from([S.One, 1 / m, a]))) / 2
    D[moving[-1], moving[-1]] += sum(averages)
    Q = {(theta, p): draw(st.sampled_from([-S.One, -a]))} if len(state) > 1 else {}
    return state, H, D, Q | _curl(draw, [(p, r)] if len(state) > 2 else [], constants), (theta,)


def _thermostatted(draw, a, b, m, averages):
    scales = st.sampled_from([S.One, a, Rational(3, 2)])
    chosen = draw(st.sampled_from([(xi,), (zeta,), (xi, zeta)]))
    H, D, Q = potential(theta) + total(p**2 / m) / 2, {p: a * m + sum(averages)}, {(theta, p): -1}
    for x in chosen:
        over, size = (total, 1) if x.is_vector else (lambda e: n * e, n)
        mu = draw(scales)
        centre = draw(st.sampled_from([S.Zero, a]))
        H += over(mu * (x - centre) ** 2) / 2
        Q[p, x] = p / (size * mu)
        D |= {x: draw(scales) / size} if draw(st.booleans()) else {}
    return (theta, p, *chosen), H, D, Q, (theta,)


# ---- words


def _cuts(recipe):
    """Ways to cut the SDE into pieces, by letter."""
    momenta, rest = recipe.momenta, recipe.thermostats
    correlated = [(recipe.state[i], recipe.state[j]) for i, j in entries(recipe.D)]
    groups = connected_components(([b for b in recipe.state if b not in recipe.latents], correlated))
    cuts = [{f"X{k}": piece(tuple(b for b in recipe.state if b in group)) for k, group in enumerate(groups, 1)}]
    if momenta:
        kicks, frictions, noises = (piece(tuple(map(part, momenta))) for part in (force, friction, noise))
        A, C = piece(recipe.targets), {"C": piece(rest)} if rest else {}
        cuts += [
            {"A": A, "B": kicks, "O": frictions + noises, **C},
            {"A": A, "F": piece(momenta), **C},
            {"A": A, "W": kicks + noises, "R": frictions, **C},
        ]
        if rest:
            cuts += [
                {"A'": A + rest, "B": kicks, "O": frictions + noises},
                {"A": A, "B": kicks, "O'": frictions + noises + rest},
            ]
    return [*cuts, dict(recipe.pieces)] if recipe.pieces else cuts


def _solved(recipe, cut, method):
    """The pieces of a cut, each in closed form, else by the numerical `method`; None where a piece has neither."""
    word = Scheme("", tuple((letter, S.One) for letter in (*cut, *recipe.jumps)))
    try:
        subsystems = split(recipe, word, lettered(cut, recipe.name))
    except RecipeError:
        return None
    pieces = {}
    for letter, subsystem in subsystems.items():
        ways = {cut[letter]: subsystem} if subsystem.method or _is_promising(subsystem) else {}
        ways |= {numerical(cut[letter], method): replace(subsystem, method=method)} if method else {}
        pieces[letter] = next((spec for spec, way in ways.items() if _has_flow(way)), None)
    return None if None in pieces.values() else pieces


def _is_promising(subsystem):
    """Whether drifts are affine in their own block, or short; a closed form of long formulas takes minutes to find."""
    return all(f.count_ops() <= 15 or diff(f, b, 2).expand() == 0 for b, f in subsystem.drift.items())


def _has_flow(subsystem):
    try:
        solve(subsystem)
    except (RecipeError, OverflowError):  # flows are checked at random numbers, where a long formula may overflow
        return False
    return True


def schemes(
    recipe: Recipe, *, method: str | None = None, euler: bool = True, palindromes: bool = False
) -> st.SearchStrategy[tuple[Any, ...]]:
    """(word, pieces) for `integrators.compile`: Euler, Lie, Strang, longer words, fractions.

    Pieces have closed forms, or else take the numerical `method`; without a `method` the word is Euler's. With
    `euler=False` Euler's word is drawn only where no other is found. `palindromes` draws only palindromes otherwise.

    >>> from hypothesis import find
    >>> from samplers import SGNHT
    >>> find(schemes(SGNHT), lambda scheme: scheme[0] == "Euler")
    ('Euler', {})
    """
    check_recipe("schemes", recipe)
    check_known("schemes, kinds", "there is no kind {!r}", [method] if method else [], METHODS)
    return _schemes(recipe, method, euler, palindromes)


@st.composite
def _schemes(draw, recipe, method, euler, palindromes):
    jumps = tuple(recipe.jumps)
    pieces = None
    if not euler or draw(st.integers(0, 3)):
        cuts = draw(st.permutations(_cuts(recipe)))
        pieces = next((solved for cut in cuts if (solved := _solved(recipe, cut, method))), None)
    if pieces is None:
        return " ".join([*jumps, EULER, *jumps[::-1]]), {}
    letters = draw(st.permutations([*pieces, *jumps]))
    forms = ["Strang", "longer", "fractions"] if palindromes else ["Strang", "longer", "fractions", "Lie"]
    form = draw(st.sampled_from(forms))
    if form in ("Strang", "Lie") and len(letters) > 1:
        return f"{form}({', '.join(letters)})", pieces
    *front, middle = letters
    front += draw(st.lists(st.sampled_from(letters), max_size=2))
    if form == "fractions":
        return _shares(draw, front, middle), pieces
    return " ".join([*front, middle, *front[::-1]]), pieces


def _shares(draw, front, middle):
    """A palindrome of (letter, fraction): each pair takes a part of what is left of its letter, the last pair all."""
    shares = dict.fromkeys([*front, middle], S.One)
    pairs = []
    for k, x in enumerate(front):
        is_last = x != middle and x not in front[k + 1 :]
        part = shares[x] * (1 if is_last else draw(st.sampled_from([Rational(1, 3), Rational(3, 4)])))
        shares[x] -= part
        pairs.append((x, part / 2))
    return [*pairs, (middle, shares[middle]), *pairs[::-1]]


@st.composite
def steps(draw: st.DrawFn, source: st.SearchStrategy[Recipe] | None = None, **options: Any) -> Step:
    """Compiled steps of recipes, by default of `recipes()`, and of words by `schemes` with its options."""
    recipe = draw(recipes() if source is None else source)
    word, pieces = draw(schemes(recipe, **options))
    return integrators.compile(recipe, word, pieces=pieces)


def targets(recipe: Recipe, **options: Any) -> st.SearchStrategy[Energy]:
    """Energies of a recipe's target, by `energies`."""
    return energies(recipe.targets, **options)


# ---- states


def states(
    step: Step, chains: int = 4, shape: tuple[int, ...] = (3,), *, tensors: bool = False
) -> st.SearchStrategy[Arguments]:
    """State, noise and parameters of a step, by `inputs`; torch tensors with `tensors=True`."""
    drawn = st.integers(0, 2**32 - 1).map(lambda seed: inputs(step, chains, shape, seed, varied=True))
    return drawn.map(lambda at: at.tensors) if tensors else drawn
