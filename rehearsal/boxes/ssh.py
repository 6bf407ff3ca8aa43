"""The SSH connection to a box: the only import of Fabric and Paramiko.

What Fabric and Paramiko do by default and must not do here (each measured): accept any host key, forward the
agent when the user's configuration says so, offer every key of the agent, drain standard input, decode output by
the block, wait for an hour, print tracebacks. So a Link pins the host's key, offers one identity, gives every
remote command its own standard input, keeps output as bytes, and bounds every wait and every answer.
"""

from __future__ import annotations

import base64
import contextlib
import logging
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
ANSWER = 64 << 20  # bytes that a remote command may print, and as many to standard error
NOISE = 1 << 20  # bytes that log-in files may print before
_BLOCK = 65536
# Python shows on standard error what a logger without a handler is told, and Paramiko tells its own whole tracebacks.
logging.getLogger("paramiko").addHandler(logging.NullHandler())

_CAT = """\
[ -e "$1" ] || { echo "$1: No such file" >&2; exit 66; }
[ -f "$1" ] && [ ! -h "$1" ] || { echo "$1: not a regular file" >&2; exit 66; }
cat -- "$1"
"""

Handler = Callable[[Any], None]
Take = Callable[[bytes], object]


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

    def script(
        self, text: str, *arguments: str, timeout: float = COMMAND_S, check: bool = True, limit: int = ANSWER
    ) -> Answer:
        """Run a POSIX shell script on the box, with `$1`, `$2`, … from `arguments`.

        Script and arguments travel over standard input to `sh -s`, so that no login shell's quoting and no
        process list sees them; a random marker frames the answer, so that a chatty login file does no harm.
        Raises BoxError where it fails (unless `check` is off) or prints more than `limit` bytes, LinkError where it
        takes longer than `timeout` seconds.
        """
        output = bytearray()
        errors, code = self._framed(text, arguments, output.extend, limit, timeout)
        if check and code != 0:
            raise BoxError(f"{self._where}: a command ended with {code}: {_tail(errors) or 'no output'}")
        return Answer(bytes(output), errors, code)

    def _framed(self, text: str, arguments: tuple[str, ...], take: Take, limit: int, timeout: float) -> tuple[str, int]:
        """Run a script as `script` says and give `take` its output, block by block; its errors and exit code."""
        mark = secrets.token_hex(16)
        quoted = " ".join(shlex.quote(argument) for argument in arguments)
        # In two halves, so that something which only echoes its input does not look like a shell.
        program = (
            f"main() {{\n{text}\n}}\nprintf '%s%s\\n' {mark[:16]} {mark[16:]}\nmain {quoted} </dev/null\nexit $?\n"
        )
        frame = _Frame(mark.encode() + b"\n", _Limited(f"{self._where} answered", take, limit))
        errors, code = self._execute("sh -s", [program.encode()], frame, timeout)
        if not frame.begun:
            raise BoxError(f"{self._where}: no POSIX shell answered: {_tail(errors) or 'no output'}")
        return errors, code

    def send(self, program: str, argument: str, chunks: Iterable[bytes], *, timeout: float) -> None:
        """Feed `chunks` to the standard input of `sh -c PROGRAM sh ARGUMENT`.

        `program` is one line without quotes, backslashes or `!`, the same in every login shell.
        """
        unheard = _Limited(f"{self._where} answered an upload", lambda _block: None, NOISE)
        errors, code = self._execute(f"sh -c '{program}' sh {shlex.quote(argument)}", chunks, unheard, timeout)
        if code != 0:
            raise BoxError(f"{self._where}: the upload ended with {code}: {_tail(errors)}")

    def fetch(self, path: str, target: IO[bytes], *, limit: int, timeout: float) -> None:
        """Write the bytes of the box's regular file `path` to `target` as they come.

        Raises BoxError where there is no such file, where it has more than `limit` bytes, and where `target` can't
        take them; LinkError after `timeout` seconds.
        """

        def keep(block: bytes) -> None:
            try:
                target.write(block)
            except OSError as error:
                raise BoxError(f"{path} can't be kept on this machine: {error.strerror or error}") from error

        errors, code = self._framed(_CAT, (path,), keep, limit, timeout)
        if code != 0:
            raise BoxError(f"{self._where}: a file can't be fetched: {_tail(errors) or f'exit code {code}'}")

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
        except (paramiko.SSHException, OSError, EOFError, ValueError) as error:
            if not _greeted(connection):
                raise LinkError(
                    f"{self._where} can't be reached: no SSH banner came within {CONNECT_S:g} s",
                    hint="is that the port of an SSH server, and does its machine keep up?",
                ) from error
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

    def _execute(self, command: str, stdin: Iterable[bytes], take: Take, timeout: float) -> tuple[str, int]:
        """Run `command` and give `take` its output, block by block; its standard error and exit code.

        What `take` raises ends the command's channel at once.
        """
        words = bytearray()
        hear = _Limited(f"{self._where} complained", words.extend, ANSWER)
        deadline = time.monotonic() + timeout
        try:
            channel = self._connection.transport.open_session(timeout=CONNECT_S)
            with contextlib.closing(channel):
                channel.settimeout(timeout)
                channel.exec_command(command)
                # Both streams share one window, so both are read at once: unread errors would hold up the output.
                with ThreadPoolExecutor(1) as reading:
                    complaints = reading.submit(_all, channel.recv_stderr, channel, hear, deadline)
                    # A command that ends early (a full disk) stops reading: its own words say why, so go on to them.
                    with contextlib.suppress(OSError):
                        for chunk in stdin:
                            channel.sendall(chunk)
                        channel.shutdown_write()
                    _all(channel.recv, channel, take, deadline)
                    complaints.result()
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
        return words.decode(errors="backslashreplace"), code


class _Limited:
    """Passes blocks on to `take`, up to `limit` bytes; BoxError, which begins with `who`, beyond."""

    def __init__(self, who: str, take: Take, limit: int) -> None:
        self._who = who
        self._take = take
        self._limit = limit
        self._left = limit

    def __call__(self, block: bytes) -> None:
        self._left -= len(block)
        if self._left < 0:
            raise BoxError(f"{self._who} with more than the {self._limit} bytes that are allowed")
        self._take(block)


class _Frame:
    """Passes on to `take` what comes after `mark`; BoxError where more than NOISE bytes come before it."""

    def __init__(self, mark: bytes, take: _Limited) -> None:
        self.begun = False
        self._mark = mark
        self._take = take
        self._before = bytearray()

    def __call__(self, block: bytes) -> None:
        if self.begun:
            self._take(block)
            return
        self._before += block
        _, found, rest = self._before.partition(self._mark)
        if found:
            self.begun = True
            self._take(bytes(rest))
        elif len(self._before) > NOISE:
            raise BoxError(f"no POSIX shell answered, but something that printed more than {NOISE} bytes")


class _Prompt(socket.socket):
    """A TCP stream that acknowledges at once: OpenSSH holds back its first answer (42 ms here) until it sees that."""

    def recv(self, size: int, flags: int = 0) -> bytes:
        """Bytes, and word to the sender that they are here."""
        received = super().recv(size, flags)
        if hasattr(socket, "TCP_QUICKACK"):  # Linux; it lasts for one reply
            self.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
        return received


def _all(receive: Callable[[int], bytes], channel: Any, take: Take, deadline: float) -> None:
    """Give `take` all of a channel's stream until its end; TimeoutError at `deadline` (monotonic seconds).

    Where `take` raises, the channel is closed at once, which also ends who reads its other stream.
    """
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        channel.settimeout(left)
        block = receive(_BLOCK)
        if not block:
            return
        try:
            take(block)
        except BaseException:
            channel.close()
            raise


def _greeted(connection: Connection) -> bool:
    """Whether the other side has shown an SSH banner."""
    transport = connection.client.get_transport()
    return transport is not None and bool(transport.remote_version)


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
