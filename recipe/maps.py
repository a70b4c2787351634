"""A recipe in other coordinates: theta = f(z) at every site, with the volume of the map in H.

With theta = f(z) the law exp(-H/T) of theta is that of exp(-H'/T) of z,

    H'(z) = H(f(z)) - T total(log|f'(z)|),

and the formulas D and Q are those of z. If they are `carried` over, D_zz = D/f'^2 and Q_zp = Q/f', the chain is the one
of theta itself by Ito's formula. Source: Hsieh, Kavis, Rolland & Cevher (2018), "Mirrored Langevin dynamics", for the
former, Zhang, Peyre, Fadili & Pereyra (2020), "Wasserstein control of mirror Langevin Monte Carlo", for the latter.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from sympy import Derivative, Expr, Heaviside, S, cosh, diff, exp, expand_log, log, sign, simplify, solve
from sympy.core.function import AppliedUndef

from .declaration import Recipe
from .errors import RecipeError, did_you_mean
from .pieces import Jump, Piece
from .swaps import Swap
from .symbols import Adapted, Block, Crossing, Parameter, Partial, Potential, Total, formula, temperature, total

PROBES = [S.Zero, *(S(k) / 4 for k in range(-60, 61, 7))]  # where a map is looked at
CLOSE = 1e-9


@dataclass(frozen=True)
class Map:
    """theta = `image`, a formula of the block z; `inverse` is z as a formula of theta."""

    theta: Block
    z: Block
    image: Expr
    inverse: Expr

    @property
    def slope(self) -> Expr:
        """dtheta/dz."""
        return simplify(diff(self.image, self.z))

    @property
    def volume(self) -> Expr:
        """log|dtheta/dz|, without the overflow of exp."""
        slope = self.slope if self.slope.xreplace({self.z: S.Zero}).evalf() > 0 else -self.slope

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
    """The same recipe in other coordinates z of its target, theta = by(z) at every site: `mapped(R, theta=z, by=exp)`.

        H'(z) = H(f(z)) - T total(log|f'(z)|)

    The keyword is the name of the target, its value the block z, which is real. `by`: a monotone, smooth function, of
    which sympy finds the `inverse` where it is not given. D and Q are those of z; if `carried`, those of theta, so that
    the SDE is the same one. Energies, starts and draws of `samplers.sample` are of theta, as is an Energy that is
    bound; the gradient of a Step is by z. Raises RecipeError for a map that mixes sites, is not monotone, has no slope
    somewhere, leaves the domain of theta, or whose inverse is not found or another one.
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
    rule = _rule(recipe, own, carried)
    volume = temperature * (total(own.volume) if own.theta.is_vector else own.volume)
    state = tuple(own.z if b == own.theta else b for b in recipe.state)
    scale = [1 / own.slope if carried and b == own.theta else S.One for b in recipe.state]

    def matrix(entries: Any) -> Any:
        moved = entries.xreplace(rule)
        return moved.from_dok(
            *moved.shape, {(i, j): e * scale[i] * scale[j] for (i, j), e in moved.todok().items()}
        ).as_immutable()

    energy = recipe.energy_of_target
    return replace(
        recipe,
        state=state,
        target=tuple(own.z if b == own.theta else b for b in recipe.targets),
        H=recipe.H.xreplace(rule) - volume,
        D=matrix(recipe.D),
        Q=matrix(recipe.Q),
        supplied=matrix(recipe.supplied),
        marginal=None if energy is None else energy.xreplace(rule) - volume,
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
    """The map that is asked for, which has been looked at."""
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
    _check_monotone(image, z, where)
    _check_range(image, z, theta, where)
    return Map(theta, z, image, _inverse(image, theta, z, inverse, where))


def _check_monotone(image: Expr, z: Block, where: str) -> None:
    """Refuse a map that mixes sites, or whose slope is missing, vanishes, or changes its sign."""
    if image.has(Total, Crossing):
        what = f"{image} mixes sites, and a recipe is mapped site by site"
        do = "Pass coordinates= to samplers.sample: samplers.coordinates.Simplex() is softmax, Affine a matrix."
        raise RecipeError(f"{where}, by", what, do=do)
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
    """z as a formula of theta; refused where none is found, or it is another one."""
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
    """Whether a formula is made of functions that every backend has."""
    try:
        formula(way, "inverse")
    except RecipeError:
        return False
    return True


# ---- the formulas


def _rule(recipe: Recipe, own: Map, carried: bool) -> dict[Any, Any]:
    """What stands in the place of theta, of U and its derivatives, and of what is like theta."""
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
