"""Coordinates theta = f(z) in which chains move, for `sample(coordinates=...)`."""

from .target.constraint_maps import ordered
from .target.coordinates import Affine, Composed, Coordinates, Simplex
from .target.model import Constrained

__all__ = ["Affine", "Composed", "Constrained", "Coordinates", "Simplex", "ordered"]
