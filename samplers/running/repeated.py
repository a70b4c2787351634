"""A run repeated in groups of chains, which differ in the step size or in the noise of minibatches by factors of 2."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from integrators.metropolis import MetropolisedStep
from integrators.step import Step
from integrators.streams import PAIR, SLOPE
from recipe import Recipe
from recipe.errors import RecipeError
from recipe.symbols import step_size

from ..results.averages import Average
from ..results.bar import Bar
from ..results.functional import Functional
from ..results.heat import heat_of
from ..results.kl_divergence import KLDivergence
from ..results.pairs import Pairs, Slopes
from ..target.layout import by_block, position_of
from ..target.potential import Blocks
from .backward_work import Stretches
from .chains import Chains
from .edges import height_of_edge
from .energy_checks import SAME
from .inputs import Inputs, OfStep
from .level import Level
from .plan import Plan

SETTLED = 4.0  # standard errors by which two halves of a settled run may differ
SPREAD = 16  # draws of a chain by which the spread of all is measured, about
NUMBER = {"coarse": 1, "fine": 2, "finest": 4}  # steps in the time h


@dataclass(frozen=True)
class PairedRun:
    """A finished run that can be repeated in pairs, for `Draws.accuracy` and `Draws.report`.

    `state`: the last state of its chains by block; `compiled(recipe)` compiles its step for another recipe, and
    `stepped` its step with work, None where there is none; `shown`: whether the run had a progress bar; `exchanges`:
    whether its chains swapped states with other temperatures.
    """

    plan: Plan
    inputs: Inputs
    recipe: Recipe
    state: Blocks
    compiled: Callable[..., Step]
    stepped: Callable[..., Step] | None
    backend: str
    where: str
    shown: bool
    exchanges: bool

    @cached_property
    def stage(self) -> Any:
        """The first stage that keeps draws."""
        return self.plan.kept_stages[0]

    @property
    def order(self) -> int | None:
        """The order of the bias in the step size; None where the step is exact."""
        return None if isinstance(self.stage.step, MetropolisedStep) else self.stage.step.marginal_order

    @property
    def has_batches(self) -> bool:
        """Whether gradients are of minibatches, and steps are not accepted."""
        return self.inputs.target.is_minibatched and self.order is not None

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the target in the draws."""
        if self.inputs.layout.shapes is not None:
            return tuple(self.inputs.layout.shapes)
        return tuple(b.name for b in self.recipe.targets)

    @property
    def by_name(self) -> bool:
        """Whether energies take a dict of the target by name."""
        return self.inputs.layout.shapes is not None

    def advice(self) -> dict[str, str]:
        """Advice on a smaller bias of the step and of the minibatches, by the key "step" or "minibatches"."""
        batches = (
            "Take larger batches or a smaller step size, to both of which it is proportional, or "
            "samplers.control_variate."
        )
        if any(self.recipe.supplied):
            batches += " Or give the recipe the noise that it supplies: samplers.gradient_variance has V_g."
        less = f"Take a smaller step size: it goes as h^{self.order}."
        word = self.stage.step.scheme
        if self.order == 1 and not word.is_palindrome:
            less = f"Take a symmetric word, '{word.mirrored}' say: the bias goes as h^1 now."
        return {
            "step": less if self.has_batches else f"{less} Or accept and reject, by metropolis=True.",
            "minibatches": batches,
        }

    def check(self) -> None:
        """Refuse a run whose law changes in time, or whose biases of step and minibatches are not separable."""
        for what, advice in self._refusals():
            raise RecipeError(f"{self.where}, accuracy", what, do=advice)

    def _refusals(self) -> Iterator[tuple[str, str]]:
        """Yields the faults of the run, each with advice."""
        if self.exchanges and self.order is not None:
            what = "its chains swapped states with hotter ones, whose biases come down with them: pairs would not"
            yield what, "Compare with a run at half the step size."
        settings = [(stage.temperature.value, stage.step.frozen) for stage in self.plan.kept_stages]
        sizes = [stage.step_size.value for stage in self.plan.kept_stages]
        changes = len(set(settings)) > 1 or callable(settings[0][0])
        if changes or (self.order is not None and (len(set(sizes)) > 1 or callable(sizes[0]))):
            what = "step size, temperature or what is frozen changed while draws were kept: they have no one law"
            yield what, "Keep the draws of one phase of constant settings."
        if any(stage.parameters for stage in self.plan.kept_stages):
            what = "a phase whose draws are kept has parameters of its own"
            yield what, "Keep the draws of a phase of the parameters of the run."
        if settings[0][0] == 0:
            yield "at temperature 0 there is no law", "Sample at a temperature > 0."
        step = self.stage.step
        moving = [a.name for a in step.declared.adapted if a.name not in step.frozen]
        if moving:
            what = f"the adaptation of {', '.join(moving)} goes on: its bias does not vanish with the step size"
            yield what, f'Burn in, and hold it still in the phase whose draws are kept: freeze=("{moving[0]}",).'
        by_step = self.recipe.supplied.has(step_size)
        if self._supplies() and self.has_batches and by_step:
            what = (
                "the noise that the recipe takes as supplied depends on the step size, so that the bias of the step "
                "and that of the minibatches are not told apart"
            )
            yield what, "Compare with a run at half the step size, or of twice the batch_size."
        if self._supplies() and not self.has_batches and not by_step:
            what = "the recipe takes noise as supplied by minibatches, but there are none: the draws are too cold"
            yield what, "Leave out the parameters of `supplied`, or give batch_size."

    def _supplies(self) -> bool:
        """Whether `supplied` of the recipe is not zero at the parameters of the run."""
        names = {s: self.inputs.parameters.get(s.name, s.default) for s in self.recipe.parameters}
        values = {s: float(x.abs().max()) if torch.is_tensor(x) else x for s, x in names.items() if x is not None}
        return any(e.xreplace(values) != 0 for e in self.recipe.supplied)

    def slopes(self, draws: Mapping[str, torch.Tensor]) -> Slopes | str:
        """Positions and grad U at `draws`, on one batch or on two independent minibatches; else the reason for none."""
        if self.inputs.target.whole is None:
            return "H is wholly symbolic"
        if not self.plan.kept_temperature > 0:
            return "the draws have no one temperature > 0"
        if any(not (b.domain.is_real or b.domain.is_sphere) for b in self.recipe.targets):
            return "the target has a domain with ends"
        like = draws[self.targets[0]]
        batches = range(2 if self.has_batches else 1)
        places: list[Blocks] = []
        slopes: list[list[Blocks]] = [[] for _ in batches]
        for k in range(like.shape[1]):
            target = self._target({name: draws[name][:, k] for name in self.targets})
            places.append(self._parts(target))
            for batch in batches:
                rows = self.inputs.rows(SLOPE[k], len(like), batch)
                slope = self.inputs.target.eager.at(position_of(self.recipe, target), rows).slope
                slopes[batch].append(self._parts(by_block(self.recipe, slope)))
        return {name: (_stacked(places, name), [_stacked(each, name) for each in slopes]) for name in places[0]}

    def height_of_edge(self, draws: Mapping[str, torch.Tensor], places: Sequence[Sequence[int]]) -> float | None:
        """The height of an edge near some draws, by chain and number, as by `edges.height_of_edge`."""
        chains, numbers = zip(*places)
        every = max(1, next(iter(draws.values())).shape[1] // SPREAD)
        near, all_over = (
            self._target({name: at(draws[name]) for name in self.targets})
            for at in (lambda x: x[list(chains), list(numbers)], lambda x: x[:, ::every].flatten(0, 1))
        )
        return height_of_edge(self.recipe, self.inputs, near, all_over, self.plan.kept_temperature)

    def counts_rows(self) -> bool:
        """Whether U is another one on a minibatch with each row twice, as a sum over rows times a constant is.

        Errors of the energy count as no answer: it may be written for batches of one size.
        """
        rows = self.inputs.rows(0, 1)
        first = {b.name: self.state[b.name][:1] for b in self.recipe.targets}
        if rows is None:
            return False
        try:
            position = position_of(self.recipe, first)
            once, twice = (self.inputs.target.eager.at(position, r).slope for r in (rows, rows.repeat(1, 2)))
        except Exception:  # raised by the caller's function
            return False
        pairs = zip(by_block(self.recipe, once).values(), by_block(self.recipe, twice).values(), strict=True)
        return any(bool(((b - a).abs() > SAME * (1 + a.abs())).any()) for a, b in pairs)

    def _parts(self, target: Blocks) -> Blocks:
        """Values in the form of the target, by the names of the draws; by block where the run has coordinates."""
        return target if self.inputs.layout.coordinates is not None else self._named(target)

    def _target(self, theta: Mapping[str, torch.Tensor]) -> Blocks:
        """The target of all chains by block, on their device, from values by the names of the draws."""
        layout = self.inputs.layout
        device = self.state[self.recipe.targets[0].name].device
        theta = {name: x.to(device) for name, x in theta.items()}
        if layout.shapes is not None:
            parts = [x.reshape(len(x), -1) for x in theta.values()]
            theta = {self.recipe.targets[0].name: torch.cat(parts, -1)}
        return {name: layout.z(x) for name, x in theta.items()}

    def heat(self, variance: Average) -> Average | str:
        """The heating of the target by gradients of this variance; or the reason why it is unknown."""
        return heat_of(self.recipe, self.inputs.parameters, self.stage.step_size(0), variance)

    @torch.no_grad()
    def pairs(
        self, start: Blocks, *, warmup: int, steps: int, most: int, of: Functional | None = None, progress: bool = False
    ) -> Pairs:
        """Pairs of chains from states of `start_at`: `warmup` steps, then `steps` steps.

        Until the averages have settled, and within `most` steps, all steps so far become warmup and as many follow.
        The averages are of the target, or `of` a function of it; `progress` shows a bar.

        A step has the noise and the batches of its shorter steps: normals (x + x')/sqrt 2, and the mean of the
        gradients. On minibatches there are steps of h and h/2, whose noise of minibatches in a unit of time is the
        same, half of the run's; else of h/4 too.
        """
        levels = self._levels(start, of)
        shortest = 4 if "finest" in levels else 2
        numbers = PAIR[: shortest * (most + warmup + steps)]
        reads = self.inputs.of_steps(self.stage.step, numbers, start[self.recipe.targets[0].name], keyed=False)
        with Bar(f"{self.recipe.name}, pairs", warmup + steps, shown=progress) as bar:
            moves = self._moves(levels, zip(*[reads] * shortest, strict=True), bar)
            for _ in range(warmup):
                next(moves)
            while True:
                settled = _look(levels, moves, steps)
                if settled or warmup + 3 * steps > most:
                    return self._moments(levels, of, warmup, steps, settled)
                warmup += steps
                steps = warmup
                bar.total = warmup + steps

    @torch.no_grad()
    def divergence(self, start: Blocks, *, steps: int, most: int, progress: bool = False) -> KLDivergence:
        """The KL between the law of the draws and exp(-H/T), by the work of stretches from states of `start_at`."""
        if self.order is None:
            return KLDivergence(None, 0.0, reason="steps were accepted or rejected, which leaves exp(-H/T) as it is")
        if self.has_batches:
            return KLDivergence(None, 0.0, reason="a step on minibatches has no work")
        stage = self.stage
        if self.stepped is None:
            return KLDivergence(None, 0.0, reason=f"there is no work of one {stage.step.program.scope}")
        try:
            with Bar(f"{self.recipe.name}, divergence", 0, shown=progress) as bar:
                of_run = self.stepped, stage, self.inputs, self.backend, f"{self.where}, accuracy"
                return Stretches(*of_run, start, bar).settle(steps, most)
        except RecipeError as error:
            return KLDivergence(None, 0.0, reason=error.what)

    def _levels(self, start: Blocks, of: Functional | None) -> dict[str, Level]:
        """The levels at their start, by kind: "coarse", "fine", "finest", "one" and "other"."""
        quiet = of_run = self.stage.step
        if self.has_batches and self._supplies():
            halved = replace(self.recipe, supplied=self.recipe.supplied / 2)
            quiet = self.compiled(halved, freeze=of_run.frozen)
        h = self.stage.step_size(0)
        kinds = {"coarse": (quiet, h)}
        if self.order is not None:
            kinds["fine"] = (quiet, h / 2)
        if self.has_batches:
            kinds |= {"one": (of_run, h), "other": (of_run, h)}
        elif self.order is not None:
            kinds["finest"] = (quiet, h / 4)
        layout, T = self.inputs.layout, self.stage.temperature(0)

        def seen(state: Blocks) -> Blocks:
            theta = {b.name: layout.theta(state[b.name]) for b in self.recipe.targets}
            return theta if of is None else of.at(self._named(theta))

        levels = {}
        for name, (step, size) in kinds.items():
            chains = Chains(self.recipe, dict(start), f"{self.where}, accuracy")
            levels[name] = Level(step, size, T, self.inputs, chains, seen)
        return levels

    def _moves(self, levels: Mapping[str, Level], parts: Iterator[tuple[OfStep, ...]], bar: Bar) -> Iterator[None]:
        """Makes one step of h at every level at each iteration, or the shorter steps of the same time."""
        for k, part in enumerate(parts):
            for name, number in NUMBER.items():
                if name in levels:
                    size = len(part) // number
                    for i in range(number):
                        steps = part[i * size : (i + 1) * size]
                        sources = steps if self.has_batches else steps[:1]
                        levels[name].move(number * k + i, self._noise(steps), *sources)
            if "one" in levels:
                noise = self._noise(part)
                levels["one"].move(k, noise, part[0])
                levels["other"].move(k, noise, part[1])
            bar.update()
            yield

    def _noise(self, parts: Sequence[OfStep]) -> dict[str, Any]:
        """The noise of a step from that of its shorter steps."""
        kinds = self.stage.step.draws
        return {name: _joined(kinds[name], [part.noise[name] for part in parts]) for name in parts[0].noise}

    def _moments(
        self, levels: Mapping[str, Level], of: Functional | None, warmup: int, steps: int, settled: bool
    ) -> Pairs:
        alive = _alive(levels)
        lost = int((~alive).sum())
        if len(alive) - lost < 2:
            what = f"{lost} of {len(alive)} pairs are lost"
            raise RecipeError(f"{self.where}, accuracy", what, do="Take a smaller step size.")
        named = self._named if of is None else dict
        moments = {name: level.moments(alive, named) for name, level in levels.items()}
        centre = named(levels["coarse"].centre)
        return Pairs(len(alive) - lost, lost, warmup, steps, settled, centre, moments)

    def start_at(self, draws: Mapping[str, torch.Tensor], chain: torch.Tensor, draw: torch.Tensor) -> Blocks:
        """All blocks at draws `draw` of chains `chain`: the target there, others at the last state of the chains."""
        start = {b.name: self.state[b.name][chain] for b in self.recipe.entries}
        return start | self._target({name: draws[name][chain, draw].clone() for name in self.targets})

    def _named(self, blocks: Blocks) -> Blocks:
        if self.inputs.layout.shapes is None:
            return blocks
        return self.inputs.layout.by_name(blocks[self.recipe.targets[0].name])


def _stacked(each: list[Blocks], name: str) -> torch.Tensor:
    return torch.stack([blocks[name].to(torch.float64) for blocks in each], 1)


def _joined(kind: str, numbers: list[Any]) -> Any:
    """The random number of a step, from those of n shorter steps: their sum over sqrt n for normals, else the first."""
    return sum(numbers) / len(numbers) ** 0.5 if kind == "normal" else numbers[0]


def _look(levels: Mapping[str, Level], moves: Iterator[None], steps: int) -> bool:
    """Average over `steps` steps; returns whether the two halves agree, for every block of every level."""
    halves = []
    for level in levels.values():
        level.forget()
    for number in (steps // 2, steps - steps // 2):
        before = [level.of_blocks for level in levels.values()]
        for _ in range(number):
            next(moves)
            for level in levels.values():
                level.look()
        halves.append([(level.of_blocks - x) / number for level, x in zip(levels.values(), before)])
    alive = _alive(levels)
    return all(_agree((one - other)[alive]) for one, other in zip(*halves))


def _alive(levels: Mapping[str, Level]) -> torch.Tensor:
    """True for each pair without a lost chain, `(chains,)`."""
    return torch.stack([level.chains.alive for level in levels.values()]).all(0)


def _agree(difference: torch.Tensor) -> bool:
    """Whether the means over chains of differences, `(chains, number)`, are 0 up to their standard errors."""
    error = difference.std(0) / len(difference) ** 0.5
    return bool((difference.mean(0).abs() <= SETTLED * error).all())
