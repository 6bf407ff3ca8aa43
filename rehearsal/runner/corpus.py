"""The corpus: frozen tickets, each with the claims that must never appear in a reply to it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

from rehearsal.runner.errors import EmptyCorpus, InvalidInput, Issue
from rehearsal.runner.matcher import is_blank, normalise
from rehearsal.runner.strict_json import BOM, Json, NotStrictJson, parse

REQUIRED = ("id", "template_version", "ticket_body", "must_include_keys", "forbidden_substrings")
OPTIONAL = ("forbidden_claims", "owner", "frozen_at", "source", "notes", "confidence_range")
RESERVED_IDS = ("corpus", "unsealed")  # the store's own rows
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_HALF_PAIR = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Fixture:
    """One frozen ticket. `sha256` is the digest of the file's bytes (hex), `file` its name in the corpus folder."""

    id: str
    template_version: str
    ticket_body: str
    must_include_keys: tuple[str, ...]
    forbidden_substrings: tuple[str, ...]
    confidence_range: tuple[float, float]
    owner: str | None
    frozen_at: str | None
    sha256: str
    file: str

    @classmethod
    def from_bytes(cls, raw: bytes, file: str, *, known: bool = False) -> Fixture:
        """Read one fixture file's bytes; InvalidInput with every issue in it.

        `known`: its digest says that it was read and found good before, so only its values are taken.
        """
        issues: list[Issue] = []
        value = _parse(raw, file, issues)
        if not isinstance(value, dict) and not issues:
            issues.append(Issue(file, "", "must be a JSON object"))
        if isinstance(value, dict) and not known:
            issues += _check(value, file)
        if issues or not isinstance(value, dict):
            raise InvalidInput("the fixture can't be used", issues)
        fields: dict[str, Any] = value
        low, high = fields.get("confidence_range", (0, 1))
        return cls(
            id=fields["id"],
            template_version=fields["template_version"],
            ticket_body=fields["ticket_body"],
            must_include_keys=tuple(fields["must_include_keys"]),
            forbidden_substrings=tuple(fields["forbidden_substrings"]),
            confidence_range=(low, high),
            owner=fields.get("owner"),
            frozen_at=fields.get("frozen_at"),
            sha256=hashlib.sha256(raw).hexdigest(),
            file=file,
        )


@dataclass(frozen=True)
class Corpus:
    """The fixtures of one template version, sorted by id; `set_aside` counts those of other versions."""

    fixtures: tuple[Fixture, ...]
    set_aside: int

    @property
    def corpus_hash(self) -> str:
        """See `corpus_hash`."""
        return corpus_hash((fixture.id, fixture.sha256) for fixture in self.fixtures)


def corpus_hash(entries: Iterable[tuple[str, str]]) -> str:
    """Sha256 (hex) over `id NUL sha256(file bytes) LF`, sorted by id. `entries` are (id, sha256 in hex)."""
    digest = hashlib.sha256()
    for fixture_id, sha256 in sorted(entries):
        digest.update(f"{fixture_id}\0{sha256}\n".encode())
    return digest.hexdigest()


def load(folder: Path, template_version: str) -> Corpus:
    """Read every `*.json` in `folder` and keep the fixtures of `template_version`.

    Raises InvalidInput with all issues of all files, EmptyCorpus where nothing is left to run.
    """
    if not folder.is_dir():
        raise InvalidInput("the corpus can't be read", [Issue(str(folder), "", "is not a folder")])
    fixtures: list[Fixture] = []
    issues = [
        Issue(str(path), "", "would not run: a fixture is a file *.json, not in a subfolder")
        for path in _left_out(folder)
    ]
    for path in sorted(folder.glob("*.json")):
        if not path.name.isprintable():
            issues.append(Issue(repr(str(path)), "", "has a name that not every machine can hold: use printable UTF-8"))
            continue
        if not path.is_file():
            issues.append(Issue(str(path), "", "is not a regular file"))
            continue
        try:
            fixtures.append(Fixture.from_bytes(path.read_bytes(), path.name))
        except InvalidInput as error:
            issues += [Issue(str(folder / issue.file), issue.pointer, issue.problem) for issue in error.issues]
        except OSError as error:
            issues.append(Issue(str(path), "", f"can't be read: {error.strerror}"))
    issues += _duplicate_ids(fixtures, folder)
    if issues:
        raise InvalidInput("the corpus can't be used", issues)
    chosen = sorted((f for f in fixtures if f.template_version == template_version), key=lambda f: f.id)
    if not chosen:
        others = sorted({fixture.template_version for fixture in fixtures})
        raise EmptyCorpus(
            f"{folder} holds no fixture for the template {template_version!r}: an empty corpus is red",
            hint=f"its fixtures are for: {', '.join(others)}" if others else "write one: see fixtures/README.md",
        )
    return Corpus(tuple(chosen), len(fixtures) - len(chosen))


def _parse(raw: bytes, file: str, issues: list[Issue]) -> Json:
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        issues.append(Issue(file, "", f"is not UTF-8 at byte {error.start}"))
        return None
    if text.startswith(BOM):
        issues.append(Issue(file, "", "starts with a byte order mark (BOM): save it as plain UTF-8"))
        return None
    try:
        return parse(text)
    except NotStrictJson as error:
        issues.append(Issue(file, "", f"is not strict JSON: {error}"))
    return None


def _check(value: dict[str, Json], file: str) -> list[Issue]:
    def issue(key: str, problem: str) -> None:
        issues.append(Issue(file, f"/{key.replace('~', '~0').replace('/', '~1')}", problem))

    issues: list[Issue] = []
    for key in REQUIRED:
        if key not in value:
            issue(key, "is required")
    for key in value:
        if key not in REQUIRED + OPTIONAL:
            issue(key, "is not a key of a fixture")
    for key in ("id", "template_version", "ticket_body"):
        if key in value and (not isinstance(value[key], str) or is_blank(str(value[key]))):
            issue(key, "must be a string that a reader can see")
    for key in ("id", "template_version"):
        text = value.get(key)
        if isinstance(text, str) and not is_blank(text) and not _ID.fullmatch(text):
            issue(key, "must be letters, digits, dot, dash and underscore, at most 100")
    if value.get("id") in RESERVED_IDS:
        issue("id", f"must not be one of: {', '.join(RESERVED_IDS)} (eval_runs has rows of that name)")
    for key in ("must_include_keys", "forbidden_substrings"):
        if key in value:
            issues += _check_strings(value[key], f"/{key}", file)
    if value.get("forbidden_substrings") == []:
        issue("forbidden_substrings", "forbids nothing, so this fixture could not catch a promise")
    issues += _check_phrases(value.get("forbidden_substrings"), file)
    if "forbidden_claims" in value:
        issue(
            "forbidden_claims",
            "is not supported yet: this version has no claim packs; use forbidden_substrings",
        )
    for key in ("owner", "source", "notes"):
        if key in value and not isinstance(value[key], str):
            issue(key, "must be a string")
    if "frozen_at" in value and not _is_date(value["frozen_at"]):
        issue("frozen_at", "must be a date such as 2026-11-30")
    if "confidence_range" in value and not _is_range(value["confidence_range"]):
        issue("confidence_range", "must be two numbers, the lower first, such as [0, 1]")
    for key, found in value.items():
        if _HALF_PAIR.search(json.dumps([key, found], ensure_ascii=False)):
            issue(key, "holds half of a surrogate pair, which no file, prompt or row can carry")
    return issues


def _check_strings(value: Json, pointer: str, file: str) -> list[Issue]:
    if not isinstance(value, list):
        return [Issue(file, pointer, "must be a list of strings")]
    return [
        Issue(file, f"{pointer}/{index}", "must be a string that a reader can see")
        for index, item in enumerate(value)
        if not isinstance(item, str) or is_blank(item)
    ]


def _check_phrases(phrases: Json, file: str) -> list[Issue]:
    if not isinstance(phrases, list):
        return []
    return [
        Issue(file, f"/forbidden_substrings/{index}", "normalises to nothing, so it could never be found")
        for index, phrase in enumerate(phrases)
        if isinstance(phrase, str) and not is_blank(phrase) and not _findable(phrase)
    ]


@lru_cache(maxsize=4096)  # fixtures share their phrases, and each is read again on the box: 30 µs a fixture
def _findable(phrase: str) -> bool:
    return bool(normalise(phrase).strip())


def _is_date(value: Json) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return date.fromisoformat(value).isoformat() == value
    except ValueError:
        return False


def _is_range(value: Json) -> bool:
    if not isinstance(value, list) or len(value) != 2:
        return False
    numbers = [item for item in value if isinstance(item, (int, float)) and not isinstance(item, bool)]
    return len(numbers) == 2 and numbers[0] <= numbers[1]


def _left_out(folder: Path) -> list[Path]:
    """What somebody may take for a fixture and `*.json` does not: another case, a subfolder."""
    found = [path for path in folder.rglob("*") if path.suffix.lower() == ".json"]
    return sorted(path for path in found if path.suffix != ".json" or path.parent != folder)


def _duplicate_ids(fixtures: list[Fixture], folder: Path) -> list[Issue]:
    seen: dict[str, str] = {}
    issues = []
    for fixture in fixtures:
        if fixture.id in seen:
            issues.append(
                Issue(str(folder / fixture.file), "/id", f"{fixture.id!r} is also the id in {seen[fixture.id]}")
            )
        seen.setdefault(fixture.id, fixture.file)
    return issues
