"""Says what of the user's folder is not sent, and which of it the program or the manifest names."""

from __future__ import annotations

import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dlctl.contract import BY_DLCTL, LeftOut
from dlctl.contract.ground.safe_text import printable
from dlctl.contract.programs.named_paths import how_to_send, imported_paths, named_paths
from dlctl.request.ignore import MOST_FILES, Excluded
from dlctl.units import counted, format_bytes

if TYPE_CHECKING:
    from dlctl.request.bundle import Bundle

_MOST_IN_PLAN = 500
_MOST_RULES = 3
_MOST_REMARKS = 5
_WRITES = re.compile(
    r"""(?i)save|dump|write|mkdir|makedirs|to_csv|\bout|\blog|result|["'][wax]b?\+?["']"""
)
_READS = re.compile(r"(?i)load|read")
"""A line that only writes a file needs none that is here."""


@dataclass(frozen=True)
class FolderFile:
    """A file of the user's folder."""

    path: str
    """Relative; a folder whose files are not counted ends with `/`."""
    size_bytes: int | None
    left_out_by: str = ""
    """The rule because of which it is not sent; empty if it is."""


COLUMNS = ("file", "size", "left out by")


def for_plan(excluded: Iterable[Excluded]) -> list[LeftOut]:
    """Return what the nodes should know, should the program miss it."""
    chosen = [e for e in excluded if e.rule != BY_DLCTL or e.path == "results/"]
    largest = sorted(chosen, key=lambda e: (e.files is not None, -e.size_bytes))[:_MOST_IN_PLAN]
    return sorted(
        (
            LeftOut(e.path, e.rule, any(p.endswith(".py") for p, _ in e.files or ()))
            for e in largest
        ),
        key=lambda e: e.path,
    )


def summary(code: Bundle) -> str:
    """Return how much is sent, and what is not, in one sentence."""
    sent = f"{counted(len(code.files), 'file')}, {format_bytes(code.size_bytes)}"
    return "; ".join(filter(None, [sent, not_sent(code)]))


def not_sent(code: Bundle) -> str:
    """Return which rule leaves out what; empty if nothing is left out."""
    rules: dict[str, list[Excluded]] = defaultdict(list)
    for each in code.left_out:
        if each.rule != BY_DLCTL and each.files != ():
            rules[each.rule].append(each)
    vast = {rule for rule, items in rules.items() if any(each.files is None for each in items)}
    ordered = sorted(
        rules.items(), key=lambda r: (r[0] not in vast, -sum(each.size_bytes for each in r[1]))
    )
    parts = [f"by {rule}: {_some(items)}" for rule, items in ordered[:_MOST_RULES]]
    if more := len(ordered) - _MOST_RULES:
        parts += [f"by {counted(more, 'more rule')} (--files lists all)"] if more > 0 else []
    return f"left out {'; '.join(parts)}" if parts else ""


def _some(items: Sequence[Excluded]) -> str:
    unknown = [each for each in items if each.files is None]
    if unknown:
        more = f" and {counted(len(items) - 1, 'more place')}" if len(items) > 1 else ""
        return f"{printable(unknown[0].path)} (more than {MOST_FILES:,} files){more}"
    files = sorted((f for each in items for f in each.files or ()), key=lambda f: (-f[1], f[0]))
    path, size_bytes = files[0]
    more = f" and {len(files) - 1} more" if len(files) > 1 else ""
    return f"{printable(path)} ({format_bytes(size_bytes)}){more}"


def listing(code: Bundle) -> list[FolderFile]:
    """Return all files of a folder: those that are sent, then the others."""
    files = [FolderFile(f.path, f.content_bytes) for f in code.files]
    for each in code.left_out:
        of_folder: list[tuple[str, int | None]] = [(each.path, None)]
        files += [FolderFile(p, size, each.rule) for p, size in each.files or of_folder]
    return files


def rows(files: Iterable[FolderFile]) -> list[list[str]]:
    """Return a row for each file: path, size, and the rule that leaves it out."""
    return [
        [printable(file.path), "-" if file.size_bytes is None else format_bytes(file.size_bytes),
         printable(file.left_out_by) or "-"]
        for file in files
    ]  # fmt: skip


def named(code: Bundle, lines: Iterable[tuple[str, str]], *, has_store: bool) -> list[str]:
    """Return a sentence for each file or folder that is not sent although a line names it.

    Args:
        code: What is sent, and what is not.
        lines: The place and the text of each line of the programs and of the manifest.
        has_store: Whether a name without its folder may mean a file of a data store.
    """
    known = _by_path(code, has_store)
    vast = [each for each in code.left_out if each.files is None and each.rule != BY_DLCTL]
    found: dict[str, str] = {}
    for where, line in lines if known else ():
        if _WRITES.search(line) and not _READS.search(line):
            continue
        beside = posixpath.dirname(where)
        is_shell = ".py:" not in where
        names = list(named_paths(line, is_shell=is_shell))
        for path in [*imported_paths(line), *names]:
            each = known.get(path) or known.get(posixpath.join(beside, path))
            if each is None and path in names:  # whether it is in a vast folder nobody has looked
                each = next((e for e in vast if path.startswith(e.path)), None)
            if each is not None and path not in found:
                found[path] = _sentence(where, path, each)
    texts = list(found.values())
    if (more := len(texts) - _MOST_REMARKS) > 0:
        texts[_MOST_REMARKS:] = [f"{more} more files are named and not sent: --files lists all."]
    return texts


def _by_path(code: Bundle, has_store: bool) -> dict[str, Excluded]:
    """Return what is not sent by each path, and by each name that no other file has."""
    known: dict[str, Excluded] = {}
    sent = {posixpath.basename(file.path) for file in code.files}
    for each in code.left_out:
        if each.rule == BY_DLCTL:
            continue
        known[each.path.rstrip("/")] = each
        for path, _ in each.files or ():
            known[path] = each
            if path.endswith(".py"):  # `import data` means data.py, or the package data
                known.setdefault(f"{posixpath.dirname(path)}.py", each)
            while len(path := posixpath.dirname(path)) >= len(each.path):
                known[path] = each
    if not has_store:
        for each in code.left_out:
            for path, _ in each.files or ():
                name = posixpath.basename(path)
                if "." in name[1:] and name not in sent:
                    known.setdefault(name, each)
    return known


def _sentence(where: str, path: str, item: Excluded) -> str:
    how = how_to_send(LeftOut(item.path, item.rule))
    return f"{printable(where)} names {printable(path)}, which is not sent: {how}"
