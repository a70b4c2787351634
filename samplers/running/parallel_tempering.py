"""Parallel tempering: chains at several temperatures side by side, which exchange their states.

Every temperature is a rung, a group of chains with a kernel; every `every` steps chain i of a rung and chain i of the
next rung attempt to swap states. Chains at high temperatures cross barriers; the draws are of the first temperature.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch

from integrators import streams
from integrators.exchange import Exchange
from integrators.requirements import check_one_potential
from recipe.arguments import integer, is_number
from recipe.errors import RecipeError

from ..target.layout import position_of
from ..target.potential import VALUE, Blocks
from .chains import Chains, without_prefix
from .choice import kernel_for
from .drive import Kernel, Moves
from .inputs import Inputs
from .plan import Plan, Setting, Stage
from .start import whole_state

SEEN = 1000  # steps in one call of advance, at most
RUNG = "rung "
LOW = 0.05  # a rate of exchange below which temperatures are too far apart


@dataclass(frozen=True, init=False)
class Ladder:
    """Rising temperatures of chains side by side, for `sample(temperature=...)`; the draws are those of the first.

    Every `swap_every` steps chains of neighbouring temperatures attempt to exchange their states. Raises RecipeError
    for fewer than two temperatures, and for temperatures that do not rise or are not > 0.

    >>> Ladder(1, 2, 4)
    Ladder(temperatures=(1.0, 2.0, 4.0), swap_every=10)
    """

    temperatures: tuple[float, ...]
    swap_every: int

    def __init__(self, *temperatures: float, swap_every: int = 10) -> None:
        where = "Ladder"
        values = [float(T) for T in temperatures if is_number(T) or torch.is_tensor(T)]
        if len(values) != len(temperatures) or len(values) < 2:
            what = f"temperatures are two numbers or more, got {list(temperatures)!r}"
            raise RecipeError(where, what, do="Pass Ladder(1, 2, 4), say, or temperature=1.0 for one.")
        if not all(0 < T < float("inf") for T in values) or any(a >= b for a, b in pairwise(values)):
            what = f"temperatures are > 0 and rise, got {list(temperatures)!r}"
            raise RecipeError(where, what, do="Put the one of the draws first, as in Ladder(1, 2, 4).")
        limit = 2**32 // streams.RUNG
        integer(where, "temperatures", len(values), most=limit, what=f"{len(values)} temperatures are too many")
        object.__setattr__(self, "temperatures", tuple(values))
        object.__setattr__(self, "swap_every", integer(where, "swap_every", swap_every, least=1))

    def plans(self, plan: Plan, batch_size: Any, stop: int, where: str) -> list[Plan]:
        """The plan at each temperature; `stop`: the number after the last chain's.

        Raises RecipeError for minibatches, a frozen target, scope "tensor", and chain numbers beyond those of a rung.
        """
        check_one_potential(plan.step.recipe, f"{where}, temperature")
        if plan.has_parameters or any(stage.phase.temperature is not None for stage in plan.stages):
            setting = "parameters" if plan.has_parameters else "a temperature"
            what = f"a phase has {setting} of its own, and there are several temperatures side by side"
            raise RecipeError(where, what, do="Leave it out of the phases, or sample at one temperature.")
        if batch_size is not None:
            what = "an exchange compares U, of which a minibatch has an estimate only"
            raise RecipeError(where, what, do="Drop batch_size=, or run at one temperature.")
        if plan.step.program.scope != "chain":
            raise RecipeError(where, "an exchange is of whole chains, not of their tensors", do="Use scope='chain'.")
        targets = [b.name for b in plan.step.recipe.targets]
        still = [name for stage in plan.stages for name in stage.step.frozen if name in targets]
        if still:
            what = f"{still[0]} is held still, and an exchange moves the whole target"
            raise RecipeError(where, what, do="Let it move, or sample at one temperature.")
        integer(where, "the last chain", stop, most=streams.RUNG, do="Noise has so many for each temperature.")
        return [replace(plan, stages=tuple(_at(stage, T) for stage in plan.stages)) for T in self.temperatures]


def ladder_of(temperature: Any) -> Ladder | None:
    """The ladder of `temperature=`; None for one temperature.

    >>> ladder_of([1, 2, 4]) == Ladder(1, 2, 4), ladder_of(1.0)
    (True, None)
    """
    if isinstance(temperature, Sequence) and not isinstance(temperature, str):
        return Ladder(*temperature)
    if torch.is_tensor(temperature) and temperature.dim():
        return Ladder(*temperature.tolist())
    return temperature if isinstance(temperature, Ladder) else None


class Rungs(Chains):
    """The chains of the first temperature, with those of the `hotter` ones, and the counts of exchanges.

    `offered`, `accepted`: for each pair of neighbours, the attempts of all chains, and those that succeeded.
    """

    def __init__(self, ladder: Ladder, plan: Plan, states: Sequence[dict[str, Any]], where: str) -> None:
        recipe = plan.step.recipe
        super().__init__(recipe, states[0], where)
        self.ladder = ladder
        starts = zip(states[1:], ladder.temperatures[1:])
        self.hotter = [Chains(recipe, state, f"{where}, temperature {T:g}") for state, T in starts]
        self.offered = [0] * len(self.hotter)
        self.accepted = [0] * len(self.hotter)

    @property
    def all(self) -> list[Chains]:
        """The chains of every rung, the first one included."""
        return [self, *self.hotter]

    @property
    def rates(self) -> list[float]:
        """The fraction of attempts that succeeded, for each pair of neighbours."""
        return [accepted / max(offered, 1) for accepted, offered in zip(self.accepted, self.offered)]

    def account(self) -> dict[str, Any]:
        """The record of the chains for `draws.info`, with temperatures and rates of exchange."""
        return super().account() | {"temperatures": list(self.ladder.temperatures), "swaps": self.rates}

    def concerns(self) -> list[str]:
        """Warnings for the caller: lost chains, and temperatures too far apart."""
        concerns = super().concerns()
        for chains in self.hotter:
            concerns += chains.concerns()
        pairs = zip(pairwise(self.ladder.temperatures), self.rates, self.offered)
        concerns += [
            f"{self.where}: chains at T = {low:g} and {high:g} have exchanged in {rate:.1%} of the attempts: put "
            "temperatures between them"
            for (low, high), rate, offered in pairs
            if offered and rate < LOW
        ]
        return concerns

    def snapshot(self) -> tuple[dict[str, torch.Tensor], dict]:
        """Tensors and plain data of all rungs."""
        tensors, account = super().snapshot()
        accounts = []
        for r, chains in enumerate(self.hotter):
            parts, plain = chains.snapshot()
            tensors |= {_name(r, name): x for name, x in parts.items()}
            accounts.append(plain)
        return tensors, account | {"others": accounts, "offered": self.offered, "taken": self.accepted}

    def _check(self, tensors: Mapping[str, torch.Tensor], account: Mapping) -> None:
        super()._check(tensors, account)
        for r, (chains, plain) in enumerate(zip(self.hotter, account["others"], strict=True)):
            chains._check(without_prefix(_name(r, ""), tensors), plain)

    def _take(self, tensors: Mapping[str, torch.Tensor], account: Mapping) -> None:
        super()._take({name: x for name, x in tensors.items() if not name.startswith(RUNG)}, account)
        for r, (chains, plain) in enumerate(zip(self.hotter, account["others"], strict=True)):
            chains._take(without_prefix(_name(r, ""), tensors), plain)
        self.offered = list(account["offered"])
        self.accepted = list(account["taken"])


class SideBySide:
    """The kernel of all rungs, by one kernel per rung; every call of `advance` ends with all rungs at the same step."""

    def __init__(self, kernels: Sequence[Kernel], plans: Sequence[Plan]) -> None:
        self.kernels = kernels
        self.stages = {row[0].first: row for row in zip(*(plan.stages for plan in plans))}
        self.backend = kernels[0].backend

    def advance(self, chains: Chains, stage: Stage, done: int, end: int) -> Moves:
        """Make the steps of all rungs up to step `end`, or `SEEN` of them; returns the moves of the first rung."""
        assert isinstance(chains, Rungs)
        end = min(end, done + SEEN)
        moves: list[Moves] = []
        for kernel, rung, of_rung in zip(self.kernels, chains.all, self.stages[stage.first]):
            each: list[Moves] = []
            while (at := done + sum(move.steps for move in each)) < end:
                each.append(kernel.advance(rung, of_rung, at, end))
                if each[-1].end:
                    raise each[-1].end
            moves.append(_joined(each))
        return moves[0]


class Swaps:
    """Attempts to swap the states of neighbouring temperatures, after every `swap_every` steps."""

    def __init__(self, ladder: Ladder, inputs: Inputs) -> None:
        self.ladder = ladder
        self.inputs = inputs

    def next(self, number: int) -> int:
        """The next multiple of `swap_every` above `number`."""
        return number - number % self.ladder.swap_every + self.ladder.swap_every

    def act(self, chains: Chains, stage: Stage, number: int) -> None:
        """Attempt one swap for each pair of neighbours."""
        assert isinstance(chains, Rungs)
        self._exchange(chains, _exchange_of(stage.step.recipe, stage.step.frozen), number - 1)

    @torch.no_grad()
    def _exchange(self, rungs: Rungs, exchange: Exchange, number: int) -> None:
        """Attempt to swap rungs 0 and 1, 2 and 3, ..., then 1 and 2, 3 and 4, ..., after step `number`."""
        values = [self._values(chains) for chains in rungs.all]
        like = values[0].new_empty((len(rungs), len(rungs.hotter)), dtype=torch.float64)
        uniform = self.inputs.key(number).uniforms(streams.EXCHANGE, like)
        settings = {"step_number": number, **self.inputs.constants}
        pairs = range(len(rungs.hotter))
        for r in (*pairs[::2], *pairs[1::2]):
            low, high = rungs.all[r : r + 2]
            both = low.alive & high.alive
            u = uniform[:, r].where(both, 2.0)  # lost chains never swap
            T = self.ladder.temperatures[r : r + 2]
            low.state, high.state, swapped = exchange(
                low.state, high.state, (T[0], T[1]), values[r], values[r + 1], u, **settings
            )
            values[r], values[r + 1] = values[r + 1].where(swapped, values[r]), values[r].where(swapped, values[r + 1])
            rungs.offered[r] += int(both.sum())
            rungs.accepted[r] += int(swapped.sum())

    def _values(self, chains: Chains) -> torch.Tensor:
        value = self.inputs.target.at(position_of(chains.recipe, chains.state), orders=VALUE).value
        return chains.state[chains.recipe.targets[0].name].new_zeros(len(chains)) if value is None else value


def side_by_side(
    ladder: Ladder, plans: Sequence[Plan], start: Blocks, inputs: Inputs, keep: Sequence[str], backend: str, where: str
) -> tuple[Rungs, SideBySide, str]:
    """The chains of all temperatures at their start, their kernel, and the reason for the first rung's kernel."""
    states: list[Blocks] = []
    kernels: list[tuple[Kernel, str]] = []
    for r, (plan, T) in enumerate(zip(plans, ladder.temperatures)):
        of_rung = replace(inputs, first_chain=inputs.first_chain + r * streams.RUNG)  # independent noise
        states.append(whole_state(plan.step, dict(start), of_rung, T))
        kernels.append(kernel_for(plan, states[-1], of_rung, () if r else keep, backend))
    kernel = SideBySide([kernel for kernel, _ in kernels], plans)
    return Rungs(ladder, plans[0], states, where), kernel, kernels[0][1]


_exchange_of = lru_cache(maxsize=4)(Exchange)  # of a recipe and its frozen blocks, compiled once for all attempts


def _at(stage: Stage, temperature: float) -> Stage:
    return replace(stage, temperature=Setting("temperature", float(temperature), 0, stage.temperature.where))


def _joined(moves: list[Moves]) -> Moves:
    kept = [move.kept for move in moves if move.kept]
    return Moves(
        sum(move.steps for move in moves),
        [h for move in moves for h in move.step_sizes],
        {name: torch.cat([values[name] for values in kept], 1) for name in kept[0]} if kept else {},
    )


def _name(rung: int, name: str) -> str:
    return f"{RUNG}{rung + 1}.{name}"
