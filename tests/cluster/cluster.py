"""The test cluster as a Python object: starts `cluster.sh`, asks it, breaks it, deletes it."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

PROGRAM = Path(__file__).with_name("cluster.sh")
FOLDER_PREFIX = "dlc-"
PROGRAMS = (
    "slurmctld slurmd slurmdbd sbatch munged mariadbd sshd ssh unshare nsenter ip setpriv pgrep"
)
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def has_cgroups() -> bool:
    """Return whether a cluster may have cgroups: for root, and only with those of version 1."""
    kinds = ("cpuset", "cpuacct", "freezer", "memory")
    return all(os.access(f"/sys/fs/cgroup/{kind}/tasks", os.W_OK) for kind in kinds)


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two clusters that start at once may take what the other one is about to take.

    The lock is that of their folder: runs of two clones have no temporary folder in common.
    """
    folder = os.open(parent_folder(), os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def missing_programs() -> list[str]:
    """Return the system programs that the cluster needs and this machine lacks."""
    path = os.environ.get("PATH", "") + ":" + _SYSTEM_PATH
    return [program for program in PROGRAMS.split() if shutil.which(program, path=path) is None]


def parent_folder() -> Path:
    """Return where clusters live: a disk, a short path (Unix sockets), not the nodes' /tmp."""
    return Path(os.environ.get("DLCTL_TEST_CLUSTERS", "/var/tmp"))


_CANCEL_ALL = "squeue -h -r -o %A | xargs -r scancel; "
_COUNT_NODES = "sinfo -h -N -p debug -t idle,alloc,mix,comp -o %N | sort -u | wc -l"


class ClusterError(RuntimeError):
    """The cluster did not do what it was told; the message has its last words."""


class Cluster:
    """One real Slurm cluster in a folder of its own; several may run at once.

    It ends with this process, however that ends: the keeper watches a pipe.
    """

    def __init__(
        self,
        *,
        nodes: int = 4,
        cpus: int = 2,
        memory_mb: int = 4000,
        gpus: int = 2,
        venv: Path | None = None,
        hide: Path | None = None,
        slurm_extra: str = "",
        cgroups: bool = False,
    ) -> None:
        self.nodes = nodes
        self.folder = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=parent_folder()))
        self.folder.chmod(0o755)
        (self.folder / ".dlctl-cluster").touch()
        (self.folder / "owner").write_text(f"{os.getpid()} {_start_time(os.getpid())}\n")
        (self.folder / "session").write_text(os.environ.get("DLCTL_TEST_SESSION", ""))
        self._owner_fd: int | None = None
        self._harmed = False
        self._settings = {
            "CLUSTER": str(self.folder),
            "CLUSTER_NODES": str(nodes),
            "CLUSTER_CPUS": str(cpus),
            "CLUSTER_MEMORY_MB": str(memory_mb),
            "CLUSTER_GPUS": str(gpus),
            "CLUSTER_VENV": str(venv or ""),
            "CLUSTER_HIDE": str(hide or ""),
            "CLUSTER_SLURM_EXTRA": slurm_extra,
            "CLUSTER_CGROUPS": "yes" if cgroups else "no",
        }

    # Life --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start what does not run: the whole cluster, a daemon, a node."""
        low, writing = os.pipe()
        # Not a number that cluster.sh uses itself: it closes 3 and 8.
        reading = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 20)
        os.close(low)
        try:
            self._call("up", timeout_s=180, owner_fd=reading)
        except BaseException:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        if self._owner_fd is None:
            self._owner_fd = writing
        else:
            os.close(writing)  # it was up: its keeper watches the first pipe

    def stop(self) -> None:
        """Stop it in order; `start` continues with the same job ids, accounting and port."""
        self._call("down", timeout_s=90)
        self._let_go()

    def wipe(self) -> None:
        """End every process of it at once and delete its folder."""
        self._call("wipe", timeout_s=60)
        self._let_go()

    def _let_go(self) -> None:
        if self._owner_fd is not None:
            os.close(self._owner_fd)
            self._owner_fd = None

    # Commands ----------------------------------------------------------------------------------

    def exec(self, *argv: str, node: int | None = None, timeout_s: float = 60) -> str:
        """Run a command as the administrator (on the login host, or a node); return its output."""
        return self._call("exec", *_on(node), *argv, timeout_s=timeout_s)

    def environment(self) -> dict[str, str]:
        """Return the environment of the program that handles this cluster."""
        return dict(os.environ, **self._settings)

    def command(self, verb: str) -> list[str]:
        """Return the words that run a command, `exec` or `user`, for a caller that starts it."""
        return [str(PROGRAM), verb]

    def user(self, *argv: str, node: int | None = None, timeout_s: float = 60) -> str:
        """Run a command as the ordinary user, in their home; return its output."""
        return self._call("user", *_on(node), *argv, timeout_s=timeout_s)

    def ssh(
        self, command: str, *, stdin: str = "", timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command through a real ssh client, as the ordinary user."""
        argv = ["ssh", "-F", str(self.ssh_config), self.host, command]
        return subprocess.run(argv, input=stdin, text=True, capture_output=True, timeout=timeout_s)

    def run(self, script: str, *, timeout_s: float = 120) -> tuple[int, str, str]:
        """Run POSIX shell text on the login host as the user; return exit code and both outputs."""
        done = self.ssh("exec /bin/sh -s", stdin=script, timeout_s=timeout_s)
        return done.returncode, done.stdout, done.stderr

    def story(self) -> str:
        """Return what tells why a job did not start or end: the queue, the nodes, Slurm's log."""
        asked = "squeue -l; sinfo -N -l; tail -n 40 " + str(self.logs / "slurmctld.log")
        return self._call("exec", "sh", "-c", asked, timeout_s=60, check=False)

    def cancel_all(self) -> None:
        """Cancel every job."""
        self.exec("sh", "-c", _CANCEL_ALL)

    # Faults ------------------------------------------------------------------------------------

    def node_kill(self, node: int) -> None:
        """Power a node off; nobody tells slurmctld."""
        self._harm("node-kill", str(node))

    def node_start(self, node: int) -> None:
        """Power a node on."""
        self._call("node-start", str(node))

    def node_cut(self, node: int) -> None:
        """Unplug a node's network: it continues running, alone."""
        self._harm("node-cut", str(node))

    def node_heal(self, node: int) -> None:
        """Plug a node's network in again."""
        self._call("node-heal", str(node))

    def ctld_kill(self) -> None:
        """Kill slurmctld."""
        self._harm("ctld-kill")

    def ctld_stop(self) -> None:
        """Stop slurmctld in order: it saves its jobs.

        One that is killed forgets a job that is seconds old, gives its id to the next one, and then
        ends that and drains the node: "Duplicate jobid on nodes" (seen).
        """
        self._harm("ctld-stop")

    def ctld_start(self) -> None:
        """Start slurmctld."""
        self._call("ctld-start")

    def ctld_hang(self) -> None:
        """Freeze slurmctld: it accepts and never answers."""
        self._harm("ctld-hang")

    def ctld_resume(self) -> None:
        """Let slurmctld continue."""
        self._call("ctld-resume")

    def dbd_stop(self) -> None:
        """Stop the accounting: sacct fails."""
        self._harm("dbd-stop")

    def dbd_start(self) -> None:
        """Start the accounting."""
        self._call("dbd-start")

    def ssh_hang(self) -> None:
        """Freeze the login host's sshd: connections open and nothing is said."""
        self._harm("ssh-hang")

    def ssh_resume(self) -> None:
        """Let sshd continue."""
        self._call("ssh-resume")

    def ssh_drop(self) -> None:
        """Cut every open ssh connection."""
        self._call("ssh-drop")

    def _harm(self, *argv: str) -> None:
        """Play a fault, and note that there is something to undo."""
        self._harmed = True
        self._call(*argv)

    def heal(self) -> None:
        """Leave a whole cluster without jobs to the next test: undo faults, if there were any."""
        if not self._harmed and self._is_whole_without_jobs():
            return
        self.ssh_resume()
        self._call("ctld-resume", check=False)
        for node in range(1, self.nodes + 1):
            self._call("node-heal", str(node), check=False)
        self.start()
        self._is_whole_without_jobs()
        self._harmed = False

    def _is_whole_without_jobs(self) -> bool:
        """Cancel every job, and return whether all nodes are usable: one call for both."""
        told = self._call("exec", "sh", "-c", _CANCEL_ALL + _COUNT_NODES, timeout_s=60, check=False)
        return told.strip() == str(self.nodes)

    # Facts -------------------------------------------------------------------------------------

    @property
    def host(self) -> str:
        """The alias in `ssh_config`."""
        return "testbed"

    @property
    def ssh_config(self) -> Path:
        """An OpenSSH client configuration that knows the alias, the key and the host key."""
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        """The login host's key."""
        return self.folder / "keys/known_hosts"

    @property
    def port(self) -> int:
        """The port of sshd on 127.0.0.1."""
        return int((self.folder / "run/ssh_port").read_text())

    @property
    def user_name(self) -> str:
        """The ordinary user: `dluser`, who exists only in there; without root, yourself."""
        if os.getuid() == 0:
            return "dluser"
        return next((self.folder / "home").iterdir()).name

    @property
    def home(self) -> Path:
        """The ordinary user's home, the same on every node; readable from outside."""
        return self.folder / "home" / self.user_name

    @property
    def small_disk(self) -> Path:
        """A folder of 4 MiB on the login host and every node, for tests of a full disk."""
        return self.folder / "small"

    @property
    def node_python(self) -> Path:
        """The virtual environment's Python as jobs see it."""
        return self.folder / "venv/bin/python"

    @property
    def logs(self) -> Path:
        """The daemons' logs."""
        return self.folder / "log"

    @property
    def env(self) -> dict[str, str]:
        """Environment variables that lead dlctl's ssh to this cluster."""
        return {"DLCTL_SSH_CONFIG": str(self.ssh_config)}

    def _call(
        self, *argv: str, timeout_s: float = 60, owner_fd: int | None = None, check: bool = True
    ) -> str:
        environment = self.environment()
        if owner_fd is not None:
            environment["CLUSTER_OWNER_FD"] = str(owner_fd)
        done = subprocess.run(
            [str(PROGRAM), *argv],
            env=environment,
            text=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=timeout_s,
            pass_fds=() if owner_fd is None else (owner_fd,),
        )
        if check and done.returncode != 0:
            raise ClusterError(
                f"cluster.sh {' '.join(argv)}: exit code {done.returncode}; "
                f"{done.stderr.strip()[-2000:]} {done.stdout.strip()[-500:]}"
            )
        return done.stdout


def _on(node: int | None) -> Sequence[str]:
    return () if node is None else ("-n", str(node))


def _start_time(pid: int) -> str:
    """Return when the process started; a bare pid may be another process by now."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def wipe_leftovers() -> list[Path]:
    """Delete the clusters of this user whose owner is gone; return their folders."""
    wiped = []
    for folder in sorted(parent_folder().glob(f"{FOLDER_PREFIX}*")):
        if (folder / ".dlctl-cluster").is_file() and folder.stat().st_uid == os.getuid():
            try:
                pid, start_time = (folder / "owner").read_text().split()
            except (OSError, ValueError):
                continue  # started by hand, or just going away
            if _start_time(int(pid)) != start_time:
                environment = dict(os.environ, CLUSTER=str(folder))
                subprocess.run([str(PROGRAM), "wipe"], env=environment, check=True, timeout=60)
                wiped.append(folder)
    return wiped
