"""Leave out of a folder what ignore files name, and find what looks like a secret.

Reads `.gitignore` and `.dlctlignore` files like git, including nested ones. The deepest file with a
matching rule decides; in one folder `.dlctlignore` wins over `.gitignore`. Secrets are recognised
by their names, and in small text files by their contents.
"""

from __future__ import annotations

import fnmatch
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dlctl.contract import BY_DLCTL, PULLED_FROM, SENT_INDEX
from dlctl.contract.ground.safe_text import printable
from dlctl.errors import BundleError
from dlctl.request.gitignore import Pattern, parse

_GIT, _OWN = ".gitignore", ".dlctlignore"
_ALWAYS_LEFT_OUT = frozenset(
    {
        ".git", ".hg", ".svn", ".venv", "__pycache__", ".mypy_cache", ".pytest_cache",
        ".ruff_cache", ".hypothesis", ".ipynb_checkpoints", ".tox", ".nox", ".eggs",
        "node_modules", ".DS_Store", ".idea", ".vscode", ".dlctl", SENT_INDEX, PULLED_FROM,
    }
)  # fmt: skip
"""Names that are never sent, at any level. Virtual environments and `results/` aren't, either.
An index of dlctl's own would be replaced, `.dlctl-model` is its note, and `.dlctl/` has what
`dlctl init` writes for editors."""
MADE_MANIFEST = ".dlctl-manifest-"
"""How a manifest begins that a program has given as a text or a dict, beside what it trains."""


def is_left_out(name: str) -> bool:
    """Return whether a file or folder of this name is never sent."""
    # NFS renames open files
    return name in _ALWAYS_LEFT_OUT or name.startswith((".nfs", MADE_MANIFEST))


@dataclass(frozen=True)
class _Rules:
    """The rules of the two ignore files of one folder."""

    prefix: str
    """The prefix of its paths, relative to the folder that is sent; empty for files above it."""
    above: str
    """The path from an ignore file above the folder down to the folder."""
    place: str
    """The path from the folder that is sent to this one, with a `/` at its end, or empty."""
    patterns: tuple[tuple[str, Pattern], ...]
    """The file's name and its line, the weakest first."""

    def deciding(self, path: str, is_folder: bool, own: bool = False) -> tuple[str, Pattern] | None:
        """Return the last line that matches; with `own` only those of `.dlctlignore` count."""
        name = os.fsencode(self.above + path[len(self.prefix) :])
        return next(
            (each for each in reversed(self.patterns)
             if (not own or each[0] == _OWN) and each[1].matches(name, is_folder)), None
        )  # fmt: skip


@dataclass(frozen=True)
class Ignore:
    """The rules that apply in one folder, the outermost first."""

    rules: tuple[_Rules, ...] = ()

    @classmethod
    def of_ancestors(cls, root: Path) -> Ignore:
        """Return the rules of the git repository that contains the folder."""
        top = next((p for p in (root, *root.parents) if (p / ".git").exists()), root)
        found: tuple[_Rules, ...] = ()
        for folder in reversed(root.parents):
            if folder.is_relative_to(top):
                above = root.relative_to(folder).as_posix() + "/"
                found += _rules(folder, "", above, "../" * above.count("/"))
        return cls(found)

    def below(self, folder: Path, prefix: str) -> Ignore:
        """Return these rules plus those of a folder's own files."""
        return Ignore(self.rules + _rules(folder, prefix, "", prefix))

    def leaves_out(self, path: str, is_folder: bool) -> str:
        """Return the rule that excludes a path, such as `.gitignore:3`; empty if none does."""
        for rules in reversed(self.rules):
            if found := rules.deciding(path, is_folder):
                file, pattern = found
                return "" if pattern.is_allowing else f"{rules.place}{file}:{pattern.line}"
        return ""

    def allows(self, path: str) -> bool:
        """Return whether a `.dlctlignore` has the line `!path`."""
        for rules in reversed(self.rules):
            if found := rules.deciding(path, is_folder=False, own=True):
                return found[1].is_allowing
        return False


def _rules(folder: Path, prefix: str, above: str, place: str) -> tuple[_Rules, ...]:
    found = tuple((name, each) for name in (_GIT, _OWN) for each in parse(_content(folder / name)))
    return (_Rules(prefix, above, place, found),) if found else ()


def _content(file: Path) -> bytes:
    try:
        return b"" if file.is_fifo() else file.read_bytes()  # a pipe may never have a writer
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return b""
    except OSError as error:
        raise BundleError(
            f"{printable(file)} can't be read: {error.strerror}",
            hint="make it readable (chmod u+r): it says what is not sent",
        ) from error


# What is left out -------------------------------------------------------------------------------

MOST_FILES = 10_000
"""The files of a larger folder are not counted."""


@dataclass(frozen=True)
class Excluded:
    """A file or a folder that is not sent."""

    path: str
    """Relative; a folder ends with `/`."""
    rule: str
    files: tuple[tuple[str, int], ...] | None
    """The path and the size of each file in it; None: not counted."""

    @property
    def size_bytes(self) -> int:
        """Return the size of its files, as far as they were counted."""
        return sum(size for _, size in self.files or ())


def exclude(path: str, place: Path, is_folder: bool, rule: str) -> Excluded:
    """Return what is not sent; of a folder with the files in it."""
    if not is_folder:
        return Excluded(path, rule, ((path, place.lstat().st_size),))
    if rule == BY_DLCTL:
        return Excluded(f"{path}/", rule, None)
    found = tuple(itertools.islice(_files(place, path), MOST_FILES + 1))
    return Excluded(f"{path}/", rule, None if len(found) > MOST_FILES else found)


def _files(place: Path, path: str) -> Iterator[tuple[str, int]]:
    for folder, folders, names in os.walk(place):
        folders[:] = sorted(name for name in folders if not is_left_out(name))
        below = os.path.relpath(folder, place)
        prefix = path if below == "." else f"{path}/{below}"
        for name in sorted(names):
            try:
                yield f"{prefix}/{name}", Path(folder, name).lstat().st_size
            except OSError:  # removed meanwhile
                continue


# Secrets -----------------------------------------------------------------------------------------

_SCAN_LIMIT_BYTES = 256 * 1024

_NAMES = (
    ".env", ".env.*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk",
    "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "id_*_sk", ".netrc", "_netrc", ".pgpass",
    ".my.cnf", ".git-credentials", ".pypirc", ".npmrc", ".htpasswd", "credentials",
    "credentials.json", "credentials.y*ml", "client_secret*.json", "service-account*.json",
    "service_account*.json", "kaggle.json", "secrets.json", "secrets.y*ml", "secrets.toml",
)  # fmt: skip
_PATHS = ("*.aws/*", "*.ssh/*", "*.gnupg/*", "*.kube/config", "*.docker/config.json")
_HARMLESS = (".env.example", ".env.sample", ".env.template", ".env.dist")

_CONTENTS = {
    "a private key": rb"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----",
    "an AWS access key": rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "an AWS secret key": rb"(?i)aws_secret_access_key['\"]?\s*[=:]\s*['\"]?[0-9a-z/+]{40}\b",
    "a GitHub token": rb"\b(?:gh[pousr]_[0-9A-Za-z]{36}|github_pat_[0-9A-Za-z_]{60,})",
    "a GitLab token": rb"\bglpat-[0-9A-Za-z_-]{20}",
    "a Hugging Face token": rb"\bhf_[0-9A-Za-z]{34}\b",
    "a Slack token": rb"\bxox[abprs]-[0-9A-Za-z-]{20,}",
    "a Google API key": rb"\bAIza[0-9A-Za-z_-]{35}\b",
    "an API key": rb"\bsk-(?:ant-|proj-)?[0-9A-Za-z_-]{40,}",
    "a service account's key": rb"\"private_key\"\s*:\s*\"-----BEGIN",
}
_STORE_PASSWORD = re.compile(
    rb"^['\"]?data_stores['\"]?[ \t]*:.*?\bpassword['\"]?[ \t]*:[ \t]*['\"]?[^\s{'\"#&*]",
    re.MULTILINE | re.DOTALL,
)


def secret_in_name(path: str) -> str:
    """Return why a path looks like a secret, or ""."""
    name = path.rpartition("/")[2].lower()
    if name in _HARMLESS:
        return ""
    for pattern in _NAMES:
        if fnmatch.fnmatchcase(name, pattern):
            return f"its name matches {pattern}"
    for pattern in _PATHS:
        if fnmatch.fnmatchcase(path, pattern):
            return f"its path matches {pattern}"
    return ""


def secret_in_content(file: Path, size_bytes: int) -> str:
    """Return the kind of secret that a small text file seems to hold, or ""."""
    if not 0 < size_bytes <= _SCAN_LIMIT_BYTES:
        return ""
    content = file.read_bytes()
    if b"\0" in content[:1024]:
        return ""
    if file.suffix in (".yml", ".yaml") and _STORE_PASSWORD.search(content):
        return "a data store's password"
    return next((what for what, text in _CONTENTS.items() if re.search(text, content)), "")
