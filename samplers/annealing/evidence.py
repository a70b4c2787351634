"""The evidence, the integral of exp(-U), by annealed importance sampling, with an error and doubts."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

import integrators
from integrators.initial_state import complete_state, stationary_start
from integrators.step import Step
from recipe import Energy, Recipe
from recipe.arguments import integer, number
from recipe.errors import RecipeError, warn

from ..results.bar import Bar, Scalars, Shown, Ticker, check_progress
from ..results.findings import told_apart
from ..results.statistics import tail_of_weights
from ..stock import recipe_of
from ..target.foreign import check_has_value, with_gradient
from ..target.layout import by_block
from ..target.potential import VALUE, Position
from ..target.rounding import rounding_of
from ..target.rows import check_rows
from ..target.symbolic import energy_step
from ..target.target import Target, check_energy_is_asked_for, check_unweighted, data_of, target_of
from ..target.traced import Traced
from .bridges import Annealing, AnnealingPath, Endpoints, annealed, pilot
from .references import Reference, reference_of

FEWEST_CHAINS = 64
PILOTS = 128  # chains of the pilot, at most
FEWEST = 50  # bridges, unless given
LEAST = 50.0  # the effective number of weights below which an estimate is not believed
FAR = (1e3, 1e4)  # distances between which the growth of U is checked, along each of the first AXES coordinates
AXES = 256
HEAVY = 0.5  # the Pareto index of the weights' tail from which on their variance is infinite
APART = 4.0  # standard errors between two estimates, from which on neither is believed


@dataclass(frozen=True)
class Evidence:
    """log of the integral of exp(-U), its standard error, and doubts about the estimate.

    `ess`: the effective number, (sum w)^2 / sum w^2, of the weights of `chains` chains; `tail`: the Pareto index of the
    largest weights; `integral`: the estimate by thermodynamic integration over the same chains, with `integral_error`;
    `bridges`: their number; `acceptance`: the least share of accepted proposals at a bridge; `doubts`: reasons not to
    believe the estimate. With doubts `error` is infinite, and `log_evidence` is too low as a rule.

    >>> law = Evidence(-3.2, 0.02, 300.0, 512, -3.21, 0.03, 40, 0.8, 0.1)
    >>> print(law)
    log evidence -3.200 +- 0.020
      weights: 300 effective of 512, tail index 0.10; 40 bridges, at least 80 % of proposals accepted
      thermodynamic integration: -3.210 +- 0.030
    >>> law.believed
    True
    """

    log_evidence: float
    error: float
    ess: float
    chains: int
    integral: float
    integral_error: float
    bridges: int
    acceptance: float
    tail: float
    doubts: tuple[str, ...] = ()

    @property
    def believed(self) -> bool:
        """Whether there are no doubts."""
        return not self.doubts

    def __str__(self) -> str:
        error = f"+- {self.error:.3f}" if self.believed else "is not to be believed"
        lines = [
            f"log evidence {self.log_evidence:.3f} {error}",
            f"  weights: {self.ess:.0f} effective of {self.chains}, tail index {self.tail:.2f}; "
            f"{self.bridges} bridges, at least {100 * self.acceptance:.0f} % of proposals accepted",
            f"  thermodynamic integration: {self.integral:.3f} +- {self.integral_error:.3f}",
        ]
        return "\n".join([*lines, *(f"  doubt: {doubt}" for doubt in self.doubts)])


def evidence(
    recipe: Recipe | str,
    energy: Energy | Callable[..., Any] | None = None,
    *,
    reference: Any = None,
    gradient: Callable[..., Any] | None = None,
    data: Any = None,
    chains: int = 256,
    moves: int = 4,
    repeat: int = 1,
    bridges: int | None = None,
    step_size: Any = 0.2,
    scheme: Any = None,
    seed: int = 0,
    progress: Shown = True,
    **parameters: Any,
) -> Evidence:
    """log of the integral of exp(-U) over the target, by annealed importance sampling from a normalised reference.

    Chains start from the reference, exp(-R), and go over `bridges` energies (1 - b) R + b U, b from 0 to 1, with
    `moves` proposals at each, accepted or rejected by their work; log Z = log mean exp(-sum (b_{k+1} - b_k) (U - R)).
    The same chains give the estimate of thermodynamic integration, log Z = -integral of E_b (U - R) db. Bridges and
    step sizes are chosen by a pilot run of other chains. The result has doubts, with a warning and an infinite `error`,
    where the effective number of weights is below 50, the two estimates are four standard errors apart, the largest
    weights have a tail without a variance, or U is so large that its rounding matters. The
    reference should be wider than exp(-U) rather than narrower. `error` is that of log mean to leading order; a bias
    of -error^2/2 is not taken off, so that exp(log_evidence) has none. Calls with one `seed` start from the same draws
    of the reference, and their errors are not independent.

    `recipe`, `scheme`, `repeat`, `parameters`: as for `integrators.metropolised`; `energy`, `gradient` and
    `data`: as for `sample`, on all data. `reference`: a distribution of torch of the target's shape, a quadratic
    Energy, or a dict of distributions by block or parameter name; of a `samplers.model` by default its prior, and
    chains move in free numbers. Chains move in coordinates in which a Gaussian reference is N(0, 1), so that one near
    the posterior also serves as a preconditioner. `step_size`: the first step size of the pilot, a number or that of
    `tune`. `progress`: as for `sample`, of the bridges: those of the pilot, whose number is not known, and the others;
    a function gets their `number`, the `bridge` b and the `acceptance` there.

    Raises RecipeError for wrong input, a reference that is not normalisable or not of the target's blocks, and a
    reference too far from exp(-U) for bridges.
    Source: Neal (2001), "Annealed importance sampling", eqs. (4)-(7); Gelman and Meng (1998), "Simulating normalizing
    constants", section 3.

    >>> from samplers import MALA
    >>> law = torch.distributions.Normal(torch.zeros(2), 1.0)
    >>> result = evidence(MALA, lambda x: (x**2).sum()/8, reference=law, chains=200)
    >>> abs(result.log_evidence - math.log(8*math.pi)) < 4*result.error, result.error < 0.1
    (True, True)
    """
    recipe = recipe_of(recipe, "evidence")
    where = f"{recipe.name}, evidence"
    energy = with_gradient(energy, gradient, where)
    integer(where, "chains", chains, least=FEWEST_CHAINS)
    integer(where, "moves", moves, least=1)
    if bridges is not None:
        integer(where, "bridges", bridges, least=1)
    integer(where, "seed", seed, least=0)
    check_progress(progress, where)
    if "temperature" in parameters:
        what = "the evidence is the integral of exp(-U), at temperature 1"
        raise RecipeError(where, what, do="Leave temperature out. The integral of exp(-U/T) is that of the energy U/T.")
    step_size = number(where, "step_size", getattr(step_size, "step_size", step_size), above=0)  # the mean of Jittered
    step = _step(recipe, energy, scheme, repeat, parameters, where)
    law = reference_of(reference, recipe, energy, f"{where}, reference")
    energies = _energies(recipe, energy, data, law, where)

    def begun(number: int, first_chain: int) -> Annealing:
        """Chains drawn from the reference; refused where U is not a number there."""
        z = law.start(seed, number, first_chain)
        place = energies.at(z)
        lost = int((place.U.value.isnan() | (place.U.value == -math.inf)).sum())
        if lost:
            what = f"U is not a number at {lost} of {number} draws of the reference"
            raise RecipeError(where, what, do="Let U be inf where the density is 0, and mend it elsewhere.")
        settings: dict[str, Any] = {"seed": seed, "parameters": parameters, "first_chain": first_chain}
        state = complete_state(step, by_block(step.recipe, z), gradient=lambda _: place.gradient(0.0), **settings)
        return Annealing(step, energies, parameters, moves, seed, first_chain, state)

    with Bar(where, None, shown=progress is True, unit=" bridges") as bar:
        watched = AnnealingProgress(bar, progress)
        plan = pilot(begun(min(chains, PILOTS), chains), step_size, where, most=2000, tell=watched.update)
        plan = plan.cut(bridges or max(FEWEST, math.ceil(4 * plan.length**2)))
        bar.total = watched.number + len(plan.bridges)
        course = begun(chains, 0)
        dtype = course.state[recipe.targets[0].name].dtype
        gaps, shares = zip(*watched.each(plan.bridges, annealed(course, plan)))
    rounding = rounding_of(gaps[-1].nan_to_num(0.0, 0.0, 0.0), dtype, 1.0)
    result = estimated(torch.stack(gaps), plan, min(shares), rounding)
    if not result.believed:
        warn(f"{where}: {'; '.join(result.doubts)}")
    return result


class AnnealingProgress:
    """Progress over bridges: a bar that moves with each, and scalars of the last one."""

    def __init__(self, bar: Bar, progress: Shown) -> None:
        self.bar = bar
        self.number = 0
        self.bridge = 0.0
        self.acceptance = 1.0
        self.ticker = Ticker(bar, progress, _in_words, at_once=True)

    def update(self, bridge: float, acceptance: float) -> None:
        """Advances by a bridge."""
        self.number += 1
        self.bridge = bridge
        self.acceptance = acceptance
        self.bar.update()
        self.ticker.update(self.scalars)

    def each(self, bridges: Iterable[float], annealed: Iterator[tuple[Any, float]]) -> Iterator[tuple[Any, float]]:
        """Yields what is `annealed` at each of the bridges, of which the last one is shown in any case."""
        for bridge, (gap, share) in zip(bridges, annealed):
            self.update(bridge, share)
            yield gap, share
        self.ticker.update(self.scalars, at_end=True)

    def scalars(self, _: float) -> Scalars:
        """The number of bridges so far, and the last of them."""
        return {"number": self.number, "bridge": self.bridge, "acceptance": self.acceptance}


def _in_words(scalars: Scalars) -> str:
    return f"bridge {scalars['bridge']:.3g}, accepted {scalars['acceptance']:.2f}"


def estimated(gaps: torch.Tensor, plan: AnnealingPath, acceptance: float, rounding: str = "") -> Evidence:
    """The evidence of chains whose U - R at each bridge are `gaps`, `(bridges + 1, chains)`; `rounding` of U."""
    bridges = torch.tensor(plan.bridges, dtype=torch.float64, device=gaps.device)
    logs = torch.cat([gaps.new_zeros(1, gaps.shape[1]), -(bridges.diff()[:, None] * gaps[:-1]).cumsum(0)])
    last = logs[-1]
    chains = len(last)
    log_mean = float(last.logsumexp(0)) - math.log(chains)
    ess = float((2 * last.logsumexp(0) - (2 * last).logsumexp(0)).exp())
    error = math.sqrt(max(1 / ess - 1 / chains, 0.0)) if ess > 0 else math.inf
    integral, integral_error = _integral(gaps, logs, bridges)
    doubts = (
        [f"{rounding}, and the weights are sums of U: take a constant from the energy, or float64"] if rounding else []
    )
    if not ess >= LEAST:
        doubts.append(
            f"{ess:.3g} of {chains} weights count: take more chains, more bridges or moves, or a nearer reference"
        )
    tail = tail_of_weights(last.cpu().numpy())
    if tail > HEAVY:
        doubts.append(
            f"the largest weights have the Pareto index {tail:.2f}: their variance need not be finite. Give a wider "
            "reference, with heavier tails than exp(-U)"
        )
    if not abs(integral - log_mean) <= APART * math.hypot(error, integral_error) + 1e-6:
        by_integral, by_weights = told_apart(integral, log_mean)
        doubts.append(
            f"thermodynamic integration gives {by_integral}, annealing {by_weights}: chains do not keep up with the "
            "bridges, take more moves"
        )
    error = math.inf if doubts else error
    number = len(plan.bridges) - 1
    return Evidence(log_mean, error, ess, chains, integral, integral_error, number, acceptance, tail, tuple(doubts))


def _integral(gaps: torch.Tensor, logs: torch.Tensor, bridges: torch.Tensor) -> tuple[float, float]:
    """-integral of E_b (U - R) db, with its error: E_b by the weights exp(`logs`) of chains, `(bridges, chains)`.

    It is extrapolated from the rules over all bridges and over every second one, whose errors are as 1 to 16. The error
    has the influence of every chain on the weighted means in it, and what the extrapolation adds.
    """
    weights = logs.softmax(1)
    gaps = gaps.where(weights > 0, 0.0)
    mean = (weights * gaps).sum(1, keepdim=True)
    off = gaps - mean
    variance = (weights * off.square()).sum(1, keepdim=True)
    means = torch.cat([mean, weights * off], 1)
    variances = torch.cat([variance, weights * (off.square() - variance)], 1)
    last = len(bridges) - 1
    fine, coarse = (_rule(bridges[k], means[k], variances[k]) for k in (range(last + 1), [*range(0, last, 2), last]))
    added = (fine - coarse) / 15
    value, *_ = influences = -(fine + added)
    error = math.sqrt(gaps.shape[1] * float(influences[1:].var()))
    return float(value), math.hypot(error, float(added[0]))


def _rule(bridges: torch.Tensor, means: torch.Tensor, variances: torch.Tensor) -> torch.Tensor:
    """The integral over bridges by the trapezoidal rule, corrected by the slopes of means, which are -variances."""
    steps = bridges.diff()
    return steps @ (means[1:] + means[:-1]) / 2 + steps.square() @ variances.diff(dim=0) / 12


def _step(recipe: Recipe, energy: Any, scheme: Any, repeat: int, parameters: Mapping[str, Any], where: str) -> Step:
    """The accept-reject step that moves chains.

    Raises RecipeError for a recipe that does not keep exp(-U), or whose auxiliary blocks have no draws.
    """
    check_unweighted(recipe, where, "chains anneal to exp(-U) by weights of their own")
    check_energy_is_asked_for(recipe, energy, where)
    step = integrators.metropolised(recipe, scheme, repeat=repeat)
    step.check(1.0, temperature=1.0, **parameters)
    values = {name: float(x) for name, x in parameters.items() if isinstance(x, (int, float))}
    certificate = recipe.check(temperature=1.0, freeze=(), sites=None, **values)
    if certificate.failures:
        what = f"the recipe has not the law it claims: {certificate.failures[0].in_words}"
        raise RecipeError(where, what, do="See recipe.check().")
    drawn = {block.name for block in stationary_start(step.recipe).draw_blocks.values()}
    targets = [b.name for b in recipe.targets]
    for b in recipe.state:
        if b.name not in targets and b.name not in drawn:
            what = f"no draws are known of {b} given the target, from which annealing starts"
            raise RecipeError(where, what, do="Take a recipe with Gaussian momenta.")
    return step


def _energies(recipe: Recipe, energy: Any, data: Any, law: Reference, where: str) -> Endpoints:
    """U of the target and R of the reference; RecipeError for an energy without values or a finite integral."""
    position = law.target(law.start(0, 2, 0))
    rows = data_of(energy, data, None, position, where)
    steps = [energy_step(energy, recipe.targets)] if isinstance(energy, Energy) else []
    target = target_of(energy, steps, position, law.layout, rows)
    check_has_value(target.whole, where, "annealing compares values of U")
    check_rows(target, position, where)
    _check_tails(target, position, law, where)
    if law.is_gaussian:
        return Endpoints(law, target)
    return Endpoints(law, target, target_of(Traced(law.energy), [], position, law.layout, None))


def _check_tails(target: Target, position: Position, law: Reference, where: str) -> None:
    """Refuses U that grows along a coordinate no faster than the logarithm, for which exp(-U) is not integrable.

    Coordinates that are mapped to equal numbers at both distances, in rounding, say nothing of U.
    """
    leaves, form = tree_flatten(position)
    for k, x in enumerate(leaves):
        sites = x[0].numel()
        axes = torch.eye(sites, dtype=x.dtype, device=x.device)[:AXES]
        axes = torch.cat([axes, -axes])
        places, levels = [], []
        for r in FAR:
            at = [y[:1].expand(len(axes), *y.shape[1:]) for y in leaves]
            at[k] = at[k] + r * axes.reshape(len(axes), *x.shape[1:])
            places.append(tree_unflatten(at, form))
            levels.append(target.at(places[-1], orders=VALUE).value.double())
        grown = levels[1] - levels[0]
        flat = (grown <= math.log(FAR[1] / FAR[0])) & levels[1].isfinite()
        if law.layout.coordinates is not None:
            near, far = map(law.layout.coordinates, places)
            flat &= (near != far).any(1)
        if flat.any():
            axis = int(flat.nonzero()[0]) % sites
            what = f"exp(-U) has no finite integral: U grows too slowly along coordinate {axis}"
            raise RecipeError(where, what, do="Add a prior, or mend the sign of U, which is -log density.")
