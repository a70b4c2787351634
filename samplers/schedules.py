"""Step sizes and temperatures as functions of the step number."""

from .running.schedules import BlockDecay, Cyclical, Jittered, Later, Polynomial

__all__ = ["Polynomial", "BlockDecay", "Cyclical", "Jittered", "Later"]
