"""A machine that already exists and answers SSH. Everything lands in one directory, and dies with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rehearsal.boxes import Address, Presence, Record, Request, ssh, ssh_config
from rehearsal.boxes.box import Box
from rehearsal.boxes.ssh import KeyRefused, Link
from rehearsal.runner.errors import LinkError, RehearsalError, UsageError

MOST_KEYS = 6  # log-ins that are tried; sshd's own MaxAuthTries is 6

# The first of these that can be written to: a host may have a read-only home.
_BASE = 'for base in "$HOME" /var/tmp /tmp; do [ -d "$base" ] && [ -w "$base" ] && printf "%s" "$base" && break; done'


class Host:
    """The driver `host`; the contract stands in `boxes/__init__.py`. It makes and destroys one directory, no machine.

    `config` is an OpenSSH configuration file to be read instead of the user's own.
    """

    def __init__(self, config: str | None = None) -> None:
        self._config = config

    def create(self, request: Request) -> Address:
        """Find out how to reach the host, and in which directory the box will be."""
        if request.target is None:
            raise UsageError("the box `host` needs a machine", hint="add --host user@name[:port]")
        resolved = ssh_config.resolve(request.target, self._config)
        if not resolved.host_keys:
            raise LinkError(
                f"the host key of {resolved.host}:{resolved.port} is not in known_hosts",
                hint=f"look at its fingerprint once: ssh -p {resolved.port} {resolved.user}@{resolved.host}",
            )
        refused: KeyRefused | None = None
        for address in list(_candidates(resolved))[:MOST_KEYS]:
            try:
                with Link(address) as link:
                    base = link.script(_BASE).text.strip()
                    return replace(address, host_key=link.server_key, directory=f"{base}/.rehearsal-{request.box_id}")
            except KeyRefused as error:
                refused = error
        raise refused or LinkError(
            f"there is no key to log in to {resolved.user}@{resolved.host}:{resolved.port} with",
            hint="set IdentityFile in your ssh_config, or ssh-add a key",
        )

    def destroy(self, record: Record) -> None:
        """End the box's processes and remove its directory on the host."""
        if record.address is not None:
            with Link(record.address) as link:
                Box(record.address, link).wipe()

    def presence(self, record: Record) -> Presence:
        """Look on the host; a host that can't be reached is `unknown`."""
        if record.address is None:
            return Presence.ABSENT  # the ledger writes the address before the first thing is made there
        try:
            with Link(record.address) as link:
                return Box(record.address, link).presence()
        except (RehearsalError, OSError):
            return Presence.UNKNOWN


def _candidates(resolved: ssh_config.Resolved) -> Iterator[Address]:
    """One address for each key worth trying: the configured files first, then what else the agent holds."""
    address = Address(
        host=resolved.host,
        port=resolved.port,
        user=resolved.user,
        directory="",
        isolation="not sealed",
        host_key=resolved.host_keys[0],
        agent=resolved.agent,
        proxy=resolved.proxy,
    )
    held = [] if resolved.agent is None else ssh.agent_names(resolved.agent)
    for identity in resolved.identities:
        problem = ssh.usable(identity)
        if problem is None:
            yield replace(address, identity=identity)
        elif problem == "passphrase" and (name := ssh.public_name(identity)) in held:
            held.remove(name)
            yield replace(address, identity=name)
    if not resolved.only_files:
        for name in held:
            yield replace(address, identity=name)
