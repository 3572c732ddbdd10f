"""Move data through this machine, where neither nodes nor login node reach the store.

The same program runs here that nodes run: `python -m learner.storage`. What the site's cache has
already is not fetched: an empty file of its size stands for it here.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dlctl import contract
from dlctl.contract.ground.processes import end_child
from dlctl.contract.stores import CACHE, LOAD, PREFIX, STORE, listing_file
from dlctl.errors import RemoteCommandError, ResultsError
from dlctl.files.archive import Entry
from dlctl.files.upload import Tree, download, read_files
from dlctl.lifecycle.remote_module import run_module
from dlctl.lifecycle.submit import send
from dlctl.units import counted

if TYPE_CHECKING:
    from dlctl.lifecycle.session import Session

RUNTIME = Path(__file__).resolve().parents[2]
"""The folder in which the package `learner` lies beside this one."""
_HINT = "  HINT: "
_EVERY_S = 2.0
OnLine = Callable[[str], None] | None


def load(session: Session, plan: contract.Plan, on_line: OnLine) -> None:
    """Fetch the training data to here, and send what the site's cache lacks.

    Raises:
        ResultsError: the store's words.
        TransferError, TransportError
    """
    for store in plan.data_stores:
        if LOAD in store.scripts:
            with tempfile.TemporaryDirectory(prefix="dlctl-") as folder:
                _load(session, plan, store, Path(folder), on_line)


def _load(
    session: Session, plan: contract.Plan, store: contract.DataStore, folder: Path, on_line: OnLine
) -> None:
    there = f"{plan.job_dir}/{listing_file(store.position)}"
    if (known := read_files(session.transport, [there])[there]) is not None:
        (folder / "listing.json").write_bytes(known)
    cache = folder / CACHE
    known_paths = set(_stand_ins(session, plan.root, cache))
    own = {"CONTAINER": store.training_data or "", "DATA": f"{folder}/data", "CACHE": str(cache)}
    _run(session, store, "load", folder, own, {}, on_line)
    entries = [
        Entry(path.relative_to(cache).as_posix(), path, mode=0o444)
        for path in [*cache.glob("*/objects/*/*"), *cache.glob("*/place.json")]
        if path not in known_paths
    ]
    if on_line:
        on_line(f"sending {counted(sum(1 for _ in entries), 'file')} to the cache of {plan.site}")
    listing = Entry("listing.json", folder / "listing.json")
    job = f"jobs/{plan.training_id}/{listing_file(store.position).rpartition('/')[0]}"
    send(session, plan.root, [Tree(CACHE, entries, if_exists="merge"),
                              Tree(job, [listing], if_exists="merge")])  # fmt: skip


def _stand_ins(session: Session, root: str, cache: Path) -> Iterator[Path]:
    """Make an empty file of the right size for each content that the site has."""
    place = shlex.quote(f"{root}/{CACHE}")
    end = session.transport.run(
        f"cd -- {place} 2>/dev/null || exit 0\n"
        "find . -type f -path './*/objects/*/*' ! -name '*.*' -exec wc -c /dev/null {} +"
    )
    if end.exit_code:
        raise RemoteCommandError(f"{session.transport.name}: can't read the cache in {root}")
    for line in end.lines:
        size, _, name = line.strip().partition(" ")
        if name.startswith("./"):
            path = cache / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                file.truncate(int(size))
            yield path


def save(session: Session, plan: contract.Plan, attempt: int, on_line: OnLine) -> list[str]:
    """Fetch what an attempt has made to here, and store it; return a line for each store."""
    words = ["lay-out", plan.job_dir, str(attempt)]
    found = run_module(session, plan, "learner.supervisor.bring", words).value
    done = []
    with tempfile.TemporaryDirectory(prefix="dlctl-") as folder:
        source = Path(folder, "source")
        paths = sorted(set(found["files"].values()))
        download(session.transport, plan.job_dir, paths, Path(folder, "fetched"))
        for name, path in found["files"].items():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).symlink_to(Path(folder, "fetched", path))
        for store in plan.data_stores:
            if STORE in store.scripts:
                own = {"CONTAINER": store.training_results or "", "SOURCE": str(source),
                       "JOB_DIR": folder}  # fmt: skip
                more = {"TRAINING_ID": plan.training_id, "TRAINING_STATE": found["state"],
                        "DLCTL_ATTEMPT": str(attempt)}  # fmt: skip
                told = _run(session, store, "save", Path(folder), own, more, on_line)
                done.append(f"{store.id}: {store.training_results}: {told}")
    return done


def _run(
    session: Session, store: contract.DataStore, verb: str, folder: Path, own: dict[str, str],
    more: dict[str, str], on_line: OnLine,
) -> str:  # fmt: skip
    """Run the program of the nodes here; return its last sentence."""
    progress = folder / "progress"
    settings = {**store.connection, **_secrets(session, store)}
    own = {**own, "ID": store.id, "DIR": str(folder), "PROGRESS": str(progress)}
    env = {**os.environ, "PYTHONPATH": str(RUNTIME), **more}
    env |= {PREFIX + key.upper(): value for key, value in {**settings, **own}.items()}
    with (folder / "log").open("w+b") as log:
        argv = [sys.executable, "-m", "learner.storage", verb, store.uses]
        process = subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            while (code := _waited(process)) is None:
                if on_line and progress.exists():
                    on_line(progress.read_text().strip())
        finally:
            end_child(process)
    if code != 0:
        lines = (folder / "log").read_text(errors="replace").split("\n")
        said = [line for line in lines if line.strip()] or ["no answer"]
        hint = said.pop().removeprefix(_HINT) if said[-1].startswith(_HINT) else ""
        raise ResultsError(said[-1], hint=hint)
    return progress.read_text().strip()


def _waited(process: subprocess.Popen[bytes]) -> int | None:
    until = time.monotonic() + _EVERY_S
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    return process.returncode


def _secrets(session: Session, store: contract.DataStore) -> dict[str, str]:
    """Return the credentials of a store, which lie at the site in files of the user's."""
    paths = {key: told.removeprefix("file:") for key, told in store.secrets.items()}
    found = read_files(session.transport, list(paths.values())) if paths else {}
    values = {}
    for key, path in paths.items():
        content = found[path]
        if content is None:
            raise ResultsError(
                f"the credential {key} of data store {store.id} is no longer at the site",
                hint="submit the training again",
            )
        values[key] = content.decode().rstrip("\n")
    return values
