"""Santa and RMSprop on JSB chorales as their authors' code has them: one piece at a time, gradients of one norm.

`santa_music` has batches of 16 pieces and gradients as they are, where the release takes one sequence at a time and
scales the gradient of all parameters to the norm 5; there RMSprop with the constants of the release is above its
printed NLL, and still falls at the end. Here both have one piece at a time and scaled gradients; RMSprop has 16 as
well, as the control. A step of RMSprop is about lr long whatever the gradient, so that a run goes as
far as it has steps: the two sizes are compared after equal epochs, and after equal steps. Network, data and score are
those of `santa_music`; the epoch is chosen on the validation set.

Reduced are the epochs, to half: single pieces make sixteen times the steps, and the best epoch comes earlier.
"""

from dataclasses import asdict, replace
from statistics import fmean

from santa_music import BATCH, EPOCHS, NEAR, PRINTED, Setting, learned
from study import Experiment, Study, spread
from verdicts import Claim, Kind, part, rises

ALONE = 1
SANTA, RMSPROP = "Santa", "RMSprop"
METHODS = {
    SANTA: Setting("santa-scaled", 1e-3),
    RMSPROP: Setting("rmsprop-released-scaled", 1e-3),
}


def claims(study: Study) -> list[Claim]:
    """The figures with one piece at a time, whether Santa is lowest, and the two sizes of batches of RMSprop."""
    units, epochs, seeds = study.of_scale((8, 4, 2), (200, 50, 3), (200, EPOCHS, 3))

    def runs(setting: Setting, batch: int) -> list[dict]:
        own = {"data": "jsb", "units": units, "epochs": epochs, "batch": batch} | asdict(setting)
        return study.results(learned, [own | {"seed": seed} for seed in range(1, seeds + 1)])

    rows = {method: runs(setting, ALONE) for method, setting in METHODS.items()}
    sizes = {ALONE: rows[RMSPROP], BATCH: runs(METHODS[RMSPROP], BATCH)}
    picture(study, rows, sizes[BATCH])
    found = [of_figure(method, of_seed) for method, of_seed in rows.items()]
    found += [of_order(rows), of_epochs(sizes, epochs), of_steps(sizes, epochs)]
    return [replace(claim, seeds=seeds, reduced=part(epochs, EPOCHS, "epochs")) for claim in found]


def of_figure(method: str, runs: list[dict]) -> Claim:
    """The test NLL after the best epoch beside the printed one."""
    ours, printed = [run["test"] for run in runs], PRINTED[method]["jsb"]
    why = f"best after epochs {', '.join(str(int(run['epoch'])) for run in runs)}"
    near = abs(fmean(ours) - printed) <= NEAR
    return Claim(
        f"{method} as released, one piece at a time, test NLL", f"{printed:.2f}", spread(ours), Kind.FIGURE, near, why
    )


def of_order(rows: dict[str, list[dict]]) -> Claim:
    """Whether Santa is below RMSprop, beyond two standard errors."""
    tests = {method: [run["test"] for run in runs] for method, runs in rows.items()}
    ours = "; ".join(f"{method} {spread(of_seed)}" for method, of_seed in tests.items())
    printed = "; ".join(f"{method} {PRINTED[method]['jsb']:.2f}" for method in tests)
    return Claim(
        "Santa below RMSprop, both as released", printed, ours, Kind.COMPARISON, rises([tests[SANTA], tests[RMSPROP]])
    )


def after(runs: list[dict], epochs: int) -> list[float]:
    """The test NLL after so many epochs, by seed."""
    return [run["curve"][epochs - 1][2] for run in runs]


def of_epochs(runs: dict[int, list[dict]], epochs: int) -> Claim:
    """Whether single pieces are lower after as many epochs, the best of each counted."""
    alone, sixteen = ([run["test"] for run in runs[size]] for size in (ALONE, BATCH))
    ours = f"{spread(alone)} with one, {spread(sixteen)} with {BATCH}, in {epochs} epochs"
    lower = rises([alone, sixteen])
    return Claim("RMSprop is lower than in batches of 16 in equal epochs", "control", ours, Kind.COMPARISON, lower)


def of_steps(runs: dict[int, list[dict]], epochs: int) -> Claim:
    """Whether the number of steps alone is the reason: the same NLL after as many of them."""
    steps = {size: runs[size][0]["steps"] for size in runs}
    whole = max(1, epochs * steps[BATCH] // steps[ALONE])
    at = {ALONE: whole, BATCH: min(epochs, round(whole * steps[ALONE] / steps[BATCH]))}
    alone, sixteen = (after(runs[size], at[size]) for size in (ALONE, BATCH))
    numbers = {size: at[size] * steps[size] for size in runs}
    ours = (
        f"{spread(alone)} after {numbers[ALONE]} steps with one, {spread(sixteen)} after {numbers[BATCH]} with {BATCH}"
    )
    alike = abs(fmean(alone) - fmean(sixteen)) <= NEAR
    words = f"... and for its number of steps alone: after equal steps the two are within {NEAR}"
    why = "with 16 it is lower after equal steps: more steps an epoch are all that single pieces gain"
    return Claim(words, "control", ours, Kind.COMPARISON, alike, why if fmean(sixteen) < fmean(alone) - NEAR else "")


def picture(study: Study, rows: dict[str, list[dict]], sixteen: list[dict]) -> None:
    """The test NLL by steps."""
    with study.figure("batches") as axes:
        named = {f"{method}, single pieces": runs for method, runs in rows.items()}
        for color, (label, runs) in enumerate((named | {f"{RMSPROP}, batches of {BATCH}": sixteen}).items()):
            for k, run in enumerate(runs):
                steps = [row[0] * run["steps"] for row in run["curve"]]
                values = [row[2] for row in run["curve"]]
                axes.semilogx(steps, values, color=f"C{color}", label=label if k == 0 else None)
        axes.axhline(PRINTED[SANTA]["jsb"], color="black", linestyle="--", label="Santa, printed")
        axes.set(xlabel="steps", ylabel="test NLL")
        axes.legend(fontsize=7)


EXPERIMENT = Experiment(
    "santa-batches",
    "Santa (Chen, Carlson, Gan, Li & Carin 2016), Santa and RMSprop on JSB chorales as the code has them",
    claims,
    files=["polymusic/jsb.npz"],
    seeds="3 seeds",
)
