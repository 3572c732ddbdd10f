"""Stored models: the record of a version, and the names below `<root>/models/`.

A version never changes: its record names the SHA-256 of each of its files, and each content is
stored once, whatever number of versions share it. Names and files are so plain that a POSIX shell
can do everything that happens to them at a site.
"""

from __future__ import annotations

import dataclasses
import json
import posixpath
from dataclasses import dataclass, field

from dlctl.contract.ground.safe_text import without_suffix
from dlctl.contract.plan import DataStore, GitState
from dlctl.contract.records import SCHEMA_VERSION

MODELS = "models"
"""Below a site's root: all stored models."""
MODEL_BLOBS = "models/blobs"
"""Below a site's root: each content once, named by its SHA-256."""
MODEL_INCOMING = "models/incoming"
"""Below a site's root: what an unfinished `dlctl models create` has sent."""
MODEL_VERSIONS = "models/versions"
"""Below a site's root: a folder for each model, with a `ModelVersion` in `<n>.json`."""
MODEL_ALIASES = "aliases"
"""In a model's folder: a file for each alias, which holds the number of a version."""
MODEL_TAGS = "tags"
"""In a model's folder: a file for each tag."""
MODEL_USES = "uses"
"""In a model's folder: `<n>.<training id>`, a file for each training that uses a version."""
MODEL_DESCRIPTION = "description"
"""In a model's folder: its description, as JSON text."""
MODEL_PREFIX = "model:"
"""How `framework.arguments.weights` names a stored model: `model:ID@best`."""
LATEST = "latest"
"""The alias of the newest version, which every model has."""
CODE_FILE, WEIGHTS_FILE, RESULT_FILE, DATA_FILE = "code", "weights", "result", "data"
"""What a file of a version is: `data` is the listing of a data store that a training read."""
MADE_FILES = (RESULT_FILE, DATA_FILE)
"""What comes from a training; these files have paths of their own."""
DATA_LISTINGS = ".dlctl-data"
"""The folder in the paths of listings."""
PULLED_FROM = ".dlctl-model"
"""In a folder that `dlctl models pull` has made: the version, `ID@N`."""
DAMAGED_BLOB = ".damaged"
"""At the end of the name of a blob that is not what its name says."""
_FILES_LINE = '  "files": ['


@dataclass(frozen=True)
class ModelFile:
    """One file of a version."""

    path: str
    """Relative to the folder; of a result, to the results."""
    size_bytes: int
    sha256: str
    """The sum of the content; for a link, of its target."""
    mode: str = "644"
    """`644` or `755`."""
    part: str = CODE_FILE
    """`code`, `weights` (by its suffix), `result`: made by the training, or `data`: the `Listing`
    of a data store that it read."""
    link: str = ""
    """The target of a symbolic link; empty for a file."""


@dataclass(frozen=True)
class MetricSummary:
    """One metric of the training that made a version."""

    last: float | None
    best: float | None = None
    """Its best value; None if dlctl does not know which values are good."""


@dataclass(frozen=True)
class ModelVersion:
    """One version of a stored model. Nobody ever changes it."""

    model_id: str
    """Unique at the site; never used again."""
    version: int
    """From 1."""
    name: str
    """The name that people use."""
    parent: str = ""
    """The version that it was made from, as `ID@N`; empty if there is none."""
    copy_of: str = ""
    """The version at another site that it was copied from, as `ID@N`; empty if it was not."""
    training_id: str = ""
    """The training that made it; empty if a folder did."""
    attempt: int = 0
    """The attempt of that training."""
    manifest: str = ""
    """manifest.yml without credentials; empty if the folder had none."""
    data: list[DataStore] = field(default_factory=list)
    """Where the training's data came from."""
    metrics: dict[str, MetricSummary] = field(default_factory=dict)
    """The training's metrics by name."""
    git: GitState | None = None
    """The Git state of the folder that was stored or submitted."""
    dlctl_version: str = ""
    created_at: float = 0.0
    """Unix seconds on the creator's clock."""
    created_by: str = ""
    """`user@host`."""
    file_count: int = 0
    size_bytes: int = 0
    """The size of all files together."""
    schema_version: int = SCHEMA_VERSION
    files: list[ModelFile] = field(default_factory=list)

    @property
    def label(self) -> str:
        """Return `ID@N`."""
        return f"{self.model_id}@{self.version}"


def version_text(version: ModelVersion) -> str:
    """Return a version's JSON: the files come last, one a line, so that a shell can leave them out.

    The version's number is on a line of its own, because only the site knows it.
    """
    fields = {f.name: getattr(version, f.name) for f in dataclasses.fields(version)}
    files = [json.dumps(dataclasses.asdict(f), ensure_ascii=False) for f in fields.pop("files")]
    head = dataclasses.asdict(dataclasses.replace(version, files=[]))
    del head["files"]
    text = without_suffix(json.dumps(head, indent=2, ensure_ascii=False), "\n}")
    lines = ",\n".join(f"    {line}" for line in files)
    whole = f"{text},\n{_FILES_LINE}\n{lines}\n  ]\n}}\n"
    # A file name that is not UTF-8 holds lone surrogates, which JSON writes as escapes.
    return whole.encode("utf-8", "backslashreplace").decode()


def whole_head(text: str) -> str:
    """Return valid JSON for a version's text that ends before its files."""
    return text + "]}" if text.rstrip().endswith(_FILES_LINE.strip()) else text


def json_text(text: str) -> str:
    """Return text as JSON on one line."""
    return json.dumps(text, ensure_ascii=True)


def blob_path(root: str, sha256: str) -> str:
    """Return where a content is stored."""
    return f"{root}/{MODEL_BLOBS}/{sha256}"


def weights_file(path: str) -> str:
    """Return the stored weights that `framework.arguments.weights` names: WEIGHTS_FILE.

    Read-only; a hard link to the model's blob, or a copy, made before the scheduler is asked.
    """
    return f"weights/{posixpath.basename(path)}"
