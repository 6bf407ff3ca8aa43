"""What one call to the model came to: a value that the store keeps and the verdict reads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Completion:
    """What one call to the model came to; `error` is None exactly when a reply was received.

    raw_reply      the reply's text as it came, or None where none came; '' for null content, a refusal, a
                   tool call
    finish_reason  chat: the server's word, 'missing' where it gave none; 'too_large' where this seam stopped
                   reading; None for `plain`
    model          the model's name as the server returned it, or None
    http_status    of the last answer, or None where there was none
    retries        how many tries came before the last one
    latency_ms     whole milliseconds from the first byte sent to the end, all tries and waits included
    error          None, or the kind in `provider:<kind>`: 'timeout', 'connect', 'http_502', …
    """

    raw_reply: str | None
    finish_reason: str | None
    model: str | None
    http_status: int | None
    retries: int
    latency_ms: int
    error: str | None
