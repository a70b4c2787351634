"""Unsound recipes, made from right ones, whose chains do not have the declared law.

Invariance does not show the fault: the Fokker-Planck residual is 0, except with frozen blocks. The law is improper, has
mass at a boundary, is not reached by the noise, or holds only at temperature 1, or only while all blocks move.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from sympy import Add, ImmutableMatrix, S, expand, log, sqrt, zeros

from recipe import Energy, Recipe, RecipeError
from recipe.marginal import eliminate_gaussians
from recipe.symbols import scalar, total, vector
from samplers.testing.cases import case_of

KINDS = ("properness", "boundary", "reach", "temperature", "frozen blocks")
ELSEWHERE = 3.0  # the temperature at which a law of temperature 1 is checked

Change = tuple[str, Callable[[], Recipe]]  # the mistake in words, and the recipe


@dataclass(frozen=True)
class Unsound:
    """A recipe whose chains, at a temperature and with blocks `freeze` held still, have another law than declared."""

    kind: str
    mistake: str
    declare: Callable[[], Recipe]
    temperature: float = 1.0
    freeze: tuple[str, ...] = ()
    values: dict[str, float] = field(default_factory=dict)

    def certificate(self, temperature=None):
        """The certificate of the recipe; None for a recipe that is refused at its declaration."""
        try:
            recipe = self.declare()
        except RecipeError:
            return None
        values = {s.name: self.values[s.name] for s in recipe.parameters if s.name in self.values}
        return recipe.check(temperature=temperature or self.temperature, freeze=self.freeze, **values)

    def killing_time(self, layer):
        """The seconds in which the layer "symbolic" finds the fault, else None; other layers are not run."""
        if layer != "symbolic":
            return None
        started = time.perf_counter()
        certificate = self.certificate()
        return None if certificate is not None and certificate.exact else time.perf_counter() - started


def unsound_recipes(recipe):
    """Yields the unsound recipes that can be made from a right recipe.

    >>> from samplers import SGLD
    >>> [f"{one.kind}: {one.mistake}" for one in unsound_recipes(SGLD)][-1]
    'reach: no noise'
    """
    values: dict[str, Any] = case_of(recipe).parameters
    for kind, changes in (
        ("properness", _improper(recipe)),
        ("boundary", _open_ends(recipe)),
        ("reach", _unreached(recipe)),
    ):
        for mistake, declare in changes:
            yield Unsound(kind, mistake, declare, values=values)
    for mistake, declare in _of_one_temperature(recipe):
        yield Unsound("temperature", mistake, declare, temperature=ELSEWHERE, values=values)
    moving = [b for b in recipe.state if not b.domain.is_discrete]
    for b in moving if len(moving) > 1 else []:
        yield Unsound("frozen blocks", f"{b} held still", lambda: recipe, freeze=(b.name,), values=values)


def _changed(recipe, **changes):
    """The recipe with other formulas, without the words and budgets of the old formulas."""
    plain: dict[str, Any] = {"pieces": {}, "scheme": None, "schemes": {}, "supplied": {}, "conversions": {}}
    return replace(recipe, **(plain | changes))


# ---- properness


def _improper(recipe):
    """Yields recipes with the wrong sign of the energy of an auxiliary block, or of the target."""
    terms = Add.make_args(expand(recipe.H))
    for b in recipe.momenta + recipe.thermostats:
        own = Add(*(t for t in terms if t.has(b)))
        yield f"the energy of {b} of the wrong sign", partial(_changed, recipe, H=recipe.H - 2 * own)
    if any(b.domain.is_compact for b in recipe.targets):
        return
    if recipe.potential is None:
        yield "H of the wrong sign", partial(_changed, recipe, H=-recipe.H)
        return
    concave = Add(*(-(b**4) / 4 for b in recipe.targets))
    U = Energy(recipe.targets, U=total(concave) if recipe.target_is_vector else concave)
    yield "a concave U", lambda: recipe.bind(U=U)


# ---- boundary


def _open_ends(recipe):
    """Yields recipes with noise that does not vanish at the end of the target's domain."""
    if recipe.adapt or recipe.jumps:
        return
    for b in recipe.targets:
        i = recipe.state.index(b)
        if b.domain.is_real:
            yield f"{b} on a half line", partial(_on_a_half_line, recipe, b)
        elif recipe.D[i, i].has(b) and not b.domain.reflects:
            D = recipe.D.as_mutable()
            D[i, i] = S.One
            yield f"constant noise at the end of {b}", partial(_changed, recipe, D=ImmutableMatrix(D))


def _on_a_half_line(recipe, b):
    half = (vector if b.is_vector else scalar)(b.name, domain="positive")

    def there(e):
        return e.xreplace({b: half})

    return _changed(
        recipe,
        state=tuple(map(there, recipe.state)),
        target=tuple(map(there, recipe.targets)) if len(recipe.targets) > 1 else there(recipe.targets[0]),
        H=there(recipe.H),
        D=recipe.D.applyfunc(there),
        Q=recipe.Q.applyfunc(there),
        marginal=None if recipe.marginal is None else there(recipe.marginal),
    )


# ---- reach


def _unreached(recipe):
    """Yields recipes with noise that vanishes at 0, with a target that nothing moves, and without noise."""
    for b in recipe.targets:
        i = recipe.state.index(b)
        if recipe.D[i, i] != 0 and b.domain.is_real and not any(recipe.Q[i, :]):
            D = recipe.D.as_mutable()
            D[i, :] *= b
            D[:, i] *= b  # the entry of b alone twice
            yield f"the noise of {b} times {b}^2", partial(_changed, recipe, D=ImmutableMatrix(D))
        if recipe.D[i, i] == 0:
            Q = recipe.Q.as_mutable()
            Q[i, :], Q[:, i] = zeros(1, Q.cols), zeros(Q.rows, 1)
            yield f"nothing moves {b}", partial(_changed, recipe, Q=ImmutableMatrix(Q))
    of_latents = {letter: jump for letter, jump in recipe.jumps.items() if {*jump.redrawn} & {*recipe.latents}}
    yield "no noise", partial(_changed, recipe, D={}, jumps=of_latents)


# ---- temperature


def _of_one_temperature(recipe):
    """Yields recipes with a mass of theta for normal momenta, and log mass in H not multiplied by the temperature."""
    if recipe.adapt or recipe.latents or not recipe.target_is_vector:
        return
    (theta,) = recipe.targets
    gaussians, _ = eliminate_gaussians(recipe.H, recipe.momenta)
    for p in (g.block for g in gaussians if g.block.is_vector):
        mass = 1 + theta**2
        H = recipe.H.xreplace({p: p / sqrt(mass)}) + total(log(mass)) / 2
        yield f"a mass of {theta} for {p}, its log not times T", partial(_changed, recipe, H=H)
