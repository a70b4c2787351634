"""The devices that tests run on; where there is no GPU, Triton's kernels run in its interpreter.

`conftest.py` imports it before anything that imports triton.
"""

import os

import torch

from samplers.testing.random_calls import device_of

DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()
TRITON = device_of("triton")
if TRITON == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
