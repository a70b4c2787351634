"""Triton kernels: the torch step's numbers, on a GPU where there is one, else by Triton's interpreter on the CPU."""

import math
from contextlib import contextmanager
from dataclasses import replace
from itertools import product

import pytest
import torch
import triton
import triton.language as tl
from covering import EVERY_MECHANISM, covering, slow
from devices import TRITON
from same_step import accepted_ways_agree
from sympy import Abs, Heaviside, Max, Not, Or, Piecewise, Rational, exp, pi, sign, tanh
from test_kernels import KERNELS, against_torch, both, differences, gradient, moved, pair, sweep_of
from test_work import BOWL, SUMMED_IN_FLOAT64, works_at_large_H

import integrators
from integrators import noise
from integrators.backends import triton_prelude
from integrators.kernels import launchers, sweep
from integrators.kernels.launchers import GROUPS_OF_BLOCK
from integrators.noise import Key
from integrators.philox import philox
from recipe import (
    Energy,
    Recipe,
    RecipeError,
    flip,
    grad,
    laws,
    potential,
    project,
    propose,
    reflect,
    refresh,
    scalar,
    total,
    vector,
)
from samplers import HMC, MALA, SGNHT
from samplers.testing import check
from samplers.testing.cases import CASES

theta, p, xi = vector("theta"), vector("p"), scalar("xi")


@pytest.mark.parametrize("name", covering(KERNELS, {*KERNELS} & {*EVERY_MECHANISM} - {"sgnht"}))
def test_a_kernel_is_the_step_of_the_torch_text(name):
    assert max(against_torch(name, "triton", 3, (5,), Key(2**63 + 1, 2**33 + 5, first_chain=3))) <= 1e-12


@pytest.mark.parametrize("shape", [(1,), slow(((4 * GROUPS_OF_BLOCK + 3,),)), (3, 5, 70)])
def test_any_shape_in_float32(shape):
    def on(*size):
        return torch.linspace(-1, 1, 2 * torch.Size(size).numel(), device=TRITON).reshape(2, *size)

    state = {"theta": on(*shape), "p": on(*shape) + 0.3, "xi": torch.tensor([0.4, 0.7], device=TRITON)}
    errors = differences(pair("sgnht", "triton"), state, temperature=1.3, A=0.7, mu=1.6)
    assert max(errors.values()) <= 1e-5


@pytest.mark.parametrize(
    "D",
    [
        pi + theta**2,
        2 + sign(theta),
        slow(1 + Heaviside(theta)),
        1 + Abs(theta) ** Rational(1, 3),
        slow(1 + 2**theta),
        slow(Piecewise((Rational(1, 10), xi > 0), (Rational(7, 10), True)) + theta**2),
        slow(1 + tanh(theta) ** 2),
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
        H=potential(theta) + total(p**2) / 2 + total(1) * xi**2 / 2,
        D={p: D, xi: 1 / total(1)},
        Q={(theta, p): -1, (p, xi): p / total(1)},
    )
    at = torch.linspace(-1.5, 2, 6, dtype=torch.float64, device=TRITON).reshape(2, 3)
    state = {"theta": at, "p": at.flip(0), "xi": at[:, 0].clone()}
    assert max(differences(both(recipe, "Euler", "triton"), state).values()) <= 1e-12


@pytest.mark.parametrize("domain", ["periodic", (-1.1, 2.3)], ids=str)
def test_what_is_led_back_into_its_domain(domain):
    x = vector("x", domain=domain)
    H = potential(x) + total(p**2) / 2
    recipe = Recipe(name="ends", state=(x, p), H=H, D={p: 1}, Q={(x, p): -1})
    at = torch.linspace(-0.9, 1.9, 6, dtype=torch.float64, device=TRITON).reshape(2, 3)
    state = {"x": at, "p": 3 * at.flip(0)}
    assert max(differences(both(recipe, None, "triton"), state, 1.9, gradient=torch.sin).values()) <= 1e-12


@pytest.mark.parametrize("name", covering(["sgnht", "psgld"], ["sgnht"]))
def test_parts_do_not_matter_and_are_those_of_the_other_kernels(name, monkeypatch):
    """One tensor in C++, many of awkward sizes in Triton: the same noise, totals up to rounding, in several rounds."""
    monkeypatch.setattr(launchers, "ROUND", 2)
    recipe, sites = CASES[name].recipe, 4 * GROUPS_OF_BLOCK + 777
    whole = moved(*sweep_of(recipe, [sites]))
    parts = moved(*sweep_of(recipe, [1, 2, 3, 500, sites - 506], backend="triton"))
    assert all((whole[b] - parts[b].cpu()).abs().max() <= 1e-12 for b in whole)


def test_multiples_of_a_parameter_per_site_are_loaded_once():
    case, sparse, after = CASES["sgld-sa-marginal"], torch.arange(70).remainder(3).double() / 2, []
    for backend, loads in (("cpp", 6), ("triton", 1)):
        kernel, state, g = sweep_of(case.recipe, [70], backend=backend)
        kernel.bind(state)
        kernel(0.05, lambda segment: [g], noise=Key(9, 1), **{**case.parameters, "sparse": sparse})
        assert kernel.tables.per_site.any(1).sum() == loads
        after.append(state["theta"][0].cpu())
    assert (after[0] - after[1]).abs().max() <= 1e-12


def test_a_number_on_a_gpu_is_not_waited_for(monkeypatch):
    """A parameter per site that is one number goes to the kernel as a number from the CPU, by its place from a GPU."""
    kernel, state, g = sweep_of(CASES["sgld-sa-marginal"].recipe, [70], backend="triton")
    for near, h in ((True, 0.05), (False, 0.06)):
        monkeypatch.setattr(sweep, "is_near", lambda x, near=near: near)
        kernel.bind(state)
        kernel(h, lambda segment: [g], noise=Key(9, 1), **CASES["sgld-sa-marginal"].parameters)
        assert kernel.tables.per_site.any() != near


def test_a_program_has_at_most_1024_threads(monkeypatch):
    """A warp has 32 of them, or 64 on AMD's machines."""
    kernel, state, g = sweep_of(CASES["sgnht"].recipe, [70], backend="triton")
    kernel._launch.items = launchers.ROUND
    warps = []
    for hip in (None, "6.4"):
        monkeypatch.setattr(torch.version, "hip", hip)
        warps.append(kernel._launch._round()["num_warps"])
    assert warps == [32, 16]


def test_a_layer_passes_on_kernels():
    report = check(integrators.compile(CASES["sgld"].recipe, backend="triton"), layers=["differential", "linear law"])
    assert report.ok and len(report.results) > 4, report


def test_on_the_cpu_without_the_interpreter_it_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    kernel = pair("sghmc", "triton")[1]
    with pytest.raises(RecipeError, match="float32 and float64 on cuda"):
        kernel({b: torch.zeros(2, 3) for b in ("theta", "p")}, 0.1, gradient=gradient, noise=Key(0, 0))


# ---- the noise


@triton.jit(do_not_specialize=["group", "above", "draw", "chain", "seed", "step"])
def noise_of(out, group, above, draw, chain, seed, step, R: tl.constexpr, GROUPS: tl.constexpr):
    groups = group.to(tl.int64).to(tl.uint32) + tl.arange(0, GROUPS).to(tl.uint32)
    values = triton_prelude.normals(seed, step, groups, above.to(tl.int64), draw, chain.to(tl.int64), 0, R)
    tl.store(out + tl.arange(0, 4 * GROUPS), values)


def normals(first, dtype, key, count=4096):
    """Normals of sites from the group `first` on, by the functions of kernels."""
    out = torch.zeros(count, dtype=dtype, device=TRITON)
    real = {torch.float32: tl.float32, torch.float64: tl.float64}[dtype]
    seed, step = (x - 2**64 * (x >= 2**63) for x in (key.seed, key.step))
    noise_of[(1,)](out, first % 2**32, first >> 32, 5, key.first_chain, seed, step, R=real, GROUPS=count // 4)
    return out.cpu().double()


def expected(first, key, count=4096):
    """Those of the contract of integrators/noise.py, in float64."""
    group = torch.arange(count // 4) + first
    chain, step = torch.tensor(key.first_chain), torch.tensor(key.step % 2**32)
    counter = group & 0xFFFFFFFF, group >> 32 | 5 << 16, chain, step
    words = philox(counter, (key.seed & 0xFFFFFFFF, key.seed >> 32 ^ key.step >> 32))
    u = (torch.stack(words, 1).double() + 0.5) * 2**-32
    angle = 2 * math.pi * u[:, 1::2]
    return (torch.stack((angle.cos(), angle.sin()), -1) * (-2 * u[:, ::2].log()).sqrt()[..., None]).flatten()


@pytest.mark.parametrize("first", [0, 2**31, 2**32 - 1024, 2**32, 7 * 2**32 + 1024], ids=hex)
@pytest.mark.parametrize("key", [Key(0, 0), Key(2**64 - 5, 2**40 + 3, first_chain=2**32 - 1)], ids=str)
def test_normals_are_those_of_the_contract_at_any_site(first, key):
    assert (normals(first, torch.float64, key) - expected(first, key)).abs().max() <= 1e-13


def test_normals_in_float32_are_nearer_to_those_in_float64_than_those_of_torch():
    key, count = Key(3, 4), 2**18
    exact = expected(0, key, count)
    in_torch = noise.normal(3, 4, 5, 1, (count,), dtype=torch.float32)[0].double()
    of_torch, of_kernels = (in_torch - exact).abs(), (normals(0, torch.float32, key, count) - exact).abs()
    assert of_kernels.mean() <= 0.8 * of_torch.mean()
    assert of_kernels.max() <= 1.001 * of_torch.max()  # both round u, which is near 1 there


# ---- the launch


SHORT = [1, 3, 4, 10, 64, 4 * GROUPS_OF_BLOCK - 4]


@pytest.mark.parametrize("sites", covering(SHORT, [1, 10]))
def test_short_chains_share_blocks_and_keep_their_numbers(sites):
    """More chains than a block has room for, the last block not full; masses and a thermostat for each."""
    chains = 2 * GROUPS_OF_BLOCK + 5 if sites < 4 else 7
    at = torch.linspace(-1, 1, chains * sites, dtype=torch.float64).reshape(chains, sites)
    state = {"theta": at, "p": at.flip(0) + 0.3, "xi": torch.linspace(-0.5, 1, chains, dtype=torch.float64)}
    how = {"noise": Key(3, 4, first_chain=9), "temperature": 1.3, "A": 0.7, "mu": 1.6}
    assert max(differences(pair("sgnht", "triton"), state, **how).values()) <= 1e-12


@pytest.mark.parametrize("shift", [slow(0), 1])
def test_memory_at_any_multiple_of_a_number_will_do(shift, monkeypatch):
    """Whole groups at multiples of 16 bytes are moved four at a time, all else one by one."""
    monkeypatch.setattr(launchers, "WORTH", 0)
    kernel, state, g = sweep_of(CASES["sghmc"].recipe, [4 * GROUPS_OF_BLOCK + 8, 6, 13, 8], backend="triton")
    for name, parts in state.items():
        state[name] = [torch.cat([x.new_zeros(1, shift), x], 1)[:, shift:].view(-1)[None] for x in parts]
    whole = moved(*sweep_of(CASES["sghmc"].recipe, [4 * GROUPS_OF_BLOCK + 35]))
    assert all((whole[b] - x.cpu()).abs().max() <= 1e-12 for b, x in moved(kernel, state, g).items())
    launched = [(x.constants["ALIGNED"], x.programs) for x in kernel._launch.launches(0, Key(0, 0))]
    assert launched[0] == ((True, (2, 1)) if shift == 0 else (False, (5, 1)))


@pytest.mark.parametrize("worth, programs", [(2, [(3, 1)]), (1, [(2, 1), (1, 1)])])
def test_a_few_items_that_are_aligned_go_with_those_that_are_not(worth, programs, monkeypatch):
    monkeypatch.setattr(launchers, "WORTH", worth)
    kernel, state, g = sweep_of(CASES["sghmc"].recipe, [8 * GROUPS_OF_BLOCK, 3], backend="triton")
    moved(kernel, state, g, steps=1)
    assert [launch.programs for launch in kernel._launch.launches(0, Key(0, 0))] == programs


def test_kernels_are_launched_on_the_device_of_their_tensors(monkeypatch):
    kernel, state, g = sweep_of(CASES["sghmc"].recipe, [5], backend="triton")
    moved(kernel, state, g)
    seen, current = [], ["another"]

    @contextmanager
    def device(chosen):
        before = current[:]
        current[:] = [str(chosen)]
        yield
        current[:] = before

    monkeypatch.setattr(torch.cuda, "device", device)
    monkeypatch.setattr(launchers.Launch, "__call__", lambda launch: seen.append(current[0]))
    launcher = kernel._launch
    launcher.parts = replace(launcher.parts, device=torch.device("cuda", 1))
    launcher(0, Key(0, 0))
    assert seen == ["cuda:1"] and current == ["another"]


@pytest.mark.parametrize("recipe, word", [(MALA, None), slow((SGNHT, "A' O B"))], ids=["mala", "sgnht"])
def test_an_accepted_step_is_that_of_torch(recipe, word):
    like = torch.linspace(-1, 1, 21, dtype=torch.float64, device=TRITON).reshape(7, 3)
    entries = integrators.metropolised(recipe, word).recipe.entries
    state = {b.name: like if b.is_vector else torch.zeros_like(like[:, 0]) for b in entries}
    state["direction"] = torch.where(like[:, 1] * 10 % 2 < 1, 1.0, -1.0).double()
    of_U = dict(gradient=lambda x: x**3, value=lambda x: (x**4).sum(1) / 4)
    accepted_ways_agree(recipe, state, 0.9, word=word, steps=2, kernel="triton", rtol=1e-12, **of_U)


OF_MANY_SITES = {"symbolic": dict(energy=BOWL), "function": SUMMED_IN_FLOAT64}


@pytest.mark.parametrize("sites, energy", covering(product([1000, 20_000], OF_MANY_SITES), [(1000, "function")]))
def test_the_work_of_many_sites_is_exact_in_float32(sites, energy):
    """H itself, which is about the number of sites, is rounded to twice as much."""
    double = works_at_large_H(HMC, "torch", torch.float64, sites=sites, **OF_MANY_SITES[energy])
    single = works_at_large_H(HMC, "triton", torch.float32, sites=sites, device=TRITON, **OF_MANY_SITES[energy])
    assert (single - double).abs().max() < 5e-8 * sites


def turning(**more):
    """Straight lines and jumps of a velocity v."""
    H = potential(theta) + total(p**2) / 2
    return Recipe(name="turning", state=(theta, p), H=H, D={}, transport={theta: p}, scheme="A F R F A", **more)


u, slope = vector("u", domain="sphere"), grad(potential(theta))
choice = vector("choice", domain=("categories", 3))
JUMPS_AND_SPHERES = {
    "microcanonical": Recipe(
        name="microcanonical",
        state=(theta, u),
        H=potential(theta),
        D={u: project(u)},
        Q={(u, theta): project(u) / (total(1) - 1)},
    ),
    "zig-zag": turning(jumps={"F": flip(p, rate=Max(0, p * slope)), "R": refresh(p)}),
    "bouncy particle": turning(
        jumps={"F": reflect(p, along=slope, rate=Max(0, total(p * slope))), "R": refresh(p)},
    ),
    "proposals": Recipe(
        name="proposals",
        state=choice,
        H=total(choice**2) + total(choice) ** 2 / 4,
        D={},
        jumps={"P": propose(choice, laws.Categorical(1, exp(-choice), exp(-2 * choice)))},
        scheme="P",
    ),
}


@pytest.mark.parametrize("name", covering(JUMPS_AND_SPHERES, ["proposals"]))
def test_spheres_jumps_and_proposals_are_accepted_as_in_torch(name):
    recipe, draw = JUMPS_AND_SPHERES[name], torch.Generator().manual_seed(0)
    of_U = {} if recipe.potential is None else {"energy": Energy(theta, U=total(theta**4) / 4)}
    x, y = torch.randn(2, 4, 3, generator=draw, dtype=torch.float64).to(TRITON)
    values = {"theta": x, "p": y, "u": y / y.norm(dim=1, keepdim=True), "choice": y.sign() + 1}
    ones = torch.ones(4, dtype=torch.float64, device=TRITON)
    start = {b.name: values[b.name] for b in recipe.state} | {"direction": ones, "work": 0 * ones, "accepted": 0 * ones}
    accepted_ways_agree(recipe, start, 0.4, steps=2, kernel="triton", rtol=1e-12, temperature=0.8, **of_U)
