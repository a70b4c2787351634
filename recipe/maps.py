"""Recipes in other coordinates: theta = f(z) at every site, with the volume of the map in H.

With theta = f(z) the law exp(-H/T) of theta becomes the law exp(-H'/T) of z,

    H'(z) = H(f(z)) - T total(log|f'(z)|).

If f reads sums over the sites, theta_i = f(z_i, S) with S_k = sum_j s_k(z_j), the Jacobian is a diagonal a = df/dz
plus a matrix of low rank, b_k = df/dS_k and c_k = ds_k/dz, with determinant prod(a) det(1 + total(c_k b_l/a)).

By default D and Q are the formulas for z. If D and Q are `carried` over, D_zz = D/f'^2 and Q_zp = Q/f', the chain
equals the chain of theta by Ito's formula. Source: Hsieh, Kavis, Rolland & Cevher (2018), "Mirrored Langevin dynamics";
for `carried` Zhang, Peyre, Fadili & Pereyra (2020), "Wasserstein control of mirror Langevin Monte Carlo".
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

from sympy import (
    Add,
    Derivative,
    Expr,
    Heaviside,
    ImmutableMatrix,
    S,
    Symbol,
    Tuple,
    cosh,
    diff,
    expand_log,
    eye,
    log,
    sign,
    simplify,
    solve,
)
from sympy.core.function import AppliedUndef

from .algebra import entries
from .arguments import check_known
from .declaration import Recipe, check_recipe
from .declared import Adapted, Block, Parameter, temperature
from .errors import RecipeError
from .formulas import formula
from .involutions import Involution
from .logs import is_softplus, with_short_logs
from .pieces import Jump, Piece
from .swaps import Swap
from .symbols import Crossing, Partial, Potential, Total, masked, total

PROBES = [(S.Zero,), *((S(k) / 4,) for k in range(-60, 61, 7))]  # chains at which a map of one site is checked
TOGETHER = [(0,), (0, 1), (-2, 1), (3, -1, 0), (-4, 2, 5), (1, 1, -6)]  # chains at which a map with sums is checked
CLOSE = 1e-9
RANGE = 1e-6  # distance from an end of the domain at which a map has reached it
BY_A_RUN = "Pass coordinates= to samplers.sample: samplers.coordinates.Simplex() is softmax, Affine a matrix."


@dataclass(frozen=True)
class Map:
    """A map theta = `image`, a formula of the block z; `inverse`: z as a formula of theta."""

    theta: Block
    z: Block
    image: Expr
    inverse: Expr

    @property
    def mixes(self) -> bool:
        """Whether the map reads sums over the sites."""
        return self.image.has(Total)

    @cached_property
    def slope(self) -> Expr:
        """dtheta/dz at fixed sums over sites."""
        image, sums = masked(self.image, Total)
        return simplify(diff(image, self.z)).xreplace(sums)

    @cached_property
    def coupling(self) -> Expr:
        """det(1 + total(c_k b_l/a)): the factor of the determinant from the sums over sites."""
        image, sums = masked(self.image, Total)
        slopes = [diff(image, S_k).xreplace(sums) / self.slope for S_k in sums]
        rows = [[total(diff(S_k.integrand, self.z) * b) for b in slopes] for S_k in sums.values()]
        outside, inside = masked((eye(len(rows)) + ImmutableMatrix(len(rows), len(rows), sum(rows, []))).det(), Total)
        return simplify(outside).xreplace(inside)

    @cached_property
    def covers(self) -> bool:
        """Whether the range of the map is the domain of theta, by values far out: tanh reaches -1 and 1 only."""
        near, far, farthest = (at_sites(self.image, self.z, (x, -x)) for x in (10**3, 10**6, 10**12))
        ends = (self.theta.domain.low, self.theta.domain.high)
        return self.mixes or all(
            abs(c - b) > abs(b - a) / 2 or any(abs(c - end) < RANGE for end in ends if end.is_finite)
            for a, b, c in zip(near, far, farthest, strict=True)
        )

    @property
    def log_determinant(self) -> Expr:
        """log|det dtheta/dz| for a chain."""
        return total(self.volume) + self._log_of(self.coupling) if self.theta.is_vector else self.volume

    @property
    def volume(self) -> Expr:
        """log|dtheta/dz| at a site, without the overflow of exp."""

        def even(x: Expr) -> Expr:
            a = (x.args[0] - 1).args[0]
            return a / 2 + log(2 * cosh(a / 2))

        return self._log_of(self.slope).replace(is_softplus, even)

    def _log_of(self, factor: Expr) -> Expr:
        """The log of the absolute value of a factor that has one sign."""
        sign_of = 1 if at_sites(factor, self.z, (0, 1))[0] > 0 else -1
        return expand_log(log(sign_of * factor), force=True)

    def __str__(self) -> str:
        return f"{self.theta} = {self.image}"


def mapped(
    recipe: Recipe,
    *,
    by: Callable[[Block], Any],
    inverse: Callable[..., Any] | None = None,
    carried: bool = False,
    **block: Block,
) -> Recipe:
    """The recipe in other coordinates z of a block, theta = by(z) at every site: `mapped(R, theta=z, by=exp)`.

        H'(z) = H(f(z)) - T log|det df/dz|,   log|det df/dz| = total(log|f'(z)|) for f of one site

    The keyword is the name of the target or of another block, its value the real block z. `by`: a monotone, smooth
    function; sympy finds the `inverse` by default. The law is cut to the range of the map, for tanh to (-1, 1). D and Q
    are the formulas for z; if `carried`, the formulas for theta, so that the SDE does not change. A map may read sums
    over the sites, such as `exp(z)/(1 + total(exp(z)))`, the first d - 1 of d shares;
    then `inverse` must be given, here `log(theta/(1 - total(theta)))`, and `carried` must be False. Energies, starts
    and draws of `samplers.sample` are in theta, as is a bound Energy; the gradient of a Step is by z. Raises
    RecipeError for a map that is not monotone, lacks a slope or has a singular Jacobian somewhere, or leaves the domain
    of theta, and for an inverse that is not found or wrong.
    Source: Hsieh et al. (2018); Zhang et al. (2020) if `carried`.

    >>> from recipe import positive, total, vector
    >>> from sympy import exp, log
    >>> theta, z = vector("theta", domain="positive"), vector("z")
    >>> gamma_law = Recipe(name="gamma-law", state=theta, H=total(theta - 2*log(theta)), D={theta: 1})
    >>> mapped(gamma_law, theta=z, by=exp).drift
    Matrix([[T - exp(z) + 2]])
    """
    check_recipe("mapped", recipe)
    where = f"{recipe.name}, mapped"
    if any(recipe.transport):
        what = "its transport has no divergence in theta, and would have one in the new coordinates"
        raise RecipeError(where, what, do="Map a recipe of D and Q alone.")
    change = _map_of(recipe, block, by, inverse, where)
    if carried and change.mixes:
        what = f"{change} mixes sites, and D and Q of theta are no formulas of one site of {change.z}"
        raise RecipeError(where, what, do="Leave carried out: D and Q are those of the new coordinates then.")
    return _in_coordinates(recipe, change, carried)


def _in_coordinates(recipe: Recipe, change: Map, carried: bool) -> Recipe:
    """The recipe with a block moved by its Map; D and Q are those for theta if `carried`."""
    rule = _rule(recipe, change, carried)
    places = {change.theta: change.z}
    scale = [1 / change.slope if carried and b == change.theta else S.One for b in recipe.state]

    def matrix(A: Any) -> ImmutableMatrix:
        values = {(i, j): e.xreplace(rule) * scale[i] * scale[j] for (i, j), e in entries(A).items()}
        return ImmutableMatrix(*A.shape, lambda i, j: values.get((i, j), S.Zero))

    def energy_of_z(H: Expr) -> Expr:
        H = H.xreplace(rule)
        return (with_short_logs(H) if change.mixes else H) - temperature * change.log_determinant

    is_target = change.theta in recipe.targets
    energy = recipe.energy_of_target if is_target else None
    return replace(
        recipe,
        state=tuple(places.get(b, b) for b in recipe.state),
        target=change.z if is_target else recipe.target,
        H=energy_of_z(recipe.H),
        D=matrix(recipe.D),
        Q=matrix(recipe.Q),
        supplied=matrix(recipe.supplied),
        marginal=recipe.marginal if energy is None else energy_of_z(energy),
        weights=None if recipe.weights is None else recipe.weights.xreplace(rule),
        adapt={rule.get(a, a): e.xreplace(rule) for a, e in recipe.adapt.items()},
        pieces={letter: _piece(piece, places) for letter, piece in recipe.pieces.items()},
        jumps={letter: _jump(jump, rule) for letter, jump in recipe.jumps.items()},
        conversions={
            k: {rule.get(s, s): e.xreplace(rule) for s, e in f.items()} for k, f in recipe.conversions.items()
        },
        requires=tuple(relation.xreplace(rule) for relation in recipe.requires),
        maps={change.z: change} if is_target else {},
    )


# ---- the map


def _map_of(recipe: Recipe, block: dict[str, Block], by: Any, inverse: Any, where: str) -> Map:
    """The checked Map of a block."""
    blocks = {b.name: b for b in recipe.state}
    if len(block) != 1 or recipe.maps:
        what = f"one block is mapped once, got {', '.join(block) or 'none'} of {', '.join(blocks)}"
        raise RecipeError(where, what, do=f'Write mapped(recipe, {recipe.targets[0]}=vector("z"), by=exp).')
    ((name, z),) = block.items()
    check_known(where, "{!r} is no block", [name], blocks)
    theta = blocks[name]
    if theta in recipe.targets and len(recipe.targets) > 1:
        names = ", ".join(b.name for b in recipe.targets)
        raise RecipeError(where, f"{name} is one of several targets, {names}", do="Map a recipe of one target.")
    if not isinstance(z, Block) or z.is_vector != theta.is_vector or not z.domain.is_real or isinstance(z, Adapted):
        kind = "vector" if theta.is_vector else "scalar"
        raise RecipeError(where, f"{z!r} is no real {kind}", do=f'Write {name}={kind}("z").')
    if z.name in {s.name for s in recipe.symbols if s != theta} | {theta.name}:
        raise RecipeError(where, f"the name '{z}' is taken", do="Choose another name.")
    if theta.domain.wraps or theta.domain.is_discrete:
        raise RecipeError(where, f"{theta} is {theta.domain.in_words}", do="Map a block of numbers of a range.")
    if not callable(by):
        raise RecipeError(where, f"by is a function of {z}, got {by!r}", do="Pass sympy's exp, or lambda z: exp(z).")
    change = Map(theta, z, formula(by(z), f"{where}, by"), S.Zero)
    chains = TOGETHER if change.mixes else PROBES
    _check_form(change, f"{where}, by")
    _check_slopes(change, chains, f"{where}, by")
    for chain in chains:
        for value in at_sites(change.image, z, chain):
            if not theta.domain.low <= value <= theta.domain.high:
                at = ", ".join(map(str, chain))
                what = f"{change.image} is {float(value):.3g} at {z} = {at}, and {theta} is {theta.domain.in_words}"
                raise RecipeError(f"{where}, by", what, do="Use a function to its domain.")
    return replace(change, inverse=_inverse(change, inverse, f"{where}, inverse"))


def at_sites(e: Expr, z: Symbol, points: Sequence[Any]) -> list[Any]:
    """The values of a formula of z at every site of a chain with the values `points` of z."""
    inside, sums = masked(e, Total)
    values = {name: Add(*at_sites(S_k.integrand, z, points)) for name, S_k in sums.items()}
    return [inside.xreplace({**values, z: S(x)}).evalf(50) for x in points]


def _check_form(change: Map, where: str) -> None:
    """Refuse a map that reads more than its own site and sums over sites, or that lacks a Jacobian."""
    image = change.image
    is_nested = any(e.integrand.has(Total) for e in image.atoms(Total))
    if image.has(Crossing) or is_nested or change.mixes and not change.theta.is_vector:
        what = f"{image} mixes sites, and is no function of a site and of sums over sites"
        raise RecipeError(where, what, do=BY_A_RUN)
    if image.free_symbols != {change.z}:
        names = ", ".join(sorted(map(str, image.free_symbols - {change.z}))) or "nothing"
        what = f"{image} is of {names}, not of {change.z} alone"
        raise RecipeError(where, what, do=f"Write numbers and {change.z}.")
    if Tuple(image, change.slope).has(Derivative, AppliedUndef, sign, Heaviside):
        raise RecipeError(where, f"the Jacobian of {image} is missing: {change.slope}", do="Use a smooth function.")


def _check_slopes(change: Map, chains: Sequence[Sequence[Any]], where: str) -> None:
    """Refuse a map with a Jacobian that is missing or singular, or changes its sign, at some chains."""
    least = CLOSE**2 if change.mixes else 0.0
    for factor in (change.slope, change.coupling):
        at = [(x, complex(value)) for chain in chains for x, value in zip(chain, at_sites(factor, change.z, chain))]
        missing = [x for x, s in at if s.imag or not abs(s) < float("inf")]
        if missing and not change.mixes:
            what = f"{change.image} has no slope at {change.z} = {missing[0]}"
            raise RecipeError(where, what, do="Use a function of all reals.")
        if missing or any(abs(s) <= least for _, s in at) or len({s.real > 0 for _, s in at}) > 1:
            if change.mixes:
                what = f"{change.image} mixes sites, and its Jacobian is singular somewhere"
                raise RecipeError(where, what, do=BY_A_RUN)
            what = f"{change.image} is not monotone: its slope, {change.slope}, vanishes or changes its sign"
            raise RecipeError(where, what, do="Use a function that rises or falls everywhere.")


def _inverse(change: Map, inverse: Callable | None, where: str) -> Expr:
    """z as a formula of theta; raises RecipeError if none is found, or the given inverse is wrong."""
    x = Block(change.theta.name, change.theta.is_vector, change.theta.domain)
    what = f"the inverse of {change.image} is not found"
    ways: list[Expr] = []
    if inverse is not None:
        ways = [formula(inverse(x), where)]
        what = f"{ways[0]} is not the inverse of {change.image}"
    elif change.mixes:
        what = f"the inverse of {change.image} is not looked for, as it mixes sites"
    else:
        with suppress(NotImplementedError):
            ways = _solutions(change.image - x, change.z)
    chains = TOGETHER if change.mixes else [chain for chain in PROBES if abs(chain[0]) < 4]
    for way in ways:
        with suppress(RecipeError):  # a function that no backend has
            way = formula(way, where)
            back = [at_sites(way, x, at_sites(change.image, change.z, chain)) for chain in chains]
            pairs = [pair for chain, row in zip(chains, back) for pair in zip(row, chain)]
            if all(abs(complex(z - at)) < CLOSE * (1 + abs(complex(at))) for z, at in pairs):
                return way
    raise RecipeError(where, what, do="Pass inverse=, the function from theta to z.")


@lru_cache(maxsize=64)
def _solutions(equation: Expr, z: Symbol) -> list[Expr]:
    """The solutions of equation = 0 by z; sympy takes a second for a hyperbolic function."""
    return solve(equation, z)


# ---- the formulas


def _rule(recipe: Recipe, change: Map, carried: bool) -> dict[Any, Any]:
    """The replacements of theta, of U and its derivatives, and of symbols per site of theta."""
    rule: dict[Any, Any] = {change.theta: change.image}
    partials = {p for e in recipe.formulas for p in e.atoms(Partial)}
    partials |= {p for a in recipe.adapted for p in a.start.atoms(Partial)}
    for U in recipe.potentials:
        rule[U] = Potential(*(change.z if b == change.theta else b for b in U.args))
    for p in partials:
        value = rule[p.U]
        for _ in p.variables:
            value = diff(value, change.z) / (change.slope if carried else S.One)
        rule[p] = value
    for s in recipe.parameters:
        if s.per == change.theta:
            rule[s] = Parameter(s.name, s.sign, s.default, s.doc, change.z)
    for a in recipe.adapted:
        rule[a] = Adapted(a.name, a.is_vector, a.domain, a.start.xreplace(rule))
    return rule


def _piece(piece: Piece, places: dict[Any, Block]) -> Piece:
    return replace(piece, parts=tuple((part, places.get(b, b)) for part, b in piece.parts))


def _jump(jump: Jump | Swap | Involution, rule: dict[Any, Any]) -> Jump | Swap | Involution:
    blocks = [b for b in jump.blocks if b in rule]
    if blocks and (isinstance(jump, Swap | Involution) or jump.proposed):
        what = f"{blocks[0]} would be in other coordinates than its new value"
        raise RecipeError(f"mapped, {jump}", what, do="Leave the jump out, or the map.")
    return jump.replaced(lambda e: e.xreplace(rule))
