"""Several members of one network in one training loop, each a chain of its own."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch.func import functional_call
from torch.nn.parameter import is_lazy

from integrators import noise
from integrators.streams import NETWORK
from recipe.arguments import integer
from recipe.errors import RecipeError, warn

from ..target.torch_state import seeded
from ..target.vectorised import Vectorised
from .stacked import Stacked, numbers_of
from .svrg import check_modules

WHERE = "Ensemble"
OWN = "Take Minibatches(..., members=...), or pass shared=True: one batch for all members."


class Ensemble(torch.nn.Module):
    """Independent members of one network, each with a start of its own, in one training loop.

    `networks`: a function that makes a network, called once for each member under a seed of its own, or a list of
    networks of one form, which are copied. `members`: the number of members, or the range of their numbers on this
    rank, `samplers.distributed.share(4)`: start and noise of a member are functions of its number.

    Parameters and buffers are stacked, `(members, *shape)`, under their names in `network`. To `samplers.Optimizer`
    each member is a chain, with noise, thermostats, totals and temperatures of its own; torch's elementwise optimizers,
    such as SGD and Adam, train a deep ensemble. Members are computed together by torch.vmap; where torch cannot, in
    turn, with a warning. Raises RecipeError for networks of different forms, and at the call for modules that make
    the loss random or couple the examples of a batch, such as dropout and BatchNorm in training mode.
    Source: Lakshminarayanan, Pritzel & Blundell 2017, "Simple and scalable predictive uncertainty estimation using
    deep ensembles".

    >>> from samplers import Minibatches, Optimizer, SGHMC
    >>> X, y = torch.randn(60, 3), torch.randn(60, 1)
    >>> ensemble = Ensemble(lambda: torch.nn.Linear(3, 1), members=4, seed=0)
    >>> optimizer = Optimizer(ensemble.parameters(), SGHMC, lr=0.1, momentum=0.9, num_data=60)
    >>> for inputs, targets in Minibatches((X, y), 20, members=4):              # a batch of its own for each member
    ...     optimizer.zero_grad()
    ...     ensemble.loss(torch.nn.functional.mse_loss, inputs, targets).backward()
    ...     optimizer.step()
    >>> ensemble(X).shape
    torch.Size([4, 60, 1])
    """

    def __init__(
        self,
        networks: Callable[[], torch.nn.Module] | Sequence[torch.nn.Module],
        members: int | range | None = None,
        *,
        seed: int = 0,
    ):
        super().__init__()
        source: Any = networks
        is_list = isinstance(networks, (list, tuple, torch.nn.ModuleList))
        if not is_list and (isinstance(networks, torch.nn.Module) or not callable(networks)):
            what = f"a {type(networks).__name__} has one start for all members"
            do = "Pass a function that makes a network, lambda: Network(...), or a list of networks."
            raise RecipeError(WHERE, what, do=do)
        self.members = numbers_of(WHERE, len(source) if is_list and members is None else members)
        count, first = len(self.members), self.members.start
        seeds = noise.seeds(seed, 0, NETWORK, count, first_chain=first)
        modules = list(source) if is_list else [_made(source, seed_of_one) for seed_of_one in seeds]
        _check_forms(modules, self.members)
        self.network = _stacked(modules, first)
        self._in_turn = False

    def forward(self, inputs: Any) -> torch.Tensor:
        """The output of each member for the same inputs, `(members, ...)`."""
        return self._of_members(self._output, (inputs,), shared=True)

    def loss(
        self, function: Callable[..., torch.Tensor], inputs: Any, *targets: Any, shared: bool = False
    ) -> torch.Tensor:
        """The sum over members of their losses, `function(network(inputs), *targets)`, a 0-dim tensor.

        After `backward()` every member has the gradient of its own mean loss. The arguments are those of `losses`.
        """
        return self.losses(function, inputs, *targets, shared=shared).sum()

    def losses(
        self, function: Callable[..., torch.Tensor], inputs: Any, *targets: Any, shared: bool = False
    ) -> torch.Tensor:
        """The loss of each member, `function(network(inputs), *targets)`, `(members,)`.

        Inputs and targets are `(members, batch, ...)`, as from Minibatches(..., members=...); with `shared`, one batch
        for all members, `(batch, ...)`, whose noise couples the members. Raises RecipeError for other shapes, and for
        a function that returns more than one number.

        >>> ensemble, batch = Ensemble(lambda: torch.nn.Linear(3, 1), members=4), (torch.ones(20, 3), torch.ones(20, 1))
        >>> ensemble.losses(torch.nn.functional.mse_loss, *batch, shared=True).shape
        torch.Size([4])
        """
        self._check_batches(inputs, targets, shared)

        def of_one(state: Mapping[str, torch.Tensor], inputs: Any, *targets: Any) -> torch.Tensor:
            return function(self._output(state, inputs), *targets)

        losses = self._of_members(of_one, (inputs, *targets), shared=shared)
        if not torch.is_tensor(losses) or losses.shape != (len(self.members),):
            shape = tuple(losses.shape[1:]) if torch.is_tensor(losses) else type(losses).__name__
            what = f"it returns {shape} for a member"
            raise RecipeError(f"{WHERE}, loss", what, do="Return the mean over the batch, a 0-dim tensor.")
        return losses

    def member(self, number: int) -> torch.nn.Module:
        """A copy of the network with the parameters and buffers of one member, by its number.

        >>> Ensemble(lambda: torch.nn.Linear(3, 1), members=4).member(2).weight.shape
        torch.Size([1, 3])
        """
        start, last = self.members.start, self.members.stop - 1
        row = integer(f"{WHERE}, member", "number", number, least=start, most=last) - start
        parameters = {p: torch.nn.Parameter(p[row].detach().clone(), p.requires_grad) for p in self.parameters()}
        buffers = {b: b[row].detach().clone() for b in self.buffers()}
        return _with(self.network, parameters | buffers)

    def extra_repr(self) -> str:
        """The numbers of the members."""
        return f"members={self.members}"

    def _output(self, state: Mapping[str, torch.Tensor], inputs: Any) -> Any:
        return functional_call(self.network, dict(state), (inputs,))

    def _of_members(self, function: Callable, batch: tuple, *, shared: bool) -> Any:
        """The values for all members of a function of (parameters and buffers of a member, *batch)."""
        check_modules(WHERE, self.network)
        for name, p in self.network.named_parameters():
            if isinstance(p, torch.nn.Parameter) and not isinstance(p, Stacked):
                what = f"'{name}' has become a parameter that is not stacked, as sharding makes it: one chain of all"
                raise RecipeError(WHERE, what, do="Give each rank members of its own: samplers.distributed.share.")
        state = dict(self.network.named_parameters()) | dict(self.network.named_buffers())
        of_all = Vectorised(function, in_turn=self._in_turn)
        values = of_all(state, *batch, per_chain=not shared)
        if of_all.in_turn and not self._in_turn:
            self._in_turn = True
            warn(f"{WHERE}: torch cannot vectorise the network or the loss; members are computed one after another.")
        return values

    def _check_batches(self, inputs: Any, targets: Sequence[Any], shared: bool) -> None:
        """Refuses a shared batch where each member should have one, and the reverse, as far as shapes tell."""
        axes = 0 if shared else 1
        rows = []
        for x in filter(torch.is_tensor, (inputs, *targets)):
            if x.dim() <= axes or not shared and len(x) != len(self.members):
                what = f"a batch of shape {tuple(x.shape)} for {len(self.members)} members"
                raise RecipeError(f"{WHERE}, loss", what, do=OWN)
            rows.append(x.shape[axes])
        if len(set(rows)) > 1:
            what = f"inputs and targets have {' and '.join(map(str, rows))} rows for a member"
            raise RecipeError(f"{WHERE}, loss", what, do=OWN)


def _made(network: Callable[[], Any], seed: int) -> torch.nn.Module:
    """A network made under a seed."""
    with seeded(seed):
        module = network()
    if not isinstance(module, torch.nn.Module):
        raise RecipeError(WHERE, f"the function returns a {type(module).__name__}", do="Return an nn.Module.")
    return module


def _check_forms(networks: Sequence[Any], members: range) -> None:
    """Refuses objects other than modules, and modules whose tensors cannot be stacked."""
    if len(networks) != len(members):
        what = f"{len(networks)} networks for {len(members)} members"
        raise RecipeError(WHERE, what, do=f"Pass members={len(networks)}, or leave it out.")
    for network in networks:
        if not isinstance(network, torch.nn.Module):
            raise RecipeError(WHERE, f"a {type(network).__name__} is no network", do="Pass modules.")
        for name, p in network.named_parameters():
            if is_lazy(p):
                raise RecipeError(WHERE, f"'{name}' has no shape yet", do="Call the network once on some inputs.")
    first = _form(networks[0])
    for number, network in zip(members, networks):
        form = _form(network)
        if form != first:
            names = [name for name in {**first, **form} if first.get(name) != form.get(name)]
            what = f"'{names[0]}' of member {number} is {form.get(names[0])}, of the first one {first.get(names[0])}"
            raise RecipeError(WHERE, what, do="Make networks of one form.")


def _form(network: torch.nn.Module) -> dict[str, tuple]:
    """Shape, type, device and requires_grad of a network's parameters and buffers, by name."""
    tensors = [*network.named_parameters(), *network.named_buffers()]
    return {name: (tuple(x.shape), x.dtype, str(x.device), x.requires_grad) for name, x in tensors}


def _stacked(networks: Sequence[torch.nn.Module], first: int) -> torch.nn.Module:
    """A copy of the first network, with the parameters and buffers of all networks stacked."""
    tensors: dict[torch.Tensor, torch.Tensor] = {}
    for of_all in zip(*(network.parameters() for network in networks)):
        tensors[of_all[0]] = Stacked(_stack(of_all), of_all[0].requires_grad, first)
    for of_all in zip(*(network.buffers() for network in networks)):
        tensors[of_all[0]] = _stack(of_all)
    return _with(networks[0], tensors)


def _stack(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Tensors stacked one after another in memory, each in its own memory order, which numbers the sites of noise."""
    like = tensors[0]
    whole = torch.empty_strided(
        (len(tensors), *like.shape), (like.numel(), *like.stride()), dtype=like.dtype, device=like.device
    )
    for row, t in zip(whole, tensors):
        row.copy_(t.detach())
    return whole


def _with(network: torch.nn.Module, tensors: Mapping[torch.Tensor, torch.Tensor]) -> torch.nn.Module:
    """A copy of a module with tensors replaced; tied parameters stay tied."""
    return deepcopy(network, {id(old): new for old, new in tensors.items()})
