"""The stages of a rehearsal, one function each; `rehearse` strings them together, a prompt fight repeats some of them.

Each takes a box's ledger row and returns its next one. What was synced is kept on the laptop beside the box's keys
until the box is gone, so that every later stage holds the box against exactly that.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import secrets as random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_exponential

from rehearsal import boxes
from rehearsal.boxes import Presence, Request
from rehearsal.boxes.box import Box, Progress
from rehearsal.boxes.exposure import Exposure, examine, in_text
from rehearsal.boxes.ledger import GONE, LOST, Ledger, Row
from rehearsal.boxes.payload import payload
from rehearsal.boxes.relay import Relay, Target
from rehearsal.boxes.ssh import Link
from rehearsal.console import Console
from rehearsal.evidence import artifact
from rehearsal.evidence.judgement import NONE, RUN_STARTED, Judgement, exchange_digest, judge_again
from rehearsal.evidence.receipt import Receipt, write_whole
from rehearsal.preregistration import Prepared
from rehearsal.runner import plan as plans
from rehearsal.runner.errors import BoxError, LinkError, RehearsalError, UsageError, VoidRun
from rehearsal.runner.wire import Reply
from rehearsal.settings import Model, Settings

FIRST_POLL_S = 0.05
SLOWEST_POLL_S = 0.5
RECONNECT_S = 30  # for a link that was lost while the run goes on
SLACK_S = 60  # over the template's own deadline, before a silent run is given up
SNAPSHOT = "eval_runs.db"
_OTHER_WAY = "this run began with the model reached in another way: through the relay, or directly"
VOID = "eval_runs.void.db"  # what came back and must not be believed, under a name that no gate reads

Result = TypeVar("Result")


@dataclass
class Session:
    """One box with a link to it."""

    row: Row
    link: Link

    @property
    def box(self) -> Box:
        """The commands for it, over a new link where the old one was lost. LinkError where it can't be reached."""
        if self.row.address is None:
            raise BoxError(f"box {self.row.box_id} was never made", hint="provision another one")
        if not self.link.alive:
            self.link.close()
            self.link = Link(self.row.address)
        return Box(self.row.address, self.link, self.row.python)

    def close(self) -> None:
        """End the link, whichever it is by now."""
        self.link.close()


def patiently(row: Row, action: Callable[[], Result]) -> Result:
    """What `action` returns, tried again for a while where the link to the box is lost; `action` can be repeated.

    Raises the last LinkError when RECONNECT_S seconds are over, or at once when the box is gone.
    """
    again = Retrying(
        stop=stop_after_delay(RECONNECT_S),
        wait=wait_exponential(0.2, max=3),
        retry=retry_if_exception(lambda error: isinstance(error, LinkError) and not _is_gone(row)),
        reraise=True,
    )
    return again(action)


def inputs(row: Row) -> Path:
    """The laptop's own copy of what was synced to a box."""
    return Path(row.keys) / "run"


def _exposure_file(row: Row) -> Path:
    """What the box could have seen in the run `run_id` that it names."""
    return Path(row.keys) / "exposure.json"


def _witness_file(row: Row) -> Path:
    """A line for each reply that went through the relay; there is none where the box reaches the model directly."""
    return Path(row.keys) / "witness"


@contextlib.contextmanager
def connected(row: Row) -> Iterator[Session]:
    """A link to a box that is already there."""
    if row.address is None:
        raise BoxError(f"box {row.box_id} was never made", hint="provision another one")
    session = Session(row, Link(row.address))
    try:
        yield session
    finally:
        session.close()


def check(settings: Settings) -> None:
    """UsageError for a kind of box that there is not, before anything is written down."""
    boxes.driver(settings.box, ssh_config=settings.ssh_config)


def ask(settings: Settings, ledger: Ledger) -> Row:
    """Write down that a box will be made, with fresh keys: before anything exists."""
    from rehearsal.boxes.keys import mint

    check(settings)
    box_id = f"box-{random.token_hex(4)}"
    keys = ledger.folder / "boxes" / box_id
    row = ledger.intend(Request(box_id, settings.ttl, settings.keep, keys, settings.host), settings.box)
    try:
        mint(keys)
    except OSError as error:
        raise UsageError(f"{keys} can't be written: {error.strerror}") from error
    return row


def provision(row: Row, settings: Settings, ledger: Ledger) -> Session:
    """Make the box and arm its dead-man timer; a session with it."""
    request = Request(row.box_id, settings.ttl, row.kept, Path(row.keys), row.target)
    address = boxes.driver(row.driver, ssh_config=settings.ssh_config).create(request)
    row = ledger.move(row.box_id, "created", address=address)
    session = Session(row, Link(address))
    python = session.box.arm(max(1, row.left_s))
    session.row = ledger.move(row.box_id, "armed", python=python)
    return session


def sync(session: Session, prepared: Prepared, ledger: Ledger) -> None:
    """Send the payload, the plan, the fixtures and the template; nothing else."""
    row = session.row
    coming = Path(row.keys) / "coming"
    shutil.rmtree(coming, ignore_errors=True)
    for name, content in prepared.files:
        path = coming / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(content)
    archive, sha256 = payload()
    session.box.put_payload(archive, sha256)
    session.box.put_run(prepared.files)
    # From here on the box holds the new run: the copy and the ledger follow, and `planned` notices a gap between them.
    shutil.rmtree(inputs(row), ignore_errors=True)
    coming.rename(inputs(row))
    for of_the_last_run in (_exposure_file(row), _witness_file(row)):
        of_the_last_run.unlink(missing_ok=True)
    session.row = ledger.move(
        row.box_id, "synced", run_id=prepared.plan.run_id, evidence=str(prepared.evidence.resolve())
    )


def planned(row: Row) -> plans.Plan:
    """The plan of the run that was sent to a box; UsageError where sending it was cut off."""
    plan = plans.load(inputs(row)) if inputs(row).is_dir() else None
    if plan is None or plan.run_id != row.run_id:
        raise UsageError(f"sending a run to the box {row.box_id} was interrupted", hint="invoke sync again")
    return plan


def run(session: Session, model: Model, ledger: Ledger, console: Console, secrets: Mapping[str, str]) -> Exposure:
    """Start the run and follow it to its end; what the box could have seen.

    The model is reached through the relay where it must be. Raises VoidRun where the box refuses the run.
    """
    plan = planned(session.row)
    timeout_s = float(plan.settings.get("timeout_s", 45.0))
    _, sha256 = payload()
    address = session.box.address
    with contextlib.ExitStack() as stack:
        relay = None
        url = model.url
        if model.needs_relay(address.isolation):
            if session.row.state != "synced" and not _witness_file(session.row).exists():
                raise UsageError(_OTHER_WAY, hint="invoke sync again")
            witness = stack.enter_context(_Witness(_witness_file(session.row)))
            # What a team's own seam asks for has its own shape: any whole body counts as one call.
            api = "plain" if plan.seam is not None else str(plan.settings.get("api", "plain"))
            relay = stack.enter_context(Relay(address, Target(model.url, model.key, timeout_s), api, witness.note))
            url = relay.url
        elif _witness_file(session.row).exists():
            raise UsageError(_OTHER_WAY, hint="invoke sync again")
        session.box.stop()  # one that an earlier `run` left behind would still ask the port of that one's relay
        session.box.start(sha256, url)
        session.row = ledger.move(session.row.box_id, "running")
        follower = _Follower(session, plan, relay, console, timeout_s + SLACK_S, sha256)
        try:
            follower.follow()
        except BaseException:
            with contextlib.suppress(RehearsalError):
                session.box.stop()
            raise
        finally:
            console.end_attempts()
            for kind, count in relay.errors.items() if relay else ():
                console.step(plan.run_id, f"the relay, towards the model: {kind}, {count} times")
    reports = [*follower.inspections, patiently(session.row, lambda: session.box.inspect(sha256))]
    exposure = examine(
        follower.started,
        reports,
        allowed=session.box.environment(url),
        synced=_digests(inputs(session.row)),
        secrets=secrets,
    )
    logs = patiently(session.row, lambda: session.box.logs())  # noqa: PLW0108  (a new link, a new box)
    exposure = replace(exposure, beyond=(*exposure.beyond, *in_text("a log of the run", logs, secrets)))
    write_whole(_exposure_file(session.row), json.dumps({"run_id": plan.run_id, **exposure.to_json()}))
    return exposure


def refuse_exposed(run_id: str, exposure: Exposure) -> None:
    """VoidRun where the box saw more than it may."""
    if exposure.beyond:
        raise VoidRun(
            f"run {run_id}: the box holds more than it may: {'; '.join(exposure.beyond[:5])}",
            hint="the whole list is in teardown.json, in the evidence",
        )


def pull(session: Session, ledger: Ledger, secrets: Mapping[str, str]) -> Judgement:
    """Fetch a snapshot of the rows as evidence and judge every reply again, here.

    It lands under a temporary name, and under its own once it is whole and believed; a void one keeps another
    name, and one that holds a secret is not kept at all.
    """
    row = session.row
    local = inputs(row)
    plan = planned(row)
    template = plans.verify(plan, local)
    fixtures = {entry.id: plans.read_fixture(entry, local) for entry in plan.entries}
    evidence = Path(row.evidence or "")
    part = evidence / f".{SNAPSHOT}.part"
    try:
        evidence.mkdir(parents=True, exist_ok=True)
        patiently(row, lambda: _fetch(session, plan, part))
        found = artifact.read(part, plan)
        _refuse_leaks(found, part, plan, secrets)
        try:
            judgement = judge_again(found, plan, template, fixtures, _witnessed(row))
            if judgement.verdict != NONE:
                _refuse_unexamined(row, plan)
        except VoidRun:
            part.replace(evidence / VOID)
            raise
        part.replace(evidence / SNAPSHOT)
    except OSError as error:
        raise BoxError(f"run {plan.run_id}: the rows can't be kept in {evidence}: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)
    session.row = ledger.move(row.box_id, "pulled")
    return judgement


def _refuse_leaks(found: artifact.Artifact, part: Path, plan: plans.Plan, secrets: Mapping[str, str]) -> None:
    """VoidRun where a secret of the laptop stands in any column; the file itself is looked through as well."""
    words = [value for row in found.attempts for value in row.__dict__.values() if isinstance(value, str)]
    words.append(part.read_bytes().decode(errors="replace"))
    if leaked := in_text("a row", "\n".join(words), secrets):
        raise VoidRun(f"run {plan.run_id}: {leaked[0]}", hint="the model was given a secret, or knows one")


def _refuse_unexamined(row: Row, plan: plans.Plan) -> None:
    """VoidRun where nobody looked what the box held during this run, or it was more than it may."""
    seen = _exposure(row)
    if seen is None:
        raise VoidRun(
            f"run {plan.run_id}: what the box held was never looked through", hint="invoke run again, then pull"
        )
    if beyond := seen["beyond_the_allow_list"]:
        raise VoidRun(f"run {plan.run_id}: the box holds more than it may: {'; '.join(beyond[:5])}")


def _exposure(row: Row) -> Any:
    """What the last run could have seen, or None where it was not looked at."""
    file = _exposure_file(row)
    seen = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
    return seen if seen is not None and seen["run_id"] == row.run_id else None


def _witnessed(row: Row) -> Counter[str] | None:
    file = _witness_file(row)
    return Counter(file.read_text(encoding="ascii").splitlines()) if file.is_file() else None


class _Witness:
    """Writes down each call that the relay has seen, a line each, from any of its threads. A context manager."""

    def __init__(self, file: Path) -> None:
        self._handle = file.open("a", encoding="ascii")
        self._lock = threading.Lock()
        self._write(RUN_STARTED)

    def __enter__(self) -> _Witness:
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._handle.close()

    def note(self, request: bytes, reply: Reply) -> None:
        """One complete call: the body of the request, and the reply."""
        self._write(exchange_digest(request, reply))

    def _write(self, line: str) -> None:
        with self._lock:
            self._handle.write(line + "\n")
            self._handle.flush()


def _fetch(session: Session, plan: plans.Plan, part: Path) -> None:
    with part.open("wb") as handle:
        said = session.box.snapshot(payload()[1], handle)
    if hashlib.sha256(part.read_bytes()).hexdigest() != said.get("sha256"):
        raise BoxError(f"run {plan.run_id}: the rows arrived damaged", hint="pull again")


def tear_down(row: Row, ledger: Ledger) -> Receipt:
    """End a box whatever its state, look again, and write down what was seen; never raises for what resists.

    `left` of the receipt is empty exactly where the box is gone and everything says so. A ledger that can't be written
    is no reason to leave a box up: then `row` is what is known.
    """
    left: list[str] = []
    with _noted(left):
        row = ledger.row(row.box_id)
    if row.state == GONE:
        return receipt(row, ledger, left=(), state=GONE)
    with _noted(left):
        ledger.move(row.box_id, "destroying")
    resisted: list[str] = []
    seen = Presence.UNKNOWN
    with _noted(resisted):
        driver = boxes.driver(row.driver)
        with _noted(resisted):
            driver.destroy(row.record)
        seen = driver.presence(row.record)
    state = GONE if seen is Presence.ABSENT else LOST
    if state == LOST:
        left += [f"box {row.box_id} ({row.driver}): a look says {seen.value}", *resisted]
    with _noted(left):
        row = ledger.move(row.box_id, state)
    written = receipt(row, ledger, left=tuple(left), state=state)
    if state == GONE:
        shutil.rmtree(row.keys, ignore_errors=True)
    return written


@contextlib.contextmanager
def _noted(left: list[str]) -> Iterator[None]:
    """What goes wrong inside is a line in `left`, and no reason to stop."""
    try:
        yield
    except (RehearsalError, OSError) as error:
        left.append(str(error))


def receipt(row: Row, ledger: Ledger, *, left: tuple[str, ...], state: str) -> Receipt:
    """What became of a box, written into the evidence of its last run where there was one."""
    problems = list(left)
    history: tuple[tuple[str, str], ...] = ()
    with _noted(problems):
        history = tuple(ledger.history(row.box_id))
    written = Receipt(
        run_id=row.run_id,
        box_id=row.box_id,
        driver=row.driver,
        isolation=row.isolation,
        state=state,
        left=tuple(problems),
        history=history,
        exposure=_exposure(row),
    )
    with _noted(problems):
        if row.evidence is not None and Path(row.evidence).is_dir():
            written.write(Path(row.evidence))
    return replace(written, left=tuple(problems))


def _is_gone(row: Row) -> bool:
    return boxes.driver(row.driver).presence(row.record) is Presence.ABSENT


# What a box may call its refusal; any other word is the box's fault.
_REFUSALS: Mapping[str, type[RehearsalError]] = {
    "VoidRun": VoidRun,
    "InvalidInput": VoidRun,
    "UsageError": UsageError,
}


def _refusal(run_id: str, event: Mapping[str, Any]) -> RehearsalError:
    kind = _REFUSALS.get(str(event.get("error")), BoxError)
    return kind(f"run {run_id}: the box refuses: {event.get('message')}", hint=str(event.get("hint") or ""))


def _digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


class _Follower:
    """Reads the run's event log from an offset until its last event, over links that may be lost."""

    def __init__(
        self,
        session: Session,
        plan: plans.Plan,
        relay: Relay | None,
        console: Console,
        silence_s: float,
        sha256: str,
    ) -> None:
        self.session = session
        self.plan = plan
        self.relay = relay
        self.console = console
        self.silence_s = silence_s
        self.sha256 = sha256
        self.started: Mapping[str, Any] = {}
        self.inspections: list[Mapping[str, Any]] = []
        self._offset = 0
        self._attempts = 0
        self._tally = {"pass": 0, "fail": 0, "error": 0}
        self._last: Mapping[str, Any] | None = None

    def follow(self) -> None:
        """Return at `end`; raise what the box's refusal says, or BoxError where the run died or went silent."""
        self.console.start_attempts(self.plan.expected, 0)
        wait = FIRST_POLL_S
        heard = time.monotonic()
        while self._last is None:
            if self.session.row.left_s <= 0:
                raise self._died()
            seen = self._look()
            self._offset = seen.offset
            for event in seen.events:
                self._take(event)
            if self._attempts > self.plan.expected:
                raise VoidRun(f"run {self.plan.run_id}: the box reports more attempts than were planned")
            if seen.events:
                heard, wait = time.monotonic(), FIRST_POLL_S
            elif not seen.alive:
                raise self._died()
            elif time.monotonic() - heard > self.silence_s:
                raise BoxError(f"run {self.plan.run_id}: no attempt has ended for {self.silence_s:g} s")
            elif not self.inspections:
                self.inspections.append(self.session.box.inspect(self.sha256))
            if self._last is None:
                time.sleep(wait)
                wait = min(SLOWEST_POLL_S, wait * 1.5)
        if self._last.get("event") == "refused":
            raise _refusal(self.plan.run_id, self._last)

    def _died(self) -> BoxError:
        row = self.session.row
        if row.left_s <= 0:
            return BoxError(
                f"run {self.plan.run_id}: the time of box {row.box_id} is over", hint="give it a larger --ttl"
            )
        return BoxError(
            f"run {self.plan.run_id} died on the box: {self.session.box.log_tail() or 'without a word'}",
            hint="`invoke run` again runs only what is missing, on a box that was kept",
        )

    def _look(self) -> Progress:
        """One look at the log, with the relay up again where it was lost."""

        def look() -> Progress:
            if self.relay is not None:
                self.relay.keep_up()
            return self.session.box.follow(self._offset)

        return patiently(self.session.row, look)

    def _take(self, event: Mapping[str, Any]) -> None:
        kind = event.get("event")
        if kind == "start" and not self.started:
            self.started = event
        elif kind == "attempt":
            self._attempts += 1
            outcome = str(event.get("outcome"))
            if outcome in self._tally:
                self._tally[outcome] += 1
            tally = ", ".join(f"{count} {word}" for word, count in self._tally.items() if count)
            self.console.attempt(self.plan.run_id, event, tally)
        elif kind in ("end", "refused") and self._last is None:
            self._last = event
