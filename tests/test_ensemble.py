"""An Ensemble: its members are the chains that they would be alone, in one loop."""

import copy
import pickle
import warnings
from itertools import product

import pytest
import torch
from covering import covering
from torch.nn import BatchNorm1d, Dropout, Linear, ReLU, Sequential, Tanh
from torch.nn.functional import cross_entropy, mse_loss

import samplers
from recipe import RecipeError
from samplers import Checkpoint, Ensemble, Minibatches, Optimizer, Predictive
from samplers.testing.cases import CASES

MEMBERS = 3
DATA = 40
FORMS = ["sgld", "sghmc", "sgnht", "sgfs", "psgld", "santa", "atmc", "sghmc-relativistic", "sgld-sa-gibbs"]
WAYS = [*product(FORMS, ["torch", "cpp"])]
random = torch.Generator().manual_seed(1)
X = torch.randn(DATA, 3, generator=random, dtype=torch.float64)
Y = torch.randn(DATA, 1, generator=random, dtype=torch.float64)


class Odd(torch.nn.Module):
    """Weights in every order of memory, a tied one, a frozen one and a buffer."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Parameter(torch.randn(4, 3, dtype=torch.float64).T)
        self.b = torch.nn.Parameter(torch.randn((), dtype=torch.float64))
        image = torch.randn(2, 3, 2, 2, dtype=torch.float64)
        self.c = torch.nn.Parameter(image.contiguous(memory_format=torch.channels_last))
        self.tied = self.a
        self.frozen = torch.nn.Parameter(torch.randn(2, dtype=torch.float64), requires_grad=False)
        self.register_buffer("shift", torch.randn(1, dtype=torch.float64))

    def forward(self, x):
        s = self.a.sum() + self.b + self.c.sum() + self.frozen.sum() + self.shift.sum()
        powers = (self.a**4).sum() + (self.tied**2).sum() + (self.c**4).sum()
        return (powers + torch.log(1 + (s - x.mean()) ** 2)) / DATA


def network():
    return Sequential(Linear(3, 5), Tanh(), Linear(5, 1)).double()


def optimizer_of(name, params, backend, **more):
    case = CASES[name]
    values = {k: v for k, v in case.parameters.items() if k != "num_data"}
    return Optimizer(params, case.recipe, num_data=DATA, step_size=1e-3, backend=backend, **values | more)


def moved(loss, optimizer, steps, observed=(), chains=MEMBERS):
    """The weights of each chain after some steps, `(chains, sites)`."""
    params = optimizer.param_groups[0]["params"]
    sites = sum(p.numel() for p in params) // chains
    shapes = {o.name: (chains, sites) if o.is_vector else (chains,) for o in observed}
    observe = {name: torch.full(shape, 0.7, dtype=torch.float64) for name, shape in shapes.items()}
    for k in range(steps):
        optimizer.zero_grad()
        loss(X[k : k + 2]).backward()
        optimizer.step(**({"observe": observe} if observe else {}))
    return torch.cat([p.detach().reshape(chains, -1) for p in params], 1)


def loss_of(ensemble):
    """The loss that a network of `Odd` is, of all members."""
    return lambda x: ensemble.loss(lambda loss: loss, x, shared=True)


# ---- members


@pytest.mark.parametrize("name, backend", covering(WAYS, WAYS[::8] + WAYS[3::8]))
def test_a_member_moves_as_a_loop_of_its_own_with_its_chain(name, backend):
    """Its noise, thermostats and totals are those of one chain, in every order of memory; tied and frozen weights."""
    observed = CASES[name].recipe.observations
    ensemble = Ensemble(Odd, MEMBERS, seed=2)
    models = [ensemble.member(k) for k in range(MEMBERS)]
    optimizer = optimizer_of(name, ensemble.parameters(), backend, weight_decay=0.01)
    together = moved(loss_of(ensemble), optimizer, 6, observed)
    for k, model in enumerate(models):
        own = optimizer_of(name, model.parameters(), backend, weight_decay=0.01, chain=k)
        assert (moved(model, own, 6, observed, chains=1)[0] - together[k]).abs().max() < 1e-12


def test_a_member_is_the_same_whichever_others_are_there():
    """Start, batches and noise are functions of its number, as a rank needs them that holds some members."""

    def trained(members):
        ensemble = Ensemble(network, members, seed=4)
        optimizer = Optimizer(ensemble.parameters(), "sgnht", lr=0.05, momentum=0.9, num_data=DATA, seed=7)
        for inputs, targets in Minibatches((X, Y), 8, seed=3, members=members):
            optimizer.zero_grad()
            ensemble.loss(mse_loss, inputs, targets).backward()
            optimizer.step()
        return ensemble(X).detach()

    whole = trained(5)
    assert (trained(range(3, 5)) - whole[3:]).abs().max() < 1e-12
    assert all((whole[i] - whole[j]).abs().max() > 0.1 for i in range(5) for j in range(i))


def test_members_that_start_together_part_by_their_noise_alone():
    ensemble = Ensemble([network()] * 2)
    optimizer = Optimizer(ensemble.parameters(), "sgld", lr=0.01, num_data=DATA)
    torch.testing.assert_close(*ensemble(X), rtol=1e-12, atol=1e-12)
    ensemble.loss(mse_loss, X, Y, shared=True).backward()
    before = [p.detach().clone() for p in ensemble.parameters()]
    optimizer.step()
    moves = torch.cat([(p.detach() - b + 0.01 * p.grad).flatten(1) for p, b in zip(ensemble.parameters(), before)], 1)
    sites = moves.shape[1]
    assert moves[0].dot(moves[1]).abs() / (moves.norm(dim=1).prod()) < 4 / sites**0.5


@pytest.mark.parametrize("kind", ["sgd", "adam", "sghmc at T = 0"])
def test_without_noise_it_is_a_deep_ensemble(kind):
    """Each member is trained as torch trains it alone, on batches of its own."""
    makes = {
        "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
        "adam": lambda params: torch.optim.Adam(params, lr=0.01),
        "sghmc at T = 0": lambda params: Optimizer(
            params, "sghmc", lr=0.05, momentum=0.9, num_data=DATA, temperature=0.0
        ),
    }
    ensemble = Ensemble(network, MEMBERS, seed=1)
    models = [ensemble.member(k) for k in range(MEMBERS)]
    optimizer = makes[kind](ensemble.parameters())
    for inputs, targets in Minibatches((X, Y), 8, members=MEMBERS):
        optimizer.zero_grad()
        ensemble.loss(mse_loss, inputs, targets).backward()
        optimizer.step()
    for k, model in enumerate(models):
        own = makes["sgd" if "sghmc" in kind else kind](model.parameters())
        for inputs, targets in Minibatches((X, Y), 8, members=range(k, k + 1)):
            own.zero_grad()
            mse_loss(model(inputs[0]), targets[0]).backward()
            own.step()
        assert (model(X) - ensemble(X)[k]).abs().max() < 1e-10


def test_the_loss_of_a_member_does_not_depend_on_how_many_there_are():
    """A mean over members would cool each of them by their number."""
    ensemble = Ensemble(network, MEMBERS)
    ensemble.loss(mse_loss, X, Y, shared=True).backward()
    for k in range(MEMBERS):
        model = ensemble.member(k)
        mse_loss(model(X), Y).backward()
        for p, q in zip(ensemble.parameters(), model.parameters()):
            assert torch.allclose(p.grad[k], q.grad)


def test_weights_of_half_precision_are_moved_in_float32():
    ensemble = Ensemble(lambda: Linear(3, 2, dtype=torch.bfloat16), MEMBERS)
    precise = ensemble.member(1).float()
    optimizer = Optimizer(ensemble.parameters(), "sghmc", lr=1e-3, momentum=0.9, num_data=DATA)
    alone = Optimizer(precise.parameters(), "sghmc", lr=1e-3, momentum=0.9, num_data=DATA, chain=1)
    for p in (*ensemble.parameters(), *precise.parameters()):
        p.grad = torch.zeros_like(p)
    for _ in range(20):
        optimizer.step()
        alone.step()
    for p, q in zip(ensemble.parameters(), precise.parameters()):
        assert torch.equal(p[1].detach(), q.detach().bfloat16())


# ---- predictions, copies and states


def test_predictions_of_all_members_are_draws():
    labels = torch.arange(DATA) % 2
    ensemble = Ensemble(lambda: Linear(3, 2).double(), MEMBERS)
    ensemble.loss(cross_entropy, X, labels, shared=True).backward()
    predictive = Predictive()
    predictive.add(ensemble(X))
    assert predictive.draws == MEMBERS
    mean = torch.stack([ensemble.member(k)(X).softmax(-1) for k in range(MEMBERS)]).mean(0)
    assert (predictive.probabilities - mean).abs().max() < 1e-12


@pytest.mark.parametrize("twin", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))])
def test_a_copy_goes_on_as_the_original_does(twin):
    ensemble = Ensemble(Odd, range(4, 4 + MEMBERS))
    optimizer = optimizer_of("sgnht", ensemble.parameters(), "auto")
    moved(loss_of(ensemble), optimizer, 3)
    other, later = twin((ensemble, optimizer))
    assert torch.equal(moved(loss_of(other), later, 4), moved(loss_of(ensemble), optimizer, 4))


def test_a_loop_goes_on_from_its_checkpoint_bit_for_bit(tmp_path):
    def trained(folder, epochs):
        ensemble = Ensemble(network, MEMBERS)
        optimizer = Optimizer(ensemble.parameters(), "sgnht", lr=0.05, momentum=0.9, num_data=DATA)
        batches = Minibatches((X, Y), 8, members=MEMBERS)
        checkpoint = Checkpoint(folder, model=ensemble, optimizer=optimizer, batches=batches)
        for _ in range(checkpoint.load().get("epoch", 0), epochs):
            for inputs, targets in batches:
                optimizer.zero_grad()
                ensemble.loss(mse_loss, inputs, targets).backward()
                optimizer.step()
            checkpoint.save(epoch=batches.epoch)
        return ensemble(X)

    whole = trained(tmp_path / "whole", 4)
    trained(tmp_path / "parts", 2)
    assert torch.equal(trained(tmp_path / "parts", 4), whole)


def test_folders_of_another_number_of_ranks_are_refused(tmp_path):
    (tmp_path / "rank-1-of-2").mkdir()
    with pytest.raises(RecipeError, match="it holds rank-1-of-2, and there are 1 ranks"):
        Checkpoint(tmp_path, every_rank=True, model=Ensemble(network, 2))


def test_the_state_of_other_members_is_refused():
    optimizers = [optimizer_of("sgnht", Ensemble(Odd, members).parameters(), "auto") for members in (2, range(2, 4))]
    with pytest.raises(RecipeError, match="'members': "):
        optimizers[0].load_state_dict(optimizers[1].state_dict())
    batches = Minibatches(X, 8, members=2)
    with pytest.raises(RecipeError, match="first_member"):
        batches.load_state_dict(Minibatches(X, 8, members=range(1, 3)).state_dict())


# ---- what is watched


def test_a_member_that_diverges_is_named():
    ensemble = Ensemble(network, MEMBERS)
    optimizer = Optimizer(ensemble.parameters(), "sghmc", lr=0.05, momentum=0.9, num_data=DATA)
    ensemble.loss(mse_loss, X, Y, shared=True).backward()
    next(ensemble.parameters()).grad[1, 0, 0] = torch.nan
    before = ensemble(X)
    with pytest.raises(RecipeError, match="parameter 0 of group 0, member 1 is not finite at step 0"):
        optimizer.step()
    assert torch.equal(ensemble(X), before)


def test_temperatures_and_findings_are_of_each_member():
    """One member is given the noise of large gradients, and only its momenta are found to be hot."""
    weights = samplers.training.stacked.Stacked(torch.zeros(2, 400, dtype=torch.float64))
    optimizer = Optimizer([weights], "sghmc", lr=0.1, momentum=0.9, num_data=1000)
    noise = torch.Generator().manual_seed(0)
    scale = torch.tensor([[0.0], [0.2]], dtype=torch.float64)
    for _ in range(800):
        weights.grad = weights.detach() + scale * torch.randn(2, 400, generator=noise, dtype=torch.float64)
        optimizer.step()
    wrong = {finding.of for finding in optimizer.report().wrong}
    assert "group 0, member 1" in wrong and not any("member 0" in of for of in wrong)
    temperatures = optimizer.kinetic_temperatures()
    assert list(temperatures) == ["0.0, p, member 0", "0.0, p, member 1"]
    assert [t.ok for t in temperatures.values()] == [True, False]


# ---- what is refused


def sharded():
    """An ensemble whose weights somebody has replaced, as fully_shard does."""
    ensemble = Ensemble(network, 2)
    ensemble.network[0].weight = torch.nn.Parameter(ensemble.network[0].weight.detach())
    return ensemble


def test_members_that_took_too_few_steps_are_reported_in_one_line():
    ensemble = Ensemble(network, 4)
    optimizer = Optimizer(ensemble.parameters(), "sghmc", lr=0.1, num_data=60)
    ensemble.loss(cross_entropy, X, torch.zeros(len(X), dtype=torch.long), shared=True).backward()
    optimizer.step()
    short = [line for line in optimizer.report().unasked if "at a temperature > 0" in line]
    assert short == ["group 0, member 0, and 3 more: it takes 320 steps at a temperature > 0"]


REFUSED = {
    "parameters of another kind": (lambda: sharded()(X), "'0.weight' has become a parameter that is not stacked"),
    "one network": (lambda: Ensemble(network(), 4), "one start for all members"),
    "one network without a number": (lambda: Ensemble(network()), "one start for all members"),
    "no number": (lambda: Ensemble(network), "members is an integer"),
    "none": (lambda: Ensemble(network, 0), "members"),
    "a range of steps": (lambda: Ensemble(network, range(0, 4, 2)), "one after another"),
    "other forms": (lambda: Ensemble([Linear(3, 1), Linear(3, 2)]), "'weight' of member 1"),
    "other numbers": (lambda: Ensemble([Linear(3, 1)] * 2, 3), "2 networks for 3 members"),
    "no module": (lambda: Ensemble(lambda: 3, 2), "returns a int"),
    "a lazy module": (lambda: Ensemble(lambda: torch.nn.LazyLinear(3), 2), "no shape yet"),
    "dropout": (
        lambda: Ensemble(lambda: Sequential(Linear(3, 3), Dropout()), 2)(X),
        "network.1|1, a Dropout, is random",
    ),
    "batch norm": (lambda: Ensemble(lambda: BatchNorm1d(3), 2)(X), "a BatchNorm1d, couples the examples"),
    "one batch for all": (lambda: Ensemble(network, 4).loss(mse_loss, X, Y), "40, 3.* for 4 members"),
    "rows of a batch": (lambda: Ensemble(network, 4).loss(mse_loss, X[:4], Y[:4, 0]), "for 4 members"),
    "batches of other members": (
        lambda: Ensemble(network, 4).loss(mse_loss, X.expand(4, 40, 3), Y),
        "for 4 members",
    ),
    "other rows": (lambda: Ensemble(network, 2).loss(mse_loss, X, Y[1:], shared=True), "40 and 39 rows"),
    "a loss by row": (
        lambda: Ensemble(network, 2).loss(lambda f, y: (f - y).square(), X, Y, shared=True),
        r"returns \(40, 1\) for a member",
    ),
    "member 4 of 4": (lambda: Ensemble(network, 4).member(4), "number"),
    "loader of members": (lambda: Minibatches(X, 8, members=2).as_sampler(), "a DataLoader has no batch for each"),
    "a network beside it": (
        lambda: Optimizer([*Ensemble(network, 2).parameters(), *network().parameters()], "sgld", lr=1, num_data=9),
        "parameter 4 is of one network, the first of members 0 to 1",
    ),
    "chains of the next group": (
        lambda: Optimizer(Ensemble(network, 2).parameters(), "sgld", lr=1, num_data=9, chain=2**20 - 1),
        "its last chain would have the number 1048576, and a group has 1048576",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused(name):
    make, text = REFUSED[name]
    with pytest.raises(RecipeError, match=text):
        make()


def test_networks_in_eval_mode_are_taken():
    ensemble = Ensemble(lambda: Sequential(Linear(3, 3), BatchNorm1d(3), ReLU(), Dropout(), Linear(3, 1)).double(), 2)
    ensemble.eval()
    assert ensemble(X).shape == (2, DATA, 1)


def test_what_torch_cannot_vectorise_is_computed_in_turn_and_warned_of_once():
    class Branching(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = Linear(3, 1).double()

        def forward(self, x):
            y = self.linear(x)
            return y if y.sum() > 0 else 2 * y

    ensemble = Ensemble(Branching, MEMBERS)
    with pytest.warns(RuntimeWarning, match="one after another"):
        together = ensemble(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ensemble.loss(mse_loss, X, Y, shared=True).backward()
    for k in range(MEMBERS):
        model = ensemble.member(k)
        torch.testing.assert_close(model(X), together[k], rtol=1e-12, atol=1e-12)
        mse_loss(model(X), Y).backward()
        assert torch.allclose(model.linear.weight.grad, ensemble.network.linear.weight.grad[k])


def test_recurrent_networks_are_computed_in_turn_with_all_that_they_return():
    ensemble = Ensemble(lambda: torch.nn.GRU(3, 4, batch_first=True).double(), 2)
    with pytest.warns(RuntimeWarning, match="one after another"):
        outputs, states = ensemble(X.view(8, 5, 3))
    assert outputs.shape == (2, 8, 5, 4) and states.shape == (2, 1, 8, 4)
    torch.testing.assert_close(outputs[1], ensemble.member(1)(X.view(8, 5, 3))[0], rtol=1e-12, atol=1e-12)


def test_a_dataset_has_a_batch_for_each_member():
    data = torch.utils.data.TensorDataset(X, Y)
    of_tensors = list(Minibatches((X, Y), 8, members=2, seed=1))
    of_items = list(Minibatches(data, 8, members=2, seed=1))
    assert len(of_items) == 5
    for a, b in zip(of_tensors, of_items):
        assert a[0].shape == (2, 8, 3) and all(map(torch.equal, a, b))
    assert all(torch.equal(a, b[0]) for (a, _), (b, _) in zip(Minibatches((X, Y), 8, seed=1), of_tensors))
