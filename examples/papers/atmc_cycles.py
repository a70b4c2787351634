"""Cycles of the step size, one sample from each: Heek & Kalchbrenner (2019), section 2.6.

The step size is h_0/2 (1 + cos(pi k/n)), k from 0 to n - 1, again and again: long steps move far, short ones have
little error, and the last state of a cycle is its sample. The paper: so fewer samples are needed. The target is a
quartic, the gradient has V_g = 100, and ATMC has m = 2 and D = 0.5, which stay as h changes. In each of many chains
E theta^2 is estimated after some number of gradients, from one sample a cycle, or from a run of constant h with nearly
all its states or one in n; the error is the root mean square over chains and sites: bias and variance in one.
"""

from dataclasses import replace

import torch
from atmc_thermostats import NOISES, SITES, TARGETS, D, M, second_moment
from study import Experiment, Study
from verdicts import Claim, Kind

import samplers
from samplers.schedules import Cyclical

LENGTHS = (50, 500, 5000)  # n, steps of a cycle
H0 = 0.4
CONSTANT = (0.4, 0.2, 0.1, 0.05)  # h_0, its mean over a cycle, and less
COVARIANCE = 100.0
THIN = 5
BUDGETS = (1000, 5000, 10_000, 20_000)  # gradients after the burn-in
TOY = "the length of a cycle, h_0 and D are not chosen"
WHY = "a constant h that is chosen well is better: one state in n throws the others away, whatever their step sizes"


def estimates(study: Study, h: float, length: int, chains: int, steps: int) -> dict:
    """For draws apart by so many steps, the rms error and bias of E theta^2 by gradients; E xi at the last of them.

    `length` is that of cycles, 0 for a constant h.
    """
    U = TARGETS["quartic"]
    f, data = NOISES["equal"]
    burn_in = max(length, 500)
    draws = samplers.sample(
        samplers.ATMC,
        lambda theta, z: U(theta).sum() + COVARIANCE**0.5 * (z[0] * f(theta)).sum(),
        data=data(),
        batch_size=1,
        init=torch.zeros(SITES, dtype=torch.float64),
        chains=chains,
        steps=steps,
        warmup=burn_in,
        thin=THIN,
        step_size=Cyclical(start=h, cycles=(steps + burn_in) // length, steps=steps + burn_in) if length else h,
        scheme="paper",
        m=M,
        Dmin=D,
        keep=["xi"],
        seed=1,
        progress=False,
    )
    exact = second_moment("quartic")
    results: dict = {}
    for spacing in [length] if length else [THIN, *LENGTHS]:
        if spacing > steps:
            continue
        every = spacing // THIN
        squares = draws["theta"][:, every - 1 :: every].square()
        means = squares.cumsum(1) / torch.arange(1, squares.shape[1] + 1)[:, None]
        off = {budget: means[:, budget // spacing - 1] / exact - 1 for budget in BUDGETS if spacing <= budget <= steps}
        results[str(spacing)] = {
            "error": {str(budget): float(x.square().mean().sqrt()) for budget, x in off.items()},
            "bias": float(means[:, -1].mean() / exact - 1),
            "xi": float(draws["xi"][:, every - 1 :: every].mean()),
        }
    return results


def claims(study: Study) -> list[Claim]:
    """At equal samples, and at equal gradients."""
    lengths, chains, steps = study.of_scale((LENGTHS[:2], 50, 1000), (LENGTHS, 300, 20_000), (LENGTHS, 3000, 20_000))
    size = {"chains": chains, "steps": steps}
    cycles = {n: study.result(estimates, h=H0, length=n, **size)[str(n)] for n in lengths}
    constant = {h: study.result(estimates, h=h, length=0, **size) for h in CONSTANT}
    picture(study, cycles, constant)
    return [
        *elsewhere([against(cycles[n], {h: r[str(n)] for h, r in constant.items()}, n) for n in lengths], lengths),
        against(cycles[lengths[1]], {h: r[str(THIN)] for h, r in constant.items()}, THIN),
        bias_of(cycles, {h: r[str(THIN)] for h, r in constant.items()}),
    ]


def elsewhere(claims: list[Claim], lengths: tuple[int, ...]) -> list[Claim]:
    """Those that do not hold name the lengths at which the claim does."""
    holding = ", ".join(str(n) for n, claim in zip(lengths, claims, strict=True) if claim.found)
    return [replace(c, elsewhere=f"one sample in {holding} steps" if holding else "") for c in claims]


def against(cycles: dict, constant: dict, spacing: int) -> Claim:
    """The errors after the fewest and the most gradients, beside those of the best constant h."""
    ours = cycles["error"]
    best = {budget: min(constant, key=lambda h: constant[h]["error"][budget]) for budget in ours}
    theirs = {budget: constant[h]["error"][budget] for budget, h in best.items()}
    first, last = list(ours)[0], list(ours)[-1]
    words = f"one sample in {spacing} steps each: cycles have the lower error"
    if spacing == THIN:
        words = f"a sample per cycle of {LENGTHS[1]} is better than all states of a constant h"
    return Claim(
        words,
        "2.6, fewer samples",
        "; ".join(
            f"{100 * ours[k]:.1f} against {100 * theirs[k]:.1f} % (h = {best[k]:g}) after {k} gradients"
            for k in dict.fromkeys((first, last))
        ),
        Kind.COMPARISON,
        all(ours[k] < theirs[k] for k in ours),
        "" if ours[last] < theirs[last] else WHY,
        free=TOY,
    )


def bias_of(cycles: dict, constant: dict) -> Claim:
    """What is left of the error of long steps at the end of a cycle."""
    bias = {n: r["bias"] for n, r in cycles.items()}
    words = ", ".join(f"{100 * r['bias']:+.1f} % (h = {h:g})" for h, r in constant.items())
    xi = ", ".join(f"{r['xi']:.2f}" for r in cycles.values())
    return Claim(
        "the last state of a cycle has the small error of its short steps",
        "2.6",
        f"bias {', '.join(f'{100 * x:+.1f} % (n = {n})' for n, x in bias.items())}; constant h: {words}; xi is {xi}",
        Kind.COMPARISON,
        max(map(abs, bias.values())) < 0.03,
        "xi lags, as it falls by 1 per unit of time at the most (mu = 1): at the end it is still the friction for the "
        "noise of longer steps, and the sample is too cold",
        free=TOY,
    )


def picture(study: Study, cycles: dict, constant: dict) -> None:
    """Errors by gradients."""
    panels = [(f"one in {n}", n, str(n)) for n in cycles] + [("nearly all states", LENGTHS[1], str(THIN))]
    with study.figure("cycles", columns=len(panels), sharey=True) as all_axes:
        for axes, (title, n, key) in zip(all_axes, panels):
            ours = cycles[n]["error"]
            budgets = [int(budget) for budget in ours]
            axes.loglog(budgets, list(ours.values()), "ko-", label=f"cycles of {n}, one sample each")
            for h, r in constant.items():
                axes.loglog(budgets, [r[key]["error"][budget] for budget in ours], "o--", label=f"h = {h:g}")
            axes.set(xlabel="gradients", title=title)
            axes.legend(fontsize=7)
        all_axes[0].set(ylabel="relative rms error of E theta^2")


EXPERIMENT = Experiment(
    "atmc-cycles",
    "ATMC (Heek & Kalchbrenner 2019), section 2.6: cycles of the step size",
    claims,
    seeds="300 chains",
)
