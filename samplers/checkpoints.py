"""Checkpoints of runs, in a `Folder`, and of training loops."""

from .running.recording import Folder
from .training.checkpoint import Checkpoint, read

__all__ = ["Folder", "Checkpoint", "read"]
