"""pSGLD on MNIST with a convolutional network: Li, Chen, Carlson & Carin (2016), Table 3 and Figure 5.

Convolutions of 5 x 5 with 32 and 64 maps, not padded here, each with ReLU and max-pooling, two hidden layers of 200,
the prior N(0, I), batches of 100, 20 epochs, a step size that halves after ten. The paper does not print its step
sizes: these are those of its networks without convolutions. Of its table SGLD and RMSprop are as Chen, Carlson, Gan,
Li & Carin (2016) print them of the same network.
"""

from dataclasses import asdict, replace
from typing import Any

from datasets import IDX_FILES
from networks import convolutional
from psgld_learner import Setting, data_of, learned
from psgld_mnist import Row, difference, of_row
from study import Experiment, Study
from torch.nn import Module, Sequential, Unflatten
from verdicts import Claim, part

SETTINGS = {
    "pSGLD, T = 1/N": Setting("psgld-same-step", 5e-4, cold=True, stages=2),
    "pSGLD, T = 1": Setting("psgld-same-step", 5e-4, stages=2),
    "SGLD, T = 1/N": Setting("sgld", 0.5, cold=True, stages=2),
    "RMSprop": Setting("rmsprop", 5e-4, stages=2),
    "SGD": Setting("sgd", 0.5, stages=2),
}
LAST = ("RMSprop", "SGD")  # of which the last iterate counts
PRINTED = {"pSGLD, T = 1/N": 0.45, "pSGLD, T = 1": 0.45, "SGLD, T = 1/N": 0.71, "RMSprop": 0.64, "SGD": 0.82}


def cnn(study: Study, **settings: Any) -> dict:
    """The scores of a network, which goes on where it was interrupted."""
    return learned(study, study.scratch(cnn, **settings), network_of, **settings)


def network_of(seed: int) -> Module:
    """For images of 28 x 28."""
    return Sequential(Unflatten(1, (1, 28)), *convolutional(channels=(32, 64), hidden=200, seed=seed))


def claims(study: Study) -> list[Claim]:
    """The rows of Table 3, and pSGLD beside each of the others, as the last iterate and averaged."""
    epochs, seeds = study.of_scale((1, 1), (6, 1), (20, 3))
    rows = len(data_of(study, validate=False)[1][1])
    runs: dict[str, list[dict]] = {name: [] for name in SETTINGS}
    for seed in range(1, seeds + 1):  # the first seed of all before the second of any
        size = {"epochs": epochs, "seed": seed}
        results = study.results(cnn, [size | asdict(setting) for setting in SETTINGS.values()])
        for name, result in zip(SETTINGS, results, strict=True):
            runs[name].append(result)
    table = {
        name: Row(setting, runs[name], "last" if name in LAST else "average") for name, setting in SETTINGS.items()
    }
    averaged = {f"{name}, averaged": Row(SETTINGS[name], runs[name]) for name in LAST}
    drafts = [of_row(name, PRINTED[name], row) for name, row in table.items()]
    ours, *rivals = table
    for name in rivals:
        paper = f"{PRINTED[ours]} and {PRINTED[name]} %"
        drafts.append(difference(f"{ours} below {name}", paper, table[ours], table[name], rows))
    why = "the same iterates without noise"
    for name, row in averaged.items():
        drafts.append(difference(f"{ours} below {name}", "control", table[ours], row, rows, why))
    return [replace(claim, seeds=seeds, reduced=part(epochs, 20, "epochs")) for claim in drafts]


EXPERIMENT = Experiment(
    "psgld-cnn",
    "pSGLD (Li, Chen, Carlson & Carin 2016), Table 3: MNIST, convolutional",
    claims,
    files=[f"mnist/{name}" for name in IDX_FILES],
    seeds="one seed",
)
