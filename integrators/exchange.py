"""Exchange of replicas: two chains at different temperatures swap their states, and both keep their laws.

Chains z at T and z' at T' have the joint law exp(-H(z)/T - H(z')/T'). The chains swap all moving blocks; a block b with
the law N(mean, T/a) given the blocks without Gaussian law keeps its distance from the mean in standard deviations,

    b <- mean + sqrt(T/T') (b' - mean'),    b' <- mean' + sqrt(T'/T) (b - mean).

The two maps are each other's inverse, so their pair is an involution of Jacobian 1; accepted with the probability

    min(1, exp(H(z)/T + H(z')/T' - H(new z)/T - H(new z')/T'))

the swap leaves the joint law invariant: for any H, with or without rescaled blocks, and with fixed blocks that stay
(frozen or adapted). Where momenta are Gaussian the exponent is (1/T - 1/T') (U - U').

Source: Swendsen and Wang (1986), "Replica Monte Carlo simulation of spin glasses"; Sugita and Okamoto (1999),
"Replica-exchange molecular dynamics method for protein folding".
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sympy import S

from recipe import Recipe
from recipe.marginal import eliminate_gaussians
from recipe.symbols import Adapted

from .flow import Flow
from .measured import after, assignment, measured, of_flows
from .step import State, Step

if TYPE_CHECKING:
    from torch import Tensor

RATIO = Adapted("ratio_of_spreads", False, "real", S.One)


@dataclass(frozen=True)
class Exchange:
    """Exchange of two chains of a recipe; `frozen`: names of blocks that are held still and not exchanged.

    >>> import torch
    >>> from samplers import UnderdampedLangevin
    >>> cold = {"theta": torch.tensor([[3.0]]), "p": torch.tensor([[1.0]])}
    >>> hot = {"theta": torch.tensor([[0.0]]), "p": torch.tensor([[2.0]])}
    >>> swap = Exchange(UnderdampedLangevin)
    >>> cold, hot, swapped = swap(cold, hot, (1.0, 4.0), torch.tensor([4.5]), torch.tensor([0.0]), torch.tensor([0.5]))
    >>> cold, swapped
    ({'theta': tensor([[0.]]), 'p': tensor([[1.]])}, tensor([True]))
    """

    recipe: Recipe
    frozen: tuple[str, ...] = ()

    def __call__(
        self,
        first: State,
        second: State,
        temperatures: tuple[float, float],
        U_first: "Tensor",
        U_second: "Tensor",
        uniform: "Tensor",
        **parameters: Any,
    ) -> tuple[State, State, "Tensor"]:
        """The states of all pairs of chains after the attempt, and whether each pair has swapped, `(chains,)`.

        `U_first`, `U_second`: U at the two states, `(chains,)`; `uniform`: numbers of (0, 1), `(chains,)`;
        `parameters`: parameters of the recipe, as a step takes them. Further entries of a state, such as the gradient,
        go with the target.
        """
        T, other = temperatures
        up = self._arrival(second, first, (T / other) ** 0.5, parameters)
        down = self._arrival(first, second, (other / T) ** 0.5, parameters)
        before = self.level(first, U_first, T, parameters) + self.level(second, U_second, other, parameters)
        after = self.level(up, U_second, T, parameters) + self.level(down, U_first, other, parameters)
        swapped = uniform < (before - after).exp()
        return _chosen(swapped, up, first), _chosen(swapped, down, second), swapped

    def level(self, state: State, U: "Tensor", temperature: float, parameters: Mapping) -> "Tensor":
        """H/T of the chains, float64 `(chains,)`."""
        settings = {"temperature": temperature, **parameters}
        return measured(self.recipe, self.recipe.H, state, U, settings).double() / temperature

    def _arrival(self, source: State, place: State, ratio: float, parameters: Mapping) -> State:
        """The state `source` at the temperature of `place`: rescaled, except for the blocks of `place` that stay."""
        arrived = {name: place[name] if name in self.staying else x for name, x in source.items()}
        if not self.rescaled:
            return arrived
        at = {b.name: arrived[b.name] for b in self.recipe.entries}
        like = next(iter(at.values()))
        new = after(self._rescaling, at | {RATIO.name: like.new_full((len(like),), ratio)}, parameters)
        return arrived | {name: new[name] for name in self.rescaled}

    @cached_property
    def staying(self) -> tuple[str, ...]:
        """Names of the blocks that are not exchanged: frozen and adapted ones."""
        return (*self.frozen, *(a.name for a in self.recipe.adapted))

    @cached_property
    def rescaled(self) -> dict[str, Flow]:
        """Flows that rescale blocks, by the name of the block."""
        blocks = [b for b in self.recipe.momenta + self.recipe.thermostats if b.name not in self.staying]
        laws = eliminate_gaussians(self.recipe.H, tuple(blocks))[0]
        # the mean must be the same before and after, so that the map is its own inverse
        differing = {law.block for law in laws} | {b for b in self.recipe.entries if b.name in self.staying}
        return {
            law.block.name: assignment(law.block, law.mean + RATIO * (law.block - law.mean), "rescaled")
            for law in laws
            if not law.mean.free_symbols & differing
        }

    @cached_property
    def _rescaling(self) -> Step:
        return of_flows(self.recipe, self.rescaled, (RATIO,))


def _chosen(swapped: "Tensor", new: Any, old: Any) -> Any:
    if isinstance(new, Mapping):
        return {name: _chosen(swapped, x, old[name]) for name, x in new.items()}
    return new.where(swapped.reshape(-1, *(1,) * (new.dim() - 1)), old)
