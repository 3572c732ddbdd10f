"""The manifest's `evaluation_metrics`: kinds of parsers, and the regular expressions of FfDL."""

from __future__ import annotations

import enum
import re


class ParserType(str, enum.Enum):
    """The parsers that turn a program's output into metrics."""

    TENSORBOARD = "tensorboard"
    """Event files."""
    REGEX = "regex_extractor"
    """Regular expressions over logs."""
    EMETRICS = "emetrics_file"
    """FfDL's file of records."""
    AUTO = "auto"
    """Rules for the lines of well-known libraries."""
    PYTHON = "python"
    """A function of the user's own."""
    NONE = "logger"
    """Logs only."""


SPELLINGS: dict[str, ParserType] = {
    **{kind.value: kind for kind in ParserType},
    "tensorboard_extractor": ParserType.TENSORBOARD,
    "file": ParserType.EMETRICS,
    "optivist": ParserType.EMETRICS,
    "none": ParserType.NONE,
    "null": ParserType.NONE,
    "nil": ParserType.NONE,
    "": ParserType.NONE,
}
"""Every word for a type that a manifest may use."""
VALUE_TYPES = ("STRING", "JSONSTRING", "INT", "FLOAT")
"""FfDL's types of values; in its files of records also 0 to 3, in this order."""
LINE_LOOKAHEAD = 4
"""How many lines a regular expression may span unless the manifest says so."""
MOST_LOOKAHEAD = 1000

LIBRARY = {
    "GLOG_STAMP": r"[EFIW]\d\d\d\d\s+\d\d\:\d\d\:\d*\.\d+",
    "TIMESTAMP": r"(?:\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(?:[.]\d+)?(?:Z|[-+]\d{2}:?\d{2})?)",
    "FLOAT": r"[-+]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?|(?i:nan|inf|infinity)\b)",
    "INT": r"[-+]?\d+",
    "INT_ANY": r"[-+]?(?:0[xX][\dA-Fa-f]+|0[0-7]*|\d+)",
    "HEX": r"[-+]?(?:0[xX])?[\dA-Fa-f]+",
}
"""FfDL's patterns, without groups that capture: they would shift the numbers of the user's own.

`FLOAT` also fits NaN and infinity, so that a loss that diverges does not vanish.
"""
_USE = re.compile(r"%\{(\w+)(?::(\w+))?\}")


def expand_regex(regex: str) -> str:
    """Return a regular expression with the library's patterns in place of `%{INT:x}`, `%{INT}`.

    Raises:
        ValueError: it uses a pattern that the library lacks.
    """

    def put(match: re.Match[str]) -> str:
        name, group = match.groups()
        if name not in LIBRARY:
            raise ValueError(f"%{{{name}}} is not in the library; {', '.join(LIBRARY)} are allowed")
        return f"(?P<{group}>{LIBRARY[name]})" if group else f"(?:{LIBRARY[name]})"

    return _USE.sub(put, regex)


def compile_regex(regex: str) -> re.Pattern[str]:
    """Return a regular expression as FfDL understands it.

    Raises:
        ValueError: it is none.
    """
    try:
        return re.compile(expand_regex(regex), re.MULTILINE | re.DOTALL)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
