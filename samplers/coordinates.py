"""Coordinates theta = f(z) in which chains move, for `sample(coordinates=...)`."""

from .target.coordinates import Affine, Composed, Coordinates, Simplex
from .target.model import Constrained
from .target.variables import ordered

__all__ = ["Affine", "Composed", "Constrained", "Coordinates", "Simplex", "ordered"]
