"""The certificate of a recipe: is exp(-H) stationary, is its marginal the target, does the noise reach everything?"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import combinations, pairwise
from math import exp, inf, isfinite, log
from typing import Any

from mpmath import mpf
from sympy import Add, Expr, ImmutableMatrix, S, Symbol, lambdify

from .algebra import at_one_site, integrands, random_value, vanishes
from .derive import residual
from .dynamics import Dynamics
from .marginal import Gaussian, eliminate_gaussians
from .symbols import OPAQUE, Block, Total, masked, temperature

STATES = 2000


@dataclass(frozen=True)
class Finding:
    """One question of the certificate: its answer, how it is known, and whether it holds.

    `verdict` is "proved", "checked" (numerically), "open", "warning" or "failed".
    """

    question: str
    answer: str
    verdict: str


@dataclass(frozen=True)
class Certificate:
    """What is known of a recipe: printable, `.ok` if nothing failed, `.to_dict()` for machines."""

    recipe: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no finding failed; warnings and open questions are allowed."""
        return all(f.verdict != "failed" for f in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {"recipe": self.recipe, "ok": self.ok, "findings": [asdict(f) for f in self.findings]}

    def __str__(self):
        width = max(len(f.question) for f in self.findings)
        lines = [f"  {f.verdict:8} {f.question:{width}}  {f.answer}" for f in self.findings]
        return "\n".join([f"certificate of {self.recipe}: {'ok' if self.ok else 'FAILED'}", *lines])


def certify(recipe: Dynamics) -> Certificate:
    """Answer every question of the certificate for one recipe.

    Source: Ma, Chen & Fox (2015), Theorem 1.
    """
    findings = (
        Finding("Q is skew, D symmetric", "by construction", "proved"),
        _definite(recipe),
        _stationary(recipe),
        _normalisable(recipe),
        _marginal(recipe),
        _reach(recipe),
    )
    return Certificate(recipe.name, (*findings, _claim(recipe, findings)))


def _claim(recipe: Dynamics, findings: tuple[Finding, ...]) -> Finding:
    """What the recipe promises is as well known as the least known finding; what goes beyond these is left open."""
    verdicts = {f.verdict for f in findings if f.verdict != "warning"}
    if not _is_settled(recipe):
        verdicts.add("open")
    least = next(v for v in ("failed", "open", "checked", "proved") if v in verdicts)
    return Finding("claim", recipe.claim, least)


def _is_settled(recipe: Dynamics) -> bool:
    """Whether the findings are all that the claim is about."""
    if recipe.claim == "exact":
        return True
    condition = re.fullmatch(r"given (?:frozen|constant) (.*)", recipe.claim)
    constants = {s.name for s in recipe.adapted} | {s.name for s in recipe.parameters}
    return condition is not None and set(condition[1].split(", ")) <= constants


def _definite(recipe: Dynamics) -> Finding:
    question = "D is positive semidefinite"
    value, where = minimum_eigenvalue(recipe.D.xreplace({temperature: S.One}), points=STATES)
    if where == "":
        return Finding(question, "by the signs of its entries", "proved")
    if value < -1e-12:
        return Finding(question, f"eigenvalue {value:.3g} at {where}", "failed")
    return Finding(question, f"least eigenvalue {max(value, 0):.3g} in {STATES} states", "checked")


def _stationary(recipe: Dynamics) -> Finding:
    question = "exp(-H) is stationary"
    rest = residual(recipe.drift, recipe.H, recipe.D, recipe.state)
    match vanishes(rest):
        case "symbolic":
            return Finding(question, "Fokker-Planck residual identically 0", "proved")
        case "numeric":
            return Finding(question, "Fokker-Planck residual 0 at random states", "checked")
    return Finding(question, f"Fokker-Planck residual {rest}", "failed")


def _auxiliary(recipe: Dynamics) -> tuple[tuple[Gaussian, ...], list[Block], Expr]:
    """The auxiliary blocks that are Gaussian given the rest, the others, and H with the former integrated out."""
    auxiliary = recipe.momenta + recipe.thermostats
    gaussians, rest = eliminate_gaussians(recipe.H, auxiliary)
    others = [b for b in auxiliary if b not in [g.block for g in gaussians]]
    return gaussians, others, rest


def _normalisable(recipe: Dynamics) -> Finding:
    gaussians, others, rest = _auxiliary(recipe)
    names = ", ".join(b.name for b in recipe.momenta + recipe.thermostats)
    question = f"exp(-H) is normalisable in {names or 'no auxiliary block'}"
    if not names:
        return Finding(question, "nothing to integrate", "proved")
    unsigned = [g for g in gaussians if not g.precision.is_positive]
    for g in unsigned:
        value, where = minimum_eigenvalue(ImmutableMatrix([[g.precision]]), points=STATES)
        if value <= 0:
            return Finding(question, f"precision {value:.3g} of {g.block} at {where}", "failed")
    for b in others:
        if not _integrable(rest, b):
            return Finding(question, f"exp(-H) has no finite integral over {b}", "failed")
    laws = [f"{g.block} ~ N({g.mean}, {1 / g.precision})" for g in gaussians]
    laws += [f"{b} by its tails" for b in others]
    return Finding(question, ", ".join(laws), "checked" if unsigned or others else "proved")


def _marginal(recipe: Dynamics) -> Finding:
    """Whether what is left of H, the auxiliary blocks integrated out, is the energy of the target."""
    gaussians, others, rest = _auxiliary(recipe)
    names = ", ".join(b.name for b in recipe.targets)
    energy = recipe.potential if recipe.marginal is None else recipe.marginal
    if energy is None:
        question = f"the marginal of {names} is exp(-H) integrated"
        return Finding(question, "H is wholly symbolic" if others else f"energy {rest}", "proved")
    if recipe.latents:
        names = ", ".join(b.name for b in recipe.targets + recipe.latents)
        question = f"the marginal of {names} is exp(-H) integrated"
        return Finding(question, f"energy {rest}", "open" if others else "proved")
    declared = "exp(-U)" if recipe.marginal is None else "as declared"
    return _surplus(recipe, f"the marginal of {names} is {declared}", others, (rest - energy).expand())


def _surplus(recipe: Dynamics, question: str, others: list[Block], surplus: Expr) -> Finding:
    """Whether the surplus of H over the target's energy is a constant once the other blocks are integrated out."""
    constant = Finding(question, "the auxiliary blocks integrate to a constant", "proved")
    coupled = Add(*(t for t in Add.make_args(surplus) if any(t.has(b) for b in recipe.targets)))
    if coupled == 0:
        return constant
    if not others:
        if all(vanishes(surplus.diff(b)) for b in recipe.targets):
            return constant
        return Finding(question, f"exp(-U) is multiplied by exp(-({coupled}))", "failed")
    if len(others) > 1 or not _is_by_site(recipe, others[0], surplus):
        return Finding(question, f"not decided: the integral of exp(-({coupled}))", "open")
    spread = _log_integral_spread(surplus, others[0], recipe.targets)
    if spread < 1e-6:
        return Finding(question, f"by quadrature over {others[0]}", "checked")
    names = ", ".join(b.name for b in recipe.targets)
    answer = f"the integral over the auxiliary blocks varies with {names}: log-spread {spread:.2g}"
    return Finding(question, answer, "failed")


def _is_by_site(recipe: Dynamics, b: Block, surplus: Expr) -> bool:
    """Whether exp(-surplus) is a product over the sites, so that its integral over b is one of one site."""
    if b.is_vector != recipe.target_is_vector or surplus.has(*OPAQUE[1:]):
        return False
    sums = integrands(surplus)
    coupled = any(t.has(*recipe.state) for e in sums.values() for t in e.atoms(Total))
    return max(sums) <= 1 and not coupled


def _reach(recipe: Dynamics) -> Finding:
    question = "the noise reaches every block"
    noisy = {b for i, b in enumerate(recipe.state) if recipe.D[i, i] != 0}
    reached = noisy | {j.block for j in recipe.jumps.values()}
    if not reached:
        return Finding(question, "there is no noise: invariant, but not ergodic without refreshment", "warning")
    while new := {b for b, f in zip(recipe.state, recipe.drift) if b not in reached and f.has(*reached)}:
        reached |= new
    missed = [b.name for b in recipe.state if b not in reached]
    if missed:
        return Finding(question, f"it never reaches {', '.join(missed)}: invariant, but not ergodic", "warning")
    return Finding(question, "through the drift, to all", "proved")


# ---- numbers behind the answers


# A number, or numbers of which every point takes the next.
Number = float | tuple[float, ...]


def minimum_eigenvalue(
    A: ImmutableMatrix, *, points: int, fixed: Mapping[Symbol, float | list[float] | None] | None = None
) -> tuple[float, str]:
    """The least eigenvalue of a symmetric matrix over random states, and where; (0, "") if it is >= 0 by signs.

    `points`: how many random states; `fixed`: numbers, or lists of one number per site, of which every point takes the
    next; None for a random value.

    >>> from recipe import positive, real
    >>> a, x = positive("a"), real("x")
    >>> minimum_eigenvalue(ImmutableMatrix([[a]]), points=10)
    (0.0, '')
    >>> minimum_eigenvalue(ImmutableMatrix([[a - 2]]), points=10, fixed={a: 0.5})
    (-1.5, 'a = 0.5')
    """
    numbers: list[tuple[Symbol, Number]] = []
    for s, value in (fixed or {}).items():
        if value is not None:
            numbers.append((s, tuple(value) if isinstance(value, list) else value))
    return _minimum_eigenvalue(A, points, tuple(numbers))


@lru_cache(maxsize=256)
def _minimum_eigenvalue(A: ImmutableMatrix, points: int, fixed: tuple[tuple[Symbol, Number], ...]) -> tuple[float, str]:
    """What recipes that are variants of each other ask for again and again."""
    rows = [i for i in range(A.rows) if any(e != 0 for e in A[i, :])]
    A = A.extract(rows, rows)
    if _is_nonnegative(A):
        return 0.0, ""
    from numpy import array
    from numpy.linalg import eigvalsh

    entries, _ = masked(A, *OPAQUE)
    symbols = sorted(entries.free_symbols, key=lambda s: s.name)
    evaluate = numeric(symbols, list(entries))
    worst = inf
    where = "the origin"
    for values in _points(symbols, points, dict(fixed)):
        matrix = array(evaluate(values), dtype=float).reshape(A.shape)
        least = float(eigvalsh(matrix)[0])
        if abs(least) < 1e-12 * abs(matrix).max():
            least = 0.0
        if not least >= worst:
            worst = least
            where = ", ".join(f"{s.name} = {v:.3g}" for s, v in zip(symbols, values)) or "every state"
    return worst, where


def _is_nonnegative(A: ImmutableMatrix) -> bool:
    """Whether a symmetric matrix is seen to be positive semidefinite by the signs of its principal minors."""
    if A.is_diagonal() and all(A[i, i].is_nonnegative for i in range(A.rows)):
        return True
    subsets = (list(s) for k in range(1, A.rows + 1) for s in combinations(range(A.rows), k))
    return all(A.extract(s, s).det().is_nonnegative for s in subsets)


def _points(symbols: list[Symbol], points: int, fixed: Mapping[Symbol, Number]) -> Iterator[list[float]]:
    """Values of the symbols at random points, so many that each number of the longest list is taken."""
    draw = random.Random(2015)
    lengths = [len(v) for v in fixed.values() if isinstance(v, tuple)]
    for k in range(max([points, *lengths])):
        # Fixed symbols draw too, so that the others have the same values whatever is fixed.
        values = [fixed.get(s, random_value(s, draw)) for s in symbols]
        yield [v[k % len(v)] if isinstance(v, tuple) else v for v in values]


def numeric(symbols: Sequence[Symbol], expressions: Sequence[Expr], **functions: Callable) -> Callable:
    """A float function of a list of values, for a list of expressions; `functions` implement non-standard ones.

    >>> from recipe import real
    >>> x = real("x")
    >>> numeric([x], [x**2, 2*x])([3.0])
    [9.0, 6.0]
    """
    return lambdify([list(symbols)], list(expressions), modules=[functions, "math", "mpmath", "sympy"], dummify=True)


# The decades at which the tails of a density are looked at.
_TAILS = (4, 6, 8)


def _integrable(H: Expr, b: Block) -> bool:
    """Whether exp(-H) has tails in b that a decade-by-decade integral sees vanish, at random other values."""
    k = _one_site(H)
    symbols = [b, *sorted(k.free_symbols - {b}, key=lambda s: s.name)]
    # In mpmath, which does not overflow.
    evaluate = lambdify([symbols], [k], modules="mpmath", dummify=True)
    upper = [10.0**d for d in _TAILS]
    lower = [-x for x in upper] if b.domain == "real" else [1 / x for x in upper]
    draw = random.Random(2015)
    for _ in range(5):
        others = [_typical(s, draw) for s in symbols[1:]]
        for tail in (upper, lower):
            mass = [log(abs(x)) - evaluate([mpf(x), *others])[0] for x in tail]
            if not mass[0] - 0.1 > mass[1] - 0.1 > mass[2]:
                return False
    return True


def _typical(s: Symbol, draw: random.Random) -> float:
    """The default of a parameter, or a random value."""
    return getattr(s, "default", None) or random_value(s, draw)


def _one_site(H: Expr) -> Expr:
    """H for one site, opaque terms replaced by constants."""
    return masked(at_one_site(H), *OPAQUE[1:])[0]


def _log_integral_spread(surplus: Expr, b: Block, targets: tuple[Block, ...]) -> float:
    """max - min over target points of log of the integral over b of exp(-surplus), on one site."""
    from numpy import linspace, sinh

    k = _one_site(surplus)
    symbols = sorted(k.free_symbols, key=lambda s: s.name)
    evaluate = numeric(symbols, [k])
    draw = random.Random(2015)
    fixed = {s: _typical(s, draw) for s in symbols}
    grid = sinh(linspace(-12, 12, 2401))
    logs = []
    for _ in range(7):
        at = {**fixed, **{t: random_value(t, draw) for t in targets}}
        energies = [float(evaluate([x if s == b else at[s] for s in symbols])[0]) for x in grid]
        logs.append(_log_integral(energies, grid))
    return max(logs) - min(logs)


def _log_integral(energies: list[float], grid: Iterable[float]) -> float:
    """log of the integral of exp(-energy) by the trapezoidal rule."""
    low = min(energies)
    weights = [exp(low - v) if isfinite(v) else 0.0 for v in energies]
    widths = (right - left for left, right in pairwise(grid))
    return -low + log(sum((w + v) / 2 * d for (w, v), d in zip(pairwise(weights), widths)))
