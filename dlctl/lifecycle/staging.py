"""Prepare at a site what nodes can't: packages and data before a job, its results after it.

Packages are those that a manifest requires (see `learner.requirements`). Data is moved by the login
node, or through this machine where that does not reach the store, either; then the same program
runs here that nodes run: `python -m learner.storage`. What the site's cache has already is not
fetched: an empty file of its size stands for it here.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath

from dlctl import contract
from dlctl.contract.ground.processes import end_child
from dlctl.contract.ground.safe_text import lines_of
from dlctl.contract.stores import CACHE, LOAD, PREFIX, STORE, listing_file
from dlctl.errors import RemoteCommandError, ResultsError, SiteError
from dlctl.files.archive import Entry
from dlctl.files.download import download
from dlctl.files.small_files import read_files
from dlctl.files.upload import Tree
from dlctl.lifecycle.remote_module import SiteRuntime, run_module
from dlctl.lifecycle.session import Session
from dlctl.lifecycle.submit import lacking_runtime, send
from dlctl.plan.environments import environment_of
from dlctl.site_admin.setup import SETUP_TIMEOUT_S
from dlctl.units import counted

MOVE_TIMEOUT_S = 7 * 86400.0
RUNTIME = Path(__file__).resolve().parents[2]
"""The folder in which the package `learner` lies beside this one."""
_HINT = "  HINT: "
_EVERY_S = 2.0
OnLine = Callable[[str], None]


def bring_runtime(session: Session) -> SiteRuntime:
    """Send this version's runtime to a site that lacks it, and return what runs modules of it.

    Raises:
        SiteError: the site has no Python for its nodes.
        TransportError
    """
    from dlctl.request.request import runtime_entries

    site, settings = session.site, session.site.environment
    if settings.python is None:
        raise SiteError(
            f"the site {site.name} has no Python for its nodes yet",
            hint=f"`dlctl sites setup {site.name}` makes one; or set environment.python",
        )
    python = sys.executable if settings.python == "auto" else settings.python
    environment = environment_of(settings, python)
    folder = f"{site.root}/runtime/{runtime_entries()[0]}"
    made = SiteRuntime(site.name, site.root, folder, f"{site.umask:03o}", environment)
    send(session, site.root, lacking_runtime(session, made))
    return made


def make_environment(
    session: Session, plan: contract.Plan, on_line: OnLine = lambda _: None
) -> None:
    """Make the environment of a plan's requirements at the site, unless it is there.

    Args:
        on_line: Called with a sentence if something has to be installed, which may take minutes.

    Raises:
        SiteError: pip could not install them: its most telling line.
        TransportError
    """
    settings = plan.made_environment
    if settings is None or settings.site_python is None:
        return
    send(session, plan.root, lacking_runtime(session, plan))
    folder = str(PurePosixPath(settings.python).parent.parent)
    options = json.dumps(list(session.site.environment.pip))

    def tell(line: str) -> None:
        if line.startswith("installing "):  # a module system may talk, too
            on_line(line)

    with_site_python = replace(plan, environment=replace(settings, python=settings.site_python))
    try:
        run_module(
            session, with_site_python, "learner.requirements",
            [folder, options, *plan.requirements], timeout_s=SETUP_TIMEOUT_S, on_line=tell,
        )  # fmt: skip
    except ResultsError as fault:
        raise SiteError(
            f"nothing was queued, because the manifest's requirements can't be installed on "
            f"{plan.site}: {fault.message}",
            hint=fault.hint,
        ) from fault


def bring(session: Session, plan: contract.Plan, on_line: OnLine = lambda _: None) -> None:
    """Load the training data before the job, if the site's file says that its nodes can't.

    Raises:
        ResultsError: the data can't be loaded; nothing is queued.
        TransportError
    """
    via = {store.via for store in plan.data_stores if LOAD in store.scripts}
    if "login" in via:
        _run(session, plan, "load", 1, on_line)
    if "laptop" in via:
        send(session, plan.root, lacking_runtime(session, plan))
        for store in plan.data_stores:
            if LOAD in store.scripts:
                with tempfile.TemporaryDirectory(prefix="dlctl-") as folder:
                    _load_through_here(session, plan, store, Path(folder), on_line)


def save(
    session: Session, plan: contract.Plan, attempt: int, on_line: OnLine = lambda _: None
) -> list[str]:
    """Store what an attempt has made, which has ended; return a line for each data store.

    Raises:
        ResultsError: it can't be stored.
        TransportError
    """
    if all(store.via == "laptop" for store in plan.data_stores if STORE in store.scripts):
        send(session, plan.root, lacking_runtime(session, plan))
        return _save_through_here(session, plan, attempt, on_line)
    return _run(session, plan, "store", attempt, on_line)


def _run(
    session: Session, plan: contract.Plan, verb: str, attempt: int, on_line: OnLine
) -> list[str]:
    send(session, plan.root, lacking_runtime(session, plan))
    lines = run_module(
        session, plan, "learner.supervisor.site_data", [verb, plan.job_dir, str(attempt)],
        timeout_s=MOVE_TIMEOUT_S, on_line=on_line,
    )  # fmt: skip
    return [str(line) for line in lines]


def _load_through_here(
    session: Session, plan: contract.Plan, store: contract.DataStore, folder: Path, on_line: OnLine
) -> None:
    """Fetch the training data to here, and send what the site's cache lacks."""
    there = f"{plan.job_dir}/{listing_file(store.position)}"
    if (known := read_files(session.transport, [there])[there]) is not None:
        (folder / "listing.json").write_bytes(known)
    cache = folder / CACHE
    known_paths = set(_stand_ins(session, plan.root, cache))
    own = {"CONTAINER": store.training_data or "", "DATA": f"{folder}/data", "CACHE": str(cache)}
    _run_here(session, store, "load", folder, own, {}, on_line)
    entries = [
        Entry(path.relative_to(cache).as_posix(), path, mode=0o444)
        for path in [*cache.glob("*/objects/*/*"), *cache.glob("*/place.json")]
        if path not in known_paths
    ]
    on_line(f"sending {counted(len(entries), 'file')} to the cache of {plan.site}")
    listing = Entry("listing.json", folder / "listing.json")
    job = f"jobs/{plan.training_id}/{listing_file(store.position).rpartition('/')[0]}"
    send(session, plan.root, [Tree(CACHE, entries),
                              Tree(job, [listing])])  # fmt: skip


def _stand_ins(session: Session, root: str, cache: Path) -> Iterator[Path]:
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


def _save_through_here(
    session: Session, plan: contract.Plan, attempt: int, on_line: OnLine
) -> list[str]:
    """Fetch what an attempt has made to here, and store it; return a line for each store."""
    words = ["lay-out", plan.job_dir, str(attempt)]
    found = run_module(session, plan, "learner.supervisor.site_data", words)
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
                sentence = _run_here(session, store, "save", Path(folder), own, more, on_line)
                done.append(f"{store.id}: {store.training_results}: {sentence}")
    return done


def _run_here(
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
                if progress.exists():
                    on_line(progress.read_text().strip())
        finally:
            end_child(process)
    if code != 0:
        problem, hint = last_sentence((folder / "log").read_text(errors="replace"))
        raise ResultsError(problem, hint=hint)
    return progress.read_text().strip()


def last_sentence(text: str) -> tuple[str, str]:
    """Return what `learner.storage` has said last, and its hint."""
    lines = [line for line in lines_of(text) if line.strip()]
    hint = lines.pop().removeprefix(_HINT) if lines and lines[-1].startswith(_HINT) else ""
    return (lines[-1] if lines else "no answer"), hint


def _waited(process: subprocess.Popen[bytes]) -> int | None:
    until = time.monotonic() + _EVERY_S
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.05)
    return process.returncode


def _secrets(session: Session, store: contract.DataStore) -> dict[str, str]:
    """Return the credentials of a store, which lie at the site in files of the user's."""
    paths = {key: reference.removeprefix("file:") for key, reference in store.secrets.items()}
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
