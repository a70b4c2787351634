"""The calculus of totals: derivatives, canonical form and the test for zero, against explicit sites."""

import pytest
from explicit_sites import at_site, coordinates, is_zero, sites
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sympy import S, cos, diff, exp, expand, sin, sqrt, tanh

from integrators.variates import Normal, Uniform
from recipe import RecipeError, adapted, function, grad, observe, positive, potential, scalar, total, vector
from recipe.algebra import vanishes
from recipe.symbols import Total, is_site

theta, p, xi = vector("theta"), vector("p"), scalar("xi")
a, m = positive("a"), positive("m", per=theta)
U, G, n = potential(theta), function("G", theta), total(1)

few = settings(max_examples=25, derandomize=True, deadline=None)


functions = [sin, tanh, lambda x: x**2, lambda x: 1 / (1 + x**2)]


def grown(smaller):
    """Formulas one operation larger than the given ones."""
    return (
        st.builds(lambda x, y: x + y, smaller, smaller)
        | st.builds(lambda x, y: x * y, smaller, smaller)
        | st.builds(lambda f, x: f(x), st.sampled_from(functions), smaller)
        | st.builds(total, smaller)
    )


formulas = st.recursive(st.sampled_from([theta, p, xi, a, m, n, G, U, S(2), -S.One / 3]), grown, max_leaves=5)


def explicit_derivative(expression, block, site, count):
    """d/dz of the expression as the same site sees it, z the block's coordinate there."""
    return diff(at_site(expression, site, count), coordinates(block, count)[(site or 1) - 1])


# ---- derivatives


@given(formulas, st.sampled_from([theta, p, xi]), st.sampled_from([1, 2, 3]))
@few
def test_a_derivative_of_the_language_is_the_derivative_of_the_explicit_sum(formula, block, count):
    chain = total(formula) if is_site(formula) else formula
    derivative = diff(chain, block)
    for site in sites(block, count):
        assert is_zero(at_site(derivative, site, count) - explicit_derivative(chain, block, site, count))


@pytest.mark.parametrize(
    "chain, block, derivative",
    [
        (total(p**3), p, 3 * p**2),
        (total(xi * p**2), xi, total(p**2)),
        (total(p**2) ** 2, p, 4 * p * total(p**2)),
        (total(p * total(p)), p, 2 * total(p)),
        (total(sin(p * total(theta))), theta, total(p * cos(p * total(theta)))),
        (total(exp(xi * total(p**2) * theta)), p, 2 * p * xi * total(theta * exp(xi * total(p**2) * theta))),
        (total(p) * U, theta, total(p) * grad(U)),
        (total(exp(U * p)), theta, total(p * exp(U * p)) * grad(U)),
        (n, p, 0),
    ],
)
def test_inner_totals_follow_the_chain_rule(chain, block, derivative):
    assert vanishes(diff(chain, block) - derivative)


@pytest.mark.parametrize(
    "chain", [total(grad(U) ** 2), total(p * grad(U)), total(sin(total(p * grad(U)) * p))], ids=str
)
def test_the_full_hessian_is_refused(chain):
    with pytest.raises(RecipeError, match="full Hessian of U.*keep grad"):
        diff(chain, theta)


@pytest.mark.parametrize(
    "chain, block, derivative",
    [(total(p * grad(U)), p, grad(U)), (total(xi**2 * grad(U)), xi, 2 * xi * total(grad(U)))],
    ids=str,
)
def test_a_total_of_gradients_is_differentiated_by_the_other_blocks(chain, block, derivative):
    assert vanishes(diff(chain, block) - derivative)


def test_second_derivatives_of_the_potential_are_its_hessian_diagonal():
    assert str(diff(U, theta, 2)) == "hessian(U, theta, theta)"
    assert diff(U, p) == diff(grad(U), p) == 0


# ---- canonical form


@given(formulas, formulas)
@few
def test_total_is_linear(f, g):
    assert vanishes(total(f + 3 * g) - total(f) - 3 * total(g)) == "symbolic"


@given(formulas, formulas)
@few
def test_factors_without_sites_leave_the_total(f, factor):
    assume(not is_site(factor))
    assert vanishes(total(factor * f) - factor * total(f)) == "symbolic"


@given(formulas)
@few
def test_no_total_holds_a_sum_or_a_factor_without_sites(f):
    for t in expand(total(f)).atoms(Total):
        assert not t.integrand.is_Add
        assert t.integrand is S.One or all(is_site(factor) for factor in t.integrand.as_ordered_factors())


@pytest.mark.parametrize(
    "written, canonical",
    [
        (total(3 * a * p), "3*a*total(p)"),
        (total(total(p)), "n*total(p)"),
        (expand(total((p + 1) ** 2)), "n + 2*total(p) + total(p**2)"),
        (expand(total(p * (p + xi))), "total(p**2) + xi*total(p)"),
        (total(0), "0"),
        (total(m), "total(m)"),
        (total(U), "n*U(theta)"),
        (total(grad(U)), "total(grad(U))"),
    ],
)
def test_totals_have_one_canonical_form(written, canonical):
    def as_terms(text):
        return sorted(tuple(sorted(term.split("*"))) for term in text.split(" + "))

    assert as_terms(str(written)) == as_terms(canonical)


# ---- the test for zero


@given(formulas, formulas)
@few
def test_zero_and_not_zero_agree_with_explicit_sites(f, g):
    f, g = (total(e) if is_site(e) else e for e in (f, g))
    for difference in (f - g, (f + g) ** 2 - f**2 - 2 * f * g - g**2, f * g - total(f * g)):
        explicit = all(is_zero(at_site(difference, None, count)) for count in (1, 2, 3))
        assert (vanishes(difference) is not None) == explicit


@pytest.mark.parametrize(
    "zero",
    [
        total(sin(p) ** 2) + total(cos(p) ** 2) - n,
        total(p) * total(theta) - total(p * total(theta)),
        total(sin(p) ** 2) * total(theta) + total(cos(p) ** 2) * total(theta) - n * total(theta),
        total(a / (a + p**2)) * total(p**3) + total(p**2 / (a + p**2)) * total(p**3) - n * total(p**3),
        total(p**2) / total(p**2 + 1) + n / total(p**2 + 1) - 1,
        total(p / (1 + total(p**2))) * (1 + total(p**2)) - total(p),
        1 / (sqrt(1 + p**2) - p) - sqrt(1 + p**2) - p,
        total(a / (a + p**2)) + total(p**2 / (a + p**2)) - n,
    ],
    ids=str,
)
def test_zeros_are_recognised(zero):
    assert vanishes(zero) is not None


@pytest.mark.parametrize(
    "other",
    [
        total(p) - p,
        total(p) ** 2 - total(p**2),
        total(p * theta) - total(p) * total(theta) / n,
        n - 1,
        total(G) - n * G,
        total(p**2) / total(p**2 + 1) - 1,
        total(sin(p) ** 2) + total(cos(p) ** 2) - n * (1 + S(10) ** -9),
    ],
    ids=str,
)
def test_a_formula_that_is_not_zero_is_not_called_zero(other):
    assert vanishes(other) is None


@pytest.mark.parametrize(
    "make",
    [
        lambda: positive("m"),
        lambda: positive("m", default=2.0, per=theta),
        lambda: vector("q"),
        lambda: observe("s"),
        lambda: adapted("V", like=theta, start=grad(U) ** 2),
        lambda: Normal(theta),
        lambda: Uniform(theta, "turn", False),
    ],
)
def test_symbols_that_are_declared_twice_are_the_same_and_have_an_order(make):
    """sympy sorts the symbols of a formula by what they are made of."""
    one, other = make(), make()
    assert one is not other and one == other and hash(one) == hash(other) and one.compare(other) == 0
