"""What Gamma does to pSGLD, and what a small step does: Li, Chen, Carlson & Carin (2016), Theorem 1 and Corollary 2.

The target is exp(-theta^4/4), with its full gradient and lam = .3. The paper: the average converges to its expectation
as the steps decrease, and to leave out Gamma costs O((1 - alpha)^2/alpha^3) in mean square error. Both take V for a
function of the present theta. It is a memory of the path, and at a fixed alpha a small step only shortens that memory:
in the limit the law of what goes without Gamma is exp(-U)/G with V = U'^2, whose bias is 117 %.
"""

import math

import sympy
import torch
from scipy.integrate import quad
from study import Experiment, Study
from verdicts import Claim, Kind

import samplers
from recipe import Energy

LAM = 0.3
ALPHAS = (0.0, 0.5, 0.9, 0.99, 0.999)
H = 0.01  # the paper's eps is .02
STEP_SIZES = (0.04, 0.01, 0.0025)  # at the alpha = .9
KINDS = {"without": "psgld-same-step", "with": "psgld-gamma"}  # Gamma
SQUARE = 2 * math.gamma(0.75) / math.gamma(0.25)  # E theta^2
# E theta^2 off by so many per cent without Gamma and with it, from runs of other code; by alpha
EXPECTED = {0.0: (119, 4.4), 0.5: (111, 49), 0.9: (85, 69), 0.99: (27.9, 26.3), 0.999: (3.8, 3.6)}

x = sympy.symbols("x", real=True)
TARGET = Energy((x,), U=x**4 / 4)


def without_memory() -> float:
    """The bias of E theta^2 in per cent as h -> 0 at a fixed alpha, without Gamma: under exp(-U) (lam + |theta|^3)."""

    def moment(power: int) -> float:
        return quad(lambda t: t**power * math.exp(-(t**4) / 4) * (LAM + t**3), 0, 10)[0]

    return 100 * (moment(2) / moment(0) / SQUARE - 1)


def quartic(study: Study, gamma: str, alpha: float, h: float, chains: int, time: float) -> dict:
    """The bias of E theta^2 in per cent and its standard error over chains, which run for `time` after a tenth of it.

    They start at 1, where V starts as the square of the gradient.
    """
    steps = round(time / h)
    draws = samplers.sample(
        samplers.catalogue[KINDS[gamma]],
        TARGET,
        init=torch.ones(1, dtype=torch.float64),
        chains=chains,
        step_size=h,
        steps=steps,
        warmup=round(steps / 10 + 5 / (1 - alpha)),
        thin=max(1, steps // 2000),
        alpha=alpha,
        lam=LAM,
        seed=1,
        progress=False,
    )
    excess = 100 * ((draws["theta"] ** 2).mean((1, 2)) / SQUARE - 1)
    return {"bias": float(excess.mean()), "error": float(excess.std() / chains**0.5)}


def claims(study: Study) -> list[Claim]:
    """The bias by alpha and by step size, without Gamma and with it."""
    size = dict(zip(("chains", "time"), study.of_scale((200, 4.0), (2000, 60.0), (20_000, 100.0))))
    by_alpha = {g: {a: study.result(quartic, gamma=g, alpha=a, h=H, **size) for a in ALPHAS} for g in KINDS}
    by_step = {g: {h: study.result(quartic, gamma=g, alpha=0.9, h=h, **size) for h in STEP_SIZES} for g in KINDS}
    picture(study, by_alpha, by_step)
    return claims_of(by_alpha, by_step)


def claims_of(by_alpha: dict, by_step: dict) -> list[Claim]:
    """By gamma, and by alpha or h."""
    rows = []
    for alpha, expected in EXPECTED.items():
        results = [by_alpha[gamma][alpha] for gamma in KINDS]
        near = all(abs(r["bias"] - e) < 2 + 3 * r["error"] for r, e in zip(results, expected))
        words = f"alpha = {alpha:g}: bias of E theta^2 without and with Gamma"
        rows.append(
            Claim(words, "computed apart: {:+g}, {:+g} %".format(*expected), both(results), Kind.CLOSED_FORM, near)
        )
    gain = {a: by_alpha["without"][a]["bias"] - by_alpha["with"][a]["bias"] for a in ALPHAS}
    bound = all(gain[a] / 100 <= 4 * (1 - a) / a**1.5 for a in ALPHAS[1:])
    words = "to leave out Gamma costs at most of the order of (1 - alpha)/alpha^(3/2) in the bias"
    ours = ", ".join(f"{gain[a]:.1f} (alpha = {a:g})" for a in ALPHAS[1:])
    rows.append(Claim(words, "Corollary 2", f"{ours} points", Kind.CLOSED_FORM, bound))
    rest = by_alpha["with"][0.99]
    why = "V is a memory of the path: Gamma, derived for a function of the present theta, does not make up for it"
    vanishes = abs(rest["bias"]) < 3 * rest["error"]
    words = "with Gamma the law is the target's, at the paper's alpha = .99"
    rows.append(
        Claim(words, "eq. (3)", f"{rest['bias']:+.1f} +- {rest['error']:.1f} %", Kind.CLOSED_FORM, vanishes, why)
    )
    ours = "; ".join(f"{both([by_step[g][h] for g in KINDS])} (h = {h:g})" for h in STEP_SIZES)
    falls = all(abs(r[STEP_SIZES[-1]]["bias"]) < abs(r[STEP_SIZES[0]]["bias"]) for r in by_step.values())
    why = f"a small step shortens the memory of V, and without Gamma the bias goes to {without_memory():.0f} %"
    rows.append(
        Claim("the bias falls with the step size (alpha = .9)", "Theorem 1", ours, Kind.CLOSED_FORM, falls, why)
    )
    return rows


def both(results: list[dict]) -> str:
    """The biases without and with Gamma."""
    return ", ".join(f"{r['bias']:+.1f}" for r in results) + " %"


def picture(study: Study, by_alpha: dict, by_step: dict) -> None:
    """The bias by alpha, and by step size."""
    with study.figure("gamma", columns=2, sharey=True) as (left, right):
        for gamma in KINDS:
            left.semilogx([1 - a for a in ALPHAS], [by_alpha[gamma][a]["bias"] for a in ALPHAS], "o-")
            right.semilogx(STEP_SIZES, [by_step[gamma][h]["bias"] for h in STEP_SIZES], "o-", label=f"{gamma} Gamma")
        right.axhline(without_memory(), ls="--", color="grey", label="h -> 0, without")
        left.set(xlabel="1 - alpha", ylabel="bias of E theta^2 in %", title=f"h = {H:g}")
        right.set(xlabel="step size h", title="alpha = .9")
        right.set_xticks(STEP_SIZES, map(str, STEP_SIZES))
        right.minorticks_off()
        right.legend(fontsize=8)


EXPERIMENT = Experiment(
    "psgld-gamma",
    "pSGLD (Li, Chen, Carlson & Carin 2016), Corollary 2: Gamma on a quartic",
    claims,
    seeds="2000 chains",
)
