"""The pages of docs/commands say what the code says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from reprokit.launch import variables
from tests.support import COMMAND

PAGES = Path(__file__).parent.parent.parent / "docs" / "commands"


def help_of(command: str) -> str:
    done = subprocess.run(
        [COMMAND, *command.split(), "--help"], env={**os.environ, "COLUMNS": "80"}, capture_output=True, text=True
    )
    return done.stdout


@pytest.mark.parametrize("command", ["record", "replay", "run", "profile", "reproduce", "doctor", "report"])
def test_the_page_holds_the_help_text(command: str) -> None:
    page = (PAGES / f"{command}.md").read_text()
    shown = "".join(
        f"    {line}".rstrip() + "\n" for line in f"$ reprokit {command} --help\n{help_of(command)}".splitlines()
    )
    assert shown in page


def test_the_page_of_snapshots_holds_all_help_texts() -> None:
    page = (PAGES / "snapshot.md").read_text()
    helps = {name: help_of(f"snapshot {name}".strip()) for name in ("", "show", "reproduce", "minimise", "explain")}
    options = {name: text.partition("Options:")[2] for name, text in helps.items()}
    assert options["minimise"] == options["explain"] == options["reproduce"]
    for name, text in helps.items():
        kept = text.partition("\nOptions:")[0] if name in ("minimise", "explain") else text
        shown = f"$ reprokit snapshot {name}".rstrip() + f" --help\n{kept}"
        assert "".join(f"    {line}".rstrip() + "\n" for line in shown.splitlines()) in page


def test_the_page_lists_the_variables_that_are_kept() -> None:
    page = (PAGES / "replay.md").read_text()
    for name in (
        *(f"`{prefix}*`" for prefix in variables.KEPT_PREFIXES),
        *(f"`{name}`" for name in variables.KEPT_NAMES),
    ):
        assert name in page


def test_reprokit_alone_shows_the_commands() -> None:
    done = subprocess.run([COMMAND], capture_output=True, text=True)
    assert done.returncode == 0
    for name in ("record", "replay", "verify", "show", "doctor"):
        assert f"\n  {name} " in done.stdout
