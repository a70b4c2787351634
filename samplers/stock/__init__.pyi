"""The stock samplers, for type checkers."""

from collections.abc import Iterator, Mapping

from recipe import Recipe

from .atmc import ATMC as ATMC
from .atmc_relativistic import RelativisticATMC as RelativisticATMC
from .ghmc import GHMC as GHMC
from .hmc import HMC as HMC
from .hmc_randomised import RandomisedHMC as RandomisedHMC
from .isgd import ISGD as ISGD, ISGDIdeal as ISGDIdeal
from .mala import MALA as MALA
from .msgnht import MSGNHT as MSGNHT
from .psgld import PSGLD as PSGLD, PSGLDGamma as PSGLDGamma, PSGLDSameStep as PSGLDSameStep
from .santa import SANTA as SANTA
from .sgfs import SGFS as SGFS
from .sghmc import SGHMC as SGHMC
from .sghmc_adaptive import AdaptiveSGHMC as AdaptiveSGHMC
from .sghmc_relativistic import RelativisticSGHMC as RelativisticSGHMC
from .sghmc_sa import (
    SGHMCSA as SGHMCSA,
    SGHMCSAClassification as SGHMCSAClassification,
    SGHMCSAClassificationGibbs as SGHMCSAClassificationGibbs,
    SGHMCSAClassificationMarginal as SGHMCSAClassificationMarginal,
    SGHMCSAGibbs as SGHMCSAGibbs,
    SGHMCSAMarginal as SGHMCSAMarginal,
)
from .sgld import SGLD as SGLD
from .sgld_preconditioned import PreconditionedSGLD as PreconditionedSGLD
from .sgld_sa import (
    SGLDSA as SGLDSA,
    SGLDSAClassification as SGLDSAClassification,
    SGLDSAClassificationGibbs as SGLDSAClassificationGibbs,
    SGLDSAClassificationMarginal as SGLDSAClassificationMarginal,
    SGLDSAGibbs as SGLDSAGibbs,
    SGLDSAMarginal as SGLDSAMarginal,
)
from .sgnht import SGNHT as SGNHT
from .sgrhmc import SGRHMC as SGRHMC
from .sgrld import SGRLD as SGRLD
from .sgrld_cir import SGRLDCIR as SGRLDCIR
from .sgrld_dense import SGRLDDense as SGRLDDense
from .sgrld_simplex import SGRLDSimplex as SGRLDSimplex
from .underdamped_langevin import UnderdampedLangevin as UnderdampedLangevin
from .vsgd import VSGD as VSGD

class Catalogue(Mapping[str, Recipe]):
    def __getitem__(self, name: str) -> Recipe: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...

catalogue: Catalogue

def recipe_of(recipe: Recipe | str, where: str, *, most: int = 3) -> Recipe: ...
