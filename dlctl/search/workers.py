"""Add workers to a search, and end them: groups of jobs, each group submitted once."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import search as names
from dlctl.errors import RemoteCommandError
from dlctl.lifecycle.observe import parse_answer
from dlctl.plan.render import sbatch_options
from dlctl.request.build import prepare_made
from dlctl.script_templates import render_script
from dlctl.search.load import Loaded, worker_manifest

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record

_TIMEOUT_S = 120.0
_BEGUN_ALREADY = 73


@dataclass(frozen=True)
class Group:
    """Workers that were submitted together."""

    name: str
    job_ids: list[str]
    """Empty: the scheduler's answer was lost."""


def add_workers(session: Session, loaded: Loaded, record: Record, count: int) -> Group:
    """Submit a further group of workers.

    Raises:
        SchedulerError: the scheduler refuses them.
        SubmitUnknown: its answer was lost; the workers may run.
        RemoteCommandError: the job directory can't be written.
    """
    groups = worker_groups(session, record)
    number = 1 + max((int(group.name[1:]) for group in groups), default=0)
    group = f"w{number}"
    plan = prepare_made(worker_manifest(loaded), loaded.path, session.site, record.training_id).plan
    spec = loaded.spec
    script = render_script(
        "search/worker.sbatch.j2", plan=plan, options=sbatch_options(plan), search=names,
        slots=spec.workers.slots, idle_s=spec.workers.idle_s,
    )  # fmt: skip
    here = f"{names.WORKERS}/{group}"
    asked = render_script(
        "search/workers.sh.j2", plan=plan, here=here, script=script.rstrip("\n"),
        token=contract.token(record.training_id, group),
        submit_command=session.scheduler.workers_script(plan, group, count, here),
    )  # fmt: skip
    end = session.transport.run(asked, timeout_s=_TIMEOUT_S)
    answer = parse_answer(end.stdout or None)
    if end.exit_code != 0 or answer is None:
        raise RemoteCommandError(
            f"{session.transport.name}: the workers of {record.training_id} can't be submitted "
            f"(exit code {end.exit_code}): {end.stderr.decode(errors='replace').strip()[-300:]}",
            hint=f"check the space there, then: dlctl search scale {record.training_id}",
        )
    session.scheduler.parse_submit(*answer)
    return Group(group, ids_of(answer[1]))


def worker_groups(session: Session, record: Record) -> list[Group]:
    """Return the groups of workers that were ever submitted."""
    folder = f"{record.job_dir}/{names.WORKERS}"
    script = f"""\
cd {shlex.quote(folder)} 2>/dev/null || exit 0
for group in w*; do
    [ -d "$group" ] || continue
    printf '%s\\037' "$group"
    cat "$group/submit.end" 2>/dev/null
    printf '\\036'
done
:"""
    found = []
    for row in session.transport.run(script).text.split("\036"):
        name, _, content = row.partition("\037")
        answer = parse_answer(content.encode() or None)
        if name.strip():
            found.append(Group(name.strip(), ids_of(answer[1]) if answer else []))
    return found


def end_workers(session: Session, record: Record) -> list[str]:
    """Cancel all workers' jobs of a search; return their ids."""
    ended = []
    for group in worker_groups(session, record):
        for job_id in group.job_ids:
            script = session.scheduler.cancel_script(job_id, session.site.root)
            end = session.transport.run(script)
            session.scheduler.parse_cancel(
                end.exit_code, end.text, end.stderr.decode(errors="replace")
            )
            ended.append(job_id)
    return ended


def ids_of(answer: str) -> list[str]:
    """Return the job ids in a scheduler's answer: a line each."""
    return re.findall(r"^([0-9]+)(?:;\S*)?$", answer, re.MULTILINE)
