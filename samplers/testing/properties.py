"""Properties of every right sampler, as functions that raise AssertionError with the violated equation and its piece.

A property takes a Step, and if wanted inputs and an energy. PROPERTIES are all properties of steps.
"""

from collections import Counter
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import torch
from sympy import Rational, S, Symbol, diff

from integrators.lower import lower
from integrators.predicted import At
from integrators.program import verify
from integrators.split import split
from integrators.step import Step
from recipe import Energy, Recipe, RecipeError, total
from recipe.algebra import vanishes
from recipe.scheme import Scheme, all_letters
from recipe.symbols import Block, duration

from .interpreter import Chain, flow_by_flow
from .quadrature import hermite, legendre
from .random_calls import Arguments, called, derivatives, each, inputs, largest_error


def _inputs_and_derivatives(step, at, energy):
    """The inputs and derivatives of U for a property, as given, or by default."""
    energy = energy or _quartic(step.recipe.targets)
    return at or inputs(step, varied=True), derivatives(energy.U, energy.coordinates)


def _quartic(blocks):
    """The energy sum_i [x_i^4/16 + x_i^2/4 - .4 x_i] + (sum_i x_i)^2/(10 n) of a recipe's targets."""
    over, size = (total, total(1)) if blocks[0].is_vector else (lambda e: e, len(blocks))
    well = sum(over(x**4 / 16 + x**2 / 4 - Rational(2, 5) * x) for x in blocks)
    return Energy(tuple(blocks), U=well + sum(map(over, blocks)) ** 2 / (10 * size))


def _agree(result, expected, bound, equation, names=None):
    """Raises AssertionError for states that differ by more than the bound, relative to max(1, |expected|)."""
    for name in names or expected:
        error = largest_error(np.asarray(result[name], float), np.asarray(expected[name], float))
        _claim(error <= bound, f"{equation}: {name} is off by {error:.2g}, more than {bound:g}")


def _claim(holds, otherwise):
    """Raises AssertionError with the text `otherwise` unless the claim holds, also under python -O."""
    if not holds:
        raise AssertionError(otherwise)


def _name(step):
    return f"{step.recipe.name}, {step.scheme}"


# ---- properties of recipes and of steps


def residual_is_zero(recipe: Recipe) -> None:
    """sum_i(-dF_i/dz_i + F_i dH/dz_i) = 0 for F = f - rowdiv(D) + D grad H: exp(-H) is stationary."""
    rest = recipe.residual()
    _claim(vanishes(rest), f"{recipe.name}: exp(-H) is not stationary, (L* rho)/rho = {rest}, not 0")


def word_verifies(step: Step, at: Arguments | None = None, energy: Energy | None = None) -> None:
    """Every letter runs for the whole step, every move has its stage, and the Program is sound."""
    shares: Counter = Counter()
    for letter, fraction in step.scheme.moves:
        shares[letter] += fraction
    for letter, share in shares.items():
        whole = abs(float(share) - 1) < 1e-12
        _claim(whole, f"{_name(step)}: the fractions of piece {letter!r} add up to {share}, not 1")
    drawn = Counter(d.block for letter, _ in step.scheme.moves for d in step.flows[letter].draws)
    _claim(
        drawn == Counter(d.block for d in step.program.draws),
        f"{_name(step)}: the Program draws other random numbers than its flows, {step.program.draws}",
    )
    try:
        verify(step.program)
    except RecipeError as error:
        raise AssertionError(f"{_name(step)}: the Program is not sound: {error}") from error


def emitted_equals_interpreted(
    step: Step, at: Arguments | None = None, energy: Energy | None = None, h: float = 0.1, bound: float = 1e-12
) -> None:
    """The emitted torch step = its flows one by one, on the same noise."""
    at, slopes = _inputs_and_derivatives(step, at, energy)
    result = called(step, *at, **slopes, step_size=h)
    expected = flow_by_flow(step, at.state, h, noise=at.noise, **slopes, **at.parameters)
    _agree(result, expected, bound, f"{_name(step)}: the emitted step is not that of its flows")


def chains_permute(step: Step, at: Arguments | None = None, energy: Energy | None = None, h: float = 0.1) -> None:
    """step(P z, P w) = P step(z, w) for every permutation P of the chains."""
    at, slopes = _inputs_and_derivatives(step, at, energy)
    _permutes(step, at, slopes, h, 0, {*at.state, *at.noise}, "chains")


def coordinates_permute(step: Step, at: Arguments | None = None, energy: Energy | None = None, h: float = 0.1) -> None:
    """step(P z, P w) = P step(z, w) for every permutation P of the sites, where U is exchangeable; vector blocks."""
    at, slopes = _inputs_and_derivatives(step, at, energy)
    symbols: tuple[Symbol, ...] = (*step.recipe.entries, *step.recipe.parameters, *step.program.draws)
    _permutes(step, at, slopes, h, -1, {s.name for s in symbols if s.is_vector}, "coordinates")


def _permutes(step, at, slopes, h, axis, names, what):
    """Claims that a step commutes with a permutation of some arguments along an axis."""

    def permuted(values):
        arrays = {k: v for k, v in values.items() if k in names and getattr(v, "ndim", False)}
        return values | {k: torch.roll(torch.as_tensor(v), 1, axis) for k, v in arrays.items()}

    expected = permuted(called(step, *at, **slopes, step_size=h))
    result = called(step, *map(permuted, at), **slopes, step_size=h)
    blocks = [b.name for b in step.recipe.entries]
    _agree(result, expected, 1e-12 if axis == 0 else 1e-11, f"{_name(step)}: {what} do not permute freely", blocks)


# ---- properties of flows


def _chain(step, at, slopes, h):
    chain = Chain(step.recipe, at.state, h, at.parameters | slopes)
    program = step.program
    needs = {0: program.needs_value, 1: step.recipe.potential is not None, 2: program.needs_curvature}
    for order in (order for order, is_needed in needs.items() if is_needed):
        chain.at |= chain.derivatives(order)
    return chain


def _pieces(step):
    """The flows of the SDE's pieces, by letter."""
    return {letter: flow for letter, flow in step.flows.items() if letter not in step.recipe.jumps}


def pieces_sum_to_the_sde(step: Step, at: Arguments | None = None, energy: Energy | None = None) -> None:
    """sum over pieces of dE[z]/dt = -(D+Q) grad H + T Gamma, and of dCov[z]/dt = 2(T D - supplied), at t = 0."""
    at, slopes = _inputs_and_derivatives(step, at, energy)
    recipe = step.recipe
    chain = _chain(step, at, slopes, 1e-3)
    rates: Counter = Counter()
    for flow in _pieces(step).values():
        for key, rate in _rates(chain, flow).items():
            rates[key] = rates[key] + rate
    T = at.parameters["temperature"]
    for i, a in enumerate(recipe.state):
        if a.name in step.frozen:
            continue
        pieces = ", ".join(repr(letter) for letter, flow in _pieces(step).items() if a in flow.updates) or "none"
        equation = f"{_name(step)}: the pieces that move {a}, {pieces}, do not add up to "
        drift = recipe.tempered_drift[i]
        _agree({a: rates[a]}, {a: chain.value(drift)}, 1e-6, equation + f"its drift, {drift}")
        for j, b in enumerate(recipe.state):
            if b.name in step.frozen:
                continue
            noise = T * chain.value(recipe.D[i, j]) - chain.value(recipe.supplied[i, j])
            _agree({a: rates[a, b]}, {a: 2 * noise}, 1e-6, equation + f"the noise 2(T D - supplied)[{a}, {b}]")


def _rates(chain, flow):
    """d/dt at t = 0 of the means and covariances under a flow, extrapolated from three times."""
    times = (1e-3, 5e-4, 2.5e-4)
    coarse, middle, fine = (_cumulants(_outcomes(chain, chain.at, flow, t), list(flow.updates)) for t in times)

    def rate(key):
        start = chain.at.get(key, 0)
        a, b, c = ((law[key] - start) / t for law, t in zip((coarse, middle, fine), times))
        return (a - 6 * b + 8 * c) / 3

    return {key: rate(key) for key in coarse}


def flows_are_semigroups(step: Step, at: Arguments | None = None, energy: Energy | None = None, h: float = 0.2) -> None:
    """E[z] and Cov[z] after h equal E[z] and Cov[z] after h/2 twice, for every exact flow."""
    at, slopes = _inputs_and_derivatives(step, at, energy)
    chain = _chain(step, at, slopes, h)
    for letter, flow in _pieces(step).items():
        if not flow.exact:
            continue
        blocks = list(flow.updates)
        once = _cumulants(_outcomes(chain, chain.at, flow, h), blocks)
        halves = (
            (w * v, end)
            for w, middle in _outcomes(chain, chain.at, flow, h / 2)
            for v, end in _outcomes(chain, middle, flow, h / 2)
        )
        twice = _cumulants(halves, blocks)
        equation = (
            f"{_name(step)}: two half steps of piece {letter!r} are not its whole step, "
            f"F_h = F_h/2 F_h/2, for {flow.equation}"
        )
        _agree(twice, once, 1e-9, equation)


def volume_is_preserved(
    step: Step, at: Arguments | None = None, energy: Energy | None = None, h: float = 0.2
) -> tuple[str, ...]:
    """det dF_h(z)/dz = 1 for the exact flows without noise whose field has no divergence; returns their letters."""
    at, slopes = _inputs_and_derivatives(step, at, energy)
    state, noise = (each(lambda x: x[:1], part) for part in at[:2])
    one = Arguments(state, noise, at.parameters).tensors
    kept = []
    pieces = split(step.recipe, step.scheme, all_letters(step.recipe, step.pieces))
    for letter, flow in _pieces(step).items():
        moves = flow.exact and flow.updates and not flow.draws
        drift = pieces[letter].drift.items()
        if not (moves and vanishes(sum(total(diff(f, b)) if b.is_vector else diff(f, b) for b, f in drift))):
            continue
        J = _jacobian(_alone(step, letter), [b.name for b in flow.updates], one, slopes, h)
        error = abs(float(torch.linalg.det(J)) - 1)
        _claim(
            error <= 1e-10,
            f"{_name(step)}: piece {letter!r} does not preserve volume, |det dF/dz - 1| = {error:.2g}, "
            f"for {flow.equation}",
        )
        kept.append(letter)
    return tuple(kept)


def _alone(step, letter):
    """The step of one piece."""
    word = Scheme(letter, ((letter, S.One),))
    flows = {letter: step.flows[letter]}
    return Step(step.recipe, word, flows, lower(step.recipe, word, flows, reuse_gradient=False))


def _jacobian(step, names, at, slopes, h):
    """The derivative of a step by the named blocks, a matrix over their flattened entries."""

    def moved(*blocks):
        result = called(step, at.state | dict(zip(names, blocks)), {}, at.parameters, **slopes, step_size=h)
        return torch.cat([result[name].flatten() for name in names])

    columns = torch.autograd.functional.jacobian(moved, tuple(at.state[name] for name in names))
    return torch.cat([c.reshape(len(c), -1) for c in columns], 1)


def reversible(
    step: Step, at: Arguments | None = None, energy: Energy | None = None, h: float = 0.1
) -> tuple[Block, ...]:
    """R step(R step(z)) = z for a palindrome of exact flows without noise, where f(R z) = -R f(z); R flips momenta.

    Returns the blocks that R flips, momenta with or without thermostats; () where there is no such R.
    """
    at, slopes = _inputs_and_derivatives(step, at, energy)
    flipped = _flipped(step)
    if not flipped:
        return ()

    def moved_and_flipped(state):
        result = called(step, state, {}, at.parameters, **slopes, step_size=h)
        return {b.name: -result[b.name] if b in flipped else result[b.name] for b in step.recipe.state}

    names = ", ".join(map(str, flipped))
    equation = f"{_name(step)}: the palindrome is not reversible, R step(R step(z)) != z, with R flipping {names}"
    _agree(moved_and_flipped(moved_and_flipped(at.state)), at.state, 1e-10, equation)
    return flipped


def _flipped(step):
    """The blocks whose flipped signs reverse time, f(R z) = -R f(z); () where the step need not be reversible."""
    recipe = step.recipe
    if step.program.draws or recipe.adapted or not (step.scheme.is_palindrome and step.exact):
        return ()

    def turns_time(blocks):
        R = {b: -b for b in blocks}
        rows = zip(recipe.state, recipe.tempered_drift)
        return all(vanishes(f.xreplace(R) + (-f if b in R else f)) for b, f in rows)

    return next(filter(turns_time, (recipe.momenta + recipe.thermostats, recipe.momenta)), ())


# ---- the law of a flow, by quadrature over its random numbers


def _outcomes(chain, values, flow, time):
    """Yields (weight, values) after a flow has run for a time, for each node of its random numbers."""
    for drawn in product(*(_nodes(flow, d) for d in flow.draws)):
        at = values | {duration: time} | {d: x for d, (_, x) in zip(flow.draws, drawn)}
        at |= chain.elsewhere(flow.updates.values(), at)
        images = {b: chain.value(e, at) for b, e in flow.updates.items()}
        yield float(np.prod([w for w, _ in drawn])), values | images


def _nodes(flow, draw):
    """Nodes (weight, value) of a random number; two of its mean and variance where the flow is affine in it."""
    if draw.kind in ("poisson", "gamma"):
        return [(0.5, lambda mean, sign=sign: mean + sign * np.sqrt(mean)) for sign in (-1, 1)]
    if draw.kind == "uniform":
        x, w = legendre(3)
        return list(zip(w / 2, (x + 1) / 2))
    updates = flow.updates.values()
    many = any(e.has(At) for e in updates)  # flows of many draws, tested at small times
    if many or any(diff(e, draw).has(draw) for e in updates):
        x, w = hermite(3 if many else 20)
        return list(zip(w, x))
    return [(0.5, -1.0), (0.5, 1.0)]


def _cumulants(results, blocks):
    """The means of blocks, and the covariances of their pairs, site by site."""
    results = list(results)
    mean = {b: sum(w * z[b] for w, z in results) for b in blocks}
    pairs = product(blocks, repeat=2)
    return mean | {(a, b): sum(w * (z[a] - mean[a]) * (z[b] - mean[b]) for w, z in results) for a, b in pairs}


PROPERTIES: tuple[Callable[..., Any], ...] = (
    word_verifies,
    emitted_equals_interpreted,
    chains_permute,
    coordinates_permute,
    pieces_sum_to_the_sde,
    flows_are_semigroups,
    volume_is_preserved,
    reversible,
)
