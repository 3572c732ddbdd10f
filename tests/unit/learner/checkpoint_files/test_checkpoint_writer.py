"""The writer process when it dies, its learner dies or the disk is full: nothing is left behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import time

import pytest
import torch
from checkpoint_tools import LARGE, make_engine, newest_step, same, state_of
from node_job import alive
from repository import SUPPORT

from learner.checkpoint.api import Checkpoints
from learner.checkpoint.writer_process import WriterProcess
from learner.checkpoint_files import layout

LIMIT_S = 60.0


@pytest.fixture
def writer():
    writer = WriterProcess()
    yield writer
    writer.close()


def until_idle(engine):
    deadline = time.monotonic() + LIMIT_S
    while engine.busy and time.monotonic() < deadline:
        engine.poll()
        time.sleep(0.005)
    assert not engine.busy


def test_a_snapshot_is_written_beside_the_caller(tmp_path, writer):
    engine = make_engine(tmp_path, writer=writer)
    state = state_of(3)
    engine.prepare(state)
    assert engine.save(3, state)
    state["big"].fill_(-1)  # training continues
    assert engine.busy
    assert not engine.save(4, state_of(4))  # postponed
    assert engine.wait()
    assert newest_step(tmp_path) == 3
    assert engine.save(4, {**state_of(4), "more": torch.ones(3 * LARGE)})  # the memory grows
    until_idle(engine)
    assert (engine.saved_step, engine.write_s > 0) == (4, True)
    assert layout.steps_present(tmp_path) == [4, 3]
    assert not list(tmp_path.glob(".*"))


def test_a_program_with_many_open_files_waits_for_its_writer(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    writer = WriterProcess()
    try:
        engine = make_engine(tmp_path, writer=writer)
        assert engine.save(1, state_of(1))
        assert engine.wait()
        engine.close()
    finally:
        writer.close()
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert newest_step(tmp_path) == 1


def test_a_killed_writer_costs_one_checkpoint(tmp_path, writer):
    said = []
    engine = make_engine(tmp_path, said, writer=writer)
    assert engine.save(1, state_of(1))
    assert engine.wait()
    os.kill(writer.pid, signal.SIGSTOP)  # so that it dies during an order
    assert engine.save(2, state_of(2))
    os.kill(writer.pid, signal.SIGKILL)
    until_idle(engine)
    assert "no checkpoint at step 2: its writer process was killed by signal 9" in said[0]
    assert engine.save(3, state_of(3))  # written by the learner itself
    assert engine.wait()
    assert newest_step(tmp_path) == 3
    assert layout.steps_present(tmp_path) == [3, 1]
    assert not list(tmp_path.glob(".*"))


def test_without_room_in_memory_the_learner_writes_by_itself(tmp_path, writer, monkeypatch):
    said = []
    engine = make_engine(tmp_path, said, writer=writer)
    monkeypatch.setattr("learner.checkpoint.engine.memory_left", lambda: {"node": 100_000})
    for step in (1, 2):
        assert engine.save(step, state_of(step))
        assert not engine.busy
    assert newest_step(tmp_path) == 2
    assert len(said) == 1
    assert "no room in memory for a snapshot" in said[0]


def test_prepared_memory_is_enough_for_the_saves(tmp_path, writer):
    engine = make_engine(tmp_path, writer=writer)
    names = {f"a tensor with a long name {n}": torch.zeros(1) for n in range(500)}
    for _ in range(2):
        engine.prepare(names, {"random": [0.1] * 1000})
    memory = writer.memory(1)
    for step, history in ((1, []), (10**6, [0.1] * 1000)):
        state = {**names, "history": history}
        assert engine.save(step, state, own={"random": [0.1] * 1001})
        assert engine.wait()
        assert writer.memory(1) is memory
    assert engine.save(10**7, {**names, "more": torch.ones(300_000)})
    assert engine.wait()
    assert writer.memory(1).numel() > memory.numel()


def test_memory_that_a_gpu_writes_to_is_pinned_once(monkeypatch):
    class Runtime:
        def __init__(self):
            self.pinned = {}
            self.calls = 0

        def cudaHostRegister(self, address, size_bytes, flags):
            self.pinned[address] = size_bytes
            self.calls += 1

        def cudaHostUnregister(self, address):
            del self.pinned[address]

    runtime = Runtime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    writer = WriterProcess()
    writer.memory(1000)
    for size_bytes in (1000, 2000, 5_000_000, 5_000_001):
        memory = writer.memory(size_bytes, pinned=True)
        assert runtime.pinned == {memory.data_ptr(): memory.numel()}
    assert runtime.calls == 2
    writer.close()
    assert runtime.pinned == {}


PROGRAM = """
import resource, sys
from pathlib import Path
from learner.checkpoint.writer_process import WriterProcess
writer = WriterProcess()
sys.path.insert(0, {tests!r})
from checkpoint_tools import make_engine, state_of
engine = make_engine(Path({root!r}), writer=writer)
"""
ENDLESS = """
for step in range(1, 100_000):
    while not engine.save(step, state_of(step)):
        engine.poll()
    print(step, writer.pid, engine.saved_step or 0, flush=True)
"""
FULL = """
import os
for limit in (100, 3000, 200_000):  # it ends in the tree, in HDF5's structure, in a large piece
    resource.prlimit(writer.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    print(engine.save(1, state_of(1)), engine.wait())
    print(sorted(os.listdir({root!r})))
resource.prlimit(writer.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
print(engine.save(2, state_of(2)), engine.wait())
engine.close()
"""


FORKED = """
import ctypes, os, signal, time
forked = {fork}
if forked == 0:
    time.sleep(600)
print(forked, writer.pid, flush=True)
{end}
"""


def program(root, end):
    """Return a file of this program; checkpoints go to a folder beside it."""
    file = root.with_name(f"{root.name}.py")
    file.write_text((PROGRAM + end).format(root=str(root), tests=str(SUPPORT)))
    return file


def test_a_killed_learner_loses_no_complete_checkpoint(tmp_path, zygote):
    script = program(tmp_path, ENDLESS)
    with zygote.start(script, env=os.environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        seen = [process.stdout.readline().split() for _ in range(12)]
        process.send_signal(signal.SIGKILL)
        seen += [line.split() for line in process.stdout if line.endswith("\n")]
    complete, pid = int(seen[-1][2]), int(seen[-1][1])
    deadline = time.monotonic() + LIMIT_S
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(pid)  # it has completed its order and ended
    newest = newest_step(tmp_path)
    assert newest is not None
    assert newest >= complete > 0


@pytest.mark.first("os.fork()-os.kill*")
@pytest.mark.parametrize(
    ("fork", "end"),
    [
        ("os.fork()", "engine.close(); os._exit(0)"),
        ("os.fork()", "os.kill(os.getpid(), signal.SIGKILL)"),
        ("ctypes.CDLL(None).fork()", "engine.close(); os._exit(0)"),
    ],
)
def test_a_writer_ends_with_its_learner_not_with_its_forks(tmp_path, zygote, fork, end):
    script = program(tmp_path, FORKED.replace("{fork}", fork).replace("{end}", end))
    with zygote.start(script, env=os.environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        forked, writer = map(int, process.stdout.readline().split())
        try:
            process.wait(LIMIT_S)
            deadline = time.monotonic() + LIMIT_S
            while alive(writer) and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not alive(writer)
        finally:
            process.kill()
            os.kill(forked, signal.SIGKILL)


def test_a_full_disk_costs_one_checkpoint(tmp_path, zygote):
    done = zygote.run(program(tmp_path, FULL), timeout_s=LIMIT_S)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    for line in lines[0:9:3]:
        assert line.startswith("WARNING: no checkpoint at step 1: ")
        assert "File too large" in line
    assert [lines[n] for n in (1, 2, 4, 5, 7, 8)] == ["True False", "[]"] * 3
    assert lines[9:] == ["True True"]
    assert newest_step(tmp_path) == 2


def test_a_users_own_script_saves_and_loads(tmp_path):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 4}
    with Checkpoints(tmp_path / "new" / "folder", keep_every_steps=5) as checkpoints:
        assert checkpoints.load() is None
        for step in (3, 5, 6, 7, 11, 12, 14):  # the one due at 10 was postponed to 11
            assert checkpoints.save(step, state, wait=True)
        found = checkpoints.load()
    assert found is not None
    assert found[0] == 14
    assert same(found[1], state)
    assert layout.steps_present(tmp_path / "new" / "folder") == [14, 12, 11, 5]


class FirstOfTwo:
    """Rank 0, whose peer agrees with it but could not write its share."""

    rank, size = 0, 2
    problem: str | None = None

    def share(self, value):
        return value

    def collect(self, value):
        return [value, self.problem if value is None else value]


@pytest.mark.parametrize("error", [None, KeyError])
def test_a_share_that_never_comes_does_not_delay_the_end(tmp_path, monkeypatch, capsys, error):
    monkeypatch.setattr("learner.checkpoint.engine._ALONE_S", 0.1)
    learners = FirstOfTwo()

    def script():
        with Checkpoints(tmp_path, learners=learners) as checkpoints:
            assert checkpoints.save(1, state_of(1))
            if error is not None:
                raise error
            learners.problem = "no room"

    if error is None:
        script()
    else:
        with pytest.raises(error):
            script()
    words = "the share of learner 1: no room" if error is None else "the learners are gone"
    assert capsys.readouterr().out == f"WARNING: no checkpoint at step 1: {words}\n"
    assert not list(tmp_path.iterdir())
