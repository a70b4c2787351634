"""The example recipe is what it says, and the demo runs: a small run, against its own Metropolised reference."""

import json
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from error_budget import CLAIMS
from pictures import width
from sympy import diff

import integrators
import samplers
from recipe.algebra import vanishes
from recipe.derive import residual
from recipe.errors import RecipeError
from samplers.cli import main as recipe_command

EXAMPLES = Path(__file__).parent.parent / "examples"
RECIPE_FILE = EXAMPLES / "riemann_thermostat.py"


@pytest.fixture(scope="module", autouse=True)
def examples_on_path():
    """The examples are scripts that import each other; the demo makes float64 the default."""
    dtype = torch.get_default_dtype()
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))
    torch.set_default_dtype(dtype)


@pytest.fixture(scope="module")
def example():
    import riemann_thermostat

    return riemann_thermostat


def test_the_certificate_holds_for_every_metric(example):
    certificate = example.RiemannThermostat.check()
    checked = {f.topic for f in certificate.findings if f.verdict == "checked"}
    assert certificate.exact and checked <= {"explosion", "reached", "claim"}
    assert example.TailThermostat.check().exact


def test_gamma_is_as_stated(example):
    theta, S, mu = example.theta, example.S, example.mu
    assert list(example.RiemannThermostat.gamma) == [0, diff(S, theta), -(S**2) / mu]


@pytest.mark.parametrize("row", [1, 2])
def test_each_entry_of_gamma_is_needed(example, row):
    R = example.TailThermostat
    drift = R.drift.as_mutable()
    drift[row] -= R.gamma[row]
    assert vanishes(residual(R.drift, R.H, R.D, R.state))
    assert vanishes(residual(drift, R.H, R.D, R.state)) is None


def test_it_compiles_to_order_two_with_one_gradient_and_one_numerical_flow(example):
    step = integrators.compile(example.TailThermostat)
    assert (step.order, step.program.gradients_per_step) == (2, 1)
    assert [letter for letter, flow in step.flows.items() if not flow.exact] == ["A"]


def test_the_command_line_reads_the_example(tmp_path, capsys):
    out = tmp_path / "step.py"
    assert recipe_command(["check", f"{RECIPE_FILE}:RiemannThermostat"]) in (0, None)
    assert recipe_command(["emit", f"{RECIPE_FILE}:TailThermostat", "-o", str(out)]) in (0, None)
    compile(out.read_text(), str(out), "exec")


def assert_near(comparison, margin):
    """Means within half a posterior sd, and sds within a margin, at an ESS above 150."""
    assert comparison.run["ess_bulk"].min() > 150
    assert abs(comparison.bias).max() < 0.5 and abs(comparison.spread - 1).max() < margin


@pytest.mark.slow
def test_the_demo_agrees_with_its_reference(tmp_path, capsys):
    """Means within half a posterior sd and sds within 35 % of the reference, for 31 coefficients, at an ESS above 150.

    Null: the posterior. The standard error of a mean is at most .082 sd, that of an sd about 6 %: both margins are six
    of them, alpha = 62 x 2e-9 = 1.2e-7. A temperature of 2 fails. The minibatch runs are biased by some 10 % (the demo
    measures it): their sds may be 50 % off. Seeds are fixed in the demo.
    """
    import demo

    result = demo.main(["--out", str(tmp_path)])
    for name, margin in (("full", 0.35), ("mini", 0.5)):
        assert_near(result[name], margin)
    printed = capsys.readouterr().out
    assert printed.startswith("your sampler: proved") and len(printed.splitlines()) < 25
    assert width(tmp_path / "demo.png") > 700


@pytest.mark.slow
def test_the_whole_demo_accounts_for_its_bias(tmp_path, capsys, monkeypatch):
    """At the size of the short one, without the exact chains, which have a test of their own."""
    import demo

    any_draws = samplers.Draws({"theta": torch.randn(4, 40, 31)}, info={})
    monkeypatch.setattr(demo, "FULL", demo.SHORT)
    monkeypatch.setattr(demo, "tuned_run", lambda *_, **__: (any_draws, "step_size"))
    monkeypatch.setattr(demo, "exact_line", lambda *_: "exact")
    result = demo.main(["--full", "--out", str(tmp_path)])
    assert_near(result["double"], 0.5)
    printed = " ".join(capsys.readouterr().out.split())
    for text in (
        "Gamma[p]",
        "certificate of riemann-thermostat: ok",
        "def step(state, h",
        "R-hat",
        "E xi, predicted as",
        *demo.breast_cancer().names,
    ):
        assert text in printed, text
    assert width(tmp_path / "marginals.png") > 1500
    assert samplers.Draws.load(tmp_path / "full.safetensors")["theta"].shape[2:] == (31,)
    assert samplers.Draws.load(tmp_path / "minibatch.safetensors").info["batch_size"] == demo.BATCH


@pytest.mark.slow
def test_the_exact_chains_of_the_demo_agree_with_its_reference():
    import demo

    torch.set_default_dtype(torch.float64)
    model, generator = demo.breast_cancer(), torch.Generator().manual_seed(2015)
    q = demo.gaussian_approximation(model)
    weights = demo.metropolised_hmc(model, q, generator, chains=64, draws=150, warmup=200)
    draws, settings = demo.tuned_run(model, 75, chains=32, repeat=6)
    comparison = demo.Comparison(draws.summary(), samplers.Draws({"theta": weights}, info={}).summary())
    assert_near(comparison, 0.35)
    assert "Exact chains of theta, tuned by" in demo.exact_line(comparison, draws) and "step_size" in str(settings)


@pytest.mark.slow
def test_the_wrong_thermostat_is_led_from_its_symptom_to_its_equation(capsys):
    import wrong_thermostat as example

    result, diagnosis, report = example.main(chains=1200)
    assert result.verdict == "bias does not vanish" and not diagnosis.ok and report.ok
    m, mu, p, xi = example.m, example.mu, example.p, example.xi
    assert set(diagnosis.missing) == {xi} and (diagnosis.missing[xi] - (p**2 / m - p**2) / mu).simplify() == 0
    assert "1. The symptom" in capsys.readouterr().out


def of_precision(result, name):
    """How far log tau, the intercept and three weights are off, by their means and sds, in standard errors."""
    scores = {what: result[name].scores(what) for what in ("mean", "sd")}
    return {(what, k): float(values[k]) for what, values in scores.items() for k in (-1, 0, 1, 2)}


@pytest.mark.slow
@pytest.mark.parametrize("size", ["2", "20"])
def test_the_precision_of_a_prior_has_its_law_by_gibbs_draws(size, capsys):
    import hyperprior

    result = hyperprior.main(["--size", size])
    for name in ("SGHMC", "Metropolised HMC"):
        assert not CLAIMS["precision of a prior"].failures(of_precision(result, name)), name
    assert abs(of_precision(result, "the norm forgotten")["mean", -1]) > 20
    assert "is Gamma(a, b + total(theta**2)/2) times the further factor tau**(n/2)" in capsys.readouterr().out


# ---- networks


@pytest.fixture
def float32():
    """The demo, if it ran before, has left another default; networks are made in float32."""
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    yield
    torch.set_default_dtype(dtype)


SAMPLERS = "SGHMC", "cyclical SGHMC", "pSGLD", "ATMC"


@pytest.mark.slow
def test_digits_are_classified_better_by_the_average_than_by_the_last_draw(tmp_path, capsys, float32):
    """Of every sampler the NLL falls and permuted digits are told apart better; seeds are fixed in the example."""
    import digits

    result = digits.main(["--quick", "--runs", "2", "--out", str(tmp_path)])
    kinds = "last", "average"
    names = ["SGD", "deep ensemble", "SGHMC, no noise", *SAMPLERS]
    assert [(row.method, row.predictions) for row in result] == [(name, kind) for name in names for kind in kinds]
    scores = {(row.method, row.predictions): row.mean for row in result}
    for name in names:
        last, average = scores[name, "last"], scores[name, "average"]
        assert average.accuracy > 0.85 and 0 < average.ece < 0.25 and average.entropy < average.entropy_permuted, name
        assert name not in SAMPLERS or average.nll < last.nll and average.auc > last.auc, name
    noiseless, sgd = scores["SGHMC, no noise", "average"], scores["SGD", "average"]
    assert abs(noiseless.nll - sgd.nll) < 0.01  # at T = 0 the words of SGHMC are SGD, from other momenta

    printed = capsys.readouterr().out
    table = (tmp_path / "digits.txt").read_text()
    assert table in printed and len(table.splitlines()) == 1 + 14 + 1 + 2 * 7
    rows = json.loads((tmp_path / "digits.json").read_text())
    assert [[run["nll"] for run in row["runs"]] for row in rows] == [[run.nll for run in row.runs] for row in result]
    assert {row["temperature"] for row in rows} == {"-", "0", "1", "0, 1"}
    assert width(tmp_path / "digits.png") > 1000


def test_the_learning_rate_of_digits_is_chosen_on_images_that_are_not_tested_on(monkeypatch, float32):
    """Each kind of prediction has the rate of its least NLL there; that of the test images would be another."""
    import digits

    sets = digits.data()
    numbers = [len(sets[0][1]), len(sets[1][1]), len(sets[2][1])]
    assert numbers == [1000, 200, 597] and len(torch.cat([images for images, _ in sets[:3]]).unique(dim=0)) == 1797

    def train(method, lr, train_set, images, epochs, seed, runs):
        assert torch.equal(images[:200], sets[1][0])
        right = torch.nn.functional.one_hot(torch.cat([sets[1][1], sets[2][1], sets[2][1]]), 10).double()
        sure = torch.full((len(images), 1), lr, dtype=torch.float64)
        sure[200:] = 1 - lr  # the better on validation images, the worse on others
        p = (sure * right + (1 - sure) / 10).expand(runs, -1, -1)
        return p.flip(-1), p

    monkeypatch.setattr(digits, "train", train)
    chosen = digits.best(digits.Method(None, (0.2, 0.9, 0.5)), sets, 8, 0, 2)
    assert {kind: lr for kind, (lr, _) in chosen.items()} == {"last": 0.2, "average": 0.9}
    assert chosen["average"][1].shape == (2, 2 * 597, 10)


@pytest.mark.slow
def test_the_emitted_optimizer_trains_the_same_network(tmp_path, capsys, float32):
    import digits
    import digits_emitted

    result = digits_emitted.main(["--quick", "--out", str(tmp_path)])
    last, average = [row.mean for row in result]
    assert average.accuracy > 0.9 and average.nll < last.nll
    imports = {line for line in (tmp_path / "sghmc.py").read_text().splitlines() if line.startswith(("import", "from"))}
    assert imports == {"import math", "import torch"}
    assert digits.HEAD in capsys.readouterr().out


def test_both_optimizers_are_one_step(tmp_path, float32):
    """The emitted Optimizer and that of the package, on equal weights and at T = 0, where the noise is none."""
    import digits
    import digits_emitted

    train, *_ = digits.data()
    ends, settings = [], digits_emitted.SETTINGS["sghmc"]
    make = {
        "emitted": lambda p: digits_emitted.emitted("sghmc", tmp_path).Optimizer(
            p, num_data=1000, temperature=0.0, **settings
        ),
        "package": lambda p: samplers.Optimizer(p, samplers.SGHMC, num_data=1000, temperature=0.0, **settings),
    }
    for name in make:
        torch.manual_seed(0)
        model = digits.network()
        optimizer = make[name](model.parameters())
        for x, y in samplers.Minibatches(train, 50):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        ends.append(torch.cat([w.detach().reshape(-1) for w in model.parameters()]))
    assert (ends[0] - ends[1]).abs().max() < 1e-4


# ---- text


@pytest.fixture
def text(monkeypatch, float32):
    """The example on text, with a network that is narrow."""
    import text as example

    torch.manual_seed(0)
    for name, value in {"WIDTH": 16, "BATCH": 4}.items():
        monkeypatch.setattr(example, name, value)
    return example


def of_rows(rows):
    """The numbers of the characters in one line; neighbouring rows share one."""
    return torch.cat([rows[:, :-1].flatten(), rows[-1:, -1]])


def test_no_paragraph_is_learned_from_and_tested_on(text):
    """Topics of the documentation contain each other; rows lose at most 64 characters at the end of a part."""
    data = text.Text.of(text.topics)
    parts = [
        {" ".join(own.split()) for own in "".join(data.alphabet[k] for k in of_rows(rows)).split("\n\n")}
        for rows in (data.train, data.validation, data.test)
    ]
    assert all(len(part) > 200 for part in parts)
    assert not parts[0] & parts[1] and not parts[0] & parts[2] and not parts[1] & parts[2]
    assert text.paragraphs({"short": "a\n\nb", "long": "a\n\nc c\n\nd"}) == {"long": "a\n\nc c\n\nd", "short": "b"}


def test_the_transformer_does_not_see_what_it_predicts(text):
    network, rows = text.Transformer(7), torch.randint(7, (2, 64))
    changed = rows.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 7
    one, other = network(rows), network(changed)
    assert torch.allclose(one[:, :40], other[:, :40], atol=1e-5)
    assert (one[:, 40:] - other[:, 40:]).abs().amax((0, 2)).gt(1e-4).all()


@pytest.mark.parametrize("name, moved", [("last layer", {"last"}), ("LoRA", {"thin", "back"})])
def test_a_sampler_of_few_weights_begins_at_the_network_and_leaves_the_others(name, moved, text):
    network, rows = text.Transformer(7), torch.randint(7, (8, 65))
    before = network(rows[:, :-1])
    text.SAMPLERS[name].of(network)
    torch.testing.assert_close(network(rows[:, :-1]), before, atol=1e-6, rtol=0)
    start = {key: w.detach().clone() for key, w in network.named_parameters()}
    optimizer = samplers.Optimizer(network.parameters(), "sghmc", lr=1e-3, num_data=8)
    assert list(text.steps_of(network, optimizer, rows, seed=0, steps=3)) == [1, 2, 3]
    changed = {key for key, w in network.named_parameters() if not torch.equal(w, start[key])}
    assert changed == {key for key in start if moved & {*key.split(".")}} and len(changed) > 1


def test_settings_on_text_are_chosen_on_text_that_is_not_tested_on(text):
    """The better on the rows to choose by, the worse on the others."""
    rows = torch.zeros(2, 65, dtype=torch.int64)
    study = text.Study(text.Text("ab", rows, rows, rows), steps=30)

    def run(lr):
        if lr > 1:
            raise RecipeError("run", "it has diverged")
        p = torch.tensor([lr, 1 - lr], dtype=torch.float64).expand(128, 2)
        p = torch.cat([p, p.flip(1)])
        return text.Outcome(p, p)

    lr, outcome, tried = study.best((0.2, 0.9, 0.5, 2.0), run)
    assert lr == 0.9 and tried == pytest.approx({key: -np.log(key) for key in (0.2, 0.9, 0.5)})
    assert study.scores(outcome).nll == pytest.approx(-np.log(0.1))


def test_samplers_on_text_draw_from_the_law_that_the_example_states(text, monkeypatch):
    """U is the sum over all characters, less log N(0, PRIOR) of each weight."""
    settings = {}

    class Spied(samplers.Optimizer):
        def __init__(self, *arguments, **own):
            settings.update(own)
            super().__init__(*arguments, **own)

    monkeypatch.setattr(samplers, "Optimizer", Spied)
    rows = torch.randint(3, (20, 65))
    study = text.Study(text.Text("abc", rows, rows[:2], rows[:2]), steps=30)
    _, trunk = study.plain(1e-3, seed=0)
    study.sample(text.SAMPLERS["SGHMC"], 1e-5, 1.0, trunk, seed=0)
    assert settings["num_data"] == 20 and settings["temperature"] == 1
    assert settings["num_data"] * settings["weight_decay"] == pytest.approx(1 / text.PRIOR)
    logits, targets = torch.randn(20, 64, 3), rows[:, 1:]
    by_character = -logits.log_softmax(-1).gather(-1, targets[..., None]).sum()
    assert float(20 * text.row_loss(logits, targets)) == pytest.approx(float(by_character), rel=1e-5)


@pytest.mark.slow
def test_rows_on_text_have_scores_and_samplers_verdicts_and_files_hold_the_table(text, tmp_path, capsys):
    """The NLL of averaged predictions is at most the mean of theirs; a run without noise is another run."""
    rows = text.main(["--quick", "--runs", "2", "--out", str(tmp_path)])
    nll = {(row["method"], row["temperature"]): [run["nll"] for run in row["runs"]] for row in rows}
    assert len(nll) == len(rows) == 5 + len(text.SAMPLERS) + sum(sampler.control for sampler in text.SAMPLERS.values())
    assert np.isfinite([x for own in nll.values() for x in own]).all()
    (of_all,), plain = nll["ensemble of 2, all steps each", None], nll["AdamW", None]
    assert of_all < np.mean(plain) < np.log(len(text.Text.of(text.topics).alphabet))
    for name, sampler in text.SAMPLERS.items():
        assert not sampler.control or set(nll[name, 1.0]).isdisjoint(nll[name, 0.0])
    verdicts = {(row["method"] in text.SAMPLERS, run["verdict"] is None) for row in rows for run in row["runs"]}
    assert verdicts == {(True, False), (False, True)}
    assert not any(run["wrong"] for row in rows for run in row["runs"])  # of num_data, all that so few steps answer
    printed, table = capsys.readouterr().out, (tmp_path / "text.md").read_text()
    assert table in printed and width(tmp_path / "text.png") > 700
    assert text.main(["--table", str(tmp_path / "text.json")]) == json.loads(json.dumps(rows))
    assert capsys.readouterr().out == table


def test_the_table_of_the_guide_to_training_is_of_the_text_run(text):
    results = EXAMPLES.parent / "tests" / "benchmarks" / "results" / "2026-11-28-text.json"
    found = json.loads(results.read_text())
    page = (EXAMPLES / "guide" / "training.md").read_text()
    assert text.table(found["rows"]) in page
    assert f"Python {found['python']}" in page and f"{found['weights']:,} weights" in page


# ---- models in other languages


@pytest.mark.parametrize("script, package", [("stan_model", "bridgestan"), ("pymc_model", "pymc")])
def test_a_script_that_needs_another_package_says_so(script, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, script, raising=False)
    with pytest.raises(SystemExit, match=f"examples/{script}.py needs .* pip install {package}"):
        __import__(script)


class LikeBridgeStan:
    """Two free numbers, mu ~ N(1, 1) and log tau ~ N(0, 1/4), by the methods of a model of BridgeStan."""

    def param_unc_num(self):
        return 2

    def param_names(self):
        return ["mu", "tau"]

    def param_constrain(self, z):
        return np.array([z[0], np.exp(z[1])])

    def log_density_gradient(self, z):
        away = z - [1.0, 0.0]
        return -(away[0] ** 2 + 4 * away[1] ** 2) / 2, -away * [1.0, 4.0]


def test_a_model_of_stan_is_moved_in_its_free_numbers_and_drawn_in_its_own(monkeypatch):
    """BridgeStan compiles C++ with Stan's sources, which are not here: its methods are stood in for."""
    monkeypatch.setitem(sys.modules, "bridgestan", types.ModuleType("bridgestan"))
    monkeypatch.delitem(sys.modules, "stan_model", raising=False)
    import stan_model

    def energy(z):
        return ((z[0] - 1) ** 2 + 4 * z[1] ** 2) / 2

    def run(*energy, **given):
        start = torch.zeros(2, dtype=torch.float64)
        return samplers.sample("sgld", *energy, init=start, steps=20, step_size=0.1, progress=False, **given)

    monkeypatch.setattr(stan_model, "moved", lambda pair, sites, steps: run(gradient=pair))
    draws = stan_model.draws_of(LikeBridgeStan(), steps=20)
    monkeypatch.delitem(sys.modules, "stan_model")
    mu, log_tau = run(energy)["theta"].unbind(-1)
    assert list(draws) == ["mu", "tau"]
    torch.testing.assert_close(draws["mu"], mu)
    torch.testing.assert_close(draws["tau"].log(), log_tau)


# ---- the guide, and regression by its rule


@pytest.mark.slow
def test_the_guide_chooses_trains_and_compares(images, tmp_path, capsys, float32):
    """On 120 images: which method is the better one is not asked of so few."""
    import guide

    assert guide.main(["--quick", "--data", str(images), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    table = json.loads((tmp_path / "guide.json").read_text())
    assert list(table) == ["SGD", "SGD, averaged", "deep ensemble", "sampler, T = 1", "sampler"]
    for name, row in table.items():
        assert len(row["nll"]) == len(row["seconds"]) == 2 and all(0 < x < 10 for x in row["nll"]), name
        best = min(row["tried"], key=lambda trial: trial["nll"])
        assert row["setting"] == {key: value for key, value in best.items() if key != "nll"}, name
        assert f"{name}: {guide.Setting(**row['setting'])}" in printed
    assert table["sampler, T = 1"]["setting"]["temperature"] == 1.0 and table["sampler"]["less_sampler"] is None
    assert (tmp_path / "guide.txt").read_text() in printed and "100 images to learn from, 20 held back" in printed


def test_the_guide_says_which_files_it_needs(tmp_path, capsys):
    import guide

    for arguments in ([], ["--data", str(tmp_path)]):
        assert guide.main(arguments) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and guide.SOURCES["fashion-mnist"] in error
        assert all(name in error for name in guide.IDX_FILES)


def test_the_rule_takes_one_axis_after_another_and_leaves_out_what_diverges(monkeypatch):
    import guide

    asked = []

    def nll(method, setting, *rest):
        asked.append((setting.lr, setting.temperature))
        return {0.1: 1.0, 0.2: float("inf"), 0.3: 0.5}[setting.lr] + setting.temperature

    monkeypatch.setattr(guide, "nll_of", nll)
    axes = {"lr": (0.1, 0.2, 0.3), "temperature": (1.0, 0.1)}
    choice = guide.choose(guide.Method(guide.Setting("sghmc", 0.1, 1.0), axes), *[None] * 3)
    assert (choice.setting.lr, choice.setting.temperature) == (0.3, 0.1) and len(choice.tried) == 4
    assert asked == [(0.1, 1.0), (0.2, 1.0), (0.3, 1.0), (0.3, 0.1)]
    with pytest.raises(RecipeError, match="every setting that was tried diverges"):
        guide.choose(guide.Method(guide.Setting("sghmc", 0.2, 1.0), {}), *[None] * 3)


def test_a_run_that_diverges_is_out():
    import guide
    import uci

    data = torch.randn(60, 3), torch.randn(60)
    problem = guide.Problem(lambda: uci.Regression(3), uci.loss, uci.nll, batch_size=20, epochs=40)
    for optimizer in ("sgd", "sghmc"):
        setting = guide.Setting(optimizer, lr=1e4, prior=1.0)
        assert guide.nll_of(guide.Method(setting, {}), setting, problem, data, data, 0) == float("inf"), optimizer


@pytest.mark.slow
def test_regression_by_the_rule_of_the_guide(tmp_path, capsys, float32):
    import uci

    random = np.random.RandomState(0)
    X = random.randn(80, 3) * [1.0, 100.0, 0.0]
    np.savez(tmp_path / "line.npz", X=X, y=5 + 3 * X[:, 0] + 0.3 * random.randn(80))
    arguments = ["--data", str(tmp_path), "--splits", "1", "--steps", "200", "--out", str(tmp_path), "--sets"]
    assert uci.main([*arguments, "line"]) == 0
    row = json.loads((tmp_path / "uci.json").read_text())["line"]
    for name, results in row.items():  # of y, without the inputs, it is -2.5 at best
        assert -2.4 < results["log_density"][0] < 0 and results["rmse"][0] < 2, name
    assert (tmp_path / "uci.txt").read_text() in capsys.readouterr().out
    assert uci.main([*arguments, "none"]) == 2
    error = capsys.readouterr().err
    assert "none.npz: it cannot be read" in error and error.count("\n") == 1
