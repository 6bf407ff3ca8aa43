"""The relay: carries the box's model calls through the SSH connection, to one URL and nothing else.

The box connects to a port on its own loopback; every connection arrives here as an SSH channel and is served
with h11. Only `POST` to the one path is passed on, with the key added here, on the laptop; so the box never
learns the key, nor what else the laptop could reach.
"""

from __future__ import annotations

import contextlib
import json
import logging
import ssl
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import h11
import httpx

from rehearsal.boxes import Address
from rehearsal.boxes.ssh import Link
from rehearsal.runner.errors import LinkError

MAX_REQUEST = 4 << 20  # bytes; a ticket of 20 KB is large
IDLE_S = 3600  # how long the box may keep a connection that it does not use
CONNECT_S = 10
_BLOCK = 65536
# At INFO, which `invoke --debug` turns on for all, httpx logs the whole URL, and a URL may carry a credential.
for _logger in ("httpx", "httpcore"):
    logging.getLogger(_logger).setLevel(logging.WARNING)
_PASSED_ON = (b"content-type", b"accept", b"accept-encoding", b"user-agent")
_PASSED_BACK = ("content-type", "content-encoding", "content-length", "retry-after")


@dataclass(frozen=True)
class Target:
    """Where the relay forwards to: the model's URL (with credentials, if it has any), the key, seconds for a reply."""

    url: str = field(repr=False)
    key: str | None = field(repr=False)
    timeout_s: float

    @property
    def path(self) -> str:
        """The path under which the box asks for it, escapes as they stand; the query stays here."""
        return httpx.URL(self.url).raw_path.partition(b"?")[0].decode() or "/"


class Relay:
    """A relay to one target for one box, over an SSH connection of its own. A context manager.

    `errors` counts what went wrong towards the model, by kind, for the laptop's messages.
    """

    def __init__(self, address: Address, target: Target) -> None:
        self._address = address
        self._target = target
        self.errors: Counter[str] = Counter()
        self._tls = _tls(target.url)  # one for all clients, and there is a client for each connection
        self._link, self._port = self._opened(0)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: object) -> None:
        self._link.close()

    @property
    def url(self) -> str:
        """The model's URL as the box has it."""
        return f"http://127.0.0.1:{self._port}{self._target.path}"

    def keep_up(self) -> None:
        """Open the connection again, on the same port of the box, where it was lost. LinkError where that fails."""
        if self._link.alive:
            return
        self._link.close()
        self._link, _ = self._opened(self._port)

    def _opened(self, port: int) -> tuple[Link, int]:
        """A link that forwards the box's `port` (0: any), and that port; no link is left where it does not."""
        link = Link(self._address)
        try:
            return link, link.forward(port, self._accept)
        except LinkError:
            link.close()
            raise

    def _accept(self, channel: Any) -> None:
        threading.Thread(target=self._serve, args=(channel,), name="relay", daemon=True).start()

    def _serve(self, channel: Any) -> None:
        channel.settimeout(IDLE_S)
        timeout = httpx.Timeout(self._target.timeout_s, connect=CONNECT_S)
        client = httpx.Client(trust_env=False, timeout=timeout, verify=self._tls)
        # Closing the channel sends something too, so it is within what may break.
        with contextlib.suppress(OSError, EOFError, h11.ProtocolError), contextlib.closing(channel), client:
            Exchange(channel, client, self._target, self.errors).serve()


def _tls(url: str) -> ssl.SSLContext:
    """Whom a client trusts: nobody where the URL needs no TLS, for to read the certificates takes 46 ms."""
    if httpx.URL(url).scheme == "https":
        return httpx.create_ssl_context(trust_env=False)
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Exchange:
    """One connection of the box: requests in, replies out, until either side ends it."""

    def __init__(self, channel: Any, client: httpx.Client, target: Target, errors: Counter[str]) -> None:
        self._channel = channel
        self._client = client
        self._target = target
        self._errors = errors
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=65536)

    def serve(self) -> None:
        """Answer requests until the connection ends. Raises OSError or h11.ProtocolError where it breaks."""
        while True:
            event = self._next()
            if isinstance(event, h11.ConnectionClosed):
                return
            if isinstance(event, h11.Request):
                self._answer(event)
            if self._http.our_state is h11.MUST_CLOSE or self._http.their_state is h11.MUST_CLOSE:
                return
            self._http.start_next_cycle()

    def _answer(self, request: h11.Request) -> None:
        refusal = self._refusal(request)
        body = b""
        while isinstance(event := self._next(), h11.Data):
            body += event.data
            if len(body) > MAX_REQUEST:
                refusal, body = (413, "the request is too large"), b""
                break
        if refusal is not None:
            self._errors[f"refused_{refusal[0]}"] += 1
            self._reply(refusal[0], {"content-type": "application/json"}, [_problem(refusal[1])])
            return
        headers = [(name, value) for name, value in request.headers if name in _PASSED_ON]
        if self._target.key is not None:
            headers.append((b"authorization", f"Bearer {self._target.key}".encode()))
        try:
            with self._client.stream("POST", self._target.url, content=body, headers=headers) as response:
                passed = {name: response.headers[name] for name in _PASSED_BACK if name in response.headers}
                self._reply(response.status_code, passed, response.iter_raw())
        except httpx.HTTPError as error:
            self._errors[type(error).__name__] += 1
            if self._http.our_state is not h11.SEND_RESPONSE:
                raise ConnectionAbortedError from error  # the reply broke off in the middle: so must ours
            status = 504 if isinstance(error, httpx.TimeoutException) else 502
            self._reply(status, {"content-type": "application/json"}, [_problem("the model can't be reached")])

    def _refusal(self, request: h11.Request) -> tuple[int, str] | None:
        if request.target.decode("latin-1") != self._target.path:
            return 403, "this relay forwards to the model's one URL only"
        if request.method != b"POST":
            return 405, "this relay forwards POST only"
        return None

    def _reply(self, status: int, headers: dict[str, str], blocks: Iterator[bytes] | list[bytes]) -> None:
        self._send(h11.Response(status_code=status, headers=list(headers.items())))
        for block in blocks:
            self._send(h11.Data(data=block))
        self._send(h11.EndOfMessage())

    def _send(self, event: Any) -> None:
        data = self._http.send(event)
        if data:
            self._channel.sendall(data)

    def _next(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                self._send(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(self._channel.recv(_BLOCK))
        return event


def _problem(words: str) -> bytes:
    return json.dumps({"error": f"rehearsal relay: {words}"}).encode()
