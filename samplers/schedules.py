"""Step sizes and temperatures as functions of the step number."""

from .running.schedules import BlockDecay, Cyclical, Later, Polynomial

__all__ = ["Polynomial", "BlockDecay", "Cyclical", "Later"]
