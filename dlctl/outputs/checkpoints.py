"""Inspect the checkpoints of a training from here; list and show read only small files.

They need nothing at the site but a shell; `verify` and `diff` run `learner.checkpoint.tool` there.
The files are described in docs/recover.md.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from dlctl import contract
from dlctl.contract.own_checkpoints import SavedFile, own_checkpoints, saved_entries
from dlctl.errors import ResultsError
from dlctl.files.small_files import read_texts
from dlctl.lifecycle.remote_module import run_module
from dlctl.transport.resident import ask

if TYPE_CHECKING:
    from dlctl.lifecycle import Session
    from dlctl.record import Record
    from dlctl.transport import Transport

T = TypeVar("T")
_LIST = r"""{{
set -- {} -name '.*' -prune -o -type f
if stat --printf '' .; then find "$@" -exec stat --printf '%Y %s %n\0' -- {{}} +
else
    if stat -c %s . >/dev/null; then f=-c t='%Y %s %n'; else f=-f t='%m %z %N'; fi
    export f t
    find "$@" -exec sh -c 'for n; do stat "$f" "$t" -- "$n" && printf "\0"; done' sh {{}} +
fi
}} 2>/dev/null"""
"""With GNU's `stat`, or that of busybox or BSD. A file that vanishes meanwhile shows no error."""
_TIMEOUT_S = 3600.0
_TOOL = "learner.checkpoint.tool"
_FOLDER = re.compile("step-([0-9]{12,})")  # a program of the user's may write step-7
_MARKER, _STATE = "complete.json", "state.json"
_RECORD = re.compile(r"share-[0-9]+\.json")
_NOT_UNDERSTOOD = (ValueError, LookupError, TypeError, AttributeError, OverflowError)
"""Errors that JSON of an unexpected form causes."""


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint, as its marker describes it."""

    step: int | None
    """None: the name of what a program has saved tells none."""
    complete: bool | None
    """None: of a program's files nothing tells that they are a checkpoint, and whole."""
    epoch: int | None = None
    """Epochs finished."""
    learners: int | None = None
    size_bytes: int | None = None
    written_at: float | None = None
    """Seconds since 1970."""
    kept_for_ever: bool = False
    name: str = ""
    """The file or folder in CHECKPOINT_DIR that a program has saved."""


def list_checkpoints(transport: Transport, job_dir: str) -> list[Checkpoint]:
    """Return the checkpoints of a job directory, newest first; having none is not an error.

    Raises:
        TransportError
    """
    return list_checkpoints_of_many(transport, [job_dir])[job_dir]


def list_checkpoints_of_many(
    transport: Transport, job_dirs: Sequence[str]
) -> dict[str, list[Checkpoint]]:
    """Return what `list_checkpoints` returns, by job directory: at most three calls for all.

    Raises:
        TransportError
    """
    names = _names_of(transport, job_dirs)
    found = {
        job_dir: [_checkpoint(step, marker) for step, (_, marker) in marked.items()]
        for job_dir, marked in _markers_of(transport, names).items()
    }
    others = [job_dir for job_dir, known in found.items() if not known and names[job_dir]]
    return found | {
        job_dir: [
            Checkpoint(
                own.step, own.complete, size_bytes=own.size_bytes, written_at=own.written_at,
                name=own.name,
            )
            for own in own_checkpoints(files, pattern) or saved_entries(files)
        ]
        for job_dir, (files, pattern) in _saved(transport, others).items()
    }  # fmt: skip


def whole_checkpoints(transport: Transport, job_dir: str, *, newest: bool) -> list[str]:
    """Return what to fetch: the newest whole checkpoint, or all but what is half written.

    The paths are relative to the folder of the checkpoints. What a program has saved beside its
    checkpoints comes, too; so does all that it has saved if none is known as one.

    Raises:
        TransferError, TransportError
    """
    names = _names_of(transport, [job_dir])
    found = _markers_of(transport, names)[job_dir]
    folders = {folder.rpartition("/")[2]: _checkpoint(n, marker).complete
               for n, (folder, marker) in found.items()}  # fmt: skip
    own = [] if any(folders.values()) else own_checkpoints(*_saved(transport, [job_dir])[job_dir])
    whole = [[name] for name, is_whole in folders.items() if is_whole]
    whole = whole or [list(each.files) for each in own if each.complete]
    if newest and whole:
        return whole[0]
    half = {name for name, is_whole in folders.items() if not is_whole}
    half |= {name for each in own if not each.complete for name in (each.name, *each.files)}
    return [name for name in names[job_dir] if name not in half]


def _saved(
    transport: Transport, job_dirs: Sequence[str]
) -> dict[str, tuple[list[SavedFile], str | None]]:
    """Return the files in each CHECKPOINT_DIR, and the pattern of a program's own checkpoints."""
    roots = {f"{job_dir}/{contract.CHECKPOINTS}": job_dir for job_dir in job_dirs}
    if not roots:
        return {}
    found = ask(transport, _LIST.format(" ".join(map(shlex.quote, roots)))).stdout
    files: dict[str, list[SavedFile]] = {job_dir: [] for job_dir in job_dirs}
    for entry in found.decode("utf-8", "surrogateescape").split("\0")[:-1]:
        written_at, size_bytes, path = entry.removesuffix("\n").split(" ", 2)
        root = next(root for root in roots if path.startswith(f"{root}/"))
        name = path.removeprefix(f"{root}/")
        files[roots[root]].append(SavedFile(name, int(size_bytes), float(written_at)))
    plans = {job_dir: f"{job_dir}/{contract.PLAN}" for job_dir in job_dirs if files[job_dir]}
    contents = read_texts(transport, list(plans.values()))
    return {
        job_dir: (files[job_dir], _pattern(contents.get(plans.get(job_dir, ""))))
        for job_dir in job_dirs
    }


def _pattern(plan: bytes | None) -> str | None:
    """Return what a plan says of a program's own checkpoints."""
    try:
        found: str | None = json.loads(plan or b"{}").get("checkpoint", {}).get("files")
    except _NOT_UNDERSTOOD:
        return None
    return found


def show_checkpoint(transport: Transport, job_dir: str, step: int | None) -> dict[str, Any]:
    """Return settings, files and tensors of a checkpoint, by default the newest complete one.

    Raises:
        ResultsError: there is no such checkpoint, or it can't be understood.
        TransportError
    """
    training_id = job_dir.rpartition("/")[2]
    markers = _markers_of(transport, _names_of(transport, [job_dir]))[job_dir]
    complete = [n for n, (_, marker) in markers.items() if _checkpoint(n, marker).complete]
    chosen = next((n for n in complete if step in (None, n)), None)
    if chosen is None:
        what = "complete checkpoint" if step is None else f"complete checkpoint of step {step}"
        hint = f"dlctl checkpoints list {training_id}"
        raise ResultsError(f"there is no {what} in {job_dir}", hint=hint)
    folder, content = markers[chosen]
    marker = json.loads(content or b"")
    records = [f"{folder}/{name}" for name in marker["files"] if _RECORD.fullmatch(name)]
    contents = read_texts(transport, [f"{folder}/{_STATE}", *records])
    try:
        state, *shares = (json.loads(content or b"") for content in contents.values())
        return _described(marker, state, shares)
    except _NOT_UNDERSTOOD as error:
        raise ResultsError(
            f"{transport.name}: the checkpoint {folder} can't be understood: {error!r}",
            hint=f"`dlctl checkpoints verify {training_id}` shows which are undamaged",
        ) from error


def _described(marker: Any, state: Any, shares: list[Any]) -> dict[str, Any]:
    places: dict[str, list[str]] = {}
    for share in shares:
        for piece in share["pieces"]:
            number, _, start = piece["name"].partition(":")
            place = f"share-{int(share['rank'])}.h5:{number}:{start}"
            places.setdefault(number, []).append(place)
    tensors = [
        {**leaf, "name": str(leaf["name"]), "dtype": str(leaf["dtype"]),
         "shape": [int(n) for n in leaf["shape"]], "places": places.get(str(number), [])}
        for number, leaf in enumerate(state["leaves"])
    ]  # fmt: skip
    known = {"learners": int(marker["learners"]), "settings": dict(marker["settings"])}
    return {**marker, **known, "tensors": tensors}


def verify(session: Session, record: Record, steps: list[int], *, on_node: bool) -> Any:
    """Verify checkpoints (all of them, if none is named) against their checksums.

    Raises:
        ResultsError: there is no such checkpoint.
        TransportError
    """
    from dlctl.lifecycle import read_plan

    plan, wanted = read_plan(session, record), list(map(str, steps))
    found = list_checkpoints(session.transport, record.job_dir)
    if not found and not plan.framework.has_loop:
        return []
    if not any(c.name for c in found):
        module, words = _TOOL, ["verify", record.job_dir, *wanted]
    else:
        module = "learner.frameworks.own_checkpoints"
        words = ["verify", record.job_dir, plan.checkpoint.files or "", *wanted]
    return run_module(session, plan, module, words, on_node=on_node, timeout_s=_TIMEOUT_S)


def diff(
    session: Session, record: Record, other: Record, steps: list[int], *, on_node: bool
) -> Any:
    """Compare the tensors of two checkpoints, from one training or from two on the same site.

    Args:
        other: That of the second checkpoint; it may be the same training.
        steps: Of the first and of the second; empty for the newest complete ones.
        on_node: Whether Python works only on compute nodes.

    Raises:
        ResultsError: there is no such checkpoint, or the trainings are on different sites.
        TransportError
    """
    from dlctl.lifecycle import read_plan

    if record.site != other.site:
        raise ResultsError(
            f"{record.training_id} is on {record.site} and {other.training_id} on {other.site}",
            hint="dlctl compares only checkpoints on the same site",
        )
    wanted = [*map(str, steps), "-", "-"][:2]
    words = ["diff", record.job_dir, wanted[0], other.job_dir, wanted[1]]
    plan = read_plan(session, record)
    return run_module(session, plan, _TOOL, words, on_node=on_node, timeout_s=_TIMEOUT_S)


def _names_of(transport: Transport, job_dirs: Sequence[str]) -> dict[str, list[str]]:
    """Return the names in each CHECKPOINT_DIR, by job directory; but the hidden ones."""
    roots = [f"{job_dir}/{contract.CHECKPOINTS}" for job_dir in job_dirs]
    script = f"""\
for d in {" ".join(map(shlex.quote, roots))}; do
    for f in "$d"/*; do [ ! -e "$f" ] && [ ! -L "$f" ] || printf '%s\\0' "${{f##*/}}"; done
    printf '/\\0' # which no name is
done"""
    listed = ask(transport, script).stdout.decode("utf-8", "surrogateescape").split("/\0")
    return {job_dir: names.split("\0")[:-1]
            for job_dir, names in zip(job_dirs, listed, strict=False)}  # fmt: skip


def _markers_of(
    transport: Transport, names: Mapping[str, Sequence[str]]
) -> dict[str, dict[int, tuple[str, bytes | None]]]:
    """Return each checkpoint's folder and marker, by job directory and step, newest first.

    Args:
        names: What `_names_of` returns.
    """
    folders = {
        job_dir: {
            int(m[1]): f"{job_dir}/{contract.CHECKPOINTS}/{m[0]}"
            for name in found if (m := _FOLDER.fullmatch(name))
        }
        for job_dir, found in names.items()
    }  # fmt: skip
    markers = [f"{folder}/{_MARKER}" for each in folders.values() for folder in each.values()]
    contents = read_texts(transport, markers)
    return {
        job_dir: {step: (each[step], contents[f"{each[step]}/{_MARKER}"])
                  for step in sorted(each, reverse=True)}
        for job_dir, each in folders.items()
    }  # fmt: skip


def _checkpoint(step: int, marker: bytes | None) -> Checkpoint:
    try:
        raw = json.loads(marker or b"")
        size_bytes = sum(int(file["size_bytes"]) for file in raw["files"].values())
        learners = dict(raw.get("settings", {})).get("learners", raw.get("learners"))
        return Checkpoint(
            step, True, _known(int, raw.get("epoch")), _known(int, learners), size_bytes,
            _known(float, raw.get("written_at")), bool(raw.get("kept_for_ever")),
        )  # fmt: skip
    except _NOT_UNDERSTOOD:
        return Checkpoint(step, False)


def _known(kind: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else kind(value)
