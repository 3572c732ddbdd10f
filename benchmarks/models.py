"""What stored models take: `python -m benchmarks.models`.

models_20    bytes below `models/` of 20 versions that share 90 % of their contents; floor: the
             unique bytes
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.report import Result, say
from dlctl.contract import MODELS
from dlctl.lifecycle import open_session
from dlctl.models.create import Wish, from_folder
from dlctl.models.reading import read_models
from dlctl.sites.files import parse_site

_VERSIONS, _FILES, _FILE_BYTES = 20, 50, 200_000
_SITE = """\
transport: {{kind: local}}
root: {root}
scheduler: {{kind: local}}
launcher: {{kind: mpirun}}
environment: {{python: auto}}
"""


def measure(quick: bool = False) -> Iterator[Result]:
    """Yield the result."""
    with tempfile.TemporaryDirectory(prefix="dlctl-models.") as name:
        yield _twenty(Path(name), 3 if quick else _VERSIONS)


def _twenty(place: Path, versions: int) -> Result:
    """Store versions of which each replaces a tenth of the files of the one before it."""
    folder, draw = place / "folder", random.Random(1)  # noqa: S311
    folder.mkdir()
    contents = 0
    session = open_session(parse_site("bench", _SITE.format(root=place / "root")))
    try:
        for version in range(versions):
            changed = draw.sample(range(_FILES), _FILES // 10) if version else range(_FILES)
            for number in changed:
                (folder / f"layer-{number}.bin").write_bytes(draw.randbytes(_FILE_BYTES))
            contents += len(changed)
            models = read_models(session)
            from_folder(session, folder, Wish("bench", model=models[0] if models else None))
    finally:
        session.close()
    stored = sum(p.stat().st_size for p in (place / "root" / MODELS).rglob("*") if p.is_file())
    return Result("models_20", "B", stored, contents * _FILE_BYTES, {}, versions)


if __name__ == "__main__":
    for result in measure():
        say(result)
