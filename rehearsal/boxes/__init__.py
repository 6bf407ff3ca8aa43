"""WHERE a run happens: make hosts, reach them, destroy them.

A driver holds only what differs between kinds of host. Its contract, the same for all of them
(one suite, `tests/contract/test_drivers.py`, runs against every one):

- `create(request)` returns the address of a host that answers SSH, or raises BoxError and has left nothing
  behind. Called twice with one request, it returns the same box.
- `destroy(record)` returns when the box is gone or cannot be reached. "Already gone" is success. It is safe to
  call at any time, from another process, after a crash in the middle of `create` (then `record.address` is None),
  and any number of times. It never touches anything that it cannot prove to be this box.
- `presence(record)` looks, changes nothing, and answers `present`, `absent` or `unknown`.
  "Cannot tell" is never `absent`: only a look that would have seen the box may say so.

None of them retries by itself, and each bounds its own waits (30 s).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

from rehearsal.runner.errors import UsageError


class Presence(Enum):
    """What a look at a box saw."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Request:
    """A box to be made.

    box_id    unique, `[a-z0-9-]+`; every trace of the box carries it
    ttl_s     seconds after which the box ends by itself, whatever happened to the laptop
    keep      it outlives the process that asked for it, until `ttl_s` is over or somebody destroys it
    keys      a folder of the laptop's own (0700) with `id_ed25519`, `id_ed25519.pub` for the client and
              `host_ed25519`, `host_ed25519.pub` for a driver that can inject a host key
    target    what `--host` said, for the driver that wants it
    """

    box_id: str
    ttl_s: int
    keep: bool
    keys: Path
    target: str | None = None


@dataclass(frozen=True)
class Address:
    """How to reach a box, and what it is. Plain values only: it lives in the ledger as JSON.

    host, port, user    as SSH wants them; with `socket` they only name the box
    socket              a Unix socket on the laptop that speaks SSH, instead of host and port
    host_key            the pinned public key as `ssh-ed25519 AAAA…`
    identity            the private key file on the laptop, or `agent:` and the key's fingerprint
    agent               the socket of the SSH agent that holds it, where it is not the environment's
    proxy               a command on the laptop whose standard input and output reach the host (a jump host), or None
    directory           the one directory on the box, absolute; everything lands there and dies with it
    isolation           'sealed' (no network but the tunnel) or 'not sealed'

    It holds what was resolved when the box was made, so that a changed or deleted SSH configuration
    never makes a box unreachable for its own tear-down.
    """

    host: str
    port: int
    user: str
    directory: str
    isolation: str
    socket: str | None = None
    host_key: str | None = None
    identity: str | None = None
    agent: str | None = None
    proxy: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Address:
        """The address that `to_json` gave."""
        proxy = value["proxy"]
        return cls(**{**value, "proxy": None if proxy is None else tuple(proxy)})


@dataclass(frozen=True)
class Record:
    """What the ledger knows of a box: all that `destroy` and `presence` may use."""

    box_id: str
    driver: str
    keys: Path
    target: str | None
    address: Address | None


class Driver(Protocol):
    """One kind of host; the contract stands at the top of this file."""

    def create(self, request: Request) -> Address:
        """Make the box; BoxError if it can't be made."""
        ...

    def destroy(self, record: Record) -> None:
        """End the box and remove what it left; BoxError where something resisted, with its name."""
        ...

    def presence(self, record: Record) -> Presence:
        """Look whether anything of the box is there."""
        ...


def _loopback(_ssh_config: str | None) -> Driver:
    from rehearsal.boxes.loopback import Loopback

    return Loopback()


def _host(ssh_config: str | None) -> Driver:
    from rehearsal.boxes.host import Host

    return Host(ssh_config)


# Imported when asked for: a driver's own libraries cost start-up time.
DRIVERS: Mapping[str, Callable[[str | None], Driver]] = {"loopback": _loopback, "host": _host}


def driver(name: str, *, ssh_config: str | None = None) -> Driver:
    """The driver called `name`; UsageError where there is none.

    `ssh_config` is an OpenSSH configuration file to be read instead of the user's own; only `create` reads it.
    """
    if name not in DRIVERS:
        known = ", ".join(DRIVERS)
        raise UsageError(f"there is no kind of box called {name!r}", hint=f"use one of: {known}")
    return DRIVERS[name](ssh_config)
