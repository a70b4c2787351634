"""i-SGD. Franzese et al. (2021): SGD of learning rate 1/lam that adds the noise that the gradient lacks, at h = 1.

ISGDIdeal, section 3 of the paper, takes lam and half the gradient's covariance, B, as known; its step is Euler's at the
step size 1/lam, with the bias of Euler. ISGD is Algorithm 2 with b a running average (appendix B.3): lam = total(b)
is settled in the first warmup_steps, per layer with scope="tensor". A step reads the b of the step before, in the paper
the b of its own gradient. lam is one draw of a noisy number: in a layer of few parameters the learning rate 1/lam may
be far too large.
As b is a second moment, E b exceeds B by (grad U)^2/2, which on Gaussians cancels the bias of Euler while b stays below
lam; with lam = 10 and B = 9.5 Var theta of a unit normal is off by +31 %.

At a temperature T the gradient alone has the temperature h B/lam: ISGDIdeal refuses T below it. ISGD injects
T lam - h b, clipped at 0, and cannot be colder than h b/lam: where T = 0.01, as in the paper's experiments, is below
it, the law is that floor's.
"""

from sympy import Min, Piecewise

from recipe import (
    Recipe,
    adapted,
    fraction,
    grad,
    nonnegative,
    positive,
    potential,
    step_number,
    step_size,
    temperature,
    total,
    vector,
)

theta = vector("theta")
lam = positive("lam", default=1.0, per=theta, doc="inverse of the learning rate, at least B")
B = nonnegative("B", default=0.0, per=theta, doc="half the covariance of the gradient")
mu = fraction("mu", default=0.5, doc="weight of the past in b")
warmup = nonnegative("warmup_steps", default=100, doc="steps after which lam stays")
U = potential(theta)
half_square = grad(U) ** 2 / 2
b = adapted("b", like=theta, start=half_square, domain="nonnegative")
rate = adapted("lam", start=total(half_square), domain="positive")

ISGDIdeal = Recipe(
    name="isgd-ideal",
    source="Franzese et al. 2021, section 3, Algorithm 1",
    state=(theta,),
    target=theta,
    H=U,
    D={theta: 1 / lam},
    supplied={theta: step_size * B / lam**2},
    scheme="Euler",
    doc=__doc__,
)
ISGD = Recipe(
    name="isgd",
    source="Franzese et al. 2021, Algorithm 2",
    state=(theta,),
    target=theta,
    H=U,
    D={theta: 1 / rate},
    supplied={theta: Min(step_size * b / rate**2, temperature / rate)},
    adapt={b: mu * b + (1 - mu) * half_square, rate: Piecewise((total(b), step_number < warmup), (rate, True))},
    scheme="Euler",
    doc=__doc__,
)
