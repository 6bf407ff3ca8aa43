"""The tasks of this repository: `invoke --list` shows them. A team's own tasks.py looks like this one."""

from rehearsal.tasks import namespace

namespace.configure({"rehearsal": {"template": "reply-v3"}})

__all__ = ["namespace"]
