"""Counter-based noise: a pure function of (seed, step, draw, chain, site).

A site is an index into the flattened shape of one chain's draw of n sites. The number at a site is made of a word of
a Philox4x32-10 block with the counter and key

    c0 = low32(b)      c1 = high16(b) | draw << 16    c2 = chain    c3 = low32(t)
    k0 = low32(seed)   k1 = high32(seed) xor high32(t)

with b = site // 4, t = step, and word ``site % 4``. Draws of one or two sites share a block among s = 4 // n steps,
with b = 2^48 - n, t = step // s, and word ``site + step % s * n``.

Seeds that agree in their low half share blocks only at steps 2^32 or more apart. `integrators.streams` assigns draws,
steps and chains to uses.

Source: Salmon, Moraes, Dror and Shaw (2011), "Parallel random numbers: as easy as 1, 2, 3".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypedDict, Unpack

import torch

from recipe.arguments import integer
from recipe.errors import RecipeError

from .philox import MASK, Words, philox
from .rejection import Uniforms, gamma_numbers, poisson_numbers

Device = torch.device | str | None
Steps = int | range
Shape = Sequence[int]
Sampler = Callable[[torch.Tensor | float], torch.Tensor]  # from rates or shapes to numbers


@dataclass(frozen=True)
class Places:
    """Runs of neighbouring sites, each as (first site, length), of a chain with `sites` sites.

    Numbers drawn at places equal the numbers of the whole chain at these sites, one run after the other.

    >>> whole = uniform(7, 0, 0, 1, (8,), dtype=torch.float64)
    >>> some = uniform(7, 0, 0, 1, (3,), dtype=torch.float64, places=Places(8, ((5, 2), (1, 1))))
    >>> torch.equal(some, whole[:, [5, 6, 1]])
    True
    """

    sites: int
    runs: tuple[tuple[int, int], ...]

    def groups(self, device: Device) -> torch.Tensor:
        """Indices of the groups of four sites that meet the runs, one run after the other."""
        return _ranges([(first // 4, _groups(first, n)) for first, n in self.runs], device)

    def within_groups(self, device: Device) -> torch.Tensor:
        """Indices of the sites within the sites of `groups`."""
        ends = accumulate((4 * _groups(first, n) for first, n in self.runs), initial=0)
        return _ranges([(end + first % 4, n) for end, (first, n) in zip(ends, self.runs)], device)


def _groups(first: int, n: int) -> int:
    """The number of groups of four sites that meet a run."""
    return -(-(first + n) // 4) - first // 4


def _ranges(runs: Sequence[tuple[int, int]], device: Device) -> torch.Tensor:
    """The integers of runs (first, length), one run after the other."""
    first, n = torch.tensor(runs, dtype=torch.int64).reshape(-1, 2).unbind(1)
    shift = first - n.cumsum(0) + n
    return torch.arange(int(n.sum()), device=device) + shift.repeat_interleave(n).to(device or "cpu")


@dataclass(frozen=True)
class Key:
    """The noise of one step under a seed, drawn where it is used; chains count from `first_chain`.

    `places`: the sites at which noise is drawn; None for all sites.
    """

    seed: int
    step: int
    first_chain: int = 0
    places: Places | None = None

    def __post_init__(self):
        _set_integer(self, "seed", 2**64)
        _set_integer(self, "step", 2**63)
        _set_integer(self, "first_chain", 2**32 + 1)

    def check(self, chains: int) -> None:
        """Refuse chain indices of 2^32 and beyond."""
        _integer("first_chain", self.first_chain, 2**32 + 1 - chains)

    def draw(
        self, kind: str, number: int, chains: int, shape: Shape, *, dtype: torch.dtype, device: Device = None
    ) -> "torch.Tensor | Sampler | list[Sampler]":
        """The numbers of draw `number`: normal or uniform numbers, or functions of the parameter for poisson and gamma.

        >>> Key(seed=7, step=0).draw("uniform", 0, chains=1, shape=(3,), dtype=torch.float64)
        tensor([[0.9546, 0.7502, 0.1142]], dtype=torch.float64)
        """
        options: dict[str, Any] = {"dtype": dtype, "device": device, "first_chain": self.first_chain}
        if self.places is not None and shape:
            options["places"] = self.places
        return FUNCTIONS[kind](self.seed, self.step, number, chains, shape, **options)

    def normals(self, number: int, like: torch.Tensor) -> torch.Tensor:
        """Standard normals of draw `number`, with the shape `(chains, *shape)`, dtype and device of a block."""
        at: _At = {"device": like.device, "first_chain": self.first_chain}
        return normal(self.seed, self.step, number, len(like), tuple(like.shape[1:]), dtype=like.dtype, **at)

    def uniforms(self, number: int, like: torch.Tensor) -> torch.Tensor:
        """Uniform numbers of draw `number`, with the shape `(chains, *shape)`, dtype and device of a block."""
        at: _At = {"device": like.device, "first_chain": self.first_chain}
        return uniform(self.seed, self.step, number, len(like), tuple(like.shape[1:]), dtype=like.dtype, **at)


class _At(TypedDict, total=False):
    """Where numbers are drawn: on which device, and from which chain on."""

    device: Device
    first_chain: int


class _AtPlaces(_At, total=False):
    """Where numbers are drawn, and at which sites."""

    places: Places | None


def uniform(
    seed: int | None, step: Steps, draw: int, chains: int, shape: Shape, *, dtype: torch.dtype, **at: Unpack[_AtPlaces]
) -> torch.Tensor:
    """Uniform noise on the open interval (0, 1).

    u = (x + 1/2) 2^-32 for the Philox word x of the site, at most the largest number below 1.

    Returns (chains, *shape) for an int step, (len(step), chains, *shape) for a range of steps; the chains are
    first_chain, first_chain + 1, ... Raises RecipeError if seed is missing or outside [0, 2^64), step outside
    [0, 2^63), draw outside [0, 2^16), a chain outside [0, 2^32), or dtype neither float32 nor float64.
    Source: Salmon et al. (2011).

    >>> uniform(seed=7, step=0, draw=0, chains=1, shape=(3,), dtype=torch.float64)
    tensor([[0.9546, 0.7502, 0.1142]], dtype=torch.float64)
    """
    u = _unit(_words(seed, step, draw, chains, shape, **at), dtype).clamp_(max=1 - torch.finfo(dtype).eps / 2)
    return _at_sites(u, step, shape, at.get("places"))


def normal(
    seed: int | None, step: Steps, draw: int, chains: int, shape: Shape, *, dtype: torch.dtype, **at: Unpack[_AtPlaces]
) -> torch.Tensor:
    """Standard normal noise.

    With u as in `uniform` and r = sqrt(-2 ln u_even), the pair of sites (even, odd) gets
    r cos(2 pi u_odd), r sin(2 pi u_odd).

    Shapes, chains and errors are those of `uniform`. Source: Box and Muller (1958), "A note on the generation of
    random normal deviates".

    >>> normal(seed=7, step=0, draw=0, chains=1, shape=(3,), dtype=torch.float64)
    tensor([[ 2.9157e-04, -3.0485e-01,  1.7888e+00]], dtype=torch.float64)
    """
    even, odd = _unit(_words(seed, step, draw, chains, shape, **at), dtype).unflatten(-1, (2, 2)).unbind(-1)
    r = even.log().mul_(-2).sqrt_()
    angle = odd * (2 * math.pi)
    return _at_sites(torch.stack((angle.cos().mul_(r), angle.sin().mul_(r)), -1), step, shape, at.get("places"))


def integers(
    seed: int | None, step: Steps, draw: int, chains: int, shape: Shape, *, high: int, **at: Unpack[_At]
) -> torch.Tensor:
    """Uniform int64 noise on [0, high).

    floor(x high / 2^32) for the Philox word x of the site; the relative bias of a value's probability is at most
    high / 2^32.

    Shapes, chains and errors are those of `uniform`; raises RecipeError too if high is outside [1, 2^31].
    Source: Salmon et al. (2011).

    >>> integers(seed=7, step=0, draw=0xFFFE, chains=1, shape=(5,), high=100)
    tensor([[39, 39,  3, 10,  5]])
    """
    high = check_high(high)
    words = _words(seed, step, draw, chains, shape, **at)
    return _at_sites(torch.stack(words, -1).mul_(high) >> 32, step, shape)


def check_high(high: int) -> int:
    """The end of integers; raises RecipeError outside of [1, 2^31], where a value's probability is off."""
    return _integer("high", high, 2**31 + 1, least=1)


def seeds(seed: int | None, step: int, draw: int, chains: int, *, first_chain: int = 0) -> list[int]:
    """A seed of 62 bits for each chain, for generators of another kind."""
    high, low = integers(seed, step, draw, chains, (2,), high=2**31, device="cpu", first_chain=first_chain).unbind(1)
    return (high << 31 | low).tolist()


def poisson(
    seed: int | None, step: Steps, draw: int, chains: int, shape: Shape, *, dtype: torch.dtype, **at: Unpack[_At]
) -> Sampler | list[Sampler]:
    """Poisson noise as a function of the rate, known only within the step, or one function per step of a range.

    The rate broadcasts to (chains, *shape). Rates below 10 are inverted, with 64 bits; others are drawn by transformed
    rejection. Source: Hormann (1993), "The transformed rejection method for generating Poisson random variables", PTRS.

    >>> poisson(7, 0, 0, 1, (3,), dtype=torch.float32)(1e-9)
    tensor([[0., 0., 0.]])
    """
    return _of_blocks(poisson_numbers, seed, step, draw, (chains, *shape), dtype, **at)


def gamma(
    seed: int | None, step: Steps, draw: int, chains: int, shape: Shape, *, dtype: torch.dtype, **at: Unpack[_At]
) -> Sampler | list[Sampler]:
    """Gamma noise of scale 1 as a function of its shape parameter, or one function per step of a range.

    Numbers are made in float64, and are at least the smallest normal number of `dtype`. Source: Marsaglia and Tsang
    (2000), "A simple method for generating gamma variables".

    >>> bool(gamma(7, 0, 0, 1, (3,), dtype=torch.float32)(torch.full((1, 3), 0.01)).gt(0).all())
    True
    """
    return _of_blocks(gamma_numbers, seed, step, draw, (chains, *shape), dtype, **at)


KINDS = {"normal": normal, "uniform": uniform}
STATE_DEPENDENT = {"poisson": poisson, "gamma": gamma}
FUNCTIONS: dict[str, Callable[..., Any]] = KINDS | STATE_DEPENDENT | {"integers": integers}


def _of_blocks(
    function: Callable[[torch.Tensor, Uniforms], torch.Tensor],
    seed: int | None,
    step: Steps,
    draw: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    device: Device = None,
    first_chain: int = 0,
) -> Sampler | list[Sampler]:
    """Samplers by `function` of parameters (N,) and uniforms: attempt j at site s has the Philox block j 2^40 + s."""
    sites = math.prod(shape[1:])

    def of_step(k: int) -> Sampler:
        seed_here, _ = _checked(seed, draw, shape[0], first_chain, [k])
        key = seed_here & MASK, k >> 32 ^ seed_here >> 32

        def uniforms(which: torch.Tensor, attempt: int) -> tuple[torch.Tensor, ...]:
            site = which % sites
            upper = site >> 32 | attempt << 8 | draw << 16
            counter = site & MASK, upper, which // sites + first_chain, torch.full_like(which, k & MASK)
            return _unit(philox(counter, key), torch.float64).unbind(-1)

        def sampler(parameter: torch.Tensor | float) -> torch.Tensor:
            parameter = torch.as_tensor(parameter, dtype=dtype, device=device).broadcast_to(shape)
            numbers = function(parameter.reshape(-1).double(), uniforms).reshape(shape)
            return numbers.clamp(min=0 if function is poisson_numbers else torch.finfo(dtype).tiny).to(dtype)

        return sampler

    return [of_step(k) for k in step] if isinstance(step, range) else of_step(step)


def steps_of_block(sites: int) -> int:
    """The number of steps that share a Philox block: 4 // n for n = 1 or 2 sites, else 1.

    >>> [steps_of_block(sites) for sites in range(5)]
    [1, 4, 2, 1, 1]
    """
    return 4 // sites if sites in (1, 2) else 1


def _words(
    seed: int | None,
    step: Steps,
    draw: int,
    chains: int,
    shape: Shape,
    device: Device = None,
    first_chain: int = 0,
    places: Places | None = None,
) -> Words:
    """The four Philox words, each (blocks of steps, chains, groups), with groups of four sites, all or of `places`."""
    steps = _all(step)
    seed, chains = _checked(seed, draw, chains, first_chain, steps)
    sites = math.prod(shape) if places is None else places.sites
    shared = steps_of_block(sites)
    if shared > 1:
        group = torch.tensor([2**48 - sites], device=device)
    else:
        group = torch.arange(-(-sites // 4), device=device) if places is None else places.groups(device)
    chain = (torch.arange(chains, device=device) + first_chain).view(-1, 1)
    block = torch.tensor([*_blocks(steps, shared)], dtype=torch.int64, device=device).view(-1, 1, 1)
    counter = group & MASK, group >> 32 | draw << 16, chain, block & MASK
    return philox(counter, (seed & MASK, block >> 32 ^ seed >> 32))


def _checked(seed: int | None, draw: int, chains: int, first_chain: int, steps: Sequence[int]) -> tuple[int, int]:
    """The seed and the number of chains; raises RecipeError for numbers outside of the counters."""
    if seed is None:
        raise RecipeError("noise, seed", "no seed is given", do="Give a seed: the global generator is never used.")
    _integer("draw", draw, 2**16)
    chains = _integer("chains", chains, 2**32 + 1)
    _integer("first_chain", first_chain, 2**32 + 1 - chains)
    for end in (*steps[:1], *steps[-1:]):
        _integer("step", end, 2**63)
    return _integer("seed", seed, 2**64), chains


def _all(step: Steps) -> Sequence[int]:
    return step if isinstance(step, range) else [step]


def _blocks(steps: Sequence[int], shared: int) -> dict[int, int]:
    """The row of each block of `shared` steps, by block, in the order of the steps."""
    return {block: row for row, block in enumerate(dict.fromkeys(k // shared for k in steps))}


def _unit(words: Words, dtype: torch.dtype) -> torch.Tensor:
    """(x + 1/2) 2^-32 for words x; in float32 the largest words round to 1."""
    if dtype not in (torch.float32, torch.float64):
        raise RecipeError("noise, dtype", f"{dtype} is not supported", do="Use torch.float32 or torch.float64.")
    return torch.stack([word.to(dtype) for word in words], -1).mul_(2**-32).add_(2**-33)


def _at_sites(values: torch.Tensor, step: Steps, shape: Shape, places: Places | None = None) -> torch.Tensor:
    """Values of groups of four, by step, cut to the sites of `shape`, without the axis of steps for an int step."""
    sites = math.prod(shape) if places is None else places.sites
    shared = steps_of_block(sites)
    values = values.flatten(2)
    if shared > 1:
        steps = _all(step)
        blocks = _blocks(steps, shared)
        turns = [(blocks[k // shared], k % shared) for k in steps]
        row, turn = torch.tensor(turns, dtype=torch.int64, device=values.device).reshape(-1, 2).unbind(1)
        values = values.unflatten(-1, (shared, sites))[row, :, turn]
    if places is None:
        values = values[..., :sites]
    else:
        of_runs = _ranges(places.runs, values.device) if shared > 1 else places.within_groups(values.device)
        values = values[..., of_runs]
    values = values.reshape(*values.shape[:2], *shape).contiguous()
    return values if isinstance(step, range) else values[0]


def _set_integer(owner: object, name: str, stop: int) -> None:
    """Check an integer of a frozen dataclass, and keep it as an int."""
    object.__setattr__(owner, name, _integer(name, getattr(owner, name), stop))


def _integer(name: str, value: int, stop: int, least: int = 0) -> int:
    if type(value) is int and least <= value < stop:  # the fast path
        return value
    what = f"{value!r} is not an int in [{least}, {stop})"
    return integer(f"noise, {name}", name, value, least=least, most=stop - 1, what=what, do="")
