"""The tasks of this repository: `invoke --list` shows them. A team's own tasks.py looks just like this one."""

from rehearsal.tasks import namespace

__all__ = ["namespace"]
