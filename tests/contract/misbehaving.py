"""Real HTTP servers on loopback that behave badly: a model's endpoint on its worst days.

`serve(behaviour)` runs one in a thread of its own until the `with` block ends; it serves callers of
either kind, blocking or async. A behaviour is an async function that gets the request and writes raw bytes;
the functions below are behaviours or make one.

    with serve(in_turn(answer(429), answer(200, DRAFT))) as server:
        httpx.post(server.url, json={})
        assert len(server.asked) == 1
"""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import ssl
import struct
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from anyio.from_thread import start_blocking_portal

DRAFT: bytes = json.dumps(
    {
        "summary": "Charged twice after a retry; a bank dispute is open.",
        "suggested_reply": "Thank you for telling us. We are looking into both charges with billing.",
        "confidence": 0.74,
    }
).encode()


@dataclass(frozen=True)
class Asked:
    """One request as it came: header names in lower case, `at` in seconds of the monotonic clock."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes
    at: float

    def json(self) -> Any:
        return json.loads(self.body)


Behaviour = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """Where a server listens, what it was asked (`arrived`: anything yet), how many connections came."""

    port: int
    scheme: str = "http"
    asked: list[Asked] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)
    connections: int = 0

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/v1/reply"


@contextmanager
def serve(behaviour: Behaviour, *, tls: ssl.SSLContext | None = None) -> Iterator[Server]:
    """A server on a free loopback port, gone at the end together with all of its connections."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(_serve(behaviour, tls)) as server,
    ):
        yield server


@asynccontextmanager
async def _serve(behaviour: Behaviour, tls: ssl.SSLContext | None) -> AsyncIterator[Server]:
    connections: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        try:
            while not writer.is_closing():
                server.asked.append(await _request(reader))
                server.arrived.set()
                await behaviour(server.asked[-1], writer)
                await writer.drain()
        except ValueError:
            writer.write(response(400))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            connections.discard(task)
            writer.close()
            with suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    listener = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    server = Server(listener.sockets[0].getsockname()[1], "https" if tls else "http")
    try:
        yield server
    finally:
        listener.close()
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _request(reader: asyncio.StreamReader) -> Asked:
    first = await reader.readexactly(1)
    if not first.isalpha():  # a TLS greeting, say
        raise ValueError("no HTTP")
    head = (first + await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, *lines = head.rstrip().split("\r\n")
    method, target, _ = request_line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return Asked(method, target, headers, body, time.monotonic())


# What a server can say.


def response(status: int = 200, body: bytes = b"", headers: Mapping[str, str] | None = None) -> bytes:
    """A whole, well-formed answer."""
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"HTTP/1.1 {status} Whatever\r\n{lines}\r\n".encode() + body


def chat(content: Any, *, finish_reason: str | None = "stop", **message: Any) -> dict[str, Any]:
    """A chat completion's envelope with one choice."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content, **message}}
    if finish_reason is not None:
        choice["finish_reason"] = finish_reason
    return {"id": "c-1", "object": "chat.completion", "model": "lab-1", "choices": [choice]}


# Behaviours.


def raw(data: bytes) -> Behaviour:
    """Write these bytes, whatever they are, and keep the connection."""

    async def behave(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(data)

    return behave


def answer(status: int = 200, body: bytes = DRAFT, headers: Mapping[str, str] | None = None) -> Behaviour:
    """A well-formed answer."""
    return raw(response(status, body, headers))


def answer_json(value: Any) -> Behaviour:
    """A 200 with this JSON."""
    return answer(200, json.dumps(value).encode())


def in_turn(*behaviours: Behaviour) -> Behaviour:
    """The first request meets the first behaviour, and so on; the last one stays."""
    left = list(behaviours)

    async def behave(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(asked, writer)

    return behave


async def hang(_asked: Asked, _writer: asyncio.StreamWriter) -> None:
    """Say nothing, for ever."""
    await asyncio.Event().wait()


def drip(every_s: float = 1.0) -> Behaviour:
    """A good answer of which a byte comes every so many seconds: no single read is ever long."""

    async def behave(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(response(200, DRAFT)[: -len(DRAFT)])
        for byte in DRAFT:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(every_s)

    return behave


async def hang_up(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Close before a word."""
    writer.close()


async def reset(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Reset before a word."""
    _abort(writer)


async def reset_mid_body(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Half of a good answer, then a reset."""
    writer.write(response(200, DRAFT)[:-40])
    await writer.drain()
    await asyncio.sleep(0.05)  # let the half arrive: a reset throws away what is under way
    _abort(writer)


async def close_mid_body(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    """Half of a good answer, then a polite close."""
    writer.write(response(200, DRAFT)[:-40])
    writer.close()


async def close_mid_chunk(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    """The same in chunks, where no length was promised."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(DRAFT), DRAFT))
    writer.close()


async def answer_and_close(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    """A good answer that promises to keep the connection, which is then closed."""
    writer.write(response(200, DRAFT))
    writer.close()


async def endless(_asked: Asked, writer: asyncio.StreamWriter) -> None:
    """A body without end, as fast as it is taken."""
    writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        writer.write(b"ffff\r\n" + b"la " * 0x5555 + b"\r\n")
        await writer.drain()


def zipped(body: bytes = DRAFT) -> Behaviour:
    """A well-formed answer in gzip."""
    return answer(200, gzip.compress(body), {"Content-Encoding": "gzip"})


def bomb(megabytes: int = 200) -> Behaviour:
    """A gzip of spaces, a thousandth of what it unpacks to."""
    return zipped(b" " * (megabytes * 1024 * 1024))


def redirect(to: str, status: int = 302) -> Behaviour:
    """Go elsewhere, and a good draft besides."""
    return answer(status, DRAFT, {"Location": to})


garbage: Behaviour = raw(b"220 mail.example ESMTP ready\r\n\r\n")
"""Not HTTP at all."""


def _abort(writer: asyncio.StreamWriter) -> None:
    sock: socket.socket = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
