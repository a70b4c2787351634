"""Standard test energies U(x) = -log density: symbolic, of one or two coordinates, with known moments."""

from sympy import exp, log, symbols

from recipe import Energy

x, y = symbols("x y", real=True)

TARGETS = {
    # standard deviations 1 and 2, correlation 1/2
    "gaussian": Energy((x, y), U=(x**2 - x * y / 2 + y**2 / 4) * 2 / 3),
    # one tilted mode, light tails
    "quartic": Energy(x, U=x**4 / 4 + x**2 / 2 - 2 * x / 5),
    # modes at -1 and 1, barrier 2
    "double-well": Energy(x, U=2 * (x**2 - 1) ** 2),
    # x ~ N(0, 1), y ~ N(x^2, 1/10) given x, after Rosenbrock
    "banana": Energy((x, y), U=x**2 / 2 + 5 * (y - x**2) ** 2),
    # x ~ N(0, 9), y ~ N(0, e^x) given x. Neal (2003)
    "funnel": Energy((x, y), U=x**2 / 18 + x / 2 + exp(-x) * y**2 / 2),
    # five degrees of freedom: variance 5/3
    "student": Energy(x, U=3 * log(1 + x**2 / 5)),
}
