"""`python -m rehearsal`: the same tasks as `invoke`, for a folder that has no tasks.py yet."""

from __future__ import annotations

from invoke.program import Program

from rehearsal.tasks import namespace

if __name__ == "__main__":
    Program(name="rehearsal", binary="python -m rehearsal", namespace=namespace).run()
