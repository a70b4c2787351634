"""The integrator of ATMC and its relativistic steps: Heek & Kalchbrenner (2019), sections 2.4 and 2.5.

Equation (10) prints the kick with friction as e^{+beta h} [p - gamma_1 g + sqrt(gamma_2 alpha) eta], with gamma_a =
(e^{a beta h} - 1)/beta. Its SDE has e^{-beta h}, and sqrt(gamma_2 alpha m). Algorithm 1 is F A', (8) is F A' F; the
library's word is B A' O A' B, with as many gradients.

The one-step defect is how far one step, from exp(-H), moves the moments of (theta, p, xi) up to degree 4, by
quadrature: it falls as h^3 for a symmetric step of exact parts, as h^2 for a consistent one, and as h for a wrong SDE.
Stationary errors of theta are a power of h less, but that F A' has the law of theta of F A' F.
"""

import math
from collections.abc import Callable

import numpy
import sympy
import torch
from scipy.integrate import quad
from study import Experiment, Study
from torch import Tensor
from verdicts import Claim, Kind

import integrators
import samplers
from recipe import Energy
from samplers.testing import audit
from samplers.testing.one_step import moments, transition
from samplers.testing.planted import planted
from samplers.testing.quadrature import boltzmann, gaussian, grid

WORDS = ("F A'", "F A' F", "B A' O A' B")
RATE = "xi + torch.clamp(Dmin - xi, min=0)"  # beta in the emitted text
ERRORS = {  # of (10) as it is printed, as changes of the emitted text of F A'
    "e^{+beta h}": (("p = p*torch.exp(", f"p = torch.exp(2*h*({RATE}))*(p*torch.exp("), ("- h*g*x1", "- h*g*x1)")),
    "noise without m": (("m*torch.clamp", "torch.clamp"),),
}
ERRORS["both, as printed"] = (*ERRORS["e^{+beta h}"], *ERRORS["noise without m"])
M, MU, DMIN = 1.7, 4.0, 0.8  # where the order is measured
STEP_SIZES = (0.05, 0.025)

x = sympy.Symbol("x", real=True)


# ---- the order


def order(study: Study, word: str, error: str = "") -> dict:
    """The norm of the one-step defect on the quartic at two step sizes, and the slope between them."""
    step = planted(integrators.compile(samplers.ATMC, word), *ERRORS.get(error, ()))
    law = {
        "theta": boltzmann(lambda x: x**4 / 4 + x**2 / 2, 1.0, -4.3, 4.3, 40),
        "p": gaussian(0, M, 8),
        "xi": boltzmann(lambda x: x**2 / 2, 1 / MU, -8.5 * MU**-0.5, 8.5 * MU**-0.5, 18, [DMIN]),
    }
    points, weights = grid(law[b.name] for b in step.recipe.state)

    def norm(h: float) -> float:
        options = {"draw_nodes": 6, "m": M, "mu": MU, "Dmin": DMIN}
        before, after, of_all = transition(step, points, weights, h, lambda x: x**3 + x, **options)
        return float(numpy.linalg.norm(moments(after, of_all, 4) - moments(before, of_all, 4)))

    norms = [norm(h) for h in (STEP_SIZES if not error else (1e-3, 5e-4))]
    return {"norms": norms, "slope": math.log2(norms[0] / norms[1])}


def stationary(study: Study, word: str, h: float, chains: int, steps: int) -> dict:
    """E theta^2 of a unit normal in a long run, and its standard error; m = 1, Dmin = 1.5."""
    draws = samplers.sample(
        samplers.ATMC,
        Energy(x, U=x**2 / 2),
        init=torch.zeros(1, dtype=torch.float64),
        chains=chains,
        steps=steps,
        warmup=200,
        thin=10,
        step_size=h,
        scheme=word,
        Dmin=1.5,
        seed=1,
        progress=False,
    )
    square = draws["theta"].square().mean((1, 2))  # of each chain
    return {"square": float(square.mean()), "error": float(square.std() / chains**0.5)}


# ---- Algorithm 1, written by hand, before the audit of the library


def algorithm(sign: int = -1, with_m: bool = True, adds: bool = True, m: float = 4.0, D: float = 1.0) -> Callable:
    """Algorithm 1, with its sign of beta h, with m in the noise or without, with "theta +=" or "theta <-"."""

    def run(
        potential: Callable, init: Tensor, *, steps: int, step_size: float, temperature: float, seed: int
    ) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        h, theta = step_size, init

        def normal() -> Tensor:
            return torch.randn(init.shape, generator=generator, dtype=init.dtype)

        p, xi = (m * temperature) ** 0.5 * normal(), temperature**0.5 * normal()
        for _ in range(steps):
            at = theta.detach().requires_grad_()
            (g,) = torch.autograd.grad(potential(at).sum(), at)
            alpha = (D - xi).clamp(min=0)
            beta = alpha + xi
            gamma_1, gamma_2 = torch.expm1(beta * h) / beta, torch.expm1(2 * beta * h) / beta
            heat = temperature * alpha * (m if with_m else 1.0)
            p = torch.exp(sign * beta * h) * (p - gamma_1 * g + (gamma_2 * heat).sqrt() * normal())
            theta = theta + h * p / m if adds else h * p / m
            xi = xi + h * (p**2 / m - temperature)
        return theta

    return run


VARIANTS: dict[str, dict] = {
    "corrected": {},
    "e^{+beta h}": {"sign": +1},
    "noise without m": {"with_m": False},
    "theta <- h p/m": {"adds": False},
}


def audited(study: Study, variant: str, chains: int, time: float) -> dict:
    """What the audit says of Algorithm 1 as a black box, and of E theta^2 of its unit normal."""
    result = audit(algorithm(**VARIANTS[variant]), step_size=0.2, time=time, chains=chains, limit=None, progress=False)
    return {"verdict": result.verdict, "ok": result.ok, "text": str(result)}


def without_m(study: Study, chains: int, steps: int) -> dict:
    """E theta^2 of a unit normal after steps of h = 0.1 with noise without m, at m = 4 and the paper's m = 11.1."""
    squares = {}
    for m in (4.0, 11.1):
        start = torch.randn(chains, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        run = algorithm(with_m=False, m=m)
        theta = run(lambda x: x.square().sum(-1) / 2, start, steps=steps, step_size=0.1, temperature=1.0, seed=0)
        squares[f"{m:g}"] = float(theta.square().mean())
    return squares


# ---- relativistic steps


def speeds(study: Study, c: float, chains: int, steps: int, rms: float = 0.0003, h: float = 0.001) -> dict:
    """Steps of a run at the paper's h, D and m: greatest over c h, mean square over h^2/m, mean over h/sqrt(m)."""
    parameters = samplers.RelativisticATMC.convert(h0=h, momentum=0.9, rms_step=rms, max_step=c * h)
    m = parameters["m"]
    draws = samplers.sample(
        samplers.RelativisticATMC,
        Energy(x, U=x**2 / 2),
        init=torch.zeros(1, dtype=torch.float64),
        chains=chains,
        steps=steps,
        step_size=h,
        seed=1,
        scheme="paper",
        progress=False,
        **{name: value for name, value in parameters.items() if name in ("m", "c", "Dmin")},
    )
    steps_made = draws["theta"].diff(dim=1).abs() / h
    return {
        "greatest": float(steps_made.max() / c),
        "square": float(m * steps_made.square().mean()),
        "mean": float(m**0.5 * steps_made.mean()),
    }


def exact_speeds(c: float, m: float = (0.001 / 0.0003) ** 2) -> tuple[float, float]:
    """m E K'^2 and sqrt(m) E |K'| of exp(-K), by quadrature over the momentum m c sinh(u)."""

    def mean(f: Callable[[float], float]) -> float:
        def integrand(u: float) -> float:
            return f(c * math.tanh(u)) * math.cosh(u) * math.exp(-m * c**2 * (math.cosh(u) - 1))

        return quad(integrand, -8, 8, points=[0.0], limit=200)[0]

    mass = mean(lambda v: 1.0)
    return m * mean(lambda v: v**2) / mass, m**0.5 * mean(abs) / mass


# ---- claims


def claims(study: Study) -> list[Claim]:
    """Of 2.4 and of 2.5."""
    right = {word: study.result(order, word=word) for word in WORDS}
    wrong = {error: study.result(order, word="F A'", error=error) for error in ERRORS}
    run = dict(zip(("chains", "steps"), study.of_scale((500, 400), (20_000, 4000), (100_000, 10_000))))
    biases = {(w, h): study.result(stationary, word=w, h=h, **run) for w in WORDS for h in (0.6, 0.3)}
    size = dict(zip(("chains", "time"), study.of_scale((512, 6.0), (8192, 15.0), (32768, 30.0))))
    audits = {variant: study.result(audited, variant=variant, **size) for variant in VARIANTS}
    length = dict(zip(("chains", "steps"), study.of_scale((50, 200), (1000, 4000), (10_000, 20_000))))
    relativistic = {c: study.result(speeds, c=c, **length) for c in (1.0, 10.0)}
    chains, steps = study.of_scale((200, 50), (40_000, 3000), (400_000, 3000))
    noise = study.result(without_m, chains=chains, steps=steps)
    picture(study, right, wrong)
    return [*of_order(right, wrong), of_gradients(biases), of_audits(audits, noise), *of_speeds(relativistic)]


def of_order(right: dict, wrong: dict) -> list[Claim]:
    """The slopes."""
    slopes = {word: r["slope"] for word, r in right.items()}
    mutants = {error: r["slope"] for error, r in wrong.items()}
    symmetric = min(slopes["F A' F"], slopes["B A' O A' B"])
    return [
        Claim(
            "(8), F A' F, is of second order, with e^{-beta h} and m in the noise",
            "2.4",
            f"one-step defects fall as h^{slopes[WORDS[1]]:.2f}; {WORDS[2]} h^{slopes[WORDS[2]]:.2f}; "
            f"Algorithm 1, F A', h^{slopes[WORDS[0]]:.2f}",
            Kind.CLOSED_FORM,
            symmetric > 2.9 and 1.9 < slopes["F A'"] < 2.5,
        ),
        Claim(
            "... with (10) as it is printed",
            "e^{+beta h}, gamma_2 alpha",
            "; ".join(f"{error}: h^{slope:.2f}" for error, slope in mutants.items()),
            Kind.CLOSED_FORM,
            min(mutants.values()) > 1.5,
            "friction that amplifies, and noise without m, are another SDE: the error does not fall with h",
        ),
    ]


def of_gradients(biases: dict) -> Claim:
    """At as many gradients."""

    def off(word: str) -> str:
        return ", ".join(f"{100 * (biases[word, h]['square'] - 1):+.2f}" for h in (0.6, 0.3))

    error = 100 * max(r["error"] for r in biases.values())
    words = "; ".join(f"{word}: {off(word)} %" for word in WORDS)
    better = all(
        abs(biases["F A' F", h]["square"] - 1) + 2 * biases["F A' F", h]["error"]
        < abs(biases["B A' O A' B", h]["square"] - 1)
        for h in (0.6, 0.3)
    )
    return Claim(
        "the integrator improves on others",
        "2.4, no numbers",
        f"Var theta of a normal at h = .6, .3 is off by {words} (+- {error:.2f})",
        Kind.CLOSED_FORM,
        better,
        "F A' needs half the gradients of F A' F, and has its law of theta; B A' O A' B needs as few, and a symmetric "
        "order in which friction stands alone is exact on a Gaussian, but for the thermostat",
        elsewhere="one-step defects, beside Algorithm 1; Var theta is no better",
    )


def of_audits(audits: dict, noise: dict) -> Claim:
    """What the library's audit sees of it, as a black box."""
    verdicts = "; ".join(f"{variant}: {r['verdict']}" for variant, r in audits.items())
    return Claim(
        "Algorithm 1 as a black box: the audit accepts it corrected, and refuses what is printed",
        "-",
        f"{verdicts}; without m E theta^2 is {noise['4']:.3f} at m = 4, {noise['11.1']:.3f} at 11.1",
        Kind.CLOSED_FORM,
        audits["corrected"]["ok"] and not any(r["ok"] for v, r in audits.items() if v != "corrected"),
        "noise without m: xi falls until E p^2/m = 1 again, so that the thermostat undoes most of the error; the "
        "one-step defect above sees it, draws hardly do",
        elsewhere="one-step defects, for noise without m",
    )


def of_speeds(results: dict) -> list[Claim]:
    """Steps at m = 11.1 and c = 1, the paper's, and where m c^2 is large."""
    paper, large = results[1.0], results[10.0]
    exact, exact_large = exact_speeds(1.0), exact_speeds(10.0)
    return [
        Claim(
            "no step is longer than c h",
            "2.5, derived",
            f"the longest is {paper['greatest']:.2f} c h",
            Kind.CLOSED_FORM,
            paper["greatest"] <= 1,
        ),
        Claim(
            "the average step is h/sqrt(m) for c >> m",
            "2.5; its own m = 11.1, c = 1",
            f"rms {paper['square'] ** 0.5:.3f} (exact {exact[0] ** 0.5:.3f}), mean {paper['mean']:.3f} "
            f"({exact[1]:.3f}); at c = 10: rms {large['square'] ** 0.5:.3f} ({exact_large[0] ** 0.5:.3f}), "
            f"mean {large['mean']:.3f} ({exact_large[1]:.3f})",
            Kind.CLOSED_FORM,
            abs(paper["square"] ** 0.5 - 1) < 0.02,
            "the condition is m c^2 >> 1, and it is the rms that tends to h/sqrt(m); a mean of |p| is sqrt(2/pi) of it",
            elsewhere="m c^2 >> 1, and the rms in the place of the mean",
        ),
    ]


def picture(study: Study, right: dict, wrong: dict) -> None:
    """Defects by step size."""
    with study.figure("order") as axes:
        for name, r in right.items():
            axes.loglog(STEP_SIZES, r["norms"], "o-", label=name)
        for name, r in wrong.items():
            axes.loglog((1e-3, 5e-4), r["norms"], "o--", label=name)
        axes.set(xlabel="step size h", ylabel="norm of the one-step defect")
        axes.legend(fontsize=7)


EXPERIMENT = Experiment(
    "atmc-order",
    "ATMC (Heek & Kalchbrenner 2019), sections 2.4 and 2.5: the integrator",
    claims,
    seeds="one-step defects, computed; 1000 to 40000 chains",
)
