"""Checks of an energy: at the start, finite, no random numbers, periodic, bounded below; at the end, the rise of U/T.

A law of d coordinates whose typical U/T is s above that of a point fills e^s times the volume about the point: each
coordinate ranges over e^(s/d) times its width there. For s = 100 d that is 3e43, beyond the range of float32. Chains
whose U/T has risen further cannot have the law exp(-U/T). The point of comparison is the start of a chain: U falls
while a chain descends to its law.
"""

from dataclasses import dataclass

import numpy as np
import torch
from sympy import pi

from integrators.metropolis import MetropolisedStep
from integrators.step import Step
from integrators.streams import RAY
from recipe import Recipe
from recipe.errors import RecipeError, warn

from ..results.draws import Draws, named
from ..results.findings import told_apart
from ..target.foreign import check_has_value
from ..target.layout import by_block, position_of
from ..target.potential import SLOPE, VALUE, Blocks, Jet, Orders
from ..target.rounding import rounding_error, rounding_of
from ..target.rows import check_rows
from .chains import Chains
from .inputs import Inputs, Rows
from .plan import Plan
from .recording import InMemory

FAR = (100.0, -100.0, 1000.0, -1000.0)  # distances along a ray at which the slope is taken
SAME = 1e-3  # relative change of a gradient, above its rounding error in float32
FARTHEST = 100.0  # rise of U/T per coordinate
BATCHES = 8  # minibatches on which the rise of U is measured
ERRORS = 6.0  # standard errors by which a rise on minibatches is lowered
AWAY = 1000.0  # times 1 + the largest site of the start: a site beyond is far
SHORTEST = 50  # steps of the shortest run whose rise is checked
ENTRIES = 2**27  # entries of a block's draws that are searched for the largest, at most


def check_at_start(
    step: Step, inputs: Inputs, start: Blocks, temperature: float, where: str, *, compares: bool = False
) -> float:
    """Refuse a start where the gradient or U is not finite, and a random energy; warn of the sign of a log-density.

    The energy is evaluated on the first batch of every chain; `temperature`: that of step 0; `compares`: whether
    values of U are compared beside those of steps. Returns the rounding error of U there in units of T, where values
    are compared and it matters; else 0.
    """
    if compares:
        check_has_value(inputs.target.whole, where, "an exchange compares values of U")
    trial = FirstEnergies(step, inputs, {b.name: start[b.name] for b in step.recipe.targets}, where)
    gradient = trial.gradient(trial.start)
    check_rows(inputs.target, position_of(step.recipe, trial.start), where)
    for name, x in gradient.items():
        bad = (~x.reshape(len(x), -1).isfinite().all(1)).nonzero()
        if len(bad):
            raised = "".join(f" ({fault})" for fault in inputs.target.faults)
            what = f"the gradient by {name} is not finite at the start of chain {int(bad[0])}{raised}"
            raise RecipeError(where, what, do="Start elsewhere, or mend the energy there.")
    if not inputs.target.is_symbolic:
        trial.check_repeats(gradient)
    compares = compares or step.program.needs_value
    rounding = 0.0
    if compares or isinstance(step, MetropolisedStep):  # which sums changes of U by site where it has a formula
        rounding = trial.check_value(temperature if compares else None)
    trial.check_periods()
    if trial.falls():
        warn(
            f"{where}: the energy falls without bound away from the start. U is -log density: was a "
            "log-density handed in with the wrong sign?"
        )
    return rounding


@dataclass(frozen=True)
class FirstEnergies:
    """The energy on the first batch of every chain, at `start` and elsewhere."""

    step: Step
    inputs: Inputs
    start: Blocks
    where: str

    @property
    def of_a_chain(self) -> Blocks:
        """The start of the first chain."""
        return {name: x[:1] for name, x in self.start.items()}

    def gradient(self, at: Blocks, rows: Rows = None) -> Blocks:
        """The gradient by block, `(chains, *shape)`; empty where there is none."""
        slope = self._jet(at, SLOPE, rows).slope
        return {} if slope is None else by_block(self.step.recipe, slope)

    def _jet(self, at: Blocks, orders: Orders, rows: Rows = None) -> Jet:
        """The jet on given rows, or the first batch of every chain; of all data where U of these is what accepts."""
        if rows is None and not (orders == VALUE and self.inputs.target.accepts_by_all):
            rows = self.inputs.rows(0, len(next(iter(at.values()))))
        with torch.no_grad():
            return self.inputs.target.at(position_of(self.step.recipe, at), rows, orders)

    def check_repeats(self, gradient: Blocks) -> None:
        """Refuse an energy that has another gradient when it is asked again at the start."""
        for name, repeat in self.gradient(self.start).items():
            change = (repeat - gradient[name]).abs().max()
            if change > SAME * (1 + repeat.abs().max()):
                what = f"the energy has another gradient by {name} each time it is asked: they differ by {change:.3g}"
                do = "Leave random numbers and counters out of it: data= and batch_size= make minibatches."
                raise RecipeError(self.where, what, do=do)

    def check_value(self, temperature: float | None) -> float:
        """Refuse a start where U is not finite, since no proposal would be accepted.

        Warn of a rounded U, whose differences are compared with `temperature`; None where none are taken. Returns its
        rounding error in units of T, 0 where it is small.
        """
        U = self._jet(self.start, VALUE).value
        if U is None:
            return 0.0
        bad = (~U.isfinite()).nonzero()
        if len(bad):
            what = f"U is not finite at the start of chain {int(bad[0])}"
            raise RecipeError(self.where, what, do="Start elsewhere, or mend the energy there.")
        if self.inputs.target.accepts_by_all:
            self._check_scale(U[:1])
        rounding = rounding_of(U, U.dtype, temperature) if temperature is not None else ""
        if not rounding or temperature is None:
            return 0.0
        warn(
            f"{self.where}: at the start {rounding}: proposals and swaps are accepted by differences of U, which "
            "are not exact then. Take a constant from the energy, sum it in float64, or start in float64."
        )
        return rounding_error(U, U.dtype) / temperature if temperature else 0.0

    def _check_scale(self, U: torch.Tensor) -> None:
        """Refuse an energy that is another one on two copies of all data: it has a scale of its own for batches."""
        data = self.inputs.target.data
        assert data is not None
        twice = self._jet(self.of_a_chain, VALUE, torch.arange(data.rows, device=U.device).repeat(2)[None]).value
        if twice is not None and (twice - U).abs() > SAME * (1 + U.abs()):
            what = f"U is {float(U):.6g} on all data, and {float(twice):.6g} on two copies of all: no estimate of one U"
            raise RecipeError(self.where, what, do="Scale by num_data/len(batch), as samplers.posterior does.")

    def check_periods(self) -> None:
        """Refuse an energy whose gradient changes when an angle goes round once."""
        for b in self.step.recipe.targets:
            if not b.domain.wraps:
                continue
            shifted = self.gradient(self.start | {b.name: self.start[b.name] + float(b.domain.width)})
            for name, g in self.gradient(self.start).items():
                change = (shifted[name] - g).abs().max()
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
        rays = {b: self.inputs.key(i).normals(RAY, x) for i, (b, x) in enumerate(self.start.items())}
        slopes = []
        try:
            if all(b.domain.is_compact for b in self.step.recipe.targets):  # no ray goes far
                return False
            with np.errstate(all="ignore"):  # numpy would warn of points far from all chains
                for r in FAR:
                    gradient = self.gradient({b: x + r * rays[b] for b, x in self.start.items()})
                    if not gradient:
                        return False
                    of_blocks = [(r * rays[b] * g).reshape(len(g), -1).sum(1) for b, g in gradient.items()]
                    slopes.append(torch.stack(of_blocks).sum(0))
        except Exception:  # raised by the caller's function
            return False
        finally:
            self.inputs.target.faults.clear()
        return bool((torch.stack(slopes) < -0.5).all())


def flag_risen(
    draws: Draws, recipe: Recipe, inputs: Inputs, start: Blocks, chains: Chains, record: InMemory, plan: Plan
) -> None:
    """Add chains of too large a rise of U/T to `info["diverged"]` of the draws, at the last step, with a warning.

    Runs of at least `SHORTEST` steps at T > 0 are checked, with a symbolic U only where a site is far.
    """
    hottest = max(plan.temperature(0), plan.temperature(plan.length - 1))
    if inputs.target.whole is None or plan.length < SHORTEST or hottest == 0:
        return
    start = {b.name: start[b.name] for b in recipe.targets}
    state = {name: chains.state[name] for name in start}
    if inputs.target.is_symbolic and not any(
        bool(state[name].abs().max() > AWAY * (1 + x.abs().max())) for name, x in start.items()
    ):
        return
    rise = _rise(recipe, inputs, start, [state, _extremes(record, start)]) / hottest
    sites = sum(x[0].numel() for x in start.values())
    flagged = (chains.alive & (rise > FARTHEST * sites)).nonzero().flatten().tolist()
    if flagged:
        cure = "Take a smaller step size, or other starts of what is adapted."
        if rise[flagged].isinf().any():
            cure += " Where the density is 0 no force leads back: take metropolis=True, or a model with constraints."
        risen, bound = told_apart(float(rise[flagged].max()), FARTHEST * sites, digits=3)
        draws.info["diverged"] = draws.info["diverged"] | {str(chain): chains.steps for chain in flagged}
        warn(
            f"{chains.where}: {len(flagged)} of {len(chains)} chains have left every scale of the law, and count as "
            f"diverged: {named(dict.fromkeys(flagged, chains.steps), 'by step')}. U/T has risen by "
            f"{risen}, where no law of {sites} coordinates spreads over more than {bound}. {cure}"
        )


def _rise(recipe: Recipe, inputs: Inputs, start: Blocks, states: list[Blocks]) -> torch.Tensor:
    """The largest rise of U above the start of each chain, over `states`, `(chains,)`.

    On minibatches, equal for all chains, `ERRORS` standard errors are subtracted; a rise that is nan counts as 0.
    """
    number = len(next(iter(start.values())))

    def value(at: Blocks, rows: Rows) -> torch.Tensor:
        return inputs.target.at(position_of(recipe, at), rows, VALUE).value.double()

    batches: list[Rows] = [None]
    if inputs.target.is_minibatched:
        batches = [r.expand(number, -1) for k in range(BATCHES) if (r := inputs.rows(k, 1)) is not None]
    each = []
    with torch.no_grad():
        for rows in batches:
            low = value(start, rows)
            each.append(torch.stack([value(at, rows) - low for at in states]))
    rises = torch.stack(each)  # (batches, states, chains)
    error = rises.std(0) / len(rises) ** 0.5 if len(rises) > 1 else torch.zeros_like(rises[0])
    return (rises.mean(0) - ERRORS * error.nan_to_num(0.0)).nan_to_num(0.0, posinf=torch.inf).max(0).values


def _extremes(record: InMemory, start: Blocks) -> Blocks:
    """The kept state with the largest site of each chain, `(chains, *shape)` by block; the start if none."""
    kept = len(record.step_sizes)
    values = {name: record.values[name][:, :kept] for name in start}
    if not kept or any(x.numel() > ENTRIES for x in values.values()):
        return start
    sizes = torch.stack([x.flatten(2).abs().amax(2) if x.dim() > 2 else x.abs() for x in values.values()])
    largest = sizes.amax(0).argmax(1)
    at = torch.arange(len(largest), device=largest.device)
    return {name: x[at, largest].to(start[name].device) for name, x in values.items()}
