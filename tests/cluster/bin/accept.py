"""Start one `sshd -i` per connection on descriptor 3: `accept.py SSHD_CONFIG LOG PID_FILE`.

sshd itself would bind its own socket, inside the namespaces, where nobody outside could reach it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from pathlib import Path


def main() -> None:
    """Accept for ever."""
    config, log, pid_file = sys.argv[1:]
    Path(pid_file).write_text(str(os.getpid()))
    listener = socket.socket(fileno=3)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.dup2(connection.fileno(), 0)
            os.dup2(connection.fileno(), 1)
            listener.close()
            connection.close()
            os.execv("/usr/sbin/sshd", ["/usr/sbin/sshd", "-i", "-f", config, "-E", log])
        connection.close()


main()
