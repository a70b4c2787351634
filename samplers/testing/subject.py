"""The subject of the layers of checks: a step, the recipe whose law the step should have, and that law.

The law is exp(-H/T) with U a quartic or a double well, at a temperature, masses and frictions away from 1. Adapted
quantities are frozen, and gradients have noise of the variance that the recipe's budget states.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import sympy
import torch
from sympy.core.function import AppliedUndef

import integrators
from integrators.step import Step
from recipe import Certificate, Energy, Recipe, RecipeError
from recipe.algebra import at_one_site
from recipe.errors import did_you_mean
from recipe.symbols import Block, Partial, Potential, num_data, step_number, step_size
from recipe.symbols import temperature as T

from ..stock import named
from .arguments import NUM_DATA, TEMPERATURE
from .cases import Case, case_of
from .interpreter import evaluate
from .laws import Law, Laws
from .sites import Sites, sites_of

Points = dict[Block, np.ndarray]

FROZEN_AT = {"positive": 0.9, "nonnegative": 0.7, "fraction": 0.4, "real": 0.35}
DRAW_NODES, GRADIENT_NODES, MOST_POINTS = 4, 3, 2_000_000  # of a quadrature over state and noise

x, y = sympy.symbols("x y", real=True)
ENERGIES = {
    "quartic": Energy(x, U=x**4 / 4 + x**2 / 2 - 2 * x / 5),
    "double well": Energy(x, U=(x**2 - 1) ** 2 + x / 5),
}
# of an angle from -pi to pi; a box is scaled to the width 2 pi
OF_AN_ANGLE = {
    "quartic": -sympy.cos(x - sympy.Rational(2, 5)),
    "double well": sympy.cos(2 * x) + sympy.sin(x - sympy.Rational(1, 3)) / 2,
}
BANANA = {"banana": Energy((x, y), U=3 * x**2 / 2 + (y - x**2 / 3) ** 2)}
_TORCH = {name: getattr(torch, name) for name in ("exp", "log", "sin", "cos", "tanh", "sqrt", "sinh", "cosh")}


def unaltered(step: Step) -> Step:
    """Returns the step unchanged."""
    return step


@dataclass(frozen=True, eq=False)
class Subject:
    """A step to be checked, and the recipe whose law it should have.

    `energies`, by name: of one coordinate, summed over the target's coordinates, or of all of them. Mutants have a
    recipe `wrong`, compiled in place of the right one, or functions that change the compiled step, `alter`, and the
    accept-reject step, `alter_accepted`; `origin` is the right subject of a mutant. `chains` and `seed` are for runs
    from a stationary start.
    """

    case: Case
    scheme: Any = None
    pieces: Mapping | None = None
    energies: Mapping[str, Energy] = field(default_factory=lambda: ENERGIES)
    wrong: Recipe | None = None
    alter: Callable[[Step], Step] = unaltered
    alter_accepted: Callable[[Step], Step] = unaltered
    chains: int = 20_000
    seed: int = 0
    backend: str = "torch"
    origin: "Subject | None" = field(default=None, repr=False)

    @property
    def recipe(self) -> Recipe:
        """The recipe whose law the step should have."""
        return self.case.recipe

    @cached_property
    def right(self) -> "Subject":
        """The subject without its mistake, shared by all mutants of a subject."""
        if self.wrong is None and self.alter is self.alter_accepted is unaltered:
            return self
        return self.origin or replace(self, wrong=None, alter=unaltered, alter_accepted=unaltered)

    def mutant(
        self,
        *,
        wrong: Recipe | None = None,
        alter: Callable[[Step], Step] = unaltered,
        alter_accepted: Callable[[Step], Step] = unaltered,
    ) -> "Subject":
        """The subject with a mistake."""
        return replace(self, wrong=wrong, alter=alter, alter_accepted=alter_accepted, origin=self)

    @cached_property
    def certificate(self) -> Certificate:
        """The certificate of the discretised SDE, at the given values of parameters."""
        sde = self.wrong or self.recipe
        known = {s.name for s in sde.parameters}
        values: dict[str, Any] = {name: x for name, x in self.case.values.items() if name in known}
        return sde.check(**values)

    # ---- the compiled step

    def step(self, *, frozen: bool) -> Step:
        """The step, with adapted quantities frozen or adapting."""
        if self.wrong is None and self.right is not self:
            return self.alter(self.right.still if frozen else self.right.live)
        noisy = frozen and any(self.recipe.supplied)  # a gradient that is carried over would carry its noise
        step = integrators.compile(
            self.wrong or self.recipe,
            self.scheme,
            pieces=self.pieces,
            freeze=[a.name for a in self.recipe.adapted] if frozen else (),
            backend=self.backend,
            reuse_gradient=not noisy,
        )
        return self.alter(step)

    @cached_property
    def live(self) -> Step:
        """The step with adapting quantities."""
        return self.step(frozen=False)

    @cached_property
    def still(self) -> Step:
        """The step with frozen adapted quantities."""
        return self.step(frozen=True)

    # ---- numbers

    @cached_property
    def constants(self) -> dict[str, float]:
        """The frozen values of adapted quantities, by name."""
        return {a.name: FROZEN_AT[a.domain.name] + 0.3 * i for i, a in enumerate(self.recipe.adapted)}

    @cached_property
    def numbers(self) -> dict[Any, float]:
        """The number of each parameter, adapted quantity, T, num_data and step_number, by symbol."""
        values = {s: self.case.parameters[s.name] for s in self.recipe.parameters}
        values |= {a: self.constants[a.name] for a in self.recipe.adapted}
        return {**values, T: TEMPERATURE, num_data: NUM_DATA, step_number: 0}

    @property
    def values(self) -> dict[Any, float]:
        """The number of each symbol but blocks: `numbers`, and the step size."""
        return {**self.numbers, step_size: self.case.step_size or 0.01}

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of the step beside state, gradient and noise."""
        settings: dict[str, Any] = {"temperature": TEMPERATURE, **self.case.parameters}
        if self.still.program.reads(num_data):
            settings["num_data"] = NUM_DATA
        return settings

    # ---- the law

    @cached_property
    def sites(self) -> Sites:
        """The coordinates of the law: of one site, or of several where sites are coupled."""
        return Sites(self.recipe.state, sites_of(self.recipe))

    @cached_property
    def stationary(self) -> Laws:
        """exp(-H/T) for every energy of the target."""
        return (
            self.right.stationary if self.right is not self else Laws(self.recipe, self.sites, TEMPERATURE, self.values)
        )

    @cached_property
    def laws(self) -> dict[str, Law]:
        """exp(-H/T) as points and weights, by name of the energy."""
        if self.right is not self:
            return self.right.laws
        return {name: self.stationary.law(self.energy(name), self.noise_points) for name in self.energies}

    @cached_property
    def unresolved(self) -> str:
        """The reason why there is no law to compare with; "" if there is one."""
        try:
            _ = self.laws
        except RecipeError as error:
            return f"{error.where}: {error.what}; give energy= or values of parameters for which it has them all"
        return ""

    @cached_property
    def out_of_reach(self) -> str:
        """The reason why chains cannot be compared with the law; "" if they can."""
        if self.case.step_size is not None:
            return "its parameters imply a step size, so that there is no limit h -> 0"
        return self.unresolved

    def is_by_quadrature(self, name: str) -> bool:
        """Whether state and noise of one step are integrated over by quadrature, and not drawn."""
        law = self.laws[name]
        program = self.still.program
        several = self.sites.number > 1
        if law.drawn or several and (any(self.recipe.supplied) or any(d.kind != "normal" for d in program.draws)):
            return False
        return len(law.weights) * self.noise_points <= MOST_POINTS

    @property
    def first_energy(self) -> str:
        """The name of the first energy, which every layer takes."""
        return next(iter(self.energies))

    @property
    def noise_points(self) -> int:
        """The points of the quadrature over the random numbers of one step."""
        points = [
            {"uniform": 2, "poisson": 100}.get(d.kind, DRAW_NODES) ** (self.sites.number if d.is_vector else 1)
            for d in self.still.program.draws
        ]
        noisy = self.still.program.gradients_per_step if any(self.recipe.supplied) else 0
        return prod(points) * GRADIENT_NODES**noisy

    def energy(self, name: str) -> Any:
        """U of the target blocks, a formula."""
        U = self.energies[name]
        blocks = self.recipe.targets
        return U.on(blocks) if len(U.coordinates) > 1 else sum(U.on((b,)) for b in blocks)

    # ---- gradients

    def derivative(self, name: str, order: int) -> Callable[[Any], Any]:
        """The derivatives of U by each coordinate, of tensors or of dicts by block."""
        U = self.energy(name)
        blocks = self.recipe.targets
        by_block = {b.name: sympy.lambdify(blocks, sympy.diff(U, b, order), [_TORCH, "math"]) for b in blocks}

        def at(theta):
            if not isinstance(theta, dict):
                return by_block[blocks[0].name](theta)
            return {name: f(*(theta[b.name] for b in blocks)) for name, f in by_block.items()}

        return at

    def value(self, name: str) -> Callable[[Any], Any]:
        """U of all chains, `(chains,)`, as a function of tensors or of dicts by block."""
        blocks = self.recipe.targets
        of_site = sympy.lambdify(blocks, self.energy(name), [_TORCH, "math"])

        def at(theta):
            coordinates = [theta[b.name] for b in blocks] if isinstance(theta, dict) else [theta]
            values = of_site(*coordinates)
            return values.reshape(len(values), -1).sum(1)

        return at

    def curvature(self, name: str) -> dict[str, Any]:
        """The curvature of U, as an argument of a step that asks for it."""
        return {"curvature": self.derivative(name, 2)} if self.still.program.needs_curvature else {}

    def gradient_variance(self, h: float, points: Points) -> Any:
        """The variance of gradients that meet the budget S, 2 S m/(h c^2), for m gradients in a step with factor c."""
        if not any(self.recipe.supplied):
            return 0.0
        budget, factor = self._budget_and_factor
        at = {**self.numbers, step_size: h, **points}
        shape = np.shape(next(iter(points.values())))
        budget, factor = evaluate(budget, at, shape), evaluate(factor, at, shape)
        return 2 * self.still.program.gradients_per_step * budget / (h * factor**2)

    @cached_property
    def _budget_and_factor(self) -> tuple[sympy.Expr, sympy.Expr]:
        """S and c of the first block whose gradients are noisy."""
        row = next(i for i in range(len(self.recipe.state)) if self.recipe.supplied[i, i] != 0)
        drift = self.recipe.drift[row]
        g = sympy.Dummy()
        (slope,) = drift.atoms(Partial)
        return self.recipe.supplied[row, row], sympy.diff(drift.xreplace({slope: g}), g)


# ---- the subject of a recipe


def subject_of(
    recipe: Recipe | Step | str,
    scheme: Any = None,
    *,
    pieces: Mapping | None = None,
    energy: Energy | None = None,
    values: Mapping[str, float] | None = None,
    backend: str = "torch",
) -> Subject:
    """The subject of a recipe and a word, with the open functions of a stock recipe bound.

    The arguments are those of `check`, with `values` as one mapping. Raises RecipeError for anything but a recipe, an
    unknown parameter, or an energy of several sites.

    >>> from samplers import SGLD
    >>> print(subject_of(SGLD).still.scheme)
    Euler
    """
    if isinstance(recipe, str):
        recipe = named(recipe, "check")
    if isinstance(recipe, Step) and scheme is pieces is None:
        step = recipe
        recipe = step.declared
        scheme = step.scheme
        pieces = step.pieces
        backend = step.backend
    if not isinstance(recipe, Recipe):
        what = f"expected a Recipe, or a Step without scheme= and pieces=, got {type(recipe).__name__}"
        raise RecipeError("check", what, do="Pass recipe.Recipe(...).")
    subject = Subject(_case(recipe, values or {}), scheme, pieces, _energies(energy, recipe), backend=backend)
    if not is_open(subject.recipe) and not subject.recipe.fields:
        subject.live.check(subject.case.step_size or 0.05, **subject.case.parameters)
    return subject


def _case(recipe, values):
    """The case of a recipe, with given values of parameters; RecipeError for an unknown one."""
    case = case_of(recipe)
    if case.recipe is not recipe and not is_open(recipe):
        case = replace(case, recipe=recipe)
    for name in values:
        if name not in case.parameters:
            do = did_you_mean(name, case.parameters)
            raise RecipeError(f"{recipe.name}, check", f"'{name}' is not a parameter", do=do)
    return replace(case, values={**case.values, **values})


def _energies(energy, recipe):
    """The energies by name that a recipe is checked with: the caller's, or by default all that fit."""
    if energy is not None:
        return {"energy": _of_a_site(energy, recipe)}
    if recipe.potential is None:
        return {"its own": ENERGIES["quartic"]}
    if any(b.domain.is_compact for b in recipe.targets):
        return _between_ends(recipe.targets)
    return ENERGIES | BANANA if len(recipe.targets) == 2 else ENERGIES


def _between_ends(blocks):
    """Energies of one and of two wells, for targets with angles or boxes among them."""
    plain = sympy.symbols(f"x:{len(blocks)}", real=True)
    energies = {}
    for name, new in (("quartic", "one well"), ("double well", "two wells")):
        terms = []
        for z, b in zip(plain, blocks):
            middle = (b.domain.low + b.domain.high) / 2
            width = b.domain.width
            angle = 2 * sympy.pi * (z - middle) / width
            terms.append(OF_AN_ANGLE[name].subs(x, angle) if b.domain.is_compact else ENERGIES[name].U.subs(x, z))
        energies[new] = Energy(plain, U=sympy.Add(*terms))
    return energies


def _of_a_site(energy, recipe):
    """An energy as a formula of plain coordinates; RecipeError unless it has one, or as many as the target's blocks."""
    if not isinstance(energy, Energy) or len(energy.coordinates) not in (1, len(recipe.targets)):
        raise RecipeError(
            f"{recipe.name}, check, energy",
            f"it is an Energy of one coordinate, got {energy!r}",
            do="Write Energy(x, U=...): the checks integrate over one site.",
        )
    plain = sympy.symbols(f"x:{len(energy.coordinates)}", real=True)
    return Energy(plain, U=at_one_site(energy.U).xreplace(dict(zip(energy.coordinates, plain))))


def is_open(recipe: Recipe) -> bool:
    """Whether a function other than U is opaque."""
    return any(e.atoms(AppliedUndef) - e.atoms(Potential) for e in (recipe.H, *recipe.D, *recipe.Q))
