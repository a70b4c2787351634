"""C++ kernels of one step over any tensors: the torch step's numbers, whatever shapes, parts, threads and memory."""

import cProfile
import gc
import weakref
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from covering import EVERY_MECHANISM, covering
from devices import device_of

import integrators
import samplers
from integrators.kernels import single
from integrators.kernels.launchers import SITES_OF_ITEM
from integrators.kernels.sweep import Sweep
from integrators.noise import Key
from integrators.optimizer_form import optimizer_form
from integrators.passes import Unsupported
from recipe import Recipe, RecipeError, positive, potential, scalar, total, vector
from samplers.testing.cases import CASES
from samplers.testing.random_calls import called, inputs, stepped, worst

IN_TORCH = ("sgrld-dense", "sgrld-cir")
KERNELS = [name for name in CASES if name not in IN_TORCH]


def gradient(theta):
    return theta**3 / 4 + theta / 2 - 0.3


def both(recipe, word=None, kernels="cpp"):
    """The step in torch and as a kernel."""
    return [integrators.compile(recipe, word, backend=backend) for backend in ("torch", kernels)]


@cache
def pair(name, kernels="cpp"):
    """Those of a stock sampler."""
    return both(CASES[name].recipe, None, kernels)


def against_torch(name, kernels, chains, shape, key):
    """The errors of a kernel with tensors as noise and with a key, in float64."""
    plain, kernel = pair(name, kernels)
    state, drawn, parameters = inputs(plain, chains, shape if plain.recipe.target_is_vector else ())
    return [
        worst(called(kernel, state, noise, parameters), called(plain, state, noise, parameters))
        for noise in (drawn, key)
    ]


def differences(steps, state, h=0.1, **how):
    """The largest differences of two steps by block."""
    how = {"gradient": gradient, "noise": Key(3, 4)} | how
    one, other = (stepped(step, state, h, **how) for step in steps)
    return {b: float((one[b] - other[b]).abs().max()) for b in state}


@pytest.mark.parametrize(
    "name",
    covering(
        KERNELS,
        {*EVERY_MECHANISM, "sgnht", "psgld", "atmc-relativistic", "sghmc-sa-classification-gibbs"} - {*IN_TORCH},
    ),
)
def test_a_kernel_is_the_step_of_the_torch_text(name):
    """Of one axis and of none."""
    for shape in ((5,), ()):
        assert max(against_torch(name, "cpp", 19, shape, Key(2**40 + 1, 2**33 + 5, first_chain=3))) <= 1e-12


@pytest.mark.parametrize("backend", ["cpp", "triton"])
@pytest.mark.parametrize("name", IN_TORCH)
def test_what_has_no_kernel_says_so(name, backend):
    kernel = pair(name, backend)[1]
    with pytest.raises(Unsupported, match="Use backend='torch'"):
        called(kernel, *inputs(kernel, 3, (4,) if kernel.recipe.target_is_vector else ()))


@pytest.mark.parametrize("shape", [(1,), (3, 5), (255,), (257,), (1000, 3)])
@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-12), (torch.float32, 2e-6)])
def test_any_shape_and_number_type(shape, dtype, bound):
    state = {
        "theta": torch.linspace(-1, 1, 2 * np.prod(shape), dtype=dtype).reshape(2, *shape),
        "p": torch.ones(2, *shape, dtype=dtype),
        "xi": torch.tensor([0.4, 0.7], dtype=dtype),
    }
    for b, error in differences(pair("sgnht"), state, temperature=1.3, A=0.7, mu=1.6).items():
        assert error <= bound * max(1, np.prod(shape) ** 0.5 if b == "xi" else 1)


@pytest.mark.parametrize(
    "name, backend",
    covering(
        product(["sgld", "sgnht", "hmc-randomised"], ["cpp", "triton"]),
        product(["sgld", "sgnht", "hmc-randomised"], ["cpp"]),
    ),
)
def test_chains_of_one_or_two_sites_share_their_noise_among_steps_alike(name, backend):
    """In every step of a block, as one tensor and as tensors of one element."""
    for step in range(4):
        for shape in ((1,), (2,), (1, 2)):
            assert max(against_torch(name, backend, 3, shape, Key(5, 2**33 + step, first_chain=3))) <= 1e-12
    whole = moved(*sweep_of(CASES["sghmc"].recipe, [2], backend=backend), steps=5)
    parts = moved(*sweep_of(CASES["sghmc"].recipe, [1, 1], backend=backend), steps=5)
    assert all((whole[b] - parts[b]).abs().max() <= 1e-12 for b in whole)


# ---- many tensors


def sweep_of(recipe, sizes, seed=0, dtype=torch.float64, word=None, backend="cpp"):
    """The optimizer form of a word over tensors of these sizes, its state and a gradient, cut out of one vector."""
    step = integrators.compile(recipe, word)
    random, device = torch.Generator().manual_seed(seed), device_of(backend)

    def cut():
        numbers = torch.rand(sum(sizes), generator=random, dtype=dtype).to(device)
        return [part.clone()[None] for part in numbers.split(sizes)]

    state = {
        b.name: cut() if b.is_vector else torch.full((1,), 0.6, dtype=dtype, device=device) for b in recipe.entries
    }
    return Sweep(optimizer_form(recipe, step.scheme, step.flows, recipe.adapt), state, backend), state, cut()


def moved(kernel, state, g, steps=3):
    """The state, laid end to end, after some steps in place."""
    values = {q.name: 1.3 if q.default is None else q.default for q in kernel.recipe.parameters}
    kernel.bind(state)
    for k in range(steps):
        kernel(0.05, lambda segment: [g], noise=Key(9, k), temperature=1.2, num_data=2, step_number=k, **values)
    return {name: torch.cat([p.flatten() for p in x]) if isinstance(x, list) else x for name, x in state.items()}


@pytest.mark.parametrize("name", covering(["sghmc", "sgnht", "atmc", "psgld", "santa"], ["sgnht", "psgld", "santa"]))
def test_parts_threads_and_runs_of_sites_do_not_matter(name):
    """One tensor, or many of awkward sizes; one thread or three: the same noise, totals up to rounding."""
    recipe, sites = CASES[name].recipe, 2 * SITES_OF_ITEM + 777
    whole = moved(*sweep_of(recipe, [sites]))
    for sizes in ([1, 2, 3, 500, SITES_OF_ITEM, sites - SITES_OF_ITEM - 506], [sites // 2, sites - sites // 2]):
        parts = moved(*sweep_of(recipe, sizes))
        assert all((whole[b] - parts[b]).abs().max() <= 1e-12 for b in whole)
    threads = torch.get_num_threads()
    library = sweep_of(recipe, [sites])
    try:
        torch.set_num_threads(3)
        assert all(torch.equal(whole[b], x) for b, x in moved(*library).items())
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", ["sghmc", "santa"])
def test_tensors_share_blocks_of_noise_in_float32(name):
    """Tensors that end within a block of numbers, where the next goes on; with chains, which do not."""
    recipe, sites = CASES[name].recipe, 1000
    whole = moved(*sweep_of(recipe, [sites], dtype=torch.float32))
    for sizes in ([1, 2, 3, 60, 61, 1, 64, 128, 5, 0, 300, 375], [64, 936], [63, 2, 935]):
        parts = moved(*sweep_of(recipe, sizes, dtype=torch.float32))
        assert all((whole[b] - parts[b]).abs().max() <= 1e-6 for b in whole)
    state = {b.name: torch.full((5, 70), 0.3) for b in recipe.entries}
    values = {q.name: 1.3 if q.default is None else q.default for q in recipe.parameters}
    assert max(differences(pair(name), state, **values).values()) <= 2e-5


def test_a_run_in_torch_and_one_in_kernels_are_the_same_with_minibatches():
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    y = (X.sum(1) > 0).double()
    energy = samplers.posterior(
        lambda w, batch: torch.nn.functional.softplus((1 - 2 * batch[1]) * (batch[0] @ w)),
        lambda w: (w**2).sum() / 2,
        num_data=40,
    )
    runs = [
        samplers.sample(
            samplers.SGNHT,
            energy,
            init=torch.zeros(3, dtype=torch.float64),
            chains=3,
            warmup=4,
            steps=30,
            thin=3,
            step_size=0.02,
            data=(X, y),
            batch_size=7,
            seed=5,
            progress=False,
            backend=backend,
            keep=["xi"],
        )
        for backend in ("torch", "cpp")
    ]
    assert runs[1].info["backend"] == "cpp"
    assert all((runs[0][b] - runs[1][b]).abs().max() < 1e-12 for b in ("theta", "xi"))


def test_awkward_names_do_not_become_code():
    """Blocks and parameters that bear the names of the kernel's own variables, and of C++."""
    for names in (("m", "i", "xi_sum"), ("double", "theta_0", "R"), ("site", "count_to", "g"), ("sum1", "h_", "once0")):
        q, p, r = vector(names[0]), vector(names[1]), scalar(names[2])
        n = total(1)
        recipe = Recipe(
            name="awkward",
            state=(q, p, r),
            H=potential(q) + total(p**2) / 2 + n * r**2 / 2,
            D={p: 1},
            Q={(q, p): -1, (p, r): p / n},
        )
        state = {b.name: torch.full((2, 3) if b.is_vector else (2,), 0.5, dtype=torch.float64) for b in recipe.state}
        assert max(differences(both(recipe, "Euler"), state).values()) < 1e-12


@pytest.mark.parametrize("backend", ["cpp", "triton"])
def test_numbers_of_explicit_coordinates_keep_their_own_noise(backend):
    x, y = scalar("x"), scalar("y")
    recipe = Recipe(name="pair", state=(x, y), target=(x, y), H=potential(x, y), D={x: 1, y: 2})
    state = {"x": torch.zeros(3, dtype=torch.float64), "y": torch.zeros(3, dtype=torch.float64)}
    noise = {"x": torch.full((3,), 1.0, dtype=torch.float64), "y": torch.full((3,), -5.0, dtype=torch.float64)}
    steps = both(recipe, "Euler", backend)
    assert max(differences(steps, state, gradient=lambda at: at, noise=noise).values()) < 1e-12


def test_a_gradient_may_be_any_tensor_and_may_call_the_step_itself():
    """A buffer that is kept, then one in another order, then the first again; and a step within the step."""
    plain, kernel = pair("sghmc")
    state = {b: torch.zeros(2, 3, dtype=torch.float64) for b in ("theta", "p")}
    kept, turned = torch.ones(2, 3, dtype=torch.float64), torch.full((3, 2), 7.0, dtype=torch.float64).t()
    for g in (kept, turned, kept):
        results = [step(state, 0.1, gradient=lambda theta, g=g: g, noise=Key(0, 0)) for step in (plain, kernel)]
        assert torch.equal(results[0]["p"], results[1]["p"]) or (results[0]["p"] - results[1]["p"]).abs().max() < 1e-14

    def within(theta):
        return kernel({b: x + 1 for b, x in state.items()}, 0.1, gradient=gradient, noise=Key(5, 5))["p"]

    result, expected = ({**step(state, 0.1, gradient=within, noise=Key(0, 0))} for step in (kernel, plain))
    assert all((result[b] - expected[b]).abs().max() < 1e-14 for b in state)


def test_kernels_of_past_calls_are_few_and_hold_none_of_their_tensors():
    theta = vector("theta")
    recipe = Recipe(name="per-site", state=(theta,), H=potential(theta), D={theta: positive("d", per=theta)})
    kernel = integrators.compile(recipe, "Euler", backend="cpp")

    def call(chains):
        at, d = torch.ones(chains, 3, dtype=torch.float64), torch.arange(1.0, 4.0, dtype=torch.float64)
        new = kernel({"theta": at}, 0.1, gradient=gradient, noise=Key(0, 0), d=d)["theta"]
        return [weakref.ref(x) for x in (at, new, d)]

    past = [x for chains in range(1, single.IDLE + 3) for x in call(chains)]
    gc.collect()
    assert not any(x() is not None for x in past)
    assert len(single._pool.idle) == single.IDLE


def test_empty_states_shared_inputs_and_parameters_per_site_are_as_in_torch():
    plain, kernel = pair("sghmc")
    for shape in ((0, 3), (2, 0)):
        state = {b: torch.zeros(shape) for b in ("theta", "p")}
        assert kernel(state, 0.1, gradient=gradient, noise=Key(0, 0))["p"].shape == shape
    z = torch.ones(2, 3, dtype=torch.float64)

    def step(s, **more):
        return s({"theta": z, "p": z}, 0.1, gradient=gradient, noise=Key(0, 0), **more)["theta"]

    assert (step(plain) - step(kernel)).abs().max() < 1e-14
    plain, kernel = pair("psgld")
    lam = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    state = {"theta": z, "V": z}
    for _ in range(2):
        result = [
            s(state, 0.1, gradient=gradient, noise=Key(0, 0), alpha=0.9, lam=float(lam[1])) for s in (plain, kernel)
        ]
        assert (result[0]["theta"] - result[1]["theta"]).abs().max() < 1e-14


@pytest.mark.parametrize("backend", ["cpp", "triton"])
def test_a_mass_is_one_number_for_all_sites_or_one_for_each(backend):
    """One after the other on one kernel, which reads no memory for a number; of blocks of sites, and of their ends."""
    recipe, sites = CASES["underdamped-langevin"].recipe, [1, 70, 129]
    kernel, state, g = sweep_of(recipe, sites, backend=backend)
    kernel.bind(state)
    by_site = torch.linspace(0.5, 2.0, sum(sites), dtype=torch.float64)
    for k, m in enumerate((1.3, by_site, 0.7, by_site.flip(0), torch.tensor(1.9, dtype=torch.float64))):
        before = {b: torch.cat(x, 1).cpu() for b, x in state.items()}
        kernel(0.05, lambda segment: [g], noise=Key(9, k), gamma=0.8, m=m)
        assert kernel.tables.per_site.any() == (torch.is_tensor(m) and m.numel() > 1)
        expected = by_hand(before, torch.cat(g, 1).cpu(), 0.05, 0.8, m, Key(9, k))
        assert all((torch.cat(state[b], 1).cpu() - expected[b]).abs().max() <= 1e-12 for b in expected)


def by_hand(state, g, h, gamma, m, key):
    """B A O A, the optimizer form of BAOAB."""
    theta, p = state["theta"], state["p"] - h * g
    theta = theta + h / 2 * p / m
    noise = key.draw("normal", 0, 1, (g.shape[1],), dtype=g.dtype)
    decay = torch.exp(torch.tensor(-gamma * h, dtype=g.dtype))
    p = decay * p + torch.sqrt((1 - decay**2) * m) * noise
    return {"theta": theta + h / 2 * p / m, "p": p}


@pytest.mark.parametrize("shape, what", [((0, 3), "has none"), ((2, 0), "has none"), ((), "no axis of chains")])
def test_a_sum_over_no_sites_or_of_no_chains_is_refused(shape, what):
    state = {"theta": torch.zeros(shape), "p": torch.zeros(shape), "xi": torch.zeros(shape[:1])}
    for step in pair("sgnht"):
        with pytest.raises(RecipeError, match=f"sgnht, step: .*theta.* {what}"):
            step(state, 0.1, gradient=gradient, noise=Key(0, 0))


def test_a_state_that_is_not_dense_is_refused():
    for step in pair("sgld"):
        with pytest.raises(RecipeError, match="theta is no dense tensor, but torch.sparse_coo"):
            step({"theta": torch.eye(3).to_sparse()}, 0.1, gradient=gradient, noise=Key(0, 0))


@pytest.mark.parametrize("key", [(-1, 0), (2**64, 0), (0, -1), (0, 2**63), (None, 0), (0, 0, -1), (0, 0, 2**32)])
def test_a_key_that_is_none_is_refused(key):
    with pytest.raises(RecipeError, match="is not an int in|it takes|chain"):
        pair("sgld")[1]({"theta": torch.zeros(3, 2)}, 0.1, gradient=gradient, noise=Key(*key))


def test_a_gradient_that_is_none_is_refused():
    for g in (None, 3.0, lambda theta: 3.0):
        with pytest.raises(RecipeError, match="gradient"):
            pair("sgld")[1]({"theta": torch.zeros(3, 2)}, 0.1, gradient=g, noise=Key(0, 0))


# ---- what cannot be swept over


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda s: s["p"].__setitem__(0, s["p"][0].float()), "it is torch.float32"),
        (lambda s: s["p"].__setitem__(1, torch.zeros(1, 4, dtype=torch.float64)), "its shape is"),
        (lambda s: s["theta"].__setitem__(1, torch.zeros(1, 10, dtype=torch.float64)[:, ::2]), "holes"),
        (lambda s: s["theta"].__setitem__(1, torch.zeros(1, 5, dtype=torch.int64)), "torch.int64"),
        (lambda s: s["theta"].__setitem__(1, s["theta"][0][:, :5]), "share memory"),
        (lambda s: s["p"].__setitem__(0, s["theta"][0]), "share memory"),
    ],
)
def test_tensors_that_do_not_fit_are_refused(change, message):
    kernel, state, _ = sweep_of(samplers.SGHMC, [7, 5])
    change(state)
    with pytest.raises(RecipeError, match=message):
        kernel.bind(state)


def test_a_tensor_that_moved_is_refused_and_a_gradient_may_be_anywhere():
    kernel, state, g = sweep_of(samplers.SGHMC, [7, 5])
    kernel.bind(state)

    def call(g):
        return kernel(0.1, lambda segment: [g], noise=Key(0, 0))

    call([x.clone() for x in g])
    apart = [torch.stack([x, x], -1)[..., 0] for x in g]  # not contiguous
    for factor in (1.0, 2.0):  # changed in place between two calls
        before, same = [x.clone() for x in state["p"]], [x.clone().contiguous() for x in apart]
        call(apart)
        after = [x.clone() for x in state["p"]]
        for x, y in zip(state["p"], before):
            x.copy_(y)
        call(same)
        assert all(torch.equal(x, y) for x, y in zip(after, state["p"]))
        for x in apart:
            x.mul_(factor + 1)
    with pytest.raises(RecipeError, match="its shape is"):
        call([g[0], g[1][:, :4]])
    state["p"][1].data = torch.zeros(1, 5, dtype=torch.float64)
    with pytest.raises(RecipeError, match="has moved since it was bound"):
        call(g)


def test_a_state_in_half_precision_is_refused():
    kernel = pair("sghmc")[1]
    with pytest.raises(RecipeError, match="float32 and float64"):
        kernel(
            {b: torch.zeros(2, 3, dtype=torch.float16) for b in ("theta", "p")}, 0.1, gradient=gradient, noise=Key(0, 0)
        )


def test_a_call_of_a_step_asks_each_tensor_briefly():
    """Calls of functions in one step, which no machine's speed changes: 632 where every question is asked at length."""
    step = integrators.compile(samplers.SGHMC, backend="cpp")
    state = {name: torch.zeros(4, 10, dtype=torch.float64) for name in ("theta", "p")}
    key = Key(1, 3)
    step(state, 0.1, gradient=torch.clone, noise=key)
    with cProfile.Profile() as profile:
        step(state, 0.1, gradient=torch.clone, noise=key)
    assert sum(entry.callcount for entry in profile.getstats()) < 560
