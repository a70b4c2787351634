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
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from sympy import S

from recipe import Recipe
from recipe.marginal import eliminate_gaussians
from recipe.symbols import Adapted, Block

from .flow import Flow
from .lower import lower
from .scheme import once_each
from .step import State, Step

if TYPE_CHECKING:
    from torch import Tensor

VALUE = Adapted("value_of_U", False, "real", S.Zero)
LEVEL = Adapted("value_of_H", False, "real", S.Zero)
RATIO = Adapted("ratio_of_spreads", False, "real", S.One)
OWN = (VALUE, LEVEL, RATIO)


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
        up = self._moved(second, first, (T / other) ** 0.5, parameters)
        down = self._moved(first, second, (other / T) ** 0.5, parameters)
        before = self.level(first, U_first, T, parameters) + self.level(second, U_second, other, parameters)
        after = self.level(up, U_second, T, parameters) + self.level(down, U_first, other, parameters)
        swapped = uniform < (before - after).exp()
        return _chosen(swapped, up, first), _chosen(swapped, down, second), swapped

    def level(self, state: State, U: "Tensor", temperature: float, parameters: Mapping) -> "Tensor":
        """H/T of the chains, float64 `(chains,)`."""
        at = {b.name: state[b.name] for b in self.recipe.entries} | {b.name: U for b in OWN}
        level = _after(self._level, at, {"temperature": temperature, **parameters})[LEVEL.name]
        return level.double() / temperature

    def _moved(self, source: State, place: State, ratio: float, parameters: Mapping) -> State:
        """The state `source` at the temperature of `place`: rescaled, except for the blocks of `place` that stay."""
        arrived = {name: place[name] if name in self.staying else x for name, x in source.items()}
        if not self.rescaled:
            return arrived
        at = {b.name: arrived[b.name] for b in self.recipe.entries}
        like = next(iter(at.values()))
        at |= {b.name: like.new_full((len(like),), ratio) for b in OWN}
        moved = _after(self._rescaling, at, parameters)
        return arrived | {name: moved[name] for name in self.rescaled}

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
        others = {law.block for law in laws} | {b for b in self.recipe.entries if b.name in self.staying}
        return {
            law.block.name: _flow(law.block, law.mean + RATIO * (law.block - law.mean), "rescaled")
            for law in laws
            if not law.mean.free_symbols & others
        }

    @cached_property
    def _rescaling(self) -> Step:
        return _compiled(self.recipe, self.rescaled)

    @cached_property
    def _level(self) -> Step:
        H = self.recipe.H
        U = self.recipe.potential
        return _compiled(self.recipe, {LEVEL.name: _flow(LEVEL, H.xreplace({U: VALUE}) if U else H, "level")})


def _flow(b: Block, value: Any, rule: str) -> Flow:
    return Flow(b.name, {b: value}, (), rule, True, f"{b} <- {value}")


def _compiled(recipe: Recipe, flows: dict[str, Flow]) -> Step:
    """A step of the given flows; its state has the blocks of the recipe and the quantities in OWN."""
    recipe = replace(recipe, adapt={**recipe.adapt, **{a: a for a in OWN}}, claim=recipe.claim)
    word = once_each("exchange", flows)
    return Step(recipe, word, flows, lower(recipe, word, flows))


def _after(step: Step, state: State, settings: Mapping) -> State:
    """The state after a step without noise and gradient; the arguments are not checked again."""
    return step.function(state, 1.0, **step.arguments(gradient=None, noise={}), **step.spelled(settings))


def _chosen(swapped: "Tensor", new: Any, old: Any) -> Any:
    if isinstance(new, Mapping):
        return {name: _chosen(swapped, x, old[name]) for name, x in new.items()}
    return new.where(swapped.reshape(-1, *(1,) * (new.dim() - 1)), old)
