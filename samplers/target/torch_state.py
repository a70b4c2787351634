"""What all threads share of torch: its random generator, and the checks of its distributions, both set for a while."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock, RLock

import numpy as np
import torch
from torch.distributions import Distribution, Wishart

TWISTER = slice(24, 24 + 624 * 8)  # where a state of torch's CPU generator has the words of the Mersenne twister
GENERATOR = RLock()  # held while torch's generator, one of all threads, is seeded


@contextmanager
def seeded(seed: int, device: torch.device | None = None) -> Iterator[None]:
    """Seeds torch's generator, of the CPU or of a GPU beside it, inside of the context; restores its state after.

    `manual_seed` takes 32 bits on the CPU, so that one of 65,000 seeds would meet another. Here the Mersenne twister is
    set by all 64, by `init_by_array` of its authors. Source: Matsumoto and Nishimura (2002), mt19937ar.

    >>> with seeded(7):
    ...     x = torch.rand(1)
    >>> with seeded(7 + 2**32):
    ...     bool(x == torch.rand(1))
    False
    """
    twister = np.random.RandomState([seed & 0xFFFFFFFF, seed >> 32]).get_state(legacy=False)["state"]["key"]
    state = torch.Generator().manual_seed(0).get_state()
    state[TWISTER] = torch.from_numpy(twister.astype(np.uint64).view(np.uint8))
    devices = [device] if device is not None and device.type == "cuda" else []
    with GENERATOR, torch.random.fork_rng(devices):
        torch.default_generator.set_state(state)
        for gpu in devices:
            with torch.cuda.device(gpu):
                torch.cuda.manual_seed(seed)
        yield


class _Unchecked:
    """The checks of torch.distributions, off while a thread is inside; the last thread restores the first's setting."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.inside = 0
        self.before = True

    def __enter__(self) -> None:
        with self.lock:
            if not self.inside:
                self.before = Distribution._validate_args  # torch has no public getter
                Distribution.set_default_validate_args(False)
            self.inside += 1

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if not self.inside:
                Distribution.set_default_validate_args(self.before)


unchecked = _Unchecked()  # inside of it, densities outside of the support are not finite and do not raise


def sample_of(law: Distribution) -> torch.Tensor:
    """A draw of a law, without torch's warning that one of a Wishart law is singular, which torch says of them all."""
    if not isinstance(law, Wishart):
        return law.sample()
    with GENERATOR, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Singular sample detected")
        return law.sample()
