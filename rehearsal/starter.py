"""`invoke init`: what a team's own repository needs to rehearse, laid out beside what is there."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from rehearsal.console import Console
from rehearsal.runner.errors import UsageError

TASKS = '''"""Rehearse the prompt before it may talk to a customer: `invoke --list`."""

from rehearsal.tasks import namespace

__all__ = ["namespace"]
'''

CONFIGURATION = """\
# What `invoke rehearse` takes where no flag says otherwise; INVOKE_REHEARSAL_TEMPLATE and so on outweigh it.
rehearsal:
  template: reply-v3
"""


# What a file of the team's own needs, so that the rest works.
_ADVICE = {
    "tasks.py": ": it needs `from rehearsal.tasks import namespace`, or that collection added to its own",
    ".gitignore": ": it needs the line /.rehearsal/, where tickets and replies will lie",
}


def lay_out(console: Console, folder: Path | None = None) -> int:
    """Write the starter files into `folder` (default: the current one), a line each. Nothing is overwritten."""
    folder = folder or Path.cwd()
    wanted = {
        "tasks.py": TASKS.encode(),
        "invoke.yaml": CONFIGURATION.encode(),
        ".gitignore": b"/.rehearsal/\n",
    }
    for name in ("fixtures", "prompts"):
        wanted |= {f"{name}/{item.name}": item.read_bytes() for item in _source(name).iterdir() if item.is_file()}
    for name, content in sorted(wanted.items()):
        target = folder / name
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as handle:
                handle.write(content)
        except FileExistsError:
            console.line(f"kept   {name}, which was there{_ADVICE.get(name, '')}")
        except OSError as error:
            raise UsageError(f"{target} can't be written: {error.strerror}") from error
        else:
            console.line(f"wrote  {name}")
    console.line("next: invoke rehearse")
    return 0


def _source(name: str) -> Traversable:
    """The starter's folder: inside the installed wheel, or this repository's own."""
    package = files("rehearsal")
    packed = package / "starter" / name
    return packed if packed.is_dir() else package / ".." / name
