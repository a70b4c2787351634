"""A run: moves chains through a plan and records the kept states."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from integrators import operators
from integrators.adapting import constant
from integrators.metropolis import MetropolisedStep
from recipe.errors import RecipeError, warn

from ..results.draws import Draws
from ..results.geometry import DIVERGENT
from .chains import Chains, Diverged
from .drive import Kernel, Stop, drive
from .inputs import Inputs
from .interrupts import until_interrupted
from .parallel_tempering import Rungs
from .plan import Plan
from .recording import InMemory
from .repeated import PairedRun
from .watching import Progress
from .weighing import log_weights


@dataclass(frozen=True)
class Run:
    """A run before its first step; `metadata`: the caller's settings for `draws.info`.

    `rerun(inputs=, state=, exchanges=)` makes the `PairedRun` by which the run is repeated in pairs.
    """

    plan: Plan
    inputs: Inputs
    chains: Chains
    kernel: Kernel
    stops: Sequence[Stop]
    record: InMemory
    metadata: Mapping[str, Any]
    rerun: Callable[..., PairedRun]

    def go(self, progress: bool | Callable) -> Draws:
        """Move the chains to the end of the plan, or until Ctrl-C; returns the draws.

        Raises Diverged, with the draws so far, where every chain is lost.
        """
        began = time.monotonic()
        record = self.record
        shown = Progress(self.plan, self.chains, record, inputs=self.inputs, progress=progress)
        with record, until_interrupted() as interrupted, shown:
            record.resume(self.chains)
            if self.chains.steps > self.plan.length:
                what = f"the folder holds {self.chains.steps} of {self.plan.length} steps"
                raise RecipeError(self.chains.where, what, do="Choose another folder.")
            shown.update(self.chains.steps)
            try:
                for moves in drive(self.plan, self.chains, self.kernel, self.stops):
                    record.take(moves)
                    shown.update(moves.steps)
                    if interrupted():
                        warn(f"{self.chains.where}: stopped after {self.chains.steps} of {self.plan.length} steps")
                        break
                    record.save(self.chains)
            except Diverged as error:
                error.draws = self._draws(began) if record.step_sizes else None
                self._warn_of_faults()
                raise
            record.save(self.chains, now=True)
            steps = self.plan.since_stage(self.chains.steps)
            for message in self.chains.concerns() + self.chains.stuck(steps, self.plan.step.scheme):
                warn(message)
            self._warn_of_faults()
            draws = self._draws(began)
            shown.end(draws.info["report"])
            return draws

    def _warn_of_faults(self) -> None:
        """Warn of errors of a torch energy at states of the run, where U counts as not finite."""
        faults = self.inputs.target.faults
        if faults:
            warn(
                f"{self.chains.where}: the energy raised an error at some states, which count as ones where U is not "
                f"finite: {'; '.join(faults)}"
            )

    def _draws(self, began: float) -> Draws:
        """The draws so far, with the record of the run in `info`."""
        recipe = self.chains.recipe
        names = {z.name: map.theta.name for z, map in recipe.maps.items()}
        targets = [b.name for b in recipe.targets]
        values: dict[str, Any] = {}
        auxiliary: dict[str, Any] = {}  # blocks that are no target
        kept = self.record.draws()
        for name, x in kept.items():
            theta = self.inputs.layout.seen(x) if name in targets else x
            kind = values if name in targets else auxiliary
            kind |= theta if isinstance(theta, dict) else {names.get(name, name): theta}
        rerun = self.rerun(
            inputs=replace(self.inputs, parameters=constant(self.inputs.parameters)),
            state={b.name: self.chains.state[b.name] for b in recipe.entries},
            exchanges=isinstance(self.chains, Rungs),
        )
        weighs = self.plan.varies and not isinstance(self.plan.step, MetropolisedStep)  # exact draws weigh equally
        sizes = self.record.step_sizes if weighs else None
        draws = Draws(
            values | auxiliary,
            info=self._account(began, None if names else self._edge(values, rerun))
            | ({"targets": list(values)} if auxiliary else {}),
            step_sizes=sizes,
            log_weights=log_weights(self.chains, kept, rerun.inputs, self.plan.kept_temperature),
            again=None if names else rerun,
        )
        draws.info["report"] = draws.report(evaluations=0).verdict
        return draws

    def _edge(self, values: Mapping[str, Any], rerun: PairedRun) -> float | None:
        """The height of an edge that proposals went past; None where there is none."""
        places = self.record.gauges.proposals.endless()
        height = rerun.height_of_edge(values, places) if places else None
        return None if height is None or height > DIVERGENT else height

    def _account(self, began: float, edge: float | None) -> dict[str, Any]:
        """The record of the run for `draws.info`: plain data; `edge`: the height of one that proposals went past."""
        data = self.inputs.target.data
        settings = {name: self.metadata[name] for name in ("step_size", "temperature")}
        account = {
            "recipe": self.chains.recipe.name,
            "scheme": str(self.plan.step.scheme),
            **{name: x if isinstance(x, (int, float)) else repr(x) for name, x in settings.items()},
            "steps": self.plan.length - self.plan.warmup,
            "warmup": self.plan.warmup,
            "thin": self.plan.thin,
            "seed": self.inputs.seed,
            "law": self.metadata["law"],
            "batch_size": None if data is None else data.batch_size,
            "seconds": round(time.monotonic() - began, 3),
            "parameters": {name: _plain(x) for name, x in self.inputs.parameters.items()},
            **self.chains.account(),
            "backend": self.kernel.backend,
            "backend_reason": "; ".join(x for x in (self.metadata["backend_reason"], self.inputs.target.by_tape) if x),
        }
        if isinstance(self.plan.step, MetropolisedStep):
            account["repeat"] = self.plan.step.repeat
        if self.inputs.layout.coordinates is not None:
            account["coordinates"] = str(self.inputs.layout.coordinates)
        if self.inputs.layout.shapes is not None:
            account["by_name"] = True
        if self.metadata["phases"] is not None:
            account["phases"] = [repr(stage.phase) for stage in self.plan.stages]
        if self.metadata["rounding"]:
            account["rounding"] = self.metadata["rounding"]
        if self.metadata["centred"]:
            account["centred"] = self.metadata["centred"]
        account |= self.record.gauges.proposals.account(edge)
        averages = self.record.gauges.account(self.chains)
        if averages:
            account["averages"] = averages
        acceptance = self.chains.acceptance(self.plan.since_stage(self.chains.steps))
        if acceptance is not None:
            account["acceptance"] = acceptance.tolist()
        if self.chains.steps < self.plan.length:
            account["stopped_after"] = self.chains.steps
        return account


def _plain(x: Any) -> Any:
    """A parameter as a number or nested lists of numbers; an operator as its repr."""
    if isinstance(x, (operators.Operator, operators.Field)):
        return repr(x)
    return float(x) if isinstance(x, (int, float)) else x.tolist()
