"""Ranks as torchrun starts them, but forked from the process of the tests, which has imported what they use.

torchrun itself starts ranks in the slow tests.
"""

import gc
import importlib
import os
import signal
import tempfile
import traceback
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

USED = ("torch._dynamo", "torch.distributed.tensor", "torch.distributed.checkpoint.state_dict")
SECONDS = 600  # after which a rank that waits for another one is killed


def on_ranks(ranks: int, entry, *arguments) -> None:
    """Call `entry` on so many ranks; AssertionError where a rank fails."""
    for module in USED:
        importlib.import_module(module)
    with tempfile.TemporaryDirectory() as folder:
        children = [_begun(Path(folder), rank, ranks, entry, arguments) for rank in range(ranks)]
        failed = [os.waitpid(child, 0)[1] != 0 for child in children]
        assert not any(failed), [path.read_text()[-3000:] for path in Path(folder).glob("*.txt")]


def _begun(folder: Path, rank: int, ranks: int, entry, arguments) -> int:
    """The process of a rank; one that fails leaves its traceback in the folder."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a thread of xdist, whose locks no rank takes
        child = os.fork()
    if child:
        return child
    try:
        signal.alarm(SECONDS)
        gc.freeze()
        torch.set_num_threads(1)
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
        init, store = dist.init_process_group, f"file://{folder}/store"
        dist.init_process_group = lambda backend: init(backend, init_method=store, rank=rank, world_size=ranks)
        entry(*arguments)
        os._exit(0)  # without the end of all modules, which takes longer than the ranks
    except BaseException:
        (folder / f"{rank}.txt").write_text(traceback.format_exc())
        os._exit(1)
