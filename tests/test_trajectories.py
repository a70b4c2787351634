"""C++ kernels of many steps on a symbolic energy: the same numbers as the torch step, the same care for lost chains."""

import ctypes
import re
import warnings

import numpy as np
import pytest
import torch
from covering import covering
from forked import side_by_side
from sympy import Rational, cos, exp, gamma, log, symbols, tanh

import integrators
import samplers
from integrators import noise
from integrators.backends.cpp_sweep import PRELUDE
from integrators.backends.cpp_unrolled import unrolled_source
from integrators.backends.kernel_expressions import CPP
from integrators.kernels import fallback, native
from integrators.kernels.constants import Constants
from integrators.kernels.trajectory import Trajectory
from integrators.passes import Unsupported, inputs
from recipe import Energy, Recipe, RecipeError, friction, potential, scalar, total, vector
from samplers.running import choice, launches
from samplers.target.targets import TARGETS
from samplers.testing.cases import CASES
from samplers.testing.random_calls import led_into

x, y = symbols("x y", real=True)
theta = vector("theta")
COUPLED = Energy(theta, U=total(theta**4) / 16 + total(theta) ** 2 / 10 + cos(total(theta)))
IN_TORCH = {
    "sgrld-dense": "form of solve",
    "sgrld-cir": "depends on the state",
    "sgfs": "form of observe",
    "sgld-sa": "form of observe",
    "sghmc-sa": "form of observe",
}


def energies(recipe):
    """Energies that fit a recipe, by their number of sites."""
    if len(recipe.targets) == 2:
        return {2: TARGETS["banana"]}
    return (
        {1: TARGETS["quartic"], 2: TARGETS["gaussian"], 5: COUPLED}
        if recipe.target_is_vector
        else {1: TARGETS["quartic"]}
    )


def errors(recipe, energy, sites, dtype, chains=21, steps=5, kind=Trajectory, device="cpu", **values):
    """The largest error of every block after some steps, against the torch step on the same noise."""
    step, random = integrators.compile(recipe, energy=energy), np.random.default_rng(1)

    def size(b):
        return (chains, sites) if b.is_vector else (chains,)

    def scale(b):
        return 0.2 if b in recipe.adapted and b.domain.is_real else 1.0  # a mean gradient below the root mean square

    state = {
        b.name: torch.as_tensor(scale(b) * led_into(b.domain, random.normal(0.3, 0.5, size(b))), dtype=dtype)
        for b in recipe.entries
    }
    kernel = kind(step.program, {b: x.to(device) for b, x in state.items()}, 7, {**values, "num_data": 3})
    kernel.run(2**32 - 2, [(0.003 + 0.001 * k, 1.25) for k in range(steps)])
    for k in range(steps):
        drawn = {
            d.name: noise.KINDS[d.kind](7, 2**32 - 2 + k, i, chains, (sites,) if d.is_vector else (), dtype=dtype)
            for i, d in enumerate(step.program.draws)
        }
        derivatives = {name: step.namespace[name] for name in ("gradient", "curvature") if name in step.namespace}
        state = step(
            state,
            0.003 + 0.001 * k,
            noise=drawn,
            temperature=1.25,
            step_number=2**32 - 2 + k,
            num_data=3,
            **derivatives,
            **values,
        )
    return {
        b.name: float(((kernel.block(b.name).cpu() - state[b.name]).abs() / state[b.name].abs().clamp(min=1)).max())
        for b in recipe.entries
    }


# test_kernels has the formulas of all samplers in C++; here one of each kind of loop, and float32 of some functions
LOOPS = {
    torch.float64: ("psgld-gamma", "sgrld-simplex", "sgnht", "santa"),
    torch.float32: ("sghmc-relativistic", "hmc-randomised", "atmc"),
}
BOUNDS = {torch.float64: 1e-12, torch.float32: 2e-5}
ON_KERNELS = [n for n in CASES if n not in IN_TORCH and CASES[n].step_size is None]
PRECISIONS = covering(
    [(name, dtype, BOUNDS[dtype]) for dtype in LOOPS for name in ON_KERNELS],
    [(name, dtype, BOUNDS[dtype]) for dtype in LOOPS for name in LOOPS[dtype]],
)


@pytest.mark.parametrize("name, dtype, bound", PRECISIONS)
def test_a_kernel_makes_the_steps_of_the_torch_text(name, dtype, bound):
    case = CASES[name]
    sites, energy = list(energies(case.recipe).items())[-1 if dtype == torch.float64 else 0]
    result = errors(case.recipe, energy, sites, dtype, **case.parameters)
    assert max(result.values()) <= bound, result


@pytest.mark.parametrize("name", IN_TORCH)
def test_what_has_no_kernel_says_so(name):
    recipe = CASES[name].recipe
    step = integrators.compile(recipe, energy=energies(recipe)[len(recipe.targets)] if recipe.potential else None)
    with pytest.raises(Unsupported, match=IN_TORCH[name]):
        unrolled_source(step.program, 2)


@pytest.mark.parametrize("sites", covering([1, 2, 3, 5, 70], [5, 70]))
def test_launches_of_any_length_make_one_trajectory(sites):
    """Those that begin inside of a block of noise that steps share, too."""
    step = integrators.compile(samplers.SGNHT, energy=COUPLED)
    state = {"theta": torch.ones(5, sites), "p": torch.zeros(5, sites), "xi": torch.ones(5)}
    state = {name: x.double() for name, x in state.items()}
    whole, cut = (Trajectory(step.program, state, 3, {"A": 1.0, "mu": 1.0}, first_chain=2) for _ in range(2))
    whole.run(1, [(1e-2, 1.0)] * 15)
    for first, steps in ((1, 1), (2, 4), (6, 3), (9, 7)):
        cut.run(first, [(1e-2, 1.0)] * steps)
    assert torch.equal(whole.numbers, cut.numbers)


@pytest.mark.parametrize("sites", covering([1, 3, 4, 5, 9], [1, 5]))
def test_any_number_of_chains_and_sites(sites):
    for chains in (1, 16, 17, 64, 130):
        result = errors(samplers.SGNHT, COUPLED, sites, torch.float64, chains=chains, A=1.0, mu=1.0)
        assert max(result.values()) < 1e-12, chains


def test_awkward_functions_and_names():
    """A name of the kernel's own, a keyword of C++, roots, powers, choices, and what is beyond the normal numbers."""
    double, R, p = vector("double"), scalar("R"), vector("p")
    recipe = Recipe(
        name="awkward",
        state=(double, p, R),
        D={p: 1 + tanh(double) ** 2 + exp(-(p**2)), R: 1},
        H=potential(double) + total(p**2) / 2 + R**2 / 2,
        Q={(double, p): -1 - exp(-(double**2))},
        scheme="Euler",
    )
    energy = Energy((x, y), U=(1 + x**2) ** 1.5 + log(1 + exp(-x * y)) + abs(y) + (1 + y**2) ** Rational(7, 10))
    assert max(errors(recipe, energy, 2, torch.float64).values()) < 1e-12
    with pytest.raises(Unsupported, match="no C.. form of"):
        CPP.text(gamma(2 + x**2), str)


# ---- in a run


RUN = dict(init=torch.zeros(2, dtype=torch.float64), chains=30, step_size=0.02, seed=3, progress=False)


def runs_of(recipe, **how):
    """The run in torch and the run by a kernel."""
    return [samplers.sample(recipe, TARGETS["banana"], backend=backend, **RUN | how) for backend in ("torch", "cpp")]


@pytest.mark.parametrize("warmup, steps, thin", [(13, 203, 5), (0, 64, 1), (7, 300, 3), (100, 40, 40)])
def test_a_run_keeps_the_draws_that_the_torch_run_keeps(warmup, steps, thin):
    torch_run, kernels = runs_of(samplers.SGNHT, warmup=warmup, steps=steps, thin=thin, keep="xi")
    assert kernels.info["backend"] == "cpp" and torch_run.info["backend"] == "torch"
    for name in ("theta", "xi"):
        assert torch_run[name].shape == kernels[name].shape and (torch_run[name] - kernels[name]).abs().max() < 1e-10


def test_schedules_phases_and_temperatures():
    phases = [
        samplers.Phase(50, keep=False, temperature=2.0),
        samplers.Phase(70, freeze=("xi",), temperature=0.0),
        samplers.Phase(40),
    ]
    runs = runs_of(samplers.SGNHT, phases=phases, thin=4, step_size=lambda k: 0.02 / (1 + k) ** 0.3)
    assert (runs[0]["theta"] - runs[1]["theta"]).abs().max() < 1e-10
    assert torch.equal(runs[0].step_sizes, runs[1].step_sizes)


VARYING = ("sghmc", "underdamped-langevin", "sgld-preconditioned", "sghmc-adaptive", "hmc-randomised", "sgld-sa")


def constants_of(name):
    """The constants of a sampler's step, and settings and numbers of steps to ask them at."""
    program = integrators.compile(CASES[name].recipe, energy=TARGETS["gaussian"]).program
    random = np.random.default_rng(0)
    settings = np.column_stack([random.uniform(1e-4, 1e-2, 40), random.uniform(0.5, 2, 40)])
    return Constants(program, inputs(program), (3,)), settings, range(5, 45), CASES[name].parameters | {"num_data": 7}


@pytest.mark.parametrize("name", VARYING)
def test_constants_of_many_steps_are_those_of_each(name, monkeypatch):
    constants, settings, numbers, parameters = constants_of(name)
    each = torch.stack([constants.row(h, T, k, parameters) for (h, T), k in zip(settings.tolist(), numbers)])
    asked = []
    one_by_one = constants.function
    monkeypatch.setattr(constants, "function", lambda *a, **k: asked.append(1) or one_by_one(*a, **k))
    together = constants.rows(settings, numbers, parameters)
    assert len(asked) == 1  # for all, where it takes 40 without
    torch.testing.assert_close(together, each, rtol=1e-13, atol=0)  # vector units round functions as they like


def test_constants_that_are_not_finite_are_asked_for_step_by_step():
    constants, settings, numbers, parameters = constants_of("sghmc")
    settings[7, 1] = -1.0  # a root of a negative number, which a step alone refuses
    with pytest.raises(ValueError, match="math domain error|nonnegative input"):
        constants.rows(settings, numbers, parameters)


def test_matrix_flows_have_their_constants_step_by_step():
    p, s = vector("p"), vector("s")
    recipe = Recipe(
        name="gle",
        state=(theta, p, s),
        H=potential(theta) + total(p**2) / 2 + total(s**2) / 2,
        D={s: Rational(1, 2)},
        Q={(theta, p): -1, (p, s): 1},
    )
    step = integrators.compile(recipe, "O A B", pieces={"O": (friction(p), s)})
    constants = Constants(step.program, inputs(step.program), (2,))
    assert constants.function_over_steps is None
    settings = np.array([[0.1, 1.0], [0.2, 1.0]])
    rows = constants.rows(settings, [0, 1], {})
    assert not torch.equal(rows[0], rows[1])
    assert torch.equal(rows[1], constants.row(0.2, 1.0, 1, {}))


def test_lost_chains_are_the_same_and_are_told_alike():
    start = torch.tensor([[0.0, 0.0], [10.0, 10.0]]).double().repeat(32, 1)  # the second ones are lost
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        runs = runs_of(samplers.SGLD, steps=100, step_size=0.01, chains=64, init=start)
    assert len(seen) == 2 and all("theta is not finite. Take a smaller step size" in str(w.message) for w in seen)
    assert runs[0].diverged == runs[1].diverged and [*map(int, runs[0].diverged)] == [*range(1, 64, 2)]
    one, other = (run["theta"] for run in runs)
    assert ((one - other) / one.abs().clamp(min=1)).abs().max() < 1e-10
    with pytest.raises(RecipeError, match="every chain has diverged"):
        samplers.sample(samplers.SGLD, TARGETS["banana"], steps=3000, backend="cpp", **RUN | dict(step_size=0.5))


def test_a_chain_that_is_lost_stays_where_it_is_in_the_phases_to_come():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = runs_of(samplers.SGLD, warmup=80, steps=20, step_size=0.05, chains=64)
    lost = [int(chain) for chain, step in runs[1].diverged.items() if step < 80]
    assert lost and runs[0].diverged == runs[1].diverged
    assert all((run["theta"][lost] == run["theta"][lost, :1]).all() for run in runs)


def test_coefficients_are_numbers_and_no_divisions():
    """A division costs as much as ten products; integers may be beyond those of C++."""
    large = Rational(1, 2**64) * x**2 / 2 + 2**65 * y**4 / 2**66
    energy = Energy((x, y), U=x**2 / 3 + Rational(7, 5) * x * y + 0.3 * y**2 + x**4 / 4 + large)
    source = unrolled_source(integrators.compile(samplers.SGLD, energy=energy).program, 2).partition("typedef REAL")[2]
    assert "0.6666666666666666" in source and "R(1.4)" in source and "/R(" not in source
    assert max(errors(samplers.SGLD, energy, 2, torch.float64).values()) < 1e-12


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(thin=0), "thin = 0"),
        (dict(thin=-1), "thin = -1"),
        (dict(first_kept=-3), "first_kept = -3"),
        (dict(settings=[]), "0 steps"),
    ],
)
def test_a_trajectory_refuses_what_is_no_run(change, message):
    kernel = Trajectory(
        integrators.compile(samplers.SGLD, energy=TARGETS["banana"]).program, {"theta": torch.zeros(3, 2).double()}, 0
    )
    with pytest.raises(RecipeError, match=message):
        kernel.run(0, **dict(settings=[(0.1, 1.0)]) | change)


@pytest.mark.parametrize("setting, message", [((float("nan"), 1.0), "step size"), ((0.1, -1.0), "temperature")])
def test_settings_that_are_none_are_refused_before_a_launch(setting, message):
    step = integrators.compile(samplers.SGLD, energy=TARGETS["banana"])
    with pytest.raises(RecipeError, match=message):
        launches.check_settings(step, np.array([(0.1, 1.0), setting]), {"num_data": 3})


def test_an_energy_of_other_coordinates_is_refused():
    with pytest.raises(RecipeError, match="3 coordinates of 5 chains for an energy of 2"):
        Trajectory(
            integrators.compile(samplers.SGLD, energy=TARGETS["banana"]).program, {"theta": torch.zeros(5, 3)}, 0
        )


def test_a_long_run_is_compiled_without_being_asked_and_a_short_one_is_not():
    def run(steps):
        run = dict(RUN, step_size=1e-3)
        return samplers.sample(samplers.SGLD, TARGETS["banana"], steps=steps, thin=steps, **run).info["backend"]

    assert (run(10_000), run(100)) == ("cpp", "torch")


def test_what_a_kernel_cannot_do_is_refused_where_it_is_asked_for():
    how = dict(init=torch.ones(2), counts=1.0, a=0.5, steps=5, step_size=0.1, progress=False)
    with pytest.raises(Unsupported, match="depends on the state"):
        samplers.sample(samplers.catalogue["sgrld-cir"], backend="cpp", **how)
    with pytest.raises(RecipeError, match="float32 and float64"):
        step = integrators.compile(samplers.SGLD, energy=TARGETS["banana"])
        Trajectory(step.program, {"theta": torch.zeros(3, 2, dtype=torch.float16)}, 0)


# ---- the compiler and its cache


TINY = 'extern "C" int answer() { return NUMBER; }'


@pytest.fixture
def cold(tmp_path, monkeypatch):
    """A cache of its own, and nothing remembered."""
    monkeypatch.setenv(native.CACHE, str(tmp_path))
    for f in (native.compiler, native.library):
        f.cache_clear()
    yield tmp_path
    for f in (native.compiler, native.library):
        f.cache_clear()


def test_equal_texts_are_compiled_once_and_damage_is_mended(cold):
    def answer(n):
        return native.library(TINY, (f"NUMBER={n}",)).answer()

    assert (answer(3), answer(4), answer(3)) == (3, 4, 3)
    files = sorted(cold.glob("*.so"))
    assert len(files) == 2
    native.library.cache_clear()
    for path in files:
        half = path.read_bytes()[:100]
        path.unlink()  # it is in use
        path.write_bytes(half)
    stamps = [path.stat().st_ino for path in files]
    assert (answer(3), answer(4)) == (3, 4)
    assert [path.stat().st_ino for path in files] != stamps


def test_processes_share_a_cold_cache(cold):

    def loaded():
        assert native.library(TINY, ("NUMBER=5",)).answer() == 5

    side_by_side(4 * [loaded])
    assert len(list(cold.glob("*.so"))) == 1 and not [p for p in cold.iterdir() if p.is_dir()]


@pytest.mark.parametrize(
    "script, reason",
    [
        (None, "there is no C.. compiler"),
        (
            "#!/bin/sh\nif [ \"$1\" = --version ]; then echo odd 1.0; else echo 'error: no' >&2; exit 1; fi\n",
            "failed .1.: error: no",
        ),
        ('#!/bin/sh\nif [ "$1" = --version ]; then echo odd 1.0; else kill -9 $$; fi\n', "failed .-9.: no message"),
    ],
)
def test_without_a_working_compiler_torch_runs_and_one_line_says_why(cold, monkeypatch, script, reason):
    tools = cold / "bin"
    tools.mkdir()
    if script:
        (tools / "c++").write_text(script)
        (tools / "c++").chmod(0o755)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(choice, "STEPS", 100)
    fallback._say_once.cache_clear()

    def run(**more):
        return samplers.sample(samplers.SGLD, TARGETS["gaussian"], steps=100, thin=100, **RUN | more)

    with pytest.warns(RuntimeWarning, match=reason) as seen:
        assert run().info["backend"] == "torch" and run().info["backend"] == "torch"
    assert len(seen) == 1
    with pytest.raises(RecipeError, match=reason):
        run(backend="cpp")


@pytest.mark.parametrize("command", ["/no/such", "/tmp", '"c++', "c++ '-O1", "c++\\"])
def test_a_compiler_that_is_named_and_is_none_is_told(cold, monkeypatch, command):
    monkeypatch.setenv("CXX", command)
    with pytest.raises(RecipeError, match=re.escape(f"CXX={command} is no C++ compiler")):
        native.library(TINY, ("NUMBER=6",))


def test_a_compiler_may_be_named_with_flags_that_come_last_and_a_folder_by_a_relative_path(cold, monkeypatch):
    monkeypatch.setenv("CXX", "c++ -DBY=3 -O0")
    monkeypatch.chdir(cold)
    monkeypatch.setenv(native.CACHE, ".")
    text = "#ifdef __OPTIMIZE__\n#define NUMBER 0\n#else\n#define NUMBER 3 * BY\n#endif\n" + TINY
    assert native.library(text).answer() == 9


def test_a_cache_that_cannot_be_used_is_told(cold, monkeypatch):
    monkeypatch.setattr(native.os, "replace", lambda *_, **__: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(RecipeError, match="cannot be made: .*no space left"):
        native.library(TINY, ("NUMBER=8",))


# ---- the functions of the prelude


UNITS = {"native": (), "AVX2": ("-march=haswell",), "portable": ("-march=x86-64",)}
NOISE = """
extern "C" void draw(double* out, uint64_t group, uint32_t chain, uint64_t step, uint64_t seed) {
    uint32_t w[4][16], v[4][16];
    words<16, false>(w, group, 3, chain, step, seed);
    words<16, true>(v, group, 3, chain, step, seed);
    for (int l = 0; l < 16; ++l) {
        pair_of_normals(w[0][l], w[1][l], out[4 * l], out[4 * l + 1]);
        pair_of_normals(w[2][l], w[3][l], out[4 * l + 2], out[4 * l + 3]);
        pair_of_normals(v[0][l], v[1][l], out[64 + l], out[80 + l]);
    }
}
extern "C" void pairs(const uint32_t* even, const uint32_t* odd, float* x, float* y, int64_t n) {
    for (int64_t j = 0; j < n; ++j) pair_of_normals(even[j], odd[j], x[j], y[j]);
}
extern "C" void blocks(float* drawn, float* filled, uint64_t step, uint64_t seed) {
    Normals normals;
    normals.begin(64, 3, 5, step, seed);
    for (int j = 0; j < 1024; j += Normals::SITES) normals.next(drawn + j);
    for (int j = 0; j < 1024; j += 64) fill<float, true, 16>(filled + j, 64 + j / 4, 3, 5, step, seed);
}
"""


def pointer(a):
    return a.ctypes.data_as(ctypes.c_void_p)


def noise_of(unit, monkeypatch):
    """The library of these functions, compiled for a vector unit."""
    if "avx2" in native.processor():
        kept = tuple(f for f in native.FLAGS if not (UNITS[unit] and f.startswith("-march")))
        monkeypatch.setattr(native, "FLAGS", kept + UNITS[unit])
    return native.library(PRELUDE + NOISE)


@pytest.mark.stated_seed
@pytest.mark.parametrize("unit", UNITS)
def test_noise_is_the_same_for_every_vector_unit(unit, monkeypatch):
    out, step, seed = np.empty(96), 2**32 + 9, 2**63 + 1
    group, *when = map(ctypes.c_uint64, (0, step, seed))
    noise_of(unit, monkeypatch).draw(pointer(out), group, 5, *when)

    def of(chains, first, shape):
        return noise.normal(seed, step, 3, chains, shape, dtype=torch.float64, first_chain=first).numpy()

    assert abs(out[:64] - of(1, 5, (64,))[0]).max() < 1e-13
    assert abs(out[64:].reshape(2, 16).T - of(16, 5, (3,))[:, :2]).max() < 1e-13


@pytest.mark.stated_seed
@pytest.mark.parametrize("unit", UNITS)
def test_normal_numbers_in_float32_are_those_of_float64_to_a_few_roundings(unit, monkeypatch):
    """Of words at both ends, at the ends of half turns, and at random: a pair is within 2.5e-7 of its radius.

    Of all 2^32 words the radius is within 1.5e-7 of itself, of those below 1024 7e-8; of all angles the pair
    is within 2.4e-7 at one radius. A block after the other they are the same numbers as each alone, and as in torch.
    """
    library = noise_of(unit, monkeypatch)
    ends = np.array([w + d for w in range(0, 2**32 + 1, 2**29) for d in range(-2000, 2000)]) % 2**32
    random = np.random.default_rng(0)
    even, odd = (np.concatenate([ends, random.integers(0, 2**32, 200_000)]).astype(np.uint32) for _ in range(2))
    random.shuffle(odd)
    x, y = np.empty((2, len(even)), np.float32)
    library.pairs(*map(pointer, (even, odd, x, y)), ctypes.c_int64(len(even)))
    u = even.astype(np.float32) * np.float32(2**-32) + np.float32(2**-33)
    radius, angle = np.sqrt(-2 * np.log(u.astype(float))), 2 * np.pi * (odd + 0.5) / 2**32
    for result, expected in ((x, radius * np.cos(angle)), (y, radius * np.sin(angle))):
        assert (abs(result - expected) <= 2.5e-7 * radius).all()
    drawn, filled = np.empty((2, 1024), np.float32)
    library.blocks(*map(pointer, (drawn, filled)), ctypes.c_uint64(2**32 + 9), ctypes.c_uint64(2**63 + 1))
    in_torch = noise.normal(2**63 + 1, 2**32 + 9, 3, 1, (1280,), dtype=torch.float64, first_chain=5)[0, 256:].numpy()
    assert abs(drawn - filled).max() < 1e-6 and abs(drawn - in_torch).max() < 1e-4


@pytest.mark.parametrize("number, dtype, bound", [("float", np.float32, 2e-5), ("double", np.float64, 1e-12)])
def test_a_proposal_is_accepted_below_its_exponential(number, dtype, bound):
    """u < e^x, but for u that are e^x up to rounding; of any x that is a number."""
    text = f"""
extern "C" void below(const {number}* u, const {number}* x, unsigned char* out, int64_t n) {{
    for (int64_t i = 0; i < n; ++i) out[i] = below_exp(u[i], x[i]);
}}
"""
    random, many = np.random.default_rng(0), 200_000
    x = np.concatenate(
        [-random.exponential(8, many), random.normal(0, 1, many), [0, 3e38, -1e30, -3e38, -90, -700, 80]]
    )
    u = np.concatenate([random.random(many), np.exp(x[many:].clip(max=1)) * random.uniform(0.9, 1.1, len(x) - many)])
    x, u = x.astype(dtype), u.clip(2**-33, 1 - 2**-24).astype(dtype)
    out = np.empty(len(x), bool)
    native.library(PRELUDE + text).below(
        *(a.ctypes.data_as(ctypes.c_void_p) for a in (u, x, out)), ctypes.c_int64(len(x))
    )
    with np.errstate(over="ignore"):
        expected = np.exp(x.astype(np.float64))
    clear = abs(u - expected) > bound * expected
    assert (out == (u < expected))[clear].all() and clear.mean() > 0.99


@pytest.mark.parametrize("number, dtype", [("float", np.float32), ("double", np.float64)])
def test_elementary_functions_are_accurate_to_a_few_roundings(number, dtype):
    names = ("exp_of", "log_of", "tanh_of", "phi1", "decay", "slope")
    body = " ".join(f"out[{i} * n + j] = {name}(x[j]);" for i, name in enumerate(names[:4]))
    body += " friction(x[j], out[4 * n + j], out[5 * n + j]);"
    head = f'extern "C" void f(const {number}* x, {number}* out, int64_t n)'
    text = f"{PRELUDE}\n{head} {{ for (int64_t j = 0; j < n; ++j) {{ {body} }} }}"
    tiny = np.finfo(dtype).tiny
    at = np.concatenate(
        [np.linspace(-1, 1, 2001), np.linspace(-80, 80, 4001), np.geomspace(tiny, 1e30, 500), [0, tiny / 8]]
    ).astype(dtype)
    out = np.empty((6, len(at)), dtype)

    native.library(text).f(pointer(at), pointer(out), ctypes.c_int64(len(at)))
    wide = at.astype(np.longdouble)
    with np.errstate(all="ignore"):
        exact = [
            np.exp(wide),
            np.log(wide),
            np.tanh(wide),
            np.where(wide == 0, 1, np.expm1(wide) / np.where(wide == 0, 1, wide)),
            np.exp(wide),
            np.where(wide == 0, 1, np.expm1(2 * wide) / np.where(wide == 0, 1, 2 * wide)),
        ]
    for name, result, expected in zip(names, out, exact):
        fine = (abs(expected) < np.finfo(dtype).max / 100) & (abs(expected) >= tiny)
        error = abs(result[fine] - expected[fine]) / np.maximum(abs(expected[fine]), 1.0 if name == "log_of" else 0)
        assert error.max() < 8 * np.finfo(dtype).eps, name
        assert (
            np.isnan(result[np.isnan(expected)]).all()
            and (result[np.isinf(expected)] == expected[np.isinf(expected)]).all()
        )
