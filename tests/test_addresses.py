"""Odd tensors at every entrance: the values of plain ones, or a refusal, on every backend; and no memory that stays."""

import gc
import re
import subprocess
import sys
import threading
from itertools import product

import pytest
import torch
from covering import covering
from devices import device_of
from zoo import compiled

import integrators
import samplers
from integrators.kernels import single
from integrators.noise import Key
from recipe import Energy, Recipe, RecipeError, data_total, datum, positive, potential, total, vector
from samplers.testing.cases import CASES

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")  # which torch says once a process


class Tagged(torch.Tensor):
    """A class of tensors that changes nothing."""


class Own(torch.Tensor):
    """A class of tensors that gives operations another meaning."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


def behind(x):
    """In the middle of a larger memory."""
    return torch.cat([x.new_ones(3), x.flatten(), x.new_ones(2)])[3:-2].view(x.shape)


PLAIN = {  # what a tensor of these numbers may be
    "plain": lambda x: x,
    "a lazy negative": lambda x: torch._neg_view(-x),
    "the imaginary part of a lazy conjugate": lambda x: torch.complex(x, -x).conj().imag,
    "turned": lambda x: x.T.contiguous().T,
    "with holes": lambda x: torch.stack([x, -x], -1)[..., 0],
    "turned with a lazy negative": lambda x: torch._neg_view(-x.T.contiguous()).T,
    "behind others": behind,
    "the same in each row": lambda x: x[:1].expand_as(x),
    "one number": lambda x: x[:1, :1].expand_as(x),
    "overlapping itself": lambda x: x.flatten().clone().as_strided(x.shape, (1, 1)),
    "of a class": lambda x: x.as_subclass(Tagged),
}
ODD = {  # what may be refused
    "with a graph": lambda x: x.clone().requires_grad_(),
    "a parameter": lambda x: torch.nn.Parameter(x.clone()),
    "of a class with operations": lambda x: x.as_subclass(Own),
    "float32": lambda x: x.float(),
    "float16": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "int64": lambda x: (10 * x).long(),
    "complex": lambda x: x.cdouble(),
    "0-dim": lambda x: x[0, 0],
    "empty": lambda x: x[:0],
    "a row": lambda x: x[0],
    "one row": lambda x: x[:1],
    "on meta": lambda x: x.to("meta"),
    "sparse": lambda x: x.to_sparse(),
    "sparse rows": lambda x: x.to_sparse_csr(),
    "a list": lambda x: x.tolist(),
    "none": lambda x: None,
}
# A kernel cannot do all that torch can: derivatives do not go through it, and it is for one kind of device.
IN_TORCH = {"with a graph", "a parameter", "of a class with operations", "on meta"}
CHAINS, SITES = 3, 4


def numbers(shift=0.0, shape=(CHAINS, SITES), device="cpu"):
    count = torch.Size(shape).numel()
    return torch.linspace(0.5, 2.0, count, dtype=torch.float64, device=device).reshape(shape) ** 2 + shift


def result_of(call):
    """The tensors that a call gives, detached; None where it refuses, with all that a refusal says."""
    try:
        return [x.detach().as_subclass(torch.Tensor) for x in call()]
    except RecipeError as error:
        assert ": " in str(error) and str(error).rstrip().endswith((".", "?")), str(error)
        return None


def same(some, others):
    return all(
        x.is_meta or x.shape == y.shape and x.dtype == y.dtype and torch.allclose(x.cpu(), y.cpu(), 1e-12, 1e-12)
        for x, y in zip(some, others, strict=True)
    )


# ---- the step

theta = vector("theta")
PER_SITE = Recipe(
    name="per-site", state=(theta,), H=potential(theta), D={theta: positive("d", per=theta)}, scheme="Euler"
)
BACKENDS = ("torch", "cpp", "triton")


def stepped(backend, **odd):
    """One step of which some argument is `odd`."""
    sghmc, per_site = (compiled(recipe, backend=backend) for recipe in (samplers.SGHMC, PER_SITE))
    on = {"device": device_of(backend)}
    if "d" in odd:
        new = per_site(
            {"theta": numbers(**on)}, 0.1, gradient=lambda at: at / 2, noise={"theta": numbers(1.0, **on)}, d=odd["d"]
        )
        return [new["theta"]]
    state = {"theta": odd.get("theta", numbers(**on)), "p": odd.get("p", numbers(-1.0, **on))}
    if "carried" in odd:
        state["gradient"] = odd["carried"]
    at = [odd.get("first", numbers(0.3, **on)), odd.get("last", numbers(0.4, **on))]
    new = sghmc(state, 0.1, gradient=lambda theta: at.pop(0), noise={"p": odd.get("noise", numbers(2.0, **on))})
    return [new[name] for name in ("theta", "p", "gradient")]


ROLES = ["theta", "p", "first", "last", "carried", "noise", "d"]


def plain_values(x):
    return torch.tensor(x.tolist(), dtype=x.dtype)


EVERY_STEP = [(role, backend) for backend in BACKENDS for role in ROLES]
# Triton's kernels are interpreted here, which takes seconds; a kernel reads these tensors as it reads theta.
SLOW = [(role, "triton") for role in ("p", "last", "carried", "first")]


@pytest.mark.parametrize("role, backend", covering(EVERY_STEP, but=SLOW))
def test_a_step_takes_the_numbers_of_a_tensor_whatever_its_memory_is(role, backend):
    for what, make in PLAIN.items():
        value = make(numbers(0.7, device=device_of(backend)))
        if role == "d":
            value = value[0]
        result = result_of(lambda: stepped(backend, **{role: value}))  # noqa: B023
        assert result is not None, what
        assert same(result, stepped("torch", **{role: plain_values(value)})), what


@pytest.mark.parametrize("role", covering(ROLES, but=["last"]))  # a gradient, as `first` is
def test_a_step_refuses_odd_tensors_on_every_backend_or_on_none(role):
    for what, make in ODD.items():
        values = {backend: make(numbers(0.7, device=device_of(backend))) for backend in BACKENDS}
        if role == "d":
            if what in ("a list", "none", "0-dim", "sparse", "sparse rows"):
                continue
            values = {backend: value[0] if len(value) else value for backend, value in values.items()}
        results = {backend: result_of(lambda: stepped(backend, **{role: values[backend]})) for backend in BACKENDS}  # noqa: B023
        for backend, result in results.items():
            if result is not None:
                assert results["torch"] is not None, (what, backend)
                assert same(result, results["torch"]), (what, backend)
            else:
                assert results["torch"] is None or what in IN_TORCH, (what, backend)


@pytest.mark.parametrize("backend", ["cpp", "triton"])
def test_a_kernel_says_that_it_passes_no_gradient_on(backend):
    on = {"device": device_of(backend)}
    graph = numbers(**on).requires_grad_()
    with pytest.raises(RecipeError, match=r"state\['theta'\]: it requires a gradient.*backend='torch'"):
        stepped(backend, theta=graph)
    with torch.no_grad():
        assert same(stepped(backend, theta=graph), stepped("torch", theta=numbers()))
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(numbers(**on), numbers(**on))
        with pytest.raises(RecipeError, match="requires a gradient"):
            stepped(backend, theta=dual)
    with pytest.raises(RecipeError, match=r"torch.func transforms it.*backend='torch'"):
        torch.func.vmap(lambda x: stepped(backend, theta=x)[0])(numbers(**on)[None])


@pytest.mark.parametrize(
    "name, scheme",
    covering(
        product(["sghmc", "sgnht"], ["A B A", "B A O A B", "A O B O A"]),
        [("sghmc", "B A O A B"), ("sghmc", "A O B O A"), ("sgnht", "A B A")],
    ),
)
def test_what_a_gradient_keeps_or_gives_back_of_its_argument_stays_as_it_was(name, scheme):
    scheme = scheme.replace("A", "A'") if name == "sgnht" else scheme
    if name == "sghmc" and "O" not in scheme or name == "sgnht" and "O" not in scheme:
        scheme = scheme.replace("B", "B O B")
    results = []
    for backend in ("torch", "cpp"):
        kept = []

        def gradient(at, kept=kept):
            kept.append(at)
            return at.view(at.shape)

        step = integrators.compile(CASES[name].recipe, scheme, backend=backend)
        state = {"theta": numbers(), "p": numbers(1.0)} | ({"xi": numbers(shape=(CHAINS,))} if name == "sgnht" else {})
        for number in range(3):
            state = step(state, 0.1, gradient=gradient, noise=Key(3, number))
        results.append([*kept, *(state[b] for b in state)])
    assert len(results[0]) > 4 and same(*results)


# ---- sample

X, Y = datum("x", per=theta), datum("y")
REGRESSION = Energy(theta, U=data_total((Y - total(X * theta)) ** 2) / 2 + total(theta**2) / 2, data=(X, Y))
ROWS = numbers(shape=(6, SITES)).sub(1)


def in_torch(at, batch):
    x, y = batch
    return ((y - x @ at) ** 2).sum() / 2 + (at**2).sum() / 2


def sampled(backend, energy=REGRESSION, **odd):
    arguments = {"init": numbers(), "x": ROWS, "y": ROWS[:, 0] + 1, **odd}
    data = (arguments.pop("x"), arguments.pop("y"))
    draws = samplers.sample(
        samplers.SGLD,
        energy,
        data=data,
        **arguments,
        chains=CHAINS,
        steps=4,
        step_size=1e-3,
        backend=backend,
        progress=False,
    )
    return [draws["theta"]]


@pytest.mark.parametrize(
    "role, energy",
    covering(product(["init", "x", "y"], [REGRESSION, in_torch]), [("init", REGRESSION), ("y", in_torch)]),
)
def test_a_run_takes_the_numbers_of_a_tensor_whatever_its_memory_is(role, energy):
    for what, make in (PLAIN | ODD if energy is REGRESSION else PLAIN).items():  # else the user's function reads it
        full = numbers(0.2) if role == "init" else ROWS
        value = make(full)
        if role == "y":
            if not torch.is_tensor(value) or what in ("0-dim", "empty", "a row", "sparse", "sparse rows"):
                continue
            value = value[:, 0]
        results = [result_of(lambda b=b: sampled(b, energy, **{role: value})) for b in ("torch", "cpp")]  # noqa: B023
        if what in PLAIN:
            plain = sampled("torch", energy, **{role: plain_values(value)})
            assert all(r is not None and torch.allclose(r[0], plain[0], 1e-9) for r in results), what
        else:
            assert (results[0] is None) == (results[1] is None), what
            assert results[0] is None or torch.allclose(results[0][0], results[1][0], 1e-9), what


# ---- the optimizer


def moved(backend, gradient, steps=3, params=None):
    """Weights after steps whose gradients `gradient` makes of numbers, and the versions that autograd counts."""
    params = params or [torch.nn.Parameter(numbers(k)) for k in range(2)]
    optimizer = samplers.Optimizer(params, samplers.SGHMC, lr=1e-3, momentum=0.9, num_data=3, backend=backend)
    before = [p._version for p in params]
    for k in range(steps):
        for p in params:
            p.grad = gradient(numbers(k))
        optimizer.step()
    assert all(p._version >= v + steps for p, v in zip(params, before))
    return [p.clone() for p in params]


def of_any_type(make):
    """A gradient may be of another type only where torch is told so."""

    def gradient(x):
        value = make(x)
        return value if value is None or value.dtype == x.dtype and value.shape == x.shape else x

    return gradient


def test_weights_move_by_the_numbers_of_their_gradients():
    for what, make in (PLAIN | ODD).items():
        if what in ("a list", "on meta", "sparse rows"):
            continue  # torch takes none for a gradient
        results = [result_of(lambda b=b: moved(b, of_any_type(make))) for b in ("torch", "cpp")]  # noqa: B023
        if what in PLAIN:
            plain = moved("torch", lambda x: plain_values(make(x)))  # noqa: B023
            assert all(r is not None and same(r, plain) for r in results), what
        else:
            assert (results[0] is None) == (results[1] is None), what
            assert results[0] is None or same(*results), what


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_gradients_of_another_type_or_across_the_weights_are_refused(backend):
    p = torch.nn.Parameter(numbers())
    if hasattr(p, "grad_dtype"):
        p.grad_dtype = torch.float32
        with pytest.raises(RecipeError, match="gradient of parameter 0 of group 0 is torch.float32"):
            moved(backend, lambda x: x.float(), params=[p])
    memory = torch.zeros(CHAINS * SITES + 4, dtype=torch.float64)
    p = torch.nn.Parameter(memory[:-4].view(CHAINS, SITES))
    with pytest.raises(RecipeError, match="share memory"):
        moved(backend, lambda x: memory[4:].view(CHAINS, SITES), params=[p])
    with pytest.raises(RecipeError, match="lazy negative"):
        moved(backend, lambda x: x, params=[torch.nn.Parameter(torch._neg_view(numbers()))])


@pytest.mark.parametrize("recipe", [samplers.SGHMC, samplers.SGNHT])
def test_a_gradient_may_be_another_weight(recipe):
    results = []
    for backend in ("torch", "cpp"):
        weights = [torch.nn.Parameter(numbers(seed)) for seed in (1, 2)]
        optimizer = samplers.Optimizer(weights, recipe, lr=1e-3, momentum=0.9, num_data=3, backend=backend)
        for _ in range(3):
            for one, other in (weights, weights[::-1]):
                one.grad = other.detach()
            optimizer.step()
        results.append([p.detach() for p in weights])
    assert same(*results)


def test_a_gradient_that_is_its_weight_and_weights_laid_out_anew():
    for recipe in (samplers.SGHMC, samplers.SGNHT):
        results = []
        for backend in ("torch", "cpp"):
            p = torch.nn.Parameter(numbers(shape=(4, 4)))
            optimizer = samplers.Optimizer([p], recipe, lr=1e-3, momentum=0.9, num_data=3, backend=backend)
            for k in range(4):
                if k == 2:
                    p.data = p.data.t()
                p.grad = p.detach() if k != 2 else p.detach() * 2
                optimizer.step()
            results.append([p.detach()])
        assert same(*results)


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_autograd_sees_that_weights_have_moved(backend):
    p = torch.nn.Parameter(numbers())
    optimizer = samplers.Optimizer([p], samplers.SGHMC, lr=1e-3, momentum=0.9, num_data=3, backend=backend)
    loss = (p**2).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# ---- defaults of torch that are others

ENTRANCES = """
import os, sys, tempfile, warnings
import arviz, integrators, samplers, torch, torch._dynamo
from integrators.noise import Key
from samplers import SWAG, Optimizer, diagnostics, sample, scores
from samplers.target.targets import TARGETS
for default in sys.argv[1:]:
    print("defaults:", default, flush=True)
    child = os.fork()
    if not child:
        break
    if os.waitpid(child, 0)[1]:
        sys.exit(f"with {default}")
else:
    sys.exit()
warnings.simplefilter("error")
on_cpu = dict(device="cpu", dtype=torch.float32)
zero, ones, line = torch.zeros(2, **on_cpu), torch.ones(3, 4, **on_cpu), torch.linspace(0, 1, 12, **on_cpu).view(6, 2)
if "meta" in default:
    torch.set_default_device("meta")
if "float64" in default:
    torch.set_default_dtype(torch.float64)

def show(name, *values):
    for x in values:
        print(name, x.dtype, x.device, x.double().sum().item())

for backend in ("torch", "cpp"):
    for recipe in (samplers.SGHMC, samplers.MSGNHT):
        state = {b.name: ones for b in recipe.entries}
        step = integrators.compile(recipe, backend=backend)
        show("step", *step(state, 0.1, gradient=lambda at: at, noise=Key(1, 2)).values())
    for energy in (TARGETS["banana"], lambda at: (at**4).sum()):
        draws = samplers.sample(samplers.SGHMC, energy, init=zero, chains=3, steps=50, step_size=1e-2, backend=backend,
                                progress=False, keep="p")
        show("sample", draws["theta"], draws["p"])
    of_rows = lambda at, batch: ((at - batch)**2).sum()
    show("data", samplers.sample(samplers.SGLD, of_rows, data=line, batch_size=2, init=zero, steps=5, step_size=1e-2,
                                 backend=backend, progress=False)["theta"])
    p = torch.nn.Parameter(ones.clone())
    optimizer = samplers.Optimizer([p], samplers.SGHMC, lr=1e-3, momentum=0.9, num_data=3, backend=backend)
    for _ in range(3):
        optimizer.zero_grad()
        (p**2).sum().backward()
        optimizer.step()
    show("optimizer", p, optimizer.state[p]["p"])
    show("folder", samplers.sample(samplers.SGLD, energy, init=zero, steps=5, step_size=1e-2, progress=False,
                                   backend=backend, checkpoint=tempfile.mkdtemp())["theta"])
show("long", samplers.sample(samplers.SGLD, TARGETS["banana"], init=zero, steps=20_000, step_size=1e-3,
                             progress=False)["theta"])
print(draws.summary().to_string(), len(str(draws)))
swag = samplers.SWAG.of(draws["theta"][0])
show("swag", swag.mean)
namespace = {}
exec(integrators.compile(samplers.SGHMC).standalone(), namespace)
p = torch.nn.Parameter(ones.clone())
optimizer = namespace["Optimizer"]([p], lr=1e-3, num_data=3)
(p**2).sum().backward()
optimizer.step()
show("standalone", p)
"""


@pytest.mark.needs("arviz")
@pytest.mark.parametrize("defaults", covering(["meta float64", "meta, float64"], []))
def test_other_defaults_of_torch_change_nothing(defaults):
    """In processes of their own, forked from one that has imported what they use: this has been a crash."""
    defaults = defaults.split(", ")
    command = [sys.executable, "-c", ENTRANCES, "none", *defaults]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, (run.returncode, run.stderr[-2000:])
    _, *answers = re.split(r"^defaults: .*\n", run.stdout, flags=re.M)
    assert len(answers) == 1 + len(defaults) and answers[0].count("\n") > 20
    assert all(answer == answers[0] for answer in answers)


# ---- memory


def bytes_of_tensors():
    gc.collect()
    tensors = [x for x in gc.get_objects() if type(x) is torch.Tensor and x.layout is torch.strided and not x.is_meta]
    is_wrapped = torch._C._functorch.is_functorch_wrapped_tensor  # of vmap, without a storage
    return sum(x.untyped_storage().nbytes() for x in tensors if not is_wrapped(x))


def test_kernels_at_rest_hold_no_tensors():
    """Of many shapes and threads; what a step has of its own, and values per site, grow with the state too."""
    recipe = CASES["psgld-gamma"].recipe
    step = integrators.compile(recipe, backend="cpp")
    per_site = compiled(PER_SITE, backend="cpp")
    before = bytes_of_tensors()

    def call(sites):
        state = {b.name: torch.ones(2, sites) for b in recipe.entries}
        step(
            state,
            0.1,
            gradient=lambda at: at,
            curvature=torch.ones_like,
            noise=Key(0, 0),
            **{s.name: 0.5 for s in recipe.parameters if s.default is None},
        )
        per_site({"theta": torch.ones(2, sites)}, 0.1, gradient=lambda at: at, noise=Key(0, 0), d=2.0)

    call(8)  # compiled once
    for k in range(6):
        threads = [threading.Thread(target=call, args=(30_000 + 1000 * k,)) for _ in range(3)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert 0 < len(single._pool.idle) <= single.IDLE
    assert bytes_of_tensors() - before < 100_000
    for _, kernel in single._pool.idle:
        arrays = [x for x in vars(kernel._launch).values() if hasattr(x, "nbytes")]
        assert sum(x.nbytes for x in arrays) < 10_000
