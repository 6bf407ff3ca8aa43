"""The loopback box: what it hides, and that nothing outlives it. tests/contract has the driver's contract."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import paramiko
import psutil
import pytest

from rehearsal.boxes import Address, Presence, Record, Request
from rehearsal.boxes import loopback_warden as warden
from rehearsal.boxes.keys import mint
from rehearsal.boxes.loopback import Loopback
from rehearsal.boxes.loopback_seal import obstacle
from rehearsal.boxes.ssh import Link
from rehearsal.runner.errors import BoxError

REPOSITORY = Path(__file__).parents[2]
needs_seal = pytest.mark.skipif(bool(obstacle()), reason=obstacle() or "bubblewrap works")


@pytest.fixture(params=[pytest.param(True, marks=needs_seal, id="sealed"), pytest.param(False, id="not-sealed")])
def driver(request: pytest.FixtureRequest) -> Loopback:
    return Loopback(seal=request.param)


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[Request]:
    mint(tmp_path / "keys")
    request = Request(f"test-{secrets.token_hex(4)}", 120, False, tmp_path / "keys")
    yield request
    Loopback().destroy(record(request))


def record(request: Request, address: Address | None = None) -> Record:
    return Record(request.box_id, "loopback", request.keys, None, address)


def folder(address: Address) -> Path:
    assert address.socket
    return Path(address.socket).parent


def warden_of(address: Address) -> psutil.Process:
    return next(p for p in warden.occupants(folder(address)) if warden.is_warden(p, folder(address)))


def eventually(what: Callable[[], bool], seconds: float = 20) -> bool:
    """Whether it becomes true; the time only bounds the wait for a failure."""
    deadline = time.monotonic() + seconds
    while not what():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def sleepers(seconds: str) -> list[psutil.Process]:
    """Living processes `sleep SECONDS`, seen from outside every namespace; the number is their mark."""
    found = psutil.process_iter(["cmdline", "status"])
    return [p for p in found if p.info["cmdline"] == ["sleep", seconds] and p.info["status"] != psutil.STATUS_ZOMBIE]


def detach_sleeper(address: Address) -> str:
    """Start a process in the box that nothing but the end of the box would end; its mark."""
    mark = f"9999.{secrets.randbelow(10**9)}"
    with Link(address) as link:
        link.script('env -i setsid sleep "$1" </dev/null >/dev/null 2>&1 &', mark)
    assert eventually(lambda: len(sleepers(mark)) == 1)
    return mark


CREATOR = """
import sys, threading, time
from pathlib import Path
from rehearsal.boxes import Request
from rehearsal.boxes.loopback import Loopback
box_id, ttl, keep, keys, seal = sys.argv[1:]
request = Request(box_id, int(ttl), keep == "keep", Path(keys))
made = []
thread = threading.Thread(target=lambda: made.append(Loopback(seal == "seal").create(request)))
thread.start()
thread.join()
import json
print(json.dumps(made[0].to_json()), flush=True)
time.sleep(600)
"""


def create_elsewhere(
    driver: Loopback, request: Request, *, keep: bool = False, ttl: int = 120
) -> tuple[subprocess.Popen[str], Address]:
    """A box made by a thread, long ended, of another process."""
    seal = "seal" if driver._seal else ""
    arguments = [request.box_id, str(ttl), "keep" if keep else "", str(request.keys), seal]
    process = subprocess.Popen(
        [sys.executable, "-c", CREATOR, *arguments], stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    )
    assert process.stdout
    return process, Address.from_json(json.loads(process.stdout.readline()))


def end(process: subprocess.Popen[str], how: signal.Signals) -> None:
    process.send_signal(how)
    process.wait()
    assert process.stdout
    process.stdout.close()


# What a sealed box sees


@pytest.fixture
def sealed(asked: Request, monkeypatch: pytest.MonkeyPatch) -> Iterator[Link]:
    if obstacle():
        pytest.skip(obstacle())
    monkeypatch.setenv("REHEARSAL_TEST_CANARY", "canary-of-the-laptop")
    with Link(Loopback(seal=True).create(asked)) as link:
        yield link


def test_a_sealed_box_has_no_network_but_lo(sealed: Link) -> None:
    assert sealed.script("ls /proc/sys/net/ipv4/conf").text.split() == ["all", "default", "lo"]
    reach = "import socket; socket.create_connection(('1.1.1.1', 80), 5)"
    answer = sealed.script('python3 -c "$1"', reach, check=False)
    assert "Network is unreachable" in answer.errors


def test_a_sealed_box_sees_no_home_no_repository_and_nobody_elses_files(sealed: Link) -> None:
    tops = set(sealed.script("ls -A /").text.split())
    assert tops <= {
        "bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "proc", "dev", "tmp", "box", "kit",
        # a Python of the user's own, and nothing beside it
        Path(os.path.realpath(sys._base_executable)).parts[1],
    }  # fmt: skip
    for secret in (REPOSITORY / "pyproject.toml", Path.home() / ".ssh", Path("/etc/passwd"), Path(__file__)):
        assert sealed.script('test -e "$1"', str(secret), check=False).code == 1
    assert sealed.script("ls -A /tmp").text == ""
    assert set(sealed.script("ls -A /etc").text.split()) <= {"ld.so.cache", "alternatives"}


def test_a_sealed_box_sees_no_environment_and_no_process_of_the_laptop(sealed: Link) -> None:
    environments = sealed.script("cat /proc/[0-9]*/environ | tr '\\0' '\\n' | sort -u").text
    assert "HOME=/box" in environments.splitlines()
    assert "canary" not in environments
    names = {line.partition("=")[0] for line in environments.splitlines()}
    assert names - {"PWD", "OLDPWD", "LC_CTYPE", "SHLVL", "_"} == {"PATH", "HOME", "LANG"}
    assert str(os.getpid()) not in sealed.script("ls /proc").text.split()


def test_a_sealed_box_can_write_to_its_own_directory_and_tmp_only(sealed: Link) -> None:
    for place, code in (("/box", 0), ("/tmp", 0), ("/", 1), ("/usr", 1), ("/kit", 1), ("/etc", 1)):
        assert sealed.script('touch "$1"/x', place, check=False).code == code, place


def test_a_sealed_box_has_no_capability(sealed: Link) -> None:
    assert sealed.script("grep CapEff /proc/self/status").text.split()[1] == "0" * 16


def test_sealing_is_refused_where_it_can_not_be(asked: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rehearsal.boxes.loopback_seal.obstacle", lambda: "bubblewrap is not installed")
    with pytest.raises(BoxError, match="bubblewrap is not installed"):
        Loopback(seal=True).create(asked)
    assert Loopback().create(asked).isolation == "not sealed"


def test_a_bubblewrap_that_may_not_run_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    forbidden = tmp_path / "bwrap"
    forbidden.write_text("#!/bin/sh\necho 'bwrap: setting up uid map: Permission denied' >&2\nexit 1\n")
    forbidden.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr("rehearsal.boxes.loopback_seal.ENVIRONMENT", {"PATH": os.environ["PATH"]})
    assert "uid map: Permission denied" in obstacle.__wrapped__()


# What a box of either kind refuses


def test_the_environment_of_a_command_is_three_names(driver: Loopback, asked: Request) -> None:
    with Link(driver.create(asked)) as link:
        environment = link.script("env").text
    names = {line.partition("=")[0] for line in environment.splitlines()}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {"PATH", "HOME", "LANG"}


def test_everything_but_commands_and_reverse_forwarding_is_refused(driver: Loopback, asked: Request) -> None:
    address = driver.create(asked)
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(str(address.socket))
    ssh = paramiko.Transport(stream)
    ssh.connect(username="box", pkey=paramiko.PKey.from_path(str(address.identity)))
    for ask in (
        lambda channel: channel.get_pty(),
        lambda channel: channel.invoke_shell(),
        lambda channel: channel.invoke_subsystem("sftp"),
        lambda channel: channel.request_x11(handler=lambda *_: None),
    ):
        with pytest.raises(paramiko.SSHException):
            ask(ssh.open_session())
    with pytest.raises(paramiko.ChannelException):
        ssh.open_channel("direct-tcpip", ("127.0.0.1", 22), ("127.0.0.1", 1))
    with pytest.raises(paramiko.SSHException):
        ssh.request_port_forward("0.0.0.0", 0)
    ssh.close()


def test_a_command_that_reads_nothing_dies_with_its_channel(driver: Loopback, asked: Request) -> None:
    """The connection stays; the input that nobody reads must not hide the channel's end."""
    address = driver.create(asked)
    stream = socket.socket(socket.AF_UNIX)
    stream.connect(str(address.socket))
    ssh = paramiko.Transport(stream)
    ssh.connect(username="box", pkey=paramiko.PKey.from_path(str(address.identity)))
    mark = f"9999.{secrets.randbelow(10**9)}"
    channel = ssh.open_session()
    channel.exec_command(f"sleep {mark}; exit")
    channel.settimeout(1)
    with pytest.raises(TimeoutError):
        channel.sendall(bytes(10_000_000))
    assert sleepers(mark)
    channel.close()
    assert eventually(lambda: not sleepers(mark))
    ssh.close()


# The end of a box


def test_a_killed_owner_takes_everything_with_it(driver: Loopback, asked: Request) -> None:
    owner, address = create_elsewhere(driver, asked)
    mark = detach_sleeper(address)
    end(owner, signal.SIGKILL)
    assert eventually(lambda: driver.presence(record(asked)) is Presence.ABSENT)
    assert not sleepers(mark)
    assert not folder(address).exists()


def test_a_box_outlives_the_thread_that_made_it_and_ctrl_c(driver: Loopback, asked: Request) -> None:
    owner, address = create_elsewhere(driver, asked)
    assert os.getsid(warden_of(address).pid) != os.getsid(owner.pid)
    with Link(address) as link:
        assert link.script("echo here").text == "here\n"
    end(owner, signal.SIGKILL)


def test_a_kept_box_outlives_its_owner_and_ends_when_destroyed(driver: Loopback, asked: Request) -> None:
    owner, address = create_elsewhere(driver, asked, keep=True)
    end(owner, signal.SIGKILL)
    mark = detach_sleeper(address)
    driver.destroy(record(asked, address))
    assert not sleepers(mark)
    assert driver.presence(record(asked)) is Presence.ABSENT


@pytest.mark.parametrize("keep", [True, False])
def test_a_box_ends_by_itself_when_its_time_is_over(driver: Loopback, asked: Request, keep: bool) -> None:
    owner, address = create_elsewhere(driver, asked, keep=keep, ttl=4)
    mark = detach_sleeper(address)
    if keep:
        end(owner, signal.SIGKILL)
    assert eventually(lambda: driver.presence(record(asked, address)) is Presence.ABSENT)
    assert not sleepers(mark)
    if not keep:
        end(owner, signal.SIGKILL)


def test_a_box_whose_warden_was_killed_is_present_until_destroyed(driver: Loopback, asked: Request) -> None:
    owner, address = create_elsewhere(driver, asked)
    with Link(address) as link:
        link.script('setsid sh -c \'sleep 9998; : "$1"\' sh "$1" </dev/null >/dev/null 2>&1 &', address.directory)
    warden_of(address).kill()
    assert driver.presence(record(asked)) is Presence.PRESENT
    driver.destroy(record(asked))
    assert driver.presence(record(asked)) is Presence.ABSENT
    assert warden.occupants(folder(address)) == []
    end(owner, signal.SIGKILL)


def test_a_box_whose_server_ended_is_cleared_away(driver: Loopback, asked: Request) -> None:
    address = driver.create(asked)
    below = warden_of(address).children(recursive=True)
    server = next(p for p in below if p.cmdline()[3].endswith("loopback_server.py"))
    server.kill()
    assert eventually(lambda: driver.presence(record(asked)) is Presence.ABSENT)


def test_only_the_box_of_that_id_is_touched(driver: Loopback, asked: Request) -> None:
    address = driver.create(asked)
    neighbour = Path(f"{folder(address)}-2")
    (neighbour / "home").mkdir(parents=True)
    bystander = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)", str(neighbour / "home")],
        start_new_session=True,
    )
    try:
        driver.destroy(record(asked, address))
        assert (neighbour / "home").is_dir()
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()
        warden.remove(neighbour)


def test_destroy_follows_no_link_and_removes_what_is_read_only(
    driver: Loopback, asked: Request, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("kept")
    address = driver.create(asked)
    home = folder(address) / "home"
    (home / "link").symlink_to(outside)
    (home / "locked" / "deep").mkdir(parents=True)
    (home / "locked" / "deep" / "file").write_text("x")
    for path, mode in (("locked/deep/file", 0o400), ("locked/deep", 0o000), ("locked", 0o500)):
        (home / path).chmod(mode)
    driver.destroy(record(asked, address))
    assert not folder(address).exists()
    assert (outside / "precious").read_text() == "kept"
    assert outside.stat().st_mode & 0o700 == 0o700


def test_destroy_removes_a_directory_of_any_depth(driver: Loopback, asked: Request) -> None:
    address = driver.create(asked)
    with Link(address) as link:
        link.script("python3 -c \"import os\nfor _ in range(2000): os.mkdir('d' * 9), os.chdir('d' * 9)\"")
    driver.destroy(record(asked, address))
    assert not folder(address).exists()


# Making one


def test_a_half_made_box_is_made_anew(driver: Loopback, asked: Request) -> None:
    address = driver.create(asked)
    driver.destroy(record(asked))
    (folder(address) / "home" / "run").mkdir(parents=True)
    assert driver.presence(record(asked)) is Presence.PRESENT
    again = driver.create(asked)
    assert again == address
    assert not (folder(again) / "home" / "run").exists()


def test_a_half_made_box_is_destroyed(driver: Loopback, asked: Request) -> None:
    address = driver.create(asked)
    driver.destroy(record(asked))
    folder(address).mkdir()
    driver.destroy(record(asked))
    assert driver.presence(record(asked)) is Presence.ABSENT


def test_a_create_that_fails_says_why_and_leaves_nothing(driver: Loopback, asked: Request) -> None:
    (asked.keys / "host_ed25519").write_text("no key")
    with pytest.raises(BoxError, match=r"(?s)could not be made.*KeyImportError"):
        driver.create(asked)
    assert driver.presence(record(asked)) is Presence.ABSENT


def test_a_box_is_found_again_under_another_tmpdir(
    driver: Loopback, asked: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = driver.create(asked)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert driver.presence(record(asked)) is Presence.PRESENT
    driver.destroy(record(asked))
    assert not folder(address).exists()


def test_a_path_too_long_for_a_socket_is_avoided(
    driver: Loopback, asked: Request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    address = driver.create(asked)
    assert len(os.fsencode(str(address.socket))) <= 103
    with Link(address) as link:
        assert link.script("echo here").text == "here\n"


def test_the_directory_is_for_its_owner_only(driver: Loopback, asked: Request) -> None:
    assert folder(driver.create(asked)).stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_somebody_elses_directory_is_unknown_and_untouched(driver: Loopback, asked: Request) -> None:
    address = driver.create(asked)
    driver.destroy(record(asked))
    folder(address).mkdir()
    os.chown(folder(address), 12345, 12345)
    try:
        assert driver.presence(record(asked)) is Presence.UNKNOWN
        with pytest.raises(BoxError, match="not this user's"):
            driver.destroy(record(asked))
        with pytest.raises(BoxError, match="not this user's"):
            driver.create(asked)
        assert folder(address).is_dir()
    finally:
        folder(address).rmdir()


def test_boxes_can_be_made_from_many_threads(driver: Loopback, tmp_path: Path) -> None:
    requests = [Request(f"test-{secrets.token_hex(4)}", 120, False, tmp_path / str(i)) for i in range(4)]
    made: list[Address] = []
    for request in requests:
        mint(request.keys)
    threads = [threading.Thread(target=lambda r=request: made.append(driver.create(r))) for request in requests]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert len({address.socket for address in made}) == 4
    finally:
        for request in requests:
            driver.destroy(record(request))
