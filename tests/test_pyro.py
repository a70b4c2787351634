"""Models of Pyro are the same energies as those that are written by hand; what chains cannot move is refused."""

from concurrent.futures import ThreadPoolExecutor

import pyro
import pyro.distributions as dist
import pytest
import torch
from test_models import EFFECTS, ERRORS, SCHOOLS

from recipe import RecipeError
from samplers import HMC, Metropolis, from_pyro, sample, tune

F64 = torch.float64


def schools(effects, errors):
    one = torch.ones((), dtype=F64)
    mu = pyro.sample("mu", dist.Normal(0 * one, 5 * one))
    tau = pyro.sample("tau", dist.HalfCauchy(5 * one))
    with pyro.plate("schools", len(effects)):
        eta = pyro.sample("eta", dist.Normal(0 * one, one))
        effect = pyro.deterministic("effect", mu + tau * eta)
        pyro.sample("effects", dist.Normal(effect, errors), obs=effects)


def test_eight_schools_are_those_written_by_hand():
    energy = from_pyro(schools, EFFECTS, ERRORS)
    assert energy.shapes == SCHOOLS.shapes
    start = SCHOOLS.starts(3, seed=1)
    how = dict(steps=20, step_size=0.2, metropolis=Metropolis(repeat=3), progress=False, chains=3)
    parts = dict(zip(("mu", "tau", "eta"), (start[:, 0], start[:, 1], start[:, 2:])))
    ours, theirs = (sample(HMC, U, init=parts, **how) for U in (SCHOOLS, energy))
    for name in ("mu", "tau", "eta"):
        torch.testing.assert_close(theirs[name], ours[name])
    at = {name: x[0] for name, x in parts.items()}
    torch.testing.assert_close(energy.log_prior(at), SCHOOLS.log_prior(at))
    assert len(sample(HMC, energy, steps=2, step_size=0.01, progress=False)["mu"][:, 0].unique()) == 4


@pytest.mark.slow
def test_a_model_of_pyro_is_tuned_on_a_simplex():
    def counts(n):
        w = pyro.sample("w", dist.Dirichlet(torch.ones(3, dtype=F64)))
        pyro.factor("n", (n * w.log()).sum())

    energy = from_pyro(counts, torch.tensor([30.0, 50.0, 20.0], dtype=F64))
    settings = tune(HMC, energy, chains=8, metropolis=Metropolis(repeat=2))
    draws = sample(HMC, energy, steps=100, progress=False, **settings.arguments)["w"]
    assert torch.allclose(draws.mean((0, 1)), torch.tensor([31.0, 51.0, 21.0], dtype=F64) / 103, atol=0.03)


def test_the_settings_of_pyro_are_left_as_they_are():
    before = pyro.settings.get("validate_infer"), torch.distributions.Distribution._validate_args
    energy = from_pyro(schools, EFFECTS, ERRORS)
    energy({"mu": EFFECTS[0], "tau": EFFECTS[0], "eta": EFFECTS})
    assert (pyro.settings.get("validate_infer"), torch.distributions.Distribution._validate_args) == before


def test_models_run_in_threads():
    def drawn(_):
        energy = from_pyro(schools, EFFECTS, ERRORS)
        return sample(HMC, energy, steps=5, step_size=0.1, progress=False)["mu"]

    before = torch.distributions.Distribution._validate_args
    alone = drawn(0)
    with ThreadPoolExecutor(4) as threads:
        assert all(torch.equal(each, alone) for each in threads.map(drawn, range(4)))
    assert torch.distributions.Distribution._validate_args == before


def angle():
    pyro.sample("phi", dist.VonMises(1.0, 4.0))


def copied():
    pyro.sample("y", dist.Delta(pyro.sample("x", dist.Normal(0.0, 1.0))))


def chosen():
    with pyro.plate("rows", 4, subsample=torch.tensor([0, 1])):
        pyro.sample("x", dist.Normal(0.0, 1.0))


def misshapen():
    x = pyro.sample("x", dist.Normal(torch.zeros(3), 1.0).to_event(1))
    pyro.sample("y", dist.Normal(x, 1.0).to_event(1), obs=torch.zeros(4))


def missing():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 2):
        pyro.sample("y", dist.Normal(x, 1.0), obs=torch.zeros(2), obs_mask=torch.tensor([True, False]))


def flat():
    with pyro.poutine.mask(mask=False):
        x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(x, 1.0), obs=torch.tensor(1.0))


def test_a_flat_prior_is_moved_where_data_see_the_variable():
    x = torch.tensor(3.0)
    torch.testing.assert_close(from_pyro(flat)({"x": x}), -dist.Normal(1.0, 1.0).log_prob(x))


def fixed():
    pyro.sample("y", dist.Normal(0.0, 1.0), obs=torch.tensor(1.0))


def discrete():
    pyro.sample("k", dist.Bernoulli(0.5))


def enumerated():
    pyro.sample("k", dist.Categorical(torch.ones(3)), infer={"enumerate": "parallel"})


def subsampled():
    mu = pyro.sample("mu", dist.Normal(0.0, 1.0))
    with pyro.plate("rows", 10, subsample_size=2):
        pyro.sample("y", dist.Normal(mu, 1.0), obs=torch.zeros(2))


def parameter():
    pyro.sample("x", dist.Normal(pyro.param("loc", torch.tensor(0.0)), 1.0))


def changing():
    if pyro.sample("x", dist.Normal(0.0, 1.0)) > 0:
        pyro.sample("y", dist.Normal(0.0, 1.0))


def growing():
    x = pyro.sample("x", dist.Normal(0.0, 1.0))
    pyro.sample("y", dist.Normal(torch.zeros(2 if x > 0 else 3), 1.0).to_event(1))


def bounded():
    top = pyro.sample("top", dist.HalfNormal(1.0))
    pyro.sample("y", dist.Uniform(0.0, top))


def rarely():
    x = pyro.sample("x", dist.Normal(torch.tensor(0.0), 1.0))
    if x > 20:
        pyro.sample("y", dist.Normal(0.0, 1.0))


def test_variables_that_are_drawn_at_some_states_alone_are_refused_there():
    energy = from_pyro(rarely)
    energy({"x": torch.tensor(1.0)})
    with pytest.raises(RecipeError, match="change from run to run: y"):
        energy({"x": torch.tensor(21.0)})


def asking(x):
    pyro.sample("y", dist.Normal(x, 1.0))


def failing():
    raise ValueError("of its own")


REFUSED = {
    asking: "the model fails when it is run: TypeError: .*missing 1 required.*its arguments",
    failing: "ValueError: of its own",
    torch.sum: "the model fails when it is run",
    fixed: "no latent variable",
    discrete: "discrete or enumerated",
    enumerated: "discrete or enumerated",
    subsampled: "takes 2 of 10 rows",
    parameter: "pyro.param",
    changing: "change from run to run: y",
    growing: r"from \((2|3),\) to",
    bounded: "support depends on other variables",
    chosen: "takes 2 of 4 rows",
    misshapen: "the model fails when it is run: RuntimeError: The size of tensor",
    missing: "'y_unobserved': a mask hides some of its numbers",
    angle: r"is inf, not 1. Write an angle as a Uniform\(-math.pi, math.pi\)",
    copied: "a Delta as a pyro.deterministic",
    3: "pyro.sample statements",
}


@pytest.mark.parametrize("program", REFUSED, ids=lambda program: getattr(program, "__name__", program))
def test_what_chains_cannot_move_is_refused(program):
    with pytest.raises(RecipeError, match=REFUSED[program]):
        from_pyro(program)
