"""Chains of a pilot in modes of no weight, which would be units of sites, and starts, of what is never seen."""

import torch

RARE = 20.0  # minus the log of a weight that is none
UNKNOWN = 1.0  # log of the factor by which the width of a place may be greater than a chain tells, along each site


def have_weight(draws: torch.Tensor, U: torch.Tensor) -> torch.Tensor:
    """Which chains are where exp(-U) may have weight, `(chains,)`, by their draws `(chains, n, sites)` and U there.

    A place weighs exp(-U) times its volume. That of a chain is left where the least of its U, `(chains, n)`, is above
    the greatest U of half the chains by more than volumes can make up for:

        min U > max U + 20 + sum_i (1 + log(width_i / sd_i)),

    sd_i: within a chain, the median of all; width_i: the greater of the sd of all draws and of the root mean square
    distance of the chain's draws from the median of all. Chains that have hardly moved all may have weight.

    >>> draws = torch.tensor([[0.0, 1], [1, 0], [1, 0], [9, 8]])
    >>> have_weight(draws[..., None], U=torch.tensor([[0.0, 1], [2, 0], [1, 1], [90, 80]]))
    tensor([ True,  True,  True, False])
    """
    draws = draws.to(torch.float64)
    every = draws.flatten(0, 1)
    widths = (draws - every.median(0).values).square().mean(1).sqrt().maximum(every.std(0))
    ratios = (widths / draws.std(1).median(0).values).nan_to_num(nan=1.0, posinf=torch.inf)  # 0/0: all are at a point
    volumes = (UNKNOWN + ratios.log().clamp(min=0)).sum(1)
    return U.amin(1) <= U.amax(1).median() + RARE + volumes
