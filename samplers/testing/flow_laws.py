"""The law of a flow: means and covariances by quadrature over its random numbers."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from sympy import diff

from integrators.flow import Flow
from integrators.predicted import At
from recipe.symbols import Block, duration

from .interpreter import Chain, elsewhere, evaluate
from .quadrature import hermite, legendre

Outcome = tuple[float, dict]


def outcomes(chain: Chain, values: dict, flow: Flow, time: float) -> Iterator[Outcome]:
    """Yields (weight, values) after a flow has run for a time, for each node of its random numbers."""
    for drawn in product(*(_nodes(flow, d) for d in flow.draws)):
        at = values | {duration: time} | {d: x for d, (_, x) in zip(flow.draws, drawn)}
        at |= elsewhere(chain, flow.updates.values(), at, chain.answers)
        moved = {b: np.asarray(evaluate(e, at, chain.full)) for b, e in flow.updates.items()}
        yield float(np.prod([w for w, _ in drawn])), values | moved


def _nodes(flow, draw):
    """Nodes (weight, value) of a random number; two of its mean and variance where the flow is affine in it."""
    if draw.kind in ("poisson", "gamma"):
        return [(0.5, lambda mean, sign=sign: mean + sign * np.sqrt(mean)) for sign in (-1, 1)]
    if draw.kind == "uniform":
        x, w = legendre(3)
        return list(zip(w / 2, (x + 1) / 2))
    if any(e.has(At) for e in flow.updates.values()):  # flows of many draws, tested at small times
        x, w = hermite(3)
        return list(zip(w, x))
    if any(diff(e, draw).has(draw) for e in flow.updates.values()):
        x, w = hermite(20)
        return list(zip(w, x))
    return [(0.5, -1.0), (0.5, 1.0)]


def cumulants(results: Iterable[Outcome], blocks: Sequence[Block]) -> dict[Any, np.ndarray]:
    """The means of blocks, and the covariances of their pairs, site by site."""
    results = list(results)
    mean = {b: sum(w * z[b] for w, z in results) for b in blocks}
    covariance = {
        (a, b): sum(w * (z[a] - mean[a]) * (z[b] - mean[b]) for w, z in results) for a in blocks for b in blocks
    }
    return {**mean, **covariance}
