"""RMSprop of Santa's authors on JSB chorales by the size of a batch: why it is above the printed figure elsewhere here.

`santa_music` has batches of 16 pieces, where the release takes one sequence at a time; there RMSprop with the constants
of the release and its scaled gradients is above the printed NLL, and still falls at the end. Here the same optimizer
has one piece at a time, and 16 as the control. A step of RMSprop is about lr long whatever the gradient, so that a run
goes as far as it has steps: the two are compared after equal epochs, and after equal steps. Network, data and score are
those of `santa_music`; the epoch is chosen on the validation set.

Reduced are the epochs.
"""

from dataclasses import asdict, replace
from statistics import fmean

from santa_music import BATCH, EPOCHS, NEAR, PRINTED, Setting, learned
from study import Experiment, Study, spread
from verdicts import Claim, Kind, part, rises

SETTING = Setting("rmsprop-scaled", 1e-3)
ALONE = 1


def claims(study: Study) -> list[Claim]:
    """The figure with one piece at a time, and the two sizes after equal epochs and after equal steps."""
    units, epochs, longer, seeds = study.of_scale((8, 2, 4, 2), (200, 3, 45, 3), (200, EPOCHS, EPOCHS, 3))
    own = {"data": "jsb", "units": units} | asdict(SETTING)
    runs = {
        size: study.results(
            learned, [own | {"epochs": length, "batch": size, "seed": seed} for seed in range(1, seeds + 1)]
        )
        for size, length in ((ALONE, epochs), (BATCH, longer))
    }
    picture(study, runs)
    return [
        replace(claim, seeds=seeds, reduced=part(epochs, EPOCHS, "epochs"))
        for claim in (of_figure(runs[ALONE]), of_epochs(runs, epochs), of_steps(runs, epochs, longer))
    ]


def of_figure(runs: list[dict]) -> Claim:
    """The test NLL after the best epoch beside the printed one."""
    ours, printed = [run["test"] for run in runs], PRINTED["RMSprop"]["jsb"]
    why = f"best after epochs {', '.join(str(int(run['epoch'])) for run in runs)}"
    near = abs(fmean(ours) - printed) <= NEAR
    words = "RMSprop as released, one piece at a time, test NLL"
    return Claim(words, f"{printed:.2f}", spread(ours), Kind.FIGURE, near, why)


def after(runs: list[dict], epochs: int) -> list[float]:
    """The test NLL after so many epochs, by seed."""
    return [run["curve"][epochs - 1][2] for run in runs]


def of_epochs(runs: dict[int, list[dict]], epochs: int) -> Claim:
    """Whether single pieces are lower after equal epochs."""
    alone, sixteen = (after(runs[size], epochs) for size in (ALONE, BATCH))
    ours = f"{spread(alone)} with one, {spread(sixteen)} with {BATCH}, after {epochs} epochs"
    lower = rises([alone, sixteen])
    return Claim("... is lower than in batches of 16 after equal epochs", "control", ours, Kind.COMPARISON, lower)


def of_steps(runs: dict[int, list[dict]], epochs: int, longer: int) -> Claim:
    """Whether the number of steps alone is the reason: the same NLL after as many of them."""
    steps = {size: runs[size][0]["steps"] for size in runs}
    whole = max(1, min(epochs, longer * steps[BATCH] // steps[ALONE]))
    at = {ALONE: whole, BATCH: min(longer, round(whole * steps[ALONE] / steps[BATCH]))}
    alone, sixteen = (after(runs[size], at[size]) for size in (ALONE, BATCH))
    numbers = {size: at[size] * steps[size] for size in runs}
    ours = (
        f"{spread(alone)} after {numbers[ALONE]} steps with one, {spread(sixteen)} after {numbers[BATCH]} with {BATCH}"
    )
    alike = abs(fmean(alone) - fmean(sixteen)) <= NEAR
    words = f"... and for its number of steps alone: after equal steps the two are within {NEAR}"
    why = "with 16 it is lower after equal steps: more steps an epoch are all that single pieces gain"
    return Claim(words, "control", ours, Kind.COMPARISON, alike, why if fmean(sixteen) < fmean(alone) - NEAR else "")


def picture(study: Study, runs: dict[int, list[dict]]) -> None:
    """The test NLL by steps."""
    with study.figure("batches") as axes:
        for size, of_size in runs.items():
            for k, run in enumerate(of_size):
                steps = [row[0] * run["steps"] for row in run["curve"]]
                label = f"batches of {size}" if k == 0 else None
                axes.semilogx(steps, [row[2] for row in run["curve"]], color=f"C{size > 1:d}", label=label)
        axes.axhline(PRINTED["RMSprop"]["jsb"], color="black", linestyle="--", label="printed")
        axes.set(xlabel="steps", ylabel="test NLL")
        axes.legend()


EXPERIMENT = Experiment(
    "santa-batches",
    "Santa (Chen, Carlson, Gan, Li & Carin 2016), RMSprop on JSB chorales by the size of a batch",
    claims,
    files=["polymusic/jsb.npz"],
    seeds="3 seeds",
)
