from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

from dlctl.contract import LearningRateSchedule
from learner.data.sampling import (
    batch_count,
    batch_start,
    epoch_order,
    fetch,
    places_left,
    share,
    share_of_batch,
)
from learner.errors import UserFault
from learner.model.lr_schedule import factor
from learner.parameter_server.checkpoint_state import cursor_at, done_since, passes_done
from psrv.cursor.base import make_state, read_state


@given(st.integers(0, 300), st.integers(1, 9))
def test_shares_are_contiguous_even_and_complete(count, size):
    parts = [range(count)[share(count, rank, size)] for rank in range(size)]
    assert [index for part in parts for index in part] == list(range(count))
    lengths = [len(part) for part in parts]
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 5), st.integers(0, 2**63 - 1))
def test_batches_do_not_depend_on_the_number_of_learners(samples, batch_size, size, seed):
    order = epoch_order(samples, seed, 3)
    seen = []
    for batch in range(batch_count(samples, batch_size)):
        shares = [share_of_batch(order, batch, batch_size, rank, size) for rank in range(size)]
        joined = np.concatenate([part.indices for part in shares])
        whole = share_of_batch(order, batch, batch_size, 0, 1)
        assert np.array_equal(joined, whole.indices)
        assert sum(part.weight for part in shares) == pytest.approx(1.0)
        seen += joined.tolist()
    assert sorted(seen) == list(range(samples))


@given(st.integers(2, 200), st.integers(2, 64), st.integers(1, 9))
def test_no_sample_is_a_batch_of_its_own(samples, batch_size, size):
    """Batch norm refuses one, unless there are more learners than half a batch has samples."""
    order = epoch_order(samples, 1, 0)
    batches = [
        [len(share_of_batch(order, batch, batch_size, rank, size).indices) for rank in range(size)]
        for batch in range(batch_count(samples, batch_size))
    ]
    starts = [batch_start(samples, batch, batch_size) for batch in range(len(batches) + 1)]
    assert np.diff(starts).tolist() == [sum(shares) for shares in batches]
    assert all(2 <= sum(shares) <= batch_size + 1 for shares in batches)
    assert batch_size < 2 * size or 1 not in sum(batches, [])


def test_learners_may_be_4_then_2_then_3():
    """A training that continues with another number of learners sees the same batches."""
    samples, batch_size = 103, 10
    undisturbed, seen = [], []
    for epoch in range(2):
        order = epoch_order(samples, 7, epoch)
        for batch in range(batch_count(samples, batch_size)):
            undisturbed.append(share_of_batch(order, batch, batch_size, 0, 1).indices.tolist())
            step = len(seen)
            size = 4 if step < 5 else 2 if step < 13 else 3  # changes within both epochs
            shares = [share_of_batch(order, batch, batch_size, rank, size) for rank in range(size)]
            seen.append([index for part in shares for index in part.indices.tolist()])
    assert seen == undisturbed
    assert len(seen) == 22


@st.composite
def cursor_states(draw):
    """States of three passes, such as learners of a parameter server leave."""
    samples, passes = draw(st.integers(1, 40)), 3
    cuts = sorted(draw(st.lists(st.integers(0, samples * passes), unique=True)))
    undone = []
    for start, stop in pairwise(cuts):
        if draw(st.booleans()):
            edges = [start, *range(samples * (start // samples + 1), stop, samples), stop]
            undone += pairwise(edges)
    return make_state(samples, passes, cuts[-1] if cuts else 0, undone)


def left_in(state):
    """The positions that are not done."""
    gaps = [*state.undone, (state.next, state.samples * state.passes)]
    return [position for start, stop in gaps for position in range(start, stop)]


@given(cursor_states(), st.integers(1, 12), st.integers(0, 12))
def test_samples_that_a_server_training_left_are_trained_once(state, batch_size, batches):
    epoch, samples = passes_done(state), state.samples
    done = done_since(state, epoch)
    left = [
        each * samples + place
        for each in range(epoch, state.passes)
        for place in places_left(samples, each, done).tolist()
    ]
    assert left == left_in(state)
    # Some batches later, a server continues from there.
    in_epoch = len(places_left(samples, epoch, done)) if epoch < state.passes else 0
    batches = min(batches, batch_count(in_epoch, batch_size))
    later = cursor_at(samples, state.passes, epoch, batches, batch_size, done)
    gone = batch_start(in_epoch, batches, batch_size)
    assert left_in(read_state(later, samples, state.passes)) == left[gone:]


def test_the_order_is_fixed_by_seed_and_epoch_for_ever():
    assert epoch_order(8, 1, 0).tolist() == epoch_order(8, 1, 0).tolist()
    assert epoch_order(50, 1, 0).tolist() != epoch_order(50, 1, 1).tolist()
    assert epoch_order(50, 1, 0).tolist() != epoch_order(50, 2, 0).tolist()


def test_fetch_collates_and_separates_the_target():
    class Pairs(Dataset[tuple[float, int]]):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            return float(index), index * 2

    (inputs,), targets = fetch(Pairs(), np.array([3, 1]))
    assert inputs.tolist() == [3.0, 1.0]
    assert targets.tolist() == [6, 2]
    tensors = TensorDataset(torch.arange(5.0), torch.arange(5), torch.arange(5) * 2)
    inputs_pair, targets = fetch(tensors, np.array([4, 0]))
    assert [part.tolist() for part in inputs_pair] == [[4.0, 0.0], [4, 0]]
    assert targets.tolist() == [8, 0]


def test_a_sample_without_a_target_is_refused():
    with pytest.raises(UserFault, match=r"not \(inputs, target\)"):
        fetch(TensorDataset(torch.arange(5.0)), np.array([1]))


class Made(Dataset):
    def __init__(self, make):
        self._make = make

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return self._make(index), 1.0


@pytest.mark.parametrize(("make", "said", "way"), [
    (lambda n: torch.zeros(3 + n % 2), "2 is (Tensor[3], float), sample 5 is (Tensor[4], float)",
     "pad or crop them"),
    (lambda n: [1] * (n // 2), "2 is ((int), float), sample 4 is ((int, int), float)",
     "pad or crop them"),
    (lambda n: {"ids": torch.zeros(n)}, "2 is ({ids: Tensor[2]}, float), sample 4 is ({ids: Te",
     "pad or crop them"),
    (lambda n: object(), "sample 2 is (object, float)", "return tensors, numpy arrays, numbers"),
])  # fmt: skip
def test_samples_that_make_no_batch_are_described(make, said, way):
    with pytest.raises(UserFault) as caught:
        fetch(Made(make), np.array([2, 4, 5]))
    assert "samples of the dataset Made can't become " in caught.value.message
    assert said in caught.value.message and way in caught.value.hint


@pytest.mark.parametrize(
    ("schedule", "step", "expected"),
    [
        (LearningRateSchedule(), 7, 1.0),
        (LearningRateSchedule(warmup_steps=4), 0, 0.25),
        (LearningRateSchedule(warmup_steps=4), 3, 1.0),
        (LearningRateSchedule("step", step_epochs=2, gamma=0.5), 45, 0.25),
        (LearningRateSchedule("exponential", gamma=0.5), 25, 0.25),
        (LearningRateSchedule("linear", final_factor=0.2), 50, 0.6),
        (LearningRateSchedule("cosine"), 50, 0.5),
        (LearningRateSchedule("cosine", final_factor=0.1), 100, 0.1),
    ],
)
def test_learning_rate_factor(schedule, step, expected):
    assert factor(schedule, step, 10, 100) == pytest.approx(expected)


def test_an_unknown_schedule_is_named():
    with pytest.raises(UserFault, match="'cosin'"):
        factor(LearningRateSchedule("cosin"), 1, 10, 100)
