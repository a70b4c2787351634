"""The work of a step: the log ratio of the path that it has taken and of the time reversal of this path.

A sign s on the curl, one per chain, is the direction of time: H, D and s Q have the law exp(-H/T) for both signs, and
the dynamics at s reversed in time is that at -s. At s = 1 a step is its word; at s = -1 it is the reversed word of -Q.
Of one flow, all but its moving blocks frozen, z -> z', the work is

    H(z') - H(z) - T log|det dz'/dz|                                  where it has no noise,
    H(z') - H(z) + T log k_s(z -> z') - T log k_{-s}(z' -> z)         where its noise has a density k_s,
    0                                                                 where it is in detailed balance with exp(-H/T).

Source: Sivak, Chodera and Crooks (2013), "Using nonequilibrium fluctuation theorems to understand and correct errors in
equilibrium and nonequilibrium simulations of discrete Langevin dynamics"; Ma, Fox, Chen and Wu (2019), "Irreversible
samplers from jump and continuous Markov processes".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sympy import Abs, Add, Expr, ImmutableMatrix, Piecewise, S, Symbol, diff, log, simplify

from recipe import Recipe, total
from recipe.algebra import vanishes
from recipe.domains import domain_of
from recipe.errors import RecipeError
from recipe.symbols import Adapted, Block, Potential, Total, is_site
from recipe.symbols import duration as t
from recipe.symbols import temperature as T

from .flow import Flow, solve
from .jump import solve_jump
from .scheme import Scheme
from .split import Subsystem, split
from .variates import Normal


class Direction(Adapted):
    """The sign of the curl of a chain, 1 or -1: the direction of time."""

    __slots__ = ()

    def __new__(cls, name="direction"):
        """A number that is not 0, whose square is 1."""
        sign = Symbol.__xnew__(cls, name, real=True, nonzero=True)
        sign.is_vector = False
        sign.domain = domain_of("real", name)
        sign.start = S.One
        return sign

    def __getnewargs_ex__(self):
        return (self.name,), {}


DIRECTION = Direction()
WORK = Adapted("work", False, "real", S.Zero)
ACCEPTED = Adapted("accepted", False, "real", S.Zero)


@dataclass(frozen=True)
class Worked:
    """A flow at the direction s, and its work: the change of H and the `heat`, or none where it is `balanced`."""

    flow: Flow
    heat: Expr
    balanced: bool

    @property
    def in_words(self) -> str:
        """What its work is, in words."""
        if self.balanced:
            return "no work"
        return "work dH" if self.heat == 0 else "work dH + heat"


def directed(recipe: Recipe) -> Recipe:
    """The recipe with s Q for Q, where s is the direction of time, and no noise from the gradient.

    Raises RecipeError for adaptations, and an opaque U.
    """
    where = f"{recipe.name}, work"
    if recipe.adapt:
        names = ", ".join(map(str, recipe.adapted))
        raise RecipeError(where, f"{names} adapt to the path, which has no time reversal", do="Freeze them.")
    if recipe.H.has(Potential):
        raise RecipeError(where, "U is opaque, and the work has its value", do="Give it: recipe.bind(U=Energy(...)).")
    still = {a: a for a in (DIRECTION, WORK, ACCEPTED)}
    return replace(recipe, Q=DIRECTION * recipe.Q, supplied=0 * recipe.supplied, adapt=still, claim=recipe.claim)


def works(recipe: Recipe, scheme: Scheme, letters: Mapping, frozen: tuple[str, ...] = ()) -> dict[str, Worked]:
    """Every letter of a word with its work; `recipe` is `directed`.

    Raises RecipeError for a flow whose reversed path has no density.
    """
    pieces = split(recipe, scheme, letters, frozen)
    worked = {letter: _worked(recipe, piece) for letter, piece in pieces.items()}
    for letter, jump in recipe.jumps.items():
        worked[letter] = Worked(solve_jump(recipe, letter, jump), S.Zero, balanced=True)
    return worked


def _worked(recipe: Recipe, piece: Subsystem) -> Worked:
    """A piece solved, with its work."""
    flow = solve(piece, recipe.name)
    flow = replace(flow, updates={b: unsigned(e) for b, e in flow.updates.items()})
    if flow.exact and _is_balanced(recipe, piece):
        return Worked(flow, S.Zero, balanced=True)
    heat = _log_ratio(recipe, piece, flow) if flow.draws else _expansion(recipe, piece, flow)
    return Worked(flow, heat, balanced=False)


def unsigned(e: Expr) -> Expr:
    """The expression with s^2 = 1 and |s| = 1."""
    s = DIRECTION
    e = e.replace(lambda x: isinstance(x, Abs) and x.args[0] == s, lambda x: S.One)
    return e.replace(lambda x: x.is_Pow and x.base == s and x.exp.is_Integer, lambda x: s ** (x.exp % 2))


def reversed_in_time(e: Expr) -> Expr:
    """The expression at -s."""
    return e.xreplace({DIRECTION: -DIRECTION})


def _is_balanced(recipe: Recipe, piece: Subsystem) -> bool:
    """Whether the drift of a piece is -D grad H + T div D of its own noise: then exp(-H/T) is in detailed balance."""
    D = piece.matrix(piece.diffusion)
    for i, b in enumerate(piece.moving):
        terms = [-D[i, j] * diff(recipe.H, z) + T * diff(D[i, j], z) for j, z in enumerate(piece.moving)]
        rest = piece.drift.get(b, S.Zero) - Add(*terms)
        if rest.expand() != 0 and vanishes(rest) is None:
            return False
    return bool(piece.diffusion)


def _refuse_irreversible(piece: Subsystem, flow: Flow, where: str) -> None:
    """Refuse a flow without noise that the one of -s does not undo."""
    for f in piece.drift.values():
        even = f + reversed_in_time(f)
        if even.expand() != 0 and vanishes(even) is None:
            what = f"its drift has friction without the noise that goes with it, {even / 2}: no path leads back"
            raise RecipeError(where, what, do="Put the friction and the noise of a block into one piece.")
    if not flow.exact:
        what = f"the method {flow.rule!r} is not reversed by -Q: no path leads back"
        raise RecipeError(where, what, do="Use exact pieces, B A B say.")


def _expansion(recipe: Recipe, piece: Subsystem, flow: Flow) -> Expr:
    """-T log|det dz'/dz| of a flow without noise."""
    where = f"{recipe.name}, work of {flow.letter!r}"
    _refuse_irreversible(piece, flow, where)
    blocks = list(flow.updates)
    if any(x.has(*blocks) for e in flow.updates.values() for x in e.atoms(Total)):
        raise RecipeError(where, "it moves a block by a total of its own sites", do="Cut it finer.")
    rates = {b: diff(piece.drift.get(b, S.Zero), b) for b in blocks}
    if not any(r.has(*blocks) for r in rates.values()):  # of a linear equation: log det = t div f
        return -T * Add(*(_over_sites(t * r, b) for b, r in rates.items()))
    if len({b.is_vector for b in blocks}) != 1:
        raise RecipeError(where, "it moves vectors and scalars together", do="Cut it finer.")
    jacobian = ImmutableMatrix([[diff(flow.updates[b], z) for z in blocks] for b in blocks])
    return -T * _over_sites(log(Abs(simplify(jacobian.det()))), blocks[0])


def _over_sites(e: Expr, block: Block) -> Expr:
    """The sum over the sites of a vector block of what each adds, or what the one value of a scalar block adds."""
    e = unsigned(e)
    if not block.is_vector:
        return e
    return Total(e) if is_site(e) else total(1) * e


def _log_ratio(recipe: Recipe, piece: Subsystem, flow: Flow) -> Expr:
    """T log k_s(z -> z') - T log k_{-s}(z' -> z) of a flow of Gaussian noise, one number for each block."""
    where = f"{recipe.name}, work of {flow.letter!r}"
    blocks = list(flow.updates)
    own = {d.block: d for d in flow.draws}
    normal = all(isinstance(d, Normal) for d in flow.draws) and set(own) == set(blocks)
    if not normal or flow.rule in ("reflected", "heun") or any(b.domain.ends or b.domain.wraps for b in blocks):
        what = f"{flow.equation} [{flow.rule}] has no density that is known"
        raise RecipeError(where, what, do="Let every block that moves have a noise of its own, or cut it finer.")
    terms = []
    for b, new in flow.updates.items():
        draw = own[b]
        spread = diff(new, draw)
        if spread.has(*own.values()) or any(diff(new, d) != 0 for d in own.values() if d != draw):
            raise RecipeError(where, f"the noise of {b} is not one of its own", do="Cut the piece finer.")
        mean = new.xreplace({draw: S.Zero})
        back = {DIRECTION: -DIRECTION, **flow.updates}
        spread_back, mean_back = spread.xreplace(back), mean.xreplace(back)
        returned = (b - mean_back) / spread_back
        ratio = T * ((returned**2 - draw**2) / 2 + log(spread_back) - log(spread))
        if not spread.is_positive:  # where the noise vanishes the mean is all
            ratio = Piecewise((ratio, spread > 0), (-T * log(Abs(diff(mean, b))), True))
        terms.append(_over_sites(ratio, b))
    return Add(*terms)
