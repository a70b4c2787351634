"""Work of a step: T times the log ratio of the densities of its path and of the time reversal of this path.

A sign s on the curl, one per chain, is the direction of time: H, D and s Q have the law exp(-H/T) for both signs, and
the time reversal of the dynamics at s is the dynamics at -s. At s = 1 a step is its word; at s = -1 the reversed word
with -Q. The work of one flow z -> z', with all but its moving blocks frozen, is

    H(z') - H(z) - T log|det dz'/dz|                                  for a flow without noise,
    H(z') - H(z) + T log k_s(z -> z') - T log k_{-s}(z' -> z)         for noise with a density k_s,
    0                                                                 for noise of the law exp(-H/T), reversed at -s.

A path that is wrapped around a circle or reflected at ends is one on the line, moved as a whole by an isometry: k is
the density on the line, and the way back leads from z' to the image of z.

Source: Sivak, Chodera and Crooks (2013), "Using nonequilibrium fluctuation theorems to understand and correct errors in
equilibrium and nonequilibrium simulations of discrete Langevin dynamics"; Ma, Fox, Chen and Wu (2019), "Irreversible
samplers from jump and continuous Markov processes".
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import combinations

from sympy import Abs, Add, Dummy, Expr, ImmutableMatrix, Mul, Piecewise, S, diff, expand, log, simplify, sqrt

from recipe import Recipe, total
from recipe.algebra import vanishes
from recipe.calculus import derivative
from recipe.derive import circulation, residual
from recipe.errors import RecipeError
from recipe.involutions import Involution
from recipe.laws import DiscreteLaw, Law, by_category
from recipe.logs import softplus
from recipe.pieces import Jump
from recipe.scheme import Scheme
from recipe.spheres import project
from recipe.swaps import Swap
from recipe.symbols import Adapted, Crossing, SiteDummy, Total, is_site
from recipe.symbols import duration as t
from recipe.symbols import temperature as T

from . import boundaries
from .direction import DIRECTION, noise_in, remembered, reversed_in_time, summed, unsigned, value_before
from .flow import Flow, on_the_line, refuse_moving_fields, solve
from .flow_rules import kicked
from .functions import Change
from .jump import probability, solve_jump, turned
from .path_densities import log_ratio
from .split import Subsystem, split


@dataclass(frozen=True)
class Worked:
    """A flow at the direction s, and its work: the change of H plus the `heat`, or 0 if the flow is `balanced`.

    `returned`: the part of the heat that is a formula at z'. `kept`: what it may read of z: x as `value_before(x)`,
    or the image of x where x is led back into its domain, and the noise in x as `noise_in(x)`. The `heat` of a swap
    is the decrease of H, which cancels the swap's change of H in the work of a whole step. `rest`: what is left of H
    without the part of it that the flow is in detailed balance with, and 0 if none is known; the work is then the
    change of `rest`.
    """

    flow: Flow
    heat: Expr
    balanced: bool
    returned: Expr = S.Zero
    kept: Mapping[Adapted, Expr] = field(default_factory=dict)
    rest: Expr = S.Zero

    @property
    def in_words(self) -> str:
        """The work in words."""
        if self.balanced:
            return "no work"
        if self.rest != 0:
            return f"in detailed balance but for {self.rest}, its work"
        return "work dH" if self.heat == self.returned == 0 else "work dH + heat"

    @property
    def formula(self) -> str:
        """The work as a formula: z is the state before the flow, z' the state after, x_left the block x of z."""
        if self.balanced:
            return "0"
        if self.rest != 0:
            return f"V(z') - V(z) of V = {self.rest}"
        heat, returned = self.heat, self.returned
        for difference in sorted(returned.atoms(Change), key=str):  # of squares, of which one is of the noise at z
            at_end, at_start = (Total(e) if is_site(e) else e for e in difference.args)
            heat -= at_start.xreplace(self.kept)
            returned = returned.xreplace({difference: at_end})
        terms = ["H(z') - H(z)"]
        if heat != 0:
            terms.append(str(heat))
        if returned != 0:
            terms.append(f"[{returned} at z']")
        return " + ".join(terms).replace("+ -", "- ").replace("__", "_")

    @property
    def memory(self) -> dict[Adapted, Expr]:
        """The quantities that the returned heat reads of z, each with its value."""
        return {s: e for s, e in self.kept.items() if s in self.returned.free_symbols}


def change(H: Expr, after: Mapping[Expr, Expr], before: Mapping[Expr, Expr]) -> Expr:
    """H at the values `after` of symbols less H at their values `before`; sums over sites are of changes by site.

    Sums of all sites of a network differ by less than their rounding in float32.
    """
    of_chain: list[Expr] = []
    by_site: list[Expr] = []
    for term in Add.make_args(H):
        if not term.has(*after, *before):
            continue
        sums = (f for f in Mul.make_args(term) if isinstance(f, Total) and f not in before)
        whole = next((f for f in sums if is_site(f.integrand)), None)
        if whole is None:
            of_chain.append(term)
        else:
            by_site.append(term / whole * whole.integrand)
    return Add(*(Change(e.xreplace(after), e.xreplace(before)) for e in (*of_chain, Add(*by_site)) if e != 0))


def works(recipe: Recipe, scheme: Scheme, letters: Mapping, frozen: Collection[str] = ()) -> dict[str, Worked]:
    """The flow and work of every letter of a word; `recipe`: a recipe from `directed`.

    Raises RecipeError for a flow whose reversed path has no density.
    """
    left_out = [letter for letter in recipe.accepted if letter not in scheme.letters]
    pieces = split(recipe, scheme, letters, frozen, left_out)
    worked = {letter: _worked(recipe, piece, bool(left_out)) for letter, piece in pieces.items()}
    for letter, move in recipe.jumps.items():
        if isinstance(move, Involution):
            worked[letter] = _turned(recipe, letter, move, frozen)
            continue
        flow = solve_jump(recipe, letter, move, frozen)
        if isinstance(move, Jump) and move.proposed and flow.updates:
            worked[letter] = _proposed(recipe, flow, move.proposed)
            continue
        fall: Expr = S.Zero
        if isinstance(move, Swap) and flow.swaps:
            (_, accepted), _ = flow.updates[move.blocks[0]].args
            fall = Piecewise((-move.excess(recipe.H), accepted), (S.Zero, True))
        worked[letter] = Worked(flow, fall, balanced=True)
    return worked


def _turned(recipe: Recipe, letter: str, jump: Involution, frozen: Collection[str]) -> Worked:
    """The jump at lambda for s = 1 and at lambda(F(z)) for s = -1, and its work: 0, or of a chain that stays

    T log(1 - P_s(z)) - T log(1 - P_{-s}(z)),   P_s the probability to be at F(z).
    """
    flow = solve_jump(recipe, letter, jump, frozen)
    if flow.updates == {} or jump.is_reversible(recipe.H):
        return Worked(flow, S.Zero, balanced=True)
    rates = [(jump.rate_of_both - s * jump.rise) / 2 for s in (DIRECTION, -DIRECTION)]
    flow = turned(letter, jump, rates[0])
    there, away = (probability(jump, rate) for rate in rates)
    stays = Piecewise((S.Zero, flow.draws[0] < there), (T * (log(1 - there) - log(1 - away)), True))
    return Worked(flow, summed(stays, jump.blocks[0]) if jump.is_by_site else stays, balanced=False)


def _proposed(recipe: Recipe, flow: Flow, law: Law) -> Worked:
    """The draw of a proposed law with the density q, and its work T log q(z -> z') - T log q(z' -> z).

    The parameters of q(z -> .) are kept: of a discrete law -log of its weights, of others its arguments.
    """
    (b,) = flow.updates
    x = SiteDummy(real=True) if b.is_vector else Dummy(real=True)
    costs = [cost + law.log_integral for cost in law.costs] if isinstance(law, DiscreteLaw) else []
    numbers = costs or law.arguments
    names = [Adapted(f"{b}__law_{k}", is_site(e), "real", S.Zero) for k, e in enumerate(numbers, 1)]
    values = [name if e.has(*recipe.state) else e for name, e in zip(names, numbers)]
    surprise = by_category(b, *values) if costs else _surprise(type(law)(*values), b)
    returned = T * (_surprise(law, x).xreplace({x: value_before(b)}) - surprise)
    kept = {value_before(b): b} | {name: e for name, e in zip(values, numbers) if name is not e}
    return Worked(flow, S.Zero, balanced=False, returned=summed(returned, b), kept=kept)


def _surprise(law: Law, x: Expr) -> Expr:
    """-log of the density of a law, up to a constant."""
    return law.energy(x) + law.log_integral


def _worked(recipe: Recipe, piece: Subsystem, in_part: bool = False) -> Worked:
    """The work of a piece; `in_part`: whether the word leaves out terms of the drift."""
    refuse_moving_fields(piece, recipe.name, accepted=True)
    flow = _solved(piece, recipe.name)
    if (flow.exact or flow.keeps_law) and _is_balanced(piece, recipe.H):
        return Worked(flow, S.Zero, balanced=True)
    if flow.turns:
        _refuse_irreversible(piece, flow, f"{recipe.name}, work of {flow.letter!r}")
        _refuse_expansion(recipe, piece)
        return Worked(flow, S.Zero, balanced=False)
    part = _balanced_part(recipe, piece) if in_part and flow.exact else None
    if part is not None:
        return Worked(flow, -change(part, flow.updates, {}), balanced=False, rest=recipe.H - part)
    if not flow.draws:
        return Worked(flow, _expansion(recipe, piece, flow), balanced=False)
    if piece.method == "barker":
        return _barker_work(piece, flow)
    if any(b.domain.is_sphere for b in flow.updates):
        return _work_on_sphere(recipe, piece, flow)
    led_back = [b for b in flow.updates if b.domain.wraps or b in boundaries.reflected(piece)]
    line = _unsigned(on_the_line(piece, recipe.name)) if led_back else flow
    heat, returned = log_ratio(recipe, piece, line)
    kept = {value_before(b): boundaries.image(b, line.updates[b]) if b in led_back else b for b in flow.updates}
    kept |= {noise_in(d.block): d * diff(line.updates[d.block], d) for d in line.draws}
    return Worked(flow, heat, balanced=False, returned=returned, kept=kept)


def _solved(piece: Subsystem, name: str) -> Flow:
    """The flow of a piece; where none is known for a sign s of skew operators, that of each direction of time."""
    try:
        return _unsigned(solve(piece, name))
    except RecipeError:
        if not any(f.has(Crossing) and f.has(DIRECTION) for f in piece.drift.values()):
            raise
    ways = [{b: f.xreplace({DIRECTION: s}) for b, f in piece.drift.items()} for s in (S.One, S.NegativeOne)]
    ahead, back = (solve(replace(piece, drift=drift), name) for drift in ways)
    updates = {b: Piecewise((e, DIRECTION > 0), (back.updates[b], True)) for b, e in ahead.updates.items()}
    return replace(ahead, updates=updates, equation=str(piece))


def _unsigned(flow: Flow) -> Flow:
    return replace(flow, updates={b: unsigned(e) for b, e in flow.updates.items()})


def _balanced_part(recipe: Recipe, piece: Subsystem) -> Expr | None:
    """H less the fewest of its terms without which exp(-H/T) is the law of a piece; None where there are none."""
    read = [term for term in Add.make_args(recipe.H) if term.has(*piece.moving)]
    for k in range(1, len(read)):
        for terms in combinations(read, k):
            if _is_balanced(piece, recipe.H - Add(*terms)):
                return recipe.H - Add(*terms)
    return None


def _is_balanced(piece: Subsystem, H: Expr) -> bool:
    """Whether exp(-H/T) is the law of a piece with noise, and the piece at -s its time reversal.

    It is if the drift is -D grad H + T div D, with D of the noise, and a curl that is odd in s and leaves exp(-H/T)
    invariant. Source: Ma, Chen & Fox (2015), Theorem 2.
    """
    if not piece.diffusion:
        return False
    blocks = piece.moving
    drift = ImmutableMatrix([piece.drift.get(b, S.Zero) for b in blocks])
    D = T * piece.matrix(piece.diffusion)
    curl = circulation(drift, H / T, D, blocks)
    even = [e + reversed_in_time(e) for e in curl]
    if any(e.expand() != 0 and vanishes(e) is None for e in even):
        return False
    rest = S.Zero if curl.is_zero_matrix else residual(drift, H / T, D, blocks)
    return rest == 0 or vanishes(rest) is not None


def _refuse_irreversible(piece: Subsystem, flow: Flow, where: str) -> None:
    """Refuse a flow without noise that the flow at -s does not invert."""
    for f in piece.drift.values():
        even = f + reversed_in_time(f)
        if even.expand() != 0 and vanishes(even) is None:
            what = f"its drift has friction without the noise that goes with it, {even / 2}: no path leads back"
            raise RecipeError(where, what, do="Put the friction and the noise of a block into one piece.")
    if not (flow.exact or flow.turns):
        what = f"the method {flow.rule!r} is not reversed by -Q: no path leads back"
        raise RecipeError(where, what, do="Use exact pieces, B A B say.")


def _refuse_expansion(recipe: Recipe, piece: Subsystem) -> None:
    """Refuse a leapfrog of a position x and a momentum p but for dx = k dH/dp dt, dp = -k dH/dx dt: it keeps volume."""
    x, p = piece.drift
    k = -recipe.Q[recipe.state.index(x), recipe.state.index(p)]
    rest = (piece.drift[x] - k * derivative(recipe.H, p), piece.drift[p] + k * derivative(recipe.H, x))
    if k.free_symbols & {*recipe.state} or not all(map(vanishes, rest)):
        what = f"{piece} is not k dH/d{p}, -k dH/d{x} with a number k, and its volume is not known"
        raise RecipeError(f"{recipe.name}, work of {piece.letter!r}", what, do="Let Q be a number there.")


def _expansion(recipe: Recipe, piece: Subsystem, flow: Flow) -> Expr:
    """-T log|det dz'/dz| of a flow without noise."""
    where = f"{recipe.name}, work of {flow.letter!r}"
    _refuse_irreversible(piece, flow, where)
    blocks = list(flow.updates)
    if any(b.domain.is_sphere for b in blocks):
        return _expansion_on_sphere(piece)
    if any(x.has(*blocks) for e in flow.updates.values() for x in e.atoms(Total)):
        raise RecipeError(where, "it moves a block by a total of its own sites", do="Cut it finer.")
    rates = {b: diff(piece.drift.get(b, S.Zero), b) for b in blocks}
    if not any(r.has(*blocks) for r in rates.values()):  # linear equations have log det = t div f
        return -T * Add(*(summed(t * r, b) for b, r in rates.items()))
    if len({b.is_vector for b in blocks}) != 1:
        raise RecipeError(where, "it moves vectors and scalars together", do="Cut it finer.")
    jacobian = ImmutableMatrix([[diff(flow.updates[b], z) for z in blocks] for b in blocks])
    return -T * summed(log(Abs(simplify(jacobian.det()))), blocks[0])


def _expansion_on_sphere(piece: Subsystem) -> Expr:
    """-T log|det| of `great_circle` on the tangent spaces: (n - 1) T log(cosh rt + total(u f)/r sinh rt).

    The log is r t + log(1 + (total(u f) - r) k (1 + e^{-rt})/2), which does not overflow.
    """
    f, still, k, b = kicked(piece) or (S.NaN,) * 4
    r = sqrt(total(f**2))
    return unsigned((total(1) - 1) * T * (r * t + log(1 + (b - r) * k * (1 + still) / 2)))


def _barker_work(piece: Subsystem, flow: Flow) -> Worked:
    """The work of `barker`, T log a(z' - z) at z less T log a(z - z') at z', with a(z) = 1/(1 + exp(-f z/(T D)))."""
    (x,) = flow.updates
    slope = piece.drift.get(x, S.Zero) / (T * piece.diffusion[x, x])
    before, shift = remembered(x, "tilt"), x - value_before(x)
    returned = softplus(reversed_in_time(slope) * shift) - softplus(-before * shift)
    kept = {value_before(x): x, before: slope}
    return Worked(flow, S.Zero, balanced=False, returned=summed(T * returned, x), kept=kept)


def _work_on_sphere(recipe: Recipe, piece: Subsystem, flow: Flow) -> Worked:
    """The work of Euler's step on a sphere, u' = x/|x| with x = a u + m(u) + s N, a number a, and m, N tangent at u.

    In the tangent plane w = u'/total(u u') - u the law of a w is normal, and du' = total(u u')^n dw either way:
    the log ratio is that of the squares of a w - m(u) and of the same from u' to u.
    """
    where = f"{recipe.name}, work of {flow.letter!r}"
    (u, *others), (draw, *more) = flow.updates, flow.draws
    line = _unsigned(on_the_line(piece, recipe.name)).updates[u]
    mean = line.xreplace({draw: S.Zero})
    a = expand(total(u * mean))
    if others or more or piece.method != "euler" or a.has(*recipe.state):
        what = f"{flow.equation} [{flow.rule}] has no density that is known"
        raise RecipeError(where, what, do=f"Let Euler's step, numerical({u}, 'euler'), move {u} alone.")
    width = 2 * t * T * piece.diffusion[u, u] / project(u)
    difference = a * (value_before(u) / total(value_before(u) * u) - u) - reversed_in_time(mean - a * u)
    returned = Change(T * difference**2 / (2 * width), T * noise_in(u) ** 2 / (2 * width))
    return Worked(flow, S.Zero, balanced=False, returned=returned, kept={value_before(u): u, noise_in(u): line - mean})
