"""Step: one step of a sampler as a pure function of state, step size, gradient and noise."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from sympy import Pow

from recipe import Recipe
from recipe.errors import RecipeError
from recipe.results import html_table
from recipe.scheme import Scheme
from recipe.symbols import Block, num_data, step_number
from recipe.symbols import temperature as T

from . import requirements
from .auxiliary import start_word
from .backends import torch as torch_backend
from .backends.loading import load
from .backends.torch_expressions import FUNCTIONS, python_names
from .flow import Flow
from .lower import lower
from .optimizer_form import optimizer_form
from .program import DERIVATIVES, Program

if TYPE_CHECKING:  # torch is imported by the text of a step, when it runs
    from torch import Tensor

    from .noise import Key
    from .processes import Spread

State = dict[str, "Tensor"]


@dataclass(frozen=True)
class Step:
    """One step of a sampler: `step(state, h, *, gradient, noise, observe, **parameters) -> state`.

    `state`: dict of tensors, `(chains, *shape)` for a vector block and `(chains,)` for a scalar block, including
    adapted quantities; `h`: step size, in time; `gradient(theta)`: grad U on the sum scale, in theta's shape (for
    explicit coordinates both are dicts by block), `curvature(theta)`: its Hessian diagonal, `value(theta)`: U of every
    chain, `(chains,)`; `noise`: dict of random numbers, see `draws`, or a `noise.Key` to draw them with; `observe`:
    dict of functions of theta, see `observations`. The new state may carry "gradient" and "value" for the next step.
    Adaptations may read `num_data` and `step_number`. In the scope "tensor" theta is `(chains, sites)`, `sizes` the
    sites of each tensor, and scalar blocks are `(chains, tensors)`. With a `spread`, of the torch backend only, state
    and noise have the sites of this process, and totals are over all processes. Raises RecipeError for an argument that
    is missing or out of its range.

    >>> import torch
    >>> from integrators import compile
    >>> from samplers import SGLD
    >>> step = compile(SGLD)
    >>> state, noise = {"theta": torch.ones(2, 3)}, {"theta": torch.zeros(2, 3)}
    >>> step(state, 0.1, gradient=lambda theta: theta, noise=noise)["theta"][0]
    tensor([0.9000, 0.9000, 0.9000])
    """

    recipe: Recipe
    scheme: Scheme
    flows: dict[str, Flow]
    program: Program
    dtype: object = None
    backend: str = "torch"
    frozen: tuple[str, ...] = ()
    pieces: dict = field(default_factory=dict)
    spread: "Spread | None" = field(default=None, kw_only=True)  # the sites of this process

    # ---- properties

    @property
    def declared(self) -> Recipe:
        """The recipe as declared; the step samples its law."""
        return self.recipe

    @property
    def order(self) -> int:
        """The weak order of the law of the whole state."""
        return _weak_order(self.scheme, self.flows)

    @property
    def marginal_order(self) -> int:
        """The weak order of the target's marginal law, at least `order`.

        Pieces that leave the target alone may move around the cycle, or be cut: F A and A F have the theta-marginal of
        F/2 A F/2, a palindrome.
        """
        idle = {x for x in self.scheme.letters if not any(b in self.recipe.targets for b in self.flows[x].updates)}
        words = _turned(self.scheme, idle)
        for word in words[:]:
            (letter, share), *rest = word.moves
            if letter in idle and self.flows[letter].exact:
                words.append(Scheme(word.text, ((letter, share / 2), *rest, (letter, share / 2))))
        return max(_weak_order(word, self.flows) for word in words)

    @property
    def exact(self) -> bool:
        """Whether every flow is the exact law of its piece."""
        return all(flow.exact for flow in self.flows.values())

    @cached_property
    def needs_heat(self) -> bool:
        """Whether a formula divides by the temperature, as Gibbs draws do."""
        powers = (x for flow in self.flows.values() for e in flow.updates.values() for x in e.atoms(Pow))
        return any(x.base.has(T) and x.exp.is_negative for x in powers)

    @cached_property
    def parameters(self) -> dict[str, float | None]:
        """Defaults of the parameters by name; None for a parameter that must be given."""
        return {s.name: s.default for s in self.recipe.parameters}

    @cached_property
    def draws(self) -> dict[str, str]:
        """Kinds of the random numbers of one step by name: normal, uniform, or functions, poisson and gamma."""
        return {d.name: d.kind for d in self.program.draws}

    @cached_property
    def draw_blocks(self) -> dict[str, Block]:
        """The block of each draw by name; the draw has the shape of its block."""
        return {d.name: d.block for d in self.program.draws}

    @property
    def observations(self) -> tuple[str, ...]:
        """The names of the statistics that the caller supplies."""
        return self.program.observations

    # ---- text

    @cached_property
    def source(self) -> str:
        """The torch text of the step."""
        title = f"{self.recipe.name}: one step of {self.scheme}."
        sites = None if self.spread is None else self.spread.sites
        return torch_backend.module_source(self.program, title=title, sites=sites)

    def standalone(self) -> str:
        """The text of one file that imports only math and torch: the step, and a torch.optim.Optimizer of it."""
        if self.program.networks:
            what = f"the network {self.program.networks[0].family.name!r} is no text"
            raise RecipeError(f"{self.recipe.name}, standalone", what, do="Use the step itself, or samplers.sample.")
        adapt = self.recipe.updates_except(self.frozen)
        try:
            rotated = optimizer_form(self.recipe, self.scheme, self.flows, adapt, self.program.scope)
        except RecipeError:
            rotated = None
        word, flows = start_word(self.recipe)
        start = lower(self.recipe, word, flows, given_gradient=True, scope=self.program.scope)
        return torch_backend.standalone_source(self.program, rotated, start, list(self.flows.values()))

    @cached_property
    def namespace(self) -> dict[str, Any]:
        """The names that the compiled text defines: `step`, and the `gradient` of a symbolic energy."""
        namespace = load(self.source, f"<sde-recipe {self.recipe.name} {self.scheme}>")
        if self.spread is not None:
            namespace["total"] = self.spread.total  # called by the text
        namespace[FUNCTIONS] = {f.__name__: partial(f.family.compute, f.orders) for f in self.program.networks}
        return namespace

    @property
    def function(self) -> Callable[..., State]:
        """The compiled step, without checks of its arguments."""
        return self.namespace["step"]

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "namespace"}

    # ---- the call

    def __call__(
        self,
        state: State,
        h: float,
        /,
        *,
        gradient: Callable | None = None,
        noise: "Mapping | Key | None" = None,
        curvature: Callable | None = None,
        value: Callable | None = None,
        observe: Mapping | None = None,
        sizes: Sequence[int] | None = None,
        **parameters: Any,
    ) -> State:
        """The state a time h later; arguments are described in the docstring of the class."""
        from .forms import Form, check_arguments, parameters_like  # imports torch

        of_recipe = {name: value for name, value in parameters.items() if name not in self._of_the_run}
        self.check(h, **of_recipe)
        numbers = noise or {} if noise is None or isinstance(noise, Mapping) else None  # a key draws them
        derivatives = {"gradient": gradient, "curvature": curvature, "value": value}
        check_arguments(self.program, state, numbers, observe or {}, derivatives, has_others=self.spread is not None)
        form = Form.of(self.program, state, sizes, self.dtype)
        functions = form.functions(derivatives, observe or {})
        parameters = parameters_like(self.recipe, parameters, state[self.recipe.entries[0].name])
        if numbers is not None:
            noise = form.noise(numbers)
        try:
            return self._next_state(state, h, noise, sizes, functions, parameters)
        except ValueError:  # such as the square root of a negative variance
            self.check_budget(h, of_recipe.pop("temperature", 1.0), **of_recipe)
            raise

    def _next_state(self, state, h, noise, sizes, functions, parameters):
        if self.backend != "torch" and all(state[b.name].numel() for b in self.recipe.state):
            return self.by_kernel(state, h, noise=noise, **functions, **parameters)
        drawn = noise if isinstance(noise, Mapping) else self.drawn(noise, state)
        arguments = self.arguments(noise=drawn, sizes=sizes, **functions)
        return self.function(state, h, **arguments, **self.spelled(parameters))

    def by_kernel(self, state: State, h: float, /, **arguments: Any) -> State:
        """The state a time h later, by a kernel and without checks; with a `noise.Key` the kernel draws the numbers.

        `arguments`: those of the call, and the `pool` of a run's kernels.
        """
        from .kernels.fallback import BY_DEVICE
        from .kernels.single import step_by_kernel  # imports torch

        if self.program.energy is not None:
            missing = (name for name in DERIVATIVES.values() if arguments.get(name) is None)
            arguments |= {name: self.namespace.get(name) for name in missing}
        device = state[self.recipe.entries[0].name].device.type
        backend = BY_DEVICE.get(device, "cpp") if self.backend == "torch" else self.backend
        return step_by_kernel(self.program, state, h, backend, **arguments)

    def drawn(self, key: "Key", state: State) -> dict[str, Any]:
        """The random numbers of a `noise.Key` by name; functions for laws that depend on the state."""
        like = next((state[b.name] for b in self.recipe.state if b.is_vector), state[self.recipe.state[0].name])
        numbers = {}
        if self.spread is not None:
            key = replace(key, places=self.spread.places)
        for k, d in enumerate(self.program.draws):
            shape = tuple(like.shape[1:]) if d.is_vector else ()
            numbers[d.name] = key.draw(d.kind, k, len(like), shape, dtype=like.dtype, device=like.device)
        return numbers

    def arguments(self, gradient: object, noise: Mapping, **others: Any) -> dict[str, Any]:
        """The keyword arguments of `function` that are not None, and that the step reads."""
        unread = [] if self.observations else ["observe"]
        unread += [] if self.program.scope == "tensor" else ["sizes"]
        values = {"gradient": gradient, **others}
        return {"noise": noise, **{name: x for name, x in values.items() if x is not None and name not in unread}}

    def spelled(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters by their names in the emitted text; num_data and step_number only if the step reads them."""
        reads = {"temperature": True, **self._of_the_run}
        read = {name: value for name, value in parameters.items() if reads.get(name, True)}
        return {name if name in reads else self._names[name]: value for name, value in read.items()}

    @cached_property
    def _of_the_run(self) -> dict[str, bool]:
        """Whether the step reads num_data and step_number, by name."""
        return {s.name: self.program.reads(s) for s in (num_data, step_number)}

    @cached_property
    def _names(self) -> dict[str, str]:
        return python_names(self.program)

    # ---- checks of arguments: requirements.py

    def check(self, h: float, /, *, temperature: float = 1.0, **parameters: Any) -> None:
        """Refuse a step size, temperature or parameter outside of its range, before any step."""
        requirements.check_settings(self.recipe, h, temperature, parameters, needs_heat=self.needs_heat)

    def check_budget(self, h: float, /, temperature: float = 1.0, **parameters: Any) -> None:
        """Refuse parameters at which the noise T D - supplied is not positive semidefinite, or a draw has no law."""
        requirements.check_gamma_draws(self.recipe, self.flows, h, temperature, parameters)
        requirements.check_noise(self.recipe, h, temperature, parameters)

    def __str__(self):
        kind = "exact flows" if self.exact else "with numerical flows"
        title = (
            f"{self.recipe.name}, {self.scheme}: weak order {self.order}, order {self.marginal_order} for the target, "
            f"{kind}, {self.program.gradients_per_step} gradient(s) per step"
        )
        return "\n".join([title, *(f"  {flow}" for flow in self.flows.values())])

    def _repr_html_(self) -> str:
        rows = [(f.letter, f.equation, f.rule, "exact" if f.exact else "not exact") for f in self.flows.values()]
        return html_table(str(self).splitlines()[0], ("letter", "equation", "solved by", ""), rows)

    def __repr__(self):
        return f"Step({self.recipe.name!r}, {self.scheme.text!r}, order={self.order}, exact={self.exact})"


def _weak_order(scheme: Scheme, flows: Mapping[str, Flow]) -> int:
    """The weak order for the whole state: 2 for a palindrome of flows that are exact or of even order, else 1."""
    return 2 if scheme.is_palindrome and all(flows[letter].even for letter in scheme.letters) else 1


def _turned(scheme: Scheme, idle: Collection[str]) -> list[Scheme]:
    """The word and its rotations that move idle letters from the front to the back, or from the back to the front."""
    moves = [letter in idle for letter, _ in scheme.moves]
    if all(moves):
        return [scheme]
    front = moves.index(False)
    back = moves[::-1].index(False)
    return [scheme.rotated(k) for k in (*range(front + 1), *range(-back, 0))]
