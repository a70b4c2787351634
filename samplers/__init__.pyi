"""The public names of samplers, for type checkers and for `attach_stub`, which imports a name when it is asked for."""

from . import (
    checkpoints as checkpoints,
    coordinates as coordinates,
    diagnostics as diagnostics,
    distributed as distributed,
    schedules as schedules,
    scores as scores,
    stock as stock,
    testing as testing,
)
from .annealing.evidence import Evidence as Evidence, evidence as evidence
from .target.control_variates import control_variate as control_variate, find_mode as find_mode
from .target.from_pyro import from_pyro as from_pyro
from .target.gradient_variance import gradient_variance as gradient_variance
from .target.model import Model as Model, model as model
from .target.posterior import posterior as posterior, score_variance as score_variance
from .results.draws import Draws as Draws
from .results.predictive import Predictive as Predictive, PredictiveMoments as PredictiveMoments
from .results.swag import SWAG as SWAG
from .running.parallel_tempering import Ladder as Ladder
from .running.phases import Phase as Phase
from .running.points import Start as Start
from .running.sampling import Metropolis as Metropolis
from .stock import (
    AdaptiveSGHMC as AdaptiveSGHMC,
    ATMC as ATMC,
    GHMC as GHMC,
    HMC as HMC,
    ISGD as ISGD,
    ISGDIdeal as ISGDIdeal,
    MALA as MALA,
    MSGNHT as MSGNHT,
    PreconditionedSGLD as PreconditionedSGLD,
    PSGLD as PSGLD,
    PSGLDGamma as PSGLDGamma,
    PSGLDSameStep as PSGLDSameStep,
    RandomisedHMC as RandomisedHMC,
    RelativisticATMC as RelativisticATMC,
    RelativisticSGHMC as RelativisticSGHMC,
    SANTA as SANTA,
    SGFS as SGFS,
    SGHMC as SGHMC,
    SGHMCSA as SGHMCSA,
    SGHMCSAClassification as SGHMCSAClassification,
    SGHMCSAClassificationGibbs as SGHMCSAClassificationGibbs,
    SGHMCSAClassificationMarginal as SGHMCSAClassificationMarginal,
    SGHMCSAGibbs as SGHMCSAGibbs,
    SGHMCSAMarginal as SGHMCSAMarginal,
    SGLD as SGLD,
    SGLDSA as SGLDSA,
    SGLDSAClassification as SGLDSAClassification,
    SGLDSAClassificationGibbs as SGLDSAClassificationGibbs,
    SGLDSAClassificationMarginal as SGLDSAClassificationMarginal,
    SGLDSAGibbs as SGLDSAGibbs,
    SGLDSAMarginal as SGLDSAMarginal,
    SGNHT as SGNHT,
    SGRHMC as SGRHMC,
    SGRLD as SGRLD,
    SGRLDCIR as SGRLDCIR,
    SGRLDDense as SGRLDDense,
    SGRLDSimplex as SGRLDSimplex,
    UnderdampedLangevin as UnderdampedLangevin,
    VSGD as VSGD,
    catalogue as catalogue,
)
from .training.checkpoint import Checkpoint as Checkpoint
from .training.ensemble import Ensemble as Ensemble
from .training.minibatches import Minibatches as Minibatches
from .training.optimizer import Optimizer as Optimizer
from .training.svrg import SVRG as SVRG
from .tuning.automatic import sample as sample
from .tuning.tune import Settings as Settings, tune as tune

__version__: str
