"""A model endpoint that answers a good draft after a fixed time: the benchmark's other side, in a process of its own.

    python endpoint.py MILLISECONDS

It prints its port, and ends with its standard input. HTTP/1.1 with keep-alive, both wire shapes: a body with
`messages` gets a chat completion, any other the bare draft. As little work a request as asyncio allows, because it
shares the machine with what is measured.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys

_DRAFT = {
    "summary": "The customer was charged twice and has opened a dispute with the bank.",
    "suggested_reply": "Thank you for writing, and I am sorry about the trouble. I can see both payments on your order "
    "and have passed them on to our billing team, who will look at each of them. I can't promise an outcome before "
    "they have, but you will hear from us by tomorrow evening. Please keep the dispute with your bank open until then.",
    "confidence": 0.82,
}
_CHAT = {
    "id": "chatcmpl-bench",
    "object": "chat.completion",
    "created": 0,
    "model": "bench",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": json.dumps(_DRAFT)}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


def _response(value: object) -> bytes:
    body = json.dumps(value).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


_ANSWERS = {True: _response(_CHAT), False: _response(_DRAFT)}


class _Connection(asyncio.Protocol):
    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        if not found or len(body) < (int(length[1]) if length else 0):
            return
        self._received = b""  # no client of ours sends a second request before the answer
        answer = _ANSWERS[b'"messages"' in body]
        if self._delay_s:
            asyncio.get_running_loop().call_later(self._delay_s, self._transport.write, answer)
        else:
            self._transport.write(answer)


async def _serve(delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(delay_s), "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(float(sys.argv[1]) / 1000))
