"""The functions of the module: find, submit and start."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from dlctl.api.jobs import Training
from dlctl.api.room import listed, mine, site_named
from dlctl.api.searches import Search
from dlctl.errors import ManifestError
from dlctl.manifest.overrides import overrides_of, plain
from dlctl.request.ignore import MADE_MANIFEST
from dlctl.service.client import Filter, checked_tags


def submit(
    manifest: str | Path | Mapping[str, Any] | Training | None = None, *, site: str | None = None,
    learners: int | None = None, nodes: int | None = None, learners_per_node: int | None = None,
    gpus: int | None = None, cpus: float | None = None, memory: str | None = None,
    time: str | None = None, partition: str | None = None,
    arguments: Mapping[str, object] | None = None,
    set: Mapping[str, object] | None = None,  # noqa: A002 - as the option is called
    tags: str | Sequence[str] = (), model: str | None = None, folder: str | Path | None = None,
    token: str | None = None,
) -> Training:  # fmt: skip
    """Submit a training, once; it does not wait for it to run.

    Args:
        manifest: A file, `manifest.yml` by default; or a manifest's text (more than one line); or
            what such a file holds, as a dict. The files of its folder are sent. Or a training,
            whose code and manifest are trained anew, at its site unless `site` names another.
        site: That of `dlctl config site` by default.
        arguments: Of the program: `{"lr": 0.1}` is `framework.arguments.lr`.
        set: Any other keys of the manifest, such as `{"training.seed": 3}`.
        model: Train this version of a stored model, such as `digits@2`, in place of a folder.
        folder: Of a text or a dict: where the program is, by default the working directory. The
            manifest is written there as `.dlctl-manifest-….yml`, so that commands know it, too.
        token: A name for this request. If it is made again, at any time, it returns the same
            training, and submits nothing.

    Raises:
        ManifestError, PlanError, SiteError, SchedulerError, TransportError
        KeyTaken: the token is another request's.
    """
    from dlctl.request.variants import variants
    from dlctl.service.again import manifest_of
    from dlctl.service.submit import refuse_several, submit_variants

    refuse_several(manifest, model)
    overrides = overrides_of({
        "learners": learners, "nodes": nodes, "learners_per_node": learners_per_node, "gpus": gpus,
        "cpus": cpus, "memory": memory, "time": time, "partition": partition,
    }, {**{f"framework.arguments.{name}": each for name, each in (arguments or {}).items()},
        **(set or {})})  # fmt: skip
    known = mine()
    if isinstance(manifest, Training):
        path, site = manifest_of(known, manifest.record), site or manifest.site
    else:
        path = Path("manifest.yml") if manifest is None else file_of(manifest, folder)
    with closing(known.open(site_named(site))) as session:
        sent = submit_variants(session, known.store, variants([path], overrides), model,
                               checked_tags(listed(tags)), known.tell, key=token)  # fmt: skip
        return Training(sent.settled(), known)


def start_search(path: str | Path = "search.yml", *, site: str | None = None) -> Search:
    """Start a search, once: its hub, and its first workers.

    Args:
        path: What to search, and how; the files of its folder are sent.
        site: That of `dlctl config site` by default.
    """
    from dlctl.search.load import load_search
    from dlctl.search.start import start

    known, loaded = mine(), load_search(Path(path))
    with closing(known.open(site_named(site))) as session:
        sent = start(session, loaded, known.store, known.tell)
    return Search(sent.settled(), known)


def trainings(
    *, name: str | None = None, state: str | Sequence[str] = (), tag: str | Sequence[str] = (),
) -> list[Training]:  # fmt: skip
    """Return the trainings and searches that fit, the newest last; asks no site.

    A search is a `Search`.

    Args:
        name: A pattern of the shell, such as `digits*`, for the name or the id.
        state: One or several states, as last known.
        tag: Tags that each has.

    Raises:
        Misused: a word is no state.
    """
    states, tags = listed(state), listed(tag)
    known, wanted = mine(), Filter(name, states, tags)
    return [(Search if record.is_search else Training)(record, known)
            for record in known.store.all() if wanted.fits(record)]  # fmt: skip


def searches(
    *, name: str | None = None, state: str | Sequence[str] = (), tag: str | Sequence[str] = (),
) -> list[Search]:  # fmt: skip
    """Return the searches that fit, as `trainings` does."""
    found = trainings(name=name, state=state, tag=tag)
    return [each for each in found if isinstance(each, Search)]


def training(training_id: str | None = None) -> Training:
    """Return a training by its id, or a unique beginning or end of it.

    Args:
        training_id: None: the latest of the working directory.

    Raises:
        RecordError: there is none, or several.
    """
    known = mine()
    return Training(known.store.find(training_id), known)


def search_of(search_id: str | None = None) -> Search:
    """Return a search by its id, or a unique beginning or end of it.

    Args:
        search_id: None: the latest search of the working directory.

    Raises:
        RecordError: there is none, or several.
    """
    known = mine()
    return Search(known.store.find_search(search_id), known)


def file_of(manifest: str | Path | Mapping[str, Any], folder: str | Path | None) -> Path:
    """Return a manifest's file; a text or a dict becomes one beside the program.

    It is not sent: else each manifest would change the folder, and with it the next request.
    """
    if isinstance(manifest, Path) or (isinstance(manifest, str) and "\n" not in manifest):
        return Path(manifest)
    import yaml

    text = manifest if isinstance(manifest, str) else yaml.safe_dump(
        plain(manifest), sort_keys=False, allow_unicode=True)  # fmt: skip
    name = f"{MADE_MANIFEST}{hashlib.sha256(text.encode()).hexdigest()[:12]}.yml"
    path = Path(folder or ".") / name
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ManifestError(
            f"{path} can't be written: {error.strerror}", hint="name another folder: folder=…"
        ) from error
    return path
