"""The questions of the certificate, in order."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache

from sympy import Expr, Float, S, Symbol
from sympy.core.function import AppliedUndef

from ..algebra import entries, vanishes
from ..declared import Block
from ..declared import temperature as T
from ..derive import residual
from ..domains import NAMED, Domain
from ..dynamics import Dynamics
from ..energy import Energy
from ..errors import RecipeError
from ..laws import compared
from ..marginal import Gaussian, eliminate_gaussians
from ..results import VERDICTS, Certificate, Finding
from ..swaps import Swap
from ..symbols import Partial, Potential, Total, masked
from . import ends, reach, reflection, smoothness, surfaces, tails
from .definite import least_eigenvalue, least_value
from .explicit import Explicit, written_out
from .marginal import auxiliary_blocks, is_of_one_temperature, marginal

SITES = 2  # number of sites for numerical questions
STATES = 2000
GRADES = {"symbolic": "proved", "numeric": "checked", None: "failed"}

Answer = tuple[str, str, str]  # question, answer, verdict


def certify(
    recipe: Dynamics, *, temperature: float = 1.0, freeze: tuple[str, ...] = (), values: Mapping | None = None
) -> Certificate:
    """The certificate of a recipe at a temperature and at values of its parameters.

    `freeze`: names of blocks held still; the certificate is for the remaining blocks. `values`: numbers by name; other
    parameters have their default, or random values. Raises RecipeError if no block moves. Sources: Ma, Chen & Fox
    (2015), Theorem 1; Feller (1952); Hormander (1967).
    """
    if all(b.name in freeze for b in recipe.state):
        what = f"nothing moves while {', '.join(freeze)} are held still"
        raise RecipeError(f"{recipe.name}, check", what, do="Let a block move.")
    return _certified(recipe, temperature, freeze, tuple(sorted((values or {}).items())))


@lru_cache(maxsize=64)
def _certified(recipe: Dynamics, temperature: float, freeze: tuple[str, ...], values: tuple) -> Certificate:
    case = _Case(recipe, temperature, freeze, dict(values))
    findings = [Finding("Q is skew, D symmetric", "by construction", "proved", "symmetry"), *of_jumps(case)]
    findings += _of_all_data(case)
    findings += [Finding(*answer(case), topic) for topic, answer in QUESTIONS.items()]
    return Certificate(recipe.name, (*findings, _claim(case, findings)))


class _Case:
    """A recipe, without its frozen blocks, at a temperature and at values of its parameters."""

    def __init__(self, recipe: Dynamics, temperature: float, freeze: tuple[str, ...], values: Mapping):
        self.declared = recipe
        self.temperature = temperature
        self.values = values
        self.still = tuple(b for b in recipe.state if b.name in freeze)
        self.recipe = remainder(recipe, self.still)

    def over(self, sites: int, H: Expr | None = None) -> Explicit:
        """The recipe over a number of sites, with a symbolic energy for an opaque U; `H`: in place of its energy."""
        return written_out(self.recipe, sites, temperature=self.temperature, values=self.values, H=H)

    @cached_property
    def one_site(self) -> Explicit:
        """The recipe over one site."""
        return self.over(1)

    @cached_property
    def explicit(self) -> Explicit:
        """The recipe over SITES sites."""
        return self.over(SITES)

    @cached_property
    def unlike(self) -> Explicit:
        """The recipe over one more site if sites share scalars or totals: with two, conserved planes may be missed."""
        shared = {b.is_vector for b in self.recipe.state} == {True, False} or self.recipe.D.has(Total)
        return self.over(SITES + 1) if shared else self.explicit

    @cached_property
    def redrawn(self) -> set[Block]:
        """The blocks that jumps redraw at a nonzero rate."""
        redrawn: set[Block] = set()
        for jump in self.recipe.jumps.values():
            rate = S.One if jump.rate is None else jump.rate
            numbers = {s: self.values.get(s.name, getattr(s, "default", None)) for s in rate.free_symbols}
            if not rate.xreplace({s: Float(x) for s, x in numbers.items() if x is not None}).is_zero:
                redrawn |= {*jump.redrawn}
        return redrawn


def remainder(recipe: Dynamics, still: tuple[Block, ...]) -> Dynamics:
    """The dynamics of the moving blocks: without the rows and columns of frozen blocks in D and Q."""
    if not still:
        return recipe
    rows = [i for i, b in enumerate(recipe.state) if b not in still]
    state = tuple(recipe.state[i] for i in rows)
    targets = tuple(b for b in recipe.targets if b in state)
    return Dynamics(
        name=recipe.name,
        state=state,
        H=recipe.H,
        D=recipe.D.extract(rows, rows),
        Q=recipe.Q.extract(rows, rows),
        target=targets if len(targets) > 1 else next(iter(targets or state)),
        pieces=recipe.pieces,
        adapt=recipe.adapt,
        jumps={letter: jump for letter, jump in recipe.jumps.items() if {*jump.blocks} <= {*state}},
        marginal=recipe.marginal if targets == recipe.targets else recipe.H,
        claim=recipe.claim,
    )


def _of_all_data(case: _Case) -> Iterator[Finding]:
    """A warning for formulas that read U itself: an estimate of U on minibatches changes the law."""
    swaps = (jump for jump in case.declared.jumps.values() if isinstance(jump, Swap))
    ratios = (swap.excess(case.declared.H) for swap in swaps)
    formulas = (*case.declared.drift, *case.declared.D, *case.declared.adapt.values(), *ratios)
    if any(masked(e, Partial)[0].has(Potential) for e in formulas):
        answer = "formulas read U itself, and of an estimate on a minibatch they make another law"
        yield Finding("the law is that of U on all data", answer, "proved", "value")


def of_jumps(case: _Case) -> Iterator[Finding]:
    """Whether the laws of jumps are the conditionals of exp(-H), and swaps leave exp(-H/T) invariant."""
    H = case.recipe.H
    for jump in case.recipe.jumps.values():
        if isinstance(jump, Swap):
            known = jump.is_balanced(H)
            answer = f"an involution of volume 1, accepted with the probability min(1, {jump.ratio(H)})"
            answer = answer if known else "the way back has not the inverse ratio of exp(-H/T)"
            yield Finding(f"{jump} leaves exp(-H/T) invariant", answer, GRADES[known], "swap")
        elif jump.law is not None:
            _, known = compared(H, jump.block, jump.law) or (None, None)
            answer = f"exp(-H) over its density is free of {jump.block}"
            answer += " at random states" if known == "numeric" else ""
            question = f"{jump.law} is the law of {jump.block} given all else"
            yield Finding(question, answer if known else "exp(-H) has another one", GRADES[known], "conditional")


def definite(case: _Case) -> Answer:
    """Whether D is positive semidefinite, for every number of sites."""
    question = "D is positive semidefinite"
    value, where = least_eigenvalue(case.recipe, points=STATES)
    if where == "":
        return question, "by the signs of its entries", "proved"
    if value < -1e-12:
        return question, f"eigenvalue {value:.3g} at {where}", "failed"
    return question, f"least eigenvalue {max(value, 0):.3g} in {STATES} states", "checked"


def stationary(case: _Case) -> Answer:
    """Whether the Fokker-Planck residual vanishes."""
    question = "exp(-H) is stationary"
    recipe = case.recipe
    if case.still:
        rows = [i for i, b in enumerate(case.declared.state) if b not in case.still]
        drift = case.declared.tempered_drift.extract(rows, [0])
        rest = residual(drift, recipe.H / T, T * recipe.D, recipe.state)
        held = "is" if len(case.still) == 1 else "are"
        question = f"exp(-H) is stationary while {', '.join(map(str, case.still))} {held} held still"
    else:
        rest = residual(recipe.drift, recipe.H, recipe.D, recipe.state)
    known = vanishes(rest)
    answer = {"symbolic": "identically 0", "numeric": "0 at random states"}.get(known or "", rest)
    return question, f"Fokker-Planck residual {answer}", GRADES[known]


def smooth(case: _Case) -> Answer:
    """Whether D, Q and H have no jumps: the flow of mass through a jump is in no formula."""
    question = "the formulas have no jumps"
    recipe = case.recipe
    if all(map(smoothness.is_smooth, (recipe.H, *entries(recipe.D).values(), *entries(recipe.Q).values()))):
        return question, "they are made of smooth functions", "proved"
    jump = smoothness.jump(case.explicit)
    return (question, jump, "failed") if jump else (question, "none on lines through random states", "checked")


def normalisable(case: _Case) -> Answer:
    """Whether exp(-H/T) has a finite integral over all blocks in which H is symbolic."""
    recipe = case.recipe
    gaussians, others, rest = auxiliary_blocks(recipe)
    jumps = recipe.jumps.values()
    drawn = {j.block: j.law for j in jumps if j.law is not None and j.block in recipe.latents}
    drawn = {b: law for b, law in drawn.items() if not b.domain.is_discrete}
    if recipe.potential is None:
        # Gaussians are integrated first: exp(-H) may be arbitrarily high where a Gaussian is equally narrow.
        of_target, rest = eliminate_gaussians(rest, recipe.targets, signed=True)
        gaussians += of_target
        known = {g.block for g in gaussians}
        others = [b for b in dict.fromkeys([*others, *recipe.targets, *drawn]) if b not in known]
        drawn = {}
    integrated = {*others, *drawn, *(g.block for g in gaussians)}
    names = ", ".join(b.name for b in recipe.state if b in integrated)
    question = f"exp(-H) is normalisable in {names or 'no auxiliary block'}"
    if not names:
        return question, "nothing to integrate", "proved"
    laws = [f"{g.block} ~ N({g.mean}, {1 / g.precision})" for g in gaussians]
    laws += [f"{b} ~ {law}" for b, law in drawn.items()]
    precisions = [g.precision.is_positive for g in gaussians]
    signed = all([*precisions, *(getattr(law, name).is_positive for law in drawn.values() for name in law.positive)])
    proper = ", ".join(laws + [f"{b} by its tails" for b in others]), "proved" if signed and not others else "checked"
    return (question, *(_flat_gaussian(gaussians) or _improper(case, rest, others) or proper))


def _flat_gaussian(gaussians: tuple[Gaussian, ...]) -> tuple[str, str] | None:
    """The state at which the precision of a Gaussian block is not positive, and the verdict; None if there is none."""
    for g in gaussians:
        if not g.precision.is_positive:
            value, where = least_value(g.precision.xreplace({T: S.One}), points=STATES)
            if value <= 0:
                return f"precision {value:.3g} of {g.block} at {where}", "failed"
    return None


def _improper(case: _Case, rest: Expr, blocks: list[Block]) -> tuple[str, str] | None:
    """The reason why the integral of exp(-rest/T) over some blocks is not finite, and the verdict; None if finite."""
    if not blocks:
        return None
    explicit = case.over(SITES, rest)
    domains = {z: b.domain for z, b in zip(explicit.coordinates, explicit.blocks, strict=True) if b in blocks}
    return _flat_tail(explicit.with_numbers_but(domains), domains, case.temperature)


def _flat_tail(H: Expr, domains: dict[Symbol, Domain], temperature: float) -> tuple[str, str] | None:
    """The reason why the integral of exp(-H/T) over coordinates is not finite, and the verdict; None if finite."""
    growth = tails.growth(H, domains, temperature)
    if growth.is_integrable:
        return None
    if growth.is_undecided:
        return f"not decided: {growth.open}", "open"
    where = ", ".join(f"{z} = {x:.2g}" for z, x in growth.at.items())
    at = "" if temperature == 1 else f" at temperature {temperature:g}"
    return f"exp(-H) has no finite integral{at}: its mass does not fall towards {where}", "failed"


def normalisable_energy(energy: Energy, domain: Domain = NAMED["real"], *, temperature: float = 1.0) -> Finding:
    """Whether exp(-U/T) has a finite integral, for an energy of explicit coordinates in the same domain.

    >>> from sympy import symbols
    >>> x, y = symbols("x y", real=True)
    >>> normalisable_energy(Energy((x, y), U=(x - y)**2)).verdict
    'failed'
    """
    coordinates = ", ".join(map(str, energy.coordinates))
    failure = _flat_tail(energy.U, dict.fromkeys(energy.coordinates, domain), temperature)
    return Finding(
        f"exp(-U) is normalisable in {coordinates}", *(failure or ("by its tails", "checked")), "normalisable"
    )


def boundary(case: _Case) -> Answer:
    """Whether chains stay inside of their domains."""
    question = "chains stay inside of their domains"
    recipe = case.recipe
    if not any(b.domain.ends for b in recipe.state):
        return question, "there is no boundary", "proved"
    touched = []
    for end in ends.reached_ends(case.one_site):
        if end.block in recipe.reflected:
            leak = reflection.leak(case.explicit, end.block)
            if leak:
                return question, f"{leak}: exp(-H) does not stay", "failed"
            turning = ", ".join(str(b) for b in recipe.turned.get(end.block, ()))
            touched.append(f"{end.block} is reflected at {end.at:g}{' with ' if turning else ''}{turning}")
        elif end.turns_back:
            touched.append(f"{end.block} touches {end.at:g}, where D vanishes and turns it back")
        else:
            answer = f"{end.coordinate} reaches {end.at:g}, and leaves: Feller's integral of exp(H)/D converges there"
            return question, answer, "failed"
    return question, "; ".join(dict.fromkeys(touched)) or "no boundary is reached, by Feller's test", "checked"


def explosion(case: _Case) -> Answer:
    """Whether chains stay finite."""
    question = "chains do not run off to infinity"
    recipe = case.recipe
    if ends.is_integrable(recipe):
        return question, "D and Q have finite means under exp(-H)", "proved"
    for end in ends.explosions(case.one_site):
        answer = f"{end.coordinate} reaches {end.at} in a finite time: D grows faster there than exp(H)"
        return question, f"{answer}, by Feller's test", "failed"
    entry = ends.entry_without_mean(case.one_site)
    if entry:
        answer = f"{entry} has no finite mean under exp(-H): whether it carries chains there is not decided"
        return question, answer, "open"
    answer = "by Feller's test along every coordinate"
    if recipe.potential is not None and any(e.has(*recipe.targets) for e in (*recipe.D, *recipe.Q)):
        answer += ", for a U that grows as a square"
    return question, answer, "checked"


def reached(case: _Case) -> Answer:
    """Whether the noise reaches every block, so that the stationary law is unique."""
    return ("the noise reaches every block", *(_unmoved(case) or _walled(case) or _reached(case)))


def _unmoved(case: _Case) -> tuple[str, str] | None:
    """The warning for a latent that no jump draws, or for a recipe without noise; None if there is none."""
    recipe = case.recipe
    for b in recipe.latents:
        if b not in case.redrawn:
            return f"{b} is {b.domain.in_words}, and no jump draws it: invariant, but not ergodic", "warning"
    if entries(recipe.D) or not case.redrawn <= {*recipe.latents}:
        return None
    return "there is no noise: invariant, but not ergodic without refreshment", "warning"


def _walled(case: _Case) -> tuple[str, str] | None:
    """The answer for walls inside of the domain, at one site or at several; None if there are none."""
    D = case.recipe.D
    for end in ends.walls(case.one_site):
        wall = f"no chain passes {end.coordinate} = {end.at:g}, where D vanishes"
        if D.has(Total) and not ends.walls(case.explicit):
            return f"of one site {wall}; of more it may", "open"
        return f"{wall}: invariant, but not ergodic", "warning"
    may_vanish = D.has(*case.recipe.state) and not D.has(AppliedUndef)
    point = surfaces.wall(case.unlike) if may_vanish else None
    if point is None:
        return None
    at = ", ".join(f"{z} = {x:.2g}" for z, x in point.items())
    return f"no chain passes a surface through {at}, where D vanishes: invariant, but not ergodic", "warning"


def _reached(case: _Case) -> tuple[str, str]:
    """Whether noise, drift and jumps reach every coordinate, by the form of the drift or by a rank."""
    if reach.is_reached_by_form(case.recipe):
        return "through the drift, to all", "proved"
    explicit = case.unlike
    moving = [z for z, domain in explicit.domains.items() if not domain.is_discrete]
    refreshed = [z for z, b in zip(explicit.coordinates, explicit.blocks, strict=True) if b in case.redrawn]
    number, missed = reach.rank(explicit, refreshed=[z for z in refreshed if z in moving])
    if number < len(moving):
        still = [b.domain.is_discrete for b in explicit.blocks]
        directions = reach.described(explicit, missed[~missed[:, still].any(1)])
        return f"it never reaches {directions}: invariant, but not ergodic", "warning"
    silent = reach.silent(explicit, refreshed)
    if silent is not None:
        return f"the noise of {silent} is 0 in a whole region: whether every chain leaves it is not decided", "open"
    return f"rank {number} of {len(moving)} at random states, at these parameters", "checked"


QUESTIONS: dict[str, Callable[[_Case], Answer]] = {
    "definite": definite,
    "stationary": stationary,
    "smooth": smooth,
    "normalisable": normalisable,
    "boundary": boundary,
    "explosion": explosion,
    "marginal": lambda case: marginal(case.recipe, case.temperature),
    "reached": reached,
}


# ---- the claim

_WORDS = {
    "conditional": "a law given all else",
    "swap": "a swap",
    "smooth": "jumps",
    "normalisable": "properness",
    "boundary": "boundaries",
    "explosion": "explosion",
    "marginal": "the marginal",
    "definite": "D >= 0",
    "stationary": "invariance",
}


def _claim(case: _Case, findings: list[Finding]) -> Finding:
    """The recipe's claim, weakened as far as the findings require."""
    by_topic = {f.topic: f for f in findings}
    verdicts = {f.verdict for f in findings}
    claim = case.recipe.claim
    if claim == "exact" and case.recipe.adapt:
        claim = f"given frozen {', '.join(sorted(map(str, case.recipe.adapted)))}"
    is_settled = _is_settled(case.recipe, claim)
    if is_of_one_temperature(by_topic["marginal"].answer):
        claim += f" at temperature {case.temperature:g}"
    if "failed" in verdicts:
        return Finding("claim", claim, "failed", "claim")
    if verdicts & {"warning", "open"}:
        doubts = [f"{_WORDS[f.topic]} open" for f in findings if f.verdict == "open" and f.topic in _WORDS]
        doubts += {"warning": ["not ergodic"], "open": ["ergodicity open"]}.get(by_topic["reached"].verdict, [])
        verdict = "warning" if "warning" in verdicts else "open"
        return Finding("claim", "; ".join(["invariant", *doubts]), verdict, "claim")
    verdict = max(verdicts, key=VERDICTS.index) if is_settled else "open"
    return Finding("claim", claim, verdict, "claim")


def _is_settled(recipe: Dynamics, claim: str) -> bool:
    """Whether the findings decide the claim: "exact", or conditional on constants alone."""
    if claim == "exact":
        return True
    conditions = re.fullmatch(r"given (?:frozen|constant) (.*)", claim)
    constants = {str(s) for s in (*recipe.adapted, *recipe.parameters)}
    return conditions is not None and set(conditions[1].split(", ")) <= constants
