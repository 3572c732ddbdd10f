"""A short job that proves what only nodes can tell: it runs as every training does.

It goes through the whole way of a submission: code and runtime are sent, a batch script is
submitted, the preflight and the launcher run. Its learners then say what they see. The local record
does not know it, and its job directory goes at the end.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.doctor.chain import WARN, Chain
from dlctl.doctor.job_checks import LINKS, Job, judge_job
from dlctl.errors import DlctlError, PlanError
from dlctl.files.small_files import read_files
from dlctl.lifecycle import QueuePace, cancel_all, delete, refresh, submit
from dlctl.manifest.overrides import Overrides
from dlctl.package_data import data_path
from dlctl.record import RecordStore

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record
    from dlctl.request.request import Request

_LIMIT_S = 180.0
"""How long the job may wait and run."""
_LOOK_S = 1.0
NAME = "dlctl-doctor"


def check_by_job(
    chain: Chain, session: Session, on_line: Callable[[str], None] = lambda _: None
) -> Job | None:
    """Try by a job what nodes and launcher do; return what the job left, if there was one."""
    needs = ["log-in", "shell", "root", "python", "environment", "launcher",
             session.site.scheduler.kind, "partitions"]  # fmt: skip
    if why := chain.lacks(needs):
        chain.skip(why, *LINKS)
        return None
    jobs: list[Job] = []
    chain.ask("job", [], lambda: jobs.extend(_run(chain, session, on_line)))
    if not jobs:
        chain.skip(f"not tried: job is {chain.state('job')}", *LINKS)
        return None
    judge_job(chain, session.site, jobs[0])
    return jobs[0]


def _run(chain: Chain, session: Session, on_line: Callable[[str], None]) -> list[Job]:
    token = secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="dlctl-doctor-") as folder:
        store = RecordStore(Path(folder, "record.db"))
        request = _request(session, Path(folder, "job"), token)
        asked_at = time.time()
        record = submit(session, request, store)
        on_line(f"sent {record.training_id}, a job of some seconds; it is removed at the end")
        try:
            record = _wait(session, record, store)
            if not record.state.final:
                what = f"{record.state}: {record.reason}"
                chain.add("job", WARN, f"has not ended in {_LIMIT_S:g} s and was cancelled: {what}",
                          "try again when the site has a free node")  # fmt: skip
                return []
            return [_read(session, record, request.plan.resources.learners, asked_at)]
        finally:
            with contextlib.suppress(DlctlError):  # what is left of it, `dlctl prune` removes
                if not refresh(session, [record], store)[0].state.final:
                    cancel_all(session, [record], store)
                delete(session, record, store)


def _request(session: Session, folder: Path, token: str) -> Request:
    """Return the request for two learners, on two nodes if there are as many; else for one."""
    from dlctl.request.build import prepare

    site = session.site
    partition, account = site.default_partition, site.scheduler.account
    folder.mkdir()
    probe = (data_path("templates") / "doctor" / "probe.sh").read_text(encoding="utf-8")
    probe += session.scheduler.chaining_script(partition, account)
    (folder / "probe.sh").write_text(probe)
    (folder / "token").write_text(token)
    limits = site.partitions.get(partition or "")
    nodes = 2 if limits and (limits.nodes or 1) > 1 and (limits.max_nodes or 2) > 1 else 1
    gpus = 1 if limits and limits.gpus_per_node else 0
    shapes = [(2, nodes, gpus), (1, 1, gpus), (1, 1, 0)]
    while True:
        learners, on_nodes, each_gpus = shapes.pop(0)
        manifest = {
            "name": NAME, "learners": learners, "nodes": on_nodes, "gpus": each_gpus, "cpus": 1,
            "memory": "1GiB", "time": "5m", "env": {"DOCTOR_TOKEN": token},
            "framework": {"name": "own", "command": "sh probe.sh"},
        }  # fmt: skip
        (folder / contract.MANIFEST).write_text(json.dumps(manifest))
        try:
            request = prepare(folder / contract.MANIFEST, Overrides(), site)
        except PlanError:
            if not shapes:
                raise
            continue
        plan = replace(request.plan, lifecycle=None, notify=None, git=None)
        return replace(request, plan=plan)


def _wait(session: Session, record: Record, store: RecordStore) -> Record:
    until, pace = time.monotonic() + _LIMIT_S, QueuePace()
    while not record.state.final and time.monotonic() < until:
        time.sleep(_LOOK_S)
        record = refresh(session, [record], store, pace)[0]
    return record


def _read(session: Session, record: Record, learners: int, asked_at: float) -> Job:
    """Return what the job left, in one call."""
    here, ranks = contract.attempt_dir(1), range(learners)
    logs = [contract.learner_log(1, rank) for rank in ranks]
    reports = [contract.preflight_file(1, rank) for rank in ranks]
    own = [contract.job_output(1), f"{here}/preflight.log", f"{here}/launcher.log"]
    names = [*logs, *reports, *own, verdict := contract.verdict_file(1)]
    found = read_files(session.transport, [f"{record.job_dir}/{name}" for name in names])
    contents = {name: found[f"{record.job_dir}/{name}"] for name in names}
    texts = {name: (text or b"").decode(errors="replace") for name, text in contents.items()}
    preflights = [contract.understood(contract.Preflight, contents[name]) for name in reports]
    return Job(
        record, learners, [texts[name] for name in logs], [each for each in preflights if each],
        contract.understood(contract.Verdict, contents[verdict]), asked_at, time.time(),
        {name: texts[name] for name in own if contents[name] is not None},
    )  # fmt: skip
