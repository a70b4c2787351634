"""Checkpoints of runs, in a `Folder` (`running/recording.py`), and of training loops (`training/checkpoint.py`)."""

from .running.recording import Folder
from .training.checkpoint import Checkpoint, read

__all__ = ["Folder", "Checkpoint", "read"]
