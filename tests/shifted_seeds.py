"""Other random numbers for every test: a number is added to each seed of torch, of numpy, and of the noise of steps.

pytest --seed-shift 1

A right test passes whatever the seed, but for its part of the error budget. Known answers keep the seed that they
state: those of docstrings, and tests marked `stated_seed`. Not reached are processes that a test starts, the starts
that a model or a network draws by torch's own generator, the examples of Hypothesis, and `random.Random`.
"""

from types import SimpleNamespace

import numpy as np
import torch

import integrators.noise
from integrators.kernels.launchers import CppLauncher, TritonLauncher
from integrators.kernels.trajectory import Trajectory


class Shift:
    """What is added to seeds, from `install` on; seeds that are none are left to who refuses them."""

    def __init__(self, by: int):
        self.by = by

    def __call__(self, seed, bits=64):
        if type(seed) is int and 0 <= seed < 2**bits:
            return (seed + self.by) % 2**bits
        return seed

    def install(self):
        """Shift the seeds of generators, and of noise where its words are made: in torch, in C++, in Triton."""
        shifted = self

        class Generator(torch.Generator):
            def manual_seed(self, seed):
                return super().manual_seed(shifted(seed))

        class RandomState(np.random.RandomState):
            def __init__(self, seed=None):
                super().__init__(shifted(seed, 32))

        torch.Generator, np.random.RandomState = Generator, RandomState
        manual_seed, default_rng, words = torch.manual_seed, np.random.default_rng, integrators.noise._words
        torch.manual_seed = torch.random.manual_seed = lambda seed: manual_seed(shifted(seed))
        np.random.default_rng = lambda seed=None: default_rng(shifted(seed))
        integrators.noise._words = lambda seed, *where, **at: words(shifted(seed), *where, **at)
        self._of_kernels()

    def _of_kernels(self):
        def of_key(launch):
            def shifted(launcher, segment, key):
                if key is not None:
                    key = SimpleNamespace(seed=self(key.seed), step=key.step, first_chain=key.first_chain)
                return launch(launcher, segment, key)

            return shifted

        def begin(trajectory, __post_init__=Trajectory.__post_init__):
            __post_init__(trajectory)
            trajectory.seed = self(trajectory.seed)

        CppLauncher.__call__ = of_key(CppLauncher.__call__)
        TritonLauncher.launches = of_key(TritonLauncher.launches)
        Trajectory.__post_init__ = begin
