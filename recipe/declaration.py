"""The declaration of a sampler: an energy H, a diffusion D and a curl Q over named blocks."""

import re
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from typing import Any

from sympy import Expr, ImmutableMatrix, Symbol, sqrt
from sympy.core.function import AppliedUndef

from .arguments import check_known, text
from .declared import allows, num_data, positive, step_size
from .display import as_latex, as_text, typeset
from .dynamics import Dynamics
from .energy import Energy
from .errors import RecipeError
from .formulas import formula
from .logs import with_short_logs
from .pieces import lettered, letters_of
from .reading import (
    conversions_of,
    drift_of,
    jumps_of,
    matrix_of,
    requirements_of,
    state_of,
    target_of,
    updates_of,
)
from .refusal import refuse_malformed
from .results import Certificate, html_table
from .scheme import Word, all_letters
from .scheme import scheme as read_scheme
from .symbols import Potential

NO_LIMIT = "No step has that limit: give other numbers, or take a word with another friction, or without momentum."


@dataclass(frozen=True, eq=False)
class Recipe(Dynamics):
    """A sampler with the stationary law exp(-H): an energy H, a diffusion D and a curl Q over named blocks.

        dz = [-(D+Q) grad H + Gamma] dt + sqrt(2D) dW,   Gamma_i = sum_j d(D+Q)_ij/dz_j.

    Formulas are for one site. At temperature T the law is exp(-H/T): T multiplies Gamma and the variance of the noise.

    `name`: letters, digits, _ . or -; `source`: the paper; `doc`: further notes; `claim`: the stationary law promised.
    `state`: the blocks z; `target`: the blocks of the energy U, one vector block (the first by default) or several
    scalars.
    `H`: one number per chain, with U = potential(target) on the sum scale or wholly symbolic; `marginal`: the energy of
    the target, if different from U.
    `weights`: the weight of a draw, a formula of the state, where it is exp(-H) times the weights that has the target's
    law. Weights that read adapted quantities are a factor of D and Q, the rate of time of the chain.
    `D`, `Q`: D symmetric and positive semidefinite, Q skew; dicts over blocks or pairs of blocks, with one triangle
    given, or sympy matrices in the order of `state`.
    `supplied`: the part of D that the gradient of a minibatch provides: friction uses D, injected noise D - supplied.
    `scheme`, `schemes`: the recommended splitting word, and further words by name; `pieces`: letters beside or instead
    of the default ones; `jumps`: redraws, proposals, swaps or involutions of blocks, by letter.
    `transport`: a further drift by block, without divergence, which involutions among the jumps balance.
    `adapt`: the new values of adapted quantities, from the old values, the step's first gradient and the new state.
    `order`: adapted quantities move after the step ("lagged"), before its first gradient is used ("same_step"), or are
    replaced by their updates as functions of theta, with the resulting Gamma ("differentiated").
    `conversions`: formulas of the parameters and the step size in a paper's parameters, by the names of the latter; a
    key that ends in "; G" is for words with the letter G. `requires`: relations between the parameters, such as
    v0 < v1.
    `metropolis`: whether steps are meant to be accepted or rejected by their work, as in HMC; the default of
    `samplers.sample`. `accepted`: letters of drift that accepted words may leave out, as {"K"} in the word "O": the
    acceptance makes up for them.

    Raises RecipeError if the formulas do not make a recipe.
    Source: Ma, Chen & Fox (2015), "A complete recipe for stochastic gradient MCMC", eqs. (3)-(4) and Theorem 1.

    >>> from recipe import Recipe, vector, positive, potential, total
    >>> theta, p, gamma = vector("theta"), vector("p"), positive("gamma", default=1.0)
    >>> R = Recipe(name="langevin", state=(theta, p), target=theta, H=potential(theta) + total(p**2)/2,
    ...            D={p: gamma}, Q={(theta, p): -1})
    >>> R.drift[1]
    -gamma*p - grad(U)
    >>> R.residual(), R.check().ok
    (0, True)
    """

    def __post_init__(self):
        settle = partial(object.__setattr__, self)
        if not isinstance(self.name, str) or not re.fullmatch(r"[A-Za-z][A-Za-z0-9_.-]*", self.name):
            what = "a name is a letter followed by letters, digits, _ . or -"
            raise RecipeError(f"recipe {self.name!r}", what, do="Choose such a name.")
        if self.doc is None:  # a module's __doc__ under python -OO
            settle("doc", "")
        for field in ("source", "doc", "claim"):
            text(self.name, field, getattr(self, field))
        settle(
            "__doc__", f"{self.doc.strip()}\n\nSource: {self.source}. print(recipe) shows the formulas."
        )  # for help()
        if not isinstance(self.metropolis, bool):
            what = f"metropolis is True or False, got {self.metropolis!r}"
            raise RecipeError(self.name, what, do="Say whether steps are meant to be accepted or rejected.")
        settle("accepted", letters_of(self.accepted, f"{self.name}, accepted"))
        settle("state", state_of(self.state, self.name))
        settle("target", target_of(self.target, self.state, self.name))
        settle("H", formula(self.H, f"{self.name}, H"))
        settle("D", matrix_of(self.D, self.state, +1, f"{self.name}, D"))
        settle("Q", matrix_of(self.Q, self.state, -1, f"{self.name}, Q"))
        settle("supplied", matrix_of(self.supplied, self.state, +1, f"{self.name}, supplied"))
        transport = {} if getattr(self.transport, "is_zero_matrix", False) else self.transport  # of another state
        settle("transport", ImmutableMatrix(drift_of(transport, self.state, self.name, "transport")))
        settle("pieces", lettered(self.pieces, f"{self.name}, pieces"))
        settle("adapt", updates_of(self.adapt, self.order, self.name))
        settle("jumps", jumps_of(self.jumps, self.state, self.pieces, self.name))
        settle("metropolis", self.metropolis or bool(self.accepted or self.proposals))
        settle("conversions", conversions_of(self.conversions, self.name))
        settle("requires", requirements_of(self.requires, self.name))
        if self.marginal is not None:
            settle("marginal", formula(self.marginal, f"{self.name}, marginal"))
        if self.weights is not None:
            settle("weights", formula(self.weights, f"{self.name}, weights"))
        if self.order == "differentiated":
            updates = dict(self.adapt)
            settle("H", self.H.xreplace(updates))
            settle("weights", None if self.weights is None else self.weights.xreplace(updates))
            for name in ("D", "Q", "supplied", "transport"):
                settle(name, getattr(self, name).xreplace(updates))
            # formulas now read old values in place of new ones
            settle("order", "lagged")
        if not self.claim:
            frozen = ", ".join(a.name for a in self.conditions)
            settle("claim", f"given frozen {frozen}" if frozen else "exact")
        try:
            refuse_malformed(self)
        except RecursionError as error:
            what = "a formula is nested more deeply than Python's recursion limit lets sympy go"
            do = "Write it flatter, or call sys.setrecursionlimit(10_000) before."
            raise RecipeError(self.name, what, do=do) from error

    def check(
        self, *, temperature: float = 1.0, freeze: Sequence[str] = (), sites: int | None = None, **parameters: float
    ) -> Certificate:
        """The certificate of the chain's law: each question is proved, checked by numbers, open or failed.

        `temperature`: T of exp(-H/T); `freeze`: names of blocks held still; `sites`: the number of sites of a vector,
        2 by default; `parameters`: values of parameters, by default their defaults or random values. A certificate is
        exact only if invariance, a finite integral, boundaries, explosion, reach and marginal are proved or checked.

        >>> from samplers import SGHMC
        >>> SGHMC.check().exact, SGHMC.check(freeze=["p"]).ok
        (True, False)
        """
        from .certificate.certify import certify  # imports numpy

        return certify(self, temperature=temperature, freeze=tuple(freeze), values=parameters, sites=sites)

    def bind(self, **functions: Callable | Expr) -> "Recipe":
        """The recipe with its opaque functions in closed form: functions of their blocks, formulas, or an Energy for U.

        Raises RecipeError for a name without an opaque function, and for functions that cannot be called with the
        blocks.

        >>> from samplers import SGRLD
        >>> SGRLD.bind(inverse_metric=lambda theta: 1 + theta**2).gamma
        Matrix([[2*theta]])
        """
        opaque = {f.func.__name__: [f] for e in self.formulas for f in e.atoms(AppliedUndef)}
        for U in self.potentials:
            opaque.setdefault(U.key, []).append(U)
        check_known(f"{self.name}, bind", "there is no opaque function {!r}", functions, opaque)
        values = {}
        for name, function in functions.items():
            where = f"{self.name}, bind({name}=...)"
            for term in opaque[name]:
                arguments = term.args
                if isinstance(term, Potential):
                    arguments = tuple(self.maps[b].image if b in self.maps else b for b in term.blocks)
                values[term] = formula(_applied(function, arguments, where), where)
                if any(change.mixes for change in self.maps.values()):
                    values[term] = with_short_logs(values[term])

        def bound(e: Expr) -> Expr:
            return e.xreplace(values).doit()

        return replace(
            self,
            H=bound(self.H),
            D=self.D.applyfunc(bound),
            Q=self.Q.applyfunc(bound),
            supplied=self.supplied.applyfunc(bound),
            transport=self.transport.applyfunc(bound),
            adapt={a: bound(e) for a, e in self.adapt.items()},
            jumps={letter: jump.replaced(bound) for letter, jump in self.jumps.items()},
            marginal=None if self.energy_of_target is None or self.claims_latents else bound(self.energy_of_target),
            weights=None if self.weights is None else bound(self.weights),
        )

    def convert(self, scheme: Word | None = None, **values: float) -> dict[str, float]:
        """The step size and the parameters converted from a paper's parameters, by one of the `conversions`.

        `values`: the paper's parameters, and `num_data`, 1 by default; `scheme`: the word to convert for, by default
        the recommended one. Raises RecipeError for names without a conversion, values outside of their range, and
        results that are not finite.

        >>> from samplers import SGHMC
        >>> SGHMC.convert("paper", lr=0.01, momentum=0.9)
        {'step_size': 0.1, 'C': 1.0, 'm': 1.0}
        """
        names = values.keys() - {"num_data"}
        key = self._conversion(names, scheme)
        if key is None:
            do = f"Known: {'; '.join(self.conversions) or 'none'}."
            raise RecipeError(f"{self.name}, convert({', '.join(sorted(names))})", "there is no such conversion", do=do)
        formulas = self.conversions[key]
        advice = "Give it as the paper does."
        numbers = {}
        for s in set().union(*(e.free_symbols for e in formulas.values())):
            where = f"{self.name}, convert, {s}"
            numbers[s] = formula(values.get(s.name, 1), where)
            if not numbers[s].is_number or not allows(s, numbers[s]):
                raise RecipeError(where, f"{numbers[s]} is out of its range", do=advice)
        settings = {s: e.xreplace(numbers) for s, e in formulas.items()}
        for s, x in settings.items():
            where = f"{self.name}, convert({key})"
            if x.is_infinite:
                of_what = "step size" if s == step_size else f"{s}, {s.doc}"
                raise RecipeError(where, f"these numbers stand for an infinite {of_what}", do=NO_LIMIT)
            if not x.is_finite or not allows(s, x):
                raise RecipeError(where, f"it gives {s} = {x}", do=advice)
        return {"step_size" if s == step_size else s.name: float(x) for s, x in settings.items()}

    def learning_rate(self, scheme: Word | None = None) -> dict[Symbol, Expr]:
        """Formulas of the step size and the parameters in lr and momentum of torch.optim.SGD on a mean loss.

        By symbol: the conversion "lr, momentum" or "lr", else step_size = lr/num_data, or its root with momenta.
        `scheme`: as in `convert`.

        >>> from samplers import SGLD
        >>> SGLD.learning_rate()
        {h: lr/num_data}
        """
        key = self._conversion({"lr", "momentum"}, scheme) or self._conversion({"lr"}, scheme)
        if key is not None:
            return dict(self.conversions[key])
        time = positive("lr") / num_data
        return {step_size: sqrt(time) if self.momenta else time}

    def _conversion(self, names: Set[str], scheme: Word | None) -> str | None:
        """The key of the conversion from the named parameters: for a letter of the word first, then for all words."""
        word = self.schemes.get(scheme, scheme) if isinstance(scheme, str) else scheme or self.scheme
        letters = read_scheme(word, [*all_letters(self), *self.jumps]).letters if word else ()
        for key in sorted(self.conversions, key=lambda key: ";" not in key):
            known, _, letter = key.partition("; ")
            if names == set(known.split(", ")) and (not letter or letter in letters):
                return key
        return None

    def latex(self) -> str:
        """H, D, Q, Gamma and the SDE as a LaTeX aligned environment."""
        return as_latex(self)

    def typeset(self) -> str:
        """H and the rows of the SDE as equations of several lines, for a terminal."""
        return typeset(self)

    def _repr_latex_(self) -> str:
        return f"$${self.latex()}$$"

    def _repr_html_(self) -> str:
        rows = [(s.name, s.default, s.doc) for s in self.parameters]
        table = html_table(f"{self.name}. {self.source}", ("parameter", "default", "meaning"), rows)
        return f"{table}<pre>{escape(self.typeset())}</pre>"

    def __str__(self):
        return as_text(self)

    def __repr__(self):
        return f"Recipe({self.name!r}, state=({', '.join(b.name for b in self.state)}))"


def check_recipe(where: str, recipe: object) -> None:
    """Refuse an object that is not a Recipe.

    >>> check_recipe("compile", 3)
    Traceback (most recent call last):
    recipe.errors.RecipeError: compile: expected a Recipe, got int. Pass recipe.Recipe(...).
    """
    if not isinstance(recipe, Recipe):
        raise RecipeError(where, f"expected a Recipe, got {type(recipe).__name__}", do="Pass recipe.Recipe(...).")


def _applied(function: Callable | Expr | Energy, arguments: tuple[Expr, ...], where: str) -> Any:
    """The value of a bound function, formula or Energy at the arguments of an opaque function."""
    if isinstance(function, Energy):
        return function.on(arguments)
    if not callable(function):
        return function
    try:
        return function(*arguments)
    except TypeError as error:
        advice = f"Pass a function of ({', '.join(map(str, arguments))})."
        raise RecipeError(where, f"calling it failed: {error}", do=advice) from error
