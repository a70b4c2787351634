"""Diagnosis of an H, a drift and a D: whether exp(-H/T) is invariant, which parts heat, and missing drift terms.

Ma, Chen & Fox (2015): the law is invariant for exactly the drifts -(D+Q) grad H + T Gamma.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import Any, NamedTuple

from sympy import (
    Add,
    Dummy,
    Expr,
    Function,
    Heaviside,
    ImmutableMatrix,
    Pow,
    S,
    diff,
    expand,
    factor_terms,
    sign,
    simplify,
)
from sympy.core.function import AppliedUndef

from recipe import Energy, Recipe, RecipeError, derive, positive, real
from recipe.algebra import at_one_site, vanishes
from recipe.converse import Recovery, coefficients, entries_of_curl, recover
from recipe.errors import did_you_mean
from recipe.formulas import formula
from recipe.reading import drift_of, matrix_of, state_of
from recipe.results import Findings, Row
from recipe.symbols import (
    OF_THE_STEP,
    OPAQUE,
    Adapted,
    Block,
    Parameter,
    Potential,
    is_fraction,
    is_site,
    num_data,
    step_number,
    step_size,
    total,
)
from recipe.symbols import temperature as T

from .check_results import Result
from .generator import BOUND, generator_at_one_site

LONG = 500  # operations of a residual, beyond which missing terms are not looked for
SHARES = (S.One, S.Half, S.NegativeOne, S(2))  # missing shares of a term: dropped, halved, doubled, of the wrong sign

Drift = dict[Block, Expr]


@dataclass(frozen=True, repr=False)
class Diagnosis(Findings):
    """The diagnosis of a drift: `.ok` if exp(-H/T) is invariant, with no residual and no monomial that drifts.

    `Q`: the curl behind the drift, None where there is none or none was found. `residual`: (L* rho)/rho of rho =
    exp(-H/T). `results`: the generator checks, one per monomial, empty where there are not numbers. `worst`: the
    monomial phi of the largest |E[L phi]|, and E[L phi] in units of E|f . grad phi| + E|T D : hess phi|. `heating`: the
    rate of each part of H, by its blocks. `missing`: terms to add to the rows of the drift, {} where no simple terms
    are found.
    """

    state: tuple[Block, ...]
    Q: ImmutableMatrix | None
    residual: Expr
    results: tuple[Result, ...] = ()
    worst: tuple[Expr, float] | None = None
    heating: dict[tuple[Block, ...], float] = field(default_factory=dict)
    missing: dict[Block, Expr] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    verdict: str = "proved"  # of a residual of 0; "checked" at random states alone

    @property
    def title(self) -> str:
        """Whether exp(-H/T) is invariant."""
        return f"exp(-H) is {'' if self.ok else 'not '}invariant"

    @property
    def rows(self) -> tuple[Row, ...]:
        """The entries of Q and the residual; for a wrong drift heating, the worst monomial and missing terms."""
        rows = [] if self.Q is None else [*entries_of_curl(self.Q, self.state, self.verdict)]
        missing = "; ".join(f"{e}  in the drift of {b}" for b, e in self.missing.items())
        cure = f"missing: {missing}" if missing else ""
        answer = f"{self.residual}{' at random states' if self.verdict == 'checked' else ''}"
        rows.append(Row("residual", answer, "failed" if self.residual != 0 else self.verdict, cure=cure))
        drifts = not all(r.ok for r in self.results)
        for blocks, rate in self.heating.items():
            if abs(rate) > BOUND and (drifts or self.residual != 0):
                answer = f"{', '.join(map(str, blocks))}: the energy in it changes at the rate {rate:.3g}"
                rows.append(Row("heats" if rate > 0 else "cools", answer, "failed"))
        if self.worst and drifts:
            rows.append(Row("worst", f"E[L {self.worst[0]}] = {self.worst[1]:.3g} of its terms", "failed"))
        return tuple(rows)


def diagnose(
    state: Sequence[Block],
    H: Expr,
    drift: Mapping[Any, Any] | Sequence[Any],
    D: Any,
    *,
    energy: Energy | Expr | None = None,
    parameters: Mapping[Any, Any] | None = None,
    temperature: float = 1.0,
) -> Diagnosis:
    """Whether dz = f dt + sqrt(2TD) dW leaves exp(-H/T) invariant: the Q behind the drift f, or the faults of f.

    `drift`: a dict over blocks or a column in the order of `state`; `D`: as for a Recipe. Numbers are computed at one
    site, with U = `energy`, by default a quartic, and with `parameters` by name, by default different numbers near 1.5;
    open functions have stand-ins. Raises RecipeError where H and D do not make a recipe, or the drift is no drift of
    this state.

    >>> from recipe import vector, positive, potential, total, grad
    >>> theta, p, C, m = vector("theta"), vector("p"), positive("C"), positive("m")
    >>> U = potential(theta)
    >>> print(diagnose((theta, p), U + total(p**2)/2/m, {theta: p/m, p: -grad(U)}, {p: C}))
    exp(-H) is not invariant
      failed   residual  C*(-n + total(p**2)/m)/m
               missing: -C*p/m  in the drift of p
      failed   heats     p: the energy in it changes at the rate 0.884
      failed   worst     E[L p**4] = 0.652 of its terms
      the drift has 0 times the friction D grad H of p
    """
    tau = formula(temperature, "diagnose, temperature")
    if not (tau.is_number and tau > 0):
        raise RecipeError("diagnose, temperature", f"it is {temperature}", do="Give a positive number.")
    H = formula(H, "diagnose, H").xreplace({T: tau})
    state = state_of(state, "diagnose")
    if energy is not None and not isinstance(energy, Energy):
        formula(energy, "diagnose, energy")
    D = matrix_of(D, state, +1, "diagnose, D").xreplace({T: tau})
    f = ImmutableMatrix(drift_of(drift, state, "diagnose")).xreplace({T: tau})
    formulas = [H, *f, *D]
    hold = _held(formulas)
    sde = SDE(state, f.xreplace(hold), (H / tau).xreplace(hold), (tau * D).xreplace(hold))
    U = next(iter(H.atoms(Potential)), None)
    # raises RecipeError where H is no energy or D no diffusion
    Recipe(name="diagnose", state=state, target=U and U.blocks, H=sde.H, D=sde.D)
    _check_symbols(sde)

    residual, Q, missing, notes, verdict = _explained(sde)
    back = {new: old for old, new in hold.items()}
    Q = None if Q is None else (Q / tau).applyfunc(expand).xreplace(back)
    missing = {b: e.xreplace(back) for b, e in missing.items()}

    values = _values(formulas, parameters or {})
    stand_ins = _stand_ins(formulas)
    H_closed, *rest = [e.xreplace(stand_ins).doit() for e in formulas]
    rows, matrix = rest[: len(state)], ImmutableMatrix(len(state), len(state), rest[len(state) :])
    defects: dict[Expr, float] = {}
    heating: dict[tuple[Block, ...], float] = {}
    try:
        options: dict[str, Any] = {"energy": energy, "values": values, "temperature": temperature}
        generator = generator_at_one_site(rows, matrix, H_closed, state, **options)
        defects, heating = generator.defects(), generator.heating()
    except RecipeError as error:
        notes.append(f"no numbers: {error}")
    if residual != 0:
        if defects and max(map(abs, defects.values())) < BOUND:
            notes.append("no monomial shows it at one site: it takes several")
        notes += [f"the numbers are with {f} = {e}" for f, e in stand_ins.items()]
    results = tuple(
        Result("generator", f"|E[L {phi}]| of its terms", abs(x), BOUND, f"E[L {phi}] = 0", subject=str(phi))
        for phi, x in defects.items()
    )
    worst = max(defects.items(), key=lambda item: abs(item[1]), default=None)
    return Diagnosis(state, Q, residual.xreplace(back), results, worst, heating, missing, tuple(notes), verdict)


def _explained(sde):
    """The residual, the curl behind a right drift or the terms missing from a wrong one, notes and the verdict."""
    recovery = recovered(sde)
    if recovery.how == "not stationary":
        missing = missing_drift(recovery.residual, sde)
        return short(recovery.residual), None, missing, shares_of(missing, sde), recovery.verdict
    notes = ["Q is not in the ansatz of recover()"] if recovery.Q is None else []
    return S.Zero, recovery.Q, {}, notes, recovery.verdict


# ---- parameters, values and stand-ins


def _held(formulas):
    """Parameters in place of symbols frozen inside a step: adapted quantities, the step size, the number of data."""
    frozen = {s for e in formulas for s in e.free_symbols if isinstance(s, Adapted) or s in OF_THE_STEP}
    blocks = {b for e in formulas for b in e.free_symbols if isinstance(b, Block)}
    vector = next((b for b in blocks if b.is_vector), None)

    def parameter(s):
        kind = positive if s.is_nonnegative else real
        return kind(f"{s.name}_", per=vector if getattr(s, "is_vector", False) else None)

    return {s: parameter(s) for s in frozen}


def _values(formulas, parameters):
    """A number for every symbol but blocks: the caller's, or by default a different one near 1.5 for each."""
    free = {s for e in formulas for s in e.free_symbols}
    symbols = sorted((s for s in free if isinstance(s, (Parameter, Adapted)) or s in OF_THE_STEP), key=lambda s: s.name)
    usual = {step_size.name: 0.1, num_data.name: 3, step_number.name: 5}
    values = {s.name: usual.get(s.name, 0.45 if is_fraction(s) else 1.3 + 0.17 * i) for i, s in enumerate(symbols)}
    by_name = {getattr(s, "name", s): v for s, v in parameters.items()}
    for name in by_name.keys() - values.keys():
        what = f"there is no {name!r}"
        raise RecipeError("diagnose, parameters", what, do=f"Known: {', '.join(values) or 'none'}.")
    numbers = {name: formula(v, f"diagnose, parameters[{name!r}]") for name, v in by_name.items()}
    for s in symbols:
        value = numbers.get(s.name, S.One)
        if s.is_nonnegative and value.is_negative or s.is_positive and value.is_zero:
            raise RecipeError(f"diagnose, parameters[{s.name!r}]", f"{s} cannot be {value}", do="Give it in its range.")
    return values | numbers


def _check_symbols(sde):
    """Refuses a drift with symbols that are neither blocks nor parameters."""
    parameters = {s for e in sde.drift for s in e.free_symbols if isinstance(s, Parameter)}
    known = {x.name for x in (*sde.state, *parameters)}
    for b, e in zip(sde.state, sde.drift):
        where = f"diagnose, drift[{b}]"
        for s in sorted(e.free_symbols - set(sde.state) - parameters, key=str):
            what = f"'{s}' is neither a block of the state nor a parameter"
            raise RecipeError(where, what, do=did_you_mean(s.name, known - {s.name}))


def _stand_ins(formulas):
    """A formula with the declared sign for each open function."""
    opaque = sorted({x for e in formulas for x in e.atoms(AppliedUndef)}, key=str)

    def stand_in(k, x):
        mean = Add(*x.args) / (k + 2) + S.Half
        return mean**2 + S.Half if x.is_nonnegative else mean

    return {x: stand_in(k, x) for k, x in enumerate(opaque)}


# ---- the curl behind a right drift


class SDE(NamedTuple):
    """dz = f dt + sqrt(2D) dW, and the H whose law exp(-H) should be invariant."""

    state: tuple[Block, ...]
    drift: Any
    H: Expr
    D: ImmutableMatrix


def recovered(sde: SDE) -> Recovery:
    """The Q of recover() among its usual candidates, else with roots and functions of the drift and D, or why none."""
    recovery = recover(sde.state, sde.H, sde.drift, sde.D)
    if recovery.how != "not found":
        return recovery
    functions = {x for e in (*sde.drift, *sde.D) for x in e.atoms(Pow, Function) if not _is_power(x)}
    candidates = sorted((x for x in functions if x.free_symbols and not x.has(*OPAQUE, sign, Heaviside)), key=str)
    return recover(sde.state, sde.H, sde.drift, sde.D, functions=candidates)


def _is_power(x):
    return isinstance(x, Pow) and x.exp.is_integer and x.exp > 0


# ---- missing terms


def missing_drift(residual: Expr, sde: SDE) -> Drift:
    """The simplest drift u found that cancels the residual, in one row, else in several; {} where none is found.

    u in row i adds sum(-du/dz_i + u dH/dz_i) to the residual, linear in the coefficients of u.
    """
    if residual.count_ops() > LONG:
        return {}
    few = _few_terms(sde)
    quotients = [_quotient(residual, b, sde.H) for b in _moving(sde)]
    together = [term for terms in few for term in terms]
    for attempts in (few, quotients, [together], _many_terms(residual, sde, few)):
        drifts = [u for u in (_cancel(residual, terms, sde.H) for terms in attempts if terms) if u]
        if drifts:
            return min(drifts, key=lambda u: sum(e.count_ops() for e in u.values()))
    return {}


def _moving(sde):
    return [b for b in sde.state if not b.domain.is_discrete]


def _few_terms(sde):
    """Candidates by row: the friction, Gamma, a constant, and forces of other blocks of the same kind."""
    friction, gamma = derive.times_gradient(sde.D, sde.H, sde.state), derive.row_divergence(sde.D, sde.state)

    def forces(b):
        return [diff(sde.H, c) for c in _moving(sde) if c != b and c.is_vector == b.is_vector]

    rows = []
    for b in _moving(sde):
        i = sde.state.index(b)
        rows.append([(b, e) for e in dict.fromkeys([friction[i], gamma[i], S.One, *forces(b)]) if e != 0])
    return rows


def _many_terms(residual, sde, few):
    """Candidates by row: those of `few`, the terms of the drift, blocks and their products; none for H with roots."""
    rooted = any(x.base.is_Add and not x.exp.is_integer for e in (residual, sde.H) for x in e.atoms(Pow))
    if rooted:  # hard to solve exactly
        return []
    blocks = _moving(sde)
    powers = [*blocks, *(x * y for x, y in combinations_with_replacement(blocks, 2))]
    rows = []
    for b, terms in zip(blocks, few):
        summands = Add.make_args(expand(sde.drift[sde.state.index(b)]))
        rows.append([*terms, *((b, e) for e in (*summands, *powers) if b.is_vector or not is_site(e))])
    return rows


def _quotient(residual, b, H):
    """The u in the row of b that does not depend on b, -residual over dH/db, for dH/db linear in b."""
    inside = at_one_site(residual) if b.is_vector else residual
    above, below = diff(inside, b), diff(H, b, 2)
    if above == 0 or below == 0 or above.has(b) or below.has(b):
        return []
    return [(b, -short(above / below))]


def _cancel(residual, terms, H):
    """The combination {block: u} of terms that makes the residual vanish, else None."""

    def change(b, e):
        added = -diff(e, b) + e * diff(H, b)
        return expand(total(added) if b.is_vector else added)

    try:
        changes = [change(b, e) for b, e in terms]
    except RecipeError:  # a term that needs more of U than there is
        return None
    c = [Dummy() for _ in terms]
    x = coefficients([expand(residual) + Add(*(k * e for k, e in zip(c, changes)))], c)
    if not x or not vanishes(expand(residual + Add(*(k * e for k, e in zip(x, changes))))):
        return None
    u: Drift = {}
    for k, (b, e) in zip(x, terms):
        u[b] = u.get(b, S.Zero) + k * e
    return {b: expand(e) for b, e in u.items() if expand(e) != 0}


def shares_of(missing: Drift, sde: SDE) -> list[str]:
    """Notes on the share of the friction, or of Gamma, in the drift, where the missing term is a multiple of either."""
    if not missing:
        return []
    whole_drift = [e + missing.get(b, S.Zero) for b, e in zip(sde.state, sde.drift)]
    Q = recovered(sde._replace(drift=whole_drift)).Q
    friction = derive.times_gradient(sde.D, sde.H, sde.state)
    gamma = derive.row_divergence(sde.D if Q is None else sde.D + Q, sde.state)
    notes = []
    for b, u in missing.items():
        i = sde.state.index(b)
        for whole, name in ((-friction[i], f"the friction D grad H of {b}"), (gamma[i], f"Gamma[{b}] = {gamma[i]}")):
            shares = [1 - k for k in SHARES if whole != 0 and vanishes(u - k * whole)]
            notes += [f"the drift has {k} times {name}" for k in shares[:1]]
    return notes


def short(residual: Expr) -> Expr:
    """A formula in its shortest form; simplify, slow for long formulas, is tried only on short ones."""
    forms = [residual, factor_terms(residual)]
    if residual.count_ops() < 60:
        forms.append(simplify(residual))
    return min(forms, key=lambda e: (e.count_ops(), str(e)))
