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
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import h11
import httpx

from rehearsal.boxes import Address
from rehearsal.boxes.ssh import Link
from rehearsal.boxes.witness import Overheard
from rehearsal.runner.errors import LinkError
from rehearsal.runner.exchange import Endpoint, endpoint
from rehearsal.runner.wire import Reply

MAX_REQUEST = 64 << 20  # bytes; a ticket of 20 KB is large, and one of 20 MB still is one
MAX_DRAINED = 2 * MAX_REQUEST  # so much is read of a request that is refused: who is cut off can't read why
IDLE_S = 3600  # how long the box may keep a connection that it does not use
CONNECT_S = 10
_BLOCK = 65536
_THREAD = "relay"
# At INFO, which `invoke --debug` turns on for all, httpx logs the whole URL, and its query may be a credential.
logging.getLogger("httpx").addFilter(lambda record: record.threadName != _THREAD)
_PASSED_ON = (b"content-type", b"accept", b"accept-encoding", b"user-agent")
# Not Content-Length: without it a reply ends with a mark of its own, which is sent after the witness was told.
_PASSED_BACK = (b"content-type", b"content-encoding", b"retry-after")
_JSON = [(b"content-type", b"application/json")]

Witness = Callable[[bytes, Reply], None]
Headers = list[tuple[bytes, bytes]]


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

    `witness` is told of every reply that passed whole with status 200: the body of its request, and its text the way
    a row holds it in `raw_reply` for the shape `api` ('plain' or 'openai-chat'). It is told before the box can have
    the reply whole, from the relay's threads, several at once. A reply above the provider's cap is not told.
    `errors` counts what went wrong, by kind, for the laptop's messages.

    Raises UsageError for a URL or a key that no request can carry, LinkError where the box forwards no port.
    """

    def __init__(self, address: Address, target: Target, api: str, witness: Witness) -> None:
        self._address = address
        endpoint(target.url, target.key)  # refused now or never; not kept, for it shows what it holds
        self._target = target
        self._api = api
        self._witness = witness
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
        try:
            threading.Thread(target=self._serve, args=(channel,), name=_THREAD, daemon=True).start()
        except RuntimeError as error:  # no more threads; in Paramiko's own thread it would end the whole link
            self.errors[type(error).__name__] += 1
            channel.close()

    def _serve(self, channel: Any) -> None:
        try:
            channel.settimeout(IDLE_S)
            # Closing the channel sends something too, so it is within what may break.
            with contextlib.closing(channel), self._client() as client:
                to = endpoint(self._target.url, self._target.key)
                exchange = Exchange(channel, client, to, self.errors)
                exchange.serve(self._target.path, self._api, self._witness)
        except (OSError, EOFError, h11.ProtocolError):
            pass  # the box hung up, or talks something else
        except Exception as error:  # nobody is above to see it, and a traceback on the screen helps nobody
            self.errors[type(error).__name__] += 1

    def _client(self) -> httpx.Client:
        timeout = httpx.Timeout(self._target.timeout_s, connect=CONNECT_S)
        hooks = {"response": [_forget_location]}
        return httpx.Client(trust_env=False, timeout=timeout, verify=self._tls, event_hooks=hooks)


def _forget_location(response: httpx.Response) -> None:
    # httpx prepares the next request even when it will not follow; a Location like `urn:x` makes that raise.
    response.headers.pop("location", None)


def _tls(url: str) -> ssl.SSLContext:
    """Whom a client trusts: nobody where the URL needs no TLS, for to read the certificates takes 46 ms."""
    if httpx.URL(url).scheme == "https":
        return httpx.create_ssl_context(trust_env=False)
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


class Exchange:
    """One connection of the box: requests in, replies out, until either side ends it."""

    def __init__(self, channel: Any, client: httpx.Client, to: Endpoint, errors: Counter[str]) -> None:
        self._channel = channel
        self._client = client
        self._to = to
        self._errors = errors
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=65536)

    def serve(self, path: str, api: str, witness: Witness) -> None:
        """Answer requests for `path` until the connection ends. Raises OSError or h11.ProtocolError where it breaks."""
        while True:
            event = self._next()
            if isinstance(event, h11.ConnectionClosed):
                return
            if isinstance(event, h11.Request):
                self._answer(event, path, api, witness)
            if self._http.our_state is h11.MUST_CLOSE or self._http.their_state is h11.MUST_CLOSE:
                return
            self._http.start_next_cycle()

    def _answer(self, request: h11.Request, path: str, api: str, witness: Witness) -> None:
        body, refusal = self._body(), _refusal(request, path)
        if len(body) > MAX_REQUEST:
            refusal = refusal or (413, "the request is too large")
        if refusal is not None:
            self._errors[f"refused_{refusal[0]}"] += 1
            self._problem(*refusal)
            return
        headers = [(name, value) for name, value in request.headers if name in _PASSED_ON]
        # Only what the witness can read too: a team's own seam may ask for more.
        headers = [(name, b"gzip" if name == b"accept-encoding" else value) for name, value in headers]
        try:
            response = self._ask(headers, body)
        except (httpx.HTTPError, OSError) as error:
            self._errors[type(error).__name__] += 1
            self._problem(504 if isinstance(error, httpx.TimeoutException) else 502, "the model can't be reached")
            return
        with contextlib.closing(response):
            encoding = response.headers.get("content-encoding", "identity").strip().lower()
            overheard = Overheard(api, encoding)
            self._pass_back(response, overheard)
            if response.status_code == 200 and (reply := overheard.reply()) is not None:
                self._tell(witness, body, reply)
            self._send(h11.EndOfMessage())  # what the box waits for: it never knows of a reply before the witness

    def _body(self) -> bytes:
        """The body of the request; longer than MAX_REQUEST exactly where it is too large, the rest is forgotten."""
        body = bytearray()
        size = 0
        while isinstance(event := self._next(), h11.Data) and size <= MAX_DRAINED:
            size += len(event.data)
            body += event.data[: MAX_REQUEST + 1 - len(body)]
        return bytes(body)

    def _ask(self, headers: Headers, body: bytes) -> httpx.Response:
        """What the model answers, its body still to come. Raises httpx.HTTPError or OSError where it does not."""
        if "authorization" in self._to.headers:
            headers.append((b"authorization", self._to.headers["authorization"].encode()))
        # Not `client.build_request`: it would send the cookies that an earlier answer set.
        request = httpx.Request("POST", self._to.url, headers=headers, content=body)
        response = self._client.send(request, stream=True, auth=None, follow_redirects=False)
        if response.status_code < 200:
            response.close()
            raise httpx.RemoteProtocolError("the model wants to go on in another protocol")
        return response

    def _pass_back(self, response: httpx.Response, overheard: Overheard) -> None:
        """All of the answer but its end."""
        headers = [(name, value) for name, value in response.headers.raw if name.lower() in _PASSED_BACK]
        self._send(h11.Response(status_code=response.status_code, headers=list(filter(_can_be_sent, headers))))
        for block in self._blocks(response):
            overheard.add(block)
            self._send(h11.Data(data=block))

    def _tell(self, witness: Witness, body: bytes, reply: Reply) -> None:
        """Where the witness can't be told, an OSError of the laptop's disk among the causes, the box gets no reply."""
        try:
            witness(body, reply)
        except Exception as error:
            self._errors[type(error).__name__] += 1
            raise ConnectionAbortedError from error

    def _blocks(self, response: httpx.Response) -> Iterator[bytes]:
        """The body as it comes; where it breaks off, so must what the box gets: ConnectionAbortedError."""
        try:
            yield from response.iter_raw()
        except (httpx.HTTPError, OSError) as error:
            self._errors[type(error).__name__] += 1
            raise ConnectionAbortedError from error

    def _problem(self, status: int, words: str) -> None:
        self._send(h11.Response(status_code=status, headers=_JSON))
        self._send(h11.Data(data=json.dumps({"error": f"rehearsal relay: {words}"}).encode()))
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


def _refusal(request: h11.Request, path: str) -> tuple[int, str] | None:
    if request.target.decode("latin-1") != path:
        return 403, "this relay forwards to the model's one URL only"
    if request.method != b"POST":
        return 405, "this relay forwards POST only"
    return None


def _can_be_sent(header: tuple[bytes, bytes]) -> bool:
    try:
        h11.Response(status_code=200, headers=[header])
    except h11.ProtocolError:
        return False
    return True
