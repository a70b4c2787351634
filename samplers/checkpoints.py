"""Checkpoints of training loops."""

from .training.checkpoint import Checkpoint, read

__all__ = ["Checkpoint", "read"]
