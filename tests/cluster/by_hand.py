"""Start a test cluster to play with, and stop it: `make cluster`, `make cluster-stop`.

The cluster outlives this program. All of it lies in one folder, except for the site file
`testcluster.yml` and two lines at the top of ~/.ssh/config: a site file can't name a key, so an
Include leads ssh to a Host block in the cluster's folder. `stop` removes every trace, and has dlctl
forget the trainings that ran there.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from cluster import PROGRAM, missing_programs, one_at_a_time
from leftovers import SESSION_VARIABLE
from site_text import CLUSTER_SITE

from dlctl.record import RecordStore
from dlctl.sites.files import save_site, user_directory
from dlctl.sites.model import xdg_directory

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SITE = "testcluster"
HOST = "dlctl-testcluster"
SITE_MARK = "# Written by `make cluster`; `make cluster-stop` removes this file."
SSH_MARK = "# Written by `make cluster`; `make cluster-stop` removes this line and the next."


class ByHandError(RuntimeError):
    """The message says what is wrong and what to do."""


@dataclass(frozen=True)
class Traces:
    """What leads dlctl to the cluster: a site file, a Host block, an Include in ~/.ssh/config."""

    folder: Path
    """The cluster's folder, which `cluster.sh` makes and deletes."""
    ssh_config: Path
    """The user's own, ~/.ssh/config."""

    @property
    def site_file(self) -> Path:
        """The site file, among the user's own."""
        return user_directory() / f"{SITE}.yml"

    @property
    def include(self) -> str:
        """The lines that are written at the top of `ssh_config`, before any Host block."""
        return f"{SSH_MARK}\nInclude {self._host_block}\n"

    def check(self) -> None:
        """Refuse to replace a site `testcluster` that somebody else wrote."""
        if self.site_file.exists() and not self._wrote_site():
            raise ByHandError(
                f"{self.site_file} was not written by `make cluster`; rename that site first"
            )

    def write(self) -> None:
        """Write all three, again where they are old: the port may have changed."""
        self._remember_what_is_made()
        block = (self.folder / "ssh_config").read_text(encoding="utf-8")
        self._host_block.write_text(block.replace("Host testbed\n", f"Host {HOST}\n"))
        old = self._own_ssh_settings()
        if self.include not in old:
            self.ssh_config.parent.mkdir(mode=0o700, exist_ok=True)
            self.ssh_config.touch(mode=0o600)
            self.ssh_config.write_text(self.include + old, encoding="utf-8")
        home = next((self.folder / "home").iterdir())
        python = self.folder / "venv/bin/python"
        text = CLUSTER_SITE.format(host=HOST, root=home / "dlctl", python=python)
        save_site(SITE, f"{SITE_MARK}\n{text}", force=True)

    def remove(self) -> None:
        """Remove what `write` wrote, the folders it made, and the records of trainings there."""
        self._forget_trainings()
        if self._wrote_site():
            self.site_file.unlink()
        old = self._own_ssh_settings()
        if self.include in old:
            self.ssh_config.write_text(old.replace(self.include, ""), encoding="utf-8")
        for path in self._made():
            if path.is_dir() and not any(path.iterdir()):
                path.rmdir()
            elif path.is_file() and not path.read_bytes():
                path.unlink()

    def _remember_what_is_made(self) -> None:
        folders = list(self.site_file.parents)[:3]  # sites, dlctl, ~/.config
        missing = [p for p in (self.ssh_config, self.ssh_config.parent, *folders) if not p.exists()]
        if not self._made_list.exists():
            self._made_list.write_text(json.dumps([str(path) for path in missing]))

    def _made(self) -> list[Path]:
        """Return what `write` made, each file before its folder."""
        try:
            return [Path(path) for path in json.loads(self._made_list.read_text())]
        except FileNotFoundError:
            return []

    def _forget_trainings(self) -> None:
        path = xdg_directory("XDG_STATE_HOME", ".local/state") / "dlctl/record.db"
        if path.exists():
            store = RecordStore(path)
            for record in store.all():
                if self.folder in Path(record.job_dir).parents:
                    store.remove(record.training_id)

    def _own_ssh_settings(self) -> str:
        try:
            return self.ssh_config.read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def _wrote_site(self) -> bool:
        try:
            return self.site_file.read_text(encoding="utf-8").startswith(SITE_MARK)
        except FileNotFoundError:
            return False

    @property
    def _host_block(self) -> Path:
        return self.folder / "client_config"

    @property
    def _made_list(self) -> Path:
        return self.folder / "made.json"


def start(traces: Traces) -> None:
    """Start the cluster, or what has died of it, and add its site."""
    if missing := missing_programs():
        raise ByHandError(f"{', '.join(missing)} missing: run `make cluster-deps`")
    traces.check()
    running = _cluster(traces.folder, "status").returncode == 0
    with one_at_a_time():
        done = _cluster(traces.folder, "up")
    if done.returncode != 0:
        raise ByHandError(f"the cluster did not start: {done.stderr.strip()}")
    _check_python(traces.folder)
    traces.write()
    print(f"The test cluster {'already runs' if running else 'is up'}, in {traces.folder}.")
    print(f"Its site is {SITE} ({traces.site_file}); {traces.ssh_config} includes its settings.")
    print(f"\n  dlctl submit examples/digits/manifest.yml --site {SITE} --follow")
    print(f"  ssh {HOST} squeue")
    print(
        "  tests/cluster/cluster.sh node-kill 4    # a fault; without arguments it lists them all"
    )
    print("  make cluster-stop    # ends it and removes its site, settings and trainings")


def stop(traces: Traces) -> None:
    """End the cluster with all its jobs, and remove every trace of it."""
    runs = traces.folder.exists()
    traces.remove()
    done = _cluster(traces.folder, "wipe")
    if done.returncode != 0:
        raise ByHandError(f"the cluster did not stop: {done.stderr.strip()}")
    print("The test cluster is gone, with its site." if runs else "There is no test cluster.")


def _cluster(folder: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    """Run `cluster.sh`; no test session may take this cluster for its own."""
    env = {name: text for name, text in os.environ.items() if name != SESSION_VARIABLE}
    env |= {"CLUSTER": str(folder), "CLUSTER_VENV": sys.prefix, "CLUSTER_HIDE": str(REPOSITORY)}
    return subprocess.run(
        [str(PROGRAM), *argv], env=env, text=True, capture_output=True, stdin=subprocess.DEVNULL
    )


def _check_python(folder: Path) -> None:
    python = str(folder / "venv/bin/python")
    done = _cluster(folder, "user", python, "-c", "import h5py, mpi4py, numpy, torch, watchdog")
    if done.returncode != 0:
        raise ByHandError(
            f"the cluster's user can't run {python}: {done.stderr.strip()[-300:]}\n"
            "Run `make cluster-stop`, `rm -r .venv`, `make cluster`; see .ci/make-venv"
        )


def main() -> None:
    """`by_hand.py start` or `by_hand.py stop`."""
    # ssh looks below the home that the system knows, whatever $HOME says.
    user = pwd.getpwuid(os.getuid())
    folder = Path(f"/var/tmp/dlctl-cluster.{user.pw_name}")  # where cluster.sh has it, too
    traces = Traces(folder, Path(user.pw_dir) / ".ssh/config")
    try:
        {"start": start, "stop": stop}[sys.argv[1]](traces)
    except ByHandError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
