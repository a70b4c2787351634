"""CIFAR-10: Heek & Kalchbrenner (2019), Table 1 and Figure 2.

ATMC and SGNHT sample ResNet++, which has no batch normalisation, SGD trains it too, and a ResNet with batch
normalisation. ATMC is relativistic, Algorithm 1 corrected: h_0 = .001, D = -log(.9)/h_0, m and c by an rms step of
.0003 and a greatest one of .001; the step size falls by a cosine in each cycle, D, m and c stay. SGNHT, of which
nothing is printed, has a thermostat for each weight, the constant friction D and the same steps. The last state of a
cycle is a sample; "single" is the last sample, "predictive" the average of the probabilities of all.

Reduced: 8 layers of 8 filters instead of 56 of 32, the exact pixels of the first 4000 and 1000 images, 60 epochs in
cycles of 10 with samples from the second on. Steps are ten times as long, as the posterior of so few images is wider,
and the run is of 1860 steps and not of 390,000: lr on the mean loss is .034, the paper's .0043. In full the images are
a copy with JPEG's losses (quality 75) of all, and a GPU is used where there is one. Images are not augmented, in which
the paper's may differ. lr of SGD, with a momentum of .9 and a cosine over the run, is chosen on a sixth of the training
data.
"""

import io
import math
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

import numpy
import torch
from datasets import Data, read_npz
from networks import prior, residual
from study import Experiment, Study, spread
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import cross_entropy
from training import Curve, train
from verdicts import Claim, Kind, part

import samplers
from samplers.schedules import Cyclical
from samplers.scores import accuracy, expected_calibration_error, negative_log_likelihood, paired, reliability

EXACT, LOSSY = "cifar10/cifar10_lossless_4k_1k.npz", "cifar10/cifar10_jpeg_full.npz"
H0, MOMENTUM, RMS_STEP, MAX_STEP = 0.001, 0.9, 0.0003, 0.001  # the paper's, for 50,000 images
BATCH, IMAGES = 128, 50_000  # rows of a minibatch, and of the paper's training data
PAPER = {  # accuracy %, NLL: of one sample, and of the average
    "SGD": ((91.5, 0.370), None),
    "SGD, batch norm": ((94.4, 0.243), None),
    "ATMC": ((92.4, 0.303), (93.9, 0.194)),
    "SGNHT": ((91.7, 0.343), (93.5, 0.211)),
}


# ---- data


def images_of(study: Study, rows: int | None, full: bool, held_back: bool = False) -> tuple[Data, Data]:
    """Training and test images `(rows, 3, 32, 32)`, standardised by channel of training, and labels."""
    if full:
        parts = [lossy(study, part) for part in ("train", "test")]
    else:
        x, y, test_x, test_y = read_npz(study.data, EXACT, "X_train", "y_train", "X_test", "y_test")
        parts = [(x[:rows], y[:rows]), (test_x[:rows], test_y[:rows])]
    device = "cuda" if full and torch.cuda.is_available() else "cpu"
    (x, y), (test_x, test_y) = (
        (torch.tensor(a, device=device).permute(0, 3, 1, 2) / 255, torch.tensor(b, device=device).long())
        for a, b in parts
    )
    if held_back:
        last = len(x) // 6
        x, test_x, y, test_y = x[:-last], x[-last:], y[:-last], y[-last:]
    mean, sd = x.mean((0, 2, 3), keepdim=True), x.std((0, 2, 3), keepdim=True)
    return ((x - mean) / sd, y), ((test_x - mean) / sd, test_y)


def lossy(study: Study, part: str) -> tuple[numpy.ndarray, numpy.ndarray]:
    """All images of a part, which share the beginning of their JPEG files."""
    from PIL import Image

    prefix, data, offsets, labels = read_npz(
        study.data, LOSSY, "jpeg_prefix", f"{part}_bytes", f"{part}_off", f"{part}_y"
    )
    files = (prefix.tobytes() + data[a:b].tobytes() + b"\xff\xd9" for a, b in zip(offsets, offsets[1:]))
    return numpy.stack([numpy.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files]), labels


# ---- training


def optimizer_of(
    method: str, network: Module, rows: int, lr: float, seed: int, longer: float = 1.0
) -> torch.optim.Optimizer:
    """The samplers at the top of a cycle, with steps so many times the paper's; the prior is in the loss."""
    common = {"num_data": rows, "seed": seed, "scheme": "F A'" if method == "SGNHT" else "paper"}
    if method == "ATMC":
        settings = samplers.RelativisticATMC.convert(
            h0=H0, momentum=MOMENTUM, rms_step=longer * RMS_STEP, max_step=longer * MAX_STEP
        )
        return samplers.Optimizer(network.parameters(), samplers.RelativisticATMC, **settings, **common)
    if method == "SGNHT":  # m = 1: the step size is the rms step, and D h and the time of the thermostat are as in ATMC
        h = longer * RMS_STEP
        settings = {"step_size": h, "A": -math.log(MOMENTUM) / h, "mu": (h / H0) ** 2}
        return samplers.Optimizer(network.parameters(), samplers.MSGNHT, **settings, **common)
    decay = 0.0 if method == "SGD" else 1e-4
    return torch.optim.SGD(network.parameters(), lr=lr, momentum=MOMENTUM, weight_decay=decay)


def loss_of(method: str, rows: int) -> Callable[[Module, Tensor, Tensor], Tensor]:
    """Cross-entropy, and for ResNet++ its prior over the number of images."""

    def loss(network: Module, x: Tensor, y: Tensor) -> Tensor:
        energy = cross_entropy(network(x), y)
        return energy if method == "SGD, batch norm" else energy + prior(network) / rows

    return loss


def run(
    study: Study,
    method: str,
    seed: int,
    epochs: int,
    cycle: int,
    size: tuple[int, int],
    rows: int | None = None,
    lr: float = 0.0,
    longer: float = 1.0,
    held_back: bool = False,
    full: bool = False,
    normalised: bool = False,
) -> dict:
    """Scores of the last sample and of the average; of SGD's last state. `size`: depth and filters.

    `normalised`: ResNet++ with batch normalisation before each scale.
    """
    data, test = images_of(study, rows, full, held_back)
    depth, filters = size
    shape = {"depth": depth, "filters": filters, "seed": seed}
    if method == "SGD, batch norm":
        network = residual(batch_norm=True, **shape)
    else:
        network = residual(batch_norm=normalised, plus=True, **shape)
    network = network.to(data[0].device)
    batches = samplers.Minibatches(data, min(BATCH, len(data[0])), seed=seed)
    optimizer = optimizer_of(method, network, len(data[0]), lr, seed, longer)
    sampler = isinstance(optimizer, samplers.Optimizer)
    key = "step_size" if sampler else "lr"
    steps = epochs * len(batches)
    length = cycle * len(batches) if sampler else steps
    schedule = Cyclical(start=optimizer.param_groups[0][key], cycles=steps // length, steps=steps)
    predictive, curve = samplers.Predictive(), Curve()

    def draw(step: int) -> None:
        optimizer.param_groups[0][key] = schedule(step % steps)
        if step % length == 0 and (step > length or not sampler):
            predictive.add(logits_of(network, test[0]))
            curve.rows.append([step / len(batches), negative_log_likelihood(predictive.probabilities, test[1])])

    settings = dict(method=method, seed=seed, epochs=epochs, cycle=cycle, size=list(size), rows=rows, lr=lr)
    settings |= {"longer": longer, "held_back": held_back, "full": full, "normalised": normalised}
    train(
        network,
        optimizer,
        batches,
        epochs=epochs,
        lr=lambda epoch: None if sampler else schedule(epoch * len(batches)),
        draw=draw,
        folder=study.scratch(run, **settings),
        settings=settings,
        loss=loss_of(method, len(data[0])),
        predictive=predictive,
        curve=curve,
    )
    single = logits_of(network, test[0]).double().softmax(-1)
    result = {"single": scores(single, test[1]), "predictive": scores(predictive.probabilities, test[1])}
    learned = logits_of(network, data[0]).double().softmax(-1)
    result["training"] = {
        "accuracy": 100 * accuracy(learned, data[1]),
        "nll": negative_log_likelihood(learned, data[1]),
    }
    return result | {"curve": curve.rows, "samples": predictive.draws, "thermostat": thermostat(optimizer)}


@torch.no_grad()
def logits_of(network: Module, x: Tensor) -> Tensor:
    """In evaluation mode."""
    network.eval()
    logits = torch.cat([network(part) for part in x.split(500)])
    network.train()
    return logits


def thermostat(optimizer: torch.optim.Optimizer) -> float | None:
    """The mean of xi h_0 at the end: the friction that the noise of the gradients has called for, per step."""
    if not isinstance(optimizer, samplers.Optimizer):
        return None
    xi = torch.cat([s["xi"].flatten() for s in optimizer.state.values()])
    top = H0 if "Dmin" in optimizer.param_groups[0] else -math.log(MOMENTUM) / optimizer.param_groups[0]["A"]
    return float(xi.mean() * top)


def scores(p: Tensor, labels: Tensor) -> dict:
    """Of probabilities, with the NLL of each image, for comparisons; eight bins of confidence."""
    bins = reliability(p, labels, bins=8)
    return {
        "accuracy": 100 * accuracy(p, labels),
        "nll": negative_log_likelihood(p, labels),
        "ece": expected_calibration_error(p, labels),
        "each": negative_log_likelihood(p, labels, each=True).tolist(),
        "confidence": bins.confidence.tolist(),
        "right": bins.accuracy.tolist(),
        "count": bins.count.tolist(),
    }


def noise(study: Study, epochs: int, size: tuple[int, int], rows: int | None = None, full: bool = False) -> dict:
    """V_g, the mean over the weights of ResNet++ of the variance of a minibatch's gradient, U for 50,000 images.

    At the start, and after so many epochs of SGD; xi of ATMC comes to D where V_g is 2 m D/h.
    """
    data, _ = images_of(study, rows, full, False)
    network = residual(depth=size[0], filters=size[1], batch_norm=False, seed=0).to(data[0].device)
    batches = samplers.Minibatches(data, min(BATCH, len(data[0])), seed=0)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.03, momentum=MOMENTUM)
    loss = loss_of("SGD", len(data[0]))
    variances = {"start": variance(network, batches)}
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            loss(network, x, y).backward()
            optimizer.step()
    return variances | {"end": variance(network, batches)}


def variance(network: Module, batches: samplers.Minibatches) -> float:
    """The mean over the weights of the variance of IMAGES times the gradient of the mean loss of a minibatch."""
    gradients = []
    for x, y in batches:
        parts = torch.autograd.grad(cross_entropy(network(x), y), list(network.parameters()))
        gradients.append(IMAGES * torch.cat([g.flatten() for g in parts]))
    return float(torch.stack(gradients).var(0).mean())


# ---- claims


def claims(study: Study) -> list[Claim]:
    """Of Table 1 and Figure 2."""
    seeds, epochs, cycle, size, rows, longer, full = study.of_scale(
        ((0,), 3, 1, (8, 2), 120, 10.0, False),
        ((0, 1, 2), 60, 10, (8, 8), None, 10.0, False),
        ((0,), 1000, 50, (56, 32), None, 1.0, True),
    )
    common = {"epochs": epochs, "cycle": cycle, "size": size, "rows": rows, "longer": longer, "full": full}
    table = {}
    for method in PAPER:
        lr = chosen(study, method, common)
        table[method] = study.results(run, [{"method": method, "seed": seed, "lr": lr} | common for seed in seeds])
    picture(study, table)
    V_g = study.result(noise, epochs=max(1, epochs // 6), size=size, rows=rows, full=full)
    drafts = [*(row(method, results) for method, results in table.items()), *claims_of(table), begins(V_g)]
    less = "" if full else f"{part(epochs, 1000, 'epochs')}, a smaller network, fewer images"
    return [replace(claim, seeds=len(seeds), reduced=less) for claim in drafts]


def chosen(study: Study, method: str, common: dict) -> float:
    """lr of SGD by the NLL of the data held back, in a run of a sixth of the epochs."""
    if not method.startswith("SGD,") and method != "SGD":
        return 0.0
    shorter = common | {"epochs": max(1, common["epochs"] // 6), "cycle": max(1, common["epochs"] // 6)}

    def held_back(lr: float) -> dict:
        return {"method": method, "seed": 0, "lr": lr, "held_back": True} | shorter

    return study.best((0.1, 0.03), run, held_back, lambda result: result["single"]["nll"])


def over_seeds(results: list[dict], which: str, score: str) -> list[float]:
    """A score of the single sample, or of the average."""
    return [r[which][score] for r in results]


def row(method: str, results: list[dict]) -> Claim:
    """Accuracy and NLL; the reduced networks are not the paper's, so that only the full ones are held against it."""

    def text(which: str) -> str:
        nll = spread(over_seeds(results, which, "nll"), 3)
        return f"{spread(over_seeds(results, which, 'accuracy'), 1)} %, {nll}"

    single, average = PAPER[method]
    paper = f"{single[0]} %, {single[1]}" + (f"; {average[0]} %, {average[1]}" if average else "")
    here = text("single") + (f"; {text('predictive')} of {results[0]['samples']} samples" if average else "")
    close = abs(fmean(over_seeds(results, "single", "accuracy")) - single[0]) < 1
    return Claim(f"{method}: accuracy, NLL", paper, here, Kind.FIGURE, close)


def gap(table: dict, one: tuple[str, str], other: tuple[str, str]) -> tuple[float, float]:
    """NLL of the first less that of the second, over seeds and images, with the error of the images."""
    each = [torch.tensor([r[which]["each"] for r in table[method]]).mean(0) for method, which in (one, other)]
    difference = paired(*each)
    return difference.value, difference.error


def less(table: dict, words: str, paper: str, one: tuple[str, str], other: tuple[str, str], why: str = "") -> Claim:
    """That the first has the lower NLL, within two standard errors not decided."""
    value, error = gap(table, one, other)
    holds = None if abs(value) < 2 * error else value < 0
    why = why if value > 0 else ""
    return Claim(words, paper, f"NLL less by {-value:.3f} +- {error:.3f}", Kind.COMPARISON, holds, why)


EARLY = "the first samples, of networks that still learn, are in the average"
ALIKE = "neither thermostat has begun, see below; steps of ATMC have a limit, those of SGNHT have not"


def claims_of(table: dict) -> list[Claim]:
    """The comparisons, paired by image."""
    atmc, sgnht, average = ("ATMC", "single"), ("SGNHT", "predictive"), ("ATMC", "predictive")
    curve = [r["curve"] for r in table["ATMC"]]
    first, last = (fmean(c[k][1] for c in curve) for k in (0, -1))
    worst = {m: calibration(results) for m, results in table.items() if m != "SGNHT"}
    xi = {m: fmean(r["thermostat"] for r in table[m]) for m in ("ATMC", "SGNHT")}
    needed = -math.log(MOMENTUM)
    return [
        less(table, "one sample of ATMC beats SGD without batch norm", ".303, .370", atmc, ("SGD", "single")),
        less(table, "the average of ATMC beats one sample", ".194, .303", average, atmc, EARLY),
        less(table, "... and SGD with batch norm", ".194, .243", average, ("SGD, batch norm", "single")),
        less(table, "... and SGNHT", ".194, .211", average, sgnht, ALIKE),
        Claim(
            "no overfitting in longer runs",
            "Figure 2",
            f"NLL of the average {first:.3f} after the first sample, {last:.3f} after the last",
            Kind.COMPARISON,
            last <= first,
        ),
        Claim(
            "the average is calibrated where the confidence is below .9",
            "Figure 2",
            "; ".join(f"{m} off by {100 * x:.1f} points" for m, x in worst.items()),
            Kind.COMPARISON,
            worst["ATMC"] < min(worst["SGD"], worst["SGD, batch norm"]),
        ),
        Claim(
            "the thermostat makes up for the noise of the gradients",
            "2.2",
            f"mean xi h_0 at the end: ATMC {xi['ATMC']:.4f}, below D h_0 = {needed:.3f} it is no friction; SGNHT "
            f"{xi['SGNHT']:.4f}, which begins at {needed:.3f}",
            Kind.COMPARISON,
            xi["ATMC"] > 0.1 * needed,
            ""
            if xi["ATMC"] > 0.1 * needed
            else "xi moves by about 1 a unit of time, 1/h_0 steps, and D is 105: the "
            "run ends before the thermostat has begun; it is SGHMC that takes its gradients to be without noise",
        ),
    ]


def begins(V_g: dict) -> Claim:
    """Whether the noise of the gradients brings the thermostat to D."""
    h, D = H0, -math.log(MOMENTUM) / H0
    m = samplers.RelativisticATMC.convert(h0=H0, momentum=MOMENTUM, rms_step=RMS_STEP, max_step=MAX_STEP)["m"]
    ours = f"V_g = {V_g['start']:.2g} at the start, {V_g['end']:.2g} after training, a weight of this network"
    holds = max(V_g.values()) > 2 * m * D / h
    why = "xi has the mean h V_g/(2m): below 2 m D/h the friction is D, and the noise is not made up for"
    paper = f"derived: V_g above 2 m D/h = {2 * m * D / h:.2g} a weight"
    return Claim("the noise of the gradients brings xi to D", paper, ours, Kind.COMPARISON, holds, why)


def calibration(results: list[dict]) -> float:
    """The mean of |accuracy - confidence| over images of a confidence below .9, by bin, over seeds."""
    values = []
    for r in results:
        bins = zip(*(r["predictive"][key] for key in ("confidence", "right", "count")))
        low = [(abs(a - c) * n, n) for c, a, n in bins if n and c < 0.9]
        values.append(sum(x for x, _ in low) / max(1, sum(n for _, n in low)))
    return fmean(values)


def picture(study: Study, table: dict) -> None:
    """Figure 2, and the NLL of the average by epoch."""
    with study.figure("cifar", columns=2) as (left, right):
        for method, results in table.items():
            r = results[0]["predictive"]
            left.plot(r["confidence"], r["right"], "o-", label=method)
            if results[0]["samples"] > 1:
                right.plot(*zip(*results[0]["curve"]), "o-", label=f"{method}, average")
        left.plot([0, 1], [0, 1], "k--")
        left.set(xlabel="confidence", ylabel="accuracy")
        right.set(xlabel="epoch", ylabel="NLL")
        left.legend(fontsize=7)
        right.legend(fontsize=7)


EXPERIMENT = Experiment(
    "atmc-cifar",
    "ATMC (Heek & Kalchbrenner 2019), Table 1 and Figure 2: CIFAR-10",
    claims,
    files=[EXACT],
    seeds="3 seeds",
    full_files=[LOSSY],
)
