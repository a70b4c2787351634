"""Coordinates theta = f(z) in which chains move, for `sample(coordinates=...)`."""

from .energies.coordinates import Affine, Composed, Coordinates, Simplex
from .energies.model import Constrained
from .energies.variables import ordered

__all__ = ["Affine", "Composed", "Constrained", "Coordinates", "Simplex", "ordered"]
