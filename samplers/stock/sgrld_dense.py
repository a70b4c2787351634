"""SGRLD with a dense inverse metric L L^T over two explicit coordinates. Patterson & Teh (2013), \
with the Lebesgue-correct Gamma.

`SGRLDDense.bind(L_xx=lambda x, y: ..., L_yx=..., L_yy=...)`. The paper's printed drift differs, unless the metric is
diagonal and separable. For more coordinates, declare D as L*L.T over as many scalar blocks.
"""

from sympy import Matrix

from recipe import Recipe, function, potential, scalar

x, y = scalar("x"), scalar("y")
L = Matrix([[function("L_xx", x, y), 0], [function("L_yx", x, y), function("L_yy", x, y)]])

SGRLDDense = Recipe(
    name="sgrld-dense",
    source="Patterson & Teh 2013",
    state=(x, y),
    target=(x, y),
    H=potential(x, y),
    D=L * L.T,
    scheme="Euler",
    doc=__doc__,
)
