"""Cases of the stock recipes for tests: open functions bound, parameters away from 1 and from each other.

`observe`: functions of all chains at once, as a Step takes them; `words`: further words of the recipe.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from recipe import Recipe

from ..stock import catalogue

HAMILTONIAN = ("Euler", "B A O A B", "A B O B A", "O B A B O", "F A", "A F A")
THERMOSTATTED = ("Euler", "B A' O A' B", "F A'", "A' F A'")
SPIKE: dict[str, Any] = {"v0": 0.3, "v1": 2.0, "ridge": 0.7, "sparse": 0.6}
PRIOR = {"sigma": 1.2, "delta": 0.4}
FRICTION = {"m": 1.7, "C": 1.4, "B": 0.2}
SQUARES = {"squared_residuals": lambda theta: 1 + (theta**2).reshape(len(theta), -1).sum(1)}


def _usual(parameter, i):
    """A value near the default of the i-th parameter, away from 1 and from other parameters; 0 for skew operators."""
    if getattr(parameter, "matrix_kind", "") == "skew":
        return 0.0
    if parameter.sign == "fraction":
        return 0.45
    default = 1.0 if parameter.default is None else parameter.default or 0.2
    return (1.3 + 0.17 * i) * default


@dataclass(frozen=True)
class Example:
    """A recipe with values of its parameters, observations, and further words that fit the recipe."""

    recipe: Recipe
    values: dict[str, float] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    observe: dict[str, Callable] = field(default_factory=dict)
    step_size: float | None = None  # the only one at which the sampler makes sense, where there is one

    @property
    def parameters(self) -> dict[str, float]:
        """The value of each parameter: as given, or near the default, away from 1 and from other parameters."""
        usual = {q.name: _usual(q, i) for i, q in enumerate(self.recipe.parameters)}
        return {name: self.values.get(name, value) for name, value in usual.items()}

    @property
    def all_words(self) -> tuple:
        """The recommended word, the paper's words, and the further words."""
        return tuple(dict.fromkeys([self.recipe.scheme, *self.recipe.schemes.values(), *self.words]))


def case_of(recipe: Recipe) -> Example:
    """The case of a recipe: from the table for a stock recipe, else with usual values."""
    case = CASES.get(recipe.name)
    if case is None or recipe.state != case.recipe.state:
        return Example(recipe)
    return case if set(recipe.parameters) <= set(case.recipe.parameters) else Example(recipe)


def row(
    *words: str, observe: Any = None, step_size: float | None = None, bind: Any = None, **values: Any
) -> Callable[[Recipe], Example]:
    """The function from a stock recipe to its case, with words, observations, step size, open functions, parameters."""
    return lambda recipe: Example(recipe.bind(**bind) if bind else recipe, values, words, observe or {}, step_size)


METRIC = {"inverse_metric": lambda t: 1 / (1 + t**2)}
DENSE = {"L_xx": lambda x, y: 1 + y**2 / 4, "L_yx": lambda x, y: x * y / 3, "L_yy": lambda x, y: 1 + x**2 / 5}

TABLE = {
    "sgld": row(),
    "sgld-preconditioned": row(G=0.6, V=0.7, K=0.4),
    "psgld": row(alpha=0.8, lam=0.3),
    "psgld-same-step": row(alpha=0.8, lam=0.3),
    "psgld-gamma": row(alpha=0.8, lam=0.3),
    "sgrld": row(bind=METRIC),
    "sgrld-dense": row(bind=DENSE),
    "sgrld-simplex": row("Euler", a=1.6),
    "sgrld-cir": row(a=0.6, counts=1.3),
    "sgfs": row(B=1.4, b=1.7, observe={"score_variance": lambda theta: 0.5 + theta**2 / 3}),
    "vsgd": row(V=2.6, step_size=1.0),
    "isgd-ideal": row(lam=3.0, B=0.8, step_size=1.0),
    "isgd": row(mu=0.4, warmup_steps=3.0, step_size=1.0),
    "underdamped-langevin": row(*HAMILTONIAN, m=1.7, gamma=1.1),
    "sghmc": row(*HAMILTONIAN, "G A", **FRICTION),
    "sghmc-adaptive": row(*HAMILTONIAN, gamma=1.1, lam=0.3),
    "sgrhmc": row(bind=METRIC),
    "sghmc-relativistic": row("W R A", **FRICTION, c=1.3),
    "mala": row(G=0.6),
    "hmc": row(m=1.7),
    "hmc-randomised": row("B A R A B", m=1.7, nu=0.9),
    "ghmc": row(m=1.7, gamma=1.1),
    "sgnht": row(*THERMOSTATTED, A=0.7, mu=1.6),
    "msgnht": row(*THERMOSTATTED, A=0.7, mu=1.6),
    "atmc": row(*THERMOSTATTED, m=1.7, mu=1.6, Dmin=0.8, B=0.2),
    "atmc-relativistic": row(m=1.7, c=1.3, mu=1.6, Dmin=0.8, B=0.2),
    "santa": row("Euler", sigma=0.8, lam=0.3),
}
for _likelihood, _observe in (("", SQUARES), ("-classification", {})):
    for _mode, _values in {"": {"decay": 0.6}, "-marginal": PRIOR, "-gibbs": PRIOR}.items():
        _observed = {} if _mode else _observe
        _words = () if _mode == "-gibbs" else ("F A",)
        TABLE[f"sgld-sa{_likelihood}{_mode}"] = row(observe=_observed, **_values, **SPIKE)
        TABLE[f"sghmc-sa{_likelihood}{_mode}"] = row(*_words, observe=_observed, **FRICTION, **_values, **SPIKE)


class Cases(Mapping[str, Example]):
    """The cases of the catalogue by name, each made on first use, since declaring all samplers takes seconds."""

    known: ClassVar[dict[str, Example]] = {}

    def __getitem__(self, name: str) -> Example:
        if name not in self.known:
            self.known[name] = TABLE.get(name, Example)(catalogue[name])
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(catalogue)

    def __len__(self) -> int:
        return len(catalogue)


CASES = Cases()
