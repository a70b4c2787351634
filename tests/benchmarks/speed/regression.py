"""SGLD on minibatches of a logistic regression: its energy as a formula, and as a torch function."""

import torch
from sympy import exp, log

from recipe import Energy, data_total, datum, total, vector
from samplers.running.choice import STEPS_OF_GRAPHS

from .timing import MISSING, Contender
from .trajectories import sampled, scanned, trajectory

ROWS, FEATURES, BATCH = 1000, 14, 50
STEP_SIZE = 1e-4
RANDOM = torch.Generator().manual_seed(0)
X = torch.randn(ROWS, FEATURES, generator=RANDOM)
y = (torch.rand(ROWS, generator=RANDOM) < 0.5).float()


def U(theta, batch):
    z = batch[0] @ theta
    return ROWS / BATCH * (torch.nn.functional.softplus(z) - batch[1] * z).sum() + (theta**2).sum() / 200


def symbolic():
    theta = vector("theta")
    x, label = datum("x", per=theta), datum("label")
    z = total(x * theta)
    return Energy(theta, U=data_total(log(1 + exp(z)) - label * z) + total(theta**2) / 200, data=(x, label))


def regression(quick):
    """Titles and contenders, by the chain and step."""
    start = torch.zeros(FEATURES)
    data = dict(data=(X, y), batch_size=BATCH)
    for chains in (1, 64):
        steps = 2_000 if quick else 12_000
        work = steps * chains
        found = {
            "sgld": Contender(sampled("sgld", symbolic(), chains, steps, STEP_SIZE, start, **data), work),
            "sgld kernel": Contender(trajectory("sgld", symbolic(), chains, steps, STEP_SIZE, FEATURES, **data), work),
        }
        steps //= 1 if chains == 1 else 10
        work = steps * chains
        for peer, make in (("jax", of_jax), ("blackjax", of_blackjax), ("sgmcmcjax", of_sgmcmcjax)):
            if peer not in MISSING:
                found[f"{peer} scan"] = Contender(make(chains, steps), work)
        yield f"logistic regression, {chains} chain(s)", found
        steps = (200 if quick else 2_000) // (1 if chains == 1 else 4)
        work = steps * chains
        found = {"sgld": Contender(sampled("sgld", U, chains, steps, STEP_SIZE, start, **data), work, at_gradient)}
        if chains == 1:
            found |= {"by hand": Contender(by_hand(steps), work), GRADIENT: Contender(gradient_alone(steps), work)}
            if "posteriors" not in MISSING:
                found["posteriors SGLD"] = Contender(of_posteriors(steps), work)
        yield f"logistic regression as a torch function, {chains} chain(s)", found


def long(quick):
    """Contenders of one long run of a torch function, the compilation of its graph among its time."""
    steps = 2_000 if quick else STEPS_OF_GRAPHS
    start = torch.zeros(FEATURES)
    run = sampled("sgld", U, 1, steps, STEP_SIZE, start, data=(X, y), batch_size=BATCH)
    found = {"sgld": Contender(run, steps), "by hand": Contender(by_hand(2_000), 2_000)}
    return found | ({} if "posteriors" in MISSING else {"posteriors SGLD": Contender(of_posteriors(2_000), 2_000)})


GRADIENT = "gradient by autograd alone"


def at_gradient(medians):
    """What a step takes at least that takes its gradient by autograd."""
    return medians.get(GRADIENT)


def gradient_alone(steps):
    theta, batch = torch.zeros(FEATURES, requires_grad=True), (X[:BATCH], y[:BATCH])

    def run(k):
        for _ in range(steps):
            torch.autograd.grad(U(theta, batch), theta)

    return run


def by_hand(steps):
    """SGLD as one writes it down: no checks, no seeds, no draws."""

    def run(k):
        theta = torch.zeros(FEATURES, requires_grad=True)
        for _ in range(steps):
            rows = torch.randint(ROWS, (BATCH,))
            U(theta, (X[rows], y[rows])).backward()
            with torch.no_grad():
                theta.add_(theta.grad, alpha=-STEP_SIZE).add_(torch.randn_like(theta), alpha=(2 * STEP_SIZE) ** 0.5)
                theta.grad = None

    return run


def of_posteriors(steps):
    import posteriors

    transform = posteriors.sgmcmc.sgld.build(
        lambda params, batch: (-U(params["theta"], batch), torch.zeros(())), lr=STEP_SIZE
    )

    def run(k):
        state = transform.init({"theta": torch.zeros(FEATURES)})
        for _ in range(steps):
            rows = torch.randint(ROWS, (BATCH,))
            state, _ = transform.update(state, (X[rows], y[rows]), inplace=True)

    return run


def in_jax():
    """The data, the log-likelihood of one row, and the log-prior."""
    import jax
    import jax.numpy as jnp

    def likelihood(theta, x, label):
        z = x @ theta
        return label * z - jax.nn.softplus(z)

    return jnp.array(X.numpy()), jnp.array(y.numpy()), likelihood, lambda theta: -(theta**2).sum() / 200


def of_jax(chains, steps):
    import jax
    import jax.numpy as jnp

    x, label, likelihood, prior = in_jax()

    def log_density(theta, x, label):
        return ROWS / BATCH * jax.vmap(likelihood, (None, 0, 0))(theta, x, label).sum() + prior(theta)

    gradient, h = jax.vmap(jax.grad(log_density)), STEP_SIZE

    def step(theta, key):
        noise, batch = jax.random.split(key)
        rows = jax.random.randint(batch, (chains, BATCH), 0, ROWS)
        return (
            theta + h * gradient(theta, x[rows], label[rows]) + (2 * h) ** 0.5 * jax.random.normal(noise, theta.shape)
        )

    return scanned(step, jnp.zeros((chains, FEATURES)), steps)


def of_blackjax(chains, steps):
    import blackjax
    import jax
    import jax.numpy as jnp
    from blackjax.sgmcmc.gradients import grad_estimator

    x, label, likelihood, prior = in_jax()
    gradient = grad_estimator(prior, lambda theta, row: likelihood(theta, *row), ROWS)
    kernel = blackjax.sgld(gradient)

    def one(key, theta):
        noise, batch = jax.random.split(key)
        rows = jax.random.randint(batch, (BATCH,), 0, ROWS)
        return kernel.step(noise, theta, (x[rows], label[rows]), STEP_SIZE)

    def step(theta, key):
        return jax.vmap(one)(jax.random.split(key, chains), theta)

    return scanned(step, jnp.zeros((chains, FEATURES)), steps)


def of_sgmcmcjax(chains, steps):
    import jax
    import jax.numpy as jnp
    from sgmcmcjax.samplers import build_sgld_sampler

    x, label, likelihood, prior = in_jax()
    sampler = build_sgld_sampler(STEP_SIZE, likelihood, prior, (x, label), BATCH, pbar=False)
    start = jnp.zeros(FEATURES)
    run = jax.jit(jax.vmap(lambda key: sampler(key, steps, start)[-1]))
    return lambda k: run(jax.random.split(jax.random.PRNGKey(k), chains)).block_until_ready()
