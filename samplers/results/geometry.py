"""Hard geometry in the draws of accepted or rejected steps: divergences, the fraction E-BFMI, chains that stand still.

Sources: Betancourt 2016, "Diagnosing suboptimal cotangent disintegrations in Hamiltonian Monte Carlo", eq. (1), and
Betancourt 2017, "A conceptual introduction to Hamiltonian Monte Carlo", section 5.2; their limits are those of Stan.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .statistics import flattened, labels

VANISHED = 20.0  # rise of U/T above that of draws from which on the density has vanished
DIVERGENT = 1000.0  # work over T above which a proposal is divergent
PLACES = 256  # divergent proposals whose draws are recorded, at most
GEOMETRY = ("divergences", "edge", "e_bfmi")  # the records of a run
LEAST_FRACTION = 0.3  # of E-BFMI
LOOKED_AT = 4096  # coordinates in the search for a place, at most
COMPARED = 16  # coordinates of a block in which a chain that stands still is seen


def advice_of(centred: Mapping[str, float]) -> str:
    """Advice for a model: which variables to centre to another degree, by their present degrees.

    >>> advice_of({"z": 1.0})
    "Non-centre z: samplers.model(..., centred={'z': 0}), or to the degree 0.5."
    """
    if not centred:
        return "Write variables in units of a scale that is drawn too (non-centred), or take other coordinates."
    inward = [name for name, degree in centred.items() if degree > 0]
    whole = all(centred[name] == 1 for name in inward)
    names, degree, other = (inward, 0, 0.5 if whole else 1) if inward else ([*centred], 0.5, 1)
    degrees = ", ".join(f"{name!r}: {degree}" for name in names)
    what = "Non-centre" if inward else "Centre half-way"
    return f"{what} {', '.join(names)}: samplers.model(..., centred={{{degrees}}}), or to the degree {other}."


def place_of(values: Mapping[str, torch.Tensor], at: Sequence[tuple[int, int]]) -> str:
    """Where half of the draws `at`, by chain and number, lie: the coordinate by whose ranks they stand out most.

    >>> place_of({"x": torch.arange(100.0)[None]}, [(0, 2), (0, 4), (0, 6)])
    'at x below 4, where 4 % of all draws are'
    """
    chains, draws = (torch.tensor(numbers, device="cpu") for numbers in zip(*at))
    best: tuple[float, str] = (-1.0, "")
    for name, x in values.items():
        sites = flattened(x)
        if not sites.numel():
            continue
        every = max(1, -(-sites.shape[2] // LOOKED_AT))
        sites = sites[..., ::every].to("cpu", torch.float64)
        sample = sites[:, :: max(1, sites.shape[1] // 1000)].flatten(0, 1)
        median = sites[chains, draws].quantile(0.5, dim=0)
        below = (sample < median).double().mean(0)
        above = (sample > median).double().mean(0)
        share = torch.minimum(below, above)
        away = (below - above).abs()
        k = int(away.argmax())
        if float(away[k]) > best[0]:
            (label,) = labels(name, x.shape[2:], [k * every])
            side = "below" if below[k] < above[k] else "above"
            words = f"at {label} {side} {float(median[k]):.3g}, where {100 * float(share[k]):.2g} % of all draws are"
            best = float(away[k]), words
    return best[1]


def longest_stay(values: Mapping[str, torch.Tensor]) -> tuple[int, int, int]:
    """The most draws that a chain stays at one, the chain, and the last draw of the stay.

    >>> longest_stay({"x": torch.tensor([[1.0, 2.0, 3.0], [5.0, 4.0, 4.0]])})
    (1, 1, 2)
    """
    still = _stays(values)
    number = torch.arange(still.shape[1], device=still.device).expand(still.shape)
    last_move = number.where(~still, -1).cummax(1).values
    stay = number - last_move
    at = int(stay.argmax())
    chain, draw = divmod(at, still.shape[1])
    return int(stay[chain, draw]), chain, draw + 1


def last_stay(values: Mapping[str, torch.Tensor]) -> int:
    """The most draws for which a chain stays at its last one.

    >>> last_stay({"x": torch.tensor([[1.0, 2.0, 1.0], [5.0, 4.0, 4.0]])})
    1
    """
    return int(_stays(values).flip(1).long().cumprod(1).sum(1).max())


def _stays(values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Whether each draw but the first is the one before it, in some coordinates of each block: (chains, draws - 1)."""
    sites = map(flattened, values.values())
    thinned = [x[..., :: max(1, -(-x.shape[2] // COMPARED))] for x in sites]
    return torch.stack([(x[:, 1:] == x[:, :-1]).all(2) for x in thinned]).all(0)


def divergences_of(info: Mapping[str, Any], chains: Sequence[int]) -> tuple[int, list[tuple[int, int]]]:
    """The number of divergent proposals of some chains, and their draws, by the place of the chain among these."""
    record = info["divergences"]
    place = {chain: k for k, chain in enumerate(chains)}
    at = [(place[chain], draw) for chain, draw in record["places"] if chain in place]
    return sum(record["of_chains"][chain] for chain in chains), at


def past_edge_of(info: Mapping[str, Any], chains: Sequence[int]) -> int:
    """The number of proposals of some chains that went past an edge, where U is infinite."""
    return sum(info["edge"]["of_chains"][chain] for chain in chains) if "edge" in info else 0


def is_cut_off(info: Mapping[str, Any]) -> bool:
    """Whether the density ends at an edge where it has not vanished."""
    return "edge" in info and info["edge"]["height"] < VANISHED


def least_fraction(info: Mapping[str, Any], chains: Sequence[int]) -> tuple[float, int]:
    """The least E-BFMI of some chains, and the chain."""
    return min((info["e_bfmi"][chain], chain) for chain in chains) if chains else (math.nan, -1)


def joined_geometry(infos: Sequence[Mapping[str, Any]], ends: Sequence[int], draws: int) -> dict[str, Any]:
    """The records of several parts of the chains, of which each begins at one of `ends`, as one of all chains.

    >>> parts = [{"divergences": {"proposals": 9, "of_chains": [n], "places": [[0, n]]}} for n in (1, 2)]
    >>> joined_geometry(parts, [0, 1, 2], draws=2)["divergences"]
    {'proposals': 18, 'of_chains': [1, 2], 'places': [[0, 1]]}
    """
    whole: dict[str, Any] = {}
    if all("e_bfmi" in info for info in infos):
        whole["e_bfmi"] = [x for info in infos for x in info["e_bfmi"]]
    if all("divergences" in info for info in infos):
        records = [info["divergences"] for info in infos]
        places = [[first + chain, k] for first, part in zip(ends, records) for chain, k in part["places"] if k < draws]
        whole["divergences"] = {
            "proposals": sum(record["proposals"] for record in records),
            "of_chains": [n for record in records for n in record["of_chains"]],
            "places": sorted(places, key=lambda place: place[::-1])[:PLACES],
        }
    if any("edge" in info for info in infos):
        records = [
            info.get("edge", {"of_chains": [0] * (end - first)}) for info, first, end in zip(infos, ends, ends[1:])
        ]
        past = [
            [first + chain, k] for first, part in zip(ends, records) for chain, k in part.get("places", []) if k < draws
        ]
        whole["edge"] = {
            "of_chains": [n for record in records for n in record["of_chains"]],
            "places": sorted(past, key=lambda place: place[::-1])[:PLACES],
            "height": min(record["height"] for record in records if "height" in record),
        }
    return whole


def check_geometry(info: Mapping[str, Any], chains: int, draws: int) -> None:
    """Raises ValueError for a record that no run writes, as in a forged file."""
    for record in (info[name] for name in ("divergences", "edge") if name in info):
        places, numbers = record["places"], record["of_chains"]
        if len(numbers) != chains or not all(type(n) is int and n >= 0 for n in numbers):
            raise ValueError("divergent proposals are not counted by chain")
        if not all(chain in range(chains) and draw in range(draws) for chain, draw in places):
            raise ValueError("a divergent proposal is at no draw")
    if len(info.get("e_bfmi", range(chains))) != chains or not all(x >= 0 for x in info.get("e_bfmi", ())):
        raise ValueError("an E-BFMI is no fraction of a chain")
    if not all(0 <= degree <= 1 for degree in info.get("centred", {}).values()):
        raise ValueError("a centred variable has no degree")
