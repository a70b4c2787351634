"""Coordinates theta = f(z) in which chains move, for `sample(coordinates=...)`."""

from .energies.coordinates import Affine, Composed, Coordinates

__all__ = ["Affine", "Composed", "Coordinates"]
