"""Speed, as ratios from one interleaved run: kernels against torch, its optimizers, and other libraries where they are.

    python tests/benchmarks/bench.py --out out/bench.json

Every round runs every contender once, so that a busy machine slows all alike. One thread is timed by the processor's
time, two by the clock; chains by the processor's time, since jax takes what threads it likes. Peers that are not
installed are named and left out.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import statistics
import time
from datetime import date
from functools import partial
from pathlib import Path

import torch
from sympy import exp, log, symbols

import integrators
import samplers
from integrators.kernels import native
from integrators.kernels.trajectory import Trajectory
from recipe import Energy, data_total, datum, total, vector
from samplers.energies.targets import TARGETS

PEERS = ("posteriors", "jax")
SAMPLERS = ("sghmc", "sgld", "psgld", "underdamped-langevin", "msgnht", "atmc", "sgnht", "santa")
MISSING = [name for name in PEERS if importlib.util.find_spec(name) is None]


def interleaved(contenders: dict, units: float, rounds: int, clock) -> dict[str, list[float]]:
    """Nanoseconds per unit of every contender, round by round; the first round warms up."""
    seen = {name: [] for name in contenders}
    for k in range(rounds + 1):
        for name, run in contenders.items():
            began = clock()
            run(k)
            if k:
                seen[name].append((clock() - began) / units * 1e9)
    return seen


# ---- one step of many parameters


def cut(sizes, seed=0):
    random = torch.Generator().manual_seed(seed)
    return [0.1 * torch.randn(1, n, generator=random) for n in sizes]


def eager(sizes):
    """SGHMC by hand, with as few passes as torch allows."""
    theta, p, g = (torch.cat(cut(sizes, k), 1)[0] for k in range(3))
    noise = torch.empty_like(p)

    def run(k):
        noise.normal_()
        p.mul_(0.99).add_(g, alpha=-1e-4).add_(noise, alpha=1e-3)
        theta.add_(p, alpha=1e-4)

    return run


def optimizer(make, sizes):
    """The step of an optimizer, ours or torch's, after its gradient."""
    params = [torch.nn.Parameter(x) for x in cut(sizes)]
    for x, g in zip(params, cut(sizes, 1)):
        x.grad = g
    opt = make(params)
    for _ in range(25):  # ours watches the gradients of the first steps
        opt.step()
    return lambda k: opt.step()


def of_posteriors(sizes):
    """SGHMC of posteriors, its gradient as cheap as can be: that of a linear function."""
    import posteriors

    g = {str(k): x for k, x in enumerate(cut(sizes, 1))}

    def log(params, batch):
        return (sum((params[k] * g[k]).sum() for k in g), torch.zeros(()))

    transform = posteriors.sgmcmc.sghmc.build(log, lr=1e-4)
    state = [transform.init({str(k): x for k, x in enumerate(cut(sizes))})]

    def run(k):
        state[0], _ = transform.update(state[0], None, inplace=True)

    return run


def parameters(sizes, peers=True):
    """Contenders of one step over tensors of these sizes."""
    flat, other = torch.empty(sum(sizes)), torch.randn(sum(sizes))
    found = {
        "normal_": lambda k: flat.normal_(),
        "copy": lambda k: flat.copy_(other),
        "torch.optim.SGD(foreach)": optimizer(partial(torch.optim.SGD, lr=1e-4, momentum=0.9, foreach=True), sizes),
        "torch.optim.AdamW(fused)": optimizer(partial(torch.optim.AdamW, lr=1e-4, fused=True), sizes),
        "eager SGHMC": eager(sizes),
    }

    def of(name):
        return partial(samplers.Optimizer, recipe=samplers.catalogue[name], step_size=1e-4, num_data=1, backend="cpp")

    found |= {name: optimizer(of(name), sizes) for name in SAMPLERS}
    return found | ({"posteriors SGHMC": of_posteriors(sizes)} if "posteriors" not in MISSING and peers else {})


# ---- iterations of a training loop


def iterations(make, count):
    """Whole iterations of a 784-400-400-10 network on batches of 100 images: zero_grad, forward, backward, step."""
    random = torch.Generator().manual_seed(0)
    x, y = torch.rand(100, 784, generator=random), torch.randint(0, 10, (100,), generator=random)
    net = torch.nn.Sequential(
        torch.nn.Linear(784, 400), torch.nn.ReLU(), torch.nn.Linear(400, 400), torch.nn.ReLU(), torch.nn.Linear(400, 10)
    )
    opt = make(net.parameters())

    def run(count):
        for _ in range(count):
            opt.zero_grad()
            torch.nn.functional.cross_entropy(net(x), y).backward()
            opt.step()

    run(25)
    return lambda k: run(count)


def training(count):
    """Contenders of a training loop."""

    def of(name, **rate):
        return partial(samplers.Optimizer, recipe=samplers.catalogue[name], num_data=60_000, weight_decay=1e-5, **rate)

    rates = {
        "sghmc": dict(lr=0.01, momentum=0.9),
        "atmc": dict(lr=0.01, momentum=0.9),
        "sgld": dict(lr=0.01),
        "psgld-same-step": dict(lr=1e-4),
    }
    found = {
        "torch.optim.SGD(momentum)": iterations(
            partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=1e-5), count
        )
    }
    return found | {name: iterations(of(name, **rate), count) for name, rate in rates.items()}


# ---- many steps of many chains


def trajectory(name, energy, chains, steps, h, sites, **data):
    recipe = samplers.catalogue[name]
    step = integrators.compile(recipe, energy=energy)
    state = {b.name: torch.zeros((chains, sites) if b.is_vector else (chains,)) for b in recipe.entries}
    run = Trajectory(step.program, state, 0, **data)
    return lambda k: run.run(k * steps, [(h, 1.0)] * steps, thin=steps, first_kept=steps - 1, keep=["theta"])


def of_jax(U, dim, chains, steps, h):
    """SGLD as a scan over steps of vectorised chains."""
    import jax
    import jax.numpy as jnp

    gradient = jax.vmap(jax.grad(U))

    @jax.jit
    def run(theta, key):
        def step(theta, key):
            return theta - h * gradient(theta) + (2 * h) ** 0.5 * jax.random.normal(key, theta.shape), None

        return jax.lax.scan(step, theta, jax.random.split(key, steps))[0]

    theta = jnp.zeros((chains, dim))
    return lambda k: run(theta, jax.random.PRNGKey(k)).block_until_ready()


def chains(quick):
    """Contenders and chain-steps of SGLD on a banana and a Gaussian of ten coordinates, by (target, chains)."""
    x = symbols("x0:10", real=True)
    gaussian = Energy(x, U=sum(v**2 / 2 for v in x) + sum(a * b for a, b in zip(x, x[1:])) / 4)
    in_jax = {
        "banana": lambda t: t[0] ** 2 / 2 + 5 * (t[1] - t[0] ** 2) ** 2,
        "gaussian 10": lambda t: (t**2).sum() / 2 + (t[1:] * t[:-1]).sum() / 4,
    }
    for target, energy, many in (
        ("banana", TARGETS["banana"], 4096),
        ("banana", TARGETS["banana"], 64),
        ("gaussian 10", gaussian, 4096),
        ("gaussian 10", gaussian, 64),
    ):
        steps = (200_000 if quick else 2_000_000) // many * (2 if many < 100 else 4)
        found = {
            name: trajectory(name, energy, many, steps, 0.01, len(energy.coordinates)) for name in ("sgld", "sgnht")
        }
        if "jax" not in MISSING:
            found["jax scan"] = of_jax(in_jax[target], len(energy.coordinates), many, steps, 0.01)
        yield f"{target}, {many} chains", found, many * steps


# ---- logistic regression on minibatches


ROWS, FEATURES, BATCH = 1000, 14, 50


def regression(quick):
    """Contenders of SGLD on minibatches of a logistic regression, by number of chains: (contenders, chain-steps)."""
    random = torch.Generator().manual_seed(0)
    X, y = torch.randn(ROWS, FEATURES, generator=random), (torch.rand(ROWS, generator=random) < 0.5).float()
    theta = vector("theta")
    x, label = datum("x", per=theta), datum("label")
    z = total(x * theta)
    energy = Energy(theta, U=data_total(log(1 + exp(z)) - label * z) + total(theta**2) / 200, data=(x, label))

    def U(theta, batch):
        z = batch[0] @ theta
        return ROWS / BATCH * (torch.nn.functional.softplus(z) - batch[1] * z).sum() + (theta**2).sum() / 200

    def sampled(energy, chains, steps):
        run = dict(
            init=torch.zeros(FEATURES), chains=chains, data=(X, y), batch_size=BATCH, step_size=1e-4, progress=False
        )
        return lambda k: samplers.sample(samplers.SGLD, energy, steps=steps, thin=steps, seed=k, **run)

    for chains in (1, 64):
        steps = (2_000 if quick else 20_000) // (1 if chains == 1 else 16)
        found = {"sgld": trajectory("sgld", energy, chains, steps, 1e-4, FEATURES, data=(X, y), batch_size=BATCH)}
        if "jax" not in MISSING:
            found["jax scan"] = regression_in_jax(X, y, chains, steps)
        yield f"logistic regression, {chains} chain(s)", found, chains * steps
        few = 200 if quick else 2_000
        found = {"sgld": sampled(U, chains, few)}
        if "posteriors" not in MISSING and chains == 1:
            found["posteriors SGLD"] = regression_of_posteriors(X, y, U, few)
        yield f"logistic regression as a torch function, {chains} chain(s)", found, chains * few


def regression_of_posteriors(X, y, U, steps):
    import posteriors

    transform = posteriors.sgmcmc.sgld.build(
        lambda params, batch: (-U(params["theta"], batch), torch.zeros(())), lr=1e-4
    )

    def run(k):
        state = transform.init({"theta": torch.zeros(FEATURES)})
        for _ in range(steps):
            rows = torch.randint(ROWS, (BATCH,))
            state, _ = transform.update(state, (X[rows], y[rows]), inplace=True)

    return run


def regression_in_jax(X, y, chains, steps, h=1e-4):
    import jax
    import jax.numpy as jnp

    X, y = jnp.array(X.numpy()), jnp.array(y.numpy())

    def U(theta, x, y):
        z = x @ theta
        return ROWS / BATCH * (jax.nn.softplus(z) - y * z).sum() + (theta**2).sum() / 200

    gradient = jax.vmap(jax.grad(U))

    @jax.jit
    def run(theta, key):
        def step(theta, key):
            noise, batch = jax.random.split(key)
            rows = jax.random.randint(batch, (chains, BATCH), 0, ROWS)
            return theta - h * gradient(theta, X[rows], y[rows]) + (2 * h) ** 0.5 * jax.random.normal(
                noise, theta.shape
            ), None

        return jax.lax.scan(step, theta, jax.random.split(key, steps))[0]

    theta = jnp.zeros((chains, FEATURES))
    return lambda k: run(theta, jax.random.PRNGKey(k)).block_until_ready()


# ---- the report


def rows(seen: dict, base: str) -> list[dict]:
    """Medians, and ratios to the base of the same round with their spread."""
    table = []
    for name, times in seen.items():
        ratios = sorted(t / b for t, b in zip(times, seen[base]))
        table.append(
            {
                "name": name,
                "ns": statistics.median(times),
                "ratio": statistics.median(ratios),
                "from": ratios[len(ratios) // 10],
                "to": ratios[-1 - len(ratios) // 10],
            }
        )
    return table


def show(title, table, base):
    print(f"\n{title}\n  {'':28}{'ns':>10}{'ratio to ' + base:>24}")
    for r in table:
        print(f"  {r['name']:28}{r['ns']:10.3g}{r['ratio']:14.3f}  ({r['from']:.3f} to {r['to']:.3f})")


def main(argv=None):
    """Run all benchmarks, print their tables, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out/bench.json"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--parameters", type=int, default=10_000_000)
    parser.add_argument("--quick", action="store_true", help="small sizes: whether all of it runs")
    options = parser.parse_args(argv)
    if options.quick:
        options.parameters, options.rounds = 100_000, 2
    random = torch.Generator().manual_seed(0)
    ends = torch.randint(1, options.parameters, (160,), generator=random).unique().tolist()
    sizes = [b - a for a, b in zip([0, *ends], [*ends, options.parameters])]
    small = [int(n) for n in torch.randint(10, 500, (160,), generator=random)]
    print(f"not installed: {', '.join(MISSING) or 'nothing'}")
    found = {}
    for threads, clock in ((1, time.process_time), (2, time.perf_counter)):
        torch.set_num_threads(threads)
        what = f"{options.parameters:,} parameters in {len(sizes)} tensors"
        title = f"one step, {what}, {threads} thread(s), ns per parameter"
        found[title] = rows(
            interleaved(parameters(sizes, threads == 1), options.parameters, options.rounds, clock), "normal_"
        )
        show(title, found[title], "normal_")
    torch.set_num_threads(1)
    title = "one step, 160 tensors of 10 to 500 parameters, 1 thread, ns per step"
    found[title] = rows(interleaved(parameters(small), 1, 20 * options.rounds, time.process_time), "sghmc")
    show(title, found[title], "sghmc")
    count = 3 if options.quick else 50
    title, base = (
        "one iteration of a 784-400-400-10 network, batch 100, 1 thread, ns per iteration",
        "torch.optim.SGD(momentum)",
    )
    found[title] = rows(interleaved(training(count), count, 2 * options.rounds, time.process_time), base)
    show(title, found[title], base)
    for title, contenders, units in (*chains(options.quick), *regression(options.quick)):
        title += ", processor's ns per chain and step"
        found[title] = rows(interleaved(contenders, units, options.rounds, time.process_time), "sgld")
        show(title, found[title], "sgld")
    versions = {name: importlib.metadata.version(name) for name in ("torch", *PEERS) if name not in MISSING}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    model = next((part for part in native.processor().split("; ") if part.startswith("model name")), platform.machine())
    options.out.write_text(
        json.dumps(
            {
                "date": str(date.today()),
                "processor": model.partition(": ")[2] or model,
                "compiler": (native.compiler() or ("", "none"))[1],
                "versions": versions,
                "tables": found,
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
