"""Whether the chains that `sample` runs have the law they should have, end to end.

The null of an unadjusted scheme is its own law. A step is a pure function of state and noise, so that law is computed:
E[f(z_n)] from an exact start is a row of the n-th power of the matrix of one step in polynomials orthonormal under
exp(-H/T), by Gauss quadrature over state and noise. It is compared with exp(-H/T) without any randomness, and the
chains are compared with it. Only the last state of each chain is used, so chains are independent replicates. Adapted
quantities stand still here, at values of the state; budgets for gradient noise are met by minibatches.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cache, partial

import numpy as np
import pytest
import torch
from covering import EVERY_MECHANISM, covering
from error_budget import ALPHA, BUDGET, CLAIMS, Z, beyond, standard_score
from many_steps import CoordinateLaw, SchemeLaw, normal
from spike_and_slab import LATENTS, PRIOR, SPIKE, drawn, mixed, others, shrunk, sigma
from zoo import BANANA

import integrators
import samplers
from integrators import compile
from recipe import Energy, Recipe, friction, positive, potential, scalar, total, vector
from samplers import MSGNHT, SGHMC, SGLD, SGNHT, UnderdampedLangevin, catalogue
from samplers.testing.planted import planted

T = 0.8
theta, p, s, r = (vector(name) for name in ("theta", "p", "s", "r"))
x, y = scalar("x"), scalar("y")


def slope(theta):
    """grad U of U = theta^4/4 + theta^2/2 - 0.4 theta."""
    return theta**3 + theta - 0.4


def quartic(theta):
    """That U for the sites of one chain, in torch."""
    return (theta**4 / 4 + theta**2 / 2 - 0.4 * theta).sum()


def quartic_law(scale=1.0, extra=lambda z: 0 * z, nodes=24):
    """theta under U/scale and more, at T."""
    return CoordinateLaw(lambda z: (z**4 / 4 + z**2 / 2 - 0.4 * z) / scale + extra(z), 6.0, nodes, T)


QUARTIC = quartic_law()
SYMBOLIC = Energy(theta, U=total(theta**4 / 4 + theta**2 / 2 - theta * 2 / 5))


def test_exact_moments_are_those_of_the_table():
    """The quartic at T = 1."""
    law = CoordinateLaw(QUARTIC.energy, reach=8.0, temperature=1.0)
    moments = [law.mean(lambda z: z**k) for k in (1, 2, 3, 4)]
    assert moments == pytest.approx([0.185854832046, 0.492700712470, 0.214145167954, 0.581641220348], abs=1e-9)


@pytest.mark.parametrize("h", [0.37, 0.1])
def test_the_quadrature_reproduces_the_closed_forms_of_a_gaussian_target(h):
    """BAOAB: Var theta = T/k, Var p = m T (1 - h^2 k/(4m)). SGLD: Var theta = 2T/(k(2 - h k))."""
    k, m = 2.3, 1.7
    target, steps = normal(0, T / k), 400
    chain = SchemeLaw(
        compile(UnderdampedLangevin),
        h,
        {"theta": target, "p": normal(0, m * T)},
        4,
        gradient=lambda t: k * t,
        temperature=T,
        m=m,
        gamma=1.1,
    )
    assert chain.after(steps, lambda t, p: t**2) == pytest.approx(T / k, rel=1e-9)
    assert chain.after(steps, lambda t, p: p**2) == pytest.approx(m * T * (1 - h**2 * k / (4 * m)), rel=1e-9)
    chain = SchemeLaw(compile(SGLD), h, {"theta": target}, 4, gradient=lambda t: k * t, temperature=T)
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
    auxiliary: dict = field(default_factory=dict)  # coordinate -> its law, given the parameters of one site
    adapted: dict = field(default_factory=dict)  # what the adapted quantities stand at
    noise: float = 0.0  # the variance of the gradient
    target: CoordinateLaw = QUARTIC
    slope: object = slope
    energy: object = SYMBOLIC  # or a function in torch
    scheme: str | None = None
    curvature: object = None
    coupling: object = None  # an energy of the coordinates, beside those of their laws
    chart: tuple = (lambda *z: z, lambda *z: z)  # from coordinates to blocks and back, where they differ
    start: object = None  # (generator, shape) -> blocks drawn from exp(-H/T), theta alone if left out
    temperature: float = T
    degree: int = 6
    chains: int = 12_000
    sites: int = 2

    @property
    def first(self) -> str:
        """The first coordinate of the target."""
        return self.recipe.targets[0].name

    def step(self):
        return compile(self.recipe, self.scheme, freeze=list(self.adapted))

    def at_site(self, i):
        """The parameters that site i sees."""
        return {name: v[i] if isinstance(v, tuple) else v for name, v in self.parameters.items()}

    def laws(self, **at_site):
        """The laws of the coordinates at a site."""
        return {self.first: self.target} | {block: law(**at_site) for block, law in self.auxiliary.items()}

    def law(self, step, h, **at_site):
        """The law of its scheme, by another step or step size."""
        more = NUM_DATA if self.noise else {"curvature": self.curvature} if self.curvature else {}
        return SchemeLaw(
            step,
            h,
            self.laws(**at_site),
            self.degree,
            chart=self.chart,
            gradient=self.slope,
            constants=self.adapted,
            coupling=self.coupling,
            gradient_noise=self.noise,
            gradient_nodes=2,
            temperature=self.temperature,
            **more,
            **at_site,
        )

    def drawn(self):
        """An exact start, from numpy's generator and seed 0."""
        generator, shape = np.random.default_rng(0), (self.chains, self.sites)
        blocks = self.start(generator, shape) if self.start else {self.first: self.target.draw(generator, shape)}
        vector = {b.name: b.is_vector for b in self.recipe.state}
        return {name: torch.as_tensor(v if vector[name] else v[:, 0]) for name, v in blocks.items()}

    def data(self):
        """The energy and, where its gradient is noisy, data that make it so: +-1 for each site."""
        if not self.noise:
            return dict(energy=self.energy)

        def tilted(theta, rows):
            return quartic(theta) + self.noise**0.5 * (rows[0] * theta).sum()

        return dict(energy=tilted, data=SIGNS, batch_size=1)


SIGNS = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
NUM_DATA = {"num_data": len(SIGNS)}
MAXWELL = {"p": lambda m, **_: normal(0, m * T)}
HEAVY = {"C": 1.4, "m": 1.7}


def spiked(generator, shape, law):
    """theta under the sum over gamma, then gamma given theta; `law`: of theta without the sparse share."""

    def odds(z, g):
        return np.exp(-drawn(z, g) / T)

    z = CoordinateLaw(lambda z: law.energy(z) - T * np.log(odds(z, 0) + odds(z, 1)), 6.0, temperature=T).draw(
        generator, shape
    )
    return {"theta": z, "gamma": (generator.random(shape) * (odds(z, 0) + odds(z, 1)) < odds(z, 1)).astype(float)}


# the relativistic momentum p = m c sinh(u); `sample` draws normal ones only, so it is given at the start
FAST = {"m": 1.7, "c": 1.3}
MC = FAST["m"] * FAST["c"]
RAPIDITY = CoordinateLaw(lambda u: MC * FAST["c"] * (np.cosh(u) - 1) - T * np.log(np.cosh(u)), 3.5, 16, T)


def rapidity(p):
    return (p / MC).asinh() if torch.is_tensor(p) else np.arcsinh(p / MC)


EINSTEIN = dict(
    chart=(lambda z, u, *xi: (z, MC * np.sinh(u), *xi), lambda z, p, *xi: (z, rapidity(p), *xi)),
    start=lambda *at: {"theta": QUARTIC.draw(*at), "p": MC * np.sinh(RAPIDITY.draw(*at))},
)


def coin(**_):
    return CoordinateLaw(lambda z: 0 * z, nodes=2, points=(0.0, 1.0))


PLANE = {"L_xx": lambda x, y: 1 + y / 5, "L_yx": lambda x, y: x / 3, "L_yy": lambda x, y: 1}
TILT = normal(0, T / 1.2)

FIRST_ORDER = {"h": 0.04, "steps": 80, "bias": 0.05, "degree": 20}
SECOND_ORDER = {"h": 0.2, "steps": 40, "bias": 5e-3, "degree": 8}
THERMOSTATTED = {"h": 0.15, "steps": 60, "bias": 1e-3}
OF_SGNHT = {"p": lambda A, mu: normal(0, T), "xi": lambda A, mu: normal(A, T / mu)}
OF_ATMC = {"xi": lambda mu, **_: normal(0, T / mu, nodes=60)}  # many nodes, for the friction has a kink
BOUND = {
    "sgrld": {"inverse_metric": lambda t: 1 + t**2 / 4},
    "sgrld-dense": PLANE,
    "sgrhmc": {"inverse_metric": lambda t: 1 / (1 + t**2 / 4)},
}
ROWS = {
    "sgld": FIRST_ORDER | dict(h=0.05, bias=0.03, energy=quartic),
    "sgld-preconditioned": FIRST_ORDER | dict(bias=0.04, noise=7.0, parameters={"G": (0.6, 1.7), "V": 7.0, "K": 0.4}),
    "psgld": FIRST_ORDER | dict(adapted={"V": 0.7}, parameters={"lam": 0.3}),
    "psgld-same-step": FIRST_ORDER | dict(adapted={"V": 0.7}, parameters={"lam": 0.3}),
    "psgld-gamma": FIRST_ORDER
    | dict(adapted={"V": 0.7}, parameters={"lam": 0.3, "alpha": 0.8}, curvature=lambda z: 3 * z**2 + 1),
    "sgrld": FIRST_ORDER | dict(h=0.05, chains=20_000),
    "sgrld-dense": dict(
        h=0.02,
        steps=80,
        bias=0.05,
        auxiliary={"y": lambda: TILT},
        slope=lambda at: {"x": slope(at["x"]), "y": 1.2 * at["y"]},
        chains=24_000,
        sites=1,
        degree=12,
        energy=lambda at: quartic(at["x"]) + 0.6 * at["y"] ** 2,
        start=lambda *at: {"x": QUARTIC.draw(*at), "y": TILT.draw(*at)},
    ),
    "sgrld-simplex": dict(
        h=0.02,
        steps=60,
        bias=0.02,
        parameters={"a": 9.0},
        degree=14,
        target=CoordinateLaw(lambda z: 0.3 * (z - 6) ** 2 + z - 8 * np.log(z), 16.0, 20, T, low=1e-9),
        slope=lambda z: 0.6 * (z - 6),
        energy=lambda z: 0.3 * ((z - 6) ** 2).sum(),
    ),
    "sgrld-cir": dict(
        h=0.3,
        steps=5,
        bias=1e-9,
        parameters={"a": 0.6, "counts": 4.3},
        energy=None,
        target=CoordinateLaw(lambda z: z - 3.9 * np.log(z), 40.0, 14, T, low=1e-9),
    ),
    "sgfs": FIRST_ORDER | dict(h=0.05, adapted={"I1": 0.4}, parameters={"B": 1.4, "b": 1.0}, noise=6.4),
    "vsgd": FIRST_ORDER | dict(h=0.4, bias=0.04, parameters={"V": 20.0}, noise=20.0),
    "isgd-ideal": FIRST_ORDER | dict(h=0.7, bias=0.03, parameters={"lam": 20.0, "B": 4.0}, noise=8.0),
    "isgd": FIRST_ORDER
    | dict(h=0.7, bias=0.03, adapted={"lam": 20.0, "b": 4.0}, noise=8.0)
    | dict(temperature=1.0, target=replace(QUARTIC, temperature=1.0)),
    "underdamped-langevin": SECOND_ORDER
    | dict(bias=2e-3, parameters={"gamma": 1.1, "m": (1.7, 0.6)}, auxiliary=MAXWELL),
    "sghmc": SECOND_ORDER | dict(bias=1e-3, parameters=HEAVY, auxiliary=MAXWELL),
    "sghmc-adaptive": SECOND_ORDER
    | dict(bias=0.01, parameters={"gamma": 1.1, "lam": 0.3}, adapted={"V": 0.7, "gbar": 0.2, "tau": 3.0}, noise=0.7)
    | dict(scheme="A B O B A", auxiliary={"p": lambda lam, **_: normal(0, (lam + 0.7**0.5) * T)}),
    "sgrhmc": SECOND_ORDER | dict(auxiliary={"p": lambda: normal(0, T)}, degree=10),
    "sghmc-relativistic": SECOND_ORDER
    | dict(parameters={**FAST, "C": 1.4}, auxiliary={"u": lambda **_: RAPIDITY}, degree=10, **EINSTEIN),
    "mala": dict(h=0.05, steps=40, bias=0.05, parameters={"G": (0.6, 1.2)}),
    "hmc": SECOND_ORDER
    | dict(h=0.3, steps=60, bias=0.06, parameters={"m": (1.7, 0.6)}, auxiliary=MAXWELL, energy=quartic, degree=10),
    "ghmc": SECOND_ORDER | dict(bias=0.025, parameters={"gamma": 1.1, "m": (1.7, 0.6)}, auxiliary=MAXWELL),
    "hmc-randomised": SECOND_ORDER
    | dict(energy=quartic, parameters={"m": 1.7, "nu": 0.9}, auxiliary=MAXWELL, degree=10),
    "sgnht": THERMOSTATTED
    | dict(energy=quartic, parameters={"A": 1.3, "mu": 0.7}, chains=24_000, sites=1, auxiliary=OF_SGNHT),
    "msgnht": THERMOSTATTED | dict(parameters={"A": 1.3, "mu": 0.7}, auxiliary=OF_SGNHT),
    "atmc": THERMOSTATTED | dict(parameters={"m": 1.7, "mu": 0.7, "Dmin": 0.9}, auxiliary=MAXWELL | OF_ATMC),
    "atmc-relativistic": THERMOSTATTED
    | dict(bias=5e-3, parameters={**FAST, "mu": 0.7, "Dmin": 0.9}, degree=8, **EINSTEIN)
    | dict(auxiliary={"u": lambda **_: RAPIDITY} | OF_ATMC),
    "santa": THERMOSTATTED
    | dict(bias=0.015, parameters={"lam": 0.3}, adapted={"V": 0.7, "V_last": 1.9})
    | dict(auxiliary={"p": lambda lam: normal(0, T), "xi": lambda lam: normal((lam + 1.9**0.5) ** -0.5, T)}),
}
for likelihood, scale in {"": sigma**2, "-classification": 1}.items():  # of a classification U stands as it is
    law = quartic_law(scale, others)
    modes = {
        "": dict(parameters=SPIKE, adapted=LATENTS, target=quartic_law(scale, shrunk)),
        "-marginal": dict(parameters=PRIOR, target=quartic_law(scale, mixed)),
        "-gibbs": dict(parameters=PRIOR, target=law, start=partial(spiked, law=law), auxiliary={"gamma": coin}),
    }
    modes["-gibbs"]["coupling"] = lambda z, *others: drawn(z, others[-1])
    for mode, row in modes.items():
        heavy = dict(parameters=row["parameters"] | HEAVY, auxiliary=MAXWELL | row.get("auxiliary", {}))
        ROWS[f"sgld-sa{likelihood}{mode}"] = FIRST_ORDER | row
        ROWS[f"sghmc-sa{likelihood}{mode}"] = SECOND_ORDER | row | heavy
RECIPES = dict(catalogue) | {name: catalogue[name].bind(**functions) for name, functions in BOUND.items()}
RUNS = {name: Run(RECIPES[name], **row) for name, row in ROWS.items()}
MOMENTS = {"theta": (1, 2, 4), "x": (1, 2, 4), "y": (2,), "p": (2,), "u": (2,), "xi": (1, 2), "gamma": (1,)}

# a run of each mechanism
NEAR = [name for name in RUNS if name in EVERY_MECHANISM]


def law_of(name, site=0, h=None):
    """The law of a run's scheme at one site, for one step size."""
    return _law(name, h or RUNS[name].h, tuple(RUNS[name].at_site(site).items()))


@cache
def _law(name, h, parameters):
    return RUNS[name].law(RUNS[name].step(), h, **dict(parameters))


def expected(name, block, k, site=0, h=None, steps=None):
    """E of the block's k-th power under the scheme's own law; after 0 steps, under exp(-H/T)."""
    law = law_of(name, site, h)
    return law.after(RUNS[name].steps if steps is None else steps, lambda *z: z[law.names.index(block)] ** k)


@pytest.mark.parametrize("name", covering(RUNS, NEAR))
def test_the_law_of_the_step_is_near_the_target(name):
    run = RUNS[name]
    for site in range(run.sites):
        exact = expected(name, run.first, 2, site, steps=0)
        assert expected(name, run.first, 2, site) == pytest.approx(exact, rel=run.bias)


@pytest.mark.parametrize("name", covering([n for n in RUNS if n != "sgrld-cir"], [n for n in NEAR if n != "sgrld-cir"]))
def test_the_bias_vanishes_with_the_order_of_the_step(name):
    """Doubling h doubles the bias at order 1 and quadruples it at order 2; a wrong SDE leaves it as it is."""
    run = RUNS[name]

    def bias(h, steps):
        return np.linalg.norm(
            [
                expected(name, b, k, h=h, steps=steps) - expected(name, b, k, h=h, steps=0)
                for b in (run.first, *run.auxiliary)
                for k in MOMENTS[b]
            ]
        )

    rate = math.log2(bias(run.h, run.steps) / bias(run.h / 2, 2 * run.steps))
    assert rate >= run.step().order - 0.15


@pytest.mark.parametrize(
    "other",
    ["0*theta", "1/2*theta", "temperature/4*theta", "-temperature/2*theta"],
    ids=["dropped", "without-T", "halved", "other-sign"],
)
def test_the_bias_of_a_wrong_gamma_does_not_vanish(other):
    run = RUNS["sgrld"]
    step = planted(run.step(), ("temperature/2*theta", other))

    def bias(h, steps):
        law = run.law(step, h)
        return np.linalg.norm(
            [law.after(steps, lambda z: z**k) - QUARTIC.mean(lambda z: z**k) for k in MOMENTS["theta"]]
        )

    assert math.log2(bias(run.h / 4, 4 * run.steps) / bias(run.h / 8, 8 * run.steps)) < 0.5


@cache
def start_of(name):
    """An exact start, by block."""
    return RUNS[name].drawn()


def last_draw(recipe, energy, *, steps, freeze=(), temperature=T, **more):
    """The last state of the chains at seed 0, by block."""
    draws = samplers.sample(
        recipe,
        energy,
        phases=[samplers.Phase(steps, freeze=freeze)],
        thin=steps,
        temperature=temperature,
        seed=0,
        progress=False,
        **more,
    )
    return {block: x[:, 0] for block, x in draws.items()}


def scores_of(name) -> tuple[dict, dict]:
    """The moments of one run and its correlations, each in standard errors from its null."""
    run, start, sites = RUNS[name], start_of(name), range(RUNS[name].sites)
    per_site = {parameter: torch.tensor(v) if isinstance(v, tuple) else v for parameter, v in run.parameters.items()}
    is_vector = {b.name: b.is_vector for b in run.recipe.entries}
    still = {
        a: torch.full((run.chains, *[run.sites] * is_vector[a]), v, dtype=torch.float64) for a, v in run.adapted.items()
    }
    kept = [b.name for b in run.recipe.state]
    draws = last_draw(
        run.recipe,
        **run.data(),
        init=start | still,
        freeze=tuple(run.adapted),
        scheme=run.scheme,
        chains=run.chains,
        steps=run.steps,
        step_size=run.h,
        temperature=run.temperature,
        keep=kept,
        **per_site,
    )
    coordinates = run.chart[1](*(draws[b].reshape(run.chains, -1) for b in kept))
    end = dict(zip(law_of(name).names, coordinates))
    moments = {}
    for block, k in [(b, k) for b in end for k in MOMENTS[b]]:
        null = torch.as_tensor(np.array([expected(name, block, k, site) for site in sites]))
        moments[f"{block}^{k}"] = standard_score(end[block] ** k - null)
    mean, square = (expected(name, run.first, k, steps=0) for k in (1, 2))
    z0, z1 = (
        (x.reshape(run.chains, -1) - mean) / (square - mean**2) ** 0.5 for x in (start[run.first], end[run.first])
    )
    lag = torch.as_tensor(np.array([law_of(name, site).autocorrelation(run.steps) for site in sites]))
    half = run.chains // 2
    pairs = {"start": z0 * z1 - lag, "next chain": z1[::2] * z1[1::2], "other half": z1[:half] * z1[half:]}
    pairs |= {"next site": z1[:, 0] * z1[:, 1]} if run.sites > 1 else {}
    return moments, {pair: standard_score(product) for pair, product in pairs.items()}


# the laws of their steps have tests above
SLOW = {"psgld-gamma", "sgrld-simplex", "sghmc-relativistic", "sgrhmc", "isgd"}


@pytest.mark.parametrize("name", covering(RUNS, EVERY_MECHANISM, but=SLOW))
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
    ("sgld", "nothing moves", '{"theta": theta}', "state", "start"),
    ("sgld-preconditioned", "preconditioner in the drift alone", "temperature*G -", "temperature -", "theta^4"),
    ("sgld-preconditioned", "noise beside that of the gradient", "(temperature*K + V)", "0*V", "theta^2"),
    ("psgld", "noise of G for its root", "torch.sqrt(1/x1)", "1/x1", "theta^2"),
    ("sgrld", "Gamma dropped", "temperature/2*theta", "0*theta", "theta^2"),
    ("sgrld", "metric in the drift alone", "torch.sqrt(x1 + 1)", "1", "theta^4"),
    ("sgrld-dense", "uncorrelated noise", "L_2*", "0*", "x^2"),
    ("sgrld-cir", "counts left out", "spread_theta2 + drawn_theta1", "0.5 + drawn_theta1", "theta^1"),
    ("sgfs", "noise beside that of the gradient", "- temperature*x1/(B + x1)**2", "", "theta^2"),
    ("vsgd", "noise beside that of the gradient", "2*temperature/V - 2*h/V", "2*temperature/V", "theta^2"),
    ("hmc-randomised", "momenta refreshed at T for m T", "*torch.sqrt(m), p)", ", p)", "p^2"),
    ("santa", "noise of the metric of this step", "torch.sqrt(V_last)", "torch.sqrt(V)", "xi^1"),
    ("sgld-sa-gibbs", "odds without the root of v1", "math.log(v1)/2", "0", "gamma^1"),
    ("underdamped-langevin", "noise without the mass", "torch.sqrt(m)", "torch.ones_like(m)", "p^2"),
    ("underdamped-langevin", "friction over half a step", "math.exp(-h*gamma)", "math.exp(-h/2*gamma)", "theta^2"),
    ("sghmc", "noise of friction 1", "(temperature*C - B)", "temperature", "theta^2"),
    ("sgnht", "thermostat without T", "- temperature/mu", "- 1/mu", "theta^2"),
    ("msgnht", "friction A in place of xi", "torch.exp(-h*xi)", "math.exp(-h*A)", "xi^2"),
    ("msgnht", "thermostat of mass 1", "1/mu*p**2 - temperature/mu", "p**2 - temperature", "xi^2"),
    ("atmc", "thermostat p^2 - T", "1/(m*mu)*p**2", "1/mu*p**2", "p^2"),
    ("atmc", "noise without the mass", "m*torch.clamp", "torch.clamp", "xi^1"),
]


OF_EACH_STATISTIC = ("sgld", "sgrld", "sgrld-cir", "hmc-randomised", "santa", "sgld-sa-gibbs", "msgnht")
# another mutant of the same run, which the same statistic sees, is fast
NAMES_OF_SLOW = [
    ("sgld", "temperature ignored"),
    ("sgld", "twice the force"),
    ("sgld", "one noise for all steps"),
    ("sgrld", "Gamma dropped"),
    ("msgnht", "friction A in place of xi"),
]
BY_NAME = {mutant[:2]: mutant for mutant in MUTANTS}
SLOW_MUTANTS = [BY_NAME[names] for names in NAMES_OF_SLOW]


@pytest.mark.parametrize(
    "name, what, text, other, statistic",
    covering(MUTANTS, [m for m in MUTANTS if m[0] in OF_EACH_STATISTIC], but=SLOW_MUTANTS),
)
def test_a_planted_mutant_is_seen(name, what, text, other, statistic, plant):
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
    A, mu, n, chains = 1.3, 0.7, 3, 2_000
    start = torch.as_tensor(QUARTIC.draw(np.random.default_rng(0), (chains, n)))
    theta, p, xi = last_draw(
        SGNHT, quartic, init=start, chains=chains, steps=100, step_size=0.1, keep=["p", "xi"], A=A, mu=mu
    ).values()
    square, fourth = (QUARTIC.mean(lambda z: z**k) for k in (2, 4))
    return {
        "theta^2": beyond(theta**2 - square, 1e-3),
        "theta^4": beyond(theta**4 - fourth, 1e-3),
        "p^2": beyond(p**2 - T, 0.01),
        "xi": beyond(xi - A, 0.02),
        "(xi - A)^2": beyond((xi - A) ** 2 - T / (n * mu), 0.02),
    }


# ---- recipes of one's own


def banana_scores():
    """U = x^2/2 + (y - x^2/2)^2, under which x and v = y - x^2/2 are independent normals of variance T and T/2."""
    chains, h, steps = 15_000, 0.02, 75
    chart = (lambda x, v: (x, v + x**2 / 2)), (lambda x, y: (x, y - x**2 / 2))
    laws = {"x": normal(0, T), "v": normal(0, T / 2)}

    def slope(z):
        return {"x": z["x"] - 2 * z["x"] * (z["y"] - z["x"] ** 2 / 2), "y": 2 * (z["y"] - z["x"] ** 2 / 2)}

    law = SchemeLaw(compile(BANANA), h, laws, 10, chart=chart, gradient=slope, temperature=T)
    generator = np.random.default_rng(0)
    first, second = (torch.as_tensor(coordinate.draw(generator, chains)) for coordinate in laws.values())
    end = last_draw(
        BANANA,
        lambda z: z["x"] ** 2 / 2 + (z["y"] - z["x"] ** 2 / 2) ** 2,
        chains=chains,
        steps=steps,
        step_size=h,
        init={"x": first, "y": second + first**2 / 2},
    ).values()
    moments = {
        "x": lambda x, y: x,
        "x^2": lambda x, y: x**2,
        "y": lambda x, y: y,
        "y^2": lambda x, y: y**2,
        "x^2 y": lambda x, y: x**2 * y,
    }
    return {
        name: standard_score(f(*end) - law.after(steps, lambda x, v: f(x, v + x**2 / 2))) for name, f in moments.items()
    }


m = positive("m", default=1.7)
MEMORY = Recipe(
    name="memory-kernel",
    state=(theta, p, s, r),
    H=potential(theta) + total(p**2) / (2 * m) + total(s**2 + 2 * r**2) / 2,
    D={s: 1.3, r: 0.7, (s, r): 0.4},
    Q={(theta, p): -1, (p, s): -1.1, (p, r): -0.6, (s, r): 0.5},
    pieces={"O": (friction(p), s, r)},
    scheme="B A O A B",
)


@cache
def memory_law(h):
    """The law of its scheme."""
    laws = {"theta": quartic_law(nodes=12), "p": normal(0, 1.7 * T, 8), "s": normal(0, T, 6), "r": normal(0, T / 2, 6)}
    return SchemeLaw(compile(MEMORY), h, laws, 4, noise_nodes=3, gradient=slope, temperature=T)


def memory_scores():
    """p rubs through s and r, a matrix Ornstein-Uhlenbeck piece."""
    chains, h, steps = 6_000, 0.2, 50
    law = memory_law(h)
    start = torch.as_tensor(QUARTIC.draw(np.random.default_rng(0), (chains, 2)))
    end = last_draw(MEMORY, quartic, init=start, chains=chains, steps=steps, step_size=h, keep=["p", "s", "r"]).values()
    moments = {
        "theta": lambda theta, p, s, r: theta,
        "theta^2": lambda theta, p, s, r: theta**2,
        "theta^4": lambda theta, p, s, r: theta**4,
        "p^2": lambda theta, p, s, r: p**2,
        "s^2": lambda theta, p, s, r: s**2,
        "r^2": lambda theta, p, s, r: r**2,
        "s r": lambda theta, p, s, r: s * r,
    }
    return {name: standard_score(f(*end) - law.after(steps, f)) for name, f in moments.items()}


OWN = {"shared thermostat": shared_scores, "banana": banana_scores, "memory kernel": memory_scores}


@pytest.mark.parametrize("claim", covering(OWN, ["shared thermostat", "banana"]))  # test_flows has the memory's piece
def test_recipes_of_ones_own_keep_their_target(claim):
    assert not CLAIMS[claim].failures(OWN[claim]())


MUTANTS_OF_OWN = {
    "a sum in place of the mean": (shared_scores, "(mu*n)", "mu", "(xi - A)^2"),
    "a total over chains": (shared_scores, ".sum(1)", ".sum(1).mean().expand(len(x))", "(xi - A)^2"),
    "Gamma of y dropped": (banana_scores, "2*temperature/3", "0", "y"),
    "Gamma of x over T": (banana_scores, "temperature/3 - g_x", "1/temperature/3 - g_x", "x"),  # 18 standard errors
    "uncorrelated noise": (memory_scores, "2*temperature/5", "0*temperature", "s r"),
    "one noise without T": (memory_scores, "13*temperature/10", "13/10", "s^2"),
}


@pytest.mark.filterwarnings("ignore:.*count as diverged")  # as chains of a mutant may
@pytest.mark.parametrize(
    "scores, text, other, statistic",
    covering(MUTANTS_OF_OWN.values(), [m for m in MUTANTS_OF_OWN.values() if m[0] is not memory_scores]),
    ids=MUTANTS_OF_OWN,
)
def test_a_mutant_of_a_recipe_of_ones_own_is_seen(scores, text, other, statistic, plant):
    plant(text, other)
    assert not abs(scores()[statistic]) <= Z


# ---- gradient noise of known covariance


K, SPREAD = 2.3, 0.9
ROWS = SPREAD * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]], dtype=torch.float64)
V_G = (K * SPREAD) ** 2  # the gradient at one row of four is K (theta - row): covariance V_G times the identity


noisy = samplers.posterior(
    lambda theta, rows: ((theta - rows) ** 2).sum(-1) * K / (2 * len(ROWS)),
    lambda theta: 0 * theta.sum(),
    num_data=len(ROWS),
)


def inflated(temperature, m, gamma, h):
    """Var theta of BAOAB with one gradient per step, carried over: A O A B with whole kicks."""
    return temperature / K + V_G * h**2 / math.tanh(gamma * h / 2) / (K * (4 * m - h**2 * K))


def noisy_chains(recipe, variance, *, h, steps, chains=10_000, **more):
    """The last state, by block, of chains that start at a given variance of theta, on batches of one row."""
    start = variance**0.5 * torch.as_tensor(np.random.default_rng(0).standard_normal((chains, 2)))
    return last_draw(
        recipe, noisy, init=start, data=ROWS, batch_size=1, chains=chains, steps=steps, step_size=h, **more
    )


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


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [SGNHT, MSGNHT])
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
