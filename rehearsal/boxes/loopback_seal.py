"""Bubblewrap: a loopback box in namespaces of its own, without network, seeing only what Python needs.

Inside, `/box` is the box's own directory, `/kit` holds the server and its libraries, `/usr` and the
interpreter are read-only, and nothing else of the laptop is there: no home, no repository, no environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path

HOME = "/box"
SITE = "/kit/site"
SERVER = "/kit/loopback_server.py"
ENVIRONMENT = {"PATH": "/kit/bin:/usr/bin:/bin", "HOME": HOME, "LANG": "C.UTF-8"}

# What the server imports from outside the standard library, AsyncSSH 2.24 with cryptography 50.
MODULES = ("asyncssh", "cryptography", "typing_extensions", "_cffi_backend")

# The interpreter that runs the kit, not the virtual environment around it.
PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))


def module_files() -> list[Path]:
    """The folder or file of each of the server's modules."""
    specs = (find_spec(name) for name in MODULES)
    origins = [Path(spec.origin) for spec in specs if spec and spec.origin]
    return [origin.parent if origin.name == "__init__.py" else origin for origin in origins]


def _interpreter() -> list[str]:
    """Binds for a Python outside /usr: executable and libraries only, as its prefix may be a whole home."""
    prefix = Path(PYTHON).parent.parent
    if prefix.is_relative_to("/usr"):
        return []
    binds = ["--ro-bind", PYTHON, PYTHON]
    for folder in (prefix / "lib", prefix / "lib64"):
        binds += ["--ro-bind-try", str(folder), str(folder)]
    return binds


def _system() -> list[str]:
    """Binds for /usr and the top-level folders that are part of it, as links where usr is merged."""
    binds = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        folder = Path("/", name)
        if folder.is_symlink():
            binds += ["--symlink", os.readlink(folder), str(folder)]
        elif folder.is_dir():
            binds += ["--ro-bind", str(folder), str(folder)]
    for file in ("/etc/ld.so.cache", "/etc/alternatives"):
        binds += ["--ro-bind-try", file, file]
    return binds


def sandbox(home: Path | None, files: dict[str, str]) -> list[str]:
    """The bwrap command line up to the command; `home` becomes /box, `files` maps places inside to outside.

    The caller starts bwrap with ENVIRONMENT and nothing else. (--clearenv needs version 0.5, and would leave
    what it clears in /proc/1/environ.)
    """
    arguments = [
        "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--new-session",
        "--hostname",
        "box",
        "--cap-drop",
        "ALL",
    ]
    arguments += [*_system(), *_interpreter(), "--symlink", PYTHON, "/kit/bin/python3"]
    for inside, outside in files.items():
        arguments += ["--ro-bind", outside, inside]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # noqa: S108  the box's own
    if home:
        arguments += ["--bind", str(home), HOME, "--chdir", HOME]
    return [*arguments, "--remount-ro", "/", "--"]


@cache
def obstacle() -> str:
    """Why a box can't be sealed on this machine, or '' where it can; found out by trying, once a process."""
    if not shutil.which("bwrap"):
        return "bubblewrap is not installed"
    trial = [*sandbox(None, {}), "/kit/bin/python3", "-I", "-S", "-c", "import ctypes, sqlite3, ssl"]
    try:
        done = subprocess.run(
            trial,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            errors="replace",
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap can't run: {error}"
    return "" if done.returncode == 0 else f"bubblewrap can't run: {done.stderr.strip()[-300:]}"
