"""Train a stored version, or start from its weights: requests that the site completes."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dlctl import contract
from dlctl.contract import (
    MADE_FILES,
    RESULT_FILE,
    WEIGHTS_FILE,
    ModelFile,
    ModelVersion,
    StoredWeights,
)
from dlctl.contract.ground.safe_text import printable
from dlctl.errors import RecordError, ResultsError
from dlctl.files.site_folders import begin_in_root, damaged, explained
from dlctl.models.create import is_weights
from dlctl.models.known import parse_reference
from dlctl.models.reading import escaped, find_version, missing_blobs
from dlctl.request.build import prepare, prepare_again, prepare_stored
from dlctl.request.bundle import Bundle
from dlctl.request.request import merged, pending, submitted_with
from dlctl.script_templates import render_script

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.manifest.overrides import Overrides
    from dlctl.record import Record
    from dlctl.request.build import Folder
    from dlctl.request.request import Request

_TIMEOUT_S = 3600.0
_CODES = {"no_room": 71, "differs": 73}


def build(
    session: Session, manifest: Path, overrides: Overrides, model: str | None = None,
    training_id: str | None = None, tags: Sequence[str] = (), read: Folder | None = None,
) -> Request:  # fmt: skip
    """Return the request for a manifest, or for a version of a stored model.

    Args:
        read: What the manifest's folder holds, if it has been read already.

    Raises:
        RecordError: there is no such model.
        ManifestError, PlanError, SiteError, TransportError
    """
    if model is None:
        return prepare(manifest, overrides, session.site, training_id,
                       lambda named: find_weights(session, named), tags, read)  # fmt: skip
    version = find_version(session, model).version
    if not version.manifest:
        raise RecordError(
            f"{version.label} has no manifest, so it can't be trained by itself",
            hint=f"name its weights in one: arguments: {{weights: {contract.MODEL_PREFIX}"
            f"{version.label}}}",
        )
    code = code_of(version)
    bring_code(session, version, code)
    return prepare_stored(version.label, version.manifest, code, overrides, session.site,
                          training_id, lambda each: find_weights(session, each), tags)  # fmt: skip


def build_again(session: Session, record: Record) -> Request:
    """Return the request of an interrupted submission, with the versions that it had.

    Raises:
        ManifestError, PlanError, SiteError, TransportError
    """
    if not record.model:
        return prepare_again(record, session.site, lambda named: find_weights(session, named))
    overrides = merged(submitted_with(record), pending(record, 0))
    return build(session, Path(), overrides, record.model, record.training_id)


def code_of(version: ModelVersion) -> Bundle:
    """Return the files of a version that a training of it runs: all but what a training made."""
    files = [file for file in version.files if file.part not in MADE_FILES]
    index = contract.index_text(
        contract.SentFile(f.sha256, f.size_bytes, _kind(f), f.path) for f in files
    )
    return Bundle((), index, sum(f.size_bytes for f in files), at_site=version.label)


def bring_code(session: Session, version: ModelVersion, code: Bundle) -> None:
    """Make the folder of a version's code at the site from its contents, if it is not there.

    Raises:
        ResultsError: a content is missing or damaged.
        TransportError
    """
    target = f"store/{code.digest}"
    if not damaged(session.transport, session.site.root, [target]):
        return
    files = [file for file in version.files if file.part not in MADE_FILES]
    _check_blobs(session, version, files)
    lines = "".join(f"{_line(file)}\n" for file in files)
    data = f"{lines}\n".encode("utf-8", "surrogateescape") + code.index
    end = session.transport.run(
        _code_script(session, target, len(code.index)), stdin=data, timeout_s=_TIMEOUT_S
    )
    if end.exit_code == _CODES["differs"]:
        raise _damaged(session, version, end.last_error_line)
    if end.exit_code:
        raise explained(session.transport, session.site.root, end)


def _kind(file: ModelFile) -> Literal["f", "x", "l"]:
    return "l" if file.link else "x" if file.mode == "755" else "f"


def _line(file: ModelFile) -> str:
    """Return a file on one line: what `printf %b` makes of each of the last two words is exact."""
    return f"{file.sha256} {_kind(file)} {escaped(file.path)}\n{escaped(file.link)}"


def _code_script(session: Session, target: str, index_bytes: int) -> str:
    return render_script(
        "login/model_code.sh.j2", begin=begin_in_root(session.site.root, session.site.umask),
        token=secrets.token_hex(8), target=target, index_bytes=index_bytes, codes=_CODES,
    )  # fmt: skip


def find_weights(session: Session, named: str) -> StoredWeights:
    """Return the file that `weights: model:…` means now; an alias that moves later changes nothing.

    Raises:
        RecordError: there is no such model, version or file.
        ResultsError: its content is missing.
    """
    wanted = parse_reference(named)
    version = find_version(session, named).version
    file = choose_weights(version, wanted.path)
    _check_blobs(session, version, [file])
    return StoredWeights(version.label, file.path, file.sha256, file.size_bytes,
                         contract.weights_file(file.path))  # fmt: skip


def choose_weights(version: ModelVersion, path: str = "") -> ModelFile:
    """Return the file from which a training starts: the named one, or the only one it can be.

    Raises:
        RecordError: there is none, or several.
    """
    files = [file for file in version.files if not file.link]
    order = {RESULT_FILE: 0, WEIGHTS_FILE: 1}
    files.sort(key=lambda file: order.get(file.part, 2))
    if path:
        if found := [file for file in files if file.path == path]:
            return found[0]
        raise RecordError(
            f"{version.label} has no file {path!r}",
            hint=f"`dlctl models show {version.label}` lists its files",
        )
    weights = [f for f in files if is_weights(f.path)]
    results = [f for f in weights if f.part == RESULT_FILE] or weights
    chosen = [f for f in results if f.path == "model.pt"] or results
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        raise RecordError(
            f"{version.label} has no file of weights",
            hint=f"name a file: {contract.MODEL_PREFIX}{version.label}/PATH",
        )
    names = ", ".join(printable(file.path) for file in chosen[:5])
    raise RecordError(
        f"{version.label} has {len(chosen)} files of weights ({names})",
        hint=f"name one: {contract.MODEL_PREFIX}{version.label}/{printable(chosen[0].path)}",
    )


def _check_blobs(session: Session, version: ModelVersion, files: list[ModelFile]) -> None:
    if missing := missing_blobs(session, files):
        path = next(printable(file.path) for file in files if file.sha256 in missing)
        raise _damaged(session, version, path)


def _damaged(session: Session, version: ModelVersion, path: str) -> ResultsError:
    return ResultsError(
        f"{session.transport.name}: {path} of {version.label} is missing or damaged, so nothing "
        "was queued",
        hint=f"store the same file again: dlctl models update {version.model_id} FOLDER; "
        f"`dlctl models show {version.label} --verify` names all that is damaged",
    )
