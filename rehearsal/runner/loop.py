"""The run itself: every missing attempt once, a row each, an event each."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from rehearsal.runner import plan as plans
from rehearsal.runner.completion import Completion
from rehearsal.runner.plan import Entry, Plan
from rehearsal.runner.provider import Complete, complete, load_seam, new_client
from rehearsal.runner.store import DB_NAME, Store
from rehearsal.runner.template import Template
from rehearsal.runner.verdict import judge


class Events:
    """A log of one JSON object a line, written so that a reader at any offset sees whole lines. A context manager."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def __enter__(self) -> Events:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._handle)

    def write(self, event: str, **fields: Any) -> None:
        """Append one event, in one write."""
        os.write(self._handle, json.dumps({"event": event, **fields}).encode() + b"\n")


def run(directory: Path, events: Events, *, url: str) -> str:
    """Run what `directory`'s plan expects and has no row yet; return the sealed run's outcome.

    `directory` holds the plan and what it names, as synced; rows go to `eval_runs.db` beside them. `url` is the
    model's endpoint as this host reaches it. VoidRun on any digest mismatch, before the first call.
    """
    plan = plans.load(directory)
    template = plans.verify(plan, directory)
    with Store(directory / DB_NAME, plan) as store:
        outcome = store.sealed()
        if outcome is None:
            asyncio.run(_run_missing(_Work(plan, template, directory, store, events, url)))
            outcome = store.seal()
        events.write("end", outcome=outcome)
    return outcome


class _Work:
    """What the workers share: the attempts still to make, and where their rows and events go."""

    def __init__(self, plan: Plan, template: Template, directory: Path, store: Store, events: Events, url: str) -> None:
        self.plan = plan
        self.template = template
        self.directory = directory
        self.store = store
        self.events = events
        self.url = url
        self.done = store.done()
        self.pending: Iterator[tuple[Entry, int]] = store.missing()
        self.seam = self._load_seam()

    def _load_seam(self) -> Complete | None:
        seam = self.plan.seam
        if seam is None:
            return None
        return load_seam(self.directory / seam.file, seam.function, timeout_s=self.template.settings.timeout_s)

    async def attempt(self, entry: Entry, number: int, ask: Complete) -> None:
        fixture = plans.read_fixture(entry, self.directory)
        completion = await ask(self.template.render(fixture.ticket_body))
        verdict = judge(fixture, completion, unwrap_fence=self.template.settings.unwrap_fence)
        self.store.insert(entry.id, number, self.template.prompt_hash(fixture.ticket_body), completion, verdict)
        self.done += 1
        self.events.write(
            "attempt",
            fixture_id=entry.id,
            attempt=number,
            outcome=verdict.outcome,
            reason=verdict.failure_reason,
            done=self.done,
            expected=self.plan.expected,
        )


async def _run_missing(work: _Work) -> None:
    workers = min(work.plan.concurrency, work.plan.expected)
    await asyncio.gather(*(_worker(work) for _ in range(workers)))


async def _worker(work: _Work) -> None:
    # One client a worker, one connection a client: a shared pool collapses (115/s against 820/s at 64 workers).
    async with new_client() as client:

        async def ask(prompt: str) -> Completion:
            return await complete(prompt, work.template.settings, url=work.url, client=client)

        for entry, number in work.pending:
            await work.attempt(entry, number, work.seam or ask)
