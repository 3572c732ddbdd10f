"""Submit the trainings of one command, and take up those of one that was broken off."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.cli import output
from dlctl.errors import DlctlError

if TYPE_CHECKING:
    from dlctl.files.upload import Tree
    from dlctl.lifecycle import Session
    from dlctl.lifecycle.many import Answer
    from dlctl.record import Record, RecordStore
    from dlctl.record_batches import Batch
    from dlctl.request.build import Folder
    from dlctl.request.request import Request
    from dlctl.request.variants import Variant
    from dlctl.sites.model import Site


@dataclass
class Sent:
    """What became of the trainings of one command."""

    store: RecordStore
    batch: Batch
    answers: dict[int, Answer] = field(default_factory=dict)
    """By the position of those that were asked for now."""

    @property
    def is_batch(self) -> bool:
        """Return whether the command was about several."""
        return len(self.batch.records) > 1

    @property
    def before(self) -> int:
        """Return how many an earlier command had submitted."""
        return len(self.batch.records) - len(self.answers)

    @property
    def tag(self) -> str:
        """Return the word that all of them have, unless the user has taken it from them."""
        return next(iter(self.batch.records[0].tags[-1:]), "")

    def rows(self) -> list[tuple[Record, DlctlError | None]]:
        """Return each training, and why it has no job."""
        known = {record.training_id: record for record in self.store.all()}
        found: list[tuple[Record, DlctlError | None]] = []
        for number, before in enumerate(self.batch.records):
            answer = self.answers.get(number)
            if answer is None or isinstance(answer, DlctlError):
                found.append((known.get(before.training_id, before), answer))
            else:  # which may not have been written down
                found.append((answer, None))
        return found

    def one(self) -> Record:
        """Return the only training.

        Raises:
            DlctlError: why it has no job.
        """
        ((record, error),) = self.rows()
        if error:
            raise error
        return record

    def finish(self) -> None:
        """Forget the command: the user has seen what became of its trainings."""
        from dlctl.record_batches import finish

        finish(self.store, self.batch)


def submit_variants(
    session: Session, store: RecordStore, wanted: Sequence[Variant], model: str | None,
    tags: list[str], *, list_files: bool = False,
) -> Sent:  # fmt: skip
    """Submit each variant once; what the same command has submitted before stays as it is.

    Args:
        list_files: Whether to name each file that is sent, and each that is not.

    Raises:
        ManifestError, PlanError, SiteError, TransferError, TransportError
    """
    from dlctl.cli.sending.telling import tell_files
    from dlctl.record_batches import broken_off

    folders = {} if model else _read(wanted, session.site)
    for folder in folders.values() if list_files else ():
        tell_files(folder.code)
    command = _digest(session.site.name, wanted, folders, model, tags)
    if batch := broken_off(store, command):
        output.note(_taken_up(batch))
        return _go_on(session, store, batch, wanted, folders, model)
    return _begin(session, store, command, wanted, folders, model, tags)


def _read(wanted: Sequence[Variant], site: Site) -> dict[Path, Folder]:
    """Return what the folder of each manifest holds."""
    from dlctl.request.build import open_folder

    paths = dict.fromkeys(variant.manifest for variant in wanted)
    return {path: open_folder(path, site) for path in paths if path.is_file()}


def _digest(
    site: str, wanted: Sequence[Variant], folders: dict[Path, Folder], model: str | None,
    tags: list[str],
) -> str:  # fmt: skip
    """Return what tells a command from every other one: all that it would send, and where to."""
    contents = {str(path): [hashlib.sha256(path.read_bytes()).hexdigest(), folder.code.digest]
                for path, folder in folders.items()}  # fmt: skip
    each = [[str(one.manifest.resolve()), dataclasses.asdict(one.overrides)] for one in wanted]
    whole = json.dumps([site, model, tags, contents, each, str(Path.cwd())], sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()


def _taken_up(batch: Batch) -> str:
    from dlctl.lifecycle.many import to_ask

    count, left = len(batch.records), len(to_ask(batch.records))
    name = batch.records[0].training_id if count == 1 else f"{count} trainings"
    done = f"; {count - left} of them were submitted" if 0 < left < count else ""
    return f"takes up the submission of {name}, which was broken off{done}"


def _begin(
    session: Session, store: RecordStore, command: str, wanted: Sequence[Variant],
    folders: dict[Path, Folder], model: str | None, tags: list[str],
) -> Sent:  # fmt: skip
    from dlctl.lifecycle.submit import lacking, new_record
    from dlctl.record_batches import begin

    if len(wanted) > 1:
        tags = [*tags, f"batch-{secrets.token_hex(3)}"]
    requests = [_request(session, variant, folders, model, tags) for variant in wanted]
    _look_over(session, requests, wanted, model)
    trees = lacking(session, requests)  # if the site can't be reached, no record is kept
    records = [new_record(request, variant.label)
               for request, variant in zip(requests, wanted, strict=True)]  # fmt: skip
    sent = Sent(store, begin(store, command, records))
    _send(session, sent, dict(enumerate(requests)), trees)
    return sent


def _go_on(
    session: Session, store: RecordStore, batch: Batch, wanted: Sequence[Variant],
    folders: dict[Path, Folder], model: str | None,
) -> Sent:  # fmt: skip
    from dlctl.lifecycle.many import not_arrived, to_ask
    from dlctl.lifecycle.submit import lacking

    sent = Sent(store, batch)
    requests = {
        number: _request(session, wanted[number], folders, model, batch.records[number].tags,
                         batch.records[number].training_id)
        for number in to_ask(batch.records)
    }  # fmt: skip
    if not requests:
        return sent
    _look_over(session, list(requests.values()), wanted, model)
    absent = not_arrived(session, list(requests.values()))
    _send(session, sent, requests, lacking(session, absent) if absent else [])
    return sent


def _request(
    session: Session, variant: Variant, folders: dict[Path, Folder], model: str | None,
    tags: Sequence[str], training_id: str | None = None,
) -> Request:  # fmt: skip
    from dlctl.models.use import build

    return build(session, variant.manifest, variant.overrides, model, training_id, tags,
                 folders.get(variant.manifest))  # fmt: skip


def _look_over(
    session: Session, requests: Sequence[Request], wanted: Sequence[Variant], model: str | None
) -> None:
    """Say what the user should know, and make and check what the site needs: each thing once."""
    from dlctl.cli.sending.telling import tell
    from dlctl.data.checks import refuse_wrong_stores
    from dlctl.lifecycle import make_environment

    told = set[str]()
    for request, variant in zip(requests, wanted, strict=False):
        plan = request.plan
        about = repr((plan.not_in_this_version, plan.lifecycle, plan.batch.partition, plan.weights,
                      plan.framework.command, plan.resources))  # fmt: skip
        if about not in told:
            told.add(about)
            tell(plan, variant.manifest, model)
    for request in _distinct(requests, lambda r: repr(r.plan.data_stores)):
        refuse_wrong_stores(request, output.note)
    for request in _distinct(requests, lambda r: repr(r.plan.made_environment)):
        make_environment(session, request.plan, output.note)


def _distinct(requests: Sequence[Request], key: Callable[[Request], str]) -> list[Request]:
    return list({key(request): request for request in reversed(requests)}.values())


def _send(session: Session, sent: Sent, requests: dict[int, Request], trees: list[Tree]) -> None:
    """Bring the files, then ask the scheduler."""
    from dlctl.lifecycle.many import ask_all, bring_all
    from dlctl.lifecycle.staging.stores import bring
    from dlctl.lifecycle.submit import noted
    from dlctl.request.left_out import not_sent, summary

    numbers = list(requests)
    known = [sent.batch.records[number] for number in numbers]
    with output.progress("sending") as on_progress:
        bring_all(session, trees, list(requests.values()), known, sent.store, on_progress)
    for code in {request.code.digest: request.code for request in requests.values()}.values():
        if not code.at_site and (code.files or not_sent(code)):
            output.note(f"sent {summary(code)}")
    with noted(known, sent.store):
        for request in requests.values():
            bring(session, request.plan, output.note)
    with output.counting("submitting", len(numbers)) as count:
        answers = ask_all(session, list(requests.values()), known, sent.store,
                          lambda _number, _answer: count())  # fmt: skip
    sent.answers = dict(zip(numbers, answers, strict=True))
