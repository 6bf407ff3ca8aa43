"""The provider seam: one function from prompt to reply, the same on the box and in the application.

`wire` knows what models say and `exchange` how HTTP fails; here they meet. Nothing here raises for what a
model or a network does: that is what `Completion.error` is for. A reply is never asked for again because
of what it says, and nothing is cached.
"""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import json
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import httpx

from rehearsal.runner.completion import Completion
from rehearsal.runner.errors import UsageError
from rehearsal.runner.exchange import MAX_BODY_BYTES, endpoint, kind_of, new_client, post
from rehearsal.runner.template import Settings
from rehearsal.runner.wire import Reply, read_reply, request_body, storable

__all__ = ["KEPT_BYTES", "Complete", "Completion", "complete", "load_seam", "new_client"]

# Of a reply above the cap so much is kept, for a person to see what it was.
KEPT_BYTES = 64 * 1024


Complete = Callable[[str], Awaitable[Completion]]


async def complete(
    prompt: str,
    settings: Settings,
    *,
    url: str,
    key: str | None = None,
    client: httpx.AsyncClient | None = None,
) -> Completion:
    """Ask the model at `url` for one reply to `prompt`, and say what came of it.

    `key` goes into `Authorization: Bearer`. `client` is one from `new_client`, used by one caller at a time;
    without it a connection is made for this call alone. `settings.timeout_s` bounds everything: see
    `exchange.post`, also for what is tried again. Kinds in `error`: `timeout`, `connect`, `tls`,
    `connection_lost`, `protocol`, `envelope` (a chat answer that is none), `http_<status>` (any but 200).

    Raises UsageError for a URL or key that no request can carry, ValueError for settings that none can.
    """
    if client is None:
        async with new_client() as own:
            return await complete(prompt, settings, url=url, key=key, client=own)
    to, content = endpoint(url, key), request_body(prompt, settings)
    started = time.perf_counter()
    exchange = await post(client, to, content, settings.timeout_s)
    reply, error = None, exchange.error
    if error is None:
        reply = _too_large(exchange.body) or read_reply(exchange.body, settings.api)
        error = "envelope" if reply is None else None
    return _completion(started, reply, error, exchange.status, exchange.retries)


def load_seam(path: Path, function: str, *, timeout_s: float) -> Complete:
    """A team's own provider: `function` in the file at `path`, from prompt to a dict (the article) or a str.

    A plain function runs in a thread of its own, a coroutine function is awaited; both have `timeout_s`
    seconds. A dict becomes JSON. What it raises becomes `seam_<class name>`; httpx's own exceptions
    become the kinds that `complete` has. Nothing is tried again: that is the team's business.

    Raises UsageError where the file can't be imported or has no such function.
    """
    ask = _import(path, function)

    async def complete_by_seam(prompt: str) -> Completion:
        started = time.perf_counter()
        reply: Reply | None = None
        error: str | None = "timeout"
        status: int | None = None
        with anyio.move_on_after(timeout_s):
            try:
                given = await (ask(prompt) if inspect.iscoroutinefunction(ask) else _in_thread(ask, prompt))
                reply, error = _given(given), None
            except httpx.HTTPStatusError as failed:
                status = failed.response.status_code
                error = f"http_{status}"
            except httpx.RequestError as failed:
                error = kind_of(failed)
            except (Exception, SystemExit) as failed:
                error = f"seam_{type(failed).__name__}"
        return _completion(started, reply, error, status, 0)

    return complete_by_seam


def _completion(started: float, reply: Reply | None, error: str | None, status: int | None, retries: int) -> Completion:
    latency_ms = round((time.perf_counter() - started) * 1000)
    if reply is None:
        return Completion(None, None, None, status, retries, latency_ms, error)
    return Completion(reply.text, reply.finish_reason, reply.model, status, retries, latency_ms, error)


def _too_large(body: bytes) -> Reply | None:
    return Reply(storable(body[:KEPT_BYTES]), "too_large") if len(body) > MAX_BODY_BYTES else None


def _given(value: object) -> Reply:
    if isinstance(value, dict):
        value = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str):
        raise TypeError("a seam returns a dict or a str")
    text = storable(value)
    return _too_large(text.encode()) or Reply(text)


def _import(path: Path, function: str) -> Callable[[str], Any]:
    spec = importlib.util.spec_from_file_location("rehearsal_seam", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"the seam {path.name} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"the seam {path.name} could not be imported: {type(error).__name__}: {error}") from error
    ask: Callable[[str], Any] | None = getattr(module, function, None)
    if not callable(ask):
        raise UsageError(f"the seam {path.name} has no function {function}")
    return ask


async def _in_thread(ask: Callable[[str], Any], prompt: str) -> object:
    # A daemon, not a pool's thread: one that hangs for ever must not keep the process from ending.
    loop = asyncio.get_running_loop()
    future: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()

    def settle(outcome: tuple[object, BaseException | None]) -> None:
        if not future.done():
            future.set_result(outcome)

    def run() -> None:
        outcome: tuple[object, BaseException | None]
        try:
            outcome = (ask(prompt), None)
        except BaseException as error:
            outcome = (None, error)
        try:
            loop.call_soon_threadsafe(settle, outcome)
        except RuntimeError:  # the loop has ended meanwhile: nobody waits any more
            pass

    threading.Thread(target=run, name="rehearsal-seam", daemon=True).start()
    value, error = await future
    if error is not None:
        raise error
    return value
