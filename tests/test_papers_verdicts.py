"""The policy of verdicts on the papers' claims: what refutes, what cannot, and what a row has to say."""

import json
import re
from itertools import product

import pytest

from recipe.errors import RecipeError

pytestmark = pytest.mark.usefixtures("papers")


def claim(kind, found, **standing):
    from verdicts import Claim, Kind

    return Claim("the words", "1.21 %", "1.72 %", Kind[kind], found, **standing)


def test_fails_is_no_verdict():
    from verdicts import Verdict

    words = {verdict.value for verdict in Verdict}
    assert words == {
        "reproduced",
        "reproduced at reduced scale",
        "holds only under another scoring or setting",
        "false as stated",
        "not decided here",
    }


@pytest.mark.parametrize("kind", ["FIGURE", "COMPARISON"])
@pytest.mark.parametrize("seeds", [1, 3, None])
def test_a_missed_figure_or_order_refutes_nothing(kind, seeds):
    missed = claim(kind, False, seeds=seeds, why="so it came out")
    assert missed.verdict.value == "not decided here"


def test_what_is_computed_refutes_with_its_reason_alone():
    assert claim("CLOSED_FORM", False, why="the friction amplifies").verdict.value == "false as stated"
    assert claim("CLOSED_FORM", False).verdict.value == "not decided here"


@pytest.mark.parametrize("standing", [{"reduced": "15 of 100 epochs"}, {"free": "the friction C is not chosen"}])
def test_neither_a_reduced_run_nor_an_open_constant_refutes(standing):
    refused = claim("CLOSED_FORM", False, why="computed", **standing)
    assert refused.verdict.value == "not decided here"
    assert next(iter(standing.values())) in refused.cells[-1]


@pytest.mark.parametrize("kind", ["CLOSED_FORM", "FIGURE", "COMPARISON"])
def test_a_reduced_run_reproduces_at_reduced_scale(kind):
    assert claim(kind, True).verdict.value == "reproduced"
    assert claim(kind, True, reduced="15 of 100 epochs").verdict.value == "reproduced at reduced scale"


def test_a_claim_that_holds_elsewhere_says_where():
    row = claim("COMPARISON", False, elsewhere="one sample in 5000 steps")
    assert row.cells[3] == "holds only under another scoring or setting: one sample in 5000 steps"
    assert claim("COMPARISON", True, elsewhere="one sample in 5000 steps").cells[3] == "reproduced"


def test_what_is_within_the_spread_is_not_decided_whatever_stands_beside_it():
    for kind, why, elsewhere in product(("CLOSED_FORM", "COMPARISON"), ("", "computed"), ("", "at T = 1")):
        assert claim(kind, None, why=why, elsewhere=elsewhere).verdict.value == "not decided here"


def test_a_truth_of_numpy_is_a_truth():
    import numpy

    assert claim("CLOSED_FORM", numpy.bool_(False), why="computed").verdict.value == "false as stated"
    assert claim("FIGURE", numpy.bool_(True)).verdict.value == "reproduced"


@pytest.mark.parametrize("kind", ["FIGURE", "COMPARISON"])
def test_a_row_of_one_seed_says_so_and_decides_nothing(kind):
    assert claim(kind, True, seeds=1).cells[2:4] == ("1.72 %; one seed", "not decided here")
    assert claim(kind, False, seeds=1, elsewhere="at T = 1").cells[3] == "not decided here"
    assert claim(kind, True, seeds=3).cells[2:4] == ("1.72 %", "reproduced")
    assert claim("CLOSED_FORM", True, seeds=1).cells[3] == "reproduced"


def test_a_trend_over_groups_is_tested_against_the_spread_of_seeds():
    """Means alone would rise in all of them."""
    from verdicts import rises

    assert rises([[1.0, 1.1, 0.9], [2.0, 2.1, 1.9], [3.0, 3.1, 2.9]]) is True
    assert rises([[1.0, 2.0, 0.0], [1.1, 2.1, 0.1]]) is None
    assert rises([[1.0, 1.1, 0.9], [2.0]]) is None
    assert rises([[1.0, 1.1, 0.9], [0.0, 0.1, -0.1], [3.0, 3.1, 2.9]]) is False


def test_a_wider_network_of_one_seed_decides_no_trend(study, monkeypatch):
    import psgld_mnist as example

    name = "pSGLD, T = 1/N"
    runs = [{"average": {"error": error}} for error in (1.40, 1.46, 1.52)]
    monkeypatch.setattr(type(study), "result", lambda *_, **settings: {"average": {"error": 1.30}})
    found = example.of_width(study, {400: {name: example.Row(example.Setting("psgld", 1e-3), runs)}})
    assert found.verdict.value == "not decided here"
    assert found.cells[2].endswith("800: 1.30 %; one seed")


def test_networks_of_one_seed_decide_no_order_under_attack():
    """Means alone fall in the order of the paper."""
    import spike_networks as example

    runs = {m: [{"accuracy": 98.0, "robust": [20.0 + k] * 5}] for k, m in enumerate(example.METHODS)}
    curves = {m: of_method[0]["robust"] for m, of_method in runs.items()}
    order, *spiked = example.attacks("mnist", curves, runs)
    assert order.verdict.value == "not decided here"
    assert {claim.verdict.value for claim in spiked} == {"not decided here"}


def test_a_baseline_below_the_printed_error_is_no_failure():
    import psgld_mnist as example

    better = example.of_row("SGD", 1.72, example.Row(example.Setting("sgd", 0.5), [{"average": {"error": 1.4}}] * 3))
    assert better.verdict.value == "not decided here"
    assert better.why.endswith("below it: a better rival is no failure")


@pytest.mark.parametrize(
    ("cold", "verdict"), [(1.46, "holds only under another scoring or setting"), (1.90, "not decided here")]
)
def test_psgld_at_temperature_one_holds_at_that_of_the_release_where_the_release_does(cold, verdict):
    import psgld_mnist as example

    def row(error):
        return example.Row(example.Setting("psgld", 1e-3), [{"average": {"error": error}}] * 3)

    printed = {"pSGLD, T = 1/N": 1.45, "pSGLD, T = 1": 1.45}
    _, hot = example.of_rows("400 units", printed, dict(zip(printed, (row(cold), row(2.11)), strict=True)))
    assert hot.verdict.value == verdict and ("T = 1/N" in hot.cells[3]) == (cold < 1.5)


def test_santa_is_judged_as_the_release_scores_it_and_an_order_says_in_which_scoring_it_holds():
    import santa_mnist as example
    from psgld_mnist import Row

    def row(single, average):
        scores = {"last": {"error": single, "wrong": range(int(100 * single))}}
        scores["average"] = {"error": average, "wrong": range(int(100 * average))}
        return Row(example.Setting("santa", 1e-3), [scores] * 3, "last")

    table = dict.fromkeys(example.METHODS, row(1.7, 1.7)) | dict.fromkeys(example.SANTAS, row(1.7, 1.2))
    assert example.of_row("Santa, poster", table["Santa, poster"], example.EPOCHS, 1.21).verdict.value == "reproduced"
    (released, averaged, single) = (
        example.below(table, "Santa, poster", pair, 10_000)[1] for pair in example.SCORINGS.values()
    )
    assert (released, averaged, single) == (True, True, None)
    crossed = table | {"Adam": row(1.7, 1.0)}
    assert example.below(crossed, "Santa, poster", ("average", "average"), 10_000)[1] is False


def test_a_quick_run_neither_reproduces_nor_refutes_at_full_scale(tmp_path, monkeypatch):
    import run
    from study import Experiment, Scale

    found = [claim("CLOSED_FORM", False, why="computed"), claim("FIGURE", True)]
    monkeypatch.setattr(run, "EXPERIMENTS", {"one": Experiment("one", "a paper", claims=lambda study: found)})
    quick = run.run(["one"], None, tmp_path, Scale.QUICK)
    assert "not decided here" in quick and "reproduced at reduced scale" in quick and "false" not in quick
    assert "false as stated" in run.run(["one"], None, tmp_path, Scale.REDUCED)


@pytest.mark.stated_seed
def test_the_stated_prior_told_its_support_is_above_the_noise_floor():
    """Normal equations of 1000 weights beside the solve of 100 data: 3.27 and 3.56 on the third data set, not 3.02."""
    import spike_regression as example
    import torch

    data = example.data_set(2)
    X, y = data.X.double(), data.y.double()
    for v0, expected in zip(example.SPIKES, (3.27, 3.56), strict=True):
        precision = torch.full((1000,), 1 / v0, dtype=torch.float64)
        precision[:3] = 1 / 100.0
        w = example.known_support(data, v0)
        torch.testing.assert_close(w, torch.linalg.solve(X.T @ X + precision.diag(), X.T @ y))
        assert example.errors(w, data)[1] == pytest.approx(expected, abs=0.01)
    assert example.errors(torch.cat([data.beta, torch.zeros(997)]), data)[1] == pytest.approx(3.02, abs=0.01)


def test_at_equal_steps_the_times_of_psgld_are_longer_and_at_equal_times_its_errors_smaller():
    """Normal laws: rates (.9375, .15) of SGLD and (.342, .1445) of pSGLD at h = .15; the page has the same row."""
    import psgld_gaussian as example

    assert example.law_of(example.sgld_law, 0.15) == pytest.approx((6.73, 0.0556), rel=3e-3)
    assert example.law_of(example.psgld_law, 0.15) == pytest.approx((8.85, 0.0277), rel=3e-3)
    time = example.law_of(example.psgld_law, 0.2)[0]
    assert example.error_at(time) == pytest.approx(example.law_of(example.psgld_law, 0.2)[1])
    row = example.of_times()
    assert row.found is False and row.verdict.value.startswith("holds only under")
    assert list(row.cells) in rows("psgld-gaussian")


def sections():
    """The experiments of all pages, by name."""
    import pages

    parts = [pages.sections(page.read_text()) for page in sorted(pages.PAGES.glob("*.md"))]
    return {name: record for part in parts for name, record in part.items()}


def rows(name):
    """The cells of the rows of an experiment, as they stand on its page."""
    import pages

    found = {section[1]: section[5] for section in pages.SECTION.finditer(pages.page_of(name).read_text())}
    return pages.cells(found[name])


def numbers(text):
    """Those with a decimal point or of three digits and more, without their sign."""
    return {float(number) for number in re.findall(r"\d*\.\d+|\d{3,}", text)}


def test_each_experiment_has_its_section_on_its_page_with_its_command_seeds_and_data():
    import pages
    from run import EXPERIMENTS

    assert sorted(sections()) == sorted(EXPERIMENTS)
    for name, experiment in EXPERIMENTS.items():
        of_page = {part[1]: part for part in pages.SECTION.finditer(pages.page_of(name).read_text())}
        _, paper, _, about, _ = of_page[name].groups()
        assert (paper, about) == (experiment.paper, pages.about(experiment))
    for page in pages.PAGES.glob("*.md"):
        assert page.read_text().count("\n### ") == len(pages.sections(page.read_text()))
        assert f"({page.relative_to(pages.HERE)})" in pages.RESULTS.read_text()


def test_the_seeds_of_an_experiment_are_those_that_it_asks_for(tmp_path, monkeypatch):
    """The chains, seeds, data sets or splits of its first result; those that read data before stay out."""
    from run import EXPERIMENTS
    from study import Scale, Study

    class Asked(Exception):
        pass

    def result(study, function, **settings):
        raise Asked({settings[key] for key in ("chains", "seeds", "sets", "splits") if key in settings})

    monkeypatch.setattr(Study, "result", result)
    held = 0
    for experiment in EXPERIMENTS.values():
        try:
            experiment.claims(Study(tmp_path, tmp_path, Scale.REDUCED))
        except Asked as asked:
            runs = {int(number) for number in re.findall(r"\d+", experiment.seeds)}
            assert asked.args[0] <= runs, experiment.name
            held += bool(asked.args[0])
        except RecipeError:
            assert experiment.files
    assert held >= 9


def test_the_json_beside_a_page_is_what_the_page_says():
    import pages

    for path, text in pages.beside().items():
        assert path.read_text() == text, "python examples/papers/pages.py writes it"
    (known,) = [path for path in pages.beside() if path.stem == "psgld"]
    a9a = json.loads(known.read_text())["psgld-a9a"]
    assert a9a["minutes"] == 4.1 and len(a9a["data"]["a9a/a9a.npz"]) == 64
    assert a9a["claims"][0]["here"].startswith("15.02 +- 0.02 %")
    assert {claim["verdict"] for claim in a9a["claims"]} == {"reproduced", "not decided here"}


def test_a_table_of_a_run_takes_the_place_of_the_one_on_the_page_alone(tmp_path, monkeypatch):
    import pages
    from run import EXPERIMENTS
    from study import table

    monkeypatch.setattr(pages, "PAGES", tmp_path)
    page, found = tmp_path / "psgld.md", [claim("FIGURE", True)]
    for name, seconds in {"psgld-gamma": 60, "psgld-a9a": 120}.items():
        folder = tmp_path / "out" / name / "reduced"
        folder.mkdir(parents=True)
        (folder / "table.md").write_text(table(EXPERIMENTS[name], found, seconds))
        (folder / "own.png").write_bytes(b"drawn")
    pages.take(tmp_path / "out")
    page.write_text(page.read_text().replace("| 1.72 % |", "| 9.99 % |") + "\nSaid, ![](pictures/psgld-a9a.png).\n")
    (tmp_path / "out" / "psgld-gamma" / "reduced" / "table.md").unlink()
    pages.take(tmp_path / "out")
    gamma, a9a = pages.sections(page.read_text()).values()
    assert (gamma["minutes"], gamma["claims"][0]["here"]) == (1.0, "9.99 %")
    assert (a9a["minutes"], a9a["claims"][0]["here"]) == (2.0, "1.72 %")
    assert page.read_text().endswith("\nSaid, ![](pictures/psgld-a9a.png).\n")
    assert [picture.name for picture in (tmp_path / "pictures").iterdir()] == ["psgld-a9a.png"]
    page.write_text(page.read_text().replace("(pictures/psgld-a9a.png)", "(pictures/psgld-a9a-other.png)"))
    (tmp_path / "out" / "psgld-a9a" / "reduced" / "other.png").write_bytes(b"of its name")
    pages.take(tmp_path / "out")
    assert (tmp_path / "pictures" / "psgld-a9a-other.png").read_bytes() == b"of its name"


def test_every_verdict_of_the_pages_is_one_of_the_policy_and_a_refutation_has_its_reason():
    from verdicts import Verdict

    words = {verdict.value for verdict in Verdict}
    for record in sections().values():
        for row in record["claims"]:
            assert row["verdict"] in words
            assert bool(row["setting"]) == (row["verdict"] == Verdict.ELSEWHERE.value)
            assert row["why"] or row["verdict"] != Verdict.FALSE.value
            assert "one seed" not in row["here"] or row["verdict"] == Verdict.UNDECIDED.value


def test_the_headlines_have_the_verdicts_the_seeds_the_minutes_and_the_numbers_of_the_tables():
    """A headline whose experiment has no such verdict or number, or took other minutes, was written by hand."""
    import pages

    lines = pages.headlines(pages.RESULTS.read_text())
    assert {line["paper"] for line in lines} == {"pSGLD", "SGLD-SA", "SGHMC-SA", "i-SGD", "Santa", "ATMC"}
    for line in lines:
        record, name = sections()[line["experiment"]], line["experiment"]
        assert f"| [{name}](pages/{pages.page_of(name).name}) |" in pages.RESULTS.read_text()
        assert float(line["minutes"]) == record["minutes"] and line["seeds"] in record["seeds"], line
        verdicts = {part.split(":")[0].split(" with ")[0] for part in line["verdict"].split("; ")}
        assert verdicts <= {row["verdict"] for row in record["claims"]}, line
        assert ("what it would take" in line) == (verdicts == {"not decided here"}), line
        table = numbers(" ".join([record["paper"], *(cell for row in rows(name) for cell in row)]))
        assert numbers(line["claim"]) | numbers(line["verdict"]) <= table, line


def test_the_set_takes_the_sum_of_the_minutes_of_the_pages():
    import pages

    minutes = [record["minutes"] for record in sections().values()]
    words = r"The whole set takes (\d+) minutes, ([\d.]+) hours on two, and the longest experiment (\d+) minutes on two"
    said = re.search(words, " ".join(pages.RESULTS.read_text().split())).groups()
    assert said == (f"{sum(minutes):.0f}", f"{sum(minutes) / 120:.1f}", f"{max(minutes) / 2:.0f}")


def test_the_numbers_of_the_lessons_are_those_of_the_experiments_that_they_cite():
    import pages

    lessons = pages.RESULTS.read_text().split("## Lessons")[1].split("\n## ")[0]
    said = re.split(r"\(\[([\w-]+)\]\(pages/\w+\.md\)\)", lessons)
    assert len(said) >= 9
    for words, name in zip(said[::2], said[1::2], strict=False):
        assert numbers(words) <= numbers(" ".join(cell for row in rows(name) for cell in row)), name


@pytest.mark.stated_seed
def test_the_page_has_the_known_support_as_it_is_computed():
    """Five data sets: 3.34 at v0 = .001 and 3.73 at .01."""
    import spike_regression as example

    data = [example.data_set(seed) for seed in range(5)]
    for v0 in example.SPIKES:
        mean = sum(example.errors(example.known_support(d, v0), d)[1] for d in data) / len(data)
        assert f"{mean:.2f} (v0 = {v0:g})" in " ".join(row[2] for row in rows("spike-regression"))
