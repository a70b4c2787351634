"""i-SGD where the posterior is known: Franzese, Candelieri, Filippone & Michiardi (2021), Corollary 1 and section 3.

i-SGD steps by 1/lambda and injects what the noise of the gradient lacks of 2 lambda; Algorithm 2 estimates that noise
by b, a running average of g^2/2, and takes lambda = sum b once, after a warm-up. Beside it SGLD, which injects all of
2 lambda, and VSGD, which injects nothing: its learning rate, the optimal one over the dimension d as in the paper's
experiments, is 2/tr V_g, which is 1/lambda. So all three make steps of one length, and differ in their noise alone.

The targets: a unit normal in 10 coordinates, whose gradients have V_g from 20 to 320, and Bayesian logistic regression
on Statlog's Australian credit data, prior N(0, 100), with batches; its posterior is known from HMC with acceptance. The
variances are of the coordinates, of the logistic regression along the eigenvectors of the posterior's covariance.
"""

import numpy
import torch
from datasets import read_npz
from study import Experiment, Study
from torch import Tensor
from torch.nn.functional import softplus
from verdicts import Claim, Kind

import samplers

COVARIANCES = torch.logspace(0, 4, 10, base=2, dtype=torch.float64) * 20  # V_g of the normal's coordinates
METHODS = ("i-SGD", "i-SGD, T = .01", "VSGD", "SGLD")
FILE = "logistic/australian.npz"
BATCH = 128


def settings_of(name: str, h: float | None, warmup: int) -> dict:
    """The recipe at the step 1/lambda, which i-SGD finds and the others are given."""
    match name:
        case "i-SGD":
            return dict(recipe="isgd", step_size=1.0, warmup_steps=warmup, keep=["b", "lam"])
        case "i-SGD, T = .01":
            return settings_of("i-SGD", h, warmup) | {"temperature": 0.01}
        case "VSGD":
            return dict(recipe="sgld", step_size=h, temperature=0.0)
        case "SGLD":
            return dict(recipe="sgld", step_size=h)
    raise KeyError(name)


def noisy_normal(theta: Tensor, z: tuple[Tensor, ...]) -> Tensor:
    """U = |theta|^2/2, with a gradient of covariance V_g."""
    return theta.square().sum() / 2 + (z[0][0] * COVARIANCES.sqrt() * theta).sum()


def quantiles(rows: int = 8192) -> Tensor:
    """Columns of normal quantiles in random orders, of mean 0 and variance 1."""
    z = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(rows, dtype=torch.float64) + 0.5) / rows)
    generator = torch.Generator().manual_seed(0)
    return torch.stack([z[torch.randperm(rows, generator=generator)] for _ in COVARIANCES], 1) / z.std(correction=0)


def gaussian(study: Study, name: str, h: float | None, chains: int, steps: int) -> dict:
    """Var theta over that of the target, by coordinate, with lambda and the share of b that is clipped."""
    init = torch.randn(chains, len(COVARIANCES), dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return run(name, h, noisy_normal, (quantiles(),), 1, init, torch.eye(len(COVARIANCES)).double(), steps)


def run(
    name: str, h: float | None, energy: object, data: tuple, batch: int, init: Tensor, directions: Tensor, steps: int
) -> dict:
    """E of the squares along directions that have the mean square 1 under the target, from a start that has it too.

    The first 200 steps are the warm-up of lambda; what is kept is the later half.
    """
    settings = settings_of(name, h, warmup=200)
    draws = samplers.sample(
        energy=energy,
        data=data,
        batch_size=batch,
        init=init,
        chains=len(init),
        steps=steps,
        warmup=steps,
        thin=20,
        seed=1,
        progress=False,
        **settings,
    )
    sound = [k for k in range(len(init)) if k not in draws.diverged]
    squares = (draws["theta"][sound] @ directions).square().mean(1)
    result = {
        "ratios": squares.mean(0).tolist(),
        "errors": (squares.std(0) / len(sound) ** 0.5).tolist(),
        "diverged": len(draws.diverged),
    }
    if "b" in draws:
        lam = draws["lam"][sound].reshape(len(sound), -1, 1)
        result["lambda"] = [float(1 / (1 / lam).mean()), float(lam[:, 0].std())]
        result["clipped"] = float((draws["b"][sound] > lam).double().mean())
    return result


# ---- logistic regression


def australian(study: Study) -> tuple[Tensor, Tensor]:
    """Standardised columns, and 0 or 1."""
    X, y = (torch.tensor(a, dtype=torch.float64) for a in read_npz(study.data, FILE, "X", "y"))
    return (X - X.mean(0)) / X.std(0), y


def logistic(data: tuple[Tensor, Tensor]) -> object:
    """U~ of a batch: the sum over all rows of -log p(y | x, theta), and the prior N(0, 100)."""
    rows = len(data[1])

    def energy(theta: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        signs = 1 - 2 * y
        return rows * softplus(signs * (x @ theta)).mean() + theta.square().sum() / 200

    return energy


def posterior(study: Study, chains: int, steps: int) -> dict:
    """Mean and covariance by HMC, accepted or rejected."""
    data = australian(study)
    energy = logistic(data)
    draws = samplers.sample(
        samplers.HMC,
        lambda theta: energy(theta, data),
        init=torch.zeros(data[0].shape[1], dtype=torch.float64),
        chains=chains,
        steps=steps,
        warmup=steps // 5,
        step_size=0.05,
        metropolis=samplers.Metropolis(repeat=12),
        seed=1,
        progress=False,
    )
    theta = draws["theta"].flatten(0, 1)
    r_hat = float(samplers.diagnostics.r_hat(draws, "theta").max())
    return {"mean": theta.mean(0).tolist(), "covariance": theta.T.cov().tolist(), "r_hat": r_hat}


def regression(study: Study, name: str, h: float | None, chains: int, steps: int, hmc: int) -> dict:
    """The mean squares about the posterior's mean, over its variances, along its axes; widest first."""
    data = australian(study)
    truth = study.result(posterior, chains=4, steps=hmc)
    mean, covariance = (torch.tensor(truth[key], dtype=torch.float64) for key in ("mean", "covariance"))
    values, vectors = torch.linalg.eigh(covariance)
    vectors, deviations = vectors.flip(1), values.flip(0).sqrt()
    generator = torch.Generator().manual_seed(1)
    around = torch.randn(chains, len(mean), dtype=torch.float64, generator=generator) * deviations @ vectors.T
    energy = logistic(data)
    return run(name, h, lambda z, batch: energy(z + mean, batch), data, BATCH, around, vectors / deviations, steps)


# ---- claims


def claims(study: Study) -> list[Claim]:
    """Of the normal, and of the logistic regression."""
    size = dict(zip(("chains", "steps"), study.of_scale((50, 1000), (400, 6000), (4000, 20_000))))
    fewer = size | {"chains": size["chains"] // 4}
    normal, of_data = {}, {}
    hmc = study.of_scale(500, 5000, 100_000)
    truth = study.result(posterior, chains=4, steps=hmc)
    for name in METHODS:
        normal[name] = study.result(gaussian, name=name, h=step_of(normal), **size)
        of_data[name] = study.result(regression, name=name, h=step_of(of_data), hmc=hmc, **fewer)
    picture(study, normal, of_data)
    return [*of_normal(normal), *of_regression(of_data, truth)]


def step_of(results: dict) -> float | None:
    """1/lambda, as i-SGD has found it, to three digits."""
    return float(f"{1 / results['i-SGD']['lambda'][0]:.3g}") if results else None


def mean_of(result: dict) -> float:
    """Over the coordinates."""
    return float(numpy.mean(result["ratios"]))


def of_normal(results: dict) -> list[Claim]:
    """The closed forms: Var is V_g/tr V_g for VSGD, 1 + V_g/tr V_g for SGLD, to the leading order."""
    shares = (COVARIANCES / COVARIANCES.sum()).tolist()
    isgd = results["i-SGD"]
    stray = max(abs(x - 1) for x in isgd["ratios"])
    error = max(isgd["errors"])
    rough = {name: max(abs(x - s) for x, s in zip(results[name]["ratios"], shares)) for name in ("VSGD",)}
    dimension = len(shares)
    return [
        Claim(
            "i-SGD samples the posterior: on a normal, k Var = 1 in every coordinate",
            "Corollary 1",
            f"within {100 * stray:.1f} % (+- {100 * error:.1f}); {100 * isgd['clipped']:.1f} % of b clipped; "
            f"lambda {isgd['lambda'][0]:.0f}, sd over chains {isgd['lambda'][1]:.0f}",
            Kind.CLOSED_FORM,
            stray < max(0.06, 4 * error),
            "" if stray < 0.06 else "lambda is one noisy draw; where b is above it, it is clipped",
        ),
        Claim(
            "VSGD at the learning rate over d is colder: on average by the dimension",
            f"1/d = {1 / dimension:.2f}, derived",
            f"{mean_of(results['VSGD']):.3f}; by coordinate within {rough['VSGD']:.3f} of V_g/tr V_g",
            Kind.CLOSED_FORM,
            abs(mean_of(results["VSGD"]) * dimension - 1) < 0.1,
        ),
        Claim(
            "SGLD at the same step is hotter, by the noise of its gradient: 1 + 1/d",
            f"{1 + 1 / dimension:.2f}, derived",
            f"{mean_of(results['SGLD']):.3f}",
            Kind.CLOSED_FORM,
            abs(mean_of(results["SGLD"]) - 1 - 1 / dimension) < 0.05,
        ),
        Claim(
            "i-SGD at T = .01, as in the paper's tables, has the temperature .01",
            "T = .01",
            f"mean {mean_of(results['i-SGD, T = .01']):.3f}, {min(results['i-SGD, T = .01']['ratios']):.3f} to "
            f"{max(results['i-SGD, T = .01']['ratios']):.3f}; VSGD {mean_of(results['VSGD']):.3f}",
            Kind.CLOSED_FORM,
            mean_of(results["i-SGD, T = .01"]) < 0.02,
            "nothing injected is still the gradient's noise: the floor is b/lambda, 1/d on average, which is VSGD",
        ),
    ]


def of_regression(results: dict, truth: dict) -> list[Claim]:
    """Beside HMC."""
    ratios = {name: results[name]["ratios"] for name in METHODS}
    isgd = results["i-SGD"]

    def text(name: str) -> str:
        return f"{name} {mean_of(results[name]):.2f} ({min(ratios[name]):.2f} to {max(ratios[name]):.2f})"

    off = {name: abs(mean_of(results[name]) - 1) for name in METHODS}
    return [
        Claim(
            "... and on logistic regression, Australian, beside HMC: variances along the axes over its own",
            "Corollary 1",
            f"{text('i-SGD')}; {100 * isgd['clipped']:.1f} % of b clipped, lambda {isgd['lambda'][0]:.0f}, "
            f"sd over chains {isgd['lambda'][1]:.0f}, {isgd['diverged']} lost; R-hat of HMC {truth['r_hat']:.3f}",
            Kind.COMPARISON,
            max(abs(x - 1) for x in ratios["i-SGD"]) < 0.1,
            "b is the diagonal of a noise that is correlated and depends on theta; the start is a normal law",
        ),
        Claim(
            "i-SGD is nearer to the posterior than VSGD and SGLD at the same step",
            "Corollary 1 beside section 4",
            "; ".join(text(name) for name in METHODS[1:]),
            Kind.COMPARISON,
            off["i-SGD"] < min(off["VSGD"], off["SGLD"]),
        ),
    ]


def picture(study: Study, normal: dict, of_data: dict) -> None:
    """Variances by coordinate."""
    with study.figure("variances", columns=2) as panels:
        for axes, results, title in zip(panels, (normal, of_data), ("normal", "Australian")):
            for name in METHODS:
                axes.plot(results[name]["ratios"], "o-", label=name)
            axes.axhline(1, color="black", linestyle="--")
            axes.set(xlabel="axis", ylabel="variance over that of the posterior", title=title, yscale="log")
            axes.legend(fontsize=7)


EXPERIMENT = Experiment(
    "isgd-gaussian",
    "i-SGD (Franzese et al. 2021), Corollary 1: a normal, and logistic regression beside HMC",
    claims,
    files=(FILE,),
    seeds="400 chains on the normal, 100 chains on the regression beside 4 chains of HMC",
)
