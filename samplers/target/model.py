"""Models: named variables with priors, a likelihood, and unconstrained coordinates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributions.constraints import Constraint
from torch.func import vmap

from integrators import noise
from integrators.streams import PREDICTED, seed_of
from recipe.arguments import integer
from recipe.errors import RecipeError
from recipe.results import html_table

from .coordinates import Coordinates
from .layout import Layout
from .likelihood import check_likelihood
from .observed import LAW, Observations, observed_of
from .torch_state import seeded, unchecked
from .variables import ByName, Prior, Variable, variables_of

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, eq=False)
class Constrained(Coordinates):
    """Named variables, concatenated, each mapped from free numbers by torch's `biject_to` of its constraint.

    `shapes`: by variable in theta; `free`: the shapes of their free numbers in z. The map of a variable may depend on
    the variables before.
    """

    variables: Mapping[str, Variable]
    shapes: Shapes
    free: Shapes

    def with_volume(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """theta, and log|det df/dz|, the sum over variables."""
        return _over(self._one, z)

    def _one(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        theta: dict[str, torch.Tensor] = {}
        volume = z.new_zeros(())
        with unchecked:
            for name, x in Layout(self.free).by_name(z).items():
                map = self.variables[name].map(theta)
                y = theta[name] = map(x)
                volume = volume + map.log_abs_det_jacobian(x, y).sum()
        return _flat(theta), volume

    def inverse(self, theta: torch.Tensor) -> torch.Tensor:
        """z with f(z) = theta."""
        return _over(self._inverse, theta)

    def _inverse(self, theta: torch.Tensor) -> torch.Tensor:
        values = Layout(self.shapes).by_name(theta)
        with unchecked:
            return _flat({name: variable.map(values).inv(values[name]) for name, variable in self.variables.items()})

    def placed(self, theta: torch.Tensor, where: str) -> "Constrained":
        """These coordinates; refused for a target of another size or outside of a constraint."""
        sizes = sum(Layout(self.shapes).sizes)
        if theta.shape[1:] != (sizes,):
            what = f"the variables are {sizes} numbers, and the target has the shape {tuple(theta.shape[1:])}"
            raise RecipeError(where, what, do=f"Give {', '.join(self.shapes)}, in this order.")
        z = self.inverse(theta)
        for name, part in zip(self.free, z.split(Layout(self.free).sizes, -1)):
            if not part.isfinite().all():
                what = f"the start of the variable '{name}' is outside of its support, or at its end"
                raise RecipeError(where, what, do="Start inside.")
        return self

    def account(self) -> dict[str, Any]:
        """Shapes, constraint and degree of centring by variable."""
        return {
            name: [list(self.shapes[name]), list(self.free[name]), str(variable.constraint), variable.centred]
            for name, variable in self.variables.items()
        }

    def __str__(self) -> str:
        return f"the free numbers of {', '.join(self.variables)}"


@dataclass(frozen=True, eq=False)
class Model:
    """The energy U(theta) = -log density of named variables, with a start and coordinates; see `model`.

    `log_density(theta, *batch)`: of one chain, up to a constant; `draw()`: a random start of all variables by name,
    from torch's global generator, seeded by the caller, and `draw(exact=True)` beside constraints; `log_prior(theta)`:
    of one chain, with `draw` its draws; `num_data`: the number of data, None without; `log_likelihood`: where it is
    known apart, Observations of named data.
    """

    coordinates: Constrained
    log_density: Callable
    draw: Callable[..., Mapping[str, torch.Tensor]]
    log_prior: Callable[[Mapping[str, torch.Tensor]], torch.Tensor]
    num_data: int | None = None
    log_likelihood: Callable | None = None

    @property
    def shapes(self) -> Shapes:
        """The shape of each variable."""
        return self.coordinates.shapes

    @property
    def centred(self) -> dict[str, float]:
        """The degree of centring of each variable whose prior has a location and a scale of variables before it."""
        with seeded(0), unchecked:
            values = self.draw()
            variables = self.coordinates.variables
            return {name: one.centred for name, one in variables.items() if one.is_hierarchical(values)}

    @property
    def is_free(self) -> bool:
        """Whether no variable has a constraint."""
        theta = self.starts(1, 0)
        values = Layout(self.shapes).by_name(theta[0])
        centred = {name: replace(one, centred=1.0) for name, one in self.coordinates.variables.items()}
        z = constrained(centred, values).inverse(theta)
        return z.shape == theta.shape and torch.equal(z, theta)

    def __repr__(self) -> str:
        return f"Model({', '.join(f'{name}: {shape}' for name, shape in self.shapes.items())})"

    def _repr_html_(self) -> str:
        variables = self.coordinates.variables.items()
        rows = [(name, self.shapes[name], one.in_words, one.constraint or "") for name, one in variables]
        return html_table("Model", ("variable", "shape", "prior", "constraint"), rows)

    def __call__(self, theta: Mapping[str, torch.Tensor], *batch: Any) -> torch.Tensor:
        """U at the values of the variables of one chain, on a batch."""
        with unchecked:
            return -self.log_density(theta, *batch)

    def prior(self, draws: int, *, seed: int = 0) -> dict[str, torch.Tensor]:
        """Draws of the prior by variable, `(1, draws, *shape)`, within constraints; refused where they are seldom met.

        >>> from torch.distributions import HalfNormal
        >>> model({"s": HalfNormal(1.0)}, lambda v: 0 * v["s"]).prior(5)["s"].shape
        torch.Size([1, 5])
        """
        number = integer("model, prior", "draws", draws, least=1)
        (key,) = noise.seeds(integer("model, prior", "seed", seed, least=0), 1, PREDICTED, 1)
        with seeded(key):
            rows = torch.stack([_flat(self._exact_draw()) for _ in range(number)])
        return Layout(self.shapes).by_name(rows[None])

    def predictive(self, draws: Mapping[str, torch.Tensor], *, seed: int = 0) -> dict[str, torch.Tensor]:
        """Data and quantities by name at draws of the variables, `(chains, draws, *shape)`, as of `sample` or `prior`.

        Values that are missing among the data are drawn like the others. Raises RecipeError where the likelihood is a
        function, and for draws of other variables.

        >>> from torch.distributions import Normal
        >>> data = {"y": (lambda v: Normal(v["mu"], 1.0), torch.zeros(3)), "square": lambda v: v["mu"] ** 2}
        >>> one = model({"mu": Normal(0.0, 1.0)}, data)
        >>> {name: tuple(x.shape) for name, x in one.predictive(one.prior(5)).items()}
        {'y': (1, 5, 3), 'square': (1, 5)}
        """
        where = "model, predictive"
        if not isinstance(self.log_likelihood, Observations):
            what = "the likelihood is a function of the variables, from which no data are drawn"
            raise RecipeError(where, what, do=LAW)
        for name, shape in self.shapes.items():
            got = tuple(draws[name].shape[2:]) if name in draws else None
            if got != shape:
                what = f"there are no draws of '{name}'" if got is None else f"draws of '{name}' have the shape {got}"
                raise RecipeError(where, what, do=f"Pass draws of the model: (chains, draws, *{shape}).")
        seed = integer(where, "seed", seed, least=0)
        return self.log_likelihood.predicted({name: draws[name] for name in self.shapes}, seed)

    def _exact_draw(self) -> Mapping[str, torch.Tensor]:
        """A draw of all variables within their constraints; refused where these are seldom met."""
        is_cut = any(one.constraint is not None for one in self.coordinates.variables.values())
        return self.draw(exact=True) if is_cut else self.draw()

    def check_prior(self, where: str, do: str) -> None:
        """Refuses a constraint that leaves of a prior what is not known."""
        variables = self.coordinates.variables
        with seeded(0), unchecked:
            values = self.draw()
            laws = {name: one.law(values) for name, one in variables.items() if one.constraint is not None}
        for name, law in laws.items():
            if not variables[name].integrates_to_1(law):
                what = f"the mass that the constraint leaves of the prior of '{name}' is not known"
                raise RecipeError(where, what, do=f"Take a prior of this support, a HalfNormal say{do}.")

    def starts(self, chains: int, seed: int, first_chain: int = 0, *, exact: bool = False) -> torch.Tensor:
        """A draw of the priors for each chain, `(chains, numbers)`: a function of the seed and the chain's number.

        Where a constraint is seldom met, a random value within it; refused if `exact`.
        """
        draws = []
        for chain in range(first_chain, first_chain + chains):
            with seeded(seed_of(seed, chain + 1)):
                draws.append(_flat(self._exact_draw() if exact else self.draw()))
        return torch.stack(draws)


@dataclass(frozen=True, eq=False)
class Joint:
    """The log density of the data and of the variables under their priors, of one chain."""

    variables: Mapping[str, Variable]
    log_likelihood: Callable
    num_data: int | None

    def __call__(self, theta: Mapping[str, torch.Tensor], *batch: Any) -> torch.Tensor:
        """The log density at the values theta, on a batch."""
        return self._of_data(theta, batch) + self.log_prior(theta)

    def log_prior(self, theta: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The log density of the variables under their priors."""
        return torch.stack([variable.log_density(theta) for variable in self.variables.values()]).sum()

    def _of_data(self, theta: Mapping[str, torch.Tensor], batch: tuple) -> torch.Tensor:
        terms = self.log_likelihood(ByName(theta), *batch)
        if not torch.is_tensor(terms):
            what = f"the log likelihood is a {type(terms).__name__}, not a tensor"
            raise RecipeError("model", what, do="Return Normal(theta['mu'], 1.0).log_prob(y), or its sum.")
        if not batch:
            return terms.sum()
        if self.num_data is None:
            what = "the likelihood has data, and it is not known how many there are"
            raise RecipeError("model", what, do="Pass num_data=len(X): the terms of a batch are scaled up to them.")
        if terms.dim() != 1:
            what = f"the likelihood of a batch has the shape {tuple(terms.shape)}"
            raise RecipeError("model", what, do="Return one value per row of the batch.")
        return self.num_data * terms.mean()

    def draw(self, exact: bool = False) -> dict[str, torch.Tensor]:
        """A draw of the priors by variable; `exact`: refused where a constraint is seldom met."""
        values: dict[str, torch.Tensor] = {}
        for name, variable in self.variables.items():
            values[name] = variable.draw(values, exact)
        return values


def model(
    priors: Mapping[str, Prior],
    log_likelihood: Callable[..., Any] | Mapping[str, Any],
    *,
    constraints: Mapping[str, Constraint] | None = None,
    centred: Mapping[str, float] | None = None,
    num_data: int | None = None,
) -> Model:
    """The posterior of named variables as an energy with its own start and coordinates: `sample(recipe, model)`.

        U(theta) = -log p(data | theta) - sum_v log p(theta_v | variables before v).

    `priors`: by name, in order, torch.distributions of one chain's values, or functions that return one from a dict of
    the variables before. `log_likelihood(theta)`: a number, or terms to be summed, from a dict by name, of one chain;
    with `data` in a run `log_likelihood(theta, batch)`, one value per row, whose mean is multiplied by `num_data`. Or
    data by name, each with the function of theta that has their law, `{"y": (law, y)}`, tensors, arrays or lists, with
    nan where a value is missing, beside quantities, `{"sum": function}`: `predictive` draws and computes them.

    Chains move in free numbers: a positive variable by its log, others by the maps of torch's `biject_to`, for the
    support of the prior or for `constraints` by variable. These truncate the prior. Its density is divided by the mass
    within for Normal, Cauchy and Laplace laws between ends, and for independent numbers of one such law in increasing
    order; for other laws it is not. A variable with a location m and a scale s, of the variables before it, moves in z
    with theta = m + s^(1-c) (z - c m), by its degree c in `centred`: 0 is non-centred, 1 the default, and the law is
    the same. Draws and `init` are of the variables; without `init` every chain starts at a draw of the priors. Raises
    RecipeError for a prior that is discrete or has no map, for a constraint that exceeds the support of the prior, is
    of a variable without a prior, or whose mass varies and is not known, and for a likelihood that fails at a draw of
    the priors.

    >>> from torch.distributions import HalfNormal, Normal
    >>> y = torch.tensor([1.0, 2.0, 4.0])
    >>> priors = {"mu": Normal(0.0, 5.0), "sd": HalfNormal(2.0)}
    >>> energy = model(priors, lambda theta: Normal(theta["mu"], theta["sd"]).log_prob(y))
    >>> from samplers import HMC, sample
    >>> draws = sample(HMC, energy, steps=50, step_size=0.01, progress=False)
    >>> bool((draws["sd"] > 0).all())
    True
    """
    variables = variables_of(priors, constraints, centred)
    if isinstance(log_likelihood, Mapping):
        log_likelihood = observed_of(log_likelihood, priors)
    if not callable(log_likelihood):
        what = f"the log likelihood is a function of a dict of variables, got {log_likelihood!r}"
        raise RecipeError("model", what, do="Write lambda theta: Normal(theta['mu'], 1.0).log_prob(y).")
    rows = None if num_data is None else integer("model", "num_data", num_data, least=1)
    before: dict[str, torch.Tensor] = {}
    with seeded(0):
        for name, variable in variables.items():
            variable.check(before)
            before[name] = variable.draw(before)
        if isinstance(log_likelihood, Observations):
            log_likelihood.check(before)
        else:
            check_likelihood(log_likelihood, before)
    joint = Joint(variables, log_likelihood, rows)
    return Model(constrained(variables, before), joint, joint.draw, joint.log_prior, rows, log_likelihood)


def constrained(variables: Mapping[str, Variable], values: Mapping[str, torch.Tensor]) -> Constrained:
    """The coordinates of variables, with the shapes of `values`."""
    shapes = {name: tuple(x.shape) for name, x in values.items()}
    free = {name: tuple(variable.map(values).inverse_shape(values[name].shape)) for name, variable in variables.items()}
    return Constrained(variables, shapes, free)


def _over(function: Callable, x: torch.Tensor) -> Any:
    """The function of one chain's vector, at x `(*leading, numbers)`, vectorised over the leading axes."""
    for _ in range(x.dim() - 1):
        function = vmap(function)
    return function(x)


def _flat(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([x.reshape(-1) for x in values.values()])
