"""The only module that writes to the terminal: steps, progress, tables, errors with a hint.

What a model wrote is untrusted text: nothing of it is ever read as markup, and no control character of it
reaches the screen.
"""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console as Rich
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rehearsal.runner.errors import RehearsalError

STYLES = {
    "pass": "green",
    "green": "green",
    "fail": "bold red",
    "red": "bold red",
    "error": "yellow",
    "none": "yellow",
}
# Format characters include the bidi controls, which could show a sentence backwards.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})


def safe(text: object) -> str:
    """`text` with every character that could steer a terminal written out as an escape; line ends become spaces."""
    return "".join(letter if unicodedata.category(letter) not in _UNSAFE else _spelled(letter) for letter in str(text))


def _spelled(letter: str) -> str:
    return " " if letter in "\n\r\t" else letter.encode("unicode_escape").decode()


class Console:
    """Where a task's words go: standard output, or standard error when standard output is for one JSON object.

    On a terminal there is a live progress bar, elsewhere a plain line an event. NO_COLOR is honoured (by rich).
    """

    def __init__(self, *, json_output: bool = False) -> None:
        self._json = json_output
        self._rich = Rich(stderr=json_output, highlight=False, soft_wrap=True)
        self._errors = Rich(stderr=True, highlight=False, soft_wrap=True)
        self._progress: Progress | None = None
        self._bar: Any = None

    def line(self, text: str, *, style: str = "") -> None:
        """One line."""
        self._rich.print(Text("  ".join(safe(part) for part in text.split("\n")), style=style))

    def step(self, run_id: str, text: str) -> None:
        """One step of a run; every line says which run it is about."""
        self.line(f"{run_id}  {text}")

    def start_attempts(self, expected: int, done: int) -> None:
        """Begin to show attempts."""
        if self._rich.is_terminal:
            self._progress = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[tally]}"),
                TimeRemainingColumn(),
                console=self._rich,
                transient=True,
            )
            self._bar = self._progress.add_task("attempts", total=expected, completed=done, tally="")
            self._progress.start()

    def attempt(self, run_id: str, event: Any, tally: str) -> None:
        """One attempt has ended: `event` as the box wrote it, `tally` the counts so far."""
        if self._progress is not None:
            self._progress.update(self._bar, completed=_whole(event.get("done")), tally=safe(tally))
            if event.get("outcome") == "pass":
                return
        reason = event.get("reason")
        words = f"{event.get('fixture_id')}  attempt {event.get('attempt')}: {event.get('outcome')}"
        self.line(
            f"{run_id}  {words}{f'  {reason}' if reason else ''}",
            style=STYLES.get(str(event.get("outcome")), ""),
        )

    def end_attempts(self) -> None:
        """Take the progress bar away; safe to call twice."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], *, style_by: int | None = None) -> None:
        """A table; `style_by` is the column whose word colours the row's cell."""
        table = Table(box=box.SIMPLE, show_edge=False, pad_edge=False)
        for column in columns:
            table.add_column(column, overflow="fold")
        for row in rows:
            cells = [Text(safe(cell)) for cell in row]
            if style_by is not None:
                cells[style_by].stylize(STYLES.get(str(row[style_by]), ""))
            table.add_row(*cells)
        self._rich.print(table, soft_wrap=False)

    def conclusion(self, verdict: str, text: str) -> None:
        """The last line."""
        self._rich.print(Text(safe(text), style=STYLES.get(verdict, "")))

    def result(self, value: Any) -> None:
        """The one JSON object of `--json`; nothing without it."""
        if self._json:
            sys.stdout.write(json.dumps(value) + "\n")
            sys.stdout.flush()

    def error(self, error: RehearsalError) -> None:
        """One sentence, what it concerns, and a hint."""
        self.end_attempts()
        first, *more = error.message.split("\n")
        self._errors.print(Text.assemble(("error: ", "bold red"), safe(first)))
        for line in more:
            self._errors.print(Text(f"  {safe(line.strip())}"))
        if error.hint:
            self._errors.print(Text.assemble(("hint: ", "bold"), safe(error.hint)))


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0
