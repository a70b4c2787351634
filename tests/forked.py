"""Processes that are forked from that of the tests, which has imported what they use: imports are most of a process.

torchrun itself starts ranks in the slow tests.
"""

import gc
import importlib
import os
import signal
import tempfile
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

USED = ("torch._dynamo", "torch.distributed.tensor", "torch.distributed.checkpoint.state_dict")
SECONDS = 600  # after which a process is killed, as one that waits for another which has failed


def on_ranks(ranks: int, entry: Callable, *arguments) -> None:
    """Call `entry` on so many ranks; AssertionError where a rank fails."""
    for module in USED:
        importlib.import_module(module)
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        side_by_side([partial(_of_rank, store, rank, ranks, entry, *arguments) for rank in range(ranks)])


def side_by_side(calls: list[Callable]) -> None:
    """Make each call in a process of its own; AssertionError, with tracebacks, where one fails."""
    with tempfile.TemporaryDirectory() as folder:
        children = [_begun(call, Path(folder, f"{k}.txt")) for k, call in enumerate(calls)]
        failed = [os.waitpid(child, 0)[1] != 0 for child in children]
        assert not any(failed), [path.read_text()[-3000:] for path in Path(folder).iterdir()]


def _begun(call: Callable, told: Path) -> int:
    """The process of a call; one that fails tells of it in a file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a thread of xdist, whose locks no call takes
        child = os.fork()
    if child:
        return child
    try:
        signal.alarm(SECONDS)
        gc.freeze()
        call()
        os._exit(0)  # without the end of all modules, which takes longer than most calls
    except BaseException:
        told.write_text(traceback.format_exc())
        os._exit(1)


def _of_rank(store: str, rank: int, ranks: int, entry: Callable, *arguments) -> None:
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
    init = dist.init_process_group
    dist.init_process_group = lambda backend: init(backend, init_method=store, rank=rank, world_size=ranks)
    entry(*arguments)
