"""One peer of the search's benchmark, by its own Python: search_peer_program.py PEER KIND COUNT.

Prints one number: empty tasks a second, for `latency` the median time of one task in seconds, for
`lost` how many acknowledged results are gone after its scheduler was killed. `tasks`: two workers
with eight threads each, or the nearest that the peer has; `processes`: 16 worker processes.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WORKERS, SLOTS = 2, 8
Run = Callable[[int], object]
"""Runs so many empty tasks, and returns when it has all results."""


def same(value: Any) -> Any:
    """Return the value: the empty task."""
    return value


def slow(value: Any) -> Any:
    """Keep a worker busy, so that each of the others gets a task, too."""
    import time  # Parsl sends a function without its module

    time.sleep(0.2)
    return value


@contextlib.contextmanager
def dask(kind: str) -> Iterator[Run]:
    """dask.distributed; each worker is a process."""
    from distributed import Client, LocalCluster

    workers, threads = {"tasks": (WORKERS, SLOTS), "latency": (1, 1)}.get(kind, (16, 1))
    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=threads, processes=True, dashboard_address=None,
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):  # fmt: skip
        client.gather(client.map(slow, range(4 * workers * threads), pure=False))
        if kind == "latency":
            yield lambda n: [client.submit(same, i, pure=False).result() for i in range(n)]
        else:
            yield lambda n: client.gather(client.map(same, range(n), pure=False))


@contextlib.contextmanager
def ray(kind: str) -> Iterator[Run]:
    """Ray: `tasks` are two actors with eight threads each, else each task has a process."""
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_AUTH_MODE="disabled")  # on 127.0.0.1
    import ray as package

    cpus = 1 if kind == "latency" else WORKERS * SLOTS
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:  # a short path
        package.init(
            num_cpus=cpus, include_dashboard=False,
            log_to_driver=False, logging_level=logging.ERROR, _temp_dir=folder,
            _node_ip_address="127.0.0.1", object_store_memory=256 << 20,
        )  # fmt: skip
        try:
            if kind == "tasks":
                actor = package.remote(_Actor).options(max_concurrency=SLOTS)
                actors = [actor.remote() for _ in range(WORKERS)]
                yield lambda n: package.get([actors[i % WORKERS].same.remote(i) for i in range(n)])
                return
            empty, busy = package.remote(same), package.remote(slow)
            package.get([busy.remote(i) for i in range(4 * cpus)])
            if kind == "latency":
                yield lambda n: [package.get(empty.remote(i)) for i in range(n)]
            else:
                yield lambda n: package.get([empty.remote(i) for i in range(n)])
        finally:
            package.shutdown()


class _Actor:
    def same(self, value: Any) -> Any:
        """Return the value."""
        return value


@contextlib.contextmanager
def parsl(kind: str) -> Iterator[Run]:
    """Parsl's HighThroughputExecutor; its workers are processes."""
    import parsl as package
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # its programs
    blocks, workers = (1, 1) if kind == "latency" else (WORKERS, SLOTS)
    with tempfile.TemporaryDirectory(prefix="parsl-") as folder:
        executor = HighThroughputExecutor(
            address="127.0.0.1", max_workers_per_node=workers, cores_per_worker=1e-3,
            provider=LocalProvider(init_blocks=blocks, max_blocks=blocks),
        )  # fmt: skip
        config = Config(executors=[executor], run_dir=folder, usage_tracking=0)
        with package.load(config):
            empty, busy = package.python_app(same), package.python_app(slow)
            _ = [future.result() for future in [busy(i) for i in range(4 * blocks * workers)]]
            if kind == "latency":
                yield lambda n: [empty(i).result() for i in range(n)]
            else:
                yield lambda n: [future.result() for future in [empty(i) for i in range(n)]]


@contextlib.contextmanager
def hyperqueue(kind: str) -> Iterator[Run]:
    """HyperQueue: each task is a program, which it starts."""
    from hyperqueue import Job
    from hyperqueue.cluster import LocalCluster, WorkerConfig

    with tempfile.TemporaryDirectory(prefix="hq-") as folder, LocalCluster(folder) as cluster:
        for _ in range(WORKERS):
            cluster.start_worker(WorkerConfig(cores=1 if kind == "latency" else SLOTS))
        client = cluster.client()

        def run(count: int) -> None:
            job = Job(max_fails=0)
            for _ in range(count):
                job.program(["true"], stdout=None, stderr=None)
            client.wait_for_jobs([client.submit(job)])

        yield run if kind != "latency" else lambda n: [run(1) for _ in range(n)]


@contextlib.contextmanager
def optuna(kind: str) -> Iterator[Run]:
    """Optuna's ask and tell with its journal, in one process: nobody runs anything."""
    del kind
    with tempfile.TemporaryDirectory(prefix="optuna-") as folder:
        study = _study(f"{folder}/journal.log")

        def run(count: int) -> None:
            for _ in range(count):
                study.tell(study.ask(), 0.0)

        yield run


def _study(path: str) -> Any:
    import optuna as package
    from optuna.storages.journal import JournalFileBackend

    package.logging.set_verbosity(package.logging.ERROR)
    storage = package.storages.JournalStorage(JournalFileBackend(path))
    return package.create_study(
        storage=storage, study_name="s", load_if_exists=True,
        sampler=package.samplers.RandomSampler(seed=0),
    )  # fmt: skip


def optuna_lost(kills: int) -> int:
    """Return how many told trials are gone after a process that tells was killed so often."""
    with tempfile.TemporaryDirectory(prefix="optuna-") as folder:
        path, numbers = f"{folder}/journal.log", set()
        for _ in range(kills):
            argv = [sys.executable, __file__, "tell", path, "0"]
            with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
                assert process.stdout is not None
                numbers.add(int(process.stdout.readline()))
                process.kill()
                numbers.update(int(line) for line in process.stdout if line.endswith("\n"))
        kept = {trial.number for trial in _study(path).trials if trial.state.name == "COMPLETE"}
        return len(numbers - kept)


def tell(path: str) -> None:
    """Tell trials, and print the number of each, until killed."""
    study = _study(path)
    while True:
        trial = study.ask()
        study.tell(trial, 0.0)
        sys.stdout.write(f"{trial.number}\n")
        sys.stdout.flush()


def dask_lost(count: int) -> int:
    """Return how many results of tasks that the scheduler had are gone once it was killed."""
    from distributed import Client

    with tempfile.TemporaryDirectory(prefix="dask-") as folder:
        file = Path(folder, "scheduler.json")
        argv = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1",
                "--port", "0", "--no-dashboard", "--scheduler-file", str(file)]  # fmt: skip
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        scheduler = subprocess.Popen(argv, **quiet)  # type: ignore[call-overload]
        while not file.exists():
            time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        worker = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "4"],
            **quiet,
        )  # type: ignore[call-overload]
        try:
            with Client(address, timeout="20s", heartbeat_interval=500) as client:
                futures = client.map(slow, range(count), pure=False)
                futures[0].result()  # the scheduler has all of them
                scheduler.send_signal(signal.SIGKILL)
                scheduler.wait()
                end = time.monotonic() + 10
                while time.monotonic() < end and any(f.status == "pending" for f in futures):
                    time.sleep(0.1)
                return sum(future.status != "finished" for future in futures)
        finally:
            for process in (scheduler, worker):
                process.kill()
                process.wait()


def main() -> None:
    """Measure one peer."""
    peer, kind, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if peer == "tell":
        tell(kind)
    if kind == "lost":
        print(globals()[f"{peer}_lost"](count))
        return
    with globals()[peer](kind) as run:
        if kind == "latency":
            run(5)
            times_s = []
            for _ in range(count):
                began = time.perf_counter()
                run(1)
                times_s.append(time.perf_counter() - began)
            print(statistics.median(times_s))
            return
        run(count // 5)
        began = time.perf_counter()
        run(count)
        print(count / (time.perf_counter() - began))


if __name__ == "__main__":
    main()
