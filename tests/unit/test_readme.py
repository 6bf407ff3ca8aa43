"""What the README lists exists, and what exists is listed."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from invoke.collection import Collection

from rehearsal import boxes
from rehearsal.boxes.exposure import WRITTEN_BY_THE_RUN
from rehearsal.evidence import artifact
from rehearsal.runner import __main__ as payload_main
from rehearsal.runner import corpus, errors, template, verdict
from rehearsal.settings import NAMES
from rehearsal.tasks import namespace

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
JSON_FLAG = "--json"


def tables() -> dict[str, list[tuple[str, str]]]:
    """Every table of the README, by the head of its first column: (first cell, second cell) of its rows."""
    found: dict[str, list[tuple[str, str]]] = {}
    for block in re.findall(r"(?:^\|.*\n)+", README, re.MULTILINE):
        head, _, *rows = [line.strip().strip("|").split("|") for line in block.strip().splitlines()]
        found[head[0].strip()] = [(row[0].strip(), row[1].strip()) for row in rows]
    return found


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def flags_of(collection: Collection) -> dict[str, set[str]]:
    return {
        name: {f"--{argument.name.replace('_', '-')}" for argument in task.get_arguments()}
        for name, task in collection.tasks.items()
    }


def test_every_task_and_every_flag() -> None:
    listed: dict[str, set[str]] = {}
    for names, flags in tables()["task"]:
        for name in words(names):
            listed[name] = set(words(flags))
    real = flags_of(namespace)
    without_json = {name for name, flags in real.items() if JSON_FLAG not in flags}
    assert listed == {name: flags - {JSON_FLAG} for name, flags in real.items()}
    assert without_json == {"lab", "init"}, "the README says which tasks have no --json"


def test_every_exit_code() -> None:
    def classes(kind: type[errors.RehearsalError]) -> set[type[errors.RehearsalError]]:
        return {kind}.union(*(classes(child) for child in kind.__subclasses__()))

    codes = {str(kind.exit_code) for kind in classes(errors.RehearsalError)}
    codes |= {str(errors.Interrupted.exit_code), "0"}
    assert {code for code, _ in tables()["exit code"]} == codes


def test_every_failure_reason_in_its_order() -> None:
    listed = [
        word.partition(":")[0] for cell, _ in tables()["`failure_reason`, the gravest first"] for word in words(cell)
    ]
    assert listed == list(verdict.GRAVITY)


def test_every_column_of_eval_runs() -> None:
    listed = [word for cell, _ in tables()["column"] for word in words(cell)]
    assert sorted(listed) == sorted([field.name for field in dataclasses.fields(artifact.Row)] + ["run_id"])


def test_every_key_of_a_fixture_and_of_a_template() -> None:
    sections = README.split("\n## ")
    fixture = next(section for section in sections if section.startswith("A fixture"))
    pinned = next(section for section in sections if section.startswith("A template"))
    keys = [word for line in fixture.splitlines() if line.startswith("| `") for word in words(line.split("|")[1])]
    assert {*keys, "forbidden_claims"} == {*corpus.REQUIRED, *corpus.OPTIONAL}
    keys = [word for line in pinned.splitlines() if line.startswith("| `") for word in words(line.split("|")[1])]
    assert set(keys) == {field.name for field in dataclasses.fields(template.Settings)}


def test_every_kind_of_box() -> None:
    assert [words(cell)[0] for cell, _ in tables()["`--box`"]] == list(boxes.DRIVERS)


def test_every_setting() -> None:
    flags = {flag.removeprefix("--").replace("-", "_") for flag in flags_of(namespace)["rehearse"]} - {"json"}
    assert {*flags, "seam", "ssh_config"} == set(NAMES)
    assert "`seam`" in README
    assert "`ssh_config`" in README


def test_the_environment_of_a_box() -> None:
    for name in payload_main.ALLOWED_ENVIRONMENT:
        assert f"`{name}`" in README
    assert payload_main.ENV_NAME in WRITTEN_BY_THE_RUN


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), f"README.md links to {link}"
