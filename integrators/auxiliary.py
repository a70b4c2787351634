"""Initial values of auxiliary blocks and adapted quantities, and the masses of momenta."""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Any

from sympy import Expr, Piecewise, S, Symbol, lambdify, sqrt

from recipe import Recipe
from recipe.marginal import eliminate_gaussians
from recipe.operators import Operator, times
from recipe.scheme import Scheme, once_each
from recipe.symbols import Adapted, Block, Partial, Total
from recipe.symbols import temperature as T

from .boundaries import led_back
from .direction import Direction
from .flow import Flow
from .variates import Normal, Uniform

LEAST = 1e-8  # least initial value of an adapted quantity, as a share of its mean over the sites


def adaptation_word(recipe: Recipe) -> tuple[Scheme, dict[str, Flow]]:
    """A word that sets the adapted quantities to their initial values, and its flows by letter."""
    flows = {a.name: Flow(a.name, {a: _first_value(a)}, (), "start", True, f"{a} <- {a.start}") for a in recipe.adapted}
    return once_each("start", flows), flows


def _first_value(a: Adapted) -> Expr:
    """Initial value of an adapted quantity; its mean over sites where a vanishing gradient makes the value too small.

    With a mass or a preconditioner near 0, as at dead units of a network, no step size would be stable.
    """
    if not a.is_vector or a.domain.name not in ("nonnegative", "positive") or not a.start.has(Partial):
        return a.start
    mean = Total(a.start) / Total(S.One)
    return Piecewise((mean, a.start < LEAST * mean), (a.start, True))


def stationary_word(recipe: Recipe) -> tuple[Scheme, dict[str, Flow]]:
    """A word that draws auxiliary blocks from their law given the target, and its flows by letter.

    Where H = (x - mean)^2/2 precision + ... in an auxiliary block x, the law of x is N(mean, T/precision). A block on
    the sphere starts evenly on it, and a direction of time is 1 or -1 with probability 1/2 each.

    >>> from samplers import SGNHT
    >>> word, flows = stationary_word(SGNHT)
    >>> print(flows["p"].equation)
    p ~ N(0, T/(1))
    """
    laws, _ = eliminate_gaussians(recipe.H, recipe.momenta + recipe.thermostats)
    flows = {}
    for law in reversed(laws):
        b = law.block
        draw = Normal(law.block)
        update = law.mean + times(sqrt(T / law.precision), draw)
        equation = f"{b} ~ N({law.mean}, T/({law.precision}))"
        flows[b.name] = Flow(b.name, {b: update}, (draw,), "stationary law", True, equation)
    for u in (u for u in recipe.spheres if u not in recipe.targets):
        flows[u.name] = Flow(u.name, {u: led_back(u, Normal(u))}, (Normal(u),), "evenly", True, f"{u} on the sphere")
    for a in recipe.adapted:
        if isinstance(a, Direction):
            turn = Uniform(a)
            update = Piecewise((S.One, turn < S.Half), (-S.One, True))
            flows[a.name] = Flow(a.name, {a: update}, (turn,), "stationary law", True, f"{a} is 1 or -1, evenly")
    return once_each("stationary start", flows), flows


def start_word(recipe: Recipe) -> tuple[Scheme, dict[str, Flow]]:
    """A word that sets the adapted quantities to their initial values and draws auxiliary blocks, and its flows."""
    flows = adaptation_word(recipe)[1] | stationary_word(recipe)[1]
    return once_each("start", flows), flows


def masses(recipe: Recipe, parameters: Mapping[str, Any], frozen: Collection[str] = ()) -> dict[str, Any]:
    """Masses, as numbers or tensors by name, of the momenta with law N(0, mass T) independent of all other blocks.

    `parameters`: values by name, where they differ from the defaults; `frozen`: names of blocks held still, left out.

    >>> from samplers import SGNHT
    >>> masses(SGNHT, {})
    {'p': 1.0}
    """
    by_block = {}
    for name, (symbols, precision) in _precisions(recipe).items():
        values = [parameters.get(s.name, getattr(s, "default", None)) for s in symbols]
        if name not in frozen and all(value is not None for value in values):
            by_block[name] = 1 / precision(*values)
    return by_block


Precision = tuple[list[Symbol], Callable[..., Any]]  # its symbols, and the precision as a function of their values


@lru_cache(maxsize=32)
def _precisions(recipe: Recipe) -> dict[str, Precision]:
    """The precisions of the momenta that are Gaussian whatever the other blocks are."""
    known: dict[str, Precision] = {}
    for law in eliminate_gaussians(recipe.H, recipe.momenta)[0]:
        symbols = sorted(law.precision.free_symbols, key=str)
        reads_state = any(isinstance(s, (Block, Operator)) for s in symbols) or law.precision.has(Total)
        if law.mean == 0 and not reads_state:
            known[law.block.name] = symbols, lambdify(symbols, law.precision, "math")
    return known
