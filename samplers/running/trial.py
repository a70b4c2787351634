"""A trial of the energy and its gradient before the first step: finite, periodic in angles, and bounded below."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from sympy import pi

from integrators.step import Step
from integrators.streams import RAY
from recipe.errors import RecipeError, warn

from ..target.layout import position_of
from ..target.potential import SLOPE, VALUE, Jet, Orders
from .inputs import Inputs

FAR = (100.0, -100.0, 1000.0, -1000.0)  # distances along a ray at which the slope is taken
ROUNDED = 0.05  # times T: a larger rounding error of U changes the law
SAME = 1e-3  # relative change of a gradient, above its rounding error in float32

Blocks = dict[str, torch.Tensor]  # the target by block, `(chains, *shape)`


@dataclass(frozen=True)
class Trial:
    """The gradient on the first batch of every chain, at `start` and elsewhere; `temperature`: that of step 0."""

    step: Step
    inputs: Inputs
    start: Mapping[str, torch.Tensor]
    where: str
    temperature: float = 1.0

    def gradient(self, at: Blocks) -> Blocks:
        """The gradient by block, `(chains, *shape)`; empty where there is none."""
        slope = self._jet(at, SLOPE).slope
        if slope is None:
            return {}
        return slope if isinstance(slope, dict) else {self.step.recipe.targets[0].name: slope}

    def _jet(self, at: Blocks, orders: Orders) -> Jet:
        """U and its derivatives on the first batch of every chain."""
        evaluations = self.inputs.evaluations(0, len(next(iter(at.values()))))
        with torch.no_grad():
            return self.inputs.target.at(position_of(self.step.recipe, at), evaluations.first[0], orders)

    def check(self) -> None:
        """Refuse a start where the gradient or U is not finite; warn of an energy with the sign of a log-density."""
        for name, x in self.gradient(self._target()).items():
            bad = (~x.reshape(len(x), -1).isfinite().all(1)).nonzero()
            if len(bad):
                raised = "".join(f" ({fault})" for fault in self.inputs.target.faults)
                raise RecipeError(
                    self.where,
                    f"the gradient by {name} is not finite at the start of chain {int(bad[0])}{raised}",
                    do="Start elsewhere, or mend the energy there.",
                )
        self._check_value()
        self._check_periods()
        if self.falls():
            warn(
                f"{self.where}: the energy falls without bound away from the start. U is -log density: was a "
                "log-density handed in with the wrong sign?"
            )

    def _check_value(self) -> None:
        """Refuse a start where a step needs U and U is not finite: no proposal would be accepted."""
        if not self.step.program.needs_value:
            return
        U = self._jet(self._target(), VALUE).value
        if U is None:
            return
        bad = (~U.isfinite()).nonzero()
        if len(bad):
            what = f"U is not finite at the start of chain {int(bad[0])}"
            raise RecipeError(self.where, what, do="Start elsewhere, or mend the energy there.")
        rounding = float(U.abs().max()) * torch.finfo(U.dtype).eps
        if rounding > ROUNDED * self.temperature:
            warn(
                f"{self.where}: U is {float(U.abs().max()):.3g} at the start, and rounded to {rounding:.1g} in "
                f"{str(U.dtype).removeprefix('torch.')}: steps are accepted by differences of U, which are not exact "
                "then. Take a constant from the energy, or start in float64."
            )

    def _check_periods(self) -> None:
        """Refuse an energy whose gradient changes when an angle goes round once."""
        target = self._target()
        for b in self.step.recipe.targets:
            if not b.domain.wraps:
                continue
            round_once = target | {b.name: target[b.name] + float(b.domain.width)}
            for name, g in self.gradient(target).items():
                change = (self.gradient(round_once)[name] - g).abs().max()
                if change > SAME * (1 + g.abs().max()):
                    raise RecipeError(
                        self.where,
                        f"the energy is not periodic in {b}: its gradient by {name} changes by {float(change):.3g} "
                        f"when {b} goes round once, by {b.domain.width}",
                        do=f"Use functions of that period, such as torch.cos({2 * pi / b.domain.width * b}).",
                    )

    def falls(self) -> bool:
        """Whether the energy falls far from the start of every chain, along a random ray and the opposite ray.

        Errors of the energy give False: chains need not get that far.
        """
        try:
            with np.errstate(all="ignore"):  # numpy would warn of points far from all chains
                return self._falls()
        except Exception:  # raised by the caller's function
            return False
        finally:
            self.inputs.target.faults.clear()

    def _falls(self) -> bool:
        at = self._target()
        if all(b.domain.is_compact for b in self.step.recipe.targets):  # no ray goes far
            return False
        rays = {b: self.inputs.key(i).normals(RAY, x) for i, (b, x) in enumerate(at.items())}
        slopes = []
        for r in FAR:
            gradient = self.gradient({b: x + r * rays[b] for b, x in at.items()})
            if not gradient:
                return False
            of_blocks = [(r * rays[b] * g).reshape(len(g), -1).sum(1) for b, g in gradient.items()]
            slopes.append(torch.stack(of_blocks).sum(0))
        return bool((torch.stack(slopes) < -0.5).all())

    def _target(self) -> Blocks:
        return {b.name: self.start[b.name] for b in self.step.recipe.targets}
