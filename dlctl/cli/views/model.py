"""Views of stored models: one version, a model's versions, a difference."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dlctl.cli import output
from dlctl.cli.common import ago, dash
from dlctl.contract.ground.safe_text import printable
from dlctl.units import counted, format_bytes

if TYPE_CHECKING:
    from dlctl.contract import MetricSummary
    from dlctl.models.known import KnownModel
    from dlctl.models.reading import Found

_MOST_FILES, _DIGITS = 30, "{:.4g}".format


def print_version(found: Found, *, verified: bool) -> None:
    """Print one version in full, and its model's others."""
    from dlctl.models.compare import origin_in_words

    version, model = found.version, found.model
    output.fields({
        "model": version.label, "name": version.name,
        "means": " ".join(f"@{alias}" for alias in model.aliases_of(version.version)),
        "tags": " ".join(model.tags), "description": model.description, "site": model.site,
        "created": ago(time.time() - version.created_at),
        **origin_in_words(version),
        "metrics": " · ".join(_metric(name, m) for name, m in version.metrics.items()),
        "used by": ", ".join(_users(model, version.version)),
        "manifest": "yes" if version.manifest else "none: it can't be trained by itself",
        "size": f"{counted(version.file_count, 'file')}, {format_bytes(version.size_bytes)}"
        + (", all verified" if verified else ""),
    })  # fmt: skip
    rows = [[printable(f.path), f.part, format_bytes(f.size_bytes), f.sha256[:12]]
            for f in version.files]  # fmt: skip
    output.line("")
    output.table(["file", "part", "size", "sha256"], rows[:_MOST_FILES])
    if len(rows) > _MOST_FILES:
        output.note(f"and {len(rows) - _MOST_FILES} more: dlctl models show {version.label} --json")
    if len(model.numbers) > 1:
        output.line("")
        print_versions(model)


def print_versions(model: KnownModel) -> None:
    """Print a model's versions, the newest first."""
    rows = []
    for number in reversed(model.numbers):
        version = model.version(number)
        rows.append([
            str(number), " ".join(f"@{a}" for a in model.aliases_of(number)) or "-",
            format_bytes(version.size_bytes), version.training_id or "-", version.parent or "-",
            ago(time.time() - version.created_at),
        ])  # fmt: skip
    output.table(["version", "aliases", "size", "training", "parent", "created"], rows)


def print_changes(model: KnownModel, number: int) -> None:
    """Print what a model is after an update."""
    output.line(f"{model.model_id}@{number}")
    aliases = " ".join(f"@{alias}={n}" for alias, n in sorted(model.aliases.items()))
    output.note("; ".join(filter(None, [
        f"versions 1 to {model.numbers[-1]}" if number > 1 else "version 1", aliases,
        f"tags {' '.join(model.tags)}" if model.tags else "", model.description,
    ])))  # fmt: skip


def print_differences(found: dict[str, Any]) -> None:
    """Print how two versions, or two trainings, differ."""
    tables = [("origin", found["origin"]), ("plan", found.get("plan", []))]
    if not any(
        (found["files"], found["manifest"], found["metrics"], *(rows for _, rows in tables))
    ):
        return output.line(f"{found['first']} and {found['second']} are the same")
    shown: list[bool] = []

    def begin() -> None:
        """Put an empty line between parts."""
        if shown:
            output.line()
        shown.append(True)

    if found["files"]:
        begin()
        output.table(["file", "part", "what", "before", "after"], [
            [f["path"], f["part"], f["what"], dash(f["size_bytes_before"], format_bytes),
             dash(f["size_bytes_after"], format_bytes)] for f in found["files"][:_MOST_FILES]
        ])  # fmt: skip
        if (more := len(found["files"]) - _MOST_FILES) > 0:
            output.note(f"and {more} more: --json lists them all")
    if found["metrics"]:
        begin()
        output.table(["metric", "last before", "after", "best before", "after "], [
            [m["name"], *(dash(m[k], _DIGITS) for k in (
                "last_before", "last_after", "best_before", "best_after"))]
            for m in found["metrics"]
        ])  # fmt: skip
    for name, known in tables:
        if known:
            begin()
            rows = [[o["what"], o["before"] or "-", o["after"] or "-"] for o in known]
            output.table([name, "before", "after"], rows)
    if found["manifest"]:
        begin()
        output.line("manifest.yml:")
        for text in found["manifest"]:
            if not text.startswith("@@"):
                output.line(f"  {text}")
    return None


def _users(model: KnownModel, number: int) -> list[str]:
    uses = (use.partition(".")[::2] for use in model.uses)
    return [training_id for n, training_id in uses if n == str(number)]


def _metric(name: str, of: MetricSummary) -> str:
    best = "" if of.best in (None, of.last) else f" (best {of.best:.4g})"
    return f"{name} {dash(of.last, _DIGITS)}{best}"
