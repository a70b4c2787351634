"""Santa on a double well: Chen, Carlson, Gan, Li & Carin (2016), its law at a fixed beta, and annealing.

At a fixed inverse temperature beta Santa samples exp(-beta U) as its step vanishes, if the noise of u = h p has the
variance 2 eta^(3/2) g/beta, eta = h^2. With eta in its place, as some releases have it, the friction is as large at
every step size, and the bias stays. Then all chains start in the shallow well: Santa explores while the temperature
falls, then refines at temperature 0 with the thermostat frozen. RMSprop, the paper's comparison, is pSGLD at
temperature 0. The paper prints neither potential nor cooling; this potential has its minima at -2.94 (global) and 2.22,
and a barrier at -.04.
"""

import math
from collections.abc import Callable
from statistics import fmean

import numpy
import sympy
import torch
from numpy import ndarray
from study import Experiment, Study
from verdicts import Claim, Kind

from recipe import Energy
from samplers import SANTA, Phase, PSGLDSameStep, sample


def U(theta):  # of a number, an array or a symbol
    """The potential: a shallow well at 2.22, a deep one at -2.94."""
    return (theta + 4) * (theta + 1) * (theta - 1) * (theta - 3) / 14


x = sympy.Symbol("x", real=True)
ENERGY = Energy(x, U=U(x))
GLOBAL, BARRIER, _ = (float(root) for root in sympy.real_roots(U(x).diff(x)))
START, STEP, RECORD = 2.5, 0.1, 10
HOT, COLD = 3.0, 0.1  # temperatures at the start and the end of the exploration


def cooling(steps: int) -> Callable[[int], float]:
    """Temperatures that fall from HOT to COLD by the same factor in every step, and stay there."""
    return lambda k: HOT * (COLD / HOT) ** min(1.0, k / steps)


def boltzmann(T: float) -> float:
    """The probability of the global well at temperature T."""
    grid = numpy.linspace(-7, 7, 40_001)
    weight = numpy.exp(-(U(grid) - U(GLOBAL)) / T)
    return weight[grid < BARRIER].sum() / weight.sum()


# ---- the law at a fixed beta


def euler(eta: float, exponent: float, g: float, chains: int, time: float) -> ndarray:
    """Santa's Euler step under theta^2/2 at beta = 1, the preconditioner constant: theta of all chains at the end.

    alpha += u^2 - eta;  u = (1 - alpha) u - eta g theta + sqrt(2 eta^exponent g) N(0, 1);  theta += g u
    """
    generator = numpy.random.default_rng(2)
    theta = generator.standard_normal(chains)
    u = math.sqrt(eta) * generator.standard_normal(chains)
    alpha = numpy.full(chains, g * eta ** (exponent - 1))
    heat = math.sqrt(2 * eta**exponent * g)
    for _ in range(round(time / math.sqrt(eta))):
        alpha += u**2 - eta
        u = (1 - alpha) * u - eta * g * theta + heat * generator.standard_normal(chains)
        theta = theta + g * u
    return theta


def wells(study: Study, T: float, h: float, chains: int, steps: int) -> dict:
    """The library's Santa with its V frozen, at a fixed temperature: P(left), E theta and E theta^2, and their errors.

    Half of the chains start in each well.
    """
    starts = torch.where(torch.arange(chains) % 2 == 0, GLOBAL, 2.2237)[:, None]
    still = ("V", "V_last")
    draws = sample(
        SANTA,
        ENERGY,
        init={"theta": starts, "V": torch.ones(1), "V_last": torch.ones(1)},
        chains=chains,
        step_size=h,
        phases=[Phase(steps // 2, freeze=still, keep=False), Phase(steps, freeze=still)],
        thin=5,
        temperature=T,
        seed=1,
        progress=False,
    )
    theta = draws["theta"][..., 0].numpy()
    moments = {"left": theta < BARRIER, "mean": theta, "square": theta**2}
    of_chains = {name: values.mean(1) for name, values in moments.items()}
    return {name: [float(m.mean()), float(m.std()) / math.sqrt(chains)] for name, m in of_chains.items()}


def gaussian(study: Study, eta: float, exponent: float, g: float, chains: int, time: float) -> dict:
    """The variance of theta under theta^2/2 at beta = 1, which is 1; infinite where chains diverge."""
    with numpy.errstate(over="ignore", invalid="ignore"):
        theta = euler(eta, exponent, g, chains, time)
        variance = float(numpy.square(theta).mean())
    return {"variance": variance if math.isfinite(variance) else math.inf}


# ---- annealing


def race(chains: int, explore: int, refine: int) -> dict[str, ndarray]:
    """The paths of theta by method, (chains, records); Santa as in the paper, and without each of its two ideas."""
    settings = dict(init=torch.tensor([START]), chains=chains, step_size=STEP, thin=RECORD, seed=0, progress=False)
    santa = dict(sigma=0.99, **settings)
    cold = santa | {"init": {"theta": torch.tensor([START]), "xi": torch.tensor([1.0])}}
    rmsprop = settings | {"step_size": STEP**2}
    steps, falling = explore + refine, cooling(explore)
    both = [Phase(explore, temperature=falling), Phase(refine, temperature=0.0, freeze="xi")]
    early = [Phase(explore, temperature=lambda k: 1 / math.sqrt(k + 1)), Phase(refine, temperature=0.0, freeze="xi")]
    runs = {
        "Santa": sample(SANTA, ENERGY, phases=both, **santa),
        "beta = sqrt(t)": sample(SANTA, ENERGY, phases=early, **santa),
        "exploration only": sample(SANTA, ENERGY, phases=[Phase(steps, temperature=falling)], **santa),
        "refinement only": sample(SANTA, ENERGY, phases=[Phase(steps, temperature=0.0, freeze="xi")], **cold),
        "RMSprop": sample(PSGLDSameStep, ENERGY, temperature=0.0, steps=steps, **rmsprop),
    }
    return {name: draws["theta"][..., 0].numpy() for name, draws in runs.items()}


def annealed(study: Study, chains: int, explore: int) -> dict:
    """Ends of all chains by method, and for the picture the share in the global well and three paths."""
    paths = race(chains, explore, explore // 3)
    return {
        name: {
            "ends": path[:, -1].tolist(),
            "left": (path < BARRIER).mean(0).tolist(),
            "paths": path[:3].tolist(),
        }
        for name, path in paths.items()
    }


# ---- the claims

LAWS = {1.0: ".8709", 2.0: ".7165"}  # P(left) by temperature, in closed form


def claims(study: Study) -> list[Claim]:
    """The law first, then what annealing makes of it."""
    chains, steps = study.of_scale((100, 300), (2000, 6000), (20_000, 20_000))
    fixed = {T: study.result(wells, T=T, h=0.05, chains=chains, steps=steps) for T in LAWS}
    chains, time = study.of_scale((500, 5.0), (20_000, 600.0), (200_000, 600.0))
    variances = {
        exponent: {
            eta: study.result(gaussian, eta=eta, exponent=exponent, g=0.3, chains=chains, time=time)["variance"]
            for eta in (1e-2, 1e-3)
        }
        for exponent in (1.5, 1.0)
    }
    chains, explore = study.of_scale((100, 300), (1000, 6000), (1000, 6000))
    runs = study.result(annealed, chains=chains, explore=explore)
    picture(study, runs, explore)
    return [*laws(fixed), *exponents(variances), *annealing(runs)]


def laws(fixed: dict[float, dict]) -> list[Claim]:
    """P(left) within four standard errors and a hundredth, for the bias of the step."""
    rows = []
    for T, printed in LAWS.items():
        left, error = fixed[T]["left"]
        (mean, _), (square, _) = fixed[T]["mean"], fixed[T]["square"]
        rows.append(
            Claim(
                f"at beta = {1 / T:g} Santa samples exp(-beta U): P(left)",
                f"{printed}, exact",
                f"{left:.4f} +- {error:.4f} (E x = {mean:.3f}, E x^2 = {square:.3f})",
                Kind.CLOSED_FORM,
                abs(left - boltzmann(T)) < 4 * error + 0.01,
            )
        )
    return rows


def exponents(variances: dict[float, dict[float, float]]) -> list[Claim]:
    """The variance under theta^2/2 as eta -> 0, by the exponent of eta in the noise."""
    shown = {e: "; ".join(f"{v:.3f} (eta = {eta:g})" for eta, v in row.items()) for e, row in variances.items()}
    right, wrong = (list(variances[e].values()) for e in (1.5, 1.0))
    return [
        Claim(
            "noise of variance 2 eta^(3/2) g/beta: Var theta under theta^2/2, g = .3",
            "1, exact",
            shown[1.5],
            Kind.CLOSED_FORM,
            max(abs(v - 1) for v in right) < 0.03,
        ),
        Claim(
            "... with eta in the place of eta^(3/2), as a port of the release has it",
            "1, exact",
            shown[1.0],
            Kind.CLOSED_FORM,
            max(abs(v - 1) for v in wrong) < 0.03,
            "the friction per step stays as it is at every eta, so the bias does not vanish",
        ),
    ]


def annealing(runs: dict[str, dict]) -> list[Claim]:
    """Which chains end in the global well."""
    ends = {name: numpy.array(run["ends"]) for name, run in runs.items()}
    share = {name: float((end < BARRIER).mean()) for name, end in ends.items()}
    santa = ends["Santa"][ends["Santa"] < BARRIER]
    excess = fmean((U(santa) - U(GLOBAL)).tolist()) if len(santa) else math.nan
    return [
        Claim(
            "Santa crosses to the global minimum, RMSprop stays in the local one",
            "figure, one run",
            f"Santa {share['Santa']:.3f}, RMSprop {share['RMSprop']:.3f}; U - min U of those {excess:.1e}",
            Kind.COMPARISON,
            share["Santa"] > 0.5 and share["RMSprop"] == 0,
        ),
        Claim(
            "... with the inverse temperature sqrt(t) of the released code",
            "figure",
            f"Santa {share['beta = sqrt(t)']:.3f}",
            Kind.COMPARISON,
            share["beta = sqrt(t)"] > 0.5,
            "sqrt(t) is frozen before a chain has crossed",
            elsewhere="cooling from T = 3 to .1 by equal factors",
        ),
        Claim(
            "both stages are needed",
            "section 3",
            f"refinement only: {share['refinement only']:.3f}; exploration only: {share['exploration only']:.3f}, "
            f"median distance {numpy.median(distance(ends['exploration only'])):.2g} to a minimum "
            f"(both stages {numpy.median(distance(ends['Santa'])):.1g})",
            Kind.COMPARISON,
            share["refinement only"] == 0 and numpy.median(distance(ends["exploration only"])) > 0.03,
        ),
    ]


def distance(end: ndarray) -> ndarray:
    """To the nearer minimum."""
    return numpy.minimum(abs(end - GLOBAL), abs(end - 2.2237))


def picture(study: Study, runs: dict[str, dict], explore: int) -> None:
    """The potential, some paths, and the fraction in the global well beside that of equilibrium at each temperature."""
    with study.figure("double_well", columns=3) as (left, middle, right):
        grid = numpy.linspace(-4.5, 3.7, 400)
        left.plot(grid, U(grid), color="k")
        left.plot(START, U(START), "o", color="tab:red")
        left.set(xlabel="theta", ylabel="U")
        steps = RECORD * numpy.arange(1, len(runs["Santa"]["left"]) + 1)
        for k, path in enumerate(runs["Santa"]["paths"]):
            middle.plot(steps, path, lw=0.6, color="tab:blue", label="Santa, three chains" if k == 0 else None)
        middle.plot(steps, runs["RMSprop"]["paths"][0], color="tab:red", label="RMSprop")
        middle.axvline(explore, color="0.7", ls=":")
        middle.set(xlabel="step", ylabel="theta")
        middle.legend(fontsize=7)
        for name, color in {"Santa": "tab:blue", "beta = sqrt(t)": "tab:green", "RMSprop": "tab:red"}.items():
            right.plot(steps, runs[name]["left"], color=color, label=name)
        explored = steps[steps <= explore]
        equilibrium = [boltzmann(cooling(explore)(k)) for k in explored]
        right.plot(explored, equilibrium, color="k", ls="--", label="equilibrium at T_k")
        right.set(xlabel="step", ylabel="fraction in the global well")
        right.legend(fontsize=7)


EXPERIMENT = Experiment(
    "santa-double-well",
    "Santa (Chen, Carlson, Gan, Li & Carin 2016), the illustration of annealing",
    claims,
    seeds="1000 chains that cross, 2000 chains of the law, 20000 chains of steps of Euler",
)
