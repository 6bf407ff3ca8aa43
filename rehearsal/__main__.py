"""`python -m rehearsal init`: for a folder that has no tasks.py yet, which `invoke` needs before its first task."""

from __future__ import annotations

from invoke.collection import Collection
from invoke.program import Program

from rehearsal.tasks import init

if __name__ == "__main__":
    Program(name="rehearsal", binary="python -m rehearsal", namespace=Collection(init)).run()
