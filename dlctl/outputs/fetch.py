"""Fetch what a training produced: the model, the logs, the metrics → ./results/<training id>/.

Every file is verified: results against the index that the node wrote, the rest against hashes
computed on the site.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dlctl import contract
from dlctl.contract import ResultsIndex, State
from dlctl.contract.metrics import EventKind, Source
from dlctl.errors import ResultsError, TransferError
from dlctl.files.upload import download, read_files
from dlctl.logs.reader import LogReader, read
from dlctl.outputs.fetched_folder import FetchedFolder
from dlctl.outputs.metrics import read_metrics
from dlctl.record import Record
from dlctl.transport import Transport

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Fetched:
    """What was fetched."""

    training_id: str
    folder: str
    files: list[str]
    """Relative to `folder`."""
    complete: bool
    """False while the training runs: more may follow."""
    left_out: list[str] = field(default_factory=list)
    """What `results/` on the site holds but can't be fetched: pipes, links that point outside,
    files that can't be read."""
    kept: list[str] = field(default_factory=list)
    """The new names of files and folders here that did not come from an earlier fetch, or were
    edited since, and were in the way."""


def fetch_results(
    transport: Transport, record: Record, destination: Path, on_progress: Progress | None = None
) -> Fetched:
    """Fetch results, logs, metrics, manifest and plan; files that are here are not sent again.

    Raises:
        ResultsError: the training has produced nothing yet.
        TransferError
    """
    base = results_folder(transport, record)
    index = results_index(transport, record, base)
    names = {f.path: f.sha256 for f in index.files} if index else _listed(transport, base)
    folder = FetchedFolder(destination, record, names)
    try:
        here = _write_newest(transport, record, folder)
        files = list(here)
        if names:
            files += _bring(transport, base, names, folder, on_progress)
        files += _write_logs(transport, record, folder)
        files += _write_metrics(transport, record, folder)
    finally:
        folder.remember()
    if not names and len(files) == len(here):
        raise ResultsError(
            f"{record.training_id} ({record.state}) has produced nothing to fetch yet",
            hint=f"dlctl logs --follow {record.training_id}",
        )
    return Fetched(
        record.training_id,
        str(destination),
        files,
        complete=record.state is State.COMPLETED,
        left_out=index.left_out if index else [],
        kept=folder.kept,
    )


def _bring(
    transport: Transport, base: str, names: Sequence[str] | Mapping[str, str],
    folder: FetchedFolder, on_progress: Progress | None,
) -> list[str]:  # fmt: skip
    brought = download(
        transport, base, names, folder.path, on_progress, place=folder.place, on_here=folder.note
    )
    return [str(path.relative_to(folder.path)) for path in brought]


def fetch_checkpoints(
    transport: Transport, record: Record, destination: Path, on_progress: Progress | None = None
) -> Fetched:
    """Fetch every complete checkpoint.

    Raises:
        ResultsError: there is none.
    """
    script = f"cd {shlex.quote(record.job_dir)} && ls -1 {contract.CHECKPOINTS} 2>/dev/null"
    names = [n for n in transport.run(script).text.split() if not n.startswith(".")]
    if not names:
        raise ResultsError(
            f"{record.training_id} ({record.state}) has no checkpoint",
            hint="checkpoint.every in the manifest says when one is written",
        )
    folder = FetchedFolder(destination, record)
    paths = [f"{contract.CHECKPOINTS}/{name}" for name in names]
    try:
        files = _bring(transport, record.job_dir, paths, folder, on_progress)
    finally:
        folder.remember()
    return Fetched(
        record.training_id, str(destination), files, record.state.final, kept=folder.kept
    )


def results_folder(transport: Transport, record: Record) -> str:
    """Return the folder at the site with the results of the newest attempt that has any."""
    script = f"""\
cd -- {shlex.quote(record.job_dir)} 2>/dev/null || exit 0
for n in $(ls attempts 2>/dev/null | sort -rn); do
    [ ! -d "attempts/$n/{contract.RESULTS}" ] || {{ echo "attempts/$n/"; exit 0; }}
done"""
    end = transport.run(script)  # an older version has one folder for all attempts
    return f"{record.job_dir}/{end.text.strip()}{contract.RESULTS}"


def results_index(transport: Transport, record: Record, results: str) -> ResultsIndex | None:
    """Return the index of a folder with results; None if the training has not stored them.

    Raises:
        ResultsError: this version does not understand the index.
    """
    path = f"{results.removesuffix(contract.RESULTS)}{contract.RESULTS_INDEX}"
    content = read_files(transport, [path])[path]
    try:
        return None if content is None else contract.from_json(ResultsIndex, content)
    except contract.ContractError as error:
        raise ResultsError(
            f"{transport.name}: {path} can't be understood: {error}",
            hint=f"`dlctl logs {record.training_id}` shows how the results were stored",
        ) from error


def _listed(transport: Transport, results: str) -> list[str]:
    """Return the files in the results of a training that has not stored them."""
    end = transport.run(
        f"cd {shlex.quote(results)} 2>/dev/null && find . -type f ! -name '.*' -print0"
    )
    return [name[2:] for name in end.stdout.decode("utf-8", "surrogateescape").split("\0") if name]


def _write_newest(transport: Transport, record: Record, folder: FetchedFolder) -> list[str]:
    """Write the manifest and the plan of the newest attempt."""
    names = {contract.MANIFEST: contract.manifest_file, contract.PLAN: contract.plan_file}
    attempts = range(record.attempt, 0, -1)
    paths = [f"{record.job_dir}/{file(n)}" for n in attempts for file in names.values()]
    contents = read_files(transport, paths)
    for n in attempts:
        found = {name: contents[f"{record.job_dir}/{file(n)}"] for name, file in names.items()}
        whole = {name: content for name, content in found.items() if content is not None}
        if len(whole) == len(names):
            return [folder.write(name, content) for name, content in whole.items()]
    return []  # the site has lost them: what else is there is worth the more


def _write_logs(transport: Transport, record: Record, folder: FetchedFolder) -> list[str]:
    """Write the logs as they are now: they may grow while they are read."""
    written: dict[str, None] = {}
    with folder.temporary() as temporary:
        for piece in read(transport, LogReader(record.job_dir, by_time=False)):
            name = f"attempt-{piece.attempt}-{piece.source}.log"
            with (Path(temporary) / name).open("ab") as file:
                file.write(piece.content)
            written[name] = None
        names = {name: folder.own(f"logs/{name}") for name in written}
        for name, path in names.items():
            folder.place(Path(temporary) / name, folder.path / path, grows=True)
    return list(names.values())


def _write_metrics(transport: Transport, record: Record, folder: FetchedFolder) -> list[str]:
    """Write what the training measured, without what the collector measured of the nodes."""
    entries = read_metrics(
        transport, record, lambda origin: origin.learner == 0 and origin.source is not Source.NODE
    )
    told = [e.line for e in entries if not e.line.event or e.line.kind in ("", EventKind.ORDER)]
    if not told:
        return []
    return [folder.write("metrics.jsonl", b"".join(line.encode() for line in told), grows=True)]


__all__ = ["Fetched", "TransferError", "fetch_checkpoints", "fetch_results"]
