"""Several processes under torchrun: chains divided over ranks, and gradients averaged over ranks."""

import atexit
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from operator import mul
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from integrators.adapting import adapting
from recipe import Recipe
from recipe.arguments import integer
from recipe.errors import RecipeError

from .files import storage
from .results.draws import Draws
from .results.geometry import GEOMETRY, joined_geometry
from .running.points import Start, check_number, check_unambiguous, is_of_chains, start_of
from .running.recording import Folder, folder_of
from .running.sampling import sample as sample_here
from .stock import recipe_of

__all__ = ["begin", "gather", "sample", "share", "share_gradients"]


def begin(backend: str | None = None) -> tuple[int, int]:
    """Joins the group of processes that torchrun has started, until the process ends; returns (rank, world size).

    `backend`: "gloo" or "nccl", by default "nccl" where there are GPUs.

    >>> begin()                                                                         # without torchrun
    (0, 1)
    """
    if not dist.is_initialized():
        if "WORLD_SIZE" not in os.environ:
            return 0, 1
        backend = backend or ("nccl" if torch.cuda.is_available() else "gloo")
        device: dict[str, Any] = {}
        if backend == "nccl":  # the device first: the group's first message would take GPU 0
            device = {"device_id": torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))}
            torch.cuda.set_device(device["device_id"])
        dist.init_process_group(backend, **device)
        atexit.register(_end)
    return dist.get_rank(), dist.get_world_size()


def _end() -> None:
    """Leaves the group before the interpreter shuts down.

    Threads of gloo may hold tensors, and abort a process that frees these later.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


def cuts(number: int, ranks: int) -> list[int]:
    """The first chain of each rank, with chains divided in order and as evenly as possible, and their number.

    >>> cuts(5, ranks=2)
    [0, 2, 5]
    """
    return [number * rank // ranks for rank in range(ranks + 1)]


def sample(
    recipe: Recipe | str,
    energy: Any = None,
    *,
    chains: int = 4,
    init: Any = None,
    checkpoint: str | os.PathLike[str] | Folder | None = None,
    progress: bool | Callable[..., Any] = True,
    **settings: Any,
) -> Draws:
    """`samplers.sample` with the chains divided over the ranks; every rank returns the draws of all chains.

    Chain i has the noise, the batches and the start of chain i in a run of one process: draws are the same bit for bit,
    except with Poisson and Gamma numbers. `init` is for all chains. Each rank keeps its chains in a folder of its own
    inside `checkpoint`, and a resumed run needs all these folders. `settings` are the other arguments of
    `samplers.sample`.

    Raises RecipeError for fewer chains than ranks, where the folder of a rank is missing, and like `samplers.sample`.

    >>> from samplers import SGLD
    >>> sample(SGLD, lambda theta: theta**2/2, init=torch.tensor(0.0), steps=10, step_size=0.1, progress=False).chains
    4
    """
    recipe = recipe_of(recipe, "distributed")
    rank, ranks = begin()
    where = f"{recipe.name}, distributed"
    reason = f"{chains} chains for {ranks} ranks"
    chains = integer(where, "chains", chains, least=ranks, what=reason, do="Give every rank a chain.")
    for name in adapting(settings) if ranks > 1 else ():
        what = f"the operator {name} would adapt to the chains of each rank apart"
        raise RecipeError(where, what, do=f"Adapt it in one process, and pass its matrix, {name}.value.")
    ends = cuts(chains, ranks)
    mine = slice(*ends[rank : rank + 2])
    folder = folder_of(checkpoint)
    if folder is not None:
        folder = replace(folder, path=_folder(Path(folder.path), rank, ranks, where))
    try:
        draws = sample_here(
            recipe,
            energy,
            chains=range(mine.start, mine.stop),
            init=_part(recipe, start_of(init), chains, mine, f"{where}, init"),
            checkpoint=folder,
            progress=progress if rank == 0 else False,
            **settings,
        )
    except RecipeError as error:
        if ranks > 1:
            _of_all_ranks({"failed": str(error)})
        raise
    if ranks == 1:
        return draws
    accounts = _of_all_ranks({"draws": draws.draws, "diverged": draws.info["diverged"], "info": draws.info})
    for r, account in enumerate(accounts):
        if "failed" in account:
            raise RecipeError(where, f"rank {r} failed: {account['failed']}", do="See there.")
    return _joined(draws, accounts, ends)


def _joined(draws: Draws, accounts: list[dict[str, Any]], ends: list[int]) -> Draws:
    """The draws of all ranks, cut to the fewest draws of a rank."""
    number = min(account["draws"] for account in accounts)
    values = {name: _whole(x[:, :number], ends) for name, x in draws.items()}
    diverged = [
        (step, int(chain) + first)
        for first, account in zip(ends, accounts)
        for chain, step in account["diverged"].items()
    ]
    common = {name: value for name, value in draws.info.items() if name not in GEOMETRY}
    info = common | {"diverged": {str(chain): step for step, chain in sorted(diverged)}, "ranks": len(accounts)}
    infos = [account["info"] for account in accounts]
    info |= _of_all_chains(infos, [end - begin for begin, end in pairwise(ends)])
    info |= joined_geometry(infos, ends, number)
    sizes = None if draws.step_sizes is None else draws.step_sizes[:number]
    logs = None if draws.log_weights is None else _whole(draws.log_weights[:, :number], ends)
    joined = Draws(values, info=info, step_sizes=sizes, log_weights=logs)
    joined.info["report"] = joined.report(evaluations=0).verdict
    return joined


def _of_all_chains(infos: list[dict[str, Any]], chains: list[int]) -> dict[str, Any]:
    """Acceptance by chain, and means over all chains, where ranks have those of so many chains each.

    R-hat of thermostats is the largest of a rank.
    """
    shares = [n / sum(chains) for n in chains]
    whole: dict[str, Any] = {}
    if "acceptance" in infos[0]:
        whole["acceptance"] = [share for info in infos for share in info["acceptance"]]
    if "swaps" in infos[0]:
        whole["swaps"] = [sum(map(mul, shares, rates)) for rates in zip(*(info["swaps"] for info in infos))]
    averages = [info["averages"] for info in infos if "averages" in info]
    if len(averages) < len(infos):
        return whole | {"averages": {}}
    whole["averages"] = {kind: {} for kind in averages[0]}
    for block in averages[0].get("kinetic_temperature", ()):
        of_ranks = [average["kinetic_temperature"][block] for average in averages]
        mean = {name: sum(map(mul, shares, (x[name] for x in of_ranks))) for name in of_ranks[0]}
        mean["error"] = math.hypot(*map(mul, shares, (x["error"] for x in of_ranks)))
        mean["freedom"] = sum(x["freedom"] for x in of_ranks)
        whole["averages"]["kinetic_temperature"][block] = mean
    for block in averages[0].get("thermostats", ()):
        of_ranks = [average["thermostats"][block] for average in averages if block in average.get("thermostats", ())]
        whole["averages"]["thermostats"][block] = max(of_ranks, key=lambda agreement: agreement["r_hat"])
    return whole


def share(members: int) -> range:
    """The numbers of this rank's members of an `Ensemble`, for `members` members on all ranks.

    Raises RecipeError for fewer members than ranks.

    >>> share(4)                                                                        # without torchrun
    range(0, 4)
    """
    rank, ranks = begin()
    reason = f"{members} members for {ranks} ranks"
    members = integer("share", "members", members, least=ranks, what=reason, do="Give every rank a member.")
    return range(*cuts(members, ranks)[rank : rank + 2])


def gather(x: torch.Tensor) -> torch.Tensor:
    """Concatenates the tensors of all ranks along the first axis, such as the logits `(members, ...)` of an Ensemble.

    Every rank calls this and gets the whole, without gradient.

    >>> gather(torch.zeros(4, 2)).shape                                                 # without torchrun
    torch.Size([4, 2])
    """
    x = x.detach()
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return x
    return _whole(x, [0, *accumulate(account["rows"] for account in _of_all_ranks({"rows": len(x)}))])


def share_gradients(params: Iterable[torch.Tensor]) -> None:
    """Replaces each gradient, in place, by its mean over the ranks, each with a batch of its own of the same size.

    Call this between `loss.backward()` and `optimizer.step()`: since noise is a function of the seed and the site, the
    ranks keep the same weights. One message is sent for all tensors of a type. Raises RecipeError for a parameter
    without a gradient.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    by_type: dict[tuple[torch.dtype, torch.device], list[torch.Tensor]] = {}
    for k, p in enumerate(params):
        if p.grad is None:
            raise RecipeError("share_gradients", f"parameter {k} has no gradient", do="Call loss.backward() first.")
        by_type.setdefault((p.grad.dtype, p.grad.device), []).append(p.grad)
    for gradients in by_type.values():
        flat = torch.cat([g.reshape(-1) for g in gradients])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for g, part in zip(gradients, flat.split([g.numel() for g in gradients])):
            g.copy_(part.view_as(g))


def _folder(folder: Path, rank: int, ranks: int, where: str) -> Path:
    """The folder of a rank; RecipeError where only some ranks have one, or for another number of ranks."""
    storage.make_folder(folder)
    if ranks > 1:
        dist.barrier()
    present = sorted(p.name for p in folder.glob("rank-*"))
    expected = [f"rank-{r}-of-{ranks}" for r in range(ranks)]
    if ranks > 1:
        dist.barrier()
    if present and present != sorted(expected):
        missing = [name for name in expected if name not in present] or present
        what = f"{folder} holds {', '.join(present)}: {', '.join(missing)} is missing or of another number of ranks"
        raise RecipeError(where, what, do="Bring the folders of all ranks together, and start as many as there were.")
    return folder / expected[rank]


def _part(recipe: Recipe, start: Start, chains: int, mine: slice, where: str) -> Start:
    """The part of a start for this rank's chains."""
    init, per_chain = start.point, start.per_chain
    if is_of_chains(init):
        check_number(init, chains, where)
        return replace(start, point=init[mine])
    if not isinstance(init, Mapping):
        return replace(start, point=_cut(init, per_chain, chains, mine, axes=2))
    axes = {b.name: 2 if b.is_vector else 1 for b in recipe.entries}
    if not any(name in axes for name in init):
        if per_chain is None:
            check_unambiguous(init, chains, where)
        axes = dict.fromkeys(init, 1)
        per_chain = bool(per_chain)
    cut = {name: _cut(x, per_chain, chains, mine, axes[name]) if name in axes else x for name, x in init.items()}
    return replace(start, point=cut, per_chain=per_chain)


def _cut(x: Any, per_chain: bool | None, chains: int, mine: slice, axes: int) -> Any:
    """The rows of this rank's chains, of a tensor with at least `axes` axes and a row for every chain; else the tensor.

    Without `per_chain`, a point with as many rows as this rank has chains is repeated for each chain.
    """
    if not torch.is_tensor(x) or x.dim() == 0 or per_chain is False:
        return x
    if per_chain:
        return x[mine]
    if x.dim() < axes:
        return x
    if len(x) == chains:
        return x[mine]
    count = mine.stop - mine.start
    return x.expand(count, *x.shape) if len(x) == count else x


def _of_all_ranks(account: dict[str, Any]) -> list[dict[str, Any]]:
    """The plain data of every rank, in order; all ranks call this together."""
    accounts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(accounts, account)
    return accounts


def _whole(x: torch.Tensor, ends: list[int]) -> torch.Tensor:
    """A tensor put together of the parts on all ranks, rows `ends[r]` to `ends[r + 1]` of rank r."""
    sizes = [end - begin for begin, end in pairwise(ends)]
    padded = torch.cat([x, x.new_zeros((max(sizes) - len(x), *x.shape[1:]))])
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return torch.cat([part[:n] for part, n in zip(parts, sizes)])
