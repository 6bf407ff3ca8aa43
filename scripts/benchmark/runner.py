"""The runner as a box runs it: the real payload, with exactly a box's environment."""

from __future__ import annotations

import json
import sqlite3
import statistics
import sys
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmark import baselines, peers, places
from benchmark.figures import Figure, Skipped, comparisons, missing
from benchmark.places import ROOT, VERSION, WORKERS, BoxRun, Scratch, Used


@dataclass(frozen=True)
class Speed:
    """One run: what it used, and attempts/s of the whole process and of its steady part."""

    used: Used
    whole: float
    steady: float


def once(scratch: Scratch, count: int, url: str) -> Speed:
    """One run of `count` fixtures."""
    box = places.box_run(scratch, count, url)
    used = places.measure(box.command, cwd=box.directory, environment=box.environment)
    return Speed(used, count / used.wall_s, steady_rate(box.directory / "eval_runs.db", count))


def steady_rate(database: Path, expected: int) -> float:
    """Attempts/s from the first row to the last; the first 64 come at once, after one reply's time, and don't count."""
    times = _column(database, "created_at")
    if len(times) != expected:
        raise RuntimeError(f"{len(times)} rows of {expected}")
    first, last = (datetime.fromisoformat(time) for time in (min(times), max(times)))
    return (len(times) - WORKERS) / (last - first).total_seconds()


def _column(database: Path, name: str) -> list[str]:
    db = sqlite3.connect(database)
    try:
        return [row[0] for row in db.execute(f"SELECT {name} FROM eval_runs WHERE attempt > 0")]
    finally:
        db.close()


def speed(scratch: Scratch, *, quick: bool, with_peers: bool) -> list[Figure | Skipped]:
    """Attempts/s at 64 workers and 50 ms, beside the article's loop, bare httpx and, if asked for, the peers."""
    count, times, sample = (500, 1, 40) if quick else (2000, 3, 100)
    text = (ROOT / "prompts" / f"{VERSION}.txt").read_text()
    fixtures: list[dict[str, Any]] = places.tickets(count)
    with places.endpoint(50) as url:
        places.box_run(scratch, 1, url)  # builds the payload, once
        runs, bare = [], []
        for _ in range(times):  # by turns: whatever else the machine does hits both
            runs.append(once(scratch, count, url))
            bare.append(baselines.bare_httpx(url, fixtures, text))
        loop = baselines.article_loop(url, fixtures[:sample], text, scratch.new("article") / "eval_runs.db")
        rivals = peers.evaluators(scratch, url, quick=quick) if with_peers else []
    ideal = WORKERS / 0.050
    httpx_rate, httpx_cpu = (statistics.median(values) for values in zip(*bare, strict=True))
    cpu = statistics.median(run.used.cpu_s for run in runs) / count * 1000
    compared = (
        ("ideal", ideal),
        (f"the article's loop ({sample} tickets)", loop),
        ("bare httpx, 64 clients", httpx_rate),
        *comparisons(rivals),
    )
    note = f"{count:,} fixtures, 64 workers, 50 ms; median of {times}"
    used = f"CPU {cpu:.2f} ms an attempt with start-up, bare httpx {httpx_cpu:.2f} ms"
    return [
        Figure(
            "runner: first to last row",
            statistics.median(run.steady for run in runs),
            "attempts/s",
            700,
            compared_to=compared,
            note=note,
        ),
        Figure(
            "runner: whole process",
            statistics.median(run.whole for run in runs),
            "attempts/s",
            700,
            compared_to=compared,
            note=f"{note}; {used}",
        ),
        *missing(rivals),
    ]


def slow_model(scratch: Scratch, *, quick: bool) -> list[Figure | Skipped]:
    """Attempts/s where the model needs 500 ms, beside the ideal."""
    count = 640 if quick else 2000
    ideal = WORKERS / 0.5
    with places.endpoint(500) as url:
        run = once(scratch, count, url)
    note = f"{count:,} fixtures, 64 workers, 500 ms; CPU {run.used.cpu_s / run.used.wall_s:.0%} of a core"
    return [
        Figure(f"slow model: {what}", rate, "attempts/s", 0.93 * ideal, compared_to=(("ideal", ideal),), note=note)
        for what, rate in (("first to last row", run.steady), ("whole process", run.whole))
    ]


def memory(scratch: Scratch, *, quick: bool) -> list[Figure | Skipped]:
    """Peak memory of the runner, and how it grows with ten times the fixtures."""
    few, many = (500, 5000) if quick else (2000, 20000)
    with places.endpoint(0) as url:
        small, large = once(scratch, few, url).used.peak_mb, once(scratch, many, url).used.peak_mb
    return [
        Figure(f"memory: {few:,} fixtures", small, "MB", 80, most=True, note="peak resident; an instant endpoint"),
        Figure(
            f"memory: {many:,} fixtures",
            large,
            "MB",
            1.2 * small,
            most=True,
            compared_to=((f"{few:,} fixtures", small),),
            note="target: within 20 %",
        ),
    ]


def durability(scratch: Scratch, *, quick: bool) -> list[Figure | Skipped]:
    """Rows lost by kill -9 in the middle of a run, and how long a power cut can reach back."""
    count = 500 if quick else 2000
    with places.endpoint(50) as url:
        lost, told, resumed = _kill(places.box_run(scratch, count, url))
        box = places.box_run(scratch, count, url)
        environment = {**scratch.environment, "MODEL_URL": url, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, str(places.HERE / "sync_gap.py"), str(box.directory)]
        gap = float(places.run(command, cwd=box.directory, environment=environment))
    return [
        Figure(
            "kill -9: rows lost",
            lost,
            "rows",
            0,
            most=True,
            note=f"{told:,} attempts reported before it; started again, it made the other {resumed:,} and sealed",
        ),
        Figure(
            "power cut: a row waits for the disk",
            gap,
            "s",
            1.0,
            most=True,
            note=f"the longest of {count:,}: insert to the end of the next sync",
        ),
    ]


def _kill(box: BoxRun) -> tuple[int, int, int]:
    """Kill a run at a third, then go on with it: attempts reported and not found, reported, made afterwards."""
    log = box.directory / "events.jsonl"
    with places.process(box.command, cwd=box.directory, environment=box.environment) as child:
        while _reported(log) < box.expected // 3 and child.poll() is None:
            time.sleep(0.01)
        child.kill()
    told = _told(log)
    database = box.directory / "eval_runs.db"
    found = set(_column(database, "fixture_id"))
    places.measure(box.command, cwd=box.directory, environment=box.environment)
    everything = _column(database, "fixture_id")
    if len(everything) != box.expected or len(set(everything)) != box.expected or len(found) == box.expected:
        raise RuntimeError(f"{len(found)} rows after the kill and {len(everything)} at the end, of {box.expected}")
    return len(told - found), len(told), box.expected - len(found)


def _reported(log: Path) -> int:
    return log.read_bytes().count(b'"attempt"') if log.exists() else 0


def _told(log: Path) -> set[str]:
    lines = log.read_bytes().split(b"\n")[:-1]
    return {event["fixture_id"] for event in map(json.loads, lines) if event["event"] == "attempt"}
