"""Write the files of a new training."""

from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import yaml

from dlctl.errors import ManifestError
from dlctl.manifest.model import json_schema
from dlctl.package_data import data_path

SCHEMA_FILE = ".dlctl/manifest.schema.json"
_FILES = {"manifest.yml": "manifest.yml", "train.py": "train.py", "gitignore": ".gitignore"}
_MAX_NAME = 100


def scaffold(folder: Path, name: str | None = None) -> list[Path]:
    """Write manifest.yml, train.py, .gitignore and the editor's schema; return their paths.

    Args:
        name: the training's name; if None, the folder's. Turned into one line.

    Raises:
        ManifestError: a file already exists (so nothing was written), or can't be written.
    """
    return _write_all(folder, _texts(name if name is not None else folder.resolve().name))


def scaffold_search(folder: Path) -> list[Path]:
    """Write search.yml and trials.py, and return their paths.

    Raises:
        ManifestError: a file already exists (so nothing was written), or can't be written.
    """
    source = data_path("templates") / "scaffold"
    names = ("search.yml", "trials.py")
    return _write_all(folder, {n: (source / n).read_text(encoding="utf-8") for n in names})


def _write_all(folder: Path, texts: dict[str, str]) -> list[Path]:
    existing = [path for path in texts if (folder / path).exists() or (folder / path).is_symlink()]
    if existing:
        raise ManifestError(
            f"{folder} already contains {', '.join(existing)}; nothing was written",
            hint="name another folder, as in: dlctl init NAME",
        )
    try:
        return [_write(folder / path, text) for path, text in texts.items()]
    except OSError as error:
        raise ManifestError(
            f"{folder}: can't be written: {error.strerror}",
            hint="name a folder elsewhere, as in: dlctl init ~/NAME",
        ) from error


def _texts(name: str) -> dict[str, str]:
    source = data_path("templates") / "scaffold"
    texts = {to: (source / of).read_text(encoding="utf-8") for of, to in _FILES.items()}
    quoted = yaml.safe_dump(clean_name(name), allow_unicode=True, default_style='"', width=1000)
    texts["manifest.yml"] = texts["manifest.yml"].replace("@NAME@", quoted.strip())
    texts[SCHEMA_FILE] = json.dumps(json_schema(), indent=2) + "\n"
    return texts


def clean_name(name: str) -> str:
    """Return a valid name for a manifest: one line, without control characters, not empty."""
    kept = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in name)
    return " ".join(kept.split())[:_MAX_NAME].strip() or "training"


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    return path
