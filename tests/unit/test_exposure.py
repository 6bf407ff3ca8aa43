from __future__ import annotations

import base64
import hashlib
from typing import Any

import pytest

from rehearsal.boxes.exposure import CANARY_NAME, WRITTEN_BY_THE_RUN, Exposure, examine, in_text
from rehearsal.runner.__main__ import EVENTS_NAME, LOCK_NAME, LOG_NAME, PID_NAME, SNAPSHOT_NAME
from rehearsal.runner.store import DB_NAME

ALLOWED = {"MODEL_URL": "http://m/", "HOME": "/box"}
SECRETS = {CANARY_NAME: "canary-value", "MODEL_KEY": "sesame-open"}
SYNCED = {"plan.json": "aa", "fixtures/T-1.json": "bb"}


def sha(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def digests(values: dict[str, str]) -> dict[str, str]:
    return {name: sha(value) for name, value in values.items()}


def process(**changes: Any) -> dict[str, Any]:
    return {"pid": 7, "arguments": ["python", "run"], "environment": digests(ALLOWED), **changes}


def look(
    started: dict[str, Any] | None = None, *reports: Any, files: dict[str, str] | None = None, **changes: Any
) -> Exposure:
    begun = {"environment": digests(ALLOWED), "arguments": ["python", "run"], **(started or {})}
    last = {"processes": [process(**changes)], "files": {**SYNCED, "events.jsonl": "cc"} if files is None else files}
    return examine(begun, [*reports, last], allowed=ALLOWED, synced=SYNCED, secrets=SECRETS)


def test_a_box_that_holds_what_it_may_shows_nothing_beyond() -> None:
    found = look()
    assert found == Exposure(("HOME", "MODEL_URL"), 1, 3, ())
    assert found.to_json()["canary"] == "not found"


def test_what_a_run_writes_is_known() -> None:
    written = {DB_NAME, f"{DB_NAME}-wal", f"{DB_NAME}-shm", EVENTS_NAME, LOCK_NAME, LOG_NAME, PID_NAME, SNAPSHOT_NAME}
    assert written <= WRITTEN_BY_THE_RUN
    assert look(files={**SYNCED, **dict.fromkeys(written, "x")}).beyond == ()


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (look({"environment": {**digests(ALLOWED), "MODEL_KEY": "x"}}), "environment holds MODEL_KEY"),
        (look({"environment": digests({"HOME": "/box"})}), "lacks or changes MODEL_URL"),
        (look({"environment": digests({**ALLOWED, "HOME": "/root"})}), "lacks or changes HOME"),
        (look({"environment": None}), "lacks or changes MODEL_URL"),
        (look({"arguments": ["run", "--key=sesame-open"]}), "arguments holds the value of MODEL_KEY"),
        (look(environment={"AWS_KEY": "x"}), "process 7 holds AWS_KEY"),
        (look(environment={"HOME": sha("canary-value")}), f"process 7 holds {CANARY_NAME}"),
        (look(arguments=["x", "canary-value"]), f"arguments holds the value of {CANARY_NAME}"),
        (look(None, {"processes": [process(environment={"EARLY": "x"})], "files": {}}), "process 7 holds EARLY"),
        (look(files={**SYNCED, ".ssh/id": "x"}), "the file .ssh/id was not sent"),
        (look(files={**SYNCED, "plan.json": "x"}), "plan.json is not what was sent"),
        (look(files={"plan.json": "aa"}), "fixtures/T-1.json is missing"),
        (look(files={}), "plan.json is missing"),
    ],
)
def test_anything_beyond_is_named_and_no_value_is_repeated(found: Exposure, words: str) -> None:
    assert any(words in line for line in found.beyond), found.beyond
    assert found.to_json()["canary"] == "see beyond"
    assert not [line for line in found.beyond for secret in SECRETS.values() if secret in line]


def test_no_inspection_is_no_clean_bill() -> None:
    begun = {"environment": digests(ALLOWED), "arguments": []}
    assert examine(begun, [], allowed=ALLOWED, synced=SYNCED, secrets=SECRETS).beyond


def test_a_host_without_proc_is_said_to_be_one() -> None:
    found = look(None, {"processes": None, "files": {}})
    assert (found.processes, found.beyond) == (None, ())


@pytest.mark.parametrize("report", [None, [], {"processes": [None, 7, {"environment": {"A": []}, "pid": []}]}])
def test_a_report_that_makes_no_sense_is_looked_through_all_the_same(report: Any) -> None:
    examine({}, [report], allowed=ALLOWED, synced=SYNCED, secrets=SECRETS)


KEY = "sk/open+sesame=&1"


@pytest.mark.parametrize(
    "spelled",
    [
        KEY,
        KEY.replace("/", "\\/"),
        "sk%2Fopen%2Bsesame%3D%261",
        "sk/open+sesame=&amp;1",
        base64.b64encode(KEY.encode()).decode(),
    ],
)
def test_a_value_is_found_as_the_usual_encodings_have_it(spelled: str) -> None:
    assert in_text("a row", f"..{spelled}..", {"MODEL_KEY": KEY}) == ["a row holds the value of MODEL_KEY"]
    assert in_text("a row", f"..{spelled[:-3]}..", {"MODEL_KEY": KEY}) == []
