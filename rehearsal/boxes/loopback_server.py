"""THE BOX of the loopback driver: an SSH server that runs commands in its own directory, and nothing else.

Runs as a program of its own with an isolated interpreter, knows no other file of the kit, and imports only
AsyncSSH: `python3 -I -S loopback_server.py HOME LISTENER_FD SITE...`. The keys come as one line of JSON on
standard input (`host_key`, `client_key`), so that no file and no argument holds them. The end of standard
input is the end of the box: foreground commands are killed and the server exits.

It answers public-key authentication with that one key, exec channels (`/bin/sh -c`), and reverse forwarding
from 127.0.0.1. It refuses everything else: terminals, shells, subsystems, direct-tcpip, agent and X11.
"""

from __future__ import annotations

import asyncio
import ctypes.util
import json
import os
import signal
import socket
import sys
from typing import ClassVar

HOME, LISTENER, SITES = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
# AsyncSSH looks for optional C libraries by running ldconfig and gcc: 30 to 60 ms, and none is wanted.
ctypes.util.find_library = lambda name: None  # noqa: ARG005
sys.path += SITES

import asyncssh  # noqa: E402  found only now

# All that a command sees. The server's own environment holds the same names, but may gain others (LC_CTYPE).
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "LANG")}


class Command(asyncssh.SSHServerSession[bytes]):
    """One exec channel, the client's side of it: feeds a command and ends it when the channel ends."""

    running: ClassVar[set[Command]] = set()

    def connection_made(self, chan: asyncssh.SSHServerChannel[bytes]) -> None:
        """The channel is open."""
        self.channel = chan
        self.process: asyncio.SubprocessTransport | None = None
        self.early: list[bytes] = []  # input that came before the command stood
        self.lost = self.ended = False

    def exec_requested(self, command: str) -> bool:
        """Any command is welcome."""
        self.command = command
        return True

    def session_started(self) -> None:
        """Start the command."""
        Command.running.add(self)
        self.starting = asyncio.create_task(self.start())

    async def start(self) -> None:
        """Start `/bin/sh -c` as the leader of a session, so that all its foreground can be killed at once."""
        loop = asyncio.get_running_loop()
        try:
            self.process, _ = await loop.subprocess_exec(
                lambda: Output(self), "/bin/sh", "-c", self.command,
                env=ENVIRONMENT, cwd=HOME, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            self.channel.write(f"{error}\n".encode(), asyncssh.EXTENDED_DATA_STDERR)
            self.channel.exit(126)
            return
        if self.lost:
            self.kill()
            return
        for data in self.early:
            self.data_received(data, None)
        if self.ended:
            self.eof_received()

    @property
    def stdin(self) -> asyncio.WriteTransport | None:
        """The command's standard input, as soon as the command stands."""
        pipe = self.process.get_pipe_transport(0) if self.process else None
        return pipe if isinstance(pipe, asyncio.WriteTransport) else None

    @property
    def outputs(self) -> list[asyncio.ReadTransport]:
        """The command's standard output and standard error."""
        pipes = [self.process.get_pipe_transport(fd) for fd in (1, 2)] if self.process else []
        return [pipe for pipe in pipes if isinstance(pipe, asyncio.ReadTransport)]

    def data_received(self, data: bytes, datatype: int | None) -> None:  # noqa: ARG002
        """Hand input on, unless the command has closed its standard input."""
        if not self.process:
            self.early.append(data)
        elif self.stdin and not self.stdin.is_closing():
            self.stdin.write(data)

    def eof_received(self) -> bool:
        """Close the command's standard input; True keeps the channel open for its output."""
        self.ended = True
        if self.stdin:
            self.stdin.close()
        return True

    def pause_writing(self) -> None:
        """The client reads too slowly: stop reading from the command."""
        for stream in self.outputs:
            stream.pause_reading()

    def resume_writing(self) -> None:
        """The client has caught up."""
        for stream in self.outputs:
            stream.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Whatever the reason, the channel is gone: so is its foreground command."""
        self.lost = True
        Command.running.discard(self)
        self.kill()

    def kill(self) -> None:
        """Kill the command's process group, and let go of the pipes. Sessions that it split off live on."""
        if self.process is None:
            return
        if self.process.get_returncode() is None:
            os.killpg(self.process.get_pid(), signal.SIGKILL)
        self.process.close()

    def finish(self, status: int) -> None:
        """Tell the client how the command ended: its exit status, or minus the signal's number."""
        if self.channel.is_closing():
            return
        if status >= 0:
            self.channel.exit(status)
        elif -status in set(signal.Signals):
            self.channel.exit_with_signal(signal.Signals(-status).name.removeprefix("SIG"))
        else:  # a real-time signal without a name
            self.channel.exit(128 - status)


class Output(asyncio.SubprocessProtocol):
    """The command's side of an exec channel."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.waiting_for = {1, 2, "exit"}
        self.status = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The command runs."""
        assert isinstance(transport, asyncio.SubprocessTransport)
        self.transport = transport

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Hand output on."""
        if not self.command.channel.is_closing():
            self.command.channel.write(data, asyncssh.EXTENDED_DATA_STDERR if fd == 2 else None)

    def pause_writing(self) -> None:
        """The command reads its input too slowly."""
        self.command.channel.pause_reading()

    def resume_writing(self) -> None:
        """The command has caught up.

        Not at once: what comes of it may end with an end of file, and a pipe of asyncio's that is closed from
        within this call drops its last block (seen in one of five transfers of 10 MB, Python 3.11).
        """
        asyncio.get_running_loop().call_soon(self.command.channel.resume_reading)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002
        """A stream has ended. Input that nobody reads is dropped: the channel's end would wait behind it."""
        if fd == 0:
            self.command.channel.resume_reading()
        self.done(fd)

    def process_exited(self) -> None:
        """The command has ended; its output may not have been read yet."""
        self.status = self.transport.get_returncode() or 0
        self.done("exit")

    def done(self, what: int | str) -> None:
        """Close the channel when the command has ended and its output too, as OpenSSH does."""
        self.waiting_for.discard(what)
        if not self.waiting_for:
            self.command.finish(self.status)


class Door(asyncssh.SSHServer):
    """What a connection may ask for."""

    def session_requested(self) -> Command:
        """A channel for one command."""
        return Command()

    def server_requested(self, listen_host: str, listen_port: int) -> bool:  # noqa: ARG002
        """Reverse forwarding, for what runs in the box and for nobody else."""
        return listen_host == "127.0.0.1"


async def serve() -> None:
    """Serve until standard input ends."""
    keys = json.loads(sys.stdin.buffer.readline())
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(0, ended.set)
    waiter = asyncio.create_task(ended.wait())
    await asyncssh.listen(
        sock=socket.socket(fileno=LISTENER),
        server_factory=Door,
        server_host_keys=[asyncssh.import_private_key(keys["host_key"])],
        authorized_client_keys=asyncssh.import_authorized_keys(keys["client_key"]),
        password_auth=False,
        kbdint_auth=False,
        host_based_auth=False,
        gss_host=None,
        allow_pty=False,
        agent_forwarding=False,
        x11_forwarding=False,
        compression_algs=None,
        encoding=None,
    )
    while not ended.is_set():
        # AsyncSSH keeps the end of a channel to itself while unread input is paused; close() makes it tell.
        for command in list(Command.running):
            if command.channel.is_closing():
                command.channel.close()
        await asyncio.wait({waiter}, timeout=1)
    for command in list(Command.running):
        command.kill()
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(serve())
