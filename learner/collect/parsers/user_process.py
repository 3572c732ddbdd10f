"""Run a user's parser: `python -m learner.collect.parsers.user_process FILE`.

Reads lists of lines as JSON, a list a line, and answers `{"records": […], "error": "…"}`, the error
if there was one.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from learner.system.processes import end_with_parent


def main(arguments: list[str]) -> int:
    """Answer until standard input ends."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the collector ignores it, and so would this
    end_with_parent()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what the parser prints is no answer
    try:
        parse = _load(Path(arguments[0]))
    except BaseException as error:  # noqa: BLE001 - a user's file may do anything
        _answer(answers, {"error": _words(error)})
        return 1
    for question in sys.stdin.buffer:
        records: list[dict[str, Any]] = []
        found: dict[str, Any] = {"records": records}
        try:
            records.extend(_plain(record) for record in parse(json.loads(question)))
        except BaseException as error:  # noqa: BLE001
            found["error"] = _words(error)
        _answer(answers, found)
    return 0


def _load(file: Path) -> Callable[[list[str]], Iterable[Any]]:
    sys.path.insert(0, str(file.parent))
    spec = importlib.util.spec_from_file_location("users_parser", file)
    if spec is None or spec.loader is None:
        raise ValueError("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    with contextlib.redirect_stdout(io.StringIO()):
        spec.loader.exec_module(module)
    parse = getattr(module, "parse", None)
    if not callable(parse):
        raise ValueError("it defines no function parse(lines)")
    return parse  # type: ignore[no-any-return]


def _plain(record: Any) -> dict[str, Any]:
    """Return a record as JSON can hold it: numbers of other libraries as floats."""
    return {str(name): _plain_value(value) for name, value in dict(record).items()}


def _plain_value(value: Any) -> Any:
    return value if value is None or isinstance(value, (str, bool, int)) else float(value)


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:500]


def _answer(answers: Any, content: dict[str, Any]) -> None:
    answers.write(json.dumps(content).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
