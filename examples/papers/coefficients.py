"""Local learning coefficients with exact answers: what samplers make of lambda, and where their errors come from.

A network of known lambda is y = M(w) x + noise of variance 1, with the likelihood of that; its n data have X'X = n I
and residuals orthogonal to X, so that L_n(w) - L_n(w*) = |M(w) - M(w*)|^2/2 at every n. The estimate (Lau et al. 2023)

    lambda_n = n beta (E L_n(w) - L_n(w*)),  beta = 1/log n,  w ~ exp(-n beta L_n(w) - gamma |w - w*|^2/2),

is lambda - (m - 1)/log(n beta) + ..., the derivative of the free energy lambda log n - (m - 1) log log n (Watanabe
2009) of a lambda of multiplicity m. M is linear in one factor of w: the other is integrated by quadrature, so that
lambda_n itself is known at any n and gamma, and what is left of an estimate is the sampler's. Chains move formulas.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from study import Experiment, Study
from sympy import symbols
from verdicts import Claim, Kind

import samplers
from recipe import Energy, RecipeError, data_total, datum

CHAINS, DRAWS = 64, 4000
N = 10_000  # data
WITHIN = 0.05  # of lambda
GRID = np.linspace(-40.0, 8.0, 1201)  # of the logarithm of a number that is integrated over


def tempered(n: float) -> float:
    """n beta."""
    return n / math.log(n)


@dataclass(frozen=True)
class Model:
    """M(w), `(outputs, inputs)` by rows, with w*, and lambda and its multiplicity there; `exact(n beta, gamma)`.

    `n`, `gamma` and `step` are of its estimate: h sqrt(n beta), as the curvature at |w - w*| = 1 is n beta.
    """

    words: str
    inputs: int
    centre: tuple[float, ...]
    M: Callable[[Sequence[Any]], list]
    coefficient: float
    multiplicity: int
    exact: Callable[[float, float], float] | None
    n: int = N
    gamma: float = 1.0
    step: float = 0.3

    def misfits(self, w: Sequence[Any]) -> list:
        """M(w) - M(w*) by rows, of numbers, tensors or symbols."""
        return [a - b for a, b in zip(self.M(w), self.M(self.centre), strict=True)]

    def gain(self, n: float, w: torch.Tensor) -> torch.Tensor:
        """n beta (L_n(w) - L_n(w*)), whose mean is lambda_n."""
        return tempered(n) * sum(e**2 for e in self.misfits(w.unbind())) / 2

    def energy(self, n: int, gamma: float, batch: int | None) -> dict[str, Any]:
        """The arguments of `sample`: U = n beta L_n + gamma |w - w*|^2/2, with the data where there are batches."""
        w = symbols(f"w:{len(self.centre)}", real=True)
        near = gamma * sum((a - b) ** 2 for a, b in zip(w, self.centre)) / 2
        if batch is None:
            return {"energy": Energy(w, U=tempered(n) * sum(e**2 for e in self.misfits(w)) / 2 + near)}
        X, Y = self.data(n)
        x, y = ([datum(f"{name}{k}") for k in range(len(of))] for name, of in (("x", X), ("y", Y)))
        rows = [self.M(w)[k : k + len(x)] for k in range(0, len(x) * len(y), len(x))]
        residuals = [label - sum(a * b for a, b in zip(row, x)) for label, row in zip(y, rows)]
        U = data_total(sum(r**2 for r in residuals)) / (2 * math.log(n)) + near
        return {"energy": Energy(w, U=U, data=(*x, *y)), "data": (*X, *Y), "batch_size": batch}

    def data(self, n: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Columns of inputs, and of outputs at w*, `(columns, n)`, with residuals of variance 1."""
        generator = torch.Generator().manual_seed(0)
        outputs = len(self.M(self.centre)) // self.inputs
        columns = torch.randn(n, self.inputs + outputs, generator=generator, dtype=torch.float64)
        X, noise = (math.sqrt(n) * torch.linalg.qr(columns)[0]).T.split([self.inputs, outputs])
        M = torch.tensor(self.M(self.centre), dtype=torch.float64).reshape(outputs, self.inputs)
        return X, M @ X + noise


# ---- lambda_n by quadrature


def mean_gain(curvatures: np.ndarray, log_density: np.ndarray, outputs: int, t: float, gamma: float) -> float:
    """E t K where K = sum_i c_i |b_i|^2/2, `curvatures` c `(..., rank)` of a density, b_i ~ N(0, 1/(t c_i + gamma)).

    Each b_i has `outputs` numbers.
    """
    precisions = t * curvatures + gamma
    log_weight = log_density - outputs / 2 * np.log(precisions).sum(-1)
    weight = np.exp(log_weight - log_weight.max())
    return float((weight * (outputs / 2 * (1 - gamma / precisions)).sum(-1)).sum() / weight.sum())


def of_monomial(k: int, centre: float, t: float, gamma: float) -> float:
    """lambda_n of w1 w2^k at (0, centre): K is w2^(2k) w1^2/2, with w2 = e^s and -e^s."""
    y = np.concatenate([np.exp(GRID), -np.exp(GRID)])
    return mean_gain((y ** (2 * k))[:, None], np.log(abs(y)) - gamma * (y - centre) ** 2 / 2, 1, t, gamma)


def of_product(inputs: int, hidden: int, outputs: int, t: float, gamma: float) -> float:
    """lambda_n of B A at 0, of one or two hidden units: the eigenvalues of A A' have Wishart's law."""
    x = np.stack(np.meshgrid(*[np.exp(GRID)] * hidden), -1)
    log_density = ((inputs - hidden + 1) / 2 * np.log(x) - gamma * x / 2).sum(-1)
    if hidden == 2:
        with np.errstate(divide="ignore"):
            log_density += np.log(abs(x[..., 0] - x[..., 1]))
    return mean_gain(x, log_density, outputs, t, gamma)


def aoyagi(inputs: int, hidden: int, outputs: int, rank: int) -> tuple[float, int]:
    """lambda and its multiplicity of B A of a true rank: Aoyagi & Watanabe 2005, the main theorem."""
    M, H, N, r = inputs, hidden, outputs, rank
    if N + r <= M + H and M + r <= N + H and H + r <= M + N:
        odd = (M + H + N + r) % 2
        return (2 * (H + r) * (M + N) - (M - N) ** 2 - (H + r) ** 2 + odd) / 8, 1 + odd
    if M + H < N + r:
        return (H * M - H * r + N * r) / 2, 1
    if N + H < M + r:
        return (H * N - H * r + M * r) / 2, 1
    return M * N / 2, 1


# ---- the models


def product(inputs: int, hidden: int, outputs: int, w: Sequence[Any]) -> list:
    """B A by rows, of w = (A, B)."""
    A, B = w[: hidden * inputs], w[hidden * inputs :]
    return [
        sum(B[i * hidden + k] * A[k * inputs + j] for k in range(hidden)) for i in range(outputs) for j in range(inputs)
    ]


def monomial(k: int, centre: float, coefficient: float, multiplicity: int, **settings: Any) -> Model:
    """w1 w2^k at (0, centre)."""
    words = f"w1 w2{f'^{k}' if k > 1 else ''} at (0, {centre:g})"
    exact = partial(of_monomial, k, centre)
    return Model(words, 1, (0.0, centre), lambda w: [w[0] * w[1] ** k], coefficient, multiplicity, exact, **settings)


def network(inputs: int, hidden: int, outputs: int, rank: int) -> Model:
    """B A with `rank` singular values that are 1, at balanced factors."""
    A = [float(k == j < rank) for k in range(hidden) for j in range(inputs)]
    B = [float(i == k < rank) for i in range(outputs) for k in range(hidden)]
    shape = inputs, hidden, outputs
    exact = None if rank else partial(of_product, *shape)
    words = f"linear network {inputs}-{hidden}-{outputs} at rank {rank}"
    return Model(words, inputs, (*A, *B), partial(product, *shape), *aoyagi(*shape, rank), exact, step=0.2)


MODELS = {
    "regular": Model("regular, d = 4", 4, (0.0,) * 4, list, 2.0, 1, lambda t, gamma: 2 * t / (t + gamma)),
    "cross": monomial(1, 0.0, 1 / 2, 2),
    "cusp": monomial(2, 0.0, 1 / 4, 1, n=10_000_000, step=0.03),  # the curvature is n beta w2^4
    "arm": monomial(2, 1.0, 1 / 2, 1, n=1_000_000, gamma=100.0),
    "product": network(3, 2, 3, 0),
    "rank one": network(4, 2, 3, 1),
}


# ---- estimates

MOMENTA, EULER = "underdamped-langevin", "sgld"
STEPS = {MOMENTA: 4_000_000, EULER: 500_000, "mala": 500_000, "hmc": 50_000}  # hmc: of ten words each


def estimate(
    study: Study,
    model: str,
    sampler: str = MOMENTA,
    step: float | None = None,
    n: int | None = None,
    gamma: float | None = None,
    batch: int | None = None,
    steps: int | None = None,
    pairs: int = 0,
) -> dict:
    """lambda_n by chains from w*, with its Monte Carlo error, and what `report` says; with `pairs`, `accuracy` too.

    `step`: h sqrt(n beta) with momenta, the root of h n beta without; with `n` and `gamma` by default the model's.
    """
    of = MODELS[model]
    n, gamma, step = n or of.n, gamma or of.gamma, step or of.step

    def gain(w: torch.Tensor) -> torch.Tensor:
        return of.gain(n, w)

    steps = study.of_scale(2000, steps or STEPS[sampler], 4 * (steps or STEPS[sampler]))
    rate = step / math.sqrt(tempered(n))
    draws = samplers.sample(
        sampler,
        **of.energy(n, gamma, batch),
        init=torch.tensor(of.centre, dtype=torch.float64),
        chains=CHAINS,
        steps=steps,
        warmup=steps // 5,
        thin=max(1, steps // DRAWS),
        step_size=rate if sampler in (MOMENTA, "hmc") else rate**2,
        metropolis=samplers.Metropolis(repeat=10) if sampler == "hmc" else None,
        progress=False,
    )
    if draws.diverged:
        raise RecipeError(f"{model}, {sampler}", f"{len(draws.diverged)} chains are lost", do="Take a smaller step.")
    gains = torch.func.vmap(torch.func.vmap(gain))(draws["theta"])
    row = samplers.Draws({"gain": gains}, info={}).summary().loc["gain"]
    result = {"value": float(row["mean"]), "error": float(row["mcse_mean"])}
    result |= {"report": draws.report(of=gain).verdict, "coordinates": draws.report().verdict}
    if pairs:
        counts = study.of_scale({"chains": 8, "steps": 40}, *[{"chains": pairs, "steps": 4000}] * 2)
        figure = draws.accuracy(of=gain, **counts).by_name()["gain", "mean"]
        biases = [(getattr(figure, source), getattr(figure, f"{source}_error")) for source in ("step", "minibatches")]
        stated = [bias for bias in biases if bias[0] is not None]
        result["stated"] = sum(bias for bias, _ in stated)
        result["stated_error"] = math.hypot(*(error for _, error in stated))
    return result


# ---- rows


def claims(study: Study) -> list[Claim]:
    """Rows on lambda itself, on what n and gamma make of it, and on what samplers do and state."""
    picture(study)
    rows = [of_model(MODELS[name], study.result(estimate, model=name)) for name in MODELS]
    rows.append(of_control(*(study.result(estimate, model="rank one", **settings) for settings in ({}, CONTROL))))
    rows += [of_free_energy(), of_localisation(), of_standstill(study.result(estimate, **STANDING))]
    rows += [of_law(words, study.results(estimate, runs), runs) for words, runs in RUNS.items()]
    slow = {"model": "product", "sampler": EULER, "step": 0.1, "pairs": 250}
    return [*rows, of_mixing(study.result(estimate, **slow))]


def picture(study: Study) -> None:
    """lambda_n over gamma, at two n: a point on an arm has a plateau where gamma is local and n is large."""
    gammas = np.logspace(-2, 4, 49)
    with study.figure("coefficients", columns=2, sharey=True) as panels:
        for axes, n in zip(panels, (10_000, 1_000_000)):
            for of in (MODELS[name] for name in ("cross", "cusp", "arm")):
                axes.semilogx(gammas, [of.exact(tempered(n), gamma) for gamma in gammas], label=of.words)
            axes.set(title=f"n = {n:,}", xlabel="gamma", yticks=(0, 1 / 4, 1 / 2))
            axes.grid(axis="y")
        panels[0].set_ylabel("lambda_n")
        panels[1].legend()


def of_model(of: Model, result: dict) -> Claim:
    """An estimate beside lambda, and beside lambda_n where that is known."""
    value, error = result["value"], result["error"]
    ours, elsewhere = f"{value:.4f} +- {error:.4f}", ""
    if of.exact is not None:
        exact = of.exact(tempered(of.n), of.gamma)
        ours += f"; by quadrature {exact:.4f}"
        if abs(value - exact) < 3 * error:
            elsewhere = f"lambda_n at n = {of.n:,}"
    holds = abs(value - of.coefficient) < WITHIN * of.coefficient
    why = f"n = {of.n:,}, gamma = {of.gamma:g}" + ("" if of.multiplicity == 1 else ": log log n, see below")
    printed = f"{of.coefficient:g}, m = {of.multiplicity}"
    return Claim(f"{of.words}: within 5 % of lambda", printed, ours, Kind.CLOSED_FORM, holds, why, elsewhere=elsewhere)


CONTROL: dict[str, Any] = {"sampler": "hmc", "step": 0.2}


def of_control(result: dict, accepted: dict) -> Claim:
    """Where no quadrature is, momenta beside accepted HMC."""
    words = f"{MODELS['rank one'].words}: as accepted HMC"
    ours = f"{result['value']:.4f} +- {result['error']:.4f}"
    theirs = f"{accepted['value']:.4f} +- {accepted['error']:.4f}"
    agree = abs(result["value"] - accepted["value"]) < 3 * math.hypot(result["error"], accepted["error"])
    return Claim(words, f"HMC: {theirs}", ours, Kind.COMPARISON, agree)


def of_free_energy() -> Claim:
    """What log log n takes off at the crossing: K_0 of gamma^2/(4 n beta) is the integral."""
    cross, sizes = MODELS["cross"], (1e4, 1e6, 1e12)
    exact = [cross.exact(tempered(n), 1.0) for n in sizes]
    formula = [1 / 2 - 1 / (math.log(8 * tempered(n)) - np.euler_gamma) for n in sizes]
    ours = ", ".join(f"{x:.4f} ({y:.4f})" for x, y in zip(exact, formula))
    return Claim(
        "w1 w2: lambda_n is 1/2 - 1/(log(8 n beta/gamma^2) - .577), at n = 10^4, 10^6, 10^12",
        "lambda log n - (m - 1) log log n",
        f"quadrature (formula): {ours}",
        Kind.CLOSED_FORM,
        max(abs(x / y - 1) for x, y in zip(exact, formula)) < 0.01,
        "of m = 2 no estimate at one beta is within 5 % of lambda before n beta = 5e16, whatever the sampler",
    )


def of_localisation() -> Claim:
    """The coefficient of a point on an arm, beside a worse singularity at distance 1."""
    arm, sizes, gammas = MODELS["arm"], (10_000, 1_000_000), (1.0, 10.0, 100.0, 1000.0)
    of_n = [[arm.exact(tempered(n), gamma) for gamma in gammas] for n in sizes]
    ours = "; ".join(f"n = {n:,}: " + ", ".join(f"{x:.3f}" for x in row) for n, row in zip(sizes, of_n))
    return Claim(
        f"{arm.words}: gamma = 1 is local (gamma = 1, 10, 100, 1000)",
        f"{arm.coefficient:g}",
        ours,
        Kind.CLOSED_FORM,
        abs(of_n[0][0] / arm.coefficient - 1) < WITHIN,
        "the origin, of 1/4, is at distance 1: gamma must be large beside that, and small beside n beta",
        elsewhere="gamma = 100 at n = 1,000,000",
    )


STANDING = {"model": "arm", "sampler": EULER, "step": 0.1, "n": N, "gamma": 1.0, "steps": 2000}


def of_standstill(result: dict) -> Claim:
    """A chain that is local as it has not moved: the number is that of w*, the law is not."""
    exact = MODELS["arm"].exact(tempered(N), 1.0)
    ours = f"{result['value']:.3f} +- {result['error']:.3f}, the law has {exact:.3f}; {told(result)}"
    holds = "R-hat of theta" in result["coordinates"]
    return Claim(
        "... there, 2000 steps of SGLD at gamma = 1: report() says that chains are not of one law",
        "-",
        ours,
        Kind.CLOSED_FORM,
        holds,
        "it is the short run that is local, not the law: the number depends on the number of steps",
    )


def told(result: dict) -> str:
    """What the report says of the loss, and of the coordinates."""
    return f"of the loss: {first(result['report'])}; of w: {first(result['coordinates'])}"


def first(verdict: str) -> str:
    """The first finding of a report, less its cure."""
    return verdict.split(", above")[0].split("; ")[0].removeprefix("Change first: ").rstrip(".")


def runs_of(model: str, sampler: str, *settings: dict) -> list[dict]:
    """Settings of estimates of a model by a sampler."""
    return [{"model": model, "sampler": sampler, **setting} for setting in settings]


WITH_PAIRS: list[dict] = [{"step": 0.2, "pairs": 250}, {"step": 0.1, "pairs": 250}]
ON_BATCHES: list[dict] = [{"step": 0.1, "batch": size, "steps": 100_000, "pairs": 64} for size in (50, 200)]
RUNS: dict[str, list[dict]] = {
    "w1 w2, SGLD": runs_of("cross", EULER, *WITH_PAIRS),
    "3-2-3, SGLD": runs_of("product", EULER, *WITH_PAIRS),
    "w1 w2, underdamped": runs_of("cross", MOMENTA, {"step": 0.4, "steps": 500_000, "pairs": 250}),
    "3-2-3, underdamped": runs_of("product", MOMENTA, {"step": 0.4, "steps": 500_000, "pairs": 250}),
    "regular, SGLD on minibatches": runs_of("regular", EULER, *ON_BATCHES),
    "w1 w2, SGLD on minibatches": runs_of("cross", EULER, *ON_BATCHES),
    "w1 w2, accepted MALA and HMC": [*runs_of("cross", "mala", {"step": 0.2}), *runs_of("cross", "hmc", {"step": 0.2})],
    "3-2-3, accepted MALA and HMC": [
        *runs_of("product", "mala", {"step": 0.2}),
        *runs_of("product", "hmc", {"step": 0.2}),
    ],
}


def of_law(words: str, results: list[dict], runs: list[dict]) -> Claim:
    """The bias beside quadrature, and what `accuracy` states of it: 0 for accepted steps."""
    of = MODELS[runs[0]["model"]]
    exact = of.exact(tempered(of.n), of.gamma)
    parts, holds = [], True
    for result, run in zip(results, runs):
        bias, error = result["value"] - exact, result["error"]
        stated, its_error = result.get("stated", 0.0), result.get("stated_error", 0.0)
        holds &= abs(bias - stated) < 3 * math.hypot(error, its_error)
        power = "h sqrt(n beta)" if run["sampler"] in (MOMENTA, "hmc") else "h n beta"
        size = run["step"] if run["sampler"] in (MOMENTA, "hmc") else run["step"] ** 2
        batch = f", batches of {run['batch']}" if "batch" in run else ""
        of_pairs = f", stated {stated:+.4f} +- {its_error:.4f}" if run.get("pairs") else ""
        parts.append(f"{bias:+.4f} +- {error:.4f}{of_pairs} ({power} = {size:.2g}{batch})")
    claim = "the bias is what accuracy(of=) states" if runs[0].get("pairs") else "no bias"
    why = "the noise of batches heats by h n^2 beta^2/(2 B) of 1" if "batch" in runs[0] else ""
    return Claim(f"{words}: {claim}", f"lambda_n = {exact:.4f}", "; ".join(parts), Kind.CLOSED_FORM, holds, why)


def of_mixing(result: dict) -> Claim:
    """The loss along the fibres of M(w) is constant, so that it mixes where w does not."""
    holds = result["report"].startswith("All") and "R-hat of theta" in result["coordinates"]
    return Claim(
        "3-2-3, SGLD: report(of=loss) passes where report() does not",
        "-",
        told(result),
        Kind.CLOSED_FORM,
        holds,
        "chains that have not gone round GL(2) have the same loss: ask of the loss, and of w whether they moved at all",
    )


EXPERIMENT = Experiment(
    "coefficients", "Local learning coefficients with exact answers", claims, seeds=f"{CHAINS} chains"
)
