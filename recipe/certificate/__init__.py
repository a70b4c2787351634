"""The certificate of a recipe: has its chain one stationary law, exp(-H/T), with the target as its marginal?

A Fokker-Planck residual of 0 is one question of nine. A chain has the law that is promised only if exp(-H/T) can be
integrated, if no mass leaves at a boundary, at infinity or at a jump of the formulas, and if the noise reaches
everything.
"""

from .definite import least_eigenvalue, minimum_eigenvalue, numeric
from .finding import Certificate, Finding

__all__ = ["Certificate", "Finding", "least_eigenvalue", "minimum_eigenvalue", "numeric"]
