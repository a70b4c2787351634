"""Data of a model by name, with their laws given its variables: the likelihood, and draws of data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributions import Distribution, constraints

from integrators import noise
from integrators.streams import PREDICTED
from recipe.errors import RecipeError, first_line, of_the_caller

from .likelihood import in_words
from .torch_state import seeded, unchecked
from .variables import ByName, Values

LAW = "Write {'y': (lambda v: Normal(v['mu'], 1.0), y)}, or without data {'sum': lambda v: v['a'] + v['b']}."


@dataclass(frozen=True, eq=False)
class Observations:
    """Laws of data given the variables, and quantities of these, by name; `data`: nan where a value is missing.

    >>> from torch.distributions import Normal
    >>> y = torch.tensor([1.0, torch.nan])
    >>> seen = Observations({"y": lambda v: Normal(v["mu"], 1.0), "twice": lambda v: 2 * v["mu"]}, {"y": y})
    >>> float(seen({"mu": torch.tensor(1.0)}))                                     # -log(2 pi)/2, of one value
    -0.9189385175704956
    >>> {name: tuple(x.shape) for name, x in seen.draw({"mu": torch.tensor(1.0)}).items()}
    {'y': (2,), 'twice': ()}
    """

    functions: Mapping[str, Callable]
    data: Mapping[str, torch.Tensor]

    def __call__(self, theta: Values, *batch: Any) -> torch.Tensor:
        """The log likelihood of the data that are not missing."""
        if batch:
            what = "the model has its data by name, and the run has others"
            raise RecipeError("model", what, do="Leave data out, or write the likelihood as a function of a batch.")
        return torch.stack([self._of(name, y, theta) for name, y in self.data.items()]).sum()

    def _of(self, name: str, y: torch.Tensor, theta: Values) -> torch.Tensor:
        missing = y.isnan()
        law = self.at(name, theta)
        if not y.is_floating_point():  # Bernoulli takes no integers
            y = y.to(next(iter(theta.values())).dtype)
        if not missing.any():
            return law.log_prob(y).sum()
        if law.event_shape:
            what = f"values of '{name}' are missing, and its law is of {tuple(law.event_shape)} values together"
            raise RecipeError("model", what, do="Give what is missing a name among the variables.")
        inside = y[~missing][:1].sum()  # a value that the law has; 0 where all are missing
        return law.log_prob(y.where(~missing, inside)).where(~missing, 0.0).sum()

    def at(self, name: str, theta: Values) -> Any:
        """The law of data of one name at theta, of their shape; or the quantity of this name."""
        value = self.functions[name](ByName(theta))
        where = f"model, {name!r}"
        if name in self.data:
            if not isinstance(value, Distribution):
                raise RecipeError(where, f"data have a law, and the function gives a {type(value).__name__}", do=LAW)
            shape = tuple(self.data[name].shape)
            batch = torch.Size(shape[: len(shape) - len(value.event_shape)])
            if value.batch_shape == batch:  # a law of the caller's own may have no `expand`
                return value
            try:
                return value.expand(batch)
            except (RuntimeError, ValueError) as error:
                of_law = tuple(value.batch_shape + value.event_shape)
                what = f"its law has the shape {of_law}, its data {shape}"
                raise RecipeError(where, what, do="Give one law each.") from error
        if not isinstance(value, (Distribution, torch.Tensor)):
            raise RecipeError(where, f"the function gives a {type(value).__name__}", do=LAW)
        return value

    def draw(self, theta: Values) -> dict[str, torch.Tensor]:
        """Data and quantities at theta, by name; data are drawn from torch's generator."""
        values = {name: self.at(name, theta) for name in self.functions}
        return {name: _sampled(name, x) if isinstance(x, Distribution) else x for name, x in values.items()}

    def check(self, theta: Values) -> None:
        """Refuse functions that fail at theta, and data outside of a support that is the same at every theta."""
        values: dict[str, Any] = {}
        for name in self.functions:
            with of_the_caller(f"model, {name!r}", "its function fails", f"Compute with {in_words(theta)}."):
                values[name] = self.at(name, theta)
        for name, y in self.data.items():
            law = values[name]
            declared = type(law).support
            if declared is Distribution.support:  # a law of the caller's own that does not say
                continue
            support = law.support
            if isinstance(declared, constraints.dependent_property):
                if not isinstance(support, constraints.integer_interval):  # of a number of categories, say
                    continue
            missing, infinite = (_of_any(x, len(law.event_shape)) for x in (y.isnan(), y.isinf()))
            outside = (infinite | ~support.check(y)) & ~missing
            if outside.any():
                what = f"{y[outside][0].tolist()} is outside of the support of its law, {type(law).__name__}"
                do = "Give data that the law can have, or nan where one is missing."
                raise RecipeError(f"model, {name!r}", what, do=do)

    @torch.no_grad()
    def predicted(self, draws: Mapping[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
        """`draw` at every draw of the variables, `(chains, draws, ...)`; each chain has noise of its own."""
        chains, number = next(iter(draws.values())).shape[:2]
        rows: list[dict[str, torch.Tensor]] = []
        for chain, chain_seed in enumerate(noise.seeds(seed, 0, PREDICTED, chains)):
            with seeded(chain_seed), unchecked:
                rows += [self.draw({name: x[chain, k] for name, x in draws.items()}) for k in range(number)]
        stacked = {name: torch.stack([row[name] for row in rows]) for name in self.functions}
        return {name: x.unflatten(0, (chains, number)) for name, x in stacked.items()}


def observed_of(entries: Mapping[str, Any], names: Mapping[str, Any]) -> Observations:
    """Data with their laws, and quantities, by name: `(law, data)`, or a function; refused for names of variables."""
    functions: dict[str, Callable] = {}
    data: dict[str, torch.Tensor] = {}
    for name, entry in entries.items():
        where = f"model, {name!r}"
        law, *y = entry if isinstance(entry, tuple) else (entry,)
        if not callable(law) or len(y) > 1:
            raise RecipeError(where, f"it is {entry!r}", do=LAW)
        if name in names:
            raise RecipeError(where, "it is the name of a variable too", do="Choose another one.")
        functions[name] = law
        data |= {name: _tensor(y[0], where)} if y else {}
    if not data:
        raise RecipeError("model", "no data are given with a law", do=LAW)
    return Observations(functions, data)


def _tensor(y: Any, where: str) -> torch.Tensor:
    """Data of numpy, pandas or a list as a tensor."""
    if torch.is_tensor(y):
        return y
    try:
        return torch.tensor(y.to_numpy() if hasattr(y, "to_numpy") else y)  # by position, not by a pandas index
    except (TypeError, ValueError, RuntimeError) as error:
        what = f"its data are a {type(y).__name__}, of which torch makes no tensor ({first_line(error)})"
        raise RecipeError(where, what, do=LAW) from error


def _of_any(x: torch.Tensor, axes: int) -> torch.Tensor:
    """Whether one of the last axes is true."""
    return x.flatten(x.dim() - axes).any(-1) if axes else x


def _sampled(name: str, law: Distribution) -> torch.Tensor:
    try:
        return law.sample()
    except NotImplementedError as error:
        what = f"its law, {type(law).__name__}, has no method `sample`"
        raise RecipeError(f"model, {name!r}", what, do="Write it, or predict by a function of the draws.") from error
