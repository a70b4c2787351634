"""Recipes in other coordinates: theta = f(z) at every site, with the volume of the map in H.

With theta = f(z) the law exp(-H/T) of theta becomes the law exp(-H'/T) of z,

    H'(z) = H(f(z)) - T total(log|f'(z)|).

If f reads sums over the sites, theta_i = f(z_i, S) with S_k = sum_j s_k(z_j), the Jacobian is a diagonal a = df/dz
plus a matrix of low rank, b_k = df/dS_k and c_k = ds_k/dz, with determinant prod(a) det(1 + total(c_k b_l/a)).

By default D and Q are the formulas for z. If D and Q are `carried` over, D_zz = D/f'^2 and Q_zp = Q/f', the chain
equals the chain of theta by Ito's formula. Source: Hsieh, Kavis, Rolland & Cevher (2018), "Mirrored Langevin dynamics",
for the former, Zhang, Peyre, Fadili & Pereyra (2020), "Wasserstein control of mirror Langevin Monte Carlo", for the
latter.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sympy import (
    Add,
    Derivative,
    Expr,
    Heaviside,
    ImmutableMatrix,
    S,
    cosh,
    diff,
    exp,
    expand_log,
    eye,
    log,
    sign,
    simplify,
    solve,
)
from sympy.core.function import AppliedUndef

from .algebra import with_short_logs
from .declaration import Recipe
from .errors import RecipeError, did_you_mean
from .pieces import Jump, Piece
from .swaps import Swap
from .symbols import Adapted, Block, Crossing, Parameter, Partial, Potential, Total, formula, masked, temperature, total

PROBES = [S.Zero, *(S(k) / 4 for k in range(-60, 61, 7))]  # points at which a map is checked
TOGETHER = [(0,), (0, 1), (-2, 1), (3, -1, 0), (-4, 2, 5), (1, 1, -6)]  # chains at which a map with sums is checked
CLOSE = 1e-9
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

    @property
    def slope(self) -> Expr:
        """dtheta/dz at fixed sums over sites."""
        image, sums = masked(self.image, Total)
        return simplify(diff(image, self.z)).xreplace(sums)

    @cached_property
    def coupling(self) -> Expr:
        """det(1 + total(c_k b_l/a)): the factor of the determinant from the sums over sites."""
        image, sums = masked(self.image, Total)
        slopes = [diff(image, S_k).xreplace(sums) / self.slope for S_k in sums]
        rows = [[total(diff(own.integrand, self.z) * b) for b in slopes] for own in sums.values()]
        outside, inside = masked((eye(len(rows)) + ImmutableMatrix(len(rows), len(rows), sum(rows, []))).det(), Total)
        return simplify(outside).xreplace(inside)

    @property
    def log_determinant(self) -> Expr:
        """log|det dtheta/dz| for a chain."""
        if not self.theta.is_vector:
            return self.volume
        coupling = self.coupling if at_sites(self.coupling, self.z, (0, 1))[0] > 0 else -self.coupling
        return total(self.volume) + expand_log(log(coupling), force=True)

    @property
    def volume(self) -> Expr:
        """log|dtheta/dz| at a site, without the overflow of exp."""
        slope = self.slope if at_sites(self.slope, self.z, (0, 1))[0] > 0 else -self.slope

        def is_softplus(x: Expr) -> bool:
            return isinstance(x, log) and isinstance(x.args[0] - 1, exp)

        def even(x: Expr) -> Expr:
            a = (x.args[0] - 1).args[0]
            return a / 2 + log(2 * cosh(a / 2))

        return expand_log(log(slope), force=True).replace(is_softplus, even)

    def __str__(self) -> str:
        return f"{self.theta} = {self.image}"


def mapped(
    recipe: Recipe,
    *,
    by: Callable[[Block], Any],
    inverse: Callable | None = None,
    carried: bool = False,
    **block: Block,
) -> Recipe:
    """The recipe in other coordinates z of its target, theta = by(z) at every site: `mapped(R, theta=z, by=exp)`.

        H'(z) = H(f(z)) - T log|det df/dz|,   log|det df/dz| = total(log|f'(z)|) for f of one site

    The keyword is the name of the target, its value the real block z. `by`: a monotone, smooth function; sympy finds
    the `inverse` by default. D and Q are the formulas for z; if `carried`, the formulas for theta, so that the SDE does
    not change. A map may read sums over the sites, such as `exp(z)/(1 + total(exp(z)))`, the first d - 1 of d shares;
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
    if not isinstance(recipe, Recipe):
        raise RecipeError("mapped", f"expected a Recipe, got {type(recipe).__name__}", do="Pass recipe.Recipe(...).")
    where = f"{recipe.name}, mapped"
    own = _map_of(recipe, block, by, inverse, where)
    if carried and own.mixes:
        what = f"{own} mixes sites, and D and Q of theta are no formulas of one site of {own.z}"
        raise RecipeError(where, what, do="Leave carried out: D and Q are those of the new coordinates then.")
    rule = _rule(recipe, own, carried)
    volume = temperature * own.log_determinant
    state = tuple(own.z if b == own.theta else b for b in recipe.state)
    scale = [1 / own.slope if carried and b == own.theta else S.One for b in recipe.state]

    def matrix(entries: Any) -> Any:
        moved = entries.xreplace(rule)
        return moved.from_dok(
            *moved.shape, {(i, j): e * scale[i] * scale[j] for (i, j), e in moved.todok().items()}
        ).as_immutable()

    def energy_of_z(H: Expr) -> Expr:
        moved = H.xreplace(rule)
        return (with_short_logs(moved) if own.mixes else moved) - volume

    energy = recipe.energy_of_target
    return replace(
        recipe,
        state=state,
        target=tuple(own.z if b == own.theta else b for b in recipe.targets),
        H=energy_of_z(recipe.H),
        D=matrix(recipe.D),
        Q=matrix(recipe.Q),
        supplied=matrix(recipe.supplied),
        marginal=None if energy is None else energy_of_z(energy),
        adapt={rule.get(a, a): e.xreplace(rule) for a, e in recipe.adapt.items()},
        pieces={letter: _piece(piece, own) for letter, piece in recipe.pieces.items()},
        jumps={letter: _jump(jump, rule) for letter, jump in recipe.jumps.items()},
        conversions={
            key: {rule.get(s, s): e.xreplace(rule) for s, e in formulas.items()}
            for key, formulas in recipe.conversions.items()
        },
        requires=tuple(relation.xreplace(rule) for relation in recipe.requires),
        maps={own.z: own},
    )


# ---- the map


def _map_of(recipe: Recipe, block: dict[str, Block], by: Any, inverse: Any, where: str) -> Map:
    """The checked Map of a target block."""
    names = [b.name for b in recipe.targets]
    if len(block) != 1 or len(names) > 1 or recipe.maps:
        what = f"one target is mapped once, got {', '.join(block) or 'none'} of {', '.join(names)}"
        raise RecipeError(where, what, do=f'Write mapped(recipe, {names[0]}=vector("z"), by=exp).')
    ((name, z),) = block.items()
    (theta,) = recipe.targets
    if name != theta.name:
        raise RecipeError(where, f"{name!r} is not the target", do=did_you_mean(name, names))
    if not isinstance(z, Block) or z.is_vector != theta.is_vector or not z.domain.is_real or isinstance(z, Adapted):
        kind = "vector" if theta.is_vector else "scalar"
        raise RecipeError(where, f"{z!r} is no real {kind}", do=f'Write {name}={kind}("z").')
    if z.name in {s.name for s in recipe.symbols if s != theta} | {theta.name}:
        raise RecipeError(where, f"the name '{z}' is taken", do="Choose another name.")
    if theta.domain.wraps or theta.domain.is_discrete:
        raise RecipeError(where, f"{theta} is {theta.domain.in_words}", do="Map a target that is a number of a range.")
    if not callable(by):
        raise RecipeError(where, f"by is a function of {z}, got {by!r}", do="Pass sympy's exp, or lambda z: exp(z).")
    image = formula(by(z), f"{where}, by")
    if image.has(Total, Crossing):
        return _mixing(image, theta, z, inverse, where)
    _check_monotone(image, z, where)
    _check_range(image, z, theta, where)
    return Map(theta, z, image, _inverse(image, theta, z, inverse, where))


def at_sites(e: Expr, z: Block, points: Sequence[Any]) -> list[Any]:
    """The values of a formula of z at every site of a chain with the values `points` of z."""
    inside, sums = masked(e, Total)
    values = {name: Add(*at_sites(own.integrand, z, points)) for name, own in sums.items()}
    return [inside.xreplace({**values, z: S(x)}).evalf(50) for x in points]


def _mixing(image: Expr, theta: Block, z: Block, inverse: Any, where: str) -> Map:
    """A Map that reads sums over the sites; raises RecipeError if it is singular, or the inverse is wrong."""
    _check_sums(image, theta, z, where)
    _check_determinant(Map(theta, z, image, S.Zero), where)
    do = "Pass inverse=, the function from theta to z."
    if inverse is None:
        what = f"the inverse of {image} is not looked for, as it mixes sites"
        raise RecipeError(f"{where}, inverse", what, do=do)
    back = formula(inverse(Block(theta.name, theta.is_vector, theta.domain)), f"{where}, inverse")
    there = {points: at_sites(image, z, points) for points in TOGETHER}
    outside = [x for row in there.values() for x in row if not theta.domain.low < x < theta.domain.high]
    if outside:
        what = f"{image} is {float(outside[0]):.3g} somewhere, and {theta} is {theta.domain.in_words}"
        raise RecipeError(f"{where}, by", what, do="Use a function to its domain.")
    pairs = [pair for points, row in there.items() for pair in zip(at_sites(back, theta, row), points)]
    if any(abs(complex(x - y)) > CLOSE * (1 + abs(y)) for x, y in pairs):
        raise RecipeError(f"{where}, inverse", f"{back} is not the inverse of {image}", do=do)
    return Map(theta, z, image, back)


def _check_sums(image: Expr, theta: Block, z: Block, where: str) -> None:
    """Refuse a map that reads more than its own site and sums over sites."""
    if image.has(Crossing) or not theta.is_vector or any(own.integrand.has(Total) for own in image.atoms(Total)):
        what = f"{image} mixes sites, and is no function of a site and of sums over sites"
        raise RecipeError(f"{where}, by", what, do=BY_A_RUN)
    if image.free_symbols != {z}:
        others = ", ".join(sorted(map(str, image.free_symbols - {z})))
        raise RecipeError(f"{where}, by", f"{image} is of {others}, not of {z} alone", do=f"Write numbers and {z}.")
    if image.has(Derivative, AppliedUndef):
        raise RecipeError(f"{where}, by", f"the Jacobian of {image} is missing", do="Use a smooth function.")


def _check_determinant(own: Map, where: str) -> None:
    """Refuse a map with a Jacobian that is singular, or changes its sign, at the points in TOGETHER."""
    for factor in (own.slope, own.coupling):
        values = [complex(x) for points in TOGETHER for x in at_sites(factor, own.z, points)]
        are_apart = all(not x.imag and CLOSE**2 < abs(x) < float("inf") for x in values)
        if not are_apart or len({x.real > 0 for x in values}) > 1:
            what = f"{own.image} mixes sites, and its Jacobian is singular somewhere"
            raise RecipeError(f"{where}, by", what, do=BY_A_RUN)


def _check_monotone(image: Expr, z: Block, where: str) -> None:
    """Refuse a map with a slope that is missing, vanishes, or changes its sign."""
    if image.free_symbols != {z}:
        others = ", ".join(sorted(map(str, image.free_symbols - {z}))) or "nothing"
        raise RecipeError(f"{where}, by", f"{image} is of {others}, not of {z} alone", do=f"Write numbers and {z}.")
    slope = diff(image, z)
    if slope.has(Derivative, AppliedUndef, sign, Heaviside):
        raise RecipeError(f"{where}, by", f"the Jacobian of {image} is missing: {slope}", do="Use a smooth function.")
    slopes = [complex(slope.xreplace({z: x}).evalf(50)) for x in PROBES]
    bad = next((x for x, s in zip(PROBES, slopes) if s.imag or not abs(s) < float("inf") or s != s), None)
    if bad is not None:
        raise RecipeError(f"{where}, by", f"{image} has no slope at {z} = {bad}", do="Use a function of all reals.")
    signs = {(s.real > 0) - (s.real < 0) for s in slopes}
    if len(signs) > 1 or signs == {0}:
        what = f"{image} is not monotone: its slope, {slope}, vanishes or changes its sign"
        raise RecipeError(f"{where}, by", what, do="Use a function that rises or falls everywhere.")


def _check_range(image: Expr, z: Block, theta: Block, where: str) -> None:
    """Refuse a map to numbers outside of the domain of theta."""
    if theta.domain.is_real:
        return
    for x in PROBES:
        value = image.xreplace({z: x}).evalf(50)
        if not theta.domain.low <= value <= theta.domain.high:
            what = f"{image} is {float(value):.3g} at {z} = {x}, and {theta} is {theta.domain.in_words}"
            raise RecipeError(f"{where}, by", what, do="Use a function to its domain.")


def _inverse(image: Expr, theta: Block, z: Block, inverse: Any, where: str) -> Expr:
    """z as a formula of theta; raises RecipeError if none is found, or the given inverse is wrong."""
    x = Block(theta.name, theta.is_vector, theta.domain)
    if inverse is not None:
        ways = [formula(inverse(x), f"{where}, inverse")]
    else:
        try:
            ways = [way for way in solve(image - x, z) if _is_known(way)]
        except NotImplementedError:
            ways = []
    for way in ways:
        points = [p for p in PROBES if abs(p) < 4]
        back = [complex(way.xreplace({x: image.xreplace({z: p}).evalf(60)}).evalf(50)) for p in points]
        if all(abs(b - complex(p)) < CLOSE * (1 + abs(complex(p))) for b, p in zip(back, points)):
            return way
    what = f"the inverse of {image} is not found" if inverse is None else f"{ways[0]} is not the inverse of {image}"
    raise RecipeError(f"{where}, inverse", what, do="Pass inverse=, the function from theta to z.")


def _is_known(way: Expr) -> bool:
    """Whether every backend has the functions of a formula."""
    try:
        formula(way, "inverse")
    except RecipeError:
        return False
    return True


# ---- the formulas


def _rule(recipe: Recipe, own: Map, carried: bool) -> dict[Any, Any]:
    """The replacements of theta, of U and its derivatives, and of symbols per site of theta."""
    rule: dict[Any, Any] = {own.theta: own.image}
    partials = {p for e in recipe.formulas for p in e.atoms(Partial)}
    partials |= {p for a in recipe.adapted for p in a.start.atoms(Partial)}
    for U in recipe.potentials:
        rule[U] = Potential(*(own.z if b == own.theta else b for b in U.args))
    for p in partials:
        value = rule[p.U]
        for _ in p.variables:
            value = diff(value, own.z) / (own.slope if carried else S.One)
        rule[p] = value
    for s in recipe.parameters:
        if s.per == own.theta:
            rule[s] = Parameter(s.name, s.sign, s.default, s.doc, own.z)
    for a in recipe.adapted:
        rule[a] = Adapted(a.name, a.is_vector, a.domain, a.start.xreplace(rule))
    return rule


def _piece(piece: Piece, own: Map) -> Piece:
    return Piece(tuple((part, own.z if b == own.theta else b) for part, b in piece.parts), piece.method)


def _jump(jump: Jump | Swap, rule: dict[Any, Any]) -> Jump | Swap:
    if isinstance(jump, Swap):
        moved = [b for b in jump.blocks if b in rule]
        if moved:
            what = f"{moved[0]} would be in other coordinates than what it changes places with"
            raise RecipeError(f"mapped, {jump}", what, do="Leave the swap out, or the map.")
        return Swap(jump.pairs, None if jump.rate is None else jump.rate.xreplace(rule))
    law = jump.law
    if law is not None:
        law = type(law)(*(argument.xreplace(rule) for argument in law.arguments))
    return Jump(jump.block, None if jump.rate is None else jump.rate.xreplace(rule), law)
