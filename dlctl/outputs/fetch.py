"""Fetch what a training produced: the model, the logs, the metrics → ./results/<training id>/.

Every file is verified: results against the index that the node wrote, the rest against hashes
computed on the site.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dlctl import contract
from dlctl.contract import ResultsIndex, State
from dlctl.contract.metrics import EventKind, Source
from dlctl.errors import ResultsError, TransferError
from dlctl.files.download import download
from dlctl.files.listing import SiteFile, listing_script, parsed_listing
from dlctl.files.made import look_at_made
from dlctl.files.small_files import read_appended, read_files, read_files_after
from dlctl.files.target import temporary_folder
from dlctl.lifecycle.end import unless_deleted
from dlctl.logs.reader import LogPiece, LogReader, read
from dlctl.outputs.checkpoints import whole_checkpoints
from dlctl.outputs.fetched_folder import FetchedFolder
from dlctl.outputs.metrics.files import FILES, read_metrics
from dlctl.record import GONE, Record
from dlctl.transport import Transport

Progress = Callable[[int, int], None]
RESULTS, CHECKPOINTS, LOGS, METRICS, CODE = "results", "checkpoints", "logs", "metrics", "code"
OUTPUT, _BESIDE = "output", "_beside"
PARTS = (RESULTS, OUTPUT, CHECKPOINTS, LOGS, METRICS, CODE)
"""The parts of a training that can be fetched. The results bring the logs and the metrics along,
and, if RESULT_DIR is empty, the output in the program's own folder."""
_METRICS_FILE = "metrics.jsonl"
_TRIES = 3


@dataclass(frozen=True)
class Fetched:
    """The outcome of a fetch."""

    training_id: str
    folder: str
    files: list[str]
    """Relative to `folder`."""
    complete: bool
    """False while the training runs: more may follow."""
    left_out: list[str] = field(default_factory=list)
    """What `results/` on the site holds but can't be fetched: pipes, links that point outside,
    files that can't be read."""
    parts: list[str] = field(default_factory=list)
    """Those of `PARTS` that were looked for, without those of which some content was left out."""
    kept: list[str] = field(default_factory=list)
    """The new names of files and folders here that did not come from an earlier fetch, or were
    edited since, and were in the way."""


@dataclass(frozen=True)
class Wanted:
    """The choice of what to fetch of a training.

    Args:
        parts: Some of `PARTS`.
        include: Patterns of the shell, one of which a file's path in the folder here must fit, its
            name, or a folder above it; none: all files.
        on_progress: Called with the bytes that are here, and all.
        on_wait: Called if another fetch into the folder has to end first.
    """

    parts: Sequence[str] = (RESULTS,)
    include: Sequence[str] = ()
    on_progress: Progress | None = None
    on_wait: Callable[[], None] = lambda: None

    def fits(self, path: str) -> bool:
        """Return whether a file is wanted, by its path in the folder here."""
        above = itertools.accumulate(path.split("/"), "{}/{}".format)
        names = [path.rpartition("/")[2], *above]
        return not self.include or any(
            fnmatch.fnmatchcase(name, pattern.strip("/"))
            for name in names for pattern in self.include
        )  # fmt: skip


def fetch(
    transport: Transport, record: Record, destination: Path, wanted: Wanted | None = None
) -> Fetched:
    """Fetch parts of a training; files that are here are not sent again.

    Raises:
        ResultsError: the training has none of the parts yet, or the folder holds something else.
        RecordError: it was deleted meanwhile.
        TransferError
    """
    wanted = wanted or Wanted()
    absent = [each for each in (destination, destination.parent) if not each.exists()]
    with unless_deleted(transport, record):
        run = _Fetch(transport, record, destination, wanted)
        files = run.bring()
        made = len(files) - len(run.standard_files)
        if not made and not (run.standard_files and wanted.include):
            if not files and destination in absent:
                shutil.rmtree(destination, ignore_errors=True)
                with contextlib.suppress(OSError):
                    absent[-1].rmdir()  # `results`, where this was the first
            raise _nothing(record, wanted)
    return Fetched(
        record.training_id, str(destination), files,
        complete=record.state is State.COMPLETED if RESULTS in wanted.parts
        else record.state.final,
        left_out=run.left_out, parts=list(run.parts), kept=run.folder.kept,
    )  # fmt: skip


def _nothing(record: Record, wanted: Wanted) -> ResultsError:
    """Return the error that says why nothing came, and what to do."""
    training_id = record.training_id
    has, hint = f"no {wanted.parts[0]}", f"dlctl show {training_id}"
    if record.is_gone:
        has, hint = f"nothing to fetch: {GONE}", f"`dlctl delete {training_id}` forgets it"
    elif wanted.include:
        has = f"no such file: {', '.join(wanted.include)}"
        hint = "--include takes a path, a name or a folder, such as '*.pt' or logs"
    elif RESULTS in wanted.parts:
        has, hint = "produced nothing to fetch yet", f"dlctl logs --follow {training_id}"
    elif CHECKPOINTS in wanted.parts:
        has = "no checkpoint"
        hint = "the built-in loop writes one as checkpoint.every in the manifest says"
        if not record.epochs:
            hint = "its program has written none into CHECKPOINT_DIR so far"
    elif METRICS in wanted.parts:
        has = "no metrics of its learners"
        hint = f"`dlctl metrics {training_id}` tells what its nodes measured"
    return ResultsError(f"{training_id} ({record.state}) has {has}", hint=hint)


class _Fetch:
    """One fetch of parts of one training."""

    def __init__(
        self, transport: Transport, record: Record, destination: Path, wanted: Wanted
    ) -> None:
        self._transport, self._record, self._wanted = transport, record, wanted
        self.left_out: list[str] = []
        self._not_brought = 0
        self.standard_files: list[str] = []
        """The fetched files that every training has."""
        self._base, self._names = "", dict[str, str]()
        self._contents = dict[str, bytes | None]()
        self._metrics: dict[str, bytes] | None = None
        """The files of metrics, once a look at the logs has brought them."""
        self._listing: list[SiteFile] = []
        """All files in the folder with results."""
        self._has_index = False
        self.parts = dict.fromkeys(wanted.parts)
        if RESULTS in wanted.parts:
            index = self._look()
            self._has_index = index is not None
            self._names = {f.path: f.sha256 for f in index.files} if index else {}
            self.left_out += index.left_out if index else []
        if not self._has_index:
            self._choose_without_index()
        if RESULTS in self.parts:
            more = () if self._names else (OUTPUT,)
            self.parts |= dict.fromkeys((*more, LOGS, METRICS))
        self.folder = FetchedFolder(destination, record, self._names, wanted.on_wait)

    def _choose_without_index(self) -> None:
        """Take the plain files; nothing tells what the program is still writing."""
        for file in self._listing:
            if not self._wanted.fits(file.path):
                continue
            if file.kind == "d":
                self._leave_out(f"{file.path}/", "can't be read")
            elif file.kind != "f":
                self._leave_out(file.path, "is no regular file")
            elif file.path.rpartition("/")[2].startswith("."):
                self._leave_out(file.path, "is hidden, and may not be finished")
            else:
                self._names[file.path] = ""

    def _leave_out(self, path: str, why: str) -> None:
        self.left_out.append(f"{path} ({why})")
        self._not_brought += not why.startswith("is ")  # a link or a pipe has no content to lose

    def _look(self) -> ResultsIndex | None:
        """List the results; read their index, and the manifest and the plan of each attempt."""
        record = self._record
        numbers = range(record.attempt, 0, -1)
        names = [file(n) for n in numbers for file in (contract.manifest_file, contract.plan_file)]
        names += [contract.RESULTS_INDEX, *map(contract.results_index, numbers)]
        paths = [f"{record.job_dir}/{name}" for name in names]
        script = f"""\
found=$({_results_script(record.job_dir)}
)
printf '%s\\0' "$found"
cd -- {shlex.quote(record.job_dir)}/"$found"{contract.RESULTS} 2>/dev/null || exit 0
{listing_script([""], missing_ok=True)}"""
        printed, self._contents = read_files_after(self._transport, script, paths)
        folder, _, listing = printed.partition(b"\0")
        self._base = f"{record.job_dir}/{folder.decode()}{contract.RESULTS}"
        index = results_index(self._transport, record, self._base, self._contents)
        sums = {file.path: file.sha256 for file in index.files} if index else {}
        self._listing = list(parsed_listing(self._transport.name, listing, sums))
        return index

    def bring(self) -> list[str]:
        """Bring all parts; return the paths of the files, relative to the folder."""
        bring = {RESULTS: self._bring_results, OUTPUT: self._bring_output,
                 CHECKPOINTS: self._bring_checkpoints, LOGS: self._write_logs,
                 METRICS: self._write_metrics, CODE: self._bring_code}  # fmt: skip
        with self.folder:
            if RESULTS in self.parts:
                self.standard_files = self._write_newest()
            files, lost = [*self.standard_files], 0
            for part in [*self.parts]:
                files += bring[part]()
                if self._not_brought > lost:
                    del self.parts[part]
                lost = self._not_brought
            return files

    def _download(
        self, base: str, paths: Sequence[str] | Mapping[str, str],
        local: Callable[[str], str | None] = str, *, listed: list[SiteFile] | None = None,
    ) -> list[str]:  # fmt: skip
        def local_name(path: str) -> str | None:
            name = local(path)
            return name if name is not None and self._wanted.fits(name) else None

        brought = download(
            self._transport, base, paths, self.folder, self._wanted.on_progress,
            local_name=local_name, on_left_out=self._leave_out, listed=listed,
        )  # fmt: skip
        return [str(path.relative_to(self.folder.path)) for path in brought]

    def _bring_results(self) -> list[str]:
        names = {path: digest for path, digest in self._names.items() if self._wanted.fits(path)}
        there = {file.path: file for file in self._listing}
        listed = [there[path] for path in names if path in there]
        if not self._has_index:
            return self._download(self._base, list(names), listed=listed)
        if len(listed) < len(names):  # some are missing, or links lead to them
            return self._download(self._base, names)
        return self._download(self._base, names, listed=listed)

    def _bring_output(self) -> list[str]:
        """Bring what the program has written into its own folder, or beside it."""

        def local(path: str) -> str:
            folder, _, inside = path.partition("/")
            name = inside if folder == contract.CODE else f"{_BESIDE}/{path}"
            return self.folder.own(f"{OUTPUT}/{name}")

        _, files = look_at_made(self._transport, self._record.job_dir)
        return self._download(
            self._record.job_dir, [file.path for file in files], local, listed=files
        )

    def _bring_checkpoints(self) -> list[str]:
        """Bring every whole checkpoint; of a training that runs the newest one."""
        transport, record = self._transport, self._record
        folder = f"{record.job_dir}/{contract.CHECKPOINTS}"
        for left in range(_TRIES, 0, -1):
            names = whole_checkpoints(transport, record.job_dir, newest=not record.state.final)
            if not names:
                return []
            try:
                return self._download(
                    folder, names, lambda path: self.folder.own(f"{contract.CHECKPOINTS}/{path}")
                )
            except TransferError:
                now = whole_checkpoints(transport, record.job_dir, newest=not record.state.final)
                if left == 1 or now == names:  # else it was removed, as a newer one is there
                    raise
        return []

    def _bring_code(self) -> list[str]:
        index = f"{self._record.job_dir}/{contract.CODE}/{contract.SENT_INDEX}"
        content = read_files(self._transport, [index])[index]
        if content is None:
            return []
        sent = {file.path for file in contract.parse_index(content)}
        return self._download(
            self._record.job_dir, [contract.CODE],
            lambda path: self.folder.own(path) if path.partition("/")[2] in sent else None,
        )  # fmt: skip

    def _write_newest(self) -> list[str]:
        """Write the manifest and the plan of the newest attempt."""
        record = self._record
        names = {contract.MANIFEST: contract.manifest_file, contract.PLAN: contract.plan_file}
        names = {name: file for name, file in names.items() if self._wanted.fits(name)}
        for n in range(record.attempt, 0, -1):
            found = {name: self._contents[f"{record.job_dir}/{file(n)}"]
                     for name, file in names.items()}  # fmt: skip
            whole = {name: content for name, content in found.items() if content is not None}
            if len(whole) == len(names):
                return [self.folder.write(name, content) for name, content in whole.items()]
        return []  # the site has lost them: what else is there is worth the more

    def _write_logs(self) -> list[str]:
        """Write the logs as they are now: they may grow while they are read."""
        written: dict[str, None] = {}
        with temporary_folder(self.folder.path) as temporary:
            for piece in self._log_pieces():
                name = f"attempt-{piece.attempt}-{piece.source}.log"
                with (Path(temporary) / name).open("ab") as file:
                    file.write(piece.content)
                written[name] = None
            names = {name: self.folder.own(f"logs/{name}") for name in written}
            names = {name: path for name, path in names.items() if self._wanted.fits(path)}
            for name, path in names.items():
                self.folder.place(Path(temporary) / name, self.folder.path / path, grows=True)
        return list(names.values())

    def _log_pieces(self) -> Iterator[LogPiece]:
        """Yield the logs; the first look also brings the metrics, which are fetched next."""
        reader = LogReader(self._record.job_dir, by_time=False)
        if RESULTS in self._wanted.parts:
            wanted = reader.wanted(once=True)
            found = read_appended(
                self._transport, reader.job_dir, [*wanted.globs, f"{contract.METRICS}/{FILES}"],
                wanted.offsets, wanted.limit_bytes,
            )  # fmt: skip
            begin = f"{contract.METRICS}/"
            news = {n.removeprefix(begin): found.pop(n) for n in [*found] if n.startswith(begin)}
            if all(len(content) < wanted.limit_bytes for content in news.values()):
                self._metrics = news  # nothing is left to read
            yield from reader.take(wanted, found)
            if not reader.advanced:
                return
        yield from read(self._transport, reader)

    def _write_metrics(self) -> list[str]:
        """Write what the training measured, without what the collector measured of the nodes."""
        if not self._wanted.fits(_METRICS_FILE):
            return []
        entries = read_metrics(
            self._transport, self._record,
            lambda origin: origin.learner == 0 and origin.source is not Source.NODE,
            self._metrics,
        )  # fmt: skip
        lines = (entry.line for entry in entries)
        content = b"".join(line.encode() for line in lines
                           if not line.event or line.kind in ("", EventKind.ORDER))  # fmt: skip
        if not content:
            return []
        return [self.folder.write(_METRICS_FILE, content, grows=True)]


def results_folder(transport: Transport, record: Record) -> str:
    """Return the folder at the site with the results of the newest attempt that has any."""
    end = transport.run(_results_script(record.job_dir))
    return f"{record.job_dir}/{end.text.strip()}{contract.RESULTS}"


def _results_script(job_dir: str) -> str:
    """Return a script that prints the folder of an attempt; nothing for an older version's."""
    return f"""\
cd -- {shlex.quote(job_dir)} 2>/dev/null || exit 0
for n in $(ls attempts 2>/dev/null | sort -rn); do
    [ ! -d "attempts/$n/{contract.RESULTS}" ] || {{ echo "attempts/$n/"; exit 0; }}
done"""


def results_index(
    transport: Transport, record: Record, results: str,
    known: Mapping[str, bytes | None] | None = None,
) -> ResultsIndex | None:  # fmt: skip
    """Return the index of a folder with results; None if the training has not stored them.

    Args:
        known: Contents of files that have been read already.

    Raises:
        ResultsError: this version does not understand the index.
    """
    path = f"{results.removesuffix(contract.RESULTS)}{contract.RESULTS_INDEX}"
    known = known if known and path in known else read_files(transport, [path])
    content = known[path]
    try:
        return None if content is None else contract.from_json(ResultsIndex, content)
    except contract.ContractError as error:
        raise ResultsError(
            f"{transport.name}: {path} can't be understood: {error}",
            hint=f"`dlctl logs {record.training_id}` shows how the results were stored",
        ) from error
