"""Look up the credentials to which a manifest refers: values that only go to the site."""

from __future__ import annotations

import configparser
import contextlib
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from dlctl import contract
from dlctl.contract.ground.safe_text import LEAST_MASKED
from dlctl.errors import ManifestError
from dlctl.manifest.model import Manifest
from dlctl.manifest.parts import Reference
from dlctl.manifest.running import WEBHOOK, WEBHOOK_SECRET

_PROFILE_KEYS = {"user_name": "aws_access_key_id", "password": "aws_secret_access_key"}


def secret_values(manifest: Manifest, literal: dict[str, str], folder: Path) -> dict[str, str]:
    """Return the value of each credential whose value goes to the site.

    Raises:
        ManifestError: a reference names a variable or a file that does not exist here.
    """
    references = manifest.references()
    return {name: _value(name, references[name], literal, folder) for name in manifest.sent_names()}


def refuse_webhook(values: Mapping[str, str], hosts: Sequence[str]) -> None:
    """Refuse a webhook that no notice would be sent to.

    Args:
        values: What `secret_values` returns.
        hosts: The site's `webhook_hosts`.

    Raises:
        ManifestError
    """
    if WEBHOOK not in values:
        return
    try:
        contract.check_webhook(values[WEBHOOK], values.get(WEBHOOK_SECRET, ""), hosts)
    except contract.NotSent as error:
        raise ManifestError(f"{WEBHOOK}: {error.message}", hint=error.hint) from None


def not_masked(manifest: Manifest, values: Mapping[str, str]) -> list[str]:
    """Return which credentials of `env` are too short to be masked, in one sentence, or none."""
    short = [name for name in manifest.secret_names()
             if 0 < len(values.get(name, "")) < LEAST_MASKED]  # fmt: skip
    if not short:
        return []
    are = "are" if len(short) > 1 else "is"
    return [f"{', '.join(map(_key, short))} {are} shorter than {LEAST_MASKED} characters, and not "
            "masked where dlctl quotes a log"]  # fmt: skip


def values_of_now(manifest: Manifest, folder: Path) -> dict[str, str]:
    """Return the value of each credential that the manifest, this shell and this machine have."""
    bare, literal = manifest.extract_secrets()
    references, values = bare.references(), {}
    for name in bare.sent_names():
        with contextlib.suppress(ManifestError):
            values[name] = _value(name, references[name], literal, folder)
    return values


def _value(name: str, reference: Reference, literal: dict[str, str], folder: Path) -> str:
    value = ""
    if reference.from_secret:
        if reference.from_secret not in literal:
            raise ManifestError(
                f"{_key(name)}: from_secret stands where dlctl has taken out a credential; "
                f"the value of {reference.from_secret!r} is not known here",
                hint="give the value itself, from_env: VARIABLE, or from_file: PATH",
            )
        value = literal[reference.from_secret]
    elif reference.from_env:
        value = _from_environment(name, reference.from_env)
    elif reference.from_file:
        value = _from_file(name, folder / Path(reference.from_file).expanduser())
    elif reference.from_profile:
        value = _from_profile(name, reference.from_profile)
    elif reference.from_keyring:
        value = _from_keyring(name, reference.from_keyring)
    return value


def _key(name: str) -> str:
    """Return where the manifest has a credential: `data_stores.0.password` is of a connection."""
    section, _, rest = name.partition(".")
    if section == "data_stores":
        return "data_stores[{}].connection.{}".format(*rest.split(".", 1))
    return name if rest else f"env.{name}"


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


def _from_profile(name: str, profile: str) -> str:
    path = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials").expanduser()
    key = _PROFILE_KEYS.get(name.rpartition(".")[2])
    if key is None:
        raise ManifestError(
            f"{_key(name)}: a profile has no such value",
            hint=f"only {' and '.join(_PROFILE_KEYS)} of a data store can come from a profile",
        )
    known = configparser.RawConfigParser()
    with contextlib.suppress(OSError, UnicodeDecodeError, configparser.Error):
        known.read_string(path.read_text(encoding="utf-8"))
    if not known.has_option(profile, key):
        raise ManifestError(
            f"{_key(name)}: the profile {profile!r} in {path} has no {key}",
            hint=f"add it there, below [{profile}]",
        )
    return known.get(profile, key)


def _from_keyring(name: str, where: str) -> str:
    service, _, user = where.partition("/")
    try:
        keyring = importlib.import_module("keyring")
        value = keyring.get_password(service, user)
    except ModuleNotFoundError as error:
        raise ManifestError(
            f"{_key(name)}: the package keyring is not installed here",
            hint="python -m pip install keyring",
        ) from error
    except Exception as error:  # any backend's
        raise ManifestError(f"{_key(name)}: the keyring does not answer: {error}") from error
    if not value:
        raise ManifestError(
            f"{_key(name)}: the keyring has nothing for {where!r}",
            hint=f"keyring set {service} {user or 'USER'}",
        )
    return str(value)
