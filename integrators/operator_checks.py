"""Checks of the values of operators, before a chain moves: kind, place, finite formulas, divergences of fields."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from sympy import lambdify

from recipe import Recipe
from recipe import operators as declared
from recipe.certificate.smoothness import jumps_beyond_rounding
from recipe.errors import RecipeError, first_line
from recipe.fields import Divergence, operators_of
from recipe.operators import KINDS, Applied, parts

from .operators import ROUNDING, AtStates, Dense, Field, Operator, value_of

POINTS = 2  # number of chains near which a field of matrices is checked
STEP = 6e-6  # step of a central difference, the third root of the rounding error
ALIKE, ROUGH = 1e-6, 1e-4  # largest error of a divergence, and of two differences, relative to its terms
NUMBERS = 2**22  # entries of matrices that are evaluated together
FEW, CHUNK = 64, 256  # most sites of a matrix that is looked at along a line, and points that are looked at together
SMOOTH = "Use a continuous function of theta: no floor, sign, comparison or argmax."


def read(recipe: Recipe, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with values of operators as Operator or Field objects, which keep their factorisations.

    Raises RecipeError for values that are not square matrices.
    """
    operators = {M.name: _read(recipe, M, parameters[M.name]) for M in recipe.operators if M.name in parameters}
    return {**parameters, **operators}


def _read(recipe: Recipe, M: declared.Operator, value: Any) -> Any:
    where = f"{recipe.name}, operator {M}"
    if value is None:
        return None
    if M.at is None:
        try:
            return value_of(value)
        except RecipeError as error:
            raise RecipeError(where, error.what, do=error.do) from error
    if not isinstance(value, Field):
        what = f"it is a function of {M.at}, got {value!r}"
        raise RecipeError(where, what, do="Pass Field(matrix, divergence).")
    if value.divergence is None and recipe.gamma.has(Divergence(M)):
        what = "Gamma has the divergence of a matrix that moves, sum_j dM_ij/dtheta_j, and it is not given"
        raise RecipeError(where, what, do="Pass Field(matrix, divergence=lambda theta: ...).")
    return value


# ---- constant operators


def check(recipe: Recipe, numbers: Mapping[Any, Any], where: str) -> None:
    """Refuse operators of another kind than declared, and operators at which a formula of the recipe is not finite.

    `numbers`: values of all parameters, by symbol.
    """
    for M in recipe.operators:
        value = _read(recipe, M, numbers[M])
        if M.at is not None:
            continue
        check_kind(f"{where}, operator {M}", M.matrix_kind, value)
        eigenvalues = _rounded(value.eigenvalues())
        is_transformed = torch._C._functorch.is_functorch_wrapped_tensor(eigenvalues)  # torch 2.7 lists no such tensor
        spectrum = np.array([x.item() for x in eigenvalues] if is_transformed else eigenvalues.tolist())
        formulas = [F for A in (recipe.D, recipe.Q, recipe.supplied) for e in A for F, _ in parts(e)]
        formulas += [x.formula for e in (recipe.H, *recipe.drift) for x in e.atoms(Applied)]
        for F in (F for F in formulas if M in operators_of(F)):
            known = {s: numbers.get(s, 1.0) for s in F.free_symbols}
            with np.errstate(all="ignore"):
                values = (spectrum if s == M else x for s, x in known.items())
                images = lambdify([*known], F, "numpy")(*values)
            if not torch.as_tensor(images).isfinite().all():
                what = f"{F} does not exist: it has an eigenvalue of {float(eigenvalues.abs().amin()):.3g}"
                raise RecipeError(f"{where}, operator {M}", what, do="Add a small multiple of the identity.")


def check_place(recipe: Recipe, values: Mapping[str, Any], like: torch.Tensor) -> None:
    """Refuse values of operators without one row per site of a block `(chains, *shape)`, or on another device."""
    sites = like[0].numel() if len(like) else 0
    for M in recipe.operators:
        where = f"{recipe.name}, operator {M}"
        value = _read(recipe, M, values.get(M.name))
        if value is None or M.at is not None:
            continue
        if len(like) and value.sites not in (None, sites):
            what = f"it has {value.sites} rows, but a chain has {sites} sites"
            raise RecipeError(where, what, do="Give one row for each site.")
        device = value.tensors[0].device
        if value.sites and value.is_placed and device != like.device:
            what = f"it is on {device}, the state on {like.device}"
            raise RecipeError(where, what, do=f"Move it: x.to({str(like.device)!r}).")


def check_kind(where: str, kind: str, value: Operator) -> None:
    """Refuse a value that is not of the given kind, one of KINDS."""
    _, in_words = KINDS[kind]
    projection, defect, sign = ("-", "+", -1) if kind == "skew" else ("+", "-", 1)
    asymmetry = value.asymmetry(sign)
    if asymmetry > ROUNDING:
        what = f"it is not {in_words}: M {defect} M^T is {asymmetry:.3g} of its largest entry"
        raise RecipeError(where, what, do=f"Pass (M {projection} M.T)/2.")
    if kind in ("definite", "semidefinite"):
        least = float(_rounded(value.eigenvalues()).amin())
        if least < 0 or least == 0 and kind == "definite":
            what = f"it is not {in_words}: an eigenvalue is {least:.3g}"
            raise RecipeError(where, what, do="Pass another matrix, or declare another kind.")


def eigenvalues_of(recipe: Recipe, numbers: Mapping[Any, Any]) -> dict[declared.Operator, list[float]]:
    """The eigenvalues of the constant symmetric operators of a recipe."""
    operators = [M for M in recipe.operators if M.matrix_kind != "skew" and M.at is None]
    return {M: _rounded(_read(recipe, M, numbers[M]).eigenvalues()).tolist() for M in operators}


def _rounded(eigenvalues: torch.Tensor) -> torch.Tensor:
    """The eigenvalues, set to 0 where they are 0 up to rounding."""
    size = eigenvalues.abs()
    return torch.where(size > ROUNDING * size.amax(), eigenvalues, torch.zeros_like(eigenvalues)).cpu()


# ---- fields


def check_fields(recipe: Recipe, values: Mapping[str, Any], state: Mapping[str, torch.Tensor]) -> None:
    """Refuse fields with matrices of another kind than declared, with a wrong divergence, or with jumps.

    Fields are checked at some of the chains and at points beside them, in float64, by central differences over d and
    2 d for a step d_j = 6e-6 max(1, |theta_j|). The tolerance of the divergence is 1e-6 of its terms and of the matrix,
    plus ten times the distance between the two differences; this distance may be 1e-4 of the terms and of the matrix.
    Jumps are looked for on a line through the first chain, in matrices of few sites.
    """
    for M in recipe.fields:
        if M.at is None or values.get(M.name) is None:
            continue
        where = f"{recipe.name}, operator {M}"
        x = state[M.at.name][:POINTS].detach().double()
        noise = torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0)).to(x.device)
        points = torch.cat([x, x + noise / 2])
        try:
            states = values[M.name].at(points)
            _check_shapes(where, states, points)
            for matrix in states.matrix:
                check_kind(where, M.matrix_kind, Dense(matrix))
            for point, divergence in zip(points, () if states.divergence is None else states.divergence):
                _check_divergence(where, values[M.name], point, divergence.double())
            _check_jumps(where, values[M.name], x[0], noise[0])
            if recipe.H.has(M):
                _check_slope(where, values[M.name], points[-1:], noise[-1:])
        except (TypeError, ValueError, RuntimeError, IndexError) as error:
            if isinstance(error, RecipeError):
                raise
            what = f"its functions cannot be evaluated: {first_line(error)}"
            raise RecipeError(where, what, do="They are torch functions of theta of one chain.") from error


def at_start(recipe: Recipe, values: Mapping[str, Any], state: Mapping[str, torch.Tensor]) -> dict[str, Any]:
    """The parameters, with each field replaced by its values at the first chain and beside it: a fingerprint."""
    fingerprint = dict(values)
    for M in recipe.fields:
        if M.at is not None:
            x = state[M.at.name][:1].double()
            # another length along each axis: different fields may agree at 0
            aside = 0.1 * torch.arange(1, x.numel() + 1, device=x.device).to(x.dtype).cos().reshape(x.shape)
            states = values[M.name].at(torch.cat([x, x + aside]))
            fingerprint[M.name] = [x.float() for x in (states.matrix, states.divergence) if x is not None]
    return fingerprint


def _check_shapes(where: str, states: AtStates, points: torch.Tensor) -> None:
    sites = points[0].numel()
    shapes = {"matrix": (states.matrix, (sites, sites)), "divergence": (states.divergence, tuple(points.shape[1:]))}
    for name, (values, shape) in shapes.items():
        if values is None:
            continue
        if tuple(values.shape[1:]) != shape:
            what = f"its {name} has the shape {tuple(values.shape[1:])}, and a chain has {sites} sites"
            raise RecipeError(where, what, do=f"Return the shape {shape}.")
        if not values.isfinite().all():
            raise RecipeError(where, f"its {name} is not finite", do="Start elsewhere, or mend it there.")


def _check_divergence(where: str, value: Field, point: torch.Tensor, divergence: torch.Tensor) -> None:
    """Refuse a divergence at a point that disagrees with differences of the matrix."""
    near, scale = _differences(value, point, STEP)
    far, _ = _differences(value, point, 2 * STEP)
    difference = float((near - far).abs().amax())
    if difference > ROUGH * scale:
        what = f"differences of its matrix do not settle: they are {difference:.2g} apart"
        raise RecipeError(where, what, do="Compute it in the dtype of theta, as a smooth function.")
    divergence = divergence.reshape(-1)
    off = (divergence - near).abs()
    site = int(off.argmax())
    if float(off[site]) > ALIKE * scale + 10 * difference:
        what = f"its divergence is {float(divergence[site]):.6g} at site {site}, but sum_j dM_ij/dtheta_j"
        raise RecipeError(where, f"{what} is {float(near[site]):.6g}", do="Mend the divergence, or the matrix.")


def _check_slope(where: str, value: Field, point: torch.Tensor, direction: torch.Tensor) -> None:
    """Refuse a matrix whose slope by autograd, at a point `(1, *shape)`, disagrees with its differences."""
    sites = point[0].numel()
    weights = 1 + torch.arange(sites**2, device=point.device).cos().to(point.dtype).reshape(1, sites, sites)

    def difference(step: float) -> float:
        ahead, behind = (value.at(point + side * step * direction).matrix for side in (1, -1))
        return float((weights * (ahead - behind)).sum()) / (2 * step)

    states = value.at(point)
    slope = float((states.contracted(weights) * direction).sum())
    near, far = difference(STEP), difference(2 * STEP)
    scale = float((weights * states.matrix).abs().sum()) + abs(near)
    if abs(slope - near) > ALIKE * scale + 10 * abs(near - far):
        what = f"a sum of its entries rises by {near:.6g} along a line, and by {slope:.6g} to autograd"
        raise RecipeError(where, what, do="Compute it of theta by torch functions, without detach() or numpy.")


def _check_jumps(where: str, value: Field, point: torch.Tensor, direction: torch.Tensor) -> None:
    """Refuse a matrix that jumps on a line through a point: the flux at a jump is in no divergence."""
    if point.numel() > FEW:
        return
    weights = 1 + torch.arange(point.numel() ** 2, device=point.device).cos().double()

    def along(t: Any) -> Any:
        steps = torch.as_tensor(t, dtype=point.dtype, device=point.device).reshape(-1, *[1] * point.dim())
        entries = torch.vmap(value.matrix, chunk_size=CHUNK)(point + steps * direction).flatten(1)
        return (entries @ weights).reshape(np.shape(t)).cpu().numpy()

    for place, low, high in jumps_beyond_rounding(along):
        at = ", ".join(f"{x:.3g}" for x in (point + place * direction).flatten()[:3].tolist())
        what = f"its matrix jumps at theta = {at}{', ...' if point.numel() > 3 else ''}"
        raise RecipeError(where, f"{what}, a sum of its entries from {low:.3g} to {high:.3g}", do=SMOOTH)


def _differences(value: Field, point: torch.Tensor, step: float) -> tuple[torch.Tensor, float]:
    """sum_j of central differences of M_ij by theta_j, and the size of these terms and of the matrix."""
    flat = point.reshape(-1)
    sites = len(flat)
    steps = step * flat.abs().clamp(min=1)
    total = torch.zeros_like(flat)
    terms = torch.zeros_like(flat)
    size = 0.0
    for chunk in torch.arange(sites, device=point.device).split(max(1, NUMBERS // sites**2)):
        rows = torch.arange(len(chunk), device=flat.device)
        shift = flat.new_zeros(len(chunk), sites)
        shift[rows, chunk] = steps[chunk]
        above, below = (value.at((flat + sign * shift).reshape(-1, *point.shape)).matrix for sign in (1, -1))
        columns = (above - below)[rows, :, chunk] / (2 * steps[chunk, None])
        total += columns.sum(0)
        terms += columns.abs().sum(0)
        size = max(size, float(above.abs().amax()))
    return total, float(terms.amax()) + size
