"""Servers and projects for the tests with real SSH hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.cli.project import Project
from tests.hosts.sshd import MISSING, Sshd


@pytest.fixture(scope="session", autouse=True)
def _has_openssh() -> None:
    if MISSING:
        pytest.skip(MISSING)


@pytest.fixture(scope="module")
def host(_has_openssh: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """One standing server for all tests of a module that leave it as it was."""
    with Sshd(tmp_path_factory.mktemp("host") / "sshd") as sshd:
        yield sshd


@pytest.fixture
def new_host(_has_openssh: None, tmp_path: Path) -> Iterator[Callable[..., Sshd]]:
    """Start servers of one's own; the arguments are Sshd's without the folder."""
    with ExitStack() as stack:
        made: list[Sshd] = []

        def make(**options: Any) -> Sshd:
            made.append(stack.enter_context(Sshd(tmp_path / f"host-{len(made)}", **options)))
            return made[-1]

        yield make


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all projects: the payload is built once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def project(tmp_path: Path, cache: Path) -> Project:
    """A fresh project."""
    return Project(tmp_path / "project", cache=cache)
