"""Variables in units of their own law: theta = m + s^(1-c) (z - c m), non-centred at c = 0, centred at c = 1.

Source: Papaspiliopoulos, Roberts & Skold 2007, "A general framework for the parametrization of hierarchical models",
section 2.1; Gorinova, Moore & Hoffman 2020, "Automatic reparameterisation of probabilistic programs", for degrees c.
"""

import torch
from torch.distributions import (
    AffineTransform,
    ComposeTransform,
    Distribution,
    MultivariateNormal,
    Transform,
    TransformedDistribution,
    constraints,
)

from .independent import of_each


class Coloured(Transform):
    """x = m + L z of a vector z, with L lower triangular, `(..., n, n)`, and m `(..., n)`.

    >>> Coloured(torch.ones(2), torch.tensor([[2.0, 0.0], [1.0, 3.0]]))(torch.ones(2))
    tensor([3., 5.])
    """

    domain = codomain = constraints.real_vector
    bijective = True

    def __init__(self, location: torch.Tensor, factor: torch.Tensor) -> None:
        super().__init__()
        self.location = location
        self.factor = factor

    def _call(self, x: torch.Tensor) -> torch.Tensor:
        return self.location + (self.factor @ x[..., None])[..., 0]

    def _inverse(self, y: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve_triangular(self.factor, (y - self.location)[..., None], upper=False)[..., 0]

    def log_abs_det_jacobian(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """log det L."""
        return self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1).expand(x.shape[:-1])


def centring(law: Distribution, degree: float) -> Transform | None:
    """The map from free numbers to values of a law with a location m and a scale s; None of another law.

    A normal vector is non-centred by its triangular factor, at degree 0 alone. A law that is mapped, as a LogNormal, is
    so before its map.

    >>> from torch.distributions import LogNormal, Normal
    >>> centring(Normal(1.0, 4.0), 0.5)(torch.tensor(3.0))                               # 1 + 2 (3 - 1/2)
    tensor(6.)
    >>> centring(LogNormal(0.0, 2.0), 0.0)(torch.tensor(0.0))
    tensor(1.)
    """
    of = of_each(law)
    if isinstance(of, MultivariateNormal):
        return None if degree else Coloured(of.loc, of.scale_tril)
    if isinstance(of, TransformedDistribution):
        inner = centring(of.base_dist, degree)
        monotone = all(map.bijective for map in of.transforms)
        return ComposeTransform([inner, *of.transforms]) if inner is not None and monotone else None
    if not (hasattr(of, "loc") and hasattr(of, "scale") and of.support is constraints.real):
        return None
    scale = of.scale ** (1 - degree)
    return AffineTransform(of.loc - degree * scale * of.loc, scale)
