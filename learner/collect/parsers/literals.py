"""Text that each match of a regular expression must contain, so that most lines need no match.

What can't be told counts as nothing: then every line is tried.
"""

from __future__ import annotations

import re
import sys
from typing import Any

if sys.version_info >= (3, 11):
    from re import _constants as _c  # type: ignore[attr-defined]
    from re import _parser  # type: ignore[attr-defined]
else:
    import sre_constants as _c
    import sre_parse as _parser

_REPEATS = {_c.MAX_REPEAT, _c.MIN_REPEAT, getattr(_c, "POSSESSIVE_REPEAT", None)}


def required_literals(pattern: re.Pattern[str]) -> list[str]:
    """Return texts that are in every match, the longest first."""
    if pattern.flags & (re.IGNORECASE | re.LOCALE):
        return []
    try:
        parsed = _parser.parse(pattern.pattern, pattern.flags)
    except (re.error, RecursionError, OverflowError):
        return []
    found: list[str] = []
    _walk(parsed, found)
    return sorted(dict.fromkeys(found), key=len, reverse=True)


def _walk(parsed: Any, found: list[str]) -> None:
    run: list[str] = []

    def end_run() -> None:
        if run:
            found.append("".join(run))
            run.clear()

    for operation, argument in parsed:
        if operation is _c.LITERAL:
            run.append(chr(argument))
            continue
        end_run()
        if operation is _c.SUBPATTERN:
            _, added, removed, inner = argument
            if not added & re.IGNORECASE and not removed:
                _walk(inner, found)
        elif operation in _REPEATS:
            least, _, inner = argument
            if least >= 1:
                _walk(inner, found)
        elif operation is getattr(_c, "ATOMIC_GROUP", None):
            _walk(argument, found)
    end_run()
