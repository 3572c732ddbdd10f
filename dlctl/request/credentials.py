"""Look up the credentials to which a manifest refers: values that only go to the site."""

from __future__ import annotations

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
from dlctl.request.profiles import Key, LoggedOut, key_of

_OF_PROFILES = ("user_name", "password", "session_token")
_TEMPORARY = "ASIA"
"""How AWS's temporary keys begin."""
Profiles = dict[str, Key]
"""The profiles whose keys were looked up: each once."""


def secret_values(
    manifest: Manifest, literal: dict[str, str], folder: Path, profiles: Profiles | None = None
) -> dict[str, str]:  # fmt: skip
    """Return the value of each credential whose value goes to the site.

    Args:
        profiles: Is filled with those of AWS's profiles that the manifest names.

    Raises:
        ManifestError: a reference names a variable or a file that does not exist here.
    """
    references, profiles = manifest.references(), {} if profiles is None else profiles
    return {name: _value(name, references[name], literal, folder, profiles)
            for name in manifest.sent_names()}  # fmt: skip


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
    """Return which credentials are too short to be masked, in one sentence, or none."""
    short = [
        name
        for name in manifest.sent_names()
        if not name.endswith(".user_name") and 0 < len(values.get(name, "")) < LEAST_MASKED
    ]
    if not short:
        return []
    are = "are" if len(short) > 1 else "is"
    return [f"{', '.join(map(_key, short))} {are} shorter than {LEAST_MASKED} characters, and not "
            "masked where dlctl quotes a log"]  # fmt: skip


def temporary(manifest: Manifest, values: Mapping[str, str], profiles: Profiles) -> list[str]:
    """Return which stores have a temporary key, and what comes of that, a sentence each.

    Raises:
        ManifestError: the token of such a key is missing.
    """
    found = []
    for position, store in enumerate(manifest.data_stores):
        prefix = f"data_stores.{position}."
        user = values.get(f"{prefix}user_name") or store.connection.get("user_name")
        has_token = bool(values.get(f"{prefix}session_token"))
        if str(user).startswith(_TEMPORARY) and "password" in store.connection and not has_token:
            raise ManifestError(
                f"{_key(f'{prefix}user_name')}: {str(user)[:8]}… is a temporary key, which no "
                "server accepts without its token",
                hint="add `session_token: {from_env: AWS_SESSION_TOKEN}` to `connection`",
            )
        if has_token:
            reference = store.connection.get("session_token")
            profile = reference.from_profile if isinstance(reference, Reference) else ""
            key = profiles.get(profile or "")
            ends = f"ends at {key.ends_at.astimezone():%c}" if key and key.ends_at else "ends soon"
            found.append(
                f"data store {store.id}: its temporary key {ends}; if the job loads or stores "
                "later, log in again and resume it, or see docs/stores.md#temporary-keys"
            )
    return found


def values_of_now(manifest: Manifest, folder: Path, *, logged_in: bool = False) -> dict[str, str]:
    """Return the value of each credential that the manifest, this shell and this machine have.

    Args:
        logged_in: Whether to refuse a profile that is here, but whose session has ended.

    Raises:
        LoggedOut
    """
    bare, literal = manifest.extract_secrets()
    references, profiles, values = bare.references(), Profiles(), {}
    for name in bare.sent_names():
        try:
            values[name] = _value(name, references[name], literal, folder, profiles)
        except LoggedOut:
            if logged_in:
                raise
        except ManifestError:
            continue
    return values


def _value(
    name: str, reference: Reference, literal: dict[str, str], folder: Path, profiles: Profiles
) -> str:
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
        value = _from_profile(name, reference.from_profile, profiles)
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


def _from_profile(name: str, profile: str, profiles: Profiles) -> str:
    key = name.rpartition(".")[2]
    if key not in _OF_PROFILES:
        raise ManifestError(
            f"{_key(name)}: a profile has no such value",
            hint=f"only {', '.join(_OF_PROFILES)} of a data store can come from a profile",
        )
    try:
        if profile not in profiles:
            profiles[profile] = key_of(profile)
    except ManifestError as error:
        raise type(error)(f"{_key(name)}: {error.message}", hint=error.hint) from None
    return str(getattr(profiles[profile], key))


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
        raise ManifestError(
            f"{_key(name)}: the keyring does not answer: {error}",
            hint="unlock it, or write {from_env: VARIABLE} or {from_file: PATH}",
        ) from error
    if not value:
        raise ManifestError(
            f"{_key(name)}: the keyring has nothing for {where!r}",
            hint=f"keyring set {service} {user or 'USER'}",
        )
    return str(value)
