"""Black boxes for audits: samplers with one part to be made wrong, in plain torch."""

import math
from functools import partial

import numpy as np
import torch

from samplers.testing.audits.known_laws import LAWS

SLOPES = {  # of black boxes, which spend their time in gradients
    LAWS[0].potential: lambda x: x @ PRECISION,
    LAWS[1].potential: lambda x: x * (x * x + 1) / 2 - 2 / 5,
    LAWS[2].potential: lambda x: x * (x * x - 2) / 2,
}


def gradient(potential, theta):
    return SLOPES[potential](theta) if potential in SLOPES else by_autograd(potential, theta)


def by_autograd(potential, theta):
    theta = theta.detach().requires_grad_()
    return torch.autograd.grad(potential(theta).sum(), theta)[0]


PRECISION = by_autograd(LAWS[0].potential, torch.eye(3))


def box(step, start=lambda theta, normal, T: theta, normals=None):
    """A black box from step(state, force, normal, h, T, k) -> state; theta is the state, or its first part."""

    def run(potential, init, *, steps, step_size, temperature, seed):
        generator = torch.Generator().manual_seed(seed)

        def normal():
            return (normals or torch.randn)(init.shape, generator=generator)

        state = start(init, normal, temperature)
        for k in range(steps):
            state = step(state, partial(gradient, potential), normal, step_size, temperature, k)
        return state if torch.is_tensor(state) else state[0]

    return run


def momentum(theta, normal, T):
    return theta, T**0.5 * normal()


def ula(drift=1.0, noise=lambda h, T: (2 * h * T) ** 0.5, normals=None):
    return box(lambda x, force, normal, h, T, k: x - drift * h * force(x) + noise(h, T) * normal(), normals=normals)


def splitting(word, friction=1.0, heat=lambda friction, T: T, cold=False, drift=1.0, normals=None):
    """A word of A, B and O: each takes its share of the step; momenta start from their law, or cold."""

    def step(state, force, normal, h, T, k):
        x, p = state
        for letter in word:
            part = h / word.count(letter)
            if letter == "A":
                x = x + part * p
            elif letter == "B":
                p = p - part * drift * force(x)
            else:
                c = math.exp(-friction * part)
                p = c * p + ((1 - c * c) * heat(friction, T)) ** 0.5 * normal()
        return x, p

    return box(step, (lambda theta, normal, T: (theta, 0 * theta)) if cold else momentum, normals)


def euler_sghmc(friction=2.0):
    """Position and momentum both from the old state."""
    return box(
        lambda s, force, normal, h, T, k: (
            s[0] + h * s[1],
            s[1] - h * force(s[0]) - h * friction * s[1] + (2 * friction * h * T) ** 0.5 * normal(),
        ),
        momentum,
    )


def thermostat(target=lambda T: T, A=1.0):
    """SGNHT with a thermostat per coordinate, as Ding et al. step it; it starts at A."""

    def step(state, force, normal, h, T, k):
        x, p, xi = state
        p = p - h * xi * p - h * force(x) + (2 * A * h * T) ** 0.5 * normal()
        x = x + h * p
        return x, p, xi + h * (p**2 - target(T))

    return box(step, lambda x, normal, T: (x, T**0.5 * normal(), torch.full_like(x, A)))


def refreshed(L):
    """Leapfrog that is not symmetric, with a new momentum every L steps: variance L/(L - 1) at every h."""

    def step(state, force, normal, h, T, k):
        x, p = state
        p = T**0.5 * normal() if k % L == 0 else p
        x = x + h * p
        return x, p - h * force(x)

    return box(step, momentum)


def preconditioned(memory, gamma=False):
    """G(theta) = 1/(1 + theta^2) without its derivative, or with; with a memory, RMSprop's."""

    def step(state, force, normal, h, T, k):
        x, V = state
        f = force(x)
        V = f**2 if V is None else memory * V + (1 - memory) * f**2
        G = 1 / (0.3 + V**0.5) if memory else 1 / (1 + x**2)
        drift = G * f + (2 * T * x / (1 + x**2) ** 2 if gamma else 0)
        return x - h * drift + (2 * h * T * G) ** 0.5 * normal(), V

    return box(step, lambda x, normal, T: (x, None))


def mala(shift=0.0):
    """Accepted with a probability that is too high by a shift."""

    def run(potential, init, *, steps, step_size, temperature, seed):
        generator, x, h, T = torch.Generator().manual_seed(seed), init, step_size, temperature
        U, f = potential(x), gradient(potential, x)
        for _ in range(steps):
            new = x - h * f + (2 * h * T) ** 0.5 * torch.randn(x.shape, generator=generator)
            V, g = potential(new), gradient(potential, new)
            there, back = ((new - x + h * f) ** 2).sum(1) / 4 / h, ((x - new + h * g) ** 2).sum(1) / 4 / h
            take = torch.rand(len(x), generator=generator) < torch.exp((U - V + there - back) / T) + shift
            x, f, U = torch.where(take[:, None], new, x), torch.where(take[:, None], g, f), torch.where(take, V, U)
        return x

    return run


def ghmc(shift=0.0, flips=True):
    """A leapfrog step, accepted with a probability too high by a shift, or with its momentum turned round if not."""

    def step(state, force, normal, h, T, k, potential, uniform):
        x, p = state
        c = math.exp(-h)
        p = c * p + ((1 - c * c) * T) ** 0.5 * normal()
        q = p - h / 2 * force(x)
        y = x + h * q
        q = q - h / 2 * force(y)
        rise = potential(y) - potential(x) + (q**2 - p**2).sum(1) / 2
        taken = (uniform() < torch.exp(-rise / T) + shift)[:, None]
        return torch.where(taken, y, x), torch.where(taken, q, -p if flips else p)

    def run(potential, init, *, steps, step_size, temperature, seed):
        generator = torch.Generator().manual_seed(seed)

        def normal():
            return torch.randn(init.shape, generator=generator)

        def uniform():
            return torch.rand(len(init), generator=generator)

        state = momentum(init, normal, temperature)
        for k in range(steps):
            state = step(state, partial(gradient, potential), normal, step_size, temperature, k, potential, uniform)
        return state[0]

    return run


def unseen(shape, generator):
    """Normal numbers of numpy under a seed of torch's, which an audit does not follow."""
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(tuple(shape), dtype=np.float32))


def in_numpy(noise=0.0):
    """Unadjusted Langevin with noise of a variance that is too large by a share, drawn by numpy."""

    def run(potential, init, *, steps, step_size, temperature, seed):
        random, x = np.random.default_rng(seed), init
        for k in range(steps):
            sd = (2 * step_size * temperature * (1 + noise)) ** 0.5
            drawn = random.normal(0, sd, init.shape) if k % 2 else sd * random.standard_normal(init.shape, np.float32)
            x = x - step_size * gradient(potential, x) + torch.as_tensor(drawn).to(x)
        return x.numpy()

    return run


def by_chain(spread):
    """The noise of all chains from that of fewer."""
    return lambda shape, generator: spread(shape[0], lambda n: torch.randn(n, shape[1], generator=generator))


def reseeded(potential, init, *, steps, **options):
    """Every step with the noise of the first."""
    theta = init
    for _ in range(steps):
        theta = ula()(potential, theta, steps=1, **options)
    return theta


def slow(potential, init, *, step_size, **options):
    """A unit of time lasts twenty."""
    return ula()(potential, init, step_size=step_size / 20, **options)


def exact_draws(potential, init, *, steps, step_size, temperature, seed):
    law = next(law for law in LAWS if law.potential is potential)
    return law.draw(len(init), temperature, torch.Generator().manual_seed(seed + steps))


def heavy(potential, init, *, steps, step_size, temperature, seed):
    """Independent draws of Student's t of three degrees of freedom, times sqrt(T): no fourth moment."""
    generator = torch.Generator().manual_seed(seed + steps)
    four = torch.randn(4, *init.shape, generator=generator)
    return temperature**0.5 * four[0] / ((four[1:] ** 2).mean(0)) ** 0.5


def heated(by):
    """Exact draws at a temperature that is too high, as a function of step size and time."""

    def run(potential, init, *, steps, step_size, temperature, seed):
        T = temperature * (1 + by(step_size, steps * step_size))
        return exact_draws(potential, init, steps=steps, step_size=step_size, temperature=T, seed=seed)

    return run


def hidden(run):
    """A black box whose noise an audit does not follow, since it also draws a uniform number."""

    def unfollowed(potential, init, **options):
        torch.rand(1, generator=torch.Generator())
        return run(potential, init, **options)

    return unfollowed


def resting(potential, init, **options):
    return torch.cat([ula()(potential, init, **options)[:, :-1], init[:, -1:]], 1)


LATER = dict(time=8.0, step_size=0.15)
RIGHT = {  # black box, settings, verdict, order
    "mala": (mala(), {}, "unbiased", None),
    "ula": (ula(), {}, "vanishing bias", 1),
    "baoab": (splitting("BAOAB"), LATER, "unbiased", None),
    "baoab, long steps": (splitting("BAOAB"), dict(step_size=0.4, chains=800), "unbiased", None),
    "obabo, long steps": (splitting("OBABO"), dict(step_size=0.4, chains=8000, time=8.0), "vanishing bias", 2),
    "sghmc": (splitting("OBA", 2.0), dict(chains=5000), "vanishing bias", 1),
    "explicit euler sghmc": (euler_sghmc(), {}, "vanishing bias", 1),
    "sgnht": (thermostat(), dict(time=8.0), "unbiased", None),
    "a late start": (heated(lambda h, t: 4 * math.exp(-t / 5)), {}, "unbiased", None),
    "preconditioned, with Gamma": (preconditioned(0, gamma=True), LATER, "vanishing bias", 1),
    "slow": (slow, dict(step_size=0.4), "unbiased", None),
    "exact draws": (exact_draws, {}, "unbiased", None),
    "a Metropolis sampler that rejects": (mala(), dict(step_size=0.8), "unbiased", None),
    "momenta that start cold and forget slowly": (
        splitting("BAO", 0.2, cold=True),
        dict(chains=8000),
        "unbiased",
        None,
    ),
}
