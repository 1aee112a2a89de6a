"""Fixtures of the agent's tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.training import Training
from tests.interpreters import available


@pytest.fixture
def training(tmp_path: Path) -> Training:
    """A training in the Python that runs the tests."""
    return Training(tmp_path)


def interpreters() -> Iterator[Any]:
    """The Pythons of this machine that the agent supports.

    make test takes the oldest, make test-all the newest and the one that runs the tests, make test-extended the others.
    """
    found = available()
    for version, path in found.items():
        is_oldest, is_newest = version == next(iter(found)), version == next(reversed(found))
        marks = [pytest.mark.slow, *([] if is_newest or path == sys.executable else [pytest.mark.extended])]
        yield pytest.param(path, id=version, marks=[] if is_oldest else marks)


@pytest.fixture(params=interpreters())
def any_training(request: pytest.FixtureRequest, tmp_path: Path) -> Training:
    """A training in each of these Pythons."""
    return Training(tmp_path, python=request.param)
