"""What a box could have seen: its processes' environment and arguments, and its directory, held against an allow-list.

The laptop plants a canary in its own environment, which must turn up nowhere. A box that lies can hide what it
was given, but not make the laptop send more than what is listed here.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote, quote_plus

CANARY_NAME = "REHEARSAL_CANARY"

# What a run writes beside what was synced.
WRITTEN_BY_THE_RUN = frozenset(
    {
        "box.env",
        "run.pid",
        "run.lock",
        "run.log",
        "events.jsonl",
        "eval_runs.db",
        "eval_runs.db-wal",
        "eval_runs.db-shm",
        "eval_runs.db-journal",
        "eval_runs.snapshot.db",
    }
)


@dataclass(frozen=True)
class Exposure:
    """What was looked through, and what was beyond the allow-list (empty: nothing).

    environment   names of the run's own environment
    processes     how many processes of the box were looked through; None where the host has no /proc
    files         how many files
    """

    environment: tuple[str, ...]
    processes: int | None
    files: int
    beyond: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """For the receipt."""
        return {
            "environment": list(self.environment),
            "processes": self.processes,
            "files": self.files,
            "canary": "not found" if not self.beyond else "see beyond",
            "beyond_the_allow_list": list(self.beyond),
        }


def examine(
    started: Mapping[str, Any],
    inspections: Iterable[Mapping[str, Any]],
    *,
    allowed: Mapping[str, str],
    synced: Mapping[str, str],
    secrets: Mapping[str, str],
) -> Exposure:
    """Hold what the box reported against what it may have.

    started      the run's own first event: `environment` (name → sha256 of the value) and `arguments`
    inspections  reports of the runner's `inspect`, taken while the run went on and after it
    allowed      the run's environment, exactly
    synced       relative name → sha256 of every file that was sent
    secrets      name → value of the canary and of the laptop's secrets; values are looked for, never written down
    """
    beyond: list[str] = []
    digests = {_digest(value): name for name, value in secrets.items()}
    environment = _mapping(started.get("environment"))
    wanted = {name: _digest(value) for name, value in allowed.items()}
    beyond += [f"the run's environment holds {name}" for name in environment if name not in wanted]
    beyond += [
        f"the run's environment lacks or changes {name}" for name in wanted if environment.get(name) != wanted[name]
    ]
    beyond += _in_arguments(started.get("arguments"), secrets)
    processes: set[Any] | None = set()
    files: Mapping[str, Any] = {}
    for report in inspections:
        files = _mapping(_mapping(report).get("files"))
        listed = _mapping(report).get("processes")
        if not isinstance(listed, list):
            processes = None
            continue
        for process in map(_mapping, listed):
            if processes is not None:
                processes.add(str(process.get("pid")))
            held = _mapping(process.get("environment"))
            beyond += [f"process {process.get('pid')} holds {name}" for name in held if name not in wanted]
            beyond += [
                f"process {process.get('pid')} holds {digests[v]}" for v in map(str, held.values()) if v in digests
            ]
            beyond += _in_arguments(process.get("arguments"), secrets)
    for name, digest in files.items():
        if name in synced and digest != synced[name]:
            beyond.append(f"the file {name} is not what was sent")
        if name not in synced and name not in WRITTEN_BY_THE_RUN:
            beyond.append(f"the file {name} was not sent")
    beyond += [f"the file {name} is missing" for name in synced if name not in files]
    count = None if processes is None else len(processes)
    return Exposure(tuple(sorted(environment)), count, len(files), tuple(dict.fromkeys(beyond)))


def in_text(what: str, text: str, secrets: Mapping[str, str]) -> list[str]:
    """Which of `secrets` (name → value) stand in `text`, plain or in a usual encoding, in words for `beyond`."""
    return [
        f"{what} holds the value of {name}"
        for name, value in secrets.items()
        if any(spelling in text for spelling in _spellings(value))
    ]


@lru_cache(maxsize=1024)
def _spellings(value: str) -> frozenset[str]:
    in_json = json.dumps(value)[1:-1]
    raw = value.encode(errors="surrogateescape")
    encoded = {quote(raw, safe=""), quote_plus(raw), html.escape(value), base64.b64encode(raw).decode().rstrip("=")}
    return frozenset({value, in_json, in_json.replace("/", "\\/"), *encoded})


def _in_arguments(arguments: Any, secrets: Mapping[str, str]) -> list[str]:
    text = "\0".join(map(str, arguments)) if isinstance(arguments, list) else ""
    return in_text("a process's arguments", text, secrets)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _digest(value: str) -> str:
    return hashlib.sha256(value.encode(errors="surrogateescape")).hexdigest()
