"""Formulas of a recipe and their consequences: the roles of the blocks, Gamma, the drift, the residual."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, cast

from sympy import Add, Expr, ImmutableMatrix, Max, Min, S, Symbol, expand_log, log
from sympy.core.relational import Relational

from . import derive
from .algebra import entries, vanishes
from .calculus import derivative, expanded
from .declared import OF_THE_STEP, Adapted, Block, Observed, Parameter, temperature
from .fields import couples
from .involutions import Involution
from .operators import Operator
from .pieces import Jump, Piece
from .spheres import Projection
from .swaps import Swap
from .symbols import Potential

# A dict over blocks or pairs of blocks, or a sympy matrix; once declared an ImmutableMatrix in the order of the state.
Entries = Any


@dataclass(frozen=True, eq=False)
class Dynamics:
    """Fields of a Recipe, with the roles of its blocks and its SDE; arguments are described in `Recipe`."""

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
    jumps: Mapping[str, Jump | Swap | Involution] = field(default_factory=dict)
    transport: Any = field(default_factory=dict)  # a dict over blocks; once declared a column in the order of the state
    marginal: Expr | None = None
    weights: Expr | None = None
    conversions: Mapping[str, Mapping] = field(default_factory=dict)
    requires: tuple[Relational, ...] = ()
    metropolis: bool = False
    accepted: Collection[str] = ()
    claim: str = ""
    doc: str = ""
    maps: Mapping[Block, Any] = field(default_factory=dict)  # the Map of `mapped`, by the new block

    @property
    def formulas(self) -> tuple[Expr, ...]:
        """H, the nonzero entries of D, Q, supplied and transport, the updates, rates, laws and weights."""
        of_matrices = (
            e for matrix in (self.D, self.Q, self.supplied, self.transport) for e in entries(matrix).values()
        )
        weights = () if self.weights is None else (self.weights,)
        return (self.H, *of_matrices, *self.adapt.values(), *self.formulas_of_jumps, *weights)

    @property
    def formulas_of_jumps(self) -> tuple[Expr, ...]:
        """The rates of the jumps, the arguments of their laws, and the new values."""
        return tuple(e for jump in self.jumps.values() for e in jump.formulas)

    @cached_property
    def symbols(self) -> set[Symbol]:
        """The symbols in the formulas, without symbols of the step."""
        symbols = set().union(*(e.atoms(Symbol) for e in self.formulas), self.adapt)  # a field reads its block unsaid
        symbols = {s for s in symbols if not isinstance(s, Projection)}
        starts = (a.start for a in symbols if isinstance(a, Adapted))
        return symbols.union(*(e.free_symbols for e in starts)) - set(OF_THE_STEP)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The parameters in the formulas, sorted by name."""
        return self._of_kind(Parameter)

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The parameters that are matrices over the sites."""
        return tuple(s for s in self.parameters if isinstance(s, Operator))

    @property
    def fields(self) -> tuple[Operator, ...]:
        """The operators that are functions of a block."""
        return tuple(M for M in self.operators if M.at is not None)

    @property
    def metrics(self) -> tuple[Operator, ...]:
        """The fields in H."""
        return tuple(M for M in self.fields if M in self.H.free_symbols)

    @cached_property
    def adapted(self) -> tuple[Adapted, ...]:
        """The adapted quantities in the formulas, sorted by name."""
        return self._of_kind(Adapted)

    @property
    def log_weights(self) -> Expr:
        """The logarithm of the weights of draws; 0 where they weigh equally."""
        return S.Zero if self.weights is None else expand_log(log(self.weights), force=True)

    @property
    def weighted(self) -> Expr:
        """H - T log psi of weights psi: exp(-H/T) times the weights is exp(-weighted/T)."""
        return self.H - temperature * self.log_weights

    @cached_property
    def conditions(self) -> tuple[Adapted, ...]:
        """The adapted quantities given which alone the law is claimed, sorted by name.

        Weights psi lift those that they read, where the dynamics is psi times one without them, whose law is that of
        weighted draws: E[psi L f] = 0 for all f of the state is that of the stationary state, whatever it adapts to.
        """
        clocks = set() if self.weights is None else self.weights.atoms(Adapted)
        if not clocks or any(jump.rate is None for jump in self.jumps.values()):
            return self.adapted
        rates = [e / self.weights for A in (self.D, self.Q, self.supplied, self.transport) for e in entries(A).values()]
        rates += [derivative(self.weighted, b) for b in self.state]
        rates += [jump.rate / self.weights for jump in self.jumps.values() if jump.rate is not None]
        rates += [e for jump in self.jumps.values() for e in jump.formulas if e != jump.rate]
        kept = {a for a in clocks if any(vanishes(derivative(e, a)) != "symbolic" for e in rates)}
        return tuple(a for a in self.adapted if a not in clocks - kept)

    @cached_property
    def entries(self) -> tuple[Block, ...]:
        """The entries of a chain's state: the blocks and the adapted quantities."""
        return self.state + self.adapted

    @cached_property
    def observations(self) -> tuple[Observed, ...]:
        """The batch statistics supplied by the caller, sorted by name."""
        return self._of_kind(Observed)

    def _of_kind(self, kind: type) -> tuple[Any, ...]:
        return tuple(sorted((s for s in self.symbols if isinstance(s, kind)), key=lambda s: s.name))

    def updates_except(self, frozen: Collection[str]) -> dict[Adapted, Expr]:
        """The updates of the adapted quantities that are not frozen."""
        return {a: update for a, update in self.adapt.items() if a.name not in frozen}

    @cached_property
    def potentials(self) -> tuple[Potential, ...]:
        """The opaque energies of the target, sorted by name and blocks; none if H is symbolic."""
        places = {b: k for k, b in enumerate(self.state)}  # without frozen blocks
        return tuple(sorted(self.H.atoms(Potential), key=lambda U: (U.name, [places.get(b, -1) for b in U.blocks])))

    @property
    def potential(self) -> Potential | None:
        """The opaque U of the target, the first of several; None if H is wholly symbolic."""
        return next(iter(self.potentials), None)

    @cached_property
    def has_several_potentials(self) -> bool:
        """Whether H has more than one U of the whole target: energies by name, or U at several blocks."""
        return len(self.potentials) > 1 or self.is_by_name

    @cached_property
    def is_by_name(self) -> bool:
        """Whether the energies of the target have names."""
        return any(U.name for U in self.potentials)

    def place(self, U: Potential, b: Block) -> str:
        """The name of the derivative of an energy by a block: fast, x or fast_x."""
        if not U.name:
            return b.name
        is_single = len(U.blocks) == 1 and [other.name for other in self.potentials].count(U.name) == 1
        return U.name if is_single else f"{U.name}_{b.name}"

    @property
    def energy_of_target(self) -> Expr | None:
        """The energy of the target's marginal: as declared, or the sum of the potentials; None for H itself."""
        if self.marginal is not None or self.has_copies:
            return self.marginal
        return Add(*self.potentials) if self.potentials else None

    @property
    def claims_latents(self) -> bool:
        """Whether the law is of the target with its latents: H couples them, and no marginal is declared."""
        energy = self.energy_of_target
        if energy is None or self.marginal is not None:
            return False
        return couples(expanded(self.H - energy), self.targets, self.latents)

    @property
    def has_other_energy(self) -> bool:
        """Whether H has more of the target's energy than U: a declared marginal, copies, or latents."""
        return self.marginal is not None or self.has_copies or bool(self.latents)

    @property
    def has_copies(self) -> bool:
        """Whether the target has copies of an energy, coupled by H."""
        return any(U.is_copy for U in self.potentials)

    @cached_property
    def targets(self) -> tuple[Block, ...]:
        """The target blocks, always as a tuple."""
        return self.target if isinstance(self.target, tuple) else (cast(Block, self.target),)

    @property
    def target_is_vector(self) -> bool:
        """Whether the target is one vector block, not explicit coordinates or several blocks."""
        return len(self.targets) == 1 and self.targets[0].is_vector

    @cached_property
    def momenta(self) -> tuple[Block, ...]:
        """The blocks that Q couples to the target, or that the target's transport reads."""
        coupled = {j for i, j in entries(self.Q) if self.state[i] in self.targets}
        rows = [e for (i, _), e in entries(self.transport).items() if self.state[i] in self.targets]
        coupled |= {j for j, b in enumerate(self.state) if not b.domain.is_discrete and any(e.has(b) for e in rows)}
        return tuple(b for j, b in enumerate(self.state) if j in coupled and b not in self.targets)

    @cached_property
    def thermostats(self) -> tuple[Block, ...]:
        """The blocks that are neither target nor momenta nor latents."""
        return tuple(b for b in self.state if b not in self.targets + self.momenta + self.latents)

    @cached_property
    def latents(self) -> tuple[Block, ...]:
        """The blocks beside the target that move by jumps alone: categories, and blocks drawn from a law."""
        drawn = {b for jump in self.jumps.values() if jump.law is not None for b in jump.redrawn}
        flowing = {self.state[i] for matrix in (self.D, self.Q) for i, _ in entries(matrix)}
        auxiliary = (b for b in self.state if b not in self.targets)
        return tuple(b for b in auxiliary if b.domain.is_discrete or b in drawn - flowing)

    @cached_property
    def spheres(self) -> tuple[Block, ...]:
        """The blocks that are points of a unit sphere."""
        return tuple(b for b in self.state if b.domain.is_sphere)

    @cached_property
    def reflected(self) -> tuple[Block, ...]:
        """The blocks reflected at the ends of their domains: blocks of boxes, and of pieces with method "reflected"."""
        by_piece = {b for piece in self.pieces.values() if piece.method == "reflected" for _, b in piece.parts}
        return tuple(b for b in self.state if b.domain.reflects or (b in by_piece and b.domain.ends))

    @cached_property
    def turned(self) -> dict[Block, tuple[Block, ...]]:
        """The momenta that change sign at a reflection, by block: for blocks with ends that move without noise."""
        still = [i for i, b in enumerate(self.state) if b.domain.ends and self.D[i, i] == 0]
        turned = {self.state[i]: tuple(p for j, p in enumerate(self.state) if self.Q[i, j] != 0) for i in still}
        return {b: momenta for b, momenta in turned.items() if momenta}

    @property
    def idle(self) -> tuple[Block, ...]:
        """The targets that no entry of D, Q or transport and no jump moves."""
        rates = ImmutableMatrix.hstack(self.D, self.Q, self.transport)
        moving = {b for i, b in enumerate(self.state) if not rates.row(i).is_zero_matrix}
        jumping = {b for jump in self.jumps.values() for b in jump.blocks}
        return tuple(b for b in self.targets if b not in moving | jumping)

    @cached_property
    def gamma(self) -> ImmutableMatrix:
        """Gamma_i = sum_j d(D+Q)_ij/dz_j as a column in the order of `state`."""
        return derive.row_divergence(self.D + self.Q, self.state)

    @cached_property
    def drift(self) -> ImmutableMatrix:
        """-(D+Q) grad H + Gamma + transport at T = 1 as a column in the order of `state`."""
        force = derive.times_gradient(self.D + self.Q, self.H, self.state)
        return (self.gamma - force + self.transport).applyfunc(derive.terms)

    @cached_property
    def tempered_drift(self) -> ImmutableMatrix:
        """-(D+Q) grad H + T Gamma + transport, with T the symbol of the temperature."""
        return (self.drift + (temperature - 1) * self.gamma).applyfunc(derive.terms)

    @cached_property
    def by_moduli(self) -> "Dynamics":
        """The dynamics with absolute values in place of maxima and minima in H, D and Q."""
        if not any(e.has(Max, Min) for e in (self.H, *self.D, *self.Q)):
            return self
        matrices = {"D": self.D.applyfunc(derive.by_moduli), "Q": self.Q.applyfunc(derive.by_moduli)}
        return self.altered(H=derive.by_moduli(self.H), **matrices)

    def altered(self, **values: Any) -> "Dynamics":
        """The dynamics with other values of some fields; of a recipe no more than its dynamics."""
        return Dynamics(**{field.name: getattr(self, field.name) for field in fields(Dynamics)} | values)

    @property
    def involutions(self) -> tuple[Involution, ...]:
        """The jumps that are involutions."""
        return tuple(jump for jump in self.jumps.values() if isinstance(jump, Involution))

    @property
    def swaps(self) -> tuple[Swap, ...]:
        """The jumps that are swaps."""
        return tuple(jump for jump in self.jumps.values() if isinstance(jump, Swap))

    @property
    def proposals(self) -> tuple[Jump, ...]:
        """The jumps that are proposals."""
        return tuple(jump for jump in self.jumps.values() if isinstance(jump, Jump) and jump.proposed)

    @property
    def gain(self) -> Expr:
        """sum_i (lambda_i(F_i(z)) - lambda_i(z)) over the involutions: what they bring to exp(-H), divided by it.

        A reversible jump brings nothing.
        """
        return Add(*(jump.gain for jump in self.involutions if jump.is_reversible(self.H) is None))

    def residual(self) -> Expr:
        """The Fokker-Planck residual (L* rho)/rho of rho = exp(-H), computed from drift and jumps.

        It is 0 for a recipe whose involutions balance its transport.
        """
        dynamics = self.by_moduli
        rest = derive.residual(dynamics.drift, dynamics.H, dynamics.D, dynamics.state) + self.gain
        return S.Zero if rest == 0 or vanishes(rest) == "symbolic" else rest
