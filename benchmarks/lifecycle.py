"""How fast a training goes on after a fault, on a real Slurm (`python -m benchmarks.lifecycle`).

On the test cluster, with the built-in loop, two learners and a checkpoint every ten steps.

    restart_in_allocation  a learner is killed → the next step is done, without a parameter server;
                           floor: the job's start → its first step
    restart_by_job         a job ends at its limit → the first step of the next link; the same floor
    lost_work              steps that are done again after a kill; floor: one checkpoint interval
    preflight_4_nodes      the supervisor's start → the last learner's report, on four nodes
    hang_watch_cost        what a look at eight learners costs, as a share of the time between looks
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.client import Client
from benchmarks.report import Load, Result, main
from benchmarks.slurm import slurm
from dlctl import contract
from dlctl.contract import HangPolicy, State, Status, Verdict
from learner.supervisor.oversight.hang import HangWatch

_EVERY_STEPS = 10
_RUNS, _LINKS = (5, 1, 1), (2, 1, 1)
_LOOKS = 2000, 2000, 20
_LINK_S = 120, 120, 40
"""How long a link may run, its start included."""
_TRAIN = """\
import time, torch
class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        time.sleep(0.01)
        x = torch.randn(4, generator=torch.Generator().manual_seed(index))
        return x, x.sum().view(1)
def build(arguments):
    model = torch.nn.Linear(4, 1)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
            "loss": torch.nn.functional.mse_loss, "train": Slow()}
"""
_LOOK_EVERY_S = 5.0


class Trainings(Client):
    """A user's folder, with a training that takes as long as it is asked to."""

    def submit_slow(self, *options: str, **keys: object) -> Path:
        """Submit the training; return its job directory."""
        manifest = {
            "name": "slow", "learners": 2, "memory": "768MiB", "time": "10m",
            "framework": {"name": "pytorch", "job": "train.py"},
            "training": {"epochs": 500, "batch_size": 8, "log_every_steps": 1},
            "checkpoint": {"every": f"{_EVERY_STEPS} steps"},
        } | keys  # fmt: skip
        work = self.folder / "slow"
        work.mkdir(exist_ok=True)
        (work / "train.py").write_text(_TRAIN)
        (work / "manifest.yml").write_text(json.dumps(manifest))
        before = set(self._jobs())
        self.work = work
        self.dlctl_in(work, "submit", "manifest.yml", "--site", "testbed", *options)
        (job_dir,) = set(self._jobs()) - before
        return job_dir

    def dlctl_in(self, work: Path, *arguments: str) -> None:
        """Run one dlctl command in a folder."""
        self.work = work
        self.dlctl(*arguments)

    def _jobs(self) -> list[Path]:
        folder = self.cluster.home / "dl-lifecycle/jobs"
        return list(folder.iterdir()) if folder.exists() else []

    def kill_learner(self, job_dir: Path, rank: int) -> float:
        """Kill a learner's program on its node; return when."""
        status = _status(job_dir, 1, "learner", rank)
        assert status is not None
        node = int(status.host.removeprefix("n"))
        # The watchdog has another child, which collects what was measured.
        argv = ["pkill", "-9", "-P", str(status.pid), "-f", "learner.train"]
        self.cluster.exec(*argv, node=node)
        return time.time()


def _status(job_dir: Path, attempt: int, role: str, rank: int) -> Status | None:
    return contract.read_record(Status, job_dir / contract.status_file(attempt, role, rank))


def _steps(job_dir: Path, attempt: int) -> list[tuple[int, float]]:
    """Return the steps that learner 0 has done in an attempt, with the time of each."""
    path = job_dir / contract.metrics_file(attempt, 0)
    if not path.exists():
        return []
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["step"], line["time"]) for line in lines if "loss" in line]


def _wait(ready: Callable[[], object], timeout_s: float = 180.0) -> None:
    until = time.monotonic() + timeout_s
    while not ready():
        if time.monotonic() > until:
            raise TimeoutError("the training does not go on")
        time.sleep(0.05)


def _cold_start_s(job_dir: Path) -> float:
    supervisor = _status(job_dir, 1, "supervisor", 0)
    assert supervisor is not None
    return _steps(job_dir, 1)[0][1] - supervisor.started_at


def _restart(client: Trainings) -> tuple[float, float, int]:
    """Kill a learner; return seconds to the next step, of a cold start, and the steps lost."""
    job_dir = client.submit_slow()
    _wait(lambda: len(_steps(job_dir, 1)) > 25)
    killed_at = client.kill_learner(job_dir, 1)
    _wait(lambda: _steps(job_dir, 2))
    first, done_at = _steps(job_dir, 2)[0]
    lost = _steps(job_dir, 1)[-1][0] - first + 1
    client.dlctl("cancel", job_dir.name)
    return done_at - killed_at, _cold_start_s(job_dir), lost


def _next_link(client: Trainings) -> tuple[float, float]:
    """Wait for a job's limit; return seconds from its end to the next link's first step."""
    job_dir = client.submit_slow("--partition", "short", time="20m")
    _wait(lambda: (job_dir / contract.verdict_file(1)).exists())
    verdict = contract.read_record(Verdict, job_dir / contract.verdict_file(1))
    assert verdict is not None and verdict.kind == "time_limit"
    _wait(lambda: _steps(job_dir, 2))
    client.dlctl("cancel", job_dir.name)
    return _steps(job_dir, 2)[0][1] - verdict.finished_at, _cold_start_s(job_dir)


def _preflight_s(client: Trainings) -> float:
    job_dir = client.submit_slow(nodes=4, learners=4)
    _wait(lambda: _status(job_dir, 1, "learner", 0))
    supervisor = _status(job_dir, 1, "supervisor", 0)
    assert supervisor is not None
    reports = (job_dir / contract.preflight_file(1, 0)).parent.iterdir()
    took_s = max(path.stat().st_mtime for path in reports) - supervisor.started_at
    client.dlctl("cancel", job_dir.name)
    return took_s


def _hang_watch_share(looks: int) -> float:
    """Return the share of the time that looking for a hang takes."""
    watch = HangWatch(HangPolicy(floor_s=600.0, factor=10.0))
    began = time.perf_counter()
    for n in range(looks):
        now = n * _LOOK_EVERY_S
        statuses = [
            Status("learner", rank, 1, State.TRAINING, step=10 * n, heartbeat_at=now)
            for rank in range(8)
        ]
        assert watch.look(now, statuses) is None
    return (time.perf_counter() - began) / looks / _LOOK_EVERY_S


def measure(load: Load) -> Iterator[Result]:
    """Yield each result as soon as it is known; the cheapest only without a test cluster."""
    share = _hang_watch_share(_LOOKS[load])
    yield Result("hang_watch_cost", "of a step", round(share, 7), 0.0)
    with (
        slurm("restart_", "lost_work", "preflight_") as cluster,
        tempfile.TemporaryDirectory(prefix="dlctl-bench-") as folder,
    ):
        if cluster is None:
            return
        client = Trainings(cluster, Path(folder), _LINK_S[load])
        client.use_root("dl-lifecycle")
        yield from _results(client, _RUNS[load], _LINKS[load])


def _results(client: Trainings, runs: int, links: int) -> Iterator[Result]:
    restarts = sorted(_restart(client) for _ in range(runs))
    ours_s, floor_s, _ = restarts[runs // 2]
    yield Result("restart_in_allocation", "s", round(ours_s, 2), round(floor_s, 2), runs=runs)
    lost = max(lost for _, _, lost in restarts)
    yield Result("lost_work", "steps", lost, _EVERY_STEPS, runs=runs)
    ours_s, floor_s = max(_next_link(client) for _ in range(links))
    yield Result("restart_by_job", "s", round(ours_s, 2), round(floor_s, 2), runs=links)
    preflights = sorted(_preflight_s(client) for _ in range(runs))
    yield Result("preflight_4_nodes", "s", round(preflights[runs // 2], 2), 0.0, runs=runs)


if __name__ == "__main__":
    main(measure)
