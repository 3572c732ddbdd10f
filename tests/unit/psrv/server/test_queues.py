"""The device on which a primary merges totals."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from psrv.server.queues import Chooser, OnDevice, Queues
from psrv.solvers.solver import Downpour, DownpourAdagrad, ElasticAveraging, Solver


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def learned(clock: Clock, cpu_s: float, gpu_s: float, size: int = 10) -> Chooser:
    """Return a chooser that has seen each queue do one piece of work of a size."""
    chooser = Chooser(["cpu", "cuda:0"], clock)
    for name, took_s in (("cpu", cpu_s), ("cuda:0", gpu_s)):
        assert chooser.choose(size) == name  # each is tried
        clock.now += took_s
        chooser.done(name, size, took_s)
    clock.now += 10
    return chooser


def test_the_faster_idle_queue_is_chosen():
    clock = Clock()
    assert learned(clock, 0.5, 1.5).choose(10) == "cpu"
    assert learned(clock, 1.5, 0.5).choose(10) == "cuda:0"


def test_work_goes_to_the_slower_queue_when_the_faster_one_is_overloaded():
    clock = Clock()
    chooser = learned(clock, 3.0, 1.0)
    # 1, 2 and 3 s on the GPU; after that, 3 s on the idle CPU are no worse than 4 s on the GPU.
    assert [chooser.choose(10) for _ in range(5)] == ["cuda:0"] * 2 + ["cpu", "cuda:0", "cuda:0"]
    clock.now += 1.5  # 1.5 s of the given work is done
    assert chooser.choose(10) == "cuda:0"  # 5 s, against 6 s on the CPU
    assert chooser.choose(10) == "cpu"
    clock.now += 100
    assert chooser.choose(10) == "cuda:0"


def test_slow_work_raises_the_estimated_wait_of_later_work():
    clock = Clock()
    chooser = learned(clock, 3.0, 1.0)
    assert chooser.choose(10) == "cuda:0"
    chooser.done("cuda:0", 10, 5.0)
    assert chooser.choose(10) == "cpu"
    clock.now += 100  # now 1.8 s on the GPU: a new time counts for a fifth
    chosen = [chooser.choose(10) for _ in range(5)]
    assert chosen == ["cuda:0", "cpu", "cuda:0", "cuda:0", "cpu"]


def test_times_are_learned_for_each_size():
    clock = Clock()
    chooser = learned(clock, 0.5, 1.5, size=10)
    clock.now += 10
    assert [chooser.choose(1_000_000) for _ in range(2)] == ["cpu", "cpu"]  # no times are known yet
    chooser.done("cpu", 1_000_000, 9.0)
    assert chooser.choose(1_000_000) == "cuda:0"
    assert chooser.choose(10) == "cuda:0"  # the CPU has much work left


@given(st.lists(st.floats(0.001, 1.0), min_size=2, max_size=4), st.integers(1, 60))
def test_all_queues_end_at_about_the_same_time(takes_s, pieces):
    """Until work is done, the ends of all queues differ by at most one piece."""
    clock = Clock()
    names = [f"queue {n}" for n in range(len(takes_s))]
    chooser = Chooser(names, clock)
    for name, took_s in zip(names, takes_s, strict=True):
        chooser.done(name, 1, took_s)
    clock.now += 1000
    load = dict.fromkeys(names, 0.0)
    for _ in range(pieces):
        name = chooser.choose(1)
        load[name] += takes_s[names.index(name)]
    busiest = max(names, key=lambda name: load[name])
    for name, took_s in zip(names, takes_s, strict=True):
        if name != busiest:
            assert load[busiest] <= load[name] + took_s + 1e-9


@pytest.mark.parametrize("solver", [Downpour(0.5), DownpourAdagrad(), ElasticAveraging(0.3)])
def test_a_solver_gives_the_same_result_on_another_device(solver):
    rows = [torch.rand(50, dtype=torch.float64) for _ in range(1 + solver.rows)]
    there, total = [row.clone() for row in rows], torch.rand(50, dtype=torch.float64)
    given_total = total.clone()
    OnDevice(solver, torch.device("cpu")).merge(there, total, 3, 0.1)
    assert torch.equal(total, given_total)
    solver.merge(rows, total, 3, 0.1)
    assert all(torch.equal(a, b) for a, b in zip(rows, there, strict=True))


def test_a_failing_device_is_replaced_by_the_cpu():
    class Full(Downpour):
        def merge(self, *_: object) -> None:
            raise RuntimeError("CUDA out of memory.\nTry something")

    lines: list[str] = []
    queues = Queues(Downpour(), [torch.device("meta")], lines.append)
    queues._others["meta"]._solver = Full()
    weights = torch.zeros(8)
    for _ in range(4):
        queues.run(8, lambda chosen: chosen.merge([weights], torch.ones(8), 1, 1.0))
    assert weights.eq(-4).all()
    assert lines == ["meta is no longer used: CUDA out of memory."]


def test_merges_on_the_cpu_do_not_wait_for_one_another():
    queues = Queues(Downpour(), [torch.device("meta")])
    queues.chooser.done("meta", 8, 1000.0)
    together = threading.Barrier(2)
    threads = [
        threading.Thread(target=queues.run, args=(8, lambda _: together.wait(60))) for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not together.broken


def test_queues_do_all_work_and_skip_the_choice_without_gpus():
    solver = Downpour()
    alone = Queues(solver)
    assert alone.run(3, lambda chosen: chosen) is solver
    both = Queues(solver, [torch.device("meta")])
    used = {type(both.run(3, lambda chosen: chosen)).__name__ for _ in range(4)}
    assert used == {"Downpour", "OnDevice"}
    weights = torch.zeros(8)
    pair = Queues(solver, [torch.device("cpu", 0)])
    lock = threading.Lock()

    def push() -> None:
        def work(chosen: Solver) -> None:
            with lock:
                chosen.merge([weights], torch.ones(8), 1, 1.0)

        for _ in range(50):
            pair.run(8, work)

    threads = [threading.Thread(target=push) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert weights.eq(-200).all()
