"""Certificate of a recipe: whether its chain has one stationary law, exp(-H/T), with the target as its marginal.

A Fokker-Planck residual of 0 is one question of nine. A chain has the promised law only if exp(-H/T) is integrable, no
mass leaves at a boundary, at infinity or at a jump of the formulas, and the noise reaches every block.
"""

from ..results import Certificate, Finding
from .definite import least_eigenvalue, minimum_eigenvalue

__all__ = ["Certificate", "Finding", "least_eigenvalue", "minimum_eigenvalue"]
