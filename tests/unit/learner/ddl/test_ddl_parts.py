"""The parts of learner.ddl and learner.exchange that need no other process."""

import copy
import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from learner import ddl, exchange
from learner.checkpoint.writer_process import WriterProcess
from learner.data_parallel.buckets import is_dense, lay_out
from learner.data_parallel.optimizer import DistributedOptimizer
from learner.data_parallel.shared_weights import splitting_of
from learner.ddl.abort import AbortOnError
from learner.ddl.gpu_assignment import GpuRequest, assign, choose
from learner.ddl.reducer import check_against, relative_error
from learner.ddl.samples import LearnerSamples
from learner.errors import UserFault
from learner.exchange import find_group, make_exchange
from learner.exchange.arithmetic import ALIGNMENT, blocks, divide, part_of, sum_into_all, sum_rows
from learner.exchange.single import SingleExchange
from learner.exchange.topology import check_mode, make_topology
from learner.exchange.torch_group import TorchBuffer

# Who is where -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hosts", "rank", "mode", "node", "local_rank", "local_size"),
    [
        ("a", 0, "1x1", 0, 0, 1),
        ("aabb", 2, "2x2", 1, 0, 2),
        ("abab", 2, "2x2", 0, 1, 2),
        ("bbba", 3, "3+1", 1, 0, 1),
        ("abcd", 1, "1x4", 1, 0, 1),
    ],
)
def test_topology_is_found_from_the_hosts(hosts, rank, mode, node, local_rank, local_size):
    found = make_topology(rank, list(hosts))
    assert (found.mode, found.node, found.local_rank, found.local_size) == (
        mode, node, local_rank, local_size,
    )  # fmt: skip
    check_mode("auto", found)
    check_mode(mode, found)


def test_a_wrong_mode_is_refused_with_both_topologies():
    two = make_topology(0, ["a", "a"])
    with pytest.raises(UserFault, match=r"mode is 1x2, but the launcher has started 2x1"):
        check_mode("1x2", two)
    with pytest.raises(UserFault, match="mode is 'b:n'"):
        check_mode("b:n", two)


@pytest.mark.parametrize(
    ("preferred", "gpus", "given_"),
    [
        ([None, None], 0, [None, None]),
        ([None, None], 2, [0, 1]),
        ([None, 0], 2, [1, 0]),
        ([1, 1, None], 3, [1, 0, 2]),
        ([None] * 4, 2, [0, 1, 0, 1]),
        ([1, 1], 2, [1, 0]),
        ([0, None, None], 1, [0, 0, 0]),
    ],
)
def test_gpus_are_assigned_as_preferred_or_evenly(preferred, gpus, given_):
    assert assign(preferred, gpus) == given_


@given(st.integers(1, 5).flatmap(
    lambda gpus: st.tuples(
        st.lists(st.none() | st.integers(0, gpus - 1), min_size=1, max_size=12), st.just(gpus)
    )
))  # fmt: skip
def test_no_gpu_has_two_learners_more_than_another(case):
    preferred, gpus = case
    users = [assign(preferred, gpus).count(gpu) for gpu in range(gpus)]
    assert max(users) - min(users) <= 1
    for gpu in set(preferred) - {None}:  # a learner that prefers it has it
        assert any(w == g == gpu for w, g in zip(preferred, assign(preferred, gpus), strict=True))


def test_a_missing_gpu_is_refused():
    for gpus, wish in ((2, 2), (0, 0), (2, -1)):
        with pytest.raises(UserFault, match=rf"local rank 1 prefers the GPU {wish}.* shows it"):
            assign([None, wish], gpus)


def test_learners_that_each_see_one_gpu_take_number_0():
    wishes = [GpuRequest("0", 1, None), GpuRequest("1", 1, None), GpuRequest("1", 1, 0)]
    assert [choose(wishes, rank) for rank in range(3)] == [0, 0, 0]
    together = [GpuRequest("0,1", 2, None), GpuRequest("0,1", 2, 0)]
    assert [choose(together, rank) for rank in range(2)] == [1, 0]


# Sums ---------------------------------------------------------------------------------------------


@given(st.integers(0, 500), st.integers(0, 3000), st.integers(1, 9))
def test_parts_are_aligned_and_make_the_whole(start, length, parts):
    start *= ALIGNMENT
    cuts = [part_of(start, start + length, index, parts) for index in range(parts)]
    assert cuts[0][0] == start and cuts[-1][1] == start + length
    assert all(a[1] == b[0] for a, b in zip(cuts, cuts[1:], strict=False))
    assert all(a <= b for a, b in cuts)
    assert all(a % ALIGNMENT == 0 or a == start + length for a, _ in cuts)


@given(st.integers(0, 50), st.integers(0, 500), st.integers(1, 70))
def test_blocks_make_the_whole(start, length, step):
    found = blocks(start, start + length, step)
    assert [i for a, b in found for i in range(a, b)] == list(range(start, start + length))
    assert all(0 < b - a <= step for a, b in found)


def test_halves_are_added_up_in_float32():
    rows = [torch.tensor([1024.0], dtype=torch.bfloat16)] + [
        torch.tensor([3.0], dtype=torch.bfloat16) for _ in range(4)
    ]
    in_halves = rows[0].clone()
    for row in rows[1:]:
        in_halves += row
    assert sum_rows(rows).item() == 1036.0 != in_halves.item()
    sum_into_all(rows, 1)
    assert {row.item() for row in rows} == {torch.tensor(1036.0).bfloat16().item()}


def test_integers_are_divided_as_integers():
    numbers = torch.tensor([7, -7])
    divide(numbers, 2)
    assert numbers.tolist() == [3, -3]


def test_relative_error():
    ones = torch.ones(4)
    assert relative_error(ones, ones) == relative_error(torch.empty(0), torch.empty(0)) == 0
    assert relative_error(torch.tensor([1.0, 90.0]), torch.tensor([2.0, 100.0])) == 0.1
    assert relative_error(torch.tensor([0.5]), torch.tensor([0.0])) == 0.5
    inf, nan = float("inf"), float("nan")
    assert relative_error(torch.tensor([inf, nan, -inf]), torch.tensor([inf, nan, -inf])) == 0
    assert relative_error(torch.tensor([inf, 1.0]), torch.tensor([inf, 2.0])) == 0.5
    assert math.isnan(relative_error(torch.tensor([nan, 1.0]), torch.tensor([1.0, 1.0])))
    assert relative_error(torch.tensor([inf]), torch.tensor([1.0])) == inf
    assert relative_error(torch.tensor([2 + 3j]), torch.tensor([2 + 2j])) == pytest.approx(8**-0.5)


def test_the_worst_tensor_is_named():
    right = [torch.ones(2)] * 3
    wrong = [torch.ones(2), torch.full((2,), 1.5), torch.full((2,), 1.25)]
    check_against(wrong, right, "abc", 0.5)
    with pytest.raises(UserFault, match="the tensor b by 0.5 of its largest value, and 0.4"):
        check_against(wrong, right, "abc", 0.4)
    with pytest.raises(UserFault, match="the tensor c by nan"):
        check_against([*wrong[:2], torch.tensor([1.0, math.nan])], right, "abc", 10.0)


# Where parameters lie -----------------------------------------------------------------------------

DTYPES = (torch.float32, torch.float64, torch.bfloat16)
TENSORS = st.lists(
    st.tuples(st.lists(st.integers(0, 6), max_size=4), st.sampled_from(DTYPES)), max_size=12
)


@given(TENSORS, st.integers(1, 4000), st.randoms(use_true_random=False))
def test_places_do_not_overlap_and_buckets_cover_them(kinds, bucket_bytes, random):
    tensors = [torch.zeros(shape, dtype=dtype) for shape, dtype in kinds]
    order = random.sample(range(len(tensors)), len(tensors))
    layout = lay_out(tensors, order, bucket_bytes)
    flats = [torch.zeros(flat.count, dtype=flat.dtype) for flat in layout.flats]
    assert sorted(layout.places) == list(range(len(tensors)))
    for index, place in layout.places.items():
        view = place.view(flats[place.flat], tensors[index])
        assert view.shape == tensors[index].shape and view.dtype == tensors[index].dtype
        assert not view.any(), "nobody else has written here"
        view.fill_(1)
        bucket = layout.buckets[place.bucket]
        assert bucket.start <= place.start <= place.stop <= bucket.stop
        assert place.start % ALIGNMENT == 0 and index in bucket.parameters
    for number, flat in enumerate(layout.flats):
        ranges = [(b.start, b.stop) for b in layout.buckets if b.flat == number]
        assert [0, *[stop for _, stop in ranges]] == [*[start for start, _ in ranges], flat.count]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves_travel_as_float32_between_gpus_too(monkeypatch, dtype):
    sent = []
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda part, **_: sent.append(part))
    TorchBuffer(torch.zeros(8, dtype=dtype, device="meta"), None).begin(0, 8, 2)
    assert [part.dtype for part in sent] == [torch.float32]


def test_views_keep_the_memory_order():
    images = torch.arange(120.0).view(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    assert is_dense(images) and is_dense(images.permute(3, 1, 0, 2)) and is_dense(torch.tensor(1))
    assert not is_dense(torch.zeros(3, 1).expand(3, 4)) and not is_dense(torch.zeros(4, 4)[:, :2])
    for like in (images, torch.zeros(3, 1).expand(3, 4)):
        layout = lay_out([like], [0])
        view = layout.places[0].view(torch.zeros(layout.flats[0].count), like)
        assert view.shape == like.shape
        assert view.stride() == (like.stride() if is_dense(like) else (4, 1))


def test_torch_s_optimizers_are_split_as_their_steps_allow():
    weights = [torch.nn.Parameter(torch.zeros(2, 2))]
    optim = torch.optim

    class Own(optim.SGD):
        pass

    assert splitting_of(optim.SGD(weights)) == splitting_of(optim.AdamW(weights)) == "elements"
    assert splitting_of(optim.Adafactor(weights)) == "tensors"
    assert splitting_of(optim.LBFGS(weights)) == splitting_of(Own(weights)) == "none"


# Samples ------------------------------------------------------------------------------------------


@given(
    st.integers(1, 60), st.integers(1, 8), st.integers(0, 99), st.booleans(),
    st.sampled_from(["pad", "drop"]),
)  # fmt: skip
def test_parts_are_orthogonal_equally_long_and_the_whole(count, size, seed, shuffle, uneven):
    if uneven == "drop" and count < size:
        with pytest.raises(UserFault, match=rf"{count} samples can't be divided over {size}"):
            LearnerSamples(range(count), 0, size, seed=seed, uneven=uneven, shuffle=shuffle)
        return
    parts = [
        LearnerSamples(range(count), rank, size, seed=seed, uneven=uneven, shuffle=shuffle)
        for rank in range(size)
    ]
    for epoch in range(2):
        for part in parts:
            part.set_epoch(epoch)
        dealt = [part[i] for part in parts for i in range(len(part))]
        assert len({len(part) for part in parts}) == 1
        if uneven == "pad":
            assert set(dealt) == set(range(count)) and len(dealt) - count < size
        else:
            assert len(set(dealt)) == len(dealt) and count - len(dealt) < size


def test_parts_are_fixed_by_seed_and_epoch():
    def dealt(seed, epoch):
        part = LearnerSamples(range(100), 1, 2, seed=seed, uneven="pad", shuffle=True)
        part.set_epoch(epoch)
        return [part[i] for i in range(len(part))]

    assert dealt(1, 0) == dealt(1, 0)
    assert len({tuple(dealt(seed, epoch)) for seed in (1, 2) for epoch in (0, 1)}) == 4
    with pytest.raises(UserFault, match="uneven is 'cut'"):
        LearnerSamples(range(3), 0, 1, seed=0, uneven="cut", shuffle=False)
    with pytest.raises(UserFault, match="0 samples"):
        LearnerSamples([], 0, 1, seed=0, uneven="pad", shuffle=False)


def test_persistent_workers_follow_the_epoch():
    part = LearnerSamples(range(8), 1, 2, seed=1, uneven="pad", shuffle=True)
    alone = copy.deepcopy(part)
    loader = DataLoader(part, batch_size=4, num_workers=1, persistent_workers=True)
    seen = []
    for epoch in range(2):
        part.set_epoch(epoch)
        seen.append(next(iter(loader)).tolist())
        assert seen[-1] == list(part)
    assert seen[0] == list(alone) != seen[1]
    del loader


# A single process ---------------------------------------------------------------------------------


@pytest.fixture
def alone(monkeypatch):
    """An environment without a launcher's variables."""
    for name in ("OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS",
                 "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_STEP_NUM_TASKS", "DDL"):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # an init() that fails keeps its own
    yield monkeypatch
    ddl.shutdown()


def test_unconnected_learners_are_refused(alone):
    assert find_group() is None
    alone.setenv("SLURM_STEP_NUM_TASKS", "4")
    with pytest.raises(UserFault, match="srun has started 4 processes, but nothing connects them"):
        ddl.init()
    alone.setenv("DDL", "OFF")
    assert ddl.init().size == 1


def test_torchrun_takes_precedence_over_srun(alone):
    alone.setattr(exchange, "_mpi_group", lambda learners: pytest.fail("MPI was started"))
    alone.setenv("PMIX_RANK", "0")
    alone.setenv("TORCHELASTIC_RUN_ID", "7")
    assert find_group() is None


def test_unknown_and_unusable_exchanges_are_refused(alone):
    with pytest.raises(UserFault, match="there is no exchange 'nccl'"):
        ddl.init(exchange="nccl")
    assert not ddl.is_initialized()
    assert make_exchange(None, "mpi").name == "single"


def test_one_process_needs_no_mpi(alone):
    before = sys.excepthook
    ddl.init()
    assert (ddl.rank(), ddl.size(), ddl.mode(), ddl.exchange()) == (0, 1, "1x1", "single")
    assert sys.excepthook is not before
    model = torch.nn.Linear(2, 1)
    optimizer = ddl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(UserFault, match="a group of 1 parameters can't be added"):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
    assert optimizer.defaults["lr"] == 0.1
    assert not hasattr(optimizer, "no_such_thing")
    ddl.shutdown()
    assert sys.excepthook is before
    with pytest.raises(UserFault, match=r"ddl.init\(\) was not called"):
        ddl.rank()


def test_the_checkpoint_writer_starts_before_the_learners_join(alone, tmp_path, monkeypatch):
    events = []
    monkeypatch.setattr(WriterProcess, "_start", event(events, "writer", WriterProcess._start))
    monkeypatch.setattr(ddl.api, "find_group", event(events, "join", ddl.api.find_group))
    ddl.init()
    ddl.shutdown()
    assert events == ["join"]  # a script outside dlctl, which may need none
    monkeypatch.setenv("CHECKPOINT_DIR", str(tmp_path))
    ddl.init()
    with ddl.Checkpoints(tmp_path) as first, ddl.Checkpoints(tmp_path / "second"):
        assert events == ["join", "writer", "join", "writer"]
        assert first.save(1, {"a": 1}, wait=True)
    ddl.shutdown()
    ddl.init()
    ddl.shutdown()  # an unused writer ends, too


def event(events, name, function):
    """Return a function that notes its calls."""

    def noted(*arguments):
        events.append(name)
        return function(*arguments)

    return noted


def test_parameters_get_their_names_from_the_model(alone):
    ddl.init()
    model = torch.nn.Linear(2, 1)
    ddl.broadcast_parameters(model)
    ddl.broadcast_parameters(list(model.parameters()))  # keeps their names
    optimizer = ddl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    assert [optimizer.gradients.name(i) for i in range(2)] == ["weight", "bias"]


def test_learning_rates_are_not_scaled_after_a_scheduler_was_made(alone):
    ddl.init()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    assert ddl.scale_learning_rate(optimizer) is optimizer
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with pytest.raises(UserFault, match="a learning-rate scheduler already, which would undo"):
        ddl.scale_learning_rate(optimizer)


class Two(SingleExchange):
    """A group of two; the other learner does not exist."""

    size = 2
    ended: list[int] = []

    def abort(self, code):
        self.ended.append(code)


def test_an_uncaught_error_aborts_the_other_learners(capsys):
    before, group = sys.excepthook, Two()
    hook = AbortOnError()
    hook = AbortOnError()  # from an init() after a failed one
    try:
        sys.excepthook(UserFault, UserFault("too early", hint="later"), None)
        assert capsys.readouterr().err == "too early\n  HINT: later\n"
        hook.group = group
        sys.excepthook(ValueError, ValueError("mine"), None)
        assert group.ended == [1]
        assert "[rank 0 on " in (said := capsys.readouterr().err) and "ValueError: mine" in said
    finally:
        hook.remove()
    assert sys.excepthook is before


def test_parameters_unfrozen_after_wrapping_are_refused():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).requires_grad_(False))
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), Two(), average_every=2,
        names={id(p): name for name, p in model.named_parameters()},
    )  # fmt: skip
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    model.requires_grad_(True)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(UserFault, match=r"the parameter 1\.weight has a gradient"):
        optimizer.step()
    optimizer.close()
