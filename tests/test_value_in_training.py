"""Formulas that read U itself in a training loop: U is the loss that the closure returns, on the sum scale."""

import warnings
from dataclasses import replace
from itertools import product

import pytest
import torch
from covering import covering
from statements import interpret
from sympy import log
from test_value_of_U import Levelled, Tempered, U, theta
from zoo import CONTOUR, zeta

import samplers
from integrators import compile
from recipe import Recipe, RecipeError, total, vector
from samplers import Optimizer

DATA = 10
START = torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
p = vector("p")
SameStep = replace(Levelled, name="levelled-before", order="same_step")
Underdamped = Recipe(
    name="underdamped-contour",
    state=(theta, p),
    H=U + zeta * log(1 + U) + total(p**2) / 2,
    D={p: 2},
    Q={(theta, p): -1},
    marginal=U + zeta * log(1 + U),
    scheme="B A O A B",
)


def well(z):
    return (z**2).sum() / 2 + (z**4).sum() / 4


def made(recipe, params, **more):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return Optimizer(params, recipe, **dict(num_data=DATA, step_size=0.05, seed=3) | more)


def moved(optimizer, steps=6, energy=well, returned=lambda loss: loss):
    """The weights after some steps with a closure of this energy."""
    weights = [p for group in optimizer.param_groups for p in group["params"]]

    def closure():
        optimizer.zero_grad()
        loss = energy(torch.cat([p.reshape(-1) for p in weights])) / DATA
        loss.backward()
        return returned(loss)

    for _ in range(steps):
        optimizer.step(closure)
    return torch.cat([p.detach().reshape(-1) for p in weights])


def weights(start=START):
    return torch.nn.Parameter(start.clone())


WAYS = list(product([CONTOUR, Tempered, SameStep], ["torch", "cpp"]))


@pytest.mark.parametrize("recipe, backend", covering(WAYS, [way for way in WAYS if way != (Tempered, "cpp")]))
def test_a_loop_on_all_data_makes_the_numbers_of_a_run(recipe, backend):
    run = dict(init=START, chains=1, steps=6, warmup=0, step_size=0.05, seed=3, progress=False)
    expected = samplers.sample(recipe, well, **run)["theta"][0, -1]
    assert torch.allclose(moved(made(recipe, [weights()], backend=backend)), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_an_adaptation_of_the_step_before_sees_U_where_the_step_began(backend):
    """level <- 0.9 level + 0.1 U, of the place that the step's gradient is of."""
    optimizer = made(Levelled, [weights()], backend=backend)
    level, at = 0.0, START
    for _ in range(4):
        level = 0.9 * level + 0.1 * float(well(at))
        at = moved(optimizer, 1)
    (state,) = optimizer.state.values()
    assert float(state["level"]) == pytest.approx(level, rel=1e-12)


@pytest.mark.parametrize("recipe", [CONTOUR, Underdamped, Levelled], ids=lambda recipe: recipe.name)
def test_the_form_of_a_loop_is_its_formulas_in_numpy(recipe):
    """Text and statements of the rotated word, from the same gradient, value and noise."""
    step = made(recipe, [weights()]).sampler.step
    assert "value: U at the state, (chains,)" in step.source
    generator = torch.Generator().manual_seed(2)
    state = {b.name: torch.randn((4, 3) if b.is_vector else (4,), generator=generator).double() for b in recipe.entries}
    noise = {d: torch.randn(4, 3, generator=generator).double() for d in step.draws}
    slope, value = state["theta"] + state["theta"] ** 3, (state["theta"] ** 2).sum(1)
    result = step.function(state, 0.1, gradient=slope, value=value, noise=noise)
    by_statement = interpret(
        step,
        {name: x.numpy() for name, x in state.items()},
        0.1,
        gradient=slope.numpy(),
        value=value.numpy(),
        noise={name: x.numpy() for name, x in noise.items()},
    )
    for b in recipe.entries:
        assert torch.allclose(result[b.name], torch.tensor(by_statement[b.name]), rtol=1e-12, atol=1e-12)


def test_kernel_and_text_make_the_same_numbers_of_momenta():
    by_text, by_kernel = (moved(made(Underdamped, [weights()], backend=b), 20) for b in ("torch", "cpp"))
    assert torch.allclose(by_text, by_kernel, rtol=1e-12, atol=1e-12)


def test_another_loss_makes_other_numbers():
    """The loss on the sum scale is what is read: a tenth of it, or a constant more, is another U."""
    right, tenth, more = (
        moved(made(CONTOUR, [weights()]), returned=f) for f in (torch.Tensor.item, lambda x: x / DATA, lambda x: x + 1)
    )
    assert (right - tenth).abs().max() > 1e-3 and (right - more).abs().max() > 1e-3


@pytest.mark.parametrize("backend", ["torch", "cpp"])
def test_weight_decay_is_in_U(backend):
    decayed = moved(made(CONTOUR, [weights()], backend=backend, weight_decay=0.2))
    written = moved(made(CONTOUR, [weights()]), energy=lambda z: well(z) + DATA * 0.2 * (z**2).sum() / 2)
    assert torch.allclose(decayed, written, rtol=1e-12, atol=1e-12)


def test_groups_read_one_U_of_all_weights():
    """At temperature 0, where noise tells no groups apart; the priors of both are in it."""
    settings = dict(temperature=0.0, weight_decay=0.2)
    apart = made(CONTOUR, [{"params": [weights(START[:1])]}, {"params": [weights(START[1:])]}], **settings)
    whole = made(CONTOUR, [weights()], **settings)
    assert torch.allclose(moved(apart), moved(whole), rtol=1e-12, atol=1e-12)


def test_members_of_an_ensemble_read_their_own():
    X = torch.linspace(-1, 1, DATA, dtype=torch.float64)[:, None]
    linear = [torch.nn.Linear(1, 1).double() for _ in range(3)]
    together = samplers.Ensemble(linear, seed=0)

    def losses_of(networks):
        optimizer = made(CONTOUR, networks.parameters())

        def closure():
            optimizer.zero_grad()
            losses = networks.losses(torch.nn.functional.mse_loss, X, X**2, shared=True)
            losses.sum().backward()
            return losses

        return [optimizer.step(closure) for _ in range(5)][-1]

    alone = [losses_of(samplers.Ensemble([own], members=range(k, k + 1))) for k, own in enumerate(linear)]
    assert torch.allclose(losses_of(together), torch.cat(alone), rtol=1e-12, atol=1e-12)


def test_weights_of_half_precision_read_it_as_their_copies_do():
    optimizer = made(CONTOUR, [weights(START.bfloat16())])
    one = moved(optimizer)
    assert one.dtype == torch.bfloat16 and one.isfinite().all() and not torch.equal(one, START.bfloat16())


# ---- what is refused, and what is said


def test_a_loop_says_what_a_minibatch_makes_of_it():
    with pytest.warns(RuntimeWarning, match="contour, Optimizer: the formulas read U itself.*the loss of all data"):
        Optimizer([weights()], CONTOUR, num_data=DATA, step_size=0.05)


@pytest.mark.parametrize(
    "returned, message",
    [
        (None, "there is no loss. Pass step.closure.*returns the mean loss"),
        ("low", "the closure returns a str, no loss"),
        (torch.zeros(2, 2), r"the closure returns torch.float32 \(2, 2\), no loss"),
        (torch.zeros(3), r"3 loss\(es\) for 1 chain\(s\). Return the loss of each member"),
        (float("inf"), r"the loss is \[inf\]"),
    ],
    ids=["none", "text", "matrix", "three", "infinite"],
)
def test_what_is_no_loss_is_refused_before_anything_moves(returned, message):
    theta = weights()
    with pytest.raises(RecipeError, match=f"contour, Optimizer, step: .*{message}"):
        moved(made(CONTOUR, [theta]), 1, returned=lambda loss: returned)
    assert torch.equal(theta.detach(), START)


def test_a_step_without_a_closure_is_refused():
    theta = weights()
    optimizer = made(CONTOUR, [theta])
    well(theta).backward()
    with pytest.raises(RecipeError, match="read U itself, and there is no loss. Pass step.closure"):
        optimizer.step()
    assert torch.equal(theta.detach(), START)


def test_a_word_that_reads_U_at_two_places_is_refused():
    """B is kicked before and after A moves theta, by V = log(1 + U) as by U."""
    with pytest.raises(RecipeError, match="needs more than one gradient per step"):
        made(Underdamped, [weights()], scheme="B A B O B A B")


def test_a_file_of_its_own_has_a_step_and_no_optimizer():
    text = compile(CONTOUR).standalone()
    assert "def step(state, h, *, gradient, value, noise" in text and "torch.optim" not in text


def test_a_graph_takes_no_loss():
    with pytest.raises(RecipeError, match="capturable = True, and its formulas read U itself"):
        made(CONTOUR, [weights()], capturable=True)
