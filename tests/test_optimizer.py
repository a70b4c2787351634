"""The Optimizer: the one-gradient form of every recipe in a training loop, on torch's terms."""

import copy
import math
import pickle
import warnings
from itertools import product

import pytest
import torch
from covering import covering, slow

import integrators
import samplers
from recipe import Recipe, RecipeError, copies, positive, potential, vector
from samplers import Optimizer
from samplers.testing.cases import CASES

NO_FORM = {
    "psgld-gamma": "more than one gradient",
    "sgrld-dense": "explicit coordinates",
    "sgrld-cir": "is positive",
    "sgrld-simplex": "is positive",
}
DATA = 50


def parameters(dtype=torch.float64):
    """A matrix in columns, a vector, a number and an image kernel in channels-last order."""
    random = torch.Generator().manual_seed(3)

    def make(*shape):
        return torch.randn(*shape, generator=random, dtype=dtype)

    tensors = [
        make(4, 3).T,
        make(7),
        make(1).reshape(()),
        make(2, 3, 2, 2).contiguous(memory_format=torch.channels_last),
    ]
    return [torch.nn.Parameter(t) for t in tensors]


def loss_of(params):
    """A mean loss that couples all weights."""
    s = sum(p.sum() for p in params)
    return (sum((p**4).sum() for p in params) / 4 + torch.log(1 + (s - 1) ** 2)) / DATA


def run(params, optimizer, steps, observe=None, loss=loss_of):
    for _ in range(steps):
        optimizer.zero_grad()
        loss(params).backward()
        optimizer.step(**({} if observe is None else {"observe": observe}))
    return torch.cat([p.detach().reshape(-1) for p in params])


def built(name, params, backend="torch", **more):
    case = CASES[name]
    values = {k: v for k, v in case.parameters.items() if k not in ("num_data",)}
    return Optimizer(params, case.recipe, num_data=DATA, step_size=1e-3, backend=backend, **values | more)


FORMS = [name for name in CASES if name not in NO_FORM]


def observations(recipe, params):
    sites = sum(p.numel() for p in params)
    return {
        s.name: torch.full((1, sites) if s.is_vector else (1,), 0.7, dtype=torch.float64) for s in recipe.observations
    }


# test_kernels has a sampler of each mechanism in C++; here one of each kind of optimizer, without a prior some
OF_EACH_KIND = {
    *("sgld", "sgld-preconditioned", "psgld", "sgld-sa-gibbs"),
    *("sghmc", "sghmc-relativistic", "hmc-randomised"),
    *("sgnht", "santa"),
}
NO_PRIOR = {"sgld", "psgld", "sghmc", "sgnht", "santa"}
PRIORS = [
    pytest.param(name, decay, marks=() if name in in_ci else pytest.mark.slow)
    for decay, in_ci in ((0.0, NO_PRIOR), (0.3, OF_EACH_KIND - NO_PRIOR))
    for name in FORMS
]


@pytest.mark.filterwarnings("ignore:.*(are all taken here|gradients of one norm):RuntimeWarning")  # in six small steps
@pytest.mark.parametrize("name, decay", PRIORS)
def test_a_kernel_moves_the_weights_as_the_torch_text_does(name, decay):
    ends = []
    for backend in ("torch", "auto"):
        params = parameters()
        ends.append(
            run(params, built(name, params, backend, weight_decay=decay), 6, observations(CASES[name].recipe, params))
        )
    assert (ends[0] - ends[1]).abs().max() < 1e-12 and ends[0].isfinite().all()


@pytest.mark.parametrize("name", NO_FORM)
def test_recipes_that_no_training_loop_can_run_say_why(name):
    with pytest.raises(RecipeError, match=NO_FORM[name]):
        built(name, parameters())


# ---- at temperature 0 it is the optimiser of torch

STEPS = 60


def of_torch(make):
    params = parameters()
    return run(params, make(params), STEPS)


@pytest.mark.parametrize(
    "name, decay, backend",
    covering(
        product(["sgld", "sghmc"], [0.0, 0.05], ["torch", "cpp"]),
        [("sgld", 0.0, "torch"), ("sgld", 0.05, "cpp"), ("sghmc", 0.0, "cpp"), ("sghmc", 0.05, "torch")],
    ),
)
def test_at_temperature_0_it_is_sgd(name, decay, backend):
    both = dict(lr=0.3, weight_decay=decay) | ({"momentum": 0.8} if name == "sghmc" else {})
    params, word = parameters(), "G A" if name == "sghmc" else None
    mine = Optimizer(params, name, num_data=DATA, temperature=0.0, scheme=word, backend=backend, **both)
    assert (run(params, mine, STEPS) - of_torch(lambda p: torch.optim.SGD(p, **both))).abs().max() < 1e-12


OF_MOMENTUM = [
    *product([samplers.SGHMC], [None, "A B O B A", "F A", "paper"], [0.5, 0.9]),
    *product([samplers.UnderdampedLangevin], [None, "A B O B A", "F A"], [0.5, 0.9]),
]


@pytest.mark.parametrize(
    "recipe, scheme, momentum",
    covering(OF_MOMENTUM, [case for k, case in enumerate(OF_MOMENTUM) if k % 4 in (0, 3)]),  # each word once
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_lr_and_momentum_are_those_of_sgd_in_every_word(recipe, scheme, momentum):
    """v' = momentum v - h g, theta' = theta + h (1 + momentum)/2 v' in B A O A B: SGD, and so in the other words."""
    params = parameters()
    given = dict(lr=0.3, momentum=momentum, num_data=DATA, temperature=0.0, scheme=scheme, backend="torch")
    theirs = of_torch(lambda p: torch.optim.SGD(p, lr=0.3, momentum=momentum))
    assert (run(params, Optimizer(params, recipe, **given), STEPS) - theirs).abs().max() < 1e-12


def test_psgld_at_temperature_0_is_rmsprop():
    """RMSprop's V starts at 0, pSGLD's at the first squared gradient: with no weight on the past they are the same."""
    params = parameters()
    given = dict(lr=0.01, num_data=DATA, temperature=0.0, alpha=0.0, lam=0.3, backend="torch")
    mine = Optimizer(params, samplers.PSGLDSameStep, **given)
    theirs = of_torch(lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.0, eps=0.3))
    assert (run(params, mine, STEPS) - theirs).abs().max() < 1e-12


# ---- what a step is a function of


def test_the_cut_into_tensors_does_not_matter():
    """One tensor, or the same weights in three: the noise belongs to the site."""
    whole = [torch.nn.Parameter(torch.linspace(-1, 1, 13, dtype=torch.float64))]
    parts = [torch.nn.Parameter(x.clone()) for x in whole[0].detach().split([5, 1, 7])]
    ends = [
        run(
            params,
            Optimizer(params, samplers.SGNHT, step_size=0.02, num_data=DATA),
            20,
            loss=lambda params: sum((p**4).sum() for p in params),
        )
        for params in (whole, parts)
    ]
    assert (ends[0] - ends[1]).abs().max() < 1e-13  # the total of p^2 is rounded by tensor


def test_groups_have_noise_settings_and_thermostats_of_their_own():
    a, b = (torch.nn.Parameter(torch.zeros(400, dtype=torch.float64)) for _ in range(2))
    optimizer = Optimizer(
        [{"params": [a]}, {"params": [b], "temperature": 0.0}], samplers.SGNHT, step_size=0.1, num_data=1
    )
    run([a, b], optimizer, 1, loss=lambda params: sum(p.sum() for p in params) * 0)
    assert a.abs().min() > 0 and b.abs().max() == 0
    optimizer = Optimizer([{"params": [a]}, {"params": [b]}], samplers.SGNHT, step_size=0.1, num_data=1)
    start = [p.detach().clone() for p in (a, b)]
    run([a, b], optimizer, 1, loss=lambda params: sum(p.sum() for p in params) * 0)
    moved = torch.stack([p.detach() - s for p, s in zip((a, b), start)])
    assert abs(float(torch.corrcoef(moved)[0, 1])) < 7.5 / 400**0.5
    assert optimizer.state[a]["xi"] is not optimizer.state[b]["xi"]


def test_chains_and_seeds_have_different_noise():
    ends = []
    for seed, chain in ((0, 0), (0, 0), (1, 0), (0, 1)):
        params = [torch.nn.Parameter(torch.zeros(9))]
        ends.append(
            run(
                params,
                Optimizer(params, "sghmc", step_size=0.1, num_data=1, seed=seed, chain=chain, backend="torch"),
                3,
                loss=lambda params: (params[0] ** 2).sum(),
            )
        )
    assert torch.equal(ends[0], ends[1]) and not any(torch.equal(ends[0], other) for other in ends[2:])


def test_two_optimizers_that_step_in_turn_do_not_draw_the_same_noise():
    """The second is refused at its second step, unless it has a chain of its own; one after the other they may run."""

    def made(chain):
        return Optimizer([torch.nn.Parameter(torch.ones(3))], "sghmc", lr=0.01, num_data=10, chain=chain)

    def step(optimizer):
        (weight,) = optimizer.param_groups[0]["params"]
        weight.grad = weight.detach().clone()
        optimizer.step()
        return weight

    for chain in (0, 1):
        pair = made(0), made(chain)
        for optimizer in pair:
            step(optimizer)
        step(pair[0])
        if chain:
            assert not torch.equal(step(pair[1]), pair[0].param_groups[0]["params"][0])
        else:
            with pytest.raises(RecipeError, match="the noise of seed 0 too. Pass chain=1 to one of them"):
                step(pair[1])
    before, after = made(0), made(0)
    run_before = [step(before).clone() for _ in range(3)]
    assert all(torch.equal(step(after), weight) for weight in run_before)


def test_an_lr_scheduler_sets_the_step_size():
    params = [torch.nn.Parameter(torch.ones(3, dtype=torch.float64))]
    optimizer = Optimizer(params, samplers.SGLD, lr=0.1, num_data=7, temperature=0.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    expected = 1.0
    for k in range(4):
        run(params, optimizer, 1, loss=lambda params: params[0].sum())
        schedule.step()
        expected -= 0.1 * 0.5**k
        assert torch.allclose(params[0], torch.tensor(expected, dtype=torch.float64), atol=1e-15)


def test_a_schedule_that_ends_at_0_leaves_the_weights_where_they_are():
    params = parameters()
    optimizer = Optimizer(params, samplers.SGHMC, lr=0.1, momentum=0.9, num_data=DATA)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    for _ in range(5):
        run(params, optimizer, 1)
        schedule.step()
    assert optimizer.param_groups[0]["lr"] == 0
    there = torch.cat([p.detach().reshape(-1).clone() for p in params])
    assert torch.equal(run(params, optimizer, 2), there)


def test_a_closure_is_called_with_gradients_on_and_its_loss_returned():
    params = parameters()
    optimizer = built("sghmc", params)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(params)
        loss.backward()
        return loss

    assert torch.equal(optimizer.step(closure), loss_of(parameters()))


def test_mixed_precision_and_a_scaler_go_as_with_any_optimizer():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))
    optimizer = Optimizer(model.parameters(), samplers.SGHMC, lr=0.01, momentum=0.9, num_data=64, temperature=0.0)
    scaler, x = torch.amp.GradScaler("cpu"), torch.randn(64, 8)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 4


# ---- the law


@pytest.mark.parametrize(
    "recipe, variance",
    [
        (samplers.SGLD, lambda h: 1 / (1 - h / 2)),  # Euler on a unit normal
        (samplers.UnderdampedLangevin, lambda h: 1.0),  # BAOAB, exact for theta on a normal
    ],
    ids=["sgld", "underdamped-langevin"],
)
def test_the_weights_of_a_gaussian_loss_have_its_variance(recipe, variance):
    """40,000 independent weights of U = num_data (theta^2/(2 num_data) + prior), 7.5 standard errors: alpha = 6e-14."""
    h, N, T = 0.4, 250, 1.5
    params = [torch.nn.Parameter(torch.zeros(200, 200, dtype=torch.float64))]
    optimizer = Optimizer(params, recipe, step_size=h, num_data=N, temperature=T, weight_decay=0.75 / N, seed=5)
    result = run(params, optimizer, 120, loss=lambda params: (params[0] ** 2).sum() / 8 / N).var()
    assert abs(float(result) / (T * variance(h)) - 1) < 7.5 * math.sqrt(2 / 40_000)


def test_kinetic_temperatures_are_told_of_every_tensor_by_the_mass_and_temperature_of_its_group():
    """After one step from the law, with gradients of 0: momenta of one temperature, whatever the mass."""
    model = torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.Linear(50, 50, bias=False))

    def stepped(params, **settings):
        optimizer = Optimizer(params, "underdamped-langevin", step_size=0.01, num_data=5, backend="torch", **settings)
        assert optimizer.kinetic_temperatures() == {}
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
        return optimizer

    cold = {"params": model[1].parameters(), "temperature": 0.1, "m": 3.0}
    optimizer = stepped([{"params": model[0].parameters()}, cold])
    result = optimizer.kinetic_temperatures()
    assert list(result) == ["0.0, p", "0.1, p", "1.0, p"] and all(t.ok for t in result.values())
    assert [t.expected for t in result.values()] == [1.0, 1.0, 0.1]
    optimizer.param_groups[1]["m"] = 2.0
    assert not optimizer.kinetic_temperatures()["1.0, p"].ok
    assert list(stepped(model.named_parameters()).kinetic_temperatures()) == ["0.weight, p", "0.bias, p", "1.weight, p"]
    assert Optimizer(model.parameters(), samplers.SGLD, lr=0.1, num_data=5).kinetic_temperatures() == {}


# ---- going on later


@pytest.mark.parametrize("name", ["sghmc", "psgld", "sgnht", slow("msgnht"), "santa", slow("atmc")])
def test_a_state_that_is_loaded_goes_on_bit_for_bit(name):
    params = parameters()
    optimizer = built(name, params, "auto")
    run(params, optimizer, 5)
    kept, weights = optimizer.state_dict(), [p.detach().clone() for p in params]
    kept = torch.utils._pytree.tree_map(lambda x: x.clone() if torch.is_tensor(x) else x, kept)
    whole = run(params, optimizer, 7)
    others = [torch.nn.Parameter(w) for w in weights]
    later = built(name, others, "auto")
    later.load_state_dict(kept)
    assert torch.equal(run(others, later, 7), whole)


@pytest.mark.parametrize(
    "twin", [copy.deepcopy, lambda both: pickle.loads(pickle.dumps(both))], ids=["deepcopy", "pickle"]
)
@pytest.mark.parametrize("steps", [0, 3])
def test_a_copy_goes_on_as_the_original_does(twin, steps):
    params = parameters()
    optimizer = built("sgnht", params, "auto")
    run(params, optimizer, steps)
    others, later = twin((params, optimizer))
    assert torch.equal(run(others, later, 4), run(params, optimizer, 4))


def test_a_state_is_laid_out_as_the_weights_are():
    """Momenta that were saved in another order of memory belong to the same weights."""
    ends = []
    for order in (torch.channels_last, torch.contiguous_format):
        params = parameters()
        optimizer = Optimizer(params, samplers.SGHMC, step_size=1e-3, num_data=DATA)
        run(params, optimizer, 3)
        kept = torch.utils._pytree.tree_map(
            lambda x: x.contiguous().clone() if torch.is_tensor(x) else x, optimizer.state_dict()
        )
        others = [
            torch.nn.Parameter(p.detach().clone(memory_format=torch.preserve_format if p.dim() != 4 else order))
            for p in params
        ]
        later = Optimizer(others, samplers.SGHMC, step_size=1e-3, num_data=DATA, temperature=0.0)
        kept["param_groups"][0]["temperature"] = 0.0
        later.load_state_dict(kept)
        ends.append(run(others, later, 2))
    assert (ends[0] - ends[1]).abs().max() < 1e-12


@pytest.mark.parametrize(
    "harm, text",
    [
        (lambda s: s["state"][1].pop("p"), "p of parameter 1 of group 0 is missing"),
        (lambda s: s["state"].clear(), "is missing"),
        (lambda s: s["state"][1]["p"].fill_(math.nan), "not finite"),
        (lambda s: s["state"][0].update(p=torch.zeros(4, dtype=torch.float64)), r"\(4,\)"),
        (lambda s: s["state"][0].update(xi="text"), "a str"),
    ],
)
def test_a_harmed_state_is_refused_and_the_one_before_it_kept(harm, text):
    params = parameters()
    optimizer = built("sgnht", params, "auto")
    run(params, optimizer, 3)
    kept = copy.deepcopy(optimizer.state_dict())
    harm(kept)
    with pytest.raises(RecipeError, match=text):
        optimizer.load_state_dict(kept)
    others = parameters()
    assert torch.equal(run(params, optimizer, 2), run(others, built("sgnht", others, "auto"), 5))


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_an_observation_that_is_missing_is_asked_for(backend):
    params = parameters()
    optimizer = built("sgld-sa", params, backend)
    loss_of(params).backward()
    with pytest.raises(RecipeError, match="the observation 'squared_residuals' is missing"):
        optimizer.step()


def test_slow_gradients_of_all_data_are_not_taken_for_clipped():
    params = parameters()
    optimizer = Optimizer(params, samplers.SGLD, lr=1e-12, num_data=DATA, temperature=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(params, optimizer, 10)


def test_a_state_of_another_sampler_is_refused():
    params = parameters()
    optimizer = built("sghmc", params)
    for other, differs in (
        (built("sgnht", params), "'recipe': 'sgnht', 'scheme': .*}, this is {'recipe': 'sghmc'"),
        (built("sghmc", params, seed=3), "'seed': 3}, this is {'seed': 0}"),
        (built("sghmc", params, scheme="G A"), "'scheme': 'G A'}, this is {'scheme': 'B A O A B'}"),
    ):
        with pytest.raises(RecipeError, match=f"it is the state of {{{differs}"):
            optimizer.load_state_dict(other.state_dict())
    with pytest.raises(RecipeError, match="state of None"):
        optimizer.load_state_dict(torch.optim.SGD(params, lr=1).state_dict())


@pytest.mark.parametrize("state", [{}, None, {"param_groups": []}])
def test_what_is_no_state_of_an_optimizer_is_refused(state):
    optimizer = Optimizer([torch.nn.Parameter(torch.zeros(3))], "sghmc", lr=0.1, momentum=0.9, num_data=10)
    with pytest.raises(RecipeError, match="load_state_dict: a dict with state and param_groups, got"):
        optimizer.load_state_dict(state)


def test_weights_may_move_to_other_memory():
    params = parameters()
    optimizer = built("sghmc", params, "auto")
    run(params, optimizer, 3)
    for p in params:
        p.data = p.data.clone(memory_format=torch.preserve_format)
    moved = run(params, optimizer, 3)
    params = parameters()
    assert torch.equal(run(params, built("sghmc", params, "auto"), 6), moved)


# ---- bad input


def one(**more):
    return torch.nn.Parameter(torch.ones(3, **more))


FIXED = one()


@pytest.mark.parametrize(
    "make, text",
    [
        (lambda O: O([one()], num_data=5), r"Give lr, and momentum \(0.9 if left out\)"),
        (lambda O: O(torch.nn.Linear(3, 1), num_data=5, lr=0.1), r"a Linear is given .* network.parameters\(\)"),
        (lambda O: O([one()], num_data=5, lr=0.1, step_size=0.1), "Give lr"),
        (lambda O: O([one()], num_data=5, step_size=0.1, momentum=0.9), "Give lr"),
        (lambda O: O([one()], lr=0.1), r"got None. .* Pass num_data=len\(X\), the number of rows in the data"),
        (lambda O: O([one()], num_data=0, lr=0.1), "num_data"),
        (lambda O: O([one()], num_data=10**30, lr=0.1), "num_data"),
        (lambda O: O([one()], num_data=5.0, lr=0.1), "num_data"),
        (lambda O: O([one()], num_data=5, lr=-1.0), "lr = -1"),
        (lambda O: O([one()], num_data=5, lr=math.nan), "lr = nan"),
        (lambda O: O([one()], num_data=5, lr=0.1, momentum=1.5), "momentum"),
        (lambda O: O([one()], num_data=5, lr=0.1, temperature=-1.0), "temperature"),
        (lambda O: O([one()], num_data=5, lr=0.1, weight_decay=-1.0), "weight_decay"),
        (lambda O: O([one()], num_data=5, lr=0.1, C=3.0), "C is given, and follows from lr"),
        (lambda O: O([one()], num_data=5, lr=0.1, B=1e9), "eigenvalue"),
        (lambda O: O([one()], num_data=5, lr=0.1, frition=3.0), "not a parameter"),
        (lambda O: O([one()], num_data=5, lr=0.1, seed=-1), "seed"),
        (lambda O: O([one()], num_data=5, lr=0.1, backend="cuda"), "no such backend"),
        (
            lambda O: O([{"params": [one()], "learning_rate": 3}], num_data=5, lr=0.1),
            "'learning_rate' is not a setting",
        ),
        (lambda O: O([torch.ones(3)], num_data=5, lr=0.1), "requires no gradient"),
        (lambda O: O([one(dtype=torch.complex64)], num_data=5, lr=0.1), "complex64"),
        (lambda O: O([one(), one(dtype=torch.float64)], num_data=5, lr=0.1), "float64 on cpu, the first torch.float32"),
        (lambda O: O([torch.nn.Parameter(torch.tensor([math.inf]))], num_data=5, lr=0.1), "not finite"),
        (lambda O: O([torch.nn.Parameter(torch.ones(4, 4)[:, ::2])], num_data=5, lr=0.1), "holes"),
        (lambda O: O(shared(), num_data=5, lr=0.1), "share memory"),
        (lambda O: O([], num_data=5, lr=0.1), r"empty parameter list. Pass network.parameters\(\)"),
        (lambda O: O(iter(()), num_data=5, lr=0.1), r"empty parameter list. Pass network.parameters\(\)"),
        (lambda O: O(None, num_data=5, lr=0.1), r"not iterable. Pass network.parameters\(\)"),
        (lambda O: O(torch.ones(3), num_data=5, lr=0.1), r"got torch.FloatTensor. Pass .* a list of weights"),
        (lambda O: O({"w": one()}, num_data=5, lr=0.1), "one of the params is str. Pass .* a list of weights"),
        (lambda O: O([2 * one()], num_data=5, lr=0.1), "non-leaf Tensor. Pass"),
        (lambda O: O([{"lr": 0.1}], num_data=5), "no 'params'. Pass .* under 'params'"),
        (lambda O: O([{"params": []}], num_data=5, lr=0.1), "a group has no parameters. Pass"),
        (lambda O: O(2 * [{"params": [FIXED]}], num_data=5, lr=0.1), "in more than one parameter group. Pass"),
        (lambda O: O([one()], num_data=5, lr=0.1).add_param_group([one()]), "must be a dict, but got .* Pass"),
        (lambda O: O([one()], num_data=5, lr=0.1).step(torch.ones(())), r"the closure is a Tensor. Call loss.backward"),
    ],
)
def test_parameters_and_settings_that_do_not_fit_are_refused_at_once(make, text):
    with pytest.raises(RecipeError, match=text):
        make(lambda params, **more: Optimizer(params, samplers.SGHMC, **more))


def shared():
    x = torch.ones(6)
    return [torch.nn.Parameter(x[:4]), torch.nn.Parameter(x[2:])]


@pytest.mark.parametrize("name", ["lr", "seed", "weight_decay"])
def test_a_parameter_that_bears_the_name_of_an_argument_is_refused(name):
    theta = vector("theta")
    recipe = Recipe(
        name="own", state=(theta,), H=potential(theta), D={theta: positive(name, default=1.0)}, scheme="Euler"
    )
    with pytest.raises(RecipeError, match=f"'{name}' bears the name of an argument. Rename it"):
        Optimizer([torch.nn.Parameter(torch.ones(2))], recipe, num_data=1, step_size=0.1)
    assert "class Optimizer" in integrators.compile(recipe).standalone()
    compile(integrators.compile(recipe).standalone(), name, "exec")


def test_a_momentum_that_a_recipe_has_not_is_refused():
    with pytest.raises(RecipeError, match="no conversion of a momentum"):
        Optimizer([one()], samplers.SGLD, lr=0.1, momentum=0.9, num_data=5)


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_gradients_that_are_missing_or_sparse_are_refused_before_anything_moves(backend):
    params = [one(), one()]
    optimizer = Optimizer(params, samplers.SGHMC, lr=0.1, num_data=5, backend=backend)
    with pytest.raises(RecipeError, match="parameter 0 of group 0 has no gradient"):
        optimizer.step()
    params[0].sum().backward()
    params[1].grad = torch.ones(3).to_sparse()
    with pytest.raises(RecipeError, match="sparse"):
        optimizer.step()
    assert all(torch.equal(p.detach(), torch.ones(3)) for p in params)


@pytest.mark.parametrize("many", [1, 10])  # the walk over many tensors is compiled
@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_a_parameter_without_a_gradient_stays_for_that_step_alone(backend, many):
    """Kills zeros in place of the gradient and no more, by which noise moves the weight, and momenta that go on."""
    params = [torch.nn.Parameter(torch.ones(1)) for _ in range(many + 1)]
    unused, *used = params
    optimizer = Optimizer(params, samplers.MSGNHT, lr=0.1, num_data=5, seed=3, backend=backend)
    before: dict = {}
    for k in range(4):
        optimizer.zero_grad()
        sum((p**2).sum() for p in used).backward()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            optimizer.step()
        assert [str(w.message).count("not reached parameter 0,") for w in told] == ([1] if k == 0 else [])
        now = {name: x.clone() for name, x in optimizer.state[unused].items()}
        assert torch.equal(unused, torch.ones(1)) and not any(torch.equal(p, torch.ones(1)) for p in used)
        if before:
            assert all(torch.equal(now[name], before[name]) for name in ("p", "xi"))
        before = now
    unused.grad = torch.ones(1)
    optimizer.step()
    assert not torch.equal(unused, torch.ones(1)) and not torch.equal(optimizer.state[unused]["p"], before["p"])


@pytest.mark.parametrize("late", [False, True])
def test_a_gradient_that_is_not_finite_is_named(late):
    """At the first step before anything moves; later at the next look, when the weights are gone too."""
    params = parameters()
    optimizer = built("sghmc", params, "auto")
    start = [p.detach().clone() for p in params]
    run(params, optimizer, 3 if late else 0)
    for _ in range(60 if late else 1):
        for p in params:
            p.grad = torch.zeros_like(p)
        params[1].grad[2] = math.nan
        try:
            optimizer.step()
        except RecipeError as error:
            assert "the gradient of parameter 1 of group 0 is not finite at step " + ("50" if late else "0") in str(
                error
            )
            assert late == ("go back to a checkpoint" in str(error))
            break
    else:
        pytest.fail("it went on")
    assert late or all(torch.equal(p, s) for p, s in zip(params, start))


@pytest.mark.parametrize(
    "clip",
    [
        lambda p: torch.nn.utils.clip_grad_norm_(p, 0.1),
        lambda p: torch.nn.utils.clip_grad_norm_(p, 0.1, foreach=True),
        lambda p: torch.nn.utils.clip_grad_value_(p, 1.0),
        None,
    ],
    ids=["norm", "norm, foreach", "value", "none"],
)
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_clipped_gradients_are_warned_of_and_others_are_not(clip, groups):
    """Of gradients with the noise of minibatches; about half of the 44 entries are clipped by value."""
    params, random = parameters(), torch.Generator().manual_seed(0)
    optimizer = built("sghmc", [{"params": params[k::groups]} for k in range(groups)])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(30):
            optimizer.zero_grad()
            (loss_of(params) * DATA).backward()
            for p in params:
                p.grad += torch.randn(p.shape, generator=random, dtype=p.dtype)
            if clip:
                clip(params)
            optimizer.step()
    assert len([w for w in seen if "clipped" in str(w.message)]) == (clip is not None)


def test_a_group_of_bounded_slope_beside_another_is_not_taken_for_clipped():
    """A bias of an L1 loss; kills a comparison of the largest entries of all groups."""
    params = weights()
    optimizer = Optimizer([{"params": [p]} for p in params], samplers.SGLD, lr=1e-3, num_data=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(30):
            params[0].grad = torch.randn(3, generator=torch.Generator().manual_seed(k)) / 10
            params[1].grad = torch.ones(1)
            optimizer.step()


def test_a_group_whose_norm_is_nearly_that_of_all_is_not_taken_for_clipped():
    """A large constant gradient beside a small one with larger entries; kills the norm of all as the only sign."""
    large, small = (torch.nn.Parameter(torch.zeros(sites)) for sites in (100_000, 10))
    optimizer = Optimizer([{"params": [large]}, {"params": [small]}], samplers.SGLD, lr=1e-6, num_data=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(30):
            large.grad = torch.ones(100_000)
            small.grad = 0.1 * torch.randn(10, generator=torch.Generator().manual_seed(k))
            small.grad[0] += 1 + 0.01 * k
            optimizer.step()


def test_norms_of_half_precision_are_not_taken_for_clipped():
    """Those of 20,000 entries differ by half a per cent, which is one number of bfloat16."""
    weight = torch.nn.Parameter(torch.zeros(20_000, dtype=torch.bfloat16))
    optimizer = Optimizer([weight], samplers.SGLD, lr=1e-6, num_data=10)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*clipped")
        for k in range(60):
            weight.grad = torch.randn(20_000, generator=torch.Generator().manual_seed(k)).bfloat16()
            optimizer.step()


def test_norms_that_overflow_as_a_loop_blows_up_are_not_taken_for_clipped():
    weight = torch.nn.Parameter(torch.zeros(4))
    optimizer = Optimizer([weight], samplers.SGLD, lr=1e-30, num_data=10, backend="torch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(14, 24):  # in float32 squares end at 3e38
            weight.grad = torch.tensor([1.0, 1.1, 1.2, 1.3]) * 10.0**k
            optimizer.step()


def test_a_norm_at_its_maximum_in_a_slow_loop_is_not_taken_for_clipped():
    """The largest entry drifts by .3 % in all; kills a comparison with the latest step alone."""
    weight = torch.nn.Parameter(torch.zeros(2))
    optimizer = Optimizer([weight], samplers.SGLD, lr=1e-6, num_data=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for k in range(11):
            angle = torch.tensor(0.5 + 5e-4 * k)
            weight.grad = torch.stack((angle.cos(), angle.sin()))
            optimizer.step()


def test_a_norm_that_comes_twice_does_not_hide_that_gradients_are_clipped():
    weight = torch.nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = Optimizer([weight], samplers.SGLD, lr=1e-3, num_data=10, backend="torch")
    with pytest.warns(RuntimeWarning, match="clipped") as seen:
        for other in (0.1, 0.3, 0.5, 0.3, 0.7, 0.9):  # beside an entry of 1, which is the largest
            weight.grad = torch.tensor([1.0, other], dtype=torch.float64)
            optimizer.step()
    assert len(seen) == 1


def weights(count=3):
    return [torch.nn.Parameter(torch.ones(size)) for size in (count, 1)]


def test_a_loss_that_is_not_finite_is_refused_at_its_step_and_the_weights_stay():
    params = weights()
    optimizer = Optimizer(params, samplers.SGHMC, lr=0.01, momentum=0.9, num_data=10)
    for step in range(4):
        before = [p.detach().clone() for p in params]
        optimizer.zero_grad()
        loss = sum((p**2).sum() for p in params)
        (loss * (math.nan if step == 3 else 1)).backward()
        if step < 3:
            optimizer.step()
    with pytest.raises(RecipeError, match="the gradient of parameter 0 of group 0 is not finite at step 3"):
        optimizer.step()
    assert all(map(torch.equal, params, before))


def test_a_loaded_state_brings_its_lr_and_is_refused_where_it_is_of_another_number_of_data():
    def made(**more):
        return Optimizer(weights(), samplers.SGHMC, **dict(lr=0.01, momentum=0.9, num_data=10) | more)

    optimizer = made()
    optimizer.load_state_dict(made(lr=0.02).state_dict())
    assert optimizer.param_groups[0]["lr"] == 0.02
    with pytest.raises(RecipeError, match="group 0 is of 11 data, here of 10: another posterior"):
        optimizer.load_state_dict(made(num_data=11).state_dict())
    assert optimizer.param_groups[0]["num_data"] == 10


@pytest.mark.parametrize("weight_decay", [1e300, 1e38])
def test_a_weight_decay_beyond_the_numbers_of_the_weights_is_refused(weight_decay):
    with pytest.raises(RecipeError, match="num_data times weight_decay"):
        Optimizer(weights(), samplers.SGHMC, lr=0.01, num_data=10, weight_decay=weight_decay)


# ---- what stays as it is


def adapter():
    """A frozen base, one tensor of it quantised, and a small matrix that moves."""
    model = torch.nn.Linear(3, 2).requires_grad_(False)
    model.scale = torch.nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False)
    model.low = torch.nn.Parameter(torch.ones(2, 3))
    return model


@pytest.mark.parametrize("backend", ["torch", "cpp"])
@pytest.mark.parametrize("named", [False, True])
def test_frozen_parameters_stay_and_the_others_move_as_if_alone(backend, named):
    moved = []
    for alone in (False, True):
        model = adapter()
        before = {name: p.clone() for name, p in model.named_parameters()}
        params = [("low", model.low)] if alone else list(model.named_parameters())
        optimizer = Optimizer(
            params if named else [p for _, p in params], samplers.SGHMC, lr=0.1, num_data=5, backend=backend
        )
        for _ in range(3):
            optimizer.zero_grad()
            (model.low**2).mean().backward()
            optimizer.step()
        moved.append(model.low.detach().clone())
        assert all(torch.equal(p, before[name]) for name, p in model.named_parameters() if name != "low")
        assert list(optimizer.kinetic_temperatures()) == ["low, p" if named else "0.0, p"]
    assert torch.equal(*moved)


def test_a_parameter_that_is_to_move_after_all_is_asked_for():
    model = adapter()
    optimizer = Optimizer(model.parameters(), samplers.SGHMC, lr=0.1, num_data=5)
    model.weight.requires_grad_(True)
    (model.low**2).mean().backward()
    with pytest.raises(RecipeError, match="frozen when they were given.*add_param_group"):
        optimizer.step()
    model.weight.requires_grad_(False)
    model.low.requires_grad_(False).grad = None
    with pytest.raises(RecipeError, match="parameter 0 of group 0 has been frozen since"):
        optimizer.step()


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_adapted_quantities_and_blocks_are_held_still_when_it_is_asked(backend):
    weights = torch.nn.Parameter(torch.linspace(-1, 1, 5))
    optimizer = Optimizer([weights], samplers.SANTA, lr=0.1, num_data=5, backend=backend)

    def step(optimizer, weights):
        weights.grad = weights.detach() / 5
        optimizer.step()
        return {name: x.clone() for name, x in optimizer.state[weights].items()}

    step(optimizer, weights)
    before = step(optimizer, weights)
    optimizer.freeze("V", "xi")
    after = step(optimizer, weights)
    assert all(torch.equal(after[name], before[name]) == (name in ("V", "xi")) for name in before if name != "V_last")

    again = torch.nn.Parameter(weights.detach().clone())
    twin = Optimizer([again], samplers.SANTA, lr=0.1, num_data=5, backend=backend)
    twin.load_state_dict(copy.deepcopy(optimizer.state_dict()))  # frozen as it was
    mine, its = step(optimizer, weights), step(twin, again)
    assert all(torch.equal(x, its[name]) for name, x in mine.items())
    assert torch.equal(again, weights)

    optimizer.freeze()
    freed = step(optimizer, weights)
    assert not torch.equal(freed["V"], after["V"])
    with pytest.raises(RecipeError, match="no block 'W'.*Known here: V"):
        optimizer.freeze("W")
    with pytest.raises(RecipeError, match="no block 'W'"):
        Optimizer([weights], samplers.SANTA, lr=0.1, num_data=5, freeze="W")


# ---- time scales


@pytest.mark.parametrize("name", ["sgnht", slow("msgnht"), "atmc"])
def test_lr_and_momentum_set_the_time_of_a_thermostat_in_steps(name):
    """It takes up half as much gradient noise as there is friction within some hundred steps, whatever num_data.

    Of a thermostat of mass 1, which takes 1e5 steps, the mean here is 1.27; a chi-squared of 2000 sites moves by 3 %.
    """
    weights = torch.nn.Parameter(torch.zeros(2000))
    optimizer = Optimizer([weights], name, lr=0.05, momentum=0.9, num_data=50_000, backend="torch")
    generator = torch.Generator().manual_seed(0)
    temperatures = []
    for step in range(600):
        weights.grad = weights.detach() + 0.005 * torch.randn(2000, generator=generator)
        optimizer.step()
        if step >= 400 and step % 10 == 0:
            temperatures.append(optimizer.kinetic_temperatures()["0.0, p"].value)
    assert abs(sum(temperatures) / len(temperatures) - 1) < 0.1


@pytest.mark.parametrize("recipe", ["sghmc", samplers.SGHMC])
def test_a_recipe_in_the_place_of_the_parameters_is_refused(recipe):
    with pytest.raises(RecipeError, match="the recipe is given first, in the place of the parameters. Write Optimizer"):
        Optimizer(recipe, torch.nn.Linear(3, 1).parameters(), lr=0.1, momentum=0.9, num_data=DATA)


@pytest.mark.parametrize("name", ["mala", "hmc", "ghmc"])
def test_steps_that_are_made_to_be_accepted_are_not_taken_without_a_word(name):
    with pytest.warns(RuntimeWarning, match=f"{name}, Optimizer: .*accepted or rejected.*'sghmc'"):
        Optimizer(parameters(), name, num_data=DATA, step_size=1e-3)


def test_several_potentials_and_several_targets_are_refused_with_what_to_do():
    theta, x, y = vector("theta"), vector("x"), vector("y")
    fast, slow = (potential(theta, name=name) for name in ("fast", "slow"))
    two = Recipe(name="two", state=(theta,), H=fast + slow, D={theta: 1})
    with pytest.raises(RecipeError, match="H has U_fast, U_slow, .* Declare one potential for the sum of the losses"):
        Optimizer(parameters(), two, num_data=DATA, step_size=1e-3)
    both = Recipe(name="both", state=(x, y), target=(x, y), H=sum(copies(x, y)), D={x: 1, y: 1})
    with pytest.raises(RecipeError, match="the blocks x, y, and a loop moves one set of weights. .*an Ensemble"):
        Optimizer(parameters(), both, num_data=DATA, step_size=1e-3)


def test_relaxation_names_the_group_where_there_are_several():
    groups = [{"params": parameters()[:2]}, {"params": parameters()[2:], "lr": 0.01}]
    optimizer = Optimizer(groups, "sgnht", lr=0.1, momentum=0.9, num_data=DATA)
    assert list(optimizer.relaxation_steps()) == ["p of group 0", "xi of group 0", "p of group 1", "xi of group 1"]
