"""What of a manifest and its program can't work as its author means it, a sentence each. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

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
    manifest: Manifest, framework: FrameworkFolder, programs: Iterable[tuple[str, str]]
) -> list[str]:
    """Return what is odd about a request: the version, dead code, fixed paths, fractions.

    Args:
        programs: the name and text of each program in the submitted folder.
    """
    texts = [("framework.command", manifest.framework.command or ""), *programs]
    found = [*_version(manifest, framework), *_fractions(manifest)]
    for name, text in texts:
        for number, line in enumerate(text.splitlines(), 1):
            found += _of_line(f"{name}:{number}", _COMMENT.sub("", line), framework)
    return found


def _of_line(where: str, line: str, framework: FrameworkFolder) -> Iterator[str]:
    for text, instead in framework.settings.gone.items():
        if re.search(rf"(?<![\w.]){re.escape(text)}\b", line):
            yield f"{where} uses {text}, which no longer exists: {instead}."
    for match in _FIXED.finditer(line):
        yield (
            f"{where} uses {match[1]}, a path of the service's containers that does not exist "
            f"here: use {FIXED_PATHS[match[1]]}."
        )


def _version(manifest: Manifest, framework: FrameworkFolder) -> Iterator[str]:
    version = manifest.framework.version
    if version is not None and not framework.knows_version(version):
        yield (
            f"The framework {framework.name} is known in the versions "
            f"{', '.join(framework.settings.versions)}, not in {version}: the site's nodes decide "
            "which one runs."
        )


def _fractions(manifest: Manifest) -> Iterator[str]:
    if manifest.gpus != manifest.gpus_per_learner():
        yield (
            f"Slurm has no fractions of a GPU: each learner gets {manifest.gpus_per_learner()} "
            f"for gpus: {manifest.gpus:g}."
        )
