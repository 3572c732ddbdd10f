"""Says which line of an ssh config lets an old server in, where ssh finds no common algorithm."""

from __future__ import annotations

import contextlib
import re
import subprocess

_UNAGREED = re.compile(r"no matching (.*?) found\. Their offer: (\S+)")
_QUERY_TIMEOUT_S = 10.0
_OPTIONS = {
    "key exchange method": ("KexAlgorithms", "kex"),
    "host key type": ("HostKeyAlgorithms", "key"),
    "cipher": ("Ciphers", "cipher"),
    "MAC": ("MACs", "mac"),
}
"""Per kind of algorithm, as ssh names it: the option of its configuration, and of `ssh -Q`."""


def algorithm_hint(stderr: str, host: str, config: str) -> str:
    """Return what to do about what ssh printed; empty: it is about no algorithm.

    Args:
        host: How the configuration names the host that ssh can't talk to.
        config: The file of the configuration.
    """
    found = _UNAGREED.search(stderr)
    if found is None or found[1] not in _OPTIONS:
        return ""
    option, kind = _OPTIONS[found[1]]
    known = _known(kind)
    usable = [each for each in found[2].split(",") if each in known]
    if not usable:
        return (
            f"The ssh of this machine has none of these (ssh -Q {kind}): install a newer OpenSSH "
            "here, or ask the host's administrators."
        )
    return (
        "The host offers only algorithms that ssh no longer uses by default. If you trust the "
        f"network, put two lines above the first Host of {config}: `Host {host}` and "
        f"`{option} +{usable[0]}`"
    )


def _known(kind: str) -> list[str]:
    with contextlib.suppress(subprocess.TimeoutExpired, OSError):
        return subprocess.run(
            ["ssh", "-Q", kind], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=_QUERY_TIMEOUT_S, check=False,
        ).stdout.split()  # fmt: skip
    return []
