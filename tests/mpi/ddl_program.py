"""Run by test_ddl.py under mpiexec, torchrun or alone; each check is made by every learner.

Argument: a JSON file with cases for allreduce_n.
Not a test by itself.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import ddl_odd_uses
import ddl_states
import ddl_training
import numpy as np
import torch
from torch import nn

from learner import ddl
from learner.errors import UserFault
from learner.training import torch_compiler

if "TORCHELASTIC_RUN_ID" not in os.environ:  # there all is as in a program of a user's own
    torch_compiler.import_late()


def raises(text, call, *args, **kwargs):
    try:
        call(*args, **kwargs)
    except UserFault as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no error about {text}")


def check_torchrun():
    """A group of the user's own that knows GPUs only serves, and stays; ours can begin again."""
    torch.distributed.init_process_group("cuda:gloo")
    for ours in (False, True, True):
        ddl.init(exchange="torch")
        total = ddl.allreduce_n([torch.full((3,), 1.0 + ddl.rank())])[0]
        assert total.tolist() == [sum(range(1, ddl.size() + 1))] * 3
        ddl.shutdown()
        assert torch.distributed.is_initialized() is not ours
        if not ours:
            torch.distributed.destroy_process_group()


def check_init():
    raises("was not called", ddl.rank)
    if "TORCHELASTIC_RUN_ID" in os.environ:
        check_torchrun()
    os.environ["DDL"] = "off"
    assert ddl.init(mode="7x3").size == 1
    assert (ddl.size(), ddl.exchange(), ddl.mode()) == (1, "single", "1x1")
    ddl.shutdown()
    del os.environ["DDL"]
    assert ddl.init(distributed=False).size == 1
    ddl.shutdown()
    size = int(os.environ.get("OMPI_COMM_WORLD_SIZE") or os.environ.get("WORLD_SIZE") or 1)
    nodes = os.environ.get("NODES", "a" * size)
    mode = f"{size}x1" if set(nodes) == {"a"} else "2+1"
    raises(f"mode is 7x3, but the launcher has started {mode}", ddl.init, mode="7x3")
    raises("mode is 'big'", ddl.init, mode="big")
    found = ddl.init(mode=mode)
    raises("called before", ddl.init)
    mine = nodes[ddl.rank()]
    assert (
        (found.size, found.local_size)
        == (size, nodes.count(mine))
        == (ddl.size(), ddl.local_size())
    )
    assert found.rank == ddl.rank() < size
    assert found.local_rank == ddl.local_rank() == nodes[: ddl.rank()].count(mine)
    assert sorted(ddl.api._state().exchange.collect(ddl.rank())) == list(range(size))
    assert ddl.local_gpuid() is None or torch.cuda.is_available()
    expected = "shm" if mode.endswith("x1") else "hierarchical"
    assert ddl.exchange() == ("single" if size == 1 else expected)
    ddl.barrier()


def rows_of(shape, dtype, seed):
    """Return every learner's tensor."""
    made = []
    for rank in range(ddl.size()):
        generator = torch.Generator().manual_seed(seed * 97 + rank)
        made.append((torch.randn(shape, generator=generator) * 100).to(dtype))
    return made


def exact(rows, op):
    total = torch.stack([row.double() for row in rows]).sum(0)
    return total / len(rows) if op == "avg" else total


def assert_close(result, expected, what):
    # Terms may cancel: the error is one of the terms, which are of the order of 100.
    # One rounding of a half; float32's own for the others.
    rtol = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float64: 1e-13}
    largest = max(100.0, float(expected.abs().max() if expected.numel() else 0))
    bound = rtol.get(result.dtype, 1e-6) * largest
    error = (result.double() - expected).abs()
    assert result.shape == expected.shape, what
    assert not error.numel() or float(error.max()) <= bound, (what, float(error.max()), bound)


def check_cases(cases):
    """N tensors in one shot, compared with float64; the bits of all results, as a digest."""
    digest = hashlib.sha256()
    for number, case in enumerate(cases):
        dtypes = [getattr(torch, name) for name in case["dtypes"]]
        kinds = [(s, dtypes[i % len(dtypes)]) for i, s in enumerate(case["shapes"])]
        rows = [rows_of(s, d, number * 31 + i) for i, (s, d) in enumerate(kinds)]
        mine = [row[ddl.rank()].clone() for row in rows]
        if case["transposed"]:
            mine = [tensor.t().contiguous().t() if tensor.dim() == 2 else tensor for tensor in mine]
        before = [tensor.clone() for tensor in mine]
        check = 0.02 if case["check"] else 0.0
        if case["mapping"]:  # every learner may name them in another order
            names = [f"t{i}" for i in range(len(mine))]
            order = np.random.default_rng(ddl.rank()).permutation(len(mine))
            named = {names[i]: mine[i] for i in order}
            found = ddl.allreduce_n(named, case["op"], mpi=case["mpi"], check=check)
            assert list(found) == list(named)
            results = [found[name] for name in names]
        else:
            results = ddl.allreduce_n(mine, case["op"], mpi=case["mpi"], check=check)
        for row, tensor, old, result in zip(rows, mine, before, results, strict=True):
            assert_close(result, exact(row, case["op"]), case)
            assert torch.equal(tensor, old) and result.dtype == tensor.dtype
            assert result.data_ptr() != tensor.data_ptr() or not result.numel()
        if not case["mpi"]:
            for result in results:
                digest.update(result.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        ddl.allreduce_n_(mine, case["op"])
        for row, tensor in zip(rows, mine, strict=True):
            assert_close(tensor, exact(row, case["op"]), case)
    return digest.hexdigest()


def check_empty_n():
    shapes = [(3, 5), (), (1000, 70), (0,), (7,)]
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensors = ddl.empty_n(shapes, dtype=dtype)
        for turn in range(3):
            rows = [rows_of(list(shape), dtype, turn + i) for i, shape in enumerate(shapes)]
            for tensor, row in zip(tensors, rows, strict=True):
                tensor.copy_(row[ddl.rank()])
            places = [tensor.data_ptr() for tensor in tensors]
            kept = list(ddl.api._state().reducer._kept)
            ddl.allreduce_n_(tuple(tensors), "sum")
            assert kept == list(ddl.api._state().reducer._kept)  # nothing was copied through others
            assert places == [tensor.data_ptr() for tensor in tensors]
            for tensor, row in zip(tensors, rows, strict=True):
                assert_close(tensor, exact(row, "sum"), (dtype, turn))
        ddl.allreduce_n_(tensors[::-1], "avg")  # in another order: they are equal everywhere
        for tensor, row in zip(tensors, rows, strict=True):
            assert_close(tensor, exact(row, "sum"), (dtype, "backwards"))


def check_check():
    """A wrong sum is found, and the worst tensor is named; endless values are no error."""
    raises("op is 'max'", ddl.allreduce_n, [torch.ones(1)], "max")
    tensors = {name: torch.full((50,), 1.0 + ddl.rank()) for name in ("fine", "bad", "worse")}
    ddl.allreduce_n(tensors, check=1e-6)
    reducer = ddl.api._state().reducer
    right = reducer.reduce

    def wrong(values, results, divisor):
        right(values, results, divisor)
        for name, result in zip(sorted(tensors), results, strict=True):
            result[3] *= {"fine": 1.0, "bad": 1.1, "worse": 1.5}[name]

    reducer.reduce = wrong
    raises("the tensor worse by 0.5", ddl.allreduce_n, tensors, "avg", check=1e-3)
    ddl.allreduce_n(tensors, "avg", check=0.6)
    reducer.reduce = right
    endless = torch.tensor([float("inf"), float("nan"), 1.0])
    ddl.allreduce_n([endless], check=1e-6)
    numbers = torch.complex(torch.ones(3), torch.full((3,), float(ddl.rank())))
    total = ddl.allreduce_n([numbers], check=1e-6)[0]
    imaginary = float(sum(range(ddl.size())))
    assert torch.equal(
        total, torch.complex(torch.full((3,), 1.0 * ddl.size()), torch.full((3,), imaginary))
    )


def check_broadcast():
    torch.manual_seed(ddl.rank())
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    model[1].running_mean.fill_(ddl.rank() + 1.0)
    torch.manual_seed(0)
    first = nn.Linear(3, 4)
    ddl.broadcast_parameters(model)
    assert torch.equal(model[0].weight, first.weight)
    assert torch.equal(model[1].running_mean, torch.ones(4))
    tensors = [torch.full((2, 2), float(ddl.rank())), torch.tensor(ddl.rank())]
    ddl.broadcast_parameters(tensors)
    assert not any(tensor.any() for tensor in tensors)
    named = {"a": torch.full((3,), float(ddl.rank()), dtype=torch.bfloat16)}
    ddl.broadcast_parameters(named)
    assert not named["a"].any()
    assert ddl.broadcast_object({"from": ddl.rank()}) == {"from": 0}


def check_partition():
    collect, size = ddl.api._state().exchange.collect, ddl.size()
    for count in (16, 17, 3 * size):
        samples = [f"sample {i}" for i in range(count)]
        for uneven in ("pad", "drop"):
            mine = ddl.partition(samples, seed=4, uneven=uneven)
            parts = collect(list(mine))
            assert len({len(part) for part in parts}) == 1
            everything = sum(parts, [])
            if uneven == "pad":
                assert set(everything) == set(samples) and len(everything) - count < size
            else:
                assert len(set(everything)) == len(everything) > count - size
            before = list(mine)
            mine.set_epoch(1)
            assert list(mine) != before or count == size
            mine.set_epoch(0)
            assert list(mine) == before
    in_order = ddl.partition(range(10 * size), shuffle=False)
    assert list(in_order) == list(range(ddl.rank(), 10 * size, size))


def check_scaling():
    assert ddl.scale_learning_rate(0.5) == 0.5 * ddl.size()
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    plain = torch.optim.SGD(
        [{"params": parameters[:1]}, {"params": parameters[1:], "lr": 1.0}], 0.1
    )
    assert ddl.scale_learning_rate(plain) is plain
    assert [g["lr"] for g in plain.param_groups] == [0.1 * ddl.size(), 1.0 * ddl.size()]


def place_on_nodes(nodes):
    """Let the learners believe that they are on these nodes, one letter each."""
    from learner import exchange
    from learner.exchange.mpi import MpiGroup
    from learner.exchange.topology import make_topology

    class Placed(MpiGroup):
        def __init__(self):
            super().__init__()
            self._node = self.comm.Split(ord(nodes[self.rank]), self.rank)
            self.topology = make_topology(self.rank, list(nodes))

    Placed.__name__ = "MpiGroup"
    exchange._mpi_group = lambda _: Placed()


def main():
    torch.set_num_threads(1)
    if "NODES" in os.environ:
        place_on_nodes(os.environ["NODES"])
    cases = json.loads(Path(sys.argv[1]).read_text())
    check_init()
    check_empty_n()
    check_check()
    check_broadcast()
    check_partition()
    check_scaling()
    digests = [check_cases(cases)]
    ddl_training.check_gradients_are_means()
    ddl_training.check_optimizers()
    ddl_training.check_kinds()
    ddl_training.check_bounded_rows()
    ddl_training.check_accumulation()
    ddl_training.check_dtypes_and_orders()
    ddl_training.check_lbfgs()
    ddl_states.check_state_dict()
    ddl_states.check_checkpoints(os.environ["CHECKPOINTS"])
    ddl_states.check_scaler()
    ddl_states.check_local_sgd()
    ddl_states.check_two_optimizers()
    result = ddl_training.check_global_batches()
    ddl_states.check_lists()
    ddl_states.check_faults()
    ddl_odd_uses.check_all()
    digests.append(hashlib.sha256(result.numpy().tobytes()).hexdigest())
    rank, size, name = ddl.rank(), ddl.size(), ddl.exchange()
    assert ddl.api._state().exchange.collect(digests) == [digests] * size
    ddl_states.check_closing()
    if rank == 0:
        print(f"all checks passed by {size} {name}", *digests, flush=True)


if __name__ == "__main__":
    main()
