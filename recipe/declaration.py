"""The declaration of a sampler: an energy H, a diffusion D and a curl Q over named blocks."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from sympy import Expr, ImmutableMatrix, S, Symbol, sqrt
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational
from sympy.matrices import MatrixBase

from . import derive
from .algebra import vanishes
from .display import as_latex, as_text
from .energy import Energy
from .errors import RecipeError, did_you_mean
from .pieces import Jump, Piece, lettered
from .proof import Certificate, certify
from .reading import conversions_of, jumps_of, matrix_of, requirements_of, state_of, target_of, updates_of
from .refusal import refuse_malformed
from .symbols import (
    OF_THE_STEP,
    Adapted,
    Block,
    Observed,
    Parameter,
    Potential,
    formula,
    is_fraction,
    num_data,
    positive,
    step_size,
    temperature,
)

Entries = Mapping[Block | tuple[Block, Block], Expr | float] | MatrixBase


@dataclass(frozen=True, eq=False)
class Recipe:
    """A sampler with stationary law exp(-H): blocks, energy, diffusion, curl.

    dz = [-(D+Q) grad H + Gamma] dt + sqrt(2D) dW, where Gamma_i = sum_j d(D+Q)_ij/dz_j (Ma, Chen & Fox 2015,
    eqs. 3-4). D and Q are dicts over blocks or pairs of blocks (one triangle is enough) or sympy matrices in the
    order of `state`; formulas are for one site. At temperature T the law is exp(-H/T): T multiplies Gamma and the
    noise variance only. `supplied` is the part of D that a minibatch gradient already provides: friction uses D,
    the injected noise D - supplied. `adapt` gives the new values of the adapted quantities, from the old ones, the first
    gradient of the step and the new state; by `order` they move after the step ("lagged"), or before its first gradient
    is used ("same_step"), or are taken for the functions of theta that their updates make of them ("differentiated",
    with the Gamma that follows). `jumps` redraw blocks, by letter. `schemes` are further words by name, `marginal` the
    energy of the target where it is not U alone, `conversions` the parameters in terms of a paper's, by the names of
    these, `requires` what must hold between the parameters, such as v0 < v1. Raises RecipeError where the three formulas
    do not make a recipe.

    >>> from recipe import Recipe, vector, positive, potential, total
    >>> theta, p, gamma = vector("theta"), vector("p"), positive("gamma", default=1.0)
    >>> R = Recipe(name="langevin", state=(theta, p), target=theta, H=potential(theta) + total(p**2)/2,
    ...            D={p: gamma}, Q={(theta, p): -1})
    >>> R.drift[1]
    -gamma*p - grad(U)
    """

    name: str
    state: tuple[Block, ...]
    H: Expr
    D: Entries
    Q: Entries = field(default_factory=dict)
    target: Block | tuple[Block, ...] | None = None
    source: str = ""
    supplied: Entries = field(default_factory=dict)
    scheme: str | tuple | None = None
    pieces: Mapping[str, Piece | Block] = field(default_factory=dict)
    schemes: Mapping[str, str | tuple] = field(default_factory=dict)
    adapt: Mapping[Adapted, Expr] = field(default_factory=dict)
    order: str = "lagged"
    jumps: Mapping[str, Jump] = field(default_factory=dict)
    marginal: Expr | None = None
    conversions: Mapping[str, Mapping] = field(default_factory=dict)
    requires: tuple[Relational, ...] = ()
    claim: str = ""
    doc: str = ""

    def __post_init__(self):
        def settle(name, value):
            object.__setattr__(self, name, value)

        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", self.name):
            raise RecipeError(
                f"recipe {self.name!r}",
                "a name is a letter followed by letters, digits, _ . or -",
                do="Choose such a name.",
            )
        settle("state", state_of(self.state, self.name))
        settle("target", target_of(self.target, self.state, self.name))
        settle("H", formula(self.H, f"{self.name}, H"))
        settle("D", matrix_of(self.D, self.state, +1, f"{self.name}, D"))
        settle("Q", matrix_of(self.Q, self.state, -1, f"{self.name}, Q"))
        settle("supplied", matrix_of(self.supplied, self.state, +1, f"{self.name}, supplied"))
        settle("pieces", lettered(self.pieces, f"{self.name}, pieces"))
        settle("adapt", updates_of(self.adapt, self.order, self.name))
        settle("jumps", jumps_of(self.jumps, self.state, self.pieces, self.name))
        settle("conversions", conversions_of(self.conversions, self.name))
        settle("requires", requirements_of(self.requires, self.name))
        if self.marginal is not None:
            settle("marginal", formula(self.marginal, f"{self.name}, marginal"))
        if self.order == "differentiated":
            through = lambda e: e.xreplace(dict(self.adapt))
            settle("H", through(self.H))
            for name in ("D", "Q", "supplied"):
                settle(name, getattr(self, name).applyfunc(through))
            settle("order", "lagged")  # the old values that the formulas now read
        if not self.claim:
            frozen = ", ".join(a.name for a in self.adapted)
            settle("claim", f"given frozen {frozen}" if frozen else "exact")
        refuse_malformed(self)

    # ---- what follows from the declaration

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters that occur in the formulas, by name."""
        return tuple(sorted((s for s in self.symbols if isinstance(s, Parameter)), key=lambda s: s.name))

    @cached_property
    def adapted(self) -> tuple[Adapted, ...]:
        """The adapted quantities that occur, by name."""
        return tuple(sorted((s for s in self.symbols if isinstance(s, Adapted)), key=lambda s: s.name))

    @property
    def entries(self) -> tuple[Block, ...]:
        """What the state of a chain holds: the blocks and the adapted quantities."""
        return self.state + self.adapted

    @cached_property
    def observations(self) -> tuple[Observed, ...]:
        """The batch statistics that the caller supplies, by name."""
        return tuple(sorted((s for s in self.symbols if isinstance(s, Observed)), key=lambda s: s.name))

    @cached_property
    def potential(self) -> Potential | None:
        """The opaque U of the target, or None where H is wholly symbolic."""
        return next(iter(self.H.atoms(Potential)), None)

    @cached_property
    def targets(self) -> tuple[Block, ...]:
        """The target blocks, always as a tuple."""
        return self.target if isinstance(self.target, tuple) else (self.target,)

    @property
    def target_is_vector(self) -> bool:
        """Whether the target is one vector block, and not explicit coordinates."""
        return self.targets[0].is_vector

    @cached_property
    def momenta(self) -> tuple[Block, ...]:
        """The blocks that Q couples to the target."""
        rows = [i for i, b in enumerate(self.state) if b in self.targets]
        return tuple(
            b for j, b in enumerate(self.state) if b not in self.targets and any(self.Q[i, j] != 0 for i in rows)
        )

    @cached_property
    def thermostats(self) -> tuple[Block, ...]:
        """The blocks that move, and are neither target nor momenta."""
        return tuple(b for b in self.state if b not in self.targets + self.momenta and b.domain != "binary")

    @cached_property
    def latents(self) -> tuple[Block, ...]:
        """The binary blocks, which move by jumps alone."""
        return tuple(b for b in self.state if b.domain == "binary")

    @cached_property
    def gamma(self) -> ImmutableMatrix:
        """Gamma_i = sum_j d(D+Q)_ij/dz_j as a column in the order of `state`."""
        return derive.row_divergence(self.D + self.Q, self.state)

    @cached_property
    def drift(self) -> ImmutableMatrix:
        """-(D+Q) grad H + Gamma at T = 1 as a column in the order of `state`."""
        force = derive.times_gradient(self.D + self.Q, self.H, self.state)
        return (self.gamma - force).applyfunc(derive.terms)

    @cached_property
    def tempered_drift(self) -> ImmutableMatrix:
        """-(D+Q) grad H + T Gamma, with T the symbol of the temperature."""
        return (self.drift + (temperature - 1) * self.gamma).applyfunc(derive.terms)

    def residual(self) -> Expr:
        """The Fokker-Planck residual (L* rho)/rho of rho = exp(-H), computed from the drift: 0 for a recipe."""
        rest = derive.residual(self.drift, self.H, self.D, self.state)
        return S.Zero if rest == 0 or vanishes(rest) == "symbolic" else rest

    def check(self) -> Certificate:
        """The proof that exp(-H) is stationary, and of what else people get wrong."""
        return certify(self)

    def bind(self, **functions: Callable | Expr) -> "Recipe":
        """The recipe with opaque functions given: `R.bind(G=lambda theta: 1/(1 + theta**2))`, or U by an Energy."""
        opaque = {f.func.__name__: f for e in self.formulas for f in e.atoms(AppliedUndef)}
        if self.potential is not None:
            opaque["U"] = self.potential
        for name in functions.keys() - opaque.keys():
            raise RecipeError(
                f"{self.name}, bind", f"there is no opaque function {name!r}", do=did_you_mean(name, opaque)
            )
        values = {}
        for name, given in functions.items():
            f = opaque[name]
            value = given.on(f.args) if isinstance(given, Energy) else given
            if callable(given):
                try:
                    value = given(*f.args)
                except TypeError as error:
                    raise RecipeError(
                        f"{self.name}, bind({name}=...)",
                        f"calling it failed: {error}",
                        do=f"Pass a function of ({', '.join(map(str, f.args))}).",
                    ) from error
            values[f] = formula(value, f"{self.name}, bind({name}=...)")
        swap = lambda e: e.xreplace(values).doit()
        return replace(
            self,
            H=swap(self.H),
            D=self.D.applyfunc(swap),
            Q=self.Q.applyfunc(swap),
            supplied=self.supplied.applyfunc(swap),
            adapt={a: swap(e) for a, e in self.adapt.items()},
            marginal=None if self.marginal is None else swap(self.marginal),
        )

    def convert(self, **given: float) -> dict[str, float]:
        """step_size and parameters from the parameters of a paper, by one of the `conversions`; `num_data` is 1 if left out.

        Raises RecipeError for parameters of no paper, or outside of their range.

        >>> from samplers import SGHMC
        >>> SGHMC.convert(lr=0.01, momentum=0.9)
        {'step_size': 0.1, 'C': 1.0, 'm': 1.0}
        """
        names = given.keys() - {"num_data"}
        for key, values in self.conversions.items():
            if names == set(key.split(", ")):
                numbers = {}
                for s in set().union(*(e.free_symbols for e in values.values())):
                    x = numbers[s] = formula(given.get(s.name, 1), f"{self.name}, convert, {s}")
                    if not x.is_number or not _allows(s, x):
                        raise RecipeError(
                            f"{self.name}, convert, {s}", f"{x} is out of its range", do="Give it as the paper does."
                        )
                found = {s: e.xreplace(numbers) for s, e in values.items()}
                for s, x in found.items():
                    if not x.is_finite or not _allows(s, x):
                        raise RecipeError(
                            f"{self.name}, convert({key})", f"it gives {s} = {x}", do="Give it as the paper does."
                        )
                return {"step_size" if s == step_size else s.name: float(x) for s, x in found.items()}
        raise RecipeError(
            f"{self.name}, convert({', '.join(sorted(names))})",
            "there is no such conversion",
            do=f"Known: {'; '.join(self.conversions) or 'none'}.",
        )

    @property
    def learning_rate(self) -> dict:
        """What lr, and momentum if there is one, of torch.optim.SGD on a mean loss stand for: formulas by parameter and step_size.

        The conversion "lr, momentum", or step_size = lr/num_data, and its root where there are momenta.

        >>> from samplers import SGLD
        >>> SGLD.learning_rate
        {h: lr/num_data}
        """
        time = positive("lr") / num_data
        return dict(self.conversions.get("lr, momentum") or {step_size: sqrt(time) if self.momenta else time})

    def latex(self) -> str:
        """H, D, Q, Gamma and the SDE as a LaTeX align environment."""
        return as_latex(self)

    def _repr_latex_(self):
        return f"$${self.latex()}$$"

    def __str__(self):
        return as_text(self)

    def __repr__(self):
        return f"Recipe({self.name!r}, state=({', '.join(b.name for b in self.state)}))"

    # ---- what it is made of

    @property
    def formulas(self) -> tuple[Expr, ...]:
        """H, the entries of D, Q and supplied, the updates and the rates."""
        rates = (j.rate for j in self.jumps.values() if j.rate is not None)
        return (self.H, *self.D, *self.Q, *self.supplied, *self.adapt.values(), *rates)

    @cached_property
    def symbols(self) -> set[Symbol]:
        """The symbols that occur, those of the step apart."""
        found = set().union(*(e.free_symbols for e in self.formulas), self.adapt)
        starts = (a.start for a in found if isinstance(a, Adapted))
        return found.union(*(e.free_symbols for e in starts)) - set(OF_THE_STEP)


def _allows(s, x) -> bool:
    """Whether a number is in the range of a symbol."""
    low = x > 0 if s.is_positive else x >= 0 or not s.is_nonnegative
    return bool(x.is_real and low and not (is_fraction(s) and x > 1))
