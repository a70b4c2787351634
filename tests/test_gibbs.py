"""Blocks drawn from a law that is given: it is proved to be that of exp(-H) given all else, at every temperature."""

import math
from dataclasses import replace
from itertools import cycle, product

import numpy as np
import pytest
import torch
from covering import covering
from scipy import integrate
from statements import interpret
from sympy import exp, log

import samplers
from integrators import compile
from recipe import Recipe, RecipeError, by_category, gibbs, laws, positive, potential, refresh, scalar, total, vector
from samplers.testing.interpreter import Chain, flow_by_flow
from samplers.testing.quadrature import gamma as laguerre
from samplers.testing.random_calls import by_oracle, called, inputs, worst

theta, p = vector("theta"), vector("p")
x, m = vector("x"), scalar("m")
tau, v = scalar("tau", domain="positive"), vector("v", domain="positive")
share = scalar("share", domain="fraction")
on, kind = vector("on", domain="binary"), vector("kind", domain=("categories", 3))
a, b = positive("a", default=2.3), positive("b", default=0.8)
n, S = total(1), total(theta**2)
CENTRES, WEIGHTS = (-1, 0, 2), (a, 1, b)


def latent(block, energy, law, **more):
    """theta by Euler's step, and a block by its law."""
    declared = dict(name=type(law).__name__.lower(), state=(theta, block), target=theta, D={theta: 1}, scheme="G Euler")
    return Recipe(H=S / 2 + energy, jumps={"G": gibbs(block, law)}, **{**declared, **more})


NORMAL = latent(m, a * (m - total(theta)) ** 2 / 2, laws.Normal(total(theta), 1 / a))
NORMALS = latent(x, total((x - theta) ** 2 * (a + theta**2)) / 2, laws.Normal(theta, 1 / (a + theta**2)))
GAMMA = latent(tau, tau * S / 2 - (n / 2 + a - 1) * log(tau) + b * tau, laws.Gamma(a + n / 2, b + S / 2))
INVERSE = latent(
    v, total(theta**2 / v) / 2 + total((a + 1.5) * log(v) + b / v), laws.InverseGamma(a + 0.5, b + theta**2 / 2)
)
BETA = latent(share, -a * log(share) - (b + S) * log(1 - share), laws.Beta(a + 1, b + 1 + S))
BERNOULLI = latent(on, total(on * (a * theta - b)), laws.Bernoulli(1 / (1 + exp(a * theta - b))))
CATEGORICAL = latent(
    kind,
    total((theta - by_category(kind, *CENTRES)) ** 2) / 2 - total(log(by_category(kind, *WEIGHTS))),
    laws.Categorical(*(w * exp(-((theta - c) ** 2) / 2) for w, c in zip(WEIGHTS, CENTRES))),
)
ALL = [NORMAL, NORMALS, GAMMA, INVERSE, BETA, BERNOULLI, CATEGORICAL]
names = [f"{R.name} of {R.state[1]}" for R in ALL]


@pytest.mark.parametrize("oracle", [interpret, flow_by_flow])
@pytest.mark.parametrize("recipe", ALL, ids=names)
def test_the_emitted_draw_equals_the_oracle(recipe, oracle):
    step = compile(recipe)
    for seed, shape in enumerate([(), (3,), (2, 2)]):
        state, drawn, parameters = inputs(step, 6, shape, seed)
        assert worst(called(step, state, drawn, parameters), by_oracle(oracle, step, state, drawn, parameters)) <= 1e-12


# ---- the law of what is drawn: moments of the emitted step against those of exp(-H/T), of which only H is known

SITES, NODES, UNIFORMS = 2, 40, 2**14
STATE = np.array([0.6, -1.1])


def moments_drawn(recipe, T, powers):
    """E x'^k at every site, by nodes of normal and Gamma numbers that the sites share, and a grid of uniform ones."""
    step = compile(recipe, freeze=theta)
    block = recipe.state[1]
    kinds = [kind for name, kind in step.draws.items() if step.draw_blocks[name] == block]
    own = [name for name in step.draws if step.draw_blocks[name] == block]
    grids = np.meshgrid(*(np.arange(UNIFORMS if kind == "uniform" else NODES) for kind in kinds), indexing="ij")
    number = grids[0].size
    weights = np.ones((number, SITES if block.is_vector else 1))
    shape = weights.shape if block.is_vector else (number,)

    def of_gamma(k):
        def draw(parameter):
            at = torch.as_tensor(parameter, dtype=torch.float64).broadcast_to(shape).reshape(weights.shape).numpy()
            drawn = np.empty_like(at)
            for site in range(at.shape[1]):
                points, w = laguerre(at[0, site], nodes=NODES)
                drawn[:, site] = points[k]
                weights[:, site] *= w[k]
            return torch.tensor(drawn.reshape(shape))

        return draw

    def numbers(kind, grid):
        k = grid.ravel()
        if kind == "gamma":
            return of_gamma(k)
        points, w = np.polynomial.hermite_e.hermegauss(NODES)
        if kind == "normal":
            weights[:] *= w[k][:, None]
        drawn = torch.tensor(points[k] if kind == "normal" else (k + 0.5) / UNIFORMS)
        return drawn[:, None].expand(shape) if block.is_vector else drawn

    noise = {name: numbers(kind, grid) for name, kind, grid in zip(own, kinds, grids)}
    state = {"theta": torch.tensor(STATE).expand(number, SITES), block.name: torch.ones(shape, dtype=torch.float64)}
    after = step(state, 0.1, noise=noise, temperature=T)[block.name].reshape(weights.shape).numpy()
    return np.array([(after**k * weights).sum(0) / weights.sum(0) for k in powers])


def moments_of_H(recipe, T, powers):
    """The same by adaptive quadrature of exp(-H/T) over the block at one site, the other site held."""
    block = recipe.state[1]
    chain = Chain(recipe, {"theta": STATE[None], block.name: np.ones((1, SITES) if block.is_vector else 1)}, 0.1, {})

    def energy(value, site):
        at = np.ones((1, SITES) if block.is_vector else 1)
        at[(0, site) if block.is_vector else 0] = value
        chain.at[block] = chain.lift(at, block)
        return float(np.squeeze(chain.value(recipe.H)))

    def mean(k, site):
        if block.domain.categories:
            values = range(block.domain.categories)
            w = [math.exp(-energy(value, site) / T) for value in values]
            return sum(value**k * each for value, each in zip(values, w)) / sum(w)
        low, high = map(float, (block.domain.low, block.domain.high))
        lowest = energy(0.7, site)

        def density(value):
            return math.exp((lowest - energy(value, site)) / T)

        weigh = [integrate.quad(lambda y: y**j * density(y), low, high, limit=400)[0] for j in (0, k)]  # noqa: B023
        return weigh[1] / weigh[0]

    return np.array([[mean(k, site) for site in range(SITES if block.is_vector else 1)] for k in powers])


@pytest.mark.parametrize(
    "recipe, T",
    covering(product(ALL, (0.7, 1.4)), zip(ALL, cycle((0.7, 1.4)))),
    ids=[f"{name}-{T}" for name in names for T in (0.7, 1.4)],
)
def test_what_is_drawn_has_the_law_of_H_given_all_else(recipe, T):
    powers = (-1, -2) if recipe is INVERSE else (1, 2)  # its own tails are heavy
    tolerance = 1e-3 if recipe.state[1].domain.is_discrete else 2e-5
    expected = moments_of_H(recipe, T, powers)
    assert moments_drawn(recipe, T, powers) == pytest.approx(expected, rel=tolerance, abs=1e-12)


@pytest.mark.parametrize("recipe", [NORMALS, GAMMA, CATEGORICAL], ids=lambda R: R.name)
def test_the_certificate_says_how_the_law_is_known(recipe):
    certificate = recipe.check()
    assert certificate["conditional"].verdict == "proved" and certificate.exact, str(certificate)


def test_a_law_that_no_simplification_shows_is_checked_at_random_states():
    recipe = latent(m, a * (m - theta_of_unlike_form()) ** 2 / 2, laws.Normal(total(theta), 1 / a))
    assert recipe.check()["conditional"].verdict in ("proved", "checked")


def theta_of_unlike_form():
    return total(log(exp(theta)))


# ---- laws that are others


def redrawn(recipe, block, law):
    return lambda: replace(recipe, jumps={"G": gibbs(block, law)})


def gamma_with(shape, rate):
    return redrawn(GAMMA, tau, laws.Gamma(shape, rate))


WRONG = {
    "half of the sites forgotten": (gamma_with(a, b + S / 2), ["further factor tau**(n/2)"]),
    "a shape that is one off": (gamma_with(a + n / 2 - 1, b + S / 2), ["further factor tau"]),
    "squares that are not halved": (gamma_with(a + n / 2, b + S), ["further factor exp(tau*total(theta**2)/2)"]),
    "a variance for a precision": (redrawn(NORMAL, m, laws.Normal(total(theta), a)), ["is N(total(theta), a) times"]),
    "another mean": (redrawn(NORMAL, m, laws.Normal(0, 1 / a)), ["further factor"]),
    "odds the other way round": (
        redrawn(BERNOULLI, on, laws.Bernoulli(1 / (1 + exp(b - a * theta)))),
        ["further factor"],
    ),
    "weights without their prior": (
        redrawn(CATEGORICAL, kind, laws.Categorical(*(exp(-((theta - c) ** 2) / 2) for c in CENTRES))),
        ["further factor"],
    ),
    "a domain of another law": (redrawn(NORMAL, m, laws.Gamma(1, 1)), ["m is real", "positive"]),
    "two weights for three categories": (
        redrawn(CATEGORICAL, kind, laws.Categorical(1, 1)),
        ["kind is one of 3 categories", "as many categories as weights"],
    ),
    "sites that are not independent": (
        lambda: latent(x, (total(x) - a) ** 2 + total(x**2), laws.Normal(0, 1)),
        ["the sites of x are not independent"],
    ),
    "a law of itself": (gamma_with(a, tau), ["tau reads tau", "without tau"]),
    "one value per site for one number": (gamma_with(a, b + theta**2), ["one value per site", "total()"]),
    "the block of an open U": (
        lambda: Recipe(
            name="open", state=(theta,), H=potential(theta), D={theta: 1}, jumps={"G": gibbs(theta, laws.Normal(0, 1))}
        ),
        ["that of U, which is open"],
    ),
    "a shape that may be negative": (
        lambda: latent(tau, (b - a) * log(tau) + tau, laws.Gamma(1 + a - b, 1)),
        ["shape = a - b + 1 may be below 0"],
    ),
    "categories without a law": (
        lambda: replace(CATEGORICAL, jumps={"G": refresh(kind)}),
        ["not read off H", "laws.Categorical"],
    ),
    "no law": (lambda: gibbs(tau, 3), ["of a block and a law", "laws.Gamma"]),
    "no block": (lambda: gibbs("tau", laws.Gamma(1, 1)), ["of a block and a law"]),
    "a parameter in words": (lambda: laws.Gamma("a", 1), ["Gamma, shape", "Text is never evaluated"]),
    "one category": (lambda: vector("z", domain=("categories", 1)), ["1 is no number of categories"]),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_law_that_is_another_one_is_refused_and_the_factor_is_named(mistake):
    make, words = WRONG[mistake]
    with pytest.raises(RecipeError) as raised:
        make()
    assert all(word in str(raised.value) for word in words), str(raised.value)


def test_a_temperature_at_which_the_law_has_no_finite_integral_is_refused():
    """(shape + 1)/T - 1 is negative from T = shape + 1 on."""
    wide = latent(tau, (a + 1) * log(tau) + b / tau, laws.InverseGamma(a, b))
    assert compile(wide).check_budget(0.1, 3.0) is None
    with pytest.raises(RecipeError, match="at temperature 4 the target is not normalisable"):
        compile(wide).check_budget(0.1, 4.0)


# ---- in runs


def hyperprior():
    """Langevin dynamics under a prior whose precision is drawn, as in the experiments of Chen et al. (2014)."""
    return Recipe(
        name="hyperprior",
        state=(theta, p, tau),
        H=potential(theta) + total(p**2) / 2 + GAMMA.H - S / 2,
        D={p: 1},
        Q={(theta, p): -1},
        jumps=GAMMA.jumps,
        scheme="B A O A B G",
    )


def test_a_run_and_its_report_know_that_H_holds_more_than_U():
    draws = samplers.sample(
        hyperprior(),
        lambda theta: 1.5 * ((theta - 1) ** 2).sum(),
        init=torch.zeros(3),
        chains=8,
        steps=100,
        warmup=50,
        step_size=0.2,
        keep=["theta", "tau"],
        progress=False,
    )
    assert draws["tau"].shape == (8, 100) and (draws["tau"] > 0).all()
    report = draws.report()
    assert any("holds more of the target's energy than U" in reason for reason in report.unasked)
    assert not [f for f in report.findings if f.question == "configurational temperature"]


def test_the_optimizer_draws_one_precision_for_all_weights():
    network = torch.nn.Linear(3, 1)
    optimizer = samplers.Optimizer(network.parameters(), hyperprior(), step_size=0.05, num_data=20)
    seen = []
    for _ in range(5):
        optimizer.zero_grad()
        network(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()
        seen.append({float(state["tau"]) for state in optimizer.state.values() if "tau" in state})
    assert len(set.union(*seen)) == 5 and all(len(values) == 1 for values in seen)


# ---- far from every centre


@pytest.mark.parametrize("T", [1.0, 0.01])
def test_a_category_is_that_of_the_next_centre_where_all_weights_underflow(T):
    step = compile(CATEGORICAL, freeze=theta)
    far = torch.tensor([[-200.0, 200.0]])
    for u in (0.01, 0.99):
        noise = {name: torch.full_like(far, u) for name in step.draws if step.draw_blocks[name] == kind}
        after = step({"theta": far, "kind": torch.ones(1, 2)}, 0.1, noise=noise, temperature=T)
        assert after["kind"].tolist() == [[0, 2]]


def test_odds_of_two_weights_that_both_underflow_are_those_of_their_energies():
    one, other = a * exp(-((theta - 1) ** 2) / 2), b * exp(-((theta + 1) ** 2) / 2)
    law = laws.Bernoulli(one / (one + other))
    energy = total((theta - by_category(on, -1, 1)) ** 2) / 2 - total(log(by_category(on, b, a)))
    step = compile(latent(on, energy, law), freeze=theta)
    far = torch.tensor([[-200.0, 200.0]])
    noise = {name: torch.full_like(far, 0.5) for name in step.draws if step.draw_blocks[name] == on}
    assert step({"theta": far, "on": torch.ones(1, 2)}, 0.1, noise=noise)["on"].tolist() == [[0, 1]]


WORDS = {
    "fewer values than categories": (lambda: by_category(kind, 1, 2), "2 values for kind, which is one of 3"),
    "no values": (lambda: by_category(kind), "0 values for kind"),
    "a number": (lambda: by_category(theta, 1, 2), "2 values for theta, which is one of 0"),
    "a weight of nothing": (lambda: laws.Categorical(1, 0, 1), "0 is not positive"),
    "a weight that may be negative": (
        lambda: latent(kind, -total(log(by_category(kind, 1, a, a - b))), laws.Categorical(1, a, a - b)),
        "may be below 0",
    ),
}


@pytest.mark.parametrize("case", WORDS)
def test_values_and_weights_that_are_none_are_refused(case):
    make, words = WORDS[case]
    with pytest.raises(RecipeError, match=words):
        make()
