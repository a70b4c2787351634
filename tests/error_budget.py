"""Every stochastic assertion of the suite in one table: statistic, null, alpha, effect and power.

All of them have one form: a statistic that is normal with mean 0 and variance 1 where the code is right, a mean over
some 1e4 independent chains, must lie within Z. The normal tail beyond Z is 2e-11; we declare ALPHA = 1e-9, which leaves
a factor of 48 for the tails of a mean of that many terms; the layers' own Z is 7.5, with 6e-14 and the same factor.
Seeds are 0, 1, 2, ..., fixed before any run; nothing is rerun. Where a null is known up to a bias only, the
test adds that margin to Z standard errors. Tests that rely on an event of probability below 1e-20 under the null, such
as two equal draws, are not listed.
"""

from dataclasses import dataclass, field
from math import erf, sqrt

Z = 6.7
ALPHA = 1e-9
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
    each: float = ALPHA
    compared: int = field(default=0, repr=False)

    @property
    def alpha(self) -> float:
        """The probability that a correct sampler fails any comparison of this family."""
        return self.times * self.each

    @property
    def power(self) -> float:
        """The probability that the effect fails one comparison."""
        return (1 + erf((self.size - Z) / sqrt(2))) / 2

    def failures(self, scores: dict) -> dict:
        """The scores beyond Z; counts the comparisons against `times`."""
        self.compared += len(scores)
        assert self.compared <= self.times, f"{self.statistic}: {self.compared} comparisons, {self.times} declared"
        return {name: score for name, score in scores.items() if not abs(score) <= Z}


CLAIMS = {
    "stock law": Claim(
        "means of theta, theta^2, theta^4, p^2, xi, xi^2 over chains and sites, at the last step",
        "the law of the scheme itself after as many steps from an exact start, by quadrature",
        "E theta^2 or a variance of p or xi 10 % off (2.4e4 values, standard error below .93 %)",
        10.8,
        times=160,
    ),
    "stock independence": Claim(
        "correlation of theta with its start, with the next chain, with the chain half-way round, with the next site",
        "the autocorrelation of the scheme, by quadrature; 0 between chains and between sites",
        "a correlation of .1 (1.2e4 pairs, standard error .0092)",
        10.8,
        times=160,
    ),
    "work of values and networks": Claim(
        "mean of exp(-W) of one step that reads U itself, or whose D is a network, over 1e5 chains",
        "1, from exp(-H)",
        "a mean 3 % off (1e5 chains, standard error below .3 %)",
        10.0,
        times=2,
    ),
    "letters left out": Claim(
        "means of theta and theta^2 of 4000 chains, 200 accepted steps from 1.5",
        "U = (theta^2 - 1)^2/2 + prior by quadrature",
        "a law without U, E theta^2 0.3 off (standard error below 0.02)",
        12.0,
        times=10,
    ),
    "Barker's proposals": Claim(
        "means of theta and theta^2 of 4000 chains, 300 steps from 6",
        "exp(-U) of a double well by quadrature",
        "a ratio left out, E theta^2 0.2 off (standard error below 0.012)",
        16.0,
        times=2,
    ),
    "minibatch proposals": Claim(
        "means of theta and theta^2 of 4000 chains, 40 steps from the law of a double well",
        "U of all data by quadrature",
        "acceptance by an estimate of U, a mean 0.2 off (standard error below 0.016)",
        12.0,
        times=12,
    ),
    "swaps": Claim(
        "shares of 5000 chains in the left one of two wells, of replicas at two temperatures that swap",
        "exp(-U/T) by quadrature, within 0.02",
        "a swap that is always accepted, a share 0.1 off (standard error below 0.0071)",
        11.0,
        times=2,
    ),
    "potentials accepted": Claim(
        "mean of theta^2 of 8000 chains, accepted by their work, of two potentials",
        "exp(-U_fast - U_slow), by quadrature",
        "the slow potential left out, E theta^2 20 % larger (standard error 1.52 %)",
        13.0,
        times=2,
    ),
    "swaps accepted": Claim(
        "mean of exp(-W/T) of one step with a swap of replicas, over 2e4 chains",
        "1, from exp(-H/T), within 0.005",
        "a swap whose change of H is taken for work, a mean 10 % off (standard error below 0.5 %)",
        15.0,
        times=3,
    ),
    "involutions": Claim(
        "means of theta and theta^2 of 2e4 chains of two sites with jumps, accepted by their work at h = 0.5",
        "exp(-U/T), by quadrature",
        "a plain step's bias, or a rate not divided by T: E theta^2 10 % off (standard error below 0.8 %)",
        12.0,
        times=10,
    ),
    "work of involutions": Claim(
        "E[exp(-W/T); W > 0] - P(W < 0) of one zig-zag step in either direction of time, over 2e4 chains",
        "0, from exp(-H/T)",
        "no work of the jump, a mean 0.1 off (standard error below 0.005)",
        20.0,
        times=1,
    ),
    "shared thermostat": Claim(
        "means of theta^2, theta^4, p^2, xi, (xi - A)^2 with three sites per chain",
        "exp(-H/T), within the scheme's bias",
        "the thermostat's mass mu in place of n mu (2000 chains, standard error 3.3 %)",
        12.0,
        times=5,
    ),
    "banana": Claim(
        "means of x, x^2, y, y^2, x^2 y of explicit coordinates",
        "the law of the scheme, by quadrature",
        "Gamma of y dropped",
        21.0,
        times=5,
    ),
    "memory kernel": Claim(
        "means of theta, theta^2, theta^4, p^2, s^2, r^2, s r",
        "the law of the scheme, by quadrature",
        "T forgotten in one of the noises (6000 chains)",
        10.8,
        times=7,
    ),
    "gradient noise": Claim(
        "means of theta^2 and xi under minibatch gradients of known covariance",
        "the closed forms of the scheme; for thermostats T/k and A + h V_g/(2T), within O(h^2)",
        "a fresh gradient for each half-kick; friction or thermostat unaware of the noise",
        12.0,
        times=6,
    ),
    "start": Claim(
        "mean and variance of p and xi before the first step, correlation of p across sites and chains",
        "N(0, m T) and N(A, T/(n mu))",
        "a variance 15 % off (1e4 values, standard error 1.4 %)",
        10.0,
        times=6,
    ),
    "batches": Claim(
        "how often each row is drawn; correlation of the rows of two chains, of two steps",
        "uniform, independent",
        "a row drawn 15 % too seldom (2e4 batches of 3 of 10 rows)",
        11.0,
        times=12,
    ),
    "known bias": Claim(
        "averages of theta^2 or theta over time and chains, the sampler adapting, frozen, or weighted by its clock",
        "the target's, or beside it by the percents that the docstring states, rounded by up to 0.5",
        "Gamma through V dropped at alpha = 0.9, 13 % of E theta^2 (2000 chains, standard error 1 %)",
        13.0,
        times=28,
    ),
    "simplex": Claim(
        "E omega and E omega^2 of the categories that were seen, and of those that were not",
        "Dirichlet(a + counts)",
        "E omega of the unseen 2 % off (2e4 chains, standard error 0.13 %)",
        15.0,
        times=8,
    ),
    "layers": Claim(
        "the worst of 4 to 60 moments after some steps from an exact start; correlations with other chains and sites",
        "exp(-H/T) up to the defect of every step; 0",
        "E theta^2 15 % off (2e4 chains, standard error 1 %)",
        14.0,
        times=20_000,
        each=9e-12,
    ),
    "exchange": Claim(
        "moments of pairs from the joint law of two temperatures after a swap, against fresh ones; the share of a well",
        "the joint law; the share by quadrature, within 1 %",
        "momenta that are not rescaled (4e4 pairs, E p^2 at the low temperature 40 % off)",
        25.0,
        times=80,
    ),
    "accuracy": Claim(
        "stated biases of mean and variance, of the step and of the minibatches, from pairs of chains",
        "the closed form of Euler steps; twice what batches twice as large take off, up to a third",
        "the bias of the step twice what it is (300 pairs)",
        30.0,
        times=12,
    ),
    "divergence": Claim(
        "the KL of the law of draws from exp(-H/T) from the work of stretches, in its own standard errors",
        "its closed form, or quadrature of the kernel of the step, up to 15 % that are of higher order",
        "T left out of the work at T = 0.3 (2000 chains of 20 sites); its sign and a wrong start are larger",
        12.0,
        times=8,
    ),
    "evidence": Claim(
        "the evidence in its own standard errors",
        "its exact value, or that of a long bridge",
        "the gap weighed after the move to a bridge and not before it, with 6 bridges",
        12.0,
        times=20,
    ),
    "tuned": Claim(
        "moments of chains that `tune` has set up, on a Gaussian, a banana, a funnel, and two potentials",
        "those of the target, by integration",
        "a variance 25 % off (200 chains of 150 draws or more, standard error 2 %)",
        12.0,
        times=38,
    ),
    "coordinates": Claim(
        "means of theta, and of products of theta and of its roots, of chains that move in other coordinates",
        "those of the law of theta: a Gaussian of condition 1e4; laws of models, conjugate or by quadrature",
        "a variance 25 % off (60 chains of 60 draws or more, standard error 3 %)",
        12.0,
        times=119,
    ),
    "precision of a prior": Claim(
        "mean and sd of log tau, of the intercept and of three weights of a logistic regression, in standard errors",
        "the posterior with tau integrated out by hand, by a Metropolised run in plain torch",
        "the norm of the prior forgotten, of which tau is drawn with the shape a",
        20.0,
        times=32,
    ),
    "starts and relaxation": Claim(
        "the sd of starts that are spread out; the initial slope of an autocorrelation",
        "the sd that is asked for; the mean of p f over that of p^2, within O(h)",
        "the friction of momenta that are not relativistic: a slope 2.7 times as steep (8e5 pairs, standard error 3 %)",
        50.0,
        times=2,
    ),
    "adapted operators": Claim(
        "means of products of the coordinates of theta in which the law is standard, 100 steps from 0 at least, of "
        "which the last 40 with a constant operator, over 2e4 chains",
        "the stationary covariance of the linear step with that operator",
        "a variance 10 % off (standard error 1 %)",
        10.0,
        times=24,
    ),
    "exact chains": Claim(
        "each of 4 to 34 moments of the target up to degree 4, over 40 steps that were accepted or rejected",
        "those of the same draws",
        "a variance 15 % off (2e4 chains, standard error 1 %)",
        14.0,
        times=700,
        each=3e-12,
    ),
    "audits": Claim(
        "an audit of a right sampler", "its verdict is right", "a temperature twice as high", 50.0, times=25
    ),
}


def standard_score(residuals) -> float:
    """The mean of independent residuals in standard errors."""
    return float(residuals.mean() / residuals.std() * residuals.numel() ** 0.5)


def beyond(residuals, margin) -> float:
    """How far the mean of independent residuals lies outside of [-margin, margin], in standard errors."""
    error = float(residuals.std()) / residuals.numel() ** 0.5
    return max(abs(float(residuals.mean())) - margin, 0.0) / error
