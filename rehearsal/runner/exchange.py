"""One POST and what came of it: one deadline, a cap on the body, retries where no answer came.

It knows HTTP and nothing of models; it never raises for what a server or a network does.
"""

from __future__ import annotations

import random
import re
import ssl
import zlib
from base64 import b64encode
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache

import anyio
import certifi
import httpx

from rehearsal.runner.errors import UsageError
from rehearsal.runner.wire import retry_after_s

# A draft is a few KB. What is above the cap is no draft.
MAX_BODY_BYTES = 1024 * 1024

TRIES = 3
BACKOFF_S = 0.5
# 429, and the three by which a proxy says that no model has answered.
RETRIED_STATUSES = frozenset({429, 502, 503, 504})

# The one place where a foreign exception becomes a kind: its class is looked up, then its bases.
KINDS: dict[type[BaseException], str] = {
    httpx.TimeoutException: "timeout",
    httpx.ConnectTimeout: "timeout",
    httpx.ReadTimeout: "timeout",
    httpx.WriteTimeout: "timeout",
    httpx.PoolTimeout: "timeout",
    httpx.ConnectError: "connect",
    httpx.ProxyError: "connect",
    httpx.NetworkError: "connection_lost",
    httpx.ReadError: "connection_lost",
    httpx.WriteError: "connection_lost",
    httpx.CloseError: "connection_lost",
    httpx.ProtocolError: "protocol",
    httpx.LocalProtocolError: "protocol",
    httpx.RemoteProtocolError: "protocol",
    httpx.UnsupportedProtocol: "protocol",
    httpx.TransportError: "protocol",
    httpx.RequestError: "protocol",  # the rest: a body that can't be decoded, too many redirects
    ssl.SSLError: "tls",  # httpx lets these two through from within a stream
    OSError: "connection_lost",
}
# How httpcore and h11 word that the server hung up: before an answer, in the middle of one.
_HUNG_UP = ("Server disconnected", "peer closed connection")


@dataclass
class Exchange:
    """What came of one POST.

    status     of the last answer, or None
    retries    tries before the last one
    error      None exactly when a 200 came whole, or up to the cap; else a kind
    body       of that 200, decoded; longer than MAX_BODY_BYTES exactly when reading was stopped there
    """

    status: int | None = None
    retries: int = 0
    error: str | None = "timeout"
    body: bytes = b""


@dataclass(eq=False)
class _Failed(Exception):
    kind: str
    ask_again: bool = False
    wait_s: float | None = None


@dataclass(frozen=True)
class Endpoint:
    """Where to POST, and the headers that go with it; the URL in it holds no credentials."""

    url: httpx.URL
    headers: httpx.Headers


def new_client() -> httpx.AsyncClient:
    """A client for one worker: one connection, kept alive; no redirects; TLS verified; no environment.

    One for each worker, because a shared pool collapses (measured: 115/s against 820/s at 64 workers). It
    has no timeouts of its own: `post` bounds the whole.
    """
    return httpx.AsyncClient(
        verify=_tls(),
        trust_env=False,
        follow_redirects=False,
        timeout=None,  # noqa: S113
        limits=httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=30),
        event_hooks={"response": [_forget_location]},
    )


async def _forget_location(response: httpx.Response) -> None:
    # httpx prepares the next request even when it will not follow; a Location like `urn:x` makes that raise.
    response.headers.pop("location", None)


@lru_cache(maxsize=1)  # 25 ms: once, not once a worker
def _tls() -> ssl.SSLContext:
    # As httpx does by default, except that out of a zipapp `certifi.where()` would leave a file outside of the box.
    return ssl.create_default_context(cadata=certifi.contents())


@lru_cache(maxsize=8)  # parsing a URL costs a tenth of a call
def endpoint(url: str, key: str | None) -> Endpoint:
    """Where `url` leads. `key` becomes `Bearer`; without one, the URL's user and password become `Basic`.

    Raises UsageError, which repeats neither, for a URL not http(s) and a key that no header can carry.
    """
    try:
        target = httpx.URL(url)
        usable = target.scheme in ("http", "https") and target.host != ""
    except (httpx.InvalidURL, UnicodeError):
        usable = False
    if not usable:
        raise UsageError("the model's URL is no http or https URL", hint="look at MODEL_URL")
    headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "Content-Type": "application/json"}
    headers["User-Agent"] = "rehearsal"
    if key and not re.fullmatch(r"[!-~]+", key):
        raise UsageError("the model's key holds what no HTTP header can carry", hint="look at MODEL_KEY")
    if key:
        headers["Authorization"] = f"Bearer {key}"
    elif target.userinfo:
        pair = f"{target.username}:{target.password}"
        headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    # httpx logs the URL of every request: give it one without credentials.
    return Endpoint(target.copy_with(userinfo=b""), httpx.Headers(headers))


async def post(client: httpx.AsyncClient, to: Endpoint, content: bytes, timeout_s: float) -> Exchange:
    """POST `content`. After `timeout_s` seconds it is over: all tries, all waits and a body that drips.

    Asked again, TRIES in all: a connection that was refused, or lost before an answer began, and
    RETRIED_STATUSES. That takes in the idle connection that a server closes at the very moment of the next
    request: POST is not idempotent by its name, but a completion changes nothing. A wait (BACKOFF_S,
    doubling, or what `Retry-After` asks for; plus jitter) that would outlast the deadline is not begun.
    """
    exchange = Exchange()
    with anyio.move_on_after(timeout_s) as scope:
        while True:
            try:
                exchange.body = await _try(client, to, content, exchange)
                exchange.error = None
                break
            except _Failed as failed:
                backoff = BACKOFF_S * 2**exchange.retries
                wait = backoff if failed.wait_s is None else failed.wait_s
                wait += random.uniform(0, backoff / 2)  # noqa: S311
                late = anyio.current_time() + wait >= scope.deadline
                if late or exchange.retries == TRIES - 1 or not failed.ask_again:
                    exchange.error = failed.kind
                    break
            await anyio.sleep(wait)
            exchange.retries += 1
    return exchange


async def _try(client: httpx.AsyncClient, to: Endpoint, content: bytes, exchange: Exchange) -> bytes:
    # Not `client.build_request`: it would send the cookies that an earlier answer set.
    request = httpx.Request("POST", to.url, headers=to.headers, content=content, extensions={"timeout": {}})
    answered = False
    try:
        response = await client.send(request, stream=True, auth=None, follow_redirects=False)
        answered, exchange.status = True, response.status_code
        try:
            if response.status_code == 200:
                return await _read(response)
        finally:
            await response.aclose()
    except (httpx.RequestError, OSError) as error:
        kind = kind_of(error)
        raise _Failed(kind, ask_again=not answered and kind in ("connect", "connection_lost")) from error
    wait_s = retry_after_s(response.headers, datetime.now(timezone.utc))
    raise _Failed(f"http_{response.status_code}", response.status_code in RETRIED_STATUSES, wait_s)


async def _read(response: httpx.Response) -> bytes:
    """The decoded body, up to one byte above the cap. httpx would unpack a bomb whole, so it is done here."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise httpx.DecodingError("encoded in a way that was not asked for")
    gzip = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
    body = bytearray()
    async for chunk in response.aiter_raw():
        room = MAX_BODY_BYTES + 1 - len(body)
        try:
            body += gzip.decompress(chunk, room) if gzip else chunk[:room]
        except zlib.error as error:
            raise httpx.DecodingError("not gzip") from error
        if len(body) > MAX_BODY_BYTES:
            return bytes(body)
    if gzip and (not gzip.eof or gzip.unused_data):
        raise httpx.DecodingError("cut short, or followed by something else")
    return bytes(body)


def kind_of(error: BaseException) -> str:
    """The kind of a failure that httpx, or a stream below it, raised; KeyError for any other exception."""
    if isinstance(error, httpx.ConnectError) and _caused_by_tls(error):
        return "tls"
    if isinstance(error, httpx.RemoteProtocolError) and str(error).startswith(_HUNG_UP):
        return "connection_lost"
    return next(KINDS[base] for base in type(error).__mro__ if base in KINDS)


def _caused_by_tls(error: BaseException | None) -> bool:
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__context__  # httpcore cuts `__cause__` off
    return error is not None
