"""A rank of the tests of checkpoints: load what is there, compare it, save the next step."""

import os
import signal
import sys
from pathlib import Path

from learner.checkpoint.writer_process import WriterProcess

WRITER = WriterProcess()

import torch  # noqa: E402
from mpi4py import MPI  # noqa: E402

from learner.checkpoint.engine import CheckpointEngine  # noqa: E402
from learner.checkpoint.load import filled  # noqa: E402
from learner.checkpoint.state_tree import Pieces  # noqa: E402

ELEMENTS = 50_001


class World:
    """All ranks."""

    rank, size = MPI.COMM_WORLD.Get_rank(), MPI.COMM_WORLD.Get_size()

    def share(self, value):
        return MPI.COMM_WORLD.bcast(value)

    def collect(self, value):
        return MPI.COMM_WORLD.allgather(value)


def whole(step):
    return torch.arange(ELEMENTS, dtype=torch.float32) + step


def state(step):
    rank, size = World.rank, World.size
    first, last = (ELEMENTS * n // size for n in (rank, rank + 1))
    mine = whole(2 * step)[first:last].clone()
    small = [torch.tensor(float(n)) for n in range(30)]
    moments = Pieces((ELEMENTS,), torch.float32, [(first, mine)])
    return {"step": step, "full": whole(step), "half": whole(step).bfloat16(),
            "moments": moments, "small": small}  # fmt: skip


def check(loaded):
    tree = loaded.tree()
    step, rank, size = tree["step"], World.rank, World.size
    first, last = (ELEMENTS * n // size for n in (rank, rank + 1))
    mine = torch.empty(last - first)
    tree["moments"].read_into(mine, first)
    assert torch.equal(mine, whole(2 * step)[first:last])
    everything = filled(tree)
    assert torch.equal(everything["full"], whole(step))
    assert torch.equal(everything["half"], whole(step).bfloat16())
    assert torch.equal(everything["moments"], whole(2 * step))
    assert [float(x) for x in everything["small"]] == list(range(30))
    if loaded.marker.learners == size:
        assert loaded.own(rank) == {"rank": rank}
    return step, loaded.marker.learners


def say(text):
    if World.rank == 0:
        print(text, flush=True)


engine = CheckpointEngine(Path(sys.argv[1]), World(), say, writer=WRITER)
found = engine.load(check)
step = found[0] + 1 if found else 1
say(f"loaded {found}")
engine.prepare(state(step), {"rank": World.rank})
if sys.argv[2] == "kill" and World.rank == World.size - 1:  # the writer, while it has work
    os.kill(WRITER.pid, signal.SIGSTOP)
    signal.signal(signal.SIGALRM, lambda *_: os.kill(WRITER.pid, signal.SIGKILL))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
assert engine.save(step, state(step), own={"rank": World.rank})
say(f"step {step} complete {engine.wait()} saved {engine.saved_step}")
if sys.argv[2] == "die":  # while the next one is being written
    assert engine.save(step + 1, state(step + 1), own={"rank": World.rank})
    MPI.COMM_WORLD.Barrier()
    if World.rank == World.size - 1:
        os.kill(os.getpid(), signal.SIGKILL)
engine.close()
MPI.COMM_WORLD.Barrier()
