"""Declared symbols: blocks of the state, parameters, statistics that the caller supplies, and symbols of a step."""

import keyword
import re
from typing import Any, ClassVar

from sympy import Expr, S, Symbol

from .arguments import is_number, text
from .domains import NAMED, Domain, domain_of
from .errors import RecipeError

DomainName = str | tuple[Any, ...] | Domain

RESERVED = {
    "h": "the step size",
    "T": "the temperature",
    "n": "the number of sites, total(1)",
    "U": "the potential",
    "temperature": "the temperature",
    "step_size": "the step size",
    "gradient": "the gradient of U",
    "noise": "the noise of a step",
    "gradient_noise": "the variance of the gradient",
    "curvature": "the Hessian diagonal of U",
    "state": "the state of a step",
    "diverged": "a field of the draws",
    "num_data": "the number of data",
    "step_number": "the number of the step",
    "observe": "the observations of a step",
    "sizes": "the sizes of the tensors",
}

SIGNS = ("real", "positive", "nonnegative", "fraction")


def valid_name(name: str, what: str) -> str:
    """The name itself, if emitted code of every backend can use it.

    `what`: the kind of the named object. Raises RecipeError for invalid names, keywords of Python and reserved names.
    """
    where = f"{what} {name!r}"
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name):
        raise RecipeError(where, "a name is a letter followed by letters, digits or _", do="Choose such a name.")
    if keyword.iskeyword(name):
        raise RecipeError(where, "this is a keyword of Python", do=f"Write {name + '_'!r}.")
    if name in RESERVED:
        do = "Choose another name."
        raise RecipeError(where, f"this name is taken: it is {RESERVED[name]} of every recipe", do=do)
    return name


def signs_of(expression: Expr) -> dict[str, bool]:
    """The sympy assumptions on the sign of an expression, for a symbol that replaces it."""
    return {sign: True for sign in ("real", "positive", "nonnegative") if getattr(expression, f"is_{sign}")}


def _text(value: Any) -> str:
    """A field as text that tells it from every other value, as blocks of one name in different domains."""
    return " ".join((value.name, *value.contents)) if isinstance(value, Declared) else repr(value)


class Declared(Symbol):
    """A symbol with fields beside its name, which distinguish it from other symbols of this name."""

    __slots__ = ("contents",)
    fields: ClassVar[tuple[str, ...]] = ()
    what: ClassVar[str] = ""
    class_key = Symbol.class_key

    @classmethod
    def _of(cls, name: str, signs: dict[str, bool], *values: Any) -> Any:
        """The symbol of a name, assumptions on its sign, and values of its fields."""
        symbol = Symbol.__xnew__(cls, valid_name(name, cls.what), **signs)
        for field, value in zip(cls.fields, values, strict=True):
            setattr(symbol, field, value)
        symbol.contents = tuple(map(_text, values))  # as text, because sympy sorts by the contents
        return symbol

    def _hashable_content(self):
        return (*super()._hashable_content(), *self.contents)

    def __getnewargs_ex__(self):
        return (self.name, *(getattr(self, field) for field in self.fields)), {}


class Block(Declared):
    """A named part of the state; `is_vector`: whether a block has one value per site, else one per chain."""

    __slots__ = ("is_vector", "domain")
    fields: ClassVar[tuple[str, ...]] = ("is_vector", "domain")
    what = "block"
    is_vector: bool
    domain: Domain

    def __new__(cls, name, is_vector, domain="real", *arguments):
        valid_name(name, cls.what)
        domain = domain_of(domain, f"block {name!r}")
        return cls._of(name, domain.signs, is_vector, domain, *arguments)


class Adapted(Block):
    """A quantity frozen inside a step and updated between steps; `start`: the formula of its initial value."""

    __slots__ = ("start",)
    fields = ("is_vector", "domain", "start")
    start: Expr

    def _hashable_content(self):
        return (*super()._hashable_content(), self.start)  # gradients of U at different blocks read the same


class Supplied(Declared):
    """A symbol with values supplied by the caller; `is_vector`: whether there is one value per site."""

    __slots__ = ("is_vector",)
    fields = ("is_vector",)
    is_vector: bool

    def __new__(cls, name, is_vector):
        return cls._of(name, {"real": True}, is_vector)


class Observed(Supplied):
    """A statistic of the current batch: `observe={name: function of theta}`."""

    __slots__ = ()
    what = "observation"


class Parameter(Declared):
    """A constant of a recipe with sign, default and doc; `per`: the vector block for a value per site, or None."""

    __slots__ = ("sign", "default", "doc", "per")
    fields: ClassVar[tuple[str, ...]] = ("sign", "default", "doc", "per")
    what = "parameter"
    sign: str
    default: float | None
    doc: str
    per: Block | None

    def __new__(cls, name, sign="real", default=None, doc="", per=None):
        return cls._of(name, signs_named(sign, f"parameter {name!r}"), sign, default, doc, per)

    @property
    def is_vector(self) -> bool:
        """Whether the parameter has one value per site."""
        return self.per is not None

    @property
    def range_in_words(self) -> str:
        """The range of the parameter in words."""
        return self.sign


def signs_named(sign: str, where: str) -> dict[str, bool]:
    """The sympy assumptions of a named sign; raises RecipeError for an unknown name."""
    if sign not in SIGNS:
        raise RecipeError(where, f"unknown sign {sign!r}", do=f"Use one of {', '.join(SIGNS)}.")
    return NAMED[sign].signs


def _of_every_step(name: str, sign: str) -> Symbol:
    return Symbol.__xnew__(Symbol, name, **NAMED[sign].signs)


step_size = _of_every_step("h", "positive")
# The time of a flow, a share of the step.
duration = _of_every_step("t", "positive")
temperature = _of_every_step("T", "nonnegative")
num_data = _of_every_step("num_data", "positive")
step_number = _of_every_step("step_number", "nonnegative")
OF_THE_STEP = (step_size, temperature, num_data, step_number)


def vector(name: str, *, domain: DomainName = "real") -> Block:
    """A block with one value per site: shape `(chains, *shape)` at run time.

    `domain`: "real", "positive", "nonnegative" or "fraction", from 0 to 1; a chain that leaves its domain is frozen and
    flagged as diverged. (a, b): a box, in which chains and their momenta are reflected at both ends. "periodic": an
    angle from -pi to pi; ("periodic", P): an angle from -P/2 to P/2; formulas must have the period, and chains wrap
    around. "sphere": the sites are a point of the unit sphere, total(u**2) = 1. "binary": 0 or 1; ("categories", K):
    0, ..., K - 1; both move by jumps alone. Raises RecipeError for a name that emitted code cannot use, for an unknown
    domain, and for ends that are not finite or a >= b.

    >>> vector("theta").is_vector
    True
    """
    return Block(name, True, domain)


def scalar(name: str, *, domain: DomainName = "real") -> Block:
    """A block with one value per chain: shape `(chains,)` at run time.

    `domain` and errors: as in `vector`.

    >>> scalar("xi").is_vector
    False
    """
    return Block(name, False, domain)


def is_like(like: Block | None, where: str) -> bool:
    """Whether a quantity like a block has one value per site; False for None, RecipeError for other objects."""
    if not (like is None or isinstance(like, Block)):
        advice = "Pass the block it has the shape of, e.g. like=theta."
        raise RecipeError(where, f"like={like} is not a block", do=advice)
    return like is not None and like.is_vector


def observe(name: str, *, like: Block | None = None) -> Observed:
    """A batch statistic for adaptations, supplied by the caller: one per site of `like`, or one per chain.

    Raises RecipeError if `like` is not a block.

    >>> observe("squared_residuals").is_vector
    False
    """
    return Observed(name, is_like(like, f"observe {name!r}"))


def positive(name: str, *, default: float | None = None, doc: str = "", per: Block | None = None) -> Parameter:
    """A parameter > 0 with a default, a line of doc, and optionally one value per site (`per=theta`).

    Raises RecipeError for a default outside of the range, and if `per` is not a vector block.

    >>> positive("m", default=1, doc="mass").default
    1.0
    """
    return _parameter("positive", name, default, doc, per)


def nonnegative(name: str, *, default: float | None = None, doc: str = "", per: Block | None = None) -> Parameter:
    """A parameter >= 0; arguments and errors as in `positive`.

    >>> nonnegative("B", default=0).default
    0.0
    """
    return _parameter("nonnegative", name, default, doc, per)


def real(name: str, *, default: float | None = None, doc: str = "", per: Block | None = None) -> Parameter:
    """A parameter of either sign; arguments and errors as in `positive`.

    >>> real("mean", default=-1).default
    -1.0
    """
    return _parameter("real", name, default, doc, per)


def fraction(name: str, *, default: float | None = None, doc: str = "", per: Block | None = None) -> Parameter:
    """A parameter from 0 to 1; arguments and errors as in `positive`.

    >>> fraction("alpha", default=0.99).default
    0.99
    """
    return _parameter("fraction", name, default, doc, per)


def _parameter(sign: str, name: str, default: float | None, doc: str, per: Block | None) -> Parameter:
    where = f"parameter {name!r}"
    text(where, "doc", doc)
    check_per(where, per)
    if default is None:
        return Parameter(name, sign, None, doc, per)
    if isinstance(default, bool) or not isinstance(default, (int, float)):
        raise RecipeError(where, f"the default {default!r} is not a number", do="Pass a float.")
    parameter = Parameter(name, sign, float(default), doc, per)
    if not (is_number(default) and allows(parameter, S(default))):
        sign_in_words = "between 0 and 1" if sign == "fraction" else sign
        what = f"the default {float(default)} is not {sign_in_words}"
        raise RecipeError(where, what, do="Change the default or the sign.")
    return parameter


def check_per(where: str, per: Any) -> None:
    """Raise RecipeError unless `per` is a vector block or None."""
    if not (per is None or isinstance(per, Block) and per.is_vector):
        advice = "Pass the block it has one value per site of, e.g. per=theta."
        raise RecipeError(where, f"per={per} is not a vector block", do=advice)


def is_fraction(symbol: Symbol) -> bool:
    """Whether a parameter or block is declared to lie between 0 and 1."""
    return getattr(symbol, "sign", str(getattr(symbol, "domain", ""))) == "fraction"


def allows(s: Symbol, x: Expr) -> bool:
    """Whether a number is within the declared range of a symbol."""
    if not x.is_real or s.is_positive and not x > 0 or s.is_nonnegative and not x >= 0:
        return False
    return not (is_fraction(s) and x > 1)
