"""What becomes of a flow at the ends of a domain: an angle goes round, a block of a box comes back.

In a box a flow is the one on the line, folded at the ends like a strip of paper: exact for Brownian noise of constant
amplitude (images), and for a motion with a constant velocity, whose momentum turns at every fold. An Euler step is
folded too, of weak order 1 (Bossy, Gobet & Talay 2004, "Symmetrized Euler scheme for an efficient approximation of
reflected diffusions"). All else has no closed form here.
"""

from sympy import Abs, Expr, S, expand

from recipe.symbols import Block

from .functions import folded, turned, wrapped
from .split import Subsystem

Updates = dict[Block, Expr]

FOLDED = ("euler", "reflected")  # methods whose step on the line may be folded


def led_back(x: Block, value: Expr) -> Expr:
    """The value of a block, led back into a domain that is a circle or reflects.

    >>> from recipe import vector
    >>> theta = vector("theta", domain=(0, 1))
    >>> led_back(theta, theta + 3), led_back(vector("w", domain="positive"), theta - 1)
    (folded(theta + 3, 0, 1), Abs(theta - 1))
    """
    low, high = x.domain.low, x.domain.high
    if x.domain.wraps:
        return wrapped(value, low, high)
    return folded(value, low, high) if x.domain.is_compact else low + Abs(value - low)


def reflected(piece: Subsystem) -> list[Block]:
    """The blocks of a piece that are reflected: those of boxes, and by request those of domains with one end."""
    asked = piece.method == "reflected"
    return [b for b in piece.moving if b.domain.reflects or (asked and b.domain.ends)]


def kept_inside(updates: Updates, piece: Subsystem) -> Updates:
    """The new values of a flow on the line, led back into their domains; momenta turn where a path is reflected."""
    reflecting = reflected(piece)
    inside = {b: led_back(b, e) if b in reflecting or b.domain.wraps else e for b, e in updates.items()}
    for b in reflecting:
        for p in piece.turning.get(b, ()):
            inside[p] = inside.get(p, p) * turned(updates[b], b.domain.low, b.domain.high)
    return inside


def is_exact(x: Block, piece: Subsystem) -> bool:
    """Whether a folded motion is that of its piece: constant noise without drift, or a velocity that turns with it."""
    drift = piece.drift.get(x, S.Zero)
    amplitude = [e for pair, e in piece.diffusion.items() if x in pair]
    momenta = piece.turning.get(x, ())
    if amplitude or not momenta:
        return drift == 0 and not any(e.has(*piece.moving) for e in amplitude)
    back = drift.xreplace({p: -p for p in momenta})
    return not drift.has(*piece.moving) and not set(momenta) & set(piece.moving) and expand(drift + back) == 0
