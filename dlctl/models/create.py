"""Make a version of a stored model, from a folder here or from a training at its site."""

from __future__ import annotations

import fnmatch
import getpass
import hashlib
import math
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import __version__, contract
from dlctl.contract import (
    CODE_FILE,
    DATA_FILE,
    RESULT_FILE,
    WEIGHTS_FILE,
    MetricSummary,
    ModelFile,
    ModelVersion,
    State,
)
from dlctl.contract.stores import listing_file
from dlctl.errors import ManifestError, ResultsError
from dlctl.files.small_files import read_files
from dlctl.files.upload import Progress
from dlctl.models.publish import NewVersion, publish
from dlctl.request.build import new_training_id, read_folder
from dlctl.request.bundle import Bundle, collect
from dlctl.request.left_out import not_sent
from dlctl.request.request import git_state

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.models.known import KnownModel
    from dlctl.record import Record
    from dlctl.request.attempts import AttemptFiles
    from dlctl.series.run import Run

_WEIGHTS = (
    ".pt", ".pth", ".bin", ".safetensors", ".h5", ".hdf5", ".keras", ".ckpt", ".npz", ".npy",
    ".onnx", ".caffemodel", ".pb", ".pkl", ".joblib", ".ubj", ".msgpack", ".gguf", ".tflite",
    ".pt2",
)  # fmt: skip


@dataclass(frozen=True)
class Wish:
    """A person's description of a new version."""

    name: str = ""
    """The model's name; empty: as before, or as the manifest says."""
    tags: Sequence[str] = ()
    aliases: Sequence[str] = ()
    description: str | None = None
    model: KnownModel | None = None
    """The model that gets one version more; None: a new one."""
    parent: int = 0
    """The version of that model which this one is made from; 0: the newest."""
    key: str = ""
    """What a program calls this wish: a new model has the same id each time; empty: none."""


def from_folder(
    session: Session, place: Path, wish: Wish, on_progress: Progress | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> ModelVersion:  # fmt: skip
    """Store a folder, or the folder of a manifest.

    Raises:
        ManifestError: the folder or its manifest can't be stored.
        TransportError
    """
    path = place if place.is_file() else place / contract.MANIFEST
    folder, manifest, name = path.parent, "", place.resolve().name
    if path.is_file():
        from dlctl.manifest.overrides import Overrides

        read, _, code = read_folder(path, Overrides(), sys.maxsize)
        manifest, name = read.to_yaml(), read.name
    elif place.is_dir():
        code = collect(place, sys.maxsize)
    else:
        raise ManifestError(f"{place}: there is no such folder or manifest")
    if not code.files:
        if left_out := not_sent(code):
            raise ManifestError(
                f"{folder}: there is no file to store; {left_out}",
                hint="allow a file with a line !NAME in .dlctlignore",
            )
        raise ManifestError(
            f"{folder}: there is no file to store",
            hint="put the program's files there; for a training's results: "
            "dlctl models create --from ID",
        )
    say(not_sent(code))
    files, sources = _of_bundle(code)
    record = ModelVersion("", 0, name, _pulled_from(folder), manifest=manifest, files=files,
                          git=git_state(folder.resolve()))  # fmt: skip
    return _store(session, record, wish, sources, {}, on_progress)


def _of_bundle(code: Bundle) -> tuple[list[ModelFile], dict[str, Path]]:
    sources = {file.path: file for file in code.files}
    files = [
        _model_file(sent, sources[sent.path].link or "")
        for sent in contract.parse_index(code.index)
    ]
    places = {f.sha256: sources[f.path].source for f in files if not f.link}
    return files, {sha256: place for sha256, place in places.items() if isinstance(place, Path)}


def is_weights(path: str) -> bool:
    """Return whether a file holds weights, by its name."""
    return path.lower().endswith(_WEIGHTS)


def _model_file(sent: contract.SentFile, link: str) -> ModelFile:
    part = WEIGHTS_FILE if is_weights(sent.path) else CODE_FILE
    mode = "755" if sent.kind == "x" else "644"
    return ModelFile(sent.path, sent.size_bytes, sent.sha256, mode, part, link)


def _pulled_from(folder: Path) -> str:
    try:
        return (folder / contract.PULLED_FROM).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def from_training(
    session: Session, training: Record, wish: Wish, results: str = "*"
) -> ModelVersion:
    """Store the results of a training with the code that made them; all of it stays at the site.

    Args:
        results: A pattern that the paths of the results must match.

    Raises:
        ResultsError: the training has stored no such results, or they are damaged.
        TransportError
    """
    from dlctl.outputs.fetch import results_folder, results_index
    from dlctl.request.attempts import read_newest

    folder = results_folder(session.transport, training)
    index = results_index(session.transport, training, folder)
    if index is None or not index.files:
        raise _no_results(training, are_stored=index is not None)
    chosen = [f for f in index.files if fnmatch.fnmatchcase(f.path, results)]
    if not chosen:
        there = ", ".join(repr(f.path) for f in index.files[:5])
        raise ResultsError(
            f"no result of {training.training_id} matches {results!r}", hint=f"it has {there}"
        )
    newest = read_newest(session.transport, training)
    plan, store = newest.plan, f"{newest.plan.root}/store/{newest.plan.code_digest}"
    files = [ModelFile(f.path, f.size_bytes, f.sha256, "644", RESULT_FILE) for f in chosen]
    record = without_results(session, training, newest, store)
    sources = {f.sha256: f"{store}/{f.path}" for f in record.files if not f.link}
    sources |= {f.sha256: f"{folder}/{f.path}" for f in files}
    for listing, path in _listings(session, plan, training.job_dir):
        files.append(listing)
        sources[listing.sha256] = path
    record = replace(record, files=[*record.files, *files])
    return _store(session, record, wish, {}, sources)


def without_results(
    session: Session, training: Record, newest: AttemptFiles, code: str
) -> ModelVersion:
    """Return what a version would hold of a training besides results; nothing is stored.

    Args:
        newest: The files of its newest attempt.
        code: The folder of its code at the site.
    """
    plan = newest.plan
    return ModelVersion(
        "", 0, plan.name, plan.model or (plan.weights.model if plan.weights else ""),
        training_id=training.training_id, attempt=training.attempt,
        manifest=newest.manifest.decode(),
        data=[each for each in plan.data_stores if each.training_data],
        metrics=_metrics(session, training), git=plan.git,
        files=_sent_code(session, training, code),
    )  # fmt: skip


def _no_results(training: Record, *, are_stored: bool) -> ResultsError:
    """Return the error that says where a training's model is, if not among its results."""
    name, made = training.training_id, training.made
    what, hint = "has stored no results yet", f"dlctl logs --follow {name}"
    if are_stored:
        what = "has no results: its learners wrote nothing to RESULT_DIR"
        hint = f"dlctl logs {name}; if it has not completed, go on: dlctl resume {name}"
    parts = {"checkpoints": made and made.checkpoints.files and training.state is State.COMPLETED,
             "output": made and made.output}  # fmt: skip
    for part in (part for part, is_there in parts.items() if is_there):
        hint = f"its {part}: dlctl fetch {part} {name}; dlctl models create results/{name}/{part}"
    return ResultsError(f"{name} ({training.state}) {what}", hint=hint)


def _sent_code(session: Session, training: Record, store: str) -> list[ModelFile]:
    """Return the files of the code that a training runs, as they were sent.

    Raises:
        ResultsError: they are no longer at the site.
    """
    path = f"{store}/{contract.SENT_INDEX}"
    index = read_files(session.transport, [path])[path]
    try:
        if index is None:  # one that is empty is that of a folder without files
            raise ValueError("it is gone")
        sent = contract.parse_index(index)
    except ValueError as error:
        raise ResultsError(
            f"{session.transport.name}: the code of {training.training_id} in {store} is not what "
            f"was sent: {error}",
            hint="store your folder instead: dlctl models create FOLDER",
        ) from error
    links = [file.path for file in sent if file.kind == "l"]
    targets = dict(zip(links, _targets(session, store, links), strict=True))
    return [_model_file(file, targets.get(file.path, "")) for file in sent]


def _targets(session: Session, store: str, links: list[str]) -> list[str]:
    if not links:
        return []
    words = " ".join(shlex.quote(f"./{path}") for path in links)
    end = session.transport.run(
        f'cd {shlex.quote(store)} || exit 1\nfor f in {words}; do readlink "$f" || echo\n'
        "printf '\\0'; done"
    )
    targets = end.stdout.decode("utf-8", "surrogateescape").split("\0")[:-1]
    return [target.removesuffix("\n") for target in targets]


def _listings(session: Session, plan: contract.Plan, job_dir: str) -> list[tuple[ModelFile, str]]:
    """Return the listings of the stores that a training read: which objects, with their etags."""
    paths = [
        f"{job_dir}/{listing_file(position)}"
        for position, store in enumerate(plan.data_stores) if store.training_data
    ]  # fmt: skip
    found = read_files(session.transport, paths) if paths else {}
    return [
        (ModelFile(f"{contract.DATA_LISTINGS}/store-{number}.json", len(content),
                   hashlib.sha256(content).hexdigest(), "644", DATA_FILE), path)
        for number, path in enumerate(paths) if (content := found[path]) is not None
    ]  # fmt: skip


def _metrics(session: Session, training: Record) -> dict[str, MetricSummary]:
    """Return the last and the best value of each metric that learner 0 has reported."""
    from dlctl.outputs.metrics.reader import MetricsReader

    reader = MetricsReader(training)
    reader.refresh(session.transport)
    return summaries(reader.run)


def summaries(run: Run) -> dict[str, MetricSummary]:
    """Return what `_metrics` returns, for a run."""
    from dlctl.contract.metrics import LOSS, RESERVED, Source

    found = {}
    for key, curve in sorted(run.curves.items()):
        is_shown = key.source != Source.NODE.value and key.learner == 0
        if not is_shown or (key.name in RESERVED and key.name != LOSS) or not len(curve):
            continue
        best = curve.best()
        last = None if math.isnan(curve.last) else curve.last
        found[key.shown] = MetricSummary(last, best[1] if best else None)
    return found


def _store(
    session: Session, record: ModelVersion, wish: Wish, local: Mapping[str, Path],
    there: Mapping[str, str], on_progress: Progress | None = None,
) -> ModelVersion:  # fmt: skip
    """Complete the record and publish it: see `NewVersion` for where the contents are."""
    old, name, parent = wish.model, wish.name or record.name, record.parent
    if old:
        name = wish.name or old.name
        parent = parent or f"{old.model_id}@{wish.parent or old.numbers[-1]}"
    record = replace(
        record, name=name, parent=parent, dlctl_version=__version__,
        model_id=old.model_id if old else new_training_id(name, wish.key),
        created_at=time.time(), created_by=f"{_user()}@{socket.gethostname()}",
        file_count=len(record.files), size_bytes=sum(f.size_bytes for f in record.files),
    )  # fmt: skip
    words = {contract.MODEL_TAGS: wish.tags, contract.MODEL_ALIASES: wish.aliases}
    new = NewVersion(record, old is None, local, there, words, wish.description)
    return publish(session, new, on_progress)


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return "unknown"
