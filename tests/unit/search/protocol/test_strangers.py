"""A stranger who knocks at a port of a search can't fill its log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from search_keys import write_keys

SERVER = """
import asyncio, os, socket, sys
from pathlib import Path
from search.protocol.channels import Credentials, open_server
from search.protocol.strangers import count_strangers

async def serve():
    server, address = open_server("127.0.0.1", Credentials.load(Path(sys.argv[1]), "broker"), [])
    await server.start()
    host, port = address.split(":")
    for _ in range(20):
        stranger = socket.create_connection((host, int(port)))
        stranger.sendall(b"\\x16\\x03\\x01" + bytes(600))
        assert await asyncio.to_thread(stranger.recv, 1000) is not None
        stranger.close()
    os.write(2, b"another line of gRPC's\\n")
    print("a line of Python's", file=sys.stderr)
    await server.stop(None)

count_strangers()
asyncio.run(serve())
os.close(2)
[thread.join() for thread in __import__("threading").enumerate() if thread.name == "strangers"]
"""


def test_many_failed_handshakes_are_one_line(tmp_path: Path):
    write_keys(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SERVER, str(tmp_path)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "GRPC_VERBOSITY": "INFO"}, check=True,
    )  # fmt: skip
    lines = done.stderr.splitlines()
    assert "a line of Python's" in lines and "another line of gRPC's" in lines
    told = [line for line in lines if "andshake" in line]
    assert len(told) == 1 and told[0].startswith("dlctl: 1 connection has failed"), done.stderr
