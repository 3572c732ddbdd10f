"""Build a whole request from the user's folder: `render` shows what `submit` sends.

Reads only local files; uses no network.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import posixpath
import re
import secrets
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from dlctl import contract
from dlctl.contract import BY_DLCTL, LeftOut
from dlctl.contract.programs.named_paths import allowing_line, lies_in
from dlctl.errors import DlctlError, ManifestError, PlanError
from dlctl.frameworks import (
    Surroundings,
    checkpoint_files,
    fixed_paths,
    framework_of,
    lines_of,
    make_recipe,
    remarks,
    train_script,
)
from dlctl.manifest.checks import check_files, named_files, not_in_this_version
from dlctl.manifest.load import load_manifest, parse_manifest
from dlctl.manifest.model import Manifest
from dlctl.manifest.overrides import Overrides
from dlctl.manifest.requirements import requirement_lines
from dlctl.plan.decide import Identity, make_plan
from dlctl.plan.environments import chosen_environment
from dlctl.plan.render import render
from dlctl.plan.sections import plan_stores
from dlctl.request.bundle import DEFAULT_LIMIT_BYTES, Bundle, collect, programs
from dlctl.request.credentials import (
    Profiles,
    not_masked,
    refuse_webhook,
    secret_values,
    temporary,
    values_of_now,
)
from dlctl.request.left_out import for_plan, named
from dlctl.request.request import (
    Request,
    git_state,
    merged,
    pending,
    runtime_entries,
    submitted_with,
    this_machine,
)
from dlctl.sites.files import load_site
from dlctl.stores.scripts import render_scripts, with_scripts

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.sites.files import Site

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"


def new_training_id(name: str, key: str = "") -> str:
    """Return an id that is never reused: the name and eight letters, random ones without a key."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24].strip("-") or "training"
    digest = hashlib.sha256(key.encode()).digest() if key else secrets.token_bytes(8)
    return f"{slug}-{''.join(_ALPHABET[each % len(_ALPHABET)] for each in digest[:8])}"


FindWeights = Callable[[str], contract.StoredWeights]
"""Returns the stored file that `framework.arguments.weights` names with `model:…`."""


@dataclass(frozen=True)
class Folder:
    """The content of a manifest's folder, read once for any number of requests."""

    code: Bundle
    git: contract.GitState | None


def open_folder(manifest_path: Path, site: Site) -> Folder:
    """Read the folder of a manifest for a site.

    Raises:
        BundleError: it holds what can't or must not be sent.
    """
    path = manifest_path.resolve()
    code = collect(path.parent, DEFAULT_LIMIT_BYTES, _manifest_names(path), site)
    return Folder(code, git_state(path.parent))


def prepare(
    manifest_path: Path, overrides: Overrides, site: Site, training_id: str | None = None,
    find_weights: FindWeights | None = None, tags: Sequence[str] = (), read: Folder | None = None,
) -> Request:  # fmt: skip
    """Return the request for a manifest and a site.

    Args:
        read: What the manifest's folder holds, if it has been read already.

    Raises:
        ManifestError, PlanError, SiteError
    """
    folder = manifest_path.resolve().parent
    known = read.code if read else None
    manifest, literal, code = read_folder(manifest_path, overrides, known=known, site=site)
    request = _request(manifest, literal, code, folder, site, training_id, find_weights,
                       git=read.git if read else git_state(folder), tags=list(tags))  # fmt: skip
    return replace(request, manifest_path=manifest_path.resolve(),
                   overrides=_resolved(overrides, request.plan))  # fmt: skip


def prepare_stored(
    model: str, manifest: str, code: Bundle, overrides: Overrides, site: Site,
    training_id: str | None = None, find_weights: FindWeights | None = None,
    tags: Sequence[str] = (),
) -> Request:  # fmt: skip
    """Return the request for a version of a stored model, which is at the site.

    Args:
        model: The version, as `ID@N`.
        manifest: Its manifest.yml.
        code: Its files, which are not sent.

    Raises:
        ManifestError, PlanError, SiteError
    """
    name = f"{model}, {contract.MANIFEST}"
    parsed, literal = parse_manifest(manifest.encode(), name, overrides).extract_secrets()
    _check_sent(parsed, code, Path(name))
    request = _request(parsed, literal, code, Path.cwd(), site, training_id, find_weights,
                       model=model, tags=list(tags))  # fmt: skip
    return replace(request, overrides=_resolved(overrides, request.plan))


def prepare_made(
    data: bytes, path: Path, site: Site, training_id: str, searched: Collection[str] = (),
    code: Bundle | None = None,
) -> Request:  # fmt: skip
    """Return the request for a manifest that dlctl has made, with the code of a folder.

    Args:
        data: The manifest.
        path: The user's file from which it was made: its folder's code is sent.
        site: Where it is to run.
        training_id: The id that it gets.
        searched: The arguments of which each trial of a search has values of its own.
        code: The folder's code, if it has been read already.

    Raises:
        ManifestError, PlanError, SiteError
    """
    folder = path.resolve().parent
    manifest, literal = parse_manifest(data, str(path)).extract_secrets()
    code = code or collect(folder, site=site)
    request = _request(manifest, literal, code, folder, site, training_id, None, searched,
                       git=git_state(folder))  # fmt: skip
    return replace(request, manifest_path=path.resolve())


def read_folder(
    manifest_path: Path, overrides: Overrides, limit_bytes: int = DEFAULT_LIMIT_BYTES,
    known: Bundle | None = None, site: Site | None = None,
) -> tuple[Manifest, dict[str, str], Bundle]:  # fmt: skip
    """Return the manifest without its credentials, the credentials, and the folder's files.

    Args:
        known: The files, if they have been read already.
        site: Where they are sent.

    Raises:
        ManifestError
    """
    manifest, literal = load_manifest(manifest_path, overrides).extract_secrets()
    folder = manifest_path.resolve().parent
    if known is None:
        framework_of(manifest, folder)  # an unknown one is said before its files
    names = _manifest_names(manifest_path.resolve())
    code = known or collect(folder, limit_bytes, names, site)
    check_files(manifest, folder)
    lines = requirement_lines(manifest, folder)
    if lines != manifest.requirements:  # a resumption does not see the folder
        manifest = manifest.model_copy(update={"requirements": lines})
    _check_sent(manifest, code, manifest_path)
    return manifest, literal, code


def _request(
    manifest: Manifest, literal: dict[str, str], code: Bundle, folder: Path, site: Site,
    training_id: str | None, find_weights: FindWeights | None, searched: Collection[str] = (),
    **more_of_plan: Any,
) -> Request:  # fmt: skip
    framework = framework_of(manifest, folder)
    manifest, weights = _with_weights(manifest, find_weights)
    environment, is_it, lacks = chosen_environment(manifest, site, framework.name)
    texts = list(programs(code))
    binds = [site.root, *filter(None, (store.path for store in plan_stores(manifest)))]
    around = Surroundings(environment, tuple(binds), fixed_paths(manifest, texts))
    runtime_digest, runtime = runtime_entries()
    identity = Identity(
        training_id=training_id or new_training_id(manifest.name),
        created_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
        code_digest=code.digest,
        runtime_digest=runtime_digest,
        local_python=sys.executable,
        machine=this_machine(site),
        weights=weights,
        recipe=make_recipe(manifest, framework, around, searched),
        checkpoint_files=checkpoint_files(manifest, framework),
        environment=environment,
    )
    odd = remarks(manifest, framework, texts, version_is_there=is_it)
    profiles: Profiles = {}
    secrets = secret_values(manifest, literal, folder, profiles)
    notes = [*not_in_this_version(manifest), *lacks, *odd, *_not_sent(manifest, code, texts),
             *not_masked(manifest, secrets),
             *temporary(manifest, secrets, profiles)]  # fmt: skip
    plan = make_plan(manifest, site, identity, notes)
    plan = replace(plan, left_out=for_plan(code.left_out), **more_of_plan)
    plan = with_scripts(
        plan, folder, manifest.store_secrets(), site.endpoints, site.data_via,
        site.cache_limit_bytes,
    )  # fmt: skip
    refuse_webhook(secrets, site.webhook_hosts)
    return Request(
        plan=plan,
        manifest=manifest.to_yaml(),
        script=render(plan),
        code=code,
        runtime=runtime,
        secrets=secrets,
        manifest_path=Path(),
        overrides=Overrides(),
        scripts=render_scripts(plan, folder),
    )


def _with_weights(
    manifest: Manifest, find_weights: FindWeights | None
) -> tuple[Manifest, contract.StoredWeights | None]:
    """Return the manifest with the version that `weights: model:…` means now, and its file."""
    named = manifest.framework.stored_weights
    if named is None:
        return manifest, None
    if find_weights is None:
        raise ManifestError(
            f"framework.arguments.weights: only a site can tell what {named} is",
            hint="`dlctl submit` asks it; to look at the version: dlctl models show "
            + named.removeprefix(contract.MODEL_PREFIX),
        )
    weights = find_weights(named)
    text = f"{contract.MODEL_PREFIX}{weights.model}/{weights.path}"
    arguments = {**manifest.framework.arguments, "weights": text}
    framework = manifest.framework.model_copy(update={"arguments": arguments})
    return manifest.model_copy(update={"framework": framework}), weights


def _resolved(overrides: Overrides, plan: contract.Plan) -> Overrides:
    """Return the overrides from which the same request can be built again: an alias may move."""
    if plan.weights is None:
        return overrides
    text = f"{contract.MODEL_PREFIX}{plan.weights.model}/{plan.weights.path}"
    return replace(overrides, set=(*overrides.set, f"framework.arguments.weights={text}"))


def look_over(manifest: Manifest, folder: Path) -> list[str]:
    """Check what a manifest names; return what is odd about it, a sentence each.

    Raises:
        ManifestError: its framework is unknown, or a script's template is wrong, or a file is
            missing.
    """
    framework = framework_of(manifest, folder)
    train_script(manifest, framework)
    _check_store_scripts(manifest, folder)
    check_files(manifest, folder)
    try:
        code = collect(folder)
    except DlctlError:  # `submit` says what can't be sent
        code = Bundle((), b"", 0)
    texts = list(programs(code))
    odd = [*remarks(manifest, framework, texts), *_not_sent(manifest, code, texts),
           *not_masked(manifest, values_of_now(manifest, folder))]  # fmt: skip
    return [*not_in_this_version(manifest), *odd]


def _not_sent(manifest: Manifest, code: Bundle, texts: Sequence[tuple[str, str]]) -> list[str]:
    """Return what is not sent although the manifest or a program names it, a sentence each."""
    values = {f"framework.arguments.{k}": v for k, v in manifest.framework.arguments.items()}
    values |= {f"env.{name}": value for name, value in manifest.env.items()}
    lines = [(key, value) for key, value in values.items() if isinstance(value, str)]
    has_store = any(store.training_data for store in manifest.data_stores)
    return named(code, [*lines, *lines_of(manifest, texts)], has_store=has_store)


def _check_store_scripts(manifest: Manifest, folder: Path) -> None:
    """Render the stores' scripts as for this machine, whose plan may be any."""
    bare, _ = manifest.extract_secrets()
    nothing = Identity("none", "", "", "", sys.executable)
    with contextlib.suppress(PlanError):  # another site may fit
        plan = make_plan(bare, load_site("local"), nothing, [])
        render_scripts(with_scripts(plan, folder, bare.store_secrets(), {}, "node"), folder)


def _manifest_names(path: Path) -> frozenset[str]:
    """Return all names of the manifest in its folder, as it may contain a credential."""
    same = (p.name for p in path.parent.iterdir() if p.is_file() and p.samefile(path))
    return frozenset([path.name, *same])


def prepare_again(record: Record, site: Site, find_weights: FindWeights | None = None) -> Request:
    """Return the request of an interrupted submission, rebuilt from the user's folder.

    Raises:
        ManifestError, PlanError, SiteError
    """
    from dlctl.record import ADOPTED  # `render` needs no SQLite

    manifest = Path(record.manifest_path)
    if record.folder == ADOPTED:
        raise ManifestError(
            f"{record.training_id} was submitted from another machine, so its folder is not here",
            hint=f"`dlctl resume {record.training_id}` without --code runs the code at the site; "
            "to train other code, submit a new training",
        )
    if not manifest.exists():
        raise ManifestError(
            f"{manifest}: does not exist, and {record.training_id} was submitted from there",
            hint="put the folder back, or submit a new training from where it is now",
        )
    overrides = merged(submitted_with(record), pending(record, 0))
    return prepare(manifest, overrides, site, record.training_id, find_weights)


def _check_sent(manifest: Manifest, code: Bundle, manifest_path: Path) -> None:
    sent = {file.path for file in contract.parse_index(code.index)}
    for key, name in named_files(manifest):
        path = PurePosixPath(posixpath.normpath(name))
        is_sent = any(str(part) in sent for part in (path, *path.parents))  # or a link above it
        if key != "requirements" and not is_sent:
            raise _excluded(f"{manifest_path}: {key}: {name}", str(path), code)


def _excluded(what: str, path: str, code: Bundle) -> ManifestError:
    """Return the error for a file that the manifest names and an ignore file leaves out."""
    rules = [LeftOut(each.path, each.rule) for each in code.left_out]
    item = next((each for each in rules if lies_in(path, each)), None)
    rule = item.rule if item else BY_DLCTL
    hint = "dlctl never sends results/, caches and its own files: move it elsewhere"
    if item and rule != BY_DLCTL:
        file, line = allowing_line(item)
        hint = f"add the line {line} to {file}, or move the file"
    return ManifestError(f"{what} is excluded by {rule}", hint=hint)


def folder_index(record: Record, site: Site) -> bytes | None:
    """Return the index of the user's folder as it is now; None if it can't be sent or is gone."""
    manifest = Path(record.manifest_path)
    if not record.manifest_path:
        return None  # it came from a stored model
    try:
        names = _manifest_names(manifest)
        return collect(manifest.parent, leave_out=names, site=site).index
    except (DlctlError, OSError):
        return None
