"""The certificate of a recipe: is exp(-H) stationary, is its marginal the target, does the noise reach everything?"""

import random
import re
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import combinations
from math import exp, inf, isfinite, log

from mpmath import mpf
from sympy import Add, ImmutableMatrix, S, lambdify

from .algebra import at_one_site, integrands, random_value, vanishes
from .derive import residual
from .marginal import eliminate_gaussians
from .symbols import OPAQUE, Total, masked, temperature

STATES = 2000


@dataclass(frozen=True)
class Finding:
    """One question of the certificate: its answer, how it is known, and whether it holds."""

    question: str
    answer: str
    verdict: str  # "proved", "checked" (numerically), "open", "warning", "failed"


@dataclass(frozen=True)
class Certificate:
    """What is known of a recipe: printable, `.ok` if nothing failed, `.to_dict()` for machines."""

    recipe: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no finding failed; warnings and open questions are allowed."""
        return all(f.verdict != "failed" for f in self.findings)

    def to_dict(self) -> dict:
        """Plain data, ready for JSON."""
        return {"recipe": self.recipe, "ok": self.ok, "findings": [asdict(f) for f in self.findings]}

    def __str__(self):
        width = max(len(f.question) for f in self.findings)
        lines = [f"  {f.verdict:8} {f.question:{width}}  {f.answer}" for f in self.findings]
        return "\n".join([f"certificate of {self.recipe}: {'ok' if self.ok else 'FAILED'}", *lines])


def certify(recipe) -> Certificate:
    """Answer every question of the certificate for one recipe (Ma, Chen & Fox 2015, Theorem 1)."""
    findings = (
        Finding("Q is skew, D symmetric", "by construction", "proved"),
        _definite(recipe),
        _stationary(recipe),
        _normalisable(recipe),
        _marginal(recipe),
        _reach(recipe),
    )
    return Certificate(recipe.name, (*findings, _claim(recipe, findings)))


def _claim(recipe, findings):
    """What the recipe promises is as well known as the least known finding; what goes beyond these is left open."""
    held = {s.name for s in (*recipe.adapted, *recipe.parameters)}
    given = re.fullmatch(r"given (?:frozen|constant) (.*)", recipe.claim)
    settled = recipe.claim == "exact" or given and set(given[1].split(", ")) <= held
    verdicts = [f.verdict for f in findings if f.verdict != "warning"] + ["open"] * (not settled)
    least = next(v for v in ("failed", "open", "checked", "proved") if v in verdicts)
    return Finding("claim", recipe.claim, least)


def _definite(recipe):
    value, where = minimum_eigenvalue(recipe.D.xreplace({temperature: S.One}), points=STATES)
    if where == "":
        return Finding("D is positive semidefinite", "by the signs of its entries", "proved")
    if value < -1e-12:
        return Finding("D is positive semidefinite", f"eigenvalue {value:.3g} at {where}", "failed")
    return Finding("D is positive semidefinite", f"least eigenvalue {max(value, 0):.3g} in {STATES} states", "checked")


def _stationary(recipe):
    question = "exp(-H) is stationary"
    rest = residual(recipe.drift, recipe.H, recipe.D, recipe.state)
    match vanishes(rest):
        case "symbolic":
            return Finding(question, "Fokker-Planck residual identically 0", "proved")
        case "numeric":
            return Finding(question, "Fokker-Planck residual 0 at random states", "checked")
    return Finding(question, f"Fokker-Planck residual {rest}", "failed")


def _normalisable(recipe):
    auxiliary = recipe.momenta + recipe.thermostats
    question = "exp(-H) is normalisable in " + (", ".join(b.name for b in auxiliary) or "no auxiliary block")
    if not auxiliary:
        return Finding(question, "nothing to integrate", "proved")
    gaussians, rest = eliminate_gaussians(recipe.H, auxiliary)
    known = all(g.precision.is_positive for g in gaussians)
    for g in gaussians:
        if not g.precision.is_positive:
            value, where = minimum_eigenvalue(ImmutableMatrix([[g.precision]]), points=STATES)
            if value <= 0:
                return Finding(question, f"precision {value:.3g} of {g.block} at {where}", "failed")
    others = [b for b in auxiliary if b not in [g.block for g in gaussians]]
    for b in others:
        if not _integrable(rest, b):
            return Finding(question, f"exp(-H) has no finite integral over {b}", "failed")
    text = ", ".join(
        [f"{g.block} ~ N({g.mean}, {1 / g.precision})" for g in gaussians] + [f"{b} by its tails" for b in others]
    )
    return Finding(question, text, "proved" if known and not others else "checked")


def _marginal(recipe):
    names = ", ".join(b.name for b in recipe.targets)
    auxiliary = recipe.momenta + recipe.thermostats
    gaussians, rest = eliminate_gaussians(recipe.H, auxiliary)
    left = [b for b in auxiliary if b not in [g.block for g in gaussians]]
    energy = recipe.potential if recipe.marginal is None else recipe.marginal
    question = (
        f"the marginal of {names} is exp(-U)" if recipe.marginal is None else f"the marginal of {names} is as declared"
    )
    if energy is None:
        question = f"the marginal of {names} is exp(-H) integrated"
        return Finding(question, f"energy {rest}" if not left else "H is wholly symbolic", "proved")
    if recipe.latents:
        names = ", ".join(b.name for b in recipe.targets + recipe.latents)
        question = f"the marginal of {names} is exp(-H) integrated"
        return Finding(question, f"energy {rest}", "proved" if not left else "open")
    extra = (rest - energy).expand()
    coupled = [t for t in Add.make_args(extra) if any(t.has(b) for b in recipe.targets)]
    if not coupled:
        return Finding(question, "the auxiliary blocks integrate to a constant", "proved")
    if not left:
        if all(vanishes(extra.diff(b)) for b in recipe.targets):
            return Finding(question, "the auxiliary blocks integrate to a constant", "proved")
        return Finding(question, f"exp(-U) is multiplied by exp(-({Add(*coupled)}))", "failed")
    sums = integrands(extra)
    by_site = (
        left[0].is_vector == recipe.target_is_vector
        and max(sums) <= 1
        and not any(t.has(*recipe.state) for e in sums.values() for t in e.atoms(Total))
    )
    if len(left) > 1 or not by_site or extra.has(*OPAQUE[1:]):
        return Finding(question, f"not decided: the integral of exp(-({Add(*coupled)}))", "open")
    spread = _log_integral_spread(extra, left[0], recipe.targets)
    if spread < 1e-6:
        return Finding(question, f"by quadrature over {left[0]}", "checked")
    return Finding(
        question, f"the integral over the auxiliary blocks varies with {names}: log-spread {spread:.2g}", "failed"
    )


def _reach(recipe):
    question = "the noise reaches every block"
    reached = {b for i, b in enumerate(recipe.state) if recipe.D[i, i] != 0} | {j.block for j in recipe.jumps.values()}
    if not reached:
        return Finding(question, "there is no noise: invariant, but not ergodic without refreshment", "warning")
    grown = True
    while grown:
        new = {b for b, f in zip(recipe.state, recipe.drift) if b not in reached and f.has(*reached)}
        grown, reached = bool(new), reached | new
    missed = [b.name for b in recipe.state if b not in reached]
    if missed:
        return Finding(question, f"it never reaches {', '.join(missed)}: invariant, but not ergodic", "warning")
    return Finding(question, "through the drift, to all", "proved")


# ---- numbers behind the answers


def minimum_eigenvalue(A: ImmutableMatrix, *, points: int, fixed: dict | None = None) -> tuple[float, str]:
    """The least eigenvalue of a symmetric matrix over random states and parameters, and where; (0, "") if >= 0 by signs.

    `fixed`: numbers, or lists of one number per site, of which every point takes the next; None for a random value.
    """
    return _minimum_eigenvalue(
        A, points, tuple((s, tuple(v) if isinstance(v, list) else v) for s, v in (fixed or {}).items() if v is not None)
    )


@lru_cache(maxsize=256)
def _minimum_eigenvalue(A, points, fixed):
    """What recipes that are variants of each other ask for again and again."""
    fixed = dict(fixed)
    points = max(points, *(len(v) for v in fixed.values() if isinstance(v, tuple)), 0)
    rows = [i for i in range(A.rows) if any(e != 0 for e in A[i, :])]
    A = A.extract(rows, rows)
    if (
        A.is_diagonal()
        and all(A[i, i].is_nonnegative for i in range(A.rows))
        or all(
            A.extract(list(s), list(s)).det().is_nonnegative
            for k in range(1, A.rows + 1)
            for s in combinations(range(A.rows), k)
        )
    ):
        return 0.0, ""
    from numpy import array
    from numpy.linalg import eigvalsh

    entries, _ = masked(A, *OPAQUE)
    symbols = sorted(entries.free_symbols, key=lambda s: s.name)
    evaluate = numeric(symbols, list(entries))
    draw, worst = random.Random(2015), (inf, "the origin")
    for k in range(points):
        at = [fixed.get(s, random_value(s, draw)) for s in symbols]
        at = [v[k % len(v)] if isinstance(v, tuple) else v for v in at]
        values = array(evaluate(at), dtype=float).reshape(A.shape)
        least = float(eigvalsh(values)[0])
        least = 0.0 if abs(least) < 1e-12 * abs(values).max() else least
        if not least >= worst[0]:
            worst = least, ", ".join(f"{s.name} = {v:.3g}" for s, v in zip(symbols, at)) or "every state"
    return worst


def numeric(symbols, expressions, **functions):
    """A float function of a list of values, for a list of expressions; `functions` implement non-standard ones."""
    return lambdify([list(symbols)], list(expressions), modules=[functions, "math", "mpmath", "sympy"], dummify=True)


def _integrable(H, b):
    """Whether exp(-H) has tails in b that a decade-by-decade integral sees vanish, at random other values."""
    k = _one_site(H)
    symbols = [b, *sorted(k.free_symbols - {b}, key=lambda s: s.name)]
    evaluate = lambdify([symbols], [k], modules="mpmath", dummify=True)  # which does not overflow
    draw = random.Random(2015)
    for _ in range(5):
        others = [s.default if getattr(s, "default", None) else random_value(s, draw) for s in symbols[1:]]
        energy = lambda x: evaluate([mpf(x), *others])[0]
        ends = [lambda d: 10.0**d] + ([lambda d: -(10.0**d)] if b.domain == "real" else [lambda d: 10.0**-d])
        for end in ends:
            mass = [log(abs(end(d))) - energy(end(d)) for d in (4, 6, 8)]
            if not mass[0] - 0.1 > mass[1] - 0.1 > mass[2]:
                return False
    return True


def _one_site(H):
    """H for one site, opaque terms replaced by constants."""
    return masked(at_one_site(H), *OPAQUE[1:])[0]


def _log_integral_spread(extra, b, targets):
    """max - min over target points of log of the integral over b of exp(-extra), on one site."""
    from numpy import diff, linspace, sinh

    k = _one_site(extra)
    symbols = sorted(k.free_symbols, key=lambda s: s.name)
    evaluate = numeric(symbols, [k])
    draw = random.Random(2015)
    fixed = {s: getattr(s, "default", None) or random_value(s, draw) for s in symbols}
    grid = sinh(linspace(-12, 12, 2401))
    logs = []
    for _ in range(7):
        at = {**fixed, **{t: random_value(t, draw) for t in targets}}
        energy = lambda x: float(evaluate([x if s == b else at[s] for s in symbols])[0])
        values = [energy(x) for x in grid]
        low = min(values)
        weights = [exp(low - v) if isfinite(v) else 0.0 for v in values]
        logs.append(-low + log(sum((w + v) / 2 * d for w, v, d in zip(weights, weights[1:], diff(grid)))))
    return max(logs) - min(logs)
