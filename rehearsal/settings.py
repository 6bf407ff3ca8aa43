"""Configuration, read once at the edge into frozen values.

Where a value comes from, the last one wins: the defaults here, `~/.invoke.yaml`, the project's `invoke.yaml`
(both under `rehearsal:`), `INVOKE_REHEARSAL_…`, a flag. `MODEL_URL` and `MODEL_KEY` come from the environment alone.
"""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from rehearsal.runner import template as templates
from rehearsal.runner.errors import UsageError

LONGEST_TTL_S = 7 * 24 * 3600


@dataclass(frozen=True)
class Settings:
    """What a rehearsal may be told.

    template      version under rehearsal, as a flag says; None: see `version`
    usual         the configured version
    fixtures      folder of the corpus
    prompts       folder of the templates
    box           kind of box
    host          user@name[:port], for the box `host`
    repeat        attempts of each fixture
    concurrency   attempts at a time
    ttl           seconds after which a box ends by itself
    keep          leave the box up until then
    out           folder under which each run's evidence gets a folder of its own
    seam          a team's own provider, `path.py:function`
    ssh_config    OpenSSH configuration file to be read instead of the user's
    """

    template: str | None = None
    usual: str | None = None
    fixtures: Path = Path("fixtures")
    prompts: Path = Path("prompts")
    box: str = "loopback"
    host: str | None = None
    repeat: int = 1
    concurrency: int = 8
    ttl: int = 3600
    keep: bool = False
    out: Path = Path(".rehearsal/runs")
    seam: str | None = None
    ssh_config: str | None = None

    @classmethod
    def read(cls, configured: Mapping[str, Any], flags: Mapping[str, Any]) -> Settings:
        """Merge what is configured with the flags that were given (None: not given); UsageError with the place."""
        unknown = sorted(set(configured) - set(NAMES))
        if unknown:
            raise UsageError(f"rehearsal.{unknown[0]} is not a setting", hint=f"settings: {', '.join(NAMES)}")
        given = {key: value for key, value in flags.items() if value is not None}
        values = {key: value for key, value in {**configured, **given}.items() if value is not None}
        said = {key: f"--{key}" if key in given else f"rehearsal.{key}" for key in values}
        checked: dict[str, Any] = {}
        for key, value in values.items():
            if key in _WHOLE:
                checked[key] = _whole(value, said[key], _WHOLE[key])
            elif key == "keep":
                checked[key] = _truth(value, said[key])
            else:
                text = _text(value, said[key])
                checked[key] = _path(text, said[key]) if key in ("fixtures", "prompts", "out") else text
        if "template" not in given:
            checked["usual"] = checked.pop("template", None)
        settings = cls(**checked)
        if settings.host is None and settings.box == "host" and "box" in given:
            raise UsageError("the box `host` needs a machine", hint="add --host user@name[:port]")
        if settings.host is not None and settings.box != "host":
            raise UsageError(f"--host is for the box `host`, and the box is {settings.box!r}", hint="add --box host")
        return settings

    def version(self) -> str:
        """The version under rehearsal: the flag's, else the configured one if it is there, else the only one."""
        if self.template is not None:
            return self.template
        have = templates.versions(self.prompts)
        if self.usual is not None and self.usual in have:
            return self.usual
        if len(have) == 1:
            return have[0]
        raise UsageError(
            f"{self.prompts} holds {len(have)} templates, so which one is meant?",
            hint=f"add --template VERSION, one of: {', '.join(have)}" if have else "write prompts/<version>.txt",
        )


# What may be configured, and has a flag.
NAMES = tuple(item.name for item in fields(Settings) if item.name != "usual")

# The most of each: what is more is a typing error, or needs another kind of box.
_WHOLE = {"repeat": 1000, "concurrency": 256, "ttl": LONGEST_TTL_S}


_CREDENTIAL = re.compile(r"key|token|sig|secret|pass|pw|code|cred|auth", re.IGNORECASE)


def _whole(value: Any, said: str, most: int) -> int:
    text = str(value).strip()
    if (
        isinstance(value, bool)
        or not text.isascii()
        or not text.isdigit()
        or len(text) > 9
        or not 1 <= int(text) <= most
    ):
        raise UsageError(f"{said} must be a whole number from 1 to {most}, not {text[:40]!r}")
    return int(text)


def _path(text: str, said: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise UsageError(f"{said} {text!r} names the home of a user that there is not") from error


def _truth(value: Any, said: str) -> bool:
    if str(value).lower() not in ("true", "false", "1", "0"):
        raise UsageError(f"{said} must be true or false, not {str(value)[:40]!r}")
    return str(value).lower() in ("true", "1")


def _text(value: Any, said: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{said} must be a text, not {value!r}")
    return value


@dataclass(frozen=True)
class Model:
    """Where replies come from. The URL and the key never show in a repr, and only `endpoint` is ever written down."""

    url: str = field(repr=False)
    key: str | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Model | None:
        """MODEL_URL and MODEL_KEY; None where MODEL_URL is not set. UsageError where it is not a URL."""
        url = environment.get("MODEL_URL", "").strip()
        key = environment.get("MODEL_KEY", "").strip() or None
        if not url:
            return None
        try:
            parts = urlsplit(url)
            good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
            if parts.netloc.rpartition("@")[2].startswith("["):
                ipaddress.ip_address(parts.hostname or "")
        except ValueError:
            good = False
        if not good or not url.isascii() or not url.isprintable() or " " in url:
            raise UsageError("MODEL_URL is not a URL that starts with http:// or https:// and names a host")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise UsageError("MODEL_KEY holds characters that no HTTP header can carry")
        return cls(url, key)

    @property
    def endpoint(self) -> str:
        """The URL without user, password and query: what may be written down."""
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if parts.hostname and ":" in parts.hostname else parts.hostname
        port = f":{parts.port}" if parts.port else ""
        return f"{parts.scheme}://{host}{port}{parts.path}"

    @property
    def url_is_secret(self) -> bool:
        """Whether the URL carries credentials: a user, a password or any query."""
        parts = urlsplit(self.url)
        return parts.username is not None or bool(parts.query)

    def secrets(self) -> dict[str, str]:
        """What of it must turn up nowhere, by name: the key, the URL with credentials, and each part of those."""
        parts = urlsplit(self.url)
        found = {} if self.key is None else {"MODEL_KEY": self.key}
        if self.url_is_secret:
            found["MODEL_URL"] = self.url
        if parts.password:
            user, password = unquote(parts.username or ""), unquote(parts.password)
            found["MODEL_URL's password"] = password
            found["MODEL_URL's log-in"] = base64.b64encode(f"{user}:{password}".encode()).decode().rstrip("=")
        found |= {f"MODEL_URL's {name}": value for name, value in parse_qsl(parts.query) if _CREDENTIAL.search(name)}
        return found

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach it."""
        name = urlsplit(self.url).hostname or ""
        if name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or address.is_unspecified

    def needs_relay(self, isolation: str) -> bool:
        """Whether the box must reach it through the SSH connection."""
        return self.is_local or self.url_is_secret or self.key is not None or isolation == "sealed"
