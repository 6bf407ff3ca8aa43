"""The contract of `rehearsal.boxes.Driver`, against every kind of box.

To add a kind: a name in KINDS and a branch in `new_case`. Below it, a test asks for a trait and never for a kind.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
import pytest

from rehearsal.boxes import Address, Driver, Presence, Record, Request
from rehearsal.boxes.host import Host
from rehearsal.boxes.keys import mint
from rehearsal.boxes.loopback import Loopback
from rehearsal.boxes.loopback_seal import obstacle
from tests.hosts.sshd import MISSING, Sshd

KINDS = ["loopback sealed", "loopback not sealed", "host"]
CANARY = "REHEARSAL_TEST_CANARY"


@dataclass
class Case:
    """One driver and one box to be made with it.

    makes_the_host     create makes a machine, or what stands for one; otherwise the box begins with its directory
    ends_foreground    the host ends a foreground command whose connection is gone
    """

    driver: Driver
    request: Request
    makes_the_host: bool
    ends_foreground: bool
    address: Address | None = None

    def create(self) -> Address:
        self.address = self.driver.create(self.request)
        return self.address

    @property
    def record(self) -> Record:
        """What the ledger knows when create has not returned."""
        return Record(self.request.box_id, "under test", self.request.keys, self.request.target, None)

    def record_of(self, address: Address) -> Record:
        return Record(self.request.box_id, "under test", self.request.keys, self.request.target, address)

    def end(self) -> None:
        """Destroy what there is, by what the ledger would know of it."""
        self.driver.destroy(self.record if self.address is None else self.record_of(self.address))


@pytest.fixture(params=KINDS, scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def sshd(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd | None]:
    """The machine that is there already, for the kind that wants one."""
    if kind != "host":
        yield None
        return
    if MISSING:
        pytest.skip(MISSING)
    with Sshd(tmp_path_factory.mktemp("host") / "sshd") as server:
        yield server


def new_case(kind: str, keys: Path, sshd: Sshd | None) -> Case:
    mint(keys)
    box_id = f"test-{secrets.token_hex(4)}"
    if sshd is not None:
        request = Request(box_id, 300, False, keys, sshd.target)
        return Case(Host(sshd.ssh_config()), request, makes_the_host=False, ends_foreground=False)
    if kind == "loopback sealed" and obstacle():
        pytest.skip(obstacle())
    loopback = Loopback(seal=kind == "loopback sealed")
    return Case(loopback, Request(box_id, 300, False, keys), makes_the_host=True, ends_foreground=True)


@pytest.fixture
def case(kind: str, sshd: Sshd | None, tmp_path: Path) -> Iterator[Case]:
    """A box to be made, for tests about its life."""
    made = new_case(kind, tmp_path / "keys", sshd)
    yield made
    made.end()


@pytest.fixture(scope="module")
def standing(kind: str, sshd: Sshd | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """One standing box, for all tests that leave it as it was."""
    made = new_case(kind, tmp_path_factory.mktemp("box") / "keys", sshd)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CANARY, "the-laptop's-own")
        made.create()
        yield made
    made.end()


@pytest.fixture
def address(standing: Case) -> Address:
    assert standing.address is not None
    return standing.address


@pytest.fixture
def ssh(address: Address) -> Iterator[paramiko.Transport]:
    with contextlib.closing(connect(address)) as transport:
        yield transport


def connect(address: Address, key: paramiko.PKey | None = None) -> paramiko.Transport:
    if address.socket:
        stream = socket.socket(socket.AF_UNIX)
        stream.connect(address.socket)
    else:
        stream = socket.create_connection((address.host, address.port))
    stream.settimeout(30)
    transport = paramiko.Transport(stream)
    transport.start_client(timeout=30)
    assert address.host_key is not None
    server = transport.get_remote_server_key()
    assert f"{server.get_name()} {server.get_base64()}" == address.host_key
    if key is None:
        assert address.identity is not None
        key = paramiko.PKey.from_path(address.identity)
    transport.auth_publickey(address.user, key)
    return transport


def start(ssh: paramiko.Transport, command: str) -> paramiko.Channel:
    channel = ssh.open_session(timeout=30)
    channel.settimeout(60)
    channel.exec_command(command)
    return channel


@dataclass
class Result:
    output: bytes
    errors: bytes
    status: int


def run(ssh: paramiko.Transport, command: str, stdin: bytes = b"") -> Result:
    channel = start(ssh, command)
    errors: list[bytes] = []

    def feed() -> None:
        try:
            channel.sendall(stdin)
            channel.shutdown_write()
        except OSError:
            pass  # the command did not want it

    def listen() -> None:
        errors.extend(iter(lambda: channel.recv_stderr(65536), b""))

    helpers = [threading.Thread(target=feed), threading.Thread(target=listen)]
    for helper in helpers:
        helper.start()
    output = b"".join(iter(lambda: channel.recv(65536), b""))
    for helper in helpers:
        helper.join()
    return Result(output, b"".join(errors), channel.recv_exit_status())


def eventually(what: Callable[[], bool], seconds: float = 20) -> bool:
    """Whether it becomes true; the time only bounds the wait for a failure."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def is_running(ssh: paramiko.Transport, pid: str) -> bool:
    """Whether a process of the box is alive: nobody reaps a zombie there, so its state counts."""
    state = run(ssh, f"ps -o stat= -p {pid}").output.decode().strip()
    return bool(state) and not state.startswith("Z")


# The life of a box


def test_a_box_is_absent_then_present_then_absent(case: Case) -> None:
    assert case.driver.presence(case.record) is Presence.ABSENT
    address = case.create()
    if case.makes_the_host:
        assert case.driver.presence(case.record) is Presence.PRESENT
    else:
        assert case.driver.presence(case.record_of(address)) is Presence.ABSENT
        with contextlib.closing(connect(address)) as ssh:
            run(ssh, f"mkdir -m 700 {address.directory}")
    assert case.driver.presence(case.record_of(address)) is Presence.PRESENT
    case.driver.destroy(case.record_of(address))
    assert case.driver.presence(case.record_of(address)) is Presence.ABSENT
    assert case.driver.presence(case.record) is Presence.ABSENT


def test_create_again_gives_the_same_box(case: Case) -> None:
    address = case.create()
    with contextlib.closing(connect(address)) as ssh:
        run(ssh, f"mkdir -m 700 {address.directory} && echo here > {address.directory}/mark")
    assert case.create() == address
    with contextlib.closing(connect(address)) as again:
        assert run(again, f"cat {address.directory}/mark").output == b"here\n"


def test_create_after_destroy_gives_a_new_box(case: Case) -> None:
    address = case.create()
    with contextlib.closing(connect(address)) as ssh:
        assert run(ssh, f"mkdir -m 700 {address.directory}").status == 0
    case.driver.destroy(case.record_of(address))
    with contextlib.closing(connect(case.create())) as ssh:
        assert run(ssh, f"ls {address.directory}").status != 0


def test_destroy_is_safe_before_any_create_and_twice(case: Case) -> None:
    case.driver.destroy(case.record)
    address = case.create()
    case.driver.destroy(case.record_of(address))
    case.driver.destroy(case.record_of(address))
    case.driver.destroy(case.record)
    assert case.driver.presence(case.record) is Presence.ABSENT


def test_the_directory_is_not_there_yet_and_can_be_made(case: Case) -> None:
    address = case.create()
    assert Path(address.directory).is_absolute()
    with contextlib.closing(connect(address)) as ssh:
        assert run(ssh, f"ls -d {address.directory}").status != 0
        made = run(ssh, f"umask 077 && mkdir {address.directory} && ls -ld {address.directory}")
    assert made.output.startswith(b"drwx------")


def test_a_box_with_something_running_in_it_can_be_destroyed(case: Case) -> None:
    address = case.create()
    beat = f"while :; do date > {address.directory}/beat; sleep 0.1; done"
    with contextlib.closing(connect(address)) as ssh:
        run(ssh, f"mkdir {address.directory}; setsid sh -c '{beat}' </dev/null >/dev/null 2>&1 &")
        assert eventually(lambda: run(ssh, f"cat {address.directory}/beat").output != b"")
        case.driver.destroy(case.record_of(address))
    assert case.driver.presence(case.record) is Presence.ABSENT


# Logging in


def test_another_key_is_refused(address: Address, tmp_path: Path) -> None:
    mint(tmp_path / "other")
    with pytest.raises(paramiko.AuthenticationException):
        connect(address, paramiko.PKey.from_path(tmp_path / "other" / "id_ed25519"))


# Commands


def test_status_output_and_errors_come_back_apart(ssh: paramiko.Transport) -> None:
    result = run(ssh, "echo out; echo err >&2; exit 7")
    assert result == Result(b"out\n", b"err\n", 7)


@pytest.mark.parametrize("status", [0, 1, 127, 255])
def test_exit_status(ssh: paramiko.Transport, status: int) -> None:
    assert run(ssh, f"exit {status}").status == status


def test_a_command_killed_by_a_signal_is_no_success(ssh: paramiko.Transport) -> None:
    assert run(ssh, "kill -9 $$").status not in (0, None)


def test_standard_input_ends(ssh: paramiko.Transport) -> None:
    assert run(ssh, "cat; echo end").output == b"end\n"


def test_ten_megabytes_go_in_and_come_back_unchanged(ssh: paramiko.Transport) -> None:
    data = os.urandom(10_000_000)
    assert hashlib.sha256(run(ssh, "cat", data).output).digest() == hashlib.sha256(data).digest()


def test_a_command_that_reads_nothing_ends_all_the_same(ssh: paramiko.Transport) -> None:
    assert run(ssh, "exit 3", os.urandom(10_000_000)).status == 3


def test_input_that_nobody_reads_does_not_stop_output(ssh: paramiko.Transport) -> None:
    result = run(ssh, "exec 0<&-; head -c 3000000 /dev/zero; exit 4", os.urandom(10_000_000))
    assert (len(result.output), result.status) == (3_000_000, 4)


def test_sixty_four_commands_at_once_on_eight_connections(address: Address) -> None:
    links = [connect(address) for _ in range(8)]
    channels = [start(links[i % 8], f"read line; echo {i}-$line") for i in range(64)]
    for channel in channels:  # all are open before the first one may end
        channel.sendall(b"go\n")
    assert [channel.makefile("rb").read() for channel in channels] == [f"{i}-go\n".encode() for i in range(64)]
    for link in links:
        link.close()


def test_a_detached_process_does_not_hold_the_channel_and_lives_on(address: Address, ssh: paramiko.Transport) -> None:
    pid = run(ssh, "setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $!").output.decode().strip()
    assert is_running(ssh, pid)
    ssh.close()
    later = connect(address)
    assert is_running(later, pid)
    run(later, f"kill {pid}")
    later.close()


def test_a_foreground_command_dies_with_its_connection(
    standing: Case, address: Address, ssh: paramiko.Transport
) -> None:
    if not standing.ends_foreground:
        pytest.skip("OpenSSH only closes the command's streams: what touches neither lives on there")
    other = connect(address)
    channel = start(other, "echo $$; sleep 300 | cat")
    pid = channel.makefile("rb").readline().decode().strip()
    assert is_running(ssh, pid)
    other.close()
    assert eventually(lambda: not is_running(ssh, pid))


def test_python_is_new_enough(ssh: paramiko.Transport) -> None:
    assert run(ssh, "python3 -c 'import sys, sqlite3, ssl; sys.exit(sys.version_info < (3, 10))'").status == 0


def test_the_laptops_environment_is_not_there(ssh: paramiko.Transport) -> None:
    environment = run(ssh, "env").output
    assert b"PATH=" in environment
    assert CANARY.encode() not in environment


# The way out


def test_reverse_forwarding_carries_bytes_both_ways(ssh: paramiko.Transport) -> None:
    data = os.urandom(1_000_000)
    copies: list[threading.Thread] = []
    ends: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as laptop:

        def answer() -> None:
            peer, _ = laptop.accept()
            with peer:
                received = b"".join(iter(lambda: peer.recv(65536), b""))
                peer.sendall(hashlib.sha256(received).hexdigest().encode())

        def bridge(channel: paramiko.Channel, *_: object) -> None:
            outward = socket.create_connection(laptop.getsockname())
            ways = [(channel, outward), (outward, channel)]
            copies.extend(threading.Thread(target=_copy, args=way) for way in ways)
            for copy in copies:
                copy.start()
            ends.append(outward)

        server = threading.Thread(target=answer)
        server.start()
        port = ssh.request_port_forward("127.0.0.1", 0, bridge)
        program = (
            "import shutil, socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); "
            "s.sendall(sys.stdin.buffer.read()); s.shutdown(socket.SHUT_WR); print(s.recv(100).decode())"
        )
        result = run(ssh, f'python3 -c "{program}" {port}', data)
        for thread in [server, *copies]:
            thread.join(30)
        for end in ends:
            end.close()
    assert result == Result(hashlib.sha256(data).hexdigest().encode() + b"\n", b"", 0)


def _copy(source: socket.socket | paramiko.Channel, target: socket.socket | paramiko.Channel) -> None:
    while block := source.recv(65536):
        target.sendall(block)
    if isinstance(target, paramiko.Channel):
        target.shutdown_write()
        target.close()
    else:
        target.shutdown(socket.SHUT_WR)


# Other processes

DESTROY = """
import json, sys
from pathlib import Path
from rehearsal.boxes import Address, Record, driver
name, box_id, keys = sys.argv[1:]
record = Record(box_id, name, Path(keys), None, Address.from_json(json.load(sys.stdin)))
print(driver(name).presence(record).value)
driver(name).destroy(record)
print(driver(name).presence(record).value)
"""


def test_another_process_sees_and_destroys_it(kind: str, case: Case) -> None:
    """By what the ledger holds, without the configuration that it was made with."""
    address = case.create()
    with contextlib.closing(connect(address)) as ssh:
        run(ssh, f"mkdir -m 700 {address.directory}")
    command = [sys.executable, "-c", DESTROY, kind.split()[0], case.request.box_id, str(case.request.keys)]
    told = json.dumps(address.to_json())
    seen = subprocess.run(
        command, input=told, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    )
    assert seen.stdout.split() == ["present", "absent"]
    assert case.driver.presence(case.record_of(address)) is Presence.ABSENT
