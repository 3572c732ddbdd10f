"""See what a training has made, and where it lies, from here: a shell at the site is enough.

The node says so in its verdict. This is for attempts that left none, and for fetching.
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Iterable
from dataclasses import replace

from dlctl import contract
from dlctl.contract import Amount, Made
from dlctl.files.listing import SiteFile, listing_script, parsed_listing, sums
from dlctl.files.small_files import read_files_after
from dlctl.transport import Transport

_FOLDERS = (contract.CODE, contract.RESULTS, contract.CHECKPOINTS)
_NEWER = "n"
_TIMEOUT_S = 600.0


def look_at_made(transport: Transport, job_dir: str) -> tuple[Made, list[SiteFile]]:
    """Return what a training has made, and the files of its output.

    Raises:
        TransferError, TransportError
    """
    newer = f"printf '{_NEWER}%s\\0' \"$@\""
    script = f"""\
cd -- {shlex.quote(job_dir)} 2>/dev/null || exit 0
find {contract.CODE} -type f -newer {contract.claim(1)} -exec sh -c {shlex.quote(newer)} sh {{}} + \
2>/dev/null
{listing_script(_FOLDERS, missing_ok=True)}"""
    paths = [f"{job_dir}/{name}" for name in (f"{contract.CODE}/{contract.SENT_INDEX}",
                                              contract.PLAN)]  # fmt: skip
    listing, contents = read_files_after(transport, script, paths, timeout_s=_TIMEOUT_S)
    index, plan = contents.values()
    files: dict[str, dict[str, SiteFile]] = {name: {} for name in _FOLDERS}
    changed = set()
    for file in parsed_listing(transport.name, listing, {}):
        folder, _, path = file.path.partition("/")
        if file.kind == _NEWER:
            changed.add(path)
        elif file.kind == "f" and not contract.is_cache(path, ()):
            files[folder][path] = replace(file, path=path)
    code = files[contract.CODE]
    sizes = {path: file.size_bytes for path, file in code.items()}
    found, as_large = contract.not_as_sent(sizes, _sent(index), _caches(plan))
    doubtful = {file.path: file.sha256 for file in as_large if file.path in changed}
    there = sums(transport, f"{job_dir}/{contract.CODE}", list(doubtful))
    found += [path for path, digest in doubtful.items() if there.get(path) != digest]
    places = contract.output_places({path: sizes[path] for path in found})
    results, checkpoints = (_amount(files[each].values()) for each in _FOLDERS[1:])
    return Made(results, checkpoints, places), [code[path] for path in sorted(found)]


def _sent(index: bytes | None) -> list[contract.SentFile]:
    with contextlib.suppress(ValueError):
        return contract.parse_index(index or b"")
    return []


def _caches(plan: bytes | None) -> list[str]:
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return [str(each) for each in json.loads(plan or b"")["output_caches"]]
    return list(contract.CACHES)


def _amount(files: Iterable[SiteFile]) -> Amount:
    sizes = [file.size_bytes for file in files]
    return Amount(len(sizes), sum(sizes))
