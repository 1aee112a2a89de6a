"""Fixtures of the agent's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agent.training import Training
from tests.interpreters import available


@pytest.fixture
def training(tmp_path: Path) -> Training:
    """A training in the Python that runs the tests."""
    return Training(tmp_path)


@pytest.fixture(params=available().items(), ids=lambda item: item[0])
def any_training(request: pytest.FixtureRequest, tmp_path: Path) -> Training:
    """A training in each Python of this machine that the agent supports."""
    return Training(tmp_path, python=request.param[1])
