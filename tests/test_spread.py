"""Chains whose sites are spread over processes: numbers, totals and starts are those of chains that are whole."""

import pytest
import torch

from integrators import noise
from integrators.noise import Places

F64 = torch.float64


@pytest.mark.parametrize("sites", [1, 2, 3, 11, 4100])
@pytest.mark.parametrize("kind", noise.KINDS)
def test_numbers_at_places_are_those_of_the_whole_chain(kind, sites):
    runs = [(sites // 2, sites - sites // 2), (0, sites // 3), (sites // 4, 0)]
    at = torch.cat([torch.arange(first, first + n) for first, n in runs])
    for step in (0, 5, range(3)):
        whole = noise.KINDS[kind](7, step, 3, 2, (sites,), dtype=F64)
        some = noise.KINDS[kind](7, step, 3, 2, (len(at),), dtype=F64, places=Places(sites, tuple(runs)))
        assert torch.equal(some, whole[..., at])
