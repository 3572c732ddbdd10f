"""A stranger who knocks at a port of a search can't fill its log."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from search_keys import write_keys

from search.protocol.channels import Credentials, open_channel

SERVER = """
import asyncio, os, socket, sys
from pathlib import Path
from search.protocol.channels import Credentials, open_server
from search.protocol.process import count_strangers

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


def test_many_failed_handshakes_are_one_line(tmp_path):
    write_keys(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", SERVER, str(tmp_path)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "GRPC_VERBOSITY": "INFO"}, check=True,
    )  # fmt: skip
    lines = done.stderr.splitlines()
    assert "a line of Python's" in lines and "another line of gRPC's" in lines
    told = [line for line in lines if "andshake" in line]
    assert len(told) == 1 and told[0].startswith("dlctl: 1 connection has failed"), done.stderr


CROWDED = """
import asyncio, resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_NOFILE, (96, 128))
from search.protocol import channels
from search.protocol.channels import Credentials, open_server

async def serve():
    channels.HANDSHAKE_S = 1.0
    server, address = open_server("127.0.0.1", Credentials.load(Path(sys.argv[1]), "broker"), [])
    await server.start()
    print(address, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    open("/dev/null").close()  # there is room for files of its own
    print("lives")
    await server.stop(None)

asyncio.run(serve())
"""


def test_more_idle_connections_than_a_server_may_have_files_neither_end_it_nor_keep_others_out(
    tmp_path,
):
    write_keys(tmp_path)
    server = subprocess.Popen(
        [sys.executable, "-c", CROWDED, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    address = server.stdout.readline().strip()
    host, port = address.split(":")
    with ExitStack() as ends:
        ends.callback(server.kill)
        for _ in range(200):
            ends.enter_context(socket.create_connection((host, int(port))))
        with ThreadPoolExecutor() as pool:  # this thread may have a loop: playwright's
            pool.submit(asyncio.run, enter(address, tmp_path)).result()
        assert server.communicate("end\n", timeout=60) == ("lives\n", "")
        assert server.returncode == 0


async def enter(address: str, folder: Path) -> None:
    async with open_channel(address, Credentials.load(folder, "worker")) as channel:
        await asyncio.wait_for(channel.channel_ready(), 60)
