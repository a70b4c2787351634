"""pSGLD against SGLD on logistic regression: Li, Chen, Carlson & Carin (2016), Table 1 and Figure 3, the a9a data.

123 binary features, 32561 data to learn from and 16281 of test, the prior N(0, 10 I), batches of 50, eps = .05 for both
samplers, 15000 steps of which 500 are burn-in, every 50th a draw. The largest curvature of U is 2.4e4, so that h =
eps/2 on the sum over the data, as printed, is h k = 590, far beyond stability; the paper's numbers make sense on the
mean, h = eps/(2N). The averages are over the draws so far, after each of them; they begin after the burn-in.
"""

from dataclasses import replace
from statistics import fmean

import numpy
import torch
from datasets import Data, read_npz
from study import Experiment, Study, spread
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits
from verdicts import Claim, Kind, part

import samplers

EPS = 5e-2
BATCH = 50
PRIOR = 10.0
BURN_IN = 500
THIN = 50
NAMES = {"SGLD": "sgld", "pSGLD": "psgld-same-step"}
PRINTED = 14.85
OTHERS = {"DSVI": 15.20, "L-BFGS-SGVI": 14.91, "HFSGVI": 15.16}  # cited there
STANDARD_ERROR = 0.28  # per cent, of a test error
NEAR = 0.2  # per cent
BAND = 14.7, 15.1  # per cent, two standard errors of a difference of the test set


def data_of(study: Study) -> tuple[Data, Data]:
    """Training and test data in float32, labels 0 and 1."""
    arrays = read_npz(study.data, "a9a/a9a.npz", "X_train", "y_train", "X_test", "y_test")
    x, y, test_x, test_y = (torch.as_tensor(numpy.asarray(a, dtype=numpy.float32)) for a in arrays)
    return (x, (y > 0).float()), (test_x, (test_y > 0).float())


def likelihood(theta: Tensor, batch: Data) -> Tensor:
    """-log p(y | x, theta) of each row."""
    x, y = batch
    return binary_cross_entropy_with_logits(x @ theta, y, reduction="none")


def prior(theta: Tensor) -> Tensor:
    """-log N(theta; 0, 10 I), up to a constant."""
    return theta.square().sum() / (2 * PRIOR)


def error(probabilities: Tensor, labels: Tensor) -> float:
    """Per cent."""
    return 100 * float(((probabilities > 0.5) != (labels > 0.5)).double().mean())


def sampler(study: Study, name: str, steps: int, seeds: int) -> dict:
    """The test errors of the averages after each draw, `(seeds, draws)`, and of the last draw."""
    (x, y), (test_x, test_y) = data_of(study)
    draws = samplers.sample(
        samplers.catalogue[NAMES[name]],
        samplers.posterior(likelihood, prior, num_data=len(x)),
        data=(x, y),
        batch_size=min(BATCH, len(x)),
        init=torch.zeros(x.shape[1]),
        chains=seeds,
        step_size=EPS / (2 * len(x)),
        steps=steps - BURN_IN,
        warmup=BURN_IN,
        thin=THIN,
        seed=1,
        progress=False,
    )
    each = (draws["theta"].float() @ test_x.T).sigmoid()  # (seeds, draws, rows)
    counts = torch.arange(1, each.shape[1] + 1)[:, None]
    averages = [[error(p, test_y) for p in chain.cumsum(0) / counts] for chain in each]
    return {"average": averages, "last": [error(chain[-1], test_y) for chain in each]}


def mode(study: Study) -> dict:
    """The test error at the mode, found by L-BFGS."""
    (x, y), (test_x, test_y) = data_of(study)
    theta = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    data = x.double(), y.double()
    optimizer = torch.optim.LBFGS([theta], max_iter=1000, tolerance_change=1e-12, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = likelihood(theta, data).sum() + prior(theta)
        loss.backward()
        return loss

    optimizer.step(closure)
    return {"error": error((test_x.double() @ theta.detach()).sigmoid(), test_y)}


def settled(averages: list[float], anchor: float) -> int:
    """The iteration from which on the error is at most NEAR above that at the mode."""
    far = [k for k, e in enumerate(averages) if e > anchor + NEAR]
    return BURN_IN + THIN * (far[-1] + 2 if far else 1)


def claims(study: Study) -> list[Claim]:
    """Table 1 and Figure 3."""
    steps, seeds = study.of_scale((1000, 2), (15_000, 3), (15_000, 10))
    runs = study.results(sampler, [{"name": name, "steps": steps, "seeds": seeds} for name in NAMES])
    results = dict(zip(NAMES, runs, strict=True))
    anchor = study.result(mode)["error"]
    picture(study, results, anchor)
    less = part(steps, 15_000, "steps")
    return [replace(claim, seeds=seeds, reduced=less) for claim in claims_of(results, anchor)]


def claims_of(results: dict[str, dict], anchor: float) -> list[Claim]:
    """By sampler; `anchor` is the error at the mode."""
    rows = []
    ends = {name: [averages[-1] for averages in result["average"]] for name, result in results.items()}
    for name, errors in ends.items():
        last = spread(results[name]["last"])
        ours = f"{spread(errors)} % (last draw {last} %, mode {anchor:.2f} %)"
        is_near = BAND[0] <= fmean(errors) <= BAND[1]
        rows.append(Claim(f"{name}, test error of the average", f"{PRINTED} %", ours, Kind.FIGURE, is_near))
    rows.append(against_others(max(fmean(errors) for errors in ends.values())))
    times = {name: [settled(averages, anchor) for averages in result["average"]] for name, result in results.items()}
    ours = "; ".join(f"{name} {spread(values, 0)}" for name, values in times.items())
    psgld, sgld = (fmean(times[name]) for name in ("pSGLD", "SGLD"))
    why = f"iterations from which on the error of the average is at most {NEAR} % above that of the mode"
    words, paper = "pSGLD settles in less than 4000 iterations, SGLD in twice as many at least", "Figure 3"
    rows.append(Claim(words, paper, ours, Kind.COMPARISON, psgld < 4000 and sgld >= 2 * psgld, why))
    return rows


def against_others(worst: float) -> Claim:
    """The worse of both beside the variational methods."""
    below = [name for name, printed in OTHERS.items() if worst < printed]
    why = f"the standard error of a test error is {STANDARD_ERROR} %, and the mode does as well"
    cited = ", ".join(f"{name} {printed:.2f} %" for name, printed in OTHERS.items())
    near = any(abs(worst - printed) < 2 * STANDARD_ERROR for printed in OTHERS.values())
    holds = None if near else len(below) == len(OTHERS)
    ours = f"below {', '.join(below) or 'none'}"
    return Claim("both are below the variational methods", cited, ours, Kind.COMPARISON, holds, why)


def picture(study: Study, results: dict[str, dict], anchor: float) -> None:
    """Figure 3: test error by iteration, of each seed."""
    with study.figure("a9a") as axes:
        for color, (name, result) in enumerate(results.items()):
            for seed, averages in enumerate(result["average"]):
                steps = [BURN_IN + THIN * (k + 1) for k in range(len(averages))]
                axes.plot(steps, averages, f"C{color}", lw=0.8, label=None if seed else name)
        axes.axhline(anchor, ls="--", color="grey", label="mode")
        axes.set(xlabel="iterations", ylabel="test error of the average in %")
        axes.legend(fontsize=8)


EXPERIMENT = Experiment(
    "psgld-a9a",
    "pSGLD (Li, Chen, Carlson & Carin 2016), Table 1 and Figure 3: a9a",
    claims,
    files=["a9a/a9a.npz"],
    seeds="3 seeds",
)
