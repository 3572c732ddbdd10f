"""Where to begin to read logs: at their last lines, or at a time. One remote call for all logs."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from dlctl.contract import TIMES_SUFFIX
from dlctl.files.small_files import sizes_script

if TYPE_CHECKING:
    from dlctl.logs.reader import LogReader
    from dlctl.transport import Transport

_NOTE_BYTES = 32
"""A note is shorter."""
_LINE_BYTES = 4096
"""So long before a time a reader looks for the beginning of the line that was being written."""


def begin_at_tail(reader: LogReader, transport: Transport, lines: int) -> None:
    """Skip all but the last lines of each log, and the notes on what came long before them.

    Raises:
        TransportError
    """
    kept_bytes = _NOTE_BYTES * (lines + 50)
    script = f"""\
LC_ALL=C; export LC_ALL
cd -- {shlex.quote(reader.job_dir)} 2>/dev/null || exit 0
{{
{sizes_script(reader.globs())}}} | while IFS= read -r line; do
    size=${{line%% *}} name=${{line#* }} # the log may grow meanwhile
    case $name in
        *{TIMES_SUFFIX}) [ "$size" -le {kept_bytes} ] || echo "$((size - {kept_bytes})) $name";;
        *) echo "$((size - $(head -c "$size" <"$name" | tail -n {lines} | wc -c))) $name";;
    esac
done"""
    for line in transport.run(script).lines:
        skipped, _, name = line.partition(" ")
        reader.skip(name, int(skipped))


_SINCE = r"""
FNR == 1 { tell(); name = FILENAME; log_bytes = notes_bytes = at = 0 }
$1 ~ /^[0-9]+[.][0-9]+$/ && $2 ~ /^[0-9]+$/ && $1 + 0 < since + 0 {
    log_bytes = $2; notes_bytes = at
}
{ at += length($0) + 1 }
function tell() { if (log_bytes) print log_bytes, notes_bytes, name }
END { tell() }"""


def begin_since(
    reader: LogReader, transport: Transport, *, at: float | None = None, ago_s: float = 0.0
) -> None:
    """Skip the lines that were written before a time, as the notes beside the logs tell it.

    A log without notes is read from its beginning.

    Args:
        at: Unix seconds; None: `ago_s` before now, by the site's clock.

    Raises:
        TransportError
    """
    names = {f"{name.rpartition('.')[0]}{TIMES_SUFFIX}": None for name in reader.globs()}
    since = f"$(($(date +%s) - {round(ago_s)}))" if at is None else f"{at:.3f}"
    script = f"""\
LC_ALL=C; export LC_ALL
cd -- {shlex.quote(reader.job_dir)} 2>/dev/null || exit 0
since={since}
{{
{sizes_script([*names])}}} | sed -n 's/^[0-9]* \\(attempts[a-z0-9./-]*\\)$/\\1/p' |
    xargs awk -v since="$since" '{_SINCE}' /dev/null"""
    for line in transport.run(script).lines:
        log_bytes, notes_bytes, notes = line.split(" ", 2)
        log = f"{notes.removesuffix(TIMES_SUFFIX)}.log"  # of the job's output, too
        reader.skip(log, max(0, int(log_bytes) - _LINE_BYTES), int(log_bytes))
        reader.skip(notes, max(0, int(notes_bytes) - 1))
