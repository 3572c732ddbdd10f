"""A keystone that serves from a folder: `python keystone_process.py FOLDER`.

It writes its port to FOLDER/keystone.port, and ends when its standard input does.
"""

import os
import socketserver
import sys
import threading
import warnings
import wsgiref.simple_server
from pathlib import Path

warnings.simplefilter("ignore")


class Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    """Answers each request in a thread."""

    daemon_threads = True


class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    """Logs nothing."""

    def log_message(self, *_):
        """Say nothing."""


def main(folder: str) -> None:
    """Serve until standard input ends."""
    os.environ["OS_KEYSTONE_CONFIG_DIR"] = folder
    sys.argv = ["keystone"]
    from keystone.server.wsgi import initialize_public_application

    app = initialize_public_application()
    server = wsgiref.simple_server.make_server("127.0.0.1", 0, app, Server, Quiet)
    new = Path(folder, "keystone.port.new")
    new.write_text(str(server.server_port))
    new.rename(Path(folder, "keystone.port"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
