"""Keep the files of jobs in the queue from being purged: a running job does that itself.

Sites remove files from scratch file systems that nobody has changed for some weeks, and a job may
wait for longer. Whenever dlctl asks about such a job, it gives the files the time of now.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Sequence
from datetime import datetime

from dlctl import contract
from dlctl.contract import State
from dlctl.errors import TransportError
from dlctl.files.upload import read_files
from dlctl.lifecycle.session import Session
from dlctl.record import Record

_RENEW_AFTER_S = 86400.0
_RENEW = f"""\
now=$(date +%Y%m%d%H%M.%S) # no file may become newer than the index beside it
renew() {{ # plan, folders: if the plan is more than a day old
    [ -n "$(find "$1" -mtime +0 2>/dev/null)" ] || return 0
    find "$@" -path '*/attempts/*/{contract.RESULTS}' -prune -o -type f \\
        -exec touch -c -t "$now" {{}} + 2>/dev/null
}}
"""


def keep_files(session: Session, records: Sequence[Record]) -> None:
    """Renew the times of what jobs need that have waited for more than a day."""
    plans = {
        f"{record.job_dir}/{contract.plan_file(record.attempt)}": record.job_dir
        for record in records
        if record.state is State.PENDING and _age_s(record) > _RENEW_AFTER_S
    }
    if not plans:
        return
    with contextlib.suppress(TransportError):
        found = read_files(session.transport, list(plans))
        lines = [_line(path, job_dir, found[path]) for path, job_dir in plans.items()]
        session.transport.run(_RENEW + "\n".join(lines), timeout_s=90.0)


def _line(path: str, job_dir: str, content: bytes | None) -> str:
    folders = [job_dir]
    with contextlib.suppress(contract.ContractError):
        plan = contract.from_json(contract.Plan, content or b"")
        folders += [plan.runtime_dir, f"{plan.root}/store/{plan.code_digest}"]
        folders += [f"{plan.root}/secrets/{plan.training_id}"]
        if made := plan.made_environment:
            folders.append(made.python.rpartition("/bin/")[0])
    return "renew " + " ".join(shlex.quote(word) for word in (path, *folders))


def _age_s(record: Record) -> float:
    try:
        return time.time() - datetime.fromisoformat(record.created_at).timestamp()
    except ValueError:
        return 0.0
