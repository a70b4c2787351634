"""The experiments of the papers: their harness, and the laws that each of them shows, in small runs."""

import gzip
import math
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from operator import itemgetter
from threading import Barrier

import numpy
import pytest
import torch
from idx_files import idx
from pictures import width

from recipe.errors import RecipeError

pytestmark = pytest.mark.usefixtures("papers")


# ---- the harness


def test_a_result_is_computed_once_and_read_by_the_next_run(study):
    calls = []

    def square(study, x):
        calls.append(x)
        return {"y": x**2}

    assert study.result(square, x=3) == study.result(square, x=3) == {"y": 9}
    assert study.result(square, x=4) == {"y": 16}
    assert calls == [3, 4]


def test_results_whose_long_names_begin_alike_are_kept_apart(study):
    """Folders take names of 255 characters at most."""

    def of(study, words):
        return {"last": words[-1]}

    alike = "a" * 300
    for _ in range(2):
        assert [study.result(of, words=alike + last)["last"] for last in "xy"] == ["x", "y"]
    assert len(list(study.folder.glob("*.json"))) == 2


def test_the_seconds_of_a_result_count_once_however_often_it_is_asked_for(study):
    import time

    def slow(study):
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        return {}

    study.result(slow)
    first = study.seconds
    study.result(slow)
    assert study.seconds == first >= 0.02


@pytest.mark.parametrize("is_broken_off", [False, True])
def test_the_seconds_of_a_result_within_another_are_in_those_of_the_other(study, is_broken_off):
    """The sum is the same whether the results are computed or read, of a run that was broken off, too."""
    import time

    from study import Study

    def slow(study, within):
        end = time.process_time() + 0.02
        while time.process_time() < end:
            pass
        return study.result(slow, within=False) if within else {}

    if is_broken_off:
        Study(*study.place).result(slow, within=False)
    study.result(slow, within=True)
    again = Study(*study.place)
    again.result(slow, within=True)
    assert study.seconds == again.seconds >= 0.04


def test_a_scratch_folder_goes_with_the_result(study):
    def begun(study, x, y=0):
        if y:
            study.result(begun, x=x)
        study.scratch(begun, y=y, x=x).mkdir(parents=True)  # in another order, with what is left out
        return {}

    study.result(begun, x=1, y=2)
    assert [path.suffix for path in study.folder.iterdir()] == [".json"] * 2


def test_what_the_first_run_returns_is_what_the_next_one_reads(study):
    """Tuples become lists, and keys strings, for the first reader too."""

    def pairs(study):
        return {"pair": (1, 2), "by": {1: 2.5}}

    assert study.result(pairs) == study.result(pairs) == {"pair": [1, 2], "by": {"1": 2.5}}


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"value": 1}'])
def test_a_damaged_result_is_told_and_computed_again(study, capsys, damage):
    study.result(lambda study: {"y": 1})
    (path,) = study.folder.glob("*.json")
    path.write_text(damage)
    assert study.result(lambda study: {"y": 2}) == {"y": 2}
    assert "damaged" in capsys.readouterr().out


def test_an_interrupted_result_leaves_nothing_behind(study):
    def interrupted(study):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.result(interrupted)
    assert not study.folder.exists() or not list(study.folder.iterdir())


def test_the_candidate_with_the_lowest_loss_is_taken_and_one_that_diverges_is_out(study):
    losses = {0.1: 2.0, 0.2: 1.0, 0.4: math.nan, 0.8: math.inf}

    def best(lrs):
        return study.best(lrs, lambda study, lr: {"loss": losses[lr]}, lambda lr: {"lr": lr}, itemgetter("loss"))

    assert best([0.1, 0.2, 0.4, 0.8]) == 0.2
    with pytest.raises(RecipeError, match="diverge"):
        best([0.4, 0.8])


@pytest.mark.parametrize("threads", [None, 2])
def test_a_candidate_whose_run_is_refused_is_told_and_out_and_the_only_one_is_not_tried(study, capsys, threads):
    def run(study, lr):
        if lr > 0.1:
            raise RecipeError("sgld, step", "the gradient is not finite")
        return {"loss": -lr}

    def best(lrs):
        return study.best(lrs, run, lambda lr: {"lr": lr}, itemgetter("loss"))

    with ThreadPoolExecutor(threads) if threads else nullcontext() as study.pool:
        assert best([0.05, 0.1, 0.2]) == 0.1
        assert "out: sgld, step: the gradient is not finite" in capsys.readouterr().out
        assert best([0.2]) == 0.2


def test_results_side_by_side_are_those_of_one_after_the_other(study):
    """Each waits for all others of the pool; one that is there is read."""
    together = Barrier(3, timeout=60)
    calls = []

    def square(study, x):
        calls.append(x)
        if x > 1:
            together.wait()
        return {"y": x**2}

    study.result(square, x=1)
    with ThreadPoolExecutor(3) as study.pool:
        assert study.results(square, [{"x": x} for x in (1, 2, 3, 4)]) == [{"y": y} for y in (1, 4, 9, 16)]
    assert sorted(calls) == [1, 2, 3, 4]


def test_so_many_jobs_are_experiments_or_where_there_are_fewer_results_of_one(monkeypatch):
    import run

    monkeypatch.setattr(run, "outcome", lambda name, *where: (name, where[-1]))
    monkeypatch.setattr(run, "ProcessPoolExecutor", lambda number, *context, **options: ThreadPoolExecutor(number))
    assert list(run.outcomes(["one"], 5)) == [("one", 5)]
    assert sorted(run.outcomes(["one", "other"], 5)) == [("one", 2), ("other", 2)]
    assert sorted(run.outcomes(["one", "other"], 1)) == [("one", 1), ("other", 1)]


def test_an_unknown_experiment_names_the_nearest(capsys):
    import run

    assert run.main(["psgld-gausian"]) == 2
    assert "psgld-gaussian" in capsys.readouterr().err


def test_quick_and_full_at_once_are_refused(capsys):
    import run

    with pytest.raises(SystemExit) as refusal:
        run.main(["psgld-gaussian", "--quick", "--full"])
    assert refusal.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


def test_an_interrupted_run_says_where_its_results_are(tmp_path, capsys, monkeypatch):
    import run

    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run", interrupted)
    assert run.main(["psgld-gaussian", f"--out={tmp_path}"]) == 130
    assert f"the same command goes on from the results in {tmp_path}" in capsys.readouterr().err


def test_a_folder_of_data_that_is_not_there_is_named(tmp_path, capsys):
    import run

    assert run.main(["psgld-a9a", f"--data={tmp_path / 'absent'}", f"--out={tmp_path}"]) == 2
    assert f"there is no folder {tmp_path / 'absent'}" in capsys.readouterr().err


def test_missing_data_are_refused_before_the_first_result(tmp_path):
    from study import Experiment, Scale, check_data

    experiment = Experiment("a9a", "pSGLD, Table 1", claims=lambda study: [], files=["a9a/a9a.npz"])
    for data in (None, tmp_path):
        with pytest.raises(RecipeError, match="a9a/a9a.npz"):
            check_data([experiment], data, Scale.REDUCED)


def test_damaged_and_missing_data_of_a_late_experiment_are_named_before_the_first_one_begins(tmp_path, monkeypatch):
    """A truncated npz file, an idx file with a byte too few, one that is not there, and one of the full scale alone."""
    import run
    from datasets import SOURCES
    from study import Experiment, Scale

    begun = []
    files = ["a9a/a9a.npz", "mnist/train-images-idx3-ubyte", "mnist/train-labels-idx1-ubyte", "logistic/australian.npz"]
    late = Experiment("late", "a paper", begun.append, files, full_files=["polymusic/muse.npz"])
    chosen = {"early": Experiment("early", "a paper", begun.append, files[3:]), "late": late}
    monkeypatch.setattr(run, "EXPERIMENTS", chosen)
    for name in ("a9a", "mnist", "logistic"):
        (tmp_path / name).mkdir()
    numpy.savez(tmp_path / files[3], X=numpy.zeros((3, 2)), y=numpy.zeros(3))
    (tmp_path / files[0]).write_bytes((tmp_path / files[3]).read_bytes()[:-30])
    (tmp_path / f"{files[1]}.gz").write_bytes(gzip.compress(idx(torch.zeros(2, 28, 28, dtype=torch.uint8))[:-1]))
    with pytest.raises(RecipeError, match="of 4 files 3 are") as refusal:
        run.run(["early", "late"], tmp_path, tmp_path / "out", Scale.REDUCED)
    lines = refusal.value.what.splitlines()
    for line, name, fault in zip(lines[1:], files, ("cannot be read", "no intact idx file", "no such file")):
        assert line.startswith("  late: ") and name in line and fault in line and SOURCES[name.split("/")[0]] in line
    with pytest.raises(RecipeError, match="of 5 files 4 are"):
        run.run(["early", "late"], tmp_path, tmp_path / "out", Scale.FULL)
    assert not begun and not (tmp_path / "out").exists()


def test_damaged_data_are_refused_with_their_source(tmp_path):
    from datasets import SOURCES, read_npz

    (tmp_path / "a9a").mkdir()
    (tmp_path / "a9a" / "a9a.npz").write_bytes(b"PK\x03\x04 no archive")
    with pytest.raises(RecipeError, match=r"a9a\.npz: it cannot be read") as refusal:
        read_npz(tmp_path, "a9a/a9a.npz", "X_train")
    assert SOURCES["a9a"] in refusal.value.do


# ---- pSGLD on a Gaussian


def test_ctrl_c_within_a_chain_leaves_no_result(study, monkeypatch):
    """Where samplers.sample has its way it returns the draws so far."""
    import run

    import samplers
    from samplers.results import bar

    monkeypatch.setattr(bar, "EVERY", 0.0)

    def pressed(scalars):
        monkeypatch.setattr(bar, "EVERY", 1e9)  # once
        signal.raise_signal(signal.SIGINT)

    def cut_short(study):
        energy, start = (lambda theta: theta.square().sum() / 2), torch.zeros(1)
        samplers.sample("sgld", energy, init=start, steps=1000, step_size=0.1, seed=0, progress=pressed)
        return {}

    before = signal.signal(signal.SIGINT, run.interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            study.result(cut_short)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not list(study.folder.glob("*.json"))


def claims_of_gaussian(folder, **constants):
    """The example and its results, of smaller size, and with some of its constants replaced."""
    import psgld_gaussian as example
    from study import Study

    study = Study(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in constants.items():
            patch.setattr(example, name, value)
        patch.setattr(Study, "of_scale", lambda *_: (1500, 400))
        patch.setattr(example, "claims_of", lambda *results: results, raising=True)
        sgld, psgld = example.claims(study)
    assert width(study.folder / "gaussian.png") > 600
    return example, sgld, psgld


@pytest.fixture(scope="module")
def gaussian(tmp_path_factory):
    example, sgld, psgld = claims_of_gaussian(tmp_path_factory.mktemp("psgld"), STEP_SIZES=(0.05, 0.3), ALPHAS=(0.99,))
    return example, sgld, psgld[0.99]


@pytest.mark.slow
def test_every_weight_of_the_past_has_its_runs_and_its_line_of_the_picture(tmp_path):
    example, _, psgld = claims_of_gaussian(tmp_path, STEP_SIZES=(0.05, 0.3))
    assert set(psgld) == set(example.ALPHAS) and len(psgld) == 3
    assert all(set(results) == {0.05, 0.3} for results in psgld.values())


@pytest.mark.slow
@pytest.mark.parametrize("h", [0.05, 0.3])
def test_sgld_has_the_variances_and_the_autocorrelation_time_of_its_exact_law(gaussian, h):
    """5 % for the variances, four standard errors or more (the wide coordinate at h = .05); 10 % for the time."""
    example, sgld, _ = gaussian
    variances, rate = example.sgld_law(h)
    assert sgld[h]["variances"] == pytest.approx(variances, rel=0.05)
    assert sgld[h]["times"][1] == pytest.approx(((2 - rate) / rate)[1], rel=0.1)


def test_psgld_has_a_tenth_of_the_error_of_sgld_at_a_large_step(gaussian):
    """At h = .3 its law is near that of alpha -> 1: 5 % for the variances, measured 1 to 2 %."""
    example, sgld, psgld = gaussian
    assert psgld[0.3]["variances"] == pytest.approx(example.psgld_law(0.3)[0], rel=0.05)
    assert psgld[0.3]["error"] < 0.15 * sgld[0.3]["error"]


def test_psgld_of_finite_memory_has_twice_the_error_of_sgld_at_a_small_step(gaussian):
    """At h = .05: .031 against .0138, with a standard error of .004; without memory of the path it would be .0089."""
    _, sgld, psgld = gaussian
    assert psgld[0.05]["error"] > 0.02
    assert sgld[0.05]["error"] < 0.02


def test_the_tables_of_all_that_has_been_run_are_one_file(tmp_path, capsys):
    import run
    from study import Experiment, Scale
    from verdicts import Claim, Kind

    def experiment(name):
        claim = Claim(f"the words of {name}", "1.45 %", "1.5 | 1.6 %", Kind.FIGURE, True, seeds=1)
        return Experiment(name, "a paper", claims=lambda study: [claim])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "EXPERIMENTS", {name: experiment(name) for name in ("first", "second", "third")})
        for name in ("third", "first"):
            assert run.run([name], None, tmp_path, Scale.QUICK).startswith(f"### {name}: a paper")
    text = (tmp_path / "table.md").read_text()
    assert text.index("### first") < text.index("### third") and "second" not in text
    assert "| the words of third | 1.45 % | 1.5 / 1.6 %; one seed | not decided here |" in text


# ---- temperatures


def test_public_ways_of_langevin_have_the_temperatures_of_their_formulas():
    """The stationary covariance of each linear step, by Lyapunov's equation: within 3 %, the bias of the step."""
    import temperatures as example
    from scipy.linalg import solve_discrete_lyapunov

    for way in example.ways():
        for k in example.CURVATURES:

            def step(theta, v, noise):
                moved = way.step((torch.tensor(theta), torch.tensor(v)), k * theta, torch.tensor(noise))
                return numpy.array([float(x) for x in moved])

            matrix = numpy.stack([step(1.0, 0.0, 0.0), step(0.0, 1.0, 0.0)], 1)
            matrix[1, 1] *= bool(matrix[0, 1])  # a buffer that nobody reads is carried along
            noise = step(0.0, 0.0, 1.0)
            law = solve_discrete_lyapunov(matrix, numpy.outer(noise, noise))
            assert example.N * float(k) * law[0, 0] == pytest.approx(way.temperature, rel=0.03), way.name


# ---- costs


@pytest.mark.parametrize(("residual", "holds"), [(1.02, True), (1.5, False)])
def test_a_step_costs_its_gradient_and_its_update_and_an_order_says_where_it_holds(papers, residual, holds):
    """An update of 5 ms beside 1 is 1.4 times a step with a gradient of 9 ms, and not 5 times; rounds twice as slow."""
    import costs as example

    def rounds(update, gradient=9.0):
        return [[slow * gradient for slow in (1, 2, 1)], [slow * update for slow in (1, 2, 1)]]

    table = {f"FNN-400 {m} 100": rounds(u) for m, u in {"SGD": 1.0, "SGLD": 5.0, "pSGLD": 5.5}.items()}
    table |= {f"LeNet-5 {m} 128": rounds(1.0) for m in ("SGD", "SGLD", "SGHMC", "i-SGD")}
    table |= {"LeNet-5 i-SGD 32": rounds(1.0), "LeNet-5 i-SGD 512": rounds(1.0, 99.0)}
    table |= {f"{example.PLUS} {m} 128": rounds(1.0) for m in ("SGD", example.REGULAR, "ATMC")}
    table |= {f"{example.PLUS} SGLD 128": rounds(10 * residual - 9), f"{example.NORM} SGD 128": rounds(1.0, 9 * 1.2)}
    found = example.claims_of(example.Times(table))
    assert "1.40 (1.40 to 1.40) times" in found[1].ours
    assert ("residual" in found[1].verdict.value or "holds only" in found[1].verdict.value) == holds
    others = [claim for k, claim in enumerate(found) if k != 1]
    assert {claim.verdict.value for claim in others} == {"reproduced", "reproduced at reduced scale"}


def test_a_walk_has_one_gradient_a_step(papers, monkeypatch):
    import costs as example

    walk = example.walk_of("LeNet-5", "i-SGD", 4)
    calls, backward = [], torch.Tensor.backward
    monkeypatch.setattr(
        torch.Tensor, "backward", lambda self, *given, **named: calls.append(backward(self, *given, **named))
    )
    walk.steps(3)
    assert len(calls) == 3
