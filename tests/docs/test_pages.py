"""The commands that stand on pages of docs are run as they stand there, and print what the pages say."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.console import run_page

QUICK = [
    "record",
    "replay",
    "verify",
    "show",
    "ls",
    "check",
    "data",
    "diff",
    "knowledge",
    "report",
    "keygen",
    "attest",
    "export",
    "bundle",
    "unpack",
    "doctor",
]
TRAININGS = Path(__file__).parents[1] / "trainings"
LONG = ["record", "gate", "ledger"]
LONGER = ["record", "profile", "reproduce", "study"]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(QUICK, id="quick"),
        pytest.param(LONG, id="long", marks=pytest.mark.slow),
        pytest.param(LONGER, id="longer", marks=pytest.mark.extended),
    ],
)
def test_the_examples_of_commands(names: list[str], tmp_path: Path) -> None:
    for name in names:
        assert run_page(f"commands/{name}.md", tmp_path) > 0


@pytest.mark.parametrize(
    "name",
    ["xgboost", *(pytest.param(name, marks=pytest.mark.slow) for name in ("keras", "ci"))],
)
def test_a_tutorial(name: str, tmp_path: Path) -> None:
    assert run_page(f"tutorials/{name}.md", tmp_path) > 2


@pytest.mark.extended
@pytest.mark.torch
def test_the_example_of_a_resumed_training(tmp_path: Path) -> None:
    shutil.copy(TRAININGS / "pytorch_resumed.py", tmp_path / "train.py")
    assert run_page("commands/resume.md", tmp_path) == 1


@pytest.mark.slow
@pytest.mark.torch
def test_the_tutorial_of_pytorch_and_what_is_asked_of_its_training(tmp_path: Path) -> None:
    assert run_page("tutorials/pytorch.md", tmp_path) > 2
    assert run_page("commands/ask.md", tmp_path) > 1


@pytest.mark.slow
@pytest.mark.torch
def test_the_tutorial_of_a_nan_and_the_commands_that_it_leads_to(tmp_path: Path) -> None:
    for page in ("tutorials/nan.md", "commands/run.md", "commands/snapshot.md"):
        assert run_page(page, tmp_path) > 0
