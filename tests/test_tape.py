"""Energies played from tapes: the draws have the same bits, and what a tape would freeze is called as it is written."""

import contextvars
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from covering import slow
from torch.distributions import HalfNormal, MultivariateNormal, Normal

import samplers
from samplers.target import tape
from samplers.target.traced import Traced
from samplers.tuning.pilot import Pilot

WIDTHS = torch.tensor([0.5, 1.0, 2.0])
ORDERS = {0, 1}


def bowl(theta):
    return (theta / WIDTHS).square().sum() / 2


def points(k, chains=4):
    """Those of call k."""
    return torch.randn(chains, 3, generator=torch.Generator().manual_seed(k))


def called(energy, calls=3 * tape.EVERY, chains=4):
    """The potential after so many calls, each of which is compared with U of one chain after another."""
    potential = Traced(energy)
    for k in range(calls):
        z = points(k, chains)
        jet = potential.jet(z, orders=ORDERS)
        torch.testing.assert_close(jet.value, torch.stack([energy(x) for x in z]))
    return potential


def run(energy, **settings):
    return samplers.sample("hmc", energy, **dict(seed=3, step_size=0.1, steps=200, progress=False) | settings)


@pytest.fixture
def nothing_taped(monkeypatch):
    """Makes no tapes from here on."""
    return lambda: monkeypatch.setattr(tape, "CALLS", 10**9)


def correlated(theta):
    factor = torch.eye(3) + 0.1 * theta.tanh().outer(theta.tanh()).tril(-1)
    return -MultivariateNormal(torch.zeros(3), scale_tril=factor, validate_args=False).log_prob(theta)


def network(theta, batch):
    x, y = batch
    return 10 * (torch.tanh(x @ theta) - y).square().mean() + theta.square().sum() / 2


MODEL = samplers.model(
    {"mu": Normal(torch.zeros(2), 1.0), "s": HalfNormal(1.0)},
    lambda v: Normal(v["mu"][0] + v["mu"][1], v["s"]).log_prob(torch.tensor([0.1, 0.7, -0.3])),
)
DATA = torch.linspace(-1, 1, 30).reshape(10, 3), torch.linspace(0, 1, 10)


@pytest.mark.parametrize(
    "energy, settings",
    [
        (bowl, dict(init=torch.zeros(3))),
        slow((bowl, dict(init=torch.zeros(3), chains=1))),
        (bowl, dict(init=torch.zeros(3, dtype=torch.float64), metropolis=samplers.Metropolis(repeat=4))),
        slow((correlated, dict(init=torch.zeros(3), chains=3))),
        slow((MODEL, dict(metropolis=True))),
        slow((network, dict(init=torch.zeros(3), data=DATA))),
        (network, dict(init=torch.zeros(3), data=DATA, batch_size=4, metropolis=False)),
    ],
    ids=["plain", "a chain", "accepted", "a factor", "a model", "data", "minibatches"],
)
def test_draws_by_a_tape_have_the_bits_of_those_without(energy, settings, nothing_taped):
    taped = run(energy, **settings)
    assert taped.info["backend_reason"].endswith("U is played from a tape")
    nothing_taped()
    called = run(energy, **settings)
    assert "tape" not in called.info["backend_reason"]
    assert all(torch.equal(taped[name], called[name]) for name in called)


def test_a_run_from_a_tape_goes_on_where_it_was_interrupted(tmp_path, monkeypatch):
    """With the bits of the steps before, whose U was called."""
    left = [0]

    def fragile(theta):
        if left[0]:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
        return bowl(theta)

    given = dict(init=torch.zeros(3), steps=40, checkpoint=samplers.checkpoints.Folder(tmp_path, every=0))
    whole = run(bowl, init=torch.zeros(3), steps=40)
    with monkeypatch.context() as called:
        called.setattr(tape, "CALLS", 10**9)
        left[0] = 100
        with pytest.raises(KeyboardInterrupt):
            run(fragile, **given)
    rest = run(fragile, **given)
    assert rest.info["backend_reason"].endswith("U is played from a tape")
    assert torch.equal(rest["theta"], whole["theta"])


class Counting:
    """Counts its calls, and reads the count where `grows`."""

    def __init__(self, grows):
        self.calls, self.grows = 0, grows

    def __call__(self, theta):
        self.calls += 1
        return bowl(theta) * (1 + self.grows * self.calls)


@pytest.mark.parametrize("grows", [0, 1e-5])
def test_an_energy_that_counts_its_calls_is_called(grows):
    """By the count in its value U is another function at each call."""
    energy = Counting(grows)
    potential = Traced(energy)
    slopes = [potential.jet(points(0), orders=ORDERS).slope for _ in range(5 * tape.CALLS)]
    reason = "its numbers differ" if grows else "what it reads changes (Counting)"
    assert potential.by_tape == f"no tape of U: {reason}"
    steps = [(later - before).abs().min() for before, later in zip(slopes, slopes[1:])]
    assert all((step > 0) == (grows > 0) for step in steps)


def test_a_branch_on_a_value_is_taken_anew():
    def branching(theta):
        return bowl(theta) if theta.sum() > 0 else 3 * bowl(theta)

    assert called(branching, 2 * tape.CALLS, chains=1).by_tape == "no tape of U: it reads a number out of a tensor"


def test_a_length_by_values_is_taken_anew():
    def trimmed(theta):
        return bowl(theta) + theta[theta > 0].sum() / (theta > 0).sum().clamp(min=1)

    assert called(trimmed, 2 * tape.CALLS, chains=1).by_tape == "no tape of U: the shape of a tensor depends on values"


def lower_triangle():
    """A mask that no argument has a part in."""
    return torch.arange(3)[:, None] > torch.arange(3)


def test_a_mask_of_constants_is_on_a_tape():
    """As in a Cholesky factor of correlations."""

    def of_triangle(theta):
        return (theta[:, None] * theta)[lower_triangle()].sum() + bowl(theta)

    assert called(of_triangle, 2 * tape.CALLS).by_tape == "U is played from a tape"


@pytest.mark.parametrize("how", ["compared", "written", "written into a view", "written as out", "closed over"])
def test_a_mask_by_values_is_taken_anew(how):
    outside = torch.ones(3, dtype=torch.bool)

    def masked(theta):
        torch.zeros(3).add_(1).mul_(2)  # operations in place, whose results are their arguments
        mask = outside if how == "closed over" else torch.ones(3, dtype=torch.bool)
        if how == "compared":
            mask = theta > 0
        elif how == "written":
            mask.logical_and_(theta > 0)
        elif how == "written as out":
            torch.gt(theta.detach(), 0, out=mask)
        elif how == "written into a view":
            mask[:2].logical_and_(theta[:2] > 0)
        return theta[mask].exp().sum() + bowl(theta)

    potential = called(masked, 2 * tape.CALLS, chains=1)
    assert potential.by_tape == "no tape of U: the shape of a tensor depends on values"


def test_zeros_of_a_forward_derivative_which_crash_torch_below_a_mode_are_on_no_tape():
    def bent(theta):
        return torch.func.hessian(lambda x: x.pow(4).sum())(theta).sum() + bowl(theta)

    assert "zeros that torch does not store" in called(bent, 2 * tape.CALLS).by_tape


@pytest.mark.parametrize("what", ["noise", "dropout"])
def test_random_numbers_are_drawn_anew(what):
    """With one chain, for torch refuses them for many at once."""
    drop = torch.nn.Dropout(0.5)

    def noisy(theta):
        return bowl(theta + torch.randn(3) if what == "noise" else drop(theta))

    potential = Traced(noisy)
    slopes = [potential.jet(points(0, 1), orders=ORDERS).slope for _ in range(2 * tape.CALLS)]
    assert potential.by_tape == "no tape of U: it draws random numbers"
    assert len({tuple(x.flatten().tolist()) for x in slopes}) > 4


def test_numbers_of_pythons_generator_are_drawn_anew():
    potential = Traced(lambda theta: bowl(theta) * random.random())
    slopes = [potential.jet(points(0), orders=ORDERS).slope for _ in range(2 * tape.CALLS)]
    assert potential.by_tape == "no tape of U: its numbers differ"
    assert len({float(x.sum()) for x in slopes}) == len(slopes)


@pytest.mark.parametrize("how", ["a tensor", "a parameter", "a buffer of numpy"])
def test_tensors_changed_in_place_count(how):
    """As where data are swapped."""
    tensor = torch.ones(3)
    array = tensor.numpy()
    read = torch.nn.Parameter(tensor) if how == "a parameter" else tensor

    def centred(theta):
        centre = torch.from_numpy(array) if how == "a buffer of numpy" else read
        return (theta - centre).square().sum() / 2

    potential = Traced(centred)
    for k in range(3 * tape.CALLS):
        with torch.no_grad():
            read.fill_(k)
        assert torch.equal(potential.jet(points(k), orders=ORDERS).slope, points(k) - k)
    assert potential.by_tape == "U is played from a tape"


def test_a_number_read_out_of_a_tensor_that_changes_is_read_anew():
    scale = torch.ones(())
    potential = Traced(lambda theta: bowl(theta) * scale.item())
    for k in range(2 * tape.CALLS):
        scale.fill_(k)
        potential.jet(points(k), orders=ORDERS)
        assert torch.equal(potential.jet(points(k), orders=ORDERS).value, k * torch.stack([*map(bowl, points(k))]))
    assert potential.by_tape == "no tape of U: it reads a number out of a tensor"


FACTOR = 1.0


class Scaled:
    """A bowl by factors that stand where Python keeps numbers."""

    __slots__ = ("slot", "__private", "__dict__")
    of_class = 1.0

    def __init__(self):
        self.slot = self.__private = self.attribute = 1.0
        self.method = {"number": 1.0}.get
        self.items, self.tensor, self.array = [1.0], torch.ones(3), np.ones(3)
        self.kept = {"item": FrozenFactor(1.0)}
        self.variable = factor_of(1.0)

    def __call__(self, theta):
        numbers = self.slot * self.__private * self.attribute * self.items[0] * self.of_class * FACTOR
        numbers *= self.kept["item"].number * self.method("number")
        return (theta * self.tensor * torch.tensor(self.array, dtype=theta.dtype)).sum() * numbers * self.variable()


@dataclass(frozen=True)
class FrozenFactor:
    number: float


def factor_of(number):
    def factor(set_to=None):
        nonlocal number
        number = set_to or number
        return number

    return factor


def set_data(energy):
    energy.tensor.data = torch.full((3,), 3.0)


def set_function(energy):
    energy.variable.__defaults__ = (3.0,)


@pytest.mark.parametrize(
    "change",
    [
        lambda energy: setattr(energy, "slot", 3.0),
        slow(lambda energy: setattr(energy, "_Scaled__private", 3.0)),
        slow(lambda energy: setattr(energy, "attribute", 3.0)),
        lambda energy: energy.items.__setitem__(0, 3.0),
        slow(lambda energy: energy.kept.update(item=FrozenFactor(3.0))),
        lambda energy: setattr(energy, "tensor", torch.full((3,), 3.0)),
        lambda energy: energy.array.fill(3.0),
        lambda energy: energy.variable(3.0),
        lambda energy: energy.method.__self__.update(number=3.0),
        lambda energy: setattr(Scaled, "of_class", 3.0),
        lambda energy: globals().__setitem__("FACTOR", 3.0),
        set_data,
        set_function,
    ],
    ids="slot private attribute item nested tensor numpy variable method class global data default".split(),
)
def test_a_tape_ends_where_the_energy_reads_another_number(change, monkeypatch):
    """At that call; another tape is made later."""
    monkeypatch.setattr(Scaled, "of_class", 1.0)
    monkeypatch.setitem(globals(), "FACTOR", 1.0)
    energy = Scaled()
    potential = called(energy, 2 * tape.CALLS)
    assert potential.by_tape == "U is played from a tape"
    change(energy)
    assert torch.allclose(potential.jet(points(0), orders=ORDERS).slope, torch.tensor(3.0))
    assert potential.by_tape == ""
    for k in range(tape.CALLS):
        assert torch.allclose(potential.jet(points(k), orders=ORDERS).slope, torch.tensor(3.0))
    assert potential.by_tape == "U is played from a tape"


@pytest.mark.parametrize("change", ["hook", "number", "weight", "layer"])
def test_a_tape_ends_where_a_module_is_changed(change):
    """Its hooks, modes and tensors are in dictionaries, most of which are empty."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.ELU())
    potential = called(lambda theta: net(theta[None]).square().sum(), 2 * tape.CALLS, chains=1)
    assert potential.by_tape == "U is played from a tape"
    if change == "hook":
        net[1].register_forward_hook(lambda module, given, made: 2 * made)
    elif change == "number":
        net[2].alpha = 3.0
    elif change == "weight":
        net[0].weight = torch.nn.Parameter(torch.eye(3))
    else:
        net[1] = torch.nn.Identity()
    jet = potential.jet(points(0, 1), orders=ORDERS)
    torch.testing.assert_close(jet.value, net(points(0, 1)).square().sum()[None])
    assert potential.by_tape == ""


def test_an_energy_whose_numbers_change_again_and_again_is_called():
    energy = Scaled()
    potential = Traced(energy)
    for k in range(6 * tape.CALLS):
        energy.attribute = float(1 + k // tape.CALLS)
        assert torch.allclose(potential.jet(points(k), orders=ORDERS).slope, torch.tensor(energy.attribute))
    assert potential.by_tape == "no tape of U: what it reads changes (Scaled)"


def test_an_energy_by_a_long_array_of_numpy_has_no_tape():
    """Comparing so many numbers at each call would take longer than the tape saves."""
    array = np.ones(10_000)
    assert "arrays of numpy" in called(lambda x: bowl(x) + torch.tensor(array).sum(), 2 * tape.CALLS).by_tape


def test_other_default_dtypes_have_other_tapes():
    potential = called(lambda theta: bowl(theta + torch.zeros(3)), 2 * tape.CALLS)
    assert potential.by_tape == "U is played from a tape"
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        assert potential.jet(points(0).float(), orders=ORDERS).value.dtype == torch.float64
    finally:
        torch.set_default_dtype(before)


def test_an_energy_that_changes_out_of_sight_is_found_and_called_from_there_on():
    power = contextvars.ContextVar("power", default=2)
    potential = Traced(lambda theta: theta.pow(power.get()).sum())
    for k in range(2 * tape.CALLS):
        potential.jet(points(k), orders=ORDERS)
    power.set(4)
    with pytest.warns(RuntimeWarning, match="its gradient at a state is another one than before"):
        for k in range(tape.EVERY):
            potential.jet(points(k), orders=ORDERS)
    assert potential.by_tape == "no tape of U: it is another function than before"
    torch.testing.assert_close(potential.jet(points(0), orders=ORDERS).slope, 4 * points(0) ** 3)


def test_last_bits_that_change_end_the_tape_without_a_warning():
    """As where another order of sums is recorded."""
    factor = contextvars.ContextVar("factor", default=1.0)
    potential = Traced(lambda theta: bowl(theta) * factor.get())
    for k in range(2 * tape.CALLS):
        potential.jet(points(k), orders=ORDERS)
    factor.set(1 + 1e-6)
    for k in range(tape.EVERY):
        potential.jet(points(k), orders=ORDERS)
    assert potential.by_tape == "no tape of U: its last bits differ"


def test_an_error_at_the_call_that_would_be_recorded_delays_the_tape():
    potential, fine = Traced(lambda theta: torch.linalg.cholesky(theta.diag()).sum()), torch.ones(2, 3)
    for k in range(3 * tape.CALLS):
        potential.jet(fine if k != tape.CALLS - 1 else -fine, orders=ORDERS, faults=[])
        assert (potential.by_tape == "") == (k < 2 * tape.CALLS - 1)


@pytest.mark.parametrize(
    "factor", [torch.linalg.cholesky, torch.linalg.inv, lambda A: torch.linalg.solve(A, torch.ones(3))]
)
@pytest.mark.parametrize("chains", [1, 2])
def test_errors_at_some_states_are_raised_as_without_a_tape(factor, chains):
    """A tape without the check of a Cholesky factor would go on with the numbers of half a factor."""

    def of_factor(theta):
        return factor(theta[0] * torch.eye(3)).sum()

    faults: list[str] = []
    potential = Traced(of_factor)
    fine = torch.ones(chains, 3)
    for _ in range(2 * tape.CALLS):
        potential.jet(fine, orders=ORDERS, faults=faults)
    assert potential.by_tape == "U is played from a tape" and not faults
    jet = potential.jet(fine * torch.arange(chains)[:, None], orders=ORDERS, faults=faults)
    assert jet.value.isnan().tolist() == [True, False][:chains] and faults


def test_writes_of_an_energy_into_tensors_of_its_own_are_made():
    """As those of running means."""
    total = torch.zeros(())

    def counting(theta):
        own = torch.zeros(3).index_add(0, torch.arange(3), theta)
        own.mul_(2)
        total.add_(1)
        return own.square().sum()

    potential = called(counting, 2 * tape.CALLS, chains=1)
    assert potential.by_tape == "U is played from a tape"
    before = float(total)
    potential.jet(points(0, 1), orders=ORDERS)
    assert float(total) == before + 1


def test_slopes_of_a_tape_are_tensors_for_autograd():
    potential = called(bowl, 2 * tape.CALLS)
    slope = potential.jet(points(0), orders=ORDERS).slope
    assert not slope.is_inference()
    weight = torch.ones(3, requires_grad=True)
    (weight * slope).sum().backward()
    assert torch.equal(weight.grad, slope.sum(0))


def test_transforms_of_torch_see_the_energy_itself():
    """Not numbers of a tape."""
    potential = called(bowl, 2 * tape.CALLS)
    hessian = torch.func.jacrev(lambda z: potential.jet(z[None], orders={0}).value.sum())
    assert hessian(points(0)[0]).shape == (3,)


def test_pilots_of_a_tuning_share_a_tape(monkeypatch, brief):
    made, runs = [], []
    init, run = tape.Tape.__init__, Pilot.run
    monkeypatch.setattr(tape.Tape, "__init__", lambda self, *given: made.append(self) or init(self, *given))
    monkeypatch.setattr(Pilot, "run", lambda self, *given, **more: runs.append(self) or run(self, *given, **more))
    samplers.tune("hmc", bowl, init=torch.zeros(3), seed=1, progress=False, budget=20_000)
    assert 1 <= len(made) <= 4 < len(runs)
