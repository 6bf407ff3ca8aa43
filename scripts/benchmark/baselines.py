"""What the runner is compared to: a loop as the article has it, and httpx without anything around it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
import time
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from benchmark.places import WORKERS


def article_loop(url: str, fixtures: list[dict[str, Any]], text: str, database: Path) -> float:
    """Attempts/s of the article's runner, in our words: one call after the other, a commit a row, substrings."""
    db = sqlite3.connect(database)
    db.execute(
        "CREATE TABLE eval_runs (id INTEGER PRIMARY KEY, fixture_id TEXT, template_version TEXT, prompt_hash TEXT,"
        " passed INTEGER, failure_reason TEXT, output_json TEXT, created_at TEXT)"
    )
    started = time.perf_counter()
    for fixture in fixtures:
        prompt = text.replace("{{ticket_body}}", fixture["ticket_body"])
        request = urllib.request.Request(url, json.dumps({"prompt": prompt}).encode())
        with urllib.request.urlopen(request, timeout=45) as answer:
            output = json.load(answer)
        said = json.dumps(output).lower()
        reasons = [f"missing_key:{key}" for key in fixture["must_include_keys"] if key not in output]
        reasons += [f"forbidden:{words}" for words in fixture["forbidden_substrings"] if words.lower() in said]
        row = (
            fixture["id"],
            fixture["template_version"],
            hashlib.sha256(prompt.encode()).hexdigest(),
            int(not reasons),
            reasons[-1] if reasons else None,
            json.dumps(output),
            datetime.now(UTC).isoformat(),
        )
        db.execute("INSERT INTO eval_runs VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)", row)
        db.commit()
    taken = time.perf_counter() - started
    db.close()
    return len(fixtures) / taken


def bare_httpx(url: str, fixtures: list[dict[str, Any]], text: str) -> tuple[float, float]:
    """Attempts/s and CPU ms an attempt of 64 httpx clients of one connection each: no store, no verdict."""
    prompts = iter([text.replace("{{ticket_body}}", fixture["ticket_body"]) for fixture in fixtures])
    started, cpu = time.perf_counter(), time.process_time()
    asyncio.run(_ask_all(url, prompts))
    taken, cpu = time.perf_counter() - started, time.process_time() - cpu
    return len(fixtures) / taken, cpu / len(fixtures) * 1000


async def _ask_all(url: str, prompts: Iterator[str]) -> None:
    limits = httpx.Limits(max_connections=1, max_keepalive_connections=1)

    async def worker() -> None:
        async with httpx.AsyncClient(trust_env=False, verify=False, limits=limits) as client:
            for prompt in prompts:
                answer = await client.post(url, json={"prompt": prompt})
                answer.raise_for_status()

    await asyncio.gather(*(worker() for _ in range(WORKERS)))
