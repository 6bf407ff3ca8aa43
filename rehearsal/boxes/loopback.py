"""The loopback box: a real SSH server on this machine, in a throwaway directory.

Where bubblewrap can run, the server lives in namespaces of its own without any network ('sealed'); elsewhere
it is a plain process with a clean environment ('not sealed'). Either way it is reached over a Unix socket.

    <TMPDIR>/rehearsal-<uid>-<box_id>/     0700
        home/           all that the box may write: /box inside, when sealed
        bin/python3     the interpreter that runs the kit (not sealed)
        ssh             the socket
        log             what server and warden wrote to standard error
        address.json    written when the box answers

The first command makes `Address.directory`: it does not exist yet, its parent does and is empty.
"""

from __future__ import annotations

import json
import os
import re
import socket
import stat
import subprocess
import tempfile
import time
from pathlib import Path
from typing import BinaryIO

import psutil

from rehearsal.boxes import Address, Presence, Record, Request
from rehearsal.boxes import loopback_seal as seal
from rehearsal.boxes import loopback_warden as warden
from rehearsal.runner.errors import BoxError

WAIT_S = 30  # for a new box to answer (the driver contract); measured 0.3 to 0.5 s
SOCKET_BYTES = 103  # sun_path holds 104 bytes with its NUL on macOS, 108 on Linux
HERE = Path(__file__).parent

# Wardens that this process started: the open pipe to each is the box's lifeline.
_WARDENS: dict[Path, subprocess.Popen[bytes]] = {}


class Loopback:
    """The driver; `seal` None: sealed where that can be; True: always, or BoxError; False: never."""

    def __init__(self, seal: bool | None = None) -> None:
        self._seal = seal

    def create(self, request: Request) -> Address:
        """Make the box, or find the one that this request made before; BoxError where it doesn't answer."""
        directory = _new_directory(request.box_id)
        if directory.exists() and (address := _standing(directory)):
            return address
        record = Record(request.box_id, "loopback", request.keys, request.target, None)
        self.destroy(record)  # what an interrupted create left
        sealed = self._sealed()
        try:
            return _make(request, directory, sealed)
        except OSError as error:
            self.destroy(record)
            raise BoxError(f"box {request.box_id} could not be made: {error}") from error
        except BaseException:
            self.destroy(record)
            raise

    def destroy(self, record: Record) -> None:
        """End the box's processes and remove its directory; BoxError names what resisted."""
        directory = _directory_of(record)
        if self.presence(record) is Presence.UNKNOWN:
            raise BoxError(
                f"box {record.box_id}: {directory} is not this user's to look into", hint="remove it by hand"
            )
        try:
            _dismiss(directory)
            warden.clear(directory)
            warden.remove(directory)
        except OSError as error:
            raise BoxError(f"box {record.box_id} is not gone: {error}", hint=f"look at {directory}") from error

    def presence(self, record: Record) -> Presence:
        """Whether its directory or a process of it is there; somebody else's directory is `unknown`."""
        directory = _directory_of(record)
        try:
            status = directory.lstat()
        except FileNotFoundError:
            return Presence.PRESENT if warden.occupants(directory) else Presence.ABSENT
        except OSError:
            return Presence.UNKNOWN
        ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        return Presence.PRESENT if ours else Presence.UNKNOWN

    def _sealed(self) -> bool:
        if self._seal and seal.obstacle():
            raise BoxError(f"the box can't be sealed: {seal.obstacle()}")
        return not seal.obstacle() if self._seal is None else self._seal


def _new_directory(box_id: str) -> Path:
    """Where a new box of that id goes; a place whose socket's path is short enough for every system."""
    if not re.fullmatch(r"[a-z0-9-]+", box_id):
        raise BoxError(f"{box_id!r} is no box id", hint="use small letters, digits and hyphens")
    name = f"rehearsal-{os.getuid()}-{box_id}"
    directory = Path(tempfile.gettempdir(), name)
    fits = len(os.fsencode(directory / "ssh")) <= SOCKET_BYTES
    return directory if fits else Path("/tmp", name)  # noqa: S108  made with 0700


def _directory_of(record: Record) -> Path:
    """Where a box is: beside its socket, or where its keys' note says, or where a new one would go.

    The note is for a box whose `create` never returned, looked for by a process with another TMPDIR.
    """
    directory = _new_directory(record.box_id)
    if record.address and record.address.socket:
        known = Path(record.address.socket).parent
    else:
        note = _note(record.keys)
        known = Path(note.read_text()) if note.is_file() else directory
    return known if known.name == directory.name else directory


def _note(keys: Path) -> Path:
    return keys / "loopback-directory"


def _make(request: Request, directory: Path, sealed: bool) -> Address:
    """Lay out the directory, start the warden, wait for the server's greeting."""
    _note(request.keys).write_text(str(directory))
    directory.mkdir(mode=0o700)
    home = directory / "home"
    home.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as listener, (directory / "log").open("w+b") as log:
        listener.bind(str(directory / "ssh"))
        listener.listen(128)
        orders = _orders(request, directory, sealed, listener.fileno())
        process = subprocess.Popen(
            [seal.PYTHON, "-I", "-S", warden.__file__, str(directory), str(listener.fileno())],
            stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=directory, env=orders.env,
            start_new_session=True, pass_fds=[listener.fileno()],
        )  # fmt: skip
        _WARDENS[directory] = process
        listener.close()  # or a server that ended would look like one that is slow
        try:
            assert process.stdin
            process.stdin.write(json.dumps(vars(orders)).encode() + b"\n")
            process.stdin.flush()
            _await_greeting(directory / "ssh")
        except OSError as error:
            _dismiss(directory)
            raise OSError(f"{error}{_tail(log)}") from error
    address = Address(
        host="loopback",
        port=22,
        user="box",
        directory=f"{seal.HOME if sealed else home}/run",
        isolation="sealed" if sealed else "not sealed",
        socket=str(directory / "ssh"),
        host_key=" ".join((request.keys / "host_ed25519.pub").read_text().split()[:2]),
        identity=str(request.keys / "id_ed25519"),
    )
    written = directory / "address.json.part"
    written.write_text(json.dumps(address.to_json()))
    written.rename(directory / "address.json")
    return address


def _orders(request: Request, directory: Path, sealed: bool, listener: int) -> warden.Orders:
    """What the warden is to start, and until when."""
    home, server, modules = directory / "home", str(HERE / "loopback_server.py"), seal.module_files()
    if sealed:
        files = {seal.SERVER: server} | {f"{seal.SITE}/{file.name}": str(file) for file in modules}
        inside = ["/kit/bin/python3", "-I", "-S", seal.SERVER, seal.HOME, str(listener), seal.SITE]
        argv, env = [*seal.sandbox(home, files), *inside], seal.ENVIRONMENT
    else:
        (directory / "bin").mkdir()
        (directory / "bin" / "python3").symlink_to(seal.PYTHON)
        sites = sorted({str(file.parent) for file in modules})
        argv = [seal.PYTHON, "-I", "-S", server, str(home), str(listener), *sites]
        env = seal.ENVIRONMENT | {"PATH": f"{directory}/bin:/usr/bin:/bin", "HOME": str(home)}
    keys = {
        "host_key": (request.keys / "host_ed25519").read_text(),
        "client_key": (request.keys / "id_ed25519.pub").read_text(),
    }
    return warden.Orders(
        argv=argv,
        env=env,
        keys=keys,
        sites=[str(Path(psutil.__file__).parent.parent)],
        parent=os.getpid(),
        keep=request.keep,
        ttl_s=request.ttl_s,
        ends_at=time.time() + request.ttl_s,
    )


def _await_greeting(path: Path) -> None:
    """Wait for the first bytes of an SSH server; OSError where none come."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(WAIT_S)
        client.connect(str(path))
        if client.recv(4) != b"SSH-":
            raise ConnectionError("its server ended at once")


def _standing(directory: Path) -> Address | None:
    """The address of a complete, living box in `directory`, or None."""
    try:
        address = Address.from_json(json.loads((directory / "address.json").read_text()))
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return address if _find_warden(directory) else None


def _find_warden(directory: Path) -> psutil.Process | None:
    """The living warden of the box in `directory`."""
    return next((p for p in warden.occupants(directory) if warden.is_warden(p, directory)), None)


def _dismiss(directory: Path) -> None:
    """Ask the warden to end the box, and wait until it has."""
    process = _WARDENS.pop(directory, None)
    try:
        if process:
            process.terminate()
            assert process.stdin
            process.stdin.close()
            process.wait(warden.CLEAR_S)
        elif found := _find_warden(directory):
            found.terminate()
            deadline = time.monotonic() + warden.CLEAR_S
            while _find_warden(directory) and time.monotonic() < deadline:
                time.sleep(0.02)
    except (psutil.Error, subprocess.TimeoutExpired, BrokenPipeError):
        pass  # what is left is found, and killed, by what comes next


def _tail(log: BinaryIO) -> str:
    """The end of a box's log, which may be deleted by now, for an error message."""
    log.seek(0)
    text = log.read().decode(errors="replace").strip()
    return f"\n{text[-2000:]}" if text else ""
