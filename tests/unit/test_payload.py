from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import rehearsal
from rehearsal.boxes import payload as module
from rehearsal.boxes.payload import build, payload
from rehearsal.runner.errors import BoxError, UsageError


@pytest.fixture
def archive() -> Path:
    return payload()[0]


def test_two_processes_build_the_same_bytes(home: Path) -> None:
    program = "from rehearsal.boxes.payload import payload; print(*payload(), sep='\\n')"
    env = {"HOME": str(home), "XDG_CACHE_HOME": str(home / "other"), "PYTHONHASHSEED": "1"}
    path, sha256 = subprocess.check_output(
        [sys.executable, "-c", program], env=env, cwd=Path(rehearsal.__file__).parents[1], text=True
    ).split()
    here, here_sha256 = payload()
    assert Path(path).parent != here.parent, "it was built anew"
    assert Path(path).read_bytes() == here.read_bytes()
    assert sha256 == here_sha256 == hashlib.sha256(here.read_bytes()).hexdigest()


def test_order_does_not_matter_and_content_does() -> None:
    members = {"b.py": b"1", "a.py": b"2"}
    assert build(members) == build(dict(reversed(members.items())))
    assert build(members) != build({**members, "b.py": b"3"})


def test_it_holds_the_runner_and_nothing_of_its_siblings_and_no_native_code(archive: Path) -> None:
    runner = Path(rehearsal.__file__).parent / "runner"
    with zipfile.ZipFile(archive) as held:
        names = held.namelist()
        for path in runner.glob("*.py"):
            assert held.read(f"rehearsal/runner/{path.name}") == path.read_bytes()
        natives = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"MZ")
        assert not [name for name in names if held.read(name).startswith(natives)]
    assert not [name for name in names if name.endswith((".so", ".pyd", ".dylib"))]
    rooms = {name.split("/")[1] for name in names if name.startswith("rehearsal/")}
    assert rooms == {"__init__.py", "__init__.pyc", "runner"}


def test_every_module_of_the_runner_imports_from_it_alone(archive: Path, tmp_path: Path) -> None:
    runner = Path(rehearsal.__file__).parent / "runner"
    modules = [f"rehearsal.runner.{path.stem}" for path in runner.glob("*.py") if path.stem != "__init__"]
    program = (
        f"import importlib, sys; sys.path.insert(0, {str(archive)!r})\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        "for m in list(sys.modules.values()):\n"
        "    if getattr(m, '__file__', None): print(m.__name__, m.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program], env={}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    loaded = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert set(modules) <= set(loaded)
    elsewhere = {name.split(".")[0] for name, file in loaded.items() if str(archive) not in file}
    foreign = elsewhere - set(sys.stdlib_module_names)
    assert not [name for name in foreign if not name.startswith("_sysconfigdata")]  # the one stdlib name that varies


def test_what_is_in_it_can_be_read_by_the_oldest_python_of_a_box(archive: Path) -> None:
    with zipfile.ZipFile(archive) as held:
        for name in held.namelist():
            if name.startswith("rehearsal/") and name.endswith(".py"):
                ast.parse(held.read(name), feature_version=(3, 10))


def test_its_byte_code_is_of_the_very_sources_beside_it(archive: Path) -> None:
    with zipfile.ZipFile(archive) as held:
        sources = [name for name in held.namelist() if name.endswith(".py") and name != "__main__.py"]
        assert {f"{name}c" for name in sources} == {name for name in held.namelist() if name.endswith(".pyc")}
        ours = {name: held.read(name) for name in sources if name.startswith("rehearsal/")}
        for name, code in module.byte_code(ours).items():
            assert held.read(name) == code, name


def test_a_package_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOTS", ("no-such-package-here",))
    with pytest.raises(BoxError, match="needs the package no-such-package-here") as caught:
        payload.__wrapped__()
    assert "scripts/setup" in caught.value.hint


def test_a_package_with_native_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOTS", ("cryptography",))
    with pytest.raises(BoxError, match="holds the compiled file"):
        payload.__wrapped__()


@pytest.mark.parametrize("kind", ["a file", "below a file", "a device's folder"])
def test_a_cache_that_can_not_be_used_is_the_callers_to_mend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    (tmp_path / "file").touch()
    cache = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "more", "a device's folder": "/proc/self"}
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache[kind]))
    with pytest.raises(UsageError, match="the payload can't be kept in") as caught:
        payload.__wrapped__()
    assert str(cache[kind]) in caught.value.message
    assert "XDG_CACHE_HOME" in caught.value.hint
