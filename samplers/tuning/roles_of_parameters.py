"""Roles of a recipe's parameters, the scale and the damping, read off H, D and Q."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from sympy import Dummy, Expr, S, Symbol, solve

from recipe import Recipe
from recipe.algebra import entries, vanishes
from recipe.marginal import eliminate_gaussians
from recipe.symbols import Block, Parameter
from recipe.symbols import temperature as T

POWERS = (-2, 2, -1, 1)
UNIT = Dummy("unit", positive=True)  # of theta


@dataclass(frozen=True)
class Scale:
    """A parameter with one value per site that sets a unit of theta: its value goes as unit^`power`."""

    parameter: Parameter
    power: int

    def values(self, units: torch.Tensor) -> torch.Tensor:
        """The values of the parameter, like `units`, at which sites move as at its default in these units."""
        default = self.parameter.default
        return (1.0 if default is None else float(default)) * units**self.power


def scale_of(recipe: Recipe) -> Scale | None:
    """The parameter whose change, by a power of a unit of each site, leaves H, D and Q invariant; else None.

    >>> from samplers import PreconditionedSGLD, SGLD, UnderdampedLangevin
    >>> scale_of(UnderdampedLangevin), scale_of(PreconditionedSGLD), scale_of(SGLD)
    (Scale(parameter=m, power=-2), Scale(parameter=G, power=2), None)
    """
    for parameter in recipe.parameters:
        if not parameter.per or not parameter.is_positive or not recipe.target_is_vector:
            continue
        auxiliary = [b for b in recipe.state if b.is_vector and b not in recipe.targets]
        for power in POWERS:
            for powers in itertools.product((-1, 0, 1), repeat=len(auxiliary)):
                units = {recipe.targets[0]: 1, **dict(zip(auxiliary, powers, strict=True))}
                if _is_the_same(recipe, units, parameter, power):
                    return Scale(parameter, power)
    return None


def _is_the_same(recipe: Recipe, powers: Mapping[Block, int], parameter: Parameter, power: int) -> bool:
    """Whether H, D and Q are invariant when the blocks and the parameter are multiplied by powers of a unit."""
    hidden: dict[Expr, Expr] = {U: Dummy(U.symbol) for U in recipe.potentials}
    larger: dict[Expr, Expr] = {b: b * UNIT**k for b, k in powers.items()}
    larger[parameter] = parameter * UNIT**power

    def changed(e: Expr, k: int = 0) -> bool:
        shown = e.xreplace(hidden)
        return not vanishes(shown.xreplace(larger) - UNIT**k * shown)

    units = [powers.get(b, 0) for b in recipe.state]
    of_both = [*entries(recipe.D).items(), *entries(recipe.Q).items()]
    return not any(changed(e, units[i] + units[j]) for (i, j), e in of_both) and not changed(recipe.H)


@dataclass(frozen=True)
class Damping:
    """The parameter that sets the `rate`, per unit of time, at which momenta relax."""

    parameter: Parameter
    rate: Expr

    def value(self, rate: float, parameters: Mapping[str, Any]) -> float | None:
        """The value of the parameter at which the rate is this number; None where other values are not numbers."""
        known = {s: _number(s, parameters) for s in self.rate.free_symbols - {self.parameter}}
        if None in known.values():
            return None
        solutions = solve(self.rate.xreplace(known) - rate, self.parameter)
        return float(solutions[0]) if len(solutions) == 1 and solutions[0].is_positive else None


def _number(symbol: Symbol, parameters: Mapping[str, Any]) -> Expr | None:
    value = parameters.get(symbol.name, getattr(symbol, "default", None))
    return S(float(value)) if isinstance(value, (int, float)) else None


def damping_of(recipe: Recipe) -> Damping | None:
    """The parameter that is the friction of the momenta, or the rate of their refreshment; None without one.

    >>> from samplers import SGHMC, SGLD, UnderdampedLangevin
    >>> [damping_of(r) for r in (UnderdampedLangevin, SGHMC, SGLD)]
    [Damping(parameter=gamma, rate=gamma), Damping(parameter=C, rate=C/m), None]
    """
    for rate in _rates(recipe):
        free = sorted((s for s in rate.free_symbols if isinstance(s, Parameter)), key=str)
        factors = [s for s in free if s.is_positive and not s.per and vanishes(rate.diff(s) * s - rate)]
        if factors and not rate.has(*recipe.state):
            return Damping(factors[0], rate)
    return None


def _rates(recipe: Recipe) -> list[Expr]:
    """The rates of refreshment and of friction of the momenta."""
    rates = [j.rate for j in recipe.jumps.values() if {*j.redrawn} & {*recipe.momenta} and j.rate is not None]
    for p in recipe.momenta:
        mass = inverse_mass(recipe, p)
        row = recipe.state.index(p)
        if mass is not None and recipe.D[row, row] != 0:
            rates.append((recipe.D[row, row] * mass).simplify())
    return rates


def inverse_mass(recipe: Recipe, momentum: Block) -> Expr | None:
    """The second derivative of H along a momentum, a constant, or None where H is not such a quadratic.

    >>> from samplers import UnderdampedLangevin
    >>> inverse_mass(UnderdampedLangevin, UnderdampedLangevin.momenta[0])
    1/m
    """
    laws, _ = eliminate_gaussians(recipe.H, (momentum,))
    mass = laws[0].precision if laws else None
    return None if mass is None or mass.has(*recipe.state, T) else mass
