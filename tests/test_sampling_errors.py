"""Wrong input of `sample` and `posterior`: a RecipeError that says where, what, got, do, before the first step.

Each row of the tables is: what is wrong, the call, key words that the message must have in this order.
"""

import math
import re
import warnings

import numpy as np
import pytest
import torch
from sympy import symbols
from torch.nn import Linear, Parameter

import samplers
from recipe import Energy, Recipe, RecipeError, potential, scalar, total, vector
from samplers import (
    ATMC,
    SGHMC,
    SGLD,
    SGNHT,
    SGRLD,
    SGRLDCIR,
    VSGD,
    Phase,
    PreconditionedSGLD,
    SGLDSAGibbs,
    SGLDSAMarginal,
    UnderdampedLangevin,
    evidence,
    posterior,
    tune,
)
from samplers.running import watching
from samplers.running.schedules import Cyclical

theta, w = vector("theta"), vector("w", domain="positive")
x, y = scalar("x"), scalar("y")
a, b = symbols("a b", real=True)

ZERO = torch.zeros(2)
ORIGIN = {"x": torch.tensor(0.0), "y": torch.tensor(0.0)}
ROWS = torch.ones(10, 2)
HOLED = ROWS.index_fill(0, torch.tensor(7), math.nan)
BOWL = Energy((a, b), U=2 * a**2 + b**2)
GAUSSIAN = Recipe(name="gaussian", state=(theta,), H=total(theta**2) / 2, D={theta: 1})
POSITIVE = Recipe(name="positive", state=(w,), H=potential(w), D={w: w})
EXPLICIT = Recipe(name="explicit", state=(x, y), target=(x, y), H=potential(x, y), D={x: 1, y: 1})


def bowl(theta):
    """|theta|^2/2."""
    return (theta**2).sum() / 2


def of_rows(theta, rows):
    """An energy of theta and a batch."""
    return ((rows - theta) ** 2).sum()


def _shrinks(theta):
    with torch.no_grad():
        theta.mul_(0.5)
    return bowl(theta)


def _shifts(theta, rows):
    rows.sub_(1)
    return of_rows(theta, rows)


class _Square(torch.autograd.Function):
    """|theta|^2/2, in the form that torch.func does not take."""

    @staticmethod
    def forward(ctx, theta):
        ctx.save_for_backward(theta)
        return bowl(theta)

    @staticmethod
    def backward(ctx, slope):
        return slope * ctx.saved_tensors[0]


def call(recipe=SGLD, energy=bowl, **more):
    """A run of 2 chains and 3 steps."""
    given = {"init": ZERO, "chains": 2, "steps": 3, "step_size": 0.1, "progress": False}
    return lambda: samplers.sample(recipe, energy, **given | more)


@pytest.fixture
def no_step(monkeypatch):
    """Fail where a run gets as far as its first step; `tune` is imported before, whose modules know Bar by name."""

    def begun(*arguments, **more):
        raise AssertionError("the run began: the input was not refused before the first step")

    monkeypatch.setattr(watching, "Bar", begun)


def table(rows):
    """A parametrisation with the first entry of each row as its name."""
    names = [name.replace(" ", "-") for name, _, _ in rows]
    return pytest.mark.parametrize("call, words", [row[1:] for row in rows], ids=names)


def refused(call, words) -> str:
    """The message of the RecipeError that a call raises, with its key words in order."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RecipeError, match=".*".join(map(re.escape, words))) as refusal:
            call()
    return str(refusal.value)


# ---- numbers


@table(
    [
        ("step size zero", call(step_size=0), ["step size", "positive", "got 0"]),
        ("step size negative", call(step_size=-0.1), ["step size", "positive", "got -0.1"]),
        ("step size NaN", call(step_size=math.nan), ["step size", "positive", "got nan"]),
        ("step size infinite", call(step_size=math.inf), ["step size", "positive", "got inf"]),
        ("step size of another kind", call(step_size="0.1"), ["step size", "positive", "got '0.1'"]),
        ("temperature negative", call(temperature=-1.0), ["temperature", ">= 0", "got -1.0"]),
        ("temperature NaN", call(temperature=math.nan), ["temperature", ">= 0", "got nan"]),
        ("friction negative", call(UnderdampedLangevin, gamma=-0.5), ["'gamma'", "positive", "got -0.5", "friction"]),
        ("friction zero", call(SGHMC, C=0.0), ["'C'", "positive", "got 0", "friction"]),
        ("mass NaN", call(UnderdampedLangevin, m=math.nan), ["'m'", "not finite"]),
        ("one negative mass", call(UnderdampedLangevin, m=torch.tensor([1.0, -1.0])), ["'m'", "positive", "got -1"]),
        ("parameter of another kind", call(SGHMC, C="1"), ["'C'", "number or a tensor", "got str"]),
        ("parameter with too many values", call(SGHMC, C=torch.ones(2)), ["'C'", "one number", "(2,)", "per=theta"]),
        ("parameter per site of the wrong shape", call(PreconditionedSGLD, G=torch.ones(3)), ["'G'", "(3,)", "(2,)"]),
        (
            "more steps than noise has",
            call(warmup=2**41, steps=1),
            ["number of steps", "integer <= 2199023255552, got 2199023255553"],
        ),
        ("step size beyond floats", call(step_size=10**400), ["step size", "positive", "got 1000"]),
        ("temperature beyond floats", call(temperature=10**400), ["temperature", ">= 0", "got 1000"]),
        (
            "everything frozen",
            call(SGHMC, steps=1000, phases=[Phase(5, freeze=("theta", "p"))]),
            ["nothing moves", "theta, p"],
        ),
        ("steps zero", call(steps=0), ["steps", "integer >= 1", "got 0"]),
        ("steps negative", call(steps=-5), ["steps", "integer >= 1", "got -5"]),
        ("steps not an integer", call(steps=2.5), ["steps", "integer >= 1", "got 2.5"]),
        ("steps true", call(steps=True), ["steps", "integer >= 1", "got True"]),
        ("chains zero", call(chains=0), ["chains", "integer >= 1", "got 0"]),
        ("warmup negative", call(warmup=-1), ["warmup", "integer >= 0", "got -1"]),
        ("thin zero", call(thin=0), ["thin", "integer >= 1", "got 0"]),
        ("thin above steps", call(thin=4), ["thin = 4", "3 steps", "thin <= steps"]),
        ("no seed", call(seed=None), ["seed", "got None", "global generator is never used"]),
        ("seed negative", call(seed=-1), ["seed", "from 0 to", "got -1"]),
        ("seed not an integer", call(seed=1.0), ["seed", "integer", "got 1.0"]),
        ("seed above 64 bits", call(seed=2**64), ["seed", str(2**64)]),
        ("noise budget exceeded", call(SGHMC, C=1.0, B=2.0), ["supplied", "-1", "B = 2", "friction"]),
        ("noise budget exceeded when cold", call(SGHMC, B=0.5, temperature=0.1), ["supplied", "T = 0.1", "friction"]),
        ("noise budget exceeded by a thermostat", call(ATMC, B=0.5, temperature=0.1), ["supplied", "T = 0.1"]),
    ]
)
def test_a_wrong_number_is_refused(call, words, no_step):
    refused(call, words)


@table(
    [
        ("Langevin", call(UnderdampedLangevin, BOWL, step_size=3.0), ["unstable", "= 3", "spectral radius", "smaller"]),
        ("SGLD just beyond 2/k", call(SGLD, BOWL, step_size=0.51), ["unstable", "= 0.51", "spectral radius is 1.04"]),
    ]
)
def test_an_unstable_step_is_refused_where_the_energy_is_known_to_be_quadratic(call, words, no_step):
    refused(call, words)


def test_a_step_just_within_the_stable_range_is_accepted():
    assert call(SGLD, BOWL, step_size=0.49)().diverged == {}


# ---- names


@table(
    [
        ("parameter", call(UnderdampedLangevin, gama=1.0), ["'gama'", "not a parameter", "Did you mean 'gamma'?"]),
        ("temperature misspelt", call(temprature=1.0), ["'temprature'", "Did you mean 'temperature'?"]),
        ("block to keep", call(SGNHT, keep="x"), ["keep", "no block 'x'", "Did you mean 'xi'?"]),
        (
            "block to start",
            call(SGNHT, init={"theta": ZERO, "x": ZERO}),
            ["init", "no block 'x'", "Did you mean 'xi'?"],
        ),
        ("coordinate to start", call(EXPLICIT, BOWL, init={"x": ZERO[0], "z": ZERO[0]}), ["init", "no block 'z'"]),
        ("all coordinates to start", call(EXPLICIT, BOWL, init={"u": ZERO[0], "z": ZERO[0]}), ["init", "x"]),
        ("backend", call(backend="cuda"), ["backend 'cuda'", "no such backend", "torch"]),
        ("scope", call(scope="tensr"), ["scope", "'tensr'"]),
        ("piece of the word", call(UnderdampedLangevin, scheme="B A Z A B"), ["scheme", "'Z'"]),
        ("device", lambda: samplers.Start(torch.zeros(2), device="gpu"), ["device", "'gpu'"]),
        ("absent device", lambda: samplers.Start(torch.zeros(2), device="cuda:99"), ["device", "'cuda:99'"]),
        ("recipe", call(3), ["expected a Recipe", "got int"]),
        ("stock sampler", call("sglld"), ["no stock sampler 'sglld'", "Did you mean 'sgld'"]),
    ]
)
def test_an_unknown_name_is_refused_with_the_known_ones(call, words, no_step):
    refused(call, words)


def test_an_opaque_function_must_be_bound(no_step):
    refused(call(SGRLD), ["'inverse_metric'", "opaque", "bind(inverse_metric="])


# ---- energies


@table(
    [
        (
            "one value per coordinate",
            call(energy=lambda theta: theta**2),
            ["energy", "one number", "shape (2,)", "Sum"],
        ),
        (
            "one value in a vector",
            call(energy=lambda theta: (theta**2).sum(0, keepdim=True)),
            ["one number", "shape (1,)"],
        ),
        ("a float", call(energy=lambda theta: float((theta**2).sum())), ["one number", "float"]),
        ("nothing", call(energy=lambda theta: None), ["one number", "NoneType"]),
        ("detached", call(energy=lambda theta: (theta.detach() ** 2).sum()), ["depend", "theta", ".detach()"]),
        (
            "item, and a new tensor",
            call(energy=lambda theta: torch.tensor((theta**2).sum().item())),
            ["energy", ".item()"],
        ),
        ("item as a factor", call(energy=lambda theta: bowl(theta) * theta[0].item()), ["energy", ".item()"]),
        ("numpy", call(energy=lambda theta: torch.as_tensor((theta.numpy() ** 2).sum())), ["energy", "numpy"]),
        (
            "an array of numpy beside theta",
            call(energy=lambda theta: (np.ones((3, theta.shape[0])) @ theta).sum()),
            ["energy", "gradient="],
        ),
        (
            "a branch on a value",
            call(energy=lambda theta: bowl(theta) if theta.sum() > 0 else theta.sum()),
            ["energy", "torch.where"],
        ),
        ("its own random numbers", call(energy=lambda theta: bowl(theta) + torch.randn(2).sum()), ["energy", "random"]),
        ("changes theta in place", call(energy=lambda theta: theta.mul_(2).sum()), ["energy", "in-place"]),
        ("changes theta in place, unseen by autograd", call(energy=_shrinks), ["energy", "in place", "clone"]),
        ("changes the data in place", call(energy=_shifts, data=ROWS.clone()), ["energy", "in place", "data"]),
        ("complex", call(energy=lambda theta: bowl(theta) + 0j), ["energy", "complex", ".real"]),
        ("an autograd function of the old kind", call(energy=lambda theta: _Square.apply(theta)), ["many chains"]),
        ("no argument", call(energy=lambda: ZERO.sum()), ["energy", "argument", "theta"]),
        ("two arguments without data", call(energy=of_rows), ["energy", "argument", "data="]),
        ("one argument with data", call(data=ROWS), ["energy", "2 argument", "(theta, batch)"]),
        ("text", call(energy="theta**2"), ["energy", "callable"]),
        ("missing", call(energy=None), ["opaque", "no energy", "Energy"]),
        ("superfluous", call(GAUSSIAN, bowl), ["wholly symbolic", "no energy"]),
        ("superfluous and symbolic", call(GAUSSIAN, BOWL), ["wholly symbolic", "no energy"]),
        ("symbolic with data", call(SGLD, BOWL, data=ROWS), ["energy reads no data", "data_total"]),
        ("symbolic of another size", call(SGLD, BOWL, init=torch.zeros(3)), ["2 coordinates", "3"]),
        (
            "symbolic of another number of blocks",
            call(EXPLICIT, Energy(a, U=a**2), init=ORIGIN),
            ["1 coordinates", "2"],
        ),
    ]
)
def test_a_wrong_energy_is_refused(call, words, no_step):
    refused(call, words)


@pytest.mark.parametrize(
    "wrong, error, words",
    [
        (call(energy=lambda theta: (theta @ torch.ones(3, 3)).sum()), RuntimeError, ["(2,)", "cannot be multiplied"]),
        (call(energy=of_rows, data=torch.ones(10, 5)), RuntimeError, ["(2,) and a batch of shape (10, 5)", "init"]),
        (call(energy=lambda theta: theta["b"].sum(), init={"a": ZERO}), KeyError, ["{'a': (2,)}", "'b'", "names"]),
        (call(energy=lambda theta: (theta + None).sum()), TypeError, ["unsupported operand", "mend it"]),
        (call(energy=lambda theta: 1 / 0 * theta.sum()), ZeroDivisionError, ["division by zero", "mend it"]),
        (lambda: tune("mala", lambda theta: theta @ torch.ones(3), init=ZERO), RuntimeError, ["(2,)", "init"]),
    ],
    ids=["shapes", "data", "names", "type", "zero", "tune"],
)
def test_an_error_inside_of_the_energy_is_told_with_the_shapes_of_its_arguments(wrong, error, words, no_step):
    with pytest.raises(RecipeError, match=".*".join(map(re.escape, ["energy: it fails at theta", *words]))) as raised:
        wrong()
    assert type(raised.value.__cause__) is error


@table(
    [
        ("NaN", call(energy=lambda theta: theta.sqrt().sum(), init=ZERO - 1), ["by theta", "not finite", "chain 0"]),
        ("infinite", call(energy=lambda theta: theta.log().sum()), ["gradient by theta", "not finite", "chain 0"]),
        (
            "NaN in a row that the first batch has not",
            call(energy=of_rows, data=torch.ones(200, 2).index_fill(0, torch.tensor(57), math.nan), batch_size=2),
            ["gradient", "not finite on row 57 of the data", "Mend the row"],
        ),
        ("NaN in a row of all data", call(energy=of_rows, data=HOLED), ["not finite on row 7 of", "Mend the row"]),
        (
            "NaN in a row, tuned",
            lambda: tune("mala", of_rows, data=HOLED, init=ZERO, progress=False),
            ["mala, tune: ", "not finite on row 7 of the data", "Mend the row"],
        ),
        (
            "NaN in a row, tuned on minibatches",
            lambda: tune("sgld", of_rows, data=HOLED, batch_size=2, metropolis=False, init=ZERO, progress=False),
            ["sgld, tune: ", "not finite on row 7 of the data", "Mend the row"],
        ),
        (
            "NaN in a row, of the evidence",
            lambda: evidence("mala", of_rows, data=HOLED, reference=torch.distributions.Normal(ZERO, 1.0)),
            ["mala, evidence: ", "not finite on row 7 of the data", "Mend the row"],
        ),
        (
            "in one chain",
            call(energy=lambda theta: theta.log().sum(), init=torch.tensor([[1.0, 1.0], [1.0, 0.0]])),
            ["not finite", "chain 1"],
        ),
        (
            "symbolic",
            call(energy=Energy((a, b), U=a**-2 + a**2 + b**2)),
            ["gradient by theta", "not finite", "chain 0"],
        ),
        (
            "symbolic by site",
            call(energy=Energy(theta, U=total(theta**-2 + theta**2))),
            ["theta", "not finite", "chain 0"],
        ),
        (
            "explicit",
            call(EXPLICIT, lambda z: z["x"].log() + z["y"] ** 2, init=ORIGIN),
            ["gradient by x", "not finite"],
        ),
    ]
)
def test_a_start_without_a_finite_gradient_is_refused(call, words, no_step):
    refused(call, words)


@pytest.mark.parametrize("spread", [lambda rows: 1.0, lambda rows: rows.std()], ids=["sum", "over the spread of all"])
def test_an_energy_that_mends_its_data_is_sampled(spread):
    """The spread is 0, and the energy infinite, on a batch that has the row with NaN alone."""
    assert call(energy=lambda t, rows: of_rows(t, rows.nan_to_num()) / spread(rows.nan_to_num()), data=HOLED)()


@pytest.mark.parametrize("sign, warned", [(-1, True), (1, False)], ids=["log-density", "energy"])
@pytest.mark.parametrize(
    "recipe, energy, init",
    [
        (SGLD, lambda sign: lambda theta: sign * bowl(theta), ZERO),
        (SGLD, lambda sign: lambda theta: sign * theta.abs().sum(), ZERO),
        (SGLD, lambda sign: lambda theta: sign * torch.log1p(theta**2).sum(), ZERO),
        (SGLD, lambda sign: lambda parts: sign * (bowl(parts["w"]) + bowl(parts["c"])), {"w": ZERO, "c": ZERO}),
        (EXPLICIT, lambda sign: lambda z: sign * (z["x"] ** 2 + z["y"] ** 2), ORIGIN),
    ],
    ids=["gaussian", "laplace", "cauchy", "by-name", "explicit"],
)
def test_a_log_density_in_place_of_an_energy_is_warned_of(recipe, energy, init, sign, warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        call(recipe, energy(sign), init=init)()
    messages = [str(w.message) for w in caught if issubclass(w.category, RuntimeWarning)]
    assert any("wrong sign" in message and "-log density" in message for message in messages) == warned


@pytest.mark.parametrize(
    "energy",
    [lambda theta: theta.sum(), lambda theta: (theta.clamp(min=-3) ** 2).sum()],
    ids=["linear", "bounded"],
)
def test_an_energy_that_falls_along_some_rays_only_is_not_warned_of(energy):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        call(energy=energy, chains=8)()


# ---- starts


@table(
    [
        ("integers", call(init=torch.zeros(2, dtype=torch.int64)), ["init", "torch.int64", "float32 or", ".float()"]),
        ("booleans", call(init=torch.zeros(2, dtype=torch.bool)), ["init", "torch.bool", "float32 or float64"]),
        ("half precision", call(init=ZERO.half()), ["init", "torch.float16", "float32 or float64"]),
        ("complex", call(init=ZERO.cfloat()), ["init", "torch.complex64", "float32 or float64"]),
        ("sparse", call(init=ZERO.to_sparse()), ["init", "layout", "sparse_coo", "x.to_dense()"]),
        ("without values", call(init=ZERO.to("meta")), ["init", "'meta'", "no values"]),
        ("NaN", call(init=ZERO / 0), ["init", "not finite"]),
        ("text", call(init="0, 0"), ["init", "str"]),
        ("none", call(init=None), ["init", "no start", "torch.zeros(shape)"]),
        ("empty dict", call(init={}), ["init", "no start"]),
        ("module without parameters", call(init=torch.nn.ReLU()), ["init", "no start"]),
        ("target missing", call(UnderdampedLangevin, init={"p": ZERO}), ["init", "no start is given for theta"]),
        ("frozen parameter", call(init={"w": Parameter(ZERO, requires_grad=False)}), ["'w'", "requires_grad=False"]),
        ("frozen module", call(init=Linear(2, 1).requires_grad_(False)), ["init", "'weight'", "requires_grad=False"]),
        (
            "mixed dtypes of parameters",
            call(init={"w": ZERO, "c": ZERO.double()}),
            ["mixed dtypes", "float32", "float64"],
        ),
        (
            "mixed dtypes of blocks",
            call(UnderdampedLangevin, init={"theta": ZERO, "p": ZERO.double()}),
            ["mixed dtypes"],
        ),
        (
            "two shapes",
            call(UnderdampedLangevin, init={"theta": ZERO, "p": torch.zeros(3)}),
            ["shapes", "(2,)", "(3,)"],
        ),
        (
            "three numbers for a scalar block",
            call(SGNHT, init={"theta": ZERO, "xi": torch.zeros(3)}),
            ["'xi'", "scalar block", "(3,)", "(2,)"],
        ),
        ("tensor for explicit coordinates", call(EXPLICIT, BOWL, init=ZERO), ["explicit coordinates", "dict by block"]),
        ("zero on a positive domain", call(POSITIVE, init=ZERO), ["w is positive", "Start at positive values"]),
        ("negative on a positive domain", call(POSITIVE, init=ZERO - 1), ["w is positive", "Start at positive values"]),
    ]
)
def test_a_wrong_start_is_refused(call, words, no_step):
    refused(call, words)


# ---- data


@table(
    [
        (
            "another dtype",
            call(energy=of_rows, data=ROWS.double()),
            ["data", "torch.float64", "torch.float32", "X.to("],
        ),
        ("another device", call(energy=of_rows, data=ROWS.to("meta")), ["data", "meta", "cpu", "X.to("]),
        ("batch larger than the data", call(energy=of_rows, data=ROWS, batch_size=11), ["batch_size", "11", "10 data"]),
        ("batch of nothing", call(energy=of_rows, data=ROWS, batch_size=0), ["batch_size", "0", "10 data"]),
        ("batch of no integer", call(energy=of_rows, data=ROWS, batch_size=2.5), ["batch_size", "2.5"]),
        ("batch true", call(energy=of_rows, data=ROWS, batch_size=True), ["batch_size", "True"]),
        ("batch without data", call(batch_size=5), ["batch_size without data", "data="]),
        ("no rows", call(energy=of_rows, data=ROWS[:0]), ["data", "there are none", "at least one"]),
        ("no tensors", call(energy=lambda theta, batch: bowl(theta), data=()), ["data", "at least one"]),
        ("unequal rows", call(energy=lambda theta, batch: bowl(theta), data=(ROWS, ROWS[:3])), ["tensor 1", "3 rows"]),
        ("one number", call(energy=of_rows, data=torch.tensor(1.0)), ["data", "row"]),
        ("a list of numbers", call(energy=of_rows, data=[1.0, 2.0]), ["data", "row"]),
        ("a dict", call(energy=of_rows, data={"X": ROWS}), ["data", "dict"]),
    ]
)
def test_wrong_data_are_refused(call, words, no_step):
    refused(call, words)


@table(
    [
        ("missing", lambda: posterior(bowl, bowl), ["num_data", "num_data=len(X)"]),
        ("none", lambda: posterior(bowl, bowl, num_data=None), ["num_data", "got None", "num_data=len(X)"]),
        ("zero", lambda: posterior(bowl, bowl, num_data=0), ["num_data", "positive integer", "got 0"]),
        ("no integer", lambda: posterior(bowl, bowl, num_data=10.0), ["num_data", "integer", "got 10.0"]),
    ]
)
def test_a_mean_likelihood_needs_the_number_of_data(call, words):
    refused(call, words)


def mean_of_rows(likelihood=lambda theta, rows: ((rows - theta) ** 2).sum(1), prior=bowl):
    return call(energy=posterior(likelihood, prior, num_data=10), data=ROWS)


@table(
    [
        ("no likelihood", lambda: mean_of_rows(ROWS), ["negative_log_likelihood is a Tensor", "Pass a function"]),
        ("no prior", lambda: mean_of_rows(prior=None), ["negative_log_prior is a NoneType", "flat prior"]),
        ("likelihood of nothing", mean_of_rows(lambda theta, rows: None), ["likelihood is a NoneType", "Return"]),
        ("prior of nothing", mean_of_rows(prior=lambda theta: None), ["prior is a NoneType", "Return one number"]),
    ]
)
def test_a_likelihood_or_prior_that_is_none_is_refused(call, words, no_step):
    refused(call, words)


# ---- what only the run can tell


@pytest.mark.parametrize("size", [0.0, -0.1, math.nan, None, "0.1"], ids=str)
def test_a_schedule_that_gives_no_step_size_is_refused_with_the_step(size):
    message = refused(call(step_size=lambda k: 0.1 if k < 2 else size), ["schedule", "step 2"])
    assert repr(size) in message


# ---- what every message has in common


def test_messages_say_where_what_and_what_to_do():
    """where: what. do."""
    message = refused(call(UnderdampedLangevin, gama=1.0), ["gama"])
    where, rest = message.split(": ", 1)
    assert where.startswith("underdamped-langevin") and rest == "'gama' is not a parameter. Did you mean 'gamma'?"


REFUSED = {
    "a variance of the spike above that of the slab": (
        call(SGLDSAMarginal, bowl, v0=2.0, v1=1.0),
        "v0 < v1 does not hold: v0 = 2.0, v1 = 1.0",
    ),
    "a slab of probability 0": (call(SGLDSAGibbs, bowl, delta=0.0), "delta > 0 does not hold"),
    "a law that the temperature makes improper": (
        call(SGRLDCIR, None, init=torch.ones(2), temperature=0.5, a=0.1),
        "not normalisable.*shape -0.8",
    ),
    "a budget beyond the friction at one temperature of a schedule": (
        call(SGHMC, bowl, B=0.9, temperature=lambda k: 0.1 if k == 1 else 1.0),
        "T D - supplied.*T = 0.1",
    ),
    "a budget beyond the friction in one phase": (
        call(VSGD, bowl, V=2.6, step_size=0.5, phases=[Phase(5, step_size=3.0)], steps=1000),
        "h = 3",
    ),
    "one phase that is no list": (call(SGLD, bowl, phases=Phase(5), steps=1000), "a list of Phase"),
    "a phase that keeps by a word": (lambda: Phase(5, keep="no"), "Phase, keep: it is True or False"),
    "a phase of a negative step": (lambda: Phase(5, step_size=-0.1), "Phase, step_size: it is a number > 0"),
    "a phase that freezes a dict": (lambda: Phase(5, freeze={"V": 1}), "Phase, freeze: it names blocks"),
    "a schedule of words": (call(SGLD, bowl, step_size=lambda k: "x"), "gives the step size 'x' at step 0"),
    "a schedule of two arguments": (call(SGLD, bowl, step_size=lambda a, b: 1.0), "fails at step 0"),
    "a temperature that fails": (call(SGLD, bowl, temperature=lambda k: 1 / 0), "temperature fails at step 0"),
}


@pytest.mark.parametrize("mistake", REFUSED)
def test_what_could_not_run_is_refused_before_the_first_step(mistake):
    make, words = REFUSED[mistake]
    with pytest.raises(RecipeError, match=words):
        make()


def test_phases_count_their_own_steps_and_so_can_be_put_together():
    cycle = Cyclical(0.1, cycles=2, steps=20, explore=0.5)
    draws = call(SGLD, bowl, phases=[Phase(7, keep=False), *cycle.phases], steps=1000)()
    kept = [cycle(k) for k in range(20) if cycle.sampling(k)]
    assert draws.step_sizes.tolist() == pytest.approx(kept)


def test_a_schedule_beyond_floats_is_refused():
    with pytest.raises(RecipeError, match="at step 2"):
        call(step_size=lambda k: 10**400 if k == 2 else 0.1)()


def test_finite_states_whose_sum_overflows_are_lost_by_the_name_of_their_block():
    with pytest.raises(RecipeError, match="the last at step 0: theta is not finite"):
        call(energy=lambda theta: -(theta * 3e37).sum(), init=torch.full((3,), 1.5e38), step_size=0.1)()


def test_a_process_without_a_console_has_no_bar(monkeypatch):
    monkeypatch.setattr("sys.stderr", None)
    assert call(progress=True)()["theta"].shape == (2, 3, 2)


def test_an_energy_without_a_number_is_refused():
    def energy(theta):
        return theta.to("meta").sum()

    with pytest.raises(RecipeError, match="its value is on the device 'meta', no number"):
        samplers.sample(SGLD, energy, init=torch.zeros(2), steps=5, step_size=0.1, progress=False)
