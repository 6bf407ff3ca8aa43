from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rehearsal.evidence.receipt import Receipt, write_whole

words = st.text(st.characters(exclude_categories=()), max_size=8)
receipts = st.builds(
    Receipt,
    run_id=st.none() | words,
    box_id=words,
    driver=words,
    isolation=words,
    state=st.sampled_from(["gone", "lost", "kept"]),
    left=st.lists(words, max_size=3).map(tuple),
    history=st.lists(st.tuples(words, words), max_size=3).map(tuple),
    exposure=st.none() | st.dictionaries(words, words, max_size=2),
)


@settings(max_examples=40, deadline=None)
@given(receipts)
def test_a_receipt_can_be_read_again(receipt: Receipt) -> None:
    with tempfile.TemporaryDirectory() as name:
        receipt.write(Path(name))
        value = json.loads((Path(name) / "teardown.json").read_text())
    assert tuple((item["state"], item["at"]) for item in value.pop("history")) == receipt.history
    assert tuple(value.pop("left")) == receipt.left
    assert value == {key: getattr(receipt, key) for key in value}
    assert set(value) == {"run_id", "box_id", "driver", "isolation", "state", "exposure"}


def test_a_file_lands_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.json"
    write_whole(target, "first")
    with pytest.raises(UnicodeEncodeError):
        write_whole(target, "x" * 100_000 + "\ud800")
    assert target.read_text() == "first"
    write_whole(target, "second")
    assert (target.read_text(), [path.name for path in target.parent.iterdir()]) == ("second", ["file.json"])
