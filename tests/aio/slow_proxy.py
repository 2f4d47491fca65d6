"""A proxy that delays and splits what it forwards, so that replies arrive in pieces and late."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

Address = str | int
"""Path of a local socket, or a port of 127.0.0.1."""

_PIECES: Final = (1 << 16, 1 << 16, 1000, 60)
_PAUSES_S: Final = (0.0, 0.0, 0.001, 0.003)


class SlowProxy:
    """Forwards connections to a server.

    Attributes:
        slow: whether data is delayed and split.
        connections: number of open connections.
    """

    def __init__(self, target: Address, seed: int) -> None:
        self.slow = False
        self.connections = 0
        self._target = target
        self._random = random.Random(seed)
        self._server: asyncio.Server | None = None

    async def listen(self, address: Address) -> Address:
        """Start listening, on any free port for 0, and return the address."""
        if isinstance(address, str):
            self._server = await asyncio.start_unix_server(self._serve, address)
            return address
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", address)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening, and end every connection."""
        assert self._server is not None
        self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await asyncio.sleep(0.01)  # transports are closed in later turns of the loop

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        target = self._target
        try:
            if isinstance(target, str):
                server = await asyncio.open_unix_connection(target)
            else:
                server = await asyncio.open_connection("127.0.0.1", target)
            pumps = [asyncio.ensure_future(self._pump(*pair)) for pair in ((reader, server[1]), (server[0], writer))]
            try:
                await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for pump in pumps:
                    pump.cancel()
                server[1].close()
        finally:
            writer.close()
            self.connections -= 1

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(self._random.choice(_PIECES) if self.slow else 1 << 16):
                pause_s = self._random.choice(_PAUSES_S) if self.slow else 0
                if pause_s:
                    await asyncio.sleep(pause_s)
                writer.write(data)
                await writer.drain()


@contextmanager
def slow_proxy(target: Address, address: Address, seed: int) -> Iterator[tuple[SlowProxy, Address]]:
    """Yield a proxy that runs in a thread, and its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="slow proxy")
    thread.start()
    proxy = SlowProxy(target, seed)
    try:
        yield proxy, asyncio.run_coroutine_threadsafe(proxy.listen(address), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(proxy.close(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
