"""The reference, a normalised law with draws where annealing starts; a Gaussian one has coordinates of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from sympy import Matrix
from torch.distributions import Distribution, Independent, MultivariateNormal, Normal, constraints

from integrators import noise
from integrators.streams import REFERENCE
from recipe import Energy, Recipe
from recipe.errors import RecipeError

from ..target.independent import of_each
from ..target.layout import Layout
from ..target.model import Model
from ..target.potential import Position
from ..target.torch_state import seeded, unchecked

ADVICE = "Pass torch.distributions.Normal(mean, sd) with one number for each coordinate, say."


@dataclass(frozen=True)
class Reference:
    """Independent laws of a target's blocks, or of its tensors by name; `layout` maps the target for the energy.

    Chains under a Gaussian reference move in coordinates z in which it is N(0, 1), target = mean + root z.

    >>> law = Reference({"theta": Normal(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0]))}, Layout(), explicit=False)
    >>> law.target(torch.tensor([[1.0, 1.0]]))
    tensor([[2., 5.]])
    """

    parts: Mapping[str, Distribution]
    layout: Layout = field(default_factory=Layout)
    explicit: bool = False

    @cached_property
    def is_gaussian(self) -> bool:
        """Whether all laws are Gaussian, so that chains move in coordinates of the reference."""
        of_parts = not self.explicit and self.layout.coordinates is None
        return of_parts and all(_is_gaussian(law) for law in self.parts.values())

    @property
    def sites(self) -> int:
        """The number of coordinates."""
        return sum(_shape(law).numel() for law in self.parts.values())

    def start(self, seed: int, chains: int, first_chain: int) -> Position:
        """Draws in the coordinates of chains, `(chains, *shape)`; Gaussian ones are functions of (seed, chain)."""
        if self.is_gaussian:
            like = next(iter(self.parts.values())).mean
            shape = (self.sites,) if self.layout.shapes is not None else tuple(_shape(next(iter(self.parts.values()))))
            return noise.Key(seed, 0, first_chain).normals(REFERENCE, like.new_empty((chains, *shape)))
        values = {name: _drawn(law, seed, k, chains, first_chain) for k, (name, law) in enumerate(self.parts.items())}
        if self.explicit:
            return values
        flat = [x.reshape(chains, -1) if self.layout.shapes is not None else x for x in values.values()]
        return self.layout.z(torch.cat(flat, 1) if self.layout.shapes is not None else flat[0])

    def target(self, z: Position) -> Position:
        """The target at coordinates z."""
        if not self.is_gaussian:
            return z
        return self._by_part(z, lambda law, x: of_each(law).loc + _spread(law, x))

    def pulled(self, gradient: Position) -> Position:
        """The gradient by z, from the gradient by the target."""
        if not self.is_gaussian:
            return gradient
        return self._by_part(gradient, lambda law, x: _spread(law, x, transposed=True))

    @cached_property
    def log_volume(self) -> float:
        """log|d target/dz|."""
        return sum(float(_log_spread(law)) for law in self.parts.values()) if self.is_gaussian else 0.0

    def energy(self, target: Any) -> torch.Tensor:
        """-log density of the reference at the target of one chain, in the energy's form, a 0-dim tensor."""
        values = target if isinstance(target, Mapping) else {next(iter(self.parts)): target}
        return torch.stack([-law.log_prob(values[name]).sum() for name, law in self.parts.items()]).sum()

    def _by_part(self, x: Any, function: Any) -> torch.Tensor:
        if self.layout.shapes is None:
            return function(next(iter(self.parts.values())), x)
        parts = zip(self.parts.values(), x.split(self.layout.sizes, -1))
        images = [function(law, part.reshape(len(x), *_shape(law))).reshape(len(x), -1) for law, part in parts]
        return torch.cat(images, 1)


@dataclass(frozen=True)
class PriorOf(Reference):
    """The prior of a model as a reference, in the free numbers of its variables.

    >>> from samplers import model
    >>> one = model({"s": torch.distributions.HalfNormal(1.0)}, lambda v: 0 * v["s"])
    >>> law = PriorOf({}, Layout(one.shapes, one.coordinates), model=one)
    >>> law.start(0, 3, 0).shape, law.energy({"s": torch.tensor(0.0)})
    (torch.Size([3, 1]), tensor(0.2258))
    """

    model: Model = field(kw_only=True)

    def start(self, seed: int, chains: int, first_chain: int) -> Position:
        """Draws of the prior in free numbers, `(chains, numbers)`."""
        return self.layout.z(self.model.starts(chains, seed, first_chain, exact=True))

    def energy(self, target: Any) -> torch.Tensor:
        """-log of the prior at the variables of one chain, by name."""
        with unchecked:
            return -self.model.log_prior(target)


def reference_of(reference: Any, recipe: Recipe, energy: Any, where: str) -> Reference:
    """The reference of a distribution of torch, of a quadratic Energy, or of distributions by block or parameter name.

    Of a Model it is the prior where none is given; others are laws of its variables, and chains move in free numbers.
    Raises RecipeError for a law without a finite integral or draws, and for a law of other blocks than the target.
    """
    names = [b.name for b in recipe.targets]
    explicit = not recipe.target_is_vector
    for b in recipe.targets:
        if not b.domain.is_real:
            raise RecipeError(where, f"{b} is {b.domain.in_words}", do="Anneal a map of it to the reals.")
    if isinstance(reference, Energy):
        reference = _gaussian(reference, where)
    if isinstance(energy, Model) and reference is None:
        energy.check_prior(where, "; with a reference= this mass is left out of the evidence")
        return PriorOf({}, Layout(energy.shapes, energy.coordinates), model=energy)
    parts = dict(reference) if isinstance(reference, Mapping) else {names[0]: reference}
    if isinstance(energy, Model) and not (energy.is_free and set(energy.centred.values()) <= {1.0}):
        return _of_variables(parts, energy, where)
    _check_parts(parts, names, explicit, where)
    by_name = None if explicit or list(parts) == names else {name: tuple(_shape(law)) for name, law in parts.items()}
    law = Reference(parts, Layout(by_name), explicit)
    if isinstance(energy, Energy) and not energy.is_sitewise and law.sites != len(energy.coordinates):
        what = f"it has {law.sites} coordinates, and the energy {len(energy.coordinates)}"
        raise RecipeError(where, what, do="Give a law of the same coordinates.")
    return law


def _of_variables(parts: Mapping, model: Model, where: str) -> Reference:
    """Independent laws of the variables of a model, whose draws are mapped to free numbers."""
    if set(parts) != set(model.shapes):
        kind = "variables" if model.is_free else "variables with constraints"
        what = f"the model has {kind}, {', '.join(model.shapes)}, and the reference is of {', '.join(map(str, parts))}"
        raise RecipeError(where, what, do="Give a law of each by its name, or leave reference out: it is the prior.")
    parts = {name: parts[name] for name in model.shapes}
    for name, law in parts.items():
        if not isinstance(law, Distribution) or tuple(_shape(law)) != model.shapes[name]:
            what = f"the law of {name} is {law!r}, and {name} has the shape {model.shapes[name]}"
            raise RecipeError(where, what, do="Give a distribution of torch of this shape.")
    law = Reference(parts, Layout(model.shapes, model.coordinates))
    z = law.start(0, 2, 0)
    assert torch.is_tensor(z)
    model.coordinates.placed(model.coordinates(z), where)
    return law


def _check_parts(parts: Mapping, names: list[str], explicit: bool, where: str) -> None:
    """Refuses laws of other blocks than the target, invalid laws, and laws of different types or devices."""
    if not parts or (explicit and set(parts) != set(names)):
        blocks = ", ".join(map(str, parts)) or "nothing"
        what = f"it is a law of {blocks}, and the target is {', '.join(names)}"
        raise RecipeError(where, what, do="Give a law for each block of the target, in a dict by its name.")
    for name, law in parts.items():
        _check_law(name, law, where)
    if explicit and any(_shape(law) for law in parts.values()):
        raise RecipeError(where, "the blocks of the target are single numbers", do="Give each a law of one number.")
    kinds = {(law.mean.dtype, str(law.mean.device)) for law in parts.values()}
    if len(kinds) > 1:
        raise RecipeError(where, f"its parts are of mixed types or places: {sorted(map(str, kinds))}", do="Give one.")


def _check_law(name: str, law: Any, where: str) -> None:
    """Refuses anything but a normalised law with draws on the whole line."""
    if not isinstance(law, Distribution):
        what = f"the law of {name} is a {type(law).__name__}: it has no draws, or is not known to be normalisable"
        raise RecipeError(where, what, do=ADVICE)
    if of_each(law.support) is not constraints.real:
        what = f"the law of {name} is on {law.support}, and {name} is real"
        raise RecipeError(where, what, do="Give a law that is positive wherever the target may be.")
    if _is_gaussian(law) and not all(x.isfinite().all() for x in (law.mean, law.variance)):
        what = f"the law of {name} is not normalisable: a mean or a variance is not finite"
        raise RecipeError(where, what, do="Give finite ones, a wide prior say.")
    if law.mean.dtype not in (torch.float32, torch.float64):
        raise RecipeError(where, f"the law of {name} is {law.mean.dtype}", do="Give float32 or float64.")


def _gaussian(energy: Energy, where: str) -> Distribution:
    """The law exp(-U) of a quadratic U; RecipeError for any other energy."""
    if energy.is_sitewise or energy.data:
        what = "an energy over any number of sites, or over data, does not say which law it is"
        raise RecipeError(where, what, do=ADVICE)
    slopes = Matrix(energy.gradient)
    hessian = slopes.jacobian(Matrix(energy.coordinates))
    if hessian.free_symbols:
        raise RecipeError(where, "no draws are known of an energy that is not quadratic", do=ADVICE)
    if not hessian.is_positive_definite:
        what = f"exp(-({energy.U})) is not normalisable: its second derivatives are not positive definite"
        raise RecipeError(where, what, do="Give one that grows in every direction.")
    mean = -hessian.inv() * slopes.xreplace(dict.fromkeys(energy.coordinates, 0))
    precision = torch.tensor([[float(e) for e in row] for row in hessian.tolist()], dtype=torch.float64)
    law = MultivariateNormal(torch.tensor([float(e) for e in mean], dtype=torch.float64), precision_matrix=precision)
    kind = torch.get_default_dtype()
    return MultivariateNormal(law.loc.to(kind), scale_tril=law.scale_tril.to(kind))


def _is_gaussian(law: Distribution) -> bool:
    base = law.base_dist if isinstance(law, Independent) else law
    return type(base) is Normal or type(law) is MultivariateNormal


def _shape(law: Distribution) -> torch.Size:
    return law.batch_shape + law.event_shape


def _spread(law: Distribution, x: torch.Tensor, *, transposed: bool = False) -> torch.Tensor:
    """The root of the covariance, or its transpose, times x, `(chains, *shape)`."""
    base = of_each(law)
    if isinstance(base, Normal):
        return base.scale * x
    L = base.scale_tril
    return (x[..., None, :] @ (L if transposed else L.mT))[..., 0, :]


def _log_spread(law: Distribution) -> torch.Tensor:
    base = of_each(law)
    if isinstance(base, Normal):
        return base.scale.double().log().sum()
    return base.scale_tril.double().diagonal(dim1=-2, dim2=-1).log().sum()


def _drawn(law: Distribution, seed: int, number: int, chains: int, first_chain: int) -> torch.Tensor:
    """Draws of a law that is not Gaussian, `(chains, *shape)`; torch's generator is restored."""
    (law_seed,) = noise.seeds(seed, number, REFERENCE, 1, first_chain=first_chain)
    with seeded(law_seed, law.mean.device):
        return law.sample((chains,))
