"""Downloads files: lists them on the site, brings what is not here, and verifies it as it flows.

No half-written file ever has its final name. What has arrived is not sent again, and of a large
file not even its beginning, whatever ended the download: Ctrl-C, kill -9, a lost connection. Names
and links that point outside the destination are refused. Uses `Transport` only.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dlctl.contract.ground.safe_text import printable
from dlctl.contract.ground.whole_files import sha256_of
from dlctl.errors import ConnectionLost, TransferError, TransportTimeout
from dlctl.files import large, small
from dlctl.files.large import Partial, tidy
from dlctl.files.listing import SiteFile, list_files, refuse_outside, sums
from dlctl.files.target import (
    Target,
    check_room,
    doubles,
    is_own,
    local_failure,
    make_executable,
    refuse_link_parents,
    remove_leftovers,
    temporary_folder,
)
from dlctl.transport.base import Transport

_LARGE_BYTES = 2 * 1024 * 1024
"""From this size on a file comes in chunks, and its beginning is kept."""
_TRIES = 3
"""How often a file is tried that changes meanwhile, and a connection that brings nothing."""


def download(
    transport: Transport, base: str, paths: Sequence[str] | Mapping[str, str],
    destination: Path | Target, on_progress: Callable[[int, int], None] | None = None, *,
    local_name: Callable[[str], str | None] = str,
    on_left_out: Callable[[str, str], None] | None = None, listed: Sequence[SiteFile] | None = None,
) -> list[Path]:  # fmt: skip
    """Download files and whole folders from below `base` to the same paths below `destination`.

    Args:
        paths: Relative to `base`; or a mapping of files to the sha256 that each must have.
        on_progress: Called with the bytes that are here, and all.
        local_name: Returns the path below the destination of a path below `base`; None: not wanted.
        on_left_out: Called with a path and why it can't come; without it that is an error.
        listed: The files at the paths, if they have been listed just now.

    Returns:
        All files, including those that were already here.

    Raises:
        TransferError: a file is missing or damaged, points outside, or the disk here is full.
        TransportError
    """
    target = destination if isinstance(destination, Target) else Target(destination)
    for path in paths:
        refuse_outside(path)
    run = _Download(transport, base, target, local_name, on_left_out, on_progress)
    files = list_files(transport, base, paths) if listed is None else listed
    try:
        target.path.mkdir(parents=True, exist_ok=True)
        with target.alone():
            remove_leftovers(target.path)
            run.bring(run.choose(files))
            tidy(target.path)
    except OSError as error:
        raise local_failure(target.path, error) from error
    return run.here


@dataclass
class _Download:
    """One download, over lost connections and changes at the site."""

    transport: Transport
    base: str
    target: Target
    local_name: Callable[[str], str | None]
    on_left_out: Callable[[str, str], None] | None
    on_progress: Callable[[int, int], None] | None
    here: list[Path] = field(default_factory=list)
    _paths: dict[str, Path] = field(default_factory=dict)
    """The path here of each file."""
    _done_bytes: int = 0
    _total_bytes: int = 0

    # What to bring ------------------------------------------------------------------------------

    def choose(self, files: Sequence[SiteFile]) -> list[SiteFile]:
        """Return the files that are wanted and not here; note those that are here."""
        fitting, names = [], {}
        for file in files:
            refuse_outside(file.path)
            name = self.local_name(file.path)
            if name is None:
                continue
            if file.kind == "o":
                self._leave_out(file.path, "is neither a file nor a folder")
                continue
            if file.kind == "d":
                self._leave_out(f"{file.path}/", "can't be read")
                continue
            if name != file.path:
                refuse_outside(name)
            if is_own(name):
                self._leave_out(file.path, "has a name that dlctl uses itself")
                continue
            names[name] = file.path
            self._paths[file.path] = self.target.path / name
            fitting.append(file)
        for name, other in doubles(self.target.path, list(names)).items():
            self._leave_out(names[name], f"has the name of {printable(other)} in this folder")
            del self._paths[names[name]]
        fitting = [file for file in fitting if file.path in self._paths]
        same = self._same(fitting)
        for file in (file for file in fitting if file.path in same):
            self.target.note(self._paths[file.path], file.identity)
        self.here += [self._paths[file.path] for file in fitting if file.path in same]
        return [file for file in fitting if file.path not in same]

    def _leave_out(self, path: str, why: str) -> None:
        if self.on_left_out is None:
            raise TransferError(
                f"{self.transport.name}: {printable(path)} {why}: refused",
                hint="Remove it on the site.",
            )
        self.on_left_out(path, why)

    def _same(self, files: Sequence[SiteFile]) -> set[str]:
        """Return the paths of files whose content is here; only likely ones are read for it."""
        same, likely, safe = set(), [], set()
        for file in files:
            path = self._paths[file.path]
            if (folder := path.parent) not in safe:
                refuse_link_parents(self.target.path, path)
                safe.add(folder)
            if file.kind != "f" or _regular_bytes(path) != file.size_bytes:
                continue
            if self.target.is_current(path, file.identity):
                same.add(file.path)
            else:
                likely.append(file)
        unknown = [file.path for file in likely if not file.sha256]
        digests = sums(self.transport, self.base, unknown)
        digests |= {file.path: file.sha256 for file in likely if file.sha256}
        return same | {path for path in digests if sha256_of(self._paths[path]) == digests[path]}

    # Bringing it --------------------------------------------------------------------------------

    def bring(self, wanted: list[SiteFile]) -> None:
        """Bring files; a lost connection is opened again as long as that gets further."""
        self._total_bytes = sum(file.size_bytes for file in wanted)
        here_bytes = sum(self._partial(f).done_bytes for f in wanted if _comes_in_chunks(f))
        check_room(self.target.path, wanted, here_bytes)
        changed = self._bring_over_losses(wanted)
        for _ in range(_TRIES - 1):
            if changed:
                paths = [file.path for file in changed]
                listed = list_files(self.transport, self.base, paths, missing_ok=True)
                there = {file.path for file in listed}
                for path in paths:
                    if path not in there:
                        self._leave_out(path, "was removed while it was fetched")
                changed = self._bring_over_losses(listed)
        why = "changes while it is fetched, or can't be read"
        if changed and self.on_left_out is None:
            raise self._missing([file.path for file in changed], why)
        for file in changed:
            self._leave_out(file.path, why)

    def _bring_over_losses(self, wanted: list[SiteFile]) -> list[SiteFile]:
        """Bring files; return those that changed meanwhile."""
        changed: list[SiteFile] = []
        furthest_bytes, vain = -1, 0
        while wanted:
            missing_bytes = sum(file.size_bytes for file in wanted)
            partials = [self._partial(file) for file in wanted if _comes_in_chunks(file)]
            here_bytes = sum(partial.done_bytes for partial in partials)
            self._done_bytes = self._total_bytes - missing_bytes
            self._arrived(here_bytes)
            try:
                self._bring_once(wanted, changed)
            except (ConnectionLost, TransportTimeout):
                vain = 0 if self._done_bytes > furthest_bytes else vain + 1
                furthest_bytes = max(furthest_bytes, self._done_bytes)
                if vain >= _TRIES:
                    raise
        return changed

    def _partial(self, file: SiteFile) -> Partial:
        return Partial(self.target.path, self.base, file)

    def _bring_once(self, wanted: list[SiteFile], changed: list[SiteFile]) -> None:
        """Bring files, and take those that need no further try off the list.

        Those that changed meanwhile go to the other list.
        """
        changed += self._bring_small(wanted)
        while partials := [self._partial(file) for file in wanted]:
            for partial, whole in large.bring(self.transport, self.base, partials, self._arrived):
                wanted.remove(partial.file)
                if whole:
                    self._place(partial)
                else:
                    changed.append(partial.file)

    def _place(self, partial: Partial) -> None:
        file, path = partial.file, self._paths[partial.file.path]
        refuse_link_parents(self.target.path, path)
        arrived = partial.finish()
        if file.is_executable:
            make_executable(arrived)
        self.target.place(arrived, path, file.identity)
        self.here.append(path)

    def _bring_small(self, wanted: list[SiteFile]) -> list[SiteFile]:
        few = [file for file in wanted if not _comes_in_chunks(file)]
        if not few:
            return []
        pairs = [(file, self._paths[file.path]) for file in few]
        receiver = small.Receiver(
            self.transport.name, pairs, self.target, self._arrived, self._leave_out
        )
        try:
            with temporary_folder(self.target.path) as folder:
                for group in small.groups(few):
                    small.bring(self.transport, self.base, group, receiver, Path(folder))
        finally:
            for file in few:
                if file.path not in receiver.missing:
                    wanted.remove(file)
                    if file.path not in receiver.left_out:
                        self.here.append(self._paths[file.path])
        if receiver.missing and receiver.trouble:
            raise self._missing(list(receiver.missing), receiver.trouble)
        for file, _ in receiver.missing.values():
            wanted.remove(file)
        return [file for file, _ in receiver.missing.values()]

    def _missing(self, paths: Sequence[str], why: str) -> TransferError:
        names = ", ".join(sorted(map(printable, paths))[:3])
        return TransferError(
            f"{self.transport.name}: {names or self.base} did not arrive: {why}",
            hint="Try again: what has arrived is not sent twice.",
        )

    def _arrived(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        if self.on_progress:
            done_bytes = min(self._done_bytes, self._total_bytes)
            self.on_progress(done_bytes, self._total_bytes)


def _regular_bytes(path: Path) -> int | None:
    """Return the size of a file here; None if there is none, or something else."""
    try:
        status = path.lstat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _comes_in_chunks(file: SiteFile) -> bool:
    return file.kind == "f" and file.size_bytes >= _LARGE_BYTES
