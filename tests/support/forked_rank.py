"""Stands for a rank under mpiexec: the zygote forks the rank itself, which has torch loaded.

`python -I -S forked_rank.py SOCKET SCRIPT ARGUMENTS…`; not a test itself. The two end together: a
rank that ends, or is killed, ends this process in the same way; mpiexec ends both by ending this
one, because the zygote kills a rank whose connection is closed.
"""

import json
import os
import signal
import socket
import sys


def main() -> None:
    """Ask for the rank, and end as it does."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(sys.argv[1])
        here = f"/proc/{os.getpid()}/cwd"
        request = {"argv": sys.argv[2:], "cwd": here, "env": dict(os.environ), "leaves": False}
        socket.send_fds(connection, [(json.dumps(request) + "\n").encode()], [0, 1, 2])
        answers = connection.makefile()
        answers.readline()  # the number of the rank's process
        code = int(answers.readline())
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):  # whose handling nobody may set
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


main()
