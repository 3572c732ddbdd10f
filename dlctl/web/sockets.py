"""WebSockets on which the server alone has something to say."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.websockets import WebSocket


async def until_left(socket: WebSocket, sends: Coroutine[None, None, None]) -> None:
    """Run what sends to a WebSocket, until it is done or the client has left."""
    tasks = [asyncio.create_task(work) for work in (sends, _left(socket))]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _left(socket: WebSocket) -> None:
    """Return when the client has closed the WebSocket."""
    while (await socket.receive())["type"] != "websocket.disconnect":
        pass
