"""A model of Stan, moved by a sampler of ours: `gradient=` takes the log density and the gradient that BridgeStan has.

Eight schools. Needs BridgeStan, pip install bridgestan, which compiles the model at the first run: with a C++ compiler,
make, and Stan's sources, which it downloads.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy
import torch
from eight_schools import EFFECTS, ERRORS, moved, table

try:
    import bridgestan
except ImportError as error:
    raise SystemExit(f"examples/stan_model.py needs BridgeStan ({error}): pip install bridgestan") from error

PROGRAM = """
data {
  int<lower=0> schools;
  vector[schools] effect;
  vector<lower=0>[schools] error;
}
parameters {
  real mu;
  real<lower=0> tau;
  vector[schools] eta;
}
model {
  mu ~ normal(0, 5);
  tau ~ cauchy(0, 5);
  eta ~ std_normal();
  effect ~ normal(mu + tau * eta, error);
}
"""


def compiled(folder: Path) -> Any:
    """The model with its data, compiled in a folder."""
    program = folder / "schools.stan"
    program.write_text(PROGRAM)
    data = {"schools": len(EFFECTS), "effect": EFFECTS, "error": ERRORS}
    try:
        return bridgestan.StanModel(str(program), data=json.dumps(data))
    except (OSError, RuntimeError, ValueError) as error:
        what = f"BridgeStan could not compile the model ({error})"
        raise SystemExit(f"{what}: it needs a C++ compiler, make, and the network once for Stan's sources") from error


def draws_of(model: Any, steps: int) -> dict[str, torch.Tensor]:
    """The draws of the variables of a model of BridgeStan, `(chains, draws)`."""

    def pair(theta):
        value, slope = model.log_density_gradient(theta)  # of free numbers, with the Jacobian of their map
        return -value, -slope

    theta = moved(pair, model.param_unc_num(), steps)["theta"]
    rows = [model.param_constrain(z) for z in theta.flatten(0, 1).numpy()]
    values = torch.from_numpy(numpy.array(rows)).unflatten(0, theta.shape[:2])
    return dict(zip(model.param_names(), values.unbind(-1)))


def main(argv: list[str] | None = None) -> dict[str, torch.Tensor]:
    """Run the example; returns the draws of the variables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2000)
    steps = parser.parse_args(argv).steps
    with tempfile.TemporaryDirectory() as folder:
        draws = draws_of(compiled(Path(folder)), steps)
    print(table({name: draws[name] for name in ("mu", "tau")}))
    return draws


if __name__ == "__main__":
    main()
