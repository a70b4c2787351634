"""Operators that are functions of theta: their proof, their steps, the check of their divergence, refusals, mutants."""

import pickle

import pytest
import sympy
import torch

import integrators
import samplers
from integrators.linear_law import linear_chain
from integrators.operator_checks import check_fields
from integrators.operators import Field
from recipe import Recipe, RecipeError, derive, mapped, numerical, operator, positive, potential, total, vector
from recipe.fields import Divergence
from recipe.operators import Applied
from samplers.testing import check

theta, p, z = vector("theta"), vector("p"), vector("z")
M, J = operator("M", at=theta), operator("J", kind="skew", at=theta)
C = operator("C")
U = potential(theta)
gamma = positive("gamma", default=1.0)
RECIPES = {
    "metric": Recipe(name="metric", state=theta, H=U, D={theta: M}),
    "current": Recipe(name="current", state=theta, H=U, D={theta: gamma * C}, Q={theta: J}),
    "both": Recipe(name="both", state=theta, H=U, D={theta: gamma + 2 * M}, Q={theta: J / 3}),
    "with momenta": Recipe(
        name="with-momenta", state=(theta, p), H=U + total(p**2) / 2, D={theta: M, p: gamma}, Q={(theta, p): -1}
    ),
}
A = torch.tensor([[1.0, 0.3], [0.3, 0.5]], dtype=torch.float64)
V, W = torch.tensor([1.0, 0.5]).double(), torch.tensor([0.7, -0.4]).double()
TURN = torch.tensor([[0.0, 1.0], [-1.0, 0.0]], dtype=torch.float64)


def bump(x):
    """A smooth step across the plane."""
    return torch.sigmoid(W.to(x.dtype) @ x)


def slope(x):
    """Its derivative along W."""
    return bump(x) * (1 - bump(x))


METRIC = Field(
    lambda x: A.to(x.dtype) + torch.outer(V, V).to(x.dtype) * bump(x), lambda x: (V * (V @ W)).to(x.dtype) * slope(x)
)
CURRENT = Field(lambda x: TURN.to(x.dtype) * bump(x), lambda x: (TURN @ W).to(x.dtype) * slope(x))
VALUES = {"M": METRIC, "J": CURRENT, "C": A}


def values_of(recipe):
    """The values of its operators."""
    return {M.name: VALUES[M.name] for M in recipe.operators}


# ---- the proof


@pytest.mark.parametrize("name", RECIPES)
def test_the_law_is_proved(name):
    recipe = RECIPES[name]
    assert recipe.residual() == 0
    certificate = recipe.check()
    assert certificate.ok and certificate["stationary"].verdict == "proved"


def test_gamma_is_the_divergence_and_another_one_has_a_residual():
    assert RECIPES["both"].gamma[0] == 2 * Divergence(M) + Divergence(J) / 3
    for name, F in (("metric", M), ("current", J), ("both", J)):
        recipe = RECIPES[name]
        for factor in (-1, 0):
            drift = recipe.drift.xreplace({Divergence(F): factor * Divergence(F)})
            assert derive.residual(drift, recipe.H, recipe.D, recipe.state) != 0


def test_a_field_and_a_constant_of_one_name_are_two():
    constant = operator("M")
    assert constant != M and len((constant + M).args) == 2 and pickle.loads(pickle.dumps(M)) == M


def by_hand(flip=1):
    """The Fokker-Planck residual of "both" at two sites, of any smooth matrices, by sympy alone."""
    x = sympy.symbols("x1:3", real=True)
    energy, a, b, c, q = (sympy.Function(name)(*x) for name in "Eabcq")
    matrices = {M: sympy.Matrix([[a, b], [b, c]]), J: sympy.Matrix([[0, q], [-q, 0]])}
    recipe, rate = RECIPES["both"], sympy.Symbol("rate")

    def at(e, i):
        if isinstance(e, Applied):
            return sum(matrices[e.formula][i, k] * energy.diff(x[k]) for k in range(2))
        if isinstance(e, Divergence):
            return flip * sum(matrices[e.args[0]][i, k].diff(x[k]) for k in range(2))
        if e == gamma:
            return rate
        if e == sympy.diff(U, theta):
            return energy.diff(x[i])
        return e.func(*(at(part, i) for part in e.args)) if e.args else e

    drift = [at(recipe.drift[0], i) for i in range(2)]
    D = rate * sympy.eye(2) + 2 * matrices[M]
    rho = sympy.exp(-energy)
    flow = -sum((f * rho).diff(y) for f, y in zip(drift, x))
    spread = sum((D[i, j] * rho).diff(x[i], x[j]) for i in range(2) for j in range(2))
    return sympy.simplify(sympy.expand((flow + spread) / rho))


def test_the_drift_is_stationary_at_explicit_sites():
    assert by_hand() == 0
    assert by_hand(flip=-1) != 0


# ---- the step


@pytest.mark.parametrize("name", RECIPES)
def test_the_text_is_that_of_two_interpreters(name):
    report = check(RECIPES[name], layers=["symbolic", "differential"])
    assert report.ok and not report.left_out, str(report)


POWERS = (1, 0), (0, 1), (2, 0), (1, 1), (0, 2), (1, 2)


def defect(recipe, source=None):
    """The largest mean change of a monomial in a small step from the target on, in units of h: 0 up to O(h)."""
    grid = torch.linspace(-7, 7, 141, dtype=torch.float64)
    x = torch.cartesian_prod(grid, grid).requires_grad_()
    density = torch.softmax(-quartic(x.detach()), 0)
    drift, D = drift_and_diffusion(recipe, source, x.detach())
    worst = 0.0
    for a, b in POWERS:
        (first,) = torch.autograd.grad((x[:, 0] ** a * x[:, 1] ** b).sum(), x, create_graph=True)
        second = torch.stack([_row(first, i, x) for i in range(2)], 1)
        change = (drift * first.detach()).sum(1) + (D * second).sum((1, 2))
        worst = max(worst, abs(float((density * change).sum())))
    return worst


def drift_and_diffusion(recipe, source, x, h=1e-6):
    """Those of a step at some states, `(chains, 2)` and `(chains, 2, 2)`, by calls of its text."""
    namespace = {}
    exec(compile(source or integrators.compile(recipe).source, "step", "exec"), namespace)

    def moved(noise):
        arguments = dict(gradient=gradient, noise={"theta": noise}, **values_of(recipe))
        return namespace["step"]({"theta": x}, h, **arguments)["theta"]

    still = moved(0 * x)
    roots = [(moved(unit.expand_as(x)) - still) / h**0.5 for unit in torch.eye(2, dtype=x.dtype)]
    L = torch.stack(roots, 2)
    return (still - x) / h, L @ L.mT / 2


def _row(first, i, x):
    """A row of the Hessian; 0 where a slope is constant."""
    if not first.requires_grad:
        return torch.zeros_like(x)
    (row,) = torch.autograd.grad(first[:, i].sum(), x, retain_graph=True, allow_unused=True)
    return torch.zeros_like(x) if row is None else row.detach()


def gradient(x):
    """That of the quartic energy."""
    return torch.stack([x[:, 0] ** 3 + x[:, 1] / 2, x[:, 1] + x[:, 0] / 2], 1)


def quartic(x):
    """An energy whose coordinates are coupled."""
    return x[..., 0] ** 4 / 4 + x[..., 1] ** 2 / 2 + x[..., 0] * x[..., 1] / 2


@pytest.mark.parametrize("name", ["metric", "current", "both"])
def test_a_step_leaves_the_target_as_it_is_to_first_order(name):
    assert defect(RECIPES[name]) < 1e-6


MUTANTS = {
    "the divergence with the other sign": ("metric", "M.divergence", "(-M.divergence)"),
    "no divergence of the current": ("current", "J.divergence", "0*J.divergence"),
    "the transposed current": ("current", "(J @ g)", "(-(J @ g))"),
    "noise of another matrix": ("metric", "root_M = M.root()", "root_M = M"),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_seen(mutant):
    name, right, wrong = MUTANTS[mutant]
    source = integrators.compile(RECIPES[name]).source
    assert right in source
    assert defect(RECIPES[name], source.replace(right, wrong)) > 1e-2


def test_a_run_and_what_it_says(tmp_path):
    run = dict(init=torch.zeros(2), steps=30, step_size=0.05, progress=False, checkpoint=str(tmp_path / "run"))
    draws = samplers.sample(RECIPES["both"], quartic, **VALUES_OF_BOTH, **run)
    assert draws["theta"].dtype == torch.float32 and draws.info["law"] == "exact"
    assert draws.info["parameters"] == {"J": "Field", "M": "Field"}
    assert torch.equal(samplers.sample(RECIPES["both"], quartic, **VALUES_OF_BOTH, **run)["theta"], draws["theta"])
    alike_at_0 = Field(lambda x: METRIC.matrix(2 * x), lambda x: 2 * METRIC.divergence(2 * x))
    assert torch.equal(alike_at_0.matrix(torch.zeros(2)), METRIC.matrix(torch.zeros(2)))
    for other in (alike_at_0, Field(METRIC.matrix, lambda x: METRIC.divergence(x) + 1e-7)):
        with pytest.raises(RecipeError, match="it holds a run of parameters"):
            samplers.sample(RECIPES["both"], quartic, **{**VALUES_OF_BOTH, "M": other}, **run)
    assert "weak order 1" in str(integrators.compile(RECIPES["both"]))
    assert "nabla" in RECIPES["both"].latex()


VALUES_OF_BOTH = {"M": METRIC, "J": CURRENT}


def test_a_chain_is_lost_where_the_matrix_is_no_longer_positive():
    shrinking = Field(lambda x: torch.diag(1 - x.square().mean().expand(2)), lambda x: -x)
    with pytest.warns(RuntimeWarning, match="chains are lost"):
        draws = samplers.sample(
            RECIPES["metric"],
            lambda x: (x**2).sum() / 200,
            init=torch.zeros(2),
            chains=64,
            M=shrinking,
            steps=30,
            step_size=0.02,
            progress=False,
        )
    assert draws["theta"].isfinite().all()


# ---- the check of what is given


def seen(value, name="metric", init=None):
    """A run of three steps with a value of its field."""
    own = {"metric": "M", "current": "J"}[name]
    others = {"C": A} if name == "current" else {}
    start = torch.tensor([0.3, -0.2]) if init is None else init
    return samplers.sample(
        RECIPES[name], lambda x: x / 0, init=start, steps=3, step_size=0.1, progress=False, **{own: value}, **others
    )


BAD = {
    "its divergence is -.* at site 0, but sum_j dM_ij/dtheta_j is": lambda: Field(
        METRIC.matrix, lambda x: -METRIC.divergence(x)
    ),
    "its divergence is 0 at site": lambda: Field(METRIC.matrix, torch.zeros_like),
    "its divergence has the shape": lambda: Field(METRIC.matrix, lambda x: torch.ones(3)),
    "its matrix has the shape": lambda: Field(lambda x: torch.ones(2), METRIC.divergence),
    "its divergence is not finite": lambda: Field(METRIC.matrix, lambda x: x / 0),
    "it is not symmetric and positive definite: M - M": lambda: Field(
        lambda x: METRIC.matrix(x) + TURN, METRIC.divergence
    ),
    "an eigenvalue is -": lambda: Field(lambda x: METRIC.matrix(x) - 3 * torch.eye(2), METRIC.divergence),
    "differences of its matrix do not settle": lambda: Field(
        lambda x: METRIC.matrix(x.float()), lambda x: METRIC.divergence(x)
    ),
    "its matrix jumps at theta = ": lambda: Field(
        lambda x: METRIC.matrix(x) + torch.eye(2, dtype=x.dtype) * (x.sum() > 3), METRIC.divergence
    ),
    "its functions cannot be evaluated": lambda: Field(lambda x: x @ torch.ones(7), METRIC.divergence),
    "it is a function of theta, got": lambda: torch.eye(2),
    "and it is not given": lambda: Field(METRIC.matrix),
    "its matrix is a function of theta, got": lambda: Field(torch.eye(2), METRIC.divergence),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_fields_are_refused_before_the_first_step(message):
    with pytest.raises(RecipeError, match=message):
        seen(BAD[message]())


def test_a_skew_field_is_checked_too():
    with pytest.raises(RecipeError, match="it is not skew"):
        seen(METRIC, "current")
    with pytest.raises(RecipeError, match="its divergence is"):
        seen(Field(CURRENT.matrix, lambda x: -CURRENT.divergence(x)), "current")


def test_the_check_takes_right_fields_of_any_scale_and_shape():
    """Of 60 sites in a square, a thousandth and a million times as large."""
    w = torch.linspace(-1, 1, 60, dtype=torch.float64)
    unit = torch.linspace(1, 2, 60, dtype=torch.float64)
    for scale in (1e-3, 1.0, 1e6):
        value = Field(
            lambda x, s=scale: (
                s * (torch.eye(60, dtype=x.dtype) + torch.outer(unit, unit) * torch.sin(w @ x.ravel()) ** 2)
            ),
            lambda x, s=scale: (s * unit * (unit @ w) * torch.sin(2 * w @ x.ravel())).reshape(x.shape),
        )
        start = {"theta": torch.randn(3, 6, 10, generator=torch.Generator().manual_seed(1))}
        check_fields(RECIPES["metric"], {"M": value}, start)
        twice = Field(value.matrix, lambda x, v=value: (1 + 1e-4) * v.divergence(x))
        with pytest.raises(RecipeError, match="its divergence is"):
            check_fields(RECIPES["metric"], {"M": twice}, start)


H_OF_BOTH = U + total(p**2) / 2
BAD_RECIPES = {
    "it stands in supplied, in an update or in a jump": dict(supplied={p: M / 2}),
    "H has M\\*\\*2, whose slope by theta is not known": dict(H=H_OF_BOTH + total(p * M(M(p))) / 2),
    "stands in the row of theta and the column of p": dict(Q={(theta, p): M}),
    "which is no block": dict(D={p: operator("N", at=z)}),
    "the divergence of 1/M does not follow": dict(D={theta: 1 / M}),
    "the divergence of J\\*total\\(p\\) does not follow": dict(D={theta: 1}, Q={theta: J * total(p)}),
}


@pytest.mark.parametrize("message", BAD_RECIPES)
def test_bad_recipes_are_refused(message):
    declared = {"name": "bad", "state": (theta, p), "target": theta, "H": H_OF_BOTH, "D": {p: 1}}
    with pytest.raises(RecipeError, match=message):
        Recipe(**{**declared, **BAD_RECIPES[message]})


def test_other_ways_are_refused():
    metric = RECIPES["metric"]
    with pytest.raises(RecipeError, match="it is at a vector of the state"):
        operator("M", at=2)
    with pytest.raises(RecipeError, match="its flows are not known. Use the word 'Euler'"):
        integrators.compile(metric, "X", pieces={"X": numerical(theta, "heun")})
    with pytest.raises(RecipeError, match="its flows are not known"):
        integrators.compile(RECIPES["with momenta"], "B A O A B")
    with pytest.raises(RecipeError, match="its flows are not known"):
        integrators.metropolised(metric)
    with pytest.raises(RecipeError, match="the operator M is a function of theta: the step is not affine"):
        linear_chain(integrators.compile(metric), 0.1, torch.eye(2), M=METRIC)
    with pytest.raises(RecipeError, match="which is no block"):
        mapped(metric, theta=z, by=sympy.sinh)
    with pytest.raises(RecipeError, match="it is constant, and a Field moves"):
        samplers.sample(RECIPES["current"], quartic, init=torch.zeros(2), step_size=0.1, J=CURRENT, C=METRIC)
    with pytest.raises(RecipeError, match="moves with theta, and is not checked here"):
        samplers.Optimizer([torch.zeros(2, requires_grad=True)], metric, lr=0.1, num_data=10, M=METRIC)
    with pytest.raises(RecipeError, match="a site reads others by an operator"):
        samplers.sample(metric, quartic, init=torch.zeros(2), step_size=0.1, M=METRIC, backend="cpp")
