"""A sampler that others wrote, as a function: its signature, its settings and its answers checked."""

import inspect
from time import perf_counter

import numpy as np
import torch

from recipe.errors import RecipeError

FORM = "run(potential, init, *, steps, step_size, temperature, seed) -> theta"


class OutOfTime(Exception):
    """The limit has passed."""


class BlackBox:
    """The function under audit: its answers checked, its runs counted on `bar`; OutOfTime after `limit` seconds from now."""

    def __init__(self, run, name, bar, limit=None):
        self.run, self.where, self.bar, self.limit, self.started = run, f"{name}, audit", bar, limit, perf_counter()
        self.runs = 0

    def __call__(self, law, init, *, time, step_size, temperature, seed):
        steps = max(1, round(time / step_size))
        self.bar.set_postfix_str(f"{law.name}, T = {temperature:g}, {steps} steps of {step_size:g}")
        theta = self.run(
            law.potential, init.clone(), steps=steps, step_size=step_size, temperature=temperature, seed=seed
        )
        self.runs += 1
        self.bar.total = max(self.bar.total, self.runs)
        self.bar.update()
        theta = self._checked(theta, init)
        if self.limit is not None and perf_counter() - self.started > self.limit:
            raise OutOfTime(
                f"{self.runs} runs of {self.bar.total} or more took {perf_counter() - self.started:.0f} s, the limit is "
                f"{self.limit:g} s; the last was {steps} steps on the {law.name}: pass fewer chains, or a higher limit"
            )
        return theta

    def _checked(self, theta, init):
        """The last draws (chains, dim), on the CPU."""
        if isinstance(theta, np.ndarray):
            theta = torch.as_tensor(theta)
        if not torch.is_tensor(theta):
            raise RecipeError(
                self.where, f"it returned {type(theta).__name__}, not a tensor", do="Return theta, (chains, dim)."
            )
        theta = theta[:, -1] if theta.dim() == 3 and theta.shape[1] else theta
        if theta.shape != init.shape:
            raise RecipeError(
                self.where,
                f"it returned the shape {tuple(theta.shape)} for init {tuple(init.shape)}",
                do="Return theta, (chains, dim), or all draws, (chains, steps, dim).",
            )
        if not theta.is_floating_point():
            raise RecipeError(self.where, f"it returned {theta.dtype}", do="Return real numbers.")
        return theta.detach().cpu()


def check_settings(run, step_size, time, chains, temperatures, alpha, seed, limit):
    """Refuse wrong arguments of `audit` before the first run."""
    where = "audit"
    if not callable(run):
        raise RecipeError(where, f"{run!r} is not a function", do=f"Pass {FORM}.")
    try:
        inspect.signature(run).bind(None, None, steps=1, step_size=0.1, temperature=1.0, seed=0)
    except TypeError as error:
        raise RecipeError(where, f"the function cannot be called: {error}", do=f"Write {FORM}.") from error
    except ValueError:  # a builtin without a signature
        pass
    number = lambda x: isinstance(x, (int, float)) and not isinstance(x, bool) and 0 < x < float("inf")
    whole = lambda x, least: isinstance(x, int) and not isinstance(x, bool) and x >= least
    pair = isinstance(temperatures, (tuple, list)) and len(temperatures) == 2 and all(map(number, temperatures))
    for right, what, do in (
        (number(step_size), f"step_size is a number > 0, got {step_size!r}", "Pass step_size=0.1."),
        (
            number(time) and number(step_size) and time >= step_size,
            f"time is a number >= step_size, got {time!r}",
            "Pass time=10.0.",
        ),
        (whole(chains, 400), f"chains is an integer >= 400, got {chains!r}", "Pass chains=32768."),
        (
            pair and temperatures[0] != temperatures[1],
            f"temperatures are two numbers > 0, got {temperatures!r}",
            "Pass temperatures=(0.5, 1.5).",
        ),
        (number(alpha) and alpha < 1, f"alpha is a probability, got {alpha!r}", "Pass alpha=1e-4."),
        (limit is None or number(limit), f"the limit is a number of seconds > 0, got {limit!r}", "Pass limit=600."),
        (whole(seed, 0), f"the seed is an integer >= 0, got {seed!r}", "Pass seed=0."),
    ):
        if not right:
            raise RecipeError(where, what, do=do)
