"""`dlctl logs --grep`: let the site send only the lines of logs that can match. Pure.

The pattern is Python's, and dlctl decides which lines match, of what is shown. Where the pattern
has the same meaning for awk, the site leaves out lines that can't match: of those that hold nothing
but ASCII text what is shown is what is there. The lines that are left out come back as bytes of
`FILLER` that take as much room, so that offsets and the notes on times stay right.
"""

from __future__ import annotations

import re

FILLER = b"\0"
_TOKEN = re.compile(
    r"(?P<class>\\[dws])|\\(?P<escaped>[!-/:-@\[-`{-~])|(?P<set>\[\^?[\w .,:;=/%+-]+\])"
    r"|(?P<repeat>[*+?](?![*+?]))|(?P<special>[().|^$])|(?P<plain>[^\\\[\]{}()*+?.|^$\n])"
)
_CLASSES = {r"\d": "[0-9]", r"\w": "[A-Za-z0-9_]", r"\s": "[ \t]"}


def for_awk(pattern: str) -> str | None:
    """Return a pattern of awk that fits each ASCII line which this one fits; None if none is known.

    Args:
        pattern: Of Python's `re`, valid.
    """
    if not pattern.isascii() or "(?" in pattern:
        return None
    parts, at = [], 0
    while at < len(pattern):
        found = _TOKEN.match(pattern, at)
        if found is None:
            return None
        at = found.end()
        if known := found["class"]:
            parts.append(_CLASSES[known])
        elif escaped := found["escaped"]:
            parts.append(f"\\{escaped}" if escaped in r"\^$.[]|()*+?{}" else escaped)
        else:
            parts.append(found[0])
    return "".join(parts) if not re.search(r"(^|[(|])[*+?]|\^[*+?]|\$[*+?]", pattern) else None


_AWK = r"""
function tell() { if (left_out) print "-" left_out; left_out = 0 }
# The first line may be the end of one that came before, the last one lacks its end.
NR > 1 {
    if (NR == 2 || line ~ ENVIRON["pattern"] || line ~ /[^\t -~]/) { tell(); print "+" line }
    else left_out += length(line) + 1
}
{ line = $0 }
END { tell(); printf ".%s", substr(line, 1, length(line) - 1) }"""


def site_filter(pattern: str) -> str:
    """Return a command of the shell that passes on what `whole` understands.

    Args:
        pattern: As `for_awk` returns it.
    """
    quoted = pattern.replace("'", "'\\''")
    # Some versions of awk end a line at a NUL. The x keeps what follows the last newline.
    return f"{{ cat; echo x; }} | tr '\\000' '\\001' | pattern='{quoted}' awk '{_AWK}'"


def whole(content: bytes) -> bytes:
    """Return as many bytes as the log has, with `FILLER` for the lines that were left out."""
    parts = []
    for record in content.split(b"\n"):
        kind, rest = record[:1], record[1:]
        if kind == b"-":
            parts.append(FILLER * (int(rest) - 1) + b"\n")
        else:
            parts.append(rest + b"\n" if kind == b"+" else rest)
    return b"".join(parts)


def without_filler(content: bytes) -> bytes:
    """Return the lines that stand for no others, which were left out."""
    if FILLER not in content:
        return content
    return b"".join(
        line for line in content.splitlines(keepends=True)
        if line[:1] != FILLER or line.strip(FILLER)
    )  # fmt: skip
