"""Read a site's inventory, and rebuild the local record from it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from dlctl import contract
from dlctl.contract import Verdict, search
from dlctl.contract.measured.past import Past
from dlctl.errors import RemoteCommandError
from dlctl.lifecycle.observe import paths_of_newest
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.watch import judge, parse_queue, queue_script, with_made
from dlctl.record import ADOPTED, Record, RecordStore
from dlctl.record.used import keep
from dlctl.script_templates import render_script
from dlctl.tell import SILENT, Tell
from dlctl.transport.base import Completed
from dlctl.upkeep.usage import REFERENCES, Room, TrainingRoom, Usage, parse_usage

_TIMEOUT_S = 600.0
"""A shared file system takes its time to add up a million files."""
_NO_ROOT = 71
_ANY = 900_001
"""Stands for the number of an attempt, which the script finds out."""


@dataclass(frozen=True)
class Damaged:
    """A job directory that tells of no training."""

    training_id: str
    why: str


@dataclass(frozen=True)
class Inventory:
    """The content of a site's root."""

    site: str
    root: str
    now: float
    """The site's clock, Unix seconds."""
    records: list[Record]
    damaged: list[Damaged]
    queue_problem: str
    """Why the scheduler did not answer; empty if it did."""
    usage: Usage = field(default_factory=Usage)
    """The use of room, if it was asked for."""
    pasts: list[Past] = field(default_factory=list)
    """The use of each attempt, from its verdict."""


def take_inventory(session: Session, *, usage: bool = False) -> Inventory:
    """Return what a site's root holds; nothing, if there is no root yet.

    Args:
        usage: Also add up what takes room, which takes longer.

    Raises:
        TransportError
    """
    mark = f"#{secrets.token_hex(12)}#"
    script = render_script(
        "login/inventory.sh.j2", queue=queue_script(session), root=session.site.root, mark=mark,
        names=_names(), no_root=_NO_ROOT, usage=usage, references=REFERENCES,
    )  # fmt: skip
    end = session.transport.run(script, timeout_s=_TIMEOUT_S)
    if end.exit_code not in (0, _NO_ROOT):
        raise RemoteCommandError(
            f"{session.transport.name}: {session.site.root} can't be read (exit code "
            f"{end.exit_code}): {end.last_error_line}",
            hint=f"dlctl doctor {session.site.name}",
        )
    return _parsed(session, end, mark)


def _names() -> list[str]:
    """Return the files that are read of each training, for a shell that knows `n` and `m`."""
    blank = Record("", "", "", "", "", "", attempt=_ANY)
    numbers = ((str(_ANY), "$n"), (str(_ANY + 1), "$m"))
    names = [path.removeprefix("/") for path in paths_of_newest(blank)]
    for number, variable in numbers:
        names = [name.replace(number, variable) for name in names]
    return names


def _parsed(session: Session, end: Completed, mark: str) -> Inventory:
    frames = end.stdout.decode("utf-8", "surrogateescape").split(mark)
    code = int(frames[1]) if len(frames) > 1 and frames[1].isdecimal() else 1
    queue = parse_queue(session, code, frames[0], end.error_text)
    rest = frames[2:]
    usage = ""
    if "usage" in rest:
        usage = rest[rest.index("usage") + 1]
        rest = rest[: rest.index("usage")]
    known, damaged, files = [], list[Damaged](), dict[str, bytes | None]()
    for head, contents in _jobs(rest):
        training_id, attempt, file = head.split(" ", 2)
        found = _record(session, training_id, int(attempt), file.strip(), contents[0])
        if isinstance(found, Damaged):
            damaged.append(found)
            continue
        known.append(found)
        files |= dict(zip(paths_of_newest(found), map(_bytes, contents), strict=True))
    records = judge(session, known, files, queue)
    records.sort(key=lambda record: record.created_at)
    paths = [f"{each.job_dir}/{contract.verdict_file(each.attempt)}" for each in records]
    verdicts = [contract.understood(Verdict, files.get(path)) for path in paths]
    pasts = [past for verdict in verdicts if verdict for past in verdict.pasts]
    return Inventory(session.site.name, session.site.root, queue[0], records, damaged, queue[2],
                     parse_usage(usage), pasts)  # fmt: skip


def _jobs(frames: list[str]) -> Iterator[tuple[str, list[str]]]:
    size = 1 + len(_names())
    for at in range(0, len(frames) - size + 1, size):
        yield frames[at], frames[at + 1 : at + size]


def _bytes(content: str) -> bytes | None:
    return content[1:].encode("utf-8", "surrogateescape") if content[:1] == "y" else None


def _record(
    session: Session, training_id: str, attempt: int, search_file: str, plan_text: str
) -> Record | Damaged:
    """Return what a plan tells of a training."""
    content = _bytes(plan_text)
    if content is None:
        return Damaged(training_id, f"{contract.PLAN} is missing or can't be read")
    try:
        plan = contract.from_json(contract.Plan, content)
    except contract.ContractError as error:
        return Damaged(training_id, f"{contract.PLAN} can't be understood: {error}")
    if plan.training_id != training_id:
        return Damaged(training_id, f"{contract.PLAN} is that of {plan.training_id}")
    is_search = plan.framework.name == search.FRAMEWORK
    return Record(
        training_id=training_id, name=plan.name, site=session.site.name,
        folder="" if plan.rehearsal is not None else ADOPTED,
        job_dir=f"{session.site.root}/jobs/{training_id}", created_at=plan.created_at,
        manifest_path=search_file if is_search else "", attempt=attempt, model=plan.model,
        is_search=is_search, tags=plan.tags, varied=plan.varied,
    )  # fmt: skip


@dataclass(frozen=True)
class Adopted:
    """The outcome of adopting a site's trainings."""

    site: str
    added: list[Record]
    known: list[str]
    """The trainings that the local record had already; it stays as it was."""
    damaged: list[Damaged]


def room(session: Session, tell: Tell) -> Room:
    """Return what takes room at a site, and how much is left."""
    found = take_inventory(session, usage=True)
    for each in found.damaged:
        tell.warn(f"{found.root}/jobs/{each.training_id}: {each.why}")
    usage, states = found.usage, {r.training_id: str(r.state) for r in found.records}
    trainings = [
        TrainingRoom(name, states.get(name), usage.of(name), usage.of(name, "checkpoints"),
                     usage.of(name, "results"))
        for name in dict.fromkeys([*states, *usage.trainings])
    ]  # fmt: skip
    return Room(
        found.site, found.root, usage.total_bytes, usage.by_kind(), trainings, usage.unused(),
        usage.disk_bytes, usage.free_bytes, usage.inodes, usage.free_inodes, usage.quota,
    )  # fmt: skip


def adopt(session: Session, store: RecordStore, tell: Tell = SILENT) -> Adopted:
    """Add the trainings of a site that the local record lacks.

    A record that is damaged is kept beside a new one.

    Raises:
        RecordError: the record can't be read or written.
        TransportError
    """
    if aside := store.repair():
        tell.warn(
            f"the local record was damaged; it is kept as {aside.kept_as}, and {aside.saved} of "
            "its trainings were saved: adopt each of your sites"
        )
    found = take_inventory(session)
    for each in found.damaged:
        tell.warn(f"left out {found.root}/jobs/{each.training_id}: {each.why}")
    added = store.add_missing(found.records)
    keep(store, found.pasts)
    looked = [with_made(session, record) for record in added]  # a killed node has left no verdict
    store.update(*(new for old, new in zip(added, looked, strict=True) if new != old))
    names = {record.training_id for record in looked}
    known = [each.training_id for each in found.records if each.training_id not in names]
    return Adopted(session.site.name, looked, known, found.damaged)
