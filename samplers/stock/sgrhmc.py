"""SGRHMC. Ma, Chen & Fox (2015), section 4.2: SGHMC in the metric G, here of one value per site.

The inverse metric is left open: `SGRHMC.bind(inverse_metric=lambda theta: 1 + theta**2)`. A has no closed form and is
taken by Heun's rule.
"""

from sympy import sqrt

from recipe import Recipe, function, numerical, potential, total, vector

theta, p = vector("theta"), vector("p")
inverse_metric = function("inverse_metric", theta, sign="positive")

SGRHMC = Recipe(
    name="sgrhmc",
    source="Ma, Chen & Fox 2015, section 4.2",
    state=(theta, p),
    target=theta,
    H=potential(theta) + total(p**2) / 2,
    D={p: inverse_metric},
    Q={(theta, p): -sqrt(inverse_metric)},
    pieces={"A": numerical(theta, "heun")},
    scheme="B A O A B",
    schemes={"paper": "Euler"},
    doc=__doc__,
)
