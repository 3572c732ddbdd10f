"""A job directory with the keys of a search, as dlctl writes them."""

from pathlib import Path

from dlctl.contract import search as files
from dlctl.search.certificates import make_certificates


def write_keys(job_dir: Path) -> None:
    folder = job_dir / files.KEYS
    folder.mkdir(parents=True, mode=0o700)
    for name, text in make_certificates().items():
        path = folder / name
        path.touch(mode=0o600)
        path.write_text(text)
