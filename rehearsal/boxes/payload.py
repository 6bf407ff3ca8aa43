"""The one file that is uploaded: a reproducible zipapp of runner/ and the pure-Python packages that it needs.

`zipapp.create_archive` writes file times and directory order, so two builds differ; here both are fixed.
Beside each source lies its byte code for the laptop's own version of Python: a box with the same one starts in a
third of the time, and any other reads the source.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import io
import marshal
import os
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from platformdirs import user_cache_path

import rehearsal
from rehearsal.runner.errors import BoxError, UsageError

# sniffio: httpcore asks for it four times a request, and its absence costs 0.25 ms each call (measured).
ROOTS = ("httpx", "sqlite-utils", "sniffio")
BOX_PYTHON = "3.10"  # the minimum of sqlite-utils 4
# Declared by a root, and never imported on the box: sqlite-utils lists pip for its `install` command.
NOT_NEEDED = frozenset({"pip", "tzdata"})
COMPILED = (".so", ".pyd", ".dylib")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can hold
_MAIN = "import sys\nfrom rehearsal.runner.__main__ import main\nsys.exit(main(sys.argv[1:]))\n"


@functools.cache
def payload() -> tuple[Path, str]:
    """The payload's path on this machine and its sha256 (hex); built once for each set of sources, then kept.

    Raises BoxError where a package that it needs is missing or holds a compiled file, UsageError where this
    machine's cache can't be used.
    """
    members = dict(_members())
    listing = "".join(f"{name}\0{_digest(data)}\n" for name, data in sorted(members.items()))
    key = _digest(f"{sys.implementation.cache_tag}\n{listing}".encode())
    target = user_cache_path("rehearsal") / f"payload-{key[:32]}.pyz"
    try:
        if not target.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = target.with_name(f"{target.name}.{os.getpid()}")
            part.write_bytes(build({**members, **byte_code(members)}))
            part.replace(target)
        return target, _digest(target.read_bytes())
    except OSError as error:
        raise UsageError(
            f"the payload can't be kept in {target.parent}: {error.strerror or error}",
            hint="set XDG_CACHE_HOME to a folder that can be written to",
        ) from error


def build(members: dict[str, bytes]) -> bytes:
    """One zip of `members` (name → content): the same bytes for the same members, on every machine."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(members):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.create_system = 3  # Unix, wherever it is built
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, members[name])
    return buffer.getvalue()


def byte_code(members: dict[str, bytes]) -> dict[str, bytes]:
    """A `.pyc` for each `.py` of `members`, for the running version of Python.

    Marshal's format 2 holds no references between objects: from format 3 on, the bytes depend on what else the
    process has loaded. Marked "unchecked": they lie in one file with their sources and can't grow stale.
    """
    unchecked = importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)
    return {
        f"{name}c": unchecked + marshal.dumps(compile(source, name, "exec", dont_inherit=True), 2)
        for name, source in members.items()
        if name.endswith(".py") and name != "__main__.py"
    }


def _members() -> Iterator[tuple[str, bytes]]:
    yield "__main__.py", _MAIN.encode()
    package = Path(rehearsal.__file__).parent
    yield "rehearsal/__init__.py", (package / "__init__.py").read_bytes()
    for path in sorted((package / "runner").glob("*.py")):
        yield f"rehearsal/runner/{path.name}", path.read_bytes()
    for needed in _needed():
        yield from _files(needed)


def _needed() -> list[Distribution]:
    """The roots and all that they require on the oldest Python of a box and on this one."""
    found: dict[str, Distribution] = {}
    waiting = list(ROOTS)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found or name in NOT_NEEDED:
            continue
        try:
            found[name] = distribution(name)
        except ModuleNotFoundError as error:
            raise BoxError(
                f"the payload needs the package {name}, which is not installed", hint="run scripts/setup"
            ) from error
        for line in found[name].requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or any(
                requirement.marker.evaluate({"python_version": version, "extra": ""})
                for version in (BOX_PYTHON, "3.13")
            ):
                waiting.append(requirement.name)
    return [found[name] for name in sorted(found)]


def _files(needed: Distribution) -> Iterator[tuple[str, bytes]]:
    name = needed.metadata["Name"]
    for file in needed.files or []:
        top = file.parts[0]
        if top in ("..", "bin", "__pycache__") or top.endswith((".dist-info", ".data")) or "__pycache__" in file.parts:
            continue
        if file.suffix in COMPILED:
            raise BoxError(f"the package {name} holds the compiled file {file}, which a box may not be able to load")
        if file.suffix in (".py", ".pem", ".json", ".txt"):
            yield file.as_posix(), Path(str(file.locate())).read_bytes()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
