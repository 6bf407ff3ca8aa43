from __future__ import annotations

import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from rehearsal.boxes import Address, Request
from rehearsal.boxes.ledger import GONE, MOVES, Ledger, open_ledger
from rehearsal.runner.errors import RehearsalError, UsageError

ADDRESS = Address("h", 22, "u", "/box", "sealed", host_key="ssh-ed25519 AAAA", proxy=("ssh", "-W"))
# The shortest way to each state.
WAYS = {
    "intended": (),
    "created": ("created",),
    "armed": ("created", "armed"),
    "synced": ("created", "armed", "synced"),
    "running": ("created", "armed", "synced", "running"),
    "pulled": ("created", "armed", "synced", "running", "pulled"),
    "destroying": ("destroying",),
    "lost": ("destroying", "lost"),
    "gone": ("destroying", "gone"),
}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "state" / "ledger.db")


def request(box_id: str = "box-1", ttl_s: int = 60) -> Request:
    return Request(box_id, ttl_s, False, Path("/keys"), "me@there")


def brought_to(ledger: Ledger, state: str) -> str:
    ledger.intend(request(f"box-{state}"), "loopback")
    for step in WAYS[state]:
        ledger.move(f"box-{state}", step)
    return f"box-{state}"


@pytest.mark.parametrize("state", MOVES)
def test_only_the_tables_moves_are_made_and_every_other_raises(ledger: Ledger, state: str) -> None:
    for target in MOVES:
        if target not in MOVES[state]:
            box_id = f"box-{state}"
            if not [row for row in ledger.rows() if row.box_id == box_id]:
                brought_to(ledger, state)
            with pytest.raises(UsageError, match=f"is {state} and can't become {target}"):
                ledger.move(box_id, target)
            assert ledger.row(box_id).state == state
            assert ledger.history(box_id)[-1][0] == state


@pytest.mark.parametrize(("state", "target"), [(state, target) for state in MOVES for target in MOVES[state]])
def test_every_move_of_the_table_is_made_and_written_down(ledger: Ledger, state: str, target: str) -> None:
    box_id = brought_to(ledger, state)
    assert ledger.move(box_id, target).state == target
    assert [name for name, _ in ledger.history(box_id)] == ["intended", *WAYS[state], target]


def test_from_anywhere_a_box_can_be_destroyed_and_from_gone_nothing_comes_back() -> None:
    assert set(MOVES) == set(WAYS)
    assert all("destroying" in moves for state, moves in MOVES.items() if state != GONE)
    assert [state for state, moves in MOVES.items() if GONE in moves] == ["destroying"]
    assert MOVES[GONE] == ()


def test_an_unknown_state_or_box_raises(ledger: Ledger) -> None:
    ledger.intend(request(), "loopback")
    with pytest.raises(UsageError):
        ledger.move("box-1", "exploded")
    with pytest.raises(UsageError, match="no box box-2"):
        ledger.move("box-2", "created")


def test_a_row_holds_all_that_a_tear_down_needs(ledger: Ledger, tmp_path: Path) -> None:
    ledger.intend(request(), "host")
    ledger.move("box-1", "created", address=ADDRESS)
    ledger.move("box-1", "armed", python="/usr/bin/python3")
    row = Ledger(tmp_path / "state" / "ledger.db").row("box-1")
    assert (row.record.address, row.record.keys, row.record.target) == (ADDRESS, Path("/keys"), "me@there")
    assert (row.python, row.isolation, row.kept, row.driver) == ("/usr/bin/python3", "sealed", False, "host")
    assert 0 < row.left_s <= 60
    assert row.to_json()["address"]["host_key"] == "ssh-ed25519 AAAA"
    assert "keys" not in row.to_json()


def test_alive_is_what_is_not_shown_to_be_gone(ledger: Ledger) -> None:
    for state in MOVES:
        brought_to(ledger, state)
    assert {row.state for row in ledger.rows(alive_only=True)} == set(MOVES) - {GONE}
    assert len(ledger.rows()) == len(MOVES)


def test_two_boxes_never_share_a_name(ledger: Ledger) -> None:
    ledger.intend(request(), "loopback")
    with pytest.raises(Exception, match="UNIQUE"):
        ledger.intend(request(), "loopback")


def test_it_lies_in_the_users_state_folder_and_is_the_users_own(home: Path) -> None:
    ledger = open_ledger()
    (found,) = home.rglob("ledger.db")
    assert stat.S_IMODE(found.stat().st_mode) == 0o600
    assert found.parent == ledger.folder
    assert stat.S_IMODE(found.parent.stat().st_mode) == 0o700


def test_a_ledger_that_can_not_be_read_stops_everything(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"no database" * 100)
    with pytest.raises(RehearsalError, match=r"ledger\.db can't be used") as caught:
        Ledger(tmp_path / "ledger.db")
    assert "look for boxes by hand" in caught.value.hint


RACE = """
import sys
from pathlib import Path
from rehearsal.boxes import Request
from rehearsal.boxes.ledger import Ledger
from rehearsal.runner.errors import UsageError
ledger = Ledger(Path(sys.argv[1]))
print("ready", flush=True)
sys.stdin.readline()
won = 0
for number in range(20):
    ledger.intend(Request(f"box-{sys.argv[2]}-{number}", 60, False, Path("/k")), "loopback")
    try:
        ledger.move(f"shared-{number}", "created")
        won += 1
    except UsageError:
        pass
print(won)
"""


def test_of_several_processes_exactly_one_makes_a_move_and_no_row_is_lost(tmp_path: Path, repo: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger(path)
    for number in range(20):
        ledger.intend(request(f"shared-{number}"), "loopback")
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, path, str(n)],
            cwd=repo,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    won = [int(process.communicate()[0]) for process in processes]
    assert sum(won) == 20
    assert len(ledger.rows()) == 80
    for number in range(20):
        assert [state for state, _ in ledger.history(f"shared-{number}")] == ["intended", "created"]


KILLED = """
import os, signal, sys
from pathlib import Path
from rehearsal.boxes import Request
from rehearsal.boxes.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
ledger.intend(Request("box-1", 60, False, Path("/k")), "loopback")
ledger.move("box-1", "created")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_written_survives_kill_9(tmp_path: Path, repo: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "ledger.db"], cwd=repo, check=False)
    assert done.returncode == -signal.SIGKILL
    assert Ledger(tmp_path / "ledger.db").row("box-1").state == "created"
