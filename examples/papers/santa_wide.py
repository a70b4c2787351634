"""Santa on MNIST with a wider network: Chen, Carlson, Gan, Li & Carin (2016), the column FNN-800.

All is as in `santa_mnist`, with 800 units in a layer. eta and C of Santa, and lr of the others, are chosen again, among
what the narrower network has and a value beside it. "Released", whose settings differ by network, is left out, and so
is "refinement only".

Reduced are the epochs, and three seeds to one, which decides nothing.
"""

from dataclasses import asdict

from datasets import IDX_FILES
from santa_mnist import EPOCHS, SUM, Setting, chosen, claims_of, memory, remembered, table_of
from study import Experiment, Study
from verdicts import Claim

SANTA = "Santa, poster"
METHODS = {  # the candidates
    SANTA: [Setting("santa", 4e-9 * SUM, C, 0.5) for C in (0.1, 0.3)],
    "Adam": [Setting("adam", lr) for lr in (1e-3, 2e-3)],
    "RMSprop": [Setting("rmsprop", lr) for lr in (1e-3, 2e-3)],
    "SGD-M": [Setting("momentum", lr) for lr in (0.1, 0.2)],
    "SGD": [Setting("sgd", lr) for lr in (0.5, 1.0)],
}
PRINTED = {SANTA: 1.16, "Adam": 1.47, "RMSprop": 1.43, "SGD-M": 1.72, "SGD": 1.47}


def claims(study: Study) -> list[Claim]:
    """The column of the table, and whether Santa is below all."""
    hidden, epochs, seeds, trial = study.of_scale((16, 3, 1, 1), (800, 3, 1, 1), (800, EPOCHS, 3, 20))
    settings = {name: chosen(study, candidates, hidden, trial) for name, candidates in METHODS.items()}
    table = table_of(study, settings, hidden, epochs, seeds)
    why = {SANTA: remembered(study.result(memory, hidden=hidden, **asdict(settings[SANTA])))}
    return claims_of(study, table, epochs, why, PRINTED)


EXPERIMENT = Experiment(
    "santa-wide",
    "Santa (Chen, Carlson, Gan, Li & Carin 2016), test error on MNIST, FNN-800",
    claims,
    files=[f"mnist/{name}" for name in IDX_FILES],
    seeds="one seed",
)
