"""What the user's own SSH configuration says of a host, as OpenSSH itself reads it.

`ssh -G` resolves aliases, Include, Match and IdentityAgent, which Fabric's own reading does not;
`ssh-keygen -F` looks a host up in known_hosts, hashed names included.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rehearsal.runner.errors import LinkError, UsageError

TIMEOUT_S = 20  # a `Match exec` of the user's may take a while
# The order in which a pinned key is chosen where known_hosts has several.
_PREFERRED = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")
_TARGET = re.compile(r"(?:(?P<user>[^@\s]+)@)?(?P<host>\[[0-9a-fA-F:.%]+\]|[^@:\s\[\]]+)(?::(?P<port>\d{1,5}))?")


@dataclass(frozen=True)
class Resolved:
    """How OpenSSH would reach a host.

    identities    existing private key files, in OpenSSH's order
    agent         the agent's socket, None where the configuration says to use none
    only_files    IdentitiesOnly: other keys of the agent are not offered
    host_keys     known public keys, the preferred first, as `ssh-ed25519 AAAA…`
    proxy         the command that reaches it through a jump host, or None
    """

    host: str
    port: int
    user: str
    identities: tuple[str, ...]
    agent: str | None
    only_files: bool
    host_keys: tuple[str, ...]
    proxy: tuple[str, ...] | None


def resolve(target: str, config: str | None = None) -> Resolved:
    """Ask OpenSSH about `user@name[:port]`, with the configuration file `config` instead of its own if given.

    Raises UsageError for a target that is none, LinkError where OpenSSH is missing or refuses.
    """
    match = _TARGET.fullmatch(target)
    if match is None or target.startswith("-") or (match["host"] or "").startswith("-"):
        raise UsageError(f"--host {target!r} is not user@name[:port]", hint="for example: --host me@eval.example:2222")
    options = ["-F", config] if config else []
    named = match["host"].strip("[]")
    asked = [
        *options,
        *(["-l", match["user"]] if match["user"] else []),
        *(["-p", match["port"]] if match["port"] else []),
    ]
    said = _parse(_run(["ssh", "-G", *asked, "--", named]))
    one = {key: values[0] for key, values in said.items()}
    host, port = one["hostname"], int(one["port"])
    alias = one.get("hostkeyalias", "none")
    known_as = alias if alias != "none" else (host if port == 22 else f"[{host}]:{port}")
    files = [*_files(one.get("userknownhostsfile", "")), *_files(one.get("globalknownhostsfile", ""))]
    return Resolved(
        host=host,
        port=port,
        user=one["user"],
        identities=tuple(path for path in map(_expand, said.get("identityfile", [])) if Path(path).is_file()),
        agent=_agent(one.get("identityagent", "SSH_AUTH_SOCK")),
        only_files=one.get("identitiesonly") == "yes",
        host_keys=_known(known_as, files),
        proxy=_proxy(one, options, host, port, named),
    )


def _parse(text: str) -> dict[str, list[str]]:
    said: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        said.setdefault(key, []).append(value.strip())
    return said


def _files(said: str) -> Iterator[str]:
    """The files that exist among names that `ssh -G` sets apart by blanks, and does not quote where they hold one."""
    words = said.split(" ")
    while words:
        for count in range(len(words), 0, -1):
            path = _expand(" ".join(words[:count]))
            if Path(path).is_file():
                yield path
                break
        words = words[count:]


def _known(name: str, files: list[str]) -> tuple[str, ...]:
    keys: list[str] = []
    revoked: set[str] = set()
    for file in files:
        found = subprocess.run(
            ["ssh-keygen", "-F", name, "-f", file],
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        for line in found.stdout.splitlines():
            words = line.split()
            if line.startswith("@revoked"):
                revoked.add(" ".join(words[2:4]))
            elif words and not line.startswith(("#", "@")) and len(words) >= 3:
                keys.append(" ".join(words[1:3]))
    good = [key for key in dict.fromkeys(keys) if key not in revoked and key.split()[0] in _PREFERRED]
    return tuple(sorted(good, key=lambda key: _PREFERRED.index(key.split()[0])))


def _agent(said: str) -> str | None:
    if said == "none":
        return None
    if said == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK")
    if said.startswith("$"):
        return os.environ.get(said.strip("${}"))
    return _expand(said)


def _proxy(one: dict[str, str], options: list[str], host: str, port: int, named: str) -> tuple[str, ...] | None:
    command = one.get("proxycommand", "none")
    if command != "none":
        fill = {"%%": "%", "%h": host, "%p": str(port), "%r": one["user"], "%n": named}
        return ("sh", "-c", "exec " + re.sub("%[%hprn]", lambda match: fill[match[0]], command))
    jumps = one.get("proxyjump", "none")
    if jumps == "none":
        return None
    *before, last = jumps.split(",")
    through = ["-J", ",".join(before)] if before else []
    strict = [
        "-o",
        "BatchMode=yes",
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        "ForwardAgent=no",
        "-o",
        "ClearAllForwardings=yes",
    ]
    address = last if last.startswith("ssh://") else f"ssh://{last}"
    inner = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    # -W is a forwarding too, so it is named after ClearAllForwardings.
    return ("ssh", *options, *strict, *through, "-W", inner, address)


def _expand(path: str) -> str:
    return str(Path(path).expanduser())


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, check=False
        )
    except FileNotFoundError as error:
        raise LinkError("OpenSSH's `ssh` is not installed", hint="install the package openssh-client") from error
    except subprocess.TimeoutExpired as error:
        raise LinkError(f"`{shlex.join(command)}` did not answer within {TIMEOUT_S} s") from error
    if done.returncode != 0:
        raise UsageError(f"the SSH configuration can't be used: {done.stderr.strip()}")
    return done.stdout
