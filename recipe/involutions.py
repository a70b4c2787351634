"""Involutions: jumps z -> F(z) at a rate that reads what moves, as in zig-zag, bouncy particle and boomerang samplers.

exp(-H) stays where H(F(z)) = H(z), |det DF| = 1 and, with b the drift beside that of D and Q,

    sum_i (lambda_i(F_i(z)) - lambda_i(z)) = div b - b . grad H.

At temperature T rates are lambda/T, which keeps exp(-H/T) for a b without divergence. Source: Fearnhead, Bierkens,
Pollock and Roberts (2018), "Piecewise deterministic Markov processes for continuous-time Monte Carlo".

An F that changes H is balanced by its own way back, where lambda(F(z)) exp(-H(F(z))/T) = lambda(z) exp(-H(z)/T).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from sympy import Abs, Dummy, Expr, Max, Min, S, Symbol, exp, expand

from .algebra import vanishes, weakest
from .declared import Block
from .declared import temperature as T
from .errors import RecipeError, of_known_arguments
from .formulas import formula
from .symbols import SiteDummy, Total, is_site, masked, total


@dataclass(frozen=True)
class Involution:
    """A jump z -> F(z) at a rate, per unit of time, with F its own inverse; at a rate per site each site jumps alone.

    `images`: the blocks that move, each with its new value.
    """

    images: tuple[tuple[Block, Expr], ...]
    rate: Expr
    law = None  # an involution draws nothing
    redrawn = ()

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks that move."""
        return tuple(b for b, _ in self.images)

    @property
    def formulas(self) -> tuple[Expr, ...]:
        """The formulas of the rate and of the new values."""
        return (self.rate, *(image for _, image in self.images))

    @property
    def is_by_site(self) -> bool:
        """Whether each site jumps alone, at its own rate."""
        return is_site(self.rate)

    @property
    def moves_one(self) -> bool:
        """Whether a jump moves one site of one block, and not several together."""
        return len(self.images) == 1 and (self.is_by_site or not self.blocks[0].is_vector)

    def replaced(self, of: Callable[[Expr], Expr]) -> "Involution":
        """The jump with a function applied to its formulas."""
        return Involution(tuple((b, of(image)) for b, image in self.images), of(self.rate))

    def after(self, e: Expr) -> Expr:
        """A formula at F(z); of jumps by site, after the jump of one site, which is the formula's own."""
        still: dict[Expr, Symbol] = {}
        images = {b: self._with_names(image, still) for b, image in self.images}
        e = self._with_names(e, still)
        if self.is_by_site:
            outside, sums = masked(e, Total)
            values = {name: e + e.integrand.xreplace(images) - e.integrand for name, e in sums.items()}
            after = outside.xreplace(images).xreplace(values)
        else:
            after = e.xreplace(images)
        return expand(after).xreplace({name: x for x, name in still.items()})

    def _with_names(self, e: Expr, still: dict[Expr, Symbol]) -> Expr:
        """The formula with names for the sums in it that do not move, so that they stay whole when it is expanded."""
        if e.is_Add and not e.has(*self.blocks):
            return still.setdefault(e, (SiteDummy if is_site(e) else Dummy)(real=True))
        return e.func(*(self._with_names(x, still) for x in e.args)) if e.args else e

    @cached_property
    def rate_back(self) -> Expr:
        """The rate lambda(F(z)) of the jump back."""
        return self.after(self.rate)

    @cached_property
    def rate_of_both(self) -> Expr:
        """lambda(z) + lambda(F(z)), which is the same at z and F(z)."""
        return expand(with_absolutes(self.rate) + with_absolutes(self.rate_back))

    @cached_property
    def rise(self) -> Expr:
        """lambda(F(z)) - lambda(z)."""
        return expand(with_absolutes(self.rate_back) - with_absolutes(self.rate))

    @property
    def gain(self) -> Expr:
        """The change of exp(-H) by the jump over exp(-H): the rise of its rate, summed over sites that jump alone."""
        return total(self.rise) if self.is_by_site else self.rise

    def is_involution(self) -> str | None:
        """The grade of proof that F(F(z)) = z, "symbolic" or "numeric"; None if it is not.

        F is linear in what moves, so that det DF is the same at z and F(z), and its square is 1.
        """
        return weakest(*(vanishes(self.after(image) - b) for b, image in self.images))

    def keeps(self, H: Expr) -> str | None:
        """The grade of proof that H(F(z)) = H(z); None if it is not."""
        return vanishes(self.after(H) - H)

    def is_reversible(self, H: Expr) -> str | None:
        """The grade of proof that lambda exp(-H/T) is the same at z and F(z), for every T; None if it is not."""
        excess = self.rate_back * exp(expand((H - self.after(H)) / T)) - self.rate
        return weakest(*map(vanishes, self.at_both_ends(excess)))

    def at_both_ends(self, e: Expr) -> Iterator[Expr]:
        """A formula at the values 0 and 1 of binary blocks that move; of others alone, the formula itself."""
        binary = [b for b in self.blocks if b.domain.is_discrete]
        return (e.xreplace(dict(zip(binary, ends))) for ends in product((S.Zero, S.One), repeat=len(binary)))

    def is_linear(self) -> bool:
        """Whether the new values are linear in the blocks that move, up to a constant."""
        other = {b: (SiteDummy if b.is_vector else Dummy)(real=True) for b in self.blocks}
        both, none = {b: b + other[b] for b in self.blocks}, dict.fromkeys(self.blocks, S.Zero)
        images = [image for _, image in self.images]
        return all(vanishes(e.xreplace(both) - e.xreplace(other) - e + e.xreplace(none)) for e in images)

    def __str__(self):
        names, images = (", ".join(map(str, side)) for side in zip(*self.images))
        return f"{names} -> {images} at the rate {self.rate}"


def with_absolutes(e: Expr) -> Expr:
    """The formula with Max and Min of two as half of sums and absolute values, in which they cancel.

    >>> from sympy import symbols
    >>> x, y = symbols("x y", real=True)
    >>> with_absolutes(Max(0, x - y) - Max(0, y - x)).expand()
    x - y
    """

    return e.replace(lambda x: isinstance(x, Max | Min), lambda x: x.func(*map(expand, x.args)).rewrite(Abs))


@of_known_arguments("involution")
def involution(images: Mapping[Block, Expr], rate: Expr | float) -> Involution:
    """A jump z -> F(z) at the rate lambda(z): with probability lambda dt in a time dt, where F is its own inverse.

    `images`: the new values by block, linear in the blocks that move; `rate`: at least 0, per unit of time, at
    temperature T divided by T; a rate per site moves each site alone, a rate per chain all sites. The certificate
    proves F(F(z)) = z, |det DF| = 1, H(F(z)) = H(z), and that the jumps balance the drift; or, of an F that changes H,
    that lambda(F(z)) exp(-H(F(z))/T) = lambda(z) exp(-H(z)/T), as for Barker's rate 1/(1 + exp((H(F(z)) - H(z))/T)).
    Raises RecipeError for new values that are no formulas by block.

    >>> from sympy import Max
    >>> from recipe import grad, potential, vector
    >>> theta, v = vector("theta"), vector("v")
    >>> print(involution({v: -v}, rate=Max(0, v*grad(potential(theta)))))
    v -> -v at the rate Max(0, v*grad(U))
    """
    if not isinstance(images, Mapping) or not images or not all(isinstance(b, Block) for b in images):
        what = f"its first argument is a dict of new values by block, got {images!r}"
        raise RecipeError("involution", what, do="Write involution({v: -v}, rate=Max(0, v*grad(U))).")
    pairs = tuple((b, formula(image, f"involution, {b}")) for b, image in images.items())
    for b, image in pairs:
        if is_site(image) and not b.is_vector:
            raise RecipeError("involution", f"{image} has one value per site, but {b} is one number", do="Use total().")
    return Involution(pairs, formula(rate, f"involution({', '.join(map(str, images))}), rate"))


@of_known_arguments("flip")
def flip(block: Block, rate: Expr | float) -> Involution:
    """A jump v -> -v, of a binary block v -> 1 - v, at a rate that may read v, as in the zig-zag sampler.

    Raises RecipeError unless the first argument is a block; `rate` is as in `involution`.

    Source: Bierkens, Fearnhead and Roberts (2019), "The zig-zag process and super-efficient sampling for Bayesian
    analysis of big data", eq. (1).

    >>> from recipe import vector
    >>> print(flip(vector("b", domain="binary"), rate=2))
    b -> 1 - b at the rate 2
    """
    if not isinstance(block, Block):
        raise RecipeError(f"flip({block})", "its first argument is a block", do="Write flip(v, rate=...).")
    return involution({block: 1 - block if block.domain.is_discrete else -block}, rate)


@of_known_arguments("reflect")
def reflect(block: Block, along: Expr, rate: Expr | float, variance: Expr | float = 1) -> Involution:
    """A jump v -> v - 2 a g total(v g)/total(a g^2), which turns total(v g) round and leaves total(v^2/a).

    `along`: g, of one value per site, such as grad(U); `variance`: a, of v under exp(-H) where it is not 1; `rate`: as
    in `involution`, one number per chain. Raises RecipeError unless the first argument is a vector.

    Source: Bouchard-Cote, Vollmer and Doucet (2018), "The bouncy particle sampler", eq. (4).

    >>> from recipe import grad, potential, vector
    >>> theta, v = vector("theta"), vector("v")
    >>> print(reflect(v, along=grad(potential(theta)), rate=1))
    v -> v - 2*grad(U)*total(v*grad(U))/total(grad(U)**2) at the rate 1
    """
    if not isinstance(block, Block) or not block.is_vector:
        do = "Write reflect(v, along=grad(U), rate=...)."
        raise RecipeError(f"reflect({block})", "its first argument is a vector", do=do)
    g, a = formula(along, f"reflect({block}), along"), formula(variance, f"reflect({block}), variance")
    return involution({block: block - a * g * (2 * total(block * g) / total(a * g**2))}, rate)
