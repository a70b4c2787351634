"""At what temperature do you really run? Public ways to write SGLD and SGHMC, on one Gaussian.

U = N sum_i k_i theta_i^2/2 is the sum over N data of their losses, and a loop has the gradient of the mean, U/N. A
sampler of temperature T has the variances T/(N k_i): the temperature is N k_i Var(theta_i), whatever the code calls it.
A weight_decay beside the mean loss is the prior N(0, 1/(N weight_decay)), at the same temperature.
Each way is written down again as the formula of its code, with its defaults; gradients are of all data, so that the
noise is what the code injects, and steps are short, h^2 N k = .01 at most, so that their bias is below 1 %.

Sources, on github.com: ruqizhang/csgmcmc, experiments/cifar_csghmc.py, update_params; ChunyuanLI/pSGLD,
pSGLD_DNN/algorithms/SGLD_RMSprop.m; JavierAntoran/Bayesian-Neural-Networks,
src/Stochastic_Gradient_Langevin_Dynamics/optimizers.py; timaeus-research/devinterp, src/devinterp/optim/sgld.py as of
2023; normal-computing/posteriors, posteriors/sgmcmc/sghmc.py.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from study import Experiment, Study
from torch import Tensor
from verdicts import Claim, Kind

N = 1000  # data
CURVATURES = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)  # of the mean loss
MOMENTUM = 0.9
LR = 0.01 / 4  # of the mean loss, at most: lr k <= .01
State = tuple[Tensor, Tensor]  # theta, and a buffer of momentum


@dataclass(frozen=True)
class Way:
    """One step of some code: `step(state, slope, noise)` with the slope of the mean loss, and its temperature on U.

    `formula`: the temperature in words; `label`: how the code names it.
    """

    name: str
    label: str
    formula: str
    temperature: float
    step: Callable[[State, Tensor, Tensor], State]


def langevin(drift: float, spread: float) -> Callable[[State, Tensor, Tensor], State]:
    """theta - drift slope + spread noise."""
    return lambda state, slope, noise: (state[0] - drift * slope + spread * noise, state[1])


def momenta(kick: float, spread: float, kept: float = MOMENTUM) -> Callable[[State, Tensor, Tensor], State]:
    """v = kept v - kick slope + spread noise, theta + v."""

    def step(state: State, slope: Tensor, noise: Tensor) -> State:
        v = kept * state[1] - kick * slope + spread * noise
        return state[0] + v, v

    return step


def preconditioned(lr: float) -> Callable[[State, Tensor, Tensor], State]:
    """lr G slope + sqrt(2 lr G)/N noise for a constant G = 1/.1, the eps of the code, which a small V leaves."""
    G = 10.0
    return langevin(lr * G, math.sqrt(2 * lr * G) / N)


def chen(h: float, friction: float, temperature: float) -> Callable[[State, Tensor, Tensor], State]:
    """theta + h p with the momenta before the kick; p - h slope - h friction p + sqrt(2 h friction T) noise."""

    def step(state: State, slope: Tensor, noise: Tensor) -> State:
        theta, p = state
        kicked = p - h * slope - h * friction * p + math.sqrt(2 * h * friction * temperature) * noise
        return theta + h * p, kicked

    return step


def ways() -> list[Way]:
    """Each public way with its defaults, and mistakes that loops are seen to make."""
    a = 1 - MOMENTUM
    h = LR / N  # lr on the sum
    return [
        Way("SGLD on N times the mean loss (Bayesian-Neural-Networks)", "none, T = 1", "1", 1.0,
            langevin(h / 2 * N, math.sqrt(h))),
        Way("the same, handed the mean loss", "none, T = 1", "N", float(N), langevin(h / 2, math.sqrt(h))),
        Way("... with lr slope in place of lr slope/2", "none, T = 1", "1/2", 0.5, langevin(h * N, math.sqrt(h))),
        Way("csgmcmc, SGHMC, temperature = 1/N by default", "temperature = 1/N", "1/N", 1 / N,
            momenta(LR, math.sqrt(2 * LR * a / N / N))),
        Way("csgmcmc, SGHMC, temperature = 1", "temperature = 1", "1", 1.0, momenta(LR, math.sqrt(2 * LR * a / N))),
        Way("... with the noise of SGLD: the factor alpha left out", "temperature = 1", "1/alpha", 1 / a,
            momenta(LR, math.sqrt(2 * LR / N))),
        Way("torch.optim.SGD, noise sqrt(2/(lr N)) added to the slope, momentum, no dampening", "T = 1",
            "1/(1 - momentum)", 1 / a, momenta(LR, math.sqrt(2 * LR / N))),
        Way("... with dampening = momentum", "T = 1", "1", 1.0, momenta(LR * a, a * math.sqrt(2 * LR / N))),
        Way("pSGLD, the release", "none", "1/N", 1 / N, preconditioned(LR / 10)),
        Way("devinterp, SGLD, temperature = 'adaptive'", "log N, on purpose", "log N", math.log(N),
            langevin(h / 2 * N / math.log(N), math.sqrt(h))),
        Way("posteriors, SGHMC, the mean of the log posterior, temperature = 1/N", "temperature = 1/N", "1", 1.0,
            chen(math.sqrt(LR) / 10, 1.0, 1 / N)),
        Way("posteriors, SGHMC, the mean of the log posterior, temperature = 1", "temperature = 1", "N", float(N),
            chen(math.sqrt(LR) / 10, 1.0, 1.0)),
    ]  # fmt: skip


def measured(study: Study, index: int, chains: int, steps: int) -> dict:
    """The mean over sites of N k Var(theta), in units of the temperature that is expected, and its standard error.

    Chains start in the law that is expected, with momenta in their own, and are looked at over the second half.
    """
    way = ways()[index]
    generator = torch.Generator().manual_seed(index)

    def normal() -> Tensor:
        return torch.randn(chains, 3, generator=generator, dtype=torch.float64)

    theta = normal() * (way.temperature / (N * CURVATURES)).sqrt()
    state = theta, torch.zeros_like(theta)
    total = torch.zeros(chains, dtype=torch.float64)
    for k in range(steps):
        state = way.step(state, CURVATURES * state[0], normal())
        if k >= steps // 2:
            total += (N * CURVATURES * state[0].square() / way.temperature).mean(1) / (steps - steps // 2)
    return {"ratio": float(total.mean()), "error": float(total.std() / math.sqrt(chains))}


def claims(study: Study) -> list[Claim]:
    """A row for each way."""
    chains, steps = study.of_scale((200, 400), (1000, 20_000), (4000, 40_000))
    return [of_way(way, study.result(measured, index=k, chains=chains, steps=steps)) for k, way in enumerate(ways())]


def of_way(way: Way, result: dict) -> Claim:
    """The temperature of the law beside what the formula says."""
    ratio, error = result["ratio"], result["error"]
    ours = f"T = {way.formula}, times {ratio:.3f} +- {error:.3f}"
    return Claim(way.name, way.label, ours, Kind.CLOSED_FORM, abs(ratio - 1) < 0.03 + 4 * error)


EXPERIMENT = Experiment(
    "temperatures",
    "At what temperature do you really run? U is the sum over N = 1000 data",
    claims,
    seeds="1000 chains",
)
