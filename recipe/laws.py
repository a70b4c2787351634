"""Conditional laws of a block, from which jumps draw: densities, tempered laws, and a proof that a law fits H.

The energy of a law is minus the log of its density. A law is the conditional of exp(-H) in a block if H less the energy
of the law does not depend on that block; at temperature T the conditional of exp(-H/T) is the density to the power 1/T.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar

from sympy import Add, Dummy, Expr, Min, Mul, Piecewise, S, cancel, exp, expand, expand_log, log

from .algebra import readers, vanishes
from .calculus import derivative
from .declared import Block
from .declared import temperature as T
from .domains import Domain
from .errors import RecipeError
from .formulas import formula
from .symbols import Total, masked

WARM = Dummy("T", positive=True)  # a positive T, so that sympy knows 1/T to be real


@dataclass(frozen=True)
class Law(ABC):
    """Conditional law of one block; its arguments are numbers, or formulas of the other blocks."""

    domains: ClassVar[tuple[str, ...]]
    positive: ClassVar[tuple[str, ...]] = ()
    still: ClassVar[tuple[str, ...]] = ()  # arguments of which the integral of exp(-energy) is not in closed form

    def __post_init__(self):
        for field in fields(self):
            value = formula(getattr(self, field.name), f"{type(self).__name__}, {field.name}")
            object.__setattr__(self, field.name, value)

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """The arguments of the law, as formulas."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @abstractmethod
    def energy(self, x: Expr) -> Expr:
        """-log density, up to terms free of x."""

    @property
    def log_integral(self) -> Expr:
        """The log of the integral of exp(-energy), up to terms of what is `still`."""
        return S.Zero

    @abstractmethod
    def tempered(self) -> "Law":
        """The law with the density to the power 1/T."""

    def suits(self, domain: Domain) -> bool:
        """Whether a block with the domain may have this law."""
        return domain.name in self.domains

    def __str__(self):
        return f"{type(self).__name__}({', '.join(map(str, self.arguments))})"


@dataclass(frozen=True)
class Normal(Law):
    """Normal law with density exp(-(x - mean)^2/(2 variance)).

    >>> from recipe import gibbs, vector
    >>> print(gibbs(vector("p"), Normal(0, 2)))
    gibbs(p, N(0, 2))
    """

    mean: Expr
    variance: Expr
    domains = ("real",)
    positive = ("variance",)

    def energy(self, x: Expr) -> Expr:
        """(x - mean)^2/(2 variance)."""
        return (x - self.mean) ** 2 / (2 * self.variance)

    @property
    def log_integral(self) -> Expr:
        """log(variance)/2."""
        return log(self.variance) / 2

    def __str__(self):
        return f"N({self.mean}, {self.variance})"

    def tempered(self) -> "Normal":
        """N(mean, T variance)."""
        return Normal(self.mean, T * self.variance)


@dataclass(frozen=True)
class Gamma(Law):
    """Gamma law with density x^(shape - 1) exp(-rate x) and mean shape/rate.

    >>> from recipe import scalar
    >>> Gamma(3, 2).energy(scalar("x", domain="positive"))
    2*x - 2*log(x)
    """

    shape: Expr
    rate: Expr
    domains = ("positive",)
    positive = ("shape", "rate")
    still = ("shape",)

    def energy(self, x: Expr) -> Expr:
        """rate x - (shape - 1) log x."""
        return self.rate * x - (self.shape - 1) * log(x)

    @property
    def log_integral(self) -> Expr:
        """-shape log(rate)."""
        return -self.shape * log(self.rate)

    def tempered(self) -> "Gamma":
        """Gamma((shape - 1)/T + 1, rate/T)."""
        return Gamma((self.shape - 1) / T + 1, self.rate / T)


@dataclass(frozen=True)
class InverseGamma(Law):
    """Inverse Gamma law with density x^(-shape - 1) exp(-scale/x): scale over a Gamma(shape, 1) number."""

    shape: Expr
    scale: Expr
    domains = ("positive",)
    positive = ("shape", "scale")
    still = ("shape",)

    def energy(self, x: Expr) -> Expr:
        """(shape + 1) log x + scale/x."""
        return (self.shape + 1) * log(x) + self.scale / x

    @property
    def log_integral(self) -> Expr:
        """-shape log(scale)."""
        return -self.shape * log(self.scale)

    def tempered(self) -> "InverseGamma":
        """InverseGamma((shape + 1)/T - 1, scale/T)."""
        return InverseGamma((self.shape + 1) / T - 1, self.scale / T)


@dataclass(frozen=True)
class Beta(Law):
    """Beta law with density x^(a - 1) (1 - x)^(b - 1) and mean a/(a + b)."""

    a: Expr
    b: Expr
    domains = ("fraction",)
    positive = ("a", "b")
    still = ("a", "b")

    def energy(self, x: Expr) -> Expr:
        """-(a - 1) log x - (b - 1) log(1 - x)."""
        return -(self.a - 1) * log(x) - (self.b - 1) * log(1 - x)

    def tempered(self) -> "Beta":
        """Beta((a - 1)/T + 1, (b - 1)/T + 1)."""
        return Beta((self.a - 1) / T + 1, (self.b - 1) / T + 1)


class DiscreteLaw(Law):
    """A law on 0, 1, 2, ..."""

    @property
    @abstractmethod
    def costs(self) -> tuple[Expr, ...]:
        """-log of the weights, up to a common constant."""

    def energy(self, x: Expr) -> Expr:
        """The cost of x."""
        return by_category(x, *self.costs)

    @property
    def log_integral(self) -> Expr:
        """The log of the sum of exp(-cost), with the least cost apart."""
        least = Min(*self.costs)
        return log(Add(*(exp(least - cost) for cost in self.costs))) - least


@dataclass(frozen=True)
class Bernoulli(DiscreteLaw):
    """Bernoulli law: 1 with the given probability, else 0.

    >>> from recipe import scalar
    >>> theta = scalar("theta")
    >>> Bernoulli(1 / (1 + exp(theta))).costs
    (0, theta)
    """

    probability: Expr
    domains = ("binary",)
    positive = ("probability", "complement")

    @property
    def complement(self) -> Expr:
        """The probability of 0."""
        return 1 - self.probability

    @property
    def costs(self) -> tuple[Expr, Expr]:
        """(0, -log of the odds)."""
        odds = 1 / self.probability - 1
        return S.Zero, odds.args[0] if isinstance(odds, exp) else _log(cancel(odds))

    def tempered(self) -> "Bernoulli":
        """The law with the odds to the power 1/T."""
        return Bernoulli(1 / (1 + exp(self.costs[1] / T)))

    def __str__(self):
        odds = 1 / self.probability - 1
        return f"Bernoulli(1/(1 + {odds}))" if isinstance(odds, exp) else f"Bernoulli({self.probability})"


@dataclass(frozen=True, init=False)
class Categorical(DiscreteLaw):
    """Categorical law: k with a probability proportional to the k-th weight, for a block of as many categories.

    >>> Categorical(1, 2, 3).costs
    (0, -log(2), -log(3))
    """

    weights: tuple[Expr, ...]
    domains = ()
    positive = ("lightest",)

    def __init__(self, *weights: Any):
        object.__setattr__(self, "weights", tuple(formula(w, "Categorical, weights") for w in weights))
        for w in self.weights:
            if w.is_nonpositive:
                raise RecipeError("Categorical, weights", f"{w} is not positive", do="Give weights above 0.")

    @property
    def arguments(self) -> tuple[Expr, ...]:
        """The weights."""
        return self.weights

    @property
    def lightest(self) -> Expr:
        """The smallest weight."""
        return Min(*self.weights, evaluate=False)

    @property
    def costs(self) -> tuple[Expr, ...]:
        """-log of the weights."""
        return tuple(expand(-_log(w), deep=False) for w in self.weights)

    def tempered(self) -> "Categorical":
        """The law with the weights to the power 1/T."""
        return Categorical(*(exp(-cost / T) for cost in self.costs))

    def suits(self, domain: Domain) -> bool:
        """Whether a block has as many categories as there are weights."""
        return domain.categories == len(self.weights)


def _log(weight: Expr) -> Expr:
    """The log of a weight: of a product as a sum, of exp(-E) as -E, which does not underflow."""
    return expand_log(log(weight.xreplace({T: WARM}))).xreplace({WARM: T})


def by_category(block: Expr, *values: Expr | float) -> Expr:
    """The k-th value if a block of categories is k, as a Piecewise.

    >>> from recipe import scalar
    >>> by_category(scalar("z", domain="binary"), -1, 2)
    Piecewise((-1, z < 1/2), (2, True))
    """
    of = formula(block, "by_category")
    number = of.domain.categories if isinstance(of, Block) else len(values)
    if not values or number != len(values):
        what = f"{len(values)} values for {block}, which is one of {number} categories"
        raise RecipeError("by_category", what, do="Give a block of categories, and a value for each.")
    *first, last = (formula(value, "by_category") for value in values)
    return Piecewise(*((value, of < k + S.Half) for k, value in enumerate(first)), (last, True))


# ---- comparison of a law with the conditional of exp(-H)


def energy_of_site(H: Expr, block: Block) -> Expr | None:
    """The terms of H that read a block, for one site of the block; None if H is not a sum over its sites.

    >>> from recipe import scalar, total, vector
    >>> p, xi = vector("p"), scalar("xi")
    >>> energy_of_site(total(xi * p**2) / 2 + xi**2, p), energy_of_site(total(p) ** 2, p)
    (p**2*xi/2, None)
    """
    part = readers(expand(H), [block])[block]
    if not block.is_vector:
        return part
    terms = [_of_site(term, block) for term in Add.make_args(part)]
    return None if None in terms else Add(*terms)


def _of_site(term: Expr, block: Block) -> Expr | None:
    """The factor times the integrand of a term with one total, if only the integrand reads the block; else None."""
    outside, sums = masked(term, Total)
    reading = [name for name, total in sums.items() if total.has(block)]
    if outside.has(block) or len(reading) != 1:
        return None
    (name,) = reading
    factor = derivative(outside, name)
    integrand = sums[name].integrand
    if factor.has(name) or any(inner.has(block) for inner in integrand.atoms(Total)):
        return None
    return factor.xreplace(sums) * integrand


def _factor(energy: Expr) -> Expr:
    """exp(-energy), written as x^-c for an energy c log x."""
    rest, logs = energy.as_independent(log)
    return logs.args[0] ** -rest if isinstance(logs, log) else exp(-energy)


@lru_cache(maxsize=64)  # called at the declaration, and again for the certificate
def compared(H: Expr, block: Block, law: Law) -> tuple[Expr, str | None] | None:
    """The ratio of the conditional of exp(-H) in a block to a law, and how it is known to be free of the block.

    "symbolic", "numeric" (at random points), or None if the ratio reads the block. The whole is None if H is not a sum
    over the sites of the block.

    >>> from recipe import scalar, total, vector
    >>> theta, tau = vector("theta"), scalar("tau", domain="positive")
    >>> H = tau * total(theta**2) / 2 - total(1) * log(tau) / 2 + tau
    >>> compared(H, tau, Gamma(1 + total(1) / 2, 1 + total(theta**2) / 2))
    (1, 'symbolic')
    >>> compared(H, tau, Gamma(total(1) / 2, 1 + total(theta**2) / 2))
    (tau, None)
    """
    energy = energy_of_site(H, block)
    if energy is None:
        return None
    if block.domain.categories:
        categories = [S(k) for k in range(block.domain.categories)]
        rests = [energy.xreplace({block: k}) - law.energy(k) for k in categories]
        excess = [rest - rests[0] for rest in rests]
        grades = [vanishes(e) for e in excess[1:]]
        factor = by_category(block, *(exp(-e) for e in excess))
    else:
        rest = expand(expand_log(energy - law.energy(block)))
        grades = [vanishes(derivative(rest, block))]
        factor = Mul(*map(_factor, Add.make_args(readers(rest, [block])[block])))
    if None in grades:
        return factor, None
    return factor, "numeric" if "numeric" in grades else "symbolic"
