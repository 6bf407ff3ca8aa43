"""What a team gets that installs the wheel into its own repository."""

from __future__ import annotations

import zipfile
from email import message_from_bytes
from pathlib import Path


def test_the_wheel_holds_the_kit_and_what_a_new_project_starts_with(repo: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    kit = {
        path.relative_to(repo).as_posix()
        for path in (repo / "rehearsal").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    starter = {
        f"rehearsal/starter/{path.relative_to(repo).as_posix()}"
        for folder in ("fixtures", "prompts")
        for path in (repo / folder).rglob("*")
        if path.is_file()
    }
    assert "rehearsal/starter/fixtures/T-1842-duplicate-capture.json" in held
    assert held == kit | starter


def test_the_wheel_asks_for_nothing_that_has_to_be_compiled_first(wheel: Path) -> None:
    """The lab model's package declares llama-cpp-python, a long source build: the wheel must not."""
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        needs = message_from_bytes(archive.read(metadata)).get_all("Requires-Dist") or []
    assert any(need.startswith("fabric") for need in needs)
    assert not [need for need in needs if need.startswith("llm")]
