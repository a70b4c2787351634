"""What a step costs: the claims on cost of Li et al. (2016), Franzese et al. (2021) and Heek & Kalchbrenner (2019).

A step is a gradient of a minibatch and an update. Both are timed apart, in seconds of the processor and one thread; all
methods take turns in rounds of a few steps, so that what loads the machine loads all. A ratio is the median over
rounds. Each of the methods has one gradient a step. Samplers are the stock ones, torch has SGD.

Networks and batches are those of the papers: 784-400-400-10 with 100 images for pSGLD, LeNet-5 with 128 for i-SGD, and
for ATMC residual networks of 8 layers and 8 filters with 128, where the paper's have 56 and 32. Images are noise.
Ratios within 10 % of 1 are the same.
"""

import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any

import torch
from networks import layers_of, lenet, perceptron, prior, residual
from study import Experiment, Study
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy
from verdicts import Claim, Kind

import samplers

SAME = 0.1  # a difference that is none
SMALLER = "a smaller network, one core of a processor"
N = 60_000  # data
Maker = Callable[[], Module]
PLUS, NORM, REGULAR = "ResNet++", "ResNet, batch norm", "SGD, prior"
NETWORKS: dict[str, tuple[Maker, tuple[int, ...]]] = {  # with the shape of an image
    "FNN-400": (lambda: perceptron(784, 400, seed=0), (28, 28)),
    "LeNet-5": (lambda: lenet(seed=0), (1, 28, 28)),
    PLUS: (lambda: residual(depth=8, filters=8, batch_norm=False, seed=0), (3, 32, 32)),
    NORM: (lambda: residual(depth=8, filters=8, batch_norm=True, seed=0), (3, 32, 32)),
}


def optimizer_of(method: str, network: Module) -> torch.optim.Optimizer:
    """Steps so short that the network hardly moves."""
    common: dict[str, Any] = {"num_data": N, "seed": 0}
    parameters = list(network.parameters())
    if method in ("SGD", REGULAR):
        return torch.optim.SGD(parameters, lr=1e-6, momentum=0.9)
    if method == "ATMC":
        settings = samplers.RelativisticATMC.convert(h0=1e-3, momentum=0.9, rms_step=3e-6, max_step=1e-5)
        return samplers.Optimizer(parameters, samplers.RelativisticATMC, scheme="paper", **settings, **common)
    if method == "i-SGD":
        return samplers.Optimizer(layers_of(network), "isgd", lr=1e-6, warmup_steps=2, **common)
    return samplers.Optimizer(parameters, method.lower(), lr=1e-6, **common)


@dataclass
class Walk:
    """A network with its method and its images."""

    method: str
    network: Module
    optimizer: torch.optim.Optimizer
    x: Tensor
    y: Tensor

    def steps(self, number: int) -> tuple[float, float]:
        """Milliseconds of the processor that a gradient takes, and an update."""
        gradient = update = 0.0
        for _ in range(number):
            began = time.process_time()
            self.optimizer.zero_grad()
            loss = cross_entropy(self.network(self.x), self.y)
            (loss + prior(self.network) / N if self.method in (REGULAR, "ATMC") else loss).backward()
            between = time.process_time()
            self.optimizer.step()
            gradient, update = gradient + between - began, update + time.process_time() - between
        return 1000 * gradient / number, 1000 * update / number


def walk_of(name: str, method: str, batch: int) -> Walk:
    """Of a network, which has made its first steps: kernels are compiled there."""
    make, shape = NETWORKS[name]
    network = make()
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(batch, *shape, generator=generator), torch.randint(0, 10, (batch,), generator=generator)
    walk = Walk(method, network, optimizer_of(method, network), x, y)
    walk.steps(5)
    return walk


def timed(study: Study, walks: Sequence[tuple[str, str, int]], rounds: int, steps: int) -> dict:
    """Milliseconds by round, of the gradient and of the update, for each network, method and batch."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*gradients of one norm")  # of the same images in every step
        walkers = [walk_of(*walk) for walk in walks]
        table = [[walk.steps(steps) for walk in walkers] for _ in range(rounds)]
    columns = [list(zip(*column, strict=True)) for column in zip(*table, strict=True)]
    return {" ".join(map(str, walk)): column for walk, column in zip(walks, columns, strict=True)}


# ---- claims


def claims(study: Study) -> list[Claim]:
    """pSGLD beside SGLD and SGD, i-SGD beside its rivals and by batch, ATMC beside SGD, and batch normalisation."""
    rounds, steps = study.of_scale((3, 2), (15, 10), (50, 20))
    walks = [
        *(("FNN-400", method, 100) for method in ("SGD", "SGLD", "pSGLD")),
        *(("LeNet-5", method, 128) for method in ("SGD", "SGLD", "SGHMC", "i-SGD")),
        *(("LeNet-5", "i-SGD", batch) for batch in (32, 512)),
        *((PLUS, method, 128) for method in ("SGD", REGULAR, "ATMC", "SGLD")),
        (NORM, "SGD", 128),
    ]
    times = Times(study.result(timed, walks=walks, rounds=rounds, steps=steps))
    return [replace(claim, seeds=rounds) for claim in claims_of(times)]


@dataclass(frozen=True)
class Times:
    """Milliseconds by network, method and batch: of the gradients and of the updates of each round."""

    table: dict[str, list[list[float]]]

    def of(self, walk: str, part: int | None = None) -> list[float]:
        """By round: of a step, of its gradient (part 0) or of its update (1)."""
        columns = self.table[walk]
        return [sum(both) for both in zip(*columns, strict=True)] if part is None else columns[part]

    def ratio(self, one: str, other: str, part: int | None = None) -> "Ratio":
        """The first over the second, by round."""
        return Ratio([a / b for a, b in zip(self.of(one, part), self.of(other, part), strict=True)])

    def split(self, walk: str) -> str:
        """The gradient and the update, in milliseconds."""
        return f"{median(self.of(walk, 0)):.2f} + {median(self.of(walk, 1)):.2f} ms"


@dataclass(frozen=True)
class Ratio:
    """A ratio by round."""

    rounds: list[float]

    @property
    def middle(self) -> float:
        """The median."""
        return median(self.rounds)

    @property
    def same(self) -> bool:
        """Whether it is 1 within SAME."""
        return abs(self.middle - 1) <= SAME

    def __str__(self) -> str:
        """The median, and the middle half of the rounds."""
        low, _, high = quantiles(self.rounds, n=4)
        return f"{self.middle:.2f} ({low:.2f} to {high:.2f})"


def claims_of(times: Times) -> list[Claim]:
    """The claims; a comparison that fails with one network names one with which it holds."""
    fnn, lenet_, plus = ("FNN-400 {} 100".format, "LeNet-5 {} 128".format, f"{PLUS} {{}} 128".format)
    noise = f"gradient and update: SGD {times.split(fnn('SGD'))}, SGLD {times.split(fnn('SGLD'))}"
    deeper = times.ratio(plus("SGLD"), plus("SGD"))
    rivals = {method: times.ratio(lenet_("i-SGD"), lenet_(method)) for method in ("SGLD", "SGHMC")}
    batches = times.ratio("LeNet-5 i-SGD 512", "LeNet-5 i-SGD 32", 1)
    overhead = times.ratio(f"{NORM} SGD 128", plus("SGD"), 0)
    preconditioner = times.ratio(fnn("pSGLD"), fnn("SGLD"))
    nearly = times.ratio(fnn("SGLD"), fnn("SGD"))
    regular = times.ratio(plus("ATMC"), plus(REGULAR))
    where = f"a network whose gradient takes longer: {PLUS}, {deeper} times" if deeper.same else ""
    return [
        Claim(
            "pSGLD: its preconditioner adds a trivial overhead to SGLD, FNN-400",
            "section 1, no numbers",
            f"{preconditioner} times a step of SGLD",
            Kind.COMPARISON,
            preconditioner.middle <= 1 + SAME,
            f"pSGLD {times.split(fnn('pSGLD'))}, SGLD {times.split(fnn('SGLD'))}",
        ),
        Claim(
            "a step of SGLD costs nearly what one of SGD does, FNN-400",
            "Li et al., section 2, no numbers",
            f"{nearly} times",
            Kind.COMPARISON,
            nearly.same,
            f"a normal number for each of 478,410 weights beside 100 images; {noise}",
            elsewhere=where,
        ),
        Claim(
            "i-SGD: all samplers have in practice the same complexity, LeNet-5",
            "section 3.2, one gradient each",
            "; ".join(f"{ratio} times {method}" for method, ratio in rivals.items()),
            Kind.COMPARISON,
            all(ratio.same for ratio in rivals.values()),
            f"i-SGD {times.split(lenet_('i-SGD'))}, SGD {times.split(lenet_('SGD'))}",
        ),
        Claim(
            "... and its estimate of the noise costs the same for each size of batch",
            "section 3.2",
            f"an update with 512 images takes {batches} times that with 32",
            Kind.COMPARISON,
            batches.same,
        ),
        Claim(
            "ATMC: an epoch takes as long as with SGD",
            "section 5.2, no significant difference",
            f"{regular} times, ResNet++ under its prior",
            Kind.COMPARISON,
            regular.same,
            f"ATMC {times.split(plus('ATMC'))}, SGD {times.split(plus(REGULAR))}",
            reduced=SMALLER,
        ),
        Claim(
            "batch normalisation takes a fifth longer than ResNet++",
            "section 5.2, roughly 20 % on a TPU",
            f"its gradient takes {overhead} times that of ResNet++",
            Kind.FIGURE,
            SAME < overhead.middle - 1 <= 3 * SAME,
            f"ResNet {times.split(f'{NORM} SGD 128')}, ResNet++ {times.split(plus('SGD'))}",
            reduced=SMALLER,
        ),
    ]


EXPERIMENT = Experiment("costs", "What a step costs: pSGLD, i-SGD, ATMC", claims, seeds="15 rounds")
