"""A model of PyMC, moved by a sampler of ours: `gradient=` takes the log density and the gradient that PyMC compiles.

Eight schools. Needs PyMC: pip install pymc.
"""

import argparse

import torch
from eight_schools import EFFECTS, ERRORS, moved, table

try:
    import pymc
except ImportError as error:
    raise SystemExit(f"examples/pymc_model.py needs PyMC ({error}): pip install pymc") from error


def schools() -> "pymc.Model":
    """The model."""
    with pymc.Model() as model:
        mu = pymc.Normal("mu", 0, 5)
        tau = pymc.HalfCauchy("tau", 5)
        eta = pymc.Normal("eta", 0, 1, shape=len(EFFECTS))
        pymc.Normal("effect", mu + tau * eta, ERRORS, observed=EFFECTS)
    return model


def main(argv: list[str] | None = None) -> dict[str, torch.Tensor]:
    """Run the example; returns the draws of the variables, `(chains, draws)`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args(argv).steps
    model = schools()
    log_density = model.logp_dlogp_function(ravel_inputs=True)
    log_density.set_extra_values({})

    def pair(theta):
        value, slope = log_density(theta)
        return -value, -slope

    sites = sum(x.size for x in model.initial_point().values())
    theta = moved(pair, sites, steps)["theta"]
    draws = {"mu": theta[..., 0], "tau": theta[..., 1].exp()}  # PyMC moves the log of tau
    print(table(draws))
    return draws


if __name__ == "__main__":
    main()
