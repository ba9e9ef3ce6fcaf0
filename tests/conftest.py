"""Fixtures that every test file shares: a home of the user's, and a workspace, both of the test's own.

No test may see the real HERMES_HOME, so `hermes_home` is in force for all of them, asked for or not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes_sandbox import Supervisor
from tests.support import TIERS, Holders, holders_in
from tests.terminals import GRACE, Task, opened


@pytest.fixture(autouse=True)
def hermes_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty $HERMES_HOME, in force for this test and what it starts."""
    home = tmp_path_factory.mktemp("hermes_home")
    monkeypatch.setenv("HERMES_HOME", str(home))
    return home


@pytest.fixture
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder of the user who runs the tests, at a path without symbolic links.

    As root a test may give it away (`os.chown`): the folders above it are then opened for passing, since pytest makes
    them 0700 and the new owner could not reach it.
    """
    folder = tmp_path_factory.mktemp("workspace").resolve()
    if os.geteuid() == 0:
        for parent in (folder.parent, folder.parent.parent):
            parent.chmod(0o711)
    return folder


# The tests of the terminal's tools: one supervisor for a file, a task for each test. A file may have its own instead.


@pytest.fixture(scope="module", params=TIERS)
def tier(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace of a file's supervisor."""
    return tmp_path_factory.mktemp("folder").resolve()


@pytest.fixture(scope="module")
def supervisor(tier: str, folder: Path) -> Iterator[Supervisor]:
    with Supervisor(workspace=folder, policy={"tier": tier, "grace": GRACE}) as made:
        yield made


@pytest.fixture
def holders(folder: Path) -> Iterator[Holders]:
    yield from holders_in(folder)


@pytest.fixture
def task(supervisor: Supervisor, folder: Path) -> Iterator[Task]:
    yield from opened(supervisor, folder)
