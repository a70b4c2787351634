"""Constant SGD as a sampler. Mandt, Hoffman & Blei (2017): at h = 1 the only noise is the gradient's.

theta' = theta - (2/V) g, exact for a constant diagonal covariance V of the gradient, in the limit of steps short beside
the scale of U. At h < 1 the rest of the noise is injected; a temperature below h is refused, as the gradient alone is
hotter. The learning rate of the paper's SGD is 2 h/V; lr is h.
Where the covariance is V (1 + theta^2/10), Var theta is 1/(1 - 1/V - 1/10) for a unit normal: off by +11.1 % for a
large V, by +11.7 % at V = 200.
"""

from recipe import Recipe, positive, potential, step_size, vector

theta = vector("theta")
V = positive("V", default=2.0, per=theta, doc="covariance of the gradient, N^2 C/b for scores of covariance C")

VSGD = Recipe(
    name="vsgd",
    source="Mandt, Hoffman & Blei 2017",
    state=(theta,),
    target=theta,
    H=potential(theta),
    D={theta: 2 / V},
    supplied={theta: step_size * 2 / V},
    scheme="Euler",
    conversions={"lr": {step_size: positive("lr")}},
    claim="given constant V",
    doc=__doc__,
)
