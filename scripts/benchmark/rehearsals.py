"""Whole rehearsals: `invoke rehearse` on a loopback box, the relay, and the stages against an OpenSSH host."""

from __future__ import annotations

import contextlib
import io
import shutil
import statistics
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmark import peers, places, runner
from benchmark.figures import Figure, Skipped, comparisons, median, missing
from benchmark.places import ROOT, VERSION, WORKERS, Scratch
from rehearsal import stages
from rehearsal.boxes.ledger import Ledger
from rehearsal.boxes.payload import payload
from rehearsal.console import Console
from rehearsal.preregistration import prepare
from rehearsal.settings import Model, Settings
from tests.hosts import sshd as openssh  # the tests' own server


def rehearse(scratch: Scratch, *, quick: bool, with_peers: bool) -> list[Figure | Skipped]:
    """`invoke rehearse` from start to end: three fixtures, an instant endpoint, a loopback box."""
    times = 3 if quick else 5
    project = scratch.new("project")
    places.lay_out(project, 3, chat=True)
    shutil.copy(ROOT / "tasks.py", project)
    command = [sys.executable, "-m", "invoke", "rehearse", "--json"]
    with places.endpoint(0) as url:
        environment = {**scratch.environment, "MODEL_URL": url, "PYTHONPATH": str(ROOT)}

        def once() -> float:
            started = time.perf_counter()
            places.run(command, cwd=project, environment=environment)
            return time.perf_counter() - started

        first = once()
        wall = median(once, times)
        used = places.measure(command, cwd=project, environment=environment)
        rivals = peers.start_ups(scratch, url) if with_peers else []
    note = f"median of {times}; CPU {used.cpu_s:.2f} s; the very first, which builds the payload: {first:.1f} s"
    return [
        Figure("invoke rehearse, whole process", wall, "s", 2.0, most=True, compared_to=comparisons(rivals), note=note),
        *missing(rivals),
    ]


def relay(scratch: Scratch, *, quick: bool) -> list[Figure | Skipped]:
    """Attempts/s of a loopback box whose calls come through the SSH connection, beside the runner without one."""
    count = 300 if quick else 1000
    with places.endpoint(50) as url:
        direct = runner.once(scratch, count, url)
        settings = _settings(scratch, count)
        ledger = Ledger(scratch.new("state") / "ledger.db")
        row, seconds = _slice(settings, Model(url), ledger)
        database = settings.out / str(row.run_id) / "eval_runs.db"
        rate = runner.steady_rate(database, count)
    note = f"{count:,} fixtures, 64 workers, 50 ms, a {row.isolation} loopback box; run {seconds['run']:.1f} s"
    return [Figure("through the relay", rate, "attempts/s", compared_to=(("directly", direct.steady),), note=note)]


def host(scratch: Scratch, *, quick: bool, with_peers: bool) -> list[Figure | Skipped]:
    """What a box costs besides the run, on an OpenSSH host, beside the five bare steps with Fabric."""
    name = "OpenSSH host: provision, sync, pull, tear down"
    if openssh.MISSING:
        return [Skipped(name, openssh.MISSING)]
    times = 3 if quick else 5
    with (
        openssh.Sshd(scratch.new("sshd") / "host", options=["Subsystem sftp internal-sftp"]) as server,
        places.endpoint(0) as url,
    ):
        settings = replace(_settings(scratch, 3), box="host", host=server.target, ssh_config=server.ssh_config())
        ledger = Ledger(scratch.new("state") / "ledger.db")
        _slice(settings, Model(url), ledger)  # imports
        kept, bare = [], []
        for _ in range(times):
            kept.append(_slice(settings, Model(url), ledger)[1])
            bare.append(_seconds(lambda: _five_steps(server, scratch)))
        rivals = peers.deployers(scratch, server) if with_peers else []
    each = {stage: statistics.median(seconds[stage] for seconds in kept) for stage in kept[0] if stage != "run"}
    total = statistics.median(sum(seconds[stage] for stage in each) for seconds in kept)
    compared = (("bare Fabric, five steps", statistics.median(bare)), *comparisons(rivals))
    spent = ", ".join(f"{stage} {seconds:.2f}" for stage, seconds in each.items())
    return [
        Figure(name, total, "s", 1.0, most=True, compared_to=compared, note=f"median of {times}: {spent}"),
        *missing(rivals),
    ]


def _settings(scratch: Scratch, count: int) -> Settings:
    folder = scratch.new("project")
    places.lay_out(folder, count)
    return Settings(
        template=VERSION,
        fixtures=folder / "fixtures",
        prompts=folder / "prompts",
        concurrency=WORKERS,
        ttl=600,
        out=folder / "runs",
    )


def _slice(settings: Settings, model: Model, ledger: Ledger) -> tuple[Any, dict[str, float]]:
    """One rehearsal by its stages: the box's last row, and the seconds of each stage."""
    prepared = prepare(settings, model, {})
    seconds = {}
    row = stages.ask(settings, ledger)
    try:
        started = time.perf_counter()
        session = stages.provision(row, settings, ledger)
        seconds["provision"] = time.perf_counter() - started
        with contextlib.closing(session.link):
            seconds["sync"] = _seconds(lambda: stages.sync(session, prepared, ledger))
            with contextlib.redirect_stderr(io.StringIO()):
                quiet = Console(json_output=True)
                seconds["run"] = _seconds(lambda: stages.run(session, model, ledger, quiet, {}))
            started = time.perf_counter()
            judgement = stages.pull(session, ledger, {})
            seconds["pull"] = time.perf_counter() - started
        if judgement.verdict != "green":
            raise RuntimeError(f"the rehearsal ended {judgement.verdict}: {judgement.reason}")
    finally:
        started = time.perf_counter()
        seen = stages.tear_down(row, ledger)
        seconds["tear down"] = time.perf_counter() - started
    if seen.left:
        raise RuntimeError(f"something may be left: {'; '.join(seen.left)}")
    return ledger.row(row.box_id), seconds


def _seconds(act: Callable[[], Any]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _five_steps(server: openssh.Sshd, scratch: Scratch) -> None:
    """Connect, put the payload and a corpus, run a command, get a file, delete: Fabric and nothing else."""
    from fabric import Connection

    archive, _ = payload()
    corpus = scratch.folder / "corpus.tar"
    if not corpus.exists():
        with tarfile.open(corpus, "w") as tar:
            tar.add(ROOT / "fixtures", "fixtures")
    with Connection(
        server.host,
        server.user,
        server.port,
        connect_kwargs={"key_filename": str(server.identity), "allow_agent": False},
    ) as connection:
        base = f"{server.home}/bare"
        connection.run(f"mkdir -p {base}", hide=True, in_stream=False)
        connection.put(str(archive), f"{base}/payload.pyz")
        connection.put(str(corpus), f"{base}/corpus.tar")
        connection.run(f"tar -xf {base}/corpus.tar -C {base}", hide=True, in_stream=False)
        connection.get(f"{base}/fixtures/T-1842-duplicate-capture.json", str(Path(scratch.folder) / "got.json"))
        connection.run(f"rm -rf {base}", hide=True, in_stream=False)
