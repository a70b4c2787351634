"""The exact law of a step on a quadratic energy.

On U = sum_i k_i theta_i^2/2 every step whose coefficients do not depend on the state is affine,
z' = M z + c + B w with w standard normal; its stationary covariance solves S = M S M^T + B B^T.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recipe import Recipe
from recipe.errors import RecipeError

from .step import Step

if TYPE_CHECKING:  # numpy, scipy and torch are imported where matrices are asked for
    from numpy import ndarray
    from torch import Tensor


def is_affine(recipe: Recipe) -> bool:
    """Whether steps are affine if grad U is: D, Q constant, H - U quadratic, no ends, no sphere, one target."""
    ends = any(b.domain.wraps or b in recipe.reflected for b in recipe.state)
    if recipe.adapted or recipe.jumps or recipe.latents or recipe.fields or recipe.spheres or ends:
        return False
    if recipe.potential is None or len(recipe.targets) > 1:
        return False
    rest = recipe.H - recipe.potential
    second = [rest.diff(a).diff(b) for a in recipe.state for b in recipe.state]
    return not any(e.has(*recipe.state) for e in (recipe.D, recipe.Q, *second))


def has_normal_noise(step: Step) -> bool:
    """Whether all random numbers of a step are normal; with any others the step is not affine."""
    return {*step.draws.values()} <= {"normal"}


@dataclass(frozen=True)
class LinearChain:
    """The affine step z' = M z + c + B w, with z the blocks (and a carried gradient) site by site.

    `names`: the block of each row.
    """

    names: tuple[str, ...]
    M: "ndarray"
    c: "ndarray"
    B: "ndarray"

    @property
    def spectral_radius(self) -> float:
        """The largest modulus of an eigenvalue of M: the step is stable below 1."""
        from numpy.linalg import eigvals

        return float(abs(eigvals(self.M)).max())

    @property
    def covariance(self) -> "ndarray":
        """The stationary covariance S = M S M^T + B B^T of the chain, in the order of `names`.

        Raises RecipeError for a chain that is not stable.
        """
        from scipy.linalg import solve_discrete_lyapunov

        if not self.spectral_radius < 1:
            what = f"the spectral radius of the step is {self.spectral_radius:.4g}"
            raise RecipeError("stability", what, do="Take a smaller step size.")
        return solve_discrete_lyapunov(self.M, self.B @ self.B.T)

    def variance(self, block: str) -> "ndarray":
        """The stationary variances of the sites of one block."""
        return self.covariance.diagonal()[[name == block for name in self.names]]


def linear_chain(
    step: Step, h: float, stiffness: Any, /, *, gradient_noise: float = 0.0, **parameters: Any
) -> LinearChain:
    """The matrices of a Step on U = theta^T K theta/2, probed by basis vectors in one call.

    `stiffness`: K, or its diagonal k_i; `gradient_noise`: variance of independent noise in every gradient evaluation.
    Raises RecipeError for a target of explicit coordinates, and for random numbers that are not normal.

    >>> from integrators import compile
    >>> from samplers import SGLD
    >>> chain = linear_chain(compile(SGLD), 0.1, [1.0, 4.0])
    >>> chain.names, chain.spectral_radius
    (('theta', 'theta'), 0.9)
    >>> chain.variance("theta").round(4)
    array([1.0526, 0.3125])
    """
    import torch

    recipe = step.recipe
    where = "linear_chain"
    if len(recipe.targets) > 1:
        raise RecipeError(where, "the target is made of explicit coordinates", do="Use one vector block.")
    if recipe.fields:
        what = f"the operator {recipe.fields[0]} is a function of {recipe.fields[0].at}: the step is not affine"
        raise RecipeError(where, what, do="Give a constant matrix.")
    if not has_normal_noise(step):
        what = f"the step draws {', '.join(sorted({*step.draws.values()} - {'normal'}))} numbers: it is not affine"
        raise RecipeError(where, what, do="Take pieces of normal noise alone.")
    K = torch.as_tensor(stiffness, dtype=torch.float64, device="cpu")
    K = torch.diag(K) if K.dim() == 1 else K
    sites = len(K)

    # Inputs by name, with whether they have one value per site; a row of `probes` sets one number of one input to 1.
    blocks = {b.name: b.is_vector for b in recipe.state}
    if step.program.carries_gradient:
        blocks["gradient"] = True
    draws = {d.name: d.block.is_vector for d in step.program.draws}
    evaluations = step.program.gradients_per_step if gradient_noise else 0
    widths = [sites if is_vector else 1 for is_vector in (*blocks.values(), *draws.values(), *[True] * evaluations)]
    basis = torch.eye(sum(widths), dtype=torch.float64, device="cpu")
    probes = torch.cat([torch.zeros_like(basis[:1]), basis])

    inputs = iter(probes.split(widths, 1))
    state = _by_name(inputs, blocks)
    noise = _by_name(inputs, draws)
    errors = (gradient_noise**0.5 * x for x in inputs)

    def gradient(theta: "Tensor") -> "Tensor":
        return theta @ K + next(errors, 0.0)

    out = step(state, h, gradient=gradient, noise=noise, **parameters)
    image = torch.cat([out[name].reshape(len(probes), -1) for name in blocks], 1).numpy()
    columns = (image[1:] - image[0]).T
    names = tuple(name for name, width in zip(blocks, widths) for _ in range(width))
    return LinearChain(names, columns[:, : len(names)], image[0], columns[:, len(names) :])


def _by_name(inputs: Iterator["Tensor"], kinds: Mapping[str, bool]) -> "dict[str, Tensor]":
    """The next inputs by name; scalars without the axis of sites."""
    return {name: next(inputs) if is_vector else next(inputs)[:, 0] for name, is_vector in kinds.items()}
