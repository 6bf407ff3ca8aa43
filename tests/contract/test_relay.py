"""The relay, from a port on a real SSH host to real models that behave badly."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import json
import logging
import os
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest

from rehearsal.boxes.relay import MAX_REQUEST, Relay, Target, Witness, _can_be_sent
from rehearsal.boxes.witness import Overheard
from rehearsal.runner.errors import LinkError, UsageError
from rehearsal.runner.exchange import MAX_BODY_BYTES
from rehearsal.runner.provider import complete
from rehearsal.runner.template import Settings
from rehearsal.runner.wire import Reply
from tests.cli.project import eventually
from tests.contract import misbehaving as bad
from tests.contract.misbehaving import DRAFT, Asked, Server, answer, serve
from tests.hosts.sshd import MISSING, Sshd

KEY = "sk-made-up-key"
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # to read the certificates for each client takes 46 ms

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING or "-")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("host") / "sshd") as sshd:
        yield sshd


@pytest.fixture
def own_host(tmp_path: Path) -> Iterator[Sshd]:
    """One that a test may stop."""
    with Sshd(tmp_path / "sshd") as sshd:
        yield sshd


@contextmanager
def relayed(
    host: Sshd,
    model: Server,
    *,
    url: str = "",
    key: str | None = None,
    timeout_s: float = 20,
    api: str = "plain",
    witness: Witness = lambda _request, _reply: None,
) -> Iterator[Relay]:
    with Relay(host.address(), Target(url or model.url, key, timeout_s), api, witness) as relay:
        yield relay


@pytest.fixture
def through(host: Sshd) -> Iterator[Callable[..., tuple[Relay, Server]]]:
    """A relay to a model that behaves so."""
    with ExitStack() as stack:

        def open_relay(behaviour: bad.Behaviour, **how: object) -> tuple[Relay, Server]:
            model = stack.enter_context(serve(behaviour))
            return stack.enter_context(relayed(host, model, **how)), model  # type: ignore[arg-type]

        yield open_relay


Through = Callable[..., tuple[Relay, Server]]


def port(relay: Relay) -> int:
    found = httpx.URL(relay.url).port
    assert found is not None
    return found


def raw(relay: Relay, *pieces: bytes) -> bytes:
    """What comes back for these bytes until the relay closes the connection."""
    with socket.create_connection(("127.0.0.1", port(relay)), 20) as stream:
        for piece in pieces:
            stream.sendall(piece)
        stream.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: stream.recv(65536), b""))


def post(relay: Relay, body: bytes = b'{"prompt": "hi"}', **headers: str) -> httpx.Response:
    with httpx.Client(trust_env=False, timeout=20, verify=NO_TLS) as client:
        return client.post(relay.url, content=body, headers={"Content-Type": "application/json", **headers})


# What passes


def test_a_post_to_the_one_path_passes_unchanged_and_so_does_the_answer(through: Through) -> None:
    relay, model = through(answer(200, DRAFT))
    body = os.urandom(300_000)
    got = post(relay, body)
    assert (got.status_code, got.content) == (200, DRAFT)
    (asked,) = model.asked
    assert (asked.method, asked.target, asked.body) == ("POST", "/v1/reply", body)
    assert asked.headers["host"] == f"127.0.0.1:{model.port}"
    assert asked.headers["content-type"] == "application/json"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "post", "FOO"])
def test_other_methods_are_refused_and_do_not_reach_the_model(through: Through, method: str) -> None:
    relay, model = through(answer(200, DRAFT))
    head = raw(relay, f"{method} /v1/reply HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert head.startswith(b"HTTP/1.1 405 ")
    assert model.connections == 0
    assert relay.errors["refused_405"] == 1


@pytest.mark.parametrize(
    "target",
    [
        "/", "/v1", "/v1/reply/", "/v1/reply?x=1", "/v1/reply#x", "/v1/../v1/reply", "//v1/reply", "/v1//reply",
        "/V1/reply",
        "/v1/reply%00", "/v1/%72eply", "/v1/models", "*", "http://169.254.169.254/v1/reply", "http://127.0.0.1/v1/reply",
        "/v1/reply;x",
    ],
)  # fmt: skip
def test_other_targets_are_refused_and_do_not_reach_the_model(through: Through, target: str) -> None:
    relay, model = through(answer(200, DRAFT))
    got = raw(relay, f"POST {target} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
    assert got.startswith(b"HTTP/1.1 403 ")
    assert model.connections == 0
    assert relay.errors["refused_403"] == 1


def test_connect_opens_no_tunnel(through: Through) -> None:
    relay, model = through(answer(200, DRAFT))
    got = raw(
        relay, f"CONNECT 127.0.0.1:{model.port} HTTP/1.1\r\nHost: x\r\n\r\nPOST /v1/reply HTTP/1.1\r\n\r\n".encode()
    )
    assert got.startswith(b"HTTP/1.1 403 ")
    assert model.connections == 0


def test_a_host_header_changes_nothing(through: Through) -> None:
    relay, model = through(answer(200, DRAFT))
    assert post(relay, Host="elsewhere.example").status_code == 200
    assert model.asked[0].headers["host"] == f"127.0.0.1:{model.port}"


def test_an_upgrade_is_not_passed_on(through: Through) -> None:
    relay, model = through(answer(200, DRAFT))
    got = post(relay, Upgrade="websocket", Connection="upgrade", Cookie="a=b", **{"X-Forwarded-For": "1.2.3.4"})
    assert got.status_code == 200
    assert {"upgrade", "cookie", "x-forwarded-for"}.isdisjoint(model.asked[0].headers)


def test_status_type_encoding_and_retry_after_come_back_and_no_other_header(through: Through) -> None:
    headers = {
        "Retry-After": "3",
        "Set-Cookie": "secret=1",
        "X-Request-Id": "7",
        "Location": "http://elsewhere.example/",
    }
    relay, _ = through(answer(429, DRAFT, headers))
    got = post(relay)
    assert (got.status_code, got.headers["retry-after"], got.content) == (429, "3", DRAFT)
    assert set(got.headers) <= {"content-type", "content-encoding", "transfer-encoding", "retry-after"}


def test_a_zipped_answer_stays_zipped(through: Through) -> None:
    relay, _ = through(bad.zipped())
    with httpx.Client(trust_env=False) as client, client.stream("POST", relay.url) as got:
        assert got.headers["content-encoding"] == "gzip"
        assert b"".join(got.iter_raw())[:2] == b"\x1f\x8b"
    assert post(relay).content == DRAFT


def test_a_redirect_is_not_followed(through: Through) -> None:
    with serve(answer(200, DRAFT)) as elsewhere:
        relay, model = through(bad.redirect(elsewhere.url, 307))
        assert post(relay).status_code == 307
        assert elsewhere.connections == 0
    assert len(model.asked) == 1


# Keys


def test_the_key_is_added_here_and_the_boxs_own_is_dropped(through: Through) -> None:
    relay, model = through(answer(200, DRAFT), key=KEY)
    got = post(relay, Authorization="Bearer of-the-box", **{"Proxy-Authorization": "Basic eDp5", "X-Api-Key": "k"})
    assert got.status_code == 200
    asked = model.asked[0]
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert {"proxy-authorization", "x-api-key"}.isdisjoint(asked.headers)
    assert KEY not in str(got.headers) + got.text


def test_without_a_key_none_is_sent_whatever_the_box_says(through: Through) -> None:
    relay, model = through(answer(200, DRAFT))
    post(relay, Authorization="Bearer of-the-box")
    assert "authorization" not in model.asked[0].headers


def test_user_password_and_query_are_added_here_only(host: Sshd) -> None:
    with serve(answer(200, DRAFT)) as model:
        url = model.url.replace("://", "://user:pa55@") + "?api-version=1&token=t0ken"
        with relayed(host, model, url=url) as relay:
            assert relay.url == f"http://127.0.0.1:{port(relay)}/v1/reply"
            assert post(relay).status_code == 200
        (asked,) = model.asked
    assert asked.target == "/v1/reply?api-version=1&token=t0ken"
    assert asked.headers["authorization"].startswith("Basic ")


def test_escapes_in_the_path_stay_as_they_are(host: Sshd) -> None:
    with serve(answer(200, DRAFT)) as model:
        url = model.url.replace("/v1/reply", "/deployments/a%20b%2Fc/chat")
        with relayed(host, model, url=url) as relay:
            assert post(relay).status_code == 200
        assert model.asked[0].target == "/deployments/a%20b%2Fc/chat"


def test_a_url_without_a_path(host: Sshd) -> None:
    with serve(answer(200, DRAFT)) as model:
        with relayed(host, model, url=f"http://127.0.0.1:{model.port}") as relay:
            assert post(relay).status_code == 200
        assert model.asked[0].target == "/"


def test_no_key_and_no_url_is_ever_logged_or_shown(host: Sshd, caplog: pytest.LogCaptureFixture) -> None:
    """Not even at DEBUG, which `invoke --debug` turns on for every logger, and not by a model that is down."""
    caplog.set_level(logging.DEBUG)
    with serve(answer(200, DRAFT)) as model:
        url = model.url.replace("://", "://user:pa55@") + "?token=t0ken"
    for where in (url, None):
        with serve(answer(200, DRAFT)) as up:
            target = Target(where or up.url.replace("://", "://user:pa55@") + "?token=t0ken", KEY, 20)
            with Relay(host.address(), target, "plain", lambda _request, _reply: None) as relay:
                post(relay)
                shown = f"{relay!r} {relay.__dict__} {target!r} {dict(relay.errors)}"
        for secret in ("pa55", "t0ken", KEY):
            assert secret not in caplog.text
            assert secret not in shown


# How bodies travel


def test_the_first_bytes_arrive_before_the_last_are_written(through: Through) -> None:
    seen = threading.Event()

    async def behave(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await writer.drain()
        assert await asyncio.to_thread(seen.wait, 20)
        writer.write(b"4\r\nlast\r\n0\r\n\r\n")

    relay, _ = through(behave)
    with httpx.Client(trust_env=False, timeout=20) as client, client.stream("POST", relay.url) as got:
        blocks = got.iter_raw()
        assert next(blocks) == b"first"
        seen.set()
        assert b"".join(blocks) == b"last"


def test_a_chunked_request_body(through: Through) -> None:
    relay, model = through(answer(200, DRAFT))
    blocks = [b'{"prompt": ', b'"hi"', b"}"]
    got = httpx.post(relay.url, content=iter(blocks), trust_env=False)
    assert (got.status_code, model.asked[0].body) == (200, b"".join(blocks))
    assert "transfer-encoding" not in model.asked[0].headers


def test_a_request_as_large_as_allowed_passes(through: Through) -> None:
    relay, model = through(answer(200, DRAFT))
    assert post(relay, bytes(MAX_REQUEST)).status_code == 200
    assert len(model.asked[0].body) == MAX_REQUEST


@pytest.mark.parametrize("chunked", [False, True])
def test_a_larger_one_is_refused_and_does_not_reach_the_model(through: Through, chunked: bool) -> None:
    relay, model = through(answer(200, DRAFT))
    size = MAX_REQUEST + 1
    if chunked:
        head = b"POST /v1/reply HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        got = raw(relay, head, b"%x\r\n" % size, bytes(size), b"\r\n0\r\n\r\n")
    else:
        got = raw(relay, b"POST /v1/reply HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size, bytes(size))
    assert got.startswith(b"HTTP/1.1 413 ")
    assert model.connections == 0


def test_a_request_that_breaks_off_does_not_reach_the_model(through: Through) -> None:
    relay, model = through(answer(200, DRAFT))
    raw(relay, b"POST /v1/reply HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhalf")
    raw(relay, b"POST /v1/reply HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nhalf")
    assert post(relay).status_code == 200  # it still works
    assert len(model.asked) == 1


@pytest.mark.parametrize(
    "rest",
    [
        b"\r\n\r\n\0\xff garbage \r\n\r\n",
        b"x" * 200_000,
        b"POST /v1/reply HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /v1/reply HTTP/1.1\r\nHost: x\r\nBad Name: y\r\nContent-Length: 0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["garbage", "no end", "two lengths", "bad name", "TLS"],
)
def test_garbage_after_a_good_request_costs_nobody_else_anything(through: Through, rest: bytes) -> None:
    relay, model = through(answer(200, DRAFT))
    good = b"POST /v1/reply HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}"
    try:
        got = raw(relay, good + rest)
    except ConnectionResetError:
        got = b"HTTP/1.1 200 "  # closed with bytes unread: the answer may be lost with them
    assert got.startswith(b"HTTP/1.1 200 ")
    assert got.count(b"HTTP/1.1 200 ") == 1
    assert post(relay).status_code == 200
    assert len(model.asked) <= 3


def test_a_header_that_is_no_text_is_no_trouble(through: Through) -> None:
    relay, model = through(answer(200, DRAFT))
    head = (
        b"POST /v1/reply HTTP/1.1\r\nHost: x\r\nUser-Agent: \xff\xfe\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    )
    assert raw(relay, head).startswith(b"HTTP/1.1 200 ")
    assert len(model.asked) == 1


def test_pipelined_requests_are_answered_in_turn(through: Through) -> None:
    relay, model = through(answer(200, DRAFT))
    one = b"POST /v1/reply HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\n%d"
    got = raw(relay, b"".join(one % number for number in range(5)))
    assert got.count(b"HTTP/1.1 200 ") == 5
    assert [asked.body for asked in model.asked] == [b"0", b"1", b"2", b"3", b"4"]


def test_http_1_0(through: Through) -> None:
    relay, _ = through(answer(200, DRAFT))
    got = raw(relay, b"POST /v1/reply HTTP/1.0\r\nContent-Length: 2\r\n\r\n{}")
    assert got.startswith(b"HTTP/1.1 200 ")
    assert got.endswith(DRAFT)


def test_expect_100_continue(through: Through) -> None:
    relay, model = through(answer(200, DRAFT))
    with socket.create_connection(("127.0.0.1", port(relay)), 20) as stream:
        stream.sendall(b"POST /v1/reply HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        assert stream.recv(1000).startswith(b"HTTP/1.1 100 ")
        assert model.connections == 0
        stream.sendall(b"{}")
        assert stream.recv(65536).startswith(b"HTTP/1.1 200 ")


# Many


def test_many_requests_on_one_connection(through: Through) -> None:
    relay, model = through(answer(200, DRAFT))
    connection = http.client.HTTPConnection("127.0.0.1", port(relay), timeout=20)
    for number in range(100):
        connection.request("POST", "/v1/reply", str(number))
        got = connection.getresponse()
        assert (got.status, got.read()) == (200, DRAFT)
    connection.close()
    assert [asked.body for asked in model.asked] == [str(number).encode() for number in range(100)]
    assert model.connections == 1


def test_sixty_four_at_once(through: Through) -> None:
    """All 64 are at the model before the first one is answered."""

    async def behave(asked: Asked, writer: asyncio.StreamWriter) -> None:
        while len(model.asked) < 64:  # noqa: ASYNC110  (the server's list is all there is to wait for)
            await asyncio.sleep(0.01)
        writer.write(bad.response(200, asked.body))

    relay, model = through(behave)
    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(lambda number: post(relay, str(number).encode()).text, range(64)))
    assert answers == [str(number) for number in range(64)]


# Models that fail


@pytest.mark.parametrize("behaviour", [bad.hang_up, bad.reset, bad.garbage])
def test_a_model_that_breaks_before_a_word_is_a_502(through: Through, behaviour: bad.Behaviour) -> None:
    relay, _ = through(behaviour)
    got = post(relay)
    assert got.status_code == 502
    assert "rehearsal relay" in got.json()["error"]
    assert sum(relay.errors.values()) == 1


def test_a_model_that_is_not_there_is_a_502(host: Sshd) -> None:
    with serve(answer(200, DRAFT)) as model:
        pass
    with relayed(host, model) as relay:
        assert post(relay).status_code == 502
        assert relay.errors == {"ConnectError": 1}


def test_a_model_that_hangs_is_a_504(through: Through) -> None:
    relay, _ = through(bad.hang, timeout_s=0.3)
    assert post(relay).status_code == 504
    assert relay.errors == {"ReadTimeout": 1}


@pytest.mark.parametrize("behaviour", [bad.reset_mid_body, bad.close_mid_body, bad.close_mid_chunk])
def test_an_answer_that_breaks_off_breaks_off_for_the_box_too(through: Through, behaviour: bad.Behaviour) -> None:
    relay, _ = through(behaviour)
    with pytest.raises(httpx.RemoteProtocolError):
        post(relay)


def test_an_answer_without_end_ends_when_the_box_has_had_enough(through: Through) -> None:
    relay, model = through(bad.endless)
    with httpx.Client(trust_env=False, timeout=20) as client, client.stream("POST", relay.url) as got:
        blocks = got.iter_raw(65536)
        for _ in range(50):
            next(blocks)
    relay_threads = [thread for thread in threading.enumerate() if thread.name == "relay"]
    for thread in relay_threads:
        thread.join(20)
    assert not any(thread.is_alive() for thread in relay_threads)
    assert len(model.asked) == 1


def test_a_model_that_keeps_closing_is_reached_again(through: Through) -> None:
    relay, _ = through(bad.answer_and_close)
    connection = http.client.HTTPConnection("127.0.0.1", port(relay), timeout=20)
    for _ in range(5):
        connection.request("POST", "/v1/reply", "x")
        got = connection.getresponse()
        assert got.read() == DRAFT
    connection.close()


# What a hostile model sends


def test_no_cookie_of_the_models_comes_back_to_it(through: Through) -> None:
    relay, model = through(answer(200, DRAFT, {"Set-Cookie": "ticket=1; Path=/"}))
    connection = http.client.HTTPConnection("127.0.0.1", port(relay), timeout=20)
    for _ in range(2):
        connection.request("POST", "/v1/reply", "x")
        assert connection.getresponse().read() == DRAFT
    connection.close()
    assert model.connections == 1
    assert ["cookie" in asked.headers for asked in model.asked] == [False, False]


def test_a_key_wins_over_user_and_password(host: Sshd) -> None:
    """As in the provider on a box that reaches the model itself."""
    with serve(answer(200, DRAFT)) as model:
        with relayed(host, model, url=model.url.replace("://", "://user:pa55@"), key=KEY) as relay:
            assert post(relay).status_code == 200
        assert model.asked[0].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(("url", "key"), [("http://127.0.0.1:1/", "two\nlines"), ("ftp://127.0.0.1/", None)])
def test_what_no_request_can_carry_is_refused_before_there_is_a_link(host: Sshd, url: str, key: str | None) -> None:
    with pytest.raises(UsageError, match="the model's"):
        Relay(host.address(), Target(url, key, 20), "plain", lambda _request, _reply: None)


@pytest.mark.parametrize("location", ["urn:x", "http://[", "//", "http://\xff/"])
def test_a_location_of_any_kind_is_dropped(through: Through, location: str) -> None:
    relay, _ = through(answer(302, DRAFT, {"Location": location}))
    got = post(relay)
    assert (got.status_code, got.content) == (302, DRAFT)
    assert "location" not in got.headers
    assert not relay.errors


def test_headers_that_are_no_ascii_pass_as_they_are(through: Through) -> None:
    relay, _ = through(answer(200, DRAFT, {"Content-Type": "text/plain; name=\u00e9", "Retry-After": "\u4e09"}))
    got = post(relay)
    assert (got.status_code, got.content) == (200, DRAFT)
    raw_headers = {name.lower(): value for name, value in got.headers.raw}
    assert raw_headers[b"content-type"] == "text/plain; name=\u00e9".encode()
    assert raw_headers[b"retry-after"] == "\u4e09".encode()
    assert not relay.errors


def test_a_header_that_can_not_be_sent_is_dropped() -> None:
    assert _can_be_sent((b"content-type", b"\xff"))
    assert not _can_be_sent((b"retry-after", b"a\nb"))


def test_an_answer_in_another_protocol_is_a_502(through: Through) -> None:
    relay, _ = through(bad.raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"))
    assert post(relay).status_code == 502
    assert relay.errors == {"RemoteProtocolError": 1}


@pytest.mark.parametrize("unexpected", [LookupError, OSError, ValueError])
def test_nothing_unexpected_prints_a_traceback(
    through: Through,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    unexpected: type[Exception],
) -> None:
    """Whatever it is, it ends that one connection and is counted."""

    def witness(_request: bytes, _reply: Reply) -> None:
        raise unexpected("the disk of the laptop, say")

    escaped: list[object] = []
    monkeypatch.setattr(threading, "excepthook", escaped.append)
    relay, _ = through(answer(200, DRAFT), witness=witness)
    with pytest.raises(httpx.RemoteProtocolError):
        post(relay)
    assert eventually(lambda: relay.errors == {unexpected.__name__: 1})
    assert escaped == []
    assert capfd.readouterr().err == ""


def test_a_defect_of_the_relays_own_prints_no_traceback_either(
    through: Through, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(Overheard, "add", broken)
    relay, _ = through(answer(200, DRAFT))
    with pytest.raises(httpx.RemoteProtocolError):
        post(relay)
    assert eventually(lambda: relay.errors == {"RecursionError": 1})
    assert capfd.readouterr().err == ""


def test_the_client_of_a_request_that_is_too_large_can_read_why(through: Through) -> None:
    """And the connection still serves: the body was read to its end."""
    relay, model = through(answer(200, DRAFT))
    with httpx.Client(trust_env=False, timeout=60, verify=NO_TLS) as client:
        got = client.post(relay.url, content=bytes(MAX_REQUEST + 1))
        assert (got.status_code, got.json()) == (413, {"error": "rehearsal relay: the request is too large"})
        assert client.post(relay.url, content=b"{}").status_code == 200
    assert [asked.body for asked in model.asked] == [b"{}"]


def test_an_endless_answer_is_cut_and_the_model_is_left_at_once(through: Through) -> None:
    left = threading.Event()

    async def behave(asked: Asked, writer: asyncio.StreamWriter) -> None:
        try:
            await bad.endless(asked, writer)
        except ConnectionError:
            left.set()
            raise

    told: list[str] = []
    relay, _ = through(behave, witness=lambda _request, reply: told.append(reply.text))
    with socket.create_connection(("127.0.0.1", port(relay)), 20) as stream:
        stream.sendall(b"POST /v1/reply HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
        got = b"".join(stream.recv(65536) for _ in range(50))
    assert left.wait(20)
    assert got.startswith(b"HTTP/1.1 200 ")
    assert b"\r\n0\r\n\r\n" not in got
    assert told == []


# The witness

CHAT = json.dumps(bad.chat("hello \u00e9 \ud83d\ude00")).encode()


@pytest.mark.parametrize(
    ("behaviour", "api"),
    [
        (answer(200, DRAFT), "plain"),
        (answer(200, b""), "plain"),
        (answer(200, b"\xff\xed\xa0\x80 no UTF-8"), "plain"),
        (bad.zipped(), "plain"),
        (answer(200, CHAT), "openai-chat"),
        (bad.zipped(CHAT), "openai-chat"),
        (bad.answer_json(bad.chat(None)), "openai-chat"),
        (bad.answer_json(bad.chat("\ud800")), "openai-chat"),
        (bad.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"), "plain"),
        (answer(200, b"x" * MAX_BODY_BYTES), "plain"),
    ],
    ids=["plain", "empty", "bytes", "gzip", "chat", "chat in gzip", "null", "surrogate", "chunks", "at the cap"],
)
def test_the_witness_is_told_what_the_provider_makes_of_it(
    through: Through, behaviour: bad.Behaviour, api: str
) -> None:
    """The very provider of the box, asking through the relay, against what was told meanwhile."""
    told: list[tuple[bytes, str]] = []
    relay, model = through(behaviour, api=api, witness=lambda request, reply: told.append((request, reply.text)))

    found = asyncio.run(complete("a ticket", Settings(api=api, timeout_s=20), url=relay.url))
    assert found.error is None
    assert told == [(model.asked[0].body, found.raw_reply)]


@pytest.mark.parametrize(
    ("behaviour", "api"),
    [
        (answer(500, DRAFT), "plain"),
        (answer(201, DRAFT), "plain"),
        (bad.close_mid_body, "plain"),
        (bad.close_mid_chunk, "plain"),
        (answer(200, DRAFT), "openai-chat"),
        (answer(200, b"[" * 100_000), "openai-chat"),
        (answer(200, b"no gzip", {"Content-Encoding": "gzip"}), "plain"),
        (answer(200, gzip.compress(DRAFT)[:-4], {"Content-Encoding": "gzip"}), "plain"),
        (answer(200, DRAFT, {"Content-Encoding": "br"}), "plain"),
        (answer(200, b"x" * (MAX_BODY_BYTES + 1)), "plain"),
        (bad.bomb(20), "plain"),
    ],
    ids=["500", "201", "cut", "cut chunk", "no envelope", "deep", "no gzip", "cut gzip", "br", "above the cap", "bomb"],
)
def test_the_witness_is_not_told_of_what_is_no_reply(through: Through, behaviour: bad.Behaviour, api: str) -> None:
    told: list[str] = []
    relay, model = through(behaviour, api=api, witness=lambda _request, reply: told.append(reply.text))
    request = b"POST /v1/reply HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    assert raw(relay, request).startswith(b"HTTP/1.1 ")
    assert len(model.asked) == 1
    assert told == []


def test_the_witness_knows_of_a_reply_before_the_box_has_it(through: Through) -> None:
    may_go_on = threading.Event()

    def witness(_request: bytes, _reply: Reply) -> None:
        assert may_go_on.wait(20)

    relay, _ = through(answer(200, DRAFT), witness=witness)
    with httpx.Client(trust_env=False, timeout=20, verify=NO_TLS) as client, client.stream("POST", relay.url) as got:
        blocks = got.iter_raw()
        assert next(blocks) == DRAFT
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(lambda: list(blocks))
            assert wait([rest], timeout=0.2).not_done, "complete for the box while the witness was still being told"
            may_go_on.set()
            assert rest.result(20) == []


# The connection to the box


def test_a_host_that_forwards_nothing_leaves_no_link(tmp_path: Path) -> None:
    before = threading.active_count()
    with Sshd(tmp_path / "sshd", options=["AllowTcpForwarding no"]) as sshd, serve(answer(200, DRAFT)) as model:
        with pytest.raises(LinkError, match="refuses to forward"):
            Relay(sshd.address(), Target(model.url, None, 20), "plain", lambda _request, _reply: None)
        for thread in threading.enumerate():
            if type(thread).__module__.startswith("paramiko"):
                thread.join(20)
    assert threading.active_count() <= before


def test_after_a_lost_connection_it_keeps_its_port(own_host: Sshd) -> None:
    with serve(answer(200, DRAFT)) as model, relayed(own_host, model) as relay:
        url = relay.url
        assert post(relay).status_code == 200
        relay.keep_up()
        assert relay.url == url
        own_host.stop()
        own_host.start()
        assert eventually(lambda: not relay._link.alive)
        with pytest.raises(httpx.TransportError):
            post(relay)
        relay.keep_up()
        assert relay.url == url
        assert post(relay).status_code == 200


def test_while_its_port_is_taken_it_says_so_each_time(own_host: Sshd) -> None:
    """A link that stands without its port would let the run go on, and every call of the model fail."""
    with serve(answer(200, DRAFT)) as model, relayed(own_host, model) as relay:
        own_host.stop()
        own_host.start()
        assert eventually(lambda: not relay._link.alive)
        with socket.socket() as thief:
            thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            thief.bind(("127.0.0.1", port(relay)))
            thief.listen()
            for _ in range(2):
                with pytest.raises(LinkError, match="refuses to forward"):
                    relay.keep_up()
        relay.keep_up()
        assert post(relay).status_code == 200


def test_a_host_that_is_off_is_a_link_error(own_host: Sshd) -> None:
    with serve(answer(200, DRAFT)) as model, relayed(own_host, model) as relay:
        own_host.stop()
        assert eventually(lambda: not relay._link.alive)
        with pytest.raises(LinkError):
            relay.keep_up()


PRINTS_NOTHING = """
import json, logging, sys, threading
logging.basicConfig(level=logging.DEBUG)
from rehearsal.boxes import Address
from rehearsal.boxes.relay import Relay, Target
address, url = json.loads(sys.stdin.readline())
with Relay(Address.from_json(address), Target(url, None, 5), "plain", lambda _request, _reply: None) as relay:
    print(relay.url, flush=True)
    sys.stdin.readline()
"""


def test_a_process_that_logs_everything_does_not_log_the_url(host: Sshd) -> None:
    with serve(answer(200, DRAFT)) as model:
        url = model.url.replace("://", "://user:pa55@") + "?token=t0ken"
        with subprocess.Popen(
            [sys.executable, "-c", PRINTS_NOTHING],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps([host.address().to_json(), url]) + "\n")
            process.stdin.flush()
            where = process.stdout.readline().strip()
            assert httpx.post(where, content=b"{}", trust_env=False).status_code == 200
            said = process.communicate("\n")
        assert process.returncode == 0, said
        assert "paramiko" in said[1]  # it does log
        assert not any(secret in text for secret in ("pa55", "t0ken") for text in said)
