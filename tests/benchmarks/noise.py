"""The laws of the normal noise at many numbers: moments, tails, correlations, spectra, birthdays, as z-scores.

    nice python tests/benchmarks/noise.py --numbers 1e10 --out noise.json
    python tests/benchmarks/noise.py --together one.json other.json --out noise.json

Runs of other seeds are put together by the second line; a run may end at any time, its file is what it has found.

* moments to the eighth, and tails to six sigma on both sides
* correlations, of the numbers and of their squares, of neighbours along steps, chains and sites, of two draws, and of
  two seeds, at the same places
* the power spectrum along steps, chains and sites: the power of each frequency, and its square
* birthday spacings: of 4096 numbers as days of a year of 2^32, the pairs of equal spacings of neighbours in the year

Chains of one, two and 64 sites: of the first two, steps share the blocks of words. A z-score is (result - law)/error.
Scores of spectra are many; of those the mean square and the largest are kept.

Source for the birthdays: Marsaglia and Tsang (2002), "Some difficult-to-pass tests of randomness"; the mean is that of
uniform spacings here, in which t = S1 + S2 has the law Beta(2, m - 1): P(S1 = S2) = E[1/(2 t n)] = m/(2 n).
"""

import argparse
import datetime
import json
import math
import pathlib
import time
from collections import defaultdict

import numpy as np
import torch

from integrators.noise import normal

MOMENTS = {1: (0, 1), 2: (1, 2), 3: (0, 15), 4: (3, 96), 5: (0, 945), 6: (15, 10170), 7: (0, 135135), 8: (105, 2016000)}
LAGS = {"steps": range(1, 9), "chains": (1, 2, 16), "sites": (1, 2, 3, 4)}
SITES = (1, 2, 64)
CHAINS = 32
CHUNK = 2**18  # numbers of a draw at once
SERIES = 1024  # the longest series of a spectrum
BIRTHDAYS = 4096
YEAR = 2**32
ROUNDS = 16  # chunks between two writings of the file


class Scores:
    """Sums of statistics of mean 0 under the law, with the variance of a value; some are vectors."""

    def __init__(self) -> None:
        self.sums: dict[str, torch.Tensor] = defaultdict(lambda: torch.zeros((), dtype=torch.float64))
        self.variances: dict[str, float] = defaultdict(float)

    def add(self, name: str, total: torch.Tensor | float, count: int, mean: float, variance: float) -> None:
        """Take the sum of so many values of a statistic."""
        self.sums[name] = self.sums[name] + (total - mean * count)
        self.variances[name] += variance * count

    def z(self) -> dict[str, torch.Tensor]:
        """The z-scores of each statistic."""
        return {name: self.sums[name] / math.sqrt(v) for name, v in self.variances.items() if v >= 1e-3}


def moments(scores: Scores, x: torch.Tensor) -> None:
    """Powers of the numbers, and how many are far out."""
    power = torch.ones_like(x)
    for order, (mean, variance) in MOMENTS.items():
        power *= x
        scores.add(f"moment {order}", power.sum(), x.numel(), mean, variance)
    for sigma in range(1, 7):
        beyond = math.erfc(sigma / math.sqrt(2)) / 2
        for side, far in ((-1, x < -sigma), (1, x > sigma)):
            scores.add(f"beyond {side * sigma} sigma", far.count_nonzero(), x.numel(), beyond, beyond * (1 - beyond))


def neighbours(scores: Scores, x: torch.Tensor, squares: torch.Tensor) -> None:
    """Correlations along each axis of `(steps, chains, sites)`."""
    for axis, (name, lags) in enumerate(LAGS.items()):
        for lag in lags:
            overlap = x.shape[axis] - lag
            if overlap > 0:
                near, far = (slice(None),) * axis + (slice(overlap),), (slice(None),) * axis + (slice(lag, None),)
                products(scores, f"{lag} {name} apart", (x[near], x[far]), (squares[near], squares[far]))


def products(scores: Scores, name: str, numbers: tuple, squares: tuple) -> None:
    """The correlation of two samples, and of their squares less one."""
    for kind, (a, b), variance in ((name, numbers, 1), (f"squares {name}", squares, 4)):
        scores.add(kind, torch.dot(a.reshape(-1), b.reshape(-1)), a.numel(), 0, variance)


def spectra(scores: Scores, x: torch.Tensor) -> None:
    """The power of each frequency along each axis: exponential of mean 1 between the ends."""
    for axis, name in enumerate(LAGS):
        length = min(x.shape[axis], SERIES)
        if length >= 4:
            series = x.movedim(axis, -1).unflatten(-1, (-1, length)).flatten(0, -2)
            power = torch.fft.rfft(series)[:, 1 : (length + 1) // 2].abs().square_().div_(length)
            scores.add(f"spectrum along {name}", power.sum(0), len(series), 1, 1)
            scores.add(f"squared spectrum along {name}", power.square_().sum(0), len(series), 2, 20)


def birthdays(scores: Scores, x: torch.Tensor) -> None:
    """Pairs of equal spacings: nearly Poisson."""
    uniform = torch.special.ndtr(x.reshape(-1, BIRTHDAYS))
    days = np.sort(uniform.mul_(YEAR).numpy().astype(np.uint32), axis=1)
    spacings = np.sort(np.diff(days, axis=1), axis=1)
    pairs = sum(np.count_nonzero(spacings[:, lag:] == spacings[:, :-lag]) for lag in (1, 2, 3))
    mean = math.comb(BIRTHDAYS - 1, 2) * BIRTHDAYS / (2 * YEAR)
    scores.add("birthday spacings", pairs, len(spacings), mean, mean)


def look(scores: Scores, seed: int, chunk: int, sites: int) -> int:
    """Take a chunk of each of two draws and two seeds; returns how many numbers they are."""
    steps = CHUNK // (CHAINS * sites)
    at = range(chunk * steps, (chunk + 1) * steps)
    keys = [(s, d) for s in (seed, seed + 1) for d in (0, 1)]
    numbers = {(s, d): normal(s, at, d, CHAINS, (sites,), dtype=torch.float64) for s, d in keys}
    squares = {key: x.square().sub_(1) for key, x in numbers.items()}
    for key, x in numbers.items():
        moments(scores, x)
        neighbours(scores, x, squares[key])
        spectra(scores, x)
        birthdays(scores, x)
    for name, pairs in {
        "another draw": [((s, 0), (s, 1)) for s in (seed, seed + 1)],
        "another seed": [((seed, d), (seed + 1, d)) for d in (0, 1)],
    }.items():
        for a, b in pairs:
            products(scores, name, (numbers[a], numbers[b]), (squares[a], squares[b]))
    return len(keys) * CHUNK


def summary(scores: Scores) -> dict:
    """Each score, of a vector its mean square and its largest; then those of all."""
    z = scores.z()
    every = torch.cat([v.reshape(-1) for v in z.values()])
    return {
        "scores": {name: round(float(v), 3) for name, v in z.items() if v.ndim == 0},
        "vectors of scores": {
            name: {"scores": v.numel(), "mean square": round(float(v.square().mean()), 3), "largest": round(peak(v), 3)}
            for name, v in z.items()
            if v.ndim
        },
        "all": {"scores": every.numel(), "mean square": float(every.square().mean()), "largest": peak(every)},
    }


def peak(z: torch.Tensor) -> float:
    """The score that is largest in size."""
    return float(z.flatten()[z.abs().argmax()])


def main() -> None:
    """Draw, and keep the z-scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--numbers", type=float, default=1e8)
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--together", type=pathlib.Path, nargs="+", help="files of runs of other seeds, to make one of")
    options = parser.parse_args()
    if options.together:
        options.out.write_text(json.dumps(together(options.together), indent=1) + "\n")
        return
    torch.set_num_threads(1)
    scores = {sites: Scores() for sites in SITES}
    counts = dict.fromkeys(SITES, 0)
    chunk = 0
    while sum(counts.values()) < options.numbers:
        for sites in SITES:
            counts[sites] += look(scores[sites], options.seed, chunk, sites)
        chunk += 1
        finished = sum(counts.values()) >= options.numbers
        if options.out and (finished or chunk % ROUNDS == 0):
            write(options, counts, scores)
    for sites in SITES:
        result = summary(scores[sites])["all"]
        print(f"{sites} sites: {counts[sites]:.3g} numbers,", ", ".join(f"{k} {v:.4g}" for k, v in result.items()))
    print(f"{time.process_time():.0f} s of the processor")


def together(files: list[pathlib.Path]) -> dict:
    """Runs as one: their scores, weighed by the roots of their numbers, and each as it is."""
    runs = [json.loads(file.read_text()) for file in files]
    all_sites = {}
    for sites in runs[0]["sites"]:
        parts = [run["sites"][sites] for run in runs]
        scores = {}
        for name in parts[0]["scores"]:
            own = [(part["numbers"], part["scores"][name]) for part in parts if name in part["scores"]]
            weighed = sum(z * math.sqrt(n) for n, z in own)
            scores[name] = round(weighed / math.sqrt(sum(n for n, _ in own)), 3)
        square = sum(z**2 for z in scores.values()) / len(scores)
        largest = max(scores.values(), key=abs)
        numbers = sum(part["numbers"] for part in parts)
        all_sites[sites] = {"numbers": numbers, "mean square": round(square, 3), "largest": largest, "scores": scores}
    shared = {name: runs[0][name] for name in ("date", "tests")}
    own_of_each = [{name: value for name, value in run.items() if name not in shared} for run in runs]
    return shared | {"numbers": sum(run["numbers"] for run in runs), "sites": all_sites, "runs": own_of_each}


def write(options: argparse.Namespace, counts: dict[int, int], scores: dict[int, Scores]) -> None:
    """Everything so far, as one file."""
    result = {
        "date": datetime.date.today().isoformat(),
        "seeds": [options.seed, options.seed + 1],
        "draws": [0, 1],
        "numbers": sum(counts.values()),
        "processor, s": round(time.process_time()),
        "tests": " ".join(__doc__.split("\n\n")[3].split()).strip("* ").split(" * "),
        "sites": {sites: {"numbers": counts[sites], **summary(scores[sites])} for sites in SITES},
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
