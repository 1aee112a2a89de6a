"""docs/commands/study.md holds the help texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import Reprokit

PAGE = Path(__file__).parents[2] / "docs" / "commands" / "study.md"


@pytest.mark.parametrize("command", ["study", "study run", "study tasks", "study collect", "study init", "study show"])
def test_the_page_holds_the_help_text(tmp_path: Path, command: str) -> None:
    done = Reprokit(tmp_path).run(*command.split(), "--help", environment={"COLUMNS": "80"})
    text = f"$ reprokit {command} --help\n{done.stdout}"
    assert "".join(f"    {line}".rstrip() + "\n" for line in text.splitlines()) in PAGE.read_text()
