"""A data store that is a folder of scripts: `load.sh` brings its data, `store.sh` takes results.

The scripts get everything from the environment, credentials too, and may run twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl.contract import DataStore
from dlctl.contract.ground.processes import end_child
from dlctl.contract.ground.safe_text import masked, without_prefix
from dlctl.contract.stores import (
    CACHE,
    EXIT_SUPERSEDED,
    EXIT_TRY_LATER,
    LOAD,
    PREFIX,
    STORE,
    progress_file,
    store_data,
    store_dir,
    store_log,
    store_script,
)
from learner.errors import SiteFault, UserFault
from learner.storage.progress import Interrupted, Moving, Tick, read_progress
from learner.system.files import resolve_secret
from learner.system.processes import end_with_parent

if TYPE_CHECKING:
    from typing import TypeAlias


PYTHON_VARIABLE = "DLCTL_PYTHON"
"""Names the Python with the packages of data stores; the job script sets it for a container's."""
_POLL_S = 0.1
_LEAVE_S = 3.0
"""How long a script may take to end when it is asked to."""
_KILLED_RUNS = 3
"""How often a script runs that something keeps killing."""
_HINT = "  HINT: "
_SILENT_S = 10.0
"""After this long without news of a script its silence is told."""
Show: TypeAlias = "Callable[[Moving], None]"


def problems(store: DataStore) -> list[str]:
    """Return what this node lacks to run the store's scripts, two lines each."""
    if store.via != "node":
        return []
    found = []
    if shutil.which("bash") is None:
        found.append(
            f"There is no bash on this node to run the scripts of data store {store.id!r}.\n"
            "Install bash, or move the data before the job: `data_via: login` in the site's file."
        )
    lacking = [name for name in store.needs if importlib.util.find_spec(name) is None]
    if lacking:
        found.append(
            f"This node's Python lacks {', '.join(lacking)}, which data store {store.id!r} (type "
            f"{store.type}) needs.\n"
            f"Install it: {sys.executable} -m pip install {' '.join(lacking)}; or run again: "
            "dlctl sites setup SITE"
        )
    return found


def load(store: DataStore, root: Path, job_dir: Path, tick: Tick, show: Show) -> Path | None:
    """Run the store's load script; return where it has put the data, or None without any.

    Raises:
        UserFault: the script failed, with its own last words.
        Interrupted: by `tick`; then the script has ended, too.
    """
    if store.training_data is None:
        return None
    data = job_dir / store_data(store.position)
    if LOAD not in store.scripts:
        return data if data.exists() else None
    own = {"CONTAINER": store.training_data, "DATA": str(data), "CACHE": str(root / CACHE)}
    if store.cache_limit_bytes is not None:
        own["CACHE_LIMIT"] = str(store.cache_limit_bytes)
    _run(store, LOAD, root, job_dir, own, tick, show)
    if not data.exists():
        raise UserFault(
            f"The load script of data store {store.id!r} has ended, but there is nothing at "
            "$STORE_DATA.",
            hint=f"See {job_dir / store_log(store.position, LOAD)}",
        )
    return data


def save(
    store: DataStore, root: Path, job_dir: Path, source: Path, more: Mapping[str, str], tick: Tick,
    show: Show,
) -> str:  # fmt: skip
    """Run the store's store script; return where the files are now, for people.

    Args:
        source: The folder with links to all that is to be stored.
        more: Further variables of the script: TRAINING_ID, TRAINING_STATE, DLCTL_ATTEMPT.
    """
    if store.training_results is None or STORE not in store.scripts:
        return ""
    own = {"CONTAINER": store.training_results, "SOURCE": str(source), "JOB_DIR": str(job_dir)}
    _run(store, STORE, root, job_dir, own, tick, show, more)
    sentence = last_sentence(job_dir, store)
    return f"{store.training_results}: {sentence}" if sentence else store.training_results


def last_sentence(job_dir: Path, store: DataStore) -> str:
    """Return what the store's last script has said of its work, if anything."""
    return read_progress(job_dir / progress_file(store.position)).sentence


class _News:
    """A running script's reports, and the time since the last one."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._last, self._since = Moving(), time.monotonic()

    def read(self) -> Moving:
        news = read_progress(self._file)
        if news != self._last:
            self._last, self._since = news, time.monotonic()
        silent_s = (time.monotonic() - self._since) // _SILENT_S * _SILENT_S
        if not news.sentence or silent_s == 0:
            return news
        return dataclasses.replace(news, sentence=f"{news.sentence}; no news for {silent_s:.0f} s")


def _run(
    store: DataStore, name: str, root: Path, job_dir: Path, own: Mapping[str, str], tick: Tick,
    show: Show, more: Mapping[str, str] | None = None,
) -> None:  # fmt: skip
    folder = job_dir / store_dir(store.position)
    progress = job_dir / progress_file(store.position)
    progress.unlink(missing_ok=True)
    env = {**os.environ, **(more or {})}
    settings = dict(store.connection)
    for key, reference in store.secrets.items():
        settings[key] = resolve_secret(f"connection.{key}", reference, root, os.environ)
    env.update((PREFIX + key.upper(), value) for key, value in settings.items())
    shared = {"ID": store.id, "DIR": str(folder), "PROGRESS": str(progress)}
    env.update((PREFIX + key, value) for key, value in {**shared, **own}.items())
    env.setdefault(PYTHON_VARIABLE, sys.executable)
    script, log = (job_dir / at(store.position, name) for at in (store_script, store_log))
    news = _News(progress)
    for _ in range(_KILLED_RUNS):
        code = _wait(script, env, log, tick, lambda: show(news.read()))
        if code >= 0 and code <= 128:
            break
    if code == EXIT_SUPERSEDED:
        raise Interrupted
    if code != 0:
        raise _failed(store, name, code, log, [settings[key] for key in store.secrets])


def _wait(
    script: Path, env: Mapping[str, str], log: Path, tick: Tick, look: Callable[[], None]
) -> int:
    """Run a script to its end and return its exit code; end it if `tick` raises."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["bash", str(script)], cwd=script.parent, env=dict(env), stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=end_with_parent,
        )  # fmt: skip
    try:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(_POLL_S)
            look()
            tick()
    finally:
        end_child(process, _LEAVE_S, group=True)


def _failed(store: DataStore, name: str, code: int, log: Path, hidden: list[str]) -> UserFault:
    """Return the fault of a script that failed, in its own last words, without credentials."""
    text = masked(log.read_text(errors="replace"), hidden)
    lines = [line for line in text.splitlines() if line.strip()]
    hint = f"See {log}"
    if lines and lines[-1].startswith(_HINT):
        hint = without_prefix(lines.pop(), _HINT)
    last = lines[-1].strip()[:500] if lines else "it printed nothing"
    if not hint.startswith("See "):
        message = last
    else:
        message = (
            f"The {name} script of data store {store.id!r} ended with exit code {code}: {last}"
        )
    kind = SiteFault if code == EXIT_TRY_LATER or code < 0 or code > 128 else UserFault
    return kind(message, hint=hint)
