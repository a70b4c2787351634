"""Involutions: jumps at a rate that reads what they move, which balance a transport: zig-zag, bounces, boomerang."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from covering import covering
from error_budget import CLAIMS
from same_step import all_ways_agree
from sympy import Max, lambdify

import integrators
import samplers
from integrators.backends.loading import load
from integrators.functions import phi1
from integrators.jump import probability
from integrators.metropolis import metropolised
from recipe import (
    Energy,
    Recipe,
    RecipeError,
    flip,
    grad,
    involution,
    mapped,
    nonnegative,
    positive,
    potential,
    reflect,
    refresh,
    scalar,
    total,
    vector,
)
from recipe.symbols import duration, temperature
from samplers.testing import check, one_step

theta, v, b = vector("theta"), vector("v"), vector("b", domain="binary")
U, g = potential(theta), grad(potential(theta))
m, s = positive("m", default=1.3, per=theta), positive("s", default=1.5, per=theta)
nu, extra = positive("nu", default=0.8), nonnegative("extra", default=0.3)
SPEED = 2 * b - 1
REST = g - theta / s**2

ZIG_ZAG = Recipe(
    name="zig-zag",
    state=(theta, b),
    target=theta,
    H=U,
    D={},
    transport={theta: SPEED},
    jumps={"F": flip(b, rate=Max(0, SPEED * g) + extra)},
    pieces={"A": theta},
    scheme="A F A",
)
BOUNCY = Recipe(
    name="bouncy",
    state=(theta, v),
    target=theta,
    H=U + total(v**2 / m) / 2,
    D={},
    transport={theta: v},
    jumps={"F": reflect(v, along=g, rate=Max(0, total(v * g)), variance=m), "R": refresh(v, rate=nu)},
    scheme="A F R F A",
)
BOOMERANG = Recipe(
    name="boomerang",
    state=(theta, v),
    target=theta,
    H=U + total(v**2 / s**2) / 2,
    D={},
    transport={theta: v, v: -theta},
    jumps={
        "F": reflect(v, along=REST, rate=Max(0, total(v * REST)), variance=s**2),
        "R": refresh(v, rate=nu),
    },
    pieces={"A": (theta, v)},
    scheme="A F R F A",
)
ONE_BY_ONE = replace(
    BOUNCY,
    name="one-by-one",
    jumps={"F": flip(v, rate=Max(0, v * g) + extra * v**2), "R": refresh(v, rate=nu)},
)
WITH_FRICTION = replace(
    BOUNCY,
    name="with-friction",
    D={v: nu},
    jumps={"F": reflect(v, along=g, rate=Max(0, total(v * g)), variance=m)},
    scheme="A F O F A",
)
ALL = [ZIG_ZAG, BOUNCY, BOOMERANG, ONE_BY_ONE, WITH_FRICTION]


def slope(at):
    return at**3 + 1


# ---- declared, proved, printed


@pytest.mark.parametrize("recipe", ALL, ids=lambda R: R.name)
def test_invariance_is_proved(recipe):
    certificate = recipe.check()
    assert recipe.residual() == 0 and certificate.exact, certificate
    assert certificate["involution"].verdict == certificate["stationary"].verdict == "proved"
    assert certificate["involution"].question == f"{recipe.jumps['F']} has volume 1 and leaves H"
    assert certificate["smooth"].answer == "H, D and Q are made of smooth functions, and rates of jumps may have kinks"


def other(recipe, jump, **more):
    return replace(recipe, name="wrong", jumps={**recipe.jumps, "F": jump}, **more)


RATE = Max(0, total(v * g))
WRONG = {
    "a rate without the reflection": other(BOUNCY, involution({v: v}, rate=RATE)),
    "a reflection without the rate": other(BOUNCY, reflect(v, along=g, rate=nu, variance=m)),
    "a reflection along another vector": other(BOUNCY, reflect(v, along=theta, rate=RATE, variance=m)),
    "a reflection of another norm": other(BOUNCY, reflect(v, along=g, rate=RATE)),
    "a rate of the wrong sign": other(BOUNCY, reflect(v, along=g, rate=Max(0, -total(v * g)), variance=m)),
    "a rate of another energy": other(BOUNCY, reflect(v, along=g, rate=2 * RATE, variance=m)),
    "a transport of the wrong sign": replace(BOUNCY, transport={theta: -v}),
    "no transport": replace(BOUNCY, transport={}),
    "no rotation": replace(BOOMERANG, transport={theta: v}),
    "a rate of the whole energy": other(BOOMERANG, reflect(v, along=g, rate=RATE, variance=s**2)),
    "a flip of twice the speed": other(ZIG_ZAG, ZIG_ZAG.jumps["F"], transport={theta: 4 * b - 2}),
    "a flip at no gradient": other(ZIG_ZAG, flip(b, rate=1 + extra)),
    "no flip of H": other(ONE_BY_ONE, ONE_BY_ONE.jumps["F"], H=U + total((v - 1) ** 2) / 2),
    "no involution": other(BOUNCY, involution({v: -2 * v}, rate=RATE)),
}


@pytest.mark.parametrize("recipe", WRONG.values(), ids=WRONG)
def test_a_wrong_one_is_refuted_and_is_not_run(recipe):
    assert recipe.check().failures
    with pytest.raises(RecipeError, match="has not the law it claims"):
        samplers.sample(recipe, lambda x: (x**4).sum(), init=torch.ones(2), steps=2, step_size=0.1, progress=False)


def test_reach_is_left_open_where_a_rate_may_be_zero_and_denied_without_refreshment():
    silent = replace(ZIG_ZAG, name="silent", jumps={"F": flip(b, rate=Max(0, SPEED * g))})
    assert silent.check()["reached"].verdict == "open"
    alone = replace(BOUNCY, name="alone", jumps={"F": BOUNCY.jumps["F"]}, scheme="A F A")
    assert alone.check()["reached"].verdict == "warning" and alone.check()["stationary"].verdict == "proved"


def test_sites_that_turn_together_never_part_unless_a_redraw_parts_them():
    """Speeds of two sites that are equal or opposite stay so: chains keep to lines."""
    together = flip(b, rate=Max(0, total(SPEED * g)) + nu)
    recipe = replace(ZIG_ZAG, name="together", jumps={"F": together})
    assert recipe.check()["claim"].answer == "invariant; not ergodic"
    twice = replace(
        recipe, jumps={"F": flip(b, rate=Max(0, total(SPEED * g))), "G": flip(b, rate=nu)}, scheme="A F G A"
    )
    assert twice.check()["reached"].verdict == "open"
    parted = replace(twice, jumps={**twice.jumps, "G": refresh(b, rate=nu)})
    assert parted.check()["claim"].answer == "exact"


def test_a_transport_that_may_run_off_is_left_open():
    speed = total(theta**2 + v**2)
    spiral = {theta: v * speed, v: -theta * speed}
    recipe = replace(BOUNCY, name="spiral", H=total(theta**2 + v**2) / 2, transport=spiral, jumps={}, scheme="Euler")
    assert recipe.check()["stationary"].verdict == "proved" and recipe.check()["explosion"].verdict == "open"


def test_both_are_printed_as_formulas():
    text = str(ZIG_ZAG)
    assert "transport[theta] 2*b - 1" in text and "dtheta  = (2*b - 1) dt" in text
    assert "jump F  b -> 1 - b at the rate extra + Max(0, (2*b - 1)*grad(U))" in text
    assert (
        r"\\left(b\\right) &\\leftarrow \\left(1 - b\\right) \\text{ at the rate }".replace("\\\\", "\\")
        in ZIG_ZAG.latex()
    )


def test_an_open_energy_is_bound_in_rates_and_images():
    bound = BOUNCY.bind(U=Energy(theta, U=total(theta**4) / 4))
    assert str(bound.jumps["F"].rate) == "Max(0, total(theta**3*v))" and bound.check().exact


# ---- the step


@pytest.mark.parametrize("recipe", ALL, ids=lambda R: R.name)
def test_text_kernel_and_both_interpreters_make_the_same_step(recipe):
    all_ways_agree(recipe, slope, seeds=range(4))


def test_the_probability_of_a_jump_is_that_of_a_chain_with_two_states():
    """Two halves of a time make the whole: P(t) = P(t/2) (1 - P'(t/2)) + (1 - P(t/2)) P(t/2)."""
    jump = flip(v, rate=Max(0, v) + 0.7 * v**2)
    there, back = (
        lambdify([v, duration], probability(jump, rate).subs(temperature, 1.4), [{"phi1": phi1.value}, "math"])
        for rate in (jump.rate, jump.rate_back)
    )
    for x in (-1.3, 0.6):
        a, c = there(x, 0.4), back(x, 0.4)
        assert there(x, 0.8) == pytest.approx(a * (1 - c) + (1 - a) * a, rel=1e-12)
        assert there(x, 1e-6) == pytest.approx(1e-6 * (max(0, x) + 0.7 * x**2) / 1.4, rel=1e-5)


def test_a_block_that_is_held_still_does_not_jump():
    step = integrators.compile(ZIG_ZAG, freeze=b)
    assert step.flows["F"].rule == "frozen" and not step.draws


@pytest.mark.parametrize("recipe", covering(ALL, [ZIG_ZAG]), ids=lambda R: R.name)
def test_every_layer_of_checks_passes(recipe):
    report = check(recipe)
    assert report.ok, report


def test_uniforms_are_integrated_over_beside_normals_of_several_sites():
    """E[v'^2] = e^(-nu h) v^2 + (1 - e^(-nu h)) m at each site, where no gradient reflects v."""
    v, h = np.array([[0.3, 2.0]]), 0.5
    step, kept = integrators.compile(BOUNCY), np.exp(-0.8 * h)
    points = dict(gradient=torch.zeros_like, sites=2, draw_nodes=3)
    _, after, weights = one_step.transition(step, [0 * v, v], np.ones(1), h, **points)
    assert [weights @ x**2 for x in after[2:]] == pytest.approx(kept * v[0] ** 2 + (1 - kept) * 1.3, rel=1e-12)


@pytest.mark.parametrize(
    "compare, jump, calls",
    [
        (lambda u, x: u < x, lambda x: x, 4),
        (lambda u, x: (1 + x) * u >= 1, lambda x: 1 / (1 + x), 4),
        (lambda u, x: 1 - u <= x, lambda x: 1 - x, 4),
        (lambda u, x: (u > x / 3) & (u < x), lambda x: x / 3, 6),  # as at the start again at the end
        (lambda u, x: torch.log(u) < -x, lambda x: np.exp(-x), 60),
        (lambda u, x: u > 1 + x, lambda x: 1 + 0 * x, 2),
    ],
)
def test_a_jump_is_found_where_a_comparison_turns_or_by_bisection(compare, jump, calls):
    x = np.linspace(0.1, 0.9, 5)
    asked = []

    def moved(points):
        asked.append(points)
        with one_step.Comparisons() as compared:
            after = torch.where(compare(torch.as_tensor(points[1]), torch.as_tensor(points[0])), 1.0, 0.0)
        return None, [after.numpy()], None, compared.differences

    found = one_step._threshold(moved, [x, x], 1, np.zeros(5))
    assert found == pytest.approx(jump(x), abs=1e-14)
    assert len(asked) <= calls


# ---- steps that are accepted by their work


def work_of(alter=lambda text: text, chains=20_000, T=2.5):
    """The z-score of E[exp(-W/T); W > 0] - P(W < 0), which are equal, of a step from exp(-(theta^4/4 + theta)/T)."""
    step = metropolised(ZIG_ZAG, accept=False)
    text = alter(step.source)
    assert (text == step.source) == (alter.__name__ == "<lambda>")
    draw = np.random.default_rng(5)
    z = np.linspace(-5, 4, 4001)
    weights = np.exp(-(z**4 / 4 + z) / T)
    state = {
        "theta": draw.choice(z, size=(chains, 1), p=weights / weights.sum()),
        "b": draw.integers(2, size=(chains, 1)),
    }
    state |= {
        "direction": draw.choice([-1.0, 1.0], size=chains),
        "work": np.zeros(chains),
        "accepted": np.zeros(chains),
    }
    uniform = {"b": torch.as_tensor(draw.random((chains, 1)))}
    at_start = {name: torch.as_tensor(x, dtype=torch.float64) for name, x in state.items()}
    after = load(text, "<zig-zag>")["step"](
        at_start, 1.0, gradient=slope, value=lambda at: (at**4 / 4 + at).sum(1), noise=uniform, temperature=T
    )
    W = after["work"] / T
    balance = torch.where(W > 0, torch.exp(-W), -1.0 * (W < 0))
    return float(balance.mean()) / (float(balance.std()) / chains**0.5)


def test_the_work_of_a_jump_is_that_of_its_own_reverse():
    assert not CLAIMS["work of involutions"].failures({"zig-zag": work_of()})


def no_work(text):
    return text.replace("work = work + sum1", "work = work")


def of_the_other_direction(text):
    return text.replace("work = work + sum1", "work = work - sum1")


def of_another_temperature(text):
    return text.replace("temperature*(torch.log(", "(torch.log(")


def of_chains_that_jump_too(text):
    return text.replace('noise["b"] < h/temperature*(extra', 'noise["b"] < 0*(extra', 1)


@pytest.mark.parametrize(
    "mutant",
    [no_work, of_the_other_direction, of_another_temperature, of_chains_that_jump_too],
    ids=lambda f: f.__name__,
)
def test_mutants_of_the_work_are_seen(mutant):
    assert abs(work_of(mutant)) > 12


@pytest.mark.parametrize("recipe", covering(ALL, [BOUNCY]), ids=lambda R: R.name)
def test_accepted_chains_have_the_law_at_a_large_step(recipe):
    z, T, chains = np.linspace(-8, 8, 20_001), 0.6, 20_000
    weights = np.exp(-(z**4 / 4 - z**2 / 2 + z / 3) / T)
    weights /= weights.sum()
    U_of_theta = Energy(theta, U=total(theta**4 / 4 - theta**2 / 2 + theta / 3))
    run = dict(init=torch.zeros(2, dtype=torch.float64), chains=chains, warmup=80, steps=1, step_size=0.5, seed=3)
    draws = samplers.sample(recipe, U_of_theta, temperature=T, metropolis=True, backend="cpp", progress=False, **run)
    assert 0.3 < np.mean(draws.info["acceptance"]) < 0.999
    scores = {}
    for k in (1, 2):
        of_chain = (draws["theta"][:, -1].numpy() ** k).mean(1)
        scores[recipe.name, k] = (of_chain.mean() - weights @ z**k) / (of_chain.std() / chains**0.5)
    assert not CLAIMS["involutions"].failures(scores)


# ---- refusals


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: involution({}, rate=1), "its first argument is a dict of new values by block"),
        (lambda: involution({scalar("xi"): -v}, rate=1), "one value per site, but xi is one number"),
        (lambda: flip(-v, rate=1), r"its first argument is a block. Write flip\(v, rate"),
        (lambda: reflect(scalar("xi"), along=g, rate=1), "its first argument is a vector"),
        (lambda: other(BOUNCY, flip(v, rate=v * g)), "may be below 0"),
        (lambda: other(BOUNCY, flip(theta, rate=1)), r"moves theta, which the open energy reads"),
        (lambda: other(ZIG_ZAG, involution({b: -b}, rate=1)), "b is binary, .* flip binary ones"),
        (lambda: other(BOUNCY, involution({v: 1 / v}, rate=1)), "is not seen to be linear in what moves"),
        (lambda: other(BOUNCY, flip(v, rate=v**2 * total(v**2))), "reads or moves more than a site"),
        (lambda: other(BOUNCY, reflect(v, along=g, rate=Max(0, v * g))), "reads or moves more than a site"),
        (lambda: replace(BOUNCY, transport={theta: v + theta}), "its divergence is n, and rates that balance it"),
        (lambda: replace(ZIG_ZAG, transport={b: theta}), "b is binary, .* Transport real blocks"),
        (lambda: replace(BOUNCY, transport={vector("w"): v}), "transport: w is not a block of the state"),
        (lambda: integrators.compile(BOUNCY, "A R A"), "leaves out the jump 'F'"),
        (lambda: mapped(BOUNCY, theta=vector("z"), by=lambda z: 2 * z), "Map a recipe of D and Q alone"),
    ],
)
def test_what_does_not_fit_is_refused(make, message):
    with pytest.raises(RecipeError, match=message):
        make()
