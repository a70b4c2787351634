"""Flows at the ends of a domain: an angle wraps around, a block of a box is reflected, one of a sphere is scaled.

In a box the flow on the line is folded at the ends: exact for Brownian noise of constant amplitude (images), and for
motion with a constant velocity, where the momentum changes sign at every fold. A folded Euler step has weak order 1
(Bossy, Gobet & Talay 2004, "Symmetrized Euler scheme for an efficient approximation of reflected diffusions"). No other
flow has a closed form here.
"""

from sympy import Abs, Expr, S, expand

from recipe.symbols import Block

from .functions import Unit, folded, turned, wrapped
from .split import Subsystem

Updates = dict[Block, Expr]

FOLDED = ("euler", "reflected")  # methods whose step on the line may be folded


def led_back(x: Block, value: Expr) -> Expr:
    """The value of a block wrapped around its circle, scaled to its sphere, or reflected into its domain.

    >>> from recipe import vector
    >>> theta = vector("theta", domain=(0, 1))
    >>> led_back(theta, theta + 3), led_back(vector("w", domain="positive"), theta - 1)
    (folded(theta + 3, 0, 1), Abs(theta - 1))
    """
    low, high = x.domain.low, x.domain.high
    if x.domain.is_sphere:
        return Unit(value)
    if x.domain.wraps:
        return wrapped(value, low, high)
    return folded(value, low, high) if x.domain.is_compact else low + Abs(value - low)


def reflected(piece: Subsystem) -> list[Block]:
    """The reflected blocks of a piece: blocks of boxes, and by request blocks of domains with one end."""
    by_method = piece.method == "reflected"
    return [b for b in piece.moving if b.domain.reflects or (by_method and b.domain.ends)]


def kept_inside(updates: Updates, piece: Subsystem) -> Updates:
    """The updates of a flow on the line, led back into the domains; momenta change sign at reflections."""
    reflecting = reflected(piece)
    led = {b for b in updates if b in reflecting or b.domain.wraps or b.domain.is_sphere}
    inside = {b: led_back(b, e) if b in led else e for b, e in updates.items()}
    for b in reflecting:
        for p in piece.turning.get(b, ()):
            inside[p] = inside.get(p, p) * turned(updates[b], b.domain.low, b.domain.high)
    return inside


def image(x: Block, value: Expr) -> Expr:
    """Where x is taken by the isometry of the line that leads `value` back into its domain: turns, or reflections."""
    sign = S.One if x.domain.wraps else turned(value, x.domain.low, x.domain.high)
    return led_back(x, value) + sign * (x - value)


def is_exact(x: Block, piece: Subsystem) -> bool:
    """Whether folding is exact for a piece: constant noise without drift, or a velocity odd in the turning momenta."""
    drift = piece.drift.get(x, S.Zero)
    amplitude = [e for pair, e in piece.diffusion.items() if x in pair]
    momenta = piece.turning.get(x, ())
    if amplitude or not momenta:
        return drift == 0 and not any(e.has(*piece.moving) for e in amplitude)
    back = drift.xreplace({p: -p for p in momenta})
    return not drift.has(*piece.moving) and not set(momenta) & set(piece.moving) and expand(drift + back) == 0
