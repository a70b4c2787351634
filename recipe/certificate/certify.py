"""The questions of the certificate, in order."""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from numbers import Real

from sympy import Function, Pow
from sympy.core.function import AppliedUndef

from ..algebra import at_one_site, entries, vanishes, weakest
from ..arguments import check_known, check_names, integer, number
from ..bound import Bound
from ..declared import temperature as T
from ..derive import residual
from ..dynamics import Dynamics
from ..ensembles import Outer
from ..errors import RecipeError
from ..involutions import Involution
from ..laws import compared
from ..representative import representative
from ..results import GRADES, VERDICTS, Certificate, Finding
from ..swaps import Swap
from ..symbols import Partial, Potential, Total, masked
from . import ends, reach, reflection, smoothness, surfaces
from .case import SITES, STATES, Answer, Case, couples_sites
from .definite import NUMBERS, least_eigenvalue, least_in_bulk, reads_other_sites
from .integrals import is_of_one_temperature, marginal, normalisable


def certify(
    recipe: Dynamics,
    *,
    temperature: float = 1.0,
    freeze: tuple[str, ...] = (),
    values: Mapping | None = None,
    sites: int | None = None,
) -> Certificate:
    """The certificate of a recipe at a temperature and at values of its parameters.

    `freeze`: names of blocks held still; the certificate is for the remaining blocks. `values`: numbers by name; other
    parameters have their default, or random values. `sites`: of a vector, where H couples them. Raises
    RecipeError if no block moves, and for arguments that a run would refuse. Sources: Ma, Chen & Fox (2015), Theorem 1;
    Feller (1952); Hormander (1967).
    """
    _check_arguments(recipe, temperature, freeze, values or {}, sites)
    if all(b.name in freeze for b in recipe.state):
        what = f"nothing moves while {', '.join(freeze)} are held still"
        raise RecipeError(f"{recipe.name}, check", what, do="Let a block move.")
    sites = sites if sites and couples_sites(recipe) else SITES
    return _certified(representative(recipe), temperature, freeze, tuple(sorted((values or {}).items())), sites)


def _check_arguments(
    recipe: Dynamics, at_temperature: float, freeze: tuple[str, ...], values: Mapping, sites: int | None
) -> None:
    """Refuse a temperature, a number of sites, names and values of parameters that no run could have."""
    where = f"{recipe.name}, check"
    number(where, "temperature", at_temperature, above=0, kinds=Real)
    if sites is not None:
        integer(where, "sites", sites, least=1)
    entries = [b.name for b in recipe.entries]
    check_known(where, "freeze names {!r}, which is no block", freeze, entries)
    parameters = {s.name: s for s in recipe.parameters}
    check_names(where, values, parameters)
    for name, value in values.items():
        above, least = (0 if parameters[name].is_positive else None), (0 if parameters[name].is_nonnegative else None)
        number(where, name, value, above=above, least=None if above == 0 else least, kinds=Real)


@lru_cache(maxsize=256)
def _certified(recipe: Dynamics, temperature: float, freeze: tuple[str, ...], values: tuple, sites: int) -> Certificate:
    case = Case(recipe, temperature, freeze, dict(values), sites)
    findings = [Finding("Q is skew, D symmetric", "by construction", "proved", "symmetry"), *of_jumps(case)]
    findings += [*_of_all_data(case), *_of_clocks(case)]
    findings += [Finding(*answer(case), topic) for topic, answer in QUESTIONS.items()]
    return Certificate(recipe.name, (*findings, _claim(case, findings)))


def _of_all_data(case: Case) -> Iterator[Finding]:
    """A warning for formulas that read U itself: an estimate of U on minibatches changes the law."""
    ratios = (swap.excess(case.declared.H) for swap in case.declared.swaps)
    formulas = (*case.declared.drift, *case.declared.D, *case.declared.adapt.values(), *ratios)
    if any(masked(e, Partial)[0].has(Potential) for e in formulas):
        answer = "formulas read U itself, and of an estimate on a minibatch they make another law"
        yield Finding("the law is that of U on all data", answer, "proved", "value")


def _of_clocks(case: Case) -> Iterator[Finding]:
    """Whether weights that read adapted quantities are the one factor of the dynamics that reads them."""
    weights = case.declared.weights
    clocks = [a for a in case.declared.adapted if weights is not None and weights.has(a)]
    if clocks:
        names = ", ".join(map(str, clocks))
        conditions = [str(a) for a in clocks if a in case.declared.conditions]
        answer = "D and Q over the weights, and H less T times their log, are free of it"
        answer = f"the dynamics over the weights still reads {', '.join(conditions)}" if conditions else answer
        always = [str(jump) for jump in case.declared.jumps.values() if jump.rate is None]
        if conditions and always:
            answer = f"{always[0]} is made in every step, and not at a rate that the weights scale"
        yield Finding(f"weights lift the condition on {names}", answer, "failed" if conditions else "proved", "clock")


def of_jumps(case: Case) -> Iterator[Finding]:
    """Whether the laws of jumps are the conditionals of exp(-H), swaps leave exp(-H/T), and involutions H."""
    H = case.recipe.H
    for jump in case.recipe.jumps.values():
        if isinstance(jump, Swap):
            known = jump.is_balanced(H)
            answer = f"an involution of volume 1, accepted with the probability min(1, {jump.ratio(H)})"
            answer = answer if known else "the way back has not the inverse ratio of exp(-H/T)"
            yield Finding(f"{jump} leaves exp(-H/T) invariant", answer, GRADES[known], "swap")
        elif isinstance(jump, Involution):
            if case.leaps(jump):
                known = weakest(jump.is_involution(), jump.is_reversible(H))
                answer = "its own inverse, of volume 1, and rate exp(-H/T) is the same at z and F(z)"
                yield Finding(f"{jump} is reversible for exp(-H/T)", answer, GRADES[known], "involution")
                continue
            inverse, kept = jump.is_involution(), jump.keeps(H)
            known = weakest(inverse, kept)
            answer = "linear in what moves, and its own inverse" if inverse else "F(F(z)) is not z"
            if inverse and not kept:
                answer = "H(F(z)) is not H(z), and rate exp(-H/T) is not the same at z and F(z)"
            yield Finding(f"{jump} has volume 1 and leaves H", answer, GRADES[known], "involution")
        elif jump.proposed is not None:
            answer = "accepted or rejected by H and the densities of both ways"
            yield Finding(f"{jump} leaves exp(-H/T) invariant", answer, "proved", "proposal")
        elif jump.law is not None:
            (b,) = jump.blocks
            _, known = compared(H, b, jump.law) or (None, None)
            answer = f"exp(-H) over its density is free of {b}"
            answer += " at random states" if known == "numeric" else ""
            question = f"{jump.law} is the law of {b} given all else"
            yield Finding(question, answer if known else "exp(-H) has another one", GRADES[known], "conditional")


def definite(case: Case) -> Answer:
    """Whether D is positive semidefinite, for every number of sites."""
    question = "D is positive semidefinite"
    numbers = sorted({*NUMBERS, case.sites_of_run})
    value, where = least_eigenvalue(case.recipe, points=STATES, numbers=numbers)
    if where == "":
        return question, "by the signs of its entries", "proved"
    if value >= -1e-12:
        value, where = min(
            (value, where), least_in_bulk(case.explicit, {b for U in case.recipe.potentials for b in U.blocks})
        )
    if value < -1e-12:
        return question, f"eigenvalue {value:.3g} at {where}", "failed"
    of = f" of {', '.join(map(str, numbers))} sites" if reads_other_sites(case.recipe.D) else ""
    return question, f"least eigenvalue {max(value, 0):.3g} in {STATES} states{of}", "checked"


def stationary(case: Case) -> Answer:
    """Whether the Fokker-Planck residual vanishes."""
    question = "exp(-H) is stationary"
    recipe = case.recipe.by_moduli
    if case.still:
        rows = [i for i, b in enumerate(case.declared.state) if b not in case.still]
        drift = case.declared.by_moduli.tempered_drift.extract(rows, [0])
        rest = residual(drift, recipe.H / T, T * recipe.D, recipe.state) + case.recipe.gain / T
        held = "is" if len(case.still) == 1 else "are"
        question = f"exp(-H) is stationary while {', '.join(map(str, case.still))} {held} held still"
    else:
        rest = residual(recipe.drift, recipe.H, recipe.D, recipe.state) + case.recipe.gain
    known = vanishes(rest)
    answer = {"symbolic": "identically 0", "numeric": "0 at random states"}.get(known or "", rest)
    return question, f"Fokker-Planck residual {answer}", GRADES[known]


def smooth(case: Case) -> Answer:
    """Whether D, Q and H have no jumps: the flow of mass through a jump is in no formula."""
    question = "the formulas have no jumps"
    recipe = case.recipe
    formulas = (recipe.H, *entries(recipe.D).values(), *entries(recipe.Q).values())
    if all(map(smoothness.is_smooth, formulas)):
        rates = ", and rates of jumps may have kinks" if recipe.involutions else ""
        return question, f"H, D and Q are made of smooth functions{rates}", "proved"
    networks = sorted({type(f) for e in formulas for f in e.atoms(Bound)}, key=lambda f: f.__name__)
    jump = next(filter(None, map(smoothness.jump_of_network, networks)), "") or smoothness.jump(case.explicit)
    jump = jump or ("" if recipe.potentials else smoothness.undefined(case.explicit))
    return (question, jump, "failed") if jump else (question, "none on lines through random states", "checked")


def boundary(case: Case) -> Answer:
    """Whether chains stay inside of their domains."""
    question = "chains stay inside of their domains"
    recipe = case.recipe
    if not any(b.domain.ends for b in recipe.state):
        return question, "there is no boundary", "proved"
    touched = []
    for end in ends.reached_ends(case.of_run):
        if end.block in recipe.reflected:
            leak = reflection.leak(case.explicit, end.block)
            if leak:
                return question, f"{leak}: exp(-H) does not stay", "failed"
            turning = ", ".join(str(b) for b in recipe.turned.get(end.block, ()))
            touched.append(f"{end.block} is reflected at {end.at:g}{' with ' if turning else ''}{turning}")
        elif end.is_still:
            touched.append(f"{end.block} touches {end.at:g}, where D vanishes and turns it back")
        else:
            cause = (
                "Feller's integral of exp(H)/D converges"
                if end.has_noise
                else "its speed without noise does not vanish"
            )
            return question, f"{end.coordinate} reaches {end.at:g}, and leaves: {cause} there", "failed"
    for end in ends.ends_passed(case.of_run):
        if end.block not in recipe.reflected:
            return question, f"Q carries {end.coordinate} through {end.at:g}, where exp(-H) does not vanish", "failed"
    return question, "; ".join(dict.fromkeys(touched)) or "no boundary is reached, by Feller's test", "checked"


def explosion(case: Case) -> Answer:
    """Whether chains stay finite."""
    question = "chains do not run off to infinity"
    recipe = case.recipe
    if ends.carries_to_infinity(recipe):
        return question, "not decided: the transport is not linear, or jumps leave no norm", "open"
    if ends.is_integrable(recipe):
        return question, "D, Q and speeds without noise have finite means under exp(-H)", "proved"
    for end in ends.explosions(case.one_site):
        answer = f"{end.coordinate} reaches {end.at} in a finite time: D grows faster there than exp(H)"
        return question, f"{answer}, by Feller's test", "failed"
    sites = case.over(case.sites)
    runs_off = ends.outwards(sites)
    if runs_off == "checked":
        return question, f"exp(H)/D has no finite integral along rays of {sites.size} coordinates", runs_off
    if runs_off:
        of = f"{sites.size} coordinates" if runs_off == "failed" else f"{sites.size} coordinates, on the mean over rays"
        return question, f"D grows too fast along rays of {of}: exp(H)/D has a finite integral there", runs_off
    entry = next(filter(None, map(ends.entry_without_mean, case.one_site.by_category())), "")
    entry = entry or ends.speed_without_mean(case)
    if entry:
        answer = f"{entry} has no finite mean under exp(-H): whether it carries chains there is not decided"
        return question, answer, "open"
    answer = "by Feller's test along every coordinate"
    if recipe.potential is not None and any(e.has(*recipe.targets) for e in (*recipe.D, *recipe.Q)):
        answer += ", for a U that grows as a square"
    if recipe.metrics:
        answer += f", for {' and '.join(map(str, recipe.metrics))} bounded from above and from below"
    return question, answer, "checked"


def reached(case: Case) -> Answer:
    """Whether the noise reaches every block, so that the stationary law is unique."""
    return ("the noise reaches every block", *(_idle(case) or _unmoved(case) or _walled(case) or _reached(case)))


def _idle(case: Case) -> tuple[str, str] | None:
    """The failure for targets that nothing moves; None if there are none."""
    idle = [b for b in case.declared.idle if b not in case.still]
    cure = "add an entry to D, as D[theta], or to Q, as Q[theta, p] of momenta p"
    return (f"nothing moves {', '.join(map(str, idle))}: {cure}", "failed") if idle else None


def _unmoved(case: Case) -> tuple[str, str] | None:
    """The warning for a latent that no jump draws, or for a recipe without noise; None if there is none."""
    recipe = case.recipe
    for b in (b for b in recipe.latents if b not in case.redrawn | case.turned):
        jumps = [jump for jump in recipe.involutions if b in jump.blocks]
        if not jumps:
            return f"{b} is {b.domain.in_words}, and no jump draws it: invariant, but not ergodic", "warning"
        if all(jump.moves_one for jump in jumps):
            return f"not decided: where its rate is 0, {b} does not turn", "open"
        if len(jumps) == 1:
            return f"{b} turns only together with others: invariant, but not ergodic", "warning"
        return f"not decided: {b} turns only together with others, by several jumps", "open"
    turned = {b for jump in recipe.involutions for b in jump.blocks}
    if entries(recipe.D) or not case.redrawn <= {*recipe.latents} or turned & {*recipe.latents}:
        return None
    return "there is no noise: invariant, but not ergodic without refreshment", "warning"


def _walled(case: Case) -> tuple[str, str] | None:
    """The answer for walls inside of the domain, at one site or at several; None if there are none."""
    recipe, D = case.recipe, case.recipe.D
    for end in ends.walls(case.of_run, case.redrawn):
        return _of_wall(case, _passed_by_none(end))
    if case.of_run is not case.one_site and case.sites_of_run <= SITES:  # nobody asked about more
        for end in ends.walls(case.one_site, case.redrawn):
            return f"of one site {_passed_by_none(end)}; of more it may", "open"
    if case.sites_of_run == 1 and (pair := surfaces.meeting(case.one_site, case.redrawn)):
        return _of_wall(case, f"no chain passes {pair}")
    over = (case.one_site,) if case.sites_of_run == 1 else (case.unlike, case.explicit, case.one_site)
    few = (e for e in over if e.size <= surfaces.MOST)
    surface = next(filter(None, (surfaces.wall(e, case.redrawn) for e in islice(few, 1))), None)
    matrices = {"D": D, "Q": recipe.Q}
    if surface is None or (surface.of in matrices and matrices[surface.of].has(AppliedUndef)):
        return None
    wall = f"no chain passes {surface.in_words}"
    if any(b.domain.wraps for b in recipe.state):
        return f"{wall}: whether a chain goes around is not decided", "open"
    formulas = {"H": [recipe.H], "D": entries(D).values(), "Q": entries(recipe.Q).values()}[surface.of]
    parts = [inner for e in formulas for inner in (e.atoms(Function, Pow) if surface.of == "H" else {e})]
    if any(inner.has(Potential) for inner in parts):
        return f"{wall}, if U is such there", "open"
    return _of_wall(case, wall)


def _passed_by_none(end: ends.End) -> str:
    """A wall at a point of a coordinate, in words."""
    return f"no chain passes {end.coordinate} = {end.at:g}, where {surfaces.REASONS['D' if end.is_still else 'H']}"


def _of_wall(case: Case, wall: str) -> tuple[str, str]:
    """The answer for a wall that no noise and no motion crosses."""
    if case.recipe.swaps:
        return f"{wall}: whether swaps pass it is not decided", "open"
    return f"{wall}: invariant, but not ergodic", "warning"


def _reached(case: Case) -> tuple[str, str]:
    """Whether noise, drift and jumps reach every coordinate, by the form of the drift or by a rank."""
    if way := reach.way_by_form(case.recipe):
        if not ends.may_make_infinite(case.recipe.H) & {*case.recipe.state}:
            return way, "proved"
        return f"{way}: no wall is met on lines through random states", "checked"
    explicit = case.unlike
    moving = [z for z, domain in explicit.domains.items() if not domain.is_discrete]
    refreshed = [z for z, b in zip(explicit.coordinates, explicit.blocks, strict=True) if b in case.redrawn]
    jumping = case.turned if case.recipe.transport.is_zero_matrix else case.turned | case.redrawn
    timed = bool(jumping & {*case.recipe.latents})
    number, missed = reach.rank(explicit, refreshed=[z for z in refreshed if z in moving], timed=timed)
    if number < 0:
        return "not decided: paths run out of the range of floats", "open"
    directions = len(moving) - len(case.recipe.spheres)
    if number < directions and not len(missed):
        return f"not decided: {number} of {directions} directions, the others fade into rounding errors", "open"
    if number < directions:
        still = [b.domain.is_discrete for b in explicit.blocks]
        unreached = reach.described(explicit, missed[~missed[:, still].any(1)])
        jumps = "swaps" if case.recipe.swaps else "jumps" if any(map(case.leaps, case.recipe.involutions)) else ""
        if jumps:
            return (
                f"without {jumps} it never reaches {unreached}: whether {jumps} carry it there is not decided",
                "open",
            )
        return f"it never reaches {unreached}: invariant, but not ergodic", "warning"
    along = reach.along_few(case.recipe, case.sites_of_run)
    if along:
        return f"not decided: {along}", "open"
    silent = reach.silent(explicit, refreshed) or _at_rest(case)
    if silent:
        return f"{silent} is 0 in a whole region: whether every chain leaves it is not decided", "open"
    sites = max(map(explicit.blocks.count, explicit.blocks))
    of = f" of {sites} site{'s' * (sites > 1)}" if case.recipe.D.has(Outer, Total) else ""
    return f"all {number} directions{of}, at random states and at these parameters", "checked"


def _at_rest(case: Case) -> str:
    """A jump that redraws a block without noise at a rate of 0 in a region that the drift need not leave; or ""."""
    recipe = case.recipe
    for jump in recipe.jumps.values():
        still = all(recipe.D[recipe.state.index(b), recipe.state.index(b)] == 0 for b in jump.redrawn)
        if jump.redrawn and still and jump.rate is not None and jump.rate.has(*recipe.state):
            of_rate = case.over(1, H=at_one_site(jump.rate))
            if reach.vanishes_in_a_region(case.one_site, of_rate.H):
                return f"the rate of {jump}"
    return ""


QUESTIONS: dict[str, Callable[[Case], Answer]] = {
    "definite": definite,
    "stationary": stationary,
    "smooth": smooth,
    "normalisable": normalisable,
    "boundary": boundary,
    "explosion": explosion,
    "marginal": marginal,
    "reached": reached,
}


# ---- the claim

_WORDS = {
    "conditional": "a law given all else",
    "swap": "a swap",
    "involution": "a jump",
    "smooth": "jumps",
    "normalisable": "properness",
    "boundary": "boundaries",
    "explosion": "explosion",
    "marginal": "the marginal",
    "definite": "D >= 0",
    "stationary": "invariance",
}


def _claim(case: Case, findings: list[Finding]) -> Finding:
    """The recipe's claim, weakened as far as the findings require."""
    by_topic = {f.topic: f for f in findings}
    verdicts = {f.verdict for f in findings}
    claim = case.recipe.claim
    if claim == "exact" and case.declared.conditions:
        claim = f"given frozen {', '.join(sorted(map(str, case.declared.conditions)))}"
    is_settled = _is_settled(case.recipe, claim)
    if forgotten := [str(a) for a in case.declared.conditions if str(a) not in re.split(r"[ ,]+", claim)]:
        claim += f", and given frozen {', '.join(forgotten)}"
    claim += "" if case.declared.weights is None else ", by weights"
    claim += "".join(f" on the range of the map {map_}" for map_ in case.declared.maps.values() if not map_.covers)
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
