"""Values of operators: matrices over the sites of a chain, given as `sample(..., M=matrix)`.

Operators have `M @ x` for x of the shape `(chains, *shape)`, `root()`, `inverse()`, and `function(f)` of the
eigenvalues. A factorisation is computed at its first use and kept with the value, for steps of any size.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import Any

import torch

from recipe.errors import RecipeError

from .backends import torch_prelude
from .matrix_fields import ROUNDING, AtStates, Field  # noqa: F401 (a field is a value of an operator, too)

Function = Callable[[torch.Tensor], torch.Tensor]


class Operator(ABC):
    """Value of an operator: a structured matrix over the sites of a chain.

    `sites`: the number of rows, None if the matrix fits any number; `tensors`: the tensors that define the matrix;
    `is_placed`: whether the tensors must already lie on the state's device, else they are moved there.
    """

    is_placed = True
    sites: int | None
    tensors: tuple[torch.Tensor, ...]

    @abstractmethod
    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        """M x for every chain, in the shape of x, `(chains, *shape)`."""

    @abstractmethod
    def function(self, f: Function) -> "Operator":
        """f(M), for a function f of tensors of eigenvalues."""

    @abstractmethod
    def eigenvalues(self) -> torch.Tensor:
        """The eigenvalues, or bounds on them; imaginary for a skew matrix."""

    def asymmetry(self, sign: int) -> float:
        """The largest entry of M - sign M^T, relative to the largest entry of M; here of a symmetric M."""
        return 0.0 if sign > 0 or not any(x.any() for x in self.tensors) else 2.0

    def root(self) -> "Operator":
        """L with L L^T = M."""
        return self.function(lambda m: m.clamp(min=0).sqrt())

    def inverse(self) -> "Operator":
        """The inverse of M."""
        return self.function(lambda m: 1 / m)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(str(tuple(x.shape)) for x in self.tensors)})"


class Dense(torch_prelude.Dense, Operator):
    """A dense matrix (sites, sites), symmetric or skew.

    Raises RecipeError unless the matrix is square and finite.

    >>> M = Dense([[2.0, 1.0], [1.0, 2.0]])
    >>> M @ torch.ones(1, 2), M.sites
    (tensor([[3., 3.]]), 2)
    """

    def __init__(self, matrix: Any) -> None:
        super().__init__(_numbers(matrix, "matrix"))
        shape = tuple(self.matrix.shape)
        if len(shape) != 2 or shape[0] != shape[1]:
            raise RecipeError("operator", f"it is no square matrix, its shape is {shape}", do="Pass (sites, sites).")
        self.sites = len(self.matrix)
        self.tensors = (self.matrix,)

    def eigenvalues(self) -> torch.Tensor:
        """The eigenvalues."""
        return self.spectrum()[0]

    def asymmetry(self, sign: int) -> float:
        """The largest entry of M - sign M^T, relative to the largest entry of M."""
        size = float(self.matrix.abs().amax())
        return float((self.matrix - sign * self.matrix.mT).abs().amax()) / size if size else 0.0


class Diagonal(Operator):
    """A diagonal matrix, one number per site, or a multiple of the identity.

    >>> Diagonal([4.0, 9.0]).root() @ torch.ones(1, 2)
    tensor([[2., 3.]])
    """

    def __init__(self, values: Any) -> None:
        self.values = _numbers(values, "diagonal")
        if self.values.dim() > 1:
            raise RecipeError("operator", f"its diagonal has the shape {tuple(self.values.shape)}", do="Pass (sites,).")
        self.sites = len(self.values) if self.values.dim() else None
        self.tensors = (self.values,)

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        return (self.values.to(x.dtype) * x.reshape(len(x), -1)).reshape(x.shape)

    def function(self, f: Function) -> Operator:
        """f(M)."""
        return Diagonal(f(self.values))

    def eigenvalues(self) -> torch.Tensor:
        """The numbers on the diagonal."""
        return self.values.reshape(-1)


class Kronecker(Operator):
    """The Kronecker product A (x) B (x) ... of symmetric matrices, the last one along the last axis of the sites.

    >>> M = Kronecker([[2.0]], [[2.0, 1.0], [1.0, 2.0]])
    >>> M.sites, M @ torch.ones(1, 2)
    (2, tensor([[6., 6.]]))
    """

    def __init__(self, *factors: Any) -> None:
        self.factors = tuple(f if isinstance(f, Dense) else Dense(f) for f in factors)
        if not self.factors:
            raise RecipeError("operator", "it is a product of no matrices", do="Pass Kronecker(A, B).")
        self.tensors = tuple(f.matrix for f in self.factors)
        self.sites = math.prod(map(len, self.tensors))

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        return _along_axes(self.tensors, x)

    def function(self, f: Function) -> Operator:
        """f(M), by the eigenvectors of the factors."""
        return _OfKronecker(f(self.eigenvalues()), [factor.spectrum()[1]["exact"] for factor in self.factors])

    def eigenvalues(self) -> torch.Tensor:
        """The products of the eigenvalues of the factors."""
        return reduce(torch.kron, (f.eigenvalues() for f in self.factors))

    def asymmetry(self, sign: int) -> float:
        """The largest asymmetry of a factor."""
        return max(f.asymmetry(1) for f in self.factors) if sign > 0 else 2.0


class _OfKronecker(Operator):
    """A matrix with given eigenvalues, and with Kronecker products of `vectors` as eigenvectors."""

    def __init__(self, values: torch.Tensor, vectors: list[torch.Tensor]) -> None:
        self.values = values
        self.vectors = vectors
        self.sites = len(values)
        self.tensors = (values, *vectors)

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        turned = _along_axes([v.mT for v in self.vectors], x).reshape(len(x), -1)
        return _along_axes(self.vectors, turned * self.values.to(x.dtype)).reshape(x.shape)

    def function(self, f: Function) -> Operator:
        return _OfKronecker(f(self.values), self.vectors)

    def eigenvalues(self) -> torch.Tensor:
        return self.values


def _along_axes(matrices: Sequence[torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """The Kronecker product of matrices times x, `(chains, *shape)`: each matrix acts along one axis of the sites."""
    y = x.reshape(len(x), *map(len, matrices))
    for axis, m in enumerate(matrices, 1):
        y = torch.movedim(torch.movedim(y, axis, -1) @ m.to(x.dtype).mT, -1, axis)
    return y.reshape(x.shape)


class Blocks(Operator):
    """A block-diagonal matrix: an operator for each run of neighbouring sites, such as the tensors of a target.

    >>> M = Blocks([[2.0]], Diagonal([3.0, 4.0]))
    >>> M.sites, M @ torch.ones(1, 3)
    (3, tensor([[2., 3., 4.]]))
    """

    def __init__(self, *blocks: Any) -> None:
        self.blocks = tuple(map(value_of, blocks))
        self.sizes = [b.sites or 0 for b in self.blocks]
        if not all(self.sizes) or not blocks:
            raise RecipeError("operator", "each block has a number of sites", do="Pass matrices, or their structures.")
        self.sites = sum(self.sizes)
        self.tensors = tuple(x for b in self.blocks for x in b.tensors)

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        runs = x.reshape(len(x), -1).split(self.sizes, 1)
        return torch.cat([b @ run for b, run in zip(self.blocks, runs, strict=True)], 1).reshape(x.shape)

    def _of(self, images: Iterable[Any]) -> "Blocks":
        other = copy.copy(self)
        other.blocks = tuple(images)
        return other

    def function(self, f: Function) -> Operator:
        """f of every block."""
        return self._of(b.function(f) for b in self.blocks)

    def root(self) -> Operator:
        """The roots of the blocks."""
        return self._of(b.root() for b in self.blocks)

    def inverse(self) -> Operator:
        """The inverses of the blocks."""
        return self._of(b.inverse() for b in self.blocks)

    def eigenvalues(self) -> torch.Tensor:
        """The eigenvalues of all blocks."""
        return torch.cat([b.eigenvalues() for b in self.blocks])

    def asymmetry(self, sign: int) -> float:
        """The largest asymmetry of a block."""
        return max(b.asymmetry(sign) for b in self.blocks)


class LowRank(Operator):
    """A diagonal plus a matrix of low rank, diag(d) + W W^T with d > 0 and W (sites, rank), at cost sites x rank.

        M = d^(1/2) (1 + G G^T) d^(1/2),   G = d^(-1/2) W = U s V^T,   f(1 + G G^T) = f(1) + U (f(1 + s^2) - f(1)) U^T

    `diagonal`: d, a number or one per site; functions other than root and inverse need d to be one number.

    >>> M = LowRank(1.0, [[1.0], [1.0]])
    >>> M @ torch.ones(1, 2), M.sites
    (tensor([[3., 3.]]), 2)
    """

    def __init__(self, diagonal: Any, factor: Any) -> None:
        self.diagonal = _numbers(diagonal, "diagonal")
        self.factor = _numbers(factor, "factor")
        shapes = tuple(self.diagonal.shape), tuple(self.factor.shape)
        if len(shapes[1]) != 2 or shapes[0] not in ((), shapes[1][:1]):
            what = f"a diagonal {shapes[0]} and a factor {shapes[1]} do not meet"
            raise RecipeError("operator", what, do="Pass (sites,) and (sites, rank).")
        if not (self.diagonal > 0).all():
            raise RecipeError("operator", "its diagonal is not positive", do="Pass positive numbers.")
        self.sites = len(self.factor)
        self.tensors = (self.diagonal, self.factor)
        self.scale = self.diagonal.sqrt()
        self.U, self.s, _ = torch.linalg.svd(self.factor / self.scale.unsqueeze(-1), full_matrices=False)

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        return self._scaled(lambda m: m, self.scale, self.scale) @ x

    def _scaled(self, f: Function, left: torch.Tensor, right: torch.Tensor) -> Operator:
        return _OfLowRank(f(torch.ones_like(self.s[:1])), f(1 + self.s**2), self.U, left, right)

    def root(self) -> Operator:
        """d^(1/2) (1 + G G^T)^(1/2)."""
        return self._scaled(torch.sqrt, self.scale, torch.ones_like(self.scale))

    def inverse(self) -> Operator:
        """d^(-1/2) (1 + G G^T)^(-1) d^(-1/2)."""
        return self._scaled(lambda m: 1 / m, 1 / self.scale, 1 / self.scale)

    def function(self, f: Function) -> Operator:
        """f(M); raises RecipeError unless the diagonal is one number."""
        if self.diagonal.dim():
            what = "of a diagonal of many numbers plus a low rank only products, roots and inverses are known"
            raise RecipeError("operator", what, do="Pass one number for the diagonal, or the whole matrix.")
        one = torch.ones_like(self.scale)
        return self._scaled(lambda m: f(self.diagonal * m), one, one)

    def eigenvalues(self) -> torch.Tensor:
        """Bounds on the eigenvalues."""
        diagonal = self.diagonal.reshape(-1)
        return torch.stack([diagonal.amin(), diagonal.amax() * (1 + self.s.amax() ** 2)])


class _OfLowRank(Operator):
    """left (c + U (values - c) U^T) right, with diagonal matrices left and right."""

    def __init__(self, *tensors: torch.Tensor):
        self.c, self.values, self.U, self.left, self.right = self.tensors = tensors
        self.sites = len(self.U)

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        c, values, U, left, right = (t.to(x.dtype) for t in self.tensors)
        y = right * x.reshape(len(x), -1)
        return (left * (c * y + ((y @ U) * (values - c)) @ U.mT)).reshape(x.shape)

    def function(self, f: Function) -> Operator:
        """f(M), valid if left = right = 1."""
        return _OfLowRank(f(self.c), f(self.values), self.U, self.left, self.right)

    def root(self) -> Operator:
        return _OfLowRank(self.c.sqrt(), self.values.sqrt(), self.U, self.left, torch.ones_like(self.right))

    def eigenvalues(self) -> torch.Tensor:
        """The eigenvalues of the matrix between left and right."""
        return torch.cat([self.c, self.values])


def value_of(x: Any) -> Operator:
    """The Operator of a value: an Operator itself, a number or vector as a diagonal, a matrix as dense."""
    if isinstance(x, Operator):
        return x
    if isinstance(x, Field):
        raise RecipeError("operator", "it is constant, and a Field moves", do='Declare operator("M", at=theta).')
    numbers = _numbers(x, "matrix")
    return Diagonal(numbers) if numbers.dim() < 2 else Dense(numbers)


def _numbers(x: Any, what: str) -> torch.Tensor:
    """Finite real numbers as a tensor in float64."""
    if isinstance(x, type):
        raise RecipeError("operator", f"its {what} is the class {x.__name__}", do=f"Make one: {x.__name__}(...).")
    try:
        numbers = x if torch.is_tensor(x) else torch.as_tensor(x, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RecipeError("operator", f"its {what} is not made of numbers: {error}", do="Pass a tensor.") from error
    if numbers.is_complex() or not numbers.numel() or not numbers.isfinite().all():
        raise RecipeError("operator", f"its {what} is not made of finite real numbers", do="Pass finite numbers.")
    return numbers.detach().double()


SAVED: dict[str, Callable[..., Operator]] = {c.__name__: c for c in (Dense, Diagonal, Kronecker, Blocks, LowRank)}


def taken_apart(value: Any) -> Any:
    """A structured matrix as a dict from the name of its class to its tensors, to be saved; other values unchanged.

    >>> taken_apart(Diagonal([1.0, 2.0]))
    {'Diagonal': [tensor([1., 2.], dtype=torch.float64)]}
    """
    name = type(value).__name__
    if SAVED.get(name) is not type(value):
        return value
    return {name: [taken_apart(b) for b in value.blocks] if isinstance(value, Blocks) else list(value.tensors)}


def put_together(value: Any) -> Any:
    """The structured matrix from its form by `taken_apart`; other values unchanged.

    >>> put_together({"Diagonal": [torch.ones(2)]})
    Diagonal((2,))
    """
    if not isinstance(value, Mapping) or len(value) != 1 or not value.keys() <= SAVED.keys():
        return value
    ((name, arguments),) = value.items()
    return SAVED[name](*map(put_together, arguments))
