"""Certificates of laws that look right where one looks first: narrow terms, still regions, more sites, far edges."""

import pytest
from sympy import Abs, Matrix, Max, Rational, cos, exp, log, sin, sqrt

from recipe import Recipe, adapted, flip, potential, recover, refresh, scalar, total, vector

theta, p, b = vector("theta"), vector("p"), vector("b", domain="binary")
w, f = vector("w", domain="positive"), scalar("f", domain="fraction")
x, y, v = scalar("x"), scalar("y"), scalar("v")
NARROW = -log(exp(-(y**2) / 2) + 100 * exp(-50 * y**2))  # seen within a standard deviation of 0 alone
U = potential(theta)
g = scalar("g", domain="positive")
CORNER = Max(0, y - Rational(3, 2)) ** 2


def plane(D, curl, energy=(x**2 + y**2) / 2, **more):
    return Recipe(name="plane", state=(x, y), target=x, H=energy, D=D, Q={(x, y): curl}, **more)


def steep(power, **more):
    """x of a speed p (1 + x^2)^power whose scale is (1 + x^2)^(power/2)."""
    metric = (1 + x**2) ** power
    H = log(1 + x**2) + y**2 * metric / 2 - log(metric) / 2
    return Recipe(name="steep", state=(x, y), target=x, H=H, D={}, Q={(x, y): -1}, jumps={"R": refresh(y)}, **more)


def on_sites(H, D=1, block=theta):
    return Recipe(name="on-sites", state=block, H=H, D={block: D})


def tail(power, *coordinates):
    """A density of 1/(r^d log(r)^power) in d coordinates."""
    r2 = sum(z**2 for z in coordinates)
    return Recipe(
        name="tail",
        state=coordinates,
        target=coordinates,
        H=len(coordinates) * log(2 + r2) / 2 + power * log(log(3 + r2)),
        D=dict.fromkeys(coordinates, 1),
    )


def pole(power, of_log, *coordinates):
    """A density of 1/(r2^power log(1/r2)^of_log) near 0, with r2 the square of the distance."""
    r2 = sum(z**2 for z in coordinates)
    H = r2 / 2 + power * log(r2) + of_log * log(1 + log(1 + 1 / r2))
    return Recipe(name="pole", state=coordinates, target=coordinates, H=H, D=dict.fromkeys(coordinates, 1))


def half_plane(noise=g, curl=0, energy=g + y**2 / 2):
    """A positive coordinate beside a real one, in whose corner y > 3/2 are 7 % of the mass."""
    return Recipe(name="half-plane", state=(g, y), target=(g, y), H=energy, D={g: noise, y: 1}, Q={(g, y): curl})


def held_back(power):
    """Feller's integrand 1/(g log(1/g)^power) at the end 0."""
    return half_plane(noise=1, energy=g - log(g) - power * log(1 + log(1 + 1 / g)) + y**2 / 2)


def fast(power):
    """Feller's integrand 1/(x log(x)^power) far out."""
    D = (1 + x**2) ** Rational(3, 2) * log(3 + x**2) ** power
    return Recipe(name="fast", state=x, H=log(1 + x**2), D={x: D})


def on_interval(H):
    return Recipe(name="interval", state=f, target=f, H=H, D={f: f * (1 - f)})


V = adapted("V", like=theta, start=1.0, domain="positive")
SPIKE = U - total(log(exp(-(theta**2) / 2) + 10 * exp(-50 * theta**2)))
CORNERS = {  # recipe, number of sites, question, verdict
    "a jump of another law near 0": (
        lambda: Recipe(
            name="zigzag",
            state=(y, v),
            target=y,
            H=NARROW + v**2 / 2,
            D={},
            transport={y: v},
            jumps={"F": flip(v, rate=Max(0, v * y)), "R": refresh(v)},
            scheme="A F R F A",
        ),
        None,
        "stationary",
        "failed",
    ),
    "a marginal of another weight near 0": (
        lambda: Recipe(
            name="spike",
            state=(theta, b),
            target=theta,
            H=U + total(b * theta**2 / 2 + (1 - b) * 50 * theta**2),
            marginal=SPIKE,
            D={theta: 1},
            jumps={"B": refresh(b)},
        ),
        None,
        "marginal",
        "failed",
    ),
    "a speed without a mean": (lambda: steep(2), None, "explosion", "open"),
    "a speed with a mean": (lambda: steep(0.25), None, "explosion", "checked"),
    "a curl that is 0 in the middle": (
        lambda: plane({y: 1}, -(Max(0, Abs(x) - 1) ** 2)),
        None,
        "reached",
        "open",
    ),
    "a refreshment that is never made in the middle": (
        lambda: plane({}, -1, jumps={"R": refresh(y, rate=Max(0, x**2 - 4))}),
        None,
        "reached",
        "open",
    ),
    "noise of its own far out alone": (
        lambda: plane({y: 1, x: Max(0, x - 3) ** 4}, -1, log(1 + x**2) + y**2 / 2),
        None,
        "explosion",
        "failed",
    ),
    "a speed that vanishes at an end": (
        lambda: Recipe(
            name="logit", state=(f, y), target=f, H=potential(f) + y**2 / 2, D={y: 1}, Q={(f, y): -f * (1 - f)}
        ),
        None,
        "boundary",
        "checked",
    ),
    "a speed that does not vanish at an end": (
        lambda: Recipe(
            name="root", state=(f, y), target=f, H=potential(f) + y**2 / 2, D={y: 1}, Q={(f, y): -sqrt(f * (1 - f))}
        ),
        None,
        "boundary",
        "failed",
    ),
    "an end that one site does not reach and three do": (
        lambda: on_sites(total(w) - 3 * log(total(w)), block=w),
        3,
        "boundary",
        "failed",
    ),
    "an end that one site reaches and three do not": (
        lambda: on_sites(total(w) - 2 * total(log(w)) + 2 * log(total(w)), block=w),
        3,
        "boundary",
        "checked",
    ),
    "D below 0 from four sites on": (
        lambda: on_sites(total(theta**2) / 2, 3 - total(theta / sqrt(1 + theta**2))),
        8,
        "definite",
        "failed",
    ),
    "a pole at a point of space": (
        lambda: on_sites(total(theta**2) / 2 - 2 * log(total(theta**2))),
        3,
        "reached",
        "checked",
    ),
    "an end that Q passes in a corner": (lambda: half_plane(curl=CORNER), None, "boundary", "failed"),
    "an end that Q passes in half of a corner": (
        lambda: half_plane(curl=CORNER * Max(0, 2 - y) ** 2),
        None,
        "boundary",
        "failed",
    ),
    "an end that noise reaches in a corner": (lambda: half_plane(noise=g + CORNER), None, "boundary", "failed"),
    "a curl of a corner that vanishes at the end": (lambda: half_plane(curl=g * CORNER), None, "boundary", "checked"),
    "an end of a law that is steep in a corner": (
        lambda: half_plane(energy=g * exp(y) - y + y**2 / 2),
        None,
        "boundary",
        "checked",
    ),
    "an end that a log of the distance holds back": (lambda: held_back(1), None, "boundary", "checked"),
    "an end that two logs of the distance open": (lambda: held_back(2), None, "boundary", "failed"),
    "noise that grows as fast as Feller allows": (lambda: fast(1), None, "explosion", "checked"),
    "noise that grows by a log faster": (lambda: fast(2), None, "explosion", "failed"),
    "a line without noise that has a gate in a corner": (
        lambda: plane({x: x**2 + CORNER, y: 1}, 0),
        None,
        "reached",
        "checked",
    ),
    "a line without noise whose gate is shut": (lambda: plane({x: x**2, y: 1}, 0), None, "reached", "warning"),
    "a line of infinite energy that has a gate in a corner": (
        lambda: plane({x: 1, y: 1}, 0, (x**2 + y**2) / 2 + Max(0, Rational(3, 2) - y) ** 2 / x**2),
        None,
        "reached",
        "checked",
    ),
    "a pole of 1/r^1.99 in the plane": (lambda: pole(Rational(199, 200), 0, x, y), None, "normalisable", "checked"),
    "a pole of 1/r^2 in the plane": (lambda: pole(1, 0, x, y), None, "normalisable", "failed"),
    "a pole of 1/(x log x)": (lambda: pole(Rational(1, 2), 1, x), None, "normalisable", "failed"),
    "a pole of 1/(x log(x)^2)": (lambda: pole(Rational(1, 2), 2, x), None, "normalisable", "checked"),
    "a kink where three functions meet": (
        lambda: plane({x: 1, y: 1}, 1, Max(x, y, 0) + Abs(x - y) + x**2 + y**2),
        None,
        "stationary",
        "proved",
    ),
    "a kink that couples blocks at every site": (
        lambda: Recipe(
            name="kinked",
            state=(theta, p),
            H=total(Max(theta, p) + theta**2 + p**2),
            D={p: 1},
            Q={(theta, p): -1},
        ),
        None,
        "stationary",
        "proved",
    ),
    "a kink of sums over sites": (
        lambda: Recipe(
            name="kinked",
            state=(theta, p),
            H=Max(total(theta), total(p)) + total(theta**2 + p**2),
            D={p: 1},
            Q={(theta, p): -1},
        ),
        None,
        "stationary",
        "proved",
    ),
    "a tail of 1/(x log x)": (lambda: tail(1, x), None, "normalisable", "failed"),
    "a tail of 1/(x log(x)^2)": (lambda: tail(2, x), None, "normalisable", "checked"),
    "a tail of 1/(x log(x)^1.01)": (lambda: tail(Rational(101, 100), x), None, "normalisable", "checked"),
    "a tail of 1/(x log(x)^0.99)": (lambda: tail(Rational(99, 100), x), None, "normalisable", "failed"),
    "a tail of a power next to 1": (
        lambda: Recipe(name="next", state=x, H=Rational(10001, 20000) * log(1 + x**2), D={x: 1}),
        None,
        "normalisable",
        "checked",
    ),
    "a tail of 1/(r^2 log r) in the plane": (lambda: tail(1, x, y), None, "normalisable", "open"),
    "a tail of 1/(r^2 log(r)^3) in the plane": (lambda: tail(3, x, y), None, "normalisable", "checked"),
    "an end of 1/(f log f)": (
        lambda: on_interval(log(f) + log(1 - log(f))),
        None,
        "normalisable",
        "failed",
    ),
    "an end of 1/(f log(f)^2)": (
        lambda: on_interval(log(f) + 2 * log(1 - log(f))),
        None,
        "normalisable",
        "checked",
    ),
    "a pole of a line": (lambda: on_sites(total(theta**2) / 2 - 2 * log(total(theta**2))), 1, "reached", "warning"),
}


@pytest.mark.parametrize("name", CORNERS)
def test_a_corner_has_its_verdict(name):
    declared, sites, question, verdict = CORNERS[name]
    finding = declared().check(sites=sites)[question]
    assert finding.verdict == verdict, str(finding)


def test_a_drift_of_another_law_near_0_is_not_stationary():
    assert not recover((y,), H=NARROW, D={y: 1}, drift={y: -y}).ok
    assert recover((y,), H=NARROW, D={y: 1}, drift={y: -NARROW.diff(y)}).ok


def test_a_claim_that_forgets_an_adapted_quantity_is_given_it():
    recipe = Recipe(
        name="forgetful",
        state=(theta, p),
        H=U + total(p**2 / V) / 2,
        D={p: 1},
        Q={(theta, p): -1},
        adapt={V: 1 + theta**2},
        claim="given constant masses",
    )
    assert recipe.check()["claim"].answer == "given constant masses, and given frozen V"


def test_an_answer_of_a_D_that_couples_sites_names_their_numbers():
    recipe = on_sites(total(theta**2) / 2, 3 - total(theta / sqrt(1 + theta**2)) / 4)
    assert "states of 2, 3, 5 sites" in recipe.check(sites=5)["definite"].answer


WORDS = {  # recipe, question, what its answer says
    "the wall in the middle of the law": (
        lambda: plane(Matrix([[cos(x) ** 2, cos(x) * sin(x)], [cos(x) * sin(x), sin(x) ** 2]]), 0),
        "reached",
        "no chain passes x = -1.5708",
    ),
    "an end that a speed leads to": (
        lambda: Recipe(name="out", state=(g, v), target=g, H=g + v**2 / 2, D={v: 1}, Q={(g, v): -1}),
        "boundary",
        "g reaches 0, and leaves: its speed",
    ),
    "an end that noise leads to": (
        lambda: half_plane(noise=1),
        "boundary",
        "g reaches 0, and leaves: Feller's integral",
    ),
    "a law of so many sites": (
        lambda: on_sites(total(theta**2) / 2 - log(1 + total(theta) ** 2)),
        "normalisable",
        "theta by its tails, of 2 sites",
    ),
    "a law of any number of sites": (lambda: on_sites(total(theta**4)), "normalisable", "theta by its tails"),
}


@pytest.mark.parametrize("name", WORDS)
def test_an_answer_says_where_and_why(name):
    declared, question, words = WORDS[name]
    answer = declared().check()[question].answer
    assert answer.startswith(words) and ("sites" in words) == ("sites" in answer)
