"""Unsound recipes, made from right ones, whose chains do not have the declared law.

Invariance does not show the fault: the Fokker-Planck residual is 0, except with frozen blocks. The law is improper, has
mass at a boundary, is not reached by the noise, or holds only at temperature 1, or only while all blocks move.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from certificates import learned
from sympy import Add, ImmutableMatrix, S, expand, log, sinh, sqrt, tanh, zeros

from recipe import Energy, Recipe, RecipeError, mapped, operator
from recipe.marginal import eliminate_gaussians
from recipe.symbols import scalar, total, vector
from samplers import sample
from samplers.testing.cases import case_of

KINDS = ("properness", "boundary", "reach", "temperature", "frozen blocks", "range", "jump", "curl", "tail")
MANY = 9  # sites of a heavy tail
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
    sites: int | None = None

    @cached_property
    def certificate(self):
        """The certificate of the recipe; None for a recipe that is refused at its declaration."""
        return self.certificate_at(self.temperature)

    def certificate_at(self, temperature):
        """The certificate at another temperature."""
        try:
            recipe = self.declare()
        except RecipeError:
            return None
        values = {s.name: self.values[s.name] for s in recipe.parameters if s.name in self.values}
        return recipe.check(temperature=temperature, freeze=self.freeze, sites=self.sites, **values)

    @property
    def is_seen(self):
        """Whether the certificate does not call the recipe exact on all of its domain."""
        certificate = self.certificate
        return (
            certificate is None or not certificate.exact or " on the range of the map " in certificate["claim"].answer
        )

    def killing_time(self, layer):
        """The seconds in which the layer "symbolic" finds the fault, else None; other layers are not run."""
        if layer != "symbolic":
            return None
        started = time.perf_counter()
        return time.perf_counter() - started if self.is_seen else None


def unsound_recipes(recipe):
    """Yields the unsound recipes that can be made from a right recipe.

    >>> from samplers import SGLD
    >>> [f"{one.kind}: {one.mistake}" for one in unsound_recipes(SGLD)][-1]
    'tail: U of a heavy tail of all sites'
    """
    values: dict[str, Any] = case_of(recipe).parameters
    for kind, changes in (
        ("properness", _improper(recipe)),
        ("boundary", _open_ends(recipe)),
        ("reach", _unreached(recipe)),
        ("reach", _divided(recipe, wrong=True)),
        ("range", _cut(recipe, wrong=True)),
        ("jump", _learned(recipe, wrong=True)),
        ("curl", _no_gradient(recipe)),
    ):
        for mistake, declare in changes:
            yield Unsound(kind, mistake, declare, values=values)
    for mistake, declare in _heavy(recipe, wrong=True):
        yield Unsound("tail", mistake, declare, values=values, sites=MANY)
    for mistake, declare in _of_one_temperature(recipe):
        yield Unsound("temperature", mistake, declare, temperature=ELSEWHERE, values=values)
    moving = [b for b in recipe.state if not b.domain.is_discrete]
    turned = [b for b in moving if any(recipe.Q[recipe.state.index(b), :])]
    for b in turned if len(moving) > 1 else []:
        yield Unsound("frozen blocks", f"{b} held still", lambda: recipe, freeze=(b.name,), values=values)


def sound_recipes(recipe):
    """Yields right neighbours of the unsound recipes: a hill for a wall, a smooth network for one that jumps.

    >>> from samplers import SGLD
    >>> [one.mistake for one in sound_recipes(SGLD)]
    ['theta = sinh(z)', 'the noise of theta by a network', 'U of a light tail of all sites']
    """
    values: dict[str, Any] = case_of(recipe).parameters
    for changes in (_divided, _cut, _learned, _heavy):
        for change, declare in changes(recipe, wrong=False):
            sites = MANY if changes is _heavy else None
            yield Unsound("none", change, declare, values=values, sites=sites)


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
    if recipe.adapt or recipe.jumps or recipe.potential is None:
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
    redrawn = {b for jump in recipe.jumps.values() for b in jump.redrawn}
    for b in recipe.targets:
        i = recipe.state.index(b)
        if recipe.D[i, i] != 0 and b.domain.is_real and not any(recipe.Q[i, :]):
            D = recipe.D.as_mutable()
            D[i, :] *= b
            D[:, i] *= b  # the entry of b alone twice
            yield f"the noise of {b} times {b}^2", partial(_changed, recipe, D=ImmutableMatrix(D))
        if recipe.D[i, i] == 0 and b not in redrawn:
            Q = recipe.Q.as_mutable()
            Q[i, :], Q[:, i] = zeros(1, Q.cols), zeros(Q.rows, 1)
            yield f"nothing moves {b}", partial(_changed, recipe, Q=ImmutableMatrix(Q))
    of_latents = {letter: jump for letter, jump in recipe.jumps.items() if {*jump.redrawn} & {*recipe.latents}}
    yield "no noise", partial(_changed, recipe, D={}, jumps=of_latents)


# ---- temperature


def _of_one_temperature(recipe):
    """Yields recipes with a mass of theta for normal momenta, and log mass in H not multiplied by the temperature."""
    if recipe.adapt or recipe.latents or recipe.maps or not recipe.target_is_vector or recipe.potential is None:
        return
    (theta,) = recipe.targets
    gaussians, _ = eliminate_gaussians(recipe.H, recipe.momenta)
    for p in (g.block for g in gaussians if g.block.is_vector):
        mass = 1 + theta**2
        H = recipe.H.xreplace({p: p / sqrt(mass)}) + total(log(mass)) / 2
        yield f"a mass of {theta} for {p}, its log not times T", partial(_changed, recipe, H=H)


# ---- newer features: walls, singular operators, maps, networks, gradients of a run, tails of all sites


def _divided(recipe, wrong):
    """Yields recipes with a wall at 0, or a hill, in the energy of a momentum, and noise by a singular operator."""
    for b in recipe.momenta:
        others = {*recipe.state} - {b}
        if b.domain.is_real and not recipe.jumps and not recipe.H.diff(b).has(*others):
            hill = 1 / b**2 if wrong else 1 / (1 + b**2)
            own = total(hill) if b.is_vector else hill
            name = "a wall at 0" if wrong else "a hill at 0"
            yield f"{name} in the energy of {b}", partial(_changed, recipe, H=recipe.H + own, adapt=recipe.adapt)
    for b in recipe.targets if wrong else ():
        i = recipe.state.index(b)
        is_alone = len(recipe.state) == 1 and b.is_vector and b.domain.is_real and not (recipe.adapt or any(recipe.Q))
        if is_alone and not recipe.D[i, i].has(b):
            D = ImmutableMatrix([[operator("singular", kind="semidefinite")]])
            yield f"the noise of {b} by a singular operator", partial(_changed, recipe, D=D)


def _cut(recipe, wrong):
    """Yields recipes in coordinates of a target whose map covers a part of the reals, or all."""
    if (
        len(recipe.targets) == 1
        and recipe.targets[0].domain.is_real
        and not (recipe.maps or recipe.jumps or recipe.fields)
    ):
        (b,) = recipe.targets
        z = (vector if b.is_vector else scalar)("z")
        by = tanh if wrong else sinh
        yield f"{b} = {by.__name__}(z)", lambda: mapped(_changed(recipe), **{b.name: z}, by=by)


def _learned(recipe, wrong):
    """Yields recipes with noise of a block multiplied by a network, with a threshold or without."""
    layer = torch.nn.Threshold(0.1, 2.0) if wrong else torch.nn.Tanh()
    for i, b in enumerate(recipe.state):
        if recipe.D[i, i] != 0 and b.domain.is_real and not recipe.operators:
            D = recipe.D.as_mutable()
            D[i, i] += learned(layer)(b)
            name = "a network with a threshold" if wrong else "a network"
            yield f"the noise of {b} by {name}", partial(_changed, recipe, D=ImmutableMatrix(D))


def _no_gradient(recipe):
    """Yields runs with a gradient of two sites that is the slope of no energy."""
    case = case_of(recipe)
    if not recipe.target_is_vector or not recipe.targets[0].domain.is_real or recipe.has_several_potentials:
        return
    if recipe.potential is None or recipe.has_copies or recipe.maps:
        return

    def declare():
        A = np.array([[1.0, 2.0], [0.0, 1.0]])
        run = {"steps": 1, "chains": 2, "step_size": 1e-3, "progress": False, "init": torch.zeros(2)}
        sample(recipe, gradient=lambda theta: A @ theta, **run, **case.parameters)
        return recipe

    yield "a gradient with a curl", declare


def _heavy(recipe, wrong):
    """Yields recipes bound to an energy of the sum of the squares of all sites, of a tail too heavy for them or not."""
    if recipe.target_is_vector and recipe.targets[0].domain.is_real and recipe.potential is not None:
        if len(recipe.potentials) == 1 and not (recipe.adapt or recipe.has_other_energy) and not recipe.operators:
            (b,) = recipe.targets
            movers = [recipe.state.index(x) for x in recipe.momenta or recipe.targets]
            if not wrong and not all(recipe.D[i, i].is_positive for i in movers):
                return  # under a round U noise elsewhere leaves a plane
            U = (MANY if not wrong else 3) * log(1 + total(b**2))
            kind = "heavy" if wrong else "light"
            yield f"U of a {kind} tail of all sites", lambda: recipe.bind(U=lambda theta: U)
