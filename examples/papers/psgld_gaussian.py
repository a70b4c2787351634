"""pSGLD against SGLD on a Gaussian: Li, Chen, Carlson & Carin (2016), the simulation of Figure 1.

The target is N(0, diag(.16, 1)). The paper: at every step size pSGLD has the lower error of the covariance and the
lower autocorrelation time. Both samplers have an exact law here, SGLD at any step size, pSGLD where its V forgets
nothing (alpha -> 1), and the runs are held against both, for the paper's alpha = .99 and for shorter and longer
memories. V is that of the steps before; the paper's Algorithm 1 has the present gradient in it.
"""

from collections.abc import Callable

import numpy
import sympy
import torch
from numpy import ndarray
from scipy.fft import irfft, rfft
from scipy.optimize import brentq
from study import Experiment, Study
from verdicts import Claim, Kind

import samplers
from recipe import Energy

VARIANCES = numpy.array([0.16, 1.0])
K = 1 / VARIANCES
STEP_SIZES = (0.0125, 0.05, 0.15, 0.30)  # the paper's eps is 2h
ALPHAS = (0.999, 0.99, 0.9)  # weight of the past in V

x, y = sympy.symbols("x y", real=True)
TARGET = Energy((x, y), U=x**2 * K[0] / 2 + y**2 * K[1] / 2)


# Exact laws: the variances, and h G k. Coordinate by coordinate theta' = (1 - h G k) theta + sqrt(2 h G) N(0, 1).


def sgld_law(h: float) -> tuple[ndarray, ndarray]:
    """G = 1."""
    return VARIANCES / (1 - h * K / 2), h * K


def psgld_law(h: float) -> tuple[ndarray, ndarray]:
    """As alpha -> 1, V is the constant E g^2 = k^2 Var, so G = 1/(k sd), and sd solves a quadratic."""
    sd = (K * h / 2 + numpy.sqrt(K**2 * h**2 / 4 + 4 * K)) / (2 * K)
    return sd**2, h / sd


def law_of(law: Callable[[float], tuple[ndarray, ndarray]], h: float) -> tuple[float, float]:
    """Autocorrelation time (2 - r)/r, the mean of the two, and error of the covariance; r = h G k."""
    variances, rate = law(h)
    return float(((2 - rate) / rate).mean()), covariance_error(numpy.diag(variances))


def error_at(time: float) -> float:
    """Of pSGLD, alpha -> 1, at the step size that has this autocorrelation time."""
    h = brentq(lambda h: law_of(psgld_law, h)[0] - time, 1e-4, 2.0)
    return law_of(psgld_law, h)[1]


def covariance_error(covariance: ndarray) -> float:
    """The mean absolute error over the four entries."""
    return float(abs(covariance - numpy.diag(VARIANCES)).mean())


def gaussian(study: Study, name: str, h: float, chains: int, steps: int, alpha: float | None = None) -> dict:
    """The error of the covariance from many chains, the variances and the autocorrelation times.

    They start one standard deviation from the mode: V starts as the square of the first gradient, and has the right
    size there. Nearer to the mode the first V is next to nothing, and the first step of any length.
    """
    memory = 0 if alpha is None else 1 / (1 - alpha)
    draws = samplers.sample(
        samplers.catalogue[name],
        TARGET,
        init=torch.tensor(VARIANCES).sqrt(),
        chains=chains,
        step_size=h,
        steps=steps,
        seed=1,
        warmup=round(5 / h + 3 * memory),
        progress=False,
        **({} if alpha is None else {"alpha": alpha}),
    )
    theta = draws["theta"].numpy()
    covariance = numpy.einsum("cti,ctj->ij", theta, theta) / (chains * steps)  # the mean is known to be 0
    return {
        "error": covariance_error(covariance),
        "variances": covariance.diagonal().tolist(),
        "times": autocorrelation_time(theta).tolist(),
    }


def autocorrelation_time(theta: ndarray) -> ndarray:
    """1 + 2 sum of the autocorrelations, averaged over the chains, up to the first lag whose pair sums below .01."""
    steps = theta.shape[1]
    power = (abs(rfft(theta, 2 * steps, axis=1)) ** 2).mean(0)
    rho = irfft(power, axis=0)[:steps] / numpy.arange(steps, 0, -1)[:, None]
    pairs = (rho[:-1] + rho[1:])[::2] / rho[0]
    return numpy.array([2 * p[numpy.logical_and.accumulate(p >= 0.01)].sum() - 1 for p in pairs.T])


def claims(study: Study) -> list[Claim]:
    """The closed form at every step size, and the claim about the error at small and at large ones."""
    chains, steps = study.of_scale((200, 200), (2000, 2000), (20_000, 2000))
    sgld = {h: study.result(gaussian, name="sgld", h=h, chains=chains, steps=steps) for h in STEP_SIZES}
    psgld = {
        alpha: {
            h: study.result(gaussian, name="psgld", h=h, chains=chains, steps=steps, alpha=alpha) for h in STEP_SIZES
        }
        for alpha in ALPHAS
    }
    picture(study, sgld, psgld)
    return claims_of(sgld, psgld)


def claims_of(sgld: dict, psgld: dict) -> list[Claim]:
    """By step size, and by alpha."""
    stray = max(abs(numpy.array(r["variances"]) / sgld_law(h)[0] - 1).max() for h, r in sgld.items())
    drift = max(abs(numpy.array(r["variances"]) / psgld_law(h)[0] - 1).max() for h, r in psgld[0.999].items())
    paper = psgld[0.99]
    large = all(paper[h]["error"] < sgld[h]["error"] for h in STEP_SIZES[2:])
    small = all(paper[h]["error"] <= sgld[h]["error"] for h in STEP_SIZES[:2])
    return [
        Claim(
            "variances of SGLD are 1/(k (1 - h k/2)) at every h",
            "closed form",
            f"within {100 * stray:.1f} %",
            Kind.CLOSED_FORM,
            stray < 0.03,
        ),
        Claim(
            "pSGLD at alpha = .999 is near its limit alpha -> 1",
            "closed form",
            f"within {100 * drift:.1f} %",
            Kind.CLOSED_FORM,
            drift < 0.06,
        ),
        Claim(
            "pSGLD has the lower error at eps = .3 and .6 (h = .15, .3)",
            "Figure 1a, no numbers",
            compared(paper, sgld, STEP_SIZES[2:]),
            Kind.CLOSED_FORM,
            large,
        ),
        Claim(
            "... and at small steps",
            "Figure 1a, no numbers",
            compared(paper, sgld, STEP_SIZES[:2]),
            Kind.CLOSED_FORM,
            small,
            "V remembers 1/(1 - alpha) steps; where the chain needs longer to forget, it lingers in the tails",
            elsewhere="alpha -> 1, in closed form",
        ),
        of_times(),
    ]


def of_times() -> Claim:
    """The autocorrelation times of Figure 1, in closed form."""
    plain, adapted = ([law_of(law, h) for h in STEP_SIZES] for law in (sgld_law, psgld_law))
    at_equal = [error_at(time) for time, _ in plain]
    times = "; ".join(f"{b:.3g} against {a:.3g}" for (a, _), (b, _) in zip(plain, adapted, strict=True))
    errors = "; ".join(f"{b:.4f} against {a:.4f}" for (_, a), b in zip(plain, at_equal, strict=True))
    return Claim(
        "pSGLD has the lower autocorrelation time at the same eps (alpha -> 1; h = .0125, .05, .15, .3)",
        "Figure 1, no numbers",
        f"times {times}; errors at equal times {errors}",
        Kind.CLOSED_FORM,
        all(b < a for (a, _), (b, _) in zip(plain, adapted, strict=True)),
        "h G k is h/sd in the place of h/sd^2: the narrow coordinate takes shorter steps, the wide one no longer ones",
        elsewhere="the error at equal autocorrelation times"
        if all(b < a for (_, a), b in zip(plain, at_equal, strict=True))
        else "",
    )


def compared(psgld: dict, sgld: dict, step_sizes: tuple[float, ...]) -> str:
    """The errors of pSGLD beside those of SGLD."""
    return "; ".join(f"{psgld[h]['error']:.4f} against {sgld[h]['error']:.4f} (h = {h:g})" for h in step_sizes)


def picture(study: Study, sgld: dict, psgld: dict) -> None:
    """Error by step size and by autocorrelation time, with the exact laws."""
    rows = {"SGLD": sgld} | {f"pSGLD, alpha = {alpha:g}": results for alpha, results in psgld.items()}
    with study.figure("gaussian", columns=2) as (left, right):
        for name, law in (("SGLD, exact", sgld_law), ("pSGLD, alpha -> 1", psgld_law)):
            errors = [covariance_error(numpy.diag(law(h)[0])) for h in STEP_SIZES]
            times = [((2 - law(h)[1]) / law(h)[1]).mean() for h in STEP_SIZES]
            left.loglog(STEP_SIZES, errors, "--", label=name)
            right.loglog(times, errors, "--")
        for name, results in rows.items():
            errors = [results[h]["error"] for h in STEP_SIZES]
            left.loglog(STEP_SIZES, errors, "o-", label=name)
            right.loglog([sum(results[h]["times"]) / 2 for h in STEP_SIZES], errors, "o-")
        left.set(xlabel="step size h", ylabel="mean absolute error of the covariance")
        left.set_xticks(STEP_SIZES, map(str, STEP_SIZES))
        left.minorticks_off()
        right.set(xlabel="autocorrelation time in steps, mean of the two")
        left.legend(fontsize=7)


EXPERIMENT = Experiment(
    "psgld-gaussian",
    "pSGLD (Li, Chen, Carlson & Carin 2016), Figure 1: N(0, diag(.16, 1))",
    claims,
    seeds="2000 chains",
)
