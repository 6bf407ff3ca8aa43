"""A real OpenSSH server on a loopback port, with its own keys, home and configuration; as root or as anybody.

    with Sshd(tmp_path / "host") as sshd:
        link = Link(sshd.address())

It serves the user that runs the tests. What a log-in sees as HOME is the folder `home`, so that nothing lands in
the user's own.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from rehearsal.boxes import Address
from rehearsal.boxes.keys import mint

SBIN = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
SSHD = shutil.which("sshd", path=SBIN)
MISSING = (
    "" if SSHD and shutil.which("ssh") else "OpenSSH's sshd and ssh are not installed (openssh-server, openssh-client)"
)
IS_ROOT = os.geteuid() == 0


def _version() -> tuple[int, ...]:
    said = "" if MISSING else subprocess.run(["ssh", "-V"], capture_output=True, text=True, check=True).stderr
    found = re.search(r"OpenSSH_(\d+)\.(\d+)", said)
    return tuple(map(int, found.groups())) if found else ()


# From 9.8 on a server shuts out an address that was refused before, and here all have the same one.
NO_PENALTIES = ["PerSourcePenalties no"] if _version() >= (9, 8) else []
START_S = 10  # a start takes 20 ms here; the rest is for a busy machine


class Sshd:
    """One server. A context manager; `stop` and `start` again keep port, keys and home.

    folder        made for it
    options       further lines of sshd_config; they win over the ones here
    environment   what a log-in gets besides HOME
    listen        the address it listens on
    wrap          a command that starts the server inside something (a mount namespace): its words come first
    """

    def __init__(
        self,
        folder: Path,
        *,
        options: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        listen: str = "127.0.0.1",
        wrap: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.keys = folder / "keys"
        self.host = listen
        self.user = getpass.getuser()
        self.home.mkdir(parents=True, exist_ok=True)
        mint(self.keys)
        self.identity = self.keys / "id_ed25519"
        self.host_key = (self.keys / "host_ed25519.pub").read_text().strip()
        self.port = _free_port(listen)
        self._wrap = wrap
        self._process: subprocess.Popen[bytes] | None = None
        shutil.copy(self.keys / "id_ed25519.pub", self.keys / "authorized_keys")
        seen = {"HOME": str(self.home), **(environment or {})}
        (folder / "sshd_config").write_text(
            "\n".join(
                [
                    *options,
                    *NO_PENALTIES,
                    f"ListenAddress {f'[{listen}]' if ':' in listen else listen}:{self.port}",
                    f"HostKey {self.keys / 'host_ed25519'}",
                    f"AuthorizedKeysFile {self.keys / 'authorized_keys'}",
                    f"SetEnv {' '.join(f'{name}={value}' for name, value in seen.items())}",
                    "PermitRootLogin prohibit-password",
                    "PasswordAuthentication no",
                    "KbdInteractiveAuthentication no",
                    "StrictModes no",
                    "UsePAM no",
                    "PidFile none",
                    "PrintMotd no",
                    "",
                ]
            )
        )

    def __enter__(self) -> Sshd:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it greets."""
        assert SSHD is not None
        if IS_ROOT:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where a privileged sshd insists on a folder
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [*self._wrap, SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while not self._greets():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"sshd did not start: {self.log[-2000:]}")
            time.sleep(0.01)

    def stop(self) -> None:
        """End the server and every connection; what a connection left running in the background stays."""
        if self._process is None:
            return
        self.signal_connections(signal.SIGCONT)
        processes = self._servers()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait(START_S)
        self._process = None
        deadline = time.monotonic() + START_S
        while any(map(_is_alive, processes)) and time.monotonic() < deadline:
            time.sleep(0.005)

    def signal_connections(self, number: signal.Signals) -> int:
        """Send a signal to the processes that serve a connection, not to the one that listens; how many there are."""
        connections = self._servers()[1:]
        for process in connections:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        return len(connections)

    @property
    def log(self) -> str:
        """What the server said."""
        return (self.folder / "log").read_text(errors="replace")

    @property
    def name(self) -> str:
        """How known_hosts names it."""
        return f"[{self.host}]:{self.port}"

    @property
    def target(self) -> str:
        """What `--host` takes."""
        return f"{self.user}@{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def address(self, **changed: Any) -> Address:
        """Its address with the pinned key and the right identity; `changed` replaces fields."""
        fields: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "user": self.user,
            "directory": f"{self.home}/box",
            "isolation": "not sealed",
            "host_key": self.host_key,
            "identity": str(self.identity),
        }
        return Address(**{**fields, **changed})

    def known_hosts(self) -> Path:
        """A known_hosts that holds this one host."""
        path = self.folder / "known_hosts"
        path.write_text(f"{self.name} {self.host_key}\n")
        return path

    def ssh_config(self, *first: str, known_hosts: Path | None = None, identity: Path | None = None) -> str:
        """An ssh_config with which OpenSSH reaches this host; the lines `first` come first, so they win."""
        path = self.folder / f"ssh_config-{len(list(self.folder.glob('ssh_config-*')))}"
        path.write_text(
            "\n".join(
                [
                    *first,
                    "Host *",
                    f"  UserKnownHostsFile {known_hosts or self.known_hosts()}",
                    "  GlobalKnownHostsFile none",
                    f"  IdentityFile {identity or self.identity}",
                    "",
                ]
            )
        )
        return str(path)

    def _greets(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.host, self.port), 1) as stream:
            return stream.recv(4) == b"SSH-"
        return False

    def _servers(self) -> list[psutil.Process]:
        """The listener and then its connections, each an sshd; not the commands that they run."""
        assert self._process is not None
        try:
            listener = psutil.Process(self._process.pid)
            return [listener, *(child for child in listener.children(recursive=True) if _is_sshd(child))]
        except psutil.NoSuchProcess:
            return []


def _is_sshd(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.name().startswith("sshd"))
    return False


def _is_alive(process: psutil.Process) -> bool:
    """Whether it runs; a zombie that its new parent has not noticed does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def _free_port(listen: str) -> int:
    family = socket.AF_INET6 if ":" in listen else socket.AF_INET
    with socket.socket(family) as stream:
        stream.bind((listen, 0))
        return int(stream.getsockname()[1])


@contextlib.contextmanager
def ssh_agent(folder: Path, *keys: Path) -> Iterator[str]:
    """A real ssh-agent that holds `keys` (files that have no passphrase any more); the path of its socket."""
    folder.mkdir(parents=True, exist_ok=True)
    where = str(folder / "agent")
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", where], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_S
        while not Path(where).is_socket() and time.monotonic() < deadline:
            time.sleep(0.01)
        for key in keys:
            environment = {**os.environ, "SSH_AUTH_SOCK": where}
            subprocess.run(["ssh-add", "-q", str(key)], env=environment, check=True, stdin=subprocess.DEVNULL)
        yield where
    finally:
        agent.terminate()
        agent.wait()
