"""Remarks, a sentence each, on a manifest and a program that can't work as meant. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from difflib import get_close_matches

from dlctl.frameworks.files import CUSTOM, list_frameworks
from dlctl.frameworks.model import FrameworkFolder
from dlctl.manifest.model import Manifest

FIXED_PATHS = {
    "/mnt/data": "$DATA_DIR",
    "/mnt/results": "$RESULT_DIR",
    "/job": "$JOB_STATE_DIR, or $LOG_DIR for logs",
}
"""Folders of the service's containers, and the variable that names the same place here."""
_FIXED = re.compile(r"""(?<![\w./$}-])(/mnt/data|/mnt/results|/job)(?=[/"'\s]|$)""", re.MULTILINE)
_COMMENT = re.compile(r"(^|\s)#.*")


def remarks(
    manifest: Manifest, framework: FrameworkFolder, programs: Iterable[tuple[str, str]],
    *, version_is_there: bool = False,
) -> list[str]:  # fmt: skip
    """Return what is odd about a request: the version, dead code, fixed paths, fractions.

    Args:
        programs: the name and text of each program in the submitted folder.
        version_is_there: whether the site has the very version, with all that belongs to it.
    """
    version = manifest.framework.version
    known = version is None or framework.knows_version(version)
    found = [] if known or version_is_there else [_unknown_version(framework, str(version))]
    found += [*_misspelt(manifest, framework), *_fractions(manifest), *_several_stores(manifest)]
    for where, line in lines_of(manifest, programs):
        if known or not version_is_there:
            found += _gone(where, line, framework)
        found += _fixed(where, line)
    return found


def fixed_paths(manifest: Manifest, programs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """Return the folders of the service's containers that a request's programs name."""
    lines = lines_of(manifest, programs)
    return tuple(sorted({match[1] for _, line in lines for match in _FIXED.finditer(line)}))


def lines_of(
    manifest: Manifest, programs: Iterable[tuple[str, str]]
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """Yield the place and the text, without a comment, of each line that runs."""
    for name, text in [("framework.command", manifest.framework.command or ""), *programs]:
        for number, line in enumerate(text.splitlines(), 1):
            yield f"{name}:{number}", _COMMENT.sub("", line)


def _gone(where: str, line: str, framework: FrameworkFolder) -> Iterator[str]:
    for text, instead in framework.settings.gone.items():
        if re.search(rf"(?<![\w.]){re.escape(text)}\b", line):
            yield f"{where} uses {text}, which no longer exists: {instead}."


def _fixed(where: str, line: str) -> Iterator[str]:
    for match in _FIXED.finditer(line):
        yield (
            f"{where} uses {match[1]}, a path of the service's containers: it exists on nodes that "
            f"allow user namespaces (`dlctl doctor SITE --deep`); {FIXED_PATHS[match[1]]} "
            "works on all."
        )


def _unknown_version(framework: FrameworkFolder, version: str) -> str:
    return (
        f"The framework {framework.name} is known in the versions "
        f"{', '.join(framework.settings.versions)}, not in {version}: the site's nodes decide "
        "which one runs."
    )


def _several_stores(manifest: Manifest) -> Iterator[str]:
    """Yield a remark on a manifest of the service's successor, which uses the first store only."""
    sources = [store for store in manifest.data_stores if store.training_data is not None]
    theirs = any(s.type == "mount_cos" or "type" in s.connection for s in manifest.data_stores)
    if theirs and len(sources) > 1:
        yield (
            f"DATA_DIR has a folder for each of {len(sources)} data stores; the service's "
            f"successor uses only the first, which is $DATA_DIR/{sources[0].id} here."
        )


def _misspelt(manifest: Manifest, framework: FrameworkFolder) -> Iterator[str]:
    """Yield a remark on a command's framework that is almost one of ours."""
    name = manifest.framework.name.lower()
    if framework.name == CUSTOM != name:
        known = [each.name for each in list_frameworks()[0]]
        for near in get_close_matches(name, known, 1, 0.8):
            yield (f"There is no framework {name!r}, so the command runs as it is; did you mean "
                   f"{near!r}?")  # fmt: skip


def _fractions(manifest: Manifest) -> Iterator[str]:
    if manifest.gpus != manifest.gpus_per_learner():
        yield (
            f"Slurm has no fractions of a GPU: each learner gets {manifest.gpus_per_learner()} "
            f"for gpus: {manifest.gpus:g}."
        )
