"""How accurate a step is: its order by the word alone, and its exact law on a quadratic energy.

On U = sum_i k_i theta_i^2/2 every step whose coefficients do not depend on the state is affine,
z' = M z + c + B w with w standard normal; its stationary covariance solves S = M S M^T + B B^T.
"""

from dataclasses import dataclass

from recipe.errors import RecipeError

from .scheme import Scheme


def weak_order(scheme: Scheme, flows) -> int:
    """2 for a palindrome of flows that are exact or of even order, else 1 (the law of the whole state)."""
    return 2 if scheme.is_palindrome and all(flows[letter].even for letter in scheme.letters) else 1


def marginal_order(scheme: Scheme, flows, targets) -> int:
    """The order of the target's marginal: pieces that leave the target alone may be moved around the cycle or cut.

    F A and A F have the theta-marginal of F/2 A F/2, a palindrome.
    """
    idle = lambda letter: not any(b in targets for b in flows[letter].updates)
    moves = list(scheme.moves)
    front = next((i for i, (letter, _) in enumerate(moves) if not idle(letter)), 0)
    back = next((i for i, (letter, _) in enumerate(moves[::-1]) if not idle(letter)), 0)
    words = [moves[i:] + moves[:i] for i in range(front + 1)]
    words += [moves[len(moves) - i :] + moves[: len(moves) - i] for i in range(1, back + 1)]
    orders = [weak_order(Scheme("", tuple(word)), flows) for word in words]
    for (letter, share), *rest in words:
        if idle(letter) and flows[letter].exact:
            half = (letter, share / 2)
            orders.append(weak_order(Scheme("", (half, *rest, half)), flows))
    return max(orders)


def is_affine(recipe) -> bool:
    """Whether every step of a recipe is affine where grad U is: D, Q constant and H - U quadratic, one vector target."""
    if recipe.adapted or recipe.jumps or recipe.latents:
        return False
    constant = not any(e.has(*recipe.state) for e in (*recipe.D, *recipe.Q))
    rest = recipe.H - recipe.potential if recipe.potential else recipe.H
    quadratic = not any(rest.diff(a).diff(b).has(*recipe.state) for a in recipe.state for b in recipe.state)
    return constant and quadratic and recipe.potential is not None and len(recipe.targets) == 1


@dataclass(frozen=True)
class LinearChain:
    """The affine step z' = M z + c + B w, with z the blocks (and a carried gradient) site by site."""

    names: tuple[str, ...]
    M: "numpy.ndarray"
    c: "numpy.ndarray"
    B: "numpy.ndarray"

    @property
    def spectral_radius(self) -> float:
        """The largest modulus of an eigenvalue of M: the step is stable below 1."""
        from numpy import abs as modulus
        from numpy.linalg import eigvals

        return float(modulus(eigvals(self.M)).max())

    @property
    def covariance(self):
        """The stationary covariance S = M S M^T + B B^T of the chain itself, in the order of `names`."""
        from scipy.linalg import solve_discrete_lyapunov

        if not self.spectral_radius < 1:
            raise RecipeError(
                "stability",
                f"the spectral radius of the step is {self.spectral_radius:.4g}",
                do="Take a smaller step size.",
            )
        return solve_discrete_lyapunov(self.M, self.B @ self.B.T)

    def variance(self, block: str):
        """The stationary variances of the sites of one block."""
        from numpy import array, diag

        return array([v for name, v in zip(self.names, diag(self.covariance)) if name == block])


def linear_chain(step, h: float, stiffness, *, gradient_noise: float = 0.0, **parameters) -> LinearChain:
    """Probe a Step for its matrices on U = theta^T K theta/2, by basis vectors, all in one call.

    `stiffness`: K, or its diagonal k_i; `gradient_noise`: variance that every gradient evaluation adds, fresh each time.
    """
    import torch

    recipe, K = step.recipe, torch.as_tensor(stiffness, dtype=torch.float64)
    K = torch.diag(K) if K.dim() == 1 else K
    d = len(K)
    if len(recipe.targets) > 1:
        raise RecipeError("linear_chain", "the target is made of explicit coordinates", do="Use one vector block.")
    sizes = {b.name: d if b.is_vector else 1 for b in recipe.state}
    if step.program.carries_gradient:
        sizes["gradient"] = d
    draws = {n.name: d if n.block.is_vector else 1 for n in step.program.draws}
    evaluations = step.program.gradients_per_step if gradient_noise else 0
    n, columns = sum(sizes.values()), sum(draws.values()) + evaluations * d
    probes = torch.cat([torch.zeros(1, n + columns, dtype=torch.float64), torch.eye(n + columns, dtype=torch.float64)])
    at = iter(probes.split([*sizes.values(), *draws.values(), *[d] * evaluations], 1))
    vectors = {b.name for b in recipe.state if b.is_vector} | {"gradient"}
    state = {name: x if name in vectors else x[:, 0] for name, x in zip(sizes, at)}
    drawn = {d.name: x if d.block.is_vector else x[:, 0] for d, x in zip(step.program.draws, at)}
    fresh = (gradient_noise**0.5 * x for x in at)
    out = step(state, h, gradient=lambda theta: theta @ K + next(fresh, 0.0), noise=drawn, **parameters)
    image = torch.cat([out[name].reshape(len(probes), -1) for name in sizes], 1).numpy()
    M, B = (image[1:] - image[0]).T[:, :n], (image[1:] - image[0]).T[:, n:]
    return LinearChain(tuple(name for name, size in sizes.items() for _ in range(size)), M, image[0], B)
