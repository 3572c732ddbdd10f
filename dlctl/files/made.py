"""See what a training has made, and where it lies, from here: a shell at the site is enough.

The node says so in its verdict. This is for attempts that left none, and for fetching.
"""

from __future__ import annotations

import contextlib
import json
import shlex

from dlctl import contract
from dlctl.contract import Made
from dlctl.files.listing import SiteFile, listing_script, parsed_listing, sums
from dlctl.files.small_files import read_files_after
from dlctl.transport import Transport

_FOLDERS = (contract.CODE, contract.RESULTS, contract.CHECKPOINTS)
_NEWER = "n"
_TIMEOUT_S = 600.0


def look_at_made(transport: Transport, job_dir: str) -> tuple[Made, list[SiteFile]]:
    """Return what a training has made, and its output, with links and what else is no file.

    The paths of the output are relative to the job directory.

    Raises:
        TransferError, TransportError
    """
    newer = f"printf '{_NEWER}%s\\0' \"$@\""
    ours = "|".join(map(shlex.quote, contract.DLCTLS))
    script = f"""\
cd -- {shlex.quote(job_dir)} 2>/dev/null || exit 0
newer() {{
    find {contract.CODE} -type f "$@" -exec sh -c {shlex.quote(newer)} sh {{}} + 2>/dev/null
}}
newer -newer {contract.claim(1)}
newer -cnewer {contract.claim(1)} # a program may set the mtime; not every find can tell
{listing_script(_FOLDERS, missing_ok=True)}
for f in * .[!.]*; do
    case $f in {ours}) ;; *) [ -L "$f" ] || list "./$f" ;; esac
done"""
    index_file = f"{contract.CODE}/{contract.SENT_INDEX}"
    paths = [f"{job_dir}/{name}" for name in (index_file, contract.PLAN)]
    listing, contents = read_files_after(transport, script, paths, timeout_s=_TIMEOUT_S)
    index, plan = contents.values()
    sent, caches = _sent(index), _caches(plan)
    folders: dict[str, list[int]] = {contract.RESULTS: [], contract.CHECKPOINTS: []}
    changed, links = set(), {file.path for file in sent if file.kind == "l"}
    code, more = dict[str, SiteFile](), dict[str, SiteFile]()
    for file in parsed_listing(transport.name, listing, {}):
        folder, _, path = file.path.partition("/")
        is_code = folder == contract.CODE
        if file.kind == _NEWER:
            changed.add(path)
        elif file.kind == "d":
            named = caches if folder not in folders else ()
            if not contract.is_cache(path if is_code else file.path, named):
                inside = path if is_code else contract.BESIDE + file.path
                more[f"{inside or '.'}/"] = file
        elif folder in folders:
            if file.kind == "f" and not contract.is_cache(path, ()):
                folders[folder].append(file.size_bytes)
        elif contract.is_cache(path if is_code else file.path, caches):
            pass
        elif not is_code:
            more[contract.BESIDE + file.path] = file
        elif file.kind == "f":
            code[path] = file
        elif path not in links:
            more[path] = file
    found, as_large = contract.not_as_sent(
        {path: file.size_bytes for path, file in code.items()}, sent
    )
    doubtful = {file.path: file.sha256 for file in as_large if file.path in changed}
    there = sums(transport, f"{job_dir}/{contract.CODE}", list(doubtful))
    found += [path for path, digest in doubtful.items() if there.get(path) != digest]
    output = {path: code[path] for path in found} | more
    places = contract.output_places(
        {path: file.size_bytes for path, file in output.items() if file.kind in "fd"}
    )
    results, checkpoints = (contract.Amount(len(sizes), sum(sizes)) for sizes in folders.values())
    return Made(results, checkpoints, places), [output[path] for path in sorted(output)]


def _sent(index: bytes | None) -> list[contract.SentFile]:
    with contextlib.suppress(ValueError):
        return contract.parse_index(index or b"")
    return []


def _caches(plan: bytes | None) -> list[str]:
    with contextlib.suppress(ValueError, LookupError, TypeError):
        return [str(each) for each in json.loads(plan or b"")["output_caches"]]
    return list(contract.CACHES)
