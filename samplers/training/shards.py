"""Parameters that are sharded over ranks as DTensors: the sites on this rank, and sums over all ranks."""

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

from integrators.processes import SiteRun, Spread
from recipe.errors import RecipeError


def is_sharded(t: object) -> bool:
    """Whether a tensor is a DTensor.

    >>> is_sharded(torch.ones(2))
    False
    """
    module = sys.modules.get("torch.distributed.tensor")  # loaded where there is a DTensor, and slow to load
    return module is not None and isinstance(t, module.DTensor)


def local(t: Any) -> torch.Tensor:
    """The part of a DTensor on this rank, as a plain tensor on the same memory; a plain tensor itself.

    >>> x = torch.ones(2)
    >>> local(x) is x
    True
    """
    if not is_sharded(t):
        return t
    part = (t.detach() if torch.is_grad_enabled() else t).to_local()
    return part.wait() if hasattr(part, "wait") else part  # messages may be under way


def with_local_gradient(p: Any) -> torch.Tensor:
    """The part of a DTensor on this rank, with the part of its gradient; None for one placed unlike the parameter."""
    g = p.grad
    alike = is_sharded(g) and g.device_mesh == p.device_mesh and g.placements == p.placements
    part = local(p).detach()
    part.grad = local(g) if alike else None
    return part


def placed_as(where: str, t: Any, p: Any) -> torch.Tensor:
    """The part on this rank of gradient t, redistributed over the ranks like parameter p; pending sums are taken.

    Raises RecipeError where only one of t and p is a DTensor, or their meshes differ.
    """
    if is_sharded(t) != is_sharded(p) or (is_sharded(p) and t.device_mesh != p.device_mesh):
        raise RecipeError(where, f"it is a {type(t).__name__}, the parameter a {type(p).__name__}", do="Shard both.")
    moves = is_sharded(p) and t.placements != p.placements
    return local(t.redistribute(placements=p.placements) if moves else t)


def as_part(where: str, value: torch.Tensor, p: Any) -> torch.Tensor:
    """A value of a sharded parameter's shape as a DTensor with the parameter's placements; each rank keeps its part."""
    if not is_sharded(p) or is_sharded(value):
        return value
    offset, shape = _chunk(where, p)
    part = value[tuple(slice(o, o + n) for o, n in zip(offset, shape))].clone()
    DTensor = type(p.detach())
    return DTensor.from_local(part, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())


def runs_of(where: str, params: Sequence[Any]) -> list[list[SiteRun]]:
    """The sites of each DTensor on this rank, in the order of its memory; [] for plain parameters.

    Sites are numbered as in the memory of the whole tensors, laid end to end. Raises RecipeError for parameters on
    several meshes, for pending sums over ranks, and for a part in another memory order than the whole.
    """
    if not is_sharded(params[0]):
        return []
    mesh = params[0].device_mesh
    runs: list[list[SiteRun]] = []
    first = 0
    for k, p in enumerate(params):
        if not is_sharded(p) or p.device_mesh != mesh:
            what = f"parameter {k} is {f'on {p.device_mesh}' if is_sharded(p) else 'no DTensor'}, the first on {mesh}"
            raise RecipeError(where, what, do="Give the parameters of each mesh a group of their own.")
        runs.append(_runs_of(f"{where}, parameter {k}", p, first))
        first += p.numel()
    return runs


def _runs_of(where: str, p: Any, first: int) -> list[SiteRun]:
    if any(placement.is_partial() for placement in p.placements):
        what = "it is a sum over ranks that is pending, Partial"
        raise RecipeError(where, what, do="Redistribute it: p.redistribute(placements=[Shard(0)]).")
    offset, shape = _chunk(where, p)
    order = sorted(range(p.dim()), key=lambda d: -p.stride()[d])  # as in memory
    part = local(p)
    if tuple(part.shape) != tuple(shape) or not part.permute(order).is_contiguous():
        raise RecipeError(
            where,
            f"this rank has {tuple(part.shape)} of strides {part.stride()}, where {tuple(shape)} in the order of the "
            "whole tensor are expected",
            do="Shard a contiguous tensor, by torch.distributed.fsdp.fully_shard or distribute_tensor.",
        )
    places = p.device_mesh.get_coordinate() or ()
    counted = all(at == 0 for at, placement in zip(places, p.placements) if placement.is_replicate())
    stretches = _stretches(*([sizes[d] for d in order] for sizes in (p.shape, shape, offset)))
    return [SiteRun(first + at, n, counted) for at, n in stretches]


def _stretches(whole: Sequence[int], shape: Sequence[int], offset: Sequence[int]) -> list[tuple[int, int]]:
    """The stretches (start, length) of a whole array in row-major order that a box of it covers.

    >>> _stretches([4, 3], [2, 3], [1, 0]), _stretches([2, 4], [2, 2], [0, 1])
    ([(3, 6)], [(1, 2), (5, 2)])
    """
    if not math.prod(shape):
        return [(0, 0)]
    cut = max((d for d in range(len(whole)) if shape[d] != whole[d]), default=0)  # whole from the next axis on
    size = math.prod(shape[cut:])
    strides = [math.prod(whole[d + 1 :]) for d in range(len(whole))]
    begin = sum(o * s for o, s in zip(offset, strides))
    steps = product(*(range(0, n * s, s) for n, s in zip(shape[:cut], strides)))
    return [(begin + sum(at), size) for at in steps]


def _chunk(where: str, p: Any) -> tuple[Sequence[int], Sequence[int]]:
    """Offset and shape, in the whole tensor, of the part on this rank, as in torch's distributed checkpoints."""
    chunks = p.__create_chunk_list__()
    if len(chunks) != 1:
        raise RecipeError(where, f"this rank has {len(chunks)} parts of it", do="Shard it into one part per rank.")
    return chunks[0].offsets, chunks[0].sizes


@dataclass(frozen=True, eq=False)
class Shards:
    """The runs of sites on this rank by parameter, and sums over the ranks of their mesh, by `spread`."""

    runs: list[list[SiteRun]]
    spread: Spread

    @property
    def counted(self) -> list[bool]:
        """For each parameter, whether sums over the ranks count the part on this rank, the first of its copies."""
        return [runs[0].counted for runs in self.runs]

    def add(self, sums: torch.Tensor) -> torch.Tensor:
        """The sums over the ranks of numbers by parameter, `(params, ...)`; each part is counted once."""
        counted = torch.tensor(self.counted, device=sums.device)
        sums = torch.where(counted.view(-1, *[1] * (sums.dim() - 1)), sums, 0)
        self.spread.add(sums)
        return sums

    def pieces(self) -> list[tuple[int, int, int]]:
        """For each run: the number of its parameter, the offset in the memory of that parameter's part, its length."""
        pieces = []
        for k, runs in enumerate(self.runs):
            at = 0
            for run in runs:
                pieces.append((k, at, run.sites))
                at += run.sites
        return pieces


def shards_of(where: str, params: Sequence[Any], settings: Mapping[str, Any]) -> Shards | None:
    """The shards of parameters laid end to end; None for plain ones. All ranks call this together.

    Raises RecipeError where `settings` differ between ranks.
    """
    runs = runs_of(where, params)
    if not runs:
        return None
    mesh = params[0].device_mesh
    group = _processes(mesh)
    _check_agreement(where, settings, group, mesh.size())

    def reduction(operation: Any) -> Callable[[torch.Tensor], None]:
        def reduce(x: torch.Tensor) -> None:
            there = x.to(mesh.device_type)  # elsewhere where weights are kept on the CPU
            dist.all_reduce(there, operation, group=group)
            if there is not x:
                x.copy_(there)

        return reduce

    add, maximise = reduction(dist.ReduceOp.SUM), reduction(dist.ReduceOp.MAX)
    spread = Spread(sum(p.numel() for p in params), tuple(run for of_param in runs for run in of_param), add, maximise)
    return Shards(runs, spread)


def _processes(mesh: Any) -> Any:
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.size() == dist.get_world_size():
        return dist.group.WORLD
    return dist.new_group(mesh.mesh.flatten().tolist(), use_local_synchronization=True)


def _check_agreement(where: str, settings: Mapping[str, Any], group: Any, ranks: int) -> None:
    """Refuses settings that differ between ranks."""
    mine = {name: repr(value) for name, value in settings.items()}
    accounts: list[Any] = [None] * ranks
    dist.all_gather_object(accounts, mine, group=group)
    names = [name for name in mine if any(other.get(name) != mine[name] for other in accounts)]
    if names:
        here = ", ".join(f"{name} = {mine[name]}" for name in names)
        raise RecipeError(where, f"ranks differ in {', '.join(names)}: here {here}", do="Give all of them the same.")
