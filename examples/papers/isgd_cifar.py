"""A residual network on CIFAR-10: Franzese et al. (2021), Table 4.

The baseline is Adam at lr .01, which falls to a tenth after each quarter of the run, with the weight decay .05 or that
of N(0, 1), chosen by NLL on the last sixth of the training data. From it start i-SGD, a lambda for each layer, and
SGHMC at T = 1, VSGD with the step 1/lambda of the whole network, and SWAG; their prior is N(0, 1), which is not
printed. lr of SGHMC and SWAG is chosen like the decay. The network has batch normalisation, which no energy covers:
gradients are of a batch's own means and variances, predictions of their running averages, which are made anew for each
draw of SWAG.

Reduced: 8 layers of 4 filters instead of ResNet-18, the exact pixels of 2000 and 1000 images, 16 of 200 epochs, and
8 draws that are an epoch of 15 steps apart instead of 30 with 10,000.
"""

from dataclasses import replace
from operator import itemgetter
from typing import Any

import torch
from atmc_cifar import EXACT, LOSSY, images_of, logits_of
from isgd_lenet import BATCH, mean, optimizer_of, order, row, weakest
from networks import residual
from study import Experiment, Study
from torch import Tensor
from torch.nn import Module
from torch.optim.swa_utils import update_bn
from training import train
from verdicts import Claim, Kind, part

import samplers
from samplers.scores import accuracy, expected_calibration_error, negative_log_likelihood

EPOCHS = 200  # of the paper's baseline
COLUMNS = {"nll": "NLL", "H0": "H0", "ece": "ECE"}
METHODS = ("baseline", "i-SGD", "SGHMC", "VSGD", "SWAG")
PAPER = {  # accuracy %, mean NLL, H0, ECE
    "baseline": (82.73, 0.805, 0.225, 0.081),
    "i-SGD": (85.91, 0.439, 0.611, 0.073),
    "SGHMC": (86.35, 0.436, 0.630, 0.082),
    "VSGD": (82.56, 0.892, 0.176, 0.091),
    "SWAG": (80.61, 0.590, 0.531, 0.016),
}
CHOSEN = {"SGHMC": (0.1, 0.03), "SWAG": (0.1, 0.03)}  # lr, tried
DECAYS = (0.05, 0.0)  # of Adam; 0 stands for N(0, 1)


def begun(size: tuple[int, int], seed: int, device: torch.device) -> Module:
    """The network as it starts; `size`: depth and filters."""
    return residual(depth=size[0], filters=size[1], batch_norm=True, seed=seed).to(device)


def trained(study: Study, seed: int, epochs: int, size: tuple[int, int], decay: float, **images: Any) -> dict:
    """The baseline: its parameters and running averages, and the NLL of what is predicted."""
    data, test = images_of(study, **images)
    network = begun(size, seed, data[0].device)
    settings = {"seed": seed, "epochs": epochs, "size": list(size), "decay": decay, **images}
    rate = decay or 1 / len(data[0])
    train(
        network,
        torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=rate),
        samplers.Minibatches(data, min(BATCH, len(data[0])), seed=seed),
        epochs=epochs,
        lr=lambda epoch: 0.01 * 0.1 ** (4 * epoch // epochs),
        draw=lambda step: None,
        folder=study.scratch(trained, **settings),
        settings=settings,
    )
    p = logits_of(network, test[0]).double().softmax(-1)
    state = {name: tensor.tolist() for name, tensor in network.state_dict().items()}
    return {"state": state, "nll": negative_log_likelihood(p, test[1])}


def run(
    study: Study,
    method: str,
    seed: int,
    epochs: int,
    size: tuple[int, int],
    decay: float,
    draws: int,
    apart: int,
    lr: float = 0.0,
    **images: Any,
) -> dict:
    """The scores of the averaged predictions, `draws` of them, so many epochs `apart`, after a fifth as many."""
    start = study.result(trained, seed=seed, epochs=epochs, size=size, decay=decay, **images)["state"]
    data, test = images_of(study, **images)
    network = begun(size, seed, data[0].device)
    network.load_state_dict({name: torch.tensor(values) for name, values in start.items()})
    predictive, swag = samplers.Predictive(), samplers.SWAG(rank=20)
    if method == "baseline":
        predictive.add(logits_of(network, test[0]))
        return scores(predictive, test[1])
    batches = samplers.Minibatches(data, min(BATCH, len(data[0])), seed=seed + 100)
    burn_in, total = draws * apart // 5, draws * apart + draws * apart // 5
    steps = len(batches)
    optimizer = optimizer_of(method, network, data, total * steps, burn_in * steps, lr, seed)
    rate = optimizer.param_groups[0]["lr"]

    def draw(step: int) -> None:
        epoch, rest = divmod(step, steps)
        if rest or epoch <= burn_in or (epoch - burn_in) % apart:
            return
        if method == "SWAG":
            swag.add(dict(network.named_parameters()))
        else:
            predictive.add(logits_of(network, test[0]))

    settings = {"method": method, "seed": seed, "epochs": epochs, "size": list(size), "decay": decay, "draws": draws}
    settings |= {"apart": apart, "lr": lr, **images}
    train(
        network,
        optimizer,
        batches,
        epochs=total,
        lr=lambda epoch: rate,
        draw=draw,
        folder=study.scratch(run, **settings),
        settings=settings,
        predictive=predictive,
        swag=swag,
    )
    samples = swag.sample(draws, seed=seed) if method == "SWAG" else {}
    for k in range(draws if samples else 0):
        with torch.no_grad():
            for name, p in network.named_parameters():
                p.copy_(samples[name][k])
        update_bn(data[0].split(BATCH), network)
        predictive.add(logits_of(network, test[0]))
    return scores(predictive, test[1])


def scores(predictive: samplers.Predictive, labels: Tensor) -> dict:
    """Of the averages."""
    p = predictive.probabilities
    return {
        "accuracy": accuracy(p, labels),
        "nll": negative_log_likelihood(p, labels),
        "H0": float(predictive.entropy.mean()),
        "ece": expected_calibration_error(p, labels),
    }


# ---- claims


def claims(study: Study) -> list[Claim]:
    """The rows of Table 4, and their order."""
    seeds, epochs, size, draws, apart, rows, full = study.of_scale(
        ((0,), 4, (8, 2), 5, 1, 300, False),
        ((0, 1, 2), 16, (8, 4), 8, 1, 2000, False),
        ((0, 1, 2), EPOCHS, (20, 64), 30, 26, None, True),
    )
    images = {"rows": rows, "full": full}
    common = {"epochs": epochs, "size": size} | images

    def start(decay: float) -> dict:
        return {"seed": 0, "epochs": epochs, "size": size, "decay": decay, "held_back": True} | images

    common |= {"decay": study.best(DECAYS, trained, start, itemgetter("nll")), "draws": draws, "apart": apart}
    table = {}
    for method in METHODS:
        tried = common | {"method": method, "seed": 0, "held_back": True}
        rates = CHOSEN.get(method, (0.0,))
        lr = study.best(rates, run, lambda lr, tried=tried: tried | {"lr": lr}, itemgetter("nll"))
        settings = common | {"method": method, "lr": lr, "held_back": False}
        table[method] = study.results(run, [settings | {"seed": seed} for seed in seeds])
    drafts = [*(row(name, results, PAPER[name], COLUMNS, near=1) for name, results in table.items()), *claims_of(table)]
    less = "" if full else f"{part(epochs, EPOCHS, 'epochs')}, a smaller network, fewer images, {draws} of 30 draws"
    return [replace(claim, seeds=len(seeds), reduced=less) for claim in drafts]


def claims_of(table: dict[str, list[dict]]) -> list[Claim]:
    """What the paper sees in its table: paired by seed."""
    better = (("i-SGD", "baseline"), ("SGHMC", "baseline"))

    def of(score: str, *names: str) -> str:
        return ", ".join(f"{name} {mean(table[name], score):.3f}" for name in names)

    return [
        Claim(
            "i-SGD and SGHMC have a lower NLL than the baseline",
            "Table 4: .439, .436; .805",
            of("nll", "i-SGD", "SGHMC", "baseline"),
            Kind.COMPARISON,
            weakest([order(table, "nll", pair) for pair in better]),
        ),
        Claim(
            "... and a higher accuracy",
            "Table 4: .859, .863; .827",
            of("accuracy", "i-SGD", "SGHMC", "baseline"),
            Kind.COMPARISON,
            weakest([order(table, "accuracy", pair[::-1]) for pair in better]),
        ),
        Claim(
            "VSGD has no lower NLL than the baseline",
            "Table 4: .892; .805",
            of("nll", "VSGD", "baseline"),
            Kind.COMPARISON,
            order(table, "nll", ("baseline", "VSGD")),
            "its step is so short that it stays at the baseline",
        ),
        Claim(
            "averages are less certain than the baseline: H0 is higher",
            "Table 4: .611, .630; .225",
            of("H0", "i-SGD", "SGHMC", "baseline"),
            Kind.COMPARISON,
            weakest([order(table, "H0", pair[::-1]) for pair in better]),
            f"no gain by itself: beside the baseline's NLL of {mean(table['baseline'], 'nll'):.3f} theirs is "
            + " and ".join(f"{mean(table[name], 'nll'):.3f}" for name, _ in better),
        ),
    ]


EXPERIMENT = Experiment(
    "isgd-cifar",
    "i-SGD (Franzese et al. 2021), Table 4: CIFAR-10",
    claims,
    files=[EXACT],
    full_files=[LOSSY],
    seeds="3 seeds",
)
