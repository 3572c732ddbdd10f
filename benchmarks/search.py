"""The search: how fast, how soon, and whether anything is lost (`python -m benchmarks.search`).

Brokers and workers are real processes with mutual TLS, and a broker acknowledges nothing that is
not synced to its log. The peers have neither TLS nor such a log. Each candidate has its own
processes for each run, which end after it. A fifth of the tasks runs beforehand to warm up.

search_tasks_1        empty tasks a second: one broker, two workers of eight slots that answer at
                      once. Dask's workers have eight threads, Ray's are actors with eight threads,
                      Parsl's are processes. Optuna asks and tells with its journal, and runs
                      nothing.
search_tasks_process  the same with a process for each of the 16 slots. HyperQueue starts a program
                      for each task, as it can't keep one.
search_latency        one task there and back, by a slot's process; the floor is a bare gRPC call.
search_share          two brokers, all tasks at one, both workers at the other; the floor is
                      search_tasks_1, in turn.
search_recover_…      from the death of a broker, of a worker, and from the silence of one, to the
                      start of the next task, or of its task.
search_lost           acknowledged tasks that lack their one result after 100 kills.
                      `optuna_4_kills`: told trials that its journal lacks (after a kill the next
                      process waits up to 30 s for a lock); `dask_1_kill`: of 20 tasks that its
                      scheduler had.
search_scale          1,000 simulated workers with a connection each; the floor is 10 of them.
search_nas            16 workers with trials that sleep for a second; the floor is 16 a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks import search_faults, search_scale
from benchmarks.report import Load, Result, Rounds, main, medians, rounds
from benchmarks.search_peers import PEERS, peer
from benchmarks.search_rig import bare_latency_s, latency_s, rate, searching, start_workers

_OURS, _FLOOR = "\0ours", "\0floor"
_ROUNDS = rounds(3, 0)
_SHARE = 1, 10, 100
"""By how much the numbers of tasks are divided."""
_KILLS, _KILLS_OF_OPTUNA = (100, 10, 1), (4, 1, 1)
Candidates = dict[str, Callable[[], float]]


def measure(load: Load) -> Iterator[Result]:
    """Yield each result as soon as it is known."""
    peers = PEERS.install(load)
    some, times = _SHARE[load], _ROUNDS[load]
    at_once = 30_000 // some
    tasks: Candidates = {_OURS: lambda: tasks_1(at_once)}
    processes: Candidates = {_OURS: lambda: tasks_process(5000 // some)}
    latencies: Candidates = {
        _OURS: lambda: latency(300 // some),
        _FLOOR: lambda: bare(1000 // some),
    }
    if peers:
        tasks |= {name: peer(name, "tasks", 10_000 // some) for name in ("dask", "ray", "parsl")}
        tasks["optuna"] = peer("optuna", "tasks", 1000 // some)
        processes |= {
            name: peer(name, "processes", 5000 // some)
            for name in ("dask", "ray", "parsl", "hyperqueue")
        }
        latencies |= {name: peer(name, "latency", 300 // some) for name in ("dask", "ray", "parsl")}
    yield _compare("search_tasks_1", "tasks/s", tasks, times)
    yield _compare("search_tasks_process", "tasks/s", processes, times)
    yield _compare("search_latency", "s", latencies, times)
    shared: Candidates = {_OURS: lambda: share(at_once), _FLOOR: lambda: tasks_1(at_once)}
    yield _compare("search_share", "tasks/s", shared, times)
    yield from search_faults.recover(load)
    lost = search_faults.lost(_KILLS[load])
    if peers:
        kills = _KILLS_OF_OPTUNA[load]
        optuna, dask = peer("optuna", "lost", kills), peer("dask", "lost", 20)
        beside = {f"optuna_{kills}_kills": optuna(), "dask_1_kill": dask()}
        lost = replace(lost, peers=beside)
    yield lost
    yield from search_scale.scale(load)
    yield search_scale.busy(load)


def _compare(what: str, unit: str, candidates: Candidates, times: Rounds) -> Result:
    rounded = {name: round(value, 5) for name, value in medians(candidates, times).items()}
    return Result(what, unit, rounded.pop(_OURS), rounded.pop(_FLOOR, 0.0), rounded, times.runs)


def tasks_1(count: int) -> float:
    """Return our tasks a second where slots answer at once."""
    with searching() as search:
        search.broker()
        start_workers(search, 2, 8, "--echo")
        return rate(search, count)


def tasks_process(count: int) -> float:
    """Return our tasks a second with a process for each slot."""
    with searching() as search:
        search.broker()
        start_workers(search, 2, 8)
        return rate(search, count)


def latency(count: int) -> float:
    """Return our median time for one task."""
    with searching() as search:
        search.broker()
        start_workers(search, 1, 1)
        return latency_s(search, count)


def bare(count: int) -> float:
    """Return the median time of a bare call."""
    with searching() as search:
        return bare_latency_s(search, count)


def share(count: int) -> float:
    """Return our tasks a second where the broker that has the tasks has no workers."""
    with searching() as search:
        search.nameserver()
        search.broker("b2")
        start_workers(search, 2, 8, "--echo")
        search.broker("b1")
        return rate(search, count, "b1")


if __name__ == "__main__":
    main(measure)
