"""Build a whole request from the user's folder: `render` shows what `submit` sends.

Reads only local files; uses no network.
"""

from __future__ import annotations

import datetime
import os
import posixpath
import re
import secrets
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from dlctl.errors import DlctlError, ManifestError
from dlctl.frameworks import checkpoint_files, framework_of, make_recipe, remarks
from dlctl.manifest.checks import check_files, named_files
from dlctl.manifest.load import load_manifest
from dlctl.manifest.model import Manifest
from dlctl.manifest.overrides import Overrides
from dlctl.manifest.requirements import requirement_lines
from dlctl.manifest.running.notify import WEBHOOK
from dlctl.manifest.unsupported import can_not_run, not_in_this_version
from dlctl.plan.decide import Identity, make_plan
from dlctl.plan.render import render
from dlctl.request.bundle import Bundle, collect, programs
from dlctl.request.request import Request, merged, pending, submitted_with, this_machine
from dlctl.request.runtime import runtime_entries

if TYPE_CHECKING:
    from dlctl.record import Record
    from dlctl.sites.files import Site

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"


def new_training_id(name: str) -> str:
    """Return an id that is never reused: the name and eight random letters."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:24].strip("-") or "training"
    return f"{slug}-{''.join(secrets.choice(_ALPHABET) for _ in range(8))}"


def prepare(
    manifest_path: Path, overrides: Overrides, site: Site, training_id: str | None = None
) -> Request:
    """Return the request for a manifest and a site.

    Raises:
        ManifestError, PlanError, SiteError
    """
    given = load_manifest(manifest_path, overrides)
    manifest, literal = given.extract_secrets()
    folder = manifest_path.resolve().parent
    framework = framework_of(manifest, folder)
    code = collect(folder, leave_out=_manifest_names(manifest_path.resolve()))
    check_files(manifest, folder)
    lines = requirement_lines(manifest, folder)
    if lines != manifest.requirements:  # a resumption does not see the folder
        manifest = manifest.model_copy(update={"requirements": lines})
    _check_sent(manifest, code, manifest_path)
    runtime_digest, runtime = runtime_entries()
    identity = Identity(
        training_id=training_id or new_training_id(manifest.name),
        created_at=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="milliseconds"),
        code_digest=code.digest,
        runtime_digest=runtime_digest,
        local_python=sys.executable,
        machine=this_machine(site),
        recipe=make_recipe(manifest, framework),
        checkpoint_files=checkpoint_files(manifest, framework),
    )
    notes = [*not_in_this_version(manifest), *remarks(manifest, framework, programs(code))]
    plan = make_plan(manifest, site, identity, notes)
    return Request(
        plan=plan,
        manifest=manifest.to_yaml(),
        script=render(plan),
        code=code,
        runtime=runtime,
        secrets=_secrets(manifest, literal, folder),
        manifest_path=manifest_path.resolve(),
        overrides=overrides,
        can_not_run=tuple(can_not_run(manifest)),
    )


def look_over(manifest: Manifest, folder: Path) -> list[str]:
    """Check what a manifest names; return what is odd about it, a sentence each.

    Raises:
        ManifestError: its framework is unknown, or a file is missing.
    """
    framework = framework_of(manifest, folder)
    check_files(manifest, folder)
    try:
        texts = list(programs(collect(folder)))
    except DlctlError:  # `submit` says what can't be sent
        texts = []
    return [*not_in_this_version(manifest), *remarks(manifest, framework, texts)]


def _manifest_names(path: Path) -> frozenset[str]:
    """Return all names of the manifest in its folder, as it may contain a credential."""
    same = (p.name for p in path.parent.iterdir() if p.is_file() and p.samefile(path))
    return frozenset([path.name, *same])


def _secrets(manifest: Manifest, literal: dict[str, str], folder: Path) -> dict[str, str]:
    """Return the value of each credential among the environment variables.

    Raises:
        ManifestError: a reference names a variable or a file that does not exist here.
    """
    values = {}
    for name in manifest.sent_names():
        reference = manifest.references()[name]
        if reference.from_secret:
            if reference.from_secret not in literal:
                raise ManifestError(
                    f"{_key(name)}: from_secret is what dlctl stores in place of a credential; "
                    f"the value of {reference.from_secret!r} is not known here",
                    hint="give the value itself, from_env: VARIABLE, or from_file: PATH",
                )
            values[name] = literal[reference.from_secret]
        elif reference.from_env:
            values[name] = _from_environment(name, reference.from_env)
        elif reference.from_file:
            values[name] = _from_file(name, folder / Path(reference.from_file).expanduser())
    if not values.get(WEBHOOK, "http://").startswith(("http://", "https://")):
        raise ManifestError(f"{WEBHOOK}: is no URL", hint="write https://… or a reference to one")
    return values


def _key(name: str) -> str:
    return name if "." in name else f"env.{name}"


def _from_environment(name: str, variable: str) -> str:
    if variable in os.environ:
        return os.environ[variable]
    raise ManifestError(
        f"{_key(name)}: the variable {variable} is not set in this shell",
        hint=f"export {variable}=…, then try again",
    )


def _from_file(name: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").rstrip("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(
            f"{_key(name)}: the file {path} can't be read: {error}",
            hint="the file must contain only the credential, as text",
        ) from error


def prepare_again(record: Record, site: Site) -> Request:
    """Return the request of an interrupted submission, rebuilt from the user's folder.

    Raises:
        ManifestError, PlanError, SiteError
    """
    manifest = Path(record.manifest_path)
    if not manifest.exists():
        raise ManifestError(
            f"{manifest}: does not exist, and {record.training_id} was submitted from there",
            hint="put the folder back, or submit a new training from where it is now",
        )
    overrides = merged(submitted_with(record), pending(record, 0))
    return prepare(manifest, overrides, site, record.training_id)


def _check_sent(manifest: Manifest, code: Bundle, manifest_path: Path) -> None:
    sent = {file.path for file in code.files}
    for key, name in named_files(manifest):
        path = PurePosixPath(posixpath.normpath(name))
        is_sent = any(str(part) in sent for part in (path, *path.parents))  # or a link above it
        if key != "requirements" and not is_sent:
            raise ManifestError(
                f"{manifest_path}: {key}: {name} is excluded by .gitignore or .dlctlignore, "
                "or by dlctl itself, like results/",
                hint=f"add the line !{name} to .dlctlignore, or move the file",
            )


def folder_index(record: Record) -> bytes | None:
    """Return the index of the user's folder as it is now; None if it can't be sent or is gone."""
    manifest = Path(record.manifest_path)
    try:
        return collect(manifest.parent, leave_out=_manifest_names(manifest)).index
    except (DlctlError, OSError):
        return None
