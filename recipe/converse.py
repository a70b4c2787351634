"""The converse: from H, D and a drift that somebody wrote down to the curl Q, or to what is wrong with the drift.

Ma, Chen & Fox (2015), Theorem 2: if F = f - rowdiv(D) + D grad H has a residual of 0, a skew Q with
-Q grad H + rowdiv(Q) = F exists. The equation is linear in Q.
"""

import random
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement

from sympy import (
    Dummy,
    Expr,
    ImmutableMatrix,
    Matrix,
    Mul,
    S,
    Tuple,
    diff,
    expand,
    lambdify,
    linear_eq_to_matrix,
    simplify,
    zeros,
)
from sympy.core.function import AppliedUndef

from . import derive
from .algebra import at_one_site, integrands, random_value, vanishes
from .declaration import Recipe
from .errors import RecipeError, did_you_mean
from .reading import drift_of
from .symbols import OPAQUE, Parameter, Partial, Potential, formula, is_site, masked, total

POINTS = 400


@dataclass(frozen=True)
class Recovery:
    """The Q behind a drift, or why there is none: printable, `.ok` if Q was found.

    `how` is "reversible" (Q = 0), "ansatz", "not found" (stationary, but Q is outside the ansatz) or "not stationary".
    """

    Q: ImmutableMatrix | None
    residual: Expr
    how: str
    report: str

    @property
    def ok(self) -> bool:
        """Whether a Q was found."""
        return self.Q is not None

    def __str__(self):
        return self.report


def recover(state, H, drift, D, *, functions=()) -> Recovery:
    """The skew Q of a drift at T = 1, or the defect of the drift.

    -Q grad H + rowdiv(Q) = F = f - rowdiv(D) + D grad H, with each Q_ij a combination of monomials of degree <= 2 in
    the blocks, of dH/dz, and of opaque and declared `functions` times 1 or a block. `drift` is a dict over blocks or
    a column in the order of `state`. Raises RecipeError where H and D do not make a recipe or the drift is no drift of
    this state. Ma, Chen & Fox (2015), Theorem 2.

    >>> from recipe import vector, positive, potential, total, grad
    >>> theta, p, c, m = vector("theta"), vector("p"), positive("c"), positive("m")
    >>> U = potential(theta)
    >>> print(recover((theta, p), U + total(p**2)/2/m, {theta: p/m, p: -grad(U) - c*p/m}, {p: c}))
    exp(-H) is stationary, with
      Q[theta, p] = -1
    """
    H = formula(H, "recover, H")
    potential = next(iter(H.atoms(Potential)), None)
    reversible = Recipe(name="recover", state=state, target=potential and potential.blocks, H=H, D=D)
    state, D = reversible.state, reversible.D
    drift = _column(drift, reversible)
    functions = [formula(f, "recover, functions") for f in functions]
    _known_symbols([*drift, *functions], reversible)

    F, R = derive.circulation(drift, H, D, state), derive.residual(drift, H, D, state)
    if vanishes(R) is None:
        return Recovery(None, R, "not stationary", _diagnosis(F, R, reversible))
    if all(map(vanishes, F)):
        return Recovery(ImmutableMatrix(zeros(len(state))), R, "reversible", "exp(-H) is stationary, with Q = 0")
    Q = _ansatz(F, H, D, state, functions)
    if Q is None:
        return Recovery(None, R, "not found", "exp(-H) is stationary, but Q is not in the ansatz: give functions=(...)")
    entries = [f"  Q[{a}, {b}] = {Q[i, j]}" for (i, a), (j, b) in combinations(enumerate(state), 2) if Q[i, j] != 0]
    return Recovery(Q, R, "ansatz", "\n".join(["exp(-H) is stationary, with", *entries]))


def _column(drift, recipe):
    """The drift as a column of formulas, one for each block of the state."""
    state = recipe.state
    rows = drift_of(drift, state, "recover")
    for b, row in zip(state, rows):
        if not b.is_vector and is_site(row):
            raise RecipeError(
                f"recover, drift[{b}]", f"{row} has one value per site, but {b} is a scalar", do="Wrap it in total()."
            )
    return ImmutableMatrix(rows)


def _known_symbols(formulas, recipe):
    used = set().union(*(e.free_symbols for e in formulas)) - set(recipe.state)
    names = [s.name for s in recipe.state + tuple(used | set(recipe.parameters))]
    for s in sorted(used, key=str):
        if not isinstance(s, Parameter):
            raise RecipeError(
                "recover",
                f"'{s}' is unbound: neither a block of the state nor a parameter",
                do=did_you_mean(s.name, set(names) - {s.name}),
            )
        if names.count(s.name) > 1:
            raise RecipeError("recover", f"two blocks or parameters are named '{s}'", do="Rename one.")


# ---- the linear equation for Q


def _ansatz(F, H, D, state, functions):
    """Q as a combination of basis functions, exact in the parameters, verified row by row; or None."""
    opaque = sorted(Tuple(H, F, D).atoms(AppliedUndef), key=str)
    slopes = [s for s in (diff(H, b) for b in state) if not s.has(Partial)]
    products = [f * b for b in (S.One, *state) for f in (*opaque, *functions)]
    squares = [a * b for a, b in combinations_with_replacement(state, 2)]
    unknowns, Q = [], zeros(len(state))
    for b in dict.fromkeys([S.One, *state, *slopes, *products, *squares]):
        for (i, row), (j, column) in combinations(enumerate(state), 2):
            unknowns.append(Dummy())
            entry = unknowns[-1] * (total(b) if is_site(b) and not (row.is_vector or column.is_vector) else b)
            Q[i, j], Q[j, i] = Q[i, j] + entry, Q[j, i] - entry

    defect = lambda Q: derive.row_divergence(Q, state) - derive.times_gradient(Q, H, state) - F
    x = coefficients(defect(Q), unknowns)
    found = x and Q.xreplace(dict(zip(unknowns, x))).expand()
    return ImmutableMatrix(found) if found and all(map(vanishes, defect(found))) else None


def coefficients(rows, unknowns):
    """The constants that make rows, linear in them, vanish: formulas of the parameters and n; or None."""
    n = Dummy("n", positive=True)  # a parameter here, so that a constant may be divided by it
    parts = [part for row in rows for part in integrands(row.xreplace({total(1): n})).values()]
    x = _solve(*linear_eq_to_matrix(list(masked(Tuple(*parts), *OPAQUE)[0]), unknowns), n)
    return x and [v.xreplace({n: total(1)}) for v in x]


def _solve(A, b, n):
    """Solve A(z) x = b(z) for all z: numerically at random z for the support of x, exactly at a few of them for x.

    Columns that depend on earlier ones (the gauge of Q) get the coefficient 0.
    """
    import numpy
    from numpy.linalg import lstsq, norm

    draw = random.Random(2015)
    symbols = sorted(A.free_symbols | b.free_symbols, key=lambda s: s.sort_key())
    constant = {s: random_value(s, draw) for s in symbols if s is n or isinstance(s, Parameter)}
    points = [
        {s: S(round(16 * random_value(s, draw)) or 1) / 16 for s in symbols if s not in constant} for _ in range(POINTS)
    ]
    at = [constant.get(s) or numpy.array([float(z[s]) for z in points]) for s in symbols]
    with numpy.errstate(all="ignore"):
        values = lambdify([symbols], [*A, *b], "numpy")(at)
    values = numpy.array([numpy.broadcast_to(v, POINTS) for v in values], dtype=float)
    values[:, ~numpy.isfinite(values).all(0)] = 0
    M, y = (
        values[: -A.rows].reshape(A.rows, A.cols, POINTS).swapaxes(1, 2).reshape(-1, A.cols),
        values[-A.rows :].ravel(),
    )

    free = _independent(M.T)
    x = lstsq(M[:, free], y, rcond=None)[0]
    if norm(M[:, free] @ x - y) > 1e-10 * norm(y):
        return None
    support = [k for k, v in zip(free, x) if abs(v) * norm(M[:, k]) > 1e-9 * norm(y)]
    rows = [divmod(k, POINTS) for k in _independent(M[:, support])]
    left = Matrix([[A[i, k].xreplace(points[z]) for k in support] for i, z in rows])
    right = Matrix([b[i].xreplace(points[z]) for i, z in rows])
    exact = dict(zip(support, left.LUsolve(right).applyfunc(simplify)))
    return [exact.get(k, S.Zero) for k in range(A.cols)]


def _independent(vectors):
    """The indices of the vectors that do not depend on those before them (Gram-Schmidt, twice)."""
    from numpy import vstack, zeros
    from numpy.linalg import norm

    found, basis = [], zeros((0, vectors.shape[1]))
    for k, v in enumerate(vectors):
        if len(found) == vectors.shape[1]:
            break
        rest = v - basis.T @ (basis @ v)
        rest = rest - basis.T @ (basis @ rest)
        if norm(rest) > 1e-8 * norm(v):
            found.append(k)
            basis = vstack([basis, rest / norm(rest)])
    return found


# ---- what is wrong


def _diagnosis(F, R, recipe):
    """F, the residual, the missing drift, and what the density does first."""
    rows = [f"  F[{b}] = {f}" for b, f in zip(recipe.state, F) if f != 0]
    return "\n".join(
        [
            "exp(-H) is not stationary: no Q exists",
            *rows,
            f"  residual {R}",
            *_missing(R, recipe),
            *_first_moments(R, recipe),
        ]
    )


def _missing(R, recipe):
    """One term, c times the friction, 1 or a block, that added to one row makes the residual vanish."""
    friction, c = derive.times_gradient(recipe.D, recipe.H, recipe.state), Dummy()
    for i, row in enumerate(recipe.state):
        for term in (friction[i], S.One, *recipe.state):
            if term == 0 or is_site(term) and not row.is_vector:
                continue
            change = -diff(term, row) + term * diff(recipe.H, row)
            repaired = expand(R + c * (total(change) if row.is_vector else change))
            x = coefficients([repaired], [c])
            if x and vanishes(repaired.xreplace({c: x[0]})):
                return [f"  missing drift: {expand(x[0] * term)} in the row of {row}"]
    return []


def _first_moments(R, recipe):
    """E_pi[L phi] = E_pi[phi R] for H and the worst monomial, at the defaults, for one site, U a quartic."""
    import numpy

    state, U = recipe.state, recipe.potential
    quartic = sum(b**4 / 4 + b**2 / 2 - S(2) / 5 * b for b in U.blocks) if U else None

    def one_site(e):
        e = e.xreplace({g: diff(quartic, *g.variables) for g in e.atoms(Partial)} | {U: quartic})
        return at_one_site(e).xreplace(
            {s: S(s.default) for s in e.free_symbols if getattr(s, "default", None) is not None}
        )

    H, R = one_site(recipe.H), one_site(R)
    if Tuple(H, R).has(AppliedUndef) or (H.free_symbols | R.free_symbols) - set(state) or len(state) > 3:
        return []
    t = numpy.linspace(-4.5, 4.5, 51)
    real, positive = (numpy.sinh(t), numpy.cosh(t)), (numpy.exp(t), numpy.exp(t))
    z, width = (
        numpy.array(numpy.meshgrid(*ways, indexing="ij"))
        for ways in zip(*(real if b.domain == "real" else positive for b in state))
    )
    on_grid = lambda e: numpy.broadcast_to(lambdify([state], e, "numpy")(z), width[0].shape)
    with numpy.errstate(all="ignore"):
        energy, rest = on_grid(H), on_grid(R)
        law = numpy.exp(energy.min() - energy) * width.prod(0)
        law = law / law.sum()
        if not law[(slice(1, -1),) * len(z)].sum() > 1 - 1e-9 or not numpy.isfinite(rest).all():
            return []  # the grid does not hold the density
    mean = lambda f: float((law * f).sum())
    rate = lambda phi: mean(on_grid(phi) * rest)
    score = lambda phi: abs(rate(phi)) / mean((on_grid(phi) - mean(on_grid(phi))) ** 2) ** 0.5
    phi = max((Mul(*c) for d in range(1, 5) for c in combinations_with_replacement(state, d)), key=score)
    if score(phi) < 1e-7:
        return []
    return [
        f"  one site, parameters at their defaults{f', U = {quartic}' if U else ''}:",
        f"    heating E[L H] = {round(rate(H), 6) + 0.0:.3g}, worst monomial E[L {phi}] = {rate(phi):.3g}",
    ]
