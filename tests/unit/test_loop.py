from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from rehearsal.runner import plan as plans
from rehearsal.runner.__main__ import EVENTS_NAME
from rehearsal.runner.errors import VoidRun
from rehearsal.runner.loop import Events, run
from rehearsal.runner.store import DB_NAME, Store
from tests.contract.misbehaving import Asked, answer, in_turn, serve
from tests.unit.runs import BAD, GOOD, fill, lay_out, replied


def go(folder: Path, url: str) -> str:
    with Events(folder / EVENTS_NAME) as events:
        return run(folder, events, url=url)


def events(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / EVENTS_NAME).read_text().splitlines()]


def test_every_attempt_is_asked_once_with_the_rendered_prompt(tmp_path: Path) -> None:
    plan = lay_out(tmp_path, 3, repeat=2)
    with serve(answer(200, GOOD.encode())) as server:
        assert go(tmp_path, server.url) == "pass"
    prompts = sorted(asked.json()["prompt"] for asked in server.asked)
    assert prompts == sorted(f"Draft a reply.\ncharged twice!! (T-{n})\n" for n in (1, 2, 3, 1, 2, 3))
    assert server.connections <= plan.concurrency
    *attempts, end = events(tmp_path)
    assert end == {"event": "end", "outcome": "pass"}
    assert {(event["fixture_id"], event["attempt"]) for event in attempts} == {
        (entry.id, number) for entry, number in plan.attempts()
    }
    assert [event["done"] for event in attempts] == [1, 2, 3, 4, 5, 6]


def test_only_what_is_missing_is_asked_and_a_red_from_before_stays(tmp_path: Path) -> None:
    plan = lay_out(tmp_path, 3)
    with Store(tmp_path / DB_NAME, plan) as store:
        fill(store, tmp_path, plan, [replied(BAD)])
    with serve(answer(200, GOOD.encode())) as server:
        assert go(tmp_path, server.url) == "fail"
    assert sorted(asked.json()["prompt"][-5:-2] for asked in server.asked) == ["T-2", "T-3"]


def test_a_sealed_run_is_not_asked_again(tmp_path: Path) -> None:
    lay_out(tmp_path)
    with serve(answer(200, BAD.encode())) as server:
        assert go(tmp_path, server.url) == "fail"
    with serve(answer(200, GOOD.encode())) as server:
        assert go(tmp_path, server.url) == "fail"
        assert server.asked == []


def test_a_model_that_fails_is_an_error_row_and_never_a_fail(tmp_path: Path) -> None:
    lay_out(tmp_path)
    with serve(in_turn(answer(500, GOOD.encode()), answer(200, GOOD.encode()))) as server:
        assert go(tmp_path, server.url) == "error"
    with closing(sqlite3.connect(tmp_path / DB_NAME)) as connection:
        rows = dict(connection.execute("SELECT failure_reason, outcome FROM eval_runs WHERE attempt = 1"))
    assert rows == {None: "pass", "provider:http_500": "error"}


def test_nothing_is_asked_where_a_digest_is_wrong(tmp_path: Path) -> None:
    lay_out(tmp_path)
    (tmp_path / "fixtures" / "T-2.json").write_text("{}")
    with serve(answer()) as server, pytest.raises(VoidRun, match="T-2"):
        go(tmp_path, server.url)
    assert server.asked == []
    assert not (tmp_path / DB_NAME).exists()


def test_a_fixture_that_changes_during_the_run_stops_it_without_a_seal(tmp_path: Path) -> None:
    plan = lay_out(tmp_path, 6)

    async def meddle(_asked: Asked, writer: asyncio.StreamWriter) -> None:
        (tmp_path / "fixtures" / "T-6.json").write_text("{}")
        await answer(200, GOOD.encode())(_asked, writer)

    with serve(meddle) as server, pytest.raises(VoidRun, match="T-6"):
        go(tmp_path, server.url)
    with Store(tmp_path / DB_NAME, plan) as store:
        assert store.sealed() is None
        assert 0 < store.done() < plan.expected


def test_a_teams_own_seam_is_called_instead(tmp_path: Path) -> None:
    plan = lay_out(tmp_path)
    source = f"def draft(prompt):\n    assert prompt.startswith('Draft')\n    return {json.loads(GOOD)!r}\n"
    (tmp_path / "seam.py").write_text(source)
    digest = plans._sha256(tmp_path / "seam.py")
    value = json.loads(plan.to_json())
    value["seam"] = {"file": "seam.py", "function": "draft", "sha256": digest}
    value["policy_hash"] = plans.policy_hash(digest)
    (tmp_path / "plan.json").write_text(json.dumps(value))
    assert go(tmp_path, "http://127.0.0.1:9/nobody") == "pass"
    (tmp_path / "seam.py").write_text(source + "\n")
    with pytest.raises(VoidRun, match="seam"):
        go(tmp_path, "http://127.0.0.1:9/nobody")
