"""What a rank does in tests/test_shards.py: sharded loops under torchrun, what they end with written into a folder.

python -m torch.distributed.run --nproc-per-node=2 tests/shards.py FOLDER quick
"""

import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import samplers
from recipe import Recipe, RecipeError, potential, vector
from samplers.files import storage

F64 = torch.float64
N = 64  # data
STEPS, SAVED, LONG = 48, 36, 100  # a step looks at all gradients among the first 32
LOOPS = {  # recipe and settings of loops over bare tensors
    "sghmc": ("sghmc", dict(lr=0.01, momentum=0.9)),
    "sgld": ("sgld", dict(lr=0.001)),
    "sgnht": ("sgnht", dict(lr=0.01, momentum=0.9)),
    "msgnht": ("msgnht", dict(lr=0.01, momentum=0.9, backend="torch")),
    "psgld": ("psgld-same-step", dict(lr=0.001, weight_decay=0.1)),
    "santa": ("santa", dict(lr=0.01, backend="torch")),
}
NETWORKS = ("sghmc", "sgld", "sgnht", "msgnht", "psgld", "santa")
SHAPES = (6, 5), (3,), (2, 4, 3), (1, 7)  # of fewer rows than there are ranks, and of a number that they do not divide
PLACED = {  # how bare tensors lie over a mesh of one axis, or of two
    "rows": [Shard(0)],
    "columns": [Shard(-1)],
    "copies": [Replicate(), Shard(0)],
    "columns of rows": [Shard(0), Shard(-1)],
}


def weights():
    random = torch.Generator().manual_seed(5)
    return [torch.randn(shape, dtype=F64, generator=random) for shape in SHAPES]


def made(name, params, **more):
    recipe, settings = LOOPS[name]
    return samplers.Optimizer(params, recipe, num_data=N, **{**settings, **more})


def walked(name, params, first=0, steps=STEPS, optimizer=None, **more):
    """Steps over bare tensors whose gradient at a site is that of theta^4/4 + cos(theta) there; the optimizer."""
    optimizer = optimizer or made(name, params, **more)
    for _ in range(first, steps):
        for p in params:
            here = p.detach().to_local() if isinstance(p, DTensor) else p.detach()
            g = here**3 - here.sin()
            p.grad = (
                DTensor.from_local(g, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())
                if isinstance(p, DTensor)
                else g
            )
        optimizer.step()
    return optimizer


def sharded(mesh, placements):
    return [torch.nn.Parameter(distribute_tensor(w, mesh, _fitting(placements, w))) for w in weights()]


def _fitting(placements, w):
    return [Shard(w.dim() - 1) if p == Shard(-1) else p for p in placements]


def network(mesh=None):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)).to(F64)
    if mesh is not None:
        for part in (net[0], net[2], net):
            fully_shard(part, mesh=mesh)
    return net


def batch(k, rank=0, ranks=1, parts=1, part=0):
    """The rows of step k that a rank has, or a part of them."""
    X = torch.randn(N, 5, dtype=F64, generator=torch.Generator().manual_seed(1))
    rows = torch.arange(16 * k, 16 * k + 16) % N
    mine = rows.chunk(ranks)[rank].chunk(parts)[part]
    return X[mine], X[mine, :3] ** 2


def trained(net, name, rank=0, ranks=1, first=0, steps=LONG, optimizer=None):
    optimizer = optimizer or made(name, net.named_parameters())
    for k in range(first, steps):
        x, y = batch(k, rank, ranks)
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
    return optimizer


def accumulated(net, rank=0, ranks=1, steps=20):
    """A loop of two micro-batches a step, the first of which stays on its rank."""
    optimizer = made("sgnht", net.parameters())
    for k in range(steps):
        optimizer.zero_grad()
        for part in range(2):
            net.require_backward_grad_sync = part == 1
            x, y = batch(k, rank, ranks, 2, part)
            ((net(x) - y).square().mean() / 2).backward()
        optimizer.step()


def whole(params):
    return torch.cat([(p.full_tensor() if isinstance(p, DTensor) else p).detach().reshape(-1) for p in params])


def says(function):
    """What an error says."""
    try:
        function()
    except RecipeError as error:
        return str(error)
    return "nothing"


class Messages:
    """How many sums over ranks are taken, and how long they are."""

    def __init__(self):
        self.sizes = []

    def __enter__(self):
        self.all_reduce = dist.all_reduce
        dist.all_reduce = lambda x, *rest, **more: (self.sizes.append(x.numel()), self.all_reduce(x, *rest, **more))
        return self

    def __exit__(self, *_):
        dist.all_reduce = self.all_reduce


def loops(mesh, folder, found, said):
    """Bare tensors: how they are placed, what is counted, saved, and goes on."""
    for name in LOOPS:
        params = sharded(mesh, PLACED["rows"])
        optimizer = walked(name, params, steps=SAVED)
        if name == "santa":
            found["santa when saved"] = whole(params)
            continue
        with Messages() as messages:
            walked(name, params, SAVED, SAVED + 9, optimizer)
        said[f"messages, {name}"] = str(messages.sizes)
        walked(name, params, SAVED + 9, STEPS, optimizer)
        found[name] = whole(params)
        if name == "sgnht":
            temperatures = optimizer.kinetic_temperatures()
            found["temperatures"] = torch.tensor([t.value for t in temperatures.values()], dtype=F64)
            (late,) = optimizer._monitors.of(0).late(1, optimizer._group(0).shards)
            found |= {f"late {key}": x for key, x in late.items() if key != "noise"}
            said["report"] = str(optimizer.report().ok)
            said["print"] = repr(optimizer)
    grid = init_device_mesh("cpu", (2, 1), mesh_dim_names=("copies", "rows"))
    for name, there in (("columns", mesh), ("copies", grid)):
        params = sharded(there, PLACED[name])
        walked("sgnht", params)
        found[name] = whole(params)
    half = [torch.nn.Parameter(p.detach().bfloat16()) for p in sharded(mesh, PLACED["rows"])]
    optimizer = made("sghmc", half)
    for _ in range(20):
        for p in half:
            p.grad = p.detach().clone()
        optimizer.step()
    found["half"] = whole(half)


def valued(params):
    """A step that reads U itself."""
    theta = vector("theta")
    U = potential(theta)
    recipe = Recipe(name="contour", state=(theta,), H=2 * U + U**2, D={theta: 1}, marginal=2 * U + U**2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        optimizer = samplers.Optimizer(params, recipe, step_size=1e-3, num_data=N)
    for p in params:
        p.grad = p.detach().clone()
    optimizer.step(lambda: 1.0)


def refusals(mesh, rank, said):
    rows = lambda: sharded(mesh, PLACED["rows"])  # noqa: E731
    said["lr"] = says(lambda: walked("sghmc", rows(), lr=0.01 + rank, steps=1))
    said["seed"] = says(lambda: walked("sghmc", rows(), seed=rank, steps=1))
    said["recipe"] = says(lambda: walked("sgld" if rank else "sghmc", rows(), lr=0.01, steps=1))
    pending = DTensor.from_local(torch.ones(3, dtype=F64), mesh, [Partial()])
    said["partial"] = says(lambda: made("sghmc", [torch.nn.Parameter(pending)]))
    said["mixed"] = says(lambda: made("sghmc", [*rows(), torch.nn.Parameter(torch.ones(2, dtype=F64))]))
    said["value"] = says(lambda: valued(rows()))
    folder = Path(tempfile.gettempdir()) / "no-folder"
    checkpoint = samplers.Checkpoint(folder, optimizer=walked("sghmc", rows(), steps=1))
    said["checkpoint"] = says(lambda: checkpoint.save()) if rank == 0 else ""


def saved(mesh, rank, ranks, folder, found):
    """A network that is saved in the midst of its loop, and goes on."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

    net = network(mesh)
    optimizer = trained(net, "psgld", rank, ranks, steps=12)
    dcp.save({"model": net.state_dict(), "optimizer": get_optimizer_state_dict(net, optimizer)}, checkpoint_id=folder)
    trained(net, "psgld", rank, ranks, 12, 24, optimizer)
    found["goes on"] = whole(net.parameters())


def loaded(net, rank, ranks, folder):
    """The weights of a network that goes on from what was saved, on other ranks."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    optimizer = made("psgld", net.named_parameters())
    state = {"model": net.state_dict(), "optimizer": get_optimizer_state_dict(net, optimizer)}
    dcp.load(state, checkpoint_id=folder)
    net.load_state_dict(state["model"])
    set_optimizer_state_dict(net, optimizer, state["optimizer"])
    trained(net, "psgld", rank, ranks, 12, 24, optimizer)
    return whole(net.parameters())


def main(folder, what):
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (ranks,))
    found: dict = {}
    said: dict = {}
    if what == "long":
        for name in NETWORKS:
            net = network(mesh)
            trained(net, name, rank, ranks)
            found[name] = whole(net.parameters())
    elif ranks == 2:
        loops(mesh, folder, found, said)
        refusals(mesh, rank, said)
        saved(mesh, rank, ranks, folder / "saved", found)
        net = network()
        accumulated(DistributedDataParallel(net), rank, ranks)
        found["accumulated"] = whole(net.parameters())
    else:
        two = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copies", "rows"))
        for name in ("rows", "copies", "columns of rows"):
            params = sharded(mesh if name == "rows" else two, PLACED[name])
            walked("sgnht", params)
            found[name] = whole(params)
        found["goes on"] = loaded(network(two), rank, ranks, folder / "saved")
    text = {name: str(x) for name, x in said.items()}
    storage.write(folder / f"{what}-{ranks}-{rank}.safetensors", "found", found, {"said": text})
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
