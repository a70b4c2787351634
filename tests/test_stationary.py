"""Whether the chains that `sample` runs have the law they should have, end to end.

The null of an unadjusted scheme is its own law. A step is a pure function of state and noise, so that law is computed:
E[f(z_n)] from an exact start is a row of the n-th power of the matrix of one step in polynomials orthonormal under
exp(-H/T), by Gauss quadrature over state and noise. It is compared with exp(-H/T) without any randomness, and the
chains are compared with it. Only the last state of each chain is used, so chains are independent replicates.
"""

import itertools
import math
from dataclasses import dataclass, field
from functools import cache, cached_property

import numpy as np
import pytest
import torch
from error_budget import ALPHA, BUDGET, CLAIMS, Z

import integrators
import samplers
from integrators import compile
from recipe import Energy, Recipe, friction, positive, potential, scalar, total, vector
from samplers import ATMC, MSGNHT, SGHMC, SGLD, SGNHT, SGRLD, PreconditionedSGLD, UnderdampedLangevin, catalogue

T = 0.8
theta, p, s, r = (vector(name) for name in ("theta", "p", "s", "r"))
x, y = scalar("x"), scalar("y")


# ---- oracle: the law of a scheme by quadrature


@dataclass(frozen=True)
class Law:
    """The law exp(-energy/T) of one coordinate: Gauss nodes, orthonormal polynomials, moments, exact draws."""

    energy: object
    reach: float = 9.0
    nodes: int = 14
    temperature: float = T

    @cached_property
    def grid(self):
        """Points and weights so fine that sums over them are integrals."""
        at = np.linspace(-self.reach, self.reach, 8001)
        weight = np.exp(-self.energy(at) / self.temperature)
        return at, weight / weight.sum()

    def mean(self, f) -> float:
        """E f."""
        at, weight = self.grid
        return float(weight @ f(at))

    def draw(self, generator, shape):
        """Independent draws by the inverse of the distribution function."""
        at, weight = self.grid
        return np.interp(generator.random(shape), np.cumsum(weight) - weight / 2, at)

    @cached_property
    def recurrence(self):
        """Coefficients a, b of the orthonormal polynomials: b_k q_{k+1} = (x - a_k) q_k - b_{k-1} q_{k-1}."""
        at, weight = self.grid
        q, a, b = [np.ones_like(at)], [], []
        for k in range(self.nodes):
            a.append(weight @ (at * q[k] ** 2))
            rest = at * q[k]
            rest -= (np.array(q) @ (weight * rest)) @ np.array(q)
            b.append(math.sqrt(weight @ rest**2))
            q.append(rest / b[k])
        return np.array(a), np.array(b)

    @cached_property
    def quadrature(self):
        """Gauss nodes and weights (Golub & Welsch 1969)."""
        a, b = self.recurrence
        nodes, vectors = np.linalg.eigh(np.diag(a) + np.diag(b[:-1], 1) + np.diag(b[:-1], -1))
        return nodes, vectors[0] ** 2

    def polynomials(self, at, degree):
        """q_0, ..., q_degree at some points."""
        (a, b), q = self.recurrence, [np.zeros_like(at), np.ones_like(at)]
        for k in range(degree):
            q.append(((at - a[k]) * q[-1] - (b[k - 1] if k else 0) * q[-2]) / b[k])
        return np.stack(q[1:])


def gaussian(mean, variance, nodes=14):
    """The normal law of given mean and variance."""
    return Law(lambda z: T * (z - mean) ** 2 / (2 * variance), abs(mean) + 9 * variance**0.5, nodes)


class SchemeLaw:
    """One step in orthonormal polynomials, from laws of independent coordinates; `chart` leads to them from the state.

    `chart` is a pair of functions of numpy arrays, from coordinates to the state and back, where they differ.
    """

    def __init__(self, step, h, laws, degree, *, chart=None, noise_nodes=6, **arguments):
        outwards, inwards = chart or (lambda *z: z, lambda *z: z)
        self.names, self.laws, self.degree = list(laws), list(laws.values()), degree
        normal = gaussian(0, 1, noise_nodes)
        rules = [law.quadrature for law in self.laws] + [normal.quadrature] * len(step.draws)
        points, weights = (np.stack(np.meshgrid(*part, indexing="ij")).reshape(len(rules), -1) for part in zip(*rules))
        weight = weights.prod(0)
        points, weight = points[:, weight > 1e-16], weight[weight > 1e-16]
        self.z = points[: len(laws)]
        shaped = lambda b, v: torch.as_tensor(v)[:, None] if b.is_vector else torch.as_tensor(v)
        state = {b.name: shaped(b, v) for b, v in zip(step.recipe.state, outwards(*self.z))}
        drawn = {d: shaped(b, v) for (d, b), v in zip(step.draw_blocks.items(), points[len(laws):])}
        new = step(state, h, noise=drawn, temperature=T, **arguments)
        self.weighted = self.basis(self.z) * weight
        moved = self.basis(inwards(*(new[b.name].flatten().numpy() for b in step.recipe.state)))
        self.matrix = (torch.as_tensor(self.weighted) @ torch.as_tensor(moved).T).numpy()

    def basis(self, z):
        """Products of polynomials up to the total degree, a row each."""
        factors = [law.polynomials(at, self.degree) for law, at in zip(self.laws, z)]
        degrees = itertools.product(range(self.degree + 1), repeat=len(factors))
        self.degrees = [k for k in degrees if sum(k) <= self.degree]
        return np.stack([math.prod(f[i] for f, i in zip(factors, k)) for k in self.degrees])

    def after(self, steps, f) -> float:
        """E f(z) after so many steps from an exact start; f is a polynomial of the coordinates, in their order."""
        row = np.eye(len(self.matrix))[0]
        for _ in range(steps):
            row = row @ self.matrix
        return float(row @ (self.weighted @ f(*self.z)))

    def autocorrelation(self, steps) -> float:
        """The correlation of the first coordinate with itself so many steps earlier."""
        at = self.degrees.index((1,) + (0,) * (len(self.laws) - 1))
        return float(np.linalg.matrix_power(self.matrix, steps)[at, at])


def slope(theta):
    """grad U of U = theta^4/4 + theta^2/2 - 0.4 theta."""
    return theta**3 + theta - 0.4


def quartic(theta):
    """That U for the sites of one chain, in torch."""
    return (theta**4 / 4 + theta**2 / 2 - 0.4 * theta).sum()


QUARTIC = Law(lambda z: z**4 / 4 + z**2 / 2 - 0.4 * z, reach=6.0, nodes=24)
SYMBOLIC = Energy(theta, U=total(theta**4 / 4 + theta**2 / 2 - theta * 2 / 5))


def test_exact_moments_are_those_of_the_table():
    """The quartic at T = 1."""
    law = Law(QUARTIC.energy, reach=8.0, temperature=1.0)
    moments = [law.mean(lambda z: z**k) for k in (1, 2, 3, 4)]
    assert moments == pytest.approx([0.185854832046, 0.492700712470, 0.214145167954, 0.581641220348], abs=1e-9)


@pytest.mark.parametrize("h", [0.37, 0.1])
def test_the_quadrature_reproduces_the_closed_forms_of_a_gaussian_target(h):
    """BAOAB: Var theta = T/k, Var p = m T (1 - h^2 k/(4m)). SGLD: Var theta = 2T/(k(2 - h k))."""
    k, m = 2.3, 1.7
    target, steps = gaussian(0, T / k), 400
    chain = SchemeLaw(compile(UnderdampedLangevin), h, {"theta": target, "p": gaussian(0, m * T)}, 4,
                      gradient=lambda t: k * t, m=m, gamma=1.1)
    assert chain.after(steps, lambda t, p: t**2) == pytest.approx(T / k, rel=1e-9)
    assert chain.after(steps, lambda t, p: p**2) == pytest.approx(m * T * (1 - h**2 * k / (4 * m)), rel=1e-9)
    chain = SchemeLaw(compile(SGLD), h, {"theta": target}, 4, gradient=lambda t: k * t)
    assert chain.after(steps, lambda t: t**2) == pytest.approx(2 * T / (k * (2 - h * k)), rel=1e-9)


# ---- the stock samplers on a quartic energy


@dataclass(frozen=True)
class Run:
    """A stock sampler at T, masses and thermostats other than 1. A tuple is one value per site."""

    recipe: Recipe
    h: float
    steps: int
    bias: float  # of E theta^2, relative: what the scheme may have at this h
    parameters: dict = field(default_factory=dict)
    auxiliary: dict = field(default_factory=dict)  # block -> its law, given the parameters of one site
    energy: object = quartic
    degree: int = 6
    chains: int = 20_000
    sites: int = 2

    def at_site(self, i):
        """The parameters that site i sees."""
        return {name: v[i] if isinstance(v, tuple) else v for name, v in self.parameters.items()}


RUNS = {
    "sgld": Run(SGLD, 0.05, 80, bias=0.03, degree=20),
    "sgld-preconditioned": Run(PreconditionedSGLD, 0.04, 80, bias=0.04, parameters={"G": (0.6, 1.7)}, energy=SYMBOLIC,
                               degree=20),
    "sgrld": Run(SGRLD.bind(inverse_metric=lambda t: 1 + t**2 / 4), 0.05, 80, bias=0.05, degree=20),
    "underdamped-langevin": Run(UnderdampedLangevin, 0.2, 40, bias=2e-3, parameters={"gamma": 1.1, "m": (1.7, 0.6)},
                                auxiliary={"p": lambda gamma, m: gaussian(0, m * T)}, degree=8),
    "sghmc": Run(SGHMC, 0.2, 40, bias=1e-3, parameters={"C": 1.4, "m": 1.7},
                 auxiliary={"p": lambda C, m: gaussian(0, m * T)}, energy=SYMBOLIC, degree=8),
    "sgnht": Run(SGNHT, 0.15, 60, bias=1e-3, parameters={"A": 1.3, "mu": 0.7}, chains=40_000, sites=1,
                 auxiliary={"p": lambda A, mu: gaussian(0, T), "xi": lambda A, mu: gaussian(A, T / mu)}),
    "msgnht": Run(MSGNHT, 0.15, 60, bias=1e-3, parameters={"A": 1.3, "mu": 0.7}, energy=SYMBOLIC,
                  auxiliary={"p": lambda A, mu: gaussian(0, T), "xi": lambda A, mu: gaussian(A, T / mu)}),
    "atmc": Run(ATMC, 0.15, 60, bias=1e-3, parameters={"m": 1.7, "mu": 0.7, "Dmin": 0.9},
                auxiliary={"p": lambda m, **_: gaussian(0, m * T),  # xi: many nodes, for the friction has a kink
                           "xi": lambda mu, **_: gaussian(0, T / mu, nodes=60)}),
}
MOMENTS = {"theta": (1, 2, 4), "p": (2,), "xi": (1, 2)}

every = pytest.mark.parametrize("name", RUNS)


def test_every_stock_sampler_is_run():
    assert set(RUNS) == set(catalogue)


def law_of(name, site=0, h=None):
    """The law of a run's scheme at one site, for one step size."""
    return _law(name, h or RUNS[name].h, tuple(RUNS[name].at_site(site).items()))


@cache
def _law(name, h, parameters):
    run, values = RUNS[name], dict(parameters)
    laws = {"theta": QUARTIC} | {block: law(**values) for block, law in run.auxiliary.items()}
    return SchemeLaw(compile(run.recipe), h, laws, run.degree, gradient=slope, **values)


def exact(block, k, run, site=0):
    """E of the block's k-th power under exp(-H/T)."""
    law = QUARTIC if block == "theta" else run.auxiliary[block](**run.at_site(site))
    return law.mean(lambda z: z**k)


def expected(name, block, k, site=0, h=None, steps=None):
    """E of the block's k-th power under the scheme's own law."""
    run, law = RUNS[name], law_of(name, site, h)
    return law.after(steps or run.steps, lambda *z: z[law.names.index(block)] ** k)


@every
def test_the_law_of_the_step_is_near_the_target(name):
    run = RUNS[name]
    for site in range(run.sites):
        assert expected(name, "theta", 2, site) == pytest.approx(exact("theta", 2, run), rel=run.bias)


@every
def test_the_bias_vanishes_with_the_order_of_the_step(name):
    """Doubling h doubles the bias at order 1 and quadruples it at order 2; a wrong SDE leaves it as it is."""
    run, blocks = RUNS[name], ["theta", *RUNS[name].auxiliary]

    def bias(h, steps):
        errors = [expected(name, b, k, h=h, steps=steps) - exact(b, k, run) for b in blocks for k in MOMENTS[b]]
        return np.linalg.norm(errors)

    rate = math.log2(bias(run.h, run.steps) / bias(run.h / 2, 2 * run.steps))
    assert rate >= compile(run.recipe).order - 0.15


@pytest.mark.parametrize("other", ["0*theta", "1/2*theta", "temperature/4*theta", "-temperature/2*theta"],
                         ids=["dropped", "without-T", "halved", "other-sign"])
def test_the_bias_of_a_wrong_gamma_does_not_vanish(other):
    run = RUNS["sgrld"]
    step = compile(run.recipe)
    assert "temperature/2*theta" in step.source
    vars(step)["source"] = step.source.replace("temperature/2*theta", other)

    def bias(h, steps):
        law = SchemeLaw(step, h, {"theta": QUARTIC}, run.degree, gradient=slope)
        return np.linalg.norm([law.after(steps, lambda z: z**k) - exact("theta", k, run) for k in MOMENTS["theta"]])

    assert math.log2(bias(run.h / 4, 4 * run.steps) / bias(run.h / 8, 8 * run.steps)) < 0.5


@cache
def start_of(name):
    """An exact start, from numpy's generator and seed 0."""
    run = RUNS[name]
    return torch.as_tensor(QUARTIC.draw(np.random.default_rng(0), (run.chains, run.sites)))


def last_draw(recipe, energy, *, steps, **more):
    """The last state of the chains at temperature T and seed 0, by block."""
    draws = samplers.sample(recipe, energy, steps=steps, thin=steps, temperature=T, seed=0, progress=False, **more)
    return {block: x[:, 0] for block, x in draws.items()}


def standard_score(residuals) -> float:
    """The mean of independent residuals in standard errors."""
    return float(residuals.mean() / residuals.std() * residuals.numel() ** 0.5)


def scores_of(name) -> tuple[dict, dict]:
    """The moments of one run and its correlations, each in standard errors from its null."""
    run, start, sites = RUNS[name], start_of(name), range(RUNS[name].sites)
    per_site = {parameter: torch.tensor(v) if isinstance(v, tuple) else v for parameter, v in run.parameters.items()}
    draws = last_draw(run.recipe, run.energy, init=start, chains=run.chains, steps=run.steps, step_size=run.h,
                      keep=list(run.auxiliary), **per_site)
    end = {block: x.reshape(run.chains, -1) for block, x in draws.items()}
    moments = {}
    for block, k in [(block, k) for block in end for k in MOMENTS[block]]:
        null = torch.as_tensor(np.array([expected(name, block, k, site) for site in sites]))
        moments[f"{block}^{k}"] = standard_score(end[block] ** k - null)
    mean, square = (QUARTIC.mean(lambda z: z**k) for k in (1, 2))
    z0, z1 = ((x - mean) / (square - mean**2) ** 0.5 for x in (start, end["theta"]))
    lag = torch.as_tensor(np.array([law_of(name, site).autocorrelation(run.steps) for site in sites]))
    half = run.chains // 2
    pairs = {"start": z0 * z1 - lag, "next chain": z1[::2] * z1[1::2], "other half": z1[:half] * z1[half:]}
    pairs |= {"next site": z1[:, 0] * z1[:, 1]} if run.sites > 1 else {}
    return moments, {pair: standard_score(product) for pair, product in pairs.items()}


@every
def test_the_chains_have_the_law_of_the_step_and_are_independent(name):
    moments, independence = scores_of(name)
    assert not CLAIMS["stock law"].failures(moments)
    assert not CLAIMS["stock independence"].failures(independence)


# ---- planted mutants: each statistic sees what it is there for


MUTANTS = [  # run, what is wrong, text of the step, text in its place, statistic that sees it
    ("sgld", "noise of half the variance", "2*temperature*h", "temperature*h", "theta^2"),
    ("sgld", "temperature ignored", "2*temperature*h", "2*h", "theta^2"),
    ("sgld", "twice the force", "h*g", "2*h*g", "theta^2"),
    ("sgld", "noise shared by all chains", 'noise["theta"]', 'noise["theta"][:1]', "next chain"),
    ("sgld", "noise shared by halves", 'noise["theta"]', 'noise["theta"][:len(theta)//2].repeat(2, 1)', "other half"),
    ("sgld", "noise shared by sites", 'noise["theta"]', 'noise["theta"][:, :1]', "next site"),
    ("sgld", "one noise for all steps", 'noise["theta"]', 'vars(step).setdefault("kept", noise["theta"])', "theta^2"),
    ("sgld", "nothing moves", '{"theta": theta}', 'state', "start"),
    ("sgld-preconditioned", "preconditioner in the drift alone", "torch.sqrt(G)", "torch.ones_like(G)", "theta^4"),
    ("sgrld", "Gamma dropped", "temperature/2*theta", "0*theta", "theta^2"),
    ("sgrld", "metric in the drift alone", "torch.sqrt(x1 + 1)", "1", "theta^4"),
    ("underdamped-langevin", "noise without the mass", "torch.sqrt(m)", "torch.ones_like(m)", "p^2"),
    ("underdamped-langevin", "friction over half a step", "math.exp(-h*gamma)", "math.exp(-h/2*gamma)", "theta^2"),
    ("sghmc", "noise of friction 1", "(temperature*C - B)", "temperature", "theta^2"),
    ("sgnht", "thermostat without T", "- temperature/mu", "- 1/mu", "theta^2"),
    ("msgnht", "friction A in place of xi", "torch.exp(-h*xi)", "math.exp(-h*A)", "xi^2"),
    ("msgnht", "thermostat of mass 1", "1/mu*p**2 - temperature/mu", "p**2 - temperature", "xi^2"),
    ("atmc", "thermostat p^2 - T", "1/(m*mu)*p**2", "1/mu*p**2", "p^2"),
    ("atmc", "noise without the mass", "m*torch.clamp", "torch.clamp", "xi^1"),
]


@pytest.mark.parametrize("name, text, other, statistic", [(m[0], *m[2:]) for m in MUTANTS],
                         ids=[f"{m[0]}: {m[1]}".replace(" ", "-") for m in MUTANTS])
def test_a_planted_mutant_is_seen(name, text, other, statistic, plant):
    plant(text, other)
    moments, independence = scores_of(name)
    assert not abs((moments | independence)[statistic]) <= Z


@pytest.fixture
def plant(monkeypatch):
    """Replace a piece of text in the steps that `sample` runs; the oracles keep the true one."""
    planted = []

    def plant(text, other):
        def compile_mutant(*arguments, **more):
            step = compile(*arguments, **more)
            if text in step.source:
                vars(step)["source"] = step.source.replace(text, other)
                planted.append(step)
            return step

        monkeypatch.setattr(integrators, "compile", compile_mutant)

    yield plant
    assert planted, "no step has the text to be replaced"


# ---- one thermostat for several sites


def shared_scores():
    """SGNHT with n = 3: xi ~ N(A, T/(n mu)). The margins are twice the bias of n = 1 at this h, by quadrature."""
    A, mu, n, chains = 1.3, 0.7, 3, 12_000
    start = torch.as_tensor(QUARTIC.draw(np.random.default_rng(0), (chains, n)))
    theta, p, xi = last_draw(SGNHT, quartic, init=start, chains=chains, steps=100, step_size=0.1, keep=["p", "xi"], A=A,
                             mu=mu).values()
    square, fourth = (QUARTIC.mean(lambda z: z**k) for k in (2, 4))
    return {"theta^2": beyond(theta**2 - square, 1e-3), "theta^4": beyond(theta**4 - fourth, 1e-3),
            "p^2": beyond(p**2 - T, 0.01), "xi": beyond(xi - A, 0.02),
            "(xi - A)^2": beyond((xi - A) ** 2 - T / (n * mu), 0.02)}


def beyond(residuals, margin) -> float:
    """How far the mean of independent residuals lies outside of [-margin, margin], in standard errors."""
    error = float(residuals.std()) / residuals.numel() ** 0.5
    return max(abs(float(residuals.mean())) - margin, 0.0) / error


def test_a_shared_thermostat_holds_three_sites_at_the_target():
    assert not CLAIMS["shared thermostat"].failures(shared_scores())


@pytest.mark.parametrize("text, other", [("(mu*n)", "mu"), (".sum(1)", ".sum(1).mean().expand(len(x))")],
                         ids=["sum-in-place-of-the-mean", "total-over-chains"])
def test_a_mutant_of_the_shared_thermostat_is_seen(text, other, plant):
    plant(text, other)
    assert not abs(shared_scores()["(xi - A)^2"]) <= Z


# ---- recipes of one's own


BANANA = Recipe(
    name="banana", state=(x, y), target=(x, y), H=potential(x, y),
    D={x: 1, (x, y): x, y: 1 + x**2},
    Q={(x, y): (x + y) / 3},
)


def banana_scores():
    """U = x^2/2 + (y - x^2/2)^2, under which x and v = y - x^2/2 are independent normals of variance T and T/2."""
    chains, h, steps = 40_000, 0.02, 75
    chart = (lambda x, v: (x, v + x**2 / 2)), (lambda x, y: (x, y - x**2 / 2))
    laws = {"x": gaussian(0, T), "v": gaussian(0, T / 2)}
    slope = lambda z: {"x": z["x"] - 2 * z["x"] * (z["y"] - z["x"] ** 2 / 2), "y": 2 * (z["y"] - z["x"] ** 2 / 2)}
    law = SchemeLaw(compile(BANANA), h, laws, 10, chart=chart, gradient=slope)
    generator = np.random.default_rng(0)
    first, second = (torch.as_tensor(coordinate.draw(generator, chains)) for coordinate in laws.values())
    end = last_draw(BANANA, lambda z: z["x"] ** 2 / 2 + (z["y"] - z["x"] ** 2 / 2) ** 2, chains=chains, steps=steps,
                    step_size=h, init={"x": first, "y": second + first**2 / 2}).values()
    moments = {"x": lambda x, y: x, "x^2": lambda x, y: x**2, "y": lambda x, y: y, "y^2": lambda x, y: y**2,
               "x^2 y": lambda x, y: x**2 * y}
    return {name: standard_score(f(*end) - law.after(steps, lambda x, v: f(x, v + x**2 / 2)))
            for name, f in moments.items()}


def test_dense_D_and_Q_keep_a_banana():
    assert not CLAIMS["banana"].failures(banana_scores())


@pytest.mark.parametrize("text, other, statistic", [
    ("2*temperature/3", "0", "y"),
    ("temperature/3 - g_x", "1/3 - g_x", "x"),
], ids=["Gamma-of-y-dropped", "Gamma-of-x-without-T"])
def test_a_mutant_of_the_banana_sampler_is_seen(text, other, statistic, plant):
    plant(text, other)
    assert not abs(banana_scores()[statistic]) <= Z


m = positive("m", default=1.7)
MEMORY = Recipe(
    name="memory-kernel", state=(theta, p, s, r), target=theta,
    H=potential(theta) + total(p**2) / (2 * m) + total(s**2 + 2 * r**2) / 2,
    D={s: 1.3, r: 0.7, (s, r): 0.4},
    Q={(theta, p): -1, (p, s): -1.1, (p, r): -0.6, (s, r): 0.5},
    pieces={"O": (friction(p), s, r)}, scheme="B A O A B",
)


@cache
def memory_law(h):
    """The law of its scheme."""
    laws = {"theta": Law(QUARTIC.energy, 6.0, 12), "p": gaussian(0, 1.7 * T, 8), "s": gaussian(0, T, 6),
            "r": gaussian(0, T / 2, 6)}
    return SchemeLaw(compile(MEMORY), h, laws, 4, noise_nodes=3, gradient=slope)


def memory_scores():
    """p rubs through s and r, a matrix Ornstein-Uhlenbeck piece."""
    chains, h, steps = 20_000, 0.2, 50
    law = memory_law(h)
    start = torch.as_tensor(QUARTIC.draw(np.random.default_rng(0), (chains, 2)))
    end = last_draw(MEMORY, quartic, init=start, chains=chains, steps=steps, step_size=h, keep=["p", "s", "r"]).values()
    moments = {"theta": lambda theta, p, s, r: theta, "theta^2": lambda theta, p, s, r: theta**2,
               "theta^4": lambda theta, p, s, r: theta**4, "p^2": lambda theta, p, s, r: p**2,
               "s^2": lambda theta, p, s, r: s**2, "r^2": lambda theta, p, s, r: r**2,
               "s r": lambda theta, p, s, r: s * r}
    return {name: standard_score(f(*end) - law.after(steps, f)) for name, f in moments.items()}


def test_a_memory_kernel_keeps_the_target():
    assert not CLAIMS["memory kernel"].failures(memory_scores())


@pytest.mark.parametrize("text, other, statistic", [
    ("2*temperature/5", "0*temperature", "s r"),
    ("13*temperature/10", "13/10", "s^2"),
], ids=["uncorrelated-noise", "one-noise-without-T"])
def test_a_mutant_of_the_memory_kernel_is_seen(text, other, statistic, plant):
    plant(text, other)
    assert not abs(memory_scores()[statistic]) <= Z


# ---- gradient noise of known covariance


K, SPREAD = 2.3, 0.9
ROWS = SPREAD * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
V_G = (K * SPREAD) ** 2  # the gradient at one row of four is K (theta - row): covariance V_G times the identity


noisy = samplers.posterior(lambda theta, rows: ((theta - rows) ** 2).sum(-1) * K / (2 * len(ROWS)),
                           lambda theta: 0 * theta.sum(), num_data=len(ROWS))


def inflated(temperature, m, gamma, h):
    """Var theta of BAOAB with one gradient per step, carried over: A O A B with whole kicks."""
    return temperature / K + V_G * h**2 / math.tanh(gamma * h / 2) / (K * (4 * m - h**2 * K))


def noisy_chains(recipe, variance, *, h, steps, chains=10_000, **more):
    """The last state, by block, of chains that start at a given variance of theta, on batches of one row."""
    start = variance**0.5 * torch.as_tensor(np.random.default_rng(0).standard_normal((chains, 2)))
    return last_draw(recipe, noisy, init=start, data=ROWS, batch_size=1, chains=chains, steps=steps, step_size=h,
                     **more)


def test_gradient_noise_heats_langevin_as_the_closed_form_says():
    """Not at all in an SDE's eyes (T/k), half as much with a fresh gradient for each half-kick."""
    h, m, gamma = 0.37, 1.7, 1.1
    null = inflated(T, m, gamma, h)
    theta = noisy_chains(UnderdampedLangevin, null, h=h, steps=60, m=m, gamma=gamma)["theta"]
    assert not CLAIMS["gradient noise"].failures({"theta^2": standard_score(theta**2 - null)})
    for other in (T / K, (T / K + null) / 2):
        assert abs(standard_score(theta**2 - other)) > Z


def test_sghmc_that_knows_the_noise_is_not_heated():
    """Of the noise of its friction the gradient supplies B = h V_g/2: Var theta = T/k up to O(h^2)."""
    h, m, C = 0.2, 1.7, 1.9
    B = h * V_G / 2
    null = inflated(T - B / C, m, C / m, h)
    assert null == pytest.approx(T / K, rel=0.02)
    theta = noisy_chains(SGHMC, null, h=h, steps=100, C=C, B=B, m=m)["theta"]
    assert not CLAIMS["gradient noise"].failures({"theta^2": standard_score(theta**2 - null)})
    assert abs(standard_score(theta**2 - inflated(T, m, C / m, h))) > Z


@pytest.mark.parametrize("recipe", [SGNHT, MSGNHT], ids=lambda recipe: recipe.name)
def test_a_thermostat_absorbs_noise_that_it_was_not_told_of(recipe):
    """Var theta stays T/k, and xi moves from A to A + h V_g/(2T); both up to O(h^2), the margins."""
    h, A = 0.1, 0.9
    end = noisy_chains(recipe, T / K, h=h, steps=200, A=A, mu=0.7, keep=["xi"])
    scores = {"theta^2": beyond(end["theta"] ** 2 - T / K, 3e-3), "xi": beyond(end["xi"] - A - h * V_G / (2 * T), 0.02)}
    assert not CLAIMS["gradient noise"].failures(scores)
    assert beyond(end["xi"] - A, 0.02) > Z


# ---- the error budget


def test_the_false_alarms_of_the_whole_suite_stay_within_the_budget():
    assert sum(claim.alpha for claim in CLAIMS.values()) <= BUDGET
    assert math.erfc(Z / 2**0.5) < ALPHA / 20


@pytest.mark.parametrize("name", CLAIMS)
def test_every_claim_sees_its_effect(name):
    assert CLAIMS[name].power > 0.999
