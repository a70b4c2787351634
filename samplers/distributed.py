"""More than one process under torchrun: chains over ranks, and gradients that ranks share."""

import atexit
import json
import os
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from recipe import Recipe
from recipe.errors import RecipeError

from .files import storage
from .results.draws import Draws
from .running.sampling import sample as sample_here

__all__ = ["begin", "sample", "share_gradients"]


def begin(backend: str | None = None) -> tuple[int, int]:
    """Join the group of processes that torchrun has started, until the process ends: (rank, world size); (0, 1) without torchrun.

    `backend`: "gloo", or "nccl" where there are GPUs, which is the default there.
    """
    if not dist.is_initialized():
        if "WORLD_SIZE" not in os.environ:
            return 0, 1
        dist.init_process_group(backend or ("nccl" if torch.cuda.is_available() else "gloo"))
        atexit.register(_end)
        if dist.get_backend() == "nccl":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    return dist.get_rank(), dist.get_world_size()


def _end():
    """Leave the group while the interpreter is whole: gloo's threads may hold tensors, and abort a process that frees them later."""
    if dist.is_initialized():
        dist.destroy_process_group()


def sample(
    recipe: Recipe,
    energy=None,
    *,
    chains: int = 4,
    init=None,
    checkpoint: str | os.PathLike | None = None,
    progress: bool = True,
    first_chain: int = 0,
    **how,
) -> Draws:
    """`samplers.sample` with the chains divided over the ranks; every rank returns the draws of all chains.

    Chain i has the noise, the batches and the start that it has in a run of one process: the draws are the same bit for bit,
    for noise of every kind but Poisson and Gamma numbers. A start per chain is `(chains, *shape)`, as there. Each rank keeps its
    chains in a folder of its own inside of `checkpoint`, and a resumed run needs all of them. Raises RecipeError for fewer
    chains than ranks, and where the folder of a rank is missing.
    """
    rank, ranks = begin()
    where = f"{recipe.name}, distributed" if isinstance(recipe, Recipe) else "distributed"
    if isinstance(chains, bool) or not isinstance(chains, int) or chains < ranks:
        raise RecipeError(where, f"{chains} chains for {ranks} ranks", do="Give every rank a chain.")
    ends = [chains * r // ranks for r in range(ranks + 1)]
    mine = slice(ends[rank], ends[rank + 1])
    if checkpoint is not None:
        checkpoint = _folder(Path(checkpoint), rank, ranks, where)
    draws, error = None, None
    try:
        draws = sample_here(
            recipe,
            energy,
            chains=mine.stop - mine.start,
            init=_part(recipe, init, chains, mine),
            checkpoint=checkpoint,
            progress=progress and rank == 0,
            first_chain=first_chain + mine.start,
            **how,
        )
    except RecipeError as raised:
        error = raised
    if ranks == 1:
        if error:
            raise error
        return draws
    accounts = _told({"failed": str(error)} if error else {"draws": draws.draws, "diverged": draws.info["diverged"]})
    failed = [r for r, account in enumerate(accounts) if "failed" in account]
    if failed:
        raise error or RecipeError(where, f"rank {failed[0]} failed: {accounts[failed[0]]['failed']}", do="See there.")
    number = min(account["draws"] for account in accounts)  # of a run that was stopped
    values = {
        name: torch.cat(_gathered(x[:, :number], [b - a for a, b in zip(ends, ends[1:])])) for name, x in draws.items()
    }
    lost = [
        (step, int(chain) + ends[r])
        for r, account in enumerate(accounts)
        for chain, step in account["diverged"].items()
    ]
    return Draws(
        values,
        info=draws.info | {"diverged": {str(chain): step for step, chain in sorted(lost)}, "ranks": ranks},
        step_sizes=None if draws.step_sizes is None else draws.step_sizes[:number],
    )


def share_gradients(params) -> None:
    """Replace each gradient by its mean over the ranks, each of which has seen a batch of its own of the same size.

    Call it between `loss.backward()` and `optimizer.step()`: as the noise is a function of the seed and the site, the
    ranks stay at the same weights. In place; one message for all tensors of a type.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return
    by_type: dict = {}
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


def _folder(folder, rank, ranks, where):
    """The folder of a rank; refused where some ranks have one and others not, or for another number of ranks."""
    storage.make_folder(folder)
    if ranks > 1:
        dist.barrier()
    found = sorted(p.name for p in folder.glob("rank-*"))
    wanted = [f"rank-{r}-of-{ranks}" for r in range(ranks)]
    if ranks > 1:
        dist.barrier()
    if found and found != sorted(wanted):
        missing = [name for name in wanted if name not in found] or found
        raise RecipeError(
            where,
            f"{folder} holds {', '.join(found)}: {', '.join(missing)} is missing or of another number of ranks",
            do="Bring the folders of all ranks together, and start as many as there were.",
        )
    return folder / wanted[rank]


def _part(recipe, init, chains, mine):
    """The starts of these chains, of what gives one for each; a point that would look like that is repeated."""
    scalars, blocks = [b.name for b in recipe.entries if not b.is_vector], [b.name for b in recipe.entries]

    def cut(x, least=2):
        if not torch.is_tensor(x) or x.dim() < least:
            return x
        here = mine.stop - mine.start
        return x[mine] if len(x) == chains else x.expand(here, *x.shape) if len(x) == here else x

    if isinstance(init, Mapping):
        return {name: cut(x, 1 if name in scalars else 2) if name in blocks else x for name, x in init.items()}
    return cut(init)


def _told(account: dict) -> list[dict]:
    """The plain data of every rank."""
    text = torch.frombuffer(bytearray(json.dumps(account).encode()), dtype=torch.uint8).to(_device())
    sizes = [torch.zeros(1, dtype=torch.int64, device=_device()) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(text)], device=_device()))
    return [json.loads(bytes(part.tolist())) for part in _gathered(text, [int(n) for n in sizes])]


def _device():
    return "cuda" if dist.get_backend() == "nccl" else "cpu"


def _gathered(x, sizes):
    """What the ranks hold of a tensor, so many rows each, on every rank."""
    padded = torch.cat([x, x.new_zeros((max(sizes) - len(x), *x.shape[1:]))])
    found = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(found, padded)
    return [f[:n] for f, n in zip(found, sizes)]
