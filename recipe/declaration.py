"""The declaration of a sampler: an energy H, a diffusion D and a curl Q over named blocks."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from sympy import DiracDelta, Expr, Heaviside, ImmutableMatrix, Piecewise, S, sign, zeros
from sympy.core.function import AppliedUndef
from sympy.core.relational import Relational
from sympy.matrices import MatrixBase

from . import derive
from .algebra import is_continuous, vanishes
from .display import as_latex, as_text
from .energy import Energy
from .errors import RecipeError, did_you_mean
from .pieces import Jump, Piece, lettered
from .proof import Certificate, certify, minimum_eigenvalue
from .marginal import refuse_jump
from .reading import conversions_of, jumps_of, matrix_of, requirements_of, state_of, target_of, updates_of
from .symbols import (OF_THE_STEP, Adapted, Block, Observed, Parameter, Partial, Potential, Total, formula, is_fraction,
                      is_site, step_number, step_size, temperature, valid_name)

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
    these, `requires` what must hold between the parameters, such as v0 < v1. Raises RecipeError where the three formulas do not make a recipe.

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
            raise RecipeError(f"recipe {self.name!r}", "a name is a letter followed by letters, digits, _ . or -",
                              do="Choose such a name.")
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
        self._check_symbols()
        self._check_adaptations()
        self._check_kinds()
        self._check_gamma()
        self._check_diffusion()
        self._check_normalisable()

    # ---- what follows from the declaration

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters that occur in the formulas, by name."""
        return tuple(sorted((s for s in self._symbols if isinstance(s, Parameter)), key=lambda s: s.name))

    @cached_property
    def adapted(self) -> tuple[Adapted, ...]:
        """The adapted quantities that occur, by name."""
        return tuple(sorted((s for s in self._symbols if isinstance(s, Adapted)), key=lambda s: s.name))

    @property
    def entries(self) -> tuple[Block, ...]:
        """What the state of a chain holds: the blocks and the adapted quantities."""
        return self.state + self.adapted

    @cached_property
    def observations(self) -> tuple[Observed, ...]:
        """The batch statistics that the caller supplies, by name."""
        return tuple(sorted((s for s in self._symbols if isinstance(s, Observed)), key=lambda s: s.name))

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
        return tuple(b for j, b in enumerate(self.state)
                     if b not in self.targets and any(self.Q[i, j] != 0 for i in rows))

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
        opaque = {f.func.__name__: f for e in self._formulas for f in e.atoms(AppliedUndef)}
        if self.potential is not None:
            opaque["U"] = self.potential
        for name in functions.keys() - opaque.keys():
            raise RecipeError(f"{self.name}, bind", f"there is no opaque function {name!r}",
                              do=did_you_mean(name, opaque))
        values = {}
        for name, given in functions.items():
            f = opaque[name]
            value = given.on(f.args) if isinstance(given, Energy) else given
            if callable(given):
                try:
                    value = given(*f.args)
                except TypeError as error:
                    raise RecipeError(f"{self.name}, bind({name}=...)", f"calling it failed: {error}",
                                      do=f"Pass a function of ({', '.join(map(str, f.args))}).") from error
            values[f] = formula(value, f"{self.name}, bind({name}=...)")
        swap = lambda e: e.xreplace(values).doit()
        return replace(self, H=swap(self.H), D=self.D.applyfunc(swap), Q=self.Q.applyfunc(swap),
                       supplied=self.supplied.applyfunc(swap), adapt={a: swap(e) for a, e in self.adapt.items()},
                       marginal=None if self.marginal is None else swap(self.marginal))

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
                        raise RecipeError(f"{self.name}, convert, {s}", f"{x} is out of its range", do="Give it as the paper does.")
                found = {s: e.xreplace(numbers) for s, e in values.items()}
                for s, x in found.items():
                    if not x.is_finite or not _allows(s, x):
                        raise RecipeError(f"{self.name}, convert({key})", f"it gives {s} = {x}", do="Give it as the paper does.")
                return {"step_size" if s == step_size else s.name: float(x) for s, x in found.items()}
        raise RecipeError(f"{self.name}, convert({', '.join(sorted(names))})", "there is no such conversion",
                          do=f"Known: {'; '.join(self.conversions) or 'none'}.")

    def latex(self) -> str:
        """H, D, Q, Gamma and the SDE as a LaTeX align environment."""
        return as_latex(self)

    def _repr_latex_(self):
        return f"$${self.latex()}$$"

    def __str__(self):
        return as_text(self)

    def __repr__(self):
        return f"Recipe({self.name!r}, state=({', '.join(b.name for b in self.state)}))"

    # ---- what is refused

    @property
    def _formulas(self):
        rates = (j.rate for j in self.jumps.values() if j.rate is not None)
        return (self.H, *self.D, *self.Q, *self.supplied, *self.adapt.values(), *rates)

    @cached_property
    def _symbols(self):
        found = set().union(*(e.free_symbols for e in self._formulas), self.adapt)
        starts = (a.start for a in found if isinstance(a, Adapted))
        return found.union(*(e.free_symbols for e in starts)) - set(OF_THE_STEP)

    def _check_symbols(self):
        known = {b.name for b in self.state} | {s.name for s in self._symbols if isinstance(s, Parameter)}
        for s in sorted(self._symbols, key=str):
            if isinstance(s, Block) and not isinstance(s, Adapted) and s not in self.state:
                raise RecipeError(self.name, f"block '{s}' is used but is not in the state", do=f"Add {s} to state=.")
            if not isinstance(s, (Block, Parameter, Observed)):
                raise RecipeError(self.name, f"'{s}' is unbound: a plain sympy symbol, neither a block nor a parameter",
                                  do=f"Use the declared {s}." if s.name in known else did_you_mean(s.name, known))
        functions = {f for e in self._formulas for f in e.atoms(AppliedUndef)}
        names = [b.name for b in self.entries] + [s.name for s in self.parameters + self.observations]
        names += [valid_name(f.func.__name__, "function") for f in functions]
        for name in names:
            if names.count(name) > 1:
                raise RecipeError(self.name, f"two blocks, parameters or functions are named '{name}'", do="Rename one.")
        potentials = set().union(*(e.atoms(Potential) for e in self._formulas))
        for U in potentials:
            if U.blocks != self.targets:
                raise RecipeError(self.name, f"{U} is not the potential of the target {self.target}",
                                  do=f"Write potential({', '.join(b.name for b in self.targets)}).")
        if not any(b.is_vector for b in self.state) and any(e.has(Total) for e in self._formulas):
            raise RecipeError(self.name, "total() has no sites to sum: every block is a scalar", do="Drop total().")

    def _check_adaptations(self):
        dynamics = set().union(*(e.free_symbols for e in (self.H, *self.D, *self.Q, *self.supplied)))
        for s in sorted(dynamics, key=str):
            if isinstance(s, Observed):
                raise RecipeError(self.name, f"the observation '{s}' is used in H, D, Q or supplied, where it would be taken "
                                  "for a constant", do=f"Let an adapted quantity follow it: adapt={{...: {s}}}.")
            if s == step_number:
                raise RecipeError(self.name, "H, D, Q or supplied read step_number", do="Only adaptations may.")
        for a in self.adapted:
            if a not in self.adapt:
                raise RecipeError(f"{self.name}, adapt", f"no update of {a} is given",
                                  do=f"Write adapt={{{a}: ...}}, or make it a parameter.")
            if a.domain == "binary":
                raise RecipeError(f"{self.name}, {a}", "an adapted quantity is not binary", do="Use another domain.")
            start = a.start.xreplace({g: S.One for g in a.start.atoms(Partial)})
            for s in sorted(start.free_symbols, key=str):
                if isinstance(s, (Block, Observed)):
                    raise RecipeError(f"{self.name}, start of {a}", f"it reads {s}", do="It may read parameters and grad(U).")

    def _check_kinds(self):
        for a in self.adapted:
            for what, e in (("start", a.start), ("update", self.adapt.get(a, a))):
                if is_site(e) and not a.is_vector:
                    raise RecipeError(f"{self.name}, {what} of {a}", f"{e} has one value per site, but {a} is one number",
                                      do=f"Wrap it in total(), or declare {a} with like={self.targets[0]}.")
        for b in self.latents:
            i = self.state.index(b)
            if any(self.D[i, :]) or any(self.Q[i, :]):
                raise RecipeError(f"{self.name}, {b}", "a binary block has no drift and no noise",
                                  do=f'Let it jump: jumps={{"J": refresh({b})}}.')
        if is_site(self.H):
            loose = next(t for t in self.H.as_ordered_terms() if is_site(t))
            raise RecipeError(f"{self.name}, H", f"{loose} has one value per site, but H is one number per chain",
                              do=f"Wrap it: total({loose}).")
        for label, matrix in (("D", self.D), ("Q", self.Q)):
            for i, a in enumerate(self.state):
                for j, b in enumerate(self.state):
                    if not a.is_vector and not b.is_vector and is_site(matrix[i, j]):
                        raise RecipeError(f"{self.name}, {label}[{a}, {b}]", f"{matrix[i, j]} has one value per "
                                          "site, but both blocks are scalars", do="Wrap it in total().")
                    if label == "D" and a.is_vector != b.is_vector and matrix[i, j] != 0:
                        raise RecipeError(f"{self.name}, D[{a}, {b}]", "noise shared by a vector and a scalar block "
                                          "is not supported", do="Couple them by Q instead.")

    def _check_gamma(self):
        for i, row in enumerate(self.state):
            for j, column in enumerate(self.state):
                entry = self.D[i, j] + self.Q[i, j]
                slope = entry.diff(column)
                rough = [f for f in slope.atoms(sign, Heaviside, DiracDelta) if f.free_symbols & set(self.state)]
                if rough or slope.has(S.NaN, S.ComplexInfinity):
                    kink = rough[0].args[0] if rough else slope
                    raise RecipeError(f"{self.name}, Gamma[{row}]", f"it is undefined where {kink} = 0, because {entry} "
                                      "has no derivative there", do="Use a smooth function.")
        for where, entry, blocks in [("H", self.H, self.state)] + [
                (f"{label}[{a}, {b}]", matrix[i, j], (a, b)) for label, matrix in (("D", self.D), ("Q", self.Q))
                for i, a in enumerate(self.state) for j, b in enumerate(self.state)]:
            for choice in entry.atoms(Piecewise):
                if not is_continuous(choice, blocks):
                    raise RecipeError(f"{self.name}, {where}", f"{choice} is not seen to be continuous, and a jump has no "
                                      "derivative", do="Use a continuous function, or Max and Min.")
        self.drift  # derived here, so that a formula that asks for more of U than there is fails here

    def _check_diffusion(self):
        value, where = minimum_eigenvalue(self.D, points=64, fixed={step_size: 1e-9})
        if value < -1e-12:
            raise RecipeError(f"{self.name}, D", f"it is not positive semidefinite: an eigenvalue is {value:.3g} at "
                              f"{where}", do="A diffusion needs D >= 0 for every state and every allowed parameter.")
        for letter, jump in self.jumps.items():
            refuse_jump(self, letter, jump.block)
            if jump.rate is not None and minimum_eigenvalue(ImmutableMatrix([[jump.rate]]), points=64)[0] < 0:
                raise RecipeError(f"{self.name}, jumps[{letter!r}], rate", f"{jump.rate} may be below 0",
                                  do="Make it of positive parameters.")
        if self.supplied != zeros(*self.supplied.shape):
            defaults = {s: s.default for s in self.parameters if s.default is not None} | {step_size: 1e-9}
            value, where = minimum_eigenvalue(self.supplied, points=64, fixed=defaults)
            if value < -1e-12:
                raise RecipeError(f"{self.name}, supplied", f"it is not positive semidefinite: an eigenvalue is {value:.3g} at "
                                  f"{where}", do="What a gradient supplies is a covariance.")
            value, where = minimum_eigenvalue(self.D - self.supplied, points=64, fixed=defaults)
            if value < -1e-12:
                raise RecipeError(f"{self.name}, supplied", f"D - supplied is not positive semidefinite: an eigenvalue "
                                  f"is {value:.3g} at {where}", do="The gradient cannot supply more noise than D.")

    def _check_normalisable(self):
        for block in self.momenta + self.thermostats:
            curvature = self.H.diff(block, 2)
            if block.domain == "real" and not curvature.has(block) and curvature.is_nonpositive:
                raise RecipeError(f"{self.name}, H", f"exp(-H) is not normalisable in {block}: d2H/d{block}2 = "
                                  f"{curvature}", do=f"Give {block} a confining energy, e.g. {block}**2/2.")


def _allows(s, x) -> bool:
    """Whether a number is in the range of a symbol."""
    return bool(x.is_real and (x > 0 if s.is_positive else x >= 0 or not s.is_nonnegative) and not (is_fraction(s) and x > 1))
