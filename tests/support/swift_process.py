"""One of Swift's servers, whose fixed path /etc/swift/swift.conf leads to the test's own folder.

    python swift_process.py FOLDER proxy|account|container|object

The server writes its port to FOLDER/<kind>.port, and ends when its standard input does.
"""

import os
import sys
import warnings
from pathlib import Path

warnings.simplefilter("ignore")  # eventlet says that it is deprecated
import eventlet  # noqa: E402

eventlet.monkey_patch()
from swift.common import constraints, storage_policy, utils, wsgi  # noqa: E402

STORED = b"STORED\r\n"


def set_up(folder: str) -> None:
    """Make Swift read swift.conf and the rings from a folder of the tests."""
    utils.SWIFT_CONF_FILE = f"{folder}/swift.conf"
    utils.SWIFT_DIR = folder
    utils.validate_hash_conf()
    constraints.reload_constraints()
    storage_policy.reload_storage_policies()


def publish(folder: str, name: str, port: int) -> None:
    """Write a port to a file that appears whole."""
    new = Path(folder, f"{name}.port.new")
    new.write_text(str(port))
    new.rename(Path(folder, f"{name}.port"))


def memcached(connection, _, stored={}) -> None:  # noqa: B006 - shared on purpose
    """Answer what Swift asks of a memcached; `flush_all` makes it forget all tokens."""
    lines = connection.makefile("rwb")
    while line := lines.readline():
        verb, *words = line.split()
        if verb in (b"set", b"add"):
            stored[words[0]] = lines.read(int(words[3]) + 2)[:-2]
            answer = STORED
        elif verb == b"get":
            found = [(key, stored[key]) for key in words if key in stored]
            answer = b"".join(b"VALUE %s 2 %d\r\n%s\r\n" % (k, len(v), v) for k, v in found)
            answer += b"END\r\n"
        elif verb == b"flush_all":
            stored.clear()
            answer = b"OK\r\n"
        else:
            answer = b"DELETED\r\n" if stored.pop(words[0], None) else b"NOT_FOUND\r\n"
        if b"noreply" not in words:
            lines.write(answer)
            lines.flush()


def main(folder: str, kind: str) -> None:
    """Serve until standard input ends."""
    set_up(folder)
    if kind == "proxy":
        cache = eventlet.listen(("127.0.0.1", 0))
        eventlet.spawn(eventlet.serve, cache, memcached)
        servers = f"memcache_servers = 127.0.0.1:{cache.getsockname()[1]}"
        Path(folder, "memcache.conf").write_text(f"[memcache]\n{servers}\n")
        publish(folder, "memcached", cache.getsockname()[1])
    app = wsgi.loadapp(f"{folder}/{kind}.conf")
    sock = eventlet.listen(("127.0.0.1", 0), backlog=256)
    publish(folder, kind, sock.getsockname()[1])
    eventlet.spawn(
        eventlet.wsgi.server, sock, app, log_output=False,
        custom_pool=eventlet.GreenPool(64), protocol=wsgi.SwiftHttpProtocol,
    )  # fmt: skip
    eventlet.tpool.execute(sys.stdin.read)
    os._exit(0)


if __name__ == "__main__":
    import eventlet.tpool
    import eventlet.wsgi

    main(*sys.argv[1:])
