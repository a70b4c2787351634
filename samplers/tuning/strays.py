"""Chains of a pilot in modes of no weight, which would be units of sites, and starts, of what is never seen."""

import torch

RARE = 20.0  # minus the log of a weight that is none


def have_weight(draws: torch.Tensor, U: torch.Tensor) -> torch.Tensor:
    """Which chains are where exp(-U) has weight, `(chains,)`, by their draws `(chains, n, sites)` and U there.

    The place of a chain weighs next to nothing beside that of most chains where the least of its U, `(chains, n)`, is
    above the greatest U of half the chains by more than volumes make up for:

        min U > max U + 20 + sum_i log(sd_i of all draws / sd_i within a chain),

    with the median of all chains for the sd within one. Chains that have hardly moved all have weight.

    >>> draws = torch.tensor([[0.0, 1], [1, 0], [1, 0], [9, 8]])
    >>> have_weight(draws[..., None], U=torch.tensor([[0.0, 1], [2, 0], [1, 1], [90, 80]]))
    tensor([ True,  True,  True, False])
    """
    draws = draws.to(torch.float64)
    within = draws.std(1).median(0).values
    volumes = (draws.flatten(0, 1).std(0) / within).log().clamp(min=0).sum()
    usual = U.amax(1).median()
    return ~(U.amin(1) > usual + RARE + volumes.nan_to_num(nan=torch.inf))
