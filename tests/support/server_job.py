"""Job directories of trainings on a parameter server, and their learners without a supervisor."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from curves import measured
from repository import REPOSITORY
from zygote import ENV, TIME_LIMIT_S, Forked, Zygote, wait_for

from dlctl import contract
from learner.system.segments import remove_segment_folder, server_folder
from psrv.shard.format import PRIMARY, REPLICA, create_shard, from_snapshot
from psrv.solvers.partition import layout_of
from psrv.solvers.solver import RoundSolver

DIGITS = REPOSITORY / "examples/digits"


@dataclass
class ServedJob:
    """A job directory, its shards in shared memory, and its learners."""

    directory: Path
    plan: contract.Plan
    zygote: Zygote
    attempt: int = 1
    lives: dict[int, Forked] = field(default_factory=dict)
    """The newest process of each rank."""
    replicas: tuple[int, ...] = ()
    """Shards whose primary is another node, whose server is dead: nothing is forwarded."""
    _server: threading.Thread | None = None
    _over: bool = False

    def change(self, attempt: int = 1, **fields: Any) -> None:
        """Set the plan of an attempt."""
        self.attempt = attempt
        self.lives.clear()
        self.plan = plan = replace(self.plan, **fields)
        if plan.parameter_server is not None:  # as dlctl.plan decides it
            batch_samples = -(-plan.training.batch_size // plan.resources.learners)
            server = replace(plan.parameter_server, batch_samples=batch_samples)
            self.plan = replace(plan, parameter_server=server)
        self.file(contract.attempt_dir).mkdir(parents=True, exist_ok=True)
        link = self.directory / contract.RESULTS  # the supervisor makes it
        link.unlink(missing_ok=True)
        link.symlink_to(self.file(contract.results_dir))
        link.resolve().mkdir(exist_ok=True)
        contract.write_whole(
            self.directory / contract.plan_file(attempt), contract.to_json(self.plan)
        )

    def start(self, *ranks: int, program: str = "") -> None:
        """Start learners, all of them by default, and what serves them.

        Args:
            ranks: Which.
            program: A script of the user's own in the code directory, in the place of the loop.
        """
        if self._server is None and self.plan.parameter_server is not None:
            self._over = False
            self._server = threading.Thread(target=self._serve, daemon=True)
            self._server.start()
        for rank in ranks or range(self.plan.resources.learners):
            log = self.log(rank)
            log.parent.mkdir(parents=True, exist_ok=True)
            if rank in self.lives:  # as the supervisor does
                self.file(contract.restarted_file).touch()
            script = self.directory / contract.CODE / program
            loop = ["-m", "learner.train", str(self.directory), str(self.attempt)]
            env = {"RANK": str(rank), "LOCAL_RANK": str(rank), "DLCTL_JOB_DIR": loop[2],
                   "DLCTL_ATTEMPT": loop[3],
                   "DLCTL_PROGRESS_FILE": str(self.directory / f"progress-{rank}")}  # fmt: skip
            with log.open("a") as file:
                self.lives[rank] = self.zygote.start(
                    *([script] if program else loop), env=ENV | env, stdout=file, leaves=True
                )

    def _serve(self) -> None:
        """Make the shards once learner 0 has said what they hold, as a node's server does."""
        from learner.parameter_server.solver import find_solver

        settings = self.plan.parameter_server
        assert settings is not None
        parameters = wait_for(
            lambda: (
                self._over
                or contract.read_record(contract.Parameters, self.file(contract.parameters_file))
            )
        )
        if self._over:
            return  # learner 0 has ended before
        shards, learners = len(settings.shard_nodes), self.plan.resources.learners
        own = OWN_SOLVER.get(settings.solver)
        solver: Any = find_solver(settings, learners, own() if own else None)
        folder = server_folder(self.plan.training_id, self.attempt, self.directory)
        for shard in range(shards):
            kind = REPLICA if shard in self.replicas else PRIMARY
            layout = layout_of(parameters, shards, shard, solver, kind)
            rows = self.directory / contract.snapshot_file(self.attempt, shard)
            create_shard(
                folder / f"shard-{shard}", layout, self.attempt,
                learners=learners if isinstance(solver, RoundSolver) else 0,
                fill=from_snapshot(rows, parameters.rows if kind == PRIMARY else 1),
            )  # fmt: skip

    def file(self, name: Callable[[int], str]) -> Path:
        """Return a file of the attempt."""
        return self.directory / name(self.attempt)

    def log(self, rank: int) -> Path:
        """Return what a learner has printed."""
        return self.directory / contract.learner_log(self.attempt, rank)

    def kill(self, rank: int, number: int = signal.SIGKILL) -> None:
        """Send a learner a signal."""
        os.kill(self.lives[rank].pid, number)

    def codes(self, timeout_s: float = TIME_LIMIT_S) -> list[int]:
        """Wait for the end of all learners; return their exit codes, or minus the signals."""
        deadline = time.monotonic() + timeout_s
        ends = []
        for _, process in sorted(self.lives.items()):
            try:
                ends.append(process.wait(max(0.0, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                raise AssertionError("".join(self.say(n) for n in self.lives)) from None
        self.clean()
        return ends

    def say(self, rank: int) -> str:
        """Return all that a learner has printed."""
        return self.log(rank).read_text()

    def clean(self) -> None:
        """Remove the shards, as a server does at its end."""
        if self._server is not None:
            self._over = True
            self._server.join(1)
            self._server = None
        remove_segment_folder(self.plan.training_id, self.attempt)

    def end(self) -> None:
        """Kill what runs, and clean up."""
        for process in self.lives.values():
            process.kill()
            process.wait(TIME_LIMIT_S)
        self.clean()

    def lines(self) -> list[dict[str, Any]]:
        """Return the metrics of learner 0."""
        return measured(self.directory / contract.metrics_file(self.attempt, 0))

    def metrics(self) -> dict[str, Any]:
        """Return results/metrics.json."""
        return dict(json.loads((self.directory / contract.RESULTS / "metrics.json").read_text()))


OWN_SOLVER: dict[str, Callable[[], Any]] = {}
"""How a test's server makes the user's own solver."""


def make_served_job(
    directory: Path,
    zygote: Zygote,
    code: Path | str,
    learners: int,
    server: contract.ParameterServer,
    **fields: Any,
) -> ServedJob:
    """Make a job directory, from a folder or from the text of a train.py."""
    if isinstance(code, Path):
        shutil.copytree(code, directory / contract.CODE)
    else:
        (directory / contract.CODE).mkdir(parents=True)
        (directory / contract.CODE / "train.py").write_text(code)
    launch = contract.Launch("direct", [], step_per_learner=True)
    plan = loop_plan(directory, learners, launch, 12, parameter_server=server)
    job = ServedJob(directory, plan, zygote)
    job.change(**fields)
    return job


def loop_plan(
    directory: Path, learners: int, launch: contract.Launch, batch_size: int, **fields: Any
) -> contract.Plan:
    """Return the plan of a training with the built-in loop on this machine."""
    return contract.Plan(
        training_id=f"t-{secrets.token_hex(4)}", name="test", version="1", description="",
        site="local", root=str(directory), job_dir=str(directory), runtime_dir=str(REPOSITORY),
        code_digest="", created_at="2026-01-01T00:00:00Z", dlctl_version="0",
        resources=resources(learners), batch=contract.Batch("local"), launch=launch,
        environment=contract.Environment(sys.executable),
        framework=contract.Framework("pytorch", None, None, "train.py", {}),
        training=contract.Training(epochs=3, batch_size=batch_size, seed=5, log_every_steps=2),
        checkpoint=contract.CheckpointPolicy(), **fields,
    )  # fmt: skip


def resources(learners: int) -> contract.Resources:
    """Return the resources of learners on one node."""
    return contract.Resources(
        learners=learners, nodes=1, learners_per_node=[learners], first_ranks=[0],
        cpus_per_learner=1,
        threads_per_learner=1, gpus_per_learner=0, memory_bytes_per_learner=None,
        memory_bytes_per_node=None, gpus_per_node=0, time_s=None, halt_margin_s=60,
    )  # fmt: skip
