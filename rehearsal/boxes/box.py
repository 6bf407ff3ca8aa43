"""A box as the laptop drives it: the few things that are ever done to one, each a short remote command.

Everything lands in the address's one directory:

    deadman.sh  deadman.pid    the timer that ends the box by itself
    payload-<sha256>.pyz       the runner
    run/                       the run: plan, fixtures, template, environment, then rows, events and log
"""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rehearsal.boxes import Address, Presence
from rehearsal.boxes.ssh import Link
from rehearsal.runner.errors import BoxError
from rehearsal.runner.strict_json import Json, NotStrictJson, parse

LEAST_FREE_KIB = 20 * 1024  # the payload, a corpus and its rows; below this the box is refused by name
UPLOAD_S = 300  # for the payload and a corpus over a slow line
MAX_SNAPSHOT = 1 << 30  # bytes; a row is a few KB
MAX_EVENT = 64 << 10  # bytes of one line
MAX_EVENTS = 64 << 20  # bytes of them all, in one run
PATH = "/usr/bin:/bin:/usr/sbin:/sbin"
LANG = "C.UTF-8"  # any other and Python adds LC_CTYPE to the environment by itself

_DEADMAN = """\
# Ends this box when its time is over, whatever happened to the laptop. $1: the box's directory, $2: seconds.
end=$(( $(date +%s) + $2 ))
while [ "$(date +%s)" -lt "$end" ]; do
    sleep 2
    [ -d "$1" ] || exit 0
done
pid=$(cat "$1/run/run.pid" 2>/dev/null) && case "$(cat "/proc/$pid/cmdline" 2>/dev/null || ps -o args= -p "$pid")" in
    *"$1/"*) kill -9 -- "-$pid" 2>/dev/null || kill -9 "$pid" ;;
esac
rm -rf -- "$1"
"""

# The dead-man timer is armed before anything else is done; only then is Python looked for.
_ARM = """\
umask 077
mkdir -- "$1" || exit 73
printf '%s' "$3" > "$1/deadman.sh" || exit 73
detach=$(command -v setsid || true)
env -i PATH="$4" $detach sh "$1/deadman.sh" "$1" "$2" </dev/null >/dev/null 2>&1 &
printf '%s\\n' "$!" > "$1/deadman.pid"
is_new='import sys; sys.exit(sys.version_info < (3, 10))'
for python in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
    if command -v "$python" >/dev/null && "$python" -I -S -c "$is_new" 2>/dev/null; then
        command -v "$python"
        break
    fi
done
printf '\\n'
df -Pk -- "$1" | awk 'NR == 2 { print $4 }'
"""

_UNPACK = 'rm -rf -- "$1.new" && mkdir -m 700 -- "$1.new"'
# Whether the run in $1 lives: not by `kill -0`, which is content with a zombie, or with a stranger who got its number.
_ALIVE = """\
alive() {
    pid=$(cat "$1/run.pid" 2>/dev/null) && [ -n "$pid" ] || return 1
    case "$({ tr '\\0' ' ' < "/proc/$pid/cmdline"; } 2>/dev/null || ps -o args= -p "$pid")" in *"$1"*) return 0 ;; esac
    return 1
}
"""

_SWITCH = f"""\
{_ALIVE}
if alive "$1"; then
    echo "a run is going on in $1" >&2
    exit 75
fi
rm -rf -- "$1" && mv -- "$1.new" "$1"
"""

_STOP = f"""\
{_ALIVE}
tries=0
while alive "$1"; do
    kill -9 -- "-$pid" 2>/dev/null || kill -9 "$pid" 2>/dev/null
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || {{ echo "process $pid does not die" >&2; exit 75; }}
    sleep 0.05 2>/dev/null || sleep 1
done
"""

_START = """\
umask 077
printf '%s' "$4" > "$3/box.env" || exit 73
exec env -i PATH="$5" "$1" -I -S "$2" start "$3"
"""

# Alive first, then the log: whoever is found dead has already written all that there is.
_FOLLOW = f"""\
{_ALIVE}
if alive "$1"; then echo alive; else echo dead; fi
[ ! -f "$1/events.jsonl" ] || [ -h "$1/events.jsonl" ] || tail -c "+$2" "$1/events.jsonl"
"""

_TAIL = '[ -f "$1/run.log" ] && [ ! -h "$1/run.log" ] && tail -c 2000 -- "$1/run.log"'
_LOGS = 'for log in "$1/run.log" "$1/events.jsonl"; do [ ! -f "$log" ] || [ -h "$log" ] || cat -- "$log"; done'
_PAYLOAD = 'exec env -i PATH="$4" "$1" -I -S "$2" "$5" "$3"'

# Every process whose arguments name something in $1, one a line: from /proc where there is one, else from ps. The
# scripts themselves don't name it: they come over standard input, and so does grep's pattern. One grep for all,
# because a process for each makes a look slow; and it must see this very shell, or seeing nothing means nothing.
_NAMED = """\
named() {
    if [ -r /proc/self/cmdline ]; then
        [ -n "$(printf '%s\\n' sh | LC_ALL=C grep -lsF -f - "/proc/$$/cmdline")" ] || exit 69
        printf '%s\\n' "$1/" | LC_ALL=C grep -lsF -f - /proc/[0-9]*/cmdline | tr -cd '0-9\\n'
    else
        ps -A -o pid= -o args= > /dev/null || exit 69
        ps -A -o pid= -o args= | while read -r pid args; do case "$args" in *"$1/"*) echo "$pid" ;; esac; done
    fi
}
"""

_WIPE = f"""\
{_NAMED}
pids=$(named "$1")
told=$?
for pid in $pids; do kill -9 -- "-$pid" 2>/dev/null || kill -9 "$pid" 2>/dev/null; done
chmod -R u+rwX -- "$1" 2>/dev/null
rm -rf -- "$1" "$1".* || exit
exit $told
"""

_LOOK = f"""\
{_NAMED}
for path in "$1" "$1".*; do [ ! -e "$path" ] || echo "directory $path"; done
if ! pids=$(named "$1"); then echo "this host shows no processes" >&2; exit 69; fi
for pid in $pids; do echo "process $pid"; done
"""


@dataclass(frozen=True)
class Progress:
    """What the box said since the last look: whole event lines, and whether the run's process is alive."""

    events: tuple[Mapping[str, Any], ...]
    offset: int
    alive: bool


class Box:
    """The commands, over one link. Every method may raise BoxError (the box) and LinkError (the connection)."""

    def __init__(self, address: Address, link: Link, python: str | None = None) -> None:
        self.address = address
        self.link = link
        self.python = python

    @property
    def run_directory(self) -> str:
        """Where a run lies on the box."""
        return f"{self.address.directory}/run"

    def arm(self, ttl_s: int) -> str:
        """Make the box's directory and start its dead-man timer, before anything else; the box's Python.

        Raises BoxError where there is no Python 3.10 or no room.
        """
        answer = self.link.script(_ARM, self.address.directory, str(ttl_s), _DEADMAN, PATH)
        python, _, free = answer.text.strip("\n").rpartition("\n")
        if not python.strip():
            raise BoxError("the box has no Python 3.10 or newer", hint="install python3 on the host")
        if not free.strip().isdigit() or int(free) < LEAST_FREE_KIB:
            raise BoxError(
                f"the box has {free.strip() or 'an unknown number of'} KiB free in {self.address.directory}",
                hint=f"it needs {LEAST_FREE_KIB}",
            )
        self.python = python.strip()
        return self.python

    def put_payload(self, payload: Path, sha256: str) -> None:
        """Upload the payload, unless it is there; it has its own digest in its name and lands whole or not at all."""
        target = self._payload(sha256)
        if self.link.script('[ -f "$1" ]', target, check=False).code == 0:
            return
        with payload.open("rb") as handle:
            self.link.send(
                'umask 077; cat > "$1.part"', target, iter(lambda: handle.read(65536), b""), timeout=UPLOAD_S
            )
        found = self.link.script('mv -- "$1.part" "$1" && wc -c < "$1"', target).text.strip()
        if found != str(payload.stat().st_size):
            raise BoxError(f"the payload arrived with {found} of {payload.stat().st_size} bytes")

    def put_run(self, files: Iterable[tuple[str, bytes]]) -> None:
        """Replace the box's run with `files` (relative name, content). BoxError while a run is going on."""
        self.link.script(_UNPACK, self.run_directory)
        self.link.send('cd "$1.new" && tar -xof -', self.run_directory, _tar(files), timeout=UPLOAD_S)
        self.link.script(_SWITCH, self.run_directory)

    def stop(self) -> None:
        """End the run's process, if there is one; its rows stay, and what it was just asking for is missing."""
        self.link.script(_STOP, self.run_directory)

    def start(self, sha256: str, url: str) -> int:
        """Start the run, or find it running, with exactly the allowed environment; its process id on the box."""
        environment = json.dumps(self.environment(url))
        answer = self.link.script(_START, self._python, self._payload(sha256), self.run_directory, environment, PATH)
        number = answer.text.strip()
        if not (number.isascii() and number.isdigit() and len(number) < 20):
            raise BoxError("the box answered `start` with something else than a process id")
        return int(number)

    def environment(self, url: str) -> dict[str, str]:
        """All that the run's processes may have in their environment."""
        return {"MODEL_URL": url, "HOME": self.run_directory, "PATH": PATH, "LANG": LANG}

    def follow(self, offset: int) -> Progress:
        """The events from byte `offset` of the log on. BoxError above MAX_EVENT and MAX_EVENTS."""
        answer = self.link.script(_FOLLOW, self.run_directory, str(offset + 1))
        state, _, log = answer.output.partition(b"\n")
        if offset + len(log) > MAX_EVENTS:
            raise BoxError(f"the box's event log is longer than {MAX_EVENTS} bytes")
        *lines, rest = log.split(b"\n")
        if max(map(len, [*lines, rest])) > MAX_EVENT:
            raise BoxError(f"the box's event log has a line longer than {MAX_EVENT} bytes")
        return Progress(tuple(_events(lines)), offset + len(log) - len(rest), state == b"alive")

    def inspect(self, sha256: str) -> dict[str, Any]:
        """What the box's processes and directory hold, in the box's own words: see the runner's `inspect`."""
        return self._payload_command(sha256, "inspect")

    def snapshot(self, sha256: str, target: IO[bytes]) -> dict[str, Any]:
        """Copy the database to `target`; what the box says of it (sha256, bytes). No more than it says is read."""
        said = self._payload_command(sha256, "snapshot")
        size = said.get("bytes")
        if type(size) is not int or not 0 <= size <= MAX_SNAPSHOT:
            raise BoxError(f"the box's snapshot states no size from 0 to {MAX_SNAPSHOT} bytes")
        self.link.fetch(f"{self.run_directory}/eval_runs.snapshot.db", target, limit=size, timeout=UPLOAD_S)
        return said

    def log_tail(self) -> str:
        """The end of the run's own log, for an error message."""
        answer = self.link.script(_TAIL, self.run_directory, check=False)
        return answer.text.strip()

    def logs(self) -> str:
        """All that the run has said besides its rows: its log and its events."""
        return self.link.script(_LOGS, self.run_directory).text

    def wipe(self) -> None:
        """End the box's processes, its timer included, and remove its directory; nothing there is success."""
        self.link.script(_WIPE, self.address.directory)

    def look(self) -> tuple[str, ...]:
        """Everything on the box that still carries its directory's name: `directory …`, `process …`."""
        return tuple(self.link.script(_LOOK, self.address.directory).text.splitlines())

    def presence(self) -> Presence:
        """Whether anything is left, by a look that would see it."""
        return Presence.PRESENT if self.look() else Presence.ABSENT

    @property
    def _python(self) -> str:
        if self.python is None:
            raise BoxError("the box was not provisioned to its end", hint="tear it down and provision again")
        return self.python

    def _payload(self, sha256: str) -> str:
        return f"{self.address.directory}/payload-{sha256[:16]}.pyz"

    def _payload_command(self, sha256: str, command: str) -> dict[str, Any]:
        answer = self.link.script(
            _PAYLOAD, self._python, self._payload(sha256), self.run_directory, PATH, command, timeout=UPLOAD_S
        )
        said = _object(answer.output)
        if said is None:
            raise BoxError(f"the box answered `{command}` with something else than a JSON object")
        return said


def _events(lines: Iterable[bytes]) -> Iterator[Mapping[str, Any]]:
    return (event for line in lines if (event := _object(line)) is not None)


def _object(data: bytes) -> dict[str, Json] | None:
    """The JSON object in `data`, which comes from the box and may be anything; None where it is none."""
    try:
        value = parse(data.decode())
    except (UnicodeDecodeError, NotStrictJson):
        return None
    return value if isinstance(value, dict) else None


def _tar(files: Iterable[tuple[str, bytes]]) -> Iterator[bytes]:
    """A tar stream of `files`, one file in memory at a time."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files:
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            entry.mode = 0o600
            archive.addfile(entry, io.BytesIO(content))
            if buffer.tell() > 1 << 18:
                yield buffer.getvalue()
                buffer.seek(0)
                buffer.truncate()
    yield buffer.getvalue()
