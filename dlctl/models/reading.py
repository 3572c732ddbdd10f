"""Reads the stored models of a site: all of them at a glance, one version whole."""

from __future__ import annotations

import json
import re
import secrets
import shlex
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.contract import ModelFile, ModelVersion
from dlctl.contract.ground.safe_text import printable
from dlctl.errors import RecordError, RemoteCommandError, ResultsError
from dlctl.files.small_files import read_files
from dlctl.models.known import KnownModel, Reference, find_model, parse_reference

if TYPE_CHECKING:
    from dlctl.lifecycle import Session

_TIMEOUT_S = 120.0
_HASHING_S = 24 * 3600.0


@dataclass(frozen=True)
class Found:
    """A version of a model at a site."""

    model: KnownModel
    version: ModelVersion

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        names = ("site", "tags", "aliases", "description", "uses")
        known = {name: getattr(self.model, name) for name in names}
        return {**asdict(self.version), **known, "versions": self.model.numbers}


def read_models(session: Session) -> list[KnownModel]:
    """Return all models of a site, in one round trip; the records' lists of files stay there.

    Once a day this renews what is older than a week, as sites remove what nobody has changed for
    some weeks: the records and what they name.

    Raises:
        TransportError
    """
    mark = f"<{secrets.token_hex(16)}>"
    uses = f"./*/{contract.MODEL_USES}/*"
    folder = shlex.quote(f"{session.site.root}/{contract.MODEL_VERSIONS}")
    script = f"""\
LC_ALL=C; export LC_ALL
problem=$(ls -d -- {folder}/. 2>&1) || case $problem in *'No such file'*) exit 0 ;; esac
cd -- {folder} || {{ printf '%s\\n' "$problem" >&2; exit 1; }}
renew() {{
    [ -O .. ] && [ -z "$(find ../.renewed -mtime -1 2>/dev/null)" ] && true >../.renewed || return
    find . -type f -mtime +7 -exec touch -c {{}} +
    find . -type f -name '*.json' -exec sed -n 's/.*"sha256": "\\([0-9a-f]*\\)".*/\\1/p' {{}} + |
        sort -u | (cd ../blobs && xargs sh -c '[ $# -eq 0 ] || find "$@" -mtime +7' sh |
            xargs touch -c)
}}
renew >/dev/null 2>&1
find . -type f -path '{uses}' # their names say all
find . -type f ! -name '.*' ! -name '*.deleted' ! -path '{uses}' -exec awk -v mark='{mark}' '
    FNR == 1 {{ print mark FILENAME; skip = 0 }}
    skip {{ next }}
    {{ print }}
    /^  "files": \\[$/ {{ skip = 1 }}' {{}} +
printf '%s' '{mark}'"""
    end = session.transport.run(script, timeout_s=_TIMEOUT_S)
    if end.exit_code or not end.stdout:
        if not end.exit_code:
            return []  # there is no such folder
        raise RemoteCommandError(
            f"{session.transport.name}: the models can't be read: {end.last_error_line}",
            hint="check the permissions there",
        )
    texts = end.stdout.decode("utf-8", "replace").split(mark)
    if texts.pop() or len(texts) < 1:
        raise RemoteCommandError(
            f"{session.transport.name}: the list of models was cut short", hint="Try again."
        )
    named = [(name, "") for name in texts[0].split("\n") if name]
    files = (text.partition("\n")[::2] for text in texts[1:])
    return _models(session.site.name, [*named, *files])


def _models(site: str, files: Iterable[tuple[str, str]]) -> list[KnownModel]:
    """Return the models whose files these are: the name of each, relative, and its text."""
    found: dict[str, dict[str, Any]] = {}
    for name, text in files:
        model_id, *inner = PurePosixPath(name).parts
        known = found.setdefault(
            model_id, {"heads": {}, "aliases": {}, "tags": [], "uses": [], "description": ""}
        )
        match inner:
            case [record] if re.fullmatch(r"\d+\.json", record):
                if (head := _head(text)) is not None:
                    known["heads"][record.removesuffix(".json")] = head
            case [contract.MODEL_ALIASES, alias] if text.strip().isdecimal():
                known["aliases"][alias] = int(text)
            case [contract.MODEL_TAGS | contract.MODEL_USES as kind, word]:
                known[kind].append(word)
            case [contract.MODEL_DESCRIPTION]:
                known["description"] = _text(text)
    now = time.time()
    return [
        KnownModel(model_id, site, seen_at=now, **known | {
            "tags": sorted(known["tags"]), "uses": sorted(known["uses"]),
        })
        for model_id, known in sorted(found.items()) if known["heads"]
    ]  # fmt: skip


def _head(text: str) -> ModelVersion | None:
    """Return a record without its files; None if this version does not understand it."""
    try:
        return contract.from_json(ModelVersion, contract.whole_head(text))
    except (ValueError, contract.ContractError):
        return None


def _text(text: str) -> str:
    try:
        return str(json.loads(text))
    except ValueError:
        return text.strip()


def find_version(session: Session, wanted: str) -> Found:
    """Return the version that a person names, with its files.

    Raises:
        RecordError: there is no such model or version, or it is deleted at this moment.
        ResultsError: the version's record is damaged.
    """
    return whole_version(session, read_models(session), parse_reference(wanted))


def whole_version(session: Session, models: list[KnownModel], wanted: Reference) -> Found:
    """Return what `find_version` returns, for models that were read before."""
    model = find_model(models, wanted.model, f"at the site {session.site.name}")
    number = model.number_of(wanted.which)
    path = f"{session.site.root}/{contract.MODEL_VERSIONS}/{model.model_id}/{number}.json"
    content = read_files(session.transport, [path], timeout_s=_TIMEOUT_S)[path]
    if content is None:
        raise RecordError(
            f"{session.transport.name}: {model.model_id}@{number} was deleted at this moment",
            hint=f"`dlctl models show {model.model_id}` lists its versions and aliases",
        )
    try:
        return Found(model, contract.from_json(ModelVersion, content))
    except (ValueError, contract.ContractError) as error:
        raise ResultsError(
            f"{session.transport.name}: {path} can't be understood: {error}",
            hint="it may come from another version of dlctl; use that version",
        ) from error


def blobs_of(files: Iterable[ModelFile]) -> dict[str, int]:
    """Return the SHA-256 and the size of each content."""
    return {file.sha256: file.size_bytes for file in files if not file.link}


def escaped(path: str) -> str:
    """Return a path on one line, in the words of printf's %b."""
    return path.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def missing_blobs(session: Session, files: Iterable[ModelFile]) -> set[str]:
    """Return the contents that a site lacks, or has in another size; renew the times of the others.

    `dlctl models gc` spares what is young.

    Raises:
        RemoteCommandError
    """
    wanted = blobs_of(files)
    blobs = shlex.quote(f"{session.site.root}/{contract.MODEL_BLOBS}")
    script = f"""\
LC_ALL=C; export LC_ALL
cd -- {blobs} 2>/dev/null || exit 0
xargs sh -c 'touch -c -- "$@" 2>/dev/null; wc -c -- /dev/null "$@" 2>/dev/null' sh
exit 0"""
    names = "\n".join(wanted).encode() + b"\n"
    end = session.transport.run(script, stdin=names if wanted else b"", timeout_s=_TIMEOUT_S)
    if end.exit_code:
        raise RemoteCommandError(
            f"{session.transport.name}: the stored contents can't be read: {end.last_error_line}",
            hint="check the permissions there",
        )
    sizes = {}
    for line in end.lines:
        size, _, sha256 = line.strip().partition(" ")
        sizes[sha256] = size
    return {sha256 for sha256, size in wanted.items() if sizes.get(sha256) != str(size)}


def verify(session: Session, version: ModelVersion) -> list[str]:
    """Read every content of a version; return the paths of the files that are damaged or missing.

    A damaged content gets another name, so that the next `dlctl models create` or `update` with the
    same file sends it again.

    Raises:
        ResultsError: the site has no program for sums.
    """
    blobs = shlex.quote(f"{session.site.root}/{contract.MODEL_BLOBS}")
    script = f"""\
LC_ALL=C; export LC_ALL
cd -- {blobs} 2>/dev/null || exit 0
check='sha256sum --'
command -v sha256sum >/dev/null 2>&1 || check='shasum -a 256 --'
xargs $check 2>/dev/null | while read -r sum sha; do
    if [ "$sum" = "$sha" ]; then echo "$sha"; else mv -f -- "$sha" "$sha{contract.DAMAGED_BLOB}"; fi
done
command -v sha256sum >/dev/null 2>&1 || command -v shasum >/dev/null 2>&1 || exit 72"""
    names = "\n".join(blobs_of(version.files)).encode() + b"\n"
    end = session.transport.run(script, stdin=names, timeout_s=_HASHING_S)
    if end.exit_code:
        raise ResultsError(
            f"{session.transport.name}: no program there can verify a SHA-256",
            hint=f"`dlctl models pull {version.label}` verifies each file on this machine",
        )
    whole = set(end.text.split())
    return [printable(f.path) for f in version.files if not f.link and f.sha256 not in whole]
