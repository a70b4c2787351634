"""One sampler of the gallery, and what is found out about it."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from scipy.integrate import quad
from sympy import symbols

import integrators
import samplers
from recipe import Energy, Recipe
from samplers.testing.densities import density

x, y = symbols("x y", real=True)
BANANA = Energy((x, y), U=x**2 / 2 + (y - x**2) ** 2 / 2)
MOMENTS_OF_BANANA = {"theta[0]": (0.0, 1.0), "theta[1]": (1.0, 4.0)}  # E z and E z^2
CHAINS, STANDARD_ERRORS = 256, 4.0
DRAWS = 4000  # that a chain keeps, at most
TOLERANCE, MOST = 0.05, 0.4  # of a standard deviation: what a step may be off, and what draws must tell


@dataclass(frozen=True)
class Exhibit:
    """A recipe with the setting of its run: on the banana, or one site of its own H where that is wholly symbolic.

    `energy`: that of the banana, as the recipe takes it.
    """

    recipe: Recipe
    step_size: float = 0.1
    steps: int = 200_000
    density: Callable[[float], float] | None = None  # of one site, where a quadrature of H has no finite moments
    values: Mapping[str, Any] = field(default_factory=dict)  # of operators, and further arguments of the run
    energy: Any = BANANA
    init: Any = None  # where coordinates are coupled, a point of all

    @property
    def name(self) -> str:
        """That of the recipe."""
        return self.recipe.name

    def examined(self, *, quick: bool = False) -> "Row":
        """Its row of the table; `quick`: with a tenth of the steps."""
        begun = processor_time()
        certificate = self.recipe.check()
        is_accepted = self.recipe.accepted or "proposal" in {f.topic for f in certificate.findings}
        of_step = None if is_accepted else integrators.compile(self.recipe).order
        worst, agrees = self.compared(*self.drawn(self.steps // 10 if quick else self.steps))
        order = "exact" if of_step is None else str(of_step)
        return Row(self.name, certificate["claim"].answer, order, worst, agrees, processor_time() - begun)

    def drawn(self, steps: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Draws by coordinate, and their weights, of mean 1, `(chains, draws)`."""
        thin = max(1, steps // DRAWS)
        arguments = dict(
            chains=CHAINS,
            steps=steps,
            warmup=steps // 4,
            thin=thin,
            step_size=self.step_size,
            progress=False,
            **self.values,
        )
        recipe, targets = self.recipe, [self._seen(b) for b in self.recipe.targets]
        if recipe.potential is None:
            draws = samplers.sample(recipe, init=self._start(1) if self.init is None else self.init, **arguments)
        else:
            draws = samplers.sample(recipe, self.energy, init=self._start(2), **arguments)
        parts = [draws[name] for name in targets]  # of particles, draws of one law
        values = torch.cat(parts, 1) if recipe.targets[0].is_vector else torch.stack(parts, 2)
        weights = torch.ones(values.shape[:2]) if draws.weights is None else draws.weights
        return {f"theta[{k}]": values[:, :, k] for k in range(values.shape[2])}, weights

    def _start(self, sites: int) -> Any:
        targets = self.recipe.targets
        if len(targets) > 1:
            return {b.name: torch.full((sites,) * b.is_vector, float(k * b.is_vector)) for k, b in enumerate(targets)}
        first = self.recipe.maps[targets[0]].theta if self.recipe.maps else targets[0]
        return torch.full((sites,), float(first.domain.start))

    def _seen(self, block: Any) -> str:
        """The name of a block among the draws."""
        return self.recipe.maps[block].theta.name if block in self.recipe.maps else block.name

    def moments(self) -> dict[str, tuple[float, float]]:
        """E z and E z^2 by coordinate: in closed form, or by quadrature of exp(-H) over one site."""
        if self.recipe.potential is not None:
            return MOMENTS_OF_BANANA
        if self.density is not None:
            whole, first, second = (quad(lambda z: z**k * self.density(z), -40, 40, points=[0])[0] for k in range(3))
            return {"theta[0]": (first / whole, second / whole)}
        points, weights = density(self.recipe.H, self.recipe.state)
        theta = points[self.recipe.targets[0]]
        return {"theta[0]": (float(weights @ theta), float(weights @ theta**2))}

    def compared(self, draws: dict[str, torch.Tensor], weights: torch.Tensor | None = None) -> tuple[float, bool]:
        """The largest error of a mean or a variance, in standard deviations; whether chance or the step explain it."""
        worst, agrees = 0.0, True
        w = 1.0 if weights is None else weights.double().numpy()
        for name, (mean, square) in self.moments().items():
            deviation = (square - mean**2) ** 0.5
            z = (draws[name].double().numpy() - mean) / deviation
            for of_chains in ((w * z).mean(1), (w * (z**2 - 1)).mean(1)):
                error = abs(of_chains.mean())
                chance = STANDARD_ERRORS * of_chains.std() / len(of_chains) ** 0.5
                worst = max(worst, float(error))
                agrees &= bool(error <= TOLERANCE + chance < MOST)
        return worst, agrees and np.isfinite(worst)


def processor_time() -> float:
    """Seconds of this process and of those that have compiled for it."""
    return sum(os.times()[:4])


@dataclass(frozen=True)
class Row:
    """What the table says of a sampler; `error` is of a mean or a variance, in standard deviations.

    `seconds`: of the processor, with what compiled the kernels.
    """

    name: str
    claim: str
    order: str
    error: float
    agrees: bool
    seconds: float

    def __str__(self):
        verdict = "agrees" if self.agrees else "WRONG"
        error = f"{self.error:6.3f} {verdict:7}"
        return f"{self.name:28} {self.claim[:30]:30} {self.order:>5}  {error} {self.seconds:6.1f} s"
