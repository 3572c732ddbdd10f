"""Write the files of a new training."""

from __future__ import annotations

import json
import shlex
import unicodedata
from pathlib import Path

import yaml

from dlctl.errors import ManifestError
from dlctl.manifest.model import json_schema
from dlctl.package_data import data_path

SCHEMA_FILE = ".dlctl/manifest.schema.json"
_FILES = {"manifest.yml": "manifest.yml", "train.py": "train.py", "gitignore": ".gitignore"}
_MANIFESTS = ("manifest.yml", "manifest.yaml")
_SCRIPTS = ("train.py", "main.py", "run.py")
"""Names of scripts that train, the likeliest first."""
_MAX_NAME = 100


def scaffold(folder: Path, name: str | None = None) -> list[Path]:
    """Write manifest.yml, train.py, .gitignore and the editor's schema; return their paths.

    Args:
        name: the training's name; if None, the folder's. Turned into one line.

    Raises:
        ManifestError: a file already exists (so nothing was written), or can't be written.
    """
    return _write_all(folder, _texts(name if name is not None else folder.resolve().name))


def scaffold_own(folder: Path, command: str = "") -> tuple[list[Path], str]:
    """Write a manifest for the program that lies in a folder; return its path, and the command.

    What else belongs to it is written, too, unless it is there: .dlctlignore, the editor's schema.

    Args:
        command: Runs the program; empty: `python` and the script that seems to train.

    Raises:
        ManifestError: there is a manifest, or no such script; or nothing can be written.
    """
    manifests = [name for name in _MANIFESTS if (folder / name).exists()]
    if manifests:
        raise ManifestError(f"{folder} already contains {manifests[0]}; nothing was written",
                            hint=f"dlctl submit {folder / manifests[0]}")  # fmt: skip
    command = command or _command(folder)
    source = data_path("templates") / "scaffold"
    manifest = (source / "own.yml").read_text(encoding="utf-8")
    for word, value in (("@NAME@", clean_name(folder.resolve().name)), ("@COMMAND@", command)):
        manifest = manifest.replace(word, _quoted(value))
    texts = {"manifest.yml": manifest, SCHEMA_FILE: _schema(),
             ".dlctlignore": (source / "dlctlignore").read_text(encoding="utf-8")}  # fmt: skip
    missing = {name: text for name, text in texts.items() if not (folder / name).exists()}
    return _write_all(folder, missing), command


def _command(folder: Path) -> str:
    """Return the command that runs the folder's own script."""
    scripts = sorted(path.name for path in folder.glob("*.py"))
    likely = [name for name in _SCRIPTS if name in scripts] or (
        scripts if len(scripts) == 1 else []
    )
    if not likely:
        raise ManifestError(
            f"{folder} has {len(scripts)} Python scripts, none of them named {', '.join(_SCRIPTS)}",
            hint="say how your program is run: `dlctl init . --command ./run.sh`",
        )
    return f"python {shlex.quote(likely[0])}"


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
    texts["manifest.yml"] = texts["manifest.yml"].replace("@NAME@", _quoted(clean_name(name)))
    return texts | {SCHEMA_FILE: _schema()}


def _quoted(text: str) -> str:
    return str(yaml.safe_dump(text, allow_unicode=True, default_style='"', width=1000)).strip()


def _schema() -> str:
    return json.dumps(json_schema(), indent=2) + "\n"


def clean_name(name: str) -> str:
    """Return a valid name for a manifest: one line, without control characters, not empty."""
    kept = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in name)
    return " ".join(kept.split())[:_MAX_NAME].strip() or "training"


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    return path
