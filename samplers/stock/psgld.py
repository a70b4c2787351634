"""pSGLD. Li et al. (2016), eqs. (4)-(5) and Algorithm 1: SGLD preconditioned as in RMSprop, eps = 2h.

The law holds for frozen V; V as it adapts adds a bias that neither a small step nor Gamma removes. Under
theta^4/4 with lam = 0.3, h = 0.01, alpha = 0, 0.9, 0.99, 0.999, E theta^2 is off by +117, +83, +27, +3.5 %, with Gamma
by +4, +69, +26, +3.5 %; at alpha = 0.9 with a gradient of variance 9 by +16.3 %, in the same step by +20.5 %.
V is of the gradient of U/N with the prior, in the paper of the likelihood alone. PSGLD uses the V of
the step before, without Gamma; PSGLDSameStep is the paper's order without Gamma (its Corollary 2),
and RMSprop at temperature 0 from V = 0; PSGLDGamma has Gamma through V, and needs the Hessian diagonal.
"""

from dataclasses import replace

from sympy import sqrt

from recipe import Recipe, adapted, fraction, grad, num_data, positive, potential, step_size, vector

theta = vector("theta")
alpha = fraction("alpha", default=0.99, doc="weight of the past in V")
lam = positive("lam", default=1e-5, doc="added to the root of V, on the scale of the mean gradient")
U = potential(theta)
slope = grad(U) / num_data
V = adapted("V", like=theta, start=slope**2, domain="nonnegative")

PSGLD = Recipe(
    name="psgld",
    source="Li et al. 2016, eqs. (4)-(5)",
    state=(theta,),
    target=theta,
    H=U,
    D={theta: 1 / (lam + sqrt(V))},
    adapt={V: alpha * V + (1 - alpha) * slope**2},
    scheme="Euler",
    conversions={"eps": {step_size: positive("eps") / 2}},
    doc=__doc__,
)
PSGLDSameStep = replace(PSGLD, name="psgld-same-step", source="Li et al. 2016, Algorithm 1", order="same_step")
PSGLDGamma = replace(PSGLD, name="psgld-gamma", source="Li et al. 2016, eq. (3)", order="differentiated", claim="")
