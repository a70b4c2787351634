"""Maps from free numbers to increasing numbers and to covariance matrices, registered with torch."""

import math
from typing import Any

import torch
from torch.distributions import Transform, biject_to, constraints
from torch.distributions.constraints import Constraint


class OrderedTransform(Transform):
    """x_1 = z_1, x_k = x_{k-1} + exp(z_k): free numbers to increasing numbers, along the last axis.

    >>> OrderedTransform()(torch.zeros(3))
    tensor([0., 1., 2.])
    """

    domain = constraints.real_vector
    bijective = True

    @constraints.dependent_property(event_dim=1)
    def codomain(self) -> Constraint:
        """Increasing numbers."""
        return ordered

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrderedTransform)

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x[..., :1], x[..., 1:].exp()], -1).cumsum(-1)

    def _inverse(self, y: torch.Tensor) -> torch.Tensor:
        return torch.cat([y[..., :1], y.diff(dim=-1).log()], -1)

    def log_abs_det_jacobian(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """log|det dx/dz|, the sum of all free numbers but the first."""
        return x[..., 1:].sum(-1)


class _Ordered(Constraint):
    event_dim = 1

    def check(self, value: torch.Tensor) -> torch.Tensor:
        return (value.diff(dim=-1) > 0).all(-1)


class CovarianceTransform(Transform):
    """S = L L^T with L_kk = exp(z_k) and the other numbers of z below: free numbers to positive definite matrices.

    Source: Pinheiro and Bates (1996), "Unconstrained parametrizations for variance-covariance matrices", section 2.1.

    >>> CovarianceTransform()(torch.tensor([0.0, 0.0, 2.0]))
    tensor([[1., 2.],
            [2., 5.]])
    """

    domain = constraints.real_vector
    codomain = constraints.positive_definite
    bijective = True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CovarianceTransform)

    def forward_shape(self, shape: Any) -> torch.Size:
        """The shape of S for that of z, `(*batch, d (d + 1)/2)`."""
        d = math.isqrt(2 * shape[-1])
        return torch.Size([*shape[:-1], d, d])

    def inverse_shape(self, shape: Any) -> torch.Size:
        """The shape of z for that of S, `(*batch, d, d)`."""
        d = shape[-1]
        return torch.Size([*shape[:-2], d * (d + 1) // 2])

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        number = x.shape[-1]
        d = math.isqrt(2 * number)
        place = torch.full((d, d), number)
        place[*torch.tril_indices(d, d, -1)] = torch.arange(d, number)
        below = torch.cat([x, torch.zeros_like(x[..., :1])], -1)[..., place]
        L = below + torch.diag_embed(x[..., :d].exp())
        return L @ L.mT

    def _inverse(self, y: torch.Tensor) -> torch.Tensor:
        d = y.shape[-1]
        L, failed = torch.linalg.cholesky_ex(y)
        z = torch.cat([L.diagonal(dim1=-2, dim2=-1).log(), L[..., *torch.tril_indices(d, d, -1)]], -1)
        is_skew = (y - y.mT).abs().amax((-2, -1)) > 1e-5 * y.abs().amax((-2, -1))
        return torch.where((is_skew | (failed != 0))[..., None], torch.nan, z)

    def log_abs_det_jacobian(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """log|det dS/dz| of S on and below its diagonal, d log 2 + sum_k (d + 2 - k) z_k for k = 1, ..., d"""
        d = y.shape[-1]
        return (x[..., :d] * torch.arange(d + 1, 1, -1).to(x)).sum(-1) + d * math.log(2)


ordered = _Ordered()
biject_to.register(_Ordered, lambda constraint: OrderedTransform())
biject_to.register(constraints.positive_definite, lambda constraint: CovarianceTransform())
if hasattr(constraints, "MixtureSameFamilyConstraint"):  # torch 2.7 takes the constraint of the components itself
    biject_to.register(constraints.MixtureSameFamilyConstraint, lambda mixture: biject_to(mixture.base_constraint))
