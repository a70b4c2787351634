"""A sampler that others wrote, as a function: its answers checked, its runs counted and timed."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import torch

from recipe.errors import RecipeError

from ...running.interrupts import ended_by_interrupt
from .laws import Law


class OutOfTime(Exception):
    """The time limit of an audit has passed."""


class BlackBox:
    """The function under audit: its answers checked, its runs counted on `bar`.

    Raises OutOfTime after the first run that ends more than `limit` seconds from now, and RecipeError where the
    function returns anything but theta, (chains, dim) or (chains, steps, dim).
    """

    def __init__(self, run: Callable, name: str, bar: Any, limit: float | None = None):
        self.run = run
        self.where = f"{name}, audit"
        self.bar = bar
        self.limit = limit
        self.started = perf_counter()
        self.runs = 0

    def __call__(
        self, law: Law, init: torch.Tensor, *, time: float, step_size: float, temperature: float, seed: int
    ) -> torch.Tensor:
        """Runs chains from `init`, (chains, dim), and returns their last draws, (chains, dim)."""
        steps = max(1, round(time / step_size))
        self.bar.set_postfix_str(f"{law.name}, T = {temperature:g}, {steps} steps of {step_size:g}")
        with ended_by_interrupt():  # samplers.sample would return its draws so far
            theta = self.run(
                law.potential, init.clone(), steps=steps, step_size=step_size, temperature=temperature, seed=seed
            )
        self.runs += 1
        self.bar.total = max(self.bar.total, self.runs)
        self.bar.update()
        theta = self._checked(theta, init)
        passed = perf_counter() - self.started
        if self.limit is not None and passed > self.limit:
            raise OutOfTime(
                f"{self.runs} runs of {self.bar.total} or more took {passed:.0f} s, the limit is {self.limit:g} s; "
                f"the last was {steps} steps on the {law.name}: pass fewer chains, or a higher limit"
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
