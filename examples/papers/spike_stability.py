"""Where sigma of SGHMC-SA stops: Deng, Zhang, Liang & Lin (2019), eq. (15), on a layer of weights that sees no data.

At the temperature T the weights have E kappa w^2 = T sigma^2, and sigma^2 follows (sum kappa w^2 + 1)/(p + 3): below
T = 1 it falls until the prior's 1 holds it, at sigma^2 = 1/(p + 3 - T p), or until the steps become unstable, at
h^2 kappa/sigma^2 = 4, where weights that grow hold it. kappa is 1/v0 in the spike and lr = N h^2, so that the higher of
1/sqrt(p + 3 - T p) and sqrt(lr/(4 N v0)) is where it stops. T, momentum, v0, v1 and the first sigma are those of
`spike_networks`; the gain is 47 times the printed one, which would need as many times the steps.
"""

import math

import torch
from spike_networks import MOMENTUM, SIGMA, TEMPERATURE, V0
from study import Experiment, Study
from verdicts import Claim, Kind

import samplers

ROWS, WEIGHTS = 60_000, 20_000  # N of MNIST; p
RATES = (0.2, 0.05, 0.003125)  # lr on the mean loss: two lines above the prior's floor, one below
DRAWS = 40
NEAR = 0.2  # relative, of sigma


def fall(study: Study, lr: float, weights: int, chains: int, steps: int) -> dict:
    """sigma over the run, averaged over chains, and h^2 kappa/sigma^2 of the weights in the mean of its later half."""
    h = math.sqrt(lr / ROWS)
    generator = torch.Generator().manual_seed(1)
    w = SIGMA * math.sqrt(V0) * torch.randn(chains, weights, generator=generator)
    layer = {"v0": V0, "v1": 1.0, "sigma0": SIGMA, "a": float(weights), "b": float(weights)}
    draws = samplers.sample(
        "sghmc-sa-classification",
        lambda theta: 0 * theta.sum(),
        init=w,
        chains=chains,
        steps=steps,
        thin=steps // DRAWS,
        step_size=h,
        temperature=TEMPERATURE,
        C=-math.log(MOMENTUM) / h,
        A=4.7,
        keep=["sigma", "kappa"],
        progress=False,
        **layer,
    )
    sigma = draws["sigma"].reshape(chains, -1)
    late = sigma[:, DRAWS // 2 :]
    stiff = h**2 * draws["kappa"][:, DRAWS // 2 :].mean(-1) / late**2
    return {"sigma": sigma.mean(0).tolist(), "end": float(late.mean()), "stiffness": float(stiff.mean())}


def line(lr: float) -> float:
    """sigma at which h^2 kappa/sigma^2 = 4 in the spike: sqrt(lr/(4 N v0)).

    >>> round(line(0.05), 4)
    0.0144
    """
    return math.sqrt(lr / (4 * ROWS * V0))


def floor(weights: int) -> float:
    """sigma at which the prior holds it: 1/sqrt(p + 3 - T p)."""
    return 1 / math.sqrt(weights + 3 - TEMPERATURE * weights)


def claims(study: Study) -> list[Claim]:
    """sigma at the end of the run by lr, beside the line and the floor."""
    weights, chains, steps = study.of_scale((2000, 1, 400), (WEIGHTS, 2, 4000), (10 * WEIGHTS, 4, 8000))
    runs = {lr: study.result(fall, lr=lr, weights=weights, chains=chains, steps=steps) for lr in RATES}
    picture(study, runs, weights, steps)
    return [of_end(lr, run, weights) for lr, run in runs.items()]


def of_end(lr: float, run: dict, weights: int) -> Claim:
    """sigma where it stops, beside the higher one of line and floor."""
    steps, prior = line(lr), floor(weights)
    stop, words = (steps, "steps: sqrt(lr/(4 N v0))") if steps > prior else (prior, "prior: 1/sqrt(p + 3 - T p)")
    return Claim(
        f"lr = {lr:g}: without data sigma falls to where it is held by the {words}",
        f"{stop:.4f}, derived",
        f"{run['end']:.4f}; h^2 kappa/sigma^2 is {run['stiffness']:.2f} in the mean over weights",
        Kind.CLOSED_FORM,
        abs(run["end"] / stop - 1) < NEAR,
        "from 4 on steps are unstable; there weights grow, some into the slab, and hold sigma" if stop == steps else "",
    )


def picture(study: Study, runs: dict[float, dict], weights: int, steps: int) -> None:
    """sigma by step, with the line of each lr; where it stops by lr."""
    with study.figure("stability", columns=2, sharey=True) as (paths, ends):
        for k, (lr, run) in enumerate(runs.items()):
            at = [(j + 1) * steps / len(run["sigma"]) for j in range(len(run["sigma"]))]
            paths.semilogy(at, run["sigma"], color=f"C{k}", label=f"lr = {lr:g}")
            paths.axhline(line(lr), color=f"C{k}", linestyle=":")
            ends.loglog(lr, run["end"], "o", color=f"C{k}")
        grid = torch.logspace(-3, -0.3, 50).tolist()
        ends.plot(grid, [line(lr) for lr in grid], "k:", label="stability, sqrt(lr/(4 N v0))")
        ends.axhline(floor(weights), color="k", linestyle="--", label="prior, 1/sqrt(p + 3 - T p)")
        paths.set(xlabel="steps", ylabel="sigma")
        ends.set(xlabel="lr")
        paths.legend(fontsize=7)
        ends.legend(fontsize=7)


EXPERIMENT = Experiment(
    "spike-stability",
    "SGHMC-SA (Deng, Zhang, Liang & Lin 2019), eq. (15): where sigma stops",
    claims,
    seeds="2 chains",
)
