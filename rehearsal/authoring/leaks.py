"""Secrets in what is about to travel to a box: refused by name, and never repeated in the message."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from rehearsal.runner.errors import InvalidInput, Issue

SHORTEST_SECRET = 8  # a shorter value of the environment would be found in ordinary words
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|.)")
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL", re.IGNORECASE)

# Live credentials by the shapes that their issuers publish.
_SHAPES: Mapping[str, re.Pattern[str]] = {
    "a private key": re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----"),
    "an AWS access key": re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a GitHub token": re.compile(r"\b(?:gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{40,})"),
    "a GitLab token": re.compile(r"\bglpat-[A-Za-z0-9_-]{20,}"),
    "a Slack token": re.compile(r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}"),
    "a Stripe key": re.compile(r"\b[rs]k_live_[A-Za-z0-9]{16,}"),
    "an OpenAI or Anthropic key": re.compile(r"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{20,}"),
    "a Google key": re.compile(r"\bAIza[A-Za-z0-9_-]{35}"),
    "an npm token": re.compile(r"\bnpm_[A-Za-z0-9]{36}"),
    "a Hugging Face token": re.compile(r"\bhf_[A-Za-z0-9]{30,}"),
    "a JSON web token": re.compile(r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"),
    "a password in a URL": re.compile(r"\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@\"']{0,60}:[^\s/:@\"']{3,100}@[^\s\"']"),
}


def environment_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The laptop's own secrets, by variable name: what is called key, token, secret, password or credential."""
    return {
        name: value
        for name, value in environment.items()
        if _SECRET_NAME.search(name) and len(value) >= SHORTEST_SECRET and not value.isdigit()
    }


def refuse(files: Iterable[tuple[str, bytes]], secrets: Mapping[str, str]) -> None:
    """Look through `files` (name, content) for what looks like a secret, and for `secrets` (name → value).

    InvalidInput with every place, by line, and never the value.
    """
    issues = [issue for name, content in files for issue in _issues(name, content.decode(errors="replace"), secrets)]
    if issues:
        raise InvalidInput(
            "what would travel to the box holds a secret",
            issues,
            hint="take it out, and revoke it where it is real",
        )


def _issues(file: str, text: str, own: Mapping[str, str]) -> Iterable[Issue]:
    for number, line in enumerate(text.split("\n"), 1):
        readings = (line, _unescaped(line)) if "\\" in line else (line,)
        for what, shape in _SHAPES.items():
            if any(shape.search(reading) for reading in readings):
                yield Issue(file, "", f"line {number} holds what looks like {what}")
        for name, value in own.items():
            if any(value in reading for reading in readings):
                yield Issue(file, "", f"line {number} holds the value of this machine's {name}")
    for name, value in own.items():
        before, found, _ = text.partition(value)
        if "\n" in value and found:
            yield Issue(file, "", f"line {before.count(chr(10)) + 1} holds the value of this machine's {name}")


def _unescaped(line: str) -> str:
    """A line of JSON as its reader has it: in a fixture, `\\u0073k_live` is a key too."""
    return _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _SHORT.get(found[0][1], found[0][1]), line)
