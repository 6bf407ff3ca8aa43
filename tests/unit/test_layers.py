"""Imports point one way only.

A file's folder tells where it runs and who trusts it. One import the wrong way and the box carries the
laptop's code, or production carries the kit. The map below is the rule; a new module needs a line in it.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rehearsal"


class Room(NamedTuple):
    """What a folder or file right below rehearsal/ may import of the package, and why no more."""

    may_import: tuple[str, ...]
    why: str


ERRORS = "rehearsal.runner.errors"
BELOW = tuple(
    f"rehearsal.{room}" for room in ("runner", "gate", "authoring", "boxes", "evidence", "settings", "console", "lab")
)
STAGES = ("rehearsal.preregistration", "rehearsal.stages", "rehearsal.summary", "rehearsal.signals")
# A name stands for that module and all that is in it.
ROOMS = {
    "runner": Room((), "it is uploaded and runs on the box, alone"),
    "gate": Room((), "production imports this one file and nothing else"),
    "settings": Room(("rehearsal.runner",), "it is read before any stage begins"),
    "console": Room((ERRORS,), "it shows what it is handed and knows no stage"),
    "signals": Room((ERRORS,), "it turns a signal into an error and knows nothing else"),
    "lab": Room(("rehearsal.runner",), "the model knows nothing of who asks it"),
    "lab_service": Room(
        ("rehearsal.lab", "rehearsal.console", "rehearsal.signals", ERRORS), "it only serves the lab model"
    ),
    "authoring": Room(("rehearsal.runner",), "before a run there is no box and no evidence"),
    "boxes": Room(("rehearsal.runner",), "a box knows neither what is rehearsed nor what it proves"),
    "evidence": Room(("rehearsal.runner", "rehearsal.gate"), "what is proved must not depend on where it ran"),
    "summary": Room(("rehearsal.runner", "rehearsal.evidence"), "it puts judged rows into words"),
    "preregistration": Room(BELOW, "it joins the rooms below, before a host exists"),
    "stages": Room((*BELOW, "rehearsal.preregistration"), "it joins the rooms below, one function a stage"),
    "rehearse": Room((*BELOW, *STAGES), "it strings the stages together; the tasks stand on it"),
    "fight": Room((*BELOW, *STAGES, "rehearsal.rehearse"), "it does single stages; the tasks stand on it"),
    "upkeep": Room((*BELOW, *STAGES), "it looks after what a run left; the tasks stand on it"),
    "doctor": Room(BELOW, "it looks at the rooms and runs no stage"),
    "starter": Room(("rehearsal.console", ERRORS), "it lays out files before there is a project"),
    "tasks": Room(("rehearsal",), "it is the top"),
    "__main__": Room(("rehearsal.tasks",), "it is the tasks under another command"),
}
# Third-party packages that have one door, so that their ways stay behind it.
DOORS = {
    "fabric": "rehearsal.boxes.ssh",
    "paramiko": "rehearsal.boxes.ssh",
    "rich": "rehearsal.console",
}
# The box has the standard library, httpx and sqlite-utils; of these, all but the last come with httpx.
ON_THE_BOX = {"anyio", "certifi", "h11", "httpcore", "httpx", "sqlite_utils"}
# Asked for by what is in the payload, on some boxes or at some speed: see boxes/payload.py and pyproject.toml.
ONLY_IN_THE_PAYLOAD = {"exceptiongroup", "sniffio"}
NEWER_THAN_3_10 = {"annotationlib", "compression", "tomllib"}


class Import(NamedTuple):
    """One imported module: who imports it, where, and whether importing the file is enough to do so."""

    importer: str
    target: str
    place: str
    at_once: bool


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def room(module: str) -> str:
    """The part right below rehearsal, '' for rehearsal itself: `rehearsal.boxes.ssh` is in `boxes`."""
    return module.partition(".")[2].partition(".")[0]


def targets(node: ast.stmt, importer: str) -> Iterator[str]:
    """The modules that one import statement loads: of `from a import b`, a.b where that is a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:  # relative: level 1 is the package that the importer is in
            inside = importer.split(".")
            if FILES[importer].name != "__init__.py":
                inside = inside[:-1]
            base = ".".join([*inside[: len(inside) - node.level + 1], *filter(None, [base])])
        for alias in node.names:
            longer = f"{base}.{alias.name}"
            yield longer if longer in FILES else base


@cache
def all_imports() -> tuple[Import, ...]:
    found = []
    for importer, path in FILES.items():
        tree = ast.parse(path.read_text("utf-8"), str(path))
        inside_functions = {
            inner
            for outer in ast.walk(tree)
            if isinstance(outer, ast.FunctionDef | ast.AsyncFunctionDef)
            for inner in ast.walk(outer)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                place = f"{path.relative_to(ROOT)}:{node.lineno}"
                found += [
                    Import(importer, target, place, node not in inside_functions) for target in targets(node, importer)
                ]
    return tuple(found)


def ours() -> Iterator[Import]:
    return (found for found in all_imports() if found.target.partition(".")[0] == "rehearsal")


def third_party() -> Iterator[tuple[Import, str]]:
    for found in all_imports():
        top = found.target.partition(".")[0]
        if top not in sys.stdlib_module_names and top != "rehearsal":
            yield found, top


def within(module: str, allowed: str) -> bool:
    return module == allowed or module.startswith(f"{allowed}.")


def report(broken: list[str]) -> None:
    if broken:
        pytest.fail("\n".join(dict.fromkeys(broken)), pytrace=False)


def test_every_module_has_its_place_in_the_map() -> None:
    report(
        [
            f"{path.relative_to(ROOT)}: no line in ROOMS says what it may import"
            for module, path in FILES.items()
            if room(module) not in {*ROOMS, ""}
        ]
    )


def test_the_package_itself_imports_nothing() -> None:
    """Whoever imports any part of it, the box and production too, imports rehearsal/__init__.py."""
    report([f"{found.place}: it must import nothing" for found in all_imports() if found.importer == "rehearsal"])


def test_imports_point_one_way() -> None:
    report(
        [
            f"{found.place}: {found.importer} must not import {found.target}: {here.why}"
            for found in ours()
            if (here := ROOMS.get(room(found.importer)))
            and room(found.target) not in {room(found.importer), ""}
            and not any(within(found.target, allowed) for allowed in here.may_import)
        ]
    )


def test_no_two_modules_import_each_other_when_loaded() -> None:
    edges: dict[str, set[str]] = {}
    for found in ours():
        if found.at_once and found.target != found.importer:
            edges.setdefault(found.importer, set()).add(found.target)

    def reach(start: str) -> set[str]:
        seen: set[str] = set()
        todo = [start]
        while todo:
            new = edges.get(todo.pop(), set()) - seen
            seen |= new
            todo += new
        return seen

    report([f"{module} imports itself, by way of others" for module in FILES if module in reach(module)])


def test_the_box_gets_nothing_that_it_lacks() -> None:
    broken = [
        f"{found.place}: {found.importer} must not import {top}: the box lacks it"
        for found, top in third_party()
        if room(found.importer) == "runner" and top not in ON_THE_BOX
    ]
    broken += [
        f"{found.place}: {found.importer} must not import {top}: production has the standard library"
        for found, top in third_party()
        if room(found.importer) == "gate"
    ]
    broken += [
        f"{found.place}: {found.importer} must not import {found.target} when loaded: Python 3.10 lacks it"
        for found in all_imports()
        if room(found.importer) in {"runner", "gate"}
        and found.at_once
        and found.target.partition(".")[0] in NEWER_THAN_3_10
    ]
    report(broken)


@pytest.mark.parametrize("module", [module for module in FILES if room(module) in {"runner", "gate"}])
def test_the_box_can_read_it(module: str) -> None:
    """Syntax only; scripts/check looks with mypy for what the library of 3.10 lacks."""
    ast.parse(FILES[module].read_text("utf-8"), str(FILES[module]), feature_version=(3, 10))


def test_a_package_with_one_door_is_imported_there_only() -> None:
    report(
        [
            f"{found.place}: only {DOORS[top]} imports {top}"
            for found, top in third_party()
            if found.importer != DOORS.get(top, found.importer)
        ]
    )


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    required = {canonicalize_name(Requirement(line).name) for line in pyproject["project"]["dependencies"]}
    lab = {canonicalize_name(Requirement(line).name) for line in pyproject["dependency-groups"]["lab"]}
    provided_by = packages_distributions()
    imported: dict[str, str] = {}
    for found, top in third_party():
        # Where the lab model has no wheel nothing provides it, and its import name says enough.
        for distribution in provided_by.get(top, [top]):
            imported.setdefault(canonicalize_name(distribution), found.place)
    broken = [
        f"{place}: {name} is not declared in pyproject.toml"
        for name, place in imported.items()
        if name not in required | lab
    ]
    # rehearsal/lab.py looks for the model's weights without importing their package; what only travels is named.
    idle = required - imported.keys() - ONLY_IN_THE_PAYLOAD
    broken += [f"pyproject.toml: nothing imports {name}" for name in sorted(idle)]
    report(broken)
