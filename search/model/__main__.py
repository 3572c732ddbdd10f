"""The model's process: `python -m search.model JOB_DIR`; exits with 0 once the search is done."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from pathlib import Path

from dlctl import contract
from dlctl.contract import search as names
from search.errors import SearchError
from search.model.drive import Driver
from search.model.log import DamagedLogError, TrialLog
from search.model.state import HopelessError, ReplayError, Search
from search.model.strategy import StrategyError, open_strategy
from search.protocol.process import EXIT_FAILED, load_spec


def main() -> int:
    """Drive a search until its budget is used up, or until a signal ends this process."""
    parser = argparse.ArgumentParser(prog="search.model")
    parser.add_argument("job_dir", type=Path)
    job_dir = parser.parse_args().job_dir
    try:
        spec = load_spec(job_dir)
    except SearchError as error:
        return _end_wrong(error)
    sys.path.append(os.fspath(job_dir / contract.CODE))
    with contextlib.ExitStack() as stack:
        try:
            log = TrialLog(job_dir / names.TRIALS)
            search = Search(spec, stack.enter_context(open_strategy(spec)), log)
            return asyncio.run(_drive(Driver(search, job_dir)))
        except (DamagedLogError, HopelessError, ReplayError, StrategyError) as error:
            return _end_wrong(error)
        except SearchError as error:  # the next start may end well
            sys.stderr.write(f"dlctl: {error}\n")
            return EXIT_FAILED


def _end_wrong(error: Exception) -> int:
    sys.stderr.write(f"dlctl: {error}\n")
    return names.EXIT_WRONG


async def _drive(driver: Driver) -> int:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    work = asyncio.ensure_future(driver.run())
    waits = asyncio.ensure_future(ended.wait())
    await asyncio.wait([work, waits], return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        return 128 + signal.SIGTERM
    waits.cancel()
    work.result()
    return 0


if __name__ == "__main__":
    sys.exit(main())
