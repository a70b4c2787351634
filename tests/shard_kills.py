"""kill -9 of a rank at random moments of examples/sharded.py: torchrun begins all anew, from the last checkpoint.

python tests/shard_kills.py --kills 50
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "sharded.py"


def launched(folder: Path, steps: int, restarts: int, ranks: int = 2) -> subprocess.Popen:
    """torchrun of the example; what it says goes into a file, as a pipe that nobody reads is full soon."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [f"--max-restarts={restarts}", "--monitor-interval=0.1", str(SCRIPT), "--folder", str(folder)]
    command += ["--steps", str(steps), "--every", "5", "--patience", "25"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with said_in(folder).open("w") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=subprocess.STDOUT)


def said_in(folder: Path) -> Path:
    """The file of what a run has said."""
    return folder.with_suffix(".txt")


def ranks_of(process: subprocess.Popen) -> list[int]:
    """The processes that torchrun has started and that run the example."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parent = int(path.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            command = path.joinpath("cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if parent == process.pid and str(SCRIPT).encode() in command:
            found.append(int(path.name))
    return found


def latest(folder: Path) -> int:
    """The step of the latest checkpoint that is whole."""
    return max((int(path.parent.name) for path in folder.glob("*/.metadata")), default=0)


def crash(folder: Path, kills: int, steps: int, chance: random.Random) -> tuple[int, list[int], str]:
    """Kill a rank until so many have died, each time after a checkpoint that the ones before had not reached.

    How many have died, the steps of the checkpoints at which they did, and what the run has said.
    """
    process = launched(folder, steps, restarts=2 * kills + 2)
    died: list[int] = []
    reached = 0
    until = time.monotonic() + 60 * (kills + 1)
    while len(died) < kills and process.poll() is None and time.monotonic() < until:
        if latest(folder) > reached:
            time.sleep(chance.uniform(0, 0.5))
            alive = ranks_of(process)
            if alive:
                reached = latest(folder)
                os.kill(chance.choice(alive), signal.SIGKILL)
                died.append(reached)
                print(f"{len(died)} killed, at checkpoint {reached}", flush=True)
        time.sleep(0.02)
    process.wait(timeout=300)
    output = said_in(folder).read_text()
    if process.returncode:
        raise AssertionError(f"it ended with {process.returncode} after {len(died)} kills: {output[-3000:]}")
    return len(died), died, output


def weights(folder: Path) -> dict:
    """The whole tensors of the latest checkpoint by name."""
    with tempfile.NamedTemporaryFile() as file:
        dcp_to_torch_save(folder / f"{latest(folder):09d}", file.name)
        return torch.load(file.name, weights_only=True)["model"]


def compared(folder: Path, kills: int, steps: int, seed: int) -> tuple[int, list[int]]:
    """Run with kills and without; raises AssertionError where the weights differ."""
    died, at, _ = crash(folder / "killed", kills, steps, random.Random(seed))
    alone = launched(folder / "alone", steps, restarts=0)
    alone.wait(timeout=600)
    assert alone.returncode == 0, said_in(folder / "alone").read_text()[-3000:]
    one, other = weights(folder / "killed"), weights(folder / "alone")
    assert latest(folder / "killed") == latest(folder / "alone") == steps
    for name in one:
        assert torch.equal(one[name], other[name]), name
    return died, at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        died, at = compared(Path(folder), options.kills, 25 * options.kills + 25, options.seed)
        print(f"{died} ranks killed, at the checkpoints {at}; it went on from each, and ended as one left alone")


if __name__ == "__main__":
    main()
