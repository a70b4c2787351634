"""Properties that every sampler keeps: plain functions that say which equation is violated, and by which piece.

A property takes a Step, and if wanted its inputs and an energy; it raises AssertionError. PROPERTIES are all of them.
"""

from collections import Counter
from functools import cache
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from sympy import Rational, S, diff, sqrt

import integrators
from integrators.flow import MatrixOU, braked, phi1
from integrators.lower import lower
from integrators.program import verify
from integrators.scheme import Scheme
from integrators.step import Step
from recipe import Energy, Recipe, RecipeError, grad, potential, total, vector
from recipe.algebra import vanishes
from recipe.symbols import Block, duration

from .arguments import IN_DOMAIN, drawn_for
from .interpreter import Chain, evaluate, flow_by_flow, interpret

theta, n = vector("theta"), total(1)


def quartic(coordinates) -> Energy:
    """The energy sum_i [x_i^4/16 + x_i^2/4 - .4 x_i] + (sum_i x_i)^2/(10 n) of a recipe's targets."""
    over, size = (total, n) if coordinates[0].is_vector else (lambda e: e, len(coordinates))
    well = sum(over(x**4 / 16 + x**2 / 4 - Rational(2, 5) * x) for x in coordinates)
    return Energy(coordinates, U=well + sum(map(over, coordinates)) ** 2 / (10 * size))


@cache
def derivatives(energy: Energy) -> dict:
    """{"gradient", "curvature"}: dU/dx_i and d2U/dx_i2 on arrays or tensors, in the form that a Step asks for.

    >>> derivatives(Energy(theta, U=total(theta**4)))["gradient"](np.array([[1.0, 2.0]]))
    array([[ 4., 32.]])
    """
    blocks = energy.coordinates if all(isinstance(b, Block) for b in energy.coordinates) else (theta,)
    U = potential(*blocks)
    reader = Recipe(
        name="reader",
        state=blocks,
        target=blocks if len(blocks) > 1 else blocks[0],
        H=U,
        D={b: 1 / (1 + grad(U, b) ** 2) for b in blocks},
    )
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


# ---- what a step is called with


class At(NamedTuple):
    """What one call takes: `step(at.state, h, gradient=..., noise=at.noise, **at.parameters)`."""

    state: dict
    noise: dict
    parameters: dict

    def each(self, change) -> "At":
        """The same with every array changed by change(name, array)."""
        return At(
            *(
                {k: change(k, v) if isinstance(v, (np.ndarray, torch.Tensor)) else v for k, v in part.items()}
                for part in self
            )
        )

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

    state = {b.name: IN_DOMAIN[b.domain](random.normal(0.3, 0.8, size(b))) for b in step.recipe.entries}
    noise = {d.name: drawn_for(d, random, size(d)) for d in step.program.draws}
    parameters = {s.name: number(s) for s in step.recipe.parameters}
    return At(state, noise, {**parameters, "temperature": 1.25, "num_data": 3, "step_number": 2})


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
        assert abs(float(share) - 1) < 1e-12, (
            f"{_name(step)}: the fractions of piece {letter!r} add up to {share}, not 1"
        )
    drawn = Counter(d.block for letter, _ in step.scheme.moves for d in step.flows[letter].draws)
    assert drawn == Counter(d.block for d in step.program.draws), (
        f"{_name(step)}: the Program draws other random numbers than its flows, {step.program.draws}"
    )
    try:
        verify(step.program)
    except RecipeError as error:
        raise AssertionError(f"{_name(step)}: the Program is not sound: {error}") from error


def emitted_equals_interpreted(
    step: Step, at: At | None = None, energy: Energy | None = None, h: float = 0.1, bound: float = 1e-12
) -> None:
    """The emitted torch step = the statements of its Program = its flows one by one, on the same noise."""
    at, known = _given(step, at, energy)
    result = called(step, at, known, h)
    for oracle in (interpret, flow_by_flow):
        expected = oracle(step, at.state, h, noise=at.noise, **known, **at.parameters)
        _agree(
            result,
            expected,
            bound,
            f"{_name(step)}: the emitted step is not that of {oracle.__name__}",
            [b.name for b in step.recipe.entries],
        )


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
    return mean | {
        (a, b): sum(w * (z[a] - mean[a]) * (z[b] - mean[b]) for w, z in outcomes) for a in blocks for b in blocks
    }


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
        twice = _law(
            (
                (w * v, end)
                for w, middle in _outcomes(chain, chain.at, flow, h / 2)
                for v, end in _outcomes(chain, middle, flow, h / 2)
            ),
            blocks,
        )
        _agree(
            twice,
            once,
            1e-9,
            f"{_name(step)}: two half steps of piece {letter!r} are not its whole step, "
            f"F_h = F_h/2 F_h/2, for {flow.equation}",
        )


def _field(flow):
    """dF_t/dt at t = 0: the vector field of a flow without noise."""

    def at_small_t(e):
        e = e.replace(phi1, lambda x: 1 + x / 2)
        e = e.replace(braked, lambda y, s: y - s * y / sqrt(1 + y**2))
        return e.replace(
            MatrixOU,
            lambda part, i, j, size, time, *A: (
                S(i == j) - time * A[int(i * size + j)] if part.name == "M" else time * S(i == j)
            ),
        )

    return {b: diff(at_small_t(e), duration).subs(duration, 0) for b, e in flow.updates.items()}


def volume_is_preserved(
    step: Step, at: At | None = None, energy: Energy | None = None, h: float = 0.2
) -> tuple[str, ...]:
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
        assert error <= 1e-10, (
            f"{_name(step)}: piece {letter!r} does not preserve volume, |det dF/dz - 1| = {error:.2g}, "
            f"for {flow.equation}"
        )
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
    _agree(
        back,
        state,
        1e-10,
        f"{_name(step)}: the palindrome is not reversible, R step(R step(z)) != z, with R flipping "
        + ", ".join(map(str, flipped)),
    )
    return flipped


PROPERTIES = (
    word_verifies,
    emitted_equals_interpreted,
    chains_permute,
    coordinates_permute,
    pieces_sum_to_the_sde,
    flows_are_semigroups,
    volume_is_preserved,
    reversible,
)
