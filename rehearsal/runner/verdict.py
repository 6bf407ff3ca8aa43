"""The verdict on one reply: pure, deterministic, no model asked.

`pass`, `fail` (measured, and bad) or `error` (not measured). What the article's runner wrote as one
`failure_reason` stays one machine-readable word with an argument, the gravest; `findings` holds all.
"""

from __future__ import annotations

import hashlib
import json
import math
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from rehearsal.runner.completion import Completion
from rehearsal.runner.corpus import Fixture
from rehearsal.runner.matcher import Matcher, is_blank
from rehearsal.runner.strict_json import Json, NotStrictJson, parse

PASS, FAIL, ERROR = "pass", "fail", "error"

MAX_REPLY = 1 << 20  # bytes; the provider stops reading there, and nobody's word for it is taken

# The gravest first: a promise outweighs a missing key, and anything measured outweighs what was not.
GRAVITY = (
    "forbidden",
    "missing_key",
    "confidence_not_numeric",
    "confidence_out_of_range",
    "reply_not_json",
    "reply_not_object",
    "reply_truncated",
    "reply_empty",
    "reply_too_large",
    "provider",
)

# What decides a verdict: these files' bytes are the policy, so no change of theirs goes unseen.
_POLICY_FILES = (
    "characters.py",
    "claims.py",
    "confusables.py",
    "corpus.py",
    "decoding.py",
    "letters.py",
    "matcher.py",
    "phrases.py",
    "pieces.py",
    "reading.py",
    "strict_json.py",
    "text.py",
    "verdict.py",
    "wire.py",
)


@dataclass(frozen=True)
class Finding:
    """One thing wrong with a reply.

    reason    machine-readable, as in `failure_reason`
    pointer   where in the reply: a JSON pointer, '' for the raw text
    excerpt   the original words around it, for a person; '' where there are none
    """

    reason: str
    pointer: str = ""
    excerpt: str = ""


@dataclass(frozen=True)
class Verdict:
    """`outcome` is pass, fail or error; `findings` is sorted, the gravest first, and empty exactly for a pass."""

    outcome: str
    findings: tuple[Finding, ...]
    output: Json

    @property
    def failure_reason(self) -> str | None:
        """The gravest finding's reason, None for a pass."""
        return self.findings[0].reason if self.findings else None

    @property
    def output_json(self) -> str | None:
        """The reply decoded, as the store has it; None where it is not JSON."""
        return None if self.output is None else json.dumps(self.output)

    def findings_json(self) -> str:
        """All findings as the store has them."""
        return json.dumps([finding.__dict__ for finding in self.findings])


def judge(fixture: Fixture, completion: Completion, *, unwrap_fence: bool = False) -> Verdict:
    """Judge what the model answered to `fixture`'s ticket.

    `unwrap_fence`: production takes the reply out of a whole-reply ```json fence, so it may be judged so.
    """
    error = completion.error
    if error is None and completion.http_status not in (None, 200):
        error = f"http_{completion.http_status}"  # whatever its body
    if error is not None or completion.raw_reply is None:
        return Verdict(ERROR, (Finding(f"provider:{error or 'no_reply'}"),), None)
    raw = completion.raw_reply
    findings, output = _shape(fixture, completion, unfenced(raw) if unwrap_fence else raw)
    matches = _matcher(fixture.forbidden_substrings).find(raw, output)
    findings += [Finding(f"forbidden:{match.phrase}", match.pointer, match.excerpt) for match in matches]
    findings.sort(key=lambda finding: _gravity(finding.reason))
    return Verdict(FAIL if findings else PASS, tuple(findings), output)


def whole_verdict(attempts: Iterable[tuple[str, str | None]]) -> tuple[str, str | None]:
    """The outcome and reason of a whole run, from (outcome, failure_reason) of its attempts in their order.

    One fail makes it a fail, with the gravest reason; without a fail, one error makes it an error; it is a pass
    only where there is at least one attempt and nothing but passes.
    """
    found = list(attempts)
    for wanted in (FAIL, ERROR):
        reasons = [reason or wanted for outcome, reason in found if outcome == wanted]
        if reasons:
            return wanted, min(reasons, key=_gravity)
    return (PASS, None) if found else (ERROR, "no_attempts")


def seal_findings(attempts: Iterable[tuple[str, int, str | None]]) -> str:
    """What a seal says of the attempts that did not pass, given as (fixture, attempt, failure_reason)."""
    keys = ("fixture_id", "attempt", "reason")
    return json.dumps([dict(zip(keys, attempt)) for attempt in attempts])  # noqa: B905  (Python 3.10 is fine, mypy too)


def unfenced(raw: str) -> str:
    """The inside of a reply that is one ```json fence from its first to its last character; else the reply itself."""
    text = raw.strip()
    head, _, rest = text.partition("\n")
    if head.rstrip() == "```json" and rest.endswith("```") and "```" not in rest[:-3]:
        return rest[:-3]
    return raw


def policy_hash(seam_sha256: str | None = None) -> str:
    """Sha256 (hex) over the code that judges and, where a team brings one, its seam file."""
    digest = hashlib.sha256()
    for name in _POLICY_FILES:
        source = _source(name)
        if source is not None:
            digest.update(f"{name}\0{hashlib.sha256(source).hexdigest()}\n".encode())
    digest.update(f"seam\0{seam_sha256}\n".encode())
    return digest.hexdigest()


def _gravity(reason: str) -> int:
    word = reason.partition(":")[0]
    return GRAVITY.index(word) if word in GRAVITY else len(GRAVITY)


def _source(name: str) -> bytes | None:
    try:
        return pkgutil.get_data("rehearsal.runner", name)
    except OSError:
        return None


def _shape(fixture: Fixture, completion: Completion, reply: str) -> tuple[list[Finding], Json]:
    if (
        completion.finish_reason == "too_large"
        or len(reply) > MAX_REPLY
        or len(reply.encode(errors="replace")) > MAX_REPLY
    ):
        return [Finding("reply_too_large")], None
    if is_blank(reply):
        return [Finding("reply_empty")], None
    findings = []
    if completion.finish_reason not in (None, "stop"):
        findings.append(Finding("reply_truncated"))
    try:
        output = parse(reply)
    except NotStrictJson as error:
        return [*findings, Finding("reply_not_json", "", error.rule or reply.strip()[:60])], None
    if not isinstance(output, dict):
        return [*findings, Finding("reply_not_object")], output
    findings += [
        Finding(f"missing_key:{key}", f"/{key.replace('~', '~0').replace('/', '~1')}")
        for key in fixture.must_include_keys
        if _nothing(output.get(key))
    ]
    return [*findings, *_confidence(output.get("confidence"), fixture.confidence_range)], output


def _nothing(value: Json) -> bool:
    """Whether a reader would see nothing of it: null, empty, invisible, or a container of nothing else."""
    if isinstance(value, str):
        return is_blank(value)
    if isinstance(value, (list, dict)):
        return all(map(_nothing, value.values() if isinstance(value, dict) else value))
    return value is None


def _confidence(value: Json, allowed: tuple[float, float]) -> list[Finding]:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return [Finding("confidence_not_numeric", "/confidence")]
    if isinstance(value, float) and not math.isfinite(value):
        return [Finding("confidence_not_numeric", "/confidence")]
    low, high = allowed
    if not low <= value <= high:
        return [Finding("confidence_out_of_range", "/confidence", str(value)[:40])]
    return []


@lru_cache(maxsize=256)
def _matcher(phrases: tuple[str, ...]) -> Matcher:
    return Matcher(phrases)
