"""teardown.json: what was torn down, and what a look afterwards saw."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Receipt:
    """The end of one box. Times are UTC, ISO 8601.

    state      'gone' (a look that would have seen it saw nothing), 'lost' (it may be there) or 'kept' (on purpose)
    left       what may be left, by name
    history    every state of the box with its time
    exposure   what the box could have seen; None where the run never started
    """

    run_id: str | None
    box_id: str
    driver: str
    isolation: str
    state: str
    left: tuple[str, ...]
    history: tuple[tuple[str, str], ...]
    exposure: dict[str, Any] | None

    def write(self, folder: Path) -> None:
        """Put `teardown.json` into `folder`, whole or not at all."""
        value = {**self.__dict__, "history": [{"state": state, "at": at} for state, at in self.history]}
        write_whole(folder / "teardown.json", json.dumps(value, indent=1) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees all of it or none, even after a power cut."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    part.replace(path)
