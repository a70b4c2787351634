"""An oracle of the emitted step, in numpy float64, with the arguments of a Step.

`flow_by_flow` reads of the Program only the names of draws: each move of the word evaluates the flow's formulas at the
old values, all blocks at once, with grad U at the present theta; adaptations are applied in the recipe's order.
Formulas are evaluated by `evaluate`, recursively; values have the shape (chains, *shape), with ones for axes that a
value does not depend on.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from functools import cache, reduce
from typing import Any

import numpy as np
import torch
from scipy import special
from scipy.linalg import expm
from scipy.optimize import brentq
from sympy import Add, Mul, Piecewise, Pow, Symbol

from integrators.flow import reads_U
from integrators.functions import MatrixOU, SquareRoot, Unit
from integrators.predicted import At
from integrators.program import DERIVATIVES
from integrators.step import Step
from integrators.variates import Drawn
from recipe import Recipe
from recipe.arrays import whole_power
from recipe.bound import Bound
from recipe.fields import Divergence, operators_of
from recipe.operators import Applied
from recipe.symbols import Block, Observed, Partial, Total, num_data, step_number, step_size
from recipe.symbols import temperature as T


@np.vectorize
def braked(y: float, s: float) -> float:
    """y after a time s of dy/ds = -y/sqrt(1 + y^2): the root of F(|y'|) = F(|y|) - s, in v = log |y'|.

    F = sqrt(1 + y^2) + log(y/(1 + sqrt(1 + y^2))) has dF/dv = sqrt(1 + y^2) >= 1, so v moves by at most s.
    """
    if y == 0 or s == 0:
        return float(y)

    def F(v):
        root = math.hypot(1, math.exp(v))
        return root + v - math.log1p(root)

    start = math.log(abs(y))
    ends = sorted((start, start - s * (1 + 1e-9)))
    return math.copysign(math.exp(brentq(lambda v: F(v) - F(start) + s, *ends, xtol=1e-15)), y)


def wrapped(x: Any, low: float, high: float) -> Any:
    """The point of a circle [low, high) at x, by its angle on the complex unit circle."""
    middle, radius = (low + high) / 2, (high - low) / (2 * math.pi)
    return middle + radius * np.angle(np.exp(1j * (x - middle) / radius))


def reflections(x: Any, low: float, high: float) -> tuple[Any, Any]:
    """The position between two reflecting ends of a path at x on the line, and the sign of its velocity: a zigzag."""
    inside, number = np.modf(np.abs(x - low) / (high - low))
    odd = number % 2 == 1
    return low + (high - low) * np.where(odd, 1 - inside, inside), np.where(odd, -1.0, 1.0) * np.sign(x - low)


FUNCTIONS = {
    **{name: getattr(np, name) for name in ("exp", "log", "sin", "cos", "tan", "sinh", "cosh", "tanh", "sign")},
    **{f"a{name}": getattr(np, f"arc{name}") for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "erf": special.erf,
    "erfc": special.erfc,
    "Abs": np.abs,
    "phi1": special.exprel,
    "braked": braked,
    "wrapped": wrapped,
    "folded": lambda *x: reflections(*x)[0],
    "turned": lambda *x: reflections(*x)[1],
    "Heaviside": lambda x, at_0=0.0: np.heaviside(x, 0.0),
    "Max": lambda *x: reduce(np.maximum, x),
    "Min": lambda *x: reduce(np.minimum, x),
    "ITE": np.where,
    "And": lambda *x: reduce(np.logical_and, x),
    "Or": lambda *x: reduce(np.logical_or, x),
    "Not": np.logical_not,
    "Add": lambda *x: reduce(operator.add, x),
    "Mul": lambda *x: reduce(operator.mul, x),
    "Equality": operator.eq,
    "Unequality": operator.ne,
    "StrictLessThan": operator.lt,
    "LessThan": operator.le,
    "StrictGreaterThan": operator.gt,
    "GreaterThan": operator.ge,
    "BooleanTrue": lambda: True,
    "BooleanFalse": lambda: False,
}


def evaluate(
    e: Any, at: Mapping, full: tuple[int, ...], sizes: Sequence[int] | None = None, known: dict | None = None
) -> Any:
    """The number or array of an expression; `at`: values of symbols and subexpressions; `full`: (chains, *shape).

    With `sizes`, totals are over the sites of each tensor, repeated for each of these sites.
    """
    if known is None:
        known = {}  # the values of equal subexpressions
    if e not in at and e not in known:
        known[e] = _evaluate(e, lambda x: evaluate(x, at, full, sizes, known), full, sizes)
    return at[e] if e in at else known[e]


def _evaluate(e, value, full, sizes):
    match e:
        case Total() | Unit():
            return _over_sites(e, np.broadcast_to(value(e.integrand), full), sizes)
        case Drawn():
            return value(e.variate)(value(e.parameter))
        case Applied():
            x = np.broadcast_to(value(e.argument), full).reshape(full[0], -1)
            return _applied(matrix_of(e.formula, value), x).reshape(full)
        case MatrixOU():
            part, i, j, size, h, *entries = e.args
            return _matrix_ou(int(size), value(h), list(map(value, entries)))[part.name][..., int(i), int(j)]
        case SquareRoot():
            part, i, j, size, *entries = e.args
            return _lower_root(int(size), list(map(value, entries)))[..., int(i), int(j)]
        case Pow():
            base, n = np.asarray(value(e.base), float), e.exp
            return whole_power(base, int(n)) if n.is_Integer and n > 0 else np.power(base, value(n))
        case Piecewise():
            values, conditions = zip(*((value(x), value(condition)) for x, condition in e.args))
            return np.select(list(np.broadcast_arrays(*conditions)), list(np.broadcast_arrays(*values)), math.nan)
        case Symbol():
            raise KeyError(f"{e} has no value")
    if e.is_Number or e.is_NumberSymbol:
        return float(e)
    if isinstance(e, Bound):
        return e.on_arrays(*map(value, e.args))
    return FUNCTIONS[type(e).__name__](*map(value, e.args))


def _applied(matrix, x):
    """The product of a matrix, common or one for each chain, or of a number (1, 1), with the sites of every chain."""
    if matrix.ndim == 3:
        return np.einsum("cij,cj->ci", matrix, x)
    return matrix.item() * x if matrix.size == 1 else x @ matrix.T


def matrix_of(F: Any, value: Callable) -> np.ndarray:
    """A formula of an operator as a matrix, by functions of matrices; `value` gives the values of symbols."""
    M = next(iter(operators_of(F)))
    matrix = np.asarray(value(M), float)
    if not matrix.ndim and not getattr(M, "is_constant_in_step", False):
        matrix = matrix.reshape(1, 1)
    match F:
        case Symbol():
            return matrix
        case Add() | Mul():
            unit = np.eye(matrix.shape[-1])
            terms = [matrix_of(a, value) if operators_of(a) else value(a) * unit for a in F.args]
            return reduce(operator.add if F.is_Add else operator.matmul, terms)
        case Pow() if F.exp.is_Integer:
            return np.linalg.matrix_power(matrix_of(F.base, value), int(F.exp))
        case Pow():
            values, vectors = np.linalg.eigh(matrix_of(F.base, value))
            values = np.where(np.abs(values) > 1e-13 * np.abs(values).max(-1, keepdims=True), values, 0.0)
            return vectors * values[..., None, :] ** float(F.exp) @ np.swapaxes(vectors, -1, -2)
    inside = matrix_of(F.args[0], value)
    if type(F).__name__ == "exp":
        return expm(inside)
    blocks = expm(np.block([[inside, np.eye(len(inside))], [np.zeros_like(inside)] * 2]))
    return blocks[: len(inside), len(inside) :]  # phi1, as an integral of the exponential


def _over_sites(e, values, sizes):
    """The sum of values over sites, or the values over their length."""
    return values / np.sqrt(_total(values**2, sizes)) if isinstance(e, Unit) else _total(values, sizes)


def _total(values, sizes):
    """The sum over sites; with `sizes`, over the sites of each tensor, repeated for each of these sites."""
    if not sizes:
        return values.sum(tuple(range(1, values.ndim)), keepdims=True)
    tensors = np.split(values, np.cumsum(sizes)[:-1], -1)
    return np.repeat(np.stack([x.sum(-1) for x in tensors], -1), sizes, -1)


def _lower_root(size, entries):
    """The lower L with L L^T = C for C >= 0, row by row; a vanishing pivot leaves its column 0."""
    C = np.stack(np.broadcast_arrays(*entries), -1).astype(float).reshape(-1, size, size)
    L = np.zeros_like(C)
    for c, root in zip(C, L):
        for i in range(size):
            for j in range(i + 1):
                rest = c[i, j] - root[i, :j] @ root[j, :j]
                if i == j:
                    root[i, i] = math.sqrt(rest) if rest > 1e-14 * c[i, i] else 0.0
                elif root[j, j]:
                    root[i, j] = rest / root[j, j]
    return L.reshape(*np.broadcast_shapes(*(np.shape(x) for x in entries)), size, size)


def _matrix_ou(size, h, entries):
    """The parts M, J, L of dx = -A x dt + sqrt(2D) dW over h, by Van Loan's block exponentials, matrix by matrix."""
    rows = np.stack(np.broadcast_arrays(*entries), -1).astype(float)
    solved = np.array([_solution(size, float(h), row.tobytes()) for row in rows.reshape(-1, 2 * size**2)])
    return dict(zip("MJL", np.moveaxis(solved.reshape(*rows.shape[:-1], 3, size, size), -3, 0)))


@cache
def _solution(size, h, entries):
    A, D = np.frombuffer(entries).reshape(2, size, size)
    M, J, V = van_loan(A, D, h)
    values, vectors = (x.numpy() for x in torch.linalg.eigh(torch.tensor((V + V.T) / 2)))
    return M, J, vectors * np.sqrt(values.clip(0))


def van_loan(A: np.ndarray, D: np.ndarray, h: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(e^{-Ah}, int_0^h e^{-As} ds, 2 int_0^h e^{-As} D e^{-A's} ds)."""
    n = len(A)
    zero = np.zeros((n, n))
    forced = expm(h * np.block([[-A, np.eye(n)], [zero, zero]]))
    spread = expm(h * np.block([[-A, 2 * D], [zero, A.T]]))
    return forced[:n, :n], forced[:n, n:], spread[:n, n:] @ spread[:n, :n].T


class Chain:
    """The values of a recipe's blocks and parameters at one moment; `full` is the shape of a vector block.

    `arguments`: parameters, functions and noise, by the names of a Step's arguments. With `sizes`, the number of sites
    of each tensor, values per tensor are repeated for each of its sites.
    """

    def __init__(
        self,
        recipe: Recipe,
        state: Mapping[str, Any],
        h: float,
        arguments: Mapping[str, Any],
        sizes: Sequence[int] | None = None,
    ):
        self.recipe, self.arguments, self.sizes = recipe, arguments, sizes
        self.full = state[next((b.name for b in recipe.state if b.is_vector), recipe.state[0].name)].shape
        self.at: dict[Any, Any] = {step_size: h, T: arguments.get("temperature", 1.0)}
        self.at |= {num_data: arguments.get("num_data", 1), step_number: arguments.get("step_number", 0)}
        constant = [s for s in recipe.parameters if s not in recipe.fields]
        self.at |= {s: np.asarray(arguments.get(s.name, s.default), float) for s in constant}
        self.at |= {b: self.lift(state[b.name], b) for b in recipe.entries}
        for M in recipe.fields:
            points = [torch.tensor(x) for x in self.at[M.at]]
            self.at[M] = np.stack([arguments[M.name].matrix(x).numpy() for x in points])
            self.at[Divergence(M)] = np.stack([arguments[M.name].divergence(x).numpy() for x in points])

    def lift(self, x: np.ndarray, block: Any) -> np.ndarray:
        """An array of a block, reshaped to broadcast with (chains, *shape)."""
        if block.is_vector:
            return x
        return np.repeat(x, self.sizes, -1) if self.sizes else x.reshape(-1, *[1] * (len(self.full) - 1))

    def lower(self, block: Any) -> np.ndarray:
        """A block's value in the shape of a state of the Step."""
        if block.is_vector:
            return np.broadcast_to(self.at[block], self.full)
        if self.sizes:
            return np.broadcast_to(self.at[block], self.full)[:, np.cumsum([0, *self.sizes[:-1]])]
        return np.broadcast_to(self.at[block], (self.full[0], *[1] * (len(self.full) - 1))).reshape(self.full[0])

    def state(self) -> dict[str, Any]:
        """The blocks in the shape of a state of the Step."""
        return {b.name: self.lower(b) for b in self.recipe.entries}

    def value(self, expression: Any, at: Mapping | None = None) -> np.ndarray:
        """The value of a formula; `at`: values of symbols, by default those of the chain."""
        return np.asarray(evaluate(expression, self.at if at is None else at, self.full, self.sizes))

    def ask(self, function: Callable, blocks: Sequence[Block] = ()) -> dict[Block, Any]:
        """The values by block of a function, such as grad U, at the present blocks, by default the target."""
        targets = blocks or self.recipe.targets
        if len(targets) == 1:
            return {targets[0]: function(self.lower(targets[0]))}
        answer = function({b.name: self.lower(b) for b in targets})
        return {b: self.lift(answer[b.name], b) for b in targets}

    def energy(self, function: Callable, blocks: Sequence[Block] = ()) -> np.ndarray:
        """U, a function of some blocks or of the whole target, one number for each chain."""
        at = {b.name: self.lower(b) for b in blocks or self.recipe.targets}
        values = function(at if len(at) > 1 else next(iter(at.values())))
        return np.asarray(values).reshape(-1, *[1] * (len(self.full) - 1))

    def observed(self, observation: Any) -> np.ndarray:
        """A statistic at the present target."""
        function = self.arguments["observe"][observation.name]
        return self.lift(function(self.lower(self.recipe.targets[0])), observation)

    def derivatives(self, order: int = 1) -> dict[Any, Any]:
        """The derivatives of an order, 0 for values, of U or of every potential, at the present target."""
        function = self.arguments[DERIVATIVES[order]]
        known: dict[Any, Any] = {}
        for U in self.recipe.potentials:
            of_U = function[U.key] if isinstance(function, Mapping) else function
            if order == 0:
                known[U] = self.energy(of_U, U.blocks)
            else:
                known |= {Partial(U, *[b] * order): g for b, g in self.ask(of_U, U.blocks).items()}
        return known

    def elsewhere(self, formulas: Iterable, at: Mapping) -> dict[Any, np.ndarray]:
        """Derivatives of U at other points than the target's, as in formulas, inner ones first; `at`: by symbol."""
        derivatives: dict[Any, np.ndarray] = {}
        for derivative in sorted({x for e in formulas for x in e.atoms(At)}, key=lambda x: len(x.atoms(At))):
            chain = copy(self)
            known = {**at, **derivatives}
            chain.at = known | {b: self.value(x, known) for b, x in derivative.point.items()}
            order = len(derivative.value.variables) if isinstance(derivative.value, Partial) else 0
            derivatives[derivative] = chain.derivatives(order)[derivative.value]
        return derivatives


# ---- the oracle


def flow_by_flow(
    step: Step, state: Mapping[str, Any], h: float, *, sizes: Sequence[int] | None = None, **arguments: Any
) -> dict[str, Any]:
    """Makes one step by the word alone: each move takes its flow's formulas at the old values, all blocks at once.

    Adaptations see the first gradient of the step. In the order "same_step" adaptations come before the first flow that
    reads a gradient (the last flow, if none does), else after the step, where the blocks are new.
    """
    recipe = step.recipe
    moves = step.scheme.moves
    chain = Chain(recipe, state, h, arguments, sizes)
    draws = iter(step.program.draws)
    adapt = recipe.updates_except(step.frozen)
    first = next((k for k, (letter, _) in enumerate(moves) if step.flows[letter].reads_gradient), None)
    before = len(moves) - 1 if first is None else first  # in the order "same_step", adaptations come before this flow
    first_gradient: dict = {}
    for k, (letter, fraction) in enumerate(moves):
        if k == first:
            first_gradient = chain.derivatives()
        if recipe.order == "same_step" and k == before:
            _move(chain, adapt)
        flow = step.flows[letter]
        _draw(chain, flow, [next(draws) for _ in flow.draws])
        _move(chain, flow.over(fraction))
    if recipe.order != "same_step":
        _move(chain, adapt, first_gradient)
    return chain.state()


def _move(chain, updates, first_gradient=None):
    """Updates all blocks of a flow at once, by formulas at the old values."""
    formulas = updates.values()
    for order in DERIVATIVES:
        chain.at |= chain.derivatives(order) if reads_U(formulas, order) else {}
    chain.at |= first_gradient or {}
    chain.at |= {o: chain.observed(o) for e in formulas for o in e.atoms(Observed)}
    chain.at |= chain.elsewhere(formulas, chain.at)
    chain.at |= {block: chain.value(e) for block, e in updates.items()}


def _draw(chain, flow, names):
    """Sets the random numbers of a flow, each by the Program's name for a draw of its kind and block."""
    for draw in flow.draws:
        kind = (type(draw), draw.block, draw.is_vector)
        name = next(d for d in names if (type(d), d.block, d.is_vector) == kind)
        names.remove(name)
        numbers = chain.arguments["noise"][name.name]
        chain.at[draw] = numbers if callable(numbers) else chain.lift(numbers, draw)
