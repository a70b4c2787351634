"""Networks as functions of a recipe: `recipe.bind(f=network(module))`, or `network(module)(U, p)` in a formula.

A network is applied to every site alone, so that f is a function of a site's inputs: blocks, U, its gradient. The
derivatives in Gamma are derivatives of one output by its own inputs, exact by torch's autograd, times derivatives of
the inputs; no formula is expanded.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from sympy import Expr

from recipe import Recipe
from recipe.bound import Bound, Family
from recipe.errors import RecipeError

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

CROWD = 4000  # points of a normal law at which the sign of a network is tried
POINTS = 64  # number of points at which a network is tried


def network(module: "Module", *, name: str = "network", sign: str = "real") -> Callable[..., Bound]:
    """A torch module as a function, site by site: for `recipe.bind`, or of formulas, such as U, p and grad(U).

    `module`: takes `(sites, inputs)`, returns `(sites, 1)` or `(sites,)`, each row by itself; inputs have the dtype and
    device of its parameters. `sign`: "real" or "positive", as declared for the bound function. Raises RecipeError, when
    the module is bound, for another shape, rows that mix, random outputs, values that are not finite or of another
    sign, and outputs that autograd cannot differentiate by the inputs.

    >>> import torch
    >>> from recipe import Recipe, function, potential, vector
    >>> theta = vector("theta")
    >>> f = function("f", theta, sign="positive")
    >>> net = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1), torch.nn.Softplus())
    >>> learned = Recipe(name="learned", state=(theta,), H=potential(theta), D={theta: f}, scheme="Euler")
    >>> learned.bind(f=network(net, name="f", sign="positive")).gamma
    Matrix([[Derivative(f(theta), theta)]])
    >>> U = potential(theta)
    >>> f = network(net, name="f", sign="positive")(U)
    >>> Recipe(name="learned", state=(theta,), H=U, D={theta: f}, scheme="Euler").gamma
    Matrix([[Derivative(f(U(theta)), U(theta))*grad(U)]])
    """
    where = f"network {name!r}"
    if not callable(getattr(module, "forward", None)):
        raise RecipeError(where, f"got {type(module).__name__}, no torch.nn.Module", do="Pass a module.")
    if sign not in ("real", "positive"):
        raise RecipeError(where, f"sign={sign!r}", do='Use "real" or "positive".')

    def of_formulas(*inputs: Expr) -> Bound:
        _tried(module, len(inputs), sign, where)

        def compute(orders: tuple[int, ...], *values: "Tensor") -> "Tensor":
            return derivative_of(module, orders, *values)

        family = Family(name, len(inputs), compute, is_positive=sign == "positive")
        return family.of((0,) * len(inputs))(*inputs)

    return of_formulas


def derivative_of(module: "Module", orders: tuple[int, ...], *values: "Tensor") -> "Tensor":
    """The output of a module, or its derivative of given orders by each argument, in the broadcast shape of the values.

    >>> import torch
    >>> cube = torch.nn.Sequential()
    >>> cube.forward = lambda x: x[:, 0] ** 3 * x[:, 1]
    >>> derivative_of(cube, (2, 1), torch.tensor([1.0, 2.0]), torch.tensor([5.0, 7.0]))
    tensor([ 6., 12.])
    """
    import torch

    weight = next(module.parameters(), values[0])
    columns = torch.broadcast_tensors(*values)
    inputs = [c.detach().reshape(-1).to(weight.device, weight.dtype) for c in columns]
    by = [x.requires_grad_() for x, order in zip(inputs, orders) for _ in range(order)]
    with torch.set_grad_enabled(bool(by)):
        y = module(torch.stack(inputs, -1)).reshape(-1)
        for remaining, x in zip(reversed(range(len(by))), by):
            if not y.requires_grad:
                y = torch.zeros_like(x)
                break
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=remaining > 0, materialize_grads=True)
    return y.detach().reshape(columns[0].shape).to(columns[0].device, columns[0].dtype)


def values_of(recipe: Recipe) -> "list[Tensor]":
    """The values of the networks of a recipe at fixed points, ordered by name: a fingerprint of the networks.

    >>> from samplers import SGLD
    >>> values_of(SGLD)
    []
    """
    families = {f.family for e in recipe.formulas for f in e.atoms(Bound)}
    ordered = sorted(families, key=lambda family: (family.name, family.arity))
    return [family.compute((0,) * family.arity, *_points(family.arity).unbind(1)) for family in ordered]


def _points(inputs: int) -> "Tensor":
    """The points at which a network is tried, `(POINTS, inputs)`."""
    import torch

    points = torch.linspace(-4, 4, POINTS * inputs, dtype=torch.float64, device="cpu").reshape(inputs, POINTS).T
    return torch.stack([points[:, k].roll(7 * k) for k in range(inputs)], 1)


def _tried(module: "Module", inputs: int, sign: str, where: str) -> None:
    """Refuse a module that is not a deterministic, differentiable function of one site's inputs with the sign."""
    import torch

    weight = next(module.parameters(), torch.zeros(()))
    x = _points(inputs).to(weight.device, weight.dtype).requires_grad_()
    advice = f"Pass a module of (sites, {inputs}) that returns (sites, 1)."
    try:
        with torch.enable_grad():
            y = module(x)
    except (RuntimeError, TypeError, IndexError, ValueError) as error:
        raise RecipeError(where, f"calling it with the shape {tuple(x.shape)} failed: {error}", do=advice) from error
    if not torch.is_tensor(y) or tuple(y.shape) not in ((POINTS, 1), (POINTS,)):
        shape = tuple(y.shape) if torch.is_tensor(y) else type(y).__name__
        raise RecipeError(where, f"of the shape {tuple(x.shape)} it makes {shape}", do=advice)
    if not y.requires_grad or torch.autograd.grad(y.sum(), x, allow_unused=True)[0] is None:
        what = "autograd finds no derivative by its inputs"
        raise RecipeError(where, what, do="Write it in torch's functions, without detach() and no_grad().")
    if not y.isfinite().all():
        raise RecipeError(where, "it has values that are not finite", do="Bound its output.")
    with torch.no_grad():
        if sign == "positive":
            crowd = torch.randn(CROWD, inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
            least = min(float(y.min()), float(module(crowd.to(weight.device, weight.dtype)).min()))
            if not least > 0:
                raise RecipeError(where, f"it is {least:.3g} somewhere, not positive", do="End it with Softplus().")
        repeated, rows = module(x), torch.cat([module(row[None]) for row in x])
    if not torch.allclose(repeated, y, rtol=1e-4, atol=1e-5):
        raise RecipeError(where, "it has other values when it is called again", do="Call module.eval().")
    if not torch.allclose(rows.reshape(y.shape), y, rtol=1e-4, atol=1e-5):
        raise RecipeError(where, "its rows are not apart: a site's value depends on others", do="Call module.eval().")
