"""Triton kernels: the torch step's numbers, on a GPU where there is one, else by Triton's interpreter on the CPU."""

import pytest
import torch
from devices import TRITON
from sympy import Abs, Heaviside, Not, Or, Piecewise, Rational, pi, sign, tanh

from test_kernels import KERNELS, against_torch, gradient, moved, pair, sweep_of

import integrators
from integrators.kernels.launchers import GROUPS_OF_BLOCK
from integrators.noise import Key
from recipe import Recipe, RecipeError, potential, scalar, total, vector
from samplers.testing import check
from samplers.testing.cases import CASES

theta, p, xi = vector("theta"), vector("p"), scalar("xi")


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_is_the_step_of_the_torch_text(name):
    assert max(against_torch(name, "triton", 3, (5,), Key(2**63 + 1, 2**33 + 5, first_chain=3))) <= 1e-12


@pytest.mark.parametrize("shape", [(1,), (4 * GROUPS_OF_BLOCK + 3,), (3, 5, 70)])
def test_any_shape_in_float32(shape):
    plain, kernel = pair("sgnht", "triton")

    def on(*size):
        return torch.linspace(-1, 1, 2 * torch.Size(size).numel(), device=TRITON).reshape(2, *size)

    state = {"theta": on(*shape), "p": on(*shape) + 0.3, "xi": torch.tensor([0.4, 0.7], device=TRITON)}
    results = [
        step(state, 0.1, gradient=gradient, noise=Key(3, 4), temperature=1.3, A=0.7, mu=1.6) for step in (plain, kernel)
    ]
    assert all((results[0][b] - results[1][b]).abs().max() <= 1e-5 for b in state)


@pytest.mark.parametrize(
    "D",
    [
        pi + theta**2,
        2 + sign(theta),
        1 + Heaviside(theta),
        1 + Abs(theta) ** Rational(1, 3),
        1 + 2**theta,
        Piecewise((Rational(1, 10), xi > 0), (Rational(7, 10), True)) + theta**2,
        1 + tanh(theta) ** 2,
        2 + Piecewise((1, Or(theta > 0, Not(xi > theta))), (2, True)),
        1 + theta**2 / 2**65,
    ],
    ids=str,
)
def test_literals_are_of_the_type_of_the_state(D):
    """Constants, choices and powers in float64."""
    recipe = Recipe(
        name="literals",
        state=(theta, p, xi),
        target=theta,
        H=potential(theta) + total(p**2) / 2 + total(1) * xi**2 / 2,
        D={p: D, xi: 1 / total(1)},
        Q={(theta, p): -1, (p, xi): p / total(1)},
    )
    at = torch.linspace(-1.5, 2, 6, dtype=torch.float64, device=TRITON).reshape(2, 3)
    state = {"theta": at, "p": at.flip(0), "xi": at[:, 0].clone()}
    results = [
        integrators.compile(recipe, "Euler", backend=backend)(state, 0.1, gradient=gradient, noise=Key(1, 2))
        for backend in ("torch", "triton")
    ]
    assert all((results[0][b] - results[1][b]).abs().max() <= 1e-12 for b in state)


@pytest.mark.parametrize("domain", ["periodic", (-1.1, 2.3)], ids=str)
def test_what_is_led_back_into_its_domain(domain):
    x = vector("x", domain=domain)
    H = potential(x) + total(p**2) / 2
    recipe = Recipe(name="ends", state=(x, p), target=x, H=H, D={p: 1}, Q={(x, p): -1})
    at = torch.linspace(-0.9, 1.9, 6, dtype=torch.float64, device=TRITON).reshape(2, 3)
    state = {"x": at, "p": 3 * at.flip(0)}
    results = [
        integrators.compile(recipe, backend=backend)(state, 1.9, gradient=torch.sin, noise=Key(1, 2))
        for backend in ("torch", "triton")
    ]
    assert all((results[0][b] - results[1][b]).abs().max() <= 1e-12 for b in state)


@pytest.mark.parametrize("name", ["sgnht", "psgld"])
def test_parts_do_not_matter_and_are_those_of_the_other_kernels(name):
    """One tensor, or many of awkward sizes, in C++ and in Triton: the same noise, totals up to rounding."""
    recipe, sites = CASES[name].recipe, 4 * GROUPS_OF_BLOCK + 777
    whole = moved(*sweep_of(recipe, [sites]))
    for sizes in ([sites], [1, 2, 3, 500, sites - 506]):
        parts = moved(*sweep_of(recipe, sizes, backend="triton"))
        assert all((whole[b] - parts[b].cpu()).abs().max() <= 1e-12 for b in whole)


def test_a_layer_passes_on_kernels():
    report = check(integrators.compile(CASES["sgld"].recipe, backend="triton"), layers=["differential", "linear law"])
    assert report.ok and len(report.results) > 4, report


def test_on_the_cpu_without_the_interpreter_it_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    kernel = pair("sghmc", "triton")[1]
    with pytest.raises(RecipeError, match="float32 and float64 on cuda"):
        kernel({b: torch.zeros(2, 3) for b in ("theta", "p")}, 0.1, gradient=gradient, noise=Key(0, 0))
