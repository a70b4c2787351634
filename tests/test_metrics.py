"""Metrics that are functions of theta, in H: their certificate, the generalised leapfrog, its work, and mutants."""

import math

import pytest
import torch
from covering import covering

import integrators
import samplers
from integrators.operators import Field
from recipe import Recipe, RecipeError, derive, logdet, numerical, operator, positive, potential, refresh, total, vector
from recipe import temperature as T
from recipe.fields import SlopeOfTotal

theta, p = vector("theta"), vector("p")
G = operator("G", at=theta)
U, C = potential(theta), positive("C", default=1.0)
KINETIC = total(p * G.inverse(p)) / 2
H = U + KINETIC + T * logdet(G) / 2


def declared(energy=H, D=None, **others):
    """A recipe with a metric in H."""
    D = {p: C * G} if D is None else D
    return Recipe(name="riemannian", state=(theta, p), H=energy, D=D, Q={(theta, p): -1}, **others)


LANGEVIN = declared()
HMC = declared(D={}, jumps={"R": refresh(p)}, scheme="R L L L L", metropolis=True)


# ---- the certificate


def test_the_law_and_its_marginal_are_proved_at_every_temperature():
    for recipe in (LANGEVIN, HMC):
        certificate = recipe.check()
        assert recipe.residual() == 0 and certificate.ok
        assert [certificate[topic].verdict for topic in ("stationary", "normalisable", "marginal")] == ["proved"] * 3
        assert "alone" not in certificate["marginal"].answer
    assert LANGEVIN.gamma.is_zero_matrix and "p ~ N(0, G)" in LANGEVIN.check()["normalisable"].answer


WRONG = {
    "no log-determinant": KINETIC,
    "a log-determinant of the other sign": KINETIC - T * logdet(G) / 2,
    "the whole log-determinant": KINETIC + T * logdet(G),
    "the inverse metric": total(p * G(p)) / 2 + T * logdet(G) / 2,
}


@pytest.mark.parametrize("energy", covering(WRONG, ["no log-determinant"]))
def test_wrong_metrics_are_refuted(energy):
    finding = declared(U + WRONG[energy]).check()["marginal"]
    assert finding.verdict == "failed" and "log(G)" in finding.answer


def test_a_log_determinant_without_the_temperature_is_right_at_1_alone():
    recipe = declared(U + KINETIC + logdet(G) / 2)
    assert "at temperature 1 alone" in recipe.check()["marginal"].answer
    assert recipe.check(temperature=0.5)["marginal"].verdict == "failed"


def test_the_inverse_metric_has_a_marginal_of_its_own():
    assert declared(U + total(p * G(p)) / 2 - T * logdet(G) / 2).check()["marginal"].verdict == "proved"


def test_a_wrong_slope_has_a_residual():
    of_kinetic = SlopeOfTotal(total(p * G.inverse(p)), theta)
    for wrong in (0, 2, -1):
        drift = LANGEVIN.drift.xreplace({of_kinetic: wrong * of_kinetic})
        assert derive.residual(drift, LANGEVIN.H, LANGEVIN.D, LANGEVIN.state) != 0


def test_what_has_no_slope_is_refused():
    with pytest.raises(RecipeError, match="whose slope by theta is not known. Apply G or its inverse"):
        declared(U + total(p * G(G(p))) / 2)
    with pytest.raises(RecipeError, match="J is no definite operator"):
        logdet(operator("J", kind="skew"))
    with pytest.raises(RecipeError, match="its flows are not known. Use the letter L"):
        integrators.compile(LANGEVIN, "Euler")
    with pytest.raises(RecipeError, match="its flows are not known"):
        integrators.compile(LANGEVIN, "B A O A B")
    with pytest.raises(RecipeError, match="it moves a position and a momentum without noise"):
        integrators.compile(LANGEVIN, "X", pieces={"X": numerical((theta, p), "generalised leapfrog")})
    with pytest.raises(RecipeError, match="has no direction in a word that is none"):
        integrators.metropolised(LANGEVIN, [("L", 0.5), ("O", 0.5), ("L", 0.25), ("O", 0.5), ("L", 0.25)])
    with pytest.raises(RecipeError, match="a site reads others by an operator"):
        samplers.sample(LANGEVIN, banana, init=torch.zeros(2), step_size=0.1, G=METRIC, backend="cpp", steps=3)


# ---- the step


def softabs(x):
    """(S^2 + 1)^(1/2) of the Hessian S of the banana: as SoftAbs, it is smooth and definite where S is not."""
    a, b, one = 1 - 2 * (x[1] - x[0] ** 2) + 4 * x[0] ** 2, -2 * x[0], torch.ones_like(x[0])
    S = torch.stack([torch.stack([a, b]), torch.stack([b, one])])
    square = S @ S + torch.eye(2, dtype=x.dtype)
    root = (square[0, 0] * square[1, 1] - square[0, 1] ** 2).sqrt()
    return (square + root * torch.eye(2, dtype=x.dtype)) / (square[0, 0] + square[1, 1] + 2 * root).sqrt()


METRIC = Field(softabs)
LEAPFROG = declared(D={})


def banana(x):
    """U of x ~ N(0, 1), y ~ N(x^2, 1)."""
    return x[0] ** 2 / 2 + (x[1] - x[0] ** 2) ** 2 / 2


FUNCTIONS = {
    "value": torch.vmap(banana),
    "gradient": torch.vmap(torch.func.grad(banana)),
}


def stationary(chains):
    """States of the law exp(-H), in float64, with the directions and numbers of a work."""
    generator = torch.Generator().manual_seed(7)
    z = torch.randn(chains, 4, generator=generator, dtype=torch.float64)
    x = torch.stack([z[:, 0], z[:, 0] ** 2 + z[:, 1]], 1)
    zero = torch.zeros(chains, dtype=torch.float64)
    signs = 1 - 2 * (torch.arange(chains) % 2).double()
    return {"theta": x, "p": METRIC.at(x).root() @ z[:, 2:], "direction": signs, "work": zero, "accepted": zero}


def energy_of(state, temperature=1.0):
    """H of every chain, by its formula."""
    matrix = torch.vmap(softabs)(state["theta"])
    momentum = (state["p"] * torch.linalg.solve(matrix, state["p"])).sum(1) / 2
    return FUNCTIONS["value"](state["theta"]) + momentum + temperature * torch.logdet(matrix) / 2


def leapt(state, h, source):
    """The state a leapfrog over h later, h of either sign, by the text of a step."""
    namespace = {}
    exec(compile(source, "step", "exec"), namespace)
    own = {name: state[name] for name in ("theta", "p")}
    return namespace["step"](own, h, gradient=FUNCTIONS["gradient"], noise={}, G=METRIC)


def rise(source, h=0.01):
    """The median of the change of H in a leapfrog."""
    state = stationary(200)
    return float((energy_of(leapt(state, h, source)) - energy_of(state)).abs().nanmedian())


def order(source):
    """The power of h that the change of H is of: 3 of a leapfrog, within 0.1 where 200 chains start."""
    return math.log2(rise(source, 0.02) / rise(source, 0.01))


def way_back(source, h):
    """How far from their start chains that are not lost are after a step forwards and one backwards; how many are."""
    state = stationary(400)
    there = leapt(state, h, source)
    back = leapt(there, -h, source)
    kept = there["theta"].isfinite().all(1) & there["p"].isfinite().all(1)
    off = torch.cat([back[name] - state[name] for name in ("theta", "p")], 1)[kept].abs()
    return float(off.nan_to_num(nan=9.0).amax()), int((~kept).sum())


def expansion(source, h=0.3, d=1e-5):
    """The largest of |det dz'/dz| - 1, by central differences."""
    state, moves = stationary(50), d * torch.eye(4, dtype=torch.float64)[:, None]
    at = torch.cat([state["theta"], state["p"]], 1)
    z = torch.stack([at + moves, at - moves]).flatten(0, 2)
    after = leapt({"theta": z[:, :2], "p": z[:, 2:]}, h, source)
    above, below = torch.cat([after["theta"], after["p"]], 1).reshape(2, 4, 50, 4)
    slopes = ((above - below) / (2 * d)).permute(1, 2, 0)
    return float((torch.linalg.det(slopes).abs() - 1).abs().nan_to_num(0).amax())


SOURCE = integrators.compile(LEAPFROG).source


def test_the_leapfrog_keeps_H_comes_back_and_keeps_the_volume():
    assert integrators.compile(LEAPFROG).order == 2 and SOURCE.count("gradient(theta)") == 3  # two of them in words
    assert rise(SOURCE) < 1e-6 and order(SOURCE) > 2.5
    off, lost = way_back(SOURCE, 0.9)
    assert off < 1e-8 and 0 < lost < 200
    assert expansion(SOURCE) < 1e-5


MUTANTS = {
    "no slope of the log-determinant": ("temperature*h/4*G.slope_of_trace", "0*G.slope_of_trace"),
    "a slope of the other sign": ("-h/4*G.slope(", "h/4*G.slope("),
    "the slope of the metric itself": (", of_inverse=True", ""),
    "the metric for its inverse": ("h/2*(G.inverse() @ p)", "h/2*(G @ p)"),
    "a stale metric": ("    G = G.at(theta)\n", ""),
    "a whole step for a half": ("- h/2*g", "- h*g"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_of_the_leapfrog_are_seen_by_H(mutant):
    right, wrong = MUTANTS[mutant]
    assert right in SOURCE
    assert order(SOURCE.replace(right, wrong)) < 2.5


def test_an_explicit_step_has_another_volume():
    assert expansion(SOURCE.replace("implicit(lambda p: ", "explicit(lambda p: ")) > 1e-3


def test_a_leapfrog_without_the_check_does_not_come_back():
    unchecked = SOURCE.replace("are_equal(back, x, 10)", "are_equal(y, y)")
    assert unchecked != SOURCE and way_back(unchecked, 0.9)[0] > 1e-3


# ---- acceptance


def drift_of_means(step, source=None, steps=2):
    """The largest z of a change of a mean from the exact law on, over some steps: 0 for a step that leaves it.

    Null: each of 10 means stays; standard errors are of the paired changes of independent chains.
    """
    chains, h = 3000, 0.5
    state = stationary(chains)
    others = {"C": 8.0} if "C" in step.parameters else {}
    namespace = {}
    exec(compile(source or step.source, "step", "exec"), namespace)
    generator = torch.Generator().manual_seed(11)
    first = features(state)
    for _ in range(steps):
        laws = {d.name: (torch.randn, chains, 2) if d.is_vector else (torch.rand, chains) for d in step.program.draws}
        noise = {n: law(*shape, generator=generator, dtype=torch.float64) for n, (law, *shape) in laws.items()}
        state = namespace["step"](state, h, **FUNCTIONS, noise=noise, G=METRIC, **others)
    change = features(state) - first
    z = change.mean(0) / (change.std(0) / chains**0.5)
    return float(z.abs().nan_to_num(nan=99.0).amax()), float(state["accepted"].mean() / steps)


def features(state):
    """Functions of theta and p, `(chains, 10)`, bounded so that they have moments."""
    x, y = state["theta"].T
    r, s = (torch.linalg.solve(torch.vmap(softabs)(state["theta"]), state["p"]) * state["p"]).T
    functions = [x, y, x**2, (y - x**2) ** 2, x * y, r + s, (r + s) * x**2, x**2 * y, torch.tanh(y), (r + s) ** 2]
    return torch.stack([f.clamp(-20, 20) for f in functions], 1)


ACCEPTED = {"O L O": LANGEVIN, "R L L L L": HMC}


def test_the_work_of_a_leapfrog_is_the_change_of_H():
    source, state = integrators.metropolised(LEAPFROG, accept=False).source, stationary(200)

    def off(text):
        exec(compile(text, "step", "exec"), namespace := {})
        after = namespace["step"](state, 0.3, **FUNCTIONS, noise={}, G=METRIC, temperature=0.5)
        return (after["work"] - energy_of(after, 0.5) + energy_of(state, 0.5)).abs()

    apart = off(source)
    kept = apart.isfinite()  # of some chains the implicit steps do not converge
    assert apart[kept].max() < 1e-9 and kept.double().mean() > 0.9
    assert "+ change2" in source and off(source.replace("+ change2", "")).nanmedian() > 0.01


@pytest.mark.parametrize("word", covering(ACCEPTED, ["O L O"]))
def test_accepted_steps_leave_the_law_as_it_is(word):
    """Two-sided at 4.4 standard errors for 10 means: a right step fails once in 10^4 seeds."""
    z, accepted = drift_of_means(integrators.metropolised(ACCEPTED[word]))
    assert z < 4.4 and 0.5 < accepted < 1


WRONG_STEPS = {  # word, change of the text, steps until it shows
    "no log-determinant in the work": ("O L O", "+ change2", "", 8),
    "friction without its noise": ("O L O", "spread_p*(root_G", "0.5*spread_p*(root_G", 2),
    "momenta of the metric itself": ("R L L L L", "root_G = G.root()", "root_G = G", 2),
    "no acceptance": ("O L O", "torch.exp(-coldness*work)", "torch.exp(0*work)", 2),
}


@pytest.mark.parametrize("mutant", covering(WRONG_STEPS, ["friction without its noise"]))
def test_wrong_accepted_steps_are_seen(mutant):
    word, right, wrong, steps = WRONG_STEPS[mutant]
    step = integrators.metropolised(ACCEPTED[word])
    assert right in step.source
    assert drift_of_means(step, step.source.replace(right, wrong), steps)[0] > 5


def test_noise_has_the_metric_of_the_place_where_it_is_drawn():
    """p of two noises differ by (T (1 - e^(-C h)))^(1/2) G^(1/2) times the difference, G at the last theta."""
    source, state, C, h = integrators.compile(LANGEVIN).source, stationary(100), 0.7, 0.3
    namespace = {}
    exec(compile(source, "step", "exec"), namespace)
    unit = torch.ones_like(state["p"])

    def ends(noise, text=namespace):
        noise = {"p1": 0 * unit, "p2": noise}
        return text["step"](state, h, gradient=FUNCTIONS["gradient"], noise=noise, G=METRIC, C=C)

    def off(text=namespace):
        one, other = ends(unit, text), ends(0 * unit, text)
        spread = (1 - torch.exp(torch.tensor(-C * h, dtype=torch.float64))).sqrt()
        expected = spread * (METRIC.at(one["theta"]).root() @ unit)
        return float((one["p"] - other["p"] - expected).abs().nan_to_num(0).amax())

    assert off() < 1e-9
    stale = source.replace("    root_G = G.root()\n    # O over h/2: dp", "    # O over h/2: dp")
    assert stale != source
    exec(compile(stale, "step", "exec"), mutant := {})
    assert off(mutant) > 0.1


def test_a_friction_that_is_a_matrix_at_theta_is_exact_at_a_fixed_theta():
    """p' = exp(-C G h) p in the middle of A O A, without force and noise, with G in the middle."""
    recipe = Recipe(
        name="friction", state=(theta, p), H=U + total(p**2) / 2, D={p: C * G}, Q={(theta, p): -1}, scheme="B A O A B"
    )
    assert recipe.check().ok and integrators.compile(recipe).exact
    assert integrators.metropolised(recipe).work_formulas["O"] == "0"
    state, h = stationary(100), 0.3
    middle = state["theta"] + h / 2 * state["p"]
    turn = torch.linalg.matrix_exp(-0.7 * h * torch.vmap(softabs)(middle))
    expected = (turn @ state["p"].unsqueeze(2)).squeeze(2)

    def off(source):
        exec(compile(source, "step", "exec"), namespace := {})
        still = {"gradient": torch.zeros_like, "noise": {"p": 0 * middle}}
        return float((namespace["step"](state, h, **still, G=METRIC, C=0.7)["p"] - expected).abs().amax())

    source = integrators.compile(recipe).source
    assert off(source) < 1e-9
    assert source.count("G = G.at(theta)") == 1 and off(source.replace("G = G.at(theta)", "pass")) > 0.01


# ---- runs


RUN = dict(G=METRIC, init=torch.zeros(2), temperature=0.5, step_size=1.0, progress=False)


def test_a_run_takes_a_metric_without_its_divergence():
    draws = samplers.sample(HMC, banana, steps=3, **RUN)
    assert draws.info["law"] == "exact" and sum(draws.info["acceptance"]) > 0
    with pytest.raises(RecipeError, match="and it is not given"):
        other = Recipe(name="overdamped", state=theta, H=U, D={theta: G})
        samplers.sample(other, banana, steps=3, **RUN)


@pytest.mark.slow
def test_colder_chains_have_their_law():
    """Null: chains at T = 0.5 have E x^2 = T of x ~ N(0, T); 5 standard errors over independent chains."""
    draws = samplers.sample(HMC, banana, chains=48, steps=15, warmup=15, **RUN)
    means = draws["theta"][..., 0].double().square().mean(1)
    assert abs(float(means.mean()) - 0.5) < 5 * float(means.std()) / 48**0.5
    assert 0.6 < sum(draws.info["acceptance"]) / 48 <= 1


def test_a_metric_may_be_constant_and_one_that_is_hidden_from_autograd_is_refused():
    def quartic(x):
        return (x**4).sum()

    run = dict(init=torch.ones(2), step_size=0.3, steps=5, progress=False)
    metrics = [lambda x: 2 * torch.eye(2).to(x), lambda x: torch.diag(2 + 0 * x)]
    constant, written = (samplers.sample(HMC, quartic, G=Field(metric), **run)["theta"] for metric in metrics)
    assert torch.equal(constant, written)
    with pytest.raises(RecipeError, match="by 0 to autograd"):
        samplers.sample(HMC, quartic, G=Field(lambda x: torch.diag(1 + x.detach() ** 2)), **run)
