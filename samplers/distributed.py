"""Several processes under torchrun: chains divided over ranks, and gradients averaged over ranks."""

import atexit
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
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
from .running.points import Start, check_number, check_unambiguous, is_of_chains, start_of
from .running.recording import Folder, folder_of
from .running.sampling import sample as sample_here
from .stock import named

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
        dist.init_process_group(backend or ("nccl" if torch.cuda.is_available() else "gloo"))
        atexit.register(_end)
        if dist.get_backend() == "nccl":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return dist.get_rank(), dist.get_world_size()


def _end() -> None:
    """Leaves the group before the interpreter shuts down.

    Threads of gloo may hold tensors, and abort a process that frees these later.
    """
    if dist.is_initialized():
        dist.destroy_process_group()


@dataclass(frozen=True)
class Division:
    """Chains divided over ranks, in order and as evenly as possible.

    >>> division = Division(chains=5, ranks=2)
    >>> division.sizes, division.of(1)
    ([2, 3], slice(2, 5, None))
    """

    chains: int
    ranks: int

    def first(self, rank: int) -> int:
        """The first chain of a rank."""
        return self.chains * rank // self.ranks

    def of(self, rank: int) -> slice:
        """The chains of a rank."""
        return slice(self.first(rank), self.first(rank + 1))

    @property
    def sizes(self) -> list[int]:
        """The number of chains of each rank."""
        return [self.first(r + 1) - self.first(r) for r in range(self.ranks)]


def sample(
    recipe: Recipe | str,
    energy: Any = None,
    *,
    chains: int = 4,
    init: Any = None,
    checkpoint: str | os.PathLike | Folder | None = None,
    progress: bool | Callable = True,
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
    recipe = named(recipe, "distributed")
    rank, ranks = begin()
    where = f"{recipe.name}, distributed" if isinstance(recipe, Recipe) else "distributed"
    reason = f"{chains} chains for {ranks} ranks"
    chains = integer(where, "chains", chains, least=ranks, what=reason, do="Give every rank a chain.")
    for name in adapting(settings) if ranks > 1 else ():
        what = f"the operator {name} would adapt to the chains of each rank apart"
        raise RecipeError(where, what, do=f"Adapt it in one process, and pass its matrix, {name}.value.")
    division = Division(chains, ranks)
    mine = division.of(rank)
    folder = folder_of(checkpoint)
    if folder is not None:
        folder = replace(folder, path=_folder(Path(folder.path), rank, ranks, where))
    outcome = _attempt(
        recipe,
        energy,
        chains=range(mine.start, mine.stop),
        init=_part(recipe, start_of(init), chains, mine, f"{where}, init"),
        checkpoint=folder,
        progress=progress if rank == 0 else False,
        **settings,
    )
    accounts = _of_all_ranks(_account(outcome)) if ranks > 1 else []
    if isinstance(outcome, RecipeError):
        raise outcome
    for r, account in enumerate(accounts):
        if "failed" in account:
            raise RecipeError(where, f"rank {r} failed: {account['failed']}", do="See there.")
    return _joined(outcome, accounts, division) if ranks > 1 else outcome


def _attempt(recipe: Recipe, energy: Any, **settings: Any) -> Draws | RecipeError:
    """The draws of this rank, or the error in their place, which other ranks are told."""
    try:
        return sample_here(recipe, energy, **settings)
    except RecipeError as error:
        return error


def _account(outcome: Draws | RecipeError) -> dict[str, Any]:
    """The account of this rank's run for the other ranks, as plain data."""
    if isinstance(outcome, RecipeError):
        return {"failed": str(outcome)}
    return {"draws": outcome.draws, "diverged": outcome.info["diverged"]}


def _joined(draws: Draws, accounts: list[dict[str, Any]], division: Division) -> Draws:
    """The draws of all ranks, cut to the fewest draws of a rank."""
    number = min(account["draws"] for account in accounts)
    values = {name: torch.cat(_gathered(x[:, :number], division.sizes)) for name, x in draws.items()}
    diverged = [
        (step, int(chain) + division.first(r))
        for r, account in enumerate(accounts)
        for chain, step in account["diverged"].items()
    ]
    return Draws(
        values,
        info=draws.info | {"diverged": {str(chain): step for step, chain in sorted(diverged)}, "ranks": len(accounts)},
        step_sizes=None if draws.step_sizes is None else draws.step_sizes[:number],
    )


def share(members: int) -> range:
    """The numbers of this rank's members of an `Ensemble`, for `members` members on all ranks.

    Raises RecipeError for fewer members than ranks.

    >>> share(4)                                                                        # without torchrun
    range(0, 4)
    """
    rank, ranks = begin()
    reason = f"{members} members for {ranks} ranks"
    members = integer("share", "members", members, least=ranks, what=reason, do="Give every rank a member.")
    mine = Division(members, ranks).of(rank)
    return range(mine.start, mine.stop)


def gather(x: torch.Tensor) -> torch.Tensor:
    """Concatenates the tensors of all ranks along the first axis, such as the logits `(members, ...)` of an Ensemble.

    Every rank calls this and gets the whole, without gradient.

    >>> gather(torch.zeros(4, 2)).shape                                                 # without torchrun
    torch.Size([4, 2])
    """
    x = x.detach()
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return x
    return torch.cat(_gathered(x, [account["rows"] for account in _of_all_ranks({"rows": len(x)})]))


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
        raise RecipeError(
            where,
            f"{folder} holds {', '.join(present)}: {', '.join(missing)} is missing or of another number of ranks",
            do="Bring the folders of all ranks together, and start as many as there were.",
        )
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
    here = mine.stop - mine.start
    return x.expand(here, *x.shape) if len(x) == here else x


def _of_all_ranks(account: dict[str, Any]) -> list[dict[str, Any]]:
    """The plain data of every rank, in order; all ranks call this together."""
    text = torch.frombuffer(bytearray(json.dumps(account).encode()), dtype=torch.uint8).to(_device())
    sizes = [torch.zeros(1, dtype=torch.int64, device=_device()) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(text)], device=_device()))
    return [json.loads(bytes(part.tolist())) for part in _gathered(text, [int(n) for n in sizes])]


def _device() -> str:
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def _gathered(x: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    """The parts of a tensor on all ranks, of `sizes` rows, gathered on every rank."""
    padded = torch.cat([x, x.new_zeros((max(sizes) - len(x), *x.shape[1:]))])
    parts = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(parts, padded)
    return [part[:n] for part, n in zip(parts, sizes)]
