"""The noise of minibatch gradients at pilot draws, and its effect in a recipe: a budget, a thermostat, heat."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from sympy import Expr, lambdify, solve

from recipe import Recipe
from recipe.errors import RecipeError
from recipe.symbols import Parameter, Partial
from recipe.symbols import step_size as h

from ..target.data import Data
from ..target.potential import differentiated

BATCHES = 50  # of each chain
SHARE = 0.5  # of a recipe's noise, at most, that minibatches may supply where it is made up for


@dataclass(frozen=True)
class Kick:
    """The row in which the gradient enters a recipe: its `factor`, the `noise` D, and the part of D `supplied`."""

    factor: Expr
    noise: Expr
    supplied: Expr
    budget: Parameter | None
    has_thermostat: bool


def kick_of(recipe: Recipe) -> Kick | None:
    """The only row of the SDE with the gradient of the only U, where factor and noise are constant; else None.

    `budget` is the recipe's parameter for the noise of the gradient.

    >>> from samplers import SGHMC, SGNHT, PreconditionedSGLD
    >>> [(kick_of(r).budget, kick_of(r).has_thermostat) for r in (SGHMC, SGNHT, PreconditionedSGLD)]
    [(B, False), (None, True), (V, False)]
    """
    rows = [i for i, e in enumerate(recipe.drift) if e.has(Partial)]
    if len(rows) != 1 or recipe.has_several_potentials:
        return None
    row = rows[0]
    slope = next(iter(recipe.drift[row].atoms(Partial)))
    factor, noise, supplied = -recipe.drift[row].coeff(slope), recipe.D[row, row], recipe.supplied[row, row]
    if any(e.has(*recipe.state) for e in (factor, noise, supplied)) or noise == 0:
        return None
    known = noise.free_symbols | factor.free_symbols | {h}
    names = sorted((s for s in supplied.free_symbols - known if isinstance(s, Parameter)), key=str)
    first = [s for s in names if s.name in ("B", "V")] or names
    return Kick(factor, noise, supplied, first[0] if first else None, bool(recipe.thermostats))


@torch.no_grad()
def gradient_noise(
    value: Callable[..., torch.Tensor], theta: torch.Tensor, rows: Data, seed: int, where: str
) -> torch.Tensor:
    """V_g of each site, `shape`: the variance of minibatch gradients, averaged over points theta, `(n, *shape)`.

    `value(theta, rows)` is U of all points on the batches of these rows.
    """
    picks = rows.rows_for(seed, range(BATCHES), 0, len(theta))
    assert picks is not None
    slopes = [differentiated(lambda z: value(z, batch), theta).slope for batch in picks]
    V = torch.stack(slopes).var(0).mean(0)
    if not V.isfinite().all():
        raise RecipeError(where, "the gradient of a minibatch is not finite at a pilot draw", do="Mend the energy.")
    return V


def greatest_step(kick: Kick, V: torch.Tensor, T: float, bias: float, parameters: Mapping[str, Any]) -> float:
    """The step size up to which the noise of the gradient, h c^2 V/2, is harmless beside T D.

    The bound of the noise is half of T D where a budget or a thermostat makes up for it, else the share `bias` of T D.
    """
    c, D = (_evaluated(e, parameters, V) for e in (kick.factor, kick.noise))
    share = SHARE if kick.budget is not None or kick.has_thermostat else bias
    return float((share * 2 * T * D / (c.square() * V)).min())


def budget_of(kick: Kick, V: torch.Tensor, step: float, parameters: Mapping[str, Any]) -> Any:
    """The budget for the noise of the gradient, h c^2 V/2; of a parameter without sites, for its mean over sites."""
    assert kick.budget is not None
    noise = step * _evaluated(kick.factor, parameters, V).square() * V / 2
    if kick.budget.per is None:
        noise = noise.mean()
    wanted = Parameter("wanted", "positive")
    fixed = {name: x for name, x in parameters.items() if name != kick.budget.name}
    formula = solve(kick.supplied.xreplace({h: step}) - wanted, kick.budget)[0]
    budget = _evaluated(formula, {**fixed, "wanted": noise}, V).clamp(min=0)
    return float(budget) if kick.budget.per is None else budget.expand(V.shape).clone()


def without(kick: Kick | None, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters without the budget, for a pilot on all data, whose gradient has no noise."""
    budget = None if kick is None or kick.budget is None else kick.budget.name
    return {name: x for name, x in parameters.items() if name != budget}


def _evaluated(e: Expr, parameters: Mapping[str, Any], like: torch.Tensor) -> torch.Tensor:
    symbols = sorted(e.free_symbols, key=str)
    one = like.new_ones(())
    values = [one * parameters.get(s.name, getattr(s, "default", None) or 0.0) for s in symbols]
    return one * lambdify(symbols, e, modules=[torch])(*values)
