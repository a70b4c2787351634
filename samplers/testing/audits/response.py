"""The law of theta on a normal target without errors of sampling, from the response of theta to each normal number.

Where a black box draws its noise by torch or numpy, and theta_n is linear in it, theta_n = M theta_0 + sum_k G_k z_k,
the covariance of theta_n tends to sum_k G_k G_k' as M -> 0. One run has all G_k: each chain has one z_k = 1.
"""

from math import prod

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from recipe.errors import RecipeError

from .experiment import Experiment, OutOfTime
from .known_laws import LAWS

NORMAL = {"randn", "randn_like", "normal", "normal_"}
OTHER = {name for name in dir(np.random.Generator) if name[0] != "_"} - {"normal", "standard_normal", "bit_generator"}
FEW, CHECKED = 8, 64  # chains of the run that counts numbers, and chains whose theta_n must follow from their numbers
MOST = 2**13  # numbers of a chain
TIMES = 10.0, 20.0, 40.0  # of runs, until the start is forgotten
FORGOTTEN = 1e-4  # the share of the variance that the start, and the first quarter of the numbers, may have
LINEAR = 1e-3  # the largest error of theta_n, in standard deviations
VARIES = "theta_n is not a linear function of the normal numbers, the same for every seed"


class Unseen(Exception):
    """The reason why theta_n is not known as a linear function of normal numbers."""


class Noise(TorchDispatchMode):
    """Replaces the normal numbers that torch and numpy draw by columns of `numbers`, (chains, count), in their order.

    Counts the numbers of a chain; without `numbers` all of them are 0. Raises Unseen for other random numbers. Of
    numpy it sees those of `numpy.random.default_rng`.
    """

    def __init__(self, chains: int, numbers: torch.Tensor | None = None):
        super().__init__()
        self.chains, self.numbers, self.count = chains, numbers, 0

    def standard(self, shape: tuple[int, ...]) -> torch.Tensor:
        """The next standard normal numbers, (chains, ...)."""
        if not shape or shape[0] != self.chains:
            raise Unseen(f"it draws normal numbers of the shape {shape} for {self.chains} chains")
        first, self.count = self.count, self.count + prod(shape[1:])
        if self.numbers is None:
            return torch.zeros(shape)
        if self.count > self.numbers.shape[1]:
            raise Unseen(VARIES)
        return self.numbers[:, first : self.count].reshape(shape)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return result
        name = func.overloadpacket.__name__
        if name not in NORMAL:
            raise Unseen(f"it draws by {name} of torch")
        moments = {"normal": args[:2], "normal_": args[1:3]}.get(name, ())
        mean, sd = moments[0] if moments else 0.0, moments[1] if len(moments) > 1 else 1.0
        return result.copy_(mean + sd * self.standard(tuple(result.shape)))

    def __enter__(self):
        self.original = np.random.default_rng
        np.random.default_rng = lambda seed=None: _Generator(self, self.original(seed).bit_generator)
        return super().__enter__()

    def __exit__(self, *error):
        np.random.default_rng = self.original
        return super().__exit__(*error)


class _Generator(np.random.Generator):
    """A generator of numpy whose normal numbers are those of a Noise; raises Unseen for others."""

    def __init__(self, noise, bits):
        super().__init__(bits)
        self.noise = noise

    def __getattribute__(self, name):
        if name in OTHER:
            raise Unseen(f"it draws by {name} of numpy")
        return super().__getattribute__(name)

    def standard_normal(self, size=None, dtype=np.float64, out=None):
        shape = np.shape(out) if size is None else tuple(np.atleast_1d(size).tolist())
        numbers = self.noise.standard(shape).numpy().astype(dtype)
        if out is not None:
            out[...] = numbers
        return numbers

    def normal(self, loc=0.0, scale=1.0, size=None):
        return loc + scale * self.standard_normal(np.broadcast(loc, scale).shape if size is None else size)


def responses(experiment: Experiment) -> np.ndarray:
    """The biases of quadratic statistics on the first target at h, h/2, h/4 and h/8, (step sizes, statistics).

    Raises Unseen where theta_n is not linear in normal numbers that torch or numpy draw.
    """
    hs = [*experiment.step_sizes, experiment.step_sizes[-1] / 2]
    try:
        return np.stack([_biases(experiment, h) for h in hs])
    except (OutOfTime, RecipeError, Unseen):
        raise
    except Exception as error:  # as where the step of the black box is compiled
        raise Unseen(f"it does not run on numbers of the audit: {type(error).__name__}") from error


def quadratic() -> list[int]:
    """The places of quadratic statistics among those of the first target."""
    return [k for k, label in enumerate(LAWS[0].labels) if not label.startswith(("mean", "P("))]


def _biases(experiment, h):
    """The biases of quadratic statistics, whose mean is the sum over all responses; raises Unseen."""
    law, T = LAWS[0], experiment.temperatures[0]
    for time in TIMES:
        of_start, of_numbers = (law.statistics(x, T)[:, quadratic()] for x in _responses(experiment, h, time))
        early = len(of_numbers) // 4 + 1
        if max(abs(x.sum(0)).max() for x in (of_start, of_numbers[:early])) < FORGOTTEN:
            return of_numbers.sum(0) - law.exact(T)[quadratic()]
    raise Unseen(f"after {TIMES[-1]:g} units of time it has not forgotten its start")


def _responses(experiment, h, time):
    """theta_n by coordinate of theta_0, and by number; raises Unseen where theta_n is not linear in them.

    Chains of another seed must have the same responses: what else is random, a step size for one, depends on the seed.
    """
    law, T = LAWS[0], experiment.temperatures[0]
    sd = torch.tensor(law.moments(T)[1], dtype=torch.get_default_dtype())
    seed, other_seed, steps = experiment.new_seed(), experiment.new_seed(), round(time / h)

    def run(init, steps, numbers=None, seed=seed):
        with Noise(len(init), numbers) as noise:
            return experiment.run(law, init, T, h, seed=seed, time=steps * h), noise.count

    (_, first), (origin, both) = (run(torch.zeros(FEW, law.dim), k) for k in (1, 2))
    count = first + (both - first) * (steps - 1)
    if not count:
        raise Unseen("it draws no normal number by torch or by default_rng of numpy")
    if count < 0 or origin.any():
        raise Unseen(VARIES)
    if count > MOST:
        raise Unseen(f"a chain draws {count} numbers, more than {MOST}")
    init = torch.zeros(law.dim + count, law.dim)
    init[: law.dim] = sd.diag()
    numbers = torch.zeros(count, len(init)).T  # a step reads columns
    numbers[law.dim :].fill_diagonal_(1)
    theta, reads = run(init, steps, numbers)
    of_start, of_numbers = theta.split([law.dim, count])
    numbers = torch.randn(count, CHECKED, generator=experiment.generator).T
    checked, _ = run(torch.zeros(CHECKED, law.dim), steps, numbers, other_seed)
    error = abs(checked - numbers @ of_numbers) / sd
    if reads != count or not error.max() < LINEAR:
        raise Unseen(VARIES)
    return of_start, of_numbers
