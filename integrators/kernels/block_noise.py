"""Random numbers of many steps by one launch of a Triton kernel: those of `integrators.noise`, up to rounding."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from ..noise import FUNCTIONS, Key, Shape, check_high, steps_of_block
from . import gpu
from .fallback import kernel_or_none

WHERE = "noise, triton"
GROUPS = 512  # groups of four sites of a program
GROUPS_OF_WARP = 128  # 16 numbers for each thread


def functions_on(device: torch.device) -> Mapping[str, Callable[..., Any]]:
    """`noise.FUNCTIONS`, of which kernels draw normals, uniform numbers and integers for a range of steps.

    Where Triton launches no kernel on the device, all are those of torch, with a warning that says why.
    """
    kernels = {kind: partial(filled, kind) for kind in ("normal", "uniform", "integers")}
    return FUNCTIONS | (kernel_or_none("auto", lambda: gpu.check_launches(WHERE, device) or kernels) or {})


def filled(
    kind: str,
    seed: int,
    steps: range,
    draw: int,
    chains: int,
    shape: Shape,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.int64,
    first_chain: int = 0,
    high: int = 0,
) -> torch.Tensor:
    """The numbers of a draw in `steps`, one after another, `(steps, chains, *shape)`; `high`: the end of integers."""
    from ..backends.triton_prelude import fill

    for step in (*steps[:1], *steps[-1:]):
        Key(seed, step, first_chain).check(chains)
    if kind == "integers":
        check_high(high)
    out = torch.empty((len(steps), chains, *shape), dtype=dtype, device=device)
    if not out.numel():
        return out
    sites = math.prod(shape)
    across = gpu.power_of_two(-(-sites // 4), GROUPS)
    along = gpu.power_of_two(chains, GROUPS // across)
    programs = len(steps) * -(-chains // along) * -(-sites // (4 * across))
    numbers = chains, sites, first_chain, steps.start, gpu.signed(seed), draw, high
    constants = {
        "KIND": kind,
        "R": None if kind == "integers" else gpu.real_of(WHERE, dtype),
        "FEW": sites if steps_of_block(sites) > 1 else 0,
        "ALIGNED": sites % 4 == 0,
        "CHAINS": along,
        "GROUPS": across,
        "num_warps": max(1, across * along // GROUPS_OF_WARP),
    }
    with gpu.on(device):
        gpu.Launch("fill", fill, (programs,), (out, *numbers), constants)()
    return out
