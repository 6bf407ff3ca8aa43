"""The driver `host` and the commands of a Box on a real OpenSSH server; the driver's contract is in contract/."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rehearsal.boxes import Address, Presence, Record, Request
from rehearsal.boxes import box as box_module
from rehearsal.boxes.box import Box
from rehearsal.boxes.host import Host
from rehearsal.boxes.ssh import Link
from rehearsal.runner.errors import BoxError, LinkError, UsageError
from tests.cli.project import eventually
from tests.hosts.sshd import Sshd

NewHost = Callable[..., Sshd]


def request_for(sshd: Sshd, box_id: str) -> Request:
    return Request(box_id, 60, False, sshd.keys, sshd.target)


def record_of(sshd: Sshd, box_id: str, address: Address | None) -> Record:
    return Record(box_id, "host", sshd.keys, sshd.target, address)


@pytest.fixture
def box(host: Sshd, request: pytest.FixtureRequest) -> Iterator[Box]:
    """A box with its timer armed, wiped at the end."""
    name = f"t{abs(hash(request.node.name)) % 10**8}"
    address = Host(host.ssh_config()).create(request_for(host, name))
    with Link(address) as link:
        box = Box(address, link)
        box.arm(60)
        yield box
    with Link(address) as link:  # the test may have broken the first one
        Box(address, link).wipe()


def running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


# create, destroy, presence


def test_without_a_host_it_says_what_to_add(host: Sshd) -> None:
    with pytest.raises(UsageError, match="needs a machine") as caught:
        Host().create(replace(request_for(host, "x"), target=None))
    assert "--host" in caught.value.hint


def test_create_makes_nothing_on_the_host(host: Sshd) -> None:
    before = sorted(host.home.iterdir())
    address = Host(host.ssh_config()).create(request_for(host, "nothing"))
    assert sorted(host.home.iterdir()) == before
    assert address.directory == f"{host.home}/.rehearsal-nothing"
    assert Host().presence(record_of(host, "nothing", address)) is Presence.ABSENT


def test_a_host_that_is_off_is_unknown_and_never_absent(new_host: NewHost) -> None:
    sshd = new_host()
    address = Host(sshd.ssh_config()).create(request_for(sshd, "off"))
    record = record_of(sshd, "off", address)
    sshd.stop()
    assert Host().presence(record) is Presence.UNKNOWN
    with pytest.raises(LinkError):
        Host().destroy(record)


def test_a_host_that_was_made_anew_is_unknown(new_host: NewHost, tmp_path: Path) -> None:
    """Another machine at the same address has another key: nothing is done to it."""
    sshd = new_host()
    address = Host(sshd.ssh_config()).create(request_for(sshd, "anew"))
    with Link(address) as link:
        Box(address, link).arm(60)
    stranger = replace(address, host_key=(new_host().host_key))
    assert Host().presence(record_of(sshd, "anew", stranger)) is Presence.UNKNOWN
    with pytest.raises(LinkError, match="another host key"):
        Host().destroy(record_of(sshd, "anew", stranger))
    assert Path(address.directory).is_dir()
    Host().destroy(record_of(sshd, "anew", address))


def test_where_no_process_can_be_seen_it_is_not_called_absent(new_host: NewHost, tmp_path: Path) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("sh", "bash", "cat", "mkdir", "rm", "tr", "chmod"):
        (tools / name).symlink_to(next(p for p in (Path("/bin", name), Path("/usr/bin", name)) if p.exists()))
    sshd = new_host(environment={"PATH": str(tools)})
    address = Host(sshd.ssh_config()).create(request_for(sshd, "blind"))
    assert Host().presence(record_of(sshd, "blind", address)) is Presence.UNKNOWN
    with pytest.raises(BoxError):
        Host().destroy(record_of(sshd, "blind", address))


def test_a_process_that_names_the_box_is_ended_and_a_stranger_is_not(host: Sshd, box: Box) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", "another-box"], stdin=subprocess.PIPE) as stranger:
        mine = subprocess.Popen(
            [sys.executable, "-c", "input()", f"{box.address.directory}/run"], stdin=subprocess.PIPE
        )
        assert any(line == f"process {mine.pid}" for line in box.look())
        box.wipe()
        assert mine.wait(10) == -signal.SIGKILL
        assert stranger.poll() is None
        stranger.kill()
    mine.stdin.close() if mine.stdin else None
    assert box.look() == ()


def test_a_box_whose_name_begins_another_ones_leaves_that_alone(host: Sshd) -> None:
    driver = Host(host.ssh_config())
    short, long = (driver.create(request_for(host, name)) for name in ("b1", "b12"))
    for address in (short, long):
        with Link(address) as link:
            Box(address, link).arm(60)
    driver.destroy(record_of(host, "b1", short))
    assert driver.presence(record_of(host, "b1", short)) is Presence.ABSENT
    assert driver.presence(record_of(host, "b12", long)) is Presence.PRESENT
    with Link(long) as link:
        assert any(line.startswith("process") for line in Box(long, link).look())
    driver.destroy(record_of(host, "b12", long))


@pytest.mark.parametrize("file", ["run/locked/file", "payload.pyz"])
def test_directories_that_were_made_read_only_go_too(host: Sshd, box: Box, file: str) -> None:
    path = Path(box.address.directory, file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    path.parent.chmod(0o500)
    box.wipe()
    assert not Path(box.address.directory).exists()
    assert box.presence() is Presence.ABSENT


# The timer


def test_the_directory_is_for_its_owner_only(box: Box) -> None:
    assert Path(box.address.directory).stat().st_mode & 0o777 == 0o700
    assert Path(box.address.directory, "deadman.sh").stat().st_mode & 0o077 == 0


def test_a_directory_that_is_there_already_is_refused(box: Box) -> None:
    with pytest.raises(BoxError, match="ended with 73"):
        box.arm(60)


def test_the_timer_ends_the_run_and_the_directory_with_nobody_there(host: Sshd) -> None:
    address = Host(host.ssh_config()).create(request_for(host, "timer"))
    with Link(address) as link:
        Box(address, link).arm(2)
    directory = Path(address.directory)
    run = subprocess.Popen(
        [sys.executable, "-c", "input()", str(directory / "run")], stdin=subprocess.PIPE, start_new_session=True
    )
    (directory / "run").mkdir()
    (directory / "run" / "run.pid").write_text(f"{run.pid}\n")
    timer = int((directory / "deadman.pid").read_text())
    assert run.wait(20) == -signal.SIGKILL
    assert eventually(lambda: not directory.exists(), 10)
    assert eventually(lambda: not running(timer), 10)
    assert run.stdin is not None
    run.stdin.close()


def test_the_timer_does_not_kill_whoever_has_the_runs_old_number(host: Sshd) -> None:
    address = Host(host.ssh_config()).create(request_for(host, "reused"))
    with Link(address) as link:
        Box(address, link).arm(1)
    directory = Path(address.directory)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as stranger:
        (directory / "run").mkdir()
        (directory / "run" / "run.pid").write_text(f"{stranger.pid}\n")
        assert eventually(lambda: not directory.exists(), 20)
        assert stranger.poll() is None
        stranger.kill()


def test_the_timer_ends_by_itself_when_the_box_is_gone(host: Sshd, box: Box) -> None:
    timer = int(Path(box.address.directory, "deadman.pid").read_text())
    assert running(timer)
    Path(box.address.directory).rename(f"{host.home}/moved")
    assert eventually(lambda: not running(timer), 10)
    for path in Path(host.home, "moved").iterdir():
        path.unlink()
    Path(host.home, "moved").rmdir()


def test_the_timers_environment_holds_a_path_and_nothing_else(box: Box) -> None:
    pid = int(Path(box.address.directory, "deadman.pid").read_text())
    environ = Path(f"/proc/{pid}/environ")
    if not environ.exists():
        pytest.skip("this system has no /proc")
    names = {pair.split(b"=")[0] for pair in environ.read_bytes().split(b"\0") if pair}
    assert names <= {b"PATH", b"PWD", b"OLDPWD", b"SHLVL", b"_"}


# Files


def test_a_run_lands_whole_and_only_for_its_owner(box: Box) -> None:
    odd = {
        "plan.json": b"{}",
        "fixtures/a b.json": os.urandom(300_000),
        "fixtures/ümläut.json": b"",
        "prompts/x.txt": b"\r\n\0",
    }
    box.put_run(odd.items())
    landed = Path(box.run_directory)
    found = {str(path.relative_to(landed)): path.read_bytes() for path in landed.rglob("*") if path.is_file()}
    assert found == odd
    assert landed.stat().st_mode & 0o777 == 0o700
    assert not landed.with_name("run.new").exists()


def test_a_new_run_replaces_the_old_one_whole(box: Box) -> None:
    box.put_run([("plan.json", b"1"), ("old.json", b"1")])
    box.put_run([("plan.json", b"2")])
    assert [path.name for path in Path(box.run_directory).iterdir()] == ["plan.json"]


@pytest.fixture
def going_on(box: Box) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks like the box's run; nobody has waited for it yet."""
    box.put_run([("plan.json", b"1")])
    command = [sys.executable, "-c", "input()", box.run_directory]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        Path(box.run_directory, "run.pid").write_text(f"{process.pid}\n")
        yield process
        process.kill()


def test_a_run_that_goes_on_is_not_replaced(box: Box, going_on: subprocess.Popen[bytes]) -> None:
    assert box.follow(0).alive
    with pytest.raises(BoxError, match="a run is going on"):
        box.put_run([("plan.json", b"2")])
    assert Path(box.run_directory, "plan.json").read_bytes() == b"1"


def test_a_run_that_is_a_zombie_does_not_go_on(box: Box, going_on: subprocess.Popen[bytes]) -> None:
    """In a container that has no init, nobody ever waits for it."""
    os.kill(going_on.pid, signal.SIGKILL)
    assert eventually(lambda: psutil.Process(going_on.pid).status() == psutil.STATUS_ZOMBIE)
    assert not box.follow(0).alive
    box.put_run([("plan.json", b"2")])


def test_a_stranger_with_the_runs_old_number_is_no_run(box: Box) -> None:
    box.put_run([("plan.json", b"1")])
    Path(box.run_directory, "run.pid").write_text(f"{os.getpid()}\n")
    assert not box.follow(0).alive
    box.put_run([("plan.json", b"2")])


def test_a_payload_lands_under_its_digest_and_once(box: Box, tmp_path: Path) -> None:
    payload = tmp_path / "payload"
    payload.write_bytes(os.urandom(500_000))
    sha256 = hashlib.sha256(payload.read_bytes()).hexdigest()
    box.put_payload(payload, sha256)
    (landed,) = Path(box.address.directory).glob("payload-*")
    assert landed.name == f"payload-{sha256[:16]}.pyz"
    assert landed.read_bytes() == payload.read_bytes()
    before = landed.stat()
    box.put_payload(payload, sha256)
    assert landed.stat() == before


def test_a_payload_that_was_cut_off_is_sent_again(box: Box, tmp_path: Path) -> None:
    payload = tmp_path / "payload"
    payload.write_bytes(os.urandom(500_000))
    sha256 = hashlib.sha256(payload.read_bytes()).hexdigest()
    Path(box.address.directory, f"payload-{sha256[:16]}.pyz.part").write_bytes(b"half")
    box.put_payload(payload, sha256)
    (landed,) = Path(box.address.directory).glob("payload-*")
    assert landed.read_bytes() == payload.read_bytes()


def test_events_are_read_from_an_offset_and_only_whole_ones(box: Box) -> None:
    box.put_run([("plan.json", b"{}")])
    log = Path(box.run_directory, "events.jsonl")
    assert box.follow(0) == replace(box.follow(0), events=(), offset=0, alive=False)
    log.write_bytes('{"event": "start", "name": "ä"}\nno JSON\n[1]\n{"event": "att'.encode())
    first = box.follow(0)
    assert [event["event"] for event in first.events] == ["start"]
    with log.open("ab") as more:
        more.write(b'empt"}\n')
    second = box.follow(first.offset)
    assert [event["event"] for event in second.events] == ["attempt"]
    assert box.follow(second.offset).events == ()


def test_a_box_that_was_not_provisioned_runs_nothing(host: Sshd, box: Box) -> None:
    with pytest.raises(BoxError, match="not provisioned"):
        Box(box.address, box.link).start("0" * 64, "http://127.0.0.1:1/")


def test_an_answer_that_is_no_json_is_the_boxes_fault(box: Box) -> None:
    box.put_run([("plan.json", b"{}")])
    box.python = "/bin/echo"
    with pytest.raises(BoxError, match="something else than a JSON object"):
        box.snapshot("0" * 64, io.BytesIO())


DEEP = "[" * 200_000


@pytest.mark.parametrize("answer", [DEEP, "[]", "7", '"word"', "NaN", '{"a": 1, "a": 2}', "\xff", ""])
def test_whatever_a_payload_command_prints_is_a_box_error(box: Box, tmp_path: Path, answer: str) -> None:
    box.put_run([("plan.json", b"{}")])
    box.python = liar(tmp_path, answer)
    for command in (lambda: box.inspect("0" * 64), lambda: box.snapshot("0" * 64, io.BytesIO())):
        with pytest.raises(BoxError, match="something else than a JSON object"):
            command()


@pytest.mark.parametrize("size", ["-1", "true", "1.0", '"9"', "null", str(box_module.MAX_SNAPSHOT + 1), "[[]]"])
def test_a_snapshot_must_state_a_size(box: Box, tmp_path: Path, size: str) -> None:
    box.put_run([("plan.json", b"{}")])
    box.python = liar(tmp_path, f'{{"sha256": "0", "bytes": {size}}}')
    with pytest.raises(BoxError, match="states no size"):
        box.snapshot("0" * 64, io.BytesIO())


def test_a_snapshot_is_no_longer_than_stated_and_no_device(box: Box, tmp_path: Path) -> None:
    box.put_run([("plan.json", b"{}")])
    box.python = liar(tmp_path, '{"sha256": "0", "bytes": 1000}')
    copy = Path(box.run_directory, "eval_runs.snapshot.db")
    copy.symlink_to("/dev/zero")
    with pytest.raises(BoxError, match="not a regular file"):
        box.snapshot("0" * 64, io.BytesIO())
    copy.unlink()
    copy.write_bytes(bytes(1001))
    with pytest.raises(BoxError, match="more than the 1000 bytes"):
        box.snapshot("0" * 64, io.BytesIO())
    copy.write_bytes(bytes(1000))
    back = io.BytesIO()
    assert box.snapshot("0" * 64, back) == {"sha256": "0", "bytes": 1000}
    assert back.getvalue() == bytes(1000)


@pytest.mark.parametrize("answer", ["started", "", "1 2", "-1", "1_0", "\u0661", "1" * 5000])
def test_a_start_that_names_no_process_is_a_box_error(box: Box, tmp_path: Path, answer: str) -> None:
    box.put_run([("plan.json", b"{}")])
    box.python = liar(tmp_path, answer)
    with pytest.raises(BoxError, match="something else than a process id"):
        box.start("0" * 64, "http://127.0.0.1:1/")


def test_events_that_are_nonsense_are_left_out(box: Box) -> None:
    box.put_run([("plan.json", b"{}")])
    lines = [b"[" * 60_000, b"[]", b"\xff", b"NaN", b'{"event": "end"}', b"", b'{"a": 1e999}']
    Path(box.run_directory, "events.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    progress = box.follow(0)
    assert progress.events == ({"event": "end"},)
    assert progress.offset == sum(map(len, lines)) + len(lines)


@pytest.mark.parametrize("end", [b"\n", b""])
def test_an_event_without_end_is_a_box_error(box: Box, end: bytes) -> None:
    box.put_run([("plan.json", b"{}")])
    Path(box.run_directory, "events.jsonl").write_bytes(b"{}\n" + b"x" * (box_module.MAX_EVENT + 1) + end)
    with pytest.raises(BoxError, match="a line longer than"):
        box.follow(0)


def test_events_without_end_are_a_box_error(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(box_module, "MAX_EVENTS", 30)
    box.put_run([("plan.json", b"{}")])
    log = Path(box.run_directory, "events.jsonl")
    log.write_bytes(b"{}\n" * 10)
    offset = box.follow(0).offset
    with log.open("ab") as more:
        more.write(b"{}\n")
    with pytest.raises(BoxError, match="event log is longer"):
        box.follow(offset)


def test_logs_and_events_are_read_from_regular_files_only(box: Box) -> None:
    box.put_run([("plan.json", b"{}")])
    log, events = Path(box.run_directory, "run.log"), Path(box.run_directory, "events.jsonl")
    assert (box.logs(), box.log_tail(), box.follow(0).events) == ("", "", ())
    log.write_text("a traceback\n")
    events.write_text('{"event": "end"}\n')
    assert (box.logs(), box.log_tail()) == ('a traceback\n{"event": "end"}\n', "a traceback")
    for file in (log, events):
        file.unlink()
        file.symlink_to("/dev/zero")
    assert (box.logs(), box.log_tail(), box.follow(0).events) == ("", "", ())


def liar(folder: Path, answer: str) -> str:
    """A Python that prints this, whatever it is told to run."""
    (folder / "answer").write_bytes(answer.encode("latin-1" if answer == "\xff" else "utf-8"))
    path = folder / "python"
    path.write_text(f"#!/bin/sh\ncat '{folder}/answer'\n")
    path.chmod(0o755)
    return str(path)
