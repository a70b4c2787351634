"""The public names of samplers.testing, for type checkers and for `attach_stub`."""

from .audits import audit as audit, Audit as Audit
from .checks import assert_stationary as assert_stationary, check as check
from .densities import density as density
from .diagnosis import diagnose as diagnose, Diagnosis as Diagnosis
from .layers import LAYERS as LAYERS
from .properties import PROPERTIES as PROPERTIES, residual_is_zero as residual_is_zero
from .check_results import LeftOut as LeftOut, Report as Report, Result as Result
from .strategies import (
    recipes as recipes,
    schemes as schemes,
    energies as energies,
    targets as targets,
    states as states,
    steps as steps,
)
