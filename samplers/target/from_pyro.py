"""Models of Pyro as energies."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from threading import RLock
from typing import Any

import torch
from torch.distributions import biject_to

from recipe.errors import RecipeError, of_the_caller

from .model import Model, constrained
from .normalisation import check_normalisation
from .torch_state import seeded, unchecked
from .variables import Variable

WHERE = "from_pyro"
CHANGES = "the variables change from run to run"
SUBSAMPLE = "_Subsample"  # the law of the rows of a plate
RUNS = 8  # runs of a model whose variables are compared
STACK = RLock()  # held while Pyro runs a model: its handlers are one stack of all threads
UNNORMALISED = (
    "Write an angle as a Uniform(-math.pi, math.pi) with its log density by pyro.factor, a Delta as a "
    "pyro.deterministic, a shift of another variable in the model."
)


@dataclass(frozen=True)
class PyroModel:
    """A model of Pyro with its arguments."""

    model: Callable
    args: tuple
    kwargs: Mapping[str, Any]

    def trace(self, values: Mapping[str, torch.Tensor] | None = None) -> Any:
        """The trace of a run of the model, conditioned on `values` by variable."""
        import pyro  # optional, and slow to import

        model = self.model if values is None else pyro.poutine.condition(self.model, data=dict(values))
        with STACK, unchecked, pyro.validation_enabled(False):
            return pyro.poutine.trace(model).get_trace(*self.args, **self.kwargs)

    def log_density(self, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The log density of data and variables at `values`; refused where a run draws other variables."""
        import pyro

        trace = self.trace(values)
        drawn = [(name, node) for name, node in trace.nodes.items() if node["type"] == "sample"]
        latent = [name for name, node in drawn if not node["is_observed"] and type(node["fn"]).__name__ != SUBSAMPLE]
        _check_same([*latent, *(name for name in values if name not in trace.nodes)])
        with STACK, unchecked, pyro.validation_enabled(False):
            return trace.log_prob_sum()

    def log_prior(self, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """The log density of the variables under their priors, without the data."""
        import pyro

        trace = self.trace(values)
        with STACK, unchecked, pyro.validation_enabled(False):
            trace.compute_log_prob(lambda name, _: name in values)
        return torch.stack([trace.nodes[name]["log_prob_sum"] for name in values]).sum()

    def latent(self) -> dict[str, Any]:
        """The nodes of a trace that draw latent variables; refused where chains cannot move a variable."""
        nodes = {name: node for name, node in self.trace().nodes.items() if node["type"] in ("sample", "param")}
        return {name: node for name, node in nodes.items() if _is_latent(name, node)}

    def draw(self) -> dict[str, torch.Tensor]:
        """The latent variables of one run, by name."""
        return {name: node["value"].detach() for name, node in self.latent().items()}


def from_pyro(model: Callable[..., Any], *args: Any, **kwargs: Any) -> Model:
    """A model of Pyro, `model(*args, **kwargs)`, as an energy with a start and coordinates: `sample(recipe, energy)`.

    Draws are of the latent variables by name. Chains move in free numbers, by the map of the support of each prior as
    in `samplers.model`, and start at runs of the model. Needs pyro-ppl, the extra "pyro". Raises RecipeError for
    discrete variables, plates that subsample, `pyro.param`, variables or supports that change from run to run, and
    numbers of a variable that a mask hides and data do not see, as obs_mask= makes them.

    >>> import pyro, pyro.distributions as dist
    >>> def coin(y):
    ...     p = pyro.sample("p", dist.Beta(2.0, 2.0))
    ...     with pyro.plate("tosses", len(y)):
    ...         pyro.sample("y", dist.Bernoulli(p), obs=y)
    >>> energy = from_pyro(coin, torch.tensor([1.0, 1.0, 0.0]))
    >>> energy.shapes, energy({"p": torch.tensor(0.5)})
    ({'p': ()}, tensor(1.6740))
    """
    if not callable(model):
        raise RecipeError(WHERE, f"it is a function with pyro.sample statements, got {model!r}", do="Pass the model.")
    program = PyroModel(model, args, kwargs)
    do = "Pass a function with pyro.sample statements, and its arguments."
    with of_the_caller(WHERE, "the model fails when it is run", do), seeded(0):
        first, *runs = [program.latent() for _ in range(RUNS)]
        _check_seen(program, first)
    if not first:
        what = "it draws no latent variable: it has no pyro.sample statement without obs="
        raise RecipeError(WHERE, what, do="Pass a function with pyro.sample statements, and give one no obs=.")
    for other in runs:
        _check_alike(first, other)
    for name, node in first.items():
        with seeded(0), unchecked:
            map = biject_to(node["fn"].support)
            check_normalisation(node["fn"], map, f"{WHERE}, {name!r}", UNNORMALISED, is_cut=False)
    variables = {name: Variable(name, node["fn"]) for name, node in first.items()}
    values = {name: node["value"] for name, node in first.items()}
    return Model(constrained(variables, values), program.log_density, program.draw, program.log_prior)


def _is_latent(name: str, node: Mapping[str, Any]) -> bool:
    """Whether a node draws a latent variable; refused for discrete variables, subsampling and `pyro.param`."""
    where = f"{WHERE}, {name!r}"
    law = node["fn"]
    if node["type"] == "param":
        raise RecipeError(where, "a pyro.param is no variable: it has no prior", do="Write pyro.sample with a prior.")
    is_plate = type(law).__name__ == SUBSAMPLE
    plates = [(f.size, f.full_size) for f in node["cond_indep_stack"]]
    for size, rows in [*plates, (law.subsample_size, law.size)] if is_plate else plates:
        if None not in (size, rows) and size != rows:
            what = f"the plate takes {size} of {rows} rows, of which the posterior is no posterior of all"
            raise RecipeError(where, what, do="Give it all rows, or write a samplers.model with num_data=.")
    if is_plate or node["is_observed"]:
        return False
    if node["infer"].get("enumerate") or law.support.is_discrete:
        what = "its values are discrete or enumerated, and chains move on a continuum"
        raise RecipeError(where, what, do="Sum over them in the model, by a MixtureSameFamily, say.")
    return True


def _check_seen(program: PyroModel, nodes: Mapping[str, Any]) -> None:
    """Refuse numbers that neither a prior nor data see, as those beside obs_mask= and a mask of a prior leave them."""
    values = {name: node["value"].detach() for name, node in nodes.items()}
    masked = {name: values[name].clone().requires_grad_() for name in nodes if nodes[name]["mask"] is not None}
    density = program.log_density(values | masked)
    for name, x in masked.items():
        (slope,) = torch.autograd.grad(density + 0 * x.sum(), x, retain_graph=True)
        if (slope == 0).any():
            what = "a mask hides some of its numbers, and the data do not see them: their posterior is improper"
            raise RecipeError(f"{WHERE}, {name!r}", what, do="Mask the law of the data, by .mask(seen).")


def _check_same(names: Sequence[str]) -> None:
    """Refuse a run with variables that another run does not have."""
    if names:
        raise RecipeError(WHERE, f"{CHANGES}: {', '.join(names)}", do="Draw the same ones in each run.")


def _check_alike(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    """Refuse variables, shapes or supports that change from run to run."""
    _check_same(sorted(first.keys() ^ second.keys()))
    for name, node in first.items():
        shapes = [tuple(n["value"].shape) for n in (node, second[name])]
        if shapes[0] != shapes[1]:
            raise RecipeError(f"{WHERE}, {name!r}", f"{CHANGES}, from {shapes[0]} to {shapes[1]}", do="Fix its shape.")
        try:
            maps = [biject_to(n["fn"].support) for n in (node, second[name])]
        except NotImplementedError as error:
            reason = f"there is no map of free numbers to its values ({error})"
            raise RecipeError(f"{WHERE}, {name!r}", reason, do="Write it by variables that have one.") from error
        z = torch.linspace(-1, 1, maps[0].inverse_shape(node["value"].shape).numel()).to(node["value"])
        z = z.reshape(maps[0].inverse_shape(node["value"].shape))
        if not torch.equal(maps[0](z), maps[1](z)):
            reason = "its support depends on other variables"
            raise RecipeError(f"{WHERE}, {name!r}", reason, do="Write it as a share of a fixed interval.")
