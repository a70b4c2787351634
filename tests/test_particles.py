"""Particles that read one another: outer products in D, the law of the ensemble, its noise, refusals, mutants."""

import pytest
import sympy
import torch
from covering import covering

import integrators
from integrators.requirements import check_noise
from recipe import (
    Recipe,
    RecipeError,
    copies,
    grad,
    operator,
    outer,
    particles,
    positive,
    potential,
    recover,
    scalar,
    total,
    vector,
)
from recipe.certificate import surfaces
from recipe.certificate.case import Case
from recipe.certificate.writing import written_out
from recipe.operators import times
from samplers import sample
from samplers.testing.generator import generator_at_one_site

theta, p = vector("theta"), vector("p")
gamma = positive("gamma", default=1.0)
U = potential(theta)
n = total(1)


def mean(ensemble):
    return sum(ensemble) / len(ensemble)


def covariance(ensemble):
    return sum(outer(x - mean(ensemble)) for x in ensemble) / len(ensemble)


def aldi(number):
    """Langevin dynamics of particles preconditioned by their covariance."""
    ensemble = particles(theta, number)
    return Recipe(
        name="aldi",
        state=ensemble,
        target=ensemble,
        H=sum(copies(*ensemble)),
        D=dict.fromkeys(ensemble, covariance(ensemble)),
    )


ALDI = aldi(3)


# ---- the law


def test_gamma_is_that_of_the_paper():
    """Garbuno-Inigo, Nuesken and Reich 2020, eq. (2.12): (d + 1)/N times the distance from the mean."""
    for i, x in enumerate(ALDI.state):
        assert sympy.expand(ALDI.gamma[i] - (n + 1) * (x - mean(ALDI.state)) / 3) == 0
    assert ALDI.residual() == 0


@pytest.mark.parametrize("factor, is_right", [(0, False), (1, False), (n, False), (-(n + 1), False), (n + 1, True)])
def test_another_correction_is_refuted(factor, is_right):
    """Without the correction it is the ensemble Kalman sampler."""
    energies = copies(*ALDI.state)
    drift = {
        x: -times(ALDI.D[0, 0], grad(V, x)) + factor * (x - mean(ALDI.state)) / 3
        for x, V in zip(ALDI.state, energies, strict=True)
    }
    recovery = recover(ALDI.state, ALDI.H, drift, ALDI.D)
    assert recovery.ok is is_right
    assert (recovery.residual == 0) is is_right


def test_consensus_has_another_law():
    """Particles drawn to a mean with weights exp(-U), with the noise of the covariance with these weights, twice.

    Carrillo, Hoffmann, Stuart and Vaes 2022, eq. (1.3) with beta = 1: on a Gaussian, and not for finite numbers.
    """
    pair = scalar("x"), scalar("y")
    H = sum(x**2 for x in pair) / 2
    weights = [sympy.exp(-(x**2) / 2) / sum(sympy.exp(-(y**2) / 2) for y in pair) for x in pair]
    centre = sum(w * x for w, x in zip(weights, pair, strict=True))
    C = sum(w * (x - centre) ** 2 for w, x in zip(weights, pair, strict=True))
    wrong = generator_at_one_site([centre - x for x in pair], sympy.diag(2 * C, 2 * C), H, pair)
    assert max(map(abs, wrong.defects(degree=2).values())) > 0.05
    right = generator_at_one_site(ALDI.drift, ALDI.D, ALDI.H, ALDI.state)
    assert max(map(abs, right.defects(degree=3).values())) < 1e-9


def residual_by_hand(factor):
    """The Fokker-Planck residual of three particles in two dimensions, by sympy alone, with a U that couples them."""
    x = sympy.Matrix(3, 2, sympy.symbols("x:3:2", real=True))
    apart = x - sympy.ones(3, 3) * x / 3
    C = apart.T * apart / 3
    rest = 0
    for i in range(3):
        a, b = x.row(i)
        energy = a**2 / 2 + (b - a**2) ** 2 / 2
        slope = sympy.Matrix([energy.diff(a), energy.diff(b)])
        divergence = sympy.Matrix([sum(C[j, k].diff(x[i, k]) for k in range(2)) for j in range(2)])
        current = divergence - factor * apart.row(i).T / 3  # the drift has C slope, as the noise
        rest += current[0].diff(a) + current[1].diff(b) - (current.T * slope)[0]
    return sympy.expand(rest)


def test_the_law_in_coordinates():
    assert residual_by_hand(3) == 0
    assert residual_by_hand(2) != 0


def test_the_matrix_over_explicit_sites():
    explicit = written_out(ALDI, 2)
    x = sympy.Matrix(3, 2, explicit.coordinates)
    apart = x - sympy.ones(3, 3) * x / 3
    assert sympy.expand(explicit.D - sympy.kronecker_product(sympy.eye(3), apart.T * apart / 3)).is_zero_matrix


def test_the_divergence_of_vectors_with_sums():
    """Of v with a sum over sites, against differences of v v^T over three sites."""
    v = theta * total(theta**2) + gamma * sympy.sin(theta)
    (slope,) = Recipe(name="along", state=theta, H=U, D={theta: outer(v)}).gamma
    x = sympy.symbols("x:3", real=True)
    squares = sum(a**2 for a in x)
    own = [a * squares + gamma * sympy.sin(a) for a in x]

    def at(e, a):
        if isinstance(e, sympy.Symbol):
            return a if e == theta else e
        if type(e).__name__ == "Total":
            return sum(at(e.integrand, b) for b in x)
        return e.func(*(at(part, a) for part in e.args)) if e.args else e

    by_hand = sum((own[0] * own[k]).diff(x[k]) for k in range(3))
    assert sympy.simplify(sympy.expand(at(slope, x[0]) - by_hand)) == 0


# ---- the certificate


def test_the_certificate_is_exact():
    certificate = ALDI.check(sites=1)
    assert certificate.exact
    assert certificate["definite"].verdict == certificate["stationary"].verdict == "proved"


@pytest.mark.slow
@pytest.mark.parametrize(
    "number, sites, verdict",
    [(2, 1, "warning"), (2, 2, "warning"), (3, 2, "warning"), (4, 2, "checked"), (4, 3, "open"), (4, 5, "open")],
)
def test_particles_are_to_be_two_more_than_sites(number, sites, verdict):
    """Of N <= d they stay in a plane; of N = d + 1 their simplex keeps its orientation."""
    reached = aldi(number).check(sites=sites)["reached"]
    assert reached.verdict == verdict and ("of 2 sites" in reached.answer) == (verdict == "checked")


def test_the_normal_of_a_surface_where_D_vanishes_has_no_noise_along_it():
    """Differences alone have it up to an angle, at which noise along the surface hides that none goes across."""
    fields = surfaces._Fields(Case(ALDI, 1.0, (), {}).explicit)
    at, k = surfaces._zeros(fields, 1.0, fields.segments)
    assert len(k) > surfaces.POINTS
    for c, way in zip(at.T, fields.segments.way.T[k], strict=True):
        n = fields.normal((c, way), fields.root)
        D = fields.D(c[:, None]).reshape(6, 6)
        assert abs(n @ n - 1) < 1e-12 and n @ D @ n < 1e-9 * D.trace()


def test_a_surface_on_which_the_kernel_of_D_is_slanted_is_no_wall():
    """D vanishes at x = 0 along (cos .1, sin .1): noise goes across."""
    x, y = scalar("x"), scalar("y")
    c, s = sympy.cos(0.1), sympy.sin(0.1)
    D = {x: c**2 * x**2 + s**2, (x, y): c * s * (x**2 - 1), y: s**2 * x**2 + c**2}
    slanted = Recipe(name="slanted", state=(x, y), target=(x, y), H=x**2 / 2 + y**2 / 2, D=D)
    assert surfaces.wall(Case(slanted, 1.0, (), {}).explicit) is None


def test_a_number_beside_an_outer_product_reaches_all():
    along = Recipe(name="along", state=theta, H=U, D={theta: gamma + outer(theta)})
    certificate = along.check(sites=5)
    assert certificate["definite"].verdict == certificate["reached"].verdict == "proved"


# ---- the step


def defect(source, h=1e-6):
    """The largest mean change of x_i x_j and of x_i^3 in a small step from the product law on, in units of h."""
    grid = torch.linspace(-4, 4, 33, dtype=torch.float64)
    x = torch.cartesian_prod(grid, grid, grid)
    density = torch.softmax(-(x**4 / 4 - x / 2).sum(1), 0)
    namespace = {}
    exec(compile(source, "step", "exec"), namespace)
    names = [f"theta_{i}{k}" for i in (1, 2, 3) for k in (1, 2, 3)]

    def moved(drawn):
        state = {f"theta_{i + 1}": x[:, i : i + 1] for i in range(3)}
        noise = {name: torch.full((len(x),), float(name == drawn), dtype=x.dtype) for name in names}
        after = namespace["step"](state, h, gradient=lambda x: x**3 - 0.5, noise=noise)
        return torch.cat([*after.values()], 1)

    still = moved(None)
    drift = (still - x) / h
    L = torch.stack([(moved(name) - still) / h**0.5 for name in names], 2)
    D = L @ L.mT / 2
    pairs = [drift[:, i] * x[:, j] + drift[:, j] * x[:, i] + 2 * D[:, i, j] for i in range(3) for j in range(i + 1)]
    cubes = [3 * x[:, i] ** 2 * drift[:, i] + 6 * x[:, i] * D[:, i, i] for i in range(3)]
    return max(abs(float(density @ change)) for change in pairs + cubes)


def test_a_step_leaves_the_product_law_to_first_order():
    assert defect(integrators.compile(ALDI).source) < 1e-6


MUTANTS = {
    "a correction of 1/N": ("temperature*n/", "0*temperature*n/"),
    "the correction with the other sign": ("h*(2*temperature*n/9", "h*(-2*temperature*n/9"),
    "noise that two vectors share": ('noise["theta_12"]', 'noise["theta_11"]'),
    "noise that two particles share": ('noise["theta_2', 'noise["theta_1'),
    "half of the noise": ("math.sqrt(6*", "math.sqrt(3*"),
    "a covariance of the gradient without a particle": ("sum1 = total(theta_1*", "sum1 = 0*total(theta_1*"),
}


@pytest.mark.parametrize("mutant", covering(MUTANTS, [*MUTANTS][::2]))
def test_mutants_are_seen(mutant):
    source = integrators.compile(ALDI).source
    right, wrong = MUTANTS[mutant]
    assert right in source
    assert defect(source.replace(right, wrong)) > 1e-2


def test_the_noise_of_a_number_and_of_an_outer_product_add_up():
    """D = gamma + theta theta^T as a matrix over three sites, by unit noise."""
    step = integrators.compile(Recipe(name="along", state=theta, H=U, D={theta: gamma + outer(theta)}))
    x = torch.tensor([[0.3, -1.0, 2.0]], dtype=torch.float64)
    own, along = step.draws

    def moved(unit, h=1e-6):
        noise = {own: x * 0, along: torch.zeros(1, dtype=x.dtype)}
        if unit is not None:
            noise[own] = torch.eye(3, dtype=x.dtype)[[unit]] if unit < 3 else x * 0
            noise[along] = noise[along] + (unit == 3)
        return step({"theta": x}, h, gradient=lambda x: x, noise=noise, gamma=0.7)["theta"] / h**0.5

    L = torch.cat([moved(k) - moved(None) for k in range(4)])
    expected = 0.7 * torch.eye(3, dtype=x.dtype) + x.mT @ x
    torch.testing.assert_close(L.mT @ L / 2, expected)


def test_a_force_is_an_outer_product_at_a_frozen_vector():
    """A momentum with the noise theta theta^T: Euler's step alone, whose friction reads a sum."""
    recipe = Recipe(
        name="friction-along",
        state=(theta, p),
        target=theta,
        H=U + total(p**2) / 2,
        D={p: outer(theta)},
        Q={(theta, p): -1},
    )
    assert recipe.gamma.is_zero_matrix
    assert sympy.expand(recipe.drift[1] + theta * total(theta * p) + grad(U)) == 0
    integrators.compile(recipe, "Euler")
    with pytest.raises(RecipeError, match="no closed form is known"):
        integrators.compile(recipe, "B A O A B")


def test_steps_are_not_accepted():
    with pytest.raises(RecipeError, match="has no density that is known"):
        integrators.metropolised(ALDI)


# ---- kernels between particles


def stein(kernel, number=3):
    """Stein variational gradient descent with the noise of its kernel: D of two particles is K/N, without operators."""
    ensemble = particles(theta, number)
    D = {(x, y): kernel(x, y) / number for k, x in enumerate(ensemble) for y in ensemble[k:]}
    return Recipe(name="stein", state=ensemble, target=ensemble, H=sum(copies(*ensemble)), D=D)


def gaussian(x, y):
    return sympy.exp(-total((x - y) ** 2) / 2)


def test_the_repulsion_of_a_kernel_is_gamma():
    """Nuesken and Renger 2023, eq. (5): sum_j grad_j K(x_i, x_j)/N."""
    recipe = stein(gaussian, 2)
    x, *others = recipe.state
    assert recipe.residual() == 0
    assert sympy.expand(recipe.gamma[0] - sum((x - y) * gaussian(x, y) for y in others) / 2) == 0
    flipped = recipe.drift - 2 * recipe.gamma
    assert recover(recipe.state, recipe.H, flipped, recipe.D).how == "not stationary"


def test_the_noise_of_a_kernel_is_checked_over_sites():
    """Three sums of squares taken as independent numbers would make the matrix indefinite."""
    check_noise(stein(gaussian), 0.1, 1.0, {})


def test_a_kernel_that_is_not_definite_is_refused():
    with pytest.raises(RecipeError, match="it is not positive semidefinite"):
        stein(lambda x, y: 1 + total((x - y) ** 2))


@pytest.mark.parametrize("number", covering([2, 3, 5], [2]))
def test_particles_of_one_site_never_pass_each_other(number):
    found = stein(gaussian, number).check(sites=1)["reached"]
    assert found.verdict == "warning" and found.answer.startswith("no chain passes theta_1_1 = theta_2_1")
    if number == 2:
        flat = stein(lambda x, y: gaussian(x, y) + (x is y) / 2, number)  # a noise of its own beside
        assert flat.check(sites=1)["reached"].verdict == "checked"


# ---- refusals

ENSEMBLE = particles(theta, 2)


def test_a_start_in_a_plane_is_refused():
    recipe = aldi(4)
    start = {x.name: torch.full((2,), float(k)) for k, x in enumerate(recipe.state)}
    settings = dict(steps=2, step_size=0.01, progress=False)
    with pytest.raises(RecipeError, match="vectors that span 1 of 2 sites, and never leaves them"):
        sample(recipe, lambda x: x.square().sum(), init=start, **settings)
    start["theta_2"] = torch.tensor([1.0, 0.5])
    sample(recipe, lambda x: x.square().sum(), init=start, **settings)


def test_a_particle_has_no_distance_from_itself():
    own = {x: sum(outer(y - x) for y in ENSEMBLE) for x in ENSEMBLE}
    assert outer(theta - theta) == 0
    assert Recipe(name="pairs", state=ENSEMBLE, target=ENSEMBLE, H=sum(copies(*ENSEMBLE)), D=own).residual() == 0


BAD = {
    "It is an entry of D": dict(H=U + outer(theta)),
    "is the noise of one vector alone": dict(Q={(theta, p): outer(theta)}),
    "Put it on the diagonal of D, alone in its row": dict(D={theta: outer(theta), (theta, p): 1, p: 1}),
    "is not known beside an operator": dict(D={theta: outer(theta) + operator("M")}),
    "or less supplied noise": dict(D={theta: 1 + outer(theta)}, supplied={theta: 1}),
    "and not a number from 0 on": dict(D={theta: -outer(theta)}),
    "outer\\(sqrt\\(c\\)": dict(D={theta: (1 + total(theta**2)) * outer(theta)}),
    "is no sum of numbers times outer products": dict(D={theta: outer(theta) ** 2}),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_entries_are_refused(message):
    declared = {"name": "bad", "state": (theta, p), "target": theta, "H": U + total(p**2) / 2, "D": {theta: 1, p: 1}}
    with pytest.raises(RecipeError, match=message):
        Recipe(**{**declared, **BAD[message]})


def test_bad_vectors_and_numbers_are_refused():
    with pytest.raises(RecipeError, match="has no value per site"):
        outer(total(theta))
    with pytest.raises(RecipeError, match="the divergence of the outer product of grad"):
        outer(grad(U))
    with pytest.raises(RecipeError, match="they are vectors, got x"):
        particles(scalar("x"), 3)
    with pytest.raises(RecipeError, match="number"):
        particles(theta, 1)
    with pytest.raises(RecipeError, match="Operators act on vectors of real numbers"):
        positive_theta = vector("theta", domain="positive")
        Recipe(name="bad", state=positive_theta, H=potential(positive_theta), D={positive_theta: outer(positive_theta)})
