"""The SSH connection to a box: the only import of Fabric and Paramiko.

What Fabric and Paramiko do by default and must not do here (each measured): accept any host key, forward the
agent when the user's configuration says so, offer every key of the agent, drain standard input, decode output by
the block, wait for an hour. So a Link pins the host's key, offers one identity, gives every remote command its own
standard input, keeps output as bytes, and bounds every wait.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import shlex
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import paramiko
from fabric import Config, Connection

from rehearsal.boxes import Address
from rehearsal.runner.errors import BoxError, LinkError

CONNECT_S = 10  # for the TCP connection, the banner and the log-in, each
COMMAND_S = 30  # for a remote command that only looks or moves a little
KEEPALIVE_S = 2  # with USER_TIMEOUT_MS a dead peer is noticed in about 10 s (measured: 10.5)
USER_TIMEOUT_MS = 8000
TAIL = 400  # characters of a failed command's standard error that its message carries
_BLOCK = 65536

Handler = Callable[[Any], None]


class KeyRefused(LinkError):
    """The host is there and is the right one, and does not let this key in."""


@dataclass(frozen=True)
class Answer:
    """What a remote command printed and how it ended."""

    output: bytes
    errors: str
    code: int

    @property
    def text(self) -> str:
        """The output as text; what is not UTF-8 is shown as escapes."""
        return self.output.decode(errors="backslashreplace")


class Link:
    """One open SSH connection. A context manager. Any failure of the connection itself is a LinkError."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._proxy: subprocess.Popen[bytes] | None = None
        with _identity(address) as identity:
            stream = self._socket()
            try:
                self._connection = self._open(stream, identity)
            except BaseException:
                stream.close()
                self._end_proxy()
                raise

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def alive(self) -> bool:
        """Whether the connection is up, as far as this side knows."""
        transport = self._connection.transport
        return transport is not None and transport.is_active()

    @property
    def server_key(self) -> str:
        """The host's public key as it proved it: `ssh-ed25519 AAAA…`."""
        key = self._connection.transport.get_remote_server_key()
        return f"{key.get_name()} {key.get_base64()}"

    def script(self, text: str, *arguments: str, timeout: float = COMMAND_S, check: bool = True) -> Answer:
        """Run a POSIX shell script on the box, with `$1`, `$2`, … from `arguments`.

        Script and arguments travel over standard input to `sh -s`, so that no login shell's quoting and no
        process list sees them; a random marker frames the answer, so that a chatty login file does no harm.
        Raises BoxError where it fails (unless `check` is off) or takes longer than `timeout` seconds.
        """
        mark = secrets.token_hex(16)
        quoted = " ".join(shlex.quote(argument) for argument in arguments)
        # In two halves, so that something which only echoes its input does not look like a shell.
        program = (
            f"main() {{\n{text}\n}}\nprintf '%s%s\\n' {mark[:16]} {mark[16:]}\nmain {quoted} </dev/null\nexit $?\n"
        )
        answer = self._execute("sh -s", [program.encode()], timeout)
        _, found, output = answer.output.partition(mark.encode() + b"\n")
        if not found:
            raise BoxError(f"{self._where}: no POSIX shell answered: {_tail(answer.errors) or 'no output'}")
        answer = Answer(output, answer.errors, answer.code)
        if check and answer.code != 0:
            raise BoxError(f"{self._where}: a command ended with {answer.code}: {_tail(answer.errors) or 'no output'}")
        return answer

    def send(self, program: str, argument: str, chunks: Iterable[bytes], *, timeout: float) -> None:
        """Feed `chunks` to the standard input of `sh -c PROGRAM sh ARGUMENT`.

        `program` is one line without quotes, backslashes or `!`, the same in every login shell.
        """
        answer = self._execute(f"sh -c '{program}' sh {shlex.quote(argument)}", chunks, timeout)
        if answer.code != 0:
            raise BoxError(f"{self._where}: the upload ended with {answer.code}: {_tail(answer.errors)}")

    def fetch(self, path: str, target: IO[bytes], *, timeout: float) -> None:
        """Write the bytes of the box's file `path` to `target`."""
        answer = self.script('cat -- "$1"', path, timeout=timeout)
        target.write(answer.output)

    def forward(self, port: int, handler: Handler) -> int:
        """Let the box connect to its own 127.0.0.1:`port` (0: any) and give each connection to `handler`; the port.

        `handler` gets a Paramiko channel and runs in Paramiko's own thread, so it must return at once.
        """
        try:
            return int(
                self._connection.transport.request_port_forward(
                    "127.0.0.1", port, lambda channel, _origin, _server: handler(channel)
                )
            )
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise LinkError(
                f"{self._where}: the box refuses to forward a port: {error}",
                hint="the relay needs `AllowTcpForwarding remote` (or yes) in the host's sshd_config",
            ) from error

    def close(self) -> None:
        """End the connection and its proxy; safe to call twice."""
        with contextlib.suppress(Exception):
            self._connection.close()
        self._end_proxy()

    def _end_proxy(self) -> None:
        if self._proxy is not None:
            self._proxy.kill()
            self._proxy.wait()

    @property
    def _where(self) -> str:
        if self._address.socket is not None:
            return f"the box at {self._address.socket}"
        return f"{self._address.user}@{self._address.host}:{self._address.port}"

    def _open(self, stream: socket.socket, identity: Any) -> Connection:
        address = self._address
        connection = Connection(
            host=address.host,
            user=address.user,
            port=address.port,
            config=Config(lazy=True, overrides={"load_ssh_configs": False}),
            forward_agent=False,
            connect_timeout=CONNECT_S,
            connect_kwargs={
                "allow_agent": False,
                "look_for_keys": False,
                "pkey": identity,
                "banner_timeout": CONNECT_S,
                "auth_timeout": CONNECT_S,
                "channel_timeout": CONNECT_S,
                "sock": stream,
            },
        )
        _pin(connection.client, address)
        try:
            connection.open()
        except paramiko.BadHostKeyException as error:
            raise LinkError(
                f"{self._where} shows another host key than the pinned one ({error.key.get_name()})",
                hint="if the host was made anew, update known_hosts; otherwise somebody stands between",
            ) from error
        except paramiko.AuthenticationException as error:
            raise KeyRefused(f"{self._where} refuses the key: {error}", hint=f"offered: {address.identity}") from error
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise LinkError(f"{self._where} can't be reached: {error or type(error).__name__}") from error
        connection.transport.set_keepalive(KEEPALIVE_S)
        return connection

    def _socket(self) -> socket.socket:
        """A connected stream to the host: its Unix socket, its jump host's, or TCP."""
        address = self._address
        try:
            if address.socket is not None:
                stream = socket.socket(socket.AF_UNIX)
                stream.settimeout(CONNECT_S)
                stream.connect(address.socket)
                return stream
            if address.proxy is not None:
                return self._through(address.proxy)
            stream = _Prompt(fileno=socket.create_connection((address.host, address.port), CONNECT_S).detach())
            stream.settimeout(CONNECT_S)
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # else each command waits 40 ms for an ACK
            if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, USER_TIMEOUT_MS)
        except OSError as error:
            raise LinkError(f"{self._where} can't be reached: {error.strerror or error}") from error
        return stream

    def _through(self, proxy: tuple[str, ...]) -> socket.socket:
        ours, theirs = socket.socketpair()
        try:
            self._proxy = subprocess.Popen(
                proxy,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return ours

    def _execute(self, command: str, stdin: Iterable[bytes], timeout: float) -> Answer:
        deadline = time.monotonic() + timeout
        try:
            channel = self._connection.transport.open_session(timeout=CONNECT_S)
            with contextlib.closing(channel):
                channel.settimeout(timeout)
                channel.exec_command(command)
                # Both streams share one window, so both are read at once: unread errors would hold up the output.
                with ThreadPoolExecutor(1) as reading:
                    words = reading.submit(_all, channel.recv_stderr, channel, deadline)
                    # A command that ends early (a full disk) stops reading: its own words say why, so go on to them.
                    with contextlib.suppress(OSError):
                        for chunk in stdin:
                            channel.sendall(chunk)
                        channel.shutdown_write()
                    output = _all(channel.recv, channel, deadline)
                    errors = words.result()
                if not channel.status_event.wait(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError
                code = channel.exit_status
        except TimeoutError as error:
            self.close()
            raise LinkError(f"{self._where} did not answer within {timeout:g} s") from error
        except (paramiko.SSHException, OSError, EOFError, AttributeError) as error:
            raise LinkError(f"{self._where}: the connection was lost: {error or type(error).__name__}") from error
        if code < 0 and not self.alive:
            raise LinkError(f"{self._where}: the connection was lost")
        return Answer(output, errors.decode(errors="backslashreplace"), code)


class _Prompt(socket.socket):
    """A TCP stream that acknowledges at once: OpenSSH holds back its first answer (42 ms here) until it sees that."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Bytes, and word to the sender that they are here."""
        received = super().recv(size, flags)
        if hasattr(socket, "TCP_QUICKACK"):  # Linux; it lasts for one reply
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return received


def _all(receive: Callable[[int], bytes], channel: Any, deadline: float) -> bytes:
    """All that a channel's stream gives until its end; TimeoutError at `deadline` (monotonic seconds)."""
    blocks: list[bytes] = []
    while True:
        channel.settimeout(max(0.01, deadline - time.monotonic()))
        block = receive(_BLOCK)
        if not block:
            return b"".join(blocks)
        blocks.append(block)


def _pin(client: Any, address: Address) -> None:
    client.set_missing_host_key_policy(paramiko.RejectPolicy())
    if address.host_key is None:
        return  # then nothing is accepted
    kind, _, blob = address.host_key.partition(" ")
    name = address.host if address.port == 22 else f"[{address.host}]:{address.port}"
    entry = paramiko.hostkeys.HostKeyEntry.from_line(f"{name} {kind} {blob}")
    client.get_host_keys().add(name, kind, entry.key)


@contextlib.contextmanager
def _held_by(agent: str | None) -> Iterator[tuple[Any, ...]]:
    """The keys of the SSH agent at the socket `agent` (None: the environment's); they work until the block ends."""
    before = os.environ.get("SSH_AUTH_SOCK")
    if agent is not None:
        os.environ["SSH_AUTH_SOCK"] = agent  # Paramiko takes the socket from nowhere else
    try:
        opened = paramiko.Agent()
    except (paramiko.SSHException, OSError):
        opened = None
    finally:
        if agent is not None:
            os.environ.pop("SSH_AUTH_SOCK", None)
            if before is not None:
                os.environ["SSH_AUTH_SOCK"] = before
    try:
        yield () if opened is None else opened.get_keys()
    finally:
        if opened is not None:
            opened.close()


def agent_names(agent: str | None) -> list[str]:
    """How addresses name the keys that the SSH agent at the socket `agent` (None: the environment's) holds."""
    with _held_by(agent) as keys:
        return [agent_name(key) for key in keys]


def agent_name(key: Any) -> str:
    """How an address names a key of the agent."""
    return f"agent:{key.fingerprint}"


def usable(identity: str) -> str | None:
    """None where the key file `identity` can be used as it is; 'passphrase' or 'unusable' otherwise."""
    try:
        paramiko.PKey.from_path(identity)
    except (paramiko.PasswordRequiredException, TypeError):  # TypeError: cryptography's, which Paramiko lets through
        return "passphrase"
    except Exception:
        return "unusable"
    return None


def public_name(identity: str) -> str:
    """How an address would name the key file `identity` if the agent held it; '' where its .pub is not there."""
    try:
        kind, blob = Path(f"{identity}.pub").read_text(encoding="utf-8").split()[:2]
        return agent_name(paramiko.PKey.from_type_string(kind, base64.b64decode(blob)))
    except (OSError, ValueError, paramiko.SSHException):
        return ""


@contextlib.contextmanager
def _identity(address: Address) -> Iterator[Any]:
    """The one key to log in with, usable until the block ends: a Paramiko key, or None where the address has none."""
    identity = address.identity
    if identity is not None and identity.startswith("agent:"):
        with _held_by(address.agent) as keys:
            found = [key for key in keys if agent_name(key) == identity]
            if not found:
                raise LinkError(
                    f"the SSH agent does not hold the key {identity.removeprefix('agent:')}", hint="ssh-add it"
                )
            yield found[0]
        return
    try:
        key = None if identity is None else paramiko.PKey.from_path(identity)
    except (paramiko.SSHException, OSError, ValueError, TypeError) as error:
        raise LinkError(
            f"the key {identity} can't be used: {error}", hint="a passphrase key must be in the agent"
        ) from error
    yield key


def _tail(text: str) -> str:
    return " ".join(text.split())[-TAIL:]
