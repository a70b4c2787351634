"""Random numbers in formulas: symbols drawn at every step."""

from sympy import Function, S, Symbol

from recipe.symbols import Block


class Variate(Symbol):
    """A random number for a block: one per site or per chain, as the block or by `is_vector`."""

    __slots__ = ("block", "is_vector")

    class_key = Symbol.class_key
    kind = ""

    def __new__(cls, block: Block, name: str | None = None, is_vector: bool | None = None) -> "Variate":
        draw = Symbol.__xnew__(cls, name or block.name, real=True)
        draw.block = block
        draw.is_vector = block.is_vector if is_vector is None else is_vector
        return draw

    def __getnewargs_ex__(self):
        return (self.block, self.name, self.is_vector), {}

    def _hashable_content(self):
        return (*super()._hashable_content(), self.kind, self.block, self.is_vector)

    def sort_key(self, order: object = None) -> tuple:
        """Sort key, different from the key of a block of the same name, so that the order of terms is fixed."""
        return self.class_key(), (1, (f"{self.name}~{self.kind}",)), S.One.sort_key(), S.One

    def _sympystr(self, printer):
        return f"{self.kind.capitalize()}[{self.name}]"


class Normal(Variate):
    """A standard normal."""

    kind = "normal"

    def _sympystr(self, printer):
        return f"N[{self.name}]"


class Uniform(Variate):
    """A uniform number between 0 and 1."""

    kind = "uniform"


class Time(Uniform):
    """A uniform number in which formulas are smooth: a share of the time of a flow."""


class PoissonVariate(Variate):
    """A Poisson number; its rate depends on the state."""

    kind = "poisson"


class GammaVariate(Variate):
    """A Gamma number of scale 1; its shape depends on the state."""

    kind = "gamma"


class Drawn(Function):
    """A variate whose law depends on the state, with its rate or shape."""

    nargs = 2
    is_real = is_nonnegative = True
    variate = property(lambda self: self.args[0])
    parameter = property(lambda self: self.args[1])
