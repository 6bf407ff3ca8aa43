"""The matcher: what looking for phrases costs."""

from __future__ import annotations

import json
import statistics
import time

from benchmark.figures import Figure, Skipped
from rehearsal.runner.matcher import Matcher
from rehearsal.runner.strict_json import Json

_SENTENCE = "Thank you for writing; I can see both payments on your order and have passed them on to our billing team. "


def cost(*, quick: bool) -> list[Figure | Skipped]:
    """A usual reply against a usual fixture, and a very large one against very many phrases."""
    small = _median_s(reply_bytes=2_000, phrases=50, times=20 if quick else 200)
    large = _median_s(reply_bytes=1_000_000, phrases=500, times=1 if quick else 3)
    return [
        Figure("matcher: 2 KB, 50 phrases", small * 1e6, "µs", note="nothing found; clean text"),
        Figure("matcher: 1 MB, 500 phrases", large * 1e3, "ms", note="nothing found; clean text"),
    ]


def _median_s(*, reply_bytes: int, phrases: int, times: int) -> float:
    matcher = Matcher([f"refund number {number} has been issued" for number in range(phrases)])
    text = (_SENTENCE * (reply_bytes // len(_SENTENCE) + 1))[: reply_bytes - 60]
    value: Json = {"summary": "charged twice", "suggested_reply": text, "confidence": 0.8}
    raw = json.dumps(value)
    taken = []
    for _ in range(times + 1):  # the first one fills the tables
        started = time.perf_counter()
        if matcher.find(raw, value):
            raise RuntimeError("a phrase was found that is not there")
        taken.append(time.perf_counter() - started)
    return statistics.median(taken[1:])
