"""The key of a profile of AWS's tools: one that lasts, or a temporary one and its token."""

from __future__ import annotations

import configparser
import contextlib
import datetime
import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dlctl.errors import ManifestError

OF_THE_SHELL = "$AWS_PROFILE"
"""In place of a profile's name: the one that AWS's tools would use in this shell."""
_FILES = (("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials", "{}"),
          ("AWS_CONFIG_FILE", "~/.aws/config", "profile {}"))  # fmt: skip
"""Where profiles are: a variable with the file's name, its name without, a profile's section."""
_ENDS = ("aws_expiration", "aws_session_expiration", "x_security_token_expires", "expiration")
"""Where programs that log in write when a key ends."""
_ASKED = ("role_arn", "sso_", "credential_process", "login_session")
"""Settings of a profile whose key only AWS's own program can get."""
_LONGEST_S = 60.0


class LoggedOut(ManifestError):
    """A profile is here, but gives no key now."""


@dataclass(frozen=True)
class Key:
    """A key of a profile."""

    user_name: str
    password: str = field(repr=False)
    session_token: str = field(repr=False, default="")
    """Empty: the key lasts."""
    ends_at: datetime.datetime | None = None
    """When it ends, if somebody knows."""


def key_of(profile: str) -> Key:
    """Return the key of a profile, from AWS's files, or from AWS's program where it has a log-in.

    Raises:
        LoggedOut: its session has ended.
        ManifestError: there is no such profile, or it has no key.
    """
    if profile == OF_THE_SHELL:
        profile = os.environ.get("AWS_PROFILE") or "default"
    settings = _settings(profile)
    if any(name.startswith(_ASKED) for name in settings):
        key = _asked(profile, settings)
    else:
        missing = [name for name in ("aws_access_key_id", "aws_secret_access_key")
                   if not settings.get(name)]  # fmt: skip
        if missing:
            raise ManifestError(
                f"the profile {profile!r} in {_path(*_FILES[0][:2])} has no {missing[0]}",
                hint=f"add it there, below [{profile}], or set it up: aws configure --profile "
                f"{profile}",
            )
        ends = next((settings[name] for name in _ENDS if settings.get(name)), "")
        key = Key(settings["aws_access_key_id"], settings["aws_secret_access_key"],
                  settings.get("aws_session_token", ""), _time(ends))  # fmt: skip
    if key.ends_at and key.ends_at < datetime.datetime.now(datetime.timezone.utc):
        raise LoggedOut(
            f"the temporary key of the profile {profile!r} ended at {key.ends_at.astimezone():%c}",
            hint=_log_in(profile, settings),
        )
    return key


def _path(variable: str, usual: str) -> Path:
    return Path(os.environ.get(variable) or usual).expanduser()


def _settings(profile: str) -> dict[str, str]:
    """Return what both files say of a profile; the credentials' file wins."""
    found: dict[str, str] = {}
    for variable, usual, section in reversed(_FILES):
        known = configparser.RawConfigParser()
        with contextlib.suppress(OSError, UnicodeDecodeError, configparser.Error):
            known.read_string(_path(variable, usual).read_text(encoding="utf-8"))
        for name in (section.format(profile), profile if profile == "default" else ""):
            found |= dict(known[name]) if name and known.has_section(name) else {}
    return found


def _asked(profile: str, settings: Mapping[str, str]) -> Key:
    """Return the key for which AWS's program logs in, assumes a role or runs a program."""
    argv = ["aws", "configure", "export-credentials", "--profile", profile]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_LONGEST_S)  # noqa: S603
        row = json.loads(done.stdout) if done.returncode == 0 else {}
        return Key(row["AccessKeyId"], row["SecretAccessKey"], row.get("SessionToken") or "",
                   _time(row.get("Expiration") or ""))  # fmt: skip
    except FileNotFoundError:
        raise _needs_aws(profile, "there is no `aws` here") from None
    except (KeyError, ValueError):
        if "Invalid choice" in done.stderr:
            older = "the `aws` here is version 1, which tells no key"
            raise _needs_aws(profile, older) from None
        why = (done.stderr.strip().splitlines() or ["`aws` says nothing"])[-1][:300]
    except subprocess.TimeoutExpired:
        why = f"`aws` has not answered for {_LONGEST_S:.0f} s"
    raise LoggedOut(f"the profile {profile!r} gives no key: {why}", hint=_log_in(profile, settings))


def _needs_aws(profile: str, lack: str) -> ManifestError:
    return ManifestError(
        f"the profile {profile!r} needs AWS's command line to get its key, and {lack}",
        hint="install version 2 (https://aws.amazon.com/cli/), or use a profile that has keys",
    )


def _log_in(profile: str, settings: Mapping[str, str]) -> str:
    if any(name.startswith("sso_") for name in settings):
        return f"log in again: aws sso login --profile {profile}"
    return f"log in again, and try: aws sts get-caller-identity --profile {profile}"


def _time(text: str) -> datetime.datetime | None:
    with contextlib.suppress(ValueError):
        found = datetime.datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        return found if found.tzinfo else found.replace(tzinfo=datetime.timezone.utc)
    return None
