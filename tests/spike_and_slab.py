"""The spike-and-slab prior of one weight by hand: its energies, beside U, at one set of parameters."""

import numpy as np

v0, v1, ridge, sparse, sigma, delta, kappa = 0.3, 2.0, 0.7, 0.6, 1.2, 0.4, 2.1
SPIKE = {"v0": v0, "v1": v1, "ridge": ridge, "sparse": sparse}
PRIOR = SPIKE | {"sigma": sigma, "delta": delta}
LATENTS = {"rho": 0.35, "kappa": kappa, "sigma": sigma, "delta": delta}


def normal(x, v):
    """The density of a weight, up to a constant."""
    return np.exp(-(x**2) / (2 * sigma**2 * v)) / np.sqrt(v)


def others(x):
    """The energy of the share that is not sparse."""
    return (1 - sparse) * ridge * x**2 / 2


def shrunk(x):
    """The energy at a frozen kappa."""
    return others(x) + sparse * kappa * x**2 / (2 * sigma**2)


def mixed(x):
    """The energy with gamma summed over."""
    return others(x) - sparse * np.log((1 - delta) * normal(x, v0) + delta * normal(x, v1))


def drawn(x, g):
    """The energy between a weight and its binary gamma."""
    odds = np.log(v1 / v0) / 2 - np.log(delta / (1 - delta))
    return sparse * (((1 - g) / v0 + g / v1) * x**2 / (2 * sigma**2) + g * odds)
