"""Mutants, wrong samplers made from right ones: by a change of a recipe's SDE, or of a step's text.

Mutants of the SDE are common errors of derivation, mutants of the text common errors of code. Both kinds are made from
any recipe and word, none by hand.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial

from sympy import ImmutableMatrix, S, zeros

from integrators.step import Step
from recipe import Recipe
from recipe.derive import times_gradient
from recipe.symbols import temperature as T
from samplers.testing.layers import LAYERS
from samplers.testing.planted import with_source
from samplers.testing.subject import Subject

OF_FORMULAS = ("symbolic", "generator")
DETERMINISTIC = (*OF_FORMULAS, "differential", "linear law", "one-step defect")


def unaltered(step: Step) -> Step:
    return step


@dataclass(frozen=True, eq=False)
class Wrong(Subject):
    """A subject with a mistake, and the `origin` that has none.

    A recipe `wrong` is compiled in place of the right one; `alter` and `alter_accepted` change the compiled step and
    the accept-reject step.
    """

    origin: Subject | None = field(default=None, repr=False)
    wrong: Recipe | None = None
    alter: Callable[[Step], Step] = unaltered
    alter_accepted: Callable[[Step], Step] = unaltered

    right = property(lambda self: self.origin)
    sde = property(lambda self: self.wrong or self.recipe)
    derivatives = property(lambda self: self.origin.derivatives)
    laws = property(lambda self: self.origin.laws)

    def step(self, *, frozen: bool) -> Step:
        if self.wrong is not None:
            return super().step(frozen=frozen)
        return self.alter(self.origin.still if frozen else self.origin.live)

    @cached_property
    def accepted(self) -> Step | str:
        if self.wrong is not None:
            return "the work is derived of the formulas, not of what is compiled in their place"
        step = self.origin.accepted
        return step if isinstance(step, str) else self.alter_accepted(step)


def with_mistake(subject: Subject, **mistake) -> Wrong:
    """The subject with a mistake: `wrong`, `alter` or `alter_accepted`."""
    return Wrong(**{f.name: getattr(subject, f.name) for f in fields(Subject)}, origin=subject, **mistake)


@dataclass(frozen=True)
class Mutant:
    """A wrong subject, and its mistake in words."""

    mistake: str
    subject: Wrong

    @property
    def kind(self) -> str:
        """The kind of the change, "SDE" or "text"."""
        return "text" if self.subject.wrong is None else "SDE"

    def killed_by(self) -> tuple[str | None, float]:
        """The first layer that fails, deterministic ones first, else None, and the seconds until then."""
        started = time.perf_counter()
        layer = next((name for name in LAYERS if self.killing_time(name) is not None), None)
        return layer, time.perf_counter() - started

    def killing_time(self, layer: str) -> float | None:
        """The seconds in which a layer kills the mutant, else None; layers of formulas see no changed text."""
        if layer in OF_FORMULAS and self.subject.wrong is None:
            return None
        started = time.perf_counter()
        try:
            killed = any(not r.ok for r in LAYERS[layer](self.subject))
        except Exception:  # any error of a mutant counts as seen
            killed = True
        return time.perf_counter() - started if killed else None


def mutants(subject: Subject) -> Iterator[Mutant]:
    """All mutants of a subject: of its SDE, then of its text."""
    for mistake, wrong in wrong_recipes(subject.recipe):
        yield Mutant(mistake, with_mistake(subject, wrong=wrong))
    for mistake, change in wrong_texts(subject.live):
        yield Mutant(mistake, with_mistake(subject, alter=partial(altered, change=change)))


# ---- of the SDE

Mistake = tuple[str, Recipe]


def wrong_recipes(recipe: Recipe) -> Iterator[Mistake]:
    """Yields recipes whose drift or noise contradicts their formulas, with the mistake in words."""
    for i, b in enumerate(recipe.state):
        for mistake, *changes in _wrong_terms(recipe, i, b):
            yield mistake, _with(recipe, i, *changes)
    if any(recipe.D):
        for factor, amplitude in ((S.Half, "sqrt(D)"), (2, "sqrt(4 D)")):
            yield f"noise {amplitude} for sqrt(2 D)", _noisy(recipe, recipe.D * factor)
    mass = next((s for s in recipe.parameters if s.name == "m" and recipe.D.has(s)), None)
    if mass is None:
        return
    yield "noise without the mass", _noisy(recipe, recipe.D.xreplace({mass: S.One}))
    for i, b in enumerate(recipe.state):
        if b in recipe.thermostats and recipe.drift[i].has(mass):
            change = recipe.drift[i].xreplace({mass: S.One}) - recipe.drift[i]
            yield f"the thermostat {b} without the mass", _with(recipe, i, change, change)


def _wrong_terms(recipe, i, b):
    """Yields mistakes in Gamma, D grad H and Q grad H in a row of the drift, with their change at T = 1 and at T."""
    gamma = recipe.gamma[i]
    if gamma != 0:
        for factor, mistake in ((-1, "of the wrong sign"), (0, "dropped"), (S.Half, "halved")):
            yield f"Gamma[{b}] {mistake}", (factor - 1) * gamma, (factor - 1) * T * gamma
        yield f"Gamma[{b}] not scaled by T", S.Zero, (1 - T) * gamma
    friction = sum(_force(recipe, recipe.D, i, j) for j in range(len(recipe.state)))
    if friction != 0:
        yield f"the drift D grad H of {b} doubled", -friction, -friction
        yield f"the drift D grad H of {b} dropped", friction, friction
    for j, c in enumerate(recipe.state):
        force = _force(recipe, recipe.Q, i, j)
        if force != 0:
            yield f"Q[{b}, {c}] of the wrong sign in the drift of {b}", 2 * force, 2 * force


def _force(recipe, matrix, i, j):
    """The term of one entry (i, j) of D or Q in the drift of the i-th block, up to its sign."""
    if matrix[i, j] == 0:
        return S.Zero
    alone = zeros(*matrix.shape)
    alone[i, j] = matrix[i, j]
    return times_gradient(ImmutableMatrix(alone), recipe.H, recipe.state)[i]


def _with(recipe, row, at_1, at_T):
    """The recipe with a term added to a row of its drift, `at_1` at T = 1, `at_T` at T."""
    formulas = {}
    for name, change in (("drift", at_1), ("tempered_drift", at_T)):
        rows = getattr(recipe, name).as_mutable()
        rows[row] += change
        formulas[name] = rows.as_immutable()
    return with_derived(recipe, **formulas)


def _noisy(recipe, D):
    """The recipe with the noise of another D, and its old drift."""
    wrong = with_derived(recipe, **{name: getattr(recipe, name) for name in ("drift", "tempered_drift", "gamma")})
    object.__setattr__(wrong, "D", ImmutableMatrix(D))
    return wrong


def with_derived(recipe, **formulas):
    """A recipe whose derived formulas are replaced; its source says so, for equal recipes share a step."""
    wrong = replace(recipe, source=f"with {formulas}")
    wrong.__dict__.update(formulas)
    return wrong


# ---- of the text

SUBSTITUTIONS = {
    "e^+ for e^-": (r"exp\(-", "exp("),
    "a whole step for half a step": (r"\bh/2\b", "h"),
    "noise of half the variance": (r"sqrt\(2\*", "sqrt("),
    "no limit of a flow: phi1 = 1": (r"phi1\([^()]*\)", "1.0"),
    "the temperature forgotten": (r"\btemperature\b", "1.0"),
    "the mass forgotten": (r"(?<=[/*(])m\b", "m**0"),
    "a gradient that counts twice": (r"gradient\(theta\)", "2*gradient(theta)"),
    "a gradient from the start of the step": (r"gradient\(theta\)", 'gradient(state["theta"])'),
    "noise shared by the chains": (r'noise\["(\w+)"\]', r'noise["\1"][:1].expand_as(noise["\1"])'),
    "noise shared by the sites": (r'noise\["(\w+)"\]', r'noise["\1"][..., :1].expand_as(noise["\1"])'),
    "one draw used twice": (r'noise\["(\w+)2"\]', r'noise["\g<1>1"]'),
    "a total over the chains": (r"\.sum\(1\)", ".sum(1).mean().expand(len(x))"),
    "clamped at an end of a box": (r"\bfolded\(", "torch.clamp("),
    "a momentum that does not turn": (r"\*turned\(", "+0*turned("),
    "a term of the wrong sign": (r" \+ ", " - "),
    "another term of the wrong sign": (r" - ", " + "),
}


Change = tuple[str, str, int]  # a line, its replacement, the number among equal lines


def wrong_texts(step: Step) -> Iterator[tuple[str, Change]]:
    """Yields changes of a step's text, with the mistake in words."""
    text = step.source
    body = text.count("\n", 0, text.index('    """\n', text.index("\ndef step(")) + 8)
    moving = {b.name for b in step.recipe.entries}
    seen: Counter = Counter()
    for k, line in enumerate(text.split("\n")):
        seen[line] += 1
        inside = k >= body and not line.lstrip().startswith(("#", "return"))
        for mistake, (pattern, other) in SUBSTITUTIONS.items():
            if inside or mistake == "a total over the chains":
                for match in re.finditer(pattern, line):
                    changed = line[: match.start()] + match.expand(other) + line[match.end() :]
                    yield f"{mistake}: {line.strip()}", (line, changed, seen[line])
        motion = re.fullmatch(r"    (\w+) = (?!state|\1\.to|torch\.as_tensor).*", line)
        if inside and motion and motion[1] in moving:
            yield f"a motion left out: {line.strip()}", (line, "", seen[line])


def altered(step: Step, change: Change) -> Step:
    """The step with one line of its text changed; the step itself, such as a frozen one, without this line."""
    old, new, number = change
    lines = step.source.split("\n")
    places = [k for k, line in enumerate(lines) if line == old]
    if len(places) < number:
        return step
    lines[places[number - 1]] = new
    return with_source(step, "\n".join(lines))
