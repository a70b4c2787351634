"""Ranks as torchrun starts them, but forked from one process that has imported what they use: imports are most of it.

`python forked.py RANKS SCRIPT ARGUMENTS`, with RANKS such as 2,4: first on two, then on four. torchrun itself starts
ranks in the slow tests.
"""

import gc
import importlib
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from integrators.kernels import native

USED = ("scipy.special", "torch._dynamo", "torch.distributed.tensor", "torch.distributed.checkpoint.state_dict")


def on_ranks(ranks: int | tuple[int, ...], script: Path, *arguments) -> None:
    """Run `main` of a script on so many ranks, or on one number after another; AssertionError where a rank fails."""
    numbers = ranks if isinstance(ranks, tuple) else (ranks,)
    command = [sys.executable, __file__, ",".join(map(str, numbers)), script, *arguments]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    compiler = native.compiler()
    if compiler:  # with the flags of these tests
        environment["CXX"] = shlex.join([*compiler.command, *native.FLAGS, *compiler.flags])
    result = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stderr[-3000:]


def main(numbers, script, folder, *arguments):
    sys.path.insert(0, str(script.parent))
    entry = importlib.import_module(script.stem).main
    import samplers

    for module in USED:
        importlib.import_module(module)
    for name in samplers.__all__:
        getattr(samplers, name)
    gc.freeze()
    return any(failures(ranks, entry, folder, *arguments) for ranks in numbers)


def failures(ranks, entry, *arguments):
    """Whether one of so many forked ranks fails."""
    import torch.distributed as dist

    store = tempfile.mkdtemp()
    begin = f"file://{store}/store"
    children = []
    for rank in range(ranks):
        child = os.fork()
        if not child:
            os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks)}
            init = dist.init_process_group
            dist.init_process_group = lambda backend: init(backend, init_method=begin, rank=rank, world_size=ranks)
            entry(*arguments)
            os._exit(0)  # without the end of all modules, which takes longer than the ranks
        children.append(child)
    return any([os.waitpid(child, 0)[1] for child in children])


if __name__ == "__main__":
    sys.exit(main(list(map(int, sys.argv[1].split(","))), Path(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:]))
