"""Coordinates of a target: chains move in z, energies and draws are of theta = f(z).

The law exp(-U(theta)/T) of theta corresponds to the law of z with the energy

    U(f(z)) - T log|det df/dz|.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import Any

import torch
from sympy import Add, Float, Integer, lambdify

from integrators.requirements import check_one_potential, check_one_vector
from recipe import Energy, Recipe
from recipe.errors import RecipeError
from recipe.formulas import ELEMENTARY
from recipe.logs import with_short_logs, without_overflow
from recipe.maps import Map
from recipe.symbols import Total, masked

SINGULAR = 1e-13  # ratio of the least and the largest singular value of a singular matrix


class Coordinates(ABC):
    """A map theta = f(z) with an inverse, of tensors `(*leading, *shape)`; `is_linear`: whether df/dz is constant."""

    is_linear = False

    @property
    def adds_volume(self) -> bool:
        """Whether -T log|det df/dz| is added to the energy of z: False for linear maps and where H has the volume."""
        return not self.is_linear

    @abstractmethod
    def with_volume(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """theta and log|det df/dz|, `(*leading,)`; 0 for a linear map, whose volume is constant."""

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        """theta = f(z)."""
        return self.with_volume(z)[0]

    @abstractmethod
    def inverse(self, theta: torch.Tensor) -> torch.Tensor:
        """z with f(z) = theta."""

    @abstractmethod
    def placed(self, theta: torch.Tensor, where: str) -> "Coordinates":
        """The map in the dtype and on the device of theta, `(chains, *shape)`; refused for another shape."""

    @abstractmethod
    def account(self) -> dict[str, Any]:
        """The definition of the map, as tensors and plain data."""

    def of_symbols(self, energy: Energy, where: str) -> Energy:
        """A symbolic energy of theta as a symbolic energy of z; refused for a map without a formula."""
        what = f"the energy is symbolic, and {self} has no formula"
        raise RecipeError(where, what, do="Write the map into the energy, or pass the energy as a torch function.")


@dataclass(frozen=True, eq=False)
class Affine(Coordinates):
    """theta = center + matrix z: a dense mass or preconditioner for every recipe.

    Momenta of mass 1 in z are momenta of mass (matrix matrix^T)^-1 in theta; with a root of the covariance as the
    matrix, z has covariance 1. `center`: a point of the target, `(*shape)`; tensors by name are concatenated.
    `matrix`: `(sites, sites)`. Raises RecipeError for a matrix that is singular, or of the wrong size.

    >>> whitened = Affine(torch.tensor([1.0, 2.0]), torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
    >>> whitened(torch.tensor([1.0, -1.0])), whitened.inverse(torch.tensor([3.0, 2.0]))
    (tensor([3., 2.]), tensor([ 1., -1.]))
    """

    center: torch.Tensor
    matrix: torch.Tensor
    is_linear = True

    def __post_init__(self) -> None:
        where = "Affine"
        for name in ("center", "matrix"):
            value = getattr(self, name)
            if not torch.is_tensor(value) or not value.is_floating_point() or not value.isfinite().all():
                raise RecipeError(where, f"{name} is no tensor of finite numbers", do="Pass torch.zeros(sites), say.")
        sites = self.center.numel()
        if tuple(self.matrix.shape) != (sites, sites) or not sites:
            what = f"the matrix has the shape {tuple(self.matrix.shape)}, and the center {sites} sites"
            raise RecipeError(where, what, do=f"Give a matrix of shape {(sites, sites)}.")
        widths = torch.linalg.svdvals(self.matrix.detach().to(torch.float64))
        if float(widths[-1]) <= SINGULAR * float(widths[0]):
            what = f"the matrix is singular: its singular values go from {widths[0]:.2g} to {widths[-1]:.2g}"
            raise RecipeError(where, what, do="Add a small multiple of the identity.")

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        flat = z.reshape(*z.shape[: z.dim() - self.center.dim()], -1)
        return self.center + (flat @ self.matrix.T).reshape(z.shape)

    def inverse(self, theta: torch.Tensor) -> torch.Tensor:
        """z, by a solve in float64."""
        leading = theta.shape[: theta.dim() - self.center.dim()]
        away = (theta - self.center).to(torch.float64).reshape(-1, self.center.numel())
        z = torch.linalg.solve(self.matrix.to(torch.float64), away.T).T
        return z.to(theta.dtype).reshape(*leading, *self.center.shape)

    def with_volume(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """theta, and 0 for the constant volume, `(*leading,)`."""
        return self(z), z.new_zeros(z.shape[: z.dim() - self.center.dim()])

    def placed(self, theta: torch.Tensor, where: str) -> "Affine":
        """The map in the dtype and on the device of theta; refused for a shape other than the center's."""
        if theta.shape[1:] != self.center.shape:
            what = (
                f"the coordinates are of shape {tuple(self.center.shape)}, and the target of {tuple(theta.shape[1:])}"
            )
            raise RecipeError(where, what, do="Give the center the shape of a point of the target.")
        return Affine(self.center.detach().to(theta), self.matrix.detach().to(theta))

    def account(self) -> dict[str, Any]:
        """Center and matrix."""
        return {"center": self.center, "matrix": self.matrix}

    def of_symbols(self, energy: Energy, where: str) -> Energy:
        """The energy of z, written in the coordinates of the energy of theta."""
        if energy.is_sitewise:
            what = "the energy is written for one site, and a dense map mixes sites"
            raise RecipeError(where, what, do="Write it by coordinates, or leave the coordinates out.")
        if len(energy.coordinates) != self.center.numel():
            what = f"the energy has {len(energy.coordinates)} coordinates, and the map {self.center.numel()} sites"
            raise RecipeError(where, what, do="Give one site for each.")
        rows = zip(self.center.flatten().tolist(), self.matrix.tolist())
        images = [_number(c) + sum(_number(x) * z for x, z in zip(row, energy.coordinates) if x) for c, row in rows]
        return Energy(energy.coordinates, U=energy.U.xreplace(dict(zip(energy.coordinates, images))), data=energy.data)

    def __str__(self) -> str:
        return f"a dense linear map of {self.center.numel()} sites"


@dataclass(frozen=True, eq=False)
class Simplex(Coordinates):
    """theta = softmax(E z): positive numbers that sum to 1 along the last axis, from z with one number less.

    The columns of E, `(d, d - 1)`, are orthonormal with sum 0, and treat all d numbers alike. For the first d - 1
    numbers of theta

        log|det dtheta/dz| = sum_i log theta_i + log(d)/2,   dU/dz = E^T (theta (g - <theta, g>)),   g = dU/dtheta.

    `axes`: the number of axes of a point of the target; all but the last count simplices, as in `(topics, words)`. A
    start off the simplex is refused. Source: Egozcue et al. (2003), isometric log-ratio coordinates.

    >>> simplex = Simplex()
    >>> simplex(torch.zeros(1)), simplex.inverse(torch.tensor([0.5, 0.5]))
    (tensor([0.5000, 0.5000]), tensor([0.]))
    """

    axes: int = 1

    def with_volume(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """theta, and log|det dtheta/dz|, the sum over simplices."""
        d = z.shape[-1] + 1
        logs = _reflected(torch.nn.functional.pad(z, (0, 1))).log_softmax(-1)
        volumes = logs.sum(-1) + math.log(d) / 2
        leading = volumes.shape[: z.dim() - self.axes]
        return logs.exp(), volumes.reshape(*leading, -1).sum(-1)

    def inverse(self, theta: torch.Tensor) -> torch.Tensor:
        """z, computed in float64."""
        logs = theta.to(torch.float64).log()
        return _reflected(logs - logs.mean(-1, keepdim=True))[..., :-1].to(theta.dtype)

    def placed(self, theta: torch.Tensor, where: str) -> "Simplex":
        """The map with the axes of theta; refused where theta is off the simplex."""
        if theta.dim() < 2 or theta.shape[-1] < 2:
            what = f"the target has the shape {tuple(theta.shape[1:])}, and a simplex two numbers or more"
            raise RecipeError(where, what, do="Start at torch.full((3,), 1 / 3), say.")
        if not (theta > 0).all():
            what = f"the start is off the simplex, or at its boundary: its least number is {float(theta.min()):.3g}"
            raise RecipeError(where, what, do="Start at numbers above 0 that sum to 1 along the last axis.")
        sums = theta.to(torch.float64).sum(-1)
        if not torch.allclose(sums, torch.ones_like(sums), atol=theta.shape[-1] * torch.finfo(theta.dtype).eps):
            worst = float(sums.flatten()[(sums - 1).abs().argmax()])
            what = f"the start is off the simplex: along the last axis its numbers sum to {worst:.6g}"
            raise RecipeError(where, what, do="Divide it by its sum, and leave spread out.")
        return Simplex(theta.dim() - 1)

    def account(self) -> dict[str, Any]:
        """The number of axes."""
        return {"axes": self.axes}

    def __str__(self) -> str:
        return "a softmax of log-ratios"


def _reflected(x: torch.Tensor) -> torch.Tensor:
    """The reflection of x that exchanges (1, ..., 1)/sqrt(d) and the last axis: sum 0 becomes last entry 0."""
    d = x.shape[-1]
    root = d**-0.5
    along = (x.sum(-1, keepdim=True) * root - x[..., -1:]) / (1 - root)
    return torch.cat([x[..., :-1] - along * root, x[..., -1:] - along * (root - 1)], -1)


@dataclass(frozen=True, eq=False)
class Mapped(Coordinates):
    """theta = f(z, S) at every site, with sums S over the sites of a chain, by the map of a `recipe.mapped` recipe.

    H contains the volume. `axes`: the number of axes of a point of the target.

    >>> from recipe import mapped, total, vector
    >>> from samplers import SGLD
    >>> from sympy import exp, log
    >>> z = vector("z")
    >>> by, inverse = lambda z: exp(z) / (1 + total(exp(z))), lambda theta: log(theta / (1 - total(theta)))
    >>> Mapped(mapped(SGLD, theta=z, by=by, inverse=inverse).maps[z])(torch.zeros(3))
    tensor([0.2500, 0.2500, 0.2500])
    """

    map: Map
    axes: int = 1

    @property
    def adds_volume(self) -> bool:
        """False: H contains the volume."""
        return False

    @cached_property
    def _functions(self) -> list[Callable]:
        """theta of z, log|det dtheta/dz| of z, and z of theta."""
        map = self.map
        return [_of_sums(x, e) for x, e in ((map.z, map.image), (map.z, map.log_determinant), (map.theta, map.inverse))]

    def __call__(self, z: torch.Tensor) -> torch.Tensor:
        return self._functions[0](z, self.axes)

    def with_volume(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """theta, and log|det dtheta/dz| of one chain."""
        leading = z.shape[: z.dim() - self.axes]
        volume = self._functions[1](z, self.axes)  # a number for a constant volume
        return self(z), volume.reshape(leading) if torch.is_tensor(volume) else z.new_full(leading, volume)

    def inverse(self, theta: torch.Tensor) -> torch.Tensor:
        """z, computed in float64."""
        return self._functions[2](theta.to(torch.float64), self.axes).to(theta.dtype)

    def placed(self, theta: torch.Tensor, where: str) -> "Mapped":
        """The map with the axes of theta; refused where theta is out of its range."""
        placed = Mapped(self.map, theta.dim() - 1)
        if not placed.inverse(theta).isfinite().all():
            raise RecipeError(where, f"the start is out of the range of {self.map}", do="Start inside of it.")
        return placed

    def account(self) -> dict[str, Any]:
        """The formula of the map."""
        return {"map": str(self.map)}

    def of_symbols(self, energy: Energy, where: str) -> Energy:
        """The energy of z without the volume, written in the coordinates of the energy of theta."""
        map, sites = self.map, energy.coordinates
        inside, sums = masked(map.image, Total)
        if energy.is_sitewise:
            known = {name: S.xreplace({map.z: sites[0]}) for name, S in sums.items()}
        else:
            known = {name: Add(*(S.integrand.xreplace({map.z: c}) for c in sites)) for name, S in sums.items()}
        U = energy.U.xreplace({c: inside.xreplace({map.z: c, **known}) for c in sites})
        return Energy(sites, U=with_short_logs(U) if map.mixes else U, data=energy.data)

    def __str__(self) -> str:
        return str(self.map)


def _of_sums(x: Any, e: Any) -> Callable:
    """The formula e, of x and of sums over sites, as a function of a tensor and the number of its site axes."""
    inside, sums = masked(e, Total)
    integrands = [lambdify([x], without_overflow(S.integrand), modules=[_TORCH, "math"]) for S in sums.values()]
    function = lambdify([x, *sums], without_overflow(inside), modules=[_TORCH, "math"])

    def of_tensor(values: torch.Tensor, axes: int) -> torch.Tensor:
        over = tuple(range(-axes, 0))
        terms = [f(values) + torch.zeros_like(values) for f in integrands]
        return function(values, *(x.sum(over, keepdim=True) if over else x for x in terms))

    return of_tensor


def _largest(*values: Any) -> torch.Tensor:
    """The elementwise maximum of tensors and numbers, at least one a tensor."""
    like = next(x for x in values if torch.is_tensor(x))
    return reduce(torch.maximum, (torch.as_tensor(x, dtype=like.dtype, device=like.device) for x in values))


def _either(name: str) -> Callable:
    """The function of this name of torch for tensors, of math for numbers."""

    def function(x: Any) -> Any:
        return getattr(torch, name)(x) if torch.is_tensor(x) else getattr(math, name)(x)

    return function


_TORCH = {name: _either(name) for name in (*ELEMENTARY, "sqrt")} | {"max": _largest}


def _number(x: float) -> Any:
    return Integer(int(x)) if x == int(x) and abs(x) < 10 else Float(x, 17)


@dataclass(frozen=True, eq=False)
class Composed(Coordinates):
    """theta = outer(inner(z)).

    >>> half = Affine(torch.zeros(1), torch.tensor([[0.5]]))
    >>> Composed(half, half)(torch.ones(1))
    tensor([0.2500])
    """

    outer: Coordinates
    inner: Coordinates
    is_linear: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_linear", self.outer.is_linear and self.inner.is_linear)

    def with_volume(self, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """theta, and the sum of both volumes."""
        middle, inner = self.inner.with_volume(z)
        theta, outer = self.outer.with_volume(middle)
        return theta, inner + outer

    def inverse(self, theta: torch.Tensor) -> torch.Tensor:
        """z with outer(inner(z)) = theta."""
        return self.inner.inverse(self.outer.inverse(theta))

    def placed(self, theta: torch.Tensor, where: str) -> "Composed":
        """Both maps placed, the inner one at outer^-1(theta)."""
        outer = self.outer.placed(theta, where)
        return Composed(outer, self.inner.placed(outer.inverse(theta), where))

    def account(self) -> dict[str, Any]:
        """The accounts of both maps."""
        return {"outer": self.outer.account(), "inner": self.inner.account()}

    def of_symbols(self, energy: Energy, where: str) -> Energy:
        """The energy of z."""
        return self.inner.of_symbols(self.outer.of_symbols(energy, where), where)

    def __str__(self) -> str:
        return f"{self.outer} after {self.inner}"


def moved_by(coordinates: Any, recipe: Recipe, energy: Any, scope: str, where: str) -> tuple[Coordinates | None, Any]:
    """The coordinates of a run, by default those of the energy or of a mapped recipe, and the energy.

    A symbolic energy is returned as a function of z, other energies unchanged. Refused unless the target is a vector
    without ends.
    """
    of_energy = getattr(energy, "coordinates", None)
    of_energy = of_energy if isinstance(of_energy, Coordinates) else None
    if recipe.maps:
        if coordinates is not None or of_energy is not None:
            what = f"the recipe is one of {next(iter(recipe.maps.values()))}"
            raise RecipeError(where, what, do="Leave coordinates out, or take the recipe that was mapped.")
        coordinates = Mapped(next(iter(recipe.maps.values())))
    elif coordinates is None and of_energy is None:
        return None, energy
    else:
        coordinates = of_energy if coordinates is None else coordinates
        _check_coordinates(coordinates, recipe, energy, scope, where)
        if of_energy is not None and _outermost(coordinates).account() != of_energy.account():
            what = f"the energy is of {of_energy}, and the coordinates do not end there"
            raise RecipeError(where, what, do="Pass Composed(energy.coordinates, coordinates).")
    return coordinates, coordinates.of_symbols(energy, where) if isinstance(energy, Energy) else energy


def _outermost(coordinates: Coordinates) -> Coordinates:
    return _outermost(coordinates.outer) if isinstance(coordinates, Composed) else coordinates


def _check_coordinates(coordinates: Any, recipe: Recipe, energy: Any, scope: str, where: str) -> None:
    if not isinstance(coordinates, Coordinates):
        what = f"coordinates are a map theta = f(z), got {coordinates!r}"
        raise RecipeError(where, what, do="Pass samplers.coordinates.Affine(center, matrix), or Simplex().")
    if energy is None:
        raise RecipeError(where, "the recipe's H is wholly symbolic, there is no energy to map", do="Write it in H.")
    check_one_potential(recipe, where)
    check_one_vector(
        recipe,
        where,
        several="and coordinates are of one",
        ends="and coordinates go anywhere",
        do="Leave coordinates out, or take a recipe of one real vector: it is z.",
    )
    if scope != "chain":
        raise RecipeError(where, f"coordinates are of a chain as a whole, not per {scope}", do="Leave scope out.")
    if any(o.is_vector for o in recipe.observations):
        names = ", ".join(o.name for o in recipe.observations if o.is_vector)
        what = f"the observation {names} has a value per site of theta, and the recipe moves z"
        raise RecipeError(where, what, do="Leave coordinates out.")
