"""Named variables of a model: their priors and constraints, and draws of them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.distributions import Distribution, Transform, VonMises, biject_to, constraints
from torch.distributions.constraints import Constraint

from recipe.arguments import check_known, number
from recipe.errors import RecipeError, did_you_mean, of_the_caller

from .centring import centring
from .constraint_maps import ordered
from .independent import of_each
from .normalisation import check_normalisation
from .torch_state import sample_of, seeded, unchecked
from .truncation import NAMES, check_ends, cuts_nothing, is_of_one_law, truncated, wrapped

ATTEMPTS = 1000  # to draw a prior within a constraint of unknown mass
PROBES = 32  # points at which a constraint and a support are compared

Values = Mapping[str, torch.Tensor]  # of one chain, by variable
Prior = Distribution | Callable[[Values], Distribution]


class ByName(dict):
    """Values by variable; an unknown name raises RecipeError."""

    def __missing__(self, name: str) -> torch.Tensor:
        what = f"there is no variable '{name}' with a prior before it"
        raise RecipeError("model", what, do=did_you_mean(name, self) if self else "Give it a prior.")


@dataclass(frozen=True)
class Variable:
    """A named variable of a model.

    `prior`: a distribution, or a function of the values of the variables before; `constraint`: None for the support of
    the prior; `centred`: the degree to which free numbers are values, and not in units of the prior.
    """

    name: str
    prior: Prior
    constraint: Constraint | None = None
    centred: float = 1.0

    @property
    def in_words(self) -> str:
        """The prior as text."""
        return str(self.prior) if isinstance(self.prior, Distribution) else "given variables before it"

    def law(self, before: Values) -> Distribution:
        """The prior, given the variables before."""
        return self.prior if isinstance(self.prior, Distribution) else self.prior(ByName(before))

    def log_density(self, values: Values) -> torch.Tensor:
        """The log density of the prior at the values of all variables, over its mass within the constraint if known."""
        law = self.law(values)
        density = law.log_prob(values[self.name]).sum()
        if self.constraint is None:
            return density
        return density - (self._own_log_mass if isinstance(self.prior, Distribution) else self._log_mass(law))

    def _log_mass(self, law: Distribution) -> Any:
        """The log of what the constraint leaves of the prior; 0 where this is not known."""
        assert self.constraint is not None
        if self.is_sorted:
            shape = law.batch_shape + law.event_shape
            return -shape[:-1].numel() * math.lgamma(shape[-1] + 1)  # one of n! orders
        within = truncated(law, self.constraint)
        return 0.0 if within is None else within.log_mass().sum()

    @cached_property
    def _own_log_mass(self) -> float:
        """The log of what the constraint leaves of a prior that depends on no other variable."""
        assert isinstance(self.prior, Distribution)
        return float(self._log_mass(self.prior))

    def integrates_to_1(self, law: Distribution) -> bool:
        """Whether the density of this prior is known to integrate to 1 within the constraint."""
        if self.constraint is None or self.is_sorted:
            return True
        return truncated(law, self.constraint) is not None or cuts_nothing(self.constraint, law)

    def map(self, before: Values) -> Transform:
        """The map from free numbers to values of the variable, given the variables before."""
        if self.centred < 1:
            transform = centring(self.law(before), self.centred)
            if transform is not None:
                return transform
        return biject_to(self.law(before).support if self.fixed_support is None else self.fixed_support)

    @cached_property
    def fixed_support(self) -> Constraint | None:
        """The constraint, or the support of a prior that depends on no other variable; else None."""
        if self.constraint is not None:
            return self.constraint
        return without_end(self.prior.support) if isinstance(self.prior, Distribution) else None

    @cached_property
    def is_sorted(self) -> bool:
        """Whether the variable is of independent numbers of one law, in increasing order."""
        return (
            isinstance(self.constraint, type(ordered))
            and isinstance(self.prior, Distribution)
            and is_of_one_law(self.prior)
        )

    def is_hierarchical(self, before: Values) -> bool:
        """Whether the prior has a location and a scale, one of which depends on others, and no constraint."""
        if isinstance(self.prior, Distribution) or self.constraint is not None:
            return False
        with torch.enable_grad():
            law = self.law({name: x.detach().clone().requires_grad_() for name, x in before.items()})
            map = centring(law, 0.0)
            return map is not None and map(torch.ones(law.batch_shape + law.event_shape)).requires_grad

    def draw(self, before: Values, exact: bool = False) -> torch.Tensor:
        """A draw of what the constraint leaves of the prior.

        Where the mass is not known, each independent part is drawn again until it is inside; where that is rare, it is
        a random value inside; refused if `exact`.
        """
        law = self.law(before)
        if self.constraint is None:
            return self._sample(law)
        within = truncated(law, self.constraint)
        if within is not None:
            return within.draw()
        value = self._sample(law)
        axes = max(self.constraint.event_dim, len(law.event_shape))  # of a part
        for _ in range(ATTEMPTS):
            inside = self.constraint.check(value).reshape(*value.shape[: value.dim() - axes], -1).all(-1)
            if inside.all():
                return value
            value = torch.where(inside[(..., *[None] * axes)], value, self._sample(law))
        if exact:
            what = f"in {ATTEMPTS} draws the prior of '{self.name}' is not within its constraint"
            raise RecipeError("model, prior", what, do="Take a prior with more of its mass there.")
        map = self.map(before)
        return map(torch.rand(map.inverse_shape(value.shape), dtype=value.dtype, device=value.device))

    def _sample(self, law: Distribution) -> torch.Tensor:
        """A draw of the prior, whose numbers are sorted where any order is as probable."""
        value = sample_of(law)
        if isinstance(of_each(law), VonMises):  # torch draws it between -pi and pi
            value = wrapped(value, self.constraint)
        return value.sort(-1).values if self.is_sorted else value

    def check(self, before: Values) -> None:
        """Refuse a prior that is no density, or discrete, has no map, or contradicts the constraint."""
        where = f"model, {self.name!r}"
        law = self._checked_law(before, where)
        if self.constraint is not None:
            check_ends(self.constraint, law.batch_shape + law.event_shape, where)
            if isinstance(self.prior, Distribution):
                _ = self._own_log_mass  # computed outside of the energy
        support = law.support  # some laws make it anew each time
        if support is not None and support.is_discrete:
            what = "its values are discrete, and chains move on a continuum"
            raise RecipeError(where, what, do="Sum over them in the likelihood.")
        if self.fixed_support is None and without_end(support) is not support:
            what = f"its support, {support}, has no upper end and depends on other variables: torch has no map to it"
            raise RecipeError(where, what, do="Give z a fixed prior of this kind, and write loc + scale * z.")
        try:
            map = self.map(before)
        except NotImplementedError as error:
            what = f"there is no map of free numbers to its values ({error})"
            advice = f"Say where it is, constraints={{{self.name!r}: constraints.real}}"
            raise RecipeError(where, what, do=f"{advice}.") from error
        if self.centred < 1 and (self.constraint is not None or centring(law, self.centred) is None):
            what = (
                f"it is centred to the degree {self.centred:g}, and its prior {law}, or its constraint, has no such map"
            )
            advice = "Take a law with loc and scale and no constraint, of degree 0 if it is a MultivariateNormal."
            raise RecipeError(where, what, do=advice)
        if self.constraint is not None:
            self._check_constraint(law, self.constraint, map, where)
        with seeded(0), unchecked:
            angle = f"constraints={{{self.name!r}: constraints.interval(-math.pi, math.pi)}} for an angle."
            advice = f"Say where its mass is: {angle}"
            check_normalisation(law, map, where, advice, is_cut=self.constraint is not None)

    def _checked_law(self, before: Values, where: str) -> Distribution:
        """The prior given the variables before; refused unless a distribution."""
        law: Any = self.prior
        if callable(law):
            with of_the_caller(where, "its prior fails", "It is a function of a dict of the variables before it."):
                law = self.law(before)
        if not isinstance(law, Distribution):
            what = f"its prior is a distribution of torch.distributions, or a function that returns one, got {law!r}"
            do = "Write Normal(0.0, 1.0), or lambda variable: Normal(variable['mu'], 1.0)."
            raise RecipeError(where, what, do=do)
        return law

    def _check_constraint(self, law: Distribution, constraint: Constraint, map: Transform, where: str) -> None:
        """Refuse a constraint beyond the support of the prior, or one whose mass varies and is not known."""
        if not isinstance(self.prior, Distribution) and not self.integrates_to_1(law):
            what = "its prior depends on other variables, so that what the constraint leaves of it is not a constant"
            advice = f"Take a law of this support, or a {NAMES} law between ends, whose masses are known."
            raise RecipeError(where, what, do=advice)
        shape = law.batch_shape + law.event_shape
        if len(shape) < constraint.event_dim:
            what = f"the constraint {constraint} is of {constraint.event_dim} axes, and the variable has the shape"
            raise RecipeError(where, f"{what} {tuple(shape)}", do="Write Normal(torch.zeros(3), 1.0), say.")
        generator = torch.Generator().manual_seed(0)
        values = map(3 * torch.randn(PROBES, *map.inverse_shape(shape), generator=generator))
        support = law.support
        if values.shape[1:] != shape or support is None or not bool(support.check(values).all()):
            what = f"the constraint {constraint} allows values outside of the support of its prior, {support}"
            raise RecipeError(where, what, do="Leave the constraint out, or take another prior.")


def without_end(support: Any) -> Any:
    """The numbers above the lower end of an interval whose upper end is infinite; any other support unchanged.

    >>> without_end(constraints.interval(torch.tensor(2.0), torch.tensor(torch.inf)))
    GreaterThan(lower_bound=2.0)
    """
    base = of_each(support)
    is_endless = hasattr(base, "lower_bound") and torch.as_tensor(getattr(base, "upper_bound", 0.0)).isinf().all()
    return constraints.greater_than(base.lower_bound) if is_endless else support


def variables_of(priors: Any, constrained: Any, centred: Any = None) -> dict[str, Variable]:
    """The variables by name, in the order of `priors`; refused for what is said of variables without a prior."""
    where = "model"
    if not isinstance(priors, Mapping) or not priors or not all(isinstance(name, str) for name in priors):
        what = f"priors are a dict by the names of variables, got {priors!r}"
        raise RecipeError(where, what, do='Write {"mu": Normal(0.0, 1.0)}.')
    by_name, degrees = dict(constrained or {}), dict(centred or {})
    for kind, names in (("a constraint", by_name), ("a degree of centring", degrees)):
        check_known(where, f"the variable '{{}}' has {kind} and no prior", names, priors)
    for name, constraint in by_name.items():
        if not isinstance(constraint, Constraint):
            what = f"a constraint is one of torch.distributions.constraints, got {constraint!r}"
            raise RecipeError(f"{where}, {name!r}", what, do="Write constraints.positive.")
        by_name[name] = without_end(constraint)
    degrees = {name: number(where, f"centred[{name!r}]", x, least=0, most=1) for name, x in degrees.items()}
    return {name: Variable(name, prior, by_name.get(name), degrees.get(name, 1.0)) for name, prior in priors.items()}
