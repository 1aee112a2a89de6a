"""Every command has a page in the navigation, with its help and an example."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from reprokit.cli.main import COMMANDS, reprokit
from tests.docs.console import DOCS

ROOT = DOCS.parent


def paths_of(command: click.Command, path: str) -> Iterator[str]:
    """The command's path, and those of the commands below it."""
    yield path
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from paths_of(inner, f"{path} {name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_a_page_with_its_help(name: str) -> None:
    command = reprokit.get_command(click.Context(reprokit), name)
    assert command is not None
    page = (DOCS / "commands" / f"{name}.md").read_text()
    assert [path for path in paths_of(command, name) if f"<!-- help: {path} -->" not in page] == []
    assert f" commands/{name}.md\n" in (ROOT / "mkdocs.yml").read_text()
