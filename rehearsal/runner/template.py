"""A pinned prompt template: `<version>.txt` holds the text, `<version>.toml` what else shapes the reply."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from rehearsal.runner.errors import InvalidInput, Issue
from rehearsal.runner.strict_json import BOM

PLACEHOLDER = "{{ticket_body}}"
APIS = ("plain", "openai-chat")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_OTHER_PLACEHOLDER = re.compile(r"\{\{(?!ticket_body\}\})[^{}]*\}\}")


@dataclass(frozen=True)
class Settings:
    """What shapes a reply besides the prompt; None is not sent, so that the endpoint's own default holds.

    api              'plain': POST {"prompt": …}, the body is the reply; 'openai-chat': chat completions
    timeout_s        seconds for one reply, all tries and waits included (45, as in the article)
    response_format  passed through as it is
    unwrap_fence     production takes a reply out of a whole-reply ```json fence, so the verdict may too
    """

    api: str = "plain"
    model: str | None = None
    system: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    timeout_s: float = 45.0
    response_format: Mapping[str, Any] | None = None
    unwrap_fence: bool = False

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any], file: str) -> Settings:
        """Check and take `values` (a parsed .toml, or the plan's copy); InvalidInput with every issue."""
        issues = [Issue(file, f"/{key}", "is not a setting") for key in values if key not in _KINDS]
        for key, (kinds, what) in _KINDS.items():
            value = values.get(key)
            if key in values and (not isinstance(value, kinds) or isinstance(value, bool) != (kinds is bool)):
                issues.append(Issue(file, f"/{key}", f"must be {what}"))
        if not issues:
            issues = list(_out_of_range(values, file))
            issues += (
                []
                if _is_json(values.get("response_format"))
                else [Issue(file, "/response_format", "holds what JSON can't")]
            )
        if issues:
            raise InvalidInput("the template's settings can't be used", issues)
        return cls(**values)

    def to_mapping(self) -> dict[str, Any]:
        """The settings that differ from the default, for the plan."""
        return {key: value for key, value in asdict(self).items() if value != _DEFAULTS[key]}


_NUMBER = (int, float)
_KINDS: dict[str, tuple[Any, str]] = {
    "api": (str, "a string"),
    "model": (str, "a string"),
    "system": (str, "a string"),
    "temperature": (_NUMBER, "a number"),
    "top_p": (_NUMBER, "a number"),
    "seed": (int, "a whole number"),
    "max_tokens": (int, "a whole number"),
    "timeout_s": (_NUMBER, "a number of seconds"),
    "response_format": (dict, "a table"),
    "unwrap_fence": (bool, "true or false"),
}
_DEFAULTS = {item.name: item.default for item in fields(Settings)}


def _is_json(value: object) -> bool:
    """TOML knows dates and infinity, and no request or plan could carry them."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return False
    return True


def _out_of_range(values: Mapping[str, Any], file: str) -> list[Issue]:
    checks: list[tuple[str, Callable[[Any], bool], str]] = [
        ("api", lambda v: v in APIS, f"must be one of: {', '.join(APIS)}"),
        ("timeout_s", lambda v: 0 < v <= 3600, "must be above 0 and at most 3600 seconds"),
        ("max_tokens", lambda v: v > 0, "must be above 0"),
        ("temperature", lambda v: 0 <= v <= 2, "must be from 0 to 2"),
        ("top_p", lambda v: 0 < v <= 1, "must be above 0 and at most 1"),
    ]
    return [Issue(file, f"/{key}", problem) for key, good, problem in checks if key in values and not good(values[key])]


@dataclass(frozen=True)
class Template:
    """The text of one version, its settings, and the digests of the files they came from."""

    version: str
    text: str
    settings: Settings
    text_sha256: str
    toml_sha256: str | None

    @property
    def template_hash(self) -> str:
        """Sha256 over the raw bytes of both files, through their own digests (hex); one byte more or less shows."""
        parts = f"{self.version}.txt\0{self.text_sha256}\n"
        if self.toml_sha256 is not None:
            parts += f"{self.version}.toml\0{self.toml_sha256}\n"
        return hashlib.sha256(parts.encode()).hexdigest()

    def render(self, ticket_body: str) -> str:
        """The prompt: one literal pass, so whatever the ticket holds is text and nothing more."""
        return self.text.replace(PLACEHOLDER, ticket_body)

    def prompt_hash(self, ticket_body: str) -> str:
        """The article's: sha256 of the rendered prompt (hex)."""
        return hashlib.sha256(self.render(ticket_body).encode()).hexdigest()


def files(prompts: Path, version: str) -> tuple[Path, Path]:
    """Where the text and the settings of `version` lie (the second may not exist)."""
    return prompts / f"{version}.txt", prompts / f"{version}.toml"


def versions(prompts: Path) -> list[str]:
    """The versions that `prompts` holds, sorted."""
    return sorted(path.stem for path in prompts.glob("*.txt") if VERSION.fullmatch(path.stem))


def load(prompts: Path, version: str) -> Template:
    """Read and check one version; InvalidInput with every issue of both files."""
    if not VERSION.fullmatch(version):
        raise InvalidInput(
            "the template's name can't be used",
            [Issue(f"{version!r}", "", "must be letters, digits, dot, dash and underscore, at most 64")],
        )
    text_file, toml_file = files(prompts, version)
    issues: list[Issue] = []
    raw = _read(text_file, issues)
    raw_toml = _read(toml_file, issues) if toml_file.is_symlink() or toml_file.exists() else None
    text = _decode(raw, text_file, issues)
    if text is not None:
        issues += _text_issues(text, str(text_file))
    settings = Settings()
    toml = _decode(raw_toml, toml_file, issues)
    if toml is not None:
        settings = _settings(toml, toml_file, issues)
    if issues or raw is None or text is None:
        have = ", ".join(versions(prompts)) or "none"
        missing = raw is None
        raise InvalidInput(
            f"the template {version!r} can't be used",
            issues,
            hint=f"versions in {prompts}: {have}" if missing else "",
        )
    return Template(
        version=version,
        text=text,
        settings=settings,
        text_sha256=hashlib.sha256(raw).hexdigest(),
        toml_sha256=None if raw_toml is None else hashlib.sha256(raw_toml).hexdigest(),
    )


def from_plan(prompts: Path, version: str, settings: Mapping[str, Any]) -> Template:
    """The same template on the box: digests from the files, settings from the plan.

    The box's Python may be 3.10, which can't read TOML; the plan carries what the laptop read, and
    the digest proves that both mean the same file.
    """
    text_file, toml_file = files(prompts, version)
    raw = text_file.read_bytes()
    return Template(
        version=version,
        text=raw.decode(),
        settings=Settings.from_mapping(settings, "plan.json"),
        text_sha256=hashlib.sha256(raw).hexdigest(),
        toml_sha256=hashlib.sha256(toml_file.read_bytes()).hexdigest() if toml_file.exists() else None,
    )


def _read(path: Path, issues: list[Issue]) -> bytes | None:
    try:
        if path.exists() and not path.is_file():
            issues.append(Issue(str(path), "", "is not a regular file"))
            return None
        return path.read_bytes()
    except FileNotFoundError:
        issues.append(Issue(str(path), "", "does not exist"))
    except OSError as error:
        issues.append(Issue(str(path), "", f"can't be read: {error.strerror}"))
    return None


def _decode(raw: bytes | None, path: Path, issues: list[Issue]) -> str | None:
    if raw is None:
        return None
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        issues.append(Issue(str(path), "", f"is not UTF-8 at byte {error.start}"))
        return None
    if text.startswith(BOM):
        issues.append(Issue(str(path), "", "starts with a byte order mark (BOM): save it as plain UTF-8"))
    if "\r" in text:
        issues.append(
            Issue(str(path), "", "has CRLF (carriage return) line ends: save it with LF, or the hash differs")
        )
    return text


def _text_issues(text: str, file: str) -> list[Issue]:
    issues = []
    if PLACEHOLDER not in text:
        issues.append(Issue(file, "", f"holds no {PLACEHOLDER}, so no ticket would reach the model"))
    others = sorted(set(_OTHER_PLACEHOLDER.findall(text)))
    issues += [Issue(file, "", f"holds {other}, and only {PLACEHOLDER} is filled in") for other in others]
    return issues


def _settings(toml: str, path: Path, issues: list[Issue]) -> Settings:
    import tomllib  # Python 3.11: the laptop's; the box takes its settings from the plan

    try:
        return Settings.from_mapping(tomllib.loads(toml), str(path))
    except tomllib.TOMLDecodeError as error:
        issues.append(Issue(str(path), "", f"is not TOML: {error}"))
    except InvalidInput as error:
        issues += error.issues
    return Settings()
