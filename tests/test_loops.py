"""Training loops as torch users write them: each makes the steps of the plain loop, up to rounding."""

import contextlib
import io

import pytest
import torch
from torch.nn.functional import mse_loss
from torch.utils.checkpoint import checkpoint

import samplers

STEPS, ROWS = 6, 40
X = torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(0))
Y = X[:, :1] - X[:, 1:2]


def network(dropout=()):
    random = torch.Generator().manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), *dropout, torch.nn.Linear(8, 1))
    for p in net.parameters():
        p.data = torch.randn(p.shape, generator=random) / 2
    return net


def made(net):
    how = dict(lr=0.02, momentum=0.9, num_data=ROWS, weight_decay=1e-3)
    return samplers.Optimizer(net.parameters(), "sghmc", **how)


def weights(net):
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def plain(net, optimizer, steps=STEPS):
    for _ in range(steps):
        optimizer.zero_grad()
        mse_loss(net(X), Y).backward()
        optimizer.step()


def accumulated(net, optimizer):
    for _ in range(STEPS):
        optimizer.zero_grad()
        for x, y in zip(X.split(ROWS // 4), Y.split(ROWS // 4)):
            (mse_loss(net(x), y) / 4).backward()
        optimizer.step()


def scaled(net, optimizer, scale=2.0**12):
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(mse_loss(net(X), Y)).backward()
        scaler.step(optimizer)
        scaler.update()


def autocast(net, optimizer):
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = mse_loss(net(X).float(), Y)
        loss.backward()
        optimizer.step()


def recomputed(net, optimizer):
    for _ in range(STEPS):
        optimizer.zero_grad()
        mse_loss(net[2](checkpoint(net[:2], X, use_reentrant=False)), Y).backward()
        optimizer.step()


def compiled(net, optimizer):
    plain(torch.compile(net, backend="aot_eager"), optimizer)


@pytest.mark.parametrize(
    "loop, rounding",
    [
        (accumulated, 1e-5),
        (scaled, 1e-6),
        (autocast, 1e-2),  # losses have 8 bits
        (recomputed, 1e-6),
        pytest.param(compiled, 1e-5, marks=pytest.mark.slow),
    ],
)
def test_a_loop_makes_the_steps_of_the_plain_loop(loop, rounding):
    ends = []
    for way in (plain, loop):
        net = network()
        optimizer = made(net)
        way(net, optimizer)
        ends.append(weights(net))
        assert optimizer.param_groups[0]["step_number"] == STEPS
    assert (ends[0] - ends[1]).abs().max() < rounding and not torch.equal(ends[0], weights(network()))


def test_a_step_that_a_scaler_skips_is_no_step(monkeypatch):
    """Its scale halves until gradients are finite; then the steps are those of the plain loop, as many as there are."""
    monkeypatch.setitem(globals(), "Y", 8 * Y)  # gradients of 4 to 32, of which the scale overflows two to four times
    net, other = network(), network()
    optimizer = made(net)
    scaled(net, optimizer, scale=2.0**127)
    taken = optimizer.param_groups[0]["step_number"]
    plain(other, made(other), taken)
    assert 0 < taken < STEPS and (weights(net) - weights(other)).abs().max() < 1e-6


# ---- how frameworks hold an optimizer


class Beside(torch.optim.Optimizer):
    """As Accelerate wraps one: an optimizer of no parameters of its own, which hands everything on."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)
    defaults = property(lambda self: self.optimizer.defaults)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure=None):
        self.optimizer.step(closure)

    def state_dict(self):
        return self.optimizer.state_dict()

    def load_state_dict(self, state):
        self.optimizer.load_state_dict(state)


def within(optimizer):
    """As Lightning wraps one: an object of a class made at run time, with entries of the optimizer."""

    class Within:
        def step(self, closure=None, **how):
            return optimizer.step(closure, **how)

    own = object.__new__(type("Own", (Within, type(optimizer)), {}))
    own.__dict__ = {name: x for name, x in optimizer.__dict__.items() if name != "step"}
    return own


@pytest.mark.parametrize("wrapped", [lambda optimizer: optimizer, Beside, within], ids=["bare", "beside", "within"])
def test_a_wrapped_optimizer_with_schedule_and_closure_goes_on_bit_for_bit_from_a_file(wrapped):
    def started():
        net = network()
        optimizer = made(net)
        return net, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (1 + k))

    def trained(net, bare, schedule):
        optimizer = wrapped(bare)

        def closure():
            optimizer.zero_grad()
            loss = mse_loss(net(X), Y)
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
            schedule.step()

    parts, again = started(), started()
    trained(*parts)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    trained(*parts)
    file.seek(0)
    for part, state in zip(again, torch.load(file, weights_only=True)):
        part.load_state_dict(state)
    trained(*again)
    assert torch.equal(weights(parts[0]), weights(again[0]))
    assert parts[1].param_groups[0]["step_number"] == 6 and parts[1].param_groups[0]["lr"] == 0.02 / 7


# ---- layers that draw random numbers


@pytest.mark.parametrize(
    "given",
    [
        lambda net: net.parameters(),
        lambda net: net.named_parameters(),
        lambda net: [{"params": net.parameters(), "lr": 0.1}],
    ],
    ids=["parameters", "named", "groups"],
)
@pytest.mark.parametrize("rate, training, warned", [(0.5, True, True), (0.5, False, False), (0.0, True, False)])
def test_a_network_with_dropout_in_training_mode_is_warned_of(given, rate, training, warned):
    net = network([torch.nn.Dropout(rate)]).train(training)
    expected = pytest.warns(RuntimeWarning, match="'2', a Dropout, is random in training mode.*Call eval")
    with expected if warned else contextlib.nullcontext():
        samplers.Optimizer(given(net), "sgld", lr=0.1, num_data=ROWS)
