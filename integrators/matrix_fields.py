"""Values of operators that are functions of theta: a matrix at every theta, with its divergence and its slopes."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import torch

from recipe.errors import RecipeError

from .backends import torch_prelude

ROUNDING = 1e-12  # largest asymmetry and negative eigenvalue, relative to the largest entry or eigenvalue


class Field:
    """Value of an operator that is a function of theta: a matrix at every theta, and its row divergence.

        Gamma_i = sum_j dM_ij / dtheta_j

    `matrix(theta)`: `(sites, sites)`, `divergence(theta)`: in the shape of theta, both torch functions of one chain, in
    the dtype of theta. Before its first step a run checks the divergence by differences of the matrix; a metric in H
    needs none, and its slope is that of autograd. Raises RecipeError if one of the two is no function.

    >>> M = Field(lambda x: torch.outer(x, x) + torch.eye(2), divergence=lambda x: 3 * x)
    >>> M.at(torch.ones(1, 2)) @ torch.tensor([[1.0, 0.0]])
    tensor([[2., 1.]])
    """

    def __init__(self, matrix: Callable, divergence: Callable | None = None) -> None:
        if not callable(matrix):
            what = f"its matrix is a function of theta, got {matrix!r}"
            raise RecipeError("Field", what, do="Pass Field(lambda theta: ..., divergence=lambda theta: ...).")
        if not (divergence is None or callable(divergence)):
            what = f"its divergence is a function of theta, got {divergence!r}"
            raise RecipeError("Field", what, do="Pass divergence=lambda theta: ...")
        self.matrix = matrix
        self.divergence = divergence

    def at(self, x: torch.Tensor) -> "AtStates":
        """The matrices at the states of all chains, `(chains, *shape)`."""
        divergence = None if self.divergence is None else torch.vmap(self.divergence)(x)
        return AtStates(torch.vmap(self.matrix)(x), divergence, self, x)

    def __repr__(self) -> str:
        return "Field"


class AtStates(torch_prelude.Dense):
    """A matrix for every chain, `(chains, sites, sites)`: that of a field at x, with its `divergence`."""

    def __init__(self, matrix: torch.Tensor, divergence: torch.Tensor | None, field: Field, x: torch.Tensor) -> None:
        super().__init__(matrix)
        self.divergence = divergence
        self.field, self.x = field, x

    def at(self, x: torch.Tensor) -> "AtStates":
        """The matrices of the field at other states."""
        return self.field.at(x)

    def spectrum(self) -> tuple:
        """The eigenvalues and eigenvectors; eigenvalues nan for chains whose matrix is not finite."""
        if self.known is None:
            lost = ~self.matrix.isfinite().all(-1).all(-1)
            identity = torch.eye(self.matrix.shape[-1]).to(self.matrix)
            values, bases = torch_prelude.Dense(torch.where(lost[:, None, None], identity, self.matrix)).spectrum()
            self.known = values.masked_fill(lost[:, None], float("nan")), bases
        return self.known

    @cached_property
    def _inverse(self) -> torch_prelude.Dense:
        return torch_prelude.Dense(torch.linalg.inv_ex(self.matrix).inverse)

    def inverse(self) -> torch_prelude.Dense:
        """The inverse."""
        return self._inverse

    def slope(self, a: torch.Tensor, b: torch.Tensor, *, of_inverse: bool = False) -> torch.Tensor:
        """sum_ij a_i dM_ij/dx_k b_j, or that of the inverse of M, at each site k."""
        if of_inverse:
            inverse = self.inverse()
            a, b = -(inverse @ a), inverse @ b
        return self.contracted(a.flatten(1).unsqueeze(2) * b.flatten(1).unsqueeze(1))

    def slope_of_trace(self, F: torch_prelude.Eigen) -> torch.Tensor:
        """tr(F dM/dx_k) at each site k."""
        identity = torch.eye(self.matrix.shape[-1]).to(self.matrix)
        return self.contracted(F @ identity.expand(len(self.matrix), -1, -1))

    def contracted(self, X: torch.Tensor) -> torch.Tensor:
        """sum_ij X_ij dM_ij/dx_k at each site k, by autograd."""
        x, matrix = self._traced
        if not matrix.requires_grad:  # a constant
            return torch.zeros_like(x)
        (slope,) = torch.autograd.grad(matrix, x, X.to(x.dtype), retain_graph=True)
        return slope

    @cached_property
    def _traced(self) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.enable_grad():
            x = self.x.detach().requires_grad_()
            return x, torch.vmap(self.field.matrix)(x)

    def root(self) -> Any:
        """A square root; nan for chains whose matrix is not positive semidefinite."""

        def root_or_nan(m: torch.Tensor) -> torch.Tensor:
            is_negative = m < -ROUNDING * m.abs().amax(-1, keepdim=True)  # more than by rounding
            return m.clamp(min=0).sqrt().masked_fill(is_negative, float("nan"))

        return self.function(root_or_nan)
