"""compile(recipe, scheme) -> Step: a pure function of state, step size, gradient and noise."""

import math
from dataclasses import dataclass, field
from functools import cached_property

from sympy import Dummy, Pow, S, lambdify

from recipe import Energy, Recipe
from recipe.errors import RecipeError, did_you_mean
from recipe.proof import minimum_eigenvalue
from recipe.symbols import Block, Partial, Potential, duration, masked, num_data, step_number, step_size
from recipe.symbols import temperature as T

from . import accuracy
from .auxiliary import adaptation_word
from .backends import torch as torch_backend
from .backends.loading import load
from .backends.torch_expressions import python_names
from .flow import Drawn, Flow, GammaVariate, solve
from .jump import solve_jump
from .lower import lower, optimizer_form
from .program import Program
from .scheme import EULER, Scheme
from .scheme import scheme as read_scheme
from .split import all_letters, split

BACKENDS = ("auto", "torch", "cpp", "triton")
SCOPES = ("chain", "tensor")


def compile(
    recipe: Recipe,
    scheme=None,
    *,
    pieces=None,
    energy: Energy | None = None,
    backend: str = "auto",
    dtype=None,
    reuse_gradient: bool = True,
    scope: str = "chain",
    freeze=(),
) -> "Step":
    """Cut a recipe into pieces, solve each over h, and compose them by a splitting word.

    `scheme`: a word such as "B A O A B", "Euler", "Lie(A,B)", "Strang(A,B)", a list of (letter, fraction), or the name of
    one of the recipe's `schemes`; None takes the recipe's own word. `energy`: a symbolic Energy whose gradient is emitted
    with the step. `dtype`: the only one that states may have, if given. With `reuse_gradient` a gradient serves until
    the target moves, across steps too. `backend`: "torch", which is "auto", or kernels compiled at the first call: "cpp"
    on the CPU, "triton" on a GPU.
    `scope`: "chain", or "tensor", where totals and scalar blocks are per tensor of
    the target. `freeze`: names of blocks and adapted quantities that stay as they are. Raises RecipeError for a word
    that does not fit the recipe, or a piece without a closed form.

    >>> from samplers import UnderdampedLangevin
    >>> compile(UnderdampedLangevin, "B A O A B").order
    2
    """
    if not isinstance(recipe, Recipe):
        raise RecipeError("compile", f"expected a Recipe, got {type(recipe).__name__}", do="Pass recipe.Recipe(...).")
    if backend not in BACKENDS:
        raise RecipeError(f"{recipe.name}, backend {backend!r}", "no such backend", do=did_you_mean(backend, BACKENDS))
    if scope not in SCOPES:
        raise RecipeError(f"{recipe.name}, scope {scope!r}", "no such scope", do=did_you_mean(scope, SCOPES))
    if scope == "tensor" and (energy is not None or not recipe.target_is_vector):
        raise RecipeError(f"{recipe.name}, scope 'tensor'", "the target is one tensor", do="Use scope='chain'.")
    if scope == "tensor":
        _refuse_shared_energy(recipe)
    freeze = _names(freeze, recipe)
    letters = all_letters(recipe, pieces)
    if scheme is None:
        scheme = recipe.scheme or default_word(recipe, letters)
    elif isinstance(scheme, str) and scheme in recipe.schemes:
        scheme = recipe.schemes[scheme]
    word = read_scheme(scheme, [*letters, *recipe.jumps])
    if energy is not None:
        recipe = _with_energy(recipe, energy)
    flows = _flows(recipe, word, letters, freeze)
    for letter, fraction in word.moves:
        if fraction < 0 and flows[letter].draws:
            raise RecipeError(
                f"{recipe.name}, scheme {word}",
                f"piece {letter!r} has noise and cannot run backwards, for {fraction} of the step",
                do="Give pieces with noise positive fractions.",
            )
    program = lower(
        recipe,
        word,
        flows,
        reuse_gradient=reuse_gradient,
        energy=energy if recipe.potential else None,
        adapt=_moving(recipe, freeze),
        scope=scope,
    )
    return Step(
        recipe, word, flows, program, dtype, "torch" if backend == "auto" else backend, freeze, dict(pieces or {})
    )


def default_word(recipe: Recipe, letters) -> str:
    """B A O A B, or with thermostats B A' O A' B, where every piece of it has a closed form; else Euler."""
    word = "B A' O A' B" if recipe.thermostats else "B A O A B"
    if recipe.momenta and not recipe.jumps and all(letter in letters for letter in word.split()):
        try:
            _flows(recipe, read_scheme(word, letters), letters)
            return word
        except RecipeError:
            return EULER
    return EULER


def _flows(recipe, word, letters, freeze=()) -> dict[str, Flow]:
    pieces = split(recipe, word, letters, freeze)
    jumps = {letter: jump for letter, jump in recipe.jumps.items() if jump.block.name not in freeze}
    still = {letter: Flow(letter, {}, (), "frozen", True, "nothing moves") for letter in recipe.jumps}
    solved = {letter: solve(piece, recipe.name) for letter, piece in pieces.items()}
    return solved | still | {letter: solve_jump(recipe, letter, jump) for letter, jump in jumps.items()}


def _refuse_shared_energy(recipe):
    """Refuse a U that a scalar multiplies: per tensor of the target, its force would be no gradient."""
    if recipe.potential is None:
        return
    U = Dummy()
    scale = recipe.H.xreplace({recipe.potential: U}).diff(U)
    shared = sorted((s for s in scale.free_symbols if isinstance(s, Block) and not s.is_vector), key=str)
    if shared:
        raise RecipeError(
            f"{recipe.name}, scope 'tensor'",
            f"H has U times {scale}, and there would be one {shared[0]} for every tensor, but U is one for all",
            do="Use scope='chain'.",
        )


def _moving(recipe, freeze) -> dict:
    """The updates of the adapted quantities that are not frozen."""
    return {a: e for a, e in recipe.adapt.items() if a.name not in freeze}


def _names(freeze, recipe) -> tuple[str, ...]:
    """The names of blocks given by themselves or by their names."""
    given = (freeze,) if isinstance(freeze, (str, Block)) else freeze
    known = [b.name for b in recipe.entries]
    for b in given:
        if str(b) not in known:
            raise RecipeError(f"{recipe.name}, freeze", f"there is no block '{b}'", do=did_you_mean(str(b), known))
    return tuple(map(str, given))


def _with_energy(recipe, energy):
    """The recipe with U given, where the pieces need more of it than a gradient function can say."""
    if not isinstance(energy, Energy):
        raise RecipeError(
            f"{recipe.name}, energy",
            f"compile takes a symbolic Energy, got {type(energy).__name__}",
            do="Hand a torch function to samplers.sample, or its gradient to the step.",
        )
    if recipe.potential is None:
        raise RecipeError(
            f"{recipe.name}, energy", "the recipe's H is wholly symbolic: it needs no energy", do="Drop energy=."
        )
    if not recipe.target_is_vector or energy.is_sitewise:
        values = energy.on(recipe.targets)
        mixed = any(len(set(p.variables)) > 1 for e in recipe.drift for p in e.atoms(Partial))
        read = any(masked(e, Partial)[0].has(Potential) for e in recipe.drift)
        return recipe.bind(U=values) if mixed or read else recipe
    return recipe


@dataclass(frozen=True)
class Step:
    """One step of a sampler: `step(state, h, *, gradient, noise, observe, **parameters) -> state`.

    `state`: dict of tensors, `(chains, *shape)` for a vector block and `(chains,)` for a scalar one, adapted quantities
    among them; `gradient(theta)` returns theta's shape (for explicit coordinates both are dicts by block); `noise`: dict
    of random numbers, see `draws`; `observe`: dict of functions of theta, see `observations`; `h` is time. The state that
    comes back may carry "gradient" for the next step. Adaptations may read `num_data` and `step_number`. In the scope
    "tensor" theta is `(chains, sites)`, `sizes` are those of its tensors, and scalar blocks are `(chains, tensors)`.
    """

    recipe: Recipe
    scheme: Scheme
    flows: dict[str, Flow]
    program: Program
    dtype: object = None
    backend: str = "torch"
    frozen: tuple[str, ...] = ()
    pieces: dict = field(default_factory=dict)

    @property
    def order(self) -> int:
        """The weak order of the law of the whole state."""
        return accuracy.weak_order(self.scheme, self.flows)

    @property
    def marginal_order(self) -> int:
        """The order of the target's marginal law, at least `order`."""
        return accuracy.marginal_order(self.scheme, self.flows, self.recipe.targets)

    @property
    def exact(self) -> bool:
        """Whether every flow is the exact law of its piece."""
        return all(flow.exact for flow in self.flows.values())

    @cached_property
    def parameters(self) -> dict[str, float | None]:
        """Names with defaults; None must be given."""
        return {s.name: s.default for s in self.recipe.parameters}

    @cached_property
    def draws(self) -> dict[str, str]:
        """Name -> kind of the noise that one step takes: normal, uniform, or poisson and gamma, functions of their parameter."""
        return {d.name: d.kind for d in self.program.draws}

    @cached_property
    def draw_blocks(self) -> dict[str, Block]:
        """Name of a draw -> the block whose shape it has."""
        return {d.name: d.block for d in self.program.draws}

    @property
    def observations(self) -> tuple[str, ...]:
        """The names of the statistics that one step asks the caller for."""
        return self.program.observations

    @cached_property
    def source(self) -> str:
        """The torch text of the step."""
        return torch_backend.module_source(self.program, title=f"{self.recipe.name}: one step of {self.scheme}.")

    def standalone(self) -> str:
        """One file that imports only math and torch: the step, and the sampler as a torch.optim.Optimizer."""
        try:
            rotated = optimizer_form(
                self.recipe, self.scheme, self.flows, _moving(self.recipe, self.frozen), self.program.scope
            )
        except RecipeError:
            rotated = None
        word, flows = adaptation_word(self.recipe)
        start = lower(self.recipe, word, flows, given_gradient=True, scope=self.program.scope)
        return torch_backend.standalone_source(self.program, rotated, start, list(self.flows.values()))

    @cached_property
    def namespace(self) -> dict:
        """What the compiled text defines: `step`, and the `gradient` of a symbolic energy."""
        return load(self.source, f"<sde-recipe {self.recipe.name} {self.scheme}>")

    @property
    def function(self):
        """The compiled text: the step without the checks of its arguments."""
        return self.namespace["step"]

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "namespace"}

    def __call__(
        self, state, h, /, *, gradient=None, noise=None, curvature=None, observe=None, sizes=None, **parameters
    ):
        self.check(h, **{k: v for k, v in parameters.items() if k not in self._of_the_run})
        wanted = {"state": [b.name for b in self.recipe.entries], "noise": self.draws, "observe": self.observations}
        empty = any(not state[b.name].numel() for b in self.recipe.state if b.name in state)
        keyed = hasattr(noise, "draw")  # a noise.Key
        if keyed and (empty or self.backend == "torch"):
            noise, keyed = self.drawn(noise, state), False
        for what, given in (("state", state), ("noise", noise or {}), ("observe", observe or {})):
            for name in () if what == "noise" and keyed else wanted[what]:
                if name not in given:
                    raise RecipeError(
                        f"{self.recipe.name}, step",
                        f"{what}[{name!r}] is missing",
                        do=f"It takes {', '.join(n for names in wanted.values() for n in names)}.",
                    )
        if self.program.needs_curvature and curvature is None and not self.program.energy:
            raise RecipeError(
                f"{self.recipe.name}, step", "curvature is missing", do="Pass the Hessian diagonal of U, a function."
            )
        if self.dtype is not None and any(state[b.name].dtype != self.dtype for b in self.recipe.state):
            raise RecipeError(
                f"{self.recipe.name}, step",
                f"it was compiled for {self.dtype}, but the state is {state[self.recipe.state[0].name].dtype}",
                do="Convert the state, or compile without dtype.",
            )
        if self.program.scope == "tensor":
            _check_sizes(f"{self.recipe.name}, step", sizes, state[self.recipe.targets[0].name].shape[-1])
        if self.backend != "torch" and not empty:
            return self.swept(
                state, h, gradient=gradient, noise=noise or {}, curvature=curvature, observe=observe, **parameters
            )
        return self.function(
            state, h, **self.arguments(gradient, noise or {}, curvature, observe, sizes), **self.spelled(parameters)
        )

    def swept(self, state, h, *, gradient=None, noise=None, curvature=None, observe=None, **parameters) -> dict:
        """The step by a kernel; `noise` may be a `noise.Key`, whose numbers are drawn inside."""
        from .kernels.single import step_by_kernel  # imports torch

        backend = "triton" if self.backend == "triton" else "cpp"
        if self.program.energy is not None:
            gradient = self.namespace["gradient"] if gradient is None else gradient
            curvature = self.namespace.get("curvature") if curvature is None else curvature
        caller = {"gradient": gradient, "curvature": curvature, "observe": observe}
        return step_by_kernel(self.program, state, h, backend=backend, noise=noise, **caller, **parameters)

    def drawn(self, key, state) -> dict:
        """The numbers of a `noise.Key` for a state, by name."""
        like = next((state[b.name] for b in self.recipe.state if b.is_vector), state[self.recipe.state[0].name])
        return {
            d.name: key.draw(
                d.kind, k, len(like), tuple(like.shape[1:]) if d.is_vector else (), dtype=like.dtype, device=like.device
            )
            for k, d in enumerate(self.program.draws)
        }

    def arguments(self, gradient, noise, curvature=None, observe=None, sizes=None) -> dict:
        """The keyword arguments of `function` that are given: gradient, noise, curvature, observe, sizes."""
        given = {
            "gradient": gradient,
            "curvature": curvature,
            "observe": observe if self.observations else None,
            "sizes": sizes if self.program.scope == "tensor" else None,
        }
        return {"noise": noise, **{k: v for k, v in given.items() if v is not None}}

    def spelled(self, parameters) -> dict:
        """Parameters by the names they bear in the emitted text; of num_data and step_number only what is read."""
        run = {"temperature": True, **self._of_the_run}
        return {k if k in run else self._names[k]: v for k, v in parameters.items() if run.get(k, True)}

    @cached_property
    def _of_the_run(self) -> dict[str, bool]:
        return {s.name: self.program.reads(s) for s in (num_data, step_number)}

    @cached_property
    def _names(self):
        return python_names(self.program)

    def check(self, h, **parameters) -> None:
        """Refuse a step size, temperature or parameter outside of its range, before any step."""
        where = f"{self.recipe.name}, step"
        if not isinstance(h, (int, float)) or isinstance(h, bool) or not (h > 0 and math.isfinite(h)):
            raise RecipeError(where, f"the step size is a positive number, got {h!r}", do="It is in units of time.")
        temperature = parameters.pop("temperature", 1.0)
        if not isinstance(temperature, (int, float)) or not (temperature >= 0 and math.isfinite(temperature)):
            raise RecipeError(
                where, f"the temperature is a number >= 0, got {temperature!r}", do="1 is the target itself."
            )
        if temperature == 0 and self.needs_heat:
            raise RecipeError(where, "a piece has no limit at temperature 0", do="Take a small temperature > 0.")
        for name in parameters:
            if name not in self.parameters:
                raise RecipeError(where, f"'{name}' is not a parameter", do=did_you_mean(name, self.parameters))
        for s in self.recipe.parameters:
            value = parameters.get(s.name, s.default)
            if value is None:
                raise RecipeError(where, f"parameter '{s.name}' has no default", do=f"Pass {s.name}=...")
            _check_sign(where, s, value)
        given = {s: parameters.get(s.name, s.default) for s in self.recipe.parameters}
        for relation in self.recipe.requires:
            if not _holds(relation, given):
                told = ", ".join(f"{s} = {given[s]}" for s in sorted(relation.free_symbols, key=str))
                raise RecipeError(where, f"{relation} does not hold: {told}", do="Choose other parameters.")

    @cached_property
    def needs_heat(self) -> bool:
        """Whether a formula divides by the temperature, as Gibbs draws do."""
        powers = (x for flow in self.flows.values() for e in flow.updates.values() for x in e.atoms(Pow))
        return any(x.base.has(T) and x.exp.is_negative for x in powers)

    def check_budget(self, h, temperature=1.0, **parameters) -> None:
        """Refuse parameters at which the injected noise T D - supplied is not positive semidefinite, or a draw has no law."""
        self._check_shapes(h, temperature, parameters)
        if not any(self.recipe.supplied) and self.recipe.D.is_diagonal():
            return
        given = {s: parameters.get(s.name, s.default) for s in self.recipe.parameters}
        per_site = _some_sites({s: v for s, v in given.items() if hasattr(v, "detach")})
        budget = T * self.recipe.D - self.recipe.supplied
        value, where = minimum_eigenvalue(budget, points=64, fixed={**given, **per_site, T: temperature, step_size: h})
        if value < -1e-12:
            raise RecipeError(
                f"{self.recipe.name}, supplied",
                f"T D - supplied has the eigenvalue {value:.3g} at {where}",
                do="The noise needs D >= 0, and the gradient may not supply more than T D: raise the friction.",
            )

    def _check_shapes(self, h, temperature, parameters):
        """Refuse a Gamma number of a shape that is not positive where its Poisson number is 0: no law is stationary there."""
        numbers = {s: parameters.get(s.name, s.default) for s in self.recipe.parameters}
        numbers = {s: v.double().amin().item() if hasattr(v, "amin") else v for s, v in numbers.items()}
        numbers |= {T: temperature, duration: h}
        for letter, flow in self.flows.items():
            for drawn in (
                d for e in flow.updates.values() for d in e.atoms(Drawn) if isinstance(d.variate, GammaVariate)
            ):
                shape = drawn.parameter.xreplace({d: S.Zero for d in drawn.parameter.atoms(Drawn)}).xreplace(numbers)
                if shape.is_number and not shape > 0:
                    raise RecipeError(
                        f"{self.recipe.name}, piece {letter!r}",
                        f"at temperature {temperature:g} the target is not "
                        f"normalisable: a Gamma number would have the shape {float(shape):.3g}",
                        do="Raise the prior weight, or the temperature.",
                    )

    def __str__(self):
        flows = "\n".join(f"  {flow}" for flow in self.flows.values())
        kind = "exact flows" if self.exact else "with numerical flows"
        return (
            f"{self.recipe.name}, {self.scheme}: weak order {self.order}, order {self.marginal_order} for the target, "
            f"{kind}, {self.program.gradients_per_step} gradient(s) per step\n{flows}"
        )

    def __repr__(self):
        return f"Step({self.recipe.name!r}, {self.scheme.text!r}, order={self.order}, exact={self.exact})"


def _some_sites(tensors: dict) -> dict[object, list[float]]:
    """The values of per-site parameters at thousands of sites, the extremes of each among them."""
    if not tensors:
        return {}
    import torch

    flat = [x.detach().double().reshape(-1) for x in torch.broadcast_tensors(*tensors.values())]
    some = torch.arange(len(flat[0]), device=flat[0].device)[:: max(1, len(flat[0]) // 2048)]
    at = torch.cat([some, *(torch.stack([x.argmin(), x.argmax()]) for x in flat)])
    return {s: x[at].tolist() for s, x in zip(tensors, flat)}


def _check_sizes(where, sizes, sites):
    """Refuse sizes of tensors that do not make up the target."""
    if not sizes or sum(sizes) != sites:
        raise RecipeError(
            where,
            f"sizes = {sizes} are not those of the tensors of a target with {sites} sites",
            do="Give the number of sites of each tensor, in their order.",
        )


def _holds(relation, given):
    """Whether a relation between parameters holds, at every site."""
    symbols = sorted(relation.free_symbols, key=str)
    held = lambdify(symbols, relation, "math")(*(given[s] for s in symbols))
    return bool(held.all()) if hasattr(held, "all") else bool(held)


_IN_WORDS = {"fraction": "between 0 and 1"}


def _check_sign(where, s, value):
    if hasattr(value, "min") and not isinstance(value, (int, float)):
        if not s.per and getattr(value, "numel", lambda: 1)() > 1:
            raise RecipeError(
                where,
                f"'{s.name}' is one number, got shape {tuple(value.shape)}",
                do="Declare it with per=theta for one value per site.",
            )
        low, high = float(value.min()), float(value.max())
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        low = high = float(value)
    else:
        raise RecipeError(where, f"'{s.name}' is a number or a tensor, got {type(value).__name__}", do="Pass a float.")
    if not (math.isfinite(low) and math.isfinite(high)):
        raise RecipeError(where, f"'{s.name}' is not finite", do="Pass a finite number.")
    allowed = {"positive": low > 0, "nonnegative": low >= 0, "fraction": 0 <= low and high <= 1}.get(s.sign, True)
    if not allowed:
        raise RecipeError(
            where,
            f"'{s.name}' must be {_IN_WORDS.get(s.sign, s.sign)}, got "
            f"{low if low < 0 or s.sign != 'fraction' else high:g}",
            do=s.doc or f"It is a {s.sign} parameter.",
        )
