"""The layers of checks of one step, from its formulas to its chains.

A layer yields its results, and returns why it has nothing to check, if so. What is deterministic comes first. The law is
that of one site, exp(-H/T) with U a quartic or a double well, at a temperature, masses and frictions away from 1; adapted
quantities are frozen, and a budget for gradient noise is met by a gradient that is as noisy.
"""

from collections import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

import numpy as np
import sympy
import torch
from scipy.linalg import solve_discrete_lyapunov
from sympy.core.function import AppliedUndef

import integrators
from integrators import linear_law, noise
from integrators.domains import in_domain
from integrators.split import all_letters, split
from integrators.step import Step
from recipe import Energy, Recipe, RecipeError
from recipe.algebra import at_one_site
from recipe.errors import did_you_mean
from recipe.symbols import Partial, Potential, Total, num_data, step_number, step_size
from recipe.symbols import temperature as T

from .arguments import by_oracle, called, inputs, worst
from .cases import Case, case_of
from .densities import density
from .generator import BOUND, Generator
from .interpreter import evaluate, flow_by_flow, interpret, van_loan
from .quadrature import moments, transition
from .results import Report, Result, timed

TEMPERATURE, NUM_DATA = 1.25, 3
Z = 7.5  # a right sampler is beyond it once in 1e13 comparisons
STEPS = 8
OPEN = "a function is opaque: give it by recipe.bind()"
LEAST = 1e-11  # of the weight of a point
DRAW_NODES, GRADIENT_NODES, POINTS = 4, 3, 2_000_000  # of a quadrature over state and noise
FROZEN = {"positive": 0.9, "nonnegative": 0.7, "fraction": 0.4, "real": 0.35}
x, y = sympy.symbols("x y", real=True)
_TORCH = {name: getattr(torch, name) for name in ("exp", "log", "sin", "cos", "tanh", "sqrt", "sinh", "cosh")}
Results = abc.Generator[Result, None, str | None]
TARGETS = {"quartic": Energy(x, U=x**4 / 4 + x**2 / 2 - 2 * x / 5), "double well": Energy(x, U=(x**2 - 1) ** 2 + x / 5)}
BANANA = {"banana": Energy((x, y), U=3 * x**2 / 2 + (y - x**2 / 3) ** 2)}


@dataclass(frozen=True)
class Subject:
    """A step to be checked, and the recipe whose law it should have.

    `energies` by name: of one coordinate, and then summed over those of the target, or of all of them. `wrong` is compiled in
    place of the recipe, `alter` changes what was compiled: so are mutants made. `chains` and `seed` are those of a run from a
    stationary start.
    """

    case: Case
    scheme: object = None
    pieces: Mapping | None = None
    energies: Mapping = field(default_factory=lambda: TARGETS)
    wrong: Recipe | None = None
    alter: Callable[[Step], Step] = lambda step: step
    chains: int = 20_000
    seed: int = 0
    backend: str = "torch"

    @property
    def recipe(self) -> Recipe:
        """The recipe whose law the step should have."""
        return self.case.recipe

    def step(self, *, frozen: bool) -> Step:
        """The step; with its adapted quantities frozen, or adapting."""
        freeze = [a.name for a in self.recipe.adapted] if frozen else ()
        noisy = frozen and any(self.recipe.supplied)  # a gradient that is carried over would carry its noise
        return self.alter(
            integrators.compile(
                self.wrong or self.recipe,
                self.scheme,
                pieces=self.pieces,
                freeze=freeze,
                backend=self.backend,
                reuse_gradient=not noisy,
            )
        )

    @cached_property
    def live(self) -> Step:
        """The step, adapting."""
        return self.step(frozen=False)

    @cached_property
    def still(self) -> Step:
        """The step, its adapted quantities frozen."""
        return self.step(frozen=True)

    @cached_property
    def constants(self) -> dict[str, float]:
        """The values that adapted quantities are frozen at."""
        return {a.name: FROZEN[a.domain] + 0.3 * i for i, a in enumerate(self.recipe.adapted)}

    @cached_property
    def numbers(self) -> dict:
        """Symbol -> number, of all that stands still."""
        values = {s: self.case.parameters[s.name] for s in self.recipe.parameters}
        values |= {a: self.constants[a.name] for a in self.recipe.adapted}
        return {**values, T: TEMPERATURE, num_data: NUM_DATA, step_number: 0}

    @property
    def told(self) -> dict:
        """What the step is told beside state, gradient and noise."""
        given = {"temperature": TEMPERATURE, **self.case.parameters}
        return given | ({"num_data": NUM_DATA} if self.still.program.reads(num_data) else {})

    @cached_property
    def unresolved(self) -> str:
        """Why one site cannot be integrated over; nothing if it can."""
        if len(self.recipe.state) > 3:
            return f"a site has {len(self.recipe.state)} blocks, and the checks integrate over three at most"
        try:
            for name in self.energies:
                self.law(name)
        except RecipeError as error:
            return str(error)
        return ""

    @cached_property
    def out_of_reach(self) -> str:
        """Why one site and the noise of a step cannot be integrated over; nothing if they can."""
        if self.unresolved:
            return self.unresolved
        if self.case.step_size is not None:
            return "its parameters imply a step size, so that there is no limit h -> 0"
        size = len(self.law(next(iter(self.energies)))[1]) * self.noise_points
        return f"{size:,} points of state and noise, more than {POINTS:,}" * (size > POINTS)

    @property
    def noise_points(self) -> int:
        """The points of the quadrature over the random numbers of one step."""
        points = [{"uniform": 2, "poisson": 100}.get(d.kind, DRAW_NODES) for d in self.still.program.draws]
        noisy = self.still.program.gradients_per_step if any(self.recipe.supplied) else 0
        return prod(points) * GRADIENT_NODES**noisy

    def energy(self, target: str):
        """U of the target blocks."""
        U, blocks = self.energies[target], self.recipe.targets
        return U.on(blocks) if len(U.coordinates) > 1 else sum(U.on((b,)) for b in blocks)

    @property
    def values(self) -> dict:
        """Symbol -> number, of all that is no block."""
        return {**self.numbers, step_size: self.case.step_size or 0.01}

    @cached_property
    def _laws(self) -> dict:
        return {}

    def law(self, target: str):
        """The points of exp(-H/T) by block, and their weights."""
        if target not in self._laws:
            self._laws[target] = self._integrated(target)
        return self._laws[target]

    def _integrated(self, target):
        points, weights = density(
            self.recipe.H,
            self.recipe.state,
            temperature=TEMPERATURE,
            energy=self.energy(target),
            nodes={1: 300, 2: None}.get(len(self.recipe.state), 32),
            degree=4,
            values=self.values,
            integrands=(*self.recipe.drift, *self.recipe.D),
        )
        kept = weights > (LEAST if len(weights) > 10_000 else 0)
        return {b: v[kept] for b, v in points.items()}, weights[kept] / weights[kept].sum()

    def derivative(self, target: str, order: int):
        """The derivatives of U by each coordinate, of tensors or of dicts by block."""
        U, blocks = self.energy(target), self.recipe.targets
        by_block = {b.name: sympy.lambdify(blocks, sympy.diff(U, b, order), [_TORCH, "math"]) for b in blocks}

        def at(theta):
            if not isinstance(theta, dict):
                return by_block[blocks[0].name](theta)
            return {name: f(*(theta[b.name] for b in blocks)) for name, f in by_block.items()}

        return at

    def gradient_variance(self, h: float, points: Mapping):
        """The variance of gradients as noisy as the budget S says, 2 S m/(h c^2): m gradients, c the factor of grad U."""
        rows = [i for i in range(len(self.recipe.state)) if self.recipe.supplied[i, i] != 0]
        if not rows:
            return 0.0
        drift, at = self.recipe.drift[rows[0]], {**self.numbers, step_size: h, **points}
        (slope,), g = drift.atoms(Partial), sympy.Dummy()
        value = lambda e: evaluate(e, at, np.shape(next(iter(points.values()))))
        many = self.still.program.gradients_per_step
        return (
            2
            * many
            * value(self.recipe.supplied[rows[0], rows[0]])
            / (h * value(sympy.diff(drift.xreplace({slope: g}), g)) ** 2)
        )


def subject(
    recipe: Recipe | Step,
    scheme=None,
    *,
    pieces=None,
    energy: Energy | None = None,
    values: Mapping | None = None,
    backend: str = "torch",
) -> Subject:
    """The subject of a recipe and a word; a stock recipe has its open functions given."""
    if isinstance(recipe, Step) and scheme is pieces is None:
        recipe, scheme, pieces, backend = recipe.recipe, recipe.scheme, recipe.pieces, recipe.backend
    if not isinstance(recipe, Recipe):
        raise RecipeError(
            "check",
            f"expected a Recipe, or a Step without scheme= and pieces=, got {type(recipe).__name__}",
            do="Pass recipe.Recipe(...).",
        )
    case = case_of(recipe)
    if case.recipe is not recipe and not _is_open(recipe):
        case = replace(case, recipe=recipe)
    for name in values or {}:
        if name not in case.parameters:
            raise RecipeError(
                f"{recipe.name}, check", f"'{name}' is not a parameter", do=did_you_mean(name, case.parameters)
            )
    energies = {**TARGETS, **(BANANA if len(recipe.targets) == 2 else {})}
    energies = energies if energy is None else {"energy": _of_a_site(energy, recipe)}
    one = Subject(replace(case, values={**case.values, **(values or {})}), scheme, pieces, energies, backend=backend)
    if not _is_open(one.recipe):
        one.live.check(case.step_size or 0.05, **one.case.parameters)
    return one


def _of_a_site(energy, recipe):
    """An energy of one coordinate, or of as many as the target has blocks."""
    if not isinstance(energy, Energy) or len(energy.coordinates) not in (1, len(recipe.targets)):
        raise RecipeError(
            f"{recipe.name}, check, energy",
            f"it is an Energy of one coordinate, got {energy!r}",
            do="Write Energy(x, U=...): the checks integrate over one site.",
        )
    coordinates, U = energy.coordinates, at_one_site(energy.U)
    plain = sympy.symbols(f"x:{len(coordinates)}", real=True)
    return Energy(plain, U=U.xreplace(dict(zip(coordinates, plain))))


def _is_open(recipe) -> bool:
    """Whether a function other than U is still opaque."""
    return any(
        isinstance(f, AppliedUndef)
        for e in (recipe.H, *recipe.D, *recipe.Q)
        for f in e.atoms(AppliedUndef) - e.atoms(Potential)
    )


# ---- the layers


def symbolic(subject: Subject) -> Results:
    """The Fokker-Planck residual of the drift that the step discretises, and the findings of the certificate."""
    recipe = subject.wrong or subject.recipe
    rest = recipe.residual()
    yield Result(
        "symbolic",
        "terms of the Fokker-Planck residual",
        float(len(sympy.Add.make_args(rest)) * (rest != 0)),
        0.0,
        f"-div(f rho) + sum_ij d_i d_j (D_ij rho) = 0, but it is rho times {rest}",
    )
    if rest == 0:
        failed = [f for f in recipe.check().findings if f.verdict == "failed"]
        told = "; ".join(f"{f.question}: {f.answer}" for f in failed)
        yield Result("symbolic", "failed findings of the certificate", float(len(failed)), 0.0, told)


def generator(subject: Subject) -> Results:
    """E[L phi] for every monomial phi up to degree 4 under the law of one site, L of the SDE that the step discretises."""
    recipe, sde = subject.recipe, subject.wrong or subject.recipe
    if subject.unresolved:
        return subject.unresolved
    for name in subject.energies:
        defects = Generator(
            sde.tempered_drift,
            sde.D,
            recipe.H,
            recipe.state,
            energy=subject.energy(name),
            values=subject.values,
            temperature=TEMPERATURE,
        ).defects()
        phi, worst = max(defects.items(), key=lambda item: abs(item[1]))
        yield Result(
            "generator",
            f"largest |E[L phi]| of its terms, of {phi}",
            abs(worst),
            BOUND,
            "E[f . grad phi + T D : hess phi] = 0 under exp(-H/T)",
            subject=name,
        )


def differential(subject: Subject) -> Results:
    """The emitted step against two interpreters on the same noise, adapting, at several sites."""
    step = subject.live
    for shape in ((), (3,), (2, 2)) if step.recipe.target_is_vector else ((),):
        state, drawn, parameters = inputs(step, 32, shape)
        found = called(step, state, drawn, parameters)
        for oracle in (interpret, flow_by_flow):
            yield Result(
                "differential",
                f"error against {oracle.__name__}, {len(shape)} axes",
                worst(found, by_oracle(oracle, step, state, drawn, parameters)),
                1e-11,
                "the emitted text is the formulas of its flows",
                subject=str(step.scheme),
            )


def linear_law(subject: Subject, h: float = 0.17) -> Results:
    """The covariance of an affine step on U = k theta^2/2, probed, against its pieces' matrix exponentials composed.

    The gradient is exact, and budgets for its noise are 0.
    """
    recipe, step = subject.recipe, subject.still
    if not linear_law.is_affine(recipe) or any(e.has(Total) for e in recipe.drift):
        return "the step is not affine for a quadratic U, site by site"
    used = set().union(*(e.free_symbols for e in (*recipe.drift, *recipe.D)))
    budgets = {s: 0.0 for e in recipe.supplied for s in e.free_symbols & set(recipe.parameters) if s not in used}
    numbers, told = {**subject.numbers, **budgets}, {**subject.told, **{s.name: v for s, v in budgets.items()}}
    pieces = split(recipe, step.scheme, all_letters(recipe, subject.pieces))
    if any(e.xreplace(budgets) != 0 for e in recipe.supplied) or any(
        piece.method not in (None, "euler") for piece in pieces.values()
    ):
        return "a budget reads what moves, or a piece is numerical"
    for k in (0.7, 2.3):
        M, V = np.eye(len(recipe.state)), 0.0
        for letter, fraction in step.scheme.moves:
            decay, spread = _over(pieces[letter], recipe, numbers, k, h, float(fraction))
            M, V = decay @ M, decay @ V @ decay.T + spread if np.ndim(V) else spread
        if abs(np.linalg.eigvals(M)).max() > 1 - 1e-9:
            return "the law of the linear step depends on its start: noise or a jump has to reach every block"
        expected = solve_discrete_lyapunov(M, V)
        chain = linear_law.linear_chain(step, h, [k], **told)
        stable = chain.spectral_radius < 1
        error = (
            float(np.abs(chain.covariance[: len(M), : len(M)] - expected).max() / expected.max()) if stable else np.inf
        )
        yield Result(
            "linear law",
            "relative error of the stationary covariance",
            error,
            1e-10,
            "S = M S M^T + V, M and V of exp(-A t) and 2 (T D - supplied)",
            subject=f"{step.scheme}, k = {k}",
        )


def _over(piece, recipe, numbers, k, h, fraction):
    """Decay and covariance of a linear piece over a fraction of h."""
    at = {**numbers, step_size: h}
    settle = lambda e: e.xreplace({p: k * recipe.targets[0] for p in e.atoms(Partial)})
    rows = {b: settle(piece.drift.get(b, sympy.S.Zero)) for b in recipe.state}
    A = -np.array([[float(sympy.diff(rows[a], b).xreplace(at)) for b in recipe.state] for a in recipe.state])
    D = np.array(
        [[float(sympy.sympify(piece.injected.get((a, b), 0)).xreplace(at)) for b in recipe.state] for a in recipe.state]
    )
    if piece.method == "euler":
        return np.eye(len(A)) - A * fraction * h, 2 * D * fraction * h
    M, _, V = van_loan(A, D, fraction * h)
    return M, V


def defect(subject: Subject, target: str | None = None, layer: str = "one-step defect") -> Results:
    """How fast E_pi[phi(step)] - E_pi[phi] falls with h, for all monomials phi up to degree 4: by the order of the step and 1."""
    if subject.out_of_reach:
        return subject.out_of_reach
    target = target or next(iter(subject.energies))
    order = integrators.compile(subject.recipe, subject.scheme, pieces=subject.pieces).order
    exact_at_all = len(subject.still.flows) == 1 and subject.still.exact
    hs = (2.0, 1.0) if exact_at_all else (0.05, 0.025) if order == 2 else (0.0125, 0.00625)
    norm = lambda h: float(np.linalg.norm(change(subject, target, h)))
    norms = [norm(h) for h in hs]
    told = {
        "subject": f"{subject.still.scheme}, {target}",
        "equation": f"E[phi(step)] - E[phi] = O(h^{order + 1}) under exp(-H/T)",
    }
    if norms[0] <= 1e-8:
        yield Result(layer, f"norm of the defect at h = {hs[0]}", norms[0], 1e-8, **told)
        return
    slope = lambda: float(np.log2(norms[-2] / norms[-1])) if norms[-1] > 0 else np.nan
    for k in range(2, 6):  # the order may show at small steps only
        if slope() < order + 0.85 and norms[-1] > 1e-9:
            norms.append(norm(hs[0] / 2**k))
    yield Result(layer, "order of the defect in h", slope(), order + 0.85, least=True, **told)


def change(subject: Subject, target: str, h: float, degree: int = 4):
    """(E_pi[phi(step)] - E_pi[phi])/E_pi|phi| for all monomials phi of degree 1 to 4, flat."""
    before, after, weights = moved(subject, target, h)
    table = moments(after, weights, degree) - moments(before, weights, degree)
    table /= moments([abs(v) for v in before], weights, degree)
    total = sum(np.indices(table.shape))
    return table[(0 < total) & (total <= degree)]


def moved(subject: Subject, target: str, h: float):
    """Points of exp(-H/T), where the frozen step takes them, both by block, and their weights."""
    points, weights = subject.law(target)
    blocks = [np.asarray(points[b]) for b in subject.recipe.state]
    at = lambda index: tuple(v[np.asarray(index, int)] for v in blocks)
    variance = lambda index: subject.gradient_variance(h, dict(zip(subject.recipe.state, at(index))))
    curved = {"curvature": subject.derivative(target, 2)} if subject.still.program.needs_curvature else {}
    return transition(
        subject.still,
        {"": (np.arange(len(weights)), weights)},
        h,
        subject.derivative(target, 1),
        chart=at,
        constants=subject.constants,
        gradient_noise=variance if any(subject.recipe.supplied) else 0.0,
        temperature=TEMPERATURE,
        draw_nodes=DRAW_NODES,
        gradient_nodes=GRADIENT_NODES,
        least=1e-14,
        **{k: v for k, v in subject.told.items() if k != "temperature"},
        **curved,
    )


def stationary_start(subject: Subject, target: str | None = None, layer: str = "stationary start") -> Results:
    """Chains that start at exp(-H/T): their moments after some steps, and whether they move, each by its own noise."""
    if subject.out_of_reach:
        return subject.out_of_reach
    recipe, step, target = subject.recipe, subject.still, target or next(iter(subject.energies))
    h = 0.05 if step.order == 2 else 0.01
    points, weights = subject.law(target)
    sites = 2 if recipe.target_is_vector and not _coupled(recipe) else 1
    chains, pick = subject.chains, np.random.default_rng(subject.seed)
    pick = pick.choice(len(weights), size=(chains, sites), p=weights / weights.sum())
    shaped = lambda b, v: torch.as_tensor(v if b.is_vector else v[:, 0])
    start = {b.name: shaped(b, np.asarray(points[b])[pick]) for b in recipe.state}
    state = start | {a.name: shaped(a, np.full((chains, sites), subject.constants[a.name])) for a in recipe.adapted}
    first, generator = state, torch.Generator().manual_seed(subject.seed)
    slope = subject.derivative(target, 1)
    noisy = any(recipe.supplied)

    def gradient(theta):
        if not noisy:
            return slope(theta)
        at = {b: state[b.name].numpy() for b in recipe.state}
        spread = np.sqrt(np.broadcast_to(subject.gradient_variance(h, at), theta.shape))
        return slope(theta) + torch.as_tensor(spread) * torch.randn(theta.shape, generator=generator, dtype=theta.dtype)

    curved = {"curvature": subject.derivative(target, 2)} if step.program.needs_curvature else {}
    kinds = noise.KINDS | noise.STATE_DEPENDENT
    drawn = {
        d.name: kinds[d.kind](
            subject.seed, range(STEPS), i, chains, (sites,) if d.is_vector else (), dtype=torch.float64
        )
        for i, d in enumerate(step.program.draws)
    }
    for k in range(STEPS):
        state = step(
            state, h, gradient=gradient, noise={name: v[k] for name, v in drawn.items()}, **curved, **subject.told
        )
    told = {"layer": layer, "subject": f"{step.scheme}, {target}"}
    gone = [~in_domain(b, state[b.name]).reshape(chains, -1).all(1) for b in recipe.state]
    lost = float(torch.stack(gone).any(0).double().mean())
    if lost:
        yield Result(
            statistic=f"share of the chains that left their domain in {STEPS} steps of {h}",
            value=lost,
            bound=0.0,
            equation="the chains stay where exp(-H) is positive: use an exact flow, or a reflected one",
            **told,
        )
        return
    vectors = [b for b in recipe.state if b.is_vector] or recipe.state
    ends, exact = [state[b.name].numpy() for b in vectors], [np.asarray(points[b]) for b in vectors]
    before, after, mass = moved(replace(subject, wrong=None, alter=lambda step: step), target, h)
    index = [recipe.state.index(b) for b in vectors]
    worst_score, where = 0.0, ""
    for powers in np.ndindex(*[5] * len(vectors)):
        if not 0 < sum(powers) <= (4 if max(powers) == sum(powers) else 2):
            continue
        phi = lambda z: np.prod([v**n for v, n in zip(z, powers)], axis=0)
        values = phi(ends).mean(-1) if sites > 1 else phi(ends).reshape(chains)
        bias = 3 * STEPS * abs(mass @ (phi([after[i] for i in index]) - phi([before[i] for i in index])))
        error = values.std() / chains**0.5
        score = max(abs(values.mean() - weights @ phi(exact)) - bias, 0) / error if error else np.inf
        if not score <= worst_score:
            worst_score, where = score, "*".join(f"{b}^{n}" for b, n in zip(vectors, powers) if n)
    yield Result(
        statistic=f"standard errors that E {where or 'phi'} is off after {STEPS} steps",
        value=float(worst_score),
        bound=Z,
        equation="the law of the chains stays exp(-H/T), up to the defect of every step",
        **told,
    )
    moves = np.stack([(state[b.name] - first[b.name]).numpy().reshape(chains, -1) for b in recipe.targets], -1).reshape(
        chains, -1
    )
    yield Result(
        statistic="mean square displacement",
        value=float((moves**2).mean()),
        bound=1e-8,
        least=True,
        equation="the chains move",
        **told,
    )
    pairs = {
        "the next chain": (moves, np.roll(moves, 1, 0)),
        "the other half of the chains": (moves[: chains // 2], moves[chains // 2 : 2 * (chains // 2)]),
    }
    if sites > 1:
        pairs["the next site"] = moves[:, :1], moves[:, 1:2]
    for name, (a, b) in pairs.items():
        correlation = float(np.corrcoef(a.ravel(), b.ravel())[0, 1]) * a.size**0.5
        yield Result(
            statistic=f"standard errors of the correlation with {name}",
            value=abs(correlation),
            bound=Z,
            equation="every chain and every site has its own noise",
            **told,
        )


def _coupled(recipe) -> bool:
    """Whether the sites of a chain feel each other."""
    totals = any(t.integrand.free_symbols for e in (*recipe.drift, *recipe.D) for t in e.atoms(Total))
    return totals or any(not b.is_vector for b in recipe.state)


def non_gaussian(subject: Subject) -> Results:
    """The one-step defect and a stationary start on the other energies, such as a double well."""
    if len(subject.energies) < 2:
        return "the energy is given"
    why = None
    for target in [*subject.energies][1:]:
        why = yield from defect(subject, target, "non-Gaussian")
        why = yield from stationary_start(subject, target, "non-Gaussian")
    return why


LAYERS = {
    "symbolic": symbolic,
    "generator": generator,
    "differential": differential,
    "linear law": linear_law,
    "one-step defect": defect,
    "stationary start": stationary_start,
    "non-Gaussian": non_gaussian,
}


def check(
    recipe: Recipe | Step, scheme=None, *, pieces=None, energy: Energy | None = None, layers=None, **values
) -> Report:
    """All layers of checks of a recipe and a word: the formulas, the emitted text, its law in one step and in many.

    A Step stands for the recipe, word, pieces and backend that it was compiled from. `values`: those of parameters, else values away
    from 1 are taken. `energy`: an Energy of one coordinate or, where the target has several, of all of them, in place of a
    quartic, a double well and a banana. `layers`: names of some of LAYERS. The report notes which layers had nothing to check, as all but the formulas of an opaque recipe.

    >>> from samplers import SGLD
    >>> check(SGLD, layers=["symbolic", "differential"]).ok
    True
    """
    one = subject(recipe, scheme, pieces=pieces, energy=energy, values=values)
    layers = (layers,) if isinstance(layers, str) else layers
    if layers is not None and not layers:
        raise RecipeError("check, layers", "none is named", do=f"Choose of {', '.join(LAYERS)}, or leave it out.")
    for name in layers or ():
        if name not in LAYERS:
            raise RecipeError("check, layers", f"there is no layer '{name}'", do=did_you_mean(name, LAYERS))
    results, left_out, opaque = [], {}, _is_open(one.recipe)
    for name in LAYERS if layers is None else layers:
        found, why = ([], OPEN) if opaque and name != "symbolic" else timed(LAYERS[name](one))
        results += found
        if not found:
            left_out.setdefault(why, []).append(name)
    notes = (f"left out  {', '.join(names)}: {why}" for why, names in left_out.items())
    return Report(one.recipe.name, tuple(results), tuple(notes))


def assert_stationary(
    recipe: Recipe | Step, energy: Energy | None = None, *, scheme=None, pieces=None, layers=None, **values
) -> None:
    """Raise AssertionError, with the equations that are violated, unless all checks of a step or a recipe pass: `check`.

    >>> from samplers import SGLD
    >>> assert_stationary(SGLD, layers=["symbolic"])
    """
    report = check(recipe, scheme, pieces=pieces, energy=energy, layers=layers, **values)
    if not report.ok:
        raise AssertionError(f"{report.name} is not stationary:\n" + "\n".join(map(str, report.failures)))
