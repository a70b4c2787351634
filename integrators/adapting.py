"""Values of operators that adapt: the covariance of positions, the Fisher matrix of gradients, its Kronecker factors.

An adapting operator keeps sums over its observations, drops the older part of the sums as more observations come, and
every so many steps makes and factorises a new matrix; between these steps the matrix is constant. In `samplers.sample`
the operator follows the chains of a run, by default in the warmup, and is constant afterwards: the draws have the law
of a constant operator. While the operator adapts, it depends on the past: a certificate holds for the dynamics with
the operator frozen.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from recipe.arguments import integer, number
from recipe.errors import RecipeError

from .operator_checks import check_kind
from .operators import Blocks, Dense, Function, Kronecker, Operator, value_of

RENEWAL = 2  # older observations are dropped when there are so many times as many newer ones


class Adapting(Operator):
    """Operator estimated from the steps of a run; acts as the latest estimate of its matrix.

    `every`: steps from one matrix to the next; `after`, `until`: steps after + 1, ..., until are observed, with `until`
    None for the end of a warmup. `start`: the initial value, positive definite; `weight`: the number of observations
    that the initial value counts as, so that the matrix is never singular. As a preconditioner, a covariance that is
    too small is slow, and a covariance that is too large is unstable; for a Fisher matrix the contrary holds.

    `growth`: bound on the ratio of successive matrices along any direction (of a Fisher matrix, on its inverse). With
    few or correlated observations a direction looks longer or flatter than the target is; the bound lets steps grow
    slowly, so that observations become independent before steps become unstable. Raises RecipeError for numbers out of
    their range and a start that is not positive definite.
    """

    is_placed = False
    needs_gradient = False

    def __init__(
        self,
        *,
        every: int = 50,
        after: int = 0,
        until: int | None = None,
        start: Any = 1.0,
        weight: float = 1.0,
        growth: float = 2.0,
    ) -> None:
        where = type(self).__name__
        self.every = integer(where, "every", every, least=1)
        self.after = integer(where, "after", after, least=0)
        self.until = None if until is None else integer(where, "until", until, least=self.after + 1)
        self.weight = number(where, "weight", weight, above=0)
        self.growth = number(where, "growth", growth, above=1)
        self.start = value_of(start)
        check_kind(f"{where}, start", "definite", self.start)
        self.restart()

    # ---- the sums, and the matrices made of them

    @abstractmethod
    def _moments(self, theta: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
        """The number of rows of `(chains, sites)`, and sums over these rows."""

    @abstractmethod
    def _factors(self, sums: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The matrices that the value is made of, from sums over all remembered observations, and the start."""

    @abstractmethod
    def _bounded(self, A: torch.Tensor, present: torch.Tensor, axes: int) -> torch.Tensor:
        """A factor within `growth` of the present one, of a product of so many factors."""

    @property
    def _axes(self) -> list[int]:
        """The number of factors of the product that each factor belongs to."""
        return [1]

    def _of_factors(self, factors: Sequence[torch.Tensor]) -> Operator:
        return Dense(factors[0])

    # ---- the course of a run

    def restart(self, until: int | None = None) -> None:
        """Forget all observations; `until` is the last step observed if none has been declared."""
        self.last = until if self.until is None else self.until
        self.number = 0
        self.centre = torch.zeros(())
        self.older: list[torch.Tensor] = []
        self.newer: list[torch.Tensor] = []
        self._become(self.start)

    def _become(self, value: Operator) -> None:
        self.value = value
        self.sites = value.sites
        self.tensors = value.tensors

    def place(self, like: torch.Tensor) -> None:
        """Take the sites and the device of a block `(chains, *shape)`."""
        rows = like.reshape(len(like), -1)[:1].double()
        self.centre = torch.zeros_like(rows[0])
        self.newer = [torch.zeros_like(s) for s in self._moments(rows, rows)]
        self.older = list(self.newer)
        self._become(self._of_factors(self._factors(self.newer)))

    @property
    def is_frozen(self) -> bool:
        """Whether the operator is constant from here on."""
        return self.last is not None and self.number >= self.last

    def freeze(self) -> None:
        """Stop adapting: the operator is constant from here on."""
        self.last = self.number

    def observe(self, theta: torch.Tensor, gradient: torch.Tensor | None = None) -> bool:
        """Observe a step: positions `(chains, *shape)` and gradients of U there; returns whether the matrix is new.

        Raises RecipeError for numbers that are not finite, and for a gradient that is missing.
        """
        if self.is_frozen:
            return False
        self.number += 1
        if self.number > self.after:
            self._look(theta, gradient)
        due = (self.number - self.after) % self.every == 0 or self.number == self.last
        if not due or self.number <= self.after:
            return False
        factors = self._factors([a + b for a, b in zip(self.older, self.newer, strict=True)])
        if not all(A.isfinite().all() for A in factors):
            what = "the products of what it has seen are beyond the numbers"
            raise RecipeError(type(self).__name__, what, do="Take a smaller step size.")
        near = [self._bounded(A, B, axes) for A, B, axes in zip(factors, self.tensors, self._axes, strict=True)]
        self._become(self._of_factors(near))
        if float(self.newer[0]) >= RENEWAL * float(self.older[0]):
            self.older, self.newer = self.newer, [torch.zeros_like(s) for s in self.newer]
        return True

    def _look(self, theta: torch.Tensor, gradient: torch.Tensor | None) -> None:
        """Add positions and gradients to the sums."""
        where = type(self).__name__
        if self.needs_gradient and gradient is None:
            raise RecipeError(where, "it is made of gradients, and there are none", do="Pass observe(theta, gradient).")
        vectors = gradient if self.needs_gradient and gradient is not None else theta
        if not vectors.isfinite().all():
            raise RecipeError(where, "what it sees is not finite", do="Leave out chains that are lost.")
        if not self.newer:
            self.place(theta)
        rows, slopes = (x.detach().reshape(len(x), -1).double() for x in (theta, vectors))
        if self.number == self.after + 1:
            self.centre = rows.mean(0)
        self.newer = [s + new for s, new in zip(self.newer, self._moments(rows, slopes), strict=True)]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Step number, centre, sums and value as tensors by name."""
        state = {"number": torch.tensor(self.number), "centre": self.centre}
        for name, tensors in (("older", self.older), ("newer", self.newer), ("value", self.tensors)):
            state |= {f"{name}.{k}": x for k, x in enumerate(tensors)}
        return state

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Continue from a state of `state_dict`."""

        def tensors(name: str) -> list[torch.Tensor]:
            return [state[f"{name}.{k}"] for k in range(sum(key.startswith(f"{name}.") for key in state))]

        self.number = int(state["number"])
        self.centre = state["centre"]
        self.older, self.newer = tensors("older"), tensors("newer")
        self._become(self._of_factors(tensors("value")))

    # ---- the present value as an operator

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        return self.value @ x

    def function(self, f: Function) -> Operator:
        """f(M) of the present value."""
        return self.value.function(f)

    def root(self) -> Operator:
        """A root of the present value."""
        return self.value.root()

    def inverse(self) -> Operator:
        """The inverse of the present value."""
        return self.value.inverse()

    def eigenvalues(self) -> torch.Tensor:
        """The eigenvalues of the present value."""
        return self.value.eigenvalues()

    def asymmetry(self, sign: int) -> float:
        """The asymmetry of the present value."""
        return self.value.asymmetry(sign)

    def __repr__(self) -> str:
        settings = dict(every=self.every, after=self.after, until=self.last, weight=self.weight, growth=self.growth)
        return f"{type(self).__name__}({', '.join(f'{name}={x}' for name, x in settings.items())})"

    def _prior(self, like: torch.Tensor) -> torch.Tensor:
        one = torch.eye(like.shape[-1], dtype=torch.float64)
        return self.weight * (self.start @ one).to(like.device)


class Covariance(Adapting):
    """Covariance of the remembered positions of all chains and steps about their common mean.

        M = (sum_i (theta_i - m)(theta_i - m)^T + w S) / (n + w),   S the start, w its weight

    Arguments are those of `Adapting`. Source: Haario, Saksman & Tamminen 2001, eq. (1), here in a warmup alone.

    >>> M = Covariance(every=1, weight=1e-9)
    >>> M.observe(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0], [0.0, -2.0]]))
    True
    >>> M.value.matrix.round(decimals=3)
    tensor([[0.5000, 0.0000],
            [0.0000, 2.0000]], dtype=torch.float64)
    """

    def _moments(self, theta: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
        x = theta - self.centre
        return [x.new_tensor(float(len(x))), x.sum(0), x.mT @ x]

    def _factors(self, sums: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        n, first, second = sums
        scatter = second - torch.outer(first, first) / n.clamp(min=1)
        return [_symmetric(scatter + self._prior(first)) / (n + self.weight)]

    def _bounded(self, A: torch.Tensor, present: torch.Tensor, axes: int) -> torch.Tensor:
        return _between(A, present, most=self.growth)


class Fisher(Adapting):
    """Mean of the outer products of gradients of U; under exp(-U) the mean of the Hessian.

        M = (sum_i g_i g_i^T + w S) / (n + w),   E g g^T = T E grad grad U + the covariance of the gradient's noise

    On minibatches M contains the noise of the gradient, as the information in SGFS. Arguments are those of `Adapting`.
    Source: Ahn, Korattikara & Welling 2012, section 3.

    >>> M = Fisher(every=1, start=2.0)
    >>> M.observe(torch.zeros(1, 2), torch.tensor([[2.0, 2.0]]))
    True
    >>> M.value.matrix.round(decimals=6)
    tensor([[3., 2.],
            [2., 3.]], dtype=torch.float64)
    """

    needs_gradient = True

    def _moments(self, theta: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
        return [gradient.new_tensor(float(len(gradient))), gradient.mT @ gradient]

    def _factors(self, sums: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        n, second = sums
        return [_symmetric(second + self._prior(second)) / (n + self.weight)]

    def _bounded(self, A: torch.Tensor, present: torch.Tensor, axes: int) -> torch.Tensor:
        return _between(A, present, least=self.growth ** (-1 / axes))


class KroneckerFisher(Fisher):
    """The Fisher matrix of each tensor of a target as a Kronecker product of a factor for each of its axes.

        M = A_1 (x) ... (x) A_k / t^(k-1),   A_j = E G_(j) G_(j)^T,   t = E |G|^2 = tr A_j

    with G_(j) the gradient by the tensor, unfolded along axis j; if the Fisher matrix is a Kronecker product, M equals
    it. `tensors`: shapes of the tensors, in the order of the sites; `start`: a number. Other arguments are those of
    `Adapting`. Source: Gupta, Koren & Singer 2018, section 3; Martens & Grosse 2015, section 3.

    >>> M = KroneckerFisher([(2, 3), (2,)], start=0.5)
    >>> M @ torch.ones(1, 8)
    tensor([[0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000]])
    """

    def __init__(self, tensors: Sequence[Sequence[int]], *, start: float = 1.0, **options: Any) -> None:
        where = "KroneckerFisher"
        try:
            self.shapes = [tuple(integer(where, "a size", n, least=1) for n in shape) or (1,) for shape in tensors]
        except TypeError as error:
            what = f"tensors are the shapes of tensors, got {tensors!r}"
            raise RecipeError(where, what, do="Pass [(3, 2), (3,)], say.") from error
        if not self.shapes:
            raise RecipeError(where, "it is of no tensors", do="Pass [(3, 2), (3,)], say.")
        super().__init__(start=number(where, "start", start, above=0), **options)

    def restart(self, until: int | None = None) -> None:
        """Forget all observations; `until` is the last step observed if none has been declared."""
        super().restart(until)
        self.place(torch.zeros(1, sum(map(math.prod, self.shapes))))

    def _moments(self, theta: torch.Tensor, gradient: torch.Tensor) -> list[torch.Tensor]:
        sums = [gradient.new_tensor(float(len(gradient)))]
        for part, shape in zip(gradient.split([*map(math.prod, self.shapes)], 1), self.shapes, strict=True):
            G = part.reshape(-1, *shape)
            for axis, size in enumerate(shape, 1):
                unfolded = G.movedim(axis, 0).reshape(size, -1)
                sums.append(unfolded @ unfolded.mT)
        return sums

    def _factors(self, sums: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The factors of all axes: the first of each tensor has the trace t, the others have trace 1."""
        n, *rest = sums
        start = float(self.start.eigenvalues()[0])
        products = iter(rest)
        factors: list[torch.Tensor] = []
        for shape in self.shapes:
            axes = []
            for size in shape:
                noise = self.weight * start * math.prod(shape) / size
                one = torch.eye(size, dtype=torch.float64, device=n.device)
                axes.append(_symmetric(next(products) + noise * one) / (n + self.weight))
            factors += [axes[0], *(A / A.trace() for A in axes[1:])]
        return factors

    @property
    def _axes(self) -> list[int]:
        return [len(shape) for shape in self.shapes for _ in shape]

    def _of_factors(self, factors: Sequence[torch.Tensor]) -> Operator:
        """Block-diagonal operator with one Kronecker block for each tensor."""
        matrices = iter(factors)
        return Blocks(*(Kronecker(*(next(matrices) for _ in shape)) for shape in self.shapes))


def _symmetric(A: torch.Tensor) -> torch.Tensor:
    return (A + A.mT) / 2


def _between(A: torch.Tensor, B: torch.Tensor, least: float = 0.0, most: float = math.inf) -> torch.Tensor:
    """A with its eigenvalues relative to B clamped to `least`, `most`; A and B are positive definite."""
    L = torch.linalg.cholesky(B)
    half = torch.linalg.solve_triangular(L, A, upper=False)
    ratios, V = torch.linalg.eigh(_symmetric(torch.linalg.solve_triangular(L, half.mT, upper=False)))
    if least <= ratios[0] and ratios[-1] <= most:
        return A
    axes = L @ V
    return _symmetric((axes * ratios.clamp(least, most)) @ axes.mT)


def adapting(parameters: Mapping[str, Any]) -> dict[str, Adapting]:
    """The parameters whose values are adapting operators, by name."""
    return {name: x for name, x in parameters.items() if isinstance(x, Adapting)}


def constant(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters with each adapting operator replaced by its present value."""
    return {name: x.value if isinstance(x, Adapting) else x for name, x in parameters.items()}
