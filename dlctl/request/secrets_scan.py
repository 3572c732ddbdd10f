"""Recognises files that look like secrets: by name, and small text files by content. Pure."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

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
