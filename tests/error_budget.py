"""Every stochastic assertion of the suite in one table: statistic, null, alpha, effect and power.

All of them have one form: a statistic that is normal with mean 0 and variance 1 where the code is right, a mean over
some 1e4 independent chains, must lie within Z. The normal tail beyond Z is 8e-11; we declare ALPHA = 2e-9, which leaves
a factor of 25 for the tails of a mean of that many terms. Seeds are 0, 1, 2, ..., fixed before any run; nothing is
rerun. Where a null is only known up to a bias, the claim's `margin` says so and is added to Z standard errors.
"""

from dataclasses import dataclass, field
from math import erf, sqrt

Z = 6.5
ALPHA = 2e-9
BUDGET = 1e-6


@dataclass
class Claim:
    """A family of comparisons that share statistic and null.

    `effect` is an error that must be seen, and `size` what it amounts to in standard errors; `times` is how many
    comparisons the suite makes.
    """

    statistic: str
    null: str
    effect: str
    size: float
    times: int
    made: int = field(default=0, repr=False)

    @property
    def alpha(self) -> float:
        """The probability that a correct sampler fails any comparison of this family."""
        return self.times * ALPHA

    @property
    def power(self) -> float:
        """The probability that the effect fails one comparison."""
        return (1 + erf((self.size - Z) / sqrt(2))) / 2

    def failures(self, scores: dict) -> dict:
        """The scores beyond Z; counts the comparisons against `times`."""
        self.made += len(scores)
        assert self.made <= self.times, f"{self.statistic}: {self.made} comparisons, {self.times} declared"
        return {name: score for name, score in scores.items() if not abs(score) <= Z}


CLAIMS = {
    "stock law": Claim(
        "means of theta, theta^2, theta^4, p^2, xi, xi^2 over chains and sites, at the last step",
        "the law of the scheme itself after as many steps from an exact start, by quadrature",
        "the variance of theta 15 % off (N = 2e4, relative error of a variance .011)", 13.0, times=40),
    "stock independence": Claim(
        "correlation of theta with its start, with the next chain, with the chain half-way round, with the next site",
        "the autocorrelation of the scheme by quadrature; 0 between chains and between sites",
        "noise shared by all chains, correlation > .3 (N = 1e4)", 30.0, times=32),
    "shared thermostat": Claim(
        "means of theta^2, theta^4, p^2, xi, xi^2 with three sites per chain", "exp(-H/T), within the scheme's bias",
        "Var xi of one site in place of three", 60.0, times=5),
    "banana": Claim(
        "means of x, x^2, y, y^2, x^2 y of explicit coordinates", "the law of the scheme by quadrature",
        "Gamma dropped", 12.0, times=5),
    "memory kernel": Claim(
        "means of theta, theta^2, theta^4, p^2, s^2, r^2, s r", "exp(-H/T), within the scheme's bias",
        "noises of s and r uncorrelated", 12.0, times=7),
    "gradient noise": Claim(
        "variance of theta, mean of xi, under minibatch gradients of known covariance",
        "the closed forms of MATH B.3, and A + h V_g/(2T) for the mean of xi",
        "two independent half-kicks in place of one carried gradient; B or xi unaware of the noise", 10.0, times=7),
    "start": Claim(
        "mean and variance of p and xi before the first step", "N(0, m T) and N(A, T/(n mu))",
        "the variance 15 % off, T or m forgotten (N = 2e4)", 15.0, times=6),
    "batches": Claim(
        "how often each row is drawn; the correlation of two chains' and of two steps' rows; the mean of the gradient",
        "uniform, independent, the full gradient", "one row in ten never drawn", 20.0, times=16),
}
