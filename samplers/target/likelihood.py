"""The log likelihood of a model as a function, at a draw of the priors: whether it fails, or pairs data with others."""

from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from integrators.kernels.addresses import memory
from recipe.errors import RecipeError, in_short, warn

from .torch_state import unchecked
from .variables import ByName, Values
from .vectorised import takes

FAULTS = (RuntimeError, TypeError, IndexError, AttributeError)  # of a program, not of a state


def in_words(theta: Values) -> str:
    """Names, shapes and types of variables as text."""
    return ", ".join(f"{name} {tuple(x.shape)} of {x.dtype}" for name, x in theta.items())


def check_likelihood(log_likelihood: Callable, theta: Mapping[str, torch.Tensor]) -> None:
    """Refuse a function of one chain that fails at theta, and warn of a sum over N data with N laws, N^2 terms.

    A function that takes a batch is left alone, as is a matrix that has no factorisation at theta.

    >>> check_likelihood(lambda v: -((v["mu"] - torch.zeros(3)) ** 2).sum(), {"mu": torch.zeros(())})
    """
    if not takes(log_likelihood, 1) or takes(log_likelihood, 2):
        return
    pairs = AllPairs()
    try:
        with unchecked, pairs:
            terms = log_likelihood(ByName(theta))
    except torch.linalg.LinAlgError:
        return
    except FAULTS as error:
        what = f"the log likelihood fails at a draw of the priors: {in_short(error)}"
        do = f"Compute with the variables of one chain: {in_words(theta)}."
        raise RecipeError("model", what, do=do) from error
    number = pairs.summed or (len(terms) if pairs.has(terms) else 0)
    if number:
        warn(
            f"model: the log likelihood is a sum over {number} x {number} terms, of each of {number} numbers with each "
            f"of {number} others, as of y ({number}, 1) under a law of the shape ({number},). Give both one shape; of "
            "data by name this is checked."
        )


class AllPairs(TorchFunctionMode):
    """Follows tensors `(n, n)` that pair a column with a row: those of which no argument has as many numbers.

    `summed`: n of such a tensor that is summed up, 0 without one.

    >>> with AllPairs() as pairs:
    ...     x = (torch.zeros(3) - torch.zeros(3, 1)).exp().sum()
    >>> pairs.summed
    3
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensors: MutableMapping[Any, bool] = WeakIdKeyDictionary()
        self.summed = 0

    def has(self, x: Any) -> bool:
        """Whether an object is such a tensor."""
        return isinstance(x, torch.Tensor) and x in self.tensors

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        for x in tree_leaves(results):
            if not isinstance(x, torch.Tensor) or not tensors:
                continue
            if x.dim() == 0 and getattr(func, "__name__", "") == "sum" and self.has(tensors[0]):
                self.summed = len(tensors[0])
            if x.dim() == 2 and 1 < len(x) == x.shape[1] and self._is_paired(x, tensors):
                self.tensors[x] = True
        return results

    def _is_paired(self, x: torch.Tensor, arguments: list[torch.Tensor]) -> bool:
        """Whether the numbers of a tensor are by the pairs of its arguments, or of such tensors among them.

        Pairs of one tensor with itself are meant, as in an energy of distances.
        """
        if any(y.shape == x.shape and not self.has(y) for y in arguments):
            return False
        try:
            by_pairs = torch.broadcast_shapes(*(y.shape for y in arguments)) == x.shape
            return by_pairs and (any(map(self.has, arguments)) or len(set(map(memory, arguments))) > 1)
        except RuntimeError:  # shapes of a product of matrices, or a tensor without memory of its own
            return False
