"""The stock samplers, one short file each; `CATALOGUE` lists them by name."""

from .atmc import ATMC
from .msgnht import MSGNHT
from .sghmc import SGHMC
from .sgld import SGLD
from .sgld_preconditioned import PreconditionedSGLD
from .sgnht import SGNHT
from .sgrld import SGRLD
from .underdamped_langevin import UnderdampedLangevin

CATALOGUE = {recipe.name: recipe for recipe in (
    SGLD, PreconditionedSGLD, SGRLD, UnderdampedLangevin, SGHMC, SGNHT, MSGNHT, ATMC)}
