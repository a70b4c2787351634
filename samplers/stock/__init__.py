"""The stock samplers, one short file each; `catalogue` lists them by name."""

from recipe import Recipe

from .atmc import ATMC
from .atmc_relativistic import RelativisticATMC
from .hmc import HMC
from .isgd import ISGD, ISGDIdeal
from .msgnht import MSGNHT
from .psgld import PSGLD, PSGLDGamma, PSGLDSameStep
from .santa import SANTA
from .sgfs import SGFS
from .sghmc import SGHMC
from .sghmc_adaptive import AdaptiveSGHMC
from .sghmc_relativistic import RelativisticSGHMC
from .sghmc_sa import SGHMCSA, SGHMCSAClassification, SGHMCSAGibbs, SGHMCSAMarginal
from .sgld import SGLD
from .sgld_preconditioned import PreconditionedSGLD
from .sgld_sa import SGLDSA, SGLDSAClassification, SGLDSAGibbs, SGLDSAMarginal
from .sgnht import SGNHT
from .sgrhmc import SGRHMC
from .sgrld import SGRLD
from .sgrld_cir import SGRLDCIR
from .sgrld_dense import SGRLDDense
from .sgrld_simplex import SGRLDSimplex
from .underdamped_langevin import UnderdampedLangevin
from .vsgd import VSGD

catalogue = {
    recipe.name: recipe
    for recipe in (
        SGLD,
        PreconditionedSGLD,
        PSGLD,
        PSGLDSameStep,
        PSGLDGamma,
        SGRLD,
        SGRLDDense,
        SGRLDSimplex,
        SGRLDCIR,
        SGFS,
        VSGD,
        ISGDIdeal,
        ISGD,
        UnderdampedLangevin,
        SGHMC,
        AdaptiveSGHMC,
        SGRHMC,
        RelativisticSGHMC,
        HMC,
        SGNHT,
        MSGNHT,
        ATMC,
        RelativisticATMC,
        SANTA,
        SGLDSA,
        SGLDSAMarginal,
        SGLDSAGibbs,
        SGLDSAClassification,
        SGHMCSA,
        SGHMCSAMarginal,
        SGHMCSAGibbs,
        SGHMCSAClassification,
    )
}

__all__ = [name for name, value in globals().items() if isinstance(value, Recipe)]
