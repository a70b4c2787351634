"""pSGLD against SGLD on logistic regression: Li, Chen, Carlson & Carin (2016), Figure 2, the Australian credit data.

690 data with 14 features, which are standardised here, the prior N(0, 100 I), batches of 5, and 50 runs of 5000 steps
at each eps from 1e-7 to 1e-4; h = eps/2 on the sum over the data. The truth is from HMC with all data. The paper: pSGLD
has the greater effective sample size, mainly at large eps, and the smaller error of the weights.

Equal eps is not equal speed: V is of the mean gradient, some .13 here, so that G is near 8 and pSGLD takes steps of
eight times the size. From a start at 0 neither has forgotten it in 5000 steps at most eps, and the error is that of the
start. So the same is asked where both begin in the posterior, of equal excess of their variances, which comes of the
noise of minibatches.
"""

import math

import numpy
import torch
from datasets import Data, read_npz
from scipy.optimize import brentq
from study import Experiment, Study
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from verdicts import Claim, Kind

import samplers

BATCH = 5
PRIOR = 100.0
EPS = (1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4)  # the paper's ends
STATIONARY = {"SGLD": (1e-4, 4e-4), "pSGLD": (1.25e-5, 1e-4)}  # eps: the first two have about the same excess
EXPECTED = {"SGLD": 0.20, "pSGLD": 1.6}  # excess at eps = 1e-4: h V_g/2, and that times a G near 8
NAMES = {"SGLD": "sgld", "pSGLD": "psgld-same-step"}


def data_of(study: Study) -> Data:
    """Standardised features, labels 0 and 1."""
    x, y = read_npz(study.data, "logistic/australian.npz", "X", "y")
    return torch.as_tensor((x - x.mean(0)) / x.std(0)), torch.as_tensor((y > 0).astype(numpy.float64))


def likelihood(theta: Tensor, batch: Data) -> Tensor:
    """-log p(y | x, theta) of each row."""
    x, y = batch
    return binary_cross_entropy_with_logits(x @ theta, y, reduction="none")


def prior(theta: Tensor) -> Tensor:
    """-log N(theta; 0, 100 I), up to a constant."""
    return theta.square().sum() / (2 * PRIOR)


def truth(study: Study, chains: int, steps: int) -> dict:
    """Means and variances, the least effective sample size, and the last draw of each chain."""
    data = data_of(study)

    def energy(theta: Tensor) -> Tensor:
        return likelihood(theta, data).sum() + prior(theta)

    start = torch.zeros(data[0].shape[1], dtype=torch.float64)
    settings = samplers.tune("hmc", energy, init=start, chains=chains)
    draws = samplers.sample("hmc", energy, steps=steps, warmup=steps // 10, progress=False, **settings.arguments)
    theta = draws["theta"]
    return {
        "means": theta.mean((0, 1)).tolist(),
        "variances": theta.flatten(0, 1).var(0).tolist(),
        "size": float(samplers.diagnostics.effective_sample_size(draws, "theta").min()),
        "last": theta[:, -1].tolist(),
    }


def truth_of(study: Study, of: list[int]) -> list[Tensor]:
    """Means, variances and last draws, of so many chains and steps."""
    chains, steps = of
    result = study.result(truth, chains=chains, steps=steps)
    return [torch.tensor(result[name], dtype=torch.float64) for name in ("means", "variances", "last")]


def minibatched(study: Study, name: str, eps: float, init: Tensor, chains: int, steps: int, warmup: int) -> Tensor:
    """The draws `(chains, draws, features)`, of every fifth step."""
    data = data_of(study)
    draws = samplers.sample(
        samplers.catalogue[NAMES[name]],
        samplers.posterior(likelihood, prior, num_data=len(data[0])),
        data=data,
        batch_size=BATCH,
        init=init,
        chains=chains,
        step_size=eps / 2,
        steps=steps,
        warmup=warmup,
        thin=5,
        seed=2,
        progress=False,
    )
    return draws["theta"]


def printed(study: Study, name: str, eps: float, chains: int, steps: int, of: list[int]) -> dict:
    """As in the paper, from 0: the error of the means in standard deviations, and the least sample size of a run.

    The error is the root of the mean square over features and runs. The size is by the autocorrelation inside of each
    run, which does not see that a run has only begun.
    """
    init = torch.zeros(data_of(study)[0].shape[1], dtype=torch.float64)
    theta = minibatched(study, name, eps, init, chains, steps, warmup=0)
    mean, variance, _ = truth_of(study, of)
    error = ((theta.mean(1) - mean).square() / variance).mean().sqrt()
    sizes = [samplers.diagnostics.effective_sample_size(of_one(run), "theta").min() for run in theta]
    return {"error": float(error), "size": float(torch.stack(sizes).mean())}


def of_one(run: Tensor) -> samplers.Draws:
    """The draws of one chain."""
    return samplers.Draws({"theta": run[None]}, info={})


def stationary(study: Study, name: str, eps: float, chains: int, steps: int, of: list[int]) -> dict:
    """From draws of the posterior: the excess of its variances, on average and at most, and the cost of mixing.

    The cost is in gradients per effective draw.
    """
    mean, variance, last = truth_of(study, of)
    init = last.repeat(-(-chains // len(last)), 1)[:chains]
    theta = minibatched(study, name, eps, init, chains, steps, warmup=steps // 4)
    around = (theta - mean).square().mean((0, 1))
    share = (theta.mean(1) - mean).square().mean(0) / around
    cost = max(2 * forgetting(float(s)) * steps for s in share)
    excess = around / variance - 1
    return {"excess": float(excess.mean()), "most": float(excess.max()), "cost": cost}


def forgetting(share: float) -> float:
    """tau/t of an autocorrelation exp(-s/tau) for which the mean over a time t has this share of the variance.

    >>> round(forgetting(2 * 0.01 * (1 - 0.01)), 4)
    0.01
    """

    def excess(ratio: float) -> float:
        return 2 * ratio * (1 - ratio * -math.expm1(-1 / ratio)) - share

    return float(brentq(excess, 1e-6, 1e3)) if share < 0.999 else 1e3


def claims(study: Study) -> list[Claim]:
    """Figure 2 as in the paper, and at equal excess."""
    of = study.of_scale([20, 200], [50, 1000], [100, 10_000])
    reference = study.result(truth, chains=of[0], steps=of[1])
    size = dict(zip(("chains", "steps"), study.of_scale((5, 200), (50, 5000), (50, 5000))), of=of)
    paper = {name: {eps: study.result(printed, name=name, eps=eps, **size) for eps in EPS} for name in NAMES}
    size = dict(zip(("chains", "steps"), study.of_scale((20, 200), (200, 10_000), (500, 40_000))), of=of)
    at_home = {
        name: {eps: study.result(stationary, name=name, eps=eps, **size) for eps in grid}
        for name, grid in STATIONARY.items()
    }
    picture(study, paper, at_home)
    return claims_of(reference, paper, at_home)


def claims_of(reference: dict, paper: dict, at_home: dict) -> list[Claim]:
    """By sampler and eps."""
    first, last = EPS[0], EPS[-1]
    sizes = {name: [paper[name][eps]["size"] for eps in (first, last)] for name in NAMES}
    ours = "; ".join(f"{name} {small:.1f} ... {large:.1f}" for name, (small, large) in sizes.items())
    larger = sizes["pSGLD"][1] > sizes["SGLD"][1]
    why = f"its steps are eight times as large; the truth has {reference['size']:.0f} effective draws of HMC"
    errors = {name: [paper[name][eps]["error"] for eps in EPS] for name in NAMES}
    lower = all(p <= s for p, s in zip(errors["pSGLD"], errors["SGLD"]))
    start = errors["SGLD"][0]
    by_eps = "; ".join(f"{name} {spoken(errors[name])}" for name in NAMES)
    begun = f"of the start: it is {start:.1f} at eps = {first:g}, where SGLD has not moved"
    words = f"least effective sample size of 5000 steps, eps = {first:g} and {last:g}"
    return [
        Claim(words, "pSGLD larger", ours, Kind.COMPARISON, larger, why),
        Claim("error of the weights in sd, by eps", "pSGLD lower", by_eps, Kind.COMPARISON, lower, begun),
        of_excess(at_home),
        of_cost(at_home),
    ]


def of_excess(at_home: dict) -> Claim:
    """At eps = 1e-4, which makes the larger sample of the wider law."""
    excess = {name: at_home[name][1e-4]["excess"] for name in NAMES}
    paper = "h V_g G/2: " + ", ".join(f"{name} {value:+g}" for name, value in EXPECTED.items())
    ours = ", ".join(f"{name} {value:+.2f}" for name, value in excess.items())
    near = all(abs(excess[name] / EXPECTED[name] - 1) < 0.3 for name in NAMES)
    why = "batches of 5: the law that pSGLD samples there is far wider than the posterior"
    return Claim(
        "excess of the variances at eps = 1e-4 is that of gradient noise", paper, ours, Kind.COMPARISON, near, why
    )


def of_cost(at_home: dict) -> Claim:
    """Whether pSGLD mixes faster where both have the same excess."""
    costs = {name: interpolated(at_home[name]) for name in NAMES}
    ratio = costs["SGLD"] / costs["pSGLD"]
    at_eps = at_home["SGLD"][1e-4]["cost"] / at_home["pSGLD"][1e-4]["cost"]
    largest = ", ".join(f"{name} {next(iter(at_home[name].values()))['most']:+.2f}" for name in NAMES)
    ours = f"{ratio:.1f} times as many draws per gradient; {at_eps:.1f} times at equal eps"
    why = f"G is larger where gradients and their noise are small; the largest excess of a feature is {largest}"
    return Claim(
        "pSGLD mixes faster at a mean excess of .2", "asked at equal eps", ours, Kind.COMPARISON, faster(ratio), why
    )


def spoken(errors: list[float]) -> str:
    """The errors one after another."""
    return ", ".join(f"{error:.2f}" for error in errors)


def faster(ratio: float) -> bool | None:
    """Whether it is above 1; within a quarter nothing is said: costs have errors of a fifth."""
    return None if 0.8 < ratio < 1.25 else ratio > 1


def interpolated(by_eps: dict[float, dict], excess: float = 0.2) -> float:
    """The cost at an excess, between two step sizes or beyond, where both are powers of eps."""
    (x, fx), (y, fy) = ((math.log(max(r["excess"], 1e-3)), math.log(r["cost"])) for r in by_eps.values())
    return math.exp(fx + (fy - fx) * (math.log(excess) - x) / (y - x))


def picture(study: Study, paper: dict, at_home: dict) -> None:
    """Error and sample size by eps, as in the paper; the cost by the excess."""
    with study.figure("australian", columns=3) as (left, middle, right):
        for name in NAMES:
            left.loglog(EPS, [paper[name][eps]["error"] for eps in EPS], "o-", label=name)
            middle.loglog(EPS, [paper[name][eps]["size"] for eps in EPS], "o-")
            results = at_home[name].values()
            right.loglog([max(r["excess"], 1e-3) for r in results], [r["cost"] for r in results], "o-")
        left.set(xlabel="eps", ylabel="error of the means in sd, from 0")
        middle.set(xlabel="eps", ylabel="least sample size of a run")
        right.set(xlabel="excess of the variances", ylabel="gradients per effective draw")
        left.legend(fontsize=8)


EXPERIMENT = Experiment(
    "psgld-australian",
    "pSGLD (Li, Chen, Carlson & Carin 2016), Figure 2: Australian credit",
    claims,
    files=["logistic/australian.npz"],
    seeds="200 chains at equal bias, 50 chains from one start",
)
