"""Run by test_servers_mpi.py: one server refuses another one's greeting. Not a test by itself."""

from __future__ import annotations

import threading

from psrv.transport.base import Connection, Frame, Greeting, Kind, Purpose, RefusedError
from psrv.transport.mpi import MpiTransport, World

MINE, OTHER = 5, 6


def serve(_: Greeting, connection: Connection) -> None:
    connection.send(connection.receive(memoryview(bytearray()))._replace(number=7))
    answered.set()


def dial(digest: int) -> None:
    greeting = Greeting(1, 1, 0, Purpose.EXCHANGE, digest)
    try:
        connection = transport.dial(greeting)
    except RefusedError as error:
        print("refused:", error.message, flush=True)
        return
    connection.send(Frame(Kind.CLOCK))
    print("served:", connection.receive(memoryview(bytearray())).number, flush=True)


world, answered = World(2), threading.Event()
said: list[str] = []
transport = MpiTransport(world, said.append)
transport.open(lambda greeting: "" if greeting.digest == MINE else "another model", serve)
transport.start()
if world.node:
    dial(OTHER)
    dial(MINE)
else:
    answered.wait(60)
    print("logged:", *said, flush=True)
transport.close()
