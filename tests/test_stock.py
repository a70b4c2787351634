"""Each stock recipe is the sampler of its paper: its SDE row by row with U opaque, the noise that it injects, what it
adapts, and, where the paper prints an algorithm, the step itself.

Signs of Q and factors of D that give other valid samplers are seen only here.
"""

from dataclasses import replace
from functools import cache
from itertools import cycle, product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from covering import covering
from numpy import exp, log, sqrt
from sympy import Matrix, Max, diff, expand
from sympy import exp as exp_
from sympy import log as log_
from sympy import sqrt as sqrt_

from integrators import compile
from recipe import RecipeError, euler, friction, function, grad, noise, nonnegative, positive, total, vector
from recipe.algebra import vanishes
from recipe.symbols import num_data, step_number, step_size, temperature
from samplers import SGHMC, SGRLD, SGRLDDense, SGRLDSimplex, catalogue
from samplers.testing.cases import CASES, TABLE
from samplers.testing.interpreter import Chain
from samplers.testing.random_calls import called, curvature, gradient, inputs, own_step_size

theta, p = vector("theta"), vector("p")


# ---- the SDE


def slab_probability(at):
    """That a weight belongs to the slab, given its value: N(0, sigma^2 v1) against N(0, sigma^2 v0)."""

    def density(v):
        return exp_(-(at.theta**2) / (2 * at.sigma**2 * v)) / sqrt_(v)

    slab, spike = at.delta * density(at.v1), (1 - at.delta) * density(at.v0)
    return slab / (slab + spike)


def kappa_of(at, slab):
    """The expected precision, in units of 1/sigma^2."""
    return (1 - slab) / at.v0 + slab / at.v1


def spike_and_slab_force(name, at, g):
    """The gradient of the energy of the weights: sparse ones with the precision kappa/sigma^2, others with `ridge`."""
    kappa = (
        kappa_of(at, slab_probability(at))
        if "marginal" in name
        else kappa_of(at, at.gamma)
        if "gibbs" in name
        else at.kappa
    )
    scale = 1 if "classification" in name else at.sigma**2
    return g / scale + at.sparse * kappa * at.theta / at.sigma**2 + (1 - at.sparse) * at.ridge * at.theta


# ---- drift, diffusion and, where it is not 2 h D, the variance of the noise that a step of size h injects, at T = 1


def psgld(at):
    G = 1 / (at.lam + sqrt_(at.V))
    return [-G * at.g], {theta: G}


def psgld_with_gamma(at):
    slope, bend = at.g / num_data, diff(at.g, theta) / num_data
    V = at.alpha * at.V + (1 - at.alpha) * slope**2
    G, gamma = 1 / (at.lam + sqrt_(V)), -(1 - at.alpha) * slope * bend / (sqrt_(V) * (at.lam + sqrt_(V)) ** 2)
    return [-G * at.g + gamma], {theta: G}


def inverse_metric():
    return function("inverse_metric", theta, sign="positive")


def sgrld(at):
    V = inverse_metric()
    return [-V * at.g + diff(V, theta)], {theta: V}


def sgrld_dense(at):
    x, y = at.state
    xx, yx, yy = (function(f"L_{i}", x, y) for i in ("xx", "yx", "yy"))
    G = {(x, x): xx**2, (x, y): xx * yx, (y, x): xx * yx, (y, y): yx**2 + yy**2}
    return [sum(diff(G[i, j], j) - G[i, j] * grad(at.U, j) for j in at.state) for i in at.state], G


def sgfs(at):
    h, N = step_size, num_data
    eps, gain = 2 * h, (at.b + N) / at.b
    K = 2 / (gain * N * at.I1 + 4 * at.B / eps)
    return [-K * at.g / h], {theta: K / h}, {theta: K**2 * 4 * at.B / eps}


def vsgd(at):
    h, rate = step_size, 2 / at.V
    return [-rate * at.g], {theta: rate}, {theta: 2 * h * rate - h**2 * rate * at.V * rate}


def adaptive_sghmc(at):
    h, m = step_size, at.lam + sqrt_(at.V)
    drift = [at.p / m, -at.g - at.gamma * at.p]
    return drift, {at.p: at.gamma * m}, {at.p: Max(2 * h * at.gamma * m - h**2 * at.V, 0)}


def sgrhmc(at):
    V = inverse_metric()
    S = sqrt_(V)
    return [S * at.p, -S * at.g - V * at.p + diff(S, theta)], {at.p: V}


def relativistic_mass(at):
    return at.m * sqrt_(1 + at.p**2 / (at.m * at.c) ** 2)


def relativistic_sghmc(at):
    M = relativistic_mass(at)
    return [at.p / M, -at.g - at.C * at.p / M], {at.p: at.C}, {at.p: 2 * step_size * (at.C - at.B)}


def atmc(at):
    p, xi, m, alpha = at.p, at.xi, at.m, Max(at.Dmin - at.xi, 0)
    drift = [p / m, -at.g - (alpha + xi) * p, (p**2 / m - 1) / at.mu]
    return drift, {p: alpha * m + at.B / 2}, {p: 2 * step_size * alpha * m}


def relativistic_atmc(at):
    p, xi, m, alpha = at.p, at.xi, at.m, Max(at.Dmin - at.xi, 0)
    M = relativistic_mass(at)
    heat = m / at.mu * (p**2 / M**2 + p**2 / (at.c**2 * M**3) - 1 / M)
    drift = [p / M, -at.g - m * (alpha + xi) * p / M, heat]
    return drift, {p: alpha * m + at.B / 2}, {p: 2 * step_size * alpha * m}


def santa(at):
    g1, g2 = (1 / sqrt_(at.lam + sqrt_(V)) for V in (at.V, at.V_last))
    return [g1 * at.p, -g1 * at.g - at.xi * at.p, at.p**2 - 1], {at.p: g2}


def sgld_sa(at):
    return [-spike_and_slab_force(at.name, at, at.g), *at.still], {at.theta: 1}


def sghmc_sa(at):
    force = spike_and_slab_force(at.name, at, at.g)
    drift = [at.p / at.m, -force - at.C * at.p / at.m, *at.still]
    return drift, {at.p: at.C}, {at.p: 2 * step_size * (at.C - at.B)}


PAPERS = {
    "sgld": lambda at: ([-at.g], {theta: 1}),
    "sgld-preconditioned": lambda at: (
        [-at.G * at.g],
        {theta: at.G},
        {theta: 2 * step_size * at.G - step_size**2 * at.G * (at.V + at.K) * at.G},
    ),
    "psgld": psgld,
    "psgld-same-step": psgld,
    "psgld-gamma": psgld_with_gamma,
    "sgrld": sgrld,
    "sgrld-dense": sgrld_dense,
    "sgrld-simplex": lambda at: ([at.a - at.theta - at.theta * at.g], {at.theta: at.theta}),
    "sgrld-cir": lambda at: ([at.a + at.counts - at.theta], {at.theta: at.theta}),
    "sgfs": sgfs,
    "vsgd": vsgd,
    "isgd-ideal": lambda at: (
        [-at.g / at.lam],
        {theta: 1 / at.lam},
        {theta: 2 * step_size * (at.lam - step_size * at.B) / at.lam**2},
    ),
    "isgd": lambda at: (
        [-at.g / at.lam],
        {theta: 1 / at.lam},
        {theta: 2 * step_size * Max(at.lam - step_size * at.b, 0) / at.lam**2},
    ),
    "underdamped-langevin": lambda at: ([at.p / at.m, -at.g - at.gamma * at.p], {at.p: at.gamma * at.m}),
    "sghmc": lambda at: (
        [at.p / at.m, -at.g - at.C * at.p / at.m],
        {at.p: at.C},
        {at.p: 2 * step_size * (at.C - at.B)},
    ),
    "sghmc-adaptive": adaptive_sghmc,
    "sgrhmc": sgrhmc,
    "sghmc-relativistic": relativistic_sghmc,
    "mala": lambda at: ([-at.G * at.g], {theta: at.G}),
    "hmc": lambda at: ([at.p / at.m, -at.g], {}),
    "hmc-randomised": lambda at: ([at.p / at.m, -at.g], {}),
    "ghmc": lambda at: ([at.p / at.m, -at.g - at.gamma * at.p], {at.p: at.gamma * at.m}),
    "sgnht": lambda at: ([at.p, -at.g - at.xi * at.p, (total(at.p**2) / total(1) - 1) / at.mu], {at.p: at.A}),
    "msgnht": lambda at: ([at.p, -at.g - at.xi * at.p, (at.p**2 - 1) / at.mu], {at.p: at.A}),
    "atmc": atmc,
    "atmc-relativistic": relativistic_atmc,
    "santa": santa,
    **{name: sgld_sa for name in catalogue if name.startswith("sgld-sa")},
    **{name: sghmc_sa for name in catalogue if name.startswith("sghmc-sa")},
}


def paper(name):
    """The drift, the diffusion and the injected noise of the paper in the blocks and parameters of the recipe."""
    R = catalogue[name]
    g = grad(R.potential) if R.potential and R.target_is_vector else None
    of_the_recipe = {s.name: s for s in (*R.entries, *R.parameters)}
    at = SimpleNamespace(name=name, state=R.state, U=R.potential, g=g, still=[0] * len(R.latents), **of_the_recipe)
    assert name in PAPERS, f"add PAPERS[{name!r}] to {__file__}: drift, diffusion and injected noise, by the paper"
    drift, diffusion, *injected = PAPERS[name](at)
    return drift, diffusion, injected[0] if injected else {}


@pytest.mark.parametrize("name", catalogue)
def test_the_sde_of_a_stock_recipe_is_the_papers(name):
    R, (drift, diffusion, injected) = catalogue[name], paper(name)

    def at_1(e):
        return e.xreplace({temperature: 1})

    assert all(vanishes(at_1(mine) - theirs) for mine, theirs in zip(R.drift, drift, strict=True))
    for i, a in enumerate(R.state):
        for j, b in enumerate(R.state):
            theirs = diffusion.get((a, b), diffusion.get(a, 0) if a == b else 0)
            assert vanishes(at_1(R.D[i, j]) - theirs)
            noise = 2 * step_size * at_1((R.D - R.supplied)[i, j])
            assert vanishes(noise - (injected.get(a, 2 * step_size * theirs) if a == b else 2 * step_size * theirs))


def test_the_dynamics_on_the_simplex_count_words():
    """dtheta_i = (a_i - theta_i + n_i - n omega_i) dt + sqrt(2 theta_i) dW_i, n words, omega = theta/total(theta)."""
    R = SGRLDSimplex
    (w,), counts = R.state, nonnegative("counts", per=R.state[0])
    (a,) = R.parameters
    likelihood = total(counts * log_(w)) - total(counts) * log_(total(w))
    expected = a - w + counts - total(counts) * w / total(w)
    assert vanishes(R.bind(U=-likelihood).drift[0] - expected)


def test_the_drift_that_was_printed_for_dense_metrics_is_another_one():
    """G^-1 grad log|G| + 2 rowdiv(G^-1) is rowdiv(G^-1) for a separable diagonal G, but not where G_xx depends on y."""

    def printed(inverse, blocks):
        G = inverse.inv()
        slope = Matrix([diff(log_(G.det()), b) for b in blocks])
        rows = Matrix([sum(diff(inverse[i, j], b) for j, b in enumerate(blocks)) for i in range(len(blocks))])
        return inverse * slope + 2 * rows

    x, y = SGRLDDense.state
    separable = SGRLDDense.bind(L_xx=lambda x, y: 1 + x**2, L_yx=lambda x, y: 0, L_yy=lambda x, y: 2 + y**2)
    crossed = SGRLDDense.bind(L_xx=lambda x, y: 1 + y**2, L_yx=lambda x, y: 0, L_yy=lambda x, y: 1)

    def difference(R):
        return (printed(Matrix(R.D), R.state) - R.gamma).applyfunc(lambda e: e.simplify())

    assert not any(difference(separable)) and any(difference(crossed))
    assert SGRLD.gamma[0] == diff(SGRLD.D[0], *SGRLD.state)


def test_santas_thermostat_cools_with_the_temperature():
    """beta = 1/T: dxi = (p^2 - 1/beta) dt, and the noise of p has the variance 2 g2/beta."""
    R = catalogue["santa"]
    assert expand(R.tempered_drift[2] - (p**2 - temperature)) == 0
    assert all(vanishes(a - b) for a, b in zip(R.tempered_drift[:2], R.drift[:2]))


# ---- what is proved

CHECKED = {
    "psgld": {"smooth"},
    "psgld-same-step": {"smooth"},
    "psgld-gamma": {"definite", "smooth", "explosion", "reached"},
    "sgrld": {"explosion"},
    "sgrld-dense": {"explosion", "reached"},
    "sgrld-simplex": {"normalisable", "boundary", "explosion"},
    "sgrld-cir": {"normalisable", "boundary", "explosion"},
    "sgfs": {"smooth", "reached"},
    "sghmc-adaptive": {"smooth"},
    "sgrhmc": {"explosion", "reached"},
    "sghmc-relativistic": {"normalisable", "reached"},
    "atmc": {"explosion", "reached"},
    "atmc-relativistic": {"normalisable", "explosion", "reached"},
    "santa": {"smooth"},
    "sgld-sa": {"normalisable"},
    "sgld-sa-marginal": {"normalisable", "smooth", "reached"},
    "sgld-sa-gibbs": {"smooth"},
    "sgld-sa-classification": {"normalisable"},
    "sgld-sa-classification-marginal": {"normalisable", "smooth", "reached"},
    "sgld-sa-classification-gibbs": {"smooth"},
    "sghmc-sa": {"normalisable"},
    "sghmc-sa-marginal": {"normalisable", "smooth", "reached"},
    "sghmc-sa-gibbs": {"smooth"},
    "sghmc-sa-classification": {"normalisable"},
    "sghmc-sa-classification-marginal": {"normalisable", "smooth", "reached"},
    "sghmc-sa-classification-gibbs": {"smooth"},
}


@pytest.mark.parametrize("name", catalogue)
def test_a_stock_recipe_is_proved_or_where_no_proof_is_known_checked(name):
    R = catalogue[name]
    assert vanishes(R.residual()) == "symbolic"
    checked = {f.topic for f in R.check().findings if f.verdict == "checked"}
    assert R.check().exact
    stated = CHECKED[name] | {"claim"} if name in CHECKED else set()
    assert checked == stated, f"CHECKED[{name!r}] in {__file__} should be {checked - {'claim'}}"


def test_what_a_law_is_given_is_what_is_adapted():
    for R in catalogue.values():
        names = sorted(a.name for a in R.adapted)
        assert set(R.adapt) == set(R.adapted)
        assert (R.claim == f"given frozen {', '.join(names)}") == bool(names)


def test_the_table_of_cases_is_of_stock_samplers():
    assert TABLE.keys() <= set(catalogue)


# ---- the budget: T D - supplied is a variance

FLOORS = {  # the temperature of the gradient's own noise, where it is not 0: below it no noise can be right
    "sgld-preconditioned": lambda at: at.h * at.G * at.V / (2 - at.h * at.G * at.K),
    "vsgd": lambda at: at.h,
    "isgd-ideal": lambda at: at.h * at.B / at.lam,
    **{name: lambda at: at.B / at.C for name in catalogue if name.startswith(("sghmc-sa", "sghmc-relativistic"))},
    "sghmc": lambda at: at.B / at.C,
    "atmc": lambda at: 1.0,
    "atmc-relativistic": lambda at: 1.0,
}


@cache
def compiled(name):
    return compile(CASES[name].recipe)


# each temperature, and all of them where some are refused
TEMPERATURES = (0.01, 0.5, 1.0, 3.0)
EACH_TEMPERATURE = {*zip(catalogue, cycle(TEMPERATURES)), *product(FLOORS, TEMPERATURES)}


@pytest.mark.parametrize("name, T", covering(product(catalogue, TEMPERATURES), EACH_TEMPERATURE))
def test_the_injected_variance_is_one_at_every_temperature_above_the_gradients(name, T):
    """However large or small what is adapted has become; below the temperature of the gradient the step is refused."""
    step = compiled(name)
    h, at = own_step_size(step), inputs(step, 4, (3,))
    values = {s.name: CASES[name].parameters[s.name] for s in step.recipe.parameters}
    if name in FLOORS and T < FLOORS[name](SimpleNamespace(h=h, **values)):
        with pytest.raises(RecipeError, match="supplied: T D - supplied has the eigenvalue -"):
            step.check_budget(h, T, **values)
        return
    step.check_budget(h, T, **values)
    scaled = [a.name for a in step.recipe.adapted if a.domain.name in ("positive", "nonnegative")]
    for scale in (1e-4, 1.0, 1e4) if scaled else (1.0,):
        state = at.state | {a: scale * at.state[a] for a in scaled}
        result = called(step, state, at.noise, at.parameters | values | {"temperature": T}, step_size=h)
        assert all(torch.isfinite(x).all() for x in result.values())


# ---- adaptations


def adaptations(name, at):
    """The new values by the paper's formulas, from the old ones, the gradient g, the new weights, N and the step k."""

    def second_moment(past, V):
        return past * V + (1 - past) * (at.g / at.N) ** 2

    match name:
        case "psgld" | "psgld-same-step" | "psgld-gamma":
            return {"V": second_moment(at.alpha, at.V)}
        case "santa":
            return {"V": second_moment(at.sigma, at.V), "V_last": at.V}
        case "sgfs":
            gain = 1 / (at.k + 1)
            return {"I1": (1 - gain) * at.I1 + gain * at.score_variance}
        case "sghmc-adaptive":
            r = 1 / (at.tau + 1)
            return {
                "V": (1 - r) * at.V + r * at.g**2,
                "gbar": (1 - r) * at.gbar + r * at.g,
                "tau": 1 + at.tau * (1 - at.gbar**2 / (at.lam**2 + at.V)),
            }
        case "isgd":
            layer = at.b.sum(1, keepdims=True) if at.k < at.warmup_steps else at.lam
            return {"b": at.mu * at.b + (1 - at.mu) * at.g**2 / 2, "lam": layer}
    w, sparse = at.theta, at.sparse
    logit = np.log(at.delta / (1 - at.delta)) - np.log(at.v1 / at.v0) / 2
    rho = 1 / (1 + exp(-(logit + w**2 / (2 * at.sigma**2) * (1 / at.v0 - 1 / at.v1))))
    kappa = (1 - rho) / at.v0 + rho / at.v1
    number = np.broadcast_to(sparse, w.shape).sum(1, keepdims=True)
    squares = (sparse * kappa * w**2).sum(1, keepdims=True) + at.nu * at.lam
    if "classification" in name:
        sigma = sqrt(squares / (number + at.nu + 2))
    else:
        sigma = sqrt((at.squared_residuals + squares) / (at.N + number + at.nu))
    delta = ((sparse * rho).sum(1, keepdims=True) + at.a - 1) / (at.a + at.b + number - 2)
    gain = at.A * (at.k + 1 + at.Z) ** -at.decay

    def average(old, new):
        return (1 - gain) * old + gain * new

    return {
        "rho": average(at.rho, rho),
        "kappa": average(at.kappa, kappa),
        "sigma": average(at.sigma, sigma),
        "delta": average(at.delta, np.clip(delta, 1e-6, 1 - 1e-6)),
    }


@pytest.mark.parametrize("k", [2, 9])
@pytest.mark.parametrize("name", [name for name, R in catalogue.items() if R.adapt])
def test_the_adaptations_are_the_papers(name, k):
    case, step = CASES[name], compiled(name)
    R = case.recipe
    state, _, parameters = inputs(step, 4, (3,), seed=k)
    parameters |= {"step_number": k, "a": 1.7, "b": 2.2 if name != "sgfs" else parameters["b"]}
    chain = Chain(R, state, own_step_size(step), parameters | {"gradient": gradient, "observe": case.observe})
    chain.at |= chain.derivatives() | {o: chain.observed(o) for o in R.observations}
    known = {s.name: chain.at[s] for s in (*R.entries, *R.parameters, *R.observations)}
    at = SimpleNamespace(**known, g=chain.at[grad(R.potential)], N=chain.at[num_data], k=chain.at[step_number])
    expected = adaptations(name, at)
    assert expected.keys() == {a.name for a in R.adapt}
    for a, update in R.adapt.items():
        assert chain.value(update) == pytest.approx(expected[a.name], rel=1e-13), a


# ---- the step as an algorithm


def sgld(z, at, eta, g):
    return {"theta": z["theta"] - at.eps / 2 * g(z["theta"]) + sqrt(at.eps) * eta["theta"]}


def psgld(z, at, eta, g, order=""):
    """The preconditioner from the V before this step, or after it, with or without Gamma."""
    slope = g(z["theta"]) / at.N
    V = at.alpha * z["V"] + (1 - at.alpha) * slope**2
    root = sqrt(V if order else z["V"])
    G = 1 / (at.lam + root)
    gamma = -(1 - at.alpha) * slope * curvature(z["theta"]) / at.N / (root * (at.lam + root) ** 2) * (order == "gamma")
    return {"theta": z["theta"] + at.eps / 2 * (-G * at.N * slope + gamma) + sqrt(at.eps * G) * eta["theta"], "V": V}


def preconditioned_sgld(z, at, eta, g):
    spread = at.eps * at.G - (at.eps / 2) ** 2 * at.G**2 * (at.V + at.K)
    return {"theta": z["theta"] - at.eps / 2 * at.G * g(z["theta"]) + sqrt(spread) * eta["theta"]}


def sgrld_on_the_simplex(z, at, eta, g):
    theta = z["theta"]
    return {"theta": abs(theta + at.eps / 2 * (at.a - theta - theta * g(theta)) + sqrt(at.eps * theta) * eta["theta"])}


def cox_ingersoll_ross(z, at, eta, g):
    left = 1 - exp(-at.h)
    counted = eta["theta1"](z["theta"] * exp(-at.h) / left)
    return {"theta": left * eta["theta2"](at.a + at.counts + counted)}


def sgfs(z, at, eta, g):
    theta, gain = z["theta"], 1 / (at.k + 1)
    I1 = (1 - gain) * z["I1"] + gain * CASES["sgfs"].observe["score_variance"](theta)
    nu = sqrt(4 * at.B / at.eps) * eta["theta"]
    return {"theta": theta + 2 / ((at.b + at.N) / at.b * at.N * I1 + 4 * at.B / at.eps) * (-g(theta) + nu), "I1": I1}


def vsgd(z, at, eta, g):
    return {"theta": z["theta"] - 2 / at.V * g(z["theta"])}


def isgd_ideal(z, at, eta, g):
    return {"theta": z["theta"] - (g(z["theta"]) - sqrt(2 * (at.lam - at.B)) * eta["theta"]) / at.lam}


def isgd(z, at, eta, g):
    theta, b, lam = z["theta"], z["b"], z["lam"][:, None]
    slope, C = g(theta), np.maximum(lam - b, 0)
    return {"theta": theta - (slope - sqrt(2 * C) * eta["theta"]) / lam, "b": at.mu * b + (1 - at.mu) * slope**2 / 2}


def sghmc(z, at, eta, g):
    """In the velocity v = h p of stochastic gradient descent with momentum, for the gradient of a mean loss."""
    v, decay = at.h * z["p"], 1 - at.momentum
    theta = z["theta"] + v
    v = at.momentum * v - at.lr * g(theta) / at.N + sqrt(2 * (decay - at.h * at.B) * at.lr / at.N) * eta["p"]
    return {"theta": theta, "p": v / at.h}


def sghmc_adaptive(z, at, eta, g):
    """In v = h p/sqrt(V), with h V^(-1/2) C = a."""
    a, inverse = at.gamma * at.h, z["V"] ** -0.5
    v = at.h * z["p"] * inverse
    theta = z["theta"] + v
    v = v - at.h**2 * inverse * g(theta) - a * v + sqrt(2 * at.h**2 * a * inverse - at.h**4) * eta["p"]
    return {"theta": theta, "p": v / (at.h * inverse)}


def leapfrog(z, at, eta, g):
    jumps = eta["p1"][:, None] < 1 - exp(-at.nu * at.h)
    p = np.where(jumps, sqrt(at.m) * eta["p2"], z["p"]) - at.h / 2 * g(z["theta"])
    theta = z["theta"] + at.h * p / at.m
    return {"theta": theta, "p": p - at.h / 2 * g(theta)}


def sgnht(z, at, eta, g):
    p = z["p"] - at.h * z["xi"][:, None] * z["p"] - at.h * g(z["theta"]) + sqrt(2 * at.A * at.h) * eta["p"]
    return {"theta": z["theta"] + at.h * p, "p": p, "xi": z["xi"] + at.h / at.mu * ((p**2).mean(1) - 1)}


def atmc(z, at, eta, g):
    """Algorithm 1 with the decay e^{-beta h} and the mass in the noise."""
    alpha = np.maximum(at.Dmin - z["xi"], 0)
    beta = alpha + z["xi"]

    def growth(a):
        return (exp(a * beta * at.h) - 1) / beta

    kicked = z["p"] - growth(1) * g(z["theta"]) + sqrt(growth(2) * alpha * at.m) * eta["p"]
    p = exp(-beta * at.h) * kicked
    return {"theta": z["theta"] + at.h * p / at.m, "p": p, "xi": z["xi"] + at.h / at.mu * (p**2 / at.m - 1)}


def relativistic_atmc(z, at, eta, g):
    """Algorithm 1, corrected likewise, with K of eq. (5): beta p is beta m K'(p), whose rate stays at its first value.

    The decay is e^{-beta h}, theta and xi are added to, and xi moves by m (K'^2 - K'').
    """

    def mass(p):
        return at.m * sqrt(1 + (p / (at.m * at.c)) ** 2)

    alpha = np.maximum(at.Dmin - z["xi"], 0)
    beta = (alpha + z["xi"]) * at.m / mass(z["p"])

    def growth(a):
        return (exp(a * beta * at.h) - 1) / beta

    p = exp(-beta * at.h) * (z["p"] - growth(1) * g(z["theta"]) + sqrt(growth(2) * alpha * at.m) * eta["p"])
    M = mass(p)
    heat = at.m * ((p / M) ** 2 - (1 / M - p**2 / (at.c**2 * M**3)))
    return {"theta": z["theta"] + at.h * p / M, "p": p, "xi": z["xi"] + at.h / at.mu * heat}


def santa(z, at, eta, g):
    """The exploration stage in u = h p and alpha = h xi, eta = h^2, at the inverse temperature beta."""
    beta, slope = 1 / at.T, g(z["theta"])
    V = at.sigma * z["V"] + (1 - at.sigma) * slope**2 / at.N**2
    g1, g2 = (1 / sqrt(at.lam + sqrt(x)) for x in (V, z["V"]))
    u, alpha = at.h * z["p"], at.h * z["xi"]
    alpha = alpha + u**2 - at.eta / beta
    u = (1 - alpha) * u - at.eta * g1 * slope + sqrt(2 * at.eta**1.5 * g2 / beta) * eta["p"]
    return {"theta": z["theta"] + g1 * u, "p": u / at.h, "xi": alpha / at.h, "V": V, "V_last": z["V"]}


ALGORITHMS = {
    "sgld": (sgld, "Euler", {"eps": 0.04}),
    "psgld": (psgld, "Euler", {"eps": 0.04}),
    "psgld-same-step": (lambda *given: psgld(*given, order="same"), "Euler", {"eps": 0.04}),
    "psgld-gamma": (lambda *given: psgld(*given, order="gamma"), "Euler", {"eps": 0.04}),
    "sgld-preconditioned": (preconditioned_sgld, "Euler", {"eps": 0.04}),
    "sgrld-simplex": (sgrld_on_the_simplex, "E", {"eps": 0.7}),
    "sgrld-cir": (cox_ingersoll_ross, "A", {}),
    "sgfs": (sgfs, "Euler", {"eps": 0.7}),
    "vsgd": (vsgd, "Euler", {}),
    "isgd-ideal": (isgd_ideal, "Euler", {}),
    "isgd": (isgd, "Euler", {}),
    "sghmc": (sghmc, "paper", {"lr": 0.04, "momentum": 0.9}),
    "sghmc-adaptive": (sghmc_adaptive, "paper", {}),
    "hmc-randomised": (leapfrog, "leapfrog", {}),
    "sgnht": (sgnht, "G A'", {}),
    "atmc": (atmc, "paper", {}),
    "atmc-relativistic": (relativistic_atmc, "paper", {}),
    "santa": (santa, "euler", {"eta": 0.03}),
}


AS_PRINTED = {  # no least mass; the gradient's noise not known
    "sghmc-adaptive": {"lam": 1e-99},
    "atmc": {"B": 0.0},
    "atmc-relativistic": {"B": 0.0},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_step_is_the_algorithm_that_the_paper_prints(name):
    algorithm, word, given = ALGORITHMS[name]
    case = CASES[name]
    step = compile(case.recipe, word, pieces={"G": euler(p)} if name == "sgnht" else {})
    state, noise, parameters = inputs(step, 4, (3,))
    h, N = own_step_size(step), parameters["num_data"]
    parameters |= {"temperature": 0.8 if name == "santa" else 1.0, **AS_PRINTED.get(name, {})}
    if given:
        converted = case.recipe.convert(word, **given, num_data=N)
        h, parameters = converted.pop("step_size"), parameters | converted
    more = dict(N=N, k=parameters["step_number"], T=parameters["temperature"], h=h)
    expected = algorithm(state, SimpleNamespace(**{**parameters, **given, **more}), noise, gradient)
    result = called(step, state, noise, parameters, step_size=h)
    for block, value in expected.items():
        assert result[block].numpy() == pytest.approx(value, rel=1e-12, abs=1e-14), block


# ---- a paper's parameters

CONVERSIONS = [
    *(
        (name, {"eps": 0.02}, {"step_size": 0.01})
        for name in (
            "sgld",
            "sgld-preconditioned",
            "psgld",
            "psgld-same-step",
            "psgld-gamma",
            "sgrld",
            "sgrld-simplex",
            "sgfs",
        )
    ),
    ("vsgd", {"lr": 0.3}, {"step_size": 0.3}),  # h, whatever the number of data
    ("vsgd", {"lr": 1.0, "num_data": 100}, {"step_size": 1.0}),
    ("sghmc", {"scheme": "G A", "lr": 0.01, "momentum": 0.9}, {"step_size": 0.1, "C": 1.0, "m": 1.0}),
    ("sghmc-adaptive", {"eps": 0.05, "friction": 0.1}, {"step_size": 0.05, "gamma": 2.0}),
    *((name, {"eta": 0.04, "a": 0.1}, {"step_size": 0.2, "A": 0.5}) for name in ("sgnht", "msgnht")),
    ("atmc", {"h0": 0.1, "momentum": 0.9, "rms_step": 0.05}, {"step_size": 0.1, "Dmin": -10 * log(0.9), "m": 4.0}),
    (
        "atmc-relativistic",  # the paper's, for CIFAR-10
        {"h0": 0.001, "momentum": 0.9, "rms_step": 0.0003, "max_step": 0.001},
        {"step_size": 0.001, "Dmin": -1000 * log(0.9), "m": 100 / 9, "c": 1.0},
    ),
    (
        "atmc-relativistic",  # the paper's, for ImageNet
        {"h0": 0.0005, "momentum": 0.9, "rms_step": 0.0003, "max_step": 0.001},
        {"step_size": 0.0005, "Dmin": -2000 * log(0.9), "m": 25 / 9, "c": 2.0},
    ),
    ("santa", {"eta": 0.09}, {"step_size": 0.3}),
]

# By the letter that holds the friction, at lr = 0.25, momentum = 0.5 and N = 100, where lr/N = 0.05^2: the step size
# and the friction rate. O: h^2 (1 + momentum)/2 = lr/N and e^(-gamma h) = momentum. F: h^2 (1 - momentum)/(gamma h) =
# lr/N, with the same friction. G: h^2 = lr/N and 1 - gamma h = momentum.
LIKE_SGD = {
    "O": (0.05 * sqrt(4 / 3), log(2) / (0.05 * sqrt(4 / 3))),
    "F": (0.05 * sqrt(2 * log(2)), log(2) / (0.05 * sqrt(2 * log(2)))),
    "G": (0.05, 10.0),
}
FRICTION = {"sghmc": "C", "sgnht": "A", "msgnht": "A", "underdamped-langevin": "gamma", "atmc": "Dmin"}
CONVERSIONS += [
    (
        name,
        {"scheme": f"{letter} A", "lr": 0.25, "momentum": 0.5, "num_data": 100},
        {"step_size": h, friction: rate}
        | ({"m": 1.0} if "m" in CASES[name].parameters else {})
        | ({"mu": 10 / rate**2} if "mu" in CASES[name].parameters else {}),
    )
    for name, friction in FRICTION.items()
    for letter, (h, rate) in LIKE_SGD.items()
    if letter != "G" or "G" in catalogue[name].pieces
]


@pytest.mark.parametrize("name, given, values", CONVERSIONS)
def test_the_parameters_of_a_paper_are_converted(name, given, values):
    converted = catalogue[name].convert(**given)
    assert converted == pytest.approx(values, rel=1e-14)
    step = compile(CASES[name].recipe)
    step.check(converted.pop("step_size"), **CASES[name].values | converted)


def test_every_conversion_of_the_catalogue_is_in_the_table():
    def key(given):
        letter = given.get("scheme", "O A")[0]
        names = ", ".join(name for name in given if name not in ("num_data", "scheme"))
        return names if letter == "O" else f"{names}; {letter}"

    known = {(name, key(given)) for name, given, _ in CONVERSIONS}
    of_all = {(name, key) for name, R in catalogue.items() for key in R.conversions}
    assert known == of_all, f"add to CONVERSIONS in {__file__}, with values: {of_all - known}"


# ---- lr and momentum are those of SGD

MOMENTA = 0.0, 0.5, 0.9
WORDS_OF_SGD = [(name, word) for name in FRICTION for word in ("", *catalogue[name].schemes, "F A")]
SPEEDS = [(name, word, momentum) for name, word in WORDS_OF_SGD for momentum in MOMENTA]
FEW_SPEEDS = [(name, word, momentum) for (name, word), momentum in zip(WORDS_OF_SGD, cycle(MOMENTA[1:]))]
WITHOUT_MOMENTUM = [("sghmc", "paper", 0.0), ("sghmc", "F A", 0.0)]  # a limit of Euler's step, none of F


def at_a_constant_gradient(name, word, momentum, slope=0.7, steps=300):
    """The moves at temperature 0 under U = slope theta, the thermostat where it starts; lr/N = 0.25/100."""
    R = catalogue[name]
    word = word.replace("A", "A'") if R.thermostats and word not in R.schemes else word
    converted = R.convert(word or None, lr=0.25, momentum=momentum, num_data=100)
    step = compile(R, word or None, freeze=R.thermostats)
    h = converted.pop("step_size")
    state = {b.name: torch.zeros(1, 1, dtype=torch.float64) for b in R.entries}
    if "xi" in state and name != "atmc":  # the friction of SGNHT is xi, and A where it starts
        state["xi"] = state["xi"] + converted["A"]
    if name == "sgnht":
        state["xi"] = state["xi"][:, 0]
    noise = {d: torch.ones(1, 1, dtype=torch.float64) for d in step.draws}
    path = [0.0]
    for _ in range(steps):
        state = step(state, h, gradient=lambda w: slope + 0 * w, noise=noise, temperature=0.0, **converted)
        path.append(float(state["theta"]) / slope)
    return np.diff(path)


@pytest.mark.parametrize("name, word, momentum", covering(SPEEDS, FEW_SPEEDS[::2] + WITHOUT_MOMENTUM[1:]))
def test_the_terminal_speed_at_temperature_0_is_that_of_sgd(name, word, momentum):
    """lr/(N (1 - momentum)) per step; without momentum, Euler's step has it, and no exact friction is infinite."""
    if momentum == 0 and "G" not in catalogue[name].schemes.get(word, word):
        with pytest.raises(RecipeError, match="infinite .*No step has that limit"):
            at_a_constant_gradient(name, word, momentum)
        return
    moves = at_a_constant_gradient(name, word, momentum)
    assert moves[-1] == pytest.approx(-0.0025 / (1 - momentum), rel=1e-12)
    # On the way there each step keeps the share `momentum` of what is missing, as in SGD.
    missing = 1 - moves[1:5] / moves[-1]
    assert missing[1:] == pytest.approx(momentum * missing[:-1], abs=1e-12)


@pytest.mark.parametrize("given", [{}, {"lr": 0.1}, {"momentum": 0.9}, {"eps": 0.1}, {"lr": 1, "momentum": 0, "C": 1}])
def test_parameters_of_no_paper_are_refused(given):
    with pytest.raises(RecipeError, match="sghmc, convert.*there is no such conversion. Known: lr, momentum"):
        SGHMC.convert(**given)
    with pytest.raises(RecipeError, match="Known: none"):
        catalogue["hmc-randomised"].convert(**given)


@pytest.mark.parametrize(
    "given, name",
    [
        *(({"lr": lr, "momentum": 0.9}, "lr") for lr in ("0.1", None, float("nan"), -0.1, 0.0)),
        ({"lr": 0.1, "momentum": 1.5}, "momentum"),
        ({"lr": 0.1, "momentum": 0.9, "num_data": 0}, "num_data"),
    ],
)
def test_a_parameter_of_a_paper_is_a_number_in_its_range(given, name):
    with pytest.raises(RecipeError, match=f"sghmc, convert, {name}"):
        SGHMC.convert(**given)


def test_a_conversion_for_a_letter_is_that_of_words_with_this_letter():
    lr = positive("lr")
    fast, slow = {step_size: lr}, {step_size: lr / 2}
    word = "B A O1 A B"
    recipe = replace(
        SGHMC, pieces={**SGHMC.pieces, "O1": friction(p) + noise(p)}, conversions={"lr": slow, "lr; O": fast}
    )
    assert recipe.convert("B A O A B", lr=0.5) == {"step_size": 0.5}
    assert recipe.convert(word, lr=0.5) == {"step_size": 0.25}
    with pytest.raises(RecipeError, match="no piece is named 'O2'"):
        recipe.convert("B A O2 A B", lr=0.5)
