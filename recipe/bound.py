"""Functions of sites computed outside of sympy, such as networks, and their derivatives in formulas."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sympy import Derivative, Expr, Function, Symbol


class Bound(Function):
    """A function of sites computed by its `family`; `orders`: the orders of its derivatives by each argument.

    A derivative is not expanded: d f(x, p)/dp is the function of the same family with the order in p raised by one.
    """

    family: "Family"
    orders: tuple[int, ...]
    is_real = True

    def fdiff(self, argindex: int = 1) -> Expr:
        """The derivative by argument number `argindex`, from 1 on."""
        raised = [n + (k == argindex) for k, n in enumerate(self.orders, 1)]
        return self.family.of(tuple(raised))(*self.args)

    @classmethod
    def on_arrays(cls, *values: Any) -> Any:
        """The function on numpy arrays."""
        import numpy
        import torch

        columns = numpy.broadcast_arrays(*(numpy.asarray(x, float) for x in values))
        return cls.family.compute(cls.orders, *(torch.tensor(x) for x in columns)).numpy()

    def _written(self, names: list[Expr]) -> Expr:
        """An undefined function of the named arguments, or its derivative, for printing."""
        f = Function(self.family.name)(*names)
        by = [x for x, n in zip(names, self.orders) for _ in range(n)]
        return Derivative(f, *by) if by else f

    def _sympystr(self, printer: Any) -> str:
        return printer._print(self._written([x if x.is_Symbol else Symbol(printer._print(x)) for x in self.args]))

    def _latex(self, printer: Any, exp: Any = None) -> str:
        names = [x if x.is_Symbol else Symbol(f"{{{printer._print(x)}}}") for x in self.args]
        body = printer._print(self._written(names))
        return body if exp is None else rf"\left({body}\right)^{{{exp}}}"


@dataclass(eq=False)
class Family:
    """A function of sites and its derivatives: `compute(orders, *values)` evaluates one, with orders by argument."""

    name: str
    arity: int
    compute: Callable
    is_positive: bool = False
    members: dict[tuple[int, ...], type[Bound]] = field(default_factory=dict)

    def of(self, orders: tuple[int, ...]) -> type[Bound]:
        """The class of the derivative of given orders, cached."""
        if orders not in self.members:
            signs = {"is_positive": True} if self.is_positive and not any(orders) else {}
            name = f"bound_{self.name}_{''.join(map(str, orders))}"
            members = {"family": self, "orders": orders, "nargs": self.arity, **signs}
            self.members[orders] = type(name, (Bound,), members)
        return self.members[orders]
