"""The chains of a run: their present state, and the record of lost chains."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import tree_map

from integrators.adapting import Adapting
from integrators.direction import ACCEPTED
from integrators.domain_bounds import in_domain
from integrators.program import DERIVATIVES
from recipe import Recipe
from recipe.errors import RecipeError
from recipe.scheme import Scheme

from ..results.draws import Draws
from ..results.record import named

MANY = 100  # steps: a chain that rejects as many is stuck


class Diverged(RecipeError):
    """Every chain is lost; `draws` holds the draws kept before, or None."""

    draws: Draws | None = None


class Chains:
    """The chains of a run after `steps` of its steps.

    `state`: the blocks by name, `(chains, *shape)` for a vector and `(chains,)` for a scalar, and the gradient that the
    next step takes over, evaluated on the `rows` of the data. A chain whose state is not finite, or outside the domain
    of a block, is lost: the chain stays at its last state, `alive`, `(chains,)`, is False for it, and `diverged` maps
    the chain to the step of its loss. `adapting`: the adapting operators by name.
    """

    def __init__(self, recipe: Recipe, state: dict[str, Any], where: str) -> None:
        like = next(iter(state.values()))
        self.recipe = recipe
        self.where = where
        self.state = state
        self.rows: torch.Tensor | None = None
        self.steps = 0
        self.alive = torch.ones(len(like), dtype=torch.bool, device=like.device)
        self.diverged: dict[int, int] = {}
        self.reason = ""
        self.adapting: dict[str, Adapting] = {}
        self._bounded = [b for b in recipe.entries if not b.domain.is_real]

    def __len__(self) -> int:
        return len(self.alive)

    def advance(self, new: dict[str, Any], *, rows: torch.Tensor | None = None, is_fine: bool | None = None) -> None:
        """Take the state `new` after one step, but keep the last state of lost chains.

        `rows`: the rows of the data in the carried gradient. `is_fine`: True where the step is known to lose no chain.
        Raises Diverged where the last chain is lost.
        """
        lost = [] if is_fine else self._leaving(new)
        if lost:
            rejected = {name: x[lost[0]] for name, x in new.items() if name not in DERIVATIVES.values()}
            end = self.lose(dict.fromkeys(lost, self.steps), rejected)
            if end:
                raise end
        self.land(self.merged(new, self.state), 1, rows=rows)

    def begin(self) -> None:
        """Reset the number of accepted proposals, at the start of a stage."""
        if ACCEPTED.name in self.state:
            self.state = self.state | {ACCEPTED.name: torch.zeros_like(self.state[ACCEPTED.name])}

    def acceptance(self, steps: int) -> torch.Tensor | None:
        """The fraction of `steps` proposals that each chain accepted, `(chains,)`; None without proposals."""
        accepted = self.state.get(ACCEPTED.name)
        return None if accepted is None or not steps else accepted / steps

    def merged(self, new: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
        """The state `new`, with the state `old` of lost chains."""
        if not self.diverged:
            return new

        def merge(x: torch.Tensor, before: torch.Tensor) -> torch.Tensor:
            return torch.where(self.alive.reshape(-1, *(1,) * (x.dim() - 1)), x, before)

        return tree_map(merge, new, {name: old.get(name, x) for name, x in new.items()})

    def verdict(self, new: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """1 where a step loses no chain, else 0: a tensor `(1,)` on the device of the state."""
        return (~self.alive | self._fine(new)).all().reshape(1).float()

    def land(self, state: dict[str, Any], steps: int, *, rows: torch.Tensor | None = None) -> None:
        """Take the state after `steps` steps, with lost chains at their last state; `rows` as in `advance`."""
        self.state = state
        self.rows = rows if "gradient" in state else None
        self.steps += steps

    def lose(self, lost: Mapping[int, int], new: Mapping[str, torch.Tensor]) -> Diverged | None:
        """Flag the chains in `lost`, a dict to their steps; returns the error to raise if no chain is left, else None.

        `new`: the rejected state of the first lost chain, `(*shape)` by block.
        """
        reason, advice = self._reason(new)
        if not self.diverged:
            self.reason = f"{reason}. {advice}"
        self.diverged |= lost
        self.alive[list(lost)] = False
        if self.alive.any():
            return None
        last = max(lost.values())
        return Diverged(self.where, f"every chain has diverged, the last at step {last}: {reason}", do=advice)

    def account(self) -> dict[str, Any]:
        """The record of the chains for `draws.info`: plain data."""
        return {"diverged": self.diverged}

    def concerns(self) -> list[str]:
        """Warnings for the caller: the lost chains, and the reason of the first loss."""
        if not self.diverged:
            return []
        return [
            f"{self.where}: {len(self.diverged)} of {len(self)} chains are lost, and stay at their last finite state: "
            f"{named(self.diverged, 'diverged at step')}, {self.reason}"
        ]

    def stuck(self, steps: int, word: Scheme) -> list[str]:
        """A warning where chains accepted none of at least `MANY` proposals, or all chains none; else an empty list."""
        acceptance = self.acceptance(steps)
        if acceptance is None:
            return []
        still = (self.alive & (acceptance == 0)).nonzero().flatten().tolist()
        if not still or (steps < MANY and len(still) < self.alive.sum()):
            return []
        chain = f"chain {still[0]}, say" if len(still) > 1 else f"chain {still[0]}"
        core = word.moves[1:]  # as B A B is after R
        after_noise = len(core) > 2 and core == core[::-1] and word.moves[0] not in core
        remedy = "a smaller step size"
        if not (word.is_palindrome or after_noise):
            remedy += f", a symmetric word, '{word.mirrored}' say"
        return [
            f"{self.where}: {len(still)} of {len(self)} chains ({chain}) have accepted none of {steps} steps, and stay "
            f"where they are. Take {remedy}, or start elsewhere."
        ]

    def snapshot(self) -> tuple[dict[str, torch.Tensor], dict]:
        """Tensors and plain data from which `restore` continues."""
        diverged = {str(chain): step for chain, step in self.diverged.items()}
        return self._tensors(), {"moved": self.steps, "diverged": diverged, "reason": self.reason}

    def _tensors(self) -> dict[str, torch.Tensor]:
        tensors = {"alive": self.alive}
        for name, x in self.state.items():
            if isinstance(x, dict):
                tensors |= {f"{name}.{part}": value for part, value in x.items()}
            else:
                tensors[f"state.{name}"] = x
        if self.rows is not None:
            tensors["rows"] = self.rows
        for name, M in self.adapting.items():
            tensors |= {f"operator.{name}.{part}": x for part, x in M.state_dict().items()}
        return tensors

    def restore(self, tensors: Mapping[str, torch.Tensor], account: Mapping) -> None:
        """Continue from a snapshot. Raises ValueError for a snapshot of other shapes or types, before any change."""
        self._check(tensors, account)
        self._take(tensors, account)

    def _check(self, tensors: Mapping[str, torch.Tensor], account: Mapping) -> None:
        for name, x in self._tensors().items():
            if tensors[name].shape != x.shape or tensors[name].dtype != x.dtype:
                raise ValueError(f"{name} has the shape {tuple(tensors[name].shape)}, not {tuple(x.shape)}")
        steps, lost = account["moved"], (~tensors["alive"]).nonzero().flatten().tolist()
        if type(steps) is not int or steps < 0:
            raise ValueError(f"moved = {steps!r} is no number of steps")
        if sorted(account["diverged"]) != sorted(map(str, lost)):
            raise ValueError("the chains that have diverged are not those that are lost")
        if not all(type(step) is int and 0 <= step <= steps for step in account["diverged"].values()):
            raise ValueError("a chain has diverged after the run")
        if type(account["reason"]) is not str:
            raise ValueError("the reason of a loss is no text")

    def _take(self, tensors: Mapping[str, torch.Tensor], account: Mapping) -> None:
        values = {name: x.to(self.alive.device) for name, x in tensors.items()}
        self.alive = values["alive"]
        self.state = without_prefix("state.", values)
        for name in ("gradient", "value"):  # by block, or by potential
            parts = without_prefix(f"{name}.", values)
            self.state |= {name: parts} if parts else {}
        self.rows = values.get("rows") if "gradient" in self.state else None
        for name, M in self.adapting.items():
            M.load_state_dict(without_prefix(f"operator.{name}.", values))
        self.steps = account["moved"]
        self.diverged = {int(chain): step for chain, step in account["diverged"].items()}
        self.reason = account["reason"]

    def _leaving(self, new: Mapping[str, torch.Tensor]) -> list[int]:
        """The indices of chains alive whose new state is not finite, or outside its domain."""
        if not self.diverged and all(math.isfinite(new[b.name].sum()) for b in self.recipe.entries):
            if all(bool(in_domain(b, new[b.name]).all()) for b in self._bounded):
                return []  # one sum over all chains is the usual case
        return (self.alive & ~self._fine(new)).nonzero().flatten().tolist()

    def _fine(self, new: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """True for each chain whose state is finite and inside its domain, `(chains,)`."""
        fine = torch.ones_like(self.alive)
        for x in (new[b.name] for b in self.recipe.entries):
            fine &= x.reshape(len(self), -1).sum(1).isfinite()
        for b in self._bounded:
            fine &= in_domain(b, new[b.name]).reshape(len(self), -1).all(1)
        return fine

    def _reason(self, new: Mapping[str, torch.Tensor]) -> tuple[str, str]:
        """The reason of a loss, and the advice."""
        outside = [b for b in self._bounded if (~in_domain(b, new[b.name]) & new[b.name].isfinite()).any()]
        infinite = [b.name for b in self.recipe.entries if not new[b.name].sum().isfinite()]  # the test of _fine
        if not outside:
            return f"{infinite[-1] if infinite else None} is not finite", "Take a smaller step size."
        block = outside[-1]
        advice = f"Look at the update of {block}." if block in self.recipe.adapted else "Take a smaller step size."
        return f"{block} has left its domain, {block.domain.in_words}", advice


def without_prefix(prefix: str, values: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The tensors whose names begin with `prefix`, by the rest of their names."""
    return {name.removeprefix(prefix): x for name, x in values.items() if name.startswith(prefix)}
