"""Chains at several temperatures side by side, which exchange their states: draws where one chain alone is stuck.

Every temperature is a rung, a group of chains that a mover moves like any other; each `every` steps chain i of a rung
and chain i of the next one attempt to swap. Chains at high temperatures cross the barriers, those at the first one, of
which the draws are, get what has come down.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch

from integrators import noise, streams
from integrators.exchange import Exchange
from recipe import Energy
from recipe.arguments import integer, is_number
from recipe.errors import RecipeError

from ..energies.foreign import Foreign
from ..energies.layout import position_of
from ..energies.potential import VALUE
from .chains import Chains
from .choice import mover_of
from .inputs import Inputs
from .moving import Mover, Moves
from .plan import Plan, Setting, Stage
from .start import whole_state

EVERY = 10  # steps between two attempts, where the caller does not say
SEEN = 1000  # steps after which a run is looked at, at most
RUNG = "rung "
LOW = 0.05  # a rate of exchange below which temperatures are too far apart


@dataclass(frozen=True)
class Ladder:
    """Temperatures, the lowest first, and the number of steps between two attempts to exchange."""

    temperatures: tuple[float, ...]
    every: int

    def plans(self, plan: Plan) -> list[Plan]:
        """The plan of each rung: as it is, at another temperature."""
        return [
            replace(plan, stages=tuple(_at(stage, T, stage.steps) for stage in plan.stages)) for T in self.temperatures
        ]

    def inputs(self, inputs: Inputs) -> list[Inputs]:
        """What the steps of each rung read: the noise is another one."""
        return [
            replace(inputs, first_chain=inputs.first_chain + r * streams.RUNG) for r in range(len(self.temperatures))
        ]


def ladder_of(temperatures: Any, every: Any, where: str) -> Ladder | None:
    """The ladder that the caller asks for; None where there are no temperatures side by side.

    Raises RecipeError for temperatures that do not rise or are not > 0, and for exchanges without temperatures.

    >>> ladder_of([1, 2, 4], None, "sample")
    Ladder(temperatures=(1.0, 2.0, 4.0), every=10)
    """
    if temperatures is None:
        if every is not None:
            raise RecipeError(
                where, "swap_every without temperatures to swap", do="Pass temperatures=[1, 2, 4], say, or drop it."
            )
        return None
    several = list(temperatures) if isinstance(temperatures, (Sequence, torch.Tensor)) else []
    values = [float(T) for T in several if is_number(T) or torch.is_tensor(T)]
    if isinstance(temperatures, str) or len(values) != len(several) or len(values) < 2:
        raise RecipeError(
            where,
            f"temperatures are two numbers or more, got {temperatures!r}",
            do="Pass temperatures=[1, 2, 4], say, or temperature= for one.",
        )
    if not all(0 < T < float("inf") for T in values) or any(a >= b for a, b in pairwise(values)):
        raise RecipeError(
            where,
            f"temperatures are > 0 and rise, got {temperatures!r}",
            do="Put the one of the draws first, as in temperatures=[1, 2, 4].",
        )
    integer(
        where, "temperatures", len(values), most=2**32 // streams.RUNG, what=f"{len(values)} temperatures are too many"
    )
    every = EVERY if every is None else integer(where, "swap_every", every, least=1)
    return Ladder(tuple(values), every)


def check_exchange(ladder: Ladder, plan: Plan, temperature: Any, batch_size: Any, stop: int, where: str) -> None:
    """Refuse runs whose chains, numbers below `stop`, cannot exchange: minibatches, a target held still."""
    if callable(temperature) or temperature != 1.0:
        raise RecipeError(where, "temperature= stands beside temperatures=", do="Give one or the other.")
    if any(stage.phase.temperature is not None for stage in plan.stages):
        what = "a phase has a temperature of its own, and there are several side by side"
        raise RecipeError(where, what, do="Leave it out of the phases, or drop temperatures=.")
    if batch_size is not None:
        what = "an exchange compares U, of which a minibatch has an estimate only"
        raise RecipeError(where, what, do="Drop batch_size=, or run at one temperature.")
    if plan.step.program.scope != "chain":
        raise RecipeError(where, "an exchange is of whole chains, not of their tensors", do="Use scope='chain'.")
    targets = [b.name for b in plan.step.recipe.targets]
    still = [name for stage in plan.stages for name in stage.step.frozen if name in targets]
    if still:
        what = f"{still[0]} is held still, and an exchange moves the whole target"
        raise RecipeError(where, what, do="Let it move, or drop temperatures=.")
    integer(where, "first_chain + chains", stop, most=streams.RUNG, do="Noise has so many for each temperature.")


class Rungs(Chains):
    """The chains of the first temperature, with those of the `others`, and how often neighbours have exchanged.

    `offered`, `taken`: for each pair of neighbours, the attempts of all chains, and those that succeeded.
    """

    def __init__(self, ladder: Ladder, plan: Plan, states: Sequence[dict[str, Any]], where: str) -> None:
        recipe = plan.step.recipe
        super().__init__(recipe, states[0], where)
        self.ladder = ladder
        hotter = zip(states[1:], ladder.temperatures[1:])
        self.others = [Chains(recipe, state, f"{where}, temperature {T:g}") for state, T in hotter]
        self.offered = [0] * len(self.others)
        self.taken = [0] * len(self.others)

    @property
    def all(self) -> list[Chains]:
        """The chains of each rung."""
        return [self, *self.others]

    @property
    def rates(self) -> list[float]:
        """The part of the attempts that succeeded, for each pair of neighbours."""
        return [taken / max(offered, 1) for taken, offered in zip(self.taken, self.offered)]

    def account(self) -> dict[str, Any]:
        """What draws say of the chains."""
        return super().account() | {"temperatures": list(self.ladder.temperatures), "swaps": self.rates}

    def concerns(self) -> list[str]:
        """Sentences of what the caller must know: chains that are lost, and temperatures too far apart."""
        concerns = super().concerns()
        for chains in self.others:
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
        """What `restore` needs: tensors and plain data."""
        tensors, account = super().snapshot()
        accounts = []
        for r, chains in enumerate(self.others):
            own, plain = chains.snapshot()
            tensors |= {_name(r, name): x for name, x in own.items()}
            accounts.append(plain)
        return tensors, account | {"others": accounts, "offered": self.offered, "taken": self.taken}

    def restore(self, tensors: Mapping[str, torch.Tensor], account: Mapping) -> None:
        """Go on from a snapshot. Raises ValueError for that of other chains, before anything is changed."""
        super().restore({name: x for name, x in tensors.items() if not name.startswith(RUNG)}, account)
        for r, (chains, plain) in enumerate(zip(self.others, account["others"], strict=True)):
            start = _name(r, "")
            own = {name.removeprefix(start): x for name, x in tensors.items() if name.startswith(start)}
            chains.restore(own, plain)
        self.offered = list(account["offered"])
        self.taken = list(account["taken"])


class Exchanging:
    """What moves chains at several temperatures: a mover for each, and the exchanges between neighbours."""

    def __init__(self, ladder: Ladder, movers: Sequence[Mover], inputs: Inputs) -> None:
        self.ladder = ladder
        self.movers = movers
        self.inputs = inputs
        self.backend = movers[0].backend

    def move(self, chains: Chains, stage: Stage, done: int) -> Iterator[Moves]:
        """Make the steps of a stage from number `done` of it on; all rungs are at one step when it hands on."""
        assert isinstance(chains, Rungs)
        exchange = Exchange(stage.step.recipe, stage.step.frozen)
        while done < stage.steps:
            number = stage.first + done
            until_swap = self.ladder.every - number % self.ladder.every
            end = min(stage.steps, done + min(until_swap, SEEN))
            rungs = zip(self.movers, chains.all, self.ladder.temperatures)
            moves = [_joined(list(mover.move(rung, _at(stage, T, end), done))) for mover, rung, T in rungs]
            if end - done == until_swap:
                self._exchange(chains, exchange, stage.first + end - 1)
            yield moves[0]
            done = end

    @torch.no_grad()
    def _exchange(self, rungs: Rungs, exchange: Exchange, number: int) -> None:
        """Attempt to swap rungs 0 and 1, 2 and 3, ..., then 1 and 2, 3 and 4, ..., after a step."""
        values = [self._values(chains) for chains in rungs.all]
        like = values[0]
        uniform = noise.uniform(
            self.inputs.seed,
            number,
            streams.EXCHANGE,
            len(rungs),
            (len(rungs.others),),
            dtype=torch.float64,
            device=like.device,
            first_chain=self.inputs.first_chain,
        )
        settings = {"step_number": number, **self.inputs.constants}
        pairs = range(len(rungs.others))
        for r in (*pairs[::2], *pairs[1::2]):
            low, high = rungs.all[r : r + 2]
            both = low.alive & high.alive
            u = uniform[:, r].where(both, 2.0)  # lost chains swap never
            T = self.ladder.temperatures[r : r + 2]
            low.state, high.state, swapped = exchange(
                low.state, high.state, (T[0], T[1]), values[r], values[r + 1], u, **settings
            )
            values[r], values[r + 1] = values[r + 1].where(swapped, values[r]), values[r].where(swapped, values[r + 1])
            rungs.offered[r] += int(both.sum())
            rungs.taken[r] += int(swapped.sum())

    def _values(self, chains: Chains) -> torch.Tensor:
        at = position_of(chains.recipe, chains.state)
        value = self.inputs.target.at(at, orders=VALUE).value
        if value is not None:
            return value
        some = next(iter(at.values())) if isinstance(at, dict) else at
        return some.new_zeros(len(some))


def side_by_side(
    ladder: Ladder,
    plan: Plan,
    start: Mapping[str, torch.Tensor],
    energy: Energy | Callable | None,
    inputs: Inputs,
    keep: Sequence[str],
    backend: str,
    where: str,
) -> tuple[Rungs, Exchanging]:
    """The chains of all temperatures where they start, and what moves them; arguments are as for a run at one."""
    step = plan.step
    reads = ladder.inputs(inputs)
    states = [whole_state(step, dict(start), energy, own, T) for own, T in zip(reads, ladder.temperatures)]
    movers = [
        mover_of(rung, state, own, keep if r == 0 else (), backend)
        for r, (rung, state, own) in enumerate(zip(ladder.plans(plan), states, reads))
    ]
    if isinstance(inputs.target.whole, Foreign):
        inputs.target.whole.check_value(where, "an exchange compares values of U")
    return Rungs(ladder, plan, states, where), Exchanging(ladder, movers, inputs)


def _at(stage: Stage, temperature: float, steps: int) -> Stage:
    """The stage at another temperature, as far as step `steps` of it."""
    setting = Setting("temperature", float(temperature), 0, stage.temperature.where)
    return replace(stage, temperature=setting, phase=replace(stage.phase, steps=steps))


def _joined(moves: list[Moves]) -> Moves:
    """Some moves as one."""
    kept = [move.kept for move in moves if move.kept]
    return Moves(
        sum(move.steps for move in moves),
        [h for move in moves for h in move.step_sizes],
        {name: torch.cat([values[name] for values in kept], 1) for name in kept[0]} if kept else {},
    )


def _name(rung: int, name: str) -> str:
    return f"{RUNG}{rung + 1}.{name}"
