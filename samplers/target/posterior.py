"""Energies of a posterior from a likelihood and a prior, and the variance of its scores."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from recipe.arguments import integer
from recipe.errors import RecipeError


@dataclass(frozen=True)
class Posterior:
    """The energy U~(theta, batch) = num_data * mean likelihood term + prior term."""

    negative_log_likelihood: Callable
    negative_log_prior: Callable
    num_data: int

    def __call__(self, theta: Any, batch: Any) -> torch.Tensor:
        """U~ at theta, of one chain, on a batch."""
        terms, prior = self.negative_log_likelihood(theta, batch), self.negative_log_prior(theta)
        if not torch.is_tensor(terms) or terms.dim() > 1:
            got = f"has the shape {tuple(terms.shape)}" if torch.is_tensor(terms) else f"is a {type(terms).__name__}"
            do = "Return the mean over the batch, or one value per example."
            raise RecipeError("posterior", f"the likelihood {got}", do=do)
        if not isinstance(prior, (torch.Tensor, int, float)):
            what = f"the prior is a {type(prior).__name__}"
            raise RecipeError("posterior", what, do="Return one number: -log of its density at theta.")
        return self.num_data * terms.mean() + prior


def posterior(
    negative_log_likelihood: Callable[..., Any], negative_log_prior: Callable[..., Any], *, num_data: int | None = None
) -> Posterior:
    """The energy U~(theta, batch) = num_data * mean likelihood term + prior term, an unbiased estimate of U.

    `negative_log_likelihood(theta, batch)` returns the mean over the batch or one value per example, `(batch_size,)`;
    the prior is not scaled. `num_data`: the number of data. Raises RecipeError without `num_data` or a function.

    >>> energy = posterior(lambda theta, x: (x - theta)**2/2, lambda theta: theta**2/200, num_data=10)
    >>> energy(torch.tensor(0.0), torch.tensor([1.0, 3.0]))
    tensor(25.)
    """
    what = f"num_data is the number of data, a positive integer, got {num_data!r}"
    do = "A mean likelihood must be scaled up to the whole data: pass num_data=len(X)."
    rows = integer("posterior", "num_data", num_data, least=1, what=what, do=do)
    if not callable(negative_log_likelihood):
        what = f"negative_log_likelihood is a {type(negative_log_likelihood).__name__}"
        raise RecipeError("posterior", what, do="Pass a function of (theta, batch).")
    if not callable(negative_log_prior):
        what = f"negative_log_prior is a {type(negative_log_prior).__name__}"
        raise RecipeError("posterior", what, do="Pass a function of theta; lambda theta: 0.0 is a flat prior.")
    return Posterior(negative_log_likelihood, negative_log_prior, rows)


def score_variance(negative_log_likelihood: Callable[..., Any]) -> Callable[..., Any]:
    """The observation (theta, batch) -> variance over the batch of the gradients of single terms, of theta's shape.

    `negative_log_likelihood(theta, batch)` is as for `posterior`.

    >>> observed = score_variance(lambda theta, x: (x - theta)**2/2)
    >>> observed(torch.tensor(0.0), torch.tensor([1.0, 3.0]))
    tensor(2.)
    """

    def of_one(theta, row):
        return negative_log_likelihood(theta, tree_map(lambda x: x[None], row)).mean()

    def observed(theta, batch):
        return tree_map(lambda g: g.var(0), vmap(grad(of_one), in_dims=(None, 0))(theta, batch))

    return observed
