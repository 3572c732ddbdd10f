"""A site on this machine with stored models, and folders to store."""

from __future__ import annotations

from pathlib import Path

from login_side import make_site

from dlctl.lifecycle.session import Session
from dlctl.models.create import Wish, from_folder
from dlctl.models.reading import find_version, read_models
from dlctl.transport.local import LocalTransport

MANIFEST = "name: words\nframework: {name: own, command: 'cat words.txt'}\n"


class ModelSite:
    """A site's folder, and what stores models there."""

    def __init__(self, root: Path, transport=None, more: str = "") -> None:
        self.root = root
        self.site = make_site(str(root), more=more)
        self.session = Session(self.site, transport or LocalTransport(), None)

    def through(self, transport) -> ModelSite:
        """Return the same site, reached in another way."""
        return ModelSite(self.root, transport)

    def store(self, folder: Path, model_id: str = "", **wish):
        """Store a folder as a new model, or as a new version of a model."""
        model = self.model(model_id) if model_id else None
        return from_folder(self.session, folder, Wish(model=model, **wish))

    def model(self, model_id: str):
        """Return what the site knows about a model."""
        return next(m for m in read_models(self.session) if m.model_id == model_id)

    def version(self, wanted: str):
        """Return a version with its files."""
        return find_version(self.session, wanted).version

    def blobs(self) -> dict[str, Path]:
        """Return the contents at the site, by their names."""
        return {path.name: path for path in (self.root / "models/blobs").iterdir()}

    def leftovers(self) -> list[Path]:
        """Return what an unfinished create has left."""
        known = [
            *self.root.glob(".dlctl-upload.*"),
            *self.root.rglob(".new.*"),
            *self.root.rglob(".gc*"),
        ]
        incoming = self.root / "models/incoming"
        return known + (list(incoming.iterdir()) if incoming.exists() else [])


def write_folder(folder: Path, **files: str | bytes) -> Path:
    """Write a folder with a manifest and files; `_` in a name stands for a dot."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.yml").write_text(MANIFEST)
    for name, content in ({"words_txt": "hello\n"} | files).items():
        data = content.encode() if isinstance(content, str) else content
        (folder / name.replace("_", ".")).write_bytes(data)
    return folder
