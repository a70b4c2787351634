"""Parameters that are sharded over ranks as DTensors: the sites on this rank, and sums over all ranks."""

import hashlib
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from integrators.processes import Run, Spread
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


def local_gradient(p: Any) -> torch.Tensor | None:
    """The part of a parameter's gradient on this rank; None where it is missing or placed unlike the parameter."""
    g = p.grad
    if g is None or not is_sharded(p):
        return g
    alike = is_sharded(g) and g.device_mesh == p.device_mesh and g.placements == p.placements
    return local(g) if alike else None


def with_gradients(group: Mapping[str, Any], gradients: Sequence[torch.Tensor | None]) -> dict[str, Any]:
    """The group with its parameters detached, on the same memory, and with these gradients."""
    params = [p.detach() for p in group["params"]]
    for p, g in zip(params, gradients):
        p.grad = g
    return {**group, "params": params}


def placed_as(where: str, t: Any, p: Any) -> torch.Tensor:
    """Gradient t redistributed over the ranks like parameter p; a pending sum over ranks is taken.

    Raises RecipeError where only one of t and p is a DTensor, or their meshes differ.
    """
    if is_sharded(t) != is_sharded(p) or (is_sharded(p) and t.device_mesh != p.device_mesh):
        raise RecipeError(where, f"it is a {type(t).__name__}, the parameter a {type(p).__name__}", do="Shard both.")
    return t.redistribute(placements=p.placements) if is_sharded(p) and t.placements != p.placements else t


def as_part(where: str, value: torch.Tensor, p: Any) -> torch.Tensor:
    """A value of a sharded parameter's shape as a DTensor with the parameter's placements; each rank keeps its part."""
    if not is_sharded(p) or is_sharded(value):
        return value
    offset, shape = _chunk(where, p)
    part = value[tuple(slice(o, o + n) for o, n in zip(offset, shape))].clone()
    DTensor = type(p.detach())
    return DTensor.from_local(part, p.device_mesh, p.placements, shape=p.shape, stride=p.stride())


def runs_of(where: str, p: Any, first: int = 0) -> list[Run]:
    """The sites of a DTensor on this rank, in the order of its memory.

    Sites are numbered as in the memory of the whole tensor, from `first` on. Raises RecipeError for pending sums over
    ranks, and for a part in another memory order than the whole.
    """
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
    whole = [p.shape[d] for d in order]
    runs = _runs(whole, [shape[d] for d in order], [offset[d] for d in order])
    counted = _is_counted(p)
    return [Run(first + at, n, counted) for at, n in runs]


def _runs(whole: Sequence[int], shape: Sequence[int], offset: Sequence[int]) -> list[tuple[int, int]]:
    """The stretches (start, length) of a whole array in row-major order that a box of it covers.

    >>> _runs([4, 3], [2, 3], [1, 0]), _runs([2, 4], [2, 2], [0, 1])
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


def _is_counted(p: Any) -> bool:
    """Whether sums over the ranks count the part on this rank, the first of its copies."""
    places = p.device_mesh.get_coordinate() or ()
    return all(at == 0 for at, placement in zip(places, p.placements) if placement.is_replicate())


def check_sharded(where: str, params: Sequence[Any]) -> list[list[Run]]:
    """The runs of each sharded parameter by `runs_of`, numbered end to end; [] for plain parameters.

    Raises RecipeError where the parameters are not all on one mesh.
    """
    if not is_sharded(params[0]):
        return []
    mesh = params[0].device_mesh
    runs: list[list[Run]] = []
    first = 0
    for k, p in enumerate(params):
        if not is_sharded(p) or p.device_mesh != mesh:
            what = f"parameter {k} is {f'on {p.device_mesh}' if is_sharded(p) else 'no DTensor'}, the first on {mesh}"
            raise RecipeError(where, what, do="Give the parameters of each mesh a group of their own.")
        runs.append(runs_of(f"{where}, parameter {k}", p, first))
        first += p.numel()
    return runs


def spread_of(where: str, params: Sequence[Any]) -> Spread | None:
    """The sites on this rank of parameters laid end to end; None for plain ones. All ranks call this together."""
    runs = check_sharded(where, params)
    if not runs:
        return None
    mesh = params[0].device_mesh
    group = _group(mesh)

    def reduction(operation: Any) -> Callable[[torch.Tensor], None]:
        def reduce(x: torch.Tensor) -> None:
            there = x.to(mesh.device_type)  # elsewhere where weights are kept on the CPU
            dist.all_reduce(there, operation, group=group)
            if there is not x:
                x.copy_(there)

        return reduce

    sites = sum(p.numel() for p in params)
    add, maximise = reduction(dist.ReduceOp.SUM), reduction(dist.ReduceOp.MAX)
    return Spread(sites, tuple(run for some in runs for run in some), add, maximise)


def counted(spread: Spread, params: Sequence[Any]) -> list[bool]:
    """For each parameter, whether sums over the ranks count the part on this rank."""
    return [spread.runs[pieces[0].run].counted for pieces in cut(spread, params)]


class Piece(NamedTuple):
    """A run of a parameter: its number, and its offset in the memory of the part on this rank."""

    run: int
    start: int


def cut(spread: Spread, params: Sequence[Any]) -> list[list[Piece]]:
    """The runs of each parameter, at least one."""
    pieces: list[list[Piece]] = []
    run = 0
    for p in params:
        of_this: list[Piece] = []
        at = 0
        sites = local(p).numel()
        while not of_this or at < sites:
            of_this.append(Piece(run, at))
            at += spread.runs[run].sites
            run += 1
        pieces.append(of_this)
    return pieces


def _group(mesh: Any) -> Any:
    """The processes of a mesh."""
    if mesh.ndim == 1:
        return mesh.get_group()
    if mesh.size() == dist.get_world_size():
        return dist.group.WORLD
    return dist.new_group(mesh.mesh.flatten().tolist(), use_local_synchronization=True)


def check_agreement(where: str, spread: Spread, settings: Mapping[str, Any]) -> None:
    """Refuses settings that differ between ranks; all ranks call this together, with equally many settings."""
    mine = torch.tensor([_hash(value) for value in settings.values()], dtype=torch.float64, device="cpu")
    extremes = torch.stack([mine, -mine])
    spread.maximise(extremes)
    apart = (extremes[0] != -extremes[1]).tolist()
    names = [name for name, differs in zip(settings, apart) if differs]
    if names:
        here = ", ".join(f"{name} = {settings[name]!r}" for name in names)
        raise RecipeError(where, f"ranks differ in {', '.join(names)}: here {here}", do="Give all of them the same.")


def _hash(value: Any) -> int:
    """A number of 48 bits, which float64 holds."""
    return int.from_bytes(hashlib.sha256(repr(value).encode()).digest()[:6])
