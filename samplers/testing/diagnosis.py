"""Diagnosis of a by_name H, drift and D: whether exp(-H/T) is invariant, which parts heat, and missing drift terms.

Ma, Chen & Fox (2015): the law is invariant for exactly the drifts -(D+Q) grad H + T Gamma.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sympy import Add, Expr, ImmutableMatrix, S, expand
from sympy.core.function import AppliedUndef

from recipe import Energy, Recipe, RecipeError, positive, real
from recipe.converse import entries_of_curl
from recipe.errors import did_you_mean
from recipe.formulas import formula
from recipe.reading import drift_of, matrix_of, state_of
from recipe.results import Findings, Row
from recipe.symbols import (
    OF_THE_STEP,
    Adapted,
    Block,
    Parameter,
    Potential,
    is_fraction,
    num_data,
    step_number,
    step_size,
)
from recipe.symbols import temperature as T

from .generator import BOUND, generator_at_one_site
from .missing import SDE, missing_drift, recovered, shares_of, short
from .results import Result


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

    @property
    def title(self) -> str:
        """Whether exp(-H/T) is invariant."""
        return f"exp(-H) is {'' if self.ok else 'not '}invariant"

    @property
    def rows(self) -> tuple[Row, ...]:
        """The entries of Q and the residual; for a wrong drift heating, the worst monomial and missing terms."""
        found = [] if self.Q is None else [*entries_of_curl(self.Q, self.state)]
        missing = "; ".join(f"{e}  in the drift of {b}" for b, e in self.missing.items())
        cure = f"missing: {missing}" if missing else ""
        found.append(Row("residual", str(self.residual), "failed" if self.residual != 0 else "proved", cure=cure))
        drifts = not all(r.ok for r in self.results)
        for blocks, rate in self.heating.items():
            if abs(rate) > BOUND and (drifts or self.residual != 0):
                answer = f"{', '.join(map(str, blocks))}: the energy in it changes at the rate {rate:.3g}"
                found.append(Row("heats" if rate > 0 else "cools", answer, "failed"))
        if self.worst and drifts:
            found.append(Row("worst", f"E[L {self.worst[0]}] = {self.worst[1]:.3g} of its terms", "failed"))
        return tuple(found)


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

    residual, Q, missing, notes = _explained(sde)
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
    return Diagnosis(state, Q, residual.xreplace(back), results, worst, heating, missing, tuple(notes))


def _explained(sde):
    """The residual, the curl behind a right drift or the terms missing from a wrong one, and notes."""
    recovery = recovered(sde)
    if recovery.how == "not stationary":
        missing = missing_drift(recovery.residual, sde)
        return short(recovery.residual), None, missing, shares_of(missing, sde)
    return S.Zero, recovery.Q, {}, ["Q is not in the ansatz of recover()"] if recovery.Q is None else []


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
    own = {name: formula(v, f"diagnose, parameters[{name!r}]") for name, v in by_name.items()}
    for s in symbols:
        value = own.get(s.name, S.One)
        if s.is_nonnegative and value.is_negative or s.is_positive and value.is_zero:
            raise RecipeError(f"diagnose, parameters[{s.name!r}]", f"{s} cannot be {value}", do="Give it in its range.")
    return values | own


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
