"""Step sizes and temperatures as functions of the step number."""

from .running.schedules import Polynomial, BlockDecay, Cyclical, Later

__all__ = ["Polynomial", "BlockDecay", "Cyclical", "Later"]
