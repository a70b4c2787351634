"""Minibatches: every datum once an epoch, an order that nothing else moves, places to leave and take up again."""

import io
import re
from itertools import islice

import pytest
import scipy.stats
import torch
from devices import DEVICES
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from recipe import RecipeError
from samplers.training.minibatches import Minibatches


class Numbers(Dataset):
    """The numbers 0, 1, ... as a map-style dataset."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return i


class Stream(IterableDataset):
    """Data that have no numbers."""

    def __len__(self):
        return 3

    def __iter__(self):
        return iter(range(3))


def epochs(batches, count):
    """The batches of some epochs as lists."""
    return [[batch.tolist() for batch in batches] for _ in range(count)]


def joined(lists):
    return [row for rows in lists for row in rows]


sizes = st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))
flags = st.booleans()


# ---- an epoch


@given(sizes, st.integers(0, 2**64 - 1), st.integers(0, 2**40))
@settings(deadline=None, max_examples=60)
def test_an_epoch_without_replacement_has_every_datum_once(size, seed, epoch):
    n, b = size
    batches = Minibatches(torch.arange(n), b, seed=seed, drop_last=False)
    batches.load_state_dict(batches.state_dict() | {"epoch": epoch})
    assert sorted(joined(epochs(batches, 1)[0])) == list(range(n))
    assert batches.epoch == epoch + 1


@given(sizes, flags, flags)
@settings(deadline=None, max_examples=60)
def test_an_epoch_has_len_batches_all_full_but_a_last_one_that_may_be_kept(size, replacement, drop_last):
    n, b = size
    batches = Minibatches(torch.arange(n), b, replacement=replacement, drop_last=drop_last)
    lengths = [len(rows) for rows in epochs(batches, 1)[0]]
    assert len(batches) == len(lengths)
    assert lengths == [b] * (n // b) + [n % b] * (n % b > 0 and not drop_last)


@pytest.mark.parametrize("replacement, n, orders", [(False, 4, 24), (True, 3, 27)])
def test_the_law_of_the_order_is_uniform(replacement, n, orders):
    """Each permutation of four data, each sequence of three: chi-square of 1000 epochs, alpha = 1e-9 each.

    One order in a tenth of the epochs would give 240; refused is what exceeds 97 and 103.
    """
    batches, counts = Minibatches(torch.arange(n), n, seed=0, replacement=replacement), {}
    for epoch in range(1000):
        order = tuple(batches.order(epoch).tolist())
        counts[order] = counts.get(order, 0) + 1
    expected = 1000 / orders
    result = sum((count - expected) ** 2 / expected for count in counts.values()) + expected * (orders - len(counts))
    assert len(counts) <= orders and result < scipy.stats.chi2(orders - 1).isf(1e-9)


# ---- what the order is a function of


@pytest.mark.stated_seed
def test_the_order_is_the_one_it_has_always_been():
    first, second = epochs(Minibatches(torch.arange(10), 3, seed=7), 2)
    assert first == [[1, 0, 9], [5, 3, 2], [6, 8, 7]]
    assert second == [[7, 4, 6], [3, 8, 2], [1, 5, 0]]


@pytest.mark.parametrize("replacement", [False, True])
def test_seeds_and_epochs_have_different_orders_and_equal_ones_the_same(replacement):
    def make(seed):
        return [
            tuple(x)
            for x in (
                Minibatches(torch.arange(30), 30, seed=seed, replacement=replacement).order(e).tolist()
                for e in range(3)
            )
        ]

    assert make(0) == make(0) and len({*make(0), *make(1), *make(2**40)}) == 9


def test_torchs_generators_are_neither_used_nor_touched():
    torch.manual_seed(1)
    first = epochs(Minibatches(torch.arange(20), 5), 2)
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert epochs(Minibatches(torch.arange(20), 5), 2) == first
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("device", DEVICES)
def test_the_form_of_the_data_does_not_matter(device):
    """A tensor, a tuple, an array, a dataset, a DataLoader: the same rows."""
    x = torch.arange(11)
    expected = epochs(Minibatches(x, 4, seed=3), 2)
    y = (x * 10).to(device)
    pairs = Minibatches((x.to(device), y), 4, seed=3)
    assert all(torch.equal(10 * a, b) and b.device == y.device for a, b in pairs)
    assert [a.tolist() for a, _ in pairs] == expected[1]
    numbers = Minibatches(Numbers(11), 4, seed=3)
    both = Minibatches(TensorDataset(x, 10 * x), 4, seed=3)
    assert epochs(Minibatches(x.numpy(), 4, seed=3), 2) == epochs(numbers, 2) == expected
    assert [[a.tolist() for a, _ in both] for _ in range(2)] == expected
    loader = DataLoader(Numbers(11), batch_sampler=Minibatches(Numbers(11), 4, seed=3).as_sampler())
    assert len(loader) == 2 and epochs(loader, 2) == expected


def test_a_batch_of_a_dataset_is_fetched_at_once_where_the_dataset_can():
    class Together(Numbers):
        def __getitems__(self, rows):
            return [100 + i for i in rows]

    plain, together = (Minibatches(data, 2, seed=5) for data in (Numbers(6), Together(6)))
    assert epochs(together, 1)[0] == [[100 + i for i in rows] for rows in epochs(plain, 1)[0]]


# ---- places


def endless(batches):
    while True:
        yield from batches


@given(sizes, flags, flags, st.integers(0, 30), st.integers(0, 9), flags)
@settings(deadline=None, max_examples=60)
def test_a_loop_broken_off_anywhere_goes_on_with_the_batches_it_would_have_seen(
    size, replacement, drop_last, at, seed, message
):
    n, b = size

    def make():
        return Minibatches(torch.arange(n), b, seed=seed, replacement=replacement, drop_last=drop_last)

    expected = [x.tolist() for x in islice(endless(make()), at + 6)]
    first, second = make(), make()
    seen = [x.tolist() for x in islice(endless(first), at)]
    assert first.state_dict() == first.state_dict(seen=at)
    second.load_state_dict(first.state_dict(seen=at) if message else first.state_dict())
    assert seen + [x.tolist() for x in islice(endless(second), 6)] == expected
    assert seen + [x.tolist() for x in islice(endless(first), 6)] == expected  # broken off, and begun again as it is


def test_a_place_taken_in_the_body_of_a_loop_is_after_the_batch_at_hand():
    batches, places = Minibatches(torch.arange(6), 2), []
    for _ in batches:
        state = batches.state_dict()
        places.append((state["epoch"], state["batch"]))
    assert places == [(0, 1), (0, 2), (1, 0)]
    assert all(type(value) is int for value in batches.state_dict().values())


def test_a_place_survives_torch_save():
    batches, again, file = (
        Minibatches(torch.arange(9), 2, seed=4),
        Minibatches(torch.arange(9), 2, seed=4),
        io.BytesIO(),
    )
    list(islice(batches, 3))
    torch.save(batches.state_dict(), file)
    file.seek(0)
    again.load_state_dict(torch.load(file, weights_only=True))
    assert epochs(again, 2) == epochs(batches, 2)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker processes")  # where there is one core
def test_workers_draw_ahead_and_the_place_after_the_batches_seen_is_known():
    def make():
        return Minibatches(Numbers(24), 2, seed=6)

    expected, batches = epochs(make(), 2), make()
    loader = DataLoader(Numbers(24), batch_sampler=batches.as_sampler(), num_workers=2)
    seen = [batch.tolist() for batch in islice(loader, 3)]
    assert seen == expected[0][:3] and batches.batch > 3
    batches.load_state_dict(batches.state_dict(seen=3))
    assert epochs(loader, 2) == [expected[0][3:], expected[1]]


# ---- ranks


@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 25), flags, flags)
@settings(deadline=None, max_examples=60)
def test_the_batches_of_the_ranks_laid_end_to_end_are_those_of_one(world, share, more, replacement, drop_last):
    n = world * (share + (more if not drop_last else 0)) + (more if drop_last else 0)

    def make(**ranks):
        return Minibatches(
            torch.arange(n), world * share, seed=2, replacement=replacement, drop_last=drop_last, **ranks
        )

    ranks = [make(rank=r, world_size=world) for r in range(world)]
    whole = make()
    for batch, *parts in zip(whole, *ranks, strict=True):
        assert len({len(part) for part in parts}) == 1
        assert torch.equal(torch.cat(parts), batch)
    assert [part.state_dict() for part in ranks] == [whole.state_dict()] * world


# ---- bad input


X = torch.zeros(10, 2)


def continued(data=X, batch_size=5, seed=0, change=(), **settings):
    """Batches of five rows that go on where others have been."""
    place = Minibatches(data, batch_size, **settings).state_dict() | dict(change)
    return lambda: Minibatches(X, 5, seed=seed).load_state_dict(place)


WRONG = {
    "no data": (lambda: Minibatches(X[:0], 1), ["data", "none"]),
    "an empty dataset": (lambda: Minibatches(Numbers(0), 1), ["data", "none"]),
    "an empty tuple": (lambda: Minibatches((), 1), ["data", "tuple"]),
    "no axis": (lambda: Minibatches(torch.tensor(1.0), 1), ["data", "no axis of rows"]),
    "no tensor": (lambda: Minibatches((X, "labels"), 1), ["data", "no tensors", "str"]),
    "different lengths": (lambda: Minibatches((X, X[1:]), 2), ["data", "tensor 1 has 9 rows", "10"]),
    "a list": (lambda: Minibatches([X, X], 2), ["data", "list", "tuple of tensors"]),
    "a dict": (lambda: Minibatches({"x": X}, 1), ["data", "dict", "tuple of tensors"]),
    "a stream": (lambda: Minibatches(Stream(), 2), ["data", "Stream", "__getitem__"]),
    "a number": (lambda: Minibatches(5, 2), ["data", "int", "__getitem__"]),
    "more than there are": (lambda: Minibatches(X, 11), ["batch_size", "11", "1 to 10"]),
    "a batch of none": (lambda: Minibatches(X, 0), ["batch_size", "0"]),
    "half a row": (lambda: Minibatches(X, 2.0), ["batch_size", "2.0", "integer"]),
    "a flag for a size": (lambda: Minibatches(X, True), ["batch_size", "True", "integer"]),
    "a seed below 0": (lambda: Minibatches(X, 2, seed=-1), ["seed", "-1"]),
    "no seed": (lambda: Minibatches(X, 2, seed=None), ["seed", "None"]),
    "a rank beyond": (lambda: Minibatches(X, 4, rank=2, world_size=2), ["rank", "2", "0 to 1"]),
    "a rank below 0": (lambda: Minibatches(X, 4, rank=-1, world_size=2), ["rank", "-1"]),
    "more ranks than rows": (lambda: Minibatches(X, 2, world_size=3), ["world_size", "3"]),
    "unequal parts": (lambda: Minibatches(X, 5, world_size=2), ["world_size", "a batch of 5", "2 equal parts"]),
    "unequal last parts": (
        lambda: Minibatches(X[:9], 2, world_size=2, drop_last=False),
        ["a batch of 1", "2 equal parts"],
    ),
    "a count below 0": (lambda: Minibatches(X, 5).state_dict(seen=-1), ["seen", "-1"]),
    "no place": (lambda: Minibatches(X, 5).load_state_dict({"epoch": 1}), ["load_state_dict", "no place"]),
    "another seed": (continued(seed=1), ["load_state_dict", "seed = 0", "1"]),
    "other data": (continued(X[1:]), ["num_data = 9", "10"]),
    "another size": (continued(batch_size=2), ["batch_size = 2", "5"]),
    "another law": (continued(replacement=True), ["replacement = 1", "0"]),
    "another end": (continued(drop_last=False), ["drop_last = 0", "1"]),
    "a place beyond": (continued(change={"batch": 2}), ["batch", "2", "0 to 1"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_is_refused(name):
    call, words = WRONG[name]
    with pytest.raises(RecipeError, match=".*".join(map(re.escape, words))):
        call()
