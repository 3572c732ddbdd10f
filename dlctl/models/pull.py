"""Download a version: its files as they were, and beside them what the training made."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract import MADE_FILES, ModelFile, ModelVersion
from dlctl.contract.ground.safe_text import printable
from dlctl.contract.ground.space import see_space
from dlctl.contract.ground.whole_files import sha256_of
from dlctl.errors import ResultsError
from dlctl.files.download import download
from dlctl.files.listing import refuse_outside
from dlctl.files.target import Target, make_executable, refuse_link_parents
from dlctl.files.upload import Progress
from dlctl.models.reading import Found

if TYPE_CHECKING:
    from dlctl.lifecycle import Session

AT_ONCE = 4000
"""Contents in one request, whose names must fit into the arguments of one command."""
_TRAINED = "trained"


def layout(version: ModelVersion) -> list[tuple[ModelFile, str]]:
    """Return each file with its path in a pulled folder.

    Results are in `trained/`, or if the code has such a folder in `trained-2/`, and so on.
    """
    tops = {f.path.split("/")[0] for f in version.files if f.part not in MADE_FILES}
    names = (_TRAINED, *(f"{_TRAINED}-{n}" for n in range(2, len(tops) + 3)))
    trained = next(name for name in names if name not in tops)
    return [
        (file, f"{trained}/{file.path}" if file.part in MADE_FILES else file.path)
        for file in version.files
    ]


def pull(
    session: Session, found: Found, folder: Path, on_progress: Progress | None = None
) -> list[str]:
    """Download a version; return the paths of its files below the folder.

    What is there already with the same content stays, and is not sent.

    Raises:
        ResultsError: another file or folder is in the way; nothing was downloaded.
        TransferError: a path leads out of the folder, a content at the site is missing or damaged,
            or the disk here is full.
    """
    placed = layout(found.version)
    texts = {contract.PULLED_FROM: f"{found.version.label}\n"}
    if found.version.manifest:
        texts[contract.MANIFEST] = found.version.manifest
    wanted: dict[str, list[tuple[Path, str]]] = {}
    try:
        for file, path in placed:
            target = folder / path
            refuse_outside(path)
            refuse_link_parents(folder, target)
            if file.link or not _is_here(target, file):
                wanted.setdefault("" if file.link else file.sha256, []).append((target, file.mode))
        for name, text in texts.items():
            own = folder / name
            if own.exists() and not (own.is_file() and own.read_text(encoding="utf-8") == text):
                raise _in_the_way(own)
        folder.mkdir(parents=True, exist_ok=True)
        _bring(session, folder, wanted, on_progress)
        for file, path in placed:
            if file.link:
                _link(folder, folder / path, file.link)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResultsError(
            f"{printable(error.filename or folder)}: {error.strerror or error}",
            hint=f"check the space and the permissions there: {see_space(folder)}",
        ) from error
    return [*(path for _, path in placed), *texts]


def _bring(
    session: Session, folder: Path, wanted: dict[str, list[tuple[Path, str]]],
    on_progress: Progress | None,
) -> None:  # fmt: skip
    """Download contents, each once, and put each at all of its paths."""
    contents = sorted(sha256 for sha256 in wanted if sha256)
    base = f"{session.site.root}/{contract.MODEL_BLOBS}"
    with tempfile.TemporaryDirectory(prefix=".dlctl-pull.", dir=folder) as name:
        temporary = Path(name)

        class Contents(Target):
            def place(self, arrived: Path, path: Path, identity: str) -> None:  # noqa: ARG002
                *others, (last, mode) = wanted[path.name]
                for target, its_mode in others:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(arrived, temporary / "copy")
                    _put(temporary / "copy", target, its_mode)
                last.parent.mkdir(parents=True, exist_ok=True)
                _put(arrived, last, mode)

        for at in range(0, len(contents), AT_ONCE):
            some = {sha256: sha256 for sha256 in contents[at : at + AT_ONCE]}
            download(session.transport, base, some, Contents(temporary), on_progress)


def _put(arrived: Path, target: Path, mode: str) -> None:
    if mode == "755":
        make_executable(arrived)
    arrived.replace(target)


def _is_here(target: Path, file: ModelFile) -> bool:
    """Return whether the content is here; refuse to replace another one."""
    if not target.exists() and not target.is_symlink():
        return False
    is_file = target.is_file() and not target.is_symlink()
    if is_file and target.stat().st_size == file.size_bytes and sha256_of(target) == file.sha256:
        return True
    raise _in_the_way(target)


def _in_the_way(target: Path) -> ResultsError:
    return ResultsError(
        f"{printable(target)} is here already and differs, so nothing was downloaded",
        hint="name another folder, or move the file away",
    )


def _link(folder: Path, target: Path, link: str) -> None:
    # By its words, as a folder is judged that is sent or stored: `a/../b` stays inside.
    inside = Path(os.path.normpath(target.parent / link))
    for path in (target, inside / "x"):
        refuse_link_parents(folder, path)
    if target.is_symlink() and os.readlink(target) == link:  # noqa: PTH115 - bytes as they are
        return
    if target.exists() or target.is_symlink():
        raise _in_the_way(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(link)
