"""SGFS with diagonal matrices. Ahn, Korattikara & Welling (2012); the paper's step size is eps = 2h.

G = (B + h (b + N) N I1/(2 b))^-1, and the injected noise is 2h G B G: \
the share of the gradient's noise and of the curvature
is left out, so that the chain is exact on Gaussians at every h once I1 is the covariance of the scores, \
the gradients of
single terms of -log likelihood: observe={"score_variance": samplers.score_variance(negative_log_likelihood)}. Give b as
the batch_size, of at least 2. At a temperature T, N/b becomes N/(b T).
"""

from recipe import Recipe, adapted, num_data, observe, positive, potential, step_number, step_size, temperature, vector

theta = vector("theta")
B = positive("B", default=1.0, per=theta, doc="the preconditioner's inverse, as h goes to 0")
b = positive("b", doc="size of a minibatch, drawn with replacement")
I1 = adapted("I1", like=theta, domain="nonnegative")
score_variance = observe("score_variance", like=theta)
information = (1 + num_data / (b * temperature)) * num_data * I1
G = 1 / (B + step_size * information / 2)

SGFS = Recipe(
    name="sgfs",
    source="Ahn, Korattikara & Welling 2012",
    state=(theta,),
    target=theta,
    H=potential(theta),
    D={theta: G},
    supplied={theta: temperature * step_size * G**2 * information / 2},
    adapt={I1: I1 + (score_variance - I1) / (step_number + 1)},
    order="same_step",
    scheme="Euler",
    conversions={"eps": {step_size: positive("eps") / 2}},
    doc=__doc__,
)
