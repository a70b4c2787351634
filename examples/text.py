"""A small transformer on text: what samplers add to AdamW in a short run, beside averages and ensembles.

    python examples/text.py              # some twenty minutes of one core
    python examples/text.py --table FILE # the table of a text.json, without training

The text is the standard library's own documentation, `pydoc_data.topics`, which changes with the version of Python.
A paragraph of several topics is kept in the longest of them. Of the topics, from the longest to the shortest, every
sixth serves to choose settings, every sixth to test, and the others to train. A network of two layers predicts each
character from at most 64 before it. An example is a row of 64 characters, and its loss the sum over the row. Samplers
draw the weights theta from exp(-U/T), U = num_data * loss + |theta|^2/(2 * PRIOR), where num_data counts the rows;
pSGLD has this law for a frozen V alone.

Every row of the table has the same number of steps, but the second ensemble. AdamW decays its lr along a cosine. Other
methods take the place of the last third of its steps, and begin at the weights that AdamW has there. Averages of
weights, or of predictions, are of AdamW at a constant lr, with the moments from before. Samplers at T = 1 move all
weights, the last layer, or matrices of low rank that are added to the layers (LoRA). Each sampler but SGNHT runs at
T = 0 too, at the lr chosen for T = 1, as the control without noise. The first ensemble has three networks of a third of
the steps each, the second the networks of AdamW of all seeds.

Learning rates are those of the least NLL on the validation text, in the run of the first seed: of averages that of the
predictions, of the first ensemble that of its first network. The test text chooses nothing. Scores are of the average
of the predictions of six draws, and of the last weights alone. NLL is in nats of a character, ECE in 15 bins; numbers
are means over seeds, +- their standard deviation.
"""

import argparse
import json
import math
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from pydoc_data.topics import topics
from statistics import fmean, stdev
from typing import Any

import matplotlib
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import samplers
from recipe import RecipeError
from samplers import Minibatches, Predictive
from samplers.scores import expected_calibration_error, negative_log_likelihood

matplotlib.use("Agg")
CONTEXT, WIDTH, HEADS, LAYERS, RANK = 64, 48, 4, 2, 4  # characters of a row, then of the network
BATCH, PRIOR, MEMBERS = 32, 0.1, 3  # rows of a step, variance of a weight, networks of an ensemble
TENTHS = range(5, 11)  # of the last third of the steps, at whose ends draws are taken
QUICK = 30  # steps


# ---- text


def paragraphs(texts: dict[str, str]) -> dict[str, str]:
    """The texts from the longest to the shortest, each without the paragraphs of those before it."""
    earlier: set[str] = set()
    kept = {}
    for name, text in sorted(texts.items(), key=lambda item: (-len(item[1]), item[0])):
        parts = {" ".join(part.split()): part for part in text.split("\n\n") if part.strip()}
        kept[name] = "\n\n".join(part for words, part in parts.items() if words not in earlier)
        earlier |= parts.keys()
    return kept


@dataclass(frozen=True)
class Text:
    """Rows of characters by number, `(rows, CONTEXT + 1)`: to learn from, to choose by and to test on."""

    alphabet: str
    train: Tensor
    validation: Tensor
    test: Tensor

    @classmethod
    def of(cls, texts: dict[str, str]) -> "Text":
        """The rows of texts by topic; the last character of a row is the first of the next row."""
        kept = sorted(filter(None, paragraphs(texts).values()), key=len, reverse=True)
        alphabet = "".join(sorted(set("".join(kept))))
        number = {character: k for k, character in enumerate(alphabet)}

        def rows(*remainders: int) -> Tensor:
            text = "\n\n".join(topic for k, topic in enumerate(kept) if k % 6 in remainders)
            return torch.tensor([number[character] for character in text]).unfold(0, CONTEXT + 1, CONTEXT)

        return cls(alphabet, rows(0, 1, 2, 5), rows(3), rows(4))


# ---- network


class Layer(nn.Module):
    """Attention to the characters before, and a perceptron, each added to what comes in."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_perceptron = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """The features `(rows, characters, WIDTH)`."""
        parts = self.query_key_value(self.before_attention(x)).unflatten(-1, (3, HEADS, WIDTH // HEADS))
        attended = scaled_dot_product_attention(*parts.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.wide(self.before_perceptron(x))))


class Transformer(nn.Module):
    """Logits of the next character at each of a row, `(rows, characters, alphabet)`."""

    def __init__(self, alphabet: int) -> None:
        super().__init__()
        self.character = nn.Embedding(alphabet, WIDTH)
        self.place = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm, self.last = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, alphabet)
        nn.init.normal_(self.character.weight, std=0.1)

    def forward(self, x: Tensor) -> Tensor:
        """The logits of numbers of characters, `(rows, characters)`."""
        return self.last(self.norm(self.layers(self.character(x) + self.place)))


class LowRank(nn.Module):
    """A frozen linear layer with the product of two thin matrices added to its own (Hu et al. 2021)."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.linear = linear
        self.thin = nn.Linear(linear.in_features, RANK, bias=False)
        self.back = nn.Linear(RANK, linear.out_features, bias=False)
        nn.init.zeros_(self.back.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The outputs."""
        return self.linear(x) + self.back(self.thin(x))


def last_layer(network: Transformer) -> None:
    """Freeze all weights but the last layer's."""
    network.requires_grad_(False)
    network.last.requires_grad_(True)


def low_rank(network: Transformer) -> None:
    """Freeze all weights, and add matrices of low rank to those of each linear layer before the last."""
    network.requires_grad_(False)
    for layer in network.layers:
        for name, module in list(layer.named_children()):
            if isinstance(module, nn.Linear):
                setattr(layer, name, LowRank(module))


def row_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Minus the log likelihood of a row of characters, its mean over rows."""
    return cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / len(targets)


@torch.no_grad()
def logits_of(network: nn.Module, rows: Tensor) -> Tensor:
    """The logits of every character after the first of each row, `(characters, alphabet)`."""
    return torch.cat([network(part[:, :-1]).flatten(0, 1) for part in rows.split(64)])


# ---- methods


@dataclass(frozen=True)
class Sampler:
    """A sampler of some of the weights: its name among the stock, settings, and the lrs to choose from."""

    recipe: str
    rates: tuple[float, ...]
    settings: dict[str, float] = field(default_factory=dict)
    of: Callable[[Transformer], object] = lambda network: None
    control: bool = True  # the same run at T = 0


RATES = (3e-5, 1e-4, 3e-4)
ADAMW = (2e-3, 4e-3, 8e-3)
CONSTANT = (0.5, 1.0, 2.0)  # lr of averages, in units of that of AdamW where they begin
SAMPLERS = {
    "SGHMC": Sampler("sghmc", RATES, {"momentum": 0.9}),
    "SGNHT": Sampler("sgnht", RATES, {"momentum": 0.9}, control=False),  # at T = 0 the thermostat only brakes
    "pSGLD": Sampler("psgld-same-step", (3e-4, 1e-3, 3e-3), {"lam": 1e-3}),
    "last layer": Sampler("sghmc", (1e-4, 3e-4, 1e-3), {"momentum": 0.9}, last_layer),
    "LoRA": Sampler("sghmc", (1e-3, 3e-3, 1e-2), {"momentum": 0.9}, low_rank),
}


@dataclass(frozen=True)
class Outcome:
    """What a run predicts of the text to choose by and to test on, by its draws and by its last weights.

    Both are `(characters, alphabet)`; `report` has what is wrong with a loop as a sampler.
    """

    average: Tensor
    last: Tensor
    report: Any = None


@dataclass(frozen=True)
class Trunk:
    """AdamW after two thirds of its steps: the network, the optimizer's state, and the lr by then."""

    network: Transformer
    state: dict[str, Any]
    lr: float


def steps_of(
    network: nn.Module, optimizer: torch.optim.Optimizer, rows: Tensor, seed: int, steps: int
) -> Iterator[int]:
    """Train for a number of steps; yields the number of each step that has been made."""
    epochs = repeat(Minibatches((rows[:, :-1], rows[:, 1:]), BATCH, seed=seed))
    for step, (x, y) in enumerate(islice(chain.from_iterable(epochs), steps), start=1):
        optimizer.zero_grad()
        row_loss(network(x), y).backward()
        optimizer.step()
        yield step


@dataclass(frozen=True)
class Study:
    """The text and the number of steps of a run."""

    text: Text
    steps: int

    @property
    def rest(self) -> int:
        """The last third of the steps."""
        return self.steps // 3

    @property
    def held_out(self) -> Tensor:
        """The rows to choose by and, after them, those to test on."""
        return torch.cat([self.text.validation, self.text.test])

    def adamw(self, lr: float, seed: int, steps: int, trunk_at: int = 0) -> tuple[Transformer, Trunk | None]:
        """A network that AdamW trains with an lr along a cosine, and its trunk at a step before the end."""
        torch.manual_seed(seed)
        network, trunk = Transformer(len(self.text.alphabet)), None
        optimizer = torch.optim.AdamW(network.parameters(), lr=lr)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for step in steps_of(network, optimizer, self.text.train, seed, steps):
            schedule.step()
            if step == trunk_at:
                trunk = Trunk(deepcopy(network), deepcopy(optimizer.state_dict()), optimizer.param_groups[0]["lr"])
        return network, trunk

    def plain(self, lr: float, seed: int) -> tuple[Outcome, Trunk | None]:
        """AdamW alone, its last weights, and its trunk."""
        network, trunk = self.adamw(lr, seed, self.steps, self.steps - self.rest)
        p = logits_of(network, self.held_out).double().softmax(-1)
        return Outcome(p, p), trunk

    def ensemble(self, lr: float, seed: int, members: int = MEMBERS) -> Outcome:
        """Networks of a share of the steps each; the last weights are those of the first of them."""
        numbers = range(1000 + MEMBERS * seed, 1000 + MEMBERS * seed + members)
        networks = [self.adamw(lr, number, self.steps // MEMBERS)[0] for number in numbers]
        logits = [logits_of(network, self.held_out) for network in networks]
        predictive = Predictive()
        for x in logits:
            predictive.add(x)
        return Outcome(predictive.probabilities, logits[0].double().softmax(-1))

    def averages(self, trunk: Trunk, seed: int, factor: float) -> tuple[Outcome, Outcome]:
        """AdamW at a factor times the lr of the trunk: by the average of its weights, and of its predictions."""
        network = deepcopy(trunk.network)
        optimizer = torch.optim.AdamW(network.parameters())
        optimizer.load_state_dict(trunk.state)
        optimizer.param_groups[0]["lr"] = factor * trunk.lr
        mean = torch.optim.swa_utils.AveragedModel(network)
        outcome = self.walk(network, optimizer, seed, mean.update_parameters)
        p = logits_of(mean, self.held_out).double().softmax(-1)
        return Outcome(p, outcome.last), outcome

    def sample(self, sampler: Sampler, lr: float, temperature: float, trunk: Trunk, seed: int) -> Outcome:
        """A sampler from the weights of the trunk, by the averages of its draws."""
        torch.manual_seed(seed)
        network = deepcopy(trunk.network)
        sampler.of(network)
        num_data = len(self.text.train)
        optimizer = samplers.Optimizer(
            network.parameters(),
            sampler.recipe,
            lr=lr,
            num_data=num_data,
            weight_decay=1 / (num_data * PRIOR),
            temperature=temperature,
            seed=seed,
            **sampler.settings,
        )
        return self.walk(network, optimizer, seed)

    def walk(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        seed: int,
        draw: Callable[[nn.Module], object] = lambda network: None,
    ) -> Outcome:
        """The last third of the steps, with its draws."""
        predictive = Predictive()
        at = {self.rest * tenth // 10 for tenth in TENTHS}
        for step in steps_of(network, optimizer, self.text.train, 100 + seed, self.rest):
            if step in at:
                logits = logits_of(network, self.held_out)
                predictive.add(logits)
                draw(network)
        report = optimizer.report() if isinstance(optimizer, samplers.Optimizer) else None
        return Outcome(predictive.probabilities, logits.double().softmax(-1), report)

    # ---- scores

    def validation_nll(self, outcome: Outcome) -> float:
        """The NLL of the text to choose by."""
        labels = self.text.validation[:, 1:].flatten()
        return negative_log_likelihood(outcome.average[: len(labels)], labels)

    def scores(self, outcome: Outcome) -> "Scores":
        """The scores on the text to test on."""
        labels = self.text.test[:, 1:].flatten()
        average, last = outcome.average[-len(labels) :], outcome.last[-len(labels) :]
        report = outcome.report
        findings = () if report is None else report.findings
        return Scores(
            negative_log_likelihood(average, labels),
            expected_calibration_error(average, labels),
            negative_log_likelihood(last, labels),
            next((f.value for f in findings if f.question.startswith("heat")), None),
            [f.question for f in findings if f.ok is False],
            None if report is None else report.verdict,
        )

    def best(self, rates: Sequence[float], run: Callable[[float], Any], outcome_of: Callable = lambda x: x) -> tuple:
        """The lr of the least NLL on the text to choose by, what `run` made of it, and the NLL of each that ran."""
        tried: dict[float, float] = {}
        best: tuple[float, Any] = (math.nan, None)
        for lr in rates:
            try:
                result = run(lr)
                nll = self.validation_nll(outcome_of(result))
            except RecipeError as error:  # a run has diverged
                print(f"lr = {lr:g} is left out: {error}")
                continue
            tried[lr] = nll
            if nll == min(tried.values()):
                best = lr, result
        if not tried:
            raise SystemExit(f"no run is left of lr = {', '.join(map(str, rates))}: give smaller ones")
        return *best, tried


@dataclass(frozen=True)
class Scores:
    """Scores of a run; the heat of its minibatches over T, and what its report finds wrong, in the order of repair."""

    nll: float
    ece: float
    nll_of_last: float
    heat: float | None
    wrong: list[str]
    verdict: str | None


@dataclass(frozen=True)
class Row:
    """A line of the table; `tried` has the NLL on the text to choose by of each lr."""

    method: str
    temperature: float | None
    steps: int
    lr: float
    tried: dict[float, float]
    runs: list[Scores]


def rows_of(study: Study, seeds: Sequence[int], rates: Callable[[tuple], tuple]) -> Iterator[Row]:
    """The rows of the table; `rates` says which of the lrs of a method are tried."""
    scores, steps, first = study.scores, study.steps, seeds[0]
    lr, best, tried = study.best(rates(ADAMW), partial(study.plain, seed=first), lambda best: best[0])
    plain = [best, *(study.plain(lr, seed) for seed in seeds[1:])]
    trunks = [trunk for _, trunk in plain]
    yield Row("AdamW", None, steps, lr, tried, [scores(outcome) for outcome, _ in plain])
    rest = [*zip(trunks, seeds)][1:]
    factor, best, tried = study.best(rates(CONSTANT), partial(study.averages, trunks[0], first), lambda best: best[1])
    both = [best, *(study.averages(trunk, seed, factor) for trunk, seed in rest)]
    constant, of_lr = factor * trunks[0].lr, {key * trunks[0].lr: nll for key, nll in tried.items()}
    yield Row("AdamW, weights averaged", None, steps, constant, {}, [scores(weights) for weights, _ in both])
    runs = [scores(predictions) for _, predictions in both]
    yield Row("AdamW, predictions averaged", None, steps, constant, of_lr, runs)
    together = Outcome(sum(outcome.average for outcome, _ in plain) / len(plain), plain[0][0].last)
    of_all = Row(f"ensemble of {len(plain)}, all steps each", None, len(plain) * steps, lr, {}, [scores(together)])
    del plain, both
    lr, _, tried = study.best(rates(ADAMW), partial(study.ensemble, seed=first, members=1))
    runs = [scores(study.ensemble(lr, seed)) for seed in seeds]
    yield Row(f"ensemble of {MEMBERS}", None, steps, lr, tried, runs)
    yield of_all
    for name, sampler in SAMPLERS.items():
        run = partial(study.sample, sampler)
        lr, best, tried = study.best(rates(sampler.rates), partial(run, temperature=1.0, trunk=trunks[0], seed=first))
        runs = [scores(best), *(scores(run(lr, 1.0, trunk, seed)) for trunk, seed in rest)]
        yield Row(name, 1.0, steps, lr, tried, runs)
        if sampler.control:
            runs = [scores(run(lr, 0.0, trunk, seed)) for trunk, seed in zip(trunks, seeds)]
            yield Row(name, 0.0, steps, lr, {}, runs)


# ---- table and picture


def spread(values: Sequence[float], digits: int, sign: str = "") -> str:
    """The mean, and the standard deviation over seeds where there are several."""
    deviation = f" +- {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):{sign}.{digits}f}{deviation}"


def table(rows: Sequence[dict[str, Any]]) -> str:
    """The rows of a text.json as a table of Markdown."""
    plain = [run["nll"] for run in rows[0]["runs"]]
    lines = [
        "| method | T | steps | lr | NLL | less AdamW's | of the last weights | ECE | heat over T | its report names |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        runs = row["runs"]
        nll, last, ece = ([run[score] for run in runs] for score in ("nll", "nll_of_last", "ece"))
        less = [x - y for x, y in zip(nll, plain)] if len(runs) > 1 else [nll[0] - fmean(plain)]
        heats = [run["heat"] for run in runs if run["heat"] is not None]
        T = "" if row["temperature"] is None else f"{row['temperature']:g}"
        wrong = sorted({run["wrong"][0] for run in runs if run["wrong"]})
        cells = [
            row["method"],
            T,
            str(row["steps"]),
            f"{row['lr']:g}",
            spread(nll, 3),
            spread(less, 3, "+") if row is not rows[0] else "",
            spread(last, 3),
            spread(ece, 3),
            f"{fmean(heats):.2g}" if heats else "",
            ", ".join(wrong),
        ]
        lines.append(f"| {' | '.join(cells)} |".replace("|  ", "| ").replace("  |", " |"))
    return "\n".join(lines)


def picture(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """NLL and ECE of each run, a line for each row."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 0.3 * len(rows) + 1), layout="constrained", sharey=True)
    names = [row["method"] + ("" if row["temperature"] is None else f", T = {row['temperature']:g}") for row in rows]
    for ax, score, title in zip(axes, ("nll", "ece"), ("NLL in nats of a character", "ECE")):
        for place, row in enumerate(rows):
            values = [run[score] for run in row["runs"]]
            ax.plot(values, [place] * len(values), "o", color="tab:blue" if row["temperature"] else "tab:gray")
        ax.set(xlabel=title, yticks=range(len(rows)), yticklabels=names)
        ax.grid(axis="y", alpha=0.3)
    axes[0].invert_yaxis()
    figure.savefig(path, dpi=80)
    pyplot.close(figure)


def main(argv: list[str] | None = None) -> list[dict[str, Any]]:
    """Run the example; returns the rows of its table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1200, help="of every run, default 1200; heat needs 960")
    parser.add_argument("--runs", type=int, default=3, help="seeds of each method, default 3")
    parser.add_argument("--out", type=Path, default=Path("out/text"), help="folder for what is written")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} steps, one lr, little text: seconds")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the table of this text.json, and end")
    options = parser.parse_args(argv)
    if options.table:
        rows = json.loads(options.table.read_text())["rows"]
        print(table(rows))
        return rows
    steps = QUICK if options.quick else options.steps
    if steps < 30 or options.runs < 2:
        parser.error("at least 30 steps, the last third of which has six draws, and 2 runs")
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)  # the tensors are small: threads would wait for each other
    started = time.process_time()

    text = Text.of(topics)
    if options.quick:
        text = Text(text.alphabet, text.train[:200], text.validation[:30], text.test[:30])
    sizes = {part: getattr(text, part)[:, 1:].numel() for part in ("train", "validation", "test")}
    weights = sum(w.numel() for w in Transformer(len(text.alphabet)).parameters())
    about = {"python": platform.python_version(), "characters": sizes, "weights": weights, "steps": steps}
    print(about)
    rows: list[dict[str, Any]] = []
    index = slice(1, 2) if options.quick else slice(None)
    for row in rows_of(Study(text, steps), range(options.runs), lambda rates: rates[index]):
        rows.append(asdict(row))
        seconds = time.process_time() - started
        print(f"{row.method}, T = {row.temperature}, {seconds:.0f} s: lr {row.lr:g} of {row.tried}, NLL", end=" ")
        print(spread([run.nll for run in row.runs], 3), flush=True)
        (options.out / "text.json").write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")
    print(table(rows))
    (options.out / "text.md").write_text(table(rows) + "\n")
    picture(options.out / "text.png", rows)
    return rows


if __name__ == "__main__":
    main()
