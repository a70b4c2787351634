"""Hypothesis strategies for recipes, words, energies and states, and properties that every sampler keeps.

A property takes a Step, and if wanted what `states` draws and an energy of `energies`; it raises AssertionError with the
equation that is violated and the piece. `PROPERTIES` are all of them. Only this module needs Hypothesis.
"""

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from sympy import Expr, ImmutableMatrix, Integer, Rational, S, cos, diff, exp, sin, sqrt, tanh

import integrators
from integrators.flow import MatrixOU, braked, joined, phi1, solve
from integrators.lower import lower
from integrators.program import verify
from integrators.scheme import EULER, Scheme
from integrators.split import split
from integrators.step import Step
from recipe import (Energy, Recipe, RecipeError, adapted, force, fraction, friction, grad, noise, numerical, positive,
                    potential, real, refresh, scalar, total, vector)
from recipe.algebra import vanishes
from recipe.marginal import eliminate_gaussians
from recipe.pieces import lettered, piece
from recipe.symbols import Block, duration

from .interpreter import Chain, evaluate, flow_by_flow, interpret

KINDS = ("sites", "explicit", "linear", "thermostatted")

theta, p, r, zeta = vector("theta"), vector("p"), vector("r"), vector("zeta")
xi, eta = scalar("xi"), scalar("eta")
COORDINATES = tuple(map(scalar, ("x", "y", "z", "w")))
n = total(1)


# ---- formulas


numbers = st.sampled_from([Rational(k, 4) for k in (-6, -3, -1, 1, 2, 5)])
sizes = st.sampled_from([0.55, 0.8, 1.3, 1.7])


def formulas(atoms) -> st.SearchStrategy[Expr]:
    """Small polynomials and bounded functions f(u + k v) of some atoms.

    >>> from hypothesis import find
    >>> find(formulas([theta]), lambda e: e.has(sin)).free_symbols
    {theta}
    """
    atoms = st.sampled_from(list(atoms))
    shapes = st.sampled_from([lambda u: u, sin, tanh, lambda u: exp(-u**2), lambda u: u**2])
    return st.builds(lambda f, u, k, v: f(u + k * v), shapes, atoms, numbers, atoms)


def gram(size: int, entries, diagonal=(1, Rational(3, 2), Rational(3, 4), 2)) -> st.SearchStrategy[ImmutableMatrix]:
    """D = L L^T with L triangular, lower or upper, and a diagonal away from 0, or 1 + f^2: (size, size)."""
    if size == 1:
        return entries.map(lambda f: ImmutableMatrix([[1 + f**2]]))
    beside = st.lists(st.just(S.Zero) | entries if size > 2 else entries,
                      min_size=size * (size - 1) // 2, max_size=size * (size - 1) // 2)
    lower = st.builds(lambda rest, on: ImmutableMatrix(size, size, lambda i, j: (
        on[i] if i == j else rest[i * (i - 1) // 2 + j] if j < i else 0)), beside, st.permutations(diagonal))
    return st.builds(lambda L, upper: L.T * L if upper else L * L.T, lower, st.booleans())


def _curl(draw, pairs, entries):
    """Entries of Q above the diagonal, some of them 0."""
    return {pair: e for pair in pairs if (e := draw(entries)) != 0}


# ---- energies


def energies(coordinates=theta, kinds=("gaussian", "quartic", "coupled")) -> st.SearchStrategy[Energy]:
    """Normalisable energies U = sum_i [k_i x_i^2/2 + q_i x_i^4/4 + b_i x_i] + g(sum_i x_i/n).

    `coordinates`: a vector block, whose sites are exchangeable, or a recipe's `targets`.

    >>> from hypothesis import find
    >>> find(energies(kinds=["gaussian"]), lambda energy: True).curvature[0].is_positive
    True
    """
    coordinates = (coordinates,) if isinstance(coordinates, Block) else tuple(coordinates)
    over, size = ((total, n) if coordinates[0].is_vector else (lambda e: e, Integer(len(coordinates))))
    positives = st.sampled_from([Rational(1, 2), S.One, Rational(7, 4)])

    @st.composite
    def energy(draw):
        kind = draw(st.sampled_from(list(kinds)))
        U = S.Zero
        for x in coordinates:
            U += over(draw(positives) * x**2 / 2 + draw(numbers) * x / 2)
            U += over(draw(positives) * x**4 / 4) if kind == "quartic" else 0
        mean = sum(map(over, coordinates)) / size
        coupling = st.builds(lambda k, f: k * f, positives, st.sampled_from([size * mean**2 / 2, cos(mean)]))
        return Energy(coordinates, U=U + (draw(coupling) if kind == "coupled" else 0))

    return energy()


def quartic(coordinates) -> Energy:
    """The energy sum_i [x_i^4/16 + x_i^2/4 - .4 x_i] + (sum_i x_i)^2/(10 n) of a recipe's targets."""
    over, size = (total, n) if coordinates[0].is_vector else (lambda e: e, len(coordinates))
    well = sum(over(x**4 / 16 + x**2 / 4 - Rational(2, 5) * x) for x in coordinates)
    return Energy(coordinates, U=well + sum(map(over, coordinates))**2 / (10 * size))


@cache
def derivatives(energy: Energy) -> dict:
    """{"gradient", "curvature"}: dU/dx_i and d2U/dx_i2 on arrays or tensors, in the form that a Step asks for.

    >>> derivatives(Energy(theta, U=total(theta**4)))["gradient"](np.array([[1.0, 2.0]]))
    array([[ 4., 32.]])
    """
    blocks = energy.coordinates if all(isinstance(b, Block) for b in energy.coordinates) else (theta,)
    U = potential(*blocks)
    reader = Recipe(name="reader", state=blocks, target=blocks if len(blocks) > 1 else blocks[0], H=U,
                    D={b: 1 / (1 + grad(U, b)**2) for b in blocks})
    emitted = integrators.compile(reader, "Euler", energy=energy).namespace

    def on_both(function):
        def on_tensors(at):
            return function(at)

        def on_arrays(at):
            if isinstance(at, dict):
                arrays = any(isinstance(v, np.ndarray) for v in at.values())
                out = function({k: torch.as_tensor(v) for k, v in at.items()})
                return {k: v.numpy() for k, v in out.items()} if arrays else out
            return function(torch.as_tensor(np.array(at))).numpy()

        return lambda at: on_tensors(at) if torch.is_tensor(at) else on_arrays(at)

    return {name: on_both(emitted[name]) for name in ("gradient", "curvature")}


# ---- recipes


@st.composite
def recipes(draw, *kinds: str, noise: bool = True, adapt: bool = False, jumps: bool = False) -> Recipe:
    """Valid recipes (H, D, Q) of 1 to 4 blocks: H = U + auxiliary energies, D = L L^T, Q skew.

    `kinds`: "sites", vectors with shared scalars and any entries; "explicit", scalar coordinates; "linear", constant D
    and Q under quadratic energies; "thermostatted", Langevin dynamics of Nose-Hoover thermostats; the last two have closed
    forms. Without `noise` D is 0; `adapt` and `jumps` add an adapted quantity and a refreshed block where these fit.

    >>> from hypothesis import find
    >>> find(recipes("explicit"), lambda R: len(R.state) == 2).residual()
    0
    """
    kind = draw(st.sampled_from(kinds or KINDS))
    a, b = positive("a", default=draw(sizes)), real("b", default=draw(sizes) - 1)
    m = positive("m", default=draw(sizes), per=None if kind == "explicit" else theta)
    target = COORDINATES[0] if kind == "explicit" else theta
    V = adapted("V", like=None if kind == "explicit" else theta, domain="nonnegative",
                start=1 if kind == "explicit" else grad(potential(theta))**2)
    state, H, D, Q, targets = {"sites": _of_sites, "explicit": _explicit, "linear": _linear,
                               "thermostatted": _thermostatted}[kind](draw, a, b, m, (V,) if adapt else ())
    changes = {}
    if adapt:
        beta = fraction("beta", default=0.9)
        seen = exp(-target**2) if kind == "explicit" else grad(potential(theta))**2
        changes |= {"adapt": {V: beta * V + (1 - beta) * seen}, "order": draw(st.sampled_from(["lagged", "same_step"]))}
    gaussian = [x for x in state if x not in targets and eliminate_gaussians(H, (x,))[0]]
    if jumps and gaussian:
        rate = draw(st.sampled_from([None, positive("rate", default=draw(sizes))]))
        changes |= {"jumps": {"J": refresh(draw(st.sampled_from(gaussian)), rate=rate)}}
    return Recipe(name=kind, state=state, target=targets if len(targets) > 1 else targets[0], H=H, Q=Q,
                  D=D if noise else {}, **changes)


def _confining(draw, x, over, centre, a, m):
    """An energy of an auxiliary block that confines it, and leaves the marginal of all else alone."""
    y = x - draw(st.sampled_from([0, centre]))
    return over(draw(st.sampled_from([y**2 / 2, y**2 / (2 * m), y**2 / 2 + a * y**4 / 4, sqrt(1 + y**2),
                                      y**2 / 2 + cos(y) / 2])))


def _of_sites(draw, a, b, m, more):
    vectors = (theta, p, r)[:draw(st.integers(1, 3))]
    scalars = (xi, eta)[:draw(st.integers(0, min(2, 4 - len(vectors))))]
    H = potential(theta)
    for x in vectors[1:]:
        H += _confining(draw, x, total, tanh(theta), a, m)
    for x in scalars:
        H += _confining(draw, x, lambda e: n * e, total(tanh(theta)) / n, a, a)
    means = [total(x**2) / n for x in vectors] + [total(theta * vectors[-1]) / n]
    sites, chain = formulas([*vectors, *scalars, *means, m, *more]), formulas([*scalars, *means, a])
    entries = st.just(S.Zero) | sites if len(vectors + scalars) > 2 else sites
    D, C = draw(gram(len(vectors), sites)), draw(gram(len(scalars), chain)) if scalars else None
    diffusion = {(x, y): D[i, j] for i, x in enumerate(vectors) for j, y in enumerate(vectors)}
    diffusion |= {(x, y): C[i, j] for i, x in enumerate(scalars) for j, y in enumerate(scalars)}
    Q = _curl(draw, [(x, y) for i, x in enumerate(vectors) for y in vectors[i + 1:] + scalars], entries)
    Q |= _curl(draw, [scalars] if len(scalars) == 2 else [], chain)
    return vectors + scalars, H, diffusion, Q, (theta,)


def _explicit(draw, a, b, m, more):
    size = draw(st.sampled_from([1, 2, 2, 3, 3, 4]))
    state = COORDINATES[:size]
    targets = state[:draw(st.integers((size + 1) // 2, size))]
    H = potential(*targets)
    for x in state[len(targets):]:
        H += _confining(draw, x, lambda e: e, sin(targets[0]), a, m)
    entries = formulas([*state, a, b, *more])
    some = st.just(S.Zero) | entries if size > 2 else entries
    pairs = [(state[i], state[j]) for i in range(size) for j in range(i + 1, size)]
    return state, H, draw(gram(size, some)), _curl(draw, pairs, some), targets


def _linear(draw, a, b, m, more):
    state = (theta, p, r)[:draw(st.sampled_from([1, 2, 2, 3, 3]))]
    moving = state if len(state) == 1 or draw(st.integers(0, 4)) == 0 else state[1:]  # the others follow without noise
    constants = st.sampled_from([S.Zero, Rational(1, 2), b, -Rational(3, 4)])
    D = draw(gram(len(moving), constants, (1, Rational(3, 2), a, 1 / a)))
    D = {(x, y): D[i, j] for i, x in enumerate(moving) for j, y in enumerate(moving)}
    H = potential(theta)
    for x in state[1:]:
        H += total((x - draw(st.sampled_from([S.Zero, b])))**2 * draw(st.sampled_from([S.One, 1 / m, a]))) / 2
    D[moving[-1], moving[-1]] += sum(more)
    Q = {(theta, p): draw(st.sampled_from([-S.One, -a]))} if len(state) > 1 else {}
    return state, H, D, Q | _curl(draw, [(p, r)] if len(state) > 2 else [], constants), (theta,)


def _thermostatted(draw, a, b, m, more):
    scales = st.sampled_from([S.One, a, Rational(3, 2)])
    chosen = draw(st.sampled_from([(xi,), (zeta,), (xi, zeta)]))
    H, D, Q = potential(theta) + total(p**2 / m) / 2, {p: a * m + sum(more)}, {(theta, p): -1}
    for x in chosen:
        over, size = (total, 1) if x.is_vector else (lambda e: n * e, n)
        mu, centre = draw(scales), draw(st.sampled_from([S.Zero, a]))
        H += over(mu * (x - centre)**2) / 2
        Q[p, x] = p / (size * mu)
        D |= {x: draw(scales) / size} if draw(st.booleans()) else {}
    return (theta, p, *chosen), H, D, Q, (theta,)


# ---- words


def _cuts(recipe):
    """Ways to cut the SDE into pieces, by letter."""
    momenta, rest = recipe.momenta, recipe.thermostats
    correlated = [(a, b) for i, a in enumerate(recipe.state) for j, b in enumerate(recipe.state) if recipe.D[i, j] != 0]
    groups = joined([{b} for b in recipe.state if b not in recipe.latents], correlated)
    cuts = [{f"X{k}": piece(tuple(b for b in recipe.state if b in group)) for k, group in enumerate(groups, 1)}]
    if momenta:
        kicks, frictions, noises = (piece(tuple(map(part, momenta))) for part in (force, friction, noise))
        A, C = piece(recipe.targets), {"C": piece(rest)} if rest else {}
        cuts += [{"A": A, "B": kicks, "O": frictions + noises, **C}, {"A": A, "F": piece(momenta), **C},
                 {"A": A, "W": kicks + noises, "R": frictions, **C}]
        if rest:
            cuts += [{"A'": A + rest, "B": kicks, "O": frictions + noises},
                     {"A": A, "B": kicks, "O'": frictions + noises + rest}]
    return [*cuts, dict(recipe.pieces)] if recipe.pieces else cuts


def _solved(recipe, cut, method):
    """The pieces of a cut, each with a closed form or else by the `method`; None where there is no such cut."""
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
    """Affine in its own block, or short: the search for a closed form of a long formula takes minutes."""
    return all(f.count_ops() <= 15 or diff(f, b, 2).expand() == 0 for b, f in subsystem.drift.items())


def _has_flow(subsystem):
    try:
        solve(subsystem)
    except (RecipeError, OverflowError):  # a closed form is checked at random numbers, where a long formula may overflow
        return False
    return True


@st.composite
def schemes(draw, recipe: Recipe, *, method: str | None = None, euler: bool = True, palindromes: bool = False):
    """(word, pieces) for `integrators.compile(recipe, word, pieces=pieces)`: Euler, Lie, Strang, longer words, fractions.

    The pieces have closed forms; what has none takes the numerical `method`, and where no method is given the word is
    Euler's, which is left out where it can be if not `euler`. `palindromes` leaves out what is none.

    >>> from hypothesis import find
    >>> from samplers import SGNHT
    >>> find(schemes(SGNHT), lambda scheme: scheme[0] == "Euler")
    ('Euler', {})
    """
    jumps, pieces = tuple(recipe.jumps), None
    if not euler or draw(st.integers(0, 3)):
        cuts = draw(st.permutations(_cuts(recipe)))
        pieces = next((solved for cut in cuts if (solved := _solved(recipe, cut, method))), None)
    if pieces is None:
        return " ".join([*jumps, EULER, *jumps[::-1]]), {}
    letters = draw(st.permutations([*pieces, *jumps]))
    form = draw(st.sampled_from(["Strang", "longer", "fractions"] + ["Lie"] * (not palindromes)))
    if form in ("Strang", "Lie") and len(letters) > 1:
        return f"{form}({', '.join(letters)})", pieces
    *front, middle = letters
    front += draw(st.lists(st.sampled_from(letters), max_size=2))
    if form == "fractions":
        return _shares(draw, front, middle), pieces
    return " ".join([*front, middle, *front[::-1]]), pieces


def _shares(draw, front, middle):
    """A palindrome of (letter, fraction): each pair of a letter takes a part of what is left of it, the last all."""
    left, pairs = dict.fromkeys([*front, middle], S.One), []
    for k, x in enumerate(front):
        last = x != middle and x not in front[k + 1:]
        part = left[x] * (1 if last else draw(st.sampled_from([Rational(1, 3), Rational(3, 4)])))
        left[x] -= part
        pairs.append((x, part / 2))
    return [*pairs, (middle, left[middle]), *pairs[::-1]]


@st.composite
def steps(draw, source=None, **options) -> Step:
    """Compiled steps of recipes, by default all `recipes()`, and words with the options of `schemes`."""
    recipe = draw(recipes() if source is None else source)
    word, pieces = draw(schemes(recipe, **options))
    return integrators.compile(recipe, word, pieces=pieces)


# ---- what a step is called with


IN_DOMAIN = {
    "real": lambda x: x, "positive": lambda x: 0.2 + np.abs(x), "nonnegative": np.abs,
    "binary": lambda x: 1.0 * (x > 0.3), "fraction": lambda x: 1 / (1 + np.exp(-x)),
}


class At(NamedTuple):
    """What one call takes: `step(at.state, h, gradient=..., noise=at.noise, **at.parameters)`."""

    state: dict
    noise: dict
    parameters: dict

    def each(self, change) -> "At":
        """The same with every array changed by change(name, array)."""
        return At(*({k: change(k, v) if isinstance(v, (np.ndarray, torch.Tensor)) else v for k, v in part.items()}
                    for part in self))

    @property
    def tensors(self) -> "At":
        """The same in torch float64."""
        return self.each(lambda _, v: torch.as_tensor(v, dtype=torch.float64))


def inputs(step: Step, chains: int = 4, shape: tuple = (3,), seed: int = 0) -> At:
    """A state, a noise and parameters inside their domains, numpy float64, at the temperature 1.25.

    Vector blocks are (chains, *shape), scalar ones (chains,), parameters per site have the shape.

    >>> from samplers import SGNHT
    >>> at = inputs(integrators.compile(SGNHT), chains=2)
    >>> at.state["theta"].shape, at.state["xi"].shape, sorted(at.noise), at.parameters["A"] > 0
    ((2, 3), (2,), ['p'], True)
    """
    random = np.random.default_rng(seed)
    size = lambda block: (chains, *shape) if block.is_vector else (chains,)

    def number(s):
        around = random.uniform(0.8, 1.25, shape if s.per else ())
        value = IN_DOMAIN[s.sign](random.normal(0.3, 0.8)) if s.default is None else s.default
        value = np.minimum(value * around, 1) if s.sign == "fraction" else value * around
        return value if s.per and shape else float(value)

    def drawn(draw):
        match draw.kind:
            case "normal":
                return random.normal(size=size(draw))
            case "uniform":
                return random.uniform(size=size(draw))
        return lambda parameter: 0.3 + parameter / 2  # where the law depends on the state, any function of its parameter

    state = {b.name: IN_DOMAIN[b.domain](random.normal(0.3, 0.8, size(b))) for b in step.recipe.entries}
    noise = {d.name: drawn(d) for d in step.program.draws}
    parameters = {s.name: number(s) for s in step.recipe.parameters}
    return At(state, noise, {**parameters, "temperature": 1.25, "num_data": 3, "step_number": 2})


def states(step: Step, chains: int = 4, shape: tuple = (3,), *, tensors: bool = False) -> st.SearchStrategy[At]:
    """State, noise and parameters of a step, see `inputs`; torch tensors if asked for."""
    made = st.integers(0, 2**32 - 1).map(lambda seed: inputs(step, chains, shape, seed))
    return made.map(lambda at: at.tensors) if tensors else made


# ---- properties


def _given(step, at, energy):
    """The inputs and derivatives of U that a property works with."""
    known = derivatives(quartic(step.recipe.targets) if energy is None else energy)
    return inputs(step) if at is None else at, known


def called(step: Step, at: At, known: dict, h: float = 0.1) -> dict:
    """The emitted step on numpy arrays or tensors; `known` are `derivatives` of an energy."""
    at = at.tensors
    more = {"curvature": known["curvature"]} if step.program.needs_curvature else {}
    return step(at.state, h, gradient=known["gradient"], noise=at.noise, **more, **at.parameters)


def _agree(result, expected, bound, equation, names=None):
    """Refuse two states that differ by more than the bound, relative to max(1, |expected|)."""
    for name in names or expected:
        value, other = np.asarray(result[name], float), np.asarray(expected[name], float)
        error = float((np.abs(value - other) / np.maximum(1, np.abs(other))).max())
        assert error <= bound, f"{equation}: {name} is off by {error:.2g}, more than {bound:g}"


def _name(step):
    return f"{step.recipe.name}, {step.scheme}"


def residual_is_zero(recipe: Recipe) -> None:
    """sum_i(-dF_i/dz_i + F_i dH/dz_i) = 0 for F = f - rowdiv(D) + D grad H: exp(-H) is stationary."""
    rest = recipe.residual()
    assert vanishes(rest), f"{recipe.name}: exp(-H) is not stationary, (L* rho)/rho = {rest}, not 0"


def word_verifies(step: Step, at: At | None = None, energy: Energy | None = None) -> None:
    """Every letter runs for the whole step, every move has its stage, and the Program is sound."""
    shares = Counter()
    for letter, fraction in step.scheme.moves:
        shares[letter] += fraction
    for letter, share in shares.items():
        assert abs(float(share) - 1) < 1e-12, f"{_name(step)}: the fractions of piece {letter!r} add up to {share}, not 1"
    drawn = Counter(d.block for letter, _ in step.scheme.moves for d in step.flows[letter].draws)
    assert drawn == Counter(d.block for d in step.program.draws), (
        f"{_name(step)}: the Program draws other random numbers than its flows, {step.program.draws}")
    try:
        verify(step.program)
    except RecipeError as error:
        raise AssertionError(f"{_name(step)}: the Program is not sound: {error}") from error


def emitted_equals_interpreted(step: Step, at: At | None = None, energy: Energy | None = None, h: float = 0.1,
                               bound: float = 1e-12) -> None:
    """The emitted torch step = the statements of its Program = its flows one by one, on the same noise."""
    at, known = _given(step, at, energy)
    result = called(step, at, known, h)
    for oracle in (interpret, flow_by_flow):
        expected = oracle(step, at.state, h, noise=at.noise, **known, **at.parameters)
        _agree(result, expected, bound, f"{_name(step)}: the emitted step is not that of {oracle.__name__}",
               [b.name for b in step.recipe.entries])


def chains_permute(step: Step, at: At | None = None, energy: Energy | None = None, h: float = 0.1) -> None:
    """step(P z, P w) = P step(z, w) for every permutation P of the chains."""
    at, known = _given(step, at, energy)
    turn = lambda x: torch.roll(torch.as_tensor(x), 1, 0)
    moved = At(*({k: v if callable(v) else turn(v) for k, v in part.items()} for part in at[:2]), at.parameters)
    expected = {k: turn(v) for k, v in _blocks(step, called(step, at, known, h)).items()}
    _agree(called(step, moved, known, h), expected, 1e-12, f"{_name(step)}: chains do not permute freely")


def coordinates_permute(step: Step, at: At | None = None, energy: Energy | None = None, h: float = 0.1) -> None:
    """step(P z, P w) = P step(z, w) for every permutation P of the sites, where U is exchangeable; vector blocks."""
    at, known = _given(step, at, energy)
    per = {s.name for s in (*step.recipe.entries, *step.recipe.parameters) if s.is_vector}
    drawn = {d.name for d in step.program.draws if d.is_vector}

    def turned(names):
        def change(name, v):
            return torch.roll(torch.as_tensor(v), 1, -1) if name in names and v.ndim else v
        return change

    each = lambda part, names: {k: turned(names)(k, v) if hasattr(v, "ndim") else v for k, v in part.items()}
    moved = At(each(at.state, per), each(at.noise, drawn), each(at.parameters, per))
    expected = each(_blocks(step, called(step, at, known, h)), per)
    _agree(called(step, moved, known, h), expected, 1e-11, f"{_name(step)}: coordinates do not permute freely")


def _blocks(step, state):
    return {b.name: state[b.name] for b in step.recipe.entries}


# ---- properties of flows: their laws by quadrature over the random numbers


def _chain(step, at, known, h):
    chain = Chain(step.recipe, at.state, h, at.parameters)
    chain.at |= chain.derivatives(known["gradient"]) if step.recipe.potential else {}
    if step.program.needs_curvature:
        chain.at |= chain.derivatives(known["curvature"], order=2)
    return chain


def _nodes(flow, draw):
    """(weight, value) of a random number: two that have its mean and variance, where the flow is affine in it."""
    if draw.kind in ("poisson", "gamma"):
        return [(0.5, lambda mean, sign=sign: mean + sign * np.sqrt(mean)) for sign in (-1, 1)]
    if any(diff(e, draw).has(draw) for e in flow.updates.values()):
        x, w = np.polynomial.hermite_e.hermegauss(20)
        return list(zip(w / w.sum(), x))
    return [(0.5, -1.0), (0.5, 1.0)]


def _outcomes(chain, values, flow, time):
    """(weight, values) after a flow has run for a time, one for each node of its random numbers."""
    for drawn in product(*(_nodes(flow, d) for d in flow.draws)):
        at = values | {duration: time} | {d: x for d, (_, x) in zip(flow.draws, drawn)}
        moved = {b: np.asarray(evaluate(e, at, chain.full)) for b, e in flow.updates.items()}
        yield float(np.prod([w for w, _ in drawn])), values | moved


def _law(outcomes, blocks):
    """The means of blocks, and the covariances of their pairs, site by site."""
    outcomes = list(outcomes)
    mean = {b: sum(w * z[b] for w, z in outcomes) for b in blocks}
    return mean | {(a, b): sum(w * (z[a] - mean[a]) * (z[b] - mean[b]) for w, z in outcomes)
                   for a in blocks for b in blocks}


def _pieces(step):
    """The flows of the SDE's pieces, by letter."""
    return {letter: flow for letter, flow in step.flows.items() if letter not in step.recipe.jumps}


def pieces_sum_to_the_sde(step: Step, at: At | None = None, energy: Energy | None = None) -> None:
    """sum over pieces of dE[z]/dt = -(D+Q) grad H + T Gamma, and of dCov[z]/dt = 2(T D - supplied), at t = 0."""
    at, known = _given(step, at, energy)
    recipe, chain, rates = step.recipe, _chain(step, at, known, 1e-3), Counter()
    for flow in _pieces(step).values():
        blocks = list(flow.updates)
        laws = [_law(_outcomes(chain, chain.at, flow, time), blocks) for time in (1e-3, 5e-4, 2.5e-4)]
        for key in laws[0]:
            coarse, middle, fine = ((law[key] - chain.at.get(key, 0)) / t for law, t in zip(laws, (1e-3, 5e-4, 2.5e-4)))
            rates[key] = rates[key] + (coarse - 6 * middle + 8 * fine) / 3
    moving = [b for b in recipe.state if b.name not in step.frozen]
    T = at.parameters["temperature"]
    for i, a in enumerate(recipe.state):
        if a not in moving:
            continue
        pieces = ", ".join(repr(letter) for letter, flow in _pieces(step).items() if a in flow.updates) or "none"
        equation = f"{_name(step)}: the pieces that move {a}, {pieces}, do not add up to "
        drift = recipe.tempered_drift[i]
        _agree({a: rates[a]}, {a: chain.value(drift)}, 1e-6, equation + f"its drift, {drift}")
        for j, b in enumerate(recipe.state):
            noise = T * chain.value(recipe.D[i, j]) - chain.value(recipe.supplied[i, j])
            if b in moving:
                _agree({a: rates[a, b]}, {a: 2 * noise}, 1e-6, equation + f"the noise 2(T D - supplied)[{a}, {b}]")


def flows_are_semigroups(step: Step, at: At | None = None, energy: Energy | None = None, h: float = 0.2) -> None:
    """E[z] and Cov[z] after h = those after h/2 and h/2 again, for every flow that is exact."""
    at, known = _given(step, at, energy)
    chain = _chain(step, at, known, h)
    for letter, flow in _pieces(step).items():
        if not flow.exact:
            continue
        blocks = list(flow.updates)
        once = _law(_outcomes(chain, chain.at, flow, h), blocks)
        twice = _law(((w * v, end) for w, middle in _outcomes(chain, chain.at, flow, h / 2)
                      for v, end in _outcomes(chain, middle, flow, h / 2)), blocks)
        _agree(twice, once, 1e-9, f"{_name(step)}: two half steps of piece {letter!r} are not its whole step, "
               f"F_h = F_h/2 F_h/2, for {flow.equation}")


def _field(flow):
    """dF_t/dt at t = 0: the vector field of a flow without noise."""
    def at_small_t(e):
        e = e.replace(phi1, lambda x: 1 + x / 2)
        e = e.replace(braked, lambda y, s: y - s * y / sqrt(1 + y**2))
        return e.replace(MatrixOU, lambda part, i, j, size, time, *A: (
            S(i == j) - time * A[int(i * size + j)] if part.name == "M" else time * S(i == j)))

    return {b: diff(at_small_t(e), duration).subs(duration, 0) for b, e in flow.updates.items()}


def volume_is_preserved(step: Step, at: At | None = None, energy: Energy | None = None, h: float = 0.2) -> tuple[str, ...]:
    """det dF_h(z)/dz = 1 for the exact flows without noise whose field has no divergence; returns their letters."""
    at, known = _given(step, at, energy)
    one = at.each(lambda name, v: v[:1] if name in at.state or name in at.noise else v).tensors
    kept = []
    for letter, flow in _pieces(step).items():
        if not flow.exact or flow.draws or not flow.updates:
            continue
        divergence = sum((total(diff(f, b)) if b.is_vector else diff(f, b)) for b, f in _field(flow).items())
        if not vanishes(divergence):
            continue
        word = Scheme(letter, ((letter, S.One),))
        alone = Step(step.recipe, word, {letter: flow}, lower(step.recipe, word, {letter: flow}, reuse_gradient=False))
        names = [b.name for b in flow.updates]

        def moved(*blocks):
            out = called(alone, At(one.state | dict(zip(names, blocks)), {}, one.parameters), known, h)
            return torch.cat([out[name].flatten() for name in names])

        columns = torch.autograd.functional.jacobian(moved, tuple(one.state[name] for name in names))
        J = torch.cat([c.reshape(len(c), -1) for c in columns], 1)
        error = abs(float(torch.linalg.det(J)) - 1)
        assert error <= 1e-10, (f"{_name(step)}: piece {letter!r} does not preserve volume, |det dF/dz - 1| = {error:.2g}, "
                                f"for {flow.equation}")
        kept.append(letter)
    return tuple(kept)


def reversible(step: Step, at: At | None = None, energy: Energy | None = None, h: float = 0.1) -> tuple[Block, ...]:
    """R step(R step(z)) = z for a palindrome of exact flows without noise, where f(R z) = -R f(z); R flips momenta.

    Returns the blocks that R flips, the momenta with the thermostats or without; none where there is no such R.
    """
    at, known = _given(step, at, energy)
    recipe = step.recipe
    if step.program.draws or recipe.adapted or not (step.scheme.is_palindrome and step.exact):
        return ()

    def turns_time(flipped):
        """f(R z) = -R f(z)."""
        R = {b: -b for b in flipped}
        return all(vanishes(f.xreplace(R) + (-f if b in R else f)) for b, f in zip(recipe.state, recipe.tempered_drift))

    flipped = next(filter(turns_time, (recipe.momenta + recipe.thermostats, recipe.momenta)), ())
    if not flipped:
        return ()
    flip = lambda state: {b.name: -state[b.name] if b in flipped else state[b.name] for b in recipe.state}
    state = at.tensors.state
    there = called(step, At(state, {}, at.parameters), known, h)
    back = flip(called(step, At(flip(there), {}, at.parameters), known, h))
    _agree(back, state, 1e-10, f"{_name(step)}: the palindrome is not reversible, R step(R step(z)) != z, with R flipping "
           + ", ".join(map(str, flipped)))
    return flipped


PROPERTIES = (word_verifies, emitted_equals_interpreted, chains_permute, coordinates_permute, pieces_sum_to_the_sde,
              flows_are_semigroups, volume_is_preserved, reversible)
