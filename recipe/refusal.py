"""What is refused of a declaration: each function raises a RecipeError that says where, what, and what to do."""

from sympy import DiracDelta, Heaviside, ImmutableMatrix, Piecewise, S, sign, zeros
from sympy.core.function import AppliedUndef

from .algebra import is_continuous
from .errors import RecipeError, did_you_mean
from .marginal import refuse_jump
from .proof import minimum_eigenvalue
from .symbols import (
    Adapted,
    Block,
    Observed,
    Parameter,
    Partial,
    Potential,
    Total,
    is_site,
    step_number,
    step_size,
    valid_name,
)


def refuse_malformed(recipe) -> None:
    """Refuse a declaration that is no sampler."""
    for check in (_symbols, _adaptations, _kinds, _gamma, _diffusion, _normalisable):
        check(recipe)


def _symbols(recipe):
    """Blocks that are not there, plain symbols, two things of one name, a U of other blocks."""
    known = {b.name for b in recipe.state} | {s.name for s in recipe.symbols if isinstance(s, Parameter)}
    for s in sorted(recipe.symbols, key=str):
        if isinstance(s, Block) and not isinstance(s, Adapted) and s not in recipe.state:
            raise RecipeError(recipe.name, f"block '{s}' is used but is not in the state", do=f"Add {s} to state=.")
        if not isinstance(s, (Block, Parameter, Observed)):
            raise RecipeError(
                recipe.name,
                f"'{s}' is unbound: a plain sympy symbol, neither a block nor a parameter",
                do=f"Use the declared {s}." if s.name in known else did_you_mean(s.name, known),
            )
    functions = {f for e in recipe.formulas for f in e.atoms(AppliedUndef)}
    names = [b.name for b in recipe.entries] + [s.name for s in recipe.parameters + recipe.observations]
    names += [valid_name(f.func.__name__, "function") for f in functions]
    for name in names:
        if names.count(name) > 1:
            raise RecipeError(recipe.name, f"two blocks, parameters or functions are named '{name}'", do="Rename one.")
    potentials = set().union(*(e.atoms(Potential) for e in recipe.formulas))
    for U in potentials:
        if U.blocks != recipe.targets:
            raise RecipeError(
                recipe.name,
                f"{U} is not the potential of the target {recipe.target}",
                do=f"Write potential({', '.join(b.name for b in recipe.targets)}).",
            )
    if not any(b.is_vector for b in recipe.state) and any(e.has(Total) for e in recipe.formulas):
        raise RecipeError(recipe.name, "total() has no sites to sum: every block is a scalar", do="Drop total().")


def _adaptations(recipe):
    """Observations and step numbers in the dynamics, adapted quantities without an update or a proper start."""
    dynamics = set().union(*(e.free_symbols for e in (recipe.H, *recipe.D, *recipe.Q, *recipe.supplied)))
    for s in sorted(dynamics, key=str):
        if isinstance(s, Observed):
            raise RecipeError(
                recipe.name,
                f"the observation '{s}' is used in H, D, Q or supplied, where it would be taken for a constant",
                do=f"Let an adapted quantity follow it: adapt={{...: {s}}}.",
            )
        if s == step_number:
            raise RecipeError(recipe.name, "H, D, Q or supplied read step_number", do="Only adaptations may.")
    for a in recipe.adapted:
        if a not in recipe.adapt:
            raise RecipeError(
                f"{recipe.name}, adapt",
                f"no update of {a} is given",
                do=f"Write adapt={{{a}: ...}}, or make it a parameter.",
            )
        if a.domain == "binary":
            raise RecipeError(f"{recipe.name}, {a}", "an adapted quantity is not binary", do="Use another domain.")
        start = a.start.xreplace({g: S.One for g in a.start.atoms(Partial)})
        for s in sorted(start.free_symbols, key=str):
            if isinstance(s, (Block, Observed)):
                raise RecipeError(
                    f"{recipe.name}, start of {a}", f"it reads {s}", do="It may read parameters and grad(U)."
                )


def _kinds(recipe):
    """Values per site where there is one per chain, and motions of binary blocks."""
    for a in recipe.adapted:
        for what, e in (("start", a.start), ("update", recipe.adapt.get(a, a))):
            if is_site(e) and not a.is_vector:
                raise RecipeError(
                    f"{recipe.name}, {what} of {a}",
                    f"{e} has one value per site, but {a} is one number",
                    do=f"Wrap it in total(), or declare {a} with like={recipe.targets[0]}.",
                )
    for b in recipe.latents:
        i = recipe.state.index(b)
        if any(recipe.D[i, :]) or any(recipe.Q[i, :]):
            raise RecipeError(
                f"{recipe.name}, {b}",
                "a binary block has no drift and no noise",
                do=f'Let it jump: jumps={{"J": refresh({b})}}.',
            )
    if is_site(recipe.H):
        loose = next(t for t in recipe.H.as_ordered_terms() if is_site(t))
        raise RecipeError(
            f"{recipe.name}, H",
            f"{loose} has one value per site, but H is one number per chain",
            do=f"Wrap it: total({loose}).",
        )
    for label, matrix in (("D", recipe.D), ("Q", recipe.Q)):
        for i, a in enumerate(recipe.state):
            for j, b in enumerate(recipe.state):
                if not a.is_vector and not b.is_vector and is_site(matrix[i, j]):
                    raise RecipeError(
                        f"{recipe.name}, {label}[{a}, {b}]",
                        f"{matrix[i, j]} has one value per site, but both blocks are scalars",
                        do="Wrap it in total().",
                    )
                if label == "D" and a.is_vector != b.is_vector and matrix[i, j] != 0:
                    raise RecipeError(
                        f"{recipe.name}, D[{a}, {b}]",
                        "noise shared by a vector and a scalar block is not supported",
                        do="Couple them by Q instead.",
                    )


def _gamma(recipe):
    """Formulas with a jump or without a derivative where Gamma needs one."""
    for i, row in enumerate(recipe.state):
        for j, column in enumerate(recipe.state):
            entry = recipe.D[i, j] + recipe.Q[i, j]
            slope = entry.diff(column)
            rough = [f for f in slope.atoms(sign, Heaviside, DiracDelta) if f.free_symbols & set(recipe.state)]
            if rough or slope.has(S.NaN, S.ComplexInfinity):
                kink = rough[0].args[0] if rough else slope
                raise RecipeError(
                    f"{recipe.name}, Gamma[{row}]",
                    f"it is undefined where {kink} = 0, because {entry} has no derivative there",
                    do="Use a smooth function.",
                )
    for where, entry, blocks in [("H", recipe.H, recipe.state)] + [
        (f"{label}[{a}, {b}]", matrix[i, j], (a, b))
        for label, matrix in (("D", recipe.D), ("Q", recipe.Q))
        for i, a in enumerate(recipe.state)
        for j, b in enumerate(recipe.state)
    ]:
        for choice in entry.atoms(Piecewise):
            if not is_continuous(choice, blocks):
                raise RecipeError(
                    f"{recipe.name}, {where}",
                    f"{choice} is not seen to be continuous, and a jump has no derivative",
                    do="Use a continuous function, or Max and Min.",
                )
    recipe.drift  # derived here, so that a formula that asks for more of U than there is fails here


def _diffusion(recipe):
    """A D or a supplied that is no covariance, D - supplied below 0, jumps of another law or a negative rate."""
    value, where = minimum_eigenvalue(recipe.D, points=64, fixed={step_size: 1e-9})
    if value < -1e-12:
        raise RecipeError(
            f"{recipe.name}, D",
            f"it is not positive semidefinite: an eigenvalue is {value:.3g} at {where}",
            do="A diffusion needs D >= 0 for every state and every allowed parameter.",
        )
    for letter, jump in recipe.jumps.items():
        refuse_jump(recipe, letter, jump.block)
        if jump.rate is not None and minimum_eigenvalue(ImmutableMatrix([[jump.rate]]), points=64)[0] < 0:
            raise RecipeError(
                f"{recipe.name}, jumps[{letter!r}], rate",
                f"{jump.rate} may be below 0",
                do="Make it of positive parameters.",
            )
    if recipe.supplied != zeros(*recipe.supplied.shape):
        defaults = {s: s.default for s in recipe.parameters if s.default is not None} | {step_size: 1e-9}
        value, where = minimum_eigenvalue(recipe.supplied, points=64, fixed=defaults)
        if value < -1e-12:
            raise RecipeError(
                f"{recipe.name}, supplied",
                f"it is not positive semidefinite: an eigenvalue is {value:.3g} at {where}",
                do="What a gradient supplies is a covariance.",
            )
        value, where = minimum_eigenvalue(recipe.D - recipe.supplied, points=64, fixed=defaults)
        if value < -1e-12:
            raise RecipeError(
                f"{recipe.name}, supplied",
                f"D - supplied is not positive semidefinite: an eigenvalue is {value:.3g} at {where}",
                do="The gradient cannot supply more noise than D.",
            )


def _normalisable(recipe):
    """Auxiliary blocks in which exp(-H) has no finite integral."""
    for block in recipe.momenta + recipe.thermostats:
        curvature = recipe.H.diff(block, 2)
        if block.domain == "real" and not curvature.has(block) and curvature.is_nonpositive:
            raise RecipeError(
                f"{recipe.name}, H",
                f"exp(-H) is not normalisable in {block}: d2H/d{block}2 = {curvature}",
                do=f"Give {block} a confining energy, e.g. {block}**2/2.",
            )
