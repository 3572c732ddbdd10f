"""The workers of a search: pools of jobs, filled by the hub, or by the next command that looks."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import State
from dlctl.contract import search as names
from dlctl.errors import RecordError, RemoteCommandError
from dlctl.files.small_files import read_files
from dlctl.lifecycle import read_plan
from dlctl.lifecycle.observe import parse_answer
from dlctl.plan.render import header
from dlctl.request.build import prepare_made
from dlctl.script_templates import render_script
from dlctl.search.load import Loaded, worker_manifest

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record

_TIMEOUT_S = 120.0
_BEGUN_ALREADY = 73
_CHANGED = 75
_TRIES = 10
_LETTERS = "wxyzabcdefghijklmnopqrstuv"


@dataclass(frozen=True)
class Worker:
    """A worker's job in the queue."""

    group: str
    job_id: str
    word: str
    """The scheduler's word for its state."""

    @property
    def pool(self) -> str:
        """Return the name of its pool."""
        return self.group[0]


def set_pool(
    session: Session, loaded: Loaded, record: Record, least: int, most: int,
    partition: str | None = None,
) -> names.Pool:  # fmt: skip
    """Set how many workers a partition may have; submit or end jobs to match.

    While the search is halted none is submitted: `dlctl resume` does that. If another
    client changes the pools meanwhile, its change is kept, and this one made again.

    Raises:
        SchedulerError: the scheduler refuses them.
        SubmitUnknown: its answer was lost; the workers may run.
        RemoteCommandError: the job directory can't be written.
        RecordError: there are too many pools, or the search has completed.
    """
    if record.state is State.COMPLETED:
        raise RecordError(
            f"{record.training_id} is COMPLETED: it needs no workers",
            hint=f"dlctl show {record.training_id}",
        )
    for _ in range(_TRIES):
        text = _read_pools(session, record)
        pools = _changed(record, _pools_in(text), names.Pool("", least, most, partition))
        if _install(session, loaded, record, pools, text):
            break
    else:
        raise RecordError(
            f"{record.training_id}: others change the number of its workers all the time",
            hint=f"dlctl search scale {record.training_id} --workers {least}..{most}",
        )
    pool = pools[-1]
    groups = next_groups(session, record)
    alive = [each for each in living_workers(session, record) if each.pool == pool.name]
    if len(alive) < least and not record.state.final:
        submit_workers(session, record, pool, groups[pool.name], least - len(alive))
    for worker in _newest(alive)[: max(0, len(alive) - most)]:
        _cancel(session, worker.job_id)
    return pool


def _changed(record: Record, known: list[names.Pool], wanted: names.Pool) -> list[names.Pool]:
    """Return the pools with the wanted one at the end, in the place of that on its partition."""
    same = [pool for pool in known if pool.partition == wanted.partition]
    free = [letter for letter in _LETTERS if letter not in {pool.name for pool in known}]
    if not same and not free:
        raise RecordError(f"{record.training_id}: workers on {len(_LETTERS)} partitions at most")
    name = same[0].name if same else free[0]
    return [*(pool for pool in known if pool.name != name), replace(wanted, name=name)]


def _install(
    session: Session, loaded: Loaded, record: Record, pools: list[names.Pool], before: str
) -> bool:
    """Write the files of the last pool, and all pools.

    Return False if somebody has changed the file of the pools since it was read.
    """
    pool = pools[-1]
    if pool.partition is not None:
        workers = loaded.file.workers.model_copy(update={"partition": pool.partition})
        loaded = replace(loaded, file=loaded.file.model_copy(update={"workers": workers}))
    plan = prepare_made(worker_manifest(loaded), loaded.path, session.site, record.training_id).plan
    # The hub's version, which is there; this dlctl may be another one.
    plan = replace(plan, runtime_dir=read_plan(session, record).runtime_dir)
    spec = loaded.spec
    script = f"{names.WORKERS}/{pool.name}/worker.sbatch"
    scheduler = session.scheduler
    files = {
        script: render_script(
            "search/worker.sbatch.j2", plan=plan, header=header(plan), search=names,
            slots=spec.workers.slots, idle_s=spec.workers.idle_s,
            per_broker=spec.workers.per_broker,
        ),
        pool.submit_file: render_script(
            "search/submit.sh.j2", plan=plan, search=names, begun=_BEGUN_ALREADY,
            token=contract.token(record.training_id, ""),
            submit_command=scheduler.workers_script(plan, script, names.WORKERS),
        ),
        names.ALIVE: scheduler.workers_alive_script(plan),
        names.POOLS: contract.to_json(names.Pools(pools)),
    }  # fmt: skip
    install = render_script(
        "search/install.sh.j2", plan=plan, search=names, pool=pool, files=files, changed=_CHANGED,
        before=before,
    )  # fmt: skip
    end = session.transport.run(install, timeout_s=_TIMEOUT_S)
    if end.exit_code not in (0, _CHANGED):
        raise _failed(session, record, "the files of its workers can't be written", end.stderr)
    return end.exit_code == 0


def next_groups(session: Session, record: Record) -> dict[str, str]:
    """Return the name of each pool's next group of workers.

    Read it before the workers are counted: if the hub, or another client, submits some after that,
    it takes this name, which nobody takes twice.
    """
    end = session.transport.run(f"ls {shlex.quote(f'{record.job_dir}/{names.WORKERS}')}")
    newest = dict.fromkeys(_LETTERS, 0)
    for pool, number in re.findall(r"^([a-z])([0-9]+)$", end.text, re.MULTILINE):
        newest[pool] = max(newest[pool], int(number))
    return {pool: f"{pool}{number + 1}" for pool, number in newest.items()}


def submit_workers(
    session: Session, record: Record, pool: names.Pool, group: str, count: int
) -> list[str]:
    """Submit further workers of a pool; return the ids of their jobs, none if the hub was first.

    Args:
        group: Their name, of `next_groups`.

    Raises:
        SchedulerError: the scheduler refuses them.
        SubmitUnknown: its answer was lost; the workers may run.
        RemoteCommandError: the job directory can't be written.
    """
    end = session.transport.run(
        f"cd {shlex.quote(record.job_dir)} || exit 71\n"
        f"exec /bin/sh {pool.submit_file} {group} {count}\n",
        timeout_s=_TIMEOUT_S,
    )
    if end.exit_code == _BEGUN_ALREADY:
        return []
    answer = parse_answer(end.stdout or None)
    if end.exit_code != 0 or answer is None:
        raise _failed(session, record, "its workers can't be submitted", end.stderr)
    session.scheduler.parse_submit(*answer)
    return ids_of(answer[1])


def ids_of(answer: str) -> list[str]:
    """Return the job ids in a scheduler's answer: a line each."""
    return re.findall(r"^([0-9]+)(?:;\S*)?$", answer, re.MULTILINE)


def read_pools(session: Session, record: Record) -> list[names.Pool]:
    """Return the pools of a search."""
    return _pools_in(_read_pools(session, record))


def _read_pools(session: Session, record: Record) -> str:
    path = f"{record.job_dir}/{names.POOLS}"
    return (read_files(session.transport, [path])[path] or b"").decode()


def _pools_in(text: str) -> list[names.Pool]:
    return contract.from_json(names.Pools, text).pools if text else []


def living_workers(session: Session, record: Record) -> list[Worker]:
    """Return the workers in the queue, those that wait and those that run.

    Raises:
        SchedulerUnavailable: the scheduler does not answer.
    """
    script = f"[ ! -e {shlex.quote(f'{record.job_dir}/{names.ALIVE}')} ] || exec /bin/sh "
    end = session.transport.run(
        script + shlex.quote(f"{record.job_dir}/{names.ALIVE}"), timeout_s=_TIMEOUT_S
    )
    if end.exit_code != 0:
        raise _failed(session, record, "its workers can't be counted", end.stderr)
    rows = (line.split() for line in end.lines)
    return [Worker(*row) for row in rows if len(row) == 3]  # noqa: PLR2004


def top_up(session: Session, record: Record, wanted: dict[str, int]) -> int:
    """Submit the workers that the hub wants, and may not submit itself; return how many."""
    groups = next_groups(session, record)
    alive = Counter(worker.pool for worker in living_workers(session, record))
    added = 0
    for pool in read_pools(session, record):
        if (short := wanted.get(pool.name, 0) - alive[pool.name]) > 0:
            added += short * bool(submit_workers(session, record, pool, groups[pool.name], short))
    return added


def end_workers(session: Session, record: Record) -> list[str]:
    """Cancel all workers' jobs of a search; return their ids."""
    ids = {worker.job_id.split("_")[0] for worker in living_workers(session, record)}
    for job_id in sorted(ids):
        _cancel(session, job_id)
    return sorted(ids)


def _cancel(session: Session, job_id: str) -> None:
    end = session.transport.run(session.scheduler.cancel_script(job_id, session.site.root))
    session.scheduler.parse_cancel(end.exit_code, end.text, end.stderr.decode(errors="replace"))


def _newest(workers: list[Worker]) -> list[Worker]:
    """Return the workers in the order in which they may go: those that wait, then the newest."""

    def place(worker: Worker) -> tuple[bool, int, int]:
        first, _, element = worker.job_id.partition("_")
        return worker.word == "PENDING", int(first), int(element or 0)

    return sorted(workers, key=place, reverse=True)


def _failed(session: Session, record: Record, what: str, stderr: bytes) -> RemoteCommandError:
    problem = stderr.decode(errors="replace").strip()[-300:] or "it printed nothing"
    return RemoteCommandError(
        f"{session.transport.name}: {record.training_id}: {what}: {problem}",
        hint=f"check the space there, then: dlctl search scale {record.training_id} --workers N",
    )
