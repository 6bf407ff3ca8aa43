"""A small run as it lies on a box, for the tests of what runs it and of what proves it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rehearsal.evidence.artifact import read
from rehearsal.evidence.judgement import Judgement, judge_again
from rehearsal.runner import corpus, plan, template
from rehearsal.runner.completion import Completion
from rehearsal.runner.corpus import Fixture
from rehearsal.runner.plan import Plan
from rehearsal.runner.snapshot import snapshot
from rehearsal.runner.store import DB_NAME, Store
from rehearsal.runner.template import Template
from rehearsal.runner.verdict import judge

GOOD = json.dumps({"summary": "Charged twice.", "suggested_reply": "We are looking into it.", "confidence": 0.7})
BAD = GOOD.replace("We are looking into it.", "Your refund has been issued.")


def fixture_value(fixture_id: str = "T-1", **changes: Any) -> dict[str, Any]:
    return {
        "id": fixture_id,
        "template_version": "reply-v3",
        "ticket_body": f"charged twice!! ({fixture_id})",
        "must_include_keys": ["summary", "suggested_reply", "confidence"],
        "forbidden_substrings": ["refund has been issued"],
        **changes,
    }


def fixture(**changes: Any) -> Fixture:
    return Fixture.from_bytes(json.dumps(fixture_value(**changes)).encode(), "t.json")


def replied(text: str | None = GOOD, *, error: str | None = None, **changes: Any) -> Completion:
    values = {"finish_reason": None, "model": None, "http_status": 200, "retries": 0, "latency_ms": 3, **changes}
    return Completion(raw_reply=None if error else text, error=error, **values)


def lay_out(folder: Path, count: int = 2, *, repeat: int = 1, run_id: str = "run-1", **settings: Any) -> Plan:
    """`folder` as a box has it after a sync."""
    (folder / "fixtures").mkdir(parents=True, exist_ok=True)
    (folder / "prompts").mkdir(exist_ok=True)
    for number in range(1, count + 1):
        text = json.dumps(fixture_value(f"T-{number}"))
        (folder / "fixtures" / f"T-{number}.json").write_text(text)
    (folder / "prompts" / "reply-v3.txt").write_text("Draft a reply.\n{{ticket_body}}\n")
    if settings:
        lines = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
        (folder / "prompts" / "reply-v3.toml").write_text(lines)
    planned = plan.preregister(
        template.load(folder / "prompts", "reply-v3"),
        corpus.load(folder / "fixtures", "reply-v3"),
        run_id=run_id,
        created_at="2026-11-30T09:00:00+00:00",
        repeat=repeat,
        concurrency=2,
        endpoint="http://127.0.0.1/v1/reply",
    )
    (folder / "plan.json").write_text(planned.to_json())
    return planned


def loaded(folder: Path, planned: Plan) -> tuple[Template, dict[str, Fixture]]:
    """What a judge needs beside the rows."""
    return plan.verify(planned, folder), {e.id: plan.read_fixture(e, folder) for e in planned.entries}


def fill(store: Store, folder: Path, planned: Plan, completions: list[Completion]) -> None:
    """Judge and write these completions as the run's next attempts."""
    pinned, fixtures = loaded(folder, planned)
    for (entry, number), completion in zip(list(store.missing()), completions, strict=False):
        found = fixtures[entry.id]
        verdict = judge(found, completion, unwrap_fence=pinned.settings.unwrap_fence)
        store.insert(entry.id, number, pinned.prompt_hash(found.ticket_body), completion, verdict)


def stored(folder: Path, planned: Plan, completions: list[Completion]) -> Path:
    """The snapshot of a run with these completions, sealed where that is all of them."""
    with Store(folder / DB_NAME, planned) as store:
        fill(store, folder, planned, completions)
        if store.done() == planned.expected:
            store.seal()
    snapshot(folder / DB_NAME, folder / "pulled.db")
    return folder / "pulled.db"


def judged(folder: Path, planned: Plan, pulled: Path) -> Judgement:
    """What the laptop makes of it."""
    return judge_again(read(pulled, planned), planned, *loaded(folder, planned))
