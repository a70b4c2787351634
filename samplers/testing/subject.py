"""The subject of the layers of checks: a step, the recipe whose law the step should have, and that law.

The law is exp(-H/T) with U of one well or of two, at a temperature, masses and frictions away from 1. Adapted
quantities are frozen, and gradients have noise of the variance that the recipe's budget states.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import sympy
from sympy.core.function import AppliedUndef

import integrators
from integrators.compiler import word_of
from integrators.program import DERIVATIVES
from integrators.step import Step
from recipe import Certificate, Energy, Recipe, RecipeError
from recipe.algebra import at_one_site
from recipe.arguments import check_names
from recipe.scheme import EULER, all_letters
from recipe.sites import Sites
from recipe.symbols import Block, Partial, Potential, Total, is_site, masked, num_data, step_number, step_size, total
from recipe.symbols import temperature as T

from ..stock import recipe_of
from .canonical import CanonicalLaw
from .cases import Example, case_of
from .densities import WELLS, wells
from .interpreter import evaluate
from .random_calls import NUM_DATA, TEMPERATURE, derivatives

Points = dict[Block, np.ndarray]
Energies = dict[Potential, sympy.Expr]  # of one site

FROZEN_AT = {"positive": 0.9, "nonnegative": 0.7, "fraction": 0.4, "real": 0.35}
SEVERAL = 3  # sites of a recipe whose sites are coupled
DRAW_NODES, GRADIENT_NODES, MOST_POINTS = 4, 3, 2_000_000  # of a quadrature over state and noise


@dataclass(frozen=True, eq=False)
class Subject:
    """A step to be checked, and the recipe whose law it should have.

    `energy`: of one coordinate, summed over the target's coordinates, or of all of them, or such energies by the names
    of potentials; by default there are several. `chains` and `seed` are for runs from a stationary start. A subject
    with a mistake is compared with its `right` one.
    """

    case: Example
    scheme: Any = None
    pieces: Mapping | None = None
    energy: Energy | Mapping[str, Energy] | None = None
    chains: int = 20_000
    seed: int = 0
    backend: str = "torch"

    @property
    def recipe(self) -> Recipe:
        """The recipe whose law the step should have."""
        return self.case.recipe

    @property
    def right(self) -> "Subject":
        """The subject without a mistake: this one."""
        return self

    @property
    def sde(self) -> Recipe:
        """The recipe whose SDE the step discretises."""
        return self.recipe

    @cached_property
    def certificate(self) -> Certificate:
        """The certificate of the discretised SDE, at the given values of parameters."""
        known = {s.name for s in self.sde.parameters}
        values: dict[str, Any] = {name: x for name, x in self.case.values.items() if name in known}
        return self.sde.check(**values)

    # ---- the compiled step

    def step(self, *, frozen: bool) -> Step:
        """The step, with adapted quantities frozen or adapting; of a recipe that proposes, the accept-reject step."""
        freeze = [a.name for a in self.recipe.adapted] if frozen else ()
        if self.recipe.proposals:
            return integrators.metropolised(
                self.recipe, self.scheme, pieces=self.pieces, freeze=freeze, backend=self.backend
            )
        noisy = frozen and any(self.recipe.supplied)  # a gradient that is carried over would carry its noise
        return integrators.compile(
            self.sde,
            " ".join([EULER, *self.recipe.jumps]) if self.leaves_out else self.scheme,
            pieces=self.pieces,
            freeze=freeze,
            backend=self.backend,
            reuse_gradient=not noisy,
        )

    @cached_property
    def leaves_out(self) -> bool:
        """Whether the word leaves out letters, so that only its accepted steps have the law."""
        if not self.recipe.accepted:
            return False
        word = word_of(self.recipe, self.scheme, all_letters(self.recipe, self.pieces))
        return not {*self.recipe.accepted} <= {*word.letters}

    @cached_property
    def live(self) -> Step:
        """The step with adapting quantities."""
        return self.step(frozen=False)

    @cached_property
    def still(self) -> Step:
        """The step with frozen adapted quantities."""
        return self.step(frozen=True)

    @cached_property
    def accepted(self) -> Step | str:
        """The accept-reject step with frozen adapted quantities; as text, the reason where there is none."""
        frozen = [a.name for a in self.recipe.adapted]
        try:
            return integrators.metropolised(self.recipe, self.scheme, pieces=self.pieces, freeze=frozen)
        except RecipeError as error:
            return f"there is no work: {error.what}"

    # ---- numbers

    @cached_property
    def constants(self) -> dict[str, float]:
        """The frozen values of adapted quantities, by name."""
        return {a.name: FROZEN_AT[a.domain.name] + 0.3 * i for i, a in enumerate(self.recipe.adapted)}

    @cached_property
    def numbers(self) -> dict[Any, float]:
        """The number of each symbol but blocks: of parameters, of adapted quantities, and of the step."""
        values = {s: self.case.parameters[s.name] for s in self.recipe.parameters}
        values |= {a: self.constants[a.name] for a in self.recipe.adapted}
        h = self.case.step_size or 0.01
        return {**values, T: TEMPERATURE, num_data: NUM_DATA, step_number: 0, step_size: h}

    def settings(self, step: Step) -> dict[str, Any]:
        """The numbers that a step takes as arguments, by name."""
        values = {name: x for name, x in self.case.parameters.items() if name in step.parameters}
        return values | {"temperature": TEMPERATURE} | ({"num_data": NUM_DATA} if step.program.reads(num_data) else {})

    def arguments(self, energy: str, step: Step | None = None) -> dict[str, Any]:
        """Arguments of the frozen step, or of a given one, beside state and noise: derivatives of U, and numbers."""
        step = step or self.still
        if self.recipe.potential is None:
            return self.settings(step)
        program = step.program
        needs = {"gradient": True, "curvature": program.needs_curvature, "value": program.needs_value}
        functions = {name: self.derivatives[energy][name] for name, is_read in needs.items() if is_read}
        return self.settings(step) | functions

    @cached_property
    def derivatives(self) -> dict[str, dict[str, Any]]:
        """U of all chains and its derivatives, or dicts of them by potential, by name of the energy."""
        return {name: self._derivatives_of(energies) for name, energies in self.energies.items()}

    def _derivatives_of(self, energies):
        by_key = {U.key: derivatives(total(V) if is_site(V) else V, U.blocks) for U, V in energies.items()}
        if not self.recipe.is_by_name:
            return by_key["U"]
        return {order: {key: by_order[order] for key, by_order in by_key.items()} for order in DERIVATIVES.values()}

    # ---- the law

    @cached_property
    def energies(self) -> dict[str, Energies]:
        """Each potential as a formula of its blocks at one site, by name: the caller's, or by default all that fit."""
        potentials = self.recipe.potentials
        if self.energy is not None:
            return {"energy": _of_a_site(self.energy, self.recipe)}
        if not potentials:
            return {"its own": {}}
        keys = list(dict.fromkeys(U.key for U in potentials))  # energies of several names differ by their share
        shares = {U: sympy.Rational(1, keys.index(U.key) + 1) for U in potentials}
        compact = any(b.domain.is_compact for b in self.recipe.targets)
        names = zip(("one well", "two wells") if compact else WELLS, WELLS)
        energies = {name: {U: k * wells(U.blocks, well) for U, k in shares.items()} for name, well in names}
        if len(keys) == 1 and len(potentials[0].blocks) == 2 and not compact:
            x, y = potentials[0].blocks
            energies["banana"] = {potentials[0]: 3 * x**2 / 2 + (y - x**2 / 3) ** 2}
        return energies

    @cached_property
    def sites(self) -> Sites:
        """The coordinates of the law: of one site, or of several where sites are coupled."""
        return Sites(self.recipe.state, sites_of(self.recipe))

    @cached_property
    def laws(self) -> dict[str, CanonicalLaw]:
        """exp(-H/T), by name of the energy."""
        settings = TEMPERATURE, self.numbers, self.noise_points
        return {name: CanonicalLaw(self.recipe, self.sites, U, *settings) for name, U in self.energies.items()}

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
        if any(self.recipe.supplied) and self.recipe.has_several_potentials:
            return "the noise that gradients supply is that of one potential"
        if self.case.step_size is not None:
            return "its parameters imply a step size, so that there is no limit h -> 0"
        return self.unresolved

    def is_by_quadrature(self, name: str) -> bool:
        """Whether state and noise of one step are integrated over by quadrature, and not drawn."""
        law = self.laws[name]
        program = self.still.program
        has_sites = self.sites.number > 1
        if law.drawn or has_sites and (any(self.recipe.supplied) or any(d.kind != "normal" for d in program.draws)):
            return False
        return len(law.weighted[1]) * self.noise_points <= MOST_POINTS

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
    def _budget_and_factor(self):
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
    energy: Energy | Mapping[str, Energy] | None = None,
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
        recipe = recipe_of(recipe, "check")
    if isinstance(recipe, Step) and scheme is pieces is None:
        step = recipe
        recipe, scheme, pieces, backend = step.declared, step.scheme, step.pieces, step.backend
    if not isinstance(recipe, Recipe):
        what = f"expected a Recipe, or a Step without scheme= and pieces=, got {type(recipe).__name__}"
        raise RecipeError("check", what, do="Pass recipe.Recipe(...).")
    subject = Subject(_case(recipe, values or {}), scheme, pieces, energy, backend=backend)
    _ = subject.energies  # raises RecipeError for an energy of several sites
    if not is_open(subject.recipe) and not subject.recipe.fields:
        subject.live.check(subject.case.step_size or 0.05, **subject.case.parameters)
    return subject


def _case(recipe, values):
    """The case of a recipe, with given values of parameters; RecipeError for an unknown one."""
    case = case_of(recipe)
    if case.recipe is not recipe and not is_open(recipe):
        case = replace(case, recipe=recipe)
    check_names(f"{recipe.name}, check", values, case.parameters)
    return replace(case, values={**case.values, **values})


def _of_a_site(energy, recipe):
    """The potentials as formulas of their blocks, of an Energy or, where they have names, of a dict of them by name.

    RecipeError unless an energy has one coordinate, or one for each block of its potential.
    """
    where = f"{recipe.name}, check, energy"
    by_key = energy if recipe.is_by_name else {"U": energy}
    keys = {U.key for U in recipe.potentials}
    if recipe.is_by_name and not (isinstance(energy, Mapping) and energy.keys() == keys):
        do = f"Write {{{', '.join(f'{key!r}: Energy(x, U=...)' for key in sorted(keys))}}}."
        raise RecipeError(where, f"it is a dict by potential, got {energy!r}", do=do)
    return {U: _on(by_key[U.key], U.blocks, where) for U in recipe.potentials}


def _on(energy, blocks, where):
    """An energy as a formula of blocks at one site, a sum over them where it has one coordinate."""
    if not isinstance(energy, Energy) or len(energy.coordinates) not in (1, len(blocks)):
        what = f"it is an Energy of one coordinate, got {energy!r}"
        raise RecipeError(where, what, do="Write Energy(x, U=...): the checks integrate over one site.")
    U = at_one_site(energy.U)
    if len(energy.coordinates) > 1:
        return U.xreplace(dict(zip(energy.coordinates, blocks)))
    return sympy.Add(*(U.xreplace({energy.coordinates[0]: b}) for b in blocks))


def sites_of(recipe: Recipe) -> int:
    """The number of sites that a check of a recipe needs: several where D, Q or H has a mean field, else 1.

    The value of U is a sum over sites.

    >>> from samplers import SGNHT
    >>> sites_of(SGNHT)
    1
    """
    sums = {U: Total(sympy.Add(*U.blocks)) for U in recipe.potentials if any(b.is_vector for b in U.blocks)}
    H, *operators = (e.xreplace(sums) for e in (recipe.H, *recipe.D, *recipe.Q))
    return SEVERAL if any(map(_fields, operators)) or _couples_sites(H) else 1


def _fields(e):
    """The totals of a formula that depend on blocks, unlike n."""
    return {t for t in e.atoms(Total) if any(isinstance(s, Block) for s in t.integrand.free_symbols)}


def _couples_sites(H):
    """Whether H, given the scalar blocks, is anything but a sum over sites."""
    outside, totals = masked(H, Total)
    fields = [d for d, t in totals.items() if _fields(t)]
    nested = any(_fields(t.integrand) for t in totals.values())
    return nested or any(outside.diff(d).has(*fields) for d in fields)


def is_open(recipe: Recipe) -> bool:
    """Whether a function other than U is opaque."""
    return any(e.atoms(AppliedUndef) - e.atoms(Potential) for e in (recipe.H, *recipe.D, *recipe.Q))
