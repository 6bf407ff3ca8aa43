"""The preregistration: what will be run, written down with every digest before any host exists."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rehearsal.runner import template as templates
from rehearsal.runner.corpus import Corpus, Fixture, corpus_hash
from rehearsal.runner.errors import InvalidInput, Issue, VoidRun
from rehearsal.runner.strict_json import NotStrictJson, parse
from rehearsal.runner.template import Template
from rehearsal.runner.verdict import policy_hash

PLAN_VERSION = 1


class Entry(NamedTuple):
    """One fixture of the plan: its id, its file's name in `fixtures/`, the sha256 of that file (hex)."""

    id: str
    file: str
    sha256: str


@dataclass(frozen=True)
class Seam:
    """A team's own provider: a Python file, the function in it, the sha256 of the file (hex)."""

    file: str
    function: str
    sha256: str


@dataclass(frozen=True)
class Plan:
    """Everything a run is held to. Times are UTC, ISO 8601; digests are sha256 in hex.

    endpoint     the model's URL without credentials
    expected     attempts that a complete run has: fixtures × repeat
    """

    run_id: str
    created_at: str
    template_version: str
    template_hash: str
    settings: Mapping[str, Any]
    corpus_hash: str
    entries: tuple[Entry, ...]
    set_aside: int
    policy_hash: str
    repeat: int
    concurrency: int
    endpoint: str
    seam: Seam | None

    @property
    def expected(self) -> int:
        """Attempts that a complete run has."""
        return len(self.entries) * self.repeat

    def attempts(self) -> Iterator[tuple[Entry, int]]:
        """Every expected attempt, numbered from 1 within its fixture."""
        for number in range(1, self.repeat + 1):
            for entry in self.entries:
                yield entry, number

    def to_json(self) -> str:
        """The text of `plan.json`."""
        value = {
            "plan_version": PLAN_VERSION,
            "run_id": self.run_id,
            "created_at": self.created_at,
            "template": {
                "version": self.template_version,
                "hash": self.template_hash,
                "settings": self.settings,
            },
            "corpus": {
                "hash": self.corpus_hash,
                "set_aside": self.set_aside,
                "fixtures": [list(entry) for entry in self.entries],
            },
            "policy_hash": self.policy_hash,
            "repeat": self.repeat,
            "concurrency": self.concurrency,
            "expected": self.expected,
            "endpoint": self.endpoint,
            "seam": None if self.seam is None else self.seam.__dict__,
        }
        return json.dumps(value, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read `plan.json`; InvalidInput where it is not one."""
        try:
            value: Any = parse(text)
            if value["plan_version"] != PLAN_VERSION:
                raise ValueError(f"plan_version is {value['plan_version']!r}, not {PLAN_VERSION}")
            plan = cls(
                run_id=value["run_id"],
                created_at=value["created_at"],
                template_version=value["template"]["version"],
                template_hash=value["template"]["hash"],
                settings=value["template"]["settings"],
                corpus_hash=value["corpus"]["hash"],
                entries=tuple(Entry(*entry) for entry in value["corpus"]["fixtures"]),
                set_aside=value["corpus"]["set_aside"],
                policy_hash=value["policy_hash"],
                repeat=value["repeat"],
                concurrency=value["concurrency"],
                endpoint=value["endpoint"],
                seam=None if value["seam"] is None else Seam(**value["seam"]),
            )
            if plan.expected != value["expected"] or plan.expected < 1:
                raise ValueError("expected is not fixtures × repeat")
        except (NotStrictJson, KeyError, TypeError, ValueError) as error:
            raise InvalidInput("the plan can't be used", [Issue("plan.json", "", f"is not a plan: {error}")]) from error
        return plan


def preregister(
    template: Template,
    corpus: Corpus,
    *,
    run_id: str,
    created_at: str,
    repeat: int,
    concurrency: int,
    endpoint: str,
    seam: Seam | None = None,
) -> Plan:
    """The plan for this template and corpus."""
    return Plan(
        run_id=run_id,
        created_at=created_at,
        template_version=template.version,
        template_hash=template.template_hash,
        settings=template.settings.to_mapping(),
        corpus_hash=corpus.corpus_hash,
        entries=tuple(Entry(f.id, f.file, f.sha256) for f in corpus.fixtures),
        set_aside=corpus.set_aside,
        policy_hash=policy_hash(seam.sha256 if seam else None),
        repeat=repeat,
        concurrency=concurrency,
        endpoint=endpoint,
        seam=seam,
    )


def load(directory: Path) -> Plan:
    """The plan that lies in `directory`."""
    return Plan.from_json((directory / "plan.json").read_text(encoding="utf-8"))


def verify(plan: Plan, directory: Path) -> Template:
    """Recompute every digest from the files in `directory`; the template where all agree, VoidRun where one does not.

    `directory` holds `fixtures/`, `prompts/` and the seam file, as they were synced.
    """
    try:
        template = templates.from_plan(directory / "prompts", plan.template_version, plan.settings)
    except (OSError, UnicodeDecodeError) as error:
        raise VoidRun(f"the template is not what the plan says: {error}", hint="sync again") from error
    _same("the template", template.template_hash, plan.template_hash)
    seam = plan.seam
    if seam is not None:
        _same("the seam file", _sha256(directory / seam.file), seam.sha256)
    _same("the judging code", policy_hash(seam.sha256 if seam else None), plan.policy_hash)
    for entry in plan.entries:
        _same(f"the fixture {entry.id}", _sha256(directory / "fixtures" / entry.file), entry.sha256)
    _same("the corpus", corpus_hash((entry.id, entry.sha256) for entry in plan.entries), plan.corpus_hash)
    present = sum(1 for _ in (directory / "fixtures").iterdir())
    if present != len(plan.entries):
        raise VoidRun(f"fixtures/ holds {present} files where the plan names {len(plan.entries)}: sync again")
    return template


def read_fixture(entry: Entry, directory: Path) -> Fixture:
    """One fixture of the plan, held against its digest once more as it is read; before the plan, it was checked."""
    raw = (directory / "fixtures" / entry.file).read_bytes()
    _same(f"the fixture {entry.id}", hashlib.sha256(raw).hexdigest(), entry.sha256)
    return Fixture.from_bytes(raw, entry.file, known=True)


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return "no file"


def _same(what: str, found: str, planned: str) -> None:
    if found != planned:
        raise VoidRun(
            f"{what} is not what the plan says: sha256 {found[:12]}, planned {planned[:12]}",
            hint="sync again: the run must use exactly what was preregistered",
        )
