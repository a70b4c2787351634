"""Noisy SGD with momentum where all is computed: Franzese, Candelieri, Filippone & Michiardi (2021), Theorem 2.

The SDE (11) has the friction A and noise of the covariance 2 eta P^2 Sigma dt; with A = eta P^2 Sigma, (12), its law is
exp(-f). The update of section 2.2 that it stands for moves theta by the momenta of before. On f = k theta^2/2 it is a
linear map with normal noise, whose covariance solves Lyapunov's equation: with M = P = 1 and A = eta B of the noise of
the gradients alone, friction and the error of the step are both of the order of eta^2 a step.
"""

import numpy
from scipy.linalg import solve_discrete_lyapunov
from study import Experiment, Study
from verdicts import Claim, Kind

from recipe import Recipe, positive, potential, total, vector

ETAS = (1e-1, 1e-2, 1e-3)
NOISE, CURVATURES = 10.0, (1.0, 5.0, 9.0)  # B, the covariance of the noise of gradients is 2 B; k
HELD = 1.0  # A of the row where it does not fall with eta
LIMIT = 0.01  # relative: so near to 1 is the posterior, at the least eta


def theorem() -> Recipe:
    """The SDE (11) under the condition (12), with a constant P."""
    theta, r = vector("theta"), vector("r")
    P = positive("P", default=1.0, doc="preconditioner")
    eta = positive("eta", default=0.1, doc="learning rate")
    Sigma = positive("Sigma", default=1.0, doc="half the covariance of the noise")
    M = positive("M", default=1.0, doc="mass")
    return Recipe(
        name="noisy-sgd-with-momentum",
        source="Franzese et al. 2021, Theorem 2",
        state=(theta, r),
        target=theta,
        H=potential(theta) + total(r**2) / (2 * M),
        D={r: eta * P**2 * Sigma},
        Q={(theta, r): -P},
    )


def temperature(eta: float, k: float, Sigma: float, *, first: str = "positions") -> float:
    """k Var theta of the update at M = P = 1 and A = eta Sigma; infinite where it has no law.

    `first`: what moves first, "positions" by the momenta of before as printed, or "momenta".

    >>> round(temperature(1e-3, 5.0, 10.0), 3), round(temperature(1e-3, 5.0, 10.0, first="momenta"), 3)
    (2.0, 1.0)
    """
    kick = numpy.array([[1.0, 0.0], [-eta * k, 1 - eta**2 * Sigma]])
    drift = numpy.array([[1.0, eta], [0.0, 1.0]])
    noise = numpy.array([0.0, eta * (2 * Sigma) ** 0.5])
    if first == "positions":
        step = drift + kick - numpy.eye(2)
    else:
        step, noise = drift @ kick, drift @ noise
    if abs(numpy.linalg.eigvals(step)).max() >= 1:
        return numpy.inf
    return float(k * solve_discrete_lyapunov(step, numpy.outer(noise, noise))[0, 0])


def claims(study: Study) -> list[Claim]:
    """The theorem, and the update that it is of."""
    proof = theorem().check()
    alone = {k: [temperature(eta, k, NOISE) for eta in ETAS] for k in CURVATURES}
    least = {
        "A held": max(abs(temperature(ETAS[-1], k, HELD / ETAS[-1]) - 1) for k in CURVATURES),
        "momenta first": max(abs(temperature(ETAS[-1], k, NOISE, first="momenta") - 1) for k in CURVATURES),
    }
    beyond = temperature(ETAS[-1], NOISE + 1, NOISE)
    return [
        Claim(
            "Theorem 2: where A = eta P^2 Sigma and P is constant, exp(-f) is the law of the SDE",
            "(11), (12)",
            f"certificate: {'exact' if proof.exact else 'open'}",
            Kind.CLOSED_FORM,
            proof.exact,
        ),
        Claim(
            "... and of its update as eta goes to 0, with A = eta B and no noise but that of the gradients",
            "section 2.2: sufficient",
            f"k Var theta at B = {NOISE:g}, eta = {', '.join(f'{eta:g}' for eta in ETAS)}: "
            + "; ".join(f"{', '.join(f'{x:.2f}' for x in row)} (k = {k:g})" for k, row in alone.items())
            + f"; {'no law' if numpy.isinf(beyond) else f'{beyond:.2f}'} at k = {NOISE + 1:g}",
            Kind.CLOSED_FORM,
            all(abs(row[-1] - 1) < LIMIT for row in alone.values()),
            "k Var theta goes to B/(B - k): positions that move by the momenta of before heat by k eta^2 a step, and "
            f"the friction cools by B eta^2; at eta = {ETAS[-1]:g} it is off by at most {least['momenta first']:.1g} "
            f"where momenta move first, by {least['A held']:.1g} where A = {HELD:g} and Sigma = A/eta",
            elsewhere="momenta before positions, or A held as eta falls" if max(least.values()) < LIMIT else "",
        ),
    ]


EXPERIMENT = Experiment(
    "isgd-momentum",
    "i-SGD (Franzese et al. 2021), Theorem 2: noisy SGD with momentum, and its update",
    claims,
    seeds="a certificate and closed forms, computed",
)
