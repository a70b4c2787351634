"""The spike-and-slab prior of Deng et al. (2019), with its latents averaged, integrated out, or drawn.

w_j ~ (1 - gamma_j) N(0, sigma^2 v0) + gamma_j N(0, sigma^2 v1) with gamma_j ~ Bernoulli(delta), for weights with
sparse = 1; the others have the prior N(0, 1/ridge). U is -log likelihood; for a regression half the squared residuals,
of variance sigma^2, and observe={"squared_residuals": ...} is their sum over all data, estimated from the batch.
A mode gives the target's energy and the fields of a Recipe that go with it:

sa        (the paper) rho, kappa, sigma, delta follow their averages, eqs. (13)-(17). The limit is the law at the
          self-consistent kappa, neither the marginal nor the joint posterior, and may lock a signal into the spike.
          kappa starts nearly flat, as in the authors' code (github.com/WayneDW/Bayesian-Sparse-Deep-Learning): from
          (1/v0 + 1/v1)/2 the weights of a network are crushed before the data act.
marginal  gamma integrated out, given sigma and delta: exact.
gibbs     gamma drawn by Gibbs, given sigma and delta: exact for (w, gamma).
"""

from dataclasses import dataclass
from typing import Any

from sympy import Expr, Max, Min, exp, log, sqrt

from recipe import adapted, fraction, num_data, observe, positive, potential, refresh, step_number, total, vector

w = vector("theta")
v0 = positive("v0", default=0.01, doc="variance of the spike, in units of sigma^2")
v1 = positive("v1", default=100.0, doc="variance of the slab, in units of sigma^2")
sparse = fraction("sparse", default=1.0, per=w, doc="1 for weights of the spike and slab, 0 for others")
ridge = positive("ridge", default=1.0, doc="prior precision of the others")
sigma = positive("sigma", default=1.0, doc="scale of the noise and of the prior")
delta = fraction("delta", default=0.5, doc="probability of the slab")
U = potential(w)
p = total(sparse)
SEPARATE = (v0 < v1, delta > 0, delta < 1)


@dataclass(frozen=True)
class Mode:
    """The target's energy, the fields of a Recipe that go with it, and the latents beside the weights."""

    E: Expr
    fields: dict[str, Any]
    latents: tuple[Expr, ...] = ()


def energy(kappa: Expr, scale: Expr | float, sigma: Expr) -> Expr:
    """-log density of the weights given the precisions kappa/sigma^2."""
    return U / scale + total(sparse * kappa * w**2) / (2 * sigma**2) + total((1 - sparse) * ridge * w**2) / 2


def averaged(regression: bool) -> Mode:
    """The mode of the paper: each latent follows its optimum at the new weights with the gain omega = A (k + Z)^-a."""
    A = positive("A", default=0.1, doc="gain of the averages")
    Z = positive("Z", default=1000.0, doc="offset of the gain, in steps")
    decay = positive("decay", default=0.75, doc="exponent of the gain, in (1/2, 1]")
    nu = positive("nu", default=1.0, doc="sigma^2 ~ IG(nu/2, nu lam/2)")
    lam = positive("lam", default=1.0, doc="see nu")
    a = positive("a", default=1.0, doc="delta ~ Beta(a, b)")
    b = positive("b", default=1.0, doc="see a")
    sigma0 = positive("sigma0", default=1.0, doc="first sigma, the scale of the noise and of the prior")
    delta0 = fraction("delta0", default=0.5, doc="first delta, the probability of the slab")
    kappa0 = positive("kappa0", default=5e-4, doc="first precision of the weights, in units of 1/sigma^2")
    rho = adapted("rho", like=w, start=0.5, domain="fraction")
    kappa = adapted("kappa", like=w, start=kappa0, domain="positive")
    sigma = adapted("sigma", start=sigma0, domain="positive")
    delta = adapted("delta", start=delta0, domain="fraction")
    omega = A * (step_number + 1 + Z) ** -decay
    cost = log(v1 / v0) / 2 - log(delta / (1 - delta)) - w**2 / (2 * sigma**2) * (1 / v0 - 1 / v1)
    rho_t = 1 / (1 + exp(cost))
    kappa_t = (1 - rho_t) / v0 + rho_t / v1
    squares = total(sparse * kappa_t * w**2) + nu * lam
    if regression:
        sigma_t = sqrt((observe("squared_residuals") + squares) / (num_data + p + nu))
    else:
        sigma_t = sqrt(squares / (p + nu + 2))
    delta_t = Max(Min((total(sparse * rho_t) + a - 1) / (a + b + p - 2), 0.999999), 0.000001)
    optimum = {rho: rho_t, kappa: kappa_t, sigma: sigma_t, delta: delta_t}
    adapt = {x: (1 - omega) * x + omega * best for x, best in optimum.items()}
    E = energy(kappa, sigma**2 if regression else 1, sigma)
    requires = (v0 < v1, delta0 > 0, delta0 < 1, decay > 0.5, decay <= 1)
    return Mode(E, dict(marginal=E, adapt=adapt, requires=requires))


def integrated(regression: bool) -> Mode:
    """The mode of the mixture prior, with the slab's exponential taken out of the logarithm against underflow."""
    spike = exp(-(w**2) / (2 * sigma**2) * (1 / v0 - 1 / v1)) / sqrt(v0)
    mixture = log((1 - delta) * spike + delta / sqrt(v1))
    E = energy(1 / v1, sigma**2 if regression else 1, sigma) - total(sparse * mixture)
    return Mode(E, dict(marginal=E, requires=SEPARATE))


def drawn(regression: bool) -> Mode:
    """The mode of gamma as a binary block, drawn given the weights."""
    gamma = vector("gamma", domain="binary")
    E = energy((1 - gamma) / v0 + gamma / v1, sigma**2 if regression else 1, sigma)
    E += total(sparse * gamma * (log(v1 / v0) / 2 - log(delta / (1 - delta))))
    return Mode(E, dict(jumps={"J": refresh(gamma)}, requires=SEPARATE), latents=(gamma,))


def name_of(sampler: str, mode: str, regression: bool) -> str:
    """The name of a sampler in a mode.

    >>> name_of("sgld-sa", "sa", regression=False), name_of("sgld-sa", "gibbs", regression=True)
    ('sgld-sa-classification', 'sgld-sa-gibbs')
    """
    parts = [sampler]
    if not regression:
        parts.append("classification")
    if mode != "sa":
        parts.append(mode)
    return "-".join(parts)


MODES = {"sa": averaged, "marginal": integrated, "gibbs": drawn}
