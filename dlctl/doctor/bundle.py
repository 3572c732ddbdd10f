"""One archive for a bug report: versions, the site's file, the doctor's answers, dlctl's own logs.

What looks like a credential is replaced, and neither the user's program nor what it printed is in
it: the logs are those of dlctl's own programs at the site.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import __version__, contract
from dlctl.errors import DlctlError, ResultsError
from dlctl.files.small_files import read_files
from dlctl.lifecycle.session import open_session
from dlctl.record import RecordStore
from dlctl.sites.files import find_site, load_site

if TYPE_CHECKING:
    from dlctl.doctor.examine import Examined
    from dlctl.record import Record
    from dlctl.transport.base import Prompt

_HIDDEN = "(removed)"
_SECRET_NAME = re.compile(r"pass|secret|token|credential|api_?key|access_?key|auth", re.IGNORECASE)
_SECRET_LINE = re.compile(
    r"(?i)([\w.-]*(?:pass|secret|token|credential|api_?key|access_?key)[\w.-]*[\"']?\s*[:=]\s*)"
    r"(\"[^\"]*\"|'[^']*'|[^\s,;}]+)"
)
_SECRET_SHAPES = re.compile(
    r"(?<=://)[^/\s@]+@"  # user:password@ of a URL
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\b(?:ghp|gho|ghs|github_pat|glpat|hf|sk|xox[abp])[_-][\w-]{16,}"
    r"|(?<=[Bb]earer )\S+|\beyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.DOTALL,
)
_LEAST_SECRET_LENGTH = 6
_TRAININGS = 20
_LOGS_OF = 3
_LOG_BYTES = 100_000
_PACKAGES = ("typer", "rich", "paramiko", "cryptography", "pydantic", "jinja2", "pyyaml")


def write_bundle(path: Path, examined: Examined, name: str | None, prompt: Prompt | None) -> Path:
    """Write the archive; it can be read by the user alone.

    Raises:
        ResultsError: it can't be written, or the file exists already.
        SiteError: there is no such site.
    """
    texts = {
        "versions.json": _json(_versions()),
        "doctor.json": _json([dataclasses.asdict(link) for link in examined.links]),
    }
    records = _records(name)
    texts["trainings.json"] = _json(
        [{"training_id": r.training_id, "site": r.site, "attempt": r.attempt, "job_id": r.job_id,
          "state": str(r.state), "reason": r.reason, "hint": r.hint} for r in records]
    )  # fmt: skip
    if name:
        texts[f"sites/{name}.yml"] = _site_text(name)
        texts |= _site_logs(name, records[:_LOGS_OF], prompt)
    if examined.job:
        texts |= {f"job/{file}": text for file, text in examined.job.own_logs.items()}
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with (
            os.fdopen(descriptor, "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            for name_there, text in redact_all(texts, os.environ).items():
                data = text.encode("utf-8", "backslashreplace")
                member = tarfile.TarInfo(f"dlctl-doctor/{name_there}")
                member.size, member.mode, member.mtime = len(data), 0o600, int(time.time())
                archive.addfile(member, io.BytesIO(data))
    except OSError as error:
        raise ResultsError(f"{path} can't be written: {error.strerror}",
                           hint="name another file") from error  # fmt: skip
    return path


def redact_all(texts: Mapping[str, str], environment: Mapping[str, str]) -> dict[str, str]:
    """Return texts without what looks like a credential, and without those of this shell."""
    values = sorted(
        {value for name, value in environment.items()
         if _SECRET_NAME.search(name) and len(value) >= _LEAST_SECRET_LENGTH
         and not value.startswith("/")},
        key=len, reverse=True,
    )  # fmt: skip
    found = {}
    for name, text in texts.items():
        for value in values:
            text = text.replace(value, _HIDDEN)
        text = _SECRET_SHAPES.sub(_HIDDEN, text)
        found[name] = _SECRET_LINE.sub(lambda each: f"{each[1]}{_HIDDEN}", text)
    return found


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _versions() -> dict[str, str]:
    found = {
        "dlctl": __version__, "python": sys.version, "platform": platform.platform(),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "ssh": "none",
    }  # fmt: skip
    if shutil.which("ssh"):
        end = subprocess.run(["ssh", "-V"], capture_output=True, text=True, timeout=10)
        found["ssh"] = (end.stderr or end.stdout).strip()
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _site_text(name: str) -> str:
    """Return a site's file; the values of its environment variables may be anything."""
    lines, inside = [], -1
    for line in find_site(name).path.read_text(encoding="utf-8", errors="replace").splitlines():
        indent = len(line) - len(line.lstrip())
        if inside >= 0 and line.strip() and indent > inside:
            line = f"{line.partition(':')[0]}: {_HIDDEN}"
        elif line.strip():
            inside = indent if line.strip().startswith("variables:") else -1
            if inside >= 0 and line.partition(":")[2].strip():
                line, inside = f"{line.partition(':')[0]}: {_HIDDEN}", -1
        lines.append(line)
    return "\n".join(lines) + "\n"


def _records(name: str | None) -> list[Record]:
    """Return the newest trainings, as the local record has them."""
    try:
        known = [r for r in reversed(RecordStore().all()) if name in (None, r.site)]
    except DlctlError:
        return []  # a link of this machine says so
    return known[:_TRAININGS]


def _site_logs(name: str, records: list[Record], prompt: Prompt | None) -> dict[str, str]:
    """Return what dlctl's own programs printed in the newest attempts."""
    files = {
        f"{record.job_dir}/{place}": f"trainings/{record.training_id}/{place}"
        for record in records
        for place in (contract.job_output(record.attempt), contract.verdict_file(record.attempt),
                      f"{contract.attempt_dir(record.attempt)}/preflight.log")
    }  # fmt: skip
    session = open_session(load_site(name), prompt)
    try:
        found = read_files(session.transport, list(files))
    except DlctlError as error:
        return {"trainings/unreadable.txt": f"{error.message}\n"}
    finally:
        session.close()
    return {
        files[path]: content[-_LOG_BYTES:].decode(errors="replace")
        for path, content in found.items() if content
    }  # fmt: skip
