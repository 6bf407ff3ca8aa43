from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rehearsal.evidence.artifact import read
from rehearsal.runner.errors import BoxError
from rehearsal.runner.snapshot import snapshot
from rehearsal.runner.store import DB_NAME, Store
from tests.unit.runs import fill, lay_out, replied


@pytest.mark.parametrize("name", ["box", "a box?#100%"])
def test_a_copy_made_while_the_run_goes_on_has_every_row_and_no_sidecar(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    plan = lay_out(folder, 5)
    with Store(folder / DB_NAME, plan) as store:
        fill(store, folder, plan, [replied()] * 4)
        assert (folder / f"{DB_NAME}-wal").stat().st_size > 0
        snapshot(folder / DB_NAME, folder / "copy.db")
        fill(store, folder, plan, [replied()])
    assert [path.name for path in folder.glob("copy.db*")] == ["copy.db"]
    assert (folder / "copy.db").read_bytes()[18:20] == b"\x01\x01"
    found = read(folder / "copy.db", plan)
    assert (len(found.attempts), found.seal) == (4, None)


def test_a_second_copy_replaces_the_first(tmp_path: Path) -> None:
    plan = lay_out(tmp_path)
    with Store(tmp_path / DB_NAME, plan) as store:
        for expected in (0, 1, 2):
            snapshot(tmp_path / DB_NAME, tmp_path / "copy.db")
            assert len(read(tmp_path / "copy.db", plan).attempts) == expected
            fill(store, tmp_path, plan, [replied()])


def test_no_database_is_made_where_there_is_none(tmp_path: Path) -> None:
    with pytest.raises(BoxError, match="can't be copied"):
        snapshot(tmp_path / DB_NAME, tmp_path / "copy.db")
    assert not list(tmp_path.iterdir())


def test_a_damaged_database_is_not_copied(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / DB_NAME)) as connection, connection:
        connection.execute("CREATE TABLE t (a)")
        connection.executemany("INSERT INTO t VALUES (?)", [("x" * 900,)] * 50)
    raw = bytearray((tmp_path / DB_NAME).read_bytes())
    raw[4096:20480] = b"\xee" * 16384
    (tmp_path / DB_NAME).write_bytes(raw)
    with pytest.raises(BoxError, match=r"can't be copied|is damaged"):
        snapshot(tmp_path / DB_NAME, tmp_path / "copy.db")
