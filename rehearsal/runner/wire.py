"""What goes over the wire to a model and how what comes back is read: pure, no I/O.

Two shapes: `plain`, the article's own, and `openai-chat`, chat completions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

from rehearsal.runner.strict_json import Json, NotStrictJson, parse
from rehearsal.runner.template import Settings

# A name from a server goes into a row and onto a screen: more than this is no name.
MAX_WORD_CHARS = 200

# Non-ASCII is escaped, so that a lone surrogate in a ticket can travel; `default` takes any mapping.
_encode = json.JSONEncoder(allow_nan=False, default=dict).encode


@dataclass(frozen=True)
class Reply:
    """What the model said, as a row can hold it; `finish_reason` and `model` as the server told them."""

    text: str
    finish_reason: str | None = None
    model: str | None = None


def storable(raw: str | bytes) -> str:
    r"""Text that SQLite takes, that reads back the same and so is judged the same later.

    An invalid UTF-8 byte becomes `\xff`, which no JSON string may hold: such a reply is not JSON. A lone
    surrogate becomes `\ud800`, its own JSON escape.
    """
    if isinstance(raw, str):
        raw = raw.encode("utf-8", "backslashreplace")
    return raw.decode("utf-8", "backslashreplace")


def request_body(prompt: str, settings: Settings) -> bytes:
    """The JSON to POST, as ASCII bytes; a setting that is None is left out.

    Raises ValueError for an `api` that doesn't exist and for a number that JSON can't hold.
    """
    if settings.api == "plain":
        return _encode({"prompt": prompt}).encode()
    if settings.api != "openai-chat":
        raise ValueError(f"no such api: {settings.api}")
    system = [] if settings.system is None else [{"role": "system", "content": settings.system}]
    optional = {
        "model": settings.model,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "seed": settings.seed,
        "max_tokens": settings.max_tokens,
        "response_format": settings.response_format,
    }
    body: dict[str, Any] = {"messages": [*system, {"role": "user", "content": prompt}], "stream": False}
    body.update((name, value) for name, value in optional.items() if value is not None)
    return _encode(body).encode()


def read_reply(body: bytes, api: str) -> Reply | None:
    """The reply in the body of a 200, or None where a chat envelope is not one.

    `plain`: the body is the reply. `openai-chat`: the content of the one choice. Null content, a refusal
    or a tool call is the empty reply: nothing that an agent could be shown.
    """
    if api == "plain":
        return Reply(storable(body))
    try:
        envelope = parse(storable(body))
    except NotStrictJson:
        return None
    choices = envelope.get("choices") if isinstance(envelope, dict) else None
    if not (isinstance(envelope, dict) and isinstance(choices, list) and len(choices) == 1):
        return None
    choice = choices[0]
    message = choice.get("message") if isinstance(choice, dict) else None
    if not (isinstance(choice, dict) and isinstance(message, dict)):
        return None
    content = message.get("content")
    if content is not None and not isinstance(content, str):
        return None
    silent = any(message.get(key) for key in ("refusal", "tool_calls", "function_call"))
    text = "" if silent or content is None else storable(content)
    return Reply(text, _word(choice.get("finish_reason")) or "missing", _word(envelope.get("model")))


def _word(value: Json) -> str | None:
    return storable(value[:MAX_WORD_CHARS]) if isinstance(value, str) else None


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds that a `Retry-After` asks for (RFC 9110, 10.2.3), or None where there is none to be understood.

    A date is taken against the answer's own `Date` where it has one, so that a clock that is hours off
    (theirs or ours) changes nothing; `now` is the fallback.
    """
    value = headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    until = _http_date(value)
    if until is None:
        return None
    return max(0.0, (until - (_http_date(headers.get("date", "")) or now)).total_seconds())


def _http_date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=timezone.utc)
