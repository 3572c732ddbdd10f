"""Install a manifest's requirements on the login node: `python -m learner.requirements`.

The site's own Python runs it and makes a virtual environment that also sees everything of the
site's. The environment appears under its name in one rename, whole or not at all, so submissions
may run at the same time and be killed. One whose site has changed since is made again.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import tempfile
import time
import venv
from importlib import metadata
from pathlib import Path
from typing import Any

from dlctl.contract.ground.safe_text import without_users
from dlctl.contract.ground.space import see_space
from dlctl.contract.programs.answers import run
from learner.errors import UserFault

_COMPLETE = "dlctl-environment.json"
"""In an environment: what it was made from. Written last."""
_KEPT = ("h5py", "mpi4py", "numpy", "torch", "watchdog")
"""Packages that dlctl itself needs: pip fails rather than replace the site's version."""
_ABANDONED_S = 86400.0
"""Parts of environments that are older than this are left by processes that were killed."""
_NO_SPACE = re.compile(r"No space left|Disk quota exceeded")
_CAUSE = re.compile(r"(fatal|\w*[Ee]rror): (?!subprocess-exited|metadata-generation)")
_NO_NETWORK = re.compile(
    r"NewConnectionError|Name or service not known|Temporary failure in name resolution"
    r"|Network is unreachable|Connection refused|ConnectTimeout|timed out|ProxyError"
    r"|Failed to establish", re.IGNORECASE)  # fmt: skip


def main(arguments: list[str]) -> dict[str, bool]:
    """Make an environment unless it is complete; return whether it was `installed`.

    Args:
        arguments: the environment's folder, pip's options as a JSON list, and each line for pip.
            (One argument with all lines would be too long for Linux.)

    Raises:
        UserFault: pip could not install the requirements.
    """
    folder, options, lines = Path(arguments[0]), json.loads(arguments[1]), arguments[2:]
    origin = _origin(lines)
    with contextlib.suppress(OSError):  # it is not there yet
        os.utime(folder)  # `dlctl prune` leaves what was asked for today
    if _is_complete(folder, origin):
        return {"installed": False}
    packages = [line.partition(" --")[0] for line in lines if not line.startswith("-")]
    several = ", ".join(packages) if len(packages) <= 10 else f"{len(packages)} packages"
    print(f"installing {several} into {folder}", file=sys.stderr, flush=True)
    try:
        _install(folder, options, lines, origin)
    except OSError as error:
        raise UserFault(
            f"{error.filename or folder.parent} can't be written: {error.strerror}",
            hint=f"check the space and the permissions there: {see_space(folder)}; quota -s",
        ) from error
    return {"installed": True}


def _install(folder: Path, options: list[str], lines: list[str], origin: dict[str, Any]) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder.parent)
    part = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        _make(part, options, lines, folder.with_suffix(".log"))
        _name_interpreter(part, folder)
        (part / _COMPLETE).write_text(json.dumps(origin | {"files": _count_files(part)}, indent=2))
        _publish(part, folder, origin)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _origin(lines: list[str]) -> dict[str, Any]:
    return {
        "requirements": lines,
        "python": sys.version,
        "prefix": sys.prefix,
        "base_prefix": sys.base_prefix,
        "packages": _installed(),
    }


def _installed() -> dict[str, str]:
    found = {}
    for name in _KEPT:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _is_complete(folder: Path, origin: dict[str, Any]) -> bool:
    try:
        made_from = json.loads((folder / _COMPLETE).read_bytes())
        files = made_from.pop("files")
    except (OSError, ValueError, KeyError):
        return False
    # A site may purge old files; some packages write further ones.
    return (
        made_from == origin and (folder / "bin/python").exists() and _count_files(folder) >= files
    )


def _count_files(folder: Path) -> int:
    """Return the number of files, without those that Python writes when it imports modules."""
    return sum(
        len([name for name in names if name != _COMPLETE])
        for where, _, names in os.walk(folder)
        if not where.endswith("__pycache__")
    )


def _remove_abandoned(parent: Path) -> None:
    for part in parent.glob(".*.*"):  # not a file system's .snapshot
        with contextlib.suppress(OSError):  # another submission removes it, too
            if part.stat().st_mtime < time.time() - _ABANDONED_S:
                shutil.rmtree(part, ignore_errors=True)


def _make(part: Path, options: list[str], lines: list[str], log: Path) -> None:
    umask = os.umask(0o077)
    os.umask(umask)
    part.chmod(0o777 & ~umask)  # mkdtemp's folder is for its owner alone
    venv.EnvBuilder(symlinks=True).create(part)
    packages = next(part.glob("lib/python*/site-packages"))
    (packages / "dlctl-site.pth").write_text(_see_the_site())
    given, kept = part / "requirements.txt", part / "constraints.txt"
    given.write_text("".join(f"{line}\n" for line in lines))
    kept.write_text("".join(f"{name}=={version}\n" for name, version in _installed().items()))
    python = str(part / "bin/python")
    environment = _pips_environment(part)
    quiet = subprocess.DEVNULL
    has_pip = subprocess.run([python, "-m", "pip", "--version"], env=environment,
                             stdout=quiet, stderr=quiet).returncode == 0  # fmt: skip
    pip = [
        python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input",
        "--no-cache-dir", "--no-user", "--retries", "2", *options, "-c", str(kept),
        "-r", str(given),
    ]  # fmt: skip
    commands = [pip] if has_pip else [[python, "-m", "ensurepip"], pip]
    for command in commands:
        with log.open("wb") as output:
            done = subprocess.run(command, env=environment, stdin=quiet, stdout=output,
                                  stderr=subprocess.STDOUT)  # fmt: skip
        if done.returncode:
            raise _explained(log.read_text(errors="replace"), log)
    shutil.rmtree(part / "tmp")


def _see_the_site() -> str:
    """Return a line that Python runs at its start: it adds what the site has installed.

    `--system-site-packages` would add what is installed beside the Python that the site's own
    virtual environment was made with. mpi4py looks for MPI's library only below `sys.prefix`.
    """
    folders = [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE
                                          else [])]  # fmt: skip
    present = [folder for folder in folders if Path(folder).is_dir()]
    line = f"import os, site; list(map(site.addsitedir, {present!r}))"
    if list(Path(sys.prefix, "lib").glob("libmpi.*")):
        line += f"; os.environ.setdefault('MPI4PY_LIBMPI', {f'{sys.prefix}/lib:'!r})"
    return line + "\n"


def _pips_environment(part: Path) -> dict[str, str]:
    dropped = ("PYTHONPATH", "PIP_USER", "PIP_TARGET", "PIP_PREFIX")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    # The site's modules may provide packages by PYTHONPATH; the first entry is dlctl's runtime.
    modules = os.environ.get("PYTHONPATH", "").partition(":")[2]
    temporary = part / "tmp"  # a login node's /tmp is often small
    temporary.mkdir()
    return kept | {"TMPDIR": str(temporary)} | ({"PYTHONPATH": modules} if modules else {})


def _explained(output: str, log: Path) -> UserFault:
    output = without_users(output)  # of an index in the site's pip.conf; older pips print it
    errors = [line.strip() for line in output.splitlines() if line.startswith("ERROR:")]
    # The last line of a newer pip names the package that failed to build, and not the cause.
    says_why = errors and not errors[-1].startswith("ERROR: Failed to build ")
    last = (errors[-1] if says_why else _cause(output))[:300]
    if re.search(r"No module named '?(pip|ensurepip)\b", output):
        return UserFault(f"{sys.executable} has no pip, and can't install one itself",
                         hint="install pip for it (where it is in a container: in the "
                         "image), or run `dlctl sites setup SITE`")  # fmt: skip
    if _NO_SPACE.search(output):
        return UserFault(f"there is no space left at {log.parent}",
                         hint=f"free space there ({see_space(log.parent)}; quota -s) and submit "
                         "again")  # fmt: skip
    if _NO_NETWORK.search(output):
        return UserFault(
            f"the package index can't be reached: {last.removeprefix('ERROR: ')}",
            hint="without internet access on the login node, copy wheels there and set "
            "environment.pip: [--no-index, --find-links, FOLDER] in the site's file",
        )
    if "ResolutionImpossible" in output and len(errors) > 1:
        kept = re.findall(r"The user requested \(constraint\) (\S+)", output)
        last = errors[0] + (f" The site has {', '.join(kept)}." if kept else "")
    return UserFault(
        f"pip could not install them: {last.removeprefix('ERROR: ')}",
        hint=f"correct `requirements` in the manifest; the whole log is {log} on the site",
    )


def _cause(output: str) -> str:
    """Return the line that says why a program that pip started has failed; pip says no more."""
    lines = [line.strip() for line in output.strip().splitlines()] or ["it printed nothing"]
    if "[end of output]" in lines[1:]:  # of the build of a package
        return lines[lines.index("[end of output]") - 1]
    return next((line for line in lines if _CAUSE.match(line)), lines[-1])


def _name_interpreter(part: Path, folder: Path) -> None:
    """Lead scripts to the final path, those of the site's packages (torchrun, …) included."""
    scripts = part / "bin"
    for path in scripts.iterdir():
        if path.is_file() and not path.is_symlink():
            content, old = path.read_bytes(), os.fsencode(part)
            if old in content:
                path.write_bytes(content.replace(old, os.fsencode(folder)))
    python = shlex.quote(str(folder / "bin/python"))
    of_site = Path(sys.executable).parent
    for entry in metadata.entry_points(group="console_scripts"):
        path = scripts / entry.name
        if entry.attr and not path.exists() and (of_site / entry.name).is_file():
            path.write_text(
                f"#!/bin/sh\n'''exec' {python} \"$0\" \"$@\"\n' '''\nimport sys\n"
                f"from {entry.module} import {entry.attr.partition('.')[0]}\n"
                f"sys.exit({entry.attr}())\n"
            )
            path.chmod(0o755)


def _publish(part: Path, folder: Path, origin: dict[str, Any]) -> None:
    """Give the environment its name, unless another submission was faster."""
    try:
        part.rename(folder)
    except OSError:
        if _is_complete(folder, origin):
            return
        outdated = part.with_name(f"{part.name}.old")
        folder.rename(outdated)
        part.rename(folder)
        shutil.rmtree(outdated, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(run(main))
