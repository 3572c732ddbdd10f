"""Match lines in a process of its own: some patterns never end, and stop the whole interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence

from dlctl.errors import Misused

_PATIENCE_S = 5.0
"""For the lines of one look."""
_PROGRAM = """\
import json, re, sys
find = re.compile(json.loads(sys.stdin.readline())).search
for line in sys.stdin:
    print(json.dumps([find(each) is not None for each in json.loads(line)]), flush=True)
"""


class Sieve:
    """Tells which lines a pattern is found in.

    Args:
        pattern: Of Python's `re`, valid.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._process: subprocess.Popen[str] | None = None

    def found_in(self, lines: Sequence[str]) -> list[bool]:
        """Return for each line whether the pattern is found in it.

        Raises:
            Misused: that takes too long.
        """
        process = self._process = self._process or self._begin()
        assert process.stdin is not None and process.stdout is not None
        late = threading.Timer(_PATIENCE_S, process.kill)
        late.start()
        try:
            process.stdin.write(json.dumps(lines) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            late.cancel()
        if not answer:
            raise Misused(f"{self._pattern}: to look for it takes too long", option="--grep")
        return list(json.loads(answer))

    def close(self) -> None:
        """End the process; idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _begin(self) -> subprocess.Popen[str]:
        begun = subprocess.Popen([sys.executable, "-I", "-S", "-c", _PROGRAM], text=True,  # noqa: S603
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                 stderr=subprocess.DEVNULL)  # fmt: skip
        assert begun.stdin is not None
        begun.stdin.write(json.dumps(self._pattern) + "\n")
        return begun
