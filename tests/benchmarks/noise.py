"""The laws of the normal noise at many numbers: moments to the eighth, tails to six sigma, correlations, as z-scores.

    python tests/benchmarks/noise.py --numbers 1e9

Chains of one, two and 64 sites: of the first two, steps share the blocks of words. A z-score is (found - law)/(standard
error); of the 150 here one is beyond 4.5 in a thousand runs of a right generator. Neighbours are those along steps,
chains and sites; draws are compared with another draw and another seed at the same places.
"""

import argparse
import math
import time
from collections import defaultdict

import torch

from integrators.noise import normal

MOMENTS = {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96), 5: (0, 945), 6: (15, 10170), 7: (0, 135135), 8: (105, 2016000)}
LAGS = {"steps": range(1, 9), "chains": (1, 2, 16), "sites": (1, 2, 3, 4)}
CHUNK = 2**20  # numbers at once


class Scores:
    """Sums of statistics of mean 0 under the law, with the variance of one number."""

    def __init__(self) -> None:
        self.sums: dict[str, float] = defaultdict(float)
        self.variances: dict[str, float] = defaultdict(float)

    def add(self, name: str, values: torch.Tensor, mean: float, variance: float) -> None:
        """Take some values of a statistic."""
        self.sums[name] += float(values.double().sum()) - mean * values.numel()
        self.variances[name] += variance * values.numel()

    def z(self) -> dict[str, float]:
        """The z-score of each statistic."""
        return {name: self.sums[name] / math.sqrt(v) for name, v in self.variances.items() if v >= 1e-3}


def look(scores: Scores, kind: str, x: torch.Tensor, others: dict[str, torch.Tensor]) -> None:
    """Take the numbers `(steps, chains, sites)`."""
    for power, (mean, variance) in MOMENTS.items():
        scores.add(f"{kind}, moment {power}", x**power, mean, variance)
    for sigma in range(1, 7):
        for side in (-1, 1):
            beyond = math.erfc(sigma / math.sqrt(2)) / 2
            scores.add(f"{kind}, beyond {side * sigma} sigma", side * x > sigma, beyond, beyond * (1 - beyond))
    pairs = {name: (x, y) for name, y in others.items()}
    for axis, (name, lags) in enumerate(LAGS.items()):
        for lag in lags:
            overlap = x.shape[axis] - lag
            if overlap > 0:
                pairs[f"{lag} {name} apart"] = x.narrow(axis, 0, overlap), x.narrow(axis, lag, overlap)
    for name, (a, b) in pairs.items():
        scores.add(f"{kind}, {name}", a * b, 0, 1)
        scores.add(f"{kind}, squares {name}", (a**2 - 1) * (b**2 - 1), 0, 4)


def main() -> None:
    """Draw, and print the z-scores: the largest, and how their squares add up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numbers", type=float, default=1e8)
    parser.add_argument("--seed", type=int, default=2026)
    options = parser.parse_args()
    began = time.process_time()
    for sites in (1, 2, 64):
        scores, chains = Scores(), 64
        steps = CHUNK // (chains * sites)
        for chunk in range(math.ceil(options.numbers / 3 / CHUNK)):
            at = range(chunk * steps, (chunk + 1) * steps)
            x, draw, seed = (
                normal(options.seed + s, at, d, chains, (sites,), dtype=torch.float64)
                for s, d in ((0, 0), (0, 1), (1, 0))
            )
            look(scores, f"{sites} sites", x, {"another draw": draw, "another seed": seed})
        z = scores.z()
        worst = sorted(z, key=lambda name: -abs(z[name]))[:3]
        print(
            f"{sites} sites: {options.numbers / 3:.2g} numbers, {len(z)} scores, mean square "
            f"{sum(v * v for v in z.values()) / len(z):.2f}; largest: {', '.join(f'{n} {z[n]:+.2f}' for n in worst)}"
        )
    print(f"{time.process_time() - began:.0f} s of the processor")


if __name__ == "__main__":
    main()
