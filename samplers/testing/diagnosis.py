"""Somebody's H, drift and D: is exp(-H/T) invariant, and if not, what heats, and what is missing from the drift.

Ma, Chen & Fox (2015): the law is invariant for exactly the drifts -(D+Q) grad H + T Gamma.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations, combinations_with_replacement

from sympy import Add, Dummy, Expr, Function, ImmutableMatrix, Pow, S, diff, expand, factor_terms, simplify
from sympy.core.function import AppliedUndef

from recipe import Energy, Recipe, RecipeError, derive, positive, real
from recipe.algebra import at_one_site, vanishes
from recipe.converse import coefficients, recover
from recipe.errors import did_you_mean
from recipe.reading import drift_of, matrix_of, state_of
from recipe.symbols import (
    OF_THE_STEP,
    OPAQUE,
    Adapted,
    Block,
    Parameter,
    Potential,
    formula,
    is_fraction,
    is_site,
    num_data,
    step_number,
    step_size,
    total,
)
from recipe.symbols import temperature as T

from .generator import BOUND, Generator
from .results import Result


@dataclass(frozen=True)
class Diagnosis:
    """What is known of a drift: printable, `.ok` if exp(-H/T) is invariant.

    `Q`: the curl behind the drift, None where there is none or none was found. `residual`: (L* rho)/rho of rho =
    exp(-H/T). `results`: the generator checks, one per monomial, empty where there are no numbers; `worst`: the
    monomial phi of the largest |E[L phi]|, in units of E|f . grad phi| + E|T D : hess phi|, and this number with its
    sign. `heating`: the rate of each part of H, by its blocks. `missing`: what to add to the rows of the drift, {}
    where nothing simple will do.
    """

    state: tuple[Block, ...]
    Q: ImmutableMatrix | None
    residual: Expr
    results: tuple[Result, ...] = ()
    worst: tuple[Expr, float] | None = None
    heating: dict = field(default_factory=dict)
    missing: dict = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether exp(-H/T) is invariant: no residual, and no monomial that drifts."""
        return self.residual == 0 and all(r.ok for r in self.results)

    def to_dict(self) -> dict:
        """Plain data, ready for JSON."""
        return {
            "ok": self.ok,
            "Q": None if self.Q is None else [[str(e) for e in row] for row in self.Q.tolist()],
            "residual": str(self.residual),
            "worst": self.worst and [str(self.worst[0]), self.worst[1]],
            "heating": {", ".join(map(str, blocks)): rate for blocks, rate in self.heating.items()},
            "missing": {str(b): str(e) for b, e in self.missing.items()},
            "notes": list(self.notes),
            "results": [r.to_dict() for r in self.results],
        }

    def __str__(self):
        lines = [f"exp(-H) is {'' if self.ok else 'not '}invariant"]
        if self.Q is not None:
            entries = [
                f"  Q[{a}, {b}] = {self.Q[i, j]}"
                for (i, a), (j, b) in combinations(enumerate(self.state), 2)
                if self.Q[i, j] != 0
            ]
            lines += entries or ["  Q = 0"]
        if self.residual != 0:
            lines.append(f"  residual  {self.residual}")
        if not self.ok:
            for blocks, rate in self.heating.items():
                if abs(rate) > BOUND:
                    lines.append(
                        f"  {'heats' if rate > 0 else 'cools':8}  {', '.join(map(str, blocks))}: the energy in it "
                        f"changes at the rate {rate:.3g}"
                    )
            if self.worst and abs(self.worst[1]) > BOUND:
                lines.append(f"  worst     E[L {self.worst[0]}] = {self.worst[1]:.3g} of its terms")
            lines += [f"  missing   {e}  in the drift of {b}" for b, e in self.missing.items()]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])


def diagnose(
    state,
    H: Expr,
    drift,
    D,
    *,
    energy: Energy | Expr | None = None,
    parameters: Mapping | None = None,
    temperature: float = 1.0,
) -> Diagnosis:
    """Whether dz = f dt + sqrt(2TD) dW leaves exp(-H/T) invariant: the Q behind the drift f, or what is wrong with f.

    `drift`: a dict over blocks or a column in the order of `state`; `D`: as for a Recipe. The numbers are those of
    one site, with U = `energy`, a quartic if left out, and with `parameters` by name, each its own number near 1.5 if
    left out; a function that is left open has a stand-in. Raises RecipeError where H and D do not make a recipe or
    the drift is no drift of this state.

    >>> from recipe import vector, positive, potential, total, grad
    >>> theta, p, C, m = vector("theta"), vector("p"), positive("C"), positive("m")
    >>> U = potential(theta)
    >>> print(diagnose((theta, p), U + total(p**2)/2/m, {theta: p/m, p: -grad(U)}, {p: C}))
    exp(-H) is not invariant
      residual  C*(-n + total(p**2)/m)/m
      heats     p: the energy in it changes at the rate 0.884
      worst     E[L p**4] = 0.652 of its terms
      missing   -C*p/m  in the drift of p
      the drift has 0 times the friction D grad H of p
    """
    tau = formula(temperature, "diagnose, temperature")
    if not (tau.is_number and tau > 0):
        raise RecipeError("diagnose, temperature", f"it is {temperature}", do="Give a positive number.")
    H, state = formula(H, "diagnose, H").xreplace({T: tau}), state_of(state, "diagnose")
    if not isinstance(energy, (Energy, type(None))):
        formula(energy, "diagnose, energy")
    D, drift = (
        M.xreplace({T: tau})
        for M in (matrix_of(D, state, +1, "diagnose, D"), ImmutableMatrix(drift_of(drift, state, "diagnose")))
    )
    hold = _held([H, *drift, *D])
    back = {new: old for old, new in hold.items()}
    f, E, A = (e.xreplace(hold) for e in (drift, H / tau, tau * D))
    U = next(iter(H.atoms(Potential)), None)
    Recipe(name="diagnose", state=state, target=U and U.blocks, H=E, D=A)  # refuses what is no energy or diffusion
    _known(f, state)

    R, Q, missing, notes = derive.residual(f, E, A, state), None, {}, []
    if vanishes(R):
        R, Q = S.Zero, _curl(state, E, f, A)
        notes += ["Q is not in the ansatz of recover()"] if Q is None else []
        Q = None if Q is None else (Q / tau).applyfunc(expand).xreplace(back)
    else:
        missing = _missing(R, f, E, A, state)
        notes += _reasons(missing, f, E, A, state)
        missing = {b: e.xreplace(back) for b, e in missing.items()}

    values = _values([H, *drift, *D], parameters)
    defects, heating, stand_ins = {}, {}, _stand_ins([H, *drift, *D])
    bound = lambda e: e.xreplace(stand_ins).doit()
    try:
        generator = Generator(
            [bound(e) for e in drift],
            D.applyfunc(bound),
            bound(H),
            state,
            energy=energy,
            values=values,
            temperature=temperature,
        )
        defects, heating = generator.defects(), generator.heating()
    except RecipeError as error:
        notes.append(f"no numbers: {error}")
    if defects and R != 0 and max(map(abs, defects.values())) < BOUND:
        notes.append("no monomial shows it at one site: it takes several")
    notes += [f"the numbers are with {f} = {e}" for f, e in stand_ins.items()] if R != 0 else []
    results = tuple(
        Result("generator", f"|E[L {phi}]| of its terms", abs(x), BOUND, f"E[L {phi}] = 0", subject=str(phi))
        for phi, x in defects.items()
    )
    worst = max(defects.items(), key=lambda item: abs(item[1]), default=None)
    return Diagnosis(state, Q, _short(R).xreplace(back), results, worst, heating, missing, tuple(notes))


# ---- what stands for what


def _held(formulas):
    """Parameters for what is frozen inside a step: adapted quantities, the step size, the number of data."""
    frozen = {s for e in formulas for s in e.free_symbols if isinstance(s, Adapted) or s in OF_THE_STEP}
    kind = lambda s: positive if s.is_nonnegative else real
    per = next((b for e in formulas for b in e.free_symbols if isinstance(b, Block) and b.is_vector), None)
    return {s: kind(s)(f"{s.name}_", per=per if getattr(s, "is_vector", False) else None) for s in frozen}


def _values(formulas, given):
    """A number for every symbol that is no block: the one given, or one of its own near 1.5."""
    usual = {step_size.name: 0.1, num_data.name: 3, step_number.name: 5}
    symbols = sorted(
        {s for e in formulas for s in e.free_symbols if isinstance(s, (Parameter, Adapted)) or s in OF_THE_STEP},
        key=lambda s: s.name,
    )
    values = {s.name: usual.get(s.name, 0.45 if is_fraction(s) else 1.3 + 0.17 * i) for i, s in enumerate(symbols)}
    given = {getattr(s, "name", s): v for s, v in (given or {}).items()}
    for name in given.keys() - values.keys():
        raise RecipeError("diagnose, parameters", f"there is no {name!r}", do=f"Known: {', '.join(values) or 'none'}.")
    given = {name: formula(v, f"diagnose, parameters[{name!r}]") for name, v in given.items()}
    for s in symbols:
        value = given.get(s.name, S.One)
        if s.is_nonnegative and value.is_negative or s.is_positive and value.is_zero:
            raise RecipeError(f"diagnose, parameters[{s.name!r}]", f"{s} cannot be {value}", do="Give it in its range.")
    return values | given


def _known(drift, state):
    """Refuse a drift of symbols that are neither blocks nor parameters."""
    known = {x.name for x in (*state, *(s for e in drift for s in e.free_symbols if isinstance(s, Parameter)))}
    for b, e in zip(state, drift):
        for s in sorted(e.free_symbols - set(state), key=str):
            if not isinstance(s, Parameter):
                raise RecipeError(
                    f"diagnose, drift[{b}]",
                    f"'{s}' is neither a block of the state nor a parameter",
                    do=did_you_mean(s.name, known - {s.name}),
                )
        if not b.is_vector and is_site(e):
            raise RecipeError(
                f"diagnose, drift[{b}]", f"{e} has one value per site, but {b} is a scalar", do="Wrap it in total()."
            )


def _stand_ins(formulas):
    """A function with the declared sign for each one that is left open."""
    opaque = sorted({x for e in formulas for x in e.atoms(AppliedUndef)}, key=str)
    half = lambda k, x: Add(*x.args) / (k + 2) + S.Half
    return {x: half(k, x) ** 2 + S.Half if x.is_nonnegative else half(k, x) for k, x in enumerate(opaque)}


def _curl(state, H, drift, D):
    """The Q of recover(), among its own candidates, then with the roots and functions in the drift and D; or None."""
    Q = recover(state, H, drift, D).Q
    return recover(state, H, drift, D, functions=_functions([*drift, *D])).Q if Q is None else Q


def _functions(formulas):
    """Roots, inverses and functions of blocks, as candidates for entries of Q."""
    found = {
        x
        for e in formulas
        for x in e.atoms(Pow, Function)
        if not (isinstance(x, Pow) and x.exp.is_integer and x.exp > 0)
    }
    return sorted((x for x in found if x.free_symbols and not x.has(*OPAQUE)), key=str)


def _short(R):
    """The residual in its shortest form; sympy's own takes too long where it is long."""
    forms = [R, factor_terms(R), *([simplify(R)] if R.count_ops() < 60 else [])]
    return min(forms, key=lambda e: (e.count_ops(), str(e)))


# ---- what is missing

LONG = 500  # operations of a residual for which nothing is looked for
SHARES = (S.One, S.Half, S.NegativeOne, S(2))  # of what is missing: dropped, halved, doubled, of the wrong sign


def _missing(R, f, H, D, state):
    """The simplest drift u found that cancels the residual: of one row, else of several; {} where there is none.

    u in row i adds sum(-du/dz_i + u dH/dz_i) to the residual, which is linear in the coefficients of u.
    """
    if R.count_ops() > LONG:
        return {}
    friction, gamma = derive.times_gradient(D, H, state), derive.row_divergence(D, state)
    rows = [(i, b) for i, b in enumerate(state) if b.domain != "binary"]
    forces = lambda b: [diff(H, c) for _, c in rows if c != b and c.is_vector == b.is_vector]
    few = [[(b, e) for e in dict.fromkeys([friction[i], gamma[i], S.One, *forces(b)]) if e != 0] for i, b in rows]
    blocks = [b for _, b in rows]
    powers = [*blocks, *(x * y for x, y in combinations_with_replacement(blocks, 2))]
    rooted = any(x.base.is_Add and not x.exp.is_integer for e in (R, H) for x in e.atoms(Pow))  # hard to solve exactly
    many = (
        []
        if rooted
        else [
            [*terms, *((b, e) for e in (*Add.make_args(expand(f[i])), *powers) if b.is_vector or not is_site(e))]
            for terms, (i, b) in zip(few, rows)
        ]
    )
    for attempts in (few, [_quotient(R, b, H) for b in blocks], [sum(few, [])], many):
        found = [u for u in (_cancel(R, terms, H) for terms in attempts if terms) if u]
        if found:
            return min(found, key=lambda u: sum(e.count_ops() for e in u.values()))
    return {}


def _quotient(R, b, H):
    """The u in the row of b that does not depend on b, where dH/db is linear in b: -R over dH/db."""
    inside = at_one_site(R) if b.is_vector else R
    above, below = diff(inside, b), diff(H, b, 2)
    return [] if above == 0 or below == 0 or (above.has(b) or below.has(b)) else [(b, -_short(above / below))]


def _cancel(R, terms, H):
    """{block: u} of coefficients times terms, each (block, formula), that makes the residual vanish; or None."""
    c = [Dummy() for _ in terms]
    change = lambda b, e: total(-diff(e, b) + e * diff(H, b)) if b.is_vector else -diff(e, b) + e * diff(H, b)
    try:
        changes = [expand(change(b, e)) for b, e in terms]
    except RecipeError:  # a term that needs more of U than there is
        return None
    x = coefficients([expand(R) + Add(*(k * e for k, e in zip(c, changes)))], c)
    if not x or not vanishes(expand(R + Add(*(k * e for k, e in zip(x, changes))))):
        return None
    u = {}
    for k, (b, e) in zip(x, terms):
        u[b] = u.get(b, 0) + k * e
    return {b: expand(e) for b, e in u.items() if expand(e) != 0}


def _reasons(missing, f, H, D, state):
    """How much of the friction or of Gamma the drift has, where what is missing is a share of it."""
    if not missing:
        return []
    Q = _curl(state, H, [e + missing.get(b, 0) for b, e in zip(state, f)], D)
    friction = derive.times_gradient(D, H, state)
    gamma, told = derive.row_divergence(D if Q is None else D + Q, state), []
    for b, u in missing.items():
        i = state.index(b)
        for whole, name in ((-friction[i], f"the friction D grad H of {b}"), (gamma[i], f"Gamma[{b}] = {gamma[i]}")):
            shares = [1 - k for k in SHARES if whole != 0 and vanishes(u - k * whole)]
            told += [f"the drift has {k} times {name}" for k in shares[:1]]
    return told
