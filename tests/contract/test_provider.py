"""The provider seam against real servers on loopback that misbehave."""

from __future__ import annotations

import asyncio
import base64
import datetime
import gzip
import json
import logging
import socket
import sqlite3
import ssl
import subprocess
import sys
import tracemalloc
from pathlib import Path
from types import MappingProxyType
from typing import Any

import anyio
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from rehearsal.runner import exchange
from rehearsal.runner.errors import UsageError
from rehearsal.runner.provider import Completion, complete, load_seam, new_client
from rehearsal.runner.strict_json import NotStrictJson, parse
from rehearsal.runner.template import Settings
from rehearsal.runner.wire import request_body, retry_after_s, storable
from tests.contract import misbehaving as bad
from tests.contract.misbehaving import DRAFT, Behaviour, Server, serve

PLAIN = Settings(timeout_s=20)
CHAT = Settings(api="openai-chat", timeout_s=20)
SHORT = Settings(timeout_s=0.3)
MIB, HEAD = 1024 * 1024, 64 * 1024  # the cap on a reply, and what is kept of a larger one; bytes
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "BACKOFF_S", 0.01)


def ask(url: str, settings: Settings = PLAIN, *, prompt: str = "hello", key: str | None = None) -> Completion:
    async def main() -> Completion:
        async with new_client() as client:
            return await complete(prompt, settings, url=url, key=key, client=client)

    return asyncio.run(main())


def met(behaviour: Behaviour, settings: Settings = PLAIN) -> tuple[Completion, Server]:
    with serve(behaviour) as server:
        return ask(server.url, settings), server


def outcome(done: Completion) -> tuple[str | None, int | None, int]:
    return done.error, done.http_status, done.retries


# The two wire shapes.


def test_plain_posts_the_prompt_and_takes_the_body() -> None:
    done, server = met(bad.answer())
    assert done == Completion(DRAFT.decode(), None, None, 200, 0, done.latency_ms, None)
    (asked,) = server.asked
    assert (asked.method, asked.target, asked.json()) == ("POST", "/v1/reply", {"prompt": "hello"})
    assert asked.headers["content-type"] == "application/json"
    assert "authorization" not in asked.headers


def test_chat_posts_only_the_settings_that_are_set() -> None:
    _, server = met(bad.answer_json(bad.chat("{}")), CHAT)
    assert server.asked[0].json() == {"messages": [{"role": "user", "content": "hello"}], "stream": False}


def test_chat_posts_every_setting_that_is_set() -> None:
    form = MappingProxyType({"type": "json_object"})
    settings = Settings("openai-chat", "m-1", "Be kind.", 0.0, 0.9, 0, 150, 20.0, form)
    _, server = met(bad.answer_json(bad.chat("{}")), settings)
    assert server.asked[0].json() == {
        "model": "m-1",
        "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "hello"}],
        "temperature": 0.0,
        "top_p": 0.9,
        "seed": 0,
        "max_tokens": 150,
        "response_format": {"type": "json_object"},
        "stream": False,
    }


def test_a_lone_surrogate_in_a_ticket_travels() -> None:
    with serve(bad.answer()) as server:
        assert ask(server.url, prompt="ä \ud83d {{ticket_body}}").error is None
        assert server.asked[0].json() == {"prompt": "ä \ud83d {{ticket_body}}"}


def test_an_unknown_api_is_the_callers_mistake() -> None:
    with pytest.raises(ValueError, match="no such api"):
        request_body("hello", Settings(api="grpc"))


TOOL = [{"id": "t", "type": "function", "function": {"name": "refund", "arguments": "{}"}}]


@pytest.mark.parametrize(
    ("envelope", "reply", "finish"),
    [
        (bad.chat(DRAFT.decode()), DRAFT.decode(), "stop"),
        (bad.chat('{"summary": "cut', finish_reason="length"), '{"summary": "cut', "length"),
        (bad.chat("{}", finish_reason=None), "{}", "missing"),
        (bad.chat(""), "", "stop"),
        (bad.chat(None), "", "stop"),
        (bad.chat(None, refusal="I can't help with that."), "", "stop"),
        (bad.chat("{}", refusal="I can't help with that."), "", "stop"),
        (bad.chat(None, finish_reason="tool_calls", tool_calls=TOOL), "", "tool_calls"),
        (bad.chat("{}", tool_calls=TOOL), "", "stop"),
        (bad.chat("{}", refusal=None, tool_calls=[]), "{}", "stop"),
        ({"choices": [{"message": {"role": "assistant"}, "finish_reason": "stop"}]}, "", "stop"),
    ],
)
def test_chat_content_is_the_reply(envelope: Any, reply: str, finish: str) -> None:
    done, server = met(bad.answer_json(envelope), CHAT)
    assert (done.raw_reply, done.finish_reason, done.error, done.retries) == (reply, finish, None, 0)
    assert done.model == envelope.get("model")
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "body",
    [
        DRAFT,
        b"",
        b"<html>Service restored</html>",
        b"null",
        b"[]",
        b'{"error": {"message": "overloaded"}}',
        b'{"choices": []}',
        b'{"choices": {}}',
        b'{"choices": ["{}"]}',
        b'{"choices": [{"message": "{}"}]}',
        b'{"choices": [{"text": "{}"}]}',
        b'{"choices": [{"message": {"content": ["{}"]}}]}',
        json.dumps({"choices": bad.chat("{}")["choices"] * 2}).encode(),
        b'{"choices": [], "choices": [{"message": {"content": "{}"}, "finish_reason": "stop"}]}',
        json.dumps(bad.chat("{}")).encode()[:-1],
        b'{"choices": [{"message": {"content": "\xff"}, "finish_reason": "stop"}]}',
    ],
)
def test_chat_envelope_that_is_none(body: bytes) -> None:
    done, server = met(bad.answer(200, body), CHAT)
    assert (done.error, done.raw_reply, done.finish_reason, done.model) == ("envelope", None, None, None)
    assert outcome(done) == ("envelope", 200, 0)
    assert len(server.asked) == 1


def test_a_servers_long_words_are_cut() -> None:
    envelope = bad.chat("{}", finish_reason="s" * 5000) | {"model": "m\ud800" + "m" * 5000}
    done, _ = met(bad.answer_json(envelope), CHAT)
    assert done.finish_reason == "s" * 200
    assert done.model == "m\\ud800" + "m" * 198


# What a reply may hold.


@pytest.mark.parametrize("body", [b"", b"   ", b"not JSON", b'{"summary": "cut', b'{"suggested_reply": "refunded"}'])
def test_a_reply_is_never_asked_for_again(body: bytes) -> None:
    done, server = met(bad.answer(200, body))
    assert (done.raw_reply, done.error, len(server.asked)) == (body.decode(), None, 1)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b'{"summary": "caf\xe9"}', '{"summary": "caf\\xe9"}'),
        (b'{"summary": "\xed\xa0\x80"}', '{"summary": "\\xed\\xa0\\x80"}'),
        (b'\xef\xbb\xbf{"summary": ""}', '\ufeff{"summary": ""}'),
        (b'{"summary": "\\ud800"}', '{"summary": "\\ud800"}'),
    ],
)
def test_bytes_that_are_no_text_can_be_stored(body: bytes, text: str) -> None:
    done, _ = met(bad.answer(200, body, {"Content-Type": "text/plain; charset=latin-1"}))
    assert done.raw_reply == text
    assert sqlite3.connect(":memory:").execute("SELECT ?", [done.raw_reply]).fetchone() == (text,)


def test_invalid_utf8_is_no_json() -> None:
    with pytest.raises(NotStrictJson):
        parse(storable(b'{"summary": "caf\xe9"}'))


def test_a_lone_surrogate_in_chat_content_can_be_stored() -> None:
    done, _ = met(bad.answer_json(bad.chat('{"summary": "\ud800"}')), CHAT)
    assert done.raw_reply == '{"summary": "\\ud800"}'


def test_gzip_is_unpacked() -> None:
    done, server = met(bad.zipped())
    assert done.raw_reply == DRAFT.decode()
    assert server.asked[0].headers["accept-encoding"] == "gzip"


def test_gzip_chat_is_unpacked() -> None:
    done, _ = met(bad.zipped(json.dumps(bad.chat("{}")).encode()), CHAT)
    assert done.raw_reply == "{}"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", DRAFT),
        ("gzip", gzip.compress(DRAFT)[:-9]),
        ("gzip", gzip.compress(DRAFT) + gzip.compress(b" and more")),
        ("br", DRAFT),
        ("gzip, gzip", gzip.compress(gzip.compress(DRAFT))),
    ],
)
def test_a_body_that_can_not_be_unpacked(encoding: str, body: bytes) -> None:
    done, server = met(bad.answer(200, body, {"Content-Encoding": encoding}))
    assert (outcome(done), done.raw_reply, len(server.asked)) == (("protocol", 200, 0), None, 1)


def test_a_reply_of_exactly_the_cap_is_whole() -> None:
    done, _ = met(bad.answer(200, b"x" * MIB))
    assert (done.raw_reply, done.finish_reason) == ("x" * MIB, None)


@pytest.mark.parametrize("settings", [PLAIN, CHAT])
@pytest.mark.parametrize("behaviour", [bad.endless, bad.answer(200, b"la " * 400_000), bad.zipped(b"la " * 400_000)])
def test_a_reply_above_the_cap_is_cut(behaviour: Behaviour, settings: Settings) -> None:
    done, server = met(behaviour, settings)
    assert (done.finish_reason, done.error, done.http_status) == ("too_large", None, 200)
    assert done.raw_reply == ("la " * HEAD)[:HEAD]
    assert len(server.asked) == 1


def test_a_gzip_bomb_is_not_unpacked_whole() -> None:
    with serve(bad.bomb(64)) as server:
        tracemalloc.start()
        done = ask(server.url)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert (done.finish_reason, done.raw_reply) == ("too_large", " " * HEAD)
    assert peak < 8 * 1024 * 1024


# Statuses.


@pytest.mark.parametrize("status", [201, 204, 301, 304, 400, 401, 404, 408, 413, 500, 501])
def test_any_other_status_is_an_error_whatever_its_body(status: int) -> None:
    body = b"" if status in (204, 304) else DRAFT
    done, server = met(bad.answer(status, body))
    assert (outcome(done), done.raw_reply) == ((f"http_{status}", status, 0), None)
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_statuses_that_say_no_model_answered_are_tried_three_times(status: int) -> None:
    done, server = met(bad.answer(status, DRAFT))
    assert (outcome(done), done.raw_reply) == ((f"http_{status}", status, 2), None)
    assert len(server.asked) == 3


def test_the_third_try_can_succeed() -> None:
    done, server = met(bad.in_turn(bad.answer(503), bad.hang_up, bad.answer()))
    assert (outcome(done), done.raw_reply) == ((None, 200, 2), DRAFT.decode())
    assert len({asked.body for asked in server.asked}) == 1


def test_retry_after_is_waited_for() -> None:
    done, server = met(bad.in_turn(bad.answer(429, b"", {"Retry-After": "1"}), bad.answer()))
    assert outcome(done) == (None, 200, 1)
    assert server.asked[1].at - server.asked[0].at >= 1
    assert done.latency_ms >= 1000


@pytest.mark.parametrize("retry_after", ["3600", "9" * 5000, "Fri, 31 Dec 2199 23:59:59 GMT"])
def test_a_wait_beyond_the_deadline_is_not_begun(retry_after: str) -> None:
    done, server = met(bad.answer(429, b"", {"Retry-After": retry_after}))
    assert (outcome(done), len(server.asked)) == (("http_429", 429, 0), 1)


def test_a_backoff_beyond_the_deadline_is_not_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "BACKOFF_S", 60.0)
    done, server = met(bad.answer(503), SHORT)
    assert (outcome(done), len(server.asked)) == (("http_503", 503, 0), 1)


NOW = datetime.datetime(2026, 11, 30, 12, 0, tzinfo=datetime.UTC)
NOON, LATER = "Mon, 30 Nov 2026 12:00:00 GMT", "Mon, 30 Nov 2026 12:00:30 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "²"}, None),
        ({"retry-after": "0"}, 0),
        ({"retry-after": " 7 "}, 7),
        ({"retry-after": LATER}, 30),
        ({"retry-after": LATER, "date": "junk"}, 30),
        ({"retry-after": LATER, "date": "Mon, 30 Nov 2026 12:00:20 GMT"}, 10),
        ({"retry-after": "Mon, 30 Nov 2026 12:00:30 -0000"}, 30),
        ({"retry-after": NOON, "date": LATER}, 0),
    ],
)
def test_retry_after_in_seconds(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, NOW) == seconds


# Time.


@pytest.mark.parametrize(("behaviour", "status"), [(bad.hang, None), (bad.drip(0.05), 200)])
def test_the_deadline_holds_over_all_reads_and_the_client_lives_on(behaviour: Behaviour, status: int | None) -> None:
    async def main(url: str) -> list[Completion]:
        async with new_client() as client:
            return [await complete("x", each, url=url, client=client) for each in (SHORT, PLAIN)]

    with serve(bad.in_turn(behaviour, bad.answer())) as server:
        late, good = asyncio.run(main(server.url))
    assert (outcome(late), late.raw_reply) == (("timeout", status, 0), None)
    assert late.latency_ms >= 300
    assert (outcome(good), good.raw_reply) == ((None, 200, 0), DRAFT.decode())


def test_the_deadline_holds_over_all_tries() -> None:
    done, server = met(bad.in_turn(bad.answer(503), bad.hang), SHORT)
    assert (outcome(done), done.raw_reply) == (("timeout", 503, 1), None)
    assert len(server.asked) == 2


def test_cancelling_passes_through() -> None:
    async def main(server: Server) -> None:
        async with new_client() as client:
            task = asyncio.create_task(complete("x", PLAIN, url=server.url, client=client))
            await asyncio.to_thread(server.arrived.wait)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with serve(bad.hang) as server:
        asyncio.run(main(server))


# Connections.


def test_a_refused_connection_is_tried_three_times() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: nobody else gets this port meanwhile
        done = ask(f"http://127.0.0.1:{taken.getsockname()[1]}/")
    assert (outcome(done), done.raw_reply) == (("connect", None, 2), None)


@pytest.mark.parametrize("behaviour", [bad.hang_up, bad.reset])
def test_a_connection_lost_before_an_answer_is_tried_again(behaviour: Behaviour) -> None:
    done, server = met(behaviour)
    assert (outcome(done), len(server.asked)) == (("connection_lost", None, 2), 3)
    done, server = met(bad.in_turn(behaviour, bad.answer()))
    assert (outcome(done), len(server.asked)) == ((None, 200, 1), 2)


@pytest.mark.parametrize("behaviour", [bad.reset_mid_body, bad.close_mid_body, bad.close_mid_chunk])
def test_a_connection_lost_in_mid_body_is_not(behaviour: Behaviour) -> None:
    done, server = met(behaviour)
    assert (outcome(done), done.raw_reply) == (("connection_lost", 200, 0), None)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "junk",
    [
        bad.garbage,
        bad.raw(b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n"),
        bad.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfive\r\nhello\r\n"),
        bad.raw(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n"),
    ],
)
def test_what_is_not_http(junk: Behaviour) -> None:
    done, server = met(junk)
    assert (done.error, done.raw_reply, done.retries, len(server.asked)) == ("protocol", None, 0, 1)


def test_one_connection_is_kept_and_an_idle_one_that_was_closed_is_no_error() -> None:
    async def main(url: str) -> list[Completion]:
        async with new_client() as client:
            return [await complete("x", PLAIN, url=url, client=client) for _ in range(20)]

    with serve(bad.answer()) as server:
        assert {each.error for each in asyncio.run(main(server.url))} == {None}
        assert (server.connections, len(server.asked)) == (1, 20)
    with serve(bad.answer_and_close) as server:
        assert {each.error for each in asyncio.run(main(server.url))} == {None}
        assert server.connections >= 20


def test_without_a_client_of_its_own() -> None:
    with serve(bad.answer()) as server:
        assert asyncio.run(complete("x", PLAIN, url=server.url)).error is None


def _self_signed(directory: Path) -> ssl.SSLContext:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    draft = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    draft = draft.serial_number(x509.random_serial_number())
    draft = draft.not_valid_before(now).not_valid_after(now + datetime.timedelta(hours=1))
    pem = draft.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM) + key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "server.pem").write_bytes(pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem")
    return context


def test_a_certificate_that_nobody_vouches_for(tmp_path: Path) -> None:
    with serve(bad.answer(), tls=_self_signed(tmp_path)) as server:
        done = ask(server.url)
        assert (outcome(done), server.asked) == (("tls", None, 0), [])


def test_tls_to_a_server_that_has_none() -> None:
    with serve(bad.answer()) as server:
        assert outcome(ask(server.url.replace("http:", "https:"))) == ("tls", None, 0)


# Where the request goes, and what goes with it.


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(status: int) -> None:
    with serve(bad.answer()) as elsewhere:
        done, server = met(bad.redirect(elsewhere.url, status))
        assert (outcome(done), done.raw_reply) == ((f"http_{status}", status, 0), None)
        assert (elsewhere.connections, len(server.asked)) == (0, 1)


@pytest.mark.parametrize("to", ["urn:x", "mailto:a@b", "http:x", "http://xn--/", "http://[", "http://\xe2\x98/", "//"])
def test_a_redirect_to_nowhere_is_a_redirect(to: str) -> None:
    done, _ = met(bad.raw(f"HTTP/1.1 302 F\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode("latin-1")))
    assert outcome(done) == ("http_302", 302, 0)


def test_proxies_in_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with serve(bad.answer(500)) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        done, _ = met(bad.answer())
        assert (done.error, proxy.connections) == (None, 0)


def test_netrc_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password secret\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    _, server = met(bad.answer())
    assert "authorization" not in server.asked[0].headers


def test_no_cookie_is_carried_from_one_call_to_the_next() -> None:
    async def main(url: str) -> None:
        async with new_client() as client:
            for _ in range(2):
                await complete("x", PLAIN, url=url, client=client)

    with serve(bad.answer(200, DRAFT, {"Set-Cookie": "ticket=T-1842"})) as server:
        asyncio.run(main(server.url))
        assert ["cookie" in asked.headers for asked in server.asked] == [False, False]


def test_key_and_credentials_travel_in_the_header_only(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    basic = "Basic " + base64.b64encode(b"me@x:pa:ss").decode()
    with serve(bad.answer(500)) as server:
        with_user = server.url.replace("//", "//me%40x:pa%3Ass@")
        done = [ask(server.url, key="sk-1"), ask(with_user), ask(with_user, key="sk-1")]
        assert [asked.headers["authorization"] for asked in server.asked] == [
            "Bearer sk-1",
            basic,
            "Bearer sk-1",
        ]
        assert {asked.target for asked in server.asked} == {"/v1/reply"}
    logged = [record.getMessage() for record in caplog.records if record.name == "httpx"]
    assert len(logged) == 3
    assert not any("pa%3Ass" in line or "pa:ss" in line or "sk-1" in line for line in [*logged, repr(done)])


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:80", "ftp://h/secret", "http://", "http://u:secret@h:x/", "http://xn--/", "/secret"]
)
def test_a_url_that_no_request_can_go_to(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        ask(url)
    assert "secret" not in refused.value.message + refused.value.hint


@pytest.mark.parametrize("key", ["secret\n", "secret key", "secret…", " "])
def test_a_key_that_no_header_can_carry(key: str) -> None:
    with pytest.raises(UsageError) as refused:
        ask("http://127.0.0.1:9/", key=key)
    assert "secret" not in refused.value.message + refused.value.hint


# The table of exceptions.


def _with_subclasses(root: type[BaseException]) -> set[type[BaseException]]:
    return {root}.union(*(_with_subclasses(child) for child in root.__subclasses__()))


def test_every_exception_of_a_transport_has_a_kind() -> None:
    ours = {each for each in _with_subclasses(httpx.TransportError) if each.__module__.startswith("httpx")}
    assert len(ours) >= 15
    assert ours - exchange.KINDS.keys() == set()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (httpx.TooManyRedirects("x"), "protocol"),
        (httpx.DecodingError("x"), "protocol"),
        (ConnectionResetError("x"), "connection_lost"),
        (ssl.SSLEOFError("x"), "tls"),
        (type("Own", (httpx.ReadTimeout,), {})("x"), "timeout"),
    ],
)
def test_other_exceptions_get_the_kind_of_their_base(error: Exception, kind: str) -> None:
    assert exchange.kind_of(error) == kind


# A team's own seam.

SEAM = """
import asyncio, time
import httpx

class ModelAsleep(Exception):
    pass

def answer(prompt):
    return {"prompt": prompt, "summary": "für"}

def text(prompt):
    return "plain " + prompt

async def awaited(prompt):
    await asyncio.sleep(0)
    return {"prompt": prompt}

def nan(prompt):
    return {"confidence": float("nan")}

def surrogate(prompt):
    return {"summary": "\\ud800"}

def large(prompt):
    return "ä" * 600_000

def nothing(prompt):
    return None

def unserialisable(prompt):
    return {"summary": {1, 2}}

def own_error(prompt):
    raise ModelAsleep(prompt)

async def own_error_awaited(prompt):
    raise ModelAsleep(prompt)

def leave(prompt):
    raise SystemExit(0)

def stop(prompt):
    raise StopIteration

def lost(prompt):
    raise httpx.ReadError("lost")

def status(prompt):
    raise httpx.HTTPStatusError("bad", request=None, response=httpx.Response(502, text='{"summary": "good"}'))

def hang(prompt):
    time.sleep(3600)

async def hang_awaited(prompt):
    await asyncio.sleep(3600)

not_a_function = 3
"""


@pytest.fixture
def seam(tmp_path: Path) -> Path:
    path = tmp_path / "seam.py"
    path.write_text(SEAM, encoding="utf-8")
    return path


def by_seam(path: Path, function: str, timeout_s: float = 20) -> Completion:
    async def main() -> Completion:
        return await load_seam(path, function, timeout_s=timeout_s)("hi")

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("function", "reply"),
    [
        ("answer", '{"prompt": "hi", "summary": "für"}'),
        ("text", "plain hi"),
        ("awaited", '{"prompt": "hi"}'),
        ("nan", '{"confidence": NaN}'),
        ("surrogate", '{"summary": "\\ud800"}'),
    ],
)
def test_a_seam_gives_a_reply(seam: Path, function: str, reply: str) -> None:
    done = by_seam(seam, function)
    assert done == Completion(reply, None, None, None, 0, done.latency_ms, None)


def test_a_seams_large_reply_is_cut(seam: Path) -> None:
    done = by_seam(seam, "large")
    assert (done.finish_reason, done.raw_reply) == ("too_large", "ä" * (HEAD // 2))


@pytest.mark.parametrize(
    ("function", "error", "status"),
    [
        ("nothing", "seam_TypeError", None),
        ("unserialisable", "seam_TypeError", None),
        ("own_error", "seam_ModelAsleep", None),
        ("own_error_awaited", "seam_ModelAsleep", None),
        ("leave", "seam_SystemExit", None),
        ("stop", "seam_RuntimeError", None),
        ("lost", "connection_lost", None),
        ("status", "http_502", 502),
    ],
)
def test_a_seam_that_fails(seam: Path, function: str, error: str, status: int | None) -> None:
    done = by_seam(seam, function)
    assert (done.error, done.raw_reply, done.http_status) == (error, None, status)


@pytest.mark.parametrize("function", ["hang", "hang_awaited"])
def test_a_seam_that_hangs_keeps_neither_the_call_nor_the_process(seam: Path, function: str) -> None:
    code = (
        "import asyncio, pathlib, sys\n"
        "from rehearsal.runner.provider import load_seam\n"
        "async def main():\n"
        "    done = await load_seam(pathlib.Path(sys.argv[1]), sys.argv[2], timeout_s=0.2)('hi')\n"
        "    print(done.error, done.raw_reply)\n"
        "asyncio.run(main())\n"
    )
    command = [sys.executable, "-c", code, str(seam), function]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert ended.stdout == "timeout None\n"


def test_more_seams_at_once_than_a_pool_has_threads(seam: Path) -> None:
    seam.write_text(
        "import threading\nall_here = threading.Barrier(64)\n"
        "def wait(prompt):\n    return str(all_here.wait(30) >= 0)\n"
    )

    async def main() -> set[str | None]:
        wait = load_seam(seam, "wait", timeout_s=30)
        return {done.raw_reply for done in await asyncio.gather(*(wait("hi") for _ in range(64)))}

    assert asyncio.run(main()) == {"True"}


def test_cancelling_a_seam_passes_through(seam: Path) -> None:
    async def main() -> None:
        with anyio.move_on_after(0.1) as scope:
            await load_seam(seam, "hang_awaited", timeout_s=3600)("hi")
        assert scope.cancelled_caught

    asyncio.run(main())


def test_a_seam_that_is_not_there(seam: Path, tmp_path: Path) -> None:
    for path, function, says in [
        (seam, "absent", "has no function absent"),
        (seam, "not_a_function", "has no function not_a_function"),
        (tmp_path / "absent.py", "answer", "FileNotFoundError"),
        (tmp_path / "notes.txt", "answer", "no Python file"),
    ]:
        with pytest.raises(UsageError, match=says):
            load_seam(path, function, timeout_s=1)
    seam.write_text("import a_package_that_is_not_here\n")
    with pytest.raises(UsageError, match="could not be imported: ModuleNotFoundError"):
        load_seam(seam, "answer", timeout_s=1)
