"""The chains of a run as they go: gradients, minibatches and noise of each step, and the chains that are lost."""

import math
import numbers
import warnings

import torch

from integrators import noise
from integrators.domains import in_domain, is_bounded
from integrators.start import complete_state
from integrators.step import Step
from recipe.errors import RecipeError

from ..energies.gradients import explained
from .launches import launches, pays, sweep, trajectory

NOISE_AT_ONCE = 2**20  # normals that are drawn together, for as many steps as they serve


class Diverged(RecipeError):
    """Every chain has left the finite numbers; `draws` are those that were kept before."""

    draws = None


class Chains:
    """The chains as they go: state, noise drawn for blocks of steps, gradients, frozen chains."""

    def __init__(self, step: Step, state, layout, gradient, curvature, observe, data, seed, first, parameters):
        self.step, self.state, self.layout, self.data, self.seed, self.first = step, state, layout, data, seed, first
        self.chains, self.steps_done, self.step_size = len(next(iter(state.values()))), 0, math.nan
        self.moved, self.kernel = (
            0,
            None,
        )  # steps whose draws have been handed on; the kernel of many steps that holds the state
        num_data = getattr(data, "rows", 1)
        self.parameters = {"num_data": num_data, **parameters}
        self.alive = torch.ones(self.chains, dtype=torch.bool, device=next(iter(state.values())).device)
        self.diverged: dict[int, int] = {}
        self.bounded = [b for b in step.recipe.entries if is_bounded(b)]
        self._rows, self._evaluation, self._first, self._latest = [], 0, [], []
        on = lambda rows: [] if data is None else [data.batch(rows)]
        self.gradient = None if gradient is None else lambda theta: gradient(theta, *on(self._next_rows()))
        self.curvature = None if curvature is None else lambda theta: curvature(theta, *on(self._latest))
        self.observe = {name: lambda theta, f=f: f(theta, *on(self._first)) for name, f in observe.items()}

    def _batches(self, rows, carried=False):
        """Take the batches of a step: a carried gradient, the first of the step, has seen the latest one."""
        self._rows, self._evaluation = rows, 0
        self._first = self._latest if carried else rows[0] if rows else None
        self._latest = self._first

    def _next_rows(self):
        """The rows of the next gradient."""
        if self.data is not None:
            self._latest = self._rows[self._evaluation]
            self._evaluation += 1
        return self._latest

    def check_first_gradient(self, where):
        """Refuse a start at which the gradient is not finite."""
        for name, x in self._first_gradient(target_of(self.step.recipe, self.state)).items():
            bad = (~x.reshape(self.chains, -1).isfinite().all(1)).nonzero()
            if len(bad):
                raise RecipeError(
                    where,
                    f"the gradient by {name} is not finite at the start of chain {int(bad[0])}",
                    do="Start elsewhere, or mend the energy there.",
                )

    def warn_of_sign(self, where):
        """Warn of an energy that falls without bound along every ray: a log-density handed in as an energy."""
        at = target_of(self.step.recipe, self.state)
        at = at if isinstance(at, dict) else {self.step.recipe.targets[0].name: at}
        ray = {
            b: noise.normal(
                self.seed,
                2**40 + i,
                noise.INITIAL,
                self.chains,
                tuple(x.shape[1:]),
                dtype=x.dtype,
                device=x.device,
                first_chain=self.first,
            )
            for i, (b, x) in enumerate(at.items())
        }
        slopes = []
        for r in (100.0, -100.0, 1000.0, -1000.0):
            far = {b: x + r * ray[b] for b, x in at.items()}
            g = self._first_gradient(far if len(far) > 1 else next(iter(far.values())))
            slopes += [sum((r * ray[b] * g[b]).reshape(self.chains, -1).sum(1) for b in g)] if g else []
        if slopes and bool((torch.stack(slopes) < -0.5).all()):
            warnings.warn(
                f"{where}: the energy falls without bound away from the start. U is -log density: was a "
                "log-density handed in with the wrong sign?",
                RuntimeWarning,
                stacklevel=3,
            )

    def _first_gradient(self, theta) -> dict:
        """The gradient by block on the first batch of every chain; empty where the step asks for none."""
        gradient = self.gradient or (self.step.namespace.get("gradient") if self.step.program.energy else None)
        if gradient is None:
            return {}
        self._batches(self._draw_rows(range(1), 1)(0))
        with torch.no_grad(), explained("sample, energy"):
            g = gradient(theta)
        return g if isinstance(g, dict) else {self.step.recipe.targets[0].name: g}

    @torch.no_grad()
    def probe(self) -> list[float]:
        """What tells one energy from another: sums and norms of its gradient at the start, and beside it."""
        at, found = target_of(self.step.recipe, self.state), []
        for shift in (0.0, 0.1, -0.37):
            near = lambda x: x * (1 + shift) + abs(shift) / 3
            moved = {b: near(x) for b, x in at.items()} if isinstance(at, dict) else near(at)
            found += [
                float(f(g.double())) for g in self._first_gradient(moved).values() for f in (torch.sum, torch.norm)
            ]
        return found

    @torch.no_grad()
    def complete_state(self, energy, temperature):
        """Let the blocks that the caller has not given start from their law."""
        self._batches(self._draw_rows(range(1), 1)(0))
        self.state = complete_state(
            self.step,
            self.state,
            seed=self.seed,
            temperature=temperature,
            gradient=self.gradient,
            observe=self.observe,
            energy=energy,
            sizes=self.layout.sizes,
            parameters=self.parameters,
            first_chain=self.first,
        )

    def _draw_rows(self, steps, evaluations):
        if self.data is None:
            return lambda i: []
        rows = [self.data.rows_for(self.seed, steps, e, self.chains, self.first) for e in range(evaluations)]
        return lambda i: [r if r is None else r[i] for r in rows]

    def _draw_noise(self, steps):
        drawn, target = {}, self.state[self.step.recipe.targets[0].name]
        scalar = (len(self.layout.shapes),) if self.step.program.scope == "tensor" else ()
        for number, draw in enumerate(self.step.program.draws):
            kind = (noise.KINDS | noise.STATE_DEPENDENT)[draw.kind]
            shape = tuple(target.shape[1:]) if draw.is_vector else scalar
            drawn[draw.name] = kind(
                self.seed,
                steps,
                number,
                self.chains,
                shape,
                dtype=target.dtype,
                device=target.device,
                first_chain=self.first,
            )
        return drawn

    def choose_backend(self, backend, steps, count):
        """Run kernels where all these steps have one, and the run is long enough or they are asked for."""
        self.inlined = self.gradient is None or self.step.program.energy is not None  # the energy is symbolic
        kernel = trajectory if self.inlined and backend != "triton" else sweep
        wanted = backend in ("cpp", "triton") or backend == "auto" and pays(count, self.state, self.inlined)
        for self.step in steps if wanted else ():
            wanted = wanted and kernel(backend, self) is not None
        self.backend = "torch" if not wanted else "triton" if backend == "triton" else "cpp"

    def moves(self, count, step_size, temperature, where, *, thin, first, keep):
        """Advance by `count` steps, yielding (steps made, step sizes kept, values kept by block) as they come."""
        of = lambda setting, what: lambda k: number_of(setting, k, what, where)
        step_size, temperature = of(step_size, "step size"), of(temperature, "temperature")
        if self.backend == "cpp" and self.inlined:
            yield from launches(
                self, trajectory("cpp", self), count, step_size, temperature, where, thin=thin, first=first, keep=keep
            )
            return
        for i, _ in enumerate(self.steps(count, step_size, temperature, where)):
            kept = i >= first and (i - first) % thin == 0
            yield 1, [self.step_size] * kept, {b: self.state[b][:, None] for b in keep} if kept else {}

    @torch.no_grad()
    def steps(self, count, step_size, temperature, where):
        """Advance by `count` steps at step sizes and temperatures by their number among these, yielding after each."""
        function, program, layout = self.step.function, self.step.program, self.layout
        evaluations = max(program.gradients_per_step, len(program.observations) > 0)
        per_step = [self.chains * self.state[self.step.recipe.targets[0].name][0].numel()] * len(program.draws)
        rows = self.chains * (self.data.batch_size or 0) * (evaluations + 1) if self.data else 0
        size = max(1, min(count, NOISE_AT_ONCE // max(1, rows, sum(per_step))))
        start, self.steps_done = self.steps_done, self.steps_done + count
        for first in range(start, start + count, size):
            numbers = range(first, min(first + size, start + count))
            extra = program.carries_gradient and "gradient" not in self.state
            swept = self.backend != "torch"  # the noise is drawn inside
            drawn, rows = {} if swept else self._draw_noise(numbers), self._draw_rows(numbers, evaluations + extra)
            for i, k in enumerate(numbers):
                self._batches(rows(i), program.carries_gradient and "gradient" in self.state)
                h, T = step_size(k - start), temperature(k - start)
                self.step_size = h
                if swept:
                    self._accept(
                        self.step.swept(
                            self.state,
                            h,
                            gradient=self.gradient,
                            noise=noise.Key(self.seed, k, self.first),
                            curvature=self.curvature,
                            observe=self.observe,
                            temperature=T,
                            step_number=k,
                            **self.parameters,
                        ),
                        k,
                        where,
                    )
                    yield k
                    continue
                given = self.step.arguments(
                    self.gradient, {n: x[i] for n, x in drawn.items()}, self.curvature, self.observe, layout.sizes
                )
                given |= self.step.spelled({"temperature": T, "step_number": k, **self.parameters})
                self._accept(function(self.state, h, **given), k, where)
                yield k

    def state_now(self) -> dict:
        """The blocks of all chains as they stand."""
        return self.state if self.kernel is None else self.kernel.state_now()

    def snapshot(self) -> tuple[dict[str, torch.Tensor], dict]:
        """What `restore` needs: tensors and plain data."""
        tensors = {"alive": self.alive}
        for name, x in self.state_now().items():
            tensors |= {f"gradient.{b}": g for b, g in x.items()} if isinstance(x, dict) else {f"state.{name}": x}
        tensors |= {} if self._latest is None or isinstance(self._latest, list) else {"rows": self._latest}
        return tensors, {"moved": self.moved, "diverged": {str(chain): step for chain, step in self.diverged.items()}}

    def restore(self, tensors: dict[str, torch.Tensor], account: dict) -> None:
        """Go on from a snapshot."""
        device = self.alive.device
        given = {name: x.to(device) for name, x in tensors.items()}
        self.alive = given.pop("alive")
        self._latest = given.pop("rows", self._latest)
        self.state = {name.removeprefix("state."): x for name, x in given.items() if name.startswith("state.")}
        gradient = {name.removeprefix("gradient."): x for name, x in given.items() if name.startswith("gradient.")}
        self.state |= {"gradient": gradient} if gradient else {}
        self.moved = self.steps_done = account["moved"]
        self.diverged = {int(chain): step for chain, step in account["diverged"].items()}

    def _accept(self, new, k, where):
        """Take the new state, except in chains that have left the finite numbers: these stay where they were."""
        everything = sum(new[b.name].sum() for b in self.step.recipe.entries)
        sound = not self.bounded and not self.diverged and math.isfinite(everything)
        lost = [] if sound else (self.alive & ~self._is_fine(new)).nonzero().flatten().tolist()
        if lost:
            self._freeze(
                {chain: k for chain in lost}, {name: x[lost[0]] for name, x in new.items() if name != "gradient"}, where
            )
        if self.diverged:
            new = _merge(self.alive, new, self.state)
        self.state = new

    def _is_fine(self, new):
        """The chains whose numbers are finite and inside of their domains."""
        fine = sum(new[b.name].reshape(self.chains, -1).sum(1) for b in self.step.recipe.entries).isfinite()
        for b in self.bounded:
            fine &= in_domain(b, new[b.name]).reshape(self.chains, -1).all(1)
        return fine

    def _freeze(self, lost, new, where):
        """Flag chains that have diverged, by the step at which they did; `new` is where the first of them would be."""
        block = next((b.name for b in reversed(self.step.recipe.entries) if not new[b.name].isfinite().all()), None)
        outside = next(
            (b for b in reversed(self.bounded) if (~in_domain(b, new[b.name]) & new[b.name].isfinite()).any()), None
        )
        why = f"{outside} has left its domain, {outside.domain}" if outside else f"{block} is not finite"
        do = f"Look at the update of {outside}." if outside in self.step.recipe.adapted else "Take a smaller step size."
        self.diverged |= lost
        self.alive[list(lost)] = False
        first, *others = lost
        told = f"chain {first}" if not others else f"chains {', '.join(map(str, [first, *others[:7]]))}"
        told += f" and {len(others) - 7} others" if len(others) > 7 else ""
        if not self.alive.any():
            raise Diverged(where, f"every chain has diverged, the last at step {max(lost.values())}: {why}", do=do)
        warnings.warn(
            f"{where}: {told} diverged at step {lost[first]}, {why}. Frozen at the last finite "
            f"state: {do[0].lower()}{do[1:]}",
            RuntimeWarning,
            stacklevel=6,
        )

    def lose(self, kernel, settings, first, where):
        """Flag the chains that a launch has lost; the step of the first of them is made once more, to see where it led."""
        died = kernel.died[: self.chains]
        lost = (self.alive & (died >= 0)).nonzero().flatten().tolist()
        if not lost:
            return
        lost = {chain: int(died[chain]) for chain in sorted(lost, key=lambda chain: int(died[chain]))}
        chain, k = next(iter(lost.items()))
        at = {name: kernel.block(name)[chain : chain + 1] for name in kernel.rows}
        drawn = self.step.drawn(noise.Key(self.seed, k, self.first + chain), at)
        h, T = settings[k - first]
        rows = self._draw_rows(range(k, k + 1), self.step.program.gradients_per_step + 1)(0)
        self._batches([r if r is None else r[chain : chain + 1] for r in rows])
        new = self.step.function(
            at,
            h,
            **self.step.arguments(self.gradient, drawn, self.curvature),
            **self.step.spelled({"temperature": T, "step_number": k, **self.parameters}),
        )
        self._freeze(lost, {name: x[0] for name, x in new.items() if name != "gradient"}, where)


def _merge(alive, new, old):
    merged = {}
    for name, x in new.items():
        if isinstance(x, dict):
            merged[name] = _merge(alive, x, old.get(name, x))
        else:
            merged[name] = torch.where(alive.reshape(-1, *(1,) * (x.dim() - 1)), x, old.get(name, x))
    return merged


def target_of(recipe, state):
    """The target of all chains: a tensor, or a dict by block for explicit coordinates."""
    if len(recipe.targets) == 1:
        return state[recipe.targets[0].name]
    return {b.name: state[b.name] for b in recipe.targets}


def number_of(setting, k, what, where):
    """The step size or temperature at step k."""
    try:
        value = setting(k)
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise RecipeError(
            where, f"the schedule of the {what} fails at step {k}: {error}", do="It is a function of k."
        ) from error
    real = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not (real and math.isfinite(value) and (value > 0 or value == 0 and what == "temperature")):
        raise RecipeError(
            where,
            f"the schedule gives the {what} {value!r} at step {k}",
            do=f"Return a number {'>= 0' if what == 'temperature' else '> 0'}.",
        )
    return float(value)
