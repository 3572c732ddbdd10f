"""Run a broker: `python -m search.broker JOB_DIR --name NAME`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from dlctl.contract import search as files
from search.broker.incarnation import SEGMENT_BYTES, Adopter, Incarnation
from search.errors import SearchError
from search.journal.epochs import Lease
from search.protocol.process import count_strangers, load_spec, run_process

_SWITCH_S = 0.0005
"""The log's thread gets its turn this soon while calls keep the interpreter busy."""


def main(arguments: list[str]) -> int:
    """Run a broker until a signal, or as long as its worker lives."""
    parser = argparse.ArgumentParser(prog="python -m search.broker")
    parser.add_argument("job_dir", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--segment-bytes", type=int, default=SEGMENT_BYTES, help="of its log")
    parser.add_argument("--until-eof", action="store_true", help="end with the standard input")
    options = parser.parse_args(arguments)
    sys.setswitchinterval(_SWITCH_S)
    return run_process(
        f"broker {options.name}",
        serve(options.job_dir, options.name, options.segment_bytes),
        until_eof=options.until_eof,
    )


async def serve(job_dir: Path, name: str, segment_bytes: int = SEGMENT_BYTES) -> None:
    """Run the broker's next incarnation, and adopt brokers that are gone."""
    spec = load_spec(job_dir)
    folder = job_dir / files.BROKERS / name
    adopter = Adopter(job_dir, spec, name)
    try:
        lease = await asyncio.to_thread(Lease.claim, folder, spec.heartbeat_timeout_s)
        own = Incarnation(job_dir, spec, name, lease, segment_bytes=segment_bytes)
        await own.run(adopter.run)
    except OSError as error:
        raise SearchError(
            f"the broker {name} can't use its folder: {error}",
            hint=f"look at the space and the permissions of {folder}",
        ) from error


if __name__ == "__main__":
    count_strangers()
    sys.exit(main(sys.argv[1:]))
