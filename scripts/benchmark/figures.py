"""What a figure is, and the table of them."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """One thing measured.

    target        what it should reach, in the same unit; None for a figure that is only reported
    most          the target is the most it may be, not the least
    compared_to   (what, its value in the same unit), measured in the same run
    note          how often it was measured, CPU time, whatever a reader needs
    """

    name: str
    value: float
    unit: str
    target: float | None = None
    most: bool = False
    compared_to: tuple[tuple[str, float], ...] = ()
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target was reached; None where there is none."""
        if self.target is None:
            return None
        return self.value <= self.target if self.most else self.value >= self.target


@dataclass(frozen=True)
class Skipped:
    """A figure that could not be measured here, and why."""

    name: str
    why: str


Part = Callable[[], list[Figure | Skipped]]


def comparisons(rivals: Sequence[Figure | Skipped]) -> tuple[tuple[str, float], ...]:
    """What was measured of other tools, to compare a figure to."""
    return tuple((rival.name, rival.value) for rival in rivals if isinstance(rival, Figure))


def missing(rivals: Sequence[Figure | Skipped]) -> list[Skipped]:
    """What could not be measured of them: rows of their own, which say why."""
    return [rival for rival in rivals if isinstance(rival, Skipped)]


def median(measure: Callable[[], float], times: int) -> float:
    """The median of `times` measurements."""
    return statistics.median(measure() for _ in range(times))


def machine() -> str:
    """What it ran on, and how busy that was."""
    busy = ", ".join(f"{load:.1f}" for load in os.getloadavg())
    return (
        f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}; load {busy}"
    )


def show(figures: Sequence[Figure | Skipped], console: Console) -> None:
    """Print the table."""
    table = Table(title="scripts/bench", caption=machine(), show_lines=True)
    for heading, side in (("figure", "left"), ("measured", "right"), ("target", "right")):
        table.add_column(heading, justify=side)  # type: ignore[arg-type]
    table.add_column("compared to", no_wrap=True)
    table.add_column("ratio", justify="right")
    table.add_column("note", overflow="fold")
    for figure in figures:
        if isinstance(figure, Skipped):
            table.add_row(figure.name, "[dim]not measured[/]", "", "", "", figure.why)
            continue
        colour = {True: "green", False: "red", None: "default"}[figure.met]
        table.add_row(
            figure.name,
            f"[{colour}]{_number(figure.value)} {figure.unit}[/]",
            "" if figure.target is None else f"{'≤' if figure.most else '≥'} {_number(figure.target)}",
            "\n".join(f"{what}: {_number(value)}" for what, value in figure.compared_to),
            "\n".join(f"{figure.value / value:.2f}×" if value else "" for _, value in figure.compared_to),
            figure.note,
        )
    console.print(table)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
