"""The tables of look-alikes are tidy: one row a character, and nothing that decomposition does already."""

import re
import unicodedata

from rehearsal.runner import confusables


def test_confusables_are_single_characters_that_stand_in_one_row_only():
    rows = [*confusables.LOOKALIKES.items(), *confusables.STYLISED.items()]
    letters = [c for _, row in rows for c in row]
    assert len(letters) == len(set(letters))
    assert all(re.fullmatch("[a-z]", letter) for letter, _ in rows)
    assert not any(c.isascii() for c in letters)
    # The lunate sigma decomposes into one that looks like an o.
    assert [c for c in letters if unicodedata.normalize("NFKD", c) != c] == ["ϲ", "Ϲ"]
