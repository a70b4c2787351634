"""A network sharded over ranks, sampled by SGHMC, that goes on from its last checkpoint when a rank is killed.

torchrun --nproc-per-node=2 --max-restarts=3 examples/sharded.py --folder out/sharded

Every rank has a part of each weight (torch.distributed.fsdp.fully_shard), draws the noise of its sites, and saves its
part (torch.distributed.checkpoint). A folder may be loaded on any number of ranks: the run goes on with the same noise.
"""

import argparse
import faulthandler
import os
import shutil
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import samplers

BATCH = 64


def begin(patience: float) -> tuple[int, int, str]:
    """The rank, how many there are, and the device of this one; one that is waited for longer, in seconds, is lost."""
    expect(patience)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"
    store, rank, ranks = next(dist.rendezvous("env://"))
    # torchrun keeps its store: ranks that are begun anew would read the addresses of those that were killed.
    store = dist.PrefixStore(f"restart {os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=timedelta(seconds=patience))
    return dist.get_rank(), dist.get_world_size(), device


def expect(patience: float) -> None:
    """End this rank unless it asks for more time before so many seconds: torchrun then begins all ranks anew.

    Ranks that are begun anew may wait for each other for ever, in calls that no timeout of theirs ends.
    """
    faulthandler.dump_traceback_later(patience, exit=True)


def data(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of a plane, by whether they are inside of a ring."""
    x = torch.randn(2048, 2, generator=torch.Generator().manual_seed(0))
    return x.to(device), ((x.norm(dim=1) - 1).abs() < 0.4).long().to(device)


def network(device: str, ranks: int) -> torch.nn.Module:
    """A network of which this rank has a part of every weight."""
    torch.manual_seed(0)  # the same weights on every rank
    net = torch.nn.Sequential(
        torch.nn.Linear(2, 50), torch.nn.Tanh(), torch.nn.Linear(50, 50), torch.nn.Tanh(), torch.nn.Linear(50, 2)
    ).to(device)
    mesh = init_device_mesh(device, (ranks,))
    for layer in (net[0], net[2], net[4], net):
        fully_shard(layer, mesh=mesh)
    return net


class Folder:
    """Checkpoints by the number of their step; one is whole if it has its metadata, which is written last."""

    def __init__(
        self, path: Path, net: torch.nn.Module, optimizer: torch.optim.Optimizer, batches: samplers.Minibatches
    ):
        self.path = path
        self.net = net
        self.optimizer = optimizer
        self.batches = batches

    def whole(self) -> list[Path]:
        """Those that are whole, the latest last."""
        return sorted(path.parent for path in self.path.glob("*/.metadata"))

    def state(self) -> dict:
        """What is saved: tensors of which each rank has its part."""
        return {
            "model": self.net.state_dict(),
            "optimizer": get_optimizer_state_dict(self.net, self.optimizer),
            "batches": self.batches.state_dict(),
        }

    def save(self, step: int) -> None:
        """Save all parts; the two latest are kept."""
        dcp.save(self.state(), checkpoint_id=self.path / f"{step:09d}")
        if dist.get_rank() == 0:
            for path in self.whole()[:-2]:
                shutil.rmtree(path)

    def load(self) -> int:
        """Go on from the latest; the number of steps that have been made."""
        dist.barrier()  # nobody saves
        latest = self.whole()[-1:]
        if not latest:
            return 0
        state = self.state()
        dcp.load(state, checkpoint_id=latest[0])
        self.net.load_state_dict(state["model"])
        set_optimizer_state_dict(self.net, self.optimizer, state["optimizer"])
        self.batches.load_state_dict(state["batches"])
        return int(latest[0].name)


def main() -> None:
    """The loop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("out/sharded"))
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=50, help="steps from one checkpoint to the next")
    parser.add_argument("--patience", type=float, default=60, help="seconds between two checkpoints, at most")
    options = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)  # of torch's own
    rank, ranks, device = begin(options.patience)
    x, y = data(device)
    net = network(device, ranks)
    optimizer = samplers.Optimizer(
        net.named_parameters(), "sghmc", lr=0.05, momentum=0.9, num_data=len(x), weight_decay=1 / len(x)
    )
    batches = samplers.Minibatches((x, y), BATCH, seed=1, rank=rank, world_size=ranks)
    folder = Folder(options.folder, net, optimizer, batches)
    step = begun = folder.load()
    while step < options.steps:
        for inputs, labels in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(inputs), labels).backward()
            optimizer.step()
            step += 1
            if step % options.every == 0:
                folder.save(step)
                expect(options.patience)
            if step == options.steps:
                break
    with torch.no_grad():
        right = (net(x).argmax(1) == y).double().mean()
    report = optimizer.report()  # by all ranks together
    if rank == 0:
        print(f"{options.steps} steps on {ranks} ranks, begun at {begun}: {right:.1%} of the points are right")
        print(report)
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
