"""Thermostats under gradient noise of unknown size: Heek & Kalchbrenner (2019), sections 2.2 and 2.3.

The targets are a Gaussian and a quartic, on sites that are all alike; the gradient of a site has noise of its own, of
covariance V_g, which no thermostat is told. The paper's step is used, a kick with friction (F) and a drift (A'), of
ATMC with m = 2 and Dmin = 0.5 at h = 0.05. SGNHT and mSGNHT have m = 1 and the h and A of the same steps and friction;
mSGNHT is the constant alpha that the paper compares with. SGHMC is told V_g, as a control, or is not, which is the
failure. The paper runs at D = 105 beside sd(xi) = 1: how fast chains move is asked for D = .5, 2 and 10, and for noise
of up to four times D.

The paper: the law of theta is right for every constant V_g, and xi is N(h V_g/(2m), 1) (2.2). With the friction
max(xi, D), that of a constant alpha being now slow, now below 0, no momenta run away (2.3).
"""

import math
from collections.abc import Callable

import torch
from scipy.integrate import quad
from study import Experiment, Study
from torch import Tensor
from verdicts import Claim, Kind

import samplers

REGIME = "D >> sd(xi) = 1, and noise of at most D"
H, M, D = 0.05, 2.0, 0.5
COVARIANCES = (0.0, 100.0, 400.0)  # V_g of every evaluation
RATIOS = (0.0, 0.25, 0.5, 1.0, 4.0)  # of the noise's share of the friction, h V_g/(2m), to D
FRICTIONS = (0.5, 2.0, 10.0)  # D
SPIKED_AT = (0.05, 0.1, 0.2)  # step sizes
SITES = 8
TARGETS: dict[str, Callable] = {"gaussian": lambda x: x**2 / 2, "quartic": lambda x: x**4 / 4 + x**2 / 2}


def second_moment(target: str) -> float:
    """E x^2 of exp(-U), by quadrature."""

    def density(x: float) -> float:
        return math.exp(-TARGETS[target](x))

    return quad(lambda x: x**2 * density(x), -12, 12)[0] / quad(density, -12, 12)[0]


# The noise is a datum: U~(theta, z) = U(theta) + sd sum_i z_i f(theta_i) has the gradient U' + sd z f'.


def normal_data(rows: int = 8192) -> Tensor:
    """Columns of normal quantiles in random orders, of mean 0 and variance 1."""
    z = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(rows, dtype=torch.float64) + 0.5) / rows)
    return shuffled(z / z.std(correction=0))


def spiked_data(rows: int = 8192, every: int = 512) -> Tensor:
    """The same variance in one row of so many, of either sign; the others are 0."""
    z = torch.zeros(rows, dtype=torch.float64)
    z[::every] = every**0.5
    z[:: 2 * every] *= -1
    return shuffled(z)


def shuffled(z: Tensor) -> Tensor:
    """Its values in another order for each site."""
    generator = torch.Generator().manual_seed(0)
    return torch.stack([z[torch.randperm(len(z), generator=generator)] for _ in range(SITES)], 1)


def antiderivative(x: Tensor) -> Tensor:
    """Of sqrt(1 + x^2)."""
    return (x * (1 + x**2).sqrt() + torch.asinh(x)) / 2


NOISES: dict[str, tuple[Callable, Callable]] = {  # f of all sites, and the data
    "equal": (lambda x: x, normal_data),
    "by site": (lambda x: x * (torch.arange(SITES) % 2) * 2**0.5, normal_data),  # none at every second site
    "by state": (antiderivative, normal_data),  # V_g (1 + theta^2)
    "spikes": (lambda x: x, spiked_data),
}


def settings_of(name: str, covariance: float, h: float, friction: float) -> dict:
    """The sampler, its step size and parameters; `friction`: D."""
    kick = h * covariance / 2  # the friction that the noise supplies, mass per unit of time
    match name:
        case "ATMC":
            return dict(recipe="atmc", step_size=h, scheme="F A'", m=M, Dmin=friction)
        case "SGNHT" | "mSGNHT":
            return dict(recipe=name.lower(), step_size=h / M**0.5, scheme="F A'", A=friction * M**0.5)
        case "SGHMC, V_g known":
            return dict(recipe="sghmc", step_size=h, scheme="A F", m=M, C=friction * M + kick, B=kick)
        case "SGHMC, V_g unknown":
            return dict(recipe="sghmc", step_size=h, scheme="A F", m=M, C=friction * M)
    raise KeyError(name)


def moments(
    study: Study,
    name: str,
    target: str,
    covariance: float,
    chains: int,
    steps: int,
    noise: str = "equal",
    h: float = H,
    friction: float = D,
) -> dict:
    """E theta^2 with its standard error over chains, the law of xi, the autocorrelation time in steps, momenta."""
    U = TARGETS[target]
    f, data = NOISES[noise]
    thin = 5
    settings = settings_of(name, covariance, h, friction)
    thermostat = settings["recipe"] != "sghmc"
    draws = samplers.sample(
        energy=lambda theta, z: U(theta).sum() + covariance**0.5 * (z[0] * f(theta)).sum(),
        data=data(),
        batch_size=1,
        init=torch.zeros(SITES, dtype=torch.float64),
        chains=chains,
        steps=steps,
        warmup=steps // 2,
        thin=thin,
        seed=1,
        keep=["p", "xi"] if thermostat else ["p"],
        progress=False,
        **settings,
    )
    theta, p = draws["theta"], draws["p"] / settings.get("m", 1.0) ** 0.5
    by_site = (theta**2).mean(1)  # (chains, sites)
    xi = draws["xi"] * (M**-0.5 if settings["recipe"] != "atmc" else 1.0) if thermostat else torch.zeros(1)
    return {
        "square": float(by_site.mean()),
        "error": float(by_site.mean(1).std() / chains**0.5),
        "by site": by_site.mean(0).tolist(),
        "xi": [float(xi.mean()), float(xi.std(correction=0))],
        "time": autocorrelation_time(theta.flatten(2)) * thin,
        "fastest": float(p.abs().max()),
        "diverged": len(draws.diverged),
    }


def autocorrelation_time(x: Tensor) -> float:
    """1 + 2 sum of the autocorrelations of draws `(chains, draws, sites)` of mean 0, over all of them, to their end."""
    length = x.shape[1]
    power = torch.fft.rfft(x, 2 * length, dim=1).abs().square().mean((0, 2))
    rho = torch.fft.irfft(power)[:length] / torch.arange(length, 0, -1)
    pairs = (rho[:-1] + rho[1:])[::2] / rho[0]
    return float(2 * pairs[: int((pairs < 0.01).nonzero()[0]) if (pairs < 0.01).any() else None].sum() - 1)


# ---- claims

THERMOSTATS = ("ATMC", "mSGNHT", "SGNHT")
ALL = (*THERMOSTATS, "SGHMC, V_g known", "SGHMC, V_g unknown")


def claims(study: Study) -> list[Claim]:
    """That of 2.2, with its assumptions one by one, and that of 2.3."""
    size = dict(zip(("chains", "steps"), study.of_scale((40, 400), (200, 6000), (2000, 20_000))))
    constant = {
        (name, target, v): study.result(moments, name=name, target=target, covariance=v, **size)
        for target in TARGETS
        for v in COVARIANCES
        for name in ALL
    }
    other_noise = {
        (noise, name): study.result(moments, name=name, target="quartic", covariance=100.0, noise=noise, **size)
        for noise in ("by site", "by state")
        for name in THERMOSTATS
    }
    times = {
        (name, d, r): study.result(
            moments, name=name, target="gaussian", covariance=2 * M * d * r / H, friction=d, **size
        )["time"]
        for d in FRICTIONS
        for name in ("ATMC", "mSGNHT")
        for r in RATIOS
    }
    spikes = {
        (name, h): study.result(moments, name=name, target="quartic", covariance=40.0, noise="spikes", h=h, **size)
        for name in ("ATMC", "mSGNHT")
        for h in SPIKED_AT
    }
    picture(study, constant, times)
    return [*of_constant_noise(constant), *of_other_noise(other_noise), *of_friction(times, spikes)]


def off(result: dict, target: str) -> float:
    """The relative error of E theta^2."""
    return result["square"] / second_moment(target) - 1


def percent(values: list[float]) -> str:
    """The range of relative errors."""
    return f"{100 * min(values):+.1f} to {100 * max(values):+.1f} %"


def of_constant_noise(results: dict) -> list[Claim]:
    """One V_g for all."""
    bias = {name: [off(r, target) for (n, target, _), r in results.items() if n == name] for name in ALL}
    worst = {name: max(map(abs, values)) for name, values in bias.items()}
    hot = results["SGHMC, V_g unknown", "gaussian", COVARIANCES[-1]]["square"]
    expected = 1 + H * COVARIANCES[-1] / (2 * D * M)
    return [
        Claim(
            "ATMC, SGNHT, mSGNHT: E theta^2 is right for V_g = 0, 100, 400, which they are not told",
            "2.2, derived",
            "; ".join(f"{name} {percent(bias[name])}" for name in THERMOSTATS),
            Kind.CLOSED_FORM,
            max(worst[name] for name in THERMOSTATS) < 0.03,
        ),
        Claim(
            "... as it is of SGHMC that is told V_g",
            "-",
            percent(bias["SGHMC, V_g known"]),
            Kind.CLOSED_FORM,
            worst["SGHMC, V_g known"] < 0.03,
        ),
        Claim(
            "SGHMC that is not told has the temperature 1 + h V_g/(2 gamma m)",
            f"{expected:.1f} at V_g = 400",
            f"{hot:.2f}",
            Kind.CLOSED_FORM,
            abs(hot / expected - 1) < 0.05,
        ),
        law_of_xi({(target, v): r["xi"] for (name, target, v), r in results.items() if name == "ATMC"}),
    ]


def law_of_xi(laws: dict) -> Claim:
    """Of ATMC; mean and standard deviation by target and V_g."""
    stray = max(abs(mean - H * v / (2 * M)) for (_, v), (mean, _) in laws.items())
    spread = [sd for _, sd in laws.values()]
    means = ", ".join(f"{mean:.2f}" for mean, _ in laws.values())
    return Claim(
        "xi is N(h V_g/(2m), 1)",
        ", ".join(f"{H * v / (2 * M):.2f}" for v in COVARIANCES),
        f"{means}; sd {min(spread):.2f} to {max(spread):.2f}",
        Kind.CLOSED_FORM,
        stray < 0.1 and max(abs(sd - 1) for sd in spread) < 0.1,
    )


def of_other_noise(results: dict) -> list[Claim]:
    """What the derivation assumes."""
    exact = second_moment("quartic")

    def errors(noise: str) -> dict[str, list[float]]:
        return {n: [x / exact - 1 for x in r["by site"]] for (k, n), r in results.items() if k == noise}

    by_site, by_state = errors("by site"), errors("by state")
    worst = max(abs(x) for name in ("ATMC", "mSGNHT") for x in by_site[name])
    return [
        Claim(
            "... and for V_g that differs by parameter, where each has its xi (0 and 200)",
            "2.2, D diagonal",
            "; ".join(f"{name} {percent(values)}" for name, values in by_site.items()),
            Kind.COMPARISON,
            worst < 0.05,
            "SGNHT has one xi for all: sites with noise are too hot, those without too cold",
        ),
        Claim(
            "... and for V_g that depends on theta, 100 (1 + theta^2)",
            "2.2 assumes a constant V_g",
            "; ".join(f"{name} {percent(values)}" for name, values in by_state.items()),
            Kind.CLOSED_FORM,
            max(abs(x) for values in by_state.values() for x in values) < 0.03,
            "xi cancels the mean of V_g, not its value where theta is",
            elsewhere="a constant V_g",
        ),
    ]


def of_friction(times: dict, spikes: dict) -> list[Claim]:
    """How fast chains move, and how far momenta go."""
    below = 0.5 * math.erfc(D * (M / 2) ** 0.5)  # xi is N(A, 1)
    fastest = {name: [r["fastest"] for (n, _), r in spikes.items() if n == name] for name in ("ATMC", "mSGNHT")}
    lost = sum(r["diverged"] for r in spikes.values())
    return [
        slower(times, "mSGNHT", "a constant alpha slows down as noise comes to D: D >> sd(xi)", 10.0, 1.0),
        slower(times, "ATMC", "... which ATMC does not: D >> sd(xi), noise up to D", 10.0, 1.0),
        slower(times, "ATMC", "... nor for noise beyond D", 10.0, 4.0),
        slower(times, "ATMC", "... nor for D of the order of sd(xi)", 0.5, 1.0),
        Claim(
            "momenta of a constant alpha explode, as their friction falls below 0; those of ATMC do not",
            f"2.3; friction < 0 in {100 * below:.0f} % of the time at V_g = 0 (exact)",
            f"greatest p/sqrt(m) under spikes at h = .05, .1, .2: ATMC "
            f"{', '.join(f'{x:.0f}' for x in fastest['ATMC'])}; mSGNHT "
            f"{', '.join(f'{x:.0f}' for x in fastest['mSGNHT'])}; {lost} chains lost",
            Kind.COMPARISON,
            fastest["mSGNHT"][-1] > 2 * fastest["ATMC"][-1],
            "what is below 0 is short: xi returns as soon as p^2/m > 1, in both",
            free="at D = .5; at the paper's D = 105 the friction of a constant alpha is never below 0",
        ),
    ]


def slower(times: dict, name: str, words: str, friction: float, noise: float) -> Claim:
    """Whether autocorrelation times stay within a tenth as noise comes, of ATMC; whether they grow, of mSGNHT."""
    ratios = [r for r in RATIOS if r <= noise]
    series = [times[name, friction, r] for r in ratios]
    stays = max(series) < 1.1 * series[0]
    by_noise = ", ".join(f"{time:.0f} ({r:g})" for time, r in zip(series, ratios))
    ours = f"D = {friction:g}: autocorrelation times in steps, by noise over D: {by_noise}"
    holds = stays if name == "ATMC" else series[-1] > 1.5 * series[0]
    why = "the friction of ATMC is max(xi, D), and xi is N(noise, 1): noise is free until it exceeds D"
    return Claim(
        words,
        "2.3, no numbers",
        ours,
        Kind.COMPARISON,
        holds,
        why,
        elsewhere=REGIME if name == "ATMC" and not holds else "",
    )


def picture(study: Study, constant: dict, times: dict) -> None:
    """E theta^2 by V_g, and autocorrelation times by the share of the noise."""
    with study.figure("thermostats", columns=2) as (left, right):
        for name in ALL:
            values = [constant[name, "quartic", v]["square"] for v in COVARIANCES]
            left.plot(COVARIANCES, values, "o-", label=name)
        left.axhline(second_moment("quartic"), color="black", linestyle="--", label="exact")
        left.set(xlabel="V_g", ylabel="E theta^2, quartic", yscale="log")
        left.legend(fontsize=7)
        for friction, line in zip(FRICTIONS, ("o:", "o--", "o-")):
            ratio = [times["mSGNHT", friction, r] / times["ATMC", friction, r] for r in RATIOS]
            right.plot(RATIOS, ratio, line, color="C0", label=f"mSGNHT over ATMC, D = {friction:g}")
            ratio = [times["ATMC", friction, r] / times["ATMC", friction, 0.0] for r in RATIOS]
            right.plot(RATIOS, ratio, line, color="C1", label=f"ATMC over itself without noise, D = {friction:g}")
        right.set(xlabel="h V_g/(2 m D)", ylabel="ratio of autocorrelation times")
        right.legend(fontsize=7)


EXPERIMENT = Experiment(
    "atmc-thermostats",
    "ATMC (Heek & Kalchbrenner 2019), sections 2.2 and 2.3: an unknown V_g, and the least friction",
    claims,
    seeds="200 chains",
)
