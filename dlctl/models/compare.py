"""Compares two versions: files, manifest, metrics, and origin."""

from __future__ import annotations

import difflib
from typing import Any

from dlctl import contract
from dlctl.contract import DataStore, ModelVersion
from dlctl.contract.ground.safe_text import printable


def compare(first: ModelVersion, second: ModelVersion) -> dict[str, Any]:
    """Return the differences, as `--json` prints them; empty where there are none."""
    before, after = first.manifest.splitlines(), second.manifest.splitlines()
    return {
        "first": first.label,
        "second": second.label,
        "files": files(first, second),
        "manifest": list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:],
        "metrics": metrics(first, second),
        "origin": origin(first, second),
    }


def files(first: ModelVersion, second: ModelVersion) -> list[dict[str, Any]]:
    """Return the files that differ, with what happened to each."""
    old, new = ({(f.part in contract.MADE_FILES, f.path): f for f in v.files}
                for v in (first, second))  # fmt: skip
    found = []
    for key in sorted(old.keys() | new.keys()):
        a, b = old.get(key), new.get(key)
        if a and b and (a.sha256, a.mode, a.link) == (b.sha256, b.mode, b.link):
            continue
        what = "removed" if b is None else "added" if a is None else "changed"
        one = b or a
        assert one is not None
        found.append({"path": printable(one.path), "part": one.part, "what": what,
                      "size_bytes_before": a.size_bytes if a else None,
                      "size_bytes_after": b.size_bytes if b else None})  # fmt: skip
    return found


def metrics(first: ModelVersion, second: ModelVersion) -> list[dict[str, Any]]:
    """Return the last and the best values of each metric that either has, where they differ."""
    nothing = contract.MetricSummary(None)
    found = []
    for name in sorted(first.metrics.keys() | second.metrics.keys()):
        a, b = first.metrics.get(name, nothing), second.metrics.get(name, nothing)
        if a != b:
            found.append({"name": name, "last_before": a.last, "last_after": b.last,
                          "best_before": a.best, "best_after": b.best})  # fmt: skip
    return found


def origin(first: ModelVersion, second: ModelVersion) -> list[dict[str, str]]:
    """Return what differs in where they come from: the training, the parent, git, dlctl."""
    old, new = origin_in_words(first), origin_in_words(second)
    return [
        {"what": name, "before": old.get(name, ""), "after": new.get(name, "")}
        for name in dict.fromkeys([*old, *new]) if old.get(name, "") != new.get(name, "")
    ]  # fmt: skip


def _data(store: DataStore) -> str:
    place = f"{store.path}/" if store.path else ""  # a container is no path
    return f"{store.id}: {place}{store.training_data}"


def origin_in_words(version: ModelVersion) -> dict[str, str]:
    """Return where a version comes from, in words."""
    git = version.git
    state = "" if git is None else f"{git.commit[:12]}{f' ({git.branch})' if git.branch else ''}"
    training = version.training_id
    return {
        "parent": version.parent,
        "copy of": version.copy_of,
        "training": f"{training}, attempt {version.attempt}" if training else "",
        "git": state + (", with changes" if git and git.dirty else ""),
        "data": ", ".join(_data(d) for d in version.data),
        "dlctl": version.dlctl_version,
        "by": version.created_by,
    }
