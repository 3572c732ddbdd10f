"""Hold the cluster's sshd socket and its life: `keeper.py FOLDER PORT OWNER_FD`.

The one thing of the cluster that shows outside is sshd on 127.0.0.1: its listening socket is made
here, outside the namespaces, and handed in as descriptor 3. OWNER_FD (or -1) is the reading end of
a pipe whose other end only the owner holds: at its end of file the owner is gone, however it died,
and the cluster and its folder go too.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path


def listen(port: int, remembered: Path) -> socket.socket:
    """Listen on `port`; 0 is the port of last time if it is free, else any."""
    wishes = [port]
    if port == 0 and remembered.exists():
        wishes.insert(0, int(remembered.read_text()))
    for wish in wishes:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", wish))
        except OSError:
            listener.close()
            if wish == wishes[-1]:
                raise
        else:
            listener.listen(128)
            return listener
    raise AssertionError("unreachable")


def start_head(folder: Path, socket_fd: int) -> subprocess.Popen[bytes]:
    """Start the login host's init in new namespaces."""
    namespaces = ["--fork", "--pid", "--mount", "--uts", "--ipc", "--net", "--kill-child"]
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    if socket_fd != 3:
        os.dup2(socket_fd, 3)
        os.close(socket_fd)
    environment = dict(os.environ, CLUSTER_UID=str(os.getuid()), CLUSTER_GID=str(os.getgid()))
    return subprocess.Popen(
        ["unshare", *user, *namespaces, "--", str(folder / "program/cluster.sh"), "__head"],
        pass_fds=[3],
        env=environment,
        cwd="/",
    )


def keep(head: subprocess.Popen[bytes], owner_fd: int) -> bool:
    """Wait for the cluster's end; return whether the owner went first."""
    while head.poll() is None:
        if owner_fd < 0:
            head.wait()
        elif select.select([owner_fd], [], [], 0.2)[0] and head.poll() is None:
            head.kill()  # --kill-child: init goes with it, and with init every process
            head.wait()
            return True
    return False


def remove_cgroups(folder: Path) -> None:
    """Remove the cluster's own, where it has any; see `own_cgroups` in inside.sh."""
    name = "dlctl-" + re.sub("[^A-Za-z0-9.]", "-", str(folder))
    for group in Path("/sys/fs/cgroup").glob(f"*/{name}"):
        for path, _, _ in os.walk(group, topdown=False):
            with contextlib.suppress(OSError):  # a process of it has not ended yet
                Path(path).rmdir()


def main() -> None:
    """Run until the cluster ends."""
    folder, port, owner_fd = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    remembered = folder / "etc/ssh_port"
    if owner_fd >= 0:
        # 3 is to be the socket; a free high number is safe.
        high = 50
        os.dup2(owner_fd, high, inheritable=False)
        if owner_fd != high:
            os.close(owner_fd)
        owner_fd = high
    listener = listen(port, remembered)
    for path in (remembered, folder / "run/ssh_port"):
        path.write_text(f"{listener.getsockname()[1]}\n")
    head = start_head(folder, listener.detach())
    try:
        os.close(3)
        owner_is_gone = keep(head, owner_fd)
    finally:
        head.kill()  # never a cluster without its keeper
        head.wait()
    if owner_is_gone:
        deadline = time.monotonic() + 30
        while folder.exists() and time.monotonic() < deadline:
            shutil.rmtree(folder, ignore_errors=True)
            remove_cgroups(folder)
            time.sleep(0.1)


main()
