"""Writes a manual page for each command from its help: python docs/man.py DIRECTORY (make man)."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from reprokit.cli.main import reprokit
from reprokit.core.version import VERSION


def contexts(
    command: click.Command, parent: click.Context | None = None, name: str = "reprokit"
) -> Iterator[click.Context]:
    """Yield the context of a command and those of the commands in it."""
    context = click.Context(command, parent=parent, info_name=name, **command.context_settings)
    yield context
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from contexts(found, context, child)


def page(context: click.Context) -> str:
    """Return the manual page of a command, as roff."""
    command, name = context.command, context.command_path.replace(" ", "-")
    lines = [f'.TH "{name.upper()}" 1 "" "reprokit {VERSION}"']
    lines += [".SH NAME", f"{text(name)} \\- {text(summary(command))}"]
    lines += [".SH SYNOPSIS", f".B {text(context.command_path)}", text(" ".join(command.collect_usage_pieces(context)))]
    lines += [".SH DESCRIPTION", *paragraphs(inspect.cleandoc(command.help or "")), ".SH OPTIONS"]
    for parameter in command.get_params(context):
        for option, words in filter(None, [parameter.get_help_record(context)]):
            lines += [".TP", f".B {text(option)}", text(words)] if words else []
    if isinstance(command, click.Group):
        children = ((child, command.get_command(context, child)) for child in command.list_commands(context))
        pages = [f".BR {text(name)}\\-{text(child)} (1)\n{text(summary(found))}" for child, found in children if found]
        lines += [".SH COMMANDS", *(line for entry in pages for line in (".TP", entry))]
    if command.epilog:
        lines += [".SH EXAMPLE", ".EX", text(command.epilog.removeprefix("Example: ")), ".EE"]
    if context.parent is not None:
        lines += [".SH SEE ALSO", f".BR {text(context.parent.command_path.replace(' ', '-'))} (1)"]
    return "\n".join(lines) + "\n"


def summary(command: click.Command) -> str:
    return command.get_short_help_str(limit=200).rstrip(".")


def paragraphs(help_text: str) -> Iterator[str]:
    for part in re.split(r"\n\s*\n", help_text):
        yield ".PP"
        yield text(" ".join(part.split()))


def text(plain: str) -> str:
    """Return a line that roff prints as it is."""
    escaped = " ".join(plain.split()).replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + escaped if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for found in contexts(reprokit):
        (directory / f"{found.command_path.replace(' ', '-')}.1").write_text(page(found), encoding="utf-8")
